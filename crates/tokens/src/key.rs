//! Keys that sign tokens: those of a file, and those that an issuer publishes.
//!
//! Invariant: an issuer publishes public keys. A secret among them is passed over: whoever can read
//! the list could sign with it. A key whose kind is not known is passed over too, as issuers publish
//! keys for other uses beside those that sign.

use crate::algorithm::Algorithm;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;
use std::collections::BTreeMap;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode, Encode};
use x509_cert::spki::SubjectPublicKeyInfoRef;

/// Keys of one issuer; they have a handful.
const KEYS_MAX: usize = 256;
/// A secret that is shorter can be guessed: RFC 7518, 3.2.
const SECRET_BYTES_MIN: usize = 32;

/// A key, and what it may sign with.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    pub(crate) material: Material,
    /// The one algorithm that it is for, if it says so.
    pub(crate) only: Option<Algorithm>,
}

/// What a key is made of.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Material {
    /// An RSAPublicKey of PKCS #1.
    RsaDer(Vec<u8>),
    /// Modulus and exponent, without leading zeros.
    RsaParts {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A point, uncompressed.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
    Secret(Vec<u8>),
}

/// Nothing of a secret is printed.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.material {
            Material::RsaDer(_) | Material::RsaParts { .. } => "RSA",
            Material::P256(_) => "P-256",
            Material::P384(_) => "P-384",
            Material::Ed25519(_) => "Ed25519",
            Material::Secret(_) => "secret",
        };
        write!(f, "Key({kind}, {:?})", self.only)
    }
}

/// Why a file is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongKey {
    /// It is in no form that is known.
    #[error("it is neither a public key or certificate in PEM nor a JSON web key")]
    Form,
    /// It is of a kind that nothing here verifies with.
    #[error(
        "it is of a kind that is not known: RSA, P-256, P-384 or Ed25519 is expected, or a secret in a JSON web key"
    )]
    Kind,
    /// It is private.
    #[error("it is a private key: name the public one, and keep this one where tokens are signed")]
    Private,
    /// It is too short.
    #[error("the secret is shorter than 32 bytes")]
    Short,
}

impl Key {
    /// The key of a file: PEM, or a JSON web key, which may be a secret.
    pub fn from_file(contents: &[u8]) -> Result<Key, WrongKey> {
        let text = std::str::from_utf8(contents).map_err(|_| WrongKey::Form)?;
        if text.trim_start().starts_with('{') {
            let jwk = serde_json::from_str(text).map_err(|_| WrongKey::Form)?;
            return Key::from_jwk(&jwk);
        }
        let (label, der) = pem(text).ok_or(WrongKey::Form)?;
        match label {
            "PUBLIC KEY" => Key::from_spki(&der),
            "CERTIFICATE" => {
                let certificate = x509_cert::Certificate::from_der(&der).map_err(|_| WrongKey::Form)?;
                let spki = certificate.tbs_certificate.subject_public_key_info.to_der().map_err(|_| WrongKey::Form)?;
                Key::from_spki(&spki)
            }
            "RSA PUBLIC KEY" => Ok(Key { material: Material::RsaDer(der), only: None }),
            label if label.ends_with("PRIVATE KEY") => Err(WrongKey::Private),
            _ => Err(WrongKey::Form),
        }
    }

    /// What it may sign with; nothing where its `alg` is one for keys of another kind.
    pub fn algorithms(&self) -> Vec<Algorithm> {
        Algorithm::ALL.iter().map(|(algorithm, _)| *algorithm).filter(|algorithm| algorithm.is_for(self)).collect()
    }

    fn from_spki(der: &[u8]) -> Result<Key, WrongKey> {
        const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
        const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
        const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
        const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
        const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
        let info = SubjectPublicKeyInfoRef::from_der(der).map_err(|_| WrongKey::Form)?;
        let bits = info.subject_public_key.raw_bytes().to_vec();
        let curve = info.algorithm.parameters.and_then(|parameters| parameters.decode_as::<ObjectIdentifier>().ok());
        let material = match (info.algorithm.oid, curve) {
            (RSA, _) => Material::RsaDer(bits),
            (EC, Some(P256)) => Material::P256(bits),
            (EC, Some(P384)) => Material::P384(bits),
            (ED25519, _) => Material::Ed25519(bits),
            _ => return Err(WrongKey::Kind),
        };
        Ok(Key { material, only: None })
    }

    fn from_jwk(jwk: &Value) -> Result<Key, WrongKey> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let bytes = |name: &str| {
            let text = text(name)?.trim_end_matches('=');
            URL_SAFE_NO_PAD.decode(text).ok()
        };
        let number = |name: &str| {
            let bytes = bytes(name)?;
            let begin = bytes.iter().position(|byte| *byte != 0)?;
            Some(bytes[begin..].to_vec())
        };
        let point = |length: usize| {
            let (x, y) = (bytes("x")?, bytes("y")?);
            (x.len() == length && y.len() == length).then(|| [&[4][..], &x, &y].concat())
        };
        if jwk.get("kty").is_some_and(|kind| kind != "oct") && jwk.get("d").is_some() {
            return Err(WrongKey::Private);
        }
        let material = match (text("kty"), text("crv")) {
            (Some("RSA"), _) => number("n").zip(number("e")).map(|(n, e)| Material::RsaParts { n, e }),
            (Some("EC"), Some("P-256")) => point(32).map(Material::P256),
            (Some("EC"), Some("P-384")) => point(48).map(Material::P384),
            (Some("OKP"), Some("Ed25519")) => bytes("x").filter(|x| x.len() == 32).map(Material::Ed25519),
            (Some("oct"), _) => match bytes("k") {
                Some(secret) if secret.len() < SECRET_BYTES_MIN => return Err(WrongKey::Short),
                secret => secret.map(Material::Secret),
            },
            _ => return Err(WrongKey::Kind),
        };
        let only = match text("alg") {
            Some(name) => Some(Algorithm::named(name).ok_or(WrongKey::Kind)?),
            None => None,
        };
        Ok(Key { material: material.ok_or(WrongKey::Form)?, only })
    }
}

/// Keys by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    named: BTreeMap<String, Key>,
    /// Keys that an issuer gives no name.
    nameless: Vec<Key>,
    /// Which one signs tokens that name none.
    default: Option<String>,
}

impl Keys {
    /// The keys that an issuer publishes. `None`: it is no such list.
    pub fn published(document: &[u8]) -> Option<Keys> {
        let document: Value = serde_json::from_slice(document).ok()?;
        let mut keys = Keys::default();
        for jwk in document.get("keys")?.as_array()?.iter().take(KEYS_MAX) {
            let is_to_sign = jwk.get("use").is_none_or(|of| of == "sig");
            let key = Key::from_jwk(jwk).ok().filter(|key| is_to_sign && !matches!(key.material, Material::Secret(_)));
            match (key, jwk.get("kid").and_then(Value::as_str)) {
                (Some(key), Some(id)) => keys.insert(id.to_owned(), key),
                (Some(key), None) => keys.nameless.push(key),
                (None, _) => {}
            }
        }
        Some(keys)
    }

    /// One more.
    pub fn insert(&mut self, id: String, key: Key) {
        self.named.insert(id, key);
    }

    /// Which one signs tokens that name none.
    pub fn set_default(&mut self, id: Option<String>) {
        self.default = id;
    }

    /// These, and behind them others, of which those go that have the name of one of these.
    #[must_use]
    pub fn before(&self, others: &Keys) -> Keys {
        let mut all = self.clone();
        for (id, key) in &others.named {
            all.named.entry(id.clone()).or_insert_with(|| key.clone());
        }
        all.nameless.extend(others.nameless.iter().cloned());
        all
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.named.len() + self.nameless.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of this name; for a token that names none the one that is meant then, or the only
    /// one that there is.
    pub(crate) fn find(&self, id: Option<&str>) -> Option<&Key> {
        match id.or(self.default.as_deref()) {
            Some(id) => self.named.get(id),
            None if self.len() == 1 => self.named.values().chain(&self.nameless).next(),
            None => None,
        }
    }
}

/// The first section of a PEM file.
fn pem(text: &str) -> Option<(&str, Vec<u8>)> {
    let (_, rest) = text.split_once("-----BEGIN ")?;
    let (label, rest) = rest.split_once("-----")?;
    let (body, _) = rest.split_once("-----END ")?;
    let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    Some((label, STANDARD.decode(body).ok()?))
}

//! How tokens are signed.
//!
//! Invariant: an algorithm belongs to one kind of key, so a public key is never taken for a secret.

use crate::key::{Key, Material};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use ring::{hmac, signature};

/// See the module. The names are those of RFC 7518 and 8037.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    EdDSA,
    HS256,
    HS384,
    HS512,
}

use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512};

impl Algorithm {
    /// All of them, with their names.
    pub const ALL: [(Algorithm, &'static str); 12] = [
        (RS256, "RS256"),
        (RS384, "RS384"),
        (RS512, "RS512"),
        (PS256, "PS256"),
        (PS384, "PS384"),
        (PS512, "PS512"),
        (ES256, "ES256"),
        (ES384, "ES384"),
        (EdDSA, "EdDSA"),
        (HS256, "HS256"),
        (HS384, "HS384"),
        (HS512, "HS512"),
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.iter().find(|(_, known)| *known == name).map(|(algorithm, _)| *algorithm)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Algorithm::ALL[self as usize].1
    }

    /// Whether a key is one for it.
    pub(crate) fn is_for(self, key: &Key) -> bool {
        let is_its_kind = matches!(
            (self, &key.material),
            (RS256 | RS384 | RS512 | PS256 | PS384 | PS512, Material::RsaDer(_) | Material::RsaParts { .. })
                | (ES256, Material::P256(_))
                | (ES384, Material::P384(_))
                | (EdDSA, Material::Ed25519(_))
                | (HS256 | HS384 | HS512, Material::Secret(_))
        );
        is_its_kind && key.only.is_none_or(|only| only == self)
    }

    /// Whether this is the signature of a message by a key that is for it.
    pub(crate) fn verifies(self, key: &Key, message: &[u8], signature: &[u8]) -> bool {
        match (self, &key.material) {
            (HS256, Material::Secret(secret)) => has_mac(hmac::HMAC_SHA256, secret, message, signature),
            (HS384, Material::Secret(secret)) => has_mac(hmac::HMAC_SHA384, secret, message, signature),
            (HS512, Material::Secret(secret)) => has_mac(hmac::HMAC_SHA512, secret, message, signature),
            (ES256, Material::P256(point)) => is_signed(&ECDSA_P256_SHA256_FIXED, point, message, signature),
            (ES384, Material::P384(point)) => is_signed(&ECDSA_P384_SHA384_FIXED, point, message, signature),
            (EdDSA, Material::Ed25519(point)) => is_signed(&ED25519, point, message, signature),
            (_, Material::RsaDer(der)) => {
                self.rsa().is_some_and(|parameters| is_signed(parameters, der, message, signature))
            }
            (_, Material::RsaParts { n, e }) => self.rsa().is_some_and(|parameters| {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }),
            _ => false,
        }
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            RS256 => &RSA_PKCS1_2048_8192_SHA256,
            RS384 => &RSA_PKCS1_2048_8192_SHA384,
            RS512 => &RSA_PKCS1_2048_8192_SHA512,
            PS256 => &RSA_PSS_2048_8192_SHA256,
            PS384 => &RSA_PSS_2048_8192_SHA384,
            PS512 => &RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }
}

fn is_signed(
    algorithm: &'static dyn signature::VerificationAlgorithm,
    key: &[u8],
    message: &[u8],
    signature: &[u8],
) -> bool {
    UnparsedPublicKey::new(algorithm, key).verify(message, signature).is_ok()
}

fn has_mac(algorithm: hmac::Algorithm, secret: &[u8], message: &[u8], mac: &[u8]) -> bool {
    hmac::verify(&hmac::Key::new(algorithm, secret), message, mac).is_ok()
}

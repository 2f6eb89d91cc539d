//! A token in its parts.
//!
//! ```text
//!   base64url(head as JSON) . base64url(claims as JSON) . base64url(signature of all before the dot)
//! ```
//!
//! Invariant: the claims are read only through [`Jws::claims`], which looks at the signature.

use crate::algorithm::Algorithm;
use crate::key::Keys;
use crate::rules::Refused;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// Tokens are a few KB at most; nothing larger is looked at.
const TOKEN_BYTES_MAX: usize = 64 << 10;

/// See the module.
pub(crate) struct Jws<'a> {
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    key_id: Option<String>,
}

impl<'a> Jws<'a> {
    /// Reads what is before the signature may be looked at.
    pub(crate) fn parse(token: &'a [u8], allowed: &[Algorithm]) -> Result<Jws<'a>, Refused> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        let text = std::str::from_utf8(token).map_err(|_| Refused::Malformed)?;
        let (signed, signature) = text.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (head, claims) = signed.split_once('.').ok_or(Refused::Malformed)?;
        if claims.contains('.') {
            return Err(Refused::Malformed);
        }
        let head = object(head)?;
        // What it lists has to be understood, and nothing of that is.
        if head.contains_key("crit") {
            return Err(Refused::Critical);
        }
        let name = head.get("alg").and_then(Value::as_str).ok_or(Refused::Malformed)?;
        let algorithm = Algorithm::named(name).filter(|found| allowed.contains(found)).ok_or(Refused::Algorithm)?;
        let key_id = match head.get("kid") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err(Refused::Malformed),
        };
        let signature = decode(signature)?;
        Ok(Jws { signed, claims, signature, algorithm, key_id })
    }

    /// The claims, if the signature is that of the key which the token names.
    pub(crate) fn claims(&self, keys: &Keys) -> Result<Map<String, Value>, Refused> {
        let key = keys.find(self.key_id.as_deref()).ok_or(Refused::UnknownKey)?;
        if !self.algorithm.is_for(key) {
            return Err(Refused::OtherKind);
        }
        if !self.algorithm.verifies(key, self.signed.as_bytes(), &self.signature) {
            return Err(Refused::Signature);
        }
        object(self.claims)
    }
}

fn decode(part: &str) -> Result<Vec<u8>, Refused> {
    // Some write the padding that does not belong there.
    URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).map_err(|_| Refused::Malformed)
}

fn object(part: &str) -> Result<Map<String, Value>, Refused> {
    match json_once::read(&decode(part)?) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err(Refused::Malformed),
    }
}

//! Passwords and their hashes as definitions have them.
//!
//! Invariant: what [`text_of`] writes [`read_hash`] reads, and so does RabbitMQ: where the algorithm is
//! none of its own it keeps the hash, and lets nobody in by it. A password in the clear is hashed
//! before the topology is looked at: that may take long, and nobody waits for it.

use crate::node::Shared;
use crate::passwords::hashed;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::topology::{HashAlgorithm, Name, PasswordHash};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// The hashes of passwords in the clear, by user and password.
pub(super) type ClearPasswords = HashMap<(String, String), PasswordHash>;

const ARGON2ID: &str = "$argon2id$";

/// The algorithm that a hash names itself.
pub fn named_by(text: &str) -> Option<HashAlgorithm> {
    argon2id_in(text).map(|_| HashAlgorithm::Argon2id)
}

/// The text of a hash of Argon2id, as it is or in base64.
fn argon2id_in(text: &str) -> Option<Vec<u8>> {
    if text.starts_with(ARGON2ID) {
        return Some(text.as_bytes().to_vec());
    }
    STANDARD.decode(text).ok().filter(|bytes| bytes.starts_with(ARGON2ID.as_bytes()))
}

/// The hash in this text, in base64; that of Argon2id also as it is. Without an algorithm its
/// first characters or its length name it, as with RabbitMQ before 3.6. Errors: what is expected.
pub fn read_hash(algorithm: Option<HashAlgorithm>, text: &str) -> Result<PasswordHash, String> {
    if algorithm.or_else(|| named_by(text)) == Some(HashAlgorithm::Argon2id) {
        // No hash is a user without a password.
        let bytes = argon2id_in(text).or_else(|| text.is_empty().then(Vec::new));
        return bytes.and_then(|bytes| PasswordHash::from_bytes(HashAlgorithm::Argon2id, &bytes)).ok_or_else(|| {
            let module = HashAlgorithm::Argon2id.module();
            format!(
                "for {module} a text as $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH is expected, of at most 128 MiB (m=131072) \
                 and m times t of at most 524288"
            )
        });
    }
    let bytes = STANDARD.decode(text.as_bytes()).map_err(|_| "a hash in base64 is expected".to_owned())?;
    let by_length = HashAlgorithm::ALL.into_iter().find(|algorithm| algorithm.hash_bytes() == Some(bytes.len()));
    let algorithm = algorithm.or(by_length).unwrap_or(HashAlgorithm::Sha256);
    PasswordHash::from_bytes(algorithm, &bytes).ok_or_else(|| {
        let wanted = algorithm.hash_bytes().unwrap_or_default();
        format!("{wanted} bytes in base64 are expected for {}", algorithm.module())
    })
}

/// The text of a hash; see [`read_hash`]. RabbitMQ takes a file in only if each hash is base64.
pub fn text_of(hash: &PasswordHash) -> String {
    STANDARD.encode(hash.to_bytes())
}

/// Hashes what a document has in the clear. A user who has that password already keeps the hash:
/// another one of the same password would be a change at every import. `None` where the node ends meanwhile: each takes tens
/// of milliseconds.
pub(super) fn hash_clear(shared: &Shared, text: &str) -> Option<ClearPasswords> {
    if !text.contains("\"password\"") {
        return Some(ClearPasswords::new());
    }
    // What is wrong with the document the plan says, with its line.
    let users = users_in(text).unwrap_or_default();
    let users = users.as_array().into_iter().flatten();
    let clear = users
        .filter(|user| user.get("password_hash").is_none())
        .filter_map(|user| Some((user.get("name")?.as_str()?.to_owned(), user.get("password")?.as_str()?.to_owned())));
    let hash = |(name, password): (String, String)| {
        if shared.ends_imports.load(Ordering::Relaxed) {
            return None;
        }
        let name_of = Name::from(name.as_str());
        let known = shared.topology().user(name.as_bytes()).map(|user| user.password.clone());
        let known = known.filter(|known| shared.passwords.matches_here(&name_of, known, password.as_bytes()));
        let hash = known.unwrap_or_else(|| hashed(shared.hashing(), password.as_bytes()));
        Some(((name, password), hash))
    };
    clear.filter(|(name, _)| name.len() <= broker::topology::NAME_BYTES_MAX).map(hash).collect()
}

/// The users of a document, of which nothing else is kept: there may be very much. None where it cannot be read.
fn users_in(text: &str) -> Option<Value> {
    #[derive(serde::Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        users: &'a RawValue,
    }
    json_once::check(text.as_bytes()).ok()?;
    let Document { users } = serde_json::from_str(text).ok()?;
    json_once::value(users.get().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_was_written() {
        let all = HashAlgorithm::ALL.map(|algorithm| hashed(algorithm, b"secret"));
        for hash in all {
            assert_eq!(read_hash(Some(hash.algorithm()), &text_of(&hash)).as_ref(), Ok(&hash));
            assert_eq!(read_hash(None, &text_of(&hash)), Ok(hash), "it names itself, or its length does");
        }
        let none = read_hash(Some(HashAlgorithm::Argon2id), "").expect("a user may have no password");
        assert_eq!(text_of(&none), "");
        assert!(read_hash(Some(HashAlgorithm::Argon2id), "c2VjcmV0").is_err_and(|why| why.contains("$argon2id$")));
        assert!(read_hash(Some(HashAlgorithm::Md5), "c2VjcmV0").is_err_and(|why| why.starts_with("20 bytes")));
        assert!(read_hash(None, "!").is_err());
    }
}

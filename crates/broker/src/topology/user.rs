//! Users, their passwords and what they may do in a virtual host.
//!
//! Invariant: a password is kept only as a salted hash, and no text or debug output shows even that. The salt is given
//! by the caller, because this room knows no random numbers.
//! Absent on purpose: permission patterns. RabbitMQ's are regular expressions; until they are here a permission is all
//! or nothing, which is what the one user of a fresh broker needs.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

use super::name::Name;
use crate::ids::VhostId;

/// Bytes of salt before a password is hashed, as in RabbitMQ.
pub const SALT_BYTES: usize = 4;
/// Bytes of a SHA-256 digest.
pub const DIGEST_BYTES: usize = 32;
/// Tags of one user; RabbitMQ knows six.
pub const TAGS_MAX: usize = 64;

/// RabbitMQ's default password hash: SHA-256 over salt and password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) digest: [u8; DIGEST_BYTES],
}

impl PasswordHash {
    /// Hashes a password with the salt that the caller drew.
    pub fn new(password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        let digest = Sha256::new().chain_update(salt).chain_update(password).finalize();
        Self { salt, digest: digest.into() }
    }

    /// Whether this is the password. Takes the same time wherever the first wrong byte is.
    pub fn matches(&self, password: &[u8]) -> bool {
        let other = Self::new(password, self.salt);
        self.digest.iter().zip(other.digest).fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

/// What is asked for: RabbitMQ's three rights on a queue or exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Declare and delete.
    Configure,
    /// Publish to an exchange, bind a queue.
    Write,
    /// Consume, get, purge; bind from an exchange.
    Read,
}

impl Access {
    /// The word in RabbitMQ's texts.
    pub(super) fn word(self) -> &'static str {
        match self {
            Access::Configure => "configure",
            Access::Write => "write",
            Access::Read => "read",
        }
    }
}

/// What a user may do in one virtual host, for every name in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// See `Access::Configure`.
    pub configure: bool,
    /// See `Access::Write`.
    pub write: bool,
    /// See `Access::Read`.
    pub read: bool,
}

impl Permission {
    /// All three: RabbitMQ's `.*`, `.*`, `.*`.
    pub const EVERYTHING: Self = Self { configure: true, write: true, read: true };

    /// Whether this access is granted.
    pub fn allows(self, access: Access) -> bool {
        match access {
            Access::Configure => self.configure,
            Access::Write => self.write,
            Access::Read => self.read,
        }
    }
}

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The hash of the password.
    pub password: PasswordHash,
    /// RabbitMQ's tags, such as `administrator`; they mean something to the management API only.
    pub tags: Vec<Name>,
    /// By virtual host; a host that is not there may not be opened.
    pub permissions: BTreeMap<VhostId, Permission>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_rabbitmq_documents() {
        // The example of RabbitMQ's password guide: salt 908DC60A, password "test12".
        let hash = PasswordHash::new(b"test12", [0x90, 0x8d, 0xc6, 0x0a]);
        let hex: String = hash.digest.iter().map(|b| format!("{b:02X}")).collect();
        assert_eq!(hex, "A5B924B3096B8897D65A3B5F80FA5DB62A94B83122CDF4F8FEAD10D515D8F391");
        assert!(hash.matches(b"test12"));
        assert!(!hash.matches(b"test13"));
    }

    #[test]
    fn a_hash_is_not_printed() {
        assert_eq!(format!("{:?}", PasswordHash::new(b"x", [1, 2, 3, 4])), "PasswordHash(..)");
    }
}

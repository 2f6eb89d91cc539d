//! Passwords as they are kept: salted hashes of RabbitMQ's three algorithms.
//!
//! Invariant: a password is kept only as a salted hash, and no text or debug output shows even
//! that. The salt is given by the caller, because this room knows no random numbers. Absent on
//! purpose: a slow hash. A definitions file brings RabbitMQ's hashes and those are what can be
//! checked; one check costs less than a microsecond, so no login holds up its thread.

use std::fmt;

use md5::Md5;
use sha2::{Digest, Sha256, Sha512};

/// Bytes of salt before a password is hashed, as in RabbitMQ.
pub const SALT_BYTES: usize = 4;
/// Bytes of the longest digest, SHA-512.
pub const DIGEST_BYTES_MAX: usize = 64;

/// How a password was hashed; RabbitMQ names its modules in definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// `rabbit_password_hashing_sha256`, the default.
    Sha256,
    /// `rabbit_password_hashing_sha512`.
    Sha512,
    /// `rabbit_password_hashing_md5`, for users from before RabbitMQ 3.6.
    Md5,
}

impl HashAlgorithm {
    /// All of them; their places are their numbers in the log.
    pub const ALL: [HashAlgorithm; 3] = [HashAlgorithm::Sha256, HashAlgorithm::Sha512, HashAlgorithm::Md5];

    /// RabbitMQ's name in definitions.
    pub fn module(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "rabbit_password_hashing_sha256",
            HashAlgorithm::Sha512 => "rabbit_password_hashing_sha512",
            HashAlgorithm::Md5 => "rabbit_password_hashing_md5",
        }
    }

    /// Bytes of its digest.
    pub fn digest_bytes(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha512 => 64,
            HashAlgorithm::Md5 => 16,
        }
    }

    fn digest(self, salt: &[u8], password: &[u8]) -> Box<[u8]> {
        fn of<D: Digest>(salt: &[u8], password: &[u8]) -> Box<[u8]> {
            D::new().chain_update(salt).chain_update(password).finalize().as_slice().into()
        }
        match self {
            HashAlgorithm::Sha256 => of::<Sha256>(salt, password),
            HashAlgorithm::Sha512 => of::<Sha512>(salt, password),
            HashAlgorithm::Md5 => of::<Md5>(salt, password),
        }
    }
}

/// A salted password hash, or that there is no password: such a user logs in by certificate or not
/// at all.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    pub(super) algorithm: HashAlgorithm,
    /// Salt and digest; empty without a password.
    pub(super) bytes: Box<[u8]>,
}

impl PasswordHash {
    /// Hashes a password with the salt that the caller drew, by RabbitMQ's default algorithm.
    pub fn new(password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        let algorithm = HashAlgorithm::Sha256;
        let bytes = [&salt[..], &algorithm.digest(&salt, password)].concat().into();
        Self { algorithm, bytes }
    }

    /// The hash in the bytes that RabbitMQ exports: salt, then digest; or none for a user without a
    /// password. `None`: the length is not one of this algorithm.
    pub fn from_bytes(algorithm: HashAlgorithm, bytes: &[u8]) -> Option<Self> {
        let fits = bytes.is_empty() || bytes.len() == SALT_BYTES + algorithm.digest_bytes();
        fits.then(|| Self { algorithm, bytes: bytes.into() })
    }

    /// The bytes that RabbitMQ exports; see `from_bytes`.
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How the password was hashed.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Whether this is the password. Takes the same time wherever the first wrong byte is. An empty
    /// password never is.
    pub fn matches(&self, password: &[u8]) -> bool {
        let Some((salt, digest)) = self.bytes.split_at_checked(SALT_BYTES) else { return false };
        let other = self.algorithm.digest(salt, password);
        let same = digest.iter().zip(&other).fold(0, |different, (a, b)| different | (a ^ b)) == 0;
        same && digest.len() == other.len() && !password.is_empty()
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("hex digits"));
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("hex digits")).collect()
    }

    #[test]
    fn the_hash_is_the_one_that_rabbitmq_documents() {
        // The example of RabbitMQ's password guide: salt 908DC60A, password "test12".
        let hash = PasswordHash::new(b"test12", [0x90, 0x8d, 0xc6, 0x0a]);
        let expected = bytes("908DC60AA5B924B3096B8897D65A3B5F80FA5DB62A94B83122CDF4F8FEAD10D515D8F391");
        assert_eq!(*hash.bytes, *expected);
        assert!(hash.matches(b"test12"));
        assert!(!hash.matches(b"test13"));
        assert_eq!(PasswordHash::from_bytes(HashAlgorithm::Sha256, &expected), Some(hash));
    }

    #[test]
    fn the_other_two_algorithms_are_salted_alike() {
        // Digests of the bytes 01020304 and "pw", by coreutils.
        let md5 = bytes("01020304947DD60B754805939AF0FE57303B3055");
        let sha512 = bytes(concat!(
            "01020304",
            "510A820F754148D73A812E2228EB6230C9AA68751B7810244A44652D8588310E",
            "4B6DC91A83767A1B79711EAA002E0A004EE4AA987CC0603FF6B78E9FACBE6DCC"
        ));
        for (algorithm, bytes) in [(HashAlgorithm::Md5, md5), (HashAlgorithm::Sha512, sha512)] {
            let hash = PasswordHash::from_bytes(algorithm, &bytes).expect("its length is right");
            assert!(hash.matches(b"pw"), "{algorithm:?}");
            assert!(!hash.matches(b"pW"), "{algorithm:?}");
        }
    }

    #[test]
    fn no_password_is_never_the_right_one() {
        for algorithm in HashAlgorithm::ALL {
            let none = PasswordHash::from_bytes(algorithm, b"").expect("a user may have no password");
            assert!(!none.matches(b"") && !none.matches(b"x"));
            assert_eq!(PasswordHash::from_bytes(algorithm, b"1234"), None);
        }
        assert!(!PasswordHash::new(b"", [1; 4]).matches(b""));
    }

    #[test]
    fn a_hash_is_not_printed() {
        assert_eq!(format!("{:?}", PasswordHash::new(b"x", [1, 2, 3, 4])), "PasswordHash(..)");
    }
}

//! Passwords as they are kept: hashes of Argon2id, and salted hashes of RabbitMQ's three algorithms.
//!
//! Invariant: a password is kept only as a salted hash, and no text or debug output shows even
//! that. The salt is given by the caller, because this room knows no random numbers. Whether a
//! password is the right one of a hash of Argon2id takes tens of milliseconds and megabytes of
//! memory on purpose: [`PasswordHash::is_slow`] says so, and a thread that others wait for does not
//! ask. What one hash may cost is bounded, whoever brought it.

use std::fmt;

use argon2::password_hash::{Ident, ParamsString, Salt};
use argon2::{Algorithm, Argon2, Params, PasswordVerifier, Version};
use md5::Md5;
use sha2::{Digest, Sha256, Sha512};

/// Bytes of salt before a password is hashed, as in RabbitMQ.
pub const SALT_BYTES: usize = 4;
/// Bytes of salt of Argon2id.
pub const ARGON2_SALT_BYTES: usize = 16;
/// Bytes of the longest hash that is kept.
pub const HASH_BYTES_MAX: usize = 256;

/// What Argon2id costs for passwords that are set here: 19 MiB, gone over twice by one thread. It
/// is the least that OWASP's password storage guide asks for.
const ARGON2_MEMORY_KIB: u32 = 19 * 1024;
const ARGON2_PASSES: u32 = 2;
const ARGON2_LANES: u32 = 1;
const ARGON2_DIGEST_BYTES: usize = 32;
/// What it may cost for those that are brought: memory, and memory times passes, which is time.
const ARGON2_MEMORY_KIB_MAX: u32 = 128 * 1024;
const ARGON2_WORK_KIB_MAX: u64 = 512 * 1024;
const ARGON2_LANES_MAX: u32 = 8;

/// How a password was hashed; RabbitMQ names its modules in definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// `rabbit_password_hashing_sha256`, RabbitMQ's default.
    Sha256,
    /// `rabbit_password_hashing_sha512`.
    Sha512,
    /// `rabbit_password_hashing_md5`, for users from before RabbitMQ 3.6.
    Md5,
    /// Ours, and the default: Argon2id, which RabbitMQ does not have.
    Argon2id,
}

impl HashAlgorithm {
    /// All of them; their places are their numbers in the log.
    pub const ALL: [HashAlgorithm; 4] =
        [HashAlgorithm::Sha256, HashAlgorithm::Sha512, HashAlgorithm::Md5, HashAlgorithm::Argon2id];

    /// RabbitMQ's name in definitions, or ours in the same form.
    pub fn module(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "rabbit_password_hashing_sha256",
            HashAlgorithm::Sha512 => "rabbit_password_hashing_sha512",
            HashAlgorithm::Md5 => "rabbit_password_hashing_md5",
            HashAlgorithm::Argon2id => "leveret_password_hashing_argon2id",
        }
    }

    /// The one of this name.
    pub fn of_module(module: &str) -> Option<HashAlgorithm> {
        Self::ALL.into_iter().find(|algorithm| algorithm.module() == module)
    }

    /// Bytes of a hash, salt and digest; `None` where it says itself how long its parts are.
    pub fn hash_bytes(self) -> Option<usize> {
        match self {
            HashAlgorithm::Sha256 => Some(SALT_BYTES + 32),
            HashAlgorithm::Sha512 => Some(SALT_BYTES + 64),
            HashAlgorithm::Md5 => Some(SALT_BYTES + 16),
            HashAlgorithm::Argon2id => None,
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
            HashAlgorithm::Argon2id => unreachable!("its hashes are texts with their own salt"),
        }
    }
}

/// A salted password hash, or that there is no password: such a user logs in by certificate or not
/// at all.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    pub(super) algorithm: HashAlgorithm,
    /// Salt and digest; of Argon2id the text in PHC's form. Empty without a password.
    pub(super) bytes: Box<[u8]>,
}

impl PasswordHash {
    /// Hashes a password with the salt that the caller drew, by RabbitMQ's default algorithm.
    pub fn new(password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        Self::salted(HashAlgorithm::Sha256, password, salt)
    }

    /// The same by one of RabbitMQ's algorithms.
    pub fn salted(algorithm: HashAlgorithm, password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        let bytes = [&salt[..], &algorithm.digest(&salt, password)].concat().into();
        Self { algorithm, bytes }
    }

    /// Hashes a password by Argon2id.
    ///
    /// - Cost: tens of milliseconds and 19 MiB for as long; see the module.
    pub fn argon2id(password: &[u8], salt: [u8; ARGON2_SALT_BYTES]) -> Self {
        use argon2::password_hash::{Output, PasswordHash as Phc, SaltString};
        let params = Params::new(ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES, Some(ARGON2_DIGEST_BYTES));
        let params = params.expect("they are within what Argon2 allows");
        let mut digest = [0; ARGON2_DIGEST_BYTES];
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone());
        argon2.hash_password_into(password, &salt, &mut digest).expect("salt and password are of lengths it takes");
        let salt = SaltString::encode_b64(&salt).expect("sixteen bytes are a salt");
        let phc = Phc {
            algorithm: Algorithm::Argon2id.ident(),
            version: Some(Version::V0x13.into()),
            params: ParamsString::try_from(&params).expect("three numbers"),
            salt: Some(Salt::from(&salt)),
            hash: Some(Output::new(&digest).expect("32 bytes are a hash")),
        };
        Self { algorithm: HashAlgorithm::Argon2id, bytes: phc.to_string().into_bytes().into() }
    }

    /// The hash in these bytes: salt, then digest, as RabbitMQ exports them, or the text of a hash of
    /// Argon2id; or none for a user without a password. `None`: it is not one of this algorithm, or
    /// costs more than is taken.
    pub fn from_bytes(algorithm: HashAlgorithm, bytes: &[u8]) -> Option<Self> {
        let fits = bytes.is_empty()
            || match algorithm.hash_bytes() {
                Some(length) => bytes.len() == length,
                None => is_affordable_argon2id(bytes),
            };
        fits.then(|| Self { algorithm, bytes: bytes.into() })
    }

    /// See `from_bytes`.
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How the password was hashed.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Whether it takes long to say whether a password is the right one.
    pub fn is_slow(&self) -> bool {
        self.algorithm == HashAlgorithm::Argon2id && !self.bytes.is_empty()
    }

    /// Whether this is the password. Takes the same time wherever the first wrong byte is. An empty
    /// password never is. Cost: see `is_slow`.
    pub fn matches(&self, password: &[u8]) -> bool {
        if password.is_empty() || self.bytes.is_empty() {
            return false;
        }
        if self.algorithm == HashAlgorithm::Argon2id {
            return argon2id_matches(&self.bytes, password);
        }
        let Some((salt, digest)) = self.bytes.split_at_checked(SALT_BYTES) else { return false };
        let other = self.algorithm.digest(salt, password);
        let same = digest.iter().zip(&other).fold(0, |different, (a, b)| different | (a ^ b)) == 0;
        same && digest.len() == other.len()
    }
}

fn argon2id_matches(text: &[u8], password: &[u8]) -> bool {
    let phc = std::str::from_utf8(text).ok().and_then(|text| argon2::PasswordHash::new(text).ok());
    // It takes algorithm, version, memory and passes out of the text.
    phc.is_some_and(|phc| Argon2::default().verify_password(password, &phc).is_ok())
}

/// Whether this is the text of a hash of Argon2id, and one that may be asked.
fn is_affordable_argon2id(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= HASH_BYTES_MAX);
    let Some(phc) = text.and_then(|text| argon2::PasswordHash::new(text).ok()) else { return false };
    let Ok(params) = Params::try_from(&phc) else { return false };
    let (memory, work) = (params.m_cost(), u64::from(params.m_cost()) * u64::from(params.t_cost()));
    let mut salt = [0; Salt::MAX_LENGTH];
    let has_salt = phc.salt.and_then(|salted| salted.decode_b64(&mut salt).ok().map(<[u8]>::len));
    phc.algorithm == Ident::new_unwrap("argon2id")
        && phc.version == Some(Version::V0x13.into())
        && memory <= ARGON2_MEMORY_KIB_MAX
        && work <= ARGON2_WORK_KIB_MAX
        && params.p_cost() <= ARGON2_LANES_MAX
        && has_salt.is_some_and(|length| length >= argon2::MIN_SALT_LEN)
        && phc.hash.is_some_and(|hash| hash.len() >= 16)
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
            assert!(!none.is_slow(), "there is nothing to ask");
        }
        assert!(!PasswordHash::new(b"", [1; 4]).matches(b""));
    }

    #[test]
    fn a_hash_is_not_printed() {
        assert_eq!(format!("{:?}", PasswordHash::new(b"x", [1, 2, 3, 4])), "PasswordHash(..)");
    }

    /// Of the password "correct", by the reference implementation.
    const SMALL: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$Q9mLqWybVxlm3nEKpLiL2oKOz5sP3jVILMQEHXckZmA";

    #[test]
    fn a_hash_of_argon2id_says_what_it_cost_and_knows_its_password() {
        let hash = PasswordHash::argon2id(b"correct", [7; ARGON2_SALT_BYTES]);
        let text = std::str::from_utf8(hash.to_bytes()).expect("it is a text");
        assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$BwcHBwcHBwcHBwcHBwcHBw$"), "{text}");
        assert!(hash.is_slow() && hash.matches(b"correct"));
        assert!(!hash.matches(b"Correct") && !hash.matches(b""));
        assert_eq!(PasswordHash::from_bytes(HashAlgorithm::Argon2id, text.as_bytes()), Some(hash));
    }

    #[test]
    fn a_hash_that_argon2_made_elsewhere_is_understood() {
        let hash = PasswordHash::from_bytes(HashAlgorithm::Argon2id, SMALL.as_bytes()).expect("it is one");
        assert!(hash.matches(b"correct") && !hash.matches(b"wrong"));
    }

    #[test]
    fn a_hash_that_would_cost_too_much_or_is_none_is_not_taken() {
        let taken = |text: &str| PasswordHash::from_bytes(HashAlgorithm::Argon2id, text.as_bytes()).is_some();
        let with = |from: &str, to: &str| taken(&SMALL.replace(from, to));
        assert!(with("m=8,", "m=131072,") && with("m=8,t=1", "m=65536,t=8"));
        assert!(!with("m=8,", "m=131073,"), "memory");
        assert!(!with("m=8,t=1", "m=65536,t=9"), "time");
        assert!(!with("p=1", "p=9"), "lanes");
        assert!(!with("argon2id", "argon2i") && !with("v=19", "v=16") && !with("$v=19", ""));
        assert!(!with("$c2FsdHNhbHQ$", "$c2E$"), "no salt to speak of");
        assert!(!taken("secret") && !taken("$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ") && !taken(&SMALL.repeat(9)));
    }
}

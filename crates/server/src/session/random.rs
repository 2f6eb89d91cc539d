//! Names that the server makes up: for queues and consumers whose client leaves the choice to it.
//!
//! Invariant: 128 bits from the system's generator, so that no two names meet and none can be guessed.

use rustix::rand::{GetRandomFlags, getrandom};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Four random bytes, to salt a password with.
pub(crate) fn salt() -> [u8; 4] {
    let random: [u8; 16] = bytes();
    [random[0], random[1], random[2], random[3]]
}

fn bytes() -> [u8; 16] {
    let mut random = [0u8; 16];
    let mut filled = 0;
    while filled < random.len() {
        // Only an ancient kernel fails here, and only while it boots.
        filled += getrandom(&mut random[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    random
}

/// `prefix` and 22 random characters of base64url.
pub(super) fn name(prefix: &str) -> String {
    let mut bits = u128::from_be_bytes(bytes());
    let mut name = String::with_capacity(prefix.len() + 22);
    name.push_str(prefix);
    for _ in 0..22 {
        name.push(ALPHABET[(bits & 63) as usize] as char);
        bits >>= 6;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_have_22_characters_and_differ() {
        let (a, b) = (name("amq.gen-"), name("amq.gen-"));
        assert_eq!(a.len(), "amq.gen-".len() + 22);
        assert_ne!(a, b);
        assert!(a["amq.gen-".len()..].bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_'));
    }
}

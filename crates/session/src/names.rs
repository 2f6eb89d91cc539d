//! Names that the server makes up: for queues and consumers whose client leaves the choice to it.
//!
//! Invariant: a name has 128 bits that nobody can guess, so that no two names meet.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// `prefix` and 22 characters of base64url from random bits.
pub(crate) fn name(prefix: &str, mut bits: u128) -> String {
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
        let (a, b) = (name("amq.gen-", 7), name("amq.gen-", 8 << 64));
        assert_eq!(a.len(), "amq.gen-".len() + 22);
        assert_ne!(a, b);
        assert!(a["amq.gen-".len()..].bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_'));
    }
}

//! Names of virtual hosts, exchanges, queues and users, and routing keys: at most 255 bytes, of any
//! value.
//!
//! Invariant: a name owns exactly its bytes; it never keeps alive the read buffer or the snapshot
//! it was cut from.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// AMQP's short string holds no more.
pub const NAME_BYTES_MAX: usize = 255;

/// A shared name: clones count references, bytes are stored once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Takes a name over. Longer than `NAME_BYTES_MAX` is a caller bug and panics: the wire cannot
    /// carry it.
    pub fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= NAME_BYTES_MAX, "a name has at most 255 bytes");
        Self(Arc::from(bytes))
    }

    /// Takes a name over without its carriage returns and line feeds, as RabbitMQ does in declares
    /// and bindings.
    pub fn stripped(bytes: &[u8]) -> Self {
        if bytes.iter().any(|b| matches!(b, b'\r' | b'\n')) {
            let kept: Vec<u8> = bytes.iter().copied().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
            Self::new(&kept)
        } else {
            Self::new(bytes)
        }
    }

    /// Whether the name is in the part of the name space that belongs to the broker.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(b"amq.")
    }
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// By its bytes, which is what it is hashed and compared by.
impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text.as_bytes())
    }
}

/// As RabbitMQ prints names in its texts; bytes that are no UTF-8 become the replacement character.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_taken_out_of_names_and_nothing_else_is() {
        assert_eq!(&*Name::stripped(b"a\r\nb\n"), b"ab");
        assert_eq!(&*Name::stripped(b"a b\t"), b"a b\t");
    }

    #[test]
    #[should_panic(expected = "at most 255 bytes")]
    fn a_name_of_256_bytes_is_a_bug_of_the_caller() {
        Name::new(&[b'a'; 256]);
    }
}

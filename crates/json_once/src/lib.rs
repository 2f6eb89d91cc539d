//! JSON in which no key of an object comes twice. RFC 8259 leaves open what such a text means, and readers differ: what
//! one of them passed over is what its writer believes in. Bodies of requests, files of definitions and what is typed in a
//! shell are held to it alike.
//!
//! Invariant: what was read had each key of an object once, however deep it lies.

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// So much of a key is repeated.
const KEY_CHARS_SHOWN: usize = 64;

/// Why a text was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// It is no JSON: what is wrong, and where.
    #[error("{0}")]
    NoJson(String),
    /// A key comes twice: the sentence that names it.
    #[error("{0}")]
    Twice(String),
}

/// Reads a text. Errors: it is no JSON, or a key comes twice in one object. Cost: the text is gone through twice.
pub fn read(text: &[u8]) -> Result<Value, NotRead> {
    // Of errors in data there is no other one here.
    let checked = serde_json::from_slice::<Checked>(text).map_err(|error| match error.is_data() {
        true => NotRead::Twice(sentence(&error)),
        false => NotRead::NoJson(error.to_string()),
    });
    checked.and_then(|Checked| serde_json::from_slice(text).map_err(|error| NotRead::NoJson(error.to_string())))
}

/// What an error says, without the place.
pub fn sentence(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(&*text, |(sentence, _)| sentence).to_owned()
}

/// A value in which everything can be read, and no key comes twice. It keeps nothing: documents may be large. Its only
/// error in data is that of a key that comes twice.
#[derive(Debug)]
pub struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checked, D::Error> {
        deserializer.deserialize_any(Check)
    }
}

struct Check;

impl<'de> Visitor<'de> for Check {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_str<E>(self, _: &str) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        while items.next_element::<Checked>()?.is_some() {}
        Ok(Checked)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Checked, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            entries.next_value::<Checked>()?;
            if let Some(key) = keys.replace(key) {
                return Err(twice(&key));
            }
        }
        Ok(Checked)
    }
}

/// The error of a key that comes twice.
fn twice<E: Error>(key: &str) -> E {
    let end = key.char_indices().nth(KEY_CHARS_SHOWN);
    let (shown, more) = end.map_or((key, ""), |(end, _)| (&key[..end], "..."));
    E::custom(format_args!("the field \"{shown}{more}\" comes twice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_each_key_once_is_read_as_ever() {
        let text = r#"{"a":{"a":[{"a":1},{"a":-2.5}]},"b":"\u00e4","c":null,"d":[true,18446744073709551615,-7]}"#;
        assert_eq!(read(text.as_bytes()), Ok(serde_json::from_str(text).expect("it is JSON")));
        for text in ["", "{", "[1e999]", r#"{"a":1,}"#, "{}{}", "\"\u{ff}"] {
            assert!(matches!(read(text.as_bytes()), Err(NotRead::NoJson(_))), "{text}");
        }
    }

    #[test]
    fn a_key_that_comes_twice_is_named_wherever_it_is() {
        let told = |text: &str| match read(text.as_bytes()) {
            Err(NotRead::Twice(sentence)) => sentence,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(told(r#"{"password":"a","tags":"","password":"b"}"#), r#"the field "password" comes twice"#);
        assert_eq!(
            told(r#"{"x":[{"y":{"k at line 1":1,"k at line 1":1}}]}"#),
            r#"the field "k at line 1" comes twice"#
        );
        // The same key in other letters of JSON.
        assert_eq!(told(r#"{"a":1,"\u0061":2}"#), r#"the field "a" comes twice"#);
        let long = "ä".repeat(100);
        let shown = "ä".repeat(KEY_CHARS_SHOWN);
        assert_eq!(told(&format!(r#"{{"{long}":1,"{long}":1}}"#)), format!(r#"the field "{shown}..." comes twice"#));
    }
}

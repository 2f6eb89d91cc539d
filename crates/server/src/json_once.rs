//! JSON in which no key of an object comes twice. RFC 8259 leaves open what such a text means, and readers differ: what
//! one of them passed over is what its writer believes in.
//!
//! Invariant: a value was read from a text of which every object has each key once, however deep it lies.

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// So much of a key is repeated.
const KEY_CHARS_SHOWN: usize = 64;

/// Why a text was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRead {
    /// It is no JSON.
    NoJson,
    /// A key comes twice: the sentence that names it.
    Twice(String),
}

/// Reads a text. Errors: it is no JSON, or a key comes twice in one object.
pub fn read(text: &[u8]) -> Result<Value, NotRead> {
    let read = serde_json::from_slice::<Once>(text);
    // Of errors in data there is no other one here.
    read.map(|Once(value)| value).map_err(|error| match error.is_data() {
        true => NotRead::Twice(sentence(&error)),
        false => NotRead::NoJson,
    })
}

/// What an error says, without the place.
pub(crate) fn sentence(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(&*text, |(sentence, _)| sentence).to_owned()
}

/// The error of a key that comes twice.
pub(crate) fn twice<E: Error>(key: &str) -> E {
    let end = key.char_indices().nth(KEY_CHARS_SHOWN);
    let (shown, more) = end.map_or((key, ""), |(end, _)| (&key[..end], "..."));
    E::custom(format_args!("the field \"{shown}{more}\" comes twice"))
}

struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Once, D::Error> {
        deserializer.deserialize_any(OnceVisitor)
    }
}

struct OnceVisitor;

impl<'de> Visitor<'de> for OnceVisitor {
    type Value = Once;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Once, E> {
        Ok(Once(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Once, E> {
        Ok(Once(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Once, E> {
        Ok(Once(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Once, A::Error> {
        let mut list = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Once(list.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Once, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if fields.contains_key(&key) {
                return Err(twice(&key));
            }
            let Once(value) = entries.next_value()?;
            fields.insert(key, value);
        }
        Ok(Once(fields.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_each_key_once_is_read_as_ever() {
        let text = r#"{"a":{"a":[{"a":1},{"a":-2.5}]},"b":"\u00e4","c":null,"d":[true,18446744073709551615,-7]}"#;
        assert_eq!(read(text.as_bytes()), Ok(serde_json::from_str(text).expect("it is JSON")));
        for text in ["", "{", "[1e999]", r#"{"a":1,}"#, "{}{}", "\"\u{ff}"] {
            assert_eq!(read(text.as_bytes()), Err(NotRead::NoJson), "{text}");
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

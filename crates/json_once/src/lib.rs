//! JSON in which no key of an object comes twice. RFC 8259 leaves open what such a text means, and readers differ: what
//! one of them passed over is what its writer believes in. Bodies of requests, files of definitions and what is typed in a
//! shell are held to it alike.
//!
//! Invariant: what was read had each key of an object once, however deep it lies, and nests no deeper than
//! [`DEPTH_MAX`], so that whoever walks through it may recurse.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// How deep lists and objects may nest in a text. A file of definitions has values that came in texts of 127
/// levels before, a few levels further down than they were there.
pub const DEPTH_MAX: usize = 160;

/// So much of a key is repeated.
const KEY_CHARS_SHOWN: usize = 64;

/// Why a text was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// It is no JSON: what is wrong, and where.
    #[error("{0}")]
    NoJson(String),
    /// A key comes twice, or it nests too deep: the sentence that says so.
    #[error("{0}")]
    Unfit(String),
}

/// Reads a text. Errors: it is no JSON, a key comes twice in one object, or it nests too deep. Cost: the text is gone
/// through twice.
pub fn read(text: &[u8]) -> Result<Value, NotRead> {
    let no_json = |error: serde_json::Error| NotRead::NoJson(error.to_string());
    check(text).map_err(|error| match error.is_data() {
        true => NotRead::Unfit(sentence(&error)),
        false => no_json(error),
    })?;
    value(text).map_err(no_json)
}

/// Goes through a text and keeps nothing of it: documents may be large. Errors: as [`read`]; what is in data is that a
/// key comes twice, or that it nests too deep.
pub fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    whole(text, Check { left: DEPTH_MAX })
}

/// Reads a text that was checked, or that one of ours wrote. Errors: it is no JSON, or nests deeper than [`DEPTH_MAX`].
pub fn value(text: &[u8]) -> Result<Value, serde_json::Error> {
    match serde_json::from_slice(text) {
        Ok(value) => Ok(value),
        // The limit of serde_json is lower.
        Err(error) if error.is_syntax() && check(text).is_ok() => whole(text, std::marker::PhantomData::<Value>),
        Err(error) => Err(error),
    }
}

/// How deep lists and objects nest; a flat one is 1, a number 0.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The first whole number in a text of JSON that has more than 64 bits. A reader makes one with a fraction of it, which is
/// another number.
pub fn oversized(text: &[u8]) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'-' | b'0'..=b'9')) {
        rest = &rest[at..];
        if rest[0] == b'"' {
            rest = past_text(&rest[1..]);
            continue;
        }
        let is_of_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
        let end = rest.iter().position(|byte| !is_of_number(byte)).unwrap_or(rest.len());
        let number = std::str::from_utf8(&rest[..end]).expect("digits are ASCII");
        let is_whole = !number.contains(['.', 'e', 'E']);
        if is_whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
            return Some(number);
        }
        rest = &rest[end..];
    }
    None
}

/// What is behind the end of a text in quotes.
fn past_text(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        let length = if rest[at] == b'"' { 1 } else { 2 };
        let is_end = length == 1;
        rest = rest.get(at + length..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

/// All of a text, to whatever depth the seed goes.
fn whole<'de, S: DeserializeSeed<'de>>(text: &'de [u8], seed: S) -> Result<S::Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.disable_recursion_limit();
    let found = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(found)
}

/// What an error says, without the place.
pub fn sentence(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(&*text, |(sentence, _)| sentence).to_owned()
}

/// A value in which everything can be read, in which no key comes twice, and which nests so many levels further down at most.
#[derive(Clone, Copy)]
struct Check {
    left: usize,
}

impl Check {
    /// What is one level further down.
    fn inner<E: Error>(self) -> Result<Check, E> {
        let too_deep = || E::custom(format_args!("lists and objects nest more than {DEPTH_MAX} levels deep"));
        self.left.checked_sub(1).map(|left| Check { left }).ok_or_else(too_deep)
    }
}

impl<'de> DeserializeSeed<'de> for Check {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        let mut keys = BTreeSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            entries.next_value_seed(inner)?;
            if let Some(key) = keys.replace(key) {
                return Err(twice(&key));
            }
        }
        Ok(())
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
            Err(NotRead::Unfit(sentence)) => sentence,
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
    #[test]
    fn what_nests_deep_is_read_up_to_a_limit_of_our_own() {
        let lists = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for levels in [0, 1, 126, 127, 128, DEPTH_MAX] {
            let text = if levels == 0 { "7".to_owned() } else { lists(levels) };
            let read = read(text.as_bytes()).expect("it is lawful");
            assert_eq!((depth(&read), read.to_string()), (levels, text.clone()));
            assert_eq!(value(text.as_bytes()).ok(), Some(read));
        }
        let mixed = r#"{"a":["#.repeat(DEPTH_MAX / 2) + &"]}".repeat(DEPTH_MAX / 2);
        assert_eq!(read(mixed.as_bytes()).map(|read| depth(&read)), Ok(DEPTH_MAX));
        for text in [lists(DEPTH_MAX + 1), lists(100_000), "[".repeat(1_000_000)] {
            let sentence = format!("lists and objects nest more than {DEPTH_MAX} levels deep");
            assert_eq!(read(text.as_bytes()), Err(NotRead::Unfit(sentence)));
            assert!(value(text.as_bytes()).is_err());
        }
    }

    #[test]
    fn a_whole_number_of_more_than_64_bits_is_found_and_nothing_else_is() {
        let found = |text: &'static str| oversized(text.as_bytes());
        assert_eq!(found(r#"{"a":[1,18446744073709551616]}"#), Some("18446744073709551616"));
        assert_eq!(found(r#"{"a\\":-9223372036854775809}"#), Some("-9223372036854775809"));
        for fits in [
            r#"{"a":18446744073709551615,"b":-9223372036854775808,"c":[0,-0,5]}"#,
            r#"{"99999999999999999999":"99999999999999999999","b":"\"99999999999999999999"}"#,
            r#"[99999999999999999999.0,1e30,-9999999999999999999999E-2,"\\"]"#,
            r#""99999999999999999999"#,
            r#""\"#,
            "",
        ] {
            assert_eq!(found(fits), None, "{fits}");
        }
    }
}

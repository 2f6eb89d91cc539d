//! JSON in which no key of an object comes twice. RFC 8259 leaves open what such a text means, and readers differ: what
//! one of them passed over is what its writer believes in. Bodies of requests, files of definitions and what is typed in a
//! shell are held to it alike.
//!
//! Invariant: what was read had each key of an object once, however deep it lies, and nests no deeper than
//! [`DEPTH_MAX`], so that whoever walks through it may recurse. A whole number that is written `-0` is 0.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::cell::Cell;
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
    /// A key comes twice, it nests too deep, or it has too many values: the sentence that says so.
    #[error("{0}")]
    Unfit(String),
}

/// Reads a text. Errors: it is no JSON, a key comes twice in one object, or it nests too deep. Cost: the text is gone
/// through twice.
pub fn read(text: &[u8]) -> Result<Value, NotRead> {
    read_at_most(text, usize::MAX)
}

/// Reads a text of somebody who is not to choose how much memory it takes: `[]` has two characters, and is thirty bytes
/// and more as a value. Errors: as [`read`], and it has more than `values_max` values, which is found before any of them
/// is made. Lists and objects are values too, keys are none.
pub fn read_at_most(text: &[u8], values_max: usize) -> Result<Value, NotRead> {
    let no_json = |error: serde_json::Error| NotRead::NoJson(error.to_string());
    check_at_most(text, values_max).map_err(|error| match error.is_data() {
        true => NotRead::Unfit(sentence(&error)),
        false => no_json(error),
    })?;
    value(text).map_err(no_json)
}

/// Goes through a text and keeps nothing of it: documents may be large. Errors: as [`read`]; what is in data is that a
/// key comes twice, or that it nests too deep.
pub fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    check_at_most(text, usize::MAX)
}

/// The same of a text that has at most so many values. Errors: as [`check`]; that it has more is in data too.
pub fn check_at_most(text: &[u8], values_max: usize) -> Result<(), serde_json::Error> {
    whole(text, Check { levels_left: DEPTH_MAX, values_max, seen: &Cell::new(0) })
}

/// Reads a text that was checked, or that one of ours wrote. Errors: it is no JSON, or nests deeper than [`DEPTH_MAX`].
pub fn value(text: &[u8]) -> Result<Value, serde_json::Error> {
    let text = &*with_plain_zeros(text);
    match serde_json::from_slice(text) {
        Ok(value) => Ok(value),
        // The limit of serde_json is lower.
        Err(error) if error.is_syntax() && check(text).is_ok() => whole(text, std::marker::PhantomData::<Value>),
        Err(error) => Err(error),
    }
}

/// The text with 0 for each number `-0`, of which serde_json would make one with a fraction. Other readers make the whole
/// number of it that it is.
fn with_plain_zeros(text: &[u8]) -> Cow<'_, [u8]> {
    let mut plain = Cow::Borrowed(text);
    if text.windows(2).any(|pair| pair == b"-0") {
        for (at, number) in numbers(text) {
            if number == "-0" {
                // A space may stand before any value, and every other one keeps its place.
                plain.to_mut()[at] = b' ';
            }
        }
    }
    plain
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
    let is_oversized = |number: &str| {
        let is_whole = !number.contains(['.', 'e', 'E']);
        is_whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
    };
    numbers(text).map(|(_, number)| number).find(|number| is_oversized(number))
}

/// The numbers in a text of JSON as they are written, each with its place.
fn numbers(text: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let at = rest.iter().position(|byte| matches!(byte, b'"' | b'-' | b'0'..=b'9'))?;
            rest = &rest[at..];
            if rest[0] == b'"' {
                rest = past_text(&rest[1..]);
                continue;
            }
            let is_of_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
            let end = rest.iter().position(|byte| !is_of_number(byte)).unwrap_or(rest.len());
            let (place, number) = (text.len() - rest.len(), std::str::from_utf8(&rest[..end]));
            rest = &rest[end..];
            return Some((place, number.expect("digits are ASCII")));
        }
    })
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

/// A value in which everything can be read, in which no key comes twice, which nests so many levels further down at most,
/// and has as many values as are left of all that the text may have.
#[derive(Clone, Copy)]
struct Check<'c> {
    levels_left: usize,
    values_max: usize,
    /// Values of the whole text so far.
    seen: &'c Cell<usize>,
}

impl Check<'_> {
    /// What is one level further down.
    fn inner<E: Error>(self) -> Result<Self, E> {
        let too_deep = || E::custom(format_args!("lists and objects nest more than {DEPTH_MAX} levels deep"));
        self.levels_left.checked_sub(1).map(|levels_left| Check { levels_left, ..self }).ok_or_else(too_deep)
    }
}

impl<'de> DeserializeSeed<'de> for Check<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.seen.set(self.seen.get() + 1);
        if self.seen.get() > self.values_max {
            let max = self.values_max;
            return Err(D::Error::custom(format_args!("there are more than {max} values in it")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check<'_> {
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
    fn a_text_has_as_many_values_as_its_reader_allows() {
        let most = |text: &str| {
            let unfit = |most| matches!(read_at_most(text.as_bytes(), most), Err(NotRead::Unfit(_)));
            (0..100).find(|most| !unfit(*most)).expect("it has few")
        };
        for (text, values) in
            [("7", 1), ("[]", 1), ("[[],[]]", 3), (r#"{"a":1,"b":[true,null,"x"]}"#, 6), (r#"["[1,2,3]"]"#, 2)]
        {
            assert_eq!(most(text), values, "{text}");
        }
        let many = format!(r#"{{"a":[{}[]]}}"#, "[],".repeat(10_000));
        let sentence = "there are more than 10000 values in it".to_owned();
        assert_eq!(read_at_most(many.as_bytes(), 10_000), Err(NotRead::Unfit(sentence)));
        assert!(read(many.as_bytes()).is_ok());
    }

    #[test]
    fn minus_nought_is_the_whole_number_that_it_is() {
        let text = r#"{"a":-0,"b":[-0 ,-0.0,-0e1,"-0","\"-0",-1],"-0":-0}"#;
        let read = read(text.as_bytes()).expect("it is JSON");
        assert_eq!(read.to_string(), r#"{"-0":0,"a":0,"b":[0,-0.0,-0.0,"-0","\"-0",-1]}"#);
        assert_eq!(value(b"-0").map(|zero| zero.as_i64()).ok(), Some(Some(0)));
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

//! What is typed in JSON, read so that no key of an object is passed over: of one that comes twice the node would be
//! sent the last, and nobody would hear of the other.
//!
//! Invariant: a text that was read has each key of an object once. The node holds whoever asks it to the same rule; it
//! cannot see what was lost here.

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// Reads a text. Errors: what is wrong with it, without the place where it is a key that comes twice.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let checked = serde_json::from_str::<Checked>(text).map_err(|error| match error.is_data() {
        true => error.to_string().rsplit_once(" at line ").map(|(sentence, _)| sentence.to_owned()).unwrap_or_default(),
        false => error.to_string(),
    });
    checked.and_then(|Checked| serde_json::from_str(text).map_err(|error| error.to_string()))
}

/// A value whose objects have each key once. It keeps nothing.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checked, D::Error> {
        deserializer.deserialize_any(CheckedVisitor)
    }
}

struct CheckedVisitor;

impl<'de> Visitor<'de> for CheckedVisitor {
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
                return Err(A::Error::custom(format_args!("the field \"{key}\" comes twice")));
            }
        }
        Ok(Checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_key_that_comes_twice_is_refused_wherever_it_is() {
        assert_eq!(read(r#"{"a":{"a":[1,-2.5,null,true,"x"]}}"#), Ok(json!({"a": {"a": [1, -2.5, null, true, "x"]}})));
        assert_eq!(read(r#"{"a":[{"b":1,"b":2}]}"#), Err(r#"the field "b" comes twice"#.to_owned()));
        assert!(read("{").is_err_and(|why| why.contains("line 1 column 1")));
    }
}

//! AMQP's values as JSON and back, the way RabbitMQ does it.
//!
//! Invariant: names and texts are bytes in AMQP and Unicode in JSON; what is no UTF-8 is shown with
//! replacement characters.

use crate::answer::Refused;
use amqp::{Properties, Table, Value as Field};
use broker::topology::NAME_BYTES_MAX;
use bytes::Bytes;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Bytes as a text.
pub(crate) fn text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

/// Bytes that are written as a text, as [`text`] shows them.
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(self.0))
    }
}

/// A table that is written as an object, as [`table`] shows it.
pub(crate) struct Fields<'a>(pub(crate) Cow<'a, Table>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Most have none or one, and need no order.
        match self.0.at(0).filter(|_| self.0.len() == 1) {
            Some((name, field)) => serializer.collect_map([(Text(name), value(field))]),
            None => table(&self.0).serialize(serializer),
        }
    }
}

/// A table as an object; of two fields of one name the first counts, as in look-ups.
pub(crate) fn table(table: &Table) -> Value {
    let mut fields = Map::new();
    for (name, field) in table.iter() {
        fields.entry(String::from_utf8_lossy(name)).or_insert_with(|| value(field));
    }
    Value::Object(fields)
}

fn value(field: &Field) -> Value {
    match field {
        Field::Bool(flag) => (*flag).into(),
        Field::I8(number) => (*number).into(),
        Field::U8(number) => (*number).into(),
        Field::I16(number) => (*number).into(),
        Field::U16(number) => (*number).into(),
        Field::I32(number) => (*number).into(),
        Field::U32(number) => (*number).into(),
        Field::I64(number) => (*number).into(),
        Field::F32(number) => f64::from(*number).into(),
        Field::F64(number) => (*number).into(),
        Field::Decimal { scale, mantissa } => (f64::from(*mantissa) / 10f64.powi(i32::from(*scale))).into(),
        Field::LongString(bytes) | Field::ByteArray(bytes) => text(bytes),
        Field::Timestamp(seconds) => (*seconds).into(),
        Field::Array(items) => items.iter().map(value).collect(),
        Field::Table(inner) => table(inner),
        Field::Void => Value::Null,
    }
}

/// Why a value is no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoTable {
    /// It is no object.
    NoObject,
    /// A name is longer than AMQP has.
    LongName,
    /// A whole number has more bits than AMQP has. As a double it would be another number.
    LongNumber(u64),
}

impl NoTable {
    /// The refusal of a field.
    pub(crate) fn of(self, field: &str) -> Refused {
        Refused::BadRequest(match self {
            NoTable::NoObject => format!("{field} is no object"),
            NoTable::LongName => format!("{field}: a name has at most {NAME_BYTES_MAX} bytes"),
            NoTable::LongNumber(number) => format!("{field}: {number} does not fit into 64 bits with a sign"),
        })
    }
}

/// An object as a table: every whole number is a long, every other one a double. An empty list is an
/// empty table, as RabbitMQ's tools send it.
pub(crate) fn to_table(value: &Value) -> Result<Table, NoTable> {
    let mut table = Table::new();
    match value {
        Value::Array(items) if items.is_empty() => {}
        Value::Object(fields) => {
            for (name, field) in fields {
                if name.len() > NAME_BYTES_MAX {
                    return Err(NoTable::LongName);
                }
                table.push(Bytes::copy_from_slice(name.as_bytes()), to_field(field)?);
            }
        }
        _ => return Err(NoTable::NoObject),
    }
    Ok(table)
}

fn to_field(value: &Value) -> Result<Field, NoTable> {
    Ok(match value {
        Value::Null => Field::Void,
        Value::Bool(flag) => Field::Bool(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Field::I64(whole),
            (None, Some(whole)) => return Err(NoTable::LongNumber(whole)),
            (None, None) => Field::F64(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Field::LongString(Bytes::copy_from_slice(text.as_bytes())),
        Value::Array(items) => Field::Array(items.iter().map(to_field).collect::<Result<_, _>>()?),
        Value::Object(_) => Field::Table(to_table(value)?),
    })
}

/// A message's properties as an object; what it does not have is left out.
pub(crate) fn properties(found: &Properties<'_>) -> Value {
    let mut fields = Map::new();
    let texts = [
        ("content_type", found.content_type),
        ("content_encoding", found.content_encoding),
        ("correlation_id", found.correlation_id),
        ("reply_to", found.reply_to),
        ("expiration", found.expiration),
        ("message_id", found.message_id),
        ("type", found.kind),
        ("user_id", found.user_id),
        ("app_id", found.app_id),
        ("cluster_id", found.cluster_id),
    ];
    fields.extend(texts.into_iter().filter_map(|(name, found)| Some((name.to_owned(), text(found?)))));
    fields.extend(found.delivery_mode.map(|mode| ("delivery_mode".to_owned(), mode.into())));
    fields.extend(found.priority.map(|priority| ("priority".to_owned(), priority.into())));
    fields.extend(found.timestamp.map(|seconds| ("timestamp".to_owned(), seconds.into())));
    fields.extend(found.headers_table().map(|headers| ("headers".to_owned(), table(&headers))));
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_json_says_comes_back_from_a_table() {
        let value = json!({"a": 1, "b": -0.5, "c": "x", "d": [true, null, {"e": "f"}]});
        let table_of = to_table(&value).expect("an object");
        assert_eq!(table_of.get("a"), Some(&Field::I64(1)));
        assert_eq!(table(&table_of), value);
        assert_eq!(to_table(&json!([])), Ok(Table::new()));
        assert_eq!(to_table(&json!([1])), Err(NoTable::NoObject));
        assert_eq!(to_table(&json!({"n".repeat(256): 1})), Err(NoTable::LongName));
        assert!(to_table(&json!({"least": i64::MIN, "most": i64::MAX, "double": 1e30})).is_ok());
        let beyond = i64::MAX as u64 + 1;
        assert_eq!(to_table(&json!({"a": [{"b": beyond}]})), Err(NoTable::LongNumber(beyond)));
    }
}

//! Field values in the words of RabbitMQ's texts, which print them as Erlang terms.
//!
//! Invariant: what is printed is bounded by the value itself, and the caller cuts the text to its
//! wire limit.

use amqp::Value;

/// The name of the value's type in RabbitMQ's texts.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::I8(_) => "byte",
        Value::U8(_) => "unsignedbyte",
        Value::I16(_) => "short",
        Value::U16(_) => "unsignedshort",
        Value::I32(_) => "signedint",
        Value::U32(_) => "unsignedint",
        Value::I64(_) => "long",
        Value::F32(_) => "float",
        Value::F64(_) => "double",
        Value::Decimal { .. } => "decimal",
        Value::LongString(_) => "longstr",
        Value::ByteArray(_) => "binary",
        Value::Timestamp(_) => "timestamp",
        Value::Array(_) => "array",
        Value::Table(_) => "table",
        Value::Void => "void",
    }
}

/// The value of an integer argument: the seven integer types, not timestamps, decimals or floats.
pub(super) fn integer(value: &Value) -> Option<i64> {
    match *value {
        Value::I8(n) => Some(n.into()),
        Value::U8(n) => Some(n.into()),
        Value::I16(n) => Some(n.into()),
        Value::U16(n) => Some(n.into()),
        Value::I32(n) => Some(n.into()),
        Value::U32(n) => Some(n.into()),
        Value::I64(n) => Some(n),
        _ => None,
    }
}

/// The value as Erlang prints it (`~p`): `5`, `true`, `<<"text">>`, `[{long,5}]`.
pub(super) fn term(value: &Value) -> String {
    match value {
        Value::Bool(b) => b.to_string(),
        Value::F32(x) => float(f64::from(*x)),
        Value::F64(x) => float(*x),
        Value::Decimal { scale, mantissa } => format!("{{{scale},{mantissa}}}"),
        Value::LongString(bytes) | Value::ByteArray(bytes) => binary(bytes),
        Value::Timestamp(seconds) => seconds.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|v| format!("{{{},{}}}", type_name(v), term(v))).collect();
            format!("[{}]", items.join(","))
        }
        Value::Table(table) => {
            let fields: Vec<String> =
                table.iter().map(|(name, v)| format!("{{{},{},{}}}", binary(name), type_name(v), term(v))).collect();
            format!("[{}]", fields.join(","))
        }
        Value::Void => "undefined".to_owned(),
        _ => integer(value).expect("all other types were matched above").to_string(),
    }
}

/// The value as RabbitMQ quotes it in "received 'x' but current is 'y'": strings as their text, the
/// rest as terms.
pub(super) fn quoted(value: &Value) -> String {
    match value {
        Value::LongString(bytes) | Value::ByteArray(bytes) => format!("'{}'", String::from_utf8_lossy(bytes)),
        other => format!("'{}'", term(other)),
    }
}

/// The value with its type, or "none": how RabbitMQ tells of an argument that one side has and the
/// other has not.
pub(super) fn with_type(value: Option<&Value>) -> String {
    match value {
        None => "none".to_owned(),
        Some(value) => format!("the value {} of type '{}'", quoted(value), type_name(value)),
    }
}

/// Whether two values are the same to RabbitMQ when it compares arguments: numbers by value
/// whatever their width, strings and byte arrays by bytes; an integer and a float are never the
/// same.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        return a == b;
    }
    match (a, b) {
        (Value::F32(_) | Value::F64(_), Value::F32(_) | Value::F64(_)) => real(a) == real(b),
        (Value::LongString(a) | Value::ByteArray(a), Value::LongString(b) | Value::ByteArray(b)) => a == b,
        _ => a == b,
    }
}

/// Whether a whole number and a float have the same value.
pub(super) fn same_number(a: &Value, b: &Value) -> bool {
    // As a whole number: an i64 turned into a float may be rounded. Beyond its range the cast gives
    // a number that no i64 is.
    let equals = |whole: i128, real: f64| real.fract() == 0.0 && real as i128 == whole;
    match (whole(a), real(b), real(a), whole(b)) {
        (Some(whole), Some(real), ..) | (.., Some(real), Some(whole)) => equals(whole, real),
        _ => false,
    }
}

fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Timestamp(seconds) => Some(i128::from(*seconds)),
        other => integer(other).map(i128::from),
    }
}

fn real(value: &Value) -> Option<f64> {
    match *value {
        Value::F32(x) => Some(x.into()),
        Value::F64(x) => Some(x),
        _ => None,
    }
}

fn float(x: f64) -> String {
    // Erlang always prints a point; Rust's `{:?}` does too.
    format!("{x:?}")
}

pub(super) fn binary(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        "<<>>".to_owned()
    } else if bytes.iter().all(|b| matches!(b, b' '..=b'~' | b'\n' | b'\r' | b'\t') || *b >= 0xa0) {
        format!("<<\"{}\">>", String::from_utf8_lossy(bytes).replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
        format!("<<{}>>", numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::Table;
    use bytes::Bytes;

    #[test]
    fn values_print_as_erlang_prints_them() {
        let mut table = Table::new();
        table.push("a", Value::I64(1));
        assert_eq!(term(&Value::Table(table)), "[{<<\"a\">>,long,1}]");
        assert_eq!(term(&Value::Array(vec![Value::Bool(true), Value::Void])), "[{bool,true},{void,undefined}]");
        assert_eq!(term(&Value::F64(5.0)), "5.0");
        assert_eq!(term(&Value::LongString(Bytes::from_static(b"a\"b"))), "<<\"a\\\"b\">>");
        assert_eq!(term(&Value::ByteArray(Bytes::from_static(&[0, 1]))), "<<0,1>>");
        assert_eq!(term(&Value::LongString(Bytes::new())), "<<>>");
        assert_eq!(with_type(Some(&Value::I32(7))), "the value '7' of type 'signedint'");
    }

    #[test]
    fn numbers_are_compared_by_value_and_never_with_floats() {
        assert!(same(&Value::I8(5), &Value::I64(5)));
        assert!(!same(&Value::I8(5), &Value::F64(5.0)));
        assert!(same(&Value::F32(0.5), &Value::F64(0.5)));
        assert!(!same(&Value::I32(5), &Value::LongString(Bytes::from_static(b"5"))));
    }
}

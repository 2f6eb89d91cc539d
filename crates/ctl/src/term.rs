//! One field of a list: what it is, and how each form writes it.
//!
//! Invariant: what a name contains cannot drive a terminal: control characters but the tab are
//! written as octal numbers, as RabbitMQ's tables have them. JSON has them as JSON does.

use serde_json::Value;

/// A field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Text, a number or a truth; null is an empty field.
    Value(Value),
    /// Words that are names to Erlang: tags, nodes.
    Words(Vec<String>),
    /// Arguments: an object, whose values have types on the wire.
    Table(Value),
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Cell {
        Cell::Value(Value::String(text.into()))
    }

    /// In a table, pretty or not, and in CSV.
    pub(crate) fn shown(&self) -> String {
        match self {
            Cell::Value(Value::Null) => String::new(),
            Cell::Value(Value::String(text)) => harmless(text),
            Cell::Value(other) => other.to_string(),
            Cell::Words(words) => {
                format!("[{}]", words.iter().map(|word| harmless(word)).collect::<Vec<_>>().join(", "))
            }
            Cell::Table(table) => shown_table(table),
        }
    }

    /// In a table with lines.
    pub(crate) fn drawn(&self) -> String {
        match self {
            Cell::Words(words) => words.iter().map(|word| harmless(word)).collect::<Vec<_>>().join(", "),
            other => other.shown(),
        }
    }

    /// In JSON, where arguments are lists of name, type and value.
    pub(crate) fn json(&self) -> Value {
        match self {
            Cell::Value(Value::Null) => Value::String(String::new()),
            Cell::Value(value) => value.clone(),
            Cell::Words(words) => words.iter().cloned().map(Value::String).collect(),
            Cell::Table(table) => typed_table(table),
        }
    }

    /// As a term of Erlang.
    pub(crate) fn term(&self) -> String {
        match self {
            Cell::Value(Value::Null) => "[]".to_owned(),
            Cell::Value(Value::String(text)) => binary(text),
            Cell::Value(other) => other.to_string(),
            Cell::Words(words) => format!("[{}]", words.iter().map(|word| atom(word)).collect::<Vec<_>>().join(",")),
            Cell::Table(table) => term_table(table),
        }
    }
}

/// Text without what a terminal would obey.
pub(crate) fn harmless(text: &str) -> String {
    if !text.chars().any(|c| c.is_control() && c != '\t') {
        return text.to_owned();
    }
    let octal = |c: char| {
        let mut bytes = [0; 4];
        c.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}")).collect::<String>()
    };
    text.chars().map(|c| if c.is_control() && c != '\t' { octal(c) } else { c.to_string() }).collect()
}

/// The same for a text of several lines.
pub(crate) fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

fn entries(table: &Value) -> impl Iterator<Item = (&String, &Value)> {
    table.as_object().into_iter().flatten()
}

fn shown_table(table: &Value) -> String {
    let entry = |(name, value): (&String, &Value)| format!("{{\"{}\",{}}}", harmless(name), shown_value(value));
    format!("[{}]", entries(table).map(entry).collect::<Vec<_>>().join(","))
}

fn shown_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", harmless(text)),
        Value::Object(_) => shown_table(value),
        Value::Array(items) => format!("[{}]", items.iter().map(shown_value).collect::<Vec<_>>().join(",")),
        Value::Null => "undefined".to_owned(),
        other => other.to_string(),
    }
}

/// The wire's name for the type that such a value most likely has: the API does not tell.
fn wire_type(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "double",
        Value::Number(number) if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) => "signedint",
        Value::Number(_) => "long",
        Value::Array(_) => "array",
        Value::Object(_) => "table",
        Value::Null => "void",
        Value::String(_) => "longstr",
    }
}

fn typed_table(table: &Value) -> Value {
    let entry = |(name, value): (&String, &Value)| {
        Value::Array(vec![Value::from(name.as_str()), Value::from(wire_type(value)), typed_value(value)])
    };
    entries(table).map(entry).collect()
}

fn typed_value(value: &Value) -> Value {
    match value {
        Value::Object(_) => typed_table(value),
        Value::Array(items) => {
            items.iter().map(|item| Value::Array(vec![Value::from(wire_type(item)), typed_value(item)])).collect()
        }
        other => other.clone(),
    }
}

fn term_table(table: &Value) -> String {
    let entry = |(name, value): (&String, &Value)| {
        let value_term = match value {
            Value::Object(_) => term_table(value),
            Value::String(text) => binary(text),
            other => shown_value(other),
        };
        format!("{{{},{},{value_term}}}", binary(name), wire_type(value))
    };
    format!("[{}]", entries(table).map(entry).collect::<Vec<_>>().join(","))
}

fn binary(text: &str) -> String {
    format!("<<\"{}\">>", harmless(text).replace('\\', "\\\\").replace('"', "\\\""))
}

/// A word of Erlang: in quotes unless it looks like one anyway.
pub(crate) fn atom(word: &str) -> String {
    let is_plain = word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '@');
    if is_plain { word.to_owned() } else { format!("'{}'", harmless(word).replace('\'', "\\'")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_written_as_rabbitmqs_tools_write_them() {
        let arguments = Cell::Table(json!({"x-max-length": 5, "x-queue-type": "quorum"}));
        assert_eq!(arguments.shown(), r#"[{"x-max-length",5},{"x-queue-type","quorum"}]"#);
        assert_eq!(arguments.json(), json!([["x-max-length", "signedint", 5], ["x-queue-type", "longstr", "quorum"]]));
        assert_eq!(Cell::Table(json!({})).shown(), "[]");
        let nested = Cell::Table(json!({"c": {"basic.nack": true}, "l": [1, "a"]}));
        assert_eq!(nested.shown(), r#"[{"c",[{"basic.nack",true}]},{"l",[1,"a"]}]"#);
        let typed = json!([
            ["c", "table", [["basic.nack", "bool", true]]],
            ["l", "array", [["signedint", 1], ["longstr", "a"]]]
        ]);
        assert_eq!(nested.json(), typed);
    }

    #[test]
    fn a_name_cannot_drive_a_terminal() {
        assert_eq!(Cell::text("a\x1b[31m\tb\n").shown(), "a\\033[31m\tb\\012");
        assert_eq!(Cell::text("a\x1b").json(), json!("a\x1b"));
        assert_eq!(Cell::Words(vec!["a".into(), "b\x07".into()]).shown(), "[a, b\\007]");
    }

    #[test]
    fn terms_are_those_of_erlang() {
        assert_eq!(Cell::text("a\"b").term(), r#"<<"a\"b">>"#);
        assert_eq!(Cell::Words(vec!["administrator".into(), "A b".into()]).term(), "[administrator,'A b']");
        assert_eq!(Cell::Value(json!(5)).term(), "5");
    }
}

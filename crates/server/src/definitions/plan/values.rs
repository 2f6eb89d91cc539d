//! What single fields of a file say: names, patterns, limits, tags and arguments, and the sentence of
//! a refusal.
//!
//! Invariant: what is too long, too large or no pattern is named by its field.

use crate::definitions::document::{Fields, Node, WrongDefinitions};
use broker::topology::{NAME_BYTES_MAX, Name, Pattern, Refusal};
use bytes::Bytes;

pub(super) fn name(node: &Node<'_>) -> Result<Name, WrongDefinitions> {
    match node.text()? {
        long if long.len() > NAME_BYTES_MAX => Err(node.wrong(format!("a name has at most {NAME_BYTES_MAX} bytes"))),
        text => Ok(Name::stripped(text.as_bytes())),
    }
}

pub(super) fn pattern(node: &Node<'_>) -> Result<Pattern, WrongDefinitions> {
    Pattern::new(&node.text()?).map_err(|error| node.wrong(error))
}

/// A limit, which RabbitMQ takes away with a number below zero.
pub(super) fn limit(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<u32>, WrongDefinitions> {
    let Some(node) = fields.take(name) else { return Ok(None) };
    match node.integer()? {
        number if number < 0 => Ok(None),
        number => u32::try_from(number).map(Some).map_err(|_| node.wrong("a limit is at most 4294967295")),
    }
}

/// A list of texts, or the one text with commas of RabbitMQ before 3.8.
pub(super) fn tags(node: Option<Node<'_>>) -> Result<Vec<Name>, WrongDefinitions> {
    let Some(node) = node else { return Ok(Vec::new()) };
    if node.is_composed() {
        return node.items()?.iter().map(name).collect();
    }
    let text = node.text()?;
    let tags: Vec<&str> = text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).collect();
    if tags.iter().any(|tag| tag.len() > NAME_BYTES_MAX) {
        return Err(node.wrong(format!("a tag has at most {NAME_BYTES_MAX} bytes")));
    }
    Ok(tags.into_iter().map(Name::from).collect())
}

pub(super) fn arguments(node: Option<Node<'_>>) -> Result<amqp::Table, WrongDefinitions> {
    let Some(node) = node else { return Ok(amqp::Table::new()) };
    // An empty list is how Erlang exports an empty table at times.
    if node.value().as_array().is_some_and(Vec::is_empty) {
        return Ok(amqp::Table::new());
    }
    let mut table = amqp::Table::new();
    for (key, value) in node.fields()?.rest() {
        if key.len() > NAME_BYTES_MAX {
            return Err(value.wrong(format!("a name has at most {NAME_BYTES_MAX} bytes")));
        }
        table.push(Bytes::from(key), amqp_value(&value)?);
    }
    Ok(table)
}

/// JSON as RabbitMQ turns it into a field table: every whole number is a long, every other one a
/// double. Errors: a whole number does not fit into a long.
pub(super) fn amqp_value(node: &Node<'_>) -> Result<amqp::Value, WrongDefinitions> {
    let value = node.exact()?;
    match too_long(&value) {
        Some(number) => Err(node.wrong(format!("{number} does not fit into 64 bits with a sign"))),
        None => Ok(field_of(&value)),
    }
}

/// The first whole number that no long holds.
fn too_long(value: &serde_json::Value) -> Option<u64> {
    match value {
        serde_json::Value::Number(number) if number.as_i64().is_none() => number.as_u64(),
        serde_json::Value::Array(items) => items.iter().find_map(too_long),
        serde_json::Value::Object(fields) => fields.values().find_map(too_long),
        _ => None,
    }
}

fn field_of(value: &serde_json::Value) -> amqp::Value {
    match value {
        serde_json::Value::Null => amqp::Value::Void,
        serde_json::Value::Bool(flag) => amqp::Value::Bool(*flag),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => amqp::Value::I64(whole),
            None => amqp::Value::F64(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => amqp::Value::LongString(Bytes::copy_from_slice(text.as_bytes())),
        serde_json::Value::Array(items) => amqp::Value::Array(items.iter().map(field_of).collect()),
        serde_json::Value::Object(fields) => {
            let mut table = amqp::Table::new();
            for (name, value) in fields {
                let mut end = name.len().min(NAME_BYTES_MAX);
                while !name.is_char_boundary(end) {
                    end -= 1;
                }
                table.push(Bytes::copy_from_slice(&name.as_bytes()[..end]), field_of(value));
            }
            amqp::Value::Table(table)
        }
    }
}

/// A refusal without the name of its code, which means nothing in a file.
pub(super) fn sentence(refusal: &Refusal) -> String {
    let text = refusal.text.as_str();
    text.split_once(" - ").map_or(text, |(_, sentence)| sentence).to_owned()
}

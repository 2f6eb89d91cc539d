//! The forms of rabbitmqadmin's lists.
//!
//! Invariant: a column is a path through objects with points between the names; without named
//! columns, objects are opened as deep as was asked for.

use crate::term::harmless;
use serde_json::Value;

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    RawJson,
    PrettyJson,
    Tsv,
    Long,
    Table,
    KeyValue,
    Bash,
}

impl Format {
    const NAMES: [(&str, Format); 7] = [
        ("raw_json", Format::RawJson),
        ("pretty_json", Format::PrettyJson),
        ("tsv", Format::Tsv),
        ("long", Format::Long),
        ("table", Format::Table),
        ("kvp", Format::KeyValue),
        ("bash", Format::Bash),
    ];

    pub(super) fn of(name: &str) -> Result<Format, String> {
        let found = Format::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let known = Format::NAMES.map(|(name, _)| name).join(", ");
            format!("Format {name} not recognised; there are {known}")
        })
    }

    pub(super) fn is_json(self) -> bool {
        matches!(self, Format::RawJson | Format::PrettyJson)
    }
}

/// Columns that come first where nobody names any, in this order.
const FIRST: [&str; 7] = ["vhost", "name", "type", "source", "destination", "destination_type", "routing_key"];

/// The text of a list that came as JSON. Errors: it is none.
pub(super) fn written(
    format: Format,
    text: &str,
    columns: &[String],
    json: &[&str],
    depth: usize,
    is_quiet: bool,
) -> Result<String, String> {
    if format == Format::RawJson {
        return Ok(format!("{text}\n"));
    }
    let list = json_once::value(text.as_bytes()).map_err(|error| format!("the answer is no JSON: {error}"))?;
    if format == Format::PrettyJson {
        return Ok(format!("{list:#}\n"));
    }
    let items = list.as_array().cloned().unwrap_or_default();
    let depth = if columns.is_empty() { depth } else { usize::MAX };
    let rows: Vec<Vec<(String, String)>> = items
        .iter()
        .map(|item| {
            let mut fields = Vec::new();
            open("", 1, item, depth, json, &mut fields);
            fields
        })
        .collect();
    let columns = if columns.is_empty() { all_columns(&rows) } else { columns.to_vec() };
    let cell = |row: &[(String, String)], column: &String| {
        row.iter().find(|(name, _)| name == column).map_or_else(String::new, |(_, value)| value.clone())
    };
    let table: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
    if table.is_empty() {
        return Ok(if is_quiet { String::new() } else { "No items\n".to_owned() });
    }
    Ok(match format {
        Format::Tsv => {
            let head = if is_quiet { String::new() } else { columns.join("\t") + "\n" };
            head + &table.iter().map(|row| row.join("\t") + "\n").collect::<String>()
        }
        Format::Long => long(&columns, &table),
        Format::KeyValue => {
            let pair = |(column, value): (&String, &String)| format!("{column}=\"{value}\"");
            table.iter().map(|row| columns.iter().zip(row).map(pair).collect::<Vec<_>>().join(" ") + "\n").collect()
        }
        Format::Bash => match columns.iter().rposition(|column| column == "name") {
            Some(at) => table.iter().map(|row| row[at].clone()).collect::<Vec<_>>().join(" ") + "\n",
            None => String::new(),
        },
        _ => ascii(&columns, &table),
    })
}

fn open(prefix: &str, depth: usize, item: &Value, depth_max: usize, json: &[&str], fields: &mut Vec<(String, String)>) {
    for (name, value) in item.as_object().into_iter().flatten() {
        let column = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(_) if json.contains(&name.as_str()) => fields.push((column, value.to_string())),
            Value::Object(_) if depth < depth_max => open(&column, depth + 1, value, depth_max, json, fields),
            Value::Object(_) => {}
            Value::Array(items) if items.iter().all(Value::is_string) => {
                let words: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                fields.push((column, harmless(&words.join(" "))));
            }
            Value::String(text) => fields.push((column, harmless(text))),
            Value::Null => fields.push((column, String::new())),
            // As Python writes them.
            Value::Bool(true) => fields.push((column, "True".to_owned())),
            Value::Bool(false) => fields.push((column, "False".to_owned())),
            other => fields.push((column, other.to_string())),
        }
    }
}

fn all_columns(rows: &[Vec<(String, String)>]) -> Vec<String> {
    let mut columns: Vec<String> = rows.iter().flatten().map(|(name, _)| name.clone()).collect();
    columns.sort_by_key(|name| {
        let first = FIRST.iter().position(|known| known == name);
        (first.unwrap_or(FIRST.len()), name.clone())
    });
    columns.dedup();
    columns
}

fn width(text: &str) -> usize {
    ratatui::text::Line::raw(text).width()
}

fn long(columns: &[String], table: &[Vec<String>]) -> String {
    let wide = columns.iter().map(|column| width(column)).max().unwrap_or(0);
    let rule = format!("\n{}\n\n", "-".repeat(80));
    let mut text = rule.clone();
    for row in table {
        for (column, value) in columns.iter().zip(row) {
            text += &format!("{}{column}: {value}\n", " ".repeat(wide - width(column)));
        }
        text += &rule;
    }
    text
}

fn ascii(columns: &[String], table: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| table.iter().map(|row| width(&row[at])).chain([width(&columns[at])]).max().unwrap_or(0))
        .collect();
    let bar: String = widths.iter().map(|wide| "-".repeat(wide + 2) + "+").collect();
    let line = |row: &[String], is_head: bool| {
        let cells = row.iter().zip(&widths).map(|(cell, wide)| {
            let space = wide - width(cell);
            let before = if is_head { space / 2 } else { 0 };
            format!(" {}{cell}{} |", " ".repeat(before), " ".repeat(space - before))
        });
        format!("|{}\n", cells.collect::<String>())
    };
    let rows: String = table.iter().map(|row| line(row, false)).collect();
    format!("+{bar}\n{}+{bar}\n{rows}+{bar}\n", line(columns, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: &str = r#"[{"name":"a","messages":10,"durable":true,"b":{"c":{"d":1}}},{"name":"bb","messages":0}]"#;

    fn of(format: Format, columns: &[&str], depth: usize) -> String {
        let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
        written(format, QUEUES, &columns, &[], depth, false).expect("it is JSON")
    }

    #[test]
    fn the_forms_are_rabbitmqadmins() {
        let drawn = "+------+----------+\n| name | messages |\n+------+----------+\n| a    | 10       |\n| bb   | 0        |\n\
                     +------+----------+\n";
        assert_eq!(of(Format::Table, &["name", "messages"], 1), drawn);
        assert_eq!(of(Format::Tsv, &["name", "messages"], 1), "name\tmessages\na\t10\nbb\t0\n");
        assert_eq!(of(Format::KeyValue, &["name"], 1), "name=\"a\"\nname=\"bb\"\n");
        assert_eq!(of(Format::Bash, &["messages", "name"], 1), "a bb\n");
        assert_eq!(written(Format::Table, "[]", &[], &[], 1, false), Ok("No items\n".to_owned()));
    }

    #[test]
    fn objects_are_opened_as_deep_as_was_asked_for() {
        assert_eq!(of(Format::Tsv, &[], 1), "name\tdurable\tmessages\na\tTrue\t10\nbb\t\t0\n");
        assert_eq!(of(Format::Tsv, &[], 3), "name\tb.c.d\tdurable\tmessages\na\t1\tTrue\t10\nbb\t\t\t0\n");
        assert_eq!(of(Format::Tsv, &["b.c.d"], 1), "b.c.d\n1\n\n");
    }
}

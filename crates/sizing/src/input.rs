//! What a person wrote, read so that every mistake is named: file, line, field, and what would be
//! right.
//!
//! Invariant: no value passes here that the arithmetic cannot take. Rates, prices and times are
//! finite and not negative; counts are whole.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

/// The largest file that is read at all; a campaign of years stays far below it.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A mistake in a file, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file as it was named.
    pub file: String,
    /// Line, from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// The field, empty where the line as a whole is meant.
    pub field: String,
    /// What is wrong, and where it helps what would be right.
    pub what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Mistake {}

impl Mistake {
    /// A mistake of a whole file.
    pub fn of_file(file: &str, what: impl Into<String>) -> Mistake {
        Mistake { file: file.to_owned(), line: 0, field: String::new(), what: what.into() }
    }
}

/// A file and its text.
#[derive(Clone, Debug)]
pub struct Document {
    /// The name for messages.
    pub file: String,
    /// Everything in it.
    pub text: String,
}

impl Document {
    /// Takes text that is in memory already.
    pub fn new(file: &str, text: &str) -> Document {
        Document { file: file.to_owned(), text: text.to_owned() }
    }

    /// Reads a file of at most [`FILE_BYTES_MAX`].
    pub fn open(path: &Path) -> Result<Document, Mistake> {
        let file = path.display().to_string();
        let wrong = |why: std::io::Error| Mistake::of_file(&file, format!("cannot be read: {why}"));
        let length = std::fs::metadata(path).map_err(wrong)?.len();
        if length > FILE_BYTES_MAX {
            return Err(Mistake::of_file(&file, format!("{length} bytes; at most {FILE_BYTES_MAX} are read")));
        }
        let bytes = std::fs::read(path).map_err(wrong)?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Document { file, text }),
            Err(error) => {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
                Err(Mistake { file, line, field: String::new(), what: "is not UTF-8 text".to_owned() })
            }
        }
    }

    /// Reads the text as TOML.
    pub fn toml<T: DeserializeOwned>(&self) -> Result<T, Mistake> {
        let table = DeTable::parse(&self.text).map_err(|error| self.of_toml(&error))?;
        self.check_numbers("", &DeValue::Table(table.into_inner()), 0)?;
        toml::from_str(&self.text).map_err(|error| self.of_toml(&error))
    }

    fn of_toml(&self, error: &toml::de::Error) -> Mistake {
        let at = error.span().unwrap_or(0..0).start;
        let what = error.message().trim().replace('\n', "; ");
        // serde names a missing field itself; else the key of the line is the field.
        let field = named(&what, "missing field").unwrap_or_else(|| self.key_at(at));
        Mistake { file: self.file.clone(), line: self.line_of(at), field, what }
    }

    /// That no number of a value is negative or none at all: all of them are prices, rates, times and
    /// counts. `field` is its key, `at` where it stands.
    fn check_numbers(&self, field: &str, value: &DeValue<'_>, at: usize) -> Result<(), Mistake> {
        let number = match value {
            DeValue::Table(table) => {
                let mut fields = table.iter();
                return fields
                    .try_for_each(|(key, of)| self.check_numbers(key.get_ref(), of.get_ref(), of.span().start));
            }
            DeValue::Array(values) => {
                return values.iter().try_for_each(|of| self.check_numbers(field, of.get_ref(), of.span().start));
            }
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse::<f64>(),
            DeValue::Float(number) => number.as_str().parse::<f64>(),
            _ => return Ok(()),
        };
        match number {
            Ok(number) => not_negative(number).map_err(|what| self.mistake(&(at..at), field, what)),
            Err(_) => Ok(()),
        }
    }

    /// A mistake in a field of the table at a place of the text.
    pub fn mistake(&self, table: &Range<usize>, field: &str, what: impl Into<String>) -> Mistake {
        let line = self.line_of(self.place(table.start, field));
        Mistake { file: self.file.clone(), line, field: field.to_owned(), what: what.into() }
    }

    /// Accepts fields of a table that are divided by.
    pub fn above_zero(&self, table: &Range<usize>, fields: &[(&str, Option<f64>)]) -> Result<(), Mistake> {
        match fields.iter().find(|(_, number)| *number == Some(0.0)) {
            Some((field, _)) => Err(self.mistake(table, field, "must be above zero")),
            None => Ok(()),
        }
    }

    /// The line of a byte, from 1.
    pub fn line_of(&self, byte: usize) -> usize {
        1 + self.text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
    }

    /// Where a field is set in the table that begins at a byte; the table itself where it is not.
    fn place(&self, table: usize, field: &str) -> usize {
        let mut at = self.text[..table].rfind('\n').map_or(0, |end| end + 1);
        for (number, line) in self.text[at..].split_inclusive('\n').enumerate() {
            let rest = line.trim_start().strip_prefix(field);
            if rest.is_some_and(|rest| rest.trim_start().starts_with('=')) {
                return at;
            }
            if number > 0 && line.starts_with('[') {
                break;
            }
            at += line.len();
        }
        table
    }

    /// The key of the line that holds `byte`, as far as one can be seen.
    fn key_at(&self, byte: usize) -> String {
        let line = self.text.lines().nth(self.line_of(byte) - 1).unwrap_or_default();
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        let is_key = |c: char| c.is_alphanumeric() || "_-.\"".contains(c);
        if key.chars().all(is_key) { key.to_owned() } else { String::new() }
    }
}

/// A part of a TOML file, with its place.
pub type Placed<T> = toml::Spanned<T>;

fn not_negative(number: f64) -> Result<(), String> {
    match number {
        number if !number.is_finite() => Err(format!("must be a finite number, not {number}")),
        number if number < 0.0 => Err(format!("must not be negative, and is {number}")),
        _ => Ok(()),
    }
}

/// One line of a results file: an object. What is null or empty text is not there.
#[derive(Debug)]
pub struct Line<'a> {
    file: &'a str,
    line: usize,
    map: Map<String, Value>,
}

impl<'a> Line<'a> {
    /// Reads a line.
    pub fn read(file: &'a str, line: usize, text: &str) -> Result<Line<'a>, Mistake> {
        let wrong = |field: String, what: String| Mistake { file: file.to_owned(), line, field, what };
        let map = match serde_json::from_str(text) {
            Ok(Value::Object(map)) => map,
            Ok(_) => {
                return Err(wrong(String::new(), "each line is one JSON object, this is something else".to_owned()));
            }
            Err(error) if error.is_eof() => {
                return Err(wrong(last_field(text), "the line ends in the middle: half-written".to_owned()));
            }
            Err(error) => {
                return Err(wrong(String::new(), format!("not JSON at column {}: {}", error.column(), plain(&error))));
            }
        };
        let is_there = |(_, value): &(String, Value)| !value.is_null() && value.as_str() != Some("");
        let read = Line { file, line, map: map.into_iter().filter(is_there).collect() };
        let nested = read.map.values().filter_map(Value::as_object).flatten();
        for (field, value) in read.map.iter().chain(nested) {
            let number = value.as_f64().map_or(Ok(()), not_negative);
            number.map_err(|what| read.mistake(field, what))?;
        }
        Ok(read)
    }

    /// Takes a word out of it.
    pub fn take(&mut self, field: &str) -> Result<String, Mistake> {
        match self.map.remove(field) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(self.mistake(field, format!("must be text, and is {other}"))),
            None => Err(self.mistake(field, "is missing")),
        }
    }

    /// Everything that is left of it. A field that is not known is a mistake, most often of spelling.
    pub fn fields<T: DeserializeOwned>(&self) -> Result<T, Mistake> {
        let last = Cell::new("");
        let fields = self.map.iter().map(|(field, value)| {
            last.set(field);
            (field.as_str(), value)
        });
        T::deserialize(MapDeserializer::<_, serde_json::Error>::new(fields)).map_err(|error| {
            let what = plain(&error);
            match (named(&what, "missing field"), named(&what, "unknown field")) {
                (Some(field), _) => self.mistake(&field, "is missing"),
                (_, Some(field)) => self.mistake(&field, "is not a field of this kind of line"),
                _ => self.mistake(last.get(), what),
            }
        })
    }

    /// Accepts fields that are divided by.
    pub fn above_zero(&self, fields: &[(&str, f64)]) -> Result<(), Mistake> {
        match fields.iter().find(|(_, number)| *number == 0.0) {
            Some((field, _)) => Err(self.mistake(field, "must be above zero")),
            None => Ok(()),
        }
    }

    /// A mistake in a field of this line.
    pub fn mistake(&self, field: &str, what: impl Into<String>) -> Mistake {
        Mistake { file: self.file.to_owned(), line: self.line, field: field.to_owned(), what: what.into() }
    }
}

/// The field that serde names behind these words.
fn named(what: &str, words: &str) -> Option<String> {
    let (_, rest) = what.split_once(words)?;
    rest.split('`').nth(1).map(str::to_owned)
}

/// The last field that a cut line had begun.
fn last_field(text: &str) -> String {
    let parts: Vec<&str> = text.split('"').collect();
    let mut named = parts.windows(2).filter(|pair| pair[1].trim_start().starts_with(':')).map(|pair| pair[0]);
    named.next_back().unwrap_or_default().to_owned()
}

/// serde_json's words without the position, which is said separately.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Written {
        rate: f64,
        nodes: u64,
        note: Option<String>,
    }

    fn said(line: &str) -> String {
        Line::read("r.jsonl", 7, line).and_then(|line| line.fields::<Written>()).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_field_is_named_with_file_and_line() {
        assert_eq!(said(r#"{"rate": -5, "nodes": 1}"#), "r.jsonl:7: rate: must not be negative, and is -5");
        assert!(
            said(r#"{"rate": 5, "nodes": 1, "note": 3}"#).starts_with("r.jsonl:7: note: invalid type: integer `3`")
        );
        assert!(
            said(r#"{"rate": 5, "nodes": 2.5}"#).starts_with("r.jsonl:7: nodes: invalid type: floating point `2.5`")
        );
        assert_eq!(said(r#"{"rate": null, "nodes": 1}"#), "r.jsonl:7: rate: is missing");
        assert_eq!(
            said(r#"{"rate": 5, "nodes": 1, "extra": 1}"#),
            "r.jsonl:7: extra: is not a field of this kind of line"
        );
        let whole = Line::read("r.jsonl", 7, r#"{"rate": 0, "nodes": 1, "note": ""}"#).unwrap();
        assert_eq!(whole.fields::<Written>().unwrap().note, None, "empty text is none");
        let zero = whole.above_zero(&[("rate", 0.0)]).unwrap_err();
        assert_eq!(zero.to_string(), "r.jsonl:7: rate: must be above zero");
    }

    #[test]
    fn a_half_written_line_names_the_field_it_ends_in() {
        let error = Line::read("r.jsonl", 3, r#"{"kind":"step","cluster":"a","p99_ms":1"#).unwrap_err();
        assert_eq!(error.to_string(), "r.jsonl:3: p99_ms: the line ends in the middle: half-written");
        let error = Line::read("r.jsonl", 3, r#"{"kind":"step" "cluster""#).unwrap_err();
        assert!(error.to_string().starts_with("r.jsonl:3: not JSON at column 1"), "{error}");
    }

    #[test]
    fn a_wrong_line_of_toml_is_named_with_its_key() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Price {
            month: f64,
        }
        let said = |text: &str| Document::new("p.toml", text).toml::<Price>().unwrap_err().to_string();
        assert!(said("\nmonth = \"x\"").starts_with("p.toml:2: month: invalid type"), "{}", said("\nmonth = \"x\""));
        assert!(said("month = 1.0\nmoth = 2").starts_with("p.toml:2: moth: unknown field"));
        assert_eq!(said(""), "p.toml:1: month: missing field `month`");
        assert_eq!(said("\nmonth = -2.0"), "p.toml:2: month: must not be negative, and is -2");
        assert_eq!(said("month = inf"), "p.toml:1: month: must be a finite number, not inf");
        let lines = Document::new("p.toml", "[[a]]\nx = 1\n[[a]]\ny = 0\nx = 0\n[[a]]\nz = 0");
        let second = lines.above_zero(&(12..17), &[("y", None), ("x", Some(0.0))]).unwrap_err();
        assert_eq!(second.to_string(), "p.toml:5: x: must be above zero");
        assert_eq!(lines.mistake(&(12..17), "z", "is of the next one").line, 3);
    }
}

//! What a person wrote, read so that every mistake is named: file, line, field, and what would be
//! right.
//!
//! Invariant: no value passes here that the arithmetic cannot take. Rates, prices and times are
//! finite and not negative; counts are whole.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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
        toml::from_str(&self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let what = error.message().trim().replace('\n', "; ");
            // serde names a missing field itself; else the key of the line is the field.
            let field = match what.split_once("missing field `") {
                Some((_, rest)) => rest.split('`').next().unwrap_or_default().to_owned(),
                None => self.key_at(span.start),
            };
            self.mistake(&span, &field, what)
        })
    }

    /// A mistake at a place of the text.
    pub fn mistake(&self, at: &Range<usize>, field: &str, what: impl Into<String>) -> Mistake {
        Mistake { file: self.file.clone(), line: self.line_of(at.start), field: field.to_owned(), what: what.into() }
    }

    /// The line of a byte, from 1.
    pub fn line_of(&self, byte: usize) -> usize {
        1 + self.text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
    }

    /// The key of the line that holds `byte`, as far as one can be seen.
    fn key_at(&self, byte: usize) -> String {
        let line = self.text.lines().nth(self.line_of(byte) - 1).unwrap_or_default();
        let key = line.split_once('=').map_or("", |(key, _)| key.trim());
        let is_key = |c: char| c.is_alphanumeric() || "_-.\"".contains(c);
        if key.chars().all(is_key) { key.to_owned() } else { String::new() }
    }
}

/// A number of a TOML file, with its place.
pub type Placed<T> = toml::Spanned<T>;

/// Accepts a number that may be a price, a rate or a time: finite and not negative.
pub fn not_negative(document: &Document, field: &str, number: &Placed<f64>) -> Result<f64, Mistake> {
    check_not_negative(*number.get_ref()).map_err(|what| document.mistake(&number.span(), field, what))
}

/// Accepts a number that is divided by: finite and above zero.
pub fn positive(document: &Document, field: &str, number: &Placed<f64>) -> Result<f64, Mistake> {
    let value = not_negative(document, field, number)?;
    if value > 0.0 {
        return Ok(value);
    }
    Err(document.mistake(&number.span(), field, "must be above zero"))
}

fn check_not_negative(number: f64) -> Result<f64, String> {
    if !number.is_finite() {
        return Err(format!("must be a finite number, not {number}"));
    }
    if number < 0.0 {
        return Err(format!("must not be negative, and is {number}"));
    }
    Ok(number)
}

/// The fields of one line of a results file; each is taken once, what is left at the end is
/// unknown.
#[derive(Debug)]
pub struct Fields<'a> {
    file: &'a str,
    line: usize,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Reads a line as one JSON object.
    pub fn read(file: &'a str, line: usize, text: &str) -> Result<Fields<'a>, Mistake> {
        let wrong = |what: String| Mistake { file: file.to_owned(), line, field: String::new(), what };
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(Fields { file, line, map }),
            Ok(_) => Err(wrong("each line is one JSON object, this is something else".to_owned())),
            Err(error) if error.is_eof() => {
                let field = last_field(text);
                let what = "the line ends in the middle: half-written".to_owned();
                Err(Mistake { file: file.to_owned(), line, field, what })
            }
            Err(error) => Err(wrong(format!("not JSON at column {}: {}", error.column(), plain(&error)))),
        }
    }

    /// A mistake in a field of this line.
    pub fn mistake(&self, field: &str, what: impl Into<String>) -> Mistake {
        Mistake { file: self.file.to_owned(), line: self.line, field: field.to_owned(), what: what.into() }
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    fn required<T>(&self, field: &str, value: Option<T>) -> Result<T, Mistake> {
        value.ok_or_else(|| self.mistake(field, "is missing"))
    }

    /// Text that must be there and is not empty.
    pub fn text(&mut self, field: &str) -> Result<String, Mistake> {
        let text = self.maybe_text(field)?;
        self.required(field, text.filter(|text| !text.is_empty()))
    }

    /// Text that may be absent.
    pub fn maybe_text(&mut self, field: &str) -> Result<Option<String>, Mistake> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.mistake(field, format!("must be text, and is {other}"))),
        }
    }

    /// A finite number, not negative, that must be there.
    pub fn number(&mut self, field: &str) -> Result<f64, Mistake> {
        let number = self.maybe_number(field)?;
        self.required(field, number)
    }

    /// A finite number, not negative, that may be absent.
    pub fn maybe_number(&mut self, field: &str) -> Result<Option<f64>, Mistake> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Number(number)) => {
                let number = number.as_f64().expect("serde_json's numbers are f64 without arbitrary precision");
                check_not_negative(number).map(Some).map_err(|what| self.mistake(field, what))
            }
            Some(other) => Err(self.mistake(field, format!("must be a number, and is {other}"))),
        }
    }

    /// A count from `first` to `last` that must be there.
    pub fn count(&mut self, field: &str, first: u64, last: u64) -> Result<u64, Mistake> {
        let value = self.take(field);
        let value = self.required(field, value)?;
        match value.as_u64() {
            Some(count) if (first..=last).contains(&count) => Ok(count),
            _ => Err(self.mistake(field, format!("must be a whole number from {first} to {last}, and is {value}"))),
        }
    }

    /// A count that may be absent.
    pub fn maybe_count(&mut self, field: &str) -> Result<Option<u64>, Mistake> {
        match self.map.contains_key(field) && !self.map[field].is_null() {
            true => self.count(field, 0, u64::MAX).map(Some),
            false => {
                self.map.remove(field);
                Ok(None)
            }
        }
    }

    /// True or false that may be absent.
    pub fn maybe_flag(&mut self, field: &str) -> Result<Option<bool>, Mistake> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.mistake(field, format!("must be true or false, and is {other}"))),
        }
    }

    /// An object of its own fields that may be absent.
    pub fn maybe_object(&mut self, field: &str) -> Result<Option<Fields<'a>>, Mistake> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { file: self.file, line: self.line, map })),
            Some(other) => Err(self.mistake(field, format!("must be an object, and is {other}"))),
        }
    }

    /// Ends the line: a field that nobody asked for is a mistake, most often of spelling.
    pub fn end(self) -> Result<(), Mistake> {
        match self.map.keys().next() {
            None => Ok(()),
            Some(field) => Err(self.mistake(field, "is not a field of this kind of line")),
        }
    }
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

    fn fields(text: &str) -> Fields<'static> {
        Fields::read("r.jsonl", 7, text).unwrap()
    }

    #[test]
    fn a_wrong_field_is_named_with_file_and_line() {
        let said = |error: Mistake| error.to_string();
        let mut line = fields(r#"{"rate": -5, "name": 3, "nodes": 2.5, "extra": 1}"#);
        assert_eq!(said(line.number("rate").unwrap_err()), "r.jsonl:7: rate: must not be negative, and is -5");
        assert_eq!(said(line.text("name").unwrap_err()), "r.jsonl:7: name: must be text, and is 3");
        assert_eq!(
            said(line.count("nodes", 1, 9).unwrap_err()),
            "r.jsonl:7: nodes: must be a whole number from 1 to 9, and is 2.5"
        );
        assert_eq!(said(line.number("p99_ms").unwrap_err()), "r.jsonl:7: p99_ms: is missing");
        assert_eq!(said(line.end().unwrap_err()), "r.jsonl:7: extra: is not a field of this kind of line");
    }

    #[test]
    fn a_half_written_line_names_the_field_it_ends_in() {
        let error = Fields::read("r.jsonl", 3, r#"{"kind":"step","cluster":"a","p99_ms":1"#).unwrap_err();
        assert_eq!(error.to_string(), "r.jsonl:3: p99_ms: the line ends in the middle: half-written");
        let error = Fields::read("r.jsonl", 3, r#"{"kind":"step" "cluster""#).unwrap_err();
        assert!(error.to_string().starts_with("r.jsonl:3: not JSON at column 1"), "{error}");
    }

    #[test]
    fn a_wrong_line_of_toml_is_named_with_its_key() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Price {
            month: Placed<f64>,
        }
        let said = |text: &str| Document::new("p.toml", text).toml::<Price>().unwrap_err().to_string();
        assert!(said("\nmonth = \"x\"").starts_with("p.toml:2: month: invalid type"), "{}", said("\nmonth = \"x\""));
        assert!(said("month = 1.0\nmoth = 2").starts_with("p.toml:2: moth: unknown field"));
        assert_eq!(said(""), "p.toml:1: month: missing field `month`");
        let document = Document::new("p.toml", "\nmonth = -2.0");
        let price: Price = document.toml().unwrap();
        let error = not_negative(&document, "month", &price.month).unwrap_err();
        assert_eq!(error.to_string(), "p.toml:2: month: must not be negative, and is -2");
    }
}

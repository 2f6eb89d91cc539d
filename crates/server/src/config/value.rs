//! One value on its way from what somebody wrote to a field of the configuration.
//!
//! Invariant: a [`Value`] exists only after its setting's [`Kind`] has accepted it, so fields are
//! filled without a second look.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::error::{one_line, quoted};
use super::levels::{LogFormat, LogLevels};
use super::ratio::Ratio;
use super::setting::{Kind, Unit, bytes_text};
use crate::tls::{LoginFrom, VerifyClients};
use broker::topology::{HashAlgorithm, LeaderLocator, Redeclaration};
use session::Stamp;

/// The word for no file, and for an empty list where a list is written as text. An empty text is
/// not one: an unset variable in a compose file would otherwise open `guest` to the network.
const NONE: &str = "none";

/// What somebody wrote, before anyone knows whether it is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Given {
    /// From the environment or a flag: one text, whatever the type; lists have commas.
    Plain(String),
    /// Quoted in the file.
    Text(String),
    /// A number in the file.
    Integer(i128),
    /// A list of texts in the file.
    List(Vec<String>),
    /// A truth value in the file.
    Truth(bool),
    /// Something that no setting is, as it should be shown.
    Other(String),
}

impl Given {
    /// For error texts.
    pub(super) fn shown(&self) -> String {
        match self {
            Given::Plain(text) if text.is_empty() => "\"\"".to_owned(),
            Given::Plain(text) | Given::Other(text) => one_line(text),
            Given::Text(text) => quoted(text),
            Given::Integer(number) => number.to_string(),
            Given::Truth(truth) => truth.to_string(),
            Given::List(items) => one_line(&format!("{items:?}")),
        }
    }
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Number`].
    Number(u64),
    /// Of [`Kind::Folder`].
    Folder(PathBuf),
    /// Of [`Kind::File`].
    File(Option<PathBuf>),
    /// Of [`Kind::Addresses`].
    Addresses(Vec<SocketAddr>),
    /// Of [`Kind::Names`].
    Names(Vec<String>),
    /// Of the texts.
    Text(String),
    /// Of [`Kind::Levels`].
    Levels(LogLevels),
    /// Of [`Kind::Ratio`].
    Ratio(Ratio),
    /// Of [`Kind::Choice`]: which word.
    Choice(usize),
}

impl Value {
    /// Checks what was written. `None`: it is not allowed; the row's [`Kind::allowed`] says what
    /// is.
    pub(super) fn check(kind: Kind, given: &Given) -> Option<Value> {
        match kind {
            Kind::Number { unit, min, max, step } => {
                let number = match given {
                    Given::Integer(number) => u64::try_from(*number).ok()?,
                    Given::Plain(text) => parse_number(text, unit)?,
                    // "64 MiB" has to be quoted in TOML; a quoted bare number is a mistake that we
                    // understand, so it is taken too.
                    Given::Text(text) if unit == Unit::Bytes => parse_number(text, unit)?,
                    _ => return None,
                };
                ((min..=max).contains(&number) && number.is_multiple_of(step)).then_some(Value::Number(number))
            }
            Kind::Folder => {
                let text = given.single()?;
                (!text.is_empty() && !text.contains('\0')).then(|| Value::Folder(PathBuf::from(text)))
            }
            Kind::File => {
                let text = given.single()?;
                let path = (text != NONE).then(|| PathBuf::from(text));
                (!text.is_empty() && !text.contains('\0')).then_some(Value::File(path))
            }
            Kind::Addresses { count_min, count_max } => {
                let mut addresses = Vec::new();
                for item in given.items()? {
                    let address: SocketAddr = item.parse().ok()?;
                    if addresses.contains(&address) {
                        return None;
                    }
                    addresses.push(address);
                }
                (count_min..=count_max).contains(&addresses.len()).then_some(Value::Addresses(addresses))
            }
            Kind::Names { count_max, bytes_max } => {
                let mut names = Vec::new();
                for item in given.items()? {
                    if item.is_empty()
                        || item.len() > bytes_max
                        || item.chars().any(char::is_control)
                        || names.contains(&item)
                    {
                        return None;
                    }
                    names.push(item);
                }
                (names.len() <= count_max).then_some(Value::Names(names))
            }
            Kind::NodeName { bytes_max } => {
                given.text_of(bytes_max, |b| b.is_ascii_alphanumeric() || b"_-.@".contains(&b))
            }
            Kind::Text { bytes_max } => given.text_of(bytes_max, |b| b == b' ' || b.is_ascii_graphic()),
            Kind::Version => {
                let text = given.single()?;
                let parts: Vec<&str> = text.split('.').collect();
                let is_number =
                    |part: &&str| !part.is_empty() && part.len() <= 5 && part.bytes().all(|b| b.is_ascii_digit());
                (parts.len() == 3 && parts.iter().all(is_number)).then(|| Value::Text(text.to_owned()))
            }
            Kind::Levels => given.single()?.parse().ok().map(Value::Levels),
            Kind::Ratio => match given {
                // Numbers of a file that are not whole are kept as they are written.
                Given::Plain(text) | Given::Text(text) | Given::Other(text) => text.parse().ok(),
                Given::Integer(number) => number.to_string().parse().ok(),
                Given::List(_) | Given::Truth(_) => None,
            }
            .map(Value::Ratio),
            Kind::Choice(words) => {
                let truth = |truth: bool| if truth { "true" } else { "false" };
                let text = match given {
                    Given::Truth(is_true) => truth(*is_true),
                    _ => given.single()?,
                };
                words.iter().position(|word| *word == text).map(Value::Choice)
            }
        }
    }

    /// The value as it is written in the file.
    pub fn as_toml(&self, kind: Kind) -> String {
        match self {
            Value::Number(number) => number.to_string(),
            Value::Folder(path) => toml_text(&path.to_string_lossy()),
            Value::File(Some(path)) => toml_text(&path.to_string_lossy()),
            Value::File(None) => toml_text(NONE),
            Value::Addresses(addresses) => toml_list(addresses.iter().map(SocketAddr::to_string)),
            Value::Names(names) => toml_list(names.iter().cloned()),
            Value::Text(text) => toml_text(text),
            Value::Levels(levels) => toml_text(&levels.to_string()),
            Value::Ratio(ratio) => ratio.to_string(),
            Value::Choice(index) => match kind {
                Kind::Choice(words) => toml_text(words[*index]),
                _ => unreachable!("only a choice has a value that is one of its words"),
            },
        }
    }

    /// The value for people: like the file's, with large numbers of bytes in units.
    pub fn shown(&self, kind: Kind) -> String {
        match (self, kind) {
            (Value::Number(number), Kind::Number { unit: Unit::Bytes, .. }) => bytes_text(*number),
            _ => self.as_toml(kind),
        }
    }
}

impl Given {
    /// The one text of settings that are texts.
    fn single(&self) -> Option<&str> {
        match self {
            Given::Plain(text) | Given::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of settings that are lists.
    fn items(&self) -> Option<Vec<String>> {
        match self {
            Given::Plain(text) | Given::Text(text) if text == NONE => Some(Vec::new()),
            Given::Plain(text) | Given::Text(text) => {
                Some(text.split(',').map(|item| item.trim().to_owned()).collect())
            }
            Given::List(items) => Some(items.clone()),
            Given::Integer(_) | Given::Truth(_) | Given::Other(_) => None,
        }
    }

    fn text_of(&self, bytes_max: usize, is_allowed: impl Fn(u8) -> bool) -> Option<Value> {
        let text = self.single()?;
        let fits = (1..=bytes_max).contains(&text.len()) && text.bytes().all(is_allowed) && text.trim() == text;
        fits.then(|| Value::Text(text.to_owned()))
    }
}

/// A whole number, with a unit after it if it counts bytes.
fn parse_number(text: &str, unit: Unit) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.bytes().position(|b| !b.is_ascii_digit() && b != b'_').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    let number: u64 = digits.replace('_', "").parse().ok()?;
    let factor: u64 = match (unit, suffix.trim_start()) {
        (_, "") => 1,
        (Unit::Bytes, suffix) => match suffix.to_ascii_lowercase().as_str() {
            "b" => 1,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return None,
        },
        _ => return None,
    };
    number.checked_mul(factor)
}

fn toml_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn toml_list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.map(|item| toml_text(&item)).collect::<Vec<_>>().join(", "))
}

/// A field of the configuration: where a checked value ends up.
pub(super) trait Field: Sized {
    /// Takes a value of the kind that the table gives the field. A test holds the table to it.
    fn from_value(value: Value) -> Self;
    /// The value again, for printing.
    fn to_value(&self) -> Value;
}

macro_rules! number_field {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn from_value(value: Value) -> Self {
                match value {
                    Value::Number(number) => <$number>::try_from(number).expect("the range in the table fits the field"),
                    other => unreachable!("a number's row accepted {other:?}"),
                }
            }
            fn to_value(&self) -> Value {
                Value::Number(u64::try_from(*self).expect("no field is wider than 64 bits"))
            }
        }
    )*};
}
number_field!(u16, u32, u64, usize);

macro_rules! plain_field {
    ($($variant:ident($field:ty)),*) => {$(
        impl Field for $field {
            fn from_value(value: Value) -> Self {
                match value {
                    Value::$variant(inner) => inner,
                    other => unreachable!("a row of another kind accepted {other:?}"),
                }
            }
            fn to_value(&self) -> Value {
                Value::$variant(self.clone())
            }
        }
    )*};
}
plain_field!(
    Folder(PathBuf),
    File(Option<PathBuf>),
    Addresses(Vec<SocketAddr>),
    Names(Vec<String>),
    Text(String),
    Levels(LogLevels),
    Ratio(Ratio)
);

impl Field for LogFormat {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Choice(0) => LogFormat::Text,
            Value::Choice(1) => LogFormat::Json,
            other => unreachable!("the row of log_format accepted {other:?}"),
        }
    }

    fn to_value(&self) -> Value {
        Value::Choice(*self as usize)
    }
}

/// Fields whose values are words of a list, in the order of the list.
macro_rules! choice_field {
    ($($field:ty: $($choice:expr),*;)*) => {$(
        impl Field for $field {
            fn from_value(value: Value) -> Self {
                match value {
                    Value::Choice(index) => [$($choice),*][index],
                    other => unreachable!("a choice's row accepted {other:?}"),
                }
            }

            fn to_value(&self) -> Value {
                let choices = [$($choice),*];
                Value::Choice(choices.iter().position(|choice| choice == self).expect("every choice has a word"))
            }
        }
    )*};
}
choice_field! {
    VerifyClients: VerifyClients::Never, VerifyClients::Optional, VerifyClients::Required;
    LoginFrom: LoginFrom::DistinguishedName, LoginFrom::CommonName;
    HashAlgorithm: HashAlgorithm::Argon2id, HashAlgorithm::Sha256, HashAlgorithm::Sha512;
    Stamp: Stamp::None, Stamp::Fill, Stamp::Overwrite;
    Redeclaration: Redeclaration::Strict, Redeclaration::Relaxed;
    LeaderLocator: LeaderLocator::ClientLocal, LeaderLocator::Balanced;
    bool: false, true;
}

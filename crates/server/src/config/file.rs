//! Settings from a TOML file.
//!
//! Invariant: every key of the file is a setting, and every error names its line.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Origin, one_line, quoted};
use super::load::LISTED;
use super::settings::Key;
use super::suggest::nearest_setting;
use super::value::{Given, Value};

/// Largest configuration file. All settings with long comments are a tenth of it; more is the wrong
/// file.
pub const CONFIG_FILE_BYTES_MAX: u64 = 256 * 1024;

/// All settings in a file.
pub(super) fn read(path: &Path, said: &mut Vec<(Key, Value, Origin)>, errors: &mut Vec<ConfigError>) {
    match contents(path) {
        Ok(text) => parse(path, &text, said, errors),
        Err(reason) => errors.push(ConfigError::Unreadable { path: path.to_string_lossy().into_owned(), reason }),
    }
}

/// The text of a file of settings. Errors: why there is none.
pub(super) fn contents(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| reason(&error))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err("it is a folder".to_owned());
    }
    let mut text = String::new();
    match file.take(CONFIG_FILE_BYTES_MAX + 1).read_to_string(&mut text) {
        Ok(bytes) if bytes as u64 > CONFIG_FILE_BYTES_MAX => {
            Err(format!("it is larger than {} KiB", CONFIG_FILE_BYTES_MAX / 1024))
        }
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err("it is not UTF-8 text".to_owned()),
        Err(error) => Err(reason(&error)),
    }
}

/// What the system says, in words without its error number.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

fn parse(path: &Path, text: &str, said: &mut Vec<(Key, Value, Origin)>, errors: &mut Vec<ConfigError>) {
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let (line, column) = position(text, error.span().map_or(text.len(), |span| span.start));
            let reason = error.message().trim().replace('\n', ", ");
            errors.push(ConfigError::Syntax {
                path: path.to_string_lossy().into_owned(),
                line,
                column,
                reason: one_line(&reason),
            });
            return;
        }
    };
    let mut entries: Vec<_> = table.iter().collect();
    // The table is sorted by key; people read errors from the top of their file.
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let (line, _) = position(text, key.span().start);
        let origin = Origin::File { path: path.to_owned(), line };
        let name = key.get_ref().as_ref();
        let Some(key) = Key::named(name) else {
            errors.push(unknown(&origin, name, value.get_ref()));
            continue;
        };
        let setting = key.setting();
        let given = given(value.get_ref());
        match Value::check(setting.kind, &given) {
            Some(value) => said.push((key, value, origin)),
            None => errors.push(ConfigError::value(setting, &origin, given.shown())),
        }
    }
}

fn unknown(origin: &Origin, name: &str, value: &DeValue<'_>) -> ConfigError {
    // `listeners.tcp.default = 5672` parses as nested tables: follow a single road down, so that
    // the whole name can be looked up.
    let mut dotted = name.to_owned();
    let mut inner = value;
    while let Some((key, value)) =
        inner.as_table().filter(|table| table.len() == 1).and_then(|table| table.iter().next())
    {
        dotted = format!("{dotted}.{}", key.get_ref());
        inner = value.get_ref();
        if dotted.len() > super::error::NAME_BYTES_SHOWN_MAX {
            break;
        }
    }
    let advice = match (nearest_setting(&dotted), value.is_table()) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, true) => "settings stand at the top level of the file, without tables and dots".to_owned(),
        (None, false) => LISTED.to_owned(),
    };
    ConfigError::Unknown { place: origin.to_string(), name: one_line(&dotted), advice }
}

fn given(value: &DeValue<'_>) -> Given {
    match value {
        DeValue::String(text) => Given::Text(text.to_string()),
        // The parser has checked the digits and taken out the underscores.
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Given::Integer(number),
            Err(_) => Given::Other(number.as_str().to_owned()),
        },
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> =
                items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
            texts.map_or_else(|| Given::Other("a list of other things than texts".to_owned()), Given::List)
        }
        DeValue::Float(number) => Given::Other(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Given::Truth(*truth),
        DeValue::Datetime(time) => Given::Other(quoted(&time.to_string())),
        DeValue::Table(_) => Given::Other("a table".to_owned()),
    }
}

/// Line and column of a byte, both counted from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

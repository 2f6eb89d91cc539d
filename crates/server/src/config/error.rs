//! What can be wrong with a configuration, one line each: where it was said, which setting, what
//! was found, what to do.
//!
//! Invariant: every text names the key and stays on one line, whatever bytes the file or the
//! environment held.

use std::fmt;
use std::path::PathBuf;

use super::logins::masked_within;
use super::setting::Setting;
use super::settings::Key;
use super::traces::SECRET;

/// A quoted value is cut to this many characters, so that an error stays one readable line.
const QUOTED_CHARS_MAX: usize = 60;
/// What stands for the rest of it.
const CUT: char = '…';
/// A dotted name is put together up to this length; none of ours or of other brokers is half as
/// long.
pub(super) const NAME_BYTES_SHOWN_MAX: usize = 128;

/// Who said what a setting is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody: it is the default.
    Default,
    /// The configuration file.
    File {
        /// As it was given.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// The environment variable of the setting.
    Environment,
    /// The flag of the setting.
    Flag,
}

impl Origin {
    /// How the person wrote the setting's name there, after the place where that is not in the name
    /// itself.
    fn spelled(&self, setting: &Setting) -> String {
        match self {
            Origin::Default => format!("default of {}", setting.name),
            Origin::File { .. } => format!("{self}: {}", setting.name),
            Origin::Environment => super::environment::variable_name(setting),
            Origin::Flag => format!("--{}", setting.flag_name()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => out.write_str("default"),
            Origin::File { path, line } => write!(out, "{} line {line}", one_line(&path.to_string_lossy())),
            Origin::Environment => out.write_str("environment"),
            Origin::Flag => out.write_str("command line"),
        }
    }
}

/// One thing that is wrong. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {reason}; give a readable file with --config", one_line(path))]
    Unreadable {
        /// As it was given.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{} line {line} column {column}: not valid TOML: {reason}", one_line(path))]
    Syntax {
        /// As it was given.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
        /// What the parser said.
        reason: String,
    },
    /// A file in RabbitMQ's form is of no use.
    #[error("{path}: {reason}")]
    RabbitmqFile {
        /// As it was given.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A line of it is.
    #[error("{place}: {key}: {why}")]
    RabbitmqLine {
        /// The file and line.
        place: String,
        /// As it was written.
        key: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// No setting has this name.
    #[error("{place}: unknown setting {name}; {advice}")]
    Unknown {
        /// The file and line, or the environment.
        place: String,
        /// As it was written.
        name: String,
        /// The nearest name, or where all of them are listed.
        advice: String,
    },
    /// The value is not one that the setting may have.
    #[error("{spelled} = {found} is not allowed; it must be {allowed}")]
    Value {
        /// The setting as it was written, after its place.
        spelled: String,
        /// What was written.
        found: String,
        /// What would be right.
        allowed: String,
    },
    /// Two settings contradict each other.
    #[error("{spelled} = {found} is not allowed; {rule}")]
    Relation {
        /// The setting that was said later, as it was written.
        spelled: String,
        /// Its value.
        found: String,
        /// The relation, with the other's name and value.
        rule: String,
    },
}

impl ConfigError {
    pub(super) fn value(setting: &Setting, origin: &Origin, found: String) -> ConfigError {
        let found = match setting.key {
            Key::otel_headers => SECRET.to_owned(),
            // What is cut may have been cut in its login.
            key if key.is_address() && found.contains(CUT) => SECRET.to_owned(),
            key if key.is_address() => masked_within(&found),
            _ => found,
        };
        ConfigError::Value { spelled: origin.spelled(setting), found, allowed: setting.kind.allowed() }
    }

    pub(super) fn relation(setting: &Setting, origin: &Origin, found: String, rule: String) -> ConfigError {
        ConfigError::Relation { spelled: origin.spelled(setting), found, rule }
    }
}

/// A text as it may stand in a line: control characters escaped, cut when long.
pub(super) fn one_line(text: &str) -> String {
    let mut shown: String = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == QUOTED_CHARS_MAX {
            shown.push(CUT);
            break;
        }
        match character {
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// The same in quotes.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", one_line(text))
}

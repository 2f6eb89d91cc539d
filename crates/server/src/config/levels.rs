//! How much is logged, and in which form.
//!
//! Invariant: a [`LogLevels`] prints as the text that parses to it again.

use std::fmt;
use std::str::FromStr;

/// At most this many parts may have a level of their own: more is a pasted mistake.
pub const LOG_TARGETS_MAX: usize = 32;

/// How much is logged, from nothing to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing at all.
    Off,
    /// What a human must look at.
    Error,
    /// What is odd, but the node went on.
    Warn,
    /// Changes of state.
    Info,
    /// What a developer wants to know about one connection.
    Debug,
    /// What a developer wants to know about one message; slow.
    Trace,
}

impl Level {
    const ALL: [(Level, &'static str); 6] = [
        (Level::Off, "off"),
        (Level::Error, "error"),
        (Level::Warn, "warn"),
        (Level::Info, "info"),
        (Level::Debug, "debug"),
        (Level::Trace, "trace"),
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    fn parse(word: &str) -> Option<Level> {
        Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word)).map(|(level, _)| *level)
    }
}

/// A level for everything, and others for single targets (a crate, or a module as
/// `server::session`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevels {
    /// For all targets that `targets` does not name.
    pub everything: Level,
    /// Of single targets, in the order given.
    pub targets: Vec<(String, Level)>,
}

impl FromStr for LogLevels {
    type Err = ();

    fn from_str(text: &str) -> Result<LogLevels, ()> {
        let mut everything = None;
        let mut targets: Vec<(String, Level)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None if everything.is_none() => everything = Some(Level::parse(part).ok_or(())?),
                // Two levels for everything: one of them would be ignored.
                None => return Err(()),
                Some((target, level)) => {
                    let (target, level) = (target.trim(), Level::parse(level.trim()).ok_or(())?);
                    let is_name = !target.is_empty()
                        && target.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
                    if !is_name || targets.len() == LOG_TARGETS_MAX || targets.iter().any(|(known, _)| known == target)
                    {
                        return Err(());
                    }
                    targets.push((target.to_owned(), level));
                }
            }
        }
        Ok(LogLevels { everything: everything.unwrap_or(Level::Info), targets })
    }
}

impl fmt::Display for LogLevels {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.everything.name())?;
        for (target, level) in &self.targets {
            write!(out, ",{target}={}", level.name())?;
        }
        Ok(())
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: time, level, message, fields.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

impl LogFormat {
    pub(super) const NAMES: &'static [&'static str] = &["text", "json"];

    /// Its word.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

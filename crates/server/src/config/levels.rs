//! How much is logged, and in which form.
//!
//! Invariant: a [`LogLevels`] prints as the text that parses to it again.

use std::fmt;
use std::str::FromStr;

/// At most this many parts may have a level of their own: more is a pasted mistake.
pub const LOG_TARGETS_MAX: usize = 32;
/// What may have a level of its own: the crates that log, by name, and the lines on who changed what. A module of one is named behind it, as
/// `server::session`.
pub(super) const LOG_PARTS: [&str; 7] = ["audit", "leveret", "management", "node", "server", "session", "switch"];

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
                    let is_known = LOG_PARTS.contains(&target.split("::").next().unwrap_or(target))
                        && target.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
                    if !is_known || targets.len() == LOG_TARGETS_MAX || targets.iter().any(|(known, _)| known == target)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_nothing_logs_for_is_refused() {
        for text in ["info,server=debug", "warn,audit=info", "server::connection=trace", "session::session=off"] {
            let levels: LogLevels = text.parse().expect(text);
            assert_eq!(levels.to_string().parse(), Ok(levels), "{text}");
        }
        for text in
            ["info,sever=debug", "audit::=x", "info,=debug", "rabbit=info", "info,server=loud", "server:session=debug"]
        {
            assert!(text.parse::<LogLevels>().is_err(), "{text}");
        }
    }

    /// A crate that begins to log must be known here, or nobody could turn it down.
    #[test]
    fn every_crate_that_logs_is_a_part() {
        let mut logging = vec!["audit".to_owned()];
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the crates are readable") {
            let folder = entry.expect("a folder is readable").path();
            let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
            if manifest.lines().any(|line| line.starts_with("tracing.") || line.starts_with("tracing =")) {
                logging.push(folder.file_name().expect("a crate's folder has a name").to_string_lossy().into_owned());
            }
        }
        logging.sort();
        assert_eq!(logging, LOG_PARTS);
    }
}

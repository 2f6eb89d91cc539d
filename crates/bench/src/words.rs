//! The words of the tools beside a plain run: `report`, `scenario`, `durability`. A few options
//! each, checked against a list.
//!
//! Invariant: an option that is not in the tool's list is an error that names it.

use std::collections::BTreeMap;

use crate::Error;
use crate::options::units::Counted;
use crate::uri::without_passwords;

/// One option of a tool: its name, what follows it (nothing for a flag), and a line of help.
pub type Known = (&'static str, &'static str, &'static str);

/// Options about the broker under test, which all tools hand on to their runs.
pub const ABOUT_BROKER: &[Known] = &[
    ("uri", "URI", "broker (default amqp://localhost, or one that is started)"),
    ("uris", "URI,…", "brokers of a cluster"),
    ("use-default-ssl-context", "", "over amqps:// believe whom this machine believes (default: anybody)"),
    ("tls-ca", "FILE", "over amqps:// believe these authorities, PEM"),
    ("tls-certificate", "FILE", "client certificate to show over amqps://, PEM"),
    ("tls-key", "FILE", "its key, PEM"),
    ("server-name-indication", "NAME", "name to ask for over amqps://, and to verify"),
    ("sasl-external", "", "log in by certificate, over amqps://"),
    ("broker-pid", "PID,…", "processes of the broker, when they are not found by its port"),
    ("broker", "COMMAND", "start this broker and stop it after; {port} and {dir} are filled in"),
    ("nodes", "N", "start so many nodes of it as one cluster"),
    ("limit-cpu", "CORES", "start the broker in a cgroup with so many cores"),
    ("limit-memory", "BYTES", "start the broker in a cgroup with so much memory, such as 512M"),
];

/// Options about what is written, which all tools have.
pub const ABOUT_OUTPUT: &[Known] = &[
    ("id", "NAME", "name of the runs, for the report"),
    ("json", "FILE", "JSON lines of all runs"),
    ("html", "FILE", "one report with charts"),
    ("md", "FILE", "the comparing table in Markdown"),
    ("plain", "", "lines instead of the live view"),
];

/// A tool's words, read.
#[derive(Debug, Default)]
pub struct Words {
    options: BTreeMap<&'static str, String>,
    /// The command line, as it may be shown.
    pub command: String,
    /// What is no option.
    pub rest: Vec<String>,
}

impl Words {
    /// Reads the words of `tool`.
    pub fn read(tool: &str, words: &[String], known: &[&[Known]]) -> Result<Words, Error> {
        let command = format!("leveret bench {tool} {}", without_passwords(words));
        let mut read = Words { command, ..Words::default() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(text) = word.strip_prefix("--") else {
                if word.starts_with('-') {
                    return Err(unknown(tool, word));
                }
                read.rest.push(word.clone());
                continue;
            };
            let (name, attached) =
                text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
            let found = known.iter().flat_map(|list| list.iter()).find(|option| option.0 == name);
            let (name, takes, _) = found.ok_or_else(|| unknown(tool, &format!("--{name}")))?;
            let value = match (takes.is_empty(), attached) {
                (true, None) => String::new(),
                (true, Some(value)) => return Err(Error::usage(format!("--{name} takes no value, {value:?} is one"))),
                (false, Some(value)) => value,
                (false, None) => {
                    words.next().cloned().ok_or_else(|| Error::usage(format!("--{name} needs a value")))?
                }
            };
            if read.options.insert(name, value).is_some() {
                return Err(Error::usage(format!("--{name} was given twice")));
            }
        }
        Ok(read)
    }

    /// The text of an option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Whether a flag is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// A number within bounds.
    pub fn number(&self, name: &str, default: f64, at_least: f64, at_most: f64) -> Result<f64, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        match Counted::of(name).number(text) {
            Some(number) if number >= at_least && number <= at_most => Ok(number),
            _ => Err(Error::usage(format!("--{name} {text}: a number from {at_least} to {at_most} is expected"))),
        }
    }

    /// A whole number within bounds.
    pub fn whole(&self, name: &str, default: u64, at_least: u64, at_most: u64) -> Result<u64, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = Counted::of(name).number(text).filter(|number| number.fract() == 0.0);
        match number.map(|number| number as u64) {
            Some(number) if number >= at_least && number <= at_most => Ok(number),
            _ => Err(Error::usage(format!("--{name} {text}: a whole number from {at_least} to {at_most} is expected"))),
        }
    }

    /// Those options that are a run's own, as words for it.
    pub fn handed_on(&self) -> Vec<String> {
        let given = ABOUT_BROKER.iter().filter_map(|(name, takes, _)| {
            let value = self.text(name)?.to_owned();
            let words = [format!("--{name}"), value];
            Some(words.into_iter().take(if takes.is_empty() { 1 } else { 2 }))
        });
        given.flatten().collect()
    }
}

fn unknown(tool: &str, name: &str) -> Error {
    Error::usage(format!("unknown option {name}; leveret bench {tool} --help lists all"))
}

/// Help for a tool's options.
pub fn help(lists: &[&[Known]]) -> String {
    let left = |(name, takes, _): &Known| format!("  --{name} {takes}");
    let all = || lists.iter().flat_map(|list| list.iter());
    let width = all().map(|option| left(option).chars().count() + 2).max().unwrap_or(0);
    all().map(|option| format!("{:<width$}{}\n", left(option), option.2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Words, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Words::read("scenario", &words, &[ABOUT_BROKER, ABOUT_OUTPUT]).map_err(|error| error.to_string())
    }

    #[test]
    fn no_option_runs_into_its_help() {
        for line in help(&[ABOUT_BROKER, ABOUT_OUTPUT]).lines() {
            let (left, right) = line.trim_start().split_once("  ").expect("two blanks part the columns");
            assert!(left.starts_with("--") && !right.trim_start().is_empty(), "{line}");
        }
    }

    #[test]
    fn a_part_of_a_number_is_not_left_out_in_silence() {
        let read = |text: &str| Words { options: [("cap", text.to_owned())].into(), ..Words::default() };
        assert_eq!(read("7").whole("cap", 1, 1, 9).expect("it is whole"), 7);
        let told = read("1.7").whole("cap", 1, 1, 9).expect_err("it is not").to_string();
        assert_eq!(told, "--cap 1.7: a whole number from 1 to 9 is expected");
        assert_eq!(Words::default().whole("cap", 5, 1, 9).expect("the default"), 5);
    }

    #[test]
    fn what_is_not_listed_is_named() {
        let words = read("s1 --uri amqps://h --sasl-external --tls-ca f").expect("all are known");
        assert_eq!(words.handed_on(), ["--uri", "amqps://h", "--tls-ca", "f", "--sasl-external"]);
        let words = read("s1 --uri amqp://h --plain").expect("all are known");
        assert_eq!((&words.rest[..], words.is_set("plain")), (&["s1".to_owned()][..], true));
        assert_eq!(words.command, "leveret bench scenario s1 --uri amqp://h --plain");
        assert_eq!(words.handed_on(), ["--uri", "amqp://h"]);
        assert!(read("--rate 5").expect_err("not of this tool").contains("unknown option --rate"));
        assert!(read("--uri").expect_err("no value").contains("--uri needs a value"));
        assert!(read("--uri a --uri b").expect_err("twice").contains("twice"));
    }
}

//! Words of a command line, read against the options that a tool knows.
//!
//! Invariant: an option that the tool does not know is an error that names it, and so is a value that is
//! missing, or one too many.

use std::collections::BTreeMap;

use crate::Error;
use crate::options::table::{self, Spec, Takes, by_long, nearest};
use crate::options::units::Counted;
use crate::uri::without_passwords;

/// Options about the broker under test, which all tools hand on to their runs.
const ABOUT_BROKER: &str = "uri uris use-default-ssl-context tls-ca tls-certificate tls-key server-name-indication \
                            sasl-external broker-pid broker nodes limit-cpu limit-memory";

/// Options about what is written and seen, which all tools that make runs have.
const ABOUT_OUTPUT: &str = "id json html live plain";

/// The table is of several runs, so that one run has none.
const MARKDOWN: Spec = Spec::value("md", "FILE", "the comparing table in Markdown");

/// A tool beside a plain run: its name, what stands behind that, and the options that it has beside those
/// that all have which make runs.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What stands behind its name.
    pub usage: &'static str,
    /// Its own options.
    pub own: &'static [Spec],
    /// Whether it makes runs.
    pub makes_runs: bool,
}

impl Tool {
    fn known(&self) -> Vec<&'static Spec> {
        let of_runs = ABOUT_BROKER.split(' ').chain(ABOUT_OUTPUT.split(' ')).filter_map(by_long).chain([&MARKDOWN]);
        self.own.iter().chain(of_runs.filter(|_| self.makes_runs)).collect()
    }

    /// Its help, with `more` before its options.
    pub fn help(&self, more: &str) -> String {
        let options = table::lines(self.known().into_iter());
        format!("Usage: leveret bench {} {}\n\n{more}{options}", self.name, self.usage)
    }

    /// Reads its words.
    pub fn read(&self, words: &[String]) -> Result<Given, Error> {
        Given::read(self.name, words, self.known())
    }
}

/// Options as they were given, by long name.
#[derive(Debug, Default)]
pub struct Given {
    values: BTreeMap<&'static str, Vec<String>>,
    known: Vec<&'static Spec>,
    /// The command line, as it may be shown.
    pub command: String,
    /// What is no option.
    pub rest: Vec<String>,
}

impl Given {
    /// Reads the words of a plain run, which has nothing but options.
    pub fn of_run(words: &[String]) -> Result<Given, Error> {
        Given::read("", words, table::all().collect())
    }

    fn read(tool: &str, words: &[String], known: Vec<&'static Spec>) -> Result<Given, Error> {
        let command = format!("leveret bench {tool} {}", without_passwords(words));
        let mut given = Given { known, command, ..Given::default() };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if !tool.is_empty() && !word.starts_with('-') {
                given.rest.push(word.clone());
                continue;
            }
            let (spec, mut attached) = given.find(tool, word)?;
            let name = spec.long;
            let takes_value = match spec.takes {
                Takes::Refused => return Err(Error::usage(format!("--{name} is refused: {}", spec.help))),
                Takes::Flag => false,
                Takes::Value(_) | Takes::Values(_) => true,
            };
            if takes_value && attached.is_none() {
                attached = rest.next().cloned();
            }
            let values = given.values.entry(name).or_default();
            match (takes_value, attached) {
                (true, None) => return Err(Error::usage(format!("--{name} needs a value"))),
                (false, Some(value)) => {
                    return Err(Error::usage(format!("--{name} takes no value, {value:?} is one")));
                }
                (true, Some(_)) if !values.is_empty() && matches!(spec.takes, Takes::Value(_)) => {
                    return Err(Error::usage(format!("--{name} was given twice")));
                }
                (_, value) => values.push(value.unwrap_or_default()),
            }
        }
        Ok(given)
    }

    /// The option that a word names, and the value that is attached to it.
    fn find(&self, tool: &str, word: &str) -> Result<(&'static Spec, Option<String>), Error> {
        let (bare, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value.to_owned())));
        let name = bare.trim_start_matches('-');
        let by = |is_it: &dyn Fn(&Spec) -> bool| self.known.iter().copied().find(|spec| is_it(spec));
        let long = || by(&|spec| spec.long == name);
        let short = |name: &str| by(&|spec| spec.short == name).filter(|_| !name.is_empty());
        let found = match (bare.starts_with("--"), bare.starts_with('-') && !name.is_empty()) {
            (true, _) => long(),
            (false, true) => short(name).or_else(long),
            (false, false) => return Err(Error::usage(format!("{word:?} is not an option; --help lists all"))),
        };
        if let Some(spec) = found {
            return Ok((spec, value));
        }
        // -x2: one letter and its value.
        let text = &word[1..];
        let at = text.chars().next().map_or(0, char::len_utf8);
        if text[at..].starts_with(|c: char| c.is_ascii_digit())
            && let Some(spec) = short(&text[..at]).filter(|spec| spec.takes != Takes::Flag)
        {
            return Ok((spec, Some(text[at..].to_owned())));
        }
        Err(Error::usage(match nearest(&self.known, name) {
            Some(near) => format!("unknown option {bare}; did you mean --{near}?"),
            None => format!("unknown option {bare}; {} --help lists all", format!("leveret bench {tool}").trim_end()),
        }))
    }

    /// Whether there is such an option.
    pub fn knows(&self, name: &str) -> bool {
        self.known.iter().any(|spec| spec.long == name)
    }

    /// Whether it was given.
    pub fn is_set(&self, name: &str) -> bool {
        !self.texts(name).is_empty()
    }

    /// The text of an option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts(name).first().map(String::as_str)
    }

    /// The same of one that may be given several times. Asking for what nobody knows is a mistake here.
    pub fn texts(&self, name: &str) -> &[String] {
        assert!(self.knows(name), "{name} is in the table");
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// The same as an owned text.
    pub fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// A number within bounds.
    pub fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
        &self,
        name: &str,
        default: T,
        at_least: T,
        at_most: T,
    ) -> Result<T, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        match text.parse::<T>() {
            Ok(number) if number >= at_least && number <= at_most => Ok(number),
            _ => Err(Error::usage(format!("--{name} {text}: a number from {at_least} to {at_most} is expected"))),
        }
    }

    /// A number within bounds, which may have a unit.
    pub fn counted(&self, name: &str, default: f64, at_least: f64, at_most: f64) -> Result<f64, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        match Counted::of(name).number(text) {
            Some(number) if number >= at_least && number <= at_most => Ok(number),
            _ => Err(Error::usage(format!("--{name} {text}: a number from {at_least} to {at_most} is expected"))),
        }
    }

    /// A whole number within bounds, which may have a unit.
    pub fn whole(&self, name: &str, default: u64, at_least: u64, at_most: u64) -> Result<u64, Error> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = Counted::of(name).number(text).filter(|number| number.fract() == 0.0);
        match number.map(|number| number as u64) {
            Some(number) if number >= at_least && number <= at_most => Ok(number),
            _ => Err(Error::usage(format!("--{name} {text}: a whole number from {at_least} to {at_most} is expected"))),
        }
    }

    /// True or false.
    pub fn bool(&self, name: &str, default: bool) -> Result<bool, Error> {
        match self.text(name) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(text) => Err(Error::usage(format!("--{name} {text}: true or false is expected"))),
        }
    }

    /// The options about the broker that were given.
    pub fn about_broker(&self) -> impl Iterator<Item = &'static str> {
        ABOUT_BROKER.split(' ').filter(|name| self.is_set(name))
    }

    /// Words for a run: the options about the broker, and those of a line.
    pub fn handed_on(&self, line: &str) -> Vec<String> {
        let given = self.about_broker().flat_map(|name| {
            let value = self.owned(name).filter(|value| !value.is_empty());
            [format!("--{name}")].into_iter().chain(value)
        });
        given.chain(words_of(line)).collect()
    }
}

/// The words of a line that has no quotes.
pub fn words_of(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: Tool =
        Tool { name: "scenario", usage: "NAME", own: &[Spec::value("cap", "N", "how many at most")], makes_runs: true };

    fn read(line: &str) -> Result<Given, String> {
        TOOL.read(&words_of(line)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_part_of_a_number_is_not_left_out_in_silence() {
        let cap =
            |line: &str| read(line).expect("it is known").whole("cap", 5, 1, 9).map_err(|error| error.to_string());
        assert_eq!((cap("--cap 7"), cap("")), (Ok(7), Ok(5)));
        assert_eq!(cap("--cap 1.7"), Err("--cap 1.7: a whole number from 1 to 9 is expected".to_owned()));
    }

    #[test]
    fn what_is_not_listed_is_named() {
        let words = read("s1 --uri amqps://h --sasl-external --tls-ca f").expect("all are known");
        assert_eq!(words.handed_on("-z 5"), ["--uri", "amqps://h", "--tls-ca", "f", "--sasl-external", "-z", "5"]);
        let words = read("s1 --uri amqp://h --plain").expect("all are known");
        assert_eq!((&words.rest[..], words.is_set("plain")), (&["s1".to_owned()][..], true));
        assert_eq!(words.command, "leveret bench scenario s1 --uri amqp://h --plain");
        assert_eq!(words.handed_on(""), ["--uri", "amqp://h"]);
        for (line, told) in [
            ("--rate 5", "unknown option --rate; leveret bench scenario --help lists all"),
            ("-x 2", "unknown option -x; leveret bench scenario --help lists all"),
            ("--ur a", "unknown option --ur; did you mean --uri?"),
            ("--uri", "--uri needs a value"),
            ("--uri a --uri b", "--uri was given twice"),
        ] {
            assert_eq!(read(line).expect_err(line), told);
        }
        assert!(
            TOOL.help("").contains("  --cap N                                   how many at most\n"),
            "{}",
            TOOL.help("")
        );
    }
    #[test]
    fn every_name_that_a_tool_lists_is_taken_as_a_plain_run_takes_it() {
        let words = read("s1 -h amqp://h -d mine -sni h.example -se").expect("PerfTest's letters are known");
        assert_eq!((words.text("uri"), words.text("id")), (Some("amqp://h"), Some("mine")));
        let handed = ["--uri", "amqp://h", "--server-name-indication", "h.example", "--sasl-external"];
        assert_eq!(words.handed_on(""), handed);
        let known = TOOL.known();
        for spec in known.iter().filter(|spec| !spec.short.is_empty()) {
            let value = if spec.takes == Takes::Flag { "" } else { " 1" };
            let words = read(&format!("-{}{value}", spec.short)).expect(spec.short);
            assert!(words.is_set(spec.long) && TOOL.help("").contains(&format!("-{}, --{}", spec.short, spec.long)));
        }
        assert!(known.iter().filter(|spec| !spec.short.is_empty()).count() >= 6, "the letters of the broker's options");
    }
}

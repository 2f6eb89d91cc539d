//! The file of a scenario: numbers that options set, and runs with those filled in.
//!
//! Invariant: every line is read as a run before anything is started.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::own;
use crate::Error;
use crate::fill::{Values, filled, number, text_of};
use crate::options::{self, Options};
use crate::words::Given;

/// What a file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// What it is, for the list and as heading of the page.
    pub(super) about: String,
    /// Numbers by name. One that is called as an option is set by it.
    #[serde(default)]
    values: BTreeMap<String, Number>,
    /// Words by name, for each --kind; without that, those of `quorum`.
    #[serde(default)]
    kinds: BTreeMap<String, Values>,
    /// Words for {name} when the option of this name is given, with {given} for what was given.
    #[serde(default)]
    when: BTreeMap<String, String>,
    #[serde(rename = "run")]
    runs: Vec<Run>,
}

/// A number that a line is filled with.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    /// When it is not given. Without this it is there only when it is given.
    short: Option<u64>,
    /// When it is not given, with --full.
    full: Option<u64>,
    least: Option<u64>,
    most: Option<u64>,
    /// It must be so many times a whole number.
    multiple_of: Option<u64>,
}

/// A run, or one for each of several sets of values.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    label: String,
    /// What stands behind `leveret bench`. A line with --limit-cpu or --limit-memory has a broker
    /// of its own in that box.
    bench: String,
    /// Values by name, a run for each.
    #[serde(default)]
    each: Vec<BTreeMap<String, toml::Value>>,
    /// After those the multiples of this as `rate`, to the number that `up_to` names.
    by: Option<f64>,
    /// Runs whose `rate` is above the number of this name are left out.
    up_to: Option<String>,
    /// After so many misses in a row the higher ones are left out.
    misses_max: Option<u32>,
    /// What the run before confirmed must be received.
    #[serde(default)]
    takes_all: bool,
    /// Publishers must reach the rate.
    #[serde(default)]
    sends_all: bool,
    /// Seconds after which a broker is killed.
    kill_after: Option<String>,
    /// A run before it on the same broker, which is no part of the measurement.
    before: Option<Before>,
    /// Messages that lie in the queue then, and half of which are to lie there at the end.
    stands: Option<u64>,
    /// What somebody else held, messages a second.
    beside: Option<Beside>,
}

/// A run that prepares another one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Before {
    pub(super) label: String,
    pub(super) bench: String,
}

/// A figure to compare with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Beside {
    /// Whose.
    pub(super) who: String,
    /// Name of the value that has it.
    pub(super) held: String,
    /// Leveret is to hold so many times that.
    pub(super) times: f64,
}

/// One run that is to be made.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) label: String,
    /// Its line. {held} is still to be filled in.
    pub(super) bench: String,
    pub(super) options: Options,
    pub(super) has_own_broker: bool,
    pub(super) misses_max: Option<u32>,
    pub(super) takes_all: bool,
    pub(super) sends_all: bool,
    pub(super) kill_after: Option<Duration>,
    pub(super) before: Option<Before>,
    pub(super) stands: Option<u64>,
    pub(super) beside: Option<(Beside, f64)>,
}

/// What {held} is filled with where the first run of the scenario was not made: messages a second.
pub(super) const HELD_DEFAULT: f64 = 10_000.0;

/// Options that start a broker.
const BROKER: [&str; 4] = ["broker", "nodes", "limit-cpu", "limit-memory"];

impl File {
    /// Whether it has other lengths with --full.
    pub(super) fn has_full(&self) -> bool {
        self.values.values().any(|number| number.full.is_some())
    }

    /// Whether it reads this option.
    pub(super) fn reads(&self, option: &str) -> bool {
        match option {
            "full" => self.has_full(),
            "kind" => !self.kinds.is_empty(),
            "kill-command" => self.runs.iter().any(|run| run.kill_after.is_some()),
            other => self.values.contains_key(other) || self.when.contains_key(other),
        }
    }

    /// The values of all its names.
    pub(super) fn values(&self, name: &str, words: &Given) -> Result<Values, Error> {
        if let Some(other) = own().find(|option| words.is_set(option) && !self.reads(option)) {
            let reads: Vec<String> =
                own().filter(|option| self.reads(option)).map(|option| format!("--{option}")).collect();
            return Err(Error::usage(format!("--{other} means nothing to {name}, which has {}", reads.join(", "))));
        }
        let starts = BROKER.iter().any(|option| words.is_set(option));
        match (self.reads("kill-command"), words.is_set("kill-command"), starts) {
            (true, true, true) => {
                return Err(Error::usage(
                    "--broker and --kill-command contradict each other: a broker that is started here is killed and \
                     started again here",
                ));
            }
            (true, false, false) => {
                return Err(Error::usage(format!(
                    "{name} needs --kill-command (what kills one of the cluster) or --broker (one to start, kill and \
                     start again)"
                )));
            }
            _ => {}
        }
        let mut values = Values::new();
        for (name, number) in &self.values {
            values.extend(number.given(name, words)?.map(|number| (name.clone(), number.to_string())));
        }
        if !self.kinds.is_empty() {
            let kind = words.text("kind").unwrap_or("quorum");
            let of_kind = self.kinds.get(kind).ok_or_else(|| {
                let known: Vec<&str> = self.kinds.keys().map(String::as_str).collect();
                Error::usage(format!("--kind {kind}: {} is expected", known.join(" or ")))
            })?;
            values.extend(of_kind.clone());
        }
        for (name, text) in &self.when {
            let given = words.knows(name).then(|| words.text(name)).flatten();
            let given = given.map_or(String::new(), |given| text.replace("{given}", given));
            values.insert(name.clone(), given);
        }
        Ok(values)
    }

    /// All its runs.
    pub(super) fn planned(&self, words: &Given, values: &Values) -> Result<Vec<Planned>, String> {
        let mut planned = Vec::new();
        if self.runs.iter().any(Run::has_own_broker)
            && let Some(name) = words.about_broker().find(|name| *name != "broker")
        {
            return Err(format!("--{name} means nothing here: the runs make their boxes and start a broker in each"));
        }
        for run in &self.runs {
            for values in run.cells(values)? {
                planned.push(run.planned(words, &values)?);
            }
        }
        if planned.is_empty() { Err("there is nothing to run".to_owned()) } else { Ok(planned) }
    }
}

impl Number {
    fn given(&self, name: &str, words: &Given) -> Result<Option<u64>, Error> {
        let full = self.full.filter(|_| words.is_set("full"));
        if full.is_some() && name == "seconds" && words.is_set(name) {
            let told = "--full and --seconds contradict each other: --full is the article's lengths";
            return Err(Error::usage(told));
        }
        let default = full.or(self.short);
        if !words.knows(name) || (default.is_none() && !words.is_set(name)) {
            return Ok(default);
        }
        let most = self.most.unwrap_or(10_000_000_000);
        let value = words.whole(name, default.unwrap_or(0), self.least.unwrap_or(1), most)?;
        match self.multiple_of {
            Some(of) if !value.is_multiple_of(of) => {
                Err(Error::usage(format!("--{name} {value}: a multiple of {of} is expected")))
            }
            _ => Ok(Some(value)),
        }
    }
}

impl Run {
    /// Whether its line starts a broker, or makes a box for one.
    fn has_own_broker(&self) -> bool {
        let mut names = self.bench.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        names.any(|name| BROKER.contains(&name.split_once('=').map_or(name, |(name, _)| name)))
    }

    /// The values of each of its runs.
    fn cells(&self, of_file: &Values) -> Result<Vec<Values>, String> {
        let with = |each: &BTreeMap<String, toml::Value>| {
            let own = each.iter().map(|(name, value)| (name.clone(), text_of(value)));
            of_file.clone().into_iter().chain(own).collect::<Values>()
        };
        let mut cells: Vec<Values> = self.each.iter().map(with).collect();
        if self.each.is_empty() {
            cells.push(of_file.clone());
        }
        let Some(most) = &self.up_to else { return Ok(cells) };
        let most = number(most, of_file)?;
        if let (Some(by), Some(last)) = (self.by.filter(|by| *by >= 1.0), cells.last().cloned()) {
            let mut rate = ((number("rate", &last)? / by).floor() + 1.0) * by;
            while rate <= most {
                cells.push(last.clone().into_iter().chain([("rate".to_owned(), rate.to_string())]).collect());
                rate += by;
            }
        }
        let mut kept = Vec::new();
        for cell in cells {
            if number("rate", &cell)? <= most {
                kept.push(cell);
            }
        }
        Ok(kept)
    }

    fn planned(&self, words: &Given, values: &Values) -> Result<Planned, String> {
        let bench = filled(&self.bench, values)?.split_whitespace().collect::<Vec<_>>().join(" ");
        let options = run_of(words, &bench.replace("{held}", &HELD_DEFAULT.to_string()))?;
        let before = self.before.clone().map(|mut before| {
            before.bench = filled(&before.bench, values)?;
            run_of(words, &before.bench).map(|_| before)
        });
        let seconds = |after: &String| {
            let seconds = number(after, values)?;
            Duration::try_from_secs_f64(seconds).map_err(|why| format!("kill_after = {seconds}: {why}"))
        };
        let beside = self.beside.clone().map(|beside| Ok((number(&beside.held, values)?, beside)));
        let beside: Result<Option<(f64, Beside)>, String> = beside.transpose();
        Ok(Planned {
            label: filled(&self.label, values)?,
            has_own_broker: self.has_own_broker(),
            bench,
            options,
            misses_max: self.misses_max,
            takes_all: self.takes_all,
            sends_all: self.sends_all,
            kill_after: self.kill_after.as_ref().map(seconds).transpose()?,
            before: before.transpose()?,
            stands: self.stands,
            beside: beside?.map(|(held, beside)| (beside, held)),
        })
    }
}

/// The options of a line, with those about the broker.
pub(super) fn run_of(words: &Given, line: &str) -> Result<Options, String> {
    options::run_of(&words.handed_on(line)).map_err(|why| format!("{why} in: {line}"))
}

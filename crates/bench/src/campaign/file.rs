//! The file of a campaign: its brokers, and its parts with the values that they are run for.
//!
//! Invariant: what is wrong with a file is said before anything is started.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;

use super::Made;
use crate::Error;
use crate::fill::{Values, filled, names, text_of};
use crate::options::{NODES_MAX, run_of};
use crate::words::words_of;

/// What a file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Campaign {
    /// Heading of the page.
    pub(super) title: String,
    /// What it is about, for the page.
    #[serde(default)]
    pub(super) about: String,
    /// Seconds of a run, for {seconds} in a line; `--seconds` gives others.
    pub(super) seconds: Option<u64>,
    /// When a broker is started anew.
    #[serde(default)]
    pub(super) restart: Restart,
    /// How many times as long the runs are as the file says.
    #[serde(skip)]
    stretch: f64,
    /// Who is measured.
    #[serde(rename = "broker")]
    pub(super) brokers: Vec<Broker>,
    /// With what.
    #[serde(rename = "part")]
    pub(super) parts: Vec<Part>,
}

/// When a broker with a command that starts it is started anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Restart {
    /// For each run.
    #[default]
    Run,
    /// For all values of a part, which then follow one another; and behind a run that may have left
    /// something to the next one.
    Part,
}

/// A broker. Without any command it is this program's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Broker {
    /// Its name on the page.
    pub(super) name: String,
    /// A command that is the broker until it is ended; {port} and {dir} are filled in.
    pub(super) command: Option<String>,
    /// How many nodes of it are one broker; {peers}, {peer}, {secret} and {index} are filled in too.
    pub(super) nodes: Option<u16>,
    /// A command that has started it when it ends, instead of that.
    pub(super) start: Option<String>,
    /// The command that stops it, and says nothing against it when it does not run.
    pub(super) stop: Option<String>,
    /// Where it listens then; several, with commas between them, are nodes of one cluster.
    pub(super) uri: Option<String>,
    /// A command that prints its version.
    pub(super) version: Option<String>,
}

impl Broker {
    /// What starts it.
    pub(super) fn told(&self) -> String {
        let command = self.command.as_ref().or(self.start.as_ref());
        let command = command.map_or("leveret server, of this build", String::as_str);
        match self.nodes {
            Some(nodes) => format!("{nodes} nodes, each: {command}"),
            None => command.to_owned(),
        }
    }
}

/// A part: a line, and what is filled into it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// Heading on the page.
    pub(super) name: String,
    /// What it shows.
    #[serde(default)]
    pub(super) about: String,
    /// What stands behind `leveret bench`, with {names} and {sums} of the values.
    pub(super) bench: String,
    /// What tells its runs apart on the page, with {names} and {sums} too; without it, the name and
    /// the value of what differs.
    pub(super) label: Option<String>,
    /// Values by name. Every one is run with every one of the others.
    #[serde(default)]
    pub(super) with: BTreeMap<String, Vec<toml::Value>>,
    /// The brokers that it is run on; all of them when absent.
    pub(super) brokers: Option<Vec<String>>,
    /// Seconds of a run whose line has no --time, about; with the file's own `seconds`.
    pub(super) takes_s: Option<f64>,
}

/// One run that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Planned {
    /// Its part with its values.
    pub(super) scenario: String,
    /// Number of the part with these values, among all.
    pub(super) cell: usize,
    /// Number of its part.
    pub(super) part: usize,
    /// Number of its broker.
    pub(super) broker: usize,
    /// Whether a command starts its broker before it, as far as can be foreseen.
    pub(super) is_first: bool,
    /// Its line, and the words of it.
    pub(super) bench: String,
    pub(super) words: Vec<String>,
    /// Name of its file.
    pub(super) file: String,
    /// Seconds that it takes.
    pub(super) takes_s: f64,
    /// What makes it the same run as one that is done.
    pub(super) made: Made,
}

impl Planned {
    /// The part with its values, and the broker.
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.scenario, self.made.broker)
    }
}

impl Campaign {
    /// Reads a file, with only some of its brokers if they are named, and with other lengths if
    /// `seconds` are given.
    pub(super) fn read(text: &str, only: Option<&[&str]>, seconds: Option<u64>) -> Result<Campaign, String> {
        let mut campaign: Campaign = toml::from_str(text).map_err(|why| why.to_string())?;
        campaign.stretch = 1.0;
        if let Some(seconds) = seconds {
            let own = campaign
                .seconds
                .ok_or("it has no `seconds`, so --seconds changes nothing: write {seconds} in its lines")?;
            campaign.stretch = seconds as f64 / own.max(1) as f64;
            campaign.seconds = Some(seconds);
        }
        for broker in &campaign.brokers {
            let name = &broker.name;
            if broker.nodes.is_some_and(|nodes| !(1..=NODES_MAX).contains(&nodes))
                || broker.nodes.is_some() && broker.start.is_some()
            {
                return Err(format!(
                    "broker {name}: `nodes` is from 1 to {NODES_MAX}, and for brokers that are started by `command`"
                ));
            }
            match (&broker.command, &broker.start, &broker.stop, &broker.uri) {
                (None, None, None, None) => continue,
                (Some(command), None, None, None) if command.contains("{port}") => {}
                (Some(_), None, None, None) => {
                    return Err(format!(
                        "broker {name}: its command has no {{port}}, and must listen where it is told"
                    ));
                }
                (None, Some(_), Some(_), Some(_)) => {}
                _ => {
                    return Err(format!(
                        "broker {name}: give `command` (the broker itself), or `start`, `stop` and `uri`, or none of them \
                         for this program's own"
                    ));
                }
            }
            if broker.version.is_none() {
                return Err(format!(
                    "broker {name}: give `version`, a command that prints its version: what was measured with another \
                     one is measured again"
                ));
            }
        }
        // What a part names is looked up among all of them first.
        campaign.parts.iter().try_for_each(|part| part.numbers(&campaign.brokers).map(drop))?;
        if let Some(only) = only {
            if let Some(name) = only.iter().find(|name| campaign.brokers.iter().all(|broker| broker.name != **name)) {
                return Err(format!("no broker is called {name}"));
            }
            let is_meant = |name: &str| only.contains(&name);
            campaign.brokers.retain(|broker| is_meant(&broker.name));
            campaign.parts.iter_mut().flat_map(|part| &mut part.brokers).for_each(|names| {
                names.retain(|name| is_meant(name));
            });
        }
        Ok(campaign)
    }

    /// The version of each broker; `own` is that of this program.
    pub(super) fn versions(&self, own: &str) -> Result<Vec<String>, Error> {
        let version = |broker: &Broker| {
            let Some(command) = &broker.version else { return Ok(own.to_owned()) };
            let what = || format!("the version of {} ({command})", broker.name);
            let output = Command::new("sh").args(["-c", command]).output();
            let output = output.map_err(|why| Error::machine(what(), why))?;
            let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            match output.status.success() && !text.is_empty() {
                true => Ok(text),
                false => Err(Error::machine(what(), String::from_utf8_lossy(&output.stderr).trim())),
            }
        };
        self.brokers.iter().map(version).collect()
    }

    /// All runs, in the order in which they are made: brokers in turn, another one first each time.
    pub(super) fn planned(&self, versions: &[String], tool: &str) -> Result<Vec<Planned>, String> {
        let (mut planned, mut files, mut turn, mut before) = (Vec::new(), BTreeSet::new(), 0, 0);
        for (number, part) in self.parts.iter().enumerate() {
            let (brokers, cells) = (part.numbers(&self.brokers)?, part.cells()?);
            // What follows one another: the brokers of a cell, or the cells of a broker.
            let turns: Vec<Vec<usize>> = match self.restart {
                Restart::Run => (0..cells.len()).map(|cell| vec![cell]).collect(),
                Restart::Part => vec![(0..cells.len()).collect()],
            };
            for cells_of_turn in turns {
                let mut order = brokers.clone();
                order.rotate_left(turn % brokers.len().max(1));
                turn += 1;
                for (broker, &cell) in
                    order.iter().flat_map(|broker| cells_of_turn.iter().map(move |cell| (*broker, cell)))
                {
                    let of = (before + cell, broker, &self.brokers[broker]);
                    let run = part.run(&cells[cell], (self.seconds, self.stretch), of, (&versions[broker], tool))?;
                    if !files.insert(run.file.clone()) {
                        return Err(format!("{} is there twice: give its part another name", run.title()));
                    }
                    let is_first = self.brokers[broker].start.is_some() && cell == cells_of_turn[0];
                    planned.push(Planned { part: number, is_first, ..run });
                }
            }
            before += cells.len();
        }
        if planned.is_empty() { Err("there is nothing to run".to_owned()) } else { Ok(planned) }
    }
}

impl Part {
    /// The numbers of its brokers.
    fn numbers(&self, brokers: &[Broker]) -> Result<Vec<usize>, String> {
        let Some(names) = &self.brokers else { return Ok((0..brokers.len()).collect()) };
        let number = |name: &String| {
            let found = brokers.iter().position(|broker| broker.name == *name);
            found.ok_or_else(|| format!("part {}: no broker is called {name}", self.name))
        };
        names.iter().map(number).collect()
    }

    /// Every value with every one of the others.
    fn cells(&self) -> Result<Vec<Values>, String> {
        let used = names(&self.bench);
        let mut cells = vec![Values::new()];
        for (name, values) in &self.with {
            if !used.contains(name) {
                return Err(format!("part {}: {{{name}}} stands nowhere in its line", self.name));
            }
            let with = |cell: &Values| {
                let one = |value| cell.clone().into_iter().chain([(name.clone(), text_of(value))]).collect();
                values.iter().map(one).collect::<Vec<Values>>()
            };
            cells = cells.iter().flat_map(with).collect();
        }
        Ok(cells)
    }

    fn run(
        &self,
        values: &Values,
        (seconds, stretch): (Option<u64>, f64),
        (cell, number, broker): (usize, usize, &Broker),
        (version, tool): (&str, &str),
    ) -> Result<Planned, String> {
        let of_part = |why: String| format!("part {}: {why}", self.name);
        let mut values = values.clone();
        if !values.contains_key("seconds") && names(&self.bench).contains(&"seconds".to_owned()) {
            let seconds = seconds.ok_or_else(|| {
                of_part("{seconds} stands in its line: write `seconds = 30` at the top of the file".to_owned())
            })?;
            values.insert("seconds".to_owned(), seconds.to_string());
        }
        let bench = filled(&self.bench, &values).map_err(of_part)?;
        let words = words_of(&bench);
        let wrong = |why: String| format!("part {}: {why} in: {bench}", self.name);
        let takes_s = match words.first().map(String::as_str) {
            Some("campaign" | "report") => return Err(wrong("this is no run".to_owned())),
            Some("scenario" | "durability") => None,
            _ => run_of(&words).map_err(|why| wrong(why.to_string()))?.time_secs.map(|seconds| seconds as f64),
        };
        let takes_s = self.takes_s.map(|takes_s| takes_s * stretch).or(takes_s).ok_or_else(|| {
            wrong("give `takes_s`, about how many seconds it takes, because nothing says so".to_owned())
        })?;
        // A part that names one value of each has no need to be told apart.
        let told: Vec<String> = match &self.label {
            Some(label) => vec![filled(label, &values).map_err(of_part)?],
            None => {
                let several = self.with.iter().filter(|(_, all)| all.len() > 1);
                several.map(|(name, _)| format!("{name} {}", values[name])).collect()
            }
        };
        let scenario = [std::slice::from_ref(&self.name), &told[..]].concat().join(", ");
        let made = Made {
            bench: bench.clone(),
            broker: broker.name.clone(),
            command: broker.told(),
            broker_version: version.to_owned(),
            tool: tool.to_owned(),
            failed: None,
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
        let file: String = format!("{scenario} {}", broker.name).chars().map(plain).collect();
        let file = file.split('-').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-") + ".jsonl";
        let (part, is_first) = (0, false);
        Ok(Planned { scenario, cell, part, broker: number, is_first, bench, words, file, takes_s, made })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = r#"
        title = "x"
        [[broker]]
        name = "Leveret"
        [[broker]]
        name = "Rabbit"
        command = "rabbit {port}"
        version = "echo 3"
        [[part]]
        name = "fast"
        bench = "--size {size} --rate {rate} --time 5"
        with = { size = [10, 100], rate = ["1k"] }
        [[part]]
        name = "long"
        bench = "scenario s4"
        takes_s = 60
        brokers = ["Rabbit"]
    "#;

    fn planned(text: &str) -> Result<Vec<Planned>, String> {
        Campaign::read(text, None, None)?.planned(&["1".to_owned(), "3".to_owned()], "1 (abc)")
    }

    #[test]
    fn every_value_is_run_on_every_broker_in_turn_and_another_one_is_first_each_time() {
        let runs = planned(TEXT).unwrap();
        let told: Vec<String> = runs.iter().map(Planned::title).collect();
        assert_eq!(
            told,
            [
                "fast, size 10, Leveret",
                "fast, size 10, Rabbit",
                "fast, size 100, Rabbit",
                "fast, size 100, Leveret",
                "long, Rabbit"
            ]
        );
        assert_eq!((runs[2].file.as_str(), runs[2].takes_s), ("fast-size-100-rabbit.jsonl", 5.0));
        assert_eq!(runs[0].bench, "--size 10 --rate 1k --time 5");
    }

    #[test]
    fn all_values_of_a_part_follow_one_another_where_a_broker_is_started_once_for_them() {
        let commands = "start = \"a\"\nstop = \"b\"\nuri = \"amqp://localhost\"";
        let text = TEXT.replace("command = \"rabbit {port}\"", commands).replace("title", "restart = \"part\"\ntitle");
        let runs = planned(&text).unwrap();
        let told: Vec<(String, usize, bool)> = runs.iter().map(|run| (run.title(), run.cell, run.is_first)).collect();
        let told: Vec<(&str, usize, bool)> =
            told.iter().map(|(title, cell, first)| (&**title, *cell, *first)).collect();
        assert_eq!(
            told,
            [
                ("fast, size 10, Leveret", 0, false),
                ("fast, size 100, Leveret", 1, false),
                ("fast, size 10, Rabbit", 0, true),
                ("fast, size 100, Rabbit", 1, false),
                ("long, Rabbit", 2, true)
            ]
        );
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_what_to_do() {
        for (from, to, told) in [
            ("takes_s = 60", "", "give `takes_s`"),
            ("version = \"echo 3\"", "", "give `version`"),
            ("rabbit {port}", "rabbit", "has no {port}"),
            ("{size} ", "10 ", "{size} stands nowhere"),
            ("[\"Rabbit\"]", "[\"Hare\"]", "no broker is called Hare"),
            ("--time 5", "--tim 5", "--tim"),
            ("scenario s4", "report x", "this is no run"),
            ("\"long\"", "\"long\"\ncolour = 1", "colour"),
        ] {
            let wrong = planned(&TEXT.replace(from, to)).unwrap_err();
            assert!(wrong.contains(told), "{wrong}");
        }
    }

    #[test]
    fn one_word_makes_all_runs_as_long_as_there_is_time() {
        let text = TEXT.replace("--time 5", "--time {seconds}").replace("title", "seconds = 30\ntitle");
        let of =
            |text: &str, seconds| Campaign::read(text, None, seconds)?.planned(&["1".to_owned(), "3".to_owned()], "1");
        let runs = of(&text, None).unwrap();
        assert_eq!((runs[0].bench.as_str(), runs[4].takes_s), ("--size 10 --rate 1k --time 30", 60.0));
        let runs = of(&text, Some(3)).unwrap();
        assert_eq!((runs[0].bench.as_str(), runs[4].takes_s), ("--size 10 --rate 1k --time 3", 6.0));
        assert!(of(TEXT, Some(3)).unwrap_err().contains("it has no `seconds`"));
        assert!(of(&text.replace("seconds = 30", ""), None).unwrap_err().contains("write `seconds = 30`"));
    }

    #[test]
    fn a_label_and_a_line_are_filled_with_values_and_with_sums_of_them() {
        let text = TEXT
            .replace("{size} --rate {rate}", "{size*8} --rate {rate}")
            .replace("\"long\"", "\"long\"\nlabel = \"all\"");
        let runs = planned(&text.replace("\"fast\"", "\"fast\"\nlabel = \"{size*8} B\"")).unwrap();
        assert_eq!(
            (runs[0].title().as_str(), runs[0].bench.as_str()),
            ("fast, 80 B, Leveret", "--size 80 --rate 1k --time 5")
        );
        assert_eq!((runs[0].file.as_str(), runs[4].title().as_str()), ("fast-80-b-leveret.jsonl", "long, all, Rabbit"));
        let wrong = planned(&text.replace("{size*8}", "{size*sides}")).unwrap_err();
        assert!(wrong.starts_with("part fast: {sides} is no name of it: "), "{wrong}");
    }

    #[test]
    fn some_of_the_brokers_may_be_meant() {
        let campaign = Campaign::read(TEXT, Some(&["Leveret"]), None).unwrap();
        let runs = campaign.planned(&["1".to_owned()], "1").unwrap();
        let told: Vec<String> = runs.iter().map(Planned::title).collect();
        assert_eq!(told, ["fast, size 10, Leveret", "fast, size 100, Leveret"]);
        let wrong = Campaign::read(TEXT, Some(&["Hare"]), None).unwrap_err();
        assert_eq!(wrong, "no broker is called Hare");
    }

    #[test]
    fn the_campaigns_of_the_articles_can_be_run() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("campaigns");
        let mut told = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let campaign = Campaign::read(&std::fs::read_to_string(&path).unwrap(), None, None).unwrap();
            let versions = vec!["1".to_owned(); campaign.brokers.len()];
            let runs = campaign.planned(&versions, "1").unwrap_or_else(|why| panic!("{}: {why}", path.display()));
            told.push((path.file_name().unwrap().to_string_lossy().into_owned(), runs.len()));
        }
        told.sort();
        let counts: Vec<(&str, usize)> = told.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(
            counts,
            [
                ("cluster-sizing.toml", 24),
                ("durability.toml", 4),
                ("rabbitmq-3.10.toml", 63),
                ("small-box.toml", 1),
                ("three-nodes.toml", 9)
            ]
        );
    }
}

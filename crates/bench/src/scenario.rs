//! Workloads by name: files that say what is run, in `scenarios/` for those of the articles, or a
//! file of the user's.
//!
//! Invariant: a scenario is nothing but runs with options that a person could type; each prints the
//! line that repeats it. What is wrong with a file is said before anything is started.

mod file;
mod steps;

use crate::Error;
use crate::command::Ended;
use crate::options::table::Spec;
use crate::run::Context;
use crate::screen::say;
use crate::series::Series;
use crate::uri::without_passwords;
use crate::words::Tool;
use file::File;

/// Lists the runs and makes none; all scenarios have it.
const DRY_RUN: &str = "dry-run";

/// The tool, with the options that a scenario may read; its file says which.
const TOOL: Tool = Tool {
    name: "scenario",
    usage: "NAME|FILE.toml [OPTIONS]",
    own: &[
        Spec::value("kind", "quorum|classic", "type of the queues (default quorum)"),
        Spec::value("seconds", "N", "seconds of each step (default 15)"),
        Spec::flag("full", "the article's lengths: hours"),
        Spec::value("messages", "N", "messages of s4 (default 1000000, 10 million with --full)"),
        Spec::value("rate", "N", "base rate of the adverse tests, 10000, 20000 or 30000 (default 10000)"),
        Spec::value("max-rate", "N", "highest rate of the sizing workload (default 80000)"),
        Spec::value(
            "initial-group-size",
            "N",
            "x-quorum-initial-group-size of the sizing queues (default: the broker's)",
        ),
        Spec::value("kill-command", "COMMAND", "lose-a-broker: what kills one, half of the way into each intensity"),
        Spec::flag(DRY_RUN, "list the runs, and make none"),
    ],
    makes_runs: true,
};

/// The names of those that its file reads.
fn own() -> impl Iterator<Item = &'static str> {
    TOOL.own.iter().map(|spec| spec.long).filter(|name| *name != DRY_RUN)
}

/// The articles' workloads.
const NAMED: &[(&str, &str)] = &[
    ("s1", include_str!("../scenarios/s1.toml")),
    ("s2", include_str!("../scenarios/s2.toml")),
    ("s3", include_str!("../scenarios/s3.toml")),
    ("s4", include_str!("../scenarios/s4.toml")),
    ("sizing", include_str!("../scenarios/sizing.toml")),
    ("lose-a-broker", include_str!("../scenarios/lose-a-broker.toml")),
    ("slow-consumers", include_str!("../scenarios/slow-consumers.toml")),
    ("publisher-peak", include_str!("../scenarios/publisher-peak.toml")),
    ("box", include_str!("../scenarios/box.toml")),
];

/// Runs one.
pub fn scenario(words: &[String], context: &Context) -> Result<Ended, Error> {
    if words.is_empty() || words.iter().any(|word| word == "--help" || word == "--list") || words == ["list"] {
        let mut names = String::new();
        for (name, text) in NAMED {
            names.push_str(&format!("  {name:<16}{}\n", read(name, text)?.about));
        }
        names.push_str("  FILE.toml       a workload of your own; docs/benchmarking.md says what stands in it\n");
        say(&TOOL.help(&(names + "\n")));
        return Ok(Ended::Met);
    }
    let words = TOOL.read(words)?;
    let [given] = &words.rest[..] else {
        return Err(Error::usage("name one scenario, or a file of one; leveret bench scenario list shows them"));
    };
    let (name, file) = find(given)?;
    let values = file.values(&name, &words)?;
    let planned = file.planned(&words, &values).map_err(|why| Error::usage(format!("{given}: {why}")))?;
    if words.is_set(DRY_RUN) {
        for run in &planned {
            say(&format!("{}: leveret bench {}", run.label, without_passwords(&run.options.words)));
        }
        return Ok(Ended::Met);
    }
    let mut series = Series::new(&format!("{name}: {}", file.about), &words, context)?;
    let ran = steps::run(&planned, &words, &mut series);
    let note = match words.is_set("full") || !file.has_full() {
        true => String::new(),
        false => "<p class=\"faint\">A short run: the articles' lengths are minutes to hours a step (--full).</p>\n"
            .to_owned(),
    };
    series.finish(ran, &note)
}

/// A scenario by its name, or in a file.
fn find(given: &str) -> Result<(String, File), Error> {
    if let Some((name, text)) = NAMED.iter().find(|(name, _)| *name == given) {
        return Ok(((*name).to_owned(), read(name, text)?));
    }
    let path = std::path::Path::new(given);
    if path.extension().is_none_or(|end| end != "toml") {
        let list = "leveret bench scenario list shows them, and a file of your own ends with .toml";
        return Err(Error::usage(format!("unknown scenario {given}; {list}")));
    }
    let text = std::fs::read_to_string(path).map_err(|why| Error::usage(format!("{given}: {why}")))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, read(given, &text)?))
}

fn read(name: &str, text: &str) -> Result<File, Error> {
    toml::from_str(text).map_err(|why| Error::usage(format!("{name}: {why}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::words::words_of;

    fn told(line: &str) -> String {
        scenario(&words_of(line), &Context::default()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_is_started() {
        assert!(told("s9").contains("unknown scenario s9"));
        assert_eq!(told("s1 --rate 5"), "--rate means nothing to s1, which has --kind, --seconds, --full");
        assert!(told("slow-consumers --seconds 5").contains("--seconds means nothing to slow-consumers"));
        assert!(told("s2 --full --seconds 5").contains("contradict"));
        assert!(told("s1 --seconds 1.7").contains("--seconds 1.7: a whole number"));
        assert!(told("s1 --kind stream").contains("--kind stream: classic or quorum is expected"));
        assert!(told("box --limit-cpu 1").contains("--limit-cpu means nothing"));
        assert!(told("slow-consumers --rate 10001").contains("--rate 10001: a multiple of 200"));
        assert!(told("lose-a-broker --broker x{port} --kill-command y").contains("contradict"));
        assert!(told("lose-a-broker").contains("needs --kill-command"));
        assert!(told("sizing --initial-group-size 10").contains("a whole number from 1 to 9"));
        assert!(told("nowhere.toml").contains("nowhere.toml: No such file"));
    }

    #[test]
    fn every_option_is_read_by_somebody() {
        let files: Vec<File> = NAMED.iter().map(|(name, text)| read(name, text).unwrap()).collect();
        assert!(own().all(|option| files.iter().any(|file| file.reads(option))));
    }

    fn planned(line: &str) -> Vec<file::Planned> {
        let words = TOOL.read(&words_of(line)).unwrap();
        let (name, file) = find(&words.rest[0]).unwrap();
        file.planned(&words, &file.values(&name, &words).unwrap()).unwrap()
    }

    #[test]
    fn the_articles_workloads_are_what_they_were() {
        let lines = |line: &str| planned(line).iter().map(|run| run.bench.clone()).collect::<Vec<_>>();
        let s2 = &lines("s2 --kind classic --seconds 2")[0];
        assert!(s2.contains("--variable-size 5000:2") && s2.contains("--time 8 ") && s2.contains("--queue cq-s2 "));
        assert!(s2.contains("--auto-delete false --flag persistent"), "{s2}");
        let full = &lines("s1 --full")[0];
        assert!(full.contains("--variable-size 10:900") && full.contains("--time 3600"), "{full}");
        assert!(lines("s4 --messages 1001")[0].contains("--pmessages 501 "));
        let sizing = planned("sizing --max-rate 30k --initial-group-size 3");
        assert_eq!(sizing.len(), 7);
        assert_eq!(sizing[6].label, "30000 msg/s");
        assert!(sizing[6].bench.contains("--rate 150 ") && sizing[6].bench.contains("--consumers 400"));
        assert!(sizing[6].bench.contains("x-max-in-memory-length=0,x-quorum-initial-group-size=3"));
        let rates: Vec<_> = planned("sizing --max-rate 12k").iter().map(|run| run.label.clone()).collect();
        assert_eq!(rates, ["1000 msg/s", "5000 msg/s", "10000 msg/s"]);
        // The hill rises and falls over a hundred minutes, which are seconds in a short run.
        for (line, minute) in [("slow-consumers", 1), ("slow-consumers --full", 60), ("publisher-peak", 1)] {
            let run = &planned(line)[0];
            let steps = run.bench.split_whitespace().filter_map(|word| word.split_once(':'));
            let all: u64 = steps.map(|(_, seconds)| seconds.parse::<u64>().unwrap()).sum();
            assert_eq!(all, 100 * minute, "{line}");
            assert!(run.bench.contains(&format!("--time {}", 100 * minute)), "{line}");
        }
        assert!(lines("publisher-peak --rate 20000")[0].contains("-vr 100:5 -vr 102:1 -vr 105:1 "));
        assert!(lines("publisher-peak")[0].contains("-vr 52:1 -vr 50:1 -vr 50:50"));
    }

    #[test]
    fn the_grid_is_the_articles_and_adds_a_backlog() {
        let cells = planned("box --broker b{port}");
        assert_eq!(cells.len(), 12);
        let beside: Vec<_> = cells.iter().filter(|cell| cell.beside.is_some()).collect();
        assert!(beside.len() == 2 && beside.iter().all(|cell| cell.bench.contains("-y 0")), "its producers ran alone");
        assert_eq!(cells.iter().filter(|cell| cell.before.is_some()).count(), 1);
        let start = (cells[0].options.broker.cpu, cells[0].options.broker.memory_bytes);
        assert_eq!(start, (Some(0.9), Some(512 << 20)));
        assert_eq!(
            cells[0].options.broker.command.as_deref(),
            Some("b{port}"),
            "its line starts the box that it ran in"
        );
    }

    #[test]
    fn a_file_of_ones_own_is_checked_to_the_last_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let text = "about = \"mine\"\n[values]\nseconds = { short = 2 }\n[[run]]\nlabel = \"{size} B\"\n\
                    bench = \"-s {size} -z {seconds*2}\"\neach = [{ size = 10 }, { size = 20 }]\n";
        std::fs::write(&path, text).unwrap();
        let line = format!("{} --seconds 3", path.display());
        let runs = planned(&line);
        assert_eq!((runs.len(), &*runs[1].label, &*runs[1].bench), (2, "20 B", "-s 20 -z 6"));
        for (from, to, said) in [
            ("short", "shrot", "unknown field `shrot`"),
            ("label", "lable", "expected one of `label`, `bench`"),
            ("{size} -z", "{siez} -z", "{siez} is no name of it: seconds, size"),
            ("{size} -z", "{} -z", "{} is no sum of names and numbers"),
            ("{size} -z", "{size+} -z", "{size+} is no sum of names and numbers"),
            ("seconds*2}", "seconds/0}", "{seconds/0} divides by nothing"),
            ("-z", "-zz", "unknown option -zz"),
            ("seconds*2}", "seconds*2", "without its }"),
            ("\nbench", "\nkill_after = \"-5\"\nbench", "needs --kill-command"),
        ] {
            std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
            assert!(told(&line).contains(said), "{}", told(&line));
        }
    }
}

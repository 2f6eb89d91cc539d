//! The command `leveret bench`: which of its tools is meant, and how it ended.
//!
//! Invariant: 0 says that what was required was met, and nothing else does.

use std::path::Path;

use crate::Error;
use crate::broker::Broker;
use crate::campaign::campaign;
use crate::durability::durability;
use crate::options::table::{self, Spec};
use crate::options::{Asked, Options, parse};
use crate::outputs::{Files, write};
use crate::record::{Book, Verdict, read_lines};
use crate::report;
use crate::run::{Context, Observer, run};
use crate::scenario::scenario;
use crate::screen::served::Served;
use crate::screen::{chosen, say};
use crate::words::Tool;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requirements were met and nothing is wrong with any message.
    Met,
    /// The run was made and something is not as required.
    Missed,
    /// Nothing else is wrong than that somebody fell behind, or the broker did not take everything in.
    NotHeld,
    /// Nothing else is wrong than that it was interrupted.
    Interrupted,
}

impl Ended {
    /// How several runs ended: as the worst of them.
    pub fn of(verdicts: impl Iterator<Item = Verdict>) -> Ended {
        let rank = |ended: &Ended| match ended {
            Ended::Met => 0,
            Ended::NotHeld => 1,
            Ended::Interrupted => 2,
            Ended::Missed => 3,
        };
        let each = verdicts.map(|verdict| match verdict {
            Verdict::Passed => Ended::Met,
            Verdict::Failed => Ended::Missed,
            Verdict::BacklogGrew | Verdict::Refused => Ended::NotHeld,
            Verdict::Interrupted | Verdict::UnderWay => Ended::Interrupted,
        });
        each.max_by_key(rank).unwrap_or(Ended::Met)
    }
}

const HELP: &str = "\
Load an AMQP 0-9-1 broker, measure it, and check every message.

Usage: leveret bench [OPTIONS]              one run, with PerfTest's options and more
       leveret bench scenario NAME          a workload of the articles, or a file of your own; `list` shows them
       leveret bench durability             stages and policies of durability, as percentile curves
       leveret bench campaign FILE          many runs of several brokers from a file, unattended, and one page
       leveret bench report FILE... --html  several runs' JSON files side by side

Each of them tells more with --help.
";

/// Does what the words ask for.
pub fn bench(words: &[String], context: &Context) -> Result<Ended, Error> {
    match words.first().map(String::as_str) {
        Some("scenario") => return scenario(&words[1..], context),
        Some("durability") => return durability(&words[1..], context),
        Some("campaign") => return campaign(&words[1..], context),
        Some("report") => return compare(&words[1..]),
        _ => {}
    }
    match parse(words)? {
        Asked::Help => {
            say(&format!("{HELP}\n{}\n{EXAMPLES}", table::help()));
            Ok(Ended::Met)
        }
        Asked::Version => {
            say(&format!("leveret bench {}", context.version));
            Ok(Ended::Met)
        }
        Asked::Run(options) => one_run(&options, context),
    }
}

fn one_run(options: &Options, context: &Context) -> Result<Ended, Error> {
    if options.broker.is_wanted() {
        let broker = Broker::start(&options.broker)?;
        context.go_on()?;
        let here = Options { uris: broker.uris(), ..options.clone() };
        return measured(&here, &context.with_brokers(broker.pids()));
    }
    measured(options, context)
}

fn measured(options: &Options, context: &Context) -> Result<Ended, Error> {
    let mut files = Files::create(&options.outputs)?;
    let outputs = &options.outputs;
    let whose = if options.label.is_empty() { "A broker" } else { &options.label };
    let mut served = Served::asked(outputs.live.as_deref(), &under_load(whose))?;
    let mut screen = chosen(outputs.plain, outputs.quiet);
    let mut observers: Vec<&mut dyn Observer> = vec![&mut *screen, &mut files];
    observers.extend(served.as_mut().map(|served| served as &mut dyn Observer));
    let recorded = run(options, context, &mut observers)?;
    let ended = Ended::of(std::iter::once(recorded.run.verdict()));
    if let Some(name) = &outputs.html {
        let title = under_load(&recorded.run.label);
        write(name, &report::html(&title, &Book { runs: vec![recorded], figures: Vec::new() }, ""))?;
    }
    served.into_iter().for_each(Served::end);
    Ok(ended)
}

/// The heading of a page of one run.
fn under_load(label: &str) -> String {
    format!("{label} under load")
}

/// `report`: JSON files of runs, compared.
fn compare(words: &[String]) -> Result<Ended, Error> {
    const TOOL: Tool = Tool {
        name: "report",
        usage: "FILE... [OPTIONS]",
        own: &[
            Spec::value("html", "FILE", "one report with charts"),
            Spec::value("md", "FILE", "the comparing table in Markdown"),
            Spec::value("title", "TEXT", "its heading"),
        ],
        makes_runs: false,
    };
    if words.is_empty() || words.iter().any(|word| word == "--help") {
        say(&TOOL.help(""));
        return Ok(Ended::Met);
    }
    let words = TOOL.read(words)?;
    let mut files = Vec::new();
    for name in &words.rest {
        let bytes = std::fs::read(name).map_err(|why| Error::usage(format!("{name}: {why}")))?;
        let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        files.push((stem, read_lines(name, &String::from_utf8_lossy(&bytes))?));
    }
    let book = Book::of_files(files);
    if book.runs.is_empty() {
        return Err(Error::usage("name at least one JSON file of a run"));
    }
    let title = match (words.text("title"), &book.runs[..]) {
        (Some(title), _) => title.to_owned(),
        (None, [one]) => under_load(&one.run.label),
        (None, _) => "Runs compared".to_owned(),
    };
    let table = report::markdown(&book);
    if let Some(name) = words.text("html") {
        write(name, &report::html(&title, &book, ""))?;
    }
    match words.text("md") {
        Some(name) => write(name, &format!("# {title}\n\n{table}"))?,
        None => say(&table),
    }
    Ok(Ended::Met)
}

const EXAMPLES: &str = "\
Without a rate it sends as fast as confirms allow. With one the loop is open: latency counts from the time at which a message was due,
so that a broker that stalls cannot hide it; --closed-loop counts from the moment of sending, as PerfTest does.

Examples:
  leveret bench --uri amqp://localhost --quorum-queue --queue qq --rate 10000 --confirm 3000 --size 1000 --time 20
      10,000 messages a second through one quorum queue.
  leveret bench -x 2 -y 2 --confirm 3000 --qos 3000 --multi-ack-every 3000 --size 1000 -qq -u qq -z 20 --json run.json --html run.html
      As fast as it goes, with a report.
  leveret bench --rate 10000 --confirm 3000 --time 60 --require-p99-ms 5 && echo fast enough
      Exit code 0 only if nothing was lost and the 99th percentile is within 5 ms.

Exit codes: 0 everything required was met, 1 it was not (messages lost, duplicated, reordered or corrupt; rate or latency missed),
2 the command line is wrong, 3 the run could not be made (no broker, refused, a file that cannot be written),
4 nothing is wrong but that the rate is none that is held: more was sent than received, or was due than sent, or the broker refused messages,
130 it was interrupted before its end (a run that has none, without --time or numbers of messages, is judged instead).
Rates may have k or M behind them (10k), sizes kB, MB (thousands), KiB, MiB, or k and M for those, as RabbitMQ's configuration has them.";

//! `leveret sizing`: its command line, and the files it reads and writes.
//!
//! Invariant: what is asked for goes to standard output or the named file; a mistake in what was
//! given is one line with file, line and field, and exit code 2.

mod progress;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use sizing::input::Document;
use sizing::predict::Question;
use sizing::prices::PriceList;
use sizing::published::Published;
use sizing::requirement::{Requirement, Wish};
use sizing::results::{Results, Tolerance};
use sizing::run::journal::Journal;
use sizing::run::load::BenchProcess;
use sizing::run::plan::Plan;
use sizing::study;

use crate::exit::{self, Exit};
use crate::version::VERSION;

/// What was asked of `leveret sizing`.
#[derive(Debug)]
pub(crate) enum Sizing {
    /// Measure clusters.
    Run(Run),
    /// From results and prices to boards and a recommendation.
    Report(Report),
    /// From some configurations to others.
    Predict(Predict),
}

/// `leveret sizing run`.
#[derive(Debug)]
pub(crate) struct Run {
    plan: PathBuf,
    results: PathBuf,
    bench: Option<String>,
    is_dry: bool,
}

/// How a report is shown.
#[derive(Debug)]
pub(crate) struct Shown {
    json: bool,
    html: Option<PathBuf>,
}

/// Where measurements and prices come from.
#[derive(Debug)]
pub(crate) struct Given {
    /// `None`: the study that ships with the program.
    results: Option<PathBuf>,
    prices: Option<PathBuf>,
    tolerance: Tolerance,
    wish: Wish,
}

/// `leveret sizing report`.
#[derive(Debug)]
pub(crate) struct Report {
    given: Given,
    published: Option<PathBuf>,
    shown: Shown,
}

/// `leveret sizing predict`.
#[derive(Debug)]
pub(crate) struct Predict {
    given: Given,
    candidates: Vec<String>,
    left_out: Vec<String>,
    message_bytes: f64,
    shown: Shown,
}

/// The command with its own commands.
pub(crate) fn command() -> Command {
    Command::new("sizing")
        .about("Which cluster holds your load, and what it costs: measure, report, predict")
        .long_about(ABOUT)
        .after_long_help(AFTER)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(run_command())
        .subcommand(report_command())
        .subcommand(predict_command())
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn path(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("FILE").value_parser(ValueParser::path_buf()).help(help)
}

fn number(name: &'static str, value_name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value_name)
        .allow_negative_numbers(true)
        .value_parser(clap::value_parser!(f64))
        .help(help)
}

fn rate(name: &'static str, help: &'static str) -> Arg {
    number(name, "MSG/S", help).value_parser(bench::options::units::rate)
}

fn given_arguments() -> Vec<Arg> {
    let results = Arg::new("results")
        .value_name("RESULTS")
        .value_parser(ValueParser::path_buf())
        .required_unless_present("study")
        .conflicts_with("study")
        .help("Results file of a run (JSON lines)");
    vec![
        results,
        flag("study", "Use the study of 21 configurations that ships with this program"),
        path("prices", "Prices of machines, volumes and clusters (TOML)"),
        flag(
            "partial",
            "Use what is whole of a results file whose run was interrupted, or of which measurements failed",
        ),
        rate("rate", "Rate to hold"),
        number("p99-ms", "MS", "End-to-end latency to hold at that rate, 99th percentile"),
        Arg::new("lose-node")
            .long("lose-node")
            .value_name("YES|NO")
            .value_parser(["yes", "no"])
            .help("Hold both with one node lost"),
        rate("backlog-rate", "Let a backlog form at this rate; 0 asks for none"),
    ]
}

fn shown_arguments() -> Vec<Arg> {
    vec![flag("json", "One JSON document instead of tables"), path("html", "Write a page with charts to this file too")]
}

fn run_command() -> Command {
    let plan = Arg::new("plan").value_name("PLAN").required(true).value_parser(ValueParser::path_buf());
    Command::new("run")
        .about("Drive the tests of a plan against its clusters")
        .long_about(RUN_ABOUT)
        .arg(plan.help("Requirement, workload, tests and clusters (TOML); docs/sizing.md explains it"))
        .arg(path("results", "Results file (JSON lines); one that is there is gone on with").required(true))
        .arg(
            Arg::new("bench")
                .long("bench")
                .value_name("COMMAND")
                .help("Load generator that takes PerfTest's words and writes --json [default: this program's bench]"),
        )
        .arg(flag("dry-run", "Say what would be measured and how long it takes"))
}

fn report_command() -> Command {
    Command::new("report")
        .about("Boards, costs and a recommendation from results and prices")
        .args(given_arguments())
        .arg(path("published", "Check leaderboards that were published (TOML)"))
        .args(shown_arguments())
}

fn predict_command() -> Command {
    let names = |name: &'static str, value_name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value_name).action(ArgAction::Append).value_delimiter(',').help(help)
    };
    Command::new("predict")
        .about("Capacity of clusters that were not measured, with an error band")
        .args(given_arguments())
        .arg(names("candidate", "NODESxMACHINE/VOLUME", "Predict this one; without any, all of the price file"))
        .arg(names("leave-out", "CLUSTER[/VOLUME]", "Do not fit this one but predict it, beside what was measured"))
        .arg(number("message-bytes", "BYTES", "Size of a message's body").default_value("1024"))
        .args(shown_arguments())
}

/// What the matches of `sizing` ask for.
pub(crate) fn asked(mut matches: ArgMatches) -> Sizing {
    match matches.remove_subcommand() {
        Some((name, mut matches)) if name == "run" => Sizing::Run(Run {
            plan: matches.remove_one("plan").expect("clap requires it"),
            results: matches.remove_one("results").expect("clap requires it"),
            bench: matches.remove_one("bench"),
            is_dry: matches.get_flag("dry-run"),
        }),
        Some((name, mut matches)) if name == "report" => {
            let published = matches.remove_one("published");
            Sizing::Report(Report { published, shown: shown(&mut matches), given: given(matches) })
        }
        Some((name, mut matches)) if name == "predict" => Sizing::Predict(Predict {
            candidates: matches.remove_many("candidate").into_iter().flatten().collect(),
            left_out: matches.remove_many("leave-out").into_iter().flatten().collect(),
            message_bytes: matches.remove_one("message-bytes").expect("it has a default"),
            shown: shown(&mut matches),
            given: given(matches),
        }),
        other => unreachable!("clap accepts only the commands above, not {other:?}"),
    }
}

fn shown(matches: &mut ArgMatches) -> Shown {
    Shown { json: matches.get_flag("json"), html: matches.remove_one("html") }
}

fn given(mut matches: ArgMatches) -> Given {
    let tolerance = if matches.get_flag("partial") { Tolerance::Partial } else { Tolerance::Whole };
    Given {
        results: matches.remove_one("results"),
        prices: matches.remove_one("prices"),
        tolerance,
        wish: Wish {
            rate: matches.remove_one("rate"),
            p99_ms: matches.remove_one("p99-ms"),
            lose_node: matches.remove_one::<String>("lose-node").map(|word| word == "yes"),
            backlog_rate: matches.remove_one("backlog-rate"),
        },
    }
}

/// Does what was asked.
pub(crate) fn run(sizing: &Sizing) -> Exit {
    let done = match sizing {
        Sizing::Run(asked) => measure(asked),
        Sizing::Report(report) => make_report(report),
        Sizing::Predict(asked) => make_prediction(asked),
    };
    done.unwrap_or_else(|why| exit::usage(&why))
}

fn open(path: &Path) -> Result<Document, String> {
    Document::open(path).map_err(|mistake| mistake.to_string())
}

impl Given {
    fn results(&self) -> Result<Results, String> {
        let read = match &self.results {
            Some(path) => Results::read(&open(path)?, self.tolerance),
            None => study::results(),
        };
        read.map_err(|mistake| mistake.to_string())
    }

    fn prices(&self) -> Result<Option<PriceList>, String> {
        let read = match &self.prices {
            Some(path) => PriceList::read(&open(path)?).map(Some),
            None if self.results.is_none() => study::prices().map(Some),
            None => Ok(None),
        };
        read.map_err(|mistake| mistake.to_string())
    }
}

fn measure(asked: &Run) -> Result<Exit, String> {
    let plan = Plan::read(&open(&asked.plan)?).map_err(|mistake| mistake.to_string())?;
    if asked.is_dry {
        return Ok(exit::print(&progress::outlook(&plan)));
    }
    let own = std::env::current_exe().map_err(|why| format!("this program's own path is unknown: {why}"))?;
    // Brokers are started with other folders as their own, so nothing may depend on where we are.
    let results = std::path::absolute(&asked.results).map_err(|why| format!("{}: {why}", asked.results.display()))?;
    let mut folder = results.clone().into_os_string();
    folder.push(".work");
    let folder = PathBuf::from(folder);
    let command = match &asked.bench {
        Some(words) => words.split_whitespace().map(str::to_owned).collect(),
        None => vec![own.display().to_string(), "bench".to_owned()],
    };
    let mut generator = BenchProcess { command, folder: folder.join("load") };
    generator.check()?;
    let mut journal = Journal::open(&results, &plan, Some(where_from()))?;
    let mut shutdown = crate::signals::listen().map_err(|why| format!("signals cannot be watched: {why}"))?;
    let mut screen = progress::Screen::new();
    let ran = sizing::run::run(&plan, &mut journal, &mut generator, &folder, &mut |event| {
        screen.show(&event);
        match Pin::new(&mut shutdown).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => ControlFlow::Break(()),
            Poll::Pending => ControlFlow::Continue(()),
        }
    });
    screen.end();
    match ran {
        Ok(0) => {
            let _ = std::fs::remove_dir_all(&folder);
            exit::say(&format!("all measured: leveret sizing report {} shows it", asked.results.display()));
            Ok(Exit::Done)
        }
        Ok(failed) => {
            exit::say(&format!("{failed} measurements failed; the same command tries them again"));
            Ok(Exit::Failed)
        }
        Err(why) => {
            exit::say(&why);
            Ok(Exit::Failed)
        }
    }
}

/// What measured, and where: it stands in the results file and under its reports.
fn where_from() -> String {
    let machine = bench::process::Machine::this();
    let (memory_gb, cores) = (machine.memory_bytes as f64 / 1e9, machine.cores);
    let (version, cpu, kernel) = (VERSION.as_str(), machine.cpu, machine.kernel);
    format!("measured by leveret {version} on a machine with {cores} cores ({cpu}), {memory_gb:.1} GB, kernel {kernel}")
}

fn make_report(asked: &Report) -> Result<Exit, String> {
    let (results, prices) = (asked.given.results()?, asked.given.prices()?);
    let published = match &asked.published {
        Some(path) => Some(Published::read(&open(path)?).map_err(|mistake| mistake.to_string())?),
        None if asked.given.results.is_none() => Some(study::published().map_err(|mistake| mistake.to_string())?),
        None => None,
    };
    let requirement = Requirement::stated(&asked.given.wish, results.header.requirement)?;
    let report = sizing::report::report(&results, prices.as_ref(), published.as_ref(), &requirement)?;
    asked.shown.show(|| report.text(), || report.json(), || report.html())
}

fn make_prediction(asked: &Predict) -> Result<Exit, String> {
    let (results, prices) = (asked.given.results()?, asked.given.prices()?);
    if !(asked.message_bytes.is_finite() && asked.message_bytes >= 1.0) {
        return Err(format!("--message-bytes must be at least 1, and is {}", asked.message_bytes));
    }
    let question = Question {
        requirement: Requirement::stated(&asked.given.wish, results.header.requirement)?,
        candidates: asked.candidates.clone(),
        left_out: asked.left_out.clone(),
        message_bytes: asked.message_bytes,
    };
    let prediction = sizing::predict::predict(&results, prices.as_ref(), &question)?;
    asked.shown.show(|| prediction.text(), || prediction.json(), || prediction.html())
}

impl Shown {
    fn show(
        &self,
        text: impl Fn() -> String,
        json: impl Fn() -> String,
        html: impl Fn() -> String,
    ) -> Result<Exit, String> {
        if let Some(path) = &self.html {
            std::fs::write(path, html()).map_err(|why| format!("{} cannot be written: {why}", path.display()))?;
        }
        Ok(exit::print(&if self.json { json() } else { text() }))
    }
}

const RUN_ABOUT: &str = "\
Drive the tests of a plan against its clusters, given by address or started on this machine with limits.

Each measurement is written and synced as it comes. A run that was stopped goes on with the same command. Progress goes to standard error.";

const ABOUT: &str = "\
Which cluster holds your load, and what it costs.

A run drives the tests of a plan against clusters. A report needs a results file. It says what each configuration held and how late it was, and with a price file what 1000 messages a second cost \
a month, which one to take for a stated requirement, and what would change that.";

const AFTER: &str = "\
Examples:
  leveret sizing run plan.toml --results results.jsonl
      Drive the plan's tests; stop it whenever you like, the same command goes on.
  leveret sizing report --study
      The study of 21 RabbitMQ clusters that ships with this program, its published figures checked.
  leveret sizing report results.jsonl --prices prices.toml --rate 30000 --p99-ms 1000 --html report.html
      Your own measurements, with a page of charts.
  leveret sizing predict --study --candidate 5x36/gp2 --candidate 9x16/gp2
      Shapes that nobody measured; the error of the model is printed with them.
  leveret sizing predict small.jsonl --prices prices.toml --rate 30000 --p99-ms 1000
      From one small machine to the clusters of a price list, with everything assumed.

Exit codes: 0 done, 1 a measurement failed or the run was stopped, 2 wrong command line or a mistake in a file, named with line and field.";

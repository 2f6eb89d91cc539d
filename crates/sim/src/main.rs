//! Runs many seeds by hand:
//! `cargo run --release -p sim -- --seeds 0..10000 [--nodes 1|3|5] [--faults network,power]`.
//!
//! A seed that fails prints itself; `--trace` with that seed alone prints what happened before.
#![allow(clippy::print_stdout)] // It is a tool for a terminal.

use sim::{Bug, Cluster, Faults, Figures, Options, Sessions, sessions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

const USAGE: &str = "sim --seeds FROM..TO | --seed N [--nodes 1|3|5] [--faults all|none|network,crashes,power,pauses,disks,rot,log-rot,start-rot,leaders] [--rules yes|no] [--turnover yes|no] [--declares yes|no] [--upgrades yes|no] [--members yes|no] [--mapped yes|no] [--returns yes|no] [--spread yes|no] [--pools yes|no] [--levels yes|no] [--classic yes|no] [--rows yes|no] [--sessions yes|no] [--trace LINES]";

struct Arguments {
    from: u64,
    to: u64,
    options: Options,
    trace: Option<usize>,
    /// Clients speak through sessions.
    sessions: bool,
}

fn parse() -> Option<Arguments> {
    let mut arguments = Arguments { from: 0, to: 100, options: Options::default(), trace: None, sessions: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--seeds" => {
                let (from, to) = value.split_once("..")?;
                (arguments.from, arguments.to) = (from.parse().ok()?, to.parse().ok()?);
            }
            "--seed" => {
                arguments.from = value.parse().ok()?;
                arguments.to = arguments.from + 1;
            }
            "--nodes" => arguments.options.nodes = value.parse().ok().filter(|n| [1, 3, 5].contains(n))?,
            "--faults" => arguments.options.faults = Faults::parse(&value)?,
            "--rules" => arguments.options.rules = value == "yes",
            "--turnover" => arguments.options.turnover = value == "yes",
            "--upgrades" => arguments.options.upgrades = value == "yes",
            "--members" => arguments.options.members = value == "yes",
            "--levels" => arguments.options.levels = value == "yes",
            "--classic" => arguments.options.classic = value == "yes",
            "--rows" => arguments.options.rows = value == "yes",
            "--pools" => arguments.options.pools = value == "yes",
            "--mapped" => {
                arguments.options.mapped = value == "yes";
                arguments.options.members |= arguments.options.mapped;
            }
            "--returns" => arguments.options.returns = value == "yes",
            "--spread" => arguments.options.spread = value == "yes",
            "--declares" => arguments.options.declares = value == "yes",
            "--sessions" => arguments.sessions = value == "yes",
            "--trace" => arguments.trace = Some(value.parse().ok()?),
            "--bug" => arguments.options.bug = Some(Bug::named(&value)?),
            _ => return None,
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(Arguments { from, to, mut options, trace, sessions }) = parse() else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    options.trace = trace.is_some();
    options.pools |= sessions && options.nodes > 3;
    if options.returns && !sessions {
        (options.members, options.mapped) = (true, true);
    }
    let (mut total, mut spoken) = (Figures::default(), sessions::Figures::default());
    let mut failed = Vec::new();
    for seed in from..to {
        // The profile for releases aborts on a panic: the seed must be known before.
        std::panic::set_hook(Box::new(move |panic| println!("seed {seed}: {panic}")));
        let story = match sessions {
            false => {
                let mut cluster = Cluster::new(seed, options);
                let run = catch_unwind(AssertUnwindSafe(|| cluster.run()));
                run.map(|figures| total.add(&figures)).err().map(|_| (cluster.trace(usize::MAX), cluster.describe()))
            }
            true => {
                let mut cluster = Sessions::new(seed, options);
                let run = catch_unwind(AssertUnwindSafe(|| cluster.run()));
                run.map(|figures| spoken.add(&figures)).err().map(|_| (cluster.trace(usize::MAX), cluster.describe()))
            }
        };
        if let Some((lines, end)) = story {
            failed.push(seed);
            if let Some(count) = trace {
                let skip = lines.lines().count().saturating_sub(count);
                lines.lines().skip(skip).for_each(|line| println!("{line}"));
                println!("{end}");
            }
        }
        if (seed + 1) % 500 == 0 {
            println!("{} seeds, failed {failed:?}", seed + 1 - from);
        }
    }
    match sessions {
        true => println!("{spoken:#?}"),
        false => println!("{total:#?}"),
    }
    println!("seeds {from}..{to}, {} nodes, {:?}\nfailed: {failed:?}", options.nodes, options.faults);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Runs many seeds by hand: `cargo run --release -p sim -- --seeds 0..10000 [--nodes 1|3|5] [--faults network,power]`.
//!
//! A seed that fails prints itself; `--trace` with that seed alone prints what happened before.
#![allow(clippy::print_stdout)] // It is a tool for a terminal.

use sim::{Bug, Cluster, Faults, Figures, Options};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

const USAGE: &str = "sim --seeds FROM..TO | --seed N [--nodes 1|3|5] [--faults all|none|network,crashes,power,pauses,disks,rot,log-rot,leaders] [--rules yes|no] [--turnover yes|no] [--declares yes|no] [--trace LINES]";

struct Arguments {
    from: u64,
    to: u64,
    options: Options,
    trace: Option<usize>,
}

fn parse() -> Option<Arguments> {
    let mut arguments = Arguments { from: 0, to: 100, options: Options::default(), trace: None };
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
            "--declares" => arguments.options.declares = value == "yes",
            "--trace" => arguments.trace = Some(value.parse().ok()?),
            "--bug" => arguments.options.bug = Some(Bug::named(&value)?),
            _ => return None,
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(Arguments { from, to, mut options, trace }) = parse() else {
        println!("{USAGE}");
        return ExitCode::FAILURE;
    };
    options.trace = trace.is_some();
    let mut total = Figures::default();
    let mut failed = Vec::new();
    for seed in from..to {
        // The profile for releases aborts on a panic: the seed must be known before.
        std::panic::set_hook(Box::new(move |panic| println!("seed {seed}: {panic}")));
        let mut cluster = Cluster::new(seed, options);
        match catch_unwind(AssertUnwindSafe(|| cluster.run())) {
            Ok(figures) => total.add(&figures),
            Err(_) => {
                failed.push(seed);
                if let Some(lines) = trace {
                    println!("{}{}", cluster.trace(lines), cluster.describe());
                }
            }
        }
        if (seed + 1) % 500 == 0 {
            println!("{} seeds, failed {failed:?}", seed + 1 - from);
        }
    }
    println!("seeds {from}..{to}, {} nodes, {:?}\n{total:#?}\nfailed: {failed:?}", options.nodes, options.faults);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

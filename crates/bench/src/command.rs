//! The command `leveret bench`: which of its tools is meant, and how it ended.
//!
//! Invariant: 0 says that what was required was met, and nothing else does.

use std::io::IsTerminal as _;

use crate::Error;
use crate::options::{Asked, Options, parse, table};
use crate::outputs::Files;
use crate::run::{Context, Observer, run};
use crate::screen::live::Live;
use crate::screen::{Lines, say};

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requirements were met and nothing is wrong with any message.
    Met,
    /// The run was made and something is not as required.
    Missed,
}

const HELP: &str = "\
Load an AMQP 0-9-1 broker, measure it, and check every message.

Usage: leveret bench [OPTIONS]
";

/// Does what the words ask for.
pub fn bench(words: &[String], context: &Context) -> Result<Ended, Error> {
    match parse(words)? {
        Asked::Help => {
            say(&format!("{HELP}\n{}\n{EXAMPLES}", table::help()));
            Ok(Ended::Met)
        }
        Asked::Version => {
            say(&format!("leveret bench {}", env!("CARGO_PKG_VERSION")));
            Ok(Ended::Met)
        }
        Asked::Run(options) => one_run(&options, context),
    }
}

fn one_run(options: &Options, context: &Context) -> Result<Ended, Error> {
    let mut files = Files::create(&options.outputs)?;
    let outputs = &options.outputs;
    let is_live = !outputs.plain && !outputs.quiet && std::io::stdout().is_terminal();
    let mut screen: Box<dyn Observer> = match is_live.then(Live::on_stdout).flatten() {
        Some(live) => Box::new(live),
        None => Box::new(Lines { quiet: outputs.quiet }),
    };
    let recorded = run(options, context, &mut [&mut *screen, &mut files])?;
    Ok(if recorded.run.missed.is_empty() { Ended::Met } else { Ended::Missed })
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
2 the command line is wrong, 3 the run could not be made (no broker, refused, a file that cannot be written).";

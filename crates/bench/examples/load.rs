//! The load generator without the rest of the binary:
//! `cargo run --release -p bench --example load -- --rate 1000 …`.
//!
//! Invariant: it is what `leveret bench` runs; only signals are left to the system.

use std::io::Write as _;
use std::process::ExitCode;

use bench::command::{Ended, bench};
use bench::run::Context;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match bench(&words, &Context::default()) {
        Ok(Ended::Met) => ExitCode::SUCCESS,
        Ok(Ended::NotHeld | Ended::Interrupted | Ended::Missed) => ExitCode::from(1),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::from(2)
        }
    }
}

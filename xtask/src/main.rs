//! Project chores. `cargo xtask check` runs every quick check in one command, `cargo xtask test`
//! every test there is.
//!
//! Invariant: a chore that finds something wrong says what and where, and its exit code is 1.
#![allow(clippy::print_stdout, reason = "a chore talks to the person who runs it")]

mod lanes;
mod licences;
mod shell;
mod suite;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask CHORE

  check      lint, then the quick tests: everything before a commit (minutes)
  test       every test: crates, black box, crash rounds, clients in other languages; installs what they need
  matrices   the whole of the matrices, or of those that are named: restart, askers, silence (minutes)
  lint       fmt, clippy, docs, tidy, licences
  tidy       headers, imports between crates, leftovers, machine paths
  lane       what cargo calls for each test program: LANE PROGRAM ARGUMENTS
  licences   every dependency's licence and source against deny.toml
";

fn main() -> ExitCode {
    let chore = std::env::args().nth(1).unwrap_or_default();
    let done = match chore.as_str() {
        "check" => lint().and_then(|()| suite::quick()),
        "test" => suite::all(),
        "matrices" => suite::matrices(std::env::args().skip(2).collect()),
        "lint" => lint(),
        "tidy" => tidy::run(),
        "lane" => lanes::run(std::env::args().skip(2)),
        "licences" => licences::run(),
        "" | "help" | "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        unknown => Err(format!("there is no chore {unknown:?}\n\n{USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn lint() -> Result<(), String> {
    tidy::run()?;
    shell::cargo(&["fmt", "--all", "--check"], &[])?;
    shell::cargo(&["clippy", "-q", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], &[])?;
    let docs = ["doc", "-q", "--workspace", "--no-deps", "--document-private-items", "--locked"];
    shell::cargo(&docs, &[("RUSTDOCFLAGS", "-D warnings")])?;
    licences::run()?;
    println!("lint: ok");
    Ok(())
}

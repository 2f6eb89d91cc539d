//! The `leveret` binary: from the command line to the room that does the work, and back to an exit
//! code.
//!
//! Invariant: nothing about messages is decided here. Standard output carries what was asked for,
//! standard error carries errors and the log, and every error that stops us is one line that says
//! what to do.

mod allocator;
mod arguments;
mod bench;
mod certificates;
mod control;
mod demo;
mod descriptors;
mod exit;
mod inspect;
mod join;
mod logging;
mod manual;
mod node;
mod notify;
mod recover;
mod repair;
mod signals;
mod sizing;
mod version;

use std::process::ExitCode;

use arguments::Invocation;

fn main() -> ExitCode {
    if let Some(code) = control::under_another_name(std::env::args_os()) {
        return code;
    }
    let exit = match arguments::parse(std::env::args_os()) {
        Ok(Invocation::Show(text)) => exit::print(&text),
        Ok(Invocation::Server(sources)) => node::serve(&sources),
        Ok(Invocation::Join(asked)) => join::run(asked),
        Ok(Invocation::Inspect(inspection)) => inspect::run(&inspection),
        Ok(Invocation::Repair(asked)) => repair::run(&asked),
        Ok(Invocation::Recover(asked)) => recover::run(&asked),
        Ok(Invocation::Sizing(sizing)) => sizing::run(&sizing),
        Ok(Invocation::Bench(words)) => bench::run(&words),
        Ok(Invocation::Demo(demo)) => demo::run(&demo),
        Ok(Invocation::Control(words)) => return control::run(&words),
        Ok(Invocation::Certificates(asked)) => certificates::run(&asked),
        Ok(Invocation::Completions(shell)) => manual::completions(shell),
        Ok(Invocation::Manual(folder)) => manual::write(&folder),
        Err(error) => exit::usage(&error),
    };
    exit.into()
}

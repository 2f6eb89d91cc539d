//! `leveret bench`: the load generator with this process's signals and exit codes.
//!
//! Invariant: the first SIGINT or SIGTERM ends the load and the run is judged as far as it went; a
//! second one ends at once, with the brokers that it started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::Error;
use bench::command::{Ended, bench};
use bench::run::Context;

use crate::exit::{Exit, say, usage};
use crate::version::VERSION;

pub(crate) fn run(words: &[String]) -> Exit {
    crate::descriptors::raise();
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_signals(&interrupted);
    let context = Context { interrupted, version: VERSION.clone(), ..Context::default() };
    match bench(words, &context) {
        Ok(Ended::Met) => Exit::Done,
        Ok(Ended::Missed) => Exit::Failed,
        Ok(Ended::NotHeld) => Exit::NotHeld,
        Ok(Ended::Interrupted) => Exit::Interrupted,
        Err(Error::Usage(text)) => usage(&text),
        Err(error @ Error::Interrupted) => {
            say(&error.to_string());
            Exit::Interrupted
        }
        Err(error) => {
            say(&error.to_string());
            Exit::Unreadable
        }
    }
}

/// Without its signals the load still runs, and then ends like any other program.
fn watch_signals(interrupted: &Arc<AtomicBool>) {
    let interrupted = Arc::clone(interrupted);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
                return;
            };
            loop {
                let code = tokio::select! { _ = int.recv() => 130, _ = term.recv() => 143 };
                if interrupted.swap(true, Ordering::Relaxed) {
                    bench::broker::kill_all();
                    std::process::exit(code);
                }
            }
        });
    });
}

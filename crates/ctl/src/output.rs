//! Standard output and standard error.
//!
//! Invariant: a reader who has seen enough (`rabbitmqctl list_queues | head`) ends us quietly, and
//! output that cannot be written for another reason is an error.

use std::io::{self, IsTerminal as _, Write as _};

/// Writes what was asked for, and shows it at once.
pub(crate) fn out(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        err(&format!("cannot write to standard output: {error}\n"));
        std::process::exit(i32::from(crate::failure::SOFTWARE));
    }
}

/// Writes about it. Nothing is left to do when that fails.
pub(crate) fn err(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether a person looks at the output.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A heading: bold where a person looks.
pub(crate) fn heading(text: &str, on_terminal: bool) -> String {
    if on_terminal { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}

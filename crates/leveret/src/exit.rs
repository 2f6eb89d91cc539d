//! How this process ends: exit codes, and the last words on standard error.
//!
//! Invariant: a script can tell "you wrote it wrong" from "it went wrong" from "it was told to
//! stop", by the code alone.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// What the exit code says. `leveret --help` lists them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: done; a server drained and stopped because it was told to.
    Done,
    /// 1: the server could not start or had to stop, and the next start may go better; `inspect` found damage.
    Failed,
    /// 2: the command line, the configuration or a file that it names is wrong, or the data folder is not one to start with: no
    /// start goes better before somebody has changed something. Service managers do not try again.
    Usage,
    /// 3: `inspect` could not read the folder at all.
    Unreadable,
    /// 4: `bench` made its run, and nothing is wrong but that somebody fell behind, or messages were refused.
    NotHeld,
    /// 130: `bench` was interrupted before the end of its run, as shells tell of SIGINT.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Says a line on standard error, after the name of the program. Nothing is left to do when even
/// that fails.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "leveret: {text}");
}

/// Ends because of the command line.
pub(crate) fn usage(text: &str) -> Exit {
    say(text);
    Exit::Usage
}

/// Writes what was done, or found, and ends with `end`, which tells a script what is so: also where it cannot be
/// written. Standard error has its last line then.
pub(crate) fn print_and_end(text: &str, end: Exit) -> Exit {
    if print(text) != Exit::Done {
        say(text.lines().last().unwrap_or_default());
    }
    end
}

/// Writes what was asked for. A reader who has seen enough (`leveret inspect … | head`) is no
/// error.
pub(crate) fn print(text: &str) -> Exit {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Exit::Done,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(error) => {
            say(&format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
    }
}

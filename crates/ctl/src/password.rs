//! A password that was not written on the command line: typed without being shown, or the first line
//! of standard input.

use crate::failure::{DATA, Failure};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{self, BufRead as _, IsTerminal as _};

/// Asks for it. Errors: there is none.
pub(crate) fn ask() -> Result<String, Failure> {
    let input = io::stdin();
    let hidden = if input.is_terminal() { Hidden::begin() } else { None };
    crate::output::err("Password: ");
    let mut line = String::new();
    let read = input.lock().read_line(&mut line);
    drop(hidden);
    crate::output::err("\n");
    let password = line.trim_end_matches(['\n', '\r']);
    match read {
        Ok(_) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(Failure::error(DATA, "Password is not provided via argument or stdin")),
    }
}

/// What is typed is not shown as long as this lives.
struct Hidden(rustix::termios::Termios);

impl Hidden {
    fn begin() -> Option<Hidden> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut without = before.clone();
        without.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Now, &without).ok()?;
        Some(Hidden(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // The shell sets it right otherwise.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

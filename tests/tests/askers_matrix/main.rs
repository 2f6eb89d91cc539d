//! The matrix of vanishing askers: each synchronous method of AMQP and each change over HTTP, its client gone before the
//! answer, with it, and after half of what it had to say.
//!
//! Invariant that every cell looks at: what was asked for is there as a whole or not at all; a publish that is confirmed
//! can be got back, or its queue's end was decided; asked again, the same request works; nothing hangs.
#![allow(clippy::unwrap_used)]

mod amqp;
mod http;
mod scene;

use std::time::{Duration, Instant};

use clients::Outcome;
use clients::client::PATIENCE;
use clients::matrix::is_whole;

/// Tries of one cell: what is a matter of a millisecond does not show the first time.
pub(crate) fn tries() -> usize {
    if is_whole() { 12 } else { 1 }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Classic,
    Quorum,
    Transient,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Classic, Kind::Quorum, Kind::Transient];
}

/// Waits until something holds that comes about by itself.
pub(crate) fn comes_about(what: &str, mut is_so: impl FnMut() -> bool) -> Outcome {
    let due = Instant::now() + PATIENCE / 2;
    while !is_so() {
        if Instant::now() > due {
            return Err(format!("{what} did not come about"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

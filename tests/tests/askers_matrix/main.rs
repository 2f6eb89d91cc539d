//! The matrix of vanishing askers: each synchronous method of AMQP and each change over HTTP, its
//! client gone before the answer, with it, and after half of what it had to say.
//!
//! Invariant that every cell looks at: what was asked for is there as a whole or not at all; a
//! publish that is confirmed can be got back, or its queue's end was decided; asked again, the same
//! request works; nothing hangs.
#![allow(clippy::unwrap_used)]

mod amqp;
mod changes;
mod http;
mod scene;

use std::time::{Duration, Instant};

use clients::Outcome;
use clients::broker::is_foreign;
use clients::client::PATIENCE;
use clients::matrix::{Matrix, is_whole};

/// Tries of one cell: what is a matter of a millisecond does not show the first time. RabbitMQ is
/// not what is looked for defects in, and takes seconds for what asks for a virtual host of its
/// own.
pub(crate) fn tries() -> usize {
    match (is_whole(), is_foreign()) {
        (true, false) => 12,
        (true, true) => 4,
        (false, _) => 1,
    }
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

#[test]
fn differences_are_told() {
    let behaviour = std::fs::read_to_string("../docs/behaviour.md").unwrap();
    for differences in [amqp::DIFFERENCES, http::DIFFERENCES] {
        assert_eq!(Matrix::untold(differences, &behaviour), [""; 0]);
    }
}

//! Whoever connects to the port for other nodes and has not introduced himself: so many at a time, and
//! a line about the refused now and then.
//!
//! Invariant: strangers take bounded memory, and their lines do not fill the log.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Whoever comes beyond that is hung up on; a node tries again.
const AT_ONCE_MAX: usize = 256;
/// There is a line about the refused at most this often.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    open: Cell<usize>,
    /// Refused since the last line.
    untold: Cell<u64>,
    told_at: Cell<Option<Instant>>,
}

impl Strangers {
    /// Somebody connected; false if there are too many already.
    pub(super) fn enter(&self) -> bool {
        let is_one_more = self.open.get() < AT_ONCE_MAX;
        self.open.set(self.open.get() + usize::from(is_one_more));
        is_one_more
    }

    /// Somebody who had entered is known now, or gone.
    pub(super) fn leave(&self) {
        self.open.set(self.open.get() - 1);
    }

    /// Somebody is refused; says for how many there is to be a line, if there is to be one now.
    pub(super) fn refuse(&self, now: Instant) -> Option<u64> {
        self.untold.set(self.untold.get() + 1);
        if self.told_at.get().is_some_and(|at| now < at + TELL_EVERY) {
            return None;
        }
        self.told_at.set(Some(now));
        Some(self.untold.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_strangers_are_few_and_few_lines() {
        let (strangers, begin) = (Strangers::default(), Instant::now());
        assert_eq!((0..1_000).filter(|_| strangers.enter()).count(), AT_ONCE_MAX);
        strangers.leave();
        assert!(strangers.enter() && !strangers.enter());
        assert_eq!(strangers.refuse(begin), Some(1));
        assert_eq!((0..99).filter_map(|_| strangers.refuse(begin)).count(), 0);
        assert_eq!(strangers.refuse(begin + TELL_EVERY), Some(100));
    }
}

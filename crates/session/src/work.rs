//! What a connection may do in one turn before others are served: a read may bring thousands of
//! publishes, and one of them may go to thousands of queues.
//!
//! Invariant: a turn ends with the event that passes the limit; what it has done is counted in
//! queues that a message was handed to, not in time, so that it is the same on every machine. A
//! publish costs one comparison and one addition.

use broker::topology::RouteTarget;
use std::hash::BuildHasher;

/// About ten milliseconds. A full read of the smallest messages that each go to one queue is less.
const TURN_MAX: usize = 16_384;

/// A message that goes to the same queues as the one before it stands in one batch with it, which
/// costs its queues about so much less.
const SAME_QUEUES: usize = 16;

/// What a publish costs by where it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    queues: usize,
    /// Stands for all of them.
    hash: u64,
}

impl Load {
    pub(super) fn of(targets: &[RouteTarget]) -> Self {
        let hasher = foldhash::fast::FixedState::default();
        let queues = targets.iter().map(|target| target.queue);
        let hash = queues.fold(0, |hash: u64, queue| hasher.hash_one((hash, queue)));
        Load { queues: targets.len(), hash }
    }
}

/// The work of a turn so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    sum: usize,
    /// Where the last publish went.
    last: u64,
}

impl Work {
    /// A search for a route; see [`broker::topology::STEPS_OF_A_TARGET`].
    pub(super) fn add(&mut self, work: usize) {
        self.sum += work;
    }

    /// Enough was done, however little it came to.
    pub(super) fn end(&mut self) {
        self.sum = TURN_MAX;
    }

    #[inline]
    pub(super) fn publish(&mut self, Load { queues, hash }: Load) {
        self.sum += 1 + if hash == self.last { queues / SAME_QUEUES } else { queues };
        self.last = hash;
    }

    /// Whether the turn is to end.
    #[inline]
    pub(super) fn is_enough(self) -> bool {
        self.sum >= TURN_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many publishes are a turn, that go to these in turn.
    fn turn(loads: &[Load]) -> usize {
        let mut work = Work::default();
        let taken = loads.iter().cycle().take_while(|load| {
            let is_enough = work.is_enough();
            work.publish(**load);
            !is_enough
        });
        taken.count()
    }

    #[test]
    fn a_full_read_of_small_messages_is_one_turn_and_a_few_to_thousands_of_queues_are_not() {
        // Method, header and body of an empty message with the shortest names: 7 + 1 bytes of each
        // frame, and what is in them.
        let frames = (8 + 4 + 2 + 1 + 2 + 1) + (8 + 14) + (8 + 1);
        let to = |queues: usize, hash: u64| Load { queues, hash };
        assert!(turn(&[to(1, 1), to(1, 2)]) > (256 << 10) / frames);
        assert_eq!(turn(&[to(3_000, 1), to(3_000, 2)]), 6);
        assert_eq!(turn(&[to(3_000, 1)]), 73, "in batches");
    }
}

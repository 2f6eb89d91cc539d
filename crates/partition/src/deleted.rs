//! Queues of a partition that ended lately: what was routed to one before its end, and arrives
//! after it, is for nobody.
//!
//! A queue's id is never given out again, so remembering it too long does no harm, and forgetting
//! it costs what comes that late a place in a queue that nobody can reach, until the next start.
//! Every member remembers: whoever leads next has not deleted the queue, and has what its own
//! channels routed to it. Invariant: at most [`DELETED_MAX`] are remembered.

use crate::entry::{Batch, LogCommand};
use crate::machine::{FixedMap, Observer};
use broker::QueueId;

/// Deleted queues remembered: what is late comes within milliseconds.
const DELETED_MAX: usize = 4_096;

/// See the module.
#[derive(Default)]
pub(crate) struct Deleted {
    /// The last ones, fewer than half of [`DELETED_MAX`].
    young: FixedMap<QueueId, ()>,
    /// Those before, which are forgotten together.
    old: FixedMap<QueueId, ()>,
}

impl Deleted {
    /// Whether none is remembered: nearly always so where queues stay.
    pub(crate) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub(crate) fn contains(&self, queue: QueueId) -> bool {
        !self.is_empty() && (self.young.contains_key(&queue) || self.old.contains_key(&queue))
    }

    pub(crate) fn insert(&mut self, queue: QueueId) {
        self.young.insert(queue, ());
        if self.young.len() >= DELETED_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

impl Observer for Deleted {
    fn published(&mut self, _: &Batch<'_>) {}

    fn noted(&mut self, _: &LogCommand<'_>, _: usize) {}

    fn deleted(&mut self, queue: QueueId) {
        self.insert(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_however_many_there_were_and_no_more_than_the_limit() {
        let mut deleted = Deleted::default();
        assert!(deleted.is_empty() && !deleted.contains(QueueId(1)));
        let all = 5 * DELETED_MAX as u64;
        for id in 1..=all {
            deleted.insert(QueueId(id));
            let first = id.saturating_sub(DELETED_MAX as u64 / 2 - 1).max(1);
            assert!(deleted.contains(QueueId(first)) && deleted.contains(QueueId(id)), "{id}");
        }
        let known = (1..=all).filter(|id| deleted.contains(QueueId(*id))).count();
        assert!((DELETED_MAX / 2..=DELETED_MAX).contains(&known), "{known}");
    }
}

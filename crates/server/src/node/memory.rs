//! What a node's messages take of its memory, against the budget for them.

use std::sync::atomic::{AtomicBool, Ordering};

/// What counts against the budget, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Messages of queues in memory.
    pub(super) messages: u64,
    /// What clients have begun and not ended, and what histories remember.
    pub(super) begun: u64,
    /// What queues with deduplication remember.
    pub(super) keys: u64,
}

/// The budget, for all threads of a node.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limit: u64,
    is_over: AtomicBool,
    are_keys_full: AtomicBool,
}

impl MemoryBudget {
    pub(super) fn new(limit: u64) -> MemoryBudget {
        MemoryBudget { limit, is_over: AtomicBool::new(false), are_keys_full: AtomicBool::new(false) }
    }

    /// Compares what is taken with the budget: whether the memory alarm begins or ends, if it does.
    pub(super) fn check(&self, taken: Taken) -> Option<bool> {
        let Taken { messages, begun, keys } = taken;
        let limit = self.limit;
        self.are_keys_full.store(keys > limit / 2, Ordering::Relaxed);
        // All is one budget. But the alarm holds publishers until consumers have made room, and
        // from what was begun, and from what histories and deduplication remember, they take
        // nothing: beyond half of the limit that counts no further.
        let bytes = messages + (begun + keys).min(limit / 2);
        let on = self.is_over.load(Ordering::Relaxed);
        // Between nine tenths of the limit and the limit nothing changes, so that the alarm does
        // not flutter.
        let wanted = if on { bytes > limit / 10 * 9 } else { bytes > limit };
        (wanted != on && self.is_over.swap(wanted, Ordering::AcqRel) != wanted).then_some(wanted)
    }

    /// Whether messages in memory are beyond their budget.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether queues with deduplication remember as much as they may.
    pub(crate) fn are_keys_full(&self) -> bool {
        self.are_keys_full.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_begins_beyond_the_limit_and_ends_a_tenth_below() {
        let budget = MemoryBudget::new(1000);
        let check = |messages| budget.check(Taken { messages, begun: 0, keys: 0 });
        assert_eq!(
            [check(1000), check(1001), check(1002), check(901), check(900)],
            [None, Some(true), None, None, Some(false)]
        );
        assert!(!budget.is_over());
    }

    #[test]
    fn what_consumers_cannot_free_raises_no_alarm_alone() {
        let budget = MemoryBudget::new(1000);
        assert_eq!(budget.check(Taken { messages: 0, begun: 4000, keys: 400 }), None);
        assert!(!budget.are_keys_full());
        assert_eq!(budget.check(Taken { messages: 501, begun: 0, keys: 501 }), Some(true));
        assert!(budget.are_keys_full());
    }
}

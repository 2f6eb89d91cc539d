//! Messages that their queues gave up and that became no dead letters, as there is no dead-letter exchange: how many,
//! for the figures of the node.
//!
//! Invariant: one row at most for each queue and reason, and [`ROWS_MAX`] of them, until somebody takes them: where
//! queues come and go and nobody asks, what the oldest gave up is not told. Counted by a leader when it says so to the
//! log, so that one who comes to lead counts again what was not decided.

use crate::entry::Reason;
use broker::QueueId;
use std::collections::BTreeMap;

/// Some 50 bytes each.
const ROWS_MAX: usize = 1024;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(BTreeMap<(QueueId, u8), u64>);

impl GivenUp {
    /// Notes so many of a queue, if that is what messages die of.
    pub(crate) fn note(&mut self, queue: QueueId, reason: Reason, count: u64) {
        if count > 0 && reason.death().is_some() {
            *self.0.entry((queue, reason as u8)).or_default() += count;
            if self.0.len() > ROWS_MAX {
                self.0.pop_first();
            }
        }
    }

    /// What there is since this was asked before.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (QueueId, Reason, u64)> + use<> {
        let rows = std::mem::take(&mut self.0).into_iter();
        rows.filter_map(|((queue, reason), count)| Some((queue, Reason::from_byte(reason)?, count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_bounded_and_what_is_taken_is_gone() {
        let mut given_up = GivenUp::default();
        for queue in 1..=2_000 {
            given_up.note(QueueId(queue), Reason::Expired, 2);
            given_up.note(QueueId(queue), Reason::Acked, 1);
        }
        given_up.note(QueueId(2_000), Reason::Expired, 3);
        let taken: Vec<_> = given_up.take().collect();
        assert_eq!(taken.len(), ROWS_MAX);
        assert_eq!(taken.last(), Some(&(QueueId(2_000), Reason::Expired, 5)));
        assert_eq!(given_up.take().count(), 0);
    }
}

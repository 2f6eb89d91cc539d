//! Messages that their queues gave up and that became no dead letters, as there is no dead-letter exchange: how many,
//! for the figures of the node.
//!
//! Invariant: one row at most for each queue and reason, until somebody takes them; counted by a leader when it
//! says so to the log, so that one who comes to lead counts again what was not decided.

use crate::entry::Reason;
use broker::QueueId;
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(BTreeMap<(QueueId, u8), u64>);

impl GivenUp {
    /// Notes so many of a queue, if that is what messages die of.
    pub(crate) fn note(&mut self, queue: QueueId, reason: Reason, count: u64) {
        if count > 0 && reason.death().is_some() {
            *self.0.entry((queue, reason as u8)).or_default() += count;
        }
    }

    /// What there is since this was asked before.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (QueueId, Reason, u64)> + use<> {
        let rows = std::mem::take(&mut self.0).into_iter();
        rows.filter_map(|((queue, reason), count)| Some((queue, Reason::from_byte(reason)?, count)))
    }
}

//! Queues of a partition that ended lately: what was routed to one before its end, and arrives after it, is for nobody.
//!
//! A queue's id is never given out again, so remembering it too long does no harm, and forgetting it costs what comes that
//! late a place in a queue that nobody can reach, until the next start. Every member remembers: whoever leads next has not
//! deleted the queue, and has what its own channels routed to it. Invariant: at most [`DELETED_MAX`] are remembered.

use crate::machine::{FixedMap, Observer};
use broker::QueueId;

/// Deleted queues remembered: what is late comes within milliseconds, so the oldest may be forgotten together.
const DELETED_MAX: usize = 65_536;

/// See the module.
#[derive(Default)]
pub(crate) struct Deleted(FixedMap<QueueId, ()>);

impl Deleted {
    /// Whether none is remembered: nearly always so where queues stay.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, queue: QueueId) -> bool {
        !self.0.is_empty() && self.0.contains_key(&queue)
    }

    pub(crate) fn insert(&mut self, queue: QueueId) {
        if self.0.len() >= DELETED_MAX {
            self.0.clear();
        }
        self.0.insert(queue, ());
    }
}

impl Observer for Deleted {
    fn published(&mut self, _: QueueId, _: u64, _: u32) {}

    fn deleted(&mut self, queue: QueueId) {
        self.insert(queue);
    }
}

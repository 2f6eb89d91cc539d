//! Queues that end: what may be nowhere because its queue was gone or going, and what must not come
//! any more.
//!
//! Invariant: a queue ends once, in the topology first, and a message is excused only from queues
//! that are gone. A delete that came to nothing, or that nobody ever decided, excuses nothing.

use super::violated;
use broker::QueueId;
use consensus::Term;
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub struct Ends {
    /// Queues that the topology has deleted.
    gone: BTreeSet<QueueId>,
    /// By leaders that cancelled their consumers.
    cancelled: BTreeSet<(QueueId, Term)>,
    /// By the queue that a dead letter goes to, and the message: the ids that the queue had when it
    /// left.
    letters: BTreeMap<(QueueId, u64), BTreeSet<QueueId>>,
}

impl Ends {
    /// The topology has deleted a queue.
    pub fn deleted(&mut self, queue: QueueId) {
        assert!(self.gone.insert(queue), "a queue ends once");
    }

    /// Queues that are gone.
    pub fn gone(&self) -> &BTreeSet<QueueId> {
        &self.gone
    }

    /// Whether messages may not be in this queue, though they were published to it and confirmed.
    pub fn excuses(&self, queue: QueueId) -> bool {
        self.gone.contains(&queue)
    }

    /// A leader cancelled a consumer because its queue is gone.
    pub fn cancelled(&mut self, queue: QueueId, term: Term) {
        if !self.gone.contains(&queue) {
            violated("deleted", &format!("consumers of queue {} were cancelled, and it is there", queue.0));
        }
        self.cancelled.insert((queue, term));
    }

    /// A leader gives a message of this queue out.
    pub fn given(&self, queue: QueueId, seq: u64, term: Term) {
        if self.cancelled.contains(&(queue, term)) {
            let queue = queue.0;
            violated("deleted", &format!("message {seq} of queue {queue} went out after its consumers were cancelled"));
        }
    }

    /// A dead letter left for the queue of this name.
    pub fn letter(&mut self, name: QueueId, id: u64, current: Option<QueueId>) {
        self.letters.entry((name, id)).or_default().extend(current);
    }

    /// Whether a dead letter that left for the queue of this name may have met its end.
    pub fn excuses_letter(&self, name: QueueId, id: u64) -> bool {
        let sent_to = self.letters.get(&(name, id));
        sent_to.is_some_and(|ids| ids.iter().any(|grave| self.gone.contains(grave)))
    }
}

//! What consumers of queues with a single active consumer hold, as far as their clients have not
//! asked for its end.
//!
//! Invariant: a client asks before its leader hears it, so what is held here is held there too, and
//! perhaps more there.

use super::violated;
use broker::{ChannelKey, ConsumerKey, QueueId};
use consensus::Term;
use partition::Delivery;
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub struct Holdings {
    /// By queue: the term that this is about, and what each consumer holds.
    queues: BTreeMap<QueueId, (Term, BTreeMap<ConsumerKey, BTreeSet<u64>>)>,
    /// Channels that their clients ended: what they are given still comes back.
    ended: BTreeSet<ChannelKey>,
}

impl Holdings {
    /// A consumer is given a message; nobody else may hold one.
    pub fn given(&mut self, delivery: &Delivery, term: Term) {
        let (of_term, holders) = self.queues.entry(delivery.queue).or_insert((term, BTreeMap::new()));
        if *of_term < term {
            // With a leader go its consumers.
            (*of_term, *holders) = (term, BTreeMap::new());
        }
        if *of_term != term {
            return;
        }
        let key = delivery.consumer;
        if let Some((other, held)) = holders.iter().find(|(other, held)| **other != key && !held.is_empty()) {
            let (queue, seq, count) = (delivery.queue.0, delivery.seq, held.len());
            let what = format!("message {seq} of queue {queue} goes to {key:?}, and {other:?} holds {count}");
            violated("single active", &what);
        }
        if delivery.needs_ack && !self.ended.contains(&key.channel) {
            holders.entry(key).or_default().insert(delivery.seq);
        }
    }

    /// A consumer settles, or gives back.
    pub fn released(&mut self, queue: QueueId, holder: ConsumerKey, seqs: std::ops::Range<u64>) {
        if let Some(held) = self.queues.get_mut(&queue).and_then(|(_, holders)| holders.get_mut(&holder)) {
            seqs.for_each(|seq| _ = held.remove(&seq));
        }
    }

    /// A channel ends.
    pub fn ended(&mut self, channel: ChannelKey) {
        self.ended.insert(channel);
        for (_, holders) in self.queues.values_mut() {
            holders.retain(|key, _| key.channel != channel);
        }
    }
}

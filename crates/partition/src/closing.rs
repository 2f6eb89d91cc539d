//! A queue whose delete on a condition is being decided.
//!
//! Invariant: what is confirmed is in its queue, or the queue's end was decided. A queue that was
//! found unused or empty is still so when the topology decides that it goes: until then what comes
//! is taken in and not confirmed, and nobody consumes. Called off, the delete leaves no trace:
//! everything goes on from where it waited.

use crate::command::{Effect, Level, Reply, RequestId};
use crate::machine::FixedMap;
use crate::queue::{Queue, Sink};
use broker::queue::{Consumer, SeqRanges};
use broker::{ChannelKey, ConsumerKey, QueueId};
use smallvec::SmallVec;

/// Publishes that one queue keeps waiting at most; more are refused. A decision takes about as long
/// as a sync.
const CONFIRMS_MAX: usize = 1 << 16;

/// A publish that was taken in and is not confirmed before these queues have been decided about.
#[derive(Debug)]
pub(crate) struct HeldConfirm {
    pub(crate) channel: ChannelKey,
    pub(crate) seq: u64,
    pub(crate) level: Level,
    pub(crate) closing: SmallVec<[QueueId; 1]>,
}

/// What waits for the decision about one queue.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    pub(crate) confirms: Vec<HeldConfirm>,
    /// Consumers that are not attached yet, with their requests.
    pub(crate) consumers: Vec<(Consumer, RequestId)>,
    /// What those hold of an earlier leader: first message and how many.
    pub(crate) holds: Vec<(ConsumerKey, u64, u64)>,
}

impl Closing {
    /// Whether no more publishes may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.confirms.len() >= CONFIRMS_MAX
    }

    /// Forgets a consumer that is not attached yet.
    pub(crate) fn take(&mut self, consumer: ConsumerKey) -> Option<(Consumer, RequestId)> {
        let at = self.consumers.iter().position(|(held, _)| held.key == consumer)?;
        Some(self.consumers.remove(at))
    }

    /// What a consumer settles that is not attached yet it does not hold any more. Who has a message twice has it once
    /// then.
    pub(crate) fn settled(&mut self, consumer: ConsumerKey, first: u64, count: u64) {
        let mut settled = SeqRanges::new();
        settled.insert_range(first, count);
        let left = std::mem::take(&mut self.holds).into_iter().flat_map(|(key, first, count)| {
            // One of nothing says who was the active one, which no ack changes.
            let parts =
                if key == consumer && count > 0 { settled.take_from(first, count) } else { vec![(first, count)] };
            parts.into_iter().map(move |(first, count)| (key, first, count))
        });
        self.holds = left.collect();
    }

    /// A channel has ended, or its link has: it says anew what it consumes and holds, if it comes back.
    pub(crate) fn detach(&mut self, channel: ChannelKey) {
        self.consumers.retain(|(consumer, _)| consumer.key.channel != channel);
        self.holds.retain(|(consumer, ..)| consumer.channel != channel);
    }

    /// Answers the consumers that will not be attached.
    pub(crate) fn refuse_consumers(&self, reply: Reply, effects: &mut Vec<Effect>) {
        for (consumer, request) in &self.consumers {
            effects.push(Effect::Reply { channel: consumer.key.channel, request: *request, reply: reply.clone() });
        }
    }

    /// Keeps a confirm until the queues that it waits for are decided about. Gives it back where
    /// none of them waits any more.
    pub(crate) fn hold<S: Sink>(
        queues: &mut FixedMap<QueueId, Queue<S>>,
        mut held: HeldConfirm,
    ) -> Option<HeldConfirm> {
        while let Some(queue) = held.closing.pop() {
            if let Some(closing) = queues.get_mut(&queue).and_then(|lq| lq.closing.as_mut()) {
                closing.confirms.push(held);
                return None;
            }
        }
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_settled_before_its_consumer_is_attached_is_held_no_more() {
        let key = |number| ConsumerKey { channel: ChannelKey(7), number };
        let mut closing = Closing { holds: vec![(key(1), 5, 4), (key(2), 5, 4)], ..Closing::default() };
        closing.settled(key(1), 6, 2);
        assert_eq!(closing.holds, [(key(1), 5, 1), (key(1), 8, 1), (key(2), 5, 4)]);
        closing.settled(key(2), 1, 20);
        closing.settled(key(1), 1, 1);
        assert_eq!(closing.holds, [(key(1), 5, 1), (key(1), 8, 1)]);
        closing.holds = vec![(key(1), 5, 1), (key(1), 4, 3)];
        closing.settled(key(1), 5, 1);
        assert_eq!(closing.holds, [(key(1), 4, 3)], "its client has it once more");
        closing.settled(key(1), 5, 1);
        assert_eq!(closing.holds, [(key(1), 4, 1), (key(1), 6, 1)]);
        closing.holds = vec![(key(1), 5, 1), (key(1), 6, 0)];
        closing.settled(key(1), 5, 1);
        assert_eq!(closing.holds, [(key(1), 6, 0)], "it was the active one all the same");
    }

    #[test]
    fn of_a_channel_that_ends_nothing_is_left_that_it_would_say_again() {
        let key = |channel| ConsumerKey { channel: ChannelKey(channel), number: 1 };
        let mut closing = Closing { holds: vec![(key(7), 5, 4), (key(8), 5, 4)], ..Closing::default() };
        closing.detach(ChannelKey(7));
        assert_eq!(closing.holds, [(key(8), 5, 4)]);
    }
}

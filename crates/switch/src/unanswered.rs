//! What channels of this shard have asked of partitions that one other node leads, and have not
//! heard of yet.
//!
//! Invariant: whatever left for the other node is answered once: by that node, or here, when the
//! link to it is gone. An answer that comes twice is passed on once.

use broker::queue::SeqRanges;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::{Command, Effect, Publish, Reply, RequestId};
use smallvec::SmallVec;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    channels: HashMap<ChannelKey, OfChannel, FixedState>,
}

/// What one channel has under way.
#[derive(Debug, Default)]
struct OfChannel {
    /// Every partition that it was in touch with, and its publishes there without an answer, where those
    /// are in memory.
    partitions: SmallVec<[(PartitionId, SeqRanges); 2]>,
    requests: Vec<Request>,
    consumers: Vec<(u32, PartitionId, QueueId)>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    id: RequestId,
    /// The consumer that begins or ends with it.
    consumer: Option<(u32, bool)>,
}

impl OfChannel {
    fn publishes(&mut self, partition: PartitionId) -> &mut SeqRanges {
        let at = self.partitions.iter().position(|(known, _)| *known == partition).unwrap_or_else(|| {
            self.partitions.push((partition, SeqRanges::new()));
            self.partitions.len() - 1
        });
        &mut self.partitions[at].1
    }
}

/// Whether a consumer waits to be attached.
fn is_starting(requests: &[Request], number: u32) -> bool {
    requests.iter().any(|request| request.consumer == Some((number, true)))
}

impl Unanswered {
    /// A command leaves for the other node.
    pub(crate) fn note(&mut self, partition: PartitionId, command: &Command) {
        let (channel, request) = match command {
            Command::Publish(Publish { channel, publish_seq, .. }) => {
                if *publish_seq != 0 {
                    let of = self.channels.entry(*channel).or_default();
                    let publishes = of.publishes(partition);
                    // Of the others it is known what becomes of them: see `publishes`.
                    if partition.is_in_memory() {
                        publishes.insert_range(*publish_seq, 1);
                    }
                }
                return;
            }
            Command::Consume { queue, consumer, request, .. } => {
                let (channel, number) = (consumer.key.channel, consumer.key.number);
                let of = self.channels.entry(channel).or_default();
                of.consumers.retain(|(known, ..)| *known != number);
                of.consumers.push((number, partition, *queue));
                (channel, Request { id: *request, consumer: Some((number, true)) })
            }
            Command::Cancel { consumer, request, .. } => {
                (consumer.channel, Request { id: *request, consumer: Some((consumer.number, false)) })
            }
            Command::Get { channel, request, .. }
            | Command::Purge { channel, request, .. }
            | Command::Stat { channel, request, .. }
            | Command::Close { channel, request, .. }
            | Command::Mark { channel, request }
            | Command::Sync { channel, request } => (*channel, Request { id: *request, consumer: None }),
            Command::Settle { .. }
            | Command::Hold { .. }
            | Command::Configure { .. }
            | Command::DeadLetterAnswered { .. }
            | Command::Detach { .. }
            | Command::Part { .. }
            | Command::Reopen { .. }
            | Command::Delete { .. }
            | Command::Stall { .. }
            | Command::Grant { .. } => return,
        };
        let of = self.channels.entry(channel).or_default();
        let _ = of.publishes(partition);
        of.requests.push(request);
    }

    /// Something else is asked of a partition of the other node.
    pub(crate) fn note_request(&mut self, partition: PartitionId, channel: ChannelKey, request: RequestId) {
        let of = self.channels.entry(channel).or_default();
        let _ = of.publishes(partition);
        of.requests.push(Request { id: request, consumer: None });
    }

    /// An effect came from the other node; false if nobody waits for it any more.
    pub(crate) fn answered(&mut self, partition: PartitionId, effect: &Effect) -> bool {
        match effect {
            // It is known elsewhere what waits for it.
            Effect::Confirm { .. } | Effect::Refuse { .. } | Effect::Returned { .. } if !partition.is_in_memory() => {
                true
            }
            Effect::Confirm { channel, first, count } | Effect::Refuse { channel, first, count } => {
                let Some(of) = self.channels.get_mut(channel) else { return false };
                of.publishes(partition).remove_range(*first, *count) == *count
            }
            Effect::Reply { channel, request, reply } => {
                let Some(of) = self.channels.get_mut(channel) else { return false };
                let Some(at) = of.requests.iter().position(|known| known.id == *request) else { return false };
                let ended = match (of.requests.swap_remove(at).consumer, reply) {
                    (Some((number, true)), reply) if *reply != Reply::Consuming => Some(number),
                    (Some((number, false)), _) => Some(number),
                    _ => None,
                };
                of.consumers.retain(|(number, ..)| Some(*number) != ended);
                true
            }
            Effect::Cancelled { consumer, .. } => {
                let Some(of) = self.channels.get_mut(&consumer.channel) else { return false };
                let before = of.consumers.len();
                of.consumers.retain(|(number, ..)| *number != consumer.number);
                of.consumers.len() < before
            }
            // What a leader says to a consumer that it has let go of comes before it takes it again:
            // it stood still, and the link before this one was gone meanwhile.
            Effect::Deliver(delivery) => {
                let Some(of) = self.channels.get(&delivery.consumer.channel) else { return false };
                let number = delivery.consumer.number;
                of.consumers.iter().any(|(known, ..)| *known == number) && !is_starting(&of.requests, number)
            }
            _ => true,
        }
    }

    /// A channel leaves a partition; true if it was in touch with it over there.
    pub(crate) fn detach(&mut self, partition: PartitionId, channel: ChannelKey) -> bool {
        let Some(of) = self.channels.get_mut(&channel) else { return false };
        let before = of.partitions.len();
        of.partitions.retain(|(known, _)| *known != partition);
        of.consumers.retain(|(_, at, _)| *at != partition);
        let was_there = of.partitions.len() < before;
        if of.partitions.is_empty() {
            self.channels.remove(&channel);
        }
        was_there
    }

    /// The link is gone: what its channels hear in the place of the other node. Publishes are
    /// promised by nobody, requests may be asked again, consumers are attached no more.
    pub(crate) fn give_up(self) -> Vec<Effect> {
        let mut channels: Vec<_> = self.channels.into_iter().collect();
        channels.sort_unstable_by_key(|(key, _)| *key);
        let mut effects = Vec::new();
        for (channel, OfChannel { partitions, requests, consumers }) in channels {
            for (_, mut publishes) in partitions {
                let refused = publishes.drain().map(|(first, count)| Effect::Refuse { channel, first, count });
                effects.extend(refused);
            }
            // What is being attached is told by the answer to its request.
            let attached = consumers.iter().filter(|(number, ..)| !is_starting(&requests, *number));
            effects.extend(attached.map(|(number, _, queue)| Effect::Cancelled {
                consumer: ConsumerKey { channel, number: *number },
                queue: *queue,
            }));
            let reply = |request: &Request| Effect::Reply { channel, request: request.id, reply: Reply::NotLeader };
            effects.extend(requests.iter().map(reply));
        }
        effects
    }
}

/// What its channel hears of a command for a node that cannot be reached.
pub(crate) fn unanswered(partition: PartitionId, command: &Command) -> Vec<Effect> {
    let mut unanswered = Unanswered::default();
    unanswered.note(partition, command);
    unanswered.give_up()
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::NodeLife;
    use broker::queue::Consumer;
    use partition::{Delivery, Message};

    const P: PartitionId = PartitionId::in_memory(broker::NodeNumber(2), 0);

    fn channel(number: u64) -> ChannelKey {
        ChannelKey::of(NodeLife { node: 1, start: 1 }, number)
    }

    fn publish(number: u64, publish_seq: u64) -> Command {
        let empty = bytes::Bytes::new();
        let message =
            Message { exchange: empty.clone(), routing_key: empty.clone(), properties: empty.clone(), body: empty };
        let targets = SmallVec::new();
        Command::Publish(Publish { channel: channel(number), publish_seq, term: 0, targets, delay_ms: 0, message })
    }

    #[test]
    fn what_was_not_answered_is_given_up_once() {
        let mut unanswered = Unanswered::default();
        for seq in 1..=5 {
            unanswered.note(P, &publish(1, seq));
        }
        unanswered.note(P, &publish(2, 0));
        unanswered.note(P, &Command::Stat { queue: QueueId(1), channel: channel(1), request: RequestId(9) });
        unanswered.note(P, &Command::Stat { queue: QueueId(1), channel: channel(1), request: RequestId(10) });
        assert!(unanswered.answered(P, &Effect::Confirm { channel: channel(1), first: 1, count: 2 }));
        assert!(!unanswered.answered(P, &Effect::Confirm { channel: channel(1), first: 1, count: 2 }), "a second time");
        let reply = |request, reply| Effect::Reply { channel: channel(1), request: RequestId(request), reply };
        assert!(unanswered.answered(P, &reply(9, Reply::Done)));
        assert!(!unanswered.answered(P, &reply(9, Reply::Done)), "a second time");
        let told = unanswered.give_up();
        assert_eq!(told, [Effect::Refuse { channel: channel(1), first: 3, count: 3 }, reply(10, Reply::NotLeader)]);
    }

    #[test]
    fn a_consumer_hears_nothing_of_a_link_before_until_it_is_attached_over_this_one() {
        let mut unanswered = Unanswered::default();
        let key = ConsumerKey { channel: channel(1), number: 3 };
        let delivery = Effect::Deliver(Delivery {
            consumer: key,
            queue: QueueId(1),
            seq: 1,
            redelivered: false,
            needs_ack: true,
            counts: broker::queue::Counts::default(),
            term: 1,
            message: bytes::Bytes::new(),
        });
        assert!(!unanswered.answered(P, &delivery), "nobody asked for it over this link");
        let consumer = Consumer { key, prefetch: 2, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        unanswered.note(P, &Command::Consume { queue: QueueId(1), consumer, again: false, request: RequestId(4) });
        assert!(!unanswered.answered(P, &delivery), "it is of the attachment before");
        let reply = Effect::Reply { channel: channel(1), request: RequestId(4), reply: Reply::Consuming };
        assert!(unanswered.answered(P, &reply) && unanswered.answered(P, &delivery));
    }

    #[test]
    fn a_channel_that_left_hears_nothing_more() {
        let mut unanswered = Unanswered::default();
        unanswered.note(P, &publish(1, 1));
        assert!(unanswered.detach(P, channel(1)));
        assert!(!unanswered.detach(P, channel(1)));
        assert_eq!(unanswered.give_up(), []);
    }
}

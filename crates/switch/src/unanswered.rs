//! What channels of this shard have asked of partitions that one other node leads, and have not
//! heard of yet.
//!
//! Invariant: whatever left for the other node is answered once: by that node, or here, when the
//! link to it is gone. An answer that comes twice is passed on once.

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
    /// Every partition that it was in touch with.
    partitions: SmallVec<[PartitionId; 2]>,
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
    fn touch(&mut self, partition: PartitionId) {
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
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
                    self.channels.entry(*channel).or_default().touch(partition);
                }
                return;
            }
            Command::Consume { queue, consumer, request } => {
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
            | Command::Sync { channel, request } => (*channel, Request { id: *request, consumer: None }),
            Command::Settle { .. }
            | Command::SettleAgain { .. }
            | Command::Mark { .. }
            | Command::Hold { .. }
            | Command::Configure { .. }
            | Command::DeadLetterAnswered { .. }
            | Command::Detach { .. }
            | Command::Fence { .. }
            | Command::Resume { .. }
            | Command::Raise { .. }
            | Command::Lives { .. }
            | Command::Reopen { .. }
            | Command::Delete { .. }
            | Command::Stall { .. }
            | Command::Grant { .. } => return,
        };
        let of = self.channels.entry(channel).or_default();
        of.touch(partition);
        of.requests.push(request);
    }

    /// Something else is asked of a partition of the other node.
    pub(crate) fn note_request(&mut self, partition: PartitionId, channel: ChannelKey, request: RequestId) {
        let of = self.channels.entry(channel).or_default();
        of.touch(partition);
        of.requests.push(Request { id: request, consumer: None });
    }

    /// An effect came from the other node; false if nobody waits for it any more.
    pub(crate) fn answered(&mut self, effect: &Effect) -> bool {
        match effect {
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
        of.partitions.retain(|known| *known != partition);
        of.consumers.retain(|(_, at, _)| *at != partition);
        let was_there = of.partitions.len() < before;
        if of.partitions.is_empty() {
            self.channels.remove(&channel);
        }
        was_there
    }

    /// The link is gone: what its channels hear in the place of the other node. Requests may be asked
    /// again, consumers are attached no more. Publishes are [`Unconfirmed`](crate::unconfirmed)'s.
    pub(crate) fn give_up(self) -> Vec<Effect> {
        let mut channels: Vec<_> = self.channels.into_iter().collect();
        channels.sort_unstable_by_key(|(key, _)| *key);
        let mut effects = Vec::new();
        for (channel, OfChannel { requests, consumers, .. }) in channels {
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
    if let Command::Publish(Publish { channel, publish_seq: first @ 1.., .. }) = command {
        return vec![Effect::Refuse { channel: *channel, first: *first, count: 1 }];
    }
    let mut unanswered = Unanswered::default();
    unanswered.note(partition, command);
    unanswered.give_up()
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::NodeLife;
    use broker::queue::Consumer;
    use partition::Delivery;

    const P: PartitionId = PartitionId(3);

    fn channel(number: u64) -> ChannelKey {
        ChannelKey::of(NodeLife { node: 1, start: 1 }, number)
    }

    #[test]
    fn what_was_not_answered_is_given_up_once() {
        let mut unanswered = Unanswered::default();
        unanswered.note(P, &Command::Stat { queue: QueueId(1), channel: channel(1), request: RequestId(9) });
        unanswered.note(P, &Command::Stat { queue: QueueId(1), channel: channel(1), request: RequestId(10) });
        let reply = |request, reply| Effect::Reply { channel: channel(1), request: RequestId(request), reply };
        assert!(unanswered.answered(&reply(9, Reply::Done)));
        assert!(!unanswered.answered(&reply(9, Reply::Done)), "a second time");
        let told = unanswered.give_up();
        assert_eq!(told, [reply(10, Reply::NotLeader)]);
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
            message: bytes::Bytes::new(),
        });
        assert!(!unanswered.answered(&delivery), "nobody asked for it over this link");
        let consumer = Consumer { key, prefetch: 2, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        unanswered.note(P, &Command::Consume { queue: QueueId(1), consumer, request: RequestId(4) });
        assert!(!unanswered.answered(&delivery), "it is of the attachment before");
        let reply = Effect::Reply { channel: channel(1), request: RequestId(4), reply: Reply::Consuming };
        assert!(unanswered.answered(&reply) && unanswered.answered(&delivery));
    }

    #[test]
    fn a_channel_that_left_hears_nothing_more() {
        let mut unanswered = Unanswered::default();
        unanswered.note(P, &Command::Stat { queue: QueueId(1), channel: channel(1), request: RequestId(9) });
        assert!(unanswered.detach(P, channel(1)));
        assert!(!unanswered.detach(P, channel(1)));
        assert_eq!(unanswered.give_up(), []);
    }
}

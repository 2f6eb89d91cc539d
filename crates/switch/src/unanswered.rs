//! What channels of this shard have asked of partitions that one other node leads, and have not
//! heard of yet.
//!
//! Invariant: whatever left for the other node is answered once: by that node, or here, when the
//! link to it is gone. An answer that comes twice is passed on once, and one that does not fit its
//! question not at all: who asked hears that nobody answers. A channel is known here while the other node knows it, or owes it
//! an answer: who declares a queue over there and goes leaves nothing behind.

use broker::queue::SeqRanges;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::{Command, Effect, Publish, Reply, RequestId};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    channels: HashMap<ChannelKey, OfChannel, FixedState>,
}

/// What one channel has under way.
#[derive(Debug, Default)]
struct OfChannel {
    /// Every partition that knows it over there, until it is detached, and its publishes there without an answer, where
    /// those are in memory.
    partitions: SmallVec<[(PartitionId, SeqRanges); 2]>,
    requests: BTreeMap<RequestId, Request>,
    consumers: BTreeMap<u32, (PartitionId, QueueId)>,
    /// How many requests each consumer waits for before it is attached.
    starting: BTreeMap<u32, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// How often it was asked and not answered.
    times: u32,
    /// The consumer that begins or ends with it.
    consumer: Option<(u32, bool)>,
    asks: Asks,
}

/// What is asked, as far as answers to it differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Consume,
    Get,
    Purge,
    Stat,
    Delete,
    /// Only whether it is done.
    Other,
}

impl Asks {
    /// Whether a reply answers it. All may be told that nobody knows, or that the queue went.
    fn fits(self, reply: &Reply) -> bool {
        match reply {
            Reply::NotLeader | Reply::Unavailable | Reply::Gone => true,
            Reply::Consuming | Reply::ConsumeRefused => self == Asks::Consume,
            Reply::Got { .. } | Reply::Empty => self == Asks::Get,
            Reply::Counted(_) => matches!(self, Asks::Purge | Asks::Delete),
            Reply::Stat { .. } => self == Asks::Stat,
            Reply::DeleteRefused { .. } => self == Asks::Delete,
            Reply::Done => self == Asks::Other,
        }
    }
}

impl OfChannel {
    fn publishes(&mut self, partition: PartitionId) -> &mut SeqRanges {
        let at = self.partitions.iter().position(|(known, _)| *known == partition).unwrap_or_else(|| {
            self.partitions.push((partition, SeqRanges::new()));
            self.partitions.len() - 1
        });
        &mut self.partitions[at].1
    }

    fn ask(&mut self, id: RequestId, asks: Asks, consumer: Option<(u32, bool)>) {
        self.requests.entry(id).or_insert(Request { times: 0, consumer, asks }).times += 1;
        if let Some((number, true)) = consumer {
            *self.starting.entry(number).or_default() += 1;
        }
    }

    /// Takes a request out, once for each time that it was asked.
    fn take(&mut self, id: RequestId) -> Option<Request> {
        let request = self.requests.get_mut(&id)?;
        request.times -= 1;
        let asked = *request;
        if asked.times == 0 {
            self.requests.remove(&id);
        }
        if let Some((number, true)) = asked.consumer
            && let Some(count) = self.starting.get_mut(&number)
        {
            *count -= 1;
            if *count == 0 {
                self.starting.remove(&number);
            }
        }
        Some(asked)
    }

    /// Whether a consumer waits to be attached.
    fn is_starting(&self, number: u32) -> bool {
        self.starting.contains_key(&number)
    }

    fn is_over(&self) -> bool {
        self.partitions.is_empty() && self.requests.is_empty() && self.consumers.is_empty()
    }
}

impl Unanswered {
    /// A command leaves for the other node.
    pub(crate) fn note(&mut self, partition: PartitionId, command: &Command) {
        let (channel, request, asks) = match command {
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
                let _ = of.publishes(partition);
                of.consumers.insert(number, (partition, *queue));
                return of.ask(*request, Asks::Consume, Some((number, true)));
            }
            Command::Cancel { consumer, request, .. } => {
                let of = self.channels.entry(consumer.channel).or_default();
                return of.ask(*request, Asks::Other, Some((consumer.number, false)));
            }
            Command::Get { channel, request, .. } => {
                let _ = self.channels.entry(*channel).or_default().publishes(partition);
                (*channel, *request, Asks::Get)
            }
            Command::Purge { channel, request, .. } => (*channel, *request, Asks::Purge),
            Command::Stat { channel, request, .. } => (*channel, *request, Asks::Stat),
            Command::Close { channel, request, .. } => (*channel, *request, Asks::Delete),
            Command::Mark { channel, request } | Command::Sync { channel, request } => {
                (*channel, *request, Asks::Other)
            }
            // Who holds something is known there, without being asked.
            Command::Hold { consumer, .. } => {
                let _ = self.channels.entry(consumer.channel).or_default().publishes(partition);
                return;
            }
            Command::Settle { .. }
            | Command::Configure { .. }
            | Command::DeadLetterAnswered { .. }
            | Command::LimitReplies { .. }
            | Command::Detach { .. }
            | Command::Part { .. }
            | Command::Reopen { .. }
            | Command::Delete { .. }
            | Command::Stall { .. }
            | Command::Grant { .. } => return,
        };
        self.channels.entry(channel).or_default().ask(request, asks, None);
    }

    /// A deletion is asked of a partition of the other node.
    pub(crate) fn note_deletion(&mut self, channel: ChannelKey, request: RequestId) {
        self.channels.entry(channel).or_default().ask(request, Asks::Delete, None);
    }

    /// An effect came from the other node; false if nobody waits for it any more. A reply that does not
    /// answer what was asked is made one that does.
    pub(crate) fn answered(&mut self, partition: PartitionId, effect: &mut Effect) -> bool {
        match effect {
            // It is known elsewhere what waits for it.
            Effect::Confirm { .. } | Effect::Refuse { .. } | Effect::Returned { .. } if !partition.is_in_memory() => {
                true
            }
            // No other node comes to lead these: nothing is ever given back.
            Effect::Returned { .. } => false,
            Effect::Confirm { channel, first, count } | Effect::Refuse { channel, first, count } => {
                let Some(of) = self.channels.get_mut(channel) else { return false };
                of.publishes(partition).remove_range(*first, *count) == *count
            }
            Effect::Reply { channel, request, reply } => {
                let Some(of) = self.channels.get_mut(channel) else { return false };
                let Some(asked) = of.take(*request) else { return false };
                if !asked.asks.fits(reply) {
                    *reply = Reply::Unavailable;
                    tracing::warn!(partition = partition.0, asked = ?asked.asks, "another node's answer does not fit");
                }
                match (asked.consumer, &*reply) {
                    (Some((_, true)), Reply::Consuming) | (None, _) => {}
                    (Some((number, _)), _) => drop(of.consumers.remove(&number)),
                }
                if of.is_over() {
                    self.channels.remove(channel);
                }
                true
            }
            Effect::Cancelled { consumer, .. } => {
                let Some(of) = self.channels.get_mut(&consumer.channel) else { return false };
                of.consumers.remove(&consumer.number).is_some()
            }
            // What a leader says to a consumer that it has let go of comes before it takes it again:
            // it stood still, and the link before this one was gone meanwhile.
            Effect::Deliver(delivery) => {
                let Some(of) = self.channels.get(&delivery.consumer.channel) else { return false };
                let number = delivery.consumer.number;
                of.consumers.contains_key(&number) && !of.is_starting(number)
            }
            _ => true,
        }
    }

    /// A channel leaves a partition; true if it was in touch with it over there.
    pub(crate) fn detach(&mut self, partition: PartitionId, channel: ChannelKey) -> bool {
        let Some(of) = self.channels.get_mut(&channel) else { return false };
        let before = of.partitions.len();
        of.partitions.retain(|(known, _)| *known != partition);
        of.consumers.retain(|_, (at, _)| *at != partition);
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
        for (channel, mut of) in channels {
            for (_, mut publishes) in std::mem::take(&mut of.partitions) {
                let refused = publishes.drain().map(|(first, count)| Effect::Refuse { channel, first, count });
                effects.extend(refused);
            }
            // What is being attached is told by the answer to its request.
            let attached = of.consumers.iter().filter(|(number, _)| !of.is_starting(**number));
            effects.extend(attached.map(|(number, (_, queue))| Effect::Cancelled {
                consumer: ConsumerKey { channel, number: *number },
                queue: *queue,
            }));
            for (request, asked) in of.requests {
                let reply = Effect::Reply { channel, request, reply: Reply::NotLeader };
                effects.extend(std::iter::repeat_n(reply, asked.times as usize));
            }
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
        Command::Publish(Publish {
            channel: channel(number),
            publish_seq,
            term: 0,
            targets,
            delay_ms: 0,
            message,
            more: None,
        })
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
        let mut confirm = Effect::Confirm { channel: channel(1), first: 1, count: 2 };
        assert!(unanswered.answered(P, &mut confirm));
        assert!(!unanswered.answered(P, &mut confirm), "a second time");
        let mut returned = Effect::Returned { channel: channel(1), first: 3, count: 1 << 61, term: 1 };
        assert!(!unanswered.answered(P, &mut returned), "nobody else leads what is in memory");
        let reply = |request, reply| Effect::Reply { channel: channel(1), request: RequestId(request), reply };
        let stat = Reply::Stat { ready: 1, unacked: 0, consumers: 0 };
        assert!(unanswered.answered(P, &mut reply(9, stat.clone())));
        assert!(!unanswered.answered(P, &mut reply(9, stat)), "a second time");
        let told = unanswered.give_up();
        assert_eq!(told, [Effect::Refuse { channel: channel(1), first: 3, count: 3 }, reply(10, Reply::NotLeader)]);
    }

    #[test]
    fn an_answer_that_does_not_fit_its_question_is_that_nobody_answers() {
        let (channel, queue, request) = (channel(1), QueueId(1), RequestId(9));
        let key = ConsumerKey { channel, number: 3 };
        let consumer = Consumer { key, prefetch: 2, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        let (if_unused, if_empty) = (true, true);
        let questions = [
            (Command::Get { queue, channel, no_ack: true, request }, Reply::Empty),
            (Command::Purge { queue, channel, request }, Reply::Counted(1)),
            (Command::Stat { queue, channel, request }, Reply::Stat { ready: 1, unacked: 0, consumers: 0 }),
            (Command::Consume { queue, consumer, again: false, request }, Reply::Consuming),
            (Command::Cancel { queue, consumer: key, request }, Reply::Done),
            (Command::Close { queue, if_unused, if_empty, channel, request }, Reply::DeleteRefused { in_use: true }),
        ];
        let heard = |question: &Command, reply: &Reply| {
            let mut unanswered = Unanswered::default();
            unanswered.note(P, question);
            let mut effect = Effect::Reply { channel, request, reply: reply.clone() };
            assert!(unanswered.answered(P, &mut effect), "it is answered once, whatever the answer");
            let Effect::Reply { reply, .. } = effect else { panic!("{effect:?}") };
            // Only a consumer that is attached hears more.
            assert_eq!(unanswered.give_up().len(), usize::from(reply == Reply::Consuming), "{question:?} {reply:?}");
            reply
        };
        for (at, (question, _)) in questions.iter().enumerate() {
            for (other, (_, reply)) in questions.iter().enumerate() {
                // A deletion is answered by a count, too.
                let is_count = matches!((question, reply), (Command::Close { .. }, Reply::Counted(_)));
                let expected = if at == other || is_count { reply } else { &Reply::Unavailable };
                assert_eq!(heard(question, reply), *expected, "{question:?} {reply:?}");
            }
            for reply in [Reply::Gone, Reply::NotLeader, Reply::Unavailable] {
                assert_eq!(heard(question, &reply), reply, "{question:?}");
            }
        }
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
        assert!(!unanswered.answered(P, &mut delivery.clone()), "nobody asked for it over this link");
        let consumer = Consumer { key, prefetch: 2, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        unanswered.note(P, &Command::Consume { queue: QueueId(1), consumer, again: false, request: RequestId(4) });
        assert!(!unanswered.answered(P, &mut delivery.clone()), "it is of the attachment before");
        let reply = Effect::Reply { channel: channel(1), request: RequestId(4), reply: Reply::Consuming };
        assert!(unanswered.answered(P, &mut reply.clone()) && unanswered.answered(P, &mut delivery.clone()));
    }

    #[test]
    fn a_channel_that_only_asked_leaves_nothing_behind_once_it_is_answered() {
        let (channel, queue, request) = (channel(1), QueueId(1), RequestId(9));
        let mut unanswered = Unanswered::default();
        let (if_unused, if_empty) = (true, true);
        let questions = [
            (Command::Purge { queue, channel, request }, Reply::Counted(1)),
            (Command::Stat { queue, channel, request }, Reply::Stat { ready: 1, unacked: 0, consumers: 0 }),
            (Command::Close { queue, if_unused, if_empty, channel, request }, Reply::Gone),
            (Command::Sync { channel, request }, Reply::Done),
        ];
        for (question, reply) in questions {
            unanswered.note(P, &question);
            assert!(unanswered.answered(P, &mut Effect::Reply { channel, request, reply }));
            assert!(unanswered.channels.is_empty(), "{question:?}");
        }
        unanswered.note_deletion(channel, request);
        assert!(unanswered.answered(P, &mut Effect::Reply { channel, request, reply: Reply::Counted(0) }));
        // Who fetched something is known there until he is detached.
        unanswered.note(P, &Command::Get { queue, channel, no_ack: true, request });
        assert!(unanswered.answered(P, &mut Effect::Reply { channel, request, reply: Reply::Empty }));
        assert!(unanswered.detach(P, channel) && unanswered.channels.is_empty());
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

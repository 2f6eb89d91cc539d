//! Dead letters: what a queue gave up goes to its dead-letter exchange, from the shard of the queue.
//!
//! Invariant: a letter that wants an answer gets one, `DeadLetterAnswered`, once all queues that it goes to have confirmed it or one
//! of them has not. Where there is no exchange, or no route, there is no place: at most once, the message is gone; at
//! least once, its queue keeps it and tries again.

use super::emit::by_partition;
use super::thread::Local;
use crate::random;
use broker::death::{self, Death};
use broker::topology::{RouteRequest, RouteTarget};
use broker::{ChannelKey, PartitionId, QueueId};
use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::message::{MESSAGE_BYTES_MAX, MessageView};
use partition::{Command, DeadLetter, Level, Message, Publish};
use session::PublishedFacts;
use smallvec::SmallVec;

/// A letter that its queue waits for.
struct AwaitedDeadLetter {
    partition: PartitionId,
    queue: QueueId,
    seq: u64,
    /// Partitions that have not answered.
    left: usize,
    is_safe: bool,
}

/// The letters of one shard that wait for confirms, by the number under which they were published.
#[derive(Default)]
pub(crate) struct AwaitedDeadLetters {
    waiting: HashMap<u64, AwaitedDeadLetter, FixedState>,
    last: u64,
}

impl AwaitedDeadLetters {
    /// Partitions confirmed, or refused, what the shard published. Gives the answers that this completes.
    pub(crate) fn answered(&mut self, first: u64, count: u64, is_safe: bool, done: &mut Vec<(PartitionId, Command)>) {
        for number in first..first + count {
            let Some(dead_letter) = self.waiting.get_mut(&number) else { continue };
            dead_letter.left -= 1;
            dead_letter.is_safe &= is_safe;
            if dead_letter.left == 0 {
                let AwaitedDeadLetter { partition, queue, seq, is_safe, .. } =
                    self.waiting.remove(&number).expect("found above");
                done.push((partition, Command::DeadLetterAnswered { queue, seq, is_safe }));
            }
        }
    }
}

/// Where a letter goes, and with what.
struct Addressed {
    message: Message,
    targets: Vec<RouteTarget>,
}

impl Local {
    /// Publishes a dead letter.
    pub(crate) fn send_dead_letter(&self, partition: PartitionId, letter: DeadLetter) {
        let addressed = self.address(&letter);
        let DeadLetter { queue, seq, wants_answer, .. } = letter;
        let targets = addressed.as_ref().map_or(&[][..], |a| &a.targets[..]);
        // What was safe stays safe on its way: a dead letter is synced wherever that is a choice.
        let groups = by_partition(targets, Level::Synced);
        let (mut channel, mut publish_seq) = (ChannelKey::NOBODY, 0);
        if wants_answer {
            if groups.is_empty() {
                return self.push(partition, Command::DeadLetterAnswered { queue, seq, is_safe: false });
            }
            let mut awaited = self.awaited.borrow_mut();
            awaited.last += 1;
            (channel, publish_seq) = (self.keys.borrow().own(), awaited.last);
            let dead_letter = AwaitedDeadLetter { partition, queue, seq, left: groups.len(), is_safe: true };
            awaited.waiting.insert(publish_seq, dead_letter);
        }
        let Some(Addressed { message, .. }) = addressed else { return };
        for (id, targets) in groups {
            let publish = Publish { channel, publish_seq, targets, delay_ms: 0, message: message.clone() };
            self.push(id, Command::Publish(publish));
        }
    }

    fn address(&self, letter: &DeadLetter) -> Option<Addressed> {
        let topology = self.shared.topology();
        let queue = topology.queue(letter.queue)?;
        let rule = queue.rules.dead_letter.as_ref()?;
        let view = MessageView::parse(&letter.message).expect("partitions hold whole messages");
        let time_s = crate::engine::wall_ms() / 1000;
        let reason = letter.reason.death().expect("only deaths make dead letters");
        let (exchange, routing_key) = (view.exchange(), view.routing_key());
        let death = Death { queue: &queue.name, reason, exchange, routing_key, time_s };
        let properties = death::annotate(view.properties(), &death, rule.routing_key.is_none());
        let mut keys: SmallVec<[Bytes; 2]> = SmallVec::new();
        match &rule.routing_key {
            Some(key) => keys.push(Bytes::copy_from_slice(key)),
            None => {
                keys.push(Bytes::copy_from_slice(routing_key));
                keys.extend(death::carbon_copies(&properties));
            }
        }
        let mut targets = Vec::new();
        let facts = PublishedFacts::new(&properties, random::dice);
        let key_slices: SmallVec<[&[u8]; 2]> = keys.iter().map(|key| &key[..]).collect();
        let request = RouteRequest { vhost: queue.vhost, exchange: &rule.exchange, keys: &key_slices, facts: &facts };
        topology.route(&request, &mut targets).ok()?;
        targets.retain(|target| {
            let is_cycle = topology.queue(target.queue).is_some_and(|to| death::is_cycle(&properties, &to.name));
            if is_cycle {
                tracing::warn!(
                    queue = %queue.name, reason,
                    "message dropped: it would go round in dead-letter queues for ever"
                );
            }
            !is_cycle
        });
        let message = Message {
            exchange: Bytes::copy_from_slice(&rule.exchange),
            routing_key: keys[0].clone(),
            properties: properties.into(),
            body: view.body_of(&letter.message),
        };
        let bytes = partition::message::stored_bytes(&message);
        if bytes > MESSAGE_BYTES_MAX {
            // With each queue that it died in its headers grow, and only a client that means it gets this far.
            tracing::warn!(queue = %queue.name, reason, bytes, "message not dead-lettered: its headers grew too long");
            return None;
        }
        Some(Addressed { message, targets })
    }
}

//! A model of one partition's queues, made from the committed log: which message has which number, what became of it.
//!
//! It reads entries with the engine's own reader and follows rules of its own: a publish number that is not above the last
//! one of its channel is a repeat and ends at once. Invariant: the fate of a committed message changes once, from live to
//! settled.

use super::{Published, id_of, violated};
use broker::queue::Rules;
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use partition::Delivery;
use partition::entry::{Batch, Commands, LogCommand, Reason};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What became of one message of one queue.
#[derive(Clone, Copy, Debug)]
struct Fate {
    id: u64,
    settled_at: Option<u64>,
    delivered: bool,
    /// It was given up there and waits for its dead letter.
    dead_at: Option<u64>,
    /// How often it came back in a way that counts against it.
    failed: u32,
}

#[derive(Debug, Default)]
struct Queue {
    /// By number, from 1.
    fates: Vec<Fate>,
    live: u64,
    /// The last live publish of each publisher.
    last_of: BTreeMap<ChannelKey, u64>,
    /// Ids that were live at some time.
    taken_in: BTreeSet<u64>,
}

/// What the model learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A message is in the committed log.
    Committed(u64),
    /// A delivery is of a message that is committed.
    Delivered {
        /// The queue.
        queue: QueueId,
        /// The message.
        id: u64,
        /// Its flag.
        redelivered: bool,
    },
    /// A rule of its queue ended a message.
    Ended {
        /// The queue.
        queue: QueueId,
        /// The message.
        seq: u64,
        /// Its dead letter must have been offered before.
        must_be_offered: bool,
    },
}

/// Whether a message may end for this reason.
fn check_end(
    rules: &Rules,
    live: u64,
    fate: Fate,
    (id, reason, seq): (QueueId, Reason, u64),
    settle_asked: &BTreeSet<(QueueId, u64)>,
) {
    let is_lawful = match reason {
        Reason::Purged => true,
        Reason::Acked | Reason::Discarded => fate.delivered && settle_asked.contains(&(id, seq)),
        Reason::Expired => rules.message_ttl_ms.is_some(),
        // What is ready is among what is live.
        Reason::MaxLength => rules.length_max.is_some_and(|max| live > max) || rules.length_bytes_max.is_some(),
        Reason::DeliveryLimit => rules.delivery_limit.is_some_and(|limit| fate.delivered && fate.failed >= limit),
        Reason::Due => false,
    };
    if !is_lawful {
        violated("settled", &format!("message {seq} of queue {} ended ({reason:?}), and nobody did that", id.0));
    }
}

/// A delivery of a message that is not committed yet.
#[derive(Clone, Copy, Debug)]
struct Early {
    id: u64,
    redelivered: bool,
}

/// The queues of one partition.
#[derive(Debug, Default)]
pub struct Model {
    queues: BTreeMap<QueueId, Queue>,
    publishers: BTreeMap<ChannelKey, u64>,
    early: BTreeMap<(QueueId, u64), Vec<Early>>,
    rules: BTreeMap<QueueId, Arc<Rules>>,
}

impl Model {
    /// A model of queues with these rules.
    pub fn new(rules: &BTreeMap<QueueId, Arc<Rules>>) -> Self {
        Model { rules: rules.clone(), ..Model::default() }
    }

    /// Whether a message has ended in the committed log.
    pub fn is_settled(&self, queue: QueueId, seq: u64) -> bool {
        let fate = self.queues.get(&queue).and_then(|q| q.fates.get(seq as usize - 1));
        fate.is_some_and(|fate| fate.settled_at.is_some())
    }

    /// An entry is committed at `index`.
    pub fn commit(
        &mut self,
        index: u64,
        body: &Bytes,
        published: &[Published],
        settle_asked: &BTreeSet<(QueueId, u64)>,
        found: &mut Vec<Found>,
    ) {
        if body.first() != Some(&partition::entry::ENTRY_VERSION) {
            return;
        }
        let mut commands = Commands::parse(body).expect("a committed entry can be read");
        while let Some(command) = commands.next().expect("a committed entry can be read") {
            match command {
                LogCommand::Publish(batch) => self.publish(index, &batch, published, found),
                LogCommand::Settle { queue, reason, ranges } => {
                    for (first, count) in ranges {
                        self.settle(index, (queue, reason), first..first + count, settle_asked, found);
                    }
                }
                LogCommand::Dead { queue, reason, ranges } => {
                    for seq in ranges.flat_map(|(first, count)| first..first + count) {
                        self.dead(index, queue, reason, seq, settle_asked);
                    }
                }
                LogCommand::Requeue { queue, counts_against, ranges }
                | LogCommand::Retry { queue, counts_against, ranges, .. } => {
                    for seq in ranges.flat_map(|(first, count)| first..first + count) {
                        self.back(queue, seq, counts_against);
                    }
                }
                LogCommand::Sent { .. } => {}
                LogCommand::Delete { queue } => {
                    self.queues.remove(&queue);
                }
                LogCommand::Closed { publisher } => {
                    self.publishers.remove(&publisher);
                }
            }
        }
    }

    fn publish(&mut self, index: u64, batch: &Batch<'_>, published: &[Published], found: &mut Vec<Found>) {
        let channel = batch.publisher();
        for message in batch.iter() {
            let id = id_of(message.body())
                .filter(|id| published.get(*id as usize).is_some_and(|p| p.body[..] == *message.body()));
            let Some(id) = id else {
                violated("published", &format!("entry {index} holds a message that nobody published"));
            };
            let of = &published[id as usize];
            let seq = batch.first_publish_seq() + u64::from(message.publish_delta());
            let mut is_repeat = false;
            if channel != ChannelKey::NOBODY {
                assert_eq!((of.channel, of.seq), (channel, seq), "a publish keeps its number");
                let last = self.publishers.entry(channel).or_insert(0);
                is_repeat = seq <= *last;
                *last = seq.max(*last);
            }
            for queue in batch.targets() {
                self.take_in(index, queue, id, of, is_repeat, found);
            }
            found.push(Found::Committed(id));
        }
    }

    fn take_in(
        &mut self,
        index: u64,
        id: QueueId,
        message: u64,
        of: &Published,
        is_repeat: bool,
        found: &mut Vec<Found>,
    ) {
        let queue = self.queues.entry(id).or_default();
        let settled_at = is_repeat.then_some(index);
        queue.fates.push(Fate { id: message, settled_at, delivered: false, dead_at: None, failed: 0 });
        let seq = queue.fates.len() as u64;
        if !is_repeat {
            queue.live += 1;
            if !queue.taken_in.insert(message) {
                violated("duplicate", &format!("message {message} is in queue {} twice", id.0));
            }
            let last = queue.last_of.entry(of.channel).or_insert(0);
            if of.number <= *last {
                violated("fifo", &format!("publish {} of channel {} is behind {last}", of.number, of.channel.0));
            }
            *last = of.number;
        }
        for early in self.early.remove(&(id, seq)).unwrap_or_default() {
            // What was lost with the power may have had this number.
            if early.id == message {
                queue.fates[seq as usize - 1].delivered = true;
                found.push(Found::Delivered { queue: id, id: message, redelivered: early.redelivered });
            }
        }
    }

    fn settle(
        &mut self,
        index: u64,
        (id, reason): (QueueId, Reason),
        seqs: std::ops::Range<u64>,
        settle_asked: &BTreeSet<(QueueId, u64)>,
        found: &mut Vec<Found>,
    ) {
        let rules = self.rules.get(&id).cloned().unwrap_or_default();
        let Some(queue) = self.queues.get_mut(&id) else { return };
        for seq in seqs {
            let Some(fate) = (seq as usize).checked_sub(1).and_then(|at| queue.fates.get_mut(at)) else { continue };
            if fate.settled_at.is_some() {
                continue;
            }
            if fate.dead_at.is_none() {
                check_end(&rules, queue.live, *fate, (id, reason, seq), settle_asked);
            }
            if reason.death().is_some() && reason != Reason::Discarded {
                let must_be_offered = rules.dead_letter.as_ref().is_some_and(|d| d.at_least_once);
                found.push(Found::Ended { queue: id, seq, must_be_offered });
            }
            fate.settled_at = Some(index);
            queue.live -= 1;
        }
    }

    fn dead(&mut self, index: u64, id: QueueId, reason: Reason, seq: u64, settle_asked: &BTreeSet<(QueueId, u64)>) {
        let rules = self.rules.get(&id).cloned().unwrap_or_default();
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let live = queue.live;
        let fate = &mut queue.fates[seq as usize - 1];
        if fate.settled_at.is_none() && fate.dead_at.is_none() {
            check_end(&rules, live, *fate, (id, reason, seq), settle_asked);
            fate.dead_at = Some(index);
        }
    }

    fn back(&mut self, id: QueueId, seq: u64, counts_against: bool) {
        let fate = self.queues.get_mut(&id).and_then(|q| q.fates.get_mut(seq as usize - 1));
        if let Some(fate) = fate {
            fate.failed += u32::from(counts_against);
        }
    }

    /// A delivery by a leader that had applied everything up to `applied`.
    pub fn delivered(&mut self, delivery: &Delivery, id: u64, applied: u64) -> Option<Found> {
        let (queue, seq) = (delivery.queue, delivery.seq);
        let fate = self.queues.get_mut(&queue).and_then(|q| q.fates.get_mut(seq as usize - 1));
        let Some(fate) = fate else {
            let early = Early { id, redelivered: delivery.redelivered };
            self.early.entry((queue, seq)).or_default().push(early);
            return None;
        };
        if fate.id != id {
            violated("published", &format!("message {seq} of queue {} is {}, and {id} went out", queue.0, fate.id));
        }
        if fate.settled_at.is_some_and(|at| at <= applied) {
            violated("settled", &format!("message {seq} of queue {} went out, settled as it was", queue.0));
        }
        if fate.dead_at.is_some_and(|at| at <= applied) {
            violated("dead letter", &format!("message {seq} of queue {} went out, given up as it was", queue.0));
        }
        fate.delivered = true;
        Some(Found::Delivered { queue, id, redelivered: delivery.redelivered })
    }

    /// Messages not settled.
    pub fn live(&self) -> u64 {
        self.queues.values().map(|q| q.live).sum()
    }

    /// The first message that is not settled: queue, number, id.
    pub fn first_live(&self) -> Option<(QueueId, u64, u64)> {
        self.queues.iter().find_map(|(id, queue)| {
            let at = queue.fates.iter().position(|f| f.settled_at.is_none())?;
            Some((*id, at as u64 + 1, queue.fates[at].id))
        })
    }
}

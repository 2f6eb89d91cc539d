//! Dead letters: what a queue gave up goes to its dead-letter exchange, from the shard of the
//! queue.
//!
//! One message may become as many as there are ways through queues that lead to each other, so a
//! turn sends so many letters and no more, and everybody else has theirs. While there are too many,
//! those that have died most often go first: then what waits is as much as one way is long, and not
//! as all of them are many.
//!
//! Invariant: letters of a queue that died equally often leave in their order. A letter that wants
//! an answer gets one, `DeadLetterAnswered`, once all queues that it goes to have confirmed it or
//! one of them has not. Where there is no exchange, or no route, there is no place: at most once,
//! the message is gone; at least once, its queue keeps it and tries again.

use crate::emit::by_partition;
use crate::surroundings::{Outsider, Surroundings};
use crate::switch::Switch;
use broker::death::{self, Death};
use broker::topology::{QueueType, RouteRequest, RouteTarget, Topology};
use broker::{ChannelKey, PartitionId, QueueId};
use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::entry::Reason;
use partition::message::{MESSAGE_BYTES_MAX, MessageView};
use partition::{Command, DeadLetter, Level, Message, Publish};
use session::PublishedFacts;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// What a queue does with messages that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// They are published, and nobody waits for confirms.
    AtMostOnce = 0,
    /// They are kept until all queues that they go to have confirmed them.
    AtLeastOnce = 1,
    /// It has no dead-letter exchange: they are gone.
    Disabled = 2,
}

/// How many letters a shard has sent since its start, and how many messages died without becoming one. With *at
/// least once* a letter counts when every queue that it goes to has confirmed it, so one that is tried again counts
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadLettered {
    /// Of classic and of quorum queues; by strategy (at most once, at least once, none); by reason, in the order of
    /// [`DeadLettered::REASONS`].
    pub counts: [[[u64; DeadLettered::REASONS.len()]; 3]; 2],
}

impl DeadLettered {
    /// What messages die of.
    pub const REASONS: [Reason; 4] = [Reason::Discarded, Reason::Expired, Reason::MaxLength, Reason::DeliveryLimit];

    /// Adds what `other` counted.
    pub fn add(&mut self, other: &DeadLettered) {
        let sums = self.counts.as_flattened_mut().as_flattened_mut();
        sums.iter_mut().zip(other.counts.as_flattened().as_flattened()).for_each(|(sum, count)| *sum += count);
    }

    fn note(&mut self, (queue_type, reason): (QueueType, Reason), strategy: Strategy, count: u64) {
        let of = &mut self.counts[usize::from(queue_type == QueueType::Quorum)][strategy as usize];
        if let Some(at) = DeadLettered::REASONS.iter().position(|known| *known == reason) {
            of[at] += count;
        }
    }
}

/// A letter that its queue waits for.
struct AwaitedDeadLetter {
    partition: PartitionId,
    queue: QueueId,
    seq: u64,
    /// The type of its queue and why it is one, if the queue is there.
    of: Option<(QueueType, Reason)>,
    /// Partitions that have not answered.
    left: usize,
    is_safe: bool,
}

/// The letters of one shard that wait for confirms, by the number under which they were published.
#[derive(Default)]
pub(crate) struct AwaitedDeadLetters {
    waiting: HashMap<u64, AwaitedDeadLetter, FixedState>,
    last: u64,
    /// Those that were sent, whether anybody waited for them or not.
    sent: DeadLettered,
}

impl AwaitedDeadLetters {
    /// Partitions confirmed, or refused, what the shard published. Gives the answers that this
    /// completes.
    pub(crate) fn answered(&mut self, first: u64, count: u64, is_safe: bool, done: &mut Vec<(PartitionId, Command)>) {
        for number in first..first + count {
            let Some(dead_letter) = self.waiting.get_mut(&number) else { continue };
            dead_letter.left -= 1;
            dead_letter.is_safe &= is_safe;
            if dead_letter.left == 0 {
                let AwaitedDeadLetter { partition, queue, seq, is_safe, of, .. } =
                    self.waiting.remove(&number).expect("found above");
                of.filter(|_| is_safe).into_iter().for_each(|of| self.sent.note(of, Strategy::AtLeastOnce, 1));
                done.push((partition, Command::DeadLetterAnswered { queue, seq, is_safe }));
            }
        }
    }
}

/// Letters that a turn sends at most. More of them wait for the next.
const A_TURN: usize = 512;
/// A turn that took so long sends no more, whatever each of them costs.
const TURN_US: u64 = 500;
/// How many letters go between two looks at the clock.
const LOOK_EVERY: usize = 8;

/// Letters on their way, by the partition that gave them up.
#[derive(Default)]
pub(crate) struct Outgoing {
    letters: VecDeque<(PartitionId, Box<DeadLetter>)>,
    /// Those that came while there were too many, by how often they have died.
    surplus: BTreeMap<usize, VecDeque<(PartitionId, Box<DeadLetter>)>>,
}

impl Outgoing {
    /// Adds one.
    pub(crate) fn push(&mut self, partition: PartitionId, letter: Box<DeadLetter>) {
        if self.surplus.is_empty() && self.letters.len() < A_TURN {
            return self.letters.push_back((partition, letter));
        }
        let deaths = MessageView::parse(&letter.message).map_or(0, |view| death::count(view.properties()));
        self.surplus.entry(deaths).or_default().push_back((partition, letter));
    }

    fn pop(&mut self) -> Option<(PartitionId, Box<DeadLetter>)> {
        if let Some(first) = self.letters.pop_front() {
            return Some(first);
        }
        let mut deepest = self.surplus.last_entry()?;
        let letter = deepest.get_mut().pop_front();
        if deepest.get().is_empty() {
            deepest.remove();
        }
        letter
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.letters.is_empty() && self.surplus.is_empty()
    }
}

/// Where a letter goes, and with what.
struct Addressed {
    message: Message,
    targets: Vec<RouteTarget>,
}

impl<C, O> Switch<C, O> {
    /// Letters sent since the start, and what died without becoming one as far as it was noted.
    pub fn dead_lettered(&self) -> DeadLettered {
        self.awaited.borrow().sent
    }

    /// Notes what queues without a dead-letter exchange gave up. Of a queue that is gone nobody knows the type.
    pub fn note_given_up(&self, topology: &Topology, given_up: impl IntoIterator<Item = (QueueId, Reason, u64)>) {
        let sent = &mut self.awaited.borrow_mut().sent;
        for (queue, reason, count) in given_up {
            if let Some(queue) = topology.queue(queue) {
                sent.note((queue.shape.queue_type, reason), Strategy::Disabled, count);
            }
        }
    }
}

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// Publishes what a turn may of the dead letters that wait. What is left has the shard's task
    /// come again, after the tasks that are ready now.
    pub fn send_dead_letters(&self, env: &impl Surroundings<Connection = C, Outsider = O>) {
        if self.outgoing.borrow().is_empty() {
            return;
        }
        let began = env.elapsed_us();
        for sent in 0..A_TURN {
            if sent % LOOK_EVERY == LOOK_EVERY - 1 && env.elapsed_us() - began >= TURN_US {
                break;
            }
            let Some((partition, letter)) = self.outgoing.borrow_mut().pop() else { return };
            self.send_dead_letter(partition, *letter, env);
        }
        if !self.outgoing.borrow().is_empty() {
            self.inbox.borrow_mut().wake();
        }
    }

    /// Publishes a dead letter.
    fn send_dead_letter(
        &self,
        partition: PartitionId,
        letter: DeadLetter,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let addressed = address(&letter, env);
        let DeadLetter { queue, seq, reason, wants_answer, .. } = letter;
        let of = env.topology().queue(queue).map(|queue| (queue.shape.queue_type, reason));
        if !wants_answer {
            of.into_iter().for_each(|of| self.awaited.borrow_mut().sent.note(of, Strategy::AtMostOnce, 1));
        }
        let targets = addressed.as_ref().map_or(&[][..], |a| &a.targets[..]);
        // What was safe stays safe on its way: a dead letter is synced wherever that is a choice.
        let groups = by_partition(targets, Level::Synced);
        let (mut channel, mut publish_seq) = (ChannelKey::NOBODY, 0);
        if wants_answer {
            if groups.is_empty() {
                let answered = Command::DeadLetterAnswered { queue, seq, is_safe: false };
                return self.inbox.borrow_mut().push_here(partition, answered);
            }
            let mut awaited = self.awaited.borrow_mut();
            awaited.last += 1;
            (channel, publish_seq) = (self.keys.borrow().own(), awaited.last);
            let dead_letter = AwaitedDeadLetter { partition, queue, seq, of, left: groups.len(), is_safe: true };
            awaited.waiting.insert(publish_seq, dead_letter);
        }
        let Some(Addressed { message, .. }) = addressed else { return };
        for (id, targets) in groups {
            let publish = Publish { channel, publish_seq, term: 0, targets, delay_ms: 0, message: message.clone() };
            self.push(id, Command::Publish(publish));
        }
    }
}

fn address(letter: &DeadLetter, env: &impl Surroundings) -> Option<Addressed> {
    let topology = env.topology();
    let queue = topology.queue(letter.queue)?;
    let rule = queue.rules.dead_letter.as_ref()?;
    let view = MessageView::parse(&letter.message).expect("partitions hold whole messages");
    let time_s = env.wall_ms() / 1000;
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
    let facts = PublishedFacts::new(&properties, || env.dice());
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
        // With each queue that it died in its headers grow, and only a client that means it
        // gets this far.
        tracing::warn!(queue = %queue.name, reason, bytes, "message not dead-lettered: its headers grew too long");
        return None;
    }
    Some(Addressed { message, targets })
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::{Properties, Table, Value};

    fn letter(number: u64, deaths: usize) -> Box<DeadLetter> {
        let died = Value::Array((0..deaths).map(|_| Value::Table(Table::new())).collect());
        let mut headers = Table::new();
        headers.push("x-death", died);
        let (encoded, mut properties) = (headers.encode(), Vec::new());
        Properties { headers: Some(&encoded[4..]), ..Properties::default() }.encode_to(&mut properties);
        let (exchange, routing_key, body) = (Bytes::new(), Bytes::new(), Bytes::new());
        let message = Message { exchange, routing_key, properties: properties.into(), body };
        let mut stored = Vec::new();
        partition::message::store(&message, 0, partition::message::Stamp::None, &mut stored);
        Box::new(DeadLetter {
            queue: QueueId(1),
            seq: number,
            reason: Reason::Expired,
            message: stored.into(),
            wants_answer: false,
        })
    }

    #[test]
    fn letters_leave_in_their_order_and_the_deepest_first_while_there_are_too_many() {
        let mut outgoing = Outgoing::default();
        let numbers = |outgoing: &mut Outgoing, count: usize| -> Vec<u64> {
            (0..count).filter_map(|_| outgoing.pop()).map(|(_, letter)| letter.seq).collect()
        };
        (0..10).for_each(|number| outgoing.push(PartitionId(1), letter(number, number as usize % 3)));
        assert_eq!(numbers(&mut outgoing, 20), (0..10).collect::<Vec<_>>());
        let many = A_TURN as u64;
        (0..many + 4).for_each(|number| outgoing.push(PartitionId(1), letter(number, usize::from(number % 2 == 1))));
        assert_eq!(numbers(&mut outgoing, A_TURN), (0..many).collect::<Vec<_>>());
        outgoing.push(PartitionId(1), letter(many + 4, 5));
        assert_eq!(numbers(&mut outgoing, 9), [many + 4, many + 1, many + 3, many, many + 2]);
        assert!(outgoing.is_empty());
    }
    #[test]
    fn a_letter_counts_once_and_with_its_queue_waiting_only_when_it_is_safe() {
        let mut awaited = AwaitedDeadLetters::default();
        let of = Some((QueueType::Quorum, Reason::Expired));
        let wait = |awaited: &mut AwaitedDeadLetters, number: u64, left: usize, of: Option<(QueueType, Reason)>| {
            let letter =
                AwaitedDeadLetter { partition: PartitionId(1), queue: QueueId(1), seq: 7, of, left, is_safe: true };
            awaited.waiting.insert(number, letter);
        };
        let mut done = Vec::new();
        wait(&mut awaited, 1, 2, of);
        awaited.answered(1, 1, true, &mut done);
        assert_eq!(awaited.sent, DeadLettered::default(), "one of two queues has it");
        awaited.answered(1, 1, false, &mut done);
        assert_eq!(awaited.sent, DeadLettered::default(), "the other has not");
        // It is tried again; and another's queue went meanwhile.
        wait(&mut awaited, 2, 1, of);
        wait(&mut awaited, 3, 1, None);
        awaited.answered(2, 2, true, &mut done);
        awaited.sent.note((QueueType::Classic, Reason::Discarded), Strategy::AtMostOnce, 1);
        awaited.sent.note((QueueType::Classic, Reason::MaxLength), Strategy::Disabled, 7);
        let mut twice = awaited.sent;
        twice.add(&awaited.sent);
        assert_eq!(awaited.sent.counts, [[[1, 0, 0, 0], [0; 4], [0, 0, 7, 0]], [[0; 4], [0, 1, 0, 0], [0; 4]]]);
        assert_eq!(twice.counts, [[[2, 0, 0, 0], [0; 4], [0, 0, 14, 0]], [[0; 4], [0, 2, 0, 0], [0; 4]]]);
        assert_eq!(done.len(), 3);
    }
}

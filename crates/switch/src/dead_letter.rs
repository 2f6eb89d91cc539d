//! Dead letters: what a queue gave up goes to its dead-letter exchange, from the shard of the
//! queue.
//!
//! One message may become as many as there are ways through queues that lead to each other, so a
//! turn sends so many letters and no more, and everybody else has theirs. How many wait, and in which order they
//! leave, is in `outgoing`.
//!
//! Invariant: a letter that wants
//! an answer gets one, `DeadLetterAnswered`, once all queues that it goes to have confirmed it or
//! one of them has not. Where there is no exchange, or no route, there is no place: at most once,
//! the message is gone; at least once, its queue keeps it and tries again.

use crate::emit::by_partition;
use crate::surroundings::{Outsider, Surroundings};
use crate::switch::Switch;
use broker::death::{self, Circle, Death};
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
    /// Letters of *at most once* that were given up on their way, as nobody came to lead their queues. Those that a leader
    /// had which lost its majority may come to their queues all the same.
    pub given_up: u64,
}

impl DeadLettered {
    /// What messages die of.
    pub const REASONS: [Reason; 4] = [Reason::Discarded, Reason::Expired, Reason::MaxLength, Reason::DeliveryLimit];

    /// Adds what `other` counted.
    pub fn add(&mut self, other: &DeadLettered) {
        let sums = self.counts.as_flattened_mut().as_flattened_mut();
        sums.iter_mut().zip(other.counts.as_flattened().as_flattened()).for_each(|(sum, count)| *sum += count);
        self.given_up += other.given_up;
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
    /// When letters left last, microseconds.
    left_us: u64,
    /// Those that were dropped as there was no room for them.
    dropped: Seldom,
    /// Those that were dropped as they would go round for ever.
    circled: Seldom,
    /// Those that nobody took in time.
    given_up: Seldom,
    /// Queues whose letters find no place, and when that is told again.
    unplaced: HashMap<QueueId, u64, FixedState>,
    /// A queue one of whose letters was refused.
    refused: Option<QueueId>,
}

impl AwaitedDeadLetters {
    /// The number for the next letter.
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

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
                if !is_safe {
                    self.refused = Some(queue);
                }
                of.filter(|_| is_safe).into_iter().for_each(|of| self.sent.note(of, Strategy::AtLeastOnce, 1));
                done.push((partition, Command::DeadLetterAnswered { queue, seq, is_safe }));
            }
        }
    }
}

/// What a turn sends at most: so many letters,
const LETTERS_A_TURN: usize = 2048;
/// as many times a queue gets one of them, which is what the turn of its partition costs,
const TARGETS_A_TURN: usize = 1024;
/// so many bytes,
const BYTES_A_TURN: usize = 1 << 20;
/// and what takes so long,
const TURN_US: u64 = 500;
/// or so long while many wait.
const CROWDED_TURN_US: u64 = 2_000;
/// How often a turn's letters leave though publishers would have to wait.
const HELD_US: u64 = 100_000;
/// How many letters go between two looks at the clock.
const LOOK_EVERY: usize = 8;
/// How often the log tells of dead letters that were dropped.
const TELL_EVERY_US: u64 = 10_000_000;

/// What the log says of letters that nobody took in time.
const GIVEN_UP: &str = "dead letters given up: for ten seconds nobody led the queues that they were on their way to, and they are lost unless a leader \
                        had them that was cut off and comes back; those that must not be lost belong into quorum queues with \
                        x-dead-letter-strategy at-least-once";
/// How often the log tells of a queue whose letters find no place.
const TELL_UNPLACED_US: u64 = 600_000_000;
/// It tells of so many queues.
const UNPLACED_MAX: usize = 1_000;

const _: () = assert!(TARGETS_A_TURN <= LETTERS_A_TURN);

/// Something that happens often and is told seldom.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    untold: u64,
    next_us: u64,
}

impl Seldom {
    /// It happened. Gives how often since it was told, if it is to be told now.
    pub(crate) fn note(&mut self, now_us: u64) -> Option<u64> {
        self.note_many(1, now_us)
    }

    /// The same of what happened so often.
    fn note_many(&mut self, count: u64, now_us: u64) -> Option<u64> {
        self.untold += count;
        if now_us < self.next_us {
            return None;
        }
        self.next_us = now_us + TELL_EVERY_US;
        Some(std::mem::take(&mut self.untold))
    }

    /// How often it happened since it was told, if that is to be told now though it does not happen.
    fn take_due(&mut self, now_us: u64) -> Option<u64> {
        let is_due = self.untold > 0 && now_us >= self.next_us;
        is_due.then(|| {
            self.next_us = now_us.saturating_add(TELL_EVERY_US);
            std::mem::take(&mut self.untold)
        })
    }
}

/// Where a letter goes, and with what.
struct Addressed {
    message: Message,
    targets: Vec<RouteTarget>,
    /// There are more, which had the message before: it would go round for ever.
    is_circled: bool,
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
    ///
    /// While publishers would have to wait, for a shard of this node or for another node, a turn's letters leave every
    /// `HELD_US`: some queue may have no majority for long, and they may be for others. The step that follows has the rest tried again.
    pub fn send_dead_letters(&self, env: &impl Surroundings<Connection = C, Outsider = O>) {
        self.tell_refused(env);
        let is_crowded = {
            let mut outgoing = self.outgoing.borrow_mut();
            outgoing.end_step();
            if outgoing.is_empty() {
                return;
            }
            outgoing.is_crowded()
        };
        let began = env.elapsed_us();
        let is_held = env.is_any_loaded() || self.leaders().has_peers() && self.inbox.borrow().is_full();
        if is_held && began < self.awaited.borrow().left_us + HELD_US {
            return;
        }
        self.awaited.borrow_mut().left_us = began;
        let turn_us = if is_crowded { CROWDED_TURN_US } else { TURN_US };
        let (mut targets, mut bytes) = (0, 0);
        for sent in 0..LETTERS_A_TURN {
            let is_late = sent % LOOK_EVERY == LOOK_EVERY - 1 && env.elapsed_us() - began >= turn_us;
            if is_late || targets >= TARGETS_A_TURN || bytes >= BYTES_A_TURN {
                break;
            }
            let Some((partition, letter)) = self.outgoing.borrow_mut().pop() else { break };
            bytes += letter.bytes();
            match self.send_dead_letter(partition, letter, env) {
                Ok(copies) => targets += copies,
                Err(letter) => self.outgoing.borrow_mut().put_back((partition, letter)),
            }
        }
        let mut outgoing = self.outgoing.borrow_mut();
        // Otherwise a timer has the shard look.
        if outgoing.has_turns() && !is_held {
            self.inbox.borrow_mut().wake();
        }
        outgoing.end_turns();
    }

    /// Tells how many messages were dropped on their way that the log has not told of: what is due at this time of the
    /// node, or at the end of the shard, with `u64::MAX`, all. The clock is looked at where there is any.
    pub fn tell_dropped(&self, now_us: impl FnOnce() -> u64) {
        let mut awaited = self.awaited.borrow_mut();
        if awaited.circled.untold + awaited.dropped.untold + awaited.given_up.untold == 0 {
            return;
        }
        let now_us = now_us();
        let (circled, dropped) = (awaited.circled.take_due(now_us), awaited.dropped.take_due(now_us));
        let given_up = awaited.given_up.take_due(now_us);
        drop(awaited);
        if let Some(messages) = given_up {
            tracing::warn!(messages, "{GIVEN_UP}");
        }
        if let Some(messages) = circled {
            tracing::warn!(messages, "messages dropped: they would go round in dead-letter queues for ever");
        }
        if let Some(messages) = dropped {
            tracing::warn!(
                messages,
                "dropped what was too much for its queue: as many dead letters are on their way as may be"
            );
        }
    }

    /// Nobody has come to lead the partition of a publish, and it is given up: where it is one of this shard's dead
    /// letters, and its queue does not wait for the answer, that is noted.
    pub(crate) fn note_given_up_letters(&self, publish: &Publish, topology: &Topology, now_us: u64) {
        if publish.channel != self.keys.borrow().own() || publish.publish_seq == 0 {
            return;
        }
        let mut awaited = self.awaited.borrow_mut();
        let numbers = publish.publish_seq..publish.publish_seq + publish.count();
        let given_up = numbers.filter(|number| !awaited.waiting.contains_key(number)).count() as u64;
        if given_up == 0 {
            return;
        }
        awaited.sent.given_up += given_up;
        if let Some(messages) = awaited.given_up.note_many(given_up, now_us) {
            let target = publish.targets.first().and_then(|target| topology.queue(target.queue));
            let queue = target.map(|queue| tracing::field::display(&queue.name));
            tracing::warn!(queue, messages, "{GIVEN_UP}");
        }
    }

    /// Whether dead letters are on their way that nobody has but this shard. Of those that their queue waits for, it has
    /// the messages.
    pub fn has_letters_on_their_way(&self) -> bool {
        let awaited = self.awaited.borrow();
        self.inbox.borrow().letters_on_their_way().any(|number| !awaited.waiting.contains_key(&number))
    }

    /// Whether dead letters wait to be published.
    pub fn has_dead_letters(&self) -> bool {
        !self.outgoing.borrow().is_empty()
    }

    /// A partition of this shard gave a message up.
    pub(crate) fn take_dead_letter(
        &self,
        partition: PartitionId,
        letter: Box<DeadLetter>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let Some(letter) = self.outgoing.borrow_mut().push(partition, letter) else {
            return self.inbox.borrow_mut().wake();
        };
        let topology = env.topology();
        let Some(queue) = topology.queue(letter.queue) else { return };
        let mut awaited = self.awaited.borrow_mut();
        awaited.sent.note((queue.shape.queue_type, letter.reason), Strategy::Disabled, 1);
        if let Some(messages) = awaited.dropped.note(env.elapsed_us()) {
            tracing::warn!(
                queue = %queue.name, messages,
                "dropped what was too much for its queue: as many dead letters are on their way as may be"
            );
        }
    }

    /// Publishes a dead letter. Returns how many queues get it; gives back one that has to stay for now.
    fn send_dead_letter(
        &self,
        partition: PartitionId,
        letter: Box<DeadLetter>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) -> Result<usize, Box<DeadLetter>> {
        let addressed = self.address(&letter, env);
        // One that some queue can have now leaves: that queue is not to wait for the others.
        let has_no_place = |a: &Addressed| {
            let inbox = self.inbox.borrow();
            !a.targets.is_empty() && a.targets.iter().all(|target| inbox.is_no_place_for_letters(target.partition))
        };
        let may_stay = !letter.wants_answer && self.outgoing.borrow().may_stay();
        if may_stay && addressed.as_ref().is_some_and(has_no_place) {
            return Err(letter);
        }
        let DeadLetter { queue, seq, reason, wants_answer, .. } = *letter;
        let of = env.topology().queue(queue).map(|queue| (queue.shape.queue_type, reason));
        if !wants_answer {
            of.into_iter().for_each(|of| self.awaited.borrow_mut().sent.note(of, Strategy::AtMostOnce, 1));
        }
        let targets = addressed.as_ref().map_or(&[][..], |a| &a.targets[..]);
        // What was safe stays safe on its way: a dead letter is synced wherever that is a choice.
        let groups = by_partition(targets, Level::Synced);
        let is_circled = addressed.as_ref().is_some_and(|addressed| addressed.is_circled);
        if is_circled && !wants_answer {
            self.tell_circled(queue, reason, env);
        }
        if wants_answer && groups.is_empty() {
            let why = match (&addressed, is_circled) {
                (_, true) => "they would go round in dead-letter queues for ever",
                (Some(_), false) => "no queue is bound for them",
                (None, _) => "there is no such exchange, or their headers grew too long",
            };
            self.tell_unplaced(queue, why, env);
            let answered = Command::DeadLetterAnswered { queue, seq, is_safe: false };
            self.inbox.borrow_mut().push_here(partition, answered);
            return Ok(1);
        }
        let Some(Addressed { message, targets: all, .. }) = addressed else { return Ok(1) };
        let may_keep = wants_answer || self.leaders().has_peers() && self.inbox.borrow().may_keep_letters();
        let (own, number) = (self.keys.borrow().own(), self.awaited.borrow_mut().next_number());
        if wants_answer {
            let dead_letter = AwaitedDeadLetter { partition, queue, seq, of, left: groups.len(), is_safe: true };
            self.awaited.borrow_mut().waiting.insert(number, dead_letter);
        }
        for (id, targets) in groups {
            // Where another node may come to lead, a letter with a number is kept until it is answered, and goes to
            // the next leader, though nobody waits for it.
            let is_numbered = wants_answer || may_keep && !id.is_in_memory();
            let (channel, publish_seq) = if is_numbered { (own, number) } else { (ChannelKey::NOBODY, 0) };
            let message = message.clone();
            let publish = Publish { channel, publish_seq, term: 0, targets, delay_ms: 0, message, more: None };
            self.push(id, Command::Publish(publish));
        }
        Ok(all.len().max(1))
    }

    /// A message is dropped in one of the queues that it would go to.
    fn tell_circled(&self, queue: QueueId, reason: Reason, env: &impl Surroundings) {
        let Some(messages) = self.awaited.borrow_mut().circled.note(env.elapsed_us()) else { return };
        let topology = env.topology();
        let Some(queue) = topology.queue(queue) else { return };
        let vhost = topology.vhost_of(queue.vhost).map(|vhost| tracing::field::display(&vhost.name));
        let reason = reason.death();
        tracing::warn!(
            queue = %queue.name, vhost, reason, messages,
            "messages dropped: they would go round in dead-letter queues for ever"
        );
    }

    /// Letters stay in their queue, as they find no place. Tells so once in a while.
    fn tell_unplaced(&self, queue: QueueId, why: &str, env: &impl Surroundings) {
        let (mut awaited, now_us) = (self.awaited.borrow_mut(), env.elapsed_us());
        let unplaced = &mut awaited.unplaced;
        if unplaced.get(&queue).is_some_and(|next_us| now_us < *next_us) {
            return;
        }
        if unplaced.len() >= UNPLACED_MAX {
            unplaced.retain(|_, next_us| now_us < *next_us);
            if unplaced.len() >= UNPLACED_MAX {
                return;
            }
        }
        unplaced.insert(queue, now_us + TELL_UNPLACED_US);
        let topology = env.topology();
        let Some((queue, rule)) = topology.queue(queue).and_then(|q| Some((q, q.rules.dead_letter.as_ref()?))) else {
            return;
        };
        let vhost = topology.vhost_of(queue.vhost).map(|vhost| tracing::field::display(&vhost.name));
        let exchange = String::from_utf8_lossy(&rule.exchange);
        let routing_key =
            rule.routing_key.as_ref().map(|key| tracing::field::display(String::from_utf8_lossy(key).into_owned()));
        tracing::warn!(
            queue = %queue.name, vhost, dead_letter_exchange = %exchange, dead_letter_routing_key = routing_key,
            "dead letters find no place, are kept in their queue (messages_dlx) and tried again: {why}"
        );
    }

    /// Letters were refused since the last look.
    fn tell_refused(&self, env: &impl Surroundings) {
        let refused = self.awaited.borrow_mut().refused.take();
        if let Some(queue) = refused {
            self.tell_unplaced(queue, "a queue that they go to refuses them, or nobody leads it", env);
        }
    }

    fn address(&self, letter: &DeadLetter, env: &impl Surroundings) -> Option<Addressed> {
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
        let circle = Circle::of(&properties);
        let all = targets.len();
        targets.retain(|target| topology.queue(target.queue).is_none_or(|to| !circle.has(&to.name)));
        let is_circled = targets.len() < all;
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
        Some(Addressed { message, targets, is_circled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_told_at_once_and_then_seldom_with_its_count() {
        let mut seldom = Seldom::default();
        assert_eq!([0, 1, TELL_EVERY_US - 1].map(|now_us| seldom.note(now_us)), [Some(1), None, None]);
        assert_eq!(seldom.note(TELL_EVERY_US), Some(3));
        assert_eq!(seldom.take_due(u64::MAX), None, "all is told");
        assert_eq!(seldom.note(TELL_EVERY_US + 1), None);
        assert_eq!([TELL_EVERY_US + 1, 2 * TELL_EVERY_US].map(|now_us| seldom.take_due(now_us)), [None, Some(1)]);
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

//! Dead letters of a shard that wait for their turn to be published.
//!
//! One message may become as many letters as there are ways through queues that lead to each other, so what waits is
//! bounded: queues end few messages for their age while many letters wait ([`Outgoing::has_room`]), and letters of
//! messages that were too much for their queue are dropped beyond [`Outgoing::bytes_max`], if nobody waits for them.
//! Rejected messages, and those that came back too often, were in the hands of consumers, which bounds them, and beyond
//! twice as much as may wait none stays for a target that nobody leads ([`Outgoing::may_stay`]); a queue that waits for
//! its letters has few of them here at a time.
//!
//! Invariant: letters of one queue leave in the order in which it gave them up. Queues take turns, a letter each, so
//! that nobody's waits behind all of another's.

use broker::{PartitionId, QueueId};
use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use partition::DeadLetter;
use partition::entry::Reason;
use std::collections::VecDeque;

/// What may wait on a node, in bytes, before letters of messages that were too much are dropped.
const NODE_BYTES_MAX: usize = 64 << 20;
/// The part of it for one of many shards at least.
const SHARD_BYTES_MIN: usize = 4 << 20;
/// Beyond this part of what may wait, queues end few messages for their age.
const AGED_PART: usize = 16;
/// This part is divided among the queues that have letters here: one with less than its share loses none to others.
const SHARES_PART: usize = 8;
/// From so many letters on they are copied out of what they were read with.
const COPIED_FROM: usize = 512;
/// A larger one is most of what it was read with.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A letter, and the partition that gave it up.
pub(crate) type Sent = (PartitionId, Box<DeadLetter>);

/// The letters of one queue.
#[derive(Default)]
struct Backlog {
    letters: VecDeque<Sent>,
    bytes: usize,
}

/// See the module.
pub(crate) struct Outgoing {
    backlogs: HashMap<QueueId, Backlog, FixedState>,
    /// The queues that have letters here, in the order of their turns.
    turns: VecDeque<QueueId>,
    /// Those of them that have no further turn in this step.
    passed: Vec<QueueId>,
    count: usize,
    bytes: usize,
    bytes_max: usize,
    /// What ended for its age in this step, and may not be here yet.
    aged_bytes: usize,
    /// Queues that ended a message for its age in this step though there was no room.
    aged_beyond: HashSet<QueueId, FixedState>,
}

impl Outgoing {
    /// Of one of so many shards.
    pub(crate) fn new(shards: usize) -> Outgoing {
        Outgoing {
            backlogs: HashMap::default(),
            turns: VecDeque::new(),
            passed: Vec::new(),
            count: 0,
            bytes: 0,
            bytes_max: (NODE_BYTES_MAX / shards.max(1)).max(SHARD_BYTES_MIN),
            aged_bytes: 0,
            aged_beyond: HashSet::default(),
        }
    }

    /// Adds one; gives it back if there is no room for it and it may be dropped.
    pub(crate) fn push(&mut self, partition: PartitionId, mut letter: Box<DeadLetter>) -> Option<Box<DeadLetter>> {
        let own = self.backlogs.get(&letter.queue).map_or(0, |backlog| backlog.bytes);
        let share = self.bytes_max / SHARES_PART / self.turns.len().max(1);
        let may_be_dropped = letter.reason == Reason::MaxLength && !letter.wants_answer;
        if may_be_dropped && self.bytes >= self.bytes_max && own >= share {
            return Some(letter);
        }
        if self.count >= COPIED_FROM && letter.message.len() <= COPIED_BYTES_MAX {
            letter.message = Bytes::copy_from_slice(&letter.message);
        }
        let backlog = self.backlogs.entry(letter.queue).or_default();
        if backlog.letters.is_empty() {
            self.turns.push_back(letter.queue);
        }
        backlog.bytes += letter.bytes();
        self.bytes += letter.bytes();
        self.count += 1;
        backlog.letters.push_back((partition, letter));
        None
    }

    /// The letter whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<Sent> {
        let queue = self.turns.pop_front()?;
        let backlog = self.backlogs.get_mut(&queue).expect("a queue with a turn has letters");
        let sent = backlog.letters.pop_front().expect("a queue with a turn has letters");
        let bytes = sent.1.bytes();
        backlog.bytes -= bytes;
        self.bytes -= bytes;
        self.count -= 1;
        match backlog.letters.is_empty() {
            true => _ = self.backlogs.remove(&queue),
            false => self.turns.push_back(queue),
        }
        Some(sent)
    }

    /// Whether letters may stay here whose target has nobody who takes them. Those that are dropped beyond what may wait
    /// do not bring it so far.
    pub(crate) fn may_stay(&self) -> bool {
        self.bytes < 2 * self.bytes_max
    }

    /// Puts back what was popped last: its queue has no further turn before [`Outgoing::end_turns`].
    pub(crate) fn put_back(&mut self, (partition, letter): Sent) {
        let (queue, bytes) = (letter.queue, letter.bytes());
        let backlog = self.backlogs.entry(queue).or_default();
        if !backlog.letters.is_empty() {
            let last = self.turns.pop_back();
            assert_eq!(last, Some(queue), "it was popped last");
        }
        backlog.bytes += bytes;
        self.bytes += bytes;
        self.count += 1;
        backlog.letters.push_front((partition, letter));
        self.passed.push(queue);
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether some queue has a turn left.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// The queues that were passed over have their turns again, behind the others.
    pub(crate) fn end_turns(&mut self) {
        self.turns.extend(self.passed.drain(..));
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether so many wait that queues are to end few messages for their age.
    pub(crate) fn is_crowded(&self) -> bool {
        self.bytes + self.aged_bytes >= self.bytes_max / AGED_PART
    }

    /// Whether a queue may end a message for its age that becomes a letter: if there is room, or it has no other one.
    pub(crate) fn has_room(&self, queue: QueueId) -> bool {
        !self.is_crowded() || !self.backlogs.contains_key(&queue) && !self.aged_beyond.contains(&queue)
    }

    /// A queue ended one, which becomes a letter of so many bytes.
    pub(crate) fn take_room(&mut self, queue: QueueId, bytes: usize) {
        if self.is_crowded() {
            self.aged_beyond.insert(queue);
        }
        self.aged_bytes += bytes;
    }

    /// A step is over: what ended in it is here, or in an entry of the log on its way.
    pub(crate) fn end_step(&mut self) {
        self.aged_bytes = 0;
        if !self.aged_beyond.is_empty() {
            self.aged_beyond.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(1);

    fn letter(queue: u64, seq: u64, reason: Reason) -> Box<DeadLetter> {
        let message = Bytes::from(vec![0; 1000]);
        Box::new(DeadLetter { queue: QueueId(queue), seq, reason, message, wants_answer: false })
    }

    fn taken(outgoing: &mut Outgoing, count: usize) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| outgoing.pop()).take(count).map(|(_, letter)| (letter.queue.0, letter.seq)).collect()
    }

    #[test]
    fn letters_of_a_queue_leave_in_their_order_and_queues_take_turns() {
        let mut outgoing = Outgoing::new(1);
        for seq in 1..=1_000 {
            assert!(outgoing.push(P, letter(1, seq, Reason::Expired)).is_none());
        }
        assert!(outgoing.push(P, letter(2, 1, Reason::Discarded)).is_none());
        assert!(outgoing.push(P, letter(2, 2, Reason::Discarded)).is_none());
        assert_eq!(taken(&mut outgoing, 5), [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]);
        let rest: Vec<_> = (4..=1_000).map(|seq| (1, seq)).collect();
        assert_eq!(taken(&mut outgoing, 2_000), rest);
        assert!(outgoing.is_empty());
        assert_eq!((outgoing.bytes, outgoing.count, outgoing.backlogs.len()), (0, 0, 0));
    }

    #[test]
    fn a_letter_that_is_put_back_is_the_next_of_its_queue_and_others_have_their_turns() {
        let mut outgoing = Outgoing::new(1);
        for (queue, seq) in [(1, 1), (1, 2), (2, 1), (3, 1)] {
            assert!(outgoing.push(P, letter(queue, seq, Reason::Discarded)).is_none());
        }
        let bytes = outgoing.bytes;
        let first = outgoing.pop().expect("there are four");
        outgoing.put_back(first);
        let of_one = outgoing.pop().expect("there are four");
        outgoing.put_back(of_one);
        assert_eq!((outgoing.bytes, outgoing.count), (bytes, 4));
        assert_eq!(taken(&mut outgoing, 5), [(3, 1)]);
        assert!(!outgoing.has_turns());
        outgoing.end_turns();
        assert_eq!(taken(&mut outgoing, 5), [(1, 1), (2, 1), (1, 2)]);
        assert!(outgoing.is_empty());
        assert_eq!((outgoing.bytes, outgoing.count, outgoing.backlogs.len()), (0, 0, 0));
    }

    #[test]
    fn only_letters_of_what_was_too_much_are_dropped_and_none_of_a_queue_with_few() {
        let mut outgoing = Outgoing::new(1);
        let mut pushed = 0;
        while outgoing.push(P, letter(1, pushed, Reason::MaxLength)).is_none() {
            pushed += 1;
        }
        let bytes = outgoing.bytes;
        assert!((NODE_BYTES_MAX..NODE_BYTES_MAX + 2_000).contains(&bytes), "{bytes}");
        assert!(outgoing.may_stay());
        for reason in [Reason::Discarded, Reason::DeliveryLimit, Reason::Expired] {
            assert!(outgoing.push(P, letter(1, pushed, reason)).is_none(), "{reason:?}");
        }
        let awaited = DeadLetter { wants_answer: true, ..*letter(1, pushed, Reason::MaxLength) };
        assert!(outgoing.push(P, Box::new(awaited)).is_none());
        assert!(outgoing.push(P, letter(1, pushed, Reason::MaxLength)).is_some());
        let of_another = (0..).take_while(|seq| outgoing.push(P, letter(2, *seq, Reason::MaxLength)).is_none()).count();
        assert!((1_000..10_000).contains(&of_another), "its share of an eighth: {of_another}");
        assert_eq!(taken(&mut outgoing, 2), [(1, 0), (2, 0)]);
    }

    #[test]
    fn while_many_letters_wait_each_queue_ends_one_message_for_its_age() {
        let mut outgoing = Outgoing::new(1);
        let (one, other) = (QueueId(1), QueueId(2));
        let mut ended = 0;
        while outgoing.has_room(one) {
            outgoing.take_room(one, 1_000);
            ended += 1;
        }
        let all = NODE_BYTES_MAX / AGED_PART / 1_000;
        assert!((all..=all + 2).contains(&ended), "a step ends no more than has room: {ended}");
        assert!(outgoing.has_room(other));
        outgoing.take_room(other, 1_000);
        assert!(!outgoing.has_room(other));
        (0..2 * ended).for_each(|seq| assert!(outgoing.push(P, letter(1, seq as u64, Reason::Expired)).is_none()));
        outgoing.end_step();
        assert!(!outgoing.has_room(one) && outgoing.has_room(other));
        taken(&mut outgoing, 2 * ended);
        assert!(outgoing.has_room(one));
    }

    #[test]
    fn what_waits_behind_many_holds_no_more_than_its_own_bytes() {
        let mut outgoing = Outgoing::new(1);
        let read = Bytes::from(vec![0; 1 << 20]);
        for seq in 0..1_000 {
            let message = read.slice(..100);
            _ = outgoing.push(P, Box::new(DeadLetter { message, ..*letter(1, seq, Reason::Expired) }));
        }
        taken(&mut outgoing, COPIED_FROM);
        assert!(read.is_unique(), "those that are left have their own");
    }
}

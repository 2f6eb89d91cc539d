//! How far another node has come with what a shard sent it: marks between the messages, which come back.
//!
//! ```text
//! this shard ── publish, publish, mark 1 (to each partition that something went to) ──▶ the shards of the other node
//!            ◀── mark 1 from each of them ──
//! ```
//!
//! Each partition is on one of the other node's shards, which handles in order what came to it, and says nothing of
//! the others.
//! Invariant: what counts as handled was handled by every shard that it went to, but where no answer comes for
//! [`MARK_LASTS_US`]: its partition has left that node, and nobody may wait for it for ever.

use broker::PartitionId;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// How often the other node is asked how far it has come.
const MARK_BYTES: u64 = 1 << 20;
/// Longer than that nobody waits for the answer to a mark.
const MARK_LASTS_US: u64 = 10_000_000;
/// Of the 56 bits of a number the highest says that a leader's turn waits for it, which is answered at once; below it is
/// what was sent, or the number of the turn.
const TURN: u64 = 1 << 55;

/// See the module; of one link.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// Bytes sent, of those how many at the last mark, and how many are known to be handled.
    sent: u64,
    marked: u64,
    handled: u64,
    /// What something went to since the last mark.
    since: SmallVec<[PartitionId; 4]>,
    /// Marks without all of their answers, in order.
    asked: VecDeque<Asked>,
    /// Turns without an answer.
    turns: Vec<u64>,
    last_turn: u64,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    /// How many answers are missing.
    missing: usize,
    at_us: u64,
}

/// Whether somebody's turn waits for the answer to this mark, whatever else this node has to do.
pub(crate) fn is_of_turn(number: u64) -> bool {
    number & TURN != 0
}

impl Marks {
    /// Bytes that are sent and not known to be handled.
    pub(crate) fn under_way(&self) -> u64 {
        self.sent - self.handled
    }

    /// Something of so many bytes goes to a partition. Returns the mark that is due behind it, and for which partitions.
    #[inline]
    pub(crate) fn send(
        &mut self,
        partition: PartitionId,
        bytes: u64,
        now_us: u64,
    ) -> Option<(u64, SmallVec<[PartitionId; 4]>)> {
        self.sent += bytes;
        if self.since.last() != Some(&partition) && !self.since.contains(&partition) {
            self.since.push(partition);
        }
        if self.sent - self.marked < MARK_BYTES {
            return None;
        }
        self.marked = self.sent;
        let partitions = std::mem::take(&mut self.since);
        self.asked.push_back(Asked { number: self.sent, missing: partitions.len(), at_us: now_us });
        Some((self.sent, partitions))
    }

    /// A mark behind what went to one partition, whose leader is another one now.
    pub(crate) fn turn(&mut self) -> u64 {
        self.last_turn += 1;
        let number = TURN | self.last_turn;
        self.turns.push(number);
        number
    }

    /// Whether what went ahead of such a mark was handled.
    pub(crate) fn has_turned(&self, number: u64) -> bool {
        !self.turns.contains(&number)
    }

    /// A mark comes back from one shard.
    pub(crate) fn answered(&mut self, number: u64) {
        if is_of_turn(number) {
            return self.turns.retain(|turn| *turn != number);
        }
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.number == number) {
            asked.missing = asked.missing.saturating_sub(1);
        }
        self.take_done(None);
    }

    /// It is so late.
    pub(crate) fn handle_timeout(&mut self, now_us: u64) {
        if !self.asked.is_empty() {
            self.take_done(Some(now_us));
        }
    }

    fn take_done(&mut self, now_us: Option<u64>) {
        let is_done =
            |asked: &Asked| asked.missing == 0 || now_us.is_some_and(|now| now >= asked.at_us + MARK_LASTS_US);
        while let Some(asked) = self.asked.front().filter(|asked| is_done(asked)) {
            self.handled = asked.number;
            self.asked.pop_front();
        }
    }

    /// The other node has handled everything.
    #[cfg(test)]
    pub(crate) fn answer_all(&mut self) {
        self.turns.clear();
        self.asked.clear();
        self.handled = self.sent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: PartitionId = PartitionId(1);
    const LOADED: PartitionId = PartitionId(2);

    #[test]
    fn what_one_shard_handled_says_nothing_of_what_another_one_has() {
        let mut marks = Marks::default();
        assert_eq!(marks.send(LOADED, MARK_BYTES / 2, 0), None);
        let (first, partitions) = marks.send(QUICK, MARK_BYTES / 2, 0).expect("a mark is due");
        assert_eq!(partitions[..], [LOADED, QUICK]);
        let (second, partitions) = marks.send(QUICK, MARK_BYTES, 0).expect("a mark is due");
        assert_eq!(partitions[..], [QUICK]);
        marks.answered(first);
        marks.answered(second);
        assert_eq!(marks.under_way(), 2 * MARK_BYTES, "the loaded one has not answered the first");
        marks.answered(first);
        assert_eq!(marks.under_way(), 0);
        marks.answered(first);
        marks.answered(77);
        assert_eq!(marks.under_way(), 0, "whatever else comes");
    }

    #[test]
    fn a_turn_waits_for_its_own_mark() {
        let mut marks = Marks::default();
        let (number, _) = marks.send(QUICK, MARK_BYTES, 0).expect("a mark is due");
        let (one, other) = (marks.turn(), marks.turn());
        assert!(is_of_turn(one) && !is_of_turn(number) && one != other);
        marks.answered(number);
        marks.answered(other);
        assert!(marks.has_turned(other) && !marks.has_turned(one));
        marks.answered(one);
        assert!(marks.has_turned(one));
    }

    #[test]
    fn a_mark_that_nobody_answers_is_not_waited_for_for_ever() {
        let mut marks = Marks::default();
        let _ = marks.send(LOADED, MARK_BYTES, 5);
        let (later, _) = marks.send(QUICK, MARK_BYTES, 6).expect("a mark is due");
        marks.answered(later);
        marks.handle_timeout(MARK_LASTS_US + 4);
        assert_eq!(marks.under_way(), 2 * MARK_BYTES);
        marks.handle_timeout(MARK_LASTS_US + 5);
        assert_eq!(marks.under_way(), 0);
    }
}

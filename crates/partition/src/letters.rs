//! Dead letters of one queue that wait for an answer (*at least once*): under way, or stuck as they found no place.
//!
//! What is tried again has its turn once a second, at most so many, in the order in which their messages were
//! given up, and those that were not tried yet behind them. Invariants: who finds no place for ever keeps no other from
//! its place; while none of them finds one, as their queue is full or gone, no later one goes ahead of an earlier one, as
//! long as there are no more than are tried at a time.

use crate::entry::Reason;
use std::collections::BTreeMap;

/// So many are under way at a time, and tried again in a round.
const AWAITING_MAX: usize = 256;
/// A round takes so long.
const ROUND_MS: u64 = 1_000;
/// So many that were not tried yet are in the first round behind those that are stuck; in each further one twice as many, up to
/// [`AWAITING_MAX`].
const FRESH_MIN: usize = 32;
/// While so many are stuck, no more are given up.
const STUCK_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    awaiting: BTreeMap<u64, Awaited>,
    /// How many of them were stuck before.
    again: usize,
    /// By the round in which they are tried next, and their turns.
    stuck: BTreeMap<(u64, u64), (u64, Reason)>,
    round: u64,
    round_ends_ms: u64,
    /// What may still be sent in this round: of those that are stuck, and of the others while none of these finds a place.
    stuck_left: usize,
    fresh_left: usize,
    fresh_a_round: usize,
    /// One that was sent for the first time beside those that are stuck found its place: until then the others are
    /// sent freely.
    flows_until_ms: u64,
}

#[derive(Debug)]
struct Awaited {
    turn: u64,
    reason: Reason,
    is_fresh: bool,
}

/// Which letter goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextLetter {
    /// The first of those that were not sent yet.
    Fresh,
    /// One that was.
    Stuck {
        /// Its place among all that were given up.
        turn: u64,
        /// Its message.
        seq: u64,
        /// Why it was given up.
        reason: Reason,
    },
}

impl Letters {
    /// Which one goes now, if one may; `has_fresh`: there are some that were not sent yet.
    pub(crate) fn next(&mut self, has_fresh: bool, now_ms: u64) -> Option<NextLetter> {
        if self.awaiting.len() >= AWAITING_MAX {
            return None;
        }
        if !self.stuck.is_empty() && now_ms >= self.round_ends_ms {
            self.begin_round(now_ms);
        }
        if self.stuck_left > 0
            && let Some((&(round, turn), &(seq, reason))) = self.stuck.first_key_value()
            && round <= self.round
        {
            return Some(NextLetter::Stuck { turn, seq, reason });
        }
        self.stuck_left = 0;
        if !has_fresh {
            // Who comes later waits for the next round, behind those that are stuck.
            self.fresh_left = 0;
            return None;
        }
        let is_free = self.stuck.is_empty() && self.again == 0;
        let may_go = is_free || now_ms < self.flows_until_ms || self.fresh_left > 0;
        may_go.then_some(NextLetter::Fresh)
    }

    fn begin_round(&mut self, now_ms: u64) {
        self.round += 1;
        self.round_ends_ms = now_ms + ROUND_MS;
        self.stuck_left = self.stuck.len().min(AWAITING_MAX);
        self.fresh_a_round = (self.fresh_a_round * 2).clamp(FRESH_MIN, AWAITING_MAX);
        self.fresh_left = self.fresh_a_round;
    }

    /// A letter is under way.
    pub(crate) fn sent(&mut self, seq: u64, turn: u64, reason: Reason, is_fresh: bool) {
        match is_fresh {
            true => self.fresh_left = self.fresh_left.saturating_sub(1),
            false => {
                self.forget_stuck(seq);
                self.stuck_left = self.stuck_left.saturating_sub(1);
                self.again += 1;
            }
        }
        self.awaiting.insert(seq, Awaited { turn, reason, is_fresh });
    }

    /// A letter is safe, which gives why its message was given up, or found no place.
    pub(crate) fn answered(&mut self, seq: u64, is_safe: bool, now_ms: u64) -> Option<Reason> {
        let Awaited { turn, reason, is_fresh } = self.awaiting.remove(&seq)?;
        self.again -= usize::from(!is_fresh);
        if is_safe {
            if is_fresh && !self.stuck.is_empty() {
                (self.flows_until_ms, self.fresh_a_round) = (now_ms + ROUND_MS, 0);
            }
            return Some(reason);
        }
        if self.stuck.is_empty() && now_ms >= self.round_ends_ms {
            // The first one: a while begins, in which nobody is tried again.
            (self.round_ends_ms, self.fresh_a_round) = (now_ms + ROUND_MS, 0);
            (self.stuck_left, self.fresh_left) = (0, 0);
        }
        self.stuck.insert((self.round + 1, turn), (seq, reason));
        None
    }

    /// When something may go on by time alone.
    pub(crate) fn due_ms(&self, now_ms: u64) -> Option<u64> {
        (!self.stuck.is_empty() && self.round_ends_ms > now_ms).then_some(self.round_ends_ms)
    }

    /// Those that wait for an answer, or for another try.
    pub(crate) fn len(&self) -> usize {
        self.awaiting.len() + self.stuck.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether so many found no place that no more are given up.
    pub(crate) fn is_crowded(&self) -> bool {
        self.stuck.len() >= STUCK_MAX
    }

    /// Whether a message is one of them.
    pub(crate) fn has(&self, seq: u64) -> bool {
        self.awaiting.contains_key(&seq) || self.stuck.values().any(|(stuck, _)| *stuck == seq)
    }

    /// A message is not tried again.
    pub(crate) fn forget_stuck(&mut self, seq: u64) {
        // It is the first one where it is sent.
        let place = self.stuck.iter().find(|(_, (stuck, _))| *stuck == seq).map(|(place, _)| *place);
        place.into_iter().for_each(|place| _ = self.stuck.remove(&place));
    }

    /// All of them.
    pub(crate) fn into_all(self) -> impl Iterator<Item = (u64, Reason)> {
        let awaiting = self.awaiting.into_iter().map(|(seq, awaited)| (seq, awaited.reason));
        awaiting.chain(self.stuck.into_values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue whose messages are all given up, and its letters' way.
    struct Rig {
        letters: Letters,
        fresh: std::collections::VecDeque<u64>,
        now_ms: u64,
        arrived: Vec<u64>,
        tried: usize,
    }

    impl Rig {
        fn of(messages: std::ops::Range<u64>) -> Rig {
            Rig {
                letters: Letters::default(),
                fresh: messages.collect(),
                now_ms: 10_000,
                arrived: Vec::new(),
                tried: 0,
            }
        }

        /// Sends what may go, and answers all of it at once, again and again, until nothing goes.
        fn run(&mut self, finds_place: impl Fn(u64) -> bool) {
            loop {
                let mut sent = Vec::new();
                while let Some(next) = self.letters.next(!self.fresh.is_empty(), self.now_ms) {
                    let (turn, seq, is_fresh) = match next {
                        NextLetter::Fresh => self.fresh.pop_front().map(|seq| (seq, seq, true)).expect("there is one"),
                        NextLetter::Stuck { turn, seq, .. } => (turn, seq, false),
                    };
                    self.letters.sent(seq, turn, Reason::Expired, is_fresh);
                    sent.push(seq);
                }
                if sent.is_empty() {
                    return;
                }
                self.tried += sent.len();
                for seq in sent {
                    if self.letters.answered(seq, finds_place(seq), self.now_ms).is_some() {
                        self.arrived.push(seq);
                    }
                }
            }
        }

        /// Time goes by until something may go.
        fn wait(&mut self) {
            self.now_ms = self.letters.due_ms(self.now_ms).expect("something is stuck");
        }
    }

    #[test]
    fn while_none_finds_a_place_they_keep_their_order_and_are_tried_once_a_second() {
        let mut rig = Rig::of(0..2_000);
        rig.run(|_| false);
        assert_eq!(rig.tried, 256);
        rig.run(|_| false);
        assert_eq!(rig.tried, 256, "not at once again");
        // Somebody makes room again: the earlier ones come first.
        rig.wait();
        rig.run(|_| true);
        assert_eq!(rig.arrived, (0..2_000).collect::<Vec<_>>());
        assert!(rig.letters.is_empty() && rig.letters.due_ms(rig.now_ms).is_none());
    }

    #[test]
    fn one_place_at_a_time_is_for_the_earliest() {
        let mut rig = Rig::of(0..10);
        rig.run(|_| false);
        for next in 0..10 {
            rig.wait();
            rig.fresh.push_back(10 + next);
            rig.run(|seq| seq == next);
        }
        assert_eq!(rig.arrived, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn those_that_never_find_a_place_keep_no_other_from_its() {
        for stuck in [1, 30, 256, 500, 2_000, 20_000] {
            let mut rig = Rig::of(0..stuck + 3_000);
            let (mut rounds, begin) = (0, rig.now_ms);
            rig.run(|seq| seq >= stuck);
            while rig.arrived.len() < 3_000 {
                rig.wait();
                rig.run(|seq| seq >= stuck);
                rounds += 1;
            }
            assert!(rounds <= 4 + stuck / 200, "{stuck} without a place: {rounds} rounds");
            assert_eq!(rig.arrived, (stuck..stuck + 3_000).collect::<Vec<_>>());
            // They are tried again no oftener than so many a second, and none is forgotten.
            assert_eq!(rig.letters.len() as u64, stuck);
            assert!(rig.tried as u64 <= 3_000 + stuck + rounds * 512 + 512);
            rig.arrived.clear();
            while !rig.letters.is_empty() {
                rig.wait();
                rig.run(|_| true);
            }
            assert_eq!(rig.arrived.len() as u64, stuck, "in {} ms", rig.now_ms - begin);
        }
    }

    #[test]
    fn what_comes_one_by_one_beside_those_waits_for_the_next_round_at_most() {
        let mut rig = Rig::of(0..10);
        rig.run(|seq| seq >= 10);
        for next in 10..20 {
            rig.fresh.push_back(next);
            rig.run(|seq| seq >= 10);
            if !rig.arrived.contains(&next) {
                rig.wait();
                rig.run(|seq| seq >= 10);
            }
            assert_eq!(rig.arrived.last(), Some(&next));
        }
    }

    #[test]
    fn those_that_come_between_find_their_place_at_once_while_others_do() {
        // One in ten finds none.
        let mut rig = Rig::of(0..10_000);
        let finds = |seq: u64| !seq.is_multiple_of(10);
        rig.run(finds);
        let mut rounds = 0;
        while rig.arrived.len() < 9_000 {
            rig.wait();
            rig.run(finds);
            rounds += 1;
        }
        assert!(rounds <= 3, "{rounds}");
    }
}

//! How long this node may route messages by what it knows of the topology.
//!
//! Whoever answers a change of the topology has waited until every node that can be reached has carried it out, or
//! for [`SLOW_MS`] since it had done so itself. So a node misses nothing that anybody was answered as long as it knows what
//! was decided less than that ago. It asks the others with every tick how far their logs go: what was decided
//! before the question stands in the log of one of any majority.
//!
//! Where nobody has routed anything for [`UNUSED_TICKS`], it asks with one tick in [`RESTING_TICKS`] only, to know whether a
//! majority is there: three nodes on which nothing happens would wake each other for these questions more than for anything
//! else. Who then comes with a message has it ask at once, and waits for the answer.
//!
//! Where no majority has answered [`VAIN_TICKS`] ticks in a row, the node says so: its clients may go on then, by what is known here, and are told
//! nothing else.
//!
//! Invariant: a lease that begins with a question ends [`LEASE_MS`] after that was asked, and is had once a majority
//! has answered and this node has carried out its log as far as the longest of theirs goes. A node that stood
//! still, or was cut off, has none when it is back, and has one again after one question.

use crate::Millis;
use crate::heard::SLOW_MS;
use broker::{NodeLife, NodeNumber};
use consensus::{LogIndex, Membership, NodeId};
use partition::peer::forward::Forward;
use std::collections::VecDeque;

/// How long a lease is, from its question on. The rest of [`SLOW_MS`] is for clocks that do not go alike.
pub(crate) const LEASE_MS: Millis = SLOW_MS - 100;
/// Three seconds: so long it takes until links end over which nothing comes. Ticks that were missed do not count: a node that
/// stood still has not asked.
const VAIN_TICKS: u32 = 20;
/// Ten seconds.
const UNUSED_TICKS: u32 = 66;
/// 0.9 seconds: two questions without an answer, and it asks with each tick again.
const RESTING_TICKS: u32 = 6;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Questions that may still bring a lease, the oldest first: a few, as each is so for [`LEASE_MS`].
    asked: VecDeque<Asked>,
    /// The number of the last one. It begins with that of the node's start, so that an answer to an earlier life
    /// is none to this one.
    last: u64,
    /// It is to be asked before the next tick.
    is_due: bool,
    /// Ticks since the last lease.
    vain: u32,
    /// Ticks since somebody routed by it, or wanted to.
    unused: u32,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    at: Millis,
    /// How far the longest log goes of those that answered.
    end: LogIndex,
    answered: Vec<NodeId>,
}

/// Whether more than half of `voters` are among `some`.
fn is_majority(voters: &[NodeId], some: &[NodeId]) -> bool {
    voters.iter().filter(|voter| some.contains(voter)).count() > voters.len() / 2
}

impl Lease {
    pub(crate) fn new(life: NodeLife) -> Lease {
        Lease { asked: VecDeque::new(), last: u64::from(life.start) << 32, is_due: true, vain: 0, unused: 0 }
    }

    /// Others are to be asked with the next step: a link came, or a quick tick.
    pub(crate) fn is_due(&mut self) {
        self.is_due = true;
    }

    /// A whole tick went by.
    pub(crate) fn tick(&mut self) {
        self.vain = self.vain.saturating_add(1);
        self.unused = self.unused.saturating_add(1);
        self.is_due |= !self.rests() || self.vain > 2 * RESTING_TICKS || self.unused.is_multiple_of(RESTING_TICKS);
    }

    /// Somebody routes by it, or waits until it is had.
    pub(crate) fn is_used(&mut self) {
        self.is_due |= self.rests();
        self.unused = 0;
    }

    fn rests(&self) -> bool {
        self.unused > UNUSED_TICKS
    }

    /// Nobody asks: not all nodes answer yet.
    pub(crate) fn rest(&mut self) {
        self.vain = 0;
    }

    /// Whether a majority was asked in vain for long.
    pub(crate) fn is_vain(&self) -> bool {
        self.vain > VAIN_TICKS
    }

    /// What was asked until now brings no lease any more.
    pub(crate) fn give_up(&mut self) {
        self.asked.clear();
        self.is_due = true;
    }

    /// Asks those of `linked` that have a vote, if they are to be asked now. `own` is this node and how far its log goes, if
    /// that says anything.
    pub(crate) fn ask(
        &mut self,
        now: Millis,
        own: Option<(NodeNumber, LogIndex)>,
        members: &Membership,
        linked: impl Iterator<Item = NodeNumber>,
        out: &mut Vec<(NodeNumber, Forward)>,
    ) {
        if !std::mem::take(&mut self.is_due) {
            return;
        }
        while self.asked.front().is_some_and(|asked| asked.at + LEASE_MS <= now) {
            self.asked.pop_front();
        }
        self.last += 1;
        let number = self.last;
        let end = own.map(|(_, end)| end).unwrap_or_default();
        let answered = own.iter().map(|(own, _)| id(*own)).collect();
        self.asked.push_back(Asked { number, at: now, end, answered });
        let asked = linked.filter(|node| members.is_voter(id(*node)));
        out.extend(asked.map(|node| (node, Forward::AskLease { number })));
    }

    /// A node answers how far its log goes.
    pub(crate) fn answered(&mut self, from: NodeNumber, number: u64, end: LogIndex) {
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.number == number)
            && !asked.answered.contains(&id(from))
        {
            asked.answered.push(id(from));
            asked.end = asked.end.max(end);
        }
    }

    /// Until when this node has a lease, which has carried out its log up to `applied`; nothing where that has not
    /// changed since the last look, or is over.
    pub(crate) fn look(&mut self, now: Millis, applied: LogIndex, members: &Membership) -> Option<Millis> {
        let is_had = |asked: &Asked| {
            asked.at + LEASE_MS > now
                && asked.end <= applied
                && is_majority(&members.voters, &asked.answered)
                && (!members.is_joint() || is_majority(&members.voters_outgoing, &asked.answered))
        };
        let newest = self.asked.iter().rposition(is_had)?;
        let had = self.asked.drain(..=newest).next_back()?;
        self.vain = 0;
        Some(had.at + LEASE_MS)
    }
}

fn id(node: NodeNumber) -> NodeId {
    NodeId(node.0.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeNumber = NodeNumber(1);
    const B: NodeNumber = NodeNumber(2);
    const C: NodeNumber = NodeNumber(3);
    const D: NodeNumber = NodeNumber(4);

    struct Lab {
        lease: Lease,
        members: Membership,
    }

    impl Lab {
        fn new(voters: &[NodeNumber]) -> Lab {
            let members = Membership::of_voters(voters.iter().map(|node| id(*node)));
            Lab { lease: Lease::new(NodeLife { node: 1, start: 7 }), members }
        }

        /// A asks, whose log goes as far as `end`: the number, and who is asked.
        fn ask(&mut self, now: Millis, end: u64) -> (u64, Vec<NodeNumber>) {
            let mut out = Vec::new();
            self.lease.is_due();
            self.lease.ask(now, Some((A, LogIndex(end))), &self.members, [B, C, D].into_iter(), &mut out);
            (self.lease.last, out.into_iter().map(|(node, _)| node).collect())
        }

        fn look(&mut self, applied: u64) -> Option<Millis> {
            let now = self.lease.asked.back().map_or(0, |asked| asked.at);
            self.lease.look(now, LogIndex(applied), &self.members)
        }
    }

    #[test]
    fn a_lease_begins_when_it_was_asked_for_and_needs_a_majority_and_all_of_its_logs() {
        let mut lab = Lab::new(&[A, B, C]);
        let (number, asked) = lab.ask(1_000, 5);
        assert_eq!(asked, [B, C], "who has no vote is not asked");
        assert_eq!(lab.look(5), None, "one of three is no majority");
        lab.lease.answered(B, number, LogIndex(7));
        lab.lease.answered(B, number, LogIndex(6));
        assert_eq!(lab.look(6), None, "B has more");
        assert_eq!(lab.look(7), Some(1_000 + LEASE_MS));
        assert_eq!(lab.look(7), None, "nothing has changed");
        lab.lease.answered(C, number, LogIndex(9));
        assert_eq!(lab.look(9), None, "late");
    }

    #[test]
    fn a_later_question_serves_where_an_earlier_one_asks_for_what_is_not_there() {
        let mut lab = Lab::new(&[A, B, C]);
        let (first, _) = lab.ask(1_000, 5);
        let (second, _) = lab.ask(1_100, 5);
        // What stood at 6 was decided by nobody and is gone.
        lab.lease.answered(B, first, LogIndex(6));
        lab.lease.answered(B, second, LogIndex(5));
        assert_eq!(lab.look(5), Some(1_100 + LEASE_MS));
        lab.lease.answered(C, first, LogIndex(5));
        assert_eq!(lab.look(6), None, "an earlier one makes no lease shorter");
    }

    #[test]
    fn answers_of_an_earlier_life_and_to_what_was_given_up_bring_nothing() {
        let mut lab = Lab::new(&[A, B, C]);
        let (number, _) = lab.ask(1_000, 5);
        assert_eq!(number, (7 << 32) + 1);
        lab.lease.answered(B, (6 << 32) + 1, LogIndex(5));
        assert_eq!(lab.look(5), None);
        lab.lease.give_up();
        lab.lease.answered(B, number, LogIndex(5));
        assert_eq!(lab.look(5), None);
        let mut out = Vec::new();
        lab.lease.ask(1_001, Some((A, LogIndex(5))), &lab.members, [B].into_iter(), &mut out);
        assert_eq!(out.len(), 1, "it asks again at once");
        lab.lease.ask(1_002, Some((A, LogIndex(5))), &lab.members, [B].into_iter(), &mut out);
        assert_eq!(out.len(), 1, "and then with the next tick");
    }

    #[test]
    fn a_joint_change_needs_both_majorities_and_who_is_alone_needs_nobody() {
        let mut lab = Lab::new(&[A]);
        lab.ask(1_000, 5);
        assert_eq!(lab.look(5), Some(1_000 + LEASE_MS));
        lab.members = Membership::of_voters([id(C), id(D)]);
        lab.members.voters_outgoing = vec![id(A), id(B)];
        let (number, asked) = lab.ask(2_000, 5);
        assert_eq!(asked, [B, C, D]);
        lab.lease.answered(C, number, LogIndex(5));
        lab.lease.answered(D, number, LogIndex(5));
        assert_eq!(lab.look(5), None, "one of two that are about to go");
        lab.lease.answered(B, number, LogIndex(5));
        assert_eq!(lab.look(5), Some(2_000 + LEASE_MS));
    }

    #[test]
    fn an_answer_that_comes_when_its_lease_is_over_brings_none() {
        let mut lab = Lab::new(&[A, B, C]);
        (0..=VAIN_TICKS).for_each(|_| lab.lease.tick());
        let (number, _) = lab.ask(1_000, 5);
        lab.lease.answered(B, number, LogIndex(5));
        let over = 1_000 + LEASE_MS;
        assert_eq!((lab.lease.look(over, LogIndex(5), &lab.members), lab.lease.is_vain()), (None, true));
        assert_eq!(lab.lease.look(over - 1, LogIndex(5), &lab.members), Some(over));
        assert!(!lab.lease.is_vain());
    }

    #[test]
    fn it_is_told_after_twenty_ticks_that_nobody_answers_and_until_somebody_does() {
        let mut lab = Lab::new(&[A, B, C]);
        for _ in 0..VAIN_TICKS {
            lab.lease.tick();
            assert!(!lab.lease.is_vain());
        }
        lab.lease.tick();
        assert!(lab.lease.is_vain());
        let (number, _) = lab.ask(1_000, 5);
        lab.lease.answered(B, number, LogIndex(6));
        assert_eq!((lab.look(5), lab.lease.is_vain()), (None, true), "it does not know all yet");
        assert!(lab.look(6).is_some() && !lab.lease.is_vain());
    }

    #[test]
    fn one_that_nobody_uses_is_asked_for_seldom_and_at_once_when_somebody_does() {
        let mut lab = Lab::new(&[A, B, C]);
        let asked_of = |lease: &mut Lease, ticks: u32, is_answered: bool| -> Vec<u32> {
            let asks = |tick: &u32| {
                let mut out = Vec::new();
                lease.tick();
                lease.ask(u64::from(*tick), Some((A, LogIndex(5))), &lab.members, [B].into_iter(), &mut out);
                if is_answered && !out.is_empty() {
                    lease.answered(B, lease.last, LogIndex(5));
                    lease.look(u64::from(*tick), LogIndex(5), &lab.members).expect("a majority has answered");
                }
                !out.is_empty()
            };
            (1..=ticks).filter(asks).collect()
        };
        let lease = &mut lab.lease;
        let all = |count: u32| (1..=count).collect::<Vec<u32>>();
        assert_eq!(asked_of(lease, UNUSED_TICKS, true), all(UNUSED_TICKS));
        assert_eq!(asked_of(lease, 18, true), [6, 12, 18], "66 ticks before them");
        lease.is_used();
        assert_eq!(asked_of(lease, 5, true), all(5), "at once, and with each tick");
        assert_eq!(asked_of(lease, UNUSED_TICKS - 5, true), all(UNUSED_TICKS - 5));
        let in_vain = asked_of(lease, 20, false);
        assert_eq!(in_vain, [vec![6, 12], (13..=20).collect()].concat(), "it looks for a majority that is gone");
        assert!(!lease.is_vain());
        lease.tick();
        assert!(lease.is_vain(), "which is known as soon");
    }

    #[test]
    fn questions_that_nobody_answers_are_forgotten() {
        let mut lab = Lab::new(&[A, B, C]);
        for tick in 0..100 {
            lab.ask(tick * 150, 5);
        }
        assert!(lab.lease.asked.len() <= 3, "{}", lab.lease.asked.len());
    }
}

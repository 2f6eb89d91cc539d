//! How a member that is to leave its group finds out that it has: nobody sends it anything any more.
//!
//! ```text
//! member                            every other one, and those that are to come
//!   ── ask left: member ──▶           repeated
//!   ◀── left: ...                     from whoever has applied a change after which it is no member, with its
//!                                     term, whether it leads, up to where it has applied, and the voters
//! ```
//!
//! Until every voter has applied the change by which it left, some may still need its vote: they count the voters
//! from before (`docs/decisions/0015-changes-of-members.md`); so does one again that has applied it, and after a start
//! does not know that it was committed: who answers has that on its disk. So it has left once a leader of its own term, or of a
//! later one, has said so, and each of the voters that this one named has said so of a place in the log that is
//! not before the leader's: the change is not behind that. A leader says so once it has applied an entry of its own
//! term, and with it all that was committed before it: one that has just been elected may not know yet that the member
//! ever came.
//!
//! Invariants: what was said before a leader sent it anything counts no more: it was taken in after that. What is
//! said is about one life of its node, so that an answer to an earlier one is not taken for one.

use super::Replica;
use crate::peer::{Left, PeerFrame};
use consensus::{Kind, LogIndex, Membership, Message, NodeId, Role, Term};
use std::collections::{BTreeMap, BTreeSet};

/// What a member knows that is to leave.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// What a leader said first in its term: the term, and up to where it had applied the log.
    bar: Option<(Term, LogIndex)>,
    /// The voters, as of the last word of that leader.
    voters: Vec<NodeId>,
    /// All that anybody named as voters: whoever leads may be one that is to leave, too.
    known: BTreeSet<NodeId>,
    /// Up to where each member had applied the log that says that this one has left.
    said: BTreeMap<NodeId, LogIndex>,
}

impl Leaving {
    fn hear(&mut self, own_term: Term, left: Left) {
        let known = self.said.entry(left.by).or_default();
        *known = (*known).max(left.applied);
        self.known.extend(&left.voters);
        if left.leads && left.term >= own_term {
            match self.bar {
                Some((term, _)) if term > left.term => return,
                Some((term, _)) if term == left.term => {}
                _ => self.bar = Some((left.term, left.applied)),
            }
            self.voters = left.voters;
        }
    }

    fn has_left(&self, own_term: Term) -> bool {
        let Some((term, bar)) = self.bar else { return false };
        let has_said = |voter: &NodeId| self.said.get(voter).is_some_and(|applied| *applied >= bar);
        term >= own_term && !self.voters.is_empty() && self.voters.iter().all(has_said)
    }
}

impl Replica {
    /// This member is to leave the group: it asks all others, and `others` too, whether it has. To be called
    /// again until [`Replica::has_left`].
    pub fn leave(&mut self, others: &[NodeId]) {
        let leaving = self.leaving.get_or_insert_default();
        let Membership { voters, learners, voters_outgoing, .. } = self.group.membership();
        let all = voters.iter().chain(&learners).chain(&voters_outgoing).chain(&leaving.known).chain(others);
        let mut numbers: Vec<u32> = all.map(|node| node.number()).filter(|node| *node != self.node.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let member = self.node;
        self.frames.extend(numbers.into_iter().map(|node| (NodeId::of(node, 0), PeerFrame::AskLeft { member })));
    }

    /// Whether the group has let this member go, which asked for it, and can do without it.
    pub fn has_left(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.has_left(self.group.status().term))
    }

    /// Answers a member that is to leave, once it has left as far as this one has applied the log.
    pub(super) fn say_left(&mut self, from: NodeId, member: NodeId) {
        let (membership, status) = (self.group.membership(), self.group.status());
        // Who joins knows no members yet.
        let is_known = !membership.voters.is_empty() && !membership.is_joint() && self.change_unsynced.is_none();
        if !is_known || membership.contains(member) {
            return;
        }
        let left = Left {
            member,
            by: self.node,
            term: status.term,
            leads: status.role == Role::Leader && self.group.term_at(status.applied) == Some(status.term),
            applied: status.applied,
            voters: membership.voters,
        };
        self.frames.push((from, PeerFrame::Left(left)));
    }

    pub(super) fn hear_left(&mut self, left: Left) {
        let (own, term) = (self.node, self.group.status().term);
        if let Some(leaving) = self.leaving.as_mut().filter(|_| left.member == own) {
            leaving.hear(term, left);
        }
    }

    /// Whoever leads counts on this member.
    #[inline]
    pub(super) fn note_lead(&mut self, message: &Message) {
        if self.leaving.is_some() && matches!(message.kind(), Kind::Append | Kind::Heartbeat | Kind::Snapshot) {
            self.leaving = Some(Leaving::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);

    fn left(by: NodeId, term: u64, leads: bool, applied: u64) -> Left {
        Left { member: NodeId(9), by, term: Term(term), leads, applied: LogIndex(applied), voters: vec![ONE, TWO] }
    }

    #[test]
    fn who_is_to_leave_has_left_once_every_voter_is_as_far_as_the_leader_that_said_so_first() {
        let mut leaving = Leaving::default();
        leaving.hear(Term(5), left(TWO, 5, false, 90));
        assert!(!leaving.has_left(Term(5)), "nobody leads");
        leaving.hear(Term(5), left(ONE, 5, true, 100));
        assert!(!leaving.has_left(Term(5)), "the other voter may be behind the change");
        leaving.hear(Term(5), left(ONE, 5, true, 110));
        leaving.hear(Term(5), left(TWO, 5, false, 100));
        assert!(leaving.has_left(Term(5)));
        assert!(!leaving.has_left(Term(6)), "another leader may have taken it in");
    }

    #[test]
    fn a_leader_of_the_past_is_not_believed() {
        let mut leaving = Leaving::default();
        leaving.hear(Term(7), left(ONE, 6, true, 10));
        leaving.hear(Term(7), left(TWO, 7, false, 40));
        assert!(!leaving.has_left(Term(7)));
        leaving.hear(Term(7), left(TWO, 7, true, 40));
        assert!(!leaving.has_left(Term(7)), "the other one has not applied so much");
        leaving.hear(Term(7), left(ONE, 6, true, 40));
        assert!(leaving.has_left(Term(7)));
    }
}

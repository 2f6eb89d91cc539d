//! What the leader of a group does so that its members become those that are wanted: one step at a
//! time, each of which leaves a group that works.
//!
//! Invariants: nobody gets a vote before it has caught up; who is wanted is not removed; nothing is
//! begun while a change is under way; who works is let go only where the others can do without it, once those
//! who are to come are in; who is to come back goes before that: one node is never two members. Whoever leads
//! next goes on where this one stopped, as all of it is seen from the group itself.

use crate::Millis;
use broker::NodeNumber;
use consensus::{Change, Group, LogIndex, Membership, NodeId, Progress, ProgressState};

/// How often a leader looks at its members.
pub(crate) const LOOK_EVERY_MS: Millis = 300;
/// How long somebody leads before it changes members.
pub(crate) const SETTLED_MS: Millis = 300;
/// A learner that lacks no more entries than this has caught up: what is under way to it is more.
const LAG_MAX: u64 = 1_000;

/// A leader's view of its group.
#[derive(Clone, Debug)]
pub struct MembersView {
    /// The leader.
    pub own: NodeId,
    /// The members.
    pub membership: Membership,
    /// What it knows of the others.
    pub progress: Vec<Progress>,
    /// The end of its log.
    pub last: LogIndex,
    /// The part of it that is on its own disk.
    pub persisted: LogIndex,
}

impl MembersView {
    /// The view of a member that leads.
    pub fn of(group: &Group, own: NodeId) -> MembersView {
        let (membership, progress, status) = (group.membership(), group.progress(), group.status());
        MembersView { own, membership, progress, last: status.last.index, persisted: status.persisted }
    }

    /// Those that have a vote, and those that are to get one.
    pub(crate) fn members(&self) -> Vec<NodeNumber> {
        let Membership { voters, learners, .. } = &self.membership;
        voters.iter().chain(learners).map(|node| NodeNumber(node.number())).collect()
    }

    fn is_active(&self, node: NodeId) -> bool {
        node == self.own || self.progress.iter().any(|p| p.node == node && p.is_recently_active)
    }

    fn has_caught_up(&self, node: NodeId) -> bool {
        self.progress.iter().any(|p| {
            // Behind a snapshot nothing is sent ahead before there is something to send.
            // Who never answered counts as heard of, as nobody had reason to doubt it yet, and in a short
            // log lacks little.
            let is_near = p.matched.0 > 0 && p.state != ProgressState::Snapshot && p.matched.0 + LAG_MAX >= self.last.0;
            p.node == node && p.is_recently_active && is_near
        })
    }

    /// The member that a node is, if it is one.
    pub(crate) fn member_on(&self, node: NodeNumber) -> Option<NodeId> {
        let Membership { voters, learners, .. } = &self.membership;
        voters.iter().chain(learners).find(|member| member.number() == node.0).copied()
    }

    /// Whether the voters beside one that works have a majority among them that keeps up.
    fn does_without(&self, leaver: NodeId) -> bool {
        let others = || self.membership.voters.iter().filter(|voter| **voter != leaver);
        let keeps_up = |voter: &&NodeId| **voter == self.own || self.has_caught_up(**voter);
        2 * others().filter(keeps_up).count() > others().count()
    }

    /// Whether the voters beside one that is not heard of have a majority among them that is. Who seems dead may be slow, and answer in
    /// time for its own removal: with another one dead in truth, nothing would be confirmed any more.
    fn outlives(&self, dead: NodeId) -> bool {
        let others = || self.membership.voters.iter().filter(|voter| **voter != dead);
        2 * others().filter(|voter| self.is_active(**voter)).count() > others().count()
    }

    /// Whether nobody else has a vote, in this membership and the one before it.
    pub(crate) fn is_alone(&self) -> bool {
        let Membership { voters, voters_outgoing, .. } = &self.membership;
        voters.iter().chain(voters_outgoing).all(|voter| *voter == self.own)
    }

    /// Whether a learner is being brought up.
    pub fn is_growing(&self) -> bool {
        self.membership.learners.iter().any(|learner| self.is_active(*learner))
    }

    /// Whether a member can take over at once: it has a vote, and nearly all of the log.
    pub fn may_lead(&self, node: NodeId) -> bool {
        !self.membership.is_joint() && self.membership.voters.contains(&node) && self.has_caught_up(node)
    }

    /// The next change towards these members; none if there is nothing to do or to be waited for.
    /// `may_begin`: a learner may be taken in now.
    pub fn next_change(&self, wanted: &[NodeId], may_begin: bool) -> Vec<Change> {
        let Membership { voters, learners, .. } = &self.membership;
        if wanted.is_empty() || self.membership.is_joint() {
            return Vec::new();
        }
        let is_unwanted = |node: &&NodeId| !wanted.contains(node);
        if let Some(learner) = learners.iter().find(is_unwanted) {
            return vec![Change::Remove(*learner)];
        }
        let leaver = voters.iter().copied().find(|voter| !wanted.contains(voter));
        // One of two is needed for every change: where one is made it is back, and works.
        let is_dead = |voter: &&NodeId| {
            is_unwanted(voter) && !self.is_active(**voter) && voters.len() > 2 && self.outlives(**voter)
        };
        if let Some(dead) = voters.iter().find(is_dead) {
            return vec![Change::Remove(*dead)];
        }
        if let Some(learner) = learners.iter().copied().find(|learner| self.has_caught_up(*learner)) {
            return std::iter::once(Change::Voter(learner)).chain(leaver.map(Change::Remove)).collect();
        }
        let is_here = |node: &NodeId| voters.iter().chain(learners).any(|member| member.number() == node.number());
        let newcomer = wanted.iter().copied().find(|node| !is_here(node));
        let is_other_life = |node: &NodeId, other: &NodeId| node.number() == other.number() && node != other;
        let comes_back = |voter: &&NodeId| wanted.iter().any(|node| is_other_life(node, voter));
        match (newcomer, leaver) {
            (Some(newcomer), _) if may_begin && !self.is_growing() => vec![Change::Learner(newcomer)],
            (Some(_), _) | (_, None) => Vec::new(),
            // Who is to come is in before anybody goes that works, but for who takes the place of what it was.
            (None, Some(leaver)) => {
                let before = voters.iter().copied().find(|voter| comes_back(&voter)).filter(|_| !self.is_growing());
                let goes = before.or(Some(leaver).filter(|_| learners.is_empty()));
                goes.filter(|goes| self.does_without(*goes)).map(Change::Remove).into_iter().collect()
            }
        }
    }
}

/// What a change of members is for those who run the nodes.
pub(crate) fn told(changes: &[Change], shown: impl Fn(NodeNumber) -> String) -> String {
    let shown = |node: &NodeId| shown(NodeNumber(node.number()));
    let one = |change: &Change| match change {
        Change::Learner(node) => format!("{} gets a copy, and no vote before it has caught up", shown(node)),
        Change::Voter(node) => format!("{} has caught up and gets a vote", shown(node)),
        Change::Remove(node) => format!("{} is no member any more", shown(node)),
    };
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_members_is_told_in_plain_words() {
        let changes = [Change::Voter(NodeId(4)), Change::Remove(NodeId(1))];
        let shown = |node: NodeNumber| format!("n{}", node.0);
        assert_eq!(told(&changes, shown), "n4 has caught up and gets a vote, n1 is no member any more");
        assert_eq!(told(&[Change::Learner(NodeId(2))], shown), "n2 gets a copy, and no vote before it has caught up");
    }

    fn nodes(numbers: &[u64]) -> Vec<NodeId> {
        numbers.iter().copied().map(NodeId).collect()
    }

    /// Node 1 leads these; `active` are heard of, and all of them have the whole log but `behind`.
    fn view(voters: &[u64], learners: &[u64], active: &[u64], behind: &[u64]) -> MembersView {
        let membership = Membership { learners: nodes(learners), ..Membership::of_voters(nodes(voters)) };
        let progress = voters.iter().chain(learners).filter(|node| **node != 1).map(|node| Progress {
            node: NodeId(*node),
            matched: LogIndex(if behind.contains(node) { 10 } else { 5_000 }),
            next: LogIndex(5_001),
            state: ProgressState::Replicate,
            is_paused: false,
            is_recently_active: active.contains(node),
            is_learner: learners.contains(node),
            in_flight_bytes: 0,
        });
        MembersView {
            own: NodeId(1),
            membership,
            progress: progress.collect(),
            last: LogIndex(5_010),
            persisted: LogIndex(5_010),
        }
    }

    fn next(view: &MembersView, wanted: &[u64]) -> Vec<Change> {
        view.next_change(&nodes(wanted), true)
    }

    #[test]
    fn a_newcomer_learns_first_and_votes_once_it_has_caught_up() {
        let three = view(&[1, 2, 3], &[], &[2, 3], &[]);
        assert_eq!(next(&three, &[1, 2, 3]), []);
        assert_eq!(next(&three, &[]), [], "the map does not say");
        assert_eq!(next(&three, &[1, 2, 3, 4, 5]), [Change::Learner(NodeId(4))]);
        assert_eq!(three.next_change(&nodes(&[1, 2, 3, 4]), false), [], "another group has its turn");
        let behind = view(&[1, 2, 3], &[4], &[2, 3, 4], &[4]);
        assert_eq!(next(&behind, &[1, 2, 3, 4, 5]), [], "one at a time");
        let silent = view(&[1, 2, 3], &[4], &[2, 3], &[]);
        assert_eq!(next(&silent, &[1, 2, 3, 4]), [], "it has the log, and is not there");
        assert_eq!(next(&silent, &[1, 2, 3, 4, 5]), [Change::Learner(NodeId(5))], "nobody waits for it");
        let mut unheard = view(&[1, 2, 3], &[4], &[2, 3, 4], &[]);
        unheard.last = LogIndex(900);
        unheard.progress.iter_mut().filter(|p| p.is_learner).for_each(|p| p.matched = LogIndex(0));
        assert_eq!(next(&unheard, &[1, 2, 3, 4]), [], "it never answered, however short the log is");
        let ready = view(&[1, 2, 3], &[4], &[2, 3, 4], &[]);
        assert_eq!(next(&ready, &[1, 2, 3, 4]), [Change::Voter(NodeId(4))]);
        let mut joint = ready;
        joint.membership.voters_outgoing = nodes(&[1, 2, 3]);
        assert_eq!(next(&joint, &[1, 2, 3, 4]), [], "a change is under way");
        let mut sent = view(&[1, 2, 3], &[4], &[2, 3, 4], &[]);
        sent.progress[2].state = ProgressState::Snapshot;
        assert_eq!(next(&sent, &[1, 2, 3, 4]), [], "a snapshot is on its way");
    }

    #[test]
    fn a_member_is_alone_where_nobody_else_has_a_vote() {
        assert!(view(&[1], &[], &[], &[]).is_alone());
        assert!(view(&[1], &[2], &[2], &[]).is_alone(), "a learner has none");
        assert!(!view(&[1, 2], &[], &[], &[]).is_alone(), "who is away has one all the same");
    }

    #[test]
    fn who_is_dead_goes_at_once_and_who_works_once_the_other_is_in() {
        let dead = view(&[1, 2, 3], &[], &[2], &[]);
        assert_eq!(next(&dead, &[1, 2]), [Change::Remove(NodeId(3))]);
        assert_eq!(next(&dead, &[1, 2, 4]), [Change::Remove(NodeId(3))]);
        let lonely = view(&[1, 2, 3], &[], &[], &[]);
        assert_eq!(
            next(&lonely, &[1, 2]),
            [],
            "two that may both be dead or both be slow: one of each would be the end"
        );
        let alive = view(&[1, 2, 3], &[], &[2, 3], &[]);
        assert_eq!(next(&alive, &[1, 2, 4]), [Change::Learner(NodeId(4))]);
        let learning = view(&[1, 2, 3], &[4], &[2, 3, 4], &[4]);
        assert_eq!(next(&learning, &[1, 2, 4]), [], "it still learns");
        let ready = view(&[1, 2, 3], &[4], &[2, 3, 4], &[]);
        assert_eq!(next(&ready, &[1, 2, 4]), [Change::Voter(NodeId(4)), Change::Remove(NodeId(3))]);
        assert_eq!(next(&alive, &[1, 2]), [Change::Remove(NodeId(3))]);
        assert_eq!(next(&view(&[1, 2], &[4], &[2, 4], &[4]), &[1, 2]), [Change::Remove(NodeId(4))]);
        assert_eq!(next(&view(&[1, 2], &[], &[2], &[]), &[2]), [Change::Remove(NodeId(1))], "the leader itself");
        let silent = view(&[1, 2], &[], &[], &[]);
        assert_eq!(next(&silent, &[1, 4]), [Change::Learner(NodeId(4))], "nothing changes before it is back");
    }

    #[test]
    fn who_is_to_come_back_goes_first_and_nobody_goes_whom_the_others_need() {
        let third = NodeId::of(3, 1);
        let wanted = [NodeId(1), NodeId(2), third];
        let three = view(&[1, 2, 3], &[], &[2, 3], &[]);
        assert_eq!(three.next_change(&wanted, true), [Change::Remove(NodeId(3))], "one node is not two members");
        let two = view(&[1, 2], &[], &[2], &[]);
        assert_eq!(two.next_change(&wanted, true), [Change::Learner(third)]);
        assert_eq!(three.member_on(NodeNumber(3)), Some(NodeId(3)));
        let four = [NodeId(1), NodeId(2), third, NodeId(4)];
        assert_eq!(three.next_change(&four, true), [Change::Learner(NodeId(4))], "as many as there can be meanwhile");
        assert_eq!(three.next_change(&four, false), [], "another group has its turn");
        let learning = view(&[1, 2, 3], &[4], &[2, 3, 4], &[4]);
        assert_eq!(learning.next_change(&four, true), [], "it still learns");
        let silent = view(&[1, 2, 3], &[4], &[2, 3], &[4]);
        assert_eq!(silent.next_change(&four, true), [Change::Remove(NodeId(3))], "nobody waits for it");
        // With the other one behind, or away, nothing is confirmed without it.
        let behind = view(&[1, 2, 3], &[], &[2, 3], &[2]);
        assert_eq!(behind.next_change(&wanted, true), []);
        assert_eq!(next(&behind, &[1, 2]), []);
        let away = view(&[1, 2, 3], &[], &[3], &[]);
        assert_eq!(next(&away, &[1, 2]), []);
        let sole = view(&[1], &[], &[], &[]);
        assert_eq!(sole.next_change(&[NodeId::of(1, 1)], true), [], "somebody has to stay");
    }

    /// Whatever is wanted, and whoever is there, it comes to an end with these members, and never has
    /// fewer voters than it has or is to have.
    #[test]
    fn every_wish_is_reached_in_steps_that_keep_the_group_whole() {
        for from in 1..16_u64 {
            for to in 1..16_u64 {
                let of = |bits: u64| (1..=4).filter(|node| bits & 1 << (node - 1) != 0).collect::<Vec<u64>>();
                let (mut voters, mut learners, wanted) = (of(from), Vec::<u64>::new(), of(to));
                if !voters.contains(&1) {
                    continue;
                }
                let fewest = voters.len().min(wanted.len());
                for step in 0.. {
                    assert!(step < 20, "{from:b} to {to:b} never ends");
                    let changes = next(&view(&voters, &learners, &[1, 2, 3, 4], &[]), &wanted);
                    for change in &changes {
                        let (Change::Voter(node) | Change::Learner(node) | Change::Remove(node)) = change;
                        voters.retain(|voter| *voter != node.0);
                        learners.retain(|learner| *learner != node.0);
                        match change {
                            Change::Voter(node) => voters.push(node.0),
                            Change::Learner(node) => learners.push(node.0),
                            Change::Remove(_) => {}
                        }
                    }
                    voters.sort_unstable();
                    assert!(voters.len() >= fewest, "{from:b} to {to:b}: {voters:?}");
                    if changes.is_empty() || !voters.contains(&1) {
                        break;
                    }
                }
                let reached = voters == wanted && learners.is_empty();
                assert!(reached || !voters.contains(&1), "{from:b} to {to:b}: {voters:?}");
            }
        }
    }
}

//! Members that come and go: a node joins a group, takes the place of another, leaves; a disk is
//! lost for good.
//!
//! Beside those who found the groups there are some nodes that belong to none at first. A group has
//! each of them once at most: who has left does not come back, but where a map has it so (`returns`), as another
//! member. Whoever lost its disk is gone under
//! its id; one of the others joins in its stead.
//!
//! Invariant: no disk is lost while another one that was lost counts anywhere, nor before every
//! member that is left knows who the members are: a group that has three voters or more can always
//! do without one of them.

use super::{Cluster, Event};
use crate::bug::Bug;
use crate::node::{Node, StepOutput};
use crate::random::Random;
use crate::schedule::MS;
use consensus::{Change, LogIndex, Membership, NodeId};
use partition::QueuePartition;
use std::collections::{BTreeMap, BTreeSet};
use storage::disk::Crash;

/// Nodes beside the founders.
pub(super) const SPARES: u64 = 3;
/// The longest time between two looks at the members, milliseconds.
const PAUSE_MAX_MS: u64 = 900;
/// How often such a look ends with a lost disk, where one may be lost.
const LOSS_PERCENT: u64 = 12;
/// How often a learner gets its vote before it has caught up.
const HASTE_PERCENT: u64 = 15;
/// How often a look ends with a node that hears that it has left a group.
const END_PERCENT: u64 = 50;
/// How soon a node hears of a change of the map: with each look by this chance.
const TOLD_PERCENT: u64 = 50;
/// How often who asks for copies does not wait until those from before are where they are to be.
const HASTY_PERCENT: u64 = 25;
/// A learner that lacks no more entries than this has caught up.
const LAG_MAX: u64 = 20;

/// What is known of the members of all groups.
pub(super) struct Members {
    /// Of each group the members as of the newest entry that anybody has applied.
    known: Vec<(LogIndex, Membership)>,
    /// Of each group the nodes that belong to it or did.
    been: Vec<BTreeSet<NodeId>>,
    /// Of each group these and those that are to join.
    ever: Vec<BTreeSet<NodeId>>,
    /// Nodes that have lost their disks.
    lost: BTreeSet<NodeId>,
    /// Of each group the members that it is to have, where a map says so.
    wanted: Vec<BTreeSet<NodeId>>,
    /// Of each group how often nodes were taken out of it, by their numbers.
    left: Vec<BTreeMap<u32, u32>>,
    random: Random,
}

impl Members {
    pub(super) fn new(founders: &[NodeId], groups: usize, random: Random) -> Members {
        let membership = Membership::of_voters(founders.iter().copied());
        Members {
            known: vec![(LogIndex(0), membership); groups],
            been: vec![founders.iter().copied().collect(); groups],
            ever: vec![founders.iter().copied().collect(); groups],
            lost: BTreeSet::new(),
            wanted: vec![founders.iter().copied().collect(); groups],
            left: vec![BTreeMap::new(); groups],
            random,
        }
    }

    /// Whether a group has the members that the map wants, and nobody is on the way.
    fn is_as_wanted(&self, group: usize) -> bool {
        let membership = &self.known[group].1;
        let has = membership.voters.iter().eq(&self.wanted[group]);
        has && membership.learners.is_empty() && !membership.is_joint()
    }

    /// The nodes whose disks are lost are wanted nowhere.
    fn forget_lost(&mut self) {
        let lost: BTreeSet<u32> = self.lost.iter().map(|node| node.number()).collect();
        for wanted in &mut self.wanted {
            wanted.retain(|node| !lost.contains(&node.number()));
        }
    }

    /// The nodes that a group is to have no member on, each as the member that it would be.
    fn returning(&self, group: usize, all: &[NodeId], bug: Option<Bug>) -> Vec<NodeId> {
        let is_wanted = |node: &NodeId| self.wanted[group].iter().any(|other| other.number() == node.number());
        let away = all.iter().filter(|node| !is_wanted(node) && !self.lost.contains(node));
        let life = |node: &NodeId| match bug {
            Some(Bug::ReturnIsTheSame) => 0,
            _ => self.left[group].get(&node.number()).copied().unwrap_or(0),
        };
        away.map(|node| NodeId::of(node.number(), life(node))).collect()
    }

    /// How often a node is to have left a group.
    fn has_left(&self, group: usize, node: NodeId, bug: Option<Bug>) -> u32 {
        let is_wanted = self.wanted[group].iter().any(|other| other.number() == node.number());
        let left = self.left[group].get(&node.number()).copied().unwrap_or(0);
        // A wrong map does not tell one from the other.
        if bug == Some(Bug::ReturnIsTheSame) { u32::from(left > 0 && !is_wanted) } else { left }
    }

    /// A node has applied a group's log up to here. True if nobody had: its members are to be told.
    pub(super) fn is_news(&self, group: usize, applied: LogIndex) -> bool {
        applied > self.known[group].0
    }

    /// The members of a group as of this entry.
    pub(super) fn are(&mut self, group: usize, applied: LogIndex, membership: Membership) {
        self.been[group].extend(membership.voters.iter().chain(&membership.learners));
        self.known[group] = (applied, membership);
    }
}

impl Cluster {
    /// Whether a node has lost its disk.
    pub(super) fn is_lost(&self, node: NodeId) -> bool {
        self.members.as_ref().is_some_and(|members| members.lost.contains(&node))
    }

    /// Whether a node belongs to a group, and is to have what that has.
    pub(super) fn is_member(&self, group: usize, node: NodeId) -> bool {
        let Some(members) = &self.members else { return true };
        has_node(&members.known[group].1, node) && !members.lost.contains(&node)
    }

    /// A node may have become another member of a group than it was.
    pub(super) fn look_at_lives(&mut self, node: usize) {
        if !self.options.returns {
            return;
        }
        for group in 0..self.plan.groups.len() {
            let known = self.lives.entry((node, group)).or_default();
            // As the wrong shell has it, it is the same one, which forgot all.
            let forgot = |partition: &QueuePartition| partition.applied() == LogIndex(0);
            let Some(partition) = self.nodes[node].partition(group) else {
                *known = u32::MAX;
                continue;
            };
            let life = partition.replica().node().life();
            let before = std::mem::replace(known, life);
            if before == u32::MAX && forgot(partition) {
                self.checks.began_again(self.nodes[node].id, group);
            }
        }
    }

    /// Whom a node asks who leads a group: itself, as long as it is a member, or else some member.
    /// Who has left may believe for ever in a leader of its time.
    pub(super) fn who_knows(&mut self, group: usize, node: usize) -> usize {
        if self.is_member(group, self.nodes[node].id) {
            return node;
        }
        let all: Vec<usize> = (0..self.nodes.len()).filter(|at| self.is_member(group, self.nodes[*at].id)).collect();
        *self.random.pick(&all)
    }

    /// Somebody looks at the members of a group and changes them, if its leader will.
    pub(super) fn change_members(&mut self) {
        if self.draining {
            return;
        }
        let groups = self.plan.groups.len() as u64;
        let members = self.members.as_mut().expect("members change in this run");
        let (pause, group) = (members.random.between(50, PAUSE_MAX_MS), members.random.below(groups) as usize);
        let loses = members.random.chance(LOSS_PERCENT);
        self.schedule.after(pause * MS, Event::Members);
        if loses {
            self.lose_a_disk();
        }
        if !self.options.returns {
            self.end_one_that_left(group);
        }
        if self.options.mapped {
            return self.change_map(group);
        }
        let serves = |node: &usize| self.nodes[*node].view(group).is_some_and(|view| view.serves);
        let Some(leader) = (0..self.nodes.len()).find(serves) else { return };
        let changes = self.wish(group, leader);
        if changes.is_empty() {
            return;
        }
        let mut out = StepOutput::default();
        let taken = self.nodes[leader].change_members(group, &changes, &mut out);
        if taken.is_ok() {
            let members = self.members.as_mut().expect("members change in this run");
            let ever = &mut members.ever[group];
            ever.extend(changes.iter().filter_map(|change| match change {
                Change::Learner(node) | Change::Voter(node) => Some(*node),
                Change::Remove(_) => None,
            }));
            self.checks.figures.members_changed += 1;
        }
        self.note(leader, &format!("is to change the members of group {group} by {changes:?}: {taken:?}"));
        self.settle(leader, out);
    }

    /// The map wants other members of a group, once those that it wants are there; lost disks are
    /// forgotten at once. Nodes hear of all that some time later.
    fn change_map(&mut self, group: usize) {
        let (founders, all) = (self.options.nodes as usize, self.nodes.iter().map(|node| node.id));
        let members = self.members.as_mut().expect("members change in this run");
        let (returns, bug) = (self.options.returns, self.options.bug);
        let all: Vec<NodeId> = all.collect();
        let fresh: Vec<NodeId> = match returns {
            true => members.returning(group, &all, bug),
            false => all
                .into_iter()
                .filter(|node| !members.ever[group].contains(node) && !members.lost.contains(node))
                .collect(),
        };
        let lost_one =
            members.wanted[group].iter().any(|node| members.lost.iter().any(|lost| lost.number() == node.number()));
        // Whoever asks for copies waits for nobody, but for who is gone for ever.
        let counts_lost = members.lost.iter().any(|lost| has_node(&members.known[group].1, *lost));
        let is_hasty = returns && members.random.chance(HASTY_PERCENT) && !counts_lost;
        if lost_one || is_hasty || members.is_as_wanted(group) {
            members.forget_lost();
            let there: Vec<NodeId> = members.wanted[group].iter().copied().collect();
            let grows = !fresh.is_empty() && there.len() <= founders;
            if grows {
                let newcomer = *members.random.pick(&fresh);
                members.wanted[group].insert(newcomer);
                members.ever[group].insert(newcomer);
            }
            if !lost_one && there.len() >= founders && (there.len() > founders || members.random.chance(60)) {
                let leaver = *members.random.pick(&there);
                members.wanted[group].remove(&leaver);
                *members.left[group].entry(leaver.number()).or_default() += 1;
            }
            let now: Vec<NodeId> = members.wanted[group].iter().copied().collect();
            if now != there || lost_one {
                self.checks.figures.members_changed += 1;
                self.note(0, &format!("group {group} is to have {now:?}"));
            }
        }
        self.tell_map(TOLD_PERCENT);
    }

    /// Each node hears with this chance which members groups are to have.
    fn tell_map(&mut self, percent: u64) {
        let members = self.members.as_mut().expect("members change in this run");
        if self.options.bug == Some(Bug::MapIsUntold) {
            return;
        }
        let bug = self.options.bug;
        for node in &mut self.nodes {
            if members.random.chance(percent) {
                for (heard, wanted) in node.wanted.iter_mut().zip(&members.wanted) {
                    *heard = wanted.iter().copied().collect();
                }
                if self.options.returns {
                    let id = node.id;
                    node.left.iter_mut().enumerate().for_each(|(at, left)| *left = members.has_left(at, id, bug));
                }
            }
        }
    }

    /// The faults are over: everybody hears the map.
    pub(super) fn settle_map(&mut self) {
        if self.options.mapped {
            self.members.as_mut().expect("members change in this run").forget_lost();
            self.tell_map(100);
        }
    }

    /// A group that does not have the members that the map wants.
    pub(super) fn unlike_map(&self) -> Option<String> {
        let members = self.members.as_ref().filter(|_| self.options.mapped)?;
        let is_wanted =
            |group: usize, node: &Node| members.wanted[group].iter().any(|wanted| wanted.number() == node.id.number());
        let stays = |group: usize, node: &&Node| {
            let is_lost = members.lost.contains(&node.id);
            self.options.returns && !is_lost && node.partition(group).is_some() && !is_wanted(group, node)
        };
        // Those beside the founders have a place in each group, where nobody has spoken to them.
        let was_in = |group: usize, node: &&Node| members.left[group].contains_key(&node.id.number());
        for group in 0..members.known.len() {
            if let Some(node) = self.nodes.iter().filter(|node| was_in(group, node)).find(|node| stays(group, node)) {
                return Some(format!("{} is to leave group {group} and has not", node.id));
            }
        }
        let group = (0..members.known.len()).find(|group| !members.is_as_wanted(*group))?;
        let (known, wanted) = (&members.known[group].1, &members.wanted[group]);
        Some(format!("group {group} is to have {wanted:?} and has {known:?}"))
    }

    /// What is to become of the members of a group: one step at a time.
    fn wish(&mut self, group: usize, leader: usize) -> Vec<Change> {
        let Some(membership) = self.nodes[leader].membership(group) else { return Vec::new() };
        let partition = self.nodes[leader].partition(group).expect("it leads");
        let (last, progress) =
            (partition.replica().group().status().last.index, partition.replica().group().progress());
        let founders = self.options.nodes as usize;
        let all: Vec<NodeId> = self.nodes.iter().map(|node| node.id).collect();
        let members = self.members.as_mut().expect("members change in this run");
        let Members { ever, lost, random, .. } = members;
        let Membership { voters, learners, .. } = &membership;
        let gone = voters.iter().copied().find(|node| lost.contains(node));
        if membership.is_joint() {
            return Vec::new();
        }
        if let Some(learner) = learners.first().copied() {
            if lost.contains(&learner) {
                return vec![Change::Remove(learner)];
            }
            let matched = progress.iter().find(|p| p.node == learner).map_or(0, |p| p.matched.0);
            if matched + LAG_MAX < last.0 && !random.chance(HASTE_PERCENT) {
                return Vec::new();
            }
            // Alone it makes one voter more, which is enough.
            let leaves = gone.or_else(|| (voters.len() > founders || random.chance(70)).then(|| *random.pick(voters)));
            return std::iter::once(Change::Voter(learner)).chain(leaves.map(Change::Remove)).collect();
        }
        if voters.len() > founders {
            return vec![Change::Remove(gone.unwrap_or_else(|| *random.pick(voters)))];
        }
        let fresh: Vec<NodeId> =
            all.into_iter().filter(|node| !ever[group].contains(node) && !lost.contains(node)).collect();
        match fresh.is_empty() {
            true => Vec::new(),
            false => vec![Change::Learner(*random.pick(&fresh))],
        }
    }

    /// A node that has left a group hears of it, now and then, and ends its part: once every member
    /// has applied that it left.
    fn end_one_that_left(&mut self, group: usize) {
        let members = self.members.as_mut().expect("members change in this run");
        if !members.random.chance(END_PERCENT) {
            return;
        }
        let (_, membership) = &members.known[group];
        let knows = |node: &NodeId| {
            members.lost.contains(node)
                || self.nodes[node.number() as usize - 1].membership(group).as_ref() == Some(membership)
        };
        let is_known = !membership.is_joint() && membership.voters.iter().chain(&membership.learners).all(knows);
        let has_left = |node: &&NodeId| !membership.contains(**node) && !members.lost.contains(node);
        let left: Vec<usize> =
            members.been[group].iter().filter(has_left).map(|node| node.number() as usize - 1).collect();
        if !is_known || left.is_empty() {
            return;
        }
        let node = *members.random.pick(&left);
        let mut out = StepOutput::default();
        if self.nodes[node].end_group(group, &mut out) {
            self.note(node, &format!("is told that it has left group {group}"));
            self.checks.figures.groups_ended += 1;
            self.settle(node, out);
        }
    }

    /// Something that a node keeps of groups that it has left, all of which have ended there.
    pub(super) fn kept_by_who_left(&self) -> Option<String> {
        let has_left = |node: &&Node| (0..self.plan.groups.len()).all(|group| node.has_left(group));
        let keeps = self.nodes.iter().filter(has_left).find(|node| node.extents() > 0)?;
        Some(format!("{} has left all groups and keeps {} extents", keeps.id, keeps.extents()))
    }

    /// A disk is lost, if every group can do without it.
    fn lose_a_disk(&mut self) {
        let members = self.members.as_ref().expect("members change in this run");
        // What rots in one copy is in the others, and one copy is enough to lose.
        if self.options.nodes < 3 || self.options.faults.rot {
            return;
        }
        let is_settled = |group: usize| {
            let (_, membership) = &members.known[group];
            let agrees =
                |node: &NodeId| self.nodes[node.number() as usize - 1].membership(group).as_ref() == Some(membership);
            let mut all = membership.voters.iter().chain(&membership.learners);
            !membership.is_joint()
                && all.all(|node| !members.lost.contains(&NodeId::of(node.number(), 0)) && agrees(node))
        };
        if !(0..members.known.len()).all(is_settled) {
            return;
        }
        // Who is about to be taken out is none to do without.
        if self.options.returns && !(0..members.known.len()).all(|group| members.is_as_wanted(group)) {
            return;
        }
        let node = self.any_node();
        let id = self.nodes[node].id;
        if !self.nodes[node].is_up() || self.is_lost(id) {
            return;
        }
        // Of two voters each is needed for every change, that which takes the other one's place too.
        let does_without = |(_, membership): &(_, Membership)| membership.voters.len() > 2 || !has_node(membership, id);
        if !self.members.as_ref().is_some_and(|members| members.known.iter().all(does_without)) {
            return;
        }
        // A third that the map does not want any more may go before the next one is in, once it seems dead; it may agree to that, and
        // each of the two others is needed then.
        let keeps_enough = |members: &Members| {
            members.known.iter().zip(&members.wanted).all(|((_, membership), wanted)| {
                let stay = membership.voters.iter().filter(|voter| wanted.contains(voter));
                !has_node(membership, id) || stay.count() > 2
            })
        };
        if self.options.mapped && !self.members.as_ref().is_some_and(keeps_enough) {
            return;
        }
        self.note(node, "loses its disk");
        self.nodes[node].disk.crash(Crash::Power);
        if self.options.bug != Some(Bug::DiskIsReplaced) {
            self.members.as_mut().expect("members change in this run").lost.insert(id);
        }
        self.fall(node);
        self.nodes[node].lose_disk();
        self.checks.figures.disks_lost += 1;
    }
}

/// Whether a node has a member in a group, whichever it is.
fn has_node(membership: &Membership, node: NodeId) -> bool {
    let Membership { voters, learners, voters_outgoing, .. } = membership;
    voters.iter().chain(learners).chain(voters_outgoing).any(|member| member.number() == node.number())
}

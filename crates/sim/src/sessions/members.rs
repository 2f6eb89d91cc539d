//! Nodes that come to a cluster at work and nodes that are forgotten, as those who run them do it: an
//! empty folder asks a member again and again until it has a number; a node that is off, for good or
//! for a while, is forgotten by way of one that is there; and some are started again over their old
//! disks, which nobody takes for members any more.
//!
//! One thing at a time: a node goes only while every other one has all that it is to have, as whoever
//! runs a cluster would see to. Invariant: nodes come in the order of their numbers.

use super::{Event, Phase, Sessions};
use crate::bug::Bug;
use crate::checks::violated;
use crate::node::{CLASSIC_EVERYWHERE, Node, StepOutput, TOPOLOGY, View};
use crate::random::Random;
use crate::schedule::{MS, Micros, SECOND};
use crate::sessions::front::PARTITIONS;
use broker::topology::{Command as Change, MachineVersions, Newcomer, NodeChange, NodeStanding};
use broker::{NodeNumber, PartitionId};
use consensus::{LogIndex, Membership, NodeId, ProgressState};
use node::MembersView;
use partition::machine::MACHINE_VERSION as QUEUES_MACHINE_VERSION;
use std::collections::BTreeSet;
use storage::disk::Crash;
use storage::{ClusterRecord, Founder};

/// Nodes beside the founders.
pub(super) const SPARES: u64 = 3;
/// As many nodes are there at a time at most.
const NODES_AT_ONCE: usize = 5;
/// How often a newcomer asks, and everybody is looked at.
const LOOK_EVERY: Micros = 300 * MS;
/// How often somebody has the same proposed again.
const PROPOSE_EVERY: Micros = 2 * SECOND;
/// A node is away for so long before it is forgotten.
const AWAY_FOR: Micros = SECOND;
/// How often a look begins something, where nothing else is under way.
const BEGIN_PERCENT: u64 = 25;
/// How often the disk of a node that goes is lost.
const LOSS_PERCENT: u64 = 50;
/// How often a look starts a node again that was forgotten.
const BACK_PERCENT: u64 = 5;
/// Members lack no more entries than this of one another where all is well.
const LAG_MAX: u64 = 20;
/// The lag at which a wrong leader takes a learner for one that has caught up.
const TRUSTED_LAG: u64 = 1_000;

/// What a node can carry out.
pub(super) const CAN: MachineVersions =
    MachineVersions { topology: CLASSIC_EVERYWHERE, queues: QUEUES_MACHINE_VERSION };

/// How far a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// There is no such node yet.
    Absent,
    /// It has an empty folder and asks for a number.
    Asks,
    /// It has one.
    There,
    /// It is off since then, and is to be forgotten.
    Off { since: Micros, has_disk: bool },
    /// It was forgotten.
    Forgotten { has_disk: bool },
    /// It was forgotten, and runs over its old disk.
    Back,
}

/// Of a cluster whose nodes come and go.
pub(super) struct Comings {
    ways: Vec<Way>,
    /// Of each partition the members as of the newest entry that anybody has applied.
    known: Vec<(LogIndex, Membership)>,
    /// Of each partition the members that have left it.
    left: Vec<BTreeSet<NodeId>>,
    /// Something may be proposed again from then on.
    proposes_at: Micros,
    random: Random,
}

impl Comings {
    pub(super) fn new(founders: &[NodeId], random: Random) -> Comings {
        let way = |number: u64| if number < founders.len() as u64 { Way::There } else { Way::Absent };
        Comings {
            ways: (0..founders.len() as u64 + SPARES).map(way).collect(),
            known: vec![(LogIndex(0), Membership::of_voters(founders.iter().copied())); PARTITIONS as usize],
            left: vec![BTreeSet::new(); PARTITIONS as usize],
            proposes_at: 0,
            random,
        }
    }
}

/// Where the others reach a node.
pub(super) fn address_of(node: &Node) -> String {
    format!("host{}:1", node.id.0)
}

/// What the founders agreed on.
pub(super) fn founding_record(nodes: &[Node]) -> ClusterRecord {
    let founder =
        |node: &Node| Founder { number: node.id.0 as u32, folder_id: node.folder_id(), address: address_of(node) };
    let founders = nodes.iter().map(founder).collect();
    ClusterRecord { joined: None, partitions: PARTITIONS, founders, before: Vec::new() }
}

impl Sessions {
    /// Whether a node is one of the cluster, up or not.
    pub(super) fn is_there(&self, node: usize) -> bool {
        self.comings.as_ref().is_none_or(|comings| comings.ways[node] == Way::There)
    }

    /// Whether a node that fell is started again.
    pub(super) fn comes_back(&self, node: usize) -> bool {
        self.is_there(node) || self.comings.as_ref().is_some_and(|comings| comings.ways[node] == Way::Back)
    }

    /// Whether a node has nothing to do with another one, as it knows that it was forgotten.
    pub(super) fn refuses(&self, node: usize, other: usize) -> bool {
        let Some(topology) = self.nodes[node].topology() else { return false };
        topology.node(number_of(other)).is_some_and(|node| node.standing == NodeStanding::Gone)
    }

    /// Nodes come and go by one step.
    pub(super) fn change_nodes(&mut self) {
        self.schedule.after(LOOK_EVERY, Event::Members);
        let may_begin = self.phase == Phase::Works;
        for node in 0..self.nodes.len() {
            let comings = self.comings.as_mut().expect("nodes come and go in this run");
            let way = comings.ways[node];
            match way {
                Way::Asks => self.ask_to_join(node),
                Way::Off { since, has_disk } if since + AWAY_FOR < self.schedule.now() => self.forget(node, has_disk),
                Way::Forgotten { has_disk: true } if may_begin && comings.random.chance(BACK_PERCENT) => {
                    comings.ways[node] = Way::Back;
                    self.ledger.figures.came_back += 1;
                    self.start(node);
                }
                _ => {}
            }
        }
        let comings = self.comings.as_mut().expect("nodes come and go in this run");
        if may_begin && comings.random.chance(BEGIN_PERCENT) && self.unsettled().is_none() {
            self.begin_change();
        }
    }

    fn begin_change(&mut self) {
        let there: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_there(*node)).collect();
        let comings = self.comings.as_mut().expect("nodes come and go in this run");
        let next = comings.ways.iter().position(|way| *way == Way::Absent);
        // What rots in one copy is in the others, and one copy is enough to lose.
        let may_go = there.len() >= 3 && !self.options.faults.rot;
        if may_go && comings.random.chance(50) {
            let node = *comings.random.pick(&there);
            let has_disk = !comings.random.chance(LOSS_PERCENT);
            comings.ways[node] = Way::Off { since: self.schedule.now(), has_disk };
            self.note(node, &format!("goes for good, with its disk: {has_disk}"));
            self.nodes[node].disk.crash(Crash::Process);
            self.fall(node);
            if !has_disk {
                self.nodes[node].lose_disk();
            }
        } else if let Some(node) = next.filter(|_| there.len() < NODES_AT_ONCE) {
            comings.ways[node] = Way::Asks;
            self.note(node, "wants to join");
        }
    }

    /// A newcomer asks some member: that tells it who it is, or has that decided.
    fn ask_to_join(&mut self, node: usize) {
        let Some(via) = self.any_open() else { return };
        let topology = self.nodes[via].topology().expect("it is open");
        let Some(number) = topology.joined_with(self.nodes[node].folder_id()) else {
            let newcomer = Newcomer {
                folder: self.nodes[node].folder_id(),
                name: self.nodes[node].name().as_str().into(),
                address: address_of(&self.nodes[node]).as_str().into(),
                can: CAN,
            };
            return self.want(via, &Change::ChangeNodes(NodeChange::Join(newcomer)));
        };
        assert_eq!(number, number_of(node), "nodes come in the order of their numbers");
        let founders = topology.present_nodes().map(|(number, known)| {
            // Whoever tells it knows the folders of most.
            let folder_id = self.nodes[number.0 as usize - 1].folder_id();
            Founder { number: number.0, folder_id, address: String::from_utf8_lossy(&known.address).into_owned() }
        });
        let (joined, partitions, founders) = (Some(u128::from(self.seed)), PARTITIONS, founders.collect());
        self.nodes[node].record = Some(ClusterRecord { joined, partitions, founders, before: Vec::new() });
        self.comings.as_mut().expect("nodes come and go in this run").ways[node] = Way::There;
        self.ledger.figures.joined += 1;
        self.note(node, &format!("hears from n{} that it joined", via + 1));
        self.start(node);
    }

    /// Somebody has a node forgotten that is off.
    fn forget(&mut self, node: usize, has_disk: bool) {
        let Some(via) = self.any_open() else { return };
        if !self.refuses(via, node) {
            return self.want(via, &Change::ChangeNodes(NodeChange::Forget(number_of(node))));
        }
        self.comings.as_mut().expect("nodes come and go in this run").ways[node] = Way::Forgotten { has_disk };
        self.ledger.figures.forgotten += 1;
        self.note(node, &format!("is forgotten, as n{} knows", via + 1));
    }

    fn any_open(&mut self) -> Option<usize> {
        let is_open = |node: &usize| self.fronts[*node].as_ref().is_some_and(|front| front.is_open);
        let open: Vec<usize> = (0..self.nodes.len()).filter(is_open).collect();
        (!open.is_empty()).then(|| *self.random.pick(&open))
    }

    /// Has something decided, which is asked for again if nothing comes of it.
    fn want(&mut self, via: usize, change: &Change) {
        let now = self.schedule.now();
        let comings = self.comings.as_mut().expect("nodes come and go in this run");
        if now < comings.proposes_at {
            return;
        }
        comings.proposes_at = now + PROPOSE_EVERY;
        let token = self.fronts[via].as_ref().expect("it is open").next();
        self.note(via, &format!("proposes {change:?}"));
        let mut out = StepOutput::default();
        self.nodes[via].propose(token, change, &mut out);
        self.settle(via, out);
    }

    fn note(&mut self, node: usize, what: &str) {
        let now = self.schedule.now();
        self.trace.line(now, || format!("n{} {what}", node + 1));
    }

    /// What is not yet as the map has it, or is under way.
    pub(super) fn unsettled(&self) -> Option<String> {
        if self.options.returns {
            return self.unmoved();
        }
        let comings = self.comings.as_ref()?;
        let under_way = comings.ways.iter().position(|way| matches!(way, Way::Asks | Way::Off { .. }));
        if let Some(node) = under_way {
            return Some(format!("n{}: {:?}", node + 1, comings.ways[node]));
        }
        let there: Vec<usize> = (0..self.nodes.len()).filter(|node| self.is_there(*node)).collect();
        let wanted: Vec<NodeId> = there.iter().map(|node| self.nodes[*node].id).collect();
        let is_open = |node: &usize| self.fronts[*node].as_ref().is_some_and(|front| front.is_open);
        if let Some(node) = there.iter().find(|node| !is_open(node)) {
            return Some(format!("n{} is not open", node + 1));
        }
        for group in (0..=PARTITIONS).map(PartitionId) {
            let of = |node: &usize| stands(&self.nodes[*node], group);
            let newest = there.iter().filter_map(of).map(|(view, _)| view.applied.0).max().unwrap_or(0);
            for node in &there {
                let Some((view, membership)) = of(node) else { return Some(format!("n{} is down", node + 1)) };
                let is_whole = membership.voters == wanted && membership.learners.is_empty() && !membership.is_joint();
                if !is_whole || view.may_have_forgotten || view.applied.0 + LAG_MAX < newest {
                    let what = format!("{membership:?} where {wanted:?} are there, {view:?}, newest {newest}");
                    return Some(format!("n{} has of group {}: {what}", node + 1, group.0));
                }
            }
        }
        None
    }

    /// The shards of a node ask which members the groups that they lead are to have.
    pub(super) fn tell_map(&mut self, node: usize) {
        let (Some(front), Some(topology)) = (&self.fronts[node], self.nodes[node].topology()) else { return };
        let is_trusted = self.options.bug == Some(Bug::MapIsOfThePast);
        let members = |id: u32| {
            let membership = self.nodes[node].partition(id as usize - 1)?.replica().group().membership();
            Some(members_of(&membership).iter().map(|node| NodeNumber(node.0 as u32)).collect::<Vec<_>>())
        };
        let wanted = |id: u32| match front.leaders.knows_members() {
            true if is_trusted => topology.lives_wanted(PartitionId(id)),
            true => topology.lives_wanted_after(PartitionId(id), &members(id).unwrap_or_default()),
            false => Vec::new(),
        };
        let wanted = (1..=PARTITIONS).map(|id| wanted(id).into_iter().map(|(node, life)| NodeId::of(node.0, life)));
        let wanted: Vec<Vec<NodeId>> = wanted.map(Iterator::collect).collect();
        let own = number_of(node);
        let left: Vec<u32> = (1..=PARTITIONS).map(|id| topology.life_in(PartitionId(id), own)).collect();
        let knows_map = front.leaders.knows_members();
        let told = &mut self.nodes[node];
        (told.wanted, told.left, told.knows_map) = (wanted, left, knows_map);
        if is_trusted {
            self.trust_learners(node);
        }
    }

    /// A wrong leader gives learners a vote that never answered.
    fn trust_learners(&mut self, node: usize) {
        for group in 0..PARTITIONS as usize {
            let Some(partition) = self.nodes[node].partition(group).filter(|partition| partition.is_leading()) else {
                continue;
            };
            let view = MembersView::of(partition.replica().group(), self.nodes[node].id);
            let has_caught_up = |learner: &&NodeId| {
                let mut of = view.progress.iter().filter(|progress| progress.node == **learner);
                of.any(|p| p.state != ProgressState::Snapshot && p.matched.0 + TRUSTED_LAG >= view.last.0)
            };
            let learner = view.membership.learners.iter().find(has_caught_up).copied();
            let mut out = StepOutput::default();
            if let Some(learner) = learner.filter(|_| !view.membership.is_joint()) {
                // It is tried again with the next turn.
                let _ = self.nodes[node].change_members(group, &[consensus::Change::Voter(learner)], &mut out);
            }
            self.settle(node, out);
        }
    }

    /// Looks at the members of a node's groups: who was forgotten and left comes back nowhere, and who is
    /// there stays. One that never was in a group may still be taken in, as a learner, by a leader that has
    /// not heard yet that it was forgotten, and has to go again: see [`Sessions::unsettled`].
    pub(super) fn check_members(&mut self, node: usize) {
        let is_back = !self.is_there(node);
        let Some(comings) = self.comings.as_mut().filter(|_| !is_back) else { return };
        for group in 0..PARTITIONS as usize {
            let Some((view, membership)) = stands(&self.nodes[node], PartitionId(group as u32 + 1)) else { continue };
            let (applied, known) = &mut comings.known[group];
            if view.applied <= *applied {
                continue;
            }
            let before = members_of(known);
            let has_left = &mut comings.left[group];
            let is_forgotten = |node: &NodeId| {
                let is_forgotten = matches!(comings.ways[node.0 as usize - 1], Way::Forgotten { .. } | Way::Back);
                is_forgotten
                    && !before.contains(node)
                    && (has_left.contains(node) || !membership.learners.contains(node))
            };
            if let Some(node) = members_of(&membership).iter().find(|node| is_forgotten(node)) {
                let what = format!("{node} was forgotten and comes into group {group}: {known:?}, then {membership:?}");
                violated("members", &what);
            }
            let now = members_of(&membership);
            let is_there = |node: &NodeId| comings.ways[node.0 as usize - 1] == Way::There;
            if let Some(node) = before.iter().find(|node| is_there(node) && !now.contains(node)) {
                let what = format!("{node} is there and leaves group {group}: {known:?}, then {membership:?}");
                violated("members", &what);
            }
            has_left.extend(before.iter().filter(|node| !now.contains(node)));
            (*applied, *known) = (view.applied, membership);
        }
    }

    /// A node lets clients in: nobody who was forgotten does.
    pub(super) fn check_open(&self, node: usize) {
        if !self.is_there(node) {
            violated("members", &format!("n{} was forgotten and lets clients in", node + 1));
        }
    }
}

pub(super) fn number_of(node: usize) -> NodeNumber {
    NodeNumber(node as u32 + 1)
}

fn members_of(membership: &Membership) -> BTreeSet<NodeId> {
    let Membership { voters, voters_outgoing, learners, .. } = membership;
    voters.iter().chain(voters_outgoing).chain(learners).copied().collect()
}

/// How a node stands in a group, and which members that has for it.
fn stands(node: &Node, group: PartitionId) -> Option<(View, Membership)> {
    match group {
        TOPOLOGY => Some((node.topology_view()?, node.topology_membership()?)),
        PartitionId(id) => Some((node.view(id as usize - 1)?, node.membership(id as usize - 1)?)),
    }
}

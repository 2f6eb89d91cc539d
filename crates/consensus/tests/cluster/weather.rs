//! What goes wrong in a run, drawn from its seed: lost, late, repeated and reordered messages,
//! crashes that take the unsynced tail, changes of members, checkpoints and compaction; then the
//! weather clears and everyone must agree.

use std::collections::BTreeSet;

use consensus::{Change, Config, Kind, NodeId, Role};

use super::random::Random;
use super::{Bug, Cluster};

/// Things that happen in a run before the weather clears.
pub const STEPS: usize = 3000;
const VOTERS: u64 = 3;
const NODES: u64 = 5;

/// Limits small enough that a short run meets all of them.
fn tight(config: Config) -> Config {
    Config {
        message_bytes_max: 64,
        inflight_messages_max: 4,
        uncommitted_bytes_max: 400,
        committed_bytes_max: 100,
        cache_bytes_max: 2000,
        ..config
    }
}

fn tight_and_talkative(config: Config) -> Config {
    Config { announce_commits: true, ..tight(config) }
}

/// A cluster and the weather it is in.
pub struct Chaos {
    pub cluster: Cluster,
    random: Random,
    proposals: u64,
    /// Percent of messages lost on delivery; changes with the weather.
    loss: usize,
    /// Links on which nothing gets through, by sender and receiver.
    cuts: BTreeSet<(NodeId, NodeId)>,
}

impl Chaos {
    pub fn new(seed: u64, bug: Option<Bug>) -> Self {
        let config = if seed.is_multiple_of(2) { tight } else { tight_and_talkative };
        let mut cluster = Cluster::new(VOTERS, seed, config);
        cluster.bug = bug;
        for node in VOTERS + 1..=NODES {
            cluster.add_joining(NodeId(node));
        }
        Self { cluster, random: Random::new(seed), proposals: 0, loss: 5, cuts: BTreeSet::new() }
    }

    fn node(&mut self) -> NodeId {
        NodeId(1 + self.random.below(NODES as usize) as u64)
    }

    pub fn step(&mut self) {
        match self.random.below(1000) {
            0..450 => {
                for _ in 0..self.random.below(6) {
                    self.deliver();
                }
            }
            450..550 => {
                let node = self.node();
                self.cluster.with(node, |group| group.tick());
            }
            550..700 => {
                let node = self.node();
                let count = 1 + self.random.below(4);
                self.cluster.sync_up_to(node, count);
            }
            700..850 => self.propose(),
            850..856 => {
                let node = self.node();
                let kept = self.random.below(4);
                if self.cluster.is_up(node) {
                    self.cluster.crash(node, kept);
                }
            }
            856..920 => {
                let node = self.node();
                let replay = self.random.chance(50);
                if !self.cluster.is_up(node) {
                    self.cluster.checks.restarted(node);
                    self.cluster.restart(node, replay);
                }
            }
            920..945 => {
                let node = self.node();
                let behind = self.random.below(20) as u64;
                self.cluster.checkpoint(node, behind);
            }
            945..955 => self.change_members(),
            955..962 => {
                let node = self.node();
                if let Some(leader) = self.cluster.leader() {
                    self.cluster.with(leader, |group| group.transfer_leadership(node));
                }
            }
            962..968 => {
                let node = self.node();
                if let Some(leader) = self.cluster.leader() {
                    self.cluster.with(leader, |group| group.report_unreachable(node));
                }
            }
            968..976 => {
                let node = self.node();
                let ok = self.random.chance(50);
                if let Some(leader) = self.cluster.leader() {
                    self.cluster.with(leader, |group| group.snapshot_sent(node, ok));
                }
            }
            976..984 => {
                let node = self.node();
                let context = self.random.next() % 4;
                self.cluster.with(node, |group| group.read_index(context));
            }
            984..990 => {
                let node = self.node();
                self.cluster.with(node, |group| group.campaign());
            }
            990..994 => self.loss = *self.random.pick(&[0, 2, 5, 20, 60]),
            994..997 => self.cut(),
            _ => self.cuts.clear(),
        }
    }

    fn deliver(&mut self) {
        if self.cluster.network.is_empty() {
            return;
        }
        // Mostly in order, sometimes from anywhere.
        let count = self.cluster.network.len();
        let at = if self.random.chance(70) { 0 } else { self.random.below(count) };
        let message = &self.cluster.network[at];
        let is_cut = self.cuts.contains(&(message.from(), message.to()));
        if is_cut || self.random.chance(self.loss) {
            self.cluster.network.remove(at);
            return;
        }
        if self.random.chance(5) {
            let again = self.cluster.network[at].clone();
            self.cluster.network.push(again);
        }
        self.cluster.deliver_at(at);
    }

    /// One node hears nothing, or is not heard, or both; or one link fails in one direction.
    fn cut(&mut self) {
        let (cut, other, kind) = (self.node(), self.node(), self.random.below(4));
        for node in self.cluster.nodes() {
            if kind == 0 || kind == 1 || (kind == 3 && node == other) {
                self.cuts.insert((node, cut));
            }
            if kind == 0 || kind == 2 {
                self.cuts.insert((cut, node));
            }
        }
    }

    fn propose(&mut self) {
        let Some(leader) = self.cluster.leader() else { return };
        self.proposals += 1;
        let data = format!("m{}{}", self.proposals, "-".repeat(self.random.below(40)));
        let _ = self.cluster.propose(leader, data);
    }

    fn change_members(&mut self) {
        let Some(leader) = self.cluster.leader() else { return };
        let count = 1 + self.random.below(3);
        let changes: Vec<Change> = (0..count)
            .map(|_| {
                let node = self.node();
                match self.random.below(3) {
                    0 => Change::Voter(node),
                    1 => Change::Learner(node),
                    _ => Change::Remove(node),
                }
            })
            .collect();
        let _ = self.cluster.change(leader, &changes);
    }

    /// The weather clears: everyone is up, everything arrives. A leader must come, and all its
    /// members must agree.
    pub fn heal(&mut self) {
        self.cuts.clear();
        for node in self.cluster.nodes() {
            if !self.cluster.is_up(node) {
                self.cluster.checks.restarted(node);
                self.cluster.restart(node, false);
            }
        }
        let mut proposed = None;
        for round in 0..400 {
            for node in self.cluster.nodes() {
                self.cluster.sync(node);
            }
            self.cluster.deliver_all();
            for node in self.cluster.nodes() {
                self.cluster.with(node, |group| group.tick());
            }
            self.fail_lost_snapshots();
            if round < 50 {
                continue;
            }
            let Some(leader) = self.cluster.leader() else { continue };
            match proposed {
                None => {
                    if let Some(Ok(position)) = self.cluster.propose(leader, "healed") {
                        proposed = Some(position);
                    }
                }
                Some(position) => {
                    let lost = self.cluster.status(leader).is_some_and(|status| status.term != position.term);
                    if lost {
                        proposed = None;
                    } else if self.everyone_applied(leader, position.index) {
                        return;
                    }
                }
            }
        }
        panic!("no agreement after 400 rounds of good weather: {:?}", self.describe());
    }

    /// A snapshot message that was lost in the bad weather is never acknowledged: the transfer is
    /// reported as failed.
    fn fail_lost_snapshots(&mut self) {
        let Some(leader) = self.cluster.leader() else { return };
        let is_moving = |kind: Kind| self.cluster.network.iter().any(|message| message.kind() == kind);
        if is_moving(Kind::Snapshot) || self.cluster.members.values().any(|member| member.disk.is_behind()) {
            return;
        }
        for node in self.cluster.nodes() {
            if self.random.chance(20) {
                self.cluster.with(leader, |group| group.snapshot_sent(node, false));
            }
        }
    }

    fn everyone_applied(&self, leader: NodeId, index: consensus::LogIndex) -> bool {
        let membership = self.cluster.members[&leader].group.as_ref().expect("it leads").membership();
        !membership.is_joint()
            && self.cluster.nodes().into_iter().filter(|node| membership.contains(*node)).all(|node| {
                let member = &self.cluster.members[&node];
                let status = self.cluster.status(node).expect("everyone is up");
                status.applied >= index
                    && (status.role == Role::Leader) == (node == leader)
                    && member.state == self.cluster.checks.commands()
            })
    }

    fn describe(&self) -> Vec<String> {
        self.cluster
            .nodes()
            .into_iter()
            .map(|node| {
                let member = &self.cluster.members[&node];
                let group = member.group.as_ref();
                format!(
                    "{node}: {:?} {:?} {:?}\n",
                    group.map(consensus::Group::status),
                    group.map(consensus::Group::membership),
                    group.map(consensus::Group::progress)
                )
            })
            .collect()
    }
}

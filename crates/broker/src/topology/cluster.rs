//! Which nodes the cluster has, which pools of partitions, and which partitions with which members.
//!
//! Invariants: a number of a node or a partition is given out once, for what is gone stays here as
//! gone; standings and stages only go forward; members of a partition are nodes that are not gone;
//! a command that is refused has changed nothing, and the same command again changes nothing
//! either.
//!
//! ```text
//! node       = number node, name, address (a name), 1 byte standing, number topology version, number queues version
//! pool       = number pool, name, number replication factor, number target, flags (classic, quorum)
//! partition  = number partition, number pool, 1 byte stage, number members, per member: number node, rising
//! standing   = 0 joining | 1 member | 2 leaving | 3 gone
//! stage      = 0 creating | 1 serving | 2 retired
//! ```

mod encoding;

use std::collections::BTreeMap;

use super::Topology;
use super::apply::{CommandReply, Effect};
use super::arguments::GROUP_SIZE_MAX;
use super::command::Command;
use super::name::Name;
use super::queue::Queue;
use super::refusal::Refusal;
use super::settings::QueueType;
use crate::ids::{NodeNumber, PartitionId, PoolId};
pub(super) use encoding::{read_node, read_partition, read_pool, write_node, write_partition, write_pool};

/// The newest version of the topology's state machine that this build carries out.
///
/// - 1: what folders imply that say nothing. A durable queue may be placed in any partition that is
///   not retired.
/// - 2: a durable queue is placed in a partition that serves, of a pool that serves its type.
/// - 3: passwords may be hashed by Argon2id, which earlier builds cannot read.
/// - 4: nodes join and are forgotten; a node that becomes a member gets a copy of every partition.
/// - 5: a quorum queue that asks for fewer copies than there are nodes lives in a pool of that size, and
///   only partitions of other pools get a copy on every node.
/// - 6: a quorum queue may ask for a partition of its own.
/// - 7: queues that carry direct replies do not count towards a virtual host's limit.
/// - 8: a node is forgotten as of what was looked at: not where another one was since.
/// - 9: policies choose levels of durability, and queues and messages those of their leader alone.
/// - 10: copies of partitions are given to nodes and taken from them; new quorum queues pass over partitions
///   that lack some.
/// - 11: a durable classic queue of a cluster lives on one node.
/// - 12: names in the patterns of topic permissions may be anything, as they stand for themselves.
/// - 13: nodes ask each other how far their logs of the topology go.
pub const MACHINE_VERSION: u32 = 13;
/// The version of a topology that does not say which it works by.
pub const FIRST_MACHINE_VERSION: u32 = 1;
/// The version from which on the map of partitions decides where queues may be.
pub(super) const MAP_DECIDES: u32 = 2;
/// The version from which on hashes of Argon2id are kept.
const KEEPS_ARGON2ID: u32 = 3;
/// The version from which on queues of replies are none to a limit.
const REPLIES_ARE_NO_QUEUES: u32 = 7;
/// The version from which on policies choose levels of durability, and the leader's own are known.
const CHOOSES_DURABILITY: u32 = 9;
/// The version from which on a name suits the pattern of a topic permission whatever it is.
const NAMES_ARE_NO_EXPRESSIONS: u32 = 12;
/// The version from which on all nodes answer how far their logs of the topology go.
const KNOWS_LEASES: u32 = 13;
/// The end of a refusal.
pub(super) const NOT_YET_BY_ALL: &str =
    "cannot be chosen so before all nodes of the cluster run this version of leveret";

/// Nodes that a cluster may ever have: one that is gone keeps its record.
pub const NODES_EVER_MAX: usize = 1 << 12;
/// Pools of one cluster.
pub const POOLS_MAX: usize = 1 << 8;
/// Partitions that a cluster may ever have: one that is retired keeps its record.
pub const PARTITIONS_EVER_MAX: usize = 1 << 16;

/// Where a node is on its way through the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeStanding {
    /// It has a number, and no group counts on it yet.
    Joining,
    /// Groups may have it as their member.
    Member,
    /// Its groups are moving to others.
    Leaving,
    /// It is no node of this cluster any more, and its number is never given out again.
    Gone,
}

/// The newest versions of state machines that a node can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineVersions {
    /// Of the topology.
    pub topology: u32,
    /// Of the queues of a partition.
    pub queues: u32,
}

/// One node of the cluster. How often it was started is not here: that is in its data folder and in
/// the keys of its channels, and would cost an entry of the log at every start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its name, as in `--node-name`.
    pub name: Name,
    /// Where the other nodes find it; empty for a node that listens for none.
    pub address: Name,
    /// Where it is on its way.
    pub standing: NodeStanding,
    /// What it can carry out, as it said when it was started last.
    pub can: MachineVersions,
}

/// Partitions of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPool {
    /// Its name.
    pub name: Name,
    /// How many members each of its partitions is to have.
    pub replication_factor: u32,
    /// How many partitions it is to have. Only ever raised: queues live in every one of them.
    pub target: u32,
    /// Classic queues may be placed in it.
    pub serves_classic: bool,
    /// Quorum queues may be placed in it.
    pub serves_quorum: bool,
}

/// Where a partition is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartitionStage {
    /// Its members found its group. No queue is placed in it yet.
    Creating,
    /// It takes queues.
    Serving,
    /// It has ended, and its number is never given out again.
    Retired,
}

/// One partition of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPartition {
    /// The pool that it belongs to.
    pub pool: PoolId,
    /// The nodes that have its group, in rising order; none once it is retired.
    pub members: Vec<NodeNumber>,
    /// Where it is on its way.
    pub stage: PartitionStage,
}

/// Nodes, pools and partitions, each by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cluster {
    pub(super) nodes: BTreeMap<NodeNumber, ClusterNode>,
    pub(super) pools: BTreeMap<PoolId, PartitionPool>,
    pub(super) partitions: BTreeMap<PartitionId, PoolPartition>,
    /// The nodes that began the groups of partitions of small pools, see `pools.rs`.
    pub(super) founders: BTreeMap<PartitionId, Vec<NodeNumber>>,
    /// The data folders of nodes that joined.
    pub(super) folders: BTreeMap<NodeNumber, u128>,
    /// How often a node had left a partition, see `copies.rs`.
    pub(super) lives: BTreeMap<(PartitionId, NodeNumber), u32>,
    /// How many copies a partition of a small pool is to have, where those are not as many as its pool says.
    pub(super) copies: BTreeMap<PartitionId, u32>,
}

/// What a node that is alone has, as its data folder shows it.
#[derive(Clone, Debug)]
pub struct SoleNode<'a> {
    /// Its number.
    pub number: NodeNumber,
    /// Its name.
    pub name: &'a str,
    /// What it can carry out.
    pub can: MachineVersions,
    /// The partitions whose groups it has.
    pub partitions: &'a [PartitionId],
    /// The partitions whose groups have ended.
    pub ended: &'a [PartitionId],
    /// How many partitions are set.
    pub wanted: u32,
}

/// A node that founded the cluster with others.
#[derive(Clone, Copy, Debug)]
pub struct ClusterMember<'a> {
    /// Its number.
    pub number: NodeNumber,
    /// Where the others reach it.
    pub address: &'a str,
}

/// The pool that a node which is alone puts its partitions into.
pub const FIRST_POOL: PoolId = PoolId(1);

impl Topology {
    /// The version of its state machine that the topology works by.
    pub fn machine_version(&self) -> u32 {
        self.machine_version
    }

    /// Every node that the cluster ever had, by number.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeNumber, &ClusterNode)> {
        self.cluster.nodes.iter().map(|(number, node)| (*number, node))
    }

    /// What a cluster without a name of its own is called: as the first node that it ever had, also
    /// when that is gone. All nodes come to the same.
    pub fn name_of_first_node(&self) -> Option<&Name> {
        self.cluster.nodes.values().next().map(|node| &node.name)
    }

    /// The pools, by number.
    pub fn pools(&self) -> impl Iterator<Item = (PoolId, &PartitionPool)> {
        self.cluster.pools.iter().map(|(id, pool)| (*id, pool))
    }

    /// Every partition that the cluster ever had, by number.
    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &PoolPartition)> {
        self.cluster.partitions.iter().map(|(id, partition)| (*id, partition))
    }

    /// Whether a new durable queue may be placed in this partition: of this type, or, with none, of
    /// some type.
    pub fn may_place_in(&self, partition: PartitionId, queue_type: Option<QueueType>) -> bool {
        let found = self.cluster.partitions.get(&partition);
        if self.machine_version < MAP_DECIDES {
            // Builds that knew this version alone retired none.
            return found.is_none_or(|found| found.stage != PartitionStage::Retired);
        }
        let Some(found) = found else { return false };
        let Some(pool) = self.cluster.pools.get(&found.pool) else { return false };
        let serves = match queue_type {
            None => pool.serves_classic || pool.serves_quorum,
            Some(QueueType::Classic) => pool.serves_classic,
            Some(QueueType::Quorum) => pool.serves_quorum,
        };
        found.stage == PartitionStage::Serving && serves
    }

    /// Whether hashes of Argon2id may be kept: all nodes can read them.
    pub fn keeps_argon2id(&self) -> bool {
        self.machine_version >= KEEPS_ARGON2ID
    }

    /// Whether names have to suit the patterns of topic permissions, as they had to for builds that took them for
    /// parts of the expression. All nodes may not have left these behind yet, and they could not read the permission.
    pub(super) fn names_are_expressions(&self) -> bool {
        self.machine_version < NAMES_ARE_NO_EXPRESSIONS
    }

    /// Whether a queue of replies that every node knows counts towards a virtual host's limit, as it
    /// did for builds that all nodes may not have left behind yet.
    pub(super) fn counts_replies(&self) -> bool {
        self.machine_version < REPLIES_ARE_NO_QUEUES
    }

    /// Whether all nodes answer how far their logs of the topology go.
    pub fn knows_leases(&self) -> bool {
        self.machine_version >= KNOWS_LEASES
    }

    /// Whether all nodes know the levels of durability that wait for the leader alone, and policies that
    /// choose one.
    pub fn chooses_durability(&self) -> bool {
        self.machine_version >= CHOOSES_DURABILITY
    }

    /// The version that the topology's machine can be raised to, if that is above what it works by:
    /// the newest that every one of these members of its group has said that it can carry out.
    pub fn raise_for(&self, members: impl IntoIterator<Item = NodeNumber>) -> Option<Command> {
        let can = |member| self.cluster.nodes.get(&member).map_or(FIRST_MACHINE_VERSION, |node| node.can.topology);
        let version = members.into_iter().map(can).min()?;
        (version > self.machine_version).then_some(Command::RaiseVersion { version })
    }

    /// The newest version of the queues' machine that every one of these members of a partition has
    /// said that it can carry out.
    pub fn queues_version_for(&self, members: impl IntoIterator<Item = NodeNumber>) -> Option<u32> {
        let can = |member| self.cluster.nodes.get(&member).map(|node| node.can.queues);
        members.into_iter().map(can).min().flatten()
    }

    /// What a node that is alone has to say of itself and its partitions, as far as the topology
    /// does not hold it yet. Nothing at most starts; everything in a folder of a build that did not
    /// write such commands.
    pub fn commands_of(&self, sole: &SoleNode<'_>) -> Vec<Command> {
        let Cluster { nodes, pools, partitions, .. } = &self.cluster;
        let mut commands = Vec::new();
        let before = nodes.get(&sole.number);
        let node = ClusterNode {
            name: Name::from(sole.name),
            address: before.map_or_else(|| Name::from(""), |node| node.address.clone()),
            standing: NodeStanding::Member,
            can: sole.can,
        };
        if before != Some(&node) {
            commands.push(Command::PutNode { number: sole.number, node });
        }
        let has = u32::try_from(sole.partitions.len()).expect("their number is limited");
        let pool = pools.get(&FIRST_POOL).cloned().unwrap_or(PartitionPool {
            name: Name::from("default"),
            replication_factor: 1,
            target: 0,
            serves_classic: true,
            serves_quorum: true,
        });
        let target = pool.target.max(sole.wanted).max(has);
        if target != pool.target {
            commands.push(Command::PutPool { id: FIRST_POOL, pool: PartitionPool { target, ..pool } });
        }
        let mut put = |id: PartitionId, members: &[NodeNumber], stage| {
            let before = partitions.get(&id);
            let pool = before.map_or(FIRST_POOL, |partition| partition.pool);
            if before.is_none_or(|partition| partition.stage < stage) {
                let partition = PoolPartition { pool, members: members.to_vec(), stage };
                commands.push(Command::PutPartition { id, partition });
            }
        };
        sole.ended.iter().for_each(|id| put(*id, &[], PartitionStage::Retired));
        sole.partitions.iter().for_each(|id| put(*id, &[sole.number], PartitionStage::Serving));
        commands
    }

    /// What a node of a cluster says of itself at each start. `unknown` is how far it has come where
    /// the topology here does not know it yet.
    pub fn announcement_of(
        &self,
        own: NodeNumber,
        (name, can): (&str, MachineVersions),
        founders: &[ClusterMember<'_>],
        unknown: NodeStanding,
    ) -> Command {
        let address = founders.iter().find(|founder| founder.number == own).map_or("", |founder| founder.address);
        let standing = self.cluster.nodes.get(&own).map_or(unknown, |node| node.standing);
        let node = ClusterNode { name: Name::from(name), address: Name::from(address), standing, can };
        Command::PutNode { number: own, node }
    }

    /// What the founders of a cluster have to say together, as far as the topology does not hold it
    /// yet, in its order. `can` stands for those that have not said it themselves.
    pub fn commands_of_founders(
        &self,
        founders: &[ClusterMember<'_>],
        can: MachineVersions,
        partitions: u32,
    ) -> Vec<Command> {
        let Cluster { nodes, pools, partitions: known, .. } = &self.cluster;
        let mut commands = Vec::new();
        for founder in founders.iter().filter(|founder| !nodes.contains_key(&founder.number)) {
            let (name, address) = (Name::from(founder.address), Name::from(founder.address));
            let node = ClusterNode { name, address, standing: NodeStanding::Member, can };
            commands.push(Command::PutNode { number: founder.number, node });
        }
        let members: Vec<NodeNumber> = founders.iter().map(|founder| founder.number).collect();
        if !pools.contains_key(&FIRST_POOL) {
            let pool = PartitionPool {
                name: Name::from("default"),
                replication_factor: u32::try_from(members.len()).expect("a cluster has few founders"),
                target: partitions,
                serves_classic: true,
                serves_quorum: true,
            };
            commands.push(Command::PutPool { id: FIRST_POOL, pool });
        }
        for id in (1..=partitions).map(PartitionId).filter(|id| !known.contains_key(id)) {
            let stage = PartitionStage::Serving;
            let partition = PoolPartition { pool: FIRST_POOL, members: members.clone(), stage };
            commands.push(Command::PutPartition { id, partition });
        }
        // Whoever is gone holds nobody back, and whoever came later has to be able to follow.
        let founded = members.iter().filter(|member| !nodes.contains_key(*member)).copied();
        commands.extend(self.raise_for(self.present_nodes().map(|(number, _)| number).chain(founded)));
        commands
    }

    /// Carries out a command of this file. Errors: 406 for what is not lawful, and nothing has
    /// changed.
    pub(super) fn change_cluster(
        &mut self,
        command: &Command,
        effects: &mut Vec<Effect>,
    ) -> Result<CommandReply, Refusal> {
        match command {
            Command::PutNode { number, node } => self.put_node(*number, node, effects)?,
            Command::PutPool { id, pool } => self.put_pool(*id, pool)?,
            Command::PutPartition { id, partition } => self.put_partition(*id, partition)?,
            Command::RaiseVersion { version } => self.raise_version(*version)?,
            Command::ChangeNodes(change) => return self.change_nodes(change, effects),
            Command::ChangeCopies(change) => return self.change_copies(*change, effects),
            _ => unreachable!("other commands are carried out elsewhere"),
        }
        self.version += 1;
        Ok(CommandReply::Done)
    }

    fn put_node(&mut self, number: NodeNumber, node: &ClusterNode, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let refused = |why: &str| Err(Refusal::precondition_failed(&format!("cannot put node {}: {why}", number.0)));
        let before = self.cluster.nodes.get(&number);
        if before == Some(node) {
            return Ok(());
        }
        let is_gone = node.standing == NodeStanding::Gone;
        match before {
            _ if number.0 == 0 => return refused("nodes are counted from 1"),
            Some(before) if before.standing == NodeStanding::Gone => return refused("it is gone for ever"),
            Some(before) if before.standing > node.standing => return refused("it has gone further than that"),
            None if self.cluster.nodes.len() >= NODES_EVER_MAX => return refused("there are too many"),
            _ if !is_gone && node.can.topology < self.machine_version => {
                return refused("it cannot carry out what the topology works by");
            }
            _ => {}
        }
        if is_gone && self.cluster.partitions.values().any(|partition| partition.members.contains(&number)) {
            return refused("partitions have it as their member");
        }
        let joins = before.is_none_or(|before| before.standing < NodeStanding::Member);
        self.cluster.nodes.insert(number, node.clone());
        if joins && node.standing == NodeStanding::Member && self.lets_nodes_come_and_go() {
            self.give_copies(number, effects);
        }
        Ok(())
    }

    fn put_pool(&mut self, id: PoolId, pool: &PartitionPool) -> Result<(), Refusal> {
        let refused = |why: &str| Err(Refusal::precondition_failed(&format!("cannot put pool {}: {why}", id.0)));
        let before = self.cluster.pools.get(&id);
        if before != Some(pool) && self.is_small_pool(id) {
            return refused("its partitions have members by its size");
        }
        if id.0 == 0 || !is_group_size(pool.replication_factor) || pool.target as usize > PARTITIONS_EVER_MAX {
            return refused("a number is out of its range");
        }
        if before.is_none() && self.cluster.pools.len() >= POOLS_MAX {
            return refused("there are too many");
        }
        if before.is_some_and(|before| before.target > pool.target) {
            return refused("it has more partitions than that, and queues live in each");
        }
        if self.cluster.pools.iter().any(|(other, found)| *other != id && found.name == pool.name) {
            return refused("another one has that name");
        }
        self.cluster.pools.insert(id, pool.clone());
        Ok(())
    }

    fn put_partition(&mut self, id: PartitionId, partition: &PoolPartition) -> Result<(), Refusal> {
        let refused = |why: &str| Err(Refusal::precondition_failed(&format!("cannot put partition {}: {why}", id.0)));
        let Cluster { nodes, pools, partitions, .. } = &self.cluster;
        let before = partitions.get(&id);
        if before == Some(partition) {
            return Ok(());
        }
        let is_retired = partition.stage == PartitionStage::Retired;
        let Some(pool) = pools.get(&partition.pool) else { return refused("its pool is not there") };
        match before {
            _ if id.0 == 0 => return refused("that is the topology's group"),
            _ if self.cluster.founders.contains_key(&id) || self.is_small_pool(partition.pool) => {
                return refused("its pool chooses its members");
            }
            Some(before) if before.stage == PartitionStage::Retired => return refused("it is retired for ever"),
            Some(before) if before.stage > partition.stage => return refused("it has gone further than that"),
            Some(before) if before.pool != partition.pool => return refused("it belongs to another pool"),
            None if partitions.len() >= PARTITIONS_EVER_MAX => return refused("there are too many"),
            None if !is_retired && self.partitions_in(partition.pool) >= pool.target => {
                return refused("its pool is to have no more than it has");
            }
            _ => {}
        }
        let members = &partition.members;
        let is_node = |member| nodes.get(member).is_some_and(|node: &ClusterNode| node.standing != NodeStanding::Gone);
        if is_retired != members.is_empty() || !members.is_sorted_by(|a, b| a < b) || !members.iter().all(is_node) {
            return refused("its members are nodes of the cluster, each once, and none when it is retired");
        }
        if !is_retired && !u32::try_from(members.len()).is_ok_and(is_group_size) {
            return refused("a number is out of its range");
        }
        if is_retired && self.queues().any(|queue| !queue.id.is_local() && queue.partition == id) {
            return refused("queues live in it");
        }
        if self.moves_copies() && !is_retired && before.is_some_and(|before| before.members != *members) {
            return refused("its members change by copies that are given and taken");
        }
        self.cluster.partitions.insert(id, partition.clone());
        Ok(())
    }

    /// Partitions of a pool that are not retired.
    pub(super) fn partitions_in(&self, pool: PoolId) -> u32 {
        let partitions = self.cluster.partitions.values();
        let there = partitions.filter(|p| p.pool == pool && p.stage != PartitionStage::Retired);
        u32::try_from(there.count()).expect("their number is limited")
    }

    /// Other rules hold from here on. A version that this build does not know was refused when the
    /// command was read.
    fn raise_version(&mut self, version: u32) -> Result<(), Refusal> {
        assert!(version <= MACHINE_VERSION, "a command that raises to version {version} is not read by this build");
        let is_placed = |partition| {
            let found = self.cluster.partitions.get(&partition);
            found.is_some_and(|found: &PoolPartition| found.stage == PartitionStage::Serving)
        };
        let may_stay = |queue: &Queue| queue.id.is_local() || queue.home.is_some() || is_placed(queue.partition);
        if version >= MAP_DECIDES && !self.queues().all(may_stay) {
            return Err(Refusal::precondition_failed(&format!(
                "cannot raise the topology to version {version}: a queue lives in a partition that does not serve"
            )));
        }
        // Said twice, or behind a higher one: it is as high already.
        self.machine_version = self.machine_version.max(version);
        Ok(())
    }

    /// A repair found messages of a queue in this partition: it serves, whatever the map has lost.
    pub(super) fn adopt_partition(&mut self, id: PartitionId) {
        let members = |node: (&NodeNumber, &ClusterNode)| (node.1.standing != NodeStanding::Gone).then_some(*node.0);
        let members: Vec<_> = self.cluster.nodes.iter().filter_map(members).take(1).collect();
        let is_known = self.cluster.partitions.contains_key(&id);
        let Some(pool) = self.cluster.pools.get_mut(&FIRST_POOL).filter(|_| !is_known && !members.is_empty()) else {
            return;
        };
        pool.target += 1;
        let serving = PoolPartition { pool: FIRST_POOL, members, stage: PartitionStage::Serving };
        self.cluster.partitions.insert(id, serving);
    }
}

fn is_group_size(members: u32) -> bool {
    (1..=GROUP_SIZE_MAX).contains(&i64::from(members))
}

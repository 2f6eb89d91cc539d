//! Nodes that come to a cluster that is there, and nodes that are forgotten; from machine version 4 on.
//!
//! Invariants: a data folder gets one number, however often it asks; a number is given out once; who
//! is forgotten is a member of nothing and never comes back under its number or with its folder.
//!
//! ```text
//! join   = 16 bytes folder (little-endian), name, address (a name), number topology version, number queues version
//! forget = number node
//! forget as of = number node, number nodes forgotten before
//! folder = number node, 16 bytes folder: of every node that joined, in the snapshot
//! ```

use super::Topology;
use super::apply::{CommandReply, Effect};
use super::cluster::{Cluster, ClusterNode, FIRST_POOL, MachineVersions, NodeStanding, PartitionStage, PoolPartition};
use super::command::Command;
use super::encoding::{Malformed, Reader, Writer};
use super::name::Name;
use super::refusal::Refusal;
use crate::ids::{NodeNumber, PartitionId};

/// The version from which on nodes join and are forgotten.
const NODES_COME_AND_GO: u32 = 4;
/// The version from which on nodes are forgotten as of what was looked at.
const FORGETS_AS_OF: u32 = 8;
/// Nodes of a cluster at a time: each has a copy of all that does not ask for fewer.
pub const NODES_MAX: usize = 9;
const FOLDER_BYTES: usize = 16;

/// A node with an empty folder that asks for a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Its data folder, by which it is known again when it asks a second time.
    pub folder: u128,
    /// Its name.
    pub name: Name,
    /// Where the other nodes reach it.
    pub address: Name,
    /// What it can carry out.
    pub can: MachineVersions,
}

/// A change of the nodes of a cluster that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// A node comes and gets the next number; nothing if its folder has one.
    Join(Newcomer),
    /// A node is gone for ever, and every partition does without it; nothing if it was said before.
    Forget(NodeNumber),
    /// The same, if no other node was forgotten since somebody looked whether the others can do without this
    /// one: groups that do without one node first may not be able to do without a second.
    ForgetAsOf {
        /// The node.
        number: NodeNumber,
        /// How many were forgotten by then.
        forgotten: u32,
    },
}

impl NodeChange {
    pub(super) const JOIN_TAG: u8 = 45;
    pub(super) const FORGET_TAG: u8 = 46;
    pub(super) const FORGET_AS_OF_TAG: u8 = 47;

    /// Writes its tag and its fields.
    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            NodeChange::Join(Newcomer { folder, name, address, can }) => {
                writer.byte(Self::JOIN_TAG);
                writer.raw(&folder.to_le_bytes());
                writer.bytes(name);
                writer.bytes(address);
                writer.number(can.topology.into());
                writer.number(can.queues.into());
            }
            NodeChange::Forget(number) => {
                writer.byte(Self::FORGET_TAG);
                writer.number(number.0.into());
            }
            NodeChange::ForgetAsOf { number, forgotten } => {
                writer.byte(Self::FORGET_AS_OF_TAG);
                writer.number(number.0.into());
                writer.number((*forgotten).into());
            }
        }
    }

    /// Reads the fields behind one of the tags.
    pub(super) fn read(tag: u8, reader: &mut Reader<'_>) -> Result<NodeChange, Malformed> {
        if tag == Self::FORGET_TAG {
            return Ok(NodeChange::Forget(NodeNumber(reader.number_u32("node")?)));
        }
        if tag == Self::FORGET_AS_OF_TAG {
            let (number, forgotten) = (NodeNumber(reader.number_u32("node")?), reader.number_u32("nodes forgotten")?);
            return Ok(NodeChange::ForgetAsOf { number, forgotten });
        }
        let folder = read_folder(reader)?;
        let (name, address) = (reader.name("node name")?, reader.name("address")?);
        let what = "machine version";
        let can = MachineVersions { topology: reader.number_u32(what)?, queues: reader.number_u32(what)? };
        Ok(NodeChange::Join(Newcomer { folder, name, address, can }))
    }
}

fn read_folder(reader: &mut Reader<'_>) -> Result<u128, Malformed> {
    let bytes = reader.take(FOLDER_BYTES, "folder")?;
    Ok(u128::from_le_bytes(bytes.try_into().expect("so many were taken")))
}

impl Topology {
    /// Whether nodes may join and be forgotten: all nodes can carry that out.
    pub fn lets_nodes_come_and_go(&self) -> bool {
        self.machine_version >= NODES_COME_AND_GO
    }

    /// A node by its number.
    pub fn node(&self, number: NodeNumber) -> Option<&ClusterNode> {
        self.cluster.nodes.get(&number)
    }

    /// The nodes that are not gone, by number.
    pub fn present_nodes(&self) -> impl Iterator<Item = (NodeNumber, &ClusterNode)> {
        self.nodes().filter(|(_, node)| node.standing != NodeStanding::Gone)
    }

    /// How many nodes were ever forgotten.
    pub fn nodes_forgotten(&self) -> u32 {
        let gone = self.nodes().filter(|(_, node)| node.standing == NodeStanding::Gone).count();
        u32::try_from(gone).expect("there were few nodes")
    }

    /// What says that a node is gone for ever. `forgotten`: [`Topology::nodes_forgotten`] before anybody looked
    /// whether the others can do without it.
    pub fn forgetting(&self, number: NodeNumber, forgotten: u32) -> Command {
        Command::ChangeNodes(match self.machine_version >= FORGETS_AS_OF {
            true => NodeChange::ForgetAsOf { number, forgotten },
            false => NodeChange::Forget(number),
        })
    }

    /// What a node is called where people read of it: its name, or its number where nobody knows that.
    pub fn shown_node(&self, number: NodeNumber) -> String {
        match self.node(number).filter(|node| !node.name.is_empty()) {
            Some(node) => node.name.to_string(),
            None => format!("node {}", number.0),
        }
    }

    /// The data folder of a node that joined; of one that founded the cluster its file has it.
    pub fn folder_of(&self, number: NodeNumber) -> Option<u128> {
        self.cluster.folders.get(&number).copied()
    }

    /// The node that joined with this data folder.
    pub fn joined_with(&self, folder: u128) -> Option<NodeNumber> {
        self.cluster.folders.iter().find(|(_, known)| **known == folder).map(|(number, _)| *number)
    }

    /// The nodes that the group of a partition is to have as its members; none while the map does not
    /// say. The topology's own group has all that are not gone, those that are joining too.
    pub fn members_wanted(&self, partition: PartitionId) -> Vec<NodeNumber> {
        if !self.lets_nodes_come_and_go() {
            return Vec::new();
        }
        if partition.0 == 0 {
            return self.present_nodes().map(|(number, _)| number).collect();
        }
        self.cluster.partitions.get(&partition).map_or_else(Vec::new, |put| put.members.clone())
    }

    /// The same for who leads a group that has these members now: none while this map knows less than the group. It
    /// has not heard then that one of them is a member of the cluster, and would have it removed.
    ///
    /// Each comes with its life, see [`Topology::lives_wanted`].
    pub fn lives_wanted_after(&self, partition: PartitionId, members: &[NodeNumber]) -> Vec<(NodeNumber, u32)> {
        let is_known =
            |number: &NodeNumber| self.node(*number).is_some_and(|node| node.standing != NodeStanding::Joining);
        match members.iter().all(is_known) {
            true => self.lives_wanted(partition),
            false => Vec::new(),
        }
    }

    /// What the leader of the topology has to say once these have a vote in its group: a node that
    /// joins is a member then, and every partition gets it.
    pub fn next_standing(&self, voters: &[NodeNumber]) -> Option<Command> {
        let is_in = |(number, node): &(NodeNumber, &ClusterNode)| {
            node.standing == NodeStanding::Joining && voters.contains(number)
        };
        let (number, node) = self.nodes().find(is_in).filter(|_| self.lets_nodes_come_and_go())?;
        Some(Command::PutNode { number, node: ClusterNode { standing: NodeStanding::Member, ..node.clone() } })
    }

    pub(super) fn change_nodes(
        &mut self,
        change: &NodeChange,
        effects: &mut Vec<Effect>,
    ) -> Result<CommandReply, Refusal> {
        let needs = match change {
            NodeChange::Join(_) | NodeChange::Forget(_) => NODES_COME_AND_GO,
            NodeChange::ForgetAsOf { .. } => FORGETS_AS_OF,
        };
        if self.machine_version < needs {
            return Err(Refusal::precondition_failed(
                "nodes come and go once every node of the cluster runs a leveret that can do it",
            ));
        }
        match change {
            NodeChange::Join(newcomer) => self.join(newcomer)?,
            NodeChange::Forget(number) => self.forget(*number, None, effects)?,
            NodeChange::ForgetAsOf { number, forgotten } => self.forget(*number, Some(*forgotten), effects)?,
        }
        self.version += 1;
        Ok(CommandReply::Done)
    }

    fn join(&mut self, newcomer: &Newcomer) -> Result<(), Refusal> {
        let Newcomer { folder, name, address, can } = newcomer;
        let refused = |why: String| Err(Refusal::precondition_failed(&format!("{name} cannot join: {why}")));
        if let Some(number) = self.joined_with(*folder) {
            return match self.node(number).is_some_and(|node| node.standing == NodeStanding::Gone) {
                true => refused(format!("it was forgotten as node {}; start it with an empty folder", number.0)),
                false => Ok(()),
            };
        }
        let twin = self.present_nodes().find(|(_, node)| node.name == *name || node.address == *address);
        if let Some((number, node)) = twin {
            let (what, setting) = match node.name == *name {
                true => ("is called the same", "node_name"),
                false => ("has the same address", "cluster_address"),
            };
            return refused(format!(
                "node {}, {} at {}, {what}: give this one another {setting}; if that node is gone for good, `leveret ctl \
                 forget_cluster_node {}`",
                number.0, node.name, node.address, node.name
            ));
        }
        if can.topology < self.machine_version || self.present_nodes().all(|(_, node)| can.queues < node.can.queues) {
            return refused("the cluster works by rules of a newer leveret; start that".to_owned());
        }
        let nodes = &mut self.cluster.nodes;
        if nodes.values().filter(|node| node.standing != NodeStanding::Gone).count() >= NODES_MAX {
            return refused(format!("a cluster has {NODES_MAX} nodes at most"));
        }
        if nodes.len() >= super::NODES_EVER_MAX {
            return refused("there were too many".to_owned());
        }
        let number = NodeNumber(nodes.keys().last().map_or(1, |last| last.0 + 1));
        let standing = NodeStanding::Joining;
        nodes.insert(number, ClusterNode { name: name.clone(), address: address.clone(), standing, can: *can });
        self.cluster.folders.insert(number, *folder);
        Ok(())
    }

    fn forget(&mut self, number: NodeNumber, forgotten: Option<u32>, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let refused = |why: &str| Err(Refusal::precondition_failed(&format!("cannot forget node {}: {why}", number.0)));
        let Some(node) = self.node(number) else { return refused("there is none of that number") };
        if node.standing == NodeStanding::Gone {
            return Ok(());
        }
        if self.present_nodes().count() == 1 {
            return refused("it is the last one");
        }
        if forgotten.is_some_and(|forgotten| forgotten != self.nodes_forgotten()) {
            return refused("another node was forgotten meanwhile; look again whether the others can do without it");
        }
        if let Err(why) = self.retire_without(number) {
            return refused(&why);
        }
        for partition in self.cluster.partitions.values_mut() {
            partition.members.retain(|member| *member != number);
        }
        if let Some(node) = self.cluster.nodes.get_mut(&number) {
            node.standing = NodeStanding::Gone;
        }
        self.forget_lives(number);
        self.fill_pools(effects);
        Ok(())
    }

    /// A node became a member: every partition is to have a copy there, but those of pools of fewer
    /// copies, which get one where they lack some.
    pub(super) fn give_copies(&mut self, number: NodeNumber, effects: &mut Vec<Effect>) {
        let Cluster { partitions, founders, .. } = &mut self.cluster;
        let is_meant = |(id, put): &(&PartitionId, &mut PoolPartition)| {
            put.stage != PartitionStage::Retired && !founders.contains_key(*id)
        };
        for (_, put) in partitions.iter_mut().filter(is_meant) {
            if let Err(at) = put.members.binary_search(&number) {
                put.members.insert(at, number);
            }
        }
        let copies = u32::try_from(self.present_nodes().count()).expect("a cluster has few nodes");
        if let Some(pool) = self.cluster.pools.get_mut(&FIRST_POOL) {
            pool.replication_factor = pool.replication_factor.max(copies);
        }
        self.fill_pools(effects);
    }

    pub(super) fn has_folders(&self) -> bool {
        !self.cluster.folders.is_empty()
    }

    pub(super) fn write_folders(&self, writer: &mut Writer) {
        writer.length(self.cluster.folders.len());
        for (number, folder) in &self.cluster.folders {
            writer.number(number.0.into());
            writer.raw(&folder.to_le_bytes());
        }
    }

    /// `may_be_none`: no node need have joined.
    pub(super) fn read_folders(&mut self, reader: &mut Reader<'_>, may_be_none: bool) -> Result<(), Malformed> {
        let mut last = NodeNumber(0);
        for _ in 0..reader.count("folders")? {
            let number = NodeNumber(reader.number_u32("node")?);
            let folder = read_folder(reader)?;
            let is_sound = number > last && self.node(number).is_some() && self.joined_with(folder).is_none();
            if !is_sound {
                return Err(reader.malformed("folder of a node"));
            }
            self.cluster.folders.insert(number, folder);
            last = number;
        }
        if self.has_folders() || may_be_none { Ok(()) } else { Err(reader.malformed("folders")) }
    }
}

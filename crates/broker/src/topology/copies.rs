//! Copies of partitions that somebody gives to a node or takes from it; from machine version 10 on.
//!
//! A queue has its copies where its partition has them, and so have all queues of that partition. Who asks sees
//! to what that means for them; here it is about partitions.
//!
//! Invariants: a partition keeps one member at least; a node that a copy is taken from ends its part of that group for
//! ever, and is another member of it if it gets one again: its life says how often it had left before. A life only
//! rises. A partition that was given or lost copies has as many from then on: who fills the place of a node that is
//! forgotten goes by that, and not by the size of its pool.
//!
//! ```text
//! take   = number partition, number node
//! give   = number partition, number node
//! life   = number partition, number node, number life: of every node that has left a partition, in the snapshot
//! copies = number partition, number copies: of every partition that has other than its pool, in the snapshot
//! ```

use super::apply::{CommandReply, Effect};
use super::cluster::{PartitionStage, PoolPartition};
use super::encoding::{Malformed, Reader, Writer};
use super::refusal::Refusal;
use super::settings::QueueType;
use super::{NodeStanding, Topology};
use crate::ids::{NodeNumber, PartitionId};
use std::collections::BTreeSet;

/// The version from which on copies are given and taken.
const MOVES_COPIES: u32 = 10;

/// A change of where a partition has its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyChange {
    /// A node has a partition no more; nothing if it has none.
    Take {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeNumber,
    },
    /// A node is to have a partition; nothing if it has.
    Give {
        /// The partition.
        partition: PartitionId,
        /// The node.
        node: NodeNumber,
    },
}

impl CopyChange {
    pub(super) const TAKE_TAG: u8 = 48;
    pub(super) const GIVE_TAG: u8 = 49;

    /// Writes its tag and its fields.
    pub(super) fn write(&self, writer: &mut Writer) {
        let (tag, partition, node) = match self {
            CopyChange::Take { partition, node } => (Self::TAKE_TAG, partition, node),
            CopyChange::Give { partition, node } => (Self::GIVE_TAG, partition, node),
        };
        writer.byte(tag);
        writer.number(partition.0.into());
        writer.number(node.0.into());
    }

    /// Reads the fields behind one of the tags.
    pub(super) fn read(tag: u8, reader: &mut Reader<'_>) -> Result<CopyChange, Malformed> {
        let (partition, node) = (PartitionId(reader.number_u32("partition")?), NodeNumber(reader.number_u32("node")?));
        Ok(match tag {
            Self::TAKE_TAG => CopyChange::Take { partition, node },
            _ => CopyChange::Give { partition, node },
        })
    }
}

impl Topology {
    /// Whether copies may be given to nodes and taken from them: all nodes can carry that out.
    pub fn moves_copies(&self) -> bool {
        self.machine_version >= MOVES_COPIES
    }

    /// How often a node had left a partition.
    pub fn life_in(&self, partition: PartitionId, node: NodeNumber) -> u32 {
        self.cluster.lives.get(&(partition, node)).copied().unwrap_or(0)
    }

    /// Whether a member of a partition is to leave it for good: the one that its node was in this life.
    pub fn is_to_leave(&self, partition: PartitionId, node: NodeNumber, life: u32) -> bool {
        life < self.life_in(partition, node)
    }

    /// The members that the group of a partition is to have, each with its life; as
    /// [`Topology::members_wanted`] says.
    pub fn lives_wanted(&self, partition: PartitionId) -> Vec<(NodeNumber, u32)> {
        let members = self.members_wanted(partition);
        members.into_iter().map(|node| (node, self.life_in(partition, node))).collect()
    }

    /// How many copies a partition of a pool of fewer copies than nodes is to have.
    pub(super) fn copies_wanted(&self, partition: PartitionId, put: &PoolPartition) -> usize {
        let of_pool = || self.cluster.pools.get(&put.pool).map_or(0, |pool| pool.replication_factor);
        self.cluster.copies.get(&partition).copied().unwrap_or_else(of_pool) as usize
    }

    /// Whether a partition has fewer copies than its pool and the nodes allow, as some were taken.
    pub(super) fn lacks_copies(&self, partition: PartitionId) -> bool {
        // No more is to be known of most clusters.
        let is_any = self.moves_copies() && self.has_moved_copies();
        let Some(put) = self.cluster.partitions.get(&partition).filter(|_| is_any) else { return false };
        let of_pool = self.cluster.pools.get(&put.pool).map_or(0, |pool| pool.replication_factor as usize);
        put.members.len() < of_pool.min(self.hosts().len())
    }

    /// The same, and it cannot get them back without a word, as queues live in it.
    pub(super) fn is_short_of_copies(&self, partition: PartitionId) -> bool {
        self.lacks_copies(partition) && (self.queues_in(partition) > 0 || self.founders_of(partition).is_none())
    }

    /// A queue comes to a partition in which none lives: it has as many copies as its pool has from now on.
    pub(super) fn restore_copies(&mut self, partition: PartitionId, effects: &mut Vec<Effect>) {
        if self.queues_in(partition) == 0 && self.cluster.copies.remove(&partition).is_some() {
            self.fill_pools(effects);
        }
    }

    pub(super) fn change_copies(
        &mut self,
        change: CopyChange,
        effects: &mut Vec<Effect>,
    ) -> Result<CommandReply, Refusal> {
        if !self.moves_copies() {
            return Err(Refusal::precondition_failed(
                "copies are given and taken once every node of the cluster runs a leveret that can do it",
            ));
        }
        match change {
            CopyChange::Take { partition, node } => self.take_copy(partition, node, effects)?,
            CopyChange::Give { partition, node } => self.give_copy(partition, node, effects)?,
        }
        self.version += 1;
        Ok(CommandReply::Done)
    }

    fn take_copy(&mut self, id: PartitionId, node: NodeNumber, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let members = &mut self.partition_with_copies(id)?.members;
        let Ok(at) = members.binary_search(&node) else { return Ok(()) };
        if members.len() == 1 {
            return Err(Refusal::precondition_failed(&format!("partition {} has its only copy there", id.0)));
        }
        members.remove(at);
        *self.cluster.lives.entry((id, node)).or_default() += 1;
        self.note_copies(id, effects);
        Ok(())
    }

    fn give_copy(&mut self, id: PartitionId, node: NodeNumber, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        if self.node(node).is_none_or(|known| known.standing != NodeStanding::Member) {
            return Err(Refusal::precondition_failed(&format!("node {} is no member of the cluster", node.0)));
        }
        let members = &mut self.partition_with_copies(id)?.members;
        let Err(at) = members.binary_search(&node) else { return Ok(()) };
        members.insert(at, node);
        self.note_copies(id, effects);
        Ok(())
    }

    fn partition_with_copies(&mut self, id: PartitionId) -> Result<&mut PoolPartition, Refusal> {
        let there = self.cluster.partitions.get_mut(&id).filter(|put| put.stage != PartitionStage::Retired);
        there.ok_or_else(|| Refusal::precondition_failed(&format!("there is no partition {}", id.0)))
    }

    /// A partition is to have as many copies as it has now.
    fn note_copies(&mut self, id: PartitionId, effects: &mut Vec<Effect>) {
        let put = &self.cluster.partitions[&id];
        let of_pool = self.cluster.pools.get(&put.pool).map_or(0, |pool| pool.replication_factor);
        let copies = u32::try_from(put.members.len()).expect("a cluster has few nodes");
        // Where every node is to have a copy, nobody fills places.
        match copies == of_pool || self.founders_of(id).is_none() {
            true => self.cluster.copies.remove(&id),
            false => self.cluster.copies.insert(id, copies),
        };
        effects.push(Effect::MembersChanged { partition: id });
    }

    /// The partitions in which queues of a type live.
    pub fn partitions_with(&self, queue_type: QueueType) -> BTreeSet<PartitionId> {
        let of_type = self.declared_queues().filter(|queue| queue.shape.queue_type == queue_type);
        of_type.filter(|queue| !queue.partition.is_in_memory()).map(|queue| queue.partition).collect()
    }

    /// A node is gone for ever: nothing of it comes back to any partition.
    pub(super) fn forget_lives(&mut self, node: NodeNumber) {
        self.cluster.lives.retain(|(_, known), _| *known != node);
    }

    /// Whether any copy was given or taken, as far as that is of any meaning still.
    pub(super) fn has_moved_copies(&self) -> bool {
        !self.cluster.lives.is_empty() || !self.cluster.copies.is_empty()
    }

    pub(super) fn write_moved_copies(&self, writer: &mut Writer) {
        writer.length(self.cluster.lives.len());
        for ((partition, node), life) in &self.cluster.lives {
            [partition.0, node.0, *life].into_iter().for_each(|number| writer.number(number.into()));
        }
        writer.length(self.cluster.copies.len());
        for (partition, copies) in &self.cluster.copies {
            [partition.0, *copies].into_iter().for_each(|number| writer.number(number.into()));
        }
    }

    pub(super) fn read_moved_copies(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let mut last = (PartitionId(0), NodeNumber(0));
        for _ in 0..reader.count("lives")? {
            let key = (PartitionId(reader.number_u32("partition")?), NodeNumber(reader.number_u32("node")?));
            let life = reader.number_u32("life")?;
            let is_known = self.cluster.partitions.contains_key(&key.0) && self.node(key.1).is_some();
            if key <= last || !is_known || life == 0 {
                return Err(reader.malformed("life of a node in a partition"));
            }
            self.cluster.lives.insert(key, life);
            last = key;
        }
        let mut last = PartitionId(0);
        for _ in 0..reader.count("copies")? {
            let (id, copies) = (PartitionId(reader.number_u32("partition")?), reader.number_u32("copies")?);
            let of_pool = self.cluster.partitions.get(&id).and_then(|put| self.cluster.pools.get(&put.pool));
            let is_other = of_pool.is_some_and(|pool| pool.replication_factor != copies);
            if id <= last || copies == 0 || !is_other || self.founders_of(id).is_none() {
                return Err(reader.malformed("copies of a partition"));
            }
            self.cluster.copies.insert(id, copies);
            last = id;
        }
        if self.has_moved_copies() { Ok(()) } else { Err(reader.malformed("moved copies")) }
    }
}

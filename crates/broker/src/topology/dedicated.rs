//! Partitions that one quorum queue has for itself, by `x-dedicated-partition`: a group, a log order and a
//! leader that it shares with no other queue. From machine version 6 on.
//!
//! Invariants: at most one queue lives in such a partition; the partition stays when its queue goes, and the
//! next queue that asks for as many copies takes it; it has founders and members as those of small pools
//! have (`pools.rs`). There are at most [`DEDICATED_PARTITIONS_MAX`], for which every node keeps a place.

use super::NODES_MAX;
use super::Topology;
use super::apply::Effect;
use super::cluster::{PARTITIONS_EVER_MAX, POOLS_MAX, PartitionPool, PartitionStage, PoolPartition};
use super::name::Name;
use super::pools::{PlacedPartition, first_leaders};
use super::queue::QueueShape;
use super::refusal::Refusal;
use crate::ids::{NodeNumber, PartitionId, PoolId};
use crate::queue::Rules;

/// The version from which on there are dedicated partitions.
const HAS_DEDICATED: u32 = 6;
/// Dedicated partitions that a cluster has at a time. Nodes keep room for as many.
pub const DEDICATED_PARTITIONS_MAX: u32 = 64;

/// How many copies a queue with a partition of its own is to have, now or once there are nodes for them.
fn copies(shape: &QueueShape, rules: &Rules) -> u32 {
    Topology::copies_asked(shape, rules).min(NODES_MAX as u32)
}

fn pool_name(copies: u32) -> Name {
    Name::from(format!("dedicated-{copies}").as_str())
}

impl Topology {
    /// Before, the argument is stored and means nothing, as builds that do not know it have it.
    pub(super) fn has_dedicated(&self) -> bool {
        self.machine_version() >= HAS_DEDICATED
    }

    /// Errors: 406 where a queue asks for a partition of its own and cannot have one.
    pub(super) fn check_dedicated(&self, queue: &Name, shape: &QueueShape) -> Result<(), Refusal> {
        if !shape.settings.is_dedicated {
            return Ok(());
        }
        let refused = |why: &str| {
            let text = format!("cannot declare queue '{queue}' with 'x-dedicated-partition': {why}");
            Err(Refusal::precondition_failed(&text))
        };
        if self.present_nodes().count() < 2 {
            return refused(
                "a node alone has the partitions that its settings say; it takes a cluster of two nodes or more",
            );
        }
        if !self.has_dedicated() {
            return refused("not all nodes run a version that knows it yet");
        }
        Ok(())
    }

    fn dedicated_pool(&self, copies: u32) -> Option<PoolId> {
        let name = pool_name(copies);
        self.cluster.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, _)| *id)
    }

    /// Dedicated partitions of all numbers of copies.
    pub(super) fn dedicated_count(&self) -> usize {
        let is_dedicated =
            |pool: &PoolId| self.cluster.pools.get(pool).is_some_and(|pool| pool.name.starts_with(b"dedicated-"));
        let founded = self.cluster.founders.keys().filter_map(|id| self.cluster.partitions.get(id));
        founded.filter(|put| is_dedicated(&put.pool)).count()
    }

    /// Those in which no queue lives.
    fn vacated(&self, copies: u32) -> Vec<PartitionId> {
        let Some(pool) = self.dedicated_pool(copies) else { return Vec::new() };
        let is_free = |(id, put): (&PartitionId, &PoolPartition)| {
            let is_free = put.pool == pool && put.stage == PartitionStage::Serving && self.queues_in(*id) == 0;
            is_free.then_some(*id)
        };
        self.cluster.partitions.iter().filter_map(is_free).collect()
    }

    /// The next one to come to be, with its members: the nodes with the fewest copies. `None` if there are
    /// enough.
    fn planned_dedicated(&self, copies: u32) -> Option<(PartitionId, Vec<NodeNumber>)> {
        let has_room = self.dedicated_count() < DEDICATED_PARTITIONS_MAX as usize
            && self.cluster.partitions.len() < PARTITIONS_EVER_MAX
            && (self.dedicated_pool(copies).is_some() || self.cluster.pools.len() < POOLS_MAX);
        let next = PartitionId(self.cluster.partitions.keys().last().map_or(1, |last| last.0 + 1));
        has_room.then(|| (next, self.least_laden(copies)))
    }

    /// Where a queue with a partition of its own may live.
    pub(super) fn dedicated_places(&self, shape: &QueueShape, rules: &Rules) -> Vec<PlacedPartition> {
        let copies = copies(shape, rules);
        let free = self.vacated(copies).into_iter().map(PlacedPartition::there);
        let planned = self.planned_dedicated(copies);
        let founded = self.dedicated_pool(copies).into_iter().flat_map(|pool| self.founders_in(pool));
        let first = first_leaders(founded.chain(planned.iter().map(|(id, founders)| (*id, &founders[..]))));
        let planned = planned.as_ref().map(|(partition, founders)| PlacedPartition {
            partition: *partition,
            leads_first: first.get(partition).copied(),
            founders: founders.clone(),
        });
        free.chain(planned).collect()
    }

    /// The partition of a new queue that has one for itself, and that whoever declares it would have in
    /// `asked`. Errors: 406 where there are too many; nothing has changed.
    pub(super) fn settle_dedicated(
        &mut self,
        asked: PartitionId,
        (queue, shape, rules): (&Name, &QueueShape, &Rules),
        effects: &mut Vec<Effect>,
    ) -> Result<PartitionId, Refusal> {
        self.check_dedicated(queue, shape)?;
        let copies = copies(shape, rules);
        let free = self.vacated(copies);
        let planned = self.planned_dedicated(copies);
        let is_asked = planned.as_ref().is_some_and(|(id, _)| *id == asked);
        let known = free.iter().find(|id| **id == asked).or(free.first().filter(|_| !is_asked));
        if let Some(id) = known.copied() {
            self.restore_copies(id, effects);
            return Ok(id);
        }
        let Some((id, members)) = planned else {
            return Err(Refusal::precondition_failed(&format!(
                "cannot declare queue '{queue}': {DEDICATED_PARTITIONS_MAX} queues have a partition of their own, \
                 and a cluster has no more such partitions"
            )));
        };
        let next = PoolId(self.cluster.pools.keys().last().map_or(1, |last| last.0 + 1));
        let pool = self.dedicated_pool(copies).unwrap_or(next);
        let made = || PartitionPool {
            name: pool_name(copies),
            replication_factor: copies,
            target: 0,
            serves_classic: false,
            serves_quorum: true,
        };
        self.cluster.pools.entry(pool).or_insert_with(made).target += 1;
        self.cluster.founders.insert(id, members.clone());
        self.cluster.partitions.insert(id, PoolPartition { pool, members, stage: PartitionStage::Serving });
        effects.push(Effect::MembersChanged { partition: id });
        Ok(id)
    }
}

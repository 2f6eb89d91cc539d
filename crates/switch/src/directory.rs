//! Where each partition of a node runs.
//!
//! Invariant: it is fixed for the life of the node, so every shard has it for itself.

use broker::{NodeNumber, PartitionId};
use std::sync::Arc;

/// Shards of one node at most: their index has this many values in a channel key.
pub const SHARDS_MAX: usize = PartitionId::SHARDS_MAX;

/// Where a connection's number says which node it is: above a counter that lasts, below the shard.
const NODE_SHIFT: u32 = 46;

/// Where each partition of this node runs: its shard, and its place there.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// By partition number, which are small and dense; `None` runs elsewhere.
    durable: Arc<[Option<(u8, u16)>]>,
    shards: usize,
    /// 0 for a node that is alone.
    own: NodeNumber,
}

impl Directory {
    /// The directory of a node with `shards` shards. `placement` gives the shard of each durable
    /// partition; those of one shard take their places in its order, after the shard's transient
    /// queues at place 0.
    pub fn new(shards: usize, placement: &[(PartitionId, usize)]) -> Self {
        assert!((1..=SHARDS_MAX).contains(&shards), "a node has 1 to SHARDS_MAX shards");
        let len = placement.iter().map(|(id, _)| id.0 as usize + 1).max().unwrap_or(0);
        let mut durable = vec![None; len];
        let mut places = vec![0u16; shards];
        for (id, shard) in placement {
            assert!(!id.is_in_memory() && *shard < shards, "a durable partition runs on a shard that exists");
            places[*shard] += 1;
            let before = durable[id.0 as usize].replace((*shard as u8, places[*shard]));
            assert!(before.is_none(), "a partition runs on one shard");
        }
        Directory { durable: durable.into(), shards, own: NodeNumber(0) }
    }

    /// The same, of this node of a cluster, whose other nodes know what it has in memory.
    pub fn among_others(self, own: NodeNumber) -> Self {
        Directory { own, ..self }
    }

    /// The partition of what a shard has in memory.
    pub fn in_memory(&self, shard: usize) -> PartitionId {
        PartitionId::in_memory(self.own, shard)
    }

    /// The shard of a partition and its place there; `None` if it does not run on this node.
    #[inline]
    pub fn find(&self, partition: PartitionId) -> Option<(usize, usize)> {
        if let (Some(home), Some(shard)) = (partition.home(), partition.memory_shard()) {
            return (home == self.own && shard < self.shards).then_some((shard, 0));
        }
        let (shard, place) = (*self.durable.get(partition.0 as usize)?)?;
        Some((shard.into(), place.into()))
    }

    /// Whether this node may have had a partition in its memory, in an earlier life with more shards.
    pub fn had(&self, partition: PartitionId) -> bool {
        partition.home() == Some(self.own) && self.find(partition).is_none()
    }

    /// A number of this node's as one that no other node gives out.
    pub(crate) fn own_number(&self, number: u64) -> u64 {
        number | u64::from(self.own.0) << NODE_SHIFT
    }

    /// How many shards the node has.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Every durable partition of this node, lowest first.
    pub fn durable(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.durable.iter().enumerate().filter(|(_, at)| at.is_some()).map(|(id, _)| PartitionId(id as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_is_found_where_it_was_placed() {
        let placement = [(PartitionId(1), 0), (PartitionId(2), 1), (PartitionId(3), 0)];
        let directory = Directory::new(2, &placement);
        assert_eq!(directory.find(PartitionId(1)), Some((0, 1)));
        assert_eq!(directory.find(PartitionId(2)), Some((1, 1)));
        assert_eq!(directory.find(PartitionId(3)), Some((0, 2)));
        assert_eq!(directory.find(PartitionId(0)), None);
        assert_eq!(directory.find(PartitionId(9)), None);
        assert_eq!(directory.find(directory.in_memory(1)), Some((1, 0)));
        assert_eq!(directory.find(directory.in_memory(2)), None);
        let third = directory.clone().among_others(NodeNumber(3));
        assert_eq!(third.find(third.in_memory(1)), Some((1, 0)));
        assert_eq!(third.find(directory.in_memory(1)), None);
        let fewer = Directory::new(1, &[]).among_others(NodeNumber(3));
        assert!(fewer.had(third.in_memory(1)) && !fewer.had(third.in_memory(0)) && !fewer.had(directory.in_memory(1)));
        assert!(!fewer.had(PartitionId(1)), "it is in no memory");
        assert_eq!(third.find(PartitionId::in_memory(NodeNumber(2), 1)), None);
        assert_eq!(directory.durable().collect::<Vec<_>>(), [PartitionId(1), PartitionId(2), PartitionId(3)]);
    }
}

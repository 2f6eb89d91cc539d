//! Where each partition of a node runs.
//!
//! Invariant: it is fixed for the life of the node, so every shard has it for itself.

use broker::PartitionId;
use std::sync::Arc;

/// Partitions with this bit are the transient queues of one shard, whose index is in the other
/// bits.
const TRANSIENT_BIT: u32 = 1 << 31;

/// Shards of one node at most: their index has this many values in a channel key.
pub const SHARDS_MAX: usize = 64;

/// The partition of the transient queues of a shard.
pub fn transient_partition(shard: usize) -> PartitionId {
    assert!(shard < SHARDS_MAX, "a node has at most SHARDS_MAX shards");
    PartitionId(TRANSIENT_BIT | shard as u32)
}

/// Whether a partition is the transient queues of a shard, which no other node has.
pub(crate) fn is_transient(partition: PartitionId) -> bool {
    partition.0 & TRANSIENT_BIT != 0
}

/// Where each partition of this node runs: its shard, and its place there.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// By partition number, which are small and dense; `None` runs elsewhere.
    durable: Arc<[Option<(u8, u16)>]>,
    shards: usize,
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
            assert!(id.0 & TRANSIENT_BIT == 0 && *shard < shards, "a durable partition runs on a shard that exists");
            places[*shard] += 1;
            let before = durable[id.0 as usize].replace((*shard as u8, places[*shard]));
            assert!(before.is_none(), "a partition runs on one shard");
        }
        Directory { durable: durable.into(), shards }
    }

    /// The shard of a partition and its place there; `None` if it does not run on this node.
    #[inline]
    pub fn find(&self, partition: PartitionId) -> Option<(usize, usize)> {
        if partition.0 & TRANSIENT_BIT != 0 {
            let shard = (partition.0 & !TRANSIENT_BIT) as usize;
            return (shard < self.shards).then_some((shard, 0));
        }
        let (shard, place) = (*self.durable.get(partition.0 as usize)?)?;
        Some((shard.into(), place.into()))
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
        assert_eq!(directory.find(transient_partition(1)), Some((1, 0)));
        assert_eq!(directory.find(transient_partition(2)), None);
        assert_eq!(directory.durable().collect::<Vec<_>>(), [PartitionId(1), PartitionId(2), PartitionId(3)]);
    }
}

//! Which of a node's shards each of its partitions runs on.
//!
//! Invariant: it follows from which partitions and how many shards there are, so whoever asks again
//! hears the same.

use crate::TOPOLOGY;
use broker::PartitionId;
use std::collections::{BTreeMap, BTreeSet};

/// The shard of each partition of a node with so many `shards`, lowest partition first: the
/// topology's group runs on the first one, `here` take turns, and of `vacant`, of which the node has
/// nothing, the number says it.
pub fn placement(
    here: impl IntoIterator<Item = PartitionId>,
    vacant: impl IntoIterator<Item = PartitionId>,
    shards: usize,
) -> Vec<(PartitionId, usize)> {
    let here: BTreeSet<PartitionId> = here.into_iter().collect();
    let here = here.into_iter().enumerate().map(|(number, id)| (id, number % shards));
    let vacant = vacant.into_iter().map(|id| (id, id.0 as usize % shards));
    // Members take their places by their numbers.
    let placed: BTreeMap<PartitionId, usize> = here.chain(vacant).collect();
    std::iter::once((TOPOLOGY, 0)).chain(placed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_take_turns_whatever_the_order_in_which_they_are_named() {
        let placed = placement([4, 1, 2].map(PartitionId), [7, 3].map(PartitionId), 2);
        let as_numbers: Vec<(u32, usize)> = placed.iter().map(|(id, shard)| (id.0, *shard)).collect();
        assert_eq!(as_numbers, [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (7, 1)]);
        assert!(placement([1, 2].map(PartitionId), [], 1).iter().all(|(_, shard)| *shard == 0));
    }
}

//! Which node leads each partition, as far as this node has heard.
//!
//! Invariant: it is a hint and never a promise. Whoever is asked in vain says so, and is asked again
//! or not; a node that is alone keeps no such table and pays nothing for it.

use broker::{NodeNumber, PartitionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// See the module. Clones share one table: every thread of the node reads and writes it.
#[derive(Clone, Debug)]
pub struct Leaders {
    own: NodeNumber,
    /// By partition number; 0 where nobody is known to lead. Empty for a node that is alone.
    by_partition: Arc<[AtomicU32]>,
}

impl Leaders {
    /// For a node that leads whatever it has.
    pub fn alone(own: NodeNumber) -> Leaders {
        Leaders { own, by_partition: Arc::default() }
    }

    /// For a member of a cluster, over partitions up to this one.
    pub fn among_others(own: NodeNumber, last: PartitionId) -> Leaders {
        Leaders { own, by_partition: (0..=last.0).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Whether other nodes may lead something.
    #[inline]
    pub fn has_peers(&self) -> bool {
        !self.by_partition.is_empty()
    }

    /// This node.
    pub fn own(&self) -> NodeNumber {
        self.own
    }

    /// Who leads a partition; `None` if nobody is known to.
    pub fn leader(&self, partition: PartitionId) -> Option<NodeNumber> {
        let Some(found) = self.by_partition.get(partition.0 as usize) else {
            // What is in a node's memory is led by nobody else.
            return if self.has_peers() { partition.home() } else { Some(self.own) };
        };
        Some(NodeNumber(found.load(Ordering::Relaxed))).filter(|node| node.0 != 0)
    }

    /// The other node that leads a partition.
    #[inline]
    pub(crate) fn away(&self, partition: PartitionId) -> Option<NodeNumber> {
        if !self.has_peers() {
            return None;
        }
        let leader = match self.by_partition.get(partition.0 as usize) {
            Some(found) => Some(NodeNumber(found.load(Ordering::Relaxed))).filter(|node| node.0 != 0),
            None => partition.home(),
        };
        leader.filter(|node| *node != self.own)
    }

    /// A member says whom it follows.
    #[inline]
    pub fn note(&self, partition: PartitionId, leader: Option<NodeNumber>) {
        if let Some(known) = self.by_partition.get(partition.0 as usize) {
            let now = leader.map_or(0, |node| node.0);
            if known.load(Ordering::Relaxed) != now {
                known.store(now, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_alone_leads_all_and_a_member_what_it_heard() {
        let alone = Leaders::alone(NodeNumber(1));
        assert_eq!((alone.leader(PartitionId(7)), alone.away(PartitionId(7))), (Some(NodeNumber(1)), None));
        let leaders = Leaders::among_others(NodeNumber(2), PartitionId(3));
        assert_eq!((leaders.leader(PartitionId(3)), leaders.away(PartitionId(3))), (None, None));
        leaders.clone().note(PartitionId(3), Some(NodeNumber(1)));
        assert_eq!(leaders.away(PartitionId(3)), Some(NodeNumber(1)));
        leaders.note(PartitionId(3), Some(NodeNumber(2)));
        assert_eq!((leaders.leader(PartitionId(3)), leaders.away(PartitionId(3))), (Some(NodeNumber(2)), None));
        assert_eq!(leaders.leader(PartitionId(4)), None);
        let (here, there) = (PartitionId::in_memory(NodeNumber(2), 0), PartitionId::in_memory(NodeNumber(1), 0));
        assert_eq!((leaders.leader(here), leaders.away(here)), (Some(NodeNumber(2)), None));
        assert_eq!(leaders.away(there), Some(NodeNumber(1)));
    }
}

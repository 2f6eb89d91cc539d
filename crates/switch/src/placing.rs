//! Which of the partitions in which a new queue may live it lives in, by who leads them.
//!
//! Invariant: a partition whose leader can be reached goes before all others.

use broker::topology::{LeaderLocator, PlacedPartition, Placement};
use broker::{NodeNumber, PartitionId};
use std::collections::BTreeMap;

/// What a node knows of those who lead.
pub struct Placing<L, R> {
    /// This node.
    pub own: NodeNumber,
    /// Where leaders should be if neither the declare nor a policy says so.
    pub locator: LeaderLocator,
    /// Who leads a partition, as far as is known.
    pub leader: L,
    /// Whether a node can be reached.
    pub is_reached: R,
}

impl<L: Fn(PartitionId) -> Option<NodeNumber>, R: Fn(NodeNumber) -> bool> Placing<L, R> {
    /// The partition for the next queue, whose number is `turn`; `None` if it may live in none.
    pub fn choose(&self, placement: &Placement, turn: usize) -> Option<PartitionId> {
        let is_reached = |node: NodeNumber| node == self.own || (self.is_reached)(node);
        // What comes to be without a majority of its members is led by nobody.
        let can_begin = |placed: &PlacedPartition| {
            2 * placed.founders.iter().filter(|node| is_reached(**node)).count() > placed.founders.len()
        };
        let leader = |placed: &PlacedPartition| match placed.leads_first {
            Some(first) => Some(first).filter(|_| can_begin(placed)),
            None => (self.leader)(placed.partition),
        };
        let led: Vec<(PartitionId, NodeNumber)> = placement
            .among
            .iter()
            .filter_map(|placed| Some((placed.partition, leader(placed).filter(|node| is_reached(*node))?)))
            .collect();
        let among: Vec<PartitionId> = match placement.leader_locator.unwrap_or(self.locator) {
            _ if led.is_empty() => placement.among.iter().map(|placed| placed.partition).collect(),
            LeaderLocator::ClientLocal => {
                let here =
                    |(partition, leader): &(PartitionId, NodeNumber)| (*leader == self.own).then_some(*partition);
                let here: Vec<PartitionId> = led.iter().filter_map(here).collect();
                if here.is_empty() { led.into_iter().map(|(partition, _)| partition).collect() } else { here }
            }
            LeaderLocator::Balanced => self.least_loaded(placement, &led),
        };
        among.get(turn.checked_rem(among.len())?).copied()
    }

    /// Of the partitions of whoever leads the fewest queues those with the fewest.
    fn least_loaded(&self, placement: &Placement, led: &[(PartitionId, NodeNumber)]) -> Vec<PartitionId> {
        let mut loads: BTreeMap<NodeNumber, u32> = BTreeMap::new();
        for (partition, queues) in placement.queues.iter().filter(|(partition, _)| !partition.is_in_memory()) {
            if let Some(leader) = (self.leader)(*partition) {
                *loads.entry(leader).or_default() += queues;
            }
        }
        let load = |(partition, leader): &(PartitionId, NodeNumber)| {
            let of_leader = loads.get(leader).copied().unwrap_or(0);
            (of_leader, placement.queues.get(partition).copied().unwrap_or(0))
        };
        let least = led.iter().map(load).min();
        led.iter().filter(|one| Some(load(one)) == least).map(|(partition, _)| *partition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions with who leads them (0 is nobody) and how many queues live there, as node 1 chooses:
    /// who can be reached, and what is chosen in four turns.
    fn chosen(locator: Option<LeaderLocator>, known: &[(u32, u32)], reached: &[u32]) -> Vec<u32> {
        let ids = || (1..).map(PartitionId).zip(known);
        let placed = |(partition, _)| PlacedPartition::there(partition);
        let placement = Placement {
            in_memory: false,
            is_mapped: true,
            leader_locator: locator,
            among: ids().map(placed).collect(),
            queues: ids().filter(|(_, (_, queues))| *queues > 0).map(|(id, (_, queues))| (id, *queues)).collect(),
        };
        let placing = Placing {
            own: NodeNumber(1),
            locator: LeaderLocator::ClientLocal,
            leader: |id: PartitionId| Some(NodeNumber(known[id.0 as usize - 1].0)).filter(|node| node.0 > 0),
            is_reached: |node: NodeNumber| reached.contains(&node.0),
        };
        (0..4).filter_map(|turn| placing.choose(&placement, turn)).map(|id| id.0).collect()
    }

    #[test]
    fn a_queue_is_led_where_its_client_is_if_that_leads_anything() {
        assert_eq!(chosen(None, &[(1, 9), (2, 0), (1, 0)], &[2]), [1, 3, 1, 3], "each in its turn");
        assert_eq!(chosen(None, &[(3, 0), (2, 0), (0, 0)], &[2]), [2, 2, 2, 2], "who leads can be reached");
        assert_eq!(chosen(None, &[(3, 0), (0, 0)], &[]), [1, 2, 1, 2], "an election may be under way");
        assert_eq!(chosen(None, &[], &[2]), [], "there is none");
    }

    #[test]
    fn a_balanced_queue_is_led_by_who_leads_the_fewest() {
        let balanced = Some(LeaderLocator::Balanced);
        assert_eq!(chosen(balanced, &[(1, 2), (2, 0), (2, 1), (3, 3)], &[2, 3]), [2, 2, 2, 2], "2 leads 1 of 6");
        assert_eq!(chosen(balanced, &[(1, 2), (2, 0), (2, 1), (3, 0)], &[2]), [2, 2, 2, 2], "3 cannot be reached");
        assert_eq!(chosen(balanced, &[(1, 0), (2, 0), (3, 0)], &[2, 3]), [1, 2, 3, 1], "all alike");
    }

    #[test]
    fn what_comes_to_be_with_the_queue_is_led_first_by_one_of_its_founders() {
        let first = |partition, node, members: &[u32]| PlacedPartition {
            partition: PartitionId(partition),
            leads_first: Some(NodeNumber(node)),
            founders: members.iter().copied().map(NodeNumber).collect(),
        };
        let placement = Placement {
            in_memory: false,
            is_mapped: true,
            leader_locator: None,
            among: vec![first(7, 2, &[2, 3]), first(8, 1, &[1, 4]), first(9, 1, &[1, 2])],
            queues: BTreeMap::new(),
        };
        let chosen = |reached: &[u32]| {
            let placing = Placing {
                own: NodeNumber(1),
                locator: LeaderLocator::ClientLocal,
                leader: |_| None,
                is_reached: |node: NodeNumber| reached.contains(&node.0),
            };
            [0, 1].map(|turn| placing.choose(&placement, turn).map_or(0, |id| id.0))
        };
        assert_eq!(chosen(&[2, 3, 4]), [8, 9]);
        assert_eq!(chosen(&[2, 3]), [9, 9], "8 has no majority without 4");
        assert_eq!(chosen(&[]), [7, 8], "there is no better one");
    }
}

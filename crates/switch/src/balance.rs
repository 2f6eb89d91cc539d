//! Which partition of this node another one is to lead, so that all nodes lead about as many.
//!
//! Invariants: of a node's partitions one at most is to move at a time, so that what is counted is what
//! will be; nothing moves while a partition has no leader that is known; and what is even by one stays.

use broker::{NodeNumber, PartitionId};
use std::collections::BTreeMap;

/// A partition as the balance sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    /// Which.
    pub partition: PartitionId,
    /// Who leads it, as far as this node has heard.
    pub leader: Option<NodeNumber>,
    /// The nodes that could.
    pub members: Vec<NodeNumber>,
}

/// Who is to lead `partition` instead of `own`, if anybody is. `can_lead`: a node can be reached.
pub fn heir(
    own: NodeNumber,
    partition: PartitionId,
    all: &[Led],
    can_lead: impl Fn(NodeNumber) -> bool,
) -> Option<NodeNumber> {
    if all.iter().any(|led| led.leader.is_none()) {
        return None;
    }
    let mut counts: BTreeMap<NodeNumber, usize> = BTreeMap::new();
    all.iter().filter_map(|led| led.leader).for_each(|node| *counts.entry(node).or_default() += 1);
    let count = |node: NodeNumber| counts.get(&node).copied().unwrap_or(0);
    let counted = count(own);
    let heir_of = |led: &Led| {
        let others = led.members.iter().copied().filter(|node| *node != own && can_lead(*node));
        let heir = others.min_by_key(|node| (count(*node), *node))?;
        (count(heir) + 1 < counted).then_some((led.partition, heir))
    };
    // The one of the lowest number that another member is to have, so that no two are on their way.
    let mut led: Vec<&Led> = all.iter().filter(|led| led.leader == Some(own)).collect();
    led.sort_unstable_by_key(|led| led.partition);
    let (first, heir) = led.into_iter().find_map(heir_of)?;
    (first == partition).then_some(heir)
}

/// Who is to lead `partition` now that its leader is to lead nothing: one of these, so that what one node
/// led is spread over all others.
pub(crate) fn successor(partition: PartitionId, others: &[NodeNumber]) -> Option<NodeNumber> {
    let count = u32::try_from(others.len()).ok().filter(|count| *count > 0)?;
    Some(others[(partition.0 % count) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 3] = [1, 2, 3];

    fn led_by(leaders: &[u32]) -> Vec<Led> {
        let led = |(at, leader): (usize, &u32)| Led {
            partition: PartitionId(at as u32 + 1),
            leader: Some(NodeNumber(*leader)).filter(|leader| leader.0 != 0),
            members: ALL.map(NodeNumber).to_vec(),
        };
        leaders.iter().enumerate().map(led).collect()
    }

    fn heir_of(own: u32, partition: u32, leaders: &[u32], reached: &[u32]) -> Option<u32> {
        heir(NodeNumber(own), PartitionId(partition), &led_by(leaders), |node| reached.contains(&node.0)).map(|n| n.0)
    }

    #[test]
    fn who_leads_more_hands_one_to_who_leads_fewest() {
        assert_eq!(heir_of(1, 1, &[1, 1, 1, 2], &ALL), Some(3));
        assert_eq!(heir_of(1, 2, &[1, 1, 1, 2], &ALL), None, "one at a time");
        assert_eq!(heir_of(2, 4, &[1, 1, 1, 2], &ALL), None, "it has few itself");
        assert_eq!(heir_of(1, 1, &[1, 1, 1, 2], &[1, 2]), Some(2), "who cannot be reached leads nothing");
        assert_eq!(heir_of(1, 1, &[1, 1, 2, 3], &ALL), None, "as even as can be");
        assert_eq!(heir_of(1, 1, &[1, 1, 1, 0], &ALL), None, "one has no leader");
        assert_eq!(heir_of(1, 1, &[1, 1, 1, 2], &[1]), None, "nobody is there");
    }

    #[test]
    fn what_its_members_cannot_take_keeps_nothing_else_from_being_handed_over() {
        let mut all = led_by(&[1, 1, 1, 1, 2, 2, 3]);
        all[0].members = vec![NodeNumber(1)];
        all[1].members = vec![NodeNumber(1), NodeNumber(2)];
        let heirs = |all: &[Led]| {
            let heir = |id| heir(NodeNumber(1), PartitionId(id), all, |_| true).map(|node| node.0);
            [1, 2, 3, 4].map(heir)
        };
        assert_eq!(heirs(&all), [None, Some(2), None, None]);
        all[4].leader = Some(NodeNumber(3));
        all[1].members = vec![NodeNumber(1), NodeNumber(3)];
        assert_eq!(heirs(&all), [None, Some(3), None, None], "it leads two");
        all[6].leader = Some(NodeNumber(3));
        all[5].leader = Some(NodeNumber(3));
        assert_eq!(heirs(&all), [None, None, Some(2), None], "the second is passed over");
    }

    #[test]
    fn what_a_node_led_that_leads_nothing_any_more_is_spread_over_the_others() {
        let others = [2, 3].map(NodeNumber);
        let heirs: Vec<_> = (1..=4).filter_map(|id| successor(PartitionId(id), &others)).map(|node| node.0).collect();
        assert_eq!(heirs, [3, 2, 3, 2]);
        assert_eq!(successor(PartitionId(1), &[]), None, "it goes on leading");
    }

    /// Whoever moves first, and all at once, it comes to an end, and to an even one.
    #[test]
    fn all_nodes_together_come_to_an_even_spread() {
        for begin in 0..3_u32.pow(7) {
            let mut leaders: Vec<u32> = (0..7).map(|at| begin / 3_u32.pow(at) % 3 + 1).collect();
            for round in 0.. {
                assert!(round < 20, "it never ends: {leaders:?}");
                let moves: Vec<(usize, u32)> = ALL
                    .iter()
                    .flat_map(|own| (0..7).map(move |at| (*own, at)))
                    .filter(|(own, at)| leaders[*at] == *own)
                    .filter_map(|(own, at)| Some((at, heir_of(own, at as u32 + 1, &leaders, &ALL)?)))
                    .collect();
                if moves.is_empty() {
                    break;
                }
                moves.into_iter().for_each(|(at, heir)| leaders[at] = heir);
            }
            let counts = ALL.map(|node| leaders.iter().filter(|leader| **leader == node).count());
            assert!(counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0) <= 1, "{counts:?}");
        }
    }
}

//! Which groups are led and which copies keep up, as this node sees it at one moment: for metrics and
//! health checks, which ask no other node.
//!
//! Invariant: a leader counts only if it and a majority of its members can be reached from here. How far a copy is only its leader
//! says, so that each copy is counted by one node at most.

use crate::map::{Map, Place, RUNNING};
use broker::{NodeNumber, PartitionId};
use server::handle::{Follower, MemberStanding};

/// The group that decides about the topology.
pub(crate) const TOPOLOGY: PartitionId = PartitionId(0);
/// A member that is so many entries behind is only busy: members are not looked at in one moment.
pub(crate) const LAG_MAX: u64 = 1_000;

/// The role of a member that leads.
pub(crate) const LEADING: &str = "leader";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quorum {
    /// Groups without a leader that can be reached, or without a majority of their members; that of the topology is one of them.
    pub(crate) leaderless: Vec<PartitionId>,
    /// Copies of groups that this node leads which do not have what a majority has: their node is not
    /// reached, they are behind, they have no vote yet, or they have still to be begun.
    pub(crate) behind: u64,
    /// Groups of queues that this node leads without a member to spare.
    pub(crate) unspared: u64,
    /// Names of nodes that this one is not linked with.
    pub(crate) unreached: Vec<String>,
    /// It is linked with so many others that they are a majority with it.
    pub(crate) reaches_majority: bool,
}

impl Quorum {
    /// Of a node of a cluster. `leader` is who leads a partition of queues, as far as the node heard.
    pub(crate) fn of(
        map: &Map,
        leader: impl Fn(PartitionId) -> Option<NodeNumber>,
        standings: &[MemberStanding],
    ) -> Quorum {
        let is_reached = |number: NodeNumber| map.node(number).is_some_and(|member| member.is_reached);
        let of_topology = standings.iter().find(|standing| standing.partition == TOPOLOGY);
        let leads = of_topology.and_then(|standing| standing.leader).and_then(|number| map.node(number));
        let topology = Place { leader: leads.filter(|member| member.is_reached), ..map.everywhere() };
        let has_topology = topology.state() == RUNNING;
        // Who led before may not have noticed yet that the others are gone.
        let queues = map.missed().filter(|id| map.place(*id, leader(*id)).state() != RUNNING);
        let leaderless = (!has_topology).then_some(TOPOLOGY).into_iter().chain(queues).collect();
        let lacks = |follower: &Follower, commit: u64| {
            !is_reached(follower.node) || !follower.is_voter || follower.synced + LAG_MAX < commit
        };
        let behind = standings.iter().map(|standing| {
            let lacking = standing.followers.iter().filter(|follower| lacks(follower, standing.commit)).count();
            (lacking + unbegun(map, standing)) as u64
        });
        let is_unspared = |standing: &&MemberStanding| standing.is_unspared && standing.partition != TOPOLOGY;
        let unspared = standings.iter().filter(is_unspared).count() as u64;
        let unreached = map.nodes().filter(|member| !member.is_reached).map(|member| member.name.clone());
        let unreached: Vec<String> = unreached.collect();
        let reaches_majority = 2 * unreached.len() < map.nodes().count();
        Quorum { leaderless, behind: behind.sum(), unspared, unreached, reaches_majority }
    }

    /// Why some queues take nothing in and give nothing out, if that is so.
    pub(crate) fn without_leaders(&self) -> Option<String> {
        (!self.leaderless.is_empty()).then(|| match self.unreached[..] {
            [] => "partitions of the cluster have no leader now".to_owned(),
            ref names => format!(
                "partitions of the cluster have no leader that this node reaches: it waits for {}",
                names.join(", ")
            ),
        })
    }

    /// Why the cluster decides nothing for this node, if it does not.
    pub(crate) fn without_majority(&self) -> Option<String> {
        self.leaderless.contains(&TOPOLOGY).then(|| match self.unreached[..] {
            [] => "its cluster has no leader now".to_owned(),
            // Others may go on with a leader that is not linked with this node alone.
            ref names if self.reaches_majority => {
                format!("it reaches no leader of its cluster: it has no link to {}", names.join(", "))
            }
            ref names => format!("it reaches no majority of its cluster and waits for {}", names.join(", ")),
        })
    }
}

/// How many nodes are to have a copy of a group that this node leads and are no members of it yet: a group takes new ones in
/// one after the other.
fn unbegun(map: &Map, standing: &MemberStanding) -> usize {
    if standing.role != LEADING {
        return 0;
    }
    let is_follower = |number: NodeNumber| standing.followers.iter().any(|follower| follower.node == number);
    let wanted = map.members_of_group(standing.partition);
    wanted.iter().filter(|member| member.number != map.own && !is_follower(member.number)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(partition: u32, leader: Option<u32>, followers: Vec<Follower>) -> MemberStanding {
        MemberStanding {
            leader: leader.map(NodeNumber),
            commit: 5_000,
            followers,
            ..MemberStanding::damaged(PartitionId(partition))
        }
    }

    fn follower(node: u32, synced: u64, is_voter: bool) -> Follower {
        Follower { node: NodeNumber(node), synced, is_voter }
    }

    #[test]
    fn a_node_that_is_left_alone_says_whom_it_waits_for() {
        let map = Map::of_three([true, false, false]);
        // It has not noticed yet that it leads nothing, and others are only remembered.
        let alone = Quorum::of(&map, |_| Some(NodeNumber(3)), &[standing(0, Some(2), Vec::new())]);
        assert_eq!(alone.leaderless, [TOPOLOGY, PartitionId(7)]);
        let why = alone.without_majority().expect("nobody decides");
        assert_eq!(why, "it reaches no majority of its cluster and waits for n2, n3");
        let leads_on = Quorum::of(&map, |_| Some(NodeNumber(1)), &[standing(0, Some(1), Vec::new())]);
        assert_eq!(leads_on.leaderless, alone.leaderless, "it leads for as long as it has not noticed");
        let elects = Quorum::of(&Map::of_three([true; 3]), |_| None, &[standing(0, None, Vec::new())]);
        assert_eq!(elects.without_majority().as_deref(), Some("its cluster has no leader now"));
        let well = Quorum::of(&Map::of_three([true; 3]), |_| Some(NodeNumber(3)), &[standing(0, Some(2), Vec::new())]);
        assert_eq!((well.without_majority(), well), (None, Quorum { reaches_majority: true, ..Quorum::default() }));
        // One link of three is cut, and the leader is behind it.
        let map = Map::of_three([true, true, false]);
        let cut = Quorum::of(&map, |_| Some(NodeNumber(3)), &[standing(0, Some(3), Vec::new())]);
        let why = cut.without_majority().expect("it hears nothing of the leader");
        assert_eq!(why, "it reaches no leader of its cluster: it has no link to n3");
    }

    #[test]
    fn who_leads_counts_copies_that_are_gone_far_behind_or_without_a_vote() {
        let map = Map::of_three([true, true, false]);
        let behind = |followers| {
            let standings = [standing(0, Some(1), Vec::new()), standing(7, Some(1), followers)];
            Quorum::of(&map, |_| Some(NodeNumber(1)), &standings).behind
        };
        assert_eq!(behind(vec![follower(2, 4_999, true)]), 0);
        assert_eq!(behind(vec![follower(2, 3_999, true)]), 1);
        assert_eq!(behind(vec![follower(2, 5_000, false)]), 1);
        assert_eq!(behind(vec![follower(2, 5_000, true), follower(3, 5_000, true)]), 1, "its node is gone");
        assert_eq!(behind(vec![follower(9, 5_000, true)]), 1, "it was forgotten");
    }

    #[test]
    fn a_copy_that_is_wanted_and_not_begun_yet_is_counted_by_who_leads() {
        let behind = |role, partition, followers| {
            let standings = [MemberStanding { role, ..standing(partition, Some(1), followers) }];
            Quorum::of(&Map::of_three([true; 3]), |_| Some(NodeNumber(1)), &standings).behind
        };
        for partition in [0, 7] {
            assert_eq!(behind(LEADING, partition, vec![follower(2, 5_000, true), follower(3, 5_000, true)]), 0);
            assert_eq!(behind(LEADING, partition, vec![follower(2, 5_000, true)]), 1, "n3 waits for its turn");
            assert_eq!(behind(LEADING, partition, vec![follower(2, 5_000, false)]), 2, "n2 has no vote yet");
            assert_eq!(behind(LEADING, partition, Vec::new()), 2);
            assert_eq!(behind("follower", partition, Vec::new()), 0, "its leader counts them");
        }
        assert_eq!(behind(LEADING, 9, Vec::new()), 0, "nobody wants copies of what is no partition any more");
    }

    #[test]
    fn groups_of_queues_without_a_member_to_spare_are_counted_and_the_topology_s_always_syncs() {
        let unspared = |partition| MemberStanding { is_unspared: true, ..standing(partition, Some(1), Vec::new()) };
        let standings = [unspared(0), unspared(7), standing(8, Some(1), Vec::new())];
        assert_eq!(Quorum::of(&Map::of_three([true; 3]), |_| Some(NodeNumber(1)), &standings).unspared, 1);
    }
}

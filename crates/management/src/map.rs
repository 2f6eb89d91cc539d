//! Which nodes have a queue, which of them are there, and which leads it: as this node sees it at one
//! moment.
//!
//! Invariant: the words for the state of a queue are RabbitMQ's. `running` is said only of one whose
//! leader is known and can be reached.

use crate::quorum::TOPOLOGY;
use broker::topology::{PartitionStage, Topology};
use broker::{NodeNumber, PartitionId};
use server::Handle;
use server::handle::Member;
use std::collections::{BTreeMap, HashMap};

/// See the module.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) own: NodeNumber,
    nodes: BTreeMap<NodeNumber, Member>,
    /// The members of partitions that have any; the others are where the cluster is.
    members: HashMap<PartitionId, Vec<NodeNumber>>,
    /// The partitions that somebody misses while nobody leads them, in order.
    missed: Vec<PartitionId>,
}

/// RabbitMQ's word for a queue that is led, with a majority.
pub(crate) const RUNNING: &str = "running";

/// Where a queue is.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    /// Who leads it, if that is known and the node can be reached.
    pub(crate) leader: Option<&'a Member>,
    /// The nodes that have it.
    pub(crate) members: Vec<&'a Member>,
}

impl Map {
    pub(crate) fn of(handle: &Handle, topology: &Topology, members: Vec<Member>) -> Map {
        let serving = || topology.partitions().filter(|(_, partition)| partition.stage != PartitionStage::Retired);
        Map {
            own: handle.own_node(),
            nodes: members.into_iter().map(|member| (member.number, member)).collect(),
            missed: serving().map(|(id, _)| id).filter(|id| topology.is_missed(*id)).collect(),
            members: serving().map(|(id, partition)| (id, partition.members.clone())).collect(),
        }
    }

    /// The nodes that have a partition.
    pub(crate) fn members_of(&self, partition: PartitionId) -> Vec<&Member> {
        if let Some(home) = self.home(partition) {
            return self.nodes.get(&home).into_iter().collect();
        }
        match self.members.get(&partition) {
            Some(members) => members.iter().filter_map(|number| self.nodes.get(number)).collect(),
            // A folder from before there was a map.
            None => self.nodes.get(&self.own).into_iter().collect(),
        }
    }

    /// Where the members of a group are to be: of that of the topology on every node.
    pub(crate) fn members_of_group(&self, group: PartitionId) -> Vec<&Member> {
        if group == TOPOLOGY { self.everywhere().members } else { self.members_of(group) }
    }

    /// The node in whose memory a partition is; number 0 is this one, which is alone then.
    fn home(&self, partition: PartitionId) -> Option<NodeNumber> {
        partition.home().map(|home| if home == NodeNumber(0) { self.own } else { home })
    }

    /// The partitions that somebody misses while nobody leads them, in order.
    pub(crate) fn missed(&self) -> impl Iterator<Item = PartitionId> {
        self.missed.iter().copied()
    }

    /// All nodes, this one too.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Member> {
        self.nodes.values()
    }

    pub(crate) fn node(&self, number: NodeNumber) -> Option<&Member> {
        self.nodes.get(&number)
    }

    /// Where that is which every node has.
    pub(crate) fn everywhere(&self) -> Place<'_> {
        Place { leader: None, members: self.nodes.values().collect() }
    }

    /// Where the queues of a partition are, of which this node believes that `leader` leads it.
    pub(crate) fn place(&self, partition: PartitionId, leader: Option<NodeNumber>) -> Place<'_> {
        // Nobody is voted for what one node has in memory.
        let leader = self.home(partition).or(leader);
        let leader = leader.and_then(|number| self.nodes.get(&number)).filter(|member| member.is_reached);
        Place { leader, members: self.members_of(partition) }
    }
}

impl<'a> Place<'a> {
    pub(crate) fn online(&self) -> impl Iterator<Item = &'a Member> {
        self.members.iter().copied().filter(|member| member.is_reached)
    }

    /// RabbitMQ's word for how the queue is.
    pub(crate) fn state(&self) -> &'static str {
        let online = self.online().count();
        match self.leader {
            _ if online == 0 => "down",
            _ if online <= self.members.len() / 2 => "minority",
            Some(_) => RUNNING,
            None => "down",
        }
    }
}

/// The names of nodes, as lists have them.
pub(crate) fn names<'a>(members: impl IntoIterator<Item = &'a Member>) -> Vec<&'a str> {
    members.into_iter().map(|member| member.name.as_str()).collect()
}

#[cfg(test)]
impl Map {
    /// Nodes 1, 2 and 3 of which these are reached, as node 1 sees them; they all have partition 7.
    pub(crate) fn of_three(reached: [bool; 3]) -> Map {
        let member = |number: u32, is_reached| Member {
            number: NodeNumber(number),
            name: format!("n{number}"),
            address: String::new(),
            is_own: number == 1,
            is_reached,
        };
        let nodes = (1..=3).zip(reached).map(|(number, is_reached)| (NodeNumber(number), member(number, is_reached)));
        let three = vec![NodeNumber(1), NodeNumber(2), NodeNumber(3)];
        let (members, missed) = ([(PartitionId(7), three)].into(), vec![PartitionId(7)]);
        Map { own: NodeNumber(1), nodes: nodes.collect(), members, missed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_runs_while_its_leader_and_a_majority_are_there() {
        let state =
            |reached, leader: Option<u32>| Map::of_three(reached).place(PartitionId(7), leader.map(NodeNumber)).state();
        assert_eq!(state([true, true, true], Some(2)), "running");
        assert_eq!(state([true, true, false], Some(1)), "running");
        assert_eq!(state([true, true, false], Some(3)), "down", "the next leader is not known yet");
        assert_eq!(state([true, false, false], Some(1)), "minority", "it has not noticed yet");
        assert_eq!(state([true, false, false], None), "minority");
        assert_eq!(state([false, false, false], None), "down");
    }

    #[test]
    fn what_is_in_the_memory_of_a_node_is_there_alone() {
        let map = Map::of_three([true, true, false]);
        let [second, third] = [2, 3].map(|node| PartitionId::in_memory(NodeNumber(node), 0));
        let of = |partition: PartitionId| {
            let place = map.place(partition, partition.home());
            (names(place.members.iter().copied()), place.state())
        };
        assert_eq!((of(second), of(third)), ((vec!["n2"], "running"), (vec!["n3"], "down")));
        // A node that is alone names no home.
        let own = map.place(PartitionId::in_memory(NodeNumber(0), 1), None);
        assert_eq!((names(own.members.iter().copied()), own.state()), (vec!["n1"], "running"));
    }
}

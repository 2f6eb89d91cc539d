//! What a node of a cluster has decided before it serves anybody: its place in the map, what the map
//! lacks of the cluster itself, and that what it had in memory before it started is gone.
//!
//! Invariant: each is decided before the next is asked for, and the first is asked for whether it says
//! anything new or not. So once all of it is decided, all that was decided before this node started is
//! carried out here.

use broker::NodeNumber;
use broker::topology::{ClusterMember, Command as Change, MachineVersions, NodeStanding, Topology};
use storage::ClusterRecord;

/// How far a node has come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Nodes,
    Memory,
    Done,
}

/// See the module.
#[derive(Debug)]
pub struct Announcing {
    own: NodeNumber,
    name: String,
    address: String,
    can: MachineVersions,
    record: ClusterRecord,
    /// What it said of itself last.
    announced: Option<Change>,
    is_said_again: bool,
    stage: Stage,
}

impl Announcing {
    /// Nothing is said yet by the node of this number, name and address, which began with `record` and is
    /// set to have so many `partitions`.
    pub fn new(
        own: NodeNumber,
        (name, address): (&str, &str),
        can: MachineVersions,
        record: ClusterRecord,
        partitions: u32,
    ) -> Announcing {
        let (name, address) = (name.to_owned(), address.to_owned());
        let record = ClusterRecord { partitions: partitions.min(record.partitions), ..record };
        Announcing { own, name, address, can, record, announced: None, is_said_again: false, stage: Stage::Nodes }
    }

    /// What is to be decided next, by the topology as it is here now that what was given before is decided,
    /// whichever way. `None`: that was all.
    pub fn next(&mut self, topology: &Topology) -> Option<Change> {
        if self.stage == Stage::Nodes {
            if let Some(change) = self.next_of_nodes(topology) {
                return Some(change);
            }
            self.stage = Stage::Memory;
        }
        if self.stage == Stage::Memory {
            self.stage = Stage::Done;
            return topology.own_home().map(Change::EndHome);
        }
        None
    }

    fn next_of_nodes(&mut self, topology: &Topology) -> Option<Change> {
        let founders = self.record.founders.iter();
        let members: Vec<ClusterMember<'_>> = founders
            .map(|founder| {
                let number = NodeNumber(founder.number);
                let address = if number == self.own { &self.address } else { &founder.address };
                ClusterMember { number, address }
            })
            .collect();
        let unknown = if self.record.joined.is_some() { NodeStanding::Joining } else { NodeStanding::Member };
        // It may have gone further meanwhile than was known here.
        let now = topology.announcement_of(self.own, (&self.name, self.can), &members, unknown);
        if self.announced.replace(now.clone()).as_ref() != Some(&now) {
            return Some(now);
        }
        let map = match self.record.joined {
            Some(_) => topology.raise_for(topology.present_nodes().map(|(number, _)| number)).into_iter().collect(),
            None => topology.commands_of_founders(&members, self.can, self.record.partitions),
        };
        if let Some(change) = map.into_iter().next() {
            return Some(change);
        }
        // Another founder, which knows its address alone, may have put it in the map meanwhile.
        let is_named = topology.node(self.own).is_some_and(|node| *node.name == *self.name.as_bytes());
        (!is_named && !std::mem::replace(&mut self.is_said_again, true)).then_some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::PartitionId;
    use broker::topology::{MACHINE_VERSION, NodeChange};
    use storage::Founder;

    const CAN: MachineVersions = MachineVersions { topology: MACHINE_VERSION, queues: 1 };

    fn record(joined: Option<u128>, numbers: std::ops::RangeInclusive<u32>) -> ClusterRecord {
        let founder = |number: u32| Founder { number, folder_id: number.into(), address: format!("host{number}:1") };
        ClusterRecord { joined, partitions: 2, founders: numbers.map(founder).collect(), before: Vec::new() }
    }

    fn announcing(own: u32, record: ClusterRecord) -> Announcing {
        Announcing::new(NodeNumber(own), (&format!("n{own}"), &format!("host{own}:1")), CAN, record, 2)
    }

    /// Has all of it decided, and counts how much that was.
    fn say_all(announcing: &mut Announcing, topology: &mut Topology) -> usize {
        let mut count = 0;
        while let Some(change) = announcing.next(topology) {
            // A refusal is an answer, too.
            let _ = topology.apply(&change);
            count += 1;
            assert!(count < 20, "it comes to an end");
        }
        count
    }

    #[test]
    fn founders_put_up_the_map_and_whoever_starts_again_says_one_thing_at_least() {
        let mut topology = Topology::new();
        say_all(&mut announcing(1, record(None, 1..=3)), &mut topology);
        assert_eq!(topology.present_nodes().count(), 3);
        assert_eq!(topology.machine_version(), MACHINE_VERSION);
        assert_eq!(topology.members_wanted(PartitionId(2)), [1, 2, 3].map(NodeNumber));
        assert_eq!(*topology.node(NodeNumber(1)).expect("it was put").name, *b"n1");
        say_all(&mut announcing(2, record(None, 1..=3)), &mut topology);
        assert_eq!(*topology.node(NodeNumber(2)).expect("it was put").name, *b"n2");
        assert_eq!(say_all(&mut announcing(2, record(None, 1..=3)), &mut topology), 1);
        topology.set_own_home(Some(NodeNumber(2)));
        assert_eq!(say_all(&mut announcing(2, record(None, 1..=3)), &mut topology), 2, "its memory is gone, too");
    }

    #[test]
    fn who_joined_founds_nothing_and_stays_what_it_has_become() {
        let mut topology = Topology::new();
        say_all(&mut announcing(1, record(None, 1..=1)), &mut topology);
        let newcomer = broker::topology::Newcomer { folder: 2, name: "n2".into(), address: "host2:1".into(), can: CAN };
        let _ = topology.apply(&Change::ChangeNodes(NodeChange::Join(newcomer)));
        say_all(&mut announcing(2, record(Some(7), 1..=2)), &mut topology);
        assert_eq!(topology.node(NodeNumber(2)).expect("it was put").standing, NodeStanding::Joining);
        let standing = topology.next_standing(&[1, 2].map(NodeNumber)).expect("it has a vote");
        let _ = topology.apply(&standing);
        say_all(&mut announcing(2, record(Some(7), 1..=2)), &mut topology);
        assert_eq!(topology.node(NodeNumber(2)).expect("it was put").standing, NodeStanding::Member);
        assert_eq!(topology.members_wanted(PartitionId(1)), [1, 2].map(NodeNumber));
    }
}

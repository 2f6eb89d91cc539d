//! A cluster whose nodes are given up but for one, which goes on alone: what its map says then.
//!
//! No command does that: a majority that could decide it is what the cluster lacks. A tool makes the state so,
//! offline, and the node that goes on starts with it.
//!
//! Invariants: what is gone keeps its record, so its number is never given out again; every partition that a queue
//! lives in has that node as its only member, and is filled up as nodes join.

use super::cluster::{NodeStanding, PartitionStage};
use super::{Home, Topology};
use crate::ids::{NodeNumber, PartitionId, QueueId};
use std::collections::BTreeSet;

impl Topology {
    /// Node `own` is the only one from now on, and has copies of the partitions of `kept`. Returns those that begin
    /// anew there. Of others in which no queue lives, those that pools of fewer copies than nodes made for
    /// themselves are retired: they come to be again with the next queue.
    ///
    /// What lived in the memory of other nodes is gone with them.
    pub fn go_on_alone(&mut self, own: NodeNumber, kept: &BTreeSet<PartitionId>) -> Vec<PartitionId> {
        let homes: Vec<Home> = self.queues.by_home().keys().filter(|home| home.node != own).copied().collect();
        // Nobody hears of it: the node that goes on has not started yet.
        let effects = &mut Vec::new();
        homes.into_iter().for_each(|home| self.end_home(home, effects));
        for (number, node) in &mut self.cluster.nodes {
            node.standing = if *number == own { NodeStanding::Member } else { NodeStanding::Gone };
        }
        self.cluster.lives.retain(|(_, node), _| *node == own);
        let (mut anew, mut unused) = (Vec::new(), Vec::new());
        let there = self.cluster.partitions.iter().filter(|(_, put)| put.stage != PartitionStage::Retired);
        for id in there.map(|(id, _)| *id) {
            match kept.contains(&id) {
                true => {}
                false if self.founders_of(id).is_some() && self.queues_in(id) == 0 => unused.push(id),
                false => anew.push(id),
            }
        }
        for (id, put) in &mut self.cluster.partitions {
            match put.stage {
                PartitionStage::Retired => {}
                _ if unused.contains(id) => (put.members, put.stage) = (Vec::new(), PartitionStage::Retired),
                _ => put.members = vec![own],
            }
        }
        for id in unused {
            self.cluster.founders.remove(&id);
            self.cluster.copies.remove(&id);
        }
        self.version += 1;
        anew
    }

    /// The id that the next queue gets which all nodes know.
    pub fn next_queue_id(&self) -> QueueId {
        QueueId(self.queue_next)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{ClusterMember, MACHINE_VERSION, MachineVersions, VhostId};
    use super::super::{Command, CopyChange, DeclareQueue, NODES_MAX, Name, Newcomer, NodeChange};
    use super::*;
    use amqp::{Table, Value};
    use bytes::Bytes;

    const CAN: MachineVersions = MachineVersions { topology: MACHINE_VERSION, queues: 1 };

    fn done(topology: &mut Topology, command: &Command) {
        topology.apply(command).outcome.unwrap();
    }

    fn declare(topology: &mut Topology, name: &str, copies: Option<i64>, home: Option<NodeNumber>) -> PartitionId {
        let mut arguments = Table::new();
        if let Some(copies) = copies {
            arguments.push(Bytes::from_static(b"x-queue-type"), Value::LongString(Bytes::from_static(b"quorum")));
            arguments.push(Bytes::from_static(b"x-quorum-initial-group-size"), Value::I64(copies));
        }
        let partition = home.map_or(PartitionId(1), |node| PartitionId::in_memory(node, 0));
        let home = home.map(|node| Home { node, era: 0 });
        let declare = DeclareQueue {
            vhost: VhostId(0),
            name: Name::from(name),
            durable: home.is_none(),
            exclusive: None,
            auto_delete: false,
            arguments,
            partition,
            home,
        };
        done(topology, &Command::DeclareQueue(declare));
        topology.find_queue(VhostId(0), &Name::from(name)).unwrap().partition
    }

    /// Five nodes, two partitions that all of them have, a queue with one copy and one with three, and queues in the
    /// memory of two nodes.
    fn five() -> (Topology, PartitionId, PartitionId) {
        let mut topology = Topology::new();
        topology.set_own_home(Some(NodeNumber(3)));
        let addresses: Vec<String> = (1..=5).map(|number| format!("host{number}:1")).collect();
        let members = addresses
            .iter()
            .enumerate()
            .map(|(at, address)| ClusterMember { number: NodeNumber(at as u32 + 1), address });
        let members: Vec<_> = members.collect();
        topology.commands_of_founders(&members, CAN, 2).iter().for_each(|command| done(&mut topology, command));
        let raise = topology.raise_for((1..=5).map(NodeNumber)).unwrap();
        done(&mut topology, &raise);
        declare(&mut topology, "everywhere", Some(5), None);
        let sole = declare(&mut topology, "one copy", Some(1), None);
        let some = declare(&mut topology, "three copies", Some(3), None);
        declare(&mut topology, "in memory of 1", None, Some(NodeNumber(1)));
        declare(&mut topology, "in memory of 3", None, Some(NodeNumber(3)));
        (topology, sole, some)
    }

    #[test]
    fn the_one_that_goes_on_is_the_only_member_of_all_and_nobody_comes_back() {
        let (mut topology, sole, some) = five();
        let own = NodeNumber(3);
        assert_eq!(topology.members_wanted(sole), [NodeNumber(1)], "it is on a node that is given up");
        let other = *topology.members_wanted(some).iter().find(|member| **member != own).unwrap();
        done(&mut topology, &Command::ChangeCopies(CopyChange::Take { partition: some, node: own }));
        done(&mut topology, &Command::ChangeCopies(CopyChange::Take { partition: some, node: other }));
        done(&mut topology, &Command::ChangeCopies(CopyChange::Give { partition: some, node: own }));
        let kept = [PartitionId(1), PartitionId(2), some].into();
        assert_eq!(topology.go_on_alone(own, &kept), [sole]);
        let known: Vec<_> = topology.present_nodes().map(|(number, _)| number).collect();
        assert_eq!((known, topology.nodes().count()), (vec![own], 5));
        for partition in [PartitionId(1), PartitionId(2), sole, some] {
            assert_eq!(topology.members_wanted(partition), [own]);
        }
        assert_eq!(topology.lives_wanted(some), [(own, 1)], "its own life is what it was");
        let serving = topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Serving);
        let unused = topology.queues().filter(|queue| queue.home.is_none()).count();
        assert_eq!(serving.count(), 2 + 2, "what no queue was in and nothing is left of is retired");
        assert_eq!(unused, 3);
        let names: BTreeSet<String> = topology.queues().map(|queue| queue.name.to_string()).collect();
        assert!(names.contains("in memory of 3") && !names.contains("in memory of 1"), "{names:?}");
        assert_eq!(topology.next_queue_id(), QueueId(6));
    }

    #[test]
    fn its_state_can_be_read_and_grows_as_nodes_join() {
        let (mut topology, sole, some) = five();
        let own = NodeNumber(3);
        topology.go_on_alone(own, &[PartitionId(1), PartitionId(2), some].into());
        let state = topology.encode_snapshot();
        let mut read = Topology::decode_snapshot(&state).unwrap();
        assert_eq!(read.encode_snapshot(), state);
        for number in 6..=7 {
            let (name, address) =
                (Name::from(format!("n{number}").as_str()), Name::from(format!("h{number}:1").as_str()));
            let newcomer = Newcomer { folder: number.into(), name, address, can: CAN };
            done(&mut read, &Command::ChangeNodes(NodeChange::Join(newcomer)));
            let voters: Vec<_> = [own].into_iter().chain((6..=number).map(NodeNumber)).collect();
            let standing = read.next_standing(&voters).unwrap();
            done(&mut read, &standing);
        }
        let all = [3, 6, 7].map(NodeNumber);
        assert_eq!(read.members_wanted(PartitionId(1)), all, "no number is given out twice");
        assert_eq!(read.members_wanted(some), all);
        assert_eq!(read.members_wanted(sole), [own], "it asked for one copy");
        assert!(read.present_nodes().count() <= NODES_MAX);
    }
}

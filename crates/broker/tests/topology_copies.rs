//! Copies of partitions that are given to nodes and taken from them.
//!
//! Invariants that hold whatever is given and taken: a partition has one member at least; who comes back does so
//! in another life; a snapshot says all of it.
#![allow(clippy::unwrap_used)]

mod cluster;

use amqp::{Table, Value};
use broker::topology::{
    Applied, Command, CommandReply, CopyChange, DeclareQueue, Effect, MACHINE_VERSION, Name, NodeChange, Topology,
};
use broker::{NodeNumber, PartitionId, VhostId};
use cluster::cluster;

/// Declares a quorum queue, and gives the partition in which it lives.
fn declare(topology: &mut Topology, name: &str, size: Option<i32>, dedicated: bool) -> PartitionId {
    let mut arguments = Table::new();
    arguments.push("x-queue-type", Value::LongString("quorum".into()));
    size.into_iter().for_each(|size| arguments.push("x-quorum-initial-group-size", Value::I32(size)));
    if dedicated {
        arguments.push("x-dedicated-partition", Value::Bool(true));
    }
    let declare = DeclareQueue {
        vhost: VhostId(0),
        name: Name::from(name),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments,
        partition: PartitionId(1),
        home: None,
    };
    topology.apply(&Command::DeclareQueue(declare)).outcome.unwrap();
    topology.find_queue(VhostId(0), name.as_bytes()).unwrap().partition
}

fn take(topology: &mut Topology, partition: PartitionId, node: NodeNumber) -> Applied {
    topology.apply(&Command::ChangeCopies(CopyChange::Take { partition, node }))
}

fn give(topology: &mut Topology, partition: PartitionId, node: NodeNumber) -> Applied {
    topology.apply(&Command::ChangeCopies(CopyChange::Give { partition, node }))
}

fn comes_back(topology: &Topology) {
    let bytes = topology.encode_snapshot();
    let read = Topology::decode_snapshot(&bytes).unwrap();
    assert_eq!(read.encode_snapshot(), bytes);
}

#[test]
fn a_copy_that_is_taken_ends_for_good_and_who_gets_one_again_is_another_member() {
    let mut topology = cluster(5, MACHINE_VERSION);
    let partition = declare(&mut topology, "q", Some(3), false);
    let members = topology.members_wanted(partition);
    let node = members[1];
    assert!(!topology.is_to_leave(partition, node, 0));
    let taken = take(&mut topology, partition, node);
    assert_eq!((taken.outcome, taken.effects), (Ok(CommandReply::Done), vec![Effect::MembersChanged { partition }]));
    assert_eq!(topology.members_wanted(partition), [members[0], members[2]]);
    assert!(topology.is_to_leave(partition, node, 0) && !topology.is_to_leave(partition, node, 1));
    comes_back(&topology);
    let again = take(&mut topology, partition, node);
    assert!(again.outcome.is_ok() && again.effects.is_empty(), "it has none");
    assert_eq!(topology.life_in(partition, node), 1, "it left once");
    give(&mut topology, partition, node).outcome.unwrap();
    assert!(give(&mut topology, partition, node).effects.is_empty(), "it has one");
    assert_eq!(topology.lives_wanted(partition), [(members[0], 0), (node, 1), (members[2], 0)]);
    comes_back(&topology);
    take(&mut topology, partition, members[0]).outcome.unwrap();
    take(&mut topology, partition, members[2]).outcome.unwrap();
    let text = take(&mut topology, partition, node).outcome.unwrap_err().text.to_string();
    assert!(text.contains("has its only copy there"), "{text}");
    for wrong in [
        CopyChange::Give { partition, node: NodeNumber(9) },
        CopyChange::Give { partition: PartitionId(99), node },
        CopyChange::Take { partition: PartitionId(0), node },
    ] {
        let before = topology.encode_snapshot();
        assert!(topology.apply(&Command::ChangeCopies(wrong)).outcome.is_err(), "{wrong:?}");
        assert_eq!(topology.encode_snapshot(), before);
    }
}

#[test]
fn commands_are_read_as_they_were_written_and_wait_for_a_version_that_all_know() {
    let (partition, node) = (PartitionId(300), NodeNumber(4));
    for change in [CopyChange::Take { partition, node }, CopyChange::Give { partition, node }] {
        let command = Command::ChangeCopies(change);
        assert_eq!(Command::decode(&command.encode()).unwrap(), command);
    }
    let mut topology = cluster(3, 9);
    let refused = take(&mut topology, PartitionId(1), NodeNumber(3)).outcome.unwrap_err();
    assert!(refused.text.contains("once every node of the cluster runs a leveret that can do it"));
    assert!(!topology.moves_copies());
}

#[test]
fn who_fills_places_goes_by_what_was_given_and_taken() {
    let mut topology = cluster(5, MACHINE_VERSION);
    let partition = declare(&mut topology, "q", Some(3), false);
    let members = topology.members_wanted(partition);
    take(&mut topology, partition, members[0]).outcome.unwrap();
    topology.apply(&Command::ChangeNodes(NodeChange::Forget(members[1]))).outcome.unwrap();
    let after = topology.members_wanted(partition);
    assert_eq!(after.len(), 2, "as many as before");
    assert!(!after.contains(&members[0]), "who had it taken gets it back last: {after:?}");
    comes_back(&topology);
    give(&mut topology, partition, members[0]).outcome.unwrap();
    let other = topology.members_wanted(partition).into_iter().find(|node| *node != members[0]).unwrap();
    topology.apply(&Command::ChangeNodes(NodeChange::Forget(other))).outcome.unwrap();
    assert_eq!(topology.members_wanted(partition).len(), 3, "and as many as its pool has");
    comes_back(&topology);
}

#[test]
fn new_queues_have_as_many_copies_as_they_ask_for() {
    let mut topology = cluster(5, MACHINE_VERSION);
    let first = declare(&mut topology, "first", Some(3), false);
    let node = topology.members_wanted(first)[0];
    take(&mut topology, first, node).outcome.unwrap();
    for at in 0..30 {
        let partition = declare(&mut topology, &format!("q{at}"), Some(3), false);
        assert_eq!(topology.members_wanted(partition).len(), 3, "queue {at} in partition {}", partition.0);
    }
    assert_eq!(topology.members_wanted(first).len(), 2, "what was there stays as it was wanted");
    // One that nobody lives in has all of its copies again with the next queue.
    let own = declare(&mut topology, "own", Some(3), true);
    let node = topology.members_wanted(own)[0];
    take(&mut topology, own, node).outcome.unwrap();
    let queue = topology.find_queue(VhostId(0), b"own").unwrap().id;
    let delete = broker::topology::DeleteQueue { queue, keep: Vec::new() };
    topology.apply(&Command::DeleteQueue(delete)).outcome.unwrap();
    assert_eq!(declare(&mut topology, "next", Some(3), true), own);
    assert_eq!(topology.members_wanted(own).len(), 3);
    comes_back(&topology);
}

#[test]
fn where_no_partition_is_on_all_nodes_any_more_new_quorum_queues_have_others() {
    let mut topology = cluster(3, MACHINE_VERSION);
    let old = declare(&mut topology, "old", None, false);
    assert_eq!(old, PartitionId(1));
    take(&mut topology, PartitionId(1), NodeNumber(3)).outcome.unwrap();
    let new = declare(&mut topology, "new", None, false);
    assert_eq!(new, PartitionId(2), "one that is on all nodes is left");
    take(&mut topology, PartitionId(2), NodeNumber(3)).outcome.unwrap();
    let newest = declare(&mut topology, "newest", None, false);
    assert!(newest.0 > 2, "a pool of that size came to be");
    assert_eq!(topology.members_wanted(newest).len(), 3);
    assert_eq!(topology.members_wanted(old), [1, 2].map(NodeNumber));
    comes_back(&topology);
    // Node 3 is scrapped: what it had is on all nodes now.
    topology.apply(&Command::ChangeNodes(NodeChange::Forget(NodeNumber(3)))).outcome.unwrap();
    assert!(declare(&mut topology, "last", None, false).0 <= 2);
    comes_back(&topology);
}

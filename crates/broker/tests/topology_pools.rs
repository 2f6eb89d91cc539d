//! Pools of partitions with fewer copies than the cluster has nodes.
//!
//! Invariants that hold whatever comes and goes: every partition of such a pool has as many members as
//! its queues ask for, as far as there are nodes; they are spread evenly; and who was a member and is
//! none any more is gone, so that nobody comes to a group twice.
#![allow(clippy::unwrap_used)]

mod cluster;

use amqp::{Table, Value};
use broker::topology::{
    Actor, ApplyTo, Command, CommandReply, CopyChange, DEDICATED_PARTITIONS_MAX, DeclareQueue, DeleteQueue, Effect,
    LeaderLocator, MACHINE_VERSION, Name, Newcomer, NodeChange, POOL_PARTITIONS, PartitionStage, Pattern,
    PlacedPartition, Placement, Policy, PoolPartition, PutPolicy, Queue, QueueDeclare, QueueDeclared, Refusal,
    Topology,
};
use broker::{NodeNumber, PartitionId, VhostId};
use cluster::{CAN, cluster};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn arguments(size: Option<i32>) -> Table {
    let mut table = Table::new();
    table.push("x-queue-type", Value::LongString("quorum".into()));
    size.into_iter().for_each(|size| table.push("x-quorum-initial-group-size", Value::I32(size)));
    table
}

fn declare(name: &str, size: Option<i32>, partition: u32) -> Command {
    declare_with(name, arguments(size), partition)
}

/// A declare of a queue that wants a partition of its own.
fn dedicated(name: &str, size: Option<i32>, partition: u32) -> Command {
    let mut arguments = arguments(size);
    arguments.push("x-dedicated-partition", Value::Bool(true));
    declare_with(name, arguments, partition)
}

fn declare_with(name: &str, arguments: Table, partition: u32) -> Command {
    Command::DeclareQueue(DeclareQueue {
        vhost: VhostId(0),
        name: Name::from(name),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments,
        partition: PartitionId(partition),
        home: None,
    })
}

fn forget(number: u32) -> Command {
    Command::ChangeNodes(NodeChange::Forget(NodeNumber(number)))
}

/// A node joins and is a member; gives its number.
fn join(topology: &mut Topology, folder: u128) -> Option<NodeNumber> {
    let (name, address) = (format!("new-{folder}@host"), format!("new-{folder}:1"));
    let (name, address) = (Name::from(name.as_str()), Name::from(address.as_str()));
    let newcomer = Newcomer { folder, name, address, can: CAN };
    let _ = topology.apply(&Command::ChangeNodes(NodeChange::Join(newcomer))).outcome.ok()?;
    let all: Vec<NodeNumber> = topology.nodes().map(|(number, _)| number).collect();
    if let Some(joined) = topology.next_standing(&all) {
        topology.apply(&joined).outcome.unwrap();
    }
    topology.joined_with(folder)
}

/// The partition in which a queue of this name lives.
fn partition_of(topology: &Topology, name: &str) -> PartitionId {
    topology.find_queue(VhostId(0), name.as_bytes()).unwrap().partition
}

fn copies_of(topology: &Topology, name: &str) -> usize {
    topology.members_wanted(partition_of(topology, name)).len()
}

/// The partitions of small pools, with their members.
fn small(topology: &Topology) -> BTreeMap<PartitionId, Vec<NodeNumber>> {
    let is_small = |(id, put): (PartitionId, &PoolPartition)| {
        topology.founders_of(id).is_some().then(|| (id, put.members.clone()))
    };
    topology.partitions().filter_map(is_small).collect()
}

/// How many copies of these each node has.
fn held(topology: &Topology) -> BTreeMap<NodeNumber, usize> {
    let all = small(topology);
    let count = |node| all.values().filter(|members| members.contains(&node)).count();
    topology.present_nodes().map(|(node, _)| (node, count(node))).collect()
}

#[test]
fn the_first_queue_of_a_size_brings_a_pool_that_is_spread_over_all_nodes() {
    let mut topology = cluster(5, MACHINE_VERSION);
    let applied = topology.apply(&declare("q", Some(3), 0));
    let CommandReply::Queue { created: true, .. } = applied.outcome.unwrap() else { panic!() };
    let made = applied.effects.iter().filter(|effect| matches!(effect, Effect::MembersChanged { .. })).count();
    assert_eq!(made as u32, POOL_PARTITIONS);
    assert!(matches!(applied.effects.last(), Some(Effect::QueueCreated { .. })), "their places come before it");
    let all = small(&topology);
    assert_eq!(all.len() as u32, POOL_PARTITIONS);
    for (id, members) in &all {
        assert_eq!((members.len(), topology.founders_of(*id)), (3, Some(&members[..])));
    }
    let loads: BTreeSet<usize> = held(&topology).into_values().collect();
    assert_eq!(loads, BTreeSet::from([7, 8]), "36 copies on 5 nodes");
    let leaders: Vec<_> = all.keys().filter_map(|id| topology.leads_first(*id)).collect();
    let leads = |node| leaders.iter().filter(|leader| **leader == NodeNumber(node)).count();
    assert_eq!([1, 2, 3, 4, 5].map(leads), [3, 2, 2, 3, 2], "each leads as many");
    assert_eq!(copies_of(&topology, "q"), 3);
    let missed: Vec<_> = topology.partitions().map(|(id, _)| id).filter(|id| topology.is_missed(*id)).collect();
    assert_eq!(missed, [PartitionId(1), PartitionId(2), partition_of(&topology, "q")], "nobody needs the others yet");

    let snapshot = topology.encode_snapshot();
    assert_eq!((&snapshot[..5], u32::from(snapshot[5])), (&b"LVTO\x08"[..], MACHINE_VERSION));
    let read = Topology::decode_snapshot(&snapshot).unwrap();
    assert_eq!((read.encode_snapshot(), small(&read)), (snapshot.clone(), all));
    // A node that fell behind hears which members there are.
    let mut behind = cluster(5, MACHINE_VERSION);
    let effects = behind.install_snapshot(&snapshot).unwrap();
    let places = effects.iter().position(|effect| matches!(effect, Effect::QueueCreated { .. })).unwrap();
    assert!(effects[..places].iter().any(|effect| matches!(effect, Effect::MembersChanged { .. })), "{effects:?}");

    let pools = topology.pools().count();
    topology.apply(&declare("r", Some(3), 1)).outcome.unwrap();
    assert_eq!((topology.pools().count(), small(&topology).len() as u32), (pools, POOL_PARTITIONS));
    assert_ne!(partition_of(&topology, "q"), partition_of(&topology, "r"), "each where the fewest are");
    let asked = partition_of(&topology, "q");
    topology.apply(&declare("s", Some(3), asked.0)).outcome.unwrap();
    assert_eq!(partition_of(&topology, "s"), asked, "where it was asked for");
    topology.apply(&declare("two", Some(2), asked.0)).outcome.unwrap();
    assert_eq!(copies_of(&topology, "two"), 2);
}

#[test]
fn a_queue_has_as_many_copies_as_it_or_its_policy_asks_for_three_by_default_and_never_more_than_nodes() {
    let mut topology = cluster(5, MACHINE_VERSION);
    for (name, size, copies) in
        [("default", None, 3), ("one", Some(1), 1), ("four", Some(4), 4), ("five", Some(5), 5), ("nine", Some(9), 5)]
    {
        topology.apply(&declare(name, size, 1)).outcome.unwrap();
        assert_eq!(copies_of(&topology, name), copies, "{name}");
    }
    let mut definition = Table::new();
    definition.push("target-group-size", Value::I32(4));
    let policy = Policy { pattern: Pattern::new("^p").unwrap(), apply_to: ApplyTo::Queues, priority: 0, definition };
    let put = PutPolicy { vhost: VhostId(0), operator: true, name: Name::from("four"), policy };
    topology.apply(&Command::PutPolicy(put)).outcome.unwrap();
    for (name, size, copies) in [("p", None, 4), ("p1", Some(1), 4), ("p5", Some(5), 5)] {
        topology.apply(&declare(name, size, 1)).outcome.unwrap();
        assert_eq!(copies_of(&topology, name), copies, "of initial and target size the larger: {name}");
    }

    let mut three = cluster(3, MACHINE_VERSION);
    three.apply(&declare("default", None, 2)).outcome.unwrap();
    assert_eq!(partition_of(&three, "default"), PartitionId(2));
    let mut old = cluster(5, 4);
    old.apply(&declare("three", Some(3), 2)).outcome.unwrap();
    assert_eq!(partition_of(&old, "three"), PartitionId(2), "builds before had copies on all nodes");
    assert_eq!(small(&old), BTreeMap::new());
}

#[test]
fn a_durable_classic_queue_of_a_cluster_lives_on_one_node_and_answers_nothing_while_that_is_away() {
    let classic = |name, partition| declare_with(name, Table::new(), partition);
    let mut topology = cluster(3, MACHINE_VERSION);
    for name in ["a", "b", "c"] {
        topology.apply(&classic(name, 2)).outcome.unwrap();
        assert_eq!(copies_of(&topology, name), 1, "{name}");
    }
    topology.apply(&declare("one", Some(1), partition_of(&topology, "a").0)).outcome.unwrap();
    assert_eq!(partition_of(&topology, "one"), partition_of(&topology, "a"), "a quorum queue of one member beside it");
    let queue = |name: &str| topology.find_queue(VhostId(0), name.as_bytes()).unwrap();
    let home = topology.home_node(queue("a")).unwrap();
    assert_eq!(Some(home), topology.sole_member(partition_of(&topology, "a")));
    assert_eq!(topology.check_home(queue("a"), |node| node == home), Ok(()));
    let why = topology.check_home(queue("a"), |node| node != home).unwrap_err();
    let text =
        format!("NOT_FOUND - home node 'leveret@{}' of durable queue 'a' in vhost '/' is down or inaccessible", home.0);
    assert_eq!((why.code, why.text), (404, text));
    assert_eq!(topology.home_node(queue("one")), None, "a quorum queue is waited for");

    let why = topology.apply(&forget(home.0)).outcome.unwrap_err().text;
    assert!(why.contains("only copy of 2 queues"), "{why}");

    // Who joins may have queues of its own, too.
    let fourth = join(&mut topology, 77).unwrap();
    let shape = Table::new();
    let of_fourth = |topology: &Topology| {
        let places = placement(topology, &shape).among.into_iter();
        places.filter(|placed| placed.leads_first == Some(fourth)).map(|placed| placed.partition).collect::<Vec<_>>()
    };
    let planned = of_fourth(&topology);
    assert_eq!(planned.len(), 1, "and one more for quorum queues");
    topology.apply(&classic("d", planned[0].0)).outcome.unwrap();
    assert_eq!(topology.home_node(topology.find_queue(VhostId(0), b"d").unwrap()), Some(fourth));
    assert_eq!(of_fourth(&topology), planned, "they are there now, and no more come");

    let mut alone = cluster(1, MACHINE_VERSION);
    alone.apply(&classic("q", 2)).outcome.unwrap();
    assert_eq!(partition_of(&alone, "q"), PartitionId(2), "where it asks for");
    let mut old = cluster(3, 10);
    old.apply(&classic("q", 2)).outcome.unwrap();
    assert_eq!((partition_of(&old, "q"), copies_of(&old, "q")), (PartitionId(2), 3), "builds before have it on all");
    old.apply(&Command::RaiseVersion { version: MACHINE_VERSION }).outcome.unwrap();
    old.apply(&classic("r", 2)).outcome.unwrap();
    assert_eq!((copies_of(&old, "q"), copies_of(&old, "r")), (3, 1), "what is there stays where it is");
}

#[test]
fn another_node_takes_the_place_of_one_that_is_forgotten() {
    let mut topology = cluster(5, MACHINE_VERSION);
    topology.apply(&declare("q", Some(3), 0)).outcome.unwrap();
    let before = small(&topology);
    let applied = topology.apply(&forget(2));
    applied.outcome.unwrap();
    let after = small(&topology);
    for (id, members) in &after {
        assert!(members.len() == 3 && !members.contains(&NodeNumber(2)), "{members:?}");
        let stay = before[id].iter().filter(|node| members.contains(node)).count();
        assert_eq!(stay, if before[id].contains(&NodeNumber(2)) { 2 } else { 3 }, "nobody else moves");
        let is_told = applied.effects.contains(&Effect::MembersChanged { partition: *id });
        assert_eq!(is_told, before[id] != *members);
        assert_eq!(topology.founders_of(*id), Some(&before[id][..]), "who began it does not change");
    }
    let loads: Vec<usize> = held(&topology).into_values().collect();
    assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");

    for number in [3, 4] {
        topology.apply(&forget(number)).outcome.unwrap();
    }
    assert!(small(&topology).values().all(|members| *members == [NodeNumber(1), NodeNumber(5)]), "there are no more");
    let newcomer = join(&mut topology, 7).unwrap();
    assert!(small(&topology).values().all(|members| *members == [NodeNumber(1), NodeNumber(5), newcomer]));
    let next = join(&mut topology, 8).unwrap();
    assert!(small(&topology).values().all(|members| !members.contains(&next)), "they have enough");
    assert!(topology.members_wanted(PartitionId(1)).contains(&next), "what is on all nodes is on it too");
}

#[test]
fn the_only_copy_of_a_queue_keeps_its_node_and_one_of_nothing_does_not() {
    let mut topology = cluster(3, MACHINE_VERSION);
    topology.apply(&declare("q", Some(1), 0)).outcome.unwrap();
    let (partition, all) = (partition_of(&topology, "q"), small(&topology));
    let [holder] = all[&partition][..] else { panic!("{all:?}") };
    let why = topology.apply(&forget(holder.0)).outcome.unwrap_err().to_string();
    assert!(why.contains("the only copy of 1 queues: delete them first"), "{why}");
    assert_eq!(small(&topology), all);
    let other = (1..=3).map(NodeNumber).find(|node| *node != holder).unwrap();
    topology.apply(&forget(other.0)).outcome.unwrap();
    let retired = topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Retired).count();
    assert_eq!((retired as u32, small(&topology).len() as u32), (POOL_PARTITIONS / 3, POOL_PARTITIONS * 2 / 3));
    let read = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert_eq!(read.encode_snapshot(), topology.encode_snapshot());
    let last = topology.partitions().map(|(id, _)| id).last().unwrap();
    topology.apply(&declare("r", Some(1), 0)).outcome.unwrap();
    let (now, new) = (small(&topology), |id: &PartitionId| *id > last);
    assert_eq!(
        (now.len() as u32, now.keys().filter(|id| new(id)).count() as u32),
        (POOL_PARTITIONS, POOL_PARTITIONS / 3)
    );
}

/// What becomes of a client's declare that is not passive.
fn declared(
    topology: &Topology,
    arguments: &Table,
    place: impl FnOnce(Placement) -> PartitionId,
) -> Result<QueueDeclared, Refusal> {
    let declare = QueueDeclare {
        vhost: VhostId(0),
        name: b"pq",
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments,
    };
    topology.check_queue_declare(Actor::MACHINE, &declare, place)
}

/// Where that may have its queue.
fn placement(topology: &Topology, arguments: &Table) -> Placement {
    let mut found = None;
    let declared = declared(topology, arguments, |placement| {
        let first = placement.among[0].partition;
        found = Some(placement);
        first
    });
    assert!(matches!(declared, Ok(QueueDeclared::Propose(_))), "{declared:?}");
    found.unwrap()
}

#[test]
fn who_declares_chooses_among_what_there_is_and_what_comes_to_be_with_the_queue() {
    let mut topology = cluster(5, MACHINE_VERSION);
    let planned = placement(&topology, &arguments(Some(3)));
    topology.apply(&declare("q", Some(3), planned.among[4].partition.0)).outcome.unwrap();
    assert_eq!(partition_of(&topology, "q"), planned.among[4].partition);
    let expected =
        |placed: &broker::topology::PlacedPartition| placed.leads_first == topology.leads_first(placed.partition);
    assert!(planned.among.iter().all(expected), "what was planned is what came to be");
    let known = placement(&topology, &arguments(None));
    assert_eq!(known.among.len() as u32, POOL_PARTITIONS);
    assert!(known.among.iter().all(|placed| placed.leads_first.is_none()));
    assert_eq!(known.queues, BTreeMap::from([(planned.among[4].partition, 1)]));
    let everywhere = |placement: Placement| placement.among.iter().map(|p| p.partition.0).collect::<Vec<_>>();
    assert_eq!(everywhere(placement(&topology, &arguments(Some(5)))), [1, 2]);
    let classic = placement(&topology, &Table::new()).among;
    assert!(classic.iter().all(|placed| placed.founders.len() == 1), "{classic:?}");
    let for_quorum = placement(&topology, &arguments(Some(1))).among;
    assert_eq!((classic.len() + for_quorum.len()) as u32, POOL_PARTITIONS);

    assert_eq!(known.leader_locator, None);
    let mut asked = arguments(None);
    asked.push("x-queue-leader-locator", Value::LongString("balanced".into()));
    assert_eq!(placement(&topology, &asked).leader_locator, Some(LeaderLocator::Balanced));
    let mut definition = Table::new();
    definition.push("queue-leader-locator", Value::LongString("client-local".into()));
    let policy = Policy { pattern: Pattern::new("^p").unwrap(), apply_to: ApplyTo::Queues, priority: 0, definition };
    let put = PutPolicy { vhost: VhostId(0), operator: false, name: Name::from("here"), policy };
    topology.apply(&Command::PutPolicy(put)).outcome.unwrap();
    assert_eq!(placement(&topology, &asked).leader_locator, Some(LeaderLocator::ClientLocal), "a policy goes before");
}

#[test]
fn classic_queues_and_quorum_queues_with_one_copy_are_kept_apart_as_only_these_are_given_more() {
    for nodes in 2..=5 {
        let mut topology = cluster(nodes, MACHINE_VERSION);
        let among = |topology: &Topology, arguments: &Table| placement(topology, arguments).among;
        let homes = |among: &[PlacedPartition]| -> BTreeMap<_, _> {
            among.iter().map(|placed| (placed.partition, placed.leads_first.unwrap())).collect()
        };
        for _ in 0..2 {
            // The same before the pool is there and behind.
            let classic = homes(&among(&topology, &Table::new()));
            let quorum = homes(&among(&topology, &arguments(Some(1))));
            assert!(classic.keys().all(|partition| !quorum.contains_key(partition)), "{classic:?} {quorum:?}");
            for node in (1..=nodes).map(NodeNumber) {
                assert!(classic.values().any(|home| *home == node) && quorum.values().any(|home| *home == node));
            }
            topology.apply(&declare_with("c", Table::new(), classic.keys().next().unwrap().0)).outcome.unwrap();
            topology.apply(&declare("q", Some(1), quorum.keys().next().unwrap().0)).outcome.unwrap();
        }
        let (of_classic, of_quorum) = (partition_of(&topology, "c"), partition_of(&topology, "q"));
        let told = |partition| topology.classic_kept_on_one(partition).map(|(name, more)| (name.to_string(), more));
        assert_eq!((told(of_classic), told(of_quorum)), (Some(("c".to_owned(), 0)), None));
        // A file says nothing of places.
        let Command::DeclareQueue(unplaced) = declare_with("d", Table::new(), 1) else { panic!("it declares") };
        let place = topology.place_on_one(&unplaced).unwrap();
        assert!(homes(&among(&topology, &Table::new())).contains_key(&place) && place != of_classic);

        let home = topology.sole_member(of_quorum).unwrap();
        let node = NodeNumber(if home.0 == 1 { 2 } else { 1 });
        let give = Command::ChangeCopies(CopyChange::Give { partition: of_quorum, node });
        topology.apply(&give).outcome.unwrap();
        for arguments in [Table::new(), arguments(Some(1))] {
            let among = among(&topology, &arguments);
            assert!(
                among.iter().all(|placed| placed.partition != of_quorum && placed.founders.len() == 1),
                "{among:?}"
            );
            assert!(among.iter().any(|placed| placed.leads_first == Some(home)), "there is a place on its node still");
        }
    }
}

fn delete(topology: &mut Topology, name: &str) {
    let queue = topology.find_queue(VhostId(0), name.as_bytes()).unwrap().id;
    let delete = DeleteQueue { queue, keep: Vec::new() };
    topology.apply(&Command::DeleteQueue(delete)).outcome.unwrap();
}

#[test]
fn a_queue_that_wants_it_has_a_partition_for_itself_and_leaves_it_to_the_next() {
    let mut topology = cluster(3, MACHINE_VERSION);
    topology.apply(&declare("shared", None, 1)).outcome.unwrap();
    for (name, asked) in [("a", 1), ("b", 1), ("c", 0)] {
        let applied = topology.apply(&dedicated(name, None, asked));
        let made = PartitionId(small(&topology).keys().last().unwrap().0);
        assert_eq!((partition_of(&topology, name), copies_of(&topology, name)), (made, 3));
        assert!(applied.effects.contains(&Effect::MembersChanged { partition: made }), "its place comes to be with it");
    }
    let all: Vec<PartitionId> = small(&topology).into_keys().collect();
    assert_eq!(all, [3, 4, 5].map(PartitionId), "no two share one");
    let leaders: BTreeSet<_> = all.iter().map(|id| topology.leads_first(*id).unwrap()).collect();
    assert_eq!(leaders.len(), 3, "each is led by another node first");
    let taken = partition_of(&topology, "a");
    for name in ["d", "two"] {
        topology.apply(&declare(name, None, taken.0)).outcome.unwrap();
        assert!([1, 2].contains(&partition_of(&topology, name).0), "nobody else gets into it");
    }

    delete(&mut topology, "b");
    topology.apply(&dedicated("e", None, taken.0)).outcome.unwrap();
    assert_eq!(partition_of(&topology, "e"), PartitionId(4), "who asks for one that is taken gets a free one");
    topology.apply(&dedicated("f", Some(2), 0)).outcome.unwrap();
    assert_eq!((partition_of(&topology, "f"), copies_of(&topology, "f")), (PartitionId(6), 2));
    let read = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert_eq!((read.encode_snapshot(), small(&read)), (topology.encode_snapshot(), small(&topology)));

    topology.apply(&forget(3)).outcome.unwrap();
    let newcomer = join(&mut topology, 9).unwrap();
    assert!(topology.members_wanted(taken).contains(&newcomer), "it has as many copies as before");
}

#[test]
fn there_are_as_many_dedicated_partitions_as_nodes_have_places_for() {
    let mut topology = cluster(3, MACHINE_VERSION);
    for number in 0..DEDICATED_PARTITIONS_MAX {
        topology.apply(&dedicated(&format!("q{number}"), Some(1 + number as i32 % 3), 0)).outcome.unwrap();
    }
    let before = topology.encode_snapshot();
    let why = topology.apply(&dedicated("more", None, 0)).outcome.unwrap_err().to_string();
    assert!(why.contains("64 queues have a partition of their own"), "{why}");
    assert_eq!(topology.encode_snapshot(), before);
    delete(&mut topology, "q2");
    topology.apply(&dedicated("more", None, 0)).outcome.unwrap();
    assert_eq!(small(&topology).len() as u32, DEDICATED_PARTITIONS_MAX);
}

#[test]
fn a_node_alone_and_a_cluster_with_old_nodes_refuse_dedicated_partitions() {
    let refused = |topology: &mut Topology| topology.apply(&dedicated("q", None, 1)).outcome.unwrap_err().to_string();
    assert!(
        refused(&mut cluster(1, MACHINE_VERSION)).contains("a node alone has the partitions that its settings say")
    );
    let mut wanted = arguments(None);
    wanted.push("x-dedicated-partition", Value::Bool(true));
    let why = declared(&cluster(3, 5), &wanted, |_| PartitionId(1)).unwrap_err().to_string();
    assert!(why.contains("not all nodes run a version that knows it yet"), "{why}");
    let mut classic = Table::new();
    classic.push("x-dedicated-partition", Value::Bool(true));
    let why = cluster(3, MACHINE_VERSION).apply(&declare_with("q", classic, 1)).outcome.unwrap_err().to_string();
    assert!(why.contains("x-dedicated-partition"), "{why}");
    let mut off = arguments(None);
    off.push("x-dedicated-partition", Value::Bool(false));
    let mut alone = cluster(1, MACHINE_VERSION);
    alone.apply(&declare_with("q", off, 1)).outcome.unwrap();
}

#[test]
fn who_declares_chooses_among_free_dedicated_partitions_and_the_next_one() {
    let mut topology = cluster(3, MACHINE_VERSION);
    let mut wanted = arguments(None);
    wanted.push("x-dedicated-partition", Value::Bool(true));
    let first = placement(&topology, &wanted);
    assert_eq!((first.among.len(), first.among[0].founders.len()), (1, 3));
    assert_eq!(first.among[0].leads_first, Some(NodeNumber(1)));
    topology.apply(&dedicated("a", None, first.among[0].partition.0)).outcome.unwrap();
    let second = placement(&topology, &wanted).among.remove(0);
    assert_eq!((second.partition.0, second.leads_first), (first.among[0].partition.0 + 1, Some(NodeNumber(2))));
    delete(&mut topology, "a");
    let among: Vec<u32> = placement(&topology, &wanted).among.iter().map(|placed| placed.partition.0).collect();
    assert_eq!(among, [first.among[0].partition.0, second.partition.0], "one that is free, and the next one");
    topology.apply(&dedicated("b", None, second.partition.0)).outcome.unwrap();
    assert_eq!(partition_of(&topology, "b"), second.partition, "where it was asked for");
}

#[derive(Clone, Debug)]
enum Step {
    Dedicated(u32, i32, u32),
    Delete(u32),
    Declare(u32, i32, u32),
    Forget(u32),
    Join(u128),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..30u32, 1..6i32, 0..40u32).prop_map(|(name, size, partition)| Step::Declare(name, size, partition)),
        4 => (0..30u32, 1..6i32, 0..40u32).prop_map(|(name, size, partition)| Step::Dedicated(name, size, partition)),
        2 => (0..30u32).prop_map(Step::Delete),
        2 => (1..12u32).prop_map(Step::Forget),
        2 => (0..8u128).prop_map(Step::Join),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn partitions_have_as_many_members_as_they_are_to_have_whoever_comes_and_goes(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut topology = cluster(4, MACHINE_VERSION);
        let mut members_ever: BTreeMap<PartitionId, BTreeSet<NodeNumber>> = BTreeMap::new();
        let mut own: BTreeSet<String> = BTreeSet::new();
        for step in steps {
            let before = small(&topology);
            match step {
                Step::Declare(name, size, partition) => {
                    let hosts = topology.present_nodes().count();
                    let name = format!("q{name}");
                    let is_new = topology.find_queue(VhostId(0), name.as_bytes()).is_none();
                    topology.apply(&declare(&name, Some(size), partition)).outcome.ok();
                    if is_new && topology.find_queue(VhostId(0), name.as_bytes()).is_some() {
                        prop_assert_eq!(copies_of(&topology, &name), hosts.min(size as usize));
                    }
                }
                Step::Dedicated(name, size, partition) => {
                    let hosts = topology.present_nodes().count();
                    let name = format!("q{name}");
                    let is_new = topology.find_queue(VhostId(0), name.as_bytes()).is_none();
                    let is_declared = topology.apply(&dedicated(&name, Some(size), partition)).outcome.is_ok();
                    prop_assert!(!is_new || is_declared == (hosts > 1));
                    if is_new && is_declared {
                        prop_assert_eq!(copies_of(&topology, &name), hosts.min(size as usize));
                        own.insert(name);
                    }
                }
                Step::Delete(name) if topology.find_queue(VhostId(0), format!("q{name}").as_bytes()).is_some() => {
                    delete(&mut topology, &format!("q{name}"));
                    own.remove(&format!("q{name}"));
                }
                Step::Delete(_) => {}
                Step::Forget(number) => drop(topology.apply(&forget(number))),
                Step::Join(folder) => drop(join(&mut topology, folder)),
            }
            for name in &own {
                let lives = |queue: &&Queue| queue.partition == partition_of(&topology, name);
                prop_assert_eq!(topology.queues().filter(lives).count(), 1, "it is alone in its partition");
            }
            let hosts: Vec<NodeNumber> = topology.present_nodes().map(|(number, _)| number).collect();
            for (id, members) in small(&topology) {
                let pool = topology.partitions().find(|(known, _)| *known == id).unwrap().1.pool;
                let size = topology.pools().find(|(known, _)| *known == pool).unwrap().1.replication_factor;
                prop_assert_eq!(members.len(), hosts.len().min(size as usize), "{:?}", id);
                prop_assert!(members.iter().all(|member| hosts.contains(member)));
                // Who was one before and is one now has been one all the time.
                let ever = members_ever.entry(id).or_default();
                let came: Vec<_> = members.iter().filter(|node| !before.get(&id).is_some_and(|b| b.contains(node))).collect();
                prop_assert!(came.iter().all(|node| !ever.contains(node)), "{:?} came twice", came);
                ever.extend(members);
            }
            let snapshot = topology.encode_snapshot();
            prop_assert_eq!(&Topology::decode_snapshot(&snapshot).unwrap().encode_snapshot(), &snapshot);
        }
    }
}

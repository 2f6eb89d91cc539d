//! Nodes, pools and partitions as commands of the topology, and the version of its machine.
//!
//! Invariants that hold after any commands in any order: numbers of nodes and partitions are never
//! reused, members of a partition are nodes, what is retired or gone stays so, a refusal changes
//! nothing, and a command twice is a command once.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use broker::topology::{
    ApplyTo, ClusterNode, Command, CommandReply, DeclareQueue, DeleteQueue, FIRST_POOL, MACHINE_VERSION,
    MachineVersions, Name, Newcomer, NoFacts, NodeChange, NodeStanding, PartitionPool, PartitionStage, Pattern, Policy,
    PoolPartition, PutPolicy, RouteRequest, SoleNode, Topology,
};
use broker::{NodeNumber, PartitionId, PoolId, QueueId, VhostId};
use proptest::prelude::*;

const CAN: MachineVersions = MachineVersions { topology: MACHINE_VERSION, queues: 1 };

fn node(standing: NodeStanding, topology: u32) -> ClusterNode {
    let can = MachineVersions { topology, queues: 1 };
    ClusterNode { name: Name::from("a@host"), address: Name::from("host:1"), standing, can }
}

fn put_node(number: u32, standing: NodeStanding) -> Command {
    put_node_of(number, standing, MACHINE_VERSION)
}

fn put_node_of(number: u32, standing: NodeStanding, topology: u32) -> Command {
    Command::PutNode { number: NodeNumber(number), node: node(standing, topology) }
}

fn put_pool(id: u32, target: u32) -> Command {
    let name = Name::from(format!("pool-{id}").as_str());
    let pool = PartitionPool { name, replication_factor: 1, target, serves_classic: true, serves_quorum: id == 1 };
    Command::PutPool { id: PoolId(id), pool }
}

fn put_partition(id: u32, pool: u32, members: &[u32], stage: PartitionStage) -> Command {
    let members = members.iter().copied().map(NodeNumber).collect();
    Command::PutPartition { id: PartitionId(id), partition: PoolPartition { pool: PoolId(pool), members, stage } }
}

fn join(folder: u128, can: u32) -> Command {
    let can = MachineVersions { topology: can, queues: 1 };
    let (name, address) = (format!("new-{folder}@host"), format!("new-{folder}:1"));
    let (name, address) = (Name::from(name.as_str()), Name::from(address.as_str()));
    Command::ChangeNodes(NodeChange::Join(Newcomer { folder, name, address, can }))
}

fn forget(number: u32) -> Command {
    Command::ChangeNodes(NodeChange::Forget(NodeNumber(number)))
}

fn forget_as_of(number: u32, forgotten: u32) -> Command {
    Command::ChangeNodes(NodeChange::ForgetAsOf { number: NodeNumber(number), forgotten })
}

fn declare(name: &str, partition: u32) -> Command {
    Command::DeclareQueue(DeclareQueue {
        vhost: VhostId(0),
        name: Name::from(name),
        durable: true,
        exclusive: None,
        auto_delete: false,
        arguments: amqp::Table::new(),
        partition: PartitionId(partition),
        home: None,
    })
}

fn command() -> impl Strategy<Value = Command> {
    use NodeStanding::{Gone, Joining, Leaving, Member};
    use PartitionStage::{Creating, Retired, Serving};
    let standing = prop::sample::select(vec![Joining, Member, Leaving, Gone]);
    let stage = prop::sample::select(vec![Creating, Serving, Serving, Retired]);
    let members = prop::collection::btree_set(0..5u32, 0..3);
    prop_oneof![
        4 => (0..5u32, standing, 1..4u32).prop_map(|(number, standing, can)| {
            Command::PutNode { number: NodeNumber(number), node: node(standing, can) }
        }),
        3 => (0..4u32, 0..5u32).prop_map(|(id, target)| put_pool(id, target)),
        8 => (0..6u32, 1..3u32, members, stage).prop_map(|(id, pool, members, stage)| {
            let members: Vec<u32> = if stage == Retired { Vec::new() } else { members.into_iter().collect() };
            put_partition(id, pool, &members, stage)
        }),
        2 => (0..3u128, 3..6u32).prop_map(|(folder, can)| join(folder, can)),
        1 => (0..6u32).prop_map(forget),
        1 => (0..6u32, 0..3u32).prop_map(|(number, forgotten)| forget_as_of(number, forgotten)),
        1 => (0..=MACHINE_VERSION).prop_map(|version| Command::RaiseVersion { version }),
        3 => (0..4u32, 0..7u32).prop_map(|(name, partition)| declare(&format!("q{name}"), partition)),
        3 => (0..4u32, 0..20u32, 1..4i32).prop_map(|(name, partition, size)| {
            let Command::DeclareQueue(mut quorum) = declare(&format!("quorum{name}"), partition) else { panic!() };
            quorum.arguments.push("x-queue-type", amqp::Value::LongString("quorum".into()));
            quorum.arguments.push("x-quorum-initial-group-size", amqp::Value::I32(size));
            Command::DeclareQueue(quorum)
        }),
        1 => (0..9u64).prop_map(|id| Command::DeleteQueue(DeleteQueue { queue: QueueId(id), keep: Vec::new() })),
    ]
}

/// Everything that may never be taken back.
fn stages(
    topology: &Topology,
) -> (BTreeMap<NodeNumber, NodeStanding>, BTreeMap<PartitionId, (PoolId, PartitionStage)>) {
    let nodes = topology.nodes().map(|(number, node)| (number, node.standing)).collect();
    (nodes, topology.partitions().map(|(id, put)| (id, (put.pool, put.stage))).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_map_only_goes_forward_whatever_is_asked(commands in prop::collection::vec(command(), 0..60)) {
        let mut topology = Topology::new();
        for command in &commands {
            let ((nodes, partitions), version) = (stages(&topology), topology.machine_version());
            let before = topology.encode_snapshot();
            let outcome = topology.apply(command).outcome;
            let after = topology.encode_snapshot();
            prop_assert!(outcome.is_ok() || before == after, "a refusal changed something: {:?}", command);
            // The same again, as a log that is replayed from an older state brings it.
            let again = topology.apply(command).outcome;
            prop_assert_eq!(again.is_ok(), outcome.is_ok(), "{:?} the second time", command);
            prop_assert_eq!(&topology.encode_snapshot(), &after, "{:?} the second time changed something", command);
            prop_assert_eq!(&Topology::decode_snapshot(&after).unwrap().encode_snapshot(), &after);
            prop_assert_eq!(&Command::decode(&command.encode()).ok(), &match command {
                Command::RaiseVersion { version: 0 } => None,
                other => Some(other.clone()),
            });

            let (nodes_now, partitions_now) = stages(&topology);
            for (number, standing) in nodes {
                prop_assert!(nodes_now[&number] >= standing, "node {} went back", number.0);
            }
            for (id, (pool, stage)) in partitions {
                prop_assert!(partitions_now[&id].1 >= stage, "partition {} went back", id.0);
                prop_assert_eq!(partitions_now[&id].0, pool, "partition {} changed its pool", id.0);
            }
            prop_assert!(topology.machine_version() >= version);
            for (id, put) in topology.partitions() {
                let are_nodes = put.members.iter().all(|member| nodes_now.get(member).is_some_and(|s| *s != NodeStanding::Gone));
                prop_assert!(are_nodes, "members of partition {}: {:?}", id.0, put.members);
                prop_assert_eq!(put.members.is_empty(), put.stage == PartitionStage::Retired);
            }
            for (id, pool) in topology.pools() {
                let there = topology.partitions().filter(|(_, p)| p.pool == id && p.stage != PartitionStage::Retired);
                prop_assert!(there.count() <= pool.target as usize, "pool {} has too many", id.0);
            }
            for queue in topology.queues().filter(|_| topology.machine_version() > 1) {
                prop_assert_eq!(partitions_now[&queue.partition].1, PartitionStage::Serving, "queue {}", queue.id.0);
            }
        }
    }
}

#[test]
fn a_node_alone_says_everything_once_and_then_what_is_new() {
    let mut topology = Topology::new();
    let all = [1, 2, 3, 4].map(PartitionId);
    let sole =
        SoleNode { number: NodeNumber(1), name: "a@host", can: CAN, partitions: &all[..2], ended: &[], wanted: 2 };
    // As in a folder of a build that wrote no map: a queue is there before it.
    topology.apply(&declare("old", 2)).outcome.unwrap();
    let commands = topology.commands_of(&sole);
    assert_eq!(commands.len(), 4, "a node, a pool and two partitions: {commands:?}");
    commands.iter().for_each(|command| assert_eq!(topology.apply(command).outcome, Ok(CommandReply::Done)));
    assert_eq!(topology.commands_of(&sole), []);
    let raise = topology.raise_for([NodeNumber(1)]).unwrap();
    topology.apply(&raise).outcome.unwrap();
    assert_eq!((topology.machine_version(), topology.raise_for([NodeNumber(1)])), (MACHINE_VERSION, None));

    let target = |topology: &Topology| topology.pools().map(|(_, pool)| pool.target).collect::<Vec<_>>();
    let grown = SoleNode { partitions: &all, wanted: 4, ..sole.clone() };
    let commands = topology.commands_of(&grown);
    assert_eq!(commands.len(), 3, "the pool grows and two partitions come: {commands:?}");
    commands.iter().for_each(|command| assert_eq!(topology.apply(command).outcome, Ok(CommandReply::Done)));
    assert_eq!(target(&topology), [4]);
    let lowered = SoleNode { wanted: 1, ..grown.clone() };
    assert_eq!(topology.commands_of(&lowered), [], "what is there stays");
    let ended = SoleNode { partitions: &all[..3], ended: &all[3..], ..grown };
    let commands = topology.commands_of(&ended);
    assert_eq!(commands, [put_partition(4, 1, &[], PartitionStage::Retired)]);
    topology.apply(&commands[0]).outcome.unwrap();
    assert_eq!(topology.commands_of(&ended), []);
}

#[test]
fn version_1_places_queues_anywhere_and_version_2_where_the_map_says() {
    let mut topology = Topology::new();
    for command in [
        put_node(1, NodeStanding::Member),
        put_pool(1, 3),
        put_pool(2, 1),
        put_partition(1, 1, &[1], PartitionStage::Serving),
        put_partition(2, 1, &[1], PartitionStage::Creating),
        put_partition(4, 2, &[1], PartitionStage::Serving),
    ] {
        topology.apply(&command).outcome.unwrap();
    }
    let raise = Command::RaiseVersion { version: 2 };
    // The frozen rule.
    let CommandReply::Queue { id, .. } = topology.apply(&declare("anywhere", 9)).outcome.unwrap() else { panic!() };
    let why = topology.apply(&raise).outcome.unwrap_err().to_string();
    assert!(why.contains("a queue lives in a partition that does not serve"), "{why}");
    assert_eq!(topology.machine_version(), 1);
    topology.apply(&Command::DeleteQueue(DeleteQueue { queue: id, keep: Vec::new() })).outcome.unwrap();
    topology.apply(&raise).outcome.unwrap();

    for partition in [2, 3, 9] {
        let why = topology.apply(&declare("q", partition)).outcome.unwrap_err().to_string();
        assert!(why.contains("takes no such queues"), "{why}");
    }
    topology.apply(&declare("q", 1)).outcome.unwrap();
    topology.apply(&declare("classic", 4)).outcome.unwrap();
    let Command::DeclareQueue(mut quorum) = declare("quorum", 4) else { panic!() };
    quorum.arguments.push("x-queue-type", amqp::Value::LongString("quorum".into()));
    assert!(topology.apply(&Command::DeclareQueue(quorum.clone())).outcome.is_err(), "pool 2 serves no quorum queues");
    quorum.partition = PartitionId(1);
    topology.apply(&Command::DeclareQueue(quorum)).outcome.unwrap();
}

#[test]
fn the_machine_is_raised_when_every_member_can_and_not_before() {
    let mut topology = Topology::new();
    let raise = |topology: &Topology, members: &[u32]| topology.raise_for(members.iter().copied().map(NodeNumber));
    topology.apply(&put_node(1, NodeStanding::Member)).outcome.unwrap();
    let old = Command::PutNode { number: NodeNumber(2), node: node(NodeStanding::Member, 1) };
    topology.apply(&old).outcome.unwrap();
    assert_eq!(raise(&topology, &[1, 2]), None, "node 2 cannot");
    assert_eq!(raise(&topology, &[1, 3]), None, "what node 3 can is not known");
    assert_eq!(raise(&topology, &[]), None);
    let upgraded = Command::PutNode { number: NodeNumber(2), node: node(NodeStanding::Member, MACHINE_VERSION) };
    topology.apply(&upgraded).outcome.unwrap();
    let raised = raise(&topology, &[1, 2]).unwrap();
    assert_eq!(raised, Command::RaiseVersion { version: MACHINE_VERSION });
    topology.apply(&raised).outcome.unwrap();
    // From here on nobody comes in who could not follow.
    let late = Command::PutNode { number: NodeNumber(3), node: node(NodeStanding::Joining, 1) };
    let why = topology.apply(&late).outcome.unwrap_err().to_string();
    assert!(why.contains("cannot carry out what the topology works by"), "{why}");
}

#[test]
fn a_version_that_this_build_does_not_know_is_not_read() {
    let raise = Command::RaiseVersion { version: MACHINE_VERSION + 1 };
    let why = Command::decode(&raise.encode()).unwrap_err().to_string();
    assert!(why.contains("machine version, raised by a newer leveret,"), "{why}");
    let mut state = Topology::new().encode_snapshot().to_vec();
    assert_eq!(state[5], 1, "the version of a machine that was never raised");
    state[5] = MACHINE_VERSION as u8 + 1;
    let why = Topology::decode_snapshot(&state).unwrap_err().to_string();
    assert!(why.contains("machine version, raised by a newer leveret,"), "{why}");
}

/// A cluster of three with two partitions, at the newest version.
fn three() -> Topology {
    let mut topology = Topology::new();
    for command in [
        put_founder(1),
        put_founder(2),
        put_founder(3),
        put_pool(1, 2),
        put_partition(1, 1, &[1, 2, 3], PartitionStage::Serving),
        put_partition(2, 1, &[1, 2, 3], PartitionStage::Serving),
    ] {
        topology.apply(&command).outcome.unwrap();
    }
    let why = topology.apply(&join(7, MACHINE_VERSION)).outcome.unwrap_err().to_string();
    assert!(why.contains("once every node"), "{why}");
    assert_eq!(topology.members_wanted(PartitionId(1)), [], "builds before changed no members");
    topology.apply(&Command::RaiseVersion { version: MACHINE_VERSION }).outcome.unwrap();
    topology
}

fn put_founder(number: u32) -> Command {
    let (name, address) = (format!("leveret@{number}"), format!("host{number}:1"));
    let (name, address) = (Name::from(name.as_str()), Name::from(address.as_str()));
    let node = ClusterNode { name, address, standing: NodeStanding::Member, can: CAN };
    Command::PutNode { number: NodeNumber(number), node }
}

fn numbers(nodes: &[u32]) -> Vec<NodeNumber> {
    nodes.iter().copied().map(NodeNumber).collect()
}

#[test]
fn a_node_that_joins_votes_first_and_has_copies_then() {
    let mut topology = three();
    topology.apply(&join(7, MACHINE_VERSION)).outcome.unwrap();
    let version = topology.version();
    topology.apply(&join(7, MACHINE_VERSION)).outcome.unwrap();
    assert_eq!(topology.joined_with(7), Some(NodeNumber(4)), "one number, however often it asks");
    assert!(topology.version() > version);
    assert_eq!(topology.members_wanted(PartitionId(0)), numbers(&[1, 2, 3, 4]));
    assert_eq!(topology.members_wanted(PartitionId(1)), numbers(&[1, 2, 3]), "it has no vote yet");
    let after = |topology: &Topology, members: &[u32]| {
        let wanted = topology.lives_wanted_after(PartitionId(1), &numbers(members));
        wanted.into_iter().map(|(node, _)| node).collect::<Vec<_>>()
    };
    assert_eq!(after(&topology, &[1, 2, 3]), numbers(&[1, 2, 3]));
    for members in [[1, 2, 3, 4], [1, 2, 3, 5]] {
        assert_eq!(after(&topology, &members), [], "a group that is ahead of this map stays as it is");
    }
    assert_eq!(topology.next_standing(&numbers(&[1, 2, 3])), None);
    let joined = topology.next_standing(&numbers(&[1, 2, 3, 4])).unwrap();
    topology.apply(&joined).outcome.unwrap();
    assert_eq!(topology.next_standing(&numbers(&[1, 2, 3, 4])), None);
    for partition in [1, 2] {
        assert_eq!(topology.members_wanted(PartitionId(partition)), numbers(&[1, 2, 3, 4]));
    }
    let snapshot = topology.encode_snapshot();
    assert_eq!((&snapshot[..5], u32::from(snapshot[5])), (&b"LVTO\x07"[..], MACHINE_VERSION));
    assert_eq!(
        &snapshot[snapshot.len() - 18..],
        b"\x01\x04\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        "its folder is at the end"
    );
    let read = Topology::decode_snapshot(&snapshot).unwrap();
    assert_eq!((read.joined_with(7), read.encode_snapshot()), (Some(NodeNumber(4)), snapshot));
}

#[test]
fn who_has_the_name_or_the_address_of_another_or_an_old_build_does_not_join() {
    let mut topology = three();
    let Command::ChangeNodes(NodeChange::Join(newcomer)) = join(7, MACHINE_VERSION) else { panic!() };
    let join_as = |newcomer: Newcomer| Command::ChangeNodes(NodeChange::Join(newcomer));
    for twin in [
        Newcomer { name: Name::from("leveret@2"), ..newcomer.clone() },
        Newcomer { address: Name::from("host2:1"), ..newcomer.clone() },
    ] {
        let why = topology.apply(&join_as(twin)).outcome.unwrap_err().to_string();
        assert!(why.contains("forget_cluster_node leveret@2"), "{why}");
    }
    let why = topology.apply(&join(7, MACHINE_VERSION - 1)).outcome.unwrap_err().to_string();
    assert!(why.contains("a newer leveret"), "{why}");
    let can = MachineVersions { topology: MACHINE_VERSION, queues: 0 };
    let why = topology.apply(&join_as(Newcomer { can, ..newcomer })).outcome.unwrap_err().to_string();
    assert!(why.contains("a newer leveret"), "{why}");
    assert_eq!(topology.nodes().count(), 3);
    for folder in 10..16 {
        topology.apply(&join(folder, MACHINE_VERSION)).outcome.unwrap();
    }
    let why = topology.apply(&join(16, MACHINE_VERSION)).outcome.unwrap_err().to_string();
    assert!(why.contains("9 nodes at most"), "{why}");
}

#[test]
fn of_two_nodes_that_leave_by_one_look_the_second_is_refused() {
    let mut topology = three();
    let forgotten = topology.nodes_forgotten();
    let [first, second] = [1, 2].map(|number| topology.forgetting(NodeNumber(number), forgotten));
    topology.apply(&first).outcome.unwrap();
    let why = topology.apply(&second).outcome.unwrap_err().to_string();
    assert!(why.contains("another node was forgotten meanwhile"), "{why}");
    assert_eq!(topology.members_wanted(PartitionId(0)), numbers(&[2, 3]));
    topology.apply(&first).outcome.expect("it is gone, as was asked");
    // Who has looked again may.
    let again = topology.forgetting(NodeNumber(2), topology.nodes_forgotten());
    topology.apply(&again).outcome.unwrap();
    assert_eq!(topology.members_wanted(PartitionId(0)), numbers(&[3]));
}

#[test]
fn nodes_that_do_not_all_know_better_are_forgotten_as_before() {
    let mut topology = Topology::new();
    topology.apply(&Command::RaiseVersion { version: 5 }).outcome.unwrap();
    for number in 1..=3 {
        topology.apply(&put_founder(number)).outcome.unwrap();
    }
    assert_eq!(topology.forgetting(NodeNumber(1), 0), forget(1));
    let why = topology.apply(&forget_as_of(1, 0)).outcome.unwrap_err().to_string();
    assert!(why.contains("a leveret that can do it"), "{why}");
}

#[test]
fn who_is_forgotten_counts_nowhere_and_never_comes_back() {
    let mut topology = three();
    topology.apply(&join(7, MACHINE_VERSION)).outcome.unwrap();
    topology.apply(&topology.next_standing(&numbers(&[1, 2, 3, 4])).unwrap()).outcome.unwrap();
    topology.apply(&forget(2)).outcome.unwrap();
    topology.apply(&forget(2)).outcome.unwrap();
    for partition in [0, 1, 2] {
        assert_eq!(topology.members_wanted(PartitionId(partition)), numbers(&[1, 3, 4]));
    }
    topology.apply(&forget(4)).outcome.unwrap();
    let why = topology.apply(&join(7, MACHINE_VERSION)).outcome.unwrap_err().to_string();
    assert!(why.contains("forgotten as node 4; start it with an empty folder"), "{why}");
    // Its name and address are free, its number is not.
    let Command::ChangeNodes(NodeChange::Join(newcomer)) = join(7, MACHINE_VERSION) else { panic!() };
    topology.apply(&Command::ChangeNodes(NodeChange::Join(Newcomer { folder: 8, ..newcomer }))).outcome.unwrap();
    assert_eq!(topology.joined_with(8), Some(NodeNumber(5)));
    let why = topology.apply(&forget(9)).outcome.unwrap_err().to_string();
    assert!(why.contains("none of that number"), "{why}");
    topology.apply(&forget(1)).outcome.unwrap();
    let why = topology.apply(&forget(3)).outcome.unwrap_err().to_string();
    assert!(why.contains("the only copy"), "the one that joins has none yet: {why}");
}

/// The bytes of docs/formats/topology.md.
#[test]
fn commands_of_the_map_have_these_bytes() {
    let golden: [(Command, &[u8]); 8] = [
        (put_node_of(300, NodeStanding::Member, 12), b"\x01\x28\xac\x02\x06a@host\x06host:1\x01\x0c\x01"),
        (put_pool(1, 16), b"\x01\x29\x01\x06pool-1\x01\x10\x03"),
        (put_partition(7, 1, &[1, 3, 200], PartitionStage::Serving), b"\x01\x2a\x07\x01\x01\x03\x01\x03\xc8\x01"),
        (put_partition(7, 1, &[], PartitionStage::Retired), b"\x01\x2a\x07\x01\x02\x00"),
        (Command::RaiseVersion { version: 2 }, b"\x01\x2b\x02"),
        (join(258, 4), b"\x01\x2d\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0cnew-258@host\x09new-258:1\x04\x01"),
        (forget(300), b"\x01\x2e\xac\x02"),
        (forget_as_of(300, 2), b"\x01\x2f\xac\x02\x02"),
    ];
    for (command, bytes) in golden {
        assert_eq!(&command.encode()[..], bytes, "{command:?}");
        assert_eq!(Command::decode(bytes).unwrap(), command);
        for cut in 0..bytes.len() {
            assert!(Command::decode(&bytes[..cut]).is_err(), "{command:?} cut at {cut}");
        }
    }
    assert!(Command::decode(b"\x01\x2a\x07\x01\x03\x00").is_err(), "an unknown stage");
    assert!(Command::decode(b"\x01\x29\x01\x01p\x01\x10\x04").is_err(), "an unknown type of queue");
}

#[test]
fn a_snapshot_has_the_map_at_its_end_and_one_of_version_3_has_none() {
    let mut topology = Topology::new();
    let before = topology.encode_snapshot();
    assert_eq!(&before[..6], b"LVTO\x04\x01");
    assert_eq!(&before[before.len() - 3..], [0, 0, 0], "no node, no pool, no partition");
    for command in [put_node_of(1, NodeStanding::Member, 12), put_pool(1, 1)] {
        topology.apply(&command).outcome.unwrap();
    }
    topology.apply(&put_partition(1, FIRST_POOL.0, &[1], PartitionStage::Serving)).outcome.unwrap();
    topology.apply(&Command::RaiseVersion { version: 2 }).outcome.unwrap();
    let after = topology.encode_snapshot();
    assert_eq!(&after[..6], b"LVTO\x04\x02");
    let map = b"\x01\x01\x06a@host\x06host:1\x01\x0c\x01\x01\x01\x06pool-1\x01\x01\x03\x01\x01\x01\x01\x01\x01";
    assert_eq!(&after[before.len() - 3..], &map[..]);
    assert!(topology.is_untouched(), "nobody declared anything");

    // What the build before wrote: no machine version, no map.
    let old = [b"LVTO\x03", &before[6..before.len() - 3]].concat();
    let read = Topology::decode_snapshot(&old).unwrap();
    assert_eq!((read.machine_version(), read.nodes().count(), read.partitions().count()), (1, 0, 0));
    assert_eq!(read.encode_snapshot(), before);
}

#[test]
fn levels_of_the_leader_alone_and_policies_that_choose_one_wait_until_all_nodes_know_them() {
    let slash = VhostId(0);
    let mut topology = Topology::new();
    for command in [
        put_node(1, NodeStanding::Member),
        put_pool(1, 3),
        put_partition(1, 1, &[1], PartitionStage::Serving),
        Command::RaiseVersion { version: 8 },
    ] {
        topology.apply(&command).outcome.unwrap();
    }
    let table = |name: &'static str, word: &'static str| {
        let mut table = amqp::Table::new();
        table.push(name, amqp::Value::LongString(word.into()));
        table
    };
    let policy = |operator, word| {
        let pattern = Pattern::new("^q").unwrap();
        let definition = table("durability", word);
        let policy = Policy { pattern, apply_to: ApplyTo::Queues, priority: 0, definition };
        Command::PutPolicy(PutPolicy { vhost: slash, operator, name: Name::from("p"), policy })
    };
    let declaration = |topology: &Topology, name: &str, word| {
        let arguments = table("x-durability", word);
        topology.queue_declaration(slash, Name::from(name), [true, false], &arguments, PartitionId(1))
    };
    let why = topology.apply(&policy(false, "written")).outcome.unwrap_err().to_string();
    assert!(why.contains("before all nodes of the cluster run this version"), "{why}");
    let why = declaration(&topology, "own", "leader-written").unwrap_err().to_string();
    assert!(why.contains("before all nodes of the cluster run this version"), "{why}");
    let written = declaration(&topology, "q written", "written").unwrap();
    topology.apply(&written).outcome.unwrap();
    topology.apply(&declare("q", 1)).outcome.unwrap();
    topology.apply(&declare("other", 1)).outcome.unwrap();
    topology.apply(&Command::RaiseVersion { version: 9 }).outcome.unwrap();
    let own = declaration(&topology, "q own", "leader-written").unwrap();
    topology.apply(&own).outcome.unwrap();

    // What is routed goes by it at once.
    let level = |topology: &Topology, name: &str| {
        let request = RouteRequest { vhost: slash, exchange: b"", keys: &[name.as_bytes()], facts: &NoFacts };
        let mut targets = Vec::new();
        topology.route(&request, &mut targets).unwrap();
        let queue = topology.queue(targets[0].queue).unwrap();
        assert_eq!(queue.durability().level(), targets[0].durability);
        targets[0].durability.word()
    };
    let names = ["q", "other", "q written", "q own"];
    let levels = |topology: &Topology| names.map(|name| level(topology, name));
    assert_eq!(levels(&topology), ["synced", "synced", "written", "leader-written"]);
    topology.apply(&policy(false, "leader-synced")).outcome.unwrap();
    assert_eq!(levels(&topology), ["leader-synced", "synced", "written", "leader-written"]);
    let copy = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    assert_eq!(levels(&copy), levels(&topology));
    topology.apply(&policy(true, "written")).outcome.unwrap();
    assert_eq!(level(&topology, "q"), "written", "an operator's holds over a policy's");
    for operator in [true, false] {
        let delete = Command::DeletePolicy { vhost: slash, operator, name: Name::from("p") };
        topology.apply(&delete).outcome.unwrap();
    }
    assert_eq!(level(&topology, "q"), "synced");
}

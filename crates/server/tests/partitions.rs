//! The seam to durable partitions, with partitions that a test holds in its hand: they confirm when
//! they are told to.
#![allow(clippy::unwrap_used)]

mod support;

use amqp::wire::method::Method;
use amqp::{Properties, Table, Value};
use broker::topology::{
    ClusterNode, Command as Change, FIRST_POOL, MACHINE_VERSION, MachineVersions, Name, NodeStanding, PartitionPool,
    PartitionStage, PoolPartition, Topology,
};
use broker::{NodeNumber, PartitionId, QueueId};
use partition::command::{Durability, Selective};
use partition::{Command, Effect, Level, Outlets, Publish, Reply, RequestId, TransientQueues};
use server::{MemoryLog, Node, NodeConfig, Partition, ShardParts, TopologyLog, Wiring};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Client, TestNode, closed, publish_frames};

/// What a test sees of a partition, and does with it.
#[derive(Default)]
struct Hand {
    /// Publishes that were not answered yet.
    held: Vec<Publish>,
    syncs: Vec<(broker::ChannelKey, RequestId)>,
    /// How many of the held ones may be confirmed, and whether they are refused instead.
    release: usize,
    refuse: bool,
    release_syncs: bool,
    unwritten: u64,
    /// The most commands that came in one step.
    most_at_once: usize,
}

/// Queues in memory whose confirms wait for the test.
struct Held {
    inner: TransientQueues,
    hand: Arc<Mutex<Hand>>,
}

impl Partition for Held {
    fn declare(&mut self, queue: QueueId) {
        self.inner.declare(queue);
    }

    fn step(&mut self, now: u64, commands: &mut Vec<Command>, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets) {
        let mut hand = self.hand.lock().unwrap();
        // What came as one counts as what it is.
        let apart = |command: Command| match command {
            Command::Publish(publish) => publish.apart().map(Command::Publish).collect(),
            other => vec![other],
        };
        let commands: Vec<Command> = commands.drain(..).flat_map(apart).collect();
        hand.most_at_once = hand.most_at_once.max(commands.len());
        let mut rest = Vec::new();
        for command in commands {
            match command {
                Command::Publish(publish) => {
                    hand.held.push(publish.clone());
                    rest.push(Command::Publish(Publish { publish_seq: 0, ..publish }));
                }
                Command::Sync { channel, request } => hand.syncs.push((channel, request)),
                other => rest.push(other),
            }
        }
        self.inner.step(now, &mut rest, effects, outlets);
        let count = std::mem::take(&mut hand.release).min(hand.held.len());
        let refuse = hand.refuse;
        for Publish { channel, publish_seq: first, .. } in hand.held.drain(..count) {
            effects.push(match refuse {
                true => Effect::Refuse { channel, first, count: 1 },
                false => Effect::Confirm { channel, first, count: 1 },
            });
        }
        if hand.release_syncs {
            for (channel, request) in hand.syncs.drain(..) {
                effects.push(Effect::Reply { channel, request, reply: Reply::Done });
            }
        }
    }

    fn unwritten_bytes(&self) -> u64 {
        self.hand.lock().unwrap().unwritten
    }
}

struct HeldNode {
    node: TestNode,
    hands: Vec<Arc<Mutex<Hand>>>,
    wiring: Wiring,
}

impl HeldNode {
    /// A node with durable partitions 1 and 2 on these shards.
    fn start(shards: usize, first: usize, second: usize) -> Self {
        Self::start_with(shards, (first, second), Topology::new(), &[])
    }

    /// The same with a map, and with damage in some of them.
    fn start_with(shards: usize, (first, second): (usize, usize), topology: Topology, damaged: &[u32]) -> Self {
        let mut config: NodeConfig = support::config();
        config.quarantined = damaged.iter().copied().map(PartitionId).collect();
        config.shards = shards;
        config.placement = vec![(PartitionId(1), first), (PartitionId(2), second)];
        config.unwritten_bytes_max = 1000;
        let hands: Vec<Arc<Mutex<Hand>>> = (0..2).map(|_| Arc::default()).collect();
        let (given, mut kept) = (hands.clone(), None);
        let node = Node::start(config, topology, |wiring| {
            kept = Some(wiring.clone());
            let log: Arc<dyn TopologyLog> = Arc::new(MemoryLog::new(wiring.changes()));
            let make = move |shard: usize| {
                let mine = [(1, first), (2, second)].into_iter().filter(|(_, at)| *at == shard);
                let held = mine.map(|(id, _)| {
                    let hand = given[id - 1].clone();
                    let held: Box<dyn Partition> = Box::new(Held { inner: TransientQueues::new(), hand });
                    (PartitionId(id as u32), held)
                });
                ShardParts::without_log(held.collect())
            };
            (log, Arc::new(make))
        });
        HeldNode { node: TestNode(node.unwrap()), hands, wiring: kept.unwrap() }
    }

    fn change(&self, partition: usize, change: impl FnOnce(&mut Hand)) {
        change(&mut self.hands[partition - 1].lock().unwrap());
        self.wiring.waker(PartitionId(partition as u32)).unwrap().wake();
    }

    fn held(&self, partition: usize) -> usize {
        self.hands[partition - 1].lock().unwrap().held.len()
    }
}

fn durable(queue: &str, arguments: Table) -> Method {
    Method::QueueDeclare {
        ticket: 0,
        queue: queue.to_owned().into(),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments,
    }
}

fn declare_durable(client: &mut Client, queue: &str, arguments: Table) {
    let declared = client.call(1, &durable(queue, arguments));
    assert!(matches!(declared, Method::QueueDeclareOk { .. }), "{declared:?}");
}

/// Two durable queues, one on each partition, both bound to `amq.fanout`; a confirm channel.
fn two_queues(held: &HeldNode) -> Client {
    let mut client = held.node.channel();
    for queue in ["a", "b"] {
        declare_durable(&mut client, queue, Table::new());
        client.bind(1, queue, "amq.fanout", "");
    }
    client.confirm_select(1);
    client
}

fn a_message_for_two_partitions_is_confirmed_when_both_have_it(shards: usize) {
    let held = HeldNode::start(shards, 0, shards - 1);
    let mut client = two_queues(&held);
    for _ in 0..3 {
        client.publish(1, "amq.fanout", "", b"m");
    }
    support::eventually("both have it", || held.held(1) == 3 && held.held(2) == 3);
    held.change(1, |hand| hand.release = 3);
    client.silent(50);
    held.change(2, |hand| hand.release = 2);
    let confirmed = client.recv().method;
    assert_eq!(confirmed, Method::BasicAck { delivery_tag: 2, multiple: true });
    client.silent(20);
    held.change(2, |hand| (hand.release, hand.refuse) = (1, true));
    let refused = client.recv().method;
    assert!(matches!(refused, Method::BasicNack { delivery_tag: 3, .. }), "{refused:?}");
}

#[test]
fn a_message_for_two_partitions_of_one_shard_is_confirmed_when_both_have_it() {
    a_message_for_two_partitions_is_confirmed_when_both_have_it(1);
}

#[test]
fn a_message_for_two_partitions_of_two_shards_is_confirmed_when_both_have_it() {
    a_message_for_two_partitions_is_confirmed_when_both_have_it(2);
}

#[test]
fn a_sync_is_confirmed_when_every_partition_that_the_channel_used_has_synced() {
    let held = HeldNode::start(2, 0, 1);
    let mut client = two_queues(&held);
    client.publish(1, "amq.fanout", "", b"m");
    support::eventually("both have it", || held.held(1) == 1 && held.held(2) == 1);
    held.change(1, |hand| hand.release = 1);
    held.change(2, |hand| hand.release = 1);
    client.confirmed(1);
    client.publish(1, "leveret.sync", "", b"");
    support::eventually("both are asked", || held.hands.iter().all(|hand| hand.lock().unwrap().syncs.len() == 1));
    held.change(1, |hand| hand.release_syncs = true);
    client.silent(50);
    held.change(2, |hand| hand.release_syncs = true);
    client.confirmed(2);
}

/// A topology with partitions 1 and 2 of one node on its map.
fn mapped() -> Topology {
    let name = Name::from("default");
    let can = MachineVersions { topology: MACHINE_VERSION, queues: 1 };
    let node = ClusterNode { name: Name::from("n"), address: Name::from(""), standing: NodeStanding::Member, can };
    let pool = PartitionPool { name, replication_factor: 1, target: 2, serves_classic: true, serves_quorum: true };
    let put = |id| {
        let members = vec![NodeNumber(1)];
        let partition = PoolPartition { pool: FIRST_POOL, members, stage: PartitionStage::Serving };
        Change::PutPartition { id: PartitionId(id), partition }
    };
    let mut topology = Topology::new();
    let changes = [Change::PutNode { number: NodeNumber(1), node }, Change::PutPool { id: FIRST_POOL, pool }];
    for change in changes.into_iter().chain([put(1), put(2), Change::RaiseVersion { version: MACHINE_VERSION }]) {
        topology.apply(&change).outcome.unwrap();
    }
    topology
}

#[test]
fn a_new_queue_finds_a_partition_that_is_not_damaged_with_a_map_and_without() {
    for topology in [mapped, Topology::new] {
        let held = HeldNode::start_with(2, (0, 1), topology(), &[1]);
        let mut client = held.node.channel();
        for queue in ["a", "b", "c", "d"] {
            declare_durable(&mut client, queue, Table::new());
            client.publish(1, "", queue, b"m");
        }
        support::eventually("what is whole has all", || held.held(2) == 4);
        assert_eq!(held.held(1), 0);
        let held = HeldNode::start_with(1, (0, 0), topology(), &[1, 2]);
        let mut client = held.node.channel();
        client.send(1, &durable("a", Table::new()));
        let (code, why) = closed(client.recv().method);
        assert!(code == 540 && why.contains("no durable queues"), "{code} {why}");
    }
}

#[test]
fn the_sync_barrier_can_be_asked_for_and_not_changed() {
    let held = HeldNode::start(1, 0, 0);
    let mut client = held.node.channel();
    let declare = |passive| Method::ExchangeDeclare {
        ticket: 0,
        exchange: "leveret.sync".into(),
        kind: "direct".into(),
        passive,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::new(),
    };
    assert_eq!(client.call(1, &declare(true)), Method::ExchangeDeclareOk {});
    let refused = closed(client.call(1, &declare(false)));
    assert_eq!(refused, (403, "ACCESS_REFUSED - exchange 'leveret.sync' is the broker's own".to_owned()));
}

#[test]
fn a_quorum_queue_tells_how_often_a_message_came_back() {
    let held = HeldNode::start(1, 0, 0);
    let mut client = held.node.channel();
    let mut quorum = Table::new();
    quorum.push("x-queue-type", Value::LongString("quorum".into()));
    declare_durable(&mut client, "q", quorum);
    client.consume(1, "q", "c");
    publish_with(&mut client, "q", &[("mine", Value::Bool(true))]);
    let counts = |received: support::Received| {
        let headers = Properties::parse(&received.properties).unwrap().headers_table().unwrap();
        assert_eq!(headers.get("mine"), Some(&Value::Bool(true)));
        let count = |name| match headers.get(name) {
            Some(Value::I64(count)) => Some(*count),
            other => {
                assert_eq!(other, None);
                None
            }
        };
        (count("x-acquired-count"), count("x-delivery-count"))
    };
    assert_eq!(counts(client.recv()), (None, None));
    client.send(1, &Method::BasicNack { delivery_tag: 1, multiple: false, requeue: true });
    assert_eq!(counts(client.recv()), (Some(1), None));
    client.send(1, &Method::BasicReject { delivery_tag: 2, requeue: true });
    assert_eq!(counts(client.recv()), (Some(2), Some(1)));
    client.send(1, &Method::BasicCancel { consumer_tag: "c".into(), no_wait: true });
    client.send(1, &Method::BasicReject { delivery_tag: 3, requeue: true });
    client.send(1, &Method::BasicGet { ticket: 0, queue: "q".into(), no_ack: false });
    assert_eq!(counts(client.recv()), (Some(3), Some(2)));
}

fn publish_with(client: &mut Client, queue: &str, headers: &[(&'static str, Value)]) {
    let mut table = Table::new();
    headers.iter().for_each(|(name, value)| table.push(*name, value.clone()));
    let encoded = table.encode();
    let (mut properties, mut out) = (Vec::new(), Vec::new());
    Properties { headers: Some(&encoded[4..]), ..Properties::default() }.encode_to(&mut properties);
    publish_frames(&mut out, 1, "", queue, false, &properties, b"m");
    client.stream.write_all(&out).unwrap();
}

#[test]
fn queue_and_message_choose_the_level_and_a_selective_queue_sums_up_values() {
    let held = HeldNode::start(1, 0, 0);
    let mut client = held.node.channel();
    let text = |word: &'static str| Value::LongString(word.into());
    let mut written = Table::new();
    written.push("x-durability", text("written"));
    let mut selective = Table::new();
    selective.push("x-durability", text("selective"));
    selective.push("x-durability-value-header", text("amount"));
    selective.push("x-durability-value-cap", Value::I64(1000));
    selective.push("x-durability-interval-ms", Value::I32(50));
    declare_durable(&mut client, "synced", Table::new());
    declare_durable(&mut client, "written", written);
    declare_durable(&mut client, "selective", selective);
    let asks = |word| [("x-durability", Value::LongString(bytes::Bytes::from_static(word)))];
    publish_with(&mut client, "synced", &[]);
    publish_with(&mut client, "synced", &asks(b"written"));
    publish_with(&mut client, "written", &[]);
    publish_with(&mut client, "written", &asks(b"synced"));
    publish_with(&mut client, "selective", &[("amount", Value::I32(7))]);
    publish_with(&mut client, "selective", &[("amount", Value::I32(7)), ("x-durability", text("written"))]);
    publish_with(&mut client, "selective", &[("amount", Value::I32(7)), ("x-durability", text("synced"))]);
    support::eventually("all arrive", || held.held(1) + held.held(2) == 7);
    let level = |queue_first: usize, at: usize| {
        let hand = held.hands[queue_first].lock().unwrap();
        let target = hand.held[at].targets[0];
        (target.durability, target.selective)
    };
    // Queues take their partitions in turn: 1, 2, 1.
    let bounds = Some(Selective { cap: 1000, interval_ms: 50 });
    assert_eq!(level(0, 0), (Durability::Level(Level::Synced), None));
    assert_eq!(level(0, 1), (Durability::Level(Level::Written), None));
    assert_eq!(level(1, 0), (Durability::Level(Level::Written), None));
    assert_eq!(level(1, 1), (Durability::Level(Level::Synced), None));
    assert_eq!(level(0, 2), (Durability::Selective { value: 7 }, bounds));
    assert_eq!(level(0, 3), (Durability::Selective { value: 7 }, bounds));
    assert_eq!(level(0, 4), (Durability::Level(Level::Synced), bounds));
    publish_with(&mut client, "selective", &[("amount", Value::I32(-7))]);
    let refused = closed(client.recv().method);
    assert_eq!(refused, (406, "PRECONDITION_FAILED - header 'amount' must be a number and not negative".to_owned()));
}

#[test]
fn levels_of_the_leader_reach_it_once_all_nodes_know_them_and_those_of_a_majority_before() {
    let text = |word: &'static str| Value::LongString(word.into());
    let of_leader = |word| {
        let mut arguments = Table::new();
        arguments.push("x-durability", text(word));
        arguments
    };
    let levels = |held: &HeldNode| {
        let hands = held.hands.iter().map(|hand| hand.lock().unwrap());
        let of = hands.flat_map(|hand| hand.held.iter().map(|held| held.targets[0].durability).collect::<Vec<_>>());
        of.collect::<Vec<_>>()
    };
    let publish = |client: &mut Client, queue| {
        publish_with(client, queue, &[]);
        publish_with(client, queue, &[("x-durability", text("leader-synced"))]);
        publish_with(client, queue, &[("x-durability", text("leader-written"))]);
    };
    let held = HeldNode::start_with(1, (0, 0), mapped(), &[]);
    let mut client = held.node.channel();
    declare_durable(&mut client, "own", of_leader("leader-written"));
    publish(&mut client, "own");
    support::eventually("all arrive", || held.held(1) + held.held(2) == 3);
    let of_leader_alone = [Level::LeaderWritten, Level::LeaderSynced, Level::LeaderWritten];
    assert_eq!(levels(&held), of_leader_alone.map(Durability::Level));

    let held = HeldNode::start_with(1, (0, 0), Topology::new(), &[]);
    let mut client = held.node.channel();
    declare_durable(&mut client, "kept", Table::new());
    publish(&mut client, "kept");
    support::eventually("all arrive", || held.held(1) + held.held(2) == 3);
    assert_eq!(levels(&held), [Level::Synced, Level::Synced, Level::Written].map(Durability::Level));
    client.send(1, &durable("own", of_leader("leader-written")));
    let (code, why) = closed(client.recv().method);
    assert!(code == 406 && why.contains("before all nodes of the cluster run this version"), "{code} {why}");
}

fn publishers_of_a_loaded_shard_wait(shards: usize) {
    let held = HeldNode::start(shards, shards - 1, shards - 1);
    let mut client = two_queues(&held);
    let mut other = held.node.channel();
    other.declare(1, "transient");
    other.confirm_select(1);
    client.publish(1, "", "a", b"m");
    support::eventually("it arrives", || held.held(1) == 1);
    held.change(1, |hand| (hand.unwritten, hand.release) = (2000, 1));
    client.confirmed(1);
    std::thread::sleep(Duration::from_millis(20));
    // One read may have been under way; from then on nothing is read.
    for _ in 0..3 {
        client.publish(1, "", "a", b"m");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(held.held(1) <= 1, "{} publishes arrived at a loaded shard", held.held(1));
    if shards > 1 {
        // Whoever publishes to another shard does not wait.
        other.publish(1, "", "transient", b"m");
        other.confirmed(1);
    }
    held.change(1, |hand| hand.unwritten = 0);
    support::eventually("all arrive", || held.held(1) == 3);
}

#[test]
fn a_shard_that_stands_still_is_not_buried_in_its_mailbox() {
    let held = HeldNode::start(2, 1, 1);
    let _queues = two_queues(&held);
    let publishers: Vec<Client> = (0..4).map(|_| held.node.channel()).collect();
    // Whoever holds the hand stops the shard, as a sync that takes long does; half of the
    // publishers are on the other one.
    let hand = held.hands[0].lock().unwrap();
    let writing: Vec<_> = publishers
        .into_iter()
        .map(|mut publisher| {
            std::thread::spawn(move || {
                let mut out = Vec::new();
                publish_frames(&mut out, 1, "", "a", false, &[0, 0], &[1; 10_000]);
                (0..400).for_each(|_| publisher.stream.write_all(&out).unwrap());
                publisher
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    drop(hand);
    support::eventually("all arrive, also of those who had to wait", || held.held(1) == 1600);
    // Two limits' worth, and what each publisher's reads bring beyond it: more where this machine
    // is busy, and never all.
    let most = held.hands[0].lock().unwrap().most_at_once;
    assert!(most < 600, "{most} messages came at once, of {}", 2 * 400);
    writing.into_iter().for_each(|writer| drop(writer.join().unwrap()));
}

#[test]
fn publishers_wait_while_their_own_shard_is_loaded() {
    publishers_of_a_loaded_shard_wait(1);
}

#[test]
fn publishers_wait_while_another_shard_is_loaded() {
    publishers_of_a_loaded_shard_wait(2);
}

#[test]
fn a_slow_consumer_of_another_shard_holds_a_window_and_goes_on_when_it_reads() {
    let held = HeldNode::start(2, 0, 1);
    let mut clients = [held.node.channel(), held.node.channel()];
    declare_durable(&mut clients[0], "a", Table::new());
    declare_durable(&mut clients[0], "b", Table::new());
    // One connection on each shard, a consumer of both queues on each: two of the four cross.
    for (n, client) in clients.iter_mut().enumerate() {
        client.consume(1, "a", &format!("a{n}"));
        client.consume(1, "b", &format!("b{n}"));
    }
    let mut publisher = held.node.channel();
    for n in 0..128u32 {
        let mut body = vec![0; 500_000];
        body[..4].copy_from_slice(&n.to_be_bytes());
        publisher.publish(1, "", if n % 2 == 0 { "a" } else { "b" }, &body);
    }
    support::eventually("all arrive", || held.held(1) + held.held(2) == 128);
    let mut watcher = held.node.channel();
    let waiting = watcher.counts(1, "a").0 + watcher.counts(1, "b").0;
    assert!(waiting >= 90, "{waiting} of 128 messages wait in their queues");
    let [mut first, mut second] = clients;
    let reading = std::thread::spawn(move || {
        let mut seen: Vec<u32> = Vec::new();
        first.stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        while let Ok(Some(received)) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| first.try_recv())) {
            seen.push(u32::from_be_bytes(received.body[..4].try_into().unwrap()));
        }
        // Were its connection closed here, what it holds would go to the other.
        (first, seen)
    });
    let mut seen: Vec<u32> = Vec::new();
    second.stream.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    while let Ok(Some(received)) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second.try_recv())) {
        seen.push(u32::from_be_bytes(received.body[..4].try_into().unwrap()));
    }
    let (_first, others) = reading.join().unwrap();
    seen.extend(others);
    seen.sort_unstable();
    assert_eq!(seen, (0..128).collect::<Vec<_>>());
}

//! SIGTERM is a good end: what clients set in motion comes to where it was going, though the
//! clients are gone.
#![allow(clippy::unwrap_used)]

use clients::broker::{Broker, is_foreign};
use clients::nodes::{Nodes, quorum};
use clients::{QueueDeclare, Value};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Messages of a round, of which the queue keeps a few.
const MESSAGES: u64 = 2_000;
const KEPT: u64 = 5;
/// Queues whose messages leave, and those where they go.
const PAIRS: u64 = 8;

/// The end of a message is logged before its dead letter leaves: a broker that ends between the two
/// has lost it.
#[test]
fn dead_letters_on_their_way_arrive_before_the_broker_ends() {
    let Some(mut broker) = Broker::own_or_skip(&["--shard-threads=2"]) else { return };
    for round in 0..10 {
        let kind = if round % 2 == 0 { "classic" } else { "quorum" };
        let (source, target) = (format!("source.{round}"), format!("target.{round}"));
        let mut client = broker.connect();
        let channel = client.channel();
        let typed = ("x-queue-type", Value::from(kind));
        let arguments = vec![
            typed.clone(),
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(target.as_str())),
            ("x-max-length", Value::from(KEPT as i32)),
        ];
        for (name, arguments) in [(&target, vec![typed]), (&source, arguments)] {
            let queue = QueueDeclare { name, durable: true, arguments, ..Default::default() };
            client.declare(channel, &queue).unwrap();
        }
        client.confirm_select(channel).unwrap();
        for number in 0..MESSAGES {
            client.put(channel, &source, number.to_string().as_bytes());
        }
        client.confirmed(channel, 1, MESSAGES);
        client.close();
        let status = broker.terminate();
        assert_eq!(status.code(), Some(0), "SIGTERM is a good end\n{}", broker.log());
        broker.start();
        let mut client = broker.connect();
        let channel = client.channel();
        let ready = |client: &mut clients::Client, queue: &str| u64::from(client.counts(channel, queue).unwrap().0);
        let there = (ready(&mut client, &source), ready(&mut client, &target));
        assert_eq!(there, (KEPT, MESSAGES - KEPT), "round {round}, {kind}: in the source, in the target");
        client.close();
    }
}

/// A node that is stopped when the others are gone waits for no majority, and says of nothing that it is
/// missing.
#[test]
fn a_node_that_is_left_alone_ends_though_others_were_to_confirm_what_was_begun_last() {
    if is_foreign() {
        return;
    }
    let mut cluster = Nodes::founders(3);
    let (mut client, channel) = cluster.connect(0);
    let names: Vec<String> = (0..12).map(|number| format!("led.{number}")).collect();
    for name in &names {
        client.declare(channel, &quorum(name, 3)).unwrap();
    }
    client.confirm_select(channel).unwrap();
    names.iter().for_each(|name| client.put(channel, name, b"1"));
    client.confirmed(channel, 1, names.len() as u64);
    // They stand still: what it leads it takes in, as long as it counts on what it knows of the topology, and confirms to nobody.
    cluster.nodes[1..].iter().for_each(|node| node.broker.signal(Signal::STOP));
    names.iter().for_each(|name| client.put(channel, name, b"2"));
    client.close();
    (1..3).for_each(|node| cluster.kill(node));
    let broker = &mut cluster.nodes[0].broker;
    let status = broker.terminate();
    let log = broker.log();
    assert_eq!(status.code(), Some(0), "SIGTERM is a good end\n{log}");
    assert!(!log.contains("dead letters on their way may be missing"), "{log}");
    assert!(log.contains("no other node is left to confirm what was begun last"), "{log}");
    (0..3).for_each(|node| cluster.launch(node));
    (0..3).for_each(|node| cluster.nodes[node].broker.until_it_answers());
    for name in &names {
        assert!(cluster.drain(0, name).contains(&1), "{name}: it was confirmed");
    }
}

/// Letters that nobody waits for go to the next leader of their target: who hands it over gives back what has come too late.
#[test]
fn dead_letters_arrive_though_the_leaders_of_their_queues_are_drained() {
    if is_foreign() {
        return;
    }
    let cluster = Nodes::founders(3);
    let (mut client, channel) = cluster.connect(0);
    let names: Vec<[String; 2]> = (0..PAIRS).map(|n| [format!("source.{n}"), format!("target.{n}")]).collect();
    for [source, target] in &names {
        let mut source = quorum(source, 3);
        source.arguments.extend([
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(target.as_str())),
            ("x-max-length", Value::from(KEPT as i32)),
        ]);
        client.declare(channel, &quorum(target, 3)).unwrap();
        client.declare(channel, &source).unwrap();
    }
    client.confirm_select(channel).unwrap();
    let (each, is_over) = (5 * MESSAGES, AtomicBool::new(false));
    std::thread::scope(|scope| {
        // The client is at the first.
        scope.spawn(|| {
            for node in [1, 2].into_iter().cycle() {
                let maintenance = format!("/api/nodes/{}/maintenance", cluster.nodes[node].name);
                let http = &cluster.nodes[node].http;
                http.put(&maintenance, "").with(204);
                http.delete(&maintenance).with(204);
                http.post("/api/rebalance/queues", "").with(204);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        for round in 0..each / 100 {
            for [source, _] in &names {
                (0..100).for_each(|_| client.put(channel, source, b"x"));
            }
            let count = 100 * PAIRS;
            client.confirmed(channel, round * count + 1, (round + 1) * count);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut there = Vec::new();
    // The last of them are on their way.
    for _ in 0..100 {
        let mut ready = |queue: &str| u64::from(client.counts(channel, queue).unwrap().0);
        there = names.iter().map(|[source, target]| (ready(source), ready(target))).collect();
        if there.iter().all(|counts| *counts == (KEPT, each - KEPT)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{there:?} are in the sources and in their targets, of {each} each");
}

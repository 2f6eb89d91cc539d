//! `kill -9` under load, over and over: nothing confirmed is missing, nothing settled comes back,
//! order holds.
//!
//! Invariant: the broker runs on one folder through all rounds, so each round starts on what the
//! crash before it left.
//!
//! `CRASH_ROUNDS` sets how many (few by default), `CRASH_SEED` repeats the moments of the kills of
//! an earlier run; the broker's own threads do not repeat, so a seed makes a failure likely and not
//! certain.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use clients::broker::Broker;
use clients::ledger::Broken;
use clients::load::{Load, LoadedQueue};
use clients::{QueueDeclare, Value};
use rand::{RngExt, SeedableRng};

/// Rounds of the quick tests.
const ROUNDS_DEFAULT: u64 = 8;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = setting("CRASH_SEED", u64::from(now.subsec_nanos()));
    eprintln!("CRASH_SEED={seed}");
    seed
}

/// Files so small that the log is closed, copied out and recycled, and checkpoints are written,
/// many times a round.
const SMALL_FILES: &[&str] = &[
    "--body-bytes-max=1MiB",
    "--wal-file-bytes=4MiB",
    "--wal-retained-bytes=4MiB",
    "--checkpoint-interval-bytes=1MiB",
    "--cache-bytes=1MiB",
];

fn declare(broker: &Broker, name: &str, arguments: &[(&'static str, Value)]) -> LoadedQueue {
    let mut client = broker.connect();
    let channel = client.channel();
    let queue = QueueDeclare { name, durable: true, arguments: arguments.to_vec(), ..Default::default() };
    client.declare(channel, &queue).unwrap();
    client.close();
    LoadedQueue::new(name.to_owned())
}

fn assert_kept(queue: &LoadedQueue, round: u64, broken: &[Broken]) {
    let first = &broken[..broken.len().min(5)];
    assert!(broken.is_empty(), "round {round}, {}: {} promises broken, first {first:?}", queue.name, broken.len());
}

/// Rounds of load, kill, restart and audit. Some rounds kill again while the broker recovers; some
/// leave the queues as they are for the next round, some empty them.
fn rounds(mut broker: Broker, queues: &[LoadedQueue]) {
    let mut random = rand_pcg::Pcg64::seed_from_u64(seed());
    for round in 0..setting("CRASH_ROUNDS", ROUNDS_DEFAULT) {
        let load = Load::start(broker.addr(), queues, 2, 2, random.random());
        std::thread::sleep(Duration::from_millis(random.random_range(5..900)));
        broker.kill();
        assert_eq!(load.join(), [], "round {round}, before the kill");
        while random.random_bool(0.3) {
            broker.launch();
            std::thread::sleep(Duration::from_millis(random.random_range(0..80)));
            broker.kill();
        }
        broker.start();
        let keep = random.random_bool(0.5);
        for queue in queues {
            assert_kept(queue, round, &queue.audit(broker.addr(), keep));
        }
        let totals: Vec<[usize; 4]> = queues.iter().map(|queue| queue.ledger().totals()).collect();
        eprintln!("round {round}: published, confirmed, delivered, settled {totals:?}");
    }
    // The rounds must have put something at stake.
    let at_stake = queues.iter().all(|queue| queue.ledger().totals().iter().all(|count| *count > 0));
    assert!(at_stake, "no load came about");
}

#[test]
fn killed_broker_keeps_its_promises() {
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    let quorum = [("x-queue-type", Value::from("quorum"))];
    let queues = [
        declare(&broker, "quorum-1", &quorum),
        declare(&broker, "quorum-2", &quorum),
        declare(&broker, "classic-1", &[("x-queue-type", Value::from("classic"))]),
        declare(&broker, "plain-1", &[]),
    ];
    rounds(broker, &queues);
}

#[test]
fn killed_broker_keeps_its_promises_while_its_log_rolls_over() {
    let Some(broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let queues =
        [declare(&broker, "quorum", &[("x-queue-type", Value::from("quorum"))]), declare(&broker, "classic", &[])];
    rounds(broker, &queues);
}

#[test]
fn each_level_of_durability_survives_the_death_of_the_process() {
    let Some(broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let level = |name: &'static str| ("x-durability", Value::from(name));
    let selective = [
        level("selective"),
        ("x-durability-value-header", Value::from("amount")),
        ("x-durability-value-cap", Value::from(1000)),
        ("x-durability-interval-ms", Value::from(50)),
    ];
    let queues = [
        declare(&broker, "written", &[level("written")]),
        declare(&broker, "synced", &[level("synced"), ("x-queue-type", Value::from("quorum"))]),
        declare(&broker, "selective", &selective).with_headers(vec![("amount", Value::from(7))]),
        declare(&broker, "written-messages", &[]).with_headers(vec![level("written")]),
        declare(&broker, "synced-messages", &[level("written")]).with_headers(vec![level("synced")]),
    ];
    rounds(broker, &queues);
}

/// The values at risk that the broker has told so far.
fn values_at_risk(broker: &Broker) -> Vec<u64> {
    let log = broker.log();
    let told = log.lines().filter_map(|line| line.split_once("value_at_risk=").map(|(_, rest)| rest));
    told.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()).collect()
}

/// Asks for the gauges and waits for them.
fn ask_for_gauges(broker: &Broker) {
    let before = values_at_risk(broker).len();
    broker.signal(rustix::process::Signal::USR1);
    let due = std::time::Instant::now() + Duration::from_secs(30);
    while values_at_risk(broker).len() == before {
        assert!(std::time::Instant::now() < due, "the gauges do not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn value_at_risk_stays_below_its_cap_and_a_kill_loses_none_of_it() {
    const CAP: i32 = 100;
    const AMOUNT: i32 = 7;
    let Some(mut broker) = Broker::own_or_skip(&["--wal-sync-delay-ms=10000"]) else { return };
    let selective = [
        ("x-durability", Value::from("selective")),
        ("x-durability-value-header", Value::from("amount")),
        ("x-durability-value-cap", Value::from(CAP)),
        ("x-durability-interval-ms", Value::from(10_000)),
    ];
    let queue = declare(&broker, "selective", &selective);
    let mut published: u64 = 0;
    for round in 0..3 {
        let mut client = broker.connect();
        let channel = client.channel();
        client.confirm_select(channel).unwrap();
        let mut confirmed = 0;
        for batch in 0..40 {
            for _ in 0..3 {
                published += 1;
                let properties = clients::Properties::with_headers(&[("amount", Value::from(AMOUNT))]);
                let body = published.to_string();
                let publish =
                    clients::Publish { key: &queue.name, body: body.as_bytes(), properties, ..Default::default() };
                client.publish(channel, &publish);
            }
            client.confirmed(channel, confirmed + 1, confirmed + 3);
            confirmed += 3;
            // When much is at risk: it goes to zero with every fifteenth value.
            if batch % 5 == 3 {
                ask_for_gauges(&broker);
            }
        }
        // 120 values of 7: without a cap 840 were at risk now.
        broker.kill();
        let told = values_at_risk(&broker);
        assert!(told.iter().all(|value| *value <= CAP as u64), "round {round}: {told:?}");
        assert!(told.iter().any(|value| *value > 0), "round {round}: nothing was ever at risk: {told:?}");
        broker.start();
        ask_for_gauges(&broker);
        assert_eq!(values_at_risk(&broker).last(), Some(&0), "what a start found is synced");
        let mut client = broker.connect();
        let channel = client.channel();
        let ready = client.counts(channel, &queue.name).unwrap().0;
        assert_eq!(u64::from(ready), published, "round {round}: what was written is there, at risk or not");
    }
}

/// Numbers of the extents in the folder.
fn extents(broker: &Broker) -> std::collections::BTreeSet<u64> {
    let Ok(entries) = std::fs::read_dir(broker.data_folder().join("extents")) else { return Default::default() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.map(|name| u64::from_str_radix(name.split('.').next().unwrap(), 16).unwrap()).collect()
}

#[test]
fn extent_numbers_are_not_used_again_after_a_restart() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let queue = declare(&broker, "q", &[]);
    let (mut highest, mut gone) = (0, 0);
    for life in 0..3 {
        let mut client = broker.connect();
        let channel = client.channel();
        client.confirm_select(channel).unwrap();
        let (mut seen, mut count) = (std::collections::BTreeSet::new(), 0);
        let due = std::time::Instant::now() + Duration::from_secs(60);
        while seen.is_empty() {
            assert!(std::time::Instant::now() < due, "life {life}: no extent came about");
            (0..500).for_each(|_| client.put(channel, &queue.name, &[7; 4000]));
            client.confirmed(channel, count + 1, count + 500);
            count += 500;
            seen.extend(extents(&broker).into_iter().filter(|id| *id > highest));
        }
        client.purge(channel, &queue.name).unwrap();
        // Idle, so that the extents go and a checkpoint says which numbers were used.
        let due = std::time::Instant::now() + Duration::from_secs(60);
        while !extents(&broker).is_empty() {
            assert!(std::time::Instant::now() < due, "life {life}: {:?} stay", extents(&broker));
            seen.extend(extents(&broker));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(seen.first().is_some_and(|first| *first > highest), "life {life}: {seen:?} after {highest}");
        highest = seen.last().copied().unwrap().max(highest);
        gone += seen.len();
        drop(client);
        broker.kill();
        broker.start();
    }
    assert!(gone >= 3);
}

#[test]
fn topology_survives_a_kill() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    for round in 0..5 {
        let mut client = broker.connect();
        let channel = client.channel();
        let name = format!("round-{round}");
        for (exchange, kind) in [("d", "direct"), ("t", "topic"), ("f", "fanout"), ("h", "headers")] {
            let exchange = format!("{exchange}-{round}");
            let exchange = clients::ExchangeDeclare { name: &exchange, kind, durable: true, ..Default::default() };
            client.declare_exchange(channel, &exchange).unwrap();
        }
        client.declare(channel, &QueueDeclare { name: &name, durable: true, ..Default::default() }).unwrap();
        client.bind(channel, &name, &format!("t-{round}"), "a.#", &[]).unwrap();
        client.declare(channel, &QueueDeclare { name: "transient", exclusive: true, ..Default::default() }).unwrap();
        if round > 0 {
            client.delete(channel, &format!("round-{}", round - 1), false, false).unwrap();
            client.delete_exchange(channel, &format!("d-{}", round - 1), false).unwrap();
        }
        // Each answer above was a promise: no pause before the kill.
        broker.kill();
        broker.start();
        let mut client = broker.connect();
        let channel = client.channel();
        client.confirm_select(channel).unwrap();
        let publish =
            clients::Publish { exchange: &format!("t-{round}"), key: "a.b", body: b"x", ..Default::default() };
        client.publish(channel, &publish);
        client.confirmed(channel, 1, 1);
        assert_eq!(client.counts(channel, &name).unwrap().0, 1, "round {round}: queue, exchange and binding survived");
        assert_eq!(client.counts(channel, "transient").unwrap_err().code, 404);
        if round > 0 {
            let channel = client.channel();
            let gone = client.counts(channel, &format!("round-{}", round - 1)).unwrap_err();
            assert_eq!(gone.code, 404, "round {round}: a deleted queue does not come back");
            let channel = client.channel();
            let look = clients::ExchangeDeclare {
                name: &format!("d-{}", round - 1),
                kind: "direct",
                passive: true,
                ..Default::default()
            };
            assert_eq!(client.declare_exchange(channel, &look).unwrap_err().code, 404);
        }
    }
}

#[test]
fn transient_messages_do_not_outlive_a_restart_of_a_classic_queue() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    let queue = declare(&broker, "mixed", &[("x-queue-type", Value::from("classic"))]);
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    client.put(channel, &queue.name, b"durable");
    client.publish(channel, &clients::Publish { key: &queue.name, body: b"transient", ..Default::default() });
    client.confirmed(channel, 1, 2);
    broker.kill();
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    assert_eq!(client.get(channel, &queue.name, true).unwrap().unwrap().body, b"durable");
}

#[test]
fn terminated_broker_exits_cleanly_and_keeps_everything() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    let queues = [declare(&broker, "q", &[("x-queue-type", Value::from("quorum"))]), declare(&broker, "c", &[])];
    for round in 0..3 {
        let load = Load::start(broker.addr(), &queues, 2, 2, round);
        std::thread::sleep(Duration::from_millis(200));
        let status = broker.terminate();
        assert_eq!(status.code(), Some(0), "SIGTERM ends it in good order\n{}", broker.log());
        assert_eq!(load.join(), [], "round {round}");
        broker.start();
        for queue in &queues {
            assert_kept(queue, round, &queue.audit(broker.addr(), round % 2 == 0));
        }
    }
}

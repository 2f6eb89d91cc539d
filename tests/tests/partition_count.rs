//! Starts with another number of partitions than the data folder has.
//!
//! Invariant: a folder keeps the partitions that it has, gets those that are added, and nothing
//! confirmed is lost by either.
#![allow(clippy::unwrap_used)]

use clients::{Broker, QueueDeclare};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Files so small that the log is recycled after some megabytes.
const SMALL_FILES: &[&str] = &[
    "--wal-file-bytes=4MiB",
    "--wal-retained-bytes=4MiB",
    "--checkpoint-interval-bytes=1MiB",
    "--body-bytes-max=1MiB",
];

fn body(number: u64) -> Vec<u8> {
    format!("payment {number}").into_bytes()
}

/// Declares these queues, if they are not there, and publishes one more message to each, confirmed.
fn put_one_each(broker: &Broker, queues: &[String], number: u64) {
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for (at, queue) in queues.iter().enumerate() {
        client.declare(channel, &QueueDeclare { name: queue, durable: true, ..Default::default() }).unwrap();
        client.put(channel, queue, &body(number));
        client.confirmed(channel, at as u64 + 1, at as u64 + 1);
    }
    client.close();
}

/// Takes everything out of each queue: messages 1 to `last`, in order.
fn expect_all(broker: &Broker, queues: &[String], last: u64) {
    let mut client = broker.connect();
    let channel = client.channel();
    for queue in queues {
        for number in 1..=last {
            let delivery = client.get(channel, queue, true).unwrap();
            let delivery = delivery.unwrap_or_else(|| panic!("message {number} of {queue} is gone"));
            assert_eq!(delivery.body, body(number), "{queue}");
        }
        assert!(client.get(channel, queue, true).unwrap().is_none(), "{queue}");
    }
    client.close();
}

/// So many MiB through a queue that the first file of the log is given back, and used again.
fn recycle(broker: &Broker) {
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "through", durable: true, ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    let (large, mut sent) = (vec![b'.'; 900_000], 0);
    let wal = broker.data_folder().join("wal");
    let due = Instant::now() + Duration::from_secs(60);
    let sent_enough = std::cell::Cell::new(false);
    // A file that waits to be used again, and still has its old number, lets the log look as if
    // others were missing.
    let is_recycled = || first_file(&wal) > 2 && (sent_enough.get() || files_of(&wal)[0] < first_file(&wal));
    while !is_recycled() {
        assert!(Instant::now() < due, "the log is not recycled: {:?}", files_of(&wal));
        for _ in 0..6 {
            sent += 1;
            client.put(channel, "through", &large);
            client.confirmed(channel, sent, sent);
        }
        sent_enough.set(sent > 100);
        client.purge(channel, "through").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    client.close();
}

/// The numbers of the log files that are there.
fn files_of(wal: &Path) -> Vec<u64> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(wal).unwrap() {
        let path = entry.unwrap().path();
        let mut header = [0; 24];
        let is_log = path.extension().is_some_and(|extension| extension == "wal");
        if is_log && fs::File::open(&path).is_ok_and(|file| file.read_exact_at(&mut header, 0).is_ok()) {
            numbers.push(u64::from_le_bytes(header[16..].try_into().unwrap()));
        }
    }
    numbers.retain(|number| *number > 0);
    numbers.sort_unstable();
    numbers
}

/// The oldest file from which on none is missing. A file that was given back keeps its number until
/// it is used again.
fn first_file(wal: &Path) -> u64 {
    let numbers = files_of(wal);
    let mut first = numbers.last().copied().unwrap_or(0);
    while first > 1 && numbers.contains(&(first - 1)) {
        first -= 1;
    }
    first
}

fn names(stem: &str, count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{stem}-{number}")).collect()
}

#[test]
fn a_young_folder_keeps_its_partitions_when_fewer_are_asked_for() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let queues = names("payments", 20);
    put_one_each(&broker, &queues, 1);
    broker.kill();
    broker.set_env("LEVERET_PARTITIONS", "4");
    broker.start();
    put_one_each(&broker, &queues, 2);
    recycle(&broker);
    broker.kill();
    broker.start();
    put_one_each(&broker, &queues, 3);
    expect_all(&broker, &queues, 3);
}

#[test]
fn a_folder_whose_log_was_recycled_gets_the_partitions_that_are_added() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let (old, new) = (names("old", 16), names("new", 32));
    put_one_each(&broker, &old, 1);
    recycle(&broker);
    assert!(broker.terminate().success());
    broker.set_env("LEVERET_PARTITIONS", "32");
    broker.start();
    put_one_each(&broker, &new, 1);
    broker.kill();
    // The smaller number takes none of them away again.
    broker.set_env("LEVERET_PARTITIONS", "16");
    broker.start();
    put_one_each(&broker, &old, 2);
    put_one_each(&broker, &new, 2);
    recycle(&broker);
    broker.kill();
    broker.start();
    expect_all(&broker, &old, 2);
    expect_all(&broker, &new, 2);
}

//! What a broker may take of a machine: memory that does not grow with a backlog, disk space that
//! comes back.
//!
//! Invariant: the limits here are far above what is measured and far below what a broker without
//! the property needs.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clients::broker::binary;
use clients::client::{PATIENCE, connect_with_a_small_buffer};
use clients::methods::BASIC_CANCEL_OK;
use clients::{Broker, Client, Event, Properties, Publish, QueueDeclare, Value};

/// Small files, so that a hundred megabytes are many of them.
const SMALL_FILES: &[&str] = &[
    "--body-bytes-max=1MiB",
    "--wal-file-bytes=4MiB",
    "--wal-retained-bytes=16MiB",
    "--checkpoint-interval-bytes=4MiB",
    "--cache-bytes=4MiB",
    "--unwritten-bytes-max=4MiB",
];

const MEBIBYTE: u64 = 1 << 20;

fn resident_bytes(broker: &Broker) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", broker.pid().unwrap())).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
}

/// The most that it ever had.
fn peak_bytes(broker: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid().unwrap())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    // A file may be removed while we look.
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk_bytes(&entry.path()),
        Ok(found) => std::os::unix::fs::MetadataExt::blocks(&found) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Publishes `count` confirmed messages of `body_bytes` each, a thousand unconfirmed at most.
fn publish(broker: &Broker, queue: &str, count: u64, body_bytes: usize) {
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for first in (1..=count).step_by(500) {
        let last = (first + 499).min(count);
        for n in first..=last {
            let mut body = vec![b'.'; body_bytes];
            body[..8].copy_from_slice(&n.to_be_bytes());
            client.put(channel, queue, &body);
        }
        client.confirmed(channel, first, last);
    }
    client.close();
}

/// Consumes and acks `count` messages in order, from number `first` on.
fn consume(broker: &Broker, queue: &str, first: u64, count: u64) {
    let mut client = broker.connect();
    let channel = client.channel();
    client.qos(channel, 500, false).unwrap();
    client.consume(channel, queue, "c").unwrap();
    for n in first..first + count {
        let delivery = client.delivery(channel);
        assert_eq!(u64::from_be_bytes(delivery.body[..8].try_into().unwrap()), n);
        if n % 100 == 0 || n + 1 == first + count {
            client.ack(channel, delivery.tag, true);
        }
    }
    let cancel = clients::wire::Args::new().shortstr("c").octet(0);
    client.call(channel, clients::methods::BASIC_CANCEL, &cancel, BASIC_CANCEL_OK).unwrap();
    client.close();
}

fn declare(broker: &Broker, name: &str, kind: &str) -> Client {
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-queue-type", Value::from(kind))];
    client.declare(channel, &QueueDeclare { name, durable: true, arguments, ..Default::default() }).unwrap();
    client
}

fn wait_until(what: &str, mut check: impl FnMut() -> bool) {
    let due = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < due, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_does_not_grow_with_a_backlog_and_a_restart_does_not_read_it() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    declare(&broker, "long", "quorum");
    // Buffers and caches are full once a few times their size has gone through.
    publish(&broker, "long", 60_000, 1000);
    let before = resident_bytes(&broker);
    publish(&broker, "long", 120_000, 1000);
    // Threads give freed pages back when they fall quiet.
    wait_until("115 MiB more of backlog cost 16 MiB of memory", || {
        resident_bytes(&broker).saturating_sub(before) < 16 * MEBIBYTE
    });
    broker.kill();
    let since = Instant::now();
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    assert_eq!(client.counts(channel, "long").unwrap().0, 180_000);
    assert!(client.get(channel, "long", false).unwrap().is_some());
    assert!(since.elapsed() < Duration::from_secs(10), "serving after {:?}", since.elapsed());
    wait_until("a restart with the backlog costs 16 MiB of memory", || {
        resident_bytes(&broker) < before + 16 * MEBIBYTE
    });
}

#[test]
fn many_publishers_of_tiny_messages_take_no_more_memory_than_the_broker_may_have_unwritten() {
    let Some(broker) = Broker::own_or_skip(&["--shard-threads=1"]) else { return };
    let publishers = 40;
    let tiny = Publish { key: "nothing", properties: Properties::persistent(), ..Publish::default() };
    let bytes = tiny.frames(1, 0).repeat(20_000);
    let arguments = vec![("x-max-length", Value::from(10))];
    let mut first = broker.connect();
    let channel = first.channel();
    first.declare(channel, &QueueDeclare { name: "nothing", durable: true, arguments, ..Default::default() }).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..publishers {
            scope.spawn(|| {
                let mut client = broker.connect();
                let channel = client.channel();
                client.raw(&bytes);
                client.round_trip(channel).unwrap();
            });
        }
    });
    let peak = peak_bytes(&broker);
    assert!(peak < 130 * MEBIBYTE, "{peak} bytes at most");
}

#[test]
fn a_large_message_to_many_queues_is_written_for_one_partition_after_the_other() {
    let Some(broker) = Broker::own_or_skip(&["--partitions=16"]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let queues: Vec<String> = (0..30).map(|number| format!("large.{number}")).collect();
    for name in &queues {
        client.declare(channel, &QueueDeclare { name, durable: true, ..Default::default() }).unwrap();
        client.bind(channel, name, "amq.fanout", "", &[]).unwrap();
    }
    client.confirm_select(channel).unwrap();
    let before = peak_bytes(&broker);
    let body = vec![b'x'; 16 << 20];
    for number in 1..=2 {
        client.publish(channel, &Publish { exchange: "amq.fanout", body: &body, ..Publish::default() });
        client.confirmed(channel, number, number);
    }
    // Sixteen partitions would have as many copies on their way.
    let grown = peak_bytes(&broker) - before;
    assert!(grown < 130 * MEBIBYTE, "{} MiB for messages of 16", grown / MEBIBYTE);
    for name in &queues {
        assert_eq!(client.counts(channel, name).unwrap(), (2, 0), "{name}");
    }
}

#[test]
fn who_always_has_something_to_publish_holds_nobody_up() {
    let Some(broker) = Broker::own_or_skip(&["--shard-threads=1"]) else { return };
    let mut first = broker.connect();
    let channel = first.channel();
    let arguments = vec![("x-max-length", Value::from(1))];
    first.declare(channel, &QueueDeclare { name: "flood", arguments, ..Default::default() }).unwrap();
    let tiny = Publish { key: "flood", body: b"x", ..Publish::default() };
    let bytes = tiny.frames(1, 0).repeat(1_000);
    let (addr, is_over) = (broker.addr(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::connect(addr);
            client.channel();
            while !is_over.load(Ordering::Relaxed) {
                client.raw(&bytes);
            }
        });
        let mut other = broker.connect();
        let channel = other.channel();
        other.declare(channel, &QueueDeclare { name: "other", durable: true, ..Default::default() }).unwrap();
        other.confirm_select(channel).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        for number in 1..=20 {
            other.put(channel, "other", b"m");
            other.confirmed(channel, number, number);
        }
        let took = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        assert!(took < PATIENCE, "{took:?} for twenty publishes");
    });
}

#[test]
fn disk_space_of_consumed_messages_comes_back_also_when_idle() {
    let Some(broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    for kind in ["quorum", "classic"] {
        declare(&broker, kind, kind);
        publish(&broker, kind, 80_000, 1000);
        let full = disk_bytes(&broker.data_folder());
        assert!(full > 76 * MEBIBYTE, "{kind}: 76 MiB of messages are on disk, {} MiB are", full / MEBIBYTE);
        consume(&broker, kind, 1, 80_000);
        // Nothing is published any more: the space has to come back by itself.
        wait_until(&format!("{kind}: the disk space of consumed messages does not come back"), || {
            disk_bytes(&broker.data_folder()) < 56 * MEBIBYTE
        });
    }
}

#[test]
fn one_old_message_pins_nothing_but_itself() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    let mut holder = declare(&broker, "busy", "quorum");
    declare(&broker, "quiet", "classic");
    publish(&broker, "quiet", 1, 100);
    publish(&broker, "busy", 1, 1000);
    // One message is ready and never fetched, one is held by a consumer that never acks.
    let holding = holder.channel();
    assert!(holder.get(holding, "busy", false).unwrap().is_some());
    publish(&broker, "busy", 120_000, 1000);
    consume(&broker, "busy", 1, 120_000);
    wait_until("two old messages pin the disk space of a hundred thousand", || {
        disk_bytes(&broker.data_folder()) < 56 * MEBIBYTE
    });
    // Nobody waits for an ack, so the last of them may come again after a kill; a confirm of what
    // came behind them says that they are written.
    declare(&broker, "behind", "quorum");
    publish(&broker, "behind", 1, 100);
    broker.kill();
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    for queue in ["quiet", "busy"] {
        let kept = client.get(channel, queue, true).unwrap().unwrap_or_else(|| panic!("{queue} kept its old message"));
        assert_eq!((kept.body[7], kept.redelivered), (1, queue == "busy"), "{queue}");
        assert!(client.get(channel, queue, true).unwrap().is_none());
    }
}

#[test]
fn low_disk_blocks_publishers_and_lets_consumers_drain() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    declare(&broker, "q", "quorum");
    publish(&broker, "q", 100, 100);
    assert_eq!(broker.terminate().code(), Some(0));
    // More than any disk has free: the alarm is on from the start.
    broker.set_env("LEVERET_DISK_FREE_MIN_BYTES", "16TiB");
    broker.start();
    let mut publisher = broker.connect();
    let channel = publisher.channel();
    publisher.confirm_select(channel).unwrap();
    // The alarm was there before any client: from who begins to publish nothing more is read.
    publisher.put(channel, "q", b"waits");
    assert!(matches!(publisher.event(0), Event::Method(clients::methods::CONNECTION_BLOCKED, _)));
    publisher.silent(channel);
    consume(&broker, "q", 1, 100);
    // Connections that never publish notice nothing; new ones may declare what is there.
    let mut calm = declare(&broker, "q", "quorum");
    calm.silent(0);
    // Who leaves in good order has the answer behind the publishes that wait; who hangs up is gone
    // at once.
    publisher.start_close();
    publisher.silent(0);
}

#[test]
fn what_is_left_of_a_low_disk_is_for_what_frees_it_and_not_for_declares() {
    let Some((mut broker, http)) = Broker::restartable(&[]) else { return };
    declare(&broker, "kept", "classic");
    let mut client = declare(&broker, "gone", "quorum");
    let channel = client.channel();
    client.bind(channel, "kept", "amq.direct", "old", &[]).unwrap();
    http.put("/api/policies/%2f/old", r#"{"pattern":"^none$","definition":{"max-length":1}}"#).with(201);
    publish(&broker, "kept", 10, 100);
    assert_eq!(broker.terminate().code(), Some(0));
    // More than any disk has free.
    broker.set_env("LEVERET_DISK_FREE_MIN_BYTES", "16TiB");
    broker.start();
    wait_until("the alarm is on", || http.get("/api/health/checks/alarms").status == 503);
    let refused = |what: &str, grow: &mut dyn FnMut(&mut Client, u16) -> Result<(), clients::Closed>| {
        let mut client = broker.connect();
        let channel = client.channel();
        let closed = grow(&mut client, channel).expect_err(what);
        assert_eq!(closed.code, 406, "{what}: {closed:?}");
        assert!(closed.text.contains("low on disk"), "{what}: {closed:?}");
        client.open_channel(channel).unwrap();
    };
    refused("a queue", &mut |client, channel| {
        client.declare(channel, &QueueDeclare { name: "new", durable: true, ..Default::default() }).map(|_| ())
    });
    refused("an exchange", &mut |client, channel| {
        let exchange = clients::ExchangeDeclare { name: "new", kind: "fanout", durable: true, ..Default::default() };
        client.declare_exchange(channel, &exchange)
    });
    refused("a binding", &mut |client, channel| client.bind(channel, "kept", "amq.direct", "new", &[]));
    for (path, body) in [
        ("/api/queues/%2f/new", r#"{"durable":true}"#),
        ("/api/policies/%2f/new", r#"{"pattern":"","definition":{"max-length":1}}"#),
        ("/api/vhosts/new", ""),
    ] {
        let answer = http.put(path, body);
        assert!(answer.status == 400 && answer.text.contains("low on disk"), "{path}: {answer:?}");
    }
    let definitions = r#"{"queues":[{"name":"new","vhost":"/","durable":true,"auto_delete":false,"arguments":{}}]}"#;
    let answer = http.post("/api/definitions", definitions);
    assert!(answer.status == 400 && answer.text.contains("low on disk"), "{answer:?}");
    // What is there, and what takes nothing of the disk, may be declared; what frees it may be
    // done.
    let mut client = declare(&broker, "kept", "classic");
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "transient", ..Default::default() }).unwrap();
    client.bind(channel, "transient", "amq.direct", "transient", &[]).unwrap();
    client.bind(channel, "kept", "amq.direct", "old", &[]).unwrap();
    consume(&broker, "kept", 1, 5);
    http.delete("/api/queues/%2f/kept/contents").with(204);
    assert_eq!(client.counts(channel, "kept").unwrap().0, 0);
    http.delete("/api/bindings/%2f/e/amq.direct/q/kept/old").with(204);
    http.delete("/api/policies/%2f/old").with(204);
    http.put("/api/users/somebody", r#"{"password":"p","tags":""}"#).with(201);
    http.delete("/api/queues/%2f/gone").with(204);
    assert_eq!(client.counts(channel, "gone").unwrap_err().code, 404);
}

#[test]
fn selectors_that_take_too_long_refuse_the_message_and_hold_nobody_up() {
    let Some(broker) = Broker::own_or_skip(&["--shard-threads=1"]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let jms = clients::ExchangeDeclare { name: "jms", kind: "x-jms-topic", ..Default::default() };
    client.declare_exchange(channel, &jms).unwrap();
    client.declare(channel, &QueueDeclare { name: "selected", ..Default::default() }).unwrap();
    // What a user may bind: many patterns, each of which tries each place of a long text. A tree,
    // as a chain would be too deep.
    fn any_of(patterns: &[String]) -> String {
        match patterns {
            [one] => format!(r#"{{'like',{{'ident',<<"h">>}},<<"{one}">>,no_escape}}"#),
            _ => {
                let (left, right) = patterns.split_at(patterns.len() / 2);
                format!("{{'or',{},{}}}", any_of(left), any_of(right))
            }
        }
    }
    let patterns: Vec<String> = (0..600).map(|number| format!("%a_b{number}%")).collect();
    let selector = format!("{}.", any_of(&patterns));
    for key in 0..3 {
        let text = selector.replace("a_b", &format!("a_{key}"));
        client.bind(channel, "selected", "jms", "", &[("rjms_erlang_selector", Value::from(&*text))]).unwrap();
    }
    let too_large = format!("{}.", any_of(&vec!["%".repeat(100); 600]));
    let mut second = broker.connect();
    let other = second.channel();
    let bound = second.bind(other, "selected", "jms", "", &[("rjms_erlang_selector", Value::from(&*too_large))]);
    assert_eq!(bound.unwrap_err().code, 406);
    let put = |client: &mut Client, channel: u16, h: &str| {
        client.confirm_select(channel).unwrap();
        let properties = clients::Properties::with_headers(&[("h", Value::from(h))]);
        client.publish(channel, &clients::Publish { exchange: "jms", properties, body: b"m", ..Default::default() });
    };
    put(&mut client, channel, "an axb7 is in it");
    client.confirmed(channel, 1, 1);
    assert!(client.get(channel, "selected", true).unwrap().is_none());
    put(&mut client, channel, &"a".repeat(100_000));
    let closed = client.closed(channel);
    assert_eq!(closed.code, 406, "{closed:?}");
    assert!(closed.text.contains("selectors"), "{closed:?}");
    // The next one is held against them as before.
    let channel = client.channel();
    put(&mut client, channel, "ax17");
    client.confirmed(channel, 1, 1);
    assert_eq!(client.get(channel, "selected", true).unwrap().unwrap().body, b"m");
}

#[test]
fn bindings_that_bring_a_history_hold_nobody_up() {
    if clients::broker::is_foreign() {
        return eprintln!("skipped: the exchange is in a plugin there");
    }
    let Some((mut broker, http)) = Broker::managed(&["--shard-threads=1"]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-recent-history-length", Value::from(5000))];
    let recent = clients::ExchangeDeclare { name: "recent", kind: "x-recent-history", arguments, ..Default::default() };
    client.declare_exchange(channel, &recent).unwrap();
    let arguments = vec![("x-max-length", Value::from(1))];
    client.declare(channel, &QueueDeclare { name: "late", arguments, ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    (0..5000).for_each(|_| {
        client.publish(channel, &clients::Publish { exchange: "recent", body: b"m", ..Default::default() });
    });
    client.confirmed(channel, 1, 5000);
    let mut other = broker.connect();
    let of_other = other.channel();
    other.declare(of_other, &QueueDeclare { name: "other", ..Default::default() }).unwrap();
    other.confirm_select(of_other).unwrap();
    let mut frames = Vec::new();
    for key in 0..1000 {
        let args = clients::wire::Args::new().short(0).shortstr("late").shortstr("recent").shortstr(&key.to_string());
        let args = args.octet(0).table(&[]);
        frames.extend(clients::client::method_frame(channel, clients::methods::QUEUE_BIND, &args));
    }
    client.raw(&frames);
    client.wait(channel, clients::methods::QUEUE_BIND_OK).unwrap();
    // Somebody else, on the same shard, has an answer long before all of them.
    other.put(of_other, "other", b"m");
    other.confirmed(of_other, 1, 1);
    let bindings = http.get("/api/queues/%2f/late/bindings").json().as_array().unwrap().len();
    assert!(bindings < 900, "{bindings} histories were sent before one message of somebody else");
    broker.kill();
}

#[test]
fn histories_of_many_bindings_wait_for_the_log_and_not_in_memory() {
    if clients::broker::is_foreign() {
        return eprintln!("skipped: the exchange is in a plugin there");
    }
    let Some(broker) = Broker::own_or_skip(&["--shard-threads=1"]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-recent-history-length", Value::from(1000))];
    let recent = clients::ExchangeDeclare { name: "recent", kind: "x-recent-history", arguments, ..Default::default() };
    client.declare_exchange(channel, &recent).unwrap();
    let arguments = vec![("x-max-length", Value::from(1))];
    let late = QueueDeclare { name: "late", durable: true, arguments, ..Default::default() };
    client.declare(channel, &late).unwrap();
    client.confirm_select(channel).unwrap();
    for _ in 0..1000 {
        client.publish(channel, &clients::Publish { exchange: "recent", body: &[7; 10_000], ..Default::default() });
    }
    client.confirmed(channel, 1, 1000);
    let before = peak_bytes(&broker);
    const BINDINGS: usize = 60;
    let mut frames = Vec::new();
    for key in 0..BINDINGS {
        let args = clients::wire::Args::new().short(0).shortstr("late").shortstr("recent").shortstr(&key.to_string());
        frames.extend(clients::client::method_frame(channel, clients::methods::QUEUE_BIND, &args.octet(0).table(&[])));
    }
    client.raw(&frames);
    for number in 0..BINDINGS {
        client.wait(channel, clients::methods::QUEUE_BIND_OK).unwrap_or_else(|closed| panic!("{number}: {closed:?}"));
    }
    let grown = peak_bytes(&broker).saturating_sub(before) / MEBIBYTE;
    assert!(grown < 120, "{grown} MiB for 600 MB of history that went to a queue");
}

#[test]
fn answers_that_nobody_reads_take_a_limit_and_make_nobody_wait() {
    if clients::broker::is_foreign() {
        return eprintln!("skipped: the limits are our own");
    }
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    for number in 0..6000 {
        let name = format!("{}{number:04}", "long".repeat(60));
        client.declare(channel, &QueueDeclare { name: &name, ..Default::default() }).unwrap();
    }
    http.put("/api/users/watcher", r#"{"password":"p","tags":"monitoring"}"#).with(201);
    let login = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
    let before = resident_bytes(&broker);
    let mut unread = Vec::new();
    for number in 0..64 {
        let value = serde_json::json!({ "value": "x".repeat(60_000) }).to_string();
        http.put(&format!("/api/global-parameters/large{number}"), &value).with(201);
    }
    // Megabytes each, for a client that reads nothing, and for strangers likewise.
    let of_clients = ["/api/queues", "/api/global-parameters", "/api/definitions"].map(|path| (path, login, 76));
    for (path, login, count) in of_clients.into_iter().chain([("/metrics/per-object", "", 40)]) {
        let from = unread.len();
        for _ in 0..count {
            let mut socket = connect_with_a_small_buffer(http.addr());
            write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{login}\r\n").unwrap();
            unread.push(socket);
        }
        if !login.is_empty() {
            // Somebody else has an answer while most of those have none.
            http.as_user("watcher", "p").get("/api/whoami").with(200);
            let has_answer = |socket: &&TcpStream| {
                socket.set_nonblocking(true).unwrap();
                socket.peek(&mut [0]).is_ok()
            };
            let answered = unread[from..].iter().filter(has_answer).count();
            assert!(answered < count / 2, "{answered} of {count} long answers were made before a short one");
        }
    }
    // Once all are made, or were given up.
    wait_until("every request is answered or refused", || {
        unread.iter().all(|socket| {
            socket.set_nonblocking(true).unwrap();
            socket.peek(&mut [0]).map_or_else(|error| error.kind() != std::io::ErrorKind::WouldBlock, |_| true)
        })
    });
    // Threads give the pages in which answers were made back when they fall quiet.
    wait_until("answers that nobody reads take 110 MiB", || {
        resident_bytes(&broker).saturating_sub(before) < 110 * MEBIBYTE
    });
    assert!(http.get("/metrics/per-object").text.ends_with("# EOF\n"), "who reads has all of it");
    drop(unread);
    assert_eq!(http.get("/api/queues?columns=name").json().as_array().unwrap().len(), 6000);
}

#[test]
fn deliveries_that_one_client_leaves_unread_are_bounded_however_many_channels_it_has() {
    if clients::broker::is_foreign() {
        return eprintln!("skipped: another broker's memory is its own");
    }
    // The queues are on all of them, the client on one.
    let Some(broker) = Broker::own_or_skip(&["--shard-threads=4"]) else { return };
    const QUEUES: usize = 20;
    const MESSAGES: u64 = 200;
    let queue = |number: usize| format!("q{}", number % QUEUES);
    let mut publisher = broker.connect();
    let channel = publisher.channel();
    publisher.confirm_select(channel).unwrap();
    for number in 0..QUEUES {
        declare(&broker, &queue(number), "quorum");
    }
    for number in 0..MESSAGES {
        let mut body = vec![7; MEBIBYTE as usize];
        body[..8].copy_from_slice(&number.to_be_bytes());
        publisher.put(channel, &queue(number as usize), &body);
    }
    publisher.confirmed(channel, 1, MESSAGES);
    let before = resident_bytes(&broker);
    let most = |what: &str| {
        for _ in 0..25 {
            let more = resident_bytes(&broker).saturating_sub(before) / MEBIBYTE;
            assert!(more < 80, "{more} MiB for {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let socket = connect_with_a_small_buffer(broker.addr());
    let mut client = Client::on(socket.try_clone().unwrap());
    let consume = |channel: u16| {
        let args =
            clients::wire::Args::new().short(0).shortstr(&queue(channel.into())).shortstr("").octet(0).table(&[]);
        clients::client::method_frame(channel, clients::methods::BASIC_CONSUME, &args)
    };
    let channels: Vec<u16> = (0..400).map(|_| client.channel()).collect();
    let frames: Vec<u8> = channels.iter().flat_map(|channel| consume(*channel)).collect();
    client.raw(&frames);
    most("400 consumers");
    // Nor does it help to leave a channel and come with another.
    let mut other = Client::on(connect_with_a_small_buffer(broker.addr()));
    for channel in 1..100_u16 {
        let frame = |method, args: &clients::wire::Args| clients::client::method_frame(channel, method, args);
        let open = frame(clients::methods::CHANNEL_OPEN, &clients::wire::Args::new().shortstr(""));
        other.raw(&[open, consume(channel)].concat());
        // So that something is on its way to the channel when it ends.
        std::thread::sleep(Duration::from_millis(10));
        let close = clients::wire::Args::new().short(200).shortstr("").short(0).short(0);
        other.raw(&frame(clients::methods::CHANNEL_CLOSE, &close));
    }
    most("channels that came and went");
    drop(other);
    // Once it reads it has all of them. Through so small a buffer that would take minutes.
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1 << 20).unwrap();
    let (mut seen, due) = (BTreeSet::new(), Instant::now() + 2 * PATIENCE);
    while seen.len() < MESSAGES as usize {
        assert!(Instant::now() < due, "{} of {MESSAGES} came", seen.len());
        for channel in &channels {
            match client.event_within(*channel, Duration::from_millis(1)) {
                Some(Event::Delivery(delivery)) => drop(seen.insert(delivery.body[..8].to_vec())),
                Some(Event::Closed(closed)) => panic!("it is closed: {closed:?}"),
                _ => {}
            }
        }
    }
}

#[test]
fn messages_that_one_client_fetches_and_leaves_unread_are_bounded() {
    if clients::broker::is_foreign() {
        return eprintln!("skipped: another broker's memory is its own");
    }
    let Some(broker) = Broker::own_or_skip(&[]) else { return };
    let mut publisher = broker.connect();
    let channel = publisher.channel();
    publisher.confirm_select(channel).unwrap();
    declare(&broker, "large", "quorum");
    publisher.put(channel, "large", &vec![7; MEBIBYTE as usize]);
    publisher.confirmed(channel, 1, 1);
    let before = peak_bytes(&broker);
    let mut client = Client::on(connect_with_a_small_buffer(broker.addr()));
    // Each pair is a few bytes and asks for a mebibyte.
    const PAIRS: u64 = 300;
    let channel = client.channel();
    let get = clients::wire::Args::new().short(0).shortstr("large").octet(0);
    let get = clients::client::method_frame(channel, clients::methods::BASIC_GET, &get);
    let recover = clients::wire::Args::new().octet(1);
    let recover = clients::client::method_frame(channel, clients::methods::BASIC_RECOVER, &recover);
    client.raw(&[get, recover].concat().repeat(PAIRS as usize));
    std::thread::sleep(Duration::from_secs(2));
    let grown = peak_bytes(&broker).saturating_sub(before) / MEBIBYTE;
    assert!(grown < 50, "{grown} MiB for messages that nobody reads");
    // Who reads has an answer to each.
    for number in 1..=PAIRS {
        client
            .wait(channel, clients::methods::BASIC_RECOVER_OK)
            .unwrap_or_else(|closed| panic!("{number}: {closed:?}"));
    }
}

#[test]
fn a_search_among_many_queues_takes_no_memory_for_those_that_it_does_not_show() {
    if clients::broker::is_foreign() {
        return eprintln!("skipped: another broker's memory is its own");
    }
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    for number in 0..20_000 {
        let name = format!("{}{number:05}", "long".repeat(60));
        client.declare(channel, &QueueDeclare { name: &name, ..Default::default() }).unwrap();
    }
    // From the first look on there are samples of each queue.
    http.get("/api/queues?page=1").with(200);
    let before = peak_bytes(&broker);
    for (query, found) in [("name=long", 20_000), ("name=none", 0), ("name=0000%5B0-9%5D%24&use_regex=true", 10)] {
        let page = http.get(&format!("/api/queues?{query}&page=1&page_size=10&sort=messages")).with(200);
        assert_eq!((&page["filtered_count"], &page["total_count"]), (&found.into(), &20_000.into()), "{query}");
        assert_eq!(http.get(&format!("/api/queues?{query}&page=1")).with(200)["filtered_count"], found, "{query}");
    }
    let grown = peak_bytes(&broker).saturating_sub(before);
    assert!(grown < 60 * MEBIBYTE, "{} MiB for ten queues that are shown", grown / MEBIBYTE);
}

#[test]
fn inspect_reads_the_folder_of_a_killed_broker_and_changes_nothing() {
    let Some(mut broker) = Broker::own_or_skip(SMALL_FILES) else { return };
    declare(&broker, "q", "quorum");
    publish(&broker, "q", 30_000, 1000);
    broker.kill();
    let listing = |folder: &Path| {
        Command::new("find").arg(folder).args(["-type", "f", "-printf", "%P %s %T@\\n"]).output().unwrap().stdout
    };
    // A kill may come while an extent or a checkpoint is being written: that is unfinished, and no
    // damage.
    let look = |folder: &Path, depth: &[&str]| {
        let before = listing(folder);
        let output = Command::new(binary()).arg("inspect").arg(folder).args(depth).env_clear().output().unwrap();
        assert_eq!(listing(folder), before, "{depth:?} only reads");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("DAMAGED"), "{depth:?}: {text}");
        assert_eq!(output.status.code(), Some(0), "{depth:?}: {text}");
        assert!(text.contains("wal/00000001.wal"), "{depth:?} shows the log: {text}");
    };
    for depth in [&[][..], &["--records"], &["--messages"]] {
        look(&broker.data_folder(), depth);
    }
    broker.start();
    assert_eq!(broker.terminate().code(), Some(0));
    look(&broker.data_folder(), &["--messages"]);
}

/// Ways through so many queues that lead to each other, without a circle: 10 million.
const QUEUES_IN_A_RING: usize = 11;

#[test]
fn a_message_that_becomes_millions_of_dead_letters_holds_nobody_up() {
    let Some(mut broker) = Broker::own_or_skip(&["--shard-threads=1"]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let fanout = clients::ExchangeDeclare { name: "round", kind: "fanout", ..Default::default() };
    client.declare_exchange(channel, &fanout).unwrap();
    for number in 0..QUEUES_IN_A_RING {
        let name = format!("ring.{number}");
        let arguments = vec![("x-dead-letter-exchange", Value::from("round")), ("x-message-ttl", Value::from(0))];
        client.declare(channel, &QueueDeclare { name: &name, arguments, ..Default::default() }).unwrap();
        client.bind(channel, &name, "round", "", &[]).unwrap();
    }
    let publish = clients::Publish { exchange: "round", body: b"one", ..Default::default() };
    client.publish(channel, &publish);
    // Somebody else, on the same shard.
    let mut other = broker.connect();
    let channel = other.channel();
    other.declare(channel, &QueueDeclare { name: "other", ..Default::default() }).unwrap();
    other.confirm_select(channel).unwrap();
    for number in 1..=20 {
        other.put(channel, "other", b"m");
        other.confirmed(channel, number, number);
    }
    broker.kill();
}

/// Its channel is closed by rules that know nothing of the log.
#[test]
fn a_message_that_is_too_large_is_told_of_in_the_log() {
    let Some(broker) = Broker::own_or_skip(&["--body-bytes-max=1MiB"]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.put(channel, "nowhere", &vec![b'x'; (1 << 20) + 1]);
    assert_eq!(client.closed(channel).code, 406);
    let line = "channel error peer=";
    let text = "message size 1048577 is larger than configured max size 1048576";
    let due = Instant::now() + PATIENCE;
    while !broker.log().lines().any(|told| told.contains(line) && told.contains(text)) {
        assert!(Instant::now() < due, "{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    // What the session itself refuses is told once.
    let channel = client.channel();
    assert_eq!(client.counts(channel, "not there").unwrap_err().code, 404);
    let channel = client.channel();
    client.close_channel(channel);
    assert_eq!(broker.log().lines().filter(|told| told.contains(line) && told.contains("not there")).count(), 1);
}

/// Replies that wait for who asked, and everybody else.
#[test]
fn replies_that_nobody_reads_hold_up_no_publisher_and_come_again_once_they_are_read() {
    const REPLIES: u64 = 150;
    let arguments = ["--transient-bytes-max=64MiB", "--user-bytes-max=64MiB", "--connection-bytes-max=32MiB"];
    let Some(broker) = Broker::own_or_skip(&arguments) else { return };
    let reply_to = "amq.rabbitmq.reply-to";
    let mut asker = broker.connect();
    let asking = asker.channel();
    asker.consume_with(asking, reply_to, "", [false, true, false], &[]).unwrap();
    let mut replier = broker.connect();
    let replying = replier.channel();
    replier.declare(replying, &QueueDeclare { name: "calls", ..Default::default() }).unwrap();
    let properties = Properties::only(9, clients::wire::Args::new().shortstr(reply_to).0);
    asker.publish(asking, &Publish { key: "calls", body: b"?", properties, ..Default::default() });
    let due = Instant::now() + PATIENCE;
    let call = loop {
        match replier.get(replying, "calls", true).unwrap() {
            Some(call) => break call,
            None => assert!(Instant::now() < due, "no call comes"),
        }
    };
    let name = clients::wire::Reader(&call.properties.bytes).shortstr();
    replier.confirm_select(replying).unwrap();
    // The asker reads none of them. Mandatory ones are not returned: it is there.
    let mut body = vec![b'.'; MEBIBYTE as usize];
    for n in 1..=REPLIES {
        body[..8].copy_from_slice(&n.to_be_bytes());
        replier.publish(replying, &Publish { key: &name, body: &body, mandatory: true, ..Default::default() });
        replier.confirmed(replying, n, n);
    }
    let mut stranger = broker.connect();
    let channel = stranger.channel();
    stranger.declare(channel, &QueueDeclare { name: "other", ..Default::default() }).unwrap();
    stranger.confirm_select(channel).unwrap();
    stranger.put(channel, "other", b"m");
    stranger.confirmed(channel, 1, 1);
    let told = || broker.log().matches("direct replies are dropped").count();
    assert_eq!(told(), 1, "{}", broker.log());
    // It reads again: first what waits, in order, then what comes.
    let number = |body: &[u8]| u64::from_be_bytes(body[..8].try_into().unwrap());
    let mut last = 0;
    while let Some(event) = asker.event_within(asking, Duration::from_secs(1)) {
        let Event::Delivery(reply) = event else { panic!("{event:?}") };
        assert_eq!(number(&reply.body), last + 1, "the oldest wait");
        last += 1;
    }
    assert!((16..REPLIES).contains(&last), "a quarter of 64 MiB, and what sockets take: {last}");
    body[..8].copy_from_slice(&(REPLIES + 1).to_be_bytes());
    replier.publish(replying, &Publish { key: &name, body: &body, mandatory: true, ..Default::default() });
    replier.confirmed(replying, REPLIES + 1, REPLIES + 1);
    assert_eq!(number(&asker.delivery(asking).body), REPLIES + 1);
    assert_eq!(told(), 1);
}

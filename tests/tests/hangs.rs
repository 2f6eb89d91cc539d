//! What the broker says when it hangs: a request that is not answered and a publish that is not
//! confirmed are never silent.
//!
//! Invariant: the threads that speak to the disk are stopped, nothing else is. They go on at the
//! end, and all that was asked is answered then: it was them that everybody waited for.
#![allow(clippy::unwrap_used)]

use clients::broker::is_foreign;
use clients::client::PATIENCE;
use clients::methods::*;
use clients::wire::Args;
use clients::{Broker, Client, Event, Http, QueueDeclare, Stopped};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// More than a shard writes to the disk itself, so that it is the log's thread that everybody waits
/// for.
const LARGE: usize = 300_000;

/// Each way to wait, by the queue that is waited for.
const METHODS: [(&str, &str); 4] = [
    ("to-declare", "queue.declare"),
    ("to-get", "basic.get"),
    ("to-purge", "queue.purge"),
    ("to-delete", "queue.delete"),
];
const PUBLISHED: &str = "to-publish";
const PURGED_OVER_HTTP: &str = "to-purge-over-http";

fn durable(name: &str) -> QueueDeclare<'_> {
    QueueDeclare { name, durable: true, ..Default::default() }
}

/// The lines of the log that warn of a queue that somebody waits for.
fn told<'a>(log: &'a str, queue: &str) -> Vec<&'a str> {
    let named = [format!(" queue={queue} "), format!(" queues={queue} ")];
    let is_of = |line: &&str| line.contains(" is not ") && named.iter().any(|named| line.contains(named));
    log.lines().filter(|line| line.contains("WARN")).filter(is_of).collect()
}

fn partition_of(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("partition=").or_else(|| line.split_once("partitions=["))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Sends a request over HTTP and does not wait for its answer.
fn ask_over_http(http: &Http, method: &str, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(http.addr()).unwrap();
    let guest = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=";
    let request = format!("{method} {path} HTTP/1.1\r\nHost: broker\r\n{guest}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn status(mut socket: TcpStream) -> String {
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn a_hang_is_told_once_with_queue_and_partition_and_shown_to_who_asks() {
    if is_foreign() {
        eprintln!("skipped: RabbitMQ tells nobody");
        return;
    }
    let (mut broker, http) = Broker::managed(&[]).unwrap();
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    let queues = ["to-get", "to-purge", "to-delete", PUBLISHED, PURGED_OVER_HTTP];
    for name in queues {
        client.declare(channel, &durable(name)).unwrap();
        client.put(channel, name, b"kept");
    }
    client.confirmed(channel, 1, queues.len() as u64);
    // After a restart no message is in memory, so that who gets one waits for the disk.
    assert_eq!(broker.terminate().code(), Some(0));
    broker.start();

    let mut client = broker.connect();
    let publishing = client.channel();
    client.confirm_select(publishing).unwrap();
    let channels = METHODS.map(|_| client.channel());
    let hanging = ["wal", "reader"].map(|name| Stopped::thread(&broker, name));
    client.put(publishing, PUBLISHED, &[7; LARGE]);
    // It is the thread's business once it has all come: what is small and came before it a shard would write itself.
    std::thread::sleep(Duration::from_millis(500));
    for ((queue, method), channel) in METHODS.into_iter().zip(channels) {
        let named = Args::new().short(0).shortstr(queue);
        match method {
            "queue.declare" => client.send(channel, QUEUE_DECLARE, &named.octet(0b10).table(&[])),
            "basic.get" => client.send(channel, BASIC_GET, &named.octet(1)),
            "queue.purge" => client.send(channel, QUEUE_PURGE, &named.octet(0)),
            _ => client.send(channel, QUEUE_DELETE, &named.octet(0)),
        }
    }
    let path = format!("/api/queues/%2F/{PURGED_OVER_HTTP}/contents");
    let purging = ask_over_http(&http, "DELETE", &path);

    let all: Vec<&str> = METHODS.iter().map(|(queue, _)| *queue).chain([PURGED_OVER_HTTP, PUBLISHED]).collect();
    let due = Instant::now() + PATIENCE + Duration::from_secs(20);
    let untold = || all.iter().filter(|queue| told(&broker.log(), queue).is_empty()).collect::<Vec<_>>();
    while !untold().is_empty() {
        assert!(Instant::now() < due, "not told of: {:?}", untold());
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = http.get("/api/leveret/waiting").with(200);
    let of = |queue: &str| -> Value {
        let found: Vec<_> = shown.as_array().unwrap().iter().filter(|waiting| waiting["queue"] == queue).collect();
        assert_eq!(found.len(), 1, "{queue}: {shown}");
        found[0].clone()
    };
    let log = broker.log();
    for (queue, method) in METHODS.into_iter().chain([(PUBLISHED, "basic.publish"), (PURGED_OVER_HTTP, "DELETE")]) {
        let line = told(&log, queue)[0];
        let waiting = of(queue);
        assert!(waiting["method"].as_str().unwrap().starts_with(method), "{waiting}");
        assert!(waiting["waited_ms"].as_u64().unwrap() >= 9_000, "{waiting}");
        assert!(method == "basic.publish" || line.contains(method), "{line}");
        // A queue that is being declared is in no partition yet: it is the topology that does not
        // answer.
        let partition = (method != "queue.declare").then(|| waiting["partitions"][0].as_u64().unwrap());
        assert_eq!(partition_of(line), partition, "{line}\n{waiting}");
    }

    drop(hanging);
    client.confirmed(publishing, 1, 1);
    let answers = [QUEUE_DECLARE_OK, BASIC_GET_OK, QUEUE_PURGE_OK, QUEUE_DELETE_OK];
    for (answer, channel) in answers.into_iter().zip(channels) {
        match client.event(channel) {
            Event::Delivery(delivery) => assert_eq!(delivery.body, b"kept"),
            Event::Method(method, _) => assert_eq!(method, answer),
            other => panic!("an answer was due, got {other:?}"),
        }
    }
    assert_eq!(status(purging), "HTTP/1.1 204 No Content");
    assert_eq!(http.get("/api/leveret/waiting").with(200), serde_json::json!([]));
    let log = broker.log();
    for queue in all {
        assert_eq!(told(&log, queue).len(), 1, "once: {:?}", told(&log, queue));
    }
    let _: Client = client;
}

//! Publishers that an alarm holds back: those that are gone are noticed, those that are there are
//! not, and what waits is bounded.
//!
//! Invariant: each test has a broker of its own, as an alarm is everybody's.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use clients::client::{FRAME_HEARTBEAT, PATIENCE, frame};
use clients::methods::CONNECTION_BLOCKED;
use clients::{Broker, Client, Event, Http, Login, QueueDeclare};

const HEARTBEAT_S: u16 = 1;
static BODY: [u8; 100_000] = [7; 100_000];
/// More than the broker takes in of a publisher that is held back, sockets and all that was read of
/// it included.
const MANY: usize = 20;

const QUEUE: &str = "everybody-s";
const EXCLUSIVE: &str = "its-own";

fn alarm(broker: &Broker, http: &Http, on: bool) {
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let path = format!("/api/nodes/{node}/publishers/hold");
    let response = if on { http.put(&path, "") } else { http.delete(&path) };
    assert_eq!(response.status, 204, "{response:?}\n{}", broker.log());
}

/// A broker with an alarm, and a publisher that it holds back: with an exclusive queue and a
/// consumer, and so many publishes on their way. One is so large that nothing behind it is read.
fn held(publishes: usize) -> Option<(Broker, Http, Client, Client, u16)> {
    held_with(HEARTBEAT_S, publishes)
}

fn held_with(heartbeat: u16, publishes: usize) -> Option<(Broker, Http, Client, Client, u16)> {
    let (broker, http) = Broker::managed(&[]).filter(|_| !clients::broker::is_foreign())?;
    let mut watcher = broker.connect();
    let watching = watcher.channel();
    watcher.declare(watching, &QueueDeclare { name: QUEUE, ..Default::default() }).unwrap();
    let mut publisher = Client::login(broker.addr(), &Login { heartbeat, ..Default::default() }).unwrap();
    let (consuming, channel) = (publisher.channel(), publisher.channel());
    let exclusive = QueueDeclare { name: EXCLUSIVE, exclusive: true, ..Default::default() };
    publisher.declare(consuming, &exclusive).unwrap();
    publisher.consume(consuming, QUEUE, "c").unwrap();
    publisher.confirm_select(channel).unwrap();
    alarm(&broker, &http, true);
    for _ in 0..publishes {
        publisher.put(channel, EXCLUSIVE, &BODY);
    }
    assert!(matches!(publisher.event(0), Event::Method(CONNECTION_BLOCKED, _)));
    assert_eq!(left(&http), (true, 1), "nobody is gone yet");
    Some((broker, http, watcher, publisher, channel))
}

/// Whether the publisher's queue is there, and how many consumers.
fn left(http: &Http) -> (bool, usize) {
    let queue = http.get(&format!("/api/queues/%2F/{EXCLUSIVE}"));
    assert!([200, 404].contains(&queue.status), "{queue:?}");
    (queue.status == 200, http.get("/api/consumers").with(200).as_array().unwrap().len())
}

fn wait_until_it_is_gone(http: &Http, how: &str) {
    let since = Instant::now();
    while left(http) != (false, 0) {
        assert!(since.elapsed() < PATIENCE, "{how}: {:?}", left(http));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_held_publisher_that_says_nothing_any_more_is_gone() {
    // As after a pulled cable: there is no end to see.
    let Some((_broker, http, _watcher, _publisher, _)) = held(1) else { return };
    wait_until_it_is_gone(&http, "silent");
}

#[test]
fn a_held_publisher_that_closes_its_end_or_dies_is_gone() {
    // Behind more publishes than there is room for its end does not even arrive.
    let Some((_broker, http, _watcher, publisher, _)) = held(1) else { return };
    publisher.stream.shutdown(Shutdown::Write).unwrap();
    wait_until_it_is_gone(&http, "its end is closed");
    for publishes in [1, MANY] {
        let Some((_broker, http, _watcher, publisher, _)) = held(publishes) else { return };
        drop(publisher);
        wait_until_it_is_gone(&http, "its process is gone");
    }
}

#[test]
fn a_held_publisher_without_heartbeats_that_closes_its_end_is_gone() {
    // What it holds may be what the alarm is about: were it kept until the alarm is over, neither
    // would ever end.
    let Some((broker, http, _watcher, publisher, _)) = held_with(0, 1) else { return };
    drop(publisher);
    wait_until_it_is_gone(&http, "without heartbeats");
    let log = broker.log();
    // Which of the two it is depends on whether it was read once more.
    let why = ["closed by the client while it was held back", "socket closed without connection.close"];
    assert!(why.iter().any(|why| log.contains(why)) && !log.contains("no heartbeat"), "{log}");
}

#[test]
fn a_held_publisher_that_sends_heartbeats_stays_and_goes_on_after_the_alarm() {
    let Some((broker, http, mut watcher, mut publisher, channel)) = held(1) else { return };
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        publisher.raw(&frame(FRAME_HEARTBEAT, 0, b""));
        std::thread::sleep(Duration::from_millis(300));
    }
    let watching = watcher.channel();
    assert_eq!(watcher.counts(watching, QUEUE).unwrap().1, 1, "its consumer is there");
    alarm(&broker, &http, false);
    publisher.confirmed(channel, 1, 1);
}

#[test]
fn a_held_publisher_whose_publishes_leave_no_room_for_heartbeats_stays_too() {
    let Some((broker, http, mut watcher, mut publisher, channel)) = held(MANY) else { return };
    std::thread::sleep(Duration::from_secs(5));
    let watching = watcher.channel();
    assert_eq!(watcher.counts(watching, QUEUE).unwrap().1, 1, "its consumer is there");
    alarm(&broker, &http, false);
    publisher.confirmed(channel, 1, MANY as u64);
}

#[test]
fn what_waits_of_held_publishers_is_bounded() {
    const PUBLISHERS: usize = 100;
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !clients::broker::is_foreign()) else { return };
    let mut publishers: Vec<Client> = (0..PUBLISHERS).map(|_| broker.connect()).collect();
    let resident_kib = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    alarm(&broker, &http, true);
    let before = resident_kib();
    for publisher in &mut publishers {
        let channel = publisher.channel();
        publisher.stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        // Until the sockets are full: 4 MiB and more, of which the broker takes in a part.
        let publish = clients::Publish { key: "nowhere", body: &BODY, ..Default::default() }.frames(channel, 131_072);
        for _ in 0..100 {
            use std::io::Write as _;
            if publisher.stream.write_all(&publish).is_err() {
                break;
            }
        }
    }
    let grown = resident_kib() - before;
    assert!(grown < PUBLISHERS * 512, "{PUBLISHERS} held publishers cost {grown} KiB");
}

/// The kernel's timer of the broker's end of a connection, as `/proc/net/tcp` has it: 2 is keepalive.
fn timer(client: &Client) -> Option<u8> {
    let (near, far) = (client.stream.peer_addr().unwrap(), client.stream.local_addr().unwrap());
    let ends = [near.port(), far.port()].map(|port| format!(":{port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.filter(|row| row.len() > 5).find(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1]))?;
    row[5].split(':').next()?.parse().ok()
}

#[test]
fn a_client_that_is_not_read_and_vanishes_without_a_word_is_looked_after_by_the_kernel() {
    // Nothing else would notice it: it has no heartbeats, and what it holds is for nobody else.
    let Some((_broker, _http, _watcher, publisher, _)) = held_with(0, 1) else { return };
    let due = Instant::now() + PATIENCE;
    // Until all that was written is acknowledged another timer runs.
    while timer(&publisher) != Some(2) {
        assert!(Instant::now() < due, "{:?}", timer(&publisher));
        std::thread::sleep(Duration::from_millis(50));
    }
}

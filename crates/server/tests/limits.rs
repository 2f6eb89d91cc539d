//! Bad and slow clients, alarms, many connections, the end of a node: memory stays bounded and
//! nobody else notices.
#![allow(clippy::unwrap_used)]

mod support;

use amqp::wire::method::Method;
use amqp::{Table, Value};
use bytes::Bytes;
use server::Alarm;
use std::io::Write;
use std::time::{Duration, Instant};
use support::{Client, TestNode, closed, publish_frames};

/// Publishes in the background until it is told to stop, as a client that never waits.
fn flood(node: &TestNode, queue: &'static str, bytes: usize, count: usize) -> std::thread::JoinHandle<Client> {
    let mut client = node.channel();
    client.confirm_select(1);
    std::thread::spawn(move || {
        let mut out = Vec::new();
        (0..64).for_each(|_| publish_frames(&mut out, 1, "", queue, false, &[0, 0], &vec![7; bytes]));
        for _ in 0..count / 64 {
            client.stream.write_all(&out).unwrap();
        }
        client.confirmed((count / 64 * 64) as u64);
        client
    })
}

#[test]
fn a_client_that_does_not_read_stalls_nobody_and_holds_a_window() {
    let node = TestNode::start();
    let (mut slow, mut quick) = (node.channel(), node.channel());
    slow.declare(1, "slow");
    quick.declare(1, "quick");
    slow.consume(1, "slow", "s");
    quick.consume_as(1, "quick", "q", &["no-ack"]);
    // 64 MB for somebody who reads nothing; its socket takes some, its window some, the rest stays
    // in the queue.
    flood(&node, "slow", 1 << 20, 64).join().unwrap();
    let mut publisher = node.channel();
    publisher.confirm_select(1);
    let start = Instant::now();
    for n in 1..=100u64 {
        publisher.publish(1, "", "quick", b"m");
        publisher.confirmed(n);
        quick.delivery();
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let mut watcher = node.channel();
    let (ready, _) = watcher.counts(1, "slow");
    assert!(ready >= 50, "{ready} of 64 messages wait in the queue; the others are on their way");
    // When it reads again it gets everything, in order.
    for tag in 1..=64 {
        assert_eq!(slow.delivery().0, tag);
    }
}

#[test]
fn two_slow_consumers_of_one_connection_share_one_window() {
    let node = TestNode::start();
    let mut slow = node.channel();
    for n in 0..32 {
        slow.declare(1, &format!("q{n}"));
        slow.bind(1, &format!("q{n}"), "amq.fanout", "");
        slow.consume_as(1, &format!("q{n}"), &format!("c{n}"), &["no-ack"]);
    }
    let mut publisher = node.channel();
    publisher.confirm_select(1);
    for n in 1..=64 {
        publisher.publish(1, "amq.fanout", "", &vec![1; 100_000]);
        publisher.confirmed(n);
    }
    // 200 MB are due; the socket's buffers take a few, the window half of one.
    let mut watcher = node.channel();
    let waiting: u32 = (0..32).map(|n| watcher.counts(1, &format!("q{n}")).0).sum();
    assert!(waiting >= 32 * 64 - 160, "{waiting} of 2048 messages wait in their queues");
    for _ in 0..32 * 64 {
        slow.delivery();
    }
}

/// Requests of a connection that is served beside a busy one: more than it takes turns to do the
/// work of that.
const REQUESTS: usize = 10_000;

/// How often another connection is answered while the publishes of one, which came in few reads,
/// are routed: the counts of messages that it is told differ each time. `kind` names the exchange,
/// which leads to so many `queues` by so many `bindings` each.
fn answers_beside(kind: &str, queues: usize, bindings: usize, publishes: usize, in_transaction: bool) -> usize {
    let node = TestNode::start();
    let (mut busy, mut other) = (node.channel(), node.channel());
    let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let exchange = Method::ExchangeDeclare {
        ticket: 0,
        exchange: text("many"),
        kind: text(kind),
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::new(),
    };
    assert_eq!(busy.call(1, &exchange), Method::ExchangeDeclareOk {});
    for queue in 0..queues {
        busy.declare(1, &format!("q{queue}"));
        for binding in 0..bindings {
            let mut arguments = Table::new();
            arguments.push("is", Value::I64(binding as i64));
            let (queue, routing_key) = (text(&format!("q{queue}")), Bytes::new());
            let bind =
                Method::QueueBind { ticket: 0, queue, exchange: text("many"), routing_key, no_wait: false, arguments };
            assert_eq!(busy.call(1, &bind), Method::QueueBindOk {});
        }
    }
    // One header, `is`, which is 0 as a whole number of 64 bits.
    let headers = [0x20, 0, 0, 0, 0, 12, 2, b'i', b's', b'l', 0, 0, 0, 0, 0, 0, 0, 0];
    let mut out = Vec::new();
    for number in 0..publishes {
        // What goes to the same queues as what was before it stands in one batch with it: here none
        // does.
        let (exchange, key) = if number % 2 == 0 { ("many", "") } else { ("", "q0") };
        publish_frames(&mut out, 1, exchange, key, false, &headers, b"");
    }
    if in_transaction {
        assert_eq!(busy.call(1, &Method::TxSelect {}), Method::TxSelectOk {});
        busy.stream.write_all(&out).unwrap();
        out.clear();
        Method::TxCommit {}.write(&mut out, 1);
    }
    let mut requests = other.stream.try_clone().unwrap();
    let passive = Method::QueueDeclare {
        ticket: 0,
        queue: text("q0"),
        passive: true,
        durable: false,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::new(),
    };
    let asks = std::thread::spawn(move || {
        let mut all = Vec::new();
        (0..REQUESTS).for_each(|_| passive.write(&mut all, 1));
        requests.write_all(&all).unwrap();
    });
    let first = other.recv();
    busy.stream.write_all(&out).unwrap();
    let mut told: Vec<u32> = (1..REQUESTS).map(|_| support::declared(other.recv().method).1).collect();
    assert_eq!(support::declared(first.method).1, 0);
    asks.join().unwrap();
    support::eventually("the arrival of all of them", || other.counts(1, "q0").0 as usize == publishes);
    told.retain(|count| (1..publishes as u32).contains(count));
    told.dedup();
    told.len()
}

#[test]
fn others_are_served_between_the_publishes_of_a_busy_connection() {
    // Eight million lookups of headers and rules, or 800,000 messages into queues: fifty turns.
    for (kind, queues, bindings, publishes) in [("headers", 1, 2_000, 4_000), ("fanout", 1_000, 1, 1_600)] {
        for in_transaction in [false, true] {
            let answers = answers_beside(kind, queues, bindings, publishes, in_transaction);
            assert!(answers >= 25, "{answers} beside {kind}, in a transaction: {in_transaction}");
        }
    }
}

#[test]
fn garbage_on_the_port_gets_the_protocol_header_and_a_closed_socket() {
    let node = TestNode::start();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\0\0\0\0\0\0\0\0",
        b"AMQP\x01\x01\0\x0a",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc",
    ] {
        let mut client = Client::raw(node.address());
        client.stream.write_all(garbage).unwrap();
        assert_eq!(client.read_to_end(), b"AMQP\0\0\x09\x01", "{garbage:?}");
    }
    // Bytes that make no sense after a good start.
    let mut client = node.channel();
    client.stream.write_all(&[9; 4096]).unwrap();
    assert_eq!(closed(client.recv().method).0, 501);
    // Half a handshake, then nothing: the node goes on.
    let mut half = Client::raw(node.address());
    half.stream.write_all(b"AMQ").unwrap();
    node.channel().declare(1, "q");
}

#[test]
fn an_unfinished_handshake_is_cut_off_in_time() {
    let node = TestNode::with(|config| config.amqp.handshake_timeout_ms = 200);
    let mut client = Client::raw(node.address());
    client.stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
    let start = Instant::now();
    client.recv();
    assert!(client.read_to_end().is_empty());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_wrong_password_is_refused_late_and_holds_nobody_up() {
    let node = TestNode::start();
    let address = node.address();
    let start = Instant::now();
    let wrong = std::thread::spawn(move || Client::login(address, "guest", "wrong").err().unwrap().unwrap());
    std::thread::sleep(Duration::from_millis(50));
    node.channel().declare(1, "q");
    assert!(start.elapsed() < Duration::from_millis(900), "others wait for nobody: {:?}", start.elapsed());
    let (code, text) = closed(wrong.join().unwrap());
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert_eq!(code, 403);
    assert_eq!(
        text,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    );
}

#[test]
fn an_alarm_blocks_publishers_and_lets_consumers_drain() {
    let node = TestNode::start();
    let (mut publisher, mut consumer) = (node.channel(), node.channel());
    consumer.declare(1, "q");
    publisher.confirm_select(1);
    for n in 1..=3 {
        publisher.publish(1, "", "q", b"before");
        publisher.confirmed(n);
    }
    node.0.set_alarm(Alarm::Disk, true);
    let blocked = publisher.recv().method;
    assert_eq!(blocked, Method::ConnectionBlocked { reason: "low on disk".into() });
    publisher.publish(1, "", "q", b"during");
    consumer.consume(1, "q", "c");
    for tag in 1..=3 {
        assert_eq!(&consumer.delivery().2[..], b"before");
        consumer.ack(1, tag, false);
    }
    assert_eq!(consumer.counts(1, "q"), (0, 1));
    publisher.silent(50);
    node.0.set_alarm(Alarm::Disk, false);
    assert_eq!(publisher.recv().method, Method::ConnectionUnblocked {});
    publisher.confirmed(4);
    assert_eq!(&consumer.delivery().2[..], b"during");
}

#[test]
fn messages_in_memory_beyond_the_budget_block_publishers_until_they_are_consumed() {
    let node = TestNode::with(|config| config.transient_bytes_max = 4 << 20);
    let mut publisher = node.channel();
    publisher.declare(1, "q");
    publisher.confirm_select(1);
    let mut writer = publisher.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for _ in 0..200 {
            let mut out = Vec::new();
            publish_frames(&mut out, 1, "", "q", false, &[0, 0], &[1; 100_000]);
            if writer.write_all(&out).is_err() {
                return;
            }
        }
    });
    loop {
        if let Method::ConnectionBlocked { reason } = publisher.recv().method {
            assert_eq!(&reason[..], b"low on memory");
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    let bytes = node.0.transient_bytes();
    assert!(bytes < 8 << 20, "{bytes} bytes are held with a budget of 4 MB");
    let mut consumer = node.channel();
    consumer.consume_as(1, "q", "c", &["no-ack"]);
    for _ in 0..200 {
        consumer.delivery();
    }
    writing.join().unwrap();
    support::eventually("giving the bytes back", || node.0.transient_bytes() == 0);
}

#[test]
fn a_thousand_connections_are_served_and_cost_little() {
    let node = TestNode::start();
    let before = resident_bytes();
    let mut clients: Vec<Client> = (0..1000).map(|_| node.channel()).collect();
    assert_eq!(node.0.connections(), 1000);
    let each = (resident_bytes().saturating_sub(before)) / 1000;
    // The client's side of each connection is in this process too.
    assert!(each < 32 << 10, "{each} bytes a connection");
    for (n, client) in clients.iter_mut().enumerate() {
        client.declare(1, &format!("q{n}"));
        client.consume_as(1, &format!("q{n}"), "c", &["no-ack"]);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        client.publish(1, "", &format!("q{}", (n + 1) % 1000), &(n as u32).to_be_bytes());
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.delivery().2, &((n as u32 + 999) % 1000).to_be_bytes()[..]);
    }
    drop(clients);
    for _ in 0..500 {
        if node.0.connections() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} connections are left", node.0.connections());
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn connections_beyond_the_limit_are_closed_and_the_others_stay() {
    let node = TestNode::with(|config| config.connections_max = 2);
    let (mut first, _second) = (node.channel(), node.channel());
    let mut third = Client::raw(node.address());
    let _ = third.stream.write_all(b"AMQP\0\0\x09\x01");
    assert!(third.read_to_end().is_empty());
    first.declare(1, "q");
}

#[test]
fn a_silent_client_is_dropped_and_a_silent_server_sends_heartbeats() {
    let node = TestNode::start();
    let mut client = Client::login_with(node.address(), "guest", "guest", 1).unwrap_or_else(|e| panic!("{e:?}"));
    let start = Instant::now();
    let mut heartbeats = 0;
    while let Some((kind, channel, payload)) = client.frame() {
        assert_eq!((kind, channel, payload.len()), (8, 0, 0), "after {:?}", start.elapsed());
        heartbeats += 1;
    }
    assert!(heartbeats >= 2, "the server is silent for less than an interval, not for {:?}", start.elapsed());
    let lasted = start.elapsed();
    assert!(lasted >= Duration::from_millis(1900) && lasted < Duration::from_millis(4000), "{lasted:?}");
}

#[test]
fn draining_closes_every_connection_with_320_and_returns() {
    let node = TestNode::start();
    let mut clients: Vec<Client> = (0..10).map(|_| node.channel()).collect();
    clients[0].declare(1, "q");
    let reading = std::thread::spawn(move || {
        for client in &mut clients {
            let closed = closed(client.recv().method);
            assert_eq!(closed, (320, "CONNECTION_FORCED - broker shutting down".to_owned()));
            client.send(0, &Method::ConnectionCloseOk {});
            assert!(client.read_to_end().is_empty());
        }
    });
    let start = Instant::now();
    node.0.drain();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    reading.join().unwrap();
    assert!(std::net::TcpStream::connect(node.address()).is_err(), "nobody listens any more");
}

#[test]
fn a_client_that_does_not_answer_cannot_hold_up_the_end() {
    let node = TestNode::start();
    let _mute = node.channel();
    let start = Instant::now();
    node.0.drain();
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

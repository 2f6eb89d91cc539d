//! Bad input and bad neighbours: garbage, lying lengths, half-written handshakes, sockets nobody
//! reads.
//!
//! Invariant: whatever one socket does, the connection beside it notices nothing.

use std::io::Write;
use std::time::{Duration, Instant};

use clients::broker::{is_foreign, unique};
use clients::client::{FRAME_BODY, FRAME_METHOD, PATIENCE, frame, method_frame};
use clients::methods::*;
use clients::verbs::header_frame;
use clients::wire::{Args, table_body};
use clients::{Broker, Client, ExchangeDeclare, Login, Properties, Publish, QueueDeclare, Scope, Value};
use rand::{RngExt, SeedableRng};

use crate::setup::{Kind, fill, new_queue, with_queue};

/// A connection that publishes to itself; `check` proves that it is served at once.
struct Neighbour {
    client: Client,
    channel: u16,
    queue: String,
}

impl Neighbour {
    fn new() -> Self {
        let (mut client, channel, queue) = with_queue(Kind::Quorum);
        client.confirm_select(channel).unwrap();
        Self { client, channel, queue }
    }

    fn check(&mut self) -> Duration {
        let start = Instant::now();
        let Self { client, channel, queue } = self;
        client.put(*channel, queue, b"still there?");
        let event = client.event(*channel);
        assert!(matches!(event, clients::Event::Confirm { nack: false, .. }), "{event:?}");
        assert!(client.get(*channel, queue, true).unwrap().is_some());
        start.elapsed()
    }
}

#[test]
fn garbage_on_the_port_costs_nobody_else_anything() {
    let mut neighbour = Neighbour::new();
    let mut random = rand_pcg::Pcg64::seed_from_u64(20_261_121);
    for round in 0..60 {
        let mut client = Client::socket(Broker::shared().addr()).unwrap();
        let mut noise = vec![0u8; random.random_range(1..20_000)];
        random.fill(noise.as_mut_slice());
        if round % 3 == 1 {
            client.raw(b"AMQP\x00\x00\x09\x01");
        }
        if round % 3 == 2 {
            noise.splice(0..0, *b"AMQP");
        }
        client.raw(&noise);
        assert!(client.ends_within(PATIENCE), "round {round}: garbage of {} bytes left a socket open", noise.len());
        if round % 10 == 0 {
            neighbour.check();
        }
    }
    neighbour.check();
}

#[test]
fn noise_after_a_login_ends_that_connection_only() {
    let mut neighbour = Neighbour::new();
    let mut random = rand_pcg::Pcg64::seed_from_u64(7);
    for _ in 0..40 {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        // Well-formed frames of noise: methods that do not parse, headers and bodies out of place.
        for _ in 0..20 {
            let mut noise = vec![0u8; random.random_range(0..300)];
            random.fill(noise.as_mut_slice());
            let on = if random.random_bool(0.8) { channel } else { random.random() };
            client.raw(&frame(random.random_range(1..=3), on, &noise));
        }
        let closed = client.closed(0);
        assert_ne!(closed.scope, Scope::Channel, "{closed:?}");
    }
    neighbour.check();
}

#[test]
fn lying_frame_length_reserves_no_memory_and_ends_the_connection() {
    let mut neighbour = Neighbour::new();
    for length in [u32::MAX, 1 << 30, 1 << 20] {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let mut bytes = vec![FRAME_METHOD];
        bytes.extend(channel.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend([0; 64]);
        client.raw(&bytes);
        let closed = client.closed(0);
        assert!(closed.code == 501 || closed.scope == Scope::Socket, "{length}: {closed:?}");
    }
    neighbour.check();
}

#[test]
fn frame_before_the_tune_may_not_be_large() {
    let mut client = Client::socket(Broker::shared().addr()).unwrap();
    client.raw(b"AMQP\x00\x00\x09\x01");
    client.wait(0, CONNECTION_START).unwrap();
    let large = Login { response: vec![b'x'; 100_000], ..Default::default() };
    assert!(client.start(&large).is_err(), "100 kB of credentials are no login");
}

#[test]
fn lengths_inside_a_method_may_lie_as_they_like() {
    let table_of = |bytes: Vec<u8>| {
        Args::new().short(0).shortstr("lies").bits(&[false, false, true, false, false]).longstr(&bytes)
    };
    let field = |kind: u8, rest: &[u8]| [&[1, b'k', kind], rest].concat();
    let cases: Vec<(&str, Args)> = vec![
        ("a string beyond the table", table_of(field(b'S', &u32::MAX.to_be_bytes()))),
        ("an array beyond the table", table_of(field(b'A', &[0, 0, 0, 200, b't', 1]))),
        ("a table beyond the table", table_of(field(b'F', &[0x7F, 0xFF, 0xFF, 0xFF]))),
        ("an unknown field type", table_of(field(b'?', &[0; 8]))),
        ("a field name beyond the table", table_of(vec![200, b'k'])),
        ("a number cut short", table_of(field(b'l', &[0; 3]))),
        ("a table longer than its method", Args::new().short(0).shortstr("lies").octet(4).long(1 << 30)),
    ];
    let mut neighbour = Neighbour::new();
    for (what, args) in cases {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        client.send(channel, QUEUE_DECLARE, &args);
        let closed = client.closed(channel);
        assert_ne!(closed.scope, Scope::Channel, "{what}: a malformed method is the connection's error, {closed:?}");
    }
    neighbour.check();
}

#[test]
fn deeply_nested_table_is_refused_or_taken_but_never_fatal() {
    let mut neighbour = Neighbour::new();
    for depth in [10, 1_000, 12_000] {
        let mut body: Vec<u8> = Vec::new();
        for _ in 0..depth {
            let mut outer = vec![1, b'n', b'F'];
            outer.extend((body.len() as u32).to_be_bytes());
            outer.extend(&body);
            body = outer;
        }
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let args = Args::new().short(0).shortstr("").bits(&[false, false, true, false, false]).longstr(&body);
        client.send(channel, QUEUE_DECLARE, &args);
        // As a message header too, where a broker may pass it through unread.
        let mut header = Args::new().short(60).short(0).longlong(0).short(1 << 13).0;
        header.extend(Args::new().longstr(&body).0);
        client.send(channel, BASIC_PUBLISH, &Args::new().short(0).shortstr("amq.headers").shortstr("").octet(0));
        client.raw(&frame(2, channel, &header));
        let _ = client.event_within(channel, Duration::from_secs(2));
        neighbour.check();
    }
}

#[test]
fn table_of_a_million_entries_is_bounded_by_the_frame() {
    let entries: Vec<(String, Value)> = (0..9_000).map(|n| (format!("k{n}"), Value::Bool(true))).collect();
    let borrowed: Vec<(&str, Value)> = entries.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let body = table_body(&borrowed);
    let mut neighbour = Neighbour::new();
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let args = Args::new().short(0).shortstr("").bits(&[false, false, true, false, false]).longstr(&body);
    client.send(channel, QUEUE_DECLARE, &args);
    let _ = client.event(channel);
    neighbour.check();
    // A million of them do not fit into a frame, and a method has only one.
    let million: Vec<u8> =
        (0..1_000_000u32).flat_map(|n| [4, (n >> 16) as u8, (n >> 8) as u8, n as u8, b'x', b't', 1]).collect();
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let args = Args::new().short(0).shortstr("").bits(&[false, false, true, false, false]).longstr(&million);
    client.send(channel, QUEUE_DECLARE, &args);
    let closed = client.closed(0);
    assert!(closed.code == 501 || closed.scope == Scope::Socket, "{closed:?}");
    neighbour.check();
}

#[test]
fn half_written_handshakes_stall_nobody_and_end() {
    let mut neighbour = Neighbour::new();
    let mut idle = Vec::new();
    for at in 0..100 {
        let mut client = Client::socket(Broker::shared().addr()).unwrap();
        match at % 4 {
            0 => {}
            1 => client.raw(b"AMQP"),
            2 => client.raw(b"AMQP\x00\x00\x09\x01"),
            _ => client.raw(b"AMQP\x00\x00\x09\x01\x01\x00\x00\x00\x00\x10\x00\x00\x0a"),
        }
        idle.push(client);
    }
    neighbour.check();
    // RabbitMQ gives a handshake 10 s. All of ours wait at once.
    let due = Instant::now() + Duration::from_secs(25);
    for (at, client) in idle.iter_mut().enumerate() {
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        assert!(client.ends_within(left), "handshake {at} was left open");
    }
    neighbour.check();
}

#[test]
fn cut_connections_leave_nothing_behind() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    for cut in 1..60 {
        let mut rude = Broker::shared().connect();
        let theirs = rude.channel();
        let bytes =
            Publish { key: &queue, body: &[b'x'; 64], properties: Properties::persistent(), ..Default::default() }
                .frames(theirs, 4096);
        rude.raw(&bytes[..(cut * 2).min(bytes.len() - 1)]);
        // The socket closes in the middle of a content.
    }
    assert_eq!(client.counts(channel, &queue).unwrap().0, 0, "half a publish is none");
    fill(&mut client, &queue, 1);
    assert_eq!(client.counts(channel, &queue).unwrap().0, 1);
}

#[test]
fn consumer_that_does_not_read_stalls_nobody() {
    let mut neighbour = Neighbour::new();
    let before = (0..20).map(|_| neighbour.check()).max().unwrap();
    for kind in Kind::DURABLE {
        let (mut owner, channel, queue) = with_queue(kind);
        let mut stuck = Broker::shared().connect();
        let theirs = stuck.channel();
        stuck.send(
            theirs,
            BASIC_CONSUME,
            &Args::new().short(0).shortstr(&queue).shortstr("stuck").bits(&[false, true, false, false]).table(&[]),
        );
        stuck.wait(theirs, BASIC_CONSUME_OK).unwrap();
        // 64 MB towards a socket that nobody reads: far more than both sides' buffers.
        owner.confirm_select(channel).unwrap();
        let body = vec![1; 64 * 1024];
        for n in 1..=1000u64 {
            owner.put(channel, &queue, &body);
            if n % 100 == 0 {
                owner.confirmed(channel, n - 99, n);
            }
        }
        // Another consumer of the same queue is served, and so is everybody else.
        let next = new_queue(&mut owner, channel, kind);
        owner.put(channel, &next, b"0");
        owner.confirmed(channel, 1001, 1001);
        assert!(owner.get(channel, &next, true).unwrap().is_some());
        let slowest = (0..20).map(|_| neighbour.check()).max().unwrap();
        assert!(
            slowest < before * 20 + Duration::from_secs(2),
            "{kind:?}: {slowest:?} beside a stuck consumer, {before:?} before"
        );
        stuck.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    neighbour.check();
}

#[test]
fn publisher_that_trickles_bytes_stalls_nobody() {
    let mut neighbour = Neighbour::new();
    let (mut slow, channel, queue) = with_queue(Kind::Classic);
    let bytes = [
        method_frame(channel, BASIC_PUBLISH, &Args::new().short(0).shortstr("").shortstr(&queue).octet(0)),
        header_frame(channel, &Properties::persistent(), 100),
        frame(FRAME_BODY, channel, &[9; 100]),
    ]
    .concat();
    for (at, byte) in bytes.iter().enumerate() {
        slow.stream.write_all(&[*byte]).unwrap();
        if at % 32 == 0 {
            neighbour.check();
        }
    }
    slow.consume(channel, &queue, "").unwrap();
    assert_eq!(slow.delivery(channel).body, [9; 100]);
}

#[test]
fn a_name_for_dead_letters_that_no_message_may_have_is_refused_and_harms_nobody() {
    let mut neighbour = Neighbour::new();
    let long = "k".repeat(256);
    for arguments in [
        vec![("x-dead-letter-exchange", Value::from(&*long))],
        vec![("x-dead-letter-exchange", Value::from("amq.fanout")), ("x-dead-letter-routing-key", Value::from(&*long))],
    ] {
        let (name, mut client) = (unique("long"), Broker::shared().connect());
        let channel = client.channel();
        let declare = QueueDeclare { name: &name, durable: true, arguments, ..Default::default() };
        match client.declare(channel, &declare) {
            // RabbitMQ takes it, and cannot deliver its dead letters.
            Ok(_) => assert!(is_foreign()),
            Err(closed) => assert_eq!((closed.scope, closed.code), (Scope::Channel, 406), "{closed:?}"),
        }
    }
    neighbour.check();
}

#[test]
fn a_bind_that_meets_the_end_of_its_exchange_is_refused_and_harms_nobody() {
    let mut neighbour = Neighbour::new();
    let (mut binder, mut deleter) = (Broker::shared().connect(), Broker::shared().connect());
    let (mut at, other) = (binder.channel(), deleter.channel());
    let queue = new_queue(&mut binder, at, Kind::Classic);
    // Of exchanges that remember messages a bind has more to do than others.
    let kind = if is_foreign() { "fanout" } else { "x-recent-history" };
    let mut refused = 0;
    for round in 0..40 {
        let name = unique("ends");
        let exchange = ExchangeDeclare { name: &name, kind, durable: true, ..Default::default() };
        deleter.declare_exchange(other, &exchange).unwrap();
        let args = Args::new().short(0).shortstr(&queue).shortstr(&name).shortstr("").octet(0).table(&[]);
        let delete = method_frame(other, EXCHANGE_DELETE, &Args::new().short(0).shortstr(&name).bits(&[false, false]));
        deleter.raw(&delete);
        if round % 2 == 0 {
            // Now and then the one is first, now and then the other.
            std::thread::yield_now();
        }
        if let Err(closed) = binder.call(at, QUEUE_BIND, &args, QUEUE_BIND_OK) {
            assert_eq!((closed.scope, closed.code), (Scope::Channel, 404), "{closed:?}");
            refused += 1;
            at = binder.channel();
        }
        deleter.wait(other, EXCHANGE_DELETE_OK).unwrap();
    }
    assert!(refused > 0, "no bind came too late");
    neighbour.check();
}

//! Connections: the handshake, its limits, heartbeats and the way out.
//!
//! Invariant: what was negotiated is enforced on both sides, and each refusal says its reason
//! before the socket closes.

use std::time::{Duration, Instant};

use clients::broker::is_foreign;
use clients::client::{FRAME_BODY, FRAME_HEARTBEAT, FRAME_METHOD, PATIENCE, frame, method_frame};
use clients::methods::*;
use clients::verbs::header_frame;
use clients::wire::Args;
use clients::{Broker, Client, Closed, Event, Login, Properties, Publish, Scope, Value};

use crate::setup::{Kind, assert_closed, new_queue, with_queue};

/// Answers the tune with limits of the test's own, and nothing after it, so that the answer is not
/// lost in a reset.
fn tuned(channel_max: u16, frame_max: u32) -> Closed {
    let mut client = Client::socket(Broker::shared().addr()).unwrap();
    client.raw(b"AMQP\x00\x00\x09\x01");
    client.start(&Login::default()).unwrap();
    client.send(0, CONNECTION_TUNE_OK, &Args::new().short(channel_max).long(frame_max).short(0));
    client.closed(0)
}

fn refused(login: &Login) -> Closed {
    match Client::login(Broker::shared().addr(), login) {
        Ok(_) => panic!("the broker let {login:?} in"),
        Err(closed) => closed,
    }
}

#[test]
fn server_introduces_itself_with_its_capabilities() {
    let client = Broker::shared().connect();
    let get = |name: &str| client.server.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    for name in ["product", "version", "platform", "capabilities"] {
        assert!(get(name).is_some(), "server properties have {name}");
    }
    let Some(Value::Table(capabilities)) = get("capabilities") else { panic!("capabilities are a table") };
    for name in [
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
        "per_consumer_qos",
    ] {
        assert!(capabilities.contains(&(name.to_owned(), Value::Bool(true))), "{name} in {capabilities:?}");
    }
    assert!(client.mechanisms.split(' ').any(|mechanism| mechanism == "PLAIN"), "{}", client.mechanisms);
    assert_eq!(client.proposed, (2047, 131_072, 60), "channel_max, frame_max, heartbeat");
}

#[test]
fn wrong_protocol_header_is_answered_with_the_right_one() {
    for header in [b"AMQP\x01\x01\x00\x0a", b"AMQP\x00\x01\x00\x00", b"HTTP\x00\x00\x09\x01", b"GET / HT"] {
        let mut client = Client::socket(Broker::shared().addr()).unwrap();
        client.raw(header);
        match client.event(0) {
            Event::Method(Method(0, 0), bytes) => assert_eq!(bytes, b"AMQP\x00\x00\x09\x01"),
            other => panic!("the broker's own header was due after {header:?}, got {other:?}"),
        }
        assert!(client.ends_within(PATIENCE), "and the socket closes");
    }
}

#[test]
fn header_of_amqp_0_9_is_taken_for_0_9_1() {
    let mut client = Client::socket(Broker::shared().addr()).unwrap();
    client.raw(b"AMQP\x01\x01\x00\x09");
    client.start(&Login::default()).unwrap();
    client.open(&Login::default()).unwrap();
    client.channel();
}

#[test]
fn wrong_password_is_403_for_a_client_that_can_take_it() {
    let login = Login { response: b"\0guest\0wrong".to_vec(), ..Default::default() };
    let closed = refused(&login);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 403), "{closed:?}");
    let text = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN.";
    assert!(closed.text.starts_with(text), "{}", closed.text);
}

#[test]
fn wrong_password_is_a_closed_socket_for_a_client_that_can_not() {
    let login = Login { response: b"\0nobody\0guest".to_vec(), capabilities: Vec::new(), ..Default::default() };
    assert_eq!(refused(&login).scope, Scope::Socket);
}

#[test]
fn malformed_plain_response_is_refused() {
    for response in [&b""[..], b"guest", b"\0guest", b"\0\0", b"\0guest\0guest\0guest"] {
        let login = Login { response: response.to_vec(), ..Default::default() };
        let closed = refused(&login);
        assert!(matches!(closed.code, 403 | 501 | 502) || closed.scope == Scope::Socket, "{response:?}: {closed:?}");
    }
}

#[test]
fn unknown_mechanism_is_503() {
    let closed = refused(&Login { mechanism: "ROT13".into(), ..Default::default() });
    if is_foreign() && closed.scope == Scope::Socket {
        return; // RabbitMQ 3.10 closes the socket without a word.
    }
    assert_closed(
        &closed,
        Scope::Connection,
        503,
        "COMMAND_INVALID - unknown authentication mechanism 'ROT13'",
        CONNECTION_START_OK,
    );
}

#[test]
fn unknown_vhost_is_530() {
    let closed = refused(&Login { vhost: "no-such-vhost".into(), ..Default::default() });
    assert_closed(&closed, Scope::Connection, 530, "NOT_ALLOWED - vhost no-such-vhost not found", CONNECTION_OPEN);
}

#[test]
fn limits_may_only_be_lowered() {
    let limits = [
        (2047, 1 << 20, "frame_max = 1048576 is higher than the maximum allowed value (131072)"),
        (2047, 4095, "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        (4096, 131_072, "channel_max = 4096 is higher than the maximum allowed value (2047)"),
        // 0 means "no limit", which is more than what the broker allows.
        (2047, 0, "frame_max = 0 is higher than the maximum allowed value (131072)"),
        (0, 131_072, "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
    ];
    for (channel_max, frame_max, text) in limits {
        let closed = tuned(channel_max, frame_max);
        if is_foreign() {
            // RabbitMQ's tuning errors reach its log, and the client only as a closed socket.
            assert_eq!(closed.scope, Scope::Socket, "{closed:?}");
            continue;
        }
        assert_closed(&closed, Scope::Connection, 530, &format!("NOT_ALLOWED - negotiated {text}"), CONNECTION_TUNE);
    }
}

#[test]
fn channels_above_the_negotiated_number_are_refused() {
    let login = Login { channel_max: Some(10), ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    for channel in 1..=10 {
        client.open_channel(channel).unwrap();
    }
    let closed = client.open_channel(11).unwrap_err();
    let text = "NOT_ALLOWED - number of channels opened (10) has reached the negotiated channel_max (10)";
    assert_closed(&closed, Scope::Connection, 530, text, closed.method);
}

#[test]
fn opening_an_open_channel_is_504() {
    let mut client = Broker::shared().connect();
    client.open_channel(1).unwrap();
    let closed = client.open_channel(1).unwrap_err();
    assert_closed(&closed, Scope::Connection, 504, "CHANNEL_ERROR - second 'channel.open' seen", CHANNEL_OPEN);
}

#[test]
fn method_on_a_channel_that_is_not_open_is_504() {
    let mut client = Broker::shared().connect();
    client.send(3, BASIC_QOS, &Args::new().long(0).short(1).octet(0));
    let closed = client.closed(0);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 504), "{closed:?}");
    assert!(closed.text.starts_with("CHANNEL_ERROR - expected 'channel.open'"), "{}", closed.text);
}

#[test]
fn channel_number_is_free_again_after_its_close() {
    let mut client = Broker::shared().connect();
    for _ in 0..50 {
        client.open_channel(7).unwrap();
        client.round_trip(7).unwrap();
        client.close_channel(7);
    }
    // Also after a close by the broker.
    client.open_channel(7).unwrap();
    assert_eq!(client.counts(7, "no-such-queue").unwrap_err().code, 404);
    client.open_channel(7).unwrap();
    client.round_trip(7).unwrap();
}

#[test]
fn frames_on_a_closing_channel_are_ignored_until_close_ok() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    // One write: the error, then publishes that the broker meets while it waits for close-ok.
    let mut bytes = Publish { exchange: "no-such-exchange", body: b"x", ..Default::default() }.frames(channel, 4096);
    for _ in 0..100 {
        bytes.extend(Publish { key: &queue, body: b"ignored", ..Default::default() }.frames(channel, 4096));
    }
    client.raw(&bytes);
    assert_eq!(client.closed(channel).code, 404);
    let other = client.channel();
    client.confirm_select(other).unwrap();
    client.put(other, &queue, b"counted");
    client.confirmed(other, 1, 1);
    assert_eq!(client.counts(other, &queue).unwrap().0, 1);
}

#[test]
fn frame_over_frame_max_is_501() {
    let login = Login { frame_max: Some(4096), ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    let channel = client.channel();
    client.send(channel, BASIC_PUBLISH, &Args::new().short(0).shortstr("").shortstr("q").octet(0));
    client.raw(&header_frame(channel, &Properties::persistent(), 100_000));
    client.raw(&frame(FRAME_BODY, channel, &[0; 5000]));
    let closed = client.closed(0);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 501), "{closed:?}");
    assert!(closed.text.starts_with("FRAME_ERROR"), "{}", closed.text);
    assert!(client.ends_within(PATIENCE));
}

#[test]
fn frame_with_a_wrong_end_octet_is_501() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let mut bytes = method_frame(channel, BASIC_QOS, &Args::new().long(0).short(1).octet(0));
    *bytes.last_mut().unwrap() = 0;
    client.raw(&bytes);
    let closed = client.closed(0);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 501), "{closed:?}");
    assert!(client.ends_within(PATIENCE));
}

#[test]
fn content_out_of_order_is_505() {
    let publish =
        |channel| method_frame(channel, BASIC_PUBLISH, &Args::new().short(0).shortstr("").shortstr("q").octet(0));
    let header = |channel, size| header_frame(channel, &Properties::persistent(), size);
    let cases: [(&str, Vec<u8>); 5] = [
        ("a header without a method", header(1, 1)),
        ("a body without a method", frame(FRAME_BODY, 1, b"x")),
        ("a body without a header", [publish(1), frame(FRAME_BODY, 1, b"x")].concat()),
        ("a method instead of a header", [publish(1), publish(1)].concat()),
        ("a method instead of a body", [publish(1), header(1, 1), publish(1)].concat()),
    ];
    for (what, bytes) in cases {
        let mut client = Broker::shared().connect();
        client.open_channel(1).unwrap();
        client.raw(&bytes);
        let closed = client.closed(0);
        assert_eq!((closed.scope, closed.code), (Scope::Connection, 505), "{what}: {closed:?}");
        assert!(closed.text.starts_with("UNEXPECTED_FRAME"), "{what}: {}", closed.text);
    }
}

#[test]
fn body_longer_than_announced_is_an_error() {
    let mut client = Broker::shared().connect();
    client.open_channel(1).unwrap();
    let publish = method_frame(1, BASIC_PUBLISH, &Args::new().short(0).shortstr("").shortstr("q").octet(0));
    client.raw(&[publish, header_frame(1, &Properties::persistent(), 3), frame(FRAME_BODY, 1, b"four")].concat());
    if is_foreign() {
        return; // RabbitMQ waits for ever for the body to end.
    }
    let closed = client.closed(0);
    assert!(matches!(closed.code, 501 | 505), "{closed:?}");
}

#[test]
fn content_of_two_channels_may_be_interleaved() {
    let (mut client, one, queue) = with_queue(Kind::Quorum);
    let two = client.channel();
    let publish =
        |channel| method_frame(channel, BASIC_PUBLISH, &Args::new().short(0).shortstr("").shortstr(&queue).octet(0));
    let header = |channel| header_frame(channel, &Properties::persistent(), 4);
    let body = |channel, bytes: &[u8]| frame(FRAME_BODY, channel, bytes);
    let mixed = [
        publish(one),
        publish(two),
        header(two),
        header(one),
        body(one, b"on"),
        body(two, b"tw"),
        body(two, b"o."),
        body(one, b"e."),
    ];
    client.raw(&mixed.concat());
    client.consume(one, &queue, "").unwrap();
    let mut got = [client.delivery(one).body, client.delivery(one).body];
    got.sort();
    assert_eq!(got, [b"one.".to_vec(), b"two.".to_vec()]);
}

#[test]
fn unknown_frame_type_is_an_error() {
    let mut client = Broker::shared().connect();
    client.raw(&frame(5, 0, b"what?"));
    let closed = client.closed(0);
    assert!(closed.scope == Scope::Connection && [501, 505].contains(&closed.code), "{closed:?}");
}

#[test]
fn unknown_method_is_an_error_of_the_connection() {
    let mut client = Broker::shared().connect();
    client.open_channel(1).unwrap();
    client.send(1, Method(60, 999), &Args::new());
    let closed = client.closed(0);
    assert!(
        matches!(closed.code, 503 | 540 | 502 | 541) || (is_foreign() && closed.scope == Scope::Socket),
        "{closed:?}"
    );
}

#[test]
fn truncated_method_is_a_syntax_error() {
    let mut client = Broker::shared().connect();
    client.open_channel(1).unwrap();
    client.send(1, QUEUE_DECLARE, &Args::new().short(0).octet(200).octet(b'x'));
    let closed = client.closed(0);
    assert!([501, 502].contains(&closed.code), "{closed:?}");
}

#[test]
fn close_of_the_connection_is_answered_on_channel_zero_and_ends_the_socket() {
    let mut client = Broker::shared().connect();
    client.channel();
    let args = Args::new().short(200).shortstr("bye").short(0).short(0);
    client.call(0, CONNECTION_CLOSE, &args, CONNECTION_CLOSE_OK).unwrap();
    // RabbitMQ leaves the last step to the client for half a minute.
    assert!(is_foreign() || client.ends_within(PATIENCE));
}

#[test]
fn broker_sends_heartbeats_and_takes_any_frame_for_one() {
    let login = Login { heartbeat: 2, ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    let channel = client.channel();
    let until = Instant::now() + Duration::from_secs(7);
    while Instant::now() < until {
        // No heartbeat from us, only traffic.
        client.round_trip(channel).unwrap();
        assert!(client.event_within(0, Duration::from_millis(700)).is_none());
    }
    // Heartbeats alone keep it alive as well, and the broker, which has nothing else to say, sends
    // its own.
    let before = client.frames_seen.get(&FRAME_HEARTBEAT).copied().unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        client.raw(&frame(FRAME_HEARTBEAT, 0, b""));
        assert!(client.event_within(0, Duration::from_millis(900)).is_none());
    }
    let beats = client.frames_seen.get(&FRAME_HEARTBEAT).copied().unwrap_or(0) - before;
    assert!(beats >= 2, "{beats} heartbeats in six seconds of silence at an interval of two");
    client.round_trip(channel).unwrap();
}

#[test]
fn silent_client_is_dropped_and_its_messages_are_requeued() {
    let (mut watcher, watching, queue) = with_queue(Kind::Quorum);
    crate::setup::fill(&mut watcher, &queue, 1);
    let login = Login { heartbeat: 1, ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    let channel = client.channel();
    client.get(channel, &queue, false).unwrap().unwrap();
    let silent_since = Instant::now();
    assert!(client.ends_within(Duration::from_secs(15)), "two missed heartbeats end the connection");
    assert!(silent_since.elapsed() > Duration::from_secs(1), "but not the first one: {:?}", silent_since.elapsed());
    let due = Instant::now() + PATIENCE;
    while watcher.counts(watching, &queue).unwrap().0 == 0 {
        assert!(Instant::now() < due, "its message comes back");
    }
}

#[test]
fn heartbeat_on_a_channel_is_an_error() {
    let mut client = Broker::shared().connect();
    client.open_channel(1).unwrap();
    client.raw(&frame(FRAME_HEARTBEAT, 1, b""));
    let closed = client.closed(0);
    assert!([501, 505].contains(&closed.code), "{closed:?}");
}

#[test]
fn second_handshake_is_refused() {
    let mut client = Broker::shared().connect();
    client.send(0, CONNECTION_OPEN, &Args::new().shortstr("/").shortstr("").octet(0));
    let closed = client.closed(0);
    assert_eq!(closed.scope, Scope::Connection, "{closed:?}");
    assert!([503, 504, 540].contains(&closed.code), "{closed:?}");
}

#[test]
fn connection_methods_on_a_channel_are_refused() {
    let mut client = Broker::shared().connect();
    client.open_channel(1).unwrap();
    client.send(1, CONNECTION_CLOSE, &Args::new().short(200).shortstr("").short(0).short(0));
    let closed = client.closed(0);
    assert_eq!(closed.scope, Scope::Connection, "{closed:?}");
}

#[test]
fn errors_of_one_connection_leave_others_alone() {
    let (mut calm, channel, queue) = with_queue(Kind::Quorum);
    calm.consume(channel, &queue, "c").unwrap();
    for _ in 0..20 {
        let mut wild = Broker::shared().connect();
        wild.raw(&frame(FRAME_METHOD, 0, &[0xFF; 64]));
        wild.closed(0);
    }
    calm.put(channel, &queue, b"0");
    assert_eq!(calm.delivery(channel).body, b"0");
    let _ = new_queue(&mut calm, channel, Kind::Classic);
}

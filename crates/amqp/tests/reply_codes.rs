//! Every rule that a client can break, with the reply code, the text, and the method that is
//! blamed.

mod client;

use amqp::wire::frame::{FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, write_frame};
use amqp::wire::method::Method;
use amqp::{ChannelError, ConnectionConfig, ConnectionError, Event, Reply, ReplyCode};
use bytes::Bytes;
use client::*;

/// What a frame, or several, cost: the channel's number (0 is the connection), code, text, class
/// and method.
type Cost = (u16, u16, String, u16, u16);

fn cost_of(client: &mut Client) -> Cost {
    match client.read_method() {
        (channel, Method::ChannelClose { reply_code, reply_text, class_id, method_id })
        | (channel, Method::ConnectionClose { reply_code, reply_text, class_id, method_id }) => {
            (channel, reply_code, String::from_utf8_lossy(&reply_text).into_owned(), class_id, method_id)
        }
        (_, other) => panic!("a close and not {other:?}"),
    }
}

fn cost(channel: u16, code: u16, text: &str, class: u16, method: u16) -> Cost {
    (channel, code, text.to_owned(), class, method)
}

/// Does `act` on a connection with channel 1 open and checks what it costs, and that it costs that
/// and no more.
#[track_caller]
fn costs(act: impl FnOnce(&mut Client), channel: u16, code: u16, text: &str, class: u16, method: u16) {
    let (mut client, id) = Client::with_channel();
    let other = client.open_channel(9);
    act(&mut client);
    assert_eq!(cost_of(&mut client), cost(channel, code, text, class, method));
    let ends: Vec<String> = client
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::ChannelClosed { channel, .. } => Some(format!("channel {channel}")),
            Event::Closed(_) => Some("connection".to_owned()),
            _ => None,
        })
        .collect();
    if channel == 0 {
        assert_eq!(ends, ["channel 9", "channel 1", "connection"]);
        assert!(!client.connection.is_finished(), "the client is to answer");
        client.send(0, Method::ConnectionCloseOk {});
        assert!(client.connection.is_finished());
    } else {
        assert_eq!(ends, ["channel 1"]);
        assert_eq!(client.connection.channel_count(), 2);
        // Ignored until the client answers, then the number is free at once.
        client.publish(1, "q", b"late");
        client.send(1, channel_open());
        assert_eq!((client.read(), client.events().len()), (vec![], 0));
        client.send(1, Method::ChannelCloseOk {});
        let again = client.open_channel(1);
        assert_ne!(again, id);
        client.connection.cancel_notify(other, &amqp::ConsumerTag::default());
    }
}

#[test]
fn the_ends_of_many_channels_are_said_when_they_are_asked_for_the_last_one_first() {
    let mut client = Client::open();
    for number in 1..=600 {
        client.open_channel(number);
    }
    client.connection.handle_disconnect();
    for number in (1..=600).rev() {
        assert!(client.connection.has_events());
        match client.connection.poll_event() {
            Some(Event::ChannelClosed { channel, .. }) => assert_eq!(channel.number(), number),
            other => panic!("the end of channel {number} and not {other:?}"),
        }
        // Those whose end was not said hold nothing up, and nobody finds them.
        assert_eq!(client.connection.channel_count(), 0);
    }
    assert!(matches!(client.connection.poll_event(), Some(Event::Closed(amqp::Closed::Disconnected))));
    assert!(!client.connection.has_events() && client.connection.poll_event().is_none());
}

#[test]
fn publishing() {
    let immediate = || {
        let Method::BasicPublish { ticket, exchange, routing_key, mandatory, .. } = publish_method("q") else {
            unreachable!()
        };
        Method::BasicPublish { ticket, exchange, routing_key, mandatory, immediate: true }
    };
    costs(|c| c.send(1, immediate()), 0, 540, "NOT_IMPLEMENTED - immediate=true", 60, 40);
    costs(
        |c| {
            c.send(1, publish_method("q"));
            c.frame(FRAME_HEADER, 1, &header_payload(16 * 1024 * 1024 + 1));
        },
        1,
        406,
        "PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216",
        60,
        40,
    );
    costs(
        |c| {
            c.send(1, publish_method("q"));
            c.frame(FRAME_HEADER, 1, &header_payload(u64::MAX));
        },
        0,
        501,
        "FRAME_ERROR - content body size 18446744073709551615 exceeds maximum allowed size 536870912",
        60,
        40,
    );
    costs(
        |c| {
            c.send(1, publish_method("q"));
            c.frame(FRAME_HEADER, 1, &header_payload(3));
            c.frame(FRAME_BODY, 1, b"four");
        },
        0,
        501,
        "FRAME_ERROR - content body frame exceeds remaining content size",
        60,
        40,
    );
    costs(
        |c| {
            c.send(1, publish_method("q"));
            c.frame(FRAME_HEADER, 1, b"\0\x3c\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\0\x03\x01h?");
        },
        0,
        502,
        "SYNTAX_ERROR - malformed content header: unknown field type 63",
        60,
        40,
    );
    costs(
        |c| c.frame(FRAME_METHOD, 1, b"\0\x3c\0\x28\0\0\x09"),
        0,
        501,
        "FRAME_ERROR - cannot decode <<0,0,9>>",
        60,
        40,
    );
}

#[test]
fn the_broker_refuses_a_publish() {
    costs(
        |c| {
            c.publish(1, "q", b"body");
            let publish = c.published();
            let error = ChannelError::new(ReplyCode::NotFound, "no exchange 'x' in vhost '/'")
                .on(amqp::MethodId::BASIC_PUBLISH);
            c.connection.channel_error(publish.channel, error);
        },
        1,
        404,
        "NOT_FOUND - no exchange 'x' in vhost '/'",
        60,
        40,
    );
}

#[test]
fn the_broker_refuses_a_request() {
    costs(
        |c| {
            c.send(1, declare("q", false));
            let Some(Event::Request { channel, .. }) = c.event() else { panic!("a request") };
            c.connection.channel_error(channel, ChannelError::new(ReplyCode::ResourceLocked, "cannot obtain it"));
        },
        1,
        405,
        "RESOURCE_LOCKED - cannot obtain it",
        50,
        10,
    );
    // A code that belongs to connections closes the connection, whoever says it.
    costs(
        |c| {
            c.send(1, declare("q", true));
            let Some(Event::Request { channel, .. }) = c.event() else { panic!("a request") };
            c.connection.channel_error(channel, ChannelError::new(ReplyCode::NotAllowed, "no"));
        },
        0,
        530,
        "NOT_ALLOWED - no",
        50,
        10,
    );
    costs(
        |c| c.connection.connection_error(ConnectionError::new(ReplyCode::InternalError, "our fault")),
        0,
        541,
        "INTERNAL_ERROR - our fault",
        0,
        0,
    );
    costs(
        |c| c.connection.close(ReplyCode::ConnectionForced, "broker forced connection closure"),
        0,
        320,
        "CONNECTION_FORCED - broker forced connection closure",
        0,
        0,
    );
}

#[test]
fn frames_out_of_order() {
    let header_missing =
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead";
    let body_missing = "UNEXPECTED_FRAME - expected content body, got non content body frame instead";
    let method_missing = "UNEXPECTED_FRAME - expected method frame, got non method frame instead";
    costs(|c| c.frame(FRAME_BODY, 1, b"x"), 0, 505, method_missing, 0, 0);
    costs(|c| c.frame(FRAME_HEADER, 1, &header_payload(1)), 0, 505, method_missing, 0, 0);
    costs(|c| c.frame(FRAME_BODY, 7, b"x"), 0, 505, method_missing, 0, 0);
    let begun = |c: &mut Client| c.send(1, publish_method("q"));
    costs(|c| (begun(c), c.frame(FRAME_BODY, 1, b"x")).1, 0, 505, header_missing, 60, 40);
    costs(|c| (begun(c), c.send(1, ack(1, false))).1, 0, 505, header_missing, 60, 40);
    let headed = |c: &mut Client| {
        c.send(1, publish_method("q"));
        c.frame(FRAME_HEADER, 1, &header_payload(2));
    };
    costs(|c| (headed(c), c.frame(FRAME_HEADER, 1, &header_payload(2))).1, 0, 505, body_missing, 60, 40);
    costs(|c| (headed(c), c.send(1, publish_method("q"))).1, 0, 505, body_missing, 60, 40);
    costs(
        |c| {
            c.send(1, publish_method("q"));
            c.frame(FRAME_HEADER, 1, b"\0\x32\0\0\0\0\0\0\0\0\0\0\0\0");
        },
        0,
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
        60,
        40,
    );
    let on_zero = "UNEXPECTED_FRAME - type 2, all octets = <<\"xxxxxxxxxxxxxx\">>";
    costs(|c| c.frame(FRAME_HEADER, 0, b"xxxxxxxxxxxxxx"), 0, 505, on_zero, 0, 0);
    let short = "FRAME_ERROR - type 2, all octets = <<0,60,0,0>>: unknown_frame";
    costs(|c| (begun(c), c.frame(FRAME_HEADER, 1, b"\0\x3c\0\0")).1, 0, 501, short, 0, 0);
    costs(|c| c.frame(FRAME_HEADER, 0, b"\0\x3c\0\0"), 0, 501, short, 0, 0);
    costs(
        |c| (begun(c), c.frame(FRAME_HEADER, 1, b"\0\x3c\0\x01\0\0\0\0\0\0\0\0\0\0")).1,
        0,
        505,
        header_missing,
        60,
        40,
    );
    costs(|c| c.frame(FRAME_HEARTBEAT, 1, b""), 0, 505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", 0, 0);
}

#[test]
fn frames_of_no_known_type() {
    let first_16 = "FRAME_ERROR - type 9, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>: unknown_frame";
    let payload: Vec<u8> = (0..17).collect();
    costs(|c| c.frame(9, 1, &payload), 0, 501, first_16, 0, 0);
    costs(|c| c.frame(9, 0, b""), 0, 501, "FRAME_ERROR - type 9, all octets = <<>>: unknown_frame", 0, 0);
    costs(
        |c| c.frame(FRAME_HEARTBEAT, 0, b"\x01"),
        0,
        501,
        "FRAME_ERROR - type 8, all octets = <<1>>: unknown_frame",
        0,
        0,
    );
}

#[test]
fn broken_frames_end_all_understanding() {
    for (bytes, text) in [
        (&b"\x01\0\x01\0\x02\0\x01"[..], "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,131073,131064}"),
        (&b"\x08\0\0\0\0\0\0\x00"[..], "FRAME_ERROR - type 8, all octets = <<>>: {invalid_frame_end_marker,0}"),
    ] {
        let (mut client, _) = Client::with_channel();
        client.raw(bytes);
        assert_eq!(cost_of(&mut client), cost(0, 501, text, 0, 0));
        assert!(matches!(client.events()[..], [Event::ChannelClosed { .. }, Event::Closed(_)]));
        client.send(0, Method::ConnectionCloseOk {});
        assert!(client.input.is_empty(), "what cannot be understood is not kept");
        assert!(!client.connection.is_finished());
        client.sleep(3_000);
        assert!(client.connection.is_finished());
        assert_eq!(client.events().len(), 0);
    }
}

#[test]
fn channels() {
    costs(|c| c.send(1, channel_open()), 0, 504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10);
    costs(|c| c.send(7, declare("q", false)), 0, 504, "CHANNEL_ERROR - expected 'channel.open'", 50, 10);
    costs(
        |c| c.send(2048, channel_open()),
        0,
        530,
        "NOT_ALLOWED - channel number 2048 is higher than the negotiated channel_max (2047)",
        0,
        0,
    );
    costs(|c| c.send(1, Method::ChannelFlow { active: false }), 0, 540, "NOT_IMPLEMENTED - active=false", 20, 20);
    costs(
        |c| c.send(0, channel_open()),
        0,
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        20,
        10,
    );

    let mut client = Client::open_with(ConnectionConfig::default(), capable(), tune_ok(2, 4096, 0));
    client.open_channel(1);
    client.open_channel(2);
    client.send(2, Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    client.open_channel_after_events(2);
    client.send(3, channel_open());
    let text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)";
    assert_eq!(cost_of(&mut client), cost(0, 530, text, 0, 0));
}

#[test]
fn methods_that_make_no_sense() {
    costs(|c| c.frame(FRAME_METHOD, 1, b"\0\x3c\0\x63"), 0, 503, "COMMAND_INVALID - unknown method 60.99", 0, 0);
    let half = "FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame";
    costs(|c| c.frame(FRAME_METHOD, 1, b"\0\x3c"), 0, 501, half, 0, 0);
    costs(|c| c.frame(FRAME_METHOD, 0, b"\0\x3c"), 0, 501, half, 0, 0);
    costs(
        |c| c.frame(FRAME_METHOD, 1, b"\0\x3c\0\x50\0\0\0\0\0\0\0\x01\0\0"),
        0,
        501,
        "FRAME_ERROR - cannot decode <<0,0,0,0,0,0,0,1,0,0>>",
        60,
        80,
    );
    costs(
        |c| c.frame(FRAME_METHOD, 1, b"\0\x3c\0\x46\0\0\x01\xff\0"),
        0,
        501,
        "FRAME_ERROR - Malformed UTF-8 in shortstr",
        0,
        0,
    );
    costs(
        |c| c.frame(FRAME_METHOD, 1, b"\0\x32\0\x0a\0\0\x01q\0\0\0\0\x03\x01a?"),
        0,
        502,
        "SYNTAX_ERROR - unknown field type 63",
        50,
        10,
    );
    costs(|c| c.send(1, Method::BasicQosOk {}), 0, 503, "COMMAND_INVALID - unimplemented method", 60, 11);
}

#[test]
fn consuming() {
    costs(
        |c| c.send(1, Method::BasicQos { prefetch_size: 9, prefetch_count: 1, global: false }),
        0,
        540,
        "NOT_IMPLEMENTED - prefetch_size!=0 (9)",
        60,
        10,
    );
    costs(|c| c.send(1, Method::BasicRecover { requeue: false }), 0, 540, "NOT_IMPLEMENTED - requeue=false", 60, 110);
    costs(
        |c| c.send(1, Method::BasicRecoverAsync { requeue: false }),
        0,
        540,
        "NOT_IMPLEMENTED - requeue=false",
        60,
        100,
    );
    costs(|c| c.send(1, ack(5, false)), 1, 406, "PRECONDITION_FAILED - unknown delivery tag 5", 60, 80);
    costs(|c| c.send(1, ack(0, false)), 1, 406, "PRECONDITION_FAILED - unknown delivery tag 0", 60, 80);
    costs(
        |c| c.send(1, Method::BasicReject { delivery_tag: 1, requeue: true }),
        1,
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
        60,
        90,
    );
    costs(
        |c| c.send(1, Method::BasicNack { delivery_tag: 1, multiple: true, requeue: true }),
        1,
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
        60,
        120,
    );
    let unnamed = Method::BasicGet { ticket: 0, queue: Bytes::new(), no_ack: true };
    costs(|c| c.send(1, unnamed), 1, 404, "NOT_FOUND - no previously declared queue", 60, 70);
}

#[test]
fn a_consumer_tag_in_use() {
    let (mut client, channel) = Client::with_channel();
    client.consume(channel, "tag");
    client.send(1, consume(Bytes::from_static(b"tag")));
    let text = "NOT_ALLOWED - attempt to reuse consumer tag 'tag'";
    assert_eq!(cost_of(&mut client), cost(0, 530, text, 60, 20));

    let config = ConnectionConfig { consumers_max: 1, ..Default::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 4096, 0));
    let channel = client.open_channel(1);
    client.consume(channel, "one");
    client.send(1, consume(Bytes::from_static(b"two")));
    let text = "NOT_ALLOWED - reached maximum (1) of consumers per channel";
    assert_eq!(cost_of(&mut client), cost(0, 530, text, 60, 20));

    // On another channel it is another consumer.
    let (mut client, channel) = Client::with_channel();
    client.consume(channel, "tag");
    let other = client.open_channel(2);
    client.consume(other, "tag");
}

#[test]
fn transactions() {
    let text = "PRECONDITION_FAILED - channel is not transactional";
    costs(|c| c.send(1, Method::TxCommit {}), 1, 406, text, 90, 20);
    costs(|c| c.send(1, Method::TxRollback {}), 1, 406, text, 90, 30);
    costs(
        |c| {
            c.confirm_select(1);
            c.send(1, Method::TxSelect {});
        },
        1,
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
        90,
        10,
    );
    let (mut client, channel) = Client::with_channel();
    client.send(1, Method::TxSelect {});
    client.request();
    client.connection.reply(channel, Reply::Done);
    client.read();
    client.send(1, Method::ConfirmSelect { no_wait: false });
    let text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode";
    assert_eq!(cost_of(&mut client), cost(1, 406, text, 85, 10));
}

#[test]
fn unfinished_bodies_have_a_common_limit() {
    let config = ConnectionConfig { body_bytes_max: 10_000, assembling_bytes_max: 25_000, ..Default::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 4096, 0));
    let begin = |client: &mut Client, number: u16| {
        client.send(number, publish_method("q"));
        client.frame(FRAME_HEADER, number, &header_payload(10_000));
        client.frame(FRAME_BODY, number, &[1; 4000]);
    };
    for number in 1..=4 {
        client.open_channel(number);
    }
    begin(&mut client, 1);
    begin(&mut client, 2);
    // A body that is finished, or whose channel is closed, counts no longer.
    for _ in 0..5 {
        begin(&mut client, 3);
        client.frame(FRAME_BODY, 3, &[1; 2000]);
        client.frame(FRAME_BODY, 3, &[1; 4000]);
        assert_eq!(client.published().body.len(), 10_000);
        begin(&mut client, 4);
        client.frame(FRAME_BODY, 4, &[1; 2000]);
        let Some(channel) = client.channel_id(4) else { panic!("channel 4 is open") };
        client.connection.channel_error(channel, ChannelError::new(ReplyCode::NotFound, "gone"));
        client.send(4, Method::ChannelCloseOk {});
        client.open_channel_after_events(4);
    }
    begin(&mut client, 3);
    client.frame(FRAME_BODY, 3, &[1; 4000]);
    assert_eq!(client.read(), []);
    client.frame(FRAME_BODY, 3, &[1; 1]);
    let text = "RESOURCE_ERROR - too many bytes in unfinished messages on this connection";
    assert_eq!(cost_of(&mut client), cost(0, 506, text, 60, 40));
}

#[test]
fn headers_without_their_bodies_count_in_the_common_limit() {
    let config = ConnectionConfig { body_bytes_max: 10_000, assembling_bytes_max: 25_000, ..Default::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(20, 4096, 0));
    // An empty body of ten bytes to come, and headers of 3,000 bytes.
    let mut header = header_payload(10);
    header.truncate(12);
    header.extend_from_slice(&[0x20, 0]);
    let text = [0; 3000];
    header.extend_from_slice(&(7 + text.len() as u32).to_be_bytes());
    header.extend_from_slice(b"\x01hS");
    header.extend_from_slice(&(text.len() as u32).to_be_bytes());
    header.extend_from_slice(&text);
    for number in 1..=9 {
        client.open_channel(number);
    }
    // Those that are finished, or whose channel is closed, count no longer.
    for _ in 0..20 {
        client.send(1, publish_method("q"));
        client.frame(FRAME_HEADER, 1, &header);
        client.frame(FRAME_BODY, 1, &[1; 4]);
        client.frame(FRAME_BODY, 1, &[1; 6]);
        assert_eq!(client.published().body.len(), 10);
        client.send(2, publish_method("q"));
        client.frame(FRAME_HEADER, 2, &header);
        let Some(channel) = client.channel_id(2) else { panic!("channel 2 is open") };
        client.connection.channel_error(channel, ChannelError::new(ReplyCode::NotFound, "gone"));
        client.send(2, Method::ChannelCloseOk {});
        client.open_channel_after_events(2);
    }
    assert_eq!(client.connection.assembling_bytes(), 0);
    for number in 1..=8 {
        client.send(number, publish_method("q"));
        client.frame(FRAME_HEADER, number, &header);
    }
    assert_eq!(client.read(), []);
    client.send(9, publish_method("q"));
    client.frame(FRAME_HEADER, 9, &header);
    let text = "RESOURCE_ERROR - too many bytes in unfinished messages on this connection";
    assert_eq!(cost_of(&mut client), cost(0, 506, text, 60, 40));
}

#[test]
fn a_close_that_crosses_ours_is_answered() {
    let (mut client, _) = Client::with_channel();
    client.send(1, ack(1, false));
    client.read();
    client.send(1, Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    assert_eq!(client.read(), [Sent::Method(1, Method::ChannelCloseOk {})]);
    client.send(1, Method::ChannelCloseOk {});
    client.open_channel_after_events(1);

    client.send(1, Method::ChannelFlow { active: false });
    client.read();
    client.send(0, Method::ConnectionClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    assert_eq!(client.read(), [Sent::Method(0, Method::ConnectionCloseOk {})]);
    client.send(0, Method::ConnectionCloseOk {});
    assert!(client.connection.is_finished());
}

#[test]
fn a_close_that_waits_behind_what_fails_is_answered_too() {
    let (mut client, channel) = Client::with_channel();
    client.send(1, declare("q", false));
    client.send(1, Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    client.events();
    client.connection.channel_error(channel, ChannelError::new(ReplyCode::NotFound, "no"));
    let sent = client.read();
    assert!(
        matches!(
            sent[..],
            [Sent::Method(1, Method::ChannelClose { reply_code: 404, .. }), Sent::Method(1, Method::ChannelCloseOk {})]
        ),
        "{sent:?}"
    );
    client.send(1, Method::ChannelCloseOk {});
    client.open_channel_after_events(1);
}

#[test]
fn a_close_that_nobody_answers_ends_in_time() {
    let (mut client, _) = Client::with_channel();
    client.now = 500_000;
    client.connection.close(ReplyCode::ConnectionForced, "shutdown");
    client.sleep(9_999);
    assert!(!client.connection.is_finished());
    client.sleep(1);
    assert!(client.connection.is_finished());
}

#[test]
fn a_garbled_end_marker_after_good_frames_lets_the_good_ones_count() {
    let (mut client, _) = Client::with_channel();
    let mut bytes = publish_bytes(1, "q", b"good");
    write_frame(&mut bytes, FRAME_HEARTBEAT, 0, |_| {});
    let last = bytes.len() - 1;
    assert_eq!(bytes[last], FRAME_END);
    bytes[last] = 0xff;
    client.raw(&bytes);
    assert_eq!(client.published().body, &b"good"[..]);
    assert_eq!(cost_of(&mut client).1, 501);
}

#[test]
fn a_reply_after_the_close_reaches_nobody() {
    let (mut client, channel) = Client::with_channel();
    client.send(1, declare("q", false));
    client.events();
    client.send(0, Method::ConnectionClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    client.read();
    let queue = Bytes::from_static(b"q");
    client.connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
    assert_eq!(client.read(), []);
}

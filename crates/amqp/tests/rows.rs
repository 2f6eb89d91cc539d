//! Messages in a row: what comes as one, where a row ends, what a client does behind one, and deliveries one behind the
//! other.

mod client;

use amqp::wire::frame::{FRAME_BODY, FRAME_EMPTY_BYTES, FRAME_END, write_frame};
use amqp::wire::method::Method;
use amqp::{ConnectionConfig, ConsumerTag, Delivery, Event, MessageParts, Publish, ReplyCode, ReturnedMessage};
use bytes::Bytes;
use client::*;

/// What was published, as it was handed out: the first number, the mandatory flag and all bodies of each.
fn handed_out(client: &mut Client) -> Vec<(u64, Vec<Bytes>)> {
    let next = || match client.connection.poll_event()? {
        Event::Publish(publish) => {
            assert_eq!(publish.count() as usize, publish.clone().apart().count());
            Some((publish.publish_seq, publish.apart().map(|publish| publish.body).collect()))
        }
        other => panic!("a publish and not {other:?}"),
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn publishes_in_a_row_that_differ_in_their_bodies_alone_are_one() {
    let (mut client, _) = Client::with_channel();
    client.confirm_select(1);
    let publish = |key, body: &[u8]| publish_bytes(1, key, body);
    let with_priority = |body: &[u8]| {
        let mut bytes = publish("a", body);
        let header_at = bytes.iter().position(|byte| *byte == FRAME_END).expect("a frame ends") + 1;
        bytes.splice(header_at + 3..header_at + 7, 15_u32.to_be_bytes());
        bytes.splice(header_at + 19..header_at + 21, [8, 0, 7]);
        bytes
    };
    let all: [&[Vec<u8>]; 6] = [
        &[publish("a", b"1"), publish("a", b""), publish("a", b"three")],
        &[publish("b", b"4"), publish("b", b"5")],
        &[with_priority(b"6"), with_priority(b"7")],
        &[publish("a", b"8")],
        // Of several frames.
        &[publish("a", &[9; 140_000])],
        &[publish("a", b"10"), publish("a", b"11")],
    ];
    client.raw(&all.concat().concat());
    let bodies = |bodies: &[&'static [u8]]| bodies.iter().copied().map(Bytes::from_static).collect::<Vec<_>>();
    let expected = vec![
        (1, bodies(&[b"1", b"", b"three"])),
        (4, bodies(&[b"4", b"5"])),
        (6, bodies(&[b"6", b"7"])),
        (8, bodies(&[b"8"])),
        (9, vec![Bytes::from(vec![9; 140_000])]),
        (10, bodies(&[b"10", b"11"])),
    ];
    assert_eq!(handed_out(&mut client), expected);
    // An ack in between is an event in between, another channel's publish too; what came in another read is another's.
    client.raw(&publish("a", b"12"));
    client.raw(&publish("a", b"13"));
    assert_eq!(handed_out(&mut client), [(12, bodies(&[b"12"])), (13, bodies(&[b"13"]))]);
    client.open_channel(2);
    client.raw(&[publish("a", b"14"), publish_bytes(2, "a", b"x"), publish("a", b"15")].concat());
    assert_eq!(handed_out(&mut client), [(14, bodies(&[b"14"])), (0, bodies(&[b"x"])), (15, bodies(&[b"15"]))]);
}

/// What a method is called that the broker sent.
fn name_of(sent: &Sent) -> String {
    let text = format!("{sent:?}");
    text.trim_start_matches("Method(")
        .split(['{', ' ', ')'])
        .filter(|part| !part.is_empty())
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}

/// As RabbitMQ does: a client that publishes its last messages and leaves at once hears which of them reached no queue.
#[test]
fn what_a_client_does_behind_its_publishes_is_answered_behind_what_comes_back_of_them() {
    let mandatory = |body: &[u8]| {
        let mut bytes = publish_bytes(1, "nowhere", body);
        let flags_at = bytes.iter().position(|byte| *byte == FRAME_END).expect("a frame ends") - 1;
        bytes[flags_at] = 1;
        bytes
    };
    let close = || Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 };
    let leave = || Method::ConnectionClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 };
    let behind = [
        (1, close(), "ChannelCloseOk"),
        (1, Method::ConfirmSelect { no_wait: false }, "ConfirmSelectOk"),
        (1, Method::ChannelFlow { active: true }, "ChannelFlowOk"),
        (0, leave(), "ConnectionCloseOk"),
    ];
    for (number, method, answer) in behind {
        for count in [1, 3, 300] {
            let (mut client, channel) = Client::with_channel();
            let mut bytes = mandatory(b"lost").repeat(count);
            method.write(&mut bytes, number);
            client.raw(&bytes);
            let mut returned = 0;
            while let Some(event) = client.event() {
                match event {
                    Event::Publish(publish) => {
                        returned += 1;
                        let message = MessageParts {
                            exchange: &publish.exchange,
                            routing_key: &publish.routing_key,
                            properties: &publish.properties,
                            body: (&publish.body).into(),
                        };
                        let message = ReturnedMessage { code: ReplyCode::NoRoute, message };
                        client.connection.return_message(channel, &message);
                        assert!(returned < count || client.connection.has_events(), "the turn goes on: {answer}");
                    }
                    Event::Closed(_) => client.connection.left(),
                    _ => {}
                }
            }
            assert!(!client.connection.has_events());
            let sent: Vec<String> =
                client.read().iter().filter(|sent| matches!(sent, Sent::Method(..))).map(name_of).collect();
            let of = |number: u16, name: &str| sent.iter().filter(|sent| **sent == format!("{number}, {name}")).count();
            assert_eq!((returned, of(1, "BasicReturn")), (count, count), "{answer}: {sent:?}");
            assert_eq!(of(number, answer), 1, "{answer}: {sent:?}");
            let at = |name: &str| sent.iter().rposition(|sent| sent.ends_with(name));
            assert!(at("BasicReturn") < at(answer), "{answer}: {sent:?}");
        }
    }
    // Nobody waits for messages that were published for others, or that may not come back.
    let (mut client, _) = Client::with_channel();
    client.open_channel(2);
    let mut bytes = [mandatory(b"x"), publish_bytes(2, "q", b"y")].concat();
    close().write(&mut bytes, 2);
    client.raw(&bytes);
    assert!(matches!(client.read_method(), (2, Method::ChannelCloseOk {})));
}

#[test]
fn what_is_left_of_messages_that_came_as_one_is_the_next_event() {
    let (mut client, _) = Client::with_channel();
    client.confirm_select(1);
    client.raw(
        &[[&b"1"[..], b"2", b"3"].map(|body| publish_bytes(1, "a", body)).concat(), publish_bytes(1, "b", b"4")]
            .concat(),
    );
    let Some(Event::Publish(mut publish)) = client.connection.poll_event() else { panic!("a publish") };
    let first = publish.take_first().expect("there are three");
    assert_eq!((first.publish_seq, &first.body[..], first.count()), (1, &b"1"[..], 1));
    client.connection.put_back(publish);
    assert_eq!(
        handed_out(&mut client),
        [(2, vec![Bytes::from_static(b"2"), Bytes::from_static(b"3")]), (4, vec![Bytes::from_static(b"4")])]
    );
    let mut alone = Publish { more: None, ..first };
    assert!(alone.take_first().is_none() && alone.body == "1", "one is not several");
}

#[test]
fn one_event_publishes_so_much_and_no_more() {
    let (mut client, _) = Client::with_channel();
    let sizes = |client: &mut Client| handed_out(client).iter().map(|(_, bodies)| bodies.len()).collect::<Vec<_>>();
    client.raw(&publish_bytes(1, "a", b"").repeat(600));
    assert_eq!(sizes(&mut client), [256, 256, 88]);
    client.raw(&publish_bytes(1, "a", &[1; 16 << 10]).repeat(9));
    assert_eq!(sizes(&mut client), [3, 3, 3]);
    let key = "k".repeat(250).leak();
    client.raw(&publish_bytes(1, key, b"").repeat(600));
    let of_long_names = sizes(&mut client);
    assert!(of_long_names[..2].iter().all(|count| (200..250).contains(count)), "names count too: {of_long_names:?}");
    client.raw(&publish_bytes(1, "a", &[1; 100_000]).repeat(2));
    assert_eq!(sizes(&mut client), [1, 1]);
}

#[test]
fn a_publish_behind_others_like_it_is_looked_at_as_any_other() {
    let config = ConnectionConfig { body_bytes_max: 10, ..ConnectionConfig::default() };
    let too_large = publish_bytes(1, "a", b"eleven byte");
    let mut end = publish_bytes(1, "a", b"x");
    *end.last_mut().expect("a frame") = 0;
    // Its frame has a byte more than its header says.
    let mut body = publish_bytes(1, "a", b"x");
    body.truncate(body.len() - FRAME_EMPTY_BYTES - 1);
    write_frame(&mut body, FRAME_BODY, 1, |w| w.raw(b"xx"));
    for (bad, code, on_channel) in [(too_large, 406, true), (end, 501, false), (body, 501, false)] {
        let mut client = Client::open_with(config.clone(), capable(), tune_ok(10, 131_072, 0));
        client.open_channel(1);
        client.raw(&[publish_bytes(1, "a", b"1").repeat(2), bad].concat());
        let one = client.event();
        assert!(matches!(&one, Some(Event::Publish(publish)) if publish.body == "1"), "{one:?}");
        assert!(matches!(client.event(), Some(Event::Publish(_))));
        match client.read_method() {
            (1, Method::ChannelClose { reply_code, .. }) if on_channel => assert_eq!(reply_code, code),
            (0, Method::ConnectionClose { reply_code, .. }) if !on_channel => assert_eq!(reply_code, code),
            other => panic!("{other:?} and not {code}"),
        }
    }
}

#[test]
fn each_delivery_says_what_it_is_whatever_the_one_before_was() {
    let (mut client, first) = Client::with_channel();
    let second = client.open_channel(2);
    let long = [7_u8; 300];
    let bodies = [&b""[..], b"x", &[1; 5_000], &[2; 200_000]].map(Bytes::copy_from_slice);
    let properties: [&[u8]; 3] = [&[0, 0], &[0x10, 0, 2], b"\x80\0\x03a/b"];
    let tags = ["", "c", "consumer"].map(|tag| ConsumerTag::new(Bytes::from_static(tag.as_bytes())));
    let mut random = 1_u64;
    let mut pick = |count: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % count
    };
    let (mut given, mut last) = ([0; 2], (0, 0, 0, 0, 0));
    for number in 0..2_000 {
        // Mostly as the one before.
        if pick(3) == 0 {
            last = (pick(2), pick(3), pick(4), pick(4), pick(3));
        }
        let (channel, tag, exchange, routing_key, property) = last;
        let (exchange, routing_key) =
            ([&b""[..], b"x", b"amq.topic", b"xx"][exchange], [&b""[..], b"q", b"a.b", &long[..255]][routing_key]);
        let (body, redelivered) = (&bodies[pick(40).saturating_sub(36)], pick(2) == 0);
        let message = MessageParts { exchange, routing_key, properties: properties[property], body: body.into() };
        let consumer_tag = &tags[tag];
        let delivery = Delivery { consumer_tag, consumer: 1, seq: number, redelivered, no_ack: true, message };
        client.connection.deliver([first, second][channel], &delivery);
        given[channel] += 1;
        let sent = client.read();
        let number = channel as u16 + 1;
        let Sent::Method(
            of,
            Method::BasicDeliver { consumer_tag, delivery_tag, redelivered: again, exchange: from, routing_key: key },
        ) = &sent[0]
        else {
            panic!("{:?}", sent[0])
        };
        assert_eq!(
            (*of, &consumer_tag[..], *delivery_tag, *again),
            (number, tags[tag].as_bytes(), given[channel], redelivered)
        );
        assert_eq!((&from[..], &key[..]), (exchange, routing_key));
        let Sent::Header { channel: of, size, properties: told } = &sent[1] else { panic!("{:?}", sent[1]) };
        assert_eq!((*of, *size, &told[..]), (number, body.len() as u64, properties[property]));
        let parts = sent[2..].iter().map(|part| {
            if let Sent::Body(of, part) = part {
                assert_eq!(*of, number);
                &part[..]
            } else {
                panic!("{part:?}")
            }
        });
        assert_eq!(parts.collect::<Vec<_>>().concat(), body[..]);
    }
}

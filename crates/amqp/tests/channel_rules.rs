//! A channel in order: publishes, confirms, deliveries, acks, requests that wait, alarms, closes.

mod client;

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER};
use amqp::wire::method::Method;
use amqp::wire::output::SPLICE_BYTES_MIN;
use amqp::{
    ChannelId, Closed, Confirm, ConnectionConfig, ConsumerTag, Delivery, Event, GetDelivery, MessageParts, Reply,
    ReplyCode, Request, ReturnedMessage, Settlement, Table,
};
use bytes::Bytes;
use client::*;

fn deliver(client: &mut Client, channel: ChannelId, consumer: u32, seq: u64, body: &Bytes) -> Option<u64> {
    let message = MessageParts { exchange: b"", routing_key: b"q", properties: b"\x10\0\x02", body: body.into() };
    let consumer_tag = ConsumerTag::new(Bytes::from_static(b"tag"));
    let delivery =
        Delivery { consumer_tag: &consumer_tag, consumer, seq, redelivered: seq == 2, no_ack: consumer == 99, message };
    client.connection.deliver(channel, &delivery)
}

fn deliver_many(client: &mut Client, channel: ChannelId, consumer: u32, seqs: impl IntoIterator<Item = u64>) {
    let body = Bytes::from_static(b"m");
    for seq in seqs {
        deliver(client, channel, consumer, seq, &body);
    }
    client.read();
}

#[test]
fn a_publish_is_slices_of_what_was_read() {
    let (mut client, channel) = Client::with_channel();
    client.publish(1, "key", b"hello");
    let publish = client.published();
    assert_eq!(publish.channel, channel);
    assert_eq!(
        (&publish.exchange[..], &publish.routing_key[..], &publish.body[..]),
        (&b""[..], &b"key"[..], &b"hello"[..])
    );
    assert_eq!((&publish.properties[..], publish.mandatory, publish.publish_seq), (&[0, 0][..], false, 0));
    assert_eq!(client.read(), []);
}

#[test]
fn bodies_of_every_awkward_size_arrive_whole() {
    let room = 4096 - 8;
    for size in [0, 1, room - 1, room, room + 1, 2 * room, 2 * room + 1, 100_000] {
        let mut client = Client::open_with(ConnectionConfig::default(), capable(), tune_ok(10, 4096, 0));
        let channel = client.open_channel(1);
        let body: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
        client.send(1, publish_method("q"));
        client.frame(FRAME_HEADER, 1, &header_payload(size as u64));
        for part in body.chunks(room) {
            client.frame(FRAME_BODY, 1, part);
        }
        assert_eq!(client.published().body, body);

        // And back: no frame is larger than what was negotiated, and the parts are the body.
        deliver(&mut client, channel, 1, 1, &Bytes::from(body.clone()));
        let sent = client.read();
        let (parts, rest): (Vec<_>, Vec<_>) = sent.into_iter().partition(|s| matches!(s, Sent::Body(..)));
        assert!(matches!(rest[..], [Sent::Method(1, Method::BasicDeliver { .. }), Sent::Header { .. }]), "{rest:?}");
        assert!(matches!(rest[1], Sent::Header { channel: 1, size: s, .. } if s == size as u64));
        let parts: Vec<Vec<u8>> =
            parts.into_iter().map(|s| if let Sent::Body(1, part) = s { part } else { vec![] }).collect();
        assert!(parts.iter().all(|part| (1..=room).contains(&part.len())), "body of {size}");
        assert_eq!(parts.len(), size.div_ceil(room));
        assert_eq!(parts.concat(), body);
    }
}

#[test]
fn the_largest_body_is_taken() {
    let (mut client, _) = Client::with_channel();
    let body = vec![5; 16 * 1024 * 1024];
    client.publish(1, "q", &body);
    assert!(client.published().body == body);
}

#[test]
fn deliveries_have_their_golden_bytes() {
    let (mut client, channel) = Client::with_channel();
    assert_eq!(deliver(&mut client, channel, 1, 1, &Bytes::from_static(b"hi")), Some(1));
    assert_eq!(
        client.read_bytes(),
        b"\x01\0\x01\0\0\0\x14\0\x3c\0\x3c\x03tag\0\0\0\0\0\0\0\x01\0\0\x01q\xce\
          \x02\0\x01\0\0\0\x0f\0\x3c\0\0\0\0\0\0\0\0\0\x02\x10\0\x02\xce\
          \x03\0\x01\0\0\0\x02hi\xce"
    );
    assert_eq!(deliver(&mut client, channel, 1, 2, &Bytes::new()), Some(2));
    let deliver = Method::BasicDeliver {
        consumer_tag: Bytes::from_static(b"tag"),
        delivery_tag: 2,
        redelivered: true,
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
    };
    let header = Sent::Header { channel: 1, size: 0, properties: b"\x10\0\x02".to_vec() };
    assert_eq!(client.read(), [Sent::Method(1, deliver), header]);
}

#[test]
fn large_bodies_are_spliced_and_small_ones_copied() {
    let (mut client, channel) = Client::with_channel();
    for size in [SPLICE_BYTES_MIN - 1, SPLICE_BYTES_MIN] {
        let body = Bytes::from(vec![1; size]);
        deliver(&mut client, channel, 1, 1, &body);
        let mut slices = [std::io::IoSlice::new(&[]); 8];
        let filled = client.connection.output().chunks(&mut slices);
        let is_body = |slice: &std::io::IoSlice<'_>| slice.as_ptr() == body.as_ptr();
        assert_eq!(slices[..filled].iter().any(is_body), size >= SPLICE_BYTES_MIN);
        client.read();
    }
}

#[test]
fn settled_deliveries_come_back_as_runs() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, 100..110); // tags 1 to 10
    deliver_many(&mut client, channel, 8, 5..8); // tags 11 to 13
    client.send(1, ack(4, true));
    assert_eq!(runs(&client.settled()), (Settlement::Ack, vec![(7, 100, 4)]));
    client.send(1, Method::BasicNack { delivery_tag: 12, multiple: true, requeue: true });
    assert_eq!(runs(&client.settled()), (Settlement::Nack { requeue: true }, vec![(7, 104, 6), (8, 5, 2)]));
    client.send(1, Method::BasicReject { delivery_tag: 13, requeue: false });
    assert_eq!(runs(&client.settled()), (Settlement::Reject { requeue: false }, vec![(8, 7, 1)]));
    client.send(1, ack(0, true));
    assert!(client.event().is_none(), "all of nothing is nothing");
    assert_eq!(client.read(), []);
}

#[test]
fn acks_one_by_one_become_one_event() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, 100..200);
    let mut bytes = Vec::new();
    (1..=50).for_each(|tag| ack(tag, false).write(&mut bytes, 1));
    Method::BasicReject { delivery_tag: 51, requeue: false }.write(&mut bytes, 1);
    ack(52, false).write(&mut bytes, 1);
    client.raw(&bytes);
    let events = client.events();
    let settles: Vec<_> =
        events.iter().map(|e| if let Event::Settle(s) = e { runs(s) } else { panic!("{e:?}") }).collect();
    assert_eq!(
        settles,
        [
            (Settlement::Ack, vec![(7, 100, 50)]),
            (Settlement::Reject { requeue: false }, vec![(7, 150, 1)]),
            (Settlement::Ack, vec![(7, 151, 1)])
        ]
    );
}

#[test]
fn tag_zero_with_multiple_settles_everything() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, [1, 2, 3, 9]);
    client.send(1, ack(0, true));
    assert_eq!(runs(&client.settled()), (Settlement::Ack, vec![(7, 1, 3), (7, 9, 1)]));
}

#[test]
fn a_delivery_without_ack_is_not_kept_and_has_a_tag_nonetheless() {
    let (mut client, channel) = Client::with_channel();
    let body = Bytes::from_static(b"m");
    assert_eq!(deliver(&mut client, channel, 99, 1, &body), Some(1));
    assert_eq!(deliver(&mut client, channel, 7, 1, &body), Some(2));
    client.read();
    client.send(1, ack(2, false));
    assert_eq!(runs(&client.settled()), (Settlement::Ack, vec![(7, 1, 1)]));
    client.send(1, ack(1, false));
    assert!(matches!(client.read_method(), (1, Method::ChannelClose { reply_code: 406, .. })));
}

#[test]
fn a_tag_of_another_channel_is_unknown() {
    let (mut client, channel) = Client::with_channel();
    client.open_channel(2);
    deliver_many(&mut client, channel, 7, [1]);
    client.send(2, ack(1, false));
    assert!(matches!(client.read_method(), (2, Method::ChannelClose { reply_code: 406, .. })));
}

#[test]
fn a_closed_channel_leaves_its_deliveries_in_order() {
    let (mut client, channel) = Client::with_channel();
    deliver_many(&mut client, channel, 7, [1, 2, 3]);
    deliver_many(&mut client, channel, 8, [1]);
    client.send(1, ack(2, false));
    client.send(1, Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    assert!(matches!(client.event(), Some(Event::Settle(_))));
    let Some(Event::ChannelClosed { channel: closed, unsettled, .. }) = client.event() else { panic!("it closes") };
    assert_eq!(closed, channel);
    let left: Vec<_> = unsettled.iter().map(|run| (run.consumer, run.first_seq, run.count)).collect();
    assert_eq!(left, [(7, 1, 1), (7, 3, 1), (8, 1, 1)]);
    assert_eq!(client.read(), [Sent::Method(1, Method::ChannelCloseOk {})]);

    // Late words for the old channel do not reach the new one with its number.
    let again = client.open_channel(1);
    let body = Bytes::from_static(b"late");
    deliver(&mut client, again, 9, 9, &body);
    client.confirm_select_after_reading(1);
    client.publish(1, "q", b"new");
    assert_eq!(client.published().publish_seq, 1);
    assert_eq!((client.connection.unsettled(channel).len(), client.connection.unconfirmed(channel)), (0, 0));
    assert_eq!((client.connection.unsettled(again).len(), client.connection.unconfirmed(again)), (1, 1));
    assert_eq!(deliver(&mut client, channel, 7, 1, &body), None);
    client.connection.confirm(channel, 1, Confirm::Ack);
    client.connection.reply(channel, Reply::Done);
    client.connection.get_empty(channel);
    client.connection.channel_error(channel, amqp::ChannelError::new(ReplyCode::NotFound, "late"));
    client.connection.flush_confirms();
    assert_eq!((client.read(), client.events().len()), (vec![], 0));
    assert_eq!(deliver(&mut client, again, 7, 1, &body), Some(2));
}

#[test]
fn acks_on_two_channels_are_two_events() {
    let (mut client, channel) = Client::with_channel();
    let other = client.open_channel(2);
    deliver_many(&mut client, channel, 7, [1]);
    deliver_many(&mut client, other, 7, [2]);
    client.send(1, ack(1, false));
    client.send(2, ack(1, false));
    let (first, second) = (client.settled(), client.settled());
    assert_eq!((first.channel, second.channel), (channel, other));
    assert_eq!(runs(&second), (Settlement::Ack, vec![(7, 2, 1)]));
}

#[test]
fn a_whole_publish_inside_an_unfinished_one_is_out_of_order() {
    let (mut client, _) = Client::with_channel();
    client.send(1, publish_method("q"));
    client.publish(1, "q", b"whole");
    assert!(matches!(client.read_method(), (0, Method::ConnectionClose { reply_code: 505, .. })));
    assert!(!client.events().iter().any(|event| matches!(event, Event::Publish(_))));
}

#[test]
fn what_waited_in_a_closed_channel_makes_room() {
    let config = ConnectionConfig { pending_frames_max: 10, pending_bytes_max: 300, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 131_072, 0));
    for _ in 0..5 {
        let channel = client.open_channel_after_events(1);
        client.send(1, declare("q", false));
        for _ in 0..9 {
            client.send(1, ack(1, false));
        }
        assert!(client.connection.wants_input());
        client.connection.channel_error(channel, amqp::ChannelError::new(ReplyCode::AccessRefused, "no"));
        client.send(1, Method::ChannelCloseOk {});
        // And of a channel that goes on, as well.
        let channel = client.open_channel_after_events(1);
        client.send(1, declare("q", false));
        (0..9).for_each(|_| client.send(1, Method::ChannelFlow { active: true }));
        let queue = Bytes::from_static(b"q");
        client.connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
        assert_eq!(client.read().len(), 10);
        client.send(1, Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 });
    }
}

#[test]
fn a_connection_that_is_not_read_is_not_silent() {
    let config = ConnectionConfig { pending_frames_max: 1, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 131_072, 10));
    let channel = client.open_channel(1);
    client.send(1, declare("q", false));
    client.send(1, declare("q", false));
    assert!(!client.connection.wants_input());
    client.sleep(1_000_000);
    assert!(client.connection.is_running());
    // Reading starts again, and with it the client's time.
    client.events();
    let queue = Bytes::from_static(b"q");
    client.connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
    assert!(client.connection.wants_input());
    client.sleep(20_000);
    assert!(client.connection.is_running());
    client.sleep(20_000);
    assert!(client.connection.is_finished());
}

#[test]
fn a_connection_that_was_not_read_until_now_is_not_silent() {
    let config = ConnectionConfig { pending_frames_max: 1, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 131_072, 10));
    let channel = client.open_channel(1);
    client.send(1, declare("q", false));
    client.send(1, declare("q", false));
    client.sleep(19_999);
    client.events();
    let queue = Bytes::from_static(b"q");
    client.connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
    assert!(client.connection.wants_input());
    client.sleep(19_999);
    assert!(client.connection.is_running());
    client.sleep(20_000);
    assert!(client.connection.is_finished());
}

#[test]
fn confirms_are_counted_from_one_and_flushed_together() {
    let (mut client, channel) = Client::with_channel();
    client.publish(1, "q", b"before");
    assert_eq!(client.published().publish_seq, 0);
    client.confirm_select(1);
    for seq in 1..=5 {
        client.publish(1, "q", b"body");
        assert_eq!(client.published().publish_seq, seq);
    }
    client.confirm_select(1);
    client.publish(1, "q", b"a second select changes nothing");
    assert_eq!(client.published().publish_seq, 6);

    for seq in [1, 2, 5, 3] {
        client.connection.confirm(channel, seq, Confirm::Ack);
    }
    client.connection.confirm(channel, 6, Confirm::Nack);
    assert_eq!(client.read(), [], "nothing before the flush");
    client.connection.flush_confirms();
    let nack = Method::BasicNack { delivery_tag: 6, multiple: false, requeue: false };
    assert_eq!(client.read(), [Sent::Method(1, ack(3, true)), Sent::Method(1, ack(5, false)), Sent::Method(1, nack)]);
    assert_eq!(client.connection.unconfirmed(channel), 3);
    client.connection.flush_confirms();
    assert_eq!(client.read(), []);
    client.connection.confirm(channel, 4, Confirm::Ack);
    client.connection.flush_confirms();
    assert_eq!(client.read(), [Sent::Method(1, ack(4, false))]);
    assert_eq!(client.connection.unconfirmed(channel), 0);
}

#[test]
fn a_return_precedes_its_confirm() {
    let (mut client, channel) = Client::with_channel();
    client.confirm_select(1);
    client.publish(1, "nowhere", b"body");
    let publish = client.published();
    client.connection.confirm(channel, publish.publish_seq, Confirm::Ack);
    let message = MessageParts {
        exchange: &publish.exchange,
        routing_key: &publish.routing_key,
        properties: &publish.properties,
        body: (&publish.body).into(),
    };
    client.connection.return_message(channel, &ReturnedMessage { code: ReplyCode::NoRoute, message });
    client.connection.flush_confirms();
    let returned = Method::BasicReturn {
        reply_code: 312,
        reply_text: Bytes::from_static(b"NO_ROUTE"),
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"nowhere"),
    };
    assert_eq!(
        client.read(),
        [
            Sent::Method(1, returned),
            Sent::Header { channel: 1, size: 4, properties: vec![0, 0] },
            Sent::Body(1, b"body".to_vec()),
            Sent::Method(1, ack(1, false)),
        ]
    );
}

#[test]
fn a_channel_waits_for_its_answer_and_others_do_not() {
    let (mut client, channel) = Client::with_channel();
    client.open_channel(2);
    deliver_many(&mut client, channel, 7, [1]);
    let mut bytes = Vec::new();
    declare("a", false).write(&mut bytes, 1);
    declare("b", true).write(&mut bytes, 1);
    bytes.extend_from_slice(&publish_bytes(1, "one", b"waits"));
    ack(1, false).write(&mut bytes, 1);
    bytes.extend_from_slice(&publish_bytes(2, "two", b"goes on"));
    client.raw(&bytes);

    assert!(matches!(client.request(), Request::QueueDeclare { queue, .. } if queue == "a"));
    assert_eq!(client.published().routing_key, "two");
    assert!(client.event().is_none());
    // Deliveries go out meanwhile.
    deliver_many(&mut client, channel, 7, [2]);

    let declared = |queue: &'static str| Reply::QueueDeclared {
        queue: Bytes::from_static(queue.as_bytes()),
        message_count: 4,
        consumer_count: 2,
    };
    client.connection.reply(channel, declared("a"));
    let ok = Method::QueueDeclareOk { queue: Bytes::from_static(b"a"), message_count: 4, consumer_count: 2 };
    assert_eq!(client.read(), [Sent::Method(1, ok)]);
    assert!(matches!(client.request(), Request::QueueDeclare { queue, .. } if queue == "b"));
    assert!(client.event().is_none());

    client.connection.reply(channel, declared("b"));
    assert_eq!(client.read(), [], "no-wait is not answered");
    assert_eq!(client.published().body, &b"waits"[..]);
    assert_eq!(runs(&client.settled()), (Settlement::Ack, vec![(7, 1, 1)]));
}

#[test]
fn every_request_has_its_answer() {
    let (mut client, channel) = Client::with_channel();
    let n = |name: &'static str| Bytes::from_static(name.as_bytes());
    let t = Table::new;
    let queue_declared = Reply::QueueDeclared { queue: n("q"), message_count: 0, consumer_count: 0 };
    let cases: Vec<(Method, Reply, Method)> = vec![
        (
            declare("q", false),
            queue_declared,
            Method::QueueDeclareOk { queue: n("q"), message_count: 0, consumer_count: 0 },
        ),
        (
            Method::ExchangeDeclare {
                ticket: 0,
                exchange: n("x"),
                kind: n("fanout"),
                passive: false,
                durable: true,
                auto_delete: false,
                internal: true,
                no_wait: false,
                arguments: t(),
            },
            Reply::Done,
            Method::ExchangeDeclareOk {},
        ),
        (
            Method::ExchangeBind {
                ticket: 0,
                destination: n("d"),
                source: n("s"),
                routing_key: n("k"),
                no_wait: false,
                arguments: t(),
            },
            Reply::Done,
            Method::ExchangeBindOk {},
        ),
        (
            Method::ExchangeUnbind {
                ticket: 0,
                destination: n("d"),
                source: n("s"),
                routing_key: n("k"),
                no_wait: false,
                arguments: t(),
            },
            Reply::Done,
            Method::ExchangeUnbindOk {},
        ),
        (
            Method::ExchangeDelete { ticket: 0, exchange: n("x"), if_unused: true, no_wait: false },
            Reply::Done,
            Method::ExchangeDeleteOk {},
        ),
        (
            Method::QueueBind {
                ticket: 0,
                queue: n("q"),
                exchange: n("x"),
                routing_key: n("k"),
                no_wait: false,
                arguments: t(),
            },
            Reply::Done,
            Method::QueueBindOk {},
        ),
        (
            Method::QueueUnbind { ticket: 0, queue: n("q"), exchange: n("x"), routing_key: n("k"), arguments: t() },
            Reply::Done,
            Method::QueueUnbindOk {},
        ),
        (
            Method::QueuePurge { ticket: 0, queue: n("q"), no_wait: false },
            Reply::QueuePurged { message_count: 3 },
            Method::QueuePurgeOk { message_count: 3 },
        ),
        (Method::BasicQos { prefetch_size: 0, prefetch_count: 9, global: true }, Reply::Done, Method::BasicQosOk {}),
        (
            consume(n("t")),
            Reply::Consuming { consumer_tag: ConsumerTag::new(n("t")) },
            Method::BasicConsumeOk { consumer_tag: n("t") },
        ),
        (Method::BasicRecover { requeue: true }, Reply::Done, Method::BasicRecoverOk {}),
        (
            Method::BasicCancel { consumer_tag: n("t"), no_wait: false },
            Reply::Done,
            Method::BasicCancelOk { consumer_tag: n("t") },
        ),
        (
            Method::QueueDelete { ticket: 0, queue: n("q"), if_unused: false, if_empty: true, no_wait: false },
            Reply::QueueDeleted { message_count: 8 },
            Method::QueueDeleteOk { message_count: 8 },
        ),
    ];
    for (method, reply, answer) in cases {
        client.send(1, method.clone());
        client.request();
        assert_eq!(client.read(), [], "{}", method.name());
        client.connection.reply(channel, reply);
        assert_eq!(client.read(), [Sent::Method(1, answer)]);
        // The broker hears of no answer twice.
        client.connection.reply(channel, Reply::Done);
        assert_eq!(client.read(), []);
    }
}

#[test]
fn what_needs_no_broker_is_answered_at_once() {
    let (mut client, _) = Client::with_channel();
    let realm = Bytes::from_static(b"/data");
    let access =
        Method::AccessRequest { realm, exclusive: false, passive: true, active: true, write: true, read: true };
    client.send(1, access);
    assert_eq!(client.read_method(), (1, Method::AccessRequestOk { ticket: 1 }));
    client.send(1, Method::ChannelFlow { active: true });
    assert_eq!(client.read_method(), (1, Method::ChannelFlowOk { active: true }));
    let consumer_tag = Bytes::from_static(b"nobody");
    client.send(1, Method::BasicCancel { consumer_tag: consumer_tag.clone(), no_wait: false });
    assert_eq!(client.read_method(), (1, Method::BasicCancelOk { consumer_tag: consumer_tag.clone() }));
    client.send(1, Method::BasicCancel { consumer_tag, no_wait: true });
    client.send(1, Method::ConfirmSelect { no_wait: true });
    assert_eq!((client.read(), client.events().len()), (vec![], 0));
}

#[test]
fn an_empty_queue_name_is_the_last_one_declared_here() {
    let (mut client, channel) = Client::with_channel();
    client.send(1, declare("", false));
    assert!(matches!(client.request(), Request::QueueDeclare { queue, .. } if queue.is_empty()));
    let queue = Bytes::from_static(b"amq.gen-1");
    client.connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
    client.read();
    let bind = |key: &'static str| Method::QueueBind {
        ticket: 0,
        queue: Bytes::new(),
        exchange: Bytes::from_static(b"x"),
        routing_key: Bytes::from_static(key.as_bytes()),
        no_wait: true,
        arguments: Table::new(),
    };
    for (key, expected) in [("", "amq.gen-1"), ("k", "k")] {
        client.send(1, bind(key));
        let Request::QueueBind { queue, routing_key, .. } = client.request() else { panic!("a bind") };
        assert_eq!((&queue[..], &routing_key[..]), (&b"amq.gen-1"[..], expected.as_bytes()));
        client.connection.reply(channel, Reply::Done);
    }
    client.send(1, Method::BasicGet { ticket: 0, queue: Bytes::new(), no_ack: false });
    assert!(matches!(client.request(), Request::Get { queue, .. } if queue == "amq.gen-1"));
}

#[test]
fn getting() {
    let (mut client, channel) = Client::with_channel();
    let get = |no_ack| Method::BasicGet { ticket: 0, queue: Bytes::from_static(b"q"), no_ack };
    let body = Bytes::from_static(b"got");
    let message = MessageParts { exchange: b"x", routing_key: b"k", properties: &[0, 0], body: (&body).into() };
    let delivery = GetDelivery { consumer: 5, seq: 70, redelivered: true, no_ack: false, message_count: 3, message };

    client.send(1, get(false));
    assert_eq!(client.request(), Request::Get { queue: Bytes::from_static(b"q"), no_ack: false });
    assert_eq!(client.connection.get_ok(channel, &delivery), Some(1));
    let ok = Method::BasicGetOk {
        delivery_tag: 1,
        redelivered: true,
        exchange: Bytes::from_static(b"x"),
        routing_key: Bytes::from_static(b"k"),
        message_count: 3,
    };
    let header = Sent::Header { channel: 1, size: 3, properties: vec![0, 0] };
    assert_eq!(client.read(), [Sent::Method(1, ok), header, Sent::Body(1, b"got".to_vec())]);
    client.send(1, ack(1, false));
    assert_eq!(runs(&client.settled()), (Settlement::Ack, vec![(5, 70, 1)]));

    client.send(1, get(false));
    client.request();
    client.connection.get_empty(channel);
    assert_eq!(client.read_method(), (1, Method::BasicGetEmpty { cluster_id: Bytes::new() }));
    // Nobody asked.
    assert_eq!(client.connection.get_ok(channel, &delivery), None);
    assert_eq!(client.read(), []);

    client.send(1, get(true));
    client.request();
    client.connection.get_ok(channel, &GetDelivery { no_ack: true, ..delivery });
    client.read();
    client.send(1, ack(2, false));
    assert!(matches!(client.read_method(), (1, Method::ChannelClose { reply_code: 406, .. })));
}

#[test]
fn a_lost_consumer_is_told_to_clients_that_understand() {
    let (mut client, channel) = Client::with_channel();
    let tag = client.consume(channel, "tag");
    client.connection.cancel_notify(channel, &tag);
    let cancel = Method::BasicCancel { consumer_tag: Bytes::from_static(b"tag"), no_wait: true };
    assert_eq!(client.read_method(), (1, cancel));
    client.connection.cancel_notify(channel, &tag);
    client.send(1, Method::BasicCancelOk { consumer_tag: Bytes::from_static(b"tag") });
    assert_eq!((client.read(), client.events().len()), (vec![], 0));
    client.consume(channel, "tag");

    let mut client = Client::open_with(ConnectionConfig::default(), Table::new(), tune_ok(10, 4096, 0));
    let channel = client.open_channel(1);
    let tag = client.consume(channel, "tag");
    client.connection.cancel_notify(channel, &tag);
    assert_eq!(client.read(), []);
    client.consume(channel, "tag");
}

#[test]
fn an_alarm_holds_publishers_and_nobody_else() {
    let (mut client, channel) = Client::with_channel();
    client.open_channel(2);
    deliver_many(&mut client, channel, 7, [1, 2]);
    client.connection.set_blocked(Some("low on disk"));
    assert_eq!(client.read(), [], "who never published is not told");
    client.publish(2, "q", b"held");
    let reason = Bytes::from_static(b"low on disk");
    assert_eq!(client.read_method(), (0, Method::ConnectionBlocked { reason }));
    client.publish(2, "q", b"held too");
    client.send(1, ack(1, false));
    assert!(matches!(client.events()[..], [Event::Settle(_)]), "acks go on");
    client.connection.set_blocked(Some("low on disk and patience"));
    assert_eq!(client.read(), [], "told once");

    client.connection.set_blocked(None);
    assert_eq!(client.read_method(), (0, Method::ConnectionUnblocked {}));
    let bodies: Vec<_> =
        client.events().into_iter().map(|e| if let Event::Publish(p) = e { p.body } else { panic!() }).collect();
    assert_eq!(bodies, [&b"held"[..], b"held too"]);

    // From now on it is a publisher, and is told at once.
    client.connection.set_blocked(Some("low on disk"));
    assert!(matches!(client.read_method(), (0, Method::ConnectionBlocked { .. })));
    client.connection.set_blocked(None);
    assert!(matches!(client.read_method(), (0, Method::ConnectionUnblocked {})));
    client.connection.set_blocked(None);
    assert_eq!(client.read(), []);
}

#[test]
fn a_close_waits_for_the_publishes_before_it() {
    let close = || Method::ConnectionClose { reply_code: 200, reply_text: "bye".into(), class_id: 0, method_id: 0 };
    let (mut client, _) = Client::with_channel();
    client.open_channel(2);
    client.connection.set_blocked(Some("low on disk"));
    client.publish(2, "q", b"held");
    client.read();
    client.send(0, close());
    assert_eq!((client.read(), client.events().len()), (vec![], 0), "the close comes behind the publish");
    client.connection.set_blocked(None);
    assert_eq!(client.read(), [Sent::Method(0, Method::ConnectionUnblocked {})]);
    assert_eq!(client.published().body, &b"held"[..]);
    assert_eq!(client.closed(), Closed::ByClient { code: 200, text: "bye".into() });
    assert_eq!(client.read(), [], "the close is answered once what belonged to the connection is gone");
    client.connection.left();
    assert_eq!(client.read_method(), (0, Method::ConnectionCloseOk {}));
    assert!(client.connection.is_finished());

    // Likewise behind a request that is not answered yet.
    let (mut client, waiting) = Client::with_channel();
    client.send(1, declare("a", true));
    client.publish(1, "a", b"behind");
    client.send(0, close());
    assert!(matches!(client.request(), Request::QueueDeclare { .. }));
    assert!(client.event().is_none());
    let queue = Bytes::from_static(b"a");
    client.connection.reply(waiting, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
    assert_eq!(client.published().body, &b"behind"[..]);
    assert_eq!(client.closed(), Closed::ByClient { code: 200, text: "bye".into() });

    // Who has nothing held leaves at once, alarm or not; so does who hangs up.
    let (mut client, _) = Client::with_channel();
    client.connection.set_blocked(Some("low on disk"));
    client.send(0, close());
    assert!(matches!(client.events()[..], [_, Event::Closed(Closed::ByClient { .. })]));
    client.connection.left();
    assert_eq!(client.read_method(), (0, Method::ConnectionCloseOk {}));
    let (mut client, _) = Client::with_channel();
    client.connection.set_blocked(Some("low on disk"));
    client.publish(1, "q", b"held");
    client.send(0, close());
    client.connection.handle_disconnect();
    assert_eq!(client.closed(), Closed::Disconnected);
    assert!(client.connection.is_finished());
}

#[test]
fn an_alarm_is_not_told_to_clients_that_do_not_understand() {
    let mut client = Client::open_with(ConnectionConfig::default(), Table::new(), tune_ok(10, 131_072, 0));
    client.open_channel(1);
    client.connection.set_blocked(Some("low on disk"));
    client.publish(1, "q", b"held");
    assert_eq!((client.read(), client.events().len()), (vec![], 0));
    client.connection.set_blocked(None);
    assert_eq!((client.read(), client.events().len()), (vec![], 1));
}

#[test]
fn a_full_backlog_stops_reading_until_there_is_room() {
    let config = ConnectionConfig { pending_frames_max: 30, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 131_072, 0));
    let channel = client.open_channel(1);
    let mut bytes = Vec::new();
    declare("a", false).write(&mut bytes, 1);
    (0..100).for_each(|_| bytes.extend_from_slice(&publish_bytes(1, "q", b"body")));
    client.raw(&bytes);
    assert!(client.input.is_empty(), "what was read is kept here");
    assert!(!client.connection.wants_input());
    client.raw(&publish_bytes(1, "q", b"last"));
    assert!(!client.input.is_empty(), "and no more is taken");
    assert!(matches!(client.request(), Request::QueueDeclare { .. }));
    assert!(client.event().is_none());

    let queue = Bytes::from_static(b"a");
    client.connection.reply(channel, Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
    assert!(client.connection.wants_input());
    assert_eq!(client.events().len(), 100);
    client.raw(&[]);
    assert_eq!(client.published().body, &b"last"[..]);
}

#[test]
fn what_waited_for_room_does_not_overtake_what_waited_in_its_channel() {
    let config = ConnectionConfig { pending_frames_max: 4, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 131_072, 0));
    client.open_channel(1);
    client.open_channel(2);
    client.connection.set_blocked(Some("low on disk"));
    let mut bytes = publish_bytes(1, "q", b"1");
    bytes.extend_from_slice(&publish_bytes(2, "q", b"2"));
    bytes.extend_from_slice(&publish_bytes(2, "q", b"3"));
    client.raw(&bytes);
    assert!(!client.connection.wants_input());
    client.connection.set_blocked(None);
    let bodies: Vec<_> =
        client.events().into_iter().map(|e| if let Event::Publish(p) = e { p.body } else { panic!("{e:?}") }).collect();
    assert_eq!(bodies, [&b"1"[..], b"2", b"3"]);
}

#[test]
fn a_client_that_does_not_read_fetches_no_more_than_a_little() {
    let (mut client, first) = Client::with_channel();
    let second = client.open_channel(2);
    let large = Bytes::from(vec![7; 3 << 20]);
    let message = |body| MessageParts { exchange: b"x", routing_key: b"k", properties: &[0, 0], body };
    let delivery = |body| GetDelivery {
        consumer: 5,
        seq: 70,
        redelivered: true,
        no_ack: true,
        message_count: 3,
        message: message(body),
    };
    let get = Method::BasicGet { ticket: 0, queue: Bytes::from_static(b"q"), no_ack: true };
    let mut gets = Vec::new();
    (0..10).for_each(|_| get.write(&mut gets, 1));
    get.write(&mut gets, 2);
    client.raw(&gets);
    // One on each channel at first: nobody knows how large they are.
    for channel in [first, second] {
        assert!(matches!(client.request(), Request::Get { .. }));
        client.connection.get_ok(channel, &delivery((&large).into()));
    }
    assert!(!client.connection.has_events() && client.connection.poll_event().is_none());
    // The others have their turn one by one as they are read, and what follows them on their channel with them.
    for left in (0..9).rev() {
        assert_eq!(
            client.read().iter().filter(|sent| matches!(sent, Sent::Method(..))).count(),
            if left == 8 { 2 } else { 1 }
        );
        assert!(client.connection.has_events());
        assert!(matches!(client.request(), Request::Get { .. }));
        assert!(client.connection.poll_event().is_none(), "only one at a time where they are large");
        client.connection.get_ok(first, &delivery((&large).into()));
    }
    client.read();
    assert!(!client.connection.has_events());
    // Neither a get on an empty queue nor one whose channel fails takes room for good.
    for _ in 0..20 {
        let channel = client.channel_id(1).expect("it is open");
        client.send(1, get.clone());
        client.request();
        client.connection.channel_error(channel, amqp::ChannelError::new(ReplyCode::NotFound, "no queue"));
        client.events();
        client.send(1, Method::ChannelCloseOk {});
        client.read();
        let channel = client.open_channel(1);
        client.send(1, get.clone());
        client.request();
        client.connection.get_empty(channel);
        client.read();
    }
}

#[test]
fn a_channel_that_fetches_without_end_has_the_others_fetch_in_between() {
    let (mut client, first) = Client::with_channel();
    let second = client.open_channel(2);
    let body = Bytes::from(vec![7; 3 << 20]);
    let message = MessageParts { exchange: b"x", routing_key: b"k", properties: &[0, 0], body: (&body).into() };
    let delivery = GetDelivery { consumer: 5, seq: 70, redelivered: true, no_ack: true, message_count: 3, message };
    let (mut gets, mut other) = (Vec::new(), Vec::new());
    let get = Method::BasicGet { ticket: 0, queue: Bytes::from_static(b"q"), no_ack: true };
    (0..10).for_each(|_| get.write(&mut gets, 1));
    get.write(&mut other, 2);
    client.raw(&gets);
    client.request();
    client.connection.get_ok(first, &delivery);
    client.raw(&other);
    let mut turns = Vec::new();
    for _ in 0..4 {
        client.read();
        let Some(Event::Request { channel, .. }) = client.event() else { panic!("one of them has its turn") };
        client.connection.get_ok(channel, &delivery);
        turns.push(channel);
    }
    assert_eq!(turns, [first, second, first, first]);
}

#[test]
fn a_client_that_does_not_read_is_not_read_either() {
    let config = ConnectionConfig { output_bytes_max: 10_000, ..ConnectionConfig::default() };
    let mut client = Client::open_with(config, capable(), tune_ok(10, 131_072, 0));
    client.open_channel(1);
    let mut flow = Vec::new();
    Method::ChannelFlow { active: true }.write(&mut flow, 1);
    let mut sent = 0;
    while client.connection.wants_input() {
        client.raw(&flow);
        sent += 1;
    }
    client.raw(&flow);
    assert!(!client.input.is_empty());
    assert_eq!(client.read().len(), sent);
    assert!(client.connection.wants_input());
    client.raw(&[]);
    assert_eq!(client.read().len(), 1);
}

#[test]
fn a_secret_is_renewed() {
    let (mut client, _) = Client::with_channel();
    let renew = || Method::ConnectionUpdateSecret { new_secret: Bytes::from_static(b"s2"), reason: Bytes::new() };
    client.send(0, renew());
    assert!(matches!(client.event(), Some(Event::UpdateSecret { new_secret, .. }) if new_secret == "s2"));
    client.connection.secret_updated(Ok(()));
    assert_eq!(client.read_method(), (0, Method::ConnectionUpdateSecretOk {}));
    client.connection.secret_updated(Ok(()));
    assert_eq!(client.read(), []);
    client.send(0, renew());
    let error = amqp::ConnectionError::new(ReplyCode::NotAllowed, "New secret was refused by one of the backends");
    client.connection.secret_updated(Err(error));
    assert!(matches!(client.read_method(), (0, Method::ConnectionClose { reply_code: 530, .. })));
}

#[test]
fn an_idle_connection_is_small() {
    let (mut client, channel) = Client::with_channel();
    client.consume(channel, "tag");
    for seq in 0..10_000 {
        client.publish(1, "q", &[1; 1000]);
        deliver(&mut client, channel, 7, seq, &Bytes::from(vec![1; 1000]));
    }
    client.events();
    client.read();
    client.send(1, ack(0, true));
    client.events();
    client.read();
    client.sleep(1_000);
    assert!(client.connection.held_bytes() < 2048, "{} bytes", client.connection.held_bytes());
}

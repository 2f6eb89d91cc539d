//! Publishing: confirms, returns, properties that pass through, and publishes that are refused.
//!
//! Invariant: a confirm says that every queue the message was routed to has it; so a get right
//! after it must find it.

use clients::broker::unique;
use clients::methods::*;
use clients::wire::Args;
use clients::{Broker, Client, Event, ExchangeDeclare, Properties, Publish, QueueDeclare, Scope, Value};

use crate::setup::{Kind, assert_closed, fill, number, with_queue};

#[test]
fn confirmed_messages_are_delivered_once_and_in_order() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 500);
        assert_eq!(client.counts(channel, &queue).unwrap(), (500, 0), "{kind:?}");
        client.consume(channel, &queue, "c").unwrap();
        for n in 0..500 {
            let delivery = client.delivery(channel);
            assert_eq!(number(&delivery.body), n, "{kind:?}");
            assert_eq!(delivery.tag, n + 1, "tags start at 1 and have no gaps");
            assert_eq!((delivery.consumer_tag.as_str(), delivery.redelivered), ("c", false));
            assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), ("", queue.as_str()));
        }
        client.silent(channel);
        client.ack(channel, 500, true);
        client.cancel(channel, "c").unwrap();
        client.close_channel(channel);
        let channel = client.channel();
        assert!(client.get(channel, &queue, true).unwrap().is_none(), "{kind:?}: acked messages are gone");
    }
}

#[test]
fn confirm_numbers_start_at_one_on_each_channel() {
    let (mut client, first, queue) = with_queue(Kind::Classic);
    let second = client.channel();
    for channel in [first, second] {
        client.put(channel, &queue, b"before confirm.select: not counted");
        client.confirm_select(channel).unwrap();
        client.confirm_select(channel).unwrap();
        client.put(channel, &queue, b"counted");
        client.confirmed(channel, 1, 1);
        client.silent(channel);
    }
}

#[test]
fn confirmed_message_can_be_got_at_once() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        client.confirm_select(channel).unwrap();
        for n in 1..=50 {
            client.put(channel, &queue, &[n as u8]);
            client.confirmed(channel, n, n);
            let got = client.get(channel, &queue, true).unwrap().expect("a confirmed message is in its queue");
            assert_eq!((got.body, got.message_count), (vec![n as u8], Some(0)), "{kind:?}");
        }
    }
}

#[test]
fn mandatory_message_comes_back_before_its_confirm() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    let properties = Properties::with_headers(&[("k", Value::from("v"))]);
    let nowhere = unique("nowhere");
    for n in 1..=20u64 {
        let body = vec![7; 1000 * n as usize];
        let publish = Publish {
            key: &nowhere,
            mandatory: true,
            properties: properties.clone(),
            body: &body,
            ..Default::default()
        };
        client.publish(channel, &publish);
    }
    let mut returned = 0;
    let mut confirmed = 0;
    while confirmed < 20 {
        match client.event(channel) {
            Event::Returned(back) => {
                returned += 1;
                assert_eq!((back.code, back.text.as_str()), (312, "NO_ROUTE"));
                assert_eq!((back.exchange.as_str(), back.routing_key.as_str()), ("", nowhere.as_str()));
                assert_eq!((back.properties, back.body.len()), (properties.clone(), 1000 * returned as usize));
            }
            Event::Confirm { tag, nack: false, .. } => {
                assert!(tag <= returned, "confirm {tag} overtook its return ({returned} returned so far)");
                confirmed = tag;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unroutable_message_without_mandatory_is_confirmed() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    client.put(channel, &unique("nowhere"), b"lost");
    client.confirmed(channel, 1, 1);
}

#[test]
fn mandatory_without_confirms_comes_back_too() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    client.publish(channel, &Publish { key: &unique("nowhere"), mandatory: true, body: b"x", ..Default::default() });
    assert!(matches!(client.event(channel), Event::Returned(back) if back.body == b"x" && back.code == 312));
}

#[test]
fn confirms_arrive_for_a_mixture_of_routes() {
    let (mut client, channel, classic) = with_queue(Kind::Classic);
    let quorum = crate::setup::new_queue(&mut client, channel, Kind::Quorum);
    let fanout = unique("fanout");
    client.declare_exchange(channel, &ExchangeDeclare { name: &fanout, kind: "fanout", ..Default::default() }).unwrap();
    client.bind(channel, &classic, &fanout, "", &[]).unwrap();
    client.bind(channel, &quorum, &fanout, "", &[]).unwrap();
    client.confirm_select(channel).unwrap();
    for n in 0..300 {
        let (exchange, key) =
            [("", classic.as_str()), ("", quorum.as_str()), (fanout.as_str(), ""), ("", "nowhere")][n % 4];
        client.publish(
            channel,
            &Publish { exchange, key, properties: Properties::persistent(), body: b"m", ..Default::default() },
        );
    }
    client.confirmed(channel, 1, 300);
    assert_eq!(client.counts(channel, &classic).unwrap().0, 150);
    assert_eq!(client.counts(channel, &quorum).unwrap().0, 150);
    client.delete_exchange(channel, &fanout, false).unwrap();
}

#[test]
fn properties_pass_through_byte_for_byte() {
    let nested = Value::Table(vec![
        ("array".into(), Value::Array(vec![Value::I32(-1), Value::Void, Value::Array(vec![Value::Bool(true)])])),
        ("inner".into(), Value::Table(vec![("deep".into(), Value::Timestamp(1 << 40))])),
    ]);
    let headers = [
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-128)),
        ("u8", Value::U8(255)),
        ("i16", Value::I16(i16::MIN)),
        ("u16", Value::U16(u16::MAX)),
        ("i32", Value::I32(i32::MIN)),
        ("u32", Value::U32(u32::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(-0.1)),
        ("decimal", Value::Decimal(2, 314)),
        ("text", Value::from("ünïcode \0 and a nul")),
        ("bytes", Value::Bytes(vec![0, 0xCE, 255])),
        ("time", Value::Timestamp(1_700_000_000)),
        ("void", Value::Void),
        ("nested", nested),
        ("", Value::from("an empty name")),
    ];
    // Every property but expiration, user-id and cluster-id, whose values mean something to the
    // broker.
    let args = Args::new().shortstr("text/plain").shortstr("utf-8").table(&headers).octet(2).octet(9);
    let args = args.shortstr("correlation").shortstr("reply").shortstr("message-id");
    let bytes = args.longlong(1_700_000_001).shortstr("type").shortstr("app").0;
    let flags = 0b1111_1110_1110_1000;
    let properties = Properties { flags, bytes };
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        client.publish(
            channel,
            &Publish { key: &queue, properties: properties.clone(), body: b"b", ..Default::default() },
        );
        client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
        let delivery = client.delivery(channel);
        assert_eq!(delivery.properties.flags, properties.flags, "{kind:?}");
        assert_eq!(delivery.properties.bytes, properties.bytes, "{kind:?}");
    }
}

#[test]
fn publish_to_a_missing_exchange_closes_the_channel_with_404() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let other = client.channel();
    client.publish(channel, &Publish { exchange: "no-such-exchange", body: b"x", ..Default::default() });
    let closed = client.closed(channel);
    assert_closed(
        &closed,
        Scope::Channel,
        404,
        "NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'",
        BASIC_PUBLISH,
    );
    assert_eq!(client.counts(other, &queue).unwrap(), (0, 0), "the connection's other channels go on");
}

#[test]
fn publish_to_an_internal_exchange_closes_the_channel_with_403() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("internal");
    let exchange =
        ExchangeDeclare { name: &name, kind: "direct", internal: true, auto_delete: true, ..Default::default() };
    client.declare_exchange(channel, &exchange).unwrap();
    client.publish(channel, &Publish { exchange: &name, body: b"x", ..Default::default() });
    let text = format!("ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'");
    assert_closed(&client.closed(channel), Scope::Channel, 403, &text, BASIC_PUBLISH);
}

#[test]
fn immediate_is_not_implemented() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    client.publish(channel, &Publish { key: &queue, immediate: true, body: b"x", ..Default::default() });
    assert_closed(&client.closed(channel), Scope::Connection, 540, "NOT_IMPLEMENTED - immediate=true", BASIC_PUBLISH);
}

#[test]
fn user_id_of_somebody_else_closes_the_channel_with_406() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let properties = Properties::only(4, Args::new().shortstr("root").0);
    client.publish(channel, &Publish { key: &queue, properties, body: b"x", ..Default::default() });
    let text = "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'";
    assert_closed(&client.closed(channel), Scope::Channel, 406, text, BASIC_PUBLISH);
}

#[test]
fn expiration_that_is_no_number_closes_the_channel_with_406() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let properties = Properties::only(8, Args::new().shortstr("soon").0);
    client.publish(channel, &Publish { key: &queue, properties, body: b"x", ..Default::default() });
    assert_closed(
        &client.closed(channel),
        Scope::Channel,
        406,
        "PRECONDITION_FAILED - invalid expiration 'soon'",
        BASIC_PUBLISH,
    );
}

#[test]
fn messages_before_a_bad_publish_are_kept() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    client.put(channel, &queue, b"kept");
    client.publish(channel, &Publish { exchange: "no-such-exchange", body: b"x", ..Default::default() });
    client.put(channel, &queue, b"after the error: ignored");
    assert_eq!(client.closed(channel).code, 404);
    let channel = client.channel();
    let due = std::time::Instant::now() + clients::client::PATIENCE;
    let kept = loop {
        if let Some(kept) = client.get(channel, &queue, true).unwrap() {
            break kept;
        }
        assert!(std::time::Instant::now() < due, "the message before the error never came");
    };
    assert_eq!(kept.body, b"kept");
    assert!(client.get(channel, &queue, true).unwrap().is_none());
}

#[test]
fn message_that_is_wrong_for_its_last_queue_reaches_none() {
    if clients::broker::is_foreign() {
        return; // Selective durability is Leveret's own.
    }
    let (mut client, channel, _) = with_queue(Kind::Classic);
    let fanout = unique("fanout");
    client.declare_exchange(channel, &ExchangeDeclare { name: &fanout, kind: "fanout", ..Default::default() }).unwrap();
    // Eight queues lie in several partitions, each of which gets a command of its own.
    let headers = ["amount"; 7].into_iter().chain(["price"]);
    let queues: Vec<String> = headers
        .map(|header| {
            let name = unique("selective");
            let arguments = vec![
                ("x-durability", Value::from("selective")),
                ("x-durability-value-header", Value::from(header)),
                ("x-durability-value-cap", Value::from(100)),
            ];
            client
                .declare(channel, &QueueDeclare { name: &name, durable: true, arguments, ..Default::default() })
                .unwrap();
            client.bind(channel, &name, &fanout, "", &[]).unwrap();
            name
        })
        .collect();
    let counts = |client: &mut Client, channel| -> Vec<u32> {
        queues.iter().map(|queue| client.counts(channel, queue).unwrap().0).collect()
    };
    let publish = |client: &mut Client, channel, price: Value| {
        let properties = Properties::with_headers(&[("amount", Value::from(5)), ("price", price)]);
        client.publish(channel, &Publish { exchange: &fanout, properties, body: b"m", ..Default::default() });
    };
    let publisher = client.channel();
    client.confirm_select(publisher).unwrap();
    publish(&mut client, publisher, Value::from("much"));
    let closed = client.closed(publisher);
    assert_closed(&closed, Scope::Channel, 406, "PRECONDITION_FAILED - header 'price'", BASIC_PUBLISH);
    assert_eq!(counts(&mut client, channel), [0; 8], "a message that was refused is nowhere");
    let publisher = client.channel();
    client.confirm_select(publisher).unwrap();
    publish(&mut client, publisher, Value::from(7));
    client.confirmed(publisher, 1, 1);
    assert_eq!(counts(&mut client, channel), [1; 8], "and one that is right is in each of them");
    for queue in &queues {
        client.delete(channel, queue, false, false).unwrap();
    }
    client.delete_exchange(channel, &fanout, false).unwrap();
}

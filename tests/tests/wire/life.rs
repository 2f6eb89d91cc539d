//! The life of a message: length limits, time limits, dead letters, delivery limits, queues that
//! expire.
//!
//! Invariant: what the arguments of a queue promise holds for every kind of queue, or the declare
//! is refused.

use std::time::{Duration, Instant};

use clients::broker::{is_foreign, unique};
use clients::client::Event;
use clients::methods::*;
use clients::verbs::Publish;
use clients::wire::Properties;
use clients::{Broker, Client, Scope, Value};

use crate::setup::{Kind, assert_closed, number};

/// A fresh queue of a kind with further arguments.
fn queue_with(client: &mut Client, channel: u16, kind: Kind, arguments: &[(&'static str, Value)]) -> String {
    let name = unique(&format!("{kind:?}").to_lowercase());
    let mut declare = kind.declare(&name);
    declare.arguments.retain(|(key, _)| arguments.iter().all(|(mine, _)| mine != key));
    declare.arguments.extend(arguments.iter().cloned());
    client.declare(channel, &declare).unwrap();
    name
}

fn number_of(n: i32) -> Value {
    Value::from(n)
}

/// Publishes `numbers` and returns which of them were refused.
fn publish_all(client: &mut Client, queue: &str, numbers: std::ops::Range<u64>, properties: &Properties) -> Vec<u64> {
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    let count = numbers.end - numbers.start;
    for n in numbers.clone() {
        let body = n.to_string();
        let publish =
            Publish { key: queue, body: body.as_bytes(), properties: properties.clone(), ..Default::default() };
        client.publish(channel, &publish);
    }
    let mut outcome: Vec<Option<bool>> = vec![None; count as usize];
    while outcome.iter().any(Option::is_none) {
        match client.event(channel) {
            Event::Confirm { tag, multiple, nack } => {
                let first = if multiple { 1 } else { tag };
                for seq in first..=tag {
                    outcome[seq as usize - 1].get_or_insert(nack);
                }
            }
            other => panic!("confirms were due, got {other:?}"),
        }
    }
    client.close_channel(channel);
    numbers.zip(outcome).filter(|(_, nack)| *nack == Some(true)).map(|(n, _)| n).collect()
}

fn drain(client: &mut Client, queue: &str) -> Vec<u64> {
    let channel = client.channel();
    let mut all = Vec::new();
    while let Some(got) = client.get(channel, queue, true).unwrap() {
        all.push(number(&got.body));
    }
    client.close_channel(channel);
    all
}

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let due = Instant::now() + clients::client::PATIENCE;
    while !is_so() {
        assert!(Instant::now() < due, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ready(client: &mut Client, channel: u16, queue: &str) -> u32 {
    client.counts(channel, queue).unwrap().0
}

fn headers(delivery: &clients::Delivery) -> Vec<(String, Value)> {
    delivery.properties.headers()
}

fn header(delivery: &clients::Delivery, name: &str) -> Option<Value> {
    headers(delivery).into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

fn deaths(delivery: &clients::Delivery) -> Vec<Vec<(String, Value)>> {
    match header(delivery, "x-death") {
        Some(Value::Array(entries)) => entries
            .into_iter()
            .map(|entry| match entry {
                Value::Table(fields) => fields,
                other => panic!("an x-death entry is a table, not {other:?}"),
            })
            .collect(),
        other => panic!("x-death is an array, not {other:?}"),
    }
}

fn field(entry: &[(String, Value)], name: &str) -> Option<Value> {
    entry.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

#[test]
fn drop_head_keeps_the_newest_messages() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let queue = queue_with(&mut client, channel, kind, &[("x-max-length", number_of(3))]);
        assert_eq!(publish_all(&mut client, &queue, 0..10, &Properties::persistent()), [0u64; 0]);
        wait_for("ten messages are three", || ready(&mut client, channel, &queue) == 3);
        assert_eq!(drain(&mut client, &queue), [7, 8, 9], "{kind:?}");
        // What consumers hold does not count.
        publish_all(&mut client, &queue, 0..3, &Properties::persistent());
        for _ in 0..3 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        publish_all(&mut client, &queue, 3..6, &Properties::persistent());
        assert_eq!(drain(&mut client, &queue), [3, 4, 5], "{kind:?}");
    }
}

#[test]
fn a_limit_of_bytes_counts_bodies() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        // Bodies of two digits.
        let queue = queue_with(&mut client, channel, kind, &[("x-max-length-bytes", number_of(7))]);
        publish_all(&mut client, &queue, 10..20, &Properties::persistent());
        wait_for("three bodies of two bytes fit", || ready(&mut client, channel, &queue) == 3);
        assert_eq!(drain(&mut client, &queue), [17, 18, 19], "{kind:?}");
        publish_all(&mut client, &queue, 20..23, &Properties::persistent());
        assert_eq!(drain(&mut client, &queue), [20, 21, 22], "{kind:?}");
    }
}

#[test]
fn reject_publish_refuses_exactly_what_is_too_much() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let arguments = [("x-max-length", number_of(4)), ("x-overflow", Value::from("reject-publish"))];
        let queue = queue_with(&mut client, channel, kind, &arguments);
        let refused = publish_all(&mut client, &queue, 0..10, &Properties::persistent());
        if is_foreign() && kind == Kind::Quorum {
            // RabbitMQ's quorum queue tells its publishers when it is full, and takes what they
            // sent until they know.
            assert!(refused.len() <= 6);
            continue;
        }
        assert_eq!(refused, [4, 5, 6, 7, 8, 9], "{kind:?}");
        let held = client.get(channel, &queue, false).unwrap().unwrap();
        assert_eq!(publish_all(&mut client, &queue, 10..12, &Properties::persistent()), [11], "{kind:?}");
        client.nack(channel, held.tag, false, true);
        wait_for("what comes back may be one too many", || ready(&mut client, channel, &queue) == 5);
        assert_eq!(drain(&mut client, &queue), [0, 1, 2, 3, 10], "{kind:?}");
    }
}

#[test]
fn a_full_queue_that_consumers_empty_takes_more() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let arguments = [("x-max-length", number_of(1)), ("x-overflow", Value::from("reject-publish"))];
        let queue = queue_with(&mut client, channel, kind, &arguments);
        client.consume_with(channel, &queue, "c", [false, true, false], &[]).unwrap();
        let mut other = Broker::shared().connect();
        let refused = if kind == Kind::Exclusive {
            publish_all(&mut client, &queue, 0..20, &Properties::persistent())
        } else {
            publish_all(&mut other, &queue, 0..20, &Properties::persistent())
        };
        if !(is_foreign() && kind == Kind::Quorum) {
            assert_eq!(refused, [0u64; 0], "{kind:?}");
            for n in 0..20 {
                assert_eq!(number(&client.delivery(channel).body), n, "{kind:?}");
            }
        }
    }
}

#[test]
fn a_queue_that_refuses_may_dead_letter_what_it_refused() {
    for kind in [Kind::Classic, Kind::Exclusive] {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let graves = queue_with(&mut client, channel, kind, &[]);
        let arguments = [
            ("x-max-length", number_of(2)),
            ("x-overflow", Value::from("reject-publish-dlx")),
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(graves.as_str())),
        ];
        let queue = queue_with(&mut client, channel, kind, &arguments);
        assert_eq!(publish_all(&mut client, &queue, 0..5, &Properties::persistent()), [2, 3, 4], "{kind:?}");
        wait_for("three were refused", || ready(&mut client, channel, &graves) == 3);
        assert_eq!(drain(&mut client, &graves), [2, 3, 4], "{kind:?}");
        assert_eq!(drain(&mut client, &queue), [0, 1], "{kind:?}");
    }
}

#[test]
fn messages_expire_by_the_limit_of_their_queue_and_by_their_own() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let graves = queue_with(&mut client, channel, kind, &[]);
        let dead_letter =
            [("x-dead-letter-exchange", Value::from("")), ("x-dead-letter-routing-key", Value::from(graves.as_str()))];
        let by_queue = [&[("x-message-ttl", number_of(100))][..], &dead_letter].concat();
        let queue = queue_with(&mut client, channel, kind, &by_queue);
        publish_all(&mut client, &queue, 0..3, &Properties::persistent());
        wait_for("three expire", || ready(&mut client, channel, &graves) == 3);
        assert_eq!(ready(&mut client, channel, &queue), 0, "{kind:?}");
        let first = client.get(channel, &graves, true).unwrap().unwrap();
        assert_eq!(field(&deaths(&first)[0], "reason"), Some(Value::from("expired")));
        assert_eq!(drain(&mut client, &graves), [1, 2], "{kind:?}");

        let queue = queue_with(&mut client, channel, kind, &dead_letter);
        let short = Properties::persistent().with_expiration("60");
        publish_all(&mut client, &queue, 3..4, &Properties::persistent().with_expiration("600000"));
        publish_all(&mut client, &queue, 4..5, &short);
        // It hides behind the one with more time.
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(ready(&mut client, channel, &queue), 2, "{kind:?}");
        assert_eq!(number(&client.get(channel, &queue, true).unwrap().unwrap().body), 3, "{kind:?}");
        wait_for("the second one is over its time", || ready(&mut client, channel, &graves) == 1);
        let dead = client.get(channel, &graves, true).unwrap().unwrap();
        assert_eq!(number(&dead.body), 4);
        assert_eq!(dead.properties.expiration(), None, "a dead letter does not expire again");
        assert_eq!(field(&deaths(&dead)[0], "original-expiration"), Some(Value::from("60")));
        assert!(client.get(channel, &queue, true).unwrap().is_none(), "{kind:?}");
    }
}

#[test]
fn no_time_at_all_is_enough_for_a_consumer_that_waits() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let queue = queue_with(&mut client, channel, kind, &[("x-message-ttl", number_of(0))]);
        publish_all(&mut client, &queue, 0..1, &Properties::persistent());
        assert!(client.get(channel, &queue, true).unwrap().is_none(), "{kind:?}: nobody waited");
        client.consume_with(channel, &queue, "c", [false, true, false], &[]).unwrap();
        publish_all(&mut client, &queue, 1..2, &Properties::persistent());
        assert_eq!(number(&client.delivery(channel).body), 1, "{kind:?}");
    }
}

#[test]
fn an_expiration_that_is_no_time_is_refused() {
    let cases = [
        ("soon", "invalid expiration 'soon': no_integer"),
        ("5s", "invalid expiration '5s': {leftover_string,\"s\"}"),
        ("-1", "invalid expiration '-1': {value_negative,-1}"),
        ("315360000001", "invalid expiration '315360000001': {value_too_large,315360000001}"),
    ];
    for (expiration, text) in cases {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let properties = Properties::persistent().with_expiration(expiration);
        client.publish(channel, &Publish { key: "q", properties, ..Default::default() });
        assert_closed(&client.closed(channel), Scope::Channel, 406, text, BASIC_PUBLISH);
    }
}

#[test]
fn a_rejected_message_tells_its_deaths_to_the_letter() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let (source, graves) = (unique("source"), unique("graves"));
        let back =
            [("x-dead-letter-exchange", Value::from("")), ("x-dead-letter-routing-key", Value::from(source.as_str()))];
        let mut declare = kind.declare(&graves);
        declare.arguments.extend(back);
        client.declare(channel, &declare).unwrap();
        let mut declare = kind.declare(&source);
        declare.arguments.extend([
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(graves.as_str())),
        ]);
        client.declare(channel, &declare).unwrap();
        publish_all(&mut client, &source, 1..2, &Properties::persistent());
        let take = |client: &mut Client, queue: &str| {
            wait_for("a dead letter comes", || ready(client, channel, queue) == 1);
            client.get(channel, queue, false).unwrap().unwrap()
        };
        let got = take(&mut client, &source);
        client.reject(channel, got.tag, false);
        let got = take(&mut client, &graves);
        assert_eq!((got.exchange.as_str(), got.routing_key.as_str()), ("", graves.as_str()), "{kind:?}");
        let all = deaths(&got);
        assert_eq!(all.len(), 1);
        let entry = &all[0];
        assert_eq!(field(entry, "count"), Some(Value::I64(1)), "{kind:?}");
        assert_eq!(field(entry, "reason"), Some(Value::from("rejected")));
        assert_eq!(field(entry, "queue"), Some(Value::from(source.as_str())));
        assert_eq!(field(entry, "exchange"), Some(Value::from("")));
        assert_eq!(field(entry, "routing-keys"), Some(Value::Array(vec![Value::from(source.as_str())])));
        assert!(matches!(field(entry, "time"), Some(Value::Timestamp(_))), "{entry:?}");
        assert_eq!(header(&got, "x-first-death-queue"), Some(Value::from(source.as_str())));
        assert_eq!(header(&got, "x-first-death-reason"), Some(Value::from("rejected")));
        assert_eq!(header(&got, "x-first-death-exchange"), Some(Value::from("")));
        if !is_foreign() {
            // Since 3.13.
            assert_eq!(header(&got, "x-last-death-queue"), Some(Value::from(source.as_str())));
        }
        client.reject(channel, got.tag, false);
        let got = take(&mut client, &source);
        client.reject(channel, got.tag, false);
        let got = take(&mut client, &graves);
        let told: Vec<_> = deaths(&got).iter().map(|e| (field(e, "queue"), field(e, "count"))).collect();
        let of = |queue: &str, count| (Some(Value::from(queue)), Some(Value::I64(count)));
        assert_eq!(told, [of(&source, 2), of(&graves, 1)], "{kind:?}");
        assert_eq!(header(&got, "x-first-death-queue"), Some(Value::from(source.as_str())));
        client.ack(channel, got.tag, false);
    }
}

#[test]
fn what_nobody_rejects_does_not_go_round_for_ever() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let name = unique("ring");
        let mut declare = kind.declare(&name);
        declare.arguments.extend([
            ("x-message-ttl", number_of(20)),
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(name.as_str())),
        ]);
        client.declare(channel, &declare).unwrap();
        publish_all(&mut client, &name, 0..1, &Properties::persistent());
        wait_for("it dies once and for all", || ready(&mut client, channel, &name) == 0);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(ready(&mut client, channel, &name), 0, "{kind:?}");
    }
}

#[test]
fn a_message_that_comes_back_too_often_is_given_up() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let graves = queue_with(&mut client, channel, Kind::Quorum, &[]);
    let arguments = [
        ("x-delivery-limit", number_of(2)),
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from(graves.as_str())),
    ];
    let queue = queue_with(&mut client, channel, Kind::Quorum, &arguments);
    publish_all(&mut client, &queue, 5..6, &Properties::persistent());
    for round in 0..3 {
        wait_for("it is there again", || ready(&mut client, channel, &queue) == 1);
        let got = client.get(channel, &queue, false).unwrap().unwrap();
        assert_eq!(got.redelivered, round > 0);
        client.reject(channel, got.tag, true);
    }
    wait_for("the third time was one too many", || ready(&mut client, channel, &graves) == 1);
    let dead = client.get(channel, &graves, true).unwrap().unwrap();
    assert_eq!(field(&deaths(&dead)[0], "reason"), Some(Value::from("delivery_limit")));
    assert_eq!(ready(&mut client, channel, &queue), 0);
}

#[test]
fn an_unused_queue_expires_and_a_used_one_does_not() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let queue = queue_with(&mut client, channel, kind, &[("x-expires", number_of(300))]);
        client.consume(channel, &queue, "c").unwrap();
        std::thread::sleep(Duration::from_millis(500));
        client.cancel(channel, "c").unwrap();
        client.get(channel, &queue, true).unwrap();
        let began = Instant::now();
        wait_for("the queue goes", || {
            std::thread::sleep(Duration::from_millis(400));
            let look = client.channel();
            let found = client.counts(look, &queue);
            if found.is_ok() {
                client.close_channel(look);
            }
            found.is_err()
        });
        assert!(began.elapsed() >= Duration::from_millis(290), "{kind:?}: it had to wait");
    }
}

#[test]
fn a_redeclare_renews_a_classic_queue_and_no_quorum_queue() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let mut channel = client.channel();
        let name = unique("renewed");
        let mut declare = kind.declare(&name);
        declare.arguments.push(("x-expires", number_of(3_000)));
        client.declare(channel, &declare).unwrap();
        publish_all(&mut client, &name, 0..1, &Properties::persistent());
        for _ in 0..9 {
            std::thread::sleep(Duration::from_millis(500));
            // It may go between being found and being looked at.
            if let Err(gone) = client.declare(channel, &declare) {
                assert_eq!((gone.code, kind), (404, Kind::Quorum), "{gone:?}");
                channel = client.channel();
                client.declare(channel, &declare).unwrap();
            }
        }
        match kind {
            // It went after three seconds and was declared anew; on a slow machine it may be gone
            // again.
            Kind::Quorum => match client.counts(channel, &name) {
                Ok((left, _)) => assert_eq!(left, 0, "{kind:?}"),
                Err(closed) => assert_eq!(closed.code, 404, "{kind:?}"),
            },
            _ => assert_eq!(ready(&mut client, channel, &name), 1, "{kind:?}"),
        }
    }
}

#[test]
fn dead_letters_stay_in_order_over_a_long_backlog() {
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let graves = queue_with(&mut client, channel, kind, &[]);
        let arguments = [
            ("x-max-length", number_of(10)),
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(graves.as_str())),
        ];
        let queue = queue_with(&mut client, channel, kind, &arguments);
        publish_all(&mut client, &queue, 0..500, &Properties::persistent());
        wait_for("490 are dropped", || ready(&mut client, channel, &graves) == 490);
        assert_eq!(drain(&mut client, &graves), (0..490).collect::<Vec<u64>>(), "{kind:?}");
        assert_eq!(drain(&mut client, &queue), (490..500).collect::<Vec<u64>>(), "{kind:?}");
    }
}

#[test]
fn a_dead_letter_exchange_without_a_key_keeps_the_one_there_was() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let exchange = unique("dlx");
    let declare = clients::ExchangeDeclare { name: &exchange, kind: "topic", ..Default::default() };
    client.declare_exchange(channel, &declare).unwrap();
    let graves = queue_with(&mut client, channel, Kind::Classic, &[]);
    let arguments = [("x-dead-letter-exchange", Value::from(exchange.as_str()))];
    let queue = queue_with(&mut client, channel, Kind::Classic, &arguments);
    client.bind(channel, &graves, &exchange, &queue, &[]).unwrap();
    publish_all(&mut client, &queue, 0..1, &Properties::persistent());
    let got = client.get(channel, &queue, false).unwrap().unwrap();
    client.reject(channel, got.tag, false);
    wait_for("it comes by its own key", || ready(&mut client, channel, &graves) == 1);
    let dead = client.get(channel, &graves, true).unwrap().unwrap();
    assert_eq!((dead.exchange, dead.routing_key), (exchange, queue));
}

#[test]
fn a_second_declare_must_ask_for_the_same_life() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let queue = queue_with(&mut client, channel, Kind::Classic, &[("x-max-length", number_of(3))]);
    let mut again = Kind::Classic.declare(&queue);
    again.arguments.push(("x-max-length", number_of(4)));
    let closed = client.declare(channel, &again).unwrap_err();
    let text =
        format!("inequivalent arg 'x-max-length' for queue '{queue}' in vhost '/': received '4' but current is '3'");
    assert_closed(&closed, Scope::Channel, 406, &text, QUEUE_DECLARE);
}

fn with_delay(ms: i32) -> Properties {
    Properties::with_headers(&[("x-delay", Value::from(ms))])
}

#[test]
fn scheduled_messages_come_in_the_order_of_their_times() {
    if is_foreign() {
        return; // A plugin that Debian's package has not got.
    }
    for kind in Kind::ALL {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let exchange = unique("delayed");
        let declare = clients::ExchangeDeclare {
            name: &exchange,
            kind: "x-delayed-message",
            durable: kind != Kind::Exclusive,
            arguments: vec![("x-delayed-type", Value::from("direct"))],
            ..Default::default()
        };
        client.declare_exchange(channel, &declare).unwrap();
        let queue = queue_with(&mut client, channel, kind, &[]);
        client.bind(channel, &queue, &exchange, "k", &[]).unwrap();
        client.consume_with(channel, &queue, "c", [false, true, false], &[]).unwrap();
        let began = Instant::now();
        for (body, delay) in [("3", 600), ("1", 200), ("2", 400)] {
            let properties = with_delay(delay);
            client.publish(
                channel,
                &Publish { exchange: &exchange, key: "k", properties, body: body.as_bytes(), ..Default::default() },
            );
        }
        client.publish(channel, &Publish { exchange: &exchange, key: "k", body: b"0", ..Default::default() });
        for (n, after) in [(0, 0), (1, 200), (2, 400), (3, 600_i32)] {
            let delivery = client.delivery(channel);
            assert_eq!(number(&delivery.body), n, "{kind:?}");
            // The broker counts whole milliseconds.
            let due = Duration::from_millis(after as u64).saturating_sub(Duration::from_millis(1));
            assert!(began.elapsed() >= due, "{kind:?}: {n} came too early");
            if n > 0 {
                assert_eq!(header(&delivery, "x-delay"), Some(Value::I32(-after)), "as it fits");
            }
        }
        assert_eq!(ready(&mut client, channel, &queue), 0);
    }
}

#[test]
fn a_delayed_exchange_must_name_the_type_that_it_routes_as() {
    if is_foreign() {
        return;
    }
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("delayed");
    let declare = clients::ExchangeDeclare { name: &name, kind: "x-delayed-message", ..Default::default() };
    let closed = client.declare_exchange(channel, &declare).unwrap_err();
    let text = "Invalid argument, 'x-delayed-type' must be an existing exchange type";
    assert_closed(&closed, Scope::Channel, 406, text, EXCHANGE_DECLARE);
}

#[test]
fn at_least_once_reaches_a_queue_that_comes_later() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let graves = unique("graves");
    let arguments = [
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from(graves.as_str())),
        ("x-dead-letter-strategy", Value::from("at-least-once")),
        ("x-overflow", Value::from("reject-publish")),
    ];
    let queue = queue_with(&mut client, channel, Kind::Quorum, &arguments);
    publish_all(&mut client, &queue, 0..3, &Properties::persistent());
    for _ in 0..3 {
        wait_for("it is there", || ready(&mut client, channel, &queue) > 0);
        let got = client.get(channel, &queue, false).unwrap().unwrap();
        client.reject(channel, got.tag, false);
    }
    client.declare(channel, &Kind::Quorum.declare(&graves)).unwrap();
    let due = Duration::from_secs(if is_foreign() { 200 } else { 20 });
    let began = Instant::now();
    while ready(&mut client, channel, &graves) < 3 {
        if is_foreign() && began.elapsed() > Duration::from_secs(15) {
            return; // RabbitMQ looks for a route every three minutes.
        }
        assert!(began.elapsed() < due, "dead letters wait for their queue");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(drain(&mut client, &graves), [0, 1, 2]);
}

#[test]
fn a_returned_message_waits_for_its_retry() {
    if is_foreign() {
        return; // Since 4.3.
    }
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let arguments = [("x-delayed-retry-type", Value::from("all")), ("x-delayed-retry-min", number_of(300))];
    let queue = queue_with(&mut client, channel, Kind::Quorum, &arguments);
    publish_all(&mut client, &queue, 0..2, &Properties::persistent());
    client.consume(channel, &queue, "c").unwrap();
    let first = client.delivery(channel);
    let began = Instant::now();
    client.nack(channel, first.tag, false, true);
    let second = client.delivery(channel);
    assert_eq!((number(&first.body), number(&second.body)), (0, 1));
    let again = client.delivery(channel);
    assert_eq!((number(&again.body), again.redelivered), (0, true));
    // The broker counts whole milliseconds.
    assert!(began.elapsed() >= Duration::from_millis(299));
}

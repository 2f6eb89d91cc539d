//! Who of several consumers gets a message: consumer priorities, fairness, a single active
//! consumer.
//!
//! Invariant: equals share; a lower priority gets something only while no higher one has credit.

use clients::broker::is_foreign;
use clients::client::SILENCE;
use clients::methods::*;
use clients::{Client, Event, Scope, Value};

use crate::setup::{Kind, assert_closed, fill, new_queue, number, with_queue};

fn consume_at(client: &mut Client, channel: u16, queue: &str, tag: &str, priority: i32) {
    client.consume_with(channel, queue, tag, [false; 3], &[("x-priority", Value::from(priority))]).unwrap();
}

/// The tags of the next `count` deliveries' consumers.
fn consumers(client: &mut Client, channel: u16, count: usize) -> Vec<String> {
    (0..count).map(|_| client.delivery(channel).consumer_tag).collect()
}

#[test]
fn the_higher_priority_goes_first_while_it_has_credit() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        client.qos(channel, 2, false).unwrap();
        consume_at(&mut client, channel, &queue, "low", -5);
        client.consume(channel, &queue, "none").unwrap();
        consume_at(&mut client, channel, &queue, "high", 10);
        fill(&mut client, &queue, 4);
        let mut got = consumers(&mut client, channel, 4);
        got.sort();
        assert_eq!(got, ["high", "high", "none", "none"], "{kind:?}");
        fill(&mut client, &queue, 1);
        assert_eq!(consumers(&mut client, channel, 1), ["low"], "{kind:?}: nobody above has credit");
        client.ack(channel, 4, true);
        fill(&mut client, &queue, 3);
        let mut got = consumers(&mut client, channel, 3);
        got.sort();
        assert_eq!(got, ["high", "high", "none"], "{kind:?}: credit came back");
    }
}

#[test]
fn a_priority_is_a_whole_number() {
    let (mut client, _, _) = with_queue(Kind::Classic);
    for kind in Kind::DURABLE {
        let channel = client.channel();
        let queue = new_queue(&mut client, channel, kind);
        let arguments = [("x-priority", Value::from("high"))];
        let closed = client.consume_with(channel, &queue, "", [false; 3], &arguments).unwrap_err();
        assert_eq!(closed.code, 406, "{closed:?}");
        assert!(closed.text.contains("invalid arg 'x-priority'"), "{closed:?}");
    }
}

#[test]
fn equals_get_equal_shares() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        client.qos(channel, 1, false).unwrap();
        for tag in ["a", "b", "c"] {
            client.consume(channel, &queue, tag).unwrap();
        }
        fill(&mut client, &queue, 90);
        let mut shares = std::collections::BTreeMap::new();
        for _ in 0..90 {
            let delivery = client.delivery(channel);
            *shares.entry(delivery.consumer_tag).or_insert(0u32) += 1;
            client.ack(channel, delivery.tag, false);
        }
        assert_eq!(shares.len(), 3, "{kind:?}: {shares:?}");
        assert!(shares.values().all(|n| (25..=35).contains(n)), "{kind:?}: {shares:?}");
        assert!(!matches!(client.event_within(channel, SILENCE / 10), Some(Event::Delivery(_))));
    }
}

/// A queue with a single active consumer.
fn single_active(client: &mut Client, channel: u16, kind: Kind) -> String {
    let name = clients::broker::unique("single");
    let mut declare = kind.declare(&name);
    declare.arguments.push(("x-single-active-consumer", Value::from(true)));
    client.declare(channel, &declare).unwrap();
    name
}

#[test]
fn one_consumer_at_a_time_gets_messages_and_the_next_one_takes_over() {
    for kind in Kind::ALL {
        let (mut client, channel, _) = with_queue(kind);
        let queue = single_active(&mut client, channel, kind);
        let (first, second) = (client.channel(), client.channel());
        client.qos(first, 3, false).unwrap();
        client.consume(first, &queue, "a").unwrap();
        client.consume(second, &queue, "b").unwrap();
        fill(&mut client, &queue, 5);
        assert_eq!(consumers(&mut client, first, 3), ["a", "a", "a"], "{kind:?}");
        client.silent(second);
        // Not so on 3.10's quorum queues.
        let count = if is_foreign() && kind == Kind::Quorum { 1 } else { 2 };
        assert_eq!(client.counts(channel, &queue).unwrap().1, count, "{kind:?}: who waits counts");
        client.ack(first, 1, false);
        assert_eq!(number(&client.delivery(first).body), 3, "{kind:?}");
        client.close_channel(first);
        let got: Vec<(u64, bool)> = (0..4)
            .map(|_| {
                let delivery = client.delivery(second);
                (number(&delivery.body), delivery.redelivered)
            })
            .collect();
        assert_eq!(got, [(1, true), (2, true), (3, true), (4, false)], "{kind:?}: in order, from the first unacked on");
    }
}

#[test]
fn the_next_consumer_waits_until_the_cancelled_one_holds_nothing() {
    if is_foreign() {
        return; // 3.10's quorum queue hands over at the cancel, its classic one not even then on the same channel.
    }
    for kind in Kind::ALL {
        let (mut client, channel, _) = with_queue(kind);
        let queue = single_active(&mut client, channel, kind);
        client.qos(channel, 2, false).unwrap();
        client.consume(channel, &queue, "a").unwrap();
        client.consume(channel, &queue, "b").unwrap();
        fill(&mut client, &queue, 4);
        assert_eq!(consumers(&mut client, channel, 2), ["a", "a"]);
        client.cancel(channel, "a").unwrap();
        client.silent(channel);
        client.ack(channel, 1, false);
        client.silent(channel);
        client.nack(channel, 2, false, true);
        let back = client.delivery(channel);
        assert_eq!((back.consumer_tag.as_str(), number(&back.body), back.redelivered), ("b", 1, true), "{kind:?}");
        assert_eq!(number(&client.delivery(channel).body), 2);
    }
}

#[test]
fn a_higher_priority_takes_over_a_quorum_queue_and_waits_on_a_classic_one() {
    if is_foreign() {
        return; // Since 4.0.
    }
    for kind in Kind::ALL {
        let (mut client, channel, _) = with_queue(kind);
        let queue = single_active(&mut client, channel, kind);
        client.qos(channel, 1, false).unwrap();
        client.consume(channel, &queue, "low").unwrap();
        fill(&mut client, &queue, 4);
        assert_eq!(consumers(&mut client, channel, 1), ["low"]);
        consume_at(&mut client, channel, &queue, "high", 1);
        client.silent(channel);
        client.ack(channel, 1, false);
        let next = if kind == Kind::Quorum { "high" } else { "low" };
        assert_eq!(consumers(&mut client, channel, 1), [next], "{kind:?}");
    }
}

#[test]
fn a_get_beside_a_single_active_consumer() {
    for kind in Kind::ALL {
        let (mut client, channel, _) = with_queue(kind);
        let queue = single_active(&mut client, channel, kind);
        fill(&mut client, &queue, 1);
        let got = client.get(channel, &queue, true);
        if kind != Kind::Quorum {
            assert!(got.unwrap().is_some());
            continue;
        }
        let text = format!(
            "RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' in vhost '/'. basic.get operations are not \
             supported by quorum queues with single active consumer"
        );
        assert_closed(&got.unwrap_err(), Scope::Channel, 405, &text, BASIC_GET);
    }
}

#[test]
fn an_exclusive_consumer_is_refused_where_one_waits_in_line() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    let queue = single_active(&mut client, channel, Kind::Classic);
    let closed = client.consume_with(channel, &queue, "", [false, false, true], &[]).unwrap_err();
    let text = format!("ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use");
    assert_closed(&closed, Scope::Channel, 403, &text, BASIC_CONSUME);
}

//! Who of several consumers gets a message: consumer priorities, fairness.
//!
//! Invariant: equals share; a lower priority gets something only while no higher one has credit.

use clients::client::SILENCE;
use clients::{Client, Event, Value};

use crate::setup::{Kind, fill, new_queue, with_queue};

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

//! Consumers: tags, cancelling, fairness, and what happens when their queue goes away.
//!
//! Invariant: a consumer's life ends exactly once, by `basic.cancel` from one side or with its
//! channel.

use std::collections::HashSet;

use clients::broker::{is_foreign, unique};
use clients::methods::*;
use clients::{Broker, Event, Login, Scope};

use crate::setup::{Kind, assert_closed, fill, new_queue, number, with_queue};

#[test]
fn server_made_consumer_tags_begin_with_amq_ctag() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let first = client.consume(channel, &queue, "").unwrap();
    let second = client.consume(channel, &queue, "").unwrap();
    assert!(first.starts_with("amq.ctag-") && second.starts_with("amq.ctag-"), "{first} {second}");
    assert_ne!(first, second);
    assert_eq!(client.counts(channel, &queue).unwrap().1, 2);
}

#[test]
fn consumer_tag_in_use_closes_the_connection_with_530() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    client.consume(channel, &queue, "mine").unwrap();
    let closed = client.consume(channel, &queue, "mine").unwrap_err();
    assert_closed(&closed, Scope::Connection, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'", BASIC_CONSUME);
}

#[test]
fn consumer_tags_are_per_channel_and_free_again_after_cancel() {
    let (mut client, first, queue) = with_queue(Kind::Quorum);
    let second = client.channel();
    client.consume(first, &queue, "t").unwrap();
    client.consume(second, &queue, "t").unwrap();
    client.cancel(first, "t").unwrap();
    client.consume(first, &queue, "t").unwrap();
    assert_eq!(client.counts(first, &queue).unwrap().1, 2);
}

#[test]
fn consuming_from_a_missing_queue_closes_the_channel_with_404() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let closed = client.consume(channel, "no-such-queue", "").unwrap_err();
    assert_closed(&closed, Scope::Channel, 404, "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", BASIC_CONSUME);
    let channel = client.channel();
    let closed = client.get(channel, "no-such-queue", false).unwrap_err();
    assert_closed(&closed, Scope::Channel, 404, "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", BASIC_GET);
}

#[test]
fn cancel_stops_deliveries_but_leaves_unacked_messages_with_the_channel() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 3);
        client.qos(channel, 2, false).unwrap();
        client.consume(channel, &queue, "c").unwrap();
        let tags = [client.delivery(channel).tag, client.delivery(channel).tag];
        client.cancel(channel, "c").unwrap();
        client.ack(channel, tags[0], false);
        client.silent(channel);
        let (ready, consumers) = client.counts(channel, &queue).unwrap();
        assert_eq!(ready, 1, "{kind:?}: one ready, one still unacked");
        // RabbitMQ's quorum queue counts a cancelled consumer until its last message is settled.
        assert!(consumers == 0 || (is_foreign() && kind == Kind::Quorum), "{kind:?}: {consumers} consumers");
        client.ack(channel, tags[1], false);
        let left = client.get(channel, &queue, true).unwrap().expect("the third message");
        assert_eq!((number(&left.body), left.redelivered), (2, false), "{kind:?}");
    }
}

#[test]
fn cancelling_an_unknown_tag_is_answered() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    client.cancel(channel, "nobody").unwrap();
}

#[test]
fn deleting_a_queue_cancels_its_consumers() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        client.consume(channel, &queue, "told").unwrap();
        let deleter = client.channel();
        client.delete(deleter, &queue, false, false).unwrap();
        assert!(matches!(client.event(channel), Event::Cancelled(tag) if tag == "told"), "{kind:?}");
        // The tag is free again and the channel lives.
        let next = new_queue(&mut client, channel, kind);
        client.consume(channel, &next, "told").unwrap();
    }
}

#[test]
fn client_without_the_capability_is_not_told_of_a_cancel() {
    let broker = Broker::shared();
    let login = Login { capabilities: vec![("consumer_cancel_notify", false)], ..Default::default() };
    let mut client = clients::Client::login(broker.addr(), &login).unwrap();
    let channel = client.channel();
    let queue = new_queue(&mut client, channel, Kind::Classic);
    client.consume(channel, &queue, "untold").unwrap();
    let deleter = client.channel();
    client.delete(deleter, &queue, false, false).unwrap();
    client.silent(channel);
}

#[test]
fn acks_after_the_queue_is_gone_are_harmless() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 2);
        client.consume(channel, &queue, "c").unwrap();
        let (first, second) = (client.delivery(channel).tag, client.delivery(channel).tag);
        let deleter = client.channel();
        client.delete(deleter, &queue, false, false).unwrap();
        assert!(matches!(client.event(channel), Event::Cancelled(_)));
        client.ack(channel, first, false);
        client.nack(channel, second, false, true);
        client.round_trip(channel).unwrap();
    }
}

#[test]
fn no_ack_consumer_leaves_nothing_unacked() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 50);
        client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
        for n in 0..50 {
            assert_eq!(number(&client.delivery(channel).body), n);
        }
        client.close_channel(channel);
        let channel = client.channel();
        assert!(client.get(channel, &queue, true).unwrap().is_none(), "{kind:?}");
    }
}

#[test]
fn equal_consumers_share_a_queue_evenly() {
    for kind in Kind::DURABLE {
        let (mut client, first, queue) = with_queue(kind);
        let channels = [first, client.channel(), client.channel()];
        for channel in channels {
            client.qos(channel, 1000, false).unwrap();
            client.consume(channel, &queue, "").unwrap();
        }
        let publisher = client.channel();
        for n in 0..300u64 {
            client.put(publisher, &queue, n.to_string().as_bytes());
        }
        let mut seen = HashSet::new();
        let mut shares = [0; 3];
        let due = std::time::Instant::now() + clients::client::PATIENCE;
        while seen.len() < 300 {
            assert!(std::time::Instant::now() < due, "{kind:?}: {} of 300 came, shared {shares:?}", seen.len());
            for (at, channel) in channels.into_iter().enumerate() {
                while let Some(Event::Delivery(delivery)) = client.event_within(channel, clients::client::SILENCE / 50)
                {
                    assert!(seen.insert(number(&delivery.body)), "{kind:?}: delivered twice");
                    shares[at] += 1;
                }
            }
        }
        // A turn may be several messages long, so that they travel together; no consumer may be a
        // few turns behind.
        assert!(shares.iter().all(|share| (80..=120).contains(share)), "{kind:?}: shared unfairly, {shares:?}");
    }
}

#[test]
fn consumer_added_later_gets_its_share() {
    let (mut client, first, queue) = with_queue(Kind::Quorum);
    client.qos(first, 10, false).unwrap();
    client.consume(first, &queue, "").unwrap();
    fill(&mut client, &queue, 20);
    for _ in 0..10 {
        client.delivery(first);
    }
    let second = client.channel();
    client.qos(second, 10, false).unwrap();
    client.consume(second, &queue, "").unwrap();
    for n in 10..20 {
        assert_eq!(number(&client.delivery(second).body), n);
    }
}

#[test]
fn closing_the_channel_or_connection_ends_its_consumers() {
    let (mut watcher, channel, queue) = with_queue(Kind::Quorum);
    let mut client = Broker::shared().connect();
    let theirs = client.channel();
    client.consume(theirs, &queue, "").unwrap();
    assert_eq!(watcher.counts(channel, &queue).unwrap().1, 1);
    client.close_channel(theirs);
    wait_for_consumers(&mut watcher, channel, &queue, 0);
    let theirs = client.channel();
    client.consume(theirs, &queue, "").unwrap();
    assert_eq!(watcher.counts(channel, &queue).unwrap().1, 1);
    drop(client);
    wait_for_consumers(&mut watcher, channel, &queue, 0);
}

fn wait_for_consumers(client: &mut clients::Client, channel: u16, queue: &str, count: u32) {
    let due = std::time::Instant::now() + clients::client::PATIENCE;
    while client.counts(channel, queue).unwrap().1 != count {
        assert!(std::time::Instant::now() < due, "the queue never came to {count} consumers");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn get_tells_how_many_are_left() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 3);
        for left in [2, 1, 0] {
            let got = client.get(channel, &queue, false).unwrap().unwrap();
            assert_eq!((got.message_count, number(&got.body)), (Some(left), 2 - u64::from(left)), "{kind:?}");
        }
        assert!(client.get(channel, &queue, false).unwrap().is_none());
    }
}

#[test]
fn empty_queue_name_means_the_last_declared_one() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    fill(&mut client, &queue, 1);
    assert_eq!(client.get(channel, "", true).unwrap().unwrap().routing_key, queue);
    let fresh = client.channel();
    let closed = client.get(fresh, "", true).unwrap_err();
    assert_eq!(closed.code, 404, "{closed:?}");
}

#[test]
fn two_hundred_channels_work_side_by_side() {
    let mut client = Broker::shared().connect();
    let channels: Vec<u16> = (0..200).map(|_| client.channel()).collect();
    let mut queues = Vec::new();
    for &channel in &channels {
        let kind = Kind::ALL[usize::from(channel) % 3];
        let queue = new_queue(&mut client, channel, kind);
        client.confirm_select(channel).unwrap();
        client.consume(channel, &queue, "same-tag-on-each").unwrap();
        queues.push(queue);
    }
    for round in 0..5u64 {
        for (at, &channel) in channels.iter().enumerate() {
            // Each channel publishes to its neighbour's queue.
            client.put(channel, &queues[(at + 1) % 200], format!("{round}").as_bytes());
        }
    }
    for &channel in &channels {
        let (mut deliveries, mut confirmed) = (0, 0);
        while deliveries < 5 || confirmed < 5 {
            match client.event(channel) {
                Event::Delivery(delivery) => {
                    assert_eq!((number(&delivery.body), delivery.tag), (deliveries, deliveries + 1));
                    client.ack(channel, delivery.tag, false);
                    deliveries += 1;
                }
                Event::Confirm { tag, multiple, nack: false } => confirmed = if multiple { tag } else { confirmed + 1 },
                other => panic!("{other:?}"),
            }
        }
    }
    let unused = unique("unused");
    assert_eq!(client.counts(channels[0], &unused).unwrap_err().code, 404, "and errors stay with their channel");
    client.round_trip(channels[1]).unwrap();
}

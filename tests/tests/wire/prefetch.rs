//! Prefetch: per consumer and per channel, and what it does not touch.
//!
//! Invariant: unacked deliveries never exceed a limit in force, whatever is acked, requeued or
//! started.

use clients::broker::is_foreign;
use clients::client::{SILENCE, method_frame};
use clients::methods::*;
use clients::wire::Args;
use clients::{Client, Event, Publish, Scope};
use std::collections::BTreeMap;

use crate::setup::{Kind, assert_closed, fill, new_queue, number, with_queue};

#[test]
fn prefetch_holds_for_each_consumer() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 20);
        client.qos(channel, 3, false).unwrap();
        client.consume(channel, &queue, "a").unwrap();
        client.consume(channel, &queue, "b").unwrap();
        let mut tags: Vec<u64> = (0..6).map(|_| client.delivery(channel).tag).collect();
        client.silent(channel);
        client.ack(channel, tags.pop().unwrap(), false);
        assert_eq!(client.delivery(channel).tag, 7, "{kind:?}: one ack makes room for one");
        client.silent(channel);
        client.ack(channel, 7, true);
        for _ in 0..6 {
            client.delivery(channel);
        }
        client.silent(channel);
    }
}

#[test]
fn prefetch_applies_to_consumers_started_after_it() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    fill(&mut client, &queue, 30);
    client.qos(channel, 2, false).unwrap();
    client.consume(channel, &queue, "two").unwrap();
    client.delivery(channel);
    client.delivery(channel);
    client.silent(channel);
    client.qos(channel, 5, false).unwrap();
    client.silent(channel);
    client.consume(channel, &queue, "five").unwrap();
    for _ in 0..5 {
        assert_eq!(client.delivery(channel).consumer_tag, "five");
    }
    client.silent(channel);
    client.qos(channel, 0, false).unwrap();
    client.consume(channel, &queue, "all").unwrap();
    for _ in 0..23 {
        assert_eq!(client.delivery(channel).consumer_tag, "all");
    }
}

#[test]
fn channel_wide_prefetch_counts_all_consumers_of_the_channel() {
    for kind in Kind::ALL {
        if is_foreign() && kind == Kind::Quorum {
            continue; // RabbitMQ answers 540; Leveret keeps it, as users need it.
        }
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 20);
        client.qos(channel, 4, true).unwrap();
        client.consume(channel, &queue, "a").unwrap();
        client.consume(channel, &queue, "b").unwrap();
        for _ in 0..4 {
            client.delivery(channel);
        }
        client.silent(channel);
        client.ack(channel, 2, true);
        client.delivery(channel);
        client.delivery(channel);
        client.silent(channel);
        // Unlike the per-consumer limit it moves for consumers that run already.
        client.qos(channel, 6, true).unwrap();
        client.delivery(channel);
        client.delivery(channel);
        client.silent(channel);
        client.qos(channel, 0, true).unwrap();
        for _ in 0..12 {
            client.delivery(channel);
        }
    }
}

#[test]
fn both_limits_hold_together() {
    let kind = if is_foreign() { Kind::Classic } else { Kind::Quorum };
    let (mut client, channel, queue) = with_queue(kind);
    fill(&mut client, &queue, 20);
    // In this order: in RabbitMQ a later limit per consumer lifts the one of the channel.
    client.qos(channel, 3, false).unwrap();
    client.qos(channel, 5, true).unwrap();
    client.consume(channel, &queue, "a").unwrap();
    for _ in 0..3 {
        client.delivery(channel);
    }
    client.silent(channel);
    client.consume(channel, &queue, "b").unwrap();
    client.delivery(channel);
    client.delivery(channel);
    client.silent(channel);
}

/// What a consumer got under one rule counts under the next one.
#[test]
fn a_consumers_own_prefetch_holds_whenever_the_limit_of_its_channel_comes_and_goes() {
    for kind in Kind::ALL {
        if is_foreign() && kind == Kind::Quorum {
            continue; // RabbitMQ answers 540; Leveret keeps it, as users need it.
        }
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 80);
        client.qos(channel, 5, false).unwrap();
        client.qos(channel, 2, true).unwrap();
        let mut held: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for tag in ["a", "b"] {
            client.consume(channel, &queue, tag).unwrap();
            held.insert(tag.to_owned(), Vec::new());
        }
        let take = |client: &mut Client, held: &mut BTreeMap<String, Vec<u64>>, count: usize, when: &str| {
            for _ in 0..count {
                let delivery = client.delivery(channel);
                held.get_mut(&delivery.consumer_tag).unwrap().push(delivery.tag);
            }
            client.silent(channel);
            assert!(held.values().all(|tags| tags.len() <= 5), "{kind:?}, {when}: {held:?}");
        };
        take(&mut client, &mut held, 2, "at first");
        for round in 0..3 {
            client.qos(channel, 0, true).unwrap();
            let has: usize = held.values().map(Vec::len).sum();
            take(&mut client, &mut held, 10 - has, "lifted");
            let acked = held.get_mut("a").unwrap().remove(0);
            client.ack(channel, acked, false);
            take(&mut client, &mut held, 1, "lifted, and one acked");
            client.qos(channel, 2, true).unwrap();
            take(&mut client, &mut held, 0, "limited again");
            // All but one of each, so that both have room and the channel has none.
            for tags in held.values_mut() {
                tags.drain(1..).for_each(|tag| client.ack(channel, tag, false));
            }
            take(&mut client, &mut held, 0, "as many as the limit");
            // The other one's is acked: each round begins with another of them.
            let acked = held.get_mut(["a", "b"][round % 2]).unwrap().remove(0);
            client.ack(channel, acked, false);
            take(&mut client, &mut held, 1, "one place is free");
        }
        client.qos(channel, 100, true).unwrap();
        let has: usize = held.values().map(Vec::len).sum();
        take(&mut client, &mut held, 10 - has, "a high limit");
    }
}

#[test]
fn get_ignores_prefetch() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 5);
        client.qos(channel, 1, false).unwrap();
        client.consume(channel, &queue, "c").unwrap();
        client.delivery(channel);
        for n in 1..5 {
            assert_eq!(number(&client.get(channel, &queue, false).unwrap().unwrap().body), n, "{kind:?}");
        }
        // And what was got does not count against the consumer.
        client.ack(channel, 1, false);
        client.silent(channel);
        client.nack(channel, 3, false, true);
        let again = client.delivery(channel);
        assert_eq!((number(&again.body), again.redelivered), (2, true), "{kind:?}");
    }
}

#[test]
fn no_ack_consumer_is_not_limited() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    fill(&mut client, &queue, 50);
    client.qos(channel, 1, false).unwrap();
    client.consume_with(channel, &queue, "", [false, true, false], &[]).unwrap();
    for n in 0..50 {
        assert_eq!(number(&client.delivery(channel).body), n);
    }
}

/// RabbitMQ's limiter lets a no-ack consumer pass while the channel's budget has room, takes
/// nothing for it, and holds it back while the budget is used up.
#[test]
fn no_ack_consumer_waits_while_the_prefetch_of_its_channel_is_used_up() {
    for kind in Kind::ALL {
        if is_foreign() && kind == Kind::Quorum {
            continue; // RabbitMQ answers 540; Leveret keeps it, as users need it.
        }
        let (mut client, channel, held) = with_queue(kind);
        let free = new_queue(&mut client, channel, kind);
        let no_ack = [false, true, false];
        client.qos(channel, 1, true).unwrap();
        client.consume_with(channel, &free, "free", no_ack, &[]).unwrap();
        for n in 0..3 {
            fill(&mut client, &free, 1);
            assert_eq!(client.delivery(channel).tag, n + 1, "{kind:?}: it uses nothing of the budget");
        }
        client.consume(channel, &held, "held").unwrap();
        fill(&mut client, &held, 1);
        let unacked = client.delivery(channel);
        fill(&mut client, &free, 2);
        client.silent(channel);
        // One that comes now has to wait as well.
        let late = new_queue(&mut client, channel, kind);
        fill(&mut client, &late, 1);
        client.consume_with(channel, &late, "late", no_ack, &[]).unwrap();
        client.silent(channel);
        client.ack(channel, unacked.tag, false);
        let mut tags: Vec<_> = (0..3).map(|_| client.delivery(channel).consumer_tag).collect();
        tags.sort();
        assert_eq!(tags, ["free", "free", "late"], "{kind:?}: there is room again");
        fill(&mut client, &held, 1);
        assert_eq!(client.delivery(channel).consumer_tag, "held");
        fill(&mut client, &late, 1);
        client.silent(channel);
        client.qos(channel, 0, true).unwrap();
        assert_eq!(client.delivery(channel).consumer_tag, "late", "{kind:?}: without a limit nobody waits");
    }
}

#[test]
fn basic_get_does_not_overtake_a_consumer_that_was_there_before() {
    for kind in Kind::ALL {
        for global in [false, true] {
            if is_foreign() && kind == Kind::Quorum {
                // Its consumers are given messages by a process of their own, and a basic.get may
                // come before.
                continue;
            }
            // Several queues, so that some are on another shard than the connection.
            for _ in 0..4 {
                let (mut client, channel, queue) = with_queue(kind);
                client.qos(channel, 50, global).unwrap();
                client.consume(channel, &queue, "first").unwrap();
                for n in 0..25u32 {
                    let mut bytes = Publish { key: &queue, body: &n.to_be_bytes(), ..Default::default() }
                        .frames(channel, client.frame_max);
                    let args = Args::new().short(0).shortstr(&queue).bits(&[true]);
                    bytes.extend(method_frame(channel, BASIC_GET, &args));
                    client.raw(&bytes);
                    let (mut delivered, mut answered) = (false, false);
                    while !(delivered && answered) {
                        match client.event(channel) {
                            Event::Delivery(delivery) => {
                                assert_eq!(delivery.consumer_tag, "first", "{kind:?} {global}: message {n}");
                                client.ack(channel, delivery.tag, false);
                                delivered = true;
                            }
                            Event::Method(BASIC_GET_EMPTY, _) => answered = true,
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn prefetch_is_never_exceeded_while_messages_go_back_and_forth() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 40);
        client.qos(channel, 7, false).unwrap();
        client.consume(channel, &queue, "c").unwrap();
        let mut unacked = Vec::new();
        let mut settled = 0;
        for step in 0..600u32 {
            while let Some(event) =
                client.event_within(channel, if unacked.len() == 7 { SILENCE / 250 } else { SILENCE / 25 })
            {
                match event {
                    Event::Delivery(delivery) => unacked.push(delivery.tag),
                    other => panic!("{other:?}"),
                }
                assert!(unacked.len() <= 7, "{kind:?}: {} unacked at prefetch 7", unacked.len());
            }
            let Some(&tag) = unacked.get(step as usize % unacked.len().max(1)) else { break };
            unacked.retain(|&other| other != tag);
            // The delivery limit of a quorum queue is 20: most go back only now and then.
            if step % 3 == 0 {
                client.nack(channel, tag, false, true);
            } else {
                client.ack(channel, tag, false);
                settled += 1;
            }
            if settled == 40 {
                break;
            }
        }
        assert_eq!(settled, 40, "{kind:?}: each message is settled once");
        client.silent(channel);
    }
}

#[test]
fn prefetch_size_is_not_implemented() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    let args = Args::new().long(1).short(0).octet(0);
    let closed = client.call(channel, BASIC_QOS, &args, BASIC_QOS_OK).unwrap_err();
    assert_closed(&closed, Scope::Connection, 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)", BASIC_QOS);
}

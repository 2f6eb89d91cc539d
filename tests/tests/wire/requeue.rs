//! Requeueing: by nack, reject, recover, and by the end of a channel or connection.
//!
//! Invariant: a message that goes back takes its old place, and says `redelivered` from then on.

use clients::broker::is_foreign;
use clients::methods::*;
use clients::wire::Args;
use clients::{Broker, Client, Scope, Value};

use crate::setup::{Kind, assert_closed, fill, number, with_queue};

/// Takes everything ready off a queue by `basic.get`: numbers with their redelivered flags.
fn drain(client: &mut Client, queue: &str) -> Vec<(u64, bool)> {
    let channel = client.channel();
    let mut all = Vec::new();
    while let Some(got) = client.get(channel, queue, true).unwrap() {
        all.push((number(&got.body), got.redelivered));
    }
    client.close_channel(channel);
    all
}

fn wait_until_ready(client: &mut Client, queue: &str, count: u32) {
    let channel = client.channel();
    let due = std::time::Instant::now() + clients::client::PATIENCE;
    while client.counts(channel, queue).unwrap().0 != count {
        assert!(std::time::Instant::now() < due, "{queue} never came to {count} ready messages");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    client.close_channel(channel);
}

#[test]
fn nacked_messages_take_their_old_places() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 6);
        for _ in 0..4 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.nack(channel, 3, false, true);
        client.reject(channel, 1, true);
        client.nack(channel, 2, false, true);
        client.nack(channel, 4, false, true);
        wait_until_ready(&mut client, &queue, 6);
        let expected = [(0, true), (1, true), (2, true), (3, true), (4, false), (5, false)];
        if is_foreign() && kind == Kind::Quorum {
            // RabbitMQ's quorum queue puts them before the rest, in the order in which they came
            // back.
            assert_eq!(drain(&mut client, &queue)[4..], expected[4..]);
            continue;
        }
        assert_eq!(drain(&mut client, &queue), expected, "{kind:?}");
    }
}

#[test]
fn nack_multiple_requeues_all_up_to_the_tag() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 5);
        for _ in 0..4 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.nack(channel, 3, true, true);
        wait_until_ready(&mut client, &queue, 4);
        assert_eq!(drain(&mut client, &queue), [(0, true), (1, true), (2, true), (4, false)], "{kind:?}");
        client.ack(channel, 4, false);
        client.round_trip(channel).unwrap();
    }
}

#[test]
fn nack_of_tag_zero_multiple_requeues_everything() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 4);
        for _ in 0..4 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.nack(channel, 0, true, true);
        wait_until_ready(&mut client, &queue, 4);
        assert_eq!(drain(&mut client, &queue), [(0, true), (1, true), (2, true), (3, true)], "{kind:?}");
    }
}

#[test]
fn requeued_message_comes_back_to_a_lone_consumer_before_later_ones() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 4);
        client.qos(channel, 1, false).unwrap();
        client.consume(channel, &queue, "c").unwrap();
        let first = client.delivery(channel);
        client.nack(channel, first.tag, false, true);
        let again = client.delivery(channel);
        assert_eq!((number(&again.body), again.redelivered, again.tag), (0, true, 2), "{kind:?}");
        client.ack(channel, again.tag, false);
        for n in 1..4 {
            let next = client.delivery(channel);
            assert_eq!((number(&next.body), next.redelivered), (n, false), "{kind:?}");
            client.ack(channel, next.tag, false);
        }
        client.silent(channel);
    }
}

#[test]
fn rejected_message_without_requeue_is_gone() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 4);
        for _ in 0..4 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.reject(channel, 2, false);
        client.nack(channel, 4, false, false);
        client.round_trip(channel).unwrap();
        client.close_channel(channel);
        wait_until_ready(&mut client, &queue, 2);
        assert_eq!(drain(&mut client, &queue), [(0, true), (2, true)], "{kind:?}");
    }
}

#[test]
fn closing_a_channel_requeues_its_messages_in_order() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 50);
        client.qos(channel, 30, false).unwrap();
        client.consume(channel, &queue, "c").unwrap();
        for _ in 0..30 {
            client.delivery(channel);
        }
        client.ack(channel, 10, false);
        client.delivery(channel);
        client.close_channel(channel);
        wait_until_ready(&mut client, &queue, 49);
        let expected: Vec<(u64, bool)> = (0..50).filter(|n| *n != 9).map(|n| (n, n < 31)).collect();
        assert_eq!(drain(&mut client, &queue), expected, "{kind:?}");
    }
}

#[test]
fn losing_a_connection_requeues_its_messages_in_order() {
    for kind in Kind::DURABLE {
        let (mut watcher, _, queue) = with_queue(kind);
        fill(&mut watcher, &queue, 50);
        let mut client = Broker::shared().connect();
        let channels = [client.channel(), client.channel()];
        for channel in channels {
            client.qos(channel, 10, false).unwrap();
            client.consume(channel, &queue, "").unwrap();
        }
        for channel in channels {
            for _ in 0..10 {
                client.delivery(channel);
            }
        }
        drop(client);
        wait_until_ready(&mut watcher, &queue, 50);
        if is_foreign() && kind == Kind::Quorum {
            continue; // 3.10.8 returns a lost connection's messages in no order.
        }
        let expected: Vec<(u64, bool)> = (0..50).map(|n| (n, n < 20)).collect();
        assert_eq!(drain(&mut watcher, &queue), expected, "{kind:?}");
    }
}

#[test]
fn recover_requeues_everything_unacked_of_the_channel() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 5);
        for _ in 0..3 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.ack(channel, 2, false);
        client.call(channel, BASIC_RECOVER, &Args::new().octet(1), BASIC_RECOVER_OK).unwrap();
        wait_until_ready(&mut client, &queue, 4);
        assert_eq!(drain(&mut client, &queue), [(0, true), (2, true), (3, false), (4, false)], "{kind:?}");
        // The old tags are gone.
        client.ack(channel, 1, false);
        assert_eq!(client.closed(channel).code, 406, "{kind:?}");
    }
}

#[test]
fn recovered_messages_go_to_the_channel_again_under_new_tags() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    fill(&mut client, &queue, 3);
    client.consume(channel, &queue, "c").unwrap();
    for tag in 1..=3 {
        assert_eq!(client.delivery(channel).tag, tag);
    }
    client.call(channel, BASIC_RECOVER, &Args::new().octet(1), BASIC_RECOVER_OK).unwrap();
    for tag in 4..=6 {
        let again = client.delivery(channel);
        assert_eq!((again.tag, number(&again.body), again.redelivered), (tag, tag - 4, true));
    }
}

#[test]
fn recover_without_requeue_is_not_implemented() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let closed = client.call(channel, BASIC_RECOVER, &Args::new().octet(0), BASIC_RECOVER_OK).unwrap_err();
    assert_closed(&closed, Scope::Connection, 540, "NOT_IMPLEMENTED - requeue=false", BASIC_RECOVER);
}

#[test]
fn recover_async_requeues_without_an_answer() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    fill(&mut client, &queue, 1);
    client.get(channel, &queue, false).unwrap().unwrap();
    client.send(channel, BASIC_RECOVER_ASYNC, &Args::new().octet(1));
    wait_until_ready(&mut client, &queue, 1);
    client.silent(channel);
}

#[test]
fn quorum_queue_counts_deliveries_that_a_lost_channel_took_with_it() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    fill(&mut client, &queue, 1);
    let mut channel = channel;
    for lost in 0..4i64 {
        let got = client.get(channel, &queue, false).unwrap().expect("the message is ready again");
        let count = got.properties.header("x-delivery-count").map(|value| value.as_i64().unwrap());
        let expected = (lost > 0 || is_foreign()).then_some(lost); // 3.10 says 0 on the first delivery, 4.x nothing.
        assert_eq!((count, got.redelivered), (expected, lost > 0));
        client.close_channel(channel);
        wait_until_ready(&mut client, &queue, 1);
        channel = client.channel();
    }
}

#[test]
fn quorum_queue_keeps_the_headers_it_adds_to() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    let headers = [("mine", Value::from(7))];
    let properties = clients::Properties::with_headers(&headers);
    client.publish(channel, &clients::Publish { key: &queue, properties, body: b"0", ..Default::default() });
    client.consume(channel, &queue, "c").unwrap();
    let first = client.delivery(channel);
    assert_eq!(first.properties.headers(), [("mine".to_owned(), Value::I32(7))]);
    client.reject(channel, first.tag, true);
    let again = client.delivery(channel);
    assert_eq!(again.properties.header("mine"), Some(Value::I32(7)));
    assert_eq!(again.properties.header("x-delivery-count").and_then(|count| count.as_i64()), Some(1));
    assert!(again.redelivered);
}

#[test]
fn classic_queue_adds_no_headers() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    fill(&mut client, &queue, 1);
    client.get(channel, &queue, false).unwrap().unwrap();
    client.reject(channel, 1, true);
    wait_until_ready(&mut client, &queue, 1);
    let again = client.get(channel, &queue, true).unwrap().unwrap();
    assert_eq!((again.redelivered, again.properties.headers()), (true, Vec::new()));
}

#[test]
fn what_came_back_is_handed_out_as_promptly_as_what_is_new() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        client.confirm_select(channel).unwrap();
        // Each alone, so that the log has them in different places.
        for n in 0..20u64 {
            client.put(channel, &queue, n.to_string().as_bytes());
            client.confirmed(channel, n + 1, n + 1);
        }
        client.consume(channel, &queue, "c").unwrap();
        let tags: Vec<u64> = (0..20).map(|_| client.delivery(channel).tag).collect();
        client.cancel(channel, "c").unwrap();
        tags.iter().for_each(|tag| client.nack(channel, *tag, false, true));
        client.round_trip(channel).unwrap();
        for round in 0..10 {
            client.consume(channel, &queue, "c").unwrap();
            let first = client.delivery(channel);
            // A consumer that leaves when it has one message: a queue that has to fetch the others
            // would be late with them.
            client.cancel(channel, "c").unwrap();
            let rest: Vec<u64> = (1..20)
                .map_while(|_| match client.event_within(channel, std::time::Duration::ZERO)? {
                    clients::Event::Delivery(delivery) => Some(number(&delivery.body)),
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!((number(&first.body), rest), (0, (1..20).collect()), "{kind:?}, round {round}");
            client.nack(channel, 0, true, true);
            client.round_trip(channel).unwrap();
        }
    }
}

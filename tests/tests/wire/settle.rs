//! Acks, and what is left of a queue after them: purge, delete, counts.
//!
//! Invariant: a delivery tag is settled at most once; anything else is the client's error and costs
//! it the channel.

use clients::broker::unique;
use clients::methods::*;
use clients::{Broker, Scope};

use crate::setup::{Kind, assert_closed, fill, new_queue, number, with_queue};

#[test]
fn ack_multiple_settles_all_up_to_the_tag() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 6);
        for _ in 0..6 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.ack(channel, 2, false);
        client.ack(channel, 4, true);
        client.close_channel(channel);
        let channel = client.channel();
        let mut left = Vec::new();
        let due = std::time::Instant::now() + clients::client::PATIENCE;
        while left.len() < 2 && std::time::Instant::now() < due {
            left.extend(client.get(channel, &queue, true).unwrap().map(|got| number(&got.body)));
        }
        assert_eq!(left, [4, 5], "{kind:?}");
        assert!(client.get(channel, &queue, true).unwrap().is_none());
    }
}

#[test]
fn ack_of_tag_zero_multiple_settles_everything() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 5);
        for _ in 0..5 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        client.ack(channel, 0, true);
        client.round_trip(channel).unwrap();
        client.close_channel(channel);
        let channel = client.channel();
        std::thread::sleep(clients::client::SILENCE);
        assert!(client.get(channel, &queue, true).unwrap().is_none(), "{kind:?}");
    }
}

#[test]
fn ack_of_tag_zero_multiple_with_nothing_outstanding_is_harmless() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    client.ack(channel, 0, true);
    client.round_trip(channel).unwrap();
}

#[test]
fn unknown_delivery_tag_closes_the_channel_with_406() {
    for (name, method) in [("ack", BASIC_ACK), ("nack", BASIC_NACK), ("reject", BASIC_REJECT)] {
        let (mut client, channel, queue) = with_queue(Kind::Quorum);
        fill(&mut client, &queue, 1);
        client.get(channel, &queue, false).unwrap().unwrap();
        match name {
            "ack" => client.ack(channel, 99, false),
            "nack" => client.nack(channel, 99, false, true),
            _ => client.reject(channel, 99, true),
        }
        let closed = client.closed(channel);
        assert_closed(&closed, Scope::Channel, 406, "PRECONDITION_FAILED - unknown delivery tag 99", method);
    }
}

#[test]
fn second_ack_of_a_tag_closes_the_channel_with_406() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 2);
        client.get(channel, &queue, false).unwrap().unwrap();
        client.get(channel, &queue, false).unwrap().unwrap();
        client.ack(channel, 1, false);
        client.ack(channel, 1, false);
        let text = "PRECONDITION_FAILED - unknown delivery tag 1";
        assert_closed(&client.closed(channel), Scope::Channel, 406, text, BASIC_ACK);
    }
}

#[test]
fn ack_on_another_channel_is_unknown_there() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    let other = client.channel();
    fill(&mut client, &queue, 1);
    client.get(channel, &queue, false).unwrap().unwrap();
    client.ack(other, 1, false);
    let text = "PRECONDITION_FAILED - unknown delivery tag 1";
    assert_closed(&client.closed(other), Scope::Channel, 406, text, BASIC_ACK);
    client.ack(channel, 1, false);
    client.round_trip(channel).unwrap();
}

#[test]
fn no_ack_deliveries_have_no_tag_to_settle() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    fill(&mut client, &queue, 1);
    client.get(channel, &queue, true).unwrap().unwrap();
    client.ack(channel, 1, false);
    assert_eq!(client.closed(channel).code, 406);
}

#[test]
fn purge_takes_ready_messages_and_leaves_unacked_ones() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 10);
        for _ in 0..3 {
            client.get(channel, &queue, false).unwrap().unwrap();
        }
        assert_eq!(client.purge(channel, &queue).unwrap(), 7, "{kind:?}");
        assert_eq!(client.purge(channel, &queue).unwrap(), 0);
        client.nack(channel, 2, false, true);
        client.round_trip(channel).unwrap();
        let due = std::time::Instant::now() + clients::client::PATIENCE;
        let back = loop {
            if let Some(back) = client.get(channel, &queue, true).unwrap() {
                break back;
            }
            assert!(std::time::Instant::now() < due, "{kind:?}: an unacked message survives a purge");
        };
        assert_eq!(number(&back.body), 1);
        client.ack(channel, 1, false);
        client.ack(channel, 3, false);
        client.round_trip(channel).unwrap();
    }
}

#[test]
fn purging_a_missing_queue_closes_the_channel_with_404() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let closed = client.purge(channel, "no-such-queue").unwrap_err();
    assert_closed(&closed, Scope::Channel, 404, "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", QUEUE_PURGE);
}

#[test]
fn delete_says_how_many_messages_went_with_the_queue() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 4);
        assert_eq!(client.delete(channel, &queue, false, false).unwrap(), 4, "{kind:?}");
        assert_eq!(client.delete(channel, &queue, false, false).unwrap(), 0, "a missing queue is deleted with success");
        assert_eq!(client.counts(channel, &queue).unwrap_err().code, 404);
        // The name is free for a queue that knows nothing of the old one.
        let channel = client.channel();
        client.declare(channel, &kind.declare(&queue)).unwrap();
        assert_eq!(client.counts(channel, &queue).unwrap(), (0, 0));
    }
}

#[test]
fn delete_if_unused_and_if_empty_refuse_with_406() {
    for kind in [Kind::Classic, Kind::Exclusive] {
        let (mut client, channel, queue) = with_queue(kind);
        let other = client.channel();
        client.consume(channel, &queue, "c").unwrap();
        let closed = client.delete(other, &queue, true, false).unwrap_err();
        let text = format!("PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use");
        assert_closed(&closed, Scope::Channel, 406, &text, QUEUE_DELETE);
        client.cancel(channel, "c").unwrap();
        fill(&mut client, &queue, 1);
        let other = client.channel();
        let closed = client.delete(other, &queue, false, true).unwrap_err();
        let text = format!("PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty");
        assert_closed(&closed, Scope::Channel, 406, &text, QUEUE_DELETE);
        client.purge(channel, &queue).unwrap();
        assert_eq!(client.delete(channel, &queue, true, true).unwrap(), 0);
    }
}

#[test]
fn counts_tell_ready_messages_and_all_consumers() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 5);
        client.qos(channel, 2, false).unwrap();
        client.consume(channel, &queue, "a").unwrap();
        client.delivery(channel);
        client.delivery(channel);
        let look = client.channel();
        assert_eq!(client.counts(look, &queue).unwrap(), (3, 1), "{kind:?}");
        client.consume(look, &queue, "b").unwrap();
        for _ in 0..3 {
            client.delivery(look);
        }
        assert_eq!(client.counts(channel, &queue).unwrap(), (0, 2), "{kind:?}");
    }
}

#[test]
fn exclusive_queue_goes_with_its_connection() {
    let (client, _, queue) = with_queue(Kind::Exclusive);
    let mut watcher = Broker::shared().connect();
    drop(client);
    let due = std::time::Instant::now() + clients::client::PATIENCE;
    loop {
        let channel = watcher.channel();
        let closed = watcher.counts(channel, &queue).unwrap_err();
        if closed.code == 404 {
            break;
        }
        assert_eq!(closed.code, 405, "{closed:?}");
        assert!(std::time::Instant::now() < due, "the exclusive queue outlived its connection");
    }
}

#[test]
fn auto_delete_queue_goes_with_its_last_consumer_and_not_before_it_had_one() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("auto");
    let queue = clients::QueueDeclare { name: &name, durable: true, auto_delete: true, ..Default::default() };
    client.declare(channel, &queue).unwrap();
    fill(&mut client, &name, 1);
    assert_eq!(client.counts(channel, &name).unwrap(), (1, 0));
    client.get(channel, &name, false).unwrap().unwrap();
    client.ack(channel, 1, false);
    assert_eq!(client.counts(channel, &name).unwrap(), (0, 0), "a get is no consumer");
    let other = client.channel();
    client.consume(channel, &name, "a").unwrap();
    client.consume(other, &name, "b").unwrap();
    client.cancel(channel, "a").unwrap();
    assert_eq!(client.counts(channel, &name).unwrap(), (0, 1));
    client.close_channel(other);
    let due = std::time::Instant::now() + clients::client::PATIENCE;
    loop {
        let look = client.channel();
        match client.counts(look, &name) {
            Err(closed) => {
                assert_eq!(closed.code, 404);
                break;
            }
            Ok(_) => assert!(std::time::Instant::now() < due, "the queue outlived its last consumer"),
        }
    }
}

#[test]
fn deleting_a_queue_takes_its_bindings_along() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let key = unique("key");
    client.bind(channel, &queue, "amq.direct", &key, &[]).unwrap();
    client.delete(channel, &queue, false, false).unwrap();
    client.declare(channel, &Kind::Classic.declare(&queue)).unwrap();
    client.confirm_select(channel).unwrap();
    client.publish(channel, &clients::Publish { exchange: "amq.direct", key: &key, body: b"x", ..Default::default() });
    client.confirmed(channel, 1, 1);
    assert_eq!(client.counts(channel, &queue).unwrap().0, 0, "the new queue has none of the old one's bindings");
    let _ = new_queue(&mut client, channel, Kind::Classic);
}

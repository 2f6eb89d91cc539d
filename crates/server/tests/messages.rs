//! Messages from socket to socket through transient queues: publish, confirm, consume, settle,
//! prefetch.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod support;

use amqp::wire::method::Method;
use support::{TestNode, closed, declared, publish_frames};

on_one_and_three_shards!(
    a_message_goes_in_is_confirmed_comes_out_and_is_acked,
    bodies_of_every_size_come_out_as_they_went_in_and_in_order,
    ten_thousand_messages_in_one_write_are_confirmed_together_and_keep_their_order,
    a_mandatory_message_without_a_queue_comes_back_before_it_is_confirmed,
    a_publish_to_no_exchange_closes_the_channel_and_what_was_sent_behind_it_does_not_count,
    a_consumer_holds_at_most_its_prefetch_and_gets_more_as_it_acks,
    a_prefetch_of_the_channel_is_shared_by_its_consumers_and_reaches_those_that_were_there,
    what_is_given_back_is_delivered_again_at_its_old_place,
    closing_a_channel_gives_its_messages_back_in_order_before_the_close_is_answered,
    a_lost_connection_gives_its_messages_back,
    one_publish_reaches_each_bound_queue_once_and_is_confirmed_once,
    purge_and_delete_count_what_they_drop,
    the_sync_barrier_confirms_and_leads_nowhere,
);

fn a_message_goes_in_is_confirmed_comes_out_and_is_acked(shards: usize) {
    let node = TestNode::shards(shards);
    let (mut publisher, mut consumer) = (node.channel(), node.channel());
    consumer.declare(1, "q");
    consumer.consume(1, "q", "c");
    publisher.confirm_select(1);
    publisher.publish(1, "", "q", b"hello");
    publisher.confirmed(1);
    let received = consumer.recv();
    let Method::BasicDeliver { consumer_tag, delivery_tag: 1, redelivered: false, exchange, routing_key } =
        received.method
    else {
        panic!("{received:?}")
    };
    assert_eq!((&consumer_tag[..], &exchange[..], &routing_key[..]), (&b"c"[..], &b""[..], &b"q"[..]));
    assert_eq!(&received.body[..], b"hello");
    consumer.ack(1, 1, false);
    assert_eq!(consumer.counts(1, "q"), (0, 1));
    support::eventually("giving its bytes back", || node.0.transient_bytes() == 0);
}

fn bodies_of_every_size_come_out_as_they_went_in_and_in_order(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    client.consume(1, "q", "c");
    let frame = 131_072 - 8;
    let sizes = [0, 1, 4095, 8191, 8192, frame - 1, frame, frame + 1, 2 * frame, 1 << 20, 16 << 20];
    let body = |size: usize| (0..size).map(|at| (at * 7 + size) as u8).collect::<Vec<u8>>();
    for size in sizes {
        client.publish(1, "", "q", &body(size));
        let (tag, _, received) = client.delivery();
        assert!(received == body(size), "a body of {size} bytes");
        client.ack(1, tag, false);
    }
    let mut out = Vec::new();
    for size in sizes.iter().take(9) {
        publish_frames(&mut out, 1, "", "q", false, &[0, 0], &body(*size));
    }
    use std::io::Write;
    client.stream.write_all(&out).unwrap();
    for size in sizes.iter().take(9) {
        assert!(client.delivery().2 == body(*size), "a body of {size} bytes among others");
    }
}

fn ten_thousand_messages_in_one_write_are_confirmed_together_and_keep_their_order(shards: usize) {
    let node = TestNode::shards(shards);
    let (mut publisher, mut consumer) = (node.channel(), node.channel());
    consumer.declare(1, "q");
    consumer.consume_as(1, "q", "c", &["no-ack"]);
    publisher.confirm_select(1);
    let count = 10_000u32;
    let mut out = Vec::new();
    for n in 0..count {
        publish_frames(&mut out, 1, "", "q", false, &[0, 0], &n.to_be_bytes());
    }
    let mut writer = publisher.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &out).unwrap());
    for n in 0..count {
        assert_eq!(consumer.delivery().2, &n.to_be_bytes()[..]);
    }
    writing.join().unwrap();
    publisher.confirmed(u64::from(count));
    assert_eq!(consumer.counts(1, "q"), (0, 1));
}

fn a_mandatory_message_without_a_queue_comes_back_before_it_is_confirmed(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.confirm_select(1);
    client.publish(1, "", "nowhere", b"lost");
    client.confirmed(1);
    client.publish_mandatory(1, "", "nowhere", b"returned");
    let returned = client.recv();
    let Method::BasicReturn { reply_code: 312, reply_text, .. } = returned.method else { panic!("{returned:?}") };
    assert_eq!((&reply_text[..], &returned.body[..]), (&b"NO_ROUTE"[..], &b"returned"[..]));
    client.confirmed(2);
}

fn a_publish_to_no_exchange_closes_the_channel_and_what_was_sent_behind_it_does_not_count(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    let mut out = Vec::new();
    publish_frames(&mut out, 1, "none", "q", false, &[0, 0], b"a");
    publish_frames(&mut out, 1, "", "q", false, &[0, 0], b"b");
    std::io::Write::write_all(&mut client.stream, &out).unwrap();
    let refused = client.recv();
    assert_eq!(closed(refused.method), (404, "NOT_FOUND - no exchange 'none' in vhost '/'".to_owned()));
    client.send(1, &Method::ChannelCloseOk {});
    client.open(1);
    assert_eq!(client.counts(1, "q"), (0, 0));
}

fn a_consumer_holds_at_most_its_prefetch_and_gets_more_as_it_acks(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    client.qos(1, 3, false);
    client.consume(1, "q", "c");
    for n in 0..10u8 {
        client.publish(1, "", "q", &[n]);
    }
    for n in 0..3u8 {
        assert_eq!(&client.delivery().2[..], [n]);
    }
    client.silent(50);
    client.ack(1, 2, true);
    assert_eq!(&client.delivery().2[..], [3]);
    assert_eq!(&client.delivery().2[..], [4]);
    client.silent(50);
    // basic.get looks at no prefetch.
    let got = client.call(1, &Method::BasicGet { ticket: 0, queue: "q".into(), no_ack: true });
    assert!(matches!(got, Method::BasicGetOk { message_count: 4, .. }), "{got:?}");
}

fn a_prefetch_of_the_channel_is_shared_by_its_consumers_and_reaches_those_that_were_there(shards: usize) {
    let node = TestNode::shards(shards);
    let (mut client, mut publisher) = (node.channel(), node.channel());
    client.declare(1, "a");
    client.declare(1, "b");
    client.consume(1, "a", "ca");
    client.qos(1, 4, true);
    client.consume(1, "b", "cb");
    publisher.confirm_select(1);
    for n in 0..10u8 {
        publisher.publish(1, "", "a", &[n]);
        publisher.publish(1, "", "b", &[n]);
    }
    publisher.confirmed(20);
    for held in 1..=4u64 {
        assert_eq!(client.delivery().0, held);
    }
    client.silent(50);
    let mut seen = 4;
    while seen < 20 {
        client.ack(1, seen, true);
        for _ in 0..4.min(20 - seen) {
            seen += 1;
            assert_eq!(client.delivery().0, seen);
        }
        client.silent(20);
    }
    // The limit goes, and with it every wait.
    client.ack(1, 0, true);
    client.qos(1, 0, true);
    for n in 0..10u8 {
        publisher.publish(1, "", "a", &[n]);
    }
    for n in 0..10u8 {
        assert_eq!(&client.delivery().2[..], [n]);
    }
    // Cancelling by the old tag still works after the consumer was replaced twice.
    let cancelled = client.call(1, &Method::BasicCancel { consumer_tag: "ca".into(), no_wait: false });
    assert!(matches!(cancelled, Method::BasicCancelOk { .. }));
    assert_eq!(client.counts(1, "a"), (0, 0));
}

fn what_is_given_back_is_delivered_again_at_its_old_place(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    client.qos(1, 2, false);
    client.consume(1, "q", "c");
    for n in 0..4u8 {
        client.publish(1, "", "q", &[n]);
    }
    assert_eq!((client.delivery().0, client.delivery().0), (1, 2));
    client.send(1, &Method::BasicNack { delivery_tag: 2, multiple: true, requeue: true });
    let (first, second) = (client.delivery(), client.delivery());
    assert_eq!((first.0, first.1, &first.2[..]), (3, true, &[0][..]));
    assert_eq!((second.0, second.1, &second.2[..]), (4, true, &[1][..]));
    client.send(1, &Method::BasicReject { delivery_tag: 3, requeue: false });
    let third = client.delivery();
    assert_eq!((third.1, &third.2[..]), (false, &[2][..]));
    let recovered = client.call(1, &Method::BasicRecover { requeue: true });
    assert_eq!(recovered, Method::BasicRecoverOk {});
    assert_eq!(&client.delivery().2[..], [1]);
    assert_eq!(&client.delivery().2[..], [2]);
    client.send(1, &Method::BasicAck { delivery_tag: 4, multiple: false });
    assert_eq!(closed(client.recv().method).1, "PRECONDITION_FAILED - unknown delivery tag 4");
}

fn closing_a_channel_gives_its_messages_back_in_order_before_the_close_is_answered(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.open(2);
    client.declare(1, "q");
    client.consume(2, "q", "c");
    for n in 0..5u8 {
        client.publish(1, "", "q", &[n]);
    }
    for _ in 0..5 {
        client.delivery();
    }
    let close = Method::ChannelClose { reply_code: 200, reply_text: "bye".into(), class_id: 0, method_id: 0 };
    assert_eq!(client.call(2, &close), Method::ChannelCloseOk {});
    assert_eq!(client.counts(1, "q"), (5, 0));
    for n in 0..5u8 {
        client.send(1, &Method::BasicGet { ticket: 0, queue: "q".into(), no_ack: false });
        let got = client.recv();
        assert!(matches!(got.method, Method::BasicGetOk { redelivered: true, .. }), "{got:?}");
        assert_eq!(&got.body[..], [n]);
    }
    let got = client.call(1, &Method::BasicGet { ticket: 0, queue: "q".into(), no_ack: false });
    assert!(matches!(got, Method::BasicGetEmpty { .. }));
    client.ack(1, 0, true);
    assert_eq!(client.counts(1, "q"), (0, 0));
}

fn a_lost_connection_gives_its_messages_back(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    let mut lost = node.channel();
    lost.consume(1, "q", "c");
    client.publish(1, "", "q", b"m");
    lost.delivery();
    drop(lost);
    client.consume(1, "q", "c");
    assert!(client.delivery().1, "it was delivered before");
}

fn one_publish_reaches_each_bound_queue_once_and_is_confirmed_once(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    for queue in ["a", "b", "c"] {
        client.declare(1, queue);
        client.bind(1, queue, "amq.topic", "k.*");
    }
    client.bind(1, "a", "amq.topic", "#");
    client.confirm_select(1);
    client.publish(1, "amq.topic", "k.1", b"m");
    client.publish(1, "amq.topic", "other", b"m");
    client.confirmed(2);
    assert_eq!((client.counts(1, "a").0, client.counts(1, "b").0, client.counts(1, "c").0), (2, 1, 1));
    // A route that was used is not used any more once the topology changed.
    let unbind = Method::QueueUnbind {
        ticket: 0,
        queue: "b".into(),
        exchange: "amq.topic".into(),
        routing_key: "k.*".into(),
        arguments: Default::default(),
    };
    assert_eq!(client.call(1, &unbind), Method::QueueUnbindOk {});
    client.publish(1, "amq.topic", "k.1", b"m");
    client.confirmed(3);
    assert_eq!((client.counts(1, "a").0, client.counts(1, "b").0, client.counts(1, "c").0), (3, 1, 2));
}

fn purge_and_delete_count_what_they_drop(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    for n in 0..5u8 {
        client.publish(1, "", "q", &[n]);
    }
    let purge = Method::QueuePurge { ticket: 0, queue: "q".into(), no_wait: false };
    assert_eq!(client.call(1, &purge), Method::QueuePurgeOk { message_count: 5 });
    client.publish(1, "", "q", b"m");
    let delete =
        |if_unused, if_empty| Method::QueueDelete { ticket: 0, queue: "q".into(), if_unused, if_empty, no_wait: false };
    assert_eq!(
        closed(client.call(1, &delete(false, true))),
        (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty".to_owned())
    );
    client.send(1, &Method::ChannelCloseOk {});
    client.open(1);
    assert_eq!(client.call(1, &delete(true, false)), Method::QueueDeleteOk { message_count: 1 });
    assert_eq!(client.call(1, &delete(true, false)), Method::QueueDeleteOk { message_count: 0 });
    let (name, ready, consumers) = declared(client.declare_as(1, "q", &[]));
    assert_eq!((&name[..], ready, consumers), (&b"q"[..], 0, 0));
}

fn the_sync_barrier_confirms_and_leads_nowhere(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.confirm_select(1);
    client.publish(1, "leveret.sync", "", b"");
    client.confirmed(1);
    client.publish_mandatory(1, "leveret.sync", "", b"back");
    assert!(matches!(client.recv().method, Method::BasicReturn { .. }));
    client.confirmed(2);
}

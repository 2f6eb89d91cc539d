//! Queues and consumers as clients see them: names, owners, ends, refusals.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod support;

use amqp::wire::method::Method;
use support::{Client, TestNode, closed, declared};

on_one_and_three_shards!(
    the_server_names_queues_and_consumers_that_have_no_name,
    an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection,
    an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_the_first,
    replacing_consumers_for_a_channel_prefetch_does_not_end_an_auto_delete_queue,
    consumers_of_a_deleted_queue_are_told_and_their_acks_do_no_harm,
    a_queue_in_use_is_not_deleted_if_unused,
    an_exclusive_consumer_is_alone,
    redeclaring_with_another_flag_is_refused_and_an_equal_one_answers_with_counts,
    a_channel_answers_its_requests_in_order_even_when_they_come_at_once,
    a_durable_queue_is_refused_on_a_node_that_has_none,
);

fn cancel_of(client: &mut Client) -> String {
    match client.recv().method {
        Method::BasicCancel { consumer_tag, no_wait: true } => String::from_utf8(consumer_tag.to_vec()).unwrap(),
        other => panic!("basic.cancel was expected, not {other:?}"),
    }
}

fn delete(queue: &'static str, if_unused: bool) -> Method {
    Method::QueueDelete { ticket: 0, queue: queue.into(), if_unused, if_empty: false, no_wait: false }
}

fn the_server_names_queues_and_consumers_that_have_no_name(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    let (first, ..) = declared(client.declare_as(1, "", &["exclusive"]));
    let (second, ..) = declared(client.declare_as(1, "", &["exclusive"]));
    assert!(first.starts_with(b"amq.gen-") && first.len() == 30 && first != second);
    // The empty name is the last queue that was declared on the channel.
    let consuming = client.consume_as(1, "", "", &[]);
    let Method::BasicConsumeOk { consumer_tag } = consuming else { panic!("{consuming:?}") };
    assert!(consumer_tag.starts_with(b"amq.ctag-") && consumer_tag.len() == 31);
    client.publish(1, "", std::str::from_utf8(&second).unwrap(), b"m");
    assert_eq!(&client.delivery().2[..], b"m");
}

fn an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection(shards: usize) {
    let node = TestNode::shards(shards);
    let (mut owner, mut other) = (node.channel(), node.channel());
    owner.declare_as(1, "mine", &["exclusive", "durable"]);
    let (code, text) = closed(other.declare_as(1, "mine", &["passive"]));
    assert_eq!(code, 405);
    assert!(text.starts_with("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine'"), "{text}");
    other.send(1, &Method::ChannelCloseOk {});
    drop(owner);
    for _ in 0..200 {
        other.open(1);
        let answer = other.declare_as(1, "mine", &["passive"]);
        let (code, text) = closed(answer);
        other.send(1, &Method::ChannelCloseOk {});
        if code == 404 {
            assert_eq!(text, "NOT_FOUND - no queue 'mine' in vhost '/'");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the queue outlived its connection");
}

fn an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_the_first(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.open(2);
    client.declare_as(1, "q", &["auto-delete"]);
    assert_eq!(client.counts(1, "q"), (0, 0));
    client.consume(1, "q", "a");
    client.consume(2, "q", "b");
    let cancel = |tag: &'static str| Method::BasicCancel { consumer_tag: tag.into(), no_wait: false };
    client.call(1, &cancel("a"));
    assert_eq!(client.counts(1, "q"), (0, 1));
    client.call(2, &cancel("b"));
    assert_eq!(closed(client.declare_as(1, "q", &["passive"])).0, 404);
    client.send(1, &Method::ChannelCloseOk {});
    // Likewise when the last consumer's channel closes instead.
    client.declare_as(2, "q", &["auto-delete"]);
    client.open(1);
    client.consume(1, "q", "a");
    let close = Method::ChannelClose { reply_code: 200, reply_text: "".into(), class_id: 0, method_id: 0 };
    client.call(1, &close);
    assert_eq!(closed(client.declare_as(2, "q", &["passive"])).0, 404);
}

fn replacing_consumers_for_a_channel_prefetch_does_not_end_an_auto_delete_queue(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare_as(1, "q", &["auto-delete"]);
    client.consume(1, "q", "a");
    client.qos(1, 10, true);
    client.publish(1, "", "q", b"m");
    assert_eq!(&client.delivery().2[..], b"m");
    assert_eq!(client.counts(1, "q"), (0, 1));
}

fn consumers_of_a_deleted_queue_are_told_and_their_acks_do_no_harm(shards: usize) {
    let node = TestNode::shards(shards);
    let (mut client, mut other) = (node.channel(), node.channel());
    client.declare(1, "q");
    client.consume(1, "q", "a");
    client.publish(1, "", "q", b"m");
    let (tag, ..) = client.delivery();
    assert_eq!(other.call(1, &delete("q", false)), Method::QueueDeleteOk { message_count: 0 });
    assert_eq!(cancel_of(&mut client), "a");
    client.ack(1, tag, false);
    client.declare(1, "q");
    // The tag is free again.
    client.consume(1, "q", "a");
    assert_eq!(client.counts(1, "q"), (0, 1));
}

fn a_queue_in_use_is_not_deleted_if_unused(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.open(2);
    client.declare(1, "q");
    client.consume(1, "q", "a");
    let refused = closed(client.call(2, &delete("q", true)));
    assert_eq!(refused, (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use".to_owned()));
    client.publish(1, "", "q", b"still there");
    assert_eq!(&client.delivery().2[..], b"still there");
}

fn an_exclusive_consumer_is_alone(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.open(2);
    client.declare(1, "q");
    assert!(matches!(client.consume_as(1, "q", "a", &["exclusive"]), Method::BasicConsumeOk { .. }));
    let refused = closed(client.consume_as(2, "q", "b", &[]));
    assert_eq!(refused, (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use".to_owned()));
}

fn redeclaring_with_another_flag_is_refused_and_an_equal_one_answers_with_counts(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.declare(1, "q");
    client.publish(1, "", "q", b"m");
    assert_eq!(declared(client.declare_as(1, "q", &[])).1, 1);
    let (code, text) = closed(client.declare_as(1, "q", &["auto-delete"]));
    assert_eq!(code, 406);
    assert!(text.contains("inequivalent arg 'auto_delete' for queue 'q' in vhost '/'"), "{text}");
}

fn a_channel_answers_its_requests_in_order_even_when_they_come_at_once(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    let mut out = Vec::new();
    for n in 0..50 {
        let queue = format!("q{n}");
        Method::QueueDeclare {
            ticket: 0,
            queue: queue.clone().into(),
            passive: false,
            durable: false,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: Default::default(),
        }
        .write(&mut out, 1);
        support::publish_frames(&mut out, 1, "", &queue, false, &[0, 0], b"m");
        Method::BasicGet { ticket: 0, queue: queue.into(), no_ack: true }.write(&mut out, 1);
    }
    std::io::Write::write_all(&mut client.stream, &out).unwrap();
    for n in 0..50 {
        let (name, messages, _) = declared(client.recv().method);
        assert_eq!((&name[..], messages), (format!("q{n}").as_bytes(), 0));
        let got = client.recv();
        assert!(matches!(got.method, Method::BasicGetOk { .. }), "{got:?}");
    }
}

fn a_durable_queue_is_refused_on_a_node_that_has_none(shards: usize) {
    let node = TestNode::shards(shards);
    let mut client = node.channel();
    client.send(
        1,
        &Method::QueueDeclare {
            ticket: 0,
            queue: "d".into(),
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: Default::default(),
        },
    );
    let refused = closed(client.recv().method);
    assert_eq!(refused, (540, "NOT_IMPLEMENTED - this node has no durable queues".to_owned()));
}

//! Partitions that nobody leads: a request that waits is asked again until somebody leads, or gets
//! 541 in the end. It is never answered as if its queue were gone.

use crate::script::{DURABLE, Script, TRANSIENT, consume, copied_to, declare, delete, delivery, get};
use amqp::{Request, Table};
use broker::topology::{
    ClusterNode, Command as Change, MACHINE_VERSION, MachineVersions, Name, NodeStanding, PartitionPool,
    PartitionStage, PoolPartition,
};
use broker::{ConsumerKey, NodeNumber, PoolId, QueueId};
use bytes::Bytes;
use partition::{Effect, Reply};

fn passive() -> Request {
    let (durable, exclusive, auto_delete, arguments) = (false, false, false, Table::new());
    let queue = Bytes::from_static(b"q");
    Request::QueueDeclare { queue, durable, exclusive, auto_delete, arguments, passive: true }
}

fn purge() -> Request {
    Request::QueuePurge { queue: Bytes::from_static(b"q") }
}

#[test]
fn a_get_is_asked_again_until_somebody_leads() {
    let mut script = Script::begun();
    script.ask(1, get());
    script.answer(Reply::NotLeader);
    assert_eq!(script.said(), ["p1 <- get"]);
    script.pass(100);
    script.answer(Reply::NotLeader);
    script.pass(100);
    assert_eq!(script.said(), ["p1 <- get", "p1 <- get"]);
    let channel = script.key(1);
    let message = delivery(ConsumerKey::get(channel), 7, "hello");
    script.answer(Reply::Got { delivery: message, ready: 3 });
    assert_eq!(script.said(), ["1: basic.get-ok hello 3"]);
    script.pass(60_000);
    assert_eq!(script.said(), [""; 0], "an answer is an answer");
}

#[test]
fn an_answer_to_a_question_that_was_asked_again_meets_nobody() {
    let mut script = Script::begun();
    script.ask(1, get());
    let first = script.question();
    script.answer(Reply::NotLeader);
    script.pass(100);
    script.said();
    script.answer_to(first, Reply::Empty);
    assert_eq!(script.said(), [""; 0]);
    script.answer(Reply::Empty);
    assert_eq!(script.said(), ["1: basic.get-empty"]);
}

#[test]
fn whoever_asks_where_nobody_leads_for_long_hears_541_and_not_that_the_queue_is_gone() {
    for request in [get(), passive(), purge(), delete(true), consume("q", false)] {
        let mut script = Script::begun();
        script.ask(1, request.clone());
        for _ in 0..400 {
            script.answer(Reply::NotLeader);
            script.pass(100);
        }
        let said = script.said();
        let asked = said.iter().filter(|line| line.starts_with("p1 <- ")).count();
        assert!((290..=301).contains(&asked), "{request:?} was asked {asked} times");
        let last = "1: error 541 queue 'q' in vhost '/' has no leader to ask: does a majority of its nodes run?";
        assert_eq!(said.last().map(String::as_str), Some(last), "{request:?}");
        assert_eq!(said.iter().filter(|line| line.starts_with("1: ")).count(), 1, "{said:?}");
    }
}

#[test]
fn whoever_asks_where_a_partition_is_damaged_hears_541_at_once_and_a_declaration_finds_the_queue() {
    for request in [get(), purge(), delete(false), delete(true), consume("q", false)] {
        let mut script = Script::begun();
        script.ask(1, request.clone());
        script.said();
        script.answer(Reply::Unavailable);
        let said = script.said();
        assert!(
            said.last().expect("it is told").starts_with("1: error 541 queue 'q' in vhost '/' is unavailable"),
            "{request:?}: {said:?}"
        );
        script.pass(60_000);
        assert_eq!(script.said(), [""; 0], "{request:?} is not asked again");
    }
    let mut script = Script::begun();
    script.ask(1, passive());
    script.said();
    script.answer(Reply::Unavailable);
    assert_eq!(script.said(), ["1: queue.declare-ok q 0 0"]);
}

#[test]
fn a_delete_on_a_condition_is_asked_again_with_its_condition() {
    let mut script = Script::begun();
    script.ask(1, delete(true));
    script.answer(Reply::NotLeader);
    script.pass(100);
    let asked = "p1 <- delete if unused true if empty false";
    assert_eq!(script.said(), [asked, asked]);
    script.answer(Reply::DeleteRefused { in_use: true });
    assert_eq!(script.said(), ["1: error 406 queue 'q' in vhost '/' in use"]);
}

#[test]
fn a_consumer_attaches_to_the_next_leader_and_hears_consume_ok_once() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::NotLeader);
    script.pass(100);
    script.answer(Reply::Consuming);
    assert_eq!(script.said(), ["p1 <- consume 1", "p1 <- consume 1", "1: basic.consume-ok c"]);
    script.deliver(1, 5, "hello");
    script.ack(1, 1, 5);
    assert_eq!(script.said(), ["1: basic.deliver c hello", "p1 <- ack 1 from 5 of 1"]);
}

#[test]
fn a_consumer_whose_leader_went_is_cancelled_at_once() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    script.said();
    script.answer(Reply::NotLeader);
    assert_eq!(script.said(), ["1: ok"], "it had its consumers in memory only");
}

#[test]
fn a_queue_that_was_deleted_while_nobody_led_is_gone() {
    for (request, answer) in [
        (get(), "1: error 404 no queue 'q' in vhost '/'"),
        (consume("q", false), "1: error 404 no queue 'q' in vhost '/'"),
        (delete(true), "1: queue.delete-ok 0"),
    ] {
        let mut script = Script::begun();
        script.ask(1, request);
        script.answer(Reply::NotLeader);
        script.said();
        script.lose_queue("q");
        script.pass(100);
        assert_eq!(script.said(), [answer]);
    }
}

#[test]
fn a_partition_that_is_not_here_is_waited_for_as_one_without_a_leader() {
    let mut script = Script::begun();
    script.node.away.borrow_mut().insert(DURABLE);
    script.ask(1, get());
    script.pass(1_000);
    assert_eq!(script.said(), [""; 0], "nobody was asked, and nothing is known of the queue");
    script.node.away.borrow_mut().clear();
    script.pass(100);
    script.answer(Reply::Empty);
    assert_eq!(script.said(), ["p1 <- get", "1: basic.get-empty"]);
}

#[test]
fn a_channel_that_ends_while_nobody_leads_asks_nothing_more() {
    let mut script = Script::begun();
    script.ask(1, get());
    script.answer(Reply::NotLeader);
    script.close(1);
    script.said();
    script.open(1);
    script.pass(60_000);
    assert_eq!(script.said(), [""; 0]);
}

#[test]
fn publishes_that_a_leader_cannot_promise_any_more_are_nacked_and_so_is_a_sync() {
    let mut script = Script::begun();
    script.publish(1, "q", "a", 1);
    script.publish(1, "q", "b", 2);
    let channel = script.key(1);
    script.effect(channel, Effect::Confirm { channel, first: 1, count: 1 });
    script.effect(channel, Effect::Refuse { channel, first: 2, count: 1 });
    assert_eq!(script.said(), ["p1 <- publish a #1", "p1 <- publish b #2", "1: basic.ack 1", "1: basic.nack 2"]);
    script.publish_to(1, session::SYNC_EXCHANGE, 3);
    script.answer(Reply::NotLeader);
    assert_eq!(script.said(), ["p1 <- sync", "1: basic.nack 3"]);
}

#[test]
fn a_publish_to_a_partition_that_is_not_here_is_nacked_and_goes_to_its_other_queues() {
    let mut script = Script::begun();
    script.ask(1, consume("amq.rabbitmq.reply-to", true));
    script.answer(Reply::Consuming);
    let elsewhere = format!("amq.rabbitmq.reply-to.{}", "A".repeat(22));
    script.node.away.borrow_mut().insert(TRANSIENT);
    script.said();
    script.publish(1, &elsewhere, "lost", 1);
    assert_eq!(script.said(), ["1: basic.nack 1"]);
    script.publish_with(1, "q", "copied", 2, &copied_to(&elsewhere));
    let channel = script.key(1);
    script.effect(channel, Effect::Confirm { channel, first: 2, count: 1 });
    assert_eq!(script.said(), ["p1 <- publish copied #2", "1: basic.nack 2"]);
    script.node.away.borrow_mut().clear();
    script.publish(1, &elsewhere, "back", 3);
    assert_eq!(script.said(), ["p9 <- publish back #3"], "what was found while it was away is not kept");
    script.node.away.borrow_mut().insert(DURABLE);
    script.publish_to(1, session::SYNC_EXCHANGE, 4);
    script.answer(Reply::Done);
    assert_eq!(script.said(), ["p9 <- sync", "1: basic.nack 4"]);
}

#[test]
fn what_a_leader_gave_out_is_not_passed_on_once_a_later_term_is_known() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.said();
    script.deliver(1, 5, "in time");
    script.node.term.set(2);
    script.deliver(1, 6, "late");
    assert_eq!(script.said(), ["1: basic.deliver c in time"]);
    let channel = script.key(1);
    let consumer = ConsumerKey { channel, number: 1 };
    script.effect(channel, Effect::Cancelled { consumer, queue: QueueId(1) });
    script.pass(100);
    assert_eq!(script.said(), ["p1 <- consume 1", "p1 <- hold 1 from 1 of 1"], "what came late is not held");
}

/// A link breaks, and what was sent over it before comes after that: the leader of before says the end
/// of a consumer, too.
#[test]
fn a_consumer_on_its_way_to_the_next_leader_is_asked_for_once_however_often_its_end_is_told() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.said();
    let channel = script.key(1);
    let consumer = ConsumerKey { channel, number: 1 };
    let ends = |script: &mut Script| {
        script.effect(channel, Effect::Cancelled { consumer, queue: QueueId(1) });
        script.pass(100);
        script.said()
    };
    assert_eq!(ends(&mut script), ["p1 <- consume 1"]);
    assert_eq!(ends(&mut script), [""; 0], "it has not been answered yet");
    script.answer(Reply::NotLeader);
    script.pass(100);
    assert_eq!(script.said(), ["p1 <- consume 1"]);
    script.answer(Reply::Consuming);
    assert_eq!(ends(&mut script), ["p1 <- consume 1"]);
}

#[test]
fn a_get_that_a_leader_answered_who_leads_no_more_is_asked_again() {
    let mut script = Script::begun();
    script.ask(1, get());
    script.node.term.set(2);
    let channel = script.key(1);
    let late = delivery(ConsumerKey::get(channel), 7, "late");
    script.answer(Reply::Got { delivery: late.clone(), ready: 3 });
    assert_eq!(script.said(), ["p1 <- get"]);
    script.pass(100);
    script.answer(Reply::Got { delivery: partition::Delivery { term: 2, ..late }, ready: 3 });
    assert_eq!(script.said(), ["p1 <- get", "1: basic.get-ok late 3"]);
}

#[test]
fn a_message_that_needs_no_ack_is_passed_on_whoever_leads() {
    let mut script = Script::begun();
    script.ask(1, Request::Get { queue: Bytes::from_static(b"q"), no_ack: true });
    script.node.term.set(2);
    let channel = script.key(1);
    let got = partition::Delivery { needs_ack: false, ..delivery(ConsumerKey::get(channel), 7, "settled") };
    script.answer(Reply::Got { delivery: got, ready: 3 });
    assert_eq!(script.said(), ["p1 <- get", "1: basic.get-ok settled 3"], "nobody else would get it");
}

/// A script whose queue `q` lives on node 2 of two, and what is heard of it while that is away.
fn on_another_node() -> Script {
    let mut script = Script::begun();
    let node = |number: u32| Change::PutNode {
        number: NodeNumber(number),
        node: ClusterNode {
            name: Name::from(format!("leveret@{number}").as_str()),
            address: Name::from(format!("host{number}:1").as_str()),
            standing: NodeStanding::Member,
            can: MachineVersions { topology: MACHINE_VERSION, queues: 1 },
        },
    };
    let pool = PartitionPool {
        name: Name::from("default"),
        replication_factor: 1,
        target: 1,
        serves_classic: true,
        serves_quorum: true,
    };
    let (pool_id, members) = (PoolId(1), vec![NodeNumber(2)]);
    let partition = PoolPartition { pool: pool_id, members, stage: PartitionStage::Serving };
    for change in
        [node(1), node(2), Change::PutPool { id: pool_id, pool }, Change::PutPartition { id: DURABLE, partition }]
    {
        script.decree(change);
    }
    script
}

fn go_away(script: &Script, is_away: bool) {
    script.node.unreached.replace(is_away.then_some(NodeNumber(2)).into_iter().collect());
    script.node.reach_changes.set(script.node.reach_changes.get() + 1);
}

#[test]
fn a_classic_queue_whose_node_is_away_is_404_at_once_and_one_that_waits_hears_so_too() {
    let why = "1: error 404 home node 'leveret@2' of durable queue 'q' in vhost '/' is down or inaccessible";
    for request in [get(), passive(), declare("q"), purge(), consume("q", false)] {
        let mut script = on_another_node();
        go_away(&script, true);
        script.ask(1, request.clone());
        assert_eq!(script.said(), [why], "{request:?}");
    }
    let mut script = on_another_node();
    script.ask(1, get());
    script.said();
    go_away(&script, true);
    script.answer(Reply::NotLeader);
    script.pass(100);
    assert_eq!(script.said(), [why], "it went while the answer was on its way");
    let mut script = on_another_node();
    go_away(&script, true);
    go_away(&script, false);
    script.ask(1, get());
    assert_eq!(script.said(), ["p1 <- get"], "it is back");
}

#[test]
fn a_classic_queue_whose_node_is_away_is_deleted_unless_that_minds_its_messages() {
    let delete = |if_unused, if_empty| Request::QueueDelete { queue: Bytes::from_static(b"q"), if_unused, if_empty };
    let mut script = on_another_node();
    go_away(&script, true);
    script.ask(1, delete(false, true));
    assert_eq!(script.said(), ["1: error 406 queue 'q' in vhost '/' not empty"]);
    for if_unused in [false, true] {
        let mut script = on_another_node();
        go_away(&script, true);
        script.ask(1, delete(if_unused, false));
        let asked = "p1 <- delete if unused false if empty false";
        assert_eq!(script.said(), [asked], "its consumers are gone: {if_unused}");
    }
}

#[test]
fn publishes_to_a_classic_queue_are_refused_while_its_node_is_away() {
    let mut script = on_another_node();
    script.publish(1, "q", "a", 1);
    go_away(&script, true);
    script.publish(1, "q", "b", 2);
    go_away(&script, false);
    script.publish(1, "q", "c", 3);
    assert_eq!(script.said(), ["p1 <- publish a #1", "1: basic.nack 2", "p1 <- publish c #3"]);
}

#[test]
fn a_consumer_waits_unseen_for_the_node_of_its_queue_and_hears_at_once_if_that_goes_meanwhile() {
    let attached = || {
        let mut script = on_another_node();
        script.ask(1, consume("q", false));
        script.answer(Reply::Consuming);
        go_away(&script, true);
        let channel = script.key(1);
        let consumer = ConsumerKey { channel, number: 1 };
        script.effect(channel, Effect::Cancelled { queue: QueueId(1), consumer });
        script.said();
        script.pass(5_000);
        assert_eq!(script.said(), [""; 0], "nobody is there to ask");
        script
    };
    let mut script = attached();
    go_away(&script, false);
    script.pass(100);
    assert_eq!(script.said(), ["p1 <- consume 1"]);

    let mut script = attached();
    script.lose_queue("q");
    script.pass(100);
    assert_eq!(script.said(), ["1: basic.cancel c"]);

    let mut script = attached();
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    assert_eq!(script.said(), ["1: ok"], "it has ended with its node");
}

#[test]
fn a_consumer_that_waits_for_the_next_leader_comes_to_it_once_under_the_prefetch_that_holds_then() {
    for count in [2, 0] {
        let mut script = Script::begun();
        if count == 0 {
            script.ask(1, Request::Qos { prefetch_count: 2, global: true });
        }
        script.ask(1, consume("q", false));
        script.answer(Reply::Consuming);
        script.deliver(1, 1, "held");
        let consumer = ConsumerKey { channel: script.key(1), number: 1 };
        script.effect(consumer.channel, Effect::Cancelled { consumer, queue: QueueId(1) });
        script.said();
        script.ask(1, Request::Qos { prefetch_count: count, global: true });
        script.pass(100);
        assert_eq!(script.said(), ["1: ok", "p1 <- consume 1", "p1 <- hold 1 from 1 of 1"]);
        script.answer(Reply::Consuming);
        assert_eq!(script.said(), [""; 0]);
    }
}

#[test]
fn the_next_leader_hears_what_was_fetched_and_what_a_cancelled_consumer_holds() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    (1..=3).for_each(|seq| script.deliver(1, seq, "given"));
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    script.answer(Reply::Done);
    script.ask(1, get());
    let message = delivery(ConsumerKey::get(script.key(1)), 4, "fetched");
    script.answer(Reply::Got { delivery: message, ready: 3 });
    script.ack(1, 1, 1);
    script.said();
    script.hold_again(TRANSIENT);
    assert_eq!(script.said(), [""; 0], "they are of another one");
    script.hold_again(DURABLE);
    let held = ["p1 <- hold 1 from 2 of 1", "p1 <- hold 1 from 3 of 1", "p1 <- hold 1 from 4 of 0"];
    assert_eq!(script.said(), held);
}

#[test]
fn a_consumer_that_is_cancelled_while_nobody_leads_keeps_what_it_holds() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.deliver(1, 1, "given");
    let consumer = ConsumerKey { channel: script.key(1), number: 1 };
    script.effect(consumer.channel, Effect::Cancelled { consumer, queue: QueueId(1) });
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    script.said();
    script.answer(Reply::NotLeader);
    assert_eq!(script.said(), ["p1 <- hold 1 from 1 of 1", "1: ok"]);
}

#[test]
fn whoever_asks_a_leader_that_does_not_answer_hears_541_after_half_a_minute() {
    for request in [get(), passive(), purge(), consume("q", false)] {
        let mut script = Script::begun();
        script.ask(1, request.clone());
        script.said();
        script.pass(29_900);
        assert_eq!(script.said(), [""; 0], "{request:?}");
        script.pass(100);
        let why = "has a leader that does not answer: does a majority of its nodes run, and have room on their disks?";
        assert_eq!(script.said(), [format!("1: error 541 queue 'q' in vhost '/' {why}")], "{request:?}");
        script.answer(Reply::Empty);
        assert_eq!(script.said(), [""; 0], "an answer that comes late meets nobody");
    }
    // What its leader gave it may be on its way: it goes back with the channel.
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    script.said();
    script.pass(30_000);
    let told = script.said();
    assert!(told.len() == 1 && told[0].starts_with("1: error 541 queue 'q' in vhost '/' has a leader"), "{told:?}");
    script.answer(Reply::Done);
    assert_eq!(script.said(), [""; 0], "an answer that comes late meets nobody");
}

#[test]
fn a_late_answer_to_a_cancel_that_was_given_up_meets_nobody() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    script.answer(Reply::NotLeader);
    script.said();
    script.answer(Reply::Done);
    assert_eq!(script.said(), [""; 0]);
}

/// Who answers a cancel may not lead any more, and another one does.
#[test]
fn whoever_leads_hears_what_a_consumer_holds_that_is_cancelled_just_now() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.deliver(1, 1, "given");
    script.ask(1, Request::Cancel { consumer_tag: amqp::ConsumerTag::new(Bytes::from_static(b"c")) });
    script.said();
    script.answer(Reply::Done);
    assert_eq!(script.said(), ["p1 <- hold 1 from 1 of 1", "1: ok"]);
}

//! A node among others may have lost them and not know it: what it knows of the topology answers
//! nobody before it made sure that it knows all. What is decided by the log needs nothing of that.

use crate::script::{Script, consume, declare, deliveries, get};
use amqp::{Request, Settlement, Table};
use broker::{ConsumerKey, QueueId};
use bytes::Bytes;
use partition::{Effect, Reply};
use session::TopologyKnown;

fn among_others() -> Script {
    let mut script = Script::begun();
    script.among_others();
    script
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn passive(queue: &'static str) -> Request {
    let (durable, exclusive, auto_delete, arguments) = (false, false, false, Table::new());
    Request::QueueDeclare { queue: bytes(queue), durable, exclusive, auto_delete, arguments, passive: true }
}

fn delete(queue: &'static str) -> Request {
    Request::QueueDelete { queue: bytes(queue), if_unused: false, if_empty: false }
}

fn get_from(queue: &'static str) -> Request {
    Request::Get { queue: bytes(queue), no_ack: false }
}

fn purge(queue: &'static str) -> Request {
    Request::QueuePurge { queue: bytes(queue) }
}

fn bind(queue: &'static str) -> Request {
    let (exchange, routing_key) = (bytes("amq.direct"), bytes("k"));
    Request::QueueBind { queue: bytes(queue), exchange, routing_key, arguments: Table::new() }
}

fn unbind(queue: &'static str) -> Request {
    let (exchange, routing_key) = (bytes("amq.direct"), bytes("k"));
    Request::QueueUnbind { queue: bytes(queue), exchange, routing_key, arguments: Table::new() }
}

fn exchange(name: &'static str, passive: bool) -> Request {
    Request::ExchangeDeclare {
        exchange: bytes(name),
        kind: bytes("direct"),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::new(),
        passive,
    }
}

/// What changes nothing, with what it is answered where queue `q` is all there is.
fn changing_nothing() -> Vec<(Request, &'static [&'static str])> {
    let gone = Request::ExchangeDelete { exchange: bytes("gone"), if_unused: false };
    vec![
        (declare("q"), &["p1 <- stat", "1: queue.declare-ok q 5 2"]),
        (passive("q"), &["p1 <- stat", "1: queue.declare-ok q 5 2"]),
        (passive("gone"), &["1: error 404 no queue 'gone' in vhost '/'"]),
        (delete("gone"), &["1: queue.delete-ok 0"]),
        (bind("gone"), &["1: error 404 no queue 'gone' in vhost '/'"]),
        (get_from("gone"), &["1: error 404 no queue 'gone' in vhost '/'"]),
        (purge("gone"), &["1: error 404 no queue 'gone' in vhost '/'"]),
        (consume("gone", false), &["1: error 404 no queue 'gone' in vhost '/'"]),
        (unbind("q"), &["1: ok"]),
        (exchange("amq.direct", false), &["1: ok"]),
        (exchange("amq.direct", true), &["1: ok"]),
        (exchange("gone", true), &["1: error 404 no exchange 'gone' in vhost '/'"]),
        (gone, &["1: ok"]),
    ]
}

#[test]
fn what_changes_nothing_is_answered_once_the_node_knows_all() {
    for (request, answer) in changing_nothing() {
        let mut script = among_others();
        script.ask(1, request.clone());
        assert_eq!(script.said(), ["topology <- catch up"], "{request:?}");
        script.catch_up();
        if answer.len() == 2 {
            script.answer(Reply::Stat { ready: 5, unacked: 1, consumers: 2 });
        }
        assert_eq!(script.said(), answer, "{request:?}");
    }
}

#[test]
fn what_changes_nothing_is_refused_where_no_majority_says_so() {
    for (request, _) in changing_nothing() {
        let mut script = among_others();
        script.ask(1, request.clone());
        script.lose_log();
        let refused = "1: error 541 no majority of the nodes could be asked what there is: does one run?";
        assert_eq!(script.said(), ["topology <- catch up", refused], "{request:?}");
    }
}

#[test]
fn a_request_is_looked_at_anew_once_the_node_knows_all() {
    let mut script = among_others();
    script.ask(1, declare("q"));
    script.lose_queue("q");
    script.catch_up();
    assert_eq!(script.said(), ["topology <- catch up", "topology <- DeclareQueue"]);
    script.decide();
    assert_eq!(script.said(), ["1: queue.declare-ok q 0 0"]);
}

#[test]
fn what_the_log_decides_needs_no_look_and_neither_does_a_node_that_is_alone() {
    let mut script = among_others();
    script.ask(1, declare("new"));
    assert_eq!(script.said(), ["topology <- DeclareQueue"]);
    script.decide();
    assert_eq!(script.said(), ["1: queue.declare-ok new 0 0"]);
    script.ask(1, bind("q"));
    assert_eq!(script.said(), ["topology <- Bind"]);
    let mut script = Script::begun();
    script.ask(1, unbind("q"));
    assert_eq!(script.said(), ["1: ok"]);
}

#[test]
fn one_look_serves_all_that_the_client_had_said_by_then_and_nothing_later() {
    let mut script = among_others();
    script.ask(1, unbind("q"));
    script.catch_up();
    script.ask_too(1, delete("gone"));
    script.ask_too(1, exchange("amq.direct", true));
    assert_eq!(script.said(), ["topology <- catch up", "1: ok", "1: queue.delete-ok 0", "1: ok"]);
    script.ask(1, unbind("q"));
    assert_eq!(script.said(), ["topology <- catch up"]);
}

#[test]
fn a_delete_of_what_is_gone_elsewhere_already_is_looked_at_anew() {
    // Somebody deleted the queue that this node knows, and may have declared another one since.
    let mut script = among_others();
    script.ask(1, delete("q"));
    let asked = script.said();
    script.answer(Reply::Gone);
    assert_eq!(script.said(), ["topology <- catch up"], "after {asked:?}");
    script.catch_up();
    assert_eq!(script.said(), asked, "it is another one, and is asked for as the first one was");
    script.answer(Reply::Counted(3));
    assert_eq!(script.said(), ["1: queue.delete-ok 3"]);
    // There is none any more. One that goes behind that look goes for good.
    let mut script = among_others();
    script.ask(1, delete("q"));
    script.answer(Reply::Gone);
    script.lose_queue("q");
    script.catch_up();
    assert_eq!(script.said(), [asked[0].as_str(), "topology <- catch up", "1: queue.delete-ok 0"]);
    let mut script = among_others();
    script.ask(1, delete("q"));
    script.answer(Reply::Gone);
    script.catch_up();
    script.answer(Reply::Gone);
    assert_eq!(script.said(), [&asked[0], "topology <- catch up", &asked[0], "1: queue.delete-ok 0"]);
}

#[test]
fn a_queue_that_went_and_came_again_elsewhere_is_read_from_purged_and_consumed() {
    let requests = [
        (get(), Reply::Empty, "1: basic.get-empty"),
        (purge("q"), Reply::Counted(3), "1: queue.purge-ok 3"),
        (consume("q", true), Reply::Consuming, "1: basic.consume-ok c"),
    ];
    for (request, reply, answer) in requests {
        let mut script = among_others();
        script.ask(1, request.clone());
        let asked = script.said();
        script.answer(Reply::Gone);
        assert_eq!(script.said().last().map(String::as_str), Some("topology <- catch up"), "after {asked:?}");
        script.catch_up();
        assert_eq!(script.said().len(), asked.len(), "it is another one, and is asked for as the first one was");
        script.answer(reply);
        assert_eq!(script.said(), [answer]);
        // One that goes behind that look goes for good, and nothing is looked for twice.
        let mut script = among_others();
        script.ask(1, request);
        script.answer(Reply::Gone);
        script.catch_up();
        script.said();
        script.answer(Reply::Gone);
        assert_eq!(script.said().last().map(String::as_str), Some("1: error 404 no queue 'q' in vhost '/'"));
    }
}

#[test]
fn a_request_that_was_answered_is_not_repeated_for_one_about_replies() {
    let mut script = among_others();
    script.ask(1, declare("new"));
    script.decide();
    script.said();
    script.ask(1, passive("amq.rabbitmq.reply-to.none"));
    assert_eq!(script.said(), ["1: error 404 no queue 'amq.rabbitmq.reply-to.none' in vhost '/'"]);
}

#[test]
fn a_message_waits_until_the_node_knows_where_it_goes() {
    let mut script = among_others();
    script.node.known.set(TopologyKnown::NotYet);
    script.publish(1, "q", "a", 1);
    script.turn();
    assert_eq!(script.said(), [""; 0]);
    script.node.known.set(TopologyKnown::All);
    script.turn();
    assert_eq!(script.said(), ["p1 <- publish a #1"]);
    script.publish(1, "q", "b", 2);
    assert_eq!(script.said(), ["p1 <- publish b #2"]);
}

#[test]
fn a_commit_waits_likewise_and_so_does_what_it_settles() {
    let mut script = among_others();
    script.ask(1, Request::TxSelect);
    script.publish(1, "q", "a", 1);
    script.said();
    script.node.known.set(TopologyKnown::NotYet);
    script.ask(1, Request::TxCommit { settles: Vec::new() });
    script.turn();
    assert_eq!(script.said(), [""; 0]);
    script.node.known.set(TopologyKnown::All);
    script.turn();
    assert_eq!(script.said(), ["p1 <- publish a #1", "1: ok"]);
}

#[test]
fn what_a_commit_that_waits_settles_is_held_where_its_queue_gets_another_leader() {
    let mut script = among_others();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.deliver(1, 4, "held");
    script.ask(1, Request::TxSelect);
    script.publish(1, "q", "a", 1);
    script.node.known.set(TopologyKnown::NotYet);
    script.ask(1, Request::TxCommit { settles: vec![(Settlement::Ack, deliveries(1, 4))] });
    script.said();
    let channel = script.key(1);
    let consumer = ConsumerKey { channel, number: 1 };
    script.effect(channel, Effect::Cancelled { consumer, queue: QueueId(1) });
    script.pass(100);
    // The script's machine holds what it was given by its tag until a plain ack.
    assert_eq!(script.said(), ["p1 <- consume 1", "p1 <- hold 1 from 4 of 1", "p1 <- hold 1 from 1 of 1"]);
    script.node.known.set(TopologyKnown::All);
    script.turn();
    assert_eq!(script.said(), ["p1 <- publish a #1", "p1 <- ack 1 from 4 of 1", "1: ok"]);
}

#[test]
fn where_nobody_says_what_a_node_missed_messages_go_on_and_those_without_a_queue_are_refused() {
    let mut script = among_others();
    script.node.known.set(TopologyKnown::NotYet);
    script.publish(1, "gone", "a", 1);
    assert_eq!(script.said(), [""; 0]);
    script.node.known.set(TopologyKnown::Vain);
    script.turn();
    assert_eq!(script.said(), ["1: basic.nack 1"], "there may be such a queue");
    script.publish(1, "q", "b", 2);
    assert_eq!(script.said(), ["p1 <- publish b #2"]);
    script.node.known.set(TopologyKnown::All);
    script.publish(1, "gone", "c", 3);
    assert_eq!(script.said(), ["1: basic.ack 3"], "there is none");
}

#[test]
fn a_client_that_has_left_waits_for_nothing() {
    let mut script = among_others();
    script.node.known.set(TopologyKnown::NotYet);
    script.publish(1, "q", "a", 1);
    script.machine.is_finished = true;
    script.turn();
    assert_eq!(script.said(), ["p1 <- publish a #1"]);
}

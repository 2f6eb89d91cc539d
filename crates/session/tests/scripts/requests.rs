//! Requests, a channel-wide prefetch, direct reply-to, consumers that hold a message for too long,
//! and channels that are gone.

use crate::script::{Script, consume, copied_to, declare, delete, get};
use amqp::{Delivered, Event, Properties, Request, Table};
use broker::ConsumerKey;
use bytes::Bytes;
use partition::{Effect, Reply};

fn reply_to(name: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    Properties { reply_to: Some(name), ..Properties::default() }.encode_to(&mut encoded);
    encoded
}

#[test]
fn a_queue_is_declared_once_it_was_decided_and_counted_if_it_was_there() {
    let mut script = Script::begun();
    script.ask(1, declare("new"));
    assert_eq!(script.said(), ["topology <- DeclareQueue"]);
    script.decide();
    assert_eq!(script.said(), ["1: queue.declare-ok new 0 0"]);
    script.ask(1, declare("q"));
    script.answer(Reply::Stat { ready: 5, unacked: 1, consumers: 2 });
    assert_eq!(script.said(), ["p1 <- stat", "1: queue.declare-ok q 5 2"]);
}

#[test]
fn a_queue_that_goes_while_it_is_declared_is_declared_anew_once_its_end_is_decided() {
    let mut script = Script::begun();
    script.ask(1, declare("q"));
    // As one does that expires: its partition has deleted it, and the topology has not heard of that yet.
    script.answer(Reply::Gone);
    script.pass(100);
    script.answer(Reply::Gone);
    assert_eq!(script.said(), ["p1 <- stat", "p1 <- stat"]);
    script.lose_queue("q");
    script.pass(100);
    assert_eq!(script.said(), ["topology <- DeclareQueue"]);
    script.decide();
    assert_eq!(script.said(), ["1: queue.declare-ok q 0 0"]);

    let mut script = Script::begun();
    script.ask(1, declare("q"));
    script.lose_queue("q");
    script.answer(Reply::Gone);
    assert_eq!(script.said(), ["p1 <- stat", "topology <- DeclareQueue"]);
    script.decide();
    assert_eq!(script.said(), ["1: queue.declare-ok q 0 0"]);
}

#[test]
fn a_channel_that_failed_or_ended_takes_no_late_answer() {
    let mut script = Script::begun();
    script.ask(1, get());
    let (late, key) = (script.question(), script.key(1));
    script.close(1);
    assert_eq!(script.said(), ["p1 <- get", "p1 <- detach"]);
    // The same number, and another channel, whose second request has the number of the late answer.
    script.open(1);
    script.ask(1, declare("new"));
    script.decide();
    script.said();
    script.ask(1, get());
    script.answer_to(late, Reply::Empty);
    script.effect(
        key,
        Effect::Cancelled { consumer: ConsumerKey { channel: key, number: 1 }, queue: broker::QueueId(1) },
    );
    assert_eq!(script.said(), ["p1 <- get"], "what was asked by the channel before is nobody's");
    script.answer(Reply::Empty);
    assert_eq!(script.said(), ["1: basic.get-empty"]);
    script.ask(1, consume("nowhere", false));
    assert_eq!(script.said(), ["1: error 404 no queue 'nowhere' in vhost '/'"]);
    script.publish(1, "q", "behind the error", 0);
    assert_eq!(script.said(), [""; 0]);
}

#[test]
fn a_prefetch_of_the_channel_is_granted_to_who_asks_and_again_with_each_ack() {
    let mut script = Script::begun();
    script.ask(1, Request::Qos { prefetch_count: 2, global: true });
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.said();
    let consumer = ConsumerKey { channel: script.key(1), number: 1 };
    script.effect(consumer.channel, Effect::GrantWanted { consumer, queue: broker::QueueId(1), ready: 10 });
    assert_eq!(script.said(), ["p1 <- grant 1 2"]);
    script.deliver(1, 1, "a");
    script.deliver(1, 2, "b");
    script.effect(consumer.channel, Effect::GrantWanted { consumer, queue: broker::QueueId(1), ready: 8 });
    // Nothing is left to grant, and others of the queue need not wait for this one's turn.
    assert_eq!(script.said(), ["1: basic.deliver c a", "1: basic.deliver c b", "p1 <- grant 1 0"]);
    script.ack(1, 1, 1);
    assert_eq!(script.said(), ["p1 <- ack 1 from 1 of 1", "p1 <- grant 1 1"]);
}

#[test]
fn a_request_that_wants_its_answer_over_its_own_channel_carries_a_name_that_leads_there() {
    let mut script = Script::begun();
    script.ask(1, consume("amq.rabbitmq.reply-to", true));
    script.answer(Reply::Consuming);
    assert_eq!(script.said(), ["p9 <- limit replies", "p9 <- consume 1", "1: basic.consume-ok c"]);
    script.publish_with(1, "q", "question", 0, &reply_to(b"amq.rabbitmq.reply-to"));
    let name = format!("amq.rabbitmq.reply-to.{}", "A".repeat(22));
    assert_eq!(script.said(), [format!("p1 <- publish question #0 reply to {name}")]);
    script.open(2);
    script.publish(2, &name, "answer", 0);
    assert_eq!(script.said(), ["p9 <- publish answer #0"]);
    script.publish_with(2, "q", "question", 0, &reply_to(b"amq.rabbitmq.reply-to"));
    assert_eq!(script.said(), ["2: error 406 fast reply consumer does not exist"]);
}

#[test]
fn a_consumer_that_holds_a_message_for_too_long_is_cancelled_and_gives_all_back() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.deliver(1, 1, "kept");
    script.said();
    script.pass(7_900);
    assert_eq!(script.said(), [""; 0]);
    script.pass(2_200);
    assert_eq!(script.said(), ["p1 <- cancel 1", "p1 <- nack all from 0 of 1", "1: basic.cancel c"]);
    // What the client acks after that was given back already.
    script.ack(1, 1, 1);
    script.answer(Reply::Done);
    assert_eq!(script.said(), [""; 0]);
}

#[test]
fn a_client_that_knows_no_cancel_loses_the_channel_of_such_a_consumer() {
    let mut script = Script::begun();
    script.machine.knows_cancel = false;
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.deliver(1, 1, "kept");
    script.said();
    script.pass(10_100);
    let said = script.said();
    assert!(
        said.len() == 1 && said[0].starts_with("1: error 406 delivery acknowledgement on channel 1 timed out"),
        "{said:?}"
    );
}

#[test]
fn a_publish_to_two_partitions_is_confirmed_by_the_second_and_nacked_if_one_refuses() {
    let mut script = Script::begun();
    script.ask(1, consume("amq.rabbitmq.reply-to", true));
    script.answer(Reply::Consuming);
    script.said();
    let both = copied_to(&format!("amq.rabbitmq.reply-to.{}", "A".repeat(22)));
    script.publish_with(1, "q", "a", 1, &both);
    script.publish_with(1, "q", "b", 2, &both);
    assert_eq!(script.said().len(), 4);
    let channel = script.key(1);
    script.effect(channel, Effect::Confirm { channel, first: 1, count: 1 });
    script.effect(channel, Effect::Refuse { channel, first: 2, count: 1 });
    assert_eq!(script.said(), [""; 0]);
    script.effect(channel, Effect::Confirm { channel, first: 1, count: 2 });
    assert_eq!(script.said(), ["1: basic.ack 1", "1: basic.nack 2"]);
}

#[test]
fn messages_that_came_as_one_go_as_one_where_nothing_is_to_be_looked_at_in_each() {
    let mut script = Script::begun();
    script.publish_run(1, "q", &["a", "b"], 1, &[0, 0]);
    assert_eq!(script.said(), ["p1 <- publish a #1", "p1 <- publish b #2"], "nobody knows the way yet");
    assert_eq!(script.machine.times_left, 1, "the second was an event of its own");
    script.publish_run(1, "q", &["c", "d", "e"], 3, &[0, 0]);
    assert_eq!(script.said(), ["p1 <- publish c d e #3"]);
    assert_eq!((script.node.messages.get(), script.node.sizes.get()), (5, 5), "messages and bytes that were counted");
    let channel = script.key(1);
    script.effect(channel, Effect::Confirm { channel, first: 1, count: 4 });
    assert_eq!(script.said(), [1, 2, 3, 4].map(|seq| format!("1: basic.ack {seq}")));
    // A header may ask for anything.
    let correlated = copied_to("q");
    script.publish_run(1, "q", &["f", "g"], 6, &correlated);
    assert_eq!(script.said(), ["p1 <- publish f #6", "p1 <- publish g #7"]);
    script.publish_run(1, "nowhere", &["h", "i"], 8, &[0, 0]);
    let said = script.said();
    assert_eq!(said.iter().filter(|line| line.contains("return")).count(), 2, "{said:?}");
    assert_eq!(script.machine.times_left, 3, "a turn may end behind each of them");
}

#[test]
fn of_messages_that_came_as_one_the_first_that_is_wrong_ends_the_channel_once() {
    let mut script = Script::begun();
    let too_late = [&[1_u8, 0, 3][..], b"abc"].concat();
    script.publish_run(1, "q", &["a", "b", "c"], 1, &too_late);
    let said = script.said();
    assert!(said.len() == 1 && said[0].starts_with("1: error 406"), "{said:?}");
}

#[test]
fn a_consumer_whose_queue_is_deleted_hears_of_it_and_one_that_was_not_there_yet_hears_404() {
    let mut script = Script::begun();
    script.ask(1, consume("q", false));
    script.answer(Reply::Consuming);
    script.said();
    let (channel, queue) = (script.key(1), broker::QueueId(1));
    script.lose_queue("q");
    script.effect(channel, Effect::Cancelled { consumer: ConsumerKey { channel, number: 1 }, queue });
    assert_eq!(script.said(), ["1: basic.cancel c"]);
    let mut script = Script::begun();
    let channel = script.key(1);
    script.ask(1, consume("q", false));
    script.effect(channel, Effect::Cancelled { consumer: ConsumerKey { channel, number: 1 }, queue });
    assert_eq!(script.said(), ["p1 <- consume 1"], "it is about to be told that the beginning failed");
    script.answer(Reply::Gone);
    assert_eq!(script.said(), ["1: error 404 no queue 'q' in vhost '/'"]);
}

/// As in RabbitMQ, also where another node leads the queue.
#[test]
fn who_deletes_a_queue_is_answered_and_then_hears_of_its_own_consumers_of_it() {
    for (reply, leader_speaks_first) in [(1, true), (1, false), (0, true), (0, false)] {
        let reply = if reply > 0 { Reply::Counted(reply) } else { Reply::Gone };
        let mut script = Script::begun();
        script.ask(1, consume("q", false));
        script.answer(Reply::Consuming);
        script.deliver(1, 1, "held");
        let (channel, queue) = (script.key(1), broker::QueueId(1));
        let cancelled = || Effect::Cancelled { consumer: ConsumerKey { channel, number: 1 }, queue };
        script.ask(1, delete(false));
        script.said();
        script.lose_queue("q");
        if leader_speaks_first {
            script.effect(channel, cancelled());
            assert_eq!(script.said(), [""; 0]);
        }
        script.answer(reply);
        if !leader_speaks_first {
            script.effect(channel, cancelled());
        }
        let said = script.said();
        assert!(said.len() == 2 && said[0].starts_with("1: queue.delete-ok"), "{said:?}");
        assert_eq!(said[1], "1: basic.cancel c");
    }
}

#[test]
fn a_change_that_nobody_decides_any_more_is_not_left_without_an_answer() {
    let mut script = Script::begun();
    script.ask(1, declare("new"));
    script.lose_log();
    let said = script.said();
    assert!(said.len() == 2 && said[1].starts_with("1: error 5"), "{said:?}");
}

#[test]
fn what_is_declared_while_others_took_the_node_for_gone_is_declared_once_it_knows() {
    let (durable, exclusive, auto_delete, passive, arguments) = (false, true, false, false, Table::new());
    let queue = Bytes::from_static(b"mine");
    let declare = Request::QueueDeclare { queue, durable, exclusive, auto_delete, arguments, passive };
    let (consumer_tag, arguments) = (amqp::ConsumerTag::new(Bytes::from_static(b"replies")), Table::new());
    let queue = Bytes::from_static(b"amq.rabbitmq.reply-to");
    let (no_local, no_ack, exclusive) = (false, true, false);
    let replies = Request::Consume { queue, consumer_tag, no_local, no_ack, exclusive, arguments };
    for request in [declare, replies] {
        let mut script = Script::begun();
        script.among_others();
        script.ask(1, request);
        script.end_own_home();
        script.decide();
        assert_eq!(script.said(), ["topology <- DeclareQueue"; 2], "it is asked for again, and nobody is refused");
        assert_eq!(script.owned_queues(), 0, "of the era that has ended nothing is made");
        script.decide();
        let said = script.said();
        assert!(!said.is_empty() && !said.iter().any(|said| said.contains("error")), "{said:?}");
        assert_eq!(script.owned_queues(), 1, "{said:?}");
    }
}

#[test]
fn a_client_that_closes_hears_of_it_once_its_exclusive_queues_are_gone_on_all_nodes() {
    let bye = || Event::Closed(amqp::Closed::ByClient { code: 200, text: Bytes::new() });
    let exclusive = |name: &'static str| Request::QueueDeclare {
        queue: Bytes::from_static(name.as_bytes()),
        durable: false,
        exclusive: true,
        auto_delete: false,
        arguments: Table::new(),
        passive: false,
    };
    let owner = || {
        let mut script = Script::begun();
        script.among_others();
        for name in ["mine", "mine too"] {
            script.ask(1, exclusive(name));
            script.decide();
        }
        script.close(1);
        script.said();
        script
    };
    let asked = "p9 <- delete if unused false if empty false";
    let mut script = owner();
    script.event(bye());
    assert_eq!(script.said(), [asked, asked]);
    let second = script.question();
    script.answer_to(second, Reply::Counted(0));
    assert_eq!(script.said(), [""; 0], "one of the two is known to others still");
    script.answer_to(second, Reply::Counted(0));
    assert_eq!(script.said(), ["connection.close-ok"]);

    // Who just hangs up hears nothing, and its queues go all the same.
    let mut script = owner();
    script.event(Event::Closed(amqp::Closed::Disconnected));
    assert_eq!(script.said(), [asked, asked]);

    // Who has none has its answer at once.
    let mut script = Script::begun();
    script.close(1);
    script.said();
    script.event(bye());
    assert_eq!(script.said(), ["connection.close-ok"]);
}

#[test]
fn many_exclusive_queues_go_a_part_in_each_turn_and_stay_locked_until_then() {
    let bye = || Event::Closed(amqp::Closed::ByClient { code: 200, text: Bytes::new() });
    let owner = |is_among_others: bool| {
        let mut script = Script::begun();
        if is_among_others {
            script.among_others();
        }
        for number in 0..600 {
            let (queue, arguments) = (Bytes::from(format!("mine {number}")), Table::new());
            let (durable, exclusive, auto_delete, passive) = (false, true, false, false);
            script.ask(1, Request::QueueDeclare { queue, durable, exclusive, auto_delete, arguments, passive });
            if is_among_others {
                script.decide();
            }
        }
        script.close(1);
        script.said();
        script
    };
    let mut script = owner(false);
    assert_eq!(script.owned_queues(), 600);
    script.event(bye());
    assert_eq!((script.owned_queues(), script.said()), (344, vec![]));
    assert!(script.session.is_in_the_middle());
    script.turn();
    assert_eq!((script.owned_queues(), script.said()), (88, vec![]));
    script.turn();
    assert_eq!((script.owned_queues(), script.said()), (0, vec!["connection.close-ok".to_owned()]));
    assert!(!script.session.is_in_the_middle());

    // Those that others know are asked for in parts too, and the answer waits for all of them.
    let mut script = owner(true);
    script.event(bye());
    assert_eq!(script.said().len(), 256);
    let question = script.question();
    (0..256).for_each(|_| script.answer_to(question, Reply::Counted(0)));
    let asked = script.said().len();
    script.turn();
    script.turn();
    assert_eq!(asked + script.said().len(), 344);
    assert!(!script.session.is_in_the_middle());
    (0..343).for_each(|_| script.answer_to(question, Reply::Counted(0)));
    assert_eq!(script.said(), [""; 0]);
    script.answer_to(question, Reply::Counted(0));
    assert_eq!(script.said(), ["connection.close-ok"]);
}

#[test]
fn a_connection_with_thousands_of_channels_ends_a_thousand_a_turn() {
    const CHANNELS: u16 = 3_000;
    let mut script = Script::begun();
    (2..=CHANNELS).for_each(|number| script.open(number));
    script.said();
    let ends = (1..=CHANNELS).rev().collect::<Vec<_>>();
    let mut left = &ends[..];
    let mut turns = Vec::new();
    while !left.is_empty() {
        let ended = script.close_in_one_turn(left);
        turns.push(ended);
        left = &left[ended..];
    }
    // The first one has a partition to tell.
    assert_eq!(turns, [1024, 1024, 952]);
    script.event(Event::Closed(amqp::Closed::ByClient { code: 200, text: Bytes::new() }));
    assert_eq!(script.said().last().map(String::as_str), Some("connection.close-ok"));
}

#[test]
fn what_is_said_of_many_scattered_messages_goes_on_a_part_in_each_turn_before_the_next_event() {
    const SCATTERED: u64 = 40_000;
    let scattered = || -> amqp::Deliveries {
        (0..SCATTERED).map(|at| Delivered { consumer: 1, first_seq: 1 + 2 * at, count: 1 }).collect()
    };
    let holder = || {
        let mut script = Script::begun();
        script.ask(1, consume("q", false));
        script.answer(Reply::Consuming);
        (0..SCATTERED).for_each(|at| script.deliver(1, 1 + 2 * at, "held"));
        script.said();
        script
    };
    // Turns of 16,384 runs: the third takes the rest.
    let parts = |script: &mut Script| {
        let first = script.said();
        assert!(script.session.is_in_the_middle() && script.session.ends_turn());
        script.turn();
        let second = script.said();
        assert!(script.session.is_in_the_middle() && script.session.ends_turn());
        script.turn();
        let third = script.said();
        assert!(!script.session.is_in_the_middle() && !script.session.ends_turn());
        (first, second, third)
    };
    let mut script = holder();
    let channel = script.channel(1);
    let outcome = amqp::Settlement::Nack { requeue: true };
    script.event(Event::Settle(amqp::Settle { channel, outcome, deliveries: scattered() }));
    let (first, second, third) = parts(&mut script);
    assert_eq!((first.len(), second.len(), third.len()), (16_384, 16_384, 7_232));
    assert_eq!((first[0].as_str(), first[1].as_str()), ("p1 <- nack 1 from 1 of 1", "p1 <- nack 1 from 3 of 1"));
    assert_eq!(
        (second[0].as_str(), third[7_231].as_str()),
        ("p1 <- nack 1 from 32769 of 1", "p1 <- nack 1 from 79999 of 1")
    );

    // The queue goes between two turns: what is left is told all the same, as an ack after a delete is.
    let mut script = holder();
    let channel = script.channel(1);
    script.event(Event::Settle(amqp::Settle { channel, outcome, deliveries: scattered() }));
    script.lose_queue("q");
    let key = script.key(1);
    let consumer = ConsumerKey { channel: key, number: 1 };
    script.effect(key, Effect::Cancelled { consumer, queue: broker::QueueId(1) });
    script.said();
    script.turn();
    script.turn();
    assert!(script.said().last().is_some_and(|last| last.contains("79999")));
    assert!(!script.session.is_in_the_middle());

    // A recover is answered after the last of them.
    let mut script = holder();
    script.ask(1, Request::Recover { unsettled: scattered() });
    let (first, second, third) = parts(&mut script);
    assert_eq!((first.len(), second.len(), third.len()), (16_384, 16_384, 7_233));
    assert_eq!(third[7_232], "1: ok");
}

//! Transient queues against a model that keeps every message for ever and knows what became of it.
#![allow(clippy::unwrap_used)]

use broker::queue::{Consumer, DeadLetterRule, Overflow, Rules, SingleActive};
use broker::{ChannelKey, ConsumerKey, QueueId};
use bytes::Bytes;
use partition::command::{Durability, Target};
use partition::message::MessageView;
use partition::{
    Command, Delivery, Disposition, Effect, Level, Message, Outlets, Publish, Reply, RequestId, TransientQueues,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const A: ChannelKey = ChannelKey(11);
const B: ChannelKey = ChannelKey(12);
const Q: QueueId = QueueId(1);

/// Room without end.
struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

/// Room of so many bytes in all.
struct Room(usize);
impl Outlets for Room {
    fn room(&mut self, _: ConsumerKey) -> usize {
        std::mem::take(&mut self.0)
    }
}

fn message(body: Vec<u8>) -> Message {
    Message {
        exchange: Bytes::from_static(b"x"),
        routing_key: Bytes::from_static(b"key"),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from(body),
    }
}

fn publish(channel: ChannelKey, publish_seq: u64, queues: &[QueueId], body: Vec<u8>) -> Command {
    let target = |q: &QueueId| Target { queue: *q, durability: Durability::Level(Level::Written), selective: None };
    Command::Publish(Publish {
        channel,
        publish_seq,
        term: 0,
        targets: queues.iter().map(target).collect(),
        delay_ms: 0,
        message: message(body),
        more: None,
    })
}

fn consumer(channel: ChannelKey, number: u32, prefetch: u32) -> Consumer {
    let key = ConsumerKey { channel, number };
    Consumer { key, prefetch, no_ack: false, exclusive: false, priority: 0, granted_only: false }
}

fn run(queues: &mut TransientQueues, mut commands: Vec<Command>) -> Vec<Effect> {
    let mut effects = Vec::new();
    queues.step(1, &mut commands, &mut effects, &mut Open);
    assert!(commands.is_empty());
    effects
}

fn body(delivery: &Delivery) -> Vec<u8> {
    MessageView::parse(&delivery.message).unwrap().body().to_vec()
}

fn deliveries(effects: &[Effect]) -> Vec<(u64, bool)> {
    let of = |e: &Effect| match e {
        Effect::Deliver(d) => Some((d.seq, d.redelivered)),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

#[test]
fn confirms_of_one_batch_are_one_effect_and_come_before_the_deliveries() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let mut commands =
        vec![Command::Consume { again: false, queue: Q, consumer: consumer(B, 1, 0), request: RequestId(1) }];
    commands.extend((1..=3).map(|n| publish(A, n, &[Q], vec![n as u8])));
    let effects = run(&mut queues, commands);
    assert_eq!(effects[0], Effect::Reply { channel: B, request: RequestId(1), reply: Reply::Consuming });
    assert_eq!(effects[1], Effect::Confirm { channel: A, first: 1, count: 3 });
    assert_eq!(deliveries(&effects[2..]), [(1, false), (2, false), (3, false)]);
}

#[test]
fn the_active_consumer_is_told_of() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let rules = Rules { single_active: Some(SingleActive { preempts: false }), ..Rules::default() };
    let mut commands = vec![Command::Configure { queue: Q, rules: rules.into() }];
    let consume =
        |channel| Command::Consume { again: false, queue: Q, consumer: consumer(channel, 1, 0), request: RequestId(1) };
    commands.extend([consume(B), consume(A)]);
    run(&mut queues, commands);
    let told = |queues: &TransientQueues| {
        let mut figures = Vec::new();
        queues.survey(&mut figures);
        figures.iter().map(|figures| (figures.consumers, figures.active)).collect::<Vec<_>>()
    };
    assert_eq!(told(&queues), [(2, Some(ConsumerKey { channel: B, number: 1 }))]);
    run(&mut queues, vec![Command::Detach { channel: B }]);
    assert_eq!(told(&queues), [(1, Some(ConsumerKey { channel: A, number: 1 }))]);
}

#[test]
fn a_publish_to_a_missing_queue_is_confirmed_and_stored_nowhere() {
    let mut queues = TransientQueues::new();
    let effects = run(&mut queues, vec![publish(A, 1, &[QueueId(9)], vec![0; 10])]);
    assert_eq!(effects, [Effect::Confirm { channel: A, first: 1, count: 1 }]);
    assert_eq!(queues.bytes(), 0);
}

#[test]
fn a_queue_that_may_go_whatever_is_in_it_works_on_until_its_end_is_decided() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let close = Command::Close { queue: Q, if_unused: false, if_empty: false, channel: B, request: RequestId(1) };
    let get = Command::Get { queue: Q, channel: B, no_ack: true, request: RequestId(2) };
    let effects = run(&mut queues, vec![close, publish(A, 1, &[Q], vec![7]), get]);
    assert_eq!(effects[1], Effect::Confirm { channel: A, first: 1, count: 1 });
    assert!(matches!(effects[2], Effect::Reply { reply: Reply::Got { .. }, .. }), "what is confirmed is there");
}

#[test]
fn what_comes_while_a_delete_on_a_condition_is_decided_waits_for_the_decision() {
    for is_deleted in [false, true] {
        let mut queues = TransientQueues::new();
        queues.declare(Q);
        let request = RequestId;
        let close = Command::Close { queue: Q, if_unused: true, if_empty: true, channel: A, request: request(1) };
        let consume = Command::Consume { again: false, queue: Q, consumer: consumer(B, 1, 0), request: request(2) };
        let stat = Command::Stat { queue: Q, channel: A, request: request(3) };
        let effects = run(&mut queues, vec![close, publish(A, 1, &[Q], vec![7]), consume, stat]);
        assert_eq!(effects, [Effect::Reply { channel: A, request: request(1), reply: Reply::Counted(0) }]);
        let end = if is_deleted { Command::Delete { queue: Q } } else { Command::Reopen { queue: Q } };
        let effects = run(&mut queues, vec![end]);
        let reply = |channel, request, reply| Effect::Reply { channel, request, reply };
        let confirm = Effect::Confirm { channel: A, first: 1, count: 1 };
        match is_deleted {
            true => {
                let (stat, consume) = (reply(A, request(3), Reply::Gone), reply(B, request(2), Reply::Gone));
                assert_eq!(effects, [stat, consume, confirm]);
            }
            false => {
                assert_eq!(effects[..2], [confirm, reply(B, request(2), Reply::Consuming)]);
                assert_eq!(deliveries(&effects[2..3]), [(1, false)]);
                // Who consumes was there before who asked.
                let stat = Reply::Stat { ready: 0, unacked: 1, consumers: 1 };
                assert_eq!(effects[3..], [reply(A, request(3), stat)]);
            }
        }
    }
}

#[test]
fn who_goes_while_a_delete_is_decided_takes_his_questions_along() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let close = Command::Close { queue: Q, if_unused: false, if_empty: true, channel: A, request: RequestId(1) };
    let get = Command::Get { queue: Q, channel: B, no_ack: false, request: RequestId(2) };
    run(&mut queues, vec![close, publish(A, 1, &[Q], vec![7]), get, Command::Detach { channel: B }]);
    let stat = Command::Stat { queue: Q, channel: A, request: RequestId(3) };
    let effects = run(&mut queues, vec![Command::Reopen { queue: Q }, stat]);
    let stat = Reply::Stat { ready: 1, unacked: 0, consumers: 0 };
    assert_eq!(effects[1..], [Effect::Reply { channel: A, request: RequestId(3), reply: stat }], "nobody holds it");
}

#[test]
fn what_a_consumer_holds_that_comes_back_while_a_delete_is_decided_it_holds_afterwards() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = |request| {
        let (consumer, request) = (consumer(B, 1, 2), RequestId(request));
        Command::Consume { again: false, queue: Q, consumer, request }
    };
    let messages = [7, 8, 9].map(|body| publish(A, 0, &[Q], vec![body]));
    let effects = run(&mut queues, messages.into_iter().chain([consume(1)]).collect());
    let given: Vec<u64> = deliveries(&effects).into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(given.len(), 2);
    let close = Command::Close { queue: Q, if_unused: true, if_empty: false, channel: A, request: RequestId(2) };
    // Its link breaks and is there again.
    let key = ConsumerKey { channel: B, number: 1 };
    let hold = |seq: u64| Command::Hold { queue: Q, consumer: key, first: seq, count: 1 };
    let settle = |first| Command::Settle { queue: Q, holder: key, first, count: 1, outcome: Disposition::Ack };
    run(&mut queues, vec![Command::Part { channel: B }, close, consume(3), hold(given[0]), hold(given[1])]);
    let stat = Command::Stat { queue: Q, channel: A, request: RequestId(4) };
    let effects = run(&mut queues, vec![Command::Reopen { queue: Q }, stat.clone()]);
    assert_eq!(deliveries(&effects), [], "it holds as many as it may");
    let counts = |ready, unacked| Effect::Reply {
        channel: A,
        request: RequestId(4),
        reply: Reply::Stat { ready, unacked, consumers: 1 },
    };
    assert_eq!(effects.last(), Some(&counts(1, 2)));
    let effects = run(&mut queues, vec![settle(given[0]), settle(given[1]), stat]);
    assert_eq!(deliveries(&effects), [(given[1] + 1, false)], "each once");
    assert_eq!(effects.last(), Some(&counts(0, 1)));
}

#[test]
fn delete_conditions_name_messages_before_consumers() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = Command::Consume { again: false, queue: Q, consumer: consumer(A, 1, 1), request: RequestId(1) };
    run(&mut queues, vec![consume, publish(A, 0, &[Q], vec![1]), publish(A, 0, &[Q], vec![2])]);
    let close =
        |if_unused, if_empty| Command::Close { queue: Q, if_unused, if_empty, channel: A, request: RequestId(2) };
    let mut refused = |c| run(&mut queues, vec![c]).pop().unwrap();
    let reply = |in_use| Effect::Reply { channel: A, request: RequestId(2), reply: Reply::DeleteRefused { in_use } };
    assert_eq!(refused(close(true, true)), reply(false));
    assert_eq!(refused(close(true, false)), reply(true));
}

/// One that waits for its time.
fn publish_in(seq: u64, delay_ms: u64, body: Vec<u8>) -> Command {
    let Command::Publish(delayed) = publish(A, seq, &[Q], body) else { unreachable!("it is a publish") };
    Command::Publish(Publish { delay_ms, ..delayed })
}

/// A queue that has room for one message and refuses more; with `dead_letters` it dead-letters
/// them.
fn room_for_one(dead_letters: bool) -> TransientQueues {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let rule = DeadLetterRule { exchange: "dlx".into(), routing_key: None, at_least_once: false };
    let overflow = if dead_letters { Overflow::RejectPublishDlx } else { Overflow::RejectPublish };
    let rules = Rules { length_max: Some(1), overflow, dead_letter: Some(rule), ..Rules::default() };
    run(&mut queues, vec![Command::Configure { queue: Q, rules: rules.into() }]);
    queues
}

fn step_at(queues: &mut TransientQueues, now_ms: u64, mut commands: Vec<Command>) -> Vec<Effect> {
    let mut effects = Vec::new();
    queues.step(now_ms, &mut commands, &mut effects, &mut Open);
    effects
}

fn figures(queues: &TransientQueues) -> (u64, u64) {
    let mut figures = Vec::new();
    queues.survey(&mut figures);
    (figures[0].ready, figures[0].delayed)
}

#[test]
fn what_is_due_waits_for_room_in_its_order_as_its_publisher_was_told_that_it_is_safe() {
    let mut queues = room_for_one(false);
    let delayed = [publish_in(1, 10, vec![1]), publish_in(2, 10, vec![2]), publish_in(3, 20, vec![3])];
    let effects = run(&mut queues, delayed.into());
    assert_eq!(effects, [Effect::Confirm { channel: A, first: 1, count: 3 }]);
    assert_eq!(step_at(&mut queues, 100, vec![]), []);
    assert_eq!(figures(&queues), (1, 2));
    assert_eq!(queues.due_ms(), None, "nothing but room is waited for");
    let refused = step_at(&mut queues, 101, vec![publish(A, 4, &[Q], vec![4])]);
    assert_eq!(refused, [Effect::Refuse { channel: A, first: 4, count: 1 }]);
    for left in [1, 0] {
        let get = Command::Get { queue: Q, channel: B, no_ack: true, request: RequestId(1) };
        let effects = step_at(&mut queues, 102, vec![get]);
        let Effect::Reply { reply: Reply::Got { delivery, .. }, .. } = &effects[0] else { panic!("{effects:?}") };
        assert_eq!(body(delivery), [2 - left as u8]);
        assert_eq!(figures(&queues), (1, left));
    }
    // A consumer takes what is there and all that waited.
    step_at(&mut queues, 103, vec![publish_in(5, 10, vec![5])]);
    assert_eq!(step_at(&mut queues, 200, vec![]), []);
    let consume = Command::Consume { again: false, queue: Q, consumer: consumer(B, 1, 0), request: RequestId(2) };
    let effects = step_at(&mut queues, 201, vec![consume]);
    let bodies = effects.iter().filter_map(|e| if let Effect::Deliver(d) = e { Some(body(d)) } else { None });
    assert_eq!(bodies.collect::<Vec<_>>(), [vec![3], vec![5]]);
}

#[test]
fn what_waits_for_room_goes_with_its_queue_and_its_bytes_with_it() {
    let mut queues = room_for_one(false);
    run(&mut queues, vec![publish(A, 1, &[Q], vec![1]), publish_in(2, 10, vec![0; 1_000])]);
    step_at(&mut queues, 100, vec![]);
    assert!(queues.bytes() > 1_000);
    step_at(&mut queues, 101, vec![Command::Delete { queue: Q }]);
    assert_eq!(queues.bytes(), 0);
    assert_eq!(step_at(&mut queues, 200, vec![]), []);
}

#[test]
fn what_waits_for_its_time_goes_with_its_queue_and_its_bytes_with_it() {
    let mut queues = TransientQueues::new();
    let other = QueueId(2);
    [Q, other].iter().for_each(|queue| queues.declare(*queue));
    let delayed = |seq, delay_ms, queue| {
        let publish = publish(A, seq, &[queue], vec![seq as u8; 1_000]);
        let Command::Publish(publish) = publish else { unreachable!("it is a publish") };
        Command::Publish(Publish { delay_ms, ..publish })
    };
    run(&mut queues, vec![delayed(1, 500, other), delayed(2, 900, Q), delayed(3, 300, Q), delayed(4, 500, other)]);
    let all = queues.bytes();
    assert_eq!(queues.due_ms(), Some(301), "the first of all is waited for");
    step_at(&mut queues, 2, vec![Command::Delete { queue: Q }]);
    assert_eq!((queues.bytes(), queues.due_ms()), (all / 2, Some(501)), "nothing of it is left");
    let consume = Command::Consume { again: false, queue: other, consumer: consumer(B, 1, 0), request: RequestId(1) };
    step_at(&mut queues, 3, vec![consume]);
    let bodies = step_at(&mut queues, 501, vec![]).into_iter().filter_map(|effect| match effect {
        Effect::Deliver(delivery) => Some(body(&delivery)[0]),
        _ => None,
    });
    assert_eq!(bodies.collect::<Vec<_>>(), [1, 4], "what waits for others comes in its order");
    assert_eq!(queues.due_ms(), None);
}

#[test]
fn what_is_due_and_too_much_is_dead_lettered_where_refused_messages_are() {
    let mut queues = room_for_one(true);
    run(&mut queues, vec![publish(A, 1, &[Q], vec![1]), publish_in(2, 10, vec![2])]);
    let effects = step_at(&mut queues, 100, vec![]);
    assert!(matches!(effects[..], [Effect::DeadLetter(_)]), "{effects:?}");
    assert_eq!(figures(&queues), (1, 0));
}

#[test]
fn one_that_is_to_wait_and_comes_while_a_delete_is_decided_is_confirmed_when_that_is_known() {
    for is_deleted in [false, true] {
        let mut queues = TransientQueues::new();
        queues.declare(Q);
        let close = Command::Close { queue: Q, if_unused: false, if_empty: true, channel: B, request: RequestId(1) };
        let effects = run(&mut queues, vec![close, publish_in(1, 10, vec![1])]);
        assert_eq!(effects, [Effect::Reply { channel: B, request: RequestId(1), reply: Reply::Counted(0) }]);
        let end = if is_deleted { Command::Delete { queue: Q } } else { Command::Reopen { queue: Q } };
        assert_eq!(run(&mut queues, vec![end]), [Effect::Confirm { channel: A, first: 1, count: 1 }]);
        step_at(&mut queues, 100, vec![]);
        if !is_deleted {
            assert_eq!(figures(&queues), (1, 0));
        }
    }
}

#[test]
fn a_queue_whose_messages_wait_for_their_time_is_not_empty() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    run(&mut queues, vec![publish_in(0, 5_000, vec![1])]);
    let mut figures = Vec::new();
    queues.survey(&mut figures);
    assert_eq!((figures[0].ready, figures[0].delayed), (0, 1));
    let close = Command::Close { queue: Q, if_unused: false, if_empty: true, channel: A, request: RequestId(2) };
    let reply = Reply::DeleteRefused { in_use: false };
    assert_eq!(run(&mut queues, vec![close]), [Effect::Reply { channel: A, request: RequestId(2), reply }]);
}

#[test]
fn deleting_a_queue_cancels_its_consumers_and_frees_its_bytes() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = |n| Command::Consume { again: false, queue: Q, consumer: consumer(A, n, 1), request: RequestId(1) };
    run(&mut queues, vec![consume(2), consume(1), publish(A, 0, &[Q], vec![1; 1000])]);
    let effects = run(&mut queues, vec![Command::Delete { queue: Q }]);
    let gone = |number| Effect::Cancelled { consumer: ConsumerKey { channel: A, number }, queue: Q };
    assert_eq!(effects, [gone(1), gone(2)]);
    assert_eq!(queues.bytes(), 0);
    let settle = Command::Settle {
        queue: Q,
        holder: ConsumerKey { channel: A, number: 1 },
        first: 1,
        count: 1,
        outcome: Disposition::Ack,
    };
    assert_eq!(run(&mut queues, vec![settle, Command::Detach { channel: A }]), []);
}

#[test]
fn a_consumer_that_comes_back_holds_what_its_client_has_and_gets_no_more_than_its_prefetch() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = || Command::Consume { again: false, queue: Q, consumer: consumer(A, 1, 2), request: RequestId(1) };
    let publishes = (1..=3).map(|n| publish(B, 0, &[Q], vec![n]));
    let effects = run(&mut queues, std::iter::once(consume()).chain(publishes).collect());
    assert_eq!(deliveries(&effects), [(1, false), (2, false)]);
    run(&mut queues, vec![Command::Detach { channel: A }]);
    let key = ConsumerKey { channel: A, number: 1 };
    let hold = Command::Hold { queue: Q, consumer: key, first: 1, count: 2 };
    assert_eq!(deliveries(&run(&mut queues, vec![consume(), hold])), []);
    let settle = Command::Settle { queue: Q, holder: key, first: 1, count: 1, outcome: Disposition::Ack };
    assert_eq!(deliveries(&run(&mut queues, vec![settle])), [(3, false)], "the ack counts");
}

#[test]
fn the_last_consumer_leaving_is_told_once_however_it_leaves() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = |n| Command::Consume { again: false, queue: Q, consumer: consumer(A, n, 1), request: RequestId(1) };
    run(&mut queues, vec![consume(1), consume(2)]);
    let key = ConsumerKey { channel: A, number: 1 };
    let effects = run(&mut queues, vec![Command::Cancel { queue: Q, consumer: key, request: RequestId(2) }]);
    assert_eq!(effects.len(), 1);
    assert_eq!(run(&mut queues, vec![Command::Detach { channel: A }]), [Effect::Unused { queue: Q }]);
    assert_eq!(run(&mut queues, vec![Command::Detach { channel: A }]), []);
}

#[test]
fn a_consumer_without_room_is_passed_over_until_it_is_told_otherwise() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = Command::Consume { again: false, queue: Q, consumer: consumer(A, 1, 0), request: RequestId(1) };
    let mut commands = vec![consume];
    commands.extend((0..10).map(|_| publish(B, 0, &[Q], vec![0; 1000])));
    let mut effects = Vec::new();
    queues.step(1, &mut commands, &mut effects, &mut Room(2500));
    // The third message overshoots: a message is never cut.
    assert_eq!(deliveries(&effects), [(1, false), (2, false), (3, false)]);
    effects.clear();
    queues.step(1, &mut vec![publish(B, 0, &[Q], vec![0; 10])], &mut effects, &mut Open);
    assert_eq!(deliveries(&effects), []);
    let key = ConsumerKey { channel: A, number: 1 };
    let effects = run(&mut queues, vec![Command::Stall { queue: Q, consumer: key, stalled: false }]);
    assert_eq!(deliveries(&effects).len(), 8);
}

#[test]
fn grants_are_asked_for_once_and_given_back_when_nothing_is_ready() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let key = ConsumerKey { channel: A, number: 1 };
    let granted = Consumer { granted_only: true, ..consumer(A, 1, 0) };
    let mut commands = vec![Command::Consume { again: false, queue: Q, consumer: granted, request: RequestId(1) }];
    commands.extend((0..3).map(|_| publish(B, 0, &[Q], vec![0])));
    let effects = run(&mut queues, commands);
    assert_eq!(effects[1..], [Effect::GrantWanted { consumer: key, queue: Q, ready: 3 }]);
    assert_eq!(run(&mut queues, vec![publish(B, 0, &[Q], vec![0])]), []);
    let effects = run(&mut queues, vec![Command::Grant { queue: Q, consumer: key, count: 2 }]);
    assert_eq!(deliveries(&effects).len(), 2);
    assert_eq!(effects[2], Effect::GrantWanted { consumer: key, queue: Q, ready: 2 });
    let effects = run(&mut queues, vec![Command::Grant { queue: Q, consumer: key, count: 5 }]);
    assert_eq!(deliveries(&effects).len(), 2);
    assert_eq!(effects[2..], [Effect::GrantReturned { consumer: key, count: 3 }]);
}

#[test]
fn a_get_lets_a_consumer_go_first_whose_channel_is_asked_and_no_longer_than_that() {
    let get = |request| Command::Get { queue: Q, channel: B, no_ack: true, request: RequestId(request) };
    let answers = |effects: &[Effect]| -> Vec<(u64, bool)> {
        let of = |effect: &Effect| match effect {
            Effect::Reply { request, reply: Reply::Got { .. }, .. } => Some((request.0, true)),
            Effect::Reply { request, reply: Reply::Empty | Reply::Gone, .. } => Some((request.0, false)),
            _ => None,
        };
        effects.iter().filter_map(of).collect()
    };
    let key = ConsumerKey { channel: A, number: 1 };
    let asked = || {
        let mut queues = TransientQueues::new();
        queues.declare(Q);
        let granted = Consumer { granted_only: true, ..consumer(A, 1, 0) };
        let consume = Command::Consume { again: false, queue: Q, consumer: granted, request: RequestId(1) };
        let effects = run(&mut queues, vec![consume, publish(B, 0, &[Q], vec![0]), get(7)]);
        assert_eq!(answers(&effects), [], "the channel of the consumer was asked and has not said");
        queues
    };
    // It takes the message.
    let mut queues = asked();
    let effects = run(&mut queues, vec![Command::Grant { queue: Q, consumer: key, count: 1 }]);
    assert_eq!((deliveries(&effects).len(), answers(&effects)), (1, vec![(7, false)]));
    // It may not, and the next one who asks does not wait either.
    let mut queues = asked();
    let effects = run(&mut queues, vec![Command::Grant { queue: Q, consumer: key, count: 0 }]);
    assert_eq!((deliveries(&effects).len(), answers(&effects)), (0, vec![(7, true)]));
    assert_eq!(answers(&run(&mut queues, vec![publish(B, 0, &[Q], vec![0]), get(8)])), [(8, true)]);
    // It goes, the queue goes, or who asks goes.
    assert_eq!(answers(&run(&mut asked(), vec![Command::Detach { channel: A }])), [(7, true)]);
    assert_eq!(answers(&run(&mut asked(), vec![Command::Delete { queue: Q }])), [(7, false)]);
    let mut queues = asked();
    run(&mut queues, vec![Command::Detach { channel: B }]);
    assert_eq!(answers(&run(&mut queues, vec![Command::Grant { queue: Q, consumer: key, count: 0 }])), []);
}

#[test]
fn one_old_message_does_not_pin_the_batches_of_those_around_it() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let consume = Command::Consume { again: false, queue: Q, consumer: consumer(A, 1, 0), request: RequestId(1) };
    run(&mut queues, vec![consume]);
    // Of every 100 messages of 1 KB one stays unacked: 200 MB go through, 2 MB are live.
    for round in 0..2000u64 {
        run(&mut queues, (0..100).map(|_| publish(B, 0, &[Q], vec![7; 1000])).collect());
        let holder = ConsumerKey { channel: A, number: 1 };
        let first = round * 100 + 2;
        run(&mut queues, vec![Command::Settle { queue: Q, holder, first, count: 99, outcome: Disposition::Ack }]);
        assert!(queues.bytes() < 48 << 20, "{} bytes in round {round}", queues.bytes());
    }
    let effects = run(&mut queues, vec![Command::Detach { channel: A }]);
    assert_eq!(effects, [Effect::Unused { queue: Q }]);
    for _ in 0..2000 {
        let get = Command::Get { queue: Q, channel: B, no_ack: true, request: RequestId(1) };
        match run(&mut queues, vec![get]).pop().unwrap() {
            Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => {
                assert_eq!(body(&delivery), vec![7; 1000]);
                assert_eq!(delivery.seq % 100, 1);
                assert!(delivery.redelivered && delivery.counts.delivery == 1);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(queues.bytes(), 0);
}

/// What the model does next.
#[derive(Clone, Debug)]
enum Op {
    Publish { queues: u8, bytes: usize },
    Consume { queue: u8, channel: bool, prefetch: u32, no_ack: bool },
    Cancel { nth: usize },
    Get { queue: u8, channel: bool, no_ack: bool },
    Settle { nth: usize, count: u64, outcome: Disposition },
    Detach { channel: bool },
    Purge { queue: u8 },
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    let outcome = prop_oneof![
        Just(Disposition::Ack),
        Just(Disposition::Nack),
        Just(Disposition::Reject),
        Just(Disposition::Discard)
    ];
    prop_oneof![
        6 => (1u8..4, 0usize..40).prop_map(|(queues, bytes)| Op::Publish { queues, bytes }),
        2 => (0u8..2, any::<bool>(), 0u32..4, any::<bool>())
            .prop_map(|(queue, channel, prefetch, no_ack)| Op::Consume { queue, channel, prefetch, no_ack }),
        1 => (0usize..8).prop_map(|nth| Op::Cancel { nth }),
        2 => (0u8..2, any::<bool>(), any::<bool>()).prop_map(|(queue, channel, no_ack)| Op::Get { queue, channel, no_ack }),
        5 => (0usize..8, 1u64..4, outcome).prop_map(|(nth, count, outcome)| Op::Settle { nth, count, outcome }),
        1 => any::<bool>().prop_map(|channel| Op::Detach { channel }),
        1 => (0u8..2).prop_map(|queue| Op::Purge { queue }),
        4 => Just(Op::Step),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Ready,
    Held(ConsumerKey),
    Settled,
}

#[derive(Default)]
struct ModelQueue {
    /// By sequence number from 1: its body and what became of it.
    messages: Vec<(Vec<u8>, Fate)>,
    consumers: BTreeMap<ConsumerKey, (u32, bool)>,
}

impl ModelQueue {
    fn first_ready(&self) -> Option<u64> {
        self.messages.iter().position(|m| m.1 == Fate::Ready).map(|at| at as u64 + 1)
    }

    fn held_by(&self, key: ConsumerKey) -> usize {
        self.messages.iter().filter(|m| m.1 == Fate::Held(key)).count()
    }

    fn take(&mut self, d: &Delivery) {
        assert_eq!(Some(d.seq), self.first_ready(), "the oldest ready message goes first");
        let entry = &mut self.messages[d.seq as usize - 1];
        assert_eq!(body(d), entry.0);
        entry.1 = if d.needs_ack { Fate::Held(d.consumer) } else { Fate::Settled };
        if let Some((prefetch, no_ack)) = self.consumers.get(&d.consumer) {
            assert_eq!(d.needs_ack, !no_ack);
            assert!(*no_ack || *prefetch == 0 || self.held_by(d.consumer) <= *prefetch as usize, "prefetch is kept");
        } else {
            assert_eq!(d.consumer.number, 0, "deliveries go to consumers that are there");
        }
    }

    fn has_credit(&self) -> bool {
        let free = |(key, (prefetch, no_ack)): (&ConsumerKey, &(u32, bool))| {
            *no_ack || *prefetch == 0 || self.held_by(*key) < *prefetch as usize
        };
        self.consumers.iter().any(free)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_message_is_exactly_one_of_ready_held_and_settled(ops in prop::collection::vec(op(), 1..120)) {
        let mut queues = TransientQueues::new();
        let mut model = [ModelQueue::default(), ModelQueue::default()];
        queues.declare(QueueId(0));
        queues.declare(QueueId(1));
        let (mut commands, mut number, mut publish_seq, mut stamp) = (Vec::new(), 0u32, 0u64, 0u8);
        let mut purged = None;
        let channel = |b: bool| if b { A } else { B };
        // The model hears of publishes and settles at once; gets, consumers and deliveries when
        // effects come. To keep the two in step, every operation is followed by a step, except
        // publishes and settles, which pile up.
        for op in ops {
            let mut steps = true;
            match op {
                Op::Publish { queues: mask, bytes } => {
                    stamp = stamp.wrapping_add(1);
                    publish_seq += 1;
                    let ids: Vec<QueueId> = (0..2).filter(|q| mask >> q & 1 == 1).map(QueueId).collect();
                    for id in &ids {
                        model[id.0 as usize].messages.push((vec![stamp; bytes], Fate::Ready));
                    }
                    commands.push(publish(A, publish_seq, &ids, vec![stamp; bytes]));
                    steps = false;
                }
                Op::Consume { queue, channel: c, prefetch, no_ack } => {
                    number += 1;
                    let consumer = Consumer { no_ack, ..consumer(channel(c), number, prefetch) };
                    model[queue as usize].consumers.insert(consumer.key, (prefetch, no_ack));
                    commands.push(Command::Consume { again: false, queue: QueueId(queue.into()), consumer, request: RequestId(0) });
                }
                Op::Cancel { nth } => {
                    let all: Vec<_> = (0..2).flat_map(|q| model[q].consumers.keys().map(move |k| (q, *k))).collect();
                    let Some((q, key)) = all.get(nth).copied() else { continue };
                    model[q].consumers.remove(&key);
                    commands.push(Command::Cancel { queue: QueueId(q as u64), consumer: key, request: RequestId(0) });
                }
                Op::Get { queue, channel: c, no_ack } => {
                    let (queue, channel) = (QueueId(queue.into()), channel(c));
                    commands.push(Command::Get { queue, channel, no_ack, request: RequestId(0) });
                }
                Op::Settle { nth, count, outcome } => {
                    let held: Vec<_> = (0..2).flat_map(|q| {
                        let of = move |(at, m): (usize, &(Vec<u8>, Fate))| match m.1 {
                            Fate::Held(key) => Some((q, at as u64 + 1, key)),
                            _ => None,
                        };
                        model[q].messages.iter().enumerate().filter_map(of).collect::<Vec<_>>()
                    }).collect();
                    let Some((q, first, holder)) = held.get(nth).copied() else { continue };
                    for seq in first..first + count {
                        if let Some(m) = model[q].messages.get_mut(seq as usize - 1)
                            && m.1 == Fate::Held(holder)
                        {
                            let back = matches!(outcome, Disposition::Nack | Disposition::Reject);
                            m.1 = if back { Fate::Ready } else { Fate::Settled };
                        }
                    }
                    commands.push(Command::Settle { queue: QueueId(q as u64), holder, first, count, outcome });
                    steps = false;
                }
                Op::Detach { channel: c } => {
                    for q in &mut model {
                        q.consumers.retain(|k, _| k.channel != channel(c));
                        for m in &mut q.messages {
                            if matches!(m.1, Fate::Held(k) if k.channel == channel(c)) { m.1 = Fate::Ready; }
                        }
                    }
                    commands.push(Command::Detach { channel: channel(c) });
                }
                Op::Purge { queue } => {
                    // Consumers have what came before it: it takes what is left when it is
                    // answered.
                    purged = Some(usize::from(queue));
                    let queue = QueueId(queue.into());
                    commands.push(Command::Purge { queue, channel: A, request: RequestId(0) });
                }
                Op::Step => {}
            }
            if !steps { continue; }
            let mut effects = Vec::new();
            queues.step(1, &mut commands, &mut effects, &mut Open);
            for effect in effects {
                match effect {
                    Effect::Deliver(d) => model[d.queue.0 as usize].take(&d),
                    Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => {
                        model[delivery.queue.0 as usize].take(&delivery);
                    }
                    Effect::Reply { reply: Reply::Counted(count), .. } => {
                        let queue = purged.take().expect("a purge is answered once");
                        let ready = model[queue].messages.iter_mut().filter(|m| m.1 == Fate::Ready);
                        prop_assert_eq!(ready.map(|m| m.1 = Fate::Settled).count() as u64, count);
                    }
                    _ => {}
                }
            }
            for (q, model) in model.iter().enumerate() {
                let stat = Command::Stat { queue: QueueId(q as u64), channel: A, request: RequestId(1) };
                let ready = model.messages.iter().filter(|m| m.1 == Fate::Ready).count() as u64;
                let unacked = model.messages.iter().filter(|m| matches!(m.1, Fate::Held(_))).count() as u64;
                let reply = Reply::Stat { ready, unacked, consumers: model.consumers.len() as u64 };
                prop_assert_eq!(run(&mut queues, vec![stat]), [Effect::Reply { channel: A, request: RequestId(1), reply }]);
                prop_assert!(ready == 0 || !model.has_credit(), "nothing waits while somebody has credit");
            }
        }
        commands.extend((0..2).map(|q| Command::Delete { queue: QueueId(q) }));
        run(&mut queues, commands);
        prop_assert_eq!(queues.bytes(), 0);
    }
}

#[test]
fn a_discarded_message_of_a_queue_with_rules_ends_and_leaves_as_a_dead_letter() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let exchange = broker::topology::Name::new(b"dlx");
    let rule = DeadLetterRule { exchange, routing_key: None, at_least_once: false };
    let rules = Rules { dead_letter: Some(rule), ..Rules::default() };
    let consume = Command::Consume { again: false, queue: Q, consumer: consumer(B, 1, 0), request: RequestId(1) };
    let publishes = [publish(A, 1, &[Q], vec![1]), publish(A, 2, &[Q], vec![2])];
    let commands = [Command::Configure { queue: Q, rules: rules.into() }, consume].into_iter().chain(publishes);
    assert_eq!(deliveries(&run(&mut queues, commands.collect())), [(1, false), (2, false)]);
    let holder = ConsumerKey { channel: B, number: 1 };
    let effects =
        run(&mut queues, vec![Command::Settle { queue: Q, holder, first: 1, count: 2, outcome: Disposition::Discard }]);
    let letters: Vec<u64> = effects
        .iter()
        .filter_map(|e| if let Effect::DeadLetter(letter) = e { Some(letter.seq) } else { None })
        .collect();
    assert_eq!(letters, [1, 2]);
    let effects = run(&mut queues, vec![Command::Detach { channel: B }]);
    assert_eq!(deliveries(&effects), []);
    let get = Command::Get { queue: Q, channel: A, no_ack: true, request: RequestId(2) };
    let answer = run(&mut queues, vec![get]);
    assert!(matches!(answer[..], [Effect::Reply { reply: Reply::Empty, .. }]), "{answer:?}");
}

#[test]
fn of_gets_in_one_step_none_brings_what_is_too_old() {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let timed = |n: u8, ttl: &str| {
        let Command::Publish(mut publish) = publish(A, u64::from(n), &[Q], vec![n]) else { unreachable!() };
        publish.message.properties = [&[1, 0, ttl.len() as u8][..], ttl.as_bytes()].concat().into();
        Command::Publish(publish)
    };
    let get = |request| Command::Get { queue: Q, channel: B, no_ack: false, request: RequestId(request) };
    let mut effects = Vec::new();
    let publishes = vec![timed(1, "90000"), timed(2, "50"), timed(3, "50"), timed(4, "90000")];
    queues.step(1_000, &mut publishes.clone(), &mut effects, &mut Open);
    effects.clear();
    // No step came between: the two in the middle are over, and stand behind one that is not.
    queues.step(2_000, &mut vec![get(1), get(2), get(3)], &mut effects, &mut Open);
    let answers = effects.iter().map(|effect| match effect {
        Effect::Reply { reply: Reply::Got { delivery, ready }, .. } => Some((body(delivery), *ready)),
        Effect::Reply { reply: Reply::Empty, .. } => None,
        other => panic!("{other:?} answers no get"),
    });
    assert_eq!(answers.collect::<Vec<_>>(), [Some((vec![1], 3)), Some((vec![4], 0)), None]);
}

/// A queue that holds so many bytes of bodies, and what became of publishes to it.
fn limited(overflow: Overflow) -> TransientQueues {
    let mut queues = TransientQueues::new();
    queues.declare(Q);
    let rules = Rules { length_bytes_max: Some(10), overflow, ..Rules::default() };
    run(&mut queues, vec![Command::Configure { queue: Q, rules: rules.into() }]);
    queues
}

fn is_confirmed(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Confirm { .. }))
}

#[test]
fn bytes_that_were_taken_or_purged_count_no_more() {
    let get = Command::Get { queue: Q, channel: B, no_ack: true, request: RequestId(1) };
    let purge = Command::Purge { queue: Q, channel: B, request: RequestId(1) };
    for leaves in [get, purge] {
        let mut queues = limited(Overflow::RejectPublish);
        assert!(is_confirmed(&run(&mut queues, vec![publish(A, 1, &[Q], vec![0; 8])])));
        assert!(!is_confirmed(&run(&mut queues, vec![publish(A, 2, &[Q], vec![0; 8])])), "it is full");
        run(&mut queues, vec![leaves.clone()]);
        assert!(is_confirmed(&run(&mut queues, vec![publish(A, 3, &[Q], vec![0; 8])])), "after {leaves:?}");
    }
}

#[test]
fn what_is_too_much_goes_and_no_more_than_that() {
    let mut queues = limited(Overflow::DropHead);
    run(&mut queues, vec![publish(A, 1, &[Q], vec![1; 6]), publish(A, 2, &[Q], vec![2; 6])]);
    let get = Command::Get { queue: Q, channel: B, no_ack: true, request: RequestId(1) };
    let effects = run(&mut queues, vec![get]);
    let Effect::Reply { reply: Reply::Got { delivery, .. }, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(body(delivery), [2; 6]);
}

//! The beginning and the end of a leader's office, as publishers feel it: what comes before it waits, what it
//! has not confirmed goes back, and what comes again is taken for what it is.
#![allow(clippy::unwrap_used)]

mod member;

use broker::QueueId;
use broker::queue::{Overflow, Rules};
use bytes::Bytes;
use consensus::Role;
use member::{PUBLISHER, QUEUE, Rig};
use partition::command::{Disposition, Durability, Level, Message, RequestId, Target};
use partition::{Command, Effect, Publish};
use smallvec::SmallVec;
use std::sync::Arc;

fn publish_to(queues: &[QueueId], publish_seq: u64, term: u32) -> Command {
    let targets: SmallVec<[Target; 1]> = queues
        .iter()
        .map(|queue| Target { queue: *queue, durability: Durability::Level(Level::Synced), selective: None })
        .collect();
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::from_static(&[0, 0]),
        body: publish_seq.to_string().into(),
    };
    Command::Publish(Publish { channel: PUBLISHER, publish_seq, term, targets, delay_ms: 0, message, more: None })
}

fn publish(publish_seq: u64, term: u32) -> Command {
    publish_to(&[QUEUE], publish_seq, term)
}

fn term(rig: &Rig) -> u32 {
    rig.partition.term().0 as u32
}

/// Gives its office up.
fn resign(rig: &mut Rig) {
    rig.with(|partition, cx| partition.stood_still(cx));
    assert!(!rig.partition.is_leading());
}

/// Is elected again, and has not written the first entry of its term.
fn elect(rig: &mut Rig) {
    for _ in 0..200 {
        rig.with(|partition, cx| partition.tick(cx));
        if rig.partition.replica().group().status().role == Role::Leader {
            assert!(!rig.partition.is_leading(), "its first entry is not applied");
            return;
        }
        if let Some(write) = rig.unwritten.pop_front() {
            rig.unwritten.push_front(write);
            rig.write();
            rig.sync();
        }
    }
    panic!("it is not elected");
}

fn returned(rig: &mut Rig) -> Vec<(u64, u32)> {
    let mut returned = Vec::new();
    rig.effects.retain(|effect| match effect {
        Effect::Returned { first, count, term, .. } => {
            returned.extend((*first..*first + *count).map(|seq| (seq, *term)));
            false
        }
        _ => true,
    });
    returned
}

/// The bodies of all that is in the queue, which are the numbers of their publishes.
fn taken_in(rig: &mut Rig) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(delivery) = rig.get() {
        let view = partition::message::MessageView::parse(&delivery.message).unwrap();
        bodies.push(String::from_utf8(view.body().to_vec()).unwrap());
        rig.decide(&delivery, Disposition::Ack);
    }
    bodies
}

fn full_at(length: u64) -> Arc<Rules> {
    Arc::new(Rules { length_max: Some(length), overflow: Overflow::RejectPublish, ..Rules::default() })
}

#[test]
fn what_comes_before_an_elected_leader_takes_its_office_waits_and_keeps_its_order() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    resign(&mut rig);
    rig.command(publish(1, 0));
    assert_eq!(rig.refused(), [1], "nobody leads");
    elect(&mut rig);
    let now = term(&rig);
    rig.command(publish(2, 0));
    rig.command(publish(3, now));
    rig.consume(1, 0, true);
    rig.command(publish(4, 0));
    rig.with(|partition, cx| partition.flush(cx));
    assert_eq!((rig.refused(), rig.confirmed()), (vec![], vec![]));
    rig.run();
    assert!(rig.partition.is_leading());
    rig.command(publish(5, now));
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![2, 3, 4, 5], vec![]));
    assert_eq!(rig.delivered().iter().map(|delivery| delivery.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn what_waited_for_an_office_that_nobody_took_goes_back() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    resign(&mut rig);
    elect(&mut rig);
    let now = term(&rig);
    rig.command(publish(2, now));
    rig.command(publish(3, now - 1));
    rig.command(publish(4, 0));
    resign(&mut rig);
    assert_eq!(returned(&mut rig), [(2, now), (3, now - 1)]);
    assert_eq!(rig.refused(), [4], "it was for whoever leads");
}

#[test]
fn a_leader_takes_what_is_for_its_term_and_gives_back_what_it_cannot_promise_any_more() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let now = term(&rig);
    rig.command(publish(1, now));
    rig.run();
    rig.command(publish(2, now));
    rig.command(publish(3, now - 1));
    rig.with(|partition, cx| partition.flush(cx));
    assert_eq!((rig.confirmed(), returned(&mut rig)), (vec![1], vec![(3, now - 1)]));
    resign(&mut rig);
    rig.command(publish(4, now));
    assert_eq!(returned(&mut rig), [(2, now), (4, now)], "what it had not confirmed, and what comes later");
    elect(&mut rig);
    rig.run();
    let next = term(&rig);
    (2..=4).for_each(|seq| rig.command(publish(seq, next)));
    rig.run();
    assert_eq!(rig.confirmed(), [2, 3, 4]);
    assert_eq!(taken_in(&mut rig), ["1", "2", "3", "4"], "once each, in their order");
}

#[test]
fn what_wants_no_confirm_does_not_come_behind_what_followed_it_in_another_term() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let before = term(&rig);
    let unasked = |body: &str, term: u32| match publish(0, term) {
        Command::Publish(publish) => {
            let message = Message { body: body.to_owned().into(), ..publish.message };
            Command::Publish(Publish { message, ..publish })
        }
        other => other,
    };
    rig.command(unasked("first", before));
    rig.run();
    resign(&mut rig);
    elect(&mut rig);
    rig.command(unasked("too late", before));
    rig.run();
    let now = term(&rig);
    rig.command(unasked("third", now));
    rig.command(unasked("later still", before));
    rig.run();
    assert_eq!(taken_in(&mut rig), ["first", "third"]);
}

#[test]
fn what_comes_again_is_confirmed_with_the_first_one_and_ahead_of_what_follows() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(publish(1, 0));
    rig.run();
    rig.command(publish(2, 0));
    rig.with(|partition, cx| partition.flush(cx));
    rig.command(publish(3, 0));
    (1..=3).for_each(|seq| rig.command(publish(seq, 0)));
    assert_eq!(rig.confirmed(), [1, 1], "its confirm may have got lost, and it is safe");
    rig.run();
    assert_eq!(rig.confirmed(), [2, 3], "each by what it waited for");
}

#[test]
fn what_a_broken_link_was_to_carry_is_confirmed_when_it_comes_again() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(publish(1, 0));
    rig.run();
    rig.command(publish(2, 0));
    rig.with(|partition, cx| partition.flush(cx));
    rig.confirmed();
    rig.command(Command::Part { channel: PUBLISHER });
    rig.run();
    assert_eq!(rig.confirmed(), [], "it would overtake the confirm that was lost");
    rig.command(publish(3, 0));
    rig.with(|partition, cx| partition.flush(cx));
    rig.command(Command::Part { channel: PUBLISHER });
    (1..=3).for_each(|seq| rig.command(publish(seq, 0)));
    assert_eq!(rig.confirmed(), [1, 2], "the log has them");
    rig.run();
    assert_eq!(rig.confirmed(), [3]);
}

#[test]
fn what_comes_again_while_the_end_of_its_queue_is_decided_waits_for_that_too() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(Command::Close {
        queue: QUEUE,
        if_unused: false,
        if_empty: true,
        channel: PUBLISHER,
        request: RequestId(5),
    });
    rig.run();
    rig.command(publish(1, 0));
    rig.run();
    rig.command(publish(1, 0));
    rig.run();
    assert_eq!(rig.confirmed(), [], "the queue may go yet");
    rig.command(Command::Reopen { queue: QUEUE });
    rig.run();
    assert_eq!(rig.confirmed(), [1]);
}

#[test]
fn what_was_refused_is_not_confirmed_when_it_comes_again() {
    let configure = |rig: &mut Rig, rules| {
        rig.command(Command::Configure { queue: QUEUE, rules });
    };
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    configure(&mut rig, full_at(1));
    for seq in 1..=2 {
        rig.command(publish(seq, 0));
        rig.run();
    }
    configure(&mut rig, Arc::new(Rules::default()));
    rig.command(publish(3, 0));
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![1, 3], vec![2]));
    (1..=3).for_each(|seq| rig.command(publish(seq, 0)));
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![1, 3], vec![2]), "by the same leader");
    let mut rig = Rig::new(rig.log, 1 << 20);
    (1..=3).for_each(|seq| rig.command(publish(seq, 0)));
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![1, 3], vec![2]), "by the next one");
    assert_eq!(taken_in(&mut rig), ["1", "3"]);
}

#[test]
fn what_was_refused_last_may_be_taken_in_when_it_comes_again() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(Command::Configure { queue: QUEUE, rules: full_at(1) });
    (1..=2).for_each(|seq| rig.command(publish(seq, 0)));
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![1], vec![2]));
    let mut rig = Rig::new(rig.log, 1 << 20);
    (1..=2).for_each(|seq| rig.command(publish(seq, 0)));
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2], "nothing came in behind it, and there is room now");
    assert_eq!(taken_in(&mut rig), ["1", "2"]);
}

#[test]
fn a_repeat_of_what_one_of_its_queues_may_have_refused_is_not_confirmed() {
    let both = [QUEUE, QueueId(8)];
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(Command::Configure { queue: both[1], rules: full_at(0) });
    rig.command(publish_to(&both, 1, 0));
    rig.run();
    rig.command(publish_to(&both, 1, 0));
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![], vec![1, 1]));
    assert_eq!(taken_in(&mut rig), ["1"], "the other one has it, once");
}

#[test]
fn a_channel_whose_link_broke_is_remembered_and_one_that_ended_is_not() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let mut again = |command: Command| {
        rig.command(command);
        rig.run();
        rig.command(publish(5, 0));
        rig.run();
        assert_eq!(rig.confirmed(), [5]);
        taken_in(&mut rig).len()
    };
    assert_eq!(again(Command::Part { channel: PUBLISHER }), 1, "it comes for the first time");
    assert_eq!(again(Command::Part { channel: PUBLISHER }), 0);
    assert_eq!(again(Command::Detach { channel: PUBLISHER }), 1);
}

#[test]
fn a_channel_that_does_nothing_for_long_is_forgotten_and_one_that_publishes_is_not() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let pass = |rig: &mut Rig, ticks: u64| {
        (0..ticks).for_each(|_| rig.with(|partition, cx| partition.tick_office(cx)));
        rig.run();
    };
    for seq in 1..=4 {
        rig.command(publish(seq, 0));
        rig.run();
        pass(&mut rig, 3_000);
        assert!(rig.partition.knows_publisher(PUBLISHER), "after its publish {seq}");
    }
    pass(&mut rig, 3_000);
    assert!(rig.partition.knows_publisher(PUBLISHER), "it may have published just before the look");
    pass(&mut rig, 1_500);
    assert!(!rig.partition.knows_publisher(PUBLISHER));
}

//! A leader and those who may hold something of the leader before: what that may have given out waits for them, and so do
//! consumers that are new.
#![allow(clippy::unwrap_used)]

mod trio;

use broker::queue::{Consumer, Rules};
use broker::{ChannelKey, ConsumerKey};
use consensus::NodeId;
use partition::command::{Command, Disposition, Effect, Reply, RequestId};
use trio::{QUEUE, READER, Trio};

/// A consumer that was given three messages of four, and its leader, which hears nothing from now on.
fn cut_off() -> (Trio, usize) {
    let mut trio = Trio::filled(4);
    consume(&mut trio, READER, true, 3);
    assert_eq!(trio.delivered(), [1, 2, 3]);
    let before = trio.leader();
    trio.cut = Some(before);
    while trio.members.iter().filter(|member| member.partition.is_leading()).count() != 1
        || trio.members[before].partition.is_leading()
    {
        trio.tick();
    }
    (trio, before)
}

fn consume(trio: &mut Trio, channel: ChannelKey, again: bool, prefetch: u32) {
    let key = ConsumerKey { channel, number: 1 };
    let consumer = Consumer { key, prefetch, no_ack: false, exclusive: false, priority: 0, granted_only: false };
    trio.command(Command::Consume { again, queue: QUEUE, consumer, request: RequestId(1) });
}

fn is_attached(trio: &Trio, channel: ChannelKey) -> bool {
    let attached = |effect: &Effect| matches!(effect, Effect::Reply { channel: of, reply: Reply::Consuming, .. } if *of == channel);
    trio.members[trio.leader()].effects.iter().any(attached)
}

fn ticks(trio: &mut Trio, count: u32) {
    (0..count).for_each(|_| trio.tick());
}

#[test]
fn behind_one_that_hangs_what_it_gave_out_waits_until_its_links_are_given_up() {
    let (mut trio, before) = cut_off();
    let (holder, late) = (READER, ChannelKey(300));
    consume(&mut trio, late, false, 1);
    ticks(&mut trio, 8);
    assert!(!is_attached(&trio, late), "nobody knows yet that there is another leader");
    trio.members.iter_mut().for_each(|member| member.partition.link_lost(NodeId(before as u64 + 1)));
    // They hear it as this leader does, and say what they hold.
    consume(&mut trio, holder, true, 3);
    let consumer = ConsumerKey { channel: holder, number: 1 };
    trio.command(Command::Hold { queue: QUEUE, consumer, first: 1, count: 3 });
    ticks(&mut trio, 2);
    assert!(!is_attached(&trio, late));
    ticks(&mut trio, 2);
    assert!(is_attached(&trio, late));
    assert_eq!(trio.delivered(), [4], "the others are the holder's");
}

#[test]
fn what_was_fetched_and_what_a_cancelled_consumer_has_stays_theirs_until_they_settle_it_or_go() {
    let (mut trio, before) = cut_off();
    let (fetcher, late) = (ChannelKey(200), ChannelKey(300));
    trio.members.iter_mut().for_each(|member| member.partition.link_lost(NodeId(before as u64 + 1)));
    // Neither of them is attached here.
    let cancelled = ConsumerKey { channel: READER, number: 1 };
    for (holder, first, count) in [(cancelled, 1, 2), (ConsumerKey::get(fetcher), 3, 1)] {
        trio.command(Command::Hold { queue: QUEUE, consumer: holder, first, count });
    }
    consume(&mut trio, late, false, 9);
    ticks(&mut trio, 8);
    assert_eq!(trio.delivered(), [4]);
    let settle = |holder, first| Command::Settle { queue: QUEUE, holder, first, count: 1, outcome: Disposition::Ack };
    trio.command(settle(cancelled, 1));
    trio.command(settle(ConsumerKey::get(fetcher), 3));
    ticks(&mut trio, 2);
    assert_eq!(trio.members[trio.leader()].live(), 2, "one is with the cancelled one, and one with the late one");
    trio.command(Command::Detach { channel: READER });
    ticks(&mut trio, 2);
    assert_eq!(trio.delivered(), [2], "it comes back with its channel's end");
}

#[test]
fn nobody_waits_longer_for_one_that_hangs_than_its_links_take() {
    let (mut trio, _) = cut_off();
    let late = ChannelKey(300);
    consume(&mut trio, late, false, 4);
    ticks(&mut trio, 21);
    assert_eq!(trio.delivered(), [1, 2, 3, 4]);
}

#[test]
fn behind_one_that_answers_in_the_new_term_nobody_waits_long() {
    let (mut trio, _) = cut_off();
    let late = ChannelKey(300);
    consume(&mut trio, late, false, 4);
    trio.cut = None;
    ticks(&mut trio, 5);
    assert_eq!(trio.delivered(), [1, 2, 3, 4]);
}

#[test]
fn a_queue_is_unused_once_consumers_of_the_leader_before_could_have_come() {
    for comes in [true, false] {
        let mut trio = Trio::filled(4);
        let rules = Rules { expires_ms: Some(300), ..Rules::default() };
        for member in &mut trio.members {
            member.with(1_000, |p, cx| p.command(Command::Configure { queue: QUEUE, rules: rules.clone().into() }, cx));
        }
        consume(&mut trio, READER, true, 3);
        let before = trio.leader();
        trio.cut = Some(before);
        while trio.members[before].partition.is_leading() || !trio.members.iter().any(|m| m.partition.is_leading()) {
            trio.tick();
        }
        let leader = trio.leader();
        let has_lapsed = |trio: &Trio| trio.members[leader].effects.iter().any(|e| matches!(e, Effect::Lapsed { .. }));
        ticks(&mut trio, 8);
        assert!(!has_lapsed(&trio), "its consumer has not heard of this leader");
        trio.members.iter_mut().for_each(|member| member.partition.link_lost(NodeId(before as u64 + 1)));
        if comes {
            consume(&mut trio, READER, true, 3);
        }
        ticks(&mut trio, 8);
        assert_eq!(has_lapsed(&trio), !comes, "comes: {comes}");
    }
}

/// The consumer of the leader before has heard of this one, and says what it holds.
fn come_back(trio: &mut Trio, before: usize) {
    trio.members.iter_mut().for_each(|member| member.partition.link_lost(NodeId(before as u64 + 1)));
    ticks(trio, 1);
    consume(trio, READER, true, 3);
    let consumer = ConsumerKey { channel: READER, number: 1 };
    trio.command(Command::Hold { queue: QUEUE, consumer, first: 1, count: 3 });
}

#[test]
fn what_is_asked_of_a_queue_is_answered_once_those_who_hold_its_messages_have_come() {
    let (channel, request) = (ChannelKey(300), RequestId(7));
    let close = |if_unused| Command::Close { queue: QUEUE, if_unused, if_empty: false, channel, request };
    for (question, answer, live) in [
        (Command::Stat { queue: QUEUE, channel, request }, Reply::Stat { ready: 1, unacked: 3, consumers: 1 }, 4),
        (Command::Purge { queue: QUEUE, channel, request }, Reply::Counted(1), 3),
        (close(true), Reply::DeleteRefused { in_use: true }, 4),
        (close(false), Reply::Counted(1), 4),
    ] {
        let (mut trio, before) = cut_off();
        // The fourth stays ready.
        let answers = |trio: &Trio| -> Vec<Reply> {
            let to_it = |effect: &Effect| match effect {
                Effect::Reply { channel: of, request: RequestId(7), reply } if *of == channel => Some(reply.clone()),
                _ => None,
            };
            trio.members[trio.leader()].effects.iter().filter_map(to_it).collect()
        };
        trio.command(question.clone());
        ticks(&mut trio, 8);
        assert_eq!(answers(&trio), [], "{question:?}");
        come_back(&mut trio, before);
        ticks(&mut trio, 4);
        assert_eq!(answers(&trio), [answer], "{question:?}");
        assert_eq!(trio.members[trio.leader()].live(), live, "{question:?}");
    }
}

#[test]
fn what_a_consumer_of_the_leader_before_holds_is_neither_too_old_nor_too_much() {
    let limits =
        [Rules { message_ttl_ms: Some(300), ..Rules::default() }, Rules { length_max: Some(1), ..Rules::default() }];
    for rules in limits {
        for comes in [true, false] {
            let mut trio = Trio::filled(1);
            settle_all(&mut trio);
            for member in &mut trio.members {
                member.with(1_000, |p, cx| {
                    p.command(Command::Configure { queue: QUEUE, rules: rules.clone().into() }, cx)
                });
            }
            consume(&mut trio, READER, true, 3);
            trio.publish(2..=5);
            assert_eq!(trio.delivered(), [2, 3, 4]);
            let before = trio.leader();
            trio.cut = Some(before);
            while trio.members[before].partition.is_leading() || !trio.members.iter().any(|m| m.partition.is_leading())
            {
                trio.tick();
            }
            let leader = trio.leader();
            ticks(&mut trio, 8);
            assert_eq!(trio.members[leader].live(), 4, "nobody knows whose they are: {rules:?}");
            trio.members.iter_mut().for_each(|member| member.partition.link_lost(NodeId(before as u64 + 1)));
            if comes {
                consume(&mut trio, READER, true, 3);
                let consumer = ConsumerKey { channel: READER, number: 1 };
                trio.command(Command::Hold { queue: QUEUE, consumer, first: 2, count: 3 });
            }
            ticks(&mut trio, 8);
            let is_aged = rules.message_ttl_ms.is_some();
            let left = match comes {
                true => 3 + u64::from(!is_aged),
                false => u64::from(!is_aged),
            };
            assert_eq!(trio.members[leader].live(), left, "comes: {comes}, {rules:?}");
        }
    }
}

/// The only message is taken and acked.
fn settle_all(trio: &mut Trio) {
    consume(trio, ChannelKey(400), true, 1);
    let holder = ConsumerKey { channel: ChannelKey(400), number: 1 };
    settle(trio, holder, Disposition::Ack);
    trio.command(Command::Part { channel: ChannelKey(400) });
    let _ = trio.delivered();
    assert_eq!(trio.members[trio.leader()].live(), 0);
}

/// A message in two hands: its leader gave it to a consumer whose link broke, and then to another one. Behind the next
/// leader the first one is first to say that it has it.
fn in_two_hands() -> (Trio, ConsumerKey, ConsumerKey) {
    let [first, second] = [READER, ChannelKey(300)].map(|channel| ConsumerKey { channel, number: 1 });
    let mut trio = Trio::filled(1);
    consume(&mut trio, first.channel, true, 1);
    trio.command(Command::Part { channel: first.channel });
    consume(&mut trio, second.channel, true, 1);
    assert_eq!(trio.delivered(), [1, 1]);
    let before = trio.leader();
    trio.cut = Some(before);
    while trio.members[before].partition.is_leading() || !trio.members.iter().any(|m| m.partition.is_leading()) {
        trio.tick();
    }
    consume(&mut trio, first.channel, true, 1);
    trio.command(Command::Hold { queue: QUEUE, consumer: first, first: 1, count: 1 });
    (trio, first, second)
}

fn settle(trio: &mut Trio, holder: ConsumerKey, outcome: Disposition) {
    trio.command(Command::Settle { queue: QUEUE, holder, first: 1, count: 1, outcome });
}

#[test]
fn the_ack_of_the_second_hand_ends_what_the_first_one_came_with() {
    let nobody = ConsumerKey::get(ChannelKey::NOBODY);
    for is_told_again in [false, true] {
        let (mut trio, first, second) = in_two_hands();
        settle(&mut trio, if is_told_again { nobody } else { second }, Disposition::Ack);
        settle(&mut trio, first, Disposition::Reject);
        ticks(&mut trio, 30);
        assert_eq!(trio.delivered(), [0; 0], "it has ended");
        assert_eq!(trio.members[trio.leader()].live(), 0);
    }
}

#[test]
fn what_a_leader_gave_out_itself_ends_by_no_ack_of_another_hand() {
    let (mut trio, first, second) = in_two_hands();
    settle(&mut trio, first, Disposition::Nack);
    ticks(&mut trio, 30);
    assert_eq!(trio.delivered(), [1], "the first one gave it back before the leader heard of the second one's ack");
    settle(&mut trio, second, Disposition::Ack);
    assert_eq!(trio.members[trio.leader()].live(), 1);
    settle(&mut trio, first, Disposition::Ack);
    assert_eq!(trio.members[trio.leader()].live(), 0);
}

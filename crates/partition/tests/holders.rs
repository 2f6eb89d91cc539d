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

//! What is said of so many messages at once, no two of them side by side, that one entry does not hold it.
#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{DeadLetterRule, Retried, RetryRule, Rules};
use broker::topology::Name;
use member::{QUEUE, READER, Rig};
use partition::command::{Command, Disposition, Effect, Reply, RequestId};
use std::sync::Arc;

/// A hundred messages and their ends fit, not all of them.
const ENTRY_BYTES_MAX: usize = 4 << 10;
const MESSAGES: u64 = 2000;

/// All messages are with one consumer, which has not acked any.
fn held() -> (Rig, u64) {
    let mut rig = Rig::terse(Vec::new(), ENTRY_BYTES_MAX);
    for seq in 1..=MESSAGES {
        rig.publish_synced(seq, "m");
    }
    rig.run();
    assert_eq!(rig.confirmed().len() as u64, MESSAGES);
    rig.consume(1, 0, false);
    rig.run();
    let delivered = rig.delivered();
    assert_eq!(delivered.len() as u64, MESSAGES);
    (rig, delivered[0].seq)
}

/// Every second message is acked, each for itself, and the others are still with the consumer.
fn perforated() -> Rig {
    let (mut rig, first) = held();
    for seq in (first..first + MESSAGES).step_by(2) {
        rig.settle(1, seq, 1, Disposition::Ack);
    }
    rig.run();
    assert_eq!(rig.stat(), (0, MESSAGES / 2, 1));
    rig
}

/// The same, and its channel has ended.
fn returned() -> Rig {
    let mut rig = perforated();
    rig.command(Command::Detach { channel: READER });
    rig.run();
    assert_eq!(rig.stat(), (MESSAGES / 2, 0, 0));
    rig
}

/// After a start as before it.
fn assert_kept(rig: Rig, ready: u64) {
    let before = rig.partition.queues().state_hash();
    let mut rig = Rig::terse(rig.log, ENTRY_BYTES_MAX);
    assert_eq!(rig.partition.queues().state_hash(), before);
    assert_eq!(rig.stat().0, ready);
}

#[test]
fn a_channel_that_ends_gives_all_of_them_back() {
    let mut rig = returned();
    rig.effects.clear();
    assert_eq!(rig.get().map(|got| (got.redelivered, got.counts.delivery)), Some((true, 1)));
    assert_kept(rig, MESSAGES / 2);
}

#[test]
fn they_are_acked_and_given_back_together() {
    let mut rig = perforated();
    rig.settle(1, 1, u64::MAX / 2, Disposition::Ack);
    rig.run();
    assert_eq!(rig.stat(), (0, 0, 1));
    assert_kept(rig, 0);
    let mut rig = perforated();
    rig.command(Command::Cancel { queue: QUEUE, consumer: member::consumer(1), request: RequestId(1) });
    rig.settle(1, 1, u64::MAX / 2, Disposition::Nack);
    rig.run();
    assert_eq!(rig.stat(), (MESSAGES / 2, 0, 0));
    assert_kept(rig, MESSAGES / 2);
}

#[test]
fn each_is_given_back_for_itself_within_one_turn() {
    let (mut rig, first) = held();
    rig.command(Command::Cancel { queue: QUEUE, consumer: member::consumer(1), request: RequestId(1) });
    for seq in (first..first + MESSAGES).step_by(2) {
        rig.settle(1, seq, 1, Disposition::Reject);
    }
    rig.run();
    assert_eq!(rig.stat(), (MESSAGES / 2, MESSAGES / 2, 0));
    assert_kept(rig, MESSAGES);
}

#[test]
fn a_purge_ends_all_of_them_before_it_is_answered() {
    let mut rig = returned();
    rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(3) });
    rig.run();
    let counted = |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::Counted(count), .. } if *count == MESSAGES / 2);
    assert!(rig.effects.iter().any(counted));
    assert_kept(rig, 0);
}

#[test]
fn a_new_limit_of_a_long_queue_ends_what_is_too_much() {
    let mut rig = returned();
    let rules = Rules { length_max: Some(10), ..Rules::default() };
    rig.command(Command::Configure { queue: QUEUE, rules: Arc::new(rules) });
    rig.run();
    assert_eq!(rig.stat(), (10, 0, 0));
    assert_kept(rig, 10);
}

#[test]
fn rules_for_what_comes_back_are_for_all_of_them() {
    let dead_letter = |at_least_once| DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once };
    let limited = Rules { delivery_limit: Some(0), ..Rules::default() };
    let retry = RetryRule { which: Retried::All, min_ms: 5_000, max_ms: 5_000 };
    for (rules, letters) in [
        (limited.clone(), 0),
        (Rules { dead_letter: Some(dead_letter(false)), ..limited.clone() }, MESSAGES / 2),
        (Rules { dead_letter: Some(dead_letter(true)), ..limited }, 1),
        (Rules { retry: Some(retry), ..Rules::default() }, 0),
    ] {
        let mut rig = perforated();
        rig.command(Command::Configure { queue: QUEUE, rules: Arc::new(rules.clone()) });
        rig.command(Command::Detach { channel: READER });
        rig.run();
        assert_eq!(rig.stat().1, 0, "{rules:?}");
        assert!(rig.letters().len() as u64 >= letters, "{rules:?}");
        let before = rig.partition.queues().state_hash();
        let rig = Rig::terse(rig.log, ENTRY_BYTES_MAX);
        assert_eq!(rig.partition.queues().state_hash(), before, "{rules:?}");
    }
}

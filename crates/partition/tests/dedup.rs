//! Queues that take a key in once: on a partition with restarts, and in memory.
#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{DedupRule, LevelRule, Rules};
use broker::{ChannelKey, ConsumerKey, QueueId};
use bytes::Bytes;
use member::{QUEUE, READER, Rig, configured};
use partition::command::{
    Command, Delivery, Disposition, Durability, Effect, Level, Message, Outlets, Publish, Reply, RequestId, Target,
};
use partition::{TransientQueues, message::MessageView};
use proptest::prelude::*;
use smallvec::smallvec;
use std::collections::BTreeSet;

/// A content header with `x-deduplication-header`.
fn keyed(key: &str) -> Vec<u8> {
    let mut field = vec![22];
    field.extend_from_slice(b"x-deduplication-headerS");
    field.extend_from_slice(&(key.len() as u32).to_be_bytes());
    field.extend_from_slice(key.as_bytes());
    [&[0x20, 0][..], &(field.len() as u32).to_be_bytes(), &field].concat()
}

fn rules(window_ms: u64) -> Rules {
    Rules { dedup: Some(DedupRule { window_ms }), ..Rules::default() }
}

fn text_of(delivery: &Delivery) -> String {
    String::from_utf8(MessageView::parse(&delivery.message).unwrap().body().to_vec()).unwrap()
}

/// The same partition after a restart, at the same time of day.
fn restarted(rig: Rig, rules: &Rules) -> Rig {
    let now = rig.now;
    let mut rig = configured(rig.log, rules);
    rig.now = now;
    rig.run();
    rig
}

#[test]
fn a_repeat_is_confirmed_and_dropped_while_its_message_is_there() {
    let mut rig = configured(Vec::new(), &rules(0));
    rig.publish_with(1, "a", keyed("k"), 0);
    rig.publish_with(2, "b", keyed("k"), 0);
    rig.publish_with(3, "c", keyed("l"), 0);
    rig.publish_synced(4, "without");
    rig.publish_synced(5, "without");
    assert_eq!(rig.confirmed(), [], "a repeat is not safer than what it repeats");
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2, 3, 4, 5]);
    assert_eq!(rig.stat().0, 4);
    let got = rig.get().unwrap();
    assert_eq!(text_of(&got), "a");
    rig.publish_with(6, "held", keyed("k"), 0);
    rig.run();
    assert_eq!((rig.confirmed(), rig.stat().0), (vec![6], 3), "a consumer holds it: it is there");
    // An ack and a publish in one turn, in this order: the place is free.
    let (holder, first) = (ConsumerKey::get(READER), got.seq);
    rig.command(Command::Settle { queue: QUEUE, holder, first, count: 1, outcome: Disposition::Ack });
    rig.publish_with(7, "again", keyed("k"), 0);
    rig.run();
    assert_eq!(rig.stat().0, 4);
    rig.publish_with(8, "no", keyed("k"), 0);
    rig.run();
    assert_eq!(rig.stat().0, 4);
    let mut rig = restarted(rig, &rules(0));
    rig.publish_with(9, "no", keyed("k"), 0);
    rig.run();
    assert_eq!((rig.confirmed(), rig.stat().0), (vec![9], 4), "a restart knows it too");
}

#[test]
fn a_window_outlasts_the_message_and_a_restart() {
    let mut rig = configured(Vec::new(), &rules(10_000));
    rig.publish_with(1, "a", keyed("k"), 0);
    rig.run();
    let got = rig.get().unwrap();
    rig.decide(&got, Disposition::Ack);
    rig.publish_with(2, "b", keyed("k"), 0);
    rig.run();
    assert_eq!(rig.stat().0, 0);
    let mut rig = restarted(rig, &rules(10_000));
    rig.pass(8_000);
    rig.publish_with(3, "c", keyed("k"), 0);
    rig.run();
    assert_eq!(rig.stat().0, 0, "the window goes from the first one on, and is open yet");
    rig.pass(3_000);
    rig.publish_with(4, "d", keyed("k"), 0);
    rig.run();
    assert_eq!(rig.stat().0, 1);
}

#[test]
fn a_purge_and_a_scheduled_message_keep_to_the_rule() {
    let mut rig = configured(Vec::new(), &rules(0));
    rig.publish_with(1, "a", keyed("k"), 0);
    rig.run();
    rig.publish_with(2, "later", keyed("k"), 100);
    rig.run();
    rig.pass(200);
    assert_eq!(rig.stat().0, 1, "when it was due, the first one was there");
    rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(3) });
    rig.run();
    rig.effects.clear();
    rig.publish_with(3, "b", keyed("k"), 0);
    rig.run();
    assert_eq!(rig.stat().0, 1);
}

#[derive(Clone, Debug)]
enum Act {
    Publish(u8),
    Get,
    Settle(usize, u8),
    Leave,
    Restart,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Of messages with one key at most one is there, a key that is not there comes in, and
    /// everything is confirmed.
    #[test]
    fn a_key_is_there_once(
        acts in prop::collection::vec(prop_oneof![
            5 => (0u8..4).prop_map(Act::Publish),
            3 => Just(Act::Get),
            3 => (any::<usize>(), 0u8..4).prop_map(|(at, how)| Act::Settle(at, how)),
            1 => Just(Act::Leave),
            1 => Just(Act::Restart),
        ], 1..60),
        strict in any::<bool>(),
    ) {
        let rules = Rules { levels: if strict { LevelRule::Strict } else { LevelRule::None }, ..rules(0) };
        let mut rig = configured(Vec::new(), &rules);
        let (mut there, mut held, mut seq) = (BTreeSet::new(), Vec::<Delivery>::new(), 0);
        for act in acts {
            match act {
                Act::Publish(key) => {
                    seq += 1;
                    let mut properties = keyed(&key.to_string());
                    if strict && key == 3 {
                        properties[0] |= 8;
                        properties.push(9);
                    }
                    rig.publish_with(seq, &key.to_string(), properties, 0);
                    there.insert(key.to_string());
                    if seq % 3 != 0 {
                        rig.run();
                        prop_assert!(rig.confirmed().contains(&seq));
                    }
                }
                Act::Get => held.extend(rig.get()),
                Act::Settle(at, how) if !held.is_empty() => {
                    let delivery = held.remove(at % held.len());
                    let outcome = [Disposition::Ack, Disposition::Nack, Disposition::Reject, Disposition::Discard][how as usize];
                    if matches!(outcome, Disposition::Ack | Disposition::Discard) {
                        there.remove(&text_of(&delivery));
                    }
                    rig.decide(&delivery, outcome);
                }
                Act::Settle(..) => {}
                Act::Leave => {
                    held.clear();
                    rig.command(Command::Detach { channel: READER });
                    rig.run();
                }
                Act::Restart => {
                    rig.run();
                    held.clear();
                    rig = restarted(rig, &rules);
                }
            }
            rig.run();
            prop_assert_eq!(rig.stat().0 + held.len() as u64, there.len() as u64);
        }
    }
}

struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

#[test]
fn a_queue_in_memory_takes_a_key_in_once_too() {
    let (queue, channel) = (QueueId(1), ChannelKey(9));
    let mut queues = TransientQueues::new();
    queues.declare(queue);
    let mut run = |now_ms: u64, mut commands: Vec<Command>| {
        let mut effects = Vec::new();
        queues.step(now_ms, &mut commands, &mut effects, &mut Open);
        effects
    };
    let publish = |seq: u64, key: &str| {
        let target = Target { queue, durability: Durability::Level(Level::Written), selective: None };
        let message = Message {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            properties: keyed(key).into(),
            body: Bytes::from_static(b"x"),
        };
        Command::Publish(Publish {
            channel,
            publish_seq: seq,
            term: 0,
            targets: smallvec![target],
            delay_ms: 0,
            message,
            more: None,
        })
    };
    let get = Command::Get { queue, channel, no_ack: true, request: RequestId(1) };
    run(1, vec![Command::Configure { queue, rules: rules(100).into() }]);
    let effects = run(2, vec![publish(1, "k"), publish(2, "k"), publish(3, "l")]);
    assert_eq!(effects, [Effect::Confirm { channel, first: 1, count: 3 }]);
    let ready = |effects: &[Effect]| match effects {
        [Effect::Reply { reply: Reply::Got { ready, .. }, .. }] => *ready,
        other => panic!("{other:?}"),
    };
    assert_eq!(ready(&run(3, vec![get.clone()])), 1, "one of each key");
    assert_eq!(ready(&run(4, vec![publish(4, "k"), publish(5, "l"), get.clone()])[1..]), 0, "the window is open");
    let effects = run(150, vec![publish(6, "k"), publish(7, "k"), get]);
    assert_eq!(ready(&effects[1..]), 0, "and over, for one");
}

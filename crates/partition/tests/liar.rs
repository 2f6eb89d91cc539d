//! Commands that no sound node sends, over a link whose other side has the secret all the same.
//!
//! Invariant: what can be read ends no process, neither of who leads the partition nor, by its log,
//! of anybody else; and others are served as before.

#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{Consumer, DeadLetterRule, Overflow, Rules};
use broker::topology::Name;
use broker::{ChannelKey, ConsumerKey, NodeLife, QueueId};
use bytes::Bytes;
use consensus::Segments;
use member::{QUEUE, READER, Rig};
use partition::command::{
    Command, Disposition, Durability, EVERYTHING, Effect, Level, Message, Outlets, Publish, Reply, RequestId,
    Selective, Target,
};
use partition::machine::scheduled_for;
use partition::{Forward, TransientQueues};
use proptest::collection::vec;
use proptest::prelude::*;

/// A channel of a node that says what it likes.
const LIAR: ChannelKey = ChannelKey::of(NodeLife { node: 2, start: 9 }, 4);
/// A client of a sound one.
const HONEST: ChannelKey = ChannelKey::of(NodeLife { node: 3, start: 5 }, 6);
const TRANSIENT: QueueId = QueueId(7);

struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

/// Small ones, those that others have, the largest that are taken, and those whose sums have no room.
fn number() -> impl Strategy<Value = u64> {
    let largest = prop::sample::select(vec![(1 << 62) - 1, EVERYTHING, u64::MAX - 1, u64::MAX]);
    prop_oneof![8 => 0..8_u64, 3 => largest, 1 => 0..1_u64 << 62, 1 => any::<u64>()]
}

fn queue() -> impl Strategy<Value = QueueId> {
    // One that keeps what is scheduled for another one is nobody's to name.
    let schedule = scheduled_for(QUEUE);
    prop_oneof![8 => Just(QUEUE), 2 => Just(QueueId(8)), 1 => Just(schedule), 1 => number().prop_map(QueueId)]
}

fn channel() -> impl Strategy<Value = ChannelKey> {
    prop_oneof![8 => Just(LIAR), 1 => Just(HONEST), 1 => Just(READER), 1 => Just(ChannelKey::NOBODY)]
}

fn consumer() -> impl Strategy<Value = ConsumerKey> {
    (channel(), prop_oneof![3 => 0..3_u32, 1 => Just(u32::MAX)])
        .prop_map(|(channel, number)| ConsumerKey { channel, number })
}

fn target() -> impl Strategy<Value = Target> {
    let level =
        prop_oneof![Just(Level::Synced), Just(Level::Written), Just(Level::LeaderWritten), Just(Level::LeaderSynced)];
    let durability = prop_oneof![
        3 => level.prop_map(Durability::Level),
        2 => number().prop_map(|value| Durability::Selective { value }),
    ];
    let selective =
        prop::option::of((number(), number()).prop_map(|(cap, interval_ms)| Selective { cap, interval_ms }));
    (queue(), durability, selective).prop_map(|(queue, durability, selective)| Target { queue, durability, selective })
}

fn properties() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => Just(vec![0, 0]),
        // An expiration and a priority, sound and not.
        1 => Just(vec![1, 0, 1, b'5']),
        1 => Just(vec![1, 0, 20, b'9']),
        1 => Just(vec![8, 0, 255]),
        2 => vec(any::<u8>(), 0..12),
    ]
}

fn publish() -> impl Strategy<Value = Command> {
    let message = (properties(), vec(any::<u8>(), 0..4)).prop_map(|(properties, body)| Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: properties.into(),
        body: body.into(),
    });
    let term = prop_oneof![4 => Just(0_u32), 1 => 0..5_u32, 1 => any::<u32>()];
    let delay = prop_oneof![4 => Just(0), 1 => number()];
    (channel(), number(), term, vec(target(), 1..4), delay, message).prop_map(
        |(channel, publish_seq, term, targets, delay_ms, message)| {
            Command::Publish(Publish {
                channel,
                publish_seq,
                term,
                targets: targets.into(),
                delay_ms,
                message,
                more: None,
            })
        },
    )
}

fn about_a_queue() -> impl Strategy<Value = Command> {
    let consume = (queue(), consumer(), any::<u32>(), any::<i32>(), any::<[bool; 4]>()).prop_map(
        |(queue, key, prefetch, priority, [no_ack, exclusive, granted_only, again])| {
            let consumer = Consumer { key, prefetch, no_ack, exclusive, priority, granted_only };
            Command::Consume { queue, consumer, again, request: RequestId(1) }
        },
    );
    let outcome = prop_oneof![
        Just(Disposition::Ack),
        Just(Disposition::Nack),
        Just(Disposition::Reject),
        Just(Disposition::Discard)
    ];
    let settle = (queue(), consumer(), number(), number(), outcome)
        .prop_map(|(queue, holder, first, count, outcome)| Command::Settle { queue, holder, first, count, outcome });
    let hold = (queue(), consumer(), number(), number()).prop_map(|(queue, consumer, first, count)| Command::Hold {
        queue,
        consumer,
        first,
        count,
    });
    let answered = (queue(), number(), any::<bool>()).prop_map(|(queue, seq, is_safe)| Command::DeadLetterAnswered {
        queue,
        seq,
        is_safe,
    });
    let grant = (queue(), consumer(), any::<u32>()).prop_map(|(queue, consumer, count)| Command::Grant {
        queue,
        consumer,
        count,
    });
    let stall = (queue(), consumer(), any::<bool>()).prop_map(|(queue, consumer, stalled)| Command::Stall {
        queue,
        consumer,
        stalled,
    });
    prop_oneof![4 => consume, 4 => settle, 2 => hold, 1 => answered, 1 => grant, 1 => stall]
}

fn about_a_channel() -> impl Strategy<Value = Command> {
    (0..9_u8, queue(), channel(), consumer(), number(), any::<[bool; 2]>()).prop_map(
        |(which, queue, channel, consumer, request, [one, other])| {
            let request = RequestId(request);
            match which {
                0 => Command::Get { queue, channel, no_ack: one, request },
                1 => Command::Purge { queue, channel, request },
                2 => Command::Stat { queue, channel, request },
                3 => Command::Close { queue, if_unused: one, if_empty: other, channel, request },
                4 => Command::Cancel { queue, consumer, request },
                5 => Command::Reopen { queue },
                6 => Command::Detach { channel },
                7 => Command::Sync { channel, request },
                _ => Command::Mark { channel, request },
            }
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![3 => publish(), 4 => about_a_queue(), 2 => about_a_channel()]
}

/// As it comes over a link; `None` if it is refused there.
fn sent(command: &Command) -> Option<Command> {
    let mut out = Segments::new();
    Forward::Command(command.clone()).encode(&mut out);
    match Forward::decode(&mut out.to_bytes()) {
        Ok(Forward::Command(command)) => Some(command),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

fn rules() -> impl Strategy<Value = Option<Rules>> {
    let rejecting = Rules { length_max: Some(3), overflow: Overflow::RejectPublish, ..Rules::default() };
    let name = |name: &[u8]| Name::new(name);
    let dead_letter = DeadLetterRule { exchange: name(b"x"), routing_key: None, at_least_once: true };
    let strict =
        Rules { message_ttl_ms: Some(3), delivery_limit: Some(1), dead_letter: Some(dead_letter), ..rejecting.clone() };
    prop_oneof![2 => Just(None), 1 => Just(Some(rejecting)), 1 => Just(Some(strict))]
}

fn honest_publish(seq: u64, queue: QueueId) -> Command {
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from_static(b"honest"),
    };
    let durability = Durability::Level(Level::Synced);
    let targets = std::iter::once(Target { queue, durability, selective: None }).collect();
    Command::Publish(Publish { channel: HONEST, publish_seq: seq, term: 0, targets, delay_ms: 0, message, more: None })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_node_asks_a_leader_serves_others_and_its_log_can_be_read(
        rules in rules(), turns in vec(vec(command(), 1..6), 1..6)
    ) {
        let mut rig = Rig::new(Vec::new(), 1 << 20);
        if let Some(rules) = rules {
            rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
        }
        for turn in &turns {
            turn.iter().filter_map(sent).for_each(|command| rig.command(command));
            rig.run();
        }
        rig.pass(10);
        rig.effects.clear();
        rig.command(honest_publish(1 << 40, QueueId(9)));
        rig.run();
        let is_confirmed = |e: &Effect| matches!(e, Effect::Confirm { channel: HONEST, .. } | Effect::Refuse { channel: HONEST, .. });
        prop_assert!(rig.effects.iter().any(is_confirmed), "{:?}", rig.effects);
        // Whoever leads next reads the same log.
        let mut next = rig.restarted();
        next.command(Command::Stat { queue: QueueId(9), channel: HONEST, request: RequestId(3) });
        next.run();
        let is_answered = |e: &Effect| matches!(e, Effect::Reply { channel: HONEST, reply: Reply::Stat { .. }, .. });
        prop_assert!(next.effects.iter().any(is_answered), "{:?}", next.effects);
    }

    #[test]
    fn whatever_a_node_asks_of_queues_in_memory_others_are_served(rules in rules(), turns in vec(vec(command(), 1..6), 1..6)) {
        let (mut queues, mut now, mut effects) = (TransientQueues::new(), 1000, Vec::new());
        queues.declare(TRANSIENT);
        queues.declare(QueueId(9));
        let mut turn = |mut commands: Vec<Command>, effects: &mut Vec<Effect>| {
            now += 2;
            queues.step(now, &mut commands, effects, &mut Open);
        };
        if let Some(rules) = rules {
            turn(vec![Command::Configure { queue: TRANSIENT, rules: rules.into() }], &mut effects);
        }
        for commands in &turns {
            turn(commands.iter().filter_map(sent).collect(), &mut effects);
        }
        effects.clear();
        turn(vec![honest_publish(1 << 40, QueueId(9))], &mut effects);
        let is_answered = |e: &Effect| matches!(e, Effect::Confirm { channel: HONEST, .. } | Effect::Refuse { channel: HONEST, .. });
        prop_assert!(effects.iter().any(is_answered), "{:?}", effects);
    }
}

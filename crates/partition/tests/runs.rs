//! Several messages that are published as one: nothing is otherwise than if each had come by itself.
#![allow(clippy::unwrap_used)]

mod member;

use amqp::Bodies;
use broker::queue::{Overflow, Rules};
use broker::{ChannelKey, ConsumerKey};
use bytes::Bytes;
use member::{PUBLISHER, QUEUE, Rig};
use partition::command::{
    Command, Disposition, Durability, Effect, Level, Message, Outlets, Publish, RequestId, Target,
};
use partition::refuse;
use partition::{Reply, TransientQueues};
use proptest::prelude::*;
use smallvec::smallvec;
use std::sync::Arc;

/// Publishes from `first` on, with these bodies.
fn run(channel: ChannelKey, first: u64, properties: &[u8], bodies: &[Bytes]) -> Publish {
    let message = Message {
        exchange: Bytes::from_static(b"amq.direct"),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::copy_from_slice(properties),
        body: bodies[0].clone(),
    };
    let durability = Durability::Level(Level::Synced);
    let targets = smallvec![Target { queue: QUEUE, durability, selective: None }];
    let more = (bodies.len() > 1).then(|| Arc::new(Bodies::copied(bodies[1..].iter().map(|body| &body[..]))));
    Publish { channel, publish_seq: first, term: 0, targets, delay_ms: 0, message, more }
}

fn bodies(lengths: &[usize]) -> Vec<Bytes> {
    lengths.iter().enumerate().map(|(at, length)| vec![at as u8; *length].into()).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// From which channel, how far behind or ahead of its last number, which properties, bodies of which lengths.
    Publish {
        channel: u64,
        ahead: i64,
        properties: usize,
        lengths: Vec<usize>,
    },
    Run,
    Restart,
}

const PROPERTIES: [&[u8]; 4] = [&[0, 0], &[0x10, 0, 2], &[8, 0, 7], b"\x01\x00\x0210"];

fn step() -> impl Strategy<Value = Step> {
    let lengths = prop::collection::vec(prop_oneof![4 => 0_usize..40, 1 => 200_usize..900], 1..9);
    prop_oneof![
        8 => (0_u64..3, -4_i64..3, 0_usize..4, lengths)
            .prop_map(|(channel, ahead, properties, lengths)| Step::Publish { channel, ahead, properties, lengths }),
        2 => Just(Step::Run),
        1 => Just(Step::Restart),
    ]
}

/// What a partition says and writes in these steps, each run apart or as one.
fn result(steps: &[Step], rules: Option<&Rules>, apart: bool) -> (Vec<Effect>, Vec<Bytes>, (u64, u64, u64)) {
    let configure = |rig: &mut Rig| {
        if let Some(rules) = rules {
            rig.command(Command::Configure { queue: QUEUE, rules: rules.clone().into() });
            rig.run();
        }
    };
    // Queues are known once something came: the first publish makes it so.
    let mut rig = Rig::terse(Vec::new(), 32 << 10);
    configure(&mut rig);
    let mut last = [0_u64, 100, 7];
    let mut effects = Vec::new();
    for step in steps {
        let now = rig.now;
        match step {
            Step::Publish { channel, ahead, properties, lengths } => {
                let last = &mut last[*channel as usize];
                // The first channel asks for no confirms.
                let first = if *channel == 0 { 0 } else { last.saturating_add_signed(1 + ahead.min(&0)).max(1) };
                let first = if *ahead > 0 && *channel > 0 { first + *ahead as u64 } else { first };
                let channel =
                    if *channel == 0 { ChannelKey::NOBODY } else { ChannelKey(PUBLISHER.0 + u128::from(*channel)) };
                let publish = run(channel, first, PROPERTIES[*properties], &bodies(lengths));
                if first > 0 {
                    *last = (*last).max(first + publish.count() - 1);
                }
                match apart {
                    true => publish.apart().for_each(|publish| {
                        // All of them at one time.
                        rig.now = now;
                        rig.command(Command::Publish(publish));
                    }),
                    false => rig.command(Command::Publish(publish)),
                }
            }
            Step::Run => rig.run(),
            Step::Restart => {
                rig.run();
                effects.append(&mut rig.effects);
                let log = std::mem::take(&mut rig.log);
                rig = Rig::terse(log, 32 << 10);
                configure(&mut rig);
            }
        }
        rig.now = now + 10;
    }
    rig.run();
    effects.append(&mut rig.effects);
    let stat = rig.stat();
    (effects, rig.log.into_iter().map(|(.., body, _)| body).collect(), stat)
}

/// Confirms and refusals, message by message.
fn answers(effects: &[Effect]) -> Vec<(bool, u64, u64)> {
    let each = |is_confirmed, channel: &ChannelKey, first: &u64, count: &u64| {
        (*first..*first + *count).map(|seq| (is_confirmed, channel.0, seq)).collect::<Vec<_>>()
    };
    effects
        .iter()
        .flat_map(|effect| match effect {
            Effect::Confirm { channel, first, count } => each(true, channel, first, count),
            Effect::Refuse { channel, first, count } => each(false, channel, first, count),
            _ => Vec::new(),
        })
        .map(|(is_confirmed, channel, seq)| (is_confirmed, channel as u64, seq))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_run_is_what_its_messages_are(
        steps in prop::collection::vec(step(), 1..25),
        bounds in prop::option::of((1_u64..30, 0_u8..5)),
    ) {
        let rules = bounds.map(|(length_max, kind)| Rules {
            length_max: (kind < 2).then_some(length_max),
            length_bytes_max: (kind == 2).then_some(length_max * 30),
            overflow: if kind == 0 { Overflow::RejectPublish } else { Overflow::DropHead },
            message_ttl_ms: (kind == 3).then_some(25),
            delivery_limit: Some(20),
            ..Rules::default()
        });
        let (as_one, apart) = (result(&steps, rules.as_ref(), false), result(&steps, rules.as_ref(), true));
        let (mut answered, mut expected) = (answers(&as_one.0), answers(&apart.0));
        // In which order channels hear of one entry is nobody's business, and entries may end elsewhere.
        answered.sort_by_key(|(_, channel, seq)| (*channel, *seq));
        expected.sort_by_key(|(_, channel, seq)| (*channel, *seq));
        prop_assert_eq!(answered, expected);
        prop_assert_eq!(as_one.2, apart.2);
        prop_assert_eq!(messages(&as_one.1), messages(&apart.1));
    }
}

/// All messages in entries, in their order: publisher, number, what is stored but for the distance.
fn messages(entries: &[Bytes]) -> Vec<(u128, u64, Vec<u8>, Vec<u8>)> {
    use partition::entry::{Commands, LogCommand};
    let mut all = Vec::new();
    for entry in entries.iter().filter(|entry| !entry.is_empty()) {
        let Ok(mut commands) = Commands::parse(entry) else { continue };
        while let Some(command) = commands.next().unwrap() {
            let LogCommand::Publish(batch) = command else { continue };
            assert!(batch.is_intact());
            for message in batch.iter() {
                let seq = batch.first_publish_seq() + u64::from(message.publish_delta());
                all.push((batch.publisher().0, seq, message.properties().to_vec(), message.body().to_vec()));
            }
        }
    }
    all
}

#[test]
fn a_run_is_one_batch_of_the_log() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "the queue is known from here on");
    rig.run();
    let before = rig.log.len();
    let lengths: Vec<usize> = (0..200).collect();
    rig.command(Command::Publish(run(PUBLISHER, 2, &[0, 0], &bodies(&lengths))));
    rig.run();
    let stored = messages(&rig.log[before..].iter().map(|(.., body, _)| body.clone()).collect::<Vec<_>>());
    assert_eq!(stored.iter().map(|(_, seq, ..)| *seq).collect::<Vec<_>>(), (2..202).collect::<Vec<_>>());
    assert_eq!(stored.iter().map(|(.., body)| body.len()).collect::<Vec<_>>(), lengths);
    assert_eq!((rig.confirmed(), rig.stat().0), ((1..202).collect(), 201));
    assert_eq!(rig.log.len() - before, 1, "one entry");
}

#[test]
fn who_does_not_lead_refuses_or_returns_all_of_a_run() {
    let publish =
        |term, first| Command::Publish(Publish { term, ..run(PUBLISHER, first, &[0, 0], &bodies(&[1, 2, 3])) });
    let refused = |command| {
        let mut effects = Vec::new();
        refuse(command, Reply::NotLeader, &mut effects);
        effects
    };
    let channel = PUBLISHER;
    assert_eq!(refused(publish(0, 5)), [Effect::Refuse { channel, first: 5, count: 3 }]);
    assert_eq!(refused(publish(4, 5)), [Effect::Returned { channel, first: 5, count: 3, term: 4 }]);
    assert_eq!(refused(publish(4, 0)), []);
}

#[test]
fn a_run_is_parted_between_any_two_of_its_messages() {
    let whole = run(PUBLISHER, 10, &[0, 0], &bodies(&[1, 2, 3, 4]));
    for count in 1..4 {
        let (mut first, each) = (whole.clone(), whole.apart().collect::<Vec<_>>());
        let rest = first.split_off(count);
        assert_eq!((first.count(), rest.count(), rest.publish_seq), (count, 4 - count, 10 + count));
        assert_eq!(first.body_bytes() + rest.body_bytes(), whole.body_bytes());
        assert_eq!(first.apart().chain(rest.apart()).collect::<Vec<_>>(), each);
    }
    let unnumbered = run(ChannelKey::NOBODY, 0, &[0, 0], &bodies(&[1, 2]));
    for run in [&whole, &unnumbered] {
        let mut each = Vec::new();
        run.each(|publish| each.push(publish.clone()));
        assert_eq!(each, run.apart().collect::<Vec<_>>());
    }
    assert!(unnumbered.apart().all(|publish| publish.publish_seq == 0));
    assert_eq!(unnumbered.clone().split_off(1).publish_seq, 0);
}

/// After a restart the log lets all of them out at once: what a consumer may have is for its queue to know.
#[test]
fn what_goes_out_in_a_row_is_what_its_consumers_may_have() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "1");
    rig.command(Command::Publish(run(PUBLISHER, 2, &[0, 0], &bodies(&[3; 99]))));
    rig.consume(1, 0, false);
    rig.run();
    let seqs =
        |rig: &mut Rig| rig.delivered().iter().map(|d| (d.consumer.number, d.seq, d.redelivered)).collect::<Vec<_>>();
    assert_eq!(seqs(&mut rig), (1..=100).map(|seq| (1, seq, false)).collect::<Vec<_>>());
    let mut rig = rig.restarted();
    rig.consume(1, 7, false);
    rig.run();
    assert_eq!(seqs(&mut rig), (1..=7).map(|seq| (1, seq, true)).collect::<Vec<_>>());
    rig.settle(1, 1, 3, Disposition::Ack);
    rig.run();
    assert_eq!(seqs(&mut rig), (8..=10).map(|seq| (1, seq, true)).collect::<Vec<_>>());
    // One that acks nothing has the rest, but for what was acked meanwhile.
    rig.settle(1, 4, 7, Disposition::Nack);
    rig.command(Command::Detach { channel: member::READER });
    rig.consume(2, 0, true);
    rig.run();
    assert_eq!(seqs(&mut rig), (4..=100).map(|seq| (2, seq, true)).collect::<Vec<_>>());
    assert_eq!((rig.stat(), rig.restarted().stat()), ((0, 0, 1), (0, 0, 0)));
}

/// Two consumers have as many at a time as their queue's share says, whatever is in hand.
#[test]
fn what_goes_out_in_a_row_is_shared() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    [1, 2].into_iter().for_each(|number| rig.consume(number, 0, false));
    rig.publish_synced(1, "1");
    rig.run();
    rig.delivered();
    rig.command(Command::Publish(run(PUBLISHER, 2, &[0, 0], &bodies(&[3; 200]))));
    rig.run();
    let delivered = rig.delivered();
    let turns = delivered.chunk_by(|one, next| one.consumer == next.consumer).map(|turn| turn.len());
    let turns: Vec<usize> = turns.collect();
    assert_eq!((delivered.len(), turns.iter().sum::<usize>()), (200, 200));
    assert!(turns.len() > 4 && turns.iter().all(|turn| *turn <= 64), "{turns:?}");
}

/// A consumer has all the room it wants.
struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

#[test]
fn a_run_is_what_its_messages_are_in_memory_too() {
    for length_max in [None, Some(5)] {
        let rules = Rules { length_max, overflow: Overflow::RejectPublish, ..Rules::default() };
        let say = |publishes: Vec<Command>| {
            let mut queues = TransientQueues::new();
            queues.declare(QUEUE);
            let get = Command::Get { queue: QUEUE, channel: member::READER, no_ack: true, request: RequestId(1) };
            let configure = Command::Configure { queue: QUEUE, rules: rules.clone().into() };
            let mut commands = [vec![configure], publishes, vec![get; 9]].concat();
            let mut effects = Vec::new();
            queues.step(1, &mut commands, &mut effects, &mut Open);
            effects
        };
        let row = run(PUBLISHER, 3, &[0, 0], &bodies(&[1, 2, 3, 4, 5, 6, 7, 8]));
        let as_one = say(vec![Command::Publish(row.clone())]);
        assert_eq!(as_one, say(row.apart().map(Command::Publish).collect()));
        let confirmed = if length_max.is_some() { 5 } else { 8 };
        assert_eq!(as_one[0], Effect::Confirm { channel: PUBLISHER, first: 3, count: confirmed });
    }
}

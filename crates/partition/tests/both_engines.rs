//! One suite over both queue engines: what a durable queue does with its rules, an in-memory queue
//! does too.
//!
//! Invariant: after each act both have confirmed, refused, delivered, dead-lettered and kept the
//! same. Times are far apart, so that the milliseconds which the durable engine's acts take make no
//! difference.

#![allow(clippy::unwrap_used)]

mod member;

use broker::ConsumerKey;
use broker::queue::{Consumer, DeadLetterRule, Overflow, Rules};
use broker::topology::Name;
use bytes::Bytes;
use member::{PUBLISHER, QUEUE, READER, Rig, configured, consumer};
use partition::TransientQueues;
use partition::command::{
    Command, Disposition, Durability, Effect, Level, Message, Outlets, Publish, Reply, RequestId, Target,
};
use partition::message::MessageView;
use proptest::prelude::*;
use smallvec::smallvec;

struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

/// What the suite asks of an engine.
trait Engine {
    fn new(rules: &Rules) -> Self;
    /// Carries out commands of one turn, and everything that follows from them.
    fn turn(&mut self, commands: Vec<Command>) -> Vec<Effect>;
    /// Lets time pass.
    fn pass(&mut self, ms: u64) -> Vec<Effect>;
}

impl Engine for Rig {
    fn new(rules: &Rules) -> Self {
        configured(Vec::new(), rules)
    }

    fn turn(&mut self, commands: Vec<Command>) -> Vec<Effect> {
        commands.into_iter().for_each(|command| self.command(command));
        self.run();
        std::mem::take(&mut self.effects)
    }

    fn pass(&mut self, ms: u64) -> Vec<Effect> {
        Rig::pass(self, ms);
        std::mem::take(&mut self.effects)
    }
}

struct InMemory {
    queues: TransientQueues,
    now: u64,
}

impl Engine for InMemory {
    fn new(rules: &Rules) -> Self {
        let mut this = InMemory { queues: TransientQueues::new(), now: 1000 };
        this.queues.declare(QUEUE);
        this.turn(vec![Command::Configure { queue: QUEUE, rules: rules.clone().into() }]);
        this
    }

    fn turn(&mut self, mut commands: Vec<Command>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.now += 1;
        self.queues.step(self.now, &mut commands, &mut effects, &mut Open);
        effects
    }

    fn pass(&mut self, ms: u64) -> Vec<Effect> {
        self.now += ms;
        self.turn(Vec::new())
    }
}

/// What was seen of an act, in words that both engines share: the numbers of messages are each
/// engine's own.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    confirmed: Vec<u64>,
    refused: Vec<u64>,
    delivered: Vec<(Vec<u8>, bool)>,
    got: Vec<Option<Vec<u8>>>,
    letters: Vec<(String, Vec<u8>)>,
    counted: Vec<u64>,
    lapsed: usize,
    /// Ready, unacked, consumers.
    stat: (u64, u64, u64),
}

/// An engine, and what its consumers hold.
struct Subject<E> {
    engine: E,
    held: Vec<(ConsumerKey, u64)>,
}

fn body(message: &Bytes) -> Vec<u8> {
    MessageView::parse(message).unwrap().body().to_vec()
}

impl<E: Engine> Subject<E> {
    fn new(rules: &Rules) -> Self {
        Subject { engine: E::new(rules), held: Vec::new() }
    }

    fn note(&mut self, effects: Vec<Effect>, seen: &mut Seen) {
        for effect in effects {
            match effect {
                Effect::Confirm { first, count, .. } => seen.confirmed.extend(first..first + count),
                Effect::Refuse { first, count, .. } | Effect::Returned { first, count, .. } => {
                    seen.refused.extend(first..first + count)
                }
                Effect::Deliver(delivery) => {
                    seen.delivered.push((body(&delivery.message), delivery.redelivered));
                    self.held.push((delivery.consumer, delivery.seq));
                }
                Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => {
                    seen.got.push(Some(body(&delivery.message)));
                    self.held.push((ConsumerKey::get(READER), delivery.seq));
                }
                Effect::Reply { reply: Reply::Empty, .. } => seen.got.push(None),
                Effect::Reply { reply: Reply::Counted(count), .. } => seen.counted.push(count),
                Effect::Reply { reply: Reply::Stat { ready, unacked, consumers }, .. } => {
                    seen.stat = (ready, unacked, consumers);
                }
                Effect::DeadLetter(letter) => {
                    seen.letters.push((format!("{:?}", letter.reason), body(&letter.message)))
                }
                Effect::Lapsed { .. } => seen.lapsed += 1,
                _ => {}
            }
        }
    }

    fn act(&mut self, act: &Act, first_seq: u64) -> Seen {
        let mut seen = Seen::default();
        let effects = match act {
            Act::Publish(bodies) => {
                let publish =
                    |(at, (bytes, ttl)): (usize, &(usize, Option<u64>))| publish(first_seq + at as u64, *bytes, *ttl);
                self.engine.turn(bodies.iter().enumerate().map(publish).collect())
            }
            Act::Get => {
                let get = Command::Get { queue: QUEUE, channel: READER, no_ack: false, request: RequestId(5) };
                self.engine.turn(vec![get])
            }
            Act::Consume(number, prefetch) => {
                let consumer = Consumer {
                    key: consumer(*number),
                    prefetch: *prefetch,
                    no_ack: false,
                    exclusive: false,
                    priority: 0,
                    granted_only: false,
                };
                self.engine.turn(vec![Command::Consume { again: false, queue: QUEUE, consumer, request: RequestId(6) }])
            }
            Act::Settle(which, outcome) => match self.held.is_empty() {
                true => Vec::new(),
                false => {
                    let (holder, first) = self.held.remove(which % self.held.len());
                    let outcome = *outcome;
                    self.engine.turn(vec![Command::Settle { queue: QUEUE, holder, first, count: 1, outcome }])
                }
            },
            Act::Leave => {
                self.held.clear();
                self.engine.turn(vec![Command::Detach { channel: READER }])
            }
            Act::Purge => {
                self.engine.turn(vec![Command::Purge { queue: QUEUE, channel: READER, request: RequestId(7) }])
            }
            Act::Pass(ms) => self.engine.pass(*ms),
        };
        self.note(effects, &mut seen);
        // Whatever follows by itself.
        for _ in 0..2 {
            let effects = self.engine.pass(1);
            self.note(effects, &mut seen);
        }
        let stat = self.engine.turn(vec![Command::Stat { queue: QUEUE, channel: READER, request: RequestId(9) }]);
        self.note(stat, &mut seen);
        seen.letters.sort();
        seen
    }
}

fn publish(seq: u64, bytes: usize, ttl: Option<u64>) -> Command {
    let mut properties = vec![0, 0];
    if let Some(ttl) = ttl.map(|ms| ms.to_string()) {
        properties = [&[1, 0, ttl.len() as u8][..], ttl.as_bytes()].concat();
    }
    let mut body = vec![seq as u8; bytes];
    if let Some(first) = body.first_mut() {
        *first = (seq >> 8) as u8;
    }
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: properties.into(),
        body: body.into(),
    };
    let targets = smallvec![Target { queue: QUEUE, durability: Durability::Level(Level::Synced), selective: None }];
    Command::Publish(Publish {
        channel: PUBLISHER,
        publish_seq: seq,
        term: 0,
        targets,
        delay_ms: 0,
        message,
        more: None,
    })
}

#[derive(Clone, Debug)]
enum Act {
    /// In one turn: sizes of bodies, with time limits of their own.
    Publish(Vec<(usize, Option<u64>)>),
    Get,
    Consume(u32, u32),
    Settle(usize, Disposition),
    Leave,
    Purge,
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let ttl = prop_oneof![4 => Just(None), 1 => Just(Some(40_000))];
    let outcome = prop_oneof![
        Just(Disposition::Ack),
        Just(Disposition::Nack),
        Just(Disposition::Reject),
        Just(Disposition::Discard)
    ];
    prop_oneof![
        6 => proptest::collection::vec((0..14usize, ttl), 1..4).prop_map(Act::Publish),
        2 => Just(Act::Get),
        2 => (1..3u32, 1..4u32).prop_map(|(number, prefetch)| Act::Consume(number, prefetch)),
        4 => (0..8usize, outcome).prop_map(|(which, outcome)| Act::Settle(which, outcome)),
        1 => Just(Act::Leave),
        1 => Just(Act::Purge),
        2 => prop_oneof![Just(30_000u64), Just(60_000)].prop_map(Act::Pass),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let overflow =
        prop_oneof![Just(Overflow::DropHead), Just(Overflow::RejectPublish), Just(Overflow::RejectPublishDlx)];
    let length = proptest::option::of(0..4u64);
    let bytes = proptest::option::of(prop_oneof![Just(0u64), Just(10), Just(20)]);
    let ttl = proptest::option::weighted(0.3, prop_oneof![Just(0u64), Just(50_000)]);
    // After each act the queue is asked how it stands, as a declare does: where that renews it, it
    // is never unused for long.
    let lapse = (proptest::option::weighted(0.3, Just(100_000u64)), any::<bool>());
    (overflow, length, bytes, ttl, any::<bool>(), lapse).prop_map(
        |(overflow, length_max, length_bytes_max, message_ttl_ms, dead_letters, (expires_ms, declare_renews))| {
            let rule = DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once: false };
            Rules {
                overflow,
                length_max,
                length_bytes_max,
                message_ttl_ms,
                expires_ms,
                dead_letter: dead_letters.then_some(rule),
                declare_renews,
                ..Rules::default()
            }
        },
    )
}

/// Has both engines do the same, and compares after each act.
fn compare(rules: &Rules, acts: &[Act]) {
    let mut durable = Subject::<Rig>::new(rules);
    let mut in_memory = Subject::<InMemory>::new(rules);
    let mut seq = 1;
    let mut consumers = Vec::new();
    for (at, act) in acts.iter().enumerate() {
        match act {
            Act::Consume(number, _) if consumers.contains(number) => continue,
            Act::Consume(number, _) => consumers.push(*number),
            Act::Leave => consumers.clear(),
            _ => {}
        }
        let (ours, theirs) = (durable.act(act, seq), in_memory.act(act, seq));
        assert_eq!(ours, theirs, "durable and in memory differ in act {at}, {act:?}, of {acts:?} under {rules:?}");
        seq += if let Act::Publish(bodies) = act { bodies.len() as u64 } else { 0 };
    }
}

#[test]
fn a_body_above_the_limit_is_refused_also_where_a_consumer_waits_for_it() {
    for overflow in [Overflow::RejectPublish, Overflow::RejectPublishDlx] {
        let rules = Rules { length_bytes_max: Some(10), overflow, ..Rules::default() };
        fn refused<E: Engine>(rules: &Rules) -> Vec<(Vec<u64>, Vec<u64>)> {
            let mut subject = Subject::<E>::new(rules);
            subject.act(&Act::Consume(1, 0), 0);
            let sizes = [11, 10, 10];
            let tried = sizes.iter().zip(1..).map(|(bytes, seq)| subject.act(&Act::Publish(vec![(*bytes, None)]), seq));
            tried.map(|seen| (seen.confirmed, seen.refused)).collect()
        }
        let wanted = vec![(vec![], vec![1]), (vec![2], vec![]), (vec![3], vec![])];
        assert_eq!(refused::<Rig>(&rules), wanted, "durable");
        assert_eq!(refused::<InMemory>(&rules), wanted, "in memory");
    }
}

#[test]
fn the_time_of_an_unused_queue_begins_anew_with_other_rules_and_not_with_the_same_again() {
    fn lapses<E: Engine>(after: &Rules) -> Vec<usize> {
        let rules = Rules { expires_ms: Some(100_000), ..Rules::default() };
        let mut subject = Subject::<E>::new(&rules);
        subject.act(&Act::Pass(60_000), 0);
        subject.engine.turn(vec![Command::Configure { queue: QUEUE, rules: after.clone().into() }]);
        [60_000, 60_000].iter().map(|ms| subject.act(&Act::Pass(*ms), 0).lapsed).collect()
    }
    let same = Rules { expires_ms: Some(100_000), ..Rules::default() };
    let other = Rules { length_max: Some(7), ..same.clone() };
    for (rules, wanted) in [(&same, [1, 0]), (&other, [0, 1])] {
        assert_eq!(lapses::<Rig>(rules), wanted, "durable, {rules:?}");
        assert_eq!(lapses::<InMemory>(rules), wanted, "in memory, {rules:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn both_engines_answer_alike(rules in rules(), acts in proptest::collection::vec(act(), 1..25)) {
        compare(&rules, &acts);
    }
}

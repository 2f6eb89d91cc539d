//! Messages that are too old and would become dead letters, while there is no room for one.

#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{Consumer, DeadLetterRule, Rules};
use broker::topology::Name;
use broker::{ChannelKey, ConsumerKey, QueueId};
use bytes::Bytes;
use member::{QUEUE, READER, Rig, configured, texts};
use partition::command::{Command, Durability, Effect, Level, Message, Outlets, Publish, Reply, RequestId, Target};
use partition::message::MessageView;
use partition::{DeadLetter, TransientQueues};

const TTL_MS: u64 = 1_000;

fn rules(dead_letters: bool) -> Rules {
    let rule = DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once: false };
    Rules { message_ttl_ms: Some(TTL_MS), dead_letter: dead_letters.then_some(rule), ..Rules::default() }
}

fn bodies(letters: &[DeadLetter]) -> Vec<String> {
    let body = |letter: &DeadLetter| MessageView::parse(&letter.message).unwrap().body().to_vec();
    letters.iter().map(|letter| String::from_utf8(body(letter)).unwrap()).collect()
}

/// A queue with these messages, which are too old from now on.
fn aged(messages: &[&str], room: usize) -> Rig {
    let mut rig = configured(Vec::new(), &rules(true));
    messages.iter().zip(1..).for_each(|(text, seq)| rig.publish_synced(seq, text));
    rig.run();
    rig.letter_room = room;
    rig.pass(2 * TTL_MS);
    rig
}

#[test]
fn what_is_too_old_stays_until_there_is_room_and_leaves_in_its_order() {
    let mut rig = aged(&["a", "b", "c", "d", "e"], 2);
    assert_eq!(bodies(&rig.letters()), ["a", "b"]);
    assert_eq!(rig.stat(), (3, 0, 0));
    let due_ms = rig.partition.due_ms().expect("nothing else may wake the queue");
    assert!((1..=50).contains(&due_ms.saturating_sub(rig.now)), "{due_ms} at {}", rig.now);
    rig.letter_room = usize::MAX;
    rig.pass(50);
    assert_eq!(bodies(&rig.letters()), ["c", "d", "e"]);
    assert_eq!(rig.stat(), (0, 0, 0));
}

#[test]
fn nobody_is_given_what_is_too_old_while_it_waits_for_room() {
    let mut rig = aged(&["a", "b"], 0);
    rig.consume(1, 10, false);
    rig.publish_synced(3, "young");
    rig.run();
    rig.pass(100);
    assert_eq!(texts(&rig.delivered()), [""; 0], "what is behind it keeps its place");
    // What came while the others waited is as old as any.
    rig.pass(2 * TTL_MS);
    rig.letter_room = usize::MAX;
    rig.publish_synced(4, "younger");
    rig.pass(50);
    assert_eq!(bodies(&rig.letters()), ["a", "b", "young"]);
    assert_eq!(texts(&rig.delivered()), ["younger"]);
}

#[test]
fn a_get_waits_for_what_is_too_old_before_it() {
    let mut rig = aged(&["a"], 0);
    rig.publish_synced(2, "young");
    rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(5) });
    rig.run();
    let got = |rig: &Rig| {
        let of = |effect: &Effect| match effect {
            Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(delivery.clone()),
            _ => None,
        };
        texts(&rig.effects.iter().filter_map(of).collect::<Vec<_>>())
    };
    assert_eq!(got(&rig), [""; 0]);
    rig.letter_room = 1;
    rig.pass(50);
    assert_eq!(got(&rig), ["young"]);
    assert_eq!(bodies(&rig.letters()), ["a"]);
}

#[test]
fn what_becomes_no_dead_letter_needs_no_room() {
    let mut rig = configured(Vec::new(), &rules(false));
    (1..=3).for_each(|seq| rig.publish_synced(seq, "plain"));
    rig.run();
    rig.letter_room = 0;
    rig.pass(2 * TTL_MS);
    assert_eq!(rig.stat(), (0, 0, 0));
}

#[test]
fn only_so_many_bytes_of_letters_wait_for_the_log_at_a_time() {
    let mut rig = Rig::new(Vec::new(), 64 << 20);
    rig.command(Command::Configure { queue: QUEUE, rules: rules(true).into() });
    let large = "x".repeat(512 << 10);
    (1..=12).for_each(|seq| rig.publish_synced(seq, &large));
    rig.run();
    rig.now += 2 * TTL_MS;
    for _ in 0..20 {
        rig.with(|p, cx| p.flush(cx));
        rig.now += 50;
    }
    assert_eq!(rig.letters().len(), 0, "nothing is written");
    rig.write();
    rig.sync();
    rig.with(|p, cx| p.flush(cx));
    let first = rig.letters().len();
    assert!((8..=9).contains(&first), "4 MiB of 6: {first}");
    rig.pass(50);
    assert_eq!(first + rig.letters().len(), 12);
}

#[test]
fn a_queue_in_memory_waits_for_room_too() {
    struct Room(usize);
    impl Outlets for Room {
        fn room(&mut self, _: ConsumerKey) -> usize {
            usize::MAX
        }

        fn has_letter_room(&mut self, _: QueueId) -> bool {
            self.0 > 0
        }

        fn take_letter_room(&mut self, _: QueueId, _: usize) {
            self.0 -= 1;
        }
    }
    let mut queues = TransientQueues::new();
    queues.declare(QUEUE);
    let mut step = |now_ms: u64, room: usize, mut commands: Vec<Command>| {
        let mut effects = Vec::new();
        queues.step(now_ms, &mut commands, &mut effects, &mut Room(room));
        let letters = effects.iter().filter_map(|e| if let Effect::DeadLetter(l) = e { Some(l.seq) } else { None });
        let letters: Vec<u64> = letters.collect();
        let given = effects.iter().filter(|e| matches!(e, Effect::Deliver(_))).count();
        (letters, given, queues.due_ms())
    };
    let publish = |publish_seq: u64| {
        let target = Target { queue: QUEUE, durability: Durability::Level(Level::Written), selective: None };
        let none = Bytes::new();
        let properties = Bytes::from_static(&[0, 0]);
        let message = Message { exchange: none.clone(), routing_key: none.clone(), properties, body: none };
        let targets = [target].into_iter().collect();
        Command::Publish(Publish {
            channel: ChannelKey(1),
            publish_seq,
            term: 0,
            targets,
            delay_ms: 0,
            message,
            more: None,
        })
    };
    let configure = Command::Configure { queue: QUEUE, rules: rules(true).into() };
    step(1, 0, std::iter::once(configure).chain((1..=5).map(publish)).collect());
    let (letters, _, due_ms) = step(2_000, 2, Vec::new());
    assert_eq!(letters, [1, 2]);
    assert!((2_001..=2_050).contains(&due_ms.unwrap()), "{due_ms:?}");
    let key = ConsumerKey { channel: READER, number: 1 };
    let consumer = Consumer { key, prefetch: 10, no_ack: false, exclusive: false, priority: 0, granted_only: false };
    let consume = Command::Consume { again: false, queue: QUEUE, consumer, request: RequestId(1) };
    assert_eq!(step(2_050, 0, vec![consume]).1, 0);
    let (letters, given, _) = step(2_100, 10, Vec::new());
    assert_eq!((letters, given), (vec![3, 4, 5], 0));
}

//! Messages whose bytes rot on the disk: told, set aside in the log, never given out, and the
//! others go on in order.
#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{DeadLetterRule, LevelRule, Rules};
use bytes::Bytes;
use member::{PUBLISHER, QUEUE, READER, Rig, texts};
use partition::command::{Command, Disposition, Durability, Effect, Level, Message, Publish, Reply, RequestId, Target};
use partition::outputs::{Damage, DamagedRun, ExtentReady, ExtentRun, Fate};
use partition::place::Place;
use smallvec::smallvec;

/// `count` messages, each in a batch of its own, none of them in memory; and where each batch
/// begins.
fn filled(count: u64) -> (Rig, Vec<u64>) {
    let mut rig = Rig::new(Vec::new(), 1);
    for seq in 1..=count {
        rig.publish_synced(seq, &format!("m{seq}"));
        rig.run();
    }
    let places = places(&rig);
    (rig, places)
}

fn places(rig: &Rig) -> Vec<u64> {
    let runs = rig.partition.queues().queue(QUEUE).unwrap().runs();
    let offset = |place| match place {
        Place::Wal { offset, .. } => u64::from(offset),
        Place::Extent { .. } => panic!("nothing is in an extent yet"),
    };
    runs.iter().map(|run| offset(run.place)).collect()
}

fn told(rig: &mut Rig) -> Vec<Damage> {
    std::mem::take(&mut rig.out.damage)
}

fn ranges(damage: &[Damage]) -> Vec<(u64, u64)> {
    damage.iter().flat_map(|d| d.messages.iter().copied()).collect()
}

fn live(rig: &Rig) -> u64 {
    rig.partition.queues().queue(QUEUE).map_or(0, |state| state.runs().live())
}

/// Moves everything in the log into one extent, as upkeep does.
fn into_extent(rig: &mut Rig) {
    let state = rig.partition.queues().queue(QUEUE).unwrap();
    let copied: Vec<_> = state.runs().iter().map(|run| (QUEUE, run.place, run.first)).collect();
    let past = state.next_seq();
    for seq in 1..past {
        let mut stored = Vec::new();
        let message = Message {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            properties: Bytes::from_static(&[0, 0]),
            body: format!("m{seq}").into(),
        };
        partition::message::store(&message, 0, partition::message::Stamp::None, &mut stored);
        rig.extent.push((seq, stored.into()));
    }
    let runs = vec![ExtentRun { queue: QUEUE, run: 0, first: 1, past, messages: past as u32 - 1, bytes: 1_000 }];
    let wal = partition::WalState {
        retire_through: 1,
        current_file: 2,
        checkpoint_lag_files: 100,
        ..partition::WalState::CALM
    };
    rig.with(|p, cx| p.maintain(wal, cx));
    assert!(matches!(rig.out.jobs[..], [partition::outputs::Job::WriteExtent { .. }, ..]), "everything is copied");
    rig.out.jobs.clear();
    rig.partition.extent_ready(&ExtentReady { id: 1, bytes: 10_000, messages: past - 1, runs, copied });
}

#[test]
fn damaged_messages_are_set_aside_and_those_around_them_go_on_in_order() {
    let (mut rig, places) = filled(6);
    rig.rotten = vec![places[1], places[2], places[4]];
    rig.consume(1, 0, false);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1", "m4", "m6"]);
    let told = told(&mut rig);
    assert_eq!(ranges(&told), [(2, 1), (3, 1), (5, 1)]);
    assert!(
        told.iter().all(|d| d.fate == Fate::SetAside && d.queue == QUEUE && d.why.contains("log file number 1")),
        "{told:?}"
    );
    assert_eq!(rig.out.set_aside, 3);
    assert_eq!(rig.stat(), (0, 3, 1), "the counts are those of what can be had");
    assert_eq!(live(&rig), 3, "the log says that the damaged ones have ended");
    let reads = rig.reads.len();
    rig.run();
    assert_eq!(rig.reads.len(), reads, "and nobody asks for them again");
}

#[test]
fn what_is_set_aside_is_passed_over_before_the_log_says_so() {
    let (mut rig, places) = filled(3);
    rig.rotten = vec![places[1]];
    rig.consume(1, 0, false);
    let mut reads = 0;
    for _ in 0..40 {
        rig.with(|p, cx| p.flush(cx));
        if rig.out.damage.is_empty() {
            rig.write();
            rig.sync();
            reads = rig.reads.len();
        }
        rig.read();
    }
    assert_eq!(ranges(&told(&mut rig)), [(2, 1)]);
    assert_eq!(live(&rig), 3, "its end is not in the log yet");
    assert!(rig.reads.len() <= reads + 3, "it is not read again and again: {:?}", rig.reads);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1", "m3"]);
}

#[test]
fn a_restart_does_not_bring_back_what_was_set_aside() {
    let (mut rig, places) = filled(4);
    rig.rotten = vec![places[0], places[2]];
    rig.consume(1, 1, false);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m2"]);
    rig.settle(1, 2, 1, Disposition::Ack);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m4"]);
    let before = rig.partition.queues().state_hash();
    let mut rig = rig.restarted();
    assert_eq!(rig.partition.queues().state_hash(), before, "the replay agrees");
    rig.consume(2, 0, false);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m4"]);
    assert_eq!(told(&mut rig), [], "that was told");
}

#[test]
fn basic_get_goes_on_to_the_next_intact_message_or_says_that_there_is_none() {
    let (mut rig, places) = filled(3);
    rig.rotten = vec![places[0], places[2]];
    for (request, expected) in [(1, Some("m2")), (2, None), (3, None)] {
        rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(request) });
        rig.run();
        let reply =
            rig.effects.drain(..).find_map(|e| if let Effect::Reply { reply, .. } = e { Some(reply) } else { None });
        match (reply.expect("every get is answered"), expected) {
            (Reply::Got { delivery, .. }, Some(text)) => assert_eq!(texts(&[delivery]), [text]),
            (Reply::Empty, None) => {}
            (reply, _) => panic!("request {request}: {reply:?}"),
        }
    }
    assert_eq!(rig.stat(), (0, 0, 0));
    assert_eq!(live(&rig), 0);
}

#[test]
fn a_wrong_byte_in_memory_is_no_damage() {
    let (mut rig, places) = filled(3);
    (rig.rotten, rig.rotten_in_memory) = (vec![places[1]], true);
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1", "m2", "m3"]);
    assert_eq!(told(&mut rig), []);
}

#[test]
fn a_read_that_is_refused_or_misses_its_file_is_made_again_and_costs_nothing() {
    for is_unmounted in [false, true] {
        let (mut rig, _) = filled(2);
        (rig.refusals, rig.is_unmounted) = (2, is_unmounted);
        rig.consume(1, 0, true);
        for _ in 0..2 {
            rig.run();
            assert_eq!(texts(&rig.delivered()), Vec::<String>::new());
            let due = rig.partition.due_ms().expect("it is tried again later");
            assert!(due > rig.now);
            rig.now = due;
        }
        rig.run();
        assert_eq!(texts(&rig.delivered()), ["m1", "m2"]);
        assert_eq!(told(&mut rig), []);
    }
}

#[test]
fn upkeep_that_misses_a_file_says_so_and_ends_nothing() {
    let (mut rig, _) = filled(2);
    let place = rig.partition.queues().queue(QUEUE).unwrap().runs().covering(2).unwrap().place;
    let why = "no such file".to_owned();
    let damaged = vec![DamagedRun { queue: QUEUE, place, messages: vec![(2, 1)], why, is_gone: true }];
    rig.with(|p, cx| p.runs_damaged(damaged, cx));
    rig.run();
    assert_eq!(told(&mut rig).iter().map(|damage| damage.fate).collect::<Vec<_>>(), [Fate::Awaited]);
    assert_eq!((live(&rig), rig.stat()), (2, (2, 0, 0)));
}

#[test]
fn a_message_that_a_consumer_holds_is_its_own_to_settle() {
    let (mut rig, places) = filled(3);
    rig.consume(1, 0, false);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1", "m2", "m3"]);
    rig.rotten = places;
    // Upkeep meets the damage first, while all three are out.
    let run = |rig: &Rig, seq| rig.partition.queues().queue(QUEUE).unwrap().runs().covering(seq).unwrap().place;
    let damaged: Vec<_> = (1..=3)
        .map(|seq| DamagedRun {
            queue: QUEUE,
            place: run(&rig, seq),
            messages: vec![(seq, 1)],
            why: "rot".to_owned(),
            is_gone: false,
        })
        .collect();
    rig.with(|p, cx| p.runs_damaged(damaged, cx));
    rig.run();
    assert_eq!((told(&mut rig), live(&rig)), (Vec::new(), 3));
    rig.settle(1, 1, 1, Disposition::Ack);
    rig.settle(1, 2, 1, Disposition::Nack);
    rig.run();
    assert_eq!(ranges(&told(&mut rig)), [(2, 1)], "what came back cannot go out again");
    assert_eq!(rig.stat(), (0, 1, 1));
    rig.settle(1, 3, 1, Disposition::Ack);
    rig.run();
    assert_eq!((live(&rig), rig.out.set_aside), (0, 1));
}

#[test]
fn upkeep_sets_aside_what_it_cannot_copy() {
    let (mut rig, _) = filled(4);
    let place = |rig: &Rig, seq| rig.partition.queues().queue(QUEUE).unwrap().runs().covering(seq).unwrap().place;
    let damaged = vec![DamagedRun {
        queue: QUEUE,
        place: place(&rig, 2),
        messages: vec![(2, 1)],
        why: "rot".to_owned(),
        is_gone: false,
    }];
    rig.with(|p, cx| p.runs_damaged(damaged.clone(), cx));
    rig.run();
    assert_eq!(ranges(&told(&mut rig)), [(2, 1)]);
    assert_eq!((live(&rig), rig.stat()), (3, (3, 0, 0)));
    rig.with(|p, cx| p.runs_damaged(damaged, cx));
    assert_eq!(told(&mut rig), [], "it is gone");
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1", "m3", "m4"]);
}

#[test]
fn what_can_be_read_of_an_extent_is_given_out() {
    let (mut rig, _) = filled(9);
    into_extent(&mut rig);
    rig.rotten = vec![1, 4, 5, 6, 9];
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m2", "m3", "m7", "m8"]);
    let told = told(&mut rig);
    assert_eq!(ranges(&told), [(1, 1), (4, 3), (9, 1)]);
    assert_eq!(rig.stat(), (0, 0, 1));
    assert_eq!(live(&rig), 0);
}

fn with_rules(count: u64, rules: Rules) -> (Rig, Vec<u64>) {
    let mut rig = ruled(rules);
    for seq in 1..=count {
        rig.publish_synced(seq, &format!("m{seq}"));
        rig.run();
    }
    let places = places(&rig);
    (rig, places)
}

fn ruled(rules: Rules) -> Rig {
    let mut rig = Rig::new(Vec::new(), 1);
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig
}

#[test]
fn a_damaged_message_is_not_dead_lettered_and_does_not_hold_up_those_that_are() {
    let exchange = broker::topology::Name::new(b"dlx");
    let rule = DeadLetterRule { exchange, routing_key: None, at_least_once: false };
    let rules = Rules { dead_letter: Some(rule), length_max: Some(1), ..Rules::default() };
    let (mut rig, places) = with_rules(4, Rules::default());
    rig.rotten = vec![places[1]];
    // The limit comes now: the first three are too many.
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.run();
    let letters: Vec<u64> =
        rig.effects.drain(..).filter_map(|e| if let Effect::DeadLetter(l) = e { Some(l.seq) } else { None }).collect();
    assert_eq!(letters, [1, 3]);
    assert_eq!(ranges(&told(&mut rig)), [(2, 1)]);
    assert_eq!((live(&rig), rig.stat().0), (1, 1));
}

#[test]
fn the_bytes_of_a_limited_queue_are_counted_without_what_is_damaged() {
    let rules = Rules { length_bytes_max: Some(100), ..Rules::default() };
    let (mut rig, places) = with_rules(4, rules);
    rig.rotten = vec![places[0], places[1]];
    rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(1) });
    rig.run();
    assert_eq!(ranges(&told(&mut rig)), [(1, 1), (2, 1)]);
    // One message of two bytes is left; 98 more fit, and not 99.
    rig.publish_synced(5, &"x".repeat(98));
    rig.run();
    assert_eq!(rig.stat().0, 2);
    rig.publish_synced(6, "y");
    rig.run();
    assert_eq!(rig.stat().0, 2, "the head had to go");
}

#[test]
fn damage_among_priorities_takes_only_itself() {
    let rules = Rules { levels: LevelRule::Strict, ..Rules::default() };
    let mut rig = ruled(rules);
    for (seq, priority) in [(1, 0), (2, 9), (3, 9), (4, 0), (5, 9)] {
        let message = Message {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            // Bit 11 of the flags: a priority and nothing else.
            properties: Bytes::copy_from_slice(&[0x08, 0x00, priority]),
            body: format!("m{seq}").into(),
        };
        let targets = smallvec![Target { queue: QUEUE, durability: Durability::Level(Level::Synced), selective: None }];
        let publish =
            Publish { channel: PUBLISHER, publish_seq: seq, term: 0, targets, delay_ms: 0, message, more: None };
        rig.command(Command::Publish(publish));
        rig.run();
    }
    let all = places(&rig);
    rig.rotten = vec![all[0], all[2]];
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m2", "m5", "m4"]);
    assert_eq!(ranges(&told(&mut rig)), [(3, 1), (1, 1)]);
    assert_eq!((live(&rig), rig.stat().0), (0, 0));
}

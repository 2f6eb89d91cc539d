//! Queues with rules: what their leader ends, where it goes, and that a restart changes none of it.

#![allow(clippy::unwrap_used)]

mod member;

use broker::QueueId;
use broker::queue::{DeadLetterRule, LevelRule, Overflow, Retried, RetryRule, Rules};
use broker::topology::Name;
use bytes::Bytes;
use member::{QUEUE, READER, Rig, configured, consumer, texts};
use partition::command::{Command, Delivery, Disposition, Durability, Effect, Level, Reply, RequestId};
use partition::entry::{Commands, LogCommand, Reason};
use partition::machine::scheduled_for;
use partition::message::MessageView;
use proptest::prelude::*;
use storage::RecordKind;

fn dead_letter(at_least_once: bool) -> Option<DeadLetterRule> {
    Some(DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once })
}

fn text_of(message: &Bytes) -> String {
    String::from_utf8(MessageView::parse(message).unwrap().body().to_vec()).unwrap()
}

#[test]
fn a_dead_letter_that_must_arrive_is_offered_until_it_did() {
    let rules = Rules { dead_letter: dead_letter(true), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "a");
    rig.run();
    let got = rig.get().unwrap();
    rig.decide(&got, Disposition::Discard);
    let letters = rig.letters();
    assert_eq!((letters.len(), letters[0].wants_answer, letters[0].reason), (1, true, Reason::Discarded));
    assert_eq!(rig.stat(), (0, 0, 0));
    rig.command(Command::DeadLetterAnswered { queue: QUEUE, seq: letters[0].seq, is_safe: false });
    rig.run();
    assert_eq!(rig.letters(), [], "not at once again");
    rig.pass(2_000);
    assert_eq!(rig.letters().len(), 1, "but after a while");

    // A leader that dies before the answer: the next one offers it again, and gives it to nobody
    // else.
    let mut rig = Rig::new(rig.log, 0);
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.run();
    assert!(rig.get().is_none(), "it was rejected once and for all");
    let letters = rig.letters();
    assert_eq!(letters.iter().map(|l| text_of(&l.message)).collect::<Vec<_>>(), ["a"]);
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 1);
    rig.command(Command::DeadLetterAnswered { queue: QUEUE, seq: letters[0].seq, is_safe: true });
    rig.run();
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 0);
    let mut rig = rig.restarted();
    rig.run();
    assert_eq!(rig.letters(), []);
}

#[test]
fn what_waits_for_the_log_is_counted_when_it_comes_there() {
    let mut rig = Rig::narrow(4 << 10);
    for seq in 1..=10 {
        rig.publish_synced(seq, &"x".repeat(1000));
        rig.with(|p, cx| p.flush(cx));
    }
    assert!(rig.unwritten.len() < 10, "the log takes no more");
    // All that is there is counted now, and some of it is in no entry of the log yet.
    let rules = Rules { length_bytes_max: Some(11_000), overflow: Overflow::RejectPublish, ..Rules::default() };
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.with(|p, cx| p.flush(cx));
    rig.run();
    assert_eq!(rig.stat(), (10, 0, 0));
    rig.publish_synced(11, &"x".repeat(1000));
    rig.run();
    rig.publish_synced(12, &"x".repeat(1000));
    rig.run();
    assert_eq!(rig.refused(), [12]);
}

#[test]
fn a_leader_that_does_not_know_a_queue_yet_ends_nothing_in_it_and_takes_nothing_for_it() {
    let rules = Rules { dead_letter: dead_letter(true), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_for(1, "a", 500);
    rig.run();
    // Another leader, whose node has not read all of the topology.
    let mut rig = Rig::new(rig.log, 0);
    rig.partition.ask_for_queues();
    rig.pass(1_000);
    assert_eq!(rig.letters(), [], "nobody here knows where it goes");
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 1);
    rig.publish_synced(2, "b");
    rig.run();
    assert_eq!(rig.refused(), [2]);
    rig.partition.queue_is_known(QUEUE);
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.run();
    let letters = rig.letters();
    assert_eq!(
        letters.iter().map(|l| (text_of(&l.message), l.reason)).collect::<Vec<_>>(),
        [("a".to_owned(), Reason::Expired)]
    );
    rig.publish_synced(2, "b");
    rig.run();
    assert_eq!(rig.refused(), []);
    assert_eq!(text_of(&rig.get().unwrap().message), "b");
}

/// Rules of each kind that a partition's leader remembers, and that ask for nothing as long as a
/// queue is empty.
fn rules_of_an_empty_queue() -> Vec<Rules> {
    vec![
        Rules { length_max: Some(10), ..Rules::default() },
        Rules { length_bytes_max: Some(10), overflow: Overflow::RejectPublish, ..Rules::default() },
        Rules { message_ttl_ms: Some(10), dead_letter: dead_letter(true), ..Rules::default() },
        Rules { delivery_limit: Some(20), levels: LevelRule::Strict, ..Rules::default() },
    ]
}

#[test]
fn empty_queues_with_rules_take_no_room_at_a_leader() {
    for rules in rules_of_an_empty_queue() {
        let mut rig = Rig::new(Vec::new(), 0);
        let rules = std::sync::Arc::new(rules);
        for queue in 1..=5_000 {
            rig.command(Command::Configure { queue: QueueId(queue), rules: rules.clone() });
        }
        rig.run();
        assert_eq!(rig.partition.room_for_queues(), 0, "{rules:?}");
        assert!(rig.partition.remembers(QueueId(1)), "the rules themselves");
    }
}

#[test]
fn a_start_takes_no_room_for_empty_queues_with_rules() {
    for rules in rules_of_an_empty_queue() {
        let rules = std::sync::Arc::new(rules);
        // Told before it leads, as at a start.
        let rig = Rig::told(Vec::new(), 0, |partition, cx| {
            for queue in 1..=5_000 {
                partition.command(Command::Configure { queue: QueueId(queue), rules: rules.clone() }, cx);
            }
        });
        assert_eq!(rig.partition.room_for_queues(), 0, "{rules:?}");
    }
}

#[test]
fn room_for_queues_that_were_in_use_is_given_back() {
    let mut rig = configured(Vec::new(), &Rules { expires_ms: Some(1_000_000), ..Rules::default() });
    for queue in 1..=5_000 {
        let (channel, request) = (READER, RequestId(u64::from(queue == 1)));
        rig.command(Command::Stat { queue: QueueId(1_000 + queue), channel, request });
    }
    rig.run();
    assert!(rig.partition.room_for_queues() >= 5_000, "they were in use");
    rig.with(|partition, _| partition.trim());
    assert!(rig.partition.room_for_queues() < 100, "{} places are kept", rig.partition.room_for_queues());
    assert_eq!(rig.stat(), (0, 0, 0), "the one that has a time to live is served as before");
}

#[test]
fn room_for_a_log_that_a_start_applied_is_given_back() {
    let mut rig = Rig::new(Vec::new(), 0);
    for seq in 1..=3_000 {
        rig.publish_synced(seq, "a message in an entry of its own");
        rig.run();
    }
    let mut rig = rig.restarted();
    assert!(rig.partition.replica().room_for_committed() >= 3_000, "all of it was committed at once");
    rig.with(|partition, _| partition.trim());
    let room = rig.partition.replica().room_for_committed();
    assert!(room < 500, "{room} places are kept");
    assert_eq!(rig.stat(), (3_000, 0, 0));
}

#[test]
fn a_deleted_queue_takes_along_what_waits_for_it() {
    let retry = RetryRule { which: Retried::All, min_ms: 5_000, max_ms: 5_000 };
    let rules = Rules {
        dead_letter: dead_letter(true),
        overflow: Overflow::RejectPublish,
        retry: Some(retry),
        message_ttl_ms: Some(20_000),
        ..Rules::default()
    };
    let mut rig = configured(Vec::new(), &rules);
    for (seq, text) in [(1, "dies"), (2, "comes back"), (3, "is held"), (4, "is ready")] {
        rig.publish_synced(seq, text);
    }
    rig.publish_in(5, "is scheduled", 3_000);
    rig.run();
    let got: Vec<Delivery> = (0..3).map(|_| rig.get().unwrap()).collect();
    rig.decide(&got[0], Disposition::Discard);
    rig.decide(&got[1], Disposition::Nack);
    assert_eq!(rig.letters().len(), 1, "a dead letter is under way");
    let close =
        Command::Close { queue: QUEUE, if_unused: false, if_empty: false, channel: READER, request: RequestId(9) };
    rig.command(close);
    rig.command(Command::Delete { queue: QUEUE });
    rig.run();
    // What was asked before the end comes after it, and every time that was set passes.
    rig.command(Command::DeadLetterAnswered { queue: QUEUE, seq: got[0].seq, is_safe: false });
    rig.decide(&got[2], Disposition::Discard);
    rig.publish_in(6, "is too late", 1_000);
    for _ in 0..6 {
        rig.pass(5_000);
    }
    assert_eq!(rig.letters(), [], "no dead letter of a queue that is gone");
    assert_eq!(rig.delivered().len(), 0);
    assert_eq!((rig.partition.queue_ids(), rig.partition.in_flight_bytes()), (Vec::new(), 0));
    let mut rig = rig.restarted();
    rig.pass(5_000);
    assert_eq!((rig.letters().len(), rig.partition.queue_ids()), (0, Vec::new()), "nor after a restart");
}

#[test]
fn what_a_get_brings_to_the_head_is_over_for_the_questions_behind_it() {
    for question in ["stat", "purge", "close"] {
        let mut rig = configured(Vec::new(), &Rules::default());
        rig.publish_synced(1, "stays");
        rig.publish_for(2, "is over", 50);
        rig.run();
        rig.pass(1_000);
        assert_eq!(rig.stat(), (2, 0, 0), "messages end at the head");
        rig.effects.clear();
        // In one turn, so that nothing but the first question moves the head.
        let (channel, request) = (READER, RequestId(8));
        rig.command(Command::Get { queue: QUEUE, channel, no_ack: true, request: RequestId(7) });
        rig.command(match question {
            "stat" => Command::Stat { queue: QUEUE, channel, request },
            "purge" => Command::Purge { queue: QUEUE, channel, request },
            _ => Command::Close { queue: QUEUE, if_unused: false, if_empty: true, channel, request },
        });
        rig.run();
        let replies: Vec<Reply> = rig.effects.iter().filter_map(reply_to(request)).collect();
        let nothing_left = match question {
            "stat" => Reply::Stat { ready: 0, unacked: 0, consumers: 0 },
            _ => Reply::Counted(0),
        };
        assert_eq!(replies, [nothing_left], "{question}");
    }
}

fn reply_to(wanted: RequestId) -> impl Fn(&Effect) -> Option<Reply> {
    move |effect| match effect {
        Effect::Reply { request, reply, .. } if *request == wanted => Some(reply.clone()),
        _ => None,
    }
}

#[test]
fn a_strategy_that_changes_lets_go_of_what_nobody_confirmed() {
    let mut rules = Rules { dead_letter: dead_letter(true), ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "a");
    rig.run();
    let got = rig.get().unwrap();
    rig.decide(&got, Disposition::Discard);
    let letters = rig.letters();
    assert_eq!(letters.len(), 1);
    rig.command(Command::DeadLetterAnswered { queue: QUEUE, seq: letters[0].seq, is_safe: false });
    rig.run();
    assert!(rig.partition.due_ms().is_some(), "it would be offered again");
    rules.dead_letter = dead_letter(false);
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.run();
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 0);
    assert_eq!(rig.partition.due_ms(), None, "there is nothing to offer");
}

#[test]
fn a_message_comes_back_as_often_as_its_limit_says() {
    let mut rig = configured(Vec::new(), &Rules { delivery_limit: Some(2), ..Rules::default() });
    rig.publish_synced(1, "a");
    rig.run();
    for counted in 0..=2 {
        let got = rig.get().unwrap();
        assert_eq!(got.counts.delivery, counted);
        // A nack does not count.
        rig.decide(&got, Disposition::Nack);
        let got = rig.get().unwrap();
        assert_eq!(got.counts.delivery, counted);
        rig.decide(&got, Disposition::Reject);
    }
    assert!(rig.get().is_none());
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 0);
}

#[test]
fn at_most_once_a_dead_letter_leaves_when_its_end_is_in_the_log() {
    let rules = Rules { dead_letter: dead_letter(false), message_ttl_ms: Some(50), ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "a");
    rig.run();
    let due_ms = rig.partition.due_ms().unwrap();
    assert!(due_ms > rig.now && due_ms <= rig.now + 50, "{due_ms} at {}", rig.now);
    rig.now += 100;
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.letters(), [], "written is not committed");
    rig.sync();
    rig.with(|p, cx| p.flush(cx));
    let letters = rig.letters();
    assert_eq!((letters.len(), letters[0].reason, letters[0].wants_answer), (1, Reason::Expired, false));
    let mut rig = rig.restarted();
    rig.pass(1_000);
    assert_eq!(rig.letters(), [], "never twice");
    assert_eq!(rig.stat(), (0, 0, 0));
}

#[test]
fn a_scheduled_message_comes_at_its_time_and_survives_a_restart() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_in(1, "late", 500);
    rig.publish_in(2, "soon", 200);
    rig.publish_synced(3, "now");
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2, 3], "scheduled is safe");
    assert_eq!(text_of(&rig.get().unwrap().message), "now");
    assert!(rig.get().is_none());
    let began = rig.now;
    let mut rig = rig.restarted();
    rig.now = rig.now.max(began);
    rig.run();
    assert_eq!(text_of(&rig.get().unwrap().message), "now", "it was held, and comes back");
    assert!(rig.get().is_none());
    rig.pass(250);
    let soon = rig.get().unwrap();
    assert_eq!(text_of(&soon.message), "soon");
    let view = MessageView::parse(&soon.message).unwrap();
    assert_eq!(broker::properties::delay_ms(view.properties()), 0, "its wait is over wherever it goes");
    assert!(rig.get().is_none());
    rig.pass(400);
    assert_eq!(text_of(&rig.get().unwrap().message), "late");
    assert_eq!(rig.partition.due_ms(), None);
    assert_eq!(rig.partition.queue_ids(), [QUEUE], "the schedule is no queue of its own");
}

#[test]
fn due_messages_go_out_in_the_order_of_their_times_however_late_somebody_looks() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for (seq, delay) in [(1, 300), (2, 100), (3, 200)] {
        rig.publish_in(seq, &delay.to_string(), delay);
    }
    rig.run();
    rig.pass(1_000);
    let order: Vec<String> = (0..3).map(|_| text_of(&rig.get().unwrap().message)).collect();
    assert_eq!(order, ["100", "200", "300"]);
}

#[test]
fn a_message_that_comes_back_waits_for_its_retry_also_after_a_restart() {
    let rules =
        Rules { retry: Some(RetryRule { which: Retried::All, min_ms: 1_000, max_ms: 1_500 }), ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "a");
    rig.publish_synced(2, "b");
    rig.run();
    let got = rig.get().unwrap();
    rig.decide(&got, Disposition::Nack);
    assert_eq!(text_of(&rig.get().unwrap().message), "b", "others do not wait for it");
    assert!(rig.get().is_none());
    let began = rig.now;
    let mut rig = configured(rig.log, &rules);
    rig.now = rig.now.max(began);
    rig.run();
    assert_eq!(text_of(&rig.get().unwrap().message), "b");
    assert!(rig.get().is_none(), "it still waits");
    rig.pass(1_100);
    let again = rig.get().unwrap();
    assert_eq!((text_of(&again.message).as_str(), again.redelivered, again.counts.acquired), ("a", true, 1));
    // Twice as long the second time, but never longer than the rule says.
    rig.decide(&again, Disposition::Nack);
    rig.pass(1_400);
    assert!(rig.get().is_none());
    rig.pass(200);
    assert_eq!(rig.get().unwrap().counts.acquired, 2);
}

#[test]
fn a_limit_holds_from_the_first_moment_after_a_restart() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=9 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.run();
    let rules = Rules { length_bytes_max: Some(7), ..Rules::default() };
    let mut rig = configured(rig.log, &rules);
    assert_eq!(rig.stat().0, 3, "three bodies of two bytes fit");
    let mut rig = configured(rig.log, &Rules { overflow: Overflow::RejectPublish, ..rules });
    rig.publish_synced(20, "x");
    rig.publish_synced(21, "y");
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![20], vec![21]), "one byte is left");
}

/// Whoever comes while the bytes of what is too much are still being read gets none of it.
#[test]
fn what_is_too_much_goes_before_a_consumer_that_comes_afterwards() {
    let rules = Rules { length_bytes_max: Some(3), ..Rules::default() };
    for asks in [false, true] {
        let mut rig = configured(Vec::new(), &rules);
        (1..).zip(["a", "b", "c"]).for_each(|(seq, body)| rig.publish_synced(seq, body));
        rig.run();
        let mut rig = Rig::new(rig.log, 0);
        rig.command(Command::Configure { queue: QUEUE, rules: rules.clone().into() });
        rig.run();
        (20..).zip(["d", "e"]).for_each(|(seq, body)| rig.publish_synced(seq, body));
        for _ in 0..4 {
            rig.with(|p, cx| p.flush(cx));
            rig.write();
            rig.sync();
        }
        assert_eq!((rig.confirmed(), rig.out.reads.is_empty()), (vec![20, 21], false), "the first is being read");
        if asks {
            assert_eq!(rig.stat().0, 3);
        }
        rig.consume(1, 0, false);
        rig.run();
        assert_eq!(texts(&rig.delivered()), ["c", "d", "e"]);
    }
}

#[test]
fn publishes_wait_until_what_was_there_before_a_restart_is_counted() {
    let rules = Rules { length_bytes_max: Some(7), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    for seq in 1..=3 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2, 3]);
    let mut rig = rig.restarted();
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    // All of it is asked for before a single byte was read.
    for (seq, body) in [(20, "x"), (21, "y")] {
        rig.publish_synced(seq, body);
    }
    rig.command(Command::Stat { queue: QUEUE, channel: READER, request: RequestId(7) });
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![20], vec![21]), "one byte is left");
    let answered = rig.effects.iter().find_map(|effect| match effect {
        Effect::Reply { request: RequestId(7), reply: Reply::Stat { ready, .. }, .. } => Some(*ready),
        _ => None,
    });
    assert_eq!(answered, Some(4), "what is asked behind a publish is answered behind it");
}

/// What is on its way into the log when a queue is purged stays, and counts.
#[test]
fn a_purge_does_not_forget_the_bytes_of_what_comes_behind_it() {
    let rules = Rules { length_bytes_max: Some(7), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "ol");
    rig.run();
    rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(3) });
    rig.publish_synced(2, "12345");
    rig.run();
    assert_eq!(rig.stat().0, 1, "it came behind the purge");
    rig.publish_synced(4, "678");
    rig.publish_synced(5, "67");
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![1, 2, 5], vec![4]), "two bytes are left");
    assert_eq!(rig.stat().0, 2);
}

#[test]
fn publishes_that_are_more_than_a_little_do_not_wait_for_the_count() {
    let rules = Rules { length_bytes_max: Some(3 << 20), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    let body = "x".repeat(1 << 20);
    rig.publish_synced(1, &body.repeat(2));
    rig.publish_synced(2, &body[1..]);
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2]);
    let mut rig = rig.restarted();
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.publish_synced(20, &body);
    rig.publish_synced(21, &body);
    rig.run();
    assert_eq!((rig.confirmed(), rig.refused()), (vec![20], vec![21]), "the first made room in memory for the second");
}

#[test]
fn a_queue_has_its_whole_time_from_when_its_last_consumer_goes() {
    let mut rig = configured(Vec::new(), &Rules { expires_ms: Some(300), ..Rules::default() });
    let lapses = |rig: &Rig| rig.effects.iter().filter(|e| matches!(e, Effect::Lapsed { .. })).count();
    rig.consume(1, 1, false);
    rig.run();
    rig.now += 1_000;
    rig.command(Command::Cancel { queue: QUEUE, consumer: consumer(1), request: RequestId(2) });
    rig.run();
    rig.pass(250);
    assert_eq!(lapses(&rig), 0);
    rig.pass(100);
    assert_eq!(lapses(&rig), 1);
}

#[test]
fn of_two_gets_in_one_turn_neither_brings_what_is_too_old() {
    let mut rig = configured(Vec::new(), &Rules::default());
    // While somebody consumes, the log lets out what comes in ahead of its delivery.
    rig.consume(1, 1, false);
    rig.publish_synced(1, "held");
    rig.run();
    rig.publish_synced(2, "for ever");
    rig.publish_for(3, "short", 20);
    rig.publish_synced(4, "for ever too");
    rig.run();
    rig.now += 50;
    for request in [7, 8] {
        rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: false, request: RequestId(request) });
    }
    rig.run();
    let got = |e: &Effect| match e {
        Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(text_of(&delivery.message)),
        _ => None,
    };
    assert_eq!(rig.effects.iter().filter_map(got).collect::<Vec<_>>(), ["for ever", "for ever too"]);
}

/// So many dead letters wait for an answer, and so many behind them, that nothing more expires.
const EXPIRING_STOPS_AT: u64 = 1_500;

#[test]
fn a_get_brings_nothing_that_is_too_old_though_expiring_has_to_wait() {
    let rules = Rules {
        dead_letter: dead_letter(true),
        overflow: Overflow::RejectPublish,
        message_ttl_ms: Some(20_000),
        ..Rules::default()
    };
    let mut rig = configured(Vec::new(), &rules);
    for seq in 1..EXPIRING_STOPS_AT {
        rig.publish_synced(seq, "old");
    }
    rig.run();
    rig.pass(10_000);
    rig.publish_synced(EXPIRING_STOPS_AT, "young");
    rig.pass(15_000);
    let (ready, ..) = rig.stat();
    assert!(ready > 1, "some that are too old are still in the queue");
    assert_eq!(text_of(&rig.get().unwrap().message), "young");
    assert!(rig.get().is_none());
    assert_eq!(rig.stat(), (0, 1, 0));
}

#[test]
fn a_purge_among_priorities_ends_what_is_only_written_too() {
    let mut rig = configured(Vec::new(), &Rules { levels: LevelRule::Strict, ..Rules::default() });
    // A content header with priority 9.
    rig.publish_with(1, "first", vec![8, 0, 9], 0);
    rig.run();
    rig.consume(1, 1, false);
    rig.run();
    rig.publish(2, "written", Durability::Level(Level::Written), None);
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(3) });
    rig.with(|p, cx| p.flush(cx));
    let purged = |e: &Effect| matches!(e, Effect::Reply { reply: Reply::Counted(1), .. });
    assert!(!rig.effects.iter().any(purged), "the answer waits for the log: {:?}", rig.effects);
    rig.run();
    assert!(rig.effects.iter().any(purged), "it was ready before its sync: {:?}", rig.effects);
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 1, "what the consumer holds");
}

#[test]
fn what_is_due_together_comes_in_whole_and_each_once_however_large() {
    let mut rig = configured(Vec::new(), &Rules::default());
    let text = "x".repeat(400 << 10);
    for seq in 1..=5 {
        rig.publish_in(seq, &text, 100);
    }
    rig.run();
    rig.pass(200);
    assert_eq!(rig.stat().0, 5);
    let mut released = 0;
    for (kind, _, _, body, _) in rig.log.iter().filter(|record| record.0 == RecordKind::Entry && record.3.len() > 16) {
        assert_eq!(*kind, RecordKind::Entry);
        let (mut came_in, mut ended) = (0, 0);
        let mut commands = Commands::parse(body).unwrap();
        while let Some(command) = commands.next().unwrap() {
            match command {
                LogCommand::Publish(batch) if batch.targets().eq([QUEUE]) => came_in += batch.messages(),
                LogCommand::Settle { reason: Reason::Due, ranges, .. } => ended += ranges.count() as u32,
                _ => {}
            }
        }
        assert_eq!(came_in, ended, "an entry that brings a message in ends its wait");
        released += came_in;
    }
    assert_eq!(released, 5);
}

#[test]
fn what_is_due_keeps_its_order_when_the_first_one_does_not_fit() {
    let rules = Rules { length_bytes_max: Some(10), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "12345");
    rig.publish_in(2, "long one", 50);
    rig.publish_in(3, "b", 60);
    rig.run();
    rig.pass(2_000);
    assert_eq!(rig.stat().0, 1, "the first does not fit, and the second does not overtake it");
    let got = rig.get().unwrap();
    rig.decide(&got, Disposition::Ack);
    rig.pass(2_000);
    let (first, second) = (rig.get().unwrap(), rig.get().unwrap());
    assert_eq!([first, second].map(|d| text_of(&d.message)), ["long one", "b"]);
}

#[test]
fn what_the_delivery_limit_ends_counts_towards_the_bytes_of_its_queue_no_more() {
    let rules = Rules {
        length_bytes_max: Some(10),
        overflow: Overflow::RejectPublish,
        delivery_limit: Some(0),
        ..Rules::default()
    };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "8 bytes!");
    rig.run();
    let got = rig.get().unwrap();
    rig.publish_synced(2, "2.");
    rig.run();
    rig.decide(&got, Disposition::Reject);
    rig.run();
    rig.publish_synced(3, "8 bytes!");
    rig.run();
    assert_eq!(rig.stat().0, 2, "there is room for it");
}

#[test]
fn what_is_due_and_too_much_is_dead_lettered_once_and_comes_no_more() {
    let rules = Rules {
        length_max: Some(2),
        overflow: Overflow::RejectPublishDlx,
        dead_letter: dead_letter(false),
        ..Rules::default()
    };
    let mut rig = configured(Vec::new(), &rules);
    for seq in 1..=6 {
        rig.publish_in(seq, &format!("m{seq}"), 50 + seq);
    }
    rig.run();
    let mut letters = Vec::new();
    for _ in 0..5 {
        rig.pass(2_000);
        letters.extend(rig.letters().iter().map(|letter| (letter.queue, letter.reason, text_of(&letter.message))));
    }
    let dead = |text: &str| (QUEUE, Reason::MaxLength, text.to_owned());
    assert_eq!(letters, ["m3", "m4", "m5", "m6"].map(dead), "each once, in the order of their times");
    assert_eq!(rig.stat().0, 2);
    let scheduled = scheduled_for(QUEUE);
    assert_eq!(rig.partition.queues().queue(scheduled).map_or(0, |state| state.runs().live()), 0);

    // What a start finds is what the log says: those that were given up do not come, room or none.
    let mut rig = Rig::new(rig.log, 1 << 20);
    rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    rig.pass(5_000);
    for text in ["m1", "m2"] {
        let got = rig.get().unwrap();
        assert_eq!(text_of(&got.message), text);
        rig.decide(&got, Disposition::Ack);
    }
    rig.pass(5_000);
    assert!(rig.get().is_none());
    assert_eq!(rig.letters(), []);
}

#[test]
fn a_due_message_that_is_given_up_leaves_as_a_dead_letter_no_sooner_than_the_log_says_so() {
    let rules = Rules {
        length_max: Some(0),
        overflow: Overflow::RejectPublishDlx,
        dead_letter: dead_letter(false),
        ..Rules::default()
    };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_in(1, "surplus", 50);
    rig.run();
    rig.now += 1_000;
    for _ in 0..3 {
        rig.with(|p, cx| p.flush(cx));
    }
    assert_eq!(rig.letters(), [], "it is not in the log yet");
    // The process dies here: the message is there, and is offered by whoever comes next.
    let mut next = Rig::new(rig.log.clone(), 1 << 20);
    next.command(Command::Configure { queue: QUEUE, rules: rules.into() });
    next.pass(5_000);
    assert_eq!(next.letters().iter().map(|l| text_of(&l.message)).collect::<Vec<_>>(), ["surplus"]);
    rig.run();
    assert_eq!(rig.letters().len(), 1);
}

#[test]
fn a_queue_is_not_empty_while_dead_letters_wait_for_a_place() {
    let rules = Rules { dead_letter: dead_letter(true), overflow: Overflow::RejectPublish, ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    rig.publish_synced(1, "a");
    rig.run();
    let got = rig.get().unwrap();
    rig.decide(&got, Disposition::Discard);
    let seq = rig.letters()[0].seq;
    rig.command(Command::DeadLetterAnswered { queue: QUEUE, seq, is_safe: false });
    rig.run();
    let request = RequestId(9);
    rig.command(Command::Close { queue: QUEUE, if_unused: false, if_empty: true, channel: READER, request });
    rig.run();
    let replies: Vec<Reply> = rig.effects.iter().filter_map(reply_to(request)).collect();
    assert_eq!(replies, [Reply::DeleteRefused { in_use: false }]);
    let mut figures = Vec::new();
    rig.partition.survey(&mut figures);
    assert_eq!(figures.iter().map(|f| (f.ready, f.delayed)).collect::<Vec<_>>(), [(0, 1)], "it is seen");
}

#[test]
fn a_queue_is_not_empty_while_messages_wait_for_their_time_or_their_retry() {
    let retry = RetryRule { which: Retried::All, min_ms: 5_000, max_ms: 5_000 };
    for what in ["scheduled", "scheduled this moment", "to be tried again"] {
        let mut rig = configured(Vec::new(), &Rules { retry: Some(retry), ..Rules::default() });
        if what == "to be tried again" {
            rig.publish_synced(1, what);
            rig.run();
            let got = rig.get().unwrap();
            rig.decide(&got, Disposition::Nack);
        } else {
            rig.publish_in(1, what, 5_000);
        }
        if what == "scheduled" {
            rig.run();
        }
        let request = RequestId(9);
        rig.command(Command::Close { queue: QUEUE, if_unused: false, if_empty: true, channel: READER, request });
        rig.run();
        let replies: Vec<Reply> = rig.effects.iter().filter_map(reply_to(request)).collect();
        assert_eq!(replies, [Reply::DeleteRefused { in_use: false }], "{what}");
        rig.effects.clear();
        let mut figures = Vec::new();
        rig.partition.survey(&mut figures);
        assert_eq!(
            figures.iter().map(|f| (f.queue, f.ready, f.delayed)).collect::<Vec<_>>(),
            [(QUEUE, 0, 1)],
            "{what}"
        );
        rig.pass(10_000);
        assert_eq!(text_of(&rig.get().unwrap().message), what);
    }
}

#[test]
fn dead_letters_that_found_no_place_are_tried_again_in_the_order_in_which_they_were_given_up() {
    let rules = Rules { dead_letter: dead_letter(true), ..Rules::default() };
    let mut rig = configured(Vec::new(), &rules);
    for seq in 1..=3 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.run();
    let got: Vec<Delivery> = (0..3).map(|_| rig.get().unwrap()).collect();
    for at in [1, 0, 2] {
        rig.decide(&got[at], Disposition::Discard);
    }
    let order = |rig: &mut Rig| rig.letters().iter().map(|letter| letter.seq).collect::<Vec<_>>();
    assert_eq!(order(&mut rig), [2, 1, 3]);
    // The answers come in another order.
    for seq in [3, 1, 2] {
        rig.command(Command::DeadLetterAnswered { queue: QUEUE, seq, is_safe: false });
    }
    rig.pass(2_000);
    assert_eq!(order(&mut rig), [2, 1, 3]);
}

#[derive(Clone, Debug)]
enum Act {
    Publish,
    Get,
    Settle(usize, u8),
    Leave,
    Pass(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => Just(Act::Publish),
        3 => Just(Act::Get),
        3 => (any::<usize>(), 0u8..4).prop_map(|(at, how)| Act::Settle(at, how)),
        1 => Just(Act::Leave),
        1 => (1u64..400).prop_map(Act::Pass),
    ];
    prop::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A message is exactly one of ready, unacked, settled, dead-lettered or refused, whatever
    /// happens to it, and nobody ever sees a queue beyond its limit.
    #[test]
    fn every_message_is_in_one_place(
        acts in acts(),
        length_max in prop::option::of(0u64..6),
        ttl_ms in prop::option::of(1u64..300),
        delivery_limit in prop::option::of(0u32..3),
        rejects in any::<bool>(),
        cache in prop_oneof![Just(0usize), Just(1usize << 20)],
    ) {
        let overflow = if rejects { Overflow::RejectPublish } else { Overflow::DropHead };
        let rules = Rules {
            length_max,
            message_ttl_ms: ttl_ms,
            delivery_limit,
            overflow,
            dead_letter: dead_letter(false),
            ..Rules::default()
        };
        let mut rig = Rig::new(Vec::new(), cache);
        rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
        let mut held: Vec<Delivery> = Vec::new();
        let (mut published, mut acked, mut refused) = (0u64, 0u64, 0u64);
        let (mut dead, mut had_back) = (std::collections::BTreeSet::new(), false);
        for act in acts {
            match act {
                Act::Publish => {
                    published += 1;
                    rig.publish_synced(published, &published.to_string());
                    rig.run();
                }
                Act::Get => held.extend(rig.get()),
                Act::Settle(at, how) if !held.is_empty() => {
                    let delivery = held.remove(at % held.len());
                    let outcome = [Disposition::Ack, Disposition::Nack, Disposition::Reject, Disposition::Discard][how as usize];
                    acked += u64::from(outcome == Disposition::Ack);
                    had_back |= matches!(outcome, Disposition::Nack | Disposition::Reject);
                    rig.decide(&delivery, outcome);
                }
                Act::Settle(..) => {}
                Act::Leave => {
                    had_back |= !held.is_empty();
                    held.clear();
                    rig.command(Command::Detach { channel: READER });
                    rig.run();
                }
                Act::Pass(ms) => rig.pass(ms),
            }
            refused += rig.refused().len() as u64;
            for letter in rig.letters() {
                prop_assert!(dead.insert(letter.seq), "a message dies once");
            }
            let (ready, unacked, _) = rig.stat();
            prop_assert_eq!(unacked, held.len() as u64);
            refused += rig.refused().len() as u64;
            for letter in rig.letters() {
                prop_assert!(dead.insert(letter.seq), "a message dies once");
            }
            // What comes back to a queue that refuses may be one too many; nothing else may.
            prop_assert!(length_max.is_none_or(|max| ready <= max) || (rejects && had_back));
            // Time went on while the question was answered: what is there now, the log says.
            let live = rig.partition.queues().queue(QUEUE).map_or(0, |s| s.runs().live());
            prop_assert!(live >= unacked && live <= ready + unacked);
            prop_assert_eq!(live + acked + refused + dead.len() as u64, published);
        }
    }
}

#[test]
fn what_is_due_while_a_delete_is_under_way_waits_for_its_outcome() {
    for is_deleted in [false, true] {
        let mut rig = Rig::new(Vec::new(), 1 << 20);
        rig.publish_in(1, "is scheduled", 1_000);
        rig.run();
        assert!(rig.partition.due_ms().is_some());
        let request = RequestId(9);
        rig.command(Command::Close { queue: QUEUE, if_unused: true, if_empty: false, channel: READER, request });
        rig.pass(3_000);
        let end = if is_deleted { Command::Delete { queue: QUEUE } } else { Command::Reopen { queue: QUEUE } };
        rig.command(end);
        rig.pass(3_000);
        rig.effects.clear();
        match is_deleted {
            false => assert_eq!(text_of(&rig.get().unwrap().message), "is scheduled", "the delete came to nothing"),
            true => assert_eq!((rig.partition.due_ms(), rig.partition.remembers(QUEUE)), (None, false)),
        }
    }
}

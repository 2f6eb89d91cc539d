//! A partition of one member: its confirms, its deliveries, its restarts.
#![allow(clippy::unwrap_used)]

mod member;

use broker::queue::{Consumer, Rules};
use broker::{ConsumerKey, QueueId};
use bytes::Bytes;
use member::{PUBLISHER, QUEUE, READER, Rig, consumer, texts};
use partition::command::{
    Command, Disposition, Durability, Effect, Level, Message, Publish, Reply, RequestId, Selective, Target,
};
use partition::entry::TARGETS_MAX;
use partition::outputs::{ReadBytes, ReadPurpose};

/// A cache of a few entries.
const SMALL_CACHE: usize = 600;

#[test]
fn a_synced_publish_is_confirmed_by_the_sync_and_a_written_one_by_the_write() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "a");
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.confirmed(), [], "written is not synced");
    rig.sync();
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.confirmed(), [1]);

    rig.publish(2, "b", Durability::Level(Level::Written), None);
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.confirmed(), [], "not even written");
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.confirmed(), [2]);
    rig.sync();
    rig.run();
    assert_eq!(rig.confirmed(), [], "once is enough");
}

#[test]
fn a_written_message_is_delivered_and_settled_before_its_sync() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.consume(1, 10, false);
    rig.publish(1, "a", Durability::Level(Level::Written), None);
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    let delivered = rig.delivered();
    assert_eq!(texts(&delivered), ["a"]);
    rig.settle(1, delivered[0].seq, 1, Disposition::Ack);
    rig.run();
    assert_eq!(rig.stat(), (0, 0, 1));
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 0);
}

#[test]
fn messages_come_in_order_and_go_back_to_their_old_place() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=5 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2, 3, 4, 5]);
    rig.consume(1, 3, false);
    rig.run();
    let first = rig.delivered();
    assert_eq!(texts(&first), ["m1", "m2", "m3"]);
    assert!(first.iter().all(|d| !d.redelivered && d.counts.acquired == 0));
    rig.settle(1, first[1].seq, 1, Disposition::Nack);
    rig.run();
    let again = rig.delivered();
    assert_eq!(texts(&again), ["m2"], "it goes out again before what is behind it");
    assert!(again[0].redelivered && again[0].counts.acquired == 1 && again[0].counts.delivery == 0);
    rig.command(Command::Detach { channel: READER });
    rig.consume(2, 0, false);
    rig.run();
    let rest = rig.delivered();
    assert_eq!(texts(&rest), ["m1", "m2", "m3", "m4", "m5"]);
    assert_eq!(rest.iter().map(|d| d.redelivered).collect::<Vec<_>>(), [true, true, true, false, false]);
    assert_eq!(rest[1].counts.delivery, 1, "a lost channel counts, a nack does not");
}

#[test]
fn a_restart_brings_back_what_was_not_settled_and_flags_what_may_have_been_sent() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=6 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.consume(1, 2, false);
    rig.run();
    let first = rig.delivered();
    assert_eq!(texts(&first), ["m1", "m2"]);
    rig.settle(1, first[0].seq, 1, Disposition::Ack);
    rig.run();
    let before = rig.partition.queues().state_hash();
    let mut rig = rig.restarted();
    assert_eq!(rig.partition.queues().state_hash(), before, "replay gives the same state");
    rig.consume(1, 0, false);
    rig.run();
    let after = rig.delivered();
    assert_eq!(texts(&after), ["m2", "m3", "m4", "m5", "m6"]);
    assert!(after[0].redelivered && after[1].redelivered);
}

#[test]
fn a_delivery_names_the_term_of_the_leader_that_gives_it_out() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "a");
    rig.consume(1, 0, false);
    rig.run();
    let first = rig.delivered()[0].term;
    assert_eq!(first, rig.partition.term().0);
    let mut rig = rig.restarted();
    let got = rig.get().expect("it was not settled");
    assert_eq!((got.term, got.term > first), (rig.partition.term().0, true), "another term, another leader");
}

#[test]
fn an_ack_of_what_came_back_meanwhile_counts_unless_somebody_else_was_given_it() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=4 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.consume(1, 4, false);
    rig.run();
    let first = rig.delivered();
    // The link to its node broke, and came back.
    rig.command(Command::Detach { channel: READER });
    let key = ConsumerKey { channel: PUBLISHER, number: 1 };
    let other = Consumer { key, prefetch: 1, no_ack: false, exclusive: false, priority: 0, granted_only: false };
    rig.command(Command::Consume { again: false, queue: QUEUE, consumer: other, request: RequestId(2) });
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1"]);
    rig.settle(1, first[0].seq, 2, Disposition::Ack);
    rig.settle(1, first[2].seq, 1, Disposition::Nack);
    rig.run();
    assert_eq!(
        rig.stat(),
        (2, 1, 1),
        "of the two that were acked one is somebody else's, and a nack gives nothing back"
    );
    rig.command(Command::Settle {
        queue: QUEUE,
        holder: key,
        first: first[0].seq,
        count: 1,
        outcome: Disposition::Ack,
    });
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m3"], "who holds it settles it");
}

#[test]
fn an_ack_that_comes_to_the_next_leader_counts_there() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=4 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.consume(1, 4, false);
    rig.run();
    let first = rig.delivered();
    let mut rig = rig.restarted();
    rig.settle(1, first[1].seq, 1, Disposition::Ack);
    rig.settle(1, first[2].seq, 1, Disposition::Discard);
    rig.settle(1, first[1].seq, 2, Disposition::Ack);
    rig.run();
    assert_eq!(rig.stat(), (2, 0, 0));
    rig.consume(2, 0, false);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m1", "m4"], "what stood before it is not passed over");
}

#[test]
fn a_mark_is_answered_once_what_was_settled_before_it_is_in_the_log() {
    let marked = |rig: &mut Rig| {
        let found = rig.effects.iter().filter_map(|effect| match effect {
            Effect::Reply { request, reply: Reply::Done, .. } => Some(request.0),
            _ => None,
        });
        let found: Vec<u64> = found.collect();
        rig.effects.clear();
        found
    };
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "a");
    rig.consume(1, 1, false);
    rig.run();
    let delivered = rig.delivered();
    rig.command(Command::Mark { channel: PUBLISHER, request: RequestId(3) });
    assert_eq!(marked(&mut rig), [3], "nothing is on its way");
    rig.settle(1, delivered[0].seq, 1, Disposition::Ack);
    rig.command(Command::Mark { channel: PUBLISHER, request: RequestId(4) });
    rig.with(|p, cx| p.flush(cx));
    rig.command(Command::Mark { channel: PUBLISHER, request: RequestId(5) });
    assert_eq!(marked(&mut rig), [0; 0], "the entry is not written");
    rig.run();
    assert_eq!(marked(&mut rig), [4, 5]);
    assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 0);
}

#[test]
fn messages_that_left_memory_are_read_back() {
    let mut rig = Rig::new(Vec::new(), SMALL_CACHE);
    for seq in 1..=40 {
        rig.publish_synced(seq, &format!("message number {seq}"));
        rig.run();
    }
    assert!(rig.tail.bytes() <= SMALL_CACHE);
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), (1..=40).map(|i| format!("message number {i}")).collect::<Vec<_>>());
    assert_eq!(rig.stat(), (0, 0, 1));
}

#[test]
fn what_waited_in_a_queue_that_is_deleted_or_purged_does_not_stay_in_memory() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let body = "x".repeat(2000);
    for round in 0..4 {
        for seq in 1..=60 {
            rig.publish_synced(round * 60 + seq, &body);
            rig.run();
        }
        // One was fetched, the others wait.
        rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(round) });
        rig.run();
        assert!(rig.tail.bytes() > 59 * 2000, "they wait in memory: {}", rig.tail.bytes());
        match round < 3 {
            true => rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(round) }),
            false => rig.command(Command::Delete { queue: QUEUE }),
        }
        rig.run();
        // Small ones stay a little while, as if they had been delivered.
        assert!(rig.tail.bytes() <= 64 << 10, "round {round}: {}", rig.tail.bytes());
    }
}

/// A queue of forty batches, of which only the last few are in memory.
fn long_queue() -> Rig {
    let mut rig = Rig::new(Vec::new(), SMALL_CACHE);
    for seq in 1..=40 {
        rig.publish_synced(seq, &format!("m{seq}"));
        rig.run();
    }
    rig
}

fn numbered(range: std::ops::RangeInclusive<u64>) -> Vec<String> {
    range.map(|i| format!("m{i}")).collect()
}

#[test]
fn a_read_brings_as_much_as_consumers_have_room_for() {
    let mut rig = long_queue();
    rig.consume(1, 5, false);
    rig.run();
    let first = rig.delivered();
    assert_eq!(
        (texts(&first), &rig.reads[..]),
        (numbered(1..=5), &[5][..]),
        "five at once, and nothing that nobody takes"
    );
    // One that comes back does not lose its place, and what was not read ahead is read then.
    rig.settle(1, first[1].seq, 1, Disposition::Nack);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m2"]);
    rig.settle(1, first[0].seq, 5, Disposition::Ack);
    rig.run();
    assert_eq!(texts(&rig.delivered()), numbered(6..=10));
    assert_eq!(rig.reads, [5, 1, 5]);
    rig.consume(2, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), numbered(11..=40));
    assert_eq!(rig.reads.len(), 4, "the rest came with one read: {:?}", rig.reads);
}

#[test]
fn what_a_read_does_not_bring_is_asked_for_again() {
    let mut rig = long_queue();
    rig.batches_max = 3;
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), numbered(1..=40));
    assert!(rig.reads.len() > 5, "{:?}", rig.reads);
}

#[test]
fn a_late_answer_to_a_read_of_an_earlier_time_in_office_does_not_stop_a_queue() {
    let mut rig = long_queue();
    let runs: Vec<_> = rig.partition.queues().queue(QUEUE).unwrap().runs().iter().cloned().collect();
    rig.consume(1, 0, true);
    while rig.out.reads.is_empty() {
        rig.with(|p, cx| p.flush(cx));
        rig.write();
        rig.sync();
    }
    // This member led before, further on in the queue, and what it asked for then comes only now.
    let late = &runs[3];
    let at = late.place.in_wal().unwrap();
    let (_, _, _, body, record) =
        rig.log.iter().find(|l| l.4.offset <= at.offset && at.offset < l.4.offset + l.4.bytes).unwrap();
    let from = (at.offset - record.offset) as usize;
    let bytes = body.slice(from..from + at.bytes as usize);
    let purpose = ReadPurpose::Messages { queue: QUEUE, seq: late.first, place: late.place, is_second: false };
    rig.with(|p, cx| p.read_done(purpose, Ok(ReadBytes::Batches(vec![(at, bytes)])), cx));
    rig.run();
    let count = runs.iter().map(|run| u64::from(run.count)).sum();
    assert_eq!(texts(&rig.delivered()), numbered(1..=count));
}

#[test]
fn what_was_purged_while_it_was_read_is_not_given_out() {
    let mut rig = long_queue();
    rig.consume(1, 20, false);
    while rig.out.reads.is_empty() {
        rig.with(|p, cx| p.flush(cx));
        rig.write();
        rig.sync();
    }
    rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(3) });
    rig.publish_synced(41, "m41");
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m41"]);
    assert_eq!(rig.stat(), (0, 1, 1));
}

#[test]
fn get_purge_and_stat_see_what_was_published_before_them() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    for seq in 1..=4 {
        rig.publish_synced(seq, &format!("m{seq}"));
    }
    rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: false, request: RequestId(1) });
    rig.command(Command::Stat { queue: QUEUE, channel: READER, request: RequestId(2) });
    rig.command(Command::Purge { queue: QUEUE, channel: READER, request: RequestId(3) });
    rig.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(4) });
    rig.run();
    let replies: Vec<_> = rig
        .effects
        .iter()
        .filter_map(|e| if let Effect::Reply { reply, request, .. } = e { Some((request.0, reply)) } else { None })
        .collect();
    let (1, Reply::Got { delivery, ready }) = replies[0] else { panic!("{replies:?}") };
    assert_eq!((texts(std::slice::from_ref(delivery)), *ready), (vec!["m1".to_string()], 3));
    // The purge took effect before the second get, and is answered when the log has it.
    let stat = Reply::Stat { ready: 3, unacked: 1, consumers: 0 };
    assert_eq!(replies[1..], [(2, &stat), (4, &Reply::Empty), (3, &Reply::Counted(3))]);
    rig.command(Command::Detach { channel: READER });
    rig.run();
    assert_eq!(rig.stat(), (1, 0, 0));
}

#[test]
fn the_value_at_risk_never_passes_its_cap() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let rule = Some(Selective { cap: 100, interval_ms: 50 });
    for (seq, value) in [(1, 60), (2, 30), (3, 20), (4, 5)] {
        rig.publish(seq, "x", Durability::Selective { value }, rule);
        assert!(rig.partition.value_at_risk(QUEUE) <= 100);
    }
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.confirmed(), [1, 2, 4], "the third would pass the cap: it waits for the sync");
    assert_eq!(rig.partition.value_at_risk(QUEUE), 95);
    rig.run();
    assert_eq!(rig.confirmed(), [3]);
    assert_eq!(rig.partition.value_at_risk(QUEUE), 0);
}

#[test]
fn a_deleted_queue_puts_nothing_at_risk_any_more() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish(1, "x", Durability::Selective { value: 60 }, Some(Selective { cap: 100, interval_ms: 50 }));
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.partition.values_at_risk(), 60);
    rig.command(Command::Delete { queue: QUEUE });
    assert_eq!(rig.partition.values_at_risk(), 0);
    rig.run();
    assert_eq!(rig.partition.values_at_risk(), 0);
}

#[test]
fn a_sync_asked_for_is_answered_after_everything_before_it() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish(1, "x", Durability::Level(Level::Written), None);
    rig.command(Command::Sync { channel: PUBLISHER, request: RequestId(5) });
    rig.with(|p, cx| p.flush(cx));
    rig.write();
    rig.with(|p, cx| p.flush(cx));
    let answered = |rig: &Rig| rig.effects.iter().any(|e| matches!(e, Effect::Reply { request: RequestId(5), .. }));
    assert!(!answered(&rig));
    rig.sync();
    rig.with(|p, cx| p.flush(cx));
    assert!(answered(&rig));
}

#[test]
fn a_deleted_queue_leaves_nothing_and_takes_nothing_late() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "a");
    rig.consume(1, 0, false);
    rig.run();
    rig.command(Command::Close {
        queue: QUEUE,
        if_unused: true,
        if_empty: false,
        channel: READER,
        request: RequestId(2),
    });
    rig.run();
    assert!(
        rig.effects.iter().any(|e| matches!(e, Effect::Reply { reply: Reply::DeleteRefused { in_use: true }, .. }))
    );
    rig.command(Command::Close {
        queue: QUEUE,
        if_unused: false,
        if_empty: false,
        channel: READER,
        request: RequestId(3),
    });
    rig.command(Command::Delete { queue: QUEUE });
    rig.publish_synced(2, "late");
    rig.run();
    assert_eq!(rig.confirmed(), [1, 2]);
    assert!(rig.effects.iter().any(|e| matches!(e, Effect::Cancelled { .. })));
    assert_eq!(rig.partition.queue_ids(), []);
    assert_eq!(rig.partition.in_flight_bytes(), 0);
}

#[test]
fn a_queue_that_may_go_whatever_is_in_it_works_on_until_its_end_is_decided() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let (channel, request) = (READER, RequestId(2));
    rig.command(Command::Close { queue: QUEUE, if_unused: false, if_empty: false, channel, request });
    rig.run();
    // Whoever asked is gone, and no decision ever comes.
    rig.publish_synced(1, "a");
    rig.run();
    assert_eq!(rig.confirmed(), [1]);
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["a"], "what is confirmed is there");
}

#[test]
fn what_comes_while_a_delete_on_a_condition_is_decided_waits_for_the_decision() {
    for is_deleted in [false, true] {
        let mut rig = Rig::new(Vec::new(), 1 << 20);
        let (channel, request) = (READER, RequestId(2));
        rig.command(Command::Close { queue: QUEUE, if_unused: true, if_empty: true, channel, request });
        rig.run();
        rig.publish_synced(1, "a");
        rig.consume(1, 0, false);
        rig.command(Command::Stat { queue: QUEUE, channel, request: RequestId(3) });
        rig.run();
        assert_eq!((rig.confirmed(), rig.delivered().len()), (Vec::new(), 0), "nothing is promised, nobody has it");
        let replies = |rig: &Rig| -> Vec<Reply> {
            let all = rig.effects.iter();
            all.filter_map(|e| if let Effect::Reply { reply, .. } = e { Some(reply.clone()) } else { None }).collect()
        };
        assert_eq!(replies(&rig), [Reply::Counted(0)]);
        let end = if is_deleted { Command::Delete { queue: QUEUE } } else { Command::Reopen { queue: QUEUE } };
        rig.command(end);
        rig.run();
        assert_eq!(rig.confirmed(), [1]);
        let answer = if is_deleted { Reply::Gone } else { Reply::Consuming };
        assert!(replies(&rig).contains(&answer), "{:?}", replies(&rig));
        assert_eq!(replies(&rig).len(), 3, "everybody is answered: {:?}", replies(&rig));
        assert_eq!(rig.delivered().len(), usize::from(!is_deleted));
        assert_eq!(rig.partition.remembers(QUEUE), !is_deleted);
    }
}

#[test]
fn a_publish_to_two_queues_that_are_decided_about_waits_for_both() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    let (other, channel) = (QueueId(QUEUE.0 + 1), READER);
    for (queue, request) in [(QUEUE, RequestId(2)), (other, RequestId(3))] {
        rig.command(Command::Close { queue, if_unused: false, if_empty: true, channel, request });
    }
    rig.run();
    let target = |queue| Target { queue, durability: Durability::Level(Level::Synced), selective: None };
    rig.command(publish_to([QUEUE, other].into_iter().map(target)));
    rig.run();
    rig.command(Command::Reopen { queue: other });
    rig.run();
    assert_eq!(rig.confirmed(), Vec::<u64>::new());
    rig.command(Command::Delete { queue: QUEUE });
    rig.run();
    assert_eq!(rig.confirmed(), [1]);
}

fn publish_to(targets: impl Iterator<Item = Target>) -> Command {
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::new(),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from_static(b"a"),
    };
    let targets = targets.collect();
    Command::Publish(Publish { channel: PUBLISHER, publish_seq: 1, term: 0, targets, delay_ms: 0, message, more: None })
}

#[test]
fn a_message_for_more_queues_than_a_batch_names_comes_to_all_of_them() {
    let count = TARGETS_MAX as u64 * 2 + 1;
    let target = |n| Target { queue: QueueId(n), durability: Durability::Level(Level::Synced), selective: None };
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(publish_to((1..=count).map(target)));
    rig.run();
    assert_eq!(rig.confirmed(), [1]);
    let live = |n| rig.partition.queues().queue(QueueId(n)).map_or(0, |state| state.runs().live());
    assert_eq!((1..=count).map(live).sum::<u64>(), count);
}

#[test]
fn queues_whose_values_at_risk_are_more_together_than_a_number_holds_are_no_harm() {
    let (value, rule) = (i64::MAX as u64, Selective { cap: i64::MAX as u64, interval_ms: 1_000 });
    let target = |n| Target { queue: QueueId(n), durability: Durability::Selective { value }, selective: Some(rule) };
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.command(publish_to((1..=3).map(target)));
    rig.with(|p, cx| p.flush(cx));
    assert_eq!(rig.partition.values_at_risk(), u64::MAX);
    rig.run();
    assert_eq!((rig.confirmed(), rig.partition.values_at_risk()), (vec![1], 0));
}

#[test]
fn who_asks_for_a_queue_after_its_end_hears_that_it_is_gone() {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.publish_synced(1, "a");
    rig.run();
    rig.command(Command::Delete { queue: QUEUE });
    // Before the end is applied, when the message is there yet, and after.
    for request in [2u64, 12] {
        let (queue, channel, number) = (QUEUE, READER, |n: u64| RequestId(request + n));
        rig.consume(1, 0, false);
        rig.command(Command::Get { queue, channel, no_ack: true, request: number(0) });
        rig.command(Command::Purge { queue, channel, request: number(1) });
        rig.command(Command::Stat { queue, channel, request: number(2) });
        rig.command(Command::Close { queue, if_unused: true, if_empty: true, channel, request: number(3) });
        rig.command(Command::Cancel { queue, consumer: consumer(1), request: number(4) });
        rig.command(Command::Reopen { queue });
        rig.command(Command::Configure { queue, rules: Rules { length_max: Some(1), ..Rules::default() }.into() });
        rig.run();
    }
    let gone = |e: &&Effect| matches!(e, Effect::Reply { reply: Reply::Gone, .. });
    let replies = |e: &&Effect| matches!(e, Effect::Reply { .. });
    assert_eq!(rig.effects.iter().filter(gone).count(), 12);
    assert_eq!(rig.effects.iter().filter(replies).count(), 12);
    assert_eq!(rig.delivered().len(), 0);
    assert!(!rig.partition.remembers(QUEUE), "nobody brought it back");
}

/// Ten messages, of which a consumer with a prefetch of two was given two.
fn two_of_ten_sent() -> Rig {
    let mut rig = Rig::new(Vec::new(), 1 << 20);
    rig.consume(1, 2, false);
    for seq in 1..=10 {
        rig.publish_synced(seq, &format!("m{seq}"));
        rig.run();
    }
    assert_eq!(texts(&rig.delivered()), numbered(1..=2));
    rig
}

/// The numbers of those that come flagged after a restart, to a consumer without a limit.
fn flagged_after_restart(rig: Rig) -> Vec<u64> {
    let mut rig = rig.restarted();
    rig.consume(9, 0, false);
    rig.run();
    rig.delivered().iter().filter(|d| d.redelivered).map(|d| d.seq).collect()
}

#[test]
fn what_consumers_have_no_room_for_is_not_flagged_after_a_restart() {
    assert_eq!(flagged_after_restart(two_of_ten_sent()), [1, 2]);
    // Three acks, so that the watermark runs ahead of them.
    let mut rig = two_of_ten_sent();
    for seq in 1..=3 {
        rig.settle(1, seq, 1, Disposition::Ack);
        rig.run();
    }
    assert_eq!(texts(&rig.delivered()), numbered(3..=5));
    let flagged = flagged_after_restart(rig);
    assert!(flagged.starts_with(&[4, 5]) && flagged.len() > 2, "what was sent, and a few behind it: {flagged:?}");
}

#[test]
fn a_quiet_queue_flags_exactly_what_was_sent() {
    let mut rig = two_of_ten_sent();
    for seq in 1..=3 {
        rig.settle(1, seq, 1, Disposition::Ack);
        rig.run();
    }
    let due = rig.partition.due_ms().expect("it wants to be looked at when it is quiet");
    for _ in 0..3 {
        rig.pass(due - rig.now.min(due) + 1_000);
    }
    assert_eq!(rig.partition.due_ms(), None, "and then no more");
    // It goes on as before.
    rig.settle(1, 4, 1, Disposition::Ack);
    rig.run();
    assert_eq!(texts(&rig.delivered()), numbered(3..=6));
    rig.pass(1_000);
    rig.pass(1_000);
    assert_eq!(flagged_after_restart(rig), [5, 6]);
}

#[test]
fn when_the_last_consumer_goes_what_it_was_not_given_is_not_flagged() {
    let mut rig = two_of_ten_sent();
    // Three acks, so that the watermark runs ahead of what was sent.
    for seq in 1..=3 {
        rig.settle(1, seq, 1, Disposition::Ack);
        rig.run();
    }
    rig.command(Command::Detach { channel: READER });
    rig.run();
    assert_eq!(flagged_after_restart(rig), [4, 5]);
}

#[test]
fn who_comes_while_the_watermark_is_lowered_is_given_nothing_that_it_would_not_cover() {
    let mut rig = two_of_ten_sent();
    for seq in 1..=3 {
        rig.settle(1, seq, 1, Disposition::Ack);
        rig.run();
    }
    rig.delivered();
    rig.command(Command::Detach { channel: READER });
    // The lower watermark is on its way into the log, and not there yet.
    rig.with(|p, cx| p.flush(cx));
    rig.consume(9, 0, false);
    rig.run();
    assert_eq!(rig.delivered().len(), 7);
    assert_eq!(flagged_after_restart(rig), [4, 5, 6, 7, 8, 9, 10]);
}

//! A partition of one member over a WAL that writes and syncs when the test says so.
#![allow(clippy::unwrap_used)]

use broker::queue::Consumer;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::command::{
    Command, Delivery, Durability, Effect, Level, Message, Outcome, Outlets, Publish, Reply, RequestId, Selective,
    Target,
};
use partition::outputs::{Outputs, ReadAt, ReadBytes, WalWrite};
use partition::{Context, QueuePartition, Recovery, Tail};
use smallvec::smallvec;
use std::collections::VecDeque;
use storage::{FileNo, Location, RecordKind};

struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

/// One record of the pretended log: kind, term, index, body and where it lies.
type Kept = (RecordKind, u64, u64, Bytes, Location);

struct Rig {
    partition: QueuePartition,
    tail: Tail,
    out: Outputs,
    log: Vec<Kept>,
    offset: u32,
    unwritten: VecDeque<WalWrite>,
    unsynced: VecDeque<partition::outputs::Ticket>,
    effects: Vec<Effect>,
    now: u64,
    /// How many batches each read asked for.
    reads: Vec<usize>,
    /// A read brings so many batches at most.
    batches_max: usize,
}

const QUEUE: QueueId = QueueId(7);
const PUBLISHER: ChannelKey = ChannelKey(100);
const READER: ChannelKey = ChannelKey(200);

fn consumer(number: u32) -> ConsumerKey {
    ConsumerKey { channel: READER, number }
}

impl Rig {
    fn new(log: Vec<Kept>, cache: usize) -> Rig {
        let mut recovery = Recovery::queues(PartitionId(3), None).unwrap();
        for (kind, term, index, body, at) in &log {
            recovery.record(*kind, *term, *index, body.clone(), *at);
        }
        let config = Config::new(NodeId(1), 3, 42);
        let offset = log.last().map_or(4096, |l| l.4.offset + l.4.bytes);
        let mut rig = Rig {
            partition: recovery.finish(NodeId(1), config, &[NodeId(1)]),
            tail: Tail::new(cache),
            out: Outputs::default(),
            log,
            offset,
            unwritten: VecDeque::new(),
            unsynced: VecDeque::new(),
            effects: Vec::new(),
            now: 1000,
            reads: Vec::new(),
            batches_max: usize::MAX,
        };
        for _ in 0..50 {
            rig.with(|p, cx| p.tick(cx));
            rig.run();
        }
        assert!(rig.partition.is_leading(), "a group of one leads itself");
        rig
    }

    fn with(&mut self, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        self.now += 1;
        let mut open = Open;
        let mut cx = Context { now_ms: self.now, tail: &mut self.tail, outlets: &mut open, out: &mut self.out };
        f(&mut self.partition, &mut cx);
        self.collect();
    }

    fn collect(&mut self) {
        self.effects.append(&mut self.out.effects);
        self.unwritten.extend(self.out.wal.drain(..));
    }

    fn write(&mut self) {
        while let Some(write) = self.unwritten.pop_front() {
            let mut places = Vec::new();
            for record in write.records {
                let at = Location { file: FileNo(1), offset: self.offset, bytes: record.body.len() as u32 };
                self.offset += at.bytes + 40;
                if record.kind == RecordKind::Entry {
                    places.push(at);
                }
                self.log.push((record.kind, record.term, record.index, record.body, at));
            }
            self.with(|p, cx| p.wal_written(write.ticket, &places, cx));
            self.unsynced.push_back(write.ticket);
        }
    }

    fn sync(&mut self) {
        while let Some(ticket) = self.unsynced.pop_front() {
            self.with(|p, cx| p.wal_synced(ticket, cx));
        }
    }

    fn read(&mut self) {
        for read in std::mem::take(&mut self.out.reads) {
            let ReadAt::Batches(places) = read.at else { panic!("nothing is in extents here") };
            self.reads.push(places.len());
            let batches = places.into_iter().take(self.batches_max).map(|at| {
                let within = |l: &Location| l.offset <= at.offset && at.offset + at.bytes <= l.offset + l.bytes;
                let (_, _, _, body, place) = self.log.iter().find(|l| within(&l.4)).unwrap();
                let from = (at.offset - place.offset) as usize;
                (at, body.slice(from..from + at.bytes as usize))
            });
            let batches = batches.collect();
            self.with(|p, cx| p.read_done(read.purpose, Some(ReadBytes::Batches(batches)), cx));
        }
    }

    /// Until nothing moves any more.
    fn run(&mut self) {
        for _ in 0..1000 {
            self.with(|p, cx| p.flush(cx));
            if self.unwritten.is_empty() && self.unsynced.is_empty() && self.out.reads.is_empty() {
                return;
            }
            self.write();
            self.sync();
            self.read();
        }
        panic!("it never comes to rest");
    }

    fn command(&mut self, command: Command) {
        self.with(|p, cx| p.command(command, cx));
    }

    fn publish(&mut self, seq: u64, text: &str, durability: Durability, selective: Option<Selective>) {
        let message = Message {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            properties: Bytes::from_static(&[0, 0]),
            body: Bytes::copy_from_slice(text.as_bytes()),
        };
        let targets = smallvec![Target { queue: QUEUE, durability, selective }];
        self.command(Command::Publish(Publish { channel: PUBLISHER, publish_seq: seq, targets, delay_ms: 0, message }));
    }

    fn publish_synced(&mut self, seq: u64, text: &str) {
        self.publish(seq, text, Durability::Level(Level::Synced), None);
    }

    fn consume(&mut self, number: u32, prefetch: u32, no_ack: bool) {
        let consumer =
            Consumer { key: consumer(number), prefetch, no_ack, exclusive: false, priority: 0, granted_only: false };
        self.command(Command::Consume { queue: QUEUE, consumer, request: RequestId(1) });
    }

    fn settle(&mut self, number: u32, first: u64, count: u64, outcome: Outcome) {
        self.command(Command::Settle { queue: QUEUE, holder: consumer(number), first, count, outcome });
    }

    fn confirmed(&mut self) -> Vec<u64> {
        let mut confirmed = Vec::new();
        self.effects.retain(|e| match e {
            Effect::Confirm { first, count, .. } => {
                confirmed.extend(*first..*first + *count);
                false
            }
            _ => true,
        });
        confirmed
    }

    fn delivered(&mut self) -> Vec<Delivery> {
        let mut delivered = Vec::new();
        self.effects.retain(|e| match e {
            Effect::Deliver(d) => {
                delivered.push(d.clone());
                false
            }
            _ => true,
        });
        delivered
    }

    fn stat(&mut self) -> (u64, u64, u64) {
        self.command(Command::Stat { queue: QUEUE, channel: READER, request: RequestId(9) });
        self.run();
        let at = self.effects.iter().rposition(|e| matches!(e, Effect::Reply { reply: Reply::Stat { .. }, .. }));
        match self.effects.remove(at.expect("a stat is answered")) {
            Effect::Reply { reply: Reply::Stat { ready, unacked, consumers }, .. } => (ready, unacked, consumers),
            _ => unreachable!("it was found above"),
        }
    }

    fn restarted(self) -> Rig {
        Rig::new(self.log, 1 << 20)
    }
}

fn texts(deliveries: &[Delivery]) -> Vec<String> {
    let text = |d: &Delivery| partition::message::MessageView::parse(&d.message).unwrap().body().to_vec();
    deliveries.iter().map(|d| String::from_utf8(text(d)).unwrap()).collect()
}

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
    rig.settle(1, delivered[0].seq, 1, Outcome::Ack);
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
    rig.settle(1, first[1].seq, 1, Outcome::Nack);
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
    rig.settle(1, first[0].seq, 1, Outcome::Ack);
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
fn messages_that_left_memory_are_read_back() {
    let mut rig = Rig::new(Vec::new(), 300);
    for seq in 1..=40 {
        rig.publish_synced(seq, &format!("message number {seq}"));
        rig.run();
    }
    assert!(rig.tail.bytes() <= 300);
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), (1..=40).map(|i| format!("message number {i}")).collect::<Vec<_>>());
    assert_eq!(rig.stat(), (0, 0, 1));
}

/// A queue of forty batches, of which only the last few are in memory.
fn long_queue() -> Rig {
    let mut rig = Rig::new(Vec::new(), 300);
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
    rig.settle(1, first[1].seq, 1, Outcome::Nack);
    rig.run();
    assert_eq!(texts(&rig.delivered()), ["m2"]);
    rig.settle(1, first[0].seq, 5, Outcome::Ack);
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
        .filter_map(|e| if let Effect::Reply { reply, .. } = e { Some(reply) } else { None })
        .collect();
    let Reply::Got { delivery, ready } = replies[0] else { panic!("{replies:?}") };
    assert_eq!((texts(std::slice::from_ref(delivery)), *ready), (vec!["m1".to_string()], 3));
    assert_eq!(replies[1..], [&Reply::Stat { ready: 3, unacked: 1, consumers: 0 }, &Reply::Counted(3), &Reply::Empty]);
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
fn damaged_bytes_stop_their_queue_and_are_told_once() {
    let mut rig = Rig::new(Vec::new(), 1);
    rig.publish_synced(1, "first");
    rig.run();
    for kept in &mut rig.log {
        let mut bytes = kept.3.to_vec();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
        }
        kept.3 = Bytes::from(bytes);
    }
    rig.consume(1, 0, true);
    rig.run();
    assert_eq!(texts(&rig.delivered()), Vec::<String>::new(), "damaged bytes are never handed out");
    assert_eq!(rig.out.damage.len(), 1, "{:?}", rig.out.damage);
    assert_eq!(rig.stat(), (1, 0, 1), "and nothing is skipped");
    assert_eq!(rig.out.damage.len(), 1);
}

mod life {
    //! Queues with rules: what their leader ends, where it goes, and that a restart changes none of it.

    use super::*;
    use broker::queue::{DeadLetterRule, Overflow, Retried, RetryRule, Rules};
    use broker::topology::Name;
    use partition::DeadLetter;
    use partition::entry::Reason;
    use partition::message::MessageView;
    use proptest::prelude::*;

    fn configured(log: Vec<Kept>, rules: &Rules) -> Rig {
        let mut rig = Rig::new(log, 1 << 20);
        rig.command(Command::Configure { queue: QUEUE, rules: rules.clone().into() });
        rig.run();
        rig
    }

    fn dead_letter(at_least_once: bool) -> Option<DeadLetterRule> {
        Some(DeadLetterRule { exchange: Name::from("dlx"), routing_key: None, at_least_once })
    }

    impl Rig {
        fn letters(&mut self) -> Vec<DeadLetter> {
            let mut letters = Vec::new();
            self.effects.retain(|e| match e {
                Effect::DeadLetter(letter) => {
                    letters.push((**letter).clone());
                    false
                }
                _ => true,
            });
            letters
        }

        fn refused(&mut self) -> Vec<u64> {
            let mut refused = Vec::new();
            self.effects.retain(|e| match e {
                Effect::Refuse { first, count, .. } => {
                    refused.extend(*first..*first + *count);
                    false
                }
                _ => true,
            });
            refused
        }

        fn pass(&mut self, ms: u64) {
            self.now += ms;
            self.run();
        }

        fn get(&mut self) -> Option<Delivery> {
            self.command(Command::Get { queue: QUEUE, channel: READER, no_ack: false, request: RequestId(5) });
            self.run();
            let at = self.effects.iter().position(|e| matches!(e, Effect::Reply { .. }));
            match self.effects.remove(at.expect("a get is answered")) {
                Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(delivery),
                Effect::Reply { reply: Reply::Empty, .. } => None,
                other => panic!("{other:?} answers no get"),
            }
        }

        fn decide(&mut self, delivery: &Delivery, outcome: Outcome) {
            let (holder, first) = (ConsumerKey::get(READER), delivery.seq);
            self.command(Command::Settle { queue: QUEUE, holder, first, count: 1, outcome });
            self.run();
        }

        fn publish_in(&mut self, seq: u64, text: &str, delay_ms: u64) {
            // The header `x-delay`, as the session read it.
            let mut properties = vec![0x20, 0, 0, 0, 0, 13, 7];
            properties.extend_from_slice(b"x-delayI");
            properties.extend_from_slice(&(delay_ms as i32).to_be_bytes());
            let message = Message {
                exchange: Bytes::new(),
                routing_key: Bytes::from_static(b"q"),
                properties: properties.into(),
                body: Bytes::copy_from_slice(text.as_bytes()),
            };
            let durability = Durability::Level(Level::Synced);
            let targets = smallvec![Target { queue: QUEUE, durability, selective: None }];
            let publish = Publish { channel: PUBLISHER, publish_seq: seq, targets, delay_ms, message };
            self.command(Command::Publish(publish));
        }
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
        rig.decide(&got, Outcome::Discard);
        let letters = rig.letters();
        assert_eq!((letters.len(), letters[0].wants_answer, letters[0].reason), (1, true, Reason::Discarded));
        assert_eq!(rig.stat(), (0, 0, 0));
        rig.command(Command::Buried { queue: QUEUE, seq: letters[0].seq, is_safe: false });
        rig.run();
        assert_eq!(rig.letters(), [], "not at once again");
        rig.pass(2_000);
        assert_eq!(rig.letters().len(), 1, "but after a while");

        // A leader that dies before the answer: the next one offers it again, and gives it to nobody else.
        let mut rig = Rig::new(rig.log, 0);
        rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
        rig.run();
        assert!(rig.get().is_none(), "it was rejected once and for all");
        let letters = rig.letters();
        assert_eq!(letters.iter().map(|l| text_of(&l.message)).collect::<Vec<_>>(), ["a"]);
        assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 1);
        rig.command(Command::Buried { queue: QUEUE, seq: letters[0].seq, is_safe: true });
        rig.run();
        assert_eq!(rig.partition.queues().queue(QUEUE).unwrap().runs().live(), 0);
        let mut rig = rig.restarted();
        rig.run();
        assert_eq!(rig.letters(), []);
    }

    #[test]
    fn a_strategy_that_changes_lets_go_of_what_nobody_confirmed() {
        let mut rules = Rules { dead_letter: dead_letter(true), ..Rules::default() };
        let mut rig = configured(Vec::new(), &rules);
        rig.publish_synced(1, "a");
        rig.run();
        let got = rig.get().unwrap();
        rig.decide(&got, Outcome::Discard);
        assert_eq!(rig.letters().len(), 1);
        rules.dead_letter = dead_letter(false);
        rig.command(Command::Configure { queue: QUEUE, rules: rules.into() });
        rig.run();
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
        rig.decide(&got, Outcome::Nack);
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
        rig.decide(&again, Outcome::Nack);
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

        /// A message is exactly one of ready, unacked, settled, dead-lettered or refused, whatever happens to it, and
        /// nobody ever sees a queue beyond its limit.
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
                        let outcome = [Outcome::Ack, Outcome::Nack, Outcome::Reject, Outcome::Discard][how as usize];
                        acked += u64::from(outcome == Outcome::Ack);
                        had_back |= matches!(outcome, Outcome::Nack | Outcome::Reject);
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
}

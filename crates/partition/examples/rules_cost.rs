//! What a rule costs a message, and a scheduled message in memory:
//! `cargo run -p partition --example rules_cost`.
//!
//! Invariant: all kinds of queue take turns in one process, and of each the quickest of many slices
//! counts, since neighbours on the machine only ever make one slower; memory is counted at the
//! allocator. So one number can be held against another.
#![allow(clippy::print_stdout)]

use broker::queue::{Consumer, DedupRule, LevelRule, Rules};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::entry::EntryBuilder;
use partition::machine::{Queues, Unobserved, scheduled_for};
use partition::message::Stamp;
use partition::outputs::Outputs;
use partition::{
    Command, Context, Disposition, Effect, Level, Message, Outlets, Publish, QueuePartition, Recovery, RequestId, Tail,
    Target,
};
use smallvec::smallvec;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use storage::{FileNo, Location, RecordKind};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is; only a counter is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const QUEUE: QueueId = QueueId(7);
const PENDING: u64 = 1_000_000;
const SLICES: usize = 400;
const SLICE_MESSAGES: u64 = 256;
const CONSUMER: ConsumerKey = ConsumerKey { channel: ChannelKey(2), number: 1 };

fn message(properties: Vec<u8>) -> Message {
    Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: properties.into(),
        body: Bytes::from_static(&[0; 100]),
    }
}

/// Bytes of memory for a pending message when so many come in with one entry of the log, before any
/// is copied out of it. `in_order`: all have the same delay.
fn pending_bytes(per_entry: u64, in_order: bool) -> f64 {
    let before = BYTES.load(Ordering::Relaxed);
    let (mut queues, mut builder, message) = (Queues::default(), EntryBuilder::default(), message(vec![0, 0]));
    for entry in 0..PENDING / per_entry {
        for at in 0..per_entry {
            let number = entry * per_entry + at;
            // Delays of many lengths make times in no order.
            let due_ms = if in_order { number } else { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 };
            let targets = [scheduled_for(QUEUE)];
            builder.publish(ChannelKey::NOBODY, 0, &targets, &[], &[], Level::Synced, &message, Stamp::Due(due_ms));
        }
        let (bytes, _) = builder.finish(1);
        let at = Location { file: FileNo(1), offset: entry as u32 * 64, bytes: bytes.len() as u32 };
        queues.apply(&bytes, at, &mut Unobserved).expect("it was built here");
    }
    (BYTES.load(Ordering::Relaxed) - before) as f64 / PENDING as f64
}

struct Open;
impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

/// One member over a log that is written and synced at once and kept nowhere.
struct Rig {
    partition: QueuePartition,
    tail: Tail,
    out: Outputs,
    offset: u32,
    now_ms: u64,
    seq: u64,
}

impl Rig {
    fn new(rules: Rules) -> Rig {
        let recovery = Recovery::queues(PartitionId(3), None).expect("there is nothing to read");
        let partition = recovery.finish(NodeId(1), Config::new(NodeId(1), 3, 42), &[NodeId(1)]).expect("it is empty");
        let (tail, out) = (Tail::new(4 << 20), Outputs::default());
        let mut rig = Rig { partition, tail, out, offset: 4096, now_ms: 1, seq: 0 };
        for _ in 0..50 {
            rig.with(|p, cx| p.tick(cx));
            rig.settle_down();
        }
        rig.with(|p, cx| p.command(Command::Configure { queue: QUEUE, rules: rules.into() }, cx));
        let consumer =
            Consumer { key: CONSUMER, prefetch: 0, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        let consume = Command::Consume { queue: QUEUE, consumer, again: false, request: RequestId(1) };
        rig.with(|p, cx| p.command(consume, cx));
        rig.settle_down();
        rig
    }

    fn with(&mut self, act: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        let mut cx = Context { now_ms: self.now_ms, tail: &mut self.tail, outlets: &mut Open, out: &mut self.out };
        act(&mut self.partition, &mut cx);
    }

    /// Writes and syncs until nothing moves. Gives the deliveries: the first, and how many.
    fn settle_down(&mut self) -> u64 {
        let mut delivered = 0;
        loop {
            self.with(|p, cx| p.flush(cx));
            let effects = std::mem::take(&mut self.out.effects);
            delivered += effects.iter().filter(|effect| matches!(effect, Effect::Deliver(_))).count() as u64;
            let writes = std::mem::take(&mut self.out.wal);
            if writes.is_empty() {
                return delivered;
            }
            for write in writes {
                let mut places = Vec::new();
                for record in write.records.iter().filter(|record| record.kind == RecordKind::Entry) {
                    let bytes = record.body.len() as u32;
                    places.push(Location { file: FileNo(1), offset: self.offset, bytes });
                    self.offset = self.offset.wrapping_add(bytes + 40);
                }
                self.with(|p, cx| p.wal_written(write.ticket, &places, cx));
                self.with(|p, cx| p.wal_synced(write.ticket, cx));
            }
        }
    }

    /// Publishes, delivers and acks a slice of messages; nanoseconds for one.
    fn slice(&mut self, properties: impl Fn(u64) -> Vec<u8>) -> f64 {
        let messages: Vec<Message> = (0..SLICE_MESSAGES).map(|at| message(properties(self.seq + at))).collect();
        let first = self.seq + 1;
        self.now_ms += 1;
        let start = Instant::now();
        for message in messages {
            self.seq += 1;
            let durability = partition::command::Durability::Level(Level::Synced);
            let targets = smallvec![Target { queue: QUEUE, durability, selective: None }];
            let publish = Publish {
                channel: ChannelKey(1),
                publish_seq: self.seq,
                term: 0,
                targets,
                delay_ms: 0,
                message,
                more: None,
            };
            self.with(|p, cx| p.command(Command::Publish(publish), cx));
        }
        let delivered = self.settle_down();
        assert_eq!(delivered, SLICE_MESSAGES, "everything goes out");
        let (holder, count, outcome) = (CONSUMER, SLICE_MESSAGES, Disposition::Ack);
        self.with(|p, cx| p.command(Command::Settle { queue: QUEUE, holder, first, count, outcome }, cx));
        self.settle_down();
        start.elapsed().as_nanos() as f64 / SLICE_MESSAGES as f64
    }
}

/// A content header with a key of eight bytes.
fn keyed(seq: u64) -> Vec<u8> {
    let field = [&b"\x16x-deduplication-headerS\0\0\0\x08"[..], &seq.to_be_bytes()].concat();
    [&[0x20, 0][..], &(field.len() as u32).to_be_bytes(), &field].concat()
}

/// A kind of queue: its name, its rules, the properties of its messages.
type Kind = (&'static str, Rules, fn(u64) -> Vec<u8>);

fn main() {
    for per_entry in [1_000, 10, 1] {
        let (mixed, in_order) = (pending_bytes(per_entry, false), pending_bytes(per_entry, true));
        println!("pending scheduled message, {per_entry:>4} an entry: {mixed:5.1} bytes, of one delay {in_order:5.1}");
    }
    let plain = Rules::default();
    let no_properties: fn(u64) -> Vec<u8> = |_| vec![0, 0];
    let kinds: [Kind; 7] = [
        ("plain", plain.clone(), no_properties),
        ("time limit", Rules { message_ttl_ms: Some(60_000), ..plain.clone() }, no_properties),
        ("length limit", Rules { length_max: Some(1_000_000), ..plain.clone() }, no_properties),
        ("delivery limit", Rules { delivery_limit: Some(20), ..plain.clone() }, no_properties),
        ("priority", Rules { levels: LevelRule::UpTo(10), ..plain.clone() }, |seq| vec![8, 0, (seq % 10) as u8]),
        ("deduplication", Rules { dedup: Some(DedupRule { window_ms: 0 }), ..plain.clone() }, keyed),
        ("the header alone", plain, keyed),
    ];
    let mut rigs: Vec<_> = kinds.iter().map(|(_, rules, _)| (Rig::new(rules.clone()), f64::MAX)).collect();
    for _ in 0..SLICES {
        for ((rig, best), (_, _, properties)) in rigs.iter_mut().zip(&kinds) {
            *best = best.min(rig.slice(properties));
        }
    }
    let base = rigs[0].1;
    for ((name, _, _), (_, best)) in kinds.iter().zip(&rigs) {
        println!("{name:<16} {best:6.0} ns a message, {:+5.0} ns against plain", best - base);
    }
}

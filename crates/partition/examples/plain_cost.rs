//! Publishes, delivers and acks on a plain queue, to count instructions:
//! `plain_cost SLICES MESSAGES durable|transient`.
//!
//! ```text
//! cargo build --release -p partition --example plain_cost
//! valgrind --tool=callgrind target/release/examples/plain_cost 200 32 durable
//! ```
//!
//! Invariant: nothing here depends on time or chance, so two runs with different numbers of slices
//! differ by exactly what the further messages cost, and a change of the code shows however busy
//! the machine is.

use broker::queue::Consumer;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::command::{
    Command, Disposition, Durability, Effect, Level, Message, Outlets, Publish, RequestId, Target,
};
use partition::outputs::Outputs;
use partition::{Context, QueuePartition, Recovery, Tail, TransientQueues};
use smallvec::smallvec;
use std::hint::black_box;
use storage::{FileNo, Location, RecordKind};

const QUEUE: QueueId = QueueId(7);
const CONSUMER: ConsumerKey = ConsumerKey { channel: ChannelKey(2), number: 1 };
const BODY: &[u8] = &[0; 100];

struct Open;

impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

fn publish(seq: u64) -> Command {
    let message = Message {
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(b"q"),
        properties: Bytes::from_static(&[0, 0]),
        body: Bytes::from_static(BODY),
    };
    let targets = smallvec![Target { queue: QUEUE, durability: Durability::Level(Level::Synced), selective: None }];
    Command::Publish(Publish {
        channel: ChannelKey(1),
        publish_seq: seq,
        term: 0,
        targets,
        delay_ms: 0,
        message,
        more: None,
    })
}

fn consume() -> Command {
    let consumer =
        Consumer { key: CONSUMER, prefetch: 0, no_ack: false, exclusive: false, priority: 0, granted_only: false };
    Command::Consume { queue: QUEUE, consumer, again: false, request: RequestId(1) }
}

fn settle(first: u64, count: u64) -> Command {
    Command::Settle { queue: QUEUE, holder: CONSUMER, first, count, outcome: Disposition::Ack }
}

fn delivered(effects: &mut Vec<Effect>) -> u64 {
    let count = effects.iter().filter(|effect| matches!(effect, Effect::Deliver(_))).count();
    black_box(&effects).len();
    effects.clear();
    count as u64
}

/// One member over a log that is written and synced at once and kept nowhere.
struct Durable {
    partition: QueuePartition,
    tail: Tail,
    out: Outputs,
    offset: u32,
}

impl Durable {
    fn with(&mut self, now_ms: u64, act: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        let mut cx = Context { now_ms, tail: &mut self.tail, outlets: &mut Open, out: &mut self.out };
        act(&mut self.partition, &mut cx);
    }

    /// Writes and syncs until nothing moves; how many were delivered.
    fn settle_down(&mut self, now_ms: u64) -> u64 {
        let mut count = 0;
        loop {
            self.with(now_ms, |p, cx| p.flush(cx));
            count += delivered(&mut self.out.effects);
            if self.out.wal.is_empty() {
                return count;
            }
            for write in std::mem::take(&mut self.out.wal) {
                let mut places = Vec::new();
                for record in write.records.iter().filter(|record| record.kind == RecordKind::Entry) {
                    let bytes = record.body.len() as u32;
                    places.push(Location { file: FileNo(1), offset: self.offset, bytes });
                    self.offset = self.offset.wrapping_add(bytes + 40);
                }
                self.with(now_ms, |p, cx| p.wal_written(write.ticket, &places, cx));
                self.with(now_ms, |p, cx| p.wal_synced(write.ticket, cx));
            }
        }
    }
}

fn durable(slices: u64, messages: u64) {
    let recovery = Recovery::queues(PartitionId(3), None).expect("there is nothing to read");
    let partition = recovery.finish(NodeId(1), Config::new(NodeId(1), 3, 42), &[NodeId(1)]).expect("it is empty");
    let mut rig = Durable { partition, tail: Tail::new(4 << 20), out: Outputs::default(), offset: 4096 };
    for _ in 0..50 {
        rig.with(1, |p, cx| p.tick(cx));
        rig.settle_down(1);
    }
    rig.with(1, |p, cx| p.command(consume(), cx));
    rig.settle_down(1);
    for slice in 0..slices {
        let first = slice * messages + 1;
        for seq in first..first + messages {
            rig.with(slice, |p, cx| p.command(publish(seq), cx));
        }
        assert_eq!(rig.settle_down(slice), messages, "everything goes out");
        rig.with(slice, |p, cx| p.command(settle(first, messages), cx));
        rig.settle_down(slice);
    }
}

fn transient(slices: u64, messages: u64) {
    let (mut queues, mut commands, mut effects) = (TransientQueues::new(), Vec::new(), Vec::new());
    queues.declare(QUEUE);
    commands.push(consume());
    queues.step(1, &mut commands, &mut effects, &mut Open);
    effects.clear();
    for slice in 0..slices {
        let first = slice * messages + 1;
        commands.extend((first..first + messages).map(publish));
        queues.step(slice, &mut commands, &mut effects, &mut Open);
        assert_eq!(delivered(&mut effects), messages, "everything goes out");
        commands.push(settle(first, messages));
        queues.step(slice, &mut commands, &mut effects, &mut Open);
        effects.clear();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(slices), Some(messages)) = (number(0), number(1)) else {
        eprintln!("plain_cost SLICES MESSAGES durable|transient");
        std::process::exit(2);
    };
    match arguments.get(2).map(String::as_str) {
        Some("transient") => transient(slices, messages),
        _ => durable(slices, messages),
    }
}

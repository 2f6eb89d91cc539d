//! A partition of one member over a WAL that writes and syncs when the test says so.
//!
//! Invariant: nothing happens by itself, time included, but for a millisecond a call.

#![allow(clippy::unwrap_used, dead_code)] // Each test binary uses its part.

use broker::queue::{Consumer, Rules};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::command::{
    Command, Delivery, Disposition, Durability, Effect, Level, Message, Outlets, Publish, Reply, RequestId, Selective,
    Target,
};
use partition::outputs::{Outputs, ReadAt, ReadBytes, ReadFailed, ReadPurpose, WalWrite};
use partition::{Context, DeadLetter, QueuePartition, Recovery, Tail};
use smallvec::smallvec;
use std::collections::VecDeque;
use storage::{FileNo, Location, RecordKind};

/// Consumers have room, and so many messages may become dead letters for their age.
struct Open<'a>(&'a mut usize);
impl Outlets for Open<'_> {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }

    fn has_letter_room(&mut self, _: QueueId) -> bool {
        *self.0 > 0
    }

    fn take_letter_room(&mut self, _: QueueId, _: usize) {
        *self.0 -= 1;
    }
}

/// One record of the pretended log: kind, term, index, body and where it lies.
pub(crate) type Kept = (RecordKind, u64, u64, Bytes, Location);

pub(crate) struct Rig {
    pub(crate) partition: QueuePartition,
    pub(crate) tail: Tail,
    pub(crate) out: Outputs,
    pub(crate) log: Vec<Kept>,
    pub(crate) offset: u32,
    pub(crate) unwritten: VecDeque<WalWrite>,
    pub(crate) unsynced: VecDeque<partition::outputs::Ticket>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) now: u64,
    /// How many batches each read asked for.
    pub(crate) reads: Vec<usize>,
    /// A read brings so many batches at most.
    pub(crate) batches_max: usize,
    /// Messages of the one pretended extent.
    pub(crate) extent: Vec<(u64, Bytes)>,
    /// Messages of it that read as rubbish, and batches of the log, by their first byte.
    pub(crate) rotten: Vec<u64>,
    /// The rubbish is in memory only: the disk has what was written.
    pub(crate) rotten_in_memory: bool,
    /// So many reads are refused.
    pub(crate) refusals: u32,
    /// They are for want of the file.
    pub(crate) is_unmounted: bool,
    /// So many messages may become dead letters for their age.
    pub(crate) letter_room: usize,
}

pub(crate) const QUEUE: QueueId = QueueId(7);
pub(crate) const PUBLISHER: ChannelKey = ChannelKey(100);
pub(crate) const READER: ChannelKey = ChannelKey(200);

pub(crate) fn consumer(number: u32) -> ConsumerKey {
    ConsumerKey { channel: READER, number }
}

impl Rig {
    pub(crate) fn new(log: Vec<Kept>, cache: usize) -> Rig {
        Rig::told(log, cache, |_, _| ())
    }

    /// One that is told something before it leads.
    pub(crate) fn told(log: Vec<Kept>, cache: usize, tell: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) -> Rig {
        Rig::configured(log, cache, Config::new(NodeId(1), 3, 42), tell)
    }

    /// One whose log takes so few bytes before they are committed.
    pub(crate) fn narrow(uncommitted_bytes_max: usize) -> Rig {
        let valid = Config::new(NodeId(1), 3, 42);
        let config = Config { message_bytes_max: uncommitted_bytes_max, uncommitted_bytes_max, ..valid };
        Rig::configured(Vec::new(), 1 << 20, config, |_, _| ())
    }

    /// One whose entries have so few bytes at most.
    pub(crate) fn terse(log: Vec<Kept>, entry_bytes_max: usize) -> Rig {
        let config = Config { entry_bytes_max, ..Config::new(NodeId(1), 3, 42) };
        Rig::configured(log, 1 << 20, config, |_, _| ())
    }

    fn configured(
        log: Vec<Kept>,
        cache: usize,
        config: Config,
        tell: impl FnOnce(&mut QueuePartition, &mut Context<'_>),
    ) -> Rig {
        let mut recovery = Recovery::queues(PartitionId(3), None).unwrap();
        for (kind, term, index, body, at) in &log {
            recovery.record(*kind, *term, *index, body.clone(), *at);
        }
        let offset = log.last().map_or(4096, |l| l.4.offset + l.4.bytes);
        let mut rig = Rig {
            partition: recovery.finish(NodeId(1), config, &[NodeId(1)]).unwrap(),
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
            extent: Vec::new(),
            rotten: Vec::new(),
            rotten_in_memory: false,
            refusals: 0,
            is_unmounted: false,
            letter_room: usize::MAX,
        };
        rig.with(tell);
        for _ in 0..50 {
            rig.with(|p, cx| p.tick(cx));
            rig.run();
        }
        assert!(rig.partition.is_leading(), "a group of one leads itself");
        rig
    }

    pub(crate) fn with(&mut self, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        self.now += 1;
        let mut open = Open(&mut self.letter_room);
        let mut cx = Context { now_ms: self.now, tail: &mut self.tail, outlets: &mut open, out: &mut self.out };
        f(&mut self.partition, &mut cx);
        self.collect();
    }

    pub(crate) fn collect(&mut self) {
        self.effects.append(&mut self.out.effects);
        self.unwritten.extend(self.out.wal.drain(..));
    }

    pub(crate) fn write(&mut self) {
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

    pub(crate) fn sync(&mut self) {
        while let Some(ticket) = self.unsynced.pop_front() {
            self.with(|p, cx| p.wal_synced(ticket, cx));
        }
    }

    pub(crate) fn read(&mut self) {
        for read in std::mem::take(&mut self.out.reads) {
            let is_second = matches!(read.purpose, ReadPurpose::Messages { is_second: true, .. });
            let rotten = if is_second && self.rotten_in_memory { Vec::new() } else { self.rotten.clone() };
            let found = match read.at {
                _ if self.refusals > 0 => {
                    self.refusals -= 1;
                    Err(match self.is_unmounted {
                        true => ReadFailed::Gone("no such file".to_owned()),
                        false => ReadFailed::Refused("too many open files".to_owned()),
                    })
                }
                ReadAt::Batches(places) => {
                    self.reads.push(places.len());
                    let batches = places.into_iter().take(self.batches_max).map(|at| {
                        let within = |l: &Location| l.offset <= at.offset && at.offset + at.bytes <= l.offset + l.bytes;
                        let (_, _, _, body, place) = self.log.iter().find(|l| within(&l.4)).unwrap();
                        let from = (at.offset - place.offset) as usize;
                        let bytes = body.slice(from..from + at.bytes as usize);
                        match rotten.contains(&u64::from(at.offset)) {
                            true => (at, bytes.iter().map(|byte| !byte).collect()),
                            false => (at, bytes),
                        }
                    });
                    Ok(ReadBytes::Batches(batches.collect()))
                }
                ReadAt::Extent { from, past, .. } => {
                    let wanted = self.extent.iter().filter(|m| (from..past).contains(&m.0) && !rotten.contains(&m.0));
                    let damage = (!rotten.is_empty()).then(|| "a rotten sector".to_owned());
                    Ok(ReadBytes::Extent { messages: wanted.take(2).cloned().collect(), damage })
                }
                ReadAt::Wal(_) | ReadAt::Records(_) => panic!("there are no followers here"),
            };
            self.with(|p, cx| p.read_done(read.purpose, found, cx));
        }
    }

    /// Until nothing moves any more.
    pub(crate) fn run(&mut self) {
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

    pub(crate) fn command(&mut self, command: Command) {
        self.with(|p, cx| p.command(command, cx));
    }

    pub(crate) fn publish(&mut self, seq: u64, text: &str, durability: Durability, selective: Option<Selective>) {
        let message = Message {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            properties: Bytes::from_static(&[0, 0]),
            body: Bytes::copy_from_slice(text.as_bytes()),
        };
        let targets = smallvec![Target { queue: QUEUE, durability, selective }];
        self.command(Command::Publish(Publish {
            channel: PUBLISHER,
            publish_seq: seq,
            term: 0,
            targets,
            delay_ms: 0,
            message,
            more: None,
        }));
    }

    pub(crate) fn publish_synced(&mut self, seq: u64, text: &str) {
        self.publish(seq, text, Durability::Level(Level::Synced), None);
    }

    pub(crate) fn consume(&mut self, number: u32, prefetch: u32, no_ack: bool) {
        let consumer =
            Consumer { key: consumer(number), prefetch, no_ack, exclusive: false, priority: 0, granted_only: false };
        self.command(Command::Consume { again: false, queue: QUEUE, consumer, request: RequestId(1) });
    }

    pub(crate) fn settle(&mut self, number: u32, first: u64, count: u64, outcome: Disposition) {
        self.command(Command::Settle { queue: QUEUE, holder: consumer(number), first, count, outcome });
    }

    pub(crate) fn confirmed(&mut self) -> Vec<u64> {
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

    pub(crate) fn delivered(&mut self) -> Vec<Delivery> {
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

    pub(crate) fn stat(&mut self) -> (u64, u64, u64) {
        self.command(Command::Stat { queue: QUEUE, channel: READER, request: RequestId(9) });
        self.run();
        let at = self.effects.iter().rposition(|e| matches!(e, Effect::Reply { reply: Reply::Stat { .. }, .. }));
        match self.effects.remove(at.expect("a stat is answered")) {
            Effect::Reply { reply: Reply::Stat { ready, unacked, consumers }, .. } => (ready, unacked, consumers),
            _ => unreachable!("it was found above"),
        }
    }

    pub(crate) fn restarted(self) -> Rig {
        Rig::new(self.log, 1 << 20)
    }
}

pub(crate) fn texts(deliveries: &[Delivery]) -> Vec<String> {
    let text = |d: &Delivery| partition::message::MessageView::parse(&d.message).unwrap().body().to_vec();
    deliveries.iter().map(|d| String::from_utf8(text(d)).unwrap()).collect()
}

pub(crate) fn configured(log: Vec<Kept>, rules: &Rules) -> Rig {
    let mut rig = Rig::new(log, 1 << 20);
    rig.command(Command::Configure { queue: QUEUE, rules: rules.clone().into() });
    rig.run();
    rig
}

impl Rig {
    pub(crate) fn letters(&mut self) -> Vec<DeadLetter> {
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

    pub(crate) fn refused(&mut self) -> Vec<u64> {
        let mut refused = Vec::new();
        self.effects.retain(|e| match e {
            Effect::Refuse { first, count, .. } | Effect::Returned { first, count, .. } => {
                refused.extend(*first..*first + *count);
                false
            }
            _ => true,
        });
        refused
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.run();
    }

    pub(crate) fn get(&mut self) -> Option<Delivery> {
        self.command(Command::Get { queue: QUEUE, channel: READER, no_ack: false, request: RequestId(5) });
        self.run();
        let at = self.effects.iter().position(|e| matches!(e, Effect::Reply { .. }));
        match self.effects.remove(at.expect("a get is answered")) {
            Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(delivery),
            Effect::Reply { reply: Reply::Empty, .. } => None,
            other => panic!("{other:?} answers no get"),
        }
    }

    pub(crate) fn decide(&mut self, delivery: &Delivery, outcome: Disposition) {
        let (holder, first) = (ConsumerKey::get(READER), delivery.seq);
        self.command(Command::Settle { queue: QUEUE, holder, first, count: 1, outcome });
        self.run();
    }

    /// With a time limit of its own.
    pub(crate) fn publish_for(&mut self, seq: u64, text: &str, ttl_ms: u64) {
        let ttl = ttl_ms.to_string();
        let properties = [&[1, 0, ttl.len() as u8][..], ttl.as_bytes()].concat();
        self.publish_with(seq, text, properties, 0);
    }

    pub(crate) fn publish_in(&mut self, seq: u64, text: &str, delay_ms: u64) {
        // The header `x-delay`, as the session read it.
        let mut properties = vec![0x20, 0, 0, 0, 0, 13, 7];
        properties.extend_from_slice(b"x-delayI");
        properties.extend_from_slice(&(delay_ms as i32).to_be_bytes());
        self.publish_with(seq, text, properties, delay_ms);
    }

    pub(crate) fn publish_with(&mut self, seq: u64, text: &str, properties: Vec<u8>, delay_ms: u64) {
        let message = Message {
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            properties: properties.into(),
            body: Bytes::copy_from_slice(text.as_bytes()),
        };
        let durability = Durability::Level(Level::Synced);
        let targets = smallvec![Target { queue: QUEUE, durability, selective: None }];
        let publish = Publish { channel: PUBLISHER, publish_seq: seq, term: 0, targets, delay_ms, message, more: None };
        self.command(Command::Publish(publish));
    }
}

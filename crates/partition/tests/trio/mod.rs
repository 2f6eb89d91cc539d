//! Three members of a group, over logs and extents that a test lets rot and links that it cuts.
//!
//! Invariant: everything happens at once, but for ticks.

#![allow(clippy::unwrap_used, dead_code)] // Each test binary uses its part.

use broker::queue::Consumer;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::command::{Command, Durability, Effect, Level, Message, Outlets, Publish, RequestId, Target};
use partition::outputs::{Damage, ExtentReady, ExtentRun, Fate, Job, Outputs, Read, ReadAt, ReadBytes, ReadFailed};
use partition::peer::PeerFrame;
use partition::place::Place;
use partition::reader::Reader;
use partition::{Context, QueuePartition, Recovery, Tail, WalState};
use std::collections::{BTreeMap, BTreeSet};
use storage::{FileNo, Location, RecordKind};

pub(crate) const QUEUE: QueueId = QueueId(7);
/// Has the same messages, where a test wants two queues.
pub(crate) const OTHER: QueueId = QueueId(8);
pub(crate) const PUBLISHER: ChannelKey = ChannelKey(100);
pub(crate) const READER: ChannelKey = ChannelKey(200);

/// No test publishes more.
pub(crate) const MESSAGES_MAX: u64 = 10;

pub(crate) struct Open;

impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

pub(crate) struct Member {
    pub(crate) partition: QueuePartition,
    pub(crate) tail: Tail,
    pub(crate) out: Outputs,
    pub(crate) log: Vec<(Bytes, Location)>,
    pub(crate) offset: u32,
    /// The file of the log that is written.
    pub(crate) file: u64,
    pub(crate) extents: BTreeMap<u32, Vec<(u64, Bytes)>>,
    /// Messages that cannot be read in the log or an extent (0 is the log).
    pub(crate) rotten: BTreeSet<(u32, u64)>,
    /// Where messages came in.
    pub(crate) first_places: BTreeMap<u64, Location>,
    /// Messages whose whole entry cannot be read for a follower.
    pub(crate) rotten_entries: BTreeSet<u64>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) damage: Vec<Damage>,
    pub(crate) jobs: u32,
    /// Checkpoints are not saved.
    pub(crate) keeps_checkpoints: bool,
    /// What was asked for last is read first.
    pub(crate) reads_last_first: bool,
}

/// Three members. Everything happens at once, but for ticks.
pub(crate) struct Trio {
    pub(crate) members: Vec<Member>,
    pub(crate) now: u64,
    /// Hears nothing, and is not heard.
    pub(crate) cut: Option<usize>,
    /// So many frames reach this member before it is cut.
    pub(crate) cut_after: Option<(usize, u32)>,
    /// How often members asked for messages of a snapshot, and the messages that came.
    pub(crate) pulls: u32,
    pub(crate) pulled: Vec<u64>,
    /// Members go on after each frame that comes, and not after all that are there.
    pub(crate) is_prompt: bool,
}

impl Member {
    pub(crate) fn new(node: u64) -> Member {
        let all = [NodeId(1), NodeId(2), NodeId(3)];
        let recovery = Recovery::queues(PartitionId(3), None).unwrap();
        let mut partition = recovery.finish(NodeId(node), Config::new(NodeId(node), 3, node), &all).unwrap();
        partition.log_is_at(1);
        Member {
            partition,
            tail: Tail::new(1),
            out: Outputs::default(),
            log: Vec::new(),
            offset: 4096,
            file: 1,
            extents: BTreeMap::new(),
            rotten: BTreeSet::new(),
            first_places: BTreeMap::new(),
            rotten_entries: BTreeSet::new(),
            effects: Vec::new(),
            damage: Vec::new(),
            jobs: 0,
            keeps_checkpoints: false,
            reads_last_first: false,
        }
    }

    pub(crate) fn with(&mut self, now_ms: u64, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        let mut open = Open;
        let mut cx = Context { now_ms, tail: &mut self.tail, outlets: &mut open, out: &mut self.out };
        f(&mut self.partition, &mut cx);
        self.effects.append(&mut self.out.effects);
        self.damage.append(&mut self.out.damage);
    }

    /// Carries out what waits; false if there was nothing.
    pub(crate) fn carry_out(&mut self, now: u64) -> bool {
        for seq in 1..=MESSAGES_MAX {
            if let Some(at) = self.run(seq).and_then(|place| place.in_wal()) {
                self.first_places.insert(seq, at);
            }
        }
        let (writes, mut reads) = (std::mem::take(&mut self.out.wal), std::mem::take(&mut self.out.reads));
        if self.reads_last_first {
            reads.reverse();
        }
        let jobs = std::mem::take(&mut self.out.jobs);
        let any = !(writes.is_empty() && reads.is_empty() && jobs.is_empty());
        for write in writes {
            let mut places = Vec::new();
            for record in write.records {
                let at = Location { file: FileNo(self.file), offset: self.offset, bytes: record.body.len() as u32 };
                self.offset += at.bytes + 40;
                if record.kind == RecordKind::Entry {
                    places.push(at);
                }
                self.log.push((record.body, at));
            }
            self.with(now, |p, cx| p.wal_written(write.ticket, &places, cx));
            self.with(now, |p, cx| p.wal_synced(write.ticket, cx));
        }
        for read in reads {
            let found = self.read(&read);
            self.with(now, |p, cx| p.read_done(read.purpose, found, cx));
        }
        let written = jobs.iter().filter(|job| matches!(job, Job::WriteReceived { .. })).count();
        assert!(written <= 1, "one after the other: an answer does not say for whom it is");
        for job in jobs {
            self.jobs += 1;
            match job {
                Job::WriteReceived { messages, .. } => {
                    let queue = messages[0].0;
                    let messages = messages.into_iter().map(|(_, seq, body)| (seq, body)).collect();
                    let ready = self.write_extent(queue, messages, Vec::new());
                    self.partition.received_written(Some(ready));
                }
                Job::WriteExtent { runs, .. } => {
                    let mut messages = Vec::new();
                    for run in &runs {
                        let seqs = run.live.iter().flat_map(|(first, count)| *first..first + count);
                        messages.extend(seqs.map(|seq| (seq, self.body(run.place, run.first, run.count, seq))));
                    }
                    let copied = runs.iter().map(|run| (QUEUE, run.place, run.first)).collect();
                    let ready = self.write_extent(QUEUE, messages, copied);
                    self.partition.extent_ready(&ready);
                }
                Job::SaveCheckpoint { .. } if self.keeps_checkpoints => {}
                Job::SaveCheckpoint { .. } => self.with(now, |p, cx| p.checkpoint_saved(cx)),
                Job::DropExtent { id } => _ = self.extents.remove(&id),
            }
        }
        any
    }

    pub(crate) fn write_extent(
        &mut self,
        queue: QueueId,
        messages: Vec<(u64, Bytes)>,
        copied: Vec<(QueueId, Place, u64)>,
    ) -> ExtentReady {
        let id = self.extents.keys().last().copied().unwrap_or_default() + 1;
        let (first, past) = (messages[0].0, messages[messages.len() - 1].0 + 1);
        let runs = vec![ExtentRun { queue, run: 0, first, past, messages: messages.len() as u32, bytes: 1_000 }];
        let ready = ExtentReady { id, bytes: 1_000, messages: messages.len() as u64, runs, copied };
        self.extents.insert(id, messages);
        ready
    }

    pub(crate) fn stored(&self, at: Location) -> Bytes {
        let within = |l: &Location| l.offset <= at.offset && at.offset + at.bytes <= l.offset + l.bytes;
        let (body, place) = self.log.iter().find(|(_, place)| within(place)).unwrap();
        let from = (at.offset - place.offset) as usize;
        body.slice(from..from + at.bytes as usize)
    }

    pub(crate) fn body(&self, place: Place, first: u64, count: u32, seq: u64) -> Bytes {
        match place {
            Place::Wal { .. } => {
                let stored = self.stored(place.in_wal().unwrap());
                Reader::batch(first, count, stored, None).unwrap().take(seq).unwrap()
            }
            Place::Extent { id, .. } => self.extents[&id].iter().find(|m| m.0 == seq).unwrap().1.clone(),
        }
    }

    pub(crate) fn read(&self, read: &Read) -> Result<ReadBytes, ReadFailed> {
        match &read.at {
            ReadAt::Batches(places) => {
                let batch = |at: &Location| {
                    let bytes = self.stored(*at);
                    let rots = self.rotten.iter().any(|(of, seq)| {
                        let run = self.run(*seq);
                        *of == 0 && run.and_then(|place| place.in_wal()) == Some(*at)
                    });
                    (*at, if rots { bytes.iter().map(|byte| !byte).collect() } else { bytes })
                };
                Ok(ReadBytes::Batches(places.iter().map(batch).collect()))
            }
            ReadAt::Extent { id, from, past, .. } => {
                let rotten = |seq: &u64| self.rotten.contains(&(*id, *seq));
                let wanted = self.extents[id].iter().filter(|m| (*from..*past).contains(&m.0) && !rotten(&m.0));
                let damage = self.rotten.iter().any(|r| r.0 == *id).then(|| "rot".to_owned());
                Ok(ReadBytes::Extent { messages: wanted.take(2).cloned().collect(), damage })
            }
            ReadAt::Records(places) => {
                let within =
                    |outer: &Location, at: &Location| (outer.offset..outer.offset + outer.bytes).contains(&at.offset);
                let batch = |seq: &u64| self.first_places.get(seq).copied();
                let rots = |at: &Location| self.rotten_entries.iter().filter_map(batch).any(|batch| within(at, &batch));
                let sound: Vec<Bytes> = places.iter().take_while(|at| !rots(at)).map(|at| self.stored(*at)).collect();
                match sound.is_empty() {
                    true => Err(ReadFailed::Damaged("rot".to_owned())),
                    false => Ok(ReadBytes::Records(sound)),
                }
            }
            ReadAt::Wal(at) => {
                let bytes = self.stored(*at);
                let rots = |seq: &u64| self.first_places.get(seq) == Some(at);
                let rots = self.rotten.iter().any(|(of, seq)| *of == 0 && rots(seq));
                Ok(ReadBytes::Wal(if rots { bytes.iter().map(|byte| !byte).collect() } else { bytes }))
            }
        }
    }

    pub(crate) fn run(&self, seq: u64) -> Option<Place> {
        self.partition.queues().queue(QUEUE)?.runs().covering(seq).map(|run| run.place)
    }

    pub(crate) fn live(&self) -> u64 {
        self.partition.queues().queue(QUEUE).map_or(0, |state| state.runs().live())
    }
}

impl Trio {
    /// With this many messages, each in a batch of its own, none of them in memory.
    pub(crate) fn filled(count: u64) -> Trio {
        let members = (1..=3).map(Member::new).collect();
        let mut trio =
            Trio { members, now: 1_000, cut: None, cut_after: None, pulls: 0, pulled: Vec::new(), is_prompt: false };
        for _ in 0..200 {
            trio.tick();
        }
        trio.publish(1..=count);
        trio.tick();
        assert!(trio.members.iter().all(|m| m.live() == count), "all have all");
        trio
    }

    pub(crate) fn publish(&mut self, seqs: std::ops::RangeInclusive<u64>) {
        self.publish_to(&[QUEUE], seqs);
    }

    pub(crate) fn publish_to(&mut self, queues: &[QueueId], seqs: std::ops::RangeInclusive<u64>) {
        for seq in seqs {
            let message = Message {
                exchange: Bytes::new(),
                routing_key: Bytes::from_static(b"q"),
                properties: Bytes::from_static(&[0, 0]),
                body: format!("m{seq}").into(),
            };
            let durability = Durability::Level(Level::Synced);
            let targets = queues.iter().map(|queue| Target { queue: *queue, durability, selective: None }).collect();
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
    }

    pub(crate) fn leader(&self) -> usize {
        self.members.iter().position(|m| m.partition.is_leading()).expect("somebody leads")
    }

    pub(crate) fn followers(&self) -> [usize; 2] {
        let leader = self.leader();
        [(leader + 1) % 3, (leader + 2) % 3]
    }

    pub(crate) fn tick(&mut self) {
        self.now += 150;
        for at in 0..3 {
            let now = self.now;
            self.members[at].with(now, |p, cx| {
                p.tick(cx);
                p.tick_office(cx);
            });
        }
        self.run();
    }

    pub(crate) fn run(&mut self) {
        for _ in 0..2_000 {
            let (mut moved, now) = (false, self.now);
            for at in 0..3 {
                self.members[at].with(now, |p, cx| p.flush(cx));
                moved |= self.members[at].carry_out(now);
                for (to, _, frame) in std::mem::take(&mut self.members[at].out.frames) {
                    let to = to.0 as usize - 1;
                    if self.cut != Some(at) && self.cut != Some(to) {
                        moved = true;
                        match &frame {
                            PeerFrame::PullMessages { .. } => self.pulls += 1,
                            PeerFrame::MessagesPart { messages, .. } => {
                                self.pulled.extend(messages.iter().map(|(seq, _)| *seq));
                            }
                            _ => {}
                        }
                        if let Some((member, left)) = &mut self.cut_after
                            && *member == to
                        {
                            *left -= 1;
                            if *left == 0 {
                                self.cut = Some(to);
                                self.cut_after = None;
                            }
                        }
                        self.members[to].with(now, |p, cx| p.step(NodeId(at as u64 + 1), frame, cx));
                        if self.is_prompt {
                            self.members[to].with(now, |p, cx| p.flush(cx));
                        }
                    }
                }
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    pub(crate) fn command(&mut self, command: Command) {
        let (leader, now) = (self.leader(), self.now);
        self.members[leader].with(now, |p, cx| p.command(command, cx));
        self.run();
    }

    pub(crate) fn consume(&mut self) {
        let key = ConsumerKey { channel: READER, number: 1 };
        let consumer = Consumer { key, prefetch: 0, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        self.command(Command::Consume { again: false, queue: QUEUE, consumer, request: RequestId(1) });
    }

    pub(crate) fn delivered(&mut self) -> Vec<u64> {
        let leader = self.leader();
        let deliveries = self.members[leader].effects.drain(..).filter_map(|effect| match effect {
            Effect::Deliver(delivery) => {
                let view = partition::message::MessageView::parse(&delivery.message).unwrap();
                assert_eq!(view.body(), format!("m{}", delivery.seq).as_bytes());
                Some(delivery.seq)
            }
            _ => None,
        });
        deliveries.collect()
    }

    pub(crate) fn fates(&mut self, member: usize) -> Vec<(Fate, Vec<(u64, u64)>)> {
        self.members[member].damage.drain(..).map(|d| (d.fate, d.messages)).collect()
    }

    pub(crate) fn rot(&mut self, member: usize, extent: u32, seqs: &[u64]) {
        self.members[member].rotten.extend(seqs.iter().map(|seq| (extent, *seq)));
    }

    /// Everything in the log goes into one extent, on every member.
    pub(crate) fn move_to_extents(&mut self) {
        let wal = WalState { retire_through: 1, current_file: 2, checkpoint_lag_files: 100, ..WalState::CALM };
        for at in 0..3 {
            let now = self.now;
            self.members[at].with(now, |p, cx| p.maintain(wal, cx));
        }
        self.run();
        for member in &self.members {
            assert_eq!(member.run(1), Some(Place::Extent { id: 1, run: 0 }));
        }
    }

    /// The leader's log begins behind all that it has.
    pub(crate) fn compact(&mut self) {
        let leader = self.leader();
        let applied = self.members[leader].partition.applied();
        self.members[leader].partition.replica_mut().group_mut().compact(applied);
    }

    pub(crate) fn assert_equal(&self) {
        let hashes: BTreeSet<u64> = self.members.iter().map(|m| m.partition.queues().state_hash()).collect();
        assert_eq!(hashes.len(), 1, "members agree");
    }
}

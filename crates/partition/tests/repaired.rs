//! Messages that rot on one member of three: fetched from the others, or given up if nobody has them.
#![allow(clippy::unwrap_used)]

use broker::queue::Consumer;
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::command::{
    Command, Disposition, Durability, Effect, Level, Message, Outlets, Publish, Reply, RequestId, Target,
};
use partition::outputs::{
    Damage, DamagedRun, ExtentReady, ExtentRun, Fate, Job, Outputs, Read, ReadAt, ReadBytes, ReadFailed,
};
use partition::peer::{Missing, PeerFrame};
use partition::place::Place;
use partition::reader::Reader;
use partition::{Context, QueuePartition, Recovery, Tail, WalState};
use std::collections::{BTreeMap, BTreeSet};
use storage::{FileNo, Location, RecordKind};

const QUEUE: QueueId = QueueId(7);
/// Has the same messages, where a test wants two queues.
const OTHER: QueueId = QueueId(8);
const PUBLISHER: ChannelKey = ChannelKey(100);
const READER: ChannelKey = ChannelKey(200);

/// No test publishes more.
const MESSAGES_MAX: u64 = 10;

struct Open;

impl Outlets for Open {
    fn room(&mut self, _: ConsumerKey) -> usize {
        usize::MAX
    }
}

struct Member {
    partition: QueuePartition,
    tail: Tail,
    out: Outputs,
    log: Vec<(Bytes, Location)>,
    offset: u32,
    /// The file of the log that is written.
    file: u64,
    extents: BTreeMap<u32, Vec<(u64, Bytes)>>,
    /// Messages that cannot be read in the log or an extent (0 is the log).
    rotten: BTreeSet<(u32, u64)>,
    /// Where messages came in.
    first_places: BTreeMap<u64, Location>,
    /// Messages whose whole entry cannot be read for a follower.
    rotten_entries: BTreeSet<u64>,
    effects: Vec<Effect>,
    damage: Vec<Damage>,
    jobs: u32,
}

/// Three members. Everything happens at once, but for ticks.
struct Trio {
    members: Vec<Member>,
    now: u64,
    /// Hears nothing, and is not heard.
    cut: Option<usize>,
    /// So many frames reach this member before it is cut.
    cut_after: Option<(usize, u32)>,
}

impl Member {
    fn new(node: u64) -> Member {
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
        }
    }

    fn with(&mut self, now_ms: u64, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        let mut open = Open;
        let mut cx = Context { now_ms, tail: &mut self.tail, outlets: &mut open, out: &mut self.out };
        f(&mut self.partition, &mut cx);
        self.effects.append(&mut self.out.effects);
        self.damage.append(&mut self.out.damage);
    }

    /// Carries out what waits; false if there was nothing.
    fn carry_out(&mut self, now: u64) -> bool {
        for seq in 1..=MESSAGES_MAX {
            if let Some(at) = self.run(seq).and_then(|place| place.in_wal()) {
                self.first_places.insert(seq, at);
            }
        }
        let (writes, reads) = (std::mem::take(&mut self.out.wal), std::mem::take(&mut self.out.reads));
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
                Job::SaveCheckpoint { .. } => self.with(now, |p, cx| p.checkpoint_saved(cx)),
                Job::DropExtent { id } => _ = self.extents.remove(&id),
            }
        }
        any
    }

    fn write_extent(
        &mut self,
        queue: QueueId,
        messages: Vec<(u64, Bytes)>,
        copied: Vec<(QueueId, Place, u64)>,
    ) -> ExtentReady {
        let id = self.extents.keys().last().copied().unwrap_or_default() + 1;
        let (first, past) = (messages[0].0, messages[messages.len() - 1].0 + 1);
        let runs = vec![ExtentRun { queue, run: 0, first, past }];
        let ready = ExtentReady { id, bytes: 1_000, messages: messages.len() as u64, runs, copied };
        self.extents.insert(id, messages);
        ready
    }

    fn stored(&self, at: Location) -> Bytes {
        let within = |l: &Location| l.offset <= at.offset && at.offset + at.bytes <= l.offset + l.bytes;
        let (body, place) = self.log.iter().find(|(_, place)| within(place)).unwrap();
        let from = (at.offset - place.offset) as usize;
        body.slice(from..from + at.bytes as usize)
    }

    fn body(&self, place: Place, first: u64, count: u32, seq: u64) -> Bytes {
        match place {
            Place::Wal { .. } => {
                let stored = self.stored(place.in_wal().unwrap());
                Reader::batch(first, count, stored, None).unwrap().take(seq).unwrap()
            }
            Place::Extent { id, .. } => self.extents[&id].iter().find(|m| m.0 == seq).unwrap().1.clone(),
        }
    }

    fn read(&self, read: &Read) -> Result<ReadBytes, ReadFailed> {
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

    fn run(&self, seq: u64) -> Option<Place> {
        self.partition.queues().queue(QUEUE)?.runs().covering(seq).map(|run| run.place)
    }

    fn live(&self) -> u64 {
        self.partition.queues().queue(QUEUE).map_or(0, |state| state.runs().live())
    }
}

impl Trio {
    /// With this many messages, each in a batch of its own, none of them in memory.
    fn filled(count: u64) -> Trio {
        let mut trio = Trio { members: (1..=3).map(Member::new).collect(), now: 1_000, cut: None, cut_after: None };
        for _ in 0..200 {
            trio.tick();
        }
        trio.publish(1..=count);
        trio.tick();
        assert!(trio.members.iter().all(|m| m.live() == count), "all have all");
        trio
    }

    fn publish(&mut self, seqs: std::ops::RangeInclusive<u64>) {
        self.publish_to(&[QUEUE], seqs);
    }

    fn publish_to(&mut self, queues: &[QueueId], seqs: std::ops::RangeInclusive<u64>) {
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
            }));
        }
    }

    fn leader(&self) -> usize {
        self.members.iter().position(|m| m.partition.is_leading()).expect("somebody leads")
    }

    fn followers(&self) -> [usize; 2] {
        let leader = self.leader();
        [(leader + 1) % 3, (leader + 2) % 3]
    }

    fn tick(&mut self) {
        self.now += 150;
        for at in 0..3 {
            let now = self.now;
            self.members[at].with(now, |p, cx| p.tick(cx));
        }
        self.run();
    }

    fn run(&mut self) {
        for _ in 0..2_000 {
            let (mut moved, now) = (false, self.now);
            for at in 0..3 {
                self.members[at].with(now, |p, cx| p.flush(cx));
                moved |= self.members[at].carry_out(now);
                for (to, _, frame) in std::mem::take(&mut self.members[at].out.frames) {
                    let to = to.0 as usize - 1;
                    if self.cut != Some(at) && self.cut != Some(to) {
                        moved = true;
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
                    }
                }
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn command(&mut self, command: Command) {
        let (leader, now) = (self.leader(), self.now);
        self.members[leader].with(now, |p, cx| p.command(command, cx));
        self.run();
    }

    fn consume(&mut self) {
        let key = ConsumerKey { channel: READER, number: 1 };
        let consumer = Consumer { key, prefetch: 0, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        self.command(Command::Consume { again: false, queue: QUEUE, consumer, request: RequestId(1) });
    }

    fn delivered(&mut self) -> Vec<u64> {
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

    fn fates(&mut self, member: usize) -> Vec<(Fate, Vec<(u64, u64)>)> {
        self.members[member].damage.drain(..).map(|d| (d.fate, d.messages)).collect()
    }

    fn rot(&mut self, member: usize, extent: u32, seqs: &[u64]) {
        self.members[member].rotten.extend(seqs.iter().map(|seq| (extent, *seq)));
    }

    /// Everything in the log goes into one extent, on every member.
    fn move_to_extents(&mut self) {
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

    fn assert_equal(&self) {
        let hashes: BTreeSet<u64> = self.members.iter().map(|m| m.partition.queues().state_hash()).collect();
        assert_eq!(hashes.len(), 1, "members agree");
    }
}

#[test]
fn a_leader_fetches_what_it_cannot_read_and_goes_on_in_order() {
    let mut trio = Trio::filled(6);
    let leader = trio.leader();
    trio.rot(leader, 0, &[2, 3, 5]);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 5, 6]);
    let asked = |seq| (Fate::Asked, vec![(seq, 1)]);
    assert_eq!(trio.fates(leader), [asked(2), asked(3), asked(5)]);
    let member = &trio.members[leader];
    assert_eq!((member.partition.messages_repaired(), member.out.set_aside), (3, 0));
    assert!(
        [2, 3, 5].iter().all(|seq| matches!(member.run(*seq), Some(Place::Extent { .. }))),
        "they are written anew"
    );
    assert!([1, 4, 6].iter().all(|seq| matches!(member.run(*seq), Some(Place::Wal { .. }))), "the others stay");
    trio.tick();
    trio.assert_equal();
    assert!(trio.members.iter().all(|m| m.live() == 6));
}

#[test]
fn a_basic_get_is_answered_with_a_message_that_another_member_had() {
    let mut trio = Trio::filled(2);
    let leader = trio.leader();
    trio.rot(leader, 0, &[1]);
    trio.command(Command::Get { queue: QUEUE, channel: READER, no_ack: true, request: RequestId(4) });
    let is_answer = |e: &Effect| matches!(e, Effect::Reply { request: RequestId(4), reply: Reply::Got { delivery, .. }, .. } if delivery.seq == 1);
    assert!(trio.members[leader].effects.iter().any(is_answer));
}

#[test]
fn what_one_follower_has_lost_too_comes_from_the_other() {
    let mut trio = Trio::filled(4);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.rot(leader, 0, &[2, 3]);
    trio.rot(one, 0, &[2]);
    trio.rot(other, 0, &[3]);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 4]);
    assert_eq!(trio.members[leader].out.set_aside, 0);
    trio.tick();
    trio.assert_equal();
}

#[test]
fn what_all_members_have_lost_is_set_aside_in_the_log() {
    let mut trio = Trio::filled(4);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    (0..3).for_each(|at| trio.rot(at, 0, &[2]));
    trio.consume();
    trio.tick();
    assert_eq!(trio.delivered(), [1, 3, 4]);
    assert_eq!(trio.fates(leader), [(Fate::Asked, vec![(2, 1)]), (Fate::SetAside, vec![(2, 1)])]);
    assert_eq!(trio.members[leader].out.set_aside, 1);
    assert_eq!((trio.fates(one), trio.fates(other)), (vec![], vec![]), "it is told where it is met");
    trio.tick();
    assert!(trio.members.iter().all(|m| m.live() == 3), "the log says so to all");
    trio.assert_equal();
}

#[test]
fn a_member_that_does_not_answer_may_have_it() {
    let mut trio = Trio::filled(3);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.rot(leader, 0, &[2]);
    trio.rot(one, 0, &[2]);
    trio.cut = Some(other);
    trio.consume();
    for _ in 0..100 {
        trio.tick();
    }
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.delivered(), [1], "the queue waits, in order");
    assert_eq!(trio.fates(leader), [(Fate::Asked, vec![(2, 1)])], "it is told once");
    assert_eq!((trio.members[leader].live(), trio.members[leader].out.set_aside), (3, 0));
    trio.cut = None;
    for _ in 0..40 {
        trio.tick();
    }
    let now_leading = trio.leader();
    assert_eq!(trio.members[now_leading].live(), 3, "nothing was given up");
    if now_leading == leader {
        assert_eq!(trio.delivered(), [2, 3]);
    }
}

#[test]
fn a_follower_mends_what_its_upkeep_could_not_copy() {
    let mut trio = Trio::filled(3);
    let [one, _] = trio.followers();
    trio.rot(one, 0, &[2]);
    let place = trio.members[one].run(2).unwrap();
    let damaged =
        vec![DamagedRun { queue: QUEUE, place, messages: vec![(2, 1)], why: "rot".to_owned(), is_gone: false }];
    let now = trio.now;
    trio.members[one].with(now, |p, cx| p.runs_damaged(damaged, cx));
    trio.run();
    assert_eq!(trio.fates(one), [(Fate::Asked, vec![(2, 1)])]);
    assert!(matches!(trio.members[one].run(2), Some(Place::Extent { .. })));
    assert_eq!(trio.members[one].partition.messages_repaired(), 1);
    trio.assert_equal();
}

#[test]
fn a_follower_gives_nothing_up() {
    let mut trio = Trio::filled(2);
    (0..3).for_each(|at| trio.rot(at, 0, &[1]));
    let [one, _] = trio.followers();
    let place = trio.members[one].run(1).unwrap();
    let damaged =
        vec![DamagedRun { queue: QUEUE, place, messages: vec![(1, 1)], why: "rot".to_owned(), is_gone: false }];
    let now = trio.now;
    trio.members[one].with(now, |p, cx| p.runs_damaged(damaged, cx));
    for _ in 0..60 {
        trio.tick();
    }
    assert_eq!(trio.fates(one), [(Fate::Asked, vec![(1, 1)])]);
    assert!(trio.members.iter().all(|m| m.live() == 2 && m.out.set_aside == 0));
}

#[test]
fn of_an_extent_only_what_is_damaged_is_fetched_and_only_what_nobody_has_is_set_aside() {
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let leader = trio.leader();
    trio.rot(leader, 1, &[1, 4, 5, 6, 9]);
    (0..3).for_each(|at| trio.rot(at, 1, &[5]));
    trio.consume();
    for _ in 0..4 {
        trio.tick();
    }
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 6, 7, 8, 9]);
    let set_aside: Vec<_> = trio.fates(leader).into_iter().filter(|f| f.0 == Fate::SetAside).collect();
    assert_eq!(set_aside, [(Fate::SetAside, vec![(5, 1)])]);
    let member = &trio.members[leader];
    assert_eq!(member.partition.messages_repaired(), 4);
    let extent = |seq| match member.run(seq) {
        Some(Place::Extent { id, .. }) => id,
        place => panic!("{seq} lies at {place:?}"),
    };
    assert!([2, 3, 7, 8].iter().all(|seq| extent(*seq) == 1), "what is intact stays where it is");
    assert!([1, 4, 6, 9].iter().all(|seq| extent(*seq) > 1));
    trio.tick();
    trio.assert_equal();
}

#[test]
fn what_all_have_lost_of_an_extent_with_nothing_behind_it_is_set_aside() {
    let mut trio = Trio::filled(3);
    trio.move_to_extents();
    (0..3).for_each(|at| trio.rot(at, 1, &[3]));
    trio.consume();
    for _ in 0..4 {
        trio.tick();
    }
    assert_eq!(trio.delivered(), [1, 2]);
    assert!(trio.members.iter().all(|m| m.live() == 2), "the log says so to all");
}

#[test]
fn upkeep_mends_each_stretch_of_an_extent() {
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let [one, _] = trio.followers();
    trio.rot(one, 1, &[4, 6, 7]);
    let place = Place::Extent { id: 1, run: 0 };
    let damaged =
        vec![DamagedRun { queue: QUEUE, place, messages: vec![(4, 1), (6, 2)], why: "rot".to_owned(), is_gone: false }];
    let now = trio.now;
    trio.members[one].with(now, |p, cx| p.runs_damaged(damaged, cx));
    for _ in 0..4 {
        trio.tick();
    }
    let member = &trio.members[one];
    assert_eq!(member.partition.messages_repaired(), 3);
    let is_first = |seq| member.run(seq) == Some(place);
    assert_eq!((1..=9).filter(|seq| is_first(*seq)).collect::<Vec<_>>(), [1, 2, 3, 5, 8, 9]);
    assert_eq!(member.jobs, 3, "one extent that all went to, and one for each stretch");
}

#[test]
fn an_extent_that_was_mended_in_the_middle_is_copied_piece_by_piece() {
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let leader = trio.leader();
    trio.rot(leader, 1, &[5]);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // Most of the first extent is settled: what is left on both sides of the repaired message
    // moves.
    let holder = ConsumerKey { channel: READER, number: 1 };
    for (first, count) in [(2, 2), (6, 2)] {
        trio.command(Command::Settle { queue: QUEUE, holder, first, count, outcome: Disposition::Ack });
    }
    for first in [8, 9] {
        trio.command(Command::Settle { queue: QUEUE, holder, first, count: 1, outcome: Disposition::Ack });
    }
    let (now, jobs) = (trio.now, trio.members[leader].jobs);
    trio.members[leader]
        .with(now, |p, cx| p.maintain(WalState { current_file: 2, checkpoint_lag_files: 100, ..WalState::CALM }, cx));
    trio.run();
    let member = &trio.members[leader];
    assert!(member.jobs > jobs, "it is sparse");
    assert!([1, 4].iter().all(|seq| matches!(member.run(*seq), Some(Place::Extent { id: 3.., .. }))));
    assert_eq!(member.run(5), Some(Place::Extent { id: 2, run: 0 }));
    assert_eq!(member.live(), 3);
}

/// A follower that missed messages 4 to 6, of which its leader cannot read the entry of 4, and
/// keeps nothing in memory.
fn behind_rot() -> (Trio, usize, usize, usize) {
    let mut trio = Trio::filled(3);
    let (leader, [behind, other]) = (trio.leader(), trio.followers());
    trio.cut = Some(behind);
    trio.publish(4..=6);
    trio.tick();
    assert_eq!(trio.leader(), leader);
    let group = trio.members[leader].partition.replica_mut().group_mut();
    group.set_cache_bytes_max(0);
    trio.members[leader].rotten_entries.insert(4);
    trio.rot(leader, 0, &[4]);
    (trio, leader, behind, other)
}

impl Trio {
    fn ticks(&mut self, count: u32) {
        (0..count).for_each(|_| self.tick());
    }
}

#[test]
fn a_follower_that_needs_an_entry_that_rotted_gets_a_snapshot() {
    let (mut trio, leader, behind, _) = behind_rot();
    trio.cut = None;
    trio.ticks(30);
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.members[behind].live(), 6);
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    let member = &trio.members[leader];
    let lost: Vec<_> = member.out.lost_entries.iter().map(|lost| lost.why.as_str()).collect();
    assert_eq!(lost, ["rot"], "it is told once");
    assert_eq!(
        (member.partition.messages_repaired(), member.out.set_aside),
        (1, 0),
        "the third member had the message"
    );
    trio.publish(7..=7);
    trio.tick();
    assert_eq!(trio.members[behind].live(), 7, "the log goes on behind the snapshot");
    trio.assert_equal();
}

#[test]
fn what_waits_for_a_snapshot_has_lost_what_never_came_to_it() {
    let (mut trio, leader, behind, other) = behind_rot();
    trio.rot(other, 0, &[4]);
    trio.cut = None;
    // Without the last word of who waits the snapshot would wait for the message, and the message
    // for the snapshot.
    trio.ticks(60);
    assert_eq!(trio.members[leader].out.set_aside, 1);
    assert_eq!(trio.fates(leader), [(Fate::Asked, vec![(4, 1)]), (Fate::SetAside, vec![(4, 1)])]);
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.consume();
    assert_eq!(trio.delivered(), [1, 2, 3, 5, 6]);
    trio.tick();
    trio.assert_equal();
}

#[test]
fn who_waits_for_a_snapshot_gives_what_it_alone_has() {
    let (mut trio, leader, behind, other) = behind_rot();
    trio.rot(leader, 0, &[2]);
    trio.rot(other, 0, &[2]);
    trio.cut = None;
    trio.ticks(60);
    let member = &trio.members[leader];
    assert_eq!((member.partition.messages_repaired(), member.out.set_aside), (2, 0));
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.assert_equal();
}

/// A follower that was cut off when it had the entry of message `count`, and had not heard that it
/// is committed.
fn with_more_in_its_log(count: u64) -> (Trio, usize, usize, usize) {
    for frames in 1..8 {
        let mut trio = Trio::filled(count - 1);
        let (leader, [behind, other]) = (trio.leader(), trio.followers());
        trio.cut_after = Some((behind, frames));
        trio.publish(count..=count);
        let member = &trio.members[behind].partition;
        if trio.cut.is_some() && member.replica().table().last() > member.applied() {
            return (trio, leader, behind, other);
        }
    }
    panic!("no such moment was found");
}

impl Trio {
    /// The leader's log begins behind all that it has.
    fn compact(&mut self) {
        let leader = self.leader();
        let applied = self.members[leader].partition.applied();
        self.members[leader].partition.replica_mut().group_mut().compact(applied);
    }
}

#[test]
fn who_waits_for_a_snapshot_gives_what_it_did_not_know_to_be_committed() {
    let (mut trio, leader, behind, other) = with_more_in_its_log(4);
    trio.publish(5..=6);
    trio.compact();
    trio.rot(leader, 0, &[4]);
    trio.rot(other, 0, &[4]);
    trio.cut = None;
    trio.ticks(60);
    assert_eq!(trio.leader(), leader);
    let member = &trio.members[leader];
    assert_eq!((member.partition.messages_repaired(), member.out.set_aside), (1, 0), "it was the only one to have it");
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    assert_eq!(trio.members[behind].live(), 6);
    trio.tick();
    trio.assert_equal();
}

/// The same, and another member leads since.
fn with_more_in_its_log_of_an_older_term(count: u64) -> (Trio, usize, usize) {
    let (mut trio, leader, behind, other) = with_more_in_its_log(count);
    let group = trio.members[leader].partition.replica_mut().group_mut();
    group.transfer_leadership(NodeId(other as u64 + 1)).unwrap();
    trio.ticks(3);
    assert_eq!(trio.leader(), other);
    trio.publish(count + 1..=count + 2);
    trio.compact();
    (trio, behind, leader)
}

#[test]
fn what_cannot_be_in_a_log_is_lost_to_it_whatever_is_not_applied_of_it() {
    let (mut trio, behind, other) = with_more_in_its_log_of_an_older_term(4);
    let leader = trio.leader();
    trio.rot(leader, 0, &[5]);
    trio.rot(other, 0, &[5]);
    trio.cut = None;
    trio.ticks(60);
    assert_eq!(trio.leader(), leader);
    assert_eq!(trio.members[leader].out.set_aside, 1, "message 5 is none of those that may be in it");
    assert_eq!(trio.members[behind].partition.snapshots_installed(), 1);
    trio.tick();
    assert!(trio.members.iter().all(|m| m.live() == 5));
    trio.assert_equal();
}

#[test]
fn who_may_have_it_in_its_log_has_not_lost_it() {
    // In the second case it has not heard of the queue.
    for count in [4, 1] {
        let (mut trio, behind, other) = with_more_in_its_log_of_an_older_term(count);
        let leader = trio.leader();
        trio.rot(leader, 0, &[count]);
        trio.rot(other, 0, &[count]);
        trio.cut = None;
        trio.ticks(60);
        assert_eq!(trio.members[leader].out.set_aside, 0, "it may be what everybody asks for");
        assert_eq!(trio.members[behind].partition.snapshots_installed(), 0, "and nobody can tell");
    }
}

#[test]
fn no_checkpoint_names_a_file_that_a_power_cut_may_take_away() {
    let mut trio = Trio::filled(0);
    let (leader, now) = (trio.leader(), trio.now + 60_000);
    // A message that is not applied yet lies in the next file, of which nothing is durable: upkeep
    // is told of the one before.
    trio.members.iter_mut().for_each(|member| member.file = 2);
    let entry = |trio: &Trio| {
        let replica = trio.members[leader].partition.replica();
        replica.table().body(trio.members[leader].partition.applied().next()).map(|body| body.file)
    };
    trio.cut = Some(leader);
    trio.publish(1..=1);
    assert_eq!(entry(&trio), Some(FileNo(2)));
    for (current_file, saves) in [(1, None), (2, Some(2))] {
        let wal = WalState { current_file, checkpoint_lag_files: 100, ..WalState::CALM };
        let member = &mut trio.members[leader];
        member.with(now, |p, cx| p.maintain(wal, cx));
        let saved = member.out.jobs.drain(..).map(|job| match job {
            Job::SaveCheckpoint { replay_file, .. } => replay_file,
            job => panic!("{job:?}"),
        });
        assert!(saved.eq(saves), "with file {current_file}");
    }
}

impl Trio {
    /// What `to` says at once to a question of `from` for one message: `None` if it has to read
    /// first; else whether it is lost.
    fn is_lost_to(&mut self, to: usize, from: usize, seq: u64) -> Option<bool> {
        let question = PeerFrame::AskMissing(Missing { number: 99, queue: QUEUE, from: seq, past: seq + 1 });
        let now = self.now;
        self.members[to].with(now, |p, cx| p.step(NodeId(from as u64 + 1), question, cx));
        let frames = &mut self.members[to].out.frames;
        let is_answer = |(_, _, frame): &mut (_, _, PeerFrame)| matches!(frame, PeerFrame::HaveMissing(..));
        let answer = frames.extract_if(.., is_answer).last()?.2;
        Some(matches!(answer, PeerFrame::HaveMissing(_, messages) if !messages.is_empty()))
    }
}

#[test]
fn who_waits_for_a_snapshot_says_what_it_never_had_to_nobody_but_its_leader() {
    for frames in 1..30 {
        let (mut trio, leader, behind, other) = behind_rot();
        trio.rot(other, 0, &[4]);
        trio.cut = None;
        trio.cut_after = Some((behind, frames));
        trio.ticks(8);
        // It has the image, and stands at the first message that it never had.
        if trio.is_lost_to(behind, leader, 4) == Some(true) {
            assert_eq!(trio.is_lost_to(behind, other, 4), Some(false), "of another it waits for nothing");
            assert_eq!(trio.is_lost_to(behind, leader, 4), Some(true));
            return;
        }
    }
    panic!("no such moment was found");
}

#[test]
fn a_question_without_an_answer_goes_to_the_next_member() {
    let mut trio = Trio::filled(3);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.rot(leader, 0, &[2]);
    // Members are asked in their order.
    trio.cut = Some(one.min(other));
    trio.consume();
    assert_eq!(trio.delivered(), [1]);
    trio.ticks(3);
    assert_eq!(trio.delivered(), [2, 3]);
}

impl Trio {
    /// What upkeep says of these stretches of a queue.
    fn runs_damaged(&mut self, member: usize, queue: QueueId, stretches: &[&[(u64, u64)]]) {
        let damaged = stretches.iter().map(|messages| {
            let state = self.members[member].partition.queues().queue(queue).unwrap();
            let place = state.runs().covering(messages[0].0).unwrap().place;
            DamagedRun { queue, place, messages: messages.to_vec(), why: "rot".to_owned(), is_gone: false }
        });
        let (damaged, now) = (damaged.collect(), self.now);
        self.members[member].with(now, |p, cx| p.runs_damaged(damaged, cx));
    }
}

#[test]
fn of_many_stretches_a_few_are_mended_at_a_time_and_each_is_written_alone() {
    let mut trio = Trio::filled(10);
    let [one, _] = trio.followers();
    trio.cut = Some(one);
    let all: Vec<[(u64, u64); 1]> = (1..=10).map(|seq| [(seq, 1)]).collect();
    let all: Vec<&[(u64, u64)]> = all.iter().map(|run| &run[..]).collect();
    trio.runs_damaged(one, QUEUE, &all);
    assert_eq!(trio.fates(one).len(), 8, "there is room for so many");
    trio.cut = None;
    trio.ticks(4);
    assert_eq!(trio.members[one].partition.messages_repaired(), 8);
    trio.runs_damaged(one, QUEUE, &all[8..]);
    trio.ticks(4);
    assert_eq!(trio.members[one].partition.messages_repaired(), 10);
    trio.assert_equal();
}

#[test]
fn stretches_side_by_side_and_of_two_queues_are_different_ones() {
    let mut trio = Trio::filled(0);
    trio.publish_to(&[QUEUE, OTHER], 1..=9);
    let [one, _] = trio.followers();
    trio.runs_damaged(one, QUEUE, &[&[(2, 1)]]);
    trio.runs_damaged(one, OTHER, &[&[(2, 1)]]);
    trio.ticks(2);
    assert_eq!(trio.members[one].partition.messages_repaired(), 2);
    let mut trio = Trio::filled(9);
    trio.move_to_extents();
    let [one, _] = trio.followers();
    trio.rot(one, 1, &[3, 4, 6, 7]);
    trio.runs_damaged(one, QUEUE, &[&[(3, 1), (4, 1), (7, 1), (6, 1)]]);
    trio.ticks(4);
    assert_eq!(trio.members[one].partition.messages_repaired(), 4);
}

#[test]
fn an_answer_to_another_question_is_none() {
    let mut trio = Trio::filled(2);
    let (leader, [one, other]) = (trio.leader(), trio.followers());
    trio.runs_damaged(leader, QUEUE, &[&[(1, 1)]]);
    // The others hear nothing; what they would say is made up here.
    let now = trio.now;
    let member = &mut trio.members[leader];
    member.with(now, |p, cx| p.flush(cx));
    let asked = member.out.frames.drain(..).find_map(|(_, _, frame)| match frame {
        PeerFrame::AskMissing(missing) => Some(missing),
        _ => None,
    });
    let asked = asked.expect("somebody is asked");
    let answer =
        |number: u64, queue: QueueId| PeerFrame::HaveMissing(Missing { number, queue, ..asked }, vec![(1, None)]);
    let number = asked.number;
    for (number, queue, set_aside) in [(number + 1, QUEUE, 0), (number, OTHER, 0), (number, QUEUE, 1)] {
        for from in [one, other] {
            let frame = answer(number, queue);
            member.with(now, |p, cx| p.step(NodeId(from as u64 + 1), frame, cx));
        }
        member.with(now, |p, cx| p.flush(cx));
        assert_eq!(member.out.set_aside, set_aside);
    }
}

/// The next leader does not know them, so that nobody else would tell them anything, ever.
#[test]
fn consumers_of_a_leader_that_goes_hear_that_they_get_nothing_more() {
    let mut trio = Trio::filled(1);
    trio.consume();
    let (leader, [next, _]) = (trio.leader(), trio.followers());
    let group = trio.members[leader].partition.replica_mut().group_mut();
    group.transfer_leadership(NodeId(next as u64 + 1)).unwrap();
    trio.ticks(3);
    assert_eq!(trio.leader(), next);
    let key = ConsumerKey { channel: READER, number: 1 };
    let told = trio.members[leader].effects.iter().filter(|effect| matches!(effect, Effect::Cancelled { .. }));
    assert_eq!(told.collect::<Vec<_>>(), [&Effect::Cancelled { consumer: key, queue: QUEUE }]);
}

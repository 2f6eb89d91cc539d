//! When publishes of each level are confirmed, by three members whose disks write and sync, and whose links
//! carry frames, when they are let.
#![allow(clippy::unwrap_used)]

use broker::queue::{Consumer, Overflow, Rules};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::command::{Command, Durability, Effect, Level, Message, Outlets, Publish, RequestId, Selective, Target};
use partition::outputs::{Ticket, WalWrite};
use partition::{Context, Outputs, PeerFrame, QueuePartition, Recovery, Tail};
use std::collections::VecDeque;
use std::sync::Arc;
use storage::{FileNo, Location, RecordKind};

const QUEUE: QueueId = QueueId(7);
const OTHER: QueueId = QueueId(8);
const PUBLISHER: ChannelKey = ChannelKey(100);
const READER: ChannelKey = ChannelKey(200);

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
    offset: u32,
    unwritten: VecDeque<WalWrite>,
    unsynced: VecDeque<Ticket>,
    effects: Vec<Effect>,
}

struct Group {
    members: Vec<Member>,
    now: u64,
    frames: Vec<(usize, usize, PeerFrame)>,
    /// Hears nothing, and is not heard.
    cut: Option<usize>,
}

impl Group {
    /// So many members, the one at 0 leading, at rest.
    fn of(count: u64) -> Group {
        let all: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let member = |node: &NodeId| Member {
            partition: {
                // The first one stands for election long before the others.
                let config = Config::new(*node, 3, node.0);
                let config = Config { election_ticks: if node.0 == 1 { 5 } else { 50 }, ..config };
                Recovery::queues(PartitionId(3), None).unwrap().finish(*node, config, &all).unwrap()
            },
            tail: Tail::new(1 << 20),
            out: Outputs::default(),
            offset: 4096,
            unwritten: VecDeque::new(),
            unsynced: VecDeque::new(),
            effects: Vec::new(),
        };
        let mut group = Group { members: all.iter().map(member).collect(), now: 1_000, frames: Vec::new(), cut: None };
        for _ in 0..60 {
            group.tick();
        }
        assert!(group.members[0].partition.is_leading());
        group
    }

    fn with(&mut self, at: usize, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        self.now += 1;
        let member = &mut self.members[at];
        let mut open = Open;
        let mut cx = Context { now_ms: self.now, tail: &mut member.tail, outlets: &mut open, out: &mut member.out };
        f(&mut member.partition, &mut cx);
        member.effects.append(&mut member.out.effects);
        member.unwritten.extend(member.out.wal.drain(..));
        let frames = member.out.frames.drain(..).map(|(to, _, frame)| (at, to.0 as usize - 1, frame));
        self.frames.extend(frames);
    }

    fn write(&mut self, at: usize) {
        while let Some(write) = self.members[at].unwritten.pop_front() {
            let member = &mut self.members[at];
            let mut places = Vec::new();
            for record in write.records {
                let place = Location { file: FileNo(1), offset: member.offset, bytes: record.body.len() as u32 };
                member.offset += place.bytes + 40;
                if record.kind == RecordKind::Entry {
                    places.push(place);
                }
            }
            self.with(at, |p, cx| p.wal_written(write.ticket, &places, cx));
            self.members[at].unsynced.push_back(write.ticket);
        }
        self.with(at, |p, cx| p.flush(cx));
    }

    fn sync(&mut self, at: usize) {
        while let Some(ticket) = self.members[at].unsynced.pop_front() {
            self.with(at, |p, cx| p.wal_synced(ticket, cx));
        }
        self.with(at, |p, cx| p.flush(cx));
    }

    /// Carries what is on its way; what that leads to waits for its disk.
    fn carry(&mut self) {
        while !self.frames.is_empty() {
            for (from, to, frame) in std::mem::take(&mut self.frames) {
                if self.cut.is_some_and(|cut| cut == from || cut == to) {
                    continue;
                }
                self.with(to, |p, cx| p.step(NodeId(from as u64 + 1), frame, cx));
            }
            (0..self.members.len()).for_each(|at| self.with(at, |p, cx| p.flush(cx)));
        }
    }

    /// Until nothing moves any more.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.carry();
            let all = 0..self.members.len();
            all.clone().for_each(|at| self.write(at));
            all.for_each(|at| self.sync(at));
            if self.frames.is_empty() && self.members.iter().all(|m| m.unwritten.is_empty() && m.unsynced.is_empty()) {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn tick(&mut self) {
        (0..self.members.len()).for_each(|at| {
            self.with(at, |p, cx| {
                p.tick(cx);
                p.tick_office(cx);
            })
        });
        self.settle();
    }

    fn command(&mut self, command: Command) {
        self.with(0, |p, cx| p.command(command, cx));
    }

    fn publish(&mut self, seq: u64, targets: &[(QueueId, Durability)]) {
        self.publish_with(seq, targets, Bytes::from_static(&[0, 0]));
        self.with(0, |p, cx| p.flush(cx));
    }

    fn publish_with(&mut self, publish_seq: u64, targets: &[(QueueId, Durability)], properties: Bytes) {
        let body = Bytes::from(publish_seq.to_string());
        let (exchange, routing_key) = (Bytes::new(), Bytes::from_static(b"q"));
        let message = Message { exchange, routing_key, properties, body };
        let rule = Selective { cap: 10, interval_ms: 1_000 };
        let target = |(queue, durability): &(QueueId, Durability)| Target {
            queue: *queue,
            durability: *durability,
            selective: matches!(durability, Durability::Selective { .. }).then_some(rule),
        };
        let targets = targets.iter().map(target).collect();
        let publish = Publish { channel: PUBLISHER, publish_seq, term: 0, targets, delay_ms: 0, message, more: None };
        self.command(Command::Publish(publish));
    }

    /// One of each level to a queue, as publishes 1 to 4.
    fn publish_all_levels(&mut self) {
        for (at, level) in Level::ALL.into_iter().enumerate() {
            self.publish(at as u64 + 1, &[(QUEUE, Durability::Level(level))]);
        }
    }

    fn take(&mut self, pick: impl Fn(&Effect) -> Option<(u64, u64)>) -> Vec<u64> {
        let mut taken = Vec::new();
        self.members[0].effects.retain(|effect| match pick(effect) {
            Some((first, count)) => {
                taken.extend(first..first + count);
                false
            }
            None => true,
        });
        taken
    }

    fn confirmed(&mut self) -> Vec<u64> {
        self.take(|effect| match effect {
            Effect::Confirm { first, count, .. } => Some((*first, *count)),
            _ => None,
        })
    }

    fn given_back(&mut self) -> Vec<u64> {
        self.take(|effect| match effect {
            Effect::Returned { first, count, .. } | Effect::Refuse { first, count, .. } => Some((*first, *count)),
            _ => None,
        })
    }

    fn delivered(&mut self) -> Vec<u64> {
        self.take(|effect| match effect {
            Effect::Deliver(delivery) => Some((delivery.seq, 1)),
            _ => None,
        })
    }

    fn consume(&mut self) {
        let key = ConsumerKey { channel: READER, number: 1 };
        let consumer = Consumer { key, prefetch: 0, no_ack: false, exclusive: false, priority: 0, granted_only: false };
        self.command(Command::Consume { queue: QUEUE, consumer, again: false, request: RequestId(1) });
        self.settle();
    }
}

fn at(level: Level) -> Durability {
    Durability::Level(level)
}

#[test]
fn a_level_with_another_promises_what_both_do() {
    use Level::{LeaderSynced, LeaderWritten, Synced, Written};
    for level in Level::ALL {
        assert_eq!((level.with(level), level.with(LeaderWritten), level.with(Synced)), (level, level, Synced));
    }
    assert_eq!((LeaderSynced.with(Written), Written.with(LeaderSynced)), (Synced, Synced));
    assert_eq!(Level::ALL.map(Level::of_majority), [Written, Synced, Written, Synced]);
    assert_eq!(Level::ALL.map(Level::is_on_disk), [false, true, false, true]);
    assert_eq!(Level::ALL.map(Level::is_of_leader), [true, true, false, false]);
}

#[test]
fn the_leader_alone_confirms_what_waits_for_it_alone_and_a_majority_the_rest() {
    let mut group = Group::of(3);
    group.publish_all_levels();
    assert_eq!(group.confirmed(), [0; 0], "nothing is written");
    group.write(0);
    assert_eq!(group.confirmed(), [1], "the leader has written it");
    group.sync(0);
    assert_eq!(group.confirmed(), [2], "the leader has synced it");
    group.carry();
    assert_eq!(group.confirmed(), [0; 0]);
    group.write(1);
    group.carry();
    assert_eq!(group.confirmed(), [3], "a majority has written it");
    group.sync(1);
    group.carry();
    assert_eq!(group.confirmed(), [4], "a majority has synced it");
    group.settle();
    assert_eq!((group.confirmed(), group.given_back()), (vec![], vec![]), "each once");
}

#[test]
fn a_group_of_one_confirms_what_it_has_written_and_what_it_has_synced() {
    let mut group = Group::of(1);
    group.publish(1, &[(QUEUE, at(Level::LeaderWritten))]);
    group.publish(2, &[(QUEUE, at(Level::Written))]);
    group.write(0);
    let mut written = group.confirmed();
    written.sort_unstable();
    assert_eq!(written, [1, 2]);
    group.publish(3, &[(QUEUE, at(Level::LeaderSynced))]);
    group.publish(4, &[(QUEUE, at(Level::Synced))]);
    group.write(0);
    assert_eq!(group.confirmed(), [0; 0]);
    group.sync(0);
    assert_eq!(group.confirmed(), [3, 4]);
}

#[test]
fn nothing_is_given_out_that_only_the_leader_has() {
    let mut group = Group::of(3);
    group.consume();
    group.publish(1, &[(QUEUE, at(Level::LeaderWritten))]);
    group.publish(2, &[(QUEUE, at(Level::LeaderSynced))]);
    group.write(0);
    group.sync(0);
    assert_eq!((group.confirmed(), group.delivered()), (vec![1, 2], vec![]));
    group.settle();
    assert_eq!(group.delivered(), [1, 2]);
}

#[test]
fn of_several_queues_the_strongest_level_counts() {
    let mut group = Group::of(3);
    group.publish(1, &[(QUEUE, at(Level::LeaderWritten)), (OTHER, at(Level::LeaderSynced))]);
    group.publish(2, &[(QUEUE, at(Level::LeaderSynced)), (OTHER, at(Level::Written))]);
    group.publish(3, &[(QUEUE, at(Level::LeaderWritten)), (OTHER, Durability::Selective { value: 1 })]);
    group.write(0);
    assert_eq!(group.confirmed(), [0; 0]);
    group.sync(0);
    assert_eq!(group.confirmed(), [1]);
    group.carry();
    group.write(1);
    group.carry();
    assert_eq!(group.confirmed(), [3], "selective waits for a majority");
    group.settle();
    assert_eq!(group.confirmed(), [2], "of a majority, and of the leader's disk: a majority's disks");
}

#[test]
fn an_office_that_ends_gives_back_what_is_not_confirmed_and_only_that() {
    let mut group = Group::of(3);
    group.publish_all_levels();
    group.write(0);
    assert_eq!(group.confirmed(), [1]);
    group.with(0, |p, cx| p.stood_still(cx));
    let mut given_back = group.given_back();
    given_back.sort_unstable();
    assert_eq!(given_back, [2, 3, 4]);
    group.frames.clear();
    for _ in 0..200 {
        group.tick();
    }
    assert_eq!(group.confirmed(), [0; 0], "whoever leads now knows nothing of who waits");
}

#[test]
fn what_the_leader_refuses_is_not_confirmed_at_any_level() {
    let mut group = Group::of(3);
    let full = Rules { length_max: Some(1), overflow: Overflow::RejectPublish, ..Rules::default() };
    group.command(Command::Configure { queue: QUEUE, rules: Arc::new(full) });
    group.publish(1, &[(QUEUE, at(Level::LeaderWritten))]);
    group.publish(2, &[(QUEUE, at(Level::LeaderWritten))]);
    group.write(0);
    assert_eq!((group.confirmed(), group.given_back()), (vec![1], vec![2]));
    // A queue that is gone takes nothing in, and its publisher hears what who publishes nowhere hears.
    group.command(Command::Delete { queue: QUEUE });
    group.publish(3, &[(QUEUE, at(Level::LeaderSynced))]);
    assert_eq!(group.confirmed(), [3]);
    group.settle();
    assert_eq!((group.confirmed(), group.given_back()), (vec![], vec![]));
}

#[test]
fn what_comes_again_over_a_new_link_is_confirmed_once_and_ahead_of_what_follows() {
    let mut group = Group::of(3);
    for seq in 1..=3 {
        group.publish(seq, &[(QUEUE, at(Level::LeaderSynced))]);
    }
    group.write(0);
    // Its link broke before it could hear of anything.
    group.command(Command::Part { channel: PUBLISHER });
    group.sync(0);
    assert_eq!(group.confirmed(), [0; 0]);
    for seq in 1..=3 {
        group.publish(seq, &[(QUEUE, at(Level::LeaderSynced))]);
    }
    assert_eq!(group.confirmed(), [1, 2, 3], "the leader has it on its disk");
    group.publish(4, &[(QUEUE, at(Level::LeaderWritten))]);
    group.command(Command::Part { channel: PUBLISHER });
    group.publish(4, &[(QUEUE, at(Level::LeaderWritten))]);
    group.publish(5, &[(QUEUE, at(Level::LeaderWritten))]);
    assert_eq!(group.confirmed(), [0; 0]);
    group.write(0);
    assert_eq!(group.confirmed(), [4, 5]);
    group.settle();
    assert_eq!((group.confirmed(), group.given_back()), (vec![], vec![]));
}

#[test]
fn a_key_that_comes_again_is_confirmed_once_what_it_repeats_is_as_safe_as_it_asks() {
    let mut group = Group::of(3);
    let dedup = Some(broker::queue::DedupRule { window_ms: 0 });
    group.command(Command::Configure { queue: QUEUE, rules: Arc::new(Rules { dedup, ..Rules::default() }) });
    // The header `x-deduplication-header` with the text "k".
    let field = b"\x16x-deduplication-headerS\0\0\0\x01k";
    let keyed: Bytes = [&[0x20, 0, 0, 0, 0, field.len() as u8][..], field].concat().into();
    for (seq, level) in [(1, Level::Synced), (2, Level::LeaderWritten), (3, Level::LeaderSynced)] {
        group.publish_with(seq, &[(QUEUE, at(level))], keyed.clone());
    }
    group.with(0, |p, cx| p.flush(cx));
    assert_eq!(group.confirmed(), [0; 0]);
    group.write(0);
    assert_eq!(group.confirmed(), [2]);
    group.sync(0);
    assert_eq!(group.confirmed(), [3]);
    group.settle();
    assert_eq!(group.confirmed(), [1]);
}

#[test]
fn a_sync_is_answered_once_a_majority_has_what_the_leader_confirmed_alone() {
    let mut group = Group::of(3);
    group.publish(1, &[(QUEUE, at(Level::LeaderWritten))]);
    group.command(Command::Sync { channel: PUBLISHER, request: RequestId(5) });
    let is_answered = |group: &Group| group.members[0].effects.iter().any(|e| matches!(e, Effect::Reply { .. }));
    group.write(0);
    group.sync(0);
    assert_eq!((group.confirmed(), is_answered(&group)), (vec![1], false));
    group.settle();
    assert!(is_answered(&group));
}

#[test]
fn written_waits_for_disks_while_there_is_no_member_to_spare_and_no_longer() {
    let mut group = Group::of(3);
    assert!(!group.members[0].partition.group_figures().is_unspared);
    let mut publish_seq = 0;
    let mut is_confirmed_by_writes = |group: &mut Group| {
        publish_seq += 1;
        group.publish(publish_seq, &[(QUEUE, at(Level::Written))]);
        group.write(0);
        group.carry();
        group.write(1);
        group.carry();
        group.confirmed() == [publish_seq]
    };
    group.cut = Some(2);
    assert!(is_confirmed_by_writes(&mut group), "the third was heard of lately");
    for _ in 0..30 {
        group.tick();
    }
    assert!(group.members[0].partition.is_leading() && group.members[0].partition.group_figures().is_unspared);
    assert!(!is_confirmed_by_writes(&mut group), "the loss of one more would take it");
    group.sync(0);
    group.sync(1);
    group.carry();
    assert_eq!(group.confirmed().len(), 1, "a majority has it on its disks");
    group.cut = None;
    for _ in 0..30 {
        group.tick();
    }
    assert!(!group.members[0].partition.group_figures().is_unspared);
    assert!(is_confirmed_by_writes(&mut group));
}

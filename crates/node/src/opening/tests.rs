//! Folders that get more partitions, or fewer are asked for, or whose newest states rot: with a
//! crash at every point.
//!
//! Invariant: what was confirmed is there at the next start, and the bytes of it can be read.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::{Others, repair};
use broker::ChannelKey;
use broker::VhostId;
use broker::topology::{DeclareQueue, Name, NodeStanding, PartitionPool, PoolPartition};
use partition::command::{Durability, Level, Message, Publish, RequestId, Target};
use partition::extent_copy::copy_runs;
use partition::outputs::Job;
use partition::place::Place;
use partition::{Effect, WalState};
use smallvec::smallvec;
use std::sync::Arc;
use storage::disk::{Crash, Fault};
use storage::extent::{remove_extent, sync_extent_removals};
use storage::wal::{FILE_BYTES_MIN, reaches_back_from};
use storage::{Extent, ExtentId, FaultyDisk, FolderIdentity, NodeRecord};

mod alone;
mod cluster_file;
mod quarantine;

const FOLDER: u128 = 77;
const ONLY_NODE: NodeId = NodeId(NodeRecord::FOUNDER as u64);
const MEMBER: NodeRecord = NodeRecord { id: NodeRecord::FOUNDER, state: NodeState::Member, start: 1 };
/// Some of these make one file of the log.
const LARGE: usize = 20_000;

/// A node without threads: whatever its partitions want is done at once.
struct Lab {
    disk: Arc<FaultyDisk>,
    all: Brought<FaultyDisk>,
    published: u64,
}

fn open(disk: &Arc<FaultyDisk>, partitions: u32) -> Result<Lab, OpenError> {
    let founding = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: FOLDER };
    let mut folder = DataFolder::open(disk.clone(), founding, 1)?;
    let options = WalOptions { file_bytes: FILE_BYTES_MIN, ..WalOptions::new(disk.operations()) };
    let all = bring_back(&mut folder, partitions, options, 0)?;
    Ok(Lab { disk: disk.clone(), all, published: 0 })
}

impl Lab {
    /// Runs what one partition, by its number from 1 on, is told; what it wants done is handed
    /// back.
    fn with(
        &mut self,
        partition: u32,
        act: impl FnOnce(&mut QueuePartition, &mut Context<'_>),
    ) -> Result<Outputs, OpenError> {
        let number = self.all.placed().iter().position(|id| *id == partition).unwrap();
        self.all.partitions[number].with(0, &mut Tail::new(0), act);
        self.all.come_to_rest(true)?;
        Ok(std::mem::take(&mut self.all.partitions[number].out))
    }

    /// Declares a quorum queue, which has a copy on each node of up to three, and says which id it got.
    fn declare(&mut self, name: &str, partition: u32) -> Result<QueueId, OpenError> {
        let (name, mut arguments) = (Name::from(name), amqp::Table::new());
        arguments.push("x-queue-type", amqp::Value::LongString(bytes::Bytes::from_static(b"quorum")));
        let declare = DeclareQueue {
            vhost: VhostId(0),
            name: name.clone(),
            durable: true,
            exclusive: None,
            auto_delete: false,
            arguments,
            partition: PartitionId(partition),
            home: None,
        };
        let change = Change::DeclareQueue(declare).encode();
        let mut replay = Replay { topology: &mut self.all.topology, refused: None };
        assert!(self.all.metadata.partition.propose(&change, 1, &mut replay), "a group of one leads itself");
        self.all.come_to_rest(true)?;
        Ok(self.all.topology.queues().find(|queue| queue.name == name).expect("it was declared").id)
    }

    /// The map says that one more partition serves, of which the disk has nothing.
    fn serve(&mut self, partition: u32) -> Result<(), OpenError> {
        let (id, pool) = self.all.topology.pools().next().expect("a start writes it");
        let pool = PartitionPool { target: pool.target + 1, ..pool.clone() };
        let (members, stage) = (vec![NodeNumber(NodeRecord::FOUNDER)], PartitionStage::Serving);
        let put =
            Change::PutPartition { id: PartitionId(partition), partition: PoolPartition { pool: id, members, stage } };
        self.all.change(vec![Change::PutPool { id, pool }, put])
    }

    /// What the map says: the machine's version, what the pool is to have, the partitions that
    /// serve.
    fn map(&self) -> (u32, u32, Vec<u32>) {
        let topology = &self.all.topology;
        let nodes: Vec<_> = topology.nodes().map(|(number, node)| (number.0, &node.name[..], node.standing)).collect();
        assert_eq!(nodes, [(NodeRecord::FOUNDER, &b"a@host"[..], NodeStanding::Member)]);
        let serving = topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Serving);
        let target = topology.pools().map(|(_, pool)| pool.target).sum();
        (topology.machine_version(), target, serving.map(|(id, _)| id.0).collect())
    }

    /// Publishes so many messages of so many bytes; they are confirmed when it returns.
    fn publish(&mut self, partition: u32, queue: QueueId, count: u64, bytes: usize) -> Result<(), OpenError> {
        for _ in 0..count {
            self.published += 1;
            let message = Message {
                exchange: Bytes::new(),
                routing_key: Bytes::from_static(b"q"),
                properties: Bytes::from_static(&[0, 0]),
                body: vec![b'.'; bytes].into(),
            };
            let targets = smallvec![Target { queue, durability: Durability::Level(Level::Synced), selective: None }];
            let (channel, publish_seq) = (ChannelKey::of(self.all.life, 1), self.published);
            let publish = Publish { channel, publish_seq, term: 0, targets, delay_ms: 0, message, more: None };
            let out = self.with(partition, |p, cx| p.command(Command::Publish(publish), cx))?;
            let is_confirmed = out.effects.iter().any(|effect| matches!(effect, Effect::Confirm { .. }));
            assert!(is_confirmed, "a publish is confirmed: {:?}", out.effects);
        }
        Ok(())
    }

    fn purge(&mut self, partition: u32, queue: QueueId) -> Result<(), OpenError> {
        let (channel, request) = (ChannelKey::of(self.all.life, 2), RequestId(1));
        self.with(partition, |p, cx| p.command(Command::Purge { queue, channel, request }, cx)).map(drop)
    }

    /// Looks after the log as the threads of a server do, until nothing is left to be done.
    fn upkeep(&mut self) -> Result<(), OpenError> {
        for _ in 0..8 {
            let current_file = file_u32(self.all.wal.durable_file());
            let retire_through = current_file - 1;
            let wal = WalState { current_file, retire_through, checkpoint_lag_files: 1, ..WalState::CALM };
            for partition in self.all.placed() {
                let out = self.with(partition, |p, cx| p.maintain(wal, cx))?;
                self.carry_out(out.jobs)?;
            }
            let mut out = Outputs::default();
            let replay = Replay { topology: &mut self.all.topology, refused: None };
            self.all.metadata.partition.maintain(wal, 0, &replay, &mut out);
            self.all.come_to_rest(true)?;
            self.carry_out(out.jobs)?;
        }
        let current_file = file_u32(self.all.wal.durable_file());
        let needs = self.all.partitions.iter().map(|s| s.partition.needs_file(current_file));
        let needs = needs.chain([self.all.metadata.partition.needs_file(current_file)]);
        let needs = needs.chain(self.all.quarantined.values().map(|aside| aside.needs_file)).min().unwrap();
        self.all.wal.release_before(FileNo(u64::from(needs)));
        let mut preparer = self.all.wal.spare_preparer();
        while preparer.step()? == storage::wal::Preparation::Worked {}
        Ok(())
    }

    fn carry_out(&mut self, jobs: Vec<Job>) -> Result<(), OpenError> {
        for job in jobs {
            match job {
                Job::SaveCheckpoint { partition, payload, replay_file, .. } => {
                    let replay_from = WalPosition { file: FileNo(u64::from(replay_file)), offset: 0 };
                    self.all.checkpoints.save(GroupId(partition.0), replay_from, &payload)?;
                    if partition == TOPOLOGY {
                        let mut replay = Replay { topology: &mut self.all.topology, refused: None };
                        self.all.metadata.partition.checkpoint_saved(&mut replay, &mut Outputs::default());
                        continue;
                    }
                    let out = self.with(partition.0, |p, cx| p.checkpoint_saved(cx))?;
                    self.carry_out(out.jobs)?;
                }
                Job::WriteExtent { partition, runs, .. } => {
                    let id = ExtentId(u64::from(self.all.next_extent));
                    self.all.next_extent += 1;
                    let copied = copy_runs(&self.disk, FOLDER, &self.all.wal.reader(), id, &runs)?;
                    assert!(copied.damaged.is_empty(), "nothing is damaged: {:?}", copied.damaged);
                    self.with(partition.0, |p, _| match &copied.ready {
                        Some(ready) => p.extent_ready(ready),
                        None => p.extent_abandoned(),
                    })?;
                }
                Job::DropExtent { id } => {
                    remove_extent(&*self.disk, ExtentId(u64::from(id)))?;
                    sync_extent_removals(&*self.disk)?;
                }
                Job::WriteReceived { .. } => panic!("nobody sends snapshots here"),
            }
        }
        Ok(())
    }

    /// Live messages of a queue. Each of them can be read.
    fn live(&self, partition: u32, queue: QueueId) -> u64 {
        let found = self.all.partitions.iter().find(|started| started.partition.id() == PartitionId(partition));
        let queues = found.unwrap().partition.queues();
        let Some(state) = queues.queue(queue) else { return 0 };
        for run in state.runs().iter().filter(|run| run.live() > 0) {
            match run.place {
                Place::Wal { file, .. } => {
                    let is_there = self.all.wal.closed_files().any(|(closed, _)| file_u32(closed) == file);
                    assert!(is_there || file == file_u32(self.all.wal.position().file), "log file {file} is needed");
                }
                Place::Extent { id, .. } => {
                    let id = ExtentId(u64::from(id));
                    Extent::open(&*self.disk, id).and_then(|extent| extent.verify()).unwrap();
                }
            }
        }
        state.runs().live()
    }

    /// So much goes through a queue of partition 1 that the log goes on by some files, and what is
    /// old is given up.
    fn roll(&mut self) -> Result<(), OpenError> {
        for round in 0..3 {
            let queue = self.declare(&format!("through-{round}"), 1)?;
            self.publish(1, queue, 4, LARGE)?;
            self.purge(1, queue)?;
            self.upkeep()?;
        }
        Ok(())
    }

    fn has_stale_file(&self) -> bool {
        let slots = (1..100).filter_map(|slot| self.disk.contents(&format!("wal/{slot:08}.wal")));
        let numbers = slots.map(|bytes| u64::from_le_bytes(bytes[16..24].try_into().unwrap()));
        let lowest = numbers.filter(|number| *number > 0).min().unwrap();
        lowest < reaches_back_from(&*self.disk, FOLDER, self.all.wal.position().file).unwrap().0
    }

    /// So many files of the log are begun; nothing is left of what went through them.
    fn begin_files(&mut self, count: u64) -> Result<(), OpenError> {
        let queue = self.declare("through", 1)?;
        self.publish(1, queue, 3 * count, LARGE)?;
        self.purge(1, queue)
    }

    /// Every group looks after its log once. `moves`: what lives in old files goes to extents.
    fn look(&mut self, moves: bool) -> Result<(), OpenError> {
        let current_file = file_u32(self.all.wal.durable_file());
        let retire = WalState {
            current_file,
            retire_through: current_file - 1,
            checkpoint_lag_files: if moves { 1_000 } else { 0 },
            ..WalState::CALM
        };
        let wal = if moves { retire } else { WalState { retire_through: 0, ..retire } };
        for partition in self.all.placed() {
            let out = self.with(partition, |p, cx| p.maintain(wal, cx))?;
            self.carry_out(out.jobs)?;
        }
        let mut out = Outputs::default();
        let replay = Replay { topology: &mut self.all.topology, refused: None };
        self.all.metadata.partition.maintain(retire, 0, &replay, &mut out);
        self.carry_out(out.jobs)
    }

    fn first_file(&self) -> u64 {
        self.all.wal.closed_files().next().map_or(self.all.wal.position().file.0, |(file, _)| file.0)
    }
}

/// A folder of two partitions with a queue of three messages in each, the log's first file given
/// back.
fn rolled_folder() -> (Arc<FaultyDisk>, [QueueId; 2]) {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 2).unwrap();
    let queues = [1, 2].map(|partition| {
        let queue = lab.declare(&format!("old-{partition}"), partition).unwrap();
        lab.publish(partition, queue, 3, 1000).unwrap();
        queue
    });
    lab.begin_files(4).unwrap();
    lab.upkeep().unwrap();
    lab.roll().unwrap();
    // A file that was given back keeps its number until it is used again, so that others seem to be
    // missing behind it.
    assert!(lab.has_stale_file(), "some wait longer than others");
    assert!(lab.first_file() > 2, "the log's beginning is gone");
    (disk, queues)
}

#[test]
fn a_folder_whose_log_was_recycled_gets_more_partitions_whatever_crashes_on_the_way() {
    let mut points = 0;
    for kind in [Crash::Process, Crash::Power] {
        for at in 0.. {
            let (disk, old) = rolled_folder();
            disk.schedule(disk.operations() + at, Fault::Crash(kind));
            let mut confirmed = [0; 2];
            let mut life = || -> Result<(), OpenError> {
                let mut lab = open(&disk, 4)?;
                assert_eq!(lab.all.placed(), [1, 2, 3, 4]);
                for partition in [3, 4] {
                    let queue = lab.declare(&format!("new-{partition}"), partition)?;
                    lab.publish(partition, queue, 2, 1000)?;
                    confirmed[partition as usize - 3] = 2;
                }
                lab.roll()
            };
            let lived = life();
            let has_crashed = disk.down().is_some();
            assert_eq!(lived.is_err(), has_crashed, "{kind:?} at {at}: {:?}", lived.err());
            disk.clear_faults();
            disk.restart();
            // The smaller number takes nothing away, the larger one gives what was still missing.
            for partitions in [2, 4, 2] {
                let mut lab = open(&disk, partitions).unwrap_or_else(|error| panic!("{kind:?} at {at}: {error}"));
                assert_eq!(old.iter().zip([1, 2]).map(|(q, p)| lab.live(p, *q)).sum::<u64>(), 6);
                for (number, partition) in [3, 4].into_iter().enumerate() {
                    let name = Name::from(format!("new-{partition}").as_str());
                    let queue = lab.all.topology.queues().find(|queue| queue.name == name).map(|queue| queue.id);
                    let live = queue.map_or(0, |queue| lab.live(partition, queue));
                    assert!(live >= confirmed[number], "{kind:?} at {at}: {live} of partition {partition}");
                }
                lab.roll().unwrap();
            }
            points = points.max(at);
            if !has_crashed {
                break;
            }
        }
    }
    assert!(points > 20, "there is something between a founding and a first checkpoint");
}

#[test]
fn fewer_partitions_than_a_young_folder_has_are_those_that_it_has() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 4).unwrap();
    let queues: Vec<(u32, QueueId)> = (1..=4)
        .map(|partition| {
            let queue = lab.declare(&format!("q{partition}"), partition).unwrap();
            lab.publish(partition, queue, 3, 1000).unwrap();
            (partition, queue)
        })
        .collect();
    assert!(lab.all.checkpoints.groups().next().is_none(), "only the log knows");
    drop(lab);
    for round in 1..=3 {
        let mut lab = open(&disk, 1).unwrap();
        assert_eq!(lab.all.placed(), [1, 2, 3, 4]);
        for (partition, queue) in &queues {
            assert_eq!(lab.live(*partition, *queue), 2 + round, "queue of partition {partition}");
            lab.publish(*partition, *queue, 1, 1000).unwrap();
        }
        lab.roll().unwrap();
        assert!(lab.first_file() > 2, "the log is recycled");
    }
}

#[test]
fn partitions_without_a_checkpoint_are_found_in_the_log_of_a_build_that_did_not_say_which_there_are() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 3).unwrap();
    let queue = lab.declare("idle", 3).unwrap();
    lab.publish(3, queue, 3, 1000).unwrap();
    let other = lab.declare("busy", 1).unwrap();
    lab.publish(1, other, 4, LARGE).unwrap();
    // Only the first two partitions and the topology come to save their states, and no file says
    // what others there are.
    lab.all.partitions.pop();
    lab.all.checkpoints = CheckpointStore::open(&disk, FOLDER).unwrap();
    lab.upkeep_without_release().unwrap();
    drop(lab);
    let lab = open(&disk, 2).unwrap();
    assert_eq!((lab.all.placed(), lab.live(3, queue)), (vec![1, 2, 3], 3));
}

#[test]
fn a_queue_of_a_partition_of_which_nothing_is_left_is_not_begun_anew_in_silence() {
    let (disk, _) = rolled_folder();
    let mut lab = open(&disk, 2).unwrap();
    lab.serve(3).unwrap();
    lab.declare("lost", 3).unwrap();
    drop(lab);
    for partitions in [2, 3] {
        let error = open(&disk, partitions).err().expect("messages may be missing");
        assert!(matches!(error, OpenError::EntryMissing { partition: 3, index: 2 }), "{error}");
    }
    let report = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    assert!(report.given_up.iter().any(|line| line.contains("partition 3: all its messages")), "{report:?}");
    let lab = open(&disk, 2).unwrap();
    assert_eq!(lab.all.placed(), [1, 2, 3]);
    assert_eq!(repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap().found, Vec::<String>::new());
}

#[test]
fn a_partition_of_the_map_of_which_nothing_is_left_is_told_though_no_queue_was_placed_there() {
    let (disk, _) = rolled_folder();
    open(&disk, 2).unwrap().serve(3).unwrap();
    for partitions in [2, 3] {
        let error = open(&disk, partitions).err().expect("the map says that it is there");
        assert!(matches!(error, OpenError::EntryMissing { partition: 3, index: 2 }), "{error}");
    }
    repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    assert_eq!(open(&disk, 2).unwrap().all.placed(), [1, 2, 3]);
}

#[test]
fn the_checkpoint_before_the_newest_still_counts_after_a_start() {
    let (disk, queues) = rolled_folder();
    let mut lab = open(&disk, 2).unwrap();
    for (queue, partition) in queues.into_iter().zip([1, 2]) {
        lab.purge(partition, queue).unwrap();
        lab.publish(partition, queue, 5, 1000).unwrap();
    }
    let live = |lab: &Lab| queues.iter().zip([1, 2]).map(|(q, p)| lab.live(p, *q)).collect::<Vec<_>>();
    // For the older state they lie in the log, for the newest in extents.
    lab.begin_files(2).unwrap();
    lab.look(false).unwrap();
    lab.begin_files(2).unwrap();
    lab.look(true).unwrap();
    lab.look(true).unwrap();
    assert_eq!(live(&lab), [5, 5]);
    drop(lab);
    // A start, and after it more than there are files to be used again.
    let mut lab = open(&disk, 2).unwrap();
    lab.begin_files(6).unwrap();
    drop(lab);
    for group in 0..=2 {
        let name = |place| storage::checkpoint::checkpoint_name(GroupId(group), place);
        let generation = |place| {
            let bytes = disk.contents(&name(place)).unwrap();
            u64::from_le_bytes(bytes[40..48].try_into().unwrap())
        };
        let newest = usize::from(generation(1) > generation(0));
        disk.flip_bit(&name(newest), 8192, 1);
    }
    let mut lab = open(&disk, 2).unwrap();
    assert_eq!(live(&lab), [5, 5]);
    lab.roll().unwrap();
    assert_eq!(live(&lab), [5, 5]);
}

/// A start misses what the newest state names, also where all of it was settled since.
#[test]
fn an_extent_that_only_the_newest_state_needs_is_mended_if_it_is_gone() {
    let (disk, [first, second]) = rolled_folder();
    let mut lab = open(&disk, 2).unwrap();
    let in_use = |lab: &Lab, at: usize| lab.all.partitions[at].partition.queues().extents().keys().copied().collect();
    let (lost, kept): (Vec<u32>, Vec<u32>) = (in_use(&lab, 0), in_use(&lab, 1));
    assert!(!lost.is_empty() && !kept.contains(&lost[0]));
    lab.purge(1, first).unwrap();
    drop(lab);
    remove_extent(&*disk, ExtentId(lost[0].into())).unwrap();
    assert_eq!(open(&disk, 2).unwrap().all.quarantined.keys().map(|id| id.0).collect::<Vec<_>>(), [1]);
    let report = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    assert!(report.found.iter().any(|found| found.contains("of partition 1, 0 of them live")), "{report:?}");
    assert_eq!((report.messages, report.given_up), (3, Vec::new()), "nothing of it was wanted any more");
    let lab = open(&disk, 2).unwrap();
    assert!(lab.all.quarantined.is_empty());
    assert_eq!((lab.live(1, first), lab.live(2, second)), (0, 3));
}

/// Queues and numbers are alike in all folders, so its messages have the right checksums.
#[test]
fn an_extent_of_another_folder_gives_its_messages_to_nobody() {
    let (disk, [first, second]) = rolled_folder();
    let lab = open(&disk, 2).unwrap();
    let id = *lab.all.partitions[0].partition.queues().extents().keys().next().unwrap();
    drop(lab);
    let name = storage::extent::extent_name(ExtentId(id.into()));
    let mut bytes = disk.contents(&name).unwrap();
    bytes[24..40].copy_from_slice(&(FOLDER + 1).to_le_bytes());
    let crc = storage::crc32c::crc32c(&bytes[12..64]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    disk.plant(&name, &bytes);
    let lab = open(&disk, 2).unwrap();
    let causes: Vec<_> = lab.all.quarantined.iter().map(|(id, aside)| (id.0, aside.why.cause())).collect();
    assert_eq!(causes, [(1, format!("{name} is not this folder's file of that name"))]);
    drop(lab);
    let report = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    let told = "id of the data folder should be";
    assert!(report.found.iter().any(|found| found.contains(told)), "{report:?}");
    assert_eq!((report.messages, report.given_up.len()), (3, 1), "{report:?}");
    let lab = open(&disk, 2).unwrap();
    assert!(lab.all.quarantined.is_empty());
    assert_eq!((lab.live(1, first), lab.live(2, second)), (0, 3));
    assert!(disk.contents(&name).is_none(), "it is kept beside");
}

#[test]
fn nothing_is_deleted_where_damage_refuses_the_start() {
    let (disk, _) = rolled_folder();
    let lab = open(&disk, 2).unwrap();
    let file = lab.all.wal.position().file;
    drop(lab);
    // An extent that no checkpoint knows: were the log whole, it would go.
    let stray = storage::extent::extent_name(ExtentId(900));
    disk.plant(&stray, b"half of an extent");
    let name = (1..).map(|slot| format!("wal/{slot:08}.wal")).find(|name| {
        disk.contents(name).is_some_and(|bytes| bytes.len() > 24 && bytes[16..24] == file.0.to_le_bytes())
    });
    disk.flip_bit(&name.unwrap(), 4096 + 60, 1);
    assert!(matches!(open(&disk, 2).err(), Some(OpenError::Damaged { .. })));
    assert!(disk.contents(&stray).is_some(), "it may be what a repair needs");
}

#[test]
fn a_partition_of_other_members_is_quarantined_and_ends_nothing() {
    let disk = Arc::new(FaultyDisk::new(5));
    drop(open(&disk, 2).unwrap());
    let mut checkpoints = CheckpointStore::open(&disk, FOLDER).unwrap();
    for members in [&[consensus::NodeId(2)][..], &[ONLY_NODE, consensus::NodeId(2)], &[]] {
        let place = WalPosition { file: FileNo(1), offset: 0 };
        checkpoints.save(GroupId(2), place, &founding_checkpoint(members)).unwrap();
        let lab = open(&disk, 2).unwrap();
        assert_eq!((lab.all.placed(), lab.all.set_aside()), (vec![1], vec![2]), "{members:?}");
        let why = &lab.all.quarantined[&PartitionId(2)].why;
        assert!(matches!(why, OpenError::Contradictory { partition: 2, .. }), "{members:?}: {why}");
    }
}

#[test]
fn publishers_of_a_process_that_was_killed_are_forgotten() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 1).unwrap();
    let queue = lab.declare("q", 1).unwrap();
    lab.publish(1, queue, 3, 10).unwrap();
    assert_eq!(lab.all.partitions[0].partition.publishers(), 1);
    drop(lab);
    let mut lab = open(&disk, 1).unwrap();
    lab.publish(1, queue, 1, 10).unwrap();
    assert_eq!(lab.all.partitions[0].partition.publishers(), 1, "this one's");
    assert_eq!(lab.live(1, queue), 4);
}

impl Lab {
    /// The states of the partitions that are here, and nothing is given up.
    fn upkeep_without_release(&mut self) -> Result<(), OpenError> {
        let file = file_u32(self.all.wal.durable_file());
        let wal = WalState { current_file: file, retire_through: file, checkpoint_lag_files: 0, ..WalState::CALM };
        for _ in 0..2 {
            for partition in self.all.placed() {
                let out = self.with(partition, |p, cx| p.maintain(wal, cx))?;
                self.carry_out(out.jobs)?;
            }
        }
        let mut out = Outputs::default();
        let replay = Replay { topology: &mut self.all.topology, refused: None };
        self.all.metadata.partition.maintain(wal, 0, &replay, &mut out);
        self.carry_out(out.jobs)
    }
}

impl Brought<FaultyDisk> {
    fn placed(&self) -> Vec<u32> {
        self.partitions.iter().map(|started| started.partition.id().0).collect()
    }

    fn set_aside(&self) -> Vec<u32> {
        self.quarantined.keys().map(|id| id.0).collect()
    }
}

#[test]
fn a_crash_at_any_operation_of_a_founding_leaves_a_node_of_one_identity_that_founds_once() {
    for kind in [Crash::Process, Crash::Power] {
        let mut points = 0;
        for at in 0.. {
            let disk = Arc::new(FaultyDisk::new(at));
            disk.schedule(at, Fault::Crash(kind));
            // Each life draws an identity of its own, as the real process does.
            let live = |folder_id: u128| -> Result<_, OpenError> {
                let founding = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: folder_id, folder_id };
                let mut folder = DataFolder::open(disk.clone(), founding, 1)?;
                let options = WalOptions { file_bytes: FILE_BYTES_MIN, ..WalOptions::new(disk.operations()) };
                let all = bring_back(&mut folder, 2, options, 0)?;
                assert_eq!((all.placed(), folder.node().state), (vec![1, 2], NodeState::Member));
                Ok((folder.identity().clone(), Lab { disk: disk.clone(), all, published: 0 }))
            };
            let first = live(10).and_then(|(identity, mut lab)| {
                let queue = lab.declare("q", 2)?;
                lab.publish(2, queue, 1, 100)?;
                Ok((identity, queue))
            });
            let has_crashed = disk.down().is_some();
            assert_eq!(first.is_err(), has_crashed, "{kind:?} at {at}: {:?}", first.err());
            disk.crash(Crash::Power);
            disk.clear_faults();
            disk.restart();
            let (second, lab) = live(20).unwrap_or_else(|error| panic!("{kind:?} at {at}: {error}"));
            if let Ok((identity, queue)) = &first {
                assert_eq!((&second, lab.live(2, *queue)), (identity, 1), "{kind:?} at {at}");
            }
            drop(lab);
            assert_eq!(live(30).unwrap().0, second, "{kind:?} at {at}");
            points = points.max(at);
            if !has_crashed {
                break;
            }
        }
        assert!(points > 20, "a founding has more steps than {points}");
    }
}

#[test]
fn a_node_that_is_to_join_founds_nothing() {
    let disk = Arc::new(FaultyDisk::new(3));
    let joining = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: FOLDER };
    drop(DataFolder::join(disk.clone(), joining, 1).unwrap());
    for _ in 0..2 {
        assert!(matches!(open(&disk, 2).err(), Some(OpenError::Joining)));
    }
    assert!(disk.contents("wal/00000001.wal").is_some_and(|bytes| bytes.is_empty()), "nothing is in its log");
    assert!(disk.list("checkpoints").unwrap_or_default().is_empty());
}

#[test]
fn a_member_of_whose_groups_nothing_is_left_does_not_found_them_again() {
    let disk = Arc::new(FaultyDisk::new(3));
    drop(open(&disk, 2).unwrap());
    disk.plant("wal/00000001.wal", b"");
    disk.remove("wal/durable").unwrap_or_default();
    assert!(matches!(open(&disk, 2).err(), Some(OpenError::EntryMissing { partition: 0, index: 2 })));
    let report = repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    assert!(report.found.iter().any(|line| line.contains("nothing of the topology")), "{report:?}");
    open(&disk, 2).unwrap();
}

#[test]
fn a_folder_of_an_earlier_build_opens_and_is_a_members_from_then_on() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 2).unwrap();
    let queue = lab.declare("q", 1).unwrap();
    lab.publish(1, queue, 3, 1000).unwrap();
    drop(lab);
    // What it had is the identity in its first format, and no more.
    disk.remove(storage::data_folder::NODE_FILE).unwrap();
    let identity = "leveret data folder\nformat 1\nnode a@host\ncluster 00000000000000000000000000000001\n\
                    folder 0000000000000000000000000000004d\ncheck 3517c650\n";
    disk.plant("identity", identity.as_bytes());
    for start in 1..3 {
        let founding = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 9, folder_id: 9 };
        let mut folder = DataFolder::open(disk.clone(), founding, 1).unwrap();
        let lab =
            bring_back(&mut folder, 2, WalOptions { file_bytes: FILE_BYTES_MIN, ..WalOptions::new(7 + start) }, 0);
        let lab = Lab { disk: disk.clone(), all: lab.unwrap(), published: 0 };
        assert_eq!((folder.node(), lab.live(1, queue)), (NodeRecord { start: start as u32, ..MEMBER }, 3));
    }
    let other = disk.contents("identity").unwrap();
    assert!(other.starts_with(b"leveret data folder\nformat 2\n"), "an older build refuses it with one line");
}

#[test]
fn the_map_of_partitions_is_written_once_and_grows_with_the_setting() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut applied = 0;
    for (wanted, partitions, is_new) in [
        (2, 2, true),
        (2, 2, false),
        (4, 4, true),
        (4, 4, false),
        // A smaller number takes nothing away.
        (1, 4, false),
    ] {
        let lab = open(&disk, wanted).unwrap();
        assert_eq!(lab.map(), (MACHINE_VERSION, partitions, (1..=partitions).collect()), "{wanted} are set");
        let now = lab.all.metadata.partition.applied().0;
        // The entry with which a leader begins its term is always there.
        assert_eq!(now > applied + 1, is_new, "{wanted} are set: {applied} entries before, {now} now");
        applied = now;
    }
}

/// A state of the topology as a build saved it that knew no map, in a checkpoint.
fn without_map(payload: &[u8], topology: &Topology) -> Vec<u8> {
    let at = payload.windows(5).position(|bytes| bytes == b"LVTO\x04").unwrap();
    let nodes = topology.nodes().map(|(number, node)| Change::PutNode { number, node: node.clone() });
    let pools = topology.pools().map(|(id, pool)| Change::PutPool { id, pool: pool.clone() });
    let partitions = topology.partitions().map(|(id, put)| Change::PutPartition { id, partition: put.clone() });
    // Behind the version and the tag a command is as a snapshot has it; beside them three short
    // counts.
    let map: usize = 3 + nodes.chain(pools).chain(partitions).map(|change| change.encode().len() - 2).sum::<usize>();
    [&payload[..at], b"LVTO\x03", &payload[at + 6..payload.len() - map]].concat()
}

#[test]
fn a_folder_without_a_map_gets_one_that_says_what_it_shows_wherever_a_crash_fell() {
    let mut points = 0;
    for at in 0.. {
        let (disk, queues) = rolled_folder();
        let mut lab = open(&disk, 2).unwrap();
        let mut out = Outputs::default();
        let current_file = file_u32(lab.all.wal.durable_file());
        let wal = WalState { current_file, retire_through: current_file, checkpoint_lag_files: 0, ..WalState::CALM };
        lab.declare("another", 2).unwrap();
        lab.begin_files(2).unwrap();
        let wal = WalState { current_file: file_u32(lab.all.wal.durable_file()), ..wal };
        let replay = Replay { topology: &mut lab.all.topology, refused: None };
        lab.all.metadata.partition.maintain(wal, 0, &replay, &mut out);
        let Some(Job::SaveCheckpoint { payload, replay_file, .. }) = out.jobs.pop() else { panic!("{:?}", out.jobs) };
        let replay_from = WalPosition { file: FileNo(u64::from(replay_file)), offset: 0 };
        let payload = without_map(&payload, &lab.all.topology);
        for _ in 0..2 {
            lab.all.checkpoints.save(GroupId(TOPOLOGY.0), replay_from, &payload).unwrap();
        }
        drop(lab);
        disk.schedule(disk.operations() + at, Fault::Crash(Crash::Power));
        let first = open(&disk, 3).map(|lab| lab.map());
        let has_crashed = disk.down().is_some();
        assert_eq!(first.is_err(), has_crashed, "at {at}: {:?}", first.err());
        disk.clear_faults();
        disk.restart();
        let lab = open(&disk, 3).unwrap_or_else(|error| panic!("at {at}: {error}"));
        assert_eq!(lab.map(), (MACHINE_VERSION, 3, vec![1, 2, 3]), "at {at}");
        assert_eq!(queues.iter().zip([1, 2]).map(|(queue, p)| lab.live(p, *queue)).sum::<u64>(), 6);
        points = points.max(at);
        if !has_crashed {
            break;
        }
    }
    assert!(points > 5, "there is something between the folder and its map: {points}");
}

#[test]
fn a_topology_that_a_newer_build_raised_is_refused_with_what_to_do() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 1).unwrap();
    let newer = Change::RaiseVersion { version: MACHINE_VERSION + 1 }.encode();
    let mut replay = Replay { topology: &mut lab.all.topology, refused: None };
    assert!(lab.all.metadata.partition.propose(&newer, 1, &mut replay));
    let why = lab.all.come_to_rest(true).unwrap_err().to_string();
    drop(lab);
    for why in [why, open(&disk, 1).err().unwrap().to_string()] {
        assert!(why.contains("machine version, raised by a newer leveret,"), "{why}");
        assert!(why.contains("start the version that wrote it"), "{why}");
    }
}

/// What a member of a group writes that ends here.
fn end_group(lab: &mut Lab, partition: u32) -> Result<(), OpenError> {
    let (group, kind, body) = (GroupId(partition), RecordKind::Tombstone, Bytes::new());
    lab.all
        .wal
        .append(&[storage::Record { group, kind, term: 5, index: 40, body, body_crc: None }], &mut Vec::new())?;
    Ok(lab.all.wal.sync()?)
}

#[test]
fn a_group_that_has_ended_here_is_not_opened_again_over_any_of_its_states_nor_founded_wherever_a_crash_fell() {
    for (kind, is_saved, step) in [(Crash::Process, true, 3), (Crash::Power, true, 1), (Crash::Power, false, 1)] {
        let mut points = 0;
        for at in (0..).step_by(step) {
            let disk = Arc::new(FaultyDisk::new(at));
            let mut lab = open(&disk, 3).unwrap();
            let queue = lab.declare("stays", 1).unwrap();
            lab.publish(1, queue, 2, 1000).unwrap();
            let gone = QueueId(900);
            lab.publish(3, gone, 3, 1000).unwrap();
            if is_saved {
                // Two states of it are there, with an extent, and its log has let go of its
                // beginning.
                lab.begin_files(4).unwrap();
                lab.upkeep().unwrap();
                assert!(lab.first_file() > 1);
            }
            disk.schedule(disk.operations() + at, Fault::Crash(kind));
            let mut life = || -> Result<(), OpenError> {
                end_group(&mut lab, 3)?;
                // A write of it that was on its way.
                let (group, body) = (GroupId(3), Bytes::from_static(&[1]));
                let late = storage::Record { group, kind: RecordKind::Entry, term: 6, index: 41, body, body_crc: None };
                lab.all.wal.append(&[late], &mut Vec::new())?;
                lab.all.wal.sync()?;
                open(&disk, 3).map(drop)
            };
            let lived = life();
            let (has_crashed, is_ended) = (disk.down().is_some(), lived.is_ok());
            assert_eq!(is_ended, !has_crashed, "{kind:?} at {at}: {:?}", lived.err());
            drop(lab);
            disk.clear_faults();
            disk.restart();
            let mut lab = open(&disk, 3).unwrap_or_else(|error| panic!("{kind:?} at {at}: {error}"));
            // The end counts or it does not; from the first start on that saw it, it counts for
            // ever.
            let placed = lab.all.placed();
            assert!(!is_ended || placed == [1, 2], "{kind:?} at {at}: {placed:?}");
            assert!([vec![1, 2], vec![1, 2, 3]].contains(&placed), "{placed:?}");
            if placed.len() == 2 && (at % 5 == 0 || !has_crashed) {
                // Its log is forgotten, and its newest state rots.
                lab.roll().unwrap();
                drop(lab);
                for rotten in 0..2 {
                    let name = storage::checkpoint::checkpoint_name(GroupId(3), rotten);
                    disk.flip_bit(&name, 8192 + 3, 1);
                    let mut lab = open(&disk, 3).unwrap_or_else(|error| panic!("{kind:?} at {at}: {error}"));
                    assert_eq!((lab.all.placed(), lab.live(1, queue)), (vec![1, 2], 2), "{kind:?} at {at}");
                    lab.roll().unwrap();
                }
                let files = disk.list("checkpoints").unwrap();
                assert_eq!(files.iter().filter(|name| name.starts_with("00000003")).count(), 2, "{files:?}");
            }
            points = points.max(at);
            if !has_crashed {
                break;
            }
        }
        assert!(points > 8, "an end has more steps than {points}");
    }
}

#[test]
fn a_repair_brings_no_group_back_that_has_ended_here() {
    let (disk, queues) = rolled_folder();
    let mut lab = open(&disk, 3).unwrap();
    end_group(&mut lab, 3).unwrap();
    lab.serve(4).unwrap();
    lab.declare("lost", 4).unwrap();
    drop(lab);
    assert!(open(&disk, 3).is_err(), "nothing is there of a partition that has a queue");
    repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap();
    for _ in 0..2 {
        let lab = open(&disk, 3).unwrap();
        assert_eq!((lab.all.placed(), lab.live(2, queues[1])), (vec![1, 2, 4], 3));
    }
    assert_eq!(repair(&disk, FOLDER, MEMBER, 7, Others::None).unwrap().found, Vec::<String>::new());
}

#[test]
fn a_queue_whose_partition_has_ended_here_is_told_and_not_served_as_if_it_were_empty() {
    let disk = Arc::new(FaultyDisk::new(3));
    let mut lab = open(&disk, 2).unwrap();
    lab.declare("q", 2).unwrap();
    end_group(&mut lab, 2).unwrap();
    drop(lab);
    for _ in 0..2 {
        assert!(matches!(open(&disk, 2).err(), Some(OpenError::EntryMissing { partition: 2, .. })));
    }
}

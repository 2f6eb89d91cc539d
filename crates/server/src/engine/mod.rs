//! The durable half of a node: opens its data folder, brings its partitions back, runs the disk's threads.
//!
//! ```text
//! shard threads ──WalWrite──▶ wal thread ──Written, Synced──▶ shard   (one write, one sync for all; what is little and quick
//!                                                                      the shard writes itself)
//!               ──Read──────▶ reader thread ──Read──────────▶ shard   (cold messages)
//!               ──Job───────▶ upkeep thread ──Extent, Checkpoint──▶ shard
//! ```
//!
//! Invariant: when [`open`] returns, every partition leads and has applied all of its log, so that the first client sees
//! everything that was ever confirmed; nothing was written but what a new term costs.

mod completions;
mod durable;
#[cfg(test)]
mod hanging_sync;
mod log_writer;
mod metadata;
mod reader_thread;
mod repair;
mod sync_times;
mod upkeep_thread;
mod wal_thread;

use crate::node::{MakePartitions, Wiring};
use crate::shard::{Mailbox, Partition};
use crate::topology_log::TopologyLog;
use broker::topology::{Command as Change, Topology};
use broker::{ConsumerKey, PartitionId, QueueId};
use bytes::Bytes;
use completions::Completions;
use consensus::{Config, NodeId};
use durable::{DurablePartition, Turn};
use metadata::{MetadataLog, MetadataPartition, Proposals};
use partition::log_partition::{AppliedEntry, Machine};
use partition::outputs::WalWrite;
use partition::{Command, Context, LogPartition, Outlets, Outputs, QueuePartition, Recovery, Tail};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use storage::extent::{list_extents, remove_extent};
use storage::wal::{Recovery as WalReport, has_log};
use storage::{
    CheckpointStore, DataFolder, Disk, ExtentId, FileNo, GroupId, Location, RealDisk, RecordKind, StorageError, Wal,
    WalOptions, WalPosition,
};

pub(crate) use durable::wall_ms;
pub use repair::{ASIDE_FOLDER, RepairReport, next_aside, repair};
pub use sync_times::SyncTimes;
use wal_thread::WalHandle;

/// The node that every group of a single node consists of.
const ONLY_NODE: NodeId = NodeId(1);
/// The topology's partition.
const TOPOLOGY: PartitionId = PartitionId(0);
/// The largest log entry: one batch target and one largest message.
const ENTRY_BYTES_MAX: usize = partition::entry::ENTRY_BYTES_TARGET + partition::message::MESSAGE_BYTES_MAX + 65_536;
/// Uncommitted bytes of one group; shards stop reading publishers long before.
const UNCOMMITTED_BYTES_MAX: usize = 256 << 20;

/// What the durable half of a node is made of.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Queue partitions, 1 to 512. A folder that has more keeps them.
    pub partitions: u32,
    /// Shard threads.
    pub shards: usize,
    /// Size of a WAL file.
    pub wal_file_bytes: u32,
    /// Closed WAL files kept before live messages are copied out of them.
    pub wal_retained_bytes: u64,
    /// Newest log entries kept in memory, all shards together.
    pub cache_bytes: usize,
    /// What queues may hold of messages that they read back from the disk, all shards together.
    pub read_ahead_bytes: usize,
    /// Index of messages in the log, all shards together.
    pub wal_index_bytes: u64,
    /// The longest that anything written stays unsynced.
    pub wal_sync_delay_ms: u64,
    /// A partition's replay reaches back over about this much log.
    pub checkpoint_interval_bytes: u64,
    /// Called on the log's thread when traffic ends.
    pub on_quiet: fn(),
}

/// Why a data folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The storage says why.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A checkpoint of another version, or a bug.
    #[error("{0}; the data folder was written by another version of leveret: start that version, or restore a copy")]
    Checkpoint(#[from] partition::checkpoint::CheckpointDamaged),
    /// The topology's state cannot be read.
    #[error("the topology cannot be read ({0}); start the version that wrote it, or restore a copy")]
    Topology(String),
    /// Records that were synced cannot be read any more.
    #[error(
        "{count} ranges of the log are damaged, the first in {file} at byte {offset}: confirmed messages may be missing. \
         restore the data folder from a copy, or see with `leveret repair DIR --dry-run` what going on without them gives up"
    )]
    Damaged {
        /// How many ranges.
        count: u64,
        /// The file of the first.
        file: String,
        /// Where it begins.
        offset: u32,
    },
    /// No file of the log is left.
    #[error(
        "the log is gone: no file of it is left in `wal`, as if that had been emptied or its disk were not mounted. mount it or restore \
         the data folder from a copy, or see with `leveret repair DIR --dry-run` what going on without it gives up"
    )]
    LogGone,
    /// An entry is not in the log, though later ones are, and nothing that was read is damaged.
    #[error(
        "entry {index} of partition {partition} is missing in the log, as if a file of it were gone: restore the data folder from a \
         copy, or see with `leveret repair DIR --dry-run` what going on without it gives up"
    )]
    EntryMissing {
        /// The partition.
        partition: u32,
        /// The entry.
        index: u64,
    },
    /// No whole checkpoint of a partition is left.
    #[error(
        "{0}, and there is no other checkpoint: restore the file from a copy, or see with `leveret repair DIR --dry-run` what going on \
         without it gives up"
    )]
    StateLost(StorageError),
    /// A repair is for a folder that is the only copy.
    #[error(
        "partitions of this folder have members on other nodes, which have what this one lost: start it as a new member with an empty \
         data folder instead"
    )]
    OthersHaveIt,
    /// The system does not give a random number.
    #[error("the system gives no random numbers: {0}")]
    Random(std::io::Error),
}

/// An opened data folder with all its partitions, before the node runs.
pub struct Opened {
    folder: DataFolder<RealDisk>,
    config: EngineConfig,
    wal: Wal<RealDisk>,
    checkpoints: CheckpointStore<RealDisk>,
    metadata: Started<LogPartition>,
    partitions: Vec<Started<QueuePartition>>,
    /// The topology that all queues, exchanges and bindings are in.
    pub topology: Topology,
    /// Which start of this node it is: larger than at every start before.
    pub boot: u32,
    next_extent: u32,
    /// What recovery read.
    pub report: WalReport,
}

/// A partition that leads before its shard runs, and what it has asked for since: reads, above all. Its shard carries that
/// out with its first turn. Were it dropped, the partition would wait for an answer that nobody owes it.
pub(crate) struct Started<P> {
    pub(crate) partition: P,
    pub(crate) out: Outputs,
}

impl<P> Started<P> {
    fn new(partition: P) -> Self {
        Started { partition, out: Outputs::default() }
    }
}

impl Started<QueuePartition> {
    fn with(&mut self, tail: &mut Tail, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        let Started { partition, out } = self;
        f(partition, &mut Context { now_ms: wall_ms(), tail, outlets: &mut Closed, out });
    }
}

/// The disk's threads of a running node.
pub struct Engine {
    gauges: EngineGauges,
    threads: Vec<JoinHandle<()>>,
    folder: DataFolder<RealDisk>,
}

/// The topology while the log behind its checkpoint is applied.
struct Replay<'a> {
    topology: &'a mut Topology,
    /// The first entry that cannot be read, and why. Nothing is applied behind it.
    refused: Option<String>,
}

impl Machine for Replay<'_> {
    fn apply(&mut self, entry: AppliedEntry) {
        if self.refused.is_some() {
            return;
        }
        match Change::decode(&entry.data) {
            Ok(change) => drop(self.topology.apply(&change)),
            Err(why) => self.refused = Some(why.to_string()),
        }
    }

    fn lost(&mut self, _: u64) {}

    fn snapshot(&self) -> Vec<u8> {
        self.topology.encode_snapshot().to_vec()
    }

    fn can_read(&self, state: &Bytes) -> bool {
        Topology::decode_snapshot(state).is_ok()
    }

    fn install(&mut self, state: &Bytes) {
        // No queue has been told anything yet, so nothing follows from it.
        self.refused = self.topology.install_snapshot(state).err().map(|why| why.to_string());
    }
}

/// Nobody consumes while partitions come back.
struct Closed;

impl Outlets for Closed {
    fn room(&mut self, _: ConsumerKey) -> usize {
        0
    }
}

/// Ends the process: what was promised to be on the disk may not be, and only a restart finds out.
fn fatal(what: &str, error: &StorageError) -> ! {
    tracing::error!(%error, "{what}: the process ends here, a restart recovers what is on the disk");
    std::process::abort()
}

fn random_u128() -> Result<u128, OpenError> {
    let mut bytes = [0u8; 16];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    read.map_err(|e| OpenError::Random(e.into()))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Brings the partitions of a data folder back.
///
/// - Cost: the checkpoints, the log since the oldest of them, one sync. Backlogs are not read.
/// - Errors: each is one line that says what to do; nothing is changed on the disk then.
pub fn open(folder: DataFolder<RealDisk>, config: EngineConfig) -> Result<Opened, OpenError> {
    let disk = folder.disk().clone();
    let folder_id = folder.identity().folder_id;
    if !has_log(&*disk)? {
        return Err(OpenError::LogGone);
    }
    let mut checkpoints = CheckpointStore::open(&disk, folder_id)?;
    let (mut metadata, mut queues) = load(&mut checkpoints, config.partitions)?;
    let all = || std::iter::once(&metadata).chain(queues.values());
    let keep_from = FileNo(u64::from(all().map(Recovery::needs_file).min().unwrap_or(0)));
    let from = FileNo(u64::from(all().map(Recovery::replay_file).min().unwrap_or(0)));
    let known: BTreeSet<u32> = all().flat_map(Recovery::extents).collect();
    let used = all().map(Recovery::highest_extent).max().unwrap_or(0);
    let next_extent = drop_orphans(&disk, &known, used)?;
    let options = WalOptions { file_bytes: config.wal_file_bytes, ..WalOptions::new(random_u128()? as u64) };
    let from = WalPosition { file: from, offset: 0 };
    let (wal, report) = storage::recover(&disk, folder_id, options, keep_from, from, &mut |record, at| {
        let recovery = match record.group {
            GroupId(0) => Some(&mut metadata),
            GroupId(id) => queues.get_mut(&id),
        };
        if let Some(recovery) = recovery {
            let body = bytes::Bytes::copy_from_slice(record.body);
            recovery.record(record.kind, record.term, record.index, body, at);
        }
    })?;
    if let Some(first) = report.damage.first() {
        let count = report.damage.len() as u64 + report.damage_unlisted;
        let file = if first.name.is_empty() { format!("log file {}", first.file.0) } else { first.name.clone() };
        return Err(OpenError::Damaged { count, file, offset: first.offset });
    }
    let gaps = std::iter::once(&metadata).chain(queues.values()).filter_map(|r| Some((r.id().0, r.gap()?.0)));
    if let Some((partition, index)) = gaps.min() {
        return Err(OpenError::EntryMissing { partition, index });
    }
    let raft = |id: u32| Config {
        entry_bytes_max: ENTRY_BYTES_MAX,
        uncommitted_bytes_max: UNCOMMITTED_BYTES_MAX,
        // Consumers are served by the shard's own cache; followers, which this would serve, there are none.
        cache_bytes_max: 0,
        ..Config::new(ONLY_NODE, id, u64::from(id))
    };
    let (mut metadata, state) = metadata.finish_log(ONLY_NODE, raft(0), &[ONLY_NODE]);
    let current_file = partition::place::file_u32(wal.durable_file());
    metadata.log_is_at(current_file);
    let topology = match state {
        Some(state) => Topology::decode_snapshot(&state).map_err(|e| OpenError::Topology(e.to_string()))?,
        None => Topology::new(),
    };
    let finished = queues.into_iter().map(|(id, recovery)| {
        let mut partition = recovery.finish(ONLY_NODE, raft(id), &[ONLY_NODE]);
        partition.log_is_at(current_file);
        Started::new(partition)
    });
    let partitions = finished.collect();
    let metadata = Started::new(metadata);
    let mut opened =
        Opened { folder, config, wal, checkpoints, metadata, partitions, topology, boot: 0, next_extent, report };
    opened.take_office()?;
    Ok(opened)
}

/// The extents that a checkpoint needs, for tools that only read; `None` if its payload cannot be read.
pub fn extents_of(group: GroupId, payload: &bytes::Bytes) -> Option<Vec<ExtentId>> {
    if group == GroupId(TOPOLOGY.0) {
        return Some(Vec::new());
    }
    let recovery = Recovery::queues(PartitionId(group.0), Some((payload, 0))).ok()?;
    Some(recovery.extents().into_iter().map(|id| ExtentId(u64::from(id))).collect())
}

type Loaded = (Recovery, BTreeMap<u32, Recovery>);

fn load(checkpoints: &mut CheckpointStore<RealDisk>, partitions: u32) -> Result<Loaded, OpenError> {
    let saved: Vec<u32> = checkpoints.groups().map(|g| g.0).collect();
    let highest = saved.iter().copied().max().unwrap_or(0);
    if highest > partitions {
        tracing::warn!(
            partitions,
            in_the_folder = highest,
            "the data folder has more partitions than are set, and keeps them: queues live in each"
        );
    }
    let count = highest.max(partitions);
    let mut queues = BTreeMap::new();
    let mut metadata = None;
    for id in 0..=count {
        let checkpoint = checkpoints.load_newest(GroupId(id)).map_err(|error| match error.is_damage() {
            true => OpenError::StateLost(error),
            false => OpenError::Storage(error),
        })?;
        let found = checkpoint.as_ref().map(|c| (&c.payload, partition::place::file_u32(c.replay_from.file)));
        match id {
            0 => metadata = Some(Recovery::log(TOPOLOGY, found)?),
            _ => {
                queues.insert(id, Recovery::queues(PartitionId(id), found)?);
            }
        }
    }
    Ok((metadata.expect("partition 0 is always there"), queues))
}

/// Deletes extents that no checkpoint knows: a crash came before they counted. Returns the next number to use, which is
/// above all that are known and all that were `used` before.
fn drop_orphans(disk: &Arc<RealDisk>, known: &BTreeSet<u32>, used: u32) -> Result<u32, OpenError> {
    let mut next = known.last().map_or(0, |last| *last).max(used) + 1;
    if !disk.list("extents").is_ok_and(|names| !names.is_empty()) {
        return Ok(next);
    }
    for id in list_extents(&**disk)? {
        let number = u32::try_from(id.0).unwrap_or(u32::MAX - 1);
        next = next.max(number + 1);
        if !known.contains(&number) {
            remove_extent(&**disk, ExtentId(u64::from(number)))?;
        }
    }
    Ok(next)
}

impl Opened {
    /// Every group elects its only member: one write and one sync for all of them together. Then the logs are applied.
    ///
    /// A queue's rules stand in the topology, not in its own log. So the topology is applied first, and no partition leads
    /// before it knows the rules of its queues.
    fn take_office(&mut self) -> Result<(), OpenError> {
        self.metadata.partition.campaign();
        for Started { partition, .. } in &mut self.partitions {
            partition.replica_mut().group_mut().campaign();
        }
        let mut tail = Tail::new(0);
        let mut knows_rules = false;
        loop {
            let mut replay = Replay { topology: &mut self.topology, refused: None };
            self.metadata.partition.flush(wall_ms(), &mut replay, &mut self.metadata.out);
            if let Some(refused) = replay.refused {
                return Err(OpenError::Topology(refused));
            }
            if !knows_rules && self.metadata.partition.is_leading() {
                self.configure_queues();
                knows_rules = true;
            }
            for started in &mut self.partitions {
                started.with(&mut tail, |partition, cx| partition.flush(cx));
            }
            let mut writes = std::mem::take(&mut self.metadata.out.wal);
            writes.extend(self.partitions.iter_mut().flat_map(|started| std::mem::take(&mut started.out.wal)));
            if writes.is_empty() {
                break;
            }
            let mut placed: Vec<(WalWrite, Vec<Location>)> = Vec::new();
            for mut write in writes {
                let records = std::mem::take(&mut write.records);
                let mut places = Vec::new();
                self.wal.append(&records, &mut places)?;
                let bodies = records.iter().zip(places).filter(|(r, _)| r.kind == RecordKind::Entry).map(|(_, p)| p);
                placed.push((write, bodies.collect()));
            }
            self.wal.sync()?;
            for (write, bodies) in placed {
                if write.partition == TOPOLOGY {
                    let Started { partition, out } = &mut self.metadata;
                    partition.wal_written(write.ticket, &bodies, out);
                    partition.wal_synced(write.ticket, out);
                    continue;
                }
                let started = self.partitions.iter_mut().find(|s| s.partition.id() == write.partition);
                started.expect("who wrote is there").with(&mut tail, |partition, cx| {
                    partition.wal_written(write.ticket, &bodies, cx);
                    partition.wal_synced(write.ticket, cx);
                });
            }
        }
        assert!(self.metadata.partition.is_leading(), "a group of one leads itself");
        assert!(self.partitions.iter().all(|s| s.partition.is_leading()), "a group of one leads itself");
        // The term of the topology's group grows with every start and is synced before it counts.
        let term = self.metadata.partition.replica().group().status().term.0;
        self.boot = u32::try_from(term).unwrap_or(u32::MAX);
        self.drop_orphan_queues();
        Ok(())
    }

    /// Messages of queues that the topology has forgotten: a crash fell between the two halves of a delete.
    fn drop_orphan_queues(&mut self) {
        let mut tail = Tail::new(0);
        let known: BTreeSet<QueueId> = self.topology.queues().map(|q| q.id).collect();
        for started in &mut self.partitions {
            for queue in started.partition.queue_ids() {
                if !known.contains(&queue) {
                    // Goes out with the first turn.
                    started.with(&mut tail, |partition, cx| partition.command(Command::Delete { queue }, cx));
                }
            }
        }
    }

    /// Tells every queue its rules, which no log of a queue keeps.
    fn configure_queues(&mut self) {
        let mut tail = Tail::new(0);
        for queue in self.topology.queues().filter(|queue| !queue.id.is_local() && !queue.rules.is_plain()) {
            if let Some(started) = self.partitions.iter_mut().find(|s| s.partition.id() == queue.partition) {
                let configure = Command::Configure { queue: queue.id, rules: queue.rules.clone() };
                started.with(&mut tail, |partition, cx| partition.command(configure, cx));
            }
        }
    }

    /// Which shard each partition runs on.
    pub fn placement(&self) -> Vec<(PartitionId, usize)> {
        let shards = self.config.shards;
        let queues = self.partitions.iter().enumerate().map(|(i, s)| (s.partition.id(), i % shards));
        std::iter::once((TOPOLOGY, 0)).chain(queues).collect()
    }

    /// Messages that came back, and how many queues hold them.
    pub fn backlog(&self) -> (u64, usize) {
        let partitions = || self.partitions.iter().map(|s| &s.partition);
        let states = || partitions().flat_map(|p| p.queue_ids().into_iter().filter_map(|id| p.queues().queue(id)));
        (states().map(|s| s.runs().live()).sum(), states().filter(|s| s.runs().live() > 0).count())
    }

    /// Starts the disk's threads; gives what [`crate::node::Node::start`] asks for.
    pub fn start(self, wiring: &Wiring) -> Result<(Engine, Arc<dyn TopologyLog>, MakePartitions), std::io::Error> {
        let placement = self.placement();
        let Opened { folder, config, wal, checkpoints, metadata, partitions, next_extent, .. } = self;
        let mailbox = |id: PartitionId| wiring.mailbox(id).expect("a partition runs where it was placed");
        let lists: BTreeMap<PartitionId, Completions> =
            placement.iter().map(|(id, _)| (*id, Completions::default())).collect();
        let routes = || -> BTreeMap<PartitionId, (Completions, Mailbox)> {
            lists.iter().map(|(id, list)| (*id, (list.clone(), mailbox(*id)))).collect()
        };
        let (reader, spares) = (wal.reader(), wal.spare_preparer());
        let upkeep = upkeep_thread::UpkeepThread {
            disk: folder.disk().clone(),
            folder_id: folder.identity().folder_id,
            wal: reader.clone(),
            spares,
            checkpoints,
            next_extent,
            on_quiet: config.on_quiet,
            routes: routes(),
        };
        let (tasks, run_upkeep) = upkeep.prepare();
        let reads = reader_thread::ReaderThread { disk: folder.disk().clone(), wal: reader, routes: routes() };
        let (reads, run_reads) = reads.prepare();
        let prepare = {
            let tasks = Mutex::new(tasks.clone());
            Box::new(move || {
                let tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
                // Without the thread there are no spares; the log makes its files itself then.
                let _ = tasks.send(upkeep_thread::Task::PrepareSpares);
            })
        };
        let wal_routes = placement
            .iter()
            .map(|(id, shard)| (*id, log_writer::Route { completions: lists[id].clone(), shard: *shard }));
        let parts = log_writer::LogParts {
            wal,
            routes: wal_routes.collect(),
            mailboxes: wiring.mailboxes(),
            retained_bytes_max: config.wal_retained_bytes,
            on_quiet: config.on_quiet,
            prepare,
        };
        let (wal, run_wal) = WalHandle::prepare(parts, config.wal_sync_delay_ms);
        let mut threads = vec![std::thread::Builder::new().name("wal".into()).spawn(run_wal)?];
        std::thread::Builder::new().name("reader".into()).spawn(run_reads)?;
        std::thread::Builder::new().name("upkeep".into()).spawn(run_upkeep)?;
        threads.shrink_to_fit();
        let proposals = Proposals::default();
        let waker = wiring.waker(TOPOLOGY).expect("the topology runs on this node");
        let log: Arc<dyn TopologyLog> = Arc::new(MetadataLog { proposals: proposals.clone(), waker });
        let parts = Mutex::new((Some(metadata), partitions));
        let (handle, changes, shards) = (wal.clone(), wiring.changes(), config.shards);
        let senders = Mutex::new((reads, tasks));
        let at_risk: BTreeMap<PartitionId, Arc<AtomicU64>> =
            placement.iter().map(|(id, _)| (*id, Arc::default())).collect();
        let at_risk_of_all = at_risk.values().cloned().collect();
        let set_aside = Arc::new(AtomicU64::new(0));
        let told_aside = set_aside.clone();
        let cache_bytes = config.cache_bytes / shards;
        let read_bytes_max = config.read_ahead_bytes / shards;
        let index_bytes_max = config.wal_index_bytes / shards as u64;
        let lag_files = config.checkpoint_interval_bytes.div_ceil(u64::from(config.wal_file_bytes));
        let checkpoint_lag_files = u32::try_from(lag_files).unwrap_or(u32::MAX);
        let make: MakePartitions = Arc::new(move |shard| {
            let (reads, upkeep) = senders.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let turn = Rc::new(Turn {
                wal: handle.clone(),
                reads,
                upkeep,
                checkpoint_lag_files,
                tail: RefCell::new(Tail::new(cache_bytes).with_read_bytes_max(read_bytes_max)),
                index_bytes_max,
                partitions: placement.iter().filter(|p| p.1 == shard).count() as u64,
                index_bytes: Cell::new(0),
                writes: RefCell::new(Vec::new()),
                commands: Cell::new(0),
                is_left: Cell::new(false),
                set_aside: told_aside.clone(),
            });
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            let mut made: Vec<(PartitionId, Box<dyn Partition>)> = Vec::new();
            if shard == 0 {
                let log = parts.0.take().expect("shard 0 is made once");
                let list = lists[&TOPOLOGY].clone();
                let topology = MetadataPartition::new(log, turn.clone(), list, proposals.clone(), changes.clone());
                made.push((TOPOLOGY, Box::new(topology)));
            }
            let here: BTreeSet<PartitionId> = placement.iter().filter(|p| p.1 == shard).map(|p| p.0).collect();
            let (mine, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut parts.1).into_iter().partition(|s| here.contains(&s.partition.id()));
            parts.1 = others;
            for started in mine {
                let id = started.partition.id();
                made.push((
                    id,
                    Box::new(DurablePartition::new(started, turn.clone(), lists[&id].clone(), at_risk[&id].clone())),
                ));
            }
            made
        });
        let gauges = EngineGauges { wal, at_risk: at_risk_of_all, disk: folder.disk().clone(), set_aside };
        Ok((Engine { gauges, threads, folder }, log, make))
    }
}

/// What the durable half of a node knows of itself, for whoever asks from another thread.
#[derive(Clone)]
pub struct EngineGauges {
    wal: WalHandle,
    at_risk: Arc<[Arc<AtomicU64>]>,
    disk: Arc<RealDisk>,
    set_aside: Arc<AtomicU64>,
}

impl EngineGauges {
    /// Bytes free on the disk of the data folder.
    pub fn free_bytes(&self) -> Option<u64> {
        self.disk.free_bytes().ok()
    }

    /// The sum over all selective queues of what was confirmed, or is about to be, and is not synced.
    pub fn value_at_risk(&self) -> u64 {
        self.at_risk.iter().map(|gauge| gauge.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
    }

    /// Messages that were set aside since the start, because their bytes are damaged on the disk.
    pub fn messages_set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// Bytes written to the log since the start, and syncs made.
    pub fn log_written(&self) -> (u64, u64) {
        let gauges = self.wal.gauges();
        (gauges.written_bytes.load(Ordering::Relaxed), gauges.syncs.load(Ordering::Relaxed))
    }

    /// How long syncs took.
    pub fn sync_times(&self) -> SyncTimes {
        self.wal.gauges().sync_times.read()
    }

    /// The disk is full and writes wait.
    pub fn is_disk_full(&self) -> bool {
        self.wal.gauges().is_full.load(Ordering::Relaxed) != 0
    }
}

impl Engine {
    /// What may be asked while it runs, from any thread.
    pub fn gauges(&self) -> &EngineGauges {
        &self.gauges
    }

    /// Syncs what is written and ends the log's thread. The shards have ended before.
    pub fn stop(self) {
        self.gauges.wal.stop();
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("the log's thread panicked");
            }
        }
        // The folder is another process's to open from here on.
        drop(self.folder);
    }
}

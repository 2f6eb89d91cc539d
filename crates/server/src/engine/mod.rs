//! The durable half of a node: opens its data folder, brings its partitions back, runs the disk's
//! threads.
//!
//! ```text
//! shard threads ──WalWrite──▶ wal thread ──Written, Synced──▶ shard   (one write, one sync for all; what is little and quick
//!                                                                      the shard writes itself)
//!               ──Read──────▶ reader thread ──Read──────────▶ shard   (cold messages)
//!               ──Job───────▶ upkeep thread ──Extent, Checkpoint──▶ shard
//! ```
//!
//! Invariant: when [`open`] returns, every partition that is whole leads and has applied all of its
//! log, so that the first client sees everything that was ever confirmed there; nothing was written
//! but what a new term costs. The others are quarantined: nothing is said in their name.

#[cfg(test)]
mod hanging_sync;
mod metadata;
mod reader_thread;
mod shard_disk;
mod upkeep_thread;
mod wal_thread;

use crate::node::{MakePartitions, ShardParts, Wiring};
use crate::shard::Mailbox;
use crate::topology_log::TopologyLog;
use broker::PartitionId;
use broker::topology::{DEDICATED_PARTITIONS_MAX, POOL_PARTITIONS_OF_ALL};
use metadata::{MetadataLog, Proposals};
use node::{
    Brought, Completion, Completions, Listener, Load, LogGauges, LogWriter, Member, NodeId, OpenExtents,
    QuarantinedMember, QueueMember, Reader, RoomLeft, Share, ShareLimits, Started, TOPOLOGY, Task, TopologyMember,
    Upkeep, VacantMember,
};
use partition::Tail;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use storage::{DataFolder, Disk, NodeRecord, RealDisk, StorageError, WalOptions};
use switch::Parcel;
use tokio::sync::Notify;

pub(crate) use metadata::Decided;
pub use node::{
    ASIDE_FOLDER, AloneReport, BOUNDS_US, ClusterFile, Durations, OpenError, Others, RepairReport, RoomShort, Stage,
    SyncTimes, Uncounted, needs_of, next_aside,
};
pub use partition::machine::WrittenByNewer;
pub(crate) use shard_disk::{ShardDisk, wall_ms, wall_us};
use wal_thread::WalHandle;

/// Places for partitions that come to be in the stead of others that went with their last node.
const PLACES_SPARE: u32 = 48;

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
    /// With less free on the disk, publishers are blocked, and what is not needed is not written.
    pub disk_free_min_bytes: u64,
    /// Other nodes have members of the groups, too.
    pub has_peers: bool,
    /// Called on the log's thread when traffic ends.
    pub on_quiet: fn(),
}

/// An opened data folder with all its partitions, before the node runs.
pub struct Opened {
    folder: DataFolder<RealDisk>,
    config: EngineConfig,
    /// What it holds.
    pub brought: Brought<RealDisk>,
}

/// The disk's threads of a running node.
pub struct Engine {
    gauges: EngineGauges,
    threads: Vec<JoinHandle<()>>,
    folder: DataFolder<RealDisk>,
}

/// Whom a partition's completions go to, for the log.
pub(crate) struct Route {
    completions: Completions,
    shard: usize,
}

/// The same, for threads that tell one partition at a time.
pub(crate) struct Routes(BTreeMap<PartitionId, (Completions, Mailbox)>);

impl Listener for Routes {
    fn tell(&mut self, partition: PartitionId, completion: Completion, is_awaited: bool) {
        let (completions, mailbox) = &self.0[&partition];
        if !is_awaited {
            completions.put(completion);
        } else if completions.put_awaited(completion) {
            mailbox.cross(Parcel::Wake(partition));
        }
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

/// A number that no other boot of this machine has.
fn boot() -> Result<u128, OpenError> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match u128::from_str_radix(&id.trim().replace('-', ""), 16) {
        Ok(boot) => Ok(boot),
        // Every start counts as one after a power cut then.
        Err(_) => random_u128(),
    }
}

/// Brings the partitions of a data folder back.
///
/// - Cost: the checkpoints, the log since the oldest of them, one sync. Backlogs are not read.
/// - Errors: each is one line that says what to do; nothing is changed on the disk then.
pub fn open(mut folder: DataFolder<RealDisk>, config: EngineConfig) -> Result<Opened, OpenError> {
    let options = WalOptions { file_bytes: config.wal_file_bytes, ..WalOptions::new(random_u128()? as u64) };
    let brought = match config.has_peers {
        true => node::bring_back_among_others(&folder, options, boot()?, wall_ms())?,
        false => match node::bring_back(&mut folder, config.partitions, options, wall_ms()) {
            // Its groups have members on other nodes: that it is alone is what cannot be.
            Err(error @ OpenError::Contradictory { .. }) => {
                refuse_without_cluster_file(&folder)?;
                return Err(error);
            }
            brought => brought?,
        },
    };
    for (id, aside) in &brought.quarantined {
        let queues = brought.topology.queues().filter(|queue| queue.partition == *id).count();
        aside.tell(*id, queues, config.has_peers);
    }
    Ok(Opened { folder, config, brought })
}

/// Founds the groups of a node that is alone in a new folder, and no more.
pub(crate) fn found_alone(
    folder: &mut DataFolder<RealDisk>,
    partitions: u32,
    wal_file_bytes: u32,
) -> Result<(), OpenError> {
    let options = WalOptions { file_bytes: wal_file_bytes, ..WalOptions::new(random_u128()? as u64) };
    node::bring_back(folder, partitions, options, wall_ms()).map(drop)
}

/// Goes on without what is damaged on a disk; see [`node::repair`].
pub fn repair<D: Disk>(
    disk: &Arc<D>,
    folder_id: u128,
    node: NodeRecord,
    others: Others,
) -> Result<RepairReport, OpenError> {
    node::repair(disk, folder_id, node, random_u128()? as u64, others)
}

/// Makes the file `cluster` of a folder anew if it is lost; see [`node::make_cluster_file`].
pub fn make_cluster_file<D: Disk, O: Disk>(
    folder: &DataFolder<D>,
    other: Option<&Arc<O>>,
) -> Result<ClusterFile, OpenError> {
    node::make_cluster_file(folder, other, random_u128()? as u64)
}

/// Refuses a folder without a file `cluster` whose node is one of several.
pub(crate) fn refuse_without_cluster_file<D: Disk>(folder: &DataFolder<D>) -> Result<(), OpenError> {
    match node::is_one_of_several(folder, random_u128()? as u64)? {
        true => Err(folder.cluster_file_lost("is gone".to_owned()).into()),
        false => Ok(()),
    }
}

/// Makes a folder that of the only node of a cluster; see [`node::go_on_alone`].
pub fn go_on_alone<D: Disk>(folder: &DataFolder<D>) -> Result<AloneReport, OpenError> {
    node::go_on_alone(folder, random_u128()?, random_u128()? as u64)
}

impl Opened {
    /// Which shard each partition runs on.
    pub fn placement(&self) -> Vec<(PartitionId, usize)> {
        let whole = self.brought.partitions.iter().map(|started| started.partition.id());
        let here: BTreeSet<PartitionId> = whole.chain(self.quarantined()).collect();
        let vacant = self.vacant(&here);
        node::placement(here, vacant, self.config.shards)
    }

    /// The places for partitions of which this node has nothing: those that there are elsewhere, and as
    /// many as may come to be.
    fn vacant(&self, here: &BTreeSet<PartitionId>) -> Vec<PartitionId> {
        if !self.config.has_peers {
            return Vec::new();
        }
        let known = self.brought.topology.partitions().map(|(id, _)| id);
        let last = known.chain(here.iter().copied()).max().map_or(0, |last| last.0);
        let all = (1..=last + POOL_PARTITIONS_OF_ALL + DEDICATED_PARTITIONS_MAX + PLACES_SPARE).map(PartitionId);
        all.filter(|id| !here.contains(id)).collect()
    }

    /// The partitions that are damaged: they serve nobody.
    pub fn quarantined(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.brought.quarantined.keys().copied()
    }

    /// Messages that came back, and how many queues hold them.
    pub fn backlog(&self) -> (u64, usize) {
        let partitions = || self.brought.partitions.iter().map(|s| &s.partition);
        let states = || partitions().flat_map(|p| p.queue_ids().into_iter().filter_map(|id| p.queues().queue(id)));
        (states().map(|s| s.runs().live()).sum(), states().filter(|s| s.runs().live() > 0).count())
    }

    /// Starts the disk's threads; gives what [`crate::node::Node::start`] asks for.
    pub fn start(self, wiring: &Wiring) -> Result<(Engine, Arc<dyn TopologyLog>, MakePartitions), std::io::Error> {
        let placement = self.placement();
        let member = NodeId(u64::from(self.brought.life.node));
        let Opened { folder, config, brought } = self;
        let has_peers = config.has_peers;
        let forwards = has_peers.then_some(brought.life);
        let Brought { wal, checkpoints, metadata, partitions, quarantined, next_extent, memory, .. } = brought;
        let mailbox = |id: PartitionId| wiring.mailbox(id).expect("a partition runs where it was placed");
        let lists: BTreeMap<PartitionId, Completions> =
            placement.iter().map(|(id, _)| (*id, Completions::default())).collect();
        let routes = || -> Routes {
            let to = |(id, list): (&PartitionId, &Completions)| (*id, (list.clone(), mailbox(*id)));
            Routes(lists.iter().map(to).collect())
        };
        let (reader, spares, epoch) = (wal.reader(), wal.spare_preparer(), Instant::now());
        let (disk, open) = ((folder.disk().clone(), folder.identity().folder_id), OpenExtents::default());
        let upkeep =
            Upkeep::new(disk, reader.clone(), spares, checkpoints, open.clone(), next_extent).leaving(RoomLeft {
                free_min_bytes: config.disk_free_min_bytes,
                log_file_bytes: u64::from(config.wal_file_bytes),
            });
        let upkeep = upkeep_thread::UpkeepThread { upkeep, epoch, on_quiet: config.on_quiet, routes: routes() };
        let (tasks, run_upkeep) = upkeep.prepare();
        let (reads, run_reads) = reader_thread::prepare(Reader::new(folder.disk().clone(), reader, open), routes());
        let grown = Arc::new(Notify::new());
        let prepare = {
            let (tasks, grown) = (Mutex::new(tasks.clone()), grown.clone());
            Box::new(move || {
                grown.notify_one();
                let tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
                // Without the thread there are no spares; the log makes its files itself then.
                let _ = tasks.send(Task::PrepareSpares);
            })
        };
        let wal_routes =
            placement.iter().map(|(id, shard)| (*id, Route { completions: lists[id].clone(), shard: *shard }));
        let members = placement.iter().map(|(id, _)| *id).collect();
        let gauges = Arc::new(LogGauges::default());
        let parts = wal_thread::LogParts {
            writer: LogWriter::new(wal, members, config.wal_retained_bytes, gauges.clone()).with_memory(memory),
            routes: wal_routes.collect(),
            mailboxes: wiring.mailboxes(),
            epoch,
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
        let used: BTreeSet<PartitionId> =
            partitions.iter().map(|started| started.partition.id()).chain(quarantined.keys().copied()).collect();
        let parts = Mutex::new((Some(metadata), partitions));
        let (handle, changes, shards) = (wal.clone(), wiring.changes(), config.shards);
        let senders = Mutex::new((reads, tasks));
        let at_risk: BTreeMap<PartitionId, Arc<AtomicU64>> =
            placement.iter().map(|(id, _)| (*id, Arc::default())).collect();
        let at_risk_of_all = at_risk.values().cloned().collect();
        let set_aside = Arc::new(AtomicU64::new(0));
        let told_aside = set_aside.clone();
        let halted = Arc::<OnceLock<String>>::default();
        let told_halted = halted.clone();
        let cache_bytes = config.cache_bytes / shards;
        let read_bytes_max = config.read_ahead_bytes / shards;
        let index_bytes_max = config.wal_index_bytes / shards as u64;
        let lag_files = config.checkpoint_interval_bytes.div_ceil(u64::from(config.wal_file_bytes));
        let checkpoint_lag_files = u32::try_from(lag_files).unwrap_or(u32::MAX);
        let make: MakePartitions = Arc::new(move |shard| {
            let (reads, upkeep) = senders.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let here: BTreeSet<PartitionId> = placement.iter().filter(|p| p.1 == shard).map(|p| p.0).collect();
            let is_used = |id: &&PartitionId| **id == TOPOLOGY || used.contains(*id);
            let partitions = here.iter().filter(is_used).count() as u64;
            let limits = ShareLimits { checkpoint_lag_files, index_bytes_max, partitions };
            let tail = Tail::new(cache_bytes).with_read_bytes_max(read_bytes_max);
            let share = Share::new(tail, limits, gauges.clone());
            let set_aside = told_aside.clone();
            let halted = told_halted.clone();
            let disk = ShardDisk {
                wal: handle.clone(),
                reads,
                upkeep,
                left: None,
                load: Load::default(),
                round: None,
                set_aside,
                halted,
            };
            let disk = Some(disk);
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            let mut members = Vec::new();
            if shard == 0 {
                let Started { partition, out } = parts.0.take().expect("shard 0 is made once");
                let decided = Decided::new(changes.clone(), proposals.clone());
                let list = lists[&TOPOLOGY].clone();
                let member = TopologyMember::new(partition, out, decided, list, has_peers, forwards);
                members.push((TOPOLOGY, Member::Topology(Box::new(member))));
            }
            for Started { partition, out } in parts.1.extract_if(.., |s| here.contains(&s.partition.id())) {
                let id = partition.id();
                let member = QueueMember::new(partition, out, lists[&id].clone(), at_risk[&id].clone(), has_peers);
                members.push((id, Member::Queues(Box::new(member))));
            }
            for (id, aside) in quarantined.iter().filter(|(id, _)| here.contains(id)) {
                let member = QuarantinedMember::new(*id, aside.needs_file, lists[id].clone());
                members.push((*id, Member::Quarantined(Box::new(member))));
            }
            for id in here.iter().filter(|id| **id != TOPOLOGY && !used.contains(*id)) {
                let vacant = VacantMember::new(*id, member, lists[id].clone(), at_risk[id].clone());
                members.push((*id, Member::Vacant(Box::new(vacant))));
            }
            // As they are placed: in the order of their numbers.
            members.sort_by_key(|(id, _)| *id);
            ShardParts { members, share, disk }
        });
        let disk = folder.disk().clone();
        let gauges = EngineGauges { wal, at_risk: at_risk_of_all, disk, set_aside, halted, grown };
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
    halted: Arc<OnceLock<String>>,
    grown: Arc<Notify>,
}

impl EngineGauges {
    /// Takes the room on the disk that the next start may need; whether it is there.
    pub(crate) fn keep_reserve(&self) -> bool {
        storage::data_folder::keep_reserve(&*self.disk)
            .inspect_err(|error| tracing::debug!(%error, "no room is kept for the next start"))
            .is_ok()
    }

    /// Bytes free on the disk of the data folder.
    pub fn free_bytes(&self) -> Option<u64> {
        self.disk.free_bytes().ok()
    }

    /// Ready when the log has begun a file since it was asked last, or given some up: it takes its room
    /// on the disk by whole files.
    pub(crate) async fn log_has_grown(&self) {
        self.grown.notified().await;
    }

    /// The sum over all selective queues of what was confirmed, or is about to be, and is not
    /// synced.
    pub fn value_at_risk(&self) -> u64 {
        self.at_risk.iter().map(|gauge| gauge.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
    }

    /// Messages that were set aside since the start, because their bytes are damaged on the disk.
    pub fn messages_set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// Why this node takes no part in the topology's group any more, and what to do; `None` where it does.
    pub(crate) fn halted(&self) -> Option<&str> {
        self.halted.get().map(String::as_str)
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

    /// The same of writes and of syncs, to be added up and subtracted.
    pub fn log_times(&self) -> (Durations, Durations) {
        let gauges = self.wal.gauges();
        (gauges.write_times.durations(), gauges.sync_times.durations())
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

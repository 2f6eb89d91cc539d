//! Starting a node over what its disk holds, as the server does: folder, checkpoints, log, partitions, leftovers.
//!
//! Invariant: what the recovery reports as damaged was damaged on purpose; without such a fault it is a failure of the run.

use super::files::{self, time};
use super::{
    Happening, INDEX_BYTES, Node, RETAINED_BYTES_MAX, Running, SYNC_DELAY_MAX, StepOutput, TOPOLOGY, TRANSIENT,
    topology,
};
use crate::bug::Bug;
use crate::schedule::{MS, Micros};
use broker::{ConsumerKey, PartitionId};
use bytes::Bytes;
use consensus::{Config, LogIndex, Term};
use node::{
    Batch, Completions, LogGauges, LogQueue, LogWriter, Member, QueueMember, Reader, Shard, Share, ShareLimits,
    TopologyMember, Upkeep, Waits,
};
use partition::checkpoint::CheckpointDamaged;
use partition::machine::{FIRST_MACHINE_VERSION, MACHINE_VERSION};
use partition::place::file_u32;
use partition::{Command, Context, Outlets, Outputs, QueuePartition, Recovery, Tail};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use storage::extent::{list_extents, remove_extent};
use storage::wal::has_log;
use storage::{
    Checkpoint, CheckpointStore, DataFolder, FileNo, FolderIdentity, GroupId, Location, RecordKind, StorageError,
    WalOptions, WalPosition, recover,
};

/// Entries that a partition's log holds after a start, with the applied index it starts from.
pub type Restored = (LogIndex, Vec<(LogIndex, Term, Bytes)>);

/// Nobody consumes before the first turn.
struct Nobody;

impl Outlets for Nobody {
    fn room(&mut self, _: ConsumerKey) -> usize {
        0
    }
}

/// What the checkpoint before the newest one needs stays, as on a server.
fn with_older(recovery: Result<Recovery, CheckpointDamaged>, older: Option<Checkpoint>) -> Recovery {
    let mut recovery = recovery.expect("a checkpoint that was saved can be read");
    if let Some(older) = older {
        let kept = recovery.keep_for(&older.payload, file_u32(older.replay_from.file));
        kept.expect("a checkpoint that was saved can be read");
    }
    recovery
}

/// A record of the log, as recovery shows it.
type Shown = (GroupId, RecordKind, u64, u64, Bytes, Location);

impl Node {
    /// The newest version of the queues' machine that its build knows: the next one beyond what exists, once it is upgraded.
    pub(super) fn can(&self) -> u32 {
        let is_upgraded = self.life > 0 || (self.settings.seed + self.id.0).is_multiple_of(3);
        MACHINE_VERSION + u32::from(self.settings.upgrades && is_upgraded)
    }

    /// The highest version that a partition's machine works by here.
    pub fn machine_version(&self) -> u32 {
        let partitions = self.running.iter().flat_map(Running::all_queues);
        partitions.map(|partition| partition.queues().machine_version()).max().unwrap_or(FIRST_MACHINE_VERSION)
    }

    pub(super) fn folder_id(&self) -> u128 {
        u128::from(self.settings.seed) << 64 | u128::from(self.id.0)
    }

    /// Comes up after a crash, or for the first time. What each partition found is handed back, in their order.
    ///
    /// - Errors: a crash in the middle of it; damage that nobody caused is a panic.
    pub fn start(&mut self, now: Micros, out: &mut StepOutput) -> Result<Vec<Restored>, StorageError> {
        assert!(self.running.is_none(), "a node is started once a life");
        self.now = now;
        let (running, restored) = self.open_files()?;
        self.running = Some(running);
        self.said_can = self.can();
        let first = self.random.below(150) * MS;
        out.later.push((first, Happening::Forgot));
        // The ticks of the members' clocks begin with the first turn.
        out.later.push((first, Happening::Turn));
        self.look_at_log(out);
        Ok(restored)
    }

    fn open_files(&mut self) -> Result<(Running, Vec<Restored>), StorageError> {
        let folder_id = self.folder_id();
        let identity = FolderIdentity {
            node_name: format!("leveret@n{}", self.id.0),
            cluster_id: u128::from(self.settings.seed),
            folder_id,
        };
        let folder = DataFolder::open(self.disk.clone(), identity, self.life)?;
        let life = folder.begin_life(u128::from(self.boot))?;
        assert!(has_log(&*self.disk)?, "nobody took the log of {} away", self.id);
        let mut checkpoints = CheckpointStore::open(&self.disk, folder_id)?;
        let mut recoveries = Vec::new();
        for id in &self.settings.partitions {
            let pair = checkpoints.load_pair(GroupId(id.0))?;
            let (newest, older) = pair.map_or((None, None), |pair| (Some(pair.newest), pair.older));
            let newest = newest.map(|c| (self.read_checkpoint(c.payload), file_u32(c.replay_from.file)));
            let recovery =
                Recovery::queues_by(*id, newest.as_ref().map(|(payload, file)| (payload, *file)), self.can());
            recoveries.push(with_older(recovery, older));
        }
        if self.settings.declares {
            let pair = checkpoints.load_pair(GroupId(TOPOLOGY.0))?;
            let (newest, older) = pair.map_or((None, None), |pair| (Some(pair.newest), pair.older));
            let newest = newest.map(|c| (c.payload, file_u32(c.replay_from.file)));
            let recovery = Recovery::log(TOPOLOGY, newest.as_ref().map(|(payload, file)| (payload, *file)));
            recoveries.push(with_older(recovery, older));
        }
        let from = recoveries.iter().map(Recovery::replay_file).min().unwrap_or(0);
        let keep_from = recoveries.iter().map(Recovery::needs_file).min().unwrap_or(0);
        let from =
            if from == 0 { WalPosition::START } else { WalPosition { file: FileNo(u64::from(from)), offset: 0 } };
        let mut options = WalOptions::new(self.random.next());
        options.file_bytes = self.settings.file_bytes;
        let mut shown: Vec<Shown> = Vec::new();
        let (wal, report) =
            recover(&self.disk, folder_id, options, FileNo(u64::from(keep_from)), from, &mut |record, at| {
                let body = Bytes::copy_from_slice(record.body);
                shown.push((record.group, record.kind, record.term, record.index, body, at));
            })?;
        let needs: Vec<_> = recoveries.iter().map(|r| (r.replay_file(), r.needs_file(), r.applied())).collect();
        assert!(
            report.damage.is_empty(),
            "damage that nobody caused on {}: {:?}; replay, needs, applied: {needs:?}; {report:?}",
            self.id,
            report.damage
        );
        if self.settings.bug == Some(Bug::TailIsForgotten) && self.life > 1 {
            shown.truncate(shown.len() - shown.len().min(3));
        }
        for (group, kind, term, index, body, at) in shown {
            let place = self.settings.place_of(PartitionId(group.0)).expect("a partition of this node");
            recoveries[place - 1].record(kind, term, index, body, at);
        }
        let next_extent = self.sweep_extents(&recoveries)?;
        for recovery in recoveries.iter_mut().filter(|r| r.id() != TOPOLOGY) {
            // Nothing in the topology counts before it is synced.
            if life.forgot().contains(recovery.id().0) && self.settings.bug != Some(Bug::LossIsForgotten) {
                recovery.may_have_forgotten(life.start());
            }
        }
        let restored: Vec<Restored> = recoveries.iter().map(|r| (r.applied(), r.entries())).collect();
        let topology = self.settings.declares.then(|| {
            let recovery = recoveries.pop().expect("the topology's stands behind all others");
            let (mut log, state) = recovery
                .finish_log(self.id, self.config(TOPOLOGY.0), &self.settings.members)
                .expect("what was written is sound");
            log.log_is_at(file_u32(wal.durable_file()));
            (log, topology::Decided::new(state.as_ref(), self.settings.bug))
        });
        let partitions: Vec<_> = recoveries
            .into_iter()
            .map(|r| {
                let config = self.config(r.id().0);
                let mut partition =
                    r.finish(self.id, config, &self.settings.members).expect("what was written is sound");
                partition.log_is_at(file_u32(wal.durable_file()));
                let number =
                    self.settings.partitions.iter().position(|p| *p == partition.id()).expect("one of this node");
                let ruled = self.known[number].iter().filter_map(|(queue, rules)| Some((queue, rules.as_ref()?)));
                for (queue, rules) in ruled {
                    let (mut tail, mut out) = (Tail::new(0), Outputs::default());
                    let mut cx = Context { now_ms: 0, tail: &mut tail, outlets: &mut Nobody, out: &mut out };
                    partition.command(Command::Configure { queue: *queue, rules: self.told(rules) }, &mut cx);
                }
                partition
            })
            .collect();
        let (disk, gauges) = (self.disk.clone(), Arc::new(LogGauges::default()));
        let (reader, spares) = (wal.reader(), wal.spare_preparer());
        let ids = partitions.iter().map(QueuePartition::id).chain(topology.as_ref().map(|_| TOPOLOGY));
        let lists: BTreeMap<PartitionId, Completions> = ids.map(|id| (id, Completions::default())).collect();
        let count = partitions.len();
        // Where nothing is looked after, the log never has to be kept short.
        let (index, lag, retained) = match self.settings.upkeep {
            true if self.random.chance(50) => (INDEX_BYTES * count as u64, 1, RETAINED_BYTES_MAX),
            true => (u64::MAX, 1, RETAINED_BYTES_MAX),
            false => (u64::MAX, u32::MAX, u64::MAX),
        };
        let limits = ShareLimits { checkpoint_lag_files: lag, index_bytes_max: index, partitions: count as u64 };
        let share = Share::new(Tail::new(self.settings.tail_bytes), limits, gauges.clone());
        let queues = partitions.into_iter().map(|partition| {
            let (id, at_risk) = (partition.id(), Arc::default());
            let member = QueueMember::new(partition, Outputs::default(), lists[&id].clone(), at_risk, true);
            (id, Member::Queues(Box::new(member)))
        });
        let topology = topology.map(|(log, decided)| {
            let list = lists[&TOPOLOGY].clone();
            let member = TopologyMember::new(log, Outputs::default(), decided, list, true);
            (TOPOLOGY, Member::Topology(Box::new(member)))
        });
        let shard = Shard::new(TRANSIENT, queues.chain(topology).collect(), share);
        let running = Running {
            folder,
            folder_life: life,
            queue: LogQueue::new(time(SYNC_DELAY_MAX), gauges.clone()),
            writer: LogWriter::new(wal, lists.keys().copied().collect(), retained, gauges),
            author: None,
            batch: Batch::default(),
            told: files::Told::default(),
            sync_takes: if self.random.chance(50) { (200, 3_000) } else { (50, 600) },
            reader: Reader::new(disk.clone(), reader.clone()),
            upkeep: Upkeep::new((disk, folder_id), reader, spares, checkpoints, next_extent),
            tasks: VecDeque::new(),
            is_upkeep_due: false,
            waits: RefCell::new(Waits::new(shard.len())),
            senders: (0..shard.len()).map(|_| VecDeque::new()).collect(),
            shard,
            lists,
            serving: vec![None; count],
            commands: VecDeque::new(),
            turn_due: true,
            due_at: None,
            bug: self.settings.bug,
            reading: 0,
            sessions: BTreeMap::new(),
            channels: BTreeMap::new(),
            stalled: BTreeSet::new(),
            consumed: BTreeMap::new(),
            kept: None,
            latest_ms: 0,
        };
        Ok((running, restored))
    }

    fn read_checkpoint(&self, payload: Bytes) -> Bytes {
        if self.settings.bug != Some(Bug::CheckpointIsAltered) || self.life < 1 {
            return payload;
        }
        let mut bytes = payload.to_vec();
        // The time stands right behind the head, whose last part says how long it is.
        let members = u32::from_le_bytes(bytes[33..37].try_into().expect("four bytes")) as usize;
        bytes[37 + members + 4] ^= 1;
        bytes.into()
    }

    fn config(&self, group: u32) -> Config {
        let config = Config::new(self.id, group, self.settings.seed ^ u64::from(self.life));
        if !self.settings.tight {
            return config;
        }
        Config {
            message_bytes_max: 4 << 10,
            inflight_messages_max: 4,
            inflight_bytes_max: 8 << 10,
            uncommitted_bytes_max: 64 << 10,
            committed_bytes_max: 16 << 10,
            cache_bytes_max: 8 << 10,
            ..config
        }
    }

    /// Removes extents that no checkpoint knows; returns the number of the next one.
    fn sweep_extents(&self, recoveries: &[Recovery]) -> Result<u32, StorageError> {
        let known: BTreeSet<u32> = recoveries.iter().flat_map(Recovery::extents).collect();
        let used = recoveries.iter().map(Recovery::highest_extent).max().unwrap_or(0);
        let mut next = known.last().map_or(0, |last| *last).max(used) + 1;
        for id in list_extents(&*self.disk)? {
            let number = u32::try_from(id.0).expect("extents are numbered in 32 bits");
            next = next.max(number + 1);
            if !known.contains(&number) {
                remove_extent(&*self.disk, id)?;
            }
        }
        Ok(next)
    }
}

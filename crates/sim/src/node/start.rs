//! Starting a node over what its disk holds. What the disk has of each group is read by the
//! server's own code.
//!
//! Invariant: what the recovery reports as damaged was damaged on purpose; without such a fault it
//! is a failure of the run.

use super::files::{self, time};
use super::{
    Happening, INDEX_BYTES, Node, RETAINED_BYTES_MAX, Running, SYNC_DELAY_MAX, StepOutput, TOPOLOGY, Thread, topology,
};
use crate::bug::Bug;
use crate::schedule::{MS, Micros};
use broker::topology::Topology;
use broker::{ConsumerKey, NodeLife, NodeNumber, PartitionId};
use bytes::Bytes;
use consensus::{Config, LogIndex, Term};
use node::{
    Batch, Begin, Brought, Completions, EndingMember, Groups, Load, LogGauges, LogQueue, LogWriter, Member, OpenError,
    OpenExtents, Quarantined, QuarantinedMember, QueueMember, Reader, RoomLeft, Shard, Share, ShareLimits,
    TopologyMember, Upkeep, VacantMember, Waits, drop_orphans,
};
use partition::machine::{FIRST_MACHINE_VERSION, MACHINE_VERSION};
use partition::place::file_u32;
use partition::{Command, Context, LogPartition, Outlets, Outputs, QueuePartition, Recovery, Tail, joining_checkpoint};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use storage::wal::has_log;
use storage::{
    CheckpointStore, DataFolder, FaultyDisk, FileNo, FolderIdentity, GroupId, Life, RecordKind, StorageError, Wal,
    WalOptions, WalPosition, recover,
};
use switch::Directory;

/// Entries that a partition's log holds after a start, with the applied index it starts from.
pub type Restored = (LogIndex, Vec<(LogIndex, Term, Bytes)>);

/// The partition that is founded with the nodes, where others come to be by the topology.
const FOUNDED: PartitionId = PartitionId(1);

/// What the disk of a node holds.
struct Found {
    wal: Wal<FaultyDisk>,
    checkpoints: CheckpointStore<FaultyDisk>,
    next_extent: u32,
    /// Each member with what it has asked for meanwhile.
    topology: Option<(LogPartition, Outputs, topology::Decided)>,
    queues: Vec<(QueuePartition, Outputs)>,
    quarantined: BTreeMap<u32, Quarantined>,
    ended: BTreeSet<u32>,
}

/// Nobody consumes before the first turn.
struct Nobody;

impl Outlets for Nobody {
    fn room(&mut self, _: ConsumerKey) -> usize {
        0
    }
}

/// What the disk says. Nothing else can be wrong that nobody caused.
fn of_disk(error: OpenError) -> StorageError {
    match error {
        OpenError::Storage(error) => error,
        other => panic!("damage that nobody caused: {other}"),
    }
}

impl Node {
    /// The newest version of the queues' machine that its build knows: the next one beyond what
    /// exists, once it is upgraded.
    pub(super) fn can(&self) -> u32 {
        let is_upgraded = self.life > 0 || (self.settings.seed + self.id.0).is_multiple_of(3);
        MACHINE_VERSION + u32::from(self.settings.upgrades && is_upgraded)
    }

    /// The highest version that a partition's machine works by here.
    pub fn machine_version(&self) -> u32 {
        let partitions = self.running.iter().flat_map(Running::all_queues);
        partitions.map(|(_, partition)| partition.queues().machine_version()).max().unwrap_or(FIRST_MACHINE_VERSION)
    }

    /// Its name.
    pub fn name(&self) -> String {
        format!("leveret@n{}", self.id.0)
    }

    /// Its data folder, by which it is known again.
    pub fn folder_id(&self) -> u128 {
        u128::from(self.settings.seed) << 64 | u128::from(self.id.0)
    }

    /// Comes up after a crash, or for the first time. What each partition found is handed back, in
    /// their order.
    ///
    /// - Errors: a crash in the middle of it; damage that nobody caused is a panic.
    pub fn start(&mut self, now: Micros, out: &mut StepOutput) -> Result<Vec<Option<Restored>>, StorageError> {
        assert!(self.running.is_none(), "a node is started once a life");
        self.now = now;
        let (running, restored) = self.open_files()?;
        self.running = Some(running);
        self.said_can = self.can();
        let first = self.random.below(150) * MS;
        out.later.push((first, Happening::Forgot));
        // The ticks of the members' clocks begin with the first turn.
        let shards = 0..self.shards;
        out.later.extend(shards.map(|shard| (first, Happening::Turn(shard))));
        self.look_at_log(out);
        Ok(restored)
    }

    fn open_files(&mut self) -> Result<(Running, Vec<Option<Restored>>), StorageError> {
        let folder_id = self.folder_id();
        let identity = FolderIdentity { node_name: self.name(), cluster_id: u128::from(self.settings.seed), folder_id };
        if self.settings.by_record {
            return Ok((self.open_by_record(identity)?, Vec::new()));
        }
        let folder = DataFolder::open(self.disk.clone(), identity, self.life)?;
        let life = folder.begin_life(u128::from(self.boot))?;
        assert!(has_log(&*self.disk)?, "nobody took the log of {} away", self.id);
        if self.settings.alone {
            return Ok((self.open_alone(folder, life)?, Vec::new()));
        }
        let mut checkpoints = CheckpointStore::open(&self.disk, folder_id)?;
        let ids = self.group_ids();
        let mut options = WalOptions::new(self.random.next());
        options.file_bytes = self.settings.file_bytes;
        let begin = |id: u32, newest: Option<(&Bytes, u32)>| match PartitionId(id) {
            TOPOLOGY => Recovery::log(TOPOLOGY, newest),
            id => {
                let newest = newest.map(|(payload, file)| (self.read_checkpoint(payload.clone()), file));
                Recovery::queues_by(id, newest.as_ref().map(|(payload, file)| (payload, *file)), self.can())
            }
        };
        if !self.settings.members.contains(&self.id) && self.settings.bug != Some(Bug::JoinerFounds) {
            self.wait_to_join(&mut checkpoints)?;
        }
        // What comes to be by the topology is here once this node has begun there.
        let there: BTreeSet<u32> = checkpoints.groups().map(|group| group.0).collect();
        let is_here = |id: &u32| !self.settings.pools || *id <= FOUNDED.0 || there.contains(id);
        let mut groups =
            Groups::load(&mut checkpoints, ids.iter().copied().filter(is_here), &begin).map_err(of_disk)?;
        let (wal, report) = groups.read_log(&self.disk, folder_id, options, true).map_err(of_disk)?;
        let ended = groups.finish_endings(&mut checkpoints).map_err(of_disk)?;
        let there = groups.look_for_extents(&*self.disk, folder_id).map_err(of_disk)?;
        let Groups { whole, quarantined, .. } = &groups;
        let is_meant = self.settings.has_rot;
        assert!(
            is_meant || report.damage.is_empty() && quarantined.is_empty(),
            "damage that nobody caused on {}: {quarantined:?}, {report:?}, applied: {:?}",
            self.id,
            whole.values().map(|r| (r.id(), r.replay_file(), r.needs_file(), r.applied())).collect::<Vec<_>>()
        );
        let (known, used) = groups.extents();
        let next_extent = drop_orphans(&*self.disk, &there, &known, used, quarantined.is_empty()).map_err(of_disk)?;
        let mut whole = groups.whole;
        if self.settings.bug == Some(Bug::TailIsForgotten) && self.life > 1 {
            for _ in 0..3 {
                let last = whole.values_mut().max_by_key(|r| r.last_place().map(|at| (at.file, at.offset)));
                last.into_iter().for_each(Recovery::forget_last);
            }
        }
        let mut quarantined = groups.quarantined;
        if self.settings.bug == Some(Bug::DamageIsPassedOver) {
            for id in std::mem::take(&mut quarantined).into_keys() {
                whole.insert(id, self.as_if_whole(id, &mut checkpoints, &begin)?);
            }
        }
        for recovery in whole.values_mut().filter(|r| r.id() != TOPOLOGY) {
            // Nothing in the topology counts before it is synced.
            if life.forgot().contains(recovery.id().0) && self.settings.bug != Some(Bug::LossIsForgotten) {
                recovery.may_have_forgotten(life.start());
            }
        }
        let restored = |id: &u32| whole.get(id).map(|r| (r.applied(), r.entries()));
        let restored: Vec<Option<Restored>> = ids.iter().map(restored).collect();
        let topology = self.settings.declares.then(|| {
            let recovery = whole.remove(&TOPOLOGY.0).expect("without it no start is made");
            let (mut log, state) = recovery
                .finish_log(self.id, self.config(TOPOLOGY.0), &self.settings.members)
                .expect("what was written is sound");
            log.log_is_at(file_u32(wal.durable_file()));
            let first = || match self.settings.pools {
                true => topology::with_pools(&self.settings.members, self.settings.classic),
                false => Topology::new(),
            };
            (log, topology::Decided::new(state.as_ref(), self.settings.bug, first))
        });
        let founders = match self.settings.bug {
            Some(Bug::JoinerFounds) if !self.settings.members.contains(&self.id) => vec![self.id],
            _ => self.settings.members.clone(),
        };
        let partitions: Vec<_> = whole
            .into_values()
            .map(|r| {
                let member = r.member(self.id);
                let config = Config { node: member, ..self.config(r.id().0) };
                let mut partition = r.finish(member, config, &founders).expect("what was written is sound");
                partition.log_is_at(file_u32(wal.durable_file()));
                if let (true, Some((_, decided))) = (self.settings.pools, &topology) {
                    // As the server does, from what its checkpoint says.
                    partition.ask_for_queues();
                    let id = partition.id();
                    for queue in decided.topology.queues().filter(|queue| queue.partition == id) {
                        partition.queue_is_known(queue.id);
                        if !queue.rules.is_plain() {
                            let (mut tail, mut out) = (Tail::new(0), Outputs::default());
                            let mut cx = Context { now_ms: 0, tail: &mut tail, outlets: &mut Nobody, out: &mut out };
                            let (queue, rules) = (queue.id, queue.rules.clone());
                            partition.command(Command::Configure { queue, rules }, &mut cx);
                        }
                    }
                }
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
        let found = Found {
            wal,
            checkpoints,
            next_extent,
            topology: topology.map(|(log, decided)| (log, Outputs::default(), decided)),
            queues: partitions.into_iter().map(|partition| (partition, Outputs::default())).collect(),
            quarantined,
            ended,
        };
        Ok((self.run(folder, life, found), restored))
    }

    /// Comes up as the server does that is a cluster of one: by the time it is up it leads every
    /// group and has applied all.
    fn open_alone(&mut self, mut folder: DataFolder<FaultyDisk>, life: Life) -> Result<Running, StorageError> {
        let mut options = WalOptions::new(self.random.next());
        options.file_bytes = self.settings.file_bytes;
        let partitions = self.settings.partitions.len() as u32;
        let brought = node::bring_back(&mut folder, partitions, options, self.wall_ms()).map_err(of_disk)?;
        let found = self.found(brought);
        Ok(self.run(folder, life, found))
    }

    /// Comes up as the server does that is a node of a cluster: it leads nothing, and its topology may
    /// lag.
    fn open_by_record(&mut self, identity: FolderIdentity) -> Result<Running, StorageError> {
        let told = self.record.as_ref().expect("a node that starts has been told with whom");
        // Who joins does not know the number of its cluster when it makes its folder.
        let cluster_id = if told.joined.is_some() { 0 } else { identity.cluster_id };
        let mut folder = DataFolder::join(self.disk.clone(), FolderIdentity { cluster_id, ..identity }, self.life)?;
        let known = folder.cluster_record()?;
        node::found_among_others(&mut folder, known.as_ref().unwrap_or(told)).map_err(of_disk)?;
        let mut options = WalOptions::new(self.random.next());
        options.file_bytes = self.settings.file_bytes;
        let (boot, now_ms) = (u128::from(self.boot), self.wall_ms());
        let mut brought = node::bring_back_among_others(&folder, options, boot, now_ms).map_err(of_disk)?;
        let life = brought.memory.take().expect("it is among others").into_life();
        let found = self.found(brought);
        Ok(self.run(folder, life, found))
    }

    /// What the server's own start found.
    fn found(&self, brought: Brought<FaultyDisk>) -> Found {
        let Brought { wal, checkpoints, metadata, partitions, quarantined, topology, next_extent, .. } = brought;
        assert!(quarantined.is_empty(), "damage that nobody caused on {}", self.id);
        let decided = topology::Decided::of(topology, self.settings.bug);
        Found {
            wal,
            checkpoints,
            next_extent,
            topology: Some((metadata.partition, metadata.out, decided)),
            queues: partitions.into_iter().map(|started| (started.partition, started.out)).collect(),
            quarantined: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// What runs over what was found.
    fn run(&mut self, folder: DataFolder<FaultyDisk>, life: Life, found: Found) -> Running {
        let Found { wal, checkpoints, next_extent, topology, queues, quarantined, ended } = found;
        let (has_peers, folder_id) = (!self.settings.alone, self.folder_id());
        let ids: Vec<u32> = self.group_ids();
        let (disk, gauges) = (self.disk.clone(), Arc::new(LogGauges::default()));
        let (reader, spares, open) = (wal.reader(), wal.spare_preparer(), OpenExtents::default());
        let log_file_bytes = u64::from(self.settings.file_bytes);
        let room_left = RoomLeft { free_min_bytes: 4 * log_file_bytes, log_file_bytes };
        let lists: BTreeMap<PartitionId, Completions> =
            ids.iter().map(|id| (PartitionId(*id), Completions::default())).collect();
        let count = self.settings.partitions.len();
        // Where nothing is looked after, the log never has to be kept short.
        let (index, lag, retained) = match self.settings.upkeep {
            true if self.random.chance(50) => (INDEX_BYTES, 1, RETAINED_BYTES_MAX),
            true => (u64::MAX / count as u64, 1, RETAINED_BYTES_MAX),
            false => (u64::MAX / count as u64, u32::MAX, u64::MAX),
        };
        let own = NodeLife { node: self.id.0 as u32, start: self.start_number };
        let forwards = self.settings.forwards.then_some(own);
        let queues = queues.into_iter().map(|(partition, out)| {
            let (id, at_risk) = (partition.id(), Arc::default());
            let member = QueueMember::new(partition, out, lists[&id].clone(), at_risk, has_peers);
            (id, Member::Queues(Box::new(member)))
        });
        let aside = quarantined.iter().map(|(id, aside)| {
            let id = PartitionId(*id);
            let member = QuarantinedMember::new(id, aside.needs_file, lists[&id].clone());
            (id, Member::Quarantined(Box::new(member)))
        });
        let over = ended.iter().filter(|_| !self.settings.returns).map(|id| {
            let id = PartitionId(*id);
            (id, Member::Ending(Box::new(EndingMember::over(id, lists[&id].clone()))))
        });
        let mut queues: Vec<_> = queues.chain(aside).chain(over).collect();
        let known: BTreeSet<PartitionId> = queues.iter().map(|(id, _)| *id).collect();
        let has_places = self.settings.pools || self.settings.returns;
        let vacant = self.settings.partitions.iter().filter(|id| has_places && !known.contains(*id));
        queues.extend(vacant.map(|id| {
            let member = VacantMember::new(*id, self.id, lists[id].clone(), Arc::default());
            (*id, Member::Vacant(Box::new(member)))
        }));
        let topology = topology.map(|(log, out, decided)| {
            let list = lists[&TOPOLOGY].clone();
            let member = TopologyMember::new(log, out, decided, list, has_peers, forwards);
            (TOPOLOGY, Member::Topology(Box::new(member)))
        });
        let mut members: BTreeMap<PartitionId, Member<topology::Decided>> =
            queues.into_iter().chain(topology).collect();
        let is_here = |id: &PartitionId| !has_places || known.contains(id);
        let (here, vacant): (Vec<_>, Vec<_>) = self.settings.partitions.iter().copied().partition(is_here);
        let mut placement = node::placement(here, vacant, self.shards);
        placement.retain(|(id, _)| members.contains_key(id));
        let own = forwards.map_or(NodeNumber(0), |life| NodeNumber(life.node));
        let directory = Directory::new(self.shards, &placement).among_others(own);
        let thread = |shard: usize| {
            let here = placement.iter().filter(|(_, at)| *at == shard).map(|(id, _)| *id);
            let here: Vec<_> = here.map(|id| (id, members.remove(&id).expect("it is placed once"))).collect();
            let queues = here.iter().filter(|(id, _)| *id != TOPOLOGY).count() as u64;
            let limits = ShareLimits { checkpoint_lag_files: lag, index_bytes_max: index * queues, partitions: queues };
            let share = Share::new(Tail::new(self.settings.tail_bytes / self.shards), limits, gauges.clone());
            let shard = Shard::new(directory.in_memory(shard), here, share);
            Thread {
                waits: RefCell::new(Waits::new(shard.len())),
                senders: (0..shard.len()).map(|_| VecDeque::new()).collect(),
                shard,
                commands: VecDeque::new(),
                turn_due: true,
                load: Load::default(),
                due_at: None,
            }
        };
        let threads = (0..self.shards).map(thread).collect();
        let place = |id: &PartitionId| directory.find(*id).expect("every partition is placed");
        let places = self.settings.partitions.iter().map(place).collect();
        Running {
            folder,
            folder_life: life,
            queue: LogQueue::new(time(SYNC_DELAY_MAX), gauges.clone()),
            writer: LogWriter::new(wal, lists.keys().copied().collect(), retained, gauges),
            author: None,
            batch: Batch::default(),
            told: files::Told::default(),
            sync_takes: if self.random.chance(50) { (200, 6_000) } else { (50, 600) },
            reader: Reader::new(disk.clone(), reader.clone(), open.clone()),
            upkeep: Upkeep::new((disk, folder_id), reader, spares, checkpoints, open, next_extent).leaving(room_left),
            tasks: VecDeque::new(),
            is_upkeep_due: false,
            threads,
            directory,
            places,
            lists,
            serving: vec![None; count],
            quarantined: quarantined.keys().map(|id| PartitionId(*id)).collect(),
            bug: self.settings.bug,
            reading: 0,
            sessions: BTreeMap::new(),
            channels: BTreeMap::new(),
            stalled: BTreeSet::new(),
            consumed: BTreeMap::new(),
            kept: None,
            latest_ms: 0,
        }
    }

    fn group_ids(&self) -> Vec<u32> {
        let ids = self.settings.partitions.iter().copied().chain(self.settings.declares.then_some(TOPOLOGY));
        ids.map(|id| id.0).collect()
    }

    /// Nothing is founded here: each group of queues begins as a member that nobody has spoken to
    /// yet.
    fn wait_to_join(&self, checkpoints: &mut CheckpointStore<FaultyDisk>) -> Result<(), StorageError> {
        for id in &self.settings.partitions {
            if checkpoints.load_pair(GroupId(id.0))?.is_none() {
                let first = WalPosition { file: FileNo(1), offset: 0 };
                checkpoints.save(GroupId(id.0), first, &joining_checkpoint())?;
            }
        }
        Ok(())
    }

    /// What can be read of a damaged group up to the damage, as if there had never been more.
    fn as_if_whole(
        &self,
        id: u32,
        checkpoints: &mut CheckpointStore<FaultyDisk>,
        begin: Begin<'_>,
    ) -> Result<Recovery, StorageError> {
        let pair = checkpoints.load_pair(GroupId(id))?;
        let newest = pair.as_ref().map(|pair| (&pair.newest.payload, file_u32(pair.newest.replay_from.file)));
        let mut recovery = begin(id, newest).expect("a checkpoint that was saved can be read");
        let from = WalPosition { file: FileNo(u64::from(recovery.replay_file())), offset: 0 };
        let mut next = recovery.applied().0 + 1;
        let options = WalOptions { file_bytes: self.settings.file_bytes, ..WalOptions::new(0) };
        recover(&self.disk, self.folder_id(), options, FileNo(0), from, &mut |record, at| {
            let is_entry = record.kind == RecordKind::Entry;
            if record.group.0 == id && !(is_entry && record.index > next) {
                next = if is_entry { next.max(record.index + 1) } else { next };
                recovery.record(record.kind, record.term, record.index, Bytes::copy_from_slice(record.body), at);
            }
        })?;
        Ok(recovery)
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
        let config = Config {
            // What is larger fits into no file of the log.
            entry_bytes_max: self.settings.file_bytes as usize - (16 << 10),
            ..Config::new(self.id, group, self.settings.seed ^ u64::from(self.life))
        };
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
}

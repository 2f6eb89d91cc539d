//! Bringing back what a data folder holds: which partitions there are, where their logs begin, and
//! what may go.
//!
//! The map of the topology says which partitions there are, and the settings only add to it. Beside
//! it a folder names its groups itself: by its checkpoints, by what they say of the folder, and by
//! the log. What the map does not have of it yet is put into it by commands: everything at a first
//! start and in a folder of an earlier build, what was added where more are set. Only then is a
//! queue placed there. A partition without a checkpoint has all of its state in the log, from the
//! log's first file on. So one that is added to a folder whose first file was given back is
//! *founded*: it gets a checkpoint with nothing in it, which replays from the log's present. That
//! is durable before the partition writes its first record and before a queue can be placed in it;
//! a crash on the way leaves a folder with some of the new partitions.
//!
//! A group that is damaged is set aside ([`crate::quarantine`]): nothing of it is changed, and the
//! others are served.
//!
//! Invariants: nothing is deleted before everything was read and found whole; what either of a
//! partition's two checkpoints needs stays, and all that may be a quarantined one's; no partition
//! is begun anew that a queue was placed in, and none comes back that has ended here.

mod among_others;
mod groups;

use crate::open_error::OpenError;
use crate::quarantine::Quarantined;
use crate::{Memory, TOPOLOGY, member_of};
use broker::topology::{Command as Change, MACHINE_VERSION, MachineVersions, PartitionStage, SoleNode, Topology};
use broker::{ConsumerKey, NodeLife, NodeNumber, PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Config, NodeId};
use partition::checkpoint::CheckpointDamaged;
use partition::log_partition::{AppliedEntry, Machine};
use partition::machine::{FIRST_MACHINE_VERSION, MACHINE_VERSION as QUEUES_MACHINE_VERSION};
use partition::outputs::WalWrite;
use partition::place::file_u32;
use partition::{
    Command, Context, LogPartition, Outlets, Outputs, QueuePartition, Recovery, Tail, founding_checkpoint,
};
use std::collections::{BTreeMap, BTreeSet};
use storage::wal::{Recovery as WalReport, has_log};
use storage::{
    CheckpointStore, DataFolder, Disk, FileNo, GroupId, Location, NodeState, RecordKind, Wal, WalOptions, WalPosition,
};

pub use among_others::{bring_back_among_others, found_among_others};
pub(crate) use groups::missing_with_messages;
pub use groups::{Begin, Groups, drop_orphans};

/// The largest log entry: one batch target and one largest message.
const ENTRY_BYTES_MAX: usize = partition::entry::ENTRY_BYTES_TARGET + partition::message::MESSAGE_BYTES_MAX + 65_536;
/// Uncommitted bytes of one group; shards stop reading publishers long before.
const UNCOMMITTED_BYTES_MAX: usize = 256 << 20;

/// Applied entries of one group that are kept in memory for followers.
const FOLLOWERS_CACHE_BYTES: usize = 2 << 20;

/// Everything of a folder, with every partition leading that is whole.
pub struct Brought<D: Disk> {
    /// The log, at its end.
    pub wal: Wal<D>,
    /// Where states are saved.
    pub checkpoints: CheckpointStore<D>,
    /// The topology's group.
    pub metadata: Started<LogPartition>,
    /// The groups of queues.
    pub partitions: Vec<Started<QueuePartition>>,
    /// Those that are damaged.
    pub quarantined: BTreeMap<PartitionId, Quarantined>,
    /// What the topology's log comes to.
    pub topology: Topology,
    /// Which node it is, and which of its starts.
    pub life: NodeLife,
    /// The number of the next extent.
    pub next_extent: u32,
    /// Which of its members may have forgotten something; of a node among others.
    pub memory: Option<Memory<D>>,
    /// What was read of the log.
    pub report: WalReport,
    /// The time of the start, for all of it.
    now_ms: u64,
}

/// Opens what is on a disk for a node that wants so many queue partitions; a folder that has more
/// keeps them.
///
/// The node of a new folder founds its groups here and is their member once all of them are
/// durable. One that is to join a cluster founds nothing.
pub fn bring_back<D: Disk>(
    folder: &mut DataFolder<D>,
    partitions: u32,
    options: WalOptions,
    now_ms: u64,
) -> Result<Brought<D>, OpenError> {
    let (disk, folder_id, node) = (&folder.disk().clone(), folder.identity().folder_id, folder.node());
    let (only_node, is_member) = (member_of(node), node.state == NodeState::Member);
    if node.state == NodeState::Joining {
        return Err(OpenError::Joining);
    }
    if !has_log(&**disk)? {
        return Err(OpenError::LogGone);
    }
    let mut checkpoints = CheckpointStore::open(disk, folder_id)?;
    let last = checkpoints.groups().chain(checkpoints.last_group()).map(|group| group.0).max().unwrap_or(0);
    let mut groups = Groups::load(&mut checkpoints, 0..=last, &recovery_of)?;
    let (wal, report) = groups.read_log(disk, folder_id, options, checkpoints.last_group().is_some())?;
    if is_member && groups.whole[&TOPOLOGY.0].is_blank() {
        return Err(lost(TOPOLOGY));
    }
    groups.found_missing(only_node, partitions, &wal, &mut checkpoints, report.first_file <= FileNo(1))?;
    groups.set_aside_foreign(only_node)?;
    let last = GroupId(groups.last());
    let gone = groups.finish_endings(&mut checkpoints)?;
    let there = groups.look_for_extents(&**disk, folder_id)?;
    let (known, used) = groups.extents();

    // Consumers are served by the shard's own cache; followers, which this would serve, there are
    // none.
    let raft = |id: u32| Config { cache_bytes_max: 0, entry_bytes_max: entry_bytes_max(&wal), ..raft(only_node, id) };
    let Groups { whole: mut groups, mut quarantined, .. } = groups;
    let current_file = file_u32(wal.durable_file());
    let metadata = groups.remove(&TOPOLOGY.0).ok_or_else(|| contradictory(TOPOLOGY, &"it has ended on this node"))?;
    let (mut metadata, state) =
        metadata.finish_log(only_node, raft(TOPOLOGY.0), &[only_node]).map_err(|why| contradictory(TOPOLOGY, &why))?;
    metadata.log_is_at(current_file);
    let topology = topology_of(state.as_ref())?;
    let mut started = Vec::new();
    for (id, recovery) in groups {
        let mut aside = Quarantined::new(OpenError::LogGone, Some(&recovery));
        match recovery.finish(only_node, raft(id), &[only_node]) {
            Ok(mut partition) => {
                partition.log_is_at(current_file);
                started.push(Started::new(partition));
            }
            Err(why) => {
                aside.why = contradictory(PartitionId(id), &why);
                quarantined.insert(id, aside);
            }
        }
    }
    // One that cannot be read may be the only one that knows an extent.
    let next_extent = drop_orphans(&**disk, &there, &known, used, quarantined.is_empty())?;
    let metadata = Started::new(metadata);
    let life = NodeLife { node: node.id, start: node.start };
    let quarantined = quarantined.into_iter().map(|(id, aside)| (PartitionId(id), aside)).collect();
    let mut brought = Brought {
        wal,
        checkpoints,
        metadata,
        partitions: started,
        quarantined,
        topology,
        life,
        next_extent,
        memory: None,
        report,
        now_ms,
    };
    brought.take_office()?;
    let is_home = |partition: PartitionId| partition.0 <= last.0 && !gone.contains(&partition.0);
    let homeless = brought.topology.queues().find(|queue| !queue.id.is_local() && !is_home(queue.partition));
    let homeless = homeless.map(|queue| queue.partition);
    let unfounded =
        brought.topology.partitions().find(|(id, put)| put.stage == PartitionStage::Serving && id.0 > last.0);
    if let Some(partition) = homeless.or(unfounded.map(|(id, _)| id)) {
        return Err(lost(partition));
    }
    brought.put_into_map(&folder.identity().node_name, partitions, &gone)?;
    // Each of them has a checkpoint, or its first records are durable now.
    brought.checkpoints.note_last_group(last);
    folder.become_member(node.id)?;
    Ok(brought)
}

/// The largest entry that a log takes.
fn entry_bytes_max<D: Disk>(wal: &Wal<D>) -> usize {
    ENTRY_BYTES_MAX.min(wal.body_bytes_max() as usize)
}

/// How a member's group is set up. Followers that lag a little are served from memory.
pub(crate) fn raft(node: NodeId, id: u32) -> Config {
    Config {
        cache_bytes_max: FOLLOWERS_CACHE_BYTES,
        // Whoever waits for a change of the topology waits until it is applied on his own node.
        announce_commits: id == TOPOLOGY.0,
        entry_bytes_max: ENTRY_BYTES_MAX,
        uncommitted_bytes_max: UNCOMMITTED_BYTES_MAX,
        ..Config::new(node, id, u64::from(id))
    }
}

/// Collects what a folder holds of one group, from its newest checkpoint on.
pub(crate) fn recovery_of(id: u32, found: Option<(&Bytes, u32)>) -> Result<Recovery, CheckpointDamaged> {
    match id {
        0 => Recovery::log(TOPOLOGY, found),
        _ => Recovery::queues(PartitionId(id), found),
    }
}

fn topology_of(state: Option<&Bytes>) -> Result<Topology, OpenError> {
    state.map_or_else(
        || Ok(Topology::new()),
        |state| Topology::decode_snapshot(state).map_err(|why| OpenError::Topology(why.to_string())),
    )
}

impl Groups<'_> {
    /// Adds the partitions that are wanted and not there. `has_beginning`: the log was read from
    /// its first file on.
    fn found_missing<D: Disk>(
        &mut self,
        only_node: NodeId,
        wanted: u32,
        wal: &Wal<D>,
        checkpoints: &mut CheckpointStore<D>,
        has_beginning: bool,
    ) -> Result<(), OpenError> {
        let blank = self.whole.values().filter(|recovery| recovery.is_blank() && !has_beginning);
        let blank: Vec<_> = blank.map(Recovery::id).collect();
        blank.into_iter().try_for_each(|partition| self.set_aside(partition.0, lost(partition)))?;
        let last = self.last();
        if last > wanted {
            tracing::warn!(
                partitions = wanted,
                in_the_folder = last,
                "the data folder has more partitions than are set, and keeps them: queues live in each"
            );
        }
        let new: Vec<u32> = (1..=last.max(wanted)).filter(|id| !self.has(*id)).collect();
        if new.is_empty() {
            return Ok(());
        }
        // Looked at before anything is begun anew; the topology's own log is applied later.
        let lost_ones = lost_whole(&self.whole, has_beginning)?;
        if let Some(partition) = lost_ones.into_iter().find(|id| !self.has(*id)) {
            return Err(lost(PartitionId(partition)));
        }
        let founding = founding_checkpoint(&[only_node]);
        let file = wal.durable_file();
        for id in new {
            let mut found = None;
            if !has_beginning {
                checkpoints.note_last_group(GroupId(id));
                checkpoints.save(GroupId(id), WalPosition { file, offset: 0 }, &founding)?;
                found = Some(Bytes::copy_from_slice(&founding));
            }
            self.whole.insert(id, recovery_of(id, found.as_ref().map(|payload| (payload, file_u32(file))))?);
        }
        Ok(())
    }
}

/// What is there of a partition cannot be.
fn contradictory(partition: PartitionId, why: &dyn std::fmt::Display) -> OpenError {
    OpenError::Contradictory { partition: partition.0, why: why.to_string() }
}

/// All of a partition is gone.
fn lost(partition: PartitionId) -> OpenError {
    OpenError::EntryMissing { partition: partition.0, index: Recovery::FIRST_ENTRY.0 }
}

/// Partitions that were there once and of which nothing is left: a queue was placed in one, or
/// others that are known came after it. `has_beginning`: the log was read from its first file on,
/// and one of which it says nothing is new.
pub(crate) fn lost_whole(groups: &BTreeMap<u32, Recovery>, has_beginning: bool) -> Result<BTreeSet<u32>, OpenError> {
    let topology = topology_in(&groups[&TOPOLOGY.0])?;
    let placed = topology.queues().filter(|queue| !queue.id.is_local()).map(|queue| queue.partition);
    let serving = topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Serving).map(|(id, _)| id);
    let placed = placed.chain(serving).map(|partition| partition.0);
    let blank = groups.values().filter(|recovery| recovery.is_blank() && !has_beginning);
    Ok(placed.filter(|id| !groups.contains_key(id)).chain(blank.map(|recovery| recovery.id().0)).collect())
}

/// What is declared by all that there is of the topology's group.
pub(crate) fn topology_in(metadata: &Recovery) -> Result<Topology, OpenError> {
    let mut topology = topology_of(metadata.state())?;
    for command in metadata.commands() {
        let change = Change::decode(&command).map_err(|why| OpenError::Topology(why.to_string()))?;
        topology.apply(&change);
    }
    Ok(topology)
}

/// A partition that leads before its shard runs, and what it has asked for since: reads, above all.
/// Its shard carries that out with its first turn. Were it dropped, the partition would wait for an
/// answer that nobody owes it.
pub struct Started<P> {
    /// The partition.
    pub partition: P,
    /// What it has asked for.
    pub out: Outputs,
}

impl<P> Started<P> {
    fn new(partition: P) -> Self {
        Started { partition, out: Outputs::default() }
    }
}

impl Started<QueuePartition> {
    fn with(&mut self, now_ms: u64, tail: &mut Tail, f: impl FnOnce(&mut QueuePartition, &mut Context<'_>)) {
        let Started { partition, out } = self;
        f(partition, &mut Context { now_ms, tail, outlets: &mut Closed, out });
    }
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

impl<D: Disk> Brought<D> {
    /// Every group elects its only member: one write and one sync for all of them together. Then
    /// the logs are applied.
    ///
    /// A queue's rules stand in the topology, not in its own log. So the topology is applied first,
    /// and no partition leads before it knows the rules of its queues.
    fn take_office(&mut self) -> Result<(), OpenError> {
        self.metadata.partition.campaign();
        for Started { partition, .. } in &mut self.partitions {
            partition.replica_mut().group_mut().campaign();
        }
        self.come_to_rest(false)?;
        // A group of one leads itself. A folder may say that others are its members, as one of
        // another node does.
        let all = self.partitions.iter().map(|started| &started.partition);
        let idle = all.filter(|partition| !partition.is_leading()).map(QueuePartition::id);
        let idle = idle.chain(Some(TOPOLOGY).filter(|_| !self.metadata.partition.is_leading())).min();
        if let Some(partition) = idle {
            return Err(contradictory(partition, &"this node is not all of its members"));
        }
        self.drop_orphan_queues();
        // The process that served them was killed, or it would have said that they went; this one
        // has no channels yet. Those without a life are of a build that ran alone.
        let gone = [self.life.node, NodeLife::default().node];
        for Started { partition, .. } in &mut self.partitions {
            partition.forget_publishers(|key| gone.contains(&key.life().node));
        }
        Ok(())
    }

    /// Writes, syncs and applies until no partition has anything to say. `knows_rules`: the queues
    /// know theirs.
    fn come_to_rest(&mut self, mut knows_rules: bool) -> Result<(), OpenError> {
        let mut tail = Tail::new(0);
        loop {
            let mut replay = Replay { topology: &mut self.topology, refused: None };
            self.metadata.partition.flush(self.now_ms, &mut replay, &mut self.metadata.out);
            if let Some(refused) = replay.refused {
                return Err(OpenError::Topology(refused));
            }
            if !knows_rules && self.metadata.partition.is_leading() {
                self.configure_queues();
                knows_rules = true;
            }
            for started in &mut self.partitions {
                started.with(self.now_ms, &mut tail, |partition, cx| partition.flush(cx));
            }
            let mut writes = std::mem::take(&mut self.metadata.out.wal);
            writes.extend(self.partitions.iter_mut().flat_map(|started| std::mem::take(&mut started.out.wal)));
            if writes.is_empty() {
                return Ok(());
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
                started.expect("who wrote is there").with(self.now_ms, &mut tail, |partition, cx| {
                    partition.wal_written(write.ticket, &bodies, cx);
                    partition.wal_synced(write.ticket, cx);
                });
            }
        }
    }

    /// Has the map say what the folder shows, as far as it does not yet; see
    /// [`Topology::commands_of`]. Then the topology works by the newest version of its machine that
    /// all of its members can carry out: this node.
    fn put_into_map(&mut self, name: &str, wanted: u32, gone: &BTreeSet<u32>) -> Result<(), OpenError> {
        let number = NodeNumber(self.life.node);
        let whole = self.partitions.iter().map(|started| started.partition.id());
        let partitions: Vec<_> = whole.chain(self.quarantined.keys().copied()).collect();
        let ended: Vec<_> = gone.iter().map(|id| PartitionId(*id)).collect();
        let can = MachineVersions { topology: MACHINE_VERSION, queues: QUEUES_MACHINE_VERSION };
        let sole = SoleNode { number, name, can, partitions: &partitions, ended: &ended, wanted };
        self.change(self.topology.commands_of(&sole))?;
        self.change(self.topology.raise_for([number]).into_iter().collect())?;
        for Started { partition, .. } in &mut self.partitions {
            // Goes out with the first turn.
            let put = self.topology.partitions().find(|(id, _)| *id == partition.id()).map(|(_, put)| put);
            let members = put.into_iter().flat_map(|put| put.members.iter().copied());
            partition.raise_version(self.topology.queues_version_for(members).unwrap_or(FIRST_MACHINE_VERSION));
        }
        if let Some(missing) = self.topology.commands_of(&sole).first() {
            return Err(contradictory(TOPOLOGY, &format_args!("its map refuses {missing:?}")));
        }
        Ok(())
    }

    /// Decides these changes: they are synced and applied when it returns. Nothing is written for
    /// none.
    fn change(&mut self, changes: Vec<Change>) -> Result<(), OpenError> {
        let mut replay = Replay { topology: &mut self.topology, refused: None };
        for change in &changes {
            let is_leading = self.metadata.partition.propose(&change.encode(), 0, &mut replay);
            assert!(is_leading, "a group of one leads itself");
        }
        if changes.is_empty() { Ok(()) } else { self.come_to_rest(true) }
    }

    /// Messages of queues that the topology has forgotten: a crash fell between the two halves of a
    /// delete.
    fn drop_orphan_queues(&mut self) {
        let mut tail = Tail::new(0);
        let known: BTreeSet<QueueId> = self.topology.queues().map(|q| q.id).collect();
        for started in &mut self.partitions {
            for queue in started.partition.queue_ids() {
                if !known.contains(&queue) {
                    // Goes out with the first turn.
                    started
                        .with(self.now_ms, &mut tail, |partition, cx| partition.command(Command::Delete { queue }, cx));
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
                started.with(self.now_ms, &mut tail, |partition, cx| partition.command(configure, cx));
            }
        }
    }
}

#[cfg(test)]
mod tests;

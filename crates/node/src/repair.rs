//! Going on with a damaged data folder, offline: what is intact stays, what is not is named, kept
//! aside and given up.
//!
//! Damage that is that of some partitions alone ([`crate::quarantine`] says when) concerns these
//! alone: all others stay as they lie, and so does the log, which they need. Any other damage
//! concerns all partitions.
//!
//! Order, each step durable before the next: copies of checkpoints that cannot be read; everything
//! intact that lay in the log or in a damaged extent, in new extents; a new file of the log;
//! extents that nobody knows any more out of the way; a new checkpoint of every partition that is
//! concerned, twice, so that both generations stand on it and go on with that file; the damaged
//! files out of the way. So a crash anywhere leaves a folder that is as damaged as before, or a
//! whole one.
//!
//! Invariant: on a [`storage::DryDisk`] any folder stays as it is, byte for byte. The same code
//! runs both ways: what a trial tells is what the repair does.

mod alone;
mod aside;
mod cluster_file;
mod uncounted;
mod work;

use crate::open_error::OpenError;
use crate::opening::{lost_whole, missing_with_messages, recovery_of, topology_in};
use crate::quarantine::Attributed;
use crate::{TOPOLOGY, member_of};
use broker::topology::{Command as Change, Topology};
use broker::{PartitionId, QueueId};
use consensus::{Membership, Position};
use partition::ending::{NO_REPLAY, ended_checkpoint};
use partition::machine::schedule_of;
use partition::place::file_u32;
use partition::salvage::{DamagedRecord, Salvage, SalvagedLog};
use partition::{Part, Recovery};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage::checkpoint::checkpoint_name;
use storage::extent::{check_folder, extent_name};
use storage::wal::{Damage, Recovery as WalReport, has_log};
use storage::{
    CheckpointStore, Disk, Extent, ExtentId, FileNo, GroupId, NodeRecord, NodeState, RecordKind, Wal, WalOptions,
    WalPosition, WalReader, recover,
};

pub use alone::{AloneReport, Copy, GivenUp, RoomShort, go_on_alone};
use aside::count_aside;
pub use aside::{ASIDE_FOLDER, next_aside};
pub use cluster_file::{ClusterFile, is_one_of_several, make_cluster_file};
use uncounted::Density;
pub use uncounted::Uncounted;
use work::Work;

/// Ranges of numbers that a line of the report names.
const RANGES_TOLD_MAX: usize = 32;
/// Damaged places that a refusal names.
const DAMAGE_TOLD_MAX: usize = 3;

/// What a repair found and did. Each line is for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What is damaged: files, places, what should be there.
    pub found: Vec<String>,
    /// What was given up.
    pub given_up: Vec<String>,
    /// What came through, but not as it was.
    pub changed: Vec<String>,
    /// Damaged files, and where they are kept.
    pub aside: Vec<(String, String)>,
    /// Messages that are there afterwards.
    pub messages: u64,
    /// Messages that are known by number to be lost.
    pub messages_lost: u64,
    /// Messages that are lost beside those: of log entries that are missing.
    pub uncounted: Uncounted,
}

/// The other members of a folder's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// There must be none: what says which node this is was made anew, and could not be if there were.
    None,
    /// They serve: they have what is damaged here, and what this node had promised them is not made up. So only what
    /// is not damaged is told of.
    Serve,
    /// They are given up: the folder is on its way to being that of a node alone.
    GivenUp,
}

/// Goes on without what is damaged on `disk`, the folder of a group of one, or of one that is to be. Where nothing is,
/// it is told what is there, of a member of a cluster too.
///
/// - Cost: reads the whole log and every extent once; copies what lives in the log.
/// - Errors: as [`crate::bring_back`] has them, but for damage; a damaged folder whose partitions have
///   other members is refused, as those have what this one lost.
/// - `nonce` is random: what is written tells itself by it from what lay there before.
pub fn repair<D: Disk>(
    disk: &Arc<D>,
    folder_id: u128,
    node: NodeRecord,
    nonce: u64,
    others: Others,
) -> Result<RepairReport, OpenError> {
    let mut found = Found::look(disk, folder_id, node, nonce, others)?;
    let mut report = std::mem::take(&mut found.report);
    let damaged_extents = found.damaged_extents(folder_id, &mut report)?;
    if others == Others::None || (others == Others::Serve && !report.found.is_empty()) {
        found.must_be_alone(&report)?;
    }
    if report.found.is_empty() {
        report.messages = found.partitions.iter().map(live).sum();
        return Ok(report);
    }
    let Found {
        disk,
        checkpoints,
        topology: log,
        mut partitions,
        ended,
        lost_checkpoints,
        known_extents,
        concerns,
        wal_report,
        mut wal,
        density,
        needed,
        ..
    } = found;
    let topology = read_topology(&log)?;
    let mut work =
        Work { disk, folder_id, checkpoints, report, next_extent: 0, kept_aside: 0, lost_in_log: Vec::new() };
    work.kept_aside = count_aside(&*work.disk)?;
    for group in &lost_checkpoints {
        for place in 0..2 {
            work.copy_aside(&checkpoint_name(GroupId(*group), place))?;
        }
    }
    let reader = wal.reader();
    work.next_extent = work.first_free_extent(&partitions)?;
    let first_new = work.next_extent;
    for partition in partitions.iter_mut().filter(|partition| concerns.has(partition.id())) {
        work.move_messages(partition, &reader, &damaged_extents)?;
        work.tell_losses(partition, lost_checkpoints.contains(&partition.id().0), &topology, &density);
        let (names, id) = (wal_report.damage.iter().filter_map(|damage| damage.record), partition.id().0);
        let own = names.filter(|name| name.group.0 == id);
        own.for_each(|name| partition.stand_behind(name.index, name.term));
        if let Concerns::Some(_) = concerns {
            work.report
                .changed
                .push(format!("partition {id}: its state is new; partitions that are whole stay as they are"));
        }
    }
    let mut payloads = Vec::new();
    if let Concerns::All = concerns {
        work.tell_end_of_log(&wal_report, needed, &density);
        let state = work.salvage_topology(topology, &log, &partitions, lost_checkpoints.contains(&TOPOLOGY.0));
        payloads.push((TOPOLOGY, log.checkpoint(&state)));
    }
    let concerned = partitions.iter().filter(|partition| concerns.has(partition.id()));
    payloads.extend(concerned.map(|partition| (partition.id(), partition.checkpoint())));
    // Every state names a file that is there, so that the next start would miss it. It is behind
    // every file that the log ever had: the note beside the log may name one that is gone, and
    // nobody is to miss that one again.
    wal.begin_next_file()?;
    wal.append(&[log.vote(GroupId(TOPOLOGY.0))], &mut Vec::new())?;
    wal.sync()?;
    let replay_from = WalPosition { file: wal.position().file, offset: 0 };
    // Nothing is written to the log from here on, and its files may be about to move.
    drop((reader, wal));
    if lost_checkpoints.iter().any(|group| *group != TOPOLOGY.0) {
        work.keep_orphans(&known_extents, first_new)?;
    }
    for _ in 0..2 {
        for (partition, payload) in &payloads {
            work.checkpoints.save(GroupId(partition.0), replay_from, payload)?;
        }
        for (id, last) in ended.iter().filter(|_| matches!(concerns, Concerns::All)) {
            work.checkpoints.save(GroupId(*id), NO_REPLAY, &ended_checkpoint(*last))?;
        }
    }
    if let Concerns::All = concerns {
        let files: BTreeSet<&str> = wal_report.damage.iter().map(|d| &*d.name).filter(|n| !n.is_empty()).collect();
        files.into_iter().try_for_each(|name| work.move_aside(name))?;
    }
    for id in damaged_extents {
        work.move_aside(&extent_name(id))?;
    }
    work.report.messages = partitions.iter().map(live).sum();
    Ok(work.report)
}

/// Which partitions the damage concerns.
enum Concerns {
    All,
    Some(BTreeSet<u32>),
}

impl Concerns {
    fn has(&self, partition: PartitionId) -> bool {
        match self {
            Concerns::All => true,
            Concerns::Some(some) => some.contains(&partition.0),
        }
    }

    /// This one too. The topology's names all others.
    fn add(&mut self, group: u32) {
        match self {
            Concerns::All => {}
            Concerns::Some(_) if group == TOPOLOGY.0 => *self = Concerns::All,
            Concerns::Some(some) => drop(some.insert(group)),
        }
    }
}

fn live(partition: &Salvage) -> u64 {
    let queues = partition.queues();
    queues.queue_ids().into_iter().filter_map(|id| queues.queue(id)).map(|state| state.runs().live()).sum()
}

/// What can be read of a folder.
struct Found<D: Disk> {
    disk: Arc<D>,
    checkpoints: CheckpointStore<D>,
    topology: SalvagedLog,
    partitions: Vec<Salvage>,
    /// What the node is in the group of each of them, and in the topology's: where anything of that is here.
    parts: BTreeMap<u32, Part>,
    /// Those that have ended here, and stay so.
    ended: Vec<(u32, Position)>,
    lost_checkpoints: BTreeSet<u32>,
    /// The extents that a checkpoint knows.
    known_extents: BTreeSet<u32>,
    /// By partition, the extents in which messages are that are live in its newest state.
    extents_of_states: BTreeMap<u32, Vec<u32>>,
    concerns: Concerns,
    wal: Wal<D>,
    wal_report: WalReport,
    /// The first log file of which a queue partition has not saved the effects.
    needed: FileNo,
    density: Density,
    report: RepairReport,
}

fn is_alone(membership: &Membership) -> bool {
    membership.voters.len() + membership.learners.len() < 2
}

/// Whether no other node is a member of the topology's group, or declared.
fn knows_no_others(topology: &Recovery) -> bool {
    let declared = || topology_in(topology).is_ok_and(|topology| topology.nodes().count() < 2);
    topology.membership().is_none_or(is_alone) && declared()
}

/// What a node is in each group of which there is anything here.
fn parts_of(recoveries: &BTreeMap<u32, Recovery>, node: NodeRecord) -> Result<BTreeMap<u32, Part>, OpenError> {
    let is_something = |recovery: &&Recovery| !recovery.is_to_join() && !recovery.is_blank();
    let part = |recovery: &Recovery| {
        let part = recovery.part(member_of(node));
        part.map_err(|why| OpenError::Contradictory { partition: recovery.id().0, why: why.to_string() })
    };
    recoveries.values().filter(is_something).map(|recovery| Ok((recovery.id().0, part(recovery)?))).collect()
}

impl<D: Disk> Found<D> {
    fn look(
        disk: &Arc<D>,
        folder_id: u128,
        node: NodeRecord,
        nonce: u64,
        others: Others,
    ) -> Result<Found<D>, OpenError> {
        let mut report = RepairReport::default();
        let mut checkpoints = CheckpointStore::open(disk, folder_id)?;
        let mut recoveries: BTreeMap<u32, Recovery> = BTreeMap::new();
        let mut lost_checkpoints = BTreeSet::new();
        let mut concerns = Concerns::Some(BTreeSet::new());
        for group in checkpoints.groups().collect::<Vec<_>>() {
            let pair = match checkpoints.load_pair(group) {
                Ok(pair) => pair,
                Err(error) if error.is_damage() => {
                    report.found.push(format!("the state of partition {}: {error}", group.0));
                    lost_checkpoints.insert(group.0);
                    concerns.add(group.0);
                    None
                }
                Err(error) => return Err(error.into()),
            };
            let newest = pair.as_ref().map(|pair| (&pair.newest.payload, file_u32(pair.newest.replay_from.file)));
            let mut recovery = recovery_of(group.0, newest)?;
            if let Some(older) = pair.as_ref().and_then(|pair| pair.older.as_ref()) {
                recovery.keep_for(&older.payload, file_u32(older.replay_from.file))?;
            }
            recoveries.insert(group.0, recovery);
        }
        recoveries.entry(TOPOLOGY.0).or_insert(recovery_of(TOPOLOGY.0, None)?);
        if !has_log(&**disk)? {
            report.found.push("the log: all its files are gone".to_owned());
            concerns = Concerns::All;
            let since = if checkpoints.groups().next().is_some() { "since the last saved states" } else { "ever" };
            report
                .given_up
                .push(format!("all that was published, settled or declared {since}: how much, only the log knew"));
            report.uncounted += Uncounted::Unknown;
        }
        // From the first record that there is: how many partitions have no checkpoint yet, only the
        // log knows.
        let start = WalPosition::START;
        let options = WalOptions::new(nonce);
        let (mut failed, mut density) = (None, Density::default());
        let (wal, mut wal_report) = recover(disk, folder_id, options, FileNo(0), start, &mut |record, at| {
            let id = record.group.0;
            match id == TOPOLOGY.0 {
                true => density.note_place(at),
                false => density.note(id, record.kind, record.body, at),
            }
            let recovery = match recoveries.entry(id) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => match recovery_of(id, None) {
                    Ok(recovery) => new.insert(recovery),
                    Err(error) => return failed = Some(error),
                },
            };
            recovery.record(record.kind, record.term, record.index, bytes::Bytes::copy_from_slice(record.body), at);
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let last_file = wal.last_file().unwrap_or(FileNo(0));
        let ended: Vec<(u32, Position)> =
            recoveries.values().filter_map(|recovery| Some((recovery.id().0, recovery.ended()?.0))).collect();
        recoveries.retain(|_, recovery| recovery.ended().is_none());
        if !recoveries.contains_key(&TOPOLOGY.0) {
            let why = "it has ended on this node".to_owned();
            return Err(OpenError::Contradictory { partition: TOPOLOGY.0, why });
        }
        if lost_checkpoints.is_empty() {
            // A file that was given back is not missed, whatever the note beside the log remembers.
            let needed = recoveries.values().map(Recovery::needs_file).min().unwrap_or(0);
            wal_report.damage.retain(|d| !d.name.is_empty() || d.file >= FileNo(u64::from(needed)));
        }
        let attributed = Attributed::for_repair(&wal_report, &recoveries);
        attributed.groups.keys().chain(attributed.of_all.map(|_| &TOPOLOGY.0)).for_each(|id| concerns.add(*id));
        let costs_nothing = attributed.groups.is_empty() && attributed.of_all.is_none();
        if costs_nothing {
            (wal_report.damage, wal_report.damage_unlisted) = (Vec::new(), 0);
        }
        tell_damage(&wal_report, &mut report);
        for (id, recovery) in &recoveries {
            let Some(index) = recovery.gap() else { continue };
            concerns.add(*id);
            if wal_report.damage.is_empty() {
                report.found.push(format!("the log: entry {} of partition {id} is missing", index.0));
            }
        }
        for recovery in recoveries.values() {
            let Some((file, is_short)) = missing_with_messages(recovery, &wal) else { continue };
            concerns.add(recovery.id().0);
            if !wal_report.damage.iter().any(|damage| damage.file == file) {
                let (what, id) = (if is_short { "the end of its file" } else { "its file" }, recovery.id().0);
                report.found.push(format!(
                    "the log: {what} number {}, which has messages of partition {id}, is missing",
                    file.0
                ));
            }
        }
        let with_state = recoveries.values().map(|recovery| (recovery.replay_file(), recovery.id().0));
        // What the note beside the log knows of the missing file says more.
        let is_told = wal_report.damage.iter().any(|damage| damage.name.is_empty() && damage.file > last_file);
        if let Some((file, id)) =
            with_state.max().filter(|_| !is_told).filter(|(file, _)| *file > 1 && FileNo(u64::from(*file)) > last_file)
        {
            concerns = Concerns::All;
            let last = last_file.0;
            report.found.push(format!(
                "the log: its newest files are missing. It ends with file {last}, and the state of partition {id} was saved when file {file} \
                 was there"
            ));
            report.given_up.push("what was in the newest files of the log: how much, only they knew".to_owned());
            report.uncounted += Uncounted::Unknown;
        }
        if node.state == NodeState::Member && recoveries[&TOPOLOGY.0].is_blank() && report.found.is_empty() {
            concerns = Concerns::All;
            report.found.push("the log: nothing of the topology is left".to_owned());
            report
                .given_up
                .push("all virtual hosts, users, exchanges and bindings: which, only its log knew".to_owned());
            report.uncounted += Uncounted::Unknown;
        }
        // What cannot be read of the topology names no partition. Where there were other nodes, those have partitions
        // that this one never had.
        let lost = match others {
            Others::None => lost_whole(&recoveries, wal_report.first_file <= FileNo(1)).unwrap_or_default(),
            Others::Serve if knows_no_others(&recoveries[&TOPOLOGY.0]) => {
                lost_whole(&recoveries, wal_report.first_file <= FileNo(1)).unwrap_or_default()
            }
            Others::Serve | Others::GivenUp => BTreeSet::new(),
        };
        for id in lost {
            concerns.add(id);
            report.found.push(format!("the log: nothing of partition {id} is left"));
            report.given_up.push(format!("partition {id}: all its messages; how many, only its log knew"));
            report.uncounted += Uncounted::Unknown;
            recoveries.entry(id).or_insert(recovery_of(id, None)?);
        }
        let with_messages = recoveries.iter().map(|(id, recovery)| (*id, recovery.extents_with_messages()));
        let extents_of_states = with_messages.filter(|(_, extents)| !extents.is_empty()).collect();
        let known_extents = recoveries.values().flat_map(Recovery::extents).collect();
        let of_queues = recoveries.values().filter(|recovery| recovery.id() != TOPOLOGY && !recovery.is_blank());
        let needed = FileNo(u64::from(of_queues.map(Recovery::replay_file).min().unwrap_or(0)));
        let mut damaged = damaged_records(&wal_report, &wal.reader());
        let parts = parts_of(&recoveries, node)?;
        let topology = recoveries.remove(&TOPOLOGY.0).expect("put in above");
        let topology = topology.salvage_log(member_of(node), &damaged.remove(&TOPOLOGY.0).unwrap_or_default());
        let partitions: Vec<Salvage> = recoveries
            .into_iter()
            .map(|(id, recovery)| recovery.salvage(member_of(node), damaged.remove(&id).unwrap_or_default()))
            .collect();
        let disk = disk.clone();
        Ok(Found {
            disk,
            checkpoints,
            topology,
            partitions,
            parts,
            ended,
            lost_checkpoints,
            known_extents,
            extents_of_states,
            concerns,
            wal,
            wal_report,
            needed,
            density,
            report,
        })
    }

    /// Errors: what is damaged, other nodes have.
    fn must_be_alone(&self, report: &RepairReport) -> Result<(), OpenError> {
        let concerned = self.partitions.iter().filter(|partition| self.concerns.has(partition.id()));
        let mut memberships = concerned.map(Salvage::membership).chain([self.topology.membership()]);
        if memberships.all(is_alone) {
            return Ok(());
        }
        let told = report.found.iter().take(DAMAGE_TOLD_MAX).cloned();
        let more = report.found.len().saturating_sub(DAMAGE_TOLD_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        Err(OpenError::OthersHaveIt { damage: told.chain(more).collect::<Vec<_>>().join("; ") })
    }

    /// Extents that are referred to and of which something is not what was written.
    fn damaged_extents(&mut self, folder_id: u128, report: &mut RepairReport) -> Result<BTreeSet<ExtentId>, OpenError> {
        let mut damaged = BTreeSet::new();
        for partition in &self.partitions {
            // Those whose messages were settled since the newest state are missed by a start, which reads that first.
            let of_state = self.extents_of_states.get(&partition.id().0).into_iter().flatten().map(|id| (*id, 0));
            let live = partition.queues().extents().iter().filter(|(_, extent)| extent.live > 0);
            let mut needed: BTreeMap<u32, _> = of_state.collect();
            needed.extend(live.map(|(id, extent)| (*id, extent.live)));
            for (id, live) in needed {
                let id = ExtentId(u64::from(id));
                let own = check_folder(&*self.disk, id, folder_id);
                match own.and_then(|()| Extent::open(&*self.disk, id)?.verify()) {
                    Ok(()) => {}
                    Err(error) if error.is_damage() => {
                        let partition = partition.id().0;
                        report.found.push(format!("{error} (messages of partition {partition}, {live} of them live)"));
                        damaged.insert(id);
                        self.concerns.add(partition);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(damaged)
    }
}

fn tell_damage(wal: &WalReport, report: &mut RepairReport) {
    for damage in &wal.damage {
        let file = file_of(damage);
        let whose = match &damage.record {
            Some(r) => format!("{:?} {}@{} of partition {}", r.kind, r.index, r.term, r.group.0),
            None => "of which partition cannot be told".to_owned(),
        };
        let (offset, bytes, what) = (damage.offset, damage.bytes, damage.what);
        report.found.push(format!("{file} at byte {offset}, {bytes} bytes: {what}, {whose}"));
    }
    if wal.damage_unlisted > 0 {
        report.found.push(format!("{} more places of the log", wal.damage_unlisted));
    }
}

fn file_of(damage: &Damage) -> String {
    if damage.name.is_empty() { format!("log file number {}", damage.file.0) } else { damage.name.clone() }
}

/// The topology as far as its log can be read.
fn read_topology(log: &SalvagedLog) -> Result<Topology, OpenError> {
    let unreadable = |error: String| OpenError::Topology(error);
    let mut topology = match &log.state {
        Some(state) => Topology::decode_snapshot(state).map_err(|e| unreadable(e.to_string()))?,
        None => Topology::new(),
    };
    for command in &log.commands {
        let change = Change::decode(command).map_err(|e| unreadable(e.to_string()))?;
        topology.apply(&change);
    }
    Ok(topology)
}

/// What a person calls a queue: its name and its virtual host, where the topology still knows it.
fn in_words(topology: &Topology, queue: QueueId) -> String {
    let owner = schedule_of(queue).unwrap_or(queue);
    let scheduled = if owner == queue { "" } else { ", scheduled ones" };
    let known = topology.queue(owner).and_then(|known| Some((known, topology.vhost_of(known.vhost)?)));
    match known {
        Some((known, vhost)) => {
            // A name may hold anything, a line break too.
            let quoted = |name: &[u8]| format!("{:?}", String::from_utf8_lossy(name));
            let (name, vhost) = (quoted(&known.name), quoted(&vhost.name));
            format!("queue {name} of virtual host {vhost} (number {}{scheduled})", owner.0)
        }
        None => format!("queue number {}{scheduled}, whose name nothing says any more", owner.0),
    }
}

/// What is left of damaged entries whose headers are whole, by partition.
fn damaged_records<D: Disk>(wal: &WalReport, reader: &WalReader<D>) -> BTreeMap<u32, Vec<DamagedRecord>> {
    let mut records: BTreeMap<u32, Vec<DamagedRecord>> = BTreeMap::new();
    for damage in &wal.damage {
        let (Some(name), Some(at)) = (damage.record.filter(|r| r.kind == RecordKind::Entry), damage.body()) else {
            continue;
        };
        // Without a byte of it, it is still known which entry is missing.
        let (body, body_crc) = reader.read_damaged(at).unwrap_or_default();
        let record = DamagedRecord { term: name.term, index: name.index, body, body_crc, at };
        records.entry(name.group.0).or_default().push(record);
    }
    records
}

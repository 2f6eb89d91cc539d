//! Keeping the log short: live messages of old WAL files into extents, checkpoints, extents that
//! are used up deleted.
//!
//! The index of messages in the log grows with their number, not with their bytes, so it has a
//! budget of its own: beyond it the oldest go to extents early, from the file that is being written
//! too, and checkpoints come early.
//!
//! Invariants: a WAL file or an extent is given up only when neither of the two newest checkpoints
//! needs it; one job of a kind is under way at a time; with nothing to gain there is no job, so an
//! idle node writes nothing.

use crate::checkpoint;
use crate::machine::{Queues, RUN_BYTES};
use crate::outputs::{CopyRun, ExtentReady, Job};
use crate::partition::{Context, QueuePartition};
use crate::place::Place;
use broker::{PartitionId, QueueId};
use consensus::{LogIndex, Position};
use std::collections::{BTreeMap, VecDeque};

/// One extent takes up to this many bytes of messages, by estimate.
const EXTENT_BYTES_MAX: u64 = 32 << 20;
/// Runs that one extent job copies at most: bounds its memory, about 100 bytes each.
pub(crate) const COPY_RUNS_MAX: usize = 8_192;
/// After this many runs moved to extents a checkpoint says so: a start indexes what lay in the log
/// at the last one.
const MOVED_RUNS_MAX: u64 = 65_536;
/// An extent with less than this share of its messages live is copied together with others of its
/// partition.
const SPARSE_PERCENT: u64 = 40;
/// The log's first file.
pub(crate) const FIRST_FILE: u32 = 1;
/// A partition, and the topology's group, count as idle this long after their last entry.
pub(crate) const IDLE_MS: u64 = 3_000;
/// A run that could not be copied, because of damage, is tried again after this long: what is
/// damaged has ended by then, or a consumer has it.
const PUT_OFF_MS: u64 = 60_000;
/// Checkpoints that are kept, and whose files are, and whose part of the log.
pub(crate) const CHECKPOINTS_KEPT: usize = 2;

/// What the node's shell knows of its WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalState {
    /// The file that is written now, once something of it is durable; the one before until then. No
    /// checkpoint names a later one: with the power cut, the log would go on before it.
    pub current_file: u32,
    /// Files up to this one are to be given up: too much log is kept. 0 asks for nothing.
    pub retire_through: u32,
    /// A checkpoint is due when replay would start more than this many files before the current
    /// one.
    pub checkpoint_lag_files: u32,
    /// The index of what lies in the log shall shrink to this many bytes. `u64::MAX` asks for
    /// nothing.
    pub index_bytes_kept: u64,
    /// To this many an idle partition's index shrinks in any case.
    pub index_bytes_idle: u64,
}

impl WalState {
    /// Asks for nothing.
    pub const CALM: WalState = WalState {
        current_file: FIRST_FILE,
        retire_through: 0,
        checkpoint_lag_files: u32::MAX,
        index_bytes_kept: u64::MAX,
        index_bytes_idle: u64::MAX,
    };
}

/// The file that is written, and how quickly one follows the other.
#[derive(Debug, Default)]
pub(crate) struct CurrentFile {
    pub(crate) file: u32,
    /// When it was heard of first.
    since_ms: u64,
}

impl CurrentFile {
    /// One of which nobody knows how long it has been written.
    pub(crate) fn of(file: u32) -> CurrentFile {
        CurrentFile { file, since_ms: 0 }
    }

    pub(crate) fn note(&mut self, file: u32, now_ms: u64) {
        if self.file != file {
            *self = CurrentFile { file, since_ms: now_ms };
        }
    }

    /// Whether an idle group that could let go of what is before `now`, with a newest checkpoint that needs the log from
    /// `newest` on, had better wait for more: while the log grows quickly a checkpoint of each of them for each file would be
    /// most of what is synced. A start reads no more for it than for a busy one.
    pub(crate) fn will_free_more(&self, (newest, now): (u32, u32), lag_files: u32, now_ms: u64) -> bool {
        now <= newest.saturating_add(lag_files) && now_ms.saturating_sub(self.since_ms) < IDLE_MS
    }
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    applied: LogIndex,
    /// The oldest WAL file that it needs: for replay, or because live messages lay there.
    needs_file: u32,
    /// Replay from it starts here.
    replay_file: u32,
}

/// The state of a partition's upkeep.
#[derive(Default)]
pub struct Maintenance {
    applied_since: bool,
    /// The members changed since the newest checkpoint was begun. A start knows of the log only that it was
    /// written, and looks for a majority of the members that its checkpoint names: those before may be gone.
    members_changed: bool,
    last_applied_ms: u64,
    /// Nothing was applied for a while and the last look found nothing to do.
    is_quiet: bool,
    /// There are files to let go of, once there are more, or the log stands still.
    awaits_a_pause: bool,
    saving: Option<Kept>,
    current_file: CurrentFile,
    kept: VecDeque<Kept>,
    is_copying: bool,
    /// Nothing came of the last copy.
    is_given_up: bool,
    /// Runs that went from the log to extents since the last checkpoint was begun.
    moved_runs: u64,
    /// Runs that could not be copied, and when they are tried again.
    put_off: BTreeMap<Place, u64>,
    /// Extents without live messages, and how many checkpoints have been saved without them.
    used_up: BTreeMap<u32, usize>,
    /// Of these, those that were used up when the checkpoint under way was begun: it names the
    /// others.
    saving_without: Vec<u32>,
}

impl Maintenance {
    pub(crate) fn note_applied(&mut self, now_ms: u64) {
        self.applied_since = true;
        self.is_quiet = false;
        self.last_applied_ms = now_ms;
    }

    /// Who the members are has changed.
    pub(crate) fn note_members(&mut self) {
        self.members_changed = true;
        self.is_quiet = false;
    }

    /// A file that is still there, and in which, or behind which, lies all that is written from now
    /// on: the one that was written when upkeep looked last, or where the newest checkpoint's
    /// replay starts if it has not looked since the start.
    pub(crate) fn current_file(&self) -> u32 {
        self.current_file.file.max(self.kept.back().map_or(FIRST_FILE, |k| k.replay_file))
    }

    /// A run could not be copied: it is left where it is for a while.
    pub(crate) fn put_off(&mut self, place: Place, now_ms: u64) {
        self.put_off.insert(place, now_ms + PUT_OFF_MS);
    }

    /// A run that was put off is whole again, or gone.
    pub(crate) fn put_back(&mut self, place: Place) {
        self.put_off.remove(&place);
    }

    /// Whether runs are being copied into an extent.
    pub(crate) fn is_copying(&self) -> bool {
        self.is_copying
    }

    /// Whether a checkpoint is being saved.
    pub(crate) fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// Saves the state of a snapshot; the log that follows it begins in `file`.
    pub(crate) fn save_snapshot(
        &mut self,
        partition: PartitionId,
        head: &checkpoint::Head,
        queues: &Queues,
        file: u32,
    ) -> Job {
        let mut payload = Vec::new();
        head.encode(&mut payload);
        checkpoint::encode_queues(queues, &mut payload);
        let applied = head.applied.index;
        let needs_file = queues.oldest_wal_file().map_or(file, |oldest| oldest.min(file));
        self.saving = Some(Kept { applied, needs_file, replay_file: file });
        self.applied_since = false;
        Job::SaveCheckpoint { partition, payload, applied, replay_file: file }
    }

    /// Takes over a checkpoint found at start, the older one first.
    pub(crate) fn restored(&mut self, applied: LogIndex, needs_file: u32, replay_file: u32) {
        self.kept.push_back(Kept { applied, needs_file, replay_file });
    }
}

impl QueuePartition {
    /// The oldest WAL file that this member needs; files before may be recycled once no other
    /// partition needs them.
    pub fn needs_file(&self, current_file: u32) -> u32 {
        let kept = self.maintenance.kept.iter().map(|k| k.needs_file);
        let kept = match self.maintenance.kept.len() {
            // Without a checkpoint the whole log is the state, votes included, and a start reads it
            // from the first file on: that nothing was ever appended here changes nothing.
            0 => Some(FIRST_FILE),
            _ => kept.min(),
        };
        // Entries of the log stay readable as long as followers may be served from them.
        let log = self.replica.table().oldest_file();
        kept.into_iter()
            .chain(log)
            .chain(self.snapshots.needs_file())
            .chain(self.needs_now(current_file))
            .min()
            .unwrap_or(current_file)
    }

    /// What a checkpoint made now would need.
    fn needs_now(&self, current_file: u32) -> Option<u32> {
        let table = self.replica.table();
        let replay = (self.applied.0 + 1..=table.last().0).find_map(|i| table.body(LogIndex(i)));
        let replay = replay.map_or(current_file, |b| crate::place::file_u32(b.file).min(current_file));
        self.queues.oldest_wal_file().into_iter().chain([replay]).min()
    }

    /// Tells which file of the log is written when the partition starts: a snapshot that comes
    /// before the first [`QueuePartition::maintain`] must not name a file that went long ago.
    pub fn log_is_at(&mut self, current_file: u32) {
        self.maintenance.current_file = CurrentFile::of(current_file);
    }

    /// Extents that the older of the two checkpoints refers to stay until a newer pair exists. The
    /// newest one is the first that does without those that it does not name.
    pub(crate) fn keep_extents_of_older(&mut self, extents: &[(u32, u64, u64)], highest: u32) {
        self.queues.raise_highest_extent(highest);
        for (id, messages, bytes) in extents {
            if !self.queues.extents().contains_key(id) {
                self.queues.add_extent(*id, *messages, *bytes);
                self.maintenance.used_up.insert(*id, 1);
            }
        }
    }

    /// Looks after the log; called a few times a second and whenever a WAL file is full.
    pub fn maintain(&mut self, wal: WalState, cx: &mut Context<'_>) {
        self.maintenance.current_file.note(wal.current_file, cx.now_ms);
        self.note_used_up();
        self.maintenance.put_off.retain(|_, at| *at > cx.now_ms);
        let idle = cx.now_ms.saturating_sub(self.maintenance.last_applied_ms) >= IDLE_MS;
        if !self.maintenance.is_copying && !self.repairs.is_writing() && !self.snapshots.takes_over() {
            let (runs, is_pressing) = self.runs_to_copy(wal, idle);
            if !runs.is_empty() {
                self.maintenance.is_copying = true;
                cx.out.jobs.push(Job::WriteExtent { partition: self.id(), runs, is_pressing });
            }
        }
        if self.maintenance.saving.is_none() && self.wants_checkpoint(wal, idle, cx.now_ms) {
            self.save_checkpoint(wal.current_file, cx);
        }
        let m = &mut self.maintenance;
        m.is_quiet = idle
            && !m.members_changed
            && m.saving.is_none()
            && !m.is_copying
            && m.put_off.is_empty()
            && !m.awaits_a_pause;
    }

    /// What is to be copied next, and whether it is so in any case and not only where there is room.
    fn runs_to_copy(&self, wal: WalState, idle: bool) -> (Vec<CopyRun>, bool) {
        let mut pressing = self.runs_in_files(wal.retire_through, COPY_RUNS_MAX);
        if pressing.is_empty() {
            // Publishers are held back for this without being told why.
            pressing = self.runs_over_budget(wal.index_bytes_kept, wal.current_file);
        }
        if !pressing.is_empty() {
            return (pressing, true);
        }
        // What can wait for room must not hold up what makes some.
        let sparse = if self.maintenance.is_given_up { self.runs_in_sparse_extents() } else { Vec::new() };
        if !sparse.is_empty() {
            return (sparse, true);
        }
        // An idle partition gives up old files even if nothing presses: what little lives there
        // moves.
        let mut calm = Vec::new();
        if idle {
            calm = self.runs_in_files(wal.current_file.saturating_sub(1), COPY_RUNS_MAX);
            if calm.is_empty() {
                calm = self.runs_over_budget(self.index_bytes_kept(wal, idle), wal.current_file);
            }
        }
        if calm.is_empty() { (self.runs_in_sparse_extents(), true) } else { (calm, false) }
    }

    /// Whether [`QueuePartition::maintain`] wants to be called again in a while though no file was
    /// filled.
    pub fn wants_maintenance(&self) -> bool {
        !self.maintenance.is_quiet
    }

    /// Memory of the index of what lies in the log: its entries, and the messages in them that are
    /// live.
    pub fn index_bytes(&self) -> u64 {
        self.queues.wal_run_count() * RUN_BYTES as u64 + self.replica.table().bytes() as u64
    }

    /// Whether [`QueuePartition::maintain`] could move something out of the log now.
    pub fn can_leave_the_log(&self) -> bool {
        !self.maintenance.is_copying && self.queues.wal_run_count() > 0
    }

    fn index_bytes_kept(&self, wal: WalState, idle: bool) -> u64 {
        if idle { wal.index_bytes_kept.min(wal.index_bytes_idle) } else { wal.index_bytes_kept }
    }

    /// The entries' part of the index is too large, and a checkpoint would let go of most of them.
    /// That takes two: the log is kept from the older one on.
    fn wants_shorter_log(&self, kept_bytes: u64) -> bool {
        let table = self.replica.table();
        let since =
            self.maintenance.kept.front().map_or(self.applied.0, |k| self.applied.0.saturating_sub(k.applied.0));
        table.bytes() as u64 * 2 > kept_bytes && since * 2 >= table.len() as u64
    }

    fn wants_checkpoint(&mut self, wal: WalState, idle: bool, now_ms: u64) -> bool {
        self.maintenance.awaits_a_pause = false;
        let Some(now) = self.needs_now(wal.current_file) else { return false };
        let needs = self.needs_file(wal.current_file);
        let frees_files = now > needs;
        let m = &mut self.maintenance;
        let newest = m.kept.back().map_or(FIRST_FILE, |k| k.needs_file);
        m.awaits_a_pause =
            idle && frees_files && m.current_file.will_free_more((newest, now), wal.checkpoint_lag_files, now_ms);
        let m = &self.maintenance;
        let frees_extents = m.used_up.values().any(|seen| *seen < CHECKPOINTS_KEPT);
        let replay = m.kept.back().map_or(FIRST_FILE, |k| k.replay_file);
        let lags = m.applied_since && replay + wal.checkpoint_lag_files < wal.current_file;
        lags || m.members_changed
            || m.moved_runs >= MOVED_RUNS_MAX
            || self.wants_shorter_log(self.index_bytes_kept(wal, idle))
            || (frees_files && needs <= wal.retire_through)
            || (idle && (frees_extents || (frees_files && !m.awaits_a_pause)))
            || (frees_extents && m.applied_since && m.used_up.len() > 4)
    }

    fn save_checkpoint(&mut self, current_file: u32, cx: &mut Context<'_>) {
        let applied = Position { index: self.applied, term: self.applied_term };
        let vote = self.replica.stored_vote();
        let (membership, life) = (self.replica.group().membership(), self.replica.node().life());
        let head = checkpoint::Head { applied, vote, membership, life };
        let mut payload = Vec::new();
        head.encode(&mut payload);
        checkpoint::encode_queues_telling(&self.queues, &mut payload, |queue, bytes| self.traffic.saved(queue, bytes));
        let needs_file = self.needs_now(current_file).unwrap_or(current_file);
        let table = self.replica.table();
        let replay = (self.applied.0 + 1..=table.last().0).find_map(|i| table.body(LogIndex(i)));
        let replay_file = replay.map_or(current_file, |b| crate::place::file_u32(b.file).min(current_file));
        self.maintenance.saving = Some(Kept { applied: self.applied, needs_file, replay_file });
        self.maintenance.saving_without = self.maintenance.used_up.keys().copied().collect();
        self.maintenance.applied_since = false;
        self.maintenance.members_changed = false;
        self.maintenance.moved_runs = 0;
        cx.out.jobs.push(Job::SaveCheckpoint { partition: self.id(), payload, applied: self.applied, replay_file });
    }

    /// The checkpoint under way is on the disk.
    pub fn checkpoint_saved(&mut self, cx: &mut Context<'_>) {
        let saved = self.maintenance.saving.take().expect("a checkpoint was under way");
        if self.snapshots.is_saving() {
            self.install(cx);
        }
        let m = &mut self.maintenance;
        m.kept.push_back(saved);
        while m.kept.len() > CHECKPOINTS_KEPT {
            m.kept.pop_front();
        }
        // The log is needed from the older checkpoint on: it is what replay falls back to.
        let compact = m.kept.front().map_or(saved.applied, |k| k.applied);
        for id in m.saving_without.drain(..) {
            if let Some(seen) = m.used_up.get_mut(&id) {
                *seen += 1;
            }
        }
        let gone: Vec<u32> =
            m.used_up.iter().filter(|(_, seen)| **seen >= CHECKPOINTS_KEPT).map(|(id, _)| *id).collect();
        for id in gone {
            self.maintenance.used_up.remove(&id);
            self.queues.forget_extent(id);
            cx.out.jobs.push(Job::DropExtent { id });
        }
        let compact = self
            .replica
            .followers_need(saved.replay_file, self.snapshots.needs())
            .map_or(compact, |needed| needed.min(compact));
        self.replica.compact(compact);
    }

    /// The extent under way is on the disk: its runs take the place of those that were copied.
    pub fn extent_ready(&mut self, ready: &ExtentReady) {
        assert!(std::mem::take(&mut self.maintenance.is_copying), "an extent was under way");
        self.maintenance.is_given_up = false;
        let of_log = ready.copied.iter().filter(|(_, place, _)| matches!(place, Place::Wal { .. }));
        self.maintenance.moved_runs += of_log.count() as u64;
        take_over(&mut self.queues, ready);
        // A queue may have ended while its messages were copied.
        let there = ready.runs.iter().filter(|run| self.queues.queue(run.queue).is_some());
        self.traffic.copied(there);
        self.note_used_up();
    }

    /// The copy was given up: nothing of it could be read, or the disk has no room for it.
    pub fn extent_abandoned(&mut self) {
        self.maintenance.is_copying = false;
        self.maintenance.is_given_up = true;
    }

    fn note_used_up(&mut self) {
        for (id, extent) in self.queues.extents() {
            if extent.live == 0 {
                self.maintenance.used_up.entry(*id).or_insert(0);
            }
        }
    }

    /// Live runs in WAL files up to `through`, at most `count_max`.
    fn runs_in_files(&self, through: u32, count_max: usize) -> Vec<CopyRun> {
        if through == 0 || self.queues.oldest_wal_file().is_none_or(|oldest| oldest > through) {
            return Vec::new();
        }
        self.collect(count_max, |place| matches!(place, Place::Wal { file, .. } if *file <= through))
    }

    /// So many live runs of the log, oldest files first, that the index keeps to this many bytes
    /// without them.
    fn runs_over_budget(&self, kept_bytes: u64, current_file: u32) -> Vec<CopyRun> {
        let over = self.index_bytes().saturating_sub(kept_bytes).div_ceil(RUN_BYTES as u64);
        let count = over.min(COPY_RUNS_MAX as u64) as usize;
        match self.queues.oldest_wal_file() {
            // What is applied is synced, so the file that is written can be copied from like any
            // other.
            Some(oldest) if count > 0 => self.runs_in_files(oldest.min(current_file), count),
            _ => Vec::new(),
        }
    }

    /// Live runs of extents of which most is settled.
    fn runs_in_sparse_extents(&self) -> Vec<CopyRun> {
        let sparse: Vec<u32> = self
            .queues
            .extents()
            .iter()
            .filter(|(_, e)| e.live > 0 && e.live * 100 < e.messages * SPARSE_PERCENT)
            .map(|(id, _)| *id)
            .collect();
        if sparse.is_empty() {
            return Vec::new();
        }
        self.collect(COPY_RUNS_MAX, |place| matches!(place, Place::Extent { id, .. } if sparse.contains(id)))
    }

    fn collect(&self, count_max: usize, wanted: impl Fn(&Place) -> bool) -> Vec<CopyRun> {
        let put_off = &self.maintenance.put_off;
        let wanted = |place: &Place| wanted(place) && !put_off.contains_key(place);
        collect(&self.queues, count_max, wanted)
    }
}

/// The runs of a new extent take the place of those that were copied into it.
pub(crate) fn take_over(queues: &mut Queues, ready: &ExtentReady) {
    queues.add_ready(ready);
    let mut copied: BTreeMap<QueueId, Vec<(Place, u64)>> = BTreeMap::new();
    for (queue, place, first) in &ready.copied {
        copied.entry(*queue).or_default().push((*place, *first));
    }
    for (queue, places) in &copied {
        let new: Vec<_> = ready.runs.iter().filter(|r| r.queue == *queue).copied().collect();
        queues.move_runs(*queue, places, ready.id, &new);
    }
}

/// Live runs of all queues that lie where `wanted` says, as many as one job takes.
pub(crate) fn collect(queues: &Queues, count_max: usize, wanted: impl Fn(&Place) -> bool) -> Vec<CopyRun> {
    let (mut runs, mut bytes) = (Vec::new(), 0u64);
    for queue in queues.queue_ids() {
        collect_queue(queues, queue, count_max, &wanted, &mut runs, &mut bytes);
        if bytes >= EXTENT_BYTES_MAX || runs.len() >= count_max {
            break;
        }
    }
    runs
}

fn collect_queue(
    queues: &Queues,
    queue: QueueId,
    count_max: usize,
    wanted: &impl Fn(&Place) -> bool,
    runs: &mut Vec<CopyRun>,
    bytes: &mut u64,
) {
    let Some(state) = queues.queue(queue) else { return };
    let mut joins = false;
    for run in state.runs().iter() {
        if !wanted(&run.place) {
            joins = false;
            continue;
        }
        if *bytes >= EXTENT_BYTES_MAX || runs.len() >= count_max {
            return;
        }
        *bytes += match run.place {
            Place::Wal { bytes, .. } => u64::from(bytes) * u64::from(run.live()) / u64::from(run.count),
            Place::Extent { id, .. } => {
                let extent = queues.extents()[&id];
                extent.bytes * u64::from(run.live()) / extent.messages.max(1)
            }
        };
        let live = run.live_ranges().collect();
        runs.push(CopyRun { queue, place: run.place, first: run.first, count: run.count, live, joins });
        joins = true;
    }
}

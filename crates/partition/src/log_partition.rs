//! A replicated log for a machine that is the caller's own: partition 0, whose machine is the
//! topology.
//!
//! Everything is synced before it counts: declares are rare and promise much. Invariants: commands
//! are applied in order, each once, and those that this member proposed in this term carry the
//! caller's token; the log is cut behind the newest checkpoint whatever the number of members, but
//! for what a follower that lags a little still needs. Who lags more gets the machine's state
//! itself (`log_partition/snapshot.rs`).
//!
//! An entry is `u8 1 | u8 1 (sync now) | u16 0 | the caller's bytes`, and in a group of several
//! members `u8 2 | u8 1 | u16 0 | u64 life | u64 token | the caller's bytes`: whoever wanted it knows
//! it by that when it is applied there, whichever member proposed it.

mod snapshot;

use crate::checkpoint::Head;
use crate::maintenance::{CHECKPOINTS_KEPT, CurrentFile, FIRST_FILE, IDLE_MS, WalState};
use crate::outputs::{Job, LostEntry, Outputs, ReadBytes, ReadFailed, ReadPurpose, Ticket};
use crate::peer::PeerFrame;
use crate::replica::Replica;
use broker::PartitionId;
use bytes::{BufMut, Bytes, BytesMut};
use consensus::{EntryKind, LogIndex, NodeId, Position, ReadState, Term};
use snapshot::Snapshots;
use std::collections::VecDeque;
use storage::Location;

const PREFIX: [u8; 4] = [1, 1, 0, 0];
const PREFIX_WITH_ORIGIN: [u8; 4] = [2, 1, 0, 0];

/// Who wants an entry: a life of a node ([`broker::NodeLife::word`]), and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The life.
    pub life: u64,
    /// The number.
    pub token: u64,
}

fn entry_of(origin: Option<Origin>, data: &[u8]) -> Bytes {
    let mut entry = BytesMut::with_capacity(PREFIX.len() + size_of::<Origin>() + data.len());
    match origin {
        None => entry.put_slice(&PREFIX),
        Some(Origin { life, token }) => {
            entry.put_slice(&PREFIX_WITH_ORIGIN);
            entry.put_u64_le(life);
            entry.put_u64_le(token);
        }
    }
    entry.put_slice(data);
    entry.freeze()
}

/// The caller's bytes of an entry, and who wanted it.
pub(crate) fn parts_of(entry: &Bytes) -> (Option<Origin>, Bytes) {
    if !entry.starts_with(&PREFIX_WITH_ORIGIN) {
        return (None, entry.slice(PREFIX.len()..));
    }
    let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
    let origin = Origin { life: word(4), token: word(12) };
    (Some(origin), entry.slice(PREFIX.len() + size_of::<Origin>()..))
}

/// A committed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// Its index.
    pub index: LogIndex,
    /// The caller's bytes.
    pub data: Bytes,
    /// The token it was proposed with, if it was proposed here, or wanted by this life of this node.
    pub token: Option<u64>,
}

/// The machine that a [`LogPartition`] is the log of. The same commands in the same order give the
/// same state.
pub trait Machine {
    /// Carries out a committed command.
    fn apply(&mut self, entry: AppliedEntry);

    /// What was proposed with this token will not be heard of any more: another leader wrote in its
    /// place, or its fate is in a snapshot. In that case it may have been carried out.
    fn lost(&mut self, token: u64);

    /// The state after all that was applied, for a checkpoint or another member.
    fn snapshot(&self) -> Vec<u8>;

    /// Whether this build can read such a state. Asked before anything is given up for it.
    fn can_read(&self, state: &Bytes) -> bool;

    /// Takes over such a state, which is newer than its own.
    fn install(&mut self, state: &Bytes);
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
struct Proposed {
    index: LogIndex,
    term: Term,
    token: u64,
}

/// One member of such a group.
pub struct LogPartition {
    replica: Replica,
    applied: Position,
    /// By index, ascending.
    proposed: VecDeque<Proposed>,
    applied_since: bool,
    /// The members changed since the newest checkpoint was begun. A start knows of the log only that it was
    /// written, and looks for a majority of the members that its checkpoint names: those before may be gone.
    members_changed: bool,
    last_applied_ms: u64,
    /// The checkpoint under way: what it has applied, and where its replay starts.
    saving: Option<(LogIndex, u32)>,
    /// The last entry in the newest checkpoint.
    saved: Option<LogIndex>,
    /// What the two newest checkpoints need of the WAL: if the newer is damaged, the older one must
    /// do.
    kept: VecDeque<u32>,
    /// As upkeep was told last: see [`WalState::current_file`].
    current_file: CurrentFile,
    snapshots: Snapshots,
    /// The life of its node, where the group has other members.
    life: Option<u64>,
}

impl LogPartition {
    /// `kept` is where the replays of its checkpoints start, the older one first.
    pub(crate) fn new(replica: Replica, applied: Position, kept: VecDeque<u32>) -> Self {
        LogPartition {
            replica,
            applied,
            proposed: VecDeque::new(),
            applied_since: false,
            members_changed: false,
            last_applied_ms: 0,
            saving: None,
            saved: kept.back().map(|_| applied.index),
            current_file: CurrentFile::of(kept.back().copied().unwrap_or(FIRST_FILE)),
            kept,
            snapshots: Snapshots::default(),
            life: None,
        }
    }

    /// Its id.
    pub fn id(&self) -> PartitionId {
        self.replica.id()
    }

    /// The replica, for questions.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The replica, for changes of members and leaders.
    pub fn replica_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// Gives the memory of a burst back; for when nothing is going on.
    pub fn trim(&mut self) {
        self.replica.trim();
    }

    /// The last entry that is applied.
    pub fn applied(&self) -> LogIndex {
        self.applied.index
    }

    /// Whether this member leads and has applied everything from before.
    pub fn is_leading(&self) -> bool {
        self.replica.is_leader() && self.applied.term == self.replica.group().term()
    }

    /// Stands for election at once: for a group of one, which need not wait for a timeout.
    pub fn campaign(&mut self) {
        self.replica.group_mut().campaign();
    }

    /// From now on what this life of its node wanted is known by its origin when it is applied.
    pub fn set_life(&mut self, life: u64) {
        self.life = Some(life);
    }

    /// Appends a command that somebody on some node wants; `false` if this member does not lead.
    pub fn propose_for(&mut self, origin: Origin, data: &[u8]) -> bool {
        self.replica.propose(entry_of(Some(origin), data), None).is_some()
    }

    /// The last entry that is applied, with its term.
    pub fn applied_position(&self) -> Position {
        self.applied
    }

    /// Appends a command; `false` if this member does not lead.
    pub fn propose(&mut self, data: &[u8], token: u64, machine: &mut impl Machine) -> bool {
        let Some(index) = self.replica.propose(entry_of(None, data), None) else { return false };
        let term = self.replica.group().term();
        // What this member proposed there when it led before was written over meanwhile.
        let kept = self.proposed.partition_point(|p| p.index < index);
        self.proposed.drain(kept..).for_each(|gone| machine.lost(gone.token));
        self.proposed.push_back(Proposed { index, term, token });
        true
    }

    /// Asks the leader, which has to hear from a majority that it still leads, how far the log was
    /// decided when it heard of this. `false` where nobody is known to lead: ask again.
    ///
    /// - Answer: [`LogPartition::take_read_states`], with this context; it may be lost with a leader or
    ///   a message.
    pub fn read_index(&mut self, context: u64) -> bool {
        self.replica.group_mut().read_index(context).is_ok()
    }

    /// The answers that came.
    pub fn take_read_states(&mut self) -> Vec<ReadState> {
        self.replica.take_read_states()
    }

    /// A leader says nothing with the next tick.
    pub fn hold_heartbeat(&mut self) {
        self.replica.hold_heartbeat();
    }

    /// A tick went by.
    pub fn tick(&mut self) {
        self.replica.tick();
        self.snapshot_tick();
    }

    /// A frame came from another member.
    pub fn step(&mut self, from: NodeId, frame: PeerFrame, machine: &impl Machine, out: &mut Outputs) {
        match frame {
            PeerFrame::PullImage { snapshot, offset } => self.state_pulled(from, snapshot, offset, out),
            PeerFrame::ImagePart { snapshot, offset, bytes } => self.take_part(snapshot, offset, &bytes, machine),
            _ => self.replica.step(from, frame),
        }
    }

    /// See [`Replica::wal_written`].
    pub fn wal_written(&mut self, ticket: Ticket, bodies: &[Location], out: &mut Outputs) {
        self.replica.wal_written(ticket, bodies, out);
    }

    /// See [`Replica::wal_synced`].
    pub fn wal_synced(&mut self, ticket: Ticket, out: &mut Outputs) {
        self.replica.wal_synced(ticket, out);
    }

    /// Bytes came for a follower, or could not be read.
    pub fn read_done(&mut self, purpose: ReadPurpose, found: Result<ReadBytes, ReadFailed>, out: &mut Outputs) {
        let ReadPurpose::Entries { from } = purpose else { return };
        // Every fetch is answered, so that what could not be read is asked for again.
        let bodies = match found {
            Ok(ReadBytes::Records(bodies)) => bodies,
            Err(ReadFailed::Damaged(why)) if self.replica.give_up_through(from) => {
                out.lost_entries.push(LostEntry { partition: self.replica.id(), index: from, why });
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.replica.fetched(from, bodies);
    }

    /// Ends a loop: takes out what the group has to say, applies what is committed, and takes
    /// snapshots as far as they go.
    pub fn flush(&mut self, now_ms: u64, machine: &mut impl Machine, out: &mut Outputs) {
        self.drive(now_ms, machine, out);
        if self.snapshot_turn(machine, out) {
            self.drive(now_ms, machine, out);
        }
        self.save_installing(out);
    }

    fn drive(&mut self, now_ms: u64, machine: &mut impl Machine, out: &mut Outputs) {
        loop {
            self.replica.drive(out);
            let (mut any, mut change) = (false, None);
            while let Some(committed) = self.replica.next_committed() {
                any = true;
                let entry = committed.entry;
                assert_eq!(entry.index, self.applied.index.next(), "entries are applied in order, each once");
                self.applied = entry.position();
                if entry.kind == EntryKind::Membership {
                    change = Some(self.applied);
                }
                let token = self.token_of(self.applied, machine);
                if entry.kind != EntryKind::Command {
                    continue;
                }
                self.applied_since = true;
                self.last_applied_ms = now_ms;
                let (origin, data) = parts_of(&entry.data);
                let own = origin.filter(|origin| Some(origin.life) == self.life).map(|origin| origin.token);
                machine.apply(AppliedEntry { index: entry.index, data, token: token.or(own) });
            }
            if !any {
                break;
            }
            self.members_changed |= change.is_some();
            self.replica.applied(self.applied.index, change, out);
        }
        self.forget_replaced(machine);
    }

    /// The token of an entry that is committed now. Those that were proposed at or before its
    /// place, and are not it, are lost.
    fn token_of(&mut self, at: Position, machine: &mut impl Machine) -> Option<u64> {
        while self.proposed.front().is_some_and(|p| p.index <= at.index) {
            let first = self.proposed.pop_front().expect("there is a first");
            if (first.index, first.term) == (at.index, at.term) {
                return Some(first.token);
            }
            machine.lost(first.token);
        }
        None
    }

    /// What a later leader cut off is lost, though nothing may ever be written in its place.
    fn forget_replaced(&mut self, machine: &mut impl Machine) {
        let Some(first) = self.proposed.front() else { return };
        let (table, term) = (self.replica.table(), self.replica.group().status().term);
        if first.term == term {
            return;
        }
        let is_replaced = |p: &Proposed| p.term < term && table.term(p.index) != Some(p.term);
        while self.proposed.back().is_some_and(is_replaced) {
            let gone = self.proposed.pop_back().expect("there is a last");
            machine.lost(gone.token);
        }
    }

    /// The oldest WAL file that this member needs.
    pub fn needs_file(&self, _current_file: u32) -> u32 {
        // Entries of the log stay readable as long as followers may be served from them.
        let log = self.replica.table().oldest_file();
        log.into_iter().chain(self.snapshots.needs_file()).fold(self.checkpoints_need(), u32::min)
    }

    fn checkpoints_need(&self) -> u32 {
        // Without a checkpoint a start reads the log from its first file on.
        self.kept.iter().min().copied().unwrap_or(FIRST_FILE)
    }

    fn replay_file(&self, current_file: u32) -> u32 {
        let table = self.replica.table();
        let replay = (self.applied.index.0 + 1..=table.last().0).find_map(|i| table.body(LogIndex(i)));
        replay.map_or(current_file, |b| crate::place::file_u32(b.file).min(current_file))
    }

    /// Tells which file of the log is written when the partition starts: a snapshot that comes
    /// before the first [`LogPartition::maintain`] must not name a file that went long ago.
    pub fn log_is_at(&mut self, current_file: u32) {
        self.current_file = CurrentFile::of(current_file);
    }

    /// Saves the machine's state when that frees old WAL files or enough came since the last time,
    /// and cuts the log.
    pub fn maintain(&mut self, wal: WalState, now_ms: u64, machine: &impl Machine, out: &mut Outputs) {
        self.current_file.note(wal.current_file, now_ms);
        self.cut_log();
        if self.saving.is_some() || self.snapshots.is_installing() {
            return;
        }
        let replay_file = self.replay_file(wal.current_file);
        let needs = self.checkpoints_need();
        let frees = replay_file > needs;
        let lags = self.applied_since && needs + wal.checkpoint_lag_files < wal.current_file;
        let newest = self.kept.back().copied().unwrap_or(FIRST_FILE);
        let idle = now_ms.saturating_sub(self.last_applied_ms) >= IDLE_MS
            && !self.current_file.will_free_more((newest, replay_file), wal.checkpoint_lag_files, now_ms);
        if !lags && !self.members_changed && !(frees && (needs <= wal.retire_through || idle)) {
            return;
        }
        let head = Head {
            applied: self.applied,
            vote: self.replica.stored_vote(),
            membership: self.replica.group().membership(),
            life: self.replica.node().life(),
        };
        (self.applied_since, self.members_changed) = (false, false);
        self.save(&head, &machine.snapshot(), replay_file, out);
    }

    fn save(&mut self, head: &Head, state: &[u8], replay_file: u32, out: &mut Outputs) {
        let mut payload = Vec::new();
        head.encode(&mut payload);
        payload.extend_from_slice(state);
        let applied = head.applied.index;
        self.saving = Some((applied, replay_file));
        out.jobs.push(Job::SaveCheckpoint { partition: self.id(), payload, applied, replay_file });
    }

    /// Whether [`LogPartition::maintain`] should be called again in a while though no file was
    /// filled.
    pub fn wants_maintenance(&self, current_file: u32) -> bool {
        let is_uncut = self.saved.is_some_and(|saved| self.replica.table().first() <= saved);
        self.saving.is_some()
            || self.applied_since
            || self.members_changed
            || is_uncut
            || self.checkpoints_need() < current_file
    }

    /// See [`Replica::barrier`].
    pub fn barrier(&mut self, out: &mut Outputs) -> Ticket {
        self.replica.barrier(out)
    }

    /// The checkpoint under way is on the disk. If it is that of a snapshot, the machine takes it
    /// over now.
    pub fn checkpoint_saved(&mut self, machine: &mut impl Machine, out: &mut Outputs) {
        let (applied, replay_file) = self.saving.take().expect("a checkpoint was under way");
        if self.snapshots.is_saving() {
            self.install(machine, out);
        }
        self.saved = Some(applied);
        self.kept.push_back(replay_file);
        while self.kept.len() > CHECKPOINTS_KEPT {
            self.kept.pop_front();
        }
        self.cut_log();
    }

    /// Gives up the log through the newest checkpoint, as far as followers that lag a little do not
    /// need it.
    fn cut_log(&mut self) {
        let Some(saved) = self.saved else { return };
        let needed = self.replica.followers_need(self.current_file.file, self.snapshots.needs());
        self.replica.compact(needed.map_or(saved, |needed| needed.min(saved)));
    }
}

//! A replicated log for a machine that is the caller's own: partition 0, whose machine is the topology.
//!
//! Everything is synced before it counts: declares are rare and promise much. Invariant: entries are handed out in
//! order, each once, and those that this member proposed in this term carry the caller's token.
//!
//! An entry is `u8 1 | u8 1 (sync now) | u16 0 | the caller's bytes`.

use crate::checkpoint::Head;
use crate::maintenance::WalState;
use crate::outputs::{Job, Outputs, ReadBytes, ReadFailed, ReadPurpose, Ticket};
use crate::replica::Replica;
use broker::PartitionId;
use bytes::{BufMut, Bytes, BytesMut};
use consensus::{EntryKind, LogIndex, NodeId, Position, Role, Term};
use std::collections::VecDeque;
use storage::Location;

pub(crate) const PREFIX: [u8; 4] = [1, 1, 0, 0];

/// A committed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// Its index.
    pub index: LogIndex,
    /// The caller's bytes.
    pub data: Bytes,
    /// The token it was proposed with, if it was proposed here.
    pub token: Option<u64>,
}

/// One member of such a group.
pub struct LogPartition {
    replica: Replica,
    applied: Position,
    proposed: VecDeque<(LogIndex, Term, u64)>,
    applied_since: bool,
    last_applied_ms: u64,
    saving: Option<u32>,
    saving_applied: LogIndex,
    /// What the two newest checkpoints need of the WAL: if the newer is damaged, the older one must do.
    kept: VecDeque<u32>,
}

impl LogPartition {
    pub(crate) fn new(replica: Replica, applied: Position, kept: Option<u32>) -> Self {
        LogPartition {
            replica,
            applied,
            proposed: VecDeque::new(),
            applied_since: false,
            last_applied_ms: 0,
            saving: None,
            saving_applied: LogIndex(0),
            kept: kept.into_iter().collect(),
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

    /// Whether this member leads and has applied everything from before.
    pub fn is_leading(&self) -> bool {
        let status = self.replica.group().status();
        status.role == Role::Leader && self.applied.term == status.term
    }

    /// Stands for election at once: for a group of one, which need not wait for a timeout.
    pub fn campaign(&mut self) {
        self.replica.group_mut().campaign();
    }

    /// Appends a command; `false` if this member does not lead.
    pub fn propose(&mut self, data: &[u8], token: u64) -> bool {
        let mut entry = BytesMut::with_capacity(PREFIX.len() + data.len());
        entry.put_slice(&PREFIX);
        entry.put_slice(data);
        let Some(index) = self.replica.propose(entry.freeze()) else { return false };
        self.proposed.push_back((index, self.replica.group().status().term, token));
        true
    }

    /// A tick went by.
    pub fn tick(&mut self) {
        self.replica.tick();
    }

    /// A frame came from another member.
    pub fn step(&mut self, from: NodeId, frame: &Bytes) {
        self.replica.step(from, frame);
    }

    /// See [`Replica::wal_written`].
    pub fn wal_written(&mut self, ticket: Ticket, bodies: &[Location], out: &mut Outputs) {
        self.replica.wal_written(ticket, bodies, out);
    }

    /// See [`Replica::wal_synced`].
    pub fn wal_synced(&mut self, ticket: Ticket, out: &mut Outputs) {
        self.replica.wal_synced(ticket, out);
    }

    /// Bytes came for a follower.
    pub fn read_done(&mut self, purpose: ReadPurpose, found: Result<ReadBytes, ReadFailed>) {
        if let ReadPurpose::Entries { from } = purpose {
            // Every fetch is answered, so that what could not be read is asked for again.
            let bodies = if let Ok(ReadBytes::Records(bodies)) = found { bodies } else { Vec::new() };
            self.replica.fetched(from, bodies);
        }
    }

    /// Takes out what the group has to say; committed commands go to `applied`, in order.
    pub fn flush(&mut self, now_ms: u64, out: &mut Outputs, applied: &mut Vec<AppliedEntry>) {
        loop {
            self.replica.drive(out);
            let (mut any, mut changes_members) = (false, false);
            while let Some(committed) = self.replica.next_committed() {
                any = true;
                let entry = committed.entry;
                assert_eq!(entry.index, self.applied.index.next(), "entries are applied in order, each once");
                self.applied = entry.position();
                changes_members |= entry.kind == EntryKind::Membership;
                if entry.kind != EntryKind::Command {
                    continue;
                }
                self.applied_since = true;
                self.last_applied_ms = now_ms;
                while self.proposed.front().is_some_and(|p| p.0 < entry.index) {
                    self.proposed.pop_front();
                }
                let token = match self.proposed.front() {
                    Some((index, term, token)) if (*index, *term) == (entry.index, entry.term) => Some(*token),
                    _ => None,
                };
                applied.push(AppliedEntry { index: entry.index, data: entry.data.slice(PREFIX.len()..), token });
            }
            if !any {
                return;
            }
            self.replica.applied(self.applied.index, changes_members);
        }
    }

    /// The oldest WAL file that this member needs.
    pub fn needs_file(&self, _current_file: u32) -> u32 {
        // Without a checkpoint a start reads the log from its first file on.
        self.kept.iter().min().copied().unwrap_or(crate::maintenance::FIRST_FILE)
    }

    fn replay_file(&self, current_file: u32) -> u32 {
        let table = self.replica.table();
        let replay = (self.applied.index.0 + 1..=table.last().0).find_map(|i| table.body(LogIndex(i)));
        replay.map_or(current_file, |b| crate::place::file_u32(b.file))
    }

    /// Saves the machine's state when that frees old WAL files or enough came since the last time.
    pub fn maintain(&mut self, wal: WalState, now_ms: u64, state: impl FnOnce() -> Vec<u8>, out: &mut Outputs) {
        if self.saving.is_some() {
            return;
        }
        let replay_file = self.replay_file(wal.current_file);
        let needs = self.needs_file(wal.current_file);
        let frees = replay_file > needs;
        let lags = self.applied_since && needs + wal.checkpoint_lag_files < wal.current_file;
        let idle = now_ms.saturating_sub(self.last_applied_ms) >= 3_000;
        if !lags && !(frees && (needs <= wal.retire_through || idle)) {
            return;
        }
        let head = Head {
            applied: self.applied,
            vote: self.replica.stored_vote(),
            membership: self.replica.group().membership(),
        };
        let mut payload = Vec::new();
        head.encode(&mut payload);
        payload.extend_from_slice(&state());
        self.saving = Some(replay_file);
        self.saving_applied = self.applied.index;
        self.applied_since = false;
        let applied = self.applied.index;
        out.jobs.push(Job::SaveCheckpoint { partition: self.id(), payload, applied, replay_file });
    }

    /// Whether [`LogPartition::maintain`] should be called again in a while though no file was filled.
    pub fn wants_maintenance(&self, current_file: u32) -> bool {
        self.saving.is_some() || self.applied_since || self.needs_file(current_file) < current_file
    }

    /// See [`Replica::barrier`].
    pub fn barrier(&mut self, out: &mut Outputs) -> Ticket {
        self.replica.barrier(out)
    }

    /// The checkpoint under way is on the disk.
    pub fn checkpoint_saved(&mut self) {
        let applied = self.saving_applied;
        self.kept.extend(self.saving.take());
        while self.kept.len() > 2 {
            self.kept.pop_front();
        }
        self.replica.compact(applied);
    }
}

//! A partition from what a data folder holds: its checkpoint, then its records of the WAL in the
//! order of the log.
//!
//! Invariant: a record with an index that is there already replaces it and everything behind it (a
//! new leader wrote over an uncommitted tail); records at or below the checkpoint are passed over.
//! Bodies of entries to be applied again are in memory until they are: about one checkpoint
//! interval.

use crate::checkpoint::{self, CheckpointDamaged};
use crate::ending;
use crate::log_partition::{LogPartition, parts_of};
use crate::machine::{MACHINE_VERSION, Queues, Versions};
use crate::partition::QueuePartition;
use crate::place::Place;
use crate::replica::{Replica, body_of, entry_of};
use broker::PartitionId;
use bytes::Bytes;
use consensus::{
    Change, Config, DecodeError, Entry, EntryKind, Group, HardState, LogIndex, Membership, NodeId, Position, Restored,
    StartError, Term, change_of,
};
use std::collections::BTreeMap;
use storage::{Location, RecordKind};

/// Of a group that was just founded this is the checkpoint: nothing is applied, nobody was voted
/// for, nothing is in it.
pub fn founding_checkpoint(founders: &[NodeId]) -> Vec<u8> {
    let membership = Membership::of_voters(founders.iter().copied());
    let head = checkpoint::Head { applied: Restored::BOOTSTRAP, vote: (Term(0), None), membership, life: 0 };
    let mut payload = Vec::new();
    head.encode(&mut payload);
    checkpoint::encode_queues(&Queues::default(), &mut payload);
    payload
}

/// The same for the group whose machine is the caller's, with the state that it begins with.
pub fn founding_log_checkpoint(founders: &[NodeId], state: &[u8]) -> Vec<u8> {
    let membership = Membership::of_voters(founders.iter().copied());
    let head = checkpoint::Head { applied: Restored::BOOTSTRAP, vote: (Term(0), None), membership, life: 0 };
    let mut payload = Vec::new();
    head.encode(&mut payload);
    payload.extend_from_slice(state);
    payload
}

/// The checkpoint of a member that is to join a group, before it has heard of it: it has nothing,
/// knows no members, and founds nothing, however often it is started. The leader gives it a
/// snapshot.
pub fn joining_checkpoint() -> Vec<u8> {
    returning_checkpoint(0)
}

/// The same of a member whose node had left the group so often before: what it had and said then is
/// nothing to this one.
pub fn returning_checkpoint(life: u32) -> Vec<u8> {
    let mut payload = joining_head(life);
    checkpoint::encode_queues(&Queues::default(), &mut payload);
    payload
}

/// The same of the group whose machine is the caller's, with the state that it has before the
/// snapshot comes.
pub fn joining_log_checkpoint(state: &[u8]) -> Vec<u8> {
    let mut payload = joining_head(0);
    payload.extend_from_slice(state);
    payload
}

/// The same for a group that one node begins anew, as this member and in this term: what other nodes had of it is
/// given up.
pub fn anew_checkpoint(member: NodeId, term: Term) -> Vec<u8> {
    let (vote, membership) = ((term, None), Membership::of_voters([member]));
    let head = checkpoint::Head { applied: Restored::BOOTSTRAP, vote, membership, life: member.life() };
    let mut payload = Vec::new();
    head.encode(&mut payload);
    checkpoint::encode_queues(&Queues::default(), &mut payload);
    payload
}

fn joining_head(life: u32) -> Vec<u8> {
    let nothing = Position { index: LogIndex(0), term: Term(0) };
    let head = checkpoint::Head { applied: nothing, vote: (Term(0), None), membership: Membership::default(), life };
    let mut payload = Vec::new();
    head.encode(&mut payload);
    payload
}

/// What a node is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It votes: what a majority confirmed it may have.
    Voter,
    /// It follows without a vote, and may be far behind.
    Learner,
    /// It is no member, or none any more.
    None,
}

/// What the checkpoint before the newest one needs: a start falls back to it should the newest rot.
#[derive(Debug)]
struct Older {
    applied: LogIndex,
    needs_file: u32,
    replay_file: u32,
    /// The extents that it refers to, each with its messages and bytes.
    extents: Vec<(u32, u64, u64)>,
    highest_extent: u32,
}

/// Collects one partition's records.
pub struct Recovery {
    pub(crate) id: PartitionId,
    pub(crate) checkpoint: Option<(checkpoint::Head, Bytes)>,
    pub(crate) vote: (Term, Option<NodeId>),
    pub(crate) applied: Position,
    pub(crate) entries: Vec<(Entry, Location)>,
    /// The last entry of which it is written that it is committed: a change of members, or where the node ended.
    changed: Option<Position>,
    replay_file: u32,
    pub(crate) queues: Option<Queues>,
    /// What its machine knows.
    versions: Versions,
    older: Option<Older>,
    /// The first entry that is missing between others.
    gap: Option<LogIndex>,
    /// The life in which entries may be missing at the end of the log, if they may.
    pub(crate) forgot_in: Option<u64>,
    /// The last entry of a group that has ended on this node.
    ended: Option<Position>,
    /// How many of its checkpoints say so.
    endings: u8,
    /// How often the node had left the group before it became this member.
    life: u32,
}

impl Recovery {
    /// A queue partition: starts from its newest checkpoint, whose replay starts in `replay_file`;
    /// or from nothing.
    pub fn queues(id: PartitionId, checkpoint: Option<(&Bytes, u32)>) -> Result<Self, CheckpointDamaged> {
        Recovery::queues_by(id, checkpoint, MACHINE_VERSION)
    }

    /// The same with a machine that knows another version as its newest: simulated clusters whose
    /// members differ.
    pub fn queues_by(
        id: PartitionId,
        checkpoint: Option<(&Bytes, u32)>,
        newest: u32,
    ) -> Result<Self, CheckpointDamaged> {
        let mut recovery = Recovery::log(id, checkpoint)?;
        recovery.versions = Versions { newest, ..Versions::default() };
        let decode = |(_, state): &(_, Bytes)| checkpoint::decode_queues_by(state, recovery.versions);
        recovery.queues = recovery.checkpoint.as_ref().map(decode).transpose()?;
        Ok(recovery)
    }

    /// A partition whose state is the caller's to read.
    pub fn log(id: PartitionId, checkpoint: Option<(&Bytes, u32)>) -> Result<Self, CheckpointDamaged> {
        let replay_file = checkpoint.map_or(0, |c| c.1);
        let ended = checkpoint.map(|(payload, _)| ending::ended(payload)).transpose()?.flatten();
        let checkpoint =
            checkpoint.filter(|_| ended.is_none()).map(|(payload, _)| checkpoint::Head::decode(payload)).transpose()?;
        let (vote, applied) = match &checkpoint {
            Some((head, _)) => (head.vote, head.applied),
            None => ((Term(0), None), Restored::BOOTSTRAP),
        };
        let (queues, older, entries) = (None, None, Vec::new());
        let (gap, forgot_in, endings) = (None, None, u8::from(ended.is_some()));
        let life = checkpoint.as_ref().map_or(0, |(head, _)| head.life);
        Ok(Recovery {
            id,
            checkpoint,
            vote,
            applied,
            entries,
            changed: None,
            replay_file,
            queues,
            versions: Versions::default(),
            older,
            gap,
            forgot_in,
            ended,
            endings,
            life,
        })
    }

    /// Tells the checkpoint before the newest one, which is whole, too: what it needs is kept as
    /// long as it counts.
    pub fn keep_for(&mut self, older: &Bytes, replay_file: u32) -> Result<(), CheckpointDamaged> {
        if ending::ended(older)?.is_some() {
            self.endings += 1;
            return Ok(());
        }
        let (head, state) = checkpoint::Head::decode(older)?;
        let queues = self.queues.is_some().then(|| checkpoint::decode_queues_by(&state, self.versions));
        let queues = queues.transpose()?.unwrap_or_default();
        self.older = Some(Older {
            applied: head.applied.index,
            needs_file: queues.oldest_wal_file().map_or(replay_file, |file| file.min(replay_file)),
            replay_file,
            extents: queues.extents().iter().map(|(id, extent)| (*id, extent.messages, extent.bytes)).collect(),
            highest_extent: queues.highest_extent(),
        });
        Ok(())
    }

    /// Whether nothing is known of it: no checkpoint, no entry of its log, and no end.
    pub fn is_blank(&self) -> bool {
        self.checkpoint.is_none() && self.entries.is_empty() && self.ended.is_none()
    }

    /// The last entry of a group that has ended on this node, and whether both of its checkpoints
    /// say so. See [`crate::ending`].
    pub fn ended(&self) -> Option<(Position, bool)> {
        self.ended.map(|last| (last, self.endings == 2))
    }

    /// Whether one of its checkpoints is still that of an earlier member of this node, which has ended: a
    /// start that had only that one would begin anew.
    pub fn is_beside_its_end(&self) -> bool {
        self.ended.is_none() && self.endings > 0
    }

    /// The member of the group that a node of this number is here.
    pub fn member(&self, node: NodeId) -> NodeId {
        NodeId::of(node.number(), self.life)
    }

    /// The first entry of a log: without a checkpoint the state is all from here on.
    pub const FIRST_ENTRY: LogIndex = LogIndex(Restored::BOOTSTRAP.index.0 + 1);

    /// The first entry that is missing between others: part of the log is lost. Only
    /// [`Recovery::salvage`] goes on from there.
    pub fn gap(&self) -> Option<LogIndex> {
        self.gap
    }

    /// Whether a record of the log in this file tells nothing that is not known without it: it lies
    /// before the replay, its entry is in the checkpoint, or its vote is of a term before the one
    /// that is known.
    pub fn knows_without(&self, kind: RecordKind, term: u64, index: u64, file: u32) -> bool {
        file < self.replay_file
            || match kind {
                _ if self.ended.is_some() => true,
                RecordKind::Entry => self.checkpoint.is_some() && LogIndex(index) <= self.applied.index,
                RecordKind::HardState => Term(term) < self.vote.0,
                RecordKind::Membership => LogIndex(index) <= self.applied.index,
                RecordKind::SnapshotMark | RecordKind::Tombstone => false,
            }
    }

    /// What the node of this number is in the group, as far as its checkpoint and all of its log go, also where that
    /// was not decided yet. Errors: an entry cannot be read.
    pub fn part(&self, node: NodeId) -> Result<Part, DecodeError> {
        let own = self.member(node);
        let mut part = match &self.checkpoint {
            // A group without one is that of a node which founded it alone.
            None => Part::Voter,
            Some((head, _)) if head.membership.is_voter(own) => Part::Voter,
            Some((head, _)) if head.membership.contains(own) => Part::Learner,
            Some(_) => Part::None,
        };
        let changes = self.entries.iter().filter(|(entry, _)| entry.kind == EntryKind::Membership);
        for (entry, _) in changes {
            match change_of(own, &entry.data)? {
                Some(Change::Voter(_)) => part = Part::Voter,
                Some(Change::Learner(_)) => part = Part::Learner,
                Some(Change::Remove(_)) => part = Part::None,
                None => {}
            }
        }
        Ok(part)
    }

    /// Whether a member is to join here, and has heard nothing of its group yet.
    pub fn is_to_join(&self) -> bool {
        self.ended.is_none()
            && self.checkpoint.is_some()
            && self.applied.index == LogIndex(0)
            && self.entries.is_empty()
    }

    /// The members of its group by its checkpoint; `None` without one.
    pub fn membership(&self) -> Option<&Membership> {
        self.checkpoint.as_ref().map(|(head, _)| &head.membership)
    }

    /// Whose it is.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// The last entry in the checkpoint.
    pub fn applied(&self) -> LogIndex {
        self.applied.index
    }

    /// The entries behind the checkpoint as found so far, with their bodies as stored: for tools
    /// and the simulator.
    pub fn entries(&self) -> Vec<(LogIndex, Term, Bytes)> {
        self.entries.iter().map(|(entry, _)| (entry.index, entry.term, body_of(entry))).collect()
    }

    /// The state that the newest checkpoint holds: of a partition whose machine is the caller's.
    pub fn state(&self) -> Option<&Bytes> {
        self.checkpoint.as_ref().map(|(_, state)| state)
    }

    /// The commands behind it, in order: of such a partition.
    pub fn commands(&self) -> impl Iterator<Item = Bytes> + '_ {
        let commands = self.entries.iter().filter(|(entry, _)| entry.kind == EntryKind::Command);
        commands.map(|(entry, _)| parts_of(&entry.data).1)
    }

    /// Replay starts in this WAL file; 0 for the first there is.
    pub fn replay_file(&self) -> u32 {
        self.replay_file
    }

    /// The oldest WAL file that is needed: for replay, or because live messages lie there, by
    /// either of the two checkpoints.
    pub fn needs_file(&self) -> u32 {
        self.older.iter().map(|older| older.needs_file).fold(self.newest_needs_file(), u32::min)
    }

    fn newest_needs_file(&self) -> u32 {
        let oldest = self.queues.as_ref().and_then(Queues::oldest_wal_file);
        oldest.map_or(self.replay_file, |f| f.min(self.replay_file))
    }

    /// The extents in which messages are that are live in the newest checkpoint.
    pub fn extents_with_messages(&self) -> Vec<u32> {
        let extents = self.queues.iter().flat_map(|queues| queues.extents().iter());
        extents.filter(|(_, extent)| extent.live > 0).map(|(id, _)| *id).collect()
    }

    /// The log files before the replay in which messages are that are live in the newest checkpoint,
    /// each with the end of the last of them. What a replay reads is looked at there.
    pub fn log_files_with_messages(&self) -> BTreeMap<u32, u32> {
        let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
        let queues = self.queues.iter().flat_map(|queues| queues.queue_ids().into_iter().map(|id| &queues.queues[&id]));
        for place in queues.flat_map(|state| state.runs().iter().map(|run| run.place)) {
            if let Place::Wal { file, offset, bytes } = place
                && file < self.replay_file
            {
                let end = ends.entry(file).or_default();
                *end = (*end).max(offset + bytes);
            }
        }
        ends
    }

    /// The oldest WAL file in which messages are that are live in the newest checkpoint.
    pub fn oldest_file_with_messages(&self) -> Option<u32> {
        self.queues.as_ref().and_then(Queues::oldest_wal_file)
    }

    /// The extents that either of the two checkpoints refers to.
    pub fn extents(&self) -> Vec<u32> {
        let newest = self.queues.iter().flat_map(|q| q.extents().keys().copied());
        let older = self.older.iter().flat_map(|older| older.extents.iter().map(|extent| extent.0));
        newest.chain(older).collect()
    }

    /// The highest number of an extent that the partition ever used, as far as its checkpoints go.
    pub fn highest_extent(&self) -> u32 {
        let older = self.older.as_ref().map_or(0, |older| older.highest_extent);
        self.queues.as_ref().map_or(0, Queues::highest_extent).max(older)
    }

    /// Entries may be missing at the end of the log that were there before the power went. `life`
    /// is a number that no earlier life of this node had.
    pub fn may_have_forgotten(&mut self, life: u64) {
        self.forgot_in = Some(life);
    }

    /// Where the last entry lies that was found, if there is one.
    pub fn last_place(&self) -> Option<Location> {
        self.entries.last().map(|(_, at)| *at)
    }

    /// As if the last entry were not in the log: a deliberate bug of the simulator.
    pub fn forget_last(&mut self) {
        self.entries.pop();
    }

    /// Takes in the next record of this partition.
    pub fn record(&mut self, kind: RecordKind, term: u64, index: u64, body: Bytes, at: Location) {
        match kind {
            // What was on its way when the group ended.
            _ if self.ended.is_some() => {}
            RecordKind::Entry => self.entry(Term(term), LogIndex(index), body, at),
            RecordKind::HardState => {
                let vote = body.get(..8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
                let found = (Term(term), Some(vote).filter(|v| *v != 0).map(NodeId));
                // A checkpoint may know a later vote than the records that replay starts with.
                if found.0 >= self.vote.0 {
                    self.vote = found;
                }
            }
            // A snapshot took the place of the log. Its checkpoint is saved behind the mark:
            // without it the old log stands.
            RecordKind::SnapshotMark if LogIndex(index) <= self.applied.index => self.void_from(LogIndex(0)),
            RecordKind::Tombstone if ending::life_of(&body) < self.life => self.begin_again(),
            RecordKind::Tombstone => self.end(Position { index: LogIndex(index), term: Term(term) }),
            RecordKind::SnapshotMark => {}
            RecordKind::Membership => {
                let found = Position { index: LogIndex(index), term: Term(term) };
                self.changed = self.changed.filter(|last| last.index >= found.index).or(Some(found));
            }
        }
    }

    /// What the log said so far is of an earlier member of this node, which has ended.
    fn begin_again(&mut self) {
        let Some((head, _)) = &self.checkpoint else { return };
        (self.vote, self.applied) = (head.vote, head.applied);
        (self.entries, self.changed, self.gap) = (Vec::new(), None, None);
    }

    /// The group is gone, with all that its checkpoint and its log say. Its files stay until both
    /// checkpoints are written over.
    fn end(&mut self, last: Position) {
        (self.ended, self.checkpoint, self.queues, self.gap) = (Some(last), None, None, None);
        self.entries = Vec::new();
        self.older.iter_mut().for_each(|older| older.extents.clear());
    }

    fn entry(&mut self, term: Term, index: LogIndex, body: Bytes, at: Location) {
        // Written anew, and with it everything behind it became void.
        self.void_from(index);
        if index <= self.applied.index {
            return;
        }
        let last = self.entries.last().map_or(self.applied.index, |(entry, _)| entry.index);
        if index > last.next() {
            self.gap.get_or_insert(last.next());
        }
        self.entries.push((entry_of(index, term, body), at));
    }

    /// Entries from `index` on count no more, and neither does one that was missing among them: a
    /// replay that begins in the middle of the log may begin with the end of what a later leader
    /// replaced.
    fn void_from(&mut self, index: LogIndex) {
        let kept = self.entries.partition_point(|(entry, _)| entry.index < index);
        self.entries.truncate(kept);
        self.gap = self.gap.filter(|gap| *gap < index && kept > 0);
    }

    /// A queue partition that has still to apply what is not in its checkpoint. `founders` are the
    /// voters of a group that has nothing on disk yet.
    ///
    /// An error says that what was found contradicts itself: it is damaged, though every checksum
    /// is right.
    pub fn finish(mut self, node: NodeId, config: Config, founders: &[NodeId]) -> Result<QueuePartition, StartError> {
        let (needs_file, replay_file, applied) = (self.newest_needs_file(), self.replay_file, self.applied);
        let (queues, older, versions) = (self.queues.take(), self.older.take(), self.versions);
        let replica = self.replica(node, config, founders)?;
        let restored = queues.is_some();
        let queues = queues.unwrap_or_else(|| Queues::new(versions));
        let mut partition = QueuePartition::new(replica, queues, applied.index, applied.term);
        if let Some(older) = older {
            partition.maintenance.restored(older.applied, older.needs_file, older.replay_file);
            partition.keep_extents_of_older(&older.extents, older.highest_extent);
        }
        if restored {
            partition.maintenance.restored(applied.index, needs_file, replay_file);
        }
        Ok(partition)
    }

    /// A partition whose machine is the caller's, with the state that its checkpoint holds. Errors
    /// as in [`Recovery::finish`].
    pub fn finish_log(
        self,
        node: NodeId,
        config: Config,
        founders: &[NodeId],
    ) -> Result<(LogPartition, Option<Bytes>), StartError> {
        let state = self.checkpoint.as_ref().map(|(_, state)| state.clone());
        let older = self.older.as_ref().map(|older| older.replay_file);
        let newest = state.as_ref().map(|_| self.replay_file);
        let kept = older.into_iter().chain(newest).collect();
        let applied = self.applied;
        let replica = self.replica(node, config, founders)?;
        Ok((LogPartition::new(replica, applied, kept), state))
    }

    fn replica(self, node: NodeId, config: Config, founders: &[NodeId]) -> Result<Replica, StartError> {
        let (id, gap) = (self.id.0, self.gap);
        assert!(gap.is_none(), "partition {id}: entry {gap:?} of the log is missing, and the caller did not ask");
        assert!(self.ended.is_none(), "partition {id} has ended on this node, and the caller did not ask");
        let Recovery { id, checkpoint, vote, applied, entries, changed, forgot_in, .. } = self;
        let membership =
            checkpoint.map_or_else(|| Membership::of_voters(founders.iter().copied()), |(head, _)| head.membership);
        let term = vote.0.max(applied.term);
        let vote = if term == vote.0 { vote.1 } else { None };
        let places: Vec<_> = entries.iter().map(|(e, at)| (e.index, e.term, *at)).collect();
        // Where a snapshot took the place of the log it is not there any more.
        let changed = changed.filter(|at| entries.iter().any(|(entry, _)| entry.position() == *at));
        let commit = changed.map_or(applied.index, |at| at.index.max(applied.index));
        let restored = Restored {
            hard_state: HardState { term, vote, commit },
            membership,
            changes: Vec::new(),
            compacted: applied,
            applied: applied.index,
            evicted: Vec::new(),
            entries: entries.into_iter().map(|e| e.0).collect(),
            forgot: forgot_in.is_some(),
        };
        let group = Group::new(config, restored)?;
        Ok(Replica::new(id, node, group, (term, vote), applied.index, &places).in_doubt_since(forgot_in))
    }
}

#[cfg(test)]
mod tests;

//! A queue partition from what is left of a damaged folder: everything intact is kept, and what is
//! given up is told.
//!
//! Order: the newest whole checkpoint, or none; then the entries of the log that can be read.
//!
//! - An entry of which only the messages of one batch are damaged is proven by two checksums, the
//!   record's and the batch's: all else in it counts. Those messages are lost, and nothing but
//!   them.
//! - Behind an entry that is missing nobody knows how many messages it brought, and so which
//!   numbers those behind it had. They are taken in under numbers of their own, and outcomes that
//!   name a number from there on are not believed: what was settled behind the gap comes back,
//!   flagged as redelivered. An intact message is never given up for a settle that might have meant
//!   another one.
//!
//! Invariant: this is for a group of one, or one that is to be: a member of a larger group gets from the others
//! what it lost.

use crate::checkpoint::{self, Head};
use crate::entry::{Batch, Commands, EntryDamaged, LogCommand};
use crate::extent_copy::Copied;
use crate::machine::{Queues, TOO_NEW, Unobserved};
use crate::maintenance::{COPY_RUNS_MAX, collect, take_over};
use crate::outputs::CopyRun;
use crate::place::Place;
use crate::recovery::Recovery;
use crate::replica::{entry_of, hard_state};
use broker::queue::SeqRanges;
use broker::{PartitionId, QueueId};
use bytes::Bytes;
use consensus::{Entry, EntryKind, LogIndex, Membership, NodeId, Position, Term};
use std::collections::BTreeMap;
use storage::crc32c;
use storage::{GroupId, Location, Record};

/// A record of the log whose header is whole and whose body is not.
#[derive(Clone, Debug)]
pub struct DamagedRecord {
    /// Its term.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// What can be read of its body.
    pub body: Bytes,
    /// The checksum that the body should have.
    pub body_crc: u32,
    /// Where it lies.
    pub at: Location,
}

/// What a damaged folder cost one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Entries of the log that are missing, as `(first, count)`. What they published is lost.
    pub entries: Vec<(u64, u64)>,
    /// Messages that are lost, but for those that had ended before.
    pub messages: BTreeMap<QueueId, SeqRanges>,
    /// Outcomes of messages that were not believed: at most so many messages come back though they
    /// were settled.
    pub outcomes: u64,
}

impl Lost {
    /// How many messages are known to be lost.
    pub fn message_count(&self) -> u64 {
        self.messages.values().map(SeqRanges::count).sum()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Salvage {
    id: PartitionId,
    queues: Queues,
    head: Head,
    /// What was given up so far.
    pub lost: Lost,
}

impl Recovery {
    /// Takes everything in that counts. `damaged`: what else was found of this partition's records.
    pub fn salvage(mut self, node: NodeId, damaged: Vec<DamagedRecord>) -> Salvage {
        let mut entries: Vec<(Entry, Location, Option<u32>)> =
            std::mem::take(&mut self.entries).into_iter().map(|(entry, at)| (entry, at, None)).collect();
        let mut missing = Vec::new();
        for record in damaged {
            let index = LogIndex(record.index);
            let at = entries.partition_point(|(entry, ..)| entry.index < index);
            // One that is there was written anew, and the damaged one became void.
            let is_void =
                index <= self.applied.index || entries.get(at).is_some_and(|(entry, ..)| entry.index == index);
            if is_void {
                continue;
            }
            match spoilt_batch(&record.body, record.body_crc) {
                Some(batch) => {
                    let entry = entry_of(index, Term(record.term), record.body);
                    entries.insert(at, (entry, record.at, Some(batch)));
                }
                None => missing.push(index),
            }
        }
        let membership = self.checkpoint.as_ref().map(|(head, _)| head.membership.clone());
        let head = Head {
            applied: self.applied,
            vote: self.vote,
            membership: membership.unwrap_or_else(|| Membership::of_voters([node])),
            life: self.member(node).life(),
        };
        let queues = self.queues.take().unwrap_or_default();
        let mut salvage = Salvage { id: self.id, queues, head, lost: Lost::default() };
        let mut known = None;
        let last = entries.last().map(|(entry, ..)| entry.index).max(Some(salvage.head.applied.index));
        for (entry, at, spoilt) in entries {
            salvage.take(&entry, at, spoilt, &mut known);
        }
        // What is missing in between was noticed there.
        let behind = missing.into_iter().filter(|index| Some(*index) > last);
        salvage.lost.entries.extend(behind.map(|index| (index.0, 1)));
        salvage.flag_what_may_have_been_sent(known.is_some());
        salvage.head.vote.0 = salvage.head.vote.0.max(salvage.head.applied.term);
        salvage
    }
}

/// The offset of the batch whose messages alone are damaged, if that is all that is wrong with an
/// entry: with the messages' own checksum in their place, the checksum of the whole comes out
/// right.
fn spoilt_batch(body: &[u8], body_crc: u32) -> Option<u32> {
    let mut commands = Commands::parse(body).ok()?;
    while let Some(command) = commands.next().ok()? {
        let LogCommand::Publish(batch) = command else { continue };
        let (messages, crc) = batch.stored();
        let before = crc32c::crc32c(&body[..messages.start]);
        let after = &body[messages.end..];
        let joined = crc32c::crc32c_combine(before, crc, messages.len());
        if crc32c::crc32c_combine(joined, crc32c::crc32c(after), after.len()) == body_crc {
            return Some(batch.offset);
        }
    }
    None
}

/// How many messages an entry's body published, one for each queue that it went to; 0 for a body
/// that cannot be read.
pub fn published_in(body: &[u8]) -> u64 {
    let Ok(mut commands) = Commands::parse(body) else { return 0 };
    let mut count = 0;
    while let Ok(Some(command)) = commands.next() {
        if let LogCommand::Publish(batch) = command {
            count += u64::from(batch.messages()) * batch.targets().count() as u64;
        }
    }
    count
}

/// Per queue, the number up to which numbers are what they were; nothing of it while no entry is
/// missing.
type Known = Option<BTreeMap<QueueId, u64>>;

impl Salvage {
    /// Whose it is.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// Its messages.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Members of its group.
    pub fn membership(&self) -> &Membership {
        &self.head.membership
    }

    fn take(&mut self, entry: &Entry, at: Location, spoilt: Option<u32>, known: &mut Known) {
        let next = self.head.applied.index.next();
        if entry.index > next {
            self.lost.entries.push((next.0, entry.index.0 - next.0));
            let below = |id: QueueId| (id, self.queues.queue(id).map_or(1, |state| state.next_seq()));
            known.get_or_insert_with(|| self.queues.queue_ids().into_iter().map(below).collect());
        }
        self.head.applied = Position { index: entry.index, term: entry.term };
        if entry.kind != EntryKind::Command {
            return;
        }
        if self.apply(&entry.data, at, spoilt, known.as_ref()).is_err() {
            // Its checksum held, so another version wrote it: as good as missing.
            self.lost.entries.push((entry.index.0, 1));
        }
    }

    fn apply(
        &mut self,
        entry: &Bytes,
        at: Location,
        spoilt: Option<u32>,
        known: Option<&BTreeMap<QueueId, u64>>,
    ) -> Result<(), EntryDamaged> {
        let mut commands = Commands::parse(entry)?;
        self.queues.time_ms = self.queues.time_ms.max(commands.time_ms);
        while let Some(command) = commands.next()? {
            match command {
                LogCommand::Publish(batch) => self.publish(&batch, at, spoilt),
                LogCommand::RaiseVersion { version } => {
                    if !self.queues.raise_version(version) {
                        return Err(EntryDamaged { what: TOO_NEW, offset: commands.past() });
                    }
                }
                other => {
                    let (queue, numbers) = names(&other);
                    let below = known.map_or(u64::MAX, |known| known.get(&queue).copied().unwrap_or(0));
                    for (first, count) in numbers {
                        let unknown = count.min((first + count).saturating_sub(below));
                        self.lost.outcomes += unknown;
                        if let Some(lost) = self.lost.messages.get_mut(&queue) {
                            lost.remove_range(first, count - unknown);
                        }
                    }
                    if let LogCommand::Delete { queue } = other {
                        self.lost.messages.remove(&queue);
                    }
                    self.queues.note(other, below);
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, batch: &Batch<'_>, at: Location, spoilt: Option<u32>) {
        match spoilt == Some(batch.offset) {
            true => {
                for (queue, first, count) in self.queues.publish_lost(batch, at) {
                    self.lost.messages.entry(queue).or_default().insert_range(first, count);
                }
            }
            false => self.queues.publish(batch, at, &mut Unobserved),
        }
    }

    fn flag_what_may_have_been_sent(&mut self, has_gaps: bool) {
        if has_gaps {
            for state in self.queues.queues.values_mut() {
                state.raise_dispatched_below(state.next_seq());
            }
        }
    }

    /// Its state stands behind this entry and this term too, whatever they were: where the damage
    /// stays in the log, they count no more.
    pub fn stand_behind(&mut self, index: u64, term: u64) {
        let Head { applied, vote, .. } = &mut self.head;
        if LogIndex(index) > applied.index {
            *applied = Position { index: LogIndex(index), term: applied.term.max(Term(term)) };
        }
        if Term(term) >= vote.0 {
            *vote = (Term(term + 1), None);
        }
    }

    /// The last entry that it has, and the last term that it knows.
    pub fn last(&self) -> (Position, Term) {
        (self.head.applied, self.head.vote.0)
    }

    /// Its group has this member from now on and no other, in this term, which is above all that were.
    pub fn stand_alone(&mut self, member: NodeId, term: Term) {
        self.head.stand_alone(member, term);
    }

    /// Live runs that lie where `wanted` says, as many as go into one extent; none if there is none
    /// left.
    pub fn runs(&self, wanted: impl Fn(&Place) -> bool) -> Vec<CopyRun> {
        collect(&self.queues, COPY_RUNS_MAX, wanted)
    }

    /// Runs of [`Salvage::runs`] were copied; what of them is damaged is given up.
    pub fn copied(&mut self, copied: Copied) {
        if let Some(ready) = &copied.ready {
            take_over(&mut self.queues, ready);
        }
        for run in copied.damaged {
            for (first, count) in run.messages {
                self.queues.settle(run.queue, std::iter::once((first, count)));
                self.lost.messages.entry(run.queue).or_default().insert_range(first, count);
            }
        }
    }

    /// Its state as a checkpoint: with an empty log behind it, this is the partition.
    pub fn checkpoint(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        self.head.encode(&mut payload);
        checkpoint::encode_queues(&self.queues, &mut payload);
        payload
    }
}

/// The queue that a command is about, and the numbers that it ends.
fn names<'a>(command: &LogCommand<'a>) -> (QueueId, impl Iterator<Item = (u64, u64)> + use<'a>) {
    let (queue, ranges) = match command {
        LogCommand::Settle { queue, ranges, .. } => (*queue, Some(*ranges)),
        LogCommand::Publish(_) | LogCommand::Closed { .. } | LogCommand::RaiseVersion { .. } => (QueueId(0), None),
        LogCommand::Requeue { queue, .. }
        | LogCommand::Dead { queue, .. }
        | LogCommand::Retry { queue, .. }
        | LogCommand::Sent { queue, .. }
        | LogCommand::Delete { queue } => (*queue, None),
    };
    (queue, ranges.into_iter().flatten())
}

/// What is left of a log whose machine is the caller's.
#[derive(Clone, Debug)]
pub struct SalvagedLog {
    head: Head,
    /// The state that its newest checkpoint holds.
    pub state: Option<Bytes>,
    /// The commands behind it, in order, as far as none is missing.
    pub commands: Vec<Bytes>,
    /// The first entry that is missing, and how many were given up, it and those behind it, as far
    /// as is known.
    pub missing: Option<(u64, u64)>,
}

impl Recovery {
    /// As [`Recovery::salvage`], for a machine whose commands mean nothing once one before them is
    /// missing.
    pub fn salvage_log(mut self, node: NodeId, damaged: &[DamagedRecord]) -> SalvagedLog {
        let entries = std::mem::take(&mut self.entries);
        let (head, state) = match self.checkpoint.take() {
            Some((head, state)) => (head, Some(state)),
            None => {
                let (applied, vote) = (self.applied, self.vote);
                (Head { applied, vote, membership: Membership::of_voters([node]), life: 0 }, None)
            }
        };
        let vote = (self.vote.0.max(head.applied.term), self.vote.1);
        let mut log = SalvagedLog { head: Head { vote, ..head }, state, commands: Vec::new(), missing: None };
        for (entry, _) in entries {
            let next = log.head.applied.index.next();
            if log.missing.is_none() && entry.index > next {
                log.missing = Some((next.0, entry.index.0 - next.0));
            }
            // The next entry gets a number that none had.
            log.head.applied = Position { index: entry.index, term: entry.term };
            log.head.vote.0 = log.head.vote.0.max(entry.term);
            match &mut log.missing {
                Some((_, count)) => *count += 1,
                None if entry.kind == EntryKind::Command => {
                    log.commands.push(crate::log_partition::parts_of(&entry.data).1);
                }
                None => {}
            }
        }
        let last = log.head.applied.index.0;
        for record in damaged.iter().filter(|record| record.index > last) {
            let missing = log.missing.get_or_insert((record.index, 0));
            missing.1 += 1;
        }
        log
    }
}

impl SalvagedLog {
    /// As [`Salvage::last`].
    pub fn last(&self) -> (Position, Term) {
        (self.head.applied, self.head.vote.0)
    }

    /// As [`Salvage::stand_alone`].
    pub fn stand_alone(&mut self, member: NodeId, term: Term) {
        self.head.stand_alone(member, term);
    }

    /// What it knows of its group's term, as a record of the log of the group's number.
    pub fn vote(&self, group: GroupId) -> Record {
        hard_state(group, self.head.vote)
    }

    /// The machine's state as a checkpoint: with an empty log behind it, this is the partition.
    pub fn checkpoint(&self, state: &[u8]) -> Vec<u8> {
        let mut payload = Vec::new();
        self.head.encode(&mut payload);
        payload.extend_from_slice(state);
        payload
    }

    /// Members of its group.
    pub fn membership(&self) -> &Membership {
        &self.head.membership
    }
}

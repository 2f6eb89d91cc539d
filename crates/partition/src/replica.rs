//! One member of one Raft group over the node's WAL: what is appended, written, synced, sent and committed, in order.
//!
//! Invariants: a message that promises something leaves only after the write it rests on was synced; entries are handed
//! on once committed, in order, each with the place where it lies; the weaker index (`written`) is volatile, belongs to
//! one term and never moves Raft's own.
//!
//! A peer frame is `u8 0` and a Raft message, or `u8 1`, `u64 term`, `u64 index`: everything up to this index of the
//! leader's log is written here, though not yet synced.

use crate::entry::sync_wish;
use crate::log_index::LogTable;
use crate::outputs::{Outputs, Read, ReadAt, ReadPurpose, SyncWish, Ticket, WalWrite};
use broker::PartitionId;
use bytes::{BufMut, Bytes, BytesMut};
use consensus::{Entry, EntryKind, Group, LogIndex, Message, NodeId, Ready, Role, Segments, Term};
use std::collections::{BTreeMap, VecDeque};
use storage::{GroupId, Location, Record, RecordKind};

/// First byte of a stored membership entry; commands start with their version, which is far below.
const MEMBERSHIP_MARK: u8 = 0xFE;

const FRAME_RAFT: u8 = 0;
const FRAME_WRITTEN: u8 = 1;

/// A write under way.
struct Write {
    ticket: Ticket,
    ready: Option<u64>,
    after_sync: Vec<Message>,
    /// Positions of the entries in it, in order.
    entries: Vec<(LogIndex, Term)>,
    located: bool,
}

/// A committed entry and where it lies.
#[derive(Debug)]
pub struct Committed {
    /// The entry.
    pub entry: Entry,
    /// Where its body lies in this member's WAL.
    pub body: Location,
}

/// One member of one group.
pub struct Replica {
    id: PartitionId,
    node: NodeId,
    group: Group,
    ready: Ready,
    next_ticket: u64,
    writes: VecDeque<Write>,
    table: LogTable,
    committed: VecDeque<Entry>,
    /// Term and vote as last written.
    stored_vote: (Term, Option<NodeId>),
    /// What each member has written of this term's log; the leader's own included.
    written: BTreeMap<NodeId, LogIndex>,
    written_term: Term,
    /// Body bytes appended since the last checkpoint.
    appended_bytes: u64,
    snapshot: Option<consensus::SnapshotOffer>,
    /// The voters, as of the last change: asked for at every write.
    voters: Vec<NodeId>,
}

impl Replica {
    /// A member over what recovery found. `bodies` are the places of the restored entries.
    pub fn new(
        id: PartitionId,
        node: NodeId,
        group: Group,
        stored_vote: (Term, Option<NodeId>),
        compacted: LogIndex,
        bodies: &[(LogIndex, Term, Location)],
    ) -> Self {
        let mut table = LogTable::new(compacted);
        for (index, term, body) in bodies {
            table.append(*index, *term, Some(*body));
        }
        let voters = group.membership().voters;
        Replica {
            id,
            node,
            group,
            voters,
            ready: Ready::default(),
            next_ticket: 1,
            writes: VecDeque::new(),
            table,
            committed: VecDeque::new(),
            stored_vote,
            written: BTreeMap::new(),
            written_term: Term(0),
            appended_bytes: 0,
            snapshot: None,
        }
    }

    /// Its partition.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// The consensus group, for questions.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The consensus group, for changes of members and leaders.
    pub fn group_mut(&mut self) -> &mut Group {
        &mut self.group
    }

    /// Where entries lie.
    pub fn table(&self) -> &LogTable {
        &self.table
    }

    /// The term and vote that this member has written.
    pub fn stored_vote(&self) -> (Term, Option<NodeId>) {
        self.stored_vote
    }

    /// Bytes appended since the last checkpoint.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Whether this member leads.
    pub fn is_leader(&self) -> bool {
        self.group.status().role == Role::Leader
    }

    /// Appends a command as the leader; its index in this term, or `None` if this member does not lead (any more).
    pub fn propose(&mut self, data: Bytes) -> Option<LogIndex> {
        self.group.propose(data).ok().map(|position| position.index)
    }

    /// A frame came from another member. What cannot be read is dropped: Raft lives with lost messages.
    pub fn step(&mut self, from: NodeId, frame: &Bytes) {
        match frame.first() {
            Some(&FRAME_RAFT) => {
                if let Ok(message) = Message::decode(&mut frame.slice(1..)) {
                    // A message of an old term or from a stranger is refused; nothing is owed to it.
                    let _ = self.group.step(message);
                }
            }
            Some(&FRAME_WRITTEN) if frame.len() == 17 => {
                let at = |i: usize| u64::from_le_bytes(frame[i..i + 8].try_into().expect("eight bytes"));
                self.note_written(from, Term(at(1)), LogIndex(at(9)));
            }
            _ => {}
        }
    }

    fn note_written(&mut self, member: NodeId, term: Term, index: LogIndex) {
        if term != self.group.status().term {
            return;
        }
        if term != self.written_term {
            self.written.clear();
            self.written_term = term;
        }
        let entry = self.written.entry(member).or_default();
        *entry = (*entry).max(index);
    }

    /// The index up to which enough members have written this leader's log for a majority. Volatile.
    ///
    /// While no member beyond a majority is alive, written is not enough: the loss of one more would lose what was
    /// confirmed. Then this is what is committed. A group of one has no spare by intent, and written means written.
    pub fn written_index(&self) -> LogIndex {
        let status = self.group.status();
        if self.written_term != status.term || status.role != Role::Leader {
            return LogIndex(0);
        }
        let voters = &self.voters;
        let majority = voters.len() / 2 + 1;
        if let [_] = voters.as_slice() {
            return self.written.get(&self.node).copied().unwrap_or_default();
        }
        if self.group.active_voters() <= majority {
            return status.commit;
        }
        let mut indexes: Vec<LogIndex> =
            voters.iter().map(|v| self.written.get(v).copied().unwrap_or_default()).collect();
        indexes.sort_unstable_by(|a, b| b.cmp(a));
        indexes.get(majority - 1).copied().unwrap_or_default()
    }

    /// A write was handed to the operating system; `bodies` are the places of its entries.
    pub fn wal_written(&mut self, ticket: Ticket, bodies: &[Location], out: &mut Outputs) {
        let node = self.node;
        let Some(write) = self.writes.iter_mut().find(|w| w.ticket == ticket) else { return };
        if write.located {
            return;
        }
        write.located = true;
        assert_eq!(write.entries.len(), bodies.len(), "every entry was written somewhere");
        let last = write.entries.last().copied();
        for ((index, term), body) in write.entries.iter().zip(bodies) {
            self.table.written(*index, *term, *body);
        }
        let Some((index, term)) = last else { return };
        let status = self.group.status();
        // Only an entry of the current term says anything: it came from this term's leader, or is its own, so the log up
        // to it matches the leader's. One of an older term may yet be overwritten (Raft paper, figure 8).
        if self.table.term(index) != Some(term) || term != status.term {
            return;
        }
        if status.role == Role::Leader {
            self.note_written(node, status.term, index);
        } else if let Some(leader) = status.leader.filter(|_| term == status.term) {
            // An entry of the leader's own term: logs that share it share all before. One of an older term proves
            // nothing, as the leader may have another entry there, and would count this member for that one.
            let mut frame = BytesMut::with_capacity(17);
            frame.put_u8(FRAME_WRITTEN);
            frame.put_u64_le(status.term.0);
            frame.put_u64_le(index.0);
            out.frames.push((leader, self.id, frame.freeze()));
        }
    }

    /// Every write up to and including `ticket` is on the disk.
    pub fn wal_synced(&mut self, ticket: Ticket, out: &mut Outputs) {
        while self.writes.front().is_some_and(|w| w.ticket <= ticket) {
            let write = self.writes.pop_front().expect("there is a first");
            assert!(write.located, "what is synced was written");
            if let Some(number) = write.ready {
                self.group.persisted(number);
            }
            self.send(write.after_sync, out);
        }
    }

    /// A tick went by.
    pub fn tick(&mut self) {
        self.group.tick();
    }

    /// Takes out what the group has to say, until it has no more.
    pub fn drive(&mut self, out: &mut Outputs) {
        let mut ready = std::mem::take(&mut self.ready);
        while self.group.ready(&mut ready) {
            self.send(std::mem::take(&mut ready.messages), out);
            self.write(&mut ready, out);
            self.committed.extend(ready.committed.drain(..));
            for fetch in ready.fetches.drain(..) {
                self.fetch(fetch.from, fetch.limit, fetch.bytes_max, out);
            }
            if let Some(snapshot) = ready.snapshot.take() {
                self.snapshot = Some(snapshot);
            }
        }
        self.ready = ready;
    }

    fn send(&mut self, messages: Vec<Message>, out: &mut Outputs) {
        for message in messages {
            let mut segments = Segments::new();
            segments.put_u8(FRAME_RAFT);
            message.encode(&mut segments);
            out.frames.push((message.to(), self.id, segments.to_bytes()));
        }
    }

    fn write(&mut self, ready: &mut Ready, out: &mut Outputs) {
        let group = GroupId(self.id.0);
        let mut records = Vec::with_capacity(ready.append.len() + 1);
        let mut entries = Vec::with_capacity(ready.append.len());
        let mut sync = SyncWish::Within(u32::from(crate::entry::SYNC_WITHIN_MS_MAX));
        if let Some(hard) = ready.hard_state.take() {
            // The commit index need not be stored: it is found again by whoever leads. Votes and terms always are.
            if (hard.term, hard.vote) != self.stored_vote {
                self.stored_vote = (hard.term, hard.vote);
                sync = SyncWish::Now;
                let vote = hard.vote.map_or(0, |v| v.0);
                let body = Bytes::copy_from_slice(&vote.to_le_bytes());
                records.push(Record { group, kind: RecordKind::HardState, term: hard.term.0, index: 0, body });
            }
        }
        for entry in ready.append.drain(..) {
            self.table.append(entry.index, entry.term, None);
            sync = match entry.kind {
                EntryKind::Command => sync.min(sync_wish(&entry.data)),
                EntryKind::Empty | EntryKind::Membership => SyncWish::Now,
            };
            let body = body_of(&entry);
            self.appended_bytes += body.len() as u64;
            entries.push((entry.index, entry.term));
            records.push(Record { group, kind: RecordKind::Entry, term: entry.term.0, index: entry.index.0, body });
        }
        let after_sync = std::mem::take(&mut ready.messages_after_sync);
        if records.is_empty() && self.writes.is_empty() {
            // Nothing to write and nothing before it on its way: it is as good as synced.
            self.group.persisted(ready.number);
            self.send(after_sync, out);
            return;
        }
        if records.is_empty() {
            // It rests on the writes before it: it is persisted, and may be sent, with the last of them.
            let last = self.writes.back_mut().expect("there is a write under way");
            last.ready = Some(ready.number);
            last.after_sync.extend(after_sync);
            return;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        // Where an entry lies is needed when it is applied, and the leader counts followers that have written.
        let report_written = !entries.is_empty() && sync != SyncWish::Now || self.voters.len() > 1;
        let located = entries.is_empty();
        self.writes.push_back(Write { ticket, ready: Some(ready.number), after_sync, entries, located });
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync, report_written });
    }

    /// A barrier for everything this member's node has written so far; answered like a write.
    pub fn barrier(&mut self, out: &mut Outputs) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let write = Write { ticket, ready: None, after_sync: Vec::new(), entries: Vec::new(), located: true };
        self.writes.push_back(write);
        out.wal.push(WalWrite {
            partition: self.id,
            ticket,
            records: Vec::new(),
            sync: SyncWish::Now,
            report_written: false,
        });
        ticket
    }

    fn fetch(&mut self, from: LogIndex, limit: LogIndex, bytes_max: u64, out: &mut Outputs) {
        let (mut places, mut bytes) = (Vec::new(), 0);
        for index in from.0..limit.0 {
            let Some(body) = self.table.body(LogIndex(index)) else { break };
            if !places.is_empty() && bytes + u64::from(body.bytes) > bytes_max {
                break;
            }
            bytes += u64::from(body.bytes);
            places.push(body);
        }
        out.reads.push(Read {
            partition: self.id,
            at: ReadAt::Records(places),
            purpose: ReadPurpose::Entries { from },
        });
    }

    /// Bodies of entries from `from` on, read for a follower.
    pub fn fetched(&mut self, from: LogIndex, bodies: Vec<Bytes>) {
        let entries = bodies.into_iter().enumerate().map_while(|(i, body)| {
            let index = LogIndex(from.0 + i as u64);
            self.table.term(index).map(|term| entry_of(index, term, body))
        });
        let entries: Vec<Entry> = entries.collect();
        self.group.fetched(from, entries);
    }

    /// The next committed entry. The caller applies it and says so.
    pub fn next_committed(&mut self) -> Option<Committed> {
        let index = self.committed.front()?.index;
        // Handed out by the group only once this member has persisted it.
        let body = self.table.body(index).expect("what is committed here was written here");
        let entry = self.committed.pop_front().expect("there is a first");
        Some(Committed { entry, body })
    }

    /// Entries up to `index` are applied.
    pub fn applied(&mut self, index: LogIndex, changes_members: bool) {
        self.group.applied(index);
        if changes_members {
            self.voters = self.group.membership().voters;
        }
    }

    /// A checkpoint at `index` is safe: the log up to there may go, as far as followers do not need it.
    pub fn compact(&mut self, index: LogIndex) {
        self.group.compact(index);
        self.table.compact(index);
        self.appended_bytes = 0;
    }

    /// A snapshot that the leader sent, to be fetched and installed.
    pub fn take_snapshot(&mut self) -> Option<consensus::SnapshotOffer> {
        self.snapshot.take()
    }
}

/// The body of an entry as the WAL has it; a command's own bytes are not copied.
pub fn body_of(entry: &Entry) -> Bytes {
    match entry.kind {
        EntryKind::Command => entry.data.clone(),
        EntryKind::Empty => Bytes::new(),
        EntryKind::Membership => {
            let mut marked = BytesMut::with_capacity(entry.data.len() + 1);
            marked.put_u8(MEMBERSHIP_MARK);
            marked.put_slice(&entry.data);
            marked.freeze()
        }
    }
}

/// An entry as the WAL has it.
pub fn entry_of(index: LogIndex, term: Term, body: Bytes) -> Entry {
    match body.first() {
        None => Entry { index, term, kind: EntryKind::Empty, data: body },
        Some(&MEMBERSHIP_MARK) => Entry { index, term, kind: EntryKind::Membership, data: body.slice(1..) },
        Some(_) => Entry { index, term, kind: EntryKind::Command, data: body },
    }
}

//! What a member has its node write to the WAL, what follows once that is synced, and how an entry stands there.
//!
//! Invariant: writes are answered in their order, and a message that promises something leaves only after the write it
//! rests on was synced.

use super::Replica;
use crate::ending::tombstone_body;
use crate::entry::{is_write_awaited, sync_wish};
use crate::outputs::{Outputs, SyncWish, Ticket, WalWrite};
use bytes::{BufMut, Bytes, BytesMut};
use consensus::{Entry, EntryKind, LogIndex, Message, NodeId, Position, Ready, Term};
use smallvec::SmallVec;
use storage::{GroupId, Record, RecordKind};

/// First byte of a stored membership entry; commands start with their version, which is far below.
const MEMBERSHIP_MARK: u8 = 0xFE;

/// A write under way.
pub(super) struct Write {
    pub(super) ticket: Ticket,
    pub(super) ready: Option<u64>,
    pub(super) after_sync: Vec<Message>,
    /// The term in it, if it has one.
    pub(super) term: Option<Term>,
    /// Positions of the entries in it, in order.
    pub(super) entries: SmallVec<[(LogIndex, Term); 1]>,
    pub(super) located: bool,
}

impl Replica {
    /// Every write up to and including `ticket` is on the disk.
    pub fn wal_synced(&mut self, ticket: Ticket, out: &mut Outputs) {
        while self.writes.front().is_some_and(|w| w.ticket <= ticket) {
            let write = self.writes.pop_front().expect("there is a first");
            assert!(write.located, "what is synced was written");
            if let Some(term) = write.term {
                self.synced_term = term;
                self.say_unsaid(out);
            }
            if let Some(number) = write.ready {
                self.group.persisted(number);
            }
            self.send(write.after_sync, out);
        }
        self.change_unsynced = self.change_unsynced.filter(|change| *change > ticket);
        if let Some(install) = &mut self.installing {
            install.is_synced |= install.ticket <= ticket;
        }
    }

    /// Its writes come behind this one, of a member that its node was before.
    pub fn write_behind(&mut self, last: Ticket) {
        self.next_ticket = self.next_ticket.max(last.0 + 1);
    }

    pub(super) fn write(&mut self, ready: &mut Ready, out: &mut Outputs) {
        let group = GroupId(self.id.0);
        let snapshot = ready.snapshot.take();
        // Often there is nothing to write: what is committed, or a message.
        let mut records = Vec::new();
        if !ready.append.is_empty() {
            records.reserve(ready.append.len() + 1);
        }
        let mut entries = SmallVec::with_capacity(ready.append.len());
        let mut new_term = None;
        let mut sync = SyncWish::Within(u32::from(crate::entry::SYNC_WITHIN_MS_MAX));
        if let Some(hard) = ready.hard_state.take() {
            // The commit index need not be stored: it is found again by whoever leads, and as far
            // as members depend on it, in the log itself (`Restored`). Votes and terms always are.
            if (hard.term, hard.vote) != self.stored_vote {
                self.stored_vote = (hard.term, hard.vote);
                new_term = Some(hard.term);
                sync = SyncWish::Now;
                records.push(hard_state(group, self.stored_vote));
            }
        }
        let mut awaited = false;
        for entry in ready.append.drain(..) {
            self.table.append(entry.index, entry.term, None);
            sync = match entry.kind {
                EntryKind::Command => sync.min(sync_wish(&entry.data)),
                EntryKind::Empty | EntryKind::Membership => SyncWish::Now,
            };
            awaited |= is_write_awaited(&entry.data);
            let body = body_of(&entry);
            // The log has a command as it is, and puts something before the others.
            let body_crc = entry.crc.filter(|_| entry.kind == EntryKind::Command);
            self.appended_bytes += body.len() as u64;
            self.appended_in_all += body.len() as u64;
            entries.push((entry.index, entry.term));
            records.push(Record {
                group,
                kind: RecordKind::Entry,
                term: entry.term.0,
                index: entry.index.0,
                body,
                body_crc,
            });
        }
        let after_sync = std::mem::take(&mut ready.messages_after_sync);
        if let Some(offer) = snapshot {
            return self.cut(offer, ready.number, after_sync, records, out);
        }
        if records.is_empty() && self.writes.is_empty() {
            // Nothing to write and nothing before it on its way: it is as good as synced.
            self.group.persisted(ready.number);
            self.send(after_sync, out);
            return;
        }
        if records.is_empty() {
            // It rests on the writes before it: it is persisted, and may be sent, with the last of
            // them.
            let last = self.writes.back_mut().expect("there is a write under way");
            last.ready = Some(ready.number);
            last.after_sync.extend(after_sync);
            return;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        // With more than one member the leader counts followers that have written.
        let report_written = awaited && sync != SyncWish::Now || self.voters.len() > 1;
        let located = entries.is_empty();
        let ready = Some(ready.number);
        self.writes.push_back(Write { ticket, ready, after_sync, term: new_term, entries, located });
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync, report_written });
    }

    /// A barrier for everything this member's node has written so far; answered like a write.
    pub fn barrier(&mut self, out: &mut Outputs) -> Ticket {
        self.write_beside(Vec::new(), out)
    }

    /// Writes that a change of members is committed, which has taken effect here: its entry alone does not say
    /// so, and a start that does not know it looks for a majority of the members before, who may be gone.
    pub(super) fn note_change(&mut self, change: Position, out: &mut Outputs) {
        let (group, kind, body) = (GroupId(self.id.0), RecordKind::Membership, Bytes::new());
        let record = Record { group, kind, term: change.term.0, index: change.index.0, body, body_crc: None };
        self.change_unsynced = Some(self.write_beside(vec![record], out));
    }

    /// Writes up to where this member has applied the log, as its node ends: after the next start it knows that all of
    /// that is decided, and a leader that would write over it is found out. Nothing is written of what a checkpoint
    /// says already.
    pub fn note_applied(&mut self, applied: LogIndex, out: &mut Outputs) {
        let Some(term) = self.table.term(applied).filter(|_| self.group.halted().is_none()) else { return };
        let (group, kind, body) = (GroupId(self.id.0), RecordKind::Membership, Bytes::new());
        let record = Record { group, kind, term: term.0, index: applied.0, body, body_crc: None };
        self.write_beside(vec![record], out);
    }

    /// Writes what the group does not wait for.
    fn write_beside(&mut self, records: Vec<Record>, out: &mut Outputs) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let (entries, located) = (SmallVec::new(), true);
        let write = Write { ticket, ready: None, after_sync: Vec::new(), term: None, entries, located };
        self.writes.push_back(write);
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync: SyncWish::Now, report_written: false });
        ticket
    }

    /// Writes that the group has ended on this node, behind all that was written of it; and its
    /// last entry.
    pub(crate) fn write_tombstone(&mut self, out: &mut Outputs) -> (Ticket, Position) {
        let last = self.group.status().last;
        let record = Record {
            group: GroupId(self.id.0),
            kind: RecordKind::Tombstone,
            term: last.term.0,
            index: last.index.0,
            body: tombstone_body(self.node.life()),
            body_crc: None,
        };
        let ticket = Ticket(self.next_ticket);
        let (records, sync) = (vec![record], SyncWish::Now);
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync, report_written: false });
        (ticket, last)
    }
}

/// A record of the log that says what a member knows of its group's term.
pub(crate) fn hard_state(group: GroupId, (term, vote): (Term, Option<NodeId>)) -> Record {
    let body = Bytes::copy_from_slice(&vote.map_or(0, |node| node.0).to_le_bytes());
    Record { group, kind: RecordKind::HardState, term: term.0, index: 0, body, body_crc: None }
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
        None => Entry { index, term, kind: EntryKind::Empty, data: body, crc: None },
        Some(&MEMBERSHIP_MARK) => Entry { index, term, kind: EntryKind::Membership, data: body.slice(1..), crc: None },
        Some(_) => Entry { index, term, kind: EntryKind::Command, data: body, crc: None },
    }
}

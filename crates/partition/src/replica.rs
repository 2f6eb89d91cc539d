//! One member of one Raft group over the node's WAL: what is appended, written, synced, sent and
//! committed, in order.
//!
//! Invariants: a message that promises something leaves only after the write it rests on was
//! synced; entries are handed on once committed, in order, each with the place where it lies; the
//! weaker index (`written`) is volatile, belongs to one term and never moves Raft's own.
//!
//! Frames to other members: [`crate::peer`]. Those about what may be forgotten are handled in
//! `replica/doubt.rs`, those about members that are to go in `replica/leaving.rs`.

mod doubt;
mod leaving;
#[cfg(test)]
mod tests;

use crate::ending::tombstone_body;
use crate::entry::{is_write_awaited, sync_wish};
use crate::log_index::LogTable;
use crate::machine::ROOM_KEPT;
use crate::outputs::{Halted, ImageRefused, Outputs, Read, ReadAt, ReadPurpose, SyncWish, Ticket, WalWrite};
use crate::peer::PeerFrame;
use broker::PartitionId;
use bytes::{BufMut, Bytes, BytesMut};
use consensus::{
    Entry, EntryKind, Group, Kind, LogIndex, Membership, Message, NodeId, Position, ReadState, Ready, SnapshotOffer,
    SnapshotWanted, Term,
};
use doubt::{Doubt, Doubtful};
use leaving::Leaving;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use storage::{GroupId, Location, Record, RecordKind};

/// First byte of a stored membership entry; commands start with their version, which is far below.
const MEMBERSHIP_MARK: u8 = 0xFE;

/// A follower that needs more files of the log than this gets a snapshot.
const FOLLOWER_LAG_FILES_MAX: u32 = 4;

/// See [`Replica::is_unspared`].
const UNSPARED_TICKS: u32 = 2;

/// A write under way.
struct Write {
    ticket: Ticket,
    ready: Option<u64>,
    after_sync: Vec<Message>,
    /// The term in it, if it has one.
    term: Option<Term>,
    /// Positions of the entries in it, in order.
    entries: SmallVec<[(LogIndex, Term); 1]>,
    located: bool,
}

/// A snapshot on its way into the state.
struct Install {
    position: Position,
    membership: Membership,
    ready: u64,
    after_sync: Vec<Message>,
    /// The mark that cuts the log.
    ticket: Ticket,
    is_synced: bool,
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
    /// What the group wants done; away while it is looked at.
    ready: Option<Box<Ready>>,
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
    /// The same since the start.
    appended_in_all: u64,
    /// Snapshots that followers need, to be made.
    wanted: Vec<SnapshotWanted>,
    /// Answers to what was asked by [`Group::read_index`].
    read_states: Vec<ReadState>,
    /// A snapshot that the leader offers, kept from the group until its contents are here.
    offered: Option<Message>,
    installing: Option<Install>,
    /// The voters, as of the last change: asked for at every write.
    voters: Vec<NodeId>,
    /// Whether the voters before them count too, as they do in the middle of a change.
    is_joint: bool,
    /// The members whose nodes had left the group before.
    returned: Vec<NodeId>,
    /// It is to leave the group, and asks whether it has.
    leaving: Option<Leaving>,
    /// The write which says that the last change of members is committed, until it is synced.
    change_unsynced: Option<Ticket>,
    /// The newest term that is synced.
    synced_term: Term,
    /// What is written of the leader's log and not said, as the term is not synced.
    unsaid: Option<(Term, LogIndex)>,
    /// What this member may have forgotten.
    doubt: Option<Doubt>,
    /// Members that told this leader that they may have forgotten something.
    doubtful: Doubtful,
    /// Frames for other members that wait for the next turn.
    frames: Vec<(NodeId, PeerFrame)>,
    is_halt_told: bool,
    /// For the operator, with the next turn.
    refused_images: Vec<ImageRefused>,
    /// Ticks in a row at which this leader had no member to spare.
    unspared_ticks: u32,
}

/// A record of the log that says what a member knows of its group's term.
pub(crate) fn hard_state(group: GroupId, (term, vote): (Term, Option<NodeId>)) -> Record {
    let body = Bytes::copy_from_slice(&vote.map_or(0, |node| node.0).to_le_bytes());
    Record { group, kind: RecordKind::HardState, term: term.0, index: 0, body }
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
        let mut replica = Replica {
            id,
            node,
            group,
            voters: Vec::new(),
            is_joint: false,
            returned: Vec::new(),
            leaving: None,
            change_unsynced: None,
            ready: None,
            next_ticket: 1,
            writes: VecDeque::new(),
            table,
            committed: VecDeque::new(),
            stored_vote,
            written: BTreeMap::new(),
            written_term: Term(0),
            appended_bytes: 0,
            appended_in_all: 0,
            wanted: Vec::new(),
            read_states: Vec::new(),
            offered: None,
            installing: None,
            synced_term: stored_vote.0,
            unsaid: None,
            doubt: None,
            doubtful: Doubtful::default(),
            frames: Vec::new(),
            is_halt_told: false,
            refused_images: Vec::new(),
            unspared_ticks: 0,
        };
        replica.note_members();
        replica
    }

    /// Gives the memory of a burst back, as after a start, where the whole log was committed at
    /// once.
    pub(crate) fn trim(&mut self) {
        if let Some(ready) = &mut self.ready {
            ready.trim(ROOM_KEPT);
        }
        self.committed.shrink_to(ROOM_KEPT);
        self.table.trim();
    }

    /// How many committed entries it has room for, whether they wait to be applied or did.
    pub fn room_for_committed(&self) -> usize {
        self.committed.capacity().max(self.ready.as_ref().map_or(0, |ready| ready.committed.capacity()))
    }

    /// Its partition.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// This member.
    pub fn node(&self) -> NodeId {
        self.node
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

    /// Bytes appended since the start.
    pub fn appended_in_all(&self) -> u64 {
        self.appended_in_all
    }

    /// Whether it is the only one with a vote.
    pub fn is_alone(&self) -> bool {
        self.voters.len() == 1 && !self.is_joint
    }

    /// Whether this member is to leave the group, as its node has heard.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether this member leads.
    pub fn is_leader(&self) -> bool {
        self.group.is_leader()
    }

    /// Appends a command as the leader; its index in this term, or `None` if this member does not
    /// lead (any more).
    pub fn propose(&mut self, data: Bytes) -> Option<LogIndex> {
        self.group.propose(data).ok().map(|position| position.index)
    }

    /// A frame came from another member. Those of snapshots and of damaged messages are not for it,
    /// and dropped.
    pub fn step(&mut self, from: NodeId, frame: PeerFrame) {
        match frame {
            PeerFrame::Raft(message) if message.to() != self.node => {}
            PeerFrame::Raft(message) if message.kind() == Kind::Snapshot => {
                self.note_lead(&message);
                self.offered = Some(message);
            }
            // A message of an old term or from a stranger is refused; nothing is owed to it.
            PeerFrame::Raft(message) => {
                self.note_lead(&message);
                _ = self.group.step(message);
            }
            PeerFrame::Written { term, index } => {
                self.doubtful.caught_up(from, term);
                self.note_written(from, term, index);
            }
            PeerFrame::AskEnd { term, life } => self.say_end(from, term, life),
            PeerFrame::EndOfLog { term, life, index } => self.hear_end(from, term, life, index),
            PeerFrame::AskLeft { member } => self.say_left(from, member),
            PeerFrame::Left(left) => self.hear_left(left),
            _ => {}
        }
    }

    fn note_written(&mut self, member: NodeId, term: Term, index: LogIndex) {
        if term != self.group.term() {
            return;
        }
        if term != self.written_term {
            self.written.clear();
            self.written_term = term;
        }
        let entry = self.written.entry(member).or_default();
        *entry = (*entry).max(index);
    }

    /// The index up to which this leader has written its own log; 0 where nobody waited for that.
    pub fn own_written(&self) -> LogIndex {
        let is_of_now = self.written_term == self.group.term();
        self.written.get(&self.node).copied().filter(|_| is_of_now).unwrap_or_default()
    }

    /// The index up to which enough members have written this leader's log for a majority.
    /// Volatile.
    ///
    /// While no member beyond a majority is alive, written is not enough: the loss of one more
    /// would lose what was confirmed. Then this is what is committed. A group of one has no spare
    /// by intent, and written means written.
    pub fn written_index(&self) -> LogIndex {
        if self.written_term != self.group.term() || !self.group.is_leader() {
            return LogIndex(0);
        }
        if self.lacks_spare(self.group.term()) {
            return self.group.commit();
        }
        let voters = &self.voters;
        let majority = voters.len() / 2 + 1;
        if let [_] = voters.as_slice() {
            return self.written.get(&self.node).copied().unwrap_or_default();
        }
        let mut indexes: Vec<LogIndex> =
            voters.iter().map(|v| self.written.get(v).copied().unwrap_or_default()).collect();
        indexes.sort_unstable_by(|a, b| b.cmp(a));
        indexes.get(majority - 1).copied().unwrap_or_default()
    }

    /// Whether a leader of several members has none beyond a majority.
    fn lacks_spare(&self, term: Term) -> bool {
        // In the middle of a change a majority of those before is needed as well: members who do not
        // know of it yet elect without the others.
        if self.is_joint {
            return true;
        }
        let (voters, majority) = (self.voters.len(), self.voters.len() / 2 + 1);
        // Who may have forgotten something is no spare: it would be missing at an election.
        voters > 1 && self.group.active_voters().saturating_sub(self.doubtful.count(term)) <= majority
    }

    /// Whether what waits for *written* waits for the disks of a majority, as this leader has had no member to
    /// spare for two ticks. Right after it looked who is there it counts those who answered since, so the
    /// moment alone says little.
    pub fn is_unspared(&self) -> bool {
        self.unspared_ticks >= UNSPARED_TICKS
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
        // Only an entry of the current term says anything: it came from this term's leader, or is
        // its own, so the log up to it matches the leader's. One of an older term may yet be
        // overwritten (Raft paper, figure 8).
        if term != self.group.term() || self.table.term(index) != Some(term) {
            return;
        }
        if self.group.is_leader() {
            self.note_written(node, term, index);
        } else if let Some(leader) = self.group.leader() {
            // An entry of the leader's own term: logs that share it share all before. One of an
            // older term proves nothing, as the leader may have another entry there, and would
            // count this member for that one.
            if term != self.synced_term {
                // Said before, it could be forgotten together with the term: an old leader could
                // then make this member catch up with a log that lacks the entry.
                self.unsaid = Some((term, index));
            } else if self.doubt.is_none() {
                self.say_written(leader, term, index, out);
            }
        }
    }

    fn say_written(&self, leader: NodeId, term: Term, index: LogIndex, out: &mut Outputs) {
        out.frames.push((leader, self.id, PeerFrame::Written { term, index }));
    }

    /// The term is synced: what was written meanwhile may be said.
    fn say_unsaid(&mut self, out: &mut Outputs) {
        let Some((term, index)) = self.unsaid.filter(|(term, _)| *term <= self.synced_term) else { return };
        self.unsaid = None;
        let leader = self.group.leader().filter(|leader| *leader != self.node && self.doubt.is_none());
        if let Some(leader) = leader.filter(|_| term == self.group.term() && self.table.term(index) == Some(term)) {
            self.say_written(leader, term, index, out);
        }
    }

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

    /// Gives up leading, if it leads.
    pub fn resign(&mut self) {
        self.group.resign();
    }

    /// A tick went by.
    pub fn tick(&mut self) {
        self.group.tick();
        let lacks_spare = self.is_leader() && self.lacks_spare(self.group.term());
        self.unspared_ticks = if lacks_spare { self.unspared_ticks.saturating_add(1) } else { 0 };
        self.ask_for_memory();
    }

    /// Takes out what the group has to say, until it has no more.
    pub fn drive(&mut self, out: &mut Outputs) {
        let mut ready = self.ready.take().unwrap_or_default();
        // While a snapshot is on its way into the state nothing else is taken up: it is a matter of
        // one checkpoint.
        while self.installing.is_none() && self.group.ready(&mut ready) {
            self.send(std::mem::take(&mut ready.messages), out);
            self.write(&mut ready, out);
            self.committed.extend(ready.committed.drain(..));
            for fetch in ready.fetches.drain(..) {
                self.fetch(fetch.from, fetch.limit, fetch.bytes_max, out);
            }
            self.wanted.append(&mut ready.snapshots_wanted);
            self.read_states.append(&mut ready.read_states);
        }
        self.ready = Some(ready);
        self.end_doubt(out);
        out.frames.extend(self.frames.drain(..).map(|(to, frame)| (to, self.id, frame)));
        out.refused_images.append(&mut self.refused_images);
        if let Some(why) = self.group.halted().filter(|_| !self.is_halt_told) {
            self.is_halt_told = true;
            out.halted.push(Halted { partition: self.id, why });
        }
    }

    fn send(&mut self, messages: Vec<Message>, out: &mut Outputs) {
        out.frames.extend(messages.into_iter().map(|message| (message.to(), self.id, PeerFrame::Raft(message))));
    }

    fn write(&mut self, ready: &mut Ready, out: &mut Outputs) {
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
            self.appended_bytes += body.len() as u64;
            self.appended_in_all += body.len() as u64;
            entries.push((entry.index, entry.term));
            records.push(Record { group, kind: RecordKind::Entry, term: entry.term.0, index: entry.index.0, body });
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

    /// Writes the mark behind which the log begins anew. The group hears of it when the snapshot's
    /// checkpoint is saved.
    fn cut(
        &mut self,
        offer: SnapshotOffer,
        ready: u64,
        after_sync: Vec<Message>,
        mut records: Vec<Record>,
        out: &mut Outputs,
    ) {
        let SnapshotOffer { position, membership, .. } = offer;
        assert!(records.iter().all(|r| r.kind == RecordKind::HardState), "entries come behind a snapshot, not with it");
        records.push(Record {
            group: GroupId(self.id.0),
            kind: RecordKind::SnapshotMark,
            term: position.term.0,
            index: position.index.0,
            body: Bytes::new(),
        });
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let term = Some(self.stored_vote.0);
        let (entries, located) = (SmallVec::new(), true);
        self.writes.push_back(Write { ticket, ready: None, after_sync: Vec::new(), term, entries, located });
        self.installing = Some(Install { position, membership, ready, after_sync, ticket, is_synced: false });
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync: SyncWish::Now, report_written: false });
    }

    /// A barrier for everything this member's node has written so far; answered like a write.
    pub fn barrier(&mut self, out: &mut Outputs) -> Ticket {
        self.write_beside(Vec::new(), out)
    }

    /// Writes that a change of members is committed, which has taken effect here: its entry alone does not say
    /// so, and a start that does not know it looks for a majority of the members before, who may be gone.
    fn note_change(&mut self, change: Position, out: &mut Outputs) {
        let (group, kind, body) = (GroupId(self.id.0), RecordKind::Membership, Bytes::new());
        let record = Record { group, kind, term: change.term.0, index: change.index.0, body };
        self.change_unsynced = Some(self.write_beside(vec![record], out));
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
        };
        let ticket = Ticket(self.next_ticket);
        let (records, sync) = (vec![record], SyncWish::Now);
        out.wal.push(WalWrite { partition: self.id, ticket, records, sync, report_written: false });
        (ticket, last)
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

    /// An applied entry that a follower needs cannot be read here any more: it is given up, with
    /// all before it, and who needs one of them gets a snapshot. False if that was so already.
    pub(crate) fn give_up_through(&mut self, index: LogIndex) -> bool {
        let status = self.group.status();
        if index <= status.compacted.index || index > status.applied {
            return false;
        }
        // What is on the disk stays: a start reads it, and may find it readable.
        self.group.compact(index);
        self.table.compact(index);
        true
    }

    /// The next committed entry. The caller applies it and says so.
    pub fn next_committed(&mut self) -> Option<Committed> {
        let index = self.committed.front()?.index;
        // Handed out by the group only once this member has persisted it.
        let body = self.table.body(index).expect("what is committed here was written here");
        let entry = self.committed.pop_front().expect("there is a first");
        Some(Committed { entry, body })
    }

    /// Entries up to `index` are applied. `change`: the last change of members among them.
    pub fn applied(&mut self, index: LogIndex, change: Option<Position>, out: &mut Outputs) {
        self.group.applied(index);
        if let Some(change) = change {
            self.note_members();
            self.note_change(change, out);
        }
    }

    fn note_members(&mut self) {
        let Membership { voters, voters_outgoing, learners, .. } = self.group.membership();
        let all = voters.iter().chain(&voters_outgoing).chain(&learners);
        self.returned = all.copied().filter(|member| member.life() > 0).collect();
        (self.voters, self.is_joint) = (voters, !voters_outgoing.is_empty());
    }

    /// The member of the group that a node is, of which the number alone is known. One that is none is
    /// what it was first.
    #[inline]
    pub(crate) fn member_of(&self, node: NodeId) -> NodeId {
        self.returned.iter().find(|member| member.number() == node.number()).copied().unwrap_or(node)
    }

    /// A checkpoint at `index` is safe: the log up to there may go, as far as followers do not need
    /// it.
    pub fn compact(&mut self, index: LogIndex) {
        self.group.compact(index);
        self.table.compact(index);
        self.appended_bytes = 0;
    }

    /// Up to where followers that are heard of have the log, and those that have a snapshot will
    /// have it (`sent`); none if they have it all, or lag too many files behind.
    pub(crate) fn followers_need(&self, current_file: u32, sent: Option<LogIndex>) -> Option<LogIndex> {
        let active = self.group.progress().into_iter().filter(|p| p.is_recently_active).map(|p| p.matched);
        let needed = active.chain(sent).min()?;
        let from = self.table.body(needed.next())?;
        (crate::place::file_u32(from.file) + FOLLOWER_LAG_FILES_MAX >= current_file).then_some(needed)
    }

    /// Followers that need a snapshot.
    pub(crate) fn take_snapshots_wanted(&mut self) -> Vec<SnapshotWanted> {
        std::mem::take(&mut self.wanted)
    }

    /// A follower cannot be sent a snapshot.
    pub(crate) fn tell_refused(&mut self, refused: ImageRefused) {
        self.refused_images.push(refused);
    }

    /// Answers that came to [`Group::read_index`].
    pub(crate) fn take_read_states(&mut self) -> Vec<ReadState> {
        std::mem::take(&mut self.read_states)
    }

    /// A snapshot that the leader offers. Its contents are fetched before the group hears of it,
    /// which until then goes on with the log it has: a member that can only wait would be missing
    /// at an election.
    pub(crate) fn take_offered(&mut self) -> Option<Message> {
        self.offered.take()
    }

    /// The group takes in an offered snapshot.
    pub(crate) fn step_offered(&mut self, message: Message) {
        // One of an old term is refused; nothing is owed to it.
        let _ = self.group.step(message);
    }

    /// Whether a snapshot is on its way into the state.
    pub(crate) fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// Where the snapshot stands that is on its way into the state.
    pub(crate) fn installing(&self) -> Option<Position> {
        self.installing.as_ref().map(|i| i.position)
    }

    /// Once the log is cut on the disk: the members as of the snapshot being installed.
    pub(crate) fn cut_is_synced(&self) -> Option<Membership> {
        self.installing.as_ref().filter(|i| i.is_synced).map(|i| i.membership.clone())
    }

    /// The snapshot's checkpoint is saved: the log goes on behind it.
    pub(crate) fn installed(&mut self, out: &mut Outputs) {
        let install = self.installing.take().expect("a snapshot is being installed");
        self.table = LogTable::new(install.position.index);
        self.committed.clear();
        self.group.persisted(install.ready);
        self.group.applied(install.position.index);
        self.note_members();
        self.appended_bytes = 0;
        self.send(install.after_sync, out);
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

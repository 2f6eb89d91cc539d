//! One member of one Raft group over the node's WAL: what is appended, written, synced, sent and
//! committed, in order.
//!
//! Invariant: entries are handed on once committed, in order, each with the place where it lies.
//!
//! What it writes, and what rests on that, is in `replica/writes.rs`; what counts as written, synced
//! or not, in `replica/written.rs`; a snapshot that takes the place of the log in
//! `replica/snapshot.rs`. Frames to other members: [`crate::peer`]. Those about what may be forgotten
//! are handled in `replica/doubt.rs`, those about members that are to go in `replica/leaving.rs`.

mod doubt;
mod leaving;
mod snapshot;
#[cfg(test)]
mod tests;
mod writes;
mod written;

pub(crate) use writes::hard_state;
pub use writes::{body_of, entry_of};

use crate::log_index::LogTable;
use crate::machine::ROOM_KEPT;
use crate::outputs::{Halted, ImageRefused, Outputs, Read, ReadAt, ReadPurpose, Ticket};
use crate::peer::PeerFrame;
use broker::PartitionId;
use bytes::Bytes;
use consensus::{
    Entry, Group, Kind, LogIndex, Membership, Message, NodeId, Position, ReadState, Ready, SnapshotWanted, Term,
};
use doubt::{Doubt, Doubtful};
use leaving::Leaving;
use snapshot::Install;
use std::collections::{BTreeMap, VecDeque};
use storage::Location;
use writes::Write;

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
    /// lead (any more). `crc`: the checksum of `data`, if somebody has taken it.
    pub fn propose(&mut self, data: Bytes, crc: Option<u32>) -> Option<LogIndex> {
        self.group.propose_summed(data, crc).ok().map(|position| position.index)
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

    /// Gives up leading, if it leads.
    pub fn resign(&mut self) {
        self.group.resign();
    }

    /// A leader says nothing with the next tick.
    pub fn hold_heartbeat(&mut self) {
        self.group.hold_heartbeat();
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

    /// Answers that came to [`Group::read_index`].
    pub(crate) fn take_read_states(&mut self) -> Vec<ReadState> {
        std::mem::take(&mut self.read_states)
    }
}

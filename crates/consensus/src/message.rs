//! What members of a group say to each other, and its form on the wire.
//!
//! ```text
//! version u8 = 1
//! kind    u8     low six bits: the kind; 0x80 reject, 0x40 forced (a vote asked for by the old leader) or, on a
//!                granted vote, forgetful (the voter may have forgotten the end of its log)
//! present u8     which of the eight numbers below are not zero, least bit first
//! group, from, to                                                                     varint each
//! term, log term, index, commit, commit term, reject hint, request snapshot, priority  varint each, as present says
//! then by kind
//!   append                 count varint, per entry { kind u8, terms back u64, body length } varints, then all bodies
//!   snapshot               index, term varint, membership (see membership.rs), manifest length varint, manifest
//!   heartbeat, read-index  context length u8, context
//! ```
//!
//! Entries of an append follow each other from `index + 1`, so they carry no index, and their terms
//! are told as the distance to the message's; none is below that of the entry before. Heads come
//! before bodies so that the bodies of a message can be segments of one write.
//!
//! Invariant: what is decoded encodes to the same bytes, and nothing a peer sends reaches the
//! library but the kinds listed in [`Kind`].

use std::fmt;

use bytes::Bytes;
use raft::eraftpb::{self, MessageType};

use crate::entry::{Entry, EntryKind, context_of, crc_of};
use crate::grants::FORGETFUL;
use crate::log::{MANIFEST_BYTES_MAX, SnapshotOffer};
use crate::membership::Membership;
use crate::position::{LogIndex, NodeId, Position, Term};
use crate::ready::READ_CONTEXT_BYTES;
use crate::wire::{Cursor, DecodeError, Segments};

/// The version every message begins with. A member must not speak one that some peer does not know.
pub const WIRE_VERSION: u8 = 1;

const KIND_BITS: u8 = 0x3f;
const FLAG_FORCED: u8 = 0x40;
/// The same bit of an answer.
const FLAG_FORGETFUL: u8 = FLAG_FORCED;
const FLAG_REJECT: u8 = 0x80;
const ENTRY_HEAD_BYTES_MIN: usize = 3;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Entries, or none to tell the commit index.
    Append = 1,
    /// How far a follower's synced log matches.
    AppendReply = 2,
    /// May I have your vote?
    Vote = 3,
    /// The vote, or not.
    VoteReply = 4,
    /// Would I have your vote?
    PreVote = 5,
    /// I would vote for you, or not.
    PreVoteReply = 6,
    /// I lead.
    Heartbeat = 7,
    /// I follow.
    HeartbeatReply = 8,
    /// Here is where to get a snapshot.
    Snapshot = 9,
    /// Stand for election now; I hand over.
    TimeoutNow = 10,
    /// What must I apply before I may read?
    ReadIndex = 11,
    /// Apply up to here.
    ReadIndexReply = 12,
}

const KINDS: [(Kind, MessageType); 12] = [
    (Kind::Append, MessageType::MsgAppend),
    (Kind::AppendReply, MessageType::MsgAppendResponse),
    (Kind::Vote, MessageType::MsgRequestVote),
    (Kind::VoteReply, MessageType::MsgRequestVoteResponse),
    (Kind::PreVote, MessageType::MsgRequestPreVote),
    (Kind::PreVoteReply, MessageType::MsgRequestPreVoteResponse),
    (Kind::Heartbeat, MessageType::MsgHeartbeat),
    (Kind::HeartbeatReply, MessageType::MsgHeartbeatResponse),
    (Kind::Snapshot, MessageType::MsgSnapshot),
    (Kind::TimeoutNow, MessageType::MsgTimeoutNow),
    (Kind::ReadIndex, MessageType::MsgReadIndex),
    (Kind::ReadIndexReply, MessageType::MsgReadIndexResp),
];

/// A message from one member of a group to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    group: u32,
    raft: eraftpb::Message,
}

impl Message {
    pub(crate) fn new(group: u32, raft: eraftpb::Message) -> Self {
        Self { group, raft }
    }

    pub(crate) fn into_raft(self) -> eraftpb::Message {
        self.raft
    }

    pub(crate) fn raft(&self) -> &eraftpb::Message {
        &self.raft
    }

    /// The group it belongs to.
    pub fn group(&self) -> u32 {
        self.group
    }

    /// Who sent it.
    pub fn from(&self) -> NodeId {
        NodeId(self.raft.from)
    }

    /// Whom it is for.
    pub fn to(&self) -> NodeId {
        NodeId(self.raft.to)
    }

    /// The sender's term; in a pre-vote, the term it would stand in; zero in a forwarded read-index
    /// question.
    pub fn term(&self) -> Term {
        Term(self.raft.term)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        let (kind, _) = KINDS
            .iter()
            .find(|(_, library)| *library == self.raft.msg_type)
            .expect("messages of other kinds are neither made nor decoded");
        *kind
    }

    /// The snapshot that it offers, if it is that kind of message.
    pub fn snapshot(&self) -> Option<SnapshotOffer> {
        (self.kind() == Kind::Snapshot).then(|| SnapshotOffer::from_raft(self.raft.get_snapshot().clone()))
    }

    /// How many entries it carries.
    pub fn entry_count(&self) -> usize {
        match self.kind() {
            Kind::Append => self.raft.entries.len(),
            _ => 0,
        }
    }

    /// The bytes of the bodies it carries, for byte-bounded sending.
    pub fn body_bytes(&self) -> usize {
        let entries: usize = self.raft.entries.iter().map(|entry| entry.data.len()).sum();
        entries + self.raft.get_snapshot().data.len()
    }

    /// Has `sum` take the checksums of the bodies of entries of at least so many bytes, in the order in which they
    /// stand in the frame.
    pub fn sum_bodies(&mut self, bytes_min: usize, mut sum: impl FnMut(&Bytes) -> u32) {
        if self.kind() == Kind::Append {
            for entry in self.raft.entries.iter_mut().filter(|entry| entry.data.len() >= bytes_min) {
                entry.context = context_of(Some(sum(&entry.data)));
            }
        }
    }

    /// Writes the form drawn above. Bodies above [`INLINE_BYTES_MAX`](crate::INLINE_BYTES_MAX) are
    /// shared, not copied.
    pub fn encode(&self, out: &mut Segments) {
        let raft = &self.raft;
        let kind = self.kind();
        // In other kinds a context is that of a question, and may be any bytes.
        let flagged = match kind {
            Kind::Vote if raft.context == raft::CAMPAIGN_TRANSFER => FLAG_FORCED,
            Kind::VoteReply | Kind::PreVoteReply if raft.context == FORGETFUL => FLAG_FORGETFUL,
            _ => 0,
        };
        out.put_u8(WIRE_VERSION);
        out.put_u8(kind as u8 | if raft.reject { FLAG_REJECT } else { 0 } | flagged);
        let numbers = self.numbers();
        let present = (0..8).filter(|&bit| numbers[bit] != 0).fold(0, |mask, bit| mask | 1 << bit);
        out.put_u8(present);
        out.put_varint(u64::from(self.group));
        out.put_varint(raft.from);
        out.put_varint(raft.to);
        for number in numbers.into_iter().filter(|number| *number != 0) {
            out.put_varint(number);
        }
        match kind {
            Kind::Append => self.encode_entries(out),
            Kind::Snapshot => {
                let snapshot = SnapshotOffer::from_raft(raft.get_snapshot().clone());
                out.put_varint(snapshot.position.index.0);
                out.put_varint(snapshot.position.term.0);
                snapshot.membership.encode(out);
                out.put_varint(snapshot.manifest.len() as u64);
                out.put_bytes(&snapshot.manifest);
            }
            Kind::Heartbeat | Kind::HeartbeatReply => put_context(&raft.context, out),
            Kind::ReadIndex | Kind::ReadIndexReply => put_context(&raft.entries[0].data, out),
            _ => {}
        }
    }

    /// Reads one message from the front of `frame` and takes it off. Bodies are slices of the
    /// frame.
    pub fn decode(frame: &mut Bytes) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(frame);
        let message = Self::read(&mut cursor)?;
        let length = cursor.at();
        let _ = frame.split_to(length);
        Ok(message)
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let version = cursor.u8()?;
        if version != WIRE_VERSION {
            return Err(DecodeError::Version { found: version, known: WIRE_VERSION });
        }
        let head = cursor.u8()?;
        let Some((kind, msg_type)) = KINDS.iter().find(|(kind, _)| *kind as u8 == head & KIND_BITS) else {
            return Err(cursor.invalid("a kind of message"));
        };
        let present = cursor.u8()?;
        let group = u32::try_from(cursor.varint()?).map_err(|_| cursor.invalid("a group above 32 bits"))?;
        let mut raft = eraftpb::Message {
            msg_type: *msg_type,
            from: cursor.varint()?,
            to: cursor.varint()?,
            reject: head & FLAG_REJECT != 0,
            ..eraftpb::Message::default()
        };
        if raft.from == 0 || raft.to == 0 {
            return Err(cursor.invalid("node zero"));
        }
        let mut numbers = [0; 8];
        for (bit, number) in numbers.iter_mut().enumerate() {
            if present & 1 << bit != 0 {
                *number = cursor.varint()?;
                if *number == 0 {
                    return Err(cursor.invalid("a number said to be present"));
                }
            }
        }
        [
            raft.term,
            raft.log_term,
            raft.index,
            raft.commit,
            raft.commit_term,
            raft.reject_hint,
            raft.request_snapshot,
            _,
        ] = numbers;
        raft.priority = numbers[7] as i64;
        match kind {
            Kind::Vote if head & FLAG_FORCED != 0 => raft.context = Bytes::from_static(raft::CAMPAIGN_TRANSFER),
            Kind::VoteReply | Kind::PreVoteReply if head & FLAG_FORGETFUL != 0 && !raft.reject => {
                raft.context = Bytes::from_static(FORGETFUL);
            }
            _ if head & FLAG_FORCED != 0 => {
                return Err(cursor.invalid("a forced message that asks for no vote and grants none"));
            }
            _ => {}
        }
        // Only a question that a follower passes on has no term: the library takes a message
        // without one for local.
        if (raft.term == 0) != matches!(kind, Kind::ReadIndex) {
            return Err(cursor.invalid("the term of a message"));
        }
        match kind {
            Kind::Append => read_entries(cursor, &mut raft)?,
            Kind::Snapshot => raft.set_snapshot(read_snapshot(cursor)?.into_raft()),
            Kind::Heartbeat | Kind::HeartbeatReply => {
                raft.context = read_context(cursor)?;
            }
            Kind::ReadIndex | Kind::ReadIndexReply => {
                let data = read_context(cursor)?;
                if data.is_empty() {
                    return Err(cursor.invalid("a read-index message without a context"));
                }
                let entry = eraftpb::Entry { data, ..eraftpb::Entry::default() };
                raft.entries.push(entry);
            }
            _ => {}
        }
        Ok(Self { group, raft })
    }

    fn numbers(&self) -> [u64; 8] {
        let raft = &self.raft;
        [
            raft.term,
            raft.log_term,
            raft.index,
            raft.commit,
            raft.commit_term,
            raft.reject_hint,
            raft.request_snapshot,
            raft.priority as u64,
        ]
    }

    fn encode_entries(&self, out: &mut Segments) {
        let raft = &self.raft;
        out.put_varint(raft.entries.len() as u64);
        for (next, entry) in (raft.index + 1..).zip(raft.entries.iter()) {
            assert_eq!(entry.index, next, "entries of an append follow each other");
            let is_membership = entry.entry_type == eraftpb::EntryType::EntryConfChangeV2;
            out.put_u8(u8::from(is_membership));
            out.put_varint(raft.term - entry.term);
            out.put_varint(entry.data.len() as u64);
        }
        for entry in raft.entries.iter() {
            out.put_summed(&entry.data, crc_of(entry));
        }
    }
}

fn read_entries(cursor: &mut Cursor<'_>, raft: &mut eraftpb::Message) -> Result<(), DecodeError> {
    let count = cursor.count(ENTRY_HEAD_BYTES_MIN)?;
    let mut entries = Vec::with_capacity(count);
    let mut lengths = Vec::with_capacity(count);
    let (mut index, mut before) = (raft.index, raft.log_term);
    for _ in 0..count {
        index = index.checked_add(1).ok_or_else(|| cursor.invalid("an index above 64 bits"))?;
        let kind = match cursor.u8()? {
            0 => EntryKind::Command,
            1 => EntryKind::Membership,
            _ => return Err(cursor.invalid("a kind of entry")),
        };
        let term = raft.term.checked_sub(cursor.varint()?).filter(|term| *term > 0 && *term >= before);
        let term = term.ok_or_else(|| cursor.invalid("the term of an entry"))?;
        before = term;
        let length = usize::try_from(cursor.varint()?).map_err(|_| cursor.invalid("the length of an entry"))?;
        lengths.push(length);
        entries.push(Entry { index: LogIndex(index), term: Term(term), kind, data: Bytes::new(), crc: None });
    }
    let mut library = Vec::with_capacity(count);
    for (mut entry, length) in entries.into_iter().zip(lengths) {
        entry.data = cursor.bytes(length)?;
        library.push(entry.into_raft());
    }
    raft.entries = library.into();
    Ok(())
}

fn read_snapshot(cursor: &mut Cursor<'_>) -> Result<SnapshotOffer, DecodeError> {
    let position = Position::new(cursor.varint()?, cursor.varint()?);
    if position.index.0 == 0 || position.term.0 == 0 {
        return Err(cursor.invalid("the place of a snapshot"));
    }
    let membership = Membership::read(cursor)?;
    let length = cursor.varint()?;
    if length > MANIFEST_BYTES_MAX as u64 {
        return Err(cursor.invalid("the length of a manifest"));
    }
    Ok(SnapshotOffer { position, membership, manifest: cursor.bytes(length as usize)? })
}

fn put_context(context: &Bytes, out: &mut Segments) {
    assert!(
        context.is_empty() || context.len() == READ_CONTEXT_BYTES,
        "a context is that of a read-index question, or none"
    );
    out.put_u8(context.len() as u8);
    out.put_slice(context);
}

fn read_context(cursor: &mut Cursor<'_>) -> Result<Bytes, DecodeError> {
    match usize::from(cursor.u8()?) {
        0 => Ok(Bytes::new()),
        // Copied: the question outlives the frame, which may be large.
        READ_CONTEXT_BYTES => Ok(Bytes::copy_from_slice(&cursor.bytes(READ_CONTEXT_BYTES)?)),
        _ => Err(cursor.invalid("the length of a context")),
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raft = &self.raft;
        let base = Position::new(raft.index, raft.log_term);
        write!(f, "{} -> {} ", self.from(), self.to())?;
        match self.kind() {
            Kind::Append => {
                write!(f, "Append base={base} [")?;
                for (place, entry) in raft.entries.iter().enumerate() {
                    let space = if place == 0 { "" } else { " " };
                    write!(f, "{space}{}", Position::new(entry.index, entry.term))?;
                }
                write!(f, "] commit={}", raft.commit)
            }
            Kind::AppendReply if raft.reject => {
                write!(f, "AppendReply reject={} hint={}", raft.index, Position::new(raft.reject_hint, raft.log_term))
            }
            Kind::AppendReply => write!(f, "AppendReply match={}", raft.index),
            Kind::Vote | Kind::PreVote => {
                let forced = if raft.context.is_empty() { "" } else { " forced" };
                write!(f, "{:?} term={} last={base}{forced}", self.kind(), raft.term)
            }
            Kind::VoteReply | Kind::PreVoteReply => {
                let answer = if raft.reject { "no" } else { "yes" };
                let doubt = if raft.context.is_empty() { "" } else { " forgetful" };
                write!(f, "{:?} term={} {answer}{doubt}", self.kind(), raft.term)
            }
            Kind::Heartbeat => write!(f, "Heartbeat term={} commit={}", raft.term, raft.commit),
            Kind::Snapshot => {
                let metadata = raft.get_snapshot().get_metadata();
                write!(f, "Snapshot at={}", Position::new(metadata.index, metadata.term))
            }
            Kind::ReadIndexReply => write!(f, "ReadIndexReply index={}", raft.index),
            Kind::HeartbeatReply | Kind::TimeoutNow | Kind::ReadIndex => write!(f, "{:?}", self.kind()),
        }
    }
}

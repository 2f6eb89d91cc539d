//! What members of a group say to each other: Raft's messages, and what goes beside them.
//!
//! ```text
//! kind u8, as in the table of [`PeerFrame::kind`], then
//! 1 raft            a message of `consensus`, which ends by itself
//! 2 written         term, index
//! 3 ask end         term, life
//! 4 end of log      term, life, index
//! 5 pull image      term, index, offset
//! 6 image part      term, index, offset, length, bytes
//! 7 pull messages   term, index, queue, from
//! 8 messages part   term, index, queue, from, past, count, then each { sequence number, length, bytes }
//! 9 ask missing     number, queue, from, past
//! 10 have missing   number, queue, from, past, count, then each { sequence number, length + 1 and bytes, or 0: lost }
//! 11 ask left       member
//! 12 left           member, by, term, leads (0 or 1), applied, count, then each { voter }
//! ```
//!
//! Numbers are varints. Kinds from 32 on are what nodes say to each other beside their groups:
//! [`forward`]. Packets, with version and checksum, carry many frames of both sorts: [`packet`]. What is said when: `replica` (2), `replica::doubt` (3, 4), `snapshot` (5 to 8),
//! `repair` (9, 10), `replica::leaving` (11, 12: said only where every node knows them, as the topology's machine has version 10).
//!
//! Invariants: this is the only place that knows how a frame is written; what is decoded encodes to
//! the same bytes; no bytes make the reader panic or allocate more than a small multiple of them;
//! bodies are shared, not copied, in and out.

mod command_form;
mod effect_form;
pub mod forward;
mod key_form;
pub mod news_form;
pub mod packet;
pub mod speaker;

use broker::QueueId;
use bytes::Bytes;
use consensus::{Cursor, DecodeError, LogIndex, Message, NodeId, Segments, Term};

/// Least bytes of a message in a frame: its number and its length.
const MESSAGE_BYTES_MIN: usize = 2;

/// One thing that a member says to another of the same group.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerFrame {
    /// One of Raft's messages.
    Raft(Message),
    /// A follower has written its leader's log of this term up to here; it may not be synced yet.
    Written {
        /// The leader's term.
        term: Term,
        /// The last entry that is written.
        index: LogIndex,
    },
    /// A member that may have forgotten the end of its log asks its leader where the log ends.
    AskEnd {
        /// The leader's term.
        term: Term,
        /// Differs from start to start of the member.
        life: u64,
    },
    /// The answer: who has synced this entry has all that it may have forgotten.
    EndOfLog {
        /// The leader's term.
        term: Term,
        /// As in the question.
        life: u64,
        /// The last entry of the leader's log.
        index: LogIndex,
    },
    /// A follower asks for a part of the image of a snapshot.
    PullImage {
        /// Of which snapshot.
        snapshot: SnapshotKey,
        /// The first byte that it does not have.
        offset: u64,
    },
    /// The answer.
    ImagePart {
        /// Of which snapshot.
        snapshot: SnapshotKey,
        /// Where the bytes stand in the image.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// A follower asks for messages of a queue that the image names.
    PullMessages {
        /// Of which snapshot.
        snapshot: SnapshotKey,
        /// The queue.
        queue: QueueId,
        /// The first sequence number that it does not have.
        from: u64,
    },
    /// The answer: all that is live of these numbers.
    MessagesPart {
        /// Of which snapshot.
        snapshot: SnapshotKey,
        /// The queue.
        queue: QueueId,
        /// As in the question.
        from: u64,
        /// The numbers below are told.
        past: u64,
        /// Sequence numbers, rising, with the messages.
        messages: Vec<(u64, Bytes)>,
    },
    /// A member asks for messages that it cannot read any more.
    AskMissing(Missing),
    /// The answer: of the numbers told, those that are live there, with `None` where they cannot be
    /// read there either.
    HaveMissing(Missing, Vec<(u64, Option<Bytes>)>),
    /// A member that is to leave asks whether it has.
    AskLeft {
        /// Which one it is.
        member: NodeId,
    },
    /// The answer, of a member by whose log it has.
    Left(Left),
}

/// What a member says of one that has left its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Who has left.
    pub member: NodeId,
    /// Who says so.
    pub by: NodeId,
    /// The term that it is in.
    pub term: Term,
    /// It leads the group, and has applied an entry of its own term.
    pub leads: bool,
    /// Up to where it has applied the log.
    pub applied: LogIndex,
    /// The voters as of then.
    pub voters: Vec<NodeId>,
}

/// Which snapshot is meant: the term of the leader who offers it, and its last entry.
pub type SnapshotKey = (Term, LogIndex);

/// A question for messages, or which one is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Chosen by who asks; the answer repeats it.
    pub number: u64,
    /// The queue.
    pub queue: QueueId,
    /// The first sequence number.
    pub from: u64,
    /// The numbers below are asked for; in an answer, told.
    pub past: u64,
}

impl PeerFrame {
    /// The byte that a frame of this kind begins with.
    pub fn kind(&self) -> u8 {
        match self {
            PeerFrame::Raft(_) => 1,
            PeerFrame::Written { .. } => 2,
            PeerFrame::AskEnd { .. } => 3,
            PeerFrame::EndOfLog { .. } => 4,
            PeerFrame::PullImage { .. } => 5,
            PeerFrame::ImagePart { .. } => 6,
            PeerFrame::PullMessages { .. } => 7,
            PeerFrame::MessagesPart { .. } => 8,
            PeerFrame::AskMissing(_) => 9,
            PeerFrame::HaveMissing(..) => 10,
            PeerFrame::AskLeft { .. } => 11,
            PeerFrame::Left(_) => 12,
        }
    }

    /// Writes the form drawn above.
    pub fn encode(&self, out: &mut Segments) {
        out.put_u8(self.kind());
        match self {
            PeerFrame::Raft(message) => message.encode(out),
            PeerFrame::Written { term, index } => put(out, &[term.0, index.0]),
            PeerFrame::AskEnd { term, life } => put(out, &[term.0, *life]),
            PeerFrame::EndOfLog { term, life, index } => put(out, &[term.0, *life, index.0]),
            PeerFrame::PullImage { snapshot: (term, index), offset } => put(out, &[term.0, index.0, *offset]),
            PeerFrame::ImagePart { snapshot: (term, index), offset, bytes } => {
                put(out, &[term.0, index.0, *offset, bytes.len() as u64]);
                out.put_bytes(bytes);
            }
            PeerFrame::PullMessages { snapshot: (term, index), queue, from } => {
                put(out, &[term.0, index.0, queue.0, *from]);
            }
            PeerFrame::MessagesPart { snapshot: (term, index), queue, from, past, messages } => {
                put(out, &[term.0, index.0, queue.0, *from, *past, messages.len() as u64]);
                for (seq, message) in messages {
                    put(out, &[*seq, message.len() as u64]);
                    out.put_bytes(message);
                }
            }
            PeerFrame::AskMissing(missing) => put_missing(out, missing),
            PeerFrame::HaveMissing(missing, messages) => {
                put_missing(out, missing);
                out.put_varint(messages.len() as u64);
                for (seq, message) in messages {
                    put(out, &[*seq, message.as_ref().map_or(0, |message| message.len() as u64 + 1)]);
                    message.iter().for_each(|message| out.put_bytes(message));
                }
            }
            PeerFrame::AskLeft { member } => out.put_varint(member.0),
            PeerFrame::Left(Left { member, by, term, leads, applied, voters }) => {
                put(out, &[member.0, by.0, term.0, u64::from(*leads), applied.0, voters.len() as u64]);
                voters.iter().for_each(|voter| out.put_varint(voter.0));
            }
        }
    }

    /// Reads one frame from the front of `bytes` and takes it off. Errors: the bytes are no frame
    /// of this version.
    pub fn decode(bytes: &mut Bytes) -> Result<Self, DecodeError> {
        if bytes.first() == Some(&1) {
            // It takes itself off what is behind its kind.
            *bytes = bytes.slice(1..);
            return Message::decode(bytes).map(PeerFrame::Raft);
        }
        let mut cursor = Cursor::new(bytes);
        let frame = PeerFrame::read(&mut cursor)?;
        let taken = cursor.at();
        *bytes = bytes.slice(taken..);
        Ok(frame)
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let kind = cursor.u8()?;
        match kind {
            2 => Ok(PeerFrame::Written { term: Term(cursor.varint()?), index: LogIndex(cursor.varint()?) }),
            3 => Ok(PeerFrame::AskEnd { term: Term(cursor.varint()?), life: cursor.varint()? }),
            4 => {
                let (term, life) = (Term(cursor.varint()?), cursor.varint()?);
                Ok(PeerFrame::EndOfLog { term, life, index: LogIndex(cursor.varint()?) })
            }
            5 => Ok(PeerFrame::PullImage { snapshot: snapshot(cursor)?, offset: cursor.varint()? }),
            6 => {
                let (snapshot, offset) = (snapshot(cursor)?, cursor.varint()?);
                Ok(PeerFrame::ImagePart { snapshot, offset, bytes: sized(cursor)? })
            }
            7 => {
                let (snapshot, queue) = (snapshot(cursor)?, QueueId(cursor.varint()?));
                Ok(PeerFrame::PullMessages { snapshot, queue, from: cursor.varint()? })
            }
            8 => {
                let (snapshot, queue) = (snapshot(cursor)?, QueueId(cursor.varint()?));
                let (from, past) = (cursor.varint()?, cursor.varint()?);
                let count = cursor.count(MESSAGE_BYTES_MIN)?;
                let messages = (0..count).map(|_| Ok((cursor.varint()?, sized(cursor)?))).collect::<Result<_, _>>()?;
                Ok(PeerFrame::MessagesPart { snapshot, queue, from, past, messages })
            }
            9 => Ok(PeerFrame::AskMissing(missing(cursor)?)),
            10 => {
                let missing = missing(cursor)?;
                let count = cursor.count(MESSAGE_BYTES_MIN)?;
                let message = |cursor: &mut Cursor<'_>| match cursor.varint()? {
                    0 => Ok(None),
                    length => body(cursor, length - 1).map(Some),
                };
                let messages =
                    (0..count).map(|_| Ok((cursor.varint()?, message(cursor)?))).collect::<Result<_, DecodeError>>()?;
                Ok(PeerFrame::HaveMissing(missing, messages))
            }
            11 => Ok(PeerFrame::AskLeft { member: member(cursor)? }),
            12 => {
                let (who, by, term) = (member(cursor)?, member(cursor)?, Term(cursor.varint()?));
                let leads = match cursor.varint()? {
                    0 => false,
                    1 => true,
                    _ => return Err(cursor.invalid("whether a member leads")),
                };
                let applied = LogIndex(cursor.varint()?);
                let voters = (0..cursor.count(1)?).map(|_| member(cursor)).collect::<Result<_, DecodeError>>()?;
                Ok(PeerFrame::Left(Left { member: who, by, term, leads, applied, voters }))
            }
            _ => Err(cursor.invalid("a kind of frame")),
        }
    }
}

fn put(out: &mut Segments, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.put_varint(*number));
}

fn put_missing(out: &mut Segments, missing: &Missing) {
    put(out, &[missing.number, missing.queue.0, missing.from, missing.past]);
}

fn member(cursor: &mut Cursor<'_>) -> Result<NodeId, DecodeError> {
    match cursor.varint()? {
        0 => Err(cursor.invalid("a member")),
        member => Ok(NodeId(member)),
    }
}

fn snapshot(cursor: &mut Cursor<'_>) -> Result<SnapshotKey, DecodeError> {
    Ok((Term(cursor.varint()?), LogIndex(cursor.varint()?)))
}

fn missing(cursor: &mut Cursor<'_>) -> Result<Missing, DecodeError> {
    let (number, queue) = (cursor.varint()?, QueueId(cursor.varint()?));
    Ok(Missing { number, queue, from: cursor.varint()?, past: cursor.varint()? })
}

fn sized(cursor: &mut Cursor<'_>) -> Result<Bytes, DecodeError> {
    let length = cursor.varint()?;
    body(cursor, length)
}

fn body(cursor: &mut Cursor<'_>, length: u64) -> Result<Bytes, DecodeError> {
    cursor.bytes(usize::try_from(length).map_err(|_| cursor.invalid("a length"))?)
}

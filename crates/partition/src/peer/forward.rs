//! What nodes say to each other beside their groups: what channels of one node and partitions that
//! another leads have to say to each other, changes of the topology, and signs of life.
//!
//! ```text
//! kind u8, then
//! 32 to 45         a command, see `command_form`
//! 64 to 70         an effect, see `effect_form`
//! 80 starved       consumer
//! 81 drained       channel, bytes
//! 82 propose       token, length, change
//! 83 proposed      token, index, term
//! 84 not proposed  token
//! 85 ping          number
//! 86 pong          number
//! ```
//!
//! Numbers are varints. A frame of this kind stands in a packet with the partition that it is for or
//! comes from; those from 81 on are about none and stand with 0.
//!
//! Invariants: as of the frames of groups, see `peer`. Unlike those, these must arrive in the order
//! in which they were sent, each once, or the link between the two nodes has ended.

use super::key_form::{channel, consumer, put_channel, put_consumer};
use super::{command_form, effect_form, put, sized};
use crate::command::{Command, Effect};
use broker::{ChannelKey, ConsumerKey};
use bytes::{Buf, Bytes};
use consensus::{Cursor, DecodeError, LogIndex, Segments, Term};

/// One thing that a node says to another one, whatever groups they share.
#[derive(Clone, Debug, PartialEq)]
pub enum Forward {
    /// A command of a channel of the sending node, for a partition that the receiving node leads.
    /// Never [`Command::Configure`] or [`Command::Delete`]: every node has those from the topology.
    Command(Command),
    /// What a partition of the sending node says to a channel of the receiving one. Only effects
    /// with a channel, so never [`Effect::Unused`], [`Effect::DeadLetter`] or [`Effect::Lapsed`].
    Effect(Effect),
    /// A partition of the sending node passed a consumer of the receiving one over: too much is on
    /// its way.
    Starved {
        /// The consumer.
        consumer: ConsumerKey,
    },
    /// A connection of the sending node wrote so many bytes that partitions of the receiving one
    /// had sent its channel.
    Drained {
        /// The channel.
        channel: ChannelKey,
        /// How many more than were told before.
        bytes: u64,
    },
    /// A change of the topology that somebody on the sending node wants; for the leader of the
    /// topology's group. Answered [`Forward::Proposed`] or [`Forward::NotProposed`].
    Propose {
        /// Comes back in the answer.
        token: u64,
        /// The command to the topology, encoded.
        change: Bytes,
    },
    /// The answer: it stands at this place of the topology's log, decided or not.
    Proposed {
        /// As in the question.
        token: u64,
        /// Which entry it is.
        index: LogIndex,
        /// Whose entry it is: another leader may put another one there.
        term: Term,
    },
    /// The answer: this node does not lead, or did not take it in.
    NotProposed {
        /// As in the question.
        token: u64,
    },
    /// A sign of life; answered at once with the same number.
    Ping {
        /// Comes back in the answer.
        number: u64,
    },
    /// The answer.
    Pong {
        /// As in the question.
        number: u64,
    },
}

impl Forward {
    /// The lowest of their kinds; all below are of [`super::PeerFrame`].
    pub const KIND_MIN: u8 = 32;

    /// The byte that a frame of this kind begins with.
    ///
    /// # Panics
    /// If it holds a command or an effect that no node says to another one.
    pub fn kind(&self) -> u8 {
        match self {
            Forward::Command(command) => command_form::kind(command),
            Forward::Effect(effect) => effect_form::kind(effect),
            Forward::Starved { .. } => 80,
            Forward::Drained { .. } => 81,
            Forward::Propose { .. } => 82,
            Forward::Proposed { .. } => 83,
            Forward::NotProposed { .. } => 84,
            Forward::Ping { .. } => 85,
            Forward::Pong { .. } => 86,
        }
    }

    /// Writes the form drawn above. Large bodies are shared, not copied.
    ///
    /// # Panics
    /// If it holds a command or an effect that no node says to another one.
    pub fn encode(&self, out: &mut Segments) {
        out.put_u8(self.kind());
        match self {
            Forward::Command(command) => command_form::encode(command, out),
            Forward::Effect(effect) => effect_form::encode(effect, out),
            Forward::Starved { consumer } => put_consumer(out, *consumer),
            Forward::Drained { channel, bytes } => {
                put_channel(out, *channel);
                out.put_varint(*bytes);
            }
            Forward::Propose { token, change } => {
                put(out, &[*token, change.len() as u64]);
                out.put_bytes(change);
            }
            Forward::Proposed { token, index, term } => put(out, &[*token, index.0, term.0]),
            Forward::NotProposed { token } => out.put_varint(*token),
            Forward::Ping { number } | Forward::Pong { number } => out.put_varint(*number),
        }
    }

    /// Reads one frame from the front of `bytes` and takes it off; what it holds are slices of them.
    /// Errors: the bytes are no frame of this version.
    pub fn decode(bytes: &mut Bytes) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let frame = Forward::read(&mut cursor)?;
        let taken = cursor.at();
        bytes.advance(taken);
        Ok(frame)
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let kind = cursor.u8()?;
        if let Some(command) = command_form::read(kind, cursor)? {
            return Ok(Forward::Command(command));
        }
        if let Some(effect) = effect_form::read(kind, cursor)? {
            return Ok(Forward::Effect(effect));
        }
        match kind {
            80 => Ok(Forward::Starved { consumer: consumer(cursor)? }),
            81 => Ok(Forward::Drained { channel: channel(cursor)?, bytes: cursor.varint()? }),
            82 => Ok(Forward::Propose { token: cursor.varint()?, change: sized(cursor)? }),
            83 => {
                let (token, index) = (cursor.varint()?, LogIndex(cursor.varint()?));
                Ok(Forward::Proposed { token, index, term: Term(cursor.varint()?) })
            }
            84 => Ok(Forward::NotProposed { token: cursor.varint()? }),
            85 => Ok(Forward::Ping { number: cursor.varint()? }),
            86 => Ok(Forward::Pong { number: cursor.varint()? }),
            _ => Err(cursor.invalid("a kind of frame")),
        }
    }
}

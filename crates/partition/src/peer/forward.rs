//! What nodes say to each other beside their groups: what channels of one node and partitions that
//! another leads have to say to each other, changes of the topology, and signs of life.
//!
//! ```text
//! kind u8, then
//! 32 to 47         a command, see `command_form`
//! 64 to 71         an effect, see `effect_form`
//! 80 starved       consumer
//! 81 drained       channel, bytes
//! 82 propose       token, term, length, change
//! 83 not proposed  token
//! 84 ping          number
//! 85 pong          number
//! 86 delete        request, queue, channel, flags { if unused, if empty }
//! 87 applied       index
//! 88 ask           number, length, question
//! 89 answer        number, flags { last, refused }, length, part
//! 90 leads         term, flags { leads }
//! 92 to 96         news, see `news_form`
//! 97 ask lease     number
//! 98 lease         number, index
//! ```
//!
//! Numbers are varints. A frame of this kind stands in a packet with the partition that it is for or
//! comes from; a pong and a starved consumer are about none and stand with 0.
//!
//! Invariants: as of the frames of groups, see `peer`. Unlike those, these must arrive in the order
//! in which they were sent, each once, or the link between the two nodes has ended.

use super::key_form::{channel, consumer, flags, put_channel, put_consumer, put_flags, queue};
use super::news_form::News;
use super::{command_form, effect_form, news_form, put, sized};
use crate::command::{Command, Effect, RequestId};
use broker::{ChannelKey, ConsumerKey, QueueId};
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
    /// topology's group, which takes it in this term and in no other. Not answered where it is taken:
    /// it is in the log then.
    Propose {
        /// Comes back in the answer.
        token: u64,
        /// The term of the leader that is meant.
        term: Term,
        /// The command to the topology, encoded.
        change: Bytes,
    },
    /// The answer: this node does not lead in that term, or did not take it in.
    NotProposed {
        /// As in the question.
        token: u64,
    },
    /// Answered with the same number once all before it was handled and there is room for more.
    Ping {
        /// Comes back in the answer.
        number: u64,
    },
    /// The answer.
    Pong {
        /// As in the question.
        number: u64,
    },
    /// A channel of the sending node wants a queue deleted that a partition of the receiving node
    /// leads. Answered as a command is, by [`Effect::Reply`].
    Delete {
        /// The queue.
        queue: QueueId,
        /// Only without consumers.
        if_unused: bool,
        /// Only without ready messages.
        if_empty: bool,
        /// Who asks.
        channel: ChannelKey,
        /// Comes back in the reply.
        request: RequestId,
    },
    /// The sending node has carried out the topology's log up to here.
    Applied {
        /// The index of the last entry.
        index: LogIndex,
    },
    /// A question to the receiving node as a whole, in the form of who asks. Nothing waits behind it.
    Ask {
        /// Comes back in the answer.
        number: u64,
        /// What is asked.
        question: Bytes,
    },
    /// A part of the answer, in order with the others.
    Answer {
        /// As in the question.
        number: u64,
        /// The part; empty if nobody answers there.
        part: Bytes,
        /// Nothing follows.
        is_last: bool,
        /// Nobody answers there, or not any more; the last, too.
        is_refused: bool,
    },
    /// Whether the sending node leads the partition's group, in this term: for nodes that are no members
    /// of it, and hear it from nobody else.
    Leads {
        /// The term.
        term: u64,
        /// It does; otherwise it does not any more.
        leads: bool,
    },
    /// How something stands on the sending node, for the receiving one as a whole.
    News(News),
    /// How far does the receiving node's log of the topology go? Only from nodes whose topology works by a version that
    /// all know.
    AskLease {
        /// Comes back in the answer.
        number: u64,
    },
    /// The answer.
    Lease {
        /// As in the question.
        number: u64,
        /// The index of the last entry, whether it is decided or not.
        end: LogIndex,
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
            Forward::NotProposed { .. } => 83,
            Forward::Ping { .. } => 84,
            Forward::Pong { .. } => 85,
            Forward::Delete { .. } => 86,
            Forward::Applied { .. } => 87,
            Forward::Ask { .. } => 88,
            Forward::Answer { .. } => 89,
            Forward::Leads { .. } => 90,
            Forward::News(news) => news_form::kind(news),
            Forward::AskLease { .. } => 97,
            Forward::Lease { .. } => 98,
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
            Forward::Propose { token, term, change } => {
                put(out, &[*token, term.0, change.len() as u64]);
                out.put_bytes(change);
            }
            Forward::NotProposed { token } => out.put_varint(*token),
            Forward::Ping { number } | Forward::Pong { number } => out.put_varint(*number),
            Forward::Delete { queue, if_unused, if_empty, channel, request } => {
                put(out, &[request.0, queue.0]);
                put_channel(out, *channel);
                put_flags(out, &[*if_unused, *if_empty]);
            }
            Forward::Applied { index } => out.put_varint(index.0),
            Forward::Leads { term, leads } => {
                out.put_varint(*term);
                put_flags(out, &[*leads]);
            }
            Forward::News(news) => news_form::encode(news, out),
            Forward::AskLease { number } => out.put_varint(*number),
            Forward::Lease { number, end } => put(out, &[*number, end.0]),
            Forward::Ask { number, question } => {
                put(out, &[*number, question.len() as u64]);
                out.put_bytes(question);
            }
            Forward::Answer { number, part, is_last, is_refused } => {
                out.put_varint(*number);
                put_flags(out, &[*is_last, *is_refused]);
                out.put_varint(part.len() as u64);
                out.put_bytes(part);
            }
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
        if let Some(news) = news_form::read(kind, cursor)? {
            return Ok(Forward::News(news));
        }
        match kind {
            80 => Ok(Forward::Starved { consumer: consumer(cursor)? }),
            81 => Ok(Forward::Drained { channel: channel(cursor)?, bytes: cursor.varint()? }),
            82 => {
                let (token, term) = (cursor.varint()?, Term(cursor.varint()?));
                Ok(Forward::Propose { token, term, change: sized(cursor)? })
            }
            83 => Ok(Forward::NotProposed { token: cursor.varint()? }),
            84 => Ok(Forward::Ping { number: cursor.varint()? }),
            85 => Ok(Forward::Pong { number: cursor.varint()? }),
            86 => {
                let (request, queue, channel) = (RequestId(cursor.varint()?), queue(cursor)?, channel(cursor)?);
                let [if_unused, if_empty] = flags(cursor)?;
                Ok(Forward::Delete { queue, if_unused, if_empty, channel, request })
            }
            87 => Ok(Forward::Applied { index: LogIndex(cursor.varint()?) }),
            88 => Ok(Forward::Ask { number: cursor.varint()?, question: sized(cursor)? }),
            89 => {
                let (number, [is_last, is_refused]) = (cursor.varint()?, flags(cursor)?);
                if is_refused && !is_last {
                    return Err(cursor.invalid("a refusal that goes on"));
                }
                Ok(Forward::Answer { number, part: sized(cursor)?, is_last, is_refused })
            }
            90 => {
                let (term, [leads]) = (cursor.varint()?, flags(cursor)?);
                Ok(Forward::Leads { term, leads })
            }
            97 => Ok(Forward::AskLease { number: cursor.varint()? }),
            98 => Ok(Forward::Lease { number: cursor.varint()?, end: LogIndex(cursor.varint()?) }),
            _ => Err(cursor.invalid("a kind of frame")),
        }
    }
}

//! How an effect towards a channel is written between nodes.
//!
//! ```text
//! 64 confirm          channel, first, count
//! 65 refuse           channel, first, count
//! 66 deliver          delivery
//! 67 reply            request, channel, answer u8, then
//!      0 done, 1 consuming, 2 consume refused, 4 empty, 8 not leader, 9 gone, 10 unavailable: nothing
//!      3 got               ready, delivery
//!      5 counted           count
//!      6 stat              ready, unacked, consumers
//!      7 delete refused    flags { in use }
//! 68 cancelled        queue, consumer
//! 69 grant wanted     queue, consumer, ready
//! 70 grant returned   consumer, count
//! 71 returned         channel, first, count, term
//!
//! delivery   queue, sequence number, consumer, flags { needs ack, redelivered }, acquired, delivery count, term, length, message
//! ```
//!
//! Effects without a channel have no form: the leader's own node acts on them.
//!
//! Invariant: a message that is read is whole and has properties that can be read, as its session expects.

use super::command_form::request;
use super::key_form::{channel, consumer, flags, number_u32, put_channel, put_consumer, put_flags, queue, seq};
use super::{put, sized};
use crate::command::{Delivery, Effect, Reply};
use crate::message::MessageView;
use broker::properties::is_sound;
use broker::queue::Counts;
use consensus::{Cursor, DecodeError, Segments};

const FOR_ITS_NODE: &str = "an effect without a channel is for the node of the leader alone";
const OF_ITS_SHARD: &str = "replies wait on the shard of who asked";

/// The byte that an effect begins with.
///
/// # Panics
/// If it is for no channel, or for one of its own shard alone.
pub(super) fn kind(effect: &Effect) -> u8 {
    match effect {
        Effect::Confirm { .. } => 64,
        Effect::Refuse { .. } => 65,
        Effect::Deliver(_) => 66,
        Effect::Reply { .. } => 67,
        Effect::Cancelled { .. } => 68,
        Effect::GrantWanted { .. } => 69,
        Effect::GrantReturned { .. } => 70,
        Effect::Returned { .. } => 71,
        Effect::Unused { .. } | Effect::DeadLetter(_) | Effect::Lapsed { .. } | Effect::Parted { .. } => {
            panic!("{FOR_ITS_NODE}")
        }
        Effect::RepliesDropped { .. } => panic!("{OF_ITS_SHARD}"),
    }
}

/// Writes what is behind the kind.
pub(super) fn encode(effect: &Effect, out: &mut Segments) {
    match effect {
        Effect::Confirm { channel, first, count } | Effect::Refuse { channel, first, count } => {
            put_channel(out, *channel);
            put(out, &[*first, *count]);
        }
        Effect::Returned { channel, first, count, term } => {
            put_channel(out, *channel);
            put(out, &[*first, *count, (*term).into()]);
        }
        Effect::Deliver(delivery) => put_delivery(out, delivery),
        Effect::Reply { channel, request, reply } => {
            out.put_varint(request.0);
            put_channel(out, *channel);
            put_reply(out, reply);
        }
        Effect::Cancelled { consumer, queue } => {
            out.put_varint(queue.0);
            put_consumer(out, *consumer);
        }
        Effect::GrantWanted { consumer, queue, ready } => {
            out.put_varint(queue.0);
            put_consumer(out, *consumer);
            out.put_varint(*ready);
        }
        Effect::GrantReturned { consumer, count } => {
            put_consumer(out, *consumer);
            out.put_varint(u64::from(*count));
        }
        Effect::Unused { .. } | Effect::DeadLetter(_) | Effect::Lapsed { .. } | Effect::Parted { .. } => {
            panic!("{FOR_ITS_NODE}")
        }
        Effect::RepliesDropped { .. } => panic!("{OF_ITS_SHARD}"),
    }
}

/// Reads what is behind a kind; `None` is the kind of no effect.
pub(super) fn read(kind: u8, cursor: &mut Cursor<'_>) -> Result<Option<Effect>, DecodeError> {
    Ok(Some(match kind {
        64 => Effect::Confirm { channel: channel(cursor)?, first: seq(cursor)?, count: seq(cursor)? },
        65 => Effect::Refuse { channel: channel(cursor)?, first: seq(cursor)?, count: seq(cursor)? },
        66 => Effect::Deliver(delivery(cursor)?),
        67 => Effect::Reply { request: request(cursor)?, channel: channel(cursor)?, reply: reply(cursor)? },
        68 => Effect::Cancelled { queue: queue(cursor)?, consumer: consumer(cursor)? },
        69 => Effect::GrantWanted { queue: queue(cursor)?, consumer: consumer(cursor)?, ready: cursor.varint()? },
        70 => Effect::GrantReturned { consumer: consumer(cursor)?, count: number_u32(cursor)? },
        71 => Effect::Returned {
            channel: channel(cursor)?,
            first: seq(cursor)?,
            count: seq(cursor)?,
            term: number_u32(cursor)?,
        },
        _ => return Ok(None),
    }))
}

fn put_reply(out: &mut Segments, reply: &Reply) {
    out.put_u8(match reply {
        Reply::Done => 0,
        Reply::Consuming => 1,
        Reply::ConsumeRefused => 2,
        Reply::Got { .. } => 3,
        Reply::Empty => 4,
        Reply::Counted(_) => 5,
        Reply::Stat { .. } => 6,
        Reply::DeleteRefused { .. } => 7,
        Reply::NotLeader => 8,
        Reply::Gone => 9,
        Reply::Unavailable => 10,
    });
    match reply {
        Reply::Got { delivery, ready } => {
            out.put_varint(*ready);
            put_delivery(out, delivery);
        }
        Reply::Counted(count) => out.put_varint(*count),
        Reply::Stat { ready, unacked, consumers } => put(out, &[*ready, *unacked, *consumers]),
        Reply::DeleteRefused { in_use } => put_flags(out, &[*in_use]),
        Reply::Done | Reply::Consuming | Reply::ConsumeRefused | Reply::Empty => {}
        Reply::NotLeader | Reply::Gone | Reply::Unavailable => {}
    }
}

fn reply(cursor: &mut Cursor<'_>) -> Result<Reply, DecodeError> {
    Ok(match cursor.u8()? {
        0 => Reply::Done,
        1 => Reply::Consuming,
        2 => Reply::ConsumeRefused,
        3 => Reply::Got { ready: cursor.varint()?, delivery: delivery(cursor)? },
        4 => Reply::Empty,
        5 => Reply::Counted(cursor.varint()?),
        6 => Reply::Stat { ready: cursor.varint()?, unacked: cursor.varint()?, consumers: cursor.varint()? },
        7 => {
            let [in_use] = flags(cursor)?;
            Reply::DeleteRefused { in_use }
        }
        8 => Reply::NotLeader,
        9 => Reply::Gone,
        10 => Reply::Unavailable,
        _ => return Err(cursor.invalid("a kind of answer")),
    })
}

fn put_delivery(out: &mut Segments, delivery: &Delivery) {
    put(out, &[delivery.queue.0, delivery.seq]);
    put_consumer(out, delivery.consumer);
    put_flags(out, &[delivery.needs_ack, delivery.redelivered]);
    let Counts { acquired, delivery: count } = delivery.counts;
    put(out, &[acquired.into(), count.into(), delivery.term, delivery.message.len() as u64]);
    out.put_bytes(&delivery.message);
}

fn delivery(cursor: &mut Cursor<'_>) -> Result<Delivery, DecodeError> {
    let (queue, seq, consumer) = (queue(cursor)?, seq(cursor)?, consumer(cursor)?);
    let [needs_ack, redelivered] = flags(cursor)?;
    let counts = Counts { acquired: number_u32(cursor)?, delivery: number_u32(cursor)? };
    let (term, message) = (cursor.varint()?, sized(cursor)?);
    let is_whole = |view: MessageView<'_>| view.len() == message.len() && is_sound(view.properties());
    if !MessageView::parse(&message).is_some_and(is_whole) {
        return Err(cursor.invalid("a message as stored"));
    }
    Ok(Delivery { consumer, queue, seq, needs_ack, redelivered, counts, term, message })
}

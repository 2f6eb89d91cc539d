//! How keys of channels and consumers are written between nodes, and the small parts that commands
//! and effects share.
//!
//! ```text
//! channel     node, start, number        numbers as varints: a few bytes, since nodes and starts are counted from 1
//! consumer    channel, number
//! flags       u8, bit 0 the first of them
//! ```
//!
//! Invariant: each value has one form; a number that is too large for its field and a flag that
//! nobody knows are refused. No message and no publish has a number from [`SEQ_MAX`] on, so that sums of a
//! few of them stay within 64 bits.

use crate::command::EVERYTHING;
use broker::{ChannelKey, ConsumerKey, NodeLife, QueueId};
use consensus::{Cursor, DecodeError, Segments};

/// What counts messages or publishes does not get there.
const SEQ_MAX: u64 = 1 << 62;

pub(super) fn put_channel(out: &mut Segments, channel: ChannelKey) {
    let life = channel.life();
    out.put_varint(u64::from(life.node));
    out.put_varint(u64::from(life.start));
    out.put_varint(channel.number());
}

pub(super) fn put_consumer(out: &mut Segments, consumer: ConsumerKey) {
    put_channel(out, consumer.channel);
    out.put_varint(u64::from(consumer.number));
}

pub(super) fn put_flags(out: &mut Segments, flags: &[bool]) {
    out.put_u8(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
}

pub(super) fn channel(cursor: &mut Cursor<'_>) -> Result<ChannelKey, DecodeError> {
    let life = NodeLife { node: number_u32(cursor)?, start: number_u32(cursor)? };
    Ok(ChannelKey::of(life, cursor.varint()?))
}

pub(super) fn consumer(cursor: &mut Cursor<'_>) -> Result<ConsumerKey, DecodeError> {
    Ok(ConsumerKey { channel: channel(cursor)?, number: number_u32(cursor)? })
}

pub(super) fn queue(cursor: &mut Cursor<'_>) -> Result<QueueId, DecodeError> {
    cursor.varint().map(QueueId)
}

pub(super) fn flags<const COUNT: usize>(cursor: &mut Cursor<'_>) -> Result<[bool; COUNT], DecodeError> {
    let byte = cursor.u8()?;
    if u32::from(byte) >> COUNT != 0 {
        return Err(cursor.invalid("a byte of flags"));
    }
    Ok(std::array::from_fn(|place| byte >> place & 1 != 0))
}

pub(super) fn number_u32(cursor: &mut Cursor<'_>) -> Result<u32, DecodeError> {
    u32::try_from(cursor.varint()?).map_err(|_| cursor.invalid("a number of more than 32 bits"))
}

/// How many messages somebody settles: what it holds may be told as [`EVERYTHING`].
pub(super) fn settled(cursor: &mut Cursor<'_>) -> Result<u64, DecodeError> {
    let count = cursor.varint()?;
    (count < SEQ_MAX || count == EVERYTHING).then_some(count).ok_or_else(|| cursor.invalid("a count of messages"))
}

/// The number of a message or a publish, or how many of them.
pub(super) fn seq(cursor: &mut Cursor<'_>) -> Result<u64, DecodeError> {
    let number = cursor.varint()?;
    (number < SEQ_MAX).then_some(number).ok_or_else(|| cursor.invalid("a sequence number"))
}

//! A log entry: what one loop of a leader has to say about its queues, as bytes.
//!
//! ```text
//! entry    u8 version=2 | u8 flags (1: sync now, 2: somebody waits for the write) | u16 sync within ms | u32 commands | u64 time ms | commands...
//! publish  u8 1 | u8 flags (1: with times, 2: scheduled, 4: with priorities, 8: with keys, 16: with a life) | u16 targets | u32 messages | u32 bytes
//!          u32 crc32c(messages) | u64 publisher | u64 first publish number | with a life: u64 life | targets * u64 queue
//!          | with priorities: targets * u16 rule (0 none, 1 to 255 the highest level, 256 a quorum queue's)
//!          | with keys: targets * u64 rule (0 none, else 1 and the window in ms)
//!          | messages (see message.rs)
//! settle   u8 2 | u8 reason | u16 0 | u32 ranges | u64 queue | ranges * (u64 first, u64 count)
//! requeue  u8 3 | u8 counts | u16 0 | u32 ranges | u64 queue | ranges * (u64 first, u64 count)
//! sent     u8 4 | u8 0 | u16 0 | u32 0 | u64 queue | u64 dispatched below
//! delete   u8 5 | u8 0 | u16 0 | u32 0 | u64 queue
//! closed   u8 6 | u8 flags (16: with a life) | u16 0 | u32 0 | u64 publisher | with a life: u64 life
//! dead     u8 7 | u8 reason | u16 0 | u32 ranges | u64 queue | ranges * (u64 first, u64 count)
//! raise    u8 9 | u8 0 | u16 0 | u32 0 | u64 machine version
//! retry    u8 8 | u8 counts | u16 0 | u32 ranges | u64 queue | u64 until ms | ranges * (u64 first, u64 count)
//! ```
//!
//! All numbers are little-endian. A publisher is the number of its channel in a life of its node;
//! the life is the node's number (upper half) and that of its start. Version 1, which is read, knew
//! no lives. Outcomes are logged, not decisions: what a limit or a timer led to stands here as a
//! settle with its reason, so that replay needs no policy.
//!
//! Here is what both sides know of the bytes. `entry/builder.rs` writes them, `entry/batch.rs` and
//! `entry/log_command.rs` read them.

mod batch;
mod builder;
mod log_command;

pub use batch::Batch;
pub use builder::{BatchPlace, EntryBuilder};
pub use log_command::{Commands, LogCommand, Ranges};

use crate::outputs::SyncWish;

/// The version of the entry format that this build writes. It reads the ones before; an unknown one
/// halts the partition.
pub const ENTRY_VERSION: u8 = 2;
/// Bytes before the first command.
pub const ENTRY_HEADER_BYTES: usize = 16;
/// Bytes of a batch before its targets, or before its publisher's life.
pub const BATCH_HEADER_BYTES: usize = 32;
/// An entry that has reached this many bytes takes no more commands; only a single large message
/// makes it longer.
pub const ENTRY_BYTES_TARGET: usize = 1 << 20;
/// What nobody waits for (acks, say) has no deadline of its own: the node's setting bounds how long
/// anything stays unsynced, so that the log commits without client syncs too.
pub const SYNC_WITHIN_MS_MAX: u16 = u16::MAX;
/// Most queues that one batch goes to; a wider fan-out is several batches.
pub const TARGETS_MAX: usize = 4096;

const FLAG_SYNC: u8 = 1;
const FLAG_AWAITED: u8 = 2;
/// On a batch: some of its messages name a priority, and some of its queues look at it.
const FLAG_PRIORITIES: u8 = 4;
/// On a batch: some of its messages have a key, and some of its queues take a key in once.
const FLAG_KEYS: u8 = 8;
/// On a batch, and where a publisher is forgotten: the publisher belongs to a life of a node.
const FLAG_LIFE: u8 = 16;
const FLAGS: u8 = BATCH_TIMED | BATCH_SCHEDULED | FLAG_PRIORITIES | FLAG_KEYS | FLAG_LIFE;
const KIND_PUBLISH: u8 = 1;
const KIND_SETTLE: u8 = 2;
const KIND_REQUEUE: u8 = 3;
const KIND_SENT: u8 = 4;
const KIND_DELETE: u8 = 5;
const KIND_CLOSED: u8 = 6;
/// Flag of a [`KIND_SENT`]: it lowers the watermark.
const SENT_LOWERS: u8 = 1;
const KIND_DEAD: u8 = 7;
const KIND_RETRY: u8 = 8;
const KIND_RAISE: u8 = 9;
const BATCH_TIMED: u8 = 1;
const BATCH_SCHEDULED: u8 = 2;

/// Why messages ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A consumer acked them, or took them without ack.
    Acked = 0,
    /// A consumer gave them up without requeue.
    Discarded = 1,
    /// The queue was purged.
    Purged = 2,
    /// Their time was over.
    Expired = 3,
    /// The queue was too long.
    MaxLength = 4,
    /// They came back too often.
    DeliveryLimit = 5,
    /// They were scheduled and are due: the same entry publishes them.
    Due = 6,
    /// Their bytes are damaged on every disk that had them.
    Damaged = 7,
}

impl Reason {
    /// The reason that a log entry or a checkpoint names.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Reason::Acked,
            1 => Reason::Discarded,
            2 => Reason::Purged,
            3 => Reason::Expired,
            4 => Reason::MaxLength,
            5 => Reason::DeliveryLimit,
            6 => Reason::Due,
            7 => Reason::Damaged,
            _ => return None,
        })
    }

    /// RabbitMQ's word for it in `x-death`; `None` for an end that is no death.
    pub fn death(self) -> Option<&'static str> {
        Some(match self {
            Reason::Discarded => "rejected",
            Reason::Expired => "expired",
            Reason::MaxLength => "maxlen",
            Reason::DeliveryLimit => "delivery_limit",
            // What cannot be read cannot be sent on.
            Reason::Acked | Reason::Purged | Reason::Due | Reason::Damaged => return None,
        })
    }
}

/// How soon an entry asks to be synced: followers look here too. An empty one (a new leader's) at
/// once.
pub fn sync_wish(entry: &[u8]) -> SyncWish {
    match entry {
        [_, flags, low, high, ..] if flags & FLAG_SYNC == 0 => {
            SyncWish::Within(u32::from(u16::from_le_bytes([*low, *high])))
        }
        _ => SyncWish::Now,
    }
}

/// Whether somebody waits for the write of an entry, if not for its sync. What nobody waits for may
/// be written with what comes next.
pub fn is_write_awaited(entry: &[u8]) -> bool {
    entry.get(1).is_none_or(|flags| flags & FLAG_AWAITED != 0)
}

/// An entry that this build cannot read: a newer version wrote it, or it is damaged beyond what
/// checksums caught.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log entry cannot be read at byte {offset}: {what}")]
pub struct EntryDamaged {
    /// What does not fit.
    pub what: &'static str,
    /// Where.
    pub offset: usize,
}

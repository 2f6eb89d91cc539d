//! The commands of an entry, read one after the other where they lie.
//!
//! Invariant: an entry is read to its last byte or is damaged; a version, a command and a reason that this build does
//! not know are damage too.

use super::{
    Batch, ENTRY_HEADER_BYTES, ENTRY_VERSION, EntryDamaged, FLAG_LIFE, KIND_CLOSED, KIND_DEAD, KIND_DELETE,
    KIND_PUBLISH, KIND_RAISE, KIND_REQUEUE, KIND_RETRY, KIND_SENT, KIND_SETTLE, Reason, SENT_LOWERS,
};
use broker::{ChannelKey, QueueId};

/// The commands of an entry, seen in place.
pub struct Commands<'a> {
    entry: &'a [u8],
    at: usize,
    left: u32,
    /// The leader's clock when it made the entry, milliseconds since the epoch.
    pub time_ms: u64,
}

impl<'a> Commands<'a> {
    /// Reads an entry's header.
    pub fn parse(entry: &'a [u8]) -> Result<Self, EntryDamaged> {
        if entry.len() < ENTRY_HEADER_BYTES {
            return Err(EntryDamaged { what: "shorter than its header", offset: 0 });
        }
        if !(1..=ENTRY_VERSION).contains(&entry[0]) {
            return Err(EntryDamaged { what: "a version that this build does not know", offset: 0 });
        }
        let left = u32::from_le_bytes(entry[4..8].try_into().expect("four bytes"));
        let time_ms = u64::from_le_bytes(entry[8..16].try_into().expect("eight bytes"));
        Ok(Commands { entry, at: ENTRY_HEADER_BYTES, left, time_ms })
    }

    /// Where the command that was read last ends.
    pub(crate) fn past(&self) -> usize {
        self.at
    }

    /// The next command.
    #[allow(clippy::should_implement_trait)] // It can fail, and `Result<Option>` reads better in its one loop.
    pub fn next(&mut self) -> Result<Option<LogCommand<'a>>, EntryDamaged> {
        let offset = self.at;
        let damaged = |what| EntryDamaged { what, offset };
        if self.left == 0 {
            return if self.at == self.entry.len() { Ok(None) } else { Err(damaged("bytes after the last command")) };
        }
        self.left -= 1;
        let rest = &self.entry[self.at..];
        if rest.len() < 16 {
            return Err(damaged("a command is cut"));
        }
        let word = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight bytes"));
        let count = u32::from_le_bytes(rest[4..8].try_into().expect("four bytes")) as usize;
        let queue = QueueId(word(8));
        let ranges = |bytes: usize| rest.get(16..16 + bytes).map(Ranges).ok_or(damaged("ranges are cut"));
        let (command, len) = match rest[0] {
            KIND_PUBLISH => {
                let batch = Batch::parse(rest, self.at as u32)?;
                (LogCommand::Publish(batch), batch.bytes.len())
            }
            KIND_SETTLE => {
                let reason = Reason::from_byte(rest[1]).ok_or(damaged("an unknown reason"))?;
                (LogCommand::Settle { queue, reason, ranges: ranges(16 * count)? }, 16 + 16 * count)
            }
            KIND_REQUEUE => {
                let command = LogCommand::Requeue { queue, counts_against: rest[1] != 0, ranges: ranges(16 * count)? };
                (command, 16 + 16 * count)
            }
            KIND_DEAD => {
                let reason = Reason::from_byte(rest[1]).ok_or(damaged("an unknown reason"))?;
                (LogCommand::Dead { queue, reason, ranges: ranges(16 * count)? }, 16 + 16 * count)
            }
            KIND_RETRY if rest.len() >= 24 + 16 * count => {
                let (counts_against, ranges) = (rest[1] != 0, Ranges(&rest[24..24 + 16 * count]));
                (LogCommand::Retry { queue, counts_against, until_ms: word(16), ranges }, 24 + 16 * count)
            }
            KIND_SENT if rest.len() >= 24 => {
                (LogCommand::Sent { queue, dispatched_below: word(16), lowers: rest[1] & SENT_LOWERS != 0 }, 24)
            }
            KIND_DELETE => (LogCommand::Delete { queue }, 16),
            KIND_RAISE => {
                let version = u32::try_from(queue.0).map_err(|_| damaged("a machine version beyond all"))?;
                (LogCommand::RaiseVersion { version }, 16)
            }
            KIND_CLOSED if rest[1] & FLAG_LIFE == 0 => {
                (LogCommand::Closed { publisher: ChannelKey::from_words(0, queue.0) }, 16)
            }
            KIND_CLOSED if rest.len() >= 24 => {
                (LogCommand::Closed { publisher: ChannelKey::from_words(word(16), queue.0) }, 24)
            }
            _ => return Err(damaged("an unknown command")),
        };
        self.at += len;
        Ok(Some(command))
    }
}

/// One command of an entry.
#[derive(Debug)]
pub enum LogCommand<'a> {
    /// Messages come in.
    Publish(Batch<'a>),
    /// Messages end.
    Settle {
        /// Of this queue.
        queue: QueueId,
        /// Why.
        reason: Reason,
        /// Which.
        ranges: Ranges<'a>,
    },
    /// Messages came back.
    Requeue {
        /// Of this queue.
        queue: QueueId,
        /// Whether it counts against them.
        counts_against: bool,
        /// Which.
        ranges: Ranges<'a>,
    },
    /// Messages are given up and stay until their dead letters are safe.
    Dead {
        /// Of this queue.
        queue: QueueId,
        /// Why.
        reason: Reason,
        /// Which.
        ranges: Ranges<'a>,
    },
    /// Messages came back and wait.
    Retry {
        /// Of this queue.
        queue: QueueId,
        /// Whether it counts against them.
        counts_against: bool,
        /// When they are ready again, milliseconds since the epoch.
        until_ms: u64,
        /// Which.
        ranges: Ranges<'a>,
    },
    /// Messages below may have been sent.
    Sent {
        /// Of this queue.
        queue: QueueId,
        /// The watermark.
        dispatched_below: u64,
        /// Those from there on were not, though the watermark was higher.
        lowers: bool,
    },
    /// The queue ends.
    Delete {
        /// Which.
        queue: QueueId,
    },
    /// Entries are applied by this version of the machine from here on.
    RaiseVersion {
        /// The version.
        version: u32,
    },
    /// The publisher sends nothing again.
    Closed {
        /// Who.
        publisher: ChannelKey,
    },
}

impl LogCommand<'_> {
    /// The queue whose messages something became of.
    pub(crate) fn queue(&self) -> Option<QueueId> {
        match self {
            LogCommand::Settle { queue, .. }
            | LogCommand::Requeue { queue, .. }
            | LogCommand::Dead { queue, .. }
            | LogCommand::Retry { queue, .. }
            | LogCommand::Sent { queue, .. } => Some(*queue),
            LogCommand::Publish(_)
            | LogCommand::Delete { .. }
            | LogCommand::RaiseVersion { .. }
            | LogCommand::Closed { .. } => None,
        }
    }
}

/// Ranges as `(first, count)`, seen in their entry.
#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a>(&'a [u8]);

impl<'a> Iterator for Ranges<'a> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (head, rest) = self.0.split_at_checked(16)?;
        self.0 = rest;
        let at = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().expect("eight bytes"));
        Some((at(0), at(8)))
    }
}

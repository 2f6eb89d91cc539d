//! A batch of publishes as it stands in its entry, read in place.
//!
//! Invariant: a batch's messages were published by one channel, in order, all to the same queues; every target gets
//! them under consecutive numbers of its own.

use super::{
    BATCH_HEADER_BYTES, BATCH_SCHEDULED, BATCH_TIMED, EntryDamaged, FLAG_KEYS, FLAG_LIFE, FLAG_PRIORITIES, FLAGS,
    KIND_PUBLISH,
};
use crate::message::MessageView;
use broker::queue::{DedupRule, LevelRule};
use broker::{ChannelKey, QueueId};
use std::hint::black_box;
use storage::crc32c;

/// So many messages ahead the memory is fetched of who walks along a batch.
const AHEAD: usize = 4;

/// A batch of publishes, seen in its entry.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(super) bytes: &'a [u8],
    /// Its offset in the entry (or 0 where it was read alone).
    pub offset: u32,
}

impl<'a> Batch<'a> {
    /// The batch at the start of `bytes`; checks lengths, not the checksum.
    pub fn parse(bytes: &'a [u8], offset: u32) -> Result<Self, EntryDamaged> {
        let damaged = |what| EntryDamaged { what, offset: offset as usize };
        if bytes.len() < BATCH_HEADER_BYTES || bytes[0] != KIND_PUBLISH {
            return Err(damaged("no batch"));
        }
        if bytes[1] & !FLAGS != 0 {
            return Err(damaged("a batch of a kind that this build does not know"));
        }
        let batch = Batch { bytes, offset };
        let len = batch.messages_at() + batch.u32(8) as usize;
        if len > bytes.len() {
            return Err(damaged("a batch longer than its entry"));
        }
        Ok(Batch { bytes: &bytes[..len], offset })
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// How many queues it goes to.
    pub(crate) fn target_count(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[2], self.bytes[3]]))
    }

    fn messages_at(&self) -> usize {
        let of_target = 8 + if self.has_priorities() { 2 } else { 0 } + if self.has_keys() { 8 } else { 0 };
        self.targets_at() + of_target * self.target_count()
    }

    fn targets_at(&self) -> usize {
        BATCH_HEADER_BYTES + if self.bytes[1] & FLAG_LIFE == 0 { 0 } else { 8 }
    }

    /// Whether some of its messages have a key that one of its queues takes in once.
    pub fn has_keys(&self) -> bool {
        self.bytes[1] & FLAG_KEYS != 0
    }

    /// Which of its queues take keys in once, in the order of [`targets`](Self::targets); nothing
    /// without keys.
    pub fn dedup_rules(&self) -> impl Iterator<Item = Option<DedupRule>> + '_ {
        let count = if self.has_keys() { self.target_count() } else { 0 };
        let rules_at = self.messages_at() - 8 * count;
        (0..count).map(move |i| DedupRule::from_code(self.u64(rules_at + 8 * i)))
    }

    /// Whether some of its messages have a priority that one of its queues looks at.
    pub fn has_priorities(&self) -> bool {
        self.bytes[1] & FLAG_PRIORITIES != 0
    }

    /// How each of its queues makes levels of priorities, in the order of
    /// [`targets`](Self::targets); nothing without priorities. A code that this build does not know
    /// is none.
    pub fn level_rules(&self) -> impl Iterator<Item = LevelRule> + '_ {
        let count = if self.has_priorities() { self.target_count() } else { 0 };
        let rules_at = self.targets_at() + 8 * self.target_count();
        (0..count).map(move |i| {
            let code = u16::from_le_bytes([self.bytes[rules_at + 2 * i], self.bytes[rules_at + 2 * i + 1]]);
            LevelRule::from_code(code).unwrap_or_default()
        })
    }

    /// Offset of the first message in the batch.
    pub fn first_message_at(&self) -> usize {
        self.messages_at()
    }

    /// Its bytes, header included.
    pub fn bytes(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Bytes of its messages, each with its header.
    pub(crate) fn message_bytes(&self) -> u32 {
        self.u32(8)
    }

    /// How many messages.
    pub fn messages(&self) -> u32 {
        self.u32(4)
    }

    /// Whether some of them have the time of their publish in them.
    pub fn is_timed(&self) -> bool {
        self.bytes[1] & BATCH_TIMED != 0
    }

    /// Whether some of them are scheduled.
    pub fn is_scheduled(&self) -> bool {
        self.bytes[1] & BATCH_SCHEDULED != 0
    }

    /// Who published.
    pub fn publisher(&self) -> ChannelKey {
        let life = if self.bytes[1] & FLAG_LIFE == 0 { 0 } else { self.u64(BATCH_HEADER_BYTES) };
        ChannelKey::from_words(life, self.u64(16))
    }

    /// The publish number of its first message.
    pub fn first_publish_seq(&self) -> u64 {
        self.u64(24)
    }

    /// Its queues.
    pub fn targets(&self) -> impl Iterator<Item = QueueId> + '_ {
        let targets_at = self.targets_at();
        (0..self.target_count()).map(move |i| QueueId(self.u64(targets_at + 8 * i)))
    }

    /// Where its messages lie in its entry, and the checksum that they should have.
    pub(crate) fn stored(&self) -> (std::ops::Range<usize>, u32) {
        let first = self.offset as usize + self.messages_at();
        (first..self.offset as usize + self.bytes.len(), self.u32(12))
    }

    /// Whether its messages are what was written.
    pub fn is_intact(&self) -> bool {
        crc32c::crc32c(&self.bytes[self.messages_at()..]) == self.u32(12)
    }

    /// Its messages in order.
    pub fn iter(&self) -> impl Iterator<Item = MessageView<'a>> + use<'a> {
        let mut rest = &self.bytes[self.messages_at()..];
        std::iter::from_fn(move || {
            let view = MessageView::parse(rest)?;
            rest = &rest[view.len()..];
            // Where one begins only the one before it says. They are mostly as long as each other, and seldom in the cache: a
            // later one is fetched meanwhile.
            black_box(rest.get(AHEAD * view.len()).copied());
            Some(view)
        })
    }
}

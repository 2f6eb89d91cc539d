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
//! settle with its reason, so that replay needs no policy. Invariant: a batch's messages were
//! published by one channel, in order, all to the same queues; every target gets them under
//! consecutive numbers of its own.

use crate::command::{Level, Message};
use crate::message::{self, MessageView, Stamp};
use crate::outputs::SyncWish;
use broker::queue::{DedupRule, LevelRule};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use smallvec::SmallVec;

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
/// Room for an entry, before anybody knows how long the next ones are.
const CAPACITY_MIN: usize = 256;
/// An entry of outcomes alone that is no longer than this is copied out of the room that it was built in.
const COPIED_BYTES_MAX: usize = 1 << 10;
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

/// Where a batch lies in its entry, told when it is closed.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPlace {
    /// Its queues, each with what the builder was given for it.
    pub targets: SmallVec<[QueueId; 1]>,
    /// Offset of its first byte in the entry.
    pub offset: u32,
    /// Its bytes, header included.
    pub bytes: u32,
    /// How many messages.
    pub messages: u32,
    /// The weakest level that promises what each of its messages asked for.
    pub level: Level,
    /// Some of its messages have a priority.
    pub has_priorities: bool,
}

struct OpenBatch {
    publisher: ChannelKey,
    targets: SmallVec<[QueueId; 1]>,
    offset: usize,
    messages: u32,
    first_publish_seq: u64,
    level: Level,
    /// How its queues make levels of priorities, if that is asked for.
    rules: SmallVec<[LevelRule; 1]>,
    /// Which of its queues take a key in once, if one does.
    dedup: SmallVec<[Option<DedupRule>; 1]>,
    flags: u8,
}

/// Builds one entry. Messages are copied once, from the socket's buffer into the entry.
pub struct EntryBuilder {
    bytes: Vec<u8>,
    commands: u32,
    sync: bool,
    /// A publish that waits for no disk is in it.
    awaited: bool,
    sync_within_ms: u16,
    open: Option<OpenBatch>,
    batches: Vec<BatchPlace>,
    capacity_hint: usize,
}

impl Default for EntryBuilder {
    fn default() -> Self {
        EntryBuilder {
            bytes: Vec::new(),
            commands: 0,
            sync: false,
            awaited: false,
            sync_within_ms: SYNC_WITHIN_MS_MAX,
            open: None,
            batches: Vec::new(),
            capacity_hint: CAPACITY_MIN,
        }
    }
}

impl EntryBuilder {
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Whether a sync was asked for.
    pub fn wants_sync(&self) -> bool {
        self.sync
    }

    /// Gives back the room of long entries, while nothing is in it.
    pub(crate) fn trim(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
            self.capacity_hint = CAPACITY_MIN;
        }
    }

    /// How long the entry is so far.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Asks that the entry is synced at once.
    pub fn want_sync(&mut self) {
        self.sync = true;
    }

    /// Asks that the entry is synced at most this many milliseconds after it was written.
    pub fn want_sync_within(&mut self, within_ms: u64) {
        self.sync_within_ms = self.sync_within_ms.min(u16::try_from(within_ms).unwrap_or(SYNC_WITHIN_MS_MAX));
    }

    fn start(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.reserve(self.capacity_hint);
            self.bytes.resize(ENTRY_HEADER_BYTES, 0);
        }
    }

    /// Adds a message for `targets`, which are distinct and in ascending order. `rules`: for each
    /// of them how it makes levels of priorities; empty for a message that names no priority, or
    /// none that a queue looks at. `dedup`: for each of them whether it takes keys in once; empty
    /// for a message without a key, or if none does.
    #[allow(clippy::too_many_arguments)] // A publish has that many sides.
    pub fn publish(
        &mut self,
        publisher: ChannelKey,
        publish_seq: u64,
        targets: &[QueueId],
        rules: &[LevelRule],
        dedup: &[Option<DedupRule>],
        level: Level,
        message: &Message,
        stamp: Stamp,
    ) {
        let delta = |first: u64| publish_seq.checked_sub(first).and_then(|d| u32::try_from(d).ok());
        let goes_on = self.open.as_ref().is_some_and(|open| {
            open.publisher == publisher
                && open.targets[..] == *targets
                && delta(open.first_publish_seq).is_some()
                && (rules.is_empty() || open.rules[..] == *rules)
                && (dedup.is_empty() || open.dedup[..] == *dedup)
        });
        if !goes_on {
            self.close_batch();
            self.start();
            assert!(!targets.is_empty() && targets.len() <= TARGETS_MAX, "a batch has 1 to TARGETS_MAX queues");
            let offset = self.bytes.len();
            self.bytes.resize(offset + BATCH_HEADER_BYTES, 0);
            let (life, _) = publisher.words();
            if life != 0 {
                self.bytes.extend_from_slice(&life.to_le_bytes());
            }
            for queue in targets {
                self.bytes.extend_from_slice(&queue.0.to_le_bytes());
            }
            assert!(rules.is_empty() || rules.len() == targets.len(), "every queue has a rule, or none is looked at");
            rules.iter().for_each(|rule| self.bytes.extend_from_slice(&rule.code().to_le_bytes()));
            assert!(dedup.is_empty() || dedup.len() == targets.len(), "every queue has a rule, or none is looked at");
            dedup.iter().for_each(|rule| self.bytes.extend_from_slice(&DedupRule::code(*rule).to_le_bytes()));
            self.open = Some(OpenBatch {
                publisher,
                targets: SmallVec::from_slice(targets),
                offset,
                messages: 0,
                first_publish_seq: publish_seq,
                level,
                rules: SmallVec::from_slice(rules),
                dedup: SmallVec::from_slice(dedup),
                flags: 0,
            });
            self.commands += 1;
        }
        let open = self.open.as_mut().expect("a batch was opened above if none was");
        open.messages += 1;
        open.level = open.level.with(level);
        self.awaited |= !level.is_on_disk();
        let delta = delta(open.first_publish_seq).expect("checked when the batch was chosen");
        open.flags |= match stamp {
            Stamp::None => 0,
            Stamp::Since(_) => BATCH_TIMED,
            Stamp::Due(_) => BATCH_SCHEDULED,
        };
        message::store(message, delta, stamp, &mut self.bytes);
    }

    fn close_batch(&mut self) {
        let Some(open) = self.open.take() else { return };
        let (life, number) = open.publisher.words();
        let of_targets = 8 * open.targets.len() + 2 * open.rules.len() + 8 * open.dedup.len();
        let messages_at = open.offset + BATCH_HEADER_BYTES + if life == 0 { 0 } else { 8 } + of_targets;
        let length = self.bytes.len() - messages_at;
        let crc = crc32c::crc32c(&self.bytes[messages_at..]);
        let header = &mut self.bytes[open.offset..open.offset + BATCH_HEADER_BYTES];
        header[0] = KIND_PUBLISH;
        header[1] = open.flags
            | if open.rules.is_empty() { 0 } else { FLAG_PRIORITIES }
            | if open.dedup.is_empty() { 0 } else { FLAG_KEYS }
            | if life == 0 { 0 } else { FLAG_LIFE };
        header[2..4].copy_from_slice(&(open.targets.len() as u16).to_le_bytes());
        header[4..8].copy_from_slice(&open.messages.to_le_bytes());
        header[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        header[12..16].copy_from_slice(&crc.to_le_bytes());
        header[16..24].copy_from_slice(&number.to_le_bytes());
        header[24..32].copy_from_slice(&open.first_publish_seq.to_le_bytes());
        self.batches.push(BatchPlace {
            targets: open.targets,
            offset: open.offset as u32,
            bytes: (self.bytes.len() - open.offset) as u32,
            messages: open.messages,
            level: open.level,
            has_priorities: !open.rules.is_empty(),
        });
    }

    fn command(&mut self, kind: u8, detail: u8, count: u32, queue: u64) {
        self.close_batch();
        self.start();
        self.commands += 1;
        self.bytes.extend_from_slice(&[kind, detail, 0, 0]);
        self.bytes.extend_from_slice(&count.to_le_bytes());
        self.bytes.extend_from_slice(&queue.to_le_bytes());
    }

    fn ranges(&mut self, ranges: &[(u64, u64)]) {
        for (first, count) in ranges {
            self.bytes.extend_from_slice(&first.to_le_bytes());
            self.bytes.extend_from_slice(&count.to_le_bytes());
        }
    }

    /// Ends messages, as `(first, count)`.
    pub fn settle(&mut self, queue: QueueId, reason: Reason, ranges: &[(u64, u64)]) {
        self.command(KIND_SETTLE, reason as u8, ranges.len() as u32, queue.0);
        self.ranges(ranges);
    }

    /// Notes that messages came back, as `(first, count)`.
    pub fn requeue(&mut self, queue: QueueId, counts_against: bool, ranges: &[(u64, u64)]) {
        self.command(KIND_REQUEUE, u8::from(counts_against), ranges.len() as u32, queue.0);
        self.ranges(ranges);
    }

    /// Notes that messages are given up, for this reason, and stay until their dead letters are
    /// safe.
    pub fn dead(&mut self, queue: QueueId, reason: Reason, ranges: &[(u64, u64)]) {
        self.command(KIND_DEAD, reason as u8, ranges.len() as u32, queue.0);
        self.ranges(ranges);
    }

    /// Notes that messages came back and wait until `until_ms`, as `(first, count)`.
    pub fn retry(&mut self, queue: QueueId, counts_against: bool, until_ms: u64, ranges: &[(u64, u64)]) {
        self.command(KIND_RETRY, u8::from(counts_against), ranges.len() as u32, queue.0);
        self.bytes.extend_from_slice(&until_ms.to_le_bytes());
        self.ranges(ranges);
    }

    /// Raises the dispatch watermark.
    pub fn sent(&mut self, queue: QueueId, dispatched_below: u64) {
        self.command(KIND_SENT, 0, 0, queue.0);
        self.bytes.extend_from_slice(&dispatched_below.to_le_bytes());
    }

    /// Lowers the dispatch watermark: nothing from there on was sent.
    pub fn unsent(&mut self, queue: QueueId, dispatched_below: u64) {
        self.command(KIND_SENT, SENT_LOWERS, 0, queue.0);
        self.bytes.extend_from_slice(&dispatched_below.to_le_bytes());
    }

    /// Ends a queue with everything in it.
    pub fn delete(&mut self, queue: QueueId) {
        self.command(KIND_DELETE, 0, 0, queue.0);
    }

    /// Forgets a publisher: it will send nothing again.
    pub fn closed(&mut self, publisher: ChannelKey) {
        let (life, number) = publisher.words();
        self.command(KIND_CLOSED, if life == 0 { 0 } else { FLAG_LIFE }, 0, number);
        if life != 0 {
            self.bytes.extend_from_slice(&life.to_le_bytes());
        }
    }

    /// Has entries applied by this version of the machine from here on.
    pub fn raise_version(&mut self, version: u32) {
        self.command(KIND_RAISE, 0, 0, version.into());
    }

    /// Ends the entry: its bytes, and where its batches lie. The builder is empty again.
    pub fn finish(&mut self, time_ms: u64) -> (Bytes, Vec<BatchPlace>) {
        self.close_batch();
        assert!(self.commands > 0, "an entry says something");
        self.bytes[0] = ENTRY_VERSION;
        self.bytes[1] = if self.sync { FLAG_SYNC } else { 0 } | if self.awaited { FLAG_AWAITED } else { 0 };
        self.bytes[2..4].copy_from_slice(&self.sync_within_ms.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&self.commands.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&time_ms.to_le_bytes());
        self.commands = 0;
        self.sync = false;
        self.awaited = false;
        self.sync_within_ms = SYNC_WITHIN_MS_MAX;
        if self.batches.is_empty() && self.bytes.len() <= COPIED_BYTES_MAX {
            // It says nothing of how long the next one with messages is, which finds the room here.
            let bytes = Bytes::copy_from_slice(&self.bytes);
            self.bytes.clear();
            return (bytes, Vec::new());
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        // The next loop is likely to be like this one: one allocation of the right size instead of
        // doubling. What is much too long is cut, as slices of it may be held for a while.
        self.capacity_hint = (bytes.len() + bytes.len() / 4).clamp(CAPACITY_MIN, ENTRY_BYTES_TARGET + (64 << 10));
        if bytes.capacity() > 2 * bytes.len() {
            bytes.shrink_to_fit();
        }
        (Bytes::from(bytes), std::mem::take(&mut self.batches))
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

/// A batch of publishes, seen in its entry.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    bytes: &'a [u8],
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
            Some(view)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_outcomes_is_as_any_other_and_leaves_the_room_for_the_next() {
        let body = Bytes::from(vec![1; 8000]);
        let message = Message { exchange: Bytes::new(), routing_key: Bytes::new(), properties: Bytes::new(), body };
        let publish = |builder: &mut EntryBuilder| {
            builder.publish(ChannelKey(1), 1, &[QueueId(7)], &[], &[], Level::Synced, &message, Stamp::None);
        };
        let settle = |builder: &mut EntryBuilder| {
            builder.settle(QueueId(7), Reason::Acked, &[(1, 2)]);
            builder.finish(2).0
        };
        let mut builder = EntryBuilder::default();
        publish(&mut builder);
        let (long, _) = builder.finish(1);
        assert_eq!(settle(&mut builder), settle(&mut EntryBuilder::default()));
        let room = builder.bytes.as_ptr();
        publish(&mut builder);
        assert_eq!(builder.bytes.as_ptr(), room, "it did not grow");
        assert_eq!(builder.finish(1).0, long);
        settle(&mut builder);
        builder.trim();
        assert_eq!(builder.bytes.capacity(), 0);
    }
}

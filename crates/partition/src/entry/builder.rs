//! Writes an entry: gathers what one loop of a leader has to say, in the order in which it was said. What is too much for one
//! entry goes into several: a consumer may give back millions of messages at once, no two of them side by side.
//!
//! Invariant: a batch takes messages only as long as they come from one channel and go to the same queues by the same
//! rules. Its header, with the checksum of its messages, is written when it is closed, which is before anything else is
//! added.

use super::{
    BATCH_HEADER_BYTES, BATCH_SCHEDULED, BATCH_TIMED, ENTRY_BYTES_TARGET, ENTRY_HEADER_BYTES, ENTRY_VERSION,
    FLAG_AWAITED, FLAG_KEYS, FLAG_LIFE, FLAG_PRIORITIES, FLAG_SYNC, KIND_CLOSED, KIND_DEAD, KIND_DELETE, KIND_PUBLISH,
    KIND_RAISE, KIND_REQUEUE, KIND_RETRY, KIND_SENT, KIND_SETTLE, Reason, SENT_LOWERS, SYNC_WITHIN_MS_MAX, TARGETS_MAX,
};
use crate::command::{Level, Message};
use crate::message::{self, Stamp};
use amqp::Bodies;
use broker::queue::{DedupRule, LevelRule};
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use smallvec::SmallVec;
use storage::crc32c;

/// Room for an entry, before anybody knows how long the next ones are.
const CAPACITY_MIN: usize = 256;
/// An entry of outcomes alone that is no longer than this is copied out of the room that it was built in.
const COPIED_BYTES_MAX: usize = 1 << 10;

/// A range in an entry: its first number and how many there are.
const RANGE_BYTES: usize = 16;

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
    /// Bytes of messages that are about to be added, where they are known.
    expected: usize,
    /// From this length on it is enough for one entry.
    full_bytes: usize,
    /// Entries that are long enough and come before this one, without their time.
    full: Vec<(Vec<u8>, Vec<BatchPlace>)>,
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
            expected: 0,
            full_bytes: ENTRY_BYTES_TARGET,
            full: Vec::new(),
        }
    }
}

impl EntryBuilder {
    /// A builder of entries that are enough from this length on.
    pub fn of(full_bytes: usize) -> Self {
        EntryBuilder { full_bytes, ..EntryBuilder::default() }
    }

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

    /// Messages of so many stored bytes are about to be added: an entry that begins with the next of them has room for all,
    /// or for as many as fill it.
    pub(crate) fn expect(&mut self, message_bytes: usize) {
        self.expected = match message_bytes {
            0 => 0,
            bytes => (bytes + bytes / 16 + CAPACITY_MIN).min(self.full_bytes + (64 << 10)),
        };
    }

    /// Whether what was added is enough for an entry.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= self.full_bytes || !self.full.is_empty()
    }

    /// Begins another entry where what was added is enough for one: something has to be said in it.
    fn split_if_full(&mut self) {
        if self.bytes.len() >= self.full_bytes {
            self.split();
        }
    }

    #[cold]
    fn split(&mut self) {
        self.close_batch();
        self.write_header();
        self.full.push((std::mem::take(&mut self.bytes), std::mem::take(&mut self.batches)));
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
            self.bytes.reserve(self.capacity_hint.max(std::mem::take(&mut self.expected)));
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

    /// The same of several messages in a row that differ from the first in their bodies alone, and go to one queue
    /// without rules.
    pub(crate) fn publish_run(
        &mut self,
        publisher: ChannelKey,
        publish_seq: u64,
        target: QueueId,
        level: Level,
        message: &Message,
        more: &Bodies,
    ) {
        let is_numbered = publish_seq != 0;
        let last = publish_seq + if is_numbered { more.len() as u64 } else { 0 };
        if self.open.as_ref().is_some_and(|open| last.saturating_sub(open.first_publish_seq) > u64::from(u32::MAX)) {
            self.close_batch();
        }
        self.publish(publisher, publish_seq, &[target], &[], &[], level, message, Stamp::None);
        let first = self.bytes.len() - message::stored_bytes(message);
        message::store_more(first, more, is_numbered, &mut self.bytes);
        self.open.as_mut().expect("a batch was opened for the first").messages += more.len() as u32;
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

    /// Ends messages, as `(first, count)`, in the entry that is being built.
    pub fn settle(&mut self, queue: QueueId, reason: Reason, ranges: &[(u64, u64)]) {
        self.settle_in(false, queue, reason, ranges);
    }

    /// The same, in whichever entry has room: nothing has to be in one with it, as a scheduled message has with the end of its
    /// wait.
    pub fn settle_apart(&mut self, queue: QueueId, reason: Reason, ranges: &[(u64, u64)]) {
        self.settle_in(true, queue, reason, ranges);
    }

    fn settle_in(&mut self, apart: bool, queue: QueueId, reason: Reason, ranges: &[(u64, u64)]) {
        self.in_parts(apart, ranges, |builder, part| {
            builder.command(KIND_SETTLE, reason as u8, part.len() as u32, queue.0);
            builder.ranges(part);
        });
    }

    /// Notes that messages came back, as `(first, count)`.
    pub fn requeue(&mut self, queue: QueueId, counts_against: bool, ranges: &[(u64, u64)]) {
        self.in_parts(true, ranges, |builder, part| {
            builder.command(KIND_REQUEUE, u8::from(counts_against), part.len() as u32, queue.0);
            builder.ranges(part);
        });
    }

    /// Notes that messages are given up, for this reason, and stay until their dead letters are
    /// safe.
    pub fn dead(&mut self, queue: QueueId, reason: Reason, ranges: &[(u64, u64)]) {
        self.in_parts(true, ranges, |builder, part| {
            builder.command(KIND_DEAD, reason as u8, part.len() as u32, queue.0);
            builder.ranges(part);
        });
    }

    /// Notes that messages came back and wait until `until_ms`, as `(first, count)`.
    pub fn retry(&mut self, queue: QueueId, counts_against: bool, until_ms: u64, ranges: &[(u64, u64)]) {
        self.in_parts(true, ranges, |builder, part| {
            builder.command(KIND_RETRY, u8::from(counts_against), part.len() as u32, queue.0);
            builder.bytes.extend_from_slice(&until_ms.to_le_bytes());
            builder.ranges(part);
        });
    }

    /// Says something of many ranges, in as many entries as it takes; `apart`: the first of them may be in another entry than
    /// what was said before.
    fn in_parts(&mut self, apart: bool, ranges: &[(u64, u64)], mut say: impl FnMut(&mut Self, &[(u64, u64)])) {
        let bytes_max = self.full_bytes / 4;
        for (number, part) in ranges.chunks((bytes_max / RANGE_BYTES).max(1)).enumerate() {
            if apart || number > 0 {
                self.split_if_full();
            }
            say(self, part);
        }
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

    /// Writes what stands at the beginning of the entry, but for its time.
    fn write_header(&mut self) {
        self.bytes[0] = ENTRY_VERSION;
        self.bytes[1] = if self.sync { FLAG_SYNC } else { 0 } | if self.awaited { FLAG_AWAITED } else { 0 };
        self.bytes[2..4].copy_from_slice(&self.sync_within_ms.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&self.commands.to_le_bytes());
        self.commands = 0;
        self.sync = false;
        self.awaited = false;
        self.sync_within_ms = SYNC_WITHIN_MS_MAX;
    }

    /// Takes out the entries that come before the one that [`finish`](Self::finish) ends.
    pub fn take_full(&mut self, time_ms: u64) -> impl Iterator<Item = (Bytes, Vec<BatchPlace>)> + use<> {
        std::mem::take(&mut self.full).into_iter().map(move |(mut bytes, batches)| {
            bytes[8..16].copy_from_slice(&time_ms.to_le_bytes());
            (Bytes::from(bytes), batches)
        })
    }

    /// Ends the entry: its bytes, and where its batches lie. The builder is empty again.
    pub fn finish(&mut self, time_ms: u64) -> (Bytes, Vec<BatchPlace>) {
        self.close_batch();
        assert!(self.commands > 0, "an entry says something");
        assert!(self.full.is_empty(), "what comes before it was taken out");
        self.write_header();
        self.bytes[8..16].copy_from_slice(&time_ms.to_le_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_entry_is_begun_only_to_say_something_in_it() {
        let mut builder = EntryBuilder::of(1 << 10);
        let ranges: Vec<(u64, u64)> = (0..1000).map(|number| (2 * number, 1)).collect();
        builder.requeue(QueueId(7), true, &ranges);
        while builder.bytes.len() < builder.full_bytes {
            builder.settle(QueueId(7), Reason::Acked, &ranges[..1]);
        }
        builder.settle_apart(QueueId(7), Reason::Acked, &[]);
        builder.requeue(QueueId(7), true, &[]);
        assert!(!builder.is_empty() && builder.is_full());
        let full = builder.take_full(5).map(|(bytes, _)| bytes.len()).collect::<Vec<_>>();
        assert!(full.len() > 10 && full.iter().all(|bytes| (1 << 10..2 << 10).contains(bytes)), "{full:?}");
        assert!(builder.finish(5).0.len() >= 1 << 10);
        assert!(builder.is_empty() && !builder.is_full());
    }

    #[test]
    fn an_entry_has_room_for_all_that_is_expected_and_no_more_than_it_may_have() {
        let body = Bytes::from(vec![1; 1_000]);
        let message = Message { exchange: Bytes::new(), routing_key: Bytes::new(), properties: Bytes::new(), body };
        let mut builder = EntryBuilder::default();
        builder.expect(100 * crate::message::stored_bytes(&message));
        let mut room = None;
        for number in 1..=100 {
            builder.publish(ChannelKey(1), number, &[QueueId(7)], &[], &[], Level::Synced, &message, Stamp::None);
            assert_eq!(*room.get_or_insert(builder.bytes.as_ptr()), builder.bytes.as_ptr(), "message {number}");
        }
        assert!(builder.finish(1).0.len() > 100_000);
        builder.expect(1 << 40);
        builder.publish(ChannelKey(1), 101, &[QueueId(7)], &[], &[], Level::Synced, &message, Stamp::None);
        assert!(builder.bytes.capacity() <= builder.full_bytes + (65 << 10));
    }

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

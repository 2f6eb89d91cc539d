//! The newest log entries of a shard, in memory until they are delivered or the budget is reached.
//!
//! Consumers that keep up are served from here, without a read. So is who gets a message again that
//! was just given back: small entries stay for a while after they were delivered. Invariant:
//! `bytes` is the sum over all entries, with what each costs beside its body, and never passes the
//! budget once `put` has returned, whatever consumers do; the oldest go first.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use storage::Location;

/// What all queues of a shard may hold of what they read from the disk, unless somebody says it.
const READ_BYTES_MAX: usize = 64 << 20;

/// What delivered entries may hold together: the messages that a few consumers of a calm queue have
/// in their hands.
const DELIVERED_BYTES_MAX: usize = 64 << 10;

/// A larger entry goes once it is delivered: a busy queue's memory is of more use to what comes
/// next.
const DELIVERED_ENTRY_BYTES_MAX: usize = 4 << 10;

const _: () = assert!(DELIVERED_ENTRY_BYTES_MAX <= DELIVERED_BYTES_MAX);

/// What an entry costs beside its body: its share of the map's nodes, the owner of its bytes, what
/// the allocator rounds up.
const ENTRY_OVERHEAD_BYTES: usize = 128;

struct Entry {
    body: Bytes,
    /// Messages (times their queues) that nobody has been given yet.
    waiting: u64,
}

impl Entry {
    /// What it takes of the budget.
    fn bytes(&self) -> usize {
        self.body.len() + ENTRY_OVERHEAD_BYTES
    }
}

/// What one queue holds of what it read from the disk, in the sum of its shard. It leaves the sum
/// when the queue goes.
#[derive(Debug, Default)]
pub(crate) struct ReadShare {
    bytes: usize,
    sum: Option<Arc<AtomicUsize>>,
}

impl ReadShare {
    /// Whether nothing is counted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// It holds so many bytes now.
    pub(crate) fn set(&mut self, bytes: usize, tail: &Tail) {
        if bytes == self.bytes {
            return;
        }
        let sum = self.sum.get_or_insert_with(|| tail.read_bytes.clone());
        // One thread has the tail and all of its queues.
        sum.store(sum.load(Ordering::Relaxed) - self.bytes + bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for ReadShare {
    fn drop(&mut self) {
        if let Some(sum) = &self.sum {
            sum.store(sum.load(Ordering::Relaxed) - self.bytes, Ordering::Relaxed);
        }
    }
}

/// A byte-bounded cache of log entries by where they lie in the WAL. One a shard, shared by its
/// partitions.
pub struct Tail {
    entries: BTreeMap<(u32, u32), Entry>,
    /// Delivered entries in the order in which they were, with their bytes. One that made room
    /// meanwhile may still be named.
    delivered: VecDeque<((u32, u32), usize)>,
    delivered_bytes: usize,
    bytes: usize,
    bytes_max: usize,
    pushed_out_bytes: u64,
    /// What all queues hold of what they read from the disk.
    read_bytes: Arc<AtomicUsize>,
    read_bytes_max: usize,
}

impl Tail {
    /// An empty cache that keeps at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Tail {
            entries: BTreeMap::new(),
            delivered: VecDeque::new(),
            delivered_bytes: 0,
            bytes: 0,
            bytes_max,
            pushed_out_bytes: 0,
            read_bytes: Arc::default(),
            read_bytes_max: READ_BYTES_MAX,
        }
    }

    /// The same for a shard whose queues may hold so many bytes of what they read from the disk.
    pub fn with_read_bytes_max(self, read_bytes_max: usize) -> Self {
        Tail { read_bytes_max, ..self }
    }

    /// Bytes that queues hold of what they read from the disk.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Whether they hold as much as they may: then a read brings what is wanted and little more,
    /// and nobody keeps what it cannot give out now.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.read_bytes() > self.read_bytes_max
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in an entry with `waiting` undelivered messages; the oldest entries make room.
    pub fn put(&mut self, at: Location, body: Bytes, waiting: u64) {
        if waiting == 0 {
            return;
        }
        let entry = Entry { body, waiting };
        if entry.bytes() > self.bytes_max {
            self.pushed_out_bytes += entry.body.len() as u64;
            return;
        }
        self.bytes += entry.bytes();
        let before = self.entries.insert((crate::place::file_u32(at.file), at.offset), entry);
        assert!(before.is_none(), "a place in the WAL is written once");
        while self.bytes > self.bytes_max {
            let (_, oldest) = self.entries.pop_first().expect("bytes are held by entries");
            self.bytes -= oldest.bytes();
            if oldest.waiting > 0 {
                self.pushed_out_bytes += oldest.body.len() as u64;
            }
        }
    }

    /// Bytes that made room since the last call while somebody was still to get them: they will be
    /// read from the log.
    pub fn take_pushed_out_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.pushed_out_bytes)
    }

    /// The bytes at `offset` of `file`, if the entry that they belong to is here.
    pub fn get(&self, file: u32, offset: u32, bytes: u32) -> Option<Bytes> {
        // Mostly it is the newest one.
        let newest = self.entries.last_key_value().filter(|(at, _)| **at <= (file, offset));
        let before = newest.or_else(|| self.entries.range(..=(file, offset)).next_back());
        // The entry before may lie in another file, at any offset.
        let (&(_, at_offset), entry) = before.filter(|(at, _)| at.0 == file)?;
        let from = (offset - at_offset) as usize;
        let past = from + bytes as usize;
        (past <= entry.body.len()).then(|| entry.body.slice(from..past))
    }

    /// `count` messages of the entry around this place were given out (or ended): once all were it
    /// goes, at once or, if it is small, when enough others were delivered after it.
    pub fn used(&mut self, file: u32, offset: u32, count: u64) {
        let (key, entry) = match self.entries.last_entry() {
            // Mostly it is the newest one.
            Some(newest) if *newest.key() <= (file, offset) => (*newest.key(), newest.into_mut()),
            _ => match self.entries.range_mut(..=(file, offset)).next_back() {
                Some((key, entry)) => (*key, entry),
                None => return,
            },
        };
        let within = key.0 == file && ((offset - key.1) as usize) < entry.body.len();
        if !within || entry.waiting == 0 {
            return;
        }
        entry.waiting = entry.waiting.saturating_sub(count);
        if entry.waiting > 0 {
            return;
        }
        let bytes = entry.bytes();
        if bytes > DELIVERED_ENTRY_BYTES_MAX {
            self.bytes -= bytes;
            self.entries.remove(&key);
            return;
        }
        self.delivered.push_back((key, bytes));
        self.delivered_bytes += bytes;
        while self.delivered_bytes > DELIVERED_BYTES_MAX {
            let (key, bytes) = self.delivered.pop_front().expect("bytes are held by entries");
            self.delivered_bytes -= bytes;
            // It may have made room for newer ones before.
            if self.entries.remove(&key).is_some() {
                self.bytes -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::FileNo;

    #[test]
    fn what_makes_room_undelivered_is_counted_once() {
        let mut tail = Tail::new(10 + 2 * ENTRY_OVERHEAD_BYTES);
        let place = |offset| Location { file: FileNo(1), offset, bytes: 4 };
        for offset in [0, 100, 200, 300] {
            tail.put(place(offset), Bytes::from_static(b"body"), 1);
        }
        assert_eq!(tail.take_pushed_out_bytes(), 8);
        tail.used(1, 200, 1);
        tail.put(place(400), Bytes::from_static(b"body"), 1);
        assert_eq!(tail.take_pushed_out_bytes(), 0, "what was delivered makes room for nothing");
        tail.put(place(500), Bytes::from(vec![1; 11 + ENTRY_OVERHEAD_BYTES]), 1);
        assert_eq!(tail.bytes(), 2 * (4 + ENTRY_OVERHEAD_BYTES));
        assert_eq!(tail.take_pushed_out_bytes(), 11 + ENTRY_OVERHEAD_BYTES as u64, "it is larger than all there is");
    }

    #[test]
    fn small_entries_outlive_their_delivery_for_a_while_and_large_ones_do_not() {
        let mut tail = Tail::new(1 << 20);
        let place = |offset| Location { file: FileNo(1), offset, bytes: 4 };
        let small = Bytes::from(vec![1; DELIVERED_ENTRY_BYTES_MAX - ENTRY_OVERHEAD_BYTES]);
        tail.put(place(0), small.clone(), 2);
        tail.used(1, 0, 2);
        assert_eq!(tail.get(1, 0, 4).as_deref(), Some(&[1; 4][..]), "who gets it again needs no read");
        tail.used(1, 0, 1);
        let fit = (DELIVERED_BYTES_MAX / DELIVERED_ENTRY_BYTES_MAX) as u32;
        for n in 1..=fit {
            tail.put(place(n * 10_000), small.clone(), 1);
            tail.used(1, n * 10_000, 1);
        }
        assert_eq!(tail.get(1, 0, 4), None, "the one that was delivered first goes first");
        assert_eq!(tail.bytes(), DELIVERED_BYTES_MAX);
        let large = Bytes::from(vec![1; DELIVERED_ENTRY_BYTES_MAX - ENTRY_OVERHEAD_BYTES + 1]);
        tail.put(place(1_000_000), large, 1);
        tail.used(1, 1_000_000, 1);
        assert_eq!((tail.get(1, 1_000_000, 4), tail.bytes()), (None, DELIVERED_BYTES_MAX));
    }

    #[test]
    fn delivered_entries_that_made_room_are_forgotten() {
        let mut tail = Tail::new(10 + 2 * ENTRY_OVERHEAD_BYTES);
        let place = |offset| Location { file: FileNo(1), offset, bytes: 4 };
        for offset in [0, 100, 200, 300, 400] {
            tail.put(place(offset), Bytes::from_static(b"body"), 1);
            tail.used(1, offset, 1);
        }
        let two = 2 * (4 + ENTRY_OVERHEAD_BYTES);
        assert_eq!((tail.bytes(), tail.take_pushed_out_bytes()), (two, 0), "what was delivered is no loss");
        let filler = Bytes::from(vec![1; 10 + ENTRY_OVERHEAD_BYTES]);
        tail.put(place(500), filler, 1);
        assert_eq!((tail.bytes(), tail.take_pushed_out_bytes()), (10 + 2 * ENTRY_OVERHEAD_BYTES, 0));
    }

    #[test]
    fn an_entry_of_an_older_file_is_not_taken_for_one_of_this_file() {
        let mut tail = Tail::new(1 << 20);
        let at = Location { file: FileNo(1), offset: 9000, bytes: 4 };
        tail.put(at, Bytes::from_static(b"body"), 1);
        assert_eq!(tail.get(2, 4096, 4), None);
        tail.used(2, 4096, 1);
        assert_eq!(tail.get(1, 9000, 4).as_deref(), Some(&b"body"[..]));
    }
}

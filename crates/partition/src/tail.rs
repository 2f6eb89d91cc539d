//! The newest log entries of a shard, in memory until they are delivered or the budget is reached.
//!
//! Consumers that keep up are served from here, without a read. Invariant: `bytes` is the sum over all entries and never
//! passes the budget once `put` has returned, whatever consumers do; the oldest go first.

use bytes::Bytes;
use std::collections::BTreeMap;
use storage::Location;

struct Entry {
    body: Bytes,
    /// Messages (times their queues) that nobody has been given yet.
    waiting: u64,
}

/// A byte-bounded cache of log entries by where they lie in the WAL. One a shard, shared by its partitions.
pub struct Tail {
    entries: BTreeMap<(u32, u32), Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl Tail {
    /// An empty cache that keeps at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Tail { entries: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in an entry with `waiting` undelivered messages; the oldest entries make room.
    pub fn put(&mut self, at: Location, body: Bytes, waiting: u64) {
        if waiting == 0 || body.len() > self.bytes_max {
            return;
        }
        self.bytes += body.len();
        let before = self.entries.insert((crate::place::file_u32(at.file), at.offset), Entry { body, waiting });
        assert!(before.is_none(), "a place in the WAL is written once");
        while self.bytes > self.bytes_max {
            let (_, oldest) = self.entries.pop_first().expect("bytes are held by entries");
            self.bytes -= oldest.body.len();
        }
    }

    /// The bytes at `offset` of `file`, if the entry that they belong to is here.
    pub fn get(&self, file: u32, offset: u32, bytes: u32) -> Option<Bytes> {
        // Within the file: the entry before may lie in another one, at any offset.
        let (&(_, at_offset), entry) = self.entries.range((file, 0)..=(file, offset)).next_back()?;
        let from = (offset - at_offset) as usize;
        let past = from + bytes as usize;
        (past <= entry.body.len()).then(|| entry.body.slice(from..past))
    }

    /// `count` messages of the entry around this place were given out (or ended): it goes once all were.
    pub fn used(&mut self, file: u32, offset: u32, count: u64) {
        let Some((&key, entry)) = self.entries.range_mut(..=(file, offset)).next_back() else { return };
        let within = key.0 == file && ((offset - key.1) as usize) < entry.body.len();
        if !within {
            return;
        }
        entry.waiting = entry.waiting.saturating_sub(count);
        if entry.waiting == 0 {
            self.bytes -= entry.body.len();
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::FileNo;

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

//! Where each entry of one group's log lies in this member's WAL, since the last compaction.
//!
//! Invariant: slots are contiguous from `first`; a slot that was overwritten by a new leader has the new term and no
//! location until that write is reported. About 24 bytes an entry; checkpoints compact it.

use consensus::{LogIndex, Term};
use std::collections::VecDeque;
use storage::Location;

#[derive(Clone, Copy, Debug)]
struct Slot {
    term: Term,
    body: Option<Location>,
}

/// The index of one group's log.
#[derive(Debug)]
pub struct LogTable {
    first: u64,
    slots: VecDeque<Slot>,
}

impl LogTable {
    /// An index that starts after `compacted`.
    pub fn new(compacted: LogIndex) -> Self {
        LogTable { first: compacted.0 + 1, slots: VecDeque::new() }
    }

    /// The first index kept.
    pub fn first(&self) -> LogIndex {
        LogIndex(self.first)
    }

    /// How many entries are indexed.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The last index, or the one before the first.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.first + self.slots.len() as u64 - 1)
    }

    /// Notes an entry that is about to be written (or was recovered, with its place); it and what followed it is
    /// overwritten.
    pub fn append(&mut self, index: LogIndex, term: Term, body: Option<Location>) {
        assert!(index.0 >= self.first, "what is compacted is committed and never written again");
        assert!(index.0 <= self.first + self.slots.len() as u64, "a log has no gaps");
        self.slots.truncate((index.0 - self.first) as usize);
        self.slots.push_back(Slot { term, body });
    }

    /// An entry was written. One that was overwritten meanwhile is passed over.
    pub fn written(&mut self, index: LogIndex, term: Term, body: Location) {
        let Some(at) = index.0.checked_sub(self.first) else { return };
        if let Some(slot) = self.slots.get_mut(at as usize)
            && slot.term == term
        {
            slot.body = Some(body);
        }
    }

    /// Where an entry lies, if it is indexed and written.
    pub fn body(&self, index: LogIndex) -> Option<Location> {
        let at = index.0.checked_sub(self.first)?;
        self.slots.get(at as usize)?.body
    }

    /// The term of an entry.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        let at = index.0.checked_sub(self.first)?;
        Some(self.slots.get(at as usize)?.term)
    }

    /// The WAL file of the first indexed entry that is written.
    pub fn oldest_file(&self) -> Option<u32> {
        self.slots.iter().find_map(|s| s.body).map(|b| crate::place::file_u32(b.file))
    }

    /// Forgets entries up to and including `index`.
    pub fn compact(&mut self, index: LogIndex) {
        let gone = (index.0 + 1).saturating_sub(self.first).min(self.slots.len() as u64);
        self.slots.drain(..gone as usize);
        self.first = self.first.max(index.0 + 1);
        if self.slots.capacity() > 64 && self.slots.len() * 4 < self.slots.capacity() {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }
}

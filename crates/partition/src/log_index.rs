//! Where each entry of one group's log lies in this member's WAL, since the last compaction.
//!
//! Invariant: slots are contiguous from `first`; a slot that was overwritten by a new leader has
//! the new term and no location until that write is reported. [`SLOT_BYTES`] an entry, whatever its
//! length; checkpoints compact it.

use crate::machine::ROOM_KEPT;
use consensus::{LogIndex, Term};
use std::collections::VecDeque;
use storage::{FileNo, Location};

/// What an entry costs here.
pub const SLOT_BYTES: usize = size_of::<Slot>();

/// Where an entry lies; in no file until its write is reported.
#[derive(Clone, Copy, Debug)]
struct Slot {
    file: u32,
    offset: u32,
    bytes: u32,
}

impl Slot {
    fn new(body: Option<Location>) -> Self {
        let Some(body) = body else { return Slot { file: NO_FILE, offset: 0, bytes: 0 } };
        Slot { file: crate::place::file_u32(body.file), offset: body.offset, bytes: body.bytes }
    }

    fn body(self) -> Option<Location> {
        let at = Location { file: FileNo(u64::from(self.file)), offset: self.offset, bytes: self.bytes };
        (self.file != NO_FILE).then_some(at)
    }
}

/// Log files are numbered from 1 on.
const NO_FILE: u32 = 0;

/// The index of one group's log.
#[derive(Debug)]
pub struct LogTable {
    first: u64,
    slots: VecDeque<Slot>,
    /// Each term and the first index that has it, ascending. The first of them may begin before
    /// `first`.
    terms: VecDeque<(u64, Term)>,
}

impl LogTable {
    /// An index that starts after `compacted`.
    pub fn new(compacted: LogIndex) -> Self {
        LogTable { first: compacted.0 + 1, slots: VecDeque::new(), terms: VecDeque::new() }
    }

    /// The first index kept.
    pub fn first(&self) -> LogIndex {
        LogIndex(self.first)
    }

    /// How many entries are indexed.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The last index, or the one before the first.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.first + self.slots.len() as u64 - 1)
    }

    /// Gives back the room of slots that are gone.
    pub(crate) fn trim(&mut self) {
        if self.slots.capacity() > (2 * self.slots.len()).max(ROOM_KEPT) {
            self.slots.shrink_to_fit();
        }
    }

    /// Notes an entry that is about to be written (or was recovered, with its place); it and what
    /// followed it is overwritten.
    pub fn append(&mut self, index: LogIndex, term: Term, body: Option<Location>) {
        assert!(index.0 >= self.first, "what is compacted is committed and never written again");
        assert!(index.0 <= self.first + self.slots.len() as u64, "a log has no gaps");
        self.slots.truncate((index.0 - self.first) as usize);
        while self.terms.back().is_some_and(|(from, _)| *from >= index.0) {
            self.terms.pop_back();
        }
        if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((index.0, term));
        }
        self.slots.push_back(Slot::new(body));
    }

    /// An entry was written. One that was overwritten meanwhile is passed over.
    pub fn written(&mut self, index: LogIndex, term: Term, body: Location) {
        if self.term(index) == Some(term) {
            self.slots[(index.0 - self.first) as usize] = Slot::new(Some(body));
        }
    }

    /// Where an entry lies, if it is indexed and written.
    pub fn body(&self, index: LogIndex) -> Option<Location> {
        let at = index.0.checked_sub(self.first)?;
        self.slots.get(at as usize)?.body()
    }

    /// The term of an entry.
    pub fn term(&self, index: LogIndex) -> Option<Term> {
        if index.0 < self.first || index > self.last() {
            return None;
        }
        // Mostly the newest one.
        self.terms.iter().rev().find(|(from, _)| *from <= index.0).map(|(_, term)| *term)
    }

    /// The WAL file of the first indexed entry that is written.
    pub fn oldest_file(&self) -> Option<u32> {
        self.slots.iter().find(|s| s.file != NO_FILE).map(|s| s.file)
    }

    /// Forgets entries up to and including `index`.
    pub fn compact(&mut self, index: LogIndex) {
        let gone = (index.0 + 1).saturating_sub(self.first).min(self.slots.len() as u64);
        self.slots.drain(..gone as usize);
        self.first = self.first.max(index.0 + 1);
        while self.terms.get(1).is_some_and(|(from, _)| *from <= self.first) {
            self.terms.pop_front();
        }
        if self.slots.capacity() > 64 && self.slots.len() * 4 < self.slots.capacity() {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn index_agrees_with_a_plain_list(steps in prop::collection::vec((0u8..4, 0u64..12), 1..120)) {
            let at = |n: u64| Location { file: FileNo(1 + n / 7), offset: n as u32, bytes: 9 };
            // Entries from 11 on; the plain list keeps all of them, compacted ones included.
            let (mut table, mut plain, mut term) = (LogTable::new(LogIndex(10)), Vec::<(Term, Option<Location>)>::new(), 1);
            let mut first = 0;
            for (step, n) in steps {
                let len = plain.len() as u64;
                match step {
                    0 => {
                        // A new leader writes over the tail.
                        let from = (first as u64).max(len.saturating_sub(n));
                        term += u64::from(n > 0);
                        plain.truncate(from as usize);
                        plain.push((Term(term), None));
                        table.append(LogIndex(11 + from), Term(term), None);
                    }
                    1 => {
                        plain.push((Term(term), Some(at(n))));
                        table.append(LogIndex(11 + len), Term(term), Some(at(n)));
                    }
                    2 => {
                        let of = Term(term.saturating_sub(n % 2));
                        if let Some(entry) = plain[first..].get_mut(n as usize).filter(|e| e.0 == of) {
                            entry.1 = Some(at(n));
                        }
                        table.written(LogIndex(11 + first as u64 + n), of, at(n));
                    }
                    _ => {
                        first = (first + n as usize).min(plain.len());
                        table.compact(LogIndex(10 + first as u64));
                    }
                }
                prop_assert_eq!((table.first().0, table.len()), (11 + first as u64, plain.len() - first));
                for i in 0..plain.len() + 3 {
                    let known = plain.get(i).filter(|_| i >= first);
                    prop_assert_eq!(table.term(LogIndex(11 + i as u64)), known.map(|e| e.0));
                    prop_assert_eq!(table.body(LogIndex(11 + i as u64)), known.and_then(|e| e.1));
                }
            }
        }
    }
}

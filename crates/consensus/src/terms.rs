//! The terms of all entries of a log, as runs: a term begins at an index and lasts until the next
//! one begins.
//!
//! Terms change when leaders do, so a log of millions of entries has a handful of runs, and the
//! term of every entry since the last compaction stays in memory even when its body does not.
//!
//! Invariant: runs are in order of index and of term, both strictly growing, and the first begins
//! at the compacted place.

use crate::position::{LogIndex, Position, Term};

/// A stretch of consecutive entries of one term, named by its first. It lasts until the next run
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermRun {
    /// Index of the first entry of the stretch.
    pub first: LogIndex,
    /// Their term.
    pub term: Term,
}

/// The runs of one log.
#[derive(Debug)]
pub(crate) struct TermRuns {
    runs: Vec<TermRun>,
}

impl TermRuns {
    /// A log that begins after `compacted`.
    pub(crate) fn new(compacted: Position) -> Self {
        Self { runs: vec![TermRun { first: compacted.index, term: compacted.term }] }
    }

    /// The term at `index`, which the caller has checked to lie between the compacted place and the
    /// last entry.
    pub(crate) fn at(&self, index: u64) -> u64 {
        // Almost every question is about the newest run.
        let after = self
            .runs
            .iter()
            .rposition(|run| run.first.0 <= index)
            .expect("the first run begins at the compacted place, and nothing before it is asked for");
        self.runs[after].term.0
    }

    /// Notes that the entry at `index`, the next one, has `term`.
    pub(crate) fn push(&mut self, index: u64, term: u64) {
        let last = self.runs.last().expect("there is always the compacted place");
        assert!(term >= last.term.0, "terms only grow along a log");
        assert!(index > last.first.0, "entries are appended in order");
        if term != last.term.0 {
            self.runs.push(TermRun { first: LogIndex(index), term: Term(term) });
        }
    }

    /// Forgets the entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        assert!(index > self.runs[0].first.0, "what is compacted is committed and never replaced");
        let keep = self.runs.partition_point(|run| run.first.0 < index);
        self.runs.truncate(keep);
    }

    /// Forgets the entries before `index`, whose own term stays known.
    pub(crate) fn compact(&mut self, index: u64) {
        let term = Term(self.at(index));
        let past = self.runs.partition_point(|run| run.first.0 <= index);
        self.runs.drain(..past - 1);
        self.runs[0] = TermRun { first: LogIndex(index), term };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3@2 compacted, then 4@2 5@2 6@5 7@5 8@6.
    fn runs() -> TermRuns {
        let mut runs = TermRuns::new(Position::new(3, 2));
        for (index, term) in [(4, 2), (5, 2), (6, 5), (7, 5), (8, 6)] {
            runs.push(index, term);
        }
        runs
    }

    #[test]
    fn every_entry_has_the_term_it_was_pushed_with() {
        let runs = runs();
        let terms: Vec<u64> = (3..=8).map(|index| runs.at(index)).collect();
        assert_eq!(terms, [2, 2, 2, 5, 5, 6]);
        assert_eq!(runs.runs.len(), 3, "a run per term, not per entry");
    }

    #[test]
    fn truncated_entries_take_new_terms() {
        let mut runs = runs();
        runs.truncate(6);
        runs.push(6, 7);
        assert_eq!((runs.at(5), runs.at(6)), (2, 7));
        runs.truncate(4);
        runs.push(4, 9);
        assert_eq!((runs.at(3), runs.at(4)), (2, 9));
    }

    #[test]
    fn compacting_keeps_the_term_of_the_last_forgotten_entry() {
        let mut runs = runs();
        runs.compact(7);
        assert_eq!((runs.at(7), runs.at(8)), (5, 6));
        assert_eq!(runs.runs.len(), 2);
        runs.compact(8);
        assert_eq!(runs.at(8), 6);
        assert_eq!(runs.runs.len(), 1);
    }
}

//! Which numbers of a channel's publishes the log has. A channel numbers its publishes upwards, over all
//! partitions, and what a leader refused is in no log: so a number below the last one says nothing by itself.
//!
//! ```text
//!   taken in     1 2 3 . 5 6 . . 9        since 9, last 9, before [1..4, 5..7]
//!   comes again  2: a repeat, it is there    4: refused, it is not    10: new
//! ```
//!
//! Invariants: what [`Publisher::has`] says is there was taken in. What it says is not there may have been,
//! long ago or before this member began to look: it keeps the newest runs, and none of them over a start
//! or a snapshot. Of the replicated state only the last number is a part.

use std::collections::VecDeque;

/// Runs of numbers that are kept of all publishers of a partition together, about.
const RUNS_OF_ALL_MAX: usize = 1 << 16;
/// Runs that are kept of one publisher at least, and at most.
const RUNS_MIN: usize = 16;
const RUNS_MAX: usize = 1024;

/// Runs to keep of one of so many publishers.
pub(crate) fn runs_max(publishers: usize) -> usize {
    (RUNS_OF_ALL_MAX / publishers.max(1)).clamp(RUNS_MIN, RUNS_MAX)
}

/// What is remembered of a publisher. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Publisher {
    /// The last number that was taken in; 0 where none was.
    last: u64,
    /// From here to `last` all were.
    since: u64,
    /// Runs before that, ascending, each as its first number and that behind its last.
    #[allow(clippy::box_collection)] // Nearly always there are none, and publishers are many.
    before: Option<Box<VecDeque<(u64, u64)>>>,
}

impl Publisher {
    /// One of which only the last number is known.
    pub(crate) fn known_by(last: u64) -> Publisher {
        Publisher { last, since: last, before: None }
    }

    /// The last number that was taken in.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Takes in a number above the last one. `runs_max`: how many runs to keep.
    #[inline]
    pub(crate) fn take(&mut self, seq: u64, runs_max: impl FnOnce() -> usize) {
        self.take_run(seq, 1, runs_max);
    }

    /// The same of so many numbers in a row.
    #[inline]
    pub(crate) fn take_run(&mut self, first: u64, count: u64, runs_max: impl FnOnce() -> usize) {
        if self.last == 0 || first != self.last + 1 {
            self.begin_run(first, runs_max());
        }
        self.last = first + count - 1;
    }

    fn begin_run(&mut self, seq: u64, runs_max: usize) {
        if self.last > 0 {
            let before = self.before.get_or_insert_default();
            before.push_back((self.since, self.last + 1));
            // The last run is one of them.
            before.drain(..before.len().saturating_sub(runs_max - 1));
        }
        self.since = seq;
    }

    /// Whether a number was taken in for sure.
    pub(crate) fn has(&self, seq: u64) -> bool {
        if seq >= self.since {
            return seq <= self.last && self.last > 0;
        }
        let Some(before) = &self.before else { return false };
        let at = before.partition_point(|(_, past)| *past <= seq);
        before.get(at).is_some_and(|(first, _)| *first <= seq)
    }
}

/// What a leader makes of a publish by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was never seen.
    New,
    /// The log has it, or is about to.
    Repeat,
    /// It was seen, or what came behind it was, and nobody knows that the log has it.
    Passed,
}

/// A publisher as its leader sees it, ahead of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) publisher: Publisher,
    /// The highest number that came, whatever became of it.
    highest: u64,
}

impl Seen {
    /// As the log has it.
    pub(crate) fn of(publisher: Option<&Publisher>) -> Seen {
        let publisher = publisher.cloned().unwrap_or_default();
        Seen { highest: publisher.last, publisher }
    }

    /// Whether no publish from this one on has come.
    #[inline]
    pub(crate) fn are_new_from(&self, first: u64) -> bool {
        first > self.highest
    }

    /// So many new publishes in a row are taken in.
    #[inline]
    pub(crate) fn take_run(&mut self, first: u64, count: u64, runs_max: impl FnOnce() -> usize) {
        self.highest = self.highest.max(first + count - 1);
        self.publisher.take_run(first, count, runs_max);
    }

    /// A publish comes.
    #[inline]
    pub(crate) fn see(&mut self, seq: u64) -> Standing {
        if seq > self.highest {
            self.highest = seq;
            return Standing::New;
        }
        if self.publisher.has(seq) { Standing::Repeat } else { Standing::Passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(seqs: &[u64], runs_max: usize) -> Publisher {
        let mut publisher = Publisher::default();
        seqs.iter().for_each(|seq| publisher.take(*seq, || runs_max));
        publisher
    }

    #[test]
    fn only_what_was_taken_in_is_there() {
        let publisher = taken(&[1, 2, 3, 5, 6, 9], 8);
        let there: Vec<u64> = (0..12).filter(|seq| publisher.has(*seq)).collect();
        assert_eq!((there, publisher.last()), (vec![1, 2, 3, 5, 6, 9], 9));
        assert!((0..3).all(|seq| !Publisher::default().has(seq)));
        let late = taken(&[7, 8], 8);
        assert_eq!((0..12).filter(|seq| late.has(*seq)).collect::<Vec<_>>(), [7, 8], "it began elsewhere");
        let known = Publisher::known_by(5);
        assert_eq!((0..12).filter(|seq| known.has(*seq)).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn the_oldest_runs_are_forgotten_and_what_was_in_them_is_not_there() {
        let publisher = taken(&[1, 3, 5, 7, 9], 3);
        assert_eq!((0..12).filter(|seq| publisher.has(*seq)).collect::<Vec<_>>(), [5, 7, 9]);
        assert_eq!((runs_max(1), runs_max(256), runs_max(1 << 20)), (RUNS_MAX, 256, RUNS_MIN));
    }

    #[test]
    fn what_a_leader_saw_and_did_not_take_in_is_no_repeat() {
        let mut seen = Seen::of(Some(&taken(&[1, 2], 8)));
        assert_eq!(
            [1, 2, 3, 4].map(|seq| seen.see(seq)),
            [Standing::Repeat, Standing::Repeat, Standing::New, Standing::New]
        );
        seen.publisher.take(4, || 8);
        assert_eq!([3, 4, 5].map(|seq| seen.see(seq)), [Standing::Passed, Standing::Repeat, Standing::New]);
    }
}

//! The live messages of one queue as runs: stretches of sequence numbers whose bytes lie in one
//! place.
//!
//! Invariant: runs ascend and do not overlap; a run without a live message does not exist; the
//! first offset that is not settled is `prefix`. What a place is, this crate does not know (`P`): a
//! stretch of the WAL, of an extent file, or of memory. A queue that is consumed in order costs no
//! memory for what is settled inside a run; settling out of order costs one bit a message of that
//! run, until the run is consumed.

use std::collections::VecDeque;

/// Most messages one run may cover: its bitmap stays below 128 KiB.
pub const RUN_MESSAGES_MAX: u32 = 1 << 20;

/// A stretch of sequence numbers in one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Run<P> {
    /// The first sequence number.
    pub first: u64,
    /// How many numbers it covers, settled ones included. 1 to [`RUN_MESSAGES_MAX`].
    pub count: u32,
    /// All offsets below are settled; below `count`.
    prefix: u32,
    /// Where the bytes are.
    pub place: P,
    /// Only while something above `prefix` is settled: a run without holes is what a backlog is
    /// made of, and small.
    holes: Option<Box<Holes>>,
}

/// What is settled inside a run.
#[derive(Clone, Debug, PartialEq)]
struct Holes {
    /// How many are not settled.
    live: u32,
    /// One bit an offset, set where settled.
    bits: Box<[u64]>,
}

impl<P> Run<P> {
    /// A run with nothing settled yet.
    pub fn new(first: u64, count: u32, place: P) -> Self {
        assert!(count > 0 && count <= RUN_MESSAGES_MAX, "a run covers 1 to RUN_MESSAGES_MAX messages, not {count}");
        Run { first, count, prefix: 0, place, holes: None }
    }

    /// A run of which only `live` is not settled: ranges `(first, count)` within it, ascending.
    /// `None` if that is nothing.
    pub fn restore(first: u64, count: u32, place: P, live: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let mut run = Run::new(first, count, place);
        let mut from = first;
        for (live_first, live_count) in live {
            assert!(
                live_first >= from && live_first + live_count <= run.past(),
                "live ranges lie in the run, ascending"
            );
            run.settle((from - first) as u32, (live_first - first) as u32);
            from = live_first + live_count;
        }
        run.settle((from - first) as u32, count);
        (run.live() > 0).then_some(run)
    }

    /// What is not settled, as ranges `(first, count)`, ascending.
    pub fn live_ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.live_ranges_within(self.first, self.past())
    }

    /// The same of `from..past`. Looks at nothing else: a single message is asked for in a run of a million.
    pub fn live_ranges_within(&self, from: u64, past: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let past = past.min(self.past());
        let mut from = from.max(self.first + u64::from(self.prefix));
        std::iter::from_fn(move || {
            while from < past && !self.is_live(from) {
                from += 1;
            }
            let first = from;
            match self.holes {
                None => from = past.max(from),
                Some(_) => {
                    while from < past && self.is_live(from) {
                        from += 1;
                    }
                }
            }
            (first < past).then_some((first, from - first))
        })
    }

    /// One past the last sequence number.
    pub fn past(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// How many messages are not settled.
    pub fn live(&self) -> u32 {
        self.holes.as_ref().map_or(self.count - self.prefix, |holes| holes.live)
    }

    /// Whether `seq`, which the run covers, is not settled.
    pub fn is_live(&self, seq: u64) -> bool {
        let offset = (seq - self.first) as u32;
        offset >= self.prefix && !self.is_hole(offset)
    }

    /// The first live number at or after `from`.
    pub fn next_live(&self, from: u64) -> Option<u64> {
        let mut offset = from.saturating_sub(self.first).max(u64::from(self.prefix)) as u32;
        while offset < self.count && self.is_hole(offset) {
            offset += 1;
        }
        (offset < self.count).then(|| self.first + u64::from(offset))
    }

    fn is_hole(&self, offset: u32) -> bool {
        self.holes.as_ref().is_some_and(|h| h.bits[offset as usize / 64] >> (offset % 64) & 1 == 1)
    }

    /// Settles the offsets in `low..high`; returns how many were live.
    fn settle(&mut self, low: u32, high: u32) -> u32 {
        let before = self.live();
        if low <= self.prefix && self.holes.is_none() {
            self.prefix = self.prefix.max(high);
            return before - self.live();
        }
        if low >= high {
            return 0;
        }
        let words = (self.count as usize).div_ceil(64);
        let new = || Box::new(Holes { live: before, bits: vec![0u64; words].into_boxed_slice() });
        let holes = self.holes.get_or_insert_with(new);
        for offset in low.max(self.prefix)..high {
            let (word, bit) = (offset as usize / 64, 1u64 << (offset % 64));
            if holes.bits[word] & bit == 0 {
                holes.bits[word] |= bit;
                holes.live -= 1;
            }
        }
        let live = holes.live;
        while self.prefix < self.count && self.is_hole(self.prefix) {
            self.prefix += 1;
        }
        if live == self.count - self.prefix {
            self.holes = None;
        }
        before - live
    }
}

/// All runs of one queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs<P> {
    runs: VecDeque<Run<P>>,
    live: u64,
}

impl<P> Default for Runs<P> {
    fn default() -> Self {
        Runs { runs: VecDeque::new(), live: 0 }
    }
}

impl<P> Runs<P> {
    /// How many messages are live.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing is live.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Run<P>> {
        self.runs.iter()
    }

    /// The runs in order, from the one that covers `seq`, or comes after it, on.
    pub fn iter_from(&self, seq: u64) -> impl Iterator<Item = &Run<P>> {
        self.runs.range(self.runs.partition_point(|r| r.past() <= seq)..)
    }

    /// The runs in order, for moving their places.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Run<P>> {
        self.runs.iter_mut()
    }

    /// Appends a run; its first number is past every number there is.
    pub fn push(&mut self, run: Run<P>) {
        assert!(self.runs.back().is_none_or(|last| last.past() <= run.first), "runs only grow at their end");
        self.live += u64::from(run.live());
        self.runs.push_back(run);
    }

    /// The run that covers `seq`, live or settled.
    pub fn covering(&self, seq: u64) -> Option<&Run<P>> {
        // The head and the tail are where queues are read and written.
        match (self.runs.front(), self.runs.back()) {
            (Some(run), _) if run.first <= seq && seq < run.past() => return Some(run),
            (_, Some(run)) if run.first <= seq && seq < run.past() => return Some(run),
            _ => {}
        }
        let at = self.runs.partition_point(|r| r.past() <= seq);
        self.runs.get(at).filter(|r| r.first <= seq)
    }

    /// Whether `seq` is there and not settled.
    pub fn is_live(&self, seq: u64) -> bool {
        self.covering(seq).is_some_and(|r| r.is_live(seq))
    }

    /// The first live number at or after `from`, with its run.
    #[inline]
    pub fn next_live(&self, from: u64) -> Option<(u64, &Run<P>)> {
        // A queue that is consumed in order is asked about its first run, which has no holes.
        match self.runs.front() {
            Some(run) if run.holes.is_none() && from < run.past() => {
                Some((from.max(run.first + u64::from(run.prefix)), run))
            }
            _ => self.find_live(from),
        }
    }

    /// The first live number at or after `from`, and one past the last behind it that is known to be live too.
    pub fn live_stretch(&self, from: u64) -> Option<(u64, u64)> {
        let (seq, run) = self.next_live(from)?;
        Some((seq, if run.holes.is_none() { run.past() } else { seq + 1 }))
    }

    #[inline(never)]
    fn find_live(&self, from: u64) -> Option<(u64, &Run<P>)> {
        let mut at = match self.runs.front() {
            Some(run) if from < run.past() => 0,
            _ => match self.runs.back() {
                Some(run) if run.first <= from => self.runs.len() - 1,
                _ => self.runs.partition_point(|r| r.past() <= from),
            },
        };
        while let Some(run) = self.runs.get(at) {
            if let Some(seq) = run.next_live(from.max(run.first)) {
                return Some((seq, run));
            }
            at += 1;
        }
        None
    }

    /// Settles `count` numbers from `first`; returns how many were live. Runs that are used up go,
    /// each with its place handed to `gone`; what is unknown or settled already is passed over.
    pub fn settle(&mut self, first: u64, count: u64, gone: &mut impl FnMut(&Run<P>)) -> u64 {
        let past = first + count;
        let mut settled = 0u64;
        let mut at = match self.runs.front() {
            Some(run) if first < run.past() => 0,
            _ => self.runs.partition_point(|r| r.past() <= first),
        };
        while let Some(run) = self.runs.get_mut(at) {
            if run.first >= past {
                break;
            }
            let low = first.saturating_sub(run.first).min(u64::from(run.count)) as u32;
            let high = (past - run.first).min(u64::from(run.count)) as u32;
            settled += u64::from(run.settle(low, high));
            if run.live() == 0 {
                gone(run);
                self.runs.remove(at);
            } else {
                at += 1;
            }
        }
        self.live -= settled;
        settled
    }

    /// Puts other runs in the place of those that reach into `first..past`, for moving their bytes:
    /// `change` is given those, in order, and returns what stands for them. What is live must stay
    /// live, within the same numbers.
    ///
    /// Cost: the runs at hand, and a shift of those on the shorter side of them.
    pub fn replace(&mut self, first: u64, past: u64, change: impl FnOnce(Vec<Run<P>>) -> Vec<Run<P>>) {
        let low = self.runs.partition_point(|r| r.past() <= first);
        let high = self.runs.partition_point(|r| r.first < past).max(low);
        // Turned so that they stand in front: taken out and put in there without another list.
        self.runs.rotate_left(low);
        let before: Vec<Run<P>> = self.runs.drain(..high - low).collect();
        let live: u64 = before.iter().map(|r| u64::from(r.live())).sum();
        let after = change(before);
        assert_eq!(
            after.iter().map(|r| u64::from(r.live())).sum::<u64>(),
            live,
            "moving bytes settles nothing and revives nothing"
        );
        for run in after.into_iter().rev() {
            // Behind the stretch stand its followers, or, turned round, the first runs of all.
            let follows = self.runs.front().filter(|_| self.runs.len() > low);
            assert!(follows.is_none_or(|next| run.past() <= next.first), "runs ascend and do not overlap");
            self.runs.push_front(run);
        }
        self.runs.rotate_right(low);
        let (len, capacity) = (self.runs.len(), self.runs.capacity());
        if capacity > 64 && len * 4 < capacity {
            self.runs.shrink_to(len * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn runs_agree_with_a_plain_set(
            sizes in prop::collection::vec((1u32..80, 0u64..3), 1..8),
            settles in prop::collection::vec((0u64..400, 1u64..90), 0..40),
        ) {
            let (mut runs, mut plain, mut next) = (Runs::default(), BTreeSet::new(), 1u64);
            for (i, (count, gap)) in sizes.iter().enumerate() {
                next += gap;
                runs.push(Run::new(next, *count, i));
                plain.extend(next..next + u64::from(*count));
                next += u64::from(*count);
            }
            for (first, count) in settles {
                let had = (first..first + count).filter(|s| plain.remove(s)).count() as u64;
                let mut gone = 0;
                prop_assert_eq!(runs.settle(first, count, &mut |r: &Run<usize>| gone += r.count), had);
                prop_assert_eq!(runs.live(), plain.len() as u64);
                for s in 0..420 {
                    prop_assert_eq!(runs.is_live(s), plain.contains(&s));
                    prop_assert_eq!(runs.next_live(s).map(|n| n.0), plain.range(s..).next().copied());
                }
                let mut again = runs.clone();
                again.replace(first, first + count, |stretch| {
                    // Each run in two halves, as an extent may cut them.
                    let halves = stretch.iter().flat_map(|r| {
                        let middle = r.first + u64::from(r.count / 2);
                        let cut = |from: u64, to: u64| {
                            let live = r.live_ranges().map(move |(f, c)| (f.max(from), (f + c).min(to)));
                            let live: Vec<_> = live.filter(|(f, p)| f < p).map(|(f, p)| (f, p - f)).collect();
                            if from < to { Run::restore(from, (to - from) as u32, r.place, live.into_iter()) } else { None }
                        };
                        [cut(r.first, middle), cut(middle, r.past())]
                    });
                    halves.flatten().collect()
                });
                prop_assert_eq!(again.live(), runs.live());
                prop_assert!((0..420).all(|s| again.is_live(s) == runs.is_live(s)));
                prop_assert!(again.iter().zip(again.iter().skip(1)).all(|(a, b)| a.past() <= b.first));
                for run in runs.iter() {
                    prop_assert!(run.live() > 0);
                    let again = Run::restore(run.first, run.count, run.place, run.live_ranges());
                    let live = |r: &Run<usize>| r.live_ranges().flat_map(|(f, c)| f..f + c).collect::<Vec<_>>();
                    prop_assert_eq!(again.as_ref().map(live), Some(live(run)));
                    prop_assert_eq!(again.map(|r| r.live()), Some(run.live()));
                }
            }
        }
    }
}

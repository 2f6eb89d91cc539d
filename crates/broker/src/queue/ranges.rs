//! Ordered sets of sequence numbers, kept as ranges: what a consumer holds, what an ack settles.
//!
//! Invariant: ranges are ascending, do not overlap and do not touch. Deliveries come in order and
//! acks mostly too, so a prefetch of thousands is one or two ranges.

use std::collections::VecDeque;

/// A set of sequence numbers. Adding at the end and removing at the front cost O(1), elsewhere
/// O(ranges).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqRanges {
    /// `(first, past)`, half open.
    ranges: VecDeque<(u64, u64)>,
    count: u64,
}

impl SeqRanges {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many numbers are in the set.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The smallest number.
    pub fn first(&self) -> Option<u64> {
        self.ranges.front().map(|r| r.0)
    }

    /// Whether `seq` is in the set.
    pub fn contains(&self, seq: u64) -> bool {
        let at = self.ranges.partition_point(|r| r.1 <= seq);
        self.ranges.get(at).is_some_and(|r| r.0 <= seq)
    }

    /// The ranges as `(first, count)`, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|r| (r.0, r.1 - r.0))
    }

    /// Every number, ascending.
    pub fn seqs(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().flat_map(|r| r.0..r.1)
    }

    /// Adds one number; adding what is there changes nothing.
    pub fn insert(&mut self, seq: u64) {
        // The common case: the next delivery follows the last one.
        if let Some(last) = self.ranges.back_mut()
            && last.1 == seq
        {
            last.1 += 1;
            self.count += 1;
            return;
        }
        self.insert_range(seq, 1);
    }

    /// Adds `count` numbers from `first`; what is there already stays.
    pub fn insert_range(&mut self, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        let (mut low, mut high) = (first, first + count);
        let start = self.ranges.partition_point(|r| r.1 < low);
        let mut end = start;
        while let Some(r) = self.ranges.get(end) {
            if r.0 > high {
                break;
            }
            low = low.min(r.0);
            high = high.max(r.1);
            self.count -= r.1 - r.0;
            end += 1;
        }
        self.count += high - low;
        if end == start {
            self.ranges.insert(start, (low, high));
        } else {
            self.ranges[start] = (low, high);
            self.ranges.drain(start + 1..end);
        }
    }

    /// Removes `count` numbers from `first` and returns how many of them were there.
    pub fn remove_range(&mut self, first: u64, count: u64) -> u64 {
        self.remove(first, count, |_, _| {})
    }

    /// Removes `count` numbers from `first`, appends what was there to `taken` as `(first, count)`;
    /// returns how many.
    pub fn remove_range_into(&mut self, first: u64, count: u64, taken: &mut Vec<(u64, u64)>) -> u64 {
        self.remove(first, count, |first, count| taken.push((first, count)))
    }

    fn remove(&mut self, first: u64, count: u64, mut taken: impl FnMut(u64, u64)) -> u64 {
        let (low, high) = (first, first + count);
        let before = self.count;
        let mut at = self.ranges.partition_point(|r| r.1 <= low);
        while let Some(&(a, b)) = self.ranges.get(at) {
            if a >= high {
                break;
            }
            let (cut_low, cut_high) = (a.max(low), b.min(high));
            self.count -= cut_high - cut_low;
            taken(cut_low, cut_high - cut_low);
            match (a < cut_low, cut_high < b) {
                (false, false) => {
                    // Removing at the front is what acks in order do; VecDeque makes it O(1).
                    self.ranges.remove(at);
                }
                (true, false) => {
                    self.ranges[at].1 = cut_low;
                    at += 1;
                }
                (false, true) => {
                    self.ranges[at].0 = cut_high;
                    at += 1;
                }
                (true, true) => {
                    self.ranges[at].1 = cut_low;
                    self.ranges.insert(at + 1, (cut_high, b));
                    at += 2;
                }
            }
        }
        before - self.count
    }

    /// Removes `count` numbers from `first`; returns those of them that were not there, as `(first, count)`.
    pub fn take_from(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let (mut at, past) = (first, first + count);
        let mut missing = Vec::new();
        self.remove(first, count, |first, count| {
            if at < first {
                missing.push((at, first - at));
            }
            at = first + count;
        });
        if at < past {
            missing.push((at, past - at));
        }
        missing
    }

    /// Empties the set, giving its numbers as `(first, count)`.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.count = 0;
        self.ranges.drain(..).map(|r| (r.0, r.1 - r.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_agree_with_a_plain_set(ops in prop::collection::vec((any::<bool>(), 0u64..60, 1u64..9), 0..60)) {
            let (mut ranges, mut plain) = (SeqRanges::new(), BTreeSet::new());
            for (add, first, count) in ops {
                if add {
                    ranges.insert_range(first, count);
                    plain.extend(first..first + count);
                } else {
                    let had = (first..first + count).filter(|s| plain.remove(s)).count() as u64;
                    let missing = ranges.clone().take_from(first, count);
                    let all: u64 = missing.iter().map(|(_, count)| count).sum();
                    prop_assert_eq!(all, count - had);
                    for seq in missing.iter().flat_map(|(first, count)| *first..*first + *count) {
                        prop_assert!((first..first + count).contains(&seq) && !ranges.contains(seq));
                    }
                    prop_assert_eq!(ranges.remove_range(first, count), had);
                }
                prop_assert_eq!(ranges.count(), plain.len() as u64);
                prop_assert_eq!(ranges.seqs().collect::<Vec<_>>(), plain.iter().copied().collect::<Vec<_>>());
                for window in ranges.ranges.iter().zip(ranges.ranges.iter().skip(1)) {
                    prop_assert!(window.0.1 < window.1.0, "ranges that touch are one range");
                }
                for s in 0..70 { prop_assert_eq!(ranges.contains(s), plain.contains(&s)); }
            }
        }
    }
}

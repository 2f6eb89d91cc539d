//! Ordered sets of sequence numbers, kept as ranges: what a consumer holds, what an ack settles.
//!
//! Invariant: ranges are ascending, do not overlap and do not touch. Deliveries come in order and
//! acks mostly too, so a prefetch of thousands is one or two ranges. A consumer without a prefetch that acks every second
//! message of a million has as many ranges, and each of them still costs little.

use std::collections::{BTreeMap, VecDeque};

/// Above so many ranges they are a tree: moving half of them aside takes about a microsecond.
const FEW_MAX: usize = 4_096;
/// Below so many they are a list again.
const MANY_MIN: usize = 1_024;

/// A set of sequence numbers. Adding at the end and removing at the front cost O(1), elsewhere
/// O(ranges) up to a few thousand of them, and O(log ranges) beyond.
#[derive(Clone, Debug, Default)]
pub struct SeqRanges {
    ranges: Ranges,
    count: u64,
}

#[derive(Clone, Debug)]
enum Ranges {
    /// `(first, past)`, half open.
    Few(VecDeque<(u64, u64)>),
    /// By the first number of each, the one past its last.
    Many(BTreeMap<u64, u64>),
}

impl Default for Ranges {
    fn default() -> Self {
        Ranges::Few(VecDeque::new())
    }
}

impl PartialEq for SeqRanges {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.iter().eq(other.iter())
    }
}

impl Eq for SeqRanges {}

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
        match &self.ranges {
            Ranges::Few(ranges) => ranges.front().map(|r| r.0),
            Ranges::Many(ranges) => ranges.first_key_value().map(|(first, _)| *first),
        }
    }

    /// Whether `seq` is in the set.
    pub fn contains(&self, seq: u64) -> bool {
        match &self.ranges {
            Ranges::Few(ranges) => {
                let at = ranges.partition_point(|r| r.1 <= seq);
                ranges.get(at).is_some_and(|r| r.0 <= seq)
            }
            Ranges::Many(ranges) => ranges.range(..=seq).next_back().is_some_and(|(_, past)| seq < *past),
        }
    }

    /// The ranges as `(first, count)`, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (few, many) = match &self.ranges {
            Ranges::Few(ranges) => (Some(ranges), None),
            Ranges::Many(ranges) => (None, Some(ranges)),
        };
        let few = few.into_iter().flatten().copied();
        let many = many.into_iter().flatten().map(|(first, past)| (*first, *past));
        few.chain(many).map(|(first, past)| (first, past - first))
    }

    /// Every number, ascending.
    pub fn seqs(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter().flat_map(|(first, count)| first..first + count)
    }

    /// Adds one number; adding what is there changes nothing.
    #[inline]
    pub fn insert(&mut self, seq: u64) {
        // The common case: the next delivery follows the last one.
        if let Ranges::Few(ranges) = &mut self.ranges
            && let Some(last) = ranges.back_mut()
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
        let (low, high) = (first, first + count);
        let known = match &mut self.ranges {
            Ranges::Few(ranges) => insert_among_few(ranges, low, high),
            Ranges::Many(ranges) => insert_among_many(ranges, low, high),
        };
        self.count += count - known;
        if let Ranges::Few(ranges) = &mut self.ranges
            && ranges.len() > FEW_MAX
        {
            self.ranges = Ranges::Many(std::mem::take(ranges).into_iter().collect());
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
        let mut removed = 0;
        let taken = |low: u64, high: u64| {
            removed += high - low;
            taken(low, high - low);
        };
        match &mut self.ranges {
            Ranges::Few(ranges) => remove_from_few(ranges, first, first + count, taken),
            Ranges::Many(ranges) => remove_from_many(ranges, first, first + count, taken),
        }
        self.count -= removed;
        match &mut self.ranges {
            // A range that was cut in two.
            Ranges::Few(ranges) if ranges.len() > FEW_MAX => {
                self.ranges = Ranges::Many(std::mem::take(ranges).into_iter().collect());
            }
            Ranges::Many(ranges) if ranges.len() < MANY_MIN => {
                self.ranges = Ranges::Few(std::mem::take(ranges).into_iter().collect());
            }
            _ => {}
        }
        removed
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

    /// Empties the set, giving its numbers as `(first, count)`. A list keeps its room.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.count = 0;
        let many = match &mut self.ranges {
            Ranges::Few(_) => BTreeMap::new(),
            Ranges::Many(ranges) => std::mem::take(ranges),
        };
        if !many.is_empty() {
            self.ranges = Ranges::default();
        }
        let few = match &mut self.ranges {
            Ranges::Few(ranges) => Some(ranges.drain(..)),
            Ranges::Many(_) => None,
        };
        few.into_iter().flatten().chain(many).map(|(first, past)| (first, past - first))
    }
}

/// How many of the numbers were there.
fn insert_among_few(ranges: &mut VecDeque<(u64, u64)>, from: u64, to: u64) -> u64 {
    let (mut low, mut high, mut before) = (from, to, 0);
    let start = ranges.partition_point(|r| r.1 < low);
    let mut end = start;
    while let Some(r) = ranges.get(end) {
        if r.0 > high {
            break;
        }
        low = low.min(r.0);
        high = high.max(r.1);
        before += r.1 - r.0;
        end += 1;
    }
    if end == start {
        ranges.insert(start, (low, high));
    } else {
        ranges[start] = (low, high);
        ranges.drain(start + 1..end);
    }
    // Of what the one range has now, all that was not added.
    before - ((high - low) - (to - from))
}

/// How many of the numbers were there.
fn insert_among_many(ranges: &mut BTreeMap<u64, u64>, from: u64, to: u64) -> u64 {
    let (mut low, mut high, mut before) = (from, to, 0);
    if let Some((&first, &past)) = ranges.range(..low).next_back()
        && past >= low
    {
        low = first;
    }
    while let Some((&first, &past)) = ranges.range(low..=high).next() {
        high = high.max(past);
        before += past - first;
        ranges.remove(&first);
    }
    ranges.insert(low, high);
    before - ((high - low) - (to - from))
}

fn remove_from_few(ranges: &mut VecDeque<(u64, u64)>, low: u64, high: u64, mut taken: impl FnMut(u64, u64)) {
    let mut at = ranges.partition_point(|r| r.1 <= low);
    while let Some(&(a, b)) = ranges.get(at) {
        if a >= high {
            break;
        }
        let (cut_low, cut_high) = (a.max(low), b.min(high));
        taken(cut_low, cut_high);
        match (a < cut_low, cut_high < b) {
            (false, false) => {
                // Removing at the front is what acks in order do; VecDeque makes it O(1).
                ranges.remove(at);
            }
            (true, false) => {
                ranges[at].1 = cut_low;
                at += 1;
            }
            (false, true) => {
                ranges[at].0 = cut_high;
                at += 1;
            }
            (true, true) => {
                ranges[at].1 = cut_low;
                ranges.insert(at + 1, (cut_high, b));
                at += 2;
            }
        }
    }
}

fn remove_from_many(ranges: &mut BTreeMap<u64, u64>, low: u64, high: u64, mut taken: impl FnMut(u64, u64)) {
    if let Some((_, past)) = ranges.range_mut(..low).next_back()
        && *past > low
    {
        let before = std::mem::replace(past, low);
        taken(low, before.min(high));
        if before > high {
            ranges.insert(high, before);
        }
    }
    while let Some((&first, &past)) = ranges.range(low..high).next() {
        ranges.remove(&first);
        taken(first, past.min(high));
        if past > high {
            ranges.insert(high, past);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Adds more numbers than a list holds ranges, of which none touches another.
    fn scattered(ranges: &mut SeqRanges, from: u64) {
        (0..=FEW_MAX as u64).for_each(|at| ranges.insert(from + 2 * at));
    }

    #[test]
    fn many_ranges_become_a_tree_and_few_of_them_a_list_again() {
        let mut ranges = SeqRanges::new();
        scattered(&mut ranges, 0);
        assert!(matches!(ranges.ranges, Ranges::Many(_)));
        let all: Vec<u64> = ranges.seqs().collect();
        assert!(all.iter().copied().eq((0..=FEW_MAX as u64).map(|at| 2 * at)));
        let mut taken = Vec::new();
        assert_eq!(ranges.remove_range_into(0, 2 * (FEW_MAX - MANY_MIN + 1) as u64, &mut taken), 3_073);
        assert!(matches!(ranges.ranges, Ranges::Many(_)), "as many as a tree has at least");
        ranges.remove_range(8_192, 1);
        assert!(matches!(ranges.ranges, Ranges::Few(_)));
        let list = ranges.clone();
        scattered(&mut ranges, 10_000);
        let mut tree = ranges.clone();
        tree.remove_range(10_000, 2 * FEW_MAX as u64 + 1);
        assert_eq!((tree.count(), &tree), (list.count(), &list));
        assert_eq!(ranges.drain().count(), list.iter().count() + FEW_MAX + 1);
        assert!(ranges.is_empty() && matches!(ranges.ranges, Ranges::Few(_)));

        // A range that is cut into as many.
        let mut cut = SeqRanges::new();
        cut.insert_range(0, 20_000);
        (0..=FEW_MAX as u64).for_each(|at| assert_eq!(cut.remove_range(1 + 2 * at, 1), 1));
        assert!(matches!(cut.ranges, Ranges::Many(_)));
        assert_eq!((cut.count(), cut.iter().last()), (15_903, Some((8_194, 11_806))));
    }

    proptest! {
        #[test]
        fn ranges_agree_with_a_plain_set(
            is_tree in any::<bool>(),
            ops in prop::collection::vec((any::<bool>(), 0u64..60, 1u64..9), 0..60),
        ) {
            let (mut ranges, mut plain) = (SeqRanges::new(), BTreeSet::new());
            if is_tree {
                // So many beside them that the others stand in a tree.
                scattered(&mut ranges, 1_000);
                plain.extend(ranges.seqs());
            }
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
                for (before, after) in ranges.iter().zip(ranges.iter().skip(1)) {
                    prop_assert!(before.0 + before.1 < after.0, "ranges that touch are one range");
                }
                prop_assert_eq!(ranges.first(), plain.first().copied());
                for s in 0..70 { prop_assert_eq!(ranges.contains(s), plain.contains(&s)); }
            }
        }
    }
}

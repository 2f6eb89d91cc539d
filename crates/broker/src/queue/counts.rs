//! How often messages came back, by stretches of neighbours that came back as often: a consumer that vanishes with millions
//! of messages takes one step.
//!
//! Invariant: stretches ascend and do not overlap; two that touch have other counts. A message with no count is in none.

use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// Stretches `(first, past, counts)`; mostly one.
pub type Stretches = SmallVec<[(u64, u64, Option<Counts>); 2]>;

/// How often a message came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it was handed to a consumer and came back, for whatever reason
    /// (`x-acquired-count`).
    pub acquired: u32,
    /// How often it came back in a way that counts against it: reject, a lost channel, not nack
    /// (`x-delivery-count`).
    pub delivery: u32,
}

impl Counts {
    /// Once more.
    fn raised(self, counts_against: bool) -> Counts {
        Counts { acquired: self.acquired + 1, delivery: self.delivery + u32::from(counts_against) }
    }
}

/// See the module. What is asked or changed costs O(log stretches), and as much for each stretch that it touches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountMap {
    /// By the first number of each, the one past its last.
    stretches: BTreeMap<u64, (u64, Counts)>,
}

impl CountMap {
    /// Whether nothing in it came back.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// How often this one came back, if it is in it.
    #[inline]
    pub fn get(&self, seq: u64) -> Option<Counts> {
        if self.stretches.is_empty() {
            return None;
        }
        let (_, (past, counts)) = self.stretches.range(..=seq).next_back()?;
        (seq < *past).then_some(*counts)
    }

    /// How many messages are in it.
    pub fn len(&self) -> u64 {
        self.stretches.iter().map(|(first, (past, _))| past - first).sum()
    }

    /// Each message and its counts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Counts)> + '_ {
        self.stretches.iter().flat_map(|(first, (past, counts))| (*first..*past).map(|seq| (seq, *counts)))
    }

    /// The numbers of `first..past` as stretches `(first, past, counts)`, those between them with `None`.
    pub fn within(&self, first: u64, past: u64) -> Stretches {
        let (mut found, mut from): (Stretches, u64) = (smallvec![], first);
        let before = self.stretches.range(..first).next_back().map_or(first, |(start, _)| *start);
        for (start, (end, counts)) in self.stretches.range(before..past) {
            let (start, end) = ((*start).max(first), (*end).min(past));
            if start >= end {
                continue;
            }
            if from < start {
                found.push((from, start, None));
            }
            found.push((start, end, Some(*counts)));
            from = end;
        }
        if from < past {
            found.push((from, past, None));
        }
        found
    }

    /// Those of `first..past` came back once more. What is known of those that are not in it yet is in `known`.
    pub fn raise(&mut self, first: u64, past: u64, counts_against: bool, known: Option<&CountMap>) {
        for (first, past, own) in self.within(first, past) {
            match (own, known) {
                (None, Some(known)) => {
                    for (first, past, counts) in known.within(first, past) {
                        self.put(first, past, counts.unwrap_or_default().raised(counts_against));
                    }
                }
                (own, _) => self.put(first, past, own.unwrap_or_default().raised(counts_against)),
            }
        }
    }

    /// Gives those of `first..past` these counts, whatever they had.
    pub fn put(&mut self, first: u64, past: u64, counts: Counts) {
        if first >= past {
            return;
        }
        self.remove(first, past);
        let (mut first, mut past) = (first, past);
        if let Some((start, (end, before))) = self.stretches.range(..first).next_back()
            && *end == first
            && *before == counts
        {
            first = *start;
        }
        if let Some((end, behind)) = self.stretches.get(&past)
            && *behind == counts
        {
            let end = *end;
            self.stretches.remove(&past);
            past = end;
        }
        self.stretches.insert(first, (past, counts));
    }

    /// Forgets those of `first..past`.
    pub fn remove(&mut self, first: u64, past: u64) {
        if self.stretches.is_empty() || first >= past {
            return;
        }
        if let Some((_, (end, counts))) = self.stretches.range_mut(..first).next_back()
            && *end > first
        {
            let (behind, counts) = (std::mem::replace(end, first), *counts);
            if behind > past {
                self.stretches.insert(past, (behind, counts));
            }
        }
        while let Some((start, (end, counts))) =
            self.stretches.range(first..past).next().map(|(s, stretch)| (*s, *stretch))
        {
            self.stretches.remove(&start);
            if end > past {
                self.stretches.insert(past, (end, counts));
            }
        }
    }
}

impl FromIterator<(u64, Counts)> for CountMap {
    fn from_iter<T: IntoIterator<Item = (u64, Counts)>>(messages: T) -> CountMap {
        let mut map = CountMap::default();
        messages.into_iter().for_each(|(seq, counts)| map.put(seq, seq + 1, counts));
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(map: &CountMap, plain: &BTreeMap<u64, Counts>) {
        assert!(map.iter().eq(plain.iter().map(|(seq, counts)| (*seq, *counts))), "{map:?} {plain:?}");
        assert_eq!((map.len(), map.is_empty()), (plain.len() as u64, plain.is_empty()));
        (0..70).for_each(|seq| assert_eq!(map.get(seq), plain.get(&seq).copied(), "{seq} of {map:?}"));
        for (seq, (past, counts)) in &map.stretches {
            assert!(seq < past && map.stretches.get(past).is_none_or(|(_, next)| next != counts), "{map:?}");
        }
        assert_eq!(plain.iter().map(|(seq, counts)| (*seq, *counts)).collect::<CountMap>(), *map);
    }

    proptest! {
        #[test]
        fn stretches_agree_with_a_plain_map(
            steps in proptest::collection::vec((0..4_u8, 0..60_u64, 0..12_u64, any::<bool>()), 1..60),
        ) {
            let (mut map, mut plain) = (CountMap::default(), BTreeMap::new());
            let (mut ahead, mut plain_ahead) = (CountMap::default(), BTreeMap::<u64, Counts>::new());
            for (step, first, count, against) in steps {
                let past = first + count;
                match step {
                    0 | 1 => {
                        map.raise(first, past, against, None);
                        (first..past).for_each(|seq| {
                            let counts = plain.entry(seq).or_insert_with(Counts::default);
                            *counts = counts.raised(against);
                        });
                    }
                    2 => {
                        map.remove(first, past);
                        plain.retain(|seq, _| !(first..past).contains(seq));
                    }
                    _ => {
                        ahead.raise(first, past, against, Some(&map));
                        (first..past).for_each(|seq| {
                            let known = plain.get(&seq).copied().unwrap_or_default();
                            let counts = plain_ahead.entry(seq).or_insert(known);
                            *counts = counts.raised(against);
                        });
                    }
                }
                check(&map, &plain);
                check(&ahead, &plain_ahead);
                let mut within = map.within(first, past).into_iter();
                let covered = within.try_fold(first, |from, (first, past, _)| (from == first).then_some(past));
                prop_assert_eq!(covered, Some(past.max(first)));
            }
        }
    }
}

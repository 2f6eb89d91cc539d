//! Messages that a consumer's client has and that count for nothing but its prefetch: an earlier leader gave them to it,
//! and here they are somebody else's, or have ended, or are the consumer's own once more.
//!
//! Invariant: a message is counted as often as the client has it beside what the consumer holds here, and each settle of
//! the client's takes one away. A client that was given a message again while it still had it has it twice, and settles
//! it twice.

use super::ranges::SeqRanges;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// What the client has at least once, at least twice and so on: each is a part of the one before, and none is empty.
    layers: Vec<SeqRanges>,
}

impl Foreign {
    /// How many there are, each as often as the client has it.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.layers.iter().map(SeqRanges::count).sum()
    }

    /// Whether there is none, as in nearly all consumers.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The client has `count` messages from `first` once more.
    pub(super) fn insert(&mut self, first: u64, count: u64) {
        let (mut left, mut known) = (vec![(first, count)], Vec::new());
        for layer in &mut self.layers {
            for (first, count) in left.drain(..) {
                layer.remove_range_into(first, count, &mut known);
                layer.insert_range(first, count);
            }
            std::mem::swap(&mut left, &mut known);
        }
        if !left.is_empty() {
            let mut layer = SeqRanges::new();
            left.into_iter().for_each(|(first, count)| layer.insert_range(first, count));
            self.layers.push(layer);
        }
    }

    /// The client settles `count` messages from `first`, each once, and what is in `own` was the consumer's own: of the
    /// others one each is gone.
    pub(super) fn settle(&mut self, first: u64, count: u64, own: &[(u64, u64)]) {
        let mut is_own = SeqRanges::new();
        own.iter().for_each(|(first, count)| is_own.insert_range(*first, *count));
        let mut left = is_own.take_from(first, count);
        // From the last one down: a layer stays a part of the one before.
        for layer in self.layers.iter_mut().rev() {
            left = left.into_iter().flat_map(|(first, count)| layer.take_from(first, count)).collect();
        }
        while self.layers.pop_if(|last| last.is_empty()).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn each_is_counted_as_often_as_it_came_and_was_not_settled(
            steps in prop::collection::vec((any::<bool>(), 0u64..20, 1u64..6, 0u64..20, 1u64..4), 0..80),
        ) {
            let (mut foreign, mut plain) = (Foreign::default(), BTreeMap::new());
            for (comes, first, count, own, own_count) in steps {
                if comes {
                    foreign.insert(first, count);
                    (first..first + count).for_each(|seq| *plain.entry(seq).or_insert(0) += 1);
                } else {
                    foreign.settle(first, count, &[(own, own_count)]);
                    for seq in (first..first + count).filter(|seq| !(own..own + own_count).contains(seq)) {
                        plain.entry(seq).and_modify(|times| *times -= u64::from(*times > 0));
                    }
                }
                prop_assert_eq!(foreign.count(), plain.values().sum::<u64>());
                prop_assert_eq!(foreign.is_empty(), foreign.count() == 0);
                for pair in foreign.layers.windows(2) {
                    prop_assert!(pair[1].seqs().all(|seq| pair[0].contains(seq)));
                }
            }
        }
    }
}

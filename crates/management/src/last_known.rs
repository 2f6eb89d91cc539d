//! What was in queues that nobody leads just now: a leader that dies, or hands over, leaves a moment in which
//! nobody knows, and in which sums over all queues would fall and rise again.
//!
//! Invariant: what somebody knows now counts and nothing else of the same partition; what was known longer ago
//! than [`KEPT`] does not count at all, so a partition that stays without a leader is missing soon. At most one entry
//! a partition.

use broker::PartitionId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// An election and what a new leader has to read take less, as a rule much less.
const KEPT: Duration = Duration::from_secs(10);

/// Messages that are ready and that are unacked, in the queues of a partition.
pub(crate) type Lengths = [u64; 2];

/// See the module. `Known`: what is known of one partition.
#[derive(Debug)]
pub(crate) struct LastKnown<Known>(RefCell<BTreeMap<PartitionId, (Instant, Known)>>);

impl<Known> Default for LastKnown<Known> {
    fn default() -> Self {
        LastKnown(RefCell::default())
    }
}

impl<Known: Clone> LastKnown<Known> {
    /// Notes what is known now, and tells what was known lately of each other partition that there is.
    pub(crate) fn besides(
        &self,
        known: &BTreeMap<PartitionId, Known>,
        is_there: impl Fn(PartitionId) -> bool,
        now: Instant,
    ) -> Vec<Known> {
        let mut last = self.0.borrow_mut();
        last.extend(known.iter().map(|(id, of)| (*id, (now, of.clone()))));
        last.retain(|id, (at, _)| now.duration_since(*at) <= KEPT && is_there(*id));
        last.iter().filter(|(id, _)| !known.contains_key(id)).map(|(_, (_, of))| of.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_counts_as_it_was_for_a_while() {
        let (last, start) = (LastKnown::default(), Instant::now());
        let after = |seconds: u64, known: &[(u32, Lengths)]| {
            let known = known.iter().map(|(id, lengths)| (PartitionId(*id), *lengths)).collect();
            last.besides(&known, |id| id.0 != 9, start + Duration::from_secs(seconds))
        };
        let none = Vec::<Lengths>::new();
        assert_eq!(after(0, &[(1, [5, 1]), (2, [7, 0]), (9, [3, 3])]), none);
        // The leader of the first is gone; the last is retired.
        assert_eq!(after(1, &[(2, [6, 1])]), [[5, 1]]);
        // It has a leader again, who knows better; now the other has none.
        assert_eq!(after(2, &[(1, [2, 0])]), [[6, 1]]);
        assert_eq!(after(11, &[(1, [2, 0])]), [[6, 1]], "ten seconds after it was known");
        assert_eq!(after(12, &[(1, [2, 0])]), none);
        assert_eq!(after(30, &[]), none);
    }
}

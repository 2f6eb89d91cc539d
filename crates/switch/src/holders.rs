//! Partitions of which channels of this shard hold messages that no consumer there stands for: what `basic.get` took, and
//! what a consumer was given that is cancelled.
//!
//! Consumers hear when their leader goes, and say what they hold when they come to the next one. Who only holds something
//! hears of nothing: his sessions say it whenever somebody else leads, in another term, or over another link.
//! Invariant: of each partition that is known here the present leader was told, or is told with the next step.

use crate::settles::Sitting;
use broker::PartitionId;
use std::collections::BTreeMap;

/// See the module. A partition stays once it is known: there are few, and leaders change seldom.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// Whom their leaders were told, as far as it was known.
    told: BTreeMap<PartitionId, Option<Sitting>>,
    /// What had changed at the last look.
    seen: (u64, u64),
}

impl Holders {
    /// A channel holds something of a partition, which its present leader knows.
    pub(crate) fn note(&mut self, partition: PartitionId, sitting: impl FnOnce() -> Option<Sitting>) {
        self.told.entry(partition).or_insert_with(sitting);
    }

    /// Whether anything may be held.
    pub(crate) fn is_any(&self) -> bool {
        !self.told.is_empty()
    }

    /// Partitions with another leader than the one that was told, which are to be told now; `changes` differs whenever one may
    /// have another one.
    pub(crate) fn take_due(
        &mut self,
        changes: (u64, u64),
        sitting: impl Fn(PartitionId) -> Option<Sitting>,
    ) -> Vec<PartitionId> {
        if self.told.is_empty() || std::mem::replace(&mut self.seen, changes) == changes {
            return Vec::new();
        }
        let is_due = |(partition, told): (&PartitionId, &mut Option<Sitting>)| {
            let now = sitting(*partition);
            (now.is_some() && *told != now).then(|| {
                *told = now;
                *partition
            })
        };
        self.told.iter_mut().filter_map(is_due).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::NodeNumber;

    #[test]
    fn a_partition_is_due_once_for_each_leader_term_and_link() {
        const P: PartitionId = PartitionId(3);
        let at = |leader, term, epoch| Some(Sitting { leader: NodeNumber(leader), term, epoch });
        let mut holders = Holders::default();
        holders.note(P, || at(1, 5, 7));
        let mut changes = 0;
        let mut due = |sitting: Option<Sitting>| {
            changes += 1;
            let due = holders.take_due((changes, 0), |_| sitting);
            assert!(holders.take_due((changes, 0), |_| at(9, 9, 9)).is_empty(), "nothing changed since");
            !due.is_empty()
        };
        assert!(!due(at(1, 5, 7)), "it knows");
        assert!(!due(None), "nobody is there to be told");
        assert!(!due(at(1, 5, 7)));
        assert!(due(at(2, 6, 8)));
        assert!(!due(at(2, 6, 8)));
        assert!(due(at(2, 6, 9)) && due(at(2, 7, 9)) && due(at(1, 8, 7)));
    }
}

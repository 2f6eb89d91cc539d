//! What is in the queues that this node leads, as its shards said it.
//!
//! Invariant: what is not known is not told as a number. A shard leaves out queues that nobody uses and nothing is
//! in, and all queues of a partition that it does not lead, or leads and does not know yet: who has just been
//! elected has first to apply what the leader before left. So a queue that is left out is empty only
//! where its partition was told of.

use broker::topology::Queue;
use broker::{PartitionId, QueueId};
use node::Voter;
use partition::QueueFigures;
use std::collections::{BTreeMap, HashMap};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct InQueues {
    figures: HashMap<QueueId, QueueFigures>,
    told: BTreeMap<PartitionId, Vec<Voter>>,
}

impl InQueues {
    /// What one shard says. `told`: the partitions of which it does, each with who has a vote in it.
    pub(super) fn new(figures: Vec<QueueFigures>, told: impl Iterator<Item = (PartitionId, Vec<Voter>)>) -> InQueues {
        let figures = figures.into_iter().map(|figures| (figures.queue, figures)).collect();
        InQueues { figures, told: told.collect() }
    }

    /// What is in a queue; `None` where this node does not know it.
    pub fn of(&self, queue: &Queue) -> Option<QueueFigures> {
        let found = self.figures.get(&queue.id).copied();
        found.or_else(|| self.told.contains_key(&queue.partition).then(|| QueueFigures::empty(queue.id)))
    }

    /// Whether this node knows what is in the queues of a partition.
    pub fn tells_of(&self, partition: PartitionId) -> bool {
        self.told.contains_key(&partition)
    }

    /// The partitions of whose queues this node knows what is in them, each with who has a vote in it.
    pub fn voters(&self) -> impl Iterator<Item = (PartitionId, &[Voter])> {
        self.told.iter().map(|(partition, voters)| (*partition, voters.as_slice()))
    }

    /// Of all queues in which something is, or which somebody uses.
    pub fn all(&self) -> impl Iterator<Item = &QueueFigures> {
        self.figures.values()
    }
}

/// What all shards say.
impl FromIterator<InQueues> for InQueues {
    fn from_iter<I: IntoIterator<Item = InQueues>>(shards: I) -> InQueues {
        let mut all = InQueues::default();
        for InQueues { figures, told } in shards {
            all.figures.extend(figures);
            all.told.extend(told);
        }
        all
    }
}

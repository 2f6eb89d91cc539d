//! What lives in the memory of one node of a cluster, and is known to all: exclusive and transient
//! queues, and what transient exchanges are.
//!
//! Invariant: a queue of an era is gone once that era of its node has ended; and a declare of an era
//! that has ended makes none. Eras end when a node starts, and when the others cannot reach it.

use super::Topology;
use super::apply::Effect;
use super::command::Home;
use crate::ids::{NodeNumber, QueueId};

impl Topology {
    /// This node is one of a cluster from now on: what would live on one node only is proposed, so
    /// that every node knows it. `None`: it is alone.
    pub fn set_own_home(&mut self, node: Option<NodeNumber>) {
        self.own_home = node;
    }

    /// How often what lived in the memory of a node has ended.
    pub fn era(&self, node: NodeNumber) -> u64 {
        self.eras.get(&node).copied().unwrap_or(0)
    }

    /// Where a queue in the memory of this node lives; `None` for a node that is alone.
    pub fn own_home(&self) -> Option<Home> {
        self.own_home.map(|node| Home { node, era: self.era(node) })
    }

    /// The nodes in whose memory queues live that every node knows.
    pub fn homes(&self) -> Vec<NodeNumber> {
        self.queues.by_home().keys().map(|home| home.node).collect()
    }

    /// The queues that end with this era of a node, but those that carry replies; none once it has ended.
    pub fn at_home(&self, home: &Home) -> impl Iterator<Item = &super::Queue> {
        let is_there = self.era(home.node) == home.era;
        let ids = self.queues.by_home().get(home).filter(|_| is_there).into_iter().flatten();
        ids.filter_map(|id| self.queue(*id)).filter(|queue| !queue.is_of_replies())
    }

    /// Ends an era of a node, if it has not ended.
    pub(super) fn end_home(&mut self, home: Home, effects: &mut Vec<Effect>) {
        if self.era(home.node) != home.era {
            return;
        }
        let gone: Vec<QueueId> = self.queues.by_home().get(&home).into_iter().flatten().copied().collect();
        for id in gone {
            let at = self.queues.find_id(id).expect("it was listed");
            self.remove_queue(at, &[], effects);
        }
        self.eras.insert(home.node, home.era + 1);
        self.version += 1;
    }
}

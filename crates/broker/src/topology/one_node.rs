//! Durable classic queues of a cluster: each lives on one node, and answers nothing while that is away; from
//! machine version 11 on.
//!
//! Such a queue lives in a partition with one member, of the pool of that size (`pools.rs`). What was declared before,
//! or on a node that was alone, has a copy on every node and goes on while nodes die.

use super::Topology;
use super::queue::{self, Queue};
use super::refusal::Refusal;
use super::settings::QueueType;
use crate::ids::{NodeNumber, PartitionId};

/// The version from which on a durable classic queue has one copy.
const CLASSIC_ON_ONE_NODE: u32 = 11;

impl Topology {
    pub(super) fn keeps_classic_on_one(&self) -> bool {
        self.machine_version() >= CLASSIC_ON_ONE_NODE
    }

    /// The node that has the only copy of a partition; `None` where several have one.
    pub fn sole_member(&self, partition: PartitionId) -> Option<NodeNumber> {
        match self.cluster.partitions.get(&partition)?.members[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    /// The node that a durable classic queue lives on; `None` where it has more than one copy.
    pub fn home_node(&self, queue: &Queue) -> Option<NodeNumber> {
        let is_classic = queue.shape.durable && queue.shape.queue_type == QueueType::Classic;
        self.sole_member(queue.partition).filter(|_| is_classic)
    }

    /// Whether a queue can answer, by what is known of the nodes that can be reached. Errors: 404 where the node that it
    /// lives on is away, in RabbitMQ's words.
    pub fn check_home(&self, queue: &Queue, is_reached: impl FnOnce(NodeNumber) -> bool) -> Result<(), Refusal> {
        match self.home_node(queue).filter(|node| !is_reached(*node)) {
            None => Ok(()),
            Some(home) => {
                let resource = queue::resource(&queue.name, self.vhost_name(queue.vhost)?);
                Err(Refusal::home_is_away(&self.shown_node(home), resource))
            }
        }
    }
}

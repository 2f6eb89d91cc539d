//! Copies that a node gave away before it left, and did not leave after all: they are taken back.
//!
//! A queue of one node that lives on two needs both of them. That is so for a moment while its node leaves
//! (`resource/give_away.rs`); where the leave was broken off, whoever leads the partition sees to it that it ends.
//!
//! Invariant: the leader keeps its copy, and a copy is taken only where no node that has one is in maintenance mode, as
//! one that leaves is. Partitions with quorum queues are left alone: somebody may have given them copies.

use broker::PartitionId;
use broker::topology::{Command, CopyChange, QueueType};
use server::Handle;
use std::collections::BTreeSet;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Looks for as long as the node runs.
pub(crate) async fn run(handle: Handle) {
    let mut before = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let surplus = surplus(&handle);
        // That a node is drained may be heard a moment later than what follows from it.
        for partition in surplus.intersection(&before) {
            take(&handle, *partition).await;
        }
        before = surplus;
    }
}

/// Partitions with one copy too many that this node leads, and that nobody gives away now.
fn surplus(handle: &Handle) -> BTreeSet<PartitionId> {
    if !handle.has_peers() {
        return BTreeSet::new();
    }
    let (topology, own) = (handle.topology(), handle.own_node());
    let of_one: BTreeSet<_> =
        topology.pools().filter(|(_, pool)| pool.replication_factor == 1).map(|(id, _)| id).collect();
    let led = topology.partitions().filter(|(id, put)| {
        put.members.len() > 1
            && put.members.contains(&own)
            && of_one.contains(&put.pool)
            && topology.founders_of(*id).is_some()
            && handle.leader(*id) == Some(own)
            && !put.members.iter().any(|node| handle.node_rests(*node))
    });
    let mut found: BTreeSet<PartitionId> = led.map(|(id, _)| id).collect();
    if !found.is_empty() {
        let quorum = topology.partitions_with(QueueType::Quorum);
        found.retain(|id| !quorum.contains(id));
    }
    found
}

async fn take(handle: &Handle, partition: PartitionId) {
    let own = handle.own_node();
    let others: Vec<_> = {
        let topology = handle.topology();
        topology.members_wanted(partition).into_iter().filter(|node| *node != own).collect()
    };
    for node in others {
        let shown = handle.topology().shown_node(node);
        tracing::info!(partition = partition.0, node = %shown, "a copy that was made for a node that did not leave is taken back");
        if let Err(error) = handle.change(Command::ChangeCopies(CopyChange::Take { partition, node })).await {
            tracing::debug!(partition = partition.0, %error, "not now");
        }
    }
}

//! The cluster of a node, as the node sees it: its members, who leads what, what other nodes are asked, and
//! how this one rests and leaves.
//!
//! Invariant: what is said of other nodes is what this one has heard; only the topology is decided.

use super::{ChangeError, Handle};
use crate::cluster::{AskError, Asked, Question};
use broker::topology::NodeStanding;
use broker::{NodeNumber, PartitionId};
use bytes::Bytes;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;

/// For so long leaders move to an even spread once somebody asked for that.
const BALANCE_US: u64 = 10_000_000;
/// How often a node that leaves its cluster looks whether it is forgotten.
const LEFT_LOOK_EVERY: Duration = Duration::from_millis(50);

/// For so long somebody waits until clients are refused, or let in again.
const LISTENERS_WITHIN: Duration = Duration::from_secs(2);

/// A node of the cluster, as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number; 0 for a node that is alone and has none.
    pub number: NodeNumber,
    /// Its name; its address until it has said it.
    pub name: String,
    /// Where the other nodes find it.
    pub address: String,
    /// It is this one.
    pub is_own: bool,
    /// It is this one, or there is a link to it.
    pub is_reached: bool,
}

impl Handle {
    /// All nodes of the cluster, this one too, in the order of their numbers.
    pub fn members(&self) -> Vec<Member> {
        let shared = self.shared();
        let own = shared.leaders.own();
        let linked = shared.links.get().map_or_else(Vec::new, |links| links.linked());
        let mut members: Vec<Member> = self
            .topology()
            .nodes()
            .filter(|(number, node)| *number == own || node.standing != NodeStanding::Gone)
            .map(|(number, node)| Member {
                number,
                name: String::from_utf8_lossy(&node.name).into_owned(),
                address: String::from_utf8_lossy(&node.address).into_owned(),
                is_own: number == own,
                is_reached: number == own || linked.contains(&number),
            })
            .collect();
        let name = self.facts().node_name.clone();
        match members.iter_mut().find(|member| member.is_own) {
            // What it says of itself counts.
            Some(member) => member.name = name,
            None => {
                members.push(Member { number: own, name, address: String::new(), is_own: true, is_reached: true });
            }
        }
        members
    }

    /// Whether this node is one of a cluster.
    pub fn has_peers(&self) -> bool {
        self.shared().leaders.has_peers()
    }

    /// This node's number.
    pub fn own_node(&self) -> NodeNumber {
        self.shared().leaders.own()
    }

    /// Who leads a partition, as far as this node has heard; it may be a node that cannot be reached.
    pub fn leader(&self, partition: PartitionId) -> Option<NodeNumber> {
        self.shared().leaders.leader(partition)
    }

    /// The cluster's name: the one that the operator gave it, or that of its first node.
    pub fn cluster_name(&self) -> String {
        self.shared().topology.cluster_name().unwrap_or_else(|| self.facts().node_name.clone())
    }

    /// Asks another node what only it knows. Errors: it cannot be reached.
    pub fn ask(&self, node: NodeNumber, question: Bytes) -> Result<Asked, AskError> {
        self.shared().links.get().ok_or(AskError::Gone)?.ask(node, question)
    }

    /// What other nodes ask of this one from now on, so many at most waiting; `None` on a node that is
    /// alone.
    pub fn serve_questions(&self, waiting: usize) -> Option<mpsc::Receiver<Question>> {
        Some(self.shared().links.get()?.serve_questions(waiting))
    }

    /// Has partitions that this node leads move to nodes that lead fewer, within the next seconds.
    pub fn balance_leaders(&self) {
        let shared = self.shared();
        shared.leaders.balance_until(shared.elapsed_us() + BALANCE_US);
    }

    /// Whether a node is in maintenance mode, as far as this one heard.
    pub fn node_rests(&self, node: NodeNumber) -> bool {
        self.shared().leaders.rests(node)
    }

    /// Has the node serve no clients and lead nothing from now on, or all of it again. A restart forgets it.
    ///
    /// - Comes back once clients that connect are refused, or let in.
    pub async fn rest(&self, on: bool) {
        let shared = self.shared();
        shared.rest(on);
        let mut listeners = shared.listeners.subscribe();
        let is_done = listeners.wait_for(|listeners| if on { listeners.open == 0 } else { listeners.resting == 0 });
        // A listener that is lost says so in the log, and nobody is to wait for it.
        let _ = tokio::time::timeout(LISTENERS_WITHIN, is_done).await;
    }

    /// Whether it does.
    pub fn rests(&self) -> bool {
        *self.shared().rests.borrow()
    }

    /// Has the cluster forget this node, which ends then. Comes back once that is decided.
    ///
    /// - Before: it leads nothing, and the others decide without it, as somebody saw when so many nodes had been
    ///   `forgotten`.
    pub async fn leave(&self, forgotten: u32) -> Result<(), ChangeError> {
        let shared = self.shared();
        shared.leaves.store(true, Ordering::Relaxed);
        let command = self.topology().forgetting(self.own_node(), forgotten);
        let forget = self.change(command);
        // Who decides may end its link to this node before the answer is on its way.
        let is_forgotten = async {
            while !shared.links.get().is_some_and(|links| links.is_forgotten()) {
                tokio::time::sleep(LEFT_LOOK_EVERY).await;
            }
        };
        let left = tokio::select! {
            decided = forget => decided.map(drop),
            () = is_forgotten => Ok(()),
        };
        // What nobody knows may still be decided, and is what was asked for.
        if matches!(left, Err(ref why) if !matches!(why, ChangeError::Undecided(_))) {
            shared.leaves.store(false, Ordering::Relaxed);
        }
        left
    }
}

//! What a node knows of the other nodes of its cluster: by the file that it began with, and by the
//! topology.
//!
//! Invariants: a node that was forgotten is refused from then on; one of which nothing is known yet is
//! believed what it says if its number is above all that are known, as the topology here may lag and
//! numbers come from that alone.

use super::handshake::{Hello, Newcomer, Verdict};
use crate::node::Shared;
use crate::topology_log::Answer;
use broker::NodeNumber;
use broker::topology::{
    Command as Change, FIRST_POOL, MachineVersions, NAME_BYTES_MAX, Name, Newcomer as Join, NodeChange, NodeStanding,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use storage::{ClusterRecord, Founder};
use tokio::sync::oneshot;

/// What a newcomer asks for is proposed at most this often.
const PROPOSE_EVERY: Duration = Duration::from_secs(2);
/// What is remembered of newcomers.
const NEWCOMERS_MAX: usize = 64;

/// See the module.
pub(super) struct Known {
    pub(super) own: u32,
    /// The number of the cluster.
    pub(super) cluster: u128,
    /// Its own data folder.
    pub(super) folder: u128,
    pub(super) record: ClusterRecord,
    pub(super) shared: Weak<Shared>,
    /// Folders that asked for a number: when that was proposed last, and why it was refused.
    newcomers: Mutex<BTreeMap<u128, (Instant, Option<String>)>>,
}

impl Known {
    pub(super) fn new(own: u32, (cluster, folder): (u128, u128), record: ClusterRecord, shared: Weak<Shared>) -> Known {
        Known { own, cluster, folder, record, shared, newcomers: Mutex::default() }
    }

    fn founder(&self, number: u32) -> Option<&Founder> {
        self.record.founders.iter().find(|founder| founder.number == number)
    }

    /// The data folder of a node; `None` where nobody knows it.
    fn folder_of(&self, number: u32) -> Option<u128> {
        let founder = self.founder(number).map(|founder| founder.folder_id).filter(|folder| *folder != 0);
        founder.or_else(|| self.shared.upgrade()?.topology().folder_of(NodeNumber(number)))
    }

    /// Where a node is reached: as the topology has it, or else as this node was told when it began.
    pub(super) fn address_of(&self, number: u32) -> Option<String> {
        let shared = self.shared.upgrade();
        let said = shared.and_then(|shared| {
            let topology = shared.topology();
            let address = &topology.node(NodeNumber(number))?.address;
            Some(String::from_utf8_lossy(address).into_owned()).filter(|address| !address.is_empty())
        });
        said.or_else(|| self.founder(number).map(|founder| founder.address.clone()))
    }

    /// What a node is called in the log.
    pub(super) fn shown(&self, number: u32) -> String {
        let shared = self.shared.upgrade();
        shared.map_or_else(|| format!("node {number}"), |shared| shared.topology().shown_node(NodeNumber(number)))
    }

    /// Whether a node was forgotten.
    pub(super) fn is_gone(&self, number: u32) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let topology = shared.topology();
        topology.node(NodeNumber(number)).is_some_and(|node| node.standing == NodeStanding::Gone)
    }

    /// Whether a node that is there has this address: another one had it before.
    pub(super) fn is_in_use(&self, address: &str) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        let topology = shared.topology();
        topology.present_nodes().any(|(_, node)| *node.address == *address.as_bytes())
    }

    /// All other nodes that this one knows of, those that were forgotten too.
    pub(super) fn others(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.record.founders.iter().map(|founder| founder.number).collect();
        if let Some(shared) = self.shared.upgrade() {
            all.extend(shared.topology().nodes().map(|(number, _)| number.0));
        }
        all.sort_unstable();
        all.dedup();
        all.retain(|number| *number != self.own);
        all
    }

    /// What this node makes of another that has proved itself and is of the same cluster.
    pub(super) fn word_about(&self, peer: &Hello, expected: Option<u32>) -> Verdict {
        let refused = |why: String| Verdict::refusing(why);
        let folder = u128::from_str_radix(&peer.folder, 16).unwrap_or_default();
        if folder == self.folder {
            return refused(match expected.filter(|expected| *expected != self.own) {
                Some(number) => format!(
                    "a node met itself at {}, where node {number} is to be: start each node with the address and the data folder \
                     that belong together, or two processes have one data folder",
                    peer.address
                ),
                None => "a node met itself: two processes have one data folder".to_owned(),
            });
        }
        if let Some(newcomer) = &peer.joins {
            return self.word_about_newcomer(newcomer, &peer.address, folder);
        }
        if peer.node == 0 {
            // It has a new folder, and finds in this whether it is one of the founders.
            return Verdict::telling(self.record.encode());
        }
        if self.is_gone(peer.node) {
            return Verdict::of_forgotten(format!(
                "{} was node {} and has been forgotten: start it with an empty data folder and cluster_join",
                peer.address, peer.node
            ));
        }
        let others = self.others();
        let is_stranger = match self.folder_of(peer.node) {
            Some(known) => known != folder,
            None => peer.node <= others.last().copied().unwrap_or(0).max(self.own),
        };
        let owner = others.iter().find(|other| self.folder_of(**other) == Some(folder));
        if let Some(number) = owner.filter(|owner| **owner != peer.node) {
            return refused(format!(
                "{} says that it is node {}, and its data folder is that of node {number}: name the nodes' addresses as they were",
                peer.address, peer.node
            ));
        }
        if is_stranger {
            return refused(format!(
                "the data folder of {} is none of those that this cluster has: bring the old one back, a node that lost its disk \
                 cannot come back as itself; forget it and let it join with an empty folder",
                peer.address
            ));
        }
        if peer.packets != partition::peer::packet::PACKET_VERSION {
            return refused(format!(
                "one node speaks version {} of the peer protocol and another version {}: run the same version on both",
                peer.packets,
                partition::peer::packet::PACKET_VERSION
            ));
        }
        match expected {
            Some(expected) if expected != peer.node => refused(format!(
                "{} says that it is node {}, and is node {expected} here: name the nodes' addresses as they were",
                peer.address, peer.node
            )),
            _ => Verdict::default(),
        }
    }

    /// Somebody with an empty folder wants to join: is told what it has to know once it has a number.
    fn word_about_newcomer(&self, newcomer: &Newcomer, address: &str, folder: u128) -> Verdict {
        let refused = |why: &str| Verdict::refusing(why);
        let Some(shared) = self.shared.upgrade() else { return refused("this node ends") };
        let is_word = |text: &str| {
            (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        if !is_word(&newcomer.name) || !is_word(address) || !address.contains(':') {
            return refused(
                "it cannot join: its name and its address, as host:port, are 1 to 255 bytes without white space",
            );
        }
        let number = shared.topology().joined_with(folder);
        match number {
            Some(number) if self.is_gone(number.0) => {
                Verdict::of_forgotten("it has been forgotten: start it with an empty data folder")
            }
            Some(number) => {
                tracing::info!(address, "{} joined as node {}", newcomer.name, number.0);
                Verdict::telling(self.record_for_newcomers(&shared).encode())
            }
            None => {
                let why = self.propose(&shared, newcomer, address, folder);
                Verdict { refused: why, ..Verdict::default() }
            }
        }
    }

    /// Has the topology give a newcomer its number; says why that was refused the last time.
    fn propose(&self, shared: &Shared, newcomer: &Newcomer, address: &str, folder: u128) -> Option<String> {
        let now = Instant::now();
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, why)) = newcomers.get(&folder)
            && now < *at + PROPOSE_EVERY
        {
            return why.clone();
        }
        let before = newcomers.remove(&folder).and_then(|(_, why)| why);
        newcomers.retain(|_, (at, _)| now < *at + PROPOSE_EVERY);
        if newcomers.len() >= NEWCOMERS_MAX {
            return Some("too many nodes want to join at once".to_owned());
        }
        newcomers.insert(folder, (now, before.clone()));
        drop(newcomers);
        let (sender, decided) = oneshot::channel();
        let join = Join {
            folder,
            name: Name::from(newcomer.name.as_str()),
            address: Name::from(address),
            can: MachineVersions { topology: newcomer.topology, queues: newcomer.queues },
        };
        shared.propose(Change::ChangeNodes(NodeChange::Join(join)), Answer::to_task(sender));
        let parts = self.shared.clone();
        tokio::task::spawn_local(async move {
            // Nobody knows what became of it, or it has its number: it asks again.
            let Ok(Err(refusal)) = decided.await else { return };
            let Some(shared) = parts.upgrade() else { return };
            if let Some(links) = shared.links.get() {
                links.newcomer_refused(folder, refusal.to_string());
            }
        });
        before
    }

    /// The topology refused a newcomer, which hears of it when it asks again.
    pub(super) fn newcomer_refused(&self, folder: u128, why: String) {
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.insert(folder, (Instant::now(), Some(why)));
    }

    /// All nodes that are there, for one that joins.
    fn record_for_newcomers(&self, shared: &Shared) -> ClusterRecord {
        let topology = shared.topology();
        let nodes: Vec<(u32, String)> = topology
            .present_nodes()
            .map(|(number, node)| (number.0, String::from_utf8_lossy(&node.address).into_owned()))
            .collect();
        // Of those that came to be later each member hears by the map.
        let of_all = topology.partitions().filter(|(_, put)| put.pool == FIRST_POOL);
        let partitions = of_all.map(|(id, _)| id.0).max().unwrap_or(0);
        drop(topology);
        let founder = |(number, address): (u32, String)| {
            let folder_id = if number == self.own { self.folder } else { self.folder_of(number).unwrap_or(0) };
            Founder { number, folder_id, address }
        };
        let founders = nodes.into_iter().map(founder).collect();
        ClusterRecord { joined: Some(self.cluster), partitions, founders, before: self.record.before.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node 2 of a cluster with nodes 1, 2 and 5, each with a data folder of its number and 100 more.
    fn known() -> Known {
        let founder =
            |number| Founder { number, folder_id: u128::from(number) + 100, address: format!("host{number}:1") };
        let founders = [1, 2, 5].map(founder).to_vec();
        let record = ClusterRecord { joined: Some(7), partitions: 4, founders, before: Vec::new() };
        Known::new(2, (7, 102), record, Weak::new())
    }

    /// What it says of who comes with this number and this folder.
    fn said(node: u32, folder: u128, expected: Option<u32>) -> String {
        let mut hello = Hello::new(7, folder, &format!("host{node}:1"), &[], 1);
        hello.node = node;
        known().word_about(&hello, expected).refused.unwrap_or_default()
    }

    #[test]
    fn who_is_known_comes_with_its_folder_and_who_is_new_with_a_number_above_all() {
        assert_eq!((said(1, 101, None), said(5, 105, Some(5))), (String::new(), String::new()));
        assert!(said(1, 999, None).contains("bring the old one back"));
        assert!(said(1, 105, None).contains("its data folder is that of node 5"));
        assert!(said(1, 102, None).contains("two processes have one data folder"));
        assert!(said(5, 105, Some(1)).contains("is node 1 here"));
        // The topology here may lag behind the one that gave the number.
        assert_eq!(said(6, 999, None), "");
        assert!(said(4, 999, None).contains("bring the old one back"), "it was given out before, to another one");
        assert!(said(6, 105, None).contains("its data folder is that of node 5"));
    }

    #[test]
    fn a_new_folder_is_told_who_founded_the_cluster() {
        let word = known().word_about(&Hello::new(7, 999, "host9:1", &[], 1), None);
        assert_eq!((word.refused, word.founding), (None, Some(known().record.encode())));
    }
}

//! From the settings of a cluster to a node of it that has caught up with the others.
//!
//! Invariant: clients are let in once the node has all that was decided about the topology before it
//! started: it has something decided itself, and waits until that is applied here.

use super::encryption::LinkTls;
use super::formation::form;
use super::handshake::Secret;
use super::links::{Links, LinksParts};
use super::peers::Peers;
use crate::config::Config;
use crate::engine::OpenError;
use crate::node::{Node, tell_taken_by};
use crate::run::{Asks, RunError};
use crate::topology_log::Answer;
use broker::topology::{
    ClusterMember, Command as Change, CommandReply, MACHINE_VERSION, MachineVersions, Refusal, Topology,
};
use broker::{NodeLife, NodeNumber};
use partition::machine::MACHINE_VERSION as QUEUES_MACHINE_VERSION;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use storage::{ClusterRecord, DataFolder, NodeState, RealDisk};

/// How often whoever waits looks whether the process is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often the log says what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// A cluster as the settings have it.
pub(crate) struct Cluster {
    peers: Peers,
    secret: Secret,
    tls: Option<Arc<LinkTls>>,
}

/// A node of a founded cluster, before it runs.
pub(crate) struct Founded {
    cluster: Cluster,
    id: u128,
    folder: u128,
    record: ClusterRecord,
}

/// A running node of a cluster.
pub(crate) struct Member {
    links: Links,
    thread: JoinHandle<()>,
    tls: Option<Arc<LinkTls>>,
    record: ClusterRecord,
    number: NodeNumber,
}

impl Cluster {
    /// The cluster that is set, if one is. Errors: one line that says what to do.
    pub(crate) fn of(config: &Config) -> Result<Option<Cluster>, RunError> {
        let wrong = |why: String| RunError::Cluster(why);
        if config.cluster_peers.is_empty() {
            return match config.cluster_secret_file.is_some() || !config.cluster_address.is_empty() {
                true => {
                    Err(wrong("cluster_secret_file and cluster_address are of no use without cluster_peers".to_owned()))
                }
                false => Ok(None),
            };
        }
        let Some(file) = &config.cluster_secret_file else {
            return Err(wrong(
                "cluster_peers needs cluster_secret_file: what nodes say to each other is for nobody else".to_owned(),
            ));
        };
        let secret = Secret::read(file).map_err(wrong)?;
        let own = config.cluster_address.first().map(String::as_str);
        let peers = Peers::new(&config.cluster_peers, own).map_err(|error| wrong(error.to_string()))?;
        let tls = config.cluster_tls_files().map(LinkTls::load).transpose()?.map(Arc::new);
        Ok(Some(Cluster { peers, secret, tls }))
    }

    /// The cluster's number: that of these nodes with this secret.
    pub(crate) fn id(&self) -> u128 {
        let words: Vec<&[u8]> = self.peers.all.iter().map(|peer| peer.as_bytes()).collect();
        let number = self.secret.number_of(&words);
        u128::from_le_bytes(number[..16].try_into().expect("a hash has more"))
    }

    /// Founds the cluster with the others, if that was not done before. Blocks until it is.
    pub(crate) fn found(
        self,
        folder: &mut DataFolder<RealDisk>,
        config: &Config,
        ends: &AtomicBool,
    ) -> Result<Founded, RunError> {
        let (id, folder_id) = (self.id(), folder.identity().folder_id);
        let known = folder.cluster_record().map_err(OpenError::Storage)?;
        let record = match known {
            Some(record) => record,
            None if folder.node().state != NodeState::Joining => {
                return Err(RunError::Cluster(
                    "the data folder is that of a node that runs alone: start it without cluster_peers, or give the cluster new folders"
                        .to_owned(),
                ));
            }
            None => {
                let store = |record: &ClusterRecord| folder.store_cluster_record(record);
                form(&self.peers, (&self.secret, self.tls.clone()), (id, folder_id), config.partitions, store, ends)
                    .map_err(|error| RunError::Cluster(error.to_string()))?
            }
        };
        node::found_among_others(folder, &record)?;
        Ok(Founded { cluster: self, id, folder: folder_id, record })
    }
}

impl Founded {
    /// Starts the links of a node.
    pub(crate) fn start(self, own: NodeLife, node: &Node) -> std::io::Result<Member> {
        let Founded { cluster: Cluster { peers, secret, tls }, id, folder, record } = self;
        let shared = node.shared();
        let parts = LinksParts {
            peers,
            secret,
            tls: tls.clone(),
            cluster: id,
            folder,
            record: record.clone(),
            own,
            shared: Arc::downgrade(shared),
        };
        let (links, thread) = Links::start(parts, shared.directory.clone(), shared.mailboxes.clone())?;
        assert!(shared.links.set(links.clone()).is_ok(), "links are started once");
        let teller = links.clone();
        tell_taken_by(shared, move || teller.tell_taken_soon());
        Ok(Member { links, thread, tls, record, number: NodeNumber(own.node) })
    }
}

impl Member {
    /// Has the topology know this node, and waits until all that was decided before is known here.
    /// Blocks; false if the process is to end instead.
    pub(crate) fn catch_up(&self, node: &Node, config: &Config, name: &str, asks: Asks<'_>) -> bool {
        let begin = Instant::now();
        let mut tell_at = begin + TELL_EVERY;
        let can = MachineVersions { topology: MACHINE_VERSION, queues: QUEUES_MACHINE_VERSION };
        let members: Vec<ClusterMember<'_>> = self
            .record
            .founders
            .iter()
            .map(|founder| ClusterMember { number: NodeNumber(founder.number), address: &founder.address })
            .collect();
        // The first one is proposed whether it says anything new or not: with it all before is here.
        let announce = |topology: &Topology| topology.announcement_of(self.number, name, can, &members);
        let first = announce(&node.shared().topology());
        let mut next = Some(first);
        while let Some(change) = next {
            match self.decide(node, change, asks, &mut tell_at) {
                None => return false,
                Some(Ok(_)) => {}
                Some(Err(refusal)) => tracing::warn!(%refusal, "the topology refuses what a founder has to say"),
            }
            let topology = node.shared().topology();
            let map = topology.commands_of_founders(&members, can, config.partitions.min(self.record.partitions));
            next = map.into_iter().next();
        }
        // What it had in memory before it started is gone, and nobody finds it any more.
        let home = node.shared().topology().own_home();
        if let Some(home) = home
            && self.decide(node, Change::EndHome(home), asks, &mut tell_at).is_none()
        {
            return false;
        }
        tracing::info!(
            node = self.number.0,
            linked = ?self.links.linked().iter().map(|node| node.0).collect::<Vec<_>>(),
            ms = begin.elapsed().as_millis() as u64,
            "caught up with the cluster"
        );
        true
    }

    /// Has a change decided, however long that takes.
    fn decide(
        &self,
        node: &Node,
        change: Change,
        asks: Asks<'_>,
        tell_at: &mut Instant,
    ) -> Option<Result<CommandReply, Refusal>> {
        loop {
            let (sender, decided) = mpsc::channel();
            node.shared().log().propose(change.clone(), Answer::to_waiter(sender));
            loop {
                match decided.recv_timeout(LOOK_EVERY) {
                    Ok(outcome) => return Some(outcome),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                if asks.ends.load(Ordering::Relaxed) {
                    return None;
                }
                // It may be for want of a right one that nobody is linked.
                if asks.reload.swap(false, Ordering::Relaxed) {
                    self.reload_certificates();
                }
                if Instant::now() >= *tell_at {
                    *tell_at = Instant::now() + TELL_EVERY;
                    let linked: Vec<u32> = self.links.linked().iter().map(|node| node.0).collect();
                    let of = self.record.founders.len();
                    tracing::info!(?linked, "waiting for a majority of the {of} nodes of the cluster");
                }
            }
        }
    }

    /// Reads the certificates that nodes show each other again, for links to come.
    pub(crate) fn reload_certificates(&self) {
        self.tls.iter().for_each(|tls| tls.reload_and_tell());
    }

    /// Ends the links.
    pub(crate) fn stop(self) {
        self.links.stop();
        if self.thread.join().is_err() {
            tracing::error!("the thread of the links panicked");
        }
    }
}

//! How nodes with empty folders found a cluster together, once.
//!
//! The first of the sorted list is the one that decides: once it has met every other node of the
//! list with an empty folder, it writes down who they are, and tells them. Whoever knows it, by then
//! or after a restart, tells those that still ask.
//!
//! Invariants: what was decided is durable where it was decided before anybody hears of it, and
//! durable at each node before that founds its groups. A node whose folder is not named in it founds
//! nothing.

use super::handshake::{Hello, Secret, Verdict, shake};
use super::peers::Peers;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use storage::{ClusterRecord, Founder, StorageError};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};

/// How often the others are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// What was heard of a node counts for so long.
const HEARD_FOR: Duration = Duration::from_secs(5);
/// How often the log says who is missing.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a cluster is not founded.
#[derive(Debug, Error)]
pub(super) enum FormationError {
    /// A thread or socket of the system's.
    #[error("cannot look for the other nodes: {0}")]
    Io(#[from] std::io::Error),
    /// What the others say cannot be read.
    #[error("what the other nodes agreed on cannot be read: {0}")]
    Record(#[from] StorageError),
    /// The process is to end.
    #[error("ended before the cluster was founded")]
    Ended,
    /// The cluster was founded without this folder.
    #[error(
        "the cluster was founded with another data folder for {address}: this one is new. Bring the old folder back; a node \
         that lost its disk cannot come back as itself"
    )]
    NotNamed {
        /// This node.
        address: String,
    },
}

struct Search<'a> {
    peers: &'a Peers,
    secret: &'a Secret,
    cluster: u128,
    folder: u128,
    partitions: u32,
    heard: BTreeMap<String, (u128, Instant)>,
    refused: BTreeMap<String, String>,
}

/// What the founders of the cluster agree on. Blocks until that is known, however long it takes.
/// What this node decides itself it gives to `store`, and goes on once that has returned. `dice`
/// gives numbers that were never used.
pub(super) fn form(
    peers: &Peers,
    secret: &Secret,
    (cluster, folder): (u128, u128),
    partitions: u32,
    (mut dice, store): (impl FnMut() -> u128, impl FnOnce(&ClusterRecord) -> Result<(), StorageError>),
    ends: &AtomicBool,
) -> Result<ClusterRecord, FormationError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(peers.listener.try_clone()?)?;
        let (heard, refused) = (BTreeMap::new(), BTreeMap::new());
        let mut search = Search { peers, secret, cluster, folder, partitions, heard, refused };
        tracing::info!(address = %peers.own, peers = %peers.all.join(","), "looking for the other nodes of the cluster");
        let (mut tell_at, mut look_at) = (Instant::now() + TELL_EVERY, Instant::now());
        loop {
            if ends.load(Ordering::Relaxed) {
                return Err(FormationError::Ended);
            }
            let wait = look_at.saturating_duration_since(Instant::now());
            match tokio::time::timeout(wait, listener.accept()).await {
                Ok(Ok((mut stream, _))) => {
                    if let Some(record) = search.meet(&mut stream, false, None, dice()).await? {
                        return Ok(record);
                    }
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    look_at = Instant::now() + LOOK_EVERY;
                    for peer in peers.all.iter().filter(|peer| **peer != peers.own) {
                        let Ok(Ok(mut stream)) =
                            tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(peer)).await
                        else {
                            continue;
                        };
                        if let Some(record) = search.meet(&mut stream, true, Some(peer), dice()).await? {
                            return Ok(record);
                        }
                    }
                    if Instant::now() >= tell_at {
                        tell_at = Instant::now() + TELL_EVERY;
                        search.tell();
                    }
                }
            }
            if let Some(record) = search.decide() {
                store(&record)?;
                return Ok(record);
            }
        }
    })
}

impl Search<'_> {
    /// Meets another node; gives what the founders agreed on if it knows.
    async fn meet(
        &mut self,
        stream: &mut TcpStream,
        is_connector: bool,
        address: Option<&String>,
        nonce: u128,
    ) -> Result<Option<ClusterRecord>, FormationError> {
        let own = Hello::new(self.cluster, self.folder, &self.peers.own, &self.peers.all, nonce);
        let word = |peer: &Hello| Verdict { refused: self.word_about(peer), founding: None };
        let met = shake(stream, is_connector, self.secret, &own, word).await;
        let peer = match met {
            Ok((peer, founding)) => {
                self.refused.remove(&peer.address);
                if let Some(text) = founding {
                    return self.take(&text).map(Some);
                }
                peer
            }
            Err(error) => {
                let whom = address.cloned().unwrap_or_else(|| "somebody who connected".to_owned());
                self.refused.insert(whom, error.to_string());
                return Ok(None);
            }
        };
        if peer.node == 0
            && let Ok(folder) = u128::from_str_radix(&peer.folder, 16)
        {
            self.heard.insert(peer.address, (folder, Instant::now()));
        }
        Ok(None)
    }

    /// Why this node wants nothing to do with another.
    fn word_about(&self, peer: &Hello) -> Option<String> {
        let says = |what: &str| Some(what.to_owned());
        match peer {
            _ if peer.peers != self.peers.all => Some(format!(
                "two lists of nodes: {} has {}, {} has {}; give all nodes the same cluster_peers",
                peer.address,
                peer.peers.join(","),
                self.peers.own,
                self.peers.all.join(",")
            )),
            _ if peer.folder == format!("{:032x}", self.folder) => {
                says("a node met itself: two processes have one data folder")
            }
            _ if peer.address == self.peers.own => {
                says("two nodes say that they are the same one: give each its own cluster_address")
            }
            _ => None,
        }
    }

    /// What the founders agreed on, told by another.
    fn take(&self, text: &str) -> Result<ClusterRecord, FormationError> {
        let record = ClusterRecord::decode(text.as_bytes())?;
        let is_named = record.founders.iter().any(|founder| founder.folder_id == self.folder);
        match is_named {
            true => Ok(record),
            false => Err(FormationError::NotNamed { address: self.peers.own.clone() }),
        }
    }

    /// Decides, if it is this node's turn and all are there.
    fn decide(&self) -> Option<ClusterRecord> {
        let Peers { all, own, .. } = self.peers;
        if all.first() != Some(own) {
            return None;
        }
        let founder = |(at, address): (usize, &String)| {
            let folder_id = match address == own {
                true => self.folder,
                false => self.heard.get(address).filter(|(_, at)| at.elapsed() < HEARD_FOR)?.0,
            };
            Some(Founder { number: at as u32 + 1, folder_id, address: address.clone() })
        };
        let founders = all.iter().enumerate().map(founder).collect::<Option<Vec<_>>>()?;
        Some(ClusterRecord { partitions: self.partitions, founders })
    }

    fn tell(&self) {
        let is_heard = |peer: &&String| self.heard.get(*peer).is_some_and(|(_, at)| at.elapsed() < HEARD_FOR);
        let missing: Vec<_> =
            self.peers.all.iter().filter(|peer| **peer != self.peers.own && !is_heard(peer)).collect();
        tracing::info!(?missing, "the cluster is not founded yet: all of its nodes have to be there once");
        for (peer, why) in &self.refused {
            tracing::warn!(peer, "{why}");
        }
    }
}

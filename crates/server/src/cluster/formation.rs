//! How nodes with empty folders found a cluster together, once.
//!
//! The first of the sorted list is the one that decides: once it has met every other node of the
//! list with an empty folder, it writes down who they are, and tells them. Whoever knows it, by then
//! or after a restart, tells those that still ask.
//!
//! Invariants: what was decided is durable where it was decided before anybody hears of it, and
//! durable at each node before that founds its groups. A node whose folder is not named in it founds
//! nothing.

use super::encryption::{LinkTls, Wire, objection};
use super::handshake::{Hello, PATIENCE, Refused, Side, Verdict, shake, speaks};
use super::peers::Peers;
use super::secret::Secret;
use crate::random;
use crate::startup::Startup;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use storage::{ClusterRecord, Founder, StorageError};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// How often the others are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// What was heard of a node counts for so long.
const HEARD_FOR: Duration = Duration::from_secs(5);
/// How often the log says who is missing.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// From then on it is a warning.
const WARN_AFTER: Duration = Duration::from_secs(30);
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
    Ended {
        /// Another node may count on this folder.
        is_known: bool,
    },
    /// The cluster was founded without this folder.
    #[error(
        "the cluster was founded with another data folder for {address}: this one is new, and a node that lost its disk cannot come back as \
         itself. Bring the old folder back; where it is lost, have another node forget this one (`leveret ctl forget_cluster_node`, if that was \
         not done yet), and start it over an empty folder with cluster_join in place of cluster_peers: it joins anew"
    )]
    NotNamed {
        /// This node.
        address: String,
    },
}

/// How another node was met.
#[derive(Clone, Copy)]
enum Met<'a> {
    /// At its address.
    Called(&'a str),
    /// It came from there.
    Connected(SocketAddr),
}

struct Search {
    peers: Peers,
    secret: Secret,
    tls: Option<Arc<LinkTls>>,
    cluster: u128,
    folder: u128,
    partitions: u32,
    heard: RefCell<BTreeMap<String, (u128, Instant)>>,
    /// Why nothing came of those that were called.
    refused: RefCell<BTreeMap<String, String>>,
    /// The same of whoever connected last.
    stranger: RefCell<Option<(SocketAddr, String)>>,
    /// When it began to look for the others.
    since: Instant,
    /// Another node may count on this folder.
    is_known: Cell<bool>,
    /// What somebody said that the founders agreed on, or why that is of no use here.
    found: RefCell<Option<Result<ClusterRecord, FormationError>>>,
    /// Something was heard.
    news: Notify,
}

/// What the founders of the cluster agree on. Blocks until that is known, however long it takes.
/// What this node decides itself it gives to `store`, and goes on once that has returned.
pub(super) fn form(
    peers: &Peers,
    (secret, tls): (&Secret, Option<Arc<LinkTls>>),
    (cluster, folder): (u128, u128),
    partitions: u32,
    store: impl FnOnce(&ClusterRecord) -> Result<(), StorageError>,
    (ends, startup): (&AtomicBool, &Startup),
) -> Result<ClusterRecord, FormationError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let listener = TcpListener::from_std(peers.listener.try_clone()?)?;
        let search = Rc::new(Search {
            peers: peers.try_clone()?,
            secret: secret.clone(),
            tls,
            cluster,
            folder,
            partitions,
            heard: RefCell::default(),
            refused: RefCell::default(),
            stranger: RefCell::default(),
            since: Instant::now(),
            is_known: Cell::new(false),
            found: RefCell::default(),
            news: Notify::new(),
        });
        tracing::info!(address = %peers.own, peers = %peers.all.join(","), "looking for the other nodes of the cluster");
        // All at once: two nodes that call each other, or a circle of them, must not wait for each
        // other to hang up.
        tokio::task::spawn_local(search.clone().answer(listener));
        for peer in peers.all.iter().filter(|peer| **peer != peers.own) {
            tokio::task::spawn_local(search.clone().call(peer.clone()));
        }
        let mut tell_at = Instant::now() + TELL_EVERY;
        loop {
            if ends.load(Ordering::Relaxed) {
                return Err(FormationError::Ended { is_known: search.is_known.get() });
            }
            if let Some(found) = search.found.take() {
                return found;
            }
            if let Some(record) = search.decide() {
                store(&record)?;
                return Ok(record);
            }
            startup.note(search.waits_for());
            if Instant::now() >= tell_at {
                tell_at = Instant::now() + TELL_EVERY;
                search.tell();
            }
            let _ = tokio::time::timeout(LOOK_EVERY, search.news.notified()).await;
        }
    })
}

impl Search {
    /// Meets whoever connects.
    async fn answer(self: Rc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let search = self.clone();
                    tokio::task::spawn_local(async move { search.meet(stream, Met::Connected(from)).await });
                }
                Err(error) => {
                    *self.found.borrow_mut() = Some(Err(error.into()));
                    return self.news.notify_one();
                }
            }
        }
    }

    /// Meets another node again and again.
    async fn call(self: Rc<Self>, peer: String) {
        loop {
            if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&peer)).await {
                self.meet(stream, Met::Called(&peer)).await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Meets another node, and notes what it knows.
    async fn meet(&self, stream: TcpStream, met: Met<'_>) {
        if matches!(met, Met::Connected(_)) {
            match speaks(&stream).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(why) => return self.note_refusal(met, why.to_string()),
            }
        }
        let tls = self.tls.as_deref();
        let encrypting = async {
            match met {
                Met::Called(address) => Wire::connect(tls, stream, address).await,
                Met::Connected(_) => Wire::accept(tls, stream).await,
            }
        };
        let wire = tokio::time::timeout(PATIENCE, encrypting).await;
        match wire.unwrap_or_else(|_| Err(Refused::Silent.to_string())) {
            Ok(wire) => self.introduce(wire, met).await,
            Err(why) => self.note_refusal(met, why),
        }
        self.news.notify_one();
    }

    fn note_refusal(&self, met: Met<'_>, why: String) {
        match met {
            Met::Called(address) => _ = self.refused.borrow_mut().insert(address.to_owned(), why),
            Met::Connected(from) => *self.stranger.borrow_mut() = Some((from, why)),
        }
    }

    async fn introduce(&self, mut wire: Wire, met: Met<'_>) {
        let nonce = u128::from(random::dice()) << 64 | u128::from(random::dice());
        let own = Hello::new(self.cluster, self.folder, &self.peers.own, &self.peers.all, nonce);
        let certificate = wire.certificate();
        let word = |peer: &Hello| Verdict {
            refused: objection(certificate.as_ref(), &peer.address)
                .or_else(|| own.objection_to(peer))
                .or_else(|| self.word_about(peer)),
            ..Verdict::default()
        };
        let side = match met {
            Met::Called(_) => Side::Connector(&self.secret),
            Met::Connected(_) => Side::Acceptor(std::slice::from_ref(&self.secret)),
        };
        let shaken = shake(&mut wire, side, &own, word).await;
        // Of one that breaks in the middle nobody knows how far the other side came.
        if matches!(shaken, Ok(_) | Err(Refused::Io(_) | Refused::Silent)) {
            self.is_known.set(true);
        }
        match shaken {
            Ok((peer, founding)) => {
                self.refused.borrow_mut().remove(&peer.address);
                if let Some(text) = founding {
                    *self.found.borrow_mut() = Some(self.take(&text));
                } else if peer.node == 0
                    && let Ok(folder) = u128::from_str_radix(&peer.folder, 16)
                {
                    self.heard.borrow_mut().insert(peer.address, (folder, Instant::now()));
                }
            }
            Err(error) if matches!(met, Met::Connected(_)) && error.has_left() => {}
            Err(error) => self.note_refusal(met, error.to_string()),
        }
    }

    /// Why this node wants nothing to do with another.
    fn word_about(&self, peer: &Hello) -> Option<String> {
        let says = |what: &str| Some(what.to_owned());
        match peer {
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
        let Peers { all, own, .. } = &self.peers;
        let heard = self.heard.borrow();
        if all.first() != Some(own) {
            return None;
        }
        let founder = |(at, address): (usize, &String)| {
            let folder_id = match address == own {
                true => self.folder,
                false => heard.get(address).filter(|(_, at)| at.elapsed() < HEARD_FOR)?.0,
            };
            Some(Founder { number: at as u32 + 1, folder_id, address: address.clone() })
        };
        let founders = all.iter().enumerate().map(founder).collect::<Option<Vec<_>>>()?;
        Some(ClusterRecord { joined: None, partitions: self.partitions, founders, before: Vec::new() })
    }

    /// The addresses of nodes that were not heard lately.
    fn missing(&self) -> Vec<String> {
        let heard = self.heard.borrow();
        let is_heard = |peer: &String| heard.get(peer).is_some_and(|(_, at)| at.elapsed() < HEARD_FOR);
        self.peers.all.iter().filter(|peer| **peer != self.peers.own && !is_heard(peer)).cloned().collect()
    }

    fn waits_for(&self) -> String {
        match self.missing()[..] {
            [] => "it waits until the first node of cluster_peers has founded the cluster".to_owned(),
            ref missing => format!(
                "it waits for nodes {}: a cluster is founded once all of its nodes are there",
                missing.join(", ")
            ),
        }
    }

    fn tell(&self) {
        let missing = self.missing().join(", ");
        const WHY: &str = "the cluster is not founded yet: all of its nodes have to be there once";
        // Machines that start together come one after the other.
        match self.since.elapsed() < WARN_AFTER {
            true => tracing::info!(%missing, "{WHY}"),
            false => tracing::warn!(%missing, "{WHY}"),
        }
        let refused = self.refused.borrow();
        for (peer, why) in &*refused {
            tracing::warn!(peer, "{why}");
        }
        // Two nodes call each other: what was said of one is not said again.
        let stranger = self.stranger.take().filter(|(_, why)| !refused.values().any(|other| other == why));
        if let Some((from, why)) = stranger {
            tracing::warn!(%from, "of who connected last: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_called_and_does_not_answer_is_heard_when_it_calls_itself() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = |listener: &std::net::TcpListener| listener.local_addr().expect("it listens").to_string();
        let (own, other) = (address(&listener), address(&silent));
        listener.set_nonblocking(true).expect("it can");
        // Whoever decides is the first of the list.
        let all = vec![own.clone(), other.clone()];
        let peers = Peers { all: all.clone(), own: own.clone(), listener };
        let secret = || Secret::of(b"a secret of two nodes");
        let begin = Instant::now();
        let forming = std::thread::spawn(move || {
            form(&peers, (&secret(), None), (7, 1), 4, |_| Ok(()), (&AtomicBool::new(false), &Startup::new("n1")))
                .map_err(|error| error.to_string())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut stream = TcpStream::connect(&own).await.expect("it listens");
            let hello = Hello::new(7, 2, &other, &all, 3);
            shake(&mut stream, Side::Connector(&secret()), &hello, |_| Verdict::default())
                .await
                .expect("it knows the secret");
        });
        let record = forming.join().expect("it does not panic").expect("both were there");
        let founders: Vec<_> = record.founders.iter().map(|f| (f.number, f.folder_id, f.address.clone())).collect();
        assert_eq!(founders, [(1, 1, own), (2, 2, other)]);
        assert!(begin.elapsed() < PATIENCE, "nobody waited for the one that is silent");
    }
}

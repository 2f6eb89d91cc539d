//! A running node in the hands of its operator: what is asked of it, and changed in it, from
//! outside of its shards.
//!
//! Invariant: nothing here waits on a shard's thread. A look at the shards is a parcel to each of
//! them and one answer from each; a change goes the way of every client's, through the same checks
//! and the same log.
//!
//! In reading order: the node itself (here), its cluster (`cluster`), what it counts (`figures`), who is let
//! in (`logins`) and what is changed (`changes`).

mod changes;
mod cluster;
mod figures;
mod logins;

pub use crate::shard::{InQueues, ShardStatistics};
pub use changes::ChangeError;
pub(crate) use changes::{FIRST_LEADER_LOOK_EVERY, FIRST_LEADER_TIMEOUT};
pub use cluster::Member;
pub use figures::NodeFigures;
pub use logins::LoginError;
pub use node::{Follower, MemberStanding, Voter};
pub use session::{ChannelTraffic, Counted, LoginOver, MessageSizes, QueueTraffic, Traffic, is_token};
pub use switch::DeadLettered;

use crate::cluster::Links;
use crate::config::Config;
use crate::definitions::{Fresh, ImportError, Imported, Moment};
use crate::engine::{EngineGauges, wall_ms};
use crate::listener;
use crate::node::{Alarm, Look, Shared, trace_news};
use crate::random;
use crate::shard::{Arrival, Parcel};
use broker::topology::{Actor, Token};
use broker::{PartitionId, VhostId};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::ServerConfig;
use session::report::ConnectionNumber;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

/// What stays the same as long as the node runs.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// The node's name.
    pub node_name: String,
    /// The number of the cluster, the same on all nodes and for as long as it is there.
    pub cluster_id: u128,
    /// What it is configured to be.
    pub config: Config,
    /// Where it listens for AMQP, the addresses with TLS last.
    pub amqp: Vec<SocketAddr>,
    /// How many of `amqp`, from the end, have TLS.
    pub tls_count: usize,
    /// When it started, on the wall, in milliseconds since the epoch.
    pub started_ms: u64,
    /// When it started, on the clock.
    pub started: Instant,
}

impl NodeFacts {
    /// What the cluster is called for ever, whatever name it is given.
    pub fn permanent_id(&self) -> String {
        format!("leveret-cluster-id-{:032x}", self.cluster_id)
    }
}

struct Inner {
    shared: Arc<Shared>,
    engine: Option<EngineGauges>,
    facts: NodeFacts,
}

/// To whom a certificate is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownTo {
    /// Clients that speak AMQP.
    Clients,
    /// Whoever uses the management API.
    Management,
    /// Other nodes.
    Nodes,
}

/// A certificate of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCertificate {
    /// To whom it is shown.
    pub to: ShownTo,
    /// The file that it is from.
    pub file: PathBuf,
    /// When it ends, or one between it and its authority.
    pub ends: SystemTime,
}

/// See the module. Clones are of the same node.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, engine: Option<EngineGauges>, facts: NodeFacts) -> Handle {
        Handle { inner: Arc::new(Inner { shared, engine, facts }) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// What stays the same as long as the node runs.
    pub fn facts(&self) -> &NodeFacts {
        &self.inner.facts
    }

    /// The topology, to look at. Whoever declares waits as long as it is held: take what is needed
    /// and let go.
    pub fn topology(&self) -> Look<'_> {
        self.shared().topology()
    }

    /// The certificates that this node shows.
    pub fn certificates(&self) -> Vec<ShownCertificate> {
        let (shared, config) = (self.shared(), &self.facts().config);
        let links = shared.links.get().and_then(Links::certificate_end);
        let of = |to, file: Option<PathBuf>, ends: Option<SystemTime>| {
            Some(ShownCertificate { to, file: file?, ends: ends? })
        };
        let to_clients = config.tls_files().map(|files| files.certificate.path);
        let to_managers = config.management_tls_files().map(|files| files.certificate.path);
        let all = [
            of(ShownTo::Clients, to_clients, shared.certificates.end()),
            of(ShownTo::Management, to_managers, shared.management_certificates.end()),
            of(ShownTo::Nodes, config.cluster_tls_certificate.clone(), links),
        ];
        all.into_iter().flatten().collect()
    }

    /// What the management API is encrypted with, as it was last read.
    pub fn management_tls(&self) -> Option<Arc<ServerConfig>> {
        self.shared().management_certificates.get()
    }

    /// Whether the queues of this partition are unavailable, as it is damaged here.
    pub fn is_quarantined(&self, partition: PartitionId) -> bool {
        self.shared().config.quarantined.contains(&partition)
    }

    /// Why publishers are blocked, in the words that clients are told.
    pub fn blocked_reason(&self) -> Option<&'static str> {
        self.shared().alarms.blocked_reason()
    }

    /// Begins or ends to tell `amq.rabbitmq.trace` of every message of a virtual host, on all nodes. A
    /// restart forgets it, as in RabbitMQ; of a cluster the restart of all nodes.
    pub fn trace(&self, vhost: VhostId, on: bool) {
        let shared = self.shared();
        let said = shared.traced.set(vhost, on, wall_ms(), &shared.topology());
        shared.tell_nodes(|| vec![trace_news(vhost, said)]);
    }

    /// Whether a virtual host is traced.
    pub fn traces(&self, vhost: VhostId) -> bool {
        self.shared().traced.contains(vhost)
    }

    /// Holds publishers, as an alarm does, or lets them go on. A restart forgets it.
    pub fn hold_publishers(&self, hold: bool) {
        self.shared().set_alarm(Alarm::Operator, hold);
    }

    /// Closes a connection with 320 and this text; nothing if it is gone.
    pub fn close_connection(&self, connection: ConnectionNumber, text: &str) {
        for mailbox in &self.shared().mailboxes {
            mailbox.send(Parcel::CloseConnection { connection, text: text.to_owned() });
        }
    }

    /// A connection of the node's own in the name of `user`, who logged in from `peer` by other
    /// means, perhaps by a token; the other end of it. It speaks AMQP from its first byte, is held to all that any
    /// client is held to, and logs in with EXTERNAL, which names nobody.
    ///
    /// Errors: the node drains or has as many connections as it may, or the system gives no more
    /// sockets.
    pub fn connect_for(&self, user: &[u8], token: Option<Arc<Token>>, peer: SocketAddr) -> io::Result<UnixStream> {
        let shared = self.shared();
        if shared.draining.load(Ordering::Acquire) || shared.connections() >= shared.config.connections_max {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let user = String::from_utf8(user.to_vec()).map_err(io::Error::other)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let shard = listener::fewest(shared, 0);
        shared.gauges[shard].connections.fetch_add(1, Ordering::Relaxed);
        // The shard reads and writes it as any socket; what only TCP has is not asked of it.
        let arrival = Arrival::own(TcpStream::from(own), peer, user, token);
        shared.mailboxes[shard].send(Parcel::Accepted(Box::new(arrival)));
        Ok(UnixStream::from(other))
    }

    /// Takes in definitions. Blocks until every change is decided: not for a task that others wait
    /// for.
    pub fn import_definitions(&self, text: &str) -> Result<Imported, ImportError> {
        self.shared().import_definitions(text, Fresh::Never, Moment::Serving)
    }

    /// Bits that nobody can guess.
    pub fn secret(&self) -> u128 {
        random::secret()
    }
}

/// A user at no connection, who so owns no exclusive queue.
pub fn operator(user: &[u8]) -> Actor<'_> {
    Actor { user, connection: 0, scopes: None }
}

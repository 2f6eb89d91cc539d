//! What a node is made of, and why one does not start.

use crate::config::{TokenSettings, TraceSettings};
use crate::spans::WrongCollector;
use crate::tls::LoginFrom;
use crate::tokens::WrongKeyFile;
use amqp::{ConnectionConfig, Millis};
use broker::topology::{HashAlgorithm, LeaderLocator};
use broker::{NodeLife, PartitionId};
use session::{LoginLimits, Stamps};
use std::net::SocketAddr;
use switch::SHARDS_MAX;

/// A frame is at most this large: properties fit one frame, and a stored message its limit.
pub const FRAME_MAX_LIMIT: u32 = 1 << 20;

const _: () = assert!(FRAME_MAX_LIMIT as usize + (16 << 20) + 2048 <= partition::message::MESSAGE_BYTES_MAX);

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Addresses to listen on. With port 0 the system chooses; see
    /// [`Node::addresses`](crate::node::Node::addresses).
    pub listen: Vec<SocketAddr>,
    /// Addresses to listen on with TLS, likewise; they follow the others in
    /// [`Node::addresses`](crate::node::Node::addresses). Connections are refused until
    /// [`Node::use_tls`](crate::node::Node::use_tls) brought certificates.
    pub listen_tls: Vec<SocketAddr>,
    /// Those of both whose connections come through a proxy that says so.
    pub proxied: Vec<SocketAddr>,
    /// What of a certificate names its user.
    pub login_from: LoginFrom,
    /// Shard threads, 1 to 64.
    pub shards: usize,
    /// Which node of its cluster it is, and which of its starts, both from 1: no other life of a
    /// node has both, so that channel keys are never reused.
    pub life: NodeLife,
    /// The durable partitions of this node and the shard that each runs on. New queues go to them
    /// in turn, partition 0 excepted, which is the topology's own.
    pub placement: Vec<(PartitionId, usize)>,
    /// Other nodes have members of these partitions' groups too.
    pub has_peers: bool,
    /// Those of them that are damaged: no new queue goes there.
    pub quarantined: Vec<PartitionId>,
    /// What clients are offered. `frame_max` is set and at most [`FRAME_MAX_LIMIT`], bodies are at
    /// most 16 MiB.
    pub amqp: ConnectionConfig,
    /// Users that may log in from a loopback address only.
    pub loopback_users: Vec<String>,
    /// How many logins may fail.
    pub login_limits: LoginLimits,
    /// How a password is hashed that is set here.
    pub password_hashing: HashAlgorithm,
    /// How long a password is known again that was right, in seconds, where its hash is slow.
    pub known_passwords_s: u64,
    /// Whom clients are who log in without saying who they are, where that is offered.
    pub anonymous_user: String,
    /// Whether users of this broker log in, by a password, a certificate or nothing.
    pub takes_passwords: bool,
    /// What is asked of tokens, and where the keys are that sign them; `None` takes none.
    pub tokens: Option<TokenSettings>,
    /// Where spans of traced messages go; `None` traces none.
    pub traces: Option<TraceSettings>,
    /// Client connections at most; further ones are closed as soon as they are accepted.
    pub connections_max: usize,
    /// Bytes that messages of transient queues may pin before publishers are blocked.
    pub transient_bytes_max: u64,
    /// Bytes that all connections of one user may hold in unfinished messages and transactions. One
    /// connection may hold `amqp.assembling_bytes_max`, the whole node half of
    /// `transient_bytes_max`.
    pub user_bytes_max: u64,
    /// Bytes that one shard may have proposed and not yet written before its publishers' sockets
    /// are not read.
    pub unwritten_bytes_max: u64,
    /// How long a consumer may hold a message, where its queue says nothing; 0 is for ever.
    pub consumer_timeout_ms: Millis,
    /// The node's name, as it says it in messages.
    pub node_name: String,
    /// The virtual host whose event exchange is told what happens on the node.
    pub event_vhost: Option<String>,
    /// What is written into messages that come in; `None` is nothing.
    pub stamps: Option<Stamps>,
    /// Where leaders of new durable queues should be, if nothing else says so.
    pub leader_locator: LeaderLocator,
    /// Called on a thread that was busy and is quiet now: an allocator may want to give memory
    /// back.
    pub on_quiet: fn(),
}

impl NodeConfig {
    /// One shard, no durable partitions, RabbitMQ's limits; for tests and small nodes.
    pub fn small(listen: Vec<SocketAddr>) -> Self {
        NodeConfig {
            listen,
            listen_tls: Vec::new(),
            proxied: Vec::new(),
            login_from: LoginFrom::default(),
            shards: 1,
            life: NodeLife { node: 1, start: 1 },
            placement: Vec::new(),
            has_peers: false,
            quarantined: Vec::new(),
            amqp: ConnectionConfig::default(),
            loopback_users: vec!["guest".to_owned()],
            login_limits: LoginLimits::default(),
            leader_locator: LeaderLocator::ClientLocal,
            password_hashing: HashAlgorithm::Argon2id,
            known_passwords_s: 3600,
            anonymous_user: "guest".to_owned(),
            takes_passwords: true,
            tokens: None,
            traces: None,
            connections_max: 100_000,
            transient_bytes_max: 256 << 20,
            user_bytes_max: 128 << 20,
            unwritten_bytes_max: 16 << 20,
            consumer_timeout_ms: 1_800_000,
            node_name: "leveret@localhost".to_owned(),
            event_vhost: None,
            stamps: None,
            on_quiet: || {},
        }
    }

    pub(super) fn check(&self) -> Result<(), StartError> {
        let wrong = |what: &str| Err(StartError::Config { what: what.to_owned() });
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return wrong("there are 1 to 64 shard threads");
        }
        if self.life.node == 0 || self.life.start == 0 {
            return wrong("nodes and their starts are counted from 1");
        }
        if self.amqp.frame_max == 0 || self.amqp.frame_max > FRAME_MAX_LIMIT {
            return wrong("frame_max is between 4096 and 1048576");
        }
        if self.amqp.body_bytes_max > 16 << 20 {
            return wrong("body_bytes_max is at most 16777216");
        }
        Ok(())
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting that does not go with the others.
    #[error("{what}")]
    Config {
        /// The sentence.
        what: String,
    },
    /// The cluster lost its majority meanwhile.
    #[error("nobody decided about {what}: a majority of the nodes of the cluster has to run; start this one again")]
    Undecided {
        /// About what.
        what: String,
    },
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; if another program has that port, stop it or set `{setting}` to another"
    )]
    Listen {
        /// Which setting names it.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A key that signs tokens cannot be read, or nobody can be asked for them.
    #[error("oauth2: {0}")]
    Tokens(#[from] WrongKeyFile),
    /// Nobody can be sent spans.
    #[error(transparent)]
    Traces(#[from] WrongCollector),
    /// A thread cannot be started.
    #[error("cannot start a shard thread: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
}

//! A node: its shard threads, its listeners, its topology, its alarms; what a process starts,
//! watches and drains.
//!
//! Invariant: the topology's version, read without a lock, is never ahead of the topology that a
//! reader of the lock sees afterwards; so a route that was computed under the lock is stored with a
//! version that is not too new.

use crate::acceptor;
use crate::drain::{self, DrainStep};
use crate::engine::{Decided, ShardDisk};
use crate::listener::{self, Door};
use crate::shard::thread::{self, Parts};
use crate::shard::{Mailbox, Outsider, Parcel};
use crate::tls::{self, LoginFrom, TlsError, TlsFiles};
use crate::topology_log::{Answer, Changes, MemoryLog, TopologyLog};
use amqp::{ConnectionConfig, Mechanism, Millis, Table};
use broker::topology::{
    Applied, BrokerEvent, Command as Change, DeclareExchange, Effect, ExchangeType, Malformed, Name, Refusal, Topology,
};
use broker::{ChannelKey, NodeLife, PartitionId, QueueId, VhostId};
use node::{Member, Partition, Share};
use partition::{Command, RequestId};
use session::{Common, Histories, Limits, LoginLimits, Logins, Settings, Stamps, Sums};
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use switch::{Directory, EVENT_EXCHANGE, Follower, SHARDS_MAX, Tell, transient_partition};
use tokio::sync::Notify;

/// How long clients have to answer `connection.close` when the node drains.
pub const DRAIN_TIMEOUT_MS: Millis = 5_000;

/// The part of `transient_bytes_max` that the histories of all `x-recent-history` exchanges may
/// take: one in so many.
const HISTORIES_SHARE: u64 = 8;
/// The share of the budget for messages in memory that frames may take which wait for their turn.
const WAITING_SHARE: u64 = 16;

/// A frame is at most this large: properties fit one frame, and a stored message its limit.
pub const FRAME_MAX_LIMIT: u32 = 1 << 20;

const _: () = assert!(FRAME_MAX_LIMIT as usize + (16 << 20) + 2048 <= partition::message::MESSAGE_BYTES_MAX);

/// What a node is made of.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Addresses to listen on. With port 0 the system chooses; see [`Node::addresses`].
    pub listen: Vec<SocketAddr>,
    /// Addresses to listen on with TLS, likewise; they follow the others in [`Node::addresses`].
    /// Connections are refused until [`Node::use_tls`] brought certificates.
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
    /// Those of them that are damaged: no new queue goes there.
    pub quarantined: Vec<PartitionId>,
    /// What clients are offered. `frame_max` is set and at most [`FRAME_MAX_LIMIT`], bodies are at
    /// most 16 MiB.
    pub amqp: ConnectionConfig,
    /// Users that may log in from a loopback address only.
    pub loopback_users: Vec<String>,
    /// How many logins may fail.
    pub login_limits: LoginLimits,
    /// Whom clients are who log in without saying who they are, where that is offered.
    pub anonymous_user: String,
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
            quarantined: Vec::new(),
            amqp: ConnectionConfig::default(),
            loopback_users: vec!["guest".to_owned()],
            login_limits: LoginLimits::default(),
            anonymous_user: "guest".to_owned(),
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

    fn check(&self) -> Result<(), StartError> {
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

/// What a client without a certificate is offered: EXTERNAL is only for others, as in RabbitMQ.
fn without_certificate(offer: &ConnectionConfig) -> ConnectionConfig {
    let mut offer = offer.clone();
    // Where nothing else may be used, it is offered all the same, and every login without a
    // certificate is refused.
    if offer.mechanisms.iter().any(|mechanism| *mechanism != Mechanism::External) {
        offer.mechanisms.retain(|mechanism| *mechanism != Mechanism::External);
    }
    offer
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
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a shard thread: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
}

/// A condition under which publishers are blocked while consumers go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The disk is nearly full.
    Disk,
    /// Messages in memory are at their limit.
    Memory,
    /// The operator wants it so.
    Operator,
}

impl Alarm {
    fn bit(self) -> u8 {
        match self {
            Alarm::Disk => 1,
            Alarm::Memory => 2,
            Alarm::Operator => 4,
        }
    }
}

/// Which alarms are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    /// The disk is nearly full.
    pub disk: bool,
    /// Messages in memory are at their limit.
    pub memory: bool,
    /// The operator holds publishers.
    pub operator: bool,
}

/// What one shard tells the others about itself.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    /// Proposed and not yet written.
    pub(crate) unwritten_bytes: AtomicU64,
    /// Pinned by messages in memory.
    pub(crate) memory_bytes: AtomicU64,
    /// Taken by the keys of messages that come in once.
    pub(crate) key_bytes: AtomicU64,
    /// Open connections.
    pub(crate) connections: AtomicUsize,
    /// What went through.
    pub(crate) traffic: session::Published,
}

/// What the threads of a node share.
pub(crate) struct Shared {
    /// What clients are offered that showed a certificate.
    amqp_certified: Arc<ConnectionConfig>,
    /// What the node offers itself, on connections for users who logged in elsewhere.
    amqp_own: Arc<ConnectionConfig>,
    /// The certificates, and when the first of them ends.
    tls: RwLock<Option<(Arc<ServerConfig>, SystemTime)>>,
    /// Tells the acceptor that the node drains.
    pub(crate) door_closes: Notify,
    pub(crate) config: NodeConfig,
    amqp: Arc<ConnectionConfig>,
    pub(crate) directory: Directory,
    pub(crate) mailboxes: Vec<Mailbox>,
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) draining: AtomicBool,
    topology: RwLock<Topology>,
    version: AtomicU64,
    log: OnceLock<Arc<dyn TopologyLog>>,
    /// Whether a virtual host is traced, and which are.
    is_tracing: AtomicBool,
    traced: RwLock<Vec<VhostId>>,
    /// Held by the one change under way whose patterns were weighed, until it is decided.
    pub(crate) pattern_turn: tokio::sync::Mutex<()>,
    alarms: AtomicU8,
    memory_alarm: AtomicBool,
    /// Whether queues with deduplication remember as much as they may.
    pub(crate) are_keys_full: AtomicBool,
    /// What the sessions of all shards have in common.
    pub(crate) sessions: Common,
    next_partition: AtomicUsize,
    /// The partitions here in which a new durable queue may be placed, as the topology's map says.
    open_partitions: RwLock<Vec<PartitionId>>,
    start: Instant,
}

impl Shared {
    /// Milliseconds since the node started, from 1.
    #[inline]
    pub(crate) fn now(&self) -> Millis {
        self.start.elapsed().as_millis() as Millis + 1
    }

    /// Microseconds since the node started.
    pub(crate) fn elapsed_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// The topology, to look at. Held for as long as one route or one check takes.
    pub(crate) fn topology(&self) -> RwLockReadGuard<'_, Topology> {
        self.topology.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name that the operator gave the cluster; without one it is the node's.
    pub(crate) fn cluster_name(&self) -> Option<String> {
        serde_json::from_str(self.topology().global_parameter(b"cluster_name")?).ok()
    }

    /// What the client of a new connection is offered.
    pub(crate) fn offer(&self, is_own: bool, has_certificate: bool) -> Arc<ConnectionConfig> {
        let offer = match (is_own, has_certificate) {
            (true, _) => &self.amqp_own,
            (false, true) => &self.amqp_certified,
            (false, false) => &self.amqp,
        };
        let Some(name) = self.cluster_name() else { return offer.clone() };
        let mut properties = Table::new();
        for (key, value) in offer.server_properties.iter().filter(|(key, _)| &key[..] != b"cluster_name") {
            properties.push(key.clone(), value.clone());
        }
        properties.push("cluster_name", amqp::Value::LongString(name.into()));
        Arc::new(ConnectionConfig { server_properties: properties, ..ConnectionConfig::clone(offer) })
    }

    /// The certificates to use now.
    pub(crate) fn tls(&self) -> Option<Arc<ServerConfig>> {
        let tls = self.tls.read().unwrap_or_else(PoisonError::into_inner);
        tls.as_ref().map(|(config, _)| config.clone())
    }

    /// When the first of the certificates ends that are shown to clients.
    pub(crate) fn certificate_ends(&self) -> Option<SystemTime> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, ends)| *ends)
    }

    /// A number that grows with every change of the topology.
    #[inline]
    pub(crate) fn topology_version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The topology, to put something into it that changes nothing for those who look.
    pub(crate) fn topology_mut(&self, put: impl FnOnce(&mut Topology)) {
        put(&mut self.topology.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes a change by `apply` or `apply_local` of the topology, has partitions told before
    /// anybody sees it, and tells the event exchange of it. What else follows is to be carried out.
    pub(crate) fn change_topology(
        &self,
        change: &Change,
        apply: fn(&mut Topology, &Change) -> Applied,
        tell: &impl Tell,
    ) -> Applied {
        let mut topology = self.topology.write().unwrap_or_else(PoisonError::into_inner);
        let foresight = self.tells_events().then(|| topology.foresee(change));
        let applied = apply(&mut topology, change);
        switch::tell_partitions(&applied.effects, &topology, tell);
        self.version.store(topology.version(), Ordering::Release);
        if matches!(change, Change::PutPool { .. } | Change::PutPartition { .. } | Change::RaiseVersion { .. }) {
            self.note_partitions(&topology);
        }
        let news = foresight.map_or_else(Vec::new, |foresight| foresight.told(&applied, &topology));
        drop(topology);
        news.into_iter().for_each(|news| self.tell(news));
        applied
    }

    /// Puts the replicated part of a snapshot in the place of the topology's; what follows is to be
    /// carried out. Events of what it skips are not told: nobody knows in which order it happened.
    pub(crate) fn install_topology(&self, snapshot: &[u8]) -> Result<Vec<Effect>, Malformed> {
        let mut topology = self.topology.write().unwrap_or_else(PoisonError::into_inner);
        let effects = topology.install_snapshot(snapshot)?;
        switch::tell_partitions(&effects, &topology, self);
        self.version.store(topology.version(), Ordering::Release);
        self.note_partitions(&topology);
        Ok(effects)
    }

    /// Takes over from the map where queues may be placed from now on.
    fn note_partitions(&self, topology: &Topology) {
        let durable = self.directory.durable().filter(|id| !self.config.quarantined.contains(id));
        let here = durable.filter(|id| id.0 != 0 && topology.may_place_in(*id, None));
        *self.open_partitions.write().unwrap_or_else(PoisonError::into_inner) = here.collect();
    }

    /// Whether there is an event exchange.
    #[inline]
    pub(crate) fn tells_events(&self) -> bool {
        self.config.event_vhost.is_some()
    }

    /// Tells the event exchange. To be called where [`Shared::tells_events`], as events cost memory
    /// to make.
    pub(crate) fn tell(&self, news: BrokerEvent) {
        // One shard for all, so that what follows each other is told in that order.
        self.mailboxes[0].cross(switch::Parcel::Event(Box::new(news)));
    }

    /// Makes a change that concerns this node only, with all that follows.
    pub(crate) fn change_locally(&self, change: &Change) -> Applied {
        let applied = self.change_topology(change, Topology::apply_local, self);
        self.carry_out(&applied.effects);
        applied
    }

    /// Does what follows from a change for others than partitions.
    pub(crate) fn carry_out(&self, effects: &[Effect]) {
        switch::follow(effects, self);
    }

    fn cross(&self, partition: PartitionId, parcel: switch::Parcel<Outsider>) {
        if let Some((shard, _)) = self.directory.find(partition) {
            self.mailboxes[shard].cross(parcel);
        }
    }

    /// What decides about replicated changes.
    pub(crate) fn log(&self) -> &Arc<dyn TopologyLog> {
        self.log.get().expect("the log is set before the first thread starts")
    }

    /// Proposes a replicated change that somebody asks for. While the disk is low, what would make
    /// the log and its checkpoints grow is refused: settles, purges and deletes need the room that
    /// is left, and make more.
    pub(crate) fn propose(&self, change: Change, answer: Answer) {
        if change.is_growth() && self.alarms().disk {
            return answer.send(Applied { outcome: Err(Refusal::low_on_disk()), effects: Vec::new() });
        }
        self.log().propose(change, answer);
    }

    /// The partition for a new durable queue; `None` on a node without durable partitions.
    pub(crate) fn place_queue(&self) -> Option<PartitionId> {
        // The topology is looked at by who asks, and a lock that is waited for must not be taken
        // twice.
        let open = self.open_partitions.read().unwrap_or_else(PoisonError::into_inner);
        let at = self.next_partition.fetch_add(1, Ordering::Relaxed).checked_rem(open.len())?;
        open.get(at).copied()
    }

    /// The partition that answers a sync for the whole node.
    pub(crate) fn sync_partition(&self) -> PartitionId {
        self.directory.durable().next().unwrap_or(transient_partition(0))
    }

    /// Why publishers are blocked, in RabbitMQ's words where it has some.
    pub(crate) fn blocked_reason(&self) -> Option<&'static str> {
        let on = self.alarms();
        match (on.disk, on.memory, on.operator) {
            (false, false, false) => None,
            (true, false, _) => Some("low on disk"),
            (false, true, _) => Some("low on memory"),
            (true, true, _) => Some("low on memory & disk"),
            (false, false, true) => Some("held by the operator"),
        }
    }

    /// Whether some virtual host is traced.
    #[inline]
    pub(crate) fn is_tracing(&self) -> bool {
        self.is_tracing.load(Ordering::Relaxed)
    }

    /// Whether this virtual host is traced.
    pub(crate) fn traces(&self, vhost: VhostId) -> bool {
        self.is_tracing() && self.traced.read().expect("nobody panics while it is held").contains(&vhost)
    }

    /// Begins or ends to trace a virtual host. Those that are gone are forgotten.
    pub(crate) fn trace(&self, vhost: VhostId, on: bool) {
        let topology = self.topology();
        let mut traced = self.traced.write().expect("nobody panics while it is held");
        traced.retain(|other| *other != vhost && topology.vhost_of(*other).is_some());
        if on {
            traced.push(vhost);
        }
        self.is_tracing.store(!traced.is_empty(), Ordering::Relaxed);
    }

    /// Raises or ends an alarm.
    pub(crate) fn set_alarm(&self, alarm: Alarm, on: bool) {
        let before = match on {
            true => self.alarms.fetch_or(alarm.bit(), Ordering::AcqRel),
            false => self.alarms.fetch_and(!alarm.bit(), Ordering::AcqRel),
        };
        if (before & alarm.bit() != 0) == on {
            return;
        }
        match on {
            true => tracing::warn!(?alarm, "alarm raised: publishers are blocked, consumers go on"),
            false => tracing::warn!(?alarm, "alarm over: publishers go on"),
        }
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::Alarms));
        if self.tells_events() {
            let news = BrokerEvent::new(if on { "alarm.set" } else { "alarm.cleared" });
            let resource: &[u8] = match alarm {
                Alarm::Disk => b"disk",
                Alarm::Memory => b"memory",
                Alarm::Operator => b"operator",
            };
            self.tell(news.text("source", resource).text("node", self.config.node_name.as_bytes()));
        }
    }

    /// Compares what messages pin in memory with the budget; called by shards when their part of it
    /// moved.
    pub(crate) fn check_memory(&self) {
        let messages: u64 = self.gauges.iter().map(|g| g.memory_bytes.load(Ordering::Relaxed)).sum();
        let limit = self.config.transient_bytes_max;
        let keys = self.key_bytes();
        self.are_keys_full.store(keys > limit / 2, Ordering::Relaxed);
        // All is one budget. But the alarm holds publishers until consumers have made room, and
        // from what was begun, and from what histories and deduplication remember, they take
        // nothing: beyond half of the limit that counts no further.
        let others = self.unfinished_bytes() + self.sessions.histories.bytes() + keys;
        let bytes = messages + others.min(limit / 2);
        let on = self.memory_alarm.load(Ordering::Relaxed);
        // Between nine tenths of the limit and the limit nothing changes, so that the alarm does
        // not flutter.
        let wanted = if on { bytes > limit / 10 * 9 } else { bytes > limit };
        if wanted != on && self.memory_alarm.swap(wanted, Ordering::AcqRel) != wanted {
            self.set_alarm(Alarm::Memory, wanted);
        }
    }

    /// What clients have begun and not ended.
    pub(crate) fn unfinished_bytes(&self) -> u64 {
        self.sessions.sums.unfinished.load(Ordering::Relaxed)
    }

    /// What queues with deduplication remember.
    pub(crate) fn key_bytes(&self) -> u64 {
        self.gauges.iter().map(|gauge| gauge.key_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Whether messages in memory are beyond their budget.
    pub(crate) fn has_memory_alarm(&self) -> bool {
        self.memory_alarm.load(Ordering::Relaxed)
    }

    /// Whether a shard has as much proposed and unwritten as it may, together with what is on its
    /// way to it: a shard that waits for its disk takes nothing out of its mailbox.
    #[inline]
    pub(crate) fn is_loaded(&self, shard: usize) -> bool {
        let unwritten = self.gauges[shard].unwritten_bytes.load(Ordering::Relaxed);
        unwritten + self.mailboxes[shard].bytes() > self.config.unwritten_bytes_max
    }

    /// Which alarms are on.
    pub(crate) fn alarms(&self) -> Alarms {
        let alarms = self.alarms.load(Ordering::Acquire);
        let is_on = |alarm: Alarm| alarms & alarm.bit() != 0;
        Alarms { disk: is_on(Alarm::Disk), memory: is_on(Alarm::Memory), operator: is_on(Alarm::Operator) }
    }

    /// Client connections of the whole node.
    pub(crate) fn connections(&self) -> usize {
        self.gauges.iter().map(|g| g.connections.load(Ordering::Relaxed)).sum()
    }
}

/// By the mailboxes.
impl Tell for Shared {
    fn declare(&self, partition: PartitionId, queue: QueueId) {
        self.cross(partition, switch::Parcel::Declare(partition, queue));
    }

    fn command(&self, partition: PartitionId, command: Command) {
        self.cross(partition, switch::Parcel::Command(partition, command));
    }
}

impl Follower for Shared {
    fn topology(&self) -> impl Deref<Target = Topology> {
        Shared::topology(self)
    }

    fn propose(&self, change: Change) {
        let nobody = Answer::new(self.mailboxes[0].clone(), ChannelKey::NOBODY, RequestId(0));
        self.log().propose(change, nobody);
    }

    fn change_locally(&self, change: &Change) {
        Shared::change_locally(self, change);
    }

    fn vhost_deleted(&self, vhost: VhostId, name: &Name) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::VhostDeleted(vhost, name.clone())));
    }

    fn user_deleted(&self, name: &Name) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::UserDeleted(name.clone())));
    }
}

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    /// Bound, and not accepted from yet.
    listeners: Mutex<Vec<(TcpListener, Door)>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Makes the durable partitions of a shard, on its thread.
pub type MakePartitions = Arc<dyn Fn(usize) -> ShardParts + Send + Sync>;

/// What a shard begins with.
pub struct ShardParts {
    /// Its durable partitions, in the order of [`NodeConfig::placement`].
    pub(crate) members: Vec<(PartitionId, Member<Decided>)>,
    pub(crate) share: Share,
    pub(crate) disk: Option<ShardDisk>,
}

impl ShardParts {
    /// A shard that writes nothing, with these partitions of the caller's own.
    pub fn without_log(partitions: Vec<(PartitionId, Box<dyn Partition>)>) -> ShardParts {
        let members = partitions.into_iter().map(|(id, partition)| (id, Member::Other(partition))).collect();
        ShardParts { members, share: Share::without_log(), disk: None }
    }
}

/// Wakes a partition from another thread: the disk or a peer has news for it.
#[derive(Clone)]
pub struct PartitionWaker {
    mailbox: Mailbox,
    partition: PartitionId,
}

impl PartitionWaker {
    /// Has the partition stepped soon, with or without commands.
    pub fn wake(&self) {
        self.mailbox.cross(switch::Parcel::Wake(self.partition));
    }
}

/// What a node's makers of partitions and logs may hold on to: it exists before the first thread
/// starts.
#[derive(Clone)]
pub struct Wiring {
    shared: Arc<Shared>,
}

impl Wiring {
    /// Applies decided commands to the node's topology.
    pub fn changes(&self) -> Changes {
        Changes::new(&self.shared)
    }

    /// Wakes `partition`; `None` if it does not run on this node.
    pub fn waker(&self, partition: PartitionId) -> Option<PartitionWaker> {
        let (shard, _) = self.shared.directory.find(partition)?;
        Some(PartitionWaker { mailbox: self.shared.mailboxes[shard].clone(), partition })
    }

    /// The mailbox of the shard that `partition` runs on.
    pub(crate) fn mailbox(&self, partition: PartitionId) -> Option<Mailbox> {
        let (shard, _) = self.shared.directory.find(partition)?;
        Some(self.shared.mailboxes[shard].clone())
    }

    /// The mailboxes of all shards, in order.
    pub(crate) fn mailboxes(&self) -> Vec<Mailbox> {
        self.shared.mailboxes.clone()
    }

    /// Milliseconds on the clock that partitions are stepped with.
    pub fn now(&self) -> Millis {
        self.shared.now()
    }
}

impl Node {
    /// Starts a node without durable queues.
    pub fn start_transient(config: NodeConfig) -> Result<Node, StartError> {
        Node::start(config, Topology::new(), |wiring| {
            let log: Arc<dyn TopologyLog> = Arc::new(MemoryLog::new(wiring.changes()));
            (log, Arc::new(|_| ShardParts::without_log(Vec::new())))
        })
    }

    /// Starts a node: listens, makes its partitions, serves.
    ///
    /// See [`Node::prepare`], after which this listens.
    pub fn start(
        config: NodeConfig,
        topology: Topology,
        make: impl FnOnce(Wiring) -> (Arc<dyn TopologyLog>, MakePartitions),
    ) -> Result<Node, StartError> {
        let node = Node::prepare(config, topology, make)?;
        node.listen()?;
        Ok(node)
    }

    /// Starts a node that serves its partitions and has its addresses; connections wait in the
    /// kernel until [`Node::listen`].
    ///
    /// `make` is called once, before any thread starts, and gives the log that decides about the
    /// topology and the maker of each shard's durable partitions. Errors leave nothing running.
    pub fn prepare(
        config: NodeConfig,
        topology: Topology,
        make: impl FnOnce(Wiring) -> (Arc<dyn TopologyLog>, MakePartitions),
    ) -> Result<Node, StartError> {
        config.check()?;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        let all = config.listen.iter().map(|a| (a, false)).chain(config.listen_tls.iter().map(|a| (a, true)));
        for (address, tls) in all {
            let failed = |source| StartError::Listen { address: *address, source };
            let listener: TcpListener = listener::bind(*address).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push((listener, Door { proxy: config.proxied.contains(address), tls }));
        }
        let shards = config.shards;
        let shared = Arc::new(Shared {
            amqp: Arc::new(without_certificate(&config.amqp)),
            amqp_certified: Arc::new(config.amqp.clone()),
            amqp_own: Arc::new(ConnectionConfig { mechanisms: vec![Mechanism::External], ..config.amqp.clone() }),
            tls: RwLock::new(None),
            door_closes: Notify::new(),
            directory: Directory::new(shards, &config.placement),
            mailboxes: (0..shards).map(|_| Mailbox::default()).collect(),
            gauges: (0..shards).map(|_| Gauge::default()).collect(),
            draining: AtomicBool::new(false),
            version: AtomicU64::new(topology.version()),
            topology: RwLock::new(topology),
            log: OnceLock::new(),
            is_tracing: AtomicBool::new(false),
            traced: RwLock::new(Vec::new()),
            pattern_turn: tokio::sync::Mutex::new(()),
            alarms: AtomicU8::new(0),
            memory_alarm: AtomicBool::new(false),
            are_keys_full: AtomicBool::new(false),
            sessions: Common {
                settings: Settings {
                    node_name: config.node_name.clone(),
                    loopback_users: config.loopback_users.clone(),
                    anonymous_user: config.anonymous_user.clone(),
                    consumer_timeout_ms: config.consumer_timeout_ms,
                    stamps: config.stamps.clone(),
                    tells_events: config.event_vhost.is_some(),
                },
                logins: Logins::new(config.login_limits),
                occupancy: Arc::default(),
                histories: Histories::new(config.transient_bytes_max / HISTORIES_SHARE),
                sums: Sums {
                    limits: Limits::new(
                        config.amqp.assembling_bytes_max as u64,
                        config.user_bytes_max,
                        config.transient_bytes_max,
                    ),
                    waiting_max: config.transient_bytes_max / WAITING_SHARE,
                    ..Sums::default()
                },
            },
            next_partition: AtomicUsize::new(0),
            open_partitions: RwLock::default(),
            start: Instant::now(),
            config,
        });
        shared.note_partitions(&shared.topology());
        let (log, make_partitions) = make(Wiring { shared: shared.clone() });
        assert!(shared.log.set(log).is_ok(), "the log is set once");
        let node = Node { shared, addresses, listeners: Mutex::new(listeners), threads: Mutex::new(Vec::new()) };
        for index in 0..shards {
            let parts = Parts { index, shared: node.shared.clone(), make_partitions: make_partitions.clone() };
            let thread = std::thread::Builder::new().name(format!("shard-{index}")).spawn(move || thread::run(parts));
            match thread {
                Ok(thread) => node.lock_threads().push(thread),
                Err(source) => {
                    node.drain();
                    return Err(StartError::Thread { source });
                }
            }
        }
        Ok(node)
    }

    /// Makes the event exchange, if there is to be one. Blocks until that is decided. Errors: its
    /// virtual host is not there.
    pub(crate) fn make_event_exchange(&self) -> Result<(), StartError> {
        let Some(name) = &self.shared.config.event_vhost else { return Ok(()) };
        let config = |why: &str| StartError::Config { what: format!("event_exchange_vhost = {name:?}: {why}") };
        let vhost = self.shared.topology().vhost(name.as_bytes());
        let vhost = vhost.ok_or_else(|| config("there is no such virtual host; name one that is there, or none"))?;
        let declare = DeclareExchange {
            vhost,
            name: EVENT_EXCHANGE.into(),
            kind: ExchangeType::Topic,
            durable: true,
            auto_delete: false,
            internal: true,
            arguments: Table::new(),
        };
        let (sender, decided) = mpsc::channel();
        self.shared.log().propose(Change::DeclareExchange(declare), Answer::to_waiter(sender));
        match decided.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(refusal)) => Err(config(&refusal.to_string())),
            Err(_) => Err(config("nobody decided about its exchange")),
        }
    }

    /// Takes connections from now on. Errors: a thread cannot be started; the node is drained then.
    pub fn listen(&self) -> Result<(), StartError> {
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        let (open, doors): (Vec<_>, Vec<_>) = listeners.into_iter().partition(|(_, door)| door.is_open());
        open.into_iter().for_each(|(listener, _)| self.shared.mailboxes[0].send(Parcel::Listen(listener)));
        if doors.is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("acceptor".to_owned());
        match thread.spawn(move || acceptor::run(doors, &shared)) {
            Ok(thread) => self.lock_threads().push(thread),
            Err(source) => {
                self.drain();
                return Err(StartError::Thread { source });
            }
        }
        Ok(())
    }

    /// Uses these certificates for connections to come; those that are open keep theirs. Errors:
    /// the file that is wrong, and what was used before stays in use.
    pub fn use_tls(&self, files: &TlsFiles) -> Result<(), TlsError> {
        let (config, ends) = (tls::load(files)?, tls::ends(files)?);
        *self.shared.tls.write().unwrap_or_else(PoisonError::into_inner) = Some((config, ends));
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The addresses that are listened on, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Raises or ends an alarm: while one is on, publishers are blocked and consumers go on.
    pub fn set_alarm(&self, alarm: Alarm, on: bool) {
        self.shared.set_alarm(alarm, on);
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Bytes that messages of transient queues pin.
    pub fn transient_bytes(&self) -> u64 {
        self.shared.gauges.iter().map(|g| g.memory_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Ends the node gracefully: no new connections, `connection.close` with 320 to all there are,
    /// what they were owed is written; what they set in motion comes to rest; then the threads end.
    /// Blocks until that is done, at most a little more than [`DRAIN_TIMEOUT_MS`] for the clients,
    /// and as long again where something does not come to rest.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared.door_closes.notify_one();
        let threads = std::mem::take(&mut *self.lock_threads());
        // Where the start failed not all shards have a thread; beside theirs there is that of the
        // acceptor.
        let mailboxes = &self.shared.mailboxes[..threads.len().min(self.shared.mailboxes.len())];
        let until = self.shared.now() + DRAIN_TIMEOUT_MS;
        drain::clients(mailboxes, until, Duration::from_millis(DRAIN_TIMEOUT_MS));
        drain::rest(mailboxes);
        mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::Drain(DrainStep::End)));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a shard thread panicked");
            }
        }
        // A peer's kernel may need a moment to take what was written last; closing sockets do not
        // lose it.
        std::thread::sleep(Duration::from_millis(1));
    }

    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

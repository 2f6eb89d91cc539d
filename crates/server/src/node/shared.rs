//! What the threads of a node share.
//!
//! Invariant: nothing here is locked on the road of a message but the topology, to be looked at.

use super::alarms::{Alarm, AlarmSwitches};
use super::config::NodeConfig;
use super::memory::{MemoryBudget, Taken};
use super::offers::{Certificates, Offers};
use super::topology_lease::TopologyLease;
use super::topology_view::{Changed, Look, TopologyView};
use super::traced::Traced;
use crate::cluster::Links;
use crate::connection::Untaken;
use crate::listener::Listeners;
use crate::passwords::Passwords;
use crate::patterns::PatternTurn;
use crate::shard::{Mailbox, Outsider, Parcel};
use crate::spans::Spans;
use crate::tls::PeerCertificates;
use crate::tokens::Tokens;
use crate::topology_log::{Answer, TopologyLog};
use amqp::Millis;
use broker::topology::{
    Applied, BrokerEvent, Command as Change, Effect, HashAlgorithm, LeaderLocator, Malformed, Name, PlacedPartition,
    Placement, Refusal, Topology,
};
use broker::{ChannelKey, NodeNumber, PartitionId, QueueId, VhostId};
use partition::{Command, ReplyRooms, RequestId};
use session::{Common, Histories, Limits, Logins, Settings, Sums};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use switch::{Directory, Follower, Leaders, Placing, Tell};
use tokio::sync::{Notify, watch};

/// The part of `transient_bytes_max` that the histories of all `x-recent-history` exchanges may
/// take: one in so many.
const HISTORIES_SHARE: u64 = 8;
/// The share of the budget for messages in memory that frames may take which wait for their turn.
const WAITING_SHARE: u64 = 16;

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

/// See the module.
pub(crate) struct Shared {
    pub(crate) config: NodeConfig,
    pub(crate) topology: TopologyView,
    /// Whether it is all that anybody was answered.
    pub(crate) lease: TopologyLease,
    pub(crate) alarms: AlarmSwitches,
    pub(crate) memory: MemoryBudget,
    /// What clients were sent and have not read.
    pub(crate) untaken: Untaken,
    pub(crate) offers: Offers,
    pub(crate) certificates: Certificates,
    pub(crate) management_certificates: Certificates,
    /// What is told of those that clients showed.
    pub(crate) peer_certificates: PeerCertificates,
    pub(crate) traced: Traced,
    /// Which shard each partition runs on.
    pub(crate) directory: Directory,
    /// Who leads them, as far as this node has heard.
    pub(crate) leaders: Leaders,
    /// The links to other nodes; not there on a node that is alone.
    pub(crate) links: OnceLock<Links>,
    /// The ways into the shards, in order.
    pub(crate) mailboxes: Vec<Mailbox>,
    /// What the shards tell of themselves, in order.
    pub(crate) gauges: Vec<Gauge>,
    /// What the sessions of all shards have in common.
    pub(crate) sessions: Common,
    /// Where slow hashes of passwords are looked at.
    pub(crate) passwords: Passwords,
    /// Where tokens are looked at, if any are taken.
    pub(crate) tokens: Option<Tokens>,
    /// Where spans of traced messages go, if any are made.
    pub(crate) spans: Option<Spans>,
    log: OnceLock<Arc<dyn TopologyLog>>,
    /// Held by the one change under way whose patterns were weighed, until it is decided.
    pub(crate) pattern_turn: tokio::sync::Mutex<PatternTurn>,
    /// Durable queues that this node found a partition for.
    queues_placed: AtomicUsize,
    /// Queues that came and went while this node led them.
    pub(crate) queues_created: AtomicU64,
    pub(crate) queues_deleted: AtomicU64,
    pub(crate) draining: AtomicBool,
    /// The node ends: what takes definitions in stops between two changes.
    pub(crate) ends_imports: AtomicBool,
    /// Whether somebody looks after the node, so that it serves no clients and is to lead nothing.
    pub(crate) rests: watch::Sender<bool>,
    /// Where clients connect.
    pub(crate) listeners: watch::Sender<Listeners>,
    /// The operator has it leave its cluster: that it is forgotten is what was asked for.
    pub(crate) leaves: AtomicBool,
    /// Tells the acceptor that the node drains.
    pub(crate) door_closes: Notify,
    start: Instant,
}

impl Shared {
    pub(super) fn new(
        config: NodeConfig,
        topology: Topology,
        (tokens, spans): (Option<Tokens>, Option<Spans>),
        start: Instant,
    ) -> Shared {
        let own = NodeNumber(config.life.node);
        let mut directory = Directory::new(config.shards, &config.placement);
        let mut topology = topology;
        if config.has_peers {
            directory = directory.among_others(own);
            topology.set_own_home(Some(own));
        }
        let settings = Settings {
            node_name: config.node_name.clone(),
            loopback_users: config.loopback_users.clone(),
            anonymous_user: config.anonymous_user.clone(),
            consumer_timeout_ms: config.consumer_timeout_ms,
            stamps: config.stamps.clone(),
            tells_events: config.event_vhost.is_some(),
            takes_passwords: config.takes_passwords,
            takes_tokens: tokens.is_some(),
        };
        let assembling = config.amqp.assembling_bytes_max as u64;
        let sums = Sums {
            limits: Limits::new(assembling, config.user_bytes_max, config.transient_bytes_max),
            waiting_max: config.transient_bytes_max / WAITING_SHARE,
            replies: Arc::new(ReplyRooms::new(assembling, config.transient_bytes_max)),
            ..Sums::default()
        };
        let leaders = match config.has_peers {
            true => Leaders::among_others(own, directory.durable().last().unwrap_or(PartitionId(0))),
            false => Leaders::alone(own),
        };
        let histories = Histories::new(config.transient_bytes_max / HISTORIES_SHARE);
        let logins = Logins::new(config.login_limits);
        Shared {
            topology: TopologyView::new(topology),
            lease: TopologyLease::new(config.has_peers),
            alarms: AlarmSwitches::default(),
            memory: MemoryBudget::new(config.transient_bytes_max),
            untaken: Untaken::new(config.transient_bytes_max),
            offers: Offers::new(&config.amqp),
            certificates: Certificates::default(),
            management_certificates: Certificates::default(),
            peer_certificates: PeerCertificates::default(),
            traced: Traced::new(spans.is_some()),
            mailboxes: (0..config.shards).map(|_| Mailbox::default()).collect(),
            gauges: (0..config.shards).map(|_| Gauge::default()).collect(),
            sessions: Common { settings, logins, occupancy: Arc::default(), histories, sums },
            leaders,
            links: OnceLock::new(),
            directory,
            passwords: Passwords::new(config.shards, Duration::from_secs(config.known_passwords_s), config.on_quiet),
            tokens,
            spans,
            log: OnceLock::new(),
            pattern_turn: tokio::sync::Mutex::default(),
            queues_placed: AtomicUsize::new(0),
            queues_created: AtomicU64::new(0),
            queues_deleted: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            ends_imports: AtomicBool::new(false),
            rests: watch::Sender::new(false),
            listeners: watch::Sender::default(),
            leaves: AtomicBool::new(false),
            door_closes: Notify::new(),
            start,
            config,
        }
    }

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
    pub(crate) fn topology(&self) -> Look<'_> {
        self.topology.read()
    }

    /// A copy of its replicated part, to work with for long: whoever changes the topology waits only while the snapshot is written.
    pub(crate) fn topology_copy(&self) -> Topology {
        let (snapshot, home) = {
            let topology = self.topology();
            (topology.encode_snapshot(), topology.own_home().map(|home| home.node))
        };
        let mut copy = Topology::decode_snapshot(&snapshot).expect("a topology reads what it wrote");
        copy.set_own_home(home);
        copy
    }

    /// Makes a change by `apply` or `apply_local` of the topology, has partitions told before
    /// anybody sees it, and tells the event exchange of it if it `is_own`: what another node wanted
    /// that one tells. What else follows is to be carried out.
    pub(crate) fn change_topology(
        &self,
        change: &Change,
        apply: fn(&mut Topology, &Change) -> Applied,
        is_own: bool,
        tell: &impl Tell,
    ) -> Applied {
        let tells = is_own && self.tells_events();
        let Changed { applied, events } = self.topology.change(change, apply, tells, tell);
        events.into_iter().for_each(|event| self.tell(event));
        self.count_queues(&applied.effects);
        applied
    }

    /// Counts the queues that come and go; every node hears of each, and its leader counts it.
    fn count_queues(&self, effects: &[Effect]) {
        let is_own = |partition| self.leaders.leader(partition) == Some(self.leaders.own());
        for effect in effects {
            let (partition, counter) = match effect {
                Effect::QueueCreated { partition, .. } => (*partition, &self.queues_created),
                Effect::QueueDeleted { partition, .. } => (*partition, &self.queues_deleted),
                _ => continue,
            };
            if is_own(partition) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes over a snapshot; see [`TopologyView::install`].
    pub(crate) fn install_topology(&self, snapshot: &[u8]) -> Result<Vec<Effect>, Malformed> {
        self.topology.install(snapshot, self)
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
        let applied = self.change_topology(change, Topology::apply_local, true, self);
        self.carry_out(&applied.effects);
        applied
    }

    /// Does what follows from a change for others than partitions.
    pub(crate) fn carry_out(&self, effects: &[Effect]) {
        switch::follow(effects, self);
    }

    /// Has the member of the topology's group ask the other nodes whether it knows all, though it may not have for a while.
    #[cold]
    pub(crate) fn ask_lease(&self) {
        self.cross(node::TOPOLOGY, switch::Parcel::Wake(node::TOPOLOGY));
    }

    fn cross(&self, partition: PartitionId, parcel: switch::Parcel<Outsider>) {
        if let Some((shard, _)) = self.directory.find(partition) {
            self.mailboxes[shard].cross(parcel);
        }
    }

    pub(super) fn set_log(&self, log: Arc<dyn TopologyLog>) {
        assert!(self.log.set(log).is_ok(), "the log is set once");
    }

    /// What decides about replicated changes.
    pub(crate) fn log(&self) -> &Arc<dyn TopologyLog> {
        self.log.get().expect("the log is set before the first thread starts")
    }

    /// Proposes a replicated change that somebody asks for. While the disk is low, what would make
    /// the log and its checkpoints grow is refused: settles, purges and deletes need the room that
    /// is left, and make more.
    pub(crate) fn propose(&self, change: Change, answer: Answer) {
        // The log grows on all nodes.
        if self.alarms.read_all().disk && change.is_growth(&self.topology()) {
            return answer.send(Applied { outcome: Err(Refusal::low_on_disk()), effects: Vec::new() });
        }
        self.log().propose(change, answer);
    }

    /// How a password is hashed that is set now: as all nodes can read it.
    pub(crate) fn hashing(&self) -> HashAlgorithm {
        match self.config.password_hashing {
            HashAlgorithm::Argon2id if !self.topology().keeps_argon2id() => HashAlgorithm::Sha256,
            chosen => chosen,
        }
    }

    /// The partition for a new durable queue; one that this node leads, if somebody says which.
    pub(crate) fn place_queue(&self, placement: &Placement, at: Option<NodeNumber>) -> Option<PartitionId> {
        let turn = self.queues_placed.fetch_add(1, Ordering::Relaxed);
        let here = self.partitions_here(placement);
        let asked = at.map(|_| Placement {
            leader_locator: Some(LeaderLocator::ClientLocal),
            ..here.as_ref().unwrap_or(placement).clone()
        });
        let linked = self.links.get().map(Links::linked).unwrap_or_default();
        let placing = Placing {
            own: at.unwrap_or_else(|| self.leaders.own()),
            locator: self.config.leader_locator,
            leader: |partition| self.leaders.leader(partition),
            // Who is in maintenance mode is about to go.
            is_reached: |node| node == self.leaders.own() || linked.contains(&node) && !self.leaders.rests(node),
        };
        placing.choose(asked.as_ref().or(here.as_ref()).unwrap_or(placement), turn)
    }

    /// The same, where not only the map decides: without one queues live where there is a partition, and what is
    /// damaged on a node that is alone takes none.
    fn partitions_here(&self, placement: &Placement) -> Option<Placement> {
        let is_whole = |id: PartitionId| !self.config.quarantined.contains(&id);
        let has_peers = self.leaders.has_peers();
        let among = match placement.is_mapped {
            true if has_peers || self.config.quarantined.is_empty() => return None,
            true => placement.among.iter().filter(|placed| is_whole(placed.partition)).cloned().collect(),
            false => {
                // Of the others this node may have nothing.
                let is_there = |id: &PartitionId| !has_peers || self.leaders.leader(*id).is_some();
                let durable = self.directory.durable().filter(|id| id.0 != 0 && is_whole(*id));
                durable.filter(is_there).map(PlacedPartition::there).collect()
            }
        };
        Some(Placement { among, ..placement.clone() })
    }

    /// The newest partition.
    pub(crate) fn last_partition(&self) -> PartitionId {
        self.topology().partitions().map(|(id, _)| id).last().unwrap_or_default()
    }

    /// Whether all partitions that came behind one are led, as far as this node has heard: each elects its first leader
    /// once it is there.
    pub(crate) fn are_led_behind(&self, last: PartitionId) -> bool {
        let topology = self.topology();
        let mut new = topology.partitions().filter(|(id, _)| *id > last && topology.is_missed(*id));
        !self.leaders.has_peers() || new.all(|(id, _)| self.leaders.leader(id).is_some())
    }

    /// The partition that answers a sync for the whole node.
    pub(crate) fn sync_partition(&self) -> PartitionId {
        self.directory.durable().next().unwrap_or_else(|| self.directory.in_memory(0))
    }

    /// Has the node serve no clients and lead nothing from now on, or all of it again.
    pub(crate) fn rest(&self, on: bool) {
        if self.rests.send_replace(on) == on {
            return;
        }
        self.leaders.rest(self.leaders.own(), on);
        self.tell_nodes(|| vec![self.rest_news()]);
        match on {
            true => {
                let linked = self.links.get().map(|links| links.linked()).unwrap_or_default();
                match linked.into_iter().any(|node| !self.leaders.rests(node)) {
                    true => tracing::warn!(
                        "put into maintenance mode: clients are closed, none is let in, and others are to lead"
                    ),
                    false => tracing::warn!(
                        "put into maintenance mode: clients are closed, and none is let in; what it leads it goes on leading, as no \
                         other node is there that is not in maintenance mode"
                    ),
                }
                self.mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::CloseClients));
            }
            false => tracing::info!("back from maintenance mode: clients are let in, and it may lead"),
        }
    }

    /// Raises or ends an alarm.
    pub(crate) fn set_alarm(&self, alarm: Alarm, on: bool) {
        if !self.alarms.set(alarm, on) {
            return;
        }
        match on {
            true => tracing::warn!(?alarm, "alarm raised: publishers are blocked, consumers go on"),
            false => tracing::warn!(?alarm, "alarm over: publishers go on"),
        }
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(Parcel::Alarms));
        self.tell_nodes(|| vec![self.alarm_news()]);
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
        let messages = self.gauges.iter().map(|gauge| gauge.memory_bytes.load(Ordering::Relaxed)).sum();
        let begun = self.unfinished_bytes() + self.sessions.histories.bytes();
        if let Some(on) = self.memory.check(Taken { messages, begun, keys: self.key_bytes() }) {
            self.set_alarm(Alarm::Memory, on);
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

    /// Whether a shard has as much proposed and unwritten as it may, together with what is on its
    /// way to it: a shard that waits for its disk takes nothing out of its mailbox. `more` bytes have not come so far.
    #[inline]
    pub(crate) fn is_loaded(&self, shard: usize, more: u64) -> bool {
        let unwritten = self.gauges[shard].unwritten_bytes.load(Ordering::Relaxed);
        unwritten + self.mailboxes[shard].bytes() + more > self.config.unwritten_bytes_max
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

    fn look(&self, partition: PartitionId) {
        if self.directory.find(partition).is_none() {
            // So many partitions came and went since it was started.
            tracing::warn!(partition = partition.0, "a new partition finds no place here: start the node again");
        }
        self.cross(partition, switch::Parcel::Look(partition));
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

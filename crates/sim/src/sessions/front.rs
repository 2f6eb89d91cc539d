//! What sessions see of a simulated node: its topology, its partitions, its clock, and the chance
//! of the seed.
//!
//! Invariant: as on a shard of the server, nothing is decided here, and what a session wants done
//! leaves in its order. What leaves waits in a list: the world carries it to the partitions, at
//! once or late.

use crate::bug::Bug;
use crate::node::{EPOCH_MS, Node};
use crate::random::Random;
use crate::schedule::{MS, Micros};
use amqp::{Millis, Table};
use broker::topology::{
    Applied, BrokerEvent, Command as Change, CommandReply, LeaderLocator, Name, Placement, Refusal, Topology,
};
use broker::{ChannelKey, ConsumerKey, NodeLife, NodeNumber, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use node::{Announcing, Knowledge};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Reply, RequestId};
use session::{
    Admitted, Asker, Common, Count, DeleteQueue, Deletion, Histories, Host, Ledger, Limits, LoginLimits, Logins,
    PasswordCheck, Sampler, Settings, Span, Sums, TopologyKnown, Verdict,
};
use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use switch::{ConnectionKeys, Directory, Follower, Leaders, Outsider, Parcel, Placing, Surroundings, Switch, Tell};

/// Durable partitions of a node, beside the topology's group.
pub(super) const PARTITIONS: u32 = 3;

/// A connection.
pub(super) type ConnectionId = u64;

/// Nobody asks from outside.
#[derive(Debug)]
pub(super) struct NoOutsider;

impl Outsider for NoOutsider {
    fn answer(self, _: Result<Reply, Refusal>) {}
}

/// What leaves a session or a switch for somewhere else than a partition.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // There are few.
pub(super) enum Sent {
    Propose(u64, Change),
    CatchUp(u64),
    /// To one of the node's shards.
    Mail(usize, Parcel<NoOutsider>),
    /// For a channel of a connection.
    Hear(ConnectionId, (ChannelKey, u16), Effect),
    HearDecided(ConnectionId, (ChannelKey, u16), RequestId, Result<CommandReply, Refusal>),
    /// A consumer of a connection was passed over.
    Starve(ConnectionId, ConsumerKey),
    /// Somebody else leads these partitions, as a shard has heard.
    HoldAgain(usize, Vec<PartitionId>),
    /// A wrong host says something to a channel that no partition said.
    Effect(Effect),
}

/// Who hears what the topology decides: which shard, and whom there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposer {
    pub(super) shard: usize,
    pub(super) channel: ChannelKey,
    pub(super) request: RequestId,
}

/// A shard between its connections and its partitions.
pub(super) struct Crossroads {
    pub(super) switch: Switch<ConnectionId, NoOutsider>,
    pub(super) mailbox: RefCell<VecDeque<Parcel<NoOutsider>>>,
    /// Its task is on its way.
    pub(super) is_due: Cell<bool>,
    /// When it looks for leaders again by itself.
    pub(super) looks_at: Cell<Micros>,
}

/// A node's side of its clients, for one life of it.
pub(super) struct Front {
    pub(super) life: NodeLife,
    pub(super) directory: Directory,
    pub(super) has_peers: bool,
    pub(super) common: Common,
    pub(super) ledger: Ledger,
    pub(super) shards: Vec<Crossroads>,
    /// Which channel asked for what a shard asked under its own key, and for the end of which queue,
    /// for a host that forgets who is gone.
    pub(super) asked_for: RefCell<BTreeMap<(ChannelKey, RequestId), ChannelKey>>,
    pub(super) askers: RefCell<BTreeMap<QueueId, ChannelKey>>,
    /// Who consumes from which queue, for a host that lets a get go ahead of them.
    consumers: RefCell<Vec<(QueueId, ConsumerKey)>>,
    /// The keys of each connection's channels.
    keys: RefCell<BTreeMap<ConnectionId, Cell<ConnectionKeys>>>,
    pub(super) proposers: RefCell<BTreeMap<u64, Proposer>>,
    pub(super) sent: RefCell<Vec<Sent>>,
    /// Clients are let in.
    pub(super) is_open: bool,
    /// What the node has decided before it lets clients in, unless it is alone; what of that is next,
    /// and under which number that is asked for.
    /// A node that the map knows from the start announces nothing.
    pub(super) announcing: Option<Announcing>,
    /// How much of what such a node has decided instead was.
    pub(super) known_said: u32,
    pub(super) to_say: Option<Change>,
    pub(super) said: Option<u64>,
    pub(super) leaders: Leaders,
    /// Publishers are held back.
    pub(super) is_alarmed: Cell<bool>,
    /// When what was handed to a partition last arrives there, and what it said last at the switch.
    pub(super) to_partition: BTreeMap<PartitionId, Micros>,
    pub(super) from_partition: BTreeMap<PartitionId, Micros>,
    /// Whom each partition said last to follow.
    pub(super) told_leaders: BTreeMap<PartitionId, (Option<NodeNumber>, u64)>,
    dice: RefCell<Random>,
    base: u64,
    last: Cell<u64>,
    placed: Cell<u32>,
    /// What it does wrong.
    pub(super) bug: Option<Bug>,
}

impl Front {
    /// For a node that starts, and has its partitions where `directory` says. `start` is a number that
    /// no other start of any node has.
    pub(super) fn new(
        life: NodeLife,
        directory: Directory,
        has_peers: bool,
        announcing: Option<Announcing>,
        random: Random,
        bug: Option<Bug>,
    ) -> Front {
        let settings = Settings {
            node_name: "leveret@sim".to_owned(),
            loopback_users: Vec::new(),
            anonymous_user: "guest".to_owned(),
            consumer_timeout_ms: 0,
            stamps: None,
            tells_events: false,
            takes_passwords: true,
            takes_tokens: false,
        };
        let sums = Sums { limits: Limits::new(64 << 20, 64 << 20, 1 << 30), waiting_max: 1 << 20, ..Sums::default() };
        let (logins, histories) = (Logins::new(LoginLimits::default()), Histories::new(1 << 20));
        let own = NodeNumber(life.node);
        let leaders = match has_peers {
            true => Leaders::among_others(own, PartitionId(PARTITIONS)),
            false => Leaders::alone(own),
        };
        if bug == Some(Bug::MapIsOfThePast) {
            leaders.know_members();
        }
        let crossroads = |index: usize| {
            let members = 1 + directory.durable().filter(|id| shard_of(&directory, *id) == index).count();
            let switch = Switch::new(life, index, directory.clone(), leaders.clone(), members);
            Crossroads { switch, mailbox: RefCell::default(), is_due: Cell::new(false), looks_at: Cell::new(0) }
        };
        Front {
            life,
            directory: directory.clone(),
            has_peers,
            ledger: Ledger::default(),
            common: Common { settings, logins, occupancy: Arc::default(), histories, sums },
            shards: (0..directory.shards()).map(crossroads).collect(),
            asked_for: RefCell::default(),
            askers: RefCell::default(),
            consumers: RefCell::default(),
            keys: RefCell::default(),
            proposers: RefCell::default(),
            sent: RefCell::default(),
            is_open: false,
            announcing,
            known_said: 0,
            to_say: None,
            said: None,
            leaders,
            is_alarmed: Cell::new(false),
            to_partition: BTreeMap::new(),
            from_partition: BTreeMap::new(),
            told_leaders: BTreeMap::new(),
            dice: RefCell::new(random),
            base: u64::from(life.start) << 32,
            last: Cell::new(0),
            placed: Cell::new(0),
            bug,
        }
    }

    /// The shard that something from another node is for.
    pub(super) fn shard_for(&self, partition: PartitionId, forward: &Forward) -> Option<usize> {
        switch::shard_for(self.life, partition, forward, &self.directory)
    }

    /// The switch of the shard that a partition runs on.
    pub(super) fn switch_of(&self, partition: PartitionId) -> &Switch<ConnectionId, NoOutsider> {
        &self.shards[shard_of(&self.directory, partition)].switch
    }

    /// The partition at a place of a shard.
    pub(super) fn partition_at(&self, shard: usize, place: usize) -> PartitionId {
        let is_it = |id: &PartitionId| self.directory.find(*id) == Some((shard, place));
        self.directory.durable().find(is_it).unwrap_or_else(|| self.directory.in_memory(shard))
    }

    /// A number that nothing else on any node has.
    pub(super) fn next(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.base | self.last.get()
    }

    fn send(&self, sent: Sent) {
        self.sent.borrow_mut().push(sent);
    }
}

/// The shard that a partition of this node runs on.
pub(super) fn shard_of(directory: &Directory, partition: PartitionId) -> usize {
    directory.find(partition).expect("a partition of this node").0
}

/// One call of a session or a switch.
pub(super) struct Desk<'a> {
    pub(super) front: &'a Front,
    pub(super) node: RefCell<&'a mut Node>,
    pub(super) now: Micros,
    /// The shard that is called.
    pub(super) shard: usize,
    /// The connection whose session is called.
    pub(super) connection: ConnectionId,
}

impl Desk<'_> {
    pub(super) fn switch(&self) -> &Switch<ConnectionId, NoOutsider> {
        &self.front.shards[self.shard].switch
    }

    pub(super) fn topology(&self) -> impl Deref<Target = Topology> {
        Ref::map(self.node.borrow(), |node| node.topology().expect("a node that is called is up"))
    }

    fn dice(&self) -> u64 {
        self.front.dice.borrow_mut().next()
    }

    /// Something for a partition, if it runs on this node.
    fn cross(&self, partition: PartitionId, parcel: Parcel<NoOutsider>) {
        if let Some((shard, _)) = self.front.directory.find(partition) {
            self.front.send(Sent::Mail(shard, parcel));
        }
    }
}

/// What the log decided comes to partitions by the mailbox of their shard.
impl Tell for Desk<'_> {
    fn declare(&self, partition: PartitionId, queue: QueueId) {
        self.cross(partition, Parcel::Declare(partition, queue));
    }

    fn look(&self, partition: PartitionId) {
        self.cross(partition, Parcel::Look(partition));
    }

    fn command(&self, partition: PartitionId, command: Command) {
        let is_rules = matches!(command, Command::Configure { .. });
        if !is_rules || self.front.bug != Some(Bug::RulesAreForgotten) || self.front.is_open {
            self.cross(partition, Parcel::Command(partition, command));
        }
    }
}

impl Follower for Desk<'_> {
    fn topology(&self) -> impl Deref<Target = Topology> {
        Desk::topology(self)
    }

    fn propose(&self, change: Change) {
        Surroundings::propose(self, change, ChannelKey::NOBODY, RequestId(0));
    }

    fn change_locally(&self, change: &Change) {
        let applied = self.apply_local(change, self);
        switch::follow(&applied.effects, self);
    }

    fn vhost_deleted(&self, _: VhostId, _: &Name) {
        unreachable!("nobody deletes any");
    }

    fn user_deleted(&self, _: &Name) {
        unreachable!("nobody deletes any");
    }
}

impl Surroundings for Desk<'_> {
    type Connection = ConnectionId;
    type Outsider = NoOutsider;

    fn topology(&self) -> impl Deref<Target = Topology> {
        Desk::topology(self)
    }

    fn event_vhost(&self) -> Option<VhostId> {
        None
    }

    fn apply_local(&self, change: &Change, tell: &impl Tell) -> Applied {
        let mut node = self.node.borrow_mut();
        let topology = node.topology_mut().expect("a node that is called is up");
        let applied = topology.apply_local(change);
        switch::tell_partitions(&applied.effects, topology, tell);
        applied
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        let token = self.front.next();
        self.front.proposers.borrow_mut().insert(token, Proposer { shard: self.shard, channel, request });
        self.front.send(Sent::Propose(token, change));
    }

    fn vhost_deleted(&self, vhost: VhostId, name: &Name) {
        Follower::vhost_deleted(self, vhost, name);
    }

    fn user_deleted(&self, name: &Name) {
        Follower::user_deleted(self, name);
    }

    fn mail(&self, shard: usize, parcel: Parcel<NoOutsider>) {
        self.front.send(Sent::Mail(shard, parcel));
    }

    fn room(&self, _: &ConnectionId, _: ConsumerKey) -> usize {
        usize::MAX
    }

    fn settle_room(&self, _: &ConnectionId) {}

    fn starve(&self, connection: &ConnectionId, consumer: ConsumerKey) {
        self.front.send(Sent::Starve(*connection, consumer));
    }

    fn hold_again(&self, partitions: &[PartitionId]) {
        self.front.send(Sent::HoldAgain(self.shard, partitions.to_vec()));
    }

    fn hear(
        &self,
        connection: &ConnectionId,
        channel: (ChannelKey, u16),
        first: Effect,
        next: &mut dyn FnMut() -> Option<Effect>,
    ) {
        let mut effect = Some(first);
        while let Some(current) = effect {
            self.front.send(Sent::Hear(*connection, channel, current));
            effect = next();
        }
    }

    fn hear_decided(
        &self,
        connection: &ConnectionId,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<CommandReply, Refusal>,
    ) {
        self.front.send(Sent::HearDecided(*connection, channel, request, outcome));
    }

    fn passes(&self, _: PartitionId, _: &Command) {}

    fn is_loaded(&self) -> bool {
        false
    }

    fn wall_ms(&self) -> u64 {
        EPOCH_MS + self.now / MS
    }

    fn dice(&self) -> u64 {
        Desk::dice(self)
    }

    fn elapsed_us(&self) -> u64 {
        self.now
    }
}

impl Host for Desk<'_> {
    type Client = amqp::Connection;

    fn common(&self) -> &Common {
        &self.front.common
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        Desk::topology(self)
    }

    fn routes_version(&self) -> u64 {
        Desk::topology(self).version() + self.switch().reach_changes()
    }

    fn reaches(&self, node: NodeNumber) -> bool {
        let is_reached = self.front.bug != Some(Bug::HomesAreAway) || node == self.switch().leaders().own();
        is_reached && self.switch().reaches(node)
    }

    fn now(&self) -> Millis {
        self.now / MS
    }

    fn wall_ms(&self) -> u64 {
        EPOCH_MS + self.now / MS
    }

    fn random(&self) -> u128 {
        u128::from(Desk::dice(self)) << 64 | u128::from(Desk::dice(self))
    }

    fn check_password(&self, check: PasswordCheck, admit: &mut dyn FnMut() -> Admitted) -> Verdict {
        if admit() == Admitted::No {
            return Verdict::NotAdmitted;
        }
        if check.hash.matches(&check.password) { Verdict::Right } else { Verdict::Wrong }
    }

    fn check_token(&self, _: Bytes) -> bool {
        unreachable!("the settings say that no tokens are taken")
    }

    fn dice(&self) -> u64 {
        Desk::dice(self)
    }

    fn shard(&self) -> usize {
        self.shard
    }

    fn shard_of(&self, partition: PartitionId) -> Option<usize> {
        self.switch().shard_of(partition)
    }

    fn transient_partition(&self) -> PartitionId {
        self.front.directory.in_memory(self.shard)
    }

    fn place_queue(&self, placement: &Placement) -> Option<PartitionId> {
        self.front.placed.set(self.front.placed.get() + 1);
        if placement.is_mapped {
            let leaders = self.switch().leaders();
            let placing = Placing {
                own: leaders.own(),
                locator: LeaderLocator::ClientLocal,
                leader: |partition| leaders.leader(partition),
                is_reached: |_| true,
            };
            return placing.choose(placement, self.front.placed.get() as usize);
        }
        let placed = self.front.placed.get();
        let mut all = (0..PARTITIONS).map(|next| PartitionId(1 + (placed + next) % PARTITIONS));
        let topology = Desk::topology(self);
        all.find(|id| topology.may_place_in(*id, None))
    }

    fn sync_partition(&self) -> PartitionId {
        PartitionId(1)
    }

    fn is_tracing(&self) -> bool {
        false
    }

    fn traces(&self, _: VhostId) -> bool {
        false
    }

    fn sampler(&self) -> Option<Sampler> {
        None
    }

    fn end_span(&self, _: Box<Span>) {}

    fn drop_span(&self) {}

    fn watch(&self, _: PartitionId, _: Box<Span>) {}

    fn check_memory(&self) {}

    fn push(&self, partition: PartitionId, mut command: Command) {
        match (self.front.bug, &mut command) {
            (Some(Bug::CreditIsForgotten), Command::Stall { stalled: true, .. }) => return,
            (Some(Bug::DetachIsForgotten), Command::Detach { .. }) => return,
            (Some(Bug::HoldIsLost), Command::Hold { .. }) => return,
            (Some(Bug::ConfirmIsHasty), Command::Publish(publish)) if publish.publish_seq > 0 => {
                let (channel, first) = (publish.channel, std::mem::take(&mut publish.publish_seq));
                self.front.send(Sent::Effect(Effect::Confirm { channel, first, count: publish.count() }));
            }
            (Some(Bug::RowIsMixedUp), Command::Publish(publish)) => {
                if let Some(more) = &publish.more {
                    let bodies = more.iter().take(more.len() - 1).chain([&publish.message.body[..]]);
                    publish.more = Some(amqp::Bodies::copied(bodies).into());
                }
            }
            (Some(Bug::GetOvertakes), Command::Consume { consumer, queue, .. }) => {
                self.front.consumers.borrow_mut().push((*queue, consumer.key));
            }
            (Some(Bug::GetOvertakes), Command::Get { queue, .. }) => {
                let (queue, consumers) = (*queue, self.front.consumers.borrow());
                let stall = |stalled: bool| {
                    for (_, consumer) in consumers.iter().filter(|(of, _)| *of == queue) {
                        let command = Command::Stall { queue, consumer: *consumer, stalled };
                        self.switch().push(partition, command);
                    }
                };
                stall(true);
                self.switch().push(partition, command);
                return stall(false);
            }
            _ => {}
        }
        self.switch().push(partition, command);
    }

    fn change(&self, change: &Change) -> Applied {
        self.switch().change_locally(change, self)
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        Surroundings::propose(self, change, channel, request);
    }

    fn topology_known(&self, now: Millis) -> TopologyKnown {
        match self.node.borrow().topology_knowledge() {
            Knowledge::Until(until) if now < until => TopologyKnown::All,
            Knowledge::Until(_) if self.front.has_peers => TopologyKnown::NotYet,
            Knowledge::Until(_) => TopologyKnown::All,
            Knowledge::Vain => TopologyKnown::Vain,
        }
    }

    fn has_peers(&self) -> bool {
        self.front.has_peers
    }

    fn catch_up(&self, channel: ChannelKey, request: RequestId) {
        let token = self.front.next();
        self.front.proposers.borrow_mut().insert(token, Proposer { shard: self.shard, channel, request });
        self.front.send(Sent::CatchUp(token));
    }

    fn delete_queue(&self, delete: DeleteQueue) {
        let DeleteQueue { queue, partition, if_unused, if_empty, channel, request, insists } = delete;
        self.front.askers.borrow_mut().insert(queue, channel);
        let asker = Asker::Channel { channel, request };
        self.switch().delete_queue(Deletion { queue, partition, if_unused, if_empty, asker, insists }, self);
    }

    fn open_channel(&self, number: u16) -> ChannelKey {
        let mut keys = self.front.keys.borrow_mut();
        self.switch().open_channel(self.connection, keys.entry(self.connection).or_default(), number)
    }

    fn close_channel(&self, channel: ChannelKey) {
        self.switch().close_channel(channel);
    }

    fn is_remote(&self, partition: PartitionId) -> bool {
        self.switch().is_remote(partition)
    }

    fn is_outdated(&self, partition: PartitionId, term: u64) -> bool {
        self.front.bug != Some(Bug::OldLeaderIsHeard) && self.switch().is_outdated(partition, term)
    }

    fn note_holder(&self, partition: PartitionId) {
        self.switch().note_holder(partition);
    }

    fn drained(&self, partition: PartitionId, channel: ChannelKey, bytes: usize) {
        if self.front.bug != Some(Bug::DrainIsForgotten) {
            self.switch().drained(partition, channel, bytes);
        }
    }

    fn count(&self, _: Count, _: u64) {}

    fn elapsed_us(&self) -> u64 {
        self.now
    }

    fn note_routed(&self, _: u64) {}

    fn note_confirmed(&self, _: u64) {}

    fn count_size(&self, _: usize) {}

    fn ledger(&self) -> &Ledger {
        &self.front.ledger
    }

    fn tell(&self, _: BrokerEvent) {}

    fn emit(&self, _: VhostId, _: &'static str, _: &[u8], _: &Table, _: Bytes) {}
}

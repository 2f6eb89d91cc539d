//! What sessions see of a simulated node: its topology, its partitions, its clock, and the chance
//! of the seed.
//!
//! Invariant: as on a shard of the server, nothing is decided here, and what a session wants done
//! leaves in its order. What leaves waits in a list: the world carries it to the partitions, at
//! once or late.

use crate::bug::Bug;
use crate::node::{EPOCH_MS, Node, TRANSIENT};
use crate::random::Random;
use crate::schedule::{MS, Micros};
use amqp::{Millis, Table};
use broker::topology::{Applied, BrokerEvent, Checked, Command as Change, Effect as Followed, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use partition::{Command, Effect, Reply, RequestId};
use session::{
    Asker, Common, Count, DeleteQueue, Deleter, Deletion, Deletions, Histories, Host, Limits, LoginLimits, Logins,
    Settings, Sums,
};
use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// Durable partitions of a node.
pub(super) const PARTITIONS: u32 = 3;

/// A connection.
pub(super) type ConnectionId = u64;

/// What leaves a session, or the place where queues are deleted.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all are commands.
pub(super) enum Sent {
    Command(PartitionId, Command),
    /// A queue in memory exists from now on.
    Declare(QueueId),
    Propose(u64, Change),
    /// A channel that asked for a deletion hears of it.
    Answer(ChannelKey, RequestId, Result<Reply, Refusal>),
    /// A wrong host says something to a channel that no partition said.
    Effect(Effect),
}

/// Who hears what the topology decides.
#[derive(Clone, Copy, Debug)]
pub(super) enum Proposer {
    Channel(ChannelKey, RequestId),
    Deletion(RequestId),
    Nobody,
}

/// A node's side of its clients, for one life of it.
pub(super) struct Front {
    pub(super) common: Common,
    pub(super) channels: RefCell<BTreeMap<ChannelKey, (ConnectionId, u16)>>,
    pub(super) deletions: Deletions<()>,
    /// Which channel asked for what was asked under the node's own key, for a host that forgets who
    /// is gone.
    pub(super) asked_for: RefCell<BTreeMap<RequestId, ChannelKey>>,
    /// Who consumes from which queue, for a host that lets a get go ahead of them.
    consumers: RefCell<Vec<(QueueId, ConsumerKey)>>,
    pub(super) proposers: RefCell<BTreeMap<u64, Proposer>>,
    pub(super) sent: RefCell<Vec<Sent>>,
    /// Clients are let in.
    pub(super) is_open: bool,
    /// When what was handed to a partition last arrives there, and what it said last at the
    /// sessions.
    pub(super) to_partition: BTreeMap<PartitionId, Micros>,
    pub(super) from_partition: BTreeMap<PartitionId, Micros>,
    dice: RefCell<Random>,
    base: u64,
    last: Cell<u64>,
    placed: Cell<u32>,
    /// What it does wrong.
    pub(super) bug: Option<Bug>,
}

impl Front {
    /// For a node that starts. `lives` is a number that no other life of any node has.
    pub(super) fn new(lives: u64, random: Random, bug: Option<Bug>) -> Front {
        let settings = Settings {
            node_name: "leveret@sim".to_owned(),
            loopback_users: Vec::new(),
            anonymous_user: "guest".to_owned(),
            consumer_timeout_ms: 0,
            stamps: None,
            tells_events: false,
        };
        let sums = Sums { limits: Limits::new(64 << 20, 64 << 20, 1 << 30), waiting_max: 1 << 20, ..Sums::default() };
        let (logins, histories) = (Logins::new(LoginLimits::default()), Histories::new(1 << 20));
        Front {
            common: Common { settings, logins, occupancy: Arc::default(), histories, sums },
            channels: RefCell::default(),
            deletions: Deletions::default(),
            asked_for: RefCell::default(),
            consumers: RefCell::default(),
            proposers: RefCell::default(),
            sent: RefCell::default(),
            is_open: false,
            to_partition: BTreeMap::new(),
            from_partition: BTreeMap::new(),
            dice: RefCell::new(random),
            base: lives << 32,
            last: Cell::new(0),
            placed: Cell::new(0),
            bug,
        }
    }

    /// A number that nothing else on any node has.
    pub(super) fn next(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.base | self.last.get()
    }

    /// The key under which the node itself asks.
    pub(super) fn own(&self) -> ChannelKey {
        ChannelKey(self.base.into())
    }

    fn send(&self, sent: Sent) {
        self.sent.borrow_mut().push(sent);
    }
}

/// One call of a session, or of the place where queues are deleted.
pub(super) struct Desk<'a> {
    pub(super) front: &'a Front,
    pub(super) node: RefCell<&'a mut Node>,
    pub(super) now: Micros,
    /// The connection whose session is called.
    pub(super) connection: ConnectionId,
}

impl Desk<'_> {
    /// Has partitions do what follows from a change of the topology.
    pub(super) fn follow(&self, effects: &[Followed]) {
        for effect in effects {
            match effect {
                Followed::QueueCreated { id, partition } => {
                    if *partition == TRANSIENT {
                        self.front.send(Sent::Declare(*id));
                    }
                    self.configure(*id, true);
                }
                Followed::QueueRulesChanged { id, .. } => self.configure(*id, false),
                Followed::QueueDeleted { id, partition } => {
                    self.front.send(Sent::Command(*partition, Command::Delete { queue: *id }));
                }
                Followed::ExchangeUnused { vhost, name } => {
                    let deletion = Host::topology(self).deletion_of_unused(*vhost, name);
                    match deletion {
                        Checked::Done => {}
                        Checked::Propose(change) => self.propose_for(change, Proposer::Nobody),
                        Checked::Local(change) => drop(Host::change(self, &change)),
                    }
                }
                Followed::VhostDeleted { .. } | Followed::UserDeleted { .. } => unreachable!("nobody deletes any"),
            }
        }
    }

    /// Tells a partition the rules of a queue, if it has any.
    pub(super) fn configure(&self, queue: QueueId, is_new: bool) {
        let topology = Host::topology(self);
        let Some(found) = topology.queue(queue) else { return };
        let forgets = self.front.bug == Some(Bug::RulesAreForgotten) && !self.front.is_open;
        if (!is_new || !found.rules.is_plain()) && !forgets {
            let command = Command::Configure { queue, rules: found.rules.clone() };
            self.front.send(Sent::Command(found.partition, command));
        }
    }

    fn propose_for(&self, change: Change, proposer: Proposer) {
        let token = self.front.next();
        self.front.proposers.borrow_mut().insert(token, proposer);
        self.front.send(Sent::Propose(token, change));
    }
}

impl Host for Desk<'_> {
    type Client = amqp::Connection;

    fn common(&self) -> &Common {
        &self.front.common
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        Ref::map(self.node.borrow(), |node| node.topology().expect("a node that is called is up"))
    }

    fn topology_version(&self) -> u64 {
        Host::topology(self).version()
    }

    fn now(&self) -> Millis {
        self.now / MS
    }

    fn wall_ms(&self) -> u64 {
        EPOCH_MS + self.now / MS
    }

    fn random(&self) -> u128 {
        u128::from(self.dice()) << 64 | u128::from(self.dice())
    }

    fn dice(&self) -> u64 {
        self.front.dice.borrow_mut().next()
    }

    fn shard(&self) -> usize {
        0
    }

    fn shard_of(&self, _: PartitionId) -> Option<usize> {
        Some(0)
    }

    fn transient_partition(&self) -> PartitionId {
        TRANSIENT
    }

    fn place_queue(&self) -> Option<PartitionId> {
        self.front.placed.set(self.front.placed.get() + 1);
        Some(PartitionId(1 + self.front.placed.get() % PARTITIONS))
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

    fn check_memory(&self) {}

    fn push(&self, partition: PartitionId, mut command: Command) {
        match (self.front.bug, &mut command) {
            (Some(Bug::CreditIsForgotten), Command::Stall { stalled: true, .. }) => return,
            (Some(Bug::DetachIsForgotten), Command::Detach { .. }) => return,
            (Some(Bug::ConfirmIsHasty), Command::Publish(publish)) if publish.publish_seq > 0 => {
                let (channel, first) = (publish.channel, std::mem::take(&mut publish.publish_seq));
                self.front.send(Sent::Effect(Effect::Confirm { channel, first, count: 1 }));
            }
            (Some(Bug::GetOvertakes), Command::Consume { consumer, queue, .. }) => {
                self.front.consumers.borrow_mut().push((*queue, consumer.key));
            }
            (Some(Bug::GetOvertakes), Command::Get { queue, .. }) => {
                let (queue, consumers) = (*queue, self.front.consumers.borrow());
                let stall = |stalled: bool| {
                    for (_, consumer) in consumers.iter().filter(|(of, _)| *of == queue) {
                        let command = Command::Stall { queue, consumer: *consumer, stalled };
                        self.front.send(Sent::Command(partition, command));
                    }
                };
                stall(true);
                self.front.send(Sent::Command(partition, command));
                return stall(false);
            }
            _ => {}
        }
        self.front.send(Sent::Command(partition, command));
    }

    fn change(&self, change: &Change) -> Applied {
        let mut node = self.node.borrow_mut();
        let applied = node.topology_mut().expect("a node that is called is up").apply_local(change);
        drop(node);
        self.follow(&applied.effects);
        applied
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        self.propose_for(change, Proposer::Channel(channel, request));
    }

    fn delete_queue(&self, delete: DeleteQueue) {
        let DeleteQueue { queue, partition, if_unused, if_empty, channel, request } = delete;
        let asker = Asker::Channel { channel, request };
        self.front.deletions.begin(Deletion { queue, partition, if_unused, if_empty, asker }, self);
        let own = RequestId(self.front.base | self.front.last.get());
        self.front.asked_for.borrow_mut().insert(own, channel);
    }

    fn open_channel(&self, number: u16) -> ChannelKey {
        let key = ChannelKey(self.front.next().into());
        self.front.channels.borrow_mut().insert(key, (self.connection, number));
        key
    }

    fn close_channel(&self, channel: ChannelKey) {
        self.front.channels.borrow_mut().remove(&channel);
    }

    fn drained(&self, _: usize, _: ChannelKey, _: usize) {}

    fn count(&self, _: Count, _: u64) {}

    fn tell(&self, _: BrokerEvent) {}

    fn emit(&self, _: VhostId, _: &'static str, _: &[u8], _: &Table, _: Bytes) {}
}

impl Deleter<()> for Desk<'_> {
    fn own_channel(&self) -> ChannelKey {
        self.front.own()
    }

    fn next_request(&self) -> RequestId {
        RequestId(self.front.next())
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        Host::topology(self)
    }

    fn push(&self, partition: PartitionId, command: Command) {
        self.front.send(Sent::Command(partition, command));
    }

    fn change(&self, change: &Change) -> Applied {
        Host::change(self, change)
    }

    fn propose(&self, change: Change, request: RequestId) {
        self.propose_for(change, Proposer::Deletion(request));
    }

    fn answer(&self, asker: Asker<()>, answer: Result<Reply, Refusal>) {
        if let Asker::Channel { channel, request } = asker {
            self.front.send(Sent::Answer(channel, request, answer));
        }
    }
}

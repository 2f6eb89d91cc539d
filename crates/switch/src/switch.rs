//! A shard's switch: see the crate.
//!
//! Invariant: no borrow of a cell is held while the surroundings are called, so that a session may
//! hand out commands while it hears of something.
//!
//! In reading order: what a shard hands over and takes (here), what its partitions see of it
//! (`crossing`), where their effects go (`delivering`), who leads them (`leading`), what comes from other
//! nodes (`links`), and how queues are deleted (`deleting`).

use crate::channel_key::{ChannelKeys, ConnectionKeys};
use crate::dead_letter::AwaitedDeadLetters;
use crate::directory::Directory;
use crate::follow::{Follower, Tell, follow};
use crate::inbox::Inbox;
use crate::leaders::Leaders;
use crate::outgoing::Outgoing;
use crate::owners::Owners;
use crate::parcel::Parcel;
use crate::surroundings::{Outsider, Surroundings};
use crate::windows::RemoteWindows;
use broker::topology::{Applied, Command as Change, CommandReply, Name, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, NodeLife, NodeNumber, PartitionId, QueueId, VhostId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use node::{Intake, Waits};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Publish, Reply, RequestId};
use session::{Asker, Deleter, Deletions};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;

mod crossing;
mod deleting;
mod delivering;
mod leading;
mod links;
#[cfg(test)]
mod tests;

pub use crossing::{Crossing, Reach};

/// How often a shard with something for a partition that nobody leads looks whether somebody does.
pub const LEADERS_LOOK_MS: u64 = 10;

/// See the module. `C` is a connection of the shard, `O` somebody who is no channel.
pub struct Switch<C, O> {
    index: usize,
    directory: Directory,
    leaders: Leaders,
    pub(crate) inbox: RefCell<Inbox<O>>,
    pub(crate) keys: RefCell<ChannelKeys>,
    channels: RefCell<HashMap<ChannelKey, (C, u16), FixedState>>,
    owners: RefCell<Owners>,
    /// Whom partitions of this shard follow now, and the others have not heard.
    noted: RefCell<Vec<(PartitionId, Option<NodeNumber>, u64)>>,
    /// Those whose members are heard no more, since others were told of leaders last.
    turned: RefCell<Vec<PartitionId>>,
    /// Partitions of this shard that lead, where others could, and in which term.
    leading: RefCell<Vec<(PartitionId, u64)>>,
    remote: RefCell<RemoteWindows>,
    /// Connections with room reserved in this step, and channels of other shards likewise.
    reserved: RefCell<Vec<C>>,
    reserved_remote: RefCell<Vec<ChannelKey>>,
    /// Who waits for what the shard asked partitions for somebody who is no channel.
    asked: RefCell<HashMap<RequestId, O, FixedState>>,
    /// Deletions of queues that are under way here.
    deletions: Deletions<O>,
    last_request: Cell<u64>,
    reach_changes: Cell<u64>,
    /// Queues with numbers below this the partitions of this shard have been told of, or will be before whatever is handed to
    /// them now.
    next_queue: Cell<QueueId>,
    /// Dead letters on their way.
    pub(crate) outgoing: RefCell<Outgoing>,
    /// Dead letters that their queues wait for.
    pub(crate) awaited: RefCell<AwaitedDeadLetters>,
    /// Empty memory for what is left to be heard of one answer.
    pub(crate) left_to_hear: RefCell<VecDeque<Effect>>,
}

impl<C, O> Switch<C, O> {
    /// The switch of a shard with `members` partitions, in this life of its node.
    pub fn new(life: NodeLife, index: usize, directory: Directory, leaders: Leaders, members: usize) -> Self {
        let keys = ChannelKeys::new(life, index);
        let outgoing = RefCell::new(Outgoing::new(directory.shards()));
        Switch {
            index,
            inbox: RefCell::new(Inbox::new(index, keys.own(), directory.clone(), leaders.clone(), members)),
            directory,
            leaders,
            keys: RefCell::new(keys),
            channels: RefCell::default(),
            owners: RefCell::default(),
            noted: RefCell::default(),
            turned: RefCell::default(),
            leading: RefCell::default(),
            remote: RefCell::default(),
            reserved: RefCell::default(),
            reserved_remote: RefCell::default(),
            asked: RefCell::default(),
            deletions: Deletions::default(),
            last_request: Cell::new(0),
            reach_changes: Cell::new(0),
            next_queue: Cell::new(QueueId(0)),
            outgoing,
            awaited: RefCell::default(),
            left_to_hear: RefCell::default(),
        }
    }

    /// Which shard it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What waits for partitions.
    pub fn inbox(&self) -> &RefCell<Inbox<O>> {
        &self.inbox
    }

    /// Hands a command to whoever leads a partition: here, on another shard or another node.
    #[inline]
    pub fn push(&self, partition: PartitionId, command: Command) {
        self.inbox.borrow_mut().push(partition, command);
    }

    /// A key that nobody else gets, on any node.
    pub fn next_key(&self) -> ChannelKey {
        self.keys.borrow_mut().next_key()
    }

    /// A number for a connection that nobody else gets, on any node of the cluster.
    pub fn next_connection(&self) -> u64 {
        self.directory.own_number(self.next_key().number())
    }

    /// The key under which the shard itself asks.
    pub fn own_key(&self) -> ChannelKey {
        self.keys.borrow().own()
    }

    /// Gives out a key for a channel, with this number on its connection, which hears of the
    /// channel's effects from now on. `keys` are those of the connection.
    pub fn open_channel(&self, connection: C, keys: &Cell<ConnectionKeys>, number: u16) -> ChannelKey {
        let mut of_connection = keys.get();
        let key = self.keys.borrow_mut().next_of(&mut of_connection);
        keys.set(of_connection);
        self.channels.borrow_mut().insert(key, (connection, number));
        key
    }

    /// A connection of this shard came, with its number.
    pub fn connection_came(&self, connection: u64) {
        self.owners.borrow_mut().came(connection);
    }

    /// It is gone, and all of its channels.
    pub fn connection_left(&self, connection: u64) {
        self.owners.borrow_mut().left(connection);
    }

    /// A channel is gone; late effects for it meet nobody.
    pub fn close_channel(&self, channel: ChannelKey) {
        self.channels.borrow_mut().remove(&channel);
    }

    /// The number of an open channel on its connection.
    pub fn number_of(&self, channel: ChannelKey) -> Option<u16> {
        self.channels.borrow().get(&channel).map(|(_, number)| *number)
    }

    /// A channel of this shard holds something of a partition that no consumer there stands for: leaders to come are told by
    /// [`Surroundings::hold_again`].
    pub fn note_holder(&self, partition: PartitionId) {
        self.inbox.borrow_mut().note_holder(partition);
    }

    /// A connection has written what a partition had sent one of its channels. It matters where that
    /// runs on another shard or another node.
    pub fn drained(&self, partition: PartitionId, channel: ChannelKey, bytes: usize) {
        let mut inbox = self.inbox.borrow_mut();
        if let Some(node) = self.leaders.away(partition) {
            inbox.roads.send(node, partition, Forward::Drained { channel, bytes: bytes as u64 });
            inbox.wake();
        } else if let Some((shard, _)) = self.directory.find(partition).filter(|(shard, _)| *shard != self.index) {
            inbox.push_parcel(shard, Parcel::Drained { channel, bytes });
        }
    }

    /// The shard that a partition runs on, or this one if another node has it in memory: from here
    /// it is reached over the link. `None` if it is neither.
    pub fn shard_of(&self, partition: PartitionId) -> Option<usize> {
        let here = self.directory.find(partition).map(|(shard, _)| shard);
        here.or_else(|| (self.leaders.has_peers() && partition.is_in_memory()).then_some(self.index))
    }

    /// Whether a node is this one, or there is a link to it.
    pub fn reaches(&self, node: NodeNumber) -> bool {
        !self.leaders.has_peers() || node == self.leaders.own() || self.inbox.borrow_mut().roads.road(node).is_some()
    }

    /// Grows whenever a link to another node comes or goes.
    #[inline]
    pub fn reach_changes(&self) -> u64 {
        self.reach_changes.get()
    }

    /// Whether what a partition says comes from another shard, or may come from another node.
    pub fn is_remote(&self, partition: PartitionId) -> bool {
        let is_elsewhere = self.directory.find(partition).is_none_or(|(shard, _)| shard != self.index);
        is_elsewhere || self.leaders.has_peers() && !partition.is_in_memory()
    }

    /// Whether a partition is led on this shard, as far as this node has heard.
    pub fn leads(&self, partition: PartitionId) -> bool {
        let is_here = self.directory.find(partition).is_some_and(|(shard, _)| shard == self.index);
        is_here && (partition.is_in_memory() || self.leaders.leader(partition) == Some(self.leaders.own()))
    }

    /// Whether a key is that of a shard itself, of this node or another one, and no channel's.
    pub fn is_of_shard(channel: ChannelKey) -> bool {
        crate::channel_key::is_of_shard(channel)
    }

    /// Who leads what, as far as this node has heard.
    pub fn leaders(&self) -> &Leaders {
        &self.leaders
    }

    /// The partition of what this shard has in memory.
    pub fn in_memory(&self) -> PartitionId {
        self.directory.in_memory(self.index)
    }

    /// Whether something waits here for a leader, or is to be told to one again, so that a step is wanted every
    /// [`LEADERS_LOOK_MS`]: another shard may have heard of one.
    pub fn is_leaderless(&self) -> bool {
        self.leaders.has_peers() && self.inbox.borrow().waits_for_leader()
    }

    /// Whether channels of this shard may hold something of which each new leader is to be told.
    pub fn has_holders(&self) -> bool {
        self.leaders.has_peers() && self.inbox.borrow().has_holders()
    }

    /// Whether the shard has something of its own to do without being told anything more.
    pub fn is_busy(&self) -> bool {
        self.inbox.borrow().is_woken() || !self.outgoing.borrow().is_empty()
    }

    /// The number of the shard's next own request.
    fn next_request(&self) -> RequestId {
        let request = RequestId(self.last_request.get() + 1);
        self.last_request.set(request.0);
        request
    }
}

impl<C: Clone, O: Outsider> Switch<C, O> {
    /// What comes from other nodes for queues that the topology knows now is for partitions that know them. Partitions
    /// are told by mail, before the topology shows a queue: to be called each time before the mail is taken out, and after a
    /// change of the topology; all of that mail is to be taken in before the partitions have their turn.
    pub fn look_at_queues(&self, env: &impl Surroundings<Connection = C, Outsider = O>) {
        self.next_queue.set(env.topology().next_queue());
    }

    /// Applies a change that concerns this node only, and has partitions do what follows.
    pub fn change_locally(&self, change: &Change, env: &impl Surroundings<Connection = C, Outsider = O>) -> Applied {
        At { switch: self, env }.change(change)
    }

    /// Takes what another shard or thread handed over.
    pub fn take(&self, parcel: Parcel<O>, env: &impl Surroundings<Connection = C, Outsider = O>) {
        match parcel {
            Parcel::Command(partition, command) => {
                if let Command::Detach { channel } = &command {
                    self.remote.borrow_mut().forget(*channel);
                }
                env.passes(partition, &command);
                // Whoever sent it here knows why.
                self.inbox.borrow_mut().push_here(partition, command);
            }
            Parcel::LinkUp(link) => self.link_up(link),
            Parcel::LinkDown(node) => self.link_down(node, env),
            Parcel::Forwards(node, frames) => self.take_forwards(node, frames, env),
            Parcel::Frame(partition, from, frame) => self.inbox.borrow_mut().receive(partition, from, frame),
            Parcel::Declare(partition, queue) => {
                self.inbox.borrow_mut().declare(partition, queue);
                let owner = env.topology().queue(queue).and_then(|queue| queue.exclusive);
                if partition == self.in_memory() && self.owners.borrow().have_left(owner) {
                    self.delete_abandoned(queue, env);
                }
            }
            Parcel::Effect(partition, effect) => {
                let mut heard = Vec::new();
                self.hear(partition, effect, &mut heard);
                self.deliver(heard.into_iter(), None, env);
            }
            Parcel::Starved { consumer } => self.pass_over(consumer, env),
            Parcel::Drained { channel, bytes } => self.remote.borrow_mut().drained(channel, bytes),
            Parcel::Decided { channel, request, outcome } => {
                if channel == self.own_key() {
                    self.deletions.decided(request, outcome, &At { switch: self, env });
                } else if let Some((connection, number)) = self.connection_of(channel) {
                    env.hear_decided(&connection, (channel, number), request, outcome);
                } else if let Ok(CommandReply::Queue { id, created: true }) = outcome {
                    self.delete_abandoned(id, env);
                }
            }
            Parcel::Look(partition) => self.look(partition),
            Parcel::Wake(partition) => self.inbox.borrow_mut().wake_partition(partition),
            Parcel::Event(event) => self.emit_event(&event, env),
            Parcel::Delete(deletion) => self.delete_queue(*deletion, env),
            Parcel::Purge(partition, queue, outsider) => {
                let request = self.next_request();
                self.asked.borrow_mut().insert(request, outsider);
                self.push(partition, Command::Purge { queue, channel: self.own_key(), request });
            }
        }
    }

    /// A consumer was passed over, as there was no room for it: its connection sees to it that it
    /// hears when there is.
    pub fn pass_over(&self, consumer: ConsumerKey, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let shard = self.keys.borrow().shard_of(consumer.channel);
        match shard {
            Some(shard) if shard == self.index => {
                let connection = self.connection_of(consumer.channel);
                connection.into_iter().for_each(|(connection, _)| env.starve(&connection, consumer));
            }
            Some(shard) => self.inbox.borrow_mut().push_parcel(shard, Parcel::Starved { consumer }),
            // A channel of another node, or of another life.
            None => {
                let mut inbox = self.inbox.borrow_mut();
                let road = inbox.roads.to(consumer.channel).map(|road| road.node());
                if let Some(node) = road {
                    inbox.roads.send(node, PartitionId(0), Forward::Starved { consumer });
                    inbox.wake();
                }
            }
        }
    }

    /// What waited for a queue that this node had not heard of, or for room here, goes on as far as
    /// it may. To be called at the beginning of each step.
    pub fn resume_roads(&self, env: &impl Surroundings<Connection = C, Outsider = O>) {
        if !self.leaders.has_peers() {
            return;
        }
        self.inbox.borrow_mut().roads.begin_step(env.elapsed_us());
        let given_up = self.inbox.borrow_mut().take_given_up();
        self.deliver(given_up.into_iter(), None, env);
        self.inbox.borrow_mut().settle_again();
        let unheld = self.inbox.borrow_mut().take_unheld();
        if !unheld.is_empty() {
            env.hold_again(&unheld);
        }
        if !self.inbox.borrow().roads.has_waiting() {
            return;
        }
        let turned = self.inbox.borrow_mut().roads.take_turned(&self.leaders);
        for (partition, command, is_given_up) in turned {
            match command {
                command if !is_given_up => self.push(partition, command),
                Command::Publish(publish) => {
                    self.note_given_up_letters(&publish, &env.topology(), env.elapsed_us());
                    let Publish { channel, publish_seq: first, .. } = publish;
                    let refused = (first != 0).then_some(Effect::Refuse { channel, first, count: publish.count() });
                    self.deliver(refused.into_iter().peekable(), None, env);
                }
                command => self.inbox.borrow_mut().push_here(partition, command),
            }
        }
        self.confirm_unwanted(env);
        let held = self.inbox.borrow_mut().roads.take_held();
        for (node, frames) in held {
            self.take_forwards(node, frames.into(), env);
        }
        if !env.is_loaded() {
            self.inbox.borrow_mut().roads.answer_marks();
        }
    }

    /// What was published to queues that are gone with their node is safe in all queues that there are.
    fn confirm_unwanted(&self, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let unwanted = {
            let topology = env.topology();
            let is_gone = |publish: &Publish| publish.targets.iter().all(|of| topology.queue(of.queue).is_none());
            self.inbox.borrow_mut().roads.turning.take_gone(is_gone)
        };
        for (_, publish) in unwanted {
            let Publish { channel, publish_seq: first, .. } = publish;
            let confirmed = (first != 0).then_some(Effect::Confirm { channel, first, count: publish.count() });
            self.deliver(confirmed.into_iter().peekable(), None, env);
        }
    }

    fn connection_of(&self, channel: ChannelKey) -> Option<(C, u16)> {
        self.channels.borrow().get(&channel).cloned()
    }
}

/// What the topology says is for this node's members: the others hear it from their own.
impl<C, O> Tell for Switch<C, O> {
    fn declare(&self, partition: PartitionId, queue: QueueId) {
        self.inbox.borrow_mut().declare(partition, queue);
    }

    fn command(&self, partition: PartitionId, command: Command) {
        self.inbox.borrow_mut().push_here(partition, command);
    }

    fn look(&self, partition: PartitionId) {
        self.inbox.borrow_mut().look(partition);
    }
}

impl<C, O> Intake for Switch<C, O> {
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Waits) -> R) -> R {
        f(self.inbox.borrow_mut().waits())
    }
}

/// The switch in one call: deletions and what follows a change need both.
struct At<'a, E: Surroundings> {
    switch: &'a Switch<E::Connection, E::Outsider>,
    env: &'a E,
}

impl<E: Surroundings> Deleter<E::Outsider> for At<'_, E> {
    fn own_channel(&self) -> ChannelKey {
        self.switch.own_key()
    }

    fn next_request(&self) -> RequestId {
        self.switch.next_request()
    }

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.env.topology()
    }

    fn push(&self, partition: PartitionId, command: Command) {
        // A deletion is its partition's own affair, as long as this member leads.
        self.switch.inbox.borrow_mut().push_here(partition, command);
    }

    fn change(&self, change: &Change) -> Applied {
        let applied = self.env.apply_local(change, self.switch);
        follow(&applied.effects, self);
        applied
    }

    fn propose(&self, change: Change, request: RequestId) {
        self.env.propose(change, self.switch.own_key(), request);
    }

    fn answer(&self, asker: Asker<E::Outsider>, answer: Result<Reply, Refusal>) {
        match asker {
            Asker::Nobody => {}
            Asker::Outsider(outsider) => outsider.answer(answer),
            Asker::Channel { channel, request } => {
                let Some(shard) = self.switch.keys.borrow().shard_of(channel) else {
                    // Of another node. What was not decided is asked again there.
                    let reply = answer.unwrap_or(Reply::NotLeader);
                    let effect = Effect::Reply { channel, request, reply };
                    return self.switch.deliver(std::iter::once(effect).peekable(), None, self.env);
                };
                let parcel = match answer {
                    Ok(reply) => Parcel::Effect(PartitionId(0), Effect::Reply { channel, request, reply }),
                    Err(refusal) => Parcel::Decided { channel, request, outcome: Err(refusal) },
                };
                // Its own shard too hears of it by mail: this may be called while the channel asks.
                self.env.mail(shard, parcel);
            }
        }
    }
}

impl<E: Surroundings> Follower for At<'_, E> {
    fn topology(&self) -> impl Deref<Target = Topology> {
        self.env.topology()
    }

    fn propose(&self, change: Change) {
        self.env.propose(change, ChannelKey::NOBODY, RequestId(0));
    }

    fn change_locally(&self, change: &Change) {
        self.change(change);
    }

    fn vhost_deleted(&self, vhost: VhostId, name: &Name) {
        self.env.vhost_deleted(vhost, name);
    }

    fn user_deleted(&self, name: &Name) {
        self.env.user_deleted(name);
    }
}

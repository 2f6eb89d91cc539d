//! A shard's switch: see the crate.
//!
//! Invariant: no borrow of a cell is held while the surroundings are called, so that a session may
//! hand out commands while it hears of something.

use crate::channel_key::ChannelKeys;
use crate::dead_letter::{AwaitedDeadLetters, Outgoing};
use crate::directory::Directory;
use crate::follow::{Follower, Tell, follow};
use crate::inbox::Inbox;
use crate::parcel::Parcel;
use crate::surroundings::{Outsider, Surroundings};
use crate::windows::RemoteWindows;
use broker::topology::{Applied, Command as Change, Name, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, NodeLife, PartitionId, QueueId, VhostId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use node::{Edge, Intake, Waits};
use partition::{Command, Effect, Outlets, QueuePartition, Reply, RequestId};
use session::{Asker, Deleter, Deletion, Deletions};
use std::cell::{Cell, RefCell};
use std::ops::Deref;

/// See the module. `C` is a connection of the shard, `O` somebody who is no channel.
pub struct Switch<C, O> {
    index: usize,
    directory: Directory,
    pub(crate) inbox: RefCell<Inbox<O>>,
    pub(crate) keys: RefCell<ChannelKeys>,
    channels: RefCell<HashMap<ChannelKey, (C, u16), FixedState>>,
    remote: RefCell<RemoteWindows>,
    /// Connections with room reserved in this step, and channels of other shards likewise.
    reserved: RefCell<Vec<C>>,
    reserved_remote: RefCell<Vec<ChannelKey>>,
    /// Who waits for what the shard asked partitions for somebody who is no channel.
    asked: RefCell<HashMap<RequestId, O, FixedState>>,
    /// Deletions of queues that are under way here.
    deletions: Deletions<O>,
    last_request: Cell<u64>,
    /// Dead letters on their way.
    pub(crate) outgoing: RefCell<Outgoing>,
    /// Dead letters that their queues wait for.
    pub(crate) awaited: RefCell<AwaitedDeadLetters>,
}

impl<C, O> Switch<C, O> {
    /// The switch of a shard with `members` partitions, in this life of its node.
    pub fn new(life: NodeLife, index: usize, directory: Directory, members: usize) -> Self {
        Switch {
            index,
            inbox: RefCell::new(Inbox::new(index, directory.clone(), members)),
            directory,
            keys: RefCell::new(ChannelKeys::new(life, index)),
            channels: RefCell::default(),
            remote: RefCell::default(),
            reserved: RefCell::default(),
            reserved_remote: RefCell::default(),
            asked: RefCell::default(),
            deletions: Deletions::default(),
            last_request: Cell::new(0),
            outgoing: RefCell::default(),
            awaited: RefCell::default(),
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

    /// Hands a command to a partition, here or on another shard.
    #[inline]
    pub fn push(&self, partition: PartitionId, command: Command) {
        self.inbox.borrow_mut().push(partition, command);
    }

    /// A key that nobody else gets, on any node.
    pub fn next_key(&self) -> ChannelKey {
        self.keys.borrow_mut().next_key()
    }

    /// The key under which the shard itself asks.
    pub fn own_key(&self) -> ChannelKey {
        self.keys.borrow().own()
    }

    /// Gives out a key for a channel, with this number on its connection, which hears of the
    /// channel's effects from now on.
    pub fn open_channel(&self, connection: C, number: u16) -> ChannelKey {
        let key = self.next_key();
        self.channels.borrow_mut().insert(key, (connection, number));
        key
    }

    /// A channel is gone; late effects for it meet nobody.
    pub fn close_channel(&self, channel: ChannelKey) {
        self.channels.borrow_mut().remove(&channel);
    }

    /// The number of an open channel on its connection.
    pub fn number_of(&self, channel: ChannelKey) -> Option<u16> {
        self.channels.borrow().get(&channel).map(|(_, number)| *number)
    }

    /// A connection has written what a partition of another shard had sent one of its channels.
    pub fn drained(&self, shard: usize, channel: ChannelKey, bytes: usize) {
        self.inbox.borrow_mut().push_parcel(shard, Parcel::Drained { channel, bytes });
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
    /// Applies a change that concerns this node only, and has partitions do what follows.
    pub fn change_locally(&self, change: &Change, env: &impl Surroundings<Connection = C, Outsider = O>) -> Applied {
        At { switch: self, env }.change(change)
    }

    /// Has the shard of a queue's partition delete it, behind everything that was handed to that
    /// partition before.
    pub fn delete_queue(&self, deletion: Deletion<O>, env: &impl Surroundings<Connection = C, Outsider = O>) {
        match self.directory.find(deletion.partition) {
            Some((shard, _)) if shard == self.index => self.deletions.begin(deletion, &At { switch: self, env }),
            Some((shard, _)) => {
                self.inbox.borrow_mut().push_parcel(shard, Parcel::Delete(Box::new(deletion)));
            }
            // Whoever has the partition knows of the queue; here is nobody to ask.
            None => At { switch: self, env }.answer(deletion.asker, Ok(Reply::NotLeader)),
        }
    }

    /// Takes what another shard or thread handed over.
    pub fn take(&self, parcel: Parcel<O>, env: &impl Surroundings<Connection = C, Outsider = O>) {
        match parcel {
            Parcel::Command(partition, command) => {
                if let Command::Detach { channel } = &command {
                    self.remote.borrow_mut().forget(*channel);
                }
                self.push(partition, command);
            }
            Parcel::Declare(partition, queue) => self.inbox.borrow_mut().declare(partition, queue),
            Parcel::Effect(effect) => self.deliver(std::iter::once(effect), None, env),
            Parcel::Starved { consumer } => self.pass_over(consumer, env),
            Parcel::Drained { channel, bytes } => self.remote.borrow_mut().drained(channel, bytes),
            Parcel::Decided { channel, request, outcome } => {
                if channel == self.own_key() {
                    self.deletions.decided(request, outcome, &At { switch: self, env });
                } else if let Some((connection, number)) = self.connection_of(channel) {
                    env.hear_decided(&connection, (channel, number), request, outcome);
                }
            }
            Parcel::Wake(partition) => self.inbox.borrow_mut().wake_partition(partition),
            Parcel::Event(event) => self.emit_event(&event, env),
            Parcel::Delete(deletion) => self.deletions.begin(*deletion, &At { switch: self, env }),
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
            // A channel of another life.
            None => {}
        }
    }

    /// Hands effects to whom they concern: channels here, other shards, or the shard itself. What
    /// follows each other for one channel is one look-up. `partition` said them; without one they
    /// came from another shard.
    pub fn deliver(
        &self,
        effects: impl Iterator<Item = Effect>,
        partition: Option<PartitionId>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let mut effects = effects.peekable();
        while let Some(effect) = effects.next() {
            let Some(channel) = channel_of(&effect) else {
                if let Some(partition) = partition {
                    self.take_own(effect, partition, env);
                }
                continue;
            };
            let keys = self.keys.borrow();
            let (shard, own) = (keys.shard_of(channel), keys.own());
            drop(keys);
            match shard {
                Some(shard) if shard == self.index => {}
                Some(shard) => {
                    if let Effect::Deliver(delivery) = &effect {
                        self.remote.borrow_mut().send(channel, delivery.message.len());
                    }
                    self.inbox.borrow_mut().push_parcel(shard, Parcel::Effect(effect));
                    continue;
                }
                // A channel of another life: nobody is there to hear of it.
                None => continue,
            }
            if channel == own {
                self.take_answer(effect, env);
                continue;
            }
            let Some((connection, number)) = self.connection_of(channel) else { continue };
            let same = |next: &Effect| channel_of(next) == Some(channel);
            env.hear(&connection, (channel, number), effect, &mut || effects.next_if(same));
        }
    }

    /// What a partition says to its shard.
    fn take_own(&self, effect: Effect, partition: PartitionId, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let unused = |queue| self.deletions.begin(Deletion::of_unused(queue, partition), &At { switch: self, env });
        match effect {
            // The last consumer went. An auto-delete queue ends now, unless a new consumer came
            // meanwhile: the partition is asked, as only it knows.
            Effect::Unused { queue } => {
                let auto_delete = env.topology().queue(queue).is_some_and(|queue| queue.shape.auto_delete);
                if auto_delete {
                    unused(queue);
                }
            }
            Effect::Lapsed { queue } => unused(queue),
            Effect::DeadLetter(letter) => {
                self.outgoing.borrow_mut().push(partition, letter);
                self.inbox.borrow_mut().wake();
            }
            _ => {}
        }
    }

    /// An answer to the shard itself.
    fn take_answer(&self, effect: Effect, env: &impl Surroundings<Connection = C, Outsider = O>) {
        match effect {
            Effect::Reply { request, reply, .. } => {
                if self.deletions.may_be_deleted(request, &reply, &At { switch: self, env }) {
                    return;
                }
                let outsider = self.asked.borrow_mut().remove(&request);
                outsider.into_iter().for_each(|outsider| outsider.answer(Ok(reply.clone())));
            }
            Effect::Confirm { first, count, .. } => self.dead_letters_answered((first, count), true),
            Effect::Refuse { first, count, .. } => self.dead_letters_answered((first, count), false),
            _ => {}
        }
    }

    /// Partitions answered for dead letters.
    fn dead_letters_answered(&self, (first, count): (u64, u64), is_safe: bool) {
        let mut done = Vec::new();
        self.awaited.borrow_mut().answered(first, count, is_safe, &mut done);
        done.into_iter().for_each(|(partition, command)| self.push(partition, command));
    }

    fn connection_of(&self, channel: ChannelKey) -> Option<(C, u16)> {
        self.channels.borrow().get(&channel).cloned()
    }
}

/// Whom an effect concerns.
fn channel_of(effect: &Effect) -> Option<ChannelKey> {
    Some(match effect {
        Effect::Confirm { channel, .. } | Effect::Refuse { channel, .. } | Effect::Reply { channel, .. } => *channel,
        Effect::Deliver(delivery) => delivery.consumer.channel,
        Effect::Cancelled { consumer, .. }
        | Effect::GrantWanted { consumer, .. }
        | Effect::GrantReturned { consumer, .. } => consumer.channel,
        Effect::Unused { .. } | Effect::DeadLetter(_) | Effect::Lapsed { .. } => return None,
    })
}

impl<C, O> Tell for Switch<C, O> {
    fn declare(&self, partition: PartitionId, queue: QueueId) {
        self.inbox.borrow_mut().declare(partition, queue);
    }

    fn command(&self, partition: PartitionId, command: Command) {
        self.push(partition, command);
    }
}

impl<C, O> Intake for Switch<C, O> {
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Waits) -> R) -> R {
        f(self.inbox.borrow_mut().waits())
    }
}

/// A shard's connections, as its partitions see them in a turn.
pub struct Crossing<'a, E: Surroundings> {
    /// The shard's switch.
    pub switch: &'a Switch<E::Connection, E::Outsider>,
    /// Where it stands.
    pub env: &'a E,
}

impl<E: Surroundings> Outlets for Crossing<'_, E> {
    fn room(&mut self, consumer: ConsumerKey) -> usize {
        let (channel, switch) = (consumer.channel, self.switch);
        let shard = switch.keys.borrow().shard_of(channel);
        match shard {
            Some(shard) if shard == switch.index => {}
            Some(_) => {
                let portion = switch.remote.borrow_mut().reserve(channel);
                match portion {
                    0 => switch.pass_over(consumer, self.env),
                    _ => switch.reserved_remote.borrow_mut().push(channel),
                }
                return portion;
            }
            // A channel of another life: nobody is there to take anything.
            None => return 0,
        }
        let Some((connection, _)) = switch.connection_of(channel) else { return 0 };
        let portion = self.env.room(&connection, consumer);
        if portion > 0 {
            switch.reserved.borrow_mut().push(connection);
        }
        portion
    }
}

impl<E: Surroundings> Edge for Crossing<'_, E> {
    fn take_effects(&mut self, partition: PartitionId, _: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
        for connection in self.switch.reserved.borrow_mut().drain(..) {
            self.env.settle_room(&connection);
        }
        for channel in self.switch.reserved_remote.borrow_mut().drain(..) {
            self.switch.remote.borrow_mut().settle(channel);
        }
        self.switch.deliver(effects.drain(..), Some(partition), self.env);
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
        self.switch.push(partition, command);
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
                let Some(shard) = self.switch.keys.borrow().shard_of(channel) else { return };
                let parcel = match answer {
                    Ok(reply) => Parcel::Effect(Effect::Reply { channel, request, reply }),
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

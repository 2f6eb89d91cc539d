//! A shard's switch: see the crate.
//!
//! Invariant: no borrow of a cell is held while the surroundings are called, so that a session may
//! hand out commands while it hears of something.

use crate::balance::{self, Led};
use crate::channel_key::ChannelKeys;
use crate::dead_letter::{AwaitedDeadLetters, Outgoing};
use crate::directory::Directory;
use crate::follow::{Follower, Tell, follow};
use crate::inbox::Inbox;
use crate::leaders::Leaders;
use crate::owners::Owners;
use crate::parcel::Parcel;
use crate::settles::Settles;
use crate::surroundings::{Outsider, Surroundings};
use crate::windows::RemoteWindows;
use broker::topology::{Applied, Command as Change, CommandReply, Name, PartitionStage, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, NodeLife, NodeNumber, PartitionId, QueueId, VhostId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use node::{Beginning, Edge, Intake, KnownQueue, NodeId, Waits};
use partition::peer::forward::Forward;
use partition::{Command, Effect, Outlets, Publish, QueuePartition, Reply, RequestId};
use session::{Asker, Deleter, Deletion, Deletions};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::ops::Deref;

mod deleting;
mod links;
#[cfg(test)]
mod tests;

/// How often a shard with something for a partition that nobody leads looks whether somebody does.
pub const LEADERS_LOOK_MS: u64 = 10;

/// Who has led a partition for so long hands it to a node that leads fewer. One that came back has its
/// logs and its clients by then.
const BALANCE_AFTER_MS: u64 = 60_000;

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
    /// Dead letters on their way.
    pub(crate) outgoing: RefCell<Outgoing>,
    /// Dead letters that their queues wait for.
    pub(crate) awaited: RefCell<AwaitedDeadLetters>,
}

impl<C, O> Switch<C, O> {
    /// The switch of a shard with `members` partitions, in this life of its node.
    pub fn new(life: NodeLife, index: usize, directory: Directory, leaders: Leaders, members: usize) -> Self {
        let keys = ChannelKeys::new(life, index);
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
    /// channel's effects from now on.
    pub fn open_channel(&self, connection: C, number: u16) -> ChannelKey {
        let key = self.next_key();
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
            Parcel::LinkUp(link) => self.link_up(link, env),
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

    /// Notes whom a member follows, in which term, as of what it has said so far.
    pub fn note_leader(&self, partition: PartitionId, leader: Option<NodeNumber>, term: u64) {
        let mut noted = self.noted.borrow_mut();
        let waiting = noted.iter().rev().find(|(known, ..)| *known == partition);
        let known = match waiting {
            Some((_, leader, term)) => leader.map(|leader| (leader, *term as u32)),
            None => self.leaders.in_term(partition),
        };
        if known != leader.map(|leader| (leader, term as u32)) {
            noted.push((partition, leader, term));
            self.inbox.borrow_mut().wake();
        }
    }

    /// Notes the term that a member is in: what a leader of an earlier one gave out is passed on no
    /// more, on any shard.
    pub fn note_term(&self, partition: PartitionId, term: u64) {
        self.leaders.note_term(partition, term);
    }

    /// Whether a leader of this term leads a partition no more, as far as this node knows.
    #[inline]
    pub fn is_outdated(&self, partition: PartitionId, term: u64) -> bool {
        self.leaders.is_outdated(partition, term)
    }

    /// Lets all shards know whom members follow now. To be called at the end of a step, once what the
    /// members said before is on its way to the others: whoever hears of a new leader turns to it.
    pub fn tell_leaders(&self) {
        for (partition, leader, term) in self.noted.borrow_mut().drain(..) {
            self.leaders.note(partition, leader, term);
        }
        // Somebody may have said meanwhile that he leads: that is newer than what the member said.
        self.turned.borrow_mut().drain(..).for_each(|partition| self.leaders.follow_announced(partition));
    }

    /// Whether a member hears who leads its group. One that joins does not before anybody of the group has
    /// spoken to it.
    fn hears(&self, queues: &QueuePartition) -> bool {
        if self.leaders.is_heard(queues.id()) {
            return true;
        }
        let is_known = !queues.replica().group().membership().voters.is_empty();
        if is_known {
            self.leaders.note_heard(queues.id());
        }
        is_known
    }

    /// Whether this node believes what a member says of its leader, of a member after a step. One that is to leave
    /// its group hears of its leaders no more, and one that joins hears of none yet: then this node hears who leads as
    /// those do that have no member.
    pub fn believes(&self, queues: &QueuePartition, env: &impl Surroundings<Connection = C, Outsider = O>) -> bool {
        if queues.replica().is_leaving() && !queues.replica().is_leader() {
            self.turn_from_member(queues, env);
            return false;
        }
        self.hears(queues)
    }

    fn turn_from_member(&self, queues: &QueuePartition, env: &impl Surroundings<Connection = C, Outsider = O>) {
        let id = queues.id();
        if !self.leaders.is_heard(id) {
            return;
        }
        // It may have led, and those who heard so are to hear that it does no more.
        self.note_member(queues, env);
        self.leaders.forget_heard(id);
        self.turned.borrow_mut().push(id);
        self.inbox.borrow_mut().wake();
    }

    /// Looks at a member after a step. One that begins to lead is told which of the queues it has
    /// something of are gone: the delete may have come while it did not lead.
    pub fn note_member(&self, queues: &QueuePartition, env: &impl Surroundings<Connection = C, Outsider = O>) {
        if !self.leaders.has_peers() || !self.hears(queues) {
            return;
        }
        let (id, term) = (queues.id(), queues.term().0);
        let mut leading = self.leading.borrow_mut();
        let before = leading.iter().find(|(known, _)| *known == id).map(|(_, term)| *term);
        if before == queues.is_leading().then_some(term) {
            return;
        }
        leading.retain(|(known, _)| *known != id);
        let topology = env.topology();
        // Where not every node is a member, the others hear it from nobody else.
        if topology.has_strangers(id) {
            self.inbox.borrow_mut().roads.tell_leads(id, term, queues.is_leading());
            self.inbox.borrow_mut().wake();
        }
        if !queues.is_leading() {
            return;
        }
        leading.push((id, term));
        // One that this node has not heard of yet is no orphan.
        let is_gone = |queue: &QueueId| topology.queue(*queue).is_none() && *queue < topology.next_queue();
        for queue in queues.queue_ids().into_iter().filter(is_gone) {
            self.inbox.borrow_mut().push_here(queues.id(), Command::Delete { queue });
        }
    }

    /// What waited for a queue that this node had not heard of, or for room here, goes on as far as
    /// it may. To be called at the beginning of each step.
    pub fn resume_roads(&self, env: &impl Surroundings<Connection = C, Outsider = O>) {
        if !self.leaders.has_peers() {
            return;
        }
        self.inbox.borrow_mut().roads.now_us = env.elapsed_us();
        let given_up = self.inbox.borrow_mut().take_given_up();
        self.deliver(given_up.into_iter(), None, env);
        self.inbox.borrow_mut().settle_again();
        if !self.inbox.borrow().roads.has_waiting() {
            return;
        }
        let turned = self.inbox.borrow_mut().roads.take_turned(&self.leaders);
        for (partition, command, is_given_up) in turned {
            match command {
                command if !is_given_up => self.push(partition, command),
                Command::Publish(Publish { channel, publish_seq: first, .. }) => {
                    let refused = (first != 0).then_some(Effect::Refuse { channel, first, count: 1 });
                    self.deliver(refused.into_iter(), None, env);
                }
                command => self.inbox.borrow_mut().push_here(partition, command),
            }
        }
        let held = self.inbox.borrow_mut().roads.take_held();
        for (node, frames) in held {
            self.take_forwards(node, frames.into(), env);
        }
        if !env.is_loaded() {
            self.inbox.borrow_mut().roads.answer_marks();
        }
    }

    /// A partition of another shard says something to a channel of this one: adds what that is to hear.
    pub fn hear(&self, partition: PartitionId, effect: Effect, heard: &mut Vec<Effect>) {
        self.inbox.borrow_mut().hear(partition, effect, |effect| heard.push(effect));
    }

    /// What the channel of an effect is to hear of it, if it is a channel of this shard.
    #[inline]
    fn heard(&self, partition: PartitionId, effect: Effect) -> SmallVec<[Effect; 1]> {
        let is_here = |channel| self.keys.borrow().shard_of(channel) == Some(self.index);
        let mut heard = SmallVec::new();
        match effect {
            Effect::Confirm { channel, .. } | Effect::Refuse { channel, .. } | Effect::Returned { channel, .. }
                if is_here(channel) =>
            {
                self.inbox.borrow_mut().hear(partition, effect, |effect| heard.push(effect));
            }
            effect => heard.push(effect),
        }
        heard
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
        match partition.filter(|partition| self.leaders.is_led_in_terms(*partition)) {
            Some(of) => self.hand_out(effects.flat_map(|effect| self.heard(of, effect)), partition, env),
            None => self.hand_out(effects, partition, env),
        }
    }

    fn hand_out(
        &self,
        effects: impl Iterator<Item = Effect>,
        partition: Option<PartitionId>,
        env: &impl Surroundings<Connection = C, Outsider = O>,
    ) {
        let mut effects = effects.peekable();
        while let Some(effect) = effects.next() {
            let Some(channel) = effect.channel() else {
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
                    self.note_cancelled(&effect);
                    let parcel = Parcel::Effect(partition.unwrap_or(PartitionId(0)), effect);
                    self.inbox.borrow_mut().push_parcel(shard, parcel);
                    continue;
                }
                None => {
                    // A channel of another node; one of another life is not there to hear of it.
                    let bytes = if let Effect::Deliver(delivery) = &effect { delivery.message.len() } else { 0 };
                    self.note_cancelled(&effect);
                    let mut inbox = self.inbox.borrow_mut();
                    let is_told = match partition {
                        Some(partition) => inbox.roads.effect_of(partition, channel, effect),
                        None => inbox.roads.effect(channel, PartitionId(0), effect),
                    };
                    if is_told {
                        inbox.wake();
                        if bytes > 0 {
                            self.remote.borrow_mut().send(channel, bytes);
                        }
                    }
                    continue;
                }
            }
            if channel == own {
                self.take_answer(effect, env);
                continue;
            }
            let Some((connection, number)) = self.connection_of(channel) else { continue };
            let same = |next: &Effect| next.channel() == Some(channel);
            env.hear(&connection, (channel, number), effect, &mut || effects.next_if(same));
        }
    }

    /// A consumer elsewhere is none any more: what was on its way to its channel is not counted
    /// further, as what drains of it may be told to the next leader.
    fn note_cancelled(&self, effect: &Effect) {
        if let Effect::Cancelled { consumer, .. } = effect {
            self.remote.borrow_mut().forget(consumer.channel);
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
            Effect::Parted { channel } => self.inbox.borrow_mut().roads.parted(partition, channel),
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
            Effect::Reply { request, reply, .. } if Settles::is_mark(request) => {
                self.inbox.borrow_mut().mark_answered(request, reply == Reply::Done);
            }
            Effect::Reply { request, reply, .. } => {
                if self.deletions.may_be_deleted(request, &reply, &At { switch: self, env }) {
                    return;
                }
                let outsider = self.asked.borrow_mut().remove(&request);
                outsider.into_iter().for_each(|outsider| outsider.answer(Ok(reply.clone())));
            }
            Effect::Confirm { first, count, .. } => self.dead_letters_answered((first, count), true),
            Effect::Refuse { first, count, .. } | Effect::Returned { first, count, .. } => {
                self.dead_letters_answered((first, count), false);
            }
            _ => {}
        }
    }

    /// Partitions answered for dead letters.
    fn dead_letters_answered(&self, (first, count): (u64, u64), is_safe: bool) {
        let mut done = Vec::new();
        self.awaited.borrow_mut().answered(first, count, is_safe, &mut done);
        // The partition that gave them up is this node's.
        let mut inbox = self.inbox.borrow_mut();
        done.into_iter().for_each(|(partition, command)| inbox.push_here(partition, command));
    }

    fn connection_of(&self, channel: ChannelKey) -> Option<(C, u16)> {
        self.channels.borrow().get(&channel).cloned()
    }

    /// Where what this shard's partitions say to a channel goes.
    #[inline]
    pub fn reach(&self, channel: ChannelKey) -> Reach<C> {
        let shard = self.keys.borrow().shard_of(channel);
        match shard {
            Some(shard) if shard == self.index => match self.connection_of(channel) {
                Some((connection, _)) => Reach::Here(connection),
                None => Reach::Nobody,
            },
            Some(_) => Reach::Away,
            // A channel of another life: nobody is there to take anything.
            None if self.inbox.borrow_mut().roads.to(channel).is_none() => Reach::Nobody,
            None => Reach::Away,
        }
    }

    /// Hands out room at a channel of another shard or another node, to be used in this step; 0 when
    /// nothing is free.
    pub fn reserve_away(&self, channel: ChannelKey) -> usize {
        let portion = self.remote.borrow_mut().reserve(channel);
        if portion > 0 {
            self.reserved_remote.borrow_mut().push(channel);
        }
        portion
    }

    /// What was handed out of such room is used, or given back.
    pub fn settle_away(&self) {
        for channel in self.reserved_remote.borrow_mut().drain(..) {
            self.remote.borrow_mut().settle(channel);
        }
    }

    /// No more than this may be on its way to a channel of another shard or node: less than usual, for
    /// runs that are to meet the limit.
    pub fn limit_bytes_away(&self, bytes: usize) {
        self.remote.borrow_mut().bytes_max = bytes;
    }
}

/// Where a channel is, as a shard's partitions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach<C> {
    /// On this connection of the shard.
    Here(C),
    /// On another shard or another node.
    Away,
    /// It is gone.
    Nobody,
}

fn member_of((node, life): (NodeNumber, u32)) -> NodeId {
    NodeId::of(node.0, life)
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
        // A member that came to lead while the topology here was an older one has told nobody: after its
        // step it is as if it had begun just now.
        self.leading.borrow_mut().retain(|(known, _)| *known != partition);
        self.inbox.borrow_mut().look(partition);
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
        match self.switch.reach(consumer.channel) {
            Reach::Here(connection) => {
                let portion = self.env.room(&connection, consumer);
                if portion > 0 {
                    self.switch.reserved.borrow_mut().push(connection);
                }
                portion
            }
            Reach::Away => {
                let portion = self.switch.reserve_away(consumer.channel);
                if portion == 0 {
                    self.switch.pass_over(consumer, self.env);
                }
                portion
            }
            Reach::Nobody => 0,
        }
    }
}

impl<E: Surroundings> Crossing<'_, E> {
    /// Who leads a partition instead of this node, which is to lead nothing.
    fn successor(&self, partition: PartitionId) -> Option<NodeNumber> {
        let leaders = &self.switch.leaders;
        let topology = self.env.topology();
        let put = topology.partitions().find(|(id, _)| *id == partition);
        let members = put.map(|(_, put)| put.members.clone()).unwrap_or_default();
        drop(topology);
        let mut inbox = self.switch.inbox.borrow_mut();
        let can =
            |node: &NodeNumber| *node != leaders.own() && inbox.roads.road(*node).is_some() && !leaders.rests(*node);
        let others: Vec<NodeNumber> = members.into_iter().filter(can).collect();
        balance::successor(partition, &others)
    }
}

impl<E: Surroundings> Edge for Crossing<'_, E> {
    fn members_wanted(&mut self, partition: PartitionId, members: &[NodeNumber]) -> Vec<NodeId> {
        let topology = self.env.topology();
        match self.switch.leaders.knows_members() {
            true => topology.lives_wanted_after(partition, members).into_iter().map(member_of).collect(),
            false => Vec::new(),
        }
    }

    fn is_to_leave(&mut self, partition: PartitionId, member: NodeId) -> bool {
        self.env.topology().is_to_leave(partition, NodeNumber(member.number()), member.life())
    }

    fn beginning(&mut self, partition: PartitionId) -> Beginning {
        let leaders = &self.switch.leaders;
        let topology = self.env.topology();
        let life = topology.life_in(partition, leaders.own());
        let founders = topology.founders_of(partition).unwrap_or_default();
        match topology.members_wanted(partition).contains(&leaders.own()) {
            // Where all nodes have a copy each begins with it, and those who come back have left.
            true if founders.is_empty() && life == 0 => Beginning::Nothing,
            false => Beginning::Nothing,
            // By a map of the past this node would begin what has ended.
            true if !leaders.knows_members() => Beginning::NotKnown,
            true if life > 0 => Beginning::Joins { life },
            true if founders.contains(&leaders.own()) => Beginning::Founds {
                founders: founders.to_vec(),
                leads_first: topology.leads_first(partition) == Some(leaders.own()),
            },
            true => Beginning::Joins { life },
        }
    }

    fn queues_of(&mut self, partition: PartitionId) -> Vec<KnownQueue> {
        let topology = self.env.topology();
        let there = topology.queues().filter(|queue| queue.partition == partition && !queue.id.is_local());
        there.map(|queue| (queue.id, (!queue.rules.is_plain()).then(|| queue.rules.clone()))).collect()
    }

    fn heir(&mut self, partition: PartitionId, led_ms: u64) -> Option<NodeNumber> {
        let leaders = &self.switch.leaders;
        if leaders.rests(leaders.own()) {
            return self.successor(partition);
        }
        if led_ms < BALANCE_AFTER_MS && !leaders.balances_at(self.env.elapsed_us()) {
            return None;
        }
        let topology = self.env.topology();
        let serving = || topology.partitions().filter(|(_, put)| put.stage == PartitionStage::Serving);
        let led =
            serving().map(|(id, put)| Led { partition: id, leader: leaders.leader(id), members: put.members.clone() });
        let mut all: Vec<Led> = led.collect();
        drop(topology);
        let mut inbox = self.switch.inbox.borrow_mut();
        let reached: Vec<NodeNumber> = all
            .iter()
            .flat_map(|led| led.members.iter().copied())
            .filter(|node| inbox.roads.road(*node).is_some() && !leaders.rests(*node))
            .collect();
        drop(inbox);
        // What nobody can lead keeps nobody waiting.
        let is_there = |node: &NodeNumber| *node == leaders.own() || reached.contains(node);
        all.retain(|led| {
            led.leader.is_some() || 2 * led.members.iter().filter(|node| is_there(node)).count() > led.members.len()
        });
        balance::heir(leaders.own(), partition, &all, |node| reached.contains(&node))
    }

    fn shown_node(&self, node: NodeNumber) -> String {
        self.env.topology().shown_node(node)
    }

    fn is_led(&mut self, partition: PartitionId, leader: Option<NodeNumber>, term: u64) {
        // Nobody speaks to a damaged one any more that has left.
        let own = self.switch.leaders.own();
        let has_left = || self.env.topology().is_to_leave(partition, own, 0);
        if self.switch.leaders.has_peers() && (leader.is_some() || !has_left()) {
            self.switch.note_term(partition, term);
            self.switch.note_leader(partition, leader, term);
        }
    }

    fn take_effects(&mut self, partition: PartitionId, queues: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
        let queues = queues.filter(|_| self.switch.leaders.has_peers());
        if let Some(queues) = queues.filter(|queues| self.switch.believes(queues, self.env)) {
            let term = queues.term().0;
            self.switch.note_term(partition, term);
            self.switch.note_leader(partition, queues.leader(), term);
            self.switch.note_member(queues, self.env);
        }
        for connection in self.switch.reserved.borrow_mut().drain(..) {
            self.env.settle_room(&connection);
        }
        self.switch.settle_away();
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
                    return self.switch.deliver(std::iter::once(effect), None, self.env);
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

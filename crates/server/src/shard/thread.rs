//! The thread of a shard: its runtime, its step task, and the tables that its connection tasks
//! share.
//!
//! Invariant: everything here is touched by one thread only. No borrow of a cell is held while a
//! task waits, and a connection is borrowed by at most one of: its own task, the step task's
//! timers, the step task's effects.

use super::dead_letter::{AwaitedDeadLetters, Outgoing};
use super::deletion::{Deletion, Outsider};
use super::outlets::{RemoteWindows, window_bytes};
use super::{Arrival, Inbox, Look, Parcel, Seat, Wheel, transient_partition};
use crate::channel_key::ChannelKeys;
use crate::connection::{Client, ConnectionTask};
use crate::drain::Drain;
use crate::engine::{Decided, ShardDisk, wall_ms};
use crate::listener::{self, Door, Room};
use crate::node::{MakePartitions, ShardParts, Shared};
use crate::stream::Stream;
use amqp::Millis;
use broker::topology::{Command as Change, Topology};
use broker::{ChannelKey, ConsumerKey, PartitionId, QueueId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use node::{Edge, Intake, Now, Shard, Waits};
use partition::{Command, Effect, Outlets, QueuePartition, Reply, RequestId};
use session::{Deletions, Peer, Tally};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;

/// A shard that does something gives the memory of bursts back this often.
const TRIM_AFTER_MS: Millis = 2_000;

/// How often the memory in use is looked at while there is too much of it.
const ALARM_LOOK_MS: Millis = 50;

/// What a shard thread starts with.
pub(crate) struct Parts {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) make_partitions: MakePartitions,
}

/// What the tasks of one shard share.
pub(crate) struct Local {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: RefCell<Inbox>,
    pub(crate) keys: RefCell<ChannelKeys>,
    pub(crate) remote: RefCell<RemoteWindows>,
    /// Bytes that may be queued towards each socket.
    window: Cell<usize>,
    clients: RefCell<Slab<Rc<Client>>>,
    lives: Cell<u32>,
    channels: RefCell<HashMap<ChannelKey, (Rc<Client>, u16), FixedState>>,
    wheel: RefCell<Wheel>,
    /// When the step task wakes up by itself.
    armed: Cell<Millis>,
    /// Connections with something to write, or to answer to, after this step.
    flush: RefCell<Vec<Rc<Client>>>,
    /// Connections that do not read while a shard is loaded.
    paused: RefCell<Vec<Rc<Client>>>,
    /// Who waits for what the shard asked partitions for somebody who is no channel.
    asked: RefCell<HashMap<RequestId, oneshot::Sender<Reply>, FixedState>>,
    /// Deletions of queues that are under way here.
    pub(super) deletions: Deletions<Outsider>,
    last_request: Cell<u64>,
    /// What goes through here.
    pub(crate) tally: Tally,
    /// Dead letters on their way.
    pub(crate) outgoing: RefCell<Outgoing>,
    /// Dead letters that their queues wait for.
    pub(crate) awaited: RefCell<AwaitedDeadLetters>,
}

impl Local {
    /// Milliseconds since the node started.
    pub(crate) fn now(&self) -> Millis {
        self.shared.now()
    }

    /// Bytes that may be queued towards each socket of this shard.
    pub(crate) fn window(&self) -> usize {
        self.window.get()
    }

    /// Hands a command to a partition, here or on another shard.
    #[inline]
    pub(crate) fn push(&self, partition: PartitionId, command: Command) {
        self.inbox.borrow_mut().push(partition, command);
    }

    /// Notes who hears of a channel's effects.
    pub(crate) fn register(&self, channel: ChannelKey, client: &Rc<Client>, number: u16) {
        let before = self.channels.borrow_mut().insert(channel, (client.clone(), number));
        assert!(before.is_none(), "a channel key is given out once");
    }

    /// A channel is gone; late effects for it meet nobody.
    pub(crate) fn unregister(&self, channel: ChannelKey) {
        self.channels.borrow_mut().remove(&channel);
    }

    /// Has a connection looked at by the step task once the effects are in: it has something to
    /// write or to answer.
    pub(crate) fn flush_later(&self, client: &Rc<Client>) {
        if !client.in_flush.replace(true) {
            self.flush.borrow_mut().push(client.clone());
            self.inbox.borrow_mut().wake();
        }
    }

    /// Has a connection called at `at`, or a little later.
    pub(crate) fn enter_wheel(&self, at: Millis, seat: Seat) {
        self.wheel.borrow_mut().enter(at, seat);
        if at < self.armed.get() {
            // The step task sleeps longer than that: it has to look again.
            self.inbox.borrow_mut().wake();
        }
    }

    /// Has a connection read again once the shards are not loaded any more.
    pub(crate) fn pause(&self, client: &Rc<Client>) {
        if !client.is_paused.replace(true) {
            self.paused.borrow_mut().push(client.clone());
        }
    }

    fn resume_paused(&self) {
        for client in self.paused.take() {
            client.is_paused.set(false);
            client.wake();
        }
    }

    /// Applies a change that concerns this node only, and has partitions do what follows.
    pub(crate) fn change_locally(&self, change: &Change) -> broker::topology::Applied {
        let applied = self.shared.change_topology(change, Topology::apply_local);
        let mut inbox = self.inbox.borrow_mut();
        for effect in &applied.effects {
            match effect {
                broker::topology::Effect::QueueCreated { id, partition } => {
                    inbox.declare(*partition, *id);
                    if let Some(configure) = self.shared.configure(*id, true) {
                        inbox.push(*partition, configure);
                    }
                }
                broker::topology::Effect::QueueRulesChanged { id, partition } => {
                    if let Some(configure) = self.shared.configure(*id, false) {
                        inbox.push(*partition, configure);
                    }
                }
                broker::topology::Effect::QueueDeleted { id, partition } => {
                    inbox.push(*partition, Command::Delete { queue: *id });
                }
                broker::topology::Effect::UserDeleted { .. } | broker::topology::Effect::VhostDeleted { .. } => {
                    unreachable!("users and virtual hosts are the same on every node")
                }
                broker::topology::Effect::ExchangeUnused { vhost, name } => {
                    self.shared.delete_unused_exchange(*vhost, name);
                }
            }
        }
        applied
    }

    /// The last consumer of a queue went. An auto-delete queue ends now, unless a new consumer came
    /// meanwhile: the partition is asked, as only it knows.
    fn queue_unused(&self, queue: QueueId, partition: PartitionId) {
        let auto_delete = self.shared.topology().queue(queue).is_some_and(|q| q.shape.auto_delete);
        if auto_delete {
            self.deletions.begin(Deletion::of_unused(queue, partition), self);
        }
    }

    /// Partitions answered for dead letters.
    fn dead_letters_answered(&self, first: u64, count: u64, is_safe: bool) {
        let mut done = Vec::new();
        self.awaited.borrow_mut().answered(first, count, is_safe, &mut done);
        done.into_iter().for_each(|(partition, command)| self.push(partition, command));
    }

    /// The number of the shard's next own request.
    pub(super) fn next_request(&self) -> RequestId {
        let request = RequestId(self.last_request.get() + 1);
        self.last_request.set(request.0);
        request
    }

    /// Drops what is ready in a queue of this shard, for somebody who is no channel.
    fn purge(&self, partition: PartitionId, queue: QueueId, answer: oneshot::Sender<Reply>) {
        let request = self.next_request();
        self.asked.borrow_mut().insert(request, answer);
        let channel = self.keys.borrow().own();
        self.push(partition, Command::Purge { queue, channel, request });
    }

    /// The answer to a request of the shard itself.
    fn handle_own_reply(&self, request: RequestId, reply: &Reply) {
        if self.deletions.may_be_deleted(request, reply, self) {
            return;
        }
        if let Some(answer) = self.asked.borrow_mut().remove(&request) {
            // Who does not wait any more does not need it.
            let _ = answer.send(reply.clone());
        }
    }

    /// The number of an open channel on its connection.
    pub(crate) fn number_of(&self, channel: ChannelKey) -> Option<u16> {
        self.channels.borrow().get(&channel).map(|(_, number)| *number)
    }

    fn client_of(&self, channel: ChannelKey) -> Option<(Rc<Client>, u16)> {
        self.channels.borrow().get(&channel).cloned()
    }

    /// Starts serving a connection.
    fn accept(self: &Rc<Self>, arrival: Arrival) {
        let Arrival { socket: stream, peer, is_loopback, tls, certificate_user, is_own } = arrival;
        let failed = |error: std::io::Error| tracing::warn!(%peer, %error, "connection lost before it began");
        // Confirms and deliveries are small and wait for nothing; we gather them ourselves.
        // What is the node's own is no TCP and waits for nothing anyway.
        if !is_own && let Err(error) = stream.set_nodelay(true) {
            failed(error);
            self.shared.gauges[self.index].connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let stream = match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                failed(error);
                self.shared.gauges[self.index].connections.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        };
        self.lives.set(self.lives.get().wrapping_add(1));
        let mut clients = self.clients.borrow_mut();
        let entry = clients.vacant_entry();
        let seat = (entry.key() as u32, self.lives.get());
        let local_address = stream.local_addr().ok();
        let offer = self.shared.offer(is_own, certificate_user.is_some());
        let peer_of = Peer { address: peer, local_address, is_loopback, certificate_user, is_own };
        let client = Rc::new(Client::new(self, seat, Stream::new(stream, tls), peer_of, offer));
        entry.insert(client.clone());
        self.window.set(window_bytes(clients.len()));
        drop(clients);
        tracing::debug!(%peer, "connection accepted");
        tokio::task::spawn_local(ConnectionTask::new(client, self.clone()));
    }

    /// A connection's task ended.
    pub(crate) fn release(&self, client: &Client) {
        let mut clients = self.clients.borrow_mut();
        let gone = clients.try_remove(client.seat.0 as usize).expect("a connection leaves its seat once");
        assert!(gone.seat == client.seat, "a seat holds the connection that it was given to");
        if client.is_paused.get() {
            // Its socket would stay open as long as somebody remembers it.
            self.paused.borrow_mut().retain(|paused| paused.seat != client.seat);
        }
        self.window.set(window_bytes(clients.len()));
        self.shared.gauges[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        if clients.is_empty() {
            // The step task may be waiting for the last one to leave.
            self.inbox.borrow_mut().wake();
        }
    }

    fn seated(&self, seat: Seat) -> Option<Rc<Client>> {
        self.clients.borrow().get(seat.0 as usize).filter(|client| client.seat == seat).cloned()
    }

    fn all_clients(&self) -> Vec<Rc<Client>> {
        self.clients.borrow().iter().map(|(_, client)| client.clone()).collect()
    }
}

/// The shard's connections, as its partitions see them.
struct Connections<'a> {
    local: &'a Rc<Local>,
    /// Connections with bytes reserved in this step, and remote channels likewise.
    reserved: &'a mut Vec<Rc<Client>>,
    reserved_remote: &'a mut Vec<ChannelKey>,
}

impl Outlets for Connections<'_> {
    fn room(&mut self, consumer: ConsumerKey) -> usize {
        let channel = consumer.channel;
        match self.local.keys.borrow().shard_of(channel) {
            Some(shard) if shard == self.local.index => {}
            Some(shard) => {
                let portion = self.local.remote.borrow_mut().reserve(channel);
                match portion {
                    0 => {
                        let parcel = Parcel::Starved { consumer };
                        self.local.inbox.borrow_mut().push_parcel(shard, parcel);
                    }
                    _ => self.reserved_remote.push(channel),
                }
                return portion;
            }
            // A channel of another life: nobody is there to take anything.
            None => return 0,
        }
        let Some((client, _)) = self.local.client_of(channel) else { return 0 };
        let portion = client.reserve(consumer, self.local.window());
        if portion == 0 {
            self.local.flush_later(&client);
        } else {
            self.reserved.push(client);
        }
        portion
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

impl Connections<'_> {
    /// Hands effects to channels of this shard. What follows each other for one channel is one
    /// look-up.
    fn deliver(&mut self, effects: impl Iterator<Item = Effect>, partition: Option<PartitionId>) {
        let mut effects = effects.peekable();
        while let Some(effect) = effects.next() {
            let Some(channel) = channel_of(&effect) else {
                let Some(partition) = partition else { continue };
                match effect {
                    Effect::Unused { queue } => self.local.queue_unused(queue, partition),
                    Effect::Lapsed { queue } => {
                        self.local.deletions.begin(Deletion::of_unused(queue, partition), &**self.local)
                    }
                    Effect::DeadLetter(letter) => {
                        self.local.outgoing.borrow_mut().push(partition, letter);
                        self.local.inbox.borrow_mut().wake();
                    }
                    _ => {}
                }
                continue;
            };
            let keys = self.local.keys.borrow();
            let (shard, own) = (keys.shard_of(channel), keys.own());
            drop(keys);
            match shard {
                Some(shard) if shard == self.local.index => {}
                Some(shard) => {
                    if let Effect::Deliver(delivery) = &effect {
                        self.local.remote.borrow_mut().send(channel, delivery.message.len());
                    }
                    self.local.inbox.borrow_mut().push_parcel(shard, Parcel::Effect(effect));
                    continue;
                }
                None => continue,
            }
            if channel == own {
                match &effect {
                    Effect::Reply { request, reply, .. } => self.local.handle_own_reply(*request, reply),
                    Effect::Confirm { first, count, .. } => self.local.dead_letters_answered(*first, *count, true),
                    Effect::Refuse { first, count, .. } => self.local.dead_letters_answered(*first, *count, false),
                    _ => {}
                }
                continue;
            }
            let Some((client, number)) = self.local.client_of(channel) else { continue };
            let same = |next: &Effect| channel_of(next) == Some(channel);
            client.handle_effects((channel, number), effect, || effects.next_if(same), self.local);
            self.local.flush_later(&client);
        }
    }
}

impl Intake for Local {
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Waits) -> R) -> R {
        f(self.inbox.borrow_mut().waits())
    }
}

impl Edge for Connections<'_> {
    fn take_effects(&mut self, partition: PartitionId, _: Option<&QueuePartition>, effects: &mut Vec<Effect>) {
        for client in self.reserved.drain(..) {
            client.settle_reserved();
        }
        for channel in self.reserved_remote.drain(..) {
            self.local.remote.borrow_mut().settle(channel);
        }
        self.deliver(effects.drain(..), Some(partition));
    }
}

/// The task that steps the shard. It is woken by the first command or parcel and runs behind the
/// tasks that were ready before, so that one step carries what all of them had.
struct StepTask {
    local: Rc<Local>,
    shard: Shard<Decided>,
    /// Where what the partitions want done goes; `None` if nothing here is durable.
    disk: Option<ShardDisk>,
    parcels: Vec<Parcel>,
    due: Vec<Seat>,
    reserved: Vec<Rc<Client>>,
    reserved_remote: Vec<ChannelKey>,
    /// The channel of each effect parcel's connection is looked up once for a run of them.
    arrived: Vec<Effect>,
    drain: Drain,
    was_loaded: bool,
    /// Bytes that came by the mailbox and are not in the gauge yet.
    taken_bytes: u64,
    trim_at: Option<Millis>,
    sleep: Pin<Box<tokio::time::Sleep>>,
    sleep_until: Option<Millis>,
}

impl StepTask {
    fn handle_parcels(&mut self, waker: &Waker, now: Millis) {
        loop {
            self.taken_bytes += self.local.shared.mailboxes[self.local.index].take(&mut self.parcels, waker);
            if self.parcels.is_empty() {
                break;
            }
            let mut parcels = std::mem::take(&mut self.parcels);
            for parcel in parcels.drain(..) {
                if !matches!(parcel, Parcel::Drain(_)) {
                    self.drain.note_activity();
                }
                if let Parcel::Effect(effect) = parcel {
                    self.arrived.push(effect);
                    continue;
                }
                self.handle_arrived();
                self.handle_parcel(parcel, now);
            }
            self.handle_arrived();
            self.parcels = parcels;
        }
    }

    fn handle_arrived(&mut self) {
        if self.arrived.is_empty() {
            return;
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let StepTask { local, reserved, reserved_remote, .. } = self;
        Connections { local, reserved, reserved_remote }.deliver(arrived.drain(..), None);
        self.arrived = arrived;
    }

    fn handle_parcel(&mut self, parcel: Parcel, now: Millis) {
        let local = &self.local;
        match parcel {
            Parcel::Command(partition, command) => {
                if let Command::Detach { channel } = &command {
                    local.remote.borrow_mut().forget(*channel);
                }
                local.push(partition, command);
            }
            Parcel::Declare(partition, queue) => local.inbox.borrow_mut().declare(partition, queue),
            Parcel::Effect(_) => unreachable!("effects were gathered before"),
            Parcel::Starved { consumer } => {
                if let Some((client, _)) = local.client_of(consumer.channel) {
                    client.starve_remote(consumer);
                    local.flush_later(&client);
                }
            }
            Parcel::Drained { channel, bytes } => local.remote.borrow_mut().drained(channel, bytes),
            Parcel::Decided { channel, request, outcome } => {
                if channel == local.keys.borrow().own() {
                    local.deletions.decided(request, outcome, &**local);
                } else if let Some((client, number)) = local.client_of(channel) {
                    client.handle_decided((channel, number), request, outcome, local);
                    local.flush_later(&client);
                }
            }
            Parcel::Wake(partition) => local.inbox.borrow_mut().wake_partition(partition),
            Parcel::Listen(listener) => {
                let room = Arc::new(Room::new(1));
                let accept = listener::accept(listener, Door::default(), local.shared.clone(), room);
                tokio::task::spawn_local(accept);
            }
            Parcel::Accepted(arrival) => match self.drain.is_begun() {
                false => local.accept(*arrival),
                true => {
                    local.shared.gauges[local.index].connections.fetch_sub(1, Ordering::Relaxed);
                }
            },
            Parcel::Alarms => {
                for client in local.all_clients() {
                    client.set_blocked(local.shared.blocked_reason(), local, now);
                    local.flush_later(&client);
                }
            }
            Parcel::UserDeleted(name) => {
                for client in local.all_clients() {
                    client.close_if_of(&name, local, now);
                    local.flush_later(&client);
                }
            }
            Parcel::VhostDeleted(vhost, name) => {
                for client in local.all_clients() {
                    client.close_if_in(vhost, &name, local, now);
                    local.flush_later(&client);
                }
            }
            Parcel::CloseConnection { connection, text } => {
                for client in local.all_clients().into_iter().filter(|client| client.number() == connection) {
                    client.close_by_operator(&text, local, now);
                    local.flush_later(&client);
                }
            }
            Parcel::Look(Look::Connections(answer)) => {
                let reports = local.all_clients().iter().filter_map(|client| client.report(local)).collect();
                // Who does not wait any more does not need it.
                let _ = answer.send(reports);
            }
            Parcel::Look(Look::Queues(answer)) => {
                let mut figures = Vec::new();
                self.shard.survey(&mut figures);
                let _ = answer.send(figures);
            }
            Parcel::Event(event) => local.emit_event(&event),
            Parcel::Delete(deletion) => local.deletions.begin(*deletion, &**local),
            Parcel::Purge(partition, queue, answer) => local.purge(partition, queue, answer),
            Parcel::Relieved => local.resume_paused(),
            Parcel::Drain(step) => {
                let is_for_clients = self.drain.begin(step, Now { ms: now, wall_ms: wall_ms() });
                for client in local.all_clients().into_iter().filter(|_| is_for_clients) {
                    client.close(local, now);
                    local.flush_later(&client);
                }
            }
        }
    }

    fn handle_timers(&mut self, now: Millis) {
        self.local.wheel.borrow_mut().expire(now, &mut self.due);
        for seat in self.due.drain(..) {
            if let Some(client) = self.local.seated(seat) {
                client.handle_timer(&self.local, now);
                self.local.flush_later(&client);
            }
        }
        if self.drain.cut_off_at().is_some_and(|at| at <= now) {
            for client in self.local.all_clients() {
                client.cut_off();
            }
        }
    }

    fn flush(&mut self, now: Millis) {
        // Looking at a connection may make it say something to another shard, never to this list.
        let mut flush = self.local.flush.take();
        for client in flush.drain(..) {
            client.in_flush.set(false);
            client.flush(&self.local, now);
        }
        let mut kept = self.local.flush.borrow_mut();
        if kept.is_empty() {
            *kept = flush;
        }
    }

    /// Tells the other threads how much this shard holds.
    fn publish_gauges(&mut self) {
        let (local, shared) = (&self.local, &self.local.shared);
        let gauge = &shared.gauges[local.index];
        let memory = self.shard.memory_bytes();
        let keys = self.shard.key_bytes();
        let have_keys_moved = gauge.key_bytes.load(Ordering::Relaxed) != keys;
        if have_keys_moved {
            gauge.key_bytes.store(keys, Ordering::Relaxed);
        }
        if gauge.memory_bytes.swap(memory, Ordering::Relaxed) != memory || have_keys_moved {
            shared.check_memory();
        }
        // What others paused for may have been in the mailbox alone.
        self.was_loaded |= shared.is_loaded(local.index);
        gauge.unwritten_bytes.store(self.shard.unwritten_bytes(), Ordering::Relaxed);
        shared.mailboxes[local.index].release(std::mem::take(&mut self.taken_bytes));
        gauge.traffic.show(&local.tally);
        let loaded = shared.is_loaded(local.index);
        if self.was_loaded && !loaded {
            for (index, mailbox) in shared.mailboxes.iter().enumerate() {
                if index != local.index {
                    mailbox.send(Parcel::Relieved);
                }
            }
            local.resume_paused();
        }
        self.was_loaded = loaded;
    }

    /// When the next step is due without anybody asking for one.
    fn next_time(&self, now: Millis) -> Option<Millis> {
        // Another shard may hold the last slice of what this one counts.
        let alarm = self.local.shared.has_memory_alarm().then_some(now + ALARM_LOOK_MS);
        let partitions = self.shard.poll_timeout().filter(|_| !self.drain.stands_still());
        [self.local.wheel.borrow().next(), partitions, self.trim_at, self.drain.cut_off_at(), alarm]
            .into_iter()
            .flatten()
            .min()
    }

    /// Arms the one timer of this thread; true if its time has come already.
    fn is_time(&mut self, cx: &mut Context<'_>, now: Millis) -> bool {
        let next = self.next_time(now);
        if next.is_some_and(|at| at <= now) {
            return true;
        }
        self.local.armed.set(next.unwrap_or(Millis::MAX));
        let Some(next) = next else { return false };
        if self.sleep_until != Some(next) {
            self.sleep_until = Some(next);
            let at = tokio::time::Instant::now() + Duration::from_millis(next - now);
            self.sleep.as_mut().reset(at);
        }
        self.sleep.as_mut().poll(cx).is_ready()
    }
}

impl Future for StepTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let now = this.local.now();
        this.local.inbox.borrow_mut().start_step(cx.waker());
        this.handle_parcels(cx.waker(), now);
        this.handle_timers(now);
        this.local.send_dead_letters();
        let StepTask { local, shard, disk, drain, reserved, reserved_remote, .. } = &mut *this;
        let time = drain.time(Now { ms: now, wall_ms: wall_ms() });
        shard.share().are_keys_full = local.shared.are_keys_full.load(Ordering::Relaxed);
        if shard.step(time, &**local, &mut Connections { local, reserved, reserved_remote }) {
            drain.note_activity();
        }
        if let Some(disk) = disk {
            disk.end_turn(shard.share());
        }
        // Before anything is written, so that who reads the answer finds the gauges that go with
        // it.
        this.publish_gauges();
        this.flush(now);
        this.publish_gauges();
        this.local.inbox.borrow_mut().post(&this.local.shared.mailboxes);
        if let Some(disk) = &mut this.disk {
            disk.commit();
        }
        let has_clients = !this.local.clients.borrow().is_empty();
        let is_busy = this.shard.unwritten_bytes() > 0
            || this.local.inbox.borrow().is_woken()
            || !this.local.outgoing.borrow().is_empty();
        if this.drain.end_turn(now, has_clients, is_busy) {
            return Poll::Ready(());
        }
        match this.trim_at {
            Some(at) if at <= now => {
                this.trim_at = None;
                this.shard.trim();
                (this.local.shared.config.on_quiet)();
                this.local.inbox.borrow_mut().trim();
            }
            // The step that trims leaves nothing to trim, so an idle shard is not woken again.
            _ => {
                this.trim_at.get_or_insert(now + TRIM_AFTER_MS);
            }
        }
        if this.is_time(cx, now) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Runs a shard until it is drained.
pub(crate) fn run(parts: Parts) {
    let Parts { index, shared, make_partitions } = parts;
    let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, shard = index, "a shard has no runtime");
            return;
        }
    };
    runtime.block_on(async move {
        let ShardParts { members, share, disk } = make_partitions(index);
        let shard = Shard::new(transient_partition(index), members, share);
        let local = Rc::new(Local {
            index,
            inbox: RefCell::new(Inbox::new(index, shared.directory.clone(), shard.len())),
            keys: RefCell::new(ChannelKeys::new(shared.config.life, index)),
            remote: RefCell::default(),
            window: Cell::new(window_bytes(0)),
            clients: RefCell::default(),
            lives: Cell::new(0),
            channels: RefCell::default(),
            wheel: RefCell::default(),
            armed: Cell::new(0),
            flush: RefCell::default(),
            paused: RefCell::default(),
            asked: RefCell::default(),
            deletions: Deletions::default(),
            last_request: Cell::new(0),
            tally: Tally::default(),
            outgoing: RefCell::default(),
            awaited: RefCell::default(),
            shared: shared.clone(),
        });
        let step = StepTask {
            local,
            shard,
            disk,
            parcels: Vec::new(),
            due: Vec::new(),
            reserved: Vec::new(),
            reserved_remote: Vec::new(),
            arrived: Vec::new(),
            drain: Drain::default(),
            was_loaded: false,
            taken_bytes: 0,
            trim_at: None,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            sleep_until: None,
        };
        // As a task and not here: waking the future of block_on costs a system call, waking a task
        // a push.
        let done = pin!(tokio::task::spawn_local(step));
        if done.await.is_err() {
            tracing::error!(shard = index, "a shard's step panicked");
        }
    });
}

//! The thread of a shard: its runtime, its step task, and the tables that its connection tasks
//! share.
//!
//! Invariant: everything here is touched by one thread only. No borrow of a cell is held while a
//! task waits, and a connection is borrowed by at most one of: its own task, the step task's
//! timers, the step task's effects.

use super::{Arrival, InQueues, Look, Outsider, Parcel, Seat, ShardStatistics, Watch, Wheel};
use crate::cluster::LinkOut;
use crate::connection::{Client, ConnectionTask};
use crate::drain::Drain;
use crate::engine::{Decided, ShardDisk, wall_ms};
use crate::listener::{self, Door, Room};
use crate::node::{MakePartitions, ShardParts, Shared};
use crate::random;
use crate::stream::{Stream, keep_alive};
use crate::topology_log::Answer;
use amqp::Millis;
use broker::topology::{Applied, Command as Change, CommandReply, Name, Refusal, Topology};
use broker::{ChannelKey, ConsumerKey, NodeNumber, PartitionId, VhostId};
use node::{Now, Shard, Share, Stage, StageClock};
use partition::{Command, Effect, RequestId};
use session::{Ledger, Peer, Span, Tally};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use switch::{Crossing, Follower, LEADERS_LOOK_MS, Surroundings, Switch, Tell, window_bytes};
use tokio::runtime::{Builder, LocalOptions};

/// What clients are told of a node that serves none any more, in RabbitMQ's words.
const MAINTENANCE: &str = "Node was put into maintenance mode";
/// A shard that does something gives the memory of bursts back this often.
const TRIM_AFTER_MS: Millis = 2_000;

/// One step in so many begins to measure an entry.
const MEASURED_STEPS: u32 = 16;

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
    pub(crate) switch: Switch<Rc<Client>, Outsider>,
    /// Bytes that may be queued towards each socket.
    window: Cell<usize>,
    clients: RefCell<Slab<Rc<Client>>>,
    lives: Cell<u32>,
    wheel: RefCell<Wheel>,
    /// When the step task wakes up by itself.
    armed: Cell<Millis>,
    /// Connections with something to write, or to answer to, after this step.
    flush: RefCell<Vec<Rc<Client>>>,
    /// Connections that do not read while a shard is loaded.
    paused: RefCell<Vec<Rc<Client>>>,
    /// What goes through here.
    pub(crate) tally: Tally,
    /// The same by exchange and queue.
    pub(crate) ledger: Ledger,
    /// How long things take.
    pub(crate) stages: StageClock,
    /// When a publish that is measured was handed over; 0 if none was since the last step.
    pub(crate) queued_us: Cell<u64>,
    /// Traced publishes in the hands of the partitions of this shard.
    watch: Watch,
    /// The links to other nodes whose sockets this shard has.
    links: Rc<RefCell<Vec<Rc<LinkOut>>>>,
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

    /// A traced publish was handed to a partition of this shard: `span` ends once it is safe there.
    pub(crate) fn watch(&self, partition: PartitionId, span: Box<Span>) {
        if let (Some(spans), Some(_)) = (&self.shared.spans, self.watch.push(partition, span)) {
            spans.drop_one();
        }
    }

    /// Has the step task run once, after the tasks that are ready now.
    pub(crate) fn wake(&self) {
        self.switch.inbox().borrow_mut().wake();
    }

    /// Whether what is published to partitions of a shard has to wait: it has as much to write as it
    /// may, or so much is on its way to other nodes.
    #[inline]
    pub(crate) fn is_loaded_for(&self, shard: usize) -> bool {
        self.shared.is_loaded(shard) || self.shared.leaders.has_peers() && self.switch.inbox().borrow().is_full()
    }

    /// Whether the step task is on its way.
    pub(crate) fn is_woken(&self) -> bool {
        self.switch.inbox().borrow().is_woken()
    }

    /// Has a connection looked at by the step task once the effects are in: it has something to
    /// write or to answer.
    pub(crate) fn flush_later(&self, client: &Rc<Client>) {
        if !client.in_flush.replace(true) {
            self.flush.borrow_mut().push(client.clone());
            self.wake();
        }
    }

    /// Has a connection called at `at`, or a little later.
    pub(crate) fn enter_wheel(&self, at: Millis, seat: Seat) {
        self.wheel.borrow_mut().enter(at, seat);
        if at < self.armed.get() {
            // The step task sleeps longer than that: it has to look again.
            self.wake();
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

    /// Sends what the partitions of a turn have to say to other nodes.
    fn send_to_nodes(&self, share: &mut Share) {
        for (node, partition, forward) in share.forwards.drain(..) {
            self.switch.forward(node, partition, forward);
        }
        match self.shared.links.get() {
            Some(links) if !share.out.frames.is_empty() => {
                links.send_group(self.index, share.out.frames.drain(..));
                self.flush_links();
            }
            // It is about to start, or has ended.
            _ => share.out.frames.clear(),
        }
    }

    /// Writes what waits for the links that this shard has.
    fn flush_links(&self) {
        self.links.borrow().iter().for_each(|link| link.flush());
    }

    /// Starts serving a connection.
    fn accept(self: &Rc<Self>, arrival: Arrival) {
        let Arrival { socket: stream, peer, is_loopback, tls, certificate_user, is_own, token } = arrival;
        let failed = |error: std::io::Error| tracing::warn!(%peer, %error, "connection lost before it began");
        // Confirms and deliveries are small and wait for nothing; we gather them ourselves.
        // What is the node's own is no TCP and waits for nothing anyway.
        if !is_own && let Err(error) = stream.set_nodelay(true).and_then(|()| keep_alive(&stream)) {
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
        let offer = self.shared.offers.of(is_own, certificate_user.is_some(), self.shared.topology.cluster_name());
        let peer_of = Peer { address: peer, local_address, is_loopback, certificate_user, is_own, token };
        let client = Rc::new(Client::new(self, seat, Stream::new(stream, tls), peer_of, offer));
        self.switch.connection_came(client.number().0);
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
            self.wake();
        }
    }

    fn seated(&self, seat: Seat) -> Option<Rc<Client>> {
        self.clients.borrow().get(seat.0 as usize).filter(|client| client.seat == seat).cloned()
    }

    fn all_clients(&self) -> Vec<Rc<Client>> {
        self.clients.borrow().iter().map(|(_, client)| client.clone()).collect()
    }
}

/// What a shard's switch sees of its thread.
pub(crate) struct Here<'a>(pub(crate) &'a Rc<Local>);

impl Surroundings for Here<'_> {
    type Connection = Rc<Client>;
    type Outsider = Outsider;

    fn topology(&self) -> impl Deref<Target = Topology> {
        self.0.shared.topology()
    }

    fn event_vhost(&self) -> Option<VhostId> {
        let name = self.0.shared.config.event_vhost.as_deref()?;
        self.0.shared.topology().vhost(name.as_bytes())
    }

    fn apply_local(&self, change: &Change, tell: &impl Tell) -> Applied {
        self.0.shared.change_topology(change, Topology::apply_local, true, tell)
    }

    fn propose(&self, change: Change, channel: ChannelKey, request: RequestId) {
        let mailbox = self.0.shared.mailboxes[self.0.index].clone();
        self.0.shared.log().propose(change, Answer::new(mailbox, channel, request));
    }

    fn vhost_deleted(&self, vhost: VhostId, name: &Name) {
        Follower::vhost_deleted(&*self.0.shared, vhost, name);
    }

    fn user_deleted(&self, name: &Name) {
        Follower::user_deleted(&*self.0.shared, name);
    }

    fn mail(&self, shard: usize, parcel: switch::Parcel<Outsider>) {
        self.0.shared.mailboxes[shard].cross(parcel);
    }

    fn room(&self, client: &Rc<Client>, consumer: ConsumerKey) -> usize {
        let portion = client.reserve(consumer, self.0.window());
        if portion == 0 {
            self.0.flush_later(client);
        }
        portion
    }

    fn settle_room(&self, client: &Rc<Client>) {
        client.settle_reserved();
    }

    fn starve(&self, client: &Rc<Client>, consumer: ConsumerKey) {
        client.starve_remote(consumer);
        self.0.flush_later(client);
    }

    fn hear(
        &self,
        client: &Rc<Client>,
        channel: (ChannelKey, u16),
        first: Effect,
        next: &mut dyn FnMut() -> Option<Effect>,
    ) {
        client.handle_effects(channel, first, next, self.0);
        self.0.flush_later(client);
    }

    fn hear_decided(
        &self,
        client: &Rc<Client>,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<CommandReply, Refusal>,
    ) {
        client.handle_decided(channel, request, outcome, self.0);
        self.0.flush_later(client);
    }

    #[inline]
    fn passes(&self, partition: PartitionId, command: &Command) {
        if self.0.shared.spans.is_none() {
            return;
        }
        let Command::Publish(publish) = command else { return };
        // What the shards themselves publish is no client's, and nobody's publish span.
        let is_of_shard = publish.publish_seq != 0 && Switch::<Rc<Client>, Outsider>::is_of_shard(publish.channel);
        if let Some(span) = Span::of_stored(publish, random::dice, self.0.shared.elapsed_us()).filter(|_| !is_of_shard)
        {
            self.0.watch(partition, span);
        }
    }

    fn is_loaded(&self) -> bool {
        self.0.shared.is_loaded(self.0.index)
    }

    fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    fn dice(&self) -> u64 {
        random::dice()
    }

    fn elapsed_us(&self) -> u64 {
        self.0.shared.elapsed_us()
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
    /// The channel of each effect parcel's connection is looked up once for a run of them.
    arrived: Vec<Effect>,
    drain: Drain,
    was_loaded: bool,
    /// Bytes that came by the mailbox and are not in the gauge yet.
    taken_bytes: u64,
    /// An entry that is measured: its group, its index, and when it was proposed.
    proposed: Option<(PartitionId, u64, u64)>,
    steps: u32,
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
                if let Parcel::Crossing(switch::Parcel::Effect(partition, effect)) = parcel {
                    self.local.switch.hear(partition, effect, &mut self.arrived);
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
        self.local.switch.deliver(arrived.drain(..), None, &Here(&self.local));
        self.arrived = arrived;
    }

    fn handle_parcel(&mut self, parcel: Parcel, now: Millis) {
        let local = &self.local;
        match parcel {
            Parcel::Crossing(parcel) => {
                match &parcel {
                    switch::Parcel::LinkUp(link) => self.shard.link_up(NodeNumber(link.peer.node), &local.switch),
                    switch::Parcel::LinkDown(node) => self.shard.link_lost(*node, now, &local.switch),
                    _ => {}
                }
                local.switch.take(parcel, &Here(local));
            }
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
            Parcel::Linked(arrival) => arrival.begin(&local.links),
            Parcel::Alarms => {
                for client in local.all_clients() {
                    client.set_blocked(local.shared.alarms.blocked_reason(), local, now);
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
            Parcel::CloseClients => {
                // The API serves on, so what it has under way is finished.
                for client in local.all_clients().into_iter().filter(|client| !client.is_own) {
                    client.close_by_operator(MAINTENANCE, local, now);
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
                let _ = answer.send(vec![InQueues::new(figures, self.shard.surveyed())]);
            }
            Parcel::Look(Look::Disk(only, answer)) => {
                let mut figures = Vec::new();
                self.shard.disk_figures(only, &mut figures);
                let _ = answer.send(figures);
            }
            Parcel::Look(Look::Members(answer)) => {
                let mut standings = Vec::new();
                self.shard.standings(&mut standings);
                let _ = answer.send(standings);
            }
            Parcel::Look(Look::Statistics(answer)) => {
                let figures = |client: Rc<Client>| client.figures(local);
                let connections = local.all_clients().into_iter().filter_map(figures).collect();
                let mut queues = Vec::new();
                self.shard.survey(&mut queues);
                let (partitions, stages) = (self.shard.group_figures(), local.stages.read());
                let counted = local.ledger.take();
                local.switch.note_given_up(&local.shared.topology(), self.shard.take_given_up());
                let dead_lettered = local.switch.dead_lettered();
                let statistics = ShardStatistics { connections, queues, counted, partitions, dead_lettered, stages };
                let _ = answer.send(vec![statistics]);
            }
            Parcel::Password { seat, is_right } => {
                if let Some(client) = local.seated(seat) {
                    client.handle_password(is_right, local, now);
                    local.flush_later(&client);
                }
            }
            Parcel::Token { seat, told } => {
                if let Some(client) = local.seated(seat) {
                    client.handle_token(told, local, now);
                    local.flush_later(&client);
                }
            }
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

    /// A publish that is measured has waited until now.
    fn note_queued(&self) {
        let queued_us = self.local.queued_us.take();
        if queued_us != 0 {
            let waited_us = self.local.shared.elapsed_us().saturating_sub(queued_us);
            self.local.stages.note(Stage::Queue, waited_us);
        }
    }

    /// Measures how long an entry takes from its proposal until it is committed: one at a time, and
    /// seldom, as it takes a look at the groups.
    fn note_proposed(&mut self) {
        if let Some((partition, index, begin_us)) = self.proposed {
            match self.shard.committed(partition) {
                Some((committed, _)) if committed < index => {}
                Some((_, stage)) => {
                    let took_us = self.local.shared.elapsed_us().saturating_sub(begin_us);
                    self.local.stages.note(stage, took_us);
                    self.proposed = None;
                }
                // It leads no more: nobody knows.
                None => self.proposed = None,
            }
            return;
        }
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(MEASURED_STEPS)
            && let Some((partition, index)) = self.shard.proposed()
        {
            self.proposed = Some((partition, index, self.local.shared.elapsed_us()));
        }
    }

    /// Ends the spans of traced publishes that are safe now.
    #[cold]
    fn look_at_traced(&self) {
        let StepTask { local, shard, .. } = self;
        let Some(spans) = &local.shared.spans else { return };
        let progress = |partition| shard.progress(partition);
        local.watch.end_step(progress, |span| spans.end(span));
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
        self.was_loaded |= local.is_loaded_for(local.index);
        gauge.unwritten_bytes.store(self.shard.unwritten_bytes(), Ordering::Relaxed);
        shared.mailboxes[local.index].release(std::mem::take(&mut self.taken_bytes));
        gauge.traffic.show(&local.tally);
        let loaded = local.is_loaded_for(local.index);
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
        let alarm = self.local.shared.memory.is_over().then_some(now + ALARM_LOOK_MS);
        let partitions = self.shard.poll_timeout().filter(|_| !self.drain.stands_still());
        let leader = self.local.switch.is_leaderless().then_some(now + LEADERS_LOOK_MS);
        [self.local.wheel.borrow().next(), partitions, self.trim_at, self.drain.cut_off_at(), alarm, leader]
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
        this.local.switch.inbox().borrow_mut().start_step(cx.waker());
        this.note_queued();
        this.handle_parcels(cx.waker(), now);
        this.handle_timers(now);
        this.local.switch.resume_roads(&Here(&this.local));
        this.local.switch.send_dead_letters(&Here(&this.local));
        if !this.local.watch.is_empty() {
            this.local.watch.begin_step(this.local.shared.elapsed_us());
        }
        let StepTask { local, shard, drain, .. } = &mut *this;
        let time = drain.time(Now { ms: now, wall_ms: wall_ms() });
        shard.share().are_keys_full = local.shared.memory.are_keys_full();
        if shard.step(time, &local.switch, &mut Crossing { switch: &local.switch, env: &Here(local) }) {
            drain.note_activity();
        }
        let has_peers = local.shared.leaders.has_peers();
        this.note_proposed();
        if !this.local.watch.is_empty() {
            this.look_at_traced();
        }
        let StepTask { local, shard, disk, .. } = &mut *this;
        if has_peers {
            local.send_to_nodes(shard.share());
        }
        if let Some(disk) = disk {
            disk.end_turn(shard.share(), || local.shared.topology());
        }
        // Before anything is written, so that who reads the answer finds the gauges that go with
        // it.
        this.publish_gauges();
        this.flush(now);
        this.publish_gauges();
        if let Some(links) = this.local.shared.links.get() {
            let (index, mut has_sent) = (this.local.index, false);
            this.local.switch.inbox().borrow_mut().post_away(|link, frames| {
                links.send(index, link, frames);
                has_sent = true;
            });
            if has_sent {
                this.local.flush_links();
            }
        }
        this.local.switch.inbox().borrow_mut().post(|shard, parcels, bytes| {
            this.local.shared.mailboxes[shard].send_all(parcels.drain(..).map(Parcel::Crossing), bytes);
        });
        this.local.switch.tell_leaders();
        if let Some(disk) = &mut this.disk {
            disk.commit();
        }
        let has_clients = !this.local.clients.borrow().is_empty();
        let is_busy = this.shard.unwritten_bytes() > 0 || this.local.switch.is_busy();
        if this.drain.end_turn(now, has_clients, is_busy) {
            return Poll::Ready(());
        }
        match this.trim_at {
            Some(at) if at <= now => {
                this.trim_at = None;
                this.shard.trim();
                (this.local.shared.config.on_quiet)();
                this.local.switch.inbox().borrow_mut().trim();
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
        let shard = Shard::new(shared.directory.in_memory(index), members, share);
        let local = Rc::new(Local {
            index,
            switch: Switch::new(
                shared.config.life,
                index,
                shared.directory.clone(),
                shared.leaders.clone(),
                shard.len(),
            ),
            window: Cell::new(window_bytes(0)),
            clients: RefCell::default(),
            lives: Cell::new(0),
            wheel: RefCell::default(),
            armed: Cell::new(0),
            flush: RefCell::default(),
            paused: RefCell::default(),
            tally: Tally::default(),
            ledger: Ledger::default(),
            stages: StageClock::default(),
            queued_us: Cell::new(0),
            watch: Watch::default(),
            links: Rc::default(),
            shared: shared.clone(),
        });
        let step = StepTask {
            local,
            shard,
            disk,
            parcels: Vec::new(),
            due: Vec::new(),
            arrived: Vec::new(),
            drain: Drain::default(),
            was_loaded: false,
            taken_bytes: 0,
            proposed: None,
            steps: 0,
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

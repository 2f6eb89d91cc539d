//! The thread of a shard: its runtime and its step task. What the tasks share stands in `local.rs`.
//!
//! Invariant: a connection is borrowed by at most one of: its own task, the step task's timers, the
//! step task's effects.

use super::{Here, InQueues, Local, Look, Parcel, Seat, ShardStatistics, Turns, Watch};
use crate::connection::Client;
use crate::drain::{Drain, Rest};
use crate::engine::{Decided, ShardDisk, wall_ms};
use crate::listener::{self, Door, Room};
use crate::node::{MakePartitions, ShardParts, Shared};
use amqp::Millis;
use broker::{NodeNumber, PartitionId};
use node::{Now, Shard, Stage, StageClock};
use partition::Effect;
use session::{Ledger, Tally};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use switch::{Crossing, LEADERS_LOOK_MS, Switch, window_bytes};
use tokio::runtime::{Builder, LocalOptions};

/// What clients are told of a node that serves none any more, in RabbitMQ's words.
const MAINTENANCE: &str = "Node was put into maintenance mode";
/// A shard that does something gives the memory of bursts back this often.
const TRIM_AFTER_MS: Millis = 2_000;

/// One step in so many begins to measure an entry.
const MEASURED_STEPS: u32 = 16;

/// How often it is looked whether dead letters may leave that wait for another shard, or another node.
const LETTERS_LOOK_MS: Millis = 10;

/// How often the memory in use is looked at while there is too much of it.
const ALARM_LOOK_MS: Millis = 50;

/// What a shard thread starts with.
pub(crate) struct Parts {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) make_partitions: MakePartitions,
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
    /// The sockets were looked at once more for this step.
    has_looked: bool,
    /// As of which version of the topology its queues were looked at.
    topology_version: Option<u64>,
}

impl StepTask {
    /// Has the sockets looked at once more before a step that begins a round of the log, so that the round carries what
    /// arrived while the others were read; true if the step has to wait for that. It costs an `epoll_wait` that does not
    /// wait, and a round costs a write and a sync on each node. Connections that always have more to do would have a second
    /// turn meanwhile, and there is much in the round already.
    fn looks_again(&mut self, cx: &mut Context<'_>) -> bool {
        self.has_looked =
            !self.has_looked && self.local.busy() <= 1 && self.local.switch.inbox().borrow().has_publish();
        self.has_looked && pin!(tokio::task::yield_now()).poll(cx).is_pending()
    }

    fn handle_parcels(&mut self, waker: &Waker, now: Millis) {
        let mut is_told = false;
        loop {
            self.look_at_queues(is_told);
            self.taken_bytes += self.local.shared.mailboxes[self.local.index].take(&mut self.parcels, waker);
            if self.parcels.is_empty() {
                break;
            }
            let mut parcels = std::mem::take(&mut self.parcels);
            is_told = false;
            for parcel in parcels.drain(..) {
                is_told |= matches!(parcel, Parcel::Crossing(switch::Parcel::Declare(..)));
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

    /// Looks which queues the topology knows, before the mail is taken out in which this shard is told of them. `is_told`:
    /// it was told of one meanwhile, which the topology may be about to show.
    fn look_at_queues(&mut self, is_told: bool) {
        let local = &self.local;
        let version = local.shared.topology.version();
        if is_told || self.topology_version != Some(version) {
            self.topology_version = Some(version);
            local.switch.look_at_queues(&Here(local));
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

    /// Tells the other threads how much this shard holds, and has connections read on that waited for it.
    fn publish_gauges(&mut self) {
        self.show_gauges();
        self.resume_readers();
    }

    fn show_gauges(&mut self) {
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
    }

    /// Has the connections of all shards read on that waited.
    fn relieve_all(&self) {
        for (index, mailbox) in self.local.shared.mailboxes.iter().enumerate() {
            if index != self.local.index {
                mailbox.send(Parcel::Relieved);
            }
        }
        self.local.resume_paused();
    }

    fn resume_readers(&mut self) {
        let local = &self.local;
        let loaded = local.is_loaded_for(local.index);
        if self.was_loaded && !loaded {
            self.relieve_all();
        } else if local.waits_for_turn.take() {
            local.resume_paused();
        }
        self.was_loaded = loaded;
    }

    /// When the next step is due without anybody asking for one.
    fn next_time(&self, now: Millis) -> Option<Millis> {
        // Another shard may hold the last slice of what this one counts.
        let alarm = self.local.shared.memory.is_over().then_some(now + ALARM_LOOK_MS);
        let partitions = self.shard.poll_timeout().filter(|_| !self.drain.stands_still());
        // A shard without members of its own hears of a leader by looking only.
        let looks = self.local.switch.is_leaderless() || (partitions.is_none() && self.local.switch.has_holders());
        let leader = looks.then_some(now + LEADERS_LOOK_MS);
        // Those that are not held back have woken this task already.
        let letters = self.local.switch.has_dead_letters().then_some(now + LETTERS_LOOK_MS);
        [self.local.wheel.borrow().next(), partitions, self.trim_at, self.drain.cut_off_at(), alarm, leader, letters]
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
        if this.looks_again(cx) {
            return Poll::Pending;
        }
        let now = this.local.now();
        this.local.switch.inbox().borrow_mut().start_step(cx.waker());
        this.note_queued();
        this.handle_parcels(cx.waker(), now);
        this.handle_timers(now);
        this.local.switch.resume_roads(&Here(&this.local));
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
        let StepTask { local, shard, disk, drain, .. } = &mut *this;
        if has_peers && drain.is_over() {
            shard.note_applied();
        }
        if has_peers {
            local.send_to_nodes(shard.share());
        }
        if let Some(disk) = disk {
            disk.end_turn(shard.share(), || local.shared.topology());
        }
        this.local.switch.inbox().borrow_mut().end_turn();
        if has_peers && this.local.shared.lease.take_awaited(now) {
            this.relieve_all();
        }
        // Before anything is written, so that who reads the answer finds the gauges that go with
        // it.
        this.show_gauges();
        // Before publishers read on: where the disk is the limit, they would leave no room for dead letters.
        this.local.switch.send_dead_letters(&Here(&this.local));
        this.local.switch.tell_dropped(|| this.local.shared.elapsed_us());
        this.resume_readers();
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
            let rest = disk.rest();
            if rest.is_some_and(|at_most| this.local.shared.mailboxes[this.local.index].rest(at_most)) {
                cx.waker().wake_by_ref();
            }
        }
        let has_clients = !this.local.clients.borrow().is_empty();
        let StepTask { local, shard, drain, .. } = &mut *this;
        let under_way = || match shard.unwritten_bytes() {
            _ if local.switch.is_busy() || shard.has_own_unwritten() => Rest::Busy,
            0 if !local.switch.has_letters_on_their_way() => Rest::Quiet,
            _ => Rest::ForOthers,
        };
        if drain.end_turn(now, has_clients, under_way) {
            local.switch.tell_dropped(|| u64::MAX);
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
            busy: Cell::default(),
            paused: RefCell::default(),
            turns: Turns::default(),
            waits_for_turn: Cell::default(),
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
            has_looked: false,
            topology_version: None,
        };
        // As a task and not here: waking the future of block_on costs a system call, waking a task
        // a push.
        let done = pin!(tokio::task::spawn_local(step));
        if done.await.is_err() {
            tracing::error!(shard = index, "a shard's step panicked");
        }
    });
}

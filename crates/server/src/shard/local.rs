//! What the tasks of one shard share: its switch, its connections, and who waits for what.
//!
//! Invariant: everything here is touched by one thread only. No borrow of a cell is held while a task waits,
//! and a seat holds the connection that it was given to until that leaves it.

use super::paused::Paused;
use super::{Arrival, Outsider, Seat, Turns, Watch, Wheel};
use crate::cluster::LinkOut;
use crate::connection::{Client, ConnectionTask};
use crate::node::Shared;
use crate::stream::{Stream, keep_alive};
use amqp::Millis;
use broker::PartitionId;
use node::{Share, StageClock};
use session::{Ledger, Peer, Span, Tally};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use switch::{Switch, window_bytes};

/// What the tasks of one shard share.
pub(crate) struct Local {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) switch: Switch<Rc<Client>, Outsider>,
    /// Bytes that may be queued towards each socket.
    pub(super) window: Cell<usize>,
    pub(super) clients: RefCell<Slab<Rc<Client>>>,
    pub(super) lives: Cell<u32>,
    pub(super) wheel: RefCell<Wheel>,
    /// When the step task wakes up by itself.
    pub(super) armed: Cell<Millis>,
    /// Connections with something to write, or to answer to, after this step.
    pub(super) flush: RefCell<Vec<Rc<Client>>>,
    /// Connections that have more to do than one turn, or read much in the last one.
    pub(super) busy: Cell<usize>,
    /// Connections of which a turn cost far more than it might.
    pub(crate) turns: Turns,
    /// Connections that do not read while a shard is loaded.
    pub(super) paused: RefCell<Paused<Rc<Client>>>,
    /// Some of them do so for what is about to be handled with the next turn.
    pub(super) waits_for_turn: Cell<bool>,
    /// What goes through here.
    pub(crate) tally: Tally,
    /// The same by exchange and queue.
    pub(crate) ledger: Ledger,
    /// How long things take.
    pub(crate) stages: StageClock,
    /// When a publish that is measured was handed over; 0 if none was since the last step.
    pub(crate) queued_us: Cell<u64>,
    /// Traced publishes in the hands of the partitions of this shard.
    pub(super) watch: Watch,
    /// The links to other nodes whose sockets this shard has.
    pub(super) links: Rc<RefCell<Vec<Rc<LinkOut>>>>,
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

    /// How many connections have more to do than one turn.
    #[inline]
    pub(crate) fn busy(&self) -> usize {
        self.busy.get()
    }

    /// One more has, or one less.
    pub(crate) fn count_busy(&self, is_busy: bool) {
        self.busy.set(if is_busy { self.busy.get() + 1 } else { self.busy.get() - 1 });
    }

    /// Has the step task run once, after the tasks that are ready now.
    pub(crate) fn wake(&self) {
        self.switch.inbox().borrow_mut().wake();
    }

    /// Whether what is published to partitions of a shard has to wait: it has as much to write as it
    /// may, or so much is on its way to other nodes. What sockets brought since the last turn counts, too: all of them
    /// are read in between, and a small message takes several times the memory of its text.
    #[inline]
    pub(crate) fn is_loaded_for(&self, shard: usize) -> bool {
        let inbox = self.switch.inbox().borrow();
        if self.shared.is_loaded(shard, 0) || self.shared.leaders.has_peers() && inbox.is_full() {
            return true;
        }
        let waits_for_turn = self.shared.is_loaded(shard, inbox.waiting_bytes(shard));
        self.waits_for_turn.set(self.waits_for_turn.get() || waits_for_turn);
        waits_for_turn
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

    /// Has a connection read again once the shards are not loaded any more. `has_read`: it did so just now.
    pub(crate) fn pause(&self, client: &Rc<Client>, has_read: bool) {
        if !client.is_paused.replace(true) {
            self.paused.borrow_mut().push(client.clone(), has_read);
        }
    }

    pub(super) fn resume_paused(&self) {
        let paused = self.paused.borrow_mut().take();
        for client in paused {
            client.is_paused.set(false);
            client.wake();
        }
    }

    /// Sends what the partitions of a turn have to say to other nodes.
    pub(super) fn send_to_nodes(&self, share: &mut Share) {
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
    pub(super) fn flush_links(&self) {
        self.links.borrow().iter().for_each(|link| link.flush());
    }

    /// Starts serving a connection.
    pub(super) fn accept(self: &Rc<Self>, arrival: Arrival) {
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

    pub(super) fn seated(&self, seat: Seat) -> Option<Rc<Client>> {
        self.clients.borrow().get(seat.0 as usize).filter(|client| client.seat == seat).cloned()
    }

    pub(super) fn all_clients(&self) -> Vec<Rc<Client>> {
        self.clients.borrow().iter().map(|(_, client)| client.clone()).collect()
    }
}

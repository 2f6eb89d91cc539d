//! One client connection on its shard: the socket, the AMQP machine and the session between machine
//! and partitions.
//!
//! Invariant: bytes go one way only, socket to machine to session to partitions, and back; nobody
//! but this file and those below it touches the socket. What is read in one turn is handled in that
//! turn; what is to be written is written once a turn, after the partitions have answered. An idle
//! connection owns no read buffer.
//!
//! In reading order: the connection in the hands of its shard (here), what is read (`reading`), a client
//! that is not read (`unread`), one that does not read (`untaken`), and the task that its socket wakes (`task`).

mod reading;
mod task;
mod unread;
mod untaken;

pub(crate) use task::ConnectionTask;
pub(crate) use untaken::Untaken;

use crate::engine::wall_ms;
use crate::shard::{Local, Place, Seat};
use crate::stream::Stream;
use crate::tokens::Told;
use crate::turn::Turn;
use amqp::{Connection, Millis, ReplyCode};
use broker::topology::{CommandReply, Refusal};
use broker::{ChannelKey, ConsumerKey, PartitionId, VhostId};
use bytes::BytesMut;
use partition::{Effect, RequestId};
use reading::READ_BYTES_MIN;
use session::report::{ConnectionFigures, ConnectionNumber, ConnectionReport, Seen};
use session::{Cx, Peer, Session};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use switch::{ConnectionKeys, Window};
use unread::SignsOfLife;
use untaken::Unread;

/// A connection that was not read for this long gives its read buffer back.
const READ_IDLE_MS: Millis = 900;
/// Slices of one vectored write; more are written by the next one.
const WRITE_SLICES: usize = 32;
/// How often a client that is not read is looked at: whether it closed its end, and whether it
/// still sends.
const UNREAD_LOOK_MS: Millis = 1_000;
/// How long a finished connection waits for the client to close its end, so that the last frames
/// are not lost to a reset.
const FIN_WAIT_MS: Millis = 1_000;

const NEVER: Millis = Millis::MAX;

/// A connection.
pub(crate) struct Client {
    pub(crate) seat: Seat,
    /// It is in its shard's list of connections to look at after the step.
    pub(crate) in_flush: Cell<bool>,
    /// It is in its shard's list of connections that wait for a loaded shard.
    pub(crate) is_paused: Cell<bool>,
    /// The keys of its channels.
    pub(crate) keys: Cell<ConnectionKeys>,
    /// It is the node's own, which carries a request of HTTP.
    pub(crate) is_own: bool,
    /// It is counted among those that have more to do than one turn.
    is_busy: Cell<bool>,
    inner: RefCell<Inner>,
    waker: RefCell<Option<Waker>>,
}

struct Inner {
    stream: Stream,
    amqp: Connection,
    session: Session,
    input: BytesMut,
    read_bytes: usize,
    small_reads: u8,
    /// The machine did not take all of `input`, for want of room and not of bytes.
    input_blocked: bool,
    /// A turn ended before all that came was handled: the task goes on once others were served.
    is_yielding: bool,
    /// Among those that wait as their last turn cost far more than it might.
    place: Place,
    /// It has read so much that others have their turn first, and a look at their sockets.
    has_read_much: bool,
    /// Not read for a reason of ours that the machine does not know.
    was_paused: bool,
    /// The socket took less than there was: the connection's task waits until it takes more.
    is_full: bool,
    /// The client sends nothing more, or the socket broke.
    is_deaf: bool,
    is_broken: bool,
    /// The client closed its end while it left its answers unread. What it sent before still
    /// counts; what there is to tell it does not.
    is_leaving: bool,
    /// The signs of life of a client that is not read, at the last look.
    signs: SignsOfLife,
    /// While there is no room for its frames: its last signs of life, and when they were seen.
    held: Option<(SignsOfLife, Millis)>,
    window: Window,
    /// What the socket did not take.
    untaken: Unread,
    /// Consumers that were passed over because the window was full.
    starved: Vec<ConsumerKey>,
    /// The earliest entry in the shard's wheel.
    wheel_at: Millis,
    /// When a finished connection stops waiting for the client's end.
    cut_at: Millis,
    last_read: Millis,
    /// Bytes that came, of TLS what was in it.
    received_bytes: u64,
    /// When it came, milliseconds since the epoch.
    connected_ms: u64,
}

impl Client {
    /// A connection that was just accepted, with what its client is offered.
    pub(crate) fn new(
        local: &Rc<Local>,
        seat: Seat,
        stream: Stream,
        peer: Peer,
        offer: Arc<amqp::ConnectionConfig>,
    ) -> Self {
        let (now, is_own) = (local.now(), peer.is_own);
        let mut amqp = Connection::new(offer, now);
        amqp.set_blocked(local.shared.alarms.blocked_reason());
        let inner = Inner {
            stream,
            amqp,
            // A key that no channel gets is a number that no other connection gets.
            session: Session::new(peer, ConnectionNumber(local.switch.next_connection())),
            input: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            small_reads: 0,
            input_blocked: false,
            is_yielding: false,
            place: Place::default(),
            has_read_much: false,
            was_paused: false,
            is_full: false,
            is_deaf: false,
            is_broken: false,
            is_leaving: false,
            signs: SignsOfLife::default(),
            held: None,
            window: Window::default(),
            untaken: Unread::default(),
            starved: Vec::new(),
            wheel_at: NEVER,
            cut_at: NEVER,
            last_read: now,
            received_bytes: 0,
            connected_ms: wall_ms(),
        };
        Client {
            seat,
            in_flush: Cell::new(false),
            is_paused: Cell::new(false),
            keys: Cell::default(),
            is_own,
            is_busy: Cell::new(false),
            inner: RefCell::new(inner),
            waker: RefCell::new(None),
        }
    }

    /// Whether it has more to do than one turn.
    fn set_busy(&self, is_busy: bool, local: &Local) {
        if self.is_busy.replace(is_busy) != is_busy {
            local.count_busy(is_busy);
        }
    }

    /// Has the connection's task run.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Hands out a portion of the window to `consumer`; 0 means that it is to wait, and it will be
    /// told.
    pub(crate) fn reserve(&self, consumer: ConsumerKey, window: usize) -> usize {
        let inner = &mut *self.inner.borrow_mut();
        let portion = inner.window.reserve(window, inner.amqp.output().len());
        if portion == 0 {
            inner.starved.push(consumer);
        }
        portion
    }

    /// The step's portions are used or given back.
    pub(crate) fn settle_reserved(&self) {
        self.inner.borrow_mut().window.settle();
    }

    /// A partition of another shard passed a consumer over, as too much is on its way from there.
    pub(crate) fn starve_remote(&self, consumer: ConsumerKey) {
        self.inner.borrow_mut().starved.push(consumer);
    }

    /// Somebody else leads these partitions: says what is held of them that no consumer stands for.
    pub(crate) fn hold_again(self: &Rc<Self>, partitions: &[PartitionId], local: &Rc<Local>) {
        let inner = &mut *self.inner.borrow_mut();
        inner.session.hold_again(partitions, &mut Cx { client: &mut inner.amqp, host: &Turn { local, client: self } });
    }

    /// Takes the effects for one of this connection's channels: `first`, and what `next` gives.
    pub(crate) fn handle_effects(
        self: &Rc<Self>,
        channel: (ChannelKey, u16),
        first: Effect,
        next: &mut dyn FnMut() -> Option<Effect>,
        local: &Rc<Local>,
    ) {
        let inner = &mut *self.inner.borrow_mut();
        let cx = &mut Cx { client: &mut inner.amqp, host: &Turn { local, client: self } };
        let mut effect = Some(first);
        while let Some(current) = effect {
            inner.session.handle_effect(channel, current, cx);
            effect = next();
        }
    }

    /// A proposal of one of this connection's channels was decided.
    pub(crate) fn handle_decided(
        self: &Rc<Self>,
        channel: (ChannelKey, u16),
        request: RequestId,
        outcome: Result<CommandReply, Refusal>,
        local: &Rc<Local>,
    ) {
        let inner = &mut *self.inner.borrow_mut();
        let cx = &mut Cx { client: &mut inner.amqp, host: &Turn { local, client: self } };
        inner.session.handle_decided(channel, request, outcome, cx);
    }

    /// The password of this connection's login was looked at.
    pub(crate) fn handle_password(self: &Rc<Self>, is_right: bool, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        let cx = &mut Cx { client: &mut inner.amqp, host: &Turn { local, client: self } };
        inner.session.handle_password(is_right, cx, now);
        inner.pump(self, local, now);
    }

    /// A token of this connection was looked at.
    pub(crate) fn handle_token(self: &Rc<Self>, told: Told, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        let cx = &mut Cx { client: &mut inner.amqp, host: &Turn { local, client: self } };
        inner.session.handle_token(told, cx, now);
        inner.pump(self, local, now);
    }

    /// The node's alarms changed.
    pub(crate) fn set_blocked(self: &Rc<Self>, reason: Option<&str>, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        inner.amqp.set_blocked(reason);
        inner.pump(self, local, now);
    }

    /// The node drains.
    pub(crate) fn close(self: &Rc<Self>, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        inner.amqp.close(ReplyCode::ConnectionForced, "broker shutting down");
        inner.pump(self, local, now);
    }

    /// A user was deleted: if it is the one that is logged in here, the connection is closed.
    pub(crate) fn close_if_of(self: &Rc<Self>, user: &[u8], local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.session.user() == user {
            let text = format!("user '{}' is deleted", String::from_utf8_lossy(user));
            inner.amqp.close(ReplyCode::ConnectionForced, &text);
            inner.pump(self, local, now);
        }
    }

    /// A virtual host was deleted: if this connection is in it, it is closed.
    pub(crate) fn close_if_in(self: &Rc<Self>, vhost: VhostId, name: &[u8], local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.session.open_vhost() == Some(vhost) {
            let text = format!("vhost '{}' is deleted", String::from_utf8_lossy(name));
            inner.amqp.close(ReplyCode::ConnectionForced, &text);
            inner.pump(self, local, now);
        }
    }

    /// The operator wants this connection gone.
    pub(crate) fn close_by_operator(self: &Rc<Self>, text: &str, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        inner.amqp.close(ReplyCode::ConnectionForced, text);
        inner.pump(self, local, now);
    }

    /// The connection's number on this node.
    pub(crate) fn number(&self) -> ConnectionNumber {
        self.inner.borrow().session.number()
    }

    /// What there is to tell of it; nothing before its virtual host is open.
    pub(crate) fn report(self: &Rc<Self>, local: &Rc<Local>) -> Option<ConnectionReport> {
        let inner = &mut *self.inner.borrow_mut();
        let seen = Seen {
            local_address: inner.stream.socket().local_addr().ok(),
            tls: inner.stream.tls_seen(),
            received_bytes: inner.received_bytes,
            sent_bytes: inner.amqp.output().written_bytes(),
            connected_ms: inner.connected_ms,
        };
        inner.session.report(&inner.amqp, seen, &Turn { local, client: self })
    }

    /// How much went over it; nothing before its virtual host is open. What its channels counted is
    /// in the shard's ledger afterwards.
    pub(crate) fn figures(self: &Rc<Self>, local: &Rc<Local>) -> Option<ConnectionFigures> {
        let inner = &mut *self.inner.borrow_mut();
        inner.session.take_counts(&Turn { local, client: self });
        inner.session.figures(inner.received_bytes, inner.amqp.output().written_bytes())
    }

    /// No more waiting for this client: its task ends at once.
    pub(crate) fn cut_off(&self) {
        let mut inner = self.inner.borrow_mut();
        if !std::mem::replace(&mut inner.is_broken, true) {
            tracing::warn!(peer = %inner.session.peer(), "a client did not close its connection in time and is cut off");
        }
        drop(inner);
        self.wake();
    }

    /// A time of this connection has come.
    pub(crate) fn handle_timer(self: &Rc<Self>, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        inner.wheel_at = NEVER;
        if inner.is_excused(local, now) {
            inner.amqp.resume_reading(now);
        }
        if inner.amqp.poll_timeout().is_some_and(|at| at <= now) {
            inner.amqp.handle_timeout(now);
        }
        inner.look_at_held(now);
        inner.session.handle_timeout(&mut Cx { client: &mut inner.amqp, host: &Turn { local, client: self } }, now);
        inner.pump(self, local, now);
        if inner.input.is_empty() && inner.last_read + READ_IDLE_MS <= now {
            inner.input = BytesMut::new();
            inner.read_bytes = READ_BYTES_MIN;
        }
        if inner.cut_at <= now || inner.leaves_too_much(local, now) {
            inner.is_broken = true;
            self.wake();
        }
    }

    /// After a step: handles what the answers let go on, and writes what there is to write.
    pub(crate) fn flush(self: &Rc<Self>, local: &Rc<Local>, now: Millis) {
        let inner = &mut *self.inner.borrow_mut();
        if !inner.is_yielding {
            inner.pump(self, local, now);
        }
        inner.write(now);
        inner.feed_starved(self, local);
        inner.arm(self, local, now);
        // What the client read may let others of its requests go on.
        if inner.is_full || inner.is_over() || inner.wants_task(local) || inner.amqp.has_events() {
            self.wake();
        }
    }
}

impl Inner {
    /// Hands on what the machine has to say, and input that waited for it to have room, until
    /// neither brings anything.
    ///
    /// A turn that has done much ends before that; the connection's task goes on.
    fn pump(&mut self, client: &Rc<Client>, local: &Rc<Local>, now: Millis) {
        self.take_turn(client, local, now);
        if self.is_yielding {
            client.wake();
        }
    }

    fn take_turn(&mut self, client: &Rc<Client>, local: &Rc<Local>, now: Millis) {
        if self.session.overdraft().is_some() && !local.turns.may_go(&mut self.place) {
            self.is_yielding = true;
            return;
        }
        let host = &Turn { local, client };
        self.session.begin_turn_among(local.busy(), &mut Cx { client: &mut self.amqp, host });
        loop {
            while !self.session.ends_turn()
                && let Some(event) = self.amqp.poll_event()
            {
                self.session.handle_event(event, &mut Cx { client: &mut self.amqp, host }, now);
            }
            // A frame that stops in the middle counts as what it belongs to, unless it is us who do
            // not take it.
            let cut = if self.input_blocked { 0 } else { self.input.len() };
            let bytes = cut + self.amqp.assembling_bytes();
            if self.session.count_unfinished(bytes, &mut Cx { client: &mut self.amqp, host }) {
                continue;
            }
            self.is_yielding = self.session.is_in_the_middle() || self.amqp.has_events();
            if self.is_yielding || !self.input_blocked || !self.amqp.wants_input() || self.is_flooded(local) {
                break;
            }
            // The client was not silent while the machine would not listen.
            self.amqp.resume_reading(now);
            self.take_input(now);
        }
        if let Some(work) = self.session.overdraft() {
            local.turns.spend(work);
        }
    }

    fn disconnect(&mut self, error: Option<&io::Error>) {
        if let Some(error) = error {
            tracing::debug!(peer = %self.session.peer(), %error, "socket failed");
            self.is_broken = true;
        }
        self.is_deaf = true;
        self.is_broken |= self.is_leaving;
        if !self.amqp.is_finished() {
            self.amqp.handle_disconnect();
        }
    }

    /// Writes as much as the socket takes.
    fn write(&mut self, now: Millis) {
        self.amqp.flush_confirms();
        if self.is_leaving {
            let rest = self.amqp.output().len();
            self.amqp.wrote(rest, now);
        }
        while !self.is_broken && !self.amqp.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
            let filled = self.amqp.output().chunks(&mut slices);
            match self.stream.try_write_vectored(&slices[..filled]) {
                Ok(count) => self.amqp.wrote(count, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_full = true;
                    self.amqp.output().let_go(false);
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.disconnect(Some(&error)),
            }
        }
        if !self.is_broken && self.stream.has_unsent() {
            match self.stream.flush() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_full = true;
                    return;
                }
                Err(error) => self.disconnect(Some(&error)),
            }
        }
        self.is_full = false;
    }

    /// Lets consumers go on that were passed over, once half of the window is free.
    fn feed_starved(&mut self, client: &Rc<Client>, local: &Rc<Local>) {
        if self.session.has_unwritten_spans() {
            self.session.spans_written(self.amqp.output().written_bytes(), &Turn { local, client });
        }
        if self.amqp.output().len() <= local.window() / 2 {
            let host = &Turn { local, client };
            let has_drained = self.session.drained(host);
            for consumer in self.starved.drain(..) {
                if let Some(number) = local.switch.number_of(consumer.channel) {
                    self.session.unstall(consumer, number, !has_drained, host);
                }
            }
        }
    }

    /// Whether its connection is ended for what the client leaves unread.
    fn leaves_too_much(&mut self, local: &Local, now: Millis) -> bool {
        let all = &local.shared.untaken;
        if self.untaken.bytes() == 0 || self.is_broken {
            return false;
        }
        self.amqp.output().let_go(true);
        let bytes = self.amqp.output().pinned_bytes();
        self.untaken.note(bytes, now, all);
        // The socket takes what comes in large steps; what the other side has acknowledged shows that it goes on reading.
        let unacknowledged = unread::unacknowledged_bytes(self.stream.socket());
        let taken = self.amqp.output().written_bytes().saturating_sub(unacknowledged);
        let is_too_much = self.untaken.is_too_much(taken, now, all);
        if is_too_much {
            let all_bytes = all.bytes();
            // Others may stay for it.
            self.untaken.note(0, now, all);
            // What the system has of it goes, too.
            let _ = rustix::net::sockopt::set_socket_linger(self.stream.socket(), Some(Duration::ZERO));
            let user = String::from_utf8_lossy(self.session.user());
            tracing::warn!(
                peer = %self.session.peer(), %user, bytes, all_bytes,
                "a client does not read what it was sent, and is disconnected: what all clients leave unread is more than a quarter of \
                 transient_bytes_max"
            );
        }
        is_too_much
    }

    /// Whether nothing is left to do but to leave: all is written, or nobody is there to read it.
    fn is_over(&mut self) -> bool {
        // What was read before the end still counts.
        !self.is_yielding
            && (self.is_broken
                || (self.amqp.is_finished() && self.amqp.output().is_empty() && !self.stream.has_unsent()))
    }

    /// Enters the earliest time of this connection into the wheel, unless an earlier entry is
    /// there.
    fn arm(&mut self, client: &Rc<Client>, local: &Rc<Local>, now: Millis) {
        if self.amqp.is_finished() && self.cut_at == NEVER {
            self.cut_at = now + FIN_WAIT_MS;
        }
        let machine = self.amqp.poll_timeout().unwrap_or(NEVER);
        // Nobody waits for the socket of a client that is not read, so its end has to be asked for.
        let mut look = if self.is_held() || self.is_flooded(local) { now + UNREAD_LOOK_MS } else { NEVER };
        if self.is_full || self.untaken.bytes() > 0 {
            let untaken = &local.shared.untaken;
            let bytes = if self.is_full && !client.is_own { self.amqp.output().pinned_bytes() } else { 0 };
            self.untaken.note(bytes, now, untaken);
            look = look.min(untaken.look_at(now));
        }
        let at = machine.min(self.session.poll_timeout()).min(self.cut_at).min(look);
        if at < self.wheel_at {
            self.wheel_at = at;
            local.enter_wheel(at, client.seat);
        }
    }
}

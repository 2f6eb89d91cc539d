//! One client connection on its shard: the socket, the AMQP machine and the session between machine
//! and partitions.
//!
//! Invariant: bytes go one way only, socket to machine to session to partitions, and back; nobody
//! but this file touches the socket. What is read in one turn is handled in that turn; what is to
//! be written is written once a turn, after the partitions have answered. An idle connection owns
//! no read buffer.

use crate::engine::wall_ms;
use crate::shard::Seat;
use crate::shard::thread::Local;
use crate::stream::Stream;
use crate::tokens::Told;
use crate::turn::Turn;
use amqp::{Connection, Millis, ReplyCode};
use broker::topology::{CommandReply, Refusal};
use broker::{ChannelKey, ConsumerKey, VhostId};
use bytes::BytesMut;
use partition::{Effect, RequestId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::report::{ConnectionFigures, ConnectionNumber, ConnectionReport, Seen};
use session::{Cx, Peer, Session};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use switch::Window;
use tokio::io::AsyncReadExt;

/// The first read of a quiet connection.
const READ_BYTES_MIN: usize = 4 << 10;
/// A read of a busy one: two of RabbitMQ's largest frames.
const READ_BYTES_MAX: usize = 256 << 10;
/// All read buffers of a shard together, as far as they are above the minimum.
const READ_BYTES_TOTAL: usize = 128 << 20;
/// After so many reads that filled less than a quarter of the buffer, the next buffer is half as
/// large.
const SMALL_READS: u8 = 16;
/// Slices of one vectored write; more are written by the next one.
const WRITE_SLICES: usize = 32;
/// What a client may have asked for and not read (confirms, replies, returns) beyond its window
/// before its requests are not read any more.
const REPLIES_BYTES_MAX: usize = 64 << 10;
/// How often a client that is not read is looked at: whether it closed its end, and whether it
/// still sends.
const UNREAD_LOOK_MS: Millis = 1_000;
/// A client that is not read cannot go on sending once this part of the socket's buffer is full of
/// what it sent: the kernel counts more for small packets than there is in them.
const FULL_SOCKET_DIVISOR: usize = 8;
/// How long what a client sent before it closed its end may wait for an alarm to be over, at most.
const CLOSED_END_MS: Millis = 10_000;
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
    /// It is the node's own, which carries a request of HTTP.
    pub(crate) is_own: bool,
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

/// What a client that is not read shows of being there.
#[derive(Clone, Copy, Default)]
struct SignsOfLife {
    /// Bytes of it in the socket.
    unread: u64,
    /// Bytes that it was sent.
    taken: u64,
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
            was_paused: false,
            is_full: false,
            is_deaf: false,
            is_broken: false,
            is_leaving: false,
            signs: SignsOfLife::default(),
            held: None,
            window: Window::default(),
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
            is_own,
            inner: RefCell::new(inner),
            waker: RefCell::new(None),
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
            is_tls: matches!(inner.stream, Stream::Tls(_)),
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
        if inner.cut_at <= now {
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
        if inner.is_full || inner.is_over() || inner.wants_task(local) {
            self.wake();
        }
    }
}

/// Bytes that the socket took and the other side's kernel has not acknowledged. 0 where the system
/// does not say.
fn unacknowledged_bytes(socket: &tokio::net::TcpStream) -> u64 {
    /// `SIOCOUTQ`, which is the same number as `TIOCOUTQ`.
    const OUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: the call writes one C int, which is what this getter gives it room for.
    let bytes = unsafe { rustix::ioctl::ioctl(socket, rustix::ioctl::Getter::<OUTQ, std::ffi::c_int>::new()) };
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

/// A connection that was not read for this long gives its read buffer back.
const READ_IDLE_MS: Millis = 900;

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
        let host = &Turn { local, client };
        self.session.begin_turn(&mut Cx { client: &mut self.amqp, host });
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
    }

    fn take_input(&mut self, now: Millis) {
        self.amqp.handle_input(&mut self.input, now);
        self.input_blocked = !self.amqp.wants_input();
    }

    /// Whether the client leaves unread what it asked for.
    ///
    /// Deliveries do not count: the window bounds them, and a client may well write for long before
    /// it reads again. Not reading its acks and publishes meanwhile would have both sides wait for
    /// each other.
    fn is_flooded(&mut self, local: &Local) -> bool {
        !self.is_leaving && self.amqp.output().answer_bytes() > local.window() + REPLIES_BYTES_MAX
    }

    /// Whether the client's silence until now proves nothing.
    fn is_excused(&mut self, local: &Local, now: Millis) -> bool {
        if self.is_flooded(local) {
            // It is not read because it does not read. Its heartbeats then lie in the socket, so
            // what counts is whether there are more of them; where its publishes leave no room for
            // them, that it reads.
            let before = self.signs;
            self.signs = SignsOfLife { unread: self.unread_bytes(), taken: self.amqp.output().written_bytes() };
            self.is_leaving |= self.has_left();
            return self.signs.unread != before.unread || (self.signs.unread > 0 && self.signs.taken != before.taken);
        }
        // Nobody listened. Nor does silence count where a sync held this thread up for seconds:
        // what the client sent lies in the socket then, its part of the handshake for example.
        self.was_paused || (self.amqp.is_silent(now) && self.unread_bytes() > 0)
    }

    /// Whether the client is not read because there is no room for its frames.
    fn is_held(&self) -> bool {
        self.amqp.is_running() && !self.amqp.has_room() && !self.is_deaf
    }

    /// Looks after a client that is not read for want of room, a publisher that an alarm holds back
    /// most of all: nothing else would notice that it is gone. Its heartbeats lie in the socket, so
    /// what counts is whether there are more of them; where its publishes leave no room for them,
    /// that its side acknowledges ours. A reset ends it at once. A closed end only means that
    /// nothing more will come: what was sent before it counts once there is room, unless that takes
    /// two intervals or ten seconds.
    fn look_at_held(&mut self, now: Millis) {
        if !self.is_held() {
            self.held = None;
            return;
        }
        let ends = self.ends();
        if ends.intersects(PollFlags::HUP | PollFlags::ERR) {
            return self.disconnect(Some(&io::ErrorKind::ConnectionReset.into()));
        }
        let seen = SignsOfLife { unread: self.unread_bytes(), taken: self.amqp.output().written_bytes() };
        let (known, since) = *self.held.get_or_insert((seen, now));
        let room = rustix::net::sockopt::socket_recv_buffer_size(self.stream.socket()).unwrap_or(0);
        let is_full = seen.unread >= (room / FULL_SOCKET_DIVISOR) as u64;
        let has_news = seen.unread != known.unread
            || (is_full && seen.taken != known.taken && unacknowledged_bytes(self.stream.socket()) == 0);
        let (interval_ms, has_closed) = (self.amqp.heartbeat_ms(), ends.contains(PollFlags::RDHUP));
        let patience_ms = match (interval_ms, has_closed) {
            // It may be what the alarm is about: its queues go with it.
            (0, true) => CLOSED_END_MS,
            (_, true) => CLOSED_END_MS.min(2 * interval_ms),
            (0, false) => NEVER,
            (_, false) => 2 * interval_ms,
        };
        if has_news && !has_closed {
            self.held = Some((seen, now));
        } else if now >= since.max(self.last_read).saturating_add(patience_ms) {
            self.amqp.give_up(now, has_closed);
        }
    }

    /// Whether a shard that the client publishes to has as much unwritten as it may.
    fn waits_for_load(&self, local: &Local) -> bool {
        self.session.waits_for_load(|shard| local.is_loaded_for(shard))
    }

    /// Whether the socket is to be read now.
    fn may_read(&mut self, client: &Rc<Client>, local: &Rc<Local>) -> bool {
        if self.is_yielding || self.is_deaf || !self.amqp.wants_input() || self.is_flooded(local) {
            return false;
        }
        if self.waits_for_load(local) {
            local.pause(client);
            // The gauge may have fallen before this connection was in the list of those to be told.
            return !self.waits_for_load(local);
        }
        true
    }

    /// Reads the socket once, if it may be read and has something, and handles what came. True if
    /// there may be more.
    fn read(&mut self, client: &Rc<Client>, cx: &mut Context<'_>, local: &Rc<Local>) -> bool {
        if self.is_yielding {
            self.take_turn(client, local, local.now());
            self.was_paused = true;
            return !self.is_yielding;
        }
        if !self.may_read(client, local) {
            self.was_paused = true;
            return false;
        }
        match self.stream.poll_read_ready(cx) {
            Poll::Pending => return false,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.disconnect(Some(&error));
                return false;
            }
        }
        let now = local.now();
        if std::mem::take(&mut self.was_paused) {
            self.amqp.resume_reading(now);
        }
        // The rest of a frame that has begun comes in one read.
        self.input.reserve(self.read_bytes.max(self.amqp.missing_input(&self.input)));
        let room = self.input.capacity() - self.input.len();
        let result = self.stream.poll_read(&mut self.input, cx);
        let count = match result {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => {
                self.disconnect(None);
                return false;
            }
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => {
                self.disconnect(Some(&error));
                return false;
            }
        };
        self.adapt(count, local);
        self.last_read = now;
        self.received_bytes += count as u64;
        self.take_input(now);
        self.take_turn(client, local, now);
        if !self.may_read(client, local) {
            self.was_paused = true;
            return false;
        }
        // After a short read this asks the kernel nothing; it only has the task called at the next
        // bytes.
        count == room || self.stream.poll_read_ready(cx).is_ready()
    }

    /// Chooses the size of the next read by the size of this one.
    fn adapt(&mut self, count: usize, local: &Local) {
        if count >= self.read_bytes {
            let connections = local.shared.gauges[local.index].connections.load(Ordering::Relaxed).max(1);
            let limit = (READ_BYTES_TOTAL / connections).clamp(READ_BYTES_MIN * 2, READ_BYTES_MAX);
            self.read_bytes = (self.read_bytes * 2).min(limit);
            self.small_reads = 0;
        } else if count < self.read_bytes / 4 && self.read_bytes > READ_BYTES_MIN {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS {
                self.read_bytes /= 2;
                self.small_reads = 0;
            }
        } else {
            self.small_reads = 0;
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
            self.session.drained(host);
            for consumer in self.starved.drain(..) {
                if let Some(number) = local.switch.number_of(consumer.channel) {
                    self.session.unstall(consumer, number, host);
                }
            }
        }
    }

    /// Bytes of the client that wait in the socket.
    fn unread_bytes(&self) -> u64 {
        rustix::io::ioctl_fionread(self.stream.socket()).unwrap_or(0)
    }

    /// Whether the client closed its end, or its socket is gone, however much it sent before that
    /// nobody read.
    fn has_left(&self) -> bool {
        self.ends().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Which ends of the socket are closed: the client's, both, or all of it at once by a reset.
    fn ends(&self) -> PollFlags {
        let mut socket = [PollFd::new(self.stream.socket(), PollFlags::RDHUP)];
        match poll(&mut socket, Some(&Timespec::default())) {
            Ok(_) => socket[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Whether nothing is left to do but to leave: all is written, or nobody is there to read it.
    fn is_over(&mut self) -> bool {
        // What was read before the end still counts.
        !self.is_yielding
            && (self.is_broken
                || (self.amqp.is_finished() && self.amqp.output().is_empty() && !self.stream.has_unsent()))
    }

    /// Whether the task has something to read that it did not look at because it was not allowed
    /// to.
    fn wants_task(&mut self, local: &Rc<Local>) -> bool {
        self.was_paused
            && !self.is_yielding
            && !self.is_deaf
            && self.amqp.wants_input()
            && !self.is_flooded(local)
            && !self.waits_for_load(local)
    }

    /// Enters the earliest time of this connection into the wheel, unless an earlier entry is
    /// there.
    fn arm(&mut self, client: &Rc<Client>, local: &Rc<Local>, now: Millis) {
        if self.amqp.is_finished() && self.cut_at == NEVER {
            self.cut_at = now + FIN_WAIT_MS;
        }
        let machine = self.amqp.poll_timeout().unwrap_or(NEVER);
        // Nobody waits for the socket of a client that is not read, so its end has to be asked for.
        let look = if self.is_held() || self.is_flooded(local) { now + UNREAD_LOOK_MS } else { NEVER };
        let at = machine.min(self.session.poll_timeout()).min(self.cut_at).min(look);
        if at < self.wheel_at {
            self.wheel_at = at;
            local.enter_wheel(at, client.seat);
        }
    }
}

/// The task of one connection: woken when its socket can be read, or written after it was full.
pub(crate) struct ConnectionTask {
    client: Rc<Client>,
    local: Rc<Local>,
    /// Our end is closed; what still comes is thrown away until the client closes its end.
    is_closing: bool,
}

impl ConnectionTask {
    /// The task of `client`.
    pub(crate) fn new(client: Rc<Client>, local: Rc<Local>) -> Self {
        ConnectionTask { client, local, is_closing: false }
    }

    /// Closes our end, then waits for the client's. True when both are closed, or waiting is over.
    fn poll_close(&mut self, inner: &mut Inner, cx: &mut Context<'_>) -> bool {
        if !self.is_closing {
            self.is_closing = true;
            inner.stream.say_end();
            if rustix::net::shutdown(inner.stream.socket(), rustix::net::Shutdown::Write).is_err() {
                return true;
            }
        }
        // Closing a socket with unread bytes resets the connection, and the client may lose our
        // last frames.
        while !inner.is_deaf && !inner.is_broken {
            inner.input.clear();
            inner.input.reserve(READ_BYTES_MIN);
            match pin!(inner.stream.socket_mut().read_buf(&mut inner.input)).poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => inner.is_deaf = true,
            }
        }
        true
    }
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (client, local) = (self.client.clone(), self.local.clone());
        *client.waker.borrow_mut() = Some(cx.waker().clone());
        let inner = &mut *client.inner.borrow_mut();
        let mut has_more = false;
        if !inner.is_over() {
            has_more = inner.read(&client, cx, &local);
        }
        // The partitions answer first, so that one write carries all; but if nobody was asked,
        // nobody will call.
        if local.is_woken() && !inner.is_full && !inner.is_over() {
            local.flush_later(&client);
        } else {
            let now = local.now();
            if inner.is_full {
                // What the socket takes now frees memory and window, and it is the step that passes
                // this on.
                local.wake();
            }
            loop {
                inner.write(now);
                if !inner.is_full || inner.stream.socket().poll_write_ready(cx).is_pending() {
                    break;
                }
            }
            inner.feed_starved(&client, &local);
            if !inner.is_yielding {
                inner.take_turn(&client, &local, now);
            }
            inner.arm(&client, &local, now);
        }
        if inner.is_over() {
            let inner_ref = &mut *inner;
            if self.poll_close(inner_ref, cx) {
                inner.hear_the_end(&client, &local);
                if inner.is_yielding {
                    // What goes with it may be much: others have their turns in between.
                    let next = pin!(tokio::task::yield_now()).poll(cx);
                    debug_assert!(next.is_pending(), "it wakes this task behind the others");
                    return Poll::Pending;
                }
                inner.end(&client, &local);
                local.release(&client);
                return Poll::Ready(());
            }
            let now = local.now();
            inner.arm(&client, &local, now);
            return Poll::Pending;
        }
        if inner.is_yielding {
            // Behind all others and a look at their sockets, which a busy shard takes seldom.
            let next = pin!(tokio::task::yield_now()).poll(cx);
            debug_assert!(next.is_pending(), "it wakes this task behind the others");
        } else if has_more || inner.wants_task(&local) {
            // Behind the step task and the other connections: nobody is starved by one busy socket.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Inner {
    /// Whatever the machine has not said yet is heard, so that channels are given up.
    fn hear_the_end(&mut self, client: &Rc<Client>, local: &Rc<Local>) {
        if !self.amqp.is_finished() {
            self.amqp.handle_disconnect();
        }
        self.take_turn(client, local, local.now());
    }

    /// The last thing.
    fn end(&mut self, client: &Rc<Client>, local: &Rc<Local>) {
        local.switch.connection_left(self.session.number().0);
        self.input = BytesMut::new();
        self.session.spans_of_connection_end(&Turn { local, client });
        self.session.count_unfinished(0, &mut Cx { client: &mut self.amqp, host: &Turn { local, client } });
    }
}

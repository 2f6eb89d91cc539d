//! One AMQP connection as a machine: bytes and answers in, events and bytes out.
//!
//! Invariant: events come in the order in which the client's frames came; every channel that was
//! opened is closed by one event, and the connection by one, the last. Memory is bounded by the
//! limits in [`ConnectionConfig`], whatever the client sends; what the broker puts into `output` is
//! the broker's to bound.
//!
//! The files: `input.rs` cuts frames and finds whose they are, `handshake.rs` gets from the first
//! byte to an open connection, `dispatch.rs` has the rules of a channel's methods, `broker_side.rs`
//! the answers, `delivery_head.rs` what stands ahead of a delivery's body, `closing.rs` every way in
//! which a channel or the connection ends, `heartbeat.rs` all the times.

pub mod answer;
mod broker_side;
mod closing;
pub mod config;
mod credentials;
mod delivery_head;
mod dispatch;
pub mod event;
mod gets;
mod handshake;
pub mod heartbeat;
mod input;
mod outstanding;
pub mod request;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::Millis;
use crate::channel::{ChannelId, ChannelPhase, Channels, Delivered, Deliveries};
use crate::wire::frame::{HEARTBEAT, missing_bytes};
use crate::wire::method::Method;
use crate::wire::output::Output;
use closing::Ending;
use config::{ConnectionConfig, Mechanism};
use delivery_head::DeliveryHead;
use event::{Authenticate, Closed, Event};
use gets::Gets;
use heartbeat::{CLOSE_OK_TIMEOUT_MS, Heartbeat, LEAVE_MS, LINGER_MS, TRIM_AFTER_MS, Timer, Timers};
use request::Request;

/// Bytes of frames that wait in the channels of a publisher that an alarm holds back, before it is
/// not read any more: there may be thousands of such publishers, and it is for want of memory that
/// they wait.
const HELD_BYTES_MAX: usize = 64 << 10;

/// Events that wait to be taken, before further frames do: of a read full of small messages each would be one, and takes
/// several times the memory of its frames.
const EVENTS_MAX: usize = 256;

/// The least that "no limit" for frames means.
const UNLIMITED_FRAME_BYTES_MIN: u32 = 131_072;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The protocol header is expected.
    Header,
    /// `connection.start-ok` is expected.
    Starting,
    /// `connection.secure-ok` is expected.
    Securing,
    /// The broker looks at the credentials.
    Authenticating,
    /// `connection.tune-ok` is expected.
    Tuning,
    /// `connection.open` is expected.
    Tuned,
    /// The broker looks at the virtual host.
    Opening,
    /// Open for use.
    Running,
    /// `connection.close` was sent; only the answer to it counts.
    Closing,
    /// `connection.close` was sent to a client whose bytes make no sense any more; nothing counts.
    Lingering,
    /// The client's `connection.close` came, and is answered once what belonged to the connection is
    /// gone; nothing else counts.
    Leaving,
    /// The output is to be written, and then the socket closed.
    Finished,
}

/// What the client said it understands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientCapabilities {
    pub(crate) authentication_failure_close: bool,
    pub(crate) connection_blocked: bool,
    pub(crate) consumer_cancel_notify: bool,
}

/// The server's alarm, as far as this connection goes.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    /// Why publishes are held, if they are.
    pub(crate) reason: Option<Box<str>>,
    /// Whether the client was told and is to be told the end.
    pub(crate) told: bool,
    /// Whether this connection ever published: nobody else is told.
    pub(crate) publishes: bool,
}

/// One AMQP connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) config: Arc<ConnectionConfig>,
    pub(crate) phase: Phase,
    pub(crate) client: ClientCapabilities,
    pub(crate) mechanism: Option<Mechanism>,
    /// Who logs in, while a challenge waits for its answer.
    pub(crate) securing: Option<Box<Authenticate>>,
    /// The limits that were negotiated.
    pub(crate) frame_max: u32,
    pub(crate) channel_max: u16,
    pub(crate) channels: Channels,
    pub(crate) openings: u32,
    pub(crate) events: VecDeque<Event>,
    /// What is left to be said of the connection's end once these are taken.
    pub(crate) ending: Option<Box<Ending>>,
    pub(crate) output: Output,
    delivery_head: DeliveryHead,
    /// Whole frames that were taken in and wait until a bounded place has room.
    pub(crate) stalled: Bytes,
    /// Frames and bytes in the channels' `pending`.
    pub(crate) pending_frames: usize,
    pub(crate) pending_bytes: usize,
    /// Bytes of memory for unfinished messages in all channels, their properties too.
    pub(crate) assembling_bytes: usize,
    /// Consumers of all channels.
    pub(crate) consumers: usize,
    /// The node holds much in frames that wait: few may wait here.
    is_short: bool,
    /// Channels with confirms to send.
    pub(crate) unflushed: Vec<ChannelId>,
    pub(crate) blocked: Blocked,
    pub(crate) gets: Gets,
    /// Channels that wait until what they published is taken, some of which may come back to them.
    pub(crate) behind_returns: Vec<ChannelId>,
    /// The client's `connection.close`, until nothing that came before it waits in a channel.
    pub(crate) close_asked: Option<Box<(u16, Bytes)>>,
    /// `connection.update-secret` without an answer yet.
    pub(crate) secrets_asked: u32,
    pub(crate) timers: Timers,
    pub(crate) heartbeat: Heartbeat,
    /// How many bytes of input were left after the last look, to know whether any came since.
    pub(crate) input_left: usize,
    /// How often bytes came.
    pub(crate) input_count: u64,
    /// The latest time that was told.
    pub(crate) now: Millis,
    /// Whether the end of the close's wait is still to be counted from the next time that is told.
    pub(crate) close_unarmed: bool,
    /// The handshake got its time a second time.
    handshake_excused: bool,
    /// A `basic.recover` may be among the events.
    recovers: bool,
}

/// What a channel takes: here, and where its deliveries and publishes are kept track of.
const CHANNEL_BYTES: usize = 2 << 10;
/// What a consumer takes, its tag and its place at its queue included.
const CONSUMER_BYTES: usize = 5 << 9;
/// What a frame that waits takes besides its payload.
const FRAME_BYTES: usize = 64;
/// So much may wait in one connection while the node is short of room for that.
const SHORT_BYTES: usize = 16 << 10;

impl Connection {
    /// A connection whose socket was just accepted.
    pub fn new(config: Arc<ConnectionConfig>, now: Millis) -> Self {
        config.check();
        let mut timers = Timers::new();
        timers.set(Timer::Handshake, now + config.handshake_timeout_ms);
        Self {
            phase: Phase::Header,
            client: ClientCapabilities::default(),
            mechanism: None,
            securing: None,
            frame_max: config.initial_frame_max,
            config,
            channel_max: 0,
            channels: Channels::default(),
            openings: 0,
            events: VecDeque::new(),
            ending: None,
            output: Output::default(),
            delivery_head: DeliveryHead::default(),
            stalled: Bytes::new(),
            pending_frames: 0,
            pending_bytes: 0,
            assembling_bytes: 0,
            consumers: 0,
            is_short: false,
            unflushed: Vec::new(),
            blocked: Blocked::default(),
            gets: Gets::default(),
            behind_returns: Vec::new(),
            close_asked: None,
            secrets_asked: 0,
            timers,
            heartbeat: Heartbeat::default(),
            input_left: 0,
            input_count: 0,
            now,
            close_unarmed: false,
            handshake_excused: false,
            recovers: false,
        }
    }

    /// The next event, in order. Once none is left, frames are handled that waited for these to be taken, and the ends
    /// of the channels are said of a connection that is over.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            if self.may_fetch_on() {
                self.release_gets();
            }
            if !self.behind_returns.is_empty() {
                self.release_behind_returns();
            }
            self.run_stalled();
            if self.ending.is_some() {
                self.go_on_ending();
            }
        }
        let event = self.events.pop_front();
        if self.recovers { self.recover_what_came_since(event) } else { event }
    }

    /// What was sent while a `basic.recover` waited for its turn comes before its answer, so it goes back, too.
    #[cold]
    fn recover_what_came_since(&mut self, mut event: Option<Event>) -> Option<Event> {
        if let Some(Event::Request { channel, request: Request::Recover { unsettled } }) = &mut event
            && let Some(open) = self.channels.open(*channel)
        {
            unsettled.extend(open.unacked.take_all());
        }
        self.recovers &= !self.events.is_empty();
        event
    }

    /// Whether there is a next event.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
            || self.ending.is_some()
            || (!self.stalled.is_empty() && !self.must_stall())
            || self.may_fetch_on()
            || !self.behind_returns.is_empty()
            || (self.close_asked.is_some() && self.pending_frames == 0)
    }

    /// Whether channels that wait for room for what they fetch may go on: the client has read.
    #[inline]
    fn may_fetch_on(&self) -> bool {
        self.phase == Phase::Running && self.gets.may_go_on(self.output.answer_bytes())
    }

    /// The bytes to write.
    #[inline]
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Bytes of output since the connection began: those that were written, and those that wait.
    pub fn output_end(&self) -> u64 {
        self.output.written_bytes() + self.output.len() as u64
    }

    /// Whether the socket is to be read. `false` while a bounded place is full, and when nothing
    /// counts any more.
    ///
    /// Input that was read already may still be passed in; what cannot be taken stays in the
    /// buffer.
    pub fn wants_input(&self) -> bool {
        self.has_room() && self.output.answer_bytes() < self.config.output_bytes_max
    }

    /// Whether nothing on the broker's side keeps the client from being read.
    pub fn has_room(&self) -> bool {
        self.phase != Phase::Finished && self.stalled.is_empty() && !self.must_stall()
    }

    /// The socket took `count` bytes of the output at `now`.
    ///
    /// To be called once a write, whatever it carried: the next heartbeat counts from here.
    #[inline]
    pub fn wrote(&mut self, count: usize, now: Millis) {
        self.output.advance(count);
        self.heartbeat.written_at = now;
    }

    /// Whether the connection is over: the output is to be written, and then the socket closed.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Whether the client may use the connection: `connection.open-ok` was sent and no close was
    /// seen.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether [`Event::Closed`] was said.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closing | Phase::Lingering | Phase::Leaving | Phase::Finished)
    }

    /// The negotiated `frame_max`; 0 is no limit.
    pub fn frame_max(&self) -> u32 {
        self.frame_max
    }

    /// The negotiated `channel_max`; 0 is no limit.
    pub fn channel_max(&self) -> u16 {
        self.channel_max
    }

    /// The negotiated heartbeat interval in milliseconds; 0 is none.
    pub fn heartbeat_ms(&self) -> u64 {
        self.heartbeat.interval_ms
    }

    /// How many bytes are missing from `input` until its first frame is whole, to size the next
    /// read; 0 says nothing.
    pub fn missing_input(&self, input: &[u8]) -> usize {
        match self.phase {
            Phase::Header | Phase::Lingering | Phase::Leaving | Phase::Finished => 0,
            _ => missing_bytes(input, self.input_frame_max()),
        }
    }

    /// The largest frame taken from the client. Without a negotiated limit it follows from the
    /// largest body, as nothing larger could be of use and the read buffer must end somewhere.
    pub(crate) fn input_frame_max(&self) -> u32 {
        match self.frame_max {
            0 => u32::try_from(self.config.body_bytes_max).unwrap_or(u32::MAX).max(UNLIMITED_FRAME_BYTES_MIN),
            frame_max => frame_max,
        }
    }

    /// The channel that is open under a number, and not closing.
    pub fn channel_at(&self, number: u16) -> Option<ChannelId> {
        self.channels.iter().find(|channel| channel.id.number() == number && !channel.is_closing()).map(|open| open.id)
    }

    /// How many channels are open, closing ones included.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// The channel's outstanding deliveries in the order of their tags, for a new leader of their
    /// queue.
    pub fn unsettled(&self, channel: ChannelId) -> Deliveries {
        let mut runs = Deliveries::new();
        if let Some(channel) = self.channels.look(channel) {
            channel.unacked.collect(&mut runs);
        }
        runs
    }

    /// How many of the channel's deliveries are outstanding.
    pub fn unsettled_count(&self, channel: ChannelId) -> u64 {
        self.channels.look(channel).map_or(0, |channel| channel.unacked.len())
    }

    /// Whether the channel is in confirm mode.
    pub fn is_confirming(&self, channel: ChannelId) -> bool {
        self.channels.look(channel).is_some_and(|channel| channel.confirms.is_some())
    }

    /// Whether a close was begun, by either side.
    pub fn is_closing(&self) -> bool {
        self.is_over()
    }

    /// Whether the client publishes and is held back by an alarm.
    pub fn is_blocked(&self) -> bool {
        self.blocked.reason.is_some() && self.blocked.publishes
    }

    /// How the client logged in, or tries to.
    pub fn mechanism(&self) -> Option<Mechanism> {
        self.mechanism
    }

    /// How many of the channel's publishes were not confirmed yet.
    pub fn unconfirmed(&self, channel: ChannelId) -> u64 {
        self.channels.look(channel).and_then(|c| c.confirms.as_ref()).map_or(0, |c| c.unconfirmed())
    }

    /// How often bytes came: every event is of bytes that came by then.
    pub fn input_count(&self) -> u64 {
        self.input_count
    }

    /// Whether the channel's request has no answer yet.
    pub fn is_waiting(&self, channel: ChannelId) -> bool {
        self.channels.look(channel).is_some_and(|channel| matches!(channel.phase, ChannelPhase::Waiting(_)))
    }

    /// The oldest of the channel's publishes that is not confirmed.
    pub fn oldest_unconfirmed(&self, channel: ChannelId) -> Option<u64> {
        self.channels.look(channel).and_then(|channel| channel.confirms.as_ref()).and_then(|c| c.oldest_unconfirmed())
    }

    /// Bytes of memory held here; read buffers that waiting frames keep alive are not counted.
    pub fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.output.held_bytes()
            + self.delivery_head.held_bytes()
            + self.events.capacity() * size_of::<Event>()
            + self.unflushed.capacity() * size_of::<ChannelId>()
            + self.channels.iter().map(|channel| channel.held_bytes() + size_of::<usize>()).sum::<usize>()
    }

    /// Bytes of memory for the unfinished messages of all channels, their properties too.
    #[inline]
    pub fn assembling_bytes(&self) -> usize {
        self.assembling_bytes
    }

    /// About how many bytes of memory the channels and consumers take that the client has opened,
    /// whatever they do, in a broker as a whole.
    #[inline]
    pub fn standing_bytes(&self) -> usize {
        self.channels.len() * CHANNEL_BYTES + self.consumers * CONSUMER_BYTES
    }

    /// Bytes of memory for frames that wait for their channel's turn: behind a request, or as an
    /// alarm holds publishes back.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        self.pending_bytes + self.pending_frames * FRAME_BYTES
    }

    /// A channel that had about so many bytes of deliveries to write is gone, or a consumer of it. They count as answers from now
    /// on: a client that begins and ends channels and reads nothing would have more and more of them.
    pub fn abandon_deliveries(&mut self, bytes: usize) {
        self.output.abandon_deliveries(bytes);
    }

    /// Whether all connections of the node together hold as much in waiting frames as they may.
    /// Then the socket is not read once few wait here; those that wait already go on as before.
    #[inline]
    pub fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, if nothing comes before; a
    /// time in the past means at once. A timer that is armed for an earlier time may stay: a call
    /// that is too early does nothing.
    pub fn poll_timeout(&self) -> Option<Millis> {
        self.timers.next()
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) would take the client for gone at `now`, or
    /// for too slow with its handshake, and whether that can be excused: a handshake only once, as
    /// who sends a byte now and then is too slow. Who was kept from reading the socket looks first
    /// whether something lies there, and calls [`resume_reading`](Self::resume_reading) then.
    pub fn is_silent(&self, now: Millis) -> bool {
        self.timers.is_due(Timer::Silence, now)
            || (self.timers.is_due(Timer::Handshake, now) && !self.handshake_excused)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Millis) {
        self.now = now;
        while let Some(timer) = self.timers.take_due(now) {
            match timer {
                Timer::Handshake => self.end(Closed::HandshakeTimeout, Phase::Finished),
                Timer::Silence => self.handle_silence(now),
                Timer::Heartbeat => self.handle_heartbeat(now),
                Timer::Close => self.handle_close_timeout(now),
                Timer::Trim => self.handle_trim(now),
            }
        }
    }

    /// The server did not read the socket, for reasons of its own; the client's silence until now
    /// proves nothing.
    ///
    /// To be called when reading starts again. Not needed for pauses that
    /// [`wants_input`](Self::wants_input) asked for because the broker had no room. A client that
    /// does not read its answers is another matter: its silence counts, and the caller knows
    /// whether it sends.
    pub fn resume_reading(&mut self, now: Millis) {
        self.now = now;
        self.heard(now);
        self.excuse_handshake(now);
    }

    /// Something of the client lies there, or is read, at a time at which its handshake should have
    /// ended it: the server was late.
    #[inline]
    pub(crate) fn excuse_handshake(&mut self, now: Millis) {
        if self.timers.is_due(Timer::Handshake, now) && !self.handshake_excused {
            self.handshake_excused = true;
            self.timers.set(Timer::Handshake, now + self.config.handshake_timeout_ms);
        }
    }

    /// A byte came, or is excused until now.
    pub(crate) fn heard(&mut self, now: Millis) {
        if self.heartbeat.interval_ms != 0 && !self.is_over() {
            self.timers.set(Timer::Silence, now + self.heartbeat.silence_ms());
        }
        self.heartbeat.deaf = false;
    }

    /// The client is not read for want of room, and whoever looked at its socket saw no sign of
    /// life for two intervals: it is taken for gone, as if nothing had been heard of it. `has_closed`:
    /// it closed its end, and will not read what it is sent.
    pub fn give_up(&mut self, now: Millis, has_closed: bool) {
        self.now = now;
        self.end(if has_closed { Closed::ClosedUnread } else { Closed::HeartbeatTimeout }, Phase::Finished);
    }

    fn handle_silence(&mut self, now: Millis) {
        if self.heartbeat.deaf || !self.has_room() {
            self.heard(now);
            self.heartbeat.deaf = !self.has_room();
            return;
        }
        self.end(Closed::HeartbeatTimeout, Phase::Finished);
    }

    fn handle_heartbeat(&mut self, now: Millis) {
        let due = self.heartbeat.written_at + self.heartbeat.half_ms();
        if now < due {
            return self.timers.set(Timer::Heartbeat, due);
        }
        // With something in the output already the socket is full, and a heartbeat would only wait
        // behind it.
        if self.output.is_empty() {
            self.output.trim();
            self.output.small().extend_from_slice(&HEARTBEAT);
        }
        self.timers.set(Timer::Heartbeat, now + self.heartbeat.half_ms());
    }

    fn handle_close_timeout(&mut self, now: Millis) {
        if std::mem::take(&mut self.close_unarmed) {
            let wait = match self.phase {
                Phase::Lingering => LINGER_MS,
                Phase::Leaving => LEAVE_MS,
                _ => CLOSE_OK_TIMEOUT_MS,
            };
            self.timers.set(Timer::Close, now + wait);
            return;
        }
        if self.phase == Phase::Leaving {
            return self.left();
        }
        self.finish();
    }

    fn handle_trim(&mut self, now: Millis) {
        if !self.output.is_empty() || !self.events.is_empty() {
            self.timers.set(Timer::Trim, now + TRIM_AFTER_MS);
            return;
        }
        self.output.trim();
        self.delivery_head.trim();
        self.events = VecDeque::new();
        self.unflushed.shrink_to_fit();
        self.channels.iter_mut().for_each(|channel| channel.trim());
    }

    /// Whether no further frame may be handled for now.
    #[inline]
    pub(crate) fn must_stall(&self) -> bool {
        let bytes_max = self.config.pending_bytes_max;
        self.events.len() >= EVENTS_MAX
            || self.pending_frames >= self.config.pending_frames_max
            || self.pending_bytes >= if self.is_blocked() { bytes_max.min(HELD_BYTES_MAX) } else { bytes_max }
            || (self.is_short && self.waiting_bytes() >= SHORT_BYTES)
            || matches!(self.phase, Phase::Authenticating | Phase::Opening)
    }

    /// Writes a method.
    pub(crate) fn send(&mut self, channel: u16, method: &Method) {
        method.write(self.output.small(), channel);
    }

    /// Appends settled runs, to the last event where that is the same outcome on the same channel.
    #[inline]
    pub(crate) fn push_settle(&mut self, channel: ChannelId, outcome: event::Settlement, runs: Deliveries) {
        if runs.is_empty() {
            return;
        }
        if let Some(Event::Settle(last)) = self.events.back_mut()
            && last.channel == channel
            && last.outcome == outcome
        {
            for Delivered { consumer, first_seq, count } in runs {
                crate::channel::unacked::push_delivered(&mut last.deliveries, consumer, first_seq, count);
            }
            return;
        }
        self.events.push_back(Event::Settle(event::Settle { channel, outcome, deliveries: runs }));
    }
}

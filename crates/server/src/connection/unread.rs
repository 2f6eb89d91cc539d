//! A client that is not read: whether it is there still, and how long that is believed.
//!
//! Invariant: a client is given up for its silence only where it was listened to, or where what lies in its
//! socket shows that it is silent too.

use super::{Inner, NEVER};
use crate::shard::Local;
use amqp::Millis;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;

/// A client that is not read cannot go on sending once this part of the socket's buffer is full of
/// what it sent: the kernel counts more for small packets than there is in them.
const FULL_SOCKET_DIVISOR: usize = 8;
/// How long what a client sent before it closed its end may wait for an alarm to be over, at most.
const CLOSED_END_MS: Millis = 10_000;

/// What a client that is not read shows of being there.
#[derive(Clone, Copy, Default)]
pub(super) struct SignsOfLife {
    /// Bytes of it in the socket.
    unread: u64,
    /// Bytes that it was sent.
    taken: u64,
}

impl Inner {
    /// Whether the client's silence until now proves nothing.
    pub(super) fn is_excused(&mut self, local: &Local, now: Millis) -> bool {
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
    pub(super) fn is_held(&self) -> bool {
        self.amqp.is_running() && !self.amqp.has_room() && !self.is_deaf
    }

    /// Looks after a client that is not read for want of room, a publisher that an alarm holds back
    /// most of all: nothing else would notice that it is gone. Its heartbeats lie in the socket, so
    /// what counts is whether there are more of them; where its publishes leave no room for them,
    /// that its side acknowledges ours. A reset ends it at once. A closed end only means that
    /// nothing more will come: what was sent before it counts once there is room, unless that takes
    /// two intervals or ten seconds.
    pub(super) fn look_at_held(&mut self, now: Millis) {
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
}

/// Bytes that the socket took and the other side's kernel has not acknowledged. 0 where the system
/// does not say.
pub(super) fn unacknowledged_bytes(socket: &tokio::net::TcpStream) -> u64 {
    /// `SIOCOUTQ`, which is the same number as `TIOCOUTQ`.
    const OUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: the call writes one C int, which is what this getter gives it room for.
    let bytes = unsafe { rustix::ioctl::ioctl(socket, rustix::ioctl::Getter::<OUTQ, std::ffi::c_int>::new()) };
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

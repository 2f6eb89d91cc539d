//! All the times of a connection. Nothing here looks at a clock: `now` comes in, and the next time
//! to be called goes out.
//!
//! Invariant: a timer that is not set costs nothing; a timer that fires is handled in
//! `Connection::handle_timeout` and nowhere else.

use crate::Millis;

/// How long a connection that was closed by the server waits for `connection.close-ok`.
pub const CLOSE_OK_TIMEOUT_MS: u64 = 10_000;

/// How long a connection whose bytes make no sense any more stays open after `connection.close`, so
/// that the client can read why before the socket goes; RabbitMQ waits as long.
pub const LINGER_MS: u64 = 3_000;

/// How long the answer to a client's `connection.close` waits at most for the end of what belonged to
/// the connection. Longer than the choice of a leader takes.
pub const LEAVE_MS: u64 = 2_000;

/// A connection that heard nothing for this long gives its unused buffers back.
pub const TRIM_AFTER_MS: u64 = 1_000;

/// Every reason to be called later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The handshake must be done.
    Handshake,
    /// Two intervals without a byte: the peer is gone.
    Silence,
    /// Half an interval after the last write, as far as is known: is there a heartbeat to send?
    Heartbeat,
    /// The close must be answered, by the client or by us, or the client had time to read it.
    Close,
    /// Unused memory goes back.
    Trim,
}

const TIMERS: [Timer; 5] = [Timer::Handshake, Timer::Silence, Timer::Heartbeat, Timer::Close, Timer::Trim];
const NEVER: Millis = Millis::MAX;

/// When each timer fires.
#[derive(Debug)]
pub(crate) struct Timers {
    at: [Millis; TIMERS.len()],
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { at: [NEVER; TIMERS.len()] }
    }

    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, at: Millis) {
        self.at[timer as usize] = at;
    }

    pub(crate) fn clear(&mut self, timer: Timer) {
        self.at[timer as usize] = NEVER;
    }

    pub(crate) fn clear_all(&mut self) {
        self.at = [NEVER; TIMERS.len()];
    }

    pub(crate) fn next(&self) -> Option<Millis> {
        let next = self.at.iter().copied().min().unwrap_or(NEVER);
        (next != NEVER).then_some(next)
    }

    pub(crate) fn is_due(&self, timer: Timer, now: Millis) -> bool {
        self.at[timer as usize] <= now
    }

    /// Takes one timer that is due.
    pub(crate) fn take_due(&mut self, now: Millis) -> Option<Timer> {
        let due = TIMERS.into_iter().find(|timer| self.at[*timer as usize] <= now)?;
        self.clear(due);
        Some(due)
    }
}

/// The heartbeat of one connection, both ways.
///
/// Sending: half an interval after the last write. Clients exist that give up a read after one
/// interval, so silence on our side must stay well below that, however traffic and timer fall
/// together. Hearing: two intervals without a byte end the connection, but only those in which the
/// broker could have read one.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    /// The interval that was negotiated; 0 is none.
    pub(crate) interval_ms: u64,
    /// When the socket took something last.
    pub(crate) written_at: Millis,
    /// Whether the broker had no room to read at some time since the last byte came: the silence is
    /// ours then.
    pub(crate) deaf: bool,
}

impl Heartbeat {
    pub(crate) fn silence_ms(&self) -> u64 {
        self.interval_ms * 2
    }

    pub(crate) fn half_ms(&self) -> u64 {
        self.interval_ms / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_once_and_in_time() {
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        timers.set(Timer::Close, 20);
        timers.set(Timer::Silence, 10);
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.take_due(9), None);
        assert_eq!(timers.take_due(30), Some(Timer::Silence));
        assert_eq!(timers.take_due(30), Some(Timer::Close));
        assert_eq!(timers.take_due(30), None);
    }
}

//! How much is on its way to each follower, in bytes. The library counts messages only, and one
//! message may carry anything from nothing to an entry of the largest size.
//!
//! The library asks its own window, which has room for so many messages, before each append. This
//! one sets that room anew before every occasion to send, from the bytes that were sent and not
//! acknowledged.
//!
//! Invariant: to a follower that is sent to ahead of its answers go at most [`Windows::bytes_max`]
//! unacknowledged bytes, and one message whatever its size. While nothing is acknowledged, an
//! answered heartbeat no longer opens the window as the library has it: once per election timeout a
//! single message may follow, so that what was lost on the way is noticed.

use std::collections::{BTreeMap, VecDeque};

/// The windows of a leader.
#[derive(Default)]
pub(crate) struct Windows {
    bytes_max: usize,
    message_bytes_max: usize,
    flights: BTreeMap<u64, Flight>,
    /// The size of the largest body above `message_bytes_max` that some follower may still need,
    /// and the index of the last such.
    large: (usize, u64),
}

/// What one follower was sent and has not acknowledged.
#[derive(Default)]
struct Flight {
    messages: VecDeque<(u64, usize)>,
    bytes: usize,
    quiet_ticks: usize,
    may_try: bool,
}

impl Windows {
    pub(crate) fn new(bytes_max: usize, message_bytes_max: usize) -> Self {
        Self { bytes_max, message_bytes_max, ..Self::default() }
    }

    /// An append left whose last entry is `last`.
    pub(crate) fn sent(&mut self, to: u64, last: u64, bytes: usize) {
        let flight = self.flights.entry(to).or_default();
        flight.messages.push_back((last, bytes));
        flight.bytes += bytes;
        flight.may_try = false;
    }

    /// A follower has everything up to `index`.
    pub(crate) fn acknowledged(&mut self, from: u64, index: u64) {
        let Some(flight) = self.flights.get_mut(&from) else { return };
        while let Some((_, bytes)) = flight.messages.front().copied().filter(|(last, _)| *last <= index) {
            flight.messages.pop_front();
            flight.bytes -= bytes;
            flight.quiet_ticks = 0;
        }
    }

    /// Nothing counts as on its way to a follower any more: it is asked where its log ends.
    pub(crate) fn forget(&mut self, to: u64) {
        self.flights.remove(&to);
    }

    /// This member leads no more.
    pub(crate) fn clear(&mut self) {
        self.flights.clear();
    }

    /// A body is in the log, at `index`.
    pub(crate) fn note_body(&mut self, index: u64, bytes: usize) {
        if bytes > self.message_bytes_max {
            self.large = (self.large.0.max(bytes), self.large.1.max(index));
        }
    }

    /// Every member has the log up to `index`.
    pub(crate) fn everyone_has(&mut self, index: u64) {
        if self.large.1 <= index {
            self.large = (0, 0);
        }
    }

    /// Time goes by without an acknowledgement.
    pub(crate) fn tick(&mut self, patience_ticks: usize) {
        for flight in self.flights.values_mut().filter(|flight| !flight.messages.is_empty()) {
            flight.quiet_ticks += 1;
            if flight.quiet_ticks >= patience_ticks {
                flight.quiet_ticks = 0;
                flight.may_try = true;
            }
        }
    }

    /// Unacknowledged bytes on their way to a follower.
    pub(crate) fn bytes(&self, to: u64) -> usize {
        self.flights.get(&to).map_or(0, |flight| flight.bytes)
    }

    /// How many messages the library's window may hold that holds `count` now. `answers_heartbeat`:
    /// the library is about to take one out of a window that is full.
    pub(crate) fn room(&self, to: u64, count: usize, answers_heartbeat: bool) -> usize {
        let Some(flight) = self.flights.get(&to).filter(|flight| flight.bytes > 0) else {
            return count + (self.bytes_max / self.message_most()).max(1);
        };
        let more = self.bytes_max.saturating_sub(flight.bytes) / self.message_most();
        // Whatever is to be tried may have to be read from the disk first, and is sent when that is
        // done.
        let more = more.max(usize::from(flight.may_try));
        match (more, answers_heartbeat) {
            (0, true) => count.saturating_sub(1),
            (more, true) if flight.may_try => count.saturating_sub(1) + more,
            (more, _) => count + more,
        }
    }

    fn message_most(&self) -> usize {
        self.message_bytes_max.max(self.large.0)
    }
}

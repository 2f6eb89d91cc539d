//! One coarse timer for all connections of a shard: heartbeats, handshakes, delayed refusals.
//!
//! Invariant: an entry comes out in the first call of [`Wheel::expire`] at or after its time, never
//! before; late by one tick at most. Entries are not taken out when their connection has news: it
//! looks when it is called, finds that its real time is later, and enters itself again. So a frame
//! costs nothing here, and 10,000 idle connections cost one entry each and one look per half
//! heartbeat.

use amqp::Millis;
use std::collections::BTreeMap;

/// Times are rounded up to this many milliseconds, so that connections opened together are looked
/// at together.
pub(crate) const TICK_MS: Millis = 64;

/// A connection's place on its shard, and which life of that place.
pub(crate) type Seat = (u32, u32);

/// The timers of one shard.
#[derive(Debug, Default)]
pub(crate) struct Wheel {
    /// By tick. A heartbeat of 60 s has at most 470 of them, so the map stays small whatever the
    /// connections.
    ticks: BTreeMap<u64, Vec<Seat>>,
}

impl Wheel {
    /// Calls `seat` at `at` or a little later.
    pub(crate) fn enter(&mut self, at: Millis, seat: Seat) {
        self.ticks.entry(at.div_ceil(TICK_MS)).or_default().push(seat);
    }

    /// When [`Wheel::expire`] is to be called next.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.ticks.keys().next().map(|tick| tick * TICK_MS)
    }

    /// Moves everything that is due into `due`.
    pub(crate) fn expire(&mut self, now: Millis, due: &mut Vec<Seat>) {
        while let Some(entry) = self.ticks.first_entry().filter(|e| e.key() * TICK_MS <= now) {
            due.append(&mut entry.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_time_and_never_early() {
        let mut wheel = Wheel::default();
        assert_eq!(wheel.next(), None);
        for at in [0, 1, TICK_MS, TICK_MS + 1, 10 * TICK_MS] {
            wheel.enter(at, (at as u32, 0));
        }
        let mut seen = Vec::new();
        for now in 0..20 * TICK_MS {
            let mut due = Vec::new();
            wheel.expire(now, &mut due);
            for (at, _) in due {
                assert!(u64::from(at) <= now && now < u64::from(at) + TICK_MS, "{at} at {now}");
                seen.push(at);
            }
        }
        assert_eq!(seen.len(), 5);
        assert_eq!(wheel.next(), None);
    }
}

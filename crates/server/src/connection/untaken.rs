//! A client that does not take what it was sent: how much that is on the whole node, and when its connection
//! is ended for it.
//!
//! Each connection has its window and one message beyond it, which may be large, and there may be many
//! connections. Invariants: nobody is ended who goes on reading, nor while what all leave unread together
//! fits into its part of the memory; who leaves less than half of what they do on the average stays.

use amqp::Millis;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of `transient_bytes_max` that all of it may take: one in so many.
const SHARE: u64 = 4;
/// Whose side acknowledges so much while others are patient goes on reading.
const PROGRESS_BYTES: u64 = 256 << 10;
/// How long that may take: where all of it is so many times as much as it may be.
const PATIENCE_MS: [(u64, Millis); 2] = [(4, 3_000), (1, 10_000)];
/// How often a client is looked at that leaves something unread,
const LOOK_MS: Millis = 1_000;
/// and while all of it is too much.
const LOOK_OFTEN_MS: Millis = 250;

/// What all clients of the node leave unread.
#[derive(Debug)]
pub(crate) struct Untaken {
    bytes: AtomicU64,
    connections: AtomicU64,
    bytes_max: u64,
}

impl Untaken {
    /// Nothing, on a node that may keep so much in memory for its clients.
    pub(crate) fn new(transient_bytes_max: u64) -> Untaken {
        Untaken { bytes: AtomicU64::new(0), connections: AtomicU64::new(0), bytes_max: transient_bytes_max / SHARE }
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How long whoever leaves so much unread may read nothing; `None` where it may be as long as it likes.
    fn patience_ms(&self, bytes: u64) -> Option<Millis> {
        let (sum, connections) = (self.bytes(), self.connections.load(Ordering::Relaxed).max(1));
        let half_of_the_mean = sum / connections / 2;
        let patience = PATIENCE_MS.iter().find(|(times, _)| sum > times * self.bytes_max);
        patience.filter(|_| bytes >= half_of_the_mean).map(|(_, ms)| *ms)
    }

    /// When to look at such a client again.
    pub(super) fn look_at(&self, now: Millis) -> Millis {
        now + if self.bytes() > self.bytes_max { LOOK_OFTEN_MS } else { LOOK_MS }
    }
}

/// What one client leaves unread.
#[derive(Debug, Default)]
pub(super) struct Unread {
    bytes: usize,
    /// What it had taken in all when it last went on reading, if that is known, and when that was.
    taken: Option<u64>,
    since: Millis,
}

impl Unread {
    /// It leaves so much unread now.
    pub(super) fn note(&mut self, bytes: usize, now: Millis, all: &Untaken) {
        if bytes != self.bytes {
            all.bytes.fetch_add((bytes as u64).wrapping_sub(self.bytes as u64), Ordering::Relaxed);
            match (self.bytes, bytes) {
                (0, _) => _ = all.connections.fetch_add(1, Ordering::Relaxed),
                (_, 0) => _ = all.connections.fetch_sub(1, Ordering::Relaxed),
                _ => {}
            }
        }
        if self.bytes == 0 {
            (self.taken, self.since) = (None, now);
        }
        self.bytes = bytes;
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether its connection is to be ended, whose other side has acknowledged so many bytes in all by now.
    pub(super) fn is_too_much(&mut self, taken: u64, now: Millis, all: &Untaken) -> bool {
        match self.taken {
            None => self.taken = Some(taken),
            Some(before) if taken.saturating_sub(before) >= PROGRESS_BYTES => {
                (self.taken, self.since) = (Some(taken), now);
            }
            Some(_) => {}
        }
        self.bytes > 0 && all.patience_ms(self.bytes as u64).is_some_and(|patience| now >= self.since + patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_ended_while_all_of_it_fits_and_who_goes_on_reading_never_is() {
        let all = Untaken::new(4_000_000);
        let (mut stuck, mut slow, mut small) = (Unread::default(), Unread::default(), Unread::default());
        stuck.note(600_000, 0, &all);
        slow.note(300_000, 0, &all);
        small.note(90_000, 0, &all);
        assert_eq!(all.bytes(), 990_000);
        assert!(!stuck.is_too_much(7, 1_000_000, &all), "there is room");
        stuck.note(700_000, 1_000_000, &all);
        // The time counts from its last sign of reading, whenever it became too much.
        assert!(stuck.is_too_much(7, 1_000_000, &all));
        stuck.note(0, 0, &all);
        stuck.note(700_000, 0, &all);
        for (now, taken) in [(1_000, 50), (5_000, 50 + PROGRESS_BYTES), (9_000, 50 + PROGRESS_BYTES)] {
            assert!(!slow.is_too_much(taken, now, &all) && !stuck.is_too_much(7, now, &all));
        }
        assert!(
            !stuck.is_too_much(7, 9_999, &all) && stuck.is_too_much(7, 10_000, &all),
            "more came, but it took nothing"
        );
        // A trickle is no reading.
        let trickle = 50 + 2 * PROGRESS_BYTES - 1;
        assert!(!slow.is_too_much(trickle, 14_999, &all) && slow.is_too_much(trickle, 15_000, &all));
        assert!(!small.is_too_much(0, 1_000_000, &all), "less than half of the mean");
        // Where it is much more, they are given less time.
        let mut other = Unread::default();
        other.note(4_000_000, 20_000, &all);
        assert!(!other.is_too_much(0, 22_999, &all) && other.is_too_much(0, 23_000, &all));
        assert!(!other.is_too_much(PROGRESS_BYTES, 23_000, &all));
        for unread in [&mut stuck, &mut slow, &mut small, &mut other] {
            unread.note(0, 30_000, &all);
            assert!(!unread.is_too_much(0, 1_000_000, &all));
        }
        assert_eq!((all.bytes(), all.connections.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn they_are_looked_at_more_often_while_it_is_too_much() {
        let all = Untaken::new(4_000);
        let mut one = Unread::default();
        one.note(1_000, 0, &all);
        assert_eq!(all.look_at(7), 1_007);
        one.note(1_001, 0, &all);
        assert_eq!(all.look_at(7), 257);
    }
}

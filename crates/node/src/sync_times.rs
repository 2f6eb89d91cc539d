//! How long syncs of the log took, in a few buckets: the figure that says whether the disk or the
//! broker is slow.
//!
//! Invariant: whoever holds the writer of the log notes, any thread reads; a reader may miss the
//! sync that is being noted, and nothing else.

use crate::durations::{BOUNDS_US, BUCKETS, Durations, bucket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Where syncs of the log are noted.
#[derive(Debug)]
pub struct SyncClock {
    /// One for each bound, and one for what is above all of them.
    counts: [AtomicU64; BUCKETS],
    total_us: AtomicU64,
    /// The average of the last few.
    recent_us: AtomicU64,
}

impl Default for SyncClock {
    fn default() -> SyncClock {
        SyncClock {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            total_us: AtomicU64::new(0),
            recent_us: AtomicU64::new(0),
        }
    }
}

/// The newest sync counts for one part in so many of the average.
const RECENT_SYNCS: u64 = 8;

impl SyncClock {
    /// Notes one sync.
    pub fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(us)].fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(us, Ordering::Relaxed);
        let recent = self.recent_us.load(Ordering::Relaxed);
        self.recent_us.store(recent - recent / RECENT_SYNCS + us / RECENT_SYNCS, Ordering::Relaxed);
    }

    /// How long syncs take at present: an average in which the newest weigh most, zero before the
    /// first.
    pub fn recent(&self) -> Duration {
        Duration::from_micros(self.recent_us.load(Ordering::Relaxed))
    }

    /// From now on it is as if the disk had always been quick.
    pub fn forget(&self) {
        self.recent_us.store(0, Ordering::Relaxed);
    }

    /// The same, to be added up and subtracted.
    pub fn durations(&self) -> Durations {
        Durations {
            counts: std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed)),
            total_us: self.total_us.load(Ordering::Relaxed),
        }
    }

    /// What was noted so far.
    pub fn read(&self) -> SyncTimes {
        let bounds = BOUNDS_US.into_iter().map(|us| us as f64 / 1e6).chain([f64::INFINITY]);
        SyncTimes {
            buckets: bounds.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed))).collect(),
            total_s: self.total_us.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }
}

/// How long the syncs since the start took.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncTimes {
    /// Upper end of each bucket in seconds, and the syncs in it alone; the last bucket has no end
    /// (`f64::INFINITY`).
    pub buckets: Vec<(f64, u64)>,
    /// All of them together, in seconds.
    pub total_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_counts_in_the_first_bucket_that_holds_it() {
        let clock = SyncClock::default();
        [100, 101, 9_000_000].into_iter().for_each(|us| clock.note(Duration::from_micros(us)));
        let times = clock.read();
        assert_eq!(times.buckets.iter().map(|(_, count)| *count).sum::<u64>(), 3);
        let counted: Vec<(f64, u64)> = times.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(0.0001, 1), (0.00015, 1), (10.0, 1)]);
        assert_eq!(times.buckets.last(), Some(&(f64::INFINITY, 0)));
        assert!((times.total_s - 9.000_201).abs() < 1e-9);
    }
}

//! How long things take, in buckets fine enough for percentiles.
//!
//! Invariant: bounds are the same for everything and for good, six to a decade, so that counts of
//! shards and threads can be added up and subtracted.

use std::cell::Cell;

/// The upper ends of the buckets in microseconds: a microsecond to ten seconds.
pub const BOUNDS_US: [u64; 43] = {
    const STEPS: [u64; 6] = [10, 15, 22, 33, 47, 68];
    let (mut bounds, mut at, mut scale) = ([0; 43], 0, 1);
    while at < 42 {
        // The first are of fractions of a microsecond, rounded up.
        bounds[at] = (STEPS[at % 6] * scale).div_ceil(10);
        if at % 6 == 5 {
            scale *= 10;
        }
        at += 1;
    }
    bounds[42] = 10_000_000;
    bounds
};

/// Buckets, with that for what takes longer.
pub const BUCKETS: usize = BOUNDS_US.len() + 1;

/// The bucket of a time.
pub(crate) fn bucket(us: u64) -> usize {
    BOUNDS_US.partition_point(|bound| *bound < us)
}

/// Counts by bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// In the order of [`BOUNDS_US`].
    pub counts: [u64; BUCKETS],
    /// All together, in microseconds.
    pub total_us: u64,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { counts: [0; BUCKETS], total_us: 0 }
    }
}

impl Durations {
    /// Adds what `other` counted.
    pub fn add(&mut self, other: &Durations) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.total_us += other.total_us;
    }

    /// What was counted since it was `before`.
    pub fn since(&self, before: &Durations) -> Durations {
        let counts = std::array::from_fn(|at| self.counts[at].saturating_sub(before.counts[at]));
        Durations { counts, total_us: self.total_us.saturating_sub(before.total_us) }
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time in microseconds within which so large a part of them was done, by even spread within
    /// its bucket; `None` of nothing. What took longer than the last bound counts as that.
    pub fn quantile_us(&self, part: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        for (at, here) in self.counts.iter().enumerate() {
            if below + here >= rank && *here > 0 {
                let end = BOUNDS_US[at.min(BOUNDS_US.len() - 1)];
                let begin = if at == 0 { 0 } else { BOUNDS_US[at - 1].min(end) };
                return Some(begin + (end - begin) * (rank - below) / here);
            }
            below += here;
        }
        None
    }
}

/// What a shard measures of the road of a message, of a few messages only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finding the queues of a publish and handing it to their partitions.
    Route,
    /// From there until its shard takes it in.
    Queue,
    /// From the proposal of an entry until a majority has synced it, in a group that has copies on other nodes.
    Replicate,
    /// From handling a publish to its confirm.
    Confirm,
    /// From the proposal of an entry until it is synced, in a group whose only member is here.
    Alone,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 5] = [Stage::Route, Stage::Queue, Stage::Replicate, Stage::Confirm, Stage::Alone];
}

/// The measurements of one shard, on its thread.
#[derive(Debug)]
pub struct StageClock {
    counts: [[Cell<u64>; BUCKETS]; Stage::ALL.len()],
    totals: [Cell<u64>; Stage::ALL.len()],
}

impl Default for StageClock {
    fn default() -> StageClock {
        StageClock {
            counts: [const { [const { Cell::new(0) }; BUCKETS] }; Stage::ALL.len()],
            totals: [const { Cell::new(0) }; Stage::ALL.len()],
        }
    }
}

impl StageClock {
    /// Notes one.
    pub fn note(&self, stage: Stage, us: u64) {
        let cell = &self.counts[stage as usize][bucket(us)];
        cell.set(cell.get() + 1);
        let total = &self.totals[stage as usize];
        total.set(total.get() + us);
    }

    /// What was noted since the start, in the order of the stages.
    pub fn read(&self) -> [Durations; Stage::ALL.len()] {
        std::array::from_fn(|stage| Durations {
            counts: std::array::from_fn(|at| self.counts[stage][at].get()),
            total_us: self.totals[stage].get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_grow_and_each_time_is_in_the_bucket_that_ends_behind_it() {
        assert!(BOUNDS_US.windows(2).all(|two| two[0] < two[1]), "{BOUNDS_US:?}");
        for us in [0, 1, 2, 150, 151, 9_999_999, 10_000_000] {
            let at = bucket(us);
            assert!(us <= BOUNDS_US[at] && (at == 0 || us > BOUNDS_US[at - 1]), "{us}");
        }
        assert_eq!(bucket(10_000_001), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_as_near_as_the_buckets_are_fine() {
        let clock = StageClock::default();
        (1..=1000).for_each(|us| clock.note(Stage::Confirm, us * 10));
        let noted = clock.read()[Stage::Confirm as usize];
        for (part, exact) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let found = noted.quantile_us(part).expect("some were noted") as f64;
            assert!((found / exact - 1.0).abs() < 0.05, "{part}: {found}");
        }
        assert_eq!(noted.since(&noted).quantile_us(0.5), None);
        assert_eq!((noted.count(), noted.total_us), (1000, 5_005_000));
        assert_eq!(clock.read()[Stage::Route as usize], Durations::default());
    }
}

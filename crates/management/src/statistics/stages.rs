//! How long the stages of a message's road took, lately.
//!
//! Invariant: counts of the node's start are added up over shards, and what is told is their
//! difference between two samples; so a restart of a shard's clock is never told.

use server::engine::{Durations, Stage};
use server::handle::{NodeFigures, ShardStatistics};
use std::collections::VecDeque;

/// A minute of samples, with one more that they are compared with.
const KEPT_MS: u64 = 65_000;
/// A sample that is so much younger is of a minute ago.
const SLACK_MS: u64 = 5_000;

/// A stage, as it is called.
pub(crate) const NAMES: [&str; 6] = ["route", "queue", "write", "sync", "replicate", "confirm"];

/// How long each took, in the order of [`NAMES`].
pub(crate) type Stages = [Durations; NAMES.len()];

/// What shards and the log's thread measured since the start.
pub(super) fn gather(shards: &[ShardStatistics], figures: &NodeFigures) -> Stages {
    let of = |stage: Stage| {
        let mut sum = Durations::default();
        shards.iter().for_each(|shard| sum.add(&shard.stages[stage as usize]));
        sum
    };
    let (writes, syncs) = figures.log_times;
    [of(Stage::Route), of(Stage::Queue), writes, syncs, of(Stage::Replicate), of(Stage::Confirm)]
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct StageHistory {
    now: Stages,
    samples: VecDeque<(u64, Box<Stages>)>,
}

impl StageHistory {
    /// What there is now.
    pub(super) fn update(&mut self, now: Stages) {
        self.now = now;
    }

    /// Makes it a sample.
    pub(super) fn sample(&mut self, now_ms: u64) {
        self.samples.push_back((now_ms, Box::new(self.now)));
        while self.samples.len() > 1 && self.samples[1].0 + KEPT_MS < now_ms {
            self.samples.pop_front();
        }
    }

    /// What was measured since the start.
    pub(crate) fn since_start(&self) -> &Stages {
        &self.now
    }

    /// What was measured within the last minute, or since the newest sample from before it; and for
    /// how long, in milliseconds. Without such a sample, since the start.
    pub(crate) fn last_minute(&self, now_ms: u64) -> (Stages, Option<u64>) {
        let wanted = now_ms.saturating_sub(60_000);
        let before = self.samples.iter().rev().find(|(time, _)| *time <= wanted + SLACK_MS);
        match before {
            None => (self.now, None),
            Some((time, before)) => {
                (std::array::from_fn(|at| self.now[at].since(&before[at])), Some(now_ms.saturating_sub(*time)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_told_and_not_what_was_before() {
        let mut history = StageHistory::default();
        history.sample(1_000);
        let counted = |count: u64| {
            let mut stages = Stages::default();
            stages[5].counts[7] = count;
            stages
        };
        history.update(counted(3));
        assert_eq!(history.last_minute(20_000).0[5].count(), 3, "all of a young process");
        for at in 1..40 {
            history.update(counted(at * 10));
            history.sample(at * 5_000);
        }
        history.update(counted(400));
        let (stages, over_ms) = history.last_minute(200_000);
        assert_eq!((stages[5].count(), over_ms), (400 - 29 * 10, Some(55_000)));
        assert!(history.samples.len() <= 15, "{}", history.samples.len());
    }
}

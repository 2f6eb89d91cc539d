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

/// The stages that are told, as they are called.
pub(crate) const NAMES: [&str; 6] = ["route", "queue", "write", "sync", "replicate", "confirm"];
const REPLICATE: usize = 4;
/// What no copy is waited for counts as a commit all the same.
const ALONE: usize = NAMES.len();

/// How long each took, in the order of [`NAMES`], and last what is committed by this node alone.
pub(crate) type Stages = [Durations; NAMES.len() + 1];

/// What shards and the log's thread measured since the start.
pub(super) fn gather(shards: &[ShardStatistics], figures: &NodeFigures) -> Stages {
    let of = |stage: Stage| {
        let mut sum = Durations::default();
        shards.iter().for_each(|shard| sum.add(&shard.stages[stage as usize]));
        sum
    };
    let (writes, syncs) = figures.log_times;
    [of(Stage::Route), of(Stage::Queue), writes, syncs, of(Stage::Replicate), of(Stage::Confirm), of(Stage::Alone)]
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

    /// How long entries took on average, in seconds, from their proposal until a majority had them, be it this node
    /// alone; over the time of [`StageHistory::last_minute`], or since the start if none was measured in it. `None` if
    /// none ever was.
    pub(crate) fn mean_commit_s(&self, now_ms: u64) -> Option<f64> {
        let (lately, _) = self.last_minute(now_ms);
        let commits = |of: &Stages| {
            let mut sum = of[REPLICATE];
            sum.add(&of[ALONE]);
            sum
        };
        let measured = [commits(&lately), commits(&self.now)].into_iter().find(|measured| measured.count() > 0)?;
        Some(measured.total_us as f64 / 1e6 / measured.count() as f64)
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
    #[test]
    fn a_commit_takes_what_the_last_minute_says_on_average() {
        let mut history = StageHistory::default();
        let counted = |count: u64, total_us: u64| {
            let mut stages = Stages::default();
            stages[NAMES.iter().position(|name| *name == "replicate").expect("it is a stage")] =
                Durations { counts: std::array::from_fn(|at| if at == 3 { count } else { 0 }), total_us };
            stages
        };
        assert_eq!(history.mean_commit_s(1_000), None, "nothing was measured");
        history.update(counted(2, 3_000));
        assert_eq!(history.mean_commit_s(1_000), Some(0.001_5));
        history.sample(1_000);
        history.update(counted(4, 23_000));
        assert_eq!(history.mean_commit_s(61_000), Some(0.01), "not what was before");
        history.sample(61_000);
        assert_eq!(history.mean_commit_s(121_000), Some(0.005_75), "none in the last minute");
        let mut stages = counted(4, 23_000);
        stages[ALONE] = Durations { counts: std::array::from_fn(|at| u64::from(at == 3)), total_us: 7_000 };
        history.update(stages);
        assert_eq!(history.mean_commit_s(121_000), Some(0.007), "of a group of one node too");
    }
}

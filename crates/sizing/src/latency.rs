//! Latency below saturation, by queueing: how late messages are at a part of what a cluster can do.
//!
//! With arrivals and work that vary, a message waits in proportion to ρ/(1 − ρ), where ρ is the
//! rate as a part of the highest one. So p99(ρ) = idle + wait · ρ/(1 − ρ): `idle` is what a message
//! takes on an empty cluster, a sync and a round trip mostly, and `wait` is the time that a queue
//! adds. Invariant: neither is negative, so a higher rate is never predicted to be faster.

use serde::Serialize;

use crate::outcome::is_matched;
use crate::results::{Results, Step, Test};

/// Above this part of the top rate a measurement says how long the test was, not how long a message
/// waits.
const PART_MAX: f64 = 0.97;

/// Measurements below saturation that a fit needs.
const STEPS_MIN: usize = 3;

/// A fitted curve of p99 over the part of the top rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// Milliseconds on an empty cluster.
    pub idle_ms: f64,
    /// Milliseconds that half of the top rate adds.
    pub wait_ms: f64,
    /// Typical factor between the curve and a measurement, at least one.
    pub error_factor: f64,
    /// Measurements it was fitted on.
    pub steps: usize,
}

impl Curve {
    /// Fits the rising tests of all configurations whose top rate was reached; `None` where they
    /// are too few.
    pub fn fit(results: &Results, tops: &[(String, f64)]) -> Option<Curve> {
        let points = points(results, tops);
        if points.len() < STEPS_MIN {
            return None;
        }
        let (idle_ms, wait_ms) = solve(&points);
        let off = |(part, ms): &(f64, f64)| (at(idle_ms, wait_ms, *part).max(f64::MIN_POSITIVE) / ms).ln().powi(2);
        let mean = points.iter().map(off).sum::<f64>() / points.len() as f64;
        Some(Curve { idle_ms, wait_ms, error_factor: mean.sqrt().exp(), steps: points.len() })
    }

    /// p99 in milliseconds at a part of the top rate; infinite from the top rate on.
    pub fn p99_ms(&self, part: f64) -> f64 {
        at(self.idle_ms, self.wait_ms, part)
    }

    /// The largest part of the top rate whose p99 is within `ms`; zero where an empty cluster is
    /// too late already.
    pub fn part_within(&self, ms: f64) -> f64 {
        if ms < self.idle_ms {
            return 0.0;
        }
        let left = ms - self.idle_ms;
        if left + self.wait_ms == 0.0 { 1.0 } else { left / (left + self.wait_ms) }
    }
}

fn at(idle_ms: f64, wait_ms: f64, part: f64) -> f64 {
    if part >= 1.0 { f64::INFINITY } else { idle_ms + wait_ms * part / (1.0 - part) }
}

/// Part of the top rate and p99 of every measurement below saturation.
fn points(results: &Results, tops: &[(String, f64)]) -> Vec<(f64, f64)> {
    let point = |step: &Step| {
        let name = format!("{}/{}", step.cluster, step.volume);
        let (_, top) = tops.iter().find(|(known, _)| *known == name)?;
        let part = step.consumed / top;
        let is_below = step.test == Test::Rising && is_matched(step) && part > 0.0 && part <= PART_MAX;
        step.p99_ms.filter(|ms| is_below && *ms > 0.0).map(|ms| (part, ms))
    };
    results.steps.iter().filter_map(point).collect()
}

/// Least squares of relative errors, both terms not negative.
fn solve(points: &[(f64, f64)]) -> (f64, f64) {
    let rows: Vec<(f64, f64)> = points.iter().map(|(part, ms)| (1.0 / ms, part / (1.0 - part) / ms)).collect();
    let sum = |f: fn(&(f64, f64)) -> f64| rows.iter().map(f).sum::<f64>();
    let (aa, ab, bb) = (sum(|r| r.0 * r.0), sum(|r| r.0 * r.1), sum(|r| r.1 * r.1));
    let (a, b) = (sum(|r| r.0), sum(|r| r.1));
    let determinant = aa * bb - ab * ab;
    if determinant > 1e-12 * aa * bb {
        let (idle, wait) = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
        if idle >= 0.0 && wait >= 0.0 {
            return (idle, wait);
        }
    }
    // One of them is zero: whichever alone leaves less.
    let left = |idle: f64, wait: f64| rows.iter().map(|r| (idle * r.0 + wait * r.1 - 1.0).powi(2)).sum::<f64>();
    let (idle_only, wait_only) = ((a / aa, 0.0), (0.0, b / bb));
    if left(idle_only.0, 0.0) <= left(0.0, wait_only.1) { idle_only } else { wait_only }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_curve_that_made_the_points_is_found_again(idle in 0.1..50.0_f64, wait in 0.1..50.0_f64) {
            let points: Vec<(f64, f64)> = (1..10).map(|tenth| f64::from(tenth) / 10.0).map(|p| (p, at(idle, wait, p))).collect();
            let (found_idle, found_wait) = solve(&points);
            prop_assert!((found_idle / idle - 1.0).abs() < 1e-6 && (found_wait / wait - 1.0).abs() < 1e-6);
            let curve = Curve { idle_ms: found_idle, wait_ms: found_wait, error_factor: 1.0, steps: 9 };
            let part = curve.part_within(idle + 3.0 * wait);
            prop_assert!((part - 0.75).abs() < 1e-6);
        }

        #[test]
        fn a_higher_rate_is_never_predicted_to_be_faster(
            points in prop::collection::vec((0.01..0.97_f64, 0.1..1000.0_f64), 3..20), part in 0.0..0.9_f64
        ) {
            let (idle_ms, wait_ms) = solve(&points);
            prop_assert!(idle_ms >= 0.0 && wait_ms >= 0.0 && idle_ms + wait_ms > 0.0);
            let curve = Curve { idle_ms, wait_ms, error_factor: 1.0, steps: points.len() };
            prop_assert!(curve.p99_ms(part + 0.05) >= curve.p99_ms(part));
        }
    }
}

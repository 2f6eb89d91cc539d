//! Latencies: HdrHistograms in nanoseconds, the percentiles that are told, and their curve.
//!
//! Invariant: every value is recorded, three digits exact, from 1 ns to an hour; longer ones count
//! as an hour.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart.
pub const LATENCY_NS_MAX: u64 = 3_600 * crate::clock::SECOND;

/// The percentiles that every table has.
pub const TOLD: [&str; 7] = ["p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99"];

/// A histogram of latencies.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds above are lawful")
}

/// The figures of one histogram, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// How many were measured.
    pub count: u64,
    /// Smallest.
    pub min_ms: f64,
    /// Mean.
    pub mean_ms: f64,
    /// Percentiles, named `p50` to `p99.99` by their keys.
    pub p50_ms: f64,
    /// The 75th percentile.
    pub p75_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p999_ms: f64,
    /// The 99.99th percentile.
    pub p9999_ms: f64,
    /// Largest.
    pub max_ms: f64,
}

impl Figures {
    /// The figures of `histogram`; all zero when it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Figures {
        if histogram.is_empty() {
            return Figures::default();
        }
        let at = |percentile: f64| millis(histogram.value_at_percentile(percentile));
        Figures {
            count: histogram.len(),
            min_ms: millis(histogram.min()),
            mean_ms: histogram.mean() / 1e6,
            p50_ms: at(50.0),
            p75_ms: at(75.0),
            p90_ms: at(90.0),
            p95_ms: at(95.0),
            p99_ms: at(99.0),
            p999_ms: at(99.9),
            p9999_ms: at(99.99),
            max_ms: millis(histogram.max()),
        }
    }

    /// The percentiles of [`TOLD`], in that order.
    pub fn told(&self) -> [f64; 7] {
        [self.p50_ms, self.p75_ms, self.p90_ms, self.p95_ms, self.p99_ms, self.p999_ms, self.p9999_ms]
    }
}

/// A curve for a chart: percentile and milliseconds, denser towards the tail. Stops where fewer
/// than one message would be above.
pub fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    if histogram.is_empty() {
        return points;
    }
    // Ten points for each tenfold rarer tail, from 1 in 1 to 1 in 100,000.
    for step in 0..=50 {
        let above = 10f64.powf(-f64::from(step) / 10.0);
        if above * (histogram.len() as f64) < 1.0 {
            break;
        }
        let percentile = 100.0 * (1.0 - above);
        points.push((percentile, millis(histogram.value_at_percentile(percentile))));
    }
    points
}

/// Nanoseconds as milliseconds.
pub fn millis(ns: u64) -> f64 {
    (ns as f64 / 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_values() {
        let mut h = histogram();
        (1..=10_000u64).for_each(|n| h.saturating_record(n * 1_000_000));
        let f = Figures::of(&h);
        for (told, expected) in f.told().iter().zip([5000.0, 7500.0, 9000.0, 9500.0, 9900.0, 9990.0, 9999.0]) {
            assert!((told / expected - 1.0).abs() < 0.002, "{told} {expected}");
        }
        assert_eq!(f.count, 10_000);
        let curve = curve(&h);
        assert_eq!(curve.len(), 41);
        assert!(curve.windows(2).all(|w| w[0].1 <= w[1].1));
    }

    #[test]
    fn longer_than_an_hour_is_an_hour() {
        let mut h = histogram();
        h.saturating_record(u64::MAX);
        assert_eq!(h.len(), 1);
    }
}

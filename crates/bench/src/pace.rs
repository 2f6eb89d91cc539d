//! When the next message is due, how large it is, how long its work takes: values that change over
//! time.
//!
//! Invariant: the times that a pace gives depend on its start and its steps only, never on when
//! they are asked for. That is what makes the load open: a broker that stalls finds the messages of
//! the stall waiting, each with the time at which it was due.

use crate::clock::SECOND;

/// A value that holds for some seconds, then the next, and again from the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    steps: Vec<(f64, u64)>,
    cycle_ns: u64,
}

impl Steps {
    /// One value for ever.
    pub fn constant(value: f64) -> Steps {
        Steps { steps: vec![(value, u64::MAX)], cycle_ns: u64::MAX }
    }

    /// Values with their seconds; at least one, each at least a second long.
    pub fn new(steps: &[(f64, u64)]) -> Steps {
        assert!(!steps.is_empty(), "steps without a step");
        let steps: Vec<(f64, u64)> = steps.iter().map(|&(value, secs)| (value, secs.saturating_mul(SECOND))).collect();
        let cycle_ns = steps.iter().fold(0u64, |sum, step| sum.saturating_add(step.1));
        Steps { steps, cycle_ns }
    }

    /// The value at a time after the start, and the time after the start at which its step ends.
    pub fn at(&self, elapsed_ns: u64) -> (f64, u64) {
        if self.steps.len() == 1 {
            return (self.steps[0].0, u64::MAX);
        }
        let cycle_start = elapsed_ns - elapsed_ns % self.cycle_ns;
        let mut end = cycle_start;
        for &(value, length) in &self.steps {
            end = end.saturating_add(length);
            if elapsed_ns < end {
                return (value, end);
            }
        }
        unreachable!("a time within the cycle lies in one of its steps")
    }

    /// The values, in their order.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().map(|step| step.0)
    }

    /// Whether it ever changes.
    pub fn is_stepped(&self) -> bool {
        self.min() < self.max()
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.steps.iter().map(|step| step.0).fold(f64::MIN, f64::max)
    }

    /// The smallest value.
    pub fn min(&self) -> f64 {
        self.steps.iter().map(|step| step.0).fold(f64::MAX, f64::min)
    }

    /// The mean value between the start and `until_ns`.
    pub fn mean(&self, until_ns: u64) -> f64 {
        let (mut at, mut sum) = (0, 0.0);
        while at < until_ns {
            let (value, end) = self.at(at);
            let end = end.min(until_ns);
            sum += value * (end - at) as f64;
            at = end;
        }
        if until_ns == 0 { self.at(0).0 } else { sum / until_ns as f64 }
    }
}

/// The due times of one publisher.
#[derive(Clone, Debug)]
pub struct Pace {
    rate: Steps,
    /// The due time of the next message, after the start. A fraction of a nanosecond is kept, or
    /// 200,000 a second would drift.
    next_ns: f64,
}

impl Pace {
    /// Messages at `rate` a second, the first after `offset_ns`.
    pub fn new(rate: Steps, offset_ns: u64) -> Pace {
        let mut pace = Pace { rate, next_ns: offset_ns as f64 };
        pace.skip_silence();
        pace
    }

    /// When the next message is due, after the start; `u64::MAX` is never.
    pub fn due(&self) -> u64 {
        if self.next_ns.is_finite() { self.next_ns as u64 } else { u64::MAX }
    }

    /// The next message was sent.
    pub fn advance(&mut self) {
        let (rate, end) = self.rate.at(self.next_ns as u64);
        let next = self.next_ns + SECOND as f64 / rate;
        // A slow step does not delay the first message of the fast one after it.
        self.next_ns = if next >= end as f64 && end != u64::MAX { end as f64 } else { next };
        self.skip_silence();
    }

    /// For a closed loop: what is late is not caught up, the schedule goes on from `now_ns`.
    pub fn restart_from(&mut self, now_ns: u64) {
        if now_ns as f64 > self.next_ns {
            self.next_ns = now_ns as f64;
            self.skip_silence();
        }
    }

    /// A rate of 0 is a pause until its step ends.
    fn skip_silence(&mut self) {
        while self.next_ns.is_finite() {
            let (rate, end) = self.rate.at(self.next_ns as u64);
            if rate > 0.0 {
                return;
            }
            self.next_ns = if end == u64::MAX { f64::INFINITY } else { end as f64 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dues(pace: &mut Pace, count: usize) -> Vec<u64> {
        (0..count).map(|_| (pace.due(), pace.advance()).0).collect()
    }

    #[test]
    fn due_times_are_the_schedule_whenever_they_are_asked_for() {
        let mut pace = Pace::new(Steps::constant(4.0), 100);
        assert_eq!(dues(&mut pace, 3), [100, SECOND / 4 + 100, SECOND / 2 + 100]);
    }

    #[test]
    fn a_high_rate_does_not_drift() {
        let mut pace = Pace::new(Steps::constant(300_000.0), 0);
        let last = dues(&mut pace, 3_000_001).pop().unwrap_or_default();
        assert!(last.abs_diff(10 * SECOND) < 1000, "{last}");
    }

    #[test]
    fn steps_repeat_and_a_rate_of_nothing_is_a_pause() {
        let steps = Steps::new(&[(2.0, 1), (0.0, 3), (1.0, 1)]);
        let mut pace = Pace::new(steps.clone(), 0);
        let half = SECOND / 2;
        assert_eq!(dues(&mut pace, 5), [0, half, 4 * SECOND, 5 * SECOND, 5 * SECOND + half]);
        assert_eq!(steps.at(6 * SECOND), (0.0, 9 * SECOND));
        assert!((steps.mean(10 * SECOND) - 0.6).abs() < 1e-9);
    }

    #[test]
    fn nothing_for_ever_is_never() {
        assert_eq!(Pace::new(Steps::constant(0.0), 0).due(), u64::MAX);
    }

    #[test]
    fn a_closed_loop_forgets_what_is_late() {
        let mut pace = Pace::new(Steps::constant(1.0), 0);
        pace.restart_from(10 * SECOND);
        assert_eq!(dues(&mut pace, 2), [10 * SECOND, 11 * SECOND]);
    }
}

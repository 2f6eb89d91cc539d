//! What the measurements say of each configuration.
//!
//! Invariant: nothing is concluded that was not measured. A rate between the highest one held and
//! the lowest one missed is `NotShown`.

use serde::Serialize;

use crate::requirement::Requirement;
use crate::results::{Configuration, Results, Step, Test};

/// A target counts as matched when throughput falls short of it by no more than this part:
/// publishers start at random moments and the last messages are under way when the measurement
/// ends.
pub const SHORTFALL_MAX: f64 = 0.01;

/// A backlog counts as worked off when no more than this many seconds of traffic are left at the
/// end.
pub const BACKLOG_SECONDS_MAX: f64 = 1.0;

/// An answer, or the admission that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// Measured, and it holds.
    Yes,
    /// Measured, and it does not.
    No,
    /// Not measured.
    NotShown,
}

impl Shown {
    fn from_bounds(rate: f64, held: Option<f64>, short_of: Option<f64>) -> Shown {
        if held.is_some_and(|held| rate <= held) {
            Shown::Yes
        } else if short_of.is_some_and(|short| rate >= short) {
            Shown::No
        } else {
            Shown::NotShown
        }
    }

    fn and(self, other: Shown) -> Shown {
        match (self, other) {
            (Shown::No, _) | (_, Shown::No) => Shown::No,
            (Shown::Yes, Shown::Yes) => Shown::Yes,
            _ => Shown::NotShown,
        }
    }

    /// The word of tables.
    pub fn word(self) -> &'static str {
        match self {
            Shown::Yes => "yes",
            Shown::No => "no",
            Shown::NotShown => "not shown",
        }
    }
}

/// Percentiles of end-to-end latency at one rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The rate at which they were measured: the lowest tested one that covers the requirement.
    pub rate: f64,
    /// Name and milliseconds, rising.
    pub percentiles: Vec<(&'static str, f64)>,
}

/// One configuration in the light of a requirement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which.
    pub configuration: Configuration,
    /// Highest target matched, with every lower one.
    pub held: Option<f64>,
    /// Lowest target missed.
    pub short_of: Option<f64>,
    /// Highest throughput.
    pub top_rate: f64,
    /// Latency at the requirement's rate.
    pub latency: Option<Latency>,
    /// What that latency is made of, as far as it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_reason: Option<String>,
    /// A bound of p99 at that rate, where a study gives nothing better.
    pub p99_below_ms: Option<f64>,
    /// Holds the rate.
    pub holds_rate: Shown,
    /// Holds p99 at the rate.
    pub holds_p99: Shown,
    /// Holds both with one node lost.
    pub holds_loss: Shown,
    /// Works off a backlog.
    pub holds_backlog: Shown,
    /// Lost messages and unflagged duplicates of all its steps: any at all disqualifies.
    pub broken_promises: u64,
}

impl Outcome {
    /// Everything that `requirement` asks for, as one answer.
    pub fn verdict(&self, requirement: &Requirement) -> Shown {
        let mut verdict = self.holds_rate.and(self.holds_p99);
        if requirement.lose_node {
            verdict = verdict.and(self.holds_loss);
        }
        if requirement.backlog_rate.is_some() {
            verdict = verdict.and(self.holds_backlog);
        }
        if self.broken_promises > 0 { Shown::No } else { verdict }
    }
}

/// Outcomes of all configurations that have a throughput, in the order of the file.
pub fn outcomes(results: &Results, requirement: &Requirement) -> Vec<Outcome> {
    results.configurations.iter().filter_map(|known| outcome(results, known, requirement)).collect()
}

fn outcome(results: &Results, configuration: &Configuration, requirement: &Requirement) -> Option<Outcome> {
    let is_it = |cluster: &str, volume: &str| cluster == configuration.cluster && volume == configuration.volume;
    let steps: Vec<&Step> = results.steps.iter().filter(|step| is_it(&step.cluster, &step.volume)).collect();
    let rising = of_test(&steps, Test::Rising);
    let summary = results.summaries.iter().find(|summary| is_it(&summary.cluster, &summary.volume));

    let mut short_of = rising.iter().filter(|step| !is_matched(step)).map(|step| step.target).reduce(f64::min);
    let under = |step: &&&Step| short_of.is_none_or(|short| step.target < short);
    let mut held = rising.iter().filter(under).map(|step| step.target).reduce(f64::max);
    // Where only adverse tests were made, theirs is the highest throughput that is known.
    let driven = if rising.is_empty() { &steps } else { &rising };
    let mut top_rate = driven.iter().map(|step| step.consumed).reduce(f64::max);
    if let Some(summary) = summary {
        held = held.or(summary.held);
        short_of = short_of.or(summary.short_of);
        top_rate = top_rate.or(Some(summary.top_rate));
    }
    let top_rate = top_rate?;

    let at_rate =
        rising.iter().filter(|step| step.target >= requirement.rate).min_by(|a, b| a.target.total_cmp(&b.target));
    // A study says it of the rate it was made for, so it holds there and below.
    let is_covered = results.header.requirement.is_some_and(|stated| requirement.rate <= stated.rate);
    let p99_below_ms = summary.and_then(|summary| summary.p99_below_ms).filter(|_| is_covered);
    let is_in_time = |step: &Step| step.p99_ms.map(|p99| p99 <= requirement.p99_ms);
    let is_late_below = rising.iter().any(|step| step.target < requirement.rate && is_in_time(step) == Some(false));
    let holds_p99 = match at_rate.and_then(|step| Some((step.target > requirement.rate, is_in_time(step)?))) {
        Some((_, true)) => Shown::Yes,
        Some((false, false)) => Shown::No,
        // Late at a higher rate says nothing of this one; late at a lower one does.
        _ if is_late_below => Shown::No,
        Some((true, false)) => Shown::NotShown,
        None if p99_below_ms.is_some_and(|bound| bound <= requirement.p99_ms) => Shown::Yes,
        None => Shown::NotShown,
    };
    let broken = |step: &&Step| step.lost.unwrap_or(0) + step.duplicated.unwrap_or(0);
    Some(Outcome {
        configuration: configuration.clone(),
        held,
        short_of,
        top_rate,
        latency: at_rate.map(|step| Latency { rate: step.target, percentiles: percentiles(step) }),
        latency_reason: at_rate.and_then(|step| crate::reason::of(step, configuration)),
        p99_below_ms,
        holds_rate: Shown::from_bounds(requirement.rate, held, short_of),
        holds_p99,
        holds_loss: holds_loss(results, configuration, &steps, requirement),
        holds_backlog: holds_backlog(results, configuration, &steps, requirement),
        broken_promises: steps.iter().map(broken).sum(),
    })
}

fn of_test<'a>(steps: &[&'a Step], test: Test) -> Vec<&'a Step> {
    steps.iter().filter(|step| step.test == test).copied().collect()
}

/// Publishers and consumers both kept up with what was intended.
pub fn is_matched(step: &Step) -> bool {
    step.published.min(step.consumed) >= step.intended * (1.0 - SHORTFALL_MAX)
}

/// Publishers kept their pace, and what queued up meanwhile is gone.
fn is_unfelt(step: &Step) -> bool {
    let is_worked_off = step.backlog_end.is_none_or(|left| left as f64 <= step.target * BACKLOG_SECONDS_MAX);
    step.published >= step.intended * (1.0 - SHORTFALL_MAX) && is_worked_off
}

/// Highest rate held and lowest one missed of one adverse test.
fn bounds(
    results: &Results,
    configuration: &Configuration,
    steps: &[&Step],
    test: Test,
    is_held: impl Fn(&Step) -> bool,
) -> (Option<f64>, Option<f64>) {
    let of_it = of_test(steps, test);
    if of_it.is_empty() {
        let adverse = results.adverse.iter().find(|adverse| {
            adverse.test == test
                && adverse.cluster == configuration.cluster
                && adverse.volume.as_ref().is_none_or(|volume| *volume == configuration.volume)
        });
        return adverse.map_or((None, None), |adverse| (adverse.held, adverse.short_of));
    }
    let short_of = of_it.iter().filter(|step| !is_held(step)).map(|step| step.target).reduce(f64::min);
    let under = |step: &&&Step| short_of.is_none_or(|short| step.target < short);
    (of_it.iter().filter(under).map(|step| step.target).reduce(f64::max), short_of)
}

fn holds_loss(results: &Results, known: &Configuration, steps: &[&Step], requirement: &Requirement) -> Shown {
    let in_time = |step: &Step| step.p99_ms.is_none_or(|p99| p99 <= requirement.p99_ms);
    let (held, short_of) =
        bounds(results, known, steps, Test::LoseBroker, |step| is_unfelt(step) && is_matched(step) && in_time(step));
    Shown::from_bounds(requirement.rate, held, short_of)
}

fn holds_backlog(results: &Results, known: &Configuration, steps: &[&Step], requirement: &Requirement) -> Shown {
    let Some(rate) = requirement.backlog_rate else { return Shown::NotShown };
    let of_test = |test| {
        let (held, short_of) = bounds(results, known, steps, test, is_unfelt);
        ((held, short_of) != (None, None)).then(|| Shown::from_bounds(rate, held, short_of))
    };
    // A backlog forms when consumers slow down; a peak of publishers is the milder case and decides
    // only where it fails.
    match (of_test(Test::SlowConsumers), of_test(Test::PublisherPeak)) {
        (Some(slow), Some(Shown::Yes) | None) => slow,
        (Some(slow), Some(peak)) => slow.and(peak),
        (None, Some(Shown::No)) => Shown::No,
        (None, _) => Shown::NotShown,
    }
}

fn percentiles(step: &Step) -> Vec<(&'static str, f64)> {
    let all = [
        ("p50", step.p50_ms),
        ("p75", step.p75_ms),
        ("p95", step.p95_ms),
        ("p99", step.p99_ms),
        ("p99.9", step.p999_ms),
    ];
    all.into_iter().filter_map(|(name, ms)| Some((name, ms?))).collect()
}

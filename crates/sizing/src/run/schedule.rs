//! From a plan to trials, one after another: what is still to do, how long it takes, and the words
//! of the load generator for each.
//!
//! Invariant: the same plan gives the same trials in the same order, and a trial says nothing about
//! when it runs. So a run that was interrupted knows what is left by comparing names with its
//! results file.

use super::plan::{Plan, Series, Workload};
use crate::results::{Results, Test};

/// Steps in which a ramp is driven.
const RAMP_STEPS: u32 = 10;
/// Consumers beyond what the rate needs, so that consumers are never the limit of a rising test.
const CONSUMER_HEADROOM: f64 = 1.2;
/// How much a peak adds to its base rate.
const PEAK_EXTRA: f64 = 10_000.0;
/// What slow consumers slow down to.
const SLOW_FACTOR: f64 = 3.0;
/// Seconds before a slow-down, of a ramp, of the plateau, and after it, as the study drove them.
const BEFORE_S: f64 = 300.0;
const RAMP_S: f64 = 1200.0;
const PLATEAU_S: f64 = 300.0;
const AFTER_S: f64 = 3000.0;
/// What a trial takes beside its measured time: connecting, draining, counting. Replaced by what
/// trials have taken once some have run.
const OVERHEAD_SECONDS: f64 = 1.5;

/// A value that changes over time: value, and for how many seconds.
pub type Steps = Vec<(f64, f64)>;

/// One measurement to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Place of the candidate in the plan.
    pub candidate: usize,
    /// Which test.
    pub test: Test,
    /// Messages a second in all; the base of a peak.
    pub target: f64,
    /// Messages a second in all, over time.
    pub rate: Steps,
    /// Microseconds of work a message, over time.
    pub work_us: Steps,
    /// Consumers.
    pub consumers: u64,
    /// Seconds after which one node is lost.
    pub lose_at: Option<f64>,
}

impl Trial {
    /// How long it is measured.
    pub fn seconds(&self) -> f64 {
        self.rate.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Microseconds of work a message, where it is the same all the time.
    pub fn work(&self) -> Option<f64> {
        match self.work_us[..] {
            [(work, _)] => Some(work),
            _ => None,
        }
    }

    /// The intended rate, averaged over the trial.
    pub fn intended(&self) -> f64 {
        self.rate.iter().map(|(rate, seconds)| rate * seconds).sum::<f64>() / self.seconds()
    }
}

/// All trials of a plan: candidate by candidate, test by test, rates rising.
pub fn trials(plan: &Plan) -> Vec<Trial> {
    let mut trials = Vec::new();
    for candidate in 0..plan.candidates.len() {
        for series in &plan.series {
            for (at, target) in series.rates.iter().enumerate() {
                trials.push(trial(plan, candidate, series, at, *target));
            }
        }
    }
    trials
}

fn trial(plan: &Plan, candidate: usize, series: &Series, at: usize, target: f64) -> Trial {
    let workload = &plan.workload;
    let work = workload.work_us as f64;
    let scale = plan.time_scale;
    let (rate, work_us) = match series.test {
        Test::Rising | Test::LoseBroker => (vec![(target, series.seconds)], vec![(work, series.seconds)]),
        Test::SlowConsumers => {
            let work_us = there_and_back(work, work * SLOW_FACTOR, BEFORE_S, scale, 1.0);
            (vec![(target, work_us.iter().map(|(_, seconds)| seconds).sum())], work_us)
        }
        Test::PublisherPeak => {
            // A small model peaks in proportion: the study's ten thousand were a third of its
            // highest base.
            let extra = PEAK_EXTRA.min(target);
            let rate = there_and_back(target, target + extra, 0.0, scale, workload.publishers as f64);
            let seconds = rate.iter().map(|(_, seconds)| seconds).sum();
            (rate, vec![(work, seconds)])
        }
    };
    let highest = rate.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
    let needed = match series.test {
        // Slow consumers must fall behind, or there is no backlog: enough for their normal work and
        // no more.
        Test::SlowConsumers | Test::PublisherPeak => target * work / 1e6 * CONSUMER_HEADROOM,
        // As many for each queue, because a message waits for those of its own queue while others idle.
        Test::Rising | Test::LoseBroker => {
            let queues = workload.queues as f64;
            queues * (highest / queues * work / 1e6 * CONSUMER_HEADROOM).ceil()
        }
    };
    let consumers = series.consumers.get(at).copied().unwrap_or(workload.consumers.max(needed.ceil() as u64));
    let lose_at = (series.test == Test::LoseBroker).then_some(series.seconds * series.lose_after);
    Trial { candidate, test: series.test, target, rate, work_us, consumers, lose_at }
}

/// Low, up a ramp, the plateau, down, and low again for long enough to work a backlog off.
///
/// Each part lasts whole seconds and each value is a multiple of `unit`, one at least: PerfTest's
/// schedules know nothing finer, and a rate is shared by all publishers.
fn there_and_back(low: f64, high: f64, before: f64, scale: f64, unit: f64) -> Steps {
    let whole = |value: f64| (value / unit).round().max(1.0) * unit;
    let seconds = |seconds: f64| (seconds * scale).round().max(1.0);
    let ramp_seconds = seconds(RAMP_S);
    let count = f64::from(RAMP_STEPS).min(ramp_seconds);
    let ramp = |from: f64, to: f64| {
        let part = move |step: f64| from + (to - from) * (step + 0.5) / count;
        // Where seconds do not divide evenly, boundaries are rounded, so that the ramp as a whole
        // is as long as it should be.
        let edge = move |step: f64| (ramp_seconds * step / count).round();
        (0..count as u32).map(f64::from).map(move |step| (whole(part(step)), edge(step + 1.0) - edge(step)))
    };
    let mut steps: Steps = Vec::new();
    if before > 0.0 {
        steps.push((whole(low), seconds(before)));
    }
    steps.extend(ramp(low, high));
    steps.push((whole(high), seconds(PLATEAU_S)));
    steps.extend(ramp(high, low));
    steps.push((whole(low), seconds(AFTER_S)));
    steps
}

/// Trials that a results file does not have yet.
pub fn left(plan: &Plan, results: &Results) -> Vec<Trial> {
    let is_done = |trial: &Trial| {
        let known = &plan.candidates[trial.candidate].configuration;
        let is_skipped = |skipped: &crate::results::Skipped| {
            skipped.cluster == known.cluster
                && skipped.volume == known.volume
                && skipped.test == trial.test
                && skipped.target == trial.target
        };
        results.step(&known.cluster, &known.volume, trial.test, trial.target).is_some()
            || results.skipped.iter().any(is_skipped)
    };
    trials(plan).into_iter().filter(|trial| !is_done(trial)).collect()
}

/// Whether a trial can be made at all; how the trials before it went is not known here.
pub fn is_possible(plan: &Plan, trial: &Trial) -> bool {
    trial.test != Test::LoseBroker || plan.candidates[trial.candidate].can_lose_node().is_ok()
}

/// Seconds that `trials` will take; `overheads` are those of trials that have run. Those that
/// cannot be made take none.
pub fn seconds_left(plan: &Plan, trials: &[Trial], overheads: &[f64]) -> f64 {
    let overhead = match overheads.len() {
        0 => OVERHEAD_SECONDS,
        count => overheads.iter().sum::<f64>() / count as f64,
    };
    trials.iter().filter(|trial| is_possible(plan, trial)).map(|trial| trial.seconds() + overhead).sum()
}

/// The load generator's words for a trial, in PerfTest's names. Rates are a publisher's own share.
pub fn words(trial: &Trial, workload: &Workload, uris: &[String]) -> Vec<String> {
    let publishers = workload.publishers;
    let mut words: Vec<String> = Vec::new();
    let mut add = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    add("uris", uris.join(","));
    add("time", number(trial.seconds()));
    add("flag", "persistent".to_owned());
    add("qos", workload.prefetch.to_string());
    add("confirm", workload.confirm.to_string());
    add("confirm-timeout", "-1".to_owned());
    // PerfTest's five seconds would be told as the cluster's latency when a node is lost.
    add("connection-recovery-interval", "0.2".to_owned());
    add("auto-delete", "false".to_owned());
    add("size", workload.message_bytes.to_string());
    // Queues of its own for every trial: what an overloaded one left behind must not be consumed by
    // the next.
    add("queue-pattern", format!("sizing-{}-{}-%d", trial.test, number(trial.target)));
    add("queue-pattern-from", "1".to_owned());
    add("queue-pattern-to", workload.queues.to_string());
    add("queue-args", workload.queue_args.clone());
    add("producers", publishers.to_string());
    add("consumers", trial.consumers.to_string());
    let share = |rate: f64| number(rate / publishers as f64);
    match trial.rate.as_slice() {
        [(rate, _)] => add("rate", share(*rate)),
        steps => steps
            .iter()
            .for_each(|(rate, seconds)| add("variable-rate", format!("{}:{}", share(*rate), number(*seconds)))),
    }
    match trial.work_us.as_slice() {
        [(work, _)] if *work == 0.0 => {}
        [(work, _)] => add("consumer-latency", format!("{work:.0}")),
        steps => {
            steps.iter().for_each(|(work, seconds)| add("variable-latency", format!("{work:.0}:{}", number(*seconds))))
        }
    }
    words
}

/// Three decimals at most, none where none are needed.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

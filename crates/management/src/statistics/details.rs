//! Rates and samples as RabbitMQ tells them: `publish_details` beside `publish`.
//!
//! Invariant: without being asked for samples a rate alone is told; with samples they are of the
//! times that were asked for, the newest first, each a multiple of the step between them.

use super::Store;
use super::store::History;
use crate::answer::Refused;
use crate::call::Call;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::borrow::Borrow;

/// Most samples of one history: as many as a page has room for.
const SAMPLES_MAX: u64 = 1_000;

/// Which samples are asked for, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    age_ms: u64,
    step_ms: u64,
}

/// Which samples a request asks for, of each kind of thing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ranges {
    /// Of how many messages there are.
    pub(crate) lengths: Option<Range>,
    /// Of messages that come and go.
    pub(crate) messages: Option<Range>,
    /// Of bytes.
    pub(crate) data: Option<Range>,
    /// Of what a node has.
    pub(crate) node: Option<Range>,
}

impl Ranges {
    /// What the query of `call` says. Errors: what is no number, or too much.
    pub(crate) fn of(call: &Call<'_>) -> Result<Ranges, Refused> {
        Ok(Ranges {
            lengths: Range::of(call, "lengths")?,
            messages: Range::of(call, "msg_rates")?,
            data: Range::of(call, "data_rates")?,
            node: Range::of(call, "node_stats")?,
        })
    }
}

impl Range {
    fn of(call: &Call<'_>, name: &str) -> Result<Option<Range>, Refused> {
        let said = |what: &str| {
            let name = format!("{name}_{what}");
            let Some(text) = call.query(&name) else { return Ok(None) };
            let number = text.parse::<u64>().ok().filter(|seconds| *seconds > 0 && *seconds <= 366 * 86_400);
            number
                .map(Some)
                .ok_or_else(|| Refused::BadRequest(format!("{name} should be a positive whole number of seconds")))
        };
        let (Some(age), Some(step)) = (said("age")?, said("incr")?) else { return Ok(None) };
        if age / step > SAMPLES_MAX {
            return Err(Refused::BadRequest(format!(
                "at most {SAMPLES_MAX} samples: {name}_incr is too small for {name}_age"
            )));
        }
        Ok(Some(Range { age_ms: age * 1000, step_ms: step * 1000 }))
    }

    /// The times of its samples, the newest first.
    fn times(self, now_ms: u64) -> impl Iterator<Item = u64> {
        let newest = now_ms / self.step_ms * self.step_ms;
        (0..=self.age_ms / self.step_ms).map(move |back| newest.saturating_sub(back * self.step_ms))
    }
}

/// Whether something grows only, or comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

/// The value at a time: of a counter between the two samples around it.
fn at(points: &[(u64, u64)], time: u64, kind: Kind) -> f64 {
    let next = points.partition_point(|(known, _)| *known <= time);
    let Some(before) = next.checked_sub(1).map(|at| points[at]) else {
        return points.first().map_or(0.0, |(_, value)| *value as f64);
    };
    match (kind, points.get(next)) {
        (Kind::Counter, Some(after)) => {
            let part = (time - before.0) as f64 / (after.0 - before.0) as f64;
            before.1 as f64 + (after.1 as f64 - before.1 as f64) * part
        }
        _ => before.1 as f64,
    }
}

/// Two places behind the point are enough for a rate.
fn rounded(rate: f64) -> f64 {
    (rate * 100.0).round() / 100.0
}

/// How a figure changes: what stands beside it. The fields are in the order of their names, as in every
/// other object.
#[derive(Debug, Serialize)]
pub(crate) struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    avg: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    avg_rate: Option<f64>,
    rate: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<Vec<Sample>>,
}

#[derive(Debug, Serialize)]
struct Sample {
    sample: i64,
    timestamp: u64,
}

/// Something of which `columns` of all of `of` together are the count.
pub(crate) struct Figure<'a, H> {
    pub(crate) of: &'a [H],
    pub(crate) columns: &'a [usize],
    pub(crate) kind: Kind,
}

impl<H: Borrow<History>> Figure<'_, H> {
    /// What it is now.
    pub(crate) fn value(&self) -> u64 {
        self.sum(|history, column| history.now()[column])
    }

    fn sum<T: std::iter::Sum>(&self, one: impl Fn(&History, usize) -> T) -> T {
        self.of.iter().flat_map(|history| self.columns.iter().map(|column| one(history.borrow(), *column))).sum()
    }

    /// How it changed a second, lately.
    pub(crate) fn rate(&self, store: &Store) -> f64 {
        match store.since_newest_ms() {
            // The samples are old, as nobody looked: what was counted since is better.
            Some(age_ms) if age_ms > store.fresh_ms() => {
                let change =
                    self.sum(|history, column| history.now()[column] as f64 - history.sampled()[column] as f64);
                change * 1000.0 / age_ms as f64
            }
            _ => {
                let change = self.sum(|history, column| history.changes()[column]);
                store.timeline().step_ms().map_or(0.0, |ms| change as f64 * 1000.0 / ms.max(1) as f64)
            }
        }
    }

    /// The whole of it: the rate, and the samples that are asked for where there are any.
    pub(crate) fn details(&self, store: &Store, range: Option<Range>) -> Details {
        let has_no_samples = !self.of.is_empty() && !self.of.iter().any(|history| history.borrow().keeps_samples());
        let Some(range) = range.filter(|_| !has_no_samples) else {
            return Details { avg: None, avg_rate: None, rate: rounded(self.rate(store)), samples: None };
        };
        let times: Vec<u64> = range.times(store.now_ms()).collect();
        let mut values = vec![0.0; times.len()];
        for history in self.of {
            for column in self.columns {
                let points = history.borrow().points(*column, store.timeline());
                for (value, time) in values.iter_mut().zip(&times) {
                    *value += at(&points, *time, self.kind);
                }
            }
        }
        let sample = |(time, value): (&u64, &f64)| Sample { sample: value.round() as i64, timestamp: *time };
        let samples = times.iter().zip(&values).map(sample).collect();
        let (newest, oldest) = (values[0], values[values.len() - 1]);
        let rate = values.get(1).map_or(0.0, |second| (newest - second) * 1000.0 / range.step_ms as f64);
        let span_ms = times[0] - times[times.len() - 1];
        Details {
            avg: Some(rounded(values.iter().sum::<f64>() / values.len() as f64)),
            avg_rate: Some(rounded((newest - oldest) * 1000.0 / span_ms.max(1) as f64)),
            rate: rounded(rate),
            samples: Some(samples),
        }
    }

    /// Puts it under its name, and its details beside it.
    pub(crate) fn put(&self, into: &mut Map<String, Value>, name: &str, store: &Store, range: Option<Range>) {
        into.insert(name.to_owned(), self.value().into());
        into.insert(format!("{name}_details"), json!(self.details(store, range)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_told_between_its_samples_and_a_length_as_it_was_last_seen() {
        let points = [(1_000, 10), (2_000, 20), (4_000, 0)];
        let counter = |time| at(&points, time, Kind::Counter);
        assert_eq!(
            [counter(0), counter(1_000), counter(1_500), counter(2_000), counter(9_000)],
            [10.0, 10.0, 15.0, 20.0, 0.0]
        );
        let length = |time| at(&points, time, Kind::Gauge);
        assert_eq!([length(0), length(1_999), length(3_999), length(4_000)], [10.0, 10.0, 20.0, 0.0]);
        assert_eq!(at(&[], 5, Kind::Gauge), 0.0);
    }

    #[test]
    fn samples_are_at_multiples_of_their_step_and_the_newest_is_first() {
        let range = Range { age_ms: 60_000, step_ms: 5_000 };
        let times: Vec<u64> = range.times(1_000_007).collect();
        assert_eq!((times.len(), times[0], times[12]), (13, 1_000_000, 940_000));
    }
}

//! The pictures of a report: rates, latencies and what the broker used over time, percentile
//! curves, latency by size.
//!
//! Invariant: on a page of one run a colour is what was measured, where runs are compared it is
//! whose it is; the percentile is told by the stroke on both.

use page::chart::{Chart, Mark, Scale, Series, Stroke};
use page::figures;
use page::hue::{self, Hue};

use crate::latency::Figures;
use crate::record::{Interval, Recorded};

/// More runs than this share a chart with one curve each.
const CROWD: usize = 4;

/// Intervals of one curve; more are thinned out, or a night's run would be a file of megabytes.
const POINTS_MAX: usize = 600;

/// Steps that are marked; a load that changes all the time has its own curve.
const STEPS_MAX: usize = 40;

/// Intervals of at least this length end at moments that are told to a tenth, so that those of
/// several runs stand above each other.
const ROUND_S: f64 = 0.5;

/// The colours of runs that stand side by side.
pub(super) fn hues(runs: &[Recorded]) -> Vec<Hue> {
    hue::of_brokers(&runs.iter().map(|recorded| recorded.run.label.as_str()).collect::<Vec<_>>())
}

/// All that have something to show. `group` is what moves together.
pub(super) fn charts(runs: &[Recorded], group: &str) -> Vec<Chart> {
    let all = Drawn { runs, group, hues: hues(runs), is_many: runs.len() > 1, is_crowd: runs.len() > CROWD };
    let mut charts = vec![all.rates()];
    charts.push(all.latency("End to end", Hue::RECEIVED, |i| i.end_to_end.as_ref()));
    charts.push(all.latency("Publish to confirm", Hue::CONFIRMED, |i| i.confirm.as_ref()));
    charts.extend([all.percentiles(), all.by_size(), all.by_rate(), all.backlog(), all.held_back()]);
    charts.extend(all.broker());
    charts.retain(|chart| !chart.is_empty());
    charts
}

struct Drawn<'a> {
    runs: &'a [Recorded],
    group: &'a str,
    hues: Vec<Hue>,
    is_many: bool,
    is_crowd: bool,
}

impl Drawn<'_> {
    fn each(&self) -> impl Iterator<Item = (&Recorded, Hue)> {
        self.runs.iter().zip(self.hues.iter().copied())
    }

    fn over_time(&self, title: &str, unit: &str, scale: Scale) -> Chart {
        Chart::new(title, ("seconds", Scale::Time), (unit, scale)).group(self.group).marks(&marks(self.runs))
    }

    /// What a curve is called: the run where there are several, and what was measured where that is
    /// not in the title.
    fn named(&self, run: &Recorded, what: &str) -> String {
        if self.is_many { format!("{} {what}", run.run.label).trim().to_owned() } else { what.to_owned() }
    }

    /// The colour of a run, or of what was measured where there is one run.
    fn hue(&self, run: Hue, what: Hue) -> Hue {
        if self.is_many { run } else { what }
    }

    fn rates(&self) -> Chart {
        let mut chart = self.over_time("Throughput", "messages a second", Scale::Linear);
        let target = |run: &Recorded| points(run, |i| i.target_per_s);
        let targets: Vec<_> = self.runs.iter().map(target).collect();
        // Runs of different lengths have the same target as long as both last.
        let longest = targets.iter().max_by_key(|target| target.len()).cloned().unwrap_or_default();
        let is_same = targets.iter().all(|target| !target.is_empty() && longest.starts_with(target));
        for ((run, hue), target) in self.each().zip(targets.iter()) {
            let (consumes, confirms) = (run.run.received_per_s.is_some(), run.run.confirmed_per_s.is_some());
            match (self.is_many, consumes) {
                (true, true) => {
                    chart.push(Series::new(self.named(run, "received"), hue, points(run, |i| Some(i.received_per_s))));
                }
                (true, false) => {
                    chart.push(Series::new(self.named(run, "sent"), hue, points(run, |i| Some(i.published_per_s))));
                }
                (false, _) => {
                    if run.run.published_per_s > 0.0 {
                        chart.push(Series::new("sent", Hue::SENT, points(run, |i| Some(i.published_per_s))));
                    }
                    if confirms {
                        chart.push(Series::new("confirmed", Hue::CONFIRMED, points(run, |i| Some(i.confirmed_per_s))));
                    }
                    if consumes {
                        chart.push(Series::new("received", Hue::RECEIVED, points(run, |i| Some(i.received_per_s))));
                    }
                }
            }
            if !is_same {
                chart.push(Series::new(self.named(run, "asked for"), hue, target.clone()).stroke(Stroke::Dashed));
            }
        }
        if is_same {
            chart.push(Series::new("asked for", Hue::ASKED, longest).stroke(Stroke::Dashed));
        }
        chart
    }

    fn latency(&self, what: &str, own: Hue, of: impl Fn(&Interval) -> Option<&Figures>) -> Chart {
        let mut chart = self.over_time(&format!("{what} over time"), "ms", Scale::Log);
        for (run, hue) in self.each() {
            let hue = self.hue(hue, own);
            let mut push = |name: &str, value: fn(&Figures) -> f64, stroke| {
                let points = points(run, |i| of(i).map(value));
                chart.push(Series::new(self.named(run, name), hue, points).stroke(stroke));
            };
            // Of many runs one curve each, or nobody finds one of them.
            if !self.is_crowd {
                push("p50", |f| f.p50_ms, Stroke::Dashed);
            }
            push("p99", |f| f.p99_ms, Stroke::Solid);
            if !self.is_many {
                push("p99.9", |f| f.p999_ms, Stroke::Dotted);
            }
        }
        chart
    }

    fn percentiles(&self) -> Chart {
        let title = "Percentiles over the whole run";
        let mut chart = Chart::new(title, ("percentile", Scale::Percentile), ("ms", Scale::Log)).group(self.group);
        for (run, hue) in self.each() {
            let latencies = [
                ("end to end", &run.run.end_to_end, Hue::RECEIVED, Stroke::Solid),
                ("confirm", &run.run.confirm, Hue::CONFIRMED, Stroke::Dashed),
                ("handed to the socket", &run.run.handed, Hue::SENT, Stroke::Dotted),
            ];
            let measured = latencies.into_iter().filter_map(|(name, latency, own, stroke)| {
                Some((name, latency.as_ref()?, self.hue(hue, own), if self.is_many { stroke } else { Stroke::Solid }))
            });
            for (name, latency, hue, stroke) in measured.take(if self.is_crowd { 1 } else { usize::MAX }) {
                let points = latency.curve.iter().map(|(percentile, ms)| (*percentile, Some(*ms)));
                chart.push(Series::new(self.named(run, name), hue, points).stroke(stroke));
            }
        }
        chart
    }

    /// Of the messages that were sent in each step, `steps`, over what it was.
    fn by_step(&self, title: &str, unit: &str, steps: impl Fn(&Recorded) -> Vec<(f64, &Figures)>) -> Chart {
        let mut chart = Chart::new(title, (unit, Scale::Log), ("ms", Scale::Log)).group(self.group);
        for (run, hue) in self.each() {
            let (steps, hue) = (steps(run), self.hue(hue, Hue::RECEIVED));
            let mut push = |name: &str, value: fn(&Figures) -> f64, stroke| {
                let points = steps.iter().map(|(at, figures)| (*at, Some(value(figures))));
                chart.push(Series::new(self.named(run, name), hue, points).stroke(stroke));
            };
            if steps.len() > 1 {
                push("p50", |f| f.p50_ms, Stroke::Dashed);
                push("p99", |f| f.p99_ms, Stroke::Solid);
            }
        }
        chart
    }

    fn by_size(&self) -> Chart {
        self.by_step("End to end by size of the body", "bytes", |run| {
            run.run.by_size.iter().map(|(size, figures)| (*size as f64, figures)).collect()
        })
    }

    fn by_rate(&self) -> Chart {
        self.by_step("End to end by rate", "messages a second asked for", |run| {
            run.run.by_rate.iter().map(|(rate, figures)| (*rate, figures)).collect()
        })
    }

    fn backlog(&self) -> Chart {
        let mut chart = self.over_time("Backlog: sent and not received", "messages", Scale::Linear);
        for (run, hue) in self.each() {
            let of = |value: fn(&Interval) -> Option<u64>| points(run, |i| value(i).map(|count| count as f64));
            chart.push(Series::new(self.named(run, "backlog"), self.hue(hue, Hue::SENT), of(|i| i.backlog)));
            // A broker that is fast enough has none.
            if run.intervals.iter().any(|i| i.unsent.is_some_and(|unsent| unsent > 0)) && run.run.backlog_grew {
                let unsent =
                    Series::new(self.named(run, "due and not sent"), self.hue(hue, Hue::ASKED), of(|i| i.unsent));
                chart.push(unsent.stroke(Stroke::Dashed));
            }
        }
        chart
    }

    fn held_back(&self) -> Chart {
        let mut chart = self.over_time("Held back by the broker", "seconds in an interval", Scale::Linear);
        for (run, hue) in self.each().filter(|(run, _)| run.run.held_back.is_some()) {
            let points = points(run, |i| Some(i.held_back_s));
            chart.push(Series::new(self.named(run, "held back"), self.hue(hue, Hue::SENT), points));
        }
        chart
    }

    fn broker(&self) -> Vec<Chart> {
        type Value = fn(&Interval) -> Option<f64>;
        let of: [(&str, &str, Value); 5] = [
            ("Broker's CPU", "cores", |i| i.broker.map(|load| load.cpu_cores)),
            ("Broker's memory (RSS)", "MB", |i| i.broker.map(|load| load.rss_bytes as f64 / 1e6)),
            ("Broker's writes to disk", "MB/s", |i| i.broker.and_then(|load| Some(load.write_bytes_s? / 1e6))),
            ("Broker's reads from disk", "MB/s", |i| i.broker.and_then(|load| Some(load.read_bytes_s? / 1e6))),
            ("Network between load and broker, both ways", "MB/s", |i| {
                Some((i.to_broker_bytes_s + i.from_broker_bytes_s) / 1e6)
            }),
        ];
        let drawn = of.map(|(title, unit, value)| {
            let mut chart = self.over_time(title, unit, Scale::Linear);
            for (run, hue) in self.each() {
                chart.push(Series::new(run.run.label.clone(), hue, points(run, value)));
            }
            if title == "Broker's CPU" && !self.is_many && !chart.is_empty() {
                let load = points(&self.runs[0], |i| Some(i.generator_cores));
                chart.push(Series::new("the load's own", Hue::ASKED, load).stroke(Stroke::Dashed));
            }
            chart
        });
        drawn.into()
    }
}

fn points(run: &Recorded, value: impl Fn(&Interval) -> Option<f64>) -> Vec<(f64, Option<f64>)> {
    let step = run.intervals.len().div_ceil(POINTS_MAX).max(1);
    let chosen = run.intervals.iter().filter(|i| i.phase != "drain").step_by(step);
    let mut before = 0.0;
    chosen
        .map(|i| {
            let is_long = i.at_s - before >= ROUND_S;
            before = i.at_s;
            (if is_long { (i.at_s * 10.0).round() / 10.0 } else { i.at_s }, value(i))
        })
        .collect()
}

/// What happened on the way: the steps that all runs have in common, and the trouble of each.
fn marks(runs: &[Recorded]) -> Vec<Mark> {
    let words = |marks: &[Mark]| marks.iter().map(|mark| mark.text.clone()).collect::<Vec<_>>();
    let all: Vec<Vec<Mark>> = runs.iter().map(steps).collect();
    let is_common = all.iter().all(|marks| words(marks) == words(&all[0]));
    let mut marks = match all.into_iter().next() {
        Some(first) if is_common => first,
        _ => Vec::new(),
    };
    for recorded in runs {
        let whose = if runs.len() > 1 { format!("{}: ", recorded.run.label) } else { String::new() };
        marks.extend(trouble(recorded).into_iter().map(|mark| Mark { text: format!("{whose}{}", mark.text), ..mark }));
    }
    marks.sort_by(|a, b| a.at.total_cmp(&b.at));
    marks
}

/// Sizes, rates and phases, each where it began.
fn steps(recorded: &Recorded) -> Vec<Mark> {
    let load: Vec<&Interval> = recorded.intervals.iter().filter(|i| i.phase != "drain").collect();
    let mut marks = Vec::new();
    for (at, next) in load.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| load[at]);
        let changed = |is_so: &dyn Fn(&Interval) -> bool| match before {
            Some(before) => is_so(before),
            // The first of several steps is one too; a load that never changes has none.
            None => load.iter().any(|later| is_so(later)),
        };
        let mut text = Vec::new();
        if changed(&|other| other.phase != next.phase) {
            text.push(next.phase.clone());
        }
        if changed(&|other| other.body_bytes != next.body_bytes) {
            text.push(figures::bytes(next.body_bytes as f64));
        }
        if changed(&|other| other.target_per_s != next.target_per_s) {
            text.push(next.target_per_s.map_or("no target".to_owned(), |rate| format!("{}/s", figures::three(rate))));
        }
        if !text.is_empty() {
            let at = before.map_or(0.0, |before| before.at_s);
            marks.push(Mark { at, until: None, text: text.join(", "), bad: false });
        }
    }
    if marks.len() > STEPS_MAX { Vec::new() } else { marks }
}

/// What was done to the broker, connections that went (with their node, or without) and the times in
/// which the broker held publishers back.
fn trouble(recorded: &Recorded) -> Vec<Mark> {
    let done = |(at, text): &(f64, String)| Mark { at: *at, until: None, text: text.clone(), bad: true };
    let mut marks: Vec<Mark> = recorded.run.faults.iter().map(done).collect();
    let mut before = 0.0;
    for interval in &recorded.intervals {
        if interval.connections_lost > 0 {
            let lost = interval.connections_lost;
            let many = if lost == 1 { "connection" } else { "connections" };
            marks.push(Mark { at: interval.at_s, until: None, text: format!("{lost} {many} lost"), bad: true });
        }
        if interval.held_back_s > 0.0 {
            match marks.iter_mut().rev().find(|mark| mark.until == Some(before)) {
                Some(band) => band.until = Some(interval.at_s),
                None => {
                    let text = format!("held back: {}", interval.held_back_why.join(", "));
                    marks.push(Mark { at: before, until: Some(interval.at_s), text, bad: true });
                }
            }
        }
        before = interval.at_s;
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::recorded;

    fn texts(runs: &[Recorded]) -> Vec<(f64, Option<f64>, String)> {
        marks(runs).into_iter().map(|mark| (mark.at, mark.until, mark.text)).collect()
    }

    #[test]
    fn of_many_runs_each_has_one_curve_a_chart() {
        let runs: Vec<Recorded> = (0..=CROWD).map(|at| recorded(&format!("run {at}"), 4.0)).collect();
        let of = |runs: &[Recorded]| {
            let all = charts(runs, "");
            let chart = all.iter().find(|chart| chart.title() == "End to end over time").expect("it is there");
            chart.names().count()
        };
        assert_eq!((of(&runs), of(&runs[..CROWD]), of(&runs[..1])), (CROWD + 1, 2 * CROWD, 3));
    }

    #[test]
    fn a_step_is_marked_where_it_began_and_a_load_without_steps_has_no_marks() {
        let mut run = recorded("Leveret", 4.0);
        assert_eq!(texts(std::slice::from_ref(&run)), []);
        run.intervals[2].body_bytes = 5000;
        run.intervals[3].body_bytes = 5000;
        run.intervals[3].target_per_s = Some(20_000.0);
        let expected = [(0.0, None, "0 B, 1,000/s"), (2.0, None, "5 kB"), (3.0, None, "20,000/s")];
        assert_eq!(texts(std::slice::from_ref(&run)), expected.map(|(at, until, text)| (at, until, text.to_owned())));
        let both = [run.clone(), run.clone()];
        assert_eq!(texts(&both).len(), 3, "steps that both have stand there once");
        assert_eq!(texts(&[run, recorded("other", 4.0)]), [], "and those of one of them would be read as both's");
    }

    #[test]
    fn a_node_that_went_and_a_broker_that_holds_back_are_marked_as_trouble() {
        let mut run = recorded("Leveret", 4.0);
        for at in [1, 2] {
            run.intervals[at].held_back_s = 1.0;
            run.intervals[at].held_back_why = vec!["low on disk".to_owned()];
        }
        run.intervals[3].connections_lost = 2;
        let one = marks(std::slice::from_ref(&run));
        assert!(one.iter().all(|mark| mark.bad));
        let expected =
            [(1.0, Some(3.0), "held back: low on disk".to_owned()), (4.0, None, "2 connections lost".to_owned())];
        assert_eq!(texts(std::slice::from_ref(&run)), expected);
        run.run.faults.push((0.5, "a broker killed".to_owned()));
        assert_eq!(texts(std::slice::from_ref(&run))[0], (0.5, None, "a broker killed".to_owned()));
        run.run.faults.clear();
        let beside = texts(&[recorded("RabbitMQ", 4.0), run]);
        assert_eq!(beside[0].2, "Leveret: held back: low on disk");
    }
}

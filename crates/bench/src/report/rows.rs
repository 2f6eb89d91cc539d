//! The table that compares runs: one row a figure, one column a run.
//!
//! Invariant: every format of a report has the same rows.

use page::figures::{count, three};
use page::table::{self, Better, Row, best, to_first};

use super::answer::{latency, of_passed, rate};
use crate::latency::{Figures, TOLD};
use crate::record::{Correctness, Recorded, Run};

/// Rows under construction, with what their figures are to the first run (a column of its own beside a second,
/// words beside more), and the best of each. Runs of different workloads stand side by side and are
/// not compared.
struct Rows<'a> {
    runs: &'a [Recorded],
    are_comparable: bool,
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn group(&mut self, name: &str) {
        self.rows.push(Row::group(name));
    }

    fn words(&mut self, name: &str, value: impl Fn(&Run) -> Option<String>) {
        let values = self.runs.iter().map(|recorded| value(&recorded.run).unwrap_or_else(dash));
        self.rows.push(Row::plain(name, values.chain(self.has_ratios().then(String::new))));
    }

    /// Whether there is a column of ratios.
    fn has_ratios(&self) -> bool {
        self.are_comparable && self.runs.len() == 2
    }

    fn measured(&mut self, name: &str, better: Option<Better>, value: impl Fn(&Run) -> Option<f64>) {
        let numbers: Vec<Option<f64>> = self.runs.iter().map(|recorded| value(&recorded.run)).collect();
        let compared = better.filter(|_| self.are_comparable);
        // Who loses messages, or falls behind, is not the best at anything.
        let winner = compared.and_then(|better| best(&of_passed(self.runs, &value), better));
        let ratio = |at| to_first(&numbers, at).filter(|_| compared.is_some());
        let cell = |(at, number): (usize, &Option<f64>)| {
            let told = number.map_or_else(dash, three);
            let told = match ratio(at) {
                Some(ratio) if !self.has_ratios() => format!("{told} ({ratio})"),
                _ => told,
            };
            (told, winner == Some(at))
        };
        let mut cells: Vec<(String, bool)> = numbers.iter().enumerate().map(cell).collect();
        cells.extend(self.has_ratios().then(|| (ratio(1).unwrap_or_default(), false)));
        self.rows.push(Row::of(name, cells));
    }

    /// A row of the books, which a run without an end has not.
    fn counts(&mut self, name: &str, value: impl Fn(&Correctness) -> Option<u64>) {
        self.words(name, |run| value(run.books()?).map(count));
    }
}

fn dash() -> String {
    "–".to_owned()
}

/// The heads and the rows of a table of these runs.
pub(super) fn compared_rows(runs: &[Recorded], are_comparable: bool) -> (Vec<String>, Vec<Row>) {
    let (higher, lower) = (Some(Better::Higher), Some(Better::Lower));
    let mut rows = Rows { runs, are_comparable, rows: Vec::new() };
    let mut heads = vec![String::new()];
    heads.extend(runs.iter().map(|recorded| recorded.run.label.clone()));
    heads.extend(rows.has_ratios().then(|| format!("{} to {}", runs[1].run.label, runs[0].run.label)));
    rows.words("verdict", |run| Some(run.verdict().word().to_lowercase()));
    rows.words("broker", |run| Some(run.broker.clone()).filter(|name| !name.is_empty()));
    rows.measured("seconds", None, |run| Some(run.seconds).filter(|seconds| *seconds > 0.0));
    rows.measured("target, msg/s", None, |run| run.target_per_s);
    rows.measured("sent, msg/s", higher, |run| Some(run.published_per_s).filter(|rate| *rate > 0.0));
    rows.measured("confirmed, msg/s", higher, |run| run.confirmed_per_s);
    rows.measured("received, msg/s", higher, |run| run.received_per_s);
    if runs.iter().any(|recorded| recorded.run.held_back.is_some()) {
        rows.measured("held back by the broker, s", lower, |run| {
            Some(run.held_back.as_ref().map_or(0.0, |held| held.seconds))
        });
    }
    type Of = fn(&Run) -> Option<&Figures>;
    let latencies: [(&str, Of); 2] = [
        ("end to end, ms", |run| run.end_to_end.as_ref().map(|l| &l.figures)),
        ("publish to confirm, ms", |run| run.confirm.as_ref().map(|l| &l.figures)),
    ];
    for (group, of) in latencies {
        if runs.iter().all(|recorded| of(&recorded.run).is_none()) {
            continue;
        }
        rows.group(group);
        for (at, name) in TOLD.into_iter().enumerate() {
            rows.measured(name, lower, |run| of(run).map(|figures| figures.told()[at]));
        }
        rows.measured("max", lower, |run| of(run).map(|figures| figures.max_ms));
    }
    if runs.iter().any(|recorded| recorded.run.why_p99.is_some()) {
        rows.words("why p99", |run| run.why_p99.clone());
    }
    rows.group("every message checked");
    rows.counts("sent", |c| Some(c.published));
    type Count = fn(&Correctness) -> u64;
    let not_taken: [(&str, Count); 2] =
        [("refused (basic.nack)", |c| c.nacked), ("came back (basic.return)", |c| c.returned)];
    for (name, of) in not_taken {
        if runs.iter().any(|recorded| of(&recorded.run.correctness) > 0) {
            rows.counts(name, |c| Some(of(c)));
        }
    }
    rows.counts("received", |c| Some(c.received));
    rows.counts("lost", |c| c.lost);
    if runs.iter().any(|recorded| recorded.run.correctness.unpromised_missing.is_some()) {
        rows.counts("missing, which nobody confirmed", |c| c.unpromised_missing);
    }
    rows.counts("duplicated, unflagged", |c| Some(c.duplicated_unflagged));
    rows.counts("duplicated, flagged", |c| Some(c.duplicated_flagged));
    rows.counts("reordered", |c| Some(c.reordered));
    rows.counts("corrupt", |c| Some(c.corrupt));
    rows.group("cost");
    // Runs of one side and of both may stand side by side: then each says what its message is, and
    // they are not compared.
    let per = |run: &Run| run.cost.broker_per.clone();
    let first = runs.first().map(|recorded| per(&recorded.run)).unwrap_or_default();
    let us = |run: &Run| run.cost.broker_us_per_message;
    match runs.iter().all(|recorded| per(&recorded.run) == first) {
        true => rows.measured(format!("broker's CPU, us a message {first}").trim_end(), lower, us),
        false => rows.words("broker's CPU, us a message", |run| {
            Some(format!("{} {}", three(us(run)?), per(run)).trim_end().to_owned())
        }),
    }
    rows.measured("broker's CPU, cores", lower, |run| run.cost.broker_cores);
    rows.measured("broker's memory at most, MB", lower, |run| {
        run.cost.broker_rss_bytes_max.map(|bytes| bytes as f64 / 1e6)
    });
    rows.measured("written to disk, B a message sent (or received, where nothing is sent)", lower, |run| {
        run.cost.broker_write_bytes_per_message
    });
    rows.words("written to disk, by", |run| run.cost.written.as_ref().map(|written| written.counter.clone()));
    if runs.iter().any(|recorded| recorded.run.cost.written.as_ref().is_some_and(|written| written.own_bytes.is_some()))
    {
        rows.measured("given to the log by the broker's own count, B a message", None, |run| {
            let own = run.cost.written.as_ref()?.own_bytes?;
            (run.cost.written_messages > 0.0).then(|| own as f64 / run.cost.written_messages)
        });
    }
    rows.measured("load's CPU, publishing, us a message sent", None, |run| run.cost.publishing_us_per_message);
    rows.measured("load's CPU, consuming, us a message received", None, |run| run.cost.consuming_us_per_message);
    (heads, rows.rows)
}

/// Whether these runs differ in who was measured and not in what.
pub(super) fn are_comparable(runs: &[Recorded]) -> bool {
    runs.len() > 1 && runs.iter().all(|recorded| recorded.run.scenario == runs[0].run.scenario)
}

/// Runs by scenario, in the order in which scenarios first appear, each named by what is compared
/// (the broker, usually). `None` where there is one scenario, or none was run twice: then there is
/// nothing to put side by side.
pub(super) fn compared(runs: &[Recorded]) -> Option<Vec<(String, Vec<Recorded>)>> {
    let mut groups: Vec<(String, Vec<Recorded>)> = Vec::new();
    for recorded in runs {
        let scenario = &recorded.run.scenario;
        let mut own = recorded.clone();
        let (name, _) = recorded.run.name_and_step();
        if !name.is_empty() {
            own.run.label = name.to_owned();
        }
        match groups.iter_mut().find(|(name, _)| name == scenario) {
            Some((_, runs)) => runs.push(own),
            None => groups.push((scenario.clone(), vec![own])),
        }
    }
    (groups.len() > 1 && groups.iter().any(|(_, runs)| runs.len() > 1)).then_some(groups)
}

/// The figures that everybody looks at first: the names of the columns, and a row for each run. The rate is
/// of what the latency is of: where a backlog stands, who takes it tells nothing of how much is
/// published.
pub(super) fn overview(runs: &[Recorded]) -> (Vec<String>, Vec<Row>) {
    // What the latency is of stands in the heading, or in each row where it is not the same in all
    // of them.
    let of_confirms = |run: &Run| run.end_to_end.is_none() && run.confirm.is_some();
    let all_confirms = runs.iter().all(|recorded| of_confirms(&recorded.run));
    let is_mixed = !all_confirms && runs.iter().any(|recorded| of_confirms(&recorded.run));
    let what = match (is_mixed, all_confirms) {
        (true, _) => "",
        (false, true) => "confirm ",
        (false, false) => "end to end ",
    };
    let heads = format!("|msg/s|{what}p50 ms|{what}p99 ms|{what}p99.9 ms|broker us/msg in and out|broker MB");
    let row = |Recorded { run, .. }: &Recorded| {
        let figures = latency(run).map(|(latency, _)| &latency.figures);
        let percentile = |value: fn(&Figures) -> f64| figures.map_or_else(dash, |figures| three(value(figures)));
        let name = match (is_mixed, of_confirms(run)) {
            (false, _) => run.label.clone(),
            (true, true) => format!("{} (latency of confirms)", run.label),
            (true, false) => format!("{} (latency end to end)", run.label),
        };
        let cpu = run.cost.broker_us_per_message.map_or_else(dash, |us| match run.cost.broker_per.as_str() {
            one @ ("sent" | "received") => format!("{} ({one})", three(us)),
            _ => three(us),
        });
        let memory = run.cost.broker_rss_bytes_max.map_or_else(dash, |bytes| three(bytes as f64 / 1e6));
        let percentiles = [percentile(|f| f.p50_ms), percentile(|f| f.p99_ms), percentile(|f| f.p999_ms)];
        Row::plain(name, [three(rate(run))].into_iter().chain(percentiles).chain([cpu, memory]))
    };
    (heads.split('|').map(str::to_owned).collect(), runs.iter().map(row).collect())
}

/// The overview in Markdown.
pub(super) fn overview_markdown(runs: &[Recorded]) -> String {
    let (heads, rows) = overview(runs);
    table::markdown(&heads, &rows) + "\n"
}

/// The tables in Markdown: an overview of more than two runs, and the rows of what is compared.
pub(super) fn markdown(runs: &[Recorded]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let table = |runs: &[Recorded]| {
        let (heads, rows) = compared_rows(runs, are_comparable(runs));
        table::markdown(&heads, &rows)
    };
    let mut text = if runs.len() > 2 { overview_markdown(runs) } else { String::new() };
    match compared(runs) {
        None => text.push_str(&table(runs)),
        Some(groups) => {
            groups.iter().for_each(|(scenario, runs)| text.push_str(&format!("## {scenario}\n\n{}\n", table(runs))));
        }
    }
    text
}

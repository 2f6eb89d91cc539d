//! The table that compares runs: one row a figure, one column a run.
//!
//! Invariant: every format of a report has the same rows.

use page::figures::{count, three};
use page::table::{self, Better, best, to_first};

use super::answer::{latency, rate};
use crate::latency::{Figures, TOLD};
use crate::record::{Recorded, Run, Verdict};

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is, with its unit.
    pub name: String,
    /// One for each run; none in a row that heads a group.
    pub values: Vec<String>,
    /// The same as numbers, where they can be compared.
    pub numbers: Vec<Option<f64>>,
    /// Which way is better, where one is.
    pub better: Option<Better>,
}

impl Row {
    /// Whether it heads a group of rows.
    pub fn is_group(&self) -> bool {
        self.values.is_empty()
    }

    /// The values without those of runs that did not pass: who loses messages, or falls behind, is
    /// not the best at anything.
    fn best(&self, runs: &[Recorded]) -> Option<usize> {
        let passed = |at: usize| runs[at].run.verdict() == Verdict::Passed;
        let values: Vec<Option<f64>> =
            self.numbers.iter().enumerate().map(|(at, value)| value.filter(|_| passed(at))).collect();
        best(&values, self.better?)
    }
}

/// Rows under construction.
struct Rows<'a> {
    runs: &'a [Recorded],
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn group(&mut self, name: &str) {
        self.rows.push(Row { name: name.to_owned(), values: Vec::new(), numbers: Vec::new(), better: None });
    }

    fn words(&mut self, name: &str, value: impl Fn(&Run) -> Option<String>) {
        let values = self.runs.iter().map(|recorded| value(&recorded.run).unwrap_or_else(dash)).collect();
        let numbers = vec![None; self.runs.len()];
        self.rows.push(Row { name: name.to_owned(), values, numbers, better: None });
    }

    /// A row of numbers, written as `text` has it.
    fn numbers(
        &mut self,
        name: &str,
        better: Option<Better>,
        text: impl Fn(f64) -> String,
        value: impl Fn(&Run) -> Option<f64>,
    ) {
        let numbers: Vec<Option<f64>> = self.runs.iter().map(|recorded| value(&recorded.run)).collect();
        let values = numbers.iter().map(|number| number.map_or_else(dash, &text)).collect();
        self.rows.push(Row { name: name.to_owned(), values, numbers, better });
    }

    fn measured(&mut self, name: &str, better: Option<Better>, value: impl Fn(&Run) -> Option<f64>) {
        self.numbers(name, better, three, value);
    }

    fn counts(&mut self, name: &str, value: impl Fn(&Run) -> Option<u64>) {
        self.words(name, |run| value(run).map(count));
    }
}

fn dash() -> String {
    "–".to_owned()
}

/// The rows of these runs.
pub fn rows(runs: &[Recorded]) -> Vec<Row> {
    let (higher, lower) = (Some(Better::Higher), Some(Better::Lower));
    let mut rows = Rows { runs, rows: Vec::new() };
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
    rows.group("every message checked");
    rows.counts("sent", |run| Some(run.correctness.published));
    rows.counts("received", |run| Some(run.correctness.received));
    rows.counts("lost", |run| run.correctness.lost);
    if runs.iter().any(|recorded| recorded.run.correctness.unpromised_missing.is_some()) {
        rows.counts("missing, which nobody confirmed", |run| run.correctness.unpromised_missing);
    }
    rows.counts("duplicated, unflagged", |run| Some(run.correctness.duplicated_unflagged));
    rows.counts("duplicated, flagged", |run| Some(run.correctness.duplicated_flagged));
    rows.counts("reordered", |run| Some(run.correctness.reordered));
    rows.counts("corrupt", |run| Some(run.correctness.corrupt));
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
    rows.rows
}

/// The rows with what they are to the first run (a column of its own beside a second, words beside
/// more), and the best of each. Runs of different workloads stand side by side and are not
/// compared.
pub(super) fn compared_rows(runs: &[Recorded], are_comparable: bool) -> (Vec<String>, Vec<table::Row>) {
    let mut heads = vec![String::new()];
    heads.extend(runs.iter().map(|recorded| recorded.run.label.clone()));
    let has_column = are_comparable && runs.len() == 2;
    if has_column {
        heads.push(format!("{} to {}", runs[1].run.label, runs[0].run.label));
    }
    let filled = |row: Row| {
        let best = row.best(runs).filter(|_| are_comparable);
        let ratio = |at| to_first(&row.numbers, at).filter(|_| are_comparable && row.better.is_some());
        let cell = |at: usize, value: &String| match ratio(at) {
            Some(ratio) if !has_column => (format!("{value} ({ratio})"), best == Some(at)),
            _ => (value.clone(), best == Some(at)),
        };
        let mut cells: Vec<(String, bool)> = row.values.iter().enumerate().map(|(at, value)| cell(at, value)).collect();
        if has_column && !row.is_group() {
            cells.push((ratio(1).unwrap_or_default(), false));
        }
        table::Row::of(row.name, cells)
    };
    (heads, rows(runs).into_iter().map(filled).collect())
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
        let step = scenario.split_once(": ").map_or(scenario.as_str(), |(_, step)| step);
        if let Some(name) = own.run.label.strip_suffix(step).map(str::trim).filter(|name| !name.is_empty()) {
            own.run.label = name.to_owned();
        }
        match groups.iter_mut().find(|(name, _)| name == scenario) {
            Some((_, runs)) => runs.push(own),
            None => groups.push((scenario.clone(), vec![own])),
        }
    }
    (groups.len() > 1 && groups.iter().any(|(_, runs)| runs.len() > 1)).then_some(groups)
}

/// The figures that everybody looks at first: a row for names, then one for each run. The rate is
/// of what the latency is of: where a backlog stands, who takes it tells nothing of how much is
/// published.
pub(super) fn overview(runs: &[Recorded]) -> Vec<Vec<String>> {
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
    let percentile = |name: &str| format!("{what}{name} ms");
    let own = |name: &str| name.to_owned();
    let latencies = ["p50", "p99", "p99.9"].map(percentile);
    let mut names = vec![own(""), own("msg/s")];
    names.extend(latencies);
    names.extend(["broker us/msg in and out", "broker MB"].map(own));
    let mut table = vec![names];
    for Recorded { run, .. } in runs {
        let figures = latency(run).map(|(latency, _)| &latency.figures);
        let percentile = |value: fn(&Figures) -> f64| figures.map_or_else(dash, |figures| three(value(figures)));
        table.push(vec![
            match (is_mixed, of_confirms(run)) {
                (false, _) => run.label.clone(),
                (true, true) => format!("{} (latency of confirms)", run.label),
                (true, false) => format!("{} (latency end to end)", run.label),
            },
            three(rate(run)),
            percentile(|f| f.p50_ms),
            percentile(|f| f.p99_ms),
            percentile(|f| f.p999_ms),
            run.cost.broker_us_per_message.map_or_else(dash, |us| match run.cost.broker_per.as_str() {
                one @ ("sent" | "received") => format!("{} ({one})", three(us)),
                _ => three(us),
            }),
            run.cost.broker_rss_bytes_max.map_or_else(dash, |bytes| three(bytes as f64 / 1e6)),
        ]);
    }
    table
}

/// The overview in Markdown.
pub(super) fn overview_markdown(runs: &[Recorded]) -> String {
    let mut text = String::new();
    for (at, row) in overview(runs).iter().enumerate() {
        text.push_str(&format!("| {} |\n", row.join(" | ").replace('\n', " ")));
        if at == 0 {
            text.push_str(&format!("|---|{}\n", "--:|".repeat(row.len() - 1)));
        }
    }
    text + "\n"
}

/// The tables in Markdown: an overview of more than two runs, and the rows of what is compared.
pub(super) fn markdown(runs: &[Recorded]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let mut text = if runs.len() > 2 { overview_markdown(runs) } else { String::new() };
    match compared(runs) {
        None => text.push_str(&table(runs)),
        Some(groups) => {
            groups.iter().for_each(|(scenario, runs)| text.push_str(&format!("## {scenario}\n\n{}\n", table(runs))));
        }
    }
    text
}

fn table(runs: &[Recorded]) -> String {
    let (heads, rows) = compared_rows(runs, are_comparable(runs));
    let line = |cells: Vec<String>| {
        format!("|{}\n", cells.iter().map(|cell| format!(" {} |", cell.replace('|', "/"))).collect::<String>())
    };
    let columns = heads.len() - 1;
    let mut text = line(heads);
    text.push_str(&format!("|---|{}\n", "--:|".repeat(columns)));
    for row in rows {
        let cell = |(cell, is_best): &(String, bool)| if *is_best { format!("**{cell}**") } else { cell.clone() };
        match row.cells.is_empty() {
            true => text.push_str(&format!("| **{}** |{}\n", row.name, " |".repeat(columns))),
            false => text.push_str(&line(std::iter::once(row.name).chain(row.cells.iter().map(cell)).collect())),
        }
    }
    text
}

//! The table that compares runs: one row a figure, one column a run.
//!
//! Invariant: every format of a report has the same rows.

use crate::latency::Figures;
use crate::record::{Recorded, Run};
use crate::screen::{ms, rate_text};

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is, with its unit.
    pub name: String,
    /// One for each run; none in a row that heads a group.
    pub values: Vec<String>,
}

impl Row {
    /// Whether it heads a group of rows.
    pub fn is_group(&self) -> bool {
        self.values.is_empty()
    }
}

/// The rows of these runs.
pub fn rows(runs: &[Recorded]) -> Vec<Row> {
    let mut rows = Vec::new();
    let all = |value: &dyn Fn(&Run) -> Option<String>| -> Vec<String> {
        runs.iter().map(|recorded| value(&recorded.run).unwrap_or_else(|| "–".to_owned())).collect()
    };
    let mut row = |name: &str, value: &dyn Fn(&Run) -> Option<String>| {
        rows.push(Row { name: name.to_owned(), values: all(value) });
    };
    row("broker", &|run| Some(run.broker.clone()).filter(|name| !name.is_empty()));
    row("target, msg/s", &|run| run.target_per_s.map(rate_text));
    row("sent, msg/s", &|run| Some(rate_text(run.published_per_s)));
    row("confirmed, msg/s", &|run| run.confirmed_per_s.map(rate_text));
    row("received, msg/s", &|run| run.received_per_s.map(rate_text));
    if runs.iter().any(|recorded| recorded.run.held_back.is_some()) {
        row("held back by the broker, s", &|run| {
            Some(run.held_back.as_ref().map_or("0".to_owned(), |held| format!("{:.1}", held.seconds)))
        });
    }
    for (group, of) in [
        (
            "end to end, ms",
            (|run: &Run| run.end_to_end.as_ref().map(|l| l.figures.clone())) as fn(&Run) -> Option<Figures>,
        ),
        ("publish to confirm, ms", |run| run.confirm.as_ref().map(|l| l.figures.clone())),
    ] {
        if runs.iter().all(|recorded| of(&recorded.run).is_none()) {
            continue;
        }
        rows.push(Row { name: group.to_owned(), values: Vec::new() });
        let mut row = |name: &str, value: &dyn Fn(&Run) -> Option<String>| {
            rows.push(Row { name: name.to_owned(), values: all(value) });
        };
        for (at, name) in ["p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99"].into_iter().enumerate() {
            row(name, &|run| of(run).map(|figures| ms(figures.told()[at])));
        }
        row("max", &|run| of(run).map(|figures| ms(figures.max_ms)));
    }
    rows.push(Row { name: "every message checked".to_owned(), values: Vec::new() });
    let mut row = |name: &str, value: &dyn Fn(&Run) -> Option<String>| {
        rows.push(Row { name: name.to_owned(), values: all(value) });
    };
    let count = |count: u64| Some(count.to_string());
    row("sent", &|run| count(run.correctness.published));
    row("received", &|run| count(run.correctness.received));
    row("lost", &|run| run.correctness.lost.map(|lost| lost.to_string()));
    row("duplicated, unflagged", &|run| count(run.correctness.duplicated_unflagged));
    row("duplicated, flagged", &|run| count(run.correctness.duplicated_flagged));
    row("reordered", &|run| count(run.correctness.reordered));
    row("corrupt", &|run| count(run.correctness.corrupt));
    rows.push(Row { name: "cost".to_owned(), values: Vec::new() });
    let mut row = |name: &str, value: &dyn Fn(&Run) -> Option<String>| {
        rows.push(Row { name: name.to_owned(), values: all(value) });
    };
    let two = |value: Option<f64>| value.map(|value| format!("{value:.2}"));
    // Runs of one side and of both may stand side by side: then each says what its message is.
    let per = |run: &Run| run.cost.broker_per.clone();
    let first = runs.first().map(|recorded| per(&recorded.run)).unwrap_or_default();
    match runs.iter().all(|recorded| per(&recorded.run) == first) {
        true => {
            row(format!("broker's CPU, us a message {first}").trim_end(), &|run| two(run.cost.broker_us_per_message))
        }
        false => row("broker's CPU, us a message", &|run| {
            Some(format!("{} {}", two(run.cost.broker_us_per_message)?, per(run)).trim_end().to_owned())
        }),
    }
    row("broker's CPU, cores", &|run| two(run.cost.broker_cores));
    row("broker's memory at most, MB", &|run| {
        run.cost.broker_rss_bytes_max.map(|bytes| format!("{:.0}", bytes as f64 / 1e6))
    });
    row("written to disk, B a message sent (or received, where nothing is sent)", &|run| {
        run.cost.broker_write_bytes_per_message.map(|bytes| format!("{bytes:.0}"))
    });
    row("written to disk, by", &|run| run.cost.written.as_ref().map(|written| written.counter.clone()));
    if runs.iter().any(|recorded| recorded.run.cost.written.as_ref().is_some_and(|written| written.own_bytes.is_some()))
    {
        row("given to the log by the broker's own count, B a message", &|run| {
            let own = run.cost.written.as_ref()?.own_bytes?;
            (run.cost.written_messages > 0.0).then(|| format!("{:.0}", own as f64 / run.cost.written_messages))
        });
    }
    row("load's CPU, publishing, us a message sent", &|run| two(run.cost.publishing_us_per_message));
    row("load's CPU, consuming, us a message received", &|run| two(run.cost.consuming_us_per_message));
    rows
}

/// Runs by scenario, in the order in which scenarios first appear, each named by what is compared (the broker, usually). `None` where
/// there is one scenario, or none was run twice: then there is nothing to put side by side.
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

/// The figures that everybody looks at first: a row for names, then one for each run. The rate is of what the latency is of: where a
/// backlog stands, who takes it tells nothing of how much is published.
pub(super) fn overview(runs: &[Recorded]) -> Vec<Vec<String>> {
    // What the latency is of stands in the heading, or in each row where it is not the same in all of them.
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
        let dash = || "–".to_owned();
        let (latency, rate) = match (&run.end_to_end, &run.confirm) {
            (None, Some(confirm)) => (Some(&confirm.figures), run.confirmed_per_s),
            (latency, _) => (latency.as_ref().map(|latency| &latency.figures), run.received_per_s),
        };
        let rate = rate.or(run.received_per_s).or(run.confirmed_per_s).unwrap_or(run.published_per_s);
        let percentile = |value: fn(&Figures) -> f64| latency.map_or_else(dash, |figures| ms(value(figures)));
        table.push(vec![
            match (is_mixed, of_confirms(run)) {
                (false, _) => run.label.clone(),
                (true, true) => format!("{} (latency of confirms)", run.label),
                (true, false) => format!("{} (latency end to end)", run.label),
            },
            rate_text(rate),
            percentile(|f| f.p50_ms),
            percentile(|f| f.p99_ms),
            percentile(|f| f.p999_ms),
            run.cost.broker_us_per_message.map_or_else(dash, |us| match run.cost.broker_per.as_str() {
                one @ ("sent" | "received") => format!("{us:.1} ({one})"),
                _ => format!("{us:.1}"),
            }),
            run.cost.broker_rss_bytes_max.map_or_else(dash, |bytes| format!("{:.0}", bytes as f64 / 1e6)),
        ]);
    }
    table
}

/// The tables in Markdown: an overview of more than two runs, and the rows of what is compared.
pub(super) fn markdown(runs: &[Recorded]) -> String {
    let mut text = String::new();
    if runs.len() > 2 {
        for (at, row) in overview(runs).iter().enumerate() {
            text.push_str(&format!("| {} |\n", row.join(" | ").replace('\n', " ")));
            if at == 0 {
                text.push_str(&format!("|---|{}\n", "--:|".repeat(row.len() - 1)));
            }
        }
        text.push('\n');
    }
    match compared(runs) {
        None => text.push_str(&table(runs)),
        Some(groups) => {
            groups.iter().for_each(|(scenario, runs)| text.push_str(&format!("## {scenario}\n\n{}\n", table(runs))));
        }
    }
    text
}

fn table(runs: &[Recorded]) -> String {
    let mut text = String::from("| |");
    runs.iter().for_each(|recorded| text.push_str(&format!(" {} |", recorded.run.label.replace('|', "/"))));
    text.push_str(&format!("\n|---|{}\n", "--:|".repeat(runs.len())));
    for row in rows(runs) {
        match row.is_group() {
            true => text.push_str(&format!("| **{}** |{}\n", row.name, " |".repeat(runs.len()))),
            false => text.push_str(&format!("| {} | {} |\n", row.name, row.values.join(" | "))),
        }
    }
    text
}

//! One HTML file from one run or several: a table that compares them and charts, all in the file, nothing from a network.
//!
//! Invariant: the report shows what was recorded and computes nothing new but ratios; a value that was not measured is a dash.

pub mod chart;
mod figure;
mod rows;

use crate::latency::Figures;
use crate::record::{Book, Interval, Recorded};
use chart::{Chart, Scale, Series};

pub use rows::rows;
use rows::{compared, overview};

/// More runs than this share a chart with one curve each.
const CROWD: usize = 4;

/// Intervals of one curve; more are thinned out, or a night's run would be a file of megabytes.
const POINTS_MAX: usize = 600;

/// The report as one file.
pub fn html(title: &str, book: &Book) -> String {
    let runs = &to_compare(&book.runs)[..];
    let mut body = format!("<h1>{}</h1>\n", escape(title));
    if !book.figures.is_empty() {
        book.figures.iter().for_each(|figure| body.push_str(&figure::html(figure)));
        body.push_str("<h2>All runs</h2>\n");
    }
    body.push_str(&verdicts(runs));
    if runs.len() > 2 {
        body.push_str(&overview_table(runs));
    }
    match compared(runs) {
        None => body.push_str(&section(runs)),
        Some(groups) => groups.iter().for_each(|(scenario, runs)| {
            body.push_str(&format!("<h2>{}</h2>\n{}", escape(scenario), section(runs)));
        }),
    }
    body.push_str(&appendix(runs));
    page(title, &body)
}

/// Figures and tables in Markdown.
pub fn markdown(book: &Book) -> String {
    let figures: String = book.figures.iter().map(figure::markdown).collect();
    figures + &rows::markdown(&to_compare(&book.runs))
}

/// The runs without those that only prepared another one; all of them where there is nothing else.
fn to_compare(runs: &[Recorded]) -> Vec<Recorded> {
    let compared: Vec<Recorded> = runs.iter().filter(|recorded| !recorded.run.is_preparation).cloned().collect();
    if compared.is_empty() { runs.to_vec() } else { compared }
}

/// The table and the charts of runs that are compared with each other.
fn section(runs: &[Recorded]) -> String {
    let figures: String = charts(runs).iter().map(|chart| format!("<figure>{}</figure>\n", chart.svg())).collect();
    table(runs) + &figures
}

fn overview_table(runs: &[Recorded]) -> String {
    let mut text = String::from("<div class=\"wide\"><table>\n");
    for (at, row) in overview(runs).iter().enumerate() {
        let cell = if at == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|value| format!("<{cell}>{}</{cell}>", escape(value))).collect();
        text.push_str(&format!("<tr>{cells}</tr>\n"));
    }
    text + "</table></div>\n"
}

/// A page with the style of all reports.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n",
        escape(title)
    )
}

const STYLE: &str = "
:root { --ink: #1b1f24; --faint: #6b7480; --line: #d8dde3; --paper: #fff; --good: #11724a; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --faint: #97a1ad; --line: #39414b; --paper: #14181d; --good: #4cc38a; --bad: #ff8a80 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto } .wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: var(--paper) }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid var(--line); vertical-align: bottom }
th:first-child, td:first-child { text-align: left; white-space: nowrap } td.group { font-weight: 600; padding-top: .9rem }
.good { color: var(--good) } .bad { color: var(--bad) } .faint { color: var(--faint) }
figure { margin: 1.5rem 0; overflow-x: auto } svg { width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg text { fill: var(--ink) } svg .faint { fill: var(--faint) } svg .grid { stroke: var(--line); stroke-width: 1 }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round } svg .dashed { stroke-dasharray: 5 4 }
@media (max-width: 44rem) { body { margin: 1rem auto } svg { min-width: 42rem } th, td { padding: .25rem .5rem } th:first-child, td:first-child { white-space: normal; min-width: 8.5rem } }
code, pre { font: 13px/1.5 ui-monospace, monospace } pre { white-space: pre-wrap; word-break: break-all }
";

fn verdicts(runs: &[Recorded]) -> String {
    let mut text = String::from("<ul>\n");
    for Recorded { run, .. } in runs {
        let word = run.verdict().word().to_lowercase();
        let verdict = match run.missed.is_empty() {
            true => format!("<span class=\"good\">{word}</span>"),
            false => format!("<span class=\"bad\">{word}</span>: {}", escape(&run.missed.join("; "))),
        };
        let not_asked = match run.not_asked.is_empty() {
            true => String::new(),
            false => format!(" <span class=\"faint\">(not asked for: {})</span>", escape(&run.not_asked.join(", "))),
        };
        let held_back = run.held_back.as_ref().map_or(String::new(), |held| format!("; {}", escape(&held.text())));
        text.push_str(&format!("<li><b>{}</b> {verdict}{held_back}{not_asked}</li>\n", escape(&run.label)));
    }
    text + "</ul>\n"
}

fn table(runs: &[Recorded]) -> String {
    let mut text = String::from("<div class=\"wide\"><table>\n<tr><th></th>");
    for Recorded { run, .. } in runs {
        text.push_str(&format!("<th>{}</th>", escape(&run.label)));
    }
    text.push_str("</tr>\n");
    for row in rows(runs) {
        let across = format!(" class=\"group\" colspan=\"{}\"", runs.len() + 1);
        let across = if row.is_group() { across.as_str() } else { "" };
        text.push_str(&format!("<tr><td{across}>{}</td>", escape(&row.name)));
        row.values.iter().for_each(|value| text.push_str(&format!("<td>{}</td>", escape(value))));
        text.push_str("</tr>\n");
    }
    text + "</table></div>\n"
}

fn charts(runs: &[Recorded]) -> Vec<Chart> {
    let mut charts = Vec::new();
    let many = runs.len() > 1;
    let named = |run: &Recorded, what: &str| match many {
        true => format!("{} {what}", run.run.label).trim().to_owned(),
        false => what.to_owned(),
    };
    let over_time = |title: &str, unit: &str| Chart::new(title, "seconds", unit);

    let mut throughput = over_time("Throughput against target", "messages a second");
    for (at, run) in runs.iter().enumerate() {
        let consumes = run.run.received_per_s.is_some();
        let (what, value): (&str, fn(&Interval) -> f64) =
            if consumes { ("received", |i| i.received_per_s) } else { ("sent", |i| i.published_per_s) };
        throughput.push(Series::new(named(run, what), points(run, |i| Some(value(i)))).color(at));
        let target = points(run, |i| i.target_per_s);
        if !target.is_empty() {
            throughput.push(Series::new(named(run, "target"), target).color(at).dashed());
        }
    }
    charts.push(throughput);

    let mut held_back = over_time("Held back by the broker", "seconds in an interval");
    for (at, run) in runs.iter().enumerate().filter(|(_, run)| run.run.held_back.is_some()) {
        held_back.push(Series::new(named(run, "held back"), points(run, |i| Some(i.held_back_s))).color(at));
    }
    charts.push(held_back);

    // Of many runs one curve each, or nobody finds one of them.
    let is_crowd = runs.len() > CROWD;
    let shown = match (is_crowd, many) {
        (true, _) => "p99",
        (false, true) => "p50 (dashed) and p99",
        (false, false) => "p50 (dashed), p99 and p99.9",
    };
    for (what, of) in [
        ("End to end", (|i: &Interval| i.end_to_end.clone()) as fn(&Interval) -> Option<Figures>),
        ("Publish to confirm", |i| i.confirm.clone()),
    ] {
        let mut chart = over_time(&format!("{what} over time, {shown}"), "ms").y(Scale::Log);
        for (at, run) in runs.iter().enumerate() {
            let step = if many { at } else { 0 };
            let of_percentile = |value: fn(&Figures) -> f64| points(run, move |i| of(i).map(|f| value(&f)));
            if !is_crowd {
                chart.push(Series::new(named(run, "p50"), of_percentile(|f| f.p50_ms)).color(step).dashed());
            }
            chart.push(Series::new(named(run, "p99"), of_percentile(|f| f.p99_ms)).color(if many { at } else { 1 }));
            if !many {
                chart.push(Series::new("p99.9".to_owned(), of_percentile(|f| f.p999_ms)).color(2));
            }
        }
        charts.push(chart);
    }

    let mut curves =
        Chart::new("Percentiles over the whole run", "percentile", "ms").x(Scale::Percentile).y(Scale::Log);
    for (at, run) in runs.iter().enumerate() {
        let latencies = [
            ("end to end", &run.run.end_to_end),
            ("confirm", &run.run.confirm),
            ("handed to the socket", &run.run.handed),
        ];
        let measured =
            latencies.into_iter().enumerate().filter_map(|(at, (name, latency))| Some((at, name, latency.as_ref()?)));
        for (place, name, latency) in measured.take(if is_crowd { 1 } else { usize::MAX }) {
            let series = Series::new(named(run, name), latency.curve.clone()).color(if many { at } else { place });
            curves.push(if many && place > 0 && !is_crowd { series.dashed() } else { series });
        }
    }
    charts.push(curves);

    let mut sizes =
        Chart::new("End to end by size of the body, p50 (dashed) and p99", "bytes", "ms").x(Scale::Log).y(Scale::Log);
    for (at, run) in runs.iter().enumerate().filter(|(_, run)| run.run.by_size.len() > 1) {
        let of =
            |value: fn(&Figures) -> f64| run.run.by_size.iter().map(|(size, f)| (*size as f64, value(f))).collect();
        sizes.push(Series::new(named(run, "p50"), of(|f| f.p50_ms)).color(at).dashed());
        sizes.push(Series::new(named(run, "p99"), of(|f| f.p99_ms)).color(at));
    }
    charts.push(sizes);

    type Value = fn(&Interval) -> Option<f64>;
    let broker: [(&str, &str, Value); 5] = [
        ("Broker's CPU", "cores", |i| i.broker.map(|load| load.cpu_cores)),
        ("Broker's memory (RSS)", "MB", |i| i.broker.map(|load| load.rss_bytes as f64 / 1e6)),
        ("Broker's writes to disk", "MB/s", |i| i.broker.and_then(|load| Some(load.write_bytes_s? / 1e6))),
        ("Broker's reads from disk", "MB/s", |i| i.broker.and_then(|load| Some(load.read_bytes_s? / 1e6))),
        ("Network between load and broker, both ways", "MB/s", |i| {
            Some((i.to_broker_bytes_s + i.from_broker_bytes_s) / 1e6)
        }),
    ];
    for (title, unit, value) in broker {
        let mut chart = over_time(title, unit);
        for (at, run) in runs.iter().enumerate() {
            chart.push(Series::new(run.run.label.clone(), points(run, value)).color(at));
        }
        charts.push(chart);
    }
    charts.retain(|chart| !chart.is_empty());
    charts
}

fn points(run: &Recorded, value: impl Fn(&Interval) -> Option<f64>) -> Vec<(f64, f64)> {
    let step = run.intervals.len().div_ceil(POINTS_MAX).max(1);
    let chosen = run.intervals.iter().filter(|i| i.phase != "drain").step_by(step);
    chosen.filter_map(|i| Some((i.at_s, value(i)?))).collect()
}

fn appendix(runs: &[Recorded]) -> String {
    let mut text = String::from("<h2>How it was measured</h2>\n");
    let mut made_by: Vec<&str> = runs.iter().map(|recorded| recorded.run.made_by.as_str()).collect();
    made_by.dedup();
    made_by.retain(|command| !command.is_empty());
    if !made_by.is_empty() {
        let lines = escape(&made_by.join("\n"));
        text.push_str(&format!("<p>All of it again, with <code>leveret</code> in the path:</p>\n<pre>{lines}</pre>\n"));
    }
    for Recorded { run, .. } in runs {
        let m = &run.machine;
        text.push_str(&format!(
            "<h3>{}</h3>\n<p>{}; {}; {} cores ({}), {:.1} GB, kernel {}, load average before {:.2}; bench {}; \
             started {}.</p>\n<pre>{}</pre>\n",
            escape(&run.label),
            escape(&run.broker),
            if run.open_loop {
                "open loop: latency counts from the time at which a message was due"
            } else {
                "latency counts from the moment of sending"
            },
            m.cores,
            escape(&m.cpu),
            m.memory_bytes as f64 / 1e9,
            escape(&m.kernel),
            m.load_before,
            escape(&run.version),
            date(run.started_s),
            escape(&run.command)
        ));
        if !run.notes.is_empty() {
            text.push_str("<ul>\n");
            run.notes.iter().for_each(|note| text.push_str(&format!("<li>{}</li>\n", escape(note))));
            text.push_str("</ul>\n");
        }
    }
    text
}

/// Seconds since 1970 as a person reads them, in UTC.
fn date(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the odd day of a leap year is their last; an era is the 400 years after which they repeat.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3600, of_day % 3600 / 60)
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Figure, Latency, Run};

    fn book(runs: &[Recorded]) -> Book {
        Book { runs: runs.to_vec(), figures: Vec::new() }
    }

    fn recorded(label: &str, p99: f64) -> Recorded {
        let figures = Figures { count: 9, p50_ms: p99 / 3.0, p99_ms: p99, p999_ms: p99 * 2.0, ..Figures::default() };
        let interval = |at: u32| Interval {
            at_s: f64::from(at),
            phase: "load".to_owned(),
            received_per_s: 1000.0,
            target_per_s: Some(1000.0),
            end_to_end: Some(figures.clone()),
            ..Interval::default()
        };
        let run = Run {
            label: label.to_owned(),
            received_per_s: Some(1000.0),
            end_to_end: Some(Latency { figures: figures.clone(), curve: vec![(0.0, 1.0), (99.0, p99)] }),
            by_size: vec![(10, figures.clone()), (1000, figures.clone())],
            ..Run::default()
        };
        Recorded { run, intervals: (1..5).map(interval).collect() }
    }

    #[test]
    fn a_report_is_one_file_that_asks_no_network_and_shows_both_runs() {
        let report = html("A <b> comparison", &book(&[recorded("Leveret", 4.0), recorded("Rabbit & Co", 400.0)]));
        assert!(report.contains("A &lt;b&gt; comparison") && report.contains("Rabbit &amp; Co"));
        for outside in ["http://", "https://", "<script", "src=", "@import", "url("] {
            assert!(!report.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
        assert_eq!(report.matches("<svg").count(), report.matches("</svg>").count());
        assert!(report.matches("<svg").count() >= 5, "{}", report.matches("<svg").count());
        assert!(!report.contains("NaN") && !report.contains("inf"));
    }

    #[test]
    fn of_many_runs_each_has_one_curve_a_chart() {
        let runs: Vec<Recorded> = (0..=CROWD).map(|at| recorded(&format!("run {at}"), 4.0)).collect();
        let of = |runs: &[Recorded]| {
            let all = charts(runs);
            let chart =
                all.iter().map(Chart::svg).find(|svg| svg.contains("End to end over time")).expect("it is there");
            chart.matches("<polyline").count()
        };
        assert_eq!((of(&runs), of(&runs[..CROWD])), (CROWD + 1, 2 * CROWD));
    }

    #[test]
    fn figures_come_first_and_what_prepared_a_run_is_not_compared_with_it() {
        let mut runs = [recorded("filling", 4.0), recorded("cell", 4.0), recorded("other", 4.0)];
        runs[0].run.is_preparation = true;
        runs.iter_mut().for_each(|recorded| recorded.run.made_by = "leveret bench scenario 'x'".to_owned());
        let figures = vec![Figure { title: "Figure 1".to_owned(), ..Figure::default() }];
        let book = Book { runs: runs.to_vec(), figures };
        let (page, text) = (html("x", &book), markdown(&book));
        for told in [&page, &text] {
            assert!(told.contains("cell") && !told.contains("filling"), "{told}");
            assert!(told.find("Figure 1") < told.find("cell"), "{told}");
        }
        assert_eq!(page.matches("<pre>leveret bench scenario 'x'</pre>").count(), 1, "{page}");
        assert!(html("x", &Book { runs: runs[..1].to_vec(), figures: Vec::new() }).contains("filling"));
    }

    #[test]
    fn where_a_backlog_stands_the_rate_is_that_of_the_confirms() {
        let mut runs = [recorded("standing", 4.0), recorded("b", 4.0), recorded("c", 4.0)];
        let run = &mut runs[0].run;
        run.confirm = run.end_to_end.take();
        (run.confirmed_per_s, run.received_per_s) = (Some(14_949.0), Some(18_100.0));
        let text = markdown(&book(&runs));
        assert!(text.contains("| standing (latency of confirms) | 14949 |"), "{text}");
        assert!(text.contains("| b (latency end to end) |"), "{text}");
        assert!(
            markdown(&book(&[runs[1].clone(), runs[2].clone(), runs[2].clone()])).contains("| end to end p99 ms |")
        );
    }

    #[test]
    fn a_run_that_fell_behind_is_not_called_passed() {
        let mut run = recorded("Leveret", 4.0);
        run.run.not_asked = vec!["p99 (--require-p99-ms)".to_owned()];
        let page = html("x", &book(&[run.clone()]));
        assert!(page.contains("passed</span>") && page.contains("not asked for: p99 (--require-p99-ms)"), "{page}");
        run.run.missed = vec!["backlog grew: 508 of 4000".to_owned()];
        run.run.backlog_grew = true;
        let page = html("x", &book(&[run]));
        assert!(page.contains("backlog grew</span>: backlog grew: 508") && !page.contains("passed"), "{page}");
    }

    #[test]
    fn a_start_is_a_date() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(date(1_795_283_940), "2026-11-21 17:59 UTC");
    }

    #[test]
    fn runs_of_one_scenario_are_compared_with_each_other_and_with_no_other() {
        let of = |broker: &str, scenario: &str| {
            let mut recorded = recorded(&format!("{broker} {scenario}"), 4.0);
            recorded.run.scenario = format!("s: {scenario}");
            recorded
        };
        let runs = [of("Leveret", "fast"), of("Leveret", "slow"), of("RabbitMQ", "fast"), of("RabbitMQ", "slow")];
        let report = html("x", &book(&runs));
        for heading in ["<h2>s: fast</h2>", "<h2>s: slow</h2>"] {
            assert_eq!(report.matches(heading).count(), 1, "{heading}");
        }
        let section = report.split("<h2>s: slow</h2>").nth(1).and_then(|rest| rest.split("<h2>").next());
        let section = section.expect("a section of its own");
        assert!(section.contains("<th>Leveret</th><th>RabbitMQ</th>"), "{section}");
        let text = markdown(&book(&runs));
        assert!(text.contains("## s: fast\n\n| | Leveret | RabbitMQ |\n"), "{text}");
        // Runs that nothing can be compared with stay in one table.
        let alone = html("x", &book(&runs[..2]));
        assert!(!alone.contains("<h2>s:") && alone.contains("<th>Leveret fast</th><th>Leveret slow</th>"));
    }

    #[test]
    fn nothing_measured_is_a_dash_and_no_chart() {
        let report = html("x", &book(&[Recorded::default()]));
        assert!(report.contains("–") && !report.contains("NaN"));
    }
}

//! Figures that several runs make together: percentile curves as a chart and a table, and what they
//! do not show.
//!
//! Invariant: a figure is drawn from what was written down of it, so that a report made later is
//! the report that was made then.

use page::chart::{Chart, Scale, Series};
use page::escape;
use page::figures::three;
use page::hue::Hue;

use crate::record::Figure;

/// Where the curves begin, percent: the articles' begin at the median.
const PERCENTILE_FIRST: f64 = 49.0;

const COLUMNS: [&str; 10] = ["waits for", "msg/s", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max, ms"];

/// The figure with its heading.
pub(super) fn html(figure: &Figure) -> String {
    let mut html = format!("<h2>{}</h2>\n", escape(&figure.title));
    let axes = (("percentile", Scale::Percentile), ("ms from publish to the stage", Scale::Log));
    let mut chart = Chart::new("How long one waits", axes.0, axes.1).group("figures");
    for (at, curve) in figure.curves.iter().enumerate() {
        let from_median = curve.latency.curve.iter().filter(|(percentile, _)| *percentile >= PERCENTILE_FIRST);
        let points = from_median.map(|(percentile, ms)| (*percentile, Some(*ms)));
        chart.push(Series::new(curve.name.clone(), Hue::nth(at), points));
    }
    if !chart.is_empty() {
        html.push_str(&chart.html());
    }
    if !figure.curves.is_empty() {
        let row = |mut cells: Vec<String>| {
            let name = cells.remove(0);
            page::table::Row::of(name, cells.into_iter().map(|cell| (cell, false)).collect())
        };
        let rows: Vec<page::table::Row> = table(figure).into_iter().map(row).collect();
        html.push_str(&page::table::html(&COLUMNS.map(str::to_owned), &rows));
    }
    if let Some((text, holds)) = &figure.shown {
        let (class, verdict) = verdict(*holds);
        html.push_str(&format!("<p>{}. <b class=\"{class}\">{verdict}</b></p>\n", escape(text)));
    }
    if !figure.notes.is_empty() {
        let notes: String = figure.notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
        html.push_str(&format!("<ul>\n{notes}</ul>\n"));
    }
    html
}

/// The same in Markdown, without its chart.
pub(super) fn markdown(figure: &Figure) -> String {
    let mut text = format!("## {}\n\n", figure.title);
    if !figure.curves.is_empty() {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text.push_str(&line(&COLUMNS.map(str::to_owned)));
        text.push_str(&format!("|---|{}\n", "--:|".repeat(COLUMNS.len() - 1)));
        table(figure).iter().for_each(|cells| text.push_str(&line(cells)));
        text.push('\n');
    }
    if let Some((told, holds)) = &figure.shown {
        text.push_str(&format!("{told}. **{}**\n\n", verdict(*holds).1));
    }
    figure.notes.iter().for_each(|note| text.push_str(&format!("- {note}\n")));
    if !figure.notes.is_empty() {
        text.push('\n');
    }
    text
}

fn table(figure: &Figure) -> Vec<Vec<String>> {
    let row = |curve: &crate::record::Curve| {
        let figures = &curve.latency.figures;
        let values = figures.told().into_iter().chain([figures.max_ms]).map(three);
        [curve.name.clone(), three(curve.held_per_s)].into_iter().chain(values).collect()
    };
    figure.curves.iter().map(row).collect()
}

fn verdict(holds: bool) -> (&'static str, &'static str) {
    if holds { ("good", "The cap held.") } else { ("bad", "The cap did not hold.") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Figures;
    use crate::record::{Curve, Latency};

    #[test]
    fn a_figure_is_a_chart_a_table_and_what_is_to_be_known_of_it() {
        let figures = Figures { count: 9, p50_ms: 0.5, max_ms: 77.5, ..Figures::default() };
        let latency = Latency { figures, curve: vec![(0.0, 0.1), (50.0, 0.5), (100.0, 77.5)] };
        let curve = Curve { name: "async <first>".to_owned(), held_per_s: 50_000.0, latency };
        let notes = vec!["Replicated: one node was named.".to_owned()];
        let figure = Figure { title: "Figure 2".to_owned(), curves: vec![curve], notes, shown: None };
        let page = html(&figure);
        for part in [
            "<h2>Figure 2</h2>",
            "class=\"chart\"",
            "<td>async &lt;first&gt;</td><td>50,000</td><td>0.500</td>",
            "named.</li>",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
        assert!(page.contains("\"x\":[50.0,100.0]"), "the curve begins at the median: {page}");
        let text = markdown(&figure);
        assert!(text.contains("| async <first> | 50,000 | 0.500 |") && text.contains("- Replicated"), "{text}");
    }

    #[test]
    fn what_was_to_be_shown_is_told_with_its_verdict_and_without_an_empty_table() {
        let figure = |holds| Figure { shown: Some(("The most was 7".to_owned(), holds)), ..Figure::default() };
        assert!(html(&figure(true)).contains("The most was 7. <b class=\"good\">The cap held.</b>"));
        assert!(markdown(&figure(false)).contains("The most was 7. **The cap did not hold.**"));
        assert!(!html(&figure(true)).contains("<table>") && !markdown(&figure(true)).contains('|'));
    }
}

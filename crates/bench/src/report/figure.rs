//! Figures that several runs make together: percentile curves as charts and tables, what they do not
//! show, and what they answer.
//!
//! Invariant: a figure is drawn from what was written down of it, so that a report made later is
//! the report that was made then. Figures of one title stand together, whosever they are.

use page::chart::{self, Chart, Scale, Series};
use page::escape;
use page::figures::{bytes, duration_ms, three};
use page::hue::{Hue, of_brokers};
use page::table::{Better, Row, best, folded};
use page::tile::{Line, Tile};

use super::answer;
use crate::record::{Curve, Figure, Recorded};

/// Where the curves begin, percent: the articles' begin at the median.
const PERCENTILE_FIRST: f64 = 49.0;

const COLUMNS: [&str; 10] = ["waits for", "msg/s", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max, ms"];

/// How a stage is called in which a message would survive a power cut, and where there are several
/// nodes that of any of them.
const SYNCED: &str = "synced";
const BY_MANY: &str = "majority";

/// The stage that all curves of a figure of stages have before them: there they share the rate.
const HANDED: &str = "handed to the socket";

/// All figures of a page.
pub(super) struct Figures<'a> {
    all: &'a [Figure],
    /// Whose they are.
    brokers: Vec<&'a str>,
    hues: Vec<Hue>,
    titles: Vec<&'a str>,
}

impl<'a> Figures<'a> {
    pub(super) fn of(all: &'a [Figure]) -> Figures<'a> {
        let (mut brokers, mut titles) = (Vec::new(), Vec::new());
        for figure in all {
            for (known, new) in [(&mut brokers, figure.who.as_str()), (&mut titles, figure.title.as_str())] {
                if !known.contains(&new) {
                    known.push(new);
                }
            }
        }
        Figures { all, hues: of_brokers(&brokers), brokers, titles }
    }

    /// Where each begins, and what it is.
    pub(super) fn parts(&self) -> Vec<(String, String)> {
        self.titles.iter().enumerate().map(|(at, title)| (format!("figure-{at}"), (*title).to_owned())).collect()
    }

    /// The curve of a broker that says most: of the messages that are synced, those at the highest
    /// rate.
    fn durable(&self, broker: &str) -> Option<&'a Curve> {
        let is_of_stages = |figure: &&Figure| figure.curves.iter().any(|curve| curve.name == HANDED);
        let own = self.all.iter().filter(|figure| figure.who == broker);
        let (stages, policies): (Vec<&Figure>, Vec<&Figure>) = own.partition(is_of_stages);
        let highest = |figures: Vec<&'a Figure>| {
            let curves = figures.into_iter().filter_map(durable);
            curves.max_by(|a, b| a.held_per_s.total_cmp(&b.held_per_s))
        };
        highest(policies).or_else(|| highest(stages))
    }

    /// What they answer, a sentence each.
    pub(super) fn sentences(&self) -> Vec<String> {
        let told = |broker: &&'a str| {
            let curve = self.durable(broker)?;
            let (wait, rate) = (duration_ms(curve.latency.figures.p99_ms), three(curve.held_per_s));
            Some(format!("{broker} {wait} at {rate} msg/s").trim_start().to_owned())
        };
        let told: Vec<String> = self.brokers.iter().filter_map(told).collect();
        let waits = (!told.is_empty()).then(|| format!("From publish until it is synced, p99: {}.", told.join("; ")));
        let shown = self.all.iter().filter_map(|figure| {
            let (_, holds) = figure.shown.as_ref()?;
            Some(format!("{}: {}", figure.heading(), verdict(*holds).1.to_lowercase()))
        });
        waits.into_iter().chain(shown).collect()
    }

    /// Four tiles with a line for each broker. `behind` are the runs that they were made of.
    pub(super) fn tiles(&self, behind: &[Recorded]) -> Vec<Tile> {
        let curves: Vec<Option<&Curve>> = self.brokers.iter().map(|broker| self.durable(broker)).collect();
        let whose = |at: usize| (self.brokers.len() > 1).then(|| (self.brokers[at].to_owned(), self.hues[at]));
        let tile = |name: &str, better, value: &dyn Fn(&Curve) -> (f64, String, String)| {
            let values: Vec<_> = curves.iter().map(|curve| curve.map(value)).collect();
            let winner =
                best(&values.iter().map(|of| of.as_ref().map(|(number, ..)| *number)).collect::<Vec<_>>(), better);
            let line = |(at, of): (usize, Option<(f64, String, String)>)| {
                let (value, more) =
                    of.map_or(("not measured".to_owned(), String::new()), |(_, told, more)| (told, more));
                Line { of: whose(at), is_best: winner == Some(at), ..Line::of(value, more) }
            };
            Tile::of(name, values.into_iter().enumerate().map(line).collect())
        };
        let rates = tile("messages a second, synced", Better::Higher, &|curve| {
            (curve.held_per_s, format!("{} msg/s", three(curve.held_per_s)), String::new())
        });
        let mut waits = tile("p99 until synced, at that rate", Better::Lower, &|curve| {
            let f = &curve.latency.figures;
            let more = format!("p50 {}, p99.9 {}", duration_ms(f.p50_ms), duration_ms(f.p999_ms));
            (f.p99_ms, duration_ms(f.p99_ms), more)
        });
        let drawn =
            self.hues.iter().zip(&curves).filter_map(|(hue, curve)| Some((*hue, (*curve)?.latency.curve.clone())));
        waits.curves = drawn.collect();
        let cost = |at: usize| {
            let own = behind.iter().map(|recorded| &recorded.run).filter(|run| run.label.starts_with(self.brokers[at]));
            let own: Vec<_> = own.collect();
            let cores = own.iter().filter_map(|run| run.cost.broker_cores).reduce(f64::max);
            let rss = own.iter().filter_map(|run| run.cost.broker_rss_bytes_max).max();
            let line = match (cores, rss) {
                (Some(cores), Some(rss)) => {
                    Line::of(format!("{} cores, {}", three(cores), bytes(rss as f64)), "the most of any run")
                }
                _ => Line::of("not measured", ""),
            };
            Line { of: whose(at), ..line }
        };
        let lines = (0..self.brokers.len()).map(cost).collect();
        let faults = Tile::of(answer::FAULTS, vec![answer::faults(behind)]);
        vec![rates, waits, faults, Tile::of("CPU and memory of a broker", lines)]
    }

    /// All of them, those of one title together.
    pub(super) fn html(&self) -> String {
        self.titles.iter().enumerate().map(|(at, title)| self.of_title(at, title)).collect()
    }

    fn of_title(&self, at: usize, title: &str) -> String {
        let all: Vec<&Figure> = self.all.iter().filter(|figure| figure.title == title).collect();
        let mut html = format!("<h2 id=\"figure-{at}\">{}</h2>\n", escape(title));
        let mut stages: Vec<&str> = Vec::new();
        for curve in all.iter().flat_map(|figure| &figure.curves) {
            if !stages.contains(&curve.name.as_str()) {
                stages.push(&curve.name);
            }
        }
        if all.len() > 1 && !stages.is_empty() {
            html.push_str(&beside(&all, &stages));
        }
        let mut charts = Vec::new();
        if all.len() > 1 {
            // In the colours of the brokers, and below in those of the stages.
            let mut chart = chart("Until it is synced");
            for figure in &all {
                let hue = self
                    .brokers
                    .iter()
                    .position(|broker| *broker == figure.who)
                    .map_or(Hue::nth(0), |at| self.hues[at]);
                if let Some(curve) = durable(figure) {
                    chart.push(Series::new(figure.who.clone(), hue, from_median(curve)));
                }
            }
            charts.push(chart);
        }
        for figure in &all {
            let title = format!("{} each stage or policy", figure.who);
            let mut chart = chart(if figure.who.is_empty() { "How long one waits" } else { &title });
            for curve in &figure.curves {
                let nth = stages.iter().position(|stage| *stage == curve.name).unwrap_or(0);
                chart.push(Series::new(curve.name.clone(), Hue::nth(nth), from_median(curve)));
            }
            charts.push(chart);
        }
        charts.retain(|chart| !chart.is_empty());
        html.push_str(&chart::grid(&charts));
        for figure in &all {
            if let Some((text, holds)) = &figure.shown {
                let (class, verdict) = verdict(*holds);
                html.push_str(&format!("<p>{}. <b class=\"{class}\">{verdict}</b></p>\n", escape(text)));
            }
        }
        html.push_str(&notes(&all));
        for figure in all.iter().filter(|figure| !figure.curves.is_empty()) {
            let title = format!("{} all percentiles, ms", figure.who);
            let inside = page::table::html(&COLUMNS.map(str::to_owned), &table(figure));
            html.push_str(&folded(title.trim_start(), &inside, all.len() == 1));
        }
        html
    }
}

impl Figure {
    /// Whose it is, and what.
    fn heading(&self) -> String {
        if self.who.is_empty() { self.title.clone() } else { format!("{}: {}", self.who, self.title) }
    }
}

/// Of the curves of a figure the one of messages that would survive most.
fn durable(figure: &Figure) -> Option<&Curve> {
    let synced = figure.curves.iter().filter(|curve| curve.name.contains(SYNCED));
    synced.max_by_key(|curve| curve.name.contains(BY_MANY))
}

fn chart(title: &str) -> Chart {
    let axes = (("percentile", Scale::Percentile), ("ms from publish", Scale::Log));
    Chart::new(title, axes.0, axes.1).group("figures")
}

fn from_median(curve: &Curve) -> impl Iterator<Item = (f64, Option<f64>)> {
    let points = curve.latency.curve.iter().filter(|(percentile, _)| *percentile >= PERCENTILE_FIRST);
    points.map(|(percentile, ms)| (*percentile, Some(*ms)))
}

/// p99 of each stage, whosever it is, with the rate at which it was measured.
fn beside(all: &[&Figure], stages: &[&str]) -> String {
    let heads: Vec<String> =
        std::iter::once("p99, ms (at msg/s)".to_owned()).chain(all.iter().map(|figure| figure.who.clone())).collect();
    let row = |stage: &&str| {
        let cell = |figure: &&Figure| {
            let curve = figure.curves.iter().find(|curve| curve.name == *stage);
            let told = |curve: &Curve| format!("{} ({})", three(curve.latency.figures.p99_ms), three(curve.held_per_s));
            curve.map_or("–".to_owned(), told)
        };
        Row::plain(*stage, all.iter().map(cell))
    };
    page::table::html(&heads, &stages.iter().map(row).collect::<Vec<_>>())
}

/// What is to be known; what is said of several is said once.
fn notes(all: &[&Figure]) -> String {
    let mut told: Vec<(&str, Vec<&str>)> = Vec::new();
    for (figure, note) in all.iter().flat_map(|figure| figure.notes.iter().map(move |note| (figure, note))) {
        match told.iter_mut().find(|(known, _)| known == note) {
            Some((_, whose)) => whose.push(&figure.who),
            None => told.push((note, vec![&figure.who])),
        }
    }
    let item = |(note, whose): &(&str, Vec<&str>)| match whose.len() < all.len() {
        true => format!("<li>{}: {}</li>\n", escape(&whose.join(", ")), escape(note)),
        false => format!("<li>{}</li>\n", escape(note)),
    };
    let items: String = told.iter().map(item).collect();
    if items.is_empty() { items } else { format!("<ul>\n{items}</ul>\n") }
}

/// The same in Markdown, without its chart.
pub(super) fn markdown(figure: &Figure) -> String {
    let mut text = format!("## {}\n\n", figure.heading());
    if !figure.curves.is_empty() {
        text.push_str(&page::table::markdown(&COLUMNS.map(str::to_owned), &table(figure)));
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

fn table(figure: &Figure) -> Vec<Row> {
    let row = |curve: &Curve| {
        let figures = &curve.latency.figures;
        let values = [curve.held_per_s].into_iter().chain(figures.told()).chain([figures.max_ms]).map(three);
        Row::plain(curve.name.clone(), values)
    };
    figure.curves.iter().map(row).collect()
}

fn verdict(holds: bool) -> (&'static str, &'static str) {
    if holds { ("good", "The cap held.") } else { ("bad", "The cap did not hold.") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Figures as Percentiles;
    use crate::record::Latency;

    fn page(figures: &[Figure]) -> String {
        Figures::of(figures).html()
    }

    #[test]
    fn a_figure_is_a_chart_a_table_and_what_is_to_be_known_of_it() {
        let figures = Percentiles { count: 9, p50_ms: 0.5, max_ms: 77.5, ..Percentiles::default() };
        let latency = Latency { figures, curve: vec![(0.0, 0.1), (50.0, 0.5), (100.0, 77.5)] };
        let curve = Curve { name: "async <first>".to_owned(), held_per_s: 50_000.0, latency };
        let notes = vec!["Replicated: one node was named.".to_owned()];
        let title = "Figure 2".to_owned();
        let figure = Figure { title, curves: vec![curve], notes, ..Figure::default() };
        let page = page(std::slice::from_ref(&figure));
        for part in [
            "<h2 id=\"figure-0\">Figure 2</h2>",
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
        assert!(page(&[figure(true)]).contains("The most was 7. <b class=\"good\">The cap held.</b>"));
        assert!(markdown(&figure(false)).contains("The most was 7. **The cap did not hold.**"));
        assert!(!page(&[figure(true)]).contains("<table>") && !markdown(&figure(true)).contains('|'));
        let said = |holds| Figures::of(&[figure(holds)]).sentences();
        assert_eq!(
            (said(true), said(false)),
            (vec![": the cap held.".to_owned()], vec![": the cap did not hold.".to_owned()])
        );
    }

    #[test]
    fn figures_of_several_brokers_answer_first_and_stand_beside_each_other() {
        let curve = |name: &str, rate: f64, p99_ms: f64| {
            let figures = Percentiles { count: 9, p50_ms: p99_ms / 4.0, p99_ms, ..Percentiles::default() };
            Curve {
                name: name.to_owned(),
                held_per_s: rate,
                latency: Latency { figures, curve: vec![(50.0, 0.1), (99.0, p99_ms)] },
            }
        };
        let figure = |who: &str, title: &str, curves: Vec<Curve>, note: &str| Figure {
            who: who.to_owned(),
            title: title.to_owned(),
            curves,
            notes: vec!["one node".to_owned(), note.to_owned()],
            shown: None,
        };
        let all = [
            // Of a figure of stages each has a part of the rate, so it is no policy's.
            figure("a", "1", vec![curve(HANDED, 9e5, 0.1), curve("synced", 9e5, 1.0)], "x"),
            figure("a", "2", vec![curve("synced", 50_000.0, 3.0), curve("async", 50_000.0, 1.0)], "x"),
            figure("a", "3", vec![curve("synced", 200_000.0, 6.43)], "x"),
            figure("b", "2", vec![curve("synced (one disk)", 33_000.0, 154.0)], "y"),
            figure(
                "c",
                "4",
                vec![curve("replicated (and synced by a majority)", 9.0, 70.0), curve("synced (one disk)", 9.0, 1.0)],
                "y",
            ),
        ];
        let figures = Figures::of(&all);
        assert_eq!(
            figures.sentences(),
            [
                "From publish until it is synced, p99: a 6.43 ms at 200,000 msg/s; b 154 ms at 33,000 msg/s; c 70 ms at 9.00 msg/s."
            ]
        );
        let tiles = figures.tiles(&[]);
        let values: Vec<(&str, bool)> = tiles[0].lines.iter().map(|line| (line.value.as_str(), line.is_best)).collect();
        assert_eq!(values[..2], [("200,000 msg/s", true), ("33,000 msg/s", false)]);
        assert_eq!((tiles[1].curves.len(), tiles[3].lines[0].value.as_str()), (3, "not measured"));
        let page = figures.html();
        assert_eq!(page.matches("<h2 id=").count(), 4);
        for part in [
            "<tr><td>synced</td><td>3.00 (50,000)</td><td>–</td></tr>",
            "<tr><td>synced (one disk)</td><td>–</td><td>154 (33,000)</td></tr>",
            "<li>one node</li>\n<li>a: x</li>\n<li>b: y</li>",
            "<figcaption><b>Until it is synced</b>",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }
}

//! Many workloads on several brokers at one glance: what each broker held, how the others stand to
//! the first one, tiles of the workloads that say most, and a row for each workload, which is the
//! page's contents too.
//!
//! Invariant: a ratio is of two runs of one workload. Of a run that did not pass its figures are
//! shown, its verdict stands beside them, and nothing is concluded from them.

use page::bars;
use page::chart::{self, Chart, Scale, Series};
use page::escape;
use page::figures::{counted, duration_ms, ratio, three};
use page::hue::{self, Hue};
use page::table::{Better, Row, best, folded, spanned, to_first};
use page::tile::{Line, Tile};

use super::answer::{self, latency, of_passed, p99, rate};
use crate::record::{Recorded, Run, Verdict};

/// Workloads below which their own sections say all of it.
const WORKLOADS_MIN: usize = 3;

/// Workloads of a part that a curve can be drawn through.
const POINTS_MIN: usize = 3;

/// What is compared: its name, the figure, and which way is better.
type Figure = (&'static str, fn(&Run) -> Option<f64>, Better);

/// The figure whose name says of what it is.
const P99: &str = "p99, ms";

const FIGURES: [Figure; 3] = [
    ("messages a second", |run| Some(rate(run)), Better::Higher),
    (P99, |run| latency(run).map(|(latency, _)| latency.figures.p99_ms), Better::Lower),
    ("broker's CPU a message, us", |run| run.cost.broker_us_per_message, Better::Lower),
];

/// A workload with its runs.
type Workload = (String, Vec<Recorded>);

/// What a broker held of workloads whose rates rise.
struct Held<'a> {
    broker: &'a str,
    /// The highest rate that passed together with every lower one, and its run.
    held: Option<(f64, &'a Run)>,
    /// The next one, which did not.
    short_of: Option<f64>,
}

/// Workloads, each with its runs.
pub(super) struct Glance<'a> {
    groups: &'a [Workload],
    brokers: Vec<&'a str>,
}

impl<'a> Glance<'a> {
    /// `None` where there are too few workloads, or brokers, to need it.
    pub(super) fn of(groups: &'a [Workload]) -> Option<Glance<'a>> {
        let mut brokers: Vec<&str> = Vec::new();
        for label in groups.iter().flat_map(|(_, runs)| runs).map(|recorded| recorded.run.label.as_str()) {
            if !brokers.contains(&label) {
                brokers.push(label);
            }
        }
        let is_one = |(_, runs): &Workload| {
            runs.iter().all(|one| runs.iter().filter(|other| other.run.label == one.run.label).count() == 1)
        };
        let is_needed = groups.len() >= WORKLOADS_MIN && brokers.len() > 1 && groups.iter().all(is_one);
        is_needed.then_some(Glance { groups, brokers })
    }

    /// The name of a figure; a latency says of what it is.
    fn name(&self, figure: &Figure) -> String {
        let (name, ..) = *figure;
        if name != P99 {
            return name.to_owned();
        }
        let runs = self.groups.iter().flat_map(|(_, runs)| runs);
        let mut of: Vec<&str> = runs.filter_map(|recorded| latency(&recorded.run)).map(|(_, of)| of).collect();
        of.sort_unstable();
        of.dedup();
        match of.as_slice() {
            [of] => format!("p99 {of}, ms"),
            _ => "p99 end to end (of confirms where nothing is received), ms".to_owned(),
        }
    }

    /// The run of a broker among those of a workload.
    fn run<'r>(runs: &'r [Recorded], broker: &str) -> Option<&'r Recorded> {
        runs.iter().find(|recorded| recorded.run.label == broker)
    }

    /// What the `figure` of a broker is of that of the first, for each workload that both passed.
    fn ratios(&self, broker: &str, figure: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
        let of = |runs: &[Recorded], broker: &str| {
            let run = &Glance::run(runs, broker)?.run;
            figure(run).filter(|value| *value > 0.0 && run.verdict() == Verdict::Passed)
        };
        let each = self.groups.iter().filter_map(|(_, runs)| Some(of(runs, self.brokers[0])? / of(runs, broker)?));
        let mut each: Vec<f64> = each.collect();
        each.sort_by(f64::total_cmp);
        each
    }

    /// What each broker held, where workloads differ by the rate that is asked for; and how the first
    /// one stands to each of the others.
    pub(super) fn sentences(&self) -> Vec<String> {
        let held = self.held();
        let told = |of: &Held<'_>| {
            let rate = of.held.map(|(rate, run)| {
                let wait = p99(run).map_or(String::new(), |ms| format!(" (p99 {})", duration_ms(ms)));
                format!("{} msg/s{wait}", three(rate))
            });
            match (rate, of.short_of.map(three)) {
                (Some(rate), None) => format!("{} {rate}, the highest tried", of.broker),
                (Some(rate), Some(short)) => format!("{} {rate}, not {short}", of.broker),
                (None, Some(short)) => format!("{} not even {short} msg/s", of.broker),
                (None, None) => format!("{} was not measured", of.broker),
            }
        };
        let held = held.map(|all| format!("Held: {}.", all.iter().map(told).collect::<Vec<_>>().join("; ")));
        held.into_iter().chain(self.brokers.iter().skip(1).filter_map(|broker| self.sentence(broker))).collect()
    }

    /// `None` where workloads differ by something else.
    fn held(&self) -> Option<Vec<Held<'a>>> {
        let target = |(_, runs): &'a Workload| Some((runs.first()?.run.target_per_s?, runs));
        let mut rates: Vec<(f64, &Vec<Recorded>)> = self.groups.iter().map(target).collect::<Option<_>>()?;
        rates.sort_by(|a, b| a.0.total_cmp(&b.0));
        if rates.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let of = |&broker: &&'a str| {
            let runs = rates.iter().map_while(|(rate, runs)| Some((*rate, &Glance::run(runs, broker)?.run)));
            let runs: Vec<(f64, &Run)> = runs.collect();
            let failed = runs.iter().position(|(_, run)| run.verdict() != Verdict::Passed);
            Held {
                broker,
                held: runs[..failed.unwrap_or(runs.len())].last().copied(),
                short_of: failed.map(|at| runs[at].0),
            }
        };
        Some(self.brokers.iter().map(of).collect())
    }

    fn sentence(&self, other: &str) -> Option<String> {
        let is_free = |run: &Run| run.target_per_s.is_none().then(|| rate(run));
        let inverted = |ratios: Vec<f64>| ratios.into_iter().rev().map(|ratio| 1.0 / ratio).collect::<Vec<f64>>();
        // Each is told in the direction in which most of them go.
        let told = |words: &str, better: &str, worse: &str, ratios: Vec<f64>| {
            let is_better = !ratios.is_empty() && median(&ratios) >= 1.0;
            let (ratios, word) = if is_better { (ratios, better) } else { (inverted(ratios), worse) };
            Some(match ratios.as_slice() {
                [] => return None,
                [one] => format!("{words} {} {word}", ratio(*one)),
                [one, two] => format!("{words} {} and {} {word}", ratio(*one), ratio(*two)),
                [least, .., most] => {
                    let range = format!("{} to {}", ratio(*least), ratio(*most));
                    format!("{words} {} {word} at the median ({range})", ratio(median(&ratios)))
                }
            })
        };
        let [_, (_, p99, _), (_, cpu, _)] = FIGURES;
        let parts = [
            told("as fast as it goes", "faster", "slower", self.ratios(other, is_free)),
            told("p99", "shorter", "longer", inverted(self.ratios(other, p99))),
            told("CPU a message", "less", "more", inverted(self.ratios(other, cpu))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let passed = self.ratios(other, |run| Some(rate(run))).len();
        (!parts.is_empty()).then(|| {
            format!(
                "{} beside {other}, where both passed ({passed} of {}): {}.",
                self.brokers[0],
                counted(self.groups.len(), "workload"),
                parts.join("; ")
            )
        })
    }

    /// Four tiles with a line for each broker: of what each held, or of the workload that goes as
    /// fast as it can; of the one at a rate that most of them held; and of all of them.
    pub(super) fn tiles(&self, all: &[Recorded]) -> Vec<Tile> {
        let hues = hue::of_brokers(&self.brokers);
        let is_whole = |(_, runs): &&Workload| runs.len() == self.brokers.len();
        let target = |(_, runs): &Workload| runs[0].run.target_per_s;
        let passed = |(_, runs): &Workload| of_passed(runs, |_| Some(0.0)).iter().flatten().count();
        let whole = || self.groups.iter().filter(is_whole);
        let first_rate = |(_, runs): &Workload| rate(&runs[0].run);
        let is_received = |(_, runs): &Workload| runs.iter().all(|recorded| recorded.run.end_to_end.is_some());
        let fast = whole().filter(|group| target(group).is_none());
        let fast = fast.max_by(|a, b| {
            let passed = (passed(a), is_received(a)).cmp(&(passed(b), is_received(b)));
            passed.then(first_rate(a).total_cmp(&first_rate(b)))
        });
        let paced = whole().filter(|group| target(group).is_some());
        let highest = |group| target(group).unwrap_or(0.0);
        let paced = paced.max_by(|a, b| passed(a).cmp(&passed(b)).then(highest(a).total_cmp(&highest(b))));
        let (Some(fast), Some(paced)) = (fast.or(paced), paced.or(fast)) else { return answer::tiles(all, false) };
        // Rates, waits, what became of the messages, cost.
        let tile = |(workload, runs): &Workload, at: usize| {
            let tile = answer::tiles(runs, true).swap_remove(at);
            Tile { name: format!("{}, {workload}", tile.name), ..tile }
        };
        let rates = match self.held() {
            Some(held) => held_tile(&held, &hues),
            None => tile(fast, 0),
        };
        let of_broker = |(broker, hue): (&&str, &Hue)| {
            let runs = self.groups.iter().filter_map(|(_, runs)| Glance::run(runs, broker));
            let of = Some(((*broker).to_owned(), *hue));
            Line { of, ..answer::faults(&runs.cloned().collect::<Vec<_>>()) }
        };
        let lines = self.brokers.iter().zip(&hues).map(of_broker).collect();
        vec![rates, tile(paced, 1), Tile::of(answer::FAULTS, lines), tile(paced, 3)]
    }

    /// The figure of each part that says most, drawn; and a row for each workload, whose name leads to
    /// its section.
    pub(super) fn html(&self) -> String {
        let brokers: Vec<String> = self.brokers.iter().map(|name| (*name).to_owned()).collect();
        let mut heads: Vec<(String, Vec<String>)> =
            FIGURES.iter().map(|figure| (self.name(figure), brokers.clone())).collect();
        heads.push(("verdict".to_owned(), vec![String::new()]));
        let mut rows: Vec<Row> = Vec::new();
        let mut part = "";
        for (at, (workload, runs)) in self.groups.iter().enumerate() {
            let (of, name) = self.split(workload);
            if of != part && !of.is_empty() {
                rows.push(Row::group(of));
            }
            part = of;
            rows.push(self.row(name, runs).to(&format!("part-{at}")));
        }
        let table = folded("All workloads", &spanned(&heads, &rows), true);
        format!("<h2>At a glance</h2>\n{}{table}", self.overview())
    }

    /// Of each part the chart that says most; bars where no part has one.
    fn overview(&self) -> String {
        let mut charts = Vec::new();
        let mut part = "";
        for (workload, runs) in self.groups {
            let (of, _) = self.split(workload);
            if of == part || of.is_empty() {
                continue;
            }
            part = of;
            let targets = self.groups.iter().filter(|(other, _)| self.split(other).0 == of);
            let differ = targets.into_iter().any(|(_, other)| other[0].run.target_per_s != runs[0].run.target_per_s);
            // What was asked for at one rate differs by its waits.
            let says_most = |at: usize| differ && at < 2 || at == usize::from(runs[0].run.target_per_s.is_some());
            let drawn = self.charts(of, true).into_iter().enumerate().filter(|(at, _)| says_most(*at));
            charts.extend(drawn.map(|(_, chart)| chart));
        }
        if !charts.is_empty() {
            return chart::grid(&charts);
        }
        let hues = hue::of_brokers(&self.brokers);
        let column = |figure: &Figure| {
            let bar = |runs: &[Recorded], (broker, hue): (&&str, &Hue)| {
                Some(bars::Bar::of(*broker, *hue, figure.1(&Glance::run(runs, broker)?.run)?))
            };
            let group = |(workload, runs): &Workload| bars::Group {
                name: workload.clone(),
                bars: self.brokers.iter().zip(&hues).filter_map(|of| bar(runs, of)).collect(),
            };
            let groups: Vec<bars::Group> = self.groups.iter().map(group).collect();
            format!("<div><h3>{}</h3>\n{}</div>\n", escape(&self.name(figure)), bars::html(&groups, None))
        };
        format!("<div class=\"columns\">\n{}{}</div>\n", column(&FIGURES[0]), column(&FIGURES[1]))
    }

    /// Charts over the number by which the workloads of a part differ: sizes, rates, queues. By
    /// themselves they name the part.
    fn charts(&self, part: &str, by_themselves: bool) -> Vec<Chart> {
        let mut points: Vec<(f64, &[Recorded])> = Vec::new();
        let mut unit = "";
        for (workload, runs) in self.groups {
            let (of, name) = self.split(workload);
            if of != part {
                continue;
            }
            // `size 10`, or `5,000 msg/s`.
            let number = |(what, number): (&'a str, &str)| Some((what, number.replace(',', "").parse::<f64>().ok()?));
            let parted = name.rsplit_once(' ').and_then(number);
            let Some((what, number)) = parted.or_else(|| name.split_once(' ').and_then(|(n, what)| number((what, n))))
            else {
                return Vec::new();
            };
            unit = what;
            points.push((number, runs));
        }
        if points.len() < POINTS_MIN {
            return Vec::new();
        }
        let hues = hue::of_brokers(&self.brokers);
        let drawn = |of: &Figure| {
            let (_, figure, _) = of;
            let title = if by_themselves { format!("{part}: {}", self.name(of)) } else { self.name(of) };
            let mut chart = Chart::new(&title, (unit, Scale::Log), ("", Scale::Log)).group(part);
            for (broker, hue) in self.brokers.iter().zip(&hues) {
                let value = |runs: &[Recorded]| figure(&Glance::run(runs, broker)?.run);
                chart.push(Series::new(*broker, *hue, points.iter().map(|(at, runs)| (*at, value(runs)))));
            }
            chart
        };
        let charts: Vec<Chart> = FIGURES.iter().map(drawn).collect();
        charts.into_iter().filter(|chart| !chart.is_empty()).collect()
    }

    /// The charts of a part, where they stand: before the first of its workloads.
    pub(super) fn pictures(&self, at: usize) -> String {
        let part = |at: usize| self.split(&self.groups[at].0).0;
        if part(at).is_empty() || at > 0 && part(at - 1) == part(at) {
            return String::new();
        }
        let charts = self.charts(part(at), false);
        if charts.is_empty() {
            return String::new();
        }
        format!("<h2>{}</h2>\n{}", escape(part(at)), chart::grid(&charts))
    }

    /// A workload's part, which several have in common, and its own name.
    fn split<'n>(&self, workload: &'n str) -> (&'n str, &'n str) {
        let cut = |name: &'n str| name.rsplit_once(": ").or_else(|| name.rsplit_once(", "));
        match cut(workload) {
            Some((part, name)) if self.groups.iter().filter(|(other, _)| other.starts_with(part)).count() > 1 => {
                (part, name)
            }
            _ => ("", workload),
        }
    }

    fn row(&self, name: &str, runs: &[Recorded]) -> Row {
        // In the order of the columns; a broker that was not measured has none.
        let measured: Vec<Recorded> =
            self.brokers.iter().map(|broker| Glance::run(runs, broker).cloned().unwrap_or_default()).collect();
        let is_there = |at: usize| Glance::run(runs, self.brokers[at]).is_some();
        let mut cells = Vec::new();
        for (_, figure, better) in FIGURES {
            let value = |at: usize| figure(&measured[at].run).filter(|value| *value > 0.0 && is_there(at));
            let values: Vec<Option<f64>> = (0..measured.len()).map(value).collect();
            let passed = of_passed(&measured, figure);
            let winner = best(&(0..values.len()).map(|at| values[at].and(passed[at])).collect::<Vec<_>>(), better);
            for (at, value) in values.iter().enumerate() {
                let told = value.map_or("–".to_owned(), three);
                let told = to_first(&values, at).map_or(told.clone(), |ratio| format!("{told} ({ratio})"));
                cells.push((told, winner == Some(at)));
            }
        }
        let verdict = |recorded: &Recorded| {
            let word = recorded.run.verdict().word().to_lowercase();
            (recorded.run.verdict() != Verdict::Passed).then(|| format!("{}: {word}", recorded.run.label))
        };
        let failed: Vec<String> = runs.iter().filter_map(verdict).collect();
        let verdict = match (failed.as_slice(), runs.len()) {
            ([], 1) => "passed".to_owned(),
            ([], _) => "all passed".to_owned(),
            (failed, _) => failed.join(", "),
        };
        cells.push((verdict, false));
        Row::of(name, cells)
    }
}

/// What each broker held, as a tile.
fn held_tile(held: &[Held<'_>], hues: &[Hue]) -> Tile {
    let rates: Vec<Option<f64>> = held.iter().map(|of| of.held.map(|(rate, _)| rate)).collect();
    let winner = best(&rates, Better::Higher);
    let line = |(at, of): (usize, &Held<'_>)| {
        let more = match (of.short_of, of.held) {
            (Some(short), _) => format!("not {} msg/s", three(short)),
            (None, Some(_)) => "the highest rate tried".to_owned(),
            (None, None) => String::new(),
        };
        let value = rates[at].map_or("none that was tried".to_owned(), |rate| format!("{} msg/s", three(rate)));
        Line { of: Some((of.broker.to_owned(), hues[at])), is_best: winner == Some(at), ..Line::of(value, more) }
    };
    Tile::of("messages a second held", held.iter().enumerate().map(line).collect())
}

/// The middle of rising ratios: between two it lies as many times above the one as below the other.
fn median(ratios: &[f64]) -> f64 {
    let (low, high) = (ratios[(ratios.len() - 1) / 2], ratios[ratios.len() / 2]);
    (low * high).sqrt()
}

/// The contents of a page: where each part of it begins.
pub(super) fn contents(parts: &[(String, String)]) -> String {
    let item = |(id, name): &(String, String)| format!("<li><a href=\"#{id}\">{}</a></li>\n", escape(name));
    format!("<nav><h2>Contents</h2>\n<ul>\n{}</ul></nav>\n", parts.iter().map(item).collect::<String>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::tests::recorded;

    fn groups() -> Vec<(String, Vec<Recorded>)> {
        let of = |label: &str, p99: f64, rate: f64| {
            let mut recorded = recorded(label, p99);
            recorded.run.received_per_s = Some(rate);
            recorded
        };
        let group = |name: &str, ours: f64, theirs: f64| {
            (name.to_owned(), vec![of("Leveret", 2.0, ours), of("Rabbit", 80.0, theirs)])
        };
        vec![
            group("fast, size 10", 100_000.0, 10_000.0),
            group("fast, size 1000", 60_000.0, 3_000.0),
            group("long: fill", 50_000.0, 50_000.0),
        ]
    }

    #[test]
    fn the_first_broker_is_compared_with_each_other_over_all_that_both_passed() {
        let mut groups = groups();
        let of = |groups: &[(String, Vec<Recorded>)]| Glance::of(groups).map(|glance| glance.sentences());
        let told = "Leveret beside Rabbit, where both passed (3 of 3 workloads): as fast as it goes 10.0× faster at \
                    the median (1.00× to 20.0×); p99 40.0× shorter at the median (40.0× to 40.0×).";
        assert_eq!(of(&groups), Some(vec![told.to_owned()]));
        groups[1].1[0].run.missed.push("5 lost".to_owned());
        let told = of(&groups).unwrap_or_default();
        assert!(told[0].contains("(2 of 3 workloads)"), "{told:?}");
        assert!(told[0].contains("as fast as it goes 1.00× and 10.0× faster; p99"), "two have no median: {told:?}");
        assert_eq!((median(&[1.0, 4.0, 9.0]), median(&[1.0, 4.0, 9.0, 10.0])), (4.0, 6.0));
        assert_eq!(of(&groups[..2]), None, "two workloads say it themselves");
    }

    #[test]
    fn what_each_broker_held_of_rising_rates_comes_first_and_every_tile_has_a_line_for_each() {
        let mut groups = groups();
        for (rate, (name, runs)) in [5_000.0, 10_000.0, 15_000.0].into_iter().zip(&mut groups) {
            *name = format!("load, {} msg/s", three(rate));
            runs.iter_mut().for_each(|recorded| recorded.run.target_per_s = Some(rate));
        }
        groups[1].1[1].run.missed.push("p99".to_owned());
        let glance = Glance::of(&groups).unwrap();
        let told =
            "Held: Leveret 15,000 msg/s (p99 2 ms), the highest tried; Rabbit 5,000 msg/s (p99 80 ms), not 10,000.";
        assert_eq!(glance.sentences()[0], told);
        let tiles = glance.tiles(&[]);
        let lines: Vec<Vec<&str>> =
            tiles.iter().map(|tile| tile.lines.iter().map(|line| line.value.as_str()).collect()).collect();
        assert_eq!(lines[0], ["15,000 msg/s", "5,000 msg/s"]);
        // Of the highest rate that both passed.
        assert_eq!(
            (tiles[1].name.as_str(), &lines[1][..]),
            ("p99 end to end, load, 15,000 msg/s", &["2 ms", "80 ms"][..])
        );
        assert_eq!((tiles[2].lines.len(), tiles[3].lines.len()), (2, 2));
        let drawn = glance.overview();
        assert!(
            drawn.contains("<b>load: messages a second</b>") && drawn.contains("\"x\":[5000.0,10000.0,15000.0]"),
            "{drawn}"
        );
        groups[2].1[0].run.target_per_s = Some(5_000.0);
        assert!(!Glance::of(&groups).unwrap().sentences()[0].starts_with("Held"), "one rate, several workloads");
        let groups: Vec<Workload> =
            ["a", "b", "c"].iter().zip(groups).map(|(name, (_, runs))| ((*name).to_owned(), runs)).collect();
        let drawn = Glance::of(&groups).unwrap().overview();
        assert!(drawn.contains("class=\"bars\"") && drawn.contains("<p class=\"group\">b</p>"), "{drawn}");
    }

    #[test]
    fn what_differs_by_a_number_is_drawn_over_it_before_its_workloads() {
        let mut groups = groups();
        let pictures = |groups: &[(String, Vec<Recorded>)], at| Glance::of(groups).map(|glance| glance.pictures(at));
        assert_eq!(pictures(&groups, 0).as_deref(), Some(""), "two points are no curve");
        let third = groups[1].1.clone();
        groups.insert(2, ("fast, size 5000".to_owned(), third));
        let drawn = pictures(&groups, 0).unwrap_or_default();
        assert!(drawn.starts_with("<h2>fast</h2>") && drawn.contains("\"x\":[10.0,1000.0,5000.0]"), "{drawn}");
        assert_eq!((pictures(&groups, 1).as_deref(), pictures(&groups, 3).as_deref()), (Some(""), Some("")));
    }

    #[test]
    fn each_workload_has_a_row_that_leads_to_it_with_ratios_the_best_and_verdicts() {
        let mut groups = groups();
        groups[1].1[0].run.missed.push("5 lost".to_owned());
        groups.push(("alone".to_owned(), vec![groups[0].1[0].clone()]));
        let html = Glance::of(&groups).map(|glance| glance.html()).unwrap_or_default();
        for part in [
            "<td class=\"group\" colspan=\"8\">fast</td>",
            "<td><a href=\"#part-0\">size 10</a></td><td class=\"win\">100,000</td><td>10,000 (1/10.0)</td>",
            "<td>60,000</td><td>3,000 (1/20.0)</td>",
            "<td>Leveret: failed</td>",
            // Against nobody one is not the best.
            "alone</a></td><td>100,000</td><td>–</td>",
            "<a href=\"#part-2\">long: fill</a>",
        ] {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
    }
}

//! Many workloads on several brokers at one glance: a sentence on how the others stand to the first
//! broker, and a row for each workload, which is the page's contents too.
//!
//! Invariant: a ratio is of two runs of one workload. Of a run that did not pass its figures are
//! shown, its verdict stands beside them, and nothing is concluded from them.

use page::chart::{self, Chart, Scale, Series};
use page::figures::{counted, ratio, three};
use page::table::{Better, Row, best, spanned, to_first};
use page::{escape, hue};

use super::answer::{latency, of_passed, rate};
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

/// Workloads, each with its runs.
pub(super) struct Glance<'a> {
    groups: &'a [(String, Vec<Recorded>)],
    brokers: Vec<&'a str>,
}

impl<'a> Glance<'a> {
    /// `None` where there are too few workloads, or brokers, to need it.
    pub(super) fn of(groups: &'a [(String, Vec<Recorded>)]) -> Option<Glance<'a>> {
        let mut brokers: Vec<&str> = Vec::new();
        for label in groups.iter().flat_map(|(_, runs)| runs).map(|recorded| recorded.run.label.as_str()) {
            if !brokers.contains(&label) {
                brokers.push(label);
            }
        }
        let is_one = |(_, runs): &(String, Vec<Recorded>)| {
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

    /// How the first broker stands to each of the others; `None` where no workload was passed by
    /// both.
    pub(super) fn sentences(&self) -> Vec<String> {
        let others = self.brokers.iter().skip(1);
        others.filter_map(|broker| self.sentence(broker)).collect()
    }

    fn sentence(&self, other: &str) -> Option<String> {
        let is_free = |run: &Run| run.target_per_s.is_none().then(|| rate(run));
        let told = |words: &str, ratios: Vec<f64>| {
            let (least, most) = (*ratios.first()?, *ratios.last()?);
            let middle = ratios[ratios.len() / 2];
            let range = match ratios.len() {
                1 => String::new(),
                _ => format!(" ({} to {})", ratio(least), ratio(most)),
            };
            Some(format!("{words} {}{range}", ratio(middle)))
        };
        let [_, (_, p99, _), (_, cpu, _)] = FIGURES;
        let parts = [
            told("as fast as it goes", self.ratios(other, is_free)),
            told("p99", self.ratios(other, p99)),
            told("CPU a message", self.ratios(other, cpu)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let passed = self.ratios(other, |run| Some(rate(run))).len();
        (!parts.is_empty()).then(|| {
            format!(
                "{} beside {other}, the median of the workloads that both passed ({passed} of {}): {}.",
                self.brokers[0],
                self.groups.len(),
                parts.join("; ")
            )
        })
    }

    /// A row for each workload; its name leads to its section.
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
        format!("<h2>At a glance</h2>\n{}", spanned(&heads, &rows))
    }

    /// Charts over the number by which the workloads of a part differ: sizes, rates, queues.
    fn charts(&self, part: &str) -> Vec<Chart> {
        let mut points: Vec<(f64, &[Recorded])> = Vec::new();
        let mut unit = "";
        for (workload, runs) in self.groups {
            let (of, name) = self.split(workload);
            let Some((what, number)) = name.rsplit_once(' ').filter(|_| of == part) else { continue };
            let Ok(number) = number.replace(',', "").parse::<f64>() else { return Vec::new() };
            unit = what;
            points.push((number, runs));
        }
        if points.len() < POINTS_MIN {
            return Vec::new();
        }
        let hues = hue::of_brokers(&self.brokers);
        let drawn = |of: &Figure| {
            let (_, figure, _) = of;
            let title = self.name(of);
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
        let charts = self.charts(part(at));
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
            let winner = best(&of_passed(&measured, figure), better);
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

/// The contents of a page whose workloads are not compared, or are few.
pub(super) fn contents(groups: &[(String, Vec<Recorded>)]) -> String {
    let to = |(at, (scenario, _)): (usize, &(String, Vec<Recorded>))| {
        format!("<li><a href=\"#part-{at}\">{}</a></li>\n", escape(scenario))
    };
    let items: String = groups.iter().enumerate().map(to).collect();
    format!("<nav><h2>Contents: {}</h2>\n<ul>\n{items}</ul></nav>\n", counted(groups.len(), "workload"))
}

#[cfg(test)]
mod tests {
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
        let told = "Leveret beside Rabbit, the median of the workloads that both passed (3 of 3): as fast as it goes 10.0× (1.00× to \
                    20.0×); p99 1/40.0 (1/40.0 to 1/40.0).";
        assert_eq!(of(&groups), Some(vec![told.to_owned()]));
        groups[1].1[0].run.missed.push("5 lost".to_owned());
        let told = of(&groups).unwrap_or_default();
        assert!(told[0].contains("(2 of 3)") && told[0].contains("(1.00× to 10.0×)"), "{told:?}");
        assert_eq!(of(&groups[..2]), None, "two workloads say it themselves");
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
        let html = Glance::of(&groups).map(|glance| glance.html()).unwrap_or_default();
        for part in [
            "<td class=\"group\" colspan=\"8\">fast</td>",
            "<td><a href=\"#part-0\">size 10</a></td><td class=\"win\">100,000</td><td>10,000 (1/10.0)</td>",
            "<td>60,000</td><td>3,000 (1/20.0)</td>",
            "<td>Leveret: failed</td>",
            "<a href=\"#part-2\">long: fill</a>",
        ] {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
    }
}

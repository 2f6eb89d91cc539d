//! The page around a report: one file, charts inside of it, nothing fetched.
//!
//! Invariant: all text from outside passes `escape`; the page has no script and no address.

use crate::answer::Extent;
use crate::chart::{Axes, Series, bars, lines, scatter};
use crate::report::{Report, check_verdict};
use crate::results::{Step, Test};
use crate::table::{escape, ms};

/// Colours of eight series by day and by night, told apart also without red and green.
const STYLE: &str = "\
:root{--ink:#1b1f24;--soft:#57606a;--paper:#fff;--line:#d8dee4;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#8a6d00;\
--c5:#56b4e9;--c6:#7a3db8;--c7:#555}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--paper:#0d1117;--line:#30363d;--c0:#58a6ff;--c1:#ff9b5c;\
--c2:#3fcf8e;--c3:#f0a6d0;--c4:#e3c04b;--c5:#9fdcff;--c6:#c39bff;--c7:#aaa}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1080px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.2rem}h3{font-size:1rem;margin:1.4rem 0 .3rem}.soft{color:var(--soft)}\
.scroll{overflow-x:auto}.scroll th:first-child,.scroll td:first-child{position:sticky;left:0;background:var(--paper)}\
table{border-collapse:collapse;font-size:13px;margin:.4rem 0}\
th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}.n{text-align:right}\
.find td:last-child{white-space:normal;min-width:22rem}.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(330px,1fr));gap:0 2rem}\
svg{width:100%;height:auto;max-width:860px}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}svg .s{font-size:10px}svg .h{paint-order:stroke;stroke:var(--paper);stroke-width:4px}\
.g{stroke:var(--line)}.level{stroke:var(--ink);stroke-dasharray:3 3}polyline{fill:none;stroke-width:1.8}\
.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var(--c2)}.l3{stroke:var(--c3)}.l4{stroke:var(--c4)}.l5{stroke:var(--c5)}\
.l6{stroke:var(--c6)}.l7{stroke:var(--c7)}.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}\
.f4{fill:var(--c4)}.card{border:2px solid var(--c0);border-radius:8px;padding:.4rem 1.2rem;margin:1rem 0}.answer{font-size:1.2rem;font-weight:600;margin:.6rem 0}\
.card dl{display:flex;flex-wrap:wrap;gap:.4rem 2rem;margin:.6rem 0}.card dt{color:var(--soft);font-size:13px}.card dd{margin:0;font-size:1.15rem}\
@media(max-width:44rem){.scroll svg{min-width:40rem}}.f5{fill:var(--c5)}.f6{fill:var(--c6)}.f7{fill:var(--c7)}pre{white-space:pre-wrap}";

/// Puts `body` on a page.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title><style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}</body></html>\n"
    )
}

/// The answer at the top of a page: a line, what belongs to it, figures, and sentences under a word of their own.
pub(crate) fn card(line: &str, next: Option<&str>, tiles: &[(&str, String)], below: (&str, &[String])) -> String {
    let mut text = format!("<div class=\"card\"><p class=\"answer\">{}</p>\n", escape(line));
    if let Some(next) = next {
        text.push_str(&format!("<p><b>{}</b></p>\n", escape(next)));
    }
    if !tiles.is_empty() {
        text.push_str("<dl>");
        for (name, value) in tiles {
            text.push_str(&format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value)));
        }
        text.push_str("</dl>\n");
    }
    if let (title, sentences @ [_, ..]) = below {
        text.push_str(&format!("<p class=\"soft\">{}</p>\n<ul>\n", escape(title)));
        for sentence in sentences {
            text.push_str(&format!("<li>{}</li>\n", escape(sentence)));
        }
        text.push_str("</ul>\n");
    }
    text.push_str("</div>\n");
    text
}

impl Report {
    /// What to take, what it costs, what it held with how much room, what was not shown, and what would change it.
    fn answer_card(&self) -> String {
        let answer = &self.answer;
        let mut tiles = Vec::new();
        if let Some(name) = &answer.configuration {
            let take = if answer.extent == Extent::Shown { "take" } else { "nearest" };
            tiles.push((take, name.clone()));
        }
        tiles.extend(answer.month.map(|month| ("costs a month", self.money(month))));
        tiles.extend(answer.held.map(|held| ("held", format!("{held} msg/s"))));
        tiles.extend(answer.room.map(|room| ("room", format!("{:.0} %", 100.0 * room))));
        tiles.extend(answer.p99_ms.map(|p99| ("p99", format!("{} ms", ms(p99)))));
        if !answer.not_shown.is_empty() {
            tiles.push(("not shown", answer.not_shown.join("; ")));
        }
        let changes = self.recommendation.as_ref().map_or(&[][..], |found| &found.changes);
        card(&answer.line, answer.next.as_deref(), &tiles, ("What would change it", changes))
    }

    /// The report as one page.
    pub fn html(&self) -> String {
        let mut body = self.answer_card();
        body.push_str(&format!("<p class=\"soft\">Requirement: {}</p>\n", escape(&self.asked())));
        if let Some(recommendation) = &self.recommendation {
            let list = |title: &str, lines: Vec<String>, body: &mut String| {
                if !lines.is_empty() {
                    let lines: Vec<String> = lines.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
                    let count = lines.len();
                    body.push_str(&format!(
                        "<details><summary>{title}: {count}</summary>\n<ul>{}</ul></details>\n",
                        lines.join("\n")
                    ));
                }
            };
            list("Cheaper, and not shown", self.open_lines(recommendation), &mut body);
            list("Out", self.rejected_lines(recommendation), &mut body);
        }
        body.push_str(&format!("<h2>Configurations</h2>\n<div class=\"scroll\">{}</div>\n", self.overview().html()));
        for (title, chart) in self.charts() {
            body.push_str(&format!("<h3>{}</h3>\n<div class=\"scroll\">{chart}</div>\n", escape(&title)));
        }
        body.push_str("<h2>Leaderboards</h2>\n<div class=\"grid\">\n");
        for board in self.boards.iter().filter(|board| !board.rows.is_empty()) {
            let title = escape(&self.title(board.kind, board.volume.as_deref()));
            body.push_str(&format!("<div><h3>{title}</h3>{}</div>\n", self.board_table(board).html()));
        }
        body.push_str("</div>\n");
        if let Some(check) = &self.check {
            body.push_str(&format!("<h2>Published figures checked</h2>\n<p>{}</p>\n", escape(&check.source)));
            body.push_str(&format!("<p>{}</p>\n", escape(&check_verdict(check))));
            body.push_str(&format!("<div class=\"scroll find\">{}</div>\n", self.findings_table(check).html()));
            for made in &check.boards {
                let scope = made.volume.as_deref().unwrap_or("all volumes");
                let title = escape(&format!("{scope}: {}", made.kind.title(check.target)));
                let table = self.three_roads(made, &check.findings).html();
                body.push_str(&format!("<h3>{title}</h3>\n<div class=\"scroll\">{table}</div>\n"));
            }
        }
        let skipped =
            self.skipped.iter().map(|s| format!("{}/{} {} at {}: {}", s.cluster, s.volume, s.test, s.target, s.why));
        let notes: Vec<String> = skipped.chain(self.notes.iter().cloned()).collect();
        if !notes.is_empty() {
            body.push_str("<h2>Notes</h2>\n<ul>\n");
            for note in notes {
                body.push_str(&format!("<li>{}</li>\n", escape(&note)));
            }
            body.push_str("</ul>\n");
        }
        page(self.source.as_deref().unwrap_or("Cluster sizing"), &body)
    }

    fn charts(&self) -> Vec<(String, String)> {
        let mut charts = Vec::new();
        let mut add = |title: &str, chart: Option<String>| charts.extend(chart.map(|chart| (title.to_owned(), chart)));
        add("Top rate by cluster and volume", self.top_rates());
        add("Cost against rate: right and low is better", self.cost_against_rate());
        let target = |step: &Step| (step.consumed, format!("{} of {} msg/s", step.consumed.round(), step.target));
        let axes = Axes { x: "target, msg/s", y: "consumed, msg/s", is_log: false, level: None };
        add("Throughput against target", lines(&self.over_targets(Test::Rising, |step| Some(target(step))), &axes));
        let wanted = Some((self.requirement.p99_ms, "required p99"));
        let axes = Axes { x: "target, msg/s", y: "p99 end to end, ms", is_log: true, level: wanted };
        let p99 = |step: &Step| step.p99_ms.map(|ms| (ms, format!("{ms} ms at {} msg/s", step.target)));
        add("Latency against target", lines(&self.over_targets(Test::Rising, p99), &axes));
        for test in [Test::LoseBroker, Test::SlowConsumers, Test::PublisherPeak] {
            add(&format!("Latency against target, {test}"), lines(&self.over_targets(test, p99), &axes));
        }
        let axes = Axes { x: "target, msg/s", y: "CPU of a node, %", is_log: false, level: None };
        let cpu = |step: &Step| step.cpu_percent.map(|percent| (percent, format!("{percent:.0} % at {}", step.target)));
        add("CPU against target", lines(&self.over_targets(Test::Rising, cpu), &axes));
        let axes = Axes { x: "target, msg/s", y: "written by a node, MiB/s", is_log: false, level: None };
        let disk = |step: &Step| step.disk_mib_s.map(|mib| (mib, format!("{mib:.1} MiB/s at {}", step.target)));
        add("Disk against target", lines(&self.over_targets(Test::Rising, disk), &axes));
        charts
    }

    fn over_targets(&self, test: Test, y: impl Fn(&Step) -> Option<(f64, String)>) -> Vec<Series> {
        let of = |name: &str| {
            let mut points: Vec<(f64, f64, String)> = self
                .steps
                .iter()
                .filter(|step| step.test == test && format!("{}/{}", step.cluster, step.volume) == name)
                .filter_map(|step| y(step).map(|(value, word)| (step.target, value, word)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let names = self.configurations.iter().map(|line| line.outcome.configuration.name());
        names.map(|name| Series { points: of(&name), name }).filter(|series| !series.points.is_empty()).collect()
    }

    fn top_rates(&self) -> Option<String> {
        let mut clusters: Vec<String> = Vec::new();
        let mut volumes: Vec<String> = Vec::new();
        for line in &self.configurations {
            let known = &line.outcome.configuration;
            if !clusters.contains(&known.cluster) {
                clusters.push(known.cluster.clone());
            }
            if !volumes.contains(&known.volume) {
                volumes.push(known.volume.clone());
            }
        }
        let value = |cluster: &String, volume: &String| {
            let is_it = |line: &&crate::report::Line| {
                line.outcome.configuration.cluster == *cluster && line.outcome.configuration.volume == *volume
            };
            self.configurations.iter().find(is_it).map(|line| line.outcome.top_rate)
        };
        let values: Vec<Vec<Option<f64>>> =
            clusters.iter().map(|cluster| volumes.iter().map(|volume| value(cluster, volume)).collect()).collect();
        let level = Some((self.requirement.rate, "required"));
        bars(&clusters, &volumes, &values, &Axes { x: "cluster", y: "msg/s", is_log: false, level })
    }

    fn cost_against_rate(&self) -> Option<String> {
        let mut series: Vec<Series> = Vec::new();
        for line in &self.configurations {
            let Some(month) = line.month else { continue };
            let known = &line.outcome.configuration;
            let fails = self.standing(line).iter().any(|(_, shown)| *shown == crate::outcome::Shown::No);
            let mark = if fails { " (fails)" } else { "" };
            let word = format!("{}{mark}: {} a month", known.cluster, self.money(month));
            let point = (line.outcome.top_rate, month, word);
            match series.iter_mut().find(|one| one.name == known.volume) {
                Some(one) => one.points.push(point),
                None => series.push(Series { name: known.volume.clone(), points: vec![point] }),
            }
        }
        scatter(&series, &Axes { x: "top rate, msg/s", y: "cost a month", is_log: false, level: None })
    }
}

//! The page of a report: the answer first, then pictures, then tables.
//!
//! Invariant: all text from outside passes `escape`; a configuration has the same colour in all
//! pictures of a page: its volume's where there are several volumes (clusters then differ by their
//! strokes and names), else its own.

use page::bars::{self, Bar, Group};
use page::chart::{self, Chart, Scale, Series, Stroke};
use page::escape;
use page::figures::{exact, three};
use page::hue::{Hue, of_brokers};
use page::table::folded;
use page::tile::{self, Tile, Tone};

use crate::answer::Extent;
use crate::board::{Board, Row};
use crate::outcome::Shown;
use crate::report::{Line, Report, check_verdict};
use crate::results::{Step, Test};

/// Tests in which something goes wrong.
const ADVERSE: [Test; 3] = [Test::LoseBroker, Test::SlowConsumers, Test::PublisherPeak];

/// The answer at the top of a page: a line, the lines behind it, figures, and sentences under a word
/// of their own.
pub(crate) fn card(
    tone: Tone,
    line: &str,
    behind: &[String],
    tiles: &[(&str, String, String)],
    below: (&str, &[String]),
) -> String {
    let mut text = tile::answer(tone, line, behind);
    if !tiles.is_empty() {
        let tile = |(name, value, more): &(&str, String, String)| {
            Tile::of(*name, vec![tile::Line::of(value.clone(), more.clone())])
        };
        text.push_str(&tile::tiles(&tiles.iter().map(tile).collect::<Vec<_>>()));
    }
    if let (title, sentences @ [_, ..]) = below {
        text.push_str(&format!("<p class=\"faint\">{}</p>\n<ul>\n", escape(title)));
        for sentence in sentences {
            text.push_str(&format!("<li>{}</li>\n", escape(sentence)));
        }
        text.push_str("</ul>\n");
    }
    text
}

/// A group of dots: its name, and x, y and word of each.
pub(crate) type Dots = (String, Vec<(f64, f64, String)>);

/// Dots of several groups, each a series with its colour.
pub(crate) fn dots(title: &str, x: &str, y: &str, groups: &[Dots]) -> Chart {
    let mut chart = Chart::new(title, (x, Scale::Linear), (y, Scale::Linear)).group("dots");
    let hues = of_brokers(&groups.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for ((name, points), hue) in groups.iter().zip(hues) {
        chart.push(Series::dots(name.clone(), hue, points));
    }
    chart
}

/// Lines with their heading; nothing where there are none.
pub(crate) fn list(heading: &str, lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("<h2>{heading}</h2>\n{}", items(lines)) }
}

fn items(lines: &[String]) -> String {
    let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// Adds a point to the group of this name.
pub(crate) fn add_point(groups: &mut Vec<Dots>, name: &str, point: (f64, f64, String)) {
    match groups.iter_mut().find(|(known, _)| known == name) {
        Some((_, points)) => points.push(point),
        None => groups.push((name.to_owned(), vec![point])),
    }
}

impl Report {
    /// What to take, what it costs, what it held with how much room, what was not shown, and what
    /// would change it.
    fn answer_card(&self) -> String {
        let answer = &self.answer;
        let mut tiles = Vec::new();
        // Where nothing holds all of it the one that held most is what comes nearest.
        let is_it = |line: &&Line| Some(line.outcome.configuration.name()) == answer.configuration;
        let is_nearest =
            |line: &&Line| answer.held.is_some() && Some(line.outcome.configuration.name()) == answer.nearest;
        let line = match answer.extent {
            Extent::Nothing => self.configurations.iter().find(is_nearest),
            Extent::Shown | Extent::Partly => self.configurations.iter().find(is_it),
        };
        if let Some(line) = line {
            let (word, shown) = match answer.extent {
                Extent::Shown if self.recommendation.is_none() => {
                    let shown = "everything asked for was shown";
                    match answer.others.len() {
                        0 => ("held it alone", shown.to_owned()),
                        others => ("held it best", format!("{shown}; {others} more held the rate: prices decide")),
                    }
                }
                Extent::Shown => ("take", "everything asked for was shown".to_owned()),
                Extent::Partly => ("nearest", "not everything asked for was shown".to_owned()),
                Extent::Nothing => {
                    let fails = self.standing(line).into_iter().filter(|(_, shown)| *shown == Shown::No);
                    ("nearest", format!("fails {}", fails.map(|(what, _)| what).collect::<Vec<_>>().join("; ")))
                }
            };
            tiles.push((word, line.outcome.configuration.name(), shown));
        }
        let month = answer.month.or(line.and_then(|line| line.month));
        let each = line
            .and_then(|line| line.cost_at_target)
            .map(|cost| format!("{} for 1,000 msg/s at {}", self.money(cost), exact(self.requirement.rate)));
        tiles.extend(month.map(|month| ("costs a month", self.money(month), each.unwrap_or_default())));
        let room = |room: f64| {
            let room = if room > 0.0 { format!("{:.0} % room", 100.0 * room) } else { "no room shown".to_owned() };
            format!("{} asked for: {room}", exact(self.requirement.rate))
        };
        tiles.extend(
            answer.held.map(|held| ("held", format!("{} msg/s", exact(held)), answer.room.map_or(String::new(), room))),
        );
        let found =
            line.and_then(|line| line.outcome.latency.as_ref()?.percentiles.iter().find(|(name, _)| *name == "p99"));
        tiles.extend(answer.p99_ms.or(found.map(|(_, ms)| *ms)).map(|p99| {
            let why = line.and_then(|line| line.outcome.latency_reason.clone()).unwrap_or_default();
            ("p99 end to end", format!("{} ms", three(p99)), why)
        }));
        let open = if answer.not_shown.is_empty() { "nothing".to_owned() } else { answer.not_shown.join("; ") };
        if answer.configuration.is_some() {
            tiles.push(("asked for and not shown", open, String::new()));
        }
        let changes = self.recommendation.as_ref().map_or(&[][..], |found| &found.changes);
        let tone = if answer.extent == Extent::Shown { Tone::Good } else { Tone::Plain };
        card(tone, &answer.line, answer.next.as_slice(), &tiles, ("What would change it", changes))
    }

    /// The report as one page.
    pub fn html(&self) -> String {
        let mut body = self.answer_card();
        body.push_str(&format!("<p class=\"faint\">Requirement: {}</p>\n", escape(&self.asked())));
        let drawn = self.charts();
        body.push_str(&format!("<h2>Top rate, msg/s</h2>\n{}", self.top_rates()));
        body.push_str(&chart::grid(&drawn));
        body.push_str(&self.adverse_bars());
        body.push_str(&format!("<h2>Configurations</h2>\n{}", self.overview().html()));
        body.push_str(&list("Why p99", &self.latency_reasons()));
        if let Some(recommendation) = &self.recommendation {
            let (open, out) = (self.open_lines(recommendation), self.rejected_lines(recommendation));
            for (title, lines) in [("Cheaper, and not shown", open), ("Out", out)] {
                if !lines.is_empty() {
                    body.push_str(&folded(&format!("{title}: {}", lines.len()), &items(&lines), false));
                }
            }
        }
        let mut boards = String::from("<div class=\"columns\">\n");
        for board in self.boards.iter().filter(|board| !board.rows.is_empty()) {
            let title = escape(&self.title(board.kind, board.volume.as_deref()));
            boards.push_str(&format!("<div><h3>{title}</h3>{}</div>\n", self.board_bars(board)));
        }
        body.push_str("<h2>Leaderboards</h2>\n");
        body.push_str(&boards);
        body.push_str("</div>\n");
        if !self.steps.is_empty() {
            body.push_str(&folded(
                &format!("All {} measurements", self.steps.len()),
                &self.steps_table().html(),
                false,
            ));
        }
        if let Some(check) = &self.check {
            body.push_str(&format!("<h2>Published figures checked</h2>\n<p>{}</p>\n", escape(&check.source)));
            body.push_str(&format!("<p>{}</p>\n", escape(&check_verdict(check))));
            body.push_str(&self.findings_table(check).html());
            for made in &check.boards {
                let scope = made.volume.as_deref().unwrap_or("all volumes");
                let title = format!("{scope}: {}", made.kind.title(check.target));
                body.push_str(&folded(&title, &self.three_roads(made, &check.findings).html(), false));
            }
        }
        body.push_str(&list("To be read with care", &self.doubts));
        let notes = [self.not_measured(), self.notes.clone()].concat();
        body.push_str(&list("Notes", &notes));
        page::page(self.source.as_deref().unwrap_or("Cluster sizing"), &body)
    }

    fn charts(&self) -> Vec<Chart> {
        let target = |step: &Step| Some(step.consumed);
        let p99 = |step: &Step| step.p99_ms;
        let required = Some((self.requirement.p99_ms, "required p99"));
        let (lines, tens) = (Scale::Linear, Scale::Log);
        let mut charts = vec![
            self.cost_against_rate(),
            self.over_targets("Throughput against target", ("consumed, msg/s", lines), Test::Rising, None, target),
            self.over_targets("Latency against target", ("p99 end to end, ms", tens), Test::Rising, required, p99),
        ];
        for test in ADVERSE.into_iter().filter(|test| !self.is_of_one_target(*test)) {
            let title = format!("Latency against target, {test}");
            charts.push(self.over_targets(&title, ("p99 end to end, ms", tens), test, required, p99));
        }
        let (cpu, disk) = (|step: &Step| step.cpu_percent, |step: &Step| step.disk_mib_s);
        let rising = Test::Rising;
        charts.push(self.over_targets("CPU against target", ("CPU of a node, %", lines), rising, None, cpu));
        charts.push(self.over_targets("Disk against target", ("written by a node, MiB/s", lines), rising, None, disk));
        charts.retain(|chart| !chart.is_empty());
        charts
    }

    /// Whether a test was made at one rate only: then there is nothing to draw a curve through.
    fn is_of_one_target(&self, test: Test) -> bool {
        let mut targets = self.steps.iter().filter(|step| step.test == test).map(|step| step.target);
        targets.next().is_none_or(|first| targets.all(|target| target == first))
    }

    /// Bars of the adverse tests that were made at one rate.
    fn adverse_bars(&self) -> String {
        let mut html = String::new();
        for test in ADVERSE.into_iter().filter(|test| self.is_of_one_target(*test)) {
            let mut bars = Vec::new();
            let mut target = 0.0;
            for (line, (hue, _)) in self.configurations.iter().zip(self.looks()) {
                let name = line.outcome.configuration.name();
                let is_its = |step: &&Step| step.test == test && line.outcome.configuration.is_of(step);
                for step in self.steps.iter().filter(is_its) {
                    target = step.target;
                    bars.extend(step.p99_ms.map(|p99| Bar::of(name.clone(), hue, p99)));
                }
            }
            let drawn = bars::html(&[Group { name: format!("{test} at {} msg/s", exact(target)), bars }], None);
            if !drawn.is_empty() {
                html.push_str(&format!("<div>{drawn}</div>\n"));
            }
        }
        match html.as_str() {
            "" => html,
            bars => {
                let within = exact(self.requirement.p99_ms);
                format!(
                    "<h2>p99 end to end while something goes wrong, ms</h2>\n<div class=\"columns\">\n{bars}</div>\n\
                         <p class=\"faint\">Within {within} ms is required.</p>\n"
                )
            }
        }
    }

    fn has_volumes(&self) -> bool {
        let volume = |line: &Line| line.outcome.configuration.volume.clone();
        self.configurations.iter().any(|line| volume(line) != volume(&self.configurations[0]))
    }

    /// Colour and stroke of each configuration.
    fn looks(&self) -> Vec<(Hue, Stroke)> {
        let names = |of: fn(&crate::results::Configuration) -> String| -> Vec<String> {
            self.configurations.iter().map(|line| of(&line.outcome.configuration)).collect()
        };
        if !self.has_volumes() {
            let names = names(|known| known.name());
            let hues = of_brokers(&names.iter().map(String::as_str).collect::<Vec<_>>());
            return hues.into_iter().map(|hue| (hue, Stroke::Solid)).collect();
        }
        let places = |names: Vec<String>| -> Vec<usize> {
            let place = |name: &String| names.iter().position(|other| other == name).unwrap_or(0);
            let firsts: Vec<usize> = names.iter().map(place).collect();
            let is_first = |at: usize| firsts[at] == at;
            firsts.iter().map(|first| (0..*first).filter(|at| is_first(*at)).count()).collect()
        };
        let strokes = [Stroke::Solid, Stroke::Dashed, Stroke::Dotted];
        let (volumes, clusters) =
            (places(names(|known| known.volume.clone())), places(names(|known| known.cluster.clone())));
        volumes
            .into_iter()
            .zip(clusters)
            .map(|(volume, cluster)| (Hue::nth(volume), strokes[cluster % strokes.len()]))
            .collect()
    }

    /// A curve for each configuration, in its colour.
    fn over_targets(
        &self,
        title: &str,
        y: (&str, Scale),
        test: Test,
        level: Option<(f64, &str)>,
        value: impl Fn(&Step) -> Option<f64>,
    ) -> Chart {
        let mut chart = Chart::new(title, ("target, msg/s", Scale::Linear), y).group("targets");
        if let Some((at, name)) = level {
            chart = chart.level(at, name);
        }
        for (line, (hue, stroke)) in self.configurations.iter().zip(self.looks()) {
            let name = line.outcome.configuration.name();
            let is_its = |step: &&Step| step.test == test && line.outcome.configuration.is_of(step);
            let points = self.steps.iter().filter(is_its).filter_map(|step| Some((step.target, Some(value(step)?))));
            chart.push(Series::new(name.clone(), hue, points).stroke(stroke));
        }
        chart
    }

    /// A leaderboard, each in the colour of its configuration.
    fn board_bars(&self, board: &Board) -> String {
        let bar = |(at, row): (usize, &Row)| {
            let is_it = |line: &&Line| {
                let known = &line.outcome.configuration;
                (&known.cluster, &known.volume) == (&row.cluster, &row.volume)
            };
            let hue =
                self.configurations.iter().zip(self.looks()).find(|(line, _)| is_it(line)).map(|(_, (hue, _))| hue);
            let name = match (&board.volume, row.cost) {
                (Some(_), None) => row.cluster.clone(),
                (None, None) => format!("{}/{}", row.cluster, row.volume),
                (Some(_), Some(_)) => format!("{} ({} msg/s)", row.cluster, exact(row.rate)),
                (None, Some(_)) => format!("{}/{} ({} msg/s)", row.cluster, row.volume, exact(row.rate)),
            };
            let told = row.cost.map_or_else(|| exact(row.rate), |cost| self.money(cost));
            let name = format!("{}. {name}", at + 1);
            Bar { told, ..Bar::of(name, hue.unwrap_or(Hue::nth(0)), row.cost.unwrap_or(row.rate)) }
        };
        let bars = board.rows.iter().enumerate().map(bar).collect();
        bars::html(&[Group { bars, ..Group::default() }], None)
    }

    /// A bar for each configuration, in groups of clusters.
    fn top_rates(&self) -> String {
        let mut groups: Vec<Group> = Vec::new();
        for (line, (hue, _)) in self.configurations.iter().zip(self.looks()) {
            let known = &line.outcome.configuration;
            let bar = Bar::of(known.volume.clone(), hue, line.outcome.top_rate);
            match groups.iter_mut().find(|group| group.name == known.cluster) {
                Some(group) => group.bars.push(bar),
                None => groups.push(Group { name: known.cluster.clone(), bars: vec![bar] }),
            }
        }
        bars::html(&groups, Some((self.requirement.rate, "msg/s are required")))
    }

    fn cost_against_rate(&self) -> Chart {
        let mut groups = Vec::new();
        for line in &self.configurations {
            let Some(month) = line.month else { continue };
            let known = &line.outcome.configuration;
            let fails = self.standing(line).iter().any(|(_, shown)| *shown == Shown::No);
            let word = format!("{}{}", known.cluster, if fails { " (fails)" } else { "" });
            let group = if self.has_volumes() { known.volume.clone() } else { known.name() };
            add_point(&mut groups, &group, (line.outcome.top_rate, month, word));
        }
        let title = "Cost against rate: right and low is better";
        dots(title, "top rate, msg/s", &format!("cost a month, {}", self.currency), &groups)
    }
}

//! One HTML file from one run or several: the answer first, then pictures, then tables; all in the
//! file, nothing from a network.
//!
//! Invariant: the report shows what was recorded and computes nothing new but ratios; a value that
//! was not measured is a dash.

mod answer;
mod charts;
mod figure;
mod glance;
mod rows;

use page::figures::{counted, numbers_apart, three};
use page::table::folded;
use page::{chart, escape, table, tile};
use time::UtcDateTime;

use crate::record::{Book, Recorded};

use figure::Figures;
use glance::Glance;
use rows::{are_comparable, compared, compared_rows, overview};

/// How many of a campaign's runs are not among those that its page shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmeasured {
    /// All that its file asks for.
    pub planned: usize,
    /// Could not be measured, or not to their end.
    pub failed: usize,
    /// Were not tried, or not by these builds.
    pub absent: usize,
}

impl Unmeasured {
    /// What is missing, where anything is.
    fn sentence(self) -> Option<String> {
        let runs = counted(self.planned, "run");
        let are = if self.absent == 1 { "is" } else { "are" };
        let missing = match (self.failed, self.absent) {
            (0, 0) => return None,
            (failed, 0) => format!("{failed} of {runs} could not be measured"),
            (0, absent) => format!("{absent} of {runs} {are} not measured yet"),
            (failed, absent) => format!("{failed} of {runs} could not be measured, {absent} {are} not measured yet"),
        };
        Some(format!("{missing}; what follows is of what was measured."))
    }

    /// A page of which something is missing is not good, and one of runs that were tried in vain is bad.
    fn tone(self, of_measured: tile::Tone) -> tile::Tone {
        match (self.failed, self.absent, of_measured) {
            (0, 0, tone) => tone,
            (0, _, tile::Tone::Good) => tile::Tone::Plain,
            (0, _, tone) => tone,
            _ => tile::Tone::Bad,
        }
    }
}

/// The report as one file. `foreword` is HTML that stands behind the answer.
pub fn html(title: &str, book: &Book, foreword: &str) -> String {
    of_campaign(title, book, foreword, Unmeasured::default())
}

/// The same of a campaign, of which runs may be missing: then that is said first.
pub fn of_campaign(title: &str, book: &Book, foreword: &str, unmeasured: Unmeasured) -> String {
    let (runs, behind) = parted(&book.runs);
    let (runs, behind) = (&runs[..], &behind[..]);
    let groups = compared(runs);
    let is_one_group = groups.is_none() && are_comparable(runs);
    let glance = groups.as_deref().and_then(Glance::of);
    let figures = Figures::of(&book.figures);
    let all = [runs, behind].concat();
    let (tone, mut first, mut more) = answered((runs, behind), groups.is_some(), glance.as_ref(), &figures);
    if let Some(missing) = unmeasured.sentence() {
        more.insert(0, std::mem::replace(&mut first, missing));
    }
    let mut body = tile::answer(unmeasured.tone(tone), &first, &more);
    body.push_str(&tile::tiles(&match &glance {
        Some(glance) => glance.tiles(runs),
        None if runs.is_empty() => figures.tiles(behind),
        None => answer::tiles(runs, is_one_group),
    }));
    body.push_str(foreword);
    let mut parts = figures.parts();
    if let (None, Some(groups)) = (&glance, &groups) {
        parts.extend(groups.iter().enumerate().map(|(at, (name, _))| (format!("part-{at}"), name.clone())));
    }
    if parts.len() > 2 {
        body.push_str(&glance::contents(&parts));
    }
    if let Some(glance) = &glance {
        body.push_str(&glance.html());
    }
    body.push_str(&figures.html());
    let is_overviewed = runs.len() > 2 && glance.is_none();
    match &groups {
        None => {
            let (drawn, figures) = section(runs, "all");
            let all = if is_overviewed { overview_table(runs, "All runs", true) } else { String::new() };
            body.push_str(&(drawn + &all + &figures));
        }
        Some(groups) => {
            if is_overviewed {
                body.push_str(&overview_table(runs, "All runs", true));
            }
            groups.iter().enumerate().for_each(|(at, (scenario, runs))| {
                body.push_str(&glance.as_ref().map_or(String::new(), |glance| glance.pictures(at)));
                body.push_str(&format!("<h2 id=\"part-{at}\">{}</h2>\n", escape(scenario)));
                let explained = answer::explained(runs);
                if runs.len() > 1 || !explained.is_empty() {
                    let (tone, sentence) = answer::sentence(runs, true);
                    let more = [answer::differences(runs, true), explained].concat();
                    body.push_str(&tile::answer(tone, &sentence, &more));
                }
                if runs.len() > 1 {
                    body.push_str(&tile::tiles(&answer::tiles(runs, true)));
                }
                let (drawn, figures) = section(runs, scenario);
                body.push_str(&(drawn + &figures));
            });
        }
    }
    if !behind.is_empty() {
        body.push_str(&overview_table(behind, "The runs behind the figures, tries among them", false));
    }
    body.push_str(&folded("How it was measured", &appendix(&all), false));
    page::page(title, &body)
}

/// The answer, figures and tables in Markdown.
pub fn markdown(book: &Book) -> String {
    let (runs, behind) = parted(&book.runs);
    let groups = compared(&runs);
    let glance = groups.as_deref().and_then(Glance::of);
    let (_, first, more) = answered((&runs, &behind), groups.is_some(), glance.as_ref(), &Figures::of(&book.figures));
    let mut text = format!("**{first}**\n\n");
    more.iter().for_each(|line| text.push_str(&format!("{line}\n\n")));
    text.extend(book.figures.iter().map(figure::markdown));
    text.push_str(&rows::markdown(&runs));
    if !behind.is_empty() {
        text.push_str(&rows::overview_markdown(&behind));
    }
    text
}

/// What is said first, and what stands behind it.
fn answered(
    (runs, behind): (&[Recorded], &[Recorded]),
    is_grouped: bool,
    glance: Option<&Glance<'_>>,
    figures: &Figures<'_>,
) -> (tile::Tone, String, Vec<String>) {
    let is_one_group = !is_grouped && are_comparable(runs);
    let all = [runs, behind].concat();
    let (tone, verdict) = match behind {
        [] => answer::sentence(runs, is_one_group),
        _ => (answer::tone(&all), format!("{}.", answer::passed_of(&all))),
    };
    let mut sentences = glance.map(Glance::sentences).unwrap_or_default();
    sentences.extend(figures.sentences());
    sentences.push(verdict);
    let first = sentences.remove(0);
    if is_one_group || glance.is_some() {
        sentences.extend(answer::differences(runs, is_one_group));
    }
    sentences.extend(answer::beside(&all, is_grouped));
    (tone, first, sentences)
}

/// The runs that are shown, and those that figures were made of. Runs that only prepared another one
/// are neither, where there is anything else.
fn parted(runs: &[Recorded]) -> (Vec<Recorded>, Vec<Recorded>) {
    let shown =
        |recorded: &&Recorded| !recorded.run.is_preparation || runs.iter().all(|other| other.run.is_preparation);
    let mut runs: Vec<Recorded> = runs.iter().filter(shown).cloned().collect();
    by_rate(&mut runs);
    runs.into_iter().map(readable).partition(|recorded| !recorded.is_of_figure)
}

/// Runs of one broker at several rates, which nobody gave a workload's name, are told apart by their rates:
/// a broker is not faster than another because more was asked of it.
fn by_rate(runs: &mut [Recorded]) {
    let asked = |recorded: &Recorded| (recorded.run.label.clone(), recorded.run.target_per_s);
    let is_plain = |recorded: &&Recorded| recorded.run.scenario.is_empty();
    let plain: Vec<(String, Option<f64>)> = runs.iter().filter(is_plain).map(asked).collect();
    if plain.iter().any(|one| plain.iter().any(|other| other.0 == one.0 && other.1 != one.1)) {
        for run in runs.iter_mut().map(|recorded| &mut recorded.run).filter(|run| run.scenario.is_empty()) {
            run.scenario =
                run.target_per_s.map_or("as fast as it goes".to_owned(), |rate| format!("{} msg/s", three(rate)));
        }
    }
}

/// A run whose workload is named with numbers as everywhere on a page.
fn readable(mut recorded: Recorded) -> Recorded {
    let run = &mut recorded.run;
    let (name, step) = run.name_and_step();
    run.label = format!("{name} {}", numbers_apart(step)).trim().to_owned();
    run.scenario = numbers_apart(&run.scenario);
    recorded
}

/// The charts and the table of runs that are compared with each other. `group` is what moves
/// together.
fn section(runs: &[Recorded], group: &str) -> (String, String) {
    if runs.is_empty() {
        return (String::new(), String::new());
    }
    let are_comparable = are_comparable(runs);
    let (heads, rows) = compared_rows(runs, are_comparable);
    let table = folded("All figures", &table::html(&heads, &rows), are_comparable);
    (chart::grid(&charts::charts(runs, group)), table)
}

/// A table with a row for each run, behind a fold.
fn overview_table(runs: &[Recorded], title: &str, is_open: bool) -> String {
    let (heads, rows) = overview(runs);
    folded(title, &table::html(&heads, &rows), is_open)
}

fn appendix(runs: &[Recorded]) -> String {
    let mut text = String::new();
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
    let at = UtcDateTime::from_unix_timestamp(seconds as i64).unwrap_or(UtcDateTime::UNIX_EPOCH);
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", at.hour(), at.minute())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Figures;
    use crate::record::{Figure, Interval, Latency, Run};

    fn book(runs: &[Recorded]) -> Book {
        Book { runs: runs.to_vec(), figures: Vec::new() }
    }

    pub(super) fn recorded(label: &str, p99: f64) -> Recorded {
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
            end_to_end: Some(Latency {
                figures: figures.clone(),
                curve: vec![(0.0, 1.0), (50.0, p99 / 3.0), (99.0, p99)],
            }),
            by_size: vec![(10, figures.clone()), (1000, figures.clone())],
            ..Run::default()
        };
        Recorded { run, intervals: (1..5).map(interval).collect(), is_of_figure: false }
    }

    fn page_of(runs: &[Recorded]) -> String {
        html("x", &book(runs), "")
    }

    #[test]
    fn a_campaign_of_which_runs_are_missing_says_so_first_and_is_not_good() {
        let runs = book(&[recorded("Leveret", 4.0), recorded("RabbitMQ", 9.0)]);
        let begins = |failed: usize, absent: usize| {
            let page = of_campaign("x", &runs, "", Unmeasured { planned: 4, failed, absent });
            let (_, answer) = page.split_once("<section class=\"answer ").expect("a page has an answer");
            answer.split_once("</p>").expect("the first line ends").0.to_owned()
        };
        let said = |tone: &str, line: &str| {
            format!("{tone}\"><p class=\"first\">{line}; what follows is of what was measured.")
        };
        assert_eq!(begins(2, 0), said("bad", "2 of 4 runs could not be measured"));
        assert_eq!(begins(1, 1), said("bad", "1 of 4 runs could not be measured, 1 is not measured yet"));
        assert_eq!(begins(0, 2), said("plain", "2 of 4 runs are not measured yet"));
        assert!(begins(0, 0).starts_with("good\"><p class=\"first\">All 2 runs passed;"), "{}", begins(0, 0));
        let page = of_campaign("x", &runs, "", Unmeasured { planned: 4, failed: 2, absent: 0 });
        assert!(page.contains("<p>All 2 runs passed;"), "what was measured is told behind it");
    }

    #[test]
    fn a_report_answers_first_then_draws_and_then_has_its_tables_folded() {
        let page = page_of(&[recorded("Leveret", 4.0)]);
        let places: Vec<Option<usize>> = [
            "class=\"answer good\"",
            "<section class=\"tile\"><h3>messages a second</h3>",
            "<h3>p99 end to end</h3>",
            "<svg class=\"spark\"",
            "<h3>lost / reordered / corrupt</h3>",
            "<h3>CPU and memory of the broker</h3>",
            "<figure class=\"chart\">",
            "<details><summary>All figures</summary>",
            "<details><summary>How it was measured</summary>",
        ]
        .iter()
        .map(|part| page.find(part))
        .collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    }

    #[test]
    fn a_report_shows_both_runs_with_their_ratio_the_best_and_what_else_differs() {
        let mut runs = [recorded("Leveret", 4.0), recorded("Rabbit & Co", 400.0)];
        let page = html("A <b> comparison", &book(&runs), "<p>a word before</p>");
        assert!(page.contains("A &lt;b&gt; comparison") && page.contains("Rabbit &amp; Co"));
        assert!(page.matches("class=\"chart\"").count() >= 4 && page.contains("<p>a word before</p>"));
        let head = "<tr><th></th><th>Leveret</th><th>Rabbit &amp; Co</th><th>Rabbit &amp; Co to Leveret</th></tr>";
        let row = "<tr><td>p99</td><td class=\"win\">4.00</td><td>400</td><td>100×</td></tr>";
        for part in [head, row, "<details open><summary>All figures"] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(!page.contains("differ:"));
        runs[1].run.machine.cores = 64;
        assert!(page_of(&runs).contains("Machines differ: "));
        // Each has its column of three words where there are more than two, and one that failed is
        // the best at nothing.
        runs[0].run.missed.push("3 lost".to_owned());
        let three = page_of(&[runs[0].clone(), runs[1].clone(), recorded("third", 8.0)]);
        assert!(three.contains("<td>4.00</td><td>400 (100×)</td><td class=\"win\">8.00 (2.00×)</td>"), "{three}");
    }

    #[test]
    fn figures_come_first_and_what_prepared_a_run_is_not_compared_with_it() {
        let mut runs = [recorded("filling", 4.0), recorded("cell", 4.0), recorded("other", 4.0)];
        runs[0].run.is_preparation = true;
        runs.iter_mut().for_each(|recorded| recorded.run.made_by = "leveret bench scenario 'x'".to_owned());
        let figures = vec![Figure { title: "Figure 1".to_owned(), ..Figure::default() }];
        let book = Book { runs: runs.to_vec(), figures };
        let (page, text) = (html("x", &book, ""), markdown(&book));
        for told in [&page, &text] {
            assert!(told.contains("cell") && !told.contains("filling"), "{told}");
        }
        assert!(page.find("<h2>Figure 1") < page.find("<figure class=\"chart\""), "{page}");
        assert!(text.starts_with("**All 2 runs passed") && text.find("Figure 1") < text.find("| p99 |"), "{text}");
        assert_eq!(page.matches("<pre>leveret bench scenario &#39;x&#39;</pre>").count(), 1, "{page}");
        assert!(page_of(&runs[..1]).contains("filling"));
    }

    #[test]
    fn where_a_backlog_stands_the_rate_is_that_of_the_confirms() {
        let mut runs = [recorded("standing", 4.0), recorded("b", 4.0), recorded("c", 4.0)];
        let run = &mut runs[0].run;
        run.confirm = run.end_to_end.take();
        (run.confirmed_per_s, run.received_per_s) = (Some(14_949.0), Some(18_100.0));
        let text = markdown(&book(&runs));
        assert!(text.contains("| standing (latency of confirms) | 14,900 |"), "{text}");
        assert!(text.contains("| b (latency end to end) |"), "{text}");
        assert!(
            markdown(&book(&[runs[1].clone(), runs[2].clone(), runs[2].clone()])).contains("| end to end p99 ms |")
        );
    }

    #[test]
    fn a_run_that_fell_behind_is_not_called_passed() {
        let mut run = recorded("Leveret", 4.0);
        run.run.not_asked = vec!["p99 (--require-p99-ms)".to_owned()];
        let page = page_of(&[run.clone()]);
        assert!(page.contains("answer good") && page.contains("Not asked for: p99 (--require-p99-ms)."), "{page}");
        run.run.missed = vec!["508 of 4,000 messages a second".to_owned()];
        run.run.backlog_grew = true;
        let page = page_of(&[run]);
        assert!(page.contains("Leveret fell behind: 508 of 4,000") && page.contains("answer bad"), "{page}");
    }

    #[test]
    fn each_table_and_each_picture_of_a_latency_says_of_what_it_is() {
        let mut run = recorded("Leveret", 4.0);
        run.run.confirm = run.run.end_to_end.clone();
        run.intervals.iter_mut().for_each(|interval| interval.confirm = interval.end_to_end.clone());
        let summary = crate::screen::summary(&run.run);
        let rows: Vec<&str> =
            summary.lines().filter(|line| line.contains("p99")).map(|line| line[2..].trim()).collect();
        for (row, name) in rows.iter().zip(["confirm ", "end to end ", "end to end, 10 B ", "end to end, 1000 B "]) {
            assert!(row.starts_with(name), "{row:?} is not named {name:?}");
        }
        let page = page_of(&[run.clone()]);
        let headings = page.split("<h3>").skip(1).chain(page.split("<figcaption><b>").skip(1));
        let headings: Vec<&str> = headings.filter_map(|part| part.split('<').next()).collect();
        for name in
            ["p99 end to end", "End to end over time", "Publish to confirm over time", "End to end by size of the body"]
        {
            assert!(headings.contains(&name), "{name} is not among {headings:?}");
        }
        let groups: Vec<&str> = page.split("class=\"group\" colspan=\"2\">").skip(1).collect();
        let named = |name: &str| groups.iter().any(|group| group.starts_with(name) && group.contains("<td>p99</td>"));
        assert!(named("end to end, ms<") && named("publish to confirm, ms<"), "{groups:?}");
        let three = [run.clone(), run.clone(), run];
        assert!(page_of(&three).contains("<th>end to end p99 ms</th>"), "and so does the table of many runs");
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
        let report = page_of(&runs);
        for heading in ["<h2 id=\"part-0\">s: fast</h2>", "<h2 id=\"part-1\">s: slow</h2>"] {
            assert_eq!(report.matches(heading).count(), 1, "{heading}");
        }
        let section = report.split(">s: slow</h2>").nth(1).and_then(|rest| rest.split("<h2").next());
        let section = section.expect("a section of its own");
        assert!(section.contains("<th>Leveret</th><th>RabbitMQ</th><th>RabbitMQ to Leveret</th>"), "{section}");
        let text = markdown(&book(&runs));
        assert!(text.contains("## s: fast\n\n|  | Leveret | RabbitMQ | RabbitMQ to Leveret |\n"), "{text}");
        // Runs that nothing can be compared with stay in one table.
        let alone = page_of(&runs[..2]);
        assert!(!alone.contains("<h2>s:") && alone.contains("<th>Leveret fast</th><th>Leveret slow</th>"));
    }

    #[test]
    fn files_of_one_broker_at_several_rates_are_compared_rate_by_rate() {
        let of = |label: &str, rate: f64, held: f64| {
            let mut recorded = recorded(label, 4.0);
            (recorded.run.target_per_s, recorded.run.received_per_s) = (Some(rate), Some(held));
            (recorded.run.backlog_grew, recorded.run.missed) = (held < rate, Vec::new());
            recorded.run.missed.extend((held < rate).then(|| "it fell behind".to_owned()));
            recorded
        };
        let both = |rate, held| [of("Leveret", rate, rate), of("RabbitMQ", rate, held)];
        let runs = [both(1000.0, 1000.0), both(5000.0, 5000.0), both(30_000.0, 17_300.0)].concat();
        let told =
            "Held: Leveret 30,000 msg/s (p99 4 ms), the highest tried; RabbitMQ 5,000 msg/s (p99 4 ms), not 30,000.";
        let (page, text) = (page_of(&runs), markdown(&book(&runs)));
        assert!(page.contains(told) && text.starts_with(&format!("**{told}**")), "{text}");
        assert!(text.contains("## 30,000 msg/s\n\n|  | Leveret | RabbitMQ |"), "{text}");
        // Two runs that differ by their rate, each of its own broker, are compared, and the page says so.
        assert!(page_of(&[runs[0].clone(), runs[3].clone()]).contains("Rates asked for differ: "));
    }

    #[test]
    fn nothing_measured_is_a_dash_and_no_chart() {
        let report = page_of(&[Recorded::default()]);
        assert!(report.contains("–") && !report.contains("NaN"));
    }
}

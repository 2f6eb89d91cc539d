//! The report: everything that follows from results, prices and published boards, as one value; and
//! as text.
//!
//! Invariant: text, HTML and JSON show the same value, so they cannot disagree.

use std::fmt::Write as _;

use serde::Serialize;

use page::figures::{exact, three};
use page::table::Table;

use crate::answer::{Answer, Extent, Question};
use crate::board::{Board, Kind, boards, cost_per_thousand, whole};
use crate::check::{BoardCheck, Check, Fault, Finding, check};
use crate::outcome::{Outcome, outcomes};
use crate::prices::{Basis, PriceList};
use crate::published::Published;
use crate::recommend::{Candidate, Recommendation, recommend, standing};
use crate::requirement::Requirement;
use crate::results::{Configuration, Results, Skipped, Step};

/// A configuration with everything that was found out about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Measured.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// A month of it, machines at the price of one.
    pub month: Option<f64>,
    /// Cost of 1000 msg/s a month at its top rate.
    pub cost_at_top: Option<f64>,
    /// The same at the required rate, where it holds that.
    pub cost_at_target: Option<f64>,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was shown of it all, and what to measure next.
    pub answer: Answer,
    /// Where the measurements come from.
    pub source: Option<String>,
    /// What was asked for.
    pub requirement: Requirement,
    /// Sign of the currency.
    pub currency: String,
    /// Configurations in the order of the file.
    pub configurations: Vec<Line>,
    /// Leaderboards, at corrected prices.
    pub boards: Vec<Board>,
    /// Measurements, for the charts.
    pub steps: Vec<Step>,
    /// What could not be measured.
    pub skipped: Vec<Skipped>,
    /// Published figures checked.
    pub check: Option<Check>,
    /// What to take; absent without prices.
    pub recommendation: Option<Recommendation>,
    /// Measurements that look odd, each with what may be behind it.
    pub doubts: Vec<String>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// Makes the report. The error is one line that names file, line and field where there is one.
pub fn report(
    results: &Results,
    prices: Option<&PriceList>,
    published: Option<&Published>,
    requirement: &Requirement,
) -> Result<Report, String> {
    let all = outcomes(results, requirement);
    if let Some(prices) = prices {
        for configuration in &results.configurations {
            let unpriced = |why: String| format!("{}:{}: cluster: {why}", results.file, configuration.line);
            prices.month(configuration, Basis::Corrected).map_err(unpriced)?;
            let contradicts = |why: String| format!("{}:{}: vcpus: {why}", results.file, configuration.line);
            prices.same_vcpus(configuration).map_err(contradicts)?;
        }
    }
    let month = |configuration: &Configuration| -> Result<Option<f64>, String> {
        prices.map(|prices| prices.month(configuration, Basis::Corrected)).transpose()
    };
    let mut configurations = Vec::new();
    for outcome in &all {
        let month = month(&outcome.configuration)?;
        let holds = outcome.holds_rate == crate::outcome::Shown::Yes;
        configurations.push(Line {
            month,
            cost_at_top: month.map(|month| cost_per_thousand(month, outcome.top_rate)),
            cost_at_target: month.filter(|_| holds).map(|month| cost_per_thousand(month, requirement.rate)),
            outcome: outcome.clone(),
        });
    }
    let check = match (published, prices) {
        (Some(published), Some(prices)) => {
            // Boards are checked at the target they were published for, whatever is asked for here.
            let at_target = Requirement { rate: published.target, ..*requirement };
            Some(check(published, &outcomes(results, &at_target), prices, &at_target)?)
        }
        (Some(published), None) => {
            return Err(format!("{}: its costs cannot be checked without --prices", published.file));
        }
        (None, _) => None,
    };
    let mut notes: Vec<String> = results.notes.clone();
    notes.extend(results.header.note.clone());
    for configuration in &results.configurations {
        notes.extend(configuration.note.as_ref().map(|note| format!("{}: {note}", configuration.name())));
    }
    for configuration in &results.configurations {
        if !all.iter().any(|outcome| outcome.configuration == *configuration) {
            notes.push(format!("{}: nothing was measured of it", configuration.name()));
        }
    }
    if prices.is_none() {
        notes.push("no price file was given: no costs, no recommendation".to_owned());
    }
    let currency = prices.map_or("$", |prices| &prices.currency).to_owned();
    let recommendation = prices.map(|prices| recommend(results, prices, requirement)).transpose()?;
    let money = |amount: f64| money(&currency, amount);
    let is_whole = results.is_complete || results.header.plan.is_none();
    let question = Question {
        is_whole,
        is_a_miss_doubted: crate::doubt::is_a_miss_doubted(results),
        all: &all,
        requirement,
        recommendation: recommendation.as_ref(),
        money: &money,
    };
    Ok(Report {
        answer: question.answer(),
        source: results.header.source.clone(),
        requirement: *requirement,
        currency: currency.clone(),
        boards: boards(&all, prices.map(|prices| (prices, Basis::Corrected)), requirement)?,
        configurations,
        steps: results.steps.clone(),
        skipped: results.skipped.clone(),
        check,
        recommendation,
        doubts: crate::doubt::doubts(results),
        notes,
    })
}

/// A part of the text with its heading; nothing where there are no lines.
pub(crate) fn section(text: &mut String, heading: &str, lines: &[String]) {
    if !lines.is_empty() {
        write!(text, "\n{heading}\n  {}\n", lines.join("\n  ")).expect(WRITES);
    }
}

impl Report {
    /// The report as JSON, one document.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("the report holds text, finite numbers and flags");
        text.push('\n');
        text
    }

    /// The report for a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let source = self.source.as_deref().unwrap_or("Cluster sizing");
        writeln!(text, "{}", self.answer.line).expect(WRITES);
        if let Some(next) = &self.answer.next {
            writeln!(text, "{next}").expect(WRITES);
        }
        writeln!(text, "\n{source}\nRequirement: {}\n", self.asked()).expect(WRITES);
        text.push_str(&self.overview().text(""));
        section(&mut text, "Why p99", &self.latency_reasons());
        for board in &self.boards {
            // The check below shows the same board, corrected, beside the published one.
            let is_below = |made: &BoardCheck| made.kind == board.kind && made.volume == board.volume;
            if board.rows.is_empty() || self.check.as_ref().is_some_and(|check| check.boards.iter().any(is_below)) {
                continue;
            }
            writeln!(text, "\n{}", self.title(board.kind, board.volume.as_deref())).expect(WRITES);
            text.push_str(&self.board_table(board).text("  "));
        }
        if let Some(check) = &self.check {
            self.check_text(check, &mut text);
        }
        if let Some(recommendation) = &self.recommendation {
            section(&mut text, "Recommendation", &self.recommendation_lines(recommendation));
        }
        section(&mut text, "To be read with care", &self.doubts);
        section(&mut text, "Not measured", &self.not_measured());
        section(&mut text, "Notes", &self.notes);
        text
    }

    /// What was planned and could not be measured.
    pub(crate) fn not_measured(&self) -> Vec<String> {
        let told = |Skipped { cluster, volume, test, target, why }: &Skipped| {
            format!("{cluster}/{volume} {test} at {}: {why}", exact(*target))
        };
        self.skipped.iter().map(told).collect()
    }

    /// What each configuration's p99 is made of, where that is known.
    pub(crate) fn latency_reasons(&self) -> Vec<String> {
        let reason = |line: &Line| {
            Some(format!("{}: {}", line.outcome.configuration.name(), line.outcome.latency_reason.as_ref()?))
        };
        self.configurations.iter().filter_map(reason).collect()
    }

    /// The requirement in words.
    pub fn asked(&self) -> String {
        let Requirement { rate, p99_ms, lose_node, backlog_rate } = self.requirement;
        let mut asked = format!("{} msg/s with p99 within {} ms", exact(rate), exact(p99_ms));
        if lose_node {
            asked.push_str(", also with one node lost");
        }
        if let Some(rate) = backlog_rate {
            write!(asked, ", and a backlog at {} msg/s that publishers do not feel", exact(rate)).expect(WRITES);
        }
        asked
    }

    /// What a board is called.
    pub(crate) fn title(&self, kind: Kind, volume: Option<&str>) -> String {
        let title = kind.title(self.requirement.rate);
        format!("{}: {title}", volume.unwrap_or("all volumes"))
    }

    /// One line a configuration.
    pub(crate) fn overview(&self) -> Table {
        let mut table = Table::new(
            "configuration | >a month | >held, msg/s | >short of | >top rate | >1,000 msg/s at top | >at target | \
             end to end at the rate, ms | rate | p99 | node lost | backlog",
        );
        for line in &self.configurations {
            let outcome = &line.outcome;
            let money = |amount: Option<f64>| amount.map_or("-".to_owned(), |amount| self.money(amount));
            let maybe_rate = |known: Option<f64>| known.map_or("-".to_owned(), exact);
            let latency = match (&outcome.latency, outcome.p99_below_ms) {
                (Some(latency), _) => {
                    let all = latency.percentiles.iter().map(|(name, value)| format!("{name} {}", three(*value)));
                    all.collect::<Vec<_>>().join(" ")
                }
                (None, Some(bound)) => format!("p99 below {}", exact(bound)),
                (None, None) => "-".to_owned(),
            };
            let shown =
                |is_asked: bool, shown: crate::outcome::Shown| if is_asked { shown.word() } else { "-" }.to_owned();
            table.row(vec![
                outcome.configuration.name(),
                money(line.month),
                maybe_rate(outcome.held),
                maybe_rate(outcome.short_of),
                exact(outcome.top_rate),
                money(line.cost_at_top),
                money(line.cost_at_target),
                latency,
                outcome.holds_rate.word().to_owned(),
                outcome.holds_p99.word().to_owned(),
                shown(self.requirement.lose_node, outcome.holds_loss),
                shown(self.requirement.backlog_rate.is_some(), outcome.holds_backlog),
            ]);
        }
        table.leave_out_unknown();
        table
    }

    /// One line a measurement, with what its latency is made of.
    pub(crate) fn steps_table(&self) -> Table {
        let mut table = Table::new(
            "configuration | test | >target | >received, msg/s | >end to end p50, ms | >p99 | >p99.9 | why p99",
        );
        for step in &self.steps {
            let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), three);
            let known = self.configurations.iter().map(|line| &line.outcome.configuration);
            let known = known.into_iter().find(|known| known.is_of(step));
            table.row(vec![
                format!("{}/{}", step.cluster, step.volume),
                step.test.to_string(),
                exact(step.target),
                three(step.consumed),
                ms(step.p50_ms),
                ms(step.p99_ms),
                ms(step.p999_ms),
                known.and_then(|known| crate::reason::of(step, known)).unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        table
    }

    /// A leaderboard as a table.
    pub(crate) fn board_table(&self, board: &Board) -> Table {
        let mut table = Table::new("> | cluster | >msg/s | >cost");
        if !board.kind.is_cost() {
            table.leave_out("cost");
        }
        for (at, row) in board.rows.iter().enumerate() {
            let name = match board.volume {
                Some(_) => row.cluster.clone(),
                None => format!("{}/{}", row.cluster, row.volume),
            };
            let mut cells = vec![(at + 1).to_string(), name, exact(row.rate)];
            if board.kind.is_cost() {
                cells.push(row.cost.map_or("-".to_owned(), |cost| self.money(cost)));
            }
            table.row(cells);
        }
        table
    }

    /// The three roads to a board beside each other.
    pub(crate) fn three_roads(&self, made: &BoardCheck, findings: &[Finding]) -> Table {
        let mut table = Table::new("> | published | > |  | from rates and totals | > | corrected | >");
        let name = |cluster: &str, volume: &str| match made.volume {
            Some(_) => cluster.to_owned(),
            None => format!("{cluster}/{volume}"),
        };
        let figure = |board: &Board, at: usize| match board.rows.get(at) {
            Some(row) => {
                (name(&row.cluster, &row.volume), row.cost.map_or_else(|| exact(row.rate), |cost| self.money(cost)))
            }
            None => (String::new(), String::new()),
        };
        let rows = made.published.len().max(made.recomputed.rows.len()).max(made.corrected.rows.len());
        for at in 0..rows {
            let published = made.published.get(at);
            let (recomputed, recomputed_figure) = figure(&made.recomputed, at);
            let (corrected, corrected_figure) = figure(&made.corrected, at);
            let (cell, cell_figure, mark) = match published {
                Some(cell) => {
                    let cost = cell.cost.filter(|_| made.kind.is_cost()).map(|cost| self.money(cost));
                    let of_cell = findings.iter().find(|finding| {
                        finding.board == Some(made.kind)
                            && finding.cell == cell.cluster
                            && finding.volume.as_deref() == Some(&cell.volume)
                            && finding.published.is_some()
                    });
                    let mark = of_cell.map_or("", |finding| finding.fault.mark());
                    let figure = cost.or(cell.rate.map(exact)).unwrap_or_default();
                    (name(&cell.cluster, &cell.volume), figure, mark)
                }
                None => (String::new(), String::new(), ""),
            };
            table.row(vec![
                (at + 1).to_string(),
                cell,
                cell_figure,
                mark.to_owned(),
                recomputed,
                recomputed_figure,
                corrected,
                corrected_figure,
            ]);
        }
        table
    }

    fn check_text(&self, check: &Check, text: &mut String) {
        writeln!(text, "\nPublished figures checked: {}", check.source).expect(WRITES);
        for made in &check.boards {
            let title = made.kind.title(check.target);
            writeln!(text, "\n  {}: {title}", made.volume.as_deref().unwrap_or("all volumes")).expect(WRITES);
            text.push_str(&self.three_roads(made, &check.findings).text("    "));
        }
        writeln!(text, "\n{}", check_verdict(check)).expect(WRITES);
        text.push_str(&self.findings_table(check).text("  "));
    }

    /// Every finding with its reason.
    pub(crate) fn findings_table(&self, check: &Check) -> Table {
        let mut table = Table::new("where | cell | >published | >right | why");
        for finding in &check.findings {
            let is_money = finding.fault == Fault::Price || finding.board.is_some_and(Kind::is_cost);
            let figure = |figure: Option<f64>| match figure {
                None => "-".to_owned(),
                Some(amount) if is_money => self.money(amount),
                Some(amount) => exact(amount),
            };
            let place = match (finding.board, finding.fault) {
                (_, Fault::Price) => "prices".to_owned(),
                (_, Fault::Sentence) => "sentence".to_owned(),
                (Some(kind), _) => format!("{} {}", finding.volume.as_deref().unwrap_or("all"), kind_word(kind)),
                (None, _) => "-".to_owned(),
            };
            table.row(vec![
                place,
                finding.cell.clone(),
                figure(finding.published),
                figure(finding.corrected),
                finding.why.clone(),
            ]);
        }
        table
    }

    /// What stands behind the answer, as sentences.
    fn recommendation_lines(&self, recommendation: &Recommendation) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(name) = self.answer.configuration.as_ref().filter(|_| self.answer.extent != Extent::Nothing) {
            lines.push(format!("{name} is the cheapest that held the rate and fails nothing asked for."));
        }
        if !recommendation.open.is_empty() {
            lines.push("Cheaper, and not shown:".to_owned());
        }
        lines.extend(self.open_lines(recommendation).into_iter().map(|line| format!("  {line}")));
        if let Some(candidate) = &recommendation.runner_up {
            lines.push(format!("Next: {}.", self.describe(candidate)));
        }
        if !recommendation.rejected.is_empty() {
            lines.push("Out:".to_owned());
        }
        lines.extend(self.rejected_lines(recommendation).into_iter().map(|line| format!("  {line}")));
        if !recommendation.changes.is_empty() {
            lines.push("What would change it:".to_owned());
        }
        lines.extend(recommendation.changes.iter().map(|change| format!("  {change}")));
        lines
    }

    fn describe(&self, candidate: &Candidate) -> String {
        format!("{} at {} a month", candidate.name, self.money(candidate.month))
    }

    /// Those that are cheaper and not shown, each with what was not measured.
    pub(crate) fn open_lines(&self, recommendation: &Recommendation) -> Vec<String> {
        let line = |candidate: &Candidate| format!("{}: {}", self.describe(candidate), candidate.not_shown.join("; "));
        recommendation.open.iter().map(line).collect()
    }

    /// Those that are out, each with what it fails.
    pub(crate) fn rejected_lines(&self, recommendation: &Recommendation) -> Vec<String> {
        let rejected = recommendation.rejected.iter();
        rejected.map(|rejected| format!("{} fails {}", rejected.name, rejected.fails.join("; "))).collect()
    }

    /// Money with the currency of the price file.
    pub(crate) fn money(&self, amount: f64) -> String {
        money(&self.currency, amount)
    }

    /// How a configuration stands to each condition, for a chart or a list.
    pub(crate) fn standing(&self, line: &Line) -> Vec<(String, crate::outcome::Shown)> {
        standing(&line.outcome, &self.requirement)
    }
}

const WRITES: &str = "a String takes everything";

/// Money in whole units; small sums, which a small machine has, to the hundredth.
pub(crate) fn money(currency: &str, amount: f64) -> String {
    match amount {
        amount if amount < 10.0 && amount.fract() != 0.0 => format!("{currency}{amount:.2}"),
        amount => format!("{currency}{}", exact(whole(amount))),
    }
}

/// How many cells follow and how many do not.
pub(crate) fn check_verdict(check: &Check) -> String {
    let of = |fault: Fault| check.findings.iter().filter(|finding| finding.fault == fault).count();
    format!(
        "{} cells compared. Not following from the published rates and totals: {}; following from a wrong total: {}; wrong totals: {}; \
         boards in another order: {}; sentences in doubt: {}; measurements in doubt: {}.",
        check.cells,
        of(Fault::DoesNotFollow) + of(Fault::Contradiction),
        of(Fault::RestsOnWrongPrice),
        of(Fault::Price),
        of(Fault::Order),
        of(Fault::Sentence),
        of(Fault::Doubtful),
    )
}

fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Matched => "matched",
        Kind::TopRate => "top rate",
        Kind::CostAtTop => "cost at top",
        Kind::CostAtTarget => "cost at target",
    }
}

impl Fault {
    /// The word beside a cell.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Fault::DoesNotFollow => "does not follow",
            Fault::RestsOnWrongPrice => "rests on a wrong total",
            Fault::Contradiction => "contradicts",
            Fault::Price | Fault::Order | Fault::Sentence | Fault::Doubtful => "in doubt",
        }
    }
}

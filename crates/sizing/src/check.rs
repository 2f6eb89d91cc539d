//! Published figures checked against each other: what follows from rates and prices, what does not,
//! and what it should have been.
//!
//! Three roads to a cell are compared: as published; recomputed from the published rates and
//! totals; corrected, which also takes machines at the price of one. Invariant: a cell that differs
//! on any road is named, and a cell that is named differs.

use serde::Serialize;

use page::figures::{exact, three};

use crate::board::{Board, Kind, board, cost_per_thousand, volumes, whole};
use crate::outcome::{Outcome, Shown};
use crate::prices::{Basis, PriceFinding, PriceList};
use crate::published::{Cell, Claim, Published, PublishedBoard, Rule};
use crate::requirement::Requirement;

/// Rates of intensity tests step by this much; a wrong divisor is most likely another step.
const STEP: f64 = 5000.0;

/// How a figure fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A total is not nodes times one.
    Price,
    /// It does not follow from the published rates and prices.
    DoesNotFollow,
    /// It follows, but from a total that is wrong itself.
    RestsOnWrongPrice,
    /// Two places, or the board and the measurements, disagree.
    Contradiction,
    /// The order of a board changes when its cells are right.
    Order,
    /// A sentence is not what the figures say.
    Sentence,
    /// Not impossible, but hard to believe.
    Doubtful,
}

/// Something that does not follow, or is hard to believe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// How it fails.
    pub fault: Fault,
    /// Volume of the board, where it is on one.
    pub volume: Option<String>,
    /// Board, where it is on one.
    pub board: Option<Kind>,
    /// The cell: a cluster, mostly.
    pub cell: String,
    /// As published.
    pub published: Option<f64>,
    /// What the published rates and totals give.
    pub recomputed: Option<f64>,
    /// What it should have been.
    pub corrected: Option<f64>,
    /// In words.
    pub why: String,
}

impl Finding {
    fn of(fault: Fault, cell: String, why: String) -> Finding {
        Finding { fault, volume: None, board: None, cell, published: None, recomputed: None, corrected: None, why }
    }

    fn on(self, board: Kind, volume: Option<String>) -> Finding {
        Finding { board: Some(board), volume, ..self }
    }
}

/// A board on the three roads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoardCheck {
    /// What it orders by.
    pub kind: Kind,
    /// Volume it is about; all when absent.
    pub volume: Option<String>,
    /// As published.
    pub published: Vec<Cell>,
    /// From the published rates and totals.
    pub recomputed: Board,
    /// With machines at the price of one.
    pub corrected: Board,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Where the figures were published.
    pub source: String,
    /// The target of the boards.
    pub target: f64,
    /// Board by board.
    pub boards: Vec<BoardCheck>,
    /// What does not follow, prices first.
    pub findings: Vec<Finding>,
    /// Cells that were compared.
    pub cells: usize,
}

/// Checks `published` against what was measured and what it costs. `requirement.rate` is the
/// boards' target.
pub fn check(
    published: &Published,
    outcomes: &[Outcome],
    prices: &PriceList,
    requirement: &Requirement,
) -> Result<Check, String> {
    assert_eq!(requirement.rate, published.target, "outcomes and boards are of one target");
    let mut findings = price_findings(prices);
    let mut boards: Vec<BoardCheck> = Vec::new();
    for claimed in &published.boards {
        let on = |basis| -> Result<Board, String> {
            let mut made =
                board(claimed.kind, claimed.volume.as_deref(), outcomes, Some((prices, basis)), requirement)?;
            if claimed.kind == Kind::Matched {
                // Such boards list only who went beyond the target.
                made.rows.retain(|row| row.rate > published.target);
            }
            if claimed.volume.is_none() {
                made.rows.truncate(claimed.cells.len());
            }
            Ok(made)
        };
        let made = BoardCheck {
            kind: claimed.kind,
            volume: claimed.volume.clone(),
            published: claimed.cells.clone(),
            recomputed: on(Basis::AsGiven)?,
            corrected: on(Basis::Corrected)?,
        };
        let judge = Judge { published, claimed, outcomes, prices };
        judge.cells(&mut findings)?;
        judge.order(&made, &mut findings);
        twice(&boards, claimed, &mut findings);
        boards.push(made);
    }
    for claim in &published.claims {
        sentence(claim, outcomes, prices, requirement, &mut findings)?;
    }
    doubtful(outcomes, requirement, &mut findings);
    let cells = published.boards.iter().map(|board| board.cells.len()).sum();
    Ok(Check { source: published.source.clone(), target: published.target, boards, findings, cells })
}

fn price_findings(prices: &PriceList) -> Vec<Finding> {
    let finding = |found: PriceFinding| {
        let PriceFinding { nodes, one, expected, stated, .. } = found;
        let why = format!("{nodes} x {one} is {expected}, as the other clusters pay, not {stated}");
        let cell = format!("{} {}", found.cluster, found.part);
        Finding { published: Some(stated), corrected: Some(expected), ..Finding::of(Fault::Price, cell, why) }
    };
    prices.findings().into_iter().map(finding).collect()
}

struct Judge<'a> {
    published: &'a Published,
    claimed: &'a PublishedBoard,
    outcomes: &'a [Outcome],
    prices: &'a PriceList,
}

impl Judge<'_> {
    fn finding(&self, fault: Fault, cell: &Cell, why: String) -> Finding {
        let published = if self.claimed.kind.is_cost() { cell.cost } else { cell.rate };
        let finding = Finding::of(fault, cell.cluster.clone(), why);
        Finding { published, ..finding.on(self.claimed.kind, Some(cell.volume.clone())) }
    }

    fn cells(&self, findings: &mut Vec<Finding>) -> Result<(), String> {
        for cell in &self.claimed.cells {
            let is_it = |outcome: &&Outcome| {
                outcome.configuration.cluster == cell.cluster && outcome.configuration.volume == cell.volume
            };
            let Some(outcome) = self.outcomes.iter().find(is_it) else {
                findings.push(self.finding(Fault::Contradiction, cell, "it is not among the measurements".to_owned()));
                continue;
            };
            self.rate(cell, outcome, findings);
            self.cost(cell, outcome, findings)?;
        }
        Ok(())
    }

    fn rate(&self, cell: &Cell, outcome: &Outcome, findings: &mut Vec<Finding>) {
        let measured = match self.claimed.kind {
            Kind::Matched => outcome.held,
            Kind::TopRate | Kind::CostAtTop => Some(outcome.top_rate),
            Kind::CostAtTarget => None,
        };
        if let (Some(rate), Some(measured)) = (cell.rate, measured)
            && rate != measured
        {
            let why = format!("the measurements say {} msg/s, the board {}", exact(measured), exact(rate));
            let finding = self.finding(Fault::Contradiction, cell, why);
            findings.push(Finding { published: Some(rate), corrected: Some(measured), ..finding });
        }
        if self.claimed.kind == Kind::CostAtTarget && outcome.holds_rate != Shown::Yes {
            let why = format!("it did not hold {} msg/s", exact(self.published.target));
            findings.push(self.finding(Fault::Contradiction, cell, why));
        }
    }

    fn cost(&self, cell: &Cell, outcome: &Outcome, findings: &mut Vec<Finding>) -> Result<(), String> {
        let Some(cost) = cell.cost else { return Ok(()) };
        let rate = match self.claimed.kind {
            Kind::CostAtTarget => self.published.target,
            _ => outcome.top_rate,
        };
        let month = self.prices.month(&outcome.configuration, Basis::AsGiven)?;
        let right = self.prices.month(&outcome.configuration, Basis::Corrected)?;
        let recomputed = cost_per_thousand(month, rate);
        let corrected = cost_per_thousand(right, rate);
        let (fault, why) = if whole(recomputed) != cost {
            (Fault::DoesNotFollow, explain(cost, month, rate, recomputed))
        } else if whole(corrected) != cost {
            let why = format!("{month} / {} is right, but {month} rests on a wrong total", rate / 1000.0);
            (Fault::RestsOnWrongPrice, why)
        } else {
            return Ok(());
        };
        let finding = self.finding(fault, cell, why);
        findings.push(Finding { recomputed: Some(recomputed), corrected: Some(corrected), ..finding });
        Ok(())
    }

    /// Who is on the board, and in which order.
    fn order(&self, made: &BoardCheck, findings: &mut Vec<Finding>) {
        let name = |cluster: &str, volume: &str| match self.claimed.volume {
            Some(_) => cluster.to_owned(),
            None => format!("{cluster}/{volume}"),
        };
        let published: Vec<String> = made.published.iter().map(|cell| name(&cell.cluster, &cell.volume)).collect();
        let of =
            |board: &Board| -> Vec<String> { board.rows.iter().map(|row| name(&row.cluster, &row.volume)).collect() };
        let corrected = of(&made.corrected);
        if published == corrected {
            return;
        }
        let absent = |from: &[String], of: &[String]| -> String {
            of.iter().filter(|name| !from.contains(name)).cloned().collect::<Vec<_>>().join(", ")
        };
        let (missing, extra) = (absent(&published, &corrected), absent(&corrected, &published));
        let mut why = format!("published {}; right {}", published.join(", "), corrected.join(", "));
        if of(&made.recomputed) == published {
            why.push_str("; it follows from the totals as published");
        }
        for (names, what) in [(missing, "is missing"), (extra, "does not belong")] {
            if !names.is_empty() {
                why.push_str(&format!("; {names} {what}"));
            }
        }
        let finding = Finding::of(Fault::Order, "order".to_owned(), why);
        findings.push(finding.on(self.claimed.kind, self.claimed.volume.clone()));
    }
}

/// Says what a wrong cost may have come from.
fn explain(cost: f64, month: f64, rate: f64, recomputed: f64) -> String {
    let thousands = rate / 1000.0;
    let follows = format!("{month} / {thousands} is {recomputed:.1}");
    if recomputed.floor() == cost {
        return format!("{follows}: cut off where the others are rounded");
    }
    let implied = (month / cost * 1000.0 / STEP).round() * STEP;
    if implied > 0.0 && implied != rate && whole(cost_per_thousand(month, implied)) == cost {
        return format!("{follows}; {cost} is what {} gives", format_args!("{month} / {}", implied / 1000.0));
    }
    format!("{follows}; {cost} would need {} msg/s", three(1000.0 * month / cost))
}

/// The same cell on a board before this one, with another figure.
fn twice(before: &[BoardCheck], claimed: &PublishedBoard, findings: &mut Vec<Finding>) {
    for cell in &claimed.cells {
        let same = before.iter().filter(|board| board.kind == claimed.kind).flat_map(|board| &board.published);
        for other in same.filter(|other| other.cluster == cell.cluster && other.volume == cell.volume) {
            if other.cost != cell.cost {
                let why = format!("another board says {}", other.cost.unwrap_or_default());
                let finding = Finding::of(Fault::Contradiction, cell.cluster.clone(), why);
                findings.push(Finding { published: cell.cost, ..finding.on(claimed.kind, Some(cell.volume.clone())) });
            }
        }
    }
}

fn sentence(
    claim: &Claim,
    outcomes: &[Outcome],
    prices: &PriceList,
    requirement: &Requirement,
    findings: &mut Vec<Finding>,
) -> Result<(), String> {
    let mut disagree = |volume: &str, board: Kind, cell: &str, why: String| {
        let finding = Finding::of(Fault::Sentence, cell.to_owned(), format!("\"{}\": {why}", claim.text));
        findings.push(finding.on(board, Some(volume.to_owned())));
    };
    match &claim.rule {
        Rule::Lower { volume, than, except } | Rule::NoBetter { volume, than, except } => {
            let is_strict = matches!(claim.rule, Rule::Lower { .. });
            for outcome in outcomes.iter().filter(|outcome| outcome.configuration.volume == *volume) {
                let cluster = &outcome.configuration.cluster;
                if except.contains(cluster) {
                    continue;
                }
                let others = outcomes.iter().filter(|other| {
                    other.configuration.cluster == *cluster && than.contains(&other.configuration.volume)
                });
                let against = others.filter(|other| match is_strict {
                    true => outcome.top_rate >= other.top_rate,
                    false => outcome.top_rate > other.top_rate,
                });
                let against: Vec<String> =
                    against.map(|other| format!("{} on {}", other.top_rate, other.configuration.volume)).collect();
                if !against.is_empty() {
                    let why = format!("{cluster} made {} on {volume}, {}", outcome.top_rate, against.join(" and "));
                    disagree(volume, Kind::TopRate, cluster, why);
                }
            }
        }
        Rule::NeverBest { clusters } => {
            for volume in volumes(outcomes) {
                for kind in [Kind::TopRate, Kind::CostAtTop, Kind::CostAtTarget] {
                    let priced = Some((prices, Basis::Corrected));
                    let made = board(kind, Some(&volume), outcomes, priced, requirement)?;
                    if let Some(first) = made.rows.first().filter(|row| clusters.contains(&row.cluster)) {
                        let why = format!("{} leads {} on {volume}", first.cluster, kind.title(requirement.rate));
                        disagree(&volume, kind, &first.cluster, why);
                    }
                }
            }
        }
    }
    Ok(())
}

/// A cluster that held the target with one volume and missed it with another on which it was
/// faster.
fn doubtful(outcomes: &[Outcome], requirement: &Requirement, findings: &mut Vec<Finding>) {
    for missed in outcomes.iter().filter(|outcome| outcome.holds_rate == Shown::No) {
        let slower = outcomes.iter().find(|other| {
            other.configuration.cluster == missed.configuration.cluster
                && other.holds_rate == Shown::Yes
                && other.top_rate < missed.top_rate
        });
        if let Some(slower) = slower {
            let why = format!(
                "top rate {} but short of {}, while on {} it held that with a top rate of {}",
                missed.top_rate, requirement.rate, slower.configuration.volume, slower.top_rate
            );
            let finding = Finding::of(Fault::Doubtful, missed.configuration.cluster.clone(), why);
            findings.push(finding.on(Kind::Matched, Some(missed.configuration.volume.clone())));
        }
    }
}

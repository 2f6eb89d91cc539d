//! Leaderboards: configurations ordered by one figure.
//!
//! Invariant: a board holds what qualifies for it and nothing else, and equal figures keep the
//! order of the results file. Costs are exact here; rounding to whole units happens where they are
//! shown or compared with rounded ones.

use serde::{Deserialize, Serialize};

use page::figures::exact;

use crate::outcome::{Outcome, Shown};
use crate::prices::{Basis, PriceList};
use crate::requirement::Requirement;

/// What a board orders by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Highest target that was matched, highest first.
    Matched,
    /// Highest throughput, highest first.
    TopRate,
    /// Cost of 1000 msg/s a month at the highest throughput, lowest first.
    CostAtTop,
    /// The same at the required rate, of those that hold it.
    CostAtTarget,
}

impl Kind {
    /// All, in the order they are shown.
    pub const ALL: [Kind; 4] = [Kind::Matched, Kind::TopRate, Kind::CostAtTop, Kind::CostAtTarget];

    /// What the board is called.
    pub fn title(self, target: f64) -> String {
        match self {
            Kind::Matched => "matched target".to_owned(),
            Kind::TopRate => "top rate".to_owned(),
            Kind::CostAtTop => "cost per 1,000 msg/s a month at top rate".to_owned(),
            Kind::CostAtTarget => format!("cost per 1,000 msg/s a month at {} msg/s", exact(target)),
        }
    }

    /// True where the figure is money.
    pub fn is_cost(self) -> bool {
        matches!(self, Kind::CostAtTop | Kind::CostAtTarget)
    }
}

/// A place on a board.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Cluster.
    pub cluster: String,
    /// Volume.
    pub volume: String,
    /// Rate in messages a second: what the board orders by, or what the cost is divided by.
    pub rate: f64,
    /// Cost of 1000 msg/s a month.
    pub cost: Option<f64>,
}

/// A leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Board {
    /// What it orders by.
    pub kind: Kind,
    /// Volume it is about; all when absent.
    pub volume: Option<String>,
    /// Best first.
    pub rows: Vec<Row>,
}

/// What 1000 messages a second cost a month.
pub fn cost_per_thousand(month: f64, rate: f64) -> f64 {
    assert!(rate > 0.0, "a cost is never asked for at no rate");
    month / (rate / 1000.0)
}

/// Whole units, halves away from zero, as costs are published.
pub fn whole(cost: f64) -> f64 {
    cost.round()
}

/// One board over the outcomes of `volume`, or of all volumes. Boards of cost need prices, of every
/// configuration on them.
pub fn board(
    kind: Kind,
    volume: Option<&str>,
    outcomes: &[Outcome],
    prices: Option<(&PriceList, Basis)>,
    requirement: &Requirement,
) -> Result<Board, String> {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let configuration = &outcome.configuration;
        if volume.is_some_and(|volume| volume != configuration.volume) {
            continue;
        }
        let rate = match kind {
            Kind::Matched => outcome.held,
            Kind::TopRate | Kind::CostAtTop => Some(outcome.top_rate),
            Kind::CostAtTarget => (outcome.holds_rate == Shown::Yes).then_some(requirement.rate),
        };
        let Some(rate) = rate else { continue };
        let cost = match (kind.is_cost(), prices) {
            (true, Some((prices, basis))) => Some(cost_per_thousand(prices.month(configuration, basis)?, rate)),
            _ => None,
        };
        rows.push(Row { cluster: configuration.cluster.clone(), volume: configuration.volume.clone(), rate, cost });
    }
    match kind.is_cost() {
        true => rows.sort_by(|a, b| a.cost.unwrap_or(f64::MAX).total_cmp(&b.cost.unwrap_or(f64::MAX))),
        false => rows.sort_by(|a, b| b.rate.total_cmp(&a.rate)),
    }
    Ok(Board { kind, volume: volume.map(str::to_owned), rows })
}

/// Volumes in the order of the results file.
pub fn volumes(outcomes: &[Outcome]) -> Vec<String> {
    let mut volumes: Vec<String> = Vec::new();
    for outcome in outcomes {
        if !volumes.contains(&outcome.configuration.volume) {
            volumes.push(outcome.configuration.volume.clone());
        }
    }
    volumes
}

/// All boards: of each volume, and over all volumes where there are several. Without prices there
/// are none of cost.
pub fn boards(
    outcomes: &[Outcome],
    prices: Option<(&PriceList, Basis)>,
    requirement: &Requirement,
) -> Result<Vec<Board>, String> {
    let volumes = volumes(outcomes);
    let mut scopes: Vec<Option<&str>> = volumes.iter().map(|volume| Some(volume.as_str())).collect();
    if volumes.len() > 1 {
        scopes.push(None);
    }
    let mut boards = Vec::new();
    for scope in scopes {
        for kind in Kind::ALL {
            if !kind.is_cost() || prices.is_some() {
                boards.push(board(kind, scope, outcomes, prices, requirement)?);
            }
        }
    }
    Ok(boards)
}

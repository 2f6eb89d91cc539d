//! Leaderboards and sentences that somebody published, to be checked.
//!
//! Invariant: these are claims. Nothing here is used as a measurement or a price.

use serde::{Deserialize, Serialize};

use crate::board::Kind;
use crate::input::{Document, Mistake, Placed, not_negative, positive};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFile {
    source: String,
    target: Placed<f64>,
    #[serde(default)]
    board: Vec<BoardRow>,
    #[serde(default)]
    claim: Vec<ClaimRow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoardRow {
    kind: Kind,
    volume: Option<String>,
    rows: Vec<CellRow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CellRow {
    cluster: Placed<String>,
    volume: Option<String>,
    rate: Option<Placed<f64>>,
    cost: Option<Placed<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimRow {
    text: String,
    rule: Placed<String>,
    volume: Option<String>,
    #[serde(default)]
    than: Vec<String>,
    #[serde(default)]
    except: Vec<String>,
    #[serde(default)]
    clusters: Vec<String>,
}

/// A published place on a board.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Cluster.
    pub cluster: String,
    /// Volume.
    pub volume: String,
    /// Rate, where one is printed.
    pub rate: Option<f64>,
    /// Cost, where one is printed.
    pub cost: Option<f64>,
    /// Line of the file.
    #[serde(skip)]
    pub line: usize,
}

/// A published leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PublishedBoard {
    /// What it orders by.
    pub kind: Kind,
    /// Volume it is about; all when absent.
    pub volume: Option<String>,
    /// Best first, as published.
    pub cells: Vec<Cell>,
}

/// A sentence as a rule on top rates and costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "rule", rename_all = "kebab-case")]
pub enum Rule {
    /// Top rates of `volume` are below those of every volume in `than`, but for clusters in
    /// `except`.
    Lower {
        /// The slower volume.
        volume: String,
        /// The faster ones.
        than: Vec<String>,
        /// Clusters the sentence leaves out.
        except: Vec<String>,
    },
    /// Top rates of `volume` are not above those of any volume in `than`.
    NoBetter {
        /// The volume that is said to bring nothing.
        volume: String,
        /// The others.
        than: Vec<String>,
        /// Clusters the sentence leaves out.
        except: Vec<String>,
    },
    /// None of `clusters` is first on a board of rate or cost.
    NeverBest {
        /// The clusters.
        clusters: Vec<String>,
    },
}

/// A sentence with its rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// In words.
    pub text: String,
    /// As a rule.
    #[serde(flatten)]
    pub rule: Rule,
}

/// Everything that was published.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Published {
    /// The file, for messages.
    #[serde(skip)]
    pub file: String,
    /// Where.
    pub source: String,
    /// The rate of boards at the target.
    pub target: f64,
    /// Leaderboards.
    pub boards: Vec<PublishedBoard>,
    /// Sentences.
    pub claims: Vec<Claim>,
}

impl Published {
    /// Reads a file of published boards.
    pub fn read(document: &Document) -> Result<Published, Mistake> {
        let file: PublishedFile = document.toml()?;
        let target = positive(document, "target", &file.target)?;
        let boards = file.board.iter().map(|row| read_board(document, row)).collect::<Result<_, _>>()?;
        let claims = file.claim.iter().map(|row| read_claim(document, row)).collect::<Result<_, _>>()?;
        Ok(Published { file: document.file.clone(), source: file.source, target, boards, claims })
    }
}

fn read_board(document: &Document, row: &BoardRow) -> Result<PublishedBoard, Mistake> {
    let mut cells = Vec::new();
    for cell in &row.rows {
        let at = cell.cluster.span();
        let volume = cell.volume.as_ref().or(row.volume.as_ref());
        let volume = volume.ok_or_else(|| document.mistake(&at, "volume", "is missing on a board over all volumes"))?;
        let needed = if row.kind.is_cost() { ("cost", cell.cost.is_some()) } else { ("rate", cell.rate.is_some()) };
        if !needed.1 {
            return Err(document.mistake(&at, needed.0, "is missing on this kind of board"));
        }
        let rate = cell.rate.as_ref().map(|rate| positive(document, "rate", rate)).transpose()?;
        let cost = cell.cost.as_ref().map(|cost| not_negative(document, "cost", cost)).transpose()?;
        let line = document.line_of(at.start);
        cells.push(Cell { cluster: cell.cluster.get_ref().clone(), volume: volume.clone(), rate, cost, line });
    }
    Ok(PublishedBoard { kind: row.kind, volume: row.volume.clone(), cells })
}

fn read_claim(document: &Document, row: &ClaimRow) -> Result<Claim, Mistake> {
    let at = row.rule.span();
    let volume = || row.volume.clone().ok_or_else(|| document.mistake(&at, "volume", "is missing for this rule"));
    let (than, except) = (row.than.clone(), row.except.clone());
    let rule = match row.rule.get_ref().as_str() {
        "lower" => Rule::Lower { volume: volume()?, than, except },
        "no-better" => Rule::NoBetter { volume: volume()?, than, except },
        "never-best" => Rule::NeverBest { clusters: row.clusters.clone() },
        other => {
            let what = format!("{other:?} is no rule; there are lower, no-better, never-best");
            return Err(document.mistake(&at, "rule", what));
        }
    };
    Ok(Claim { text: row.text.clone(), rule })
}

//! Leaderboards and sentences that somebody published, to be checked.
//!
//! Invariant: these are claims. Nothing here is used as a measurement or a price.

use serde::{Deserialize, Serialize};

use crate::board::Kind;
use crate::input::{Document, Mistake, Placed};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFile {
    source: String,
    target: f64,
    #[serde(default)]
    board: Vec<BoardRow>,
    #[serde(default)]
    claim: Vec<Placed<ClaimRow>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoardRow {
    kind: Kind,
    volume: Option<String>,
    rows: Vec<Placed<Cell>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimRow {
    text: String,
    rule: String,
    volume: Option<String>,
    #[serde(default)]
    than: Vec<String>,
    #[serde(default)]
    except: Vec<String>,
    #[serde(default)]
    clusters: Vec<String>,
}

/// A published place on a board.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Cluster.
    pub cluster: String,
    /// Volume; the board's where the cell names none.
    #[serde(default)]
    pub volume: String,
    /// Rate, where one is printed.
    pub rate: Option<f64>,
    /// Cost, where one is printed.
    pub cost: Option<f64>,
}

/// A published leaderboard.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedBoard {
    /// What it orders by.
    pub kind: Kind,
    /// Volume it is about; all when absent.
    pub volume: Option<String>,
    /// Best first, as published.
    pub cells: Vec<Cell>,
}

/// A sentence as a rule on top rates and costs.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// In words.
    pub text: String,
    /// As a rule.
    pub rule: Rule,
}

/// Everything that was published.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The file, for messages.
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
        document.above_zero(&(0..0), &[("target", Some(file.target))])?;
        let boards = file.board.into_iter().map(|row| read_board(document, row)).collect::<Result<_, _>>()?;
        let claims = file.claim.into_iter().map(|row| read_claim(document, row)).collect::<Result<_, _>>()?;
        Ok(Published { file: document.file.clone(), source: file.source, target: file.target, boards, claims })
    }
}

fn read_board(document: &Document, row: BoardRow) -> Result<PublishedBoard, Mistake> {
    let mut cells = Vec::new();
    for cell in row.rows {
        let (at, mut cell) = (cell.span(), cell.into_inner());
        if cell.volume.is_empty() {
            let missing = || document.mistake(&at, "volume", "is missing on a board over all volumes");
            cell.volume = row.volume.clone().ok_or_else(missing)?;
        }
        let needed = if row.kind.is_cost() { ("cost", cell.cost) } else { ("rate", cell.rate) };
        if needed.1.is_none() {
            return Err(document.mistake(&at, needed.0, "is missing on this kind of board"));
        }
        document.above_zero(&at, &[("rate", cell.rate)])?;
        cells.push(cell);
    }
    Ok(PublishedBoard { kind: row.kind, volume: row.volume, cells })
}

fn read_claim(document: &Document, row: Placed<ClaimRow>) -> Result<Claim, Mistake> {
    let at = row.span();
    let ClaimRow { text, rule, volume, than, except, clusters } = row.into_inner();
    let volume = volume.ok_or_else(|| document.mistake(&at, "volume", "is missing for this rule"));
    let rule = match rule.as_str() {
        "lower" => Rule::Lower { volume: volume?, than, except },
        "no-better" => Rule::NoBetter { volume: volume?, than, except },
        "never-best" => Rule::NeverBest { clusters },
        other => {
            let what = format!("{other:?} is no rule; there are lower, no-better, never-best");
            return Err(document.mistake(&at, "rule", what));
        }
    };
    Ok(Claim { text, rule })
}

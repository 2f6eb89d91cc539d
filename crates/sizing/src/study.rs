//! The sizing study of 21 configurations that ships with the tool: an example to read, and the data
//! its arithmetic is tested on.
//!
//! Invariant: these are the published figures, mistakes included. Nothing is corrected here; that
//! is what `check` is for.

use crate::input::{Document, Mistake};
use crate::prices::PriceList;
use crate::published::Published;
use crate::results::Results;

/// Rates and what was said about them.
pub const RESULTS: &str = include_str!("../examples/study/results.jsonl");
/// Prices.
pub const PRICES: &str = include_str!("../examples/study/prices.toml");
/// Leaderboards as published.
pub const PUBLISHED: &str = include_str!("../examples/study/published.toml");

/// The study's measurements.
pub fn results() -> Result<Results, Mistake> {
    Results::read(&Document::new("study/results.jsonl", RESULTS), crate::results::Tolerance::Whole)
}

/// The study's prices.
pub fn prices() -> Result<PriceList, Mistake> {
    PriceList::read(&Document::new("study/prices.toml", PRICES))
}

/// The study's leaderboards.
pub fn published() -> Result<Published, Mistake> {
    Published::read(&Document::new("study/published.toml", PUBLISHED))
}

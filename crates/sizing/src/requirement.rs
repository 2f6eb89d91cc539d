//! What the cluster is asked for.
//!
//! Invariant: what was not asked for is never counted against a cluster.

use serde::{Deserialize, Deserializer, Serialize};

/// A stated requirement. Rates are messages a second in all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// The rate to hold, publishers and consumers alike.
    pub rate: f64,
    /// End-to-end latency at that rate, 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// Hold both while one node is lost.
    #[serde(default)]
    pub lose_node: bool,
    /// Let a backlog form at this rate and work it off, without publishers feeling it.
    #[serde(default, deserialize_with = "asked")]
    pub backlog_rate: Option<f64>,
}

/// Zero asks for none.
fn asked<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::deserialize(from)?.filter(|rate: &f64| *rate > 0.0))
}

/// What the person wrote on the command line; each counts before what the results file says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wish {
    /// `--rate`.
    pub rate: Option<f64>,
    /// `--p99-ms`.
    pub p99_ms: Option<f64>,
    /// `--lose-node`.
    pub lose_node: Option<bool>,
    /// `--backlog-rate`; zero means that no backlog is asked about.
    pub backlog_rate: Option<f64>,
}

impl Requirement {
    /// The requirement of a report: the wish first, then what the results file states. The error
    /// says what is missing.
    pub fn stated(wish: &Wish, in_file: Option<Requirement>) -> Result<Requirement, String> {
        let missing = |flag: &str| format!("{flag} is missing: the results file states no requirement");
        let rate = wish.rate.or(in_file.map(|stated| stated.rate)).ok_or_else(|| missing("--rate"))?;
        let p99_ms = wish.p99_ms.or(in_file.map(|stated| stated.p99_ms)).ok_or_else(|| missing("--p99-ms"))?;
        let lose_node = wish.lose_node.or(in_file.map(|stated| stated.lose_node)).unwrap_or(false);
        let backlog_rate = wish.backlog_rate.or(in_file.and_then(|stated| stated.backlog_rate));
        for (flag, number) in [("--rate", rate), ("--p99-ms", p99_ms)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(format!("{flag} must be above zero, and is {number}"));
            }
        }
        if backlog_rate.is_some_and(|rate| !(rate.is_finite() && rate >= 0.0)) {
            return Err("--backlog-rate must not be negative".to_owned());
        }
        Ok(Requirement { rate, p99_ms, lose_node, backlog_rate: backlog_rate.filter(|rate| *rate > 0.0) })
    }
}

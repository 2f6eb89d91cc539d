//! Which configuration to take, and what would change that.
//!
//! Invariant: the cheapest configuration wins that fails nothing asked for. What was not measured is said beside it and, where a dearer
//! one has everything shown, that one is named too.

use serde::Serialize;

use crate::outcome::{Outcome, Shown, outcomes};
use crate::prices::{Basis, PriceList};
use crate::requirement::Requirement;
use crate::results::Results;

/// Rates between the required one and this multiple of it are tried for a change of winner.
const RATE_MULTIPLE_MAX: f64 = 3.0;

/// A configuration with its price.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Cluster and volume.
    pub name: String,
    /// A month of it.
    pub month: f64,
    /// What was asked for and not measured.
    pub not_shown: Vec<String>,
}

/// A configuration that is out, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rejected {
    /// Cluster and volume.
    pub name: String,
    /// What it fails.
    pub fails: Vec<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// Cheapest that fails nothing.
    pub chosen: Option<Candidate>,
    /// Next in price.
    pub runner_up: Option<Candidate>,
    /// Cheapest with everything shown, where that is another one.
    pub all_shown: Option<Candidate>,
    /// Who is out.
    pub rejected: Vec<Rejected>,
    /// What would change it, one sentence each.
    pub changes: Vec<String>,
}

/// Recommends from measurements and prices.
pub fn recommend(results: &Results, prices: &PriceList, requirement: &Requirement) -> Result<Recommendation, String> {
    let all = outcomes(results, requirement);
    let candidates = candidates(&all, prices, requirement)?;
    let rejected = all.iter().filter(|outcome| outcome.verdict(requirement) == Shown::No);
    let rejected = rejected
        .map(|outcome| Rejected { name: outcome.configuration.name(), fails: fails(outcome, requirement) })
        .collect();
    let chosen = candidates.first().cloned();
    let all_shown = candidates.iter().find(|candidate| candidate.not_shown.is_empty()).cloned();
    let all_shown = all_shown.filter(|shown| Some(shown) != chosen.as_ref());
    let mut changes = Vec::new();
    conditions(results, prices, requirement, chosen.as_ref(), &mut changes)?;
    rates(results, prices, requirement, chosen.as_ref(), &mut changes)?;
    if let [first, second, ..] = candidates.as_slice() {
        break_even(&all, prices, first, second, &mut changes)?;
    }
    if let Some(chosen) = &chosen {
        if let (Some(second), false) = (candidates.get(1), chosen.not_shown.is_empty()) {
            changes.push(format!(
                "measured and failed ({}): then {} at {}",
                chosen.not_shown.join("; "),
                second.name,
                money(prices, second.month)
            ));
        }
        as_given(&all, prices, requirement, chosen, &mut changes)?;
    }
    Ok(Recommendation { chosen, runner_up: candidates.get(1).cloned(), all_shown, rejected, changes })
}

fn candidates(all: &[Outcome], prices: &PriceList, requirement: &Requirement) -> Result<Vec<Candidate>, String> {
    let mut candidates = Vec::new();
    for outcome in all.iter().filter(|outcome| outcome.verdict(requirement) != Shown::No) {
        candidates.push(Candidate {
            name: outcome.configuration.name(),
            month: prices.month(&outcome.configuration, Basis::Corrected)?,
            not_shown: not_shown(outcome, requirement),
        });
    }
    candidates.sort_by(|a, b| a.month.total_cmp(&b.month));
    Ok(candidates)
}

/// The conditions of a requirement in words, with how an outcome stands to each.
pub fn standing(outcome: &Outcome, requirement: &Requirement) -> Vec<(String, Shown)> {
    let mut standing = vec![
        (format!("{} msg/s", requirement.rate), outcome.holds_rate),
        (format!("p99 within {} ms", requirement.p99_ms), outcome.holds_p99),
    ];
    if requirement.lose_node {
        standing.push(("one node lost".to_owned(), outcome.holds_loss));
    }
    if let Some(rate) = requirement.backlog_rate {
        standing.push((format!("a backlog at {rate} msg/s"), outcome.holds_backlog));
    }
    if outcome.broken_promises > 0 {
        standing.push((format!("no message lost or doubled ({} were)", outcome.broken_promises), Shown::No));
    }
    standing
}

fn fails(outcome: &Outcome, requirement: &Requirement) -> Vec<String> {
    let standing = standing(outcome, requirement);
    standing.into_iter().filter(|(_, shown)| *shown == Shown::No).map(|(what, _)| what).collect()
}

fn not_shown(outcome: &Outcome, requirement: &Requirement) -> Vec<String> {
    let standing = standing(outcome, requirement);
    standing.into_iter().filter(|(_, shown)| *shown == Shown::NotShown).map(|(what, _)| what).collect()
}

fn winner(results: &Results, prices: &PriceList, requirement: &Requirement) -> Result<Option<Candidate>, String> {
    Ok(candidates(&outcomes(results, requirement), prices, requirement)?.into_iter().next())
}

fn money(prices: &PriceList, month: f64) -> String {
    format!("{}{:.0} a month", prices.currency, month)
}

/// What each condition costs: the winner without it.
fn conditions(
    results: &Results,
    prices: &PriceList,
    requirement: &Requirement,
    chosen: Option<&Candidate>,
    changes: &mut Vec<String>,
) -> Result<(), String> {
    let mut without = Vec::new();
    without.push(("without the bound on p99".to_owned(), Requirement { p99_ms: f64::MAX, ..*requirement }));
    if requirement.lose_node {
        without.push(("without the loss of a node".to_owned(), Requirement { lose_node: false, ..*requirement }));
    }
    if let Some(rate) = requirement.backlog_rate {
        let none = Requirement { backlog_rate: None, ..*requirement };
        // Every lower rate at which an adverse test was made is a question worth asking.
        let mut rates: Vec<f64> = results.adverse.iter().filter_map(|adverse| adverse.held).collect();
        rates.extend(
            results.steps.iter().filter(|step| step.test != crate::results::Test::Rising).map(|step| step.target),
        );
        rates.retain(|tried| *tried < rate);
        rates.sort_by(|a, b| b.total_cmp(a));
        rates.dedup();
        for rate in rates {
            let milder = Requirement { backlog_rate: Some(rate), ..*requirement };
            without.push((format!("with a backlog only at {rate} msg/s"), milder));
        }
        without.push(("without a backlog".to_owned(), none));
    }
    let mut last = chosen.map(|chosen| chosen.name.clone());
    for (words, milder) in without {
        let won = winner(results, prices, &milder)?;
        if let Some(won) = won
            && Some(&won.name) != chosen.map(|chosen| &chosen.name)
            && Some(&won.name) != last.as_ref()
        {
            changes.push(format!("{words}: {} at {}", won.name, money(prices, won.month)));
            last = Some(won.name);
        }
    }
    Ok(())
}

/// The rates at which another configuration takes over, the nearest below and all above.
fn rates(
    results: &Results,
    prices: &PriceList,
    requirement: &Requirement,
    chosen: Option<&Candidate>,
    changes: &mut Vec<String>,
) -> Result<(), String> {
    let mut tried: Vec<f64> = results.steps.iter().map(|step| step.target).collect();
    tried.extend(results.summaries.iter().flat_map(|summary| [summary.held, summary.short_of]).flatten());
    tried.sort_by(f64::total_cmp);
    tried.dedup();
    // A backlog is asked about at a rate of its own; here only the steady rate moves.
    let at = |rate: f64| winner(results, prices, &Requirement { rate, ..*requirement });
    let mut last = chosen.map(|chosen| chosen.name.clone());
    for rate in tried.iter().filter(|rate| **rate > requirement.rate && **rate <= requirement.rate * RATE_MULTIPLE_MAX)
    {
        let won = at(*rate)?;
        let name = won.as_ref().map(|won| won.name.clone());
        if name != last {
            let words = won.map_or("nothing that was measured holds it".to_owned(), |won| {
                format!("{} at {}", won.name, money(prices, won.month))
            });
            changes.push(format!("at {rate} msg/s: {words}"));
            last = name;
        }
    }
    for rate in tried.iter().rev().filter(|rate| **rate < requirement.rate) {
        if let Some(won) = at(*rate)?
            && Some(&won.name) != chosen.map(|chosen| &chosen.name)
        {
            changes.push(format!("at {rate} msg/s: {} at {}", won.name, money(prices, won.month)));
            break;
        }
    }
    Ok(())
}

/// The price at which the second becomes the first.
fn break_even(
    all: &[Outcome],
    prices: &PriceList,
    first: &Candidate,
    second: &Candidate,
    changes: &mut Vec<String>,
) -> Result<(), String> {
    let of = |name: &str| all.iter().map(|outcome| &outcome.configuration).find(|known| known.name() == name);
    let (Some(one), Some(two)) = (of(&first.name), of(&second.name)) else { return Ok(()) };
    let gap = second.month - first.month;
    let part = 100.0 * gap / first.month;
    changes.push(format!("{} becomes cheaper when {} costs {part:.0} % more than now", second.name, first.name));
    if one.volume != two.volume
        && let Some(now) = prices.volume_month(&one.volume)
    {
        let then = now + gap / one.nodes as f64;
        let sign = &prices.currency;
        changes
            .push(format!("the same when one {} costs {sign}{then:.0} a month instead of {sign}{now:.0}", one.volume));
    }
    if one.machine != two.machine
        && let Some(now) = prices.machine_month(&one.machine)
    {
        let then = now + gap / one.nodes as f64;
        let sign = &prices.currency;
        changes
            .push(format!("the same when one {} costs {sign}{then:.0} a month instead of {sign}{now:.0}", one.machine));
    }
    Ok(())
}

/// Totals as published would have chosen another one.
fn as_given(
    all: &[Outcome],
    prices: &PriceList,
    requirement: &Requirement,
    chosen: &Candidate,
    changes: &mut Vec<String>,
) -> Result<(), String> {
    let mut best: Option<(f64, String)> = None;
    for outcome in all.iter().filter(|outcome| outcome.verdict(requirement) != Shown::No) {
        let month = prices.month(&outcome.configuration, Basis::AsGiven)?;
        if best.as_ref().is_none_or(|(least, _)| month < *least) {
            best = Some((month, outcome.configuration.name()));
        }
    }
    if let Some((month, name)) = best
        && (name != chosen.name || month != chosen.month)
    {
        changes.push(format!("with the totals as the price file states them: {name} at {}", money(prices, month)));
    }
    Ok(())
}

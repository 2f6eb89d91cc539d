//! Which configuration to take, and what would change that.
//!
//! Invariant: nothing is chosen that was not measured to hold the rate. The cheapest configuration
//! wins of which everything asked for was shown, and of two at one price the one that held more.
//! Where of none everything was shown, it is the cheapest that fails nothing, and what was not
//! measured is said beside it. What is cheaper and not shown is named as worth measuring.

use page::figures::exact;
use serde::Serialize;

use crate::outcome::{Outcome, Shown, outcomes};
use crate::prices::{Basis, PriceList};
use crate::report::money;
use crate::requirement::Requirement;
use crate::results::{Results, Test};

/// Rates between the required one and this multiple of it are tried for a change of winner.
const RATE_MULTIPLE_MAX: f64 = 3.0;

/// A configuration with its price.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// Cluster and volume.
    pub name: String,
    /// A month of it.
    pub month: f64,
    /// It was measured at the rate, and held it.
    pub holds_rate: bool,
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
    /// Held the rate and fails nothing: the cheapest of which everything was shown; without any,
    /// the cheapest.
    pub chosen: Option<Candidate>,
    /// Next in price.
    pub runner_up: Option<Candidate>,
    /// Fails nothing, and something asked for was not measured: those that are cheaper than the
    /// chosen one, the cheapest first.
    pub open: Vec<Candidate>,
    /// Who is out.
    pub rejected: Vec<Rejected>,
    /// What would change it, one sentence each.
    pub changes: Vec<String>,
    /// What each configuration costs a month.
    #[serde(skip)]
    pub(crate) months: Vec<(String, f64)>,
}

impl Recommendation {
    /// What a configuration costs a month.
    pub(crate) fn month_of(&self, name: &str) -> Option<f64> {
        self.months.iter().find(|(known, _)| known == name).map(|(_, month)| *month)
    }
}

/// Recommends from measurements and prices.
pub fn recommend(results: &Results, prices: &PriceList, requirement: &Requirement) -> Result<Recommendation, String> {
    Adviser { results, prices, requirement, all: outcomes(results, requirement) }.recommend()
}

/// Everything that advice is made from.
struct Adviser<'a> {
    results: &'a Results,
    prices: &'a PriceList,
    requirement: &'a Requirement,
    all: Vec<Outcome>,
}

impl Adviser<'_> {
    fn recommend(&self) -> Result<Recommendation, String> {
        let candidates = self.candidates(&self.all, self.requirement)?;
        let rejected = self.all.iter().filter(|outcome| outcome.verdict(self.requirement) == Shown::No);
        let rejected = rejected
            .map(|outcome| Rejected {
                name: outcome.configuration.name(),
                fails: of_standing(outcome, self.requirement, Shown::No),
            })
            .collect();
        let chosen = best(&candidates).cloned();
        let behind = candidates.iter().skip_while(|candidate| Some(*candidate) != chosen.as_ref());
        let runner_up = behind.skip(1).find(|candidate| candidate.holds_rate).cloned();
        let is_cheaper = |candidate: &&Candidate| chosen.as_ref().is_none_or(|chosen| candidate.month < chosen.month);
        let open = candidates.iter().filter(|candidate| !candidate.not_shown.is_empty()).filter(is_cheaper);
        let open = open.cloned().collect();
        let months = self.all.iter().map(|outcome| {
            let known = &outcome.configuration;
            Ok((known.name(), self.prices.month(known, Basis::Corrected)?))
        });
        let months = months.collect::<Result<_, String>>()?;
        let mut changes = self.conditions(chosen.as_ref())?;
        changes.extend(self.rates(chosen.as_ref())?);
        if let (Some(first), Some(second)) = (&chosen, &runner_up) {
            changes.extend(self.break_even(first, second));
            if !first.not_shown.is_empty() {
                let failed = format!("measured and failed ({})", first.not_shown.join("; "));
                changes.push(format!("{failed}: then {}", self.priced(second)));
            }
        }
        if let Some(chosen) = &chosen {
            changes.extend(self.as_given(chosen)?);
        }
        Ok(Recommendation { chosen, runner_up, open, rejected, changes, months })
    }

    fn candidates(&self, all: &[Outcome], requirement: &Requirement) -> Result<Vec<Candidate>, String> {
        self.candidates_at(all, requirement, Basis::Corrected)
    }

    /// Those that fail nothing, the cheapest first; of two at one price the one that held more.
    fn candidates_at(
        &self,
        all: &[Outcome],
        requirement: &Requirement,
        basis: Basis,
    ) -> Result<Vec<Candidate>, String> {
        let mut candidates = Vec::new();
        for outcome in all.iter().filter(|outcome| outcome.verdict(requirement) != Shown::No) {
            let candidate = Candidate {
                name: outcome.configuration.name(),
                month: self.prices.month(&outcome.configuration, basis)?,
                holds_rate: outcome.holds_rate == Shown::Yes,
                not_shown: of_standing(outcome, requirement, Shown::NotShown),
            };
            candidates.push((candidate, capacity(outcome)));
        }
        let more = |a: &(f64, f64), b: &(f64, f64)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1));
        candidates.sort_by(|(a, of_a), (b, of_b)| a.month.total_cmp(&b.month).then_with(|| more(of_a, of_b)));
        Ok(candidates.into_iter().map(|(candidate, _)| candidate).collect())
    }

    /// Who would win with another requirement.
    fn winner(&self, requirement: &Requirement) -> Result<Option<Candidate>, String> {
        Ok(best(&self.candidates(&outcomes(self.results, requirement), requirement)?).cloned())
    }

    fn priced(&self, candidate: &Candidate) -> String {
        format!("{} at {} a month", candidate.name, money(&self.prices.currency, candidate.month))
    }

    /// What each condition costs: the winner without it.
    fn conditions(&self, chosen: Option<&Candidate>) -> Result<Vec<String>, String> {
        let requirement = self.requirement;
        let mut without =
            vec![("without the bound on p99".to_owned(), Requirement { p99_ms: f64::MAX, ..*requirement })];
        if requirement.lose_node {
            without.push(("without the loss of a node".to_owned(), Requirement { lose_node: false, ..*requirement }));
        }
        if let Some(rate) = requirement.backlog_rate {
            // Every lower rate at which an adverse test was made is a question worth asking.
            let adverse = self.results.steps.iter().filter(|step| step.test != Test::Rising).map(|step| step.target);
            let mut rates: Vec<f64> =
                self.results.adverse.iter().filter_map(|adverse| adverse.held).chain(adverse).collect();
            rates.retain(|tried| *tried < rate);
            rates.sort_by(|a, b| b.total_cmp(a));
            rates.dedup();
            for rate in rates {
                let milder = Requirement { backlog_rate: Some(rate), ..*requirement };
                without.push((format!("with a backlog only at {} msg/s", exact(rate)), milder));
            }
            without.push(("without a backlog".to_owned(), Requirement { backlog_rate: None, ..*requirement }));
        }
        let (mut changes, mut last) = (Vec::new(), chosen.map(|chosen| chosen.name.clone()));
        for (words, milder) in without {
            let Some(won) = self.winner(&milder)? else { continue };
            if Some(&won.name) != chosen.map(|chosen| &chosen.name) && Some(&won.name) != last.as_ref() {
                // Dearer though less is asked for: it is preferred because nothing of it is open
                // any more.
                let is_dearer = chosen.is_some_and(|chosen| won.month > chosen.month);
                let why = if is_dearer { "everything is shown of " } else { "" };
                changes.push(format!("{words}: {why}{}", self.priced(&won)));
                last = Some(won.name);
            }
        }
        Ok(changes)
    }

    /// The rates at which another configuration takes over: the nearest below, and all above.
    fn rates(&self, chosen: Option<&Candidate>) -> Result<Vec<String>, String> {
        let asked = self.requirement.rate;
        let mut tried: Vec<f64> = self.results.steps.iter().map(|step| step.target).collect();
        tried.extend(self.results.summaries.iter().flat_map(|summary| [summary.held, summary.short_of]).flatten());
        tried.sort_by(f64::total_cmp);
        tried.dedup();
        // A backlog is asked about at a rate of its own; here only the steady rate moves.
        let at = |rate: f64| self.winner(&Requirement { rate, ..*self.requirement });
        let (mut changes, mut last) = (Vec::new(), chosen.map(|chosen| chosen.name.clone()));
        for rate in tried.iter().filter(|rate| **rate > asked && **rate <= asked * RATE_MULTIPLE_MAX) {
            let won = at(*rate)?;
            let name = won.as_ref().map(|won| won.name.clone());
            if name != last {
                let words = won.map_or("nothing that was measured holds it".to_owned(), |won| self.priced(&won));
                changes.push(format!("at {} msg/s: {words}", exact(*rate)));
                last = name;
            }
        }
        for rate in tried.iter().rev().filter(|rate| **rate < asked) {
            if let Some(won) = at(*rate)?
                && Some(&won.name) != chosen.map(|chosen| &chosen.name)
            {
                changes.push(format!("at {} msg/s: {}", exact(*rate), self.priced(&won)));
                break;
            }
        }
        Ok(changes)
    }

    /// The prices at which the second becomes the first.
    fn break_even(&self, first: &Candidate, second: &Candidate) -> Vec<String> {
        let of = |name: &str| self.all.iter().find(|outcome| outcome.configuration.name() == name);
        let (Some(one), Some(two)) = (of(&first.name), of(&second.name)) else { return Vec::new() };
        if first.month == second.month {
            let held = |outcome: &Outcome| capacity(outcome).0;
            let less = if held(two) < held(one) { ", and held less" } else { "" };
            return vec![format!("{} costs the same{less}: a lower price of it decides", second.name)];
        }
        let (one, two) = (&one.configuration, &two.configuration);
        let gap = second.month - first.month;
        let part = 100.0 * gap / first.month;
        let mut changes =
            vec![format!("{} becomes cheaper when {} costs {part:.0} % more than now", second.name, first.name)];
        let volume = (one.volume != two.volume).then(|| self.prices.volume_month(&one.volume)).flatten();
        let machine = (one.machine != two.machine).then(|| self.prices.machine_month(&one.machine)).flatten();
        for (name, now) in [(&one.volume, volume), (&one.machine, machine)] {
            let Some(now) = now else { continue };
            let priced = |month: f64| money(&self.prices.currency, month);
            let (then, now) = (priced(now + gap / one.nodes as f64), priced(now));
            changes.push(format!("the same when one {name} costs {then} a month instead of {now}"));
        }
        changes
    }

    /// What the totals as published would have chosen, where that is another one or another price.
    fn as_given(&self, chosen: &Candidate) -> Result<Option<String>, String> {
        let candidates = self.candidates_at(&self.all, self.requirement, Basis::AsGiven)?;
        let best = best(&candidates).filter(|best| best.name != chosen.name || best.month != chosen.month);
        Ok(best.map(|best| format!("with the totals as the price file states them: {}", self.priced(best))))
    }
}

/// The cheapest of which everything was shown; without any, the cheapest that held the rate.
fn best(candidates: &[Candidate]) -> Option<&Candidate> {
    let mut holding = candidates.iter().filter(|candidate| candidate.holds_rate);
    let all_shown = holding.clone().find(|candidate| candidate.not_shown.is_empty());
    all_shown.or_else(|| holding.next())
}

/// What it held, and its top rate: between two at one price they decide, in this order.
fn capacity(outcome: &Outcome) -> (f64, f64) {
    (outcome.held.unwrap_or(0.0), outcome.top_rate)
}

/// The conditions of a requirement in words, with how an outcome stands to each.
pub fn standing(outcome: &Outcome, requirement: &Requirement) -> Vec<(String, Shown)> {
    let mut standing = vec![
        (format!("{} msg/s", exact(requirement.rate)), outcome.holds_rate),
        (format!("p99 within {} ms", exact(requirement.p99_ms)), outcome.holds_p99),
    ];
    if requirement.lose_node {
        standing.push(("one node lost".to_owned(), outcome.holds_loss));
    }
    if let Some(rate) = requirement.backlog_rate {
        standing.push((format!("a backlog at {} msg/s", exact(rate)), outcome.holds_backlog));
    }
    if outcome.broken_promises > 0 {
        standing.push((format!("no message lost or doubled ({} were)", outcome.broken_promises), Shown::No));
    }
    standing
}

/// The conditions to which an outcome stands like that.
pub(crate) fn of_standing(outcome: &Outcome, requirement: &Requirement, wanted: Shown) -> Vec<String> {
    let standing = standing(outcome, requirement);
    standing.into_iter().filter(|(_, shown)| *shown == wanted).map(|(what, _)| what).collect()
}

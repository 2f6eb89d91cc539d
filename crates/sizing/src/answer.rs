//! The answer in one breath: what was shown of the rate that is asked for, with how much room, and
//! what to measure next.
//!
//! Invariant: "take" is said only of a configuration of which everything asked for was measured and
//! held, and only where prices say that none of these is cheaper. Of any other it is said what is not
//! shown, and without prices which held it best and who else did.

use std::cmp::Ordering;

use serde::Serialize;

use crate::outcome::{Outcome, Shown};
use crate::recommend::{Candidate, Recommendation, of_standing};
use crate::requirement::Requirement;
use page::figures::{exact, three};

/// Those that are named one by one: who held the rate too, and who held it and fails something else.
const NAMED_MAX: usize = 3;

/// What to do where a run did not measure all of its plan.
const UNFINISHED: &str = "Measure next: the rest of the plan. The run was interrupted, or measurements failed: the same `leveret sizing run` \
                          goes on, and tries those again.";

/// How far the measurements go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// Something holds all that is asked for.
    Shown,
    /// Something holds the rate and fails nothing, and not everything was measured of it.
    Partly,
    /// Nothing that was measured holds it.
    Nothing,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// How far the measurements go.
    pub extent: Extent,
    /// What was shown: the first line of every report.
    pub line: String,
    /// What to measure next; `None` where nothing asked for is open.
    pub next: Option<String>,
    /// The configuration that the line is about.
    pub configuration: Option<String>,
    /// Where nothing holds all of it: the one that held most.
    pub nearest: Option<String>,
    /// Where no prices decide: who else held the rate and fails nothing, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// A month of it.
    pub month: Option<f64>,
    /// The highest rate that it matched.
    pub held: Option<f64>,
    /// How much that is above the rate asked for, as a part of it.
    pub room: Option<f64>,
    /// Its p99 at the rate, in milliseconds.
    pub p99_ms: Option<f64>,
    /// What was asked for and not measured of it.
    pub not_shown: Vec<String>,
}

/// What the answer is made from. `recommendation` is there where prices are.
pub(crate) struct Question<'a> {
    /// Everything of the plan was measured.
    pub(crate) is_whole: bool,
    /// A rate was missed that may well be held.
    pub(crate) is_a_miss_doubted: bool,
    pub(crate) all: &'a [Outcome],
    pub(crate) requirement: &'a Requirement,
    pub(crate) recommendation: Option<&'a Recommendation>,
    pub(crate) money: &'a dyn Fn(f64) -> String,
}

impl Question<'_> {
    /// The answer.
    pub(crate) fn answer(&self) -> Answer {
        let chosen = match self.recommendation {
            Some(recommendation) => recommendation.chosen.as_ref().and_then(|chosen| self.named(&chosen.name)),
            None => {
                self.best(|outcome| outcome.holds_rate == Shown::Yes && outcome.verdict(self.requirement) != Shown::No)
            }
        };
        let answer = chosen.map_or_else(|| self.nothing(), |outcome| self.about(outcome));
        // What is left of the plan may change all of it.
        match self.is_whole {
            true => answer,
            false => Answer { next: Some(UNFINISHED.to_owned()), ..answer },
        }
    }

    fn named(&self, name: &str) -> Option<&Outcome> {
        self.all.iter().find(|outcome| outcome.configuration.name() == name)
    }

    /// Without prices: of which everything was shown, then the one that held most.
    fn best(&self, wanted: impl Fn(&Outcome) -> bool) -> Option<&Outcome> {
        self.ranked(wanted).first().copied()
    }

    /// The same for all of them, the best first.
    fn ranked(&self, wanted: impl Fn(&Outcome) -> bool) -> Vec<&Outcome> {
        let mut ranked: Vec<&Outcome> = self.all.iter().filter(|outcome| wanted(outcome)).collect();
        let is_open = |outcome: &Outcome| outcome.verdict(self.requirement) != Shown::Yes;
        ranked.sort_by(|a, b| is_open(a).cmp(&is_open(b)).then_with(|| self.by_held(a, b)));
        ranked
    }

    /// The one that held most comes first; of two that held the same the cheaper one, then the one with the
    /// shorter p99 at the rate, with the higher top rate, with fewer nodes, with fewer CPUs. Of two that held
    /// nothing the top rate comes before the price: it is all that they are told for.
    fn by_held(&self, a: &Outcome, b: &Outcome) -> Ordering {
        let most = |of: fn(&Outcome) -> f64| of(b).total_cmp(&of(a));
        let least = |of: &dyn Fn(&Outcome) -> f64| of(a).total_cmp(&of(b));
        most(|outcome| outcome.held.unwrap_or(0.0))
            .then_with(|| most(|outcome| if outcome.held.is_none() { outcome.top_rate } else { 0.0 }))
            .then_with(|| least(&|outcome| self.month(outcome).unwrap_or(f64::MAX)))
            .then_with(|| least(&|outcome| p99_of(outcome).or(outcome.p99_below_ms).unwrap_or(f64::MAX)))
            .then_with(|| most(|outcome| outcome.top_rate))
            .then_with(|| a.configuration.nodes.cmp(&b.configuration.nodes))
            .then_with(|| least(&|outcome| outcome.configuration.vcpus))
    }

    /// Who else held the rate and fails nothing, where no prices decide between them.
    fn others(&self, outcome: &Outcome) -> Vec<String> {
        if self.recommendation.is_some() {
            return Vec::new();
        }
        let name = outcome.configuration.name();
        let is_other = |other: &Outcome| {
            let holds = other.holds_rate == Shown::Yes && other.verdict(self.requirement) != Shown::No;
            holds && other.configuration.name() != name
        };
        self.ranked(is_other).into_iter().map(|other| other.configuration.name()).collect()
    }

    fn month(&self, outcome: &Outcome) -> Option<f64> {
        self.recommendation?.month_of(&outcome.configuration.name())
    }

    fn priced(&self, outcome: &Outcome) -> String {
        let name = outcome.configuration.name();
        self.month(outcome).map_or(name.clone(), |month| format!("{name} at {} a month", (self.money)(month)))
    }

    fn about(&self, outcome: &Outcome) -> Answer {
        let rate = self.requirement.rate;
        let room = outcome.held.map(|held| held / rate - 1.0);
        let room_words = match (outcome.held, outcome.short_of) {
            (Some(held), _) if held > rate => {
                format!(
                    "with {:.0} % room: {} msg/s is the highest rate that it matched",
                    100.0 * (held / rate - 1.0),
                    exact(held)
                )
            }
            (_, Some(short)) => format!("with no room shown: it fell short of {} msg/s", exact(short)),
            (_, None) => "with no room shown: nothing higher was tried".to_owned(),
        };
        let p99_ms = p99_of(outcome);
        let p99 = outcome.latency.as_ref().zip(p99_ms).map_or(String::new(), |(latency, value)| {
            format!("; p99 {} ms at {} msg/s", three(value), exact(latency.rate))
        });
        let rate = exact(rate);
        let not_shown = of_standing(outcome, self.requirement, Shown::NotShown);
        let (priced, name) = (self.priced(outcome), outcome.configuration.name());
        let others = self.others(outcome);
        let (best, undecided) = match self.recommendation {
            Some(_) => ("", String::new()),
            None if others.is_empty() => ("", ONLY.to_owned()),
            None => (" best", held_too(&others)),
        };
        let (extent, line) = match not_shown.as_slice() {
            [] if self.recommendation.is_some() => {
                (Extent::Shown, format!("Take {priced}: it held {rate} msg/s, {room_words}{p99}."))
            }
            [] => (Extent::Shown, format!("{name} held {rate} msg/s{best}, {room_words}{p99}.{undecided}")),
            open => {
                let open = open.join("; ");
                let line = format!("{priced} held {rate} msg/s{best}, {room_words}{p99}. Not shown of it: {open}.");
                (Extent::Partly, line + &undecided)
            }
        };
        let mut next = Vec::new();
        if !not_shown.is_empty() {
            next.push(format!("of {name}, {}", not_shown.join("; ")));
        }
        let cheaper = self.recommendation.and_then(|recommendation| recommendation.open.first());
        next.extend(cheaper.map(|cheaper| format!("{}, which is cheaper", self.open_in_words(cheaper))));
        Answer {
            extent,
            line,
            next: (!next.is_empty()).then(|| format!("Measure next: {}.", next.join("; and "))),
            configuration: Some(name),
            nearest: None,
            others,
            month: self.month(outcome),
            held: outcome.held,
            room,
            p99_ms,
            not_shown,
        }
    }

    /// Who held as much, where no prices decide between them.
    fn as_high(&self, outcome: &Outcome) -> String {
        let is_as_high = |other: &Outcome| {
            other.held == outcome.held && other.broken_promises == 0 && other.configuration != outcome.configuration
        };
        let others = self.ranked(|other| self.recommendation.is_none() && is_as_high(other));
        let names: Vec<String> = others.into_iter().map(|other| other.configuration.name()).collect();
        if names.is_empty() { String::new() } else { format!(", and as much by {}", named(&names)) }
    }

    fn open_in_words(&self, candidate: &Candidate) -> String {
        let tried = self.named(&candidate.name).map_or(String::new(), |outcome| format!(" ({})", tried(outcome)));
        let (name, month, open) = (&candidate.name, (self.money)(candidate.month), candidate.not_shown.join("; "));
        format!("{name} at {month} a month, {open}{tried}")
    }

    /// Nothing holds it: how far the measurements go, and what to try.
    fn nothing(&self) -> Answer {
        let rate = exact(self.requirement.rate);
        let holding: Vec<&Outcome> = self.all.iter().filter(|outcome| outcome.holds_rate == Shown::Yes).collect();
        let is_whole = |outcome: &&Outcome| outcome.broken_promises == 0;
        let highest = self.all.iter().filter(is_whole).min_by(|a, b| self.by_held(a, b));
        let line = match (holding.as_slice(), highest) {
            ([], Some(outcome)) => match outcome.held {
                Some(held) => format!(
                    "Nothing that was measured is shown to hold {rate} msg/s: the highest rate held is {} msg/s, by {}{}; {}.",
                    exact(held),
                    self.priced(outcome),
                    self.as_high(outcome),
                    outcome.short_of.map_or("nothing higher was tried".to_owned(), |short| format!(
                        "it fell short of {}",
                        exact(short)
                    ))
                ),
                None => format!(
                    "Nothing that was measured held a rate at all; the most that went through is {} msg/s, by {}.",
                    three(outcome.top_rate),
                    self.priced(outcome)
                ),
            },
            ([], None) => format!("Nothing was measured that could say anything of {rate} msg/s."),
            (holding, _) => {
                let fails = |outcome: &&Outcome| {
                    let fails = of_standing(outcome, self.requirement, Shown::No);
                    format!("{} fails {}", outcome.configuration.name(), fails.join(" and "))
                };
                let named: Vec<String> = holding.iter().take(NAMED_MAX).map(fails).collect();
                let others = match holding.len() - named.len() {
                    0 => String::new(),
                    others => format!("; and {others} more fail something"),
                };
                format!(
                    "Nothing that was measured holds all that is asked for: {} of {} held {rate} msg/s, but {}{others}.",
                    holding.len(),
                    self.all.len(),
                    named.join("; ")
                )
            }
        };
        let open = match self.recommendation {
            Some(recommendation) => recommendation.open.first().map(|candidate| self.open_in_words(candidate)),
            None => self.best(|outcome| outcome.verdict(self.requirement) == Shown::NotShown).map(|outcome| {
                let open = of_standing(outcome, self.requirement, Shown::NotShown).join("; ");
                format!("{}, {open} ({})", outcome.configuration.name(), tried(outcome))
            }),
        };
        let next = open.unwrap_or_else(|| {
            match self.is_a_miss_doubted {
                true => "the same again, in longer steps and with nothing beside it: see what is to be read with care",
                false => "something else, as each of these failed: `leveret sizing predict` says which may hold it",
            }
            .to_owned()
        });
        Answer {
            extent: Extent::Nothing,
            line,
            next: Some(format!("Measure next: {next}.")),
            configuration: None,
            nearest: highest.map(|outcome| outcome.configuration.name()),
            others: Vec::new(),
            month: None,
            held: highest.and_then(|outcome| outcome.held),
            room: None,
            p99_ms: None,
            not_shown: Vec::new(),
        }
    }
}

/// Said without prices of the only one that held the rate and fails nothing.
const ONLY: &str =
    " Nothing else that was measured held it and fails nothing; whether to take it, prices decide (`--prices FILE`).";

/// The same where others did, too.
fn held_too(others: &[String]) -> String {
    let who = if others.len() == 1 { "Another one" } else { "Others" };
    format!(" {who} held it too: {}; which to take, prices decide (`--prices FILE`).", named(others))
}

/// Some by their names, and how many more there are.
fn named(names: &[String]) -> String {
    match names.len().checked_sub(NAMED_MAX) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..NAMED_MAX].join(", ")),
    }
}

fn p99_of(outcome: &Outcome) -> Option<f64> {
    let percentiles = &outcome.latency.as_ref()?.percentiles;
    percentiles.iter().find(|(name, _)| *name == "p99").map(|(_, value)| *value)
}

/// How far a configuration was driven.
fn tried(outcome: &Outcome) -> String {
    match (outcome.held.map(exact), outcome.short_of.map(exact)) {
        (Some(held), Some(short)) => format!("it held {held} and fell short of {short}"),
        (Some(held), None) => format!("it held {held}, and nothing higher was tried"),
        (None, Some(short)) => format!("it fell short of {short}, the lowest that was tried"),
        (None, None) => "no steady rate was tried".to_owned(),
    }
}

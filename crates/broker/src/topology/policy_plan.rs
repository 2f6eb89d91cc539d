//! Whom a change of a policy leaves with what: which policy holds for each queue and exchange of
//! the virtual host after it.
//!
//! Invariant: what holds for a thing is the policy of the highest rank among those that take and
//! match it, and it is kept with the thing. So a change asks its own pattern only; the patterns of
//! others are asked where it takes a policy away from a thing, and then only those of lower rank.
//!
//! Matching many names takes time, and nobody routes while the topology changes. So a survey
//! collects the names in slices, judges them without holding the topology, and leaves its plan
//! where the change finds it. A change without a plan, or with one that another change made stale,
//! does the same work itself: the result is the same.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::Topology;
use super::command::{Command, PutPolicy};
use super::name::Name;
use super::pattern::{TooManySteps, WrongPattern};
use super::pattern_weight::POLICIES_WEIGHT_MAX;
use super::policy::{ApplyTo, Policy};
use super::refusal::Refusal;
use super::settings::QueueType;
use crate::ids::{QueueId, VhostId};

/// The names of the policies that hold for a queue: a policy, and an operator's.
pub(super) type Held = [Option<Name>; 2];

/// Things that one look at the topology collects.
const SLICE_PLACES: usize = 4096;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplanned {
    /// It is no pattern.
    #[error("{0}")]
    Wrong(#[from] WrongPattern),
    /// The pattern cannot be searched for in one of the names.
    #[error("pattern: {0}")]
    Pattern(#[from] TooManySteps),
    /// With the other policies of its kind it makes too much work of each declare.
    #[error(
        "pattern: the patterns of all {kind} of this virtual host would weigh {weight} together, and {POLICIES_WEIGHT_MAX} are allowed, \
         as every declare is matched with all of them: take away policies, or write patterns with fewer groups, classes and repeats"
    )]
    TooHeavy {
        /// Which policies.
        kind: &'static str,
        /// What they would weigh.
        weight: u64,
    },
    /// Who asked has ended it.
    #[error("pattern: matching it with the names that are there takes too long")]
    TooLong,
}

impl From<Unplanned> for Refusal {
    fn from(unplanned: Unplanned) -> Refusal {
        Refusal::precondition_failed(&unplanned.to_string())
    }
}

/// One policy before and after it changes.
pub(super) struct PolicyChange<'a> {
    pub(super) name: &'a Name,
    /// As it was, if it was there.
    pub(super) before: Option<&'a Policy>,
    /// All policies of its kind as they are afterwards.
    pub(super) after: &'a BTreeMap<Name, Policy>,
}

/// Whether the first policy holds where both match: by priority, then by name, so that every member
/// chooses alike.
fn outranks(one: (&Name, &Policy), other: (&Name, &Policy)) -> bool {
    one.1.priority > other.1.priority || (one.1.priority == other.1.priority && one.0 < other.0)
}

impl PolicyChange<'_> {
    /// The policy that holds for `name` after the change; `current` did before. Errors: the changed
    /// policy's own pattern cannot be searched for in this name.
    pub(super) fn holder(
        &self,
        current: Option<&Name>,
        name: &[u8],
        takes: impl Fn(ApplyTo) -> bool,
    ) -> Result<Option<Name>, TooManySteps> {
        let new = self.after.get(self.name).filter(|policy| takes(policy.apply_to));
        if current != Some(self.name) {
            let Some(new) = new else { return Ok(current.cloned()) };
            let held = current.and_then(|held| self.after.get_key_value(held));
            if held.is_some_and(|held| outranks(held, (self.name, new))) || !new.pattern.find(name)? {
                return Ok(current.cloned());
            }
            return Ok(Some(self.name.clone()));
        }
        let fits = match new {
            Some(new) if self.before.is_some_and(|before| before.pattern == new.pattern) => Some(new),
            Some(new) => new.pattern.find(name)?.then_some(new),
            None => None,
        };
        let mut best = fits.map(|policy| (self.name, policy));
        for other in self.after.iter().filter(|(other, policy)| *other != self.name && takes(policy.apply_to)) {
            // Those that outrank the policy as it was do not match, or it would not have held.
            let was_below = self.before.is_none_or(|before| !outranks(other, (self.name, before)));
            if was_below && best.is_none_or(|best| outranks(other, best)) && other.1.pattern.matches(name) {
                best = Some(other);
            }
        }
        Ok(best.map(|(name, _)| name.clone()))
    }
}

/// The result of a survey.
#[derive(Debug)]
pub struct PolicyPlan {
    vhost: VhostId,
    operator: bool,
    name: Name,
    policy: Option<Policy>,
    /// `Topology::policies_version` when the names were collected.
    version: u64,
    queues: HashMap<QueueId, Option<Name>, foldhash::fast::FixedState>,
    exchanges: HashMap<Name, Option<Name>, foldhash::fast::FixedState>,
}

impl PolicyPlan {
    pub(super) fn of_queue(&self, queue: QueueId) -> Option<&Option<Name>> {
        self.queues.get(&queue)
    }

    pub(super) fn of_exchange(&self, exchange: &Name) -> Option<&Option<Name>> {
        self.exchanges.get(exchange)
    }
}

/// The names of a virtual host and whom they belong to, on their way to a plan.
#[derive(Debug)]
pub struct PolicySurvey {
    vhost: VhostId,
    operator: bool,
    name: Name,
    before: Option<Policy>,
    after: BTreeMap<Name, Policy>,
    version: u64,
    queues: Vec<(QueueId, Name, QueueType, Option<Name>)>,
    exchanges: Vec<(Name, Option<Name>)>,
    /// The place from which on things were not collected.
    next: usize,
}

impl PolicySurvey {
    /// The survey of a command that puts or deletes a policy; `None` of any other, or one that will
    /// be refused.
    pub fn begin(topology: &Topology, command: &Command) -> Option<Self> {
        let (vhost, operator, name, new) = match command {
            Command::PutPolicy(PutPolicy { vhost, operator, name, policy }) => (*vhost, *operator, name, Some(policy)),
            Command::DeletePolicy { vhost, operator, name } => (*vhost, *operator, name, None),
            _ => return None,
        };
        let of = topology.vhost_of(vhost)?;
        let mut after = if operator { of.operator_policies.clone() } else { of.policies.clone() };
        let before = match new {
            Some(policy) => after.insert(name.clone(), policy.clone()),
            None => after.remove(name),
        };
        let version = topology.policies_version;
        let (queues, exchanges) = (Vec::new(), Vec::new());
        Some(Self { vhost, operator, name: name.clone(), before, after, version, queues, exchanges, next: 0 })
    }

    /// Collects the names of some more places; false once there are none. To be called with the
    /// topology as it is now.
    pub fn collect(&mut self, topology: &Topology) -> bool {
        let places = self.next..self.next + SLICE_PLACES;
        self.next = places.end;
        for queue in topology.queues.between(places.clone()).filter(|queue| queue.vhost == self.vhost) {
            let held = queue.held[usize::from(self.operator)].clone();
            self.queues.push((queue.id, queue.name.clone(), queue.shape.queue_type, held));
        }
        if !self.operator {
            let found = topology.exchanges.between(places).filter(|exchange| exchange.vhost == self.vhost);
            self.exchanges.extend(found.map(|exchange| (exchange.name.clone(), exchange.policy.clone())));
        }
        self.next < topology.queues.places().max(topology.exchanges.places())
    }

    /// How many names were collected.
    pub fn names(&self) -> usize {
        self.queues.len() + self.exchanges.len()
    }

    /// Errors: a policy is put that makes all patterns together too heavy. One that makes them lighter is taken: an earlier
    /// version may have taken more.
    fn check_weight(&self) -> Result<(), Unplanned> {
        let Some(put) = self.after.get(&self.name) else { return Ok(()) };
        let before = self.before.as_ref().map_or(0, |policy| policy.pattern.weight());
        let weight = self.after.values().map(|policy| policy.pattern.weight()).fold(0, u64::saturating_add);
        if weight <= POLICIES_WEIGHT_MAX || put.pattern.weight() <= before {
            return Ok(());
        }
        let kind = if self.operator { "operator policies" } else { "policies" };
        Err(Unplanned::TooHeavy { kind, weight })
    }

    /// Matches the names that were collected. `may_go_on` is asked after each of them.
    ///
    /// Errors: the pattern of a policy that is put cannot be used with one of them, all patterns together are
    /// too heavy, or `may_go_on` said no.
    pub fn judge(self, may_go_on: &mut dyn FnMut() -> bool) -> Result<PolicyPlan, Unplanned> {
        self.check_weight()?;
        let change = PolicyChange { name: &self.name, before: self.before.as_ref(), after: &self.after };
        let (mut queues, mut exchanges) = (HashMap::default(), HashMap::default());
        for (id, name, queue_type, held) in &self.queues {
            queues.insert(*id, change.holder(held.as_ref(), name, |apply_to| apply_to.takes_queue(*queue_type))?);
            if !may_go_on() {
                return Err(Unplanned::TooLong);
            }
        }
        for (name, held) in &self.exchanges {
            exchanges.insert(name.clone(), change.holder(held.as_ref(), name, ApplyTo::takes_exchange)?);
            if !may_go_on() {
                return Err(Unplanned::TooLong);
            }
        }
        let policy = self.after.get(&self.name).cloned();
        let (vhost, operator, name, version) = (self.vhost, self.operator, self.name, self.version);
        Ok(PolicyPlan { vhost, operator, name, policy, version, queues, exchanges })
    }
}

impl Topology {
    /// Leaves a plan for the change of a policy that comes next. It changes nothing that anybody
    /// sees.
    pub fn expect_policy(&mut self, plan: PolicyPlan) {
        self.policy_plan = Some(plan);
    }

    /// The plan that was left for this change, if the policies are still as they were when it was
    /// made.
    pub(super) fn take_policy_plan(
        &mut self,
        vhost: VhostId,
        operator: bool,
        name: &Name,
        policy: Option<&Policy>,
    ) -> Option<PolicyPlan> {
        let plan = self.policy_plan.take()?;
        let is_it = (plan.vhost, plan.operator, &plan.name) == (vhost, operator, name)
            && plan.policy.as_ref() == policy
            && plan.version == self.policies_version;
        is_it.then_some(plan)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::topology::pattern::Pattern;
    use crate::topology::policy;

    fn policy(pattern: &str, priority: i64) -> Policy {
        let definition = amqp::Table::new();
        Policy { pattern: Pattern::new(pattern).unwrap(), apply_to: ApplyTo::All, priority, definition }
    }

    /// A small generator: the test needs many different orders and no more.
    fn next(state: &mut u32) -> u32 {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *state >> 16
    }

    #[test]
    fn whatever_changes_one_after_another_each_name_is_held_by_whom_all_patterns_together_say() {
        let names = ["", "a", "ab", "b", "bc", "cab"];
        let patterns = ["a", "^a", "b$", ".*", "", "c"];
        for seed in 0..300 {
            let state = &mut (seed as u32);
            let mut policies: BTreeMap<Name, Policy> = BTreeMap::new();
            let mut held: Vec<Option<Name>> = vec![None; names.len()];
            for _ in 0..12 {
                let name = Name::from(["p", "q", "r"][next(state) as usize % 3]);
                let before = match next(state) % 3 {
                    0 => policies.remove(&name),
                    _ => {
                        let pattern = patterns[next(state) as usize % patterns.len()];
                        policies.insert(name.clone(), policy(pattern, i64::from(next(state) % 3)))
                    }
                };
                let change = PolicyChange { name: &name, before: before.as_ref(), after: &policies };
                for (thing, held) in names.iter().zip(&mut held) {
                    *held = change.holder(held.as_ref(), thing.as_bytes(), |_| true).unwrap();
                    let whole = policy::named(&policies, thing.as_bytes(), |_| true).map(|(name, _)| name.clone());
                    assert_eq!(*held, whole, "seed {seed}, {thing:?}");
                }
            }
        }
    }

    #[test]
    fn a_later_policy_asks_nothing_but_its_own_pattern() {
        let endless = policy("(?:(?=a)(?:a|aa))+(?!a)b", 1);
        let (old, new) = (Name::from("endless"), Name::from("new"));
        let name = [b'a'; 240];
        let mut policies = BTreeMap::from([(old.clone(), endless.clone())]);
        let change = PolicyChange { name: &old, before: None, after: &policies };
        assert_eq!(change.holder(None, &name, |_| true), Err(TooManySteps), "it is refused by its own change");
        policies.insert(new.clone(), policy(".*", 0));
        let change = PolicyChange { name: &new, before: None, after: &policies };
        assert_eq!(change.holder(None, &name, |_| true), Ok(Some(new)), "and asked by no other");
    }
}

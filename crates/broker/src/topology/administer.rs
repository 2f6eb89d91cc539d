//! What commands about users, virtual hosts and policies do.
//!
//! Invariant: as `apply.rs`: a function of the command and the replicated part. After each of them every queue works by
//! the rules that its arguments and the policies which match it now come to.

use std::collections::BTreeMap;
use std::sync::Arc;

use amqp::Table;

use super::apply::{Effect, Outcome};
use super::command::{Command, PutPolicy};
use super::exchange::{Exchange, PREDECLARED};
use super::name::Name;
use super::password::PasswordHash;
use super::policy::{self, ApplyTo, HeldPolicies, POLICIES_MAX, Policy, check_definition};
use super::queue::{Queue, QueueShape};
use super::refusal::Refusal;
use super::settings::{Wishes, effective};
use super::user::{Permission, TAGS_MAX, TopicPermission, User};
use super::vhost::{VHOST_DESCRIPTION_BYTES_MAX, VHOST_TAGS_MAX, Vhost, VhostDescription};
use super::wording::integer;
use super::{Topology, VHOSTS_EVER_MAX, VHOSTS_MAX};
use crate::ids::VhostId;
use crate::queue::Rules;

impl Topology {
    /// Carries out a command of this file. Errors: 530 for a user or virtual host that is not there, 406 for what is
    /// not lawful.
    pub(super) fn administer(&mut self, command: &Command, effects: &mut Vec<Effect>) -> Result<Outcome, Refusal> {
        match command {
            Command::CreateVhost { name } => return self.create_vhost(name),
            Command::FoundVhost { name, description, owner } => return self.found_vhost(name, description, owner),
            Command::DeleteVhost { vhost } => self.delete_vhost(*vhost, effects),
            Command::DescribeVhost { vhost, description } => self.describe_vhost(*vhost, description)?,
            Command::PutUser { name, password, tags } => self.put_user(name, password, tags)?,
            Command::DeleteUser { name } => {
                if self.users.remove(name).is_some() {
                    effects.push(Effect::UserDeleted { name: name.clone() });
                }
            }
            Command::PutPermission { user, vhost, permission } => {
                self.vhost_name(*vhost)?;
                self.user_mut(user)?.permissions.insert(*vhost, permission.clone());
            }
            Command::ClearPermission { user, vhost } => {
                self.user_mut(user)?.permissions.remove(vhost);
            }
            Command::PutTopicPermission { user, vhost, exchange, write, read } => {
                let permission = TopicPermission::new(user, self.vhost_name(*vhost)?, write, read)
                    .map_err(|wrong| Refusal::precondition_failed(&wrong.to_string()))?;
                self.user_mut(user)?.topic_permissions.insert((*vhost, exchange.clone()), permission);
            }
            Command::ClearTopicPermission { user, vhost, exchange } => {
                self.user_mut(user)?.topic_permissions.remove(&(*vhost, exchange.clone()));
            }
            Command::SetUserLimits { user, limits } => self.user_mut(user)?.limits = *limits,
            Command::SetVhostLimits { vhost, limits } => self.vhost_mut(*vhost)?.limits = *limits,
            Command::PutPolicy(put) => self.put_policy(put, effects)?,
            Command::DeletePolicy { vhost, operator, name } => {
                policies_of(self.vhost_mut(*vhost)?, *operator).remove(name);
                self.match_policies(*vhost, effects);
            }
            _ => unreachable!("commands about queues, exchanges and bindings are carried out elsewhere"),
        }
        self.version += 1;
        Ok(Outcome::Done)
    }

    pub(super) fn create_vhost(&mut self, name: &Name) -> Result<Outcome, Refusal> {
        if let Some(id) = self.vhost(name) {
            return Ok(Outcome::Vhost(id));
        }
        if self.vhost_ids.len() >= VHOSTS_MAX || self.vhosts.len() >= VHOSTS_EVER_MAX {
            return Err(Refusal::not_allowed(&format!(
                "cannot create vhost '{name}': limit ({VHOSTS_MAX}) is reached"
            )));
        }
        let id = VhostId(u32::try_from(self.vhosts.len()).expect("the number of virtual hosts is limited"));
        self.vhosts.push(Some(Box::new(Vhost::new(name.clone()))));
        self.vhost_ids.insert(name.clone(), id);
        for (name, kind, internal) in PREDECLARED {
            self.exchanges.insert(Exchange { internal, ..Exchange::new(id, Name::from(name), kind) });
        }
        self.version += 1;
        Ok(Outcome::Vhost(id))
    }

    fn found_vhost(&mut self, name: &Name, description: &VhostDescription, owner: &Name) -> Result<Outcome, Refusal> {
        if let Some(id) = self.vhost(name) {
            return Ok(Outcome::Vhost(id));
        }
        // Everything that may be refused comes before the first change.
        check_description(description)?;
        let Outcome::Vhost(id) = self.create_vhost(name)? else { unreachable!("a virtual host was made") };
        self.vhost_mut(id)?.description = description.clone();
        // An owner who was deleted meanwhile leaves a virtual host that every administrator may open to others.
        if let Some(user) = self.users.get_mut(owner) {
            user.permissions.insert(id, Permission::everything());
        }
        Ok(Outcome::Vhost(id))
    }

    /// Everything in a virtual host goes with it: exchanges and bindings, queues with their messages, policies, and what users
    /// may do there. Nothing if it is not there.
    ///
    /// Cost: a look at every exchange, queue and user; nobody routes meanwhile.
    fn delete_vhost(&mut self, id: VhostId, effects: &mut Vec<Effect>) {
        let Some(vhost) = self.vhosts.get_mut(id.0 as usize).and_then(Option::take) else { return };
        self.vhost_ids.remove(&vhost.name);
        for user in self.users.values_mut() {
            user.permissions.remove(&id);
            user.topic_permissions.retain(|(of, _), _| *of != id);
        }
        // The exchanges first: with them goes every binding, so that no auto-delete exchange is left to look at.
        let exchanges: Vec<usize> = self.exchanges.iter().filter(|(_, e)| e.vhost == id).map(|(at, _)| at).collect();
        let mut losses = Vec::new();
        exchanges.into_iter().for_each(|at| self.take_exchange(at, &mut losses));
        let mut queues: Vec<_> =
            self.queues.iter().filter(|(_, q)| q.vhost == id).map(|(at, q)| (q.id, q.partition, at)).collect();
        queues.sort_unstable_by_key(|(id, ..)| *id);
        for (id, partition, at) in queues {
            let queue = self.queues.remove(at);
            assert!(queue.incoming.is_empty(), "bindings went with their exchanges");
            effects.push(Effect::QueueDeleted { id, partition });
        }
        effects.push(Effect::VhostDeleted { vhost: id, name: vhost.name });
    }

    fn describe_vhost(&mut self, id: VhostId, description: &VhostDescription) -> Result<(), Refusal> {
        check_description(description)?;
        self.vhost_mut(id)?.description = description.clone();
        Ok(())
    }

    fn put_user(&mut self, name: &Name, password: &PasswordHash, tags: &[Name]) -> Result<(), Refusal> {
        if tags.len() > TAGS_MAX {
            return Err(Refusal::precondition_failed(&format!("a user has at most {TAGS_MAX} tags")));
        }
        let user = self.users.entry(name.clone()).or_insert_with(|| User::new(password.clone(), Vec::new()));
        user.password = password.clone();
        user.tags = tags.to_vec();
        Ok(())
    }

    fn put_policy(&mut self, put: &PutPolicy, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let wrong = |text: String| Refusal::precondition_failed(&format!("policy '{}': {text}", put.name));
        check_definition(&put.policy.definition, put.operator).map_err(|error| wrong(error.to_string()))?;
        let policies = policies_of(self.vhost_mut(put.vhost)?, put.operator);
        if policies.len() >= POLICIES_MAX && !policies.contains_key(&put.name) {
            return Err(wrong(format!("limit of {POLICIES_MAX} is reached")));
        }
        policies.insert(put.name.clone(), put.policy.clone());
        self.match_policies(put.vhost, effects);
        Ok(())
    }

    fn user_mut(&mut self, name: &Name) -> Result<&mut User, Refusal> {
        self.users.get_mut(name).ok_or_else(|| Refusal::not_allowed(&format!("no user '{name}'")))
    }

    fn vhost_mut(&mut self, id: VhostId) -> Result<&mut Vhost, Refusal> {
        let found = self.vhosts.get_mut(id.0 as usize).and_then(Option::as_deref_mut);
        found.ok_or_else(|| Refusal::not_allowed("vhost not found"))
    }

    /// The rules of a queue of this name and shape under the policies as they are now. A queue that no policy matches
    /// shares those of its shape.
    pub(super) fn rules_of(&self, vhost: VhostId, name: &[u8], shape: &QueueShape) -> Arc<Rules> {
        let Some(vhost) = self.vhost_of(vhost) else { return shape.rules.clone() };
        let of = |policies: &BTreeMap<Name, Policy>| {
            let policy = policy::matching(policies, name, |apply_to| apply_to.takes_queue(shape.queue_type));
            policy.map(|policy| Wishes::read(&policy.definition, ""))
        };
        let (policy, operator) = (of(&vhost.policies), of(&vhost.operator_policies));
        if policy.is_none() && operator.is_none() {
            return shape.rules.clone();
        }
        let rules = effective(shape.queue_type, &shape.settings.wishes, policy.as_ref(), operator.as_ref());
        if rules == *shape.rules { shape.rules.clone() } else { Arc::new(rules) }
    }

    /// The policies that hold for a queue, for whoever looks after the broker.
    pub fn policies_of_queue(&self, queue: &Queue) -> HeldPolicies<'_> {
        let Some(vhost) = self.vhost_of(queue.vhost) else { return HeldPolicies::default() };
        let takes = |apply_to: ApplyTo| apply_to.takes_queue(queue.shape.queue_type);
        let policy = policy::named(&vhost.policies, &queue.name, takes);
        let operator = policy::named(&vhost.operator_policies, &queue.name, takes);
        let definition = (policy.is_some() || operator.is_some()).then(|| {
            let mut merged = Table::new();
            let (ours, theirs) = (policy.map(|(_, p)| &p.definition), operator.map(|(_, p)| &p.definition));
            for (key, value) in theirs.into_iter().chain(ours).flat_map(Table::iter) {
                let other =
                    ours.into_iter().flat_map(Table::iter).find(|(known, _)| *known == key).map(|(_, value)| value);
                let (own, other) = (integer(value), other.and_then(|value| Some((integer(value)?, value))));
                let least = match (own, other) {
                    (Some(own), Some((number, other))) if number < own => other,
                    _ => value,
                };
                if !merged.iter().any(|(known, _)| known == key) {
                    merged.push(key.clone(), least.clone());
                }
            }
            merged
        });
        HeldPolicies { policy: policy.map(|p| p.0), operator_policy: operator.map(|p| p.0), definition }
    }

    /// The policy that holds for an exchange.
    pub fn policy_of_exchange(&self, exchange: &Exchange) -> Option<&Name> {
        let vhost = self.vhost_of(exchange.vhost)?;
        policy::named(&vhost.policies, &exchange.name, ApplyTo::takes_exchange).map(|(name, _)| name)
    }

    /// What an exchange of this name falls back to under the policies as they are now, unless its declare said it.
    pub(super) fn alternate_by_policy(&self, vhost: VhostId, name: &[u8]) -> Option<Name> {
        let vhost = self.vhost_of(vhost)?;
        let policy = policy::matching(&vhost.policies, name, ApplyTo::takes_exchange)?;
        policy.alternate_exchange().map(Name::new)
    }

    /// Gives every exchange of a virtual host what it falls back to.
    pub(super) fn match_policies_of_exchanges(&mut self, vhost: VhostId) {
        let of_vhost = self.exchanges.iter().filter(|(_, exchange)| exchange.vhost == vhost);
        let changed: Vec<(usize, Option<Name>)> = of_vhost
            .map(|(at, exchange)| (at, self.alternate_by_policy(vhost, &exchange.name)))
            .filter(|(at, alternate)| self.exchanges[*at].policy_alternate != *alternate)
            .collect();
        for (at, alternate) in changed {
            self.exchanges.get_mut(at).policy_alternate = alternate;
        }
    }

    /// Gives every queue and exchange of a virtual host what it has under the policies as they are now.
    ///
    /// Cost: each queue's name against the patterns; policies change seldom, and nothing else asks.
    pub(super) fn match_policies(&mut self, vhost: VhostId, effects: &mut Vec<Effect>) {
        self.match_policies_of_exchanges(vhost);
        let mut changed = Vec::new();
        for (at, queue) in self.queues.iter().filter(|(_, queue)| queue.vhost == vhost) {
            let rules = self.rules_of(vhost, &queue.name, &queue.shape);
            if rules != queue.rules {
                changed.push((queue.id, at, rules));
            }
        }
        changed.sort_unstable_by_key(|(id, ..)| *id);
        // Queues that were declared alike and are matched alike share their rules.
        let mut shared: Vec<Arc<Rules>> = Vec::new();
        for (id, at, rules) in changed {
            let known = shared.iter().rev().take(SHARED_RULES_TRIED).find(|known| **known == rules).cloned();
            let rules = known.unwrap_or_else(|| {
                shared.push(rules.clone());
                rules
            });
            let queue = self.queues.get_mut(at);
            queue.rules = rules;
            effects.push(Effect::QueueRulesChanged { id, partition: queue.partition });
        }
    }
}

fn check_description(description: &VhostDescription) -> Result<(), Refusal> {
    if description.text.len() > VHOST_DESCRIPTION_BYTES_MAX || description.tags.len() > VHOST_TAGS_MAX {
        return Err(Refusal::precondition_failed(&format!(
            "a virtual host has a description of at most {VHOST_DESCRIPTION_BYTES_MAX} bytes and at most {VHOST_TAGS_MAX} tags"
        )));
    }
    Ok(())
}

/// How many different rules a queue's new rules are compared with before they get memory of their own.
const SHARED_RULES_TRIED: usize = 16;

fn policies_of(vhost: &mut Vhost, operator: bool) -> &mut BTreeMap<Name, Policy> {
    if operator { &mut vhost.operator_policies } else { &mut vhost.policies }
}

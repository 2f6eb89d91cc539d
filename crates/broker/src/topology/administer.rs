//! What commands about users, virtual hosts and policies do.
//!
//! Invariant: as `apply.rs`: a function of the command and the replicated part. After each of them
//! every queue works by the rules that its arguments and the policies which match it now come to.

use std::collections::BTreeMap;
use std::sync::Arc;

use amqp::Table;

use super::apply::{CommandReply, Effect};
use super::cluster::NOT_YET_BY_ALL;
use super::command::{Command, PutPolicy};
use super::exchange::{Exchange, PREDECLARED};
use super::name::Name;
use super::password::{HashAlgorithm, PasswordHash};
use super::policy::{self, ApplyTo, HeldPolicies, POLICIES_MAX, Policy, check_definition};
use super::policy_plan::{Held, PolicyChange};
use super::queue::{Queue, QueueShape};
use super::refusal::Refusal;
use super::settings::{QueueType, Wishes, effective};
use super::user::{Permission, TAGS_MAX, TopicPermission, User};
use super::vhost::{VHOST_DESCRIPTION_BYTES_MAX, VHOST_TAGS_MAX, Vhost, VhostDescription};
use super::wording::integer;
use super::{GLOBAL_PARAMETER_BYTES_MAX, GLOBAL_PARAMETERS_MAX, Topology, VHOSTS_EVER_MAX, VHOSTS_MAX};
use crate::ids::{QueueId, VhostId};
use crate::queue::Rules;

impl Topology {
    /// Carries out a command of this file. Errors: 530 for a user or virtual host that is not
    /// there, 406 for what is not lawful.
    pub(super) fn administer(&mut self, command: &Command, effects: &mut Vec<Effect>) -> Result<CommandReply, Refusal> {
        match command {
            Command::CreateVhost { name } => return self.create_vhost(name),
            Command::FoundVhost { name, description, owner } => return self.found_vhost(name, description, owner),
            Command::DeleteVhost { vhost } => self.delete_vhost(*vhost, effects),
            Command::DescribeVhost { vhost, description } => self.describe_vhost(*vhost, description)?,
            Command::PutGlobalParameter { name, value } => self.put_global_parameter(name, value)?,
            Command::ClearGlobalParameter { name } => {
                self.global_parameters.remove(name);
            }
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
                let vhost_name = self.vhost_name(*vhost)?;
                let permission = match self.names_are_expressions() {
                    true => TopicPermission::stored_before(user, vhost_name, write, read),
                    false => TopicPermission::stored(user, vhost_name, write, read),
                };
                let permission = permission.map_err(|wrong| Refusal::precondition_failed(&wrong.to_string()))?;
                self.user_mut(user)?.topic_permissions.insert((*vhost, exchange.clone()), permission);
            }
            Command::ClearTopicPermission { user, vhost, exchange } => {
                self.user_mut(user)?.topic_permissions.remove(&(*vhost, exchange.clone()));
            }
            Command::SetUserLimits { user, limits } => self.user_mut(user)?.limits = *limits,
            Command::SetVhostLimits { vhost, limits } => self.vhost_mut(*vhost)?.limits = *limits,
            Command::PutPolicy(put) => self.put_policy(put, effects)?,
            Command::DeletePolicy { vhost, operator, name } => {
                let before = policies_of(self.vhost_mut(*vhost)?, *operator).remove(name);
                self.match_changed_policy((*vhost, *operator, name), before.as_ref(), effects);
            }
            _ => unreachable!("commands about queues, exchanges and bindings are carried out elsewhere"),
        }
        self.version += 1;
        Ok(CommandReply::Done)
    }

    fn put_global_parameter(&mut self, name: &Name, value: &str) -> Result<(), Refusal> {
        if value.len() > GLOBAL_PARAMETER_BYTES_MAX {
            let text = format!("a global parameter has at most {GLOBAL_PARAMETER_BYTES_MAX} bytes");
            return Err(Refusal::precondition_failed(&text));
        }
        if self.global_parameters.len() >= GLOBAL_PARAMETERS_MAX && !self.global_parameters.contains_key(name) {
            let text = format!("there are at most {GLOBAL_PARAMETERS_MAX} global parameters");
            return Err(Refusal::precondition_failed(&text));
        }
        self.global_parameters.insert(name.clone(), value.to_owned());
        Ok(())
    }

    pub(super) fn create_vhost(&mut self, name: &Name) -> Result<CommandReply, Refusal> {
        if let Some(id) = self.vhost(name) {
            return Ok(CommandReply::Vhost(id));
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
        Ok(CommandReply::Vhost(id))
    }

    fn found_vhost(
        &mut self,
        name: &Name,
        description: &VhostDescription,
        owner: &Name,
    ) -> Result<CommandReply, Refusal> {
        if let Some(id) = self.vhost(name) {
            return Ok(CommandReply::Vhost(id));
        }
        // Everything that may be refused comes before the first change.
        check_description(description)?;
        let CommandReply::Vhost(id) = self.create_vhost(name)? else { unreachable!("a virtual host was made") };
        self.vhost_mut(id)?.description = description.clone();
        // An owner who was deleted meanwhile leaves a virtual host that every administrator may
        // open to others.
        if let Some(user) = self.users.get_mut(owner) {
            user.permissions.insert(id, Permission::everything());
        }
        Ok(CommandReply::Vhost(id))
    }

    /// Everything in a virtual host goes with it: exchanges and bindings, queues with their
    /// messages, policies, and what users may do there. Nothing if it is not there.
    ///
    /// Cost: a look at every exchange, queue and user; nobody routes meanwhile.
    fn delete_vhost(&mut self, id: VhostId, effects: &mut Vec<Effect>) {
        let Some(vhost) = self.vhosts.get_mut(id.0 as usize).and_then(Option::take) else { return };
        self.vhost_ids.remove(&vhost.name);
        for user in self.users.values_mut() {
            user.permissions.remove(&id);
            user.topic_permissions.retain(|(of, _), _| *of != id);
        }
        // The exchanges first: with them goes every binding, so that no auto-delete exchange is
        // left to look at.
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
        if password.algorithm() == HashAlgorithm::Argon2id && !self.keeps_argon2id() {
            let text = "a hash of Argon2id cannot be kept before all nodes of the cluster run this version of leveret";
            return Err(Refusal::precondition_failed(text));
        }
        let user = self.users.entry(name.clone()).or_insert_with(|| User::new(password.clone(), Vec::new()));
        user.password = password.clone();
        user.tags = tags.to_vec();
        Ok(())
    }

    fn put_policy(&mut self, put: &PutPolicy, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let wrong = |text: String| Refusal::precondition_failed(&format!("policy '{}': {text}", put.name));
        check_definition(&put.policy.definition, put.operator).map_err(|error| wrong(error.to_string()))?;
        if !self.chooses_durability() && policy::names_durability(&put.policy.definition) {
            return Err(wrong(format!("a level of durability {NOT_YET_BY_ALL}")));
        }
        let policies = policies_of(self.vhost_mut(put.vhost)?, put.operator);
        if policies.len() >= POLICIES_MAX && !policies.contains_key(&put.name) {
            return Err(wrong(format!("limit of {POLICIES_MAX} is reached")));
        }
        let before = policies.insert(put.name.clone(), put.policy.clone());
        self.match_changed_policy((put.vhost, put.operator, &put.name), before.as_ref(), effects);
        Ok(())
    }

    fn user_mut(&mut self, name: &Name) -> Result<&mut User, Refusal> {
        self.users.get_mut(name).ok_or_else(|| Refusal::not_allowed(&format!("no user '{name}'")))
    }

    fn vhost_mut(&mut self, id: VhostId) -> Result<&mut Vhost, Refusal> {
        let found = self.vhosts.get_mut(id.0 as usize).and_then(Option::as_deref_mut);
        found.ok_or_else(|| Refusal::not_allowed("vhost not found"))
    }

    /// The policies that hold for a new queue of this name. Cost: its name against the patterns.
    pub(super) fn policies_matching(&self, vhost: VhostId, name: &[u8], queue_type: QueueType) -> Held {
        let Some(vhost) = self.vhost_of(vhost) else { return Held::default() };
        [&vhost.policies, &vhost.operator_policies].map(|policies| {
            let found = policy::named(policies, name, |apply_to| apply_to.takes_queue(queue_type));
            found.map(|(name, _)| name.clone())
        })
    }

    /// The rules of a queue of this shape for which these policies hold. A queue without any shares
    /// those of its shape.
    pub(super) fn rules_under(&self, vhost: VhostId, held: &Held, shape: &QueueShape) -> Arc<Rules> {
        let Some(vhost) = self.vhost_of(vhost) else { return shape.rules.clone() };
        let wishes = |policies: &BTreeMap<Name, Policy>, held: &Option<Name>| {
            held.as_ref().and_then(|name| policies.get(name)).map(|policy| Wishes::read(&policy.definition, ""))
        };
        let policy = wishes(&vhost.policies, &held[0]);
        let operator = wishes(&vhost.operator_policies, &held[1]);
        if policy.is_none() && operator.is_none() {
            return shape.rules.clone();
        }
        let rules = effective(shape.queue_type, &shape.settings.wishes, policy.as_ref(), operator.as_ref());
        if rules == *shape.rules { shape.rules.clone() } else { Arc::new(rules) }
    }

    /// The policies that hold for a queue, for whoever looks after the broker.
    pub fn policies_of_queue(&self, queue: &Queue) -> HeldPolicies<'_> {
        let Some(vhost) = self.vhost_of(queue.vhost) else { return HeldPolicies::default() };
        let policy = queue.held[0].as_ref().and_then(|name| vhost.policies.get_key_value(name));
        let operator = queue.held[1].as_ref().and_then(|name| vhost.operator_policies.get_key_value(name));
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
    pub fn policy_of_exchange<'a>(&self, exchange: &'a Exchange) -> Option<&'a Name> {
        exchange.policy.as_ref()
    }

    /// The policy that holds for a new exchange of this name. Cost: its name against the patterns.
    pub(super) fn policy_matching_exchange(&self, vhost: VhostId, name: &[u8]) -> Option<Name> {
        let vhost = self.vhost_of(vhost)?;
        policy::named(&vhost.policies, name, ApplyTo::takes_exchange).map(|(name, _)| name.clone())
    }

    /// What an exchange falls back to for which this policy holds, unless its declare said it.
    pub(super) fn alternate_under(&self, vhost: VhostId, policy: Option<&Name>) -> Option<Name> {
        let policy = self.vhost_of(vhost)?.policies.get(policy?)?;
        policy.alternate_exchange().map(Name::new)
    }

    /// Gives the exchanges that came with their virtual hosts, before its policies, what they have
    /// under them.
    pub(super) fn match_predeclared_exchanges(&mut self) {
        let predeclared = self.exchanges.iter().filter(|(_, exchange)| exchange.is_predeclared());
        let matched: Vec<(usize, VhostId, Option<Name>)> = predeclared
            .map(|(at, of)| (at, of.vhost, self.policy_matching_exchange(of.vhost, &of.name)))
            .filter(|(.., policy)| policy.is_some())
            .collect();
        for (at, vhost, policy) in matched {
            let alternate = self.alternate_under(vhost, policy.as_ref());
            let exchange = self.exchanges.get_mut(at);
            (exchange.policy, exchange.policy_alternate) = (policy, alternate);
        }
    }

    /// Gives the queues of this node only what they have under policies that came all at once.
    pub(super) fn match_local_queues(&mut self, effects: &mut Vec<Effect>) {
        let local = self.queues.iter().filter(|(_, queue)| queue.id.is_local());
        let matched: Vec<(QueueId, usize, Held)> = local
            .map(|(at, queue)| (queue.id, at, self.policies_matching(queue.vhost, &queue.name, queue.shape.queue_type)))
            .collect();
        self.give_rules(matched, effects);
    }

    /// Gives every queue and exchange of a virtual host what it has after the change of a policy.
    ///
    /// Cost: each name against the pattern that changed, unless a plan was left: see
    /// `policy_plan.rs`.
    fn match_changed_policy(
        &mut self,
        (vhost, operator, name): (VhostId, bool, &Name),
        before: Option<&Policy>,
        effects: &mut Vec<Effect>,
    ) {
        let of = self.vhost_of(vhost).map(|of| if operator { &of.operator_policies } else { &of.policies });
        let Some(after) = of.cloned() else { return };
        let plan = self.take_policy_plan(vhost, operator, name, after.get(name));
        self.policies_version += 1;
        let change = PolicyChange { name, before, after: &after };
        // A pattern that cannot be searched for in a name does not match it.
        let holder =
            |planned: Option<&Option<Name>>, held: Option<&Name>, of: &[u8], takes: &dyn Fn(ApplyTo) -> bool| {
                let decided = planned.cloned().map_or_else(|| change.holder(held, of, takes), Ok);
                decided.unwrap_or_else(|_| match held == Some(name) {
                    true => policy::named(change.after, of, takes).map(|(name, _)| name.clone()),
                    false => held.cloned(),
                })
            };
        if !operator {
            let mut changed = Vec::new();
            for (at, exchange) in self.exchanges.iter().filter(|(_, exchange)| exchange.vhost == vhost) {
                let planned = plan.as_ref().and_then(|plan| plan.of_exchange(&exchange.name));
                let held = holder(planned, exchange.policy.as_ref(), &exchange.name, &ApplyTo::takes_exchange);
                if held != exchange.policy || held.as_ref() == Some(name) {
                    changed.push((at, held));
                }
            }
            for (at, policy) in changed {
                let alternate = self.alternate_under(vhost, policy.as_ref());
                let exchange = self.exchanges.get_mut(at);
                (exchange.policy, exchange.policy_alternate) = (policy, alternate);
            }
        }
        let kind = usize::from(operator);
        let mut changed = Vec::new();
        for (at, queue) in self.queues.iter().filter(|(_, queue)| queue.vhost == vhost) {
            let planned = plan.as_ref().and_then(|plan| plan.of_queue(queue.id));
            let takes = |apply_to: ApplyTo| apply_to.takes_queue(queue.shape.queue_type);
            let held = holder(planned, queue.held[kind].as_ref(), &queue.name, &takes);
            if held != queue.held[kind] || held.as_ref() == Some(name) {
                let mut both = queue.held.clone();
                both[kind] = held;
                changed.push((queue.id, at, both));
            }
        }
        self.give_rules(changed, effects);
    }

    /// Notes which policies hold for queues, and gives those other rules for which that makes a
    /// difference.
    fn give_rules(&mut self, mut changed: Vec<(QueueId, usize, Held)>, effects: &mut Vec<Effect>) {
        changed.sort_unstable_by_key(|(id, ..)| *id);
        // Queues that were declared alike and are matched alike share their rules.
        let mut shared: Vec<Arc<Rules>> = Vec::new();
        for (id, at, held) in changed {
            let queue = &self.queues[at];
            let rules = self.rules_under(queue.vhost, &held, &queue.shape);
            let queue = self.queues.get_mut(at);
            queue.held = held;
            if rules == queue.rules {
                continue;
            }
            effects.push(Effect::QueueRulesChanged { id, partition: queue.partition });
            let known = shared.iter().rev().take(SHARED_RULES_TRIED).find(|known| **known == rules).cloned();
            let rules = known.unwrap_or_else(|| {
                shared.push(rules.clone());
                rules
            });
            self.queues.set_rules(at, rules);
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

/// How many different rules a queue's new rules are compared with before they get memory of their
/// own.
const SHARED_RULES_TRIED: usize = 16;

fn policies_of(vhost: &mut Vhost, operator: bool) -> &mut BTreeMap<Name, Policy> {
    if operator { &mut vhost.operator_policies } else { &mut vhost.policies }
}

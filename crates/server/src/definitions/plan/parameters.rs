//! Parameters and policies. RabbitMQ keeps the limits of virtual hosts, operator policies and what its
//! plugins are told as parameters of a component.
//!
//! Invariant: what only a plugin reads, and keys of policies that need what is not had here, are left out
//! and told; any other component or key that is not known is refused. Global parameters are kept as they are.

use super::values::{amqp_value, name, pattern};
use super::{Done, Planner};
use crate::config::nearest;
use crate::definitions::document::{Fields, Node};
use broker::VhostId;
use broker::topology::{
    ApplyTo, Command, Name, Policy, PutPolicy, check_definition, check_keys, is_unsupported_key, policy_keys,
};
use bytes::Bytes;

/// Global parameters that say something about the cluster they came from and mean nothing in
/// another.
const INFORMATION: &[&str] = &["internal_cluster_id", "imported_definition_hash_value"];

/// Components of RabbitMQ's plugins, which do a work of their own: nothing that is published here
/// goes another way without them.
const PLUGINS: &[&str] = &["shovel", "federation-upstream", "federation-upstream-set"];

/// How deep the value of a global parameter may nest that comes with others: as deep as builds took one that let values
/// nest as deep as their reader went, so that what they exported can be read.
const GLOBAL_DEPTH_MAX: usize = 127;

/// How names of global parameters begin that a plugin of RabbitMQ reads.
const PLUGINS_GLOBAL: &[u8] = b"mqtt_";

/// Why a global parameter of this name is not kept; `None` for one that is.
pub fn meaningless_global(name: &Name) -> Option<String> {
    name.starts_with(PLUGINS_GLOBAL).then(|| format!("the global parameter \"{name}\" means nothing here"))
}

impl Planner<'_> {
    /// A parameter of a component. Those of RabbitMQ's core are limits and operator policies; the
    /// rest are plugins'.
    pub(super) fn parameter(&mut self, node: &Node<'_>) -> Done {
        let mut fields = node.fields()?;
        let vhost = self.vhost_of(&mut fields)?;
        let (component, parameter) = (fields.need("component")?, name(&fields.need("name")?)?);
        let value = fields.need("value")?;
        fields.end()?;
        match component.text()?.as_str() {
            "vhost-limits" => self.vhost_limits(node, vhost, &value),
            "operator_policy" => self.policy(&value, value.properties()?, vhost, true, parameter),
            other if PLUGINS.contains(&other) => {
                self.leave_out(node, format!("the {other} \"{parameter}\" needs a plugin that this version has not"));
                Ok(())
            }
            other => Err(component.wrong(format!("parameters of \"{other}\" are not supported by this version"))),
        }
    }

    /// Tools keep them in the broker, which looks at few of them.
    pub(super) fn global_parameter(&mut self, parameter: &Node<'_>) -> Done {
        let mut fields = parameter.fields()?;
        let name = name(&fields.need("name")?)?;
        let value = fields.take("value").map_or(Ok("null".to_owned()), |node| match node.exact()? {
            deep if json_once::depth(&deep) > GLOBAL_DEPTH_MAX => {
                Err(node.wrong(format!("lists and objects nest more than {GLOBAL_DEPTH_MAX} levels deep")))
            }
            value => Ok(value.to_string()),
        })?;
        if let Some(why) = meaningless_global(&name) {
            self.leave_out(parameter, why);
            return Ok(());
        }
        let is_known = self.copy.global_parameter(&name) == Some(value.as_str());
        if is_known || INFORMATION.iter().any(|other| other.as_bytes() == &*name) {
            return Ok(());
        }
        self.run(parameter, Command::PutGlobalParameter { name, value })
    }

    pub(super) fn policy(
        &mut self,
        node: &Node<'_>,
        mut fields: Fields<'_>,
        vhost: VhostId,
        operator: bool,
        name: Name,
    ) -> Done {
        let pattern = pattern(&fields.need("pattern")?)?;
        let apply_to = match fields.take("apply-to") {
            None => ApplyTo::All,
            Some(node) => {
                let word = node.text()?;
                let known = || ApplyTo::ALL.map(ApplyTo::word).join(", ");
                let found = ApplyTo::ALL.into_iter().find(|apply_to| apply_to.word() == word);
                found.ok_or_else(|| node.wrong(format!("one of {} is expected", known())))?
            }
        };
        let priority = fields.take("priority").map_or(Ok(0), |node| node.integer())?;
        let definition_node = fields.need("definition")?;
        fields.end()?;
        let mut definition = amqp::Table::new();
        let told = self.plan.left_out.len();
        for (key, value) in definition_node.properties()?.rest() {
            if is_unsupported_key(key.as_bytes()) {
                // The policy itself stays, and so its place before those of lower priority.
                let why = match key.starts_with("ha-") {
                    true => {
                        "mirrored queues are not there: in a cluster a classic queue has one copy, on one node. Declare the queues that \
                         are to have copies as quorum queues (x-queue-type: quorum, or the virtual host's default_queue_type)"
                    }
                    false => "this key of the policy needs what this version has not",
                };
                self.leave_out(&value, why.to_owned());
                continue;
            }
            let mut single = amqp::Table::new();
            let value_amqp = amqp_value(&value)?;
            single.push(Bytes::copy_from_slice(key.as_bytes()), value_amqp.clone());
            check_keys(&single, operator).map_err(|error| value.wrong(error.reason + &meant(&key, operator)))?;
            definition.push(Bytes::from(key), value_amqp);
        }
        check_definition(&definition, operator).map_err(|error| definition_node.wrong(error.reason))?;
        if definition.is_empty() && self.plan.left_out.len() > told {
            let export =
                if operator { "" } else { ", and is exported with \"queue-mode\": \"default\", which says nothing" };
            let text = format!(
                "none of the keys of the policy \"{name}\" is left: it stays for its place before those of lower priority, sets \
                 nothing{export}"
            );
            self.leave_out(&definition_node, text);
        }
        let policy = Policy { pattern, apply_to, priority, definition };
        let vhost_now = self.copy.vhost_of(vhost).expect("it was found by name");
        let policies = if operator { &vhost_now.operator_policies } else { &vhost_now.policies };
        if policies.get(&name) == Some(&policy) {
            return Ok(());
        }
        self.run(node, Command::PutPolicy(PutPolicy { vhost, operator, name, policy }))
    }
}

/// Which key of a policy was probably meant, where this is none.
fn meant(key: &str, operator: bool) -> String {
    let is_one = policy_keys(operator).any(|known| known == key);
    let near = nearest(key, policy_keys(operator)).filter(|_| !is_one);
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

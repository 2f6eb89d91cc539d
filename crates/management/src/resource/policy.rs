//! `/api/policies` and `/api/operator-policies`: settings by name.

use super::message::need_keys;
use super::{Cx, NOT_THEIRS, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::{json, listing};
use broker::VhostId;
use broker::topology::{
    ApplyTo, Command, Name, Pattern, Policy, PutPolicy, Topology, Unrecognised, Vhost, policy_keys, unrecognised,
};
use serde_json::{Map, Value, json};
use server::config::nearest;
use std::collections::BTreeMap;

fn policies(vhost: &Vhost, operator: bool) -> &BTreeMap<Name, Policy> {
    if operator { &vhost.operator_policies } else { &vhost.policies }
}

/// GET of all, or of those of a virtual host: everybody may see which there are where they have
/// rights.
pub(super) fn list(cx: Cx<'_>, operator: bool, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let only = vhost.map(|name| cx.visible_vhost(&topology, name)).transpose()?;
    let seen = |id: VhostId| only.map_or_else(|| cx.caller.sees(&topology, id), |only| only == id);
    let items = all(&topology, operator, seen);
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// GET of one, by who may change it.
pub(super) fn get(cx: Cx<'_>, operator: bool, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let id = changed_vhost(cx, operator, vhost)?;
    let topology = cx.handle().topology();
    let vhost = topology.vhost_of(id).ok_or(Refused::NotFound)?;
    let name = Name::new(super::queue::checked(name)?);
    let policy = policies(vhost, operator).get(&name).ok_or(Refused::NotFound)?;
    Ok(Answer::json(&listing::one(cx.call, describe(vhost, &name, policy))))
}

/// PUT of one.
pub(super) async fn put(cx: Cx<'_>, operator: bool, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let vhost = changed_vhost(cx, operator, vhost)?;
    let name = Name::new(super::queue::named(name)?);
    let fields = fields::POLICY.of(&body.read(cx.caller).await?)?;
    put_fields(cx, vhost, operator, name, fields).await
}

/// PUT of one with these fields, by who may.
pub(super) async fn put_fields(
    cx: Cx<'_>,
    vhost: VhostId,
    operator: bool,
    name: Name,
    mut fields: Map<String, Value>,
) -> Result<Answer, Refused> {
    let wrong = |text: String| Refused::BadRequest(text);
    need_keys(&fields, &["pattern", "definition"])?;
    let pattern = match fields.remove("pattern") {
        Some(Value::String(text)) => Pattern::new(&text).map_err(|error| wrong(format!("pattern: {error}")))?,
        _ => return Err(wrong("pattern is no text".to_owned())),
    };
    let apply_to = match fields.remove("apply-to") {
        None | Some(Value::Null) => ApplyTo::All,
        Some(Value::String(word)) => {
            let found = ApplyTo::ALL.into_iter().find(|apply_to| apply_to.word() == word);
            found.ok_or_else(|| {
                wrong(format!("apply-to: '{word}' is none of {}", ApplyTo::ALL.map(ApplyTo::word).join(", ")))
            })?
        }
        Some(_) => return Err(wrong("apply-to is no text".to_owned())),
    };
    let priority = match fields.remove("priority") {
        None | Some(Value::Null) => 0,
        Some(number) => number.as_i64().ok_or_else(|| wrong("priority is no whole number".to_owned()))?,
    };
    fields::check_depth(&fields, "definition")?;
    let definition = json::to_table(&fields["definition"]).map_err(|why| why.of("definition"))?;
    if definition.is_empty() {
        return Err(wrong("a policy has at least one key".to_owned()));
    }
    if let Some(unknown) = unrecognised(&definition, operator) {
        return Err(wrong(not_recognised(&unknown, operator)));
    }
    let policy = Policy { pattern, apply_to, priority, definition };
    let had = cx.handle().topology().vhost_of(vhost).is_some_and(|of| policies(of, operator).contains_key(&name));
    cx.handle().change(Command::PutPolicy(PutPolicy { vhost, operator, name, policy })).await?;
    Ok(Answer::put(!had))
}

/// Why keys are refused: in RabbitMQ's words, and behind them which ones were probably meant.
fn not_recognised(unknown: &Unrecognised, operator: bool) -> String {
    let hint = |(key, is_a_policys): &(String, bool)| match nearest(key, policy_keys(operator)) {
        _ if *is_a_policys => Some(format!("{key} is not a setting of operator policies\n")),
        near => Some(format!("{key}: did you mean {}?\n", near?)),
    };
    let hints: Vec<Option<String>> = unknown.keys.iter().map(hint).collect();
    let all = match hints.contains(&None) {
        true => format!("there are {}\n", policy_keys(operator).collect::<Vec<_>>().join(", ")),
        false => String::new(),
    };
    let hints: String = hints.into_iter().flatten().collect();
    format!("Validation failed\n\n{}\n{hints}{all}", unknown.text)
}

/// DELETE of one.
pub(super) async fn delete(cx: Cx<'_>, operator: bool, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let vhost = changed_vhost(cx, operator, vhost)?;
    let name = Name::new(super::queue::checked(name)?);
    let had = cx.handle().topology().vhost_of(vhost).is_some_and(|of| policies(of, operator).contains_key(&name));
    if !had {
        return Err(Refused::NotFound);
    }
    cx.handle().change(Command::DeletePolicy { vhost, operator, name }).await?;
    Ok(Answer::done())
}

pub(super) const NOT_POLICYMAKER: &str = "Not policymaker user";

/// The virtual host, if the caller may change policies in it: an operator's only an administrator
/// may.
fn changed_vhost(cx: Cx<'_>, operator: bool, name: &[u8]) -> Result<VhostId, Refused> {
    let topology = cx.handle().topology();
    let vhost = find_vhost(&topology, name)?;
    let caller = cx.caller;
    match operator {
        true => caller.need_administrator()?,
        false => {
            caller.need(caller.is_policymaker(), NOT_POLICYMAKER)?;
            caller.need(caller.is_administrator() || caller.uses(&topology, vhost), NOT_THEIRS)?;
        }
    }
    Ok(vhost)
}

/// Every policy of the virtual hosts that `wanted` takes.
pub(super) fn all(topology: &Topology, operator: bool, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let seen = topology.vhosts().filter(|(id, _)| wanted(*id));
    let policies =
        seen.flat_map(|(_, vhost)| policies(vhost, operator).iter().map(move |(name, policy)| (vhost, name, policy)));
    policies.map(|(vhost, name, policy)| describe(vhost, name, policy)).collect()
}

/// The same for an export. One of whose keys none had a meaning here, as those of mirrored queues have not, stays
/// for its place before others, and RabbitMQ takes none without a key: it gets one that says what is so anyway.
pub(super) fn exported(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let mut policies = all(topology, false, wanted);
    policies.iter_mut().for_each(|policy| give_a_key(&mut policy["definition"]));
    policies
}

fn give_a_key(definition: &mut Value) {
    if definition.as_object().is_some_and(|keys| keys.is_empty()) {
        *definition = json!({ "queue-mode": "default" });
    }
}

fn describe(vhost: &Vhost, name: &Name, policy: &Policy) -> Value {
    json!({
        "vhost": json::text(&vhost.name),
        "name": json::text(name),
        "pattern": policy.pattern.text(),
        "apply-to": policy.apply_to.word(),
        "definition": json::table(&policy.definition),
        "priority": policy.priority,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_without_a_key_is_exported_with_one_that_changes_nothing() {
        let exported = |mut definition: Value| {
            give_a_key(&mut definition);
            definition
        };
        assert_eq!(exported(json!({})), json!({ "queue-mode": "default" }));
        assert_eq!(exported(json!({ "max-length": 5 })), json!({ "max-length": 5 }));
    }

    #[test]
    fn an_unknown_key_is_told_with_the_one_that_was_meant_or_with_all() {
        let told = |definition: Value, operator| {
            let table = json::to_table(&definition).expect("an object");
            unrecognised(&table, operator).map(|unknown| not_recognised(&unknown, operator))
        };
        assert_eq!(
            told(json!({ "max-lenght": 5, "expires": 1 }), false).as_deref(),
            Some(
                "Validation failed\n\n[{<<\"max-lenght\">>,5}] are not recognised policy settings\n\
                 max-lenght: did you mean max-length?\n"
            )
        );
        let two =
            told(json!({ "colour": "red", "ttl": 1, "message_ttl": 1, "queue-mode": "lazy" }), true).expect("unknown");
        assert!(
            two.contains("message_ttl: did you mean message-ttl?\nqueue-mode is not a setting of operator policies\n"),
            "{two}"
        );
        assert!(two.ends_with("\n") && two.contains("\nthere are message-ttl, expires, max-length, "), "{two}");
        assert!(!two.contains("dead-letter-exchange"), "not an operator's: {two}");
        assert_eq!(told(json!({ "max-length": 5 }), true), None);
    }
}

//! `/api/parameters`, `/api/global-parameters` and `/api/cluster-name`: what is kept by component
//! and name.
//!
//! Invariant: a component's parameters are the same thing as what has a path of its own, limits of
//! virtual hosts and operator policies; a component that does nothing here is refused, so that
//! nobody believes that it works.

use super::message::need_keys;
use super::queue::{checked, named};
use super::{Cx, find_vhost, limit, policy};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::{json, listing};
use broker::VhostId;
use broker::topology::{Command, Name, Topology, VhostLimits};
use serde_json::{Map, Value, json};
use server::definitions::meaningless_global;

const LIMITS: &[u8] = b"vhost-limits";
const OPERATOR_POLICY: &[u8] = b"operator_policy";
const CLUSTER_NAME: &str = "cluster_name";
/// RabbitMQ's name of what tells one cluster from another for ever. It is not set, and not in an export, which
/// may go to another cluster.
const CLUSTER_ID: &str = "internal_cluster_id";

/// GET of all, or of those of a component, perhaps in one virtual host.
pub(super) fn list(cx: Cx<'_>, component: Option<&[u8]>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    let topology = cx.handle().topology();
    let only = vhost.map(|name| cx.visible_vhost(&topology, name)).transpose()?;
    let seen = |id: VhostId| only.map_or_else(|| cx.caller.sees(&topology, id), |only| only == id);
    let mut items = all(&topology, seen);
    items.retain(|item| component.is_none_or(|wanted| item["component"].as_str().map(str::as_bytes) == Some(wanted)));
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// GET of one.
pub(super) fn get(cx: Cx<'_>, component: &[u8], vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    let topology = cx.handle().topology();
    let only = cx.visible_vhost(&topology, vhost)?;
    let is_it = |item: &Value| item["component"] == json::text(component) && item["name"] == json::text(name);
    let found = all(&topology, |id| id == only).into_iter().find(is_it).ok_or(Refused::NotFound)?;
    Ok(Answer::json(&listing::one(cx.call, found)))
}

/// PUT of one.
pub(super) async fn put(
    cx: Cx<'_>,
    component: &[u8],
    vhost_name: &[u8],
    name: &[u8],
    body: Body,
) -> Result<Answer, Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    let vhost = find_vhost(&cx.handle().topology(), vhost_name);
    let vhost = vhost.map_err(|_| Refused::Missing("vhost_not_found".to_owned()))?;
    // Both are an administrator's where they have paths of their own.
    let known = [LIMITS, OPERATOR_POLICY].contains(&component);
    if known {
        cx.caller.need_administrator()?;
    }
    let mut fields = fields::PARAMETER.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["value"])?;
    let wrong = |text: &str| Refused::BadRequest(text.to_owned());
    match (component, fields.remove("value")) {
        (LIMITS, Some(Value::Object(value))) => put_limits(cx, vhost, name, &value).await,
        (OPERATOR_POLICY, Some(Value::Object(value))) => {
            fields::POLICY.check(&value)?;
            policy::put_fields(cx, vhost, true, Name::new(named(name)?), value).await
        }
        (LIMITS | OPERATOR_POLICY, _) => Err(wrong("value is no object")),
        (b"policy", _) => Err(wrong("policies may not be set using this method")),
        (other, _) => Err(Refused::BadRequest(not_there(other))),
    }
}

/// DELETE of one.
pub(super) async fn delete(cx: Cx<'_>, component: &[u8], vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    match component {
        LIMITS => {
            cx.caller.need_administrator()?;
            let id = find_vhost(&cx.handle().topology(), vhost)?;
            let held = cx.handle().topology().vhost_of(id).is_some_and(|of| of.limits != VhostLimits::default());
            if !held || name != b"limits" {
                return Err(Refused::NotFound);
            }
            cx.handle().change(Command::SetVhostLimits { vhost: id, limits: VhostLimits::default() }).await?;
            Ok(Answer::done())
        }
        OPERATOR_POLICY => policy::delete(cx, true, vhost, name).await,
        _ => Err(Refused::NotFound),
    }
}

async fn put_limits(cx: Cx<'_>, vhost: VhostId, name: &[u8], value: &Map<String, Value>) -> Result<Answer, Refused> {
    if name != b"limits" {
        return Err(Refused::BadRequest("the limits of a virtual host are called limits".to_owned()));
    }
    let mut limits = VhostLimits::default();
    for (key, number) in value {
        limit::set_vhost(&mut limits, key.as_bytes(), limit::whole(number)?)?;
    }
    let before = cx.handle().topology().vhost_of(vhost).map(|of| of.limits).unwrap_or_default();
    cx.handle().change(Command::SetVhostLimits { vhost, limits }).await?;
    Ok(Answer::put(before == VhostLimits::default()))
}

/// Why there is no such component, in RabbitMQ's words, and whether there will be.
fn not_there(component: &[u8]) -> String {
    let later = match component {
        b"shovel" => "shovels come with a later version\n",
        b"federation-upstream" | b"federation-upstream-set" => "federation comes with a later version\n",
        _ => "",
    };
    format!("Validation failed\n\ncomponent {} not found\n{later}", String::from_utf8_lossy(component))
}

/// GET of global parameters.
pub(super) fn list_global(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    let mut items = all_global(&cx.handle().topology());
    items.push(cluster_id(cx));
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

fn cluster_id(cx: Cx<'_>) -> Value {
    json!({ "name": CLUSTER_ID, "value": cx.handle().facts().permanent_id() })
}

/// Refuses to keep what nothing here reads, as definitions leave it out. What was kept before may go.
fn check_meaning(name: &Name) -> Result<(), Refused> {
    meaningless_global(name).map_or(Ok(()), |why| Err(Refused::BadRequest(why)))
}

/// Refuses to change what is the cluster's own; its name is an administrator's, as where it has a path of its own.
fn check_changes(cx: Cx<'_>, name: &[u8]) -> Result<(), Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    if name == CLUSTER_NAME.as_bytes() {
        cx.caller.need_administrator()?;
    }
    match name == CLUSTER_ID.as_bytes() {
        true => Err(Refused::BadRequest(format!("{CLUSTER_ID} is the cluster's own and does not change"))),
        false => Ok(()),
    }
}

/// GET of one.
pub(super) fn get_global(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need(cx.caller.is_policymaker(), policy::NOT_POLICYMAKER)?;
    let name = checked(name)?;
    if name == CLUSTER_ID.as_bytes() {
        return Ok(Answer::json(&listing::one(cx.call, cluster_id(cx))));
    }
    let topology = cx.handle().topology();
    let value = topology.global_parameter(name).ok_or(Refused::NotFound)?;
    Ok(Answer::json(&listing::one(cx.call, describe_global(name, value))))
}

/// PUT of one.
pub(super) async fn put_global(cx: Cx<'_>, name: &[u8], body: Body) -> Result<Answer, Refused> {
    check_changes(cx, name)?;
    let name = Name::new(named(name)?);
    check_meaning(&name)?;
    let fields = fields::PARAMETER.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["value"])?;
    fields::check_depth(&fields, "value")?;
    if *name == *CLUSTER_NAME.as_bytes() {
        check_cluster_name(&fields["value"])?;
    }
    let had = cx.handle().topology().global_parameter(&name).is_some();
    cx.handle().change(Command::PutGlobalParameter { name, value: fields["value"].to_string() }).await?;
    Ok(Answer::put(!had))
}

/// DELETE of one.
pub(super) async fn delete_global(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    check_changes(cx, name)?;
    let name = checked(name)?;
    cx.handle().topology().global_parameter(name).ok_or(Refused::NotFound)?;
    cx.handle().change(Command::ClearGlobalParameter { name: Name::new(name) }).await?;
    Ok(Answer::done())
}

/// GET of the cluster's name, which is the node's unless it was given one.
pub(super) fn cluster_name(cx: Cx<'_>) -> Result<Answer, Refused> {
    Ok(Answer::json(&listing::one(cx.call, json!({ "name": cx.handle().cluster_name() }))))
}

/// PUT of the cluster's name. Clients hear of it when they connect next.
pub(super) async fn put_cluster_name(cx: Cx<'_>, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let fields = fields::CLUSTER_NAME.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["name"])?;
    check_cluster_name(&fields["name"])?;
    let (name, value) = (Name::from(CLUSTER_NAME), fields["name"].to_string());
    cx.handle().change(Command::PutGlobalParameter { name, value }).await?;
    Ok(Answer::done())
}

fn check_cluster_name(value: &Value) -> Result<(), Refused> {
    match value.as_str() {
        Some(name) if !name.is_empty() && name.len() <= broker::topology::NAME_BYTES_MAX => Ok(()),
        _ => Err(Refused::BadRequest("the cluster's name is a text of 1 to 255 bytes".to_owned())),
    }
}

/// Every global parameter.
pub(super) fn all_global(topology: &Topology) -> Vec<Value> {
    topology.global_parameters().map(|(name, value)| describe_global(name, value)).collect()
}

fn describe_global(name: &[u8], value: &str) -> Value {
    json!({ "name": json::text(name), "value": json_once::value(value.as_bytes()).unwrap_or_default() })
}

/// Every parameter of the virtual hosts that `wanted` takes.
pub(super) fn all(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let mut items = Vec::new();
    for mut limits in limit::all_of_vhosts(topology, &wanted) {
        limits["component"] = "vhost-limits".into();
        limits["name"] = "limits".into();
        items.push(limits);
    }
    for mut held in policy::all(topology, true, &wanted) {
        let Some(fields) = held.as_object_mut() else { continue };
        let (vhost, name) = (fields.remove("vhost"), fields.remove("name"));
        items.push(json!({ "component": "operator_policy", "vhost": vhost, "name": name, "value": fields }));
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_global_parameter_that_definitions_leave_out_is_refused() {
        let refused = check_meaning(&Name::from("mqtt_port_to_vhost_mapping"));
        let why = "the global parameter \"mqtt_port_to_vhost_mapping\" means nothing here";
        assert!(matches!(refused, Err(Refused::BadRequest(told)) if told == why));
        assert!(check_meaning(&Name::from("cluster_tags")).is_ok());
    }
}

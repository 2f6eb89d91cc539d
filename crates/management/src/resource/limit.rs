//! `/api/vhost-limits` and `/api/user-limits`: how much there may be.

use super::message::need_keys;
use super::{Cx, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::{json, listing};
use broker::VhostId;
use broker::topology::{Command, Name, Topology, User, UserLimits, Vhost, VhostLimits};
use bytes::Bytes;
use serde_json::{Map, Value, json};

const CONNECTIONS: &str = "max-connections";
const QUEUES: &str = "max-queues";
const CHANNELS: &str = "max-channels";

/// The limits of a user that are set.
pub(super) fn of_user(user: &User) -> Value {
    set([(CONNECTIONS, user.limits.connections_max), (CHANNELS, user.limits.channels_max)])
}

/// The limits of a virtual host that are set.
pub(super) fn of_vhost(vhost: &Vhost) -> Value {
    set([(CONNECTIONS, vhost.limits.connections_max), (QUEUES, vhost.limits.queues_max)])
}

fn set(limits: [(&str, Option<u32>); 2]) -> Value {
    let held = limits.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), Value::from(limit?))));
    Value::Object(held.collect::<Map<_, _>>())
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_none_or(Map::is_empty)
}

/// GET of virtual hosts with limits, or of one.
pub(super) fn vhosts(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let only = vhost.map(|name| cx.monitored_vhost(&topology, name)).transpose()?;
    let seen = |id: VhostId| only.map_or_else(|| cx.caller.monitors(&topology, id), |only| only == id);
    let items = all_of_vhosts(&topology, seen);
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// Virtual hosts with limits that `wanted` takes.
pub(super) fn all_of_vhosts(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let seen = topology.vhosts().filter(|(id, _)| wanted(*id));
    let limits = seen.map(|(_, vhost)| (vhost, of_vhost(vhost))).filter(|(_, value)| !is_empty(value));
    limits.map(|(vhost, value)| json!({ "vhost": json::text(&vhost.name), "value": value })).collect()
}

/// GET of users with limits, or of one. Who is no administrator sees their own, and of others
/// nothing.
pub(super) fn users(cx: Cx<'_>, user: Option<&[u8]>) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    if let Some(user) = user {
        topology.user(user).ok_or(Refused::NotFound)?;
    }
    let is_seen = |name: &Name| cx.caller.is_administrator() || *name == cx.caller.name;
    let seen = topology.users().filter(|(name, _)| is_seen(name) && user.is_none_or(|user| ***name == *user));
    let limits = seen.map(|(name, user)| (name, of_user(user))).filter(|(_, value)| !is_empty(value));
    let items = limits.map(|(name, value)| json!({ "user": json::text(name), "value": value })).collect();
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// PUT of one limit of a virtual host; a number below zero takes it away.
pub(super) async fn put_vhost(cx: Cx<'_>, vhost: &[u8], limit: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let value = number(&body.read(cx.caller).await?)?;
    change_vhost(cx, vhost, limit, value).await?;
    Ok(Answer::done())
}

/// DELETE of one limit of a virtual host.
pub(super) async fn delete_vhost(cx: Cx<'_>, vhost: &[u8], limit: &[u8]) -> Result<Answer, Refused> {
    change_vhost(cx, vhost, limit, None).await?;
    Ok(Answer::done())
}

/// PUT of one limit of a user; a number below zero takes it away.
pub(super) async fn put_user(cx: Cx<'_>, user: &[u8], limit: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let value = number(&body.read(cx.caller).await?)?;
    change_user(cx, user, limit, value).await?;
    Ok(Answer::done())
}

/// DELETE of one limit of a user.
pub(super) async fn delete_user(cx: Cx<'_>, user: &[u8], limit: &[u8]) -> Result<Answer, Refused> {
    change_user(cx, user, limit, None).await?;
    Ok(Answer::done())
}

async fn change_vhost(cx: Cx<'_>, vhost: &[u8], limit: &[u8], value: Option<u32>) -> Result<(), Refused> {
    cx.caller.need_administrator()?;
    let (vhost, mut limits) = {
        let topology = cx.handle().topology();
        let id = find_vhost(&topology, vhost)?;
        (id, topology.vhost_of(id).map_or_else(VhostLimits::default, |vhost| vhost.limits))
    };
    set_vhost(&mut limits, limit, value)?;
    cx.handle().change(Command::SetVhostLimits { vhost, limits }).await?;
    Ok(())
}

/// Sets a limit of a virtual host by its name.
pub(super) fn set_vhost(limits: &mut VhostLimits, limit: &[u8], value: Option<u32>) -> Result<(), Refused> {
    match limit {
        _ if limit == CONNECTIONS.as_bytes() => limits.connections_max = value,
        _ if limit == QUEUES.as_bytes() => limits.queues_max = value,
        _ => return Err(unknown(limit)),
    }
    Ok(())
}

/// The limits of a user with those that the body of a PUT of the user names.
pub(super) fn with_limits(mut limits: UserLimits, named: Option<&Value>) -> Result<UserLimits, Refused> {
    let named = match named {
        None | Some(Value::Null) => return Ok(limits),
        Some(Value::Object(named)) => named,
        Some(Value::Array(items)) if items.is_empty() => return Ok(limits),
        Some(_) => return Err(Refused::BadRequest("limits is no object".to_owned())),
    };
    for (limit, value) in named {
        set_user(&mut limits, limit.as_bytes(), whole(value)?)?;
    }
    Ok(limits)
}

/// Sets a limit of a user by its name.
fn set_user(limits: &mut UserLimits, limit: &[u8], value: Option<u32>) -> Result<(), Refused> {
    match limit {
        _ if limit == CONNECTIONS.as_bytes() => limits.connections_max = value,
        _ if limit == CHANNELS.as_bytes() => limits.channels_max = value,
        _ => return Err(unknown(limit)),
    }
    Ok(())
}

async fn change_user(cx: Cx<'_>, user: &[u8], limit: &[u8], value: Option<u32>) -> Result<(), Refused> {
    cx.caller.need_administrator()?;
    // As RabbitMQ says it.
    let nobody = || Refused::Because(json!(["no_such_user", json::text(user)]));
    let mut limits: UserLimits = cx.handle().topology().user(user).ok_or_else(nobody)?.limits;
    set_user(&mut limits, limit, value)?;
    cx.handle().change(Command::SetUserLimits { user: Name::new(user), limits }).await?;
    Ok(())
}

fn unknown(limit: &[u8]) -> Refused {
    Refused::BadRequest(format!("unrecognised limit '{}'", String::from_utf8_lossy(limit)))
}

fn number(body: &Bytes) -> Result<Option<u32>, Refused> {
    let fields = fields::LIMIT.of(body)?;
    need_keys(&fields, &["value"])?;
    whole(&fields["value"])
}

/// A limit out of a body; a number below zero is none.
pub(super) fn whole(value: &Value) -> Result<Option<u32>, Refused> {
    match value.as_i64() {
        Some(number) if number < 0 => Ok(None),
        Some(number) => {
            u32::try_from(number).map(Some).map_err(|_| Refused::BadRequest("a limit is at most 4294967295".to_owned()))
        }
        None => Err(Refused::BadRequest("value is no whole number".to_owned())),
    }
}

//! `/api/permissions` and `/api/topic-permissions`: who may do what.

use super::message::need_keys;
use super::{Cx, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::{json, listing};
use broker::VhostId;
use broker::topology::{Command, Name, Pattern, Permission, Topology};
use serde_json::{Map, Value, json};

/// Which of them.
#[derive(Clone, Copy, Default)]
pub(super) struct Of<'a> {
    /// Of this virtual host only.
    pub(super) vhost: Option<&'a [u8]>,
    /// Of this user only.
    pub(super) user: Option<&'a [u8]>,
}

/// GET of permissions.
pub(super) fn list(cx: Cx<'_>, of: Of<'_>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let vhost = check(&topology, of)?;
    let items = all(&topology, |id, name| vhost.is_none_or(|v| v == id) && of.user.is_none_or(|user| **name == *user));
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// GET of topic permissions.
pub(super) fn list_topics(cx: Cx<'_>, of: Of<'_>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let vhost = check(&topology, of)?;
    let wanted = |id: VhostId, name: &Name| vhost.is_none_or(|v| v == id) && of.user.is_none_or(|user| **name == *user);
    let items = all_topics(&topology, wanted);
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// GET of what one user may do in one virtual host.
pub(super) fn get(cx: Cx<'_>, vhost: &[u8], user: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let vhost = find_vhost(&topology, vhost)?;
    let found = all(&topology, |id, name| id == vhost && **name == *user).pop().ok_or(Refused::NotFound)?;
    Ok(Answer::json(&listing::one(cx.call, found)))
}

/// GET of the topic permissions of one user in one virtual host.
pub(super) fn get_topics(cx: Cx<'_>, vhost: &[u8], user: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let vhost = find_vhost(&topology, vhost)?;
    topology.user(user).ok_or(Refused::NotFound)?;
    let found = all_topics(&topology, |id, name| id == vhost && **name == *user);
    if found.is_empty() {
        return Err(Refused::NotFound);
    }
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, found)?))
}

/// PUT of what one user may do in one virtual host.
pub(super) async fn put(cx: Cx<'_>, vhost: &[u8], user: &[u8], body: Body) -> Result<Answer, Refused> {
    let (vhost, name, had) = pair(cx, vhost, user).map_err(unlawful)?;
    let fields = fields::PERMISSION.of(&body.read(cx.caller).await?)?;
    let permission = read(&fields)?;
    cx.handle().change(Command::PutPermission { user: name, vhost, permission }).await?;
    Ok(Answer::put(!had))
}

/// DELETE of what one user may do in one virtual host.
pub(super) async fn delete(cx: Cx<'_>, vhost: &[u8], user: &[u8]) -> Result<Answer, Refused> {
    let (vhost, name, had) = pair(cx, vhost, user)?;
    if !had {
        return Err(Refused::NotFound);
    }
    cx.handle().change(Command::ClearPermission { user: name, vhost }).await?;
    Ok(Answer::done())
}

/// PUT of what one user may do with the keys of one topic exchange.
pub(super) async fn put_topic(cx: Cx<'_>, vhost: &[u8], user: &[u8], body: Body) -> Result<Answer, Refused> {
    let (vhost, name, _) = pair(cx, vhost, user).map_err(unlawful)?;
    let fields = fields::TOPIC_PERMISSION.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["exchange", "write", "read"])?;
    let text = |key: &str| match &fields[key] {
        Value::String(text) => Ok(text.clone()),
        _ => Err(Refused::BadRequest(format!("{key} is no text"))),
    };
    let exchange = text("exchange")?;
    let exchange = Name::new(super::queue::checked(super::exchange::from_path(exchange.as_bytes()))?);
    let command = {
        let (write, read) = (text("write")?, text("read")?);
        Command::PutTopicPermission { user: name.clone(), vhost, exchange: exchange.clone(), write, read }
    };
    let has = |topology: &Topology| {
        topology.user(&name).is_some_and(|user| user.topic_permissions.contains_key(&(vhost, exchange.clone())))
    };
    let had = has(&cx.handle().topology());
    cx.handle().change(command).await?;
    Ok(Answer::put(!had))
}

/// DELETE of what one user may do with the keys of one topic exchange, or of all of them.
pub(super) async fn delete_topic(
    cx: Cx<'_>,
    vhost: &[u8],
    user: &[u8],
    exchange: Option<&[u8]>,
) -> Result<Answer, Refused> {
    let (vhost, name, _) = pair(cx, vhost, user)?;
    let wanted = exchange.map(super::exchange::from_path);
    let exchanges: Vec<Name> = {
        let topology = cx.handle().topology();
        let held = topology.user(&name).into_iter().flat_map(|user| user.topic_permissions.keys());
        let held = held.filter(|(of, exchange)| *of == vhost && wanted.is_none_or(|wanted| **exchange == *wanted));
        held.map(|(_, exchange)| exchange.clone()).collect()
    };
    if exchanges.is_empty() {
        return Err(Refused::NotFound);
    }
    for exchange in exchanges {
        cx.handle().change(Command::ClearTopicPermission { user: name.clone(), vhost, exchange }).await?;
    }
    Ok(Answer::done())
}

/// Every permission that `wanted` takes.
pub(super) fn all(topology: &Topology, wanted: impl Fn(VhostId, &Name) -> bool) -> Vec<Value> {
    let mut items = Vec::new();
    for (name, user) in topology.users() {
        for (vhost, permission) in user.permissions.iter().filter(|(vhost, _)| wanted(**vhost, name)) {
            items.push(json!({
                "user": json::text(name),
                "vhost": topology.vhost_of(*vhost).map(|vhost| json::text(&vhost.name)),
                "configure": permission.configure.text(),
                "write": permission.write.text(),
                "read": permission.read.text(),
            }));
        }
    }
    items
}

/// Every topic permission that `wanted` takes.
pub(super) fn all_topics(topology: &Topology, wanted: impl Fn(VhostId, &Name) -> bool) -> Vec<Value> {
    let mut items = Vec::new();
    for (name, user) in topology.users() {
        for ((vhost, exchange), permission) in user.topic_permissions.iter().filter(|((v, _), _)| wanted(*v, name)) {
            let (write, read) = permission.texts();
            items.push(json!({
                "user": json::text(name),
                "vhost": topology.vhost_of(*vhost).map(|vhost| json::text(&vhost.name)),
                "exchange": json::text(exchange),
                "write": write,
                "read": read,
            }));
        }
    }
    items
}

fn check(topology: &Topology, of: Of<'_>) -> Result<Option<VhostId>, Refused> {
    if let Some(user) = of.user {
        topology.user(user).ok_or(Refused::NotFound)?;
    }
    of.vhost.map(|vhost| find_vhost(topology, vhost)).transpose()
}

/// Both ends of a permission, and whether it is there.
fn pair(cx: Cx<'_>, vhost: &[u8], user: &[u8]) -> Result<(VhostId, Name, bool), Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let vhost = find_vhost(&topology, vhost)?;
    let had = topology.user(user).ok_or(Refused::NotFound)?.permissions.contains_key(&vhost);
    Ok((vhost, Name::new(user), had))
}

/// A permission that cannot be, for want of its virtual host or its user: it is the request that is
/// wrong, not its path.
fn unlawful(refused: Refused) -> Refused {
    if refused == Refused::NotFound { Refused::BadRequest("vhost_or_user_not_found".to_owned()) } else { refused }
}

/// A permission out of a body.
pub(super) fn read(fields: &Map<String, Value>) -> Result<Permission, Refused> {
    need_keys(fields, &["configure", "write", "read"])?;
    Ok(Permission {
        configure: pattern(fields, "configure")?,
        write: pattern(fields, "write")?,
        read: pattern(fields, "read")?,
    })
}

fn pattern(fields: &Map<String, Value>, key: &str) -> Result<Pattern, Refused> {
    match &fields[key] {
        Value::String(text) => Pattern::new(text).map_err(|wrong| Refused::BadRequest(format!("{key}: {wrong}"))),
        _ => Err(Refused::BadRequest(format!("{key} is no text"))),
    }
}

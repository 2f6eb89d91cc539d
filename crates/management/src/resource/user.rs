//! `/api/users`: who may log in.
//!
//! Invariant: a password goes in and never comes out; what is shown is the hash, to administrators,
//! as RabbitMQ shows it.

use super::message::need_keys;
use super::queue::named;
use super::{Cx, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::{json, listing};
use broker::VhostId;
use broker::topology::{
    Command, HashAlgorithm, NAME_BYTES_MAX, Name, OPERATOR, OPERATORS_NAME, PasswordHash, Permission, User,
};
use serde_json::{Map, Value, json};
use server::definitions::{named_by, read_hash, text_of};

/// The longest password: a login carries no longer one.
const PASSWORD_BYTES_MAX: usize = 4096;
/// Users of one bulk delete.
const BULK_MAX: usize = 4096;

/// GET of all, or of those who may open no virtual host.
pub(super) fn list(cx: Cx<'_>, only_without_permissions: bool) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let all = topology.users().filter(|(_, user)| !only_without_permissions || user.permissions.is_empty());
    let items = all.map(|(name, user)| describe(name, user)).collect();
    drop(topology);
    Ok(Answer::json(&listing::list(cx.call, items)?))
}

/// GET of one.
pub(super) fn get(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let topology = cx.handle().topology();
    let user = topology.user(name).ok_or(Refused::NotFound)?;
    Ok(Answer::json(&listing::one(cx.call, describe(&Name::new(name), user))))
}

/// PUT: makes the user or replaces password and tags.
pub(super) async fn put(cx: Cx<'_>, name: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let name = Name::new(named(name)?);
    if name.is_empty() {
        return Err(Refused::BadRequest("a user needs a name".to_owned()));
    }
    if *name == *OPERATOR.as_bytes() {
        return Err(Refused::BadRequest(OPERATORS_NAME.to_owned()));
    }
    let fields = fields::USER.of(&body.read(cx.caller).await?)?;
    // Of a body that says both the tags count, which is no reason to pass over what the other one is.
    let is_administrator = super::queue::flag(&fields, "administrator", false)?;
    let tags = match fields.get("tags") {
        // As it was said before there were tags, and RabbitMQ still takes it.
        None if fields.contains_key("administrator") => {
            is_administrator.then(|| Name::from("administrator")).into_iter().collect()
        }
        None => return Err(Refused::BadRequest("tags_not_present".to_owned())),
        Some(value) => tags(value).ok_or_else(|| Refused::BadRequest("tags are a list or a text".to_owned()))?,
    };
    let permissions = permissions(cx, &fields)?;
    let password = password(cx, &fields).await?;
    let (known, lacking) = {
        let topology = cx.handle().topology();
        let user = topology.user(&name);
        (user.map(|user| user.limits), lacking(user, permissions))
    };
    let before = known.unwrap_or_default();
    let limits = super::limit::with_limits(before, fields.get("limits"))?;
    cx.handle().change(Command::PutUser { name: name.clone(), password, tags }).await?;
    if limits != before {
        cx.handle().change(Command::SetUserLimits { user: name.clone(), limits }).await?;
    }
    for (vhost, permission) in lacking {
        cx.handle().change(Command::PutPermission { user: name.clone(), vhost, permission }).await?;
    }
    Ok(Answer::put(known.is_none()))
}

/// Those of a body's permissions that a PUT of this user gives: a user that was there keeps its own, as in RabbitMQ. One that
/// has none but the body's is what such a PUT left that came only half way, as each permission is a change of its own:
/// the same PUT gives what is missing.
fn lacking(user: Option<&User>, permissions: Vec<(VhostId, Permission)>) -> Vec<(VhostId, Permission)> {
    let held = user.map(|user| &user.permissions);
    let is_of_body = |(vhost, held): (&VhostId, &Permission)| {
        permissions.iter().any(|(of, permission)| of == vhost && permission == held)
    };
    if !held.into_iter().flatten().all(is_of_body) {
        return Vec::new();
    }
    let is_held = |vhost: &VhostId| held.is_some_and(|held| held.contains_key(vhost));
    permissions.into_iter().filter(|(vhost, _)| !is_held(vhost)).collect()
}

/// The permissions that a body gives, by virtual host.
fn permissions(cx: Cx<'_>, fields: &Map<String, Value>) -> Result<Vec<(VhostId, Permission)>, Refused> {
    let named = match fields.get("permissions") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(named)) => named,
        Some(_) => return Err(Refused::BadRequest("permissions is no object".to_owned())),
    };
    let topology = cx.handle().topology();
    let one = |(vhost, said): (&String, &Value)| {
        let unknown = |_| Refused::BadRequest(format!("permissions: there is no virtual host '{vhost}'"));
        let id = find_vhost(&topology, vhost.as_bytes()).map_err(unknown)?;
        let said = said.as_object().ok_or_else(|| Refused::BadRequest(format!("permissions: {vhost} is no object")))?;
        fields::PERMISSION.check(said)?;
        Ok((id, super::permission::read(said)?))
    };
    named.iter().map(one).collect()
}

/// DELETE; the user's connections are closed.
pub(super) async fn delete(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.handle().topology().user(name).ok_or(Refused::NotFound)?;
    cx.handle().change(Command::DeleteUser { name: Name::new(name) }).await?;
    Ok(Answer::done())
}

/// POST of a list of users to delete.
pub(super) async fn bulk_delete(cx: Cx<'_>, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let fields = fields::USERS.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["users"])?;
    let names = fields["users"].as_array().ok_or_else(|| Refused::BadRequest("users is no list".to_owned()))?;
    if names.len() > BULK_MAX {
        return Err(Refused::BadRequest(format!("at most {BULK_MAX} users at a time")));
    }
    for name in names {
        let name = name.as_str().filter(|name| name.len() <= NAME_BYTES_MAX);
        let name = name.ok_or_else(|| Refused::BadRequest("users are names".to_owned()))?;
        cx.handle().change(Command::DeleteUser { name: Name::from(name) }).await?;
        // The path does not say who is gone.
        let (user, peer) = (cx.caller.name.to_string(), cx.call.peer);
        tracing::info!(target: "audit", user = &*user, %peer, change = "bulk-delete", name, "audit");
    }
    Ok(Answer::done())
}

/// Tags as a list of texts, or one text with commas.
pub(super) fn tags(value: &Value) -> Option<Vec<Name>> {
    let name = |text: &str| (text.len() <= NAME_BYTES_MAX).then(|| Name::from(text));
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(name).collect(),
        Value::Array(items) => items.iter().map(|item| name(item.as_str()?)).collect(),
        _ => None,
    }
}

async fn password(cx: Cx<'_>, fields: &Map<String, Value>) -> Result<PasswordHash, Refused> {
    let wrong = |text: String| Refused::BadRequest(text);
    if ["password", "password_hash"].iter().all(|name| fields.get(*name).is_some_and(|value| !value.is_null())) {
        return Err(wrong("both_password_and_password_hash_are_provided".to_owned()));
    }
    let unknown = |word: &str| wrong(format!("unknown hashing algorithm '{word}'"));
    let algorithm = fields::text(fields, "hashing_algorithm")?;
    let algorithm = algorithm.map(|word| HashAlgorithm::of_module(word).ok_or_else(|| unknown(word))).transpose()?;
    if let Some(hash) = fields::text(fields, "password_hash")? {
        let algorithm = algorithm.or_else(|| named_by(hash)).unwrap_or(HashAlgorithm::Sha256);
        return read_hash(Some(algorithm), hash).map_err(|why| wrong(format!("password_hash: {why}")));
    }
    match fields.get("password") {
        Some(Value::String(password)) if password.len() <= PASSWORD_BYTES_MAX => {
            let hashed = cx.handle().hash_password(password.as_bytes()).await;
            // Nothing was changed yet.
            let busy = || Refused::Unavailable("too many passwords wait to be hashed: ask again".to_owned());
            hashed.ok_or_else(busy)
        }
        Some(_) => Err(wrong(format!("password is a text of at most {PASSWORD_BYTES_MAX} bytes"))),
        // Nobody logs in with a password then; a certificate may still name the user.
        None => PasswordHash::from_bytes(HashAlgorithm::Sha256, &[]).ok_or_else(|| wrong("no password".to_owned())),
    }
}

/// A user as exports and lists show it.
pub(super) fn describe(name: &Name, user: &User) -> Value {
    let tags: Vec<Value> = user.tags.iter().map(|tag| json::text(tag)).collect();
    json!({
        "name": json::text(name),
        "password_hash": text_of(&user.password),
        "hashing_algorithm": user.password.algorithm().module(),
        "tags": tags,
        "limits": super::limit::of_user(user),
    })
}

//! `/api/definitions`: everything that is declared, out and in.
//!
//! Invariant: what goes out can be taken in again by this broker and by RabbitMQ. Hashes go out and
//! passwords never do. What comes in is understood as a whole before anything changes.

use super::{Cx, parameter, permission, policy, user};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::json;
use crate::upload;
use broker::VhostId;
use broker::topology::{Kind, QueueType, Topology};
use bytes::Bytes;
use hyper::header::CONTENT_DISPOSITION;
use json_once::NotRead;
use serde_json::{Value, json};
use server::definitions::ImportError;

/// GET of everything, or of what is in one virtual host.
pub(super) fn export(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let facts = cx.handle().facts();
    let topology = cx.handle().topology();
    // As RabbitMQ says that there is none: 404 is for what comes in.
    let missing = |_| Refused::BadRequest("vhost_not_found".to_owned());
    let only = vhost.map(|name| super::find_vhost(&topology, name).map_err(missing)).transpose()?;
    let wanted = |id: VhostId| only.is_none_or(|only| only == id);
    let mut document = json!({
        "rabbit_version": facts.config.product_version,
        "rabbitmq_version": facts.config.product_version,
        "product_name": facts.config.product,
        "product_version": facts.config.product_version,
        "parameters": parameter::all(&topology, wanted),
        "policies": policy::exported(&topology, wanted),
        "queues": queues(&topology, wanted),
        "exchanges": exchanges(&topology, wanted),
        "bindings": bindings(&topology, wanted),
    });
    if only.is_none() {
        let users: Vec<Value> = topology.users().map(|(name, of)| user::describe(name, of)).collect();
        document["users"] = users.into();
        document["vhosts"] = vhosts(&topology).into();
        document["permissions"] = permission::all(&topology, |_, _| true).into();
        document["topic_permissions"] = permission::all_topics(&topology, |_, _| true).into();
        document["global_parameters"] = parameter::all_global(&topology).into();
    } else {
        document["rabbitmq_definition_format"] = "single_virtual_host".into();
        for part in ["parameters", "policies", "queues", "exchanges", "bindings"] {
            for item in document[part].as_array_mut().into_iter().flatten() {
                item.as_object_mut().map(|fields| fields.remove("vhost"));
            }
        }
    }
    let answer = Answer::json(&document);
    // A name to save it under. What could not stand in a header is no name.
    let is_name = |name: &String| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\/;".contains(&byte) || byte == b' ')
    };
    Ok(match cx.call.query("download").filter(is_name) {
        Some(name) => answer.with(CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\"")),
        None => answer,
    })
}

/// POST of a document; what it does not speak of stays.
pub(super) async fn import(cx: Cx<'_>, vhost: Option<&[u8]>, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    if let Some(name) = vhost {
        let missing = |_| Refused::Missing("vhost_not_found".to_owned());
        super::find_vhost(&cx.handle().topology(), name).map_err(missing)?;
    }
    let body = upload::file(cx.call.header("content-type"), body.read(cx.caller).await?).await?;
    let text = match vhost {
        None => String::from_utf8(body.to_vec()).map_err(|_| Refused::BadRequest("not_json".to_owned()))?,
        Some(name) => in_vhost(&body, name)?,
    };
    let handle = cx.handle().clone();
    // Every change waits for the disk; other requests do not wait with it.
    let done = tokio::task::spawn_blocking(move || handle.import_definitions(&text)).await;
    match done.map_err(|_| Refused::NoAnswer)? {
        Ok(imported) => {
            let by = cx.caller.name.to_string();
            let (different, left_out) = (imported.different.len(), imported.left_out.len());
            tracing::info!(changes = imported.changes, different, left_out, ?by, "definitions taken in");
            if different + left_out == 0 {
                return Ok(Answer::done());
            }
            Ok(Answer::json(&json!({ "different": imported.different, "left_out": imported.left_out })))
        }
        Err(undecided @ ImportError::Undecided { .. }) => Err(Refused::Unavailable(undecided.to_string())),
        Err(error) => Err(Refused::BadRequest(error.to_string())),
    }
}

fn vhosts(topology: &Topology) -> Vec<Value> {
    topology
        .vhosts()
        .map(|(_, vhost)| {
            let tags: Vec<Value> = vhost.description.tags.iter().map(|tag| json::text(tag)).collect();
            let default = vhost.description.default_queue_type.map_or("classic", QueueType::word);
            json!({
                "name": json::text(&vhost.name),
                "description": vhost.description.text,
                "tags": tags,
                "default_queue_type": default,
                "limits": [],
                "metadata": { "description": vhost.description.text, "tags": tags, "default_queue_type": default },
            })
        })
        .collect()
}

fn name_of(topology: &Topology, vhost: VhostId) -> Value {
    topology.vhost_of(vhost).map_or(Value::Null, |vhost| json::text(&vhost.name))
}

fn queues(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let mut found: Vec<_> = topology.declared_queues().filter(|q| wanted(q.vhost) && q.exclusive.is_none()).collect();
    found.sort_unstable_by_key(|queue| queue.id);
    let described = found.into_iter().map(|queue| {
        json!({
            "name": json::text(&queue.name),
            "vhost": name_of(topology, queue.vhost),
            "durable": queue.shape.durable,
            "auto_delete": queue.shape.auto_delete,
            "type": queue.shape.queue_type.word(),
            "arguments": json::table(&queue.shape.arguments),
        })
    });
    described.collect()
}

fn exchanges(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let own = |name: &broker::topology::Name| name.is_empty() || name.is_reserved();
    let mut found: Vec<_> = topology.exchanges().filter(|e| wanted(e.vhost) && !own(&e.name)).collect();
    found.sort_unstable_by(|a, b| (a.vhost, &a.name).cmp(&(b.vhost, &b.name)));
    let described = found.into_iter().map(|exchange| {
        json!({
            "name": json::text(&exchange.name),
            "vhost": name_of(topology, exchange.vhost),
            "type": exchange.kind.word(),
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": json::table(&exchange.arguments),
        })
    });
    described.collect()
}

fn bindings(topology: &Topology, wanted: impl Fn(VhostId) -> bool) -> Vec<Value> {
    let is_exclusive = |binding: &broker::topology::Binding| {
        let queue = topology.find_queue(binding.vhost, &binding.destination);
        binding.destination_kind == Kind::Queue && queue.is_some_and(|queue| queue.exclusive.is_some())
    };
    let mut found: Vec<_> = topology.bindings().filter(|b| wanted(b.vhost) && !is_exclusive(b)).collect();
    found.sort_by(|a, b| {
        (a.vhost, &a.source, &a.destination, &a.key).cmp(&(b.vhost, &b.source, &b.destination, &b.key))
    });
    let described = found.into_iter().map(|binding| {
        json!({
            "source": json::text(&binding.source),
            "vhost": name_of(topology, binding.vhost),
            "destination": json::text(&binding.destination),
            "destination_type": binding.destination_kind.word(),
            "routing_key": json::text(&binding.key),
            "arguments": json::table(&binding.arguments),
        })
    });
    described.collect()
}

/// A document of one virtual host with that virtual host's name wherever one belongs.
fn in_vhost(body: &Bytes, vhost: &[u8]) -> Result<String, Refused> {
    let mut document = match json_once::read(body) {
        Ok(Value::Object(document)) => document,
        Err(NotRead::Unfit(sentence)) => return Err(Refused::BadRequest(sentence)),
        _ => return Err(Refused::BadRequest("not_json".to_owned())),
    };
    for part in ["users", "vhosts", "permissions", "topic_permissions", "global_parameters"] {
        // What concerns more than one virtual host is not changed through one of them.
        document.remove(part);
    }
    for part in ["metadata", "limits", "description", "default_queue_type"] {
        // What is said of the virtual host that was exported changes nothing about this one, as in
        // RabbitMQ; limits come as parameters too.
        document.remove(part);
    }
    for part in ["parameters", "policies", "queues", "exchanges", "bindings"] {
        for item in document.get_mut(part).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(fields) = item {
                fields.insert("vhost".to_owned(), json::text(vhost));
            }
        }
    }
    Ok(Value::Object(document).to_string())
}

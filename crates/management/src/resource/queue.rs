//! `/api/queues`: what is declared, what is in it; declare, delete, purge.

use super::{Cx, NOT_THEIRS, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::call::object_of;
use crate::statistics::{History, Kind, Ranges, lengths, message_stats, rates_of};
use crate::{json, listing};
use broker::topology::{NAME_BYTES_MAX, Name, Queue, QueueDeclare, QueueType, Topology};
use broker::{QueueId, VhostId};
use partition::QueueFigures;
use serde_json::{Map, Value, json};

/// GET of all, or of those in a virtual host.
pub(super) async fn list(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let vhost = vhost.map(|name| cx.visible_vhost(&cx.handle().topology(), name)).transpose()?;
    let rates = cx.rates().await?;
    let figures = cx.handle().queue_figures().await;
    let mut queues: Vec<(VhostId, Name, QueueId)> = {
        let topology = cx.handle().topology();
        let seen = |queue: &&Queue| match vhost {
            Some(vhost) => queue.vhost == vhost,
            None => cx.caller.sees(&topology, queue.vhost),
        };
        topology.queues().filter(seen).map(|queue| (queue.vhost, queue.name.clone(), queue.id)).collect()
    };
    queues.sort_unstable();
    let describe = |part: &[(VhostId, Name, QueueId)]| {
        let topology = cx.handle().topology();
        let found = part.iter().filter_map(|(_, _, id)| topology.queue(*id));
        found.map(|queue| describe(cx, &topology, queue, figures.get(&queue.id), rates.as_ref())).collect()
    };
    listing::answer(cx.call, &queues, describe).await
}

/// GET of one.
pub(super) async fn get(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    cx.visible_vhost(&cx.handle().topology(), vhost)?;
    let rates = cx.rates().await?;
    let figures = cx.handle().queue_figures().await;
    let (mut found, id) = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        let mut found = describe(cx, &topology, queue, figures.get(&queue.id), rates.as_ref());
        if let Some(ranges) = &rates {
            found["incoming"] = incoming(cx, &topology, queue, ranges).into();
        }
        (found, queue.id)
    };
    if rates.is_none() {
        return Ok(Answer::json(&listing::one(cx.call, found)));
    }
    let consumers = super::channel::consumers_of_queue(cx, id).await;
    found["consumer_details"] = consumers.into();
    found["deliveries"] = super::channel::deliveries_of_queue(cx, id, rates.as_ref()).await.into();
    Ok(Answer::json(&listing::one(cx.call, found)))
}

/// PUT: a declare in the caller's name.
pub(super) async fn put(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let mut fields = object_of(
        &body.read(cx.caller).await?,
        &["vhost", "name", "node", "durable", "auto_delete", "exclusive", "arguments", "queue_type"],
    )?;
    let arguments = fields.remove("arguments").unwrap_or_else(|| json!({}));
    let mut arguments =
        json::to_table(&arguments).ok_or_else(|| Refused::BadRequest("arguments is no object".to_owned()))?;
    if let Some(Value::String(kind)) = fields.remove("queue_type")
        && arguments.get("x-queue-type").is_none()
    {
        arguments.push("x-queue-type", amqp::Value::LongString(kind.into()));
    }
    let durable = flag(&fields, "durable", false)?;
    let auto_delete = flag(&fields, "auto_delete", false)?;
    let declare = QueueDeclare {
        vhost,
        name: checked(name)?,
        server_named: false,
        durable,
        exclusive: false,
        auto_delete,
        arguments: &arguments,
    };
    Ok(Answer::put(cx.handle().declare_queue(cx.caller.actor(), &declare).await?))
}

/// DELETE, perhaps only if it is empty or unused.
pub(super) async fn delete(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let (id, partition) = {
        let topology = cx.handle().topology();
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        topology.check_queue_delete(cx.caller.actor(), vhost, name)?;
        (queue.id, queue.partition)
    };
    let (if_unused, if_empty) = (cx.call.flag("if-unused"), cx.call.flag("if-empty"));
    cx.handle().delete_queue(id, partition, if_unused, if_empty).await?;
    Ok(Answer::done())
}

/// DELETE of what is ready in it.
pub(super) async fn purge(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let (id, partition) = {
        let topology = cx.handle().topology();
        let queue = topology.check_read(cx.caller.actor(), vhost, checked(name)?)?;
        (queue.id, queue.partition)
    };
    cx.handle().purge(id, partition).await?;
    Ok(Answer::done())
}

/// A name out of a path. Errors: 404 for one that nothing can have.
pub(super) fn checked(name: &[u8]) -> Result<&[u8], Refused> {
    if name.len() > NAME_BYTES_MAX { Err(Refused::NotFound) } else { Ok(name) }
}

/// A truth out of a body, which some tools send as a text.
pub(super) fn flag(fields: &serde_json::Map<String, Value>, name: &str, default: bool) -> Result<bool, Refused> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(word)) if word == "true" => Ok(true),
        Some(Value::String(word)) if word == "false" => Ok(false),
        Some(_) => Err(Refused::BadRequest(format!("{name} is neither true nor false"))),
    }
}

impl Cx<'_> {
    /// The virtual host of this name, if the caller may use it. Errors: 404, and 401 where it is
    /// not theirs.
    pub(super) fn usable_vhost(&self, name: &[u8]) -> Result<VhostId, Refused> {
        let topology = self.handle().topology();
        let vhost = find_vhost(&topology, name)?;
        self.caller.need(self.caller.uses(&topology, vhost), NOT_THEIRS)?;
        Ok(vhost)
    }
}

/// What came from each exchange.
fn incoming(cx: Cx<'_>, topology: &Topology, queue: &Queue, ranges: &Ranges) -> Vec<Value> {
    let store = cx.call.statistics.store();
    let from = store.exchanges().filter_map(|(key, exchange)| Some((key, exchange.queues.get(&queue.id)?)));
    let mut from: Vec<_> = from.collect();
    from.sort_unstable_by_key(|(key, _)| *key);
    let describe = |((vhost, name), count): &(&(VhostId, Name), &History)| {
        let mut stats = Map::new();
        rates_of(&[count], &[("publish", 0)], Kind::Counter, (&store, ranges.messages), &mut stats);
        let vhost = topology.vhost_of(*vhost).map(|vhost| json::text(&vhost.name));
        json!({ "stats": stats, "exchange": { "name": json::text(name), "vhost": vhost } })
    };
    from.iter().map(describe).collect()
}

fn describe(
    cx: Cx<'_>,
    topology: &Topology,
    queue: &Queue,
    figures: Option<&QueueFigures>,
    rates: Option<&Ranges>,
) -> Value {
    let node = &cx.handle().facts().node_name;
    let empty = QueueFigures::empty(queue.id);
    let figures = figures.unwrap_or(&empty);
    let is_down = cx.handle().is_quarantined(queue.partition);
    let vhost = topology.vhost_of(queue.vhost);
    let policies = topology.policies_of_queue(queue);
    let name_of = |policy: Option<&broker::topology::Name>| policy.map_or(Value::Null, |name| json::text(name));
    let mut described = json!({
        "name": json::text(&queue.name),
        "vhost": vhost.map(|vhost| json::text(&vhost.name)),
        "node": node,
        "state": if is_down { "down" } else { "running" },
        "type": queue.shape.queue_type.word(),
        "durable": queue.shape.durable,
        "auto_delete": queue.shape.auto_delete,
        "exclusive": queue.exclusive.is_some(),
        "arguments": json::table(&queue.shape.arguments),
        "policy": name_of(policies.policy),
        "operator_policy": name_of(policies.operator_policy),
        "effective_policy_definition": policies.definition.as_ref().map_or_else(|| json!({}), json::table),
        "messages": figures.ready + figures.unacked,
        "messages_ready": figures.ready,
        "messages_unacknowledged": figures.unacked,
        "messages_delayed": figures.delayed,
        "consumers": figures.consumers,
    });
    if queue.shape.queue_type == QueueType::Quorum {
        let online: &[_] = if is_down { &[] } else { &[node] };
        described["leader"] = online.first().map_or_else(|| json!(""), |node| json!(node));
        described["members"] = json!([node]);
        described["online"] = json!(online);
    }
    let Some(ranges) = rates else { return without_stats(cx, described) };
    let store = cx.call.statistics.store();
    if let (Some(history), Some(fields)) = (store.queue(queue.id), described.as_object_mut()) {
        if ["messages_details", "messages_ready_details", "messages_unacknowledged_details"]
            .iter()
            .any(|one| cx.call.wants(one))
        {
            lengths(&[history], &store, ranges, fields);
        }
        if cx.call.wants("message_stats")
            && let Some(stats) = message_stats(&[history], &store, ranges)
        {
            fields.insert("message_stats".to_owned(), stats);
        }
    }
    if is_down && let Some(fields) = described.as_object_mut() {
        // Nobody knows.
        fields.retain(|name, _| name != "consumers" && !name.starts_with("messages"));
    }
    if figures.value_cap.is_some() {
        described["leveret_value_at_risk"] = figures.value_at_risk.into();
        described["leveret_value_at_risk_cap"] = figures.value_cap.into();
    }
    if queue.rules.dedup.is_some() {
        described["leveret_repeats_dropped"] = figures.repeats_dropped.into();
    }
    described
}

/// What `disable_stats` leaves of a queue, with its lengths where `enable_queue_totals` wants them.
fn without_stats(cx: Cx<'_>, mut described: Value) -> Value {
    let has_totals = cx.call.flag("enable_queue_totals");
    let kept = |name: &str| match name {
        "name" | "vhost" | "node" | "state" | "type" | "durable" | "auto_delete" | "exclusive" | "arguments"
        | "leader" | "members" | "online" => true,
        "messages" | "messages_ready" | "messages_unacknowledged" => has_totals,
        _ => false,
    };
    if let Some(fields) = described.as_object_mut() {
        fields.retain(|name, value| kept(name) || name == "policy" && !value.is_null());
    }
    described
}

//! `/api/queues`: what is declared, what is in it; declare, delete, purge.

use super::node::add;
use super::{Cx, NOT_THEIRS, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::call::object_of;
use crate::map::{Map, names};
use crate::others::Gathered;
use crate::statistics::{History, Kind, Ranges, lengths, message_stats, rates_of};
use crate::{json, listing};
use broker::topology::{NAME_BYTES_MAX, Name, Queue, QueueDeclare, QueueType, Topology};
use broker::{QueueId, VhostId};
use partition::QueueFigures;
use serde_json::value::RawValue;
use serde_json::{Map as Fields, Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

/// GET of all, or of those in a virtual host.
pub(super) async fn list(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let vhost = vhost.map(|name| cx.visible_vhost(&cx.handle().topology(), name)).transpose()?;
    let rates = cx.rates().await?;
    let mut queues: Vec<Listed> = {
        let topology = cx.handle().topology();
        let seen = |queue: &&Queue| match vhost {
            Some(vhost) => queue.vhost == vhost,
            None => cx.caller.sees(&topology, queue.vhost),
        };
        topology.declared_queues().filter(seen).map(|queue| (queue.vhost, queue.name.clone(), queue.id)).collect()
    };
    queues.sort_unstable();
    let map = cx.map();
    let (figures, led_elsewhere) = tokio::join!(cx.handle().queue_figures(), elsewhere(cx, vhost, &queues));
    let owners = Owners::of(cx, queues.iter().map(|(_, _, id)| *id)).await;
    let describe = |part: &[Listed]| {
        let topology = cx.handle().topology();
        let describe = |(_, _, id): &Listed| {
            let queue = topology.queue(*id)?;
            let mut own = describe(cx, &map, &topology, queue, (figures.get(id), &owners), rates.as_ref());
            let mut described = match led_elsewhere.rows.get(id).and_then(|text| serde_json::from_str(text.get()).ok())
            {
                Some(described) => {
                    let stats = own["message_stats"].take();
                    own = described;
                    if stats.is_object() {
                        add(&mut own["message_stats"], &stats);
                    }
                    own
                }
                None => own,
            };
            for stats in led_elsewhere.stats.get(id).into_iter().flatten() {
                add(&mut described["message_stats"], stats);
            }
            Some(described)
        };
        part.iter().filter_map(describe).collect()
    };
    Ok(led_elsewhere.gathered.told(listing::answer(cx.call, &queues, describe).await?))
}

/// A queue in a list, by what orders it.
type Listed = (VhostId, Name, QueueId);

/// Queues that other nodes lead, as those describe them.
#[derive(Default)]
struct Elsewhere {
    rows: HashMap<QueueId, Box<RawValue>>,
    /// What went through queues of any node over clients of that one.
    stats: HashMap<QueueId, Vec<Value>>,
    gathered: Gathered,
}

/// Asks the other nodes about the queues of a list: about those of the page that is wanted, or, where
/// more decides what is on it, about all.
async fn elsewhere(cx: Cx<'_>, vhost: Option<VhostId>, queues: &[Listed]) -> Elsewhere {
    let others = cx.others();
    if others.is_empty() {
        return Elsewhere::default();
    }
    let page = listing::page(cx.call);
    let (mut target, wanted) = match &page {
        Some(page) => {
            let shown = &queues[page.start.min(queues.len())..page.end.min(queues.len())];
            let mut target = "/api/leveret/rows?ids=".to_owned();
            shown.iter().for_each(|(_, _, id)| write!(target, "{},", id.0).unwrap_or_default());
            (target, shown)
        }
        None => (format!("/api/leveret/rows?vhost={}", vhost.map_or(String::new(), |id| id.0.to_string())), queues),
    };
    let sorts = cx.call.query("sort").is_some_and(|column| !column.is_empty());
    if let Some(columns) = cx.call.raw_query("columns").filter(|columns| !columns.is_empty() && !sorts) {
        // A filter goes by the name.
        target += &format!("&columns=name,{columns}");
    }
    let leaders: BTreeSet<_> = {
        let topology = cx.handle().topology();
        let led = wanted.iter().filter_map(|(_, _, id)| cx.handle().leader(topology.queue(*id)?.partition));
        led.collect()
    };
    // Who leads none of them leaves no row out.
    let of_none = others.iter().filter(|member| !leaders.contains(&member.number)).map(|member| member.name.clone());
    let of_none: BTreeSet<String> = of_none.collect();
    let mut gathered = cx.ask(others, "GET", &cx.same_statistics(&target)).await;
    gathered.missing.retain(|name| !of_none.contains(name));
    let (mut rows, mut stats) = (HashMap::new(), HashMap::<_, Vec<Value>>::new());
    for said in gathered.said.iter().filter(|said| said.status == 200) {
        let found: Vec<(u64, Option<Box<RawValue>>, Value)> = serde_json::from_slice(&said.body).unwrap_or_default();
        for (id, row, of_others) in found {
            rows.extend(row.map(|row| (QueueId(id), row)));
            if of_others.is_object() {
                stats.entry(QueueId(id)).or_default().push(of_others);
            }
        }
    }
    Elsewhere { rows, stats, gathered }
}

/// For another node: the queues that this one leads, of those wanted, each with its number; and of the
/// others what went through them over clients of this node.
pub(super) async fn own_rows(cx: Cx<'_>) -> Result<Answer, Refused> {
    let rates = cx.rates().await?;
    let figures = cx.handle().queue_figures().await;
    let ids: Option<BTreeSet<u64>> =
        cx.call.query("ids").map(|ids| ids.split(',').filter_map(|id| id.parse().ok()).collect());
    let vhost = cx.call.query("vhost").and_then(|id| id.parse().ok()).map(VhostId);
    let map = cx.map();
    let wanted: Vec<QueueId> = {
        let topology = cx.handle().topology();
        let of_vhost = topology.declared_queues().filter(|queue| vhost.is_none_or(|vhost| queue.vhost == vhost));
        let of_ids = of_vhost.filter(|queue| ids.as_ref().is_none_or(|ids| ids.contains(&queue.id.0)));
        of_ids.filter(|queue| cx.caller.sees(&topology, queue.vhost)).map(|queue| queue.id).collect()
    };
    let owners = Owners::of(cx, wanted.iter().copied()).await;
    let own = Some(cx.handle().own_node());
    let describe = |part: &[QueueId]| {
        let topology = cx.handle().topology();
        let found = part.iter().filter_map(|id| topology.queue(*id));
        let describe = |queue: &Queue| {
            if cx.handle().leader(queue.partition) == own {
                let row = describe(cx, &map, &topology, queue, (figures.get(&queue.id), &owners), rates.as_ref());
                return Some(json!([queue.id.0, listing::one(cx.call, row), null]));
            }
            let (store, ranges) = (cx.call.statistics.store(), rates.as_ref()?);
            let stats = message_stats(&[store.queue(queue.id)?], &store, ranges)?;
            Some(json!([queue.id.0, null, stats]))
        };
        found.filter_map(describe).collect()
    };
    listing::all(&wanted, describe).await
}

/// For another node: what is in the queues that this one leads, in numbers.
pub(super) async fn own_figures(cx: Cx<'_>) -> Result<Answer, Refused> {
    let figures = cx.handle().queue_figures().await;
    let rows: Vec<[u64; 3]> = figures.values().map(|found| [found.queue.0, found.ready, found.unacked]).collect();
    Ok(Answer::json(&json!(rows)))
}

/// Messages of a queue: ready and unacked.
pub(super) type Counts = HashMap<QueueId, (u64, u64)>;

/// What is in the queues of the whole cluster, and who did not say it.
pub(super) async fn counts(cx: Cx<'_>) -> (Counts, Gathered) {
    let asked = cx.ask(cx.others(), "GET", "/api/leveret/figures");
    let (own, gathered) = tokio::join!(cx.handle().queue_figures(), asked);
    let mut counts: Counts = own.values().map(|found| (found.queue, (found.ready, found.unacked))).collect();
    for said in gathered.said.iter().filter(|said| said.status == 200) {
        let rows: Vec<[u64; 3]> = serde_json::from_slice(&said.body).unwrap_or_default();
        counts.extend(rows.into_iter().map(|[id, ready, unacked]| (QueueId(id), (ready, unacked))));
    }
    (counts, gathered)
}

/// GET of one.
pub(super) async fn get(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    cx.visible_vhost(&cx.handle().topology(), vhost)?;
    let rates = cx.rates().await?;
    let (map, figures) = (cx.map(), cx.handle().queue_figures().await);
    let owners = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?.id
    };
    let owners = Owners::of(cx, [owners].into_iter()).await;
    let (mut found, id, leader) = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        let leader = cx.handle().leader(queue.partition);
        let mut found = describe(cx, &map, &topology, queue, (figures.get(&queue.id), &owners), rates.as_ref());
        if let Some(ranges) = &rates {
            found["incoming"] = incoming(cx, &topology, queue, ranges).into();
        }
        (found, queue.id, leader)
    };
    if rates.is_some() {
        found["consumer_details"] = super::channel::consumers_of_queue(cx, id).await.into();
        found["deliveries"] = super::channel::deliveries_of_queue(cx, id, rates.as_ref()).await.into();
    }
    let gathered = cx.ask(cx.others(), "GET", &cx.same_statistics(cx.call.head.uri.path())).await;
    for said in &gathered.said {
        let Some(mut described) = said.json() else { continue };
        if Some(said.node) == leader {
            // Who leads it knows what is in it.
            std::mem::swap(&mut found, &mut described);
        }
        if described["message_stats"].is_object() {
            add(&mut found["message_stats"], &described["message_stats"]);
        }
        for list in ["consumer_details", "deliveries", "incoming"] {
            if let (Some(all), Some(more)) = (found[list].as_array_mut(), described[list].as_array_mut()) {
                all.append(more);
            }
        }
    }
    Ok(gathered.told(Answer::json(&listing::one(cx.call, found))))
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
    cx.handle().catch_up().await?;
    Ok(Answer::put(cx.handle().declare_queue(cx.caller.actor(), &declare).await?))
}

/// DELETE, perhaps only if it is empty or unused.
pub(super) async fn delete(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    cx.handle().catch_up().await?;
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
    /// Which node has what, now.
    pub(super) fn map(&self) -> Map {
        let members = self.handle().members();
        Map::of(self.handle(), &self.handle().topology(), members)
    }

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
        let mut stats = Fields::new();
        rates_of(&[count], &[("publish", 0)], Kind::Counter, (&store, ranges.messages), &mut stats);
        let vhost = topology.vhost_of(*vhost).map(|vhost| json::text(&vhost.name));
        json!({ "stats": stats, "exchange": { "name": json::text(name), "vhost": vhost } })
    };
    from.iter().map(describe).collect()
}

/// A queue; `figures` are what this node knows of it if it leads it.
fn describe(
    cx: Cx<'_>,
    map: &Map,
    topology: &Topology,
    queue: &Queue,
    (figures, owners): (Option<&QueueFigures>, &Owners),
    rates: Option<&Ranges>,
) -> Value {
    let empty = QueueFigures::empty(queue.id);
    let figures = figures.unwrap_or(&empty);
    let leader = cx.handle().leader(queue.partition);
    let place = map.place(queue.partition, leader);
    // What is damaged here alone is led elsewhere.
    let is_damaged = cx.handle().is_quarantined(queue.partition) && leader.is_none_or(|node| node == map.own);
    let state = if is_damaged { "down" } else { place.state() };
    let leader = place.leader.filter(|_| !is_damaged);
    let node = leader.or(place.members.first().copied()).map(|member| &member.name);
    let vhost = topology.vhost_of(queue.vhost);
    let policies = topology.policies_of_queue(queue);
    let name_of = |policy: Option<&broker::topology::Name>| policy.map_or(Value::Null, |name| json::text(name));
    let mut described = json!({
        "name": json::text(&queue.name),
        "vhost": vhost.map(|vhost| json::text(&vhost.name)),
        "node": node,
        "state": state,
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
        described["leader"] = json!(leader.map_or("", |member| &member.name));
        described["members"] = json!(names(place.members.iter().copied()));
        described["online"] = json!(if is_damaged { Vec::new() } else { names(place.online()) });
    }
    let is_known = leader.is_some_and(|member| member.is_own);
    let Some(ranges) = rates else {
        if !is_known && let Some(fields) = described.as_object_mut() {
            fields.retain(|name, _| name != "consumers" && !name.starts_with("messages"));
        }
        return without_stats(cx, described);
    };
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
    if !is_known && let Some(fields) = described.as_object_mut() {
        // Nobody knows.
        fields.retain(|name, _| name != "consumers" && !name.starts_with("messages"));
    }
    if figures.value_cap.is_some() {
        described["leveret_value_at_risk"] = figures.value_at_risk.into();
        described["leveret_value_at_risk_cap"] = figures.value_cap.into();
    }
    if let Some(owner) = queue.exclusive.and_then(|owner| owners.0.get(&owner)).filter(|_| is_known) {
        described["owner_pid_details"] = owner.clone();
    }
    if queue.rules.dedup.is_some() {
        described["leveret_repeats_dropped"] = figures.repeats_dropped.into();
    }
    described
}

/// The connections of this node that exclusive queues belong to, by their numbers.
#[derive(Default)]
struct Owners(HashMap<u64, Value>);

impl Owners {
    /// The owners of these queues; none where nobody wants to know.
    async fn of(cx: Cx<'_>, queues: impl Iterator<Item = QueueId>) -> Owners {
        let wanted: BTreeSet<u64> = {
            let (topology, own) = (cx.handle().topology(), Some(cx.handle().own_node()));
            let queues = queues.filter_map(|id| topology.queue(id));
            let here = queues.filter(|queue| queue.exclusive.is_some() && cx.handle().leader(queue.partition) == own);
            here.filter_map(|queue| queue.exclusive).collect()
        };
        if wanted.is_empty() || !cx.call.wants("owner_pid_details") {
            return Owners::default();
        }
        let connections = cx.handle().connections().await;
        let owners = connections.iter().filter(|report| wanted.contains(&report.number.0));
        let describe = |report: &server::report::ConnectionReport| {
            let (name, peer) = (super::connection::name(report), report.peer);
            let details = json!({ "name": name, "peer_host": peer.ip().to_string(), "peer_port": peer.port() });
            (report.number.0, details)
        };
        Owners(owners.map(describe).collect())
    }
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

//! `/api/vhosts`: what virtual hosts there are; make one, say something about it, delete it with
//! all that is in it.

use super::queue::{Counts, counts};
use super::{Cx, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::last_known::Lengths;
use crate::statistics::{Kind, Ranges, column, lengths, message_stats, rates_of};
use crate::{json, listing};
use broker::topology::{Command, CommandReply, Name, QueueType, Topology, Vhost, VhostDescription};
use broker::{PartitionId, VhostId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use tokio::time::Instant;

/// GET of those that the caller may see.
pub(super) async fn list(cx: Cx<'_>) -> Result<Answer, Refused> {
    let rates = cx.rates().await?;
    let (figures, gathered) = counts(cx).await;
    let running = running(cx);
    let topology = cx.handle().topology();
    let counts = count(cx, &topology, &figures);
    let mut seen: Vec<_> = topology.vhosts().filter(|(id, _)| cx.caller.monitors(&topology, *id)).collect();
    seen.sort_unstable_by_key(|(_, vhost)| &vhost.name);
    let describe = |(id, vhost)| describe(cx, &running, (id, vhost), counts.get(&id), rates.as_ref());
    let items = seen.into_iter().map(describe).collect();
    drop(topology);
    Ok(gathered.told(Answer::json(&listing::list(cx.call, items)?)))
}

/// GET of one.
pub(super) async fn get(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.monitored_vhost(&cx.handle().topology(), name)?;
    let rates = cx.rates().await?;
    let (figures, gathered) = counts(cx).await;
    let running = running(cx);
    let topology = cx.handle().topology();
    let id = cx.monitored_vhost(&topology, name)?;
    let counts = count(cx, &topology, &figures);
    let vhost = topology.vhost_of(id).ok_or(Refused::NotFound)?;
    let found = describe(cx, &running, (id, vhost), counts.get(&id), rates.as_ref());
    drop(topology);
    Ok(gathered.told(Answer::json(&listing::one(cx.call, found))))
}

/// PUT: makes it if it is not there, and takes over what is said about it.
pub(super) async fn put(cx: Cx<'_>, name: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let (vhost_name, name) = (name, Name::new(super::queue::named(name)?));
    if name.is_empty() {
        return Err(Refused::BadRequest("a virtual host needs a name".to_owned()));
    }
    let fields = fields::VHOST.of(&body.read(cx.caller).await?)?;
    if super::queue::flag(&fields, "protected_from_deletion", false)? {
        let reason = "a virtual host cannot be protected from deletion here";
        return Err(Refused::BadRequest(reason.to_owned()));
    }
    let tracing = match fields.get("tracing") {
        None | Some(Value::Null) => None,
        Some(_) => Some(super::queue::flag(&fields, "tracing", false)?),
    };
    let before = cx.handle().topology().vhost(&name);
    let known = before.and_then(|id| Some(cx.handle().topology().vhost_of(id)?.description.clone()));
    let wanted = description(&fields, known.unwrap_or_default())?;
    let vhost = match before {
        Some(vhost) => vhost,
        None => {
            // Who makes a virtual host may do everything in it, as in RabbitMQ; who runs the machine
            // is no user, and no user is called so.
            let owner = if cx.caller.is_operator() { Name::new(b"") } else { cx.caller.name.clone() };
            let description = wanted.clone();
            match cx.handle().change(Command::FoundVhost { name, description, owner }).await? {
                CommandReply::Vhost(vhost) => vhost,
                _ => return Err(Refused::NoAnswer),
            }
        }
    };
    // It was there, or somebody else was faster.
    if cx.handle().topology().vhost_of(vhost).is_some_and(|vhost| vhost.description != wanted) {
        cx.handle().change(Command::DescribeVhost { vhost, description: wanted }).await?;
    }
    if let Some(on) = tracing.filter(|on| *on != cx.handle().traces(vhost)) {
        let by = cx.caller.name.to_string();
        tracing::info!(by = &*by, vhost = %String::from_utf8_lossy(vhost_name), on, "tracing changed");
        cx.handle().trace(vhost, on);
    }
    Ok(Answer::put(before.is_none()))
}

/// DELETE with everything in it.
pub(super) async fn delete(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let vhost = find_vhost(&cx.handle().topology(), name)?;
    cx.handle().change(Command::DeleteVhost { vhost }).await?;
    // Otherwise every message would go on to be looked at for the sake of one that is gone.
    cx.handle().trace(vhost, false);
    let (vhost, by) = (String::from_utf8_lossy(name).into_owned(), cx.caller.name.to_string());
    tracing::info!(vhost = &*vhost, by = &*by, "virtual host deleted with everything in it");
    Ok(Answer::done())
}

/// What a body says about a virtual host; what it leaves out stays as `known`.
fn description(fields: &serde_json::Map<String, Value>, known: VhostDescription) -> Result<VhostDescription, Refused> {
    let mut wanted = known;
    let wrong = |what: &str| Refused::BadRequest(format!("{what} is not what it should be"));
    match fields.get("description") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => wanted.text = text.clone(),
        Some(_) => return Err(wrong("description")),
    }
    if let Some(tags) = fields.get("tags") {
        wanted.tags = super::user::tags(tags).ok_or_else(|| wrong("tags"))?;
    }
    let [first, second] = ["default_queue_type", "defaultqueuetype"].map(|name| fields::text(fields, name));
    match first?.or(second?) {
        None => {}
        Some(word) => {
            wanted.default_queue_type = match word {
                "" | "undefined" => None,
                "classic" | "rabbit_classic_queue" => Some(QueueType::Classic),
                "quorum" | "rabbit_quorum_queue" => Some(QueueType::Quorum),
                other => {
                    let reason = format!("default queue type '{other}' is not supported by this version");
                    return Err(Refused::BadRequest(reason));
                }
            }
        }
    }
    match fields.get("metadata") {
        // It says again what the others say.
        None | Some(Value::Null | Value::Object(_)) => Ok(wanted),
        Some(_) => Err(Refused::BadRequest("metadata is no object".to_owned())),
    }
}

/// The places of virtual hosts in the order of their names, in which lists have what is declared in them.
pub(super) fn ranks(topology: &Topology) -> HashMap<VhostId, usize> {
    let mut all: Vec<_> = topology.vhosts().collect();
    all.sort_unstable_by_key(|(_, vhost)| &vhost.name);
    all.into_iter().enumerate().map(|(rank, (id, _))| (id, rank)).collect()
}

/// Messages by virtual host, ready and unacked. What is in queues that nobody leads just now is what it was lately.
fn count(cx: Cx<'_>, topology: &Topology, figures: &Counts) -> BTreeMap<VhostId, Lengths> {
    let mut counts: BTreeMap<VhostId, Lengths> = BTreeMap::new();
    let mut known: BTreeMap<PartitionId, BTreeMap<VhostId, Lengths>> = BTreeMap::new();
    for (id, (ready, unacked)) in figures {
        let Some(queue) = topology.queue(*id) else { continue };
        add(counts.entry(queue.vhost).or_default(), [*ready, *unacked]);
        if !queue.partition.is_in_memory() {
            add(known.entry(queue.partition).or_default().entry(queue.vhost).or_default(), [*ready, *unacked]);
        }
    }
    if cx.handle().has_peers() {
        let inhabited = super::node::inhabited(topology);
        let last = cx.call.statistics.last_known_of_vhosts();
        let others = last.besides(&known, |id| inhabited.contains(&id), Instant::now());
        for (vhost, lengths) in others.into_iter().flatten() {
            add(counts.entry(vhost).or_default(), lengths);
        }
    }
    counts
}

fn add(sum: &mut Lengths, more: Lengths) {
    *sum = [sum[0] + more[0], sum[1] + more[1]];
}

/// The names of the nodes that run, where every virtual host does.
fn running(cx: Cx<'_>) -> Vec<String> {
    let reached = cx.handle().members().into_iter().filter(|member| member.is_reached);
    reached.map(|member| member.name).collect()
}

fn describe(
    cx: Cx<'_>,
    running: &[String],
    (id, vhost): (VhostId, &Vhost),
    count: Option<&Lengths>,
    rates: Option<&Ranges>,
) -> Value {
    let VhostDescription { text, tags, default_queue_type } = &vhost.description;
    let tags: Vec<Value> = tags.iter().map(|tag| json::text(tag)).collect();
    let default = default_queue_type.map_or("classic", QueueType::word);
    let [ready, unacked] = count.copied().unwrap_or_default();
    let state: serde_json::Map<String, Value> =
        running.iter().map(|node| (node.clone(), Value::from("running"))).collect();
    let mut described = json!({
        "name": json::text(&vhost.name),
        "description": text,
        "tags": tags,
        "default_queue_type": default,
        "metadata": { "description": text, "tags": tags, "default_queue_type": default },
        "tracing": cx.handle().traces(id),
        "cluster_state": state,
    });
    let (Some(ranges), Some(fields)) = (rates, described.as_object_mut()) else { return described };
    for (name, count) in
        [("messages", ready + unacked), ("messages_ready", ready), ("messages_unacknowledged", unacked)]
    {
        fields.insert(name.to_owned(), count.into());
    }
    let store = cx.call.statistics.store();
    if let Some(history) = store.vhost(id) {
        for (name, details) in lengths(&[history], &store, ranges) {
            fields.insert(name.to_owned(), json!(details));
        }
        let octets = [("recv_oct", column::RECV_OCT), ("send_oct", column::SEND_OCT)];
        rates_of(&[history], &octets, Kind::Counter, (&store, ranges.data), fields);
        if let Some(stats) = message_stats(&[history], &store, ranges) {
            fields.insert("message_stats".to_owned(), json!(stats));
        }
    }
    described
}

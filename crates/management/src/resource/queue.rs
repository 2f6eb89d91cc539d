//! `/api/queues`: what is declared, what is in it; declare, delete, purge.

use super::active::{self, Active, has_single};
use super::node::add;
use super::row::{Owners, Row, Rows};
use super::{Cx, NOT_THEIRS, find_vhost};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::listing::{Named, Text};
use crate::map::Map;
use crate::others::Gathered;
use crate::statistics::{History, Kind, Ranges, message_stats, rates_of};
use crate::{json, listing};
use broker::topology::{Access, NAME_BYTES_MAX, Name, Queue, QueueDeclare, QueueType, Topology};
use broker::{NodeNumber, QueueId, VhostId};
use serde::Serialize;
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
        let ranks = super::vhost::ranks(&topology);
        let rank = |queue: &Queue| ranks.get(&queue.vhost).copied().unwrap_or_default();
        topology.declared_queues().filter(seen).map(|queue| (rank(queue), queue.name.clone(), queue.id)).collect()
    };
    queues.sort_unstable();
    let named = listing::by_name(cx.call, queues, |(_, name, _)| name)?;
    let queues = &named.items;
    let map = cx.map();
    let (figures, mut led_elsewhere) = tokio::join!(cx.handle().queue_figures(), elsewhere(cx, vhost, &named));
    let owners = Owners::of(cx, queues.iter().map(|(_, _, id)| *id)).await;
    if rates.is_some() && cx.call.wants("single_active_consumer_tag") {
        led_elsewhere.tags = active::tags(cx, with_single(cx, queues), &led_elsewhere.gathered.missing).await;
    }
    let write = |part: &[Listed], text: &mut Text| {
        let (topology, store) = (cx.handle().topology(), cx.call.statistics.store());
        let rows = Rows::new(cx, (&map, &topology), &store, (&figures, &owners), rates.as_ref());
        let queues = part.iter().filter_map(|(_, _, id)| topology.queue(*id));
        queues.for_each(|queue| text.push(&led_elsewhere.told(queue.id, rows.row(queue))));
    };
    if listing::is_whole(cx.call) {
        return Ok(led_elsewhere.gathered.told(listing::written(queues, write).await?));
    }
    let describe = |part: &[Listed]| {
        let (topology, store) = (cx.handle().topology(), cx.call.statistics.store());
        let rows = Rows::new(cx, (&map, &topology), &store, (&figures, &owners), rates.as_ref());
        let queues = part.iter().filter_map(|(_, _, id)| topology.queue(*id));
        queues.map(|queue| json!(led_elsewhere.told(queue.id, rows.row(queue)))).collect()
    };
    Ok(led_elsewhere.gathered.told(listing::answer_named(cx.call, &named, describe).await?))
}

/// A queue in a list, by what orders it: the place of its virtual host among all, and its name.
type Listed = (usize, Name, QueueId);

/// Those of a list whose consumers take turns as the active one, each with its leader.
fn with_single(cx: Cx<'_>, queues: &[Listed]) -> Vec<(QueueId, Option<NodeNumber>)> {
    let topology = cx.handle().topology();
    let page = listing::page_of_named(cx.call);
    let shown = page.map_or(queues, |page| &queues[page.start.min(queues.len())..page.end.min(queues.len())]);
    let single = shown.iter().filter_map(|(_, _, id)| topology.queue(*id)).filter(|queue| has_single(queue));
    single.map(|queue| (queue.id, cx.handle().leader(queue.partition))).collect()
}

/// Queues that other nodes lead, as those describe them.
#[derive(Default)]
struct Elsewhere {
    rows: HashMap<QueueId, Box<RawValue>>,
    /// What went through queues of any node over clients of that one.
    stats: HashMap<QueueId, Vec<Value>>,
    /// The tags of active consumers of queues that have a single one, this node's included.
    tags: HashMap<QueueId, Value>,
    gathered: Gathered,
}

/// A queue as all nodes together tell it.
#[derive(Serialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant)] // Nearly all are rows, and each is written at once.
enum Told<'a> {
    Own(Row<'a>),
    /// As its leader describes it.
    Other(&'a RawValue),
    /// With what went through it over clients of several nodes.
    Sum(Value),
}

impl Elsewhere {
    /// A queue of which this node says `own`.
    fn told<'a>(&'a self, id: QueueId, own: Row<'a>) -> Told<'a> {
        let tag = self.tags.get(&id);
        match (self.rows.get(&id), self.stats.get(&id)) {
            (None, None) if tag.is_none() => Told::Own(own),
            (Some(row), None) if own.message_stats.is_none() && tag.is_none() => Told::Other(row),
            (row, stats) => {
                let mut sum = match row.and_then(|row| serde_json::from_str::<Value>(row.get()).ok()) {
                    Some(mut sum) => {
                        if let Some(stats) = &own.message_stats {
                            add(&mut sum["message_stats"], &json!(stats));
                        }
                        sum
                    }
                    None => json!(own),
                };
                stats.into_iter().flatten().for_each(|stats| add(&mut sum["message_stats"], stats));
                if let Some(tag) = tag {
                    sum["single_active_consumer_tag"] = tag.clone();
                }
                Told::Sum(sum)
            }
        }
    }
}

/// Asks the other nodes about the queues of a list: about those of the page that is wanted, or, where
/// more decides what is on it, about all.
async fn elsewhere(cx: Cx<'_>, vhost: Option<VhostId>, named: &Named<Listed>) -> Elsewhere {
    let (others, queues) = (cx.others(), &named.items[..]);
    if others.is_empty() {
        return Elsewhere::default();
    }
    // Of a few that a name was found in not all others are told either.
    let page = listing::page_of_named(cx.call).or_else(|| named.is_short().then_some(0..queues.len()));
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
    Elsewhere { rows, stats, gathered, tags: HashMap::new() }
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
    let (own, is_whole) = (Some(cx.handle().own_node()), listing::is_whole(cx.call));
    let write = |part: &[QueueId], text: &mut Text| {
        let (topology, store) = (cx.handle().topology(), cx.call.statistics.store());
        let rows = Rows::new(cx, (&map, &topology), &store, (&figures, &owners), rates.as_ref());
        for queue in part.iter().filter_map(|id| topology.queue(*id)) {
            if cx.handle().leader(queue.partition) == own {
                match is_whole {
                    true => text.push(&(queue.id.0, rows.row(queue), ())),
                    false => text.push(&(queue.id.0, listing::one(cx.call, json!(rows.row(queue))), ())),
                }
                continue;
            }
            let history = store.queue(queue.id).map(std::slice::from_ref);
            if let (Some(history), Some(ranges)) = (history, &rates)
                && let Some(stats) = message_stats(history, &store, ranges)
            {
                text.push(&(queue.id.0, (), stats));
            }
        }
    };
    listing::written(&wanted, write).await
}

/// For another node: what is in the queues that this one leads, in numbers.
pub(super) async fn own_figures(cx: Cx<'_>) -> Result<Answer, Refused> {
    let figures = cx.handle().queue_figures().await;
    let rows: Vec<[u64; 3]> = figures.all().map(|found| [found.queue.0, found.ready, found.unacked]).collect();
    Ok(Answer::json(&json!(rows)))
}

/// Messages of a queue: ready and unacked.
pub(super) type Counts = HashMap<QueueId, (u64, u64)>;

/// What is in the queues of the whole cluster, and who did not say it.
pub(super) async fn counts(cx: Cx<'_>) -> (Counts, Gathered) {
    let asked = cx.ask(cx.others(), "GET", "/api/leveret/figures");
    let (own, gathered) = tokio::join!(cx.handle().queue_figures(), asked);
    let mut counts: Counts = own.all().map(|found| (found.queue, (found.ready, found.unacked))).collect();
    for said in gathered.said.iter().filter(|said| said.status == 200) {
        let rows: Vec<[u64; 3]> = serde_json::from_slice(&said.body).unwrap_or_default();
        counts.extend(rows.into_iter().map(|[id, ready, unacked]| (QueueId(id), (ready, unacked))));
    }
    (counts, gathered)
}

/// In what goes to another node: whether this one leads the queue. It is not for the asking node to judge: one whose own copy
/// still joins may not have heard who leads. No client sees it.
const LEADS: &str = "leveret_leads";

/// What a node says of that in its description of a queue; nothing, where it is of an older build.
fn take_leads(described: &mut Value) -> Option<bool> {
    described.as_object_mut()?.remove(LEADS)?.as_bool()
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
    let mut active = Active::own(&figures);
    let (mut found, id, leader, is_single) = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        let leader = cx.handle().leader(queue.partition);
        let store = cx.call.statistics.store();
        let rows = Rows::new(cx, (&map, &topology), &store, (&figures, &owners), rates.as_ref());
        let mut found = json!(rows.row(queue));
        if let Some(ranges) = &rates {
            found["incoming"] = incoming(cx, &topology, queue, ranges).into();
        }
        let is_single = has_single(queue);
        if cx.is_asked {
            found[LEADS] = (leader == Some(cx.handle().own_node())).into();
            if let Some(consumer) = figures.of(queue).and_then(|figures| figures.active) {
                found[active::KEY] = json!(active::words(queue.id, consumer));
            }
        }
        (found, queue.id, leader, is_single)
    };
    if rates.is_some() {
        let wants = ["consumer_details", "single_active_consumer_tag"].iter().any(|column| cx.call.wants(column));
        let consumers = match wants {
            true => super::channel::consumers_of_queue(cx, id).await,
            false => Vec::new(),
        };
        found["consumer_details"] = consumers.into();
        found["deliveries"] = super::channel::deliveries_of_queue(cx, id, rates.as_ref()).await.into();
    }
    let gathered = cx.ask(cx.others(), "GET", &cx.same_statistics(cx.call.head.uri.path())).await;
    for said in &gathered.said {
        let Some(mut described) = said.json() else { continue };
        if take_leads(&mut described).unwrap_or(Some(said.node) == leader) {
            // Who leads it knows what is in it, and who has a vote.
            active.take(&mut described);
            std::mem::swap(&mut found, &mut described);
        }
        if described["message_stats"].is_object() {
            add(&mut found["message_stats"], &described["message_stats"]);
        }
        for list in ["consumer_details", "deliveries", "incoming"] {
            if let (Some(all), Some(more)) = (found[list].as_array_mut(), described[list].as_array_mut()) {
                all.append(more);
                all.truncate(super::channel::DETAILS_MAX);
            }
        }
    }
    if is_single && !cx.is_asked && rates.is_some() {
        active.tell_all(&mut found["consumer_details"]);
        if found.get("consumers").is_some() {
            found["single_active_consumer_tag"] = active::tag_in(&found["consumer_details"]);
        }
    }
    Ok(gathered.told(Answer::json(&listing::one(cx.call, found))))
}

/// PUT: a declare in the caller's name.
pub(super) async fn put(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let name = named(name)?;
    let may = |topology: &Topology| {
        Ok(topology.check_right(cx.caller.actor(), vhost, (broker::topology::Kind::Queue, name), Access::Configure)?)
    };
    cx.check_before_body(may).await?;
    let mut fields = fields::QUEUE.of(&body.read(cx.caller).await?)?;
    let at = check_node(cx, &fields)?;
    let arguments = fields.remove("arguments").unwrap_or_else(|| json!({}));
    let mut arguments = json::to_table(&arguments).map_err(|why| why.of("arguments"))?;
    let kind = match (fields::text(&fields, "queue_type")?, fields::text(&fields, "type")?) {
        (Some(kind), _) => Some(kind.to_owned()),
        // As answers show it. What is so anyway is not said again.
        (_, Some(kind)) => Some(kind.to_owned()).filter(|kind| *kind != default_type(cx, vhost).word()),
        _ => None,
    };
    if flag(&fields, "exclusive", false)? {
        let reason = "an exclusive queue belongs to a connection of AMQP and ends with it: over HTTP there is none";
        return Err(Refused::BadRequest(reason.to_owned()));
    }
    if let Some(kind) = kind
        && arguments.get("x-queue-type").is_none()
    {
        arguments.push("x-queue-type", amqp::Value::LongString(kind.into()));
    }
    let durable = flag(&fields, "durable", false)?;
    let auto_delete = flag(&fields, "auto_delete", false)?;
    let declare = QueueDeclare {
        vhost,
        name,
        server_named: false,
        durable,
        exclusive: false,
        auto_delete,
        arguments: &arguments,
    };
    let at = match at {
        Some(node) if !durable && node != cx.handle().own_node() => {
            let reason = "a queue that is not durable lives in the memory of the node that is asked: ask that one";
            return Err(Refused::BadRequest(reason.to_owned()));
        }
        at => at,
    };
    cx.handle().catch_up().await?;
    Ok(Answer::put(cx.handle().declare_queue(cx.caller.actor(), &declare, at).await?))
}

/// The type of a queue of this virtual host that says none.
fn default_type(cx: Cx<'_>, vhost: VhostId) -> QueueType {
    let topology = cx.handle().topology();
    let default = topology.vhost_of(vhost).and_then(|vhost| vhost.description.default_queue_type);
    default.unwrap_or(QueueType::Classic)
}

/// The `node` on which a new queue is to be, or where it is to be led. Errors: 400 for one that there is not, or that
/// cannot be reached.
pub(super) fn check_node(cx: Cx<'_>, fields: &serde_json::Map<String, Value>) -> Result<Option<NodeNumber>, Refused> {
    let Some(node) = fields::text(fields, "node")?.filter(|node| !node.is_empty()) else { return Ok(None) };
    match cx.handle().members().iter().find(|member| member.name == node) {
        None => Err(Refused::BadRequest(format!("Node {node} is not a cluster member"))),
        Some(member) if !member.is_reached => Err(Refused::BadRequest(format!("Node {node} is not running"))),
        Some(member) => Ok(Some(member.number)),
    }
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
    let [if_unused, if_empty] = cx.call.conditions(["if-unused", "if-empty"])?;
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

/// The same of what is to be made. Errors: 400, as the path is right and the name is not.
pub(super) fn named(name: &[u8]) -> Result<&[u8], Refused> {
    match name.len() {
        0..=NAME_BYTES_MAX => Ok(name),
        bytes => {
            Err(Refused::BadRequest(format!("names have at most {NAME_BYTES_MAX} bytes, and this one has {bytes}")))
        }
    }
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
        rates_of(&[*count], &[("publish", 0)], Kind::Counter, (&store, ranges.messages), &mut stats);
        let vhost = topology.vhost_of(*vhost).map(|vhost| json::text(&vhost.name));
        json!({ "stats": stats, "exchange": { "name": json::text(name), "vhost": vhost } })
    };
    from.iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_made_under_too_long_a_name_is_refused_and_not_looked_for() {
        assert!(named(&[b'q'; NAME_BYTES_MAX]).is_ok());
        let refused = named(&[b'q'; NAME_BYTES_MAX + 1]);
        assert!(
            matches!(refused, Err(Refused::BadRequest(why)) if why == "names have at most 255 bytes, and this one has 256")
        );
    }

    #[test]
    fn a_node_itself_says_whether_it_leads_and_no_client_sees_that() {
        let mut described = json!({ "online": ["n2"], LEADS: true });
        assert_eq!((take_leads(&mut described), &described), (Some(true), &json!({ "online": ["n2"] })));
        assert_eq!(take_leads(&mut json!({ LEADS: false })), Some(false));
        assert_eq!(take_leads(&mut json!({})), None, "an older build");
    }
}

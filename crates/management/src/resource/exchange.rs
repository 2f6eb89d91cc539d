//! `/api/exchanges`: what is declared; declare and delete.

use super::Cx;
use super::node::add;
use super::queue::{check_node, checked, flag, named};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::others::{Gathered, Said};
use crate::statistics::{History, Kind, Ranges, column, rates_of};
use crate::{json, listing};
use broker::VhostId;
use broker::topology::{Access, Exchange, ExchangeDeclare, Name, Topology};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The default exchange's name is empty, which no path can say.
pub(super) fn from_path(name: &[u8]) -> &[u8] {
    if name == b"amq.default" { b"" } else { name }
}

/// GET of all, or of those in a virtual host.
pub(super) async fn list(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    let exchanges: Vec<(VhostId, Name)> = {
        let topology = cx.handle().topology();
        let vhost = vhost.map(|name| cx.visible_vhost(&topology, name)).transpose()?;
        let seen = |exchange: &&Exchange| match vhost {
            Some(vhost) => exchange.vhost == vhost,
            None => cx.caller.sees(&topology, exchange.vhost),
        };
        let ranks = super::vhost::ranks(&topology);
        let mut found: Vec<_> =
            topology.exchanges().filter(seen).map(|exchange| (exchange.vhost, exchange.name.clone())).collect();
        found.sort_unstable_by(|a, b| (ranks.get(&a.0), &a.1).cmp(&(ranks.get(&b.0), &b.1)));
        found
    };
    let rates = cx.rates().await?;
    let gathered = match rates {
        Some(_) => cx.ask(cx.others(), "GET", &cx.same_statistics(&counted_target(cx))).await,
        None => Gathered::default(),
    };
    let elsewhere = counted_elsewhere(&gathered);
    let named = listing::by_name(cx.call, exchanges, |(_, name)| name)?;
    let describe = |part: &[(VhostId, Name)]| {
        let topology = cx.handle().topology();
        let found = part.iter().filter_map(|(vhost, name)| topology.find_exchange(*vhost, name));
        let whole = |exchange: &Exchange| {
            let mut described = describe(cx, &topology, exchange, rates.as_ref());
            let key = (described["vhost"].as_str().unwrap_or_default(), described["name"].as_str().unwrap_or_default());
            let more = elsewhere.get(&(key.0.to_owned(), key.1.to_owned()));
            more.into_iter().flatten().for_each(|stats| add(&mut described["message_stats"], stats));
            described
        };
        found.map(whole).collect()
    };
    Ok(gathered.told(listing::answer_named(cx.call, &named, describe).await?))
}

/// What another node is asked for: what went through each exchange over clients of that one.
fn counted_target(cx: Cx<'_>) -> String {
    format!("{}?columns=name,vhost,message_stats", cx.call.head.uri.path())
}

/// What other nodes counted, by virtual host and name of the exchange.
fn counted_elsewhere(gathered: &Gathered) -> HashMap<(String, String), Vec<Value>> {
    let mut counted = HashMap::<_, Vec<Value>>::new();
    for said in gathered.said.iter().filter_map(Said::json) {
        let Value::Array(items) = said else { continue };
        for mut item in items.into_iter().filter(|item| item["message_stats"].is_object()) {
            let word = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
            let key = (word("vhost"), word("name"));
            counted.entry(key).or_default().push(item["message_stats"].take());
        }
    }
    counted
}

/// GET of one.
pub(super) async fn get(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    cx.visible_vhost(&cx.handle().topology(), vhost)?;
    let rates = cx.rates().await?;
    let incoming = match &rates {
        Some(ranges) => super::channel::publishes_to(cx, vhost, from_path(name), ranges).await,
        None => Vec::new(),
    };
    let gathered = match &rates {
        Some(_) => cx.ask(cx.others(), "GET", &cx.same_statistics(cx.call.head.uri.path())).await,
        None => Gathered::default(),
    };
    let topology = cx.handle().topology();
    let vhost = cx.visible_vhost(&topology, vhost)?;
    let found = topology.find_exchange(vhost, checked(from_path(name))?).ok_or(Refused::NotFound)?;
    let mut described = describe(cx, &topology, found, rates.as_ref());
    if let Some(ranges) = &rates {
        described["incoming"] = incoming.into();
        described["outgoing"] = outgoing(cx, &topology, found, ranges).into();
    }
    drop(topology);
    for mut other in gathered.said.iter().filter_map(Said::json) {
        if other["message_stats"].is_object() {
            add(&mut described["message_stats"], &other["message_stats"]);
        }
        if let (Some(all), Some(more)) = (described["incoming"].as_array_mut(), other["incoming"].as_array_mut()) {
            all.append(more);
        }
        if let (Some(all), Some(more)) = (described["outgoing"].as_array_mut(), other["outgoing"].as_array_mut()) {
            for other in more.drain(..) {
                match all.iter_mut().find(|known| known["queue"] == other["queue"]) {
                    Some(known) => add(&mut known["stats"], &other["stats"]),
                    None => all.push(other),
                }
            }
        }
    }
    Ok(gathered.told(Answer::json(&listing::one(cx.call, described))))
}

/// PUT: a declare in the caller's name.
pub(super) async fn put(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let name = named(name)?;
    let may = |topology: &Topology| {
        Ok(topology.check_right(
            cx.caller.actor(),
            vhost,
            (broker::topology::Kind::Exchange, name),
            Access::Configure,
        )?)
    };
    cx.check_before_body(may).await?;
    let fields = fields::EXCHANGE.of(&body.read(cx.caller).await?)?;
    check_node(cx, &fields)?;
    let kind = match fields.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        Some(_) => return Err(Refused::BadRequest("type is no text".to_owned())),
        None => "direct".to_owned(),
    };
    let arguments = fields.get("arguments").cloned().unwrap_or_else(|| json!({}));
    let arguments = json::to_table(&arguments).map_err(|why| why.of("arguments"))?;
    cx.handle().catch_up().await?;
    let checked = {
        let topology = cx.handle().topology();
        let declare = ExchangeDeclare {
            vhost,
            name,
            kind: kind.as_bytes(),
            durable: flag(&fields, "durable", false)?,
            auto_delete: flag(&fields, "auto_delete", false)?,
            internal: flag(&fields, "internal", false)?,
            arguments: &arguments,
        };
        topology.check_exchange_declare(cx.caller.actor(), &declare)?
    };
    let is_new = checked != broker::topology::Checked::Done;
    cx.handle().carry_out(checked).await?;
    Ok(Answer::put(is_new))
}

/// DELETE, perhaps only if it is unused.
pub(super) async fn delete(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let vhost = cx.usable_vhost(vhost)?;
    let [if_unused] = cx.call.conditions(["if-unused"])?;
    cx.handle().catch_up().await?;
    let checked = {
        let topology = cx.handle().topology();
        let name = checked(from_path(name))?;
        topology.find_exchange(vhost, name).ok_or(Refused::NotFound)?;
        topology.check_exchange_delete(cx.caller.actor(), vhost, name, if_unused)?
    };
    cx.handle().carry_out(checked).await?;
    Ok(Answer::done())
}

/// What went to each queue.
fn outgoing(cx: Cx<'_>, topology: &Topology, exchange: &Exchange, ranges: &Ranges) -> Vec<Value> {
    let store = cx.call.statistics.store();
    let Some(counted) = store.exchange(exchange.vhost, &exchange.name) else { return Vec::new() };
    let describe = |(queue, count): (&broker::QueueId, &History)| {
        let queue = topology.queue(*queue)?;
        let mut stats = Map::new();
        rates_of(&[count], &[("publish", 0)], Kind::Counter, (&store, ranges.messages), &mut stats);
        let vhost = topology.vhost_of(queue.vhost).map(|vhost| json::text(&vhost.name));
        Some(json!({ "stats": stats, "queue": { "name": json::text(&queue.name), "vhost": vhost } }))
    };
    counted.queues.iter().filter_map(describe).collect()
}

fn describe(cx: Cx<'_>, topology: &Topology, exchange: &Exchange, rates: Option<&Ranges>) -> Value {
    let policy = topology.policy_of_exchange(exchange);
    let mut described = json!({
        "name": json::text(&exchange.name),
        "vhost": topology.vhost_of(exchange.vhost).map(|vhost| json::text(&vhost.name)),
        "type": exchange.kind.word(),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": json::table(&exchange.arguments),
        "policy": policy.map_or(Value::Null, |name| json::text(name)),
    });
    let store = cx.call.statistics.store();
    if let (Some(ranges), Some(counted)) = (rates, store.exchange(exchange.vhost, &exchange.name)) {
        let mut stats = Map::new();
        let named = [("publish_in", column::IN), ("publish_out", column::OUT)];
        rates_of(&[&counted.messages], &named, Kind::Counter, (&store, ranges.messages), &mut stats);
        described["message_stats"] = stats.into();
    }
    described
}

//! `/api/channels` and `/api/consumers`: what connections are used for.

use super::Cx;
use super::active::{self, has_single};
use super::connection::{self, find, visible};
use crate::answer::{Answer, Refused};
use crate::others::{Row, Said};
use crate::statistics::{History, Kind, Ranges, message_stats, out_of_queue, rates_of};
use crate::{json, listing};
use broker::QueueId;
use broker::topology::{Name, Topology};
use serde_json::{Map, Value, json};
use server::report::{ChannelReport, ConnectionReport, ConsumerReport, WaitingReport};

fn name(report: &ConnectionReport, channel: &ChannelReport) -> String {
    format!("{} ({})", connection::name(report), channel.number)
}

/// GET of all, or of those in a virtual host.
pub(super) async fn list(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    if let Some(vhost) = vhost {
        cx.visible_vhost(&cx.handle().topology(), vhost)?;
    }
    let mut all = visible(cx).await;
    all.retain(|report| vhost.is_none_or(|vhost| report.vhost == vhost));
    let channels: Vec<_> = channels_of(&all).collect();
    let rates = cx.rates().await?;
    let gathered = cx.gather().await;
    let rows = gathered.rows(cx.handle().own_node(), &channels);
    let describe = |row: &Row<'_, Channel<'_>>| {
        row.described(|(report, channel)| Some(describe(cx, report, channel, rates.as_ref())))
    };
    let answer = listing::answer(cx.call, &rows, |part| part.iter().filter_map(describe).collect()).await?;
    Ok(gathered.told(answer))
}

/// GET of those of one connection.
pub(super) async fn of_connection(cx: Cx<'_>, wanted: &[u8]) -> Result<Answer, Refused> {
    match find(cx, wanted).await {
        Err(Refused::NotFound) => cx.elsewhere().await,
        found => {
            let (found, rates) = (found?, cx.rates().await?);
            Ok(Answer::json(&listing::list(cx.call, described(cx, &found, rates.as_ref()))?))
        }
    }
}

/// GET of one.
pub(super) async fn get(cx: Cx<'_>, wanted: &[u8]) -> Result<Answer, Refused> {
    for report in cx.handle().connections().await {
        for channel in &report.channels {
            if name(&report, channel).as_bytes() == wanted {
                connection::need_visible(cx, &report)?;
                let rates = cx.rates().await?;
                let mut found = describe(cx, &report, channel, rates.as_ref());
                if cx.call.wants("consumer_details") {
                    let consumers = channel.consumers.iter().map(|one| (&report, channel, one));
                    found["consumer_details"] = described_consumers(cx, consumers).await.into();
                    tell_active(cx, &mut found["consumer_details"]).await;
                }
                if let Some(ranges) = &rates {
                    found["publishes"] = publishes(cx, &report, channel, ranges).into();
                    found["deliveries"] = deliveries(cx, &report, channel, ranges).into();
                }
                return Ok(Answer::json(&listing::one(cx.call, found)));
            }
        }
    }
    let gathered = cx.ask(cx.others(), "GET", &cx.same_statistics(cx.call.head.uri.path())).await;
    let said = gathered.said.into_iter().find(|said| said.status != 404).ok_or(Refused::NotFound)?;
    let Some(mut found) = said.json() else { return Ok(said.pass_on()) };
    tell_active(cx, &mut found["consumer_details"]).await;
    Ok(Answer::json(&listing::one(cx.call, found)))
}

/// Says which of these consumers are active, unless another node asks, which says it itself.
async fn tell_active(cx: Cx<'_>, described: &mut Value) {
    let mut consumers = described.as_array().into_iter().flatten();
    if !cx.is_asked && consumers.any(|one| one.get(active::KEY).is_some()) {
        active::of_all(cx, &[]).await.tell_all(described);
    }
}

/// GET of all consumers, or of those in a virtual host; everybody sees theirs.
pub(super) async fn consumers(cx: Cx<'_>, vhost: Option<&[u8]>) -> Result<Answer, Refused> {
    if let Some(vhost) = vhost {
        super::find_vhost(&cx.handle().topology(), vhost)?;
    }
    let mut all = visible(cx).await;
    all.retain(|report| vhost.is_none_or(|vhost| report.vhost == vhost));
    let consumers = channels_of(&all).flat_map(|(report, of)| of.consumers.iter().map(move |one| (report, of, one)));
    let consumers: Vec<_> = consumers.collect();
    let gathered = cx.gather_with(Some(active::KEY)).await;
    let is_open = {
        let topology = cx.handle().topology();
        let is_single = |(_, _, one): &Consuming<'_>| topology.queue(one.queue).is_some_and(has_single);
        gathered.said.iter().any(active::is_open_in) || consumers.iter().any(is_single)
    };
    let active = match is_open && !cx.is_asked {
        true => Some(active::of_all(cx, &gathered.missing).await),
        false => None,
    };
    let rows = gathered.rows(cx.handle().own_node(), &consumers);
    let describe = |part: &[Row<'_, Consuming<'_>>]| {
        let topology = cx.handle().topology();
        let own = |(r, channel, c): &Consuming<'_>| describe_consumer(cx, &topology, (r, channel), c);
        let told = |mut described: Value| {
            active.iter().for_each(|active| active.tell(&mut described));
            described
        };
        part.iter().filter_map(|row| row.described(own).map(told)).collect()
    };
    Ok(gathered.told(listing::answer(cx.call, &rows, describe).await?))
}

/// GET of what clients wait for: requests without an answer, over HTTP too, publishes without a
/// confirm; the oldest first.
pub(super) async fn waiting(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    let all = visible(cx).await;
    let found =
        channels_of(&all).flat_map(|(r, channel)| channel.waiting.iter().map(move |waiting| (r, channel, waiting)));
    let describe = |(report, channel, waiting): (&ConnectionReport, &ChannelReport, &WaitingReport)| {
        json!({
            "connection": connection::name(report),
            "channel": channel.number,
            "user": json::text(&report.user),
            "vhost": json::text(&report.vhost),
            "method": waiting.method,
            "queue": waiting.queue.as_ref().map(|name| json::text(name)),
            "partitions": waiting.partitions.iter().map(|partition| partition.0).collect::<Vec<_>>(),
            "waits_for": waiting.waits_for,
            "waited_ms": waiting.waited_ms,
        })
    };
    let mut items: Vec<Value> = found.map(describe).collect();
    items.extend(waiting_over_http(cx));
    let node = &cx.handle().facts().node_name;
    items.iter_mut().for_each(|item| item["node"] = node.as_str().into());
    let gathered = cx.ask(cx.others(), "GET", cx.call.head.uri.path()).await;
    let of_others = |value| if let Value::Array(items) = value { items } else { Vec::new() };
    items.extend(gathered.said.iter().filter_map(Said::json).flat_map(of_others));
    items.sort_by_key(|item| std::cmp::Reverse(item["waited_ms"].as_u64()));
    Ok(gathered.told(Answer::json(&listing::list(cx.call, items)?)))
}

/// The requests to this API that have no answer, but for the one that asks.
fn waiting_over_http(cx: Cx<'_>) -> Vec<Value> {
    let asking = cx.call.asking;
    let topology = cx.handle().topology();
    let describe = |request: std::rc::Rc<crate::waiting::Request>| {
        let awaited = request.awaited(&topology);
        json!({
            "connection": request.peer.to_string(),
            "channel": null,
            "user": request.user.borrow().as_ref().map(|name| json::text(name)),
            "vhost": awaited.vhost.map(|name| json::text(&name)),
            "method": format!("{} {}", request.method, request.path),
            "queue": awaited.queue.map(|name| json::text(&name)),
            "partitions": awaited.partition.into_iter().map(|partition| partition.0).collect::<Vec<_>>(),
            "waits_for": awaited.what,
            "waited_ms": request.waited_ms(),
        })
    };
    asking.others().into_iter().map(describe).collect()
}

/// The consumers of one queue on this node.
pub(super) async fn consumers_of_queue(cx: Cx<'_>, queue: QueueId) -> Vec<Value> {
    let all = cx.handle().connections().await;
    let consumers = channels_of(&all).flat_map(|(report, of)| of.consumers.iter().map(move |one| (report, of, one)));
    described_consumers(cx, consumers.filter(|(_, _, one)| one.queue == queue)).await
}

/// So many consumers of one queue or one channel are described at most: all of a million would hold up the one thread that
/// all requests share for ten seconds, and take hundreds of megabytes. `/api/consumers` has all, by pages.
pub(super) const DETAILS_MAX: usize = 10_000;
/// Others have their turn after so many.
const DETAILS_PART: usize = 500;

/// The first of these consumers, described.
async fn described_consumers<'a>(cx: Cx<'_>, consumers: impl Iterator<Item = Consuming<'a>>) -> Vec<Value> {
    let first: Vec<Consuming<'a>> = consumers.take(DETAILS_MAX).collect();
    let mut described = Vec::with_capacity(first.len());
    for part in first.chunks(DETAILS_PART) {
        {
            let topology = cx.handle().topology();
            described.extend(part.iter().filter_map(|(r, of, one)| describe_consumer(cx, &topology, (r, of), one)));
        }
        tokio::task::yield_now().await;
    }
    described
}

/// A consumer, and whose it is.
type Consuming<'a> = (&'a ConnectionReport, &'a ChannelReport, &'a ConsumerReport);

/// A channel, and the connection that it is of.
type Channel<'a> = (&'a ConnectionReport, &'a ChannelReport);

fn channels_of(all: &[ConnectionReport]) -> impl Iterator<Item = Channel<'_>> {
    all.iter().flat_map(|report| report.channels.iter().map(move |channel| (report, channel)))
}

fn described(cx: Cx<'_>, report: &ConnectionReport, rates: Option<&Ranges>) -> Vec<Value> {
    report.channels.iter().map(|channel| describe(cx, report, channel, rates)).collect()
}

/// What it published to each exchange.
fn publishes(cx: Cx<'_>, report: &ConnectionReport, channel: &ChannelReport, ranges: &Ranges) -> Vec<Value> {
    let store = cx.call.statistics.store();
    let Some(counted) = store.channel(report.number, channel.number) else { return Vec::new() };
    let describe = |(name, count): &(Name, History)| {
        let mut stats = Map::new();
        rates_of(&[count], &[("publish", 0)], Kind::Counter, (&store, ranges.messages), &mut stats);
        json!({ "stats": stats, "exchange": { "name": json::text(name), "vhost": json::text(&report.vhost) } })
    };
    counted.exchanges.iter().map(describe).collect()
}

/// What it was given of each queue.
fn deliveries(cx: Cx<'_>, report: &ConnectionReport, channel: &ChannelReport, ranges: &Ranges) -> Vec<Value> {
    let topology = cx.handle().topology();
    let store = cx.call.statistics.store();
    let Some(counted) = store.channel(report.number, channel.number) else { return Vec::new() };
    let describe = |(queue, counted): &(QueueId, History)| {
        let name = topology.queue(*queue).map(|queue| json::text(&queue.name))?;
        let counted = [counted];
        let stats = out_of_queue(&counted, &store, ranges);
        Some(json!({ "stats": stats, "queue": { "name": name, "vhost": json::text(&report.vhost) } }))
    };
    counted.queues.iter().filter_map(describe).collect()
}

/// What channels were given of a queue.
pub(super) async fn deliveries_of_queue(cx: Cx<'_>, queue: QueueId, rates: Option<&Ranges>) -> Vec<Value> {
    let Some(ranges) = rates else { return Vec::new() };
    let all = cx.handle().connections().await;
    let store = cx.call.statistics.store();
    let describe = |(report, channel): Channel<'_>| {
        let counted = store.channel(report.number, channel.number)?;
        let (_, counted) = counted.queues.iter().find(|(known, _)| *known == queue)?;
        let counted = [counted];
        let stats = out_of_queue(&counted, &store, ranges);
        Some(json!({ "stats": stats, "channel_details": details(cx, report, channel) }))
    };
    channels_of(&all).filter_map(describe).collect()
}

/// What channels published to an exchange.
pub(super) async fn publishes_to(cx: Cx<'_>, vhost: &[u8], exchange: &[u8], ranges: &Ranges) -> Vec<Value> {
    let all = cx.handle().connections().await;
    let store = cx.call.statistics.store();
    let describe = |(report, channel): Channel<'_>| {
        let counted = store.channel(report.number, channel.number)?;
        let (_, counted) = counted.exchanges.iter().find(|(name, _)| **name == *exchange)?;
        let mut stats = Map::new();
        rates_of(&[counted], &[("publish", 0)], Kind::Counter, (&store, ranges.messages), &mut stats);
        Some(json!({ "stats": stats, "channel_details": details(cx, report, channel) }))
    };
    channels_of(&all).filter(|(report, _)| report.vhost == vhost).filter_map(describe).collect()
}

/// A channel, where others are told of it.
fn details(cx: Cx<'_>, report: &ConnectionReport, channel: &ChannelReport) -> Value {
    json!({
        "name": name(report, channel),
        "number": channel.number,
        "node": cx.handle().facts().node_name,
        "user": json::text(&report.user),
        "connection_name": connection::name(report),
        "peer_host": report.peer.ip().to_string(),
        "peer_port": report.peer.port(),
    })
}

fn describe(cx: Cx<'_>, report: &ConnectionReport, channel: &ChannelReport, rates: Option<&Ranges>) -> Value {
    let mut described = json!({
        "name": name(report, channel),
        "number": channel.number,
        "node": cx.handle().facts().node_name,
        "user": json::text(&report.user),
        "user_who_performed_action": json::text(&report.user),
        "vhost": json::text(&report.vhost),
        "state": "running",
        "confirm": channel.confirms,
        "transactional": channel.transactional,
        "consumer_count": channel.consumers.len(),
        "messages_unacknowledged": channel.unacked,
        "messages_unconfirmed": channel.unconfirmed,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "connection_details": {
            "name": connection::name(report),
            "peer_host": report.peer.ip().to_string(),
            "peer_port": report.peer.port(),
        },
    });
    let store = cx.call.statistics.store();
    let Some(ranges) = rates else { return described };
    if let Some(counted) = store.channel(report.number, channel.number)
        && let Some(stats) = message_stats(&[&counted.messages], &store, ranges)
    {
        described["message_stats"] = json!(stats);
    }
    described
}

fn describe_consumer(
    cx: Cx<'_>,
    topology: &Topology,
    (report, channel): Channel<'_>,
    consumer: &ConsumerReport,
) -> Option<Value> {
    // A queue that went this moment takes its consumers with it.
    let queue = topology.queue(consumer.queue)?;
    let mut described = json!({
        "consumer_tag": json::text(&consumer.tag),
        "queue": { "name": json::text(&queue.name), "vhost": json::text(&report.vhost) },
        "ack_required": !consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "priority": consumer.priority,
        "arguments": json::table(&consumer.arguments()),
        "channel_details": details(cx, report, channel),
    });
    if has_single(queue) {
        // Its leader alone knows whether it is the active one: that is told in place of the key.
        described[active::KEY] = json!(active::words(queue.id, consumer.key));
    } else {
        described["active"] = true.into();
        described["activity_status"] = "up".into();
    }
    Some(described)
}

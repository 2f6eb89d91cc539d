//! `/api/overview`, `/api/nodes`, `/api/whoami`: the broker as a whole. It is one node.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::process::Process;
use crate::{json, listing};
use serde_json::{Value, json};
use server::handle::Traffic;

/// GET of who asks.
pub(super) fn whoami(cx: Cx<'_>) -> Result<Answer, Refused> {
    let tags: Vec<Value> = cx.caller.tags().iter().map(|tag| json::text(tag)).collect();
    Ok(Answer::json(&json!({ "name": json::text(&cx.caller.name), "tags": tags })))
}

/// GET of the cluster's name, which is the node's.
pub(super) fn cluster_name(cx: Cx<'_>) -> Result<Answer, Refused> {
    Ok(Answer::json(&json!({ "name": cx.handle().facts().node_name })))
}

/// GET of what plugins add to RabbitMQ's pages: nothing.
pub(super) fn extensions() -> Result<Answer, Refused> {
    Ok(Answer::json(&json!([])))
}

/// GET of everything at a glance. Who is no monitor counts what they may see.
pub(super) async fn overview(cx: Cx<'_>) -> Result<Answer, Refused> {
    let handle = cx.handle();
    let facts = handle.facts();
    let connections = super::connection::visible(cx).await;
    let channels = connections.iter().flat_map(|report| &report.channels);
    let (channel_count, consumer_count) =
        channels.fold((0, 0), |(all, consumers), channel| (all + 1, consumers + channel.consumers.len()));
    let figures = handle.queue_figures().await;
    let topology = handle.topology();
    let exchanges = topology.exchanges().filter(|exchange| cx.caller.monitors(&topology, exchange.vhost)).count();
    let (mut queues, mut ready, mut unacked) = (0, 0, 0);
    for queue in topology.queues().filter(|queue| cx.caller.monitors(&topology, queue.vhost)) {
        queues += 1;
        if let Some(found) = figures.get(&queue.id) {
            ready += found.ready;
            unacked += found.unacked;
        }
    }
    drop(topology);
    let mut overview = json!({
        "management_version": facts.config.product_version,
        "rabbitmq_version": facts.config.product_version,
        "product_name": facts.config.product,
        "product_version": facts.config.product_version,
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "cluster_name": facts.node_name,
        "node": facts.node_name,
        "rates_mode": "none",
        "exchange_types": exchange_types(),
        "object_totals": {
            "channels": channel_count,
            "connections": connections.len(),
            "consumers": consumer_count,
            "exchanges": exchanges,
            "queues": queues,
        },
        "queue_totals": {
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        },
        "listeners": listeners(cx),
        "contexts": [],
    });
    if cx.caller.is_monitoring() {
        let traffic = handle.figures().traffic;
        overview["message_stats"] = message_stats(&traffic);
        overview["churn_rates"] = json!({
            "connection_created": traffic.connections_opened,
            "connection_closed": traffic.connections_closed,
            "channel_created": traffic.channels_opened,
            "channel_closed": traffic.channels_closed,
        });
    }
    Ok(Answer::json(&listing::one(cx.call, overview)))
}

/// GET of the list of nodes.
pub(super) fn nodes(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    Ok(Answer::json(&listing::list(cx.call, vec![describe(cx)])?))
}

/// GET of one node.
pub(super) fn node(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(name)?;
    Ok(Answer::json(&listing::one(cx.call, describe(cx))))
}

/// PUT and DELETE of what holds publishers, as an alarm does: for an operator who wants queues drained.
pub(super) fn hold_publishers(cx: Cx<'_>, name: &[u8], hold: bool) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.need_node(name)?;
    let by = cx.caller.name.to_string();
    tracing::info!(?by, hold, "publishers held by the operator");
    cx.handle().hold_publishers(hold);
    Ok(Answer::done())
}

/// Where the node listens, in RabbitMQ's form.
pub(super) fn listeners(cx: Cx<'_>) -> Vec<Value> {
    let facts = cx.handle().facts();
    let plain = facts.amqp.len() - facts.tls_count;
    let amqp =
        facts.amqp.iter().enumerate().map(|(at, address)| (if at < plain { "amqp" } else { "amqp/ssl" }, address));
    amqp.chain(cx.call.http.iter().map(|address| ("http", address)))
        .map(|(protocol, address)| {
            json!({
                "node": facts.node_name,
                "protocol": protocol,
                "ip_address": address.ip().to_string(),
                "port": address.port(),
            })
        })
        .collect()
}

fn exchange_types() -> Vec<Value> {
    broker::topology::ExchangeType::ALL
        .iter()
        .map(|kind| json!({ "name": kind.word(), "description": "", "enabled": true }))
        .collect()
}

fn message_stats(traffic: &Traffic) -> Value {
    json!({
        "publish": traffic.published,
        "confirm": traffic.confirmed,
        "return_unroutable": traffic.returned,
        "drop_unroutable": traffic.dropped,
        "deliver": traffic.delivered,
        "deliver_no_ack": traffic.delivered_no_ack,
        "get": traffic.got,
        "deliver_get": traffic.delivered + traffic.delivered_no_ack + traffic.got,
        "redeliver": traffic.redelivered,
        "ack": traffic.acked,
    })
}

fn describe(cx: Cx<'_>) -> Value {
    let handle = cx.handle();
    let (facts, figures, process) = (handle.facts(), handle.figures(), Process::look());
    let mechanisms = facts.config.auth_mechanisms.iter();
    let mechanisms: Vec<Value> =
        mechanisms.map(|name| json!({ "name": name, "description": "", "enabled": true })).collect();
    let mut described = json!({
        "name": facts.node_name,
        "type": "disc",
        "running": true,
        "being_drained": false,
        "os_pid": std::process::id().to_string(),
        "uptime": facts.started.elapsed().as_millis() as u64,
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "rates_mode": "none",
        "partitions": [],
        "db_dir": facts.config.data_dir.display().to_string(),
        "config_files": [],
        "log_files": [],
        "enabled_plugins": [],
        "applications": [],
        "contexts": [],
        "auth_mechanisms": mechanisms,
        "exchange_types": exchange_types(),
        "mem_used": process.resident_bytes,
        "mem_limit": facts.config.transient_bytes_max,
        "mem_alarm": figures.alarms.memory,
        "disk_free": figures.disk_free_bytes,
        "disk_free_limit": facts.config.disk_free_min_bytes,
        "disk_free_alarm": figures.alarms.disk,
        "fd_used": process.open_fds,
        "fd_total": process.max_fds,
        "sockets_used": figures.connections,
        "sockets_total": facts.config.connections_max,
        "connection_created": figures.traffic.connections_opened,
        "connection_closed": figures.traffic.connections_closed,
        "channel_created": figures.traffic.channels_opened,
        "channel_closed": figures.traffic.channels_closed,
        "leveret_publishers_held": figures.alarms.operator,
        "leveret_value_at_risk": figures.value_at_risk,
        "leveret_messages_set_aside": figures.messages_set_aside,
        "leveret_log_bytes_written": figures.log_bytes,
        "leveret_log_syncs": figures.log_syncs,
        "leveret_unwritten_bytes": figures.unwritten_bytes,
        "leveret_transient_bytes": figures.transient_bytes,
        "leveret_unfinished_bytes": figures.unfinished_bytes,
        "leveret_history_bytes": figures.history_bytes,
        "leveret_waiting_bytes": figures.waiting_bytes,
    });
    described["leveret_deduplication_bytes"] = figures.deduplication_bytes.into();
    described
}

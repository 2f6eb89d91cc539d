//! `/api/overview`, `/api/nodes`, `/api/whoami`: the broker as a whole. It is one node.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::process::Process;
use crate::{json, listing};
use serde_json::{Value, json};
use server::handle::{NodeFigures, Traffic};

/// GET of who asks.
pub(super) fn whoami(cx: Cx<'_>) -> Result<Answer, Refused> {
    let tags: Vec<Value> = cx.caller.tags().iter().map(|tag| json::text(tag)).collect();
    Ok(Answer::json(&json!({ "name": json::text(&cx.caller.name), "tags": tags, "is_internal_user": true })))
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
    let cluster_tags = topology.global_parameter(b"cluster_tags").and_then(|value| serde_json::from_str(value).ok());
    // Without any RabbitMQ keeps an empty list, and shows none all the same.
    let cluster_tags = cluster_tags.filter(Value::is_object).unwrap_or_else(|| json!({}));
    drop(topology);
    let mut overview = json!({
        "management_version": facts.config.product_version,
        "rabbitmq_version": facts.config.product_version,
        "product_name": facts.config.product,
        "product_version": facts.config.product_version,
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "cluster_name": handle.cluster_name(),
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
        "cluster_tags": cluster_tags,
        "node_tags": {},
        "default_queue_type": "classic",
        "disable_stats": false,
        "enable_queue_totals": false,
        "is_op_policy_updating_enabled": true,
        "statistics_db_event_queue": 0,
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

/// GET of what the node's memory holds, in bytes or as parts of a hundred.
pub(super) fn memory(cx: Cx<'_>, name: &[u8], is_relative: bool) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(name)?;
    let figures = cx.handle().figures();
    let resident = Process::look().resident_bytes.unwrap_or_default();
    let parts = MemoryPart::of(&figures, resident);
    let mut memory = serde_json::Map::new();
    if is_relative {
        // As RabbitMQ does it: what is there at all is at least one part.
        let share = |bytes: u64| if resident == 0 { 0 } else { (bytes * 100).div_ceil(resident) };
        memory.extend(parts.iter().map(|part| (part.name.to_owned(), share(part.bytes).into())));
        memory.insert("total".to_owned(), 100.into());
    } else {
        memory.extend(parts.iter().map(|part| (part.name.to_owned(), part.bytes.into())));
        memory.insert("strategy".to_owned(), "rss".into());
        memory.insert("total".to_owned(), json!({ "erlang": resident, "rss": resident, "allocated": resident }));
    }
    Ok(Answer::json(&json!({ "memory": memory })))
}

/// GET of the tables of Erlang's runtime, of which there are none.
pub(super) fn memory_of_tables(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(name)?;
    Ok(Answer::json(&json!({ "ets_tables_memory": "no_tables" })))
}

/// A part of the node's memory, under the name that RabbitMQ has for the nearest thing.
struct MemoryPart {
    name: &'static str,
    bytes: u64,
}

impl MemoryPart {
    /// All of RabbitMQ's parts. What only Erlang has is 0, and what nobody counts is
    /// `other_system`.
    fn of(figures: &NodeFigures, resident: u64) -> Vec<MemoryPart> {
        let mut parts: Vec<MemoryPart> = [
            ("connection_readers", figures.waiting_bytes),
            ("connection_writers", 0),
            ("connection_channels", figures.unfinished_bytes),
            ("connection_other", 0),
            ("queue_procs", figures.transient_bytes),
            ("quorum_queue_procs", figures.unwritten_bytes),
            ("quorum_queue_dlx_procs", 0),
            ("stream_queue_procs", 0),
            ("stream_queue_replica_reader_procs", 0),
            ("stream_queue_coordinator_procs", 0),
            ("plugins", figures.history_bytes),
            ("metadata_store", 0),
            ("other_proc", 0),
            ("metrics", 0),
            ("mgmt_db", 0),
            ("mnesia", 0),
            ("quorum_ets", 0),
            ("metadata_store_ets", 0),
            ("other_ets", 0),
            ("binary", 0),
            ("msg_index", 0),
            ("code", 0),
            ("atom", 0),
            ("allocated_unused", 0),
            ("reserved_unallocated", 0),
        ]
        .map(|(name, bytes)| MemoryPart { name, bytes })
        .into();
        let counted: u64 = parts.iter().map(|part| part.bytes).sum();
        parts.push(MemoryPart { name: "other_system", bytes: resident.saturating_sub(counted) });
        parts
    }
}

/// PUT and DELETE of what holds publishers, as an alarm does: for an operator who wants queues
/// drained.
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
        "proc_used": process.threads,
        "proc_total": process.max_threads,
        "run_queue": process.runnable,
        "rabbitmq_version": facts.config.product_version,
        "cluster_links": [],
        "sockets_used": figures.connections,
        "sockets_total": facts.config.connections_max,
        "connection_created": figures.traffic.connections_opened,
        "connection_closed": figures.traffic.connections_closed,
        "channel_created": figures.traffic.channels_opened,
        "channel_closed": figures.traffic.channels_closed,
    });
    let own = [
        ("leveret_publishers_held", Value::from(figures.alarms.operator)),
        ("leveret_value_at_risk", figures.value_at_risk.into()),
        ("leveret_messages_set_aside", figures.messages_set_aside.into()),
        ("leveret_log_bytes_written", figures.log_bytes.into()),
        ("leveret_log_syncs", figures.log_syncs.into()),
        ("leveret_unwritten_bytes", figures.unwritten_bytes.into()),
        ("leveret_transient_bytes", figures.transient_bytes.into()),
        ("leveret_unfinished_bytes", figures.unfinished_bytes.into()),
        ("leveret_history_bytes", figures.history_bytes.into()),
        ("leveret_waiting_bytes", figures.waiting_bytes.into()),
        ("leveret_deduplication_bytes", figures.deduplication_bytes.into()),
    ];
    for (name, figure) in own {
        described[name] = figure;
    }
    described
}

//! `/api/overview`, `/api/nodes`, `/api/whoami`: the broker as a whole, and its nodes.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::last_known::Lengths;
use crate::others::Said;
use crate::process::Process;
use crate::statistics::{Figure, History, Kind, Ranges, column, lengths, message_stats, rates_of};
use crate::{json, listing};
use broker::topology::Topology;
use broker::{PartitionId, VhostId};
use serde_json::{Map, Value, json};
use server::handle::{Member, NodeFigures};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tokio::time::Instant;

/// For how many seconds samples are kept, each time with fewer of them.
const RETENTION: [u32; 4] = [600, 3_600, 28_800, 86_400];

/// What comes and goes, as RabbitMQ tells it of a node.
const CHURN: [(&str, usize); 7] = [
    ("connection_created", column::CONNECTION_CREATED),
    ("connection_closed", column::CONNECTION_CLOSED),
    ("channel_created", column::CHANNEL_CREATED),
    ("channel_closed", column::CHANNEL_CLOSED),
    ("queue_declared", column::QUEUE_DECLARED),
    ("queue_created", column::QUEUE_CREATED),
    ("queue_deleted", column::QUEUE_DELETED),
];

/// GET of who asks.
pub(super) fn whoami(cx: Cx<'_>) -> Result<Answer, Refused> {
    let tags: Vec<Value> = cx.caller.tags().iter().map(|tag| json::text(tag)).collect();
    Ok(Answer::json(&json!({ "name": json::text(&cx.caller.name), "tags": tags, "is_internal_user": true })))
}

/// GET of everything at a glance. Who is no monitor counts what they may see.
pub(super) async fn overview(cx: Cx<'_>) -> Result<Answer, Refused> {
    let handle = cx.handle();
    let facts = handle.facts();
    let rates = cx.rates().await?;
    let connections = super::connection::visible(cx).await;
    let channels = connections.iter().flat_map(|report| &report.channels);
    let (channel_count, consumer_count) =
        channels.fold((0, 0), |(all, consumers), channel| (all + 1, consumers + channel.consumers.len()));
    let target = cx.same_statistics("/api/overview");
    let (figures, gathered) = tokio::join!(handle.queue_figures(), cx.ask(cx.others(), "GET", &target));
    let topology = handle.topology();
    let exchanges = topology.exchanges().filter(|exchange| cx.caller.monitors(&topology, exchange.vhost)).count();
    let seen: Vec<VhostId> =
        topology.vhosts().map(|(id, _)| id).filter(|id| cx.caller.monitors(&topology, *id)).collect();
    let (mut queues, mut ready, mut unacked) = (0, 0, 0);
    let mut known: BTreeMap<PartitionId, Lengths> = BTreeMap::new();
    for queue in topology.declared_queues().filter(|queue| cx.caller.monitors(&topology, queue.vhost)) {
        queues += 1;
        if let Some(found) = figures.of(queue) {
            ready += found.ready;
            unacked += found.unacked;
            if !queue.partition.is_in_memory() {
                let lengths = known.entry(queue.partition).or_default();
                *lengths = [lengths[0] + found.ready, lengths[1] + found.unacked];
            }
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
        "rates_mode": "detailed",
        "sample_retention_policies": { "global": RETENTION, "basic": RETENTION, "detailed": [] },
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
        "cluster_tags": cluster_tags,
        "node_tags": {},
        "default_queue_type": "classic",
        "disable_stats": cx.call.flag("disable_stats"),
        "enable_queue_totals": cx.call.flag("enable_queue_totals"),
        "is_op_policy_updating_enabled": true,
        "statistics_db_event_queue": 0,
    });
    // Which nodes there are, and where they listen, is for monitors: `/api/nodes` tells nobody else either.
    if cx.caller.is_monitoring() {
        overview["node"] = json!(facts.node_name);
        overview["listeners"] = listeners(cx).into();
        overview["contexts"] = json!([]);
    }
    if let Some(ranges) = &rates {
        let store = cx.call.statistics.store();
        // Who is no monitor is told of the virtual hosts that they may see.
        let all: Vec<&History> = match cx.caller.is_monitoring() {
            true => store.node().into_iter().collect(),
            false => seen.iter().filter_map(|vhost| store.vhost(*vhost)).collect(),
        };
        overview["message_stats"] = message_stats(&all, &store, ranges).map_or_else(|| json!({}), |stats| json!(stats));
        if let Some(totals) = overview["queue_totals"].as_object_mut() {
            for (name, details) in lengths(&all, &store, ranges) {
                totals.insert(name.to_owned(), json!(details));
            }
        }
        let mut churn = Map::new();
        if let Some(node) = store.node() {
            rates_of(&[node], &CHURN, Kind::Counter, (&store, ranges.messages), &mut churn);
        }
        overview["churn_rates"] = churn.into();
    }
    if cx.is_asked {
        overview[BY_PARTITION] =
            json!(known.iter().map(|(id, [ready, unacked])| (id.0, ready, unacked)).collect::<Vec<_>>());
    }
    // A node of an earlier version does not say of which partitions its sums are.
    let mut is_told_by_partition = true;
    for other in gathered.said.iter().filter_map(Said::json) {
        add_node(&mut overview, &other);
        match serde_json::from_value::<Vec<(u32, u64, u64)>>(other[BY_PARTITION].clone()) {
            Ok(rows) => known.extend(rows.into_iter().map(|(id, ready, unacked)| (PartitionId(id), [ready, unacked]))),
            Err(_) => is_told_by_partition = false,
        }
    }
    // Only who sees all queues is told of the same ones each time.
    if handle.has_peers() && !cx.is_asked && is_told_by_partition && cx.caller.is_monitoring() {
        let inhabited = inhabited(&handle.topology());
        let last = cx.call.statistics.last_known().besides(&known, |id| inhabited.contains(&id), Instant::now());
        last.into_iter().for_each(|lengths| add_lengths(&mut overview["queue_totals"], lengths));
    }
    if handle.has_peers() && !cx.is_asked {
        // What a node has counted goes with it.
        overview["leveret_missing_nodes"] = json!(gathered.missing);
    }
    Ok(gathered.told(Answer::json(&listing::one(cx.call, overview))))
}

/// What a node that is asked by another says of each partition whose queues it knows.
const BY_PARTITION: &str = "leveret_by_partition";

/// The partitions in which there is a queue.
pub(super) fn inhabited(topology: &Topology) -> BTreeSet<PartitionId> {
    topology.declared_queues().map(|queue| queue.partition).collect()
}

/// Adds messages that are ready and that are unacked.
fn add_lengths(totals: &mut Value, [ready, unacked]: Lengths) {
    let more = json!({ "messages": ready + unacked, "messages_ready": ready, "messages_unacknowledged": unacked });
    add(totals, &more);
}

/// Adds what another node has to what is told of all.
fn add_node(overview: &mut Value, other: &Value) {
    for total in ["channels", "connections", "consumers"] {
        add(&mut overview["object_totals"][total], &other["object_totals"][total]);
    }
    for sum in ["queue_totals", "message_stats", "churn_rates"] {
        add(&mut overview[sum], &other[sum]);
    }
    for list in ["listeners", "contexts"] {
        if let (Some(all), Some(more)) = (overview[list].as_array_mut(), other[list].as_array()) {
            all.extend(more.iter().cloned());
        }
    }
}

/// Adds up numbers, each under its name, and samples of one time. What is told of one side alone is
/// taken as it is.
pub(super) fn add(sum: &mut Value, other: &Value) {
    match (sum, other) {
        (sum @ Value::Null, other) => *sum = other.clone(),
        (Value::Object(sum), Value::Object(other)) => {
            for (name, value) in other.iter().filter(|(name, _)| *name != "timestamp") {
                add(sum.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(sum), Value::Array(other)) => {
            for (sum, other) in sum.iter_mut().zip(other) {
                if sum["timestamp"] == other["timestamp"] {
                    add(sum, other);
                }
            }
        }
        (sum, other) => match (sum.as_u64(), other.as_u64(), sum.as_f64(), other.as_f64()) {
            (Some(a), Some(b), ..) => *sum = (a + b).into(),
            (_, _, Some(a), Some(b)) => *sum = (a + b).into(),
            _ => {}
        },
    }
}

/// GET of the list of nodes.
pub(super) async fn nodes(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    let rates = cx.rates().await?;
    Ok(Answer::json(&listing::list(cx.call, all(cx, rates.as_ref()).await)?))
}

/// All nodes, each as it describes itself, or as one that does not run.
pub(super) async fn all(cx: Cx<'_>, rates: Option<&Ranges>) -> Vec<Value> {
    let others = cx.others();
    let gathered = cx.ask(others.clone(), "GET", &cx.same_statistics("/api/nodes")).await;
    let mut nodes = vec![(cx.handle().own_node(), describe(cx, rates))];
    for other in others {
        let said = gathered.said.iter().find(|said| said.node == other.number).and_then(Said::json);
        let described = said.and_then(|mut list| list.get_mut(0).map(Value::take));
        nodes.push((other.number, described.unwrap_or_else(|| not_running(&other))));
    }
    nodes.sort_by_key(|(number, _)| *number);
    nodes.into_iter().map(|(_, described)| described).collect()
}

/// GET of another node of the cluster.
pub(super) async fn other(cx: Cx<'_>, member: Member) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    match cx.pass_to(member.clone()).await {
        Err(Refused::Unavailable(_)) => Ok(Answer::json(&listing::one(cx.call, not_running(&member)))),
        answered => answered,
    }
}

/// GET of what the memory of another node holds.
pub(super) async fn other_memory(cx: Cx<'_>, member: Member) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    match cx.pass_to(member).await {
        // As RabbitMQ has it.
        Err(Refused::Unavailable(_)) => Ok(Answer::json(&json!({ "memory": "not_available" }))),
        answered => answered,
    }
}

/// A node of the cluster that does not answer.
fn not_running(member: &Member) -> Value {
    json!({
        "name": member.name,
        "type": "disc",
        "running": false,
        "cluster_links": [],
        "leveret_address": member.address,
        "leveret_linked": member.is_reached,
    })
}

/// GET of one node.
pub(super) async fn node(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    cx.need_node(name)?;
    let rates = cx.rates().await?;
    Ok(Answer::json(&listing::one(cx.call, describe(cx, rates.as_ref()))))
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
            ("connection_writers", figures.unread_bytes),
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

/// The parts of the node's memory by RabbitMQ's names, in bytes.
pub(crate) fn memory_parts(figures: &NodeFigures) -> Vec<(&'static str, u64)> {
    let resident = Process::look().resident_bytes.unwrap_or_default();
    MemoryPart::of(figures, resident).into_iter().map(|part| (part.name, part.bytes)).collect()
}

/// PUT and DELETE of what holds publishers, as an alarm does: for an operator who wants queues
/// drained.
pub(super) async fn hold_publishers(cx: Cx<'_>, name: &[u8], hold: bool, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.need_node(name)?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    let by = cx.caller.name.to_string();
    tracing::info!(?by, hold, "publishers held by the operator");
    cx.handle().hold_publishers(hold);
    Ok(Answer::done())
}

/// PUT and DELETE: the node serves no clients and leads nothing, or all of it again.
pub(super) async fn rest(cx: Cx<'_>, name: &[u8], on: bool, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.need_node(name)?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    cx.handle().rest(on).await;
    Ok(Answer::done())
}

/// Where the node listens, in RabbitMQ's form.
pub(super) fn listeners(cx: Cx<'_>) -> Vec<Value> {
    let facts = cx.handle().facts();
    let plain = facts.amqp.len() - facts.tls_count;
    let listener = |protocol: &str, host: &str, port: u16| json!({ "node": facts.node_name, "protocol": protocol, "ip_address": host, "port": port });
    let of = |protocol: &str, address: SocketAddr| listener(protocol, &address.ip().to_string(), address.port());
    let amqp = facts.amqp.iter().enumerate();
    let mut listeners: Vec<Value> =
        amqp.map(|(at, address)| of(if at < plain { "amqp" } else { "amqp/ssl" }, *address)).collect();
    listeners.extend(cx.call.http().map(|address| of("http", address)));
    listeners.extend(cx.call.https().map(|address| of("https", address)));
    listeners.extend(cx.call.scraped.iter().map(|address| of("http/prometheus", *address)));
    if cx.handle().has_peers()
        && let Some(own) = cx.handle().members().into_iter().find(|member| member.is_own)
        && let Some((host, port)) = own.address.rsplit_once(':')
        && let Ok(port) = port.parse()
    {
        // As it is set: a name where it is one.
        listeners.push(listener("clustering", host.trim_matches(['[', ']']), port));
    }
    listeners
}

fn exchange_types() -> Vec<Value> {
    broker::topology::ExchangeType::ALL
        .iter()
        .map(|kind| json!({ "name": kind.word(), "description": "", "enabled": true }))
        .collect()
}

fn describe(cx: Cx<'_>, rates: Option<&Ranges>) -> Value {
    let handle = cx.handle();
    let (facts, figures, process) = (handle.facts(), handle.figures(), Process::look());
    let mechanisms = facts.config.auth_mechanisms.iter();
    let mechanisms: Vec<Value> =
        mechanisms.map(|name| json!({ "name": name, "description": "", "enabled": true })).collect();
    let mut described = json!({
        "name": facts.node_name,
        "type": "disc",
        "running": true,
        "being_drained": handle.rests(),
        "os_pid": std::process::id().to_string(),
        "uptime": facts.started.elapsed().as_millis() as u64,
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "rates_mode": "detailed",
        "partitions": [],
        "db_dir": facts.config.data_dir.display().to_string(),
        "config_files": facts.config.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
        "log_files": ["<stderr>"],
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
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "cluster_links": [],
        "sockets_used": figures.connections,
        "sockets_total": facts.config.connections_max,
    });
    let Some(ranges) = rates else {
        // Nothing but who there is, as in RabbitMQ.
        return json!({ "name": facts.node_name, "type": "disc", "running": true });
    };
    let store = cx.call.statistics.store();
    if let (Some(node), Some(fields)) = (store.node(), described.as_object_mut()) {
        rates_of(&[node], &CHURN, Kind::Counter, (&store, ranges.node), fields);
        let counts = [
            ("context_switches", column::CONTEXT_SWITCHES),
            ("io_write_bytes", column::LOG_BYTES),
            ("io_sync_count", column::LOG_SYNCS),
        ];
        rates_of(&[node], &counts, Kind::Counter, (&store, ranges.node), fields);
        let gauges = [
            ("mem_used_details", column::MEM_USED),
            ("fd_used_details", column::FD_USED),
            ("sockets_used_details", column::SOCKETS_USED),
            ("proc_used_details", column::PROC_USED),
            ("disk_free_details", column::DISK_FREE),
        ];
        for (name, column) in gauges {
            let figure = Figure { of: &[node], columns: &[column], kind: Kind::Gauge };
            fields.insert(name.to_owned(), json!(figure.details(&store, ranges.node)));
        }
    }
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
        ("leveret_unread_bytes", figures.unread_bytes.into()),
        ("leveret_deduplication_bytes", figures.deduplication_bytes.into()),
    ];
    for (name, figure) in own {
        described[name] = figure;
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_have_adds_up_and_what_is_no_number_stays() {
        let mut sum = json!({
            "publish": 3, "publish_details": { "rate": 1.5, "samples": [{ "sample": 3, "timestamp": 7 }, { "sample": 1, "timestamp": 6 }] },
            "name": "first",
        });
        let other = json!({
            "publish": 4, "publish_details": { "rate": 2.0, "samples": [{ "sample": 4, "timestamp": 7 }, { "sample": 9, "timestamp": 5 }] },
            "ack": 2, "name": "second",
        });
        add(&mut sum, &other);
        let expected = json!({
            "publish": 7, "publish_details": { "rate": 3.5, "samples": [{ "sample": 7, "timestamp": 7 }, { "sample": 1, "timestamp": 6 }] },
            "name": "first", "ack": 2,
        });
        assert_eq!(sum, expected);
    }
}

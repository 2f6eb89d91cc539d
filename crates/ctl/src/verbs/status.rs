//! One node: what it runs on, and what it holds.

use super::cluster::{alarm_lines, alarms_of, listener_lines, own_listeners};
use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{Failure, USAGE};
use crate::form::Shown;
use crate::options::{Switch, text as text_option};
use crate::output::{heading, is_terminal};
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};

const UNIT: Switch = text_option("unit", "bytes, kb, mb or gb; gb without it");

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "status",
        tools: CTL | DIAGNOSTICS,
        section: Section::Monitoring,
        usage: "[--unit <unit>]",
        about: "Tells what the node runs on, what it holds and where it listens",
        switches: &[UNIT],
        run: status,
        ..VERB
    },
    Verb {
        name: "memory_breakdown",
        tools: DIAGNOSTICS,
        section: Section::Monitoring,
        usage: "[--unit <unit>]",
        about: "Tells what the node's memory holds",
        switches: &[UNIT],
        run: memory,
        ..VERB
    },
    Verb {
        name: "server_version",
        tools: DIAGNOSTICS,
        section: Section::Monitoring,
        about: "Tells the version of RabbitMQ that the node shows to clients",
        run: |cx| {
            cx.banner(&format!("Asking node {} for its RabbitMQ version...", cx.node()?));
            let version = text(&cx.api()?.get("overview")?.good()?["rabbitmq_version"]);
            Ok(Shown::Told(json!({ "result": "ok", "value": version }), version))
        },
        ..VERB
    },
];

/// Bytes in a unit.
fn unit<'a>(cx: &'a Cx<'_>) -> Result<(&'a str, f64), Failure> {
    let name = cx.options.text("unit").unwrap_or("gb");
    let bytes = match name.to_ascii_lowercase().as_str() {
        "bytes" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => {
            let text = format!("unit '{name}' is not supported. Please use one of: bytes, kb, mb, gb");
            return Err(Failure::argument(USAGE, text));
        }
    };
    Ok((name, bytes))
}

fn in_unit(bytes: &Value, (name, unit): (&str, f64)) -> String {
    let amount = bytes.as_f64().unwrap_or(0.0) / unit;
    let text = format!("{amount:.4}");
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The parts of a node's memory that it counts. It has the others at 0 for those who ask for RabbitMQ's names, and holds what it
/// holds for them in the rest.
const COUNTED: [&str; 5] =
    ["connection_readers", "connection_channels", "queue_procs", "quorum_queue_procs", "plugins"];
/// What is left of the node's memory beside them.
const REST: &str = "other_system";
const NOT_TOLD_APART: &str = "not told apart";

/// The parts of a node's memory that are known and the rest, the largest first: name, bytes, parts of a hundred.
fn parts(memory: &Value) -> Vec<(String, u64, f64)> {
    let total = memory["total"]["rss"].as_f64().unwrap_or(0.0).max(1.0);
    let fields = memory.as_object().into_iter().flatten();
    let parts = fields.filter(|(name, _)| name.as_str() == REST || COUNTED.contains(&name.as_str()));
    let mut parts: Vec<(String, u64, f64)> = parts
        .filter_map(|(name, bytes)| {
            let bytes = bytes.as_u64()?;
            Some((name.clone(), bytes, (bytes as f64 / total * 10_000.0).round() / 100.0))
        })
        .collect();
    parts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    parts
}

fn memory(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let unit = unit(cx)?;
    let node = cx.node()?;
    cx.banner(&format!("Reporting memory breakdown on node {node}..."));
    let memory = cx.api()?.get(&path(&["nodes", &node, "memory"]))?.good()?["memory"].clone();
    let parts = parts(&memory);
    Ok(Shown::Document(memory_told(&memory, &parts), memory_lines(&parts, unit)))
}

/// All of RabbitMQ's parts, of which those are null that nobody counts.
fn memory_told(memory: &Value, parts: &[(String, u64, f64)]) -> Value {
    let names = memory.as_object().into_iter().flatten().map(|(name, _)| name);
    let names = names.filter(|name| !["total", "strategy"].contains(&name.as_str()));
    let mut told: serde_json::Map<String, Value> = names.map(|name| (name.clone(), Value::Null)).collect();
    let known = parts.iter().map(|(name, bytes, share)| (name.clone(), json!({ "bytes": bytes, "percentage": share })));
    told.extend(known);
    told.into()
}

fn memory_lines(parts: &[(String, u64, f64)], unit: (&str, f64)) -> String {
    let line = |(name, bytes, share): &(String, u64, f64)| {
        let name = if name == REST { NOT_TOLD_APART } else { name };
        format!("{name}: {} ({share}%)\n", in_unit(&json!(bytes), unit))
    };
    parts.iter().map(line).collect()
}

fn status(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let unit = unit(cx)?;
    let node = cx.node()?;
    cx.banner(&format!("Status of node {node} ..."));
    let api = cx.api()?;
    let overview = api.get("overview")?.good()?;
    let found = api.get(&path(&["nodes", &node]))?.good()?;
    let memory = api.get(&path(&["nodes", &node, "memory"]))?.good()?["memory"].clone();
    let vhosts = items(api.get("vhosts?columns=name")?.good()?)?.len();
    let (listeners, alarms) = (own_listeners(cx)?, alarms_of(cx)?);
    let parts = parts(&memory);
    let uptime_s = found["uptime"].as_u64().unwrap_or(0) / 1000;
    let pid: u64 = text(&found["os_pid"]).parse().unwrap_or(0);
    let folder = text(&found["db_dir"]);
    let is_drained = found["being_drained"] == true;
    let told = json!({
        "active_plugins": [],
        "alarms": alarms,
        "config_files": found["config_files"],
        "data_directory": folder,
        "disk_free": found["disk_free"],
        "disk_free_limit": found["disk_free_limit"],
        "file_descriptors": {
            "sockets_limit": found["sockets_total"],
            "sockets_used": found["sockets_used"],
            "total_limit": found["fd_total"],
            "total_used": found["fd_used"],
        },
        "is_under_maintenance": is_drained,
        "leveret_version": overview["leveret_version"],
        "listeners": listeners,
        "log_files": found["log_files"],
        "memory": memory,
        "os": "Linux",
        "pid": pid,
        "product_name": overview["product_name"],
        "product_version": overview["product_version"],
        "rabbitmq_version": overview["rabbitmq_version"],
        "raft_data_directory": folder,
        "run_queue": found["run_queue"],
        "totals": {
            "connection_count": overview["object_totals"]["connections"],
            "queue_count": overview["object_totals"]["queues"],
            "virtual_host_count": vhosts,
        },
        "uptime": uptime_s,
        "vm_memory_high_watermark_limit": found["mem_limit"],
    });
    let on_terminal = is_terminal();
    let title = |text: &str| format!("{}\n\n", heading(text, on_terminal));
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let alarm_text = match alarms.is_empty() {
        true => "(none)\n".to_owned(),
        false => alarm_lines(&alarms).join("\n") + "\n",
    };
    let files = |field: &str| {
        let files = found[field].as_array().into_iter().flatten();
        match files.map(|file| format!(" * {}\n", text(file))).collect::<String>() {
            none if none.is_empty() => "(none)\n".to_owned(),
            files => files,
        }
    };
    let sections = [
        title("Runtime")
            + &format!(
                "OS PID: {pid}\nOS: Linux\nUptime (seconds): {uptime_s}\nIs under maintenance?: {is_drained}\nRabbitMQ version: \
                 {}\nLeveret version: {}\nNode name: {node}\nThreads: {} used, {} limit\n",
                text(&overview["rabbitmq_version"]),
                text(&overview["leveret_version"]),
                shown(&found["proc_used"]),
                shown(&found["proc_total"]),
            ),
        title("Plugins") + "Enabled plugins:\n\n(none)\n",
        title("Data directory") + &format!("Node data directory: {folder}\nRaft data directory: {folder}\n"),
        title("Config files") + &files("config_files"),
        title("Log file(s)") + &files("log_files"),
        title("Alarms") + &alarm_text,
        title("Memory")
            + &format!(
                "Total memory used: {}\nCalculation strategy: rss\nMemory high watermark setting: {} of transient \
                 messages\n\n{}",
                in_unit(&memory["total"]["rss"], unit),
                in_unit(&found["mem_limit"], unit),
                memory_lines(&parts, unit)
            ),
        title("File Descriptors")
            + &format!(
                "Total: {}, limit: {}\nSockets: {}, limit: {}\n",
                shown(&found["fd_used"]),
                shown(&found["fd_total"]),
                shown(&found["sockets_used"]),
                shown(&found["sockets_total"])
            ),
        title("Free Disk Space")
            + &format!(
                "Low free disk space watermark: {}\nFree disk space: {}\n",
                in_unit(&found["disk_free_limit"], unit),
                in_unit(&found["disk_free"], unit)
            ),
        title("Totals")
            + &format!(
                "Connection count: {}\nQueue count: {}\nVirtual host count: {vhosts}\n",
                shown(&overview["object_totals"]["connections"]),
                shown(&overview["object_totals"]["queues"])
            ),
        title("Listeners") + &listener_lines(&listeners, false),
    ];
    Ok(Shown::Document(told, sections.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_counts_is_told_in_one_line_and_is_null_to_programs() {
        let memory = json!({
            "binary": 0, "mnesia": 0, "connection_readers": 0, "queue_procs": 1_000_000, "other_system": 3_000_000,
            "strategy": "rss", "total": { "rss": 4_000_000, "allocated": 4_000_000 },
        });
        let parts = parts(&memory);
        let lines = "not told apart: 3 mb (75%)\nqueue_procs: 1 mb (25%)\nconnection_readers: 0 mb (0%)\n";
        assert_eq!(memory_lines(&parts, ("mb", 1e6)), lines);
        let of = |bytes: u64, percentage: f64| json!({ "bytes": bytes, "percentage": percentage });
        let told = json!({
            "binary": null, "mnesia": null, "connection_readers": of(0, 0.0), "queue_procs": of(1_000_000, 25.0),
            "other_system": of(3_000_000, 75.0),
        });
        assert_eq!(memory_told(&memory, &parts), told);
    }
}

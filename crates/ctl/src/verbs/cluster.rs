//! The cluster: who is in it, and where it listens.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{Failure, USAGE};
use crate::form::Shown;
use crate::options::flag;
use crate::output::{heading, is_terminal};
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "cluster_status",
        tools: CTL | DIAGNOSTICS,
        section: Section::Cluster,
        about: "Tells who is in the cluster, where it listens, and which alarms there are",
        run: status,
        ..VERB
    },
    Verb {
        name: "forget_cluster_node",
        section: Section::Cluster,
        usage: "[--offline] [--delete-queues] <node>",
        about: "Forgets a node that is gone for good, by its name or number: nothing counts on it any more",
        words: (1, 1),
        switches: &[
            flag("offline", "refused: another node has to run, and is asked"),
            flag(
                "delete-queues",
                "deletes the queues of which it had the only copy, where they keep it from being forgotten",
            ),
        ],
        run: forget,
        ..VERB
    },
    Verb {
        name: "listeners",
        tools: DIAGNOSTICS,
        section: Section::Monitoring,
        about: "Lists the addresses that the node listens on",
        run: listeners,
        ..VERB
    },
    Verb {
        name: "discover_peers",
        tools: DIAGNOSTICS,
        section: Section::Monitoring,
        about: "Lists the other nodes that are found, if any",
        run: discover_peers,
        ..VERB
    },
];

/// What RabbitMQ says of a protocol.
fn purpose(protocol: &str) -> &'static str {
    match protocol {
        "amqp" => "AMQP 0-9-1",
        "amqp/ssl" => "AMQP 0-9-1 over TLS",
        "clustering" => "inter-node communication",
        "http" => "HTTP API",
        "https" => "HTTP API over TLS (HTTPS)",
        "http/prometheus" => "Prometheus exporter API over HTTP",
        _ => "",
    }
}

/// Where the nodes listen, in the form of RabbitMQ's tools.
pub(super) fn listeners_of(cx: &Cx<'_>) -> Result<Vec<Value>, Failure> {
    let overview = cx.api()?.get("overview")?.good()?;
    let listeners = items(overview["listeners"].clone())?;
    let describe = |listener: &Value| {
        let address = text(&listener["ip_address"]);
        let interface = if address.contains(':') { format!("[{address}]") } else { address };
        let protocol = text(&listener["protocol"]);
        json!({
            "interface": interface,
            "node": listener["node"],
            "port": listener["port"],
            "protocol": protocol,
            "purpose": purpose(&protocol),
        })
    };
    Ok(listeners.iter().map(describe).collect())
}

/// Where the node listens that is asked.
pub(super) fn own_listeners(cx: &Cx<'_>) -> Result<Vec<Value>, Failure> {
    let (node, mut listeners) = (cx.node()?, listeners_of(cx)?);
    listeners.retain(|listener| listener["node"] == node.as_str());
    Ok(listeners)
}

/// One line for each.
pub(super) fn listener_lines(listeners: &[Value], with_node: bool) -> String {
    let line = |listener: &Value| {
        let [node, interface, protocol, purpose] =
            ["node", "interface", "protocol", "purpose"].map(|field| text(&listener[field]));
        let whose = if with_node { format!("Node: {node}, interface") } else { "Interface".to_owned() };
        format!("{whose}: {interface}, port: {}, protocol: {protocol}, purpose: {purpose}\n", listener["port"])
    };
    listeners.iter().map(line).collect()
}

/// The alarms in force in the cluster, as pairs of node and resource.
pub(super) fn alarms_of(cx: &Cx<'_>) -> Result<Vec<Value>, Failure> {
    alarms_at(cx, "health/checks/alarms")
}

/// Those of the node that is asked.
pub(super) fn own_alarms_of(cx: &Cx<'_>) -> Result<Vec<Value>, Failure> {
    alarms_at(cx, "health/checks/local-alarms")
}

fn alarms_at(cx: &Cx<'_>, at: &str) -> Result<Vec<Value>, Failure> {
    let answer = cx.api()?.get(at)?;
    match answer.status {
        200 | 503 => Ok(answer.json()["alarms"].as_array().cloned().unwrap_or_default()),
        _ => answer.good().map(|_| Vec::new()),
    }
}

/// What each alarm does, in a sentence.
pub(super) fn alarm_lines(alarms: &[Value]) -> Vec<String> {
    let line = |alarm: &Value| {
        let what = match text(&alarm["resource"]).as_str() {
            "disk" => "Free disk space alarm",
            "memory" => "Memory alarm",
            "operator" => "Publishers held by the operator",
            _ => "Alarm",
        };
        format!("{what} on node {}", text(&alarm["node"]))
    };
    alarms.iter().map(line).collect()
}

fn status(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Cluster status of node {node} ..."));
    let api = cx.api()?;
    let overview = api.get("overview")?.good()?;
    let nodes = items(api.get("nodes")?.good()?)?;
    let flags = items(api.get("feature-flags")?.good()?)?;
    let (listeners, alarms) = (listeners_of(cx)?, alarms_of(cx)?);
    let all: Vec<String> = nodes.iter().map(|node| text(&node["name"])).collect();
    let running: Vec<String> =
        nodes.iter().filter(|node| node["running"] == true).map(|node| text(&node["name"])).collect();
    let version = format!("{} {}", text(&overview["product_name"]), text(&overview["product_version"]));
    let versions: serde_json::Map<String, Value> = running
        .iter()
        .map(|name| {
            let version =
                json!({ "rabbitmq_name": overview["product_name"], "rabbitmq_version": overview["product_version"] });
            (name.clone(), version)
        })
        .collect();
    let by_node: serde_json::Map<String, Value> = running
        .iter()
        .map(|name| {
            (name.clone(), listeners.iter().filter(|listener| listener["node"] == name.as_str()).cloned().collect())
        })
        .collect();
    let is_drained =
        |name: &String| nodes.iter().any(|node| node["name"] == name.as_str() && node["being_drained"] == true);
    let word = |name: &String| if is_drained(name) { "marked for maintenance" } else { "not under maintenance" };
    let maintenance: serde_json::Map<String, Value> =
        running.iter().map(|name| (name.clone(), word(name).into())).collect();
    let told = json!({
        "alarms": alarms,
        "cluster_name": overview["cluster_name"],
        "disk_nodes": all,
        "feature_flags": flags,
        "listeners": by_node,
        "maintenance_status": maintenance,
        "partitions": {},
        "ram_nodes": [],
        "running_nodes": running,
        "versions": versions,
    });
    let on_terminal = is_terminal();
    let title = |text: &str| format!("{}\n\n", heading(text, on_terminal));
    let lines = |lines: &[String]| if lines.is_empty() { "(none)\n".to_owned() } else { lines.join("\n") + "\n" };
    let flag_lines: Vec<String> =
        flags.iter().map(|flag| format!("Flag: {}, state: {}", text(&flag["name"]), text(&flag["state"]))).collect();
    let parts = [
        title("Basics") + &format!("Cluster name: {}\n", text(&overview["cluster_name"])),
        title("Disk Nodes") + &lines(&all),
        title("Running Nodes") + &lines(&running),
        title("Versions") + &lines(&running.iter().map(|name| format!("{name}: {version}")).collect::<Vec<_>>()),
        title("Maintenance status")
            + &lines(&running.iter().map(|n| format!("Node: {n}, status: {}", word(n))).collect::<Vec<_>>()),
        title("Alarms") + &lines(&alarm_lines(&alarms)),
        title("Network Partitions") + "(none)\n",
        title("Listeners") + &listener_lines(&listeners, true),
        title("Feature flags") + &lines(&flag_lines),
    ];
    Ok(Shown::Document(told, parts.join("\n")))
}

fn forget(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.word(0);
    if cx.options.flag("offline") {
        return Err(Failure::plain(
            USAGE,
            "A node is forgotten by the others of its cluster: ask one that runs.\n".to_owned(),
        ));
    }
    cx.banner(&format!("Removing node {node} from the cluster"));
    let mut at = path(&["leveret", "nodes", node]);
    if cx.options.flag("delete-queues") {
        at.push_str("?delete-queues=true");
    }
    let Some(told) = cx.api()?.delete(&at)?.good_or_none()? else {
        return Err(Failure::refused("The node selected is not in the cluster.".to_owned()));
    };
    if let Some(count) = told["queues_deleted"].as_u64().filter(|count| *count > 0) {
        cx.banner(&format!("Deleted {count} queues of which {node} had the only copy"));
    }
    Ok(Shown::Done)
}

fn listeners(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} to report its protocol listeners ..."));
    let listeners = own_listeners(cx)?;
    let lines = listener_lines(&listeners, false);
    Ok(Shown::Document(json!({ "listeners": listeners, "node": node, "result": "ok" }), lines))
}

fn discover_peers(cx: &Cx<'_>) -> Result<Shown, Failure> {
    cx.banner("Discovering peers nodes ...");
    let node = cx.node()?;
    let nodes = items(cx.api()?.get("nodes")?.good()?)?;
    let peers: Vec<String> = nodes.iter().map(|node| text(&node["name"])).filter(|name| *name != node).collect();
    match peers.is_empty() {
        true => Ok(Shown::Line("No peers discovered".to_owned())),
        false => Ok(Shown::Document(json!(peers), peers.join("\n") + "\n")),
    }
}

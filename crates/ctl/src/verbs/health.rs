//! Health checks: each is a question whose answer is the exit code.

use super::cluster::{alarm_lines, alarms_of, own_alarms_of, own_listeners};
use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{Failure, UNAVAILABLE, USAGE};
use crate::form::{Form, Rows, Shown};
use crate::options::{number, text as text_option};
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS, QUEUES};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

const CHECK: Verb = Verb { tools: DIAGNOSTICS, section: Section::Monitoring, timeout_s: 70, ..VERB };
/// How long a listener may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) const VERBS: &[Verb] = &[
    Verb { name: "check_running", about: "Succeeds if the node runs and serves clients", run: running, ..CHECK },
    Verb { name: "is_running", about: "Tells whether the node runs and serves clients", run: is_running, ..CHECK },
    Verb { name: "is_booting", about: "Tells whether the node is on its way up", run: is_booting, ..CHECK },
    Verb { name: "alarms", about: "Lists alarms that block publishers", run: alarms, ..CHECK },
    Verb { name: "check_alarms", about: "Succeeds if no node has an alarm", run: check_alarms, ..CHECK },
    Verb { name: "check_local_alarms", about: "Succeeds if the node has no alarm", run: check_local_alarms, ..CHECK },
    Verb {
        name: "check_port_connectivity",
        about: "Succeeds if every listener accepts a connection",
        run: connectivity,
        ..CHECK
    },
    Verb {
        name: "check_port_listener",
        usage: "<port>",
        about: "Succeeds if the node listens on a port",
        words: (1, 1),
        run: port,
        ..CHECK
    },
    Verb {
        name: "check_protocol_listener",
        usage: "<protocol>",
        about: "Succeeds if the node serves a protocol: amqp, amqps, http",
        words: (1, 1),
        run: protocol,
        ..CHECK
    },
    Verb {
        name: "check_virtual_hosts",
        about: "Succeeds if all queues of all virtual hosts are served",
        run: vhosts,
        ..CHECK
    },
    Verb {
        name: "check_certificate_expiration",
        usage: "[--within <period>] [--unit <unit>]",
        about: "Succeeds if no certificate ends within a time; four weeks without one",
        switches: &[number("within", "how long"), text_option("unit", "days, weeks, months or years")],
        run: certificates,
        ..CHECK
    },
    Verb {
        name: "check_if_node_is_quorum_critical",
        tools: DIAGNOSTICS | QUEUES,
        about: "Succeeds if no queue loses its majority with this node",
        run: |cx| critical(cx, "node-is-quorum-critical", "quorum of any quorum queues"),
        ..CHECK
    },
    Verb {
        name: "check_if_node_is_mirror_sync_critical",
        tools: DIAGNOSTICS | QUEUES,
        about: "Succeeds if no mirror is lost with this node; there are no mirrors here",
        run: |cx| critical(cx, "node-is-mirror-sync-critical", "data safety of any classic mirrored queues"),
        ..CHECK
    },
    Verb {
        name: "node_health_check",
        tools: CTL | DIAGNOSTICS,
        about: "Succeeds if the node answers and has no alarm",
        run: node,
        ..CHECK
    },
    Verb {
        name: "list_node_auth_attempt_stats",
        tools: CTL | DIAGNOSTICS,
        about: "Counts logins, right and wrong, by protocol",
        run: attempts,
        ..CHECK
    },
    Verb {
        name: "reset_node_auth_attempt_metrics",
        section: Section::Configuration,
        about: "Counts logins from 0 again",
        run: forget_attempts,
        ..CHECK
    },
    Verb { name: "maybe_stuck", about: "Lists what has waited longest for an answer", run: stuck, ..CHECK },
];

fn failed(text: impl Into<String>) -> Failure {
    Failure::error(UNAVAILABLE, text)
}

fn line(text: String) -> Result<Shown, Failure> {
    Ok(Shown::Line(text))
}

/// A check of the API: nothing if it is well, and otherwise what it says.
fn check(cx: &Cx<'_>, at: &str) -> Result<Option<Value>, Failure> {
    let answer = cx.api()?.get(at)?;
    match answer.status {
        503 => Ok(Some(answer.json())),
        _ => answer.good().map(|_| None),
    }
}

/// What RabbitMQ says of a node on its way up, and why it is.
fn not_booted(node: &str, why: &str) -> String {
    format!("RabbitMQ on node {node} is not running or has not fully booted yet (check with is_booting): {why}")
}

fn running(cx: &Cx<'_>) -> Result<Shown, Failure> {
    if let (api, Some(why)) = cx.found()? {
        return Err(failed(not_booted(api.node_shown(), &why)));
    }
    let node = cx.node()?;
    cx.banner(&format!("Checking if RabbitMQ is running on node {node} ..."));
    match check(cx, "health/checks/ready-to-serve-clients")? {
        None => line(format!("RabbitMQ on node {node} is fully booted and running")),
        Some(why) => Err(failed(text(&why["reason"]))),
    }
}

/// A sentence that is a yes or a no to a program.
fn whether(is_so: bool, text: String) -> Result<Shown, Failure> {
    Ok(Shown::Told(json!({ "message": text, "result": is_so }), text))
}

fn is_running(cx: &Cx<'_>) -> Result<Shown, Failure> {
    if let (api, Some(why)) = cx.found()? {
        return whether(false, not_booted(api.node_shown(), &why));
    }
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} for its status ..."));
    match check(cx, "health/checks/ready-to-serve-clients")? {
        None => whether(true, format!("RabbitMQ on node {node} is fully booted and running")),
        Some(why) => whether(false, format!("RabbitMQ on node {node} is not running: {}", text(&why["reason"]))),
    }
}

fn is_booting(cx: &Cx<'_>) -> Result<Shown, Failure> {
    if let (api, Some(why)) = cx.found()? {
        return whether(true, format!("RabbitMQ on node {} is booting: {why}", api.node_shown()));
    }
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} for its boot status ..."));
    let text = format!(
        "RabbitMQ on node {node} is fully booted (check with is_running), stopped or has not started booting yet"
    );
    whether(false, text)
}

/// The alarms as programs read them: those of the node, and those of others.
fn alarms_told(node: &str, alarms: &[Value]) -> Value {
    let (own, others): (Vec<Value>, Vec<Value>) = alarms.iter().cloned().partition(|alarm| alarm["node"] == node);
    json!({ "local": alarm_lines(&own), "global": alarm_lines(&others) })
}

fn alarms(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} to report any known resource alarms ..."));
    let alarms = alarms_of(cx)?;
    let text = match alarms.is_empty() {
        true => format!("Node {node} reported no alarms, local or clusterwide\n"),
        false => alarm_lines(&alarms).join("\n") + "\n",
    };
    let mut told = alarms_told(&node, &alarms);
    (told["alarms"], told["node"], told["result"]) = (alarms.into(), node.into(), "ok".into());
    Ok(Shown::Document(told, text))
}

fn check_alarms(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} to report any local resource alarms ..."));
    let alarms = alarms_of(cx)?;
    match alarms.is_empty() {
        true => line(format!("Node {node} reported no alarms, local or clusterwide")),
        false => Err(alarmed(&node, &alarms).told(alarms_told(&node, &alarms))),
    }
}

/// Another node's alarm blocks this one's publishers too, and is not for this check: it tells which node to look after.
fn check_local_alarms(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} to report any local resource alarms ..."));
    let alarms = own_alarms_of(cx)?;
    match alarms.is_empty() {
        true => line(format!("Node {node} reported no local alarms")),
        false => Err(alarmed(&node, &alarms).told(json!({ "local": alarm_lines(&alarms) }))),
    }
}

fn alarmed(node: &str, alarms: &[Value]) -> Failure {
    Failure::plain(UNAVAILABLE, format!("Alarms reported by node {node}:\n{}", alarm_lines(alarms).join("\n")))
}

fn connectivity(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Testing TCP connections to all active listeners on node {node} ..."));
    let (mut well, mut bad) = (Vec::new(), Vec::new());
    let listeners = own_listeners(cx)?;
    let mut failures = Vec::new();
    for listener in &listeners {
        let port = listener["port"].as_u64().unwrap_or(0);
        let interface = match text(&listener["interface"]).as_str() {
            "0.0.0.0" => "127.0.0.1".to_owned(),
            "[::]" => "[::1]".to_owned(),
            other => other.to_owned(),
        };
        let addresses = format!("{interface}:{port}").to_socket_addrs();
        let accepts = addresses
            .is_ok_and(|mut all| all.any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok()));
        if !accepts {
            failures.push(listener.clone());
        }
        let ports = if accepts { &mut well } else { &mut bad };
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    let list = |ports: &[u64]| ports.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match bad.is_empty() {
        true => Ok(Shown::Told(
            json!({ "listeners": listeners, "node": node, "result": "ok" }),
            format!("Successfully connected to ports {} on node {node}.", list(&well)),
        )),
        false => {
            let text = format!("Connection attempts failed on node {node}. Ports that did not accept: {}", list(&bad));
            Err(Failure::plain(UNAVAILABLE, text).told(json!({ "failures": failures, "node": node })))
        }
    }
}

fn port(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (node, port) = (cx.node()?, cx.word(0));
    if port.parse::<u16>().is_err() {
        return Err(Failure::argument(crate::failure::DATA, "Bad argument: the port is a number below 65536"));
    }
    cx.banner(&format!("Asking node {node} if there's an active listener on port {port} ..."));
    match check(cx, &path(&["health", "checks", "port-listener", port]))? {
        None => Ok(Shown::Told(
            json!({ "node": node, "port": port, "result": "ok" }),
            format!("A listener for port {port} is running on node {node}."),
        )),
        Some(why) => {
            let ports: Vec<String> = why["ports"].as_array().into_iter().flatten().map(Value::to_string).collect();
            let text = format!(
                "No listener for port {port} is active on node {node}. Found listeners that use the following ports: {}",
                ports.join(", ")
            );
            let told = json!({ "listeners": own_listeners(cx)?, "missing": port, "ports": why["ports"] });
            Err(Failure::plain(UNAVAILABLE, text).told(told))
        }
    }
}

fn protocol(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (node, protocol) = (cx.node()?, cx.word(0));
    cx.banner(&format!("Asking node {node} if there's an active listener for protocol {protocol} ..."));
    match check(cx, &path(&["health", "checks", "protocol-listener", protocol]))? {
        None => Ok(Shown::Told(
            json!({ "node": node, "protocol": protocol, "result": "ok" }),
            format!("A listener for protocol {protocol} is running on node {node}."),
        )),
        Some(why) => {
            let known: Vec<String> = why["protocols"].as_array().into_iter().flatten().map(text).collect();
            Err(failed(format!(
                "No listener for protocol {protocol} is active on node {node}. Found listeners for the following \
                 protocols: {}",
                known.join(", ")
            ))
            .told(json!({ "listeners": own_listeners(cx)?, "missing": protocol, "protocols": known })))
        }
    }
}

fn vhosts(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Checking if all vhosts are running on node {node} ..."));
    match check(cx, "health/checks/virtual-hosts")? {
        None => line(format!("Node {node} reported all vhosts as running")),
        Some(why) => {
            let down: Vec<String> = why["virtual-hosts"].as_array().into_iter().flatten().map(text).collect();
            let reason = text(&why["reason"]);
            let text = format!("Some virtual hosts on node {node} are down: {}\n{reason}", down.join(", "));
            Err(Failure::plain(UNAVAILABLE, text).told(json!({ "virtual-hosts": down })))
        }
    }
}

fn certificates(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (within, unit) = (cx.options.number("within").unwrap_or(4), cx.options.text("unit").unwrap_or("weeks"));
    if !["days", "weeks", "months", "years"].contains(&unit) {
        let text = format!("unit '{unit}' is not supported. Please use one of: days, weeks, months, years");
        return Err(Failure::argument(USAGE, text));
    }
    cx.banner(&format!("Checking certificate expiration on node {} ...", cx.node()?));
    let shown = if within == 1 { unit.trim_end_matches('s') } else { unit };
    match check(cx, &path(&["health", "checks", "certificate-expiration", &within.to_string(), unit]))? {
        None => line(format!("No certificates are expiring within {within} {shown}.")),
        Some(why) => {
            let of = |one: &Value| {
                format!(
                    "{} port {}: {}",
                    text(&one["interface"]),
                    text(&one["port"]),
                    one["certfile_expires_on"][0].as_str().unwrap_or_default()
                )
            };
            let all: Vec<String> = why["expired"].as_array().into_iter().flatten().map(of).collect();
            let text = format!("Certificates expire within {within} {shown}:\n{}", all.join("\n"));
            Err(Failure::plain(UNAVAILABLE, text).told(json!({ "expired": why["expired"] })))
        }
    }
}

fn critical(cx: &Cx<'_>, what: &str, of: &str) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Checking if node {node} is critical for {of} ..."));
    if let Some(why) = check(cx, &path(&["health", "checks", what]))? {
        let queues = why["queues"].as_array().into_iter().flatten();
        let lost =
            |queue: &Value| format!("{} would lose quorum if node {node} is stopped", text(&queue["readable_name"]));
        let lines: Vec<String> = queues.map(lost).collect();
        return Err(failed(if lines.is_empty() { text(&why["reason"]) } else { lines.join("\n") }));
    }
    let nodes = items(cx.api()?.get("nodes?columns=name")?.good()?)?.len();
    line(match nodes {
        1 => format!("Node {node} seems to be the only one in a single node cluster, the check does not apply"),
        _ => format!("Node {node} is not critical for {of}"),
    })
}

fn node(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Checking health of node {node} ..."));
    let told = cx.api()?.get("healthchecks/node")?.good()?;
    match told["status"] == "ok" {
        true => line("Health check passed".to_owned()),
        false => Err(Failure::error(
            crate::failure::SOFTWARE,
            format!("Error: health check failed. Message: {}", text(&told["reason"])),
        )),
    }
}

fn attempts(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Listing authentication\n attempts for node \"{node}\" ..."));
    let found = items(cx.api()?.get(&path(&["auth", "attempts", &node]))?.good()?)?;
    let columns = ["protocol", "auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded"];
    if cx.form == Some(Form::Json) {
        return Ok(Shown::Document(json!({ "attempts": found, "node": node, "result": "ok" }), String::new()));
    }
    let row = |item: &Value| columns.iter().map(|column| Cell::Value(item[*column].clone())).collect();
    Ok(Rows::new(&columns).with(found.iter().map(row)))
}

fn forget_attempts(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Resetting auth attempt metrics on node {node} ..."));
    cx.api()?.delete(&path(&["auth", "attempts", &node]))?.good().map(|_| Shown::Done)
}

fn stuck(cx: &Cx<'_>) -> Result<Shown, Failure> {
    cx.banner(&format!("Asking node {} what waits for an answer ...", cx.node()?));
    let found = items(cx.api()?.get("leveret/waiting")?.good()?)?;
    let columns = ["waited_ms", "method", "vhost", "queue", "waits_for", "user", "connection", "channel"];
    let row = |item: &Value| columns.iter().map(|column| Cell::Value(item[*column].clone())).collect();
    Ok(Rows::new(&columns).with(found.iter().map(row)))
}

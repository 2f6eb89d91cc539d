//! `/api/health/checks` and `/api/aliveness-test`: is it well.
//!
//! Invariant: a check that passes says only what was looked at. 503 is for a check that failed, with a reason.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::json;
use serde_json::{Value, json};

/// GET: no alarm is on.
pub(super) fn alarms(cx: Cx<'_>) -> Result<Answer, Refused> {
    let (figures, node) = (cx.handle().figures(), &cx.handle().facts().node_name);
    let on = figures.alarms;
    let on = [("disk", on.disk), ("memory", on.memory), ("operator", on.operator)];
    let alarms: Vec<Value> = on
        .into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(resource, _)| json!({ "node": node, "resource": resource }))
        .collect();
    if alarms.is_empty() {
        return well();
    }
    Ok(Answer::unhealthy(
        &json!({ "status": "failed", "reason": "There are alarms in effect in the node", "alarms": alarms }),
    ))
}

/// GET: every virtual host is served, all queues of it.
pub(super) fn virtual_hosts(cx: Cx<'_>) -> Result<Answer, Refused> {
    let topology = cx.handle().topology();
    let down = topology.queues().filter(|queue| cx.handle().is_quarantined(queue.partition));
    let down: std::collections::BTreeSet<_> =
        down.filter_map(|queue| topology.vhost_of(queue.vhost)).map(|v| v.name.clone()).collect();
    if down.is_empty() {
        return well();
    }
    let down: Vec<Value> = down.iter().map(|name| json::text(name)).collect();
    let reason =
        "Some queues of these virtual hosts are unavailable: their partitions are damaged and have to be repaired";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "virtual-hosts": down })))
}

/// GET: every member that there is is there; of one node that is so as long as it answers.
pub(super) fn one_node(_: Cx<'_>) -> Result<Answer, Refused> {
    well()
}

/// GET: somebody listens on a port.
pub(super) fn port(cx: Cx<'_>, port: &[u8]) -> Result<Answer, Refused> {
    let wanted = std::str::from_utf8(port).ok().and_then(|port| port.parse::<u16>().ok());
    let wanted = wanted.ok_or_else(|| Refused::BadRequest("invalid port".to_owned()))?;
    let ports: Vec<u16> = cx.handle().facts().amqp.iter().chain(cx.call.http).map(std::net::SocketAddr::port).collect();
    if ports.contains(&wanted) {
        return Ok(Answer::json(&json!({ "status": "ok", "port": wanted })));
    }
    let reason = "No active listener";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "missing": wanted, "ports": ports })))
}

/// GET: a protocol is served.
pub(super) fn protocol(cx: Cx<'_>, protocol: &[u8]) -> Result<Answer, Refused> {
    let wanted = String::from_utf8_lossy(protocol).into_owned();
    let facts = cx.handle().facts();
    let mut served = Vec::new();
    if facts.amqp.len() > facts.tls_count {
        served.push("amqp");
    }
    if facts.tls_count > 0 {
        served.push("amqp/ssl");
    }
    served.push("http");
    let same = match wanted.as_str() {
        "amqp091" | "amqp0.9.1" | "amqp-0-9-1" => "amqp",
        "amqps" | "amqp-ssl" => "amqp/ssl",
        other => other,
    };
    if served.contains(&same) {
        return Ok(Answer::json(&json!({ "status": "ok", "protocol": wanted })));
    }
    let reason = "No active listener";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "missing": wanted, "protocols": served })))
}

/// GET: the virtual host is there, and its queues answer. Who asks has to have rights in it: RabbitMQ's publishes there.
pub(super) async fn aliveness(cx: Cx<'_>, vhost: &[u8]) -> Result<Answer, Refused> {
    cx.usable_vhost(vhost)?;
    cx.handle().queue_figures().await;
    well()
}

fn well() -> Result<Answer, Refused> {
    Ok(Answer::json(&json!({ "status": "ok" })))
}

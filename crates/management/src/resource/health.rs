//! `/api/health/checks` and `/api/aliveness-test`: is it well.
//!
//! Invariant: a check that passes says only what was looked at. 503 is for a check that failed,
//! with a reason.

use super::{Cx, whole};
use crate::answer::{Answer, Refused};
use crate::json;
use crate::quorum::{Quorum, TOPOLOGY};
use broker::VhostId;
use broker::topology::{Pattern, Queue, QueueType};
use serde_json::{Value, json};
use server::handle::{ShownCertificate, ShownTo};
use server::patterns::Meter;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// GET: no alarm is on, on any node.
pub(super) async fn alarms(cx: Cx<'_>) -> Result<Answer, Refused> {
    let mut alarms = own_alarms(cx);
    let gathered = cx.ask(cx.others(), "GET", "/api/health/checks/local-alarms").await;
    for said in gathered.said.iter().filter(|said| said.status == 503) {
        let told: Value = serde_json::from_slice(&said.body).unwrap_or_default();
        alarms.extend(told["alarms"].as_array().into_iter().flatten().cloned());
    }
    Ok(gathered.told(told_alarms(alarms, "There are alarms in effect in the cluster")))
}

/// GET: no alarm is on, on this node.
pub(super) fn local_alarms(cx: Cx<'_>) -> Result<Answer, Refused> {
    Ok(told_alarms(own_alarms(cx), "There are alarms in effect in the node"))
}

fn told_alarms(alarms: Vec<Value>, reason: &str) -> Answer {
    match alarms.is_empty() {
        true => Answer::json(&json!({ "status": "ok" })),
        false => Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "alarms": alarms })),
    }
}

fn own_alarms(cx: Cx<'_>) -> Vec<Value> {
    let (figures, node) = (cx.handle().figures(), &cx.handle().facts().node_name);
    let on = figures.alarms;
    let on = [("disk", on.disk), ("memory", on.memory), ("operator", on.operator)];
    on.into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(resource, _)| json!({ "node": node, "resource": resource }))
        .collect()
}

/// GET: every virtual host is served, all queues of it.
pub(super) async fn virtual_hosts(cx: Cx<'_>) -> Result<Answer, Refused> {
    let quorum = cx.quorum().await;
    let topology = cx.handle().topology();
    let of = |is_so: &dyn Fn(&Queue) -> bool| -> BTreeSet<_> {
        let queues = topology.declared_queues().filter(|queue| is_so(queue));
        queues.filter_map(|queue| topology.vhost_of(queue.vhost)).map(|vhost| vhost.name.clone()).collect()
    };
    let (handle, own) = (cx.handle(), cx.handle().own_node());
    // What is damaged here alone is led elsewhere, and served from there over this node, too.
    let is_led = |partition| handle.leader(partition).is_some_and(|leader| leader != own);
    let damaged = of(&|queue| handle.is_quarantined(queue.partition) && !is_led(queue.partition));
    let leaderless = of(&|queue| quorum.leaderless.contains(&queue.partition));
    let reason = match (damaged.is_empty(), quorum.without_leaders()) {
        (false, _) => {
            "Some queues of these virtual hosts are unavailable: their partitions are damaged and have to be repaired"
                .to_owned()
        }
        (true, Some(why)) if !leaderless.is_empty() => {
            format!("Some queues of these virtual hosts are unavailable over this node: {why}")
        }
        (true, _) => return well(),
    };
    let down: Vec<Value> = damaged.union(&leaderless).map(|name| json::text(name)).collect();
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "virtual-hosts": down })))
}

/// What RabbitMQ says of a node that does not serve.
const NOT_SERVING: &str = "this rabbit node is not currently available to serve";

/// GET: the node serves clients: a majority of its cluster decides for it.
pub(super) async fn in_service(cx: Cx<'_>) -> Result<Answer, Refused> {
    let rests = cx.handle().rests().then(|| "it is in maintenance mode until `leveret ctl revive`".to_owned());
    match rests.or(cx.quorum().await.without_majority()) {
        None => well(),
        Some(why) => {
            let reason = format!("{NOT_SERVING}: {why}");
            Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason })))
        }
    }
}

/// GET: the node serves clients, listens for them and takes another one.
pub(super) async fn ready(cx: Cx<'_>) -> Result<Answer, Refused> {
    let served = in_service(cx).await?;
    if served.status() != 200 {
        return Ok(served);
    }
    if cx.handle().facts().amqp.is_empty() {
        let reason = "no active listeners for AMQP/AMQPS";
        return Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason })));
    }
    connection_limit(cx)
}

impl Cx<'_> {
    /// Whether what this node has is led and keeps up. A node alone leads all it has.
    pub(super) async fn quorum(&self) -> Quorum {
        if !self.handle().has_peers() {
            return Quorum::default();
        }
        let standings = self.handle().member_standings().await;
        Quorum::of(&self.map(), |partition| self.handle().leader(partition), &standings)
    }
}

/// GET: no quorum queue loses its majority with this node, nor what is declared. A node alone may lose it, as
/// with RabbitMQ.
pub(super) async fn quorum_critical(cx: Cx<'_>) -> Result<Answer, Refused> {
    let map = cx.map();
    if map.everywhere().members.len() < 2 {
        return well();
    }
    // What the groups count decides, and not what the map wants: a copy that is new has no vote before it has caught up,
    // and one that is to go has its own until then.
    let (members, _) = whole::members(Cx { is_asked: false, ..cx }, &map).await;
    let own = cx.handle().facts().node_name.as_str();
    let loses = |partition| {
        let place = if partition == TOPOLOGY { map.everywhere() } else { map.place(partition, None) };
        let is_mapped = place.members.iter().any(|member| member.name == own);
        whole::is_needed(own, &whole::of_group(&members, partition), is_mapped)
    };
    let mut lost = BTreeMap::new();
    let queues =
        quorum_queues(cx, None, |queue| *lost.entry(queue.partition).or_insert_with(|| loses(queue.partition)));
    let reason = match queues.is_empty() {
        // Every node of a cluster has a vote about what is declared.
        true if loses(TOPOLOGY) => {
            "The cluster would lose its majority if the target node is shut down: nothing could be declared, and durable queues would stand still"
        }
        true => return well(),
        false => "There are quorum queues that would lose their quorum if the target node is shut down",
    };
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "queues": queues })))
}

/// GET: every quorum queue has a leader that can be reached.
pub(super) fn leaderless(cx: Cx<'_>, vhost: Option<&[u8]>, pattern: Option<&[u8]>) -> Result<Answer, Refused> {
    let vhost = vhost.map(|name| super::find_vhost(&cx.handle().topology(), name)).transpose()?;
    let wrong = || Refused::BadRequest("invalid regex".to_owned());
    let pattern = pattern.map(|text| std::str::from_utf8(text).map_err(|_| wrong())).transpose()?;
    let pattern = pattern.map(|text| Pattern::new(text).map_err(|_| wrong())).transpose()?;
    let map = cx.map();
    let has_none = |queue: &Queue| map.place(queue.partition, cx.handle().leader(queue.partition)).leader.is_none();
    let meter = Meter::of_filter();
    let mut is_in_time = true;
    let is_meant = |queue: &Queue| {
        pattern.as_ref().is_none_or(|pattern| {
            let found = pattern.find(&queue.name);
            is_in_time = is_in_time && found.is_ok() && meter.goes_on();
            is_in_time && found == Ok(true)
        })
    };
    let mut is_meant = is_meant;
    let queues = quorum_queues(cx, vhost, |queue| has_none(queue) && is_meant(queue));
    if !is_in_time {
        return Err(Refused::BadRequest("regex takes too long".to_owned()));
    }
    if queues.is_empty() {
        return well();
    }
    let reason = "There are quorum queues without an elected leader";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "queues": queues })))
}

/// The quorum queues that are meant, as RabbitMQ's checks list them.
fn quorum_queues(cx: Cx<'_>, vhost: Option<VhostId>, mut is_meant: impl FnMut(&Queue) -> bool) -> Vec<Value> {
    let topology = cx.handle().topology();
    let quorum = topology.declared_queues().filter(|queue| queue.shape.queue_type == QueueType::Quorum);
    let of_vhost = quorum.filter(|queue| vhost.is_none_or(|vhost| queue.vhost == vhost));
    let describe = |queue: &Queue| {
        let vhost = topology.vhost_of(queue.vhost).map(|vhost| json::text(&vhost.name)).unwrap_or_default();
        let (name, in_vhost) = (json::text(&queue.name), vhost.as_str().unwrap_or_default());
        let readable = format!("queue '{}' in vhost '{in_vhost}'", name.as_str().unwrap_or_default());
        json!({ "name": name, "virtual_host": vhost, "readable_name": readable, "type": "quorum" })
    };
    of_vhost.filter(|queue| is_meant(queue)).map(describe).collect()
}

/// GET: what is so as long as the node answers.
pub(super) fn one_node(_: Cx<'_>) -> Result<Answer, Refused> {
    well()
}

/// GET of RabbitMQ's earlier check of a node as a whole: its queues answer, and no alarm is on.
pub(super) async fn node(cx: Cx<'_>, name: Option<&[u8]>) -> Result<Answer, Refused> {
    name.map_or(Ok(()), |name| cx.need_node(name))?;
    cx.handle().queue_figures().await;
    let on = cx.handle().figures().alarms;
    if on.disk || on.memory || on.operator {
        return Ok(Answer::json(&json!({ "status": "failed", "reason": "resource alarm(s) in effect" })));
    }
    well()
}

/// GET: no certificate of ours ends within a time.
pub(super) fn certificates(cx: Cx<'_>, within: &[u8], unit: &[u8]) -> Result<Answer, Refused> {
    let wrong = |text: &str| Refused::BadRequest(text.to_owned());
    let within = std::str::from_utf8(within).ok().and_then(|number| number.parse::<u32>().ok());
    let within = u64::from(within.ok_or_else(|| wrong("Invalid expiration value."))?);
    let days = match unit {
        b"days" => within,
        b"weeks" => within * 7,
        b"months" => within * 30,
        b"years" => within * 365,
        _ => return Err(wrong("Time unit not recognised. Supported units: days, weeks, months, years.")),
    };
    let facts = cx.handle().facts();
    let until = SystemTime::now() + Duration::from_secs(days * 24 * 60 * 60);
    let mut expired = Vec::new();
    for ShownCertificate { to, file, ends } in cx.handle().certificates().iter().filter(|shown| shown.ends <= until) {
        let seconds = ends.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (protocol, listeners) = match to {
            ShownTo::Clients => ("amqp/ssl", facts.amqp[facts.amqp.len() - facts.tls_count..].to_vec()),
            ShownTo::Management => ("https", cx.call.https().collect()),
            ShownTo::Nodes => {
                ("clustering", facts.config.cluster_address.iter().filter_map(|a| a.parse().ok()).collect())
            }
        };
        let none = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
        // Nodes may be called by names; what ends is told all the same.
        let listeners = if listeners.is_empty() { vec![none] } else { listeners };
        expired.extend(listeners.iter().map(|address| {
            json!({
                "node": facts.node_name,
                "interface": address.ip().to_string(),
                "port": address.port().to_string(),
                "protocol": protocol,
                "certfile": file.display().to_string(),
                "certfile_expires_on": [day(seconds)],
            })
        }));
    }
    if expired.is_empty() {
        return well();
    }
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": "Certificates expiring", "expired": expired })))
}

/// The day and time, in UTC, of so many seconds since the epoch.
fn day(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years of 365.2425 days that begin with March, as leap days come last in them.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) =
        (year_of_era + era * 400 + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60)
}

/// GET: the node takes another connection.
pub(super) fn connection_limit(cx: Cx<'_>) -> Result<Answer, Refused> {
    let (open, limit) = (cx.handle().figures().connections, cx.handle().facts().config.connections_max as u64);
    if open < limit {
        return well();
    }
    let reason = "node connection limit is reached";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "current": open, "limit": limit })))
}

/// Where the node listens, by protocol: not for clients, in maintenance mode.
fn listeners(cx: Cx<'_>) -> Vec<(String, u64)> {
    let of =
        |listener: &Value| (listener["protocol"].as_str().unwrap_or_default().to_owned(), listener["port"].as_u64());
    let all = super::node::listeners(cx).iter().map(of).collect::<Vec<_>>();
    let is_served = |protocol: &str| !(cx.handle().rests() && protocol.starts_with("amqp"));
    let served = all.into_iter().filter(|(protocol, _)| is_served(protocol));
    served.filter_map(|(protocol, port)| Some((protocol, port?))).collect()
}

/// GET: somebody listens on a port.
pub(super) fn port(cx: Cx<'_>, port: &[u8]) -> Result<Answer, Refused> {
    let wanted = std::str::from_utf8(port).ok().and_then(|port| port.parse::<u16>().ok());
    let wanted = wanted.ok_or_else(|| Refused::BadRequest("invalid port".to_owned()))?;
    let ports: Vec<u64> = listeners(cx).into_iter().map(|(_, port)| port).collect();
    if ports.contains(&u64::from(wanted)) {
        return Ok(Answer::json(&json!({ "status": "ok", "port": wanted })));
    }
    let reason = "No active listener";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "missing": wanted, "ports": ports })))
}

/// GET: a protocol is served.
pub(super) fn protocol(cx: Cx<'_>, protocol: &[u8]) -> Result<Answer, Refused> {
    let wanted = String::from_utf8_lossy(protocol).into_owned();
    let mut served: Vec<String> = Vec::new();
    for (protocol, _) in listeners(cx) {
        if !served.contains(&protocol) {
            served.push(protocol);
        }
    }
    let same = match wanted.as_str() {
        "amqp091" | "amqp0.9.1" | "amqp-0-9-1" => "amqp",
        "amqps" | "amqp-ssl" => "amqp/ssl",
        "prometheus" => "http/prometheus",
        other => other,
    };
    if served.iter().any(|protocol| protocol == same) {
        return Ok(Answer::json(&json!({ "status": "ok", "protocol": wanted })));
    }
    let reason = "No active listener";
    Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason, "missing": wanted, "protocols": served })))
}

/// GET: the virtual host is there, its queues answer, and one could be declared. Who asks has to have
/// rights in it: RabbitMQ's publishes there.
pub(super) async fn aliveness(cx: Cx<'_>, vhost: &[u8]) -> Result<Answer, Refused> {
    cx.usable_vhost(vhost)?;
    cx.handle().queue_figures().await;
    match cx.quorum().await.without_majority() {
        None => well(),
        Some(reason) => Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": reason }))),
    }
}

fn well() -> Result<Answer, Refused> {
    Ok(Answer::json(&json!({ "status": "ok" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(day(0), "1970-01-01 00:00:00");
        assert_eq!(day(951_827_696), "2000-02-29 12:34:56");
        assert_eq!(day(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(day(4_102_444_800), "2100-01-01 00:00:00");
    }
}

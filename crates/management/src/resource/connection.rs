//! `/api/connections`: who is connected, and the end of one.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::others::Row;
use crate::statistics::{Kind, Ranges, column, rates_of};
use crate::{json, listing};
use serde_json::{Value, json};
use server::report::{ConnectionReport, ConnectionState, PeerCertificate, TlsSeen};
use std::net::SocketAddr;

/// What a client is told whose connection is closed without a reason.
const REASON_DEFAULT: &str = "Closed via management plugin";
/// The longest reason: AMQP's reply text with its code in front of it.
const REASON_BYTES_MAX: usize = 220;

/// A connection as RabbitMQ names it: both ends.
pub(crate) fn name(report: &ConnectionReport) -> String {
    match report.seen.local_address {
        Some(local) => format!("{} -> {local}", report.peer),
        None => format!("{} -> ?", report.peer),
    }
}

/// The connections of this node that the caller may see.
pub(super) async fn visible(cx: Cx<'_>) -> Vec<ConnectionReport> {
    let mut all = cx.handle().connections().await;
    all.retain(|report| cx.caller.is_monitoring() || report.user == *cx.caller.name);
    all.sort_unstable_by_key(|report| report.number);
    all
}

/// The connection of this name, if it is on this node.
pub(super) async fn find(cx: Cx<'_>, wanted: &[u8]) -> Result<ConnectionReport, Refused> {
    let found = cx.handle().connections().await.into_iter().find(|report| name(report).as_bytes() == wanted);
    let found = found.ok_or(Refused::NotFound)?;
    need_visible(cx, &found)?;
    Ok(found)
}

/// Errors: 401 where the connection is not the caller's to see.
pub(super) fn need_visible(cx: Cx<'_>, report: &ConnectionReport) -> Result<(), Refused> {
    cx.caller.need(cx.caller.is_monitoring() || report.user == *cx.caller.name, "User not authorised to access object")
}

/// GET of all, of a virtual host, or of a user.
pub(super) async fn list(cx: Cx<'_>, vhost: Option<&[u8]>, user: Option<&[u8]>) -> Result<Answer, Refused> {
    if let Some(vhost) = vhost {
        cx.visible_vhost(&cx.handle().topology(), vhost)?;
    }
    let mut all = visible(cx).await;
    all.retain(|report| vhost.is_none_or(|vhost| report.vhost == vhost));
    all.retain(|report| user.is_none_or(|user| report.user == user));
    let rates = cx.rates().await?;
    let gathered = cx.gather().await;
    let rows = gathered.rows(cx.handle().own_node(), &all);
    let describe = |row: &Row<'_, ConnectionReport>| row.described(|report| Some(describe(cx, report, rates.as_ref())));
    let answer = listing::answer(cx.call, &rows, |part| part.iter().filter_map(describe).collect()).await?;
    Ok(gathered.told(answer))
}

/// GET of one.
pub(super) async fn get(cx: Cx<'_>, wanted: &[u8]) -> Result<Answer, Refused> {
    match find(cx, wanted).await {
        Err(Refused::NotFound) => cx.elsewhere().await,
        found => {
            let (found, rates) = (found?, cx.rates().await?);
            Ok(Answer::json(&listing::one(cx.call, describe(cx, &found, rates.as_ref()))))
        }
    }
}

/// DELETE of one.
pub(super) async fn close(cx: Cx<'_>, wanted: &[u8]) -> Result<Answer, Refused> {
    match find(cx, wanted).await {
        Err(Refused::NotFound) => cx.elsewhere().await,
        found => {
            end(cx, &found?)?;
            Ok(Answer::done())
        }
    }
}

/// DELETE of all of a user.
pub(super) async fn close_of_user(cx: Cx<'_>, user: &[u8]) -> Result<Answer, Refused> {
    let all = cx.handle().connections().await;
    let theirs: Vec<_> = all.into_iter().filter(|report| report.user == user).collect();
    cx.caller.need(cx.caller.is_administrator() || *cx.caller.name == *user, "Not administrator user")?;
    theirs.iter().try_for_each(|report| end(cx, report))?;
    let gathered = cx.ask(cx.others(), "DELETE", cx.call.head.uri.path()).await;
    Ok(gathered.told(Answer::done()))
}

fn end(cx: Cx<'_>, report: &ConnectionReport) -> Result<(), Refused> {
    let is_own = report.user == *cx.caller.name;
    cx.caller.need(cx.caller.is_administrator() || is_own, "User not authorised to access object")?;
    let reason = cx.call.header("x-reason").map(String::from_utf8_lossy);
    let mut reason = reason.map_or_else(|| REASON_DEFAULT.to_owned(), |reason| reason.into_owned());
    let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
    reason.truncate(end);
    let by = cx.caller.name.to_string();
    tracing::info!(connection = name(report), ?by, ?reason, "connection closed by the operator");
    cx.handle().close_connection(report.number, &reason);
    Ok(())
}

fn host(address: SocketAddr) -> String {
    address.ip().to_string()
}

fn describe(cx: Cx<'_>, report: &ConnectionReport, rates: Option<&Ranges>) -> Value {
    let node = &cx.handle().facts().node_name;
    let properties = json::table(&report.client_properties());
    let state = match report.state {
        ConnectionState::Running => "running",
        ConnectionState::Blocked => "blocked",
        ConnectionState::Closing => "closing",
    };
    let seen = &report.seen;
    let mut described = json!({
        "name": name(report),
        "node": node,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": state,
        "user": json::text(&report.user),
        "user_who_performed_action": json::text(&report.user),
        "user_provided_name": properties.get("connection_name").cloned().unwrap_or(Value::Null),
        "vhost": json::text(&report.vhost),
        "auth_mechanism": report.mechanism,
        "channel_max": report.channel_max,
        "channels": report.channels.len(),
        "client_properties": properties,
        "connected_at": seen.connected_ms,
        "frame_max": report.frame_max,
        "timeout": report.heartbeat_s,
        "host": seen.local_address.map(host),
        "port": seen.local_address.map(|address| address.port()),
        "peer_host": host(report.peer),
        "peer_port": report.peer.port(),
        "recv_oct": seen.received_bytes,
        "send_oct": seen.sent_bytes,
        "ssl": seen.tls.is_some(),
    });
    if let Some(fields) = described.as_object_mut() {
        fields.extend(encryption(seen.tls.as_ref()).map(|(name, value)| (name.to_owned(), value)));
    }
    let store = cx.call.statistics.store();
    if let (Some(ranges), Some(history), Some(fields)) =
        (rates, store.connection(report.number), described.as_object_mut())
    {
        let octets = [("recv_oct", column::RECEIVED), ("send_oct", column::SENT)];
        rates_of(&[&history.bytes], &octets, Kind::Counter, (&store, ranges.data), fields);
    }
    described
}

/// What RabbitMQ tells of a connection's TLS: an empty text of one without, and null where the client showed no certificate.
fn encryption(tls: Option<&TlsSeen>) -> [(&'static str, Value); 7] {
    let of = |word: fn(&TlsSeen) -> &'static str| Value::from(tls.map_or("", word));
    let said = |text: fn(&PeerCertificate) -> &str| match tls.map(|tls| tls.certificate.as_deref()) {
        None => Value::from(""),
        Some(certificate) => certificate.map(text).into(),
    };
    [
        ("ssl_protocol", of(|tls| tls.protocol)),
        ("ssl_key_exchange", of(|tls| tls.key_exchange)),
        ("ssl_cipher", of(|tls| tls.cipher)),
        ("ssl_hash", of(|tls| tls.hash)),
        ("peer_cert_subject", said(|certificate| &certificate.subject)),
        ("peer_cert_issuer", said(|certificate| &certificate.issuer)),
        ("peer_cert_validity", said(|certificate| &certificate.validity)),
    ]
}

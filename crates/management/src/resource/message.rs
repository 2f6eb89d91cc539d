//! `/api/exchanges/VHOST/NAME/publish` and `/api/queues/VHOST/NAME/get`: a message in, and messages
//! out, to try things out.
//!
//! Invariant: `routed` is said of what the queues have confirmed and of nothing else. What was got
//! is gone from its queue only if whoever asked for it is still there to hear of it; in every other
//! case it comes back.

use super::Cx;
use super::exchange::from_path;
use super::queue::checked;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::json;
use crate::map::RUNNING;
use crate::own_channel::{Ended, Got, OwnChannel, Published};
use amqp::Properties;
use amqp::wire::method::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use broker::topology::{Access, Kind, Topology};
use broker::{PartitionId, VhostId};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// Publishes and gets under way at one time; each holds a message, or an answer, in memory.
pub(crate) const AT_A_TIME: usize = 8;
/// How long one may take, its wait for its turn included. As with a body.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long the next leader of a queue is waited for, and how often it is looked whether there is one.
const LED_WITHIN: Duration = Duration::from_secs(5);
const LED_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Most messages of one answer.
const COUNT_MAX: u64 = 10_000;
/// An answer with so many bytes of bodies takes no further message. The first one may be larger.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// POST of a message; whether it reached a queue.
pub(super) async fn publish(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let exchange = checked(from_path(name))?;
    let id = cx.usable_vhost(vhost).map_err(|refused| said(refused, "vhost_not_found"))?;
    if !exchange.is_empty() && cx.handle().topology().find_exchange(id, exchange).is_none() {
        return Err(Refused::Missing("exchange_not_found".to_owned()));
    }
    let may = |topology: &Topology| check_right(cx, topology, id, (Kind::Exchange, exchange), Access::Write);
    cx.check_before_body(may).await.map_err(|refused| match refused {
        // RabbitMQ's status for whatever the channel says of a publish.
        Refused::Denied(text) => {
            super::tell_refusal(cx, &text);
            Refused::BadRequest(format!("403 {text}"))
        }
        other => other,
    })?;
    let mut fields = fields::PUBLISH.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["routing_key", "properties", "payload", "payload_encoding"])?;
    let Value::String(routing_key) = fields["routing_key"].take() else { return Err(not("not_string", "routing_key")) };
    if routing_key.len() > broker::topology::NAME_BYTES_MAX {
        return Err(Refused::BadRequest("routing_key has more than 255 bytes".to_owned()));
    }
    // It may be long, and is not there twice while its turn is waited for.
    let Some(Value::String(payload)) = fields.remove("payload") else {
        return Err(Refused::BadRequest("payload_not_string".to_owned()));
    };
    let payload = match fields["payload_encoding"].as_str() {
        Some("string") => payload.into_bytes(),
        Some("base64") => STANDARD.decode(&payload).map_err(|_| not("not_base64", &payload))?,
        _ => return Err(Refused::Because(json!(["unsupported_encoding", fields["payload_encoding"]]))),
    };
    let properties = wire_properties(&fields["properties"])?;
    if let Some(reason) = cx.handle().blocked_reason() {
        return Err(Refused::Unavailable(format!("publishers are blocked: {reason}")));
    }
    let publishing = async {
        let _turn = cx.call.messages.acquire().await.map_err(|_| Refused::NoAnswer)?;
        let mut channel = open(cx, vhost).await?;
        let published = channel.publish(exchange, routing_key.as_bytes(), &properties, &payload).await;
        let published = published.map_err(|ended| match ended {
            Ended::Closed { code, text } if !is_end(code) => Refused::BadRequest(format!("{code} {text}")),
            other => refused(other).but("the message may or may not be in its queues"),
        })?;
        // What it said is said; how the channel ends changes nothing any more.
        let _ = channel.close().await;
        match published {
            Published::Rejected => Err(match cx.quorum().await.without_leaders() {
                Some(why) => Refused::Unavailable(format!("rejected Unable to publish message: {why}")),
                None => Refused::BadRequest("rejected Unable to publish message. Check queue limits.".to_owned()),
            }),
            other => Ok(Answer::json(&json!({ "routed": other == Published::Routed }))),
        }
    };
    let late = "no confirm came in time: the message may or may not be in its queues";
    tokio::time::timeout(TIMEOUT, publishing).await.unwrap_or_else(|_| Err(Refused::Unavailable(late.to_owned())))
}

/// Errors: 401 with AMQP's words where the caller may not do this, as the channel would say them that does it later.
pub(super) fn check_right(
    cx: Cx<'_>,
    topology: &Topology,
    vhost: VhostId,
    of: (Kind, &[u8]),
    access: Access,
) -> Result<(), Refused> {
    topology.check_right(cx.caller.actor(), vhost, of, access).map_err(|refusal| Refused::Denied(refusal.text))
}

/// What becomes of messages that were got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AckMode {
    Ack,
    Requeue,
    Reject,
}

/// What a body asks for.
struct Wanted {
    count: u64,
    ack_mode: AckMode,
    is_base64: bool,
    truncate: Option<usize>,
}

/// POST: messages from the front of a queue.
pub(super) async fn get(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    let queue = checked(name)?;
    let id = cx.usable_vhost(vhost).map_err(|refused| said(refused, "vhost_not_found"))?;
    let found = cx.handle().topology().find_queue(id, queue).map(|queue| (queue.id, queue.partition));
    let Some((found, partition)) = found else {
        return Err(Refused::Missing("queue_not_found".to_owned()));
    };
    cx.check_before_body(|topology| check_right(cx, topology, id, (Kind::Queue, queue), Access::Read)).await?;
    if let Some(refusal) = cx.handle().home_is_away(found) {
        return Err(refusal.into());
    }
    let wanted = wanted(&fields::GET_MESSAGES.of(&body.read(cx.caller).await?)?)?;
    until_led(cx, partition).await?;
    let getting = async {
        let _turn = cx.call.messages.acquire().await.map_err(|_| Refused::NoAnswer)?;
        let mut channel = open(cx, vhost).await?;
        let (mut shown, mut bytes, mut last) = (Vec::new(), 0, 0);
        while (shown.len() as u64) < wanted.count && bytes < ANSWER_BYTES_MAX && !cx.call.asker.is_gone() {
            let Some(got) = channel.get(queue).await.map_err(refused)? else { break };
            bytes += got.body.len();
            last = got.delivery_tag;
            shown.push(describe(&got, &wanted));
        }
        // The channel is dropped here with all that it holds, as nobody would hear of it.
        if cx.call.asker.is_gone() {
            return Err(Refused::NoAnswer);
        }
        if last > 0 {
            let settle = match wanted.ack_mode {
                AckMode::Ack => Method::BasicAck { delivery_tag: last, multiple: true },
                AckMode::Requeue => Method::BasicNack { delivery_tag: last, multiple: true, requeue: true },
                AckMode::Reject => Method::BasicNack { delivery_tag: last, multiple: true, requeue: false },
            };
            channel.tell(&settle).await.map_err(refused)?;
        }
        channel.close().await.map_err(refused)?;
        Ok(Answer::json(&Value::Array(shown)))
    };
    // Whatever was got by then goes back.
    match tokio::time::timeout(TIMEOUT, getting).await {
        Ok(Err(ended @ (Refused::NoAnswer | Refused::Unavailable(_)))) => {
            Err(without_leader(cx, partition).unwrap_or(ended))
        }
        Err(_) => Err(without_leader(cx, partition).unwrap_or_else(|| {
            let late = "the queue did not answer in time: what was got of it goes back to it";
            Refused::Unavailable(late.to_owned())
        })),
        Ok(answered) => answered,
    }
}

/// Waits for the leader of a queue as long as an election may take. Errors: there is none.
async fn until_led(cx: Cx<'_>, partition: PartitionId) -> Result<(), Refused> {
    let due = Instant::now() + LED_WITHIN;
    loop {
        match without_leader(cx, partition) {
            None => return Ok(()),
            Some(refused) if Instant::now() >= due => return Err(refused),
            Some(_) => tokio::time::sleep(LED_LOOK_EVERY).await,
        }
    }
}

/// The refusal of what concerns a queue that nobody leads, if this is one.
fn without_leader(cx: Cx<'_>, partition: PartitionId) -> Option<Refused> {
    if !cx.handle().has_peers() {
        return None;
    }
    let map = cx.map();
    let place = map.place(partition, cx.handle().leader(partition));
    if place.state() == RUNNING {
        return None;
    }
    let missing: Vec<&str> =
        place.members.iter().filter(|member| !member.is_reached).map(|member| member.name.as_str()).collect();
    Some(Refused::Unavailable(match missing[..] {
        [] => "the queue has no leader now".to_owned(),
        ref names => format!("the queue has no leader that this node reaches: it waits for {}", names.join(", ")),
    }))
}

pub(super) async fn open(cx: Cx<'_>, vhost: &[u8]) -> Result<OwnChannel, Refused> {
    if cx.caller.is_operator() {
        let reason = "messages go in and out in the name of a user: log in with a name and a password";
        return Err(Refused::BadRequest(reason.to_owned()));
    }
    OwnChannel::open(cx.handle(), (&cx.caller.name, cx.caller.token().cloned()), cx.call.peer, vhost)
        .await
        .map_err(refused)
}

/// The refusal of a resource that is not there, in RabbitMQ's words for it.
pub(super) fn said(refused: Refused, missing: &str) -> Refused {
    if refused == Refused::NotFound { Refused::Missing(missing.to_owned()) } else { refused }
}

/// Whether a code says that the connection was ended from elsewhere: the operator did it, the node
/// ends, or something in it is damaged.
fn is_end(code: u16) -> bool {
    code == 320 || code == 541
}

pub(super) fn refused(ended: Ended) -> Refused {
    match ended {
        Ended::Closed { code, text } if is_end(code) => {
            Refused::Unavailable(format!("the connection of this request was closed: {text}"))
        }
        Ended::Closed { code: 403 | 530, text } => Refused::Denied(text),
        Ended::Closed { code: 404, text } => Refused::Missing(text),
        Ended::Closed { code, text } => Refused::BadRequest(format!("{code} {text}")),
        Ended::Gone => {
            let why =
                "the node let this request have no connection, or broke it off: it is ending, or has as many as it may";
            Refused::Unavailable(why.to_owned())
        }
    }
}

fn not(what: &str, value: &str) -> Refused {
    Refused::Because(json!([what, value]))
}

/// Errors: 400 with every field that is not there, as RabbitMQ lists them.
pub(super) fn need_keys(fields: &Map<String, Value>, keys: &[&str]) -> Result<(), Refused> {
    let missing = keys.iter().filter(|key| !fields.contains_key(**key));
    let missing: Vec<String> = missing.map(|key| format!("{{key_missing,{key}}}")).collect();
    if missing.is_empty() { Ok(()) } else { Err(Refused::BadRequest(format!("[{}]", missing.join(",")))) }
}

fn wanted(fields: &Map<String, Value>) -> Result<Wanted, Refused> {
    need_keys(fields, &["ackmode", "count", "encoding"])?;
    let ack_mode = match fields["ackmode"].as_str() {
        Some("ack_requeue_false") => AckMode::Ack,
        Some("ack_requeue_true" | "reject_requeue_true") => AckMode::Requeue,
        Some("reject_requeue_false") => AckMode::Reject,
        _ => {
            let given = fields["ackmode"].as_str().map_or_else(|| fields["ackmode"].to_string(), str::to_owned);
            return Err(Refused::BadRequest(format!(
                "Invalid ackmode value: {given}. Valid values are: ack_requeue_true, ack_requeue_false, \
                 reject_requeue_true, reject_requeue_false"
            )));
        }
    };
    // Before 3.7 this field alone said it, and scripts for both say both.
    if let Some(requeue) = fields.get("requeue").filter(|value| !value.is_null())
        && (super::queue::flag(fields, "requeue", false)? != (ack_mode == AckMode::Requeue))
    {
        return Err(Refused::BadRequest(format!("requeue is {requeue}, but ackmode says otherwise")));
    }
    let count = number(&fields["count"])?;
    if count > COUNT_MAX {
        return Err(Refused::BadRequest(format!("count is at most {COUNT_MAX}")));
    }
    let is_base64 = match fields["encoding"].as_str() {
        Some("auto") => false,
        Some("base64") => true,
        _ => return Err(Refused::BadRequest("Unsupported encoding. Please use auto or base64.".to_owned())),
    };
    let truncate = fields.get("truncate").filter(|value| !value.is_null()).map(number).transpose()?;
    Ok(Wanted { count, ack_mode, is_base64, truncate: truncate.map(|bytes| bytes as usize) })
}

/// A whole number from 0 on, which some tools send as a text.
pub(super) fn number(value: &Value) -> Result<u64, Refused> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    };
    number.ok_or_else(|| Refused::Because(json!(["not_integer", value])))
}

fn describe(got: &Got, wanted: &Wanted) -> Value {
    let cut = wanted.truncate.map_or(got.body.len(), |bytes| bytes.min(got.body.len()));
    let shown = &got.body[..cut];
    let (encoding, payload) = match std::str::from_utf8(shown) {
        Ok(text) if !wanted.is_base64 => ("string", text.to_owned()),
        _ => ("base64", STANDARD.encode(shown)),
    };
    json!({
        "payload_bytes": got.body.len(),
        "redelivered": got.redelivered,
        "exchange": json::text(&got.exchange),
        "routing_key": json::text(&got.routing_key),
        "message_count": got.message_count,
        "properties": Properties::parse(&got.properties).map_or_else(|_| json!([]), |found| properties(&found)),
        "payload": payload,
        "payload_encoding": encoding,
    })
}

/// Properties as RabbitMQ shows them, with an empty list where there are none.
fn properties(found: &Properties<'_>) -> Value {
    match json::properties(found) {
        Value::Object(fields) if fields.is_empty() => json!([]),
        shown => shown,
    }
}

/// Properties of a body in AMQP's form.
fn wire_properties(value: &Value) -> Result<Vec<u8>, Refused> {
    let fields = match value {
        Value::Object(fields) => fields,
        // As an answer shows it that has none.
        Value::Array(items) if items.is_empty() => &Map::new(),
        _ => return Err(Refused::BadRequest("properties is no object".to_owned())),
    };
    fields::PROPERTIES.check(fields)?;
    let text = |name: &str| match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= usize::from(u8::MAX) => Ok(Some(text.as_bytes())),
        Some(Value::String(_)) => Err(Refused::BadRequest(format!("{name} has more than 255 bytes"))),
        Some(_) => Err(not("not_string", name)),
    };
    let number = |name: &str, most: u64| match fields.get(name) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) if number <= most => Ok(Some(number)),
            Some(_) => Err(Refused::BadRequest(format!("{name} is at most {most}"))),
            None => Err(not("not_int", name)),
        },
    };
    let headers = match fields.get("headers") {
        None => None,
        Some(Value::Array(items)) if items.is_empty() => None,
        Some(headers) if has_null(headers) => return Err(Refused::BadRequest("null_not_allowed".to_owned())),
        Some(headers @ Value::Object(_)) => Some(json::to_table(headers).map_err(|why| why.of("headers"))?),
        Some(_) => return Err(Refused::BadRequest("headers is no object".to_owned())),
    };
    let headers = headers.map(|table| table.encode());
    let octet = |number: Option<u64>| number.and_then(|number| u8::try_from(number).ok());
    let octet_max = u64::from(u8::MAX);
    let properties = Properties {
        content_type: text("content_type")?,
        content_encoding: text("content_encoding")?,
        // A table's length is not part of its fields.
        headers: headers.as_ref().map(|bytes| &bytes[4..]),
        delivery_mode: octet(number("delivery_mode", octet_max)?),
        priority: octet(number("priority", octet_max)?),
        correlation_id: text("correlation_id")?,
        reply_to: text("reply_to")?,
        expiration: text("expiration")?,
        message_id: text("message_id")?,
        timestamp: number("timestamp", u64::MAX)?,
        kind: text("type")?,
        user_id: text("user_id")?,
        app_id: text("app_id")?,
        cluster_id: text("cluster_id")?,
    };
    let mut bytes = Vec::new();
    properties.encode_to(&mut bytes);
    Ok(bytes)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_come_back_as_they_were_sent() {
        let sent = json!({
            "content_type": "text/plain", "content_encoding": "gzip", "delivery_mode": 2, "priority": 7,
            "correlation_id": "c", "reply_to": "r", "expiration": "600000", "message_id": "m", "timestamp": 1234,
            "type": "t", "user_id": "guest", "app_id": "a", "cluster_id": "l",
            "headers": {"a": 1, "b": "x", "c": [1, "y"], "d": {"e": true}, "f": 1.5},
        });
        let wire = wire_properties(&sent).expect("lawful properties");
        assert_eq!(properties(&Properties::parse(&wire).expect("what was written")), sent);
        let none = wire_properties(&json!([])).expect("none");
        assert_eq!(properties(&Properties::parse(&none).expect("what was written")), json!([]));
    }

    #[test]
    fn a_property_that_amqp_cannot_carry_is_refused() {
        for (properties, reason) in [
            (json!({"priority": 300}), json!("priority is at most 255")),
            (json!({"delivery_mode": "2"}), json!(["not_int", "delivery_mode"])),
            (json!({"expiration": 5000}), json!(["not_string", "expiration"])),
            (json!({"headers": {"a": [null]}}), json!("null_not_allowed")),
            (json!({"headers": 5}), json!("headers is no object")),
            (json!({"prioritty": 5}), json!("unknown field prioritty; did you mean priority?")),
            (json!({"delivery-mode": 2}), json!("unknown field delivery-mode; did you mean delivery_mode?")),
            (json!({"type": "x".repeat(256)}), json!("type has more than 255 bytes")),
        ] {
            let told = match wire_properties(&properties) {
                Err(Refused::BadRequest(reason)) => json!(reason),
                Err(Refused::Because(reason)) => reason,
                other => panic!("{other:?}"),
            };
            assert_eq!(told, reason);
        }
    }

    #[test]
    fn what_is_no_text_is_shown_in_base64() {
        let wanted = |is_base64, truncate| Wanted { count: 1, ack_mode: AckMode::Ack, is_base64, truncate };
        let got = |body: &'static [u8]| Got {
            delivery_tag: 1,
            redelivered: false,
            exchange: "".into(),
            routing_key: "k".into(),
            message_count: 0,
            properties: vec![0, 0].into(),
            body: Bytes::from_static(body),
        };
        use bytes::Bytes;
        let shown = |body, wanted| {
            let shown = describe(&got(body), &wanted);
            (shown["payload"].clone(), shown["payload_encoding"].clone(), shown["payload_bytes"].clone())
        };
        assert_eq!(shown(b"hello", wanted(false, None)), (json!("hello"), json!("string"), json!(5)));
        assert_eq!(shown(b"\xff\x00", wanted(false, None)), (json!("/wA="), json!("base64"), json!(2)));
        assert_eq!(shown(b"hello", wanted(true, Some(3))), (json!("aGVs"), json!("base64"), json!(5)));
        // A letter that is cut in two is no text any more.
        assert_eq!(shown("aé".as_bytes(), wanted(false, Some(2))), (json!("YcM="), json!("base64"), json!(3)));
    }
}

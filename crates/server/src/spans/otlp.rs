//! Spans as OTLP has them in JSON, under the names of OpenTelemetry's semantic conventions for
//! messaging.
//!
//! Invariant: numbers of 64 bits are texts, and numbers of traces and spans are hexadecimal, as the
//! mapping of OTLP to JSON wants it. What is not UTF-8 is told as far as it is.
//! Source: OpenTelemetry, OTLP 1; semantic conventions for messaging and for RabbitMQ, 1.36, which also
//! say what a destination is called.

use crate::config::TraceSettings;
use crate::engine::wall_us;
use serde_json::{Value, json};
use session::{MessageFacts, Moment, Operation, Span};
use std::time::Instant;

const SCHEMA: &str = "https://opentelemetry.io/schemas/1.36.0";
/// What the default exchange is called where a message has no routing key either.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// A status that says that something failed.
const FAILED: u8 = 2;

/// What all spans say of this node.
pub(super) struct Resource(Value);

impl Resource {
    pub(super) fn new(settings: &TraceSettings, node_name: &str) -> Resource {
        let mut attributes = vec![
            text("service.name", &settings.service_name),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", node_name),
        ];
        for (name, value) in &settings.attributes {
            // What the operator says goes before what we would, but for the name, which has a setting.
            if name != "service.name" {
                attributes.retain(|known| known["key"] != name.as_str());
                attributes.push(text(name, value));
            }
        }
        Resource(json!({"attributes": attributes}))
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// How an operation is called, of which type it is for the conventions, and its kind of span.
fn described(operation: Operation) -> (&'static str, Option<&'static str>, u8) {
    match operation {
        Operation::Publish => ("publish", Some("send"), SERVER),
        Operation::Store => ("store", None, INTERNAL),
        Operation::Deliver => ("deliver", None, INTERNAL),
        Operation::Get => ("get", Some("receive"), SERVER),
        Operation::Ack => ("ack", Some("settle"), SERVER),
        Operation::Nack => ("nack", Some("settle"), SERVER),
        Operation::Reject => ("reject", Some("settle"), SERVER),
        Operation::Discard => ("discard", Some("settle"), SERVER),
    }
}

fn moment_name(moment: Moment) -> &'static str {
    match moment {
        Moment::Routed => "routed",
        Moment::Queued => "queued",
        Moment::Written => "written",
        Moment::Synced => "synced",
        Moment::Replicated => "replicated",
    }
}

/// Exchange, routing key and queue, as far as they are there; a queue that is called as the routing key
/// is not said twice.
fn destination(message: &MessageFacts, queue: Option<&[u8]>) -> String {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let queue = queue.filter(|queue| *queue != &message.routing_key[..]).unwrap_or_default();
    let parts = [&message.exchange[..], &message.routing_key[..], queue];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).map(shown).collect();
    if parts.is_empty() { DEFAULT_EXCHANGE.to_owned() } else { parts.join(":") }
}

fn attributes(span: &Span, destination: &str) -> Vec<Value> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (name, kind, _) = described(span.operation);
    let message = &span.message;
    let mut all = vec![
        text("messaging.system", "rabbitmq"),
        text("messaging.operation.name", name),
        text("messaging.destination.name", destination),
        number("messaging.message.body.size", message.body_bytes as u64),
    ];
    all.extend(kind.map(|kind| text("messaging.operation.type", kind)));
    let texts = [
        ("messaging.rabbitmq.destination.routing_key", Some(&message.routing_key[..]).filter(|key| !key.is_empty())),
        ("messaging.message.id", message.message_id.as_deref()),
        ("messaging.message.conversation_id", message.correlation_id.as_deref()),
        ("leveret.vhost", Some(&span.vhost[..]).filter(|vhost| !vhost.is_empty())),
        ("leveret.queue", span.queue.as_deref()),
    ];
    all.extend(texts.into_iter().filter_map(|(key, value)| value.map(|value| text(key, &shown(value)))));
    all.extend(span.delivery_tag.map(|tag| number("messaging.rabbitmq.message.delivery_tag", tag)));
    if span.is_redelivered {
        all.push(json!({"key": "leveret.redelivered", "value": {"boolValue": true}}));
    }
    if let Some(client) = span.client {
        all.push(text("client.address", &client.ip().to_string()));
        all.push(number("client.port", client.port().into()));
    }
    all.extend(span.error.map(|error| text("error.type", error)));
    all
}

/// The body of a request with these spans, whose clock began at `start`.
pub(super) fn request(resource: &Resource, spans: &[Box<Span>], start: Instant) -> Vec<u8> {
    // On the wall clock as it is now: the one of spans knows nothing of its jumps.
    let begin_us = wall_us().saturating_sub(start.elapsed().as_micros() as u64);
    let time = |us: u64| ((begin_us + us) * 1000).to_string();
    let spans: Vec<Value> = spans
        .iter()
        .map(|span| {
            let destination = destination(&span.message, span.queue.as_deref());
            let (name, _, kind) = described(span.operation);
            let events: Vec<Value> = span
                .moments
                .iter()
                .map(|(moment, us)| json!({"timeUnixNano": time(*us), "name": moment_name(*moment)}))
                .collect();
            let mut told = json!({
                "traceId": format!("{:032x}", span.trace_id),
                "spanId": format!("{:016x}", span.id),
                "name": format!("{name} {destination}"),
                "kind": kind,
                "startTimeUnixNano": time(span.begin_us),
                "endTimeUnixNano": time(span.end_us),
                "attributes": attributes(span, &destination),
                "events": events,
            });
            if span.parent != 0 {
                told["parentSpanId"] = format!("{:016x}", span.parent).into();
            }
            if let Some(state) = &span.state {
                told["traceState"] = (&**state).into();
            }
            if let Some(error) = span.error {
                told["status"] = json!({"code": FAILED, "message": error});
            }
            told
        })
        .collect();
    let scope = json!({"name": "leveret", "version": env!("CARGO_PKG_VERSION")});
    let scopes = json!([{"scope": scope, "spans": spans, "schemaUrl": SCHEMA}]);
    json!({"resourceSpans": [{"resource": resource.0, "scopeSpans": scopes}]}).to_string().into_bytes()
}

/// How many spans a collector says that it did not take, though it took the request.
pub(super) fn rejected(answer: &[u8]) -> u64 {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    match &answer["partialSuccess"]["rejectedSpans"] {
        Value::String(text) => text.parse().unwrap_or(0),
        count => count.as_u64().unwrap_or(0),
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use broker::topology::Name;
    use bytes::Bytes;
    use session::Sampler;
    use std::sync::Arc;

    pub(crate) fn span() -> Box<Span> {
        let message = MessageFacts {
            exchange: Bytes::from_static(b"orders"),
            routing_key: Bytes::from_static(b"new"),
            body_bytes: 5,
            message_id: Some(Bytes::from_static(b"m")),
            correlation_id: None,
        };
        Box::new(Span {
            operation: Operation::Publish,
            trace_id: 0xab,
            id: 0xc,
            parent: 0,
            state: None,
            begin_us: 10,
            end_us: 30,
            message: Arc::new(message),
            queue: None,
            client: None,
            vhost: Bytes::from_static(b"/"),
            delivery_tag: None,
            is_redelivered: false,
            moments: [(Moment::Routed, 20)].into_iter().collect(),
            error: None,
        })
    }

    fn settings() -> TraceSettings {
        TraceSettings {
            endpoint: String::new(),
            sampler: Sampler::default(),
            headers: Vec::new(),
            service_name: "orders".to_owned(),
            attributes: vec![
                ("service.instance.id".to_owned(), "mine".to_owned()),
                ("service.name".to_owned(), "not me".to_owned()),
                ("zone".to_owned(), "a".to_owned()),
            ],
            authorities: None,
        }
    }

    fn told(spans: &[Box<Span>]) -> Value {
        let request = request(&Resource::new(&settings(), "leveret@a"), spans, Instant::now());
        serde_json::from_slice(&request).unwrap()
    }

    /// Attributes as a table.
    fn table(attributes: &Value) -> Vec<(String, String)> {
        let one = |attribute: &Value| {
            let value = attribute["value"].as_object().unwrap().values().next().unwrap();
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (attribute["key"].as_str().unwrap().to_owned(), value)
        };
        attributes.as_array().unwrap().iter().map(one).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_span_has_the_form_and_the_names_that_collectors_know() {
        let told = told(&[span()]);
        let resource = table(&told["resourceSpans"][0]["resource"]["attributes"]);
        let version = env!("CARGO_PKG_VERSION");
        let expected =
            [("service.name", "orders"), ("service.version", version), ("service.instance.id", "mine"), ("zone", "a")];
        assert_eq!(resource, pairs(&expected));
        let span = &told["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "000000000000000000000000000000ab");
        assert_eq!((&span["spanId"], span.get("parentSpanId")), (&"000000000000000c".into(), None));
        assert_eq!((&span["name"], &span["kind"]), (&"publish orders:new".into(), &2.into()));
        assert_eq!((span.get("status"), span.get("traceState")), (None, None));
        let ns = |value: &Value| value.as_str().unwrap().parse::<u64>().unwrap();
        let (begin, end) = (ns(&span["startTimeUnixNano"]), ns(&span["endTimeUnixNano"]));
        assert_eq!((end - begin, ns(&span["events"][0]["timeUnixNano"]) - begin), (20_000, 10_000));
        assert_eq!(span["events"][0]["name"], "routed");
        assert!(begin.abs_diff(wall_us() * 1000) < 60_000_000_000, "{begin}");
        let expected = [
            ("messaging.system", "rabbitmq"),
            ("messaging.operation.name", "publish"),
            ("messaging.destination.name", "orders:new"),
            ("messaging.message.body.size", "5"),
            ("messaging.operation.type", "send"),
            ("messaging.rabbitmq.destination.routing_key", "new"),
            ("messaging.message.id", "m"),
            ("leveret.vhost", "/"),
        ];
        assert_eq!(table(&span["attributes"]), pairs(&expected));
    }

    #[test]
    fn a_delivery_names_its_queue_its_tag_and_why_it_failed() {
        let delivered = Span {
            operation: Operation::Deliver,
            parent: 7,
            state: Some("a=1".into()),
            queue: Some(Name::from("q")),
            client: Some("127.0.0.1:99".parse().unwrap()),
            delivery_tag: Some(3),
            is_redelivered: true,
            error: Some("connection_closed"),
            ..*span()
        };
        let told = told(&[Box::new(delivered)]);
        let span = &told["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!((&span["parentSpanId"], &span["traceState"]), (&"0000000000000007".into(), &"a=1".into()));
        assert_eq!((&span["name"], &span["kind"]), (&"deliver orders:new:q".into(), &1.into()));
        assert_eq!(span["status"], json!({"code": 2, "message": "connection_closed"}));
        let attributes = table(&span["attributes"]);
        let expected = [
            ("leveret.queue", "q"),
            ("messaging.rabbitmq.message.delivery_tag", "3"),
            ("leveret.redelivered", "true"),
            ("client.address", "127.0.0.1"),
            ("client.port", "99"),
            ("error.type", "connection_closed"),
        ];
        assert!(pairs(&expected).iter().all(|pair| attributes.contains(pair)), "{attributes:?}");
        assert!(!attributes.iter().any(|(key, _)| key == "messaging.operation.type"), "the conventions have none");
    }

    #[test]
    fn a_destination_is_what_is_there_and_said_once() {
        let of = |exchange: &'static str, key: &'static str, queue: Option<&str>| {
            let (exchange, routing_key) = (Bytes::from_static(exchange.as_bytes()), Bytes::from_static(key.as_bytes()));
            let facts = MessageFacts { exchange, routing_key, body_bytes: 0, message_id: None, correlation_id: None };
            destination(&facts, queue.map(str::as_bytes))
        };
        assert_eq!(of("", "q", Some("q")), "q");
        assert_eq!(of("x", "", Some("q")), "x:q");
        assert_eq!(of("x", "k", None), "x:k");
        assert_eq!(of("", "", None), "amq.default");
    }

    #[test]
    fn what_a_collector_rejects_of_a_batch_is_counted() {
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":"3"}}"#), 3);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedSpans":3}}"#), 3);
        assert_eq!((rejected(b"{}"), rejected(b""), rejected(b"{\"partialSuccess\":{}}")), (0, 0, 0));
    }
}

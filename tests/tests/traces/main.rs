//! Traces of messages, as a collector gets them: where their spans belong, over one node and over
//! three, and what a collector that is away or hangs does to a broker.
#![allow(clippy::unwrap_used)]

mod collector;

use clients::broker::{free_port, is_foreign};
use clients::wire::{Args, Properties, Value};
use clients::{Broker, Client, Http, Publish, QueueDeclare};
use collector::{Collector, Span};
use std::time::{Duration, Instant};

const FLAG_HEADERS: u16 = 1 << 13;
const FLAG_CORRELATION_ID: u16 = 1 << 10;
const FLAG_MESSAGE_ID: u16 = 1 << 7;

/// A trace and the span in it that publishes.
fn publisher(number: u8) -> (String, String) {
    (format!("{:032x}", 0xab00 + u128::from(number)), format!("{:016x}", 0xcd00 + u64::from(number)))
}

/// The properties of a message that its publisher traces, as instrumented clients write them.
fn traced(trace: &str, span: &str) -> Properties {
    let fields = [("traceparent", Value::Str(format!("00-{trace}-{span}-01"))), ("tracestate", Value::from("them=1"))];
    let bytes = Args::new().table(&fields).shortstr("talk").shortstr("hello 1").0;
    Properties { flags: FLAG_HEADERS | FLAG_CORRELATION_ID | FLAG_MESSAGE_ID, bytes }
}

fn publish(client: &mut Client, channel: u16, queue: &str, properties: Properties) {
    client.publish(channel, &Publish { key: queue, properties, body: b"hello", ..Publish::default() });
}

fn declare(client: &mut Client, channel: u16, name: &str) {
    client.declare(channel, &QueueDeclare { name, durable: true, ..QueueDeclare::default() }).unwrap();
}

/// A figure of the metrics.
fn figure(http: &Http, name: &str) -> u64 {
    let metrics = http.get("/metrics").text;
    let line = metrics.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with(' '));
    line.unwrap_or_else(|| panic!("{name} is there")).rsplit(' ').next().unwrap().parse().unwrap()
}

fn one<'s>(spans: &'s [Span], operation: &str) -> &'s Span {
    let found: Vec<&Span> = spans.iter().filter(|span| span.operation == operation).collect();
    assert_eq!(found.len(), 1, "one {operation} of {spans:#?}");
    found[0]
}

#[test]
fn a_message_that_its_publisher_traces_is_traced_to_its_ack() {
    if is_foreign() {
        return;
    }
    let collector = Collector::start();
    let url = collector.url();
    let arguments = [
        "--otel-endpoint",
        &url,
        "--otel-service-name",
        "orders",
        "--otel-headers",
        "x-key=sesame",
        "--otel-resource-attributes",
        "zone=a",
    ];
    let Some((broker, http)) = Broker::managed(&arguments) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    declare(&mut client, channel, "q");
    client.confirm_select(channel).unwrap();
    let (trace, parent) = publisher(1);
    client.put(channel, "q", b"nobody traces this one");
    publish(&mut client, channel, "q", traced(&trace, &parent));
    client.confirmed(channel, 1, 2);
    client.consume(channel, "q", "c").unwrap();
    assert!(client.delivery(channel).properties.headers().is_empty(), "nothing is written into it");
    let delivery = client.delivery(channel);
    let header = Value::Str(format!("00-{trace}-{parent}-01"));
    assert_eq!(delivery.properties.header("traceparent"), Some(header), "it is as it came");
    client.ack(channel, delivery.tag, true);
    let spans = collector.until(4, |_| true);
    assert!(spans.iter().all(|span| span.trace == trace && span.value["traceState"] == "them=1"), "{spans:#?}");
    let (published, stored) = (one(&spans, "publish"), one(&spans, "store"));
    let (delivered, acked) = (one(&spans, "deliver"), one(&spans, "ack"));
    assert_eq!([&published.parent, &delivered.parent], [&parent; 2], "of whoever published it");
    assert_eq!((&stored.parent, &acked.parent), (&published.id, &delivered.id));
    assert_eq!((published.name.as_str(), delivered.name.as_str()), ("publish q", "deliver q"));
    assert_eq!(published.events, ["routed"]);
    assert_eq!(stored.events, ["queued", "written", "synced", "replicated"]);
    assert!(published.begin_ns <= stored.begin_ns && stored.end_ns <= published.end_ns, "{spans:#?}");
    assert!(published.end_ns < acked.begin_ns && delivered.begin_ns < delivered.end_ns, "{spans:#?}");
    let expected = [
        ("messaging.system", "rabbitmq"),
        ("messaging.destination.name", "q"),
        ("messaging.message.body.size", "5"),
        ("messaging.message.id", "hello 1"),
        ("messaging.message.conversation_id", "talk"),
        ("leveret.vhost", "/"),
    ];
    for span in &spans {
        expected.iter().for_each(|(name, value)| assert_eq!(span.attribute(name).as_deref(), Some(*value), "{name}"));
    }
    assert_eq!(delivered.attribute("messaging.rabbitmq.message.delivery_tag"), Some(delivery.tag.to_string()));
    let (head, request) = &collector.requests()[0];
    assert!(head.contains("x-key: sesame") && head.contains("application/json"), "{head}");
    let resource = &request["resourceSpans"][0]["resource"]["attributes"];
    let has = |key: &str, value: &str| {
        resource.as_array().unwrap().iter().any(|a| a["key"] == key && a["value"]["stringValue"] == value)
    };
    assert!(has("service.name", "orders") && has("zone", "a"), "{resource}");
    assert_eq!((figure(&http, "leveret_spans_sent_total"), figure(&http, "leveret_spans_dropped_total")), (4, 0));
    assert!(!broker.log().contains("sesame"), "a secret is in the log");
    let settings = http.get("/api/leveret/settings").text;
    assert!(!settings.contains("sesame"), "a secret is told: {settings}");
}

#[test]
fn a_part_of_the_others_begins_a_trace_here_which_goes_on_in_the_message() {
    if is_foreign() {
        return;
    }
    let collector = Collector::start();
    // Those that run in a pod are told by its environment.
    let mut broker = Broker::not_started(&["--otel-sample-ratio", "1"]);
    broker.set_env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.base());
    broker.set_env("OTEL_SERVICE_NAME", "pod");
    broker.set_env("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=a%20pod");
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    declare(&mut client, channel, "q");
    client.put(channel, "q", b"hello");
    let delivery = client.get(channel, "q", false).unwrap().unwrap();
    let Some(Value::Str(header)) = delivery.properties.header("traceparent") else { panic!("a trace is in it") };
    client.reject(channel, delivery.tag, false);
    client.round_trip(channel).unwrap();
    broker.terminate();
    let spans = collector.until(4, |_| true);
    let published = one(&spans, "publish");
    assert_eq!((&published.parent[..], format!("00-{}-{}-01", published.trace, published.id)), ("", header));
    let got = one(&spans, "get");
    assert_eq!([&one(&spans, "store").parent, &got.parent], [&published.id; 2]);
    assert_eq!(one(&spans, "discard").parent, got.id);
    let (_, request) = &collector.requests()[0];
    let resource = request["resourceSpans"][0]["resource"].to_string();
    assert!(resource.contains("\"pod\"") && resource.contains("a pod"), "{resource}");
}

#[test]
fn a_collector_that_is_away_or_hangs_does_nothing_to_a_broker_but_cost_spans() {
    if is_foreign() {
        return;
    }
    let collector = Collector::start();
    collector.hang(true);
    for url in [format!("http://{}", free_port()), collector.url()] {
        let Some((mut broker, http)) = Broker::managed(&["--otel-endpoint", &url]) else { return };
        let mut client = broker.connect();
        let channel = client.channel();
        declare(&mut client, channel, "q");
        client.confirm_select(channel).unwrap();
        let begin = Instant::now();
        let mut last = 0;
        // Four spans each: far more than wait for a collector.
        for round in 0..4 {
            for number in 0..1_000u64 {
                let (trace, parent) = publisher((number % 256) as u8);
                publish(&mut client, channel, "q", traced(&trace, &parent));
                last += 1;
            }
            client.confirmed(channel, last - 999, last);
            client.consume(channel, "q", &format!("c{round}")).unwrap();
            for _ in 0..1_000 {
                let delivery = client.delivery(channel);
                client.ack(channel, delivery.tag, false);
            }
            client.cancel(channel, &format!("c{round}")).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        assert_eq!(client.counts(channel, "q").unwrap().0, 0);
        assert!(figure(&http, "leveret_spans_dropped_total") > 0);
        assert_eq!(figure(&http, "leveret_spans_sent_total"), 0);
        drop(client);
        let begin = Instant::now();
        assert!(broker.terminate().success());
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        let told = broker.log().lines().filter(|line| line.contains("spans of traced messages are dropped")).count();
        assert_eq!(told, 1, "{}", broker.log());
    }
}

#[test]
fn a_trace_is_whole_where_another_node_leads_the_queue() {
    if is_foreign() {
        return;
    }
    let collector = Collector::start();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of three nodes\n").unwrap();
    let addresses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
    let (peers, url) = (addresses.join(","), collector.url());
    let broker = |address: &String| {
        let secret = secret.to_str().unwrap();
        let name = format!("leveret@{address}").replace(':', "-");
        let cluster = ["--cluster-peers", &peers, "--cluster-address", address, "--cluster-secret-file", secret];
        let own = ["--node-name", &name, "--partitions", "4", "--otel-endpoint", &url];
        let mut broker = Broker::not_started(&[&cluster[..], &own].concat());
        broker.launch();
        broker
    };
    let mut brokers: Vec<Broker> = addresses.iter().map(broker).collect();
    brokers.iter_mut().for_each(Broker::until_it_answers);
    let mut clients: Vec<(Client, u16)> = brokers
        .iter()
        .map(|broker| {
            let mut client = broker.connect();
            let channel = client.channel();
            client.confirm_select(channel).unwrap();
            (client, channel)
        })
        .collect();
    let (client, channel) = &mut clients[0];
    let arguments = vec![("x-queue-type", "quorum".into())];
    client.declare(*channel, &QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    for (number, (client, channel)) in (1..).zip(&mut clients) {
        let (trace, parent) = publisher(number);
        publish(client, *channel, "q", traced(&trace, &parent));
        client.confirmed(*channel, 1, 1);
    }
    let (client, channel) = &mut clients[2];
    client.consume(*channel, "q", "c").unwrap();
    for _ in 0..3 {
        let delivery = client.delivery(*channel);
        client.ack(*channel, delivery.tag, false);
    }
    let spans = collector.until(12, |_| true);
    let names: Vec<String> = addresses.iter().map(|address| format!("leveret@{address}").replace(':', "-")).collect();
    let mut forwarded = 0;
    for number in 1..=3 {
        let (trace, parent) = publisher(number);
        let spans: Vec<Span> = spans.iter().filter(|span| span.trace == trace).cloned().collect();
        let (published, stored) = (one(&spans, "publish"), one(&spans, "store"));
        let (delivered, acked) = (one(&spans, "deliver"), one(&spans, "ack"));
        assert_eq!(published.node, names[usize::from(number) - 1], "the node that it came to");
        assert_eq!([&published.parent, &delivered.parent], [&parent; 2]);
        assert_eq!((&stored.parent, &acked.parent), (&published.id, &delivered.id));
        assert_eq!((&delivered.node, &acked.node), (&names[2], &names[2]), "the consumer's");
        // The disk of the leader may be slower than those of the two others.
        let (first, last) = (stored.events.first().unwrap(), stored.events.last().unwrap());
        assert_eq!((first.as_str(), last.as_str()), ("queued", "replicated"), "{:?}", stored.events);
        forwarded += usize::from(stored.node != published.node);
    }
    assert_eq!(forwarded, 2, "one of three nodes leads the queue: {spans:#?}");
}

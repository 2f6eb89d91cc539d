//! Metrics for Prometheus: RabbitMQ's names and labels, on the pages that RabbitMQ has, and ours.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clients::api::{samples, until};
use clients::broker::{End, free_port, is_foreign};
use clients::{Broker, Client, Http, QueueDeclare, Value as Field};
use serde_json::Value;

/// Every name that the queries of RabbitMQ's published overview for Grafana ask for.
const OVERVIEW: [&str; 33] = [
    "rabbitmq_build_info",
    "rabbitmq_channels",
    "rabbitmq_channels_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_connections",
    "rabbitmq_connections_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_disk_space_available_limit_bytes",
    "rabbitmq_erlang_uptime_seconds",
    "rabbitmq_global_consumers",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_global_messages_received_confirm_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_identity_info",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queues",
];

/// Those that are of a histogram, or that the limit of the list above left no room for.
const OVERVIEW_TOO: [&str; 7] = [
    "rabbitmq_message_size_bytes_bucket",
    "rabbitmq_message_size_bytes_count",
    "rabbitmq_message_size_bytes_sum",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_resident_memory_limit_bytes",
];

/// Every name that the queries of RabbitMQ's published dashboard about Raft ask for.
const RAFT: [&str; 5] = [
    "rabbitmq_raft_entry_commit_latency_seconds",
    "rabbitmq_raft_log_commit_index",
    "rabbitmq_raft_log_last_written_index",
    "rabbitmq_raft_log_snapshot_index",
    "rabbitmq_raft_term_total",
];

fn sum(page: &BTreeMap<String, Vec<(String, f64)>>, name: &str) -> f64 {
    page.get(name).map_or(f64::NAN, |samples| samples.iter().map(|(_, value)| value).sum())
}

/// A client that published two small messages and a large one to `q`, took one and consumes one.
fn traffic(broker: &Broker) -> (Client, u16) {
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-queue-type", "quorum".into())];
    client.declare(channel, &QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "q", b"small");
    client.put(channel, "q", b"small");
    client.put(channel, "q", &[b'l'; 5000]);
    client.confirmed(channel, 1, 3);
    let got = client.get(channel, "q", false).unwrap().unwrap();
    client.ack(channel, got.tag, false);
    client.qos(channel, 1, false).unwrap();
    client.consume(channel, "q", "c").unwrap();
    client.delivery(channel);
    (client, channel)
}

/// By the clock of Prometheus' own libraries, whose rules find restarts by it.
#[test]
fn the_start_of_the_process_is_told_and_does_not_move() {
    if clients::broker::is_foreign() {
        return;
    }
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let before = now();
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let began = |path: &str| sum(&samples(&http.get(path).text), "process_start_time_seconds");
    let first = began("/metrics");
    assert!((before - 2.0..=now()).contains(&first), "{before} {first}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!([began("/metrics"), began("/metrics/per-object")], [first, first]);
}

#[test]
fn every_query_of_rabbitmqs_overview_finds_what_it_asks_for() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let _client = traffic(&broker);
    until("the counts", || {
        let page = samples(&http.get("/metrics").text);
        for name in OVERVIEW.iter().chain(&OVERVIEW_TOO) {
            assert!(page.get(*name).is_some_and(|samples| !samples.is_empty()), "{name}");
        }
        let wanted = [
            ("rabbitmq_global_messages_received_total", 3.0),
            ("rabbitmq_global_messages_received_confirm_total", 3.0),
            ("rabbitmq_global_messages_routed_total", 3.0),
            ("rabbitmq_global_messages_confirmed_total", 3.0),
            ("rabbitmq_global_messages_delivered_total", 2.0),
            ("rabbitmq_global_messages_delivered_get_manual_ack_total", 1.0),
            ("rabbitmq_global_messages_delivered_consume_manual_ack_total", 1.0),
            ("rabbitmq_global_messages_acknowledged_total", 1.0),
            ("rabbitmq_global_publishers", 1.0),
            ("rabbitmq_global_consumers", 1.0),
            ("rabbitmq_queues_created_total", 1.0),
            ("rabbitmq_queue_messages_ready", 1.0),
            ("rabbitmq_queue_messages_unacked", 1.0),
            ("rabbitmq_message_size_bytes_count", 3.0),
            ("rabbitmq_message_size_bytes_sum", 5010.0),
        ];
        wanted.iter().all(|(name, value)| sum(&page, name) == *value).then_some(Value::Null)
    });
    let page = samples(&http.get("/metrics").text);
    // What its legends and joins are made of.
    let labels = |name: &str| page[name][0].0.clone();
    for label in ["rabbitmq_node=", "rabbitmq_cluster=", "rabbitmq_endpoint=\"aggregated\""] {
        assert!(labels("rabbitmq_identity_info").contains(label), "{label}");
    }
    for label in ["rabbitmq_version=", "erlang_version="] {
        assert!(labels("rabbitmq_build_info").contains(label), "{label}");
    }
    let delivered = &page["rabbitmq_global_messages_delivered_total"];
    let of = |kind: &str| delivered.iter().find(|(labels, _)| labels.contains(kind)).map(|(_, value)| *value);
    assert_eq!((of("rabbit_quorum_queue"), of("rabbit_classic_queue")), (Some(2.0), Some(0.0)));
    // Each bucket holds what the ones before it hold, at the ends that it queries.
    let ends: Vec<(f64, f64)> = page["rabbitmq_message_size_bytes_bucket"]
        .iter()
        .map(|(labels, value)| {
            let end = labels.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
            (end.replace("+Inf", "inf").parse().unwrap(), *value)
        })
        .collect();
    let up_to = |bytes: f64| ends.iter().find(|(end, _)| *end == bytes).map(|(_, value)| *value);
    assert_eq!(
        [100.0, 1e3, 1e4, 1e5, 1e6, 1e7, 5e7, 1e8, f64::INFINITY].map(up_to).map(Option::unwrap)[..3],
        [2.0, 2.0, 3.0]
    );
}

#[test]
fn every_query_of_rabbitmqs_dashboard_of_raft_finds_what_it_asks_for() {
    if is_foreign() {
        return;
    }
    let Some((mut broker, http)) = Broker::managed(&[]) else { return };
    let publish = |broker: &Broker| {
        let mut client = broker.connect();
        let channel = client.channel();
        client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
        client.confirm_select(channel).unwrap();
        // The commits of some of them are measured.
        for seq in 1..=200 {
            client.put(channel, "q", b"m");
            client.confirmed(channel, seq, seq);
        }
    };
    let scrape = |path: &str| samples(&http.get(path).text);
    publish(&broker);
    let first = scrape("/metrics");
    for name in RAFT {
        assert_eq!(first.get(name).map(Vec::len), Some(1), "{name}");
    }
    let latency = sum(&first, RAFT[0]);
    assert!(latency > 0.0 && latency < 10.0, "{latency}");
    publish(&broker);
    let second = scrape("/metrics");
    for name in ["rabbitmq_raft_log_commit_index", "rabbitmq_raft_log_last_written_index"] {
        assert!(sum(&second, name) >= sum(&first, name) + 200.0, "{name}: an entry for each confirm");
    }
    // One by one they are those of partitions.
    let each = scrape("/metrics/per-object");
    let of = |page: &BTreeMap<String, Vec<(String, f64)>>, name: &str| -> BTreeMap<String, f64> {
        page[name].iter().cloned().collect()
    };
    let written = of(&each, "rabbitmq_raft_log_last_written_index");
    let applied = of(&each, "rabbitmq_raft_log_last_applied_index");
    let snapshot = of(&each, "rabbitmq_raft_log_snapshot_index");
    assert!(written.len() > 1 && written.keys().all(|labels| labels.starts_with("partition=\"")), "{written:?}");
    for (partition, index) in of(&each, "rabbitmq_raft_log_commit_index") {
        assert!(snapshot[&partition] <= applied[&partition] && applied[&partition] <= index, "{partition}");
        assert!(index <= written[&partition], "{partition}: of one copy it is what its disk has");
    }
    let asked = scrape("/metrics/detailed?family=ra_metrics");
    assert_eq!(asked["rabbitmq_detailed_raft_term_total"].len(), written.len());
    assert!(!scrape("/metrics/detailed?family=queue_metrics").contains_key("rabbitmq_detailed_raft_term_total"));
    // Each start elects anew.
    broker.restart(End::Killed);
    until("new terms", || {
        let terms = sum(&scrape("/metrics"), "rabbitmq_raft_term_total");
        (terms > sum(&second, "rabbitmq_raft_term_total")).then_some(Value::Null)
    });
}

#[test]
fn dead_letters_are_counted_by_reason_and_by_how_sure_they_are() {
    if is_foreign() {
        return;
    }
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    let mut seq = 0;
    let letters = |rest: Vec<(&'static str, Field)>| {
        let to = vec![("x-dead-letter-exchange", Field::from("")), ("x-dead-letter-routing-key", Field::from("dead"))];
        [to, rest].concat()
    };
    let declare = |client: &mut Client, name: &str, arguments: Vec<(&'static str, Field)>| {
        client.declare(channel, &QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    };
    declare(&mut client, "dead", Vec::new());
    let quorum = || ("x-queue-type", Field::from("quorum"));
    let sure = || {
        vec![
            quorum(),
            ("x-dead-letter-strategy", Field::from("at-least-once")),
            ("x-overflow", Field::from("reject-publish")),
        ]
    };
    declare(&mut client, "expires", letters(vec![("x-message-ttl", Field::from(0))]));
    declare(&mut client, "short", letters(vec![("x-max-length", Field::from(1))]));
    declare(&mut client, "rejects", letters(vec![quorum()]));
    declare(&mut client, "returns", letters(vec![quorum(), ("x-delivery-limit", Field::from(0))]));
    declare(&mut client, "surely", letters(sure()));
    // Without a dead-letter exchange, on disk and in memory.
    declare(&mut client, "drops", vec![("x-message-ttl", Field::from(0))]);
    declare(&mut client, "refused", vec![quorum()]);
    let own = |name, arguments| QueueDeclare { name, exclusive: true, arguments, ..QueueDeclare::default() };
    client.declare(channel, &own("bounded", vec![("x-max-length", Field::from(1))])).unwrap();
    client.declare(channel, &own("refused in memory", Vec::new())).unwrap();
    let mut put = |client: &mut Client, queue: &str, count: usize| {
        for _ in 0..count {
            seq += 1;
            client.put(channel, queue, b"m");
            client.confirmed(channel, seq, seq);
        }
    };
    put(&mut client, "expires", 2);
    put(&mut client, "drops", 7);
    put(&mut client, "short", 4);
    put(&mut client, "bounded", 5);
    let rejected = [("rejects", 5, false), ("returns", 1, true), ("surely", 6, false), ("refused", 3, false)];
    for (queue, count, requeue) in rejected.into_iter().chain([("refused in memory", 2, false)]) {
        put(&mut client, queue, count);
        for _ in 0..count {
            let got = client.get(channel, queue, false).unwrap().unwrap();
            client.reject(channel, got.tag, requeue);
        }
    }
    let counted = |page: &BTreeMap<String, Vec<(String, f64)>>, reason: &str, queue_type: &str, strategy: &str| {
        let labels = format!("queue_type=\"rabbit_{queue_type}_queue\",dead_letter_strategy=\"{strategy}\"");
        let samples = page.get(&format!("rabbitmq_global_messages_dead_lettered_{reason}_total"))?;
        samples.iter().find(|(found, _)| *found == labels).map(|(_, value)| *value)
    };
    let wanted = [
        ("expired", "classic", "at_most_once", 2.0),
        ("maxlen", "classic", "at_most_once", 3.0),
        ("rejected", "classic", "at_most_once", 0.0),
        ("rejected", "quorum", "at_most_once", 5.0),
        ("delivery_limit", "quorum", "at_most_once", 1.0),
        ("expired", "quorum", "at_most_once", 0.0),
        ("expired", "classic", "disabled", 7.0),
        ("maxlen", "classic", "disabled", 4.0),
        ("rejected", "classic", "disabled", 2.0),
        ("rejected", "quorum", "disabled", 3.0),
        ("rejected", "quorum", "at_least_once", 6.0),
        ("confirmed", "quorum", "at_least_once", 6.0),
    ];
    until("the dead letters", || {
        let page = samples(&http.get("/metrics").text);
        let is_right = |(reason, queue_type, strategy, count): &(&str, &str, &str, f64)| {
            counted(&page, reason, queue_type, strategy) == Some(*count)
        };
        wanted.iter().all(is_right).then_some(Value::Null)
    });
    // Those that found no way are with their queue, and do not count again and again.
    client.delete(channel, "dead", false, false).unwrap();
    put(&mut client, "surely", 1);
    let got = client.get(channel, "surely", false).unwrap().unwrap();
    client.reject(channel, got.tag, false);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let page = samples(&http.get("/metrics").text);
    assert_eq!(counted(&page, "rejected", "quorum", "at_least_once"), Some(6.0));
    assert_eq!(sum(&page, "leveret_dead_letters_kept"), 1.0);
    assert_eq!(http.get("/api/queues/%2f/surely").with(200)["messages_dlx"], 1);
    let log = broker.log();
    let line = log.lines().find(|line| line.contains("dead letters find no place")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("queue=surely") && line.contains("no queue is bound for them"), "{line}");
    declare(&mut client, "dead", Vec::new());
    until("the one that waited", || {
        let page = samples(&http.get("/metrics").text);
        let is_done = sum(&page, "leveret_dead_letters_kept") == 0.0;
        (is_done && counted(&page, "confirmed", "quorum", "at_least_once") == Some(7.0)).then_some(Value::Null)
    });
}

#[test]
fn things_are_told_one_by_one_where_that_is_asked_for() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let (_client, channel) = traffic(&broker);
    let found = |path: &str, name: &str, label: &str, value: f64| {
        until(&format!("{name} at {path}"), || {
            let page = samples(&http.get(path).text);
            let of = page.get(name)?.iter().find(|(labels, _)| labels.contains(label))?.1;
            (of == value).then_some(Value::Null)
        });
    };
    let each = "/metrics/per-object";
    found(each, "rabbitmq_queue_messages_ready", "vhost=\"/\",queue=\"q\"", 1.0);
    found(each, "rabbitmq_queue_consumers", "queue=\"q\"", 1.0);
    found(each, "rabbitmq_channel_messages_published_total", "vhost=\"/\",exchange=\"\"", 3.0);
    found(each, "rabbitmq_channel_get_ack_total", "vhost=\"/\",queue=\"q\"", 1.0);
    found(each, "rabbitmq_channel_consumers", &format!("({channel})"), 1.0);
    let published = "queue_vhost=\"/\",queue=\"q\",exchange_vhost=\"/\",exchange=\"\"";
    found(each, "rabbitmq_queue_messages_published_total", published, 3.0);
    let some = "/metrics/detailed?family=queue_coarse_metrics&family=exchange_names&vhost=/";
    found(some, "rabbitmq_detailed_queue_messages", "queue=\"q\"", 2.0);
    found(some, "rabbitmq_cluster_exchange_name", "exchange=\"amq.topic\",type=\"topic\"", 1.0);
    let page = samples(&http.get(some).text);
    assert!(!page.contains_key("rabbitmq_detailed_queue_consumers"), "nobody asked for that family");
    assert!(page.contains_key("rabbitmq_identity_info"));
    let other = samples(&http.get("/metrics/detailed?family=queue_coarse_metrics&vhost=other").text);
    assert!(!other.contains_key("rabbitmq_detailed_queue_messages"), "{other:?}");
    assert_eq!(samples(&http.get("/metrics/detailed").text).len(), 2, "identity and build");
    assert!(samples(&http.get("/metrics/memory-breakdown").text).contains_key("rabbitmq_memory_other_system_bytes"));
    assert_eq!(http.get("/metrics/nothing").status, 404);
}

#[test]
fn a_long_page_is_made_once_a_second_and_given_to_all_who_ask_for_the_same() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let mut declare = |name: &str| drop(client.declare(channel, &QueueDeclare { name, ..Default::default() }).unwrap());
    (0..1500).for_each(|number| declare(&format!("{}{number:04}", "long".repeat(60))));
    let asked = "/metrics/detailed?family=queue_coarse_metrics&vhost=/";
    let first = http.get(asked).text;
    assert!(first.len() > 256 << 10, "{} bytes", first.len());
    let made = Instant::now();
    declare("late");
    let second = http.get(asked).text;
    assert!(made.elapsed() > Duration::from_secs(1) || second == first, "it was made anew within a second");
    // Another one waits until this one is gone.
    let made = Instant::now();
    let other = http.get("/metrics/detailed?family=queue_consumer_count").text;
    let another = Instant::now();
    assert!(other.contains("queue=\"late\""), "it was not made yet");
    let yet_another = http.get("/metrics/per-object").text;
    assert!(yet_another.contains("queue=\"late\"") && another.elapsed() > Duration::from_millis(500));
    assert!(made.elapsed() > Duration::from_secs(1));
    // What is short waits for nobody.
    let asked = Instant::now();
    http.get("/metrics");
    assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
}

#[test]
fn an_address_for_metrics_serves_nothing_else() {
    let (api, metrics) = (free_port(), free_port());
    let broker = Broker::own(&["--management", &api.to_string(), "--prometheus", &metrics.to_string()]);
    let _client = broker.connect();
    let http = Http::new(metrics);
    let answer = http.send("GET", "/metrics", &[("Accept", "text/plain;version=0.0.4")], "");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    assert!(answer.text.contains("# TYPE rabbitmq_global_messages_received_total counter\n"), "the older format");
    assert!(http.get("/metrics").text.ends_with("# EOF\n"));
    assert_eq!(http.get("/api/overview").status, 404);
    assert_eq!(Http::new(api).get("/api/overview").status, 200);
}

/// The names of metrics in a text, which begin as all of them do.
fn names(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| ["rabbitmq_", "leveret_"].iter().any(|start| word.starts_with(start));
    words.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn our_dashboard_and_our_alerts_ask_for_nothing_that_is_not_there() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let _client = traffic(&broker);
    let text = http.get("/metrics").text;
    let page = samples(&text);
    let files = [include_str!("../../docs/monitoring/leveret.json"), include_str!("../../docs/monitoring/alerts.yml")];
    let dashboard: Value = serde_json::from_str(files[0]).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 15);
    for name in files.into_iter().flat_map(names) {
        // One without certificates has no sample of theirs.
        assert!(page.contains_key(&name) || text.contains(&format!("# TYPE {name} gauge")), "{name}");
    }
}

#[test]
fn an_alert_that_one_thing_sets_off_tells_its_number_without_a_noun_behind_it() {
    let rules = include_str!("../../docs/monitoring/alerts.yml");
    let mut is_of_one = false;
    let mut told = 0;
    for line in rules.lines().map(str::trim) {
        if let Some(condition) = line.strip_prefix("expr: ") {
            is_of_one = condition.ends_with("> 0") && !condition.contains(" and ");
        }
        if is_of_one && line.starts_with("summary: ") && line.contains("$value") {
            told += 1;
            assert!(!line.contains("{{ $value }} "), "{line}");
        }
    }
    assert_eq!(told, 7, "those with a number");
}

#[test]
fn metrics_count_what_clients_did() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![
        ("x-durability", "selective".into()),
        ("x-durability-value-header", "amount".into()),
        ("x-durability-value-cap", 100i64.into()),
    ];
    let queue = QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() };
    client.declare(channel, &queue).unwrap();
    client.confirm_select(channel).unwrap();
    (0..3).for_each(|_| client.put(channel, "q", b"x"));
    client.put(channel, "nowhere", b"x");
    client.confirmed(channel, 1, 4);
    let delivery = client.get(channel, "q", false).unwrap().unwrap();
    let value = |text: &str, name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    until("the counts", || {
        let text = http.get("/metrics").text;
        let global =
            |name: &str| value(&text, &format!("rabbitmq_global_messages_{name}_total{{protocol=\"amqp091\"}}"));
        let is_there = global("received") == Some(4.0)
            && global("confirmed") == Some(4.0)
            && global("unroutable_dropped") == Some(1.0)
            && value(
                &text,
                "rabbitmq_global_messages_delivered_total{protocol=\"amqp091\",queue_type=\"rabbit_classic_queue\"}",
            ) == Some(1.0)
            && value(&text, "rabbitmq_queue_messages_ready") == Some(2.0)
            && value(&text, "rabbitmq_queue_messages_unacked") == Some(1.0)
            && value(&text, "rabbitmq_connections") == Some(1.0)
            && value(&text, "rabbitmq_channels") == Some(1.0);
        is_there.then_some(Value::Null)
    });
    let arguments = vec![("x-max-length", 0.into()), ("x-overflow", "reject-publish".into())];
    client
        .declare(channel, &QueueDeclare { name: "full", durable: true, arguments, ..QueueDeclare::default() })
        .unwrap();
    client.put(channel, "full", b"x");
    assert!(matches!(client.event(channel), clients::Event::Confirm { tag: 5, nack: true, .. }));
    until("what was refused", || {
        (value(&http.get("/metrics").text, "leveret_messages_refused_total") == Some(1.0)).then_some(Value::Null)
    });
    client.ack(channel, delivery.tag, false);
    client.round_trip(channel).unwrap();
    let answer = http.get("/metrics");
    assert!(answer.head.contains("content-type: application/openmetrics-text"), "{answer:?}");
    let text = answer.text;
    assert!(text.ends_with("# EOF\n"), "the text is whole");
    for name in
        ["process_resident_memory_bytes", "rabbitmq_disk_space_available_bytes", "leveret_log_written_bytes_total"]
    {
        assert!(value(&text, name).is_some_and(|bytes| bytes > 1000.0), "{name}\n{text}");
    }
    assert!(value(&text, "leveret_log_sync_seconds_count").is_some_and(|count| count >= 1.0), "{text}");
    assert_eq!(value(&text, "leveret_connections_blocked"), Some(0.0));
    assert!(text.contains("leveret_value_at_risk "), "{text}");
    let text = http.get("/metrics/per-object").text;
    let of_queue = |name: &str| value(&text, &format!("{name}{{vhost=\"/\",queue=\"q\"}}"));
    assert_eq!(of_queue("rabbitmq_queue_messages_ready"), Some(2.0));
    assert_eq!(of_queue("leveret_value_at_risk_cap"), Some(100.0), "{text}");
}

//! What holds for the whole cluster, wherever it comes about: alarms, limits, events, traces.

use crate::nodes::Nodes;
use clients::broker::is_foreign;
use clients::methods::{CHANNEL_CLOSE, CHANNEL_CLOSE_OK, CONNECTION_BLOCKED, CONNECTION_UNBLOCKED};
use clients::wire::Args;
use clients::{Client, Event, Login, QueueDeclare, Tools, Value as Argument};
use serde_json::json;
use std::time::Duration;

fn durable(name: &str) -> QueueDeclare<'_> {
    QueueDeclare { name, durable: true, ..QueueDeclare::default() }
}

#[test]
fn an_alarm_of_one_node_blocks_publishers_of_all_until_the_node_is_gone() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[], &[], &["--transient-bytes-max=16MiB"]]);
    let (mut publisher, out) = nodes.connect(0);
    publisher.declare(out, &durable("kept")).unwrap();
    publisher.confirm_select(out).unwrap();
    publisher.put(out, "kept", b"before");
    publisher.confirmed(out, 1, 1);
    let (mut filler, channel) = nodes.connect(2);
    let own = QueueDeclare { name: "full", exclusive: true, ..QueueDeclare::default() };
    filler.declare(channel, &own).unwrap();
    let body = vec![0; 1 << 20];
    (0..18).for_each(|_| filler.put(channel, "full", &body));
    // Whoever publishes is told, on every node.
    let Some(Event::Method(CONNECTION_BLOCKED, reason)) = publisher.event_within(0, Duration::from_secs(15)) else {
        panic!("blocked");
    };
    assert!(String::from_utf8_lossy(&reason).contains("low on memory"), "{reason:?}");
    publisher.put(out, "kept", b"waits");
    publisher.silent(out);
    for http in &nodes.http {
        let told = http.get("/api/health/checks/alarms").with(503);
        assert_eq!(told["alarms"], json!([{"node": "leveret@n3", "resource": "memory"}]));
    }
    assert_eq!(nodes.http[0].get("/api/health/checks/local-alarms").status, 200);
    assert_eq!(nodes.http[2].get("/api/health/checks/local-alarms").status, 503);
    let check = |node: usize, check: &str| Tools::of(&nodes.brokers[node]).diagnostics(check);
    assert!(check(0, "check_local_alarms").good().ends_with("reported no local alarms\n"));
    assert!(check(2, "check_local_alarms").bad(69).contains("Memory alarm on node leveret@n3"));
    check(0, "check_alarms").bad(69);
    let alarms: serde_json::Value = serde_json::from_str(&check(0, "alarms --formatter json").good()).unwrap();
    assert_eq!((&alarms["local"], &alarms["global"]), (&json!([]), &json!(["Memory alarm on node leveret@n3"])));
    // A connection that comes now is blocked as well.
    let (mut late, channel) = nodes.connect(1);
    late.confirm_select(channel).unwrap();
    late.put(channel, "kept", b"late");
    assert!(matches!(late.event(0), Event::Method(CONNECTION_BLOCKED, _)));
    nodes.brokers[2].kill();
    let unblocked = publisher.event_within(0, Duration::from_secs(15));
    assert!(matches!(unblocked, Some(Event::Method(CONNECTION_UNBLOCKED, _))), "{unblocked:?}");
    publisher.confirmed(out, 2, 2);
}

/// A connection of ann's, or why there is none.
fn ann(nodes: &Nodes, node: usize) -> Result<Client, clients::Refused> {
    let login = Login { response: b"\0ann\0secret".to_vec(), ..Login::default() };
    Client::login(nodes.brokers[node].addr(), &login)
}

#[test]
fn limits_count_what_is_open_on_all_nodes() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let http = nodes.http[0].clone();
    http.put("/api/users/ann", r#"{"password":"secret","tags":""}"#).with(201);
    http.put("/api/permissions/%2f/ann", r#"{"configure":".*","write":".*","read":".*"}"#).with(201);
    http.put("/api/user-limits/ann/max-connections", r#"{"value":2}"#).with(204);
    let mut first = ann(&nodes, 0).unwrap();
    let _second = ann(&nodes, 1).unwrap();
    let refused = nodes.until("the third of two", || ann(&nodes, 2).err());
    assert_eq!(refused.code, 530, "{refused:?}");
    // With its node a connection is gone.
    nodes.brokers[1].kill();
    let mut third = nodes.until("a place is free", || ann(&nodes, 2).ok());
    http.put("/api/user-limits/ann/max-channels", r#"{"value":2}"#).with(204);
    let (_, channel) = (first.channel(), third.channel());
    nodes.until("a channel too many", || {
        // The refusal may come behind channel.open-ok.
        let args = Args::new().short(200).shortstr("done").short(0).short(0);
        let opened = third.open_channel(channel + 1);
        let closed = opened.and_then(|()| third.call(channel + 1, CHANNEL_CLOSE, &args, CHANNEL_CLOSE_OK)).err()?;
        assert_eq!(closed.code, 530, "{closed:?}");
        Some(())
    });
    http.delete("/api/user-limits/ann/max-connections").with(204);
    http.delete("/api/user-limits/ann/max-channels").with(204);
    http.put("/api/vhost-limits/%2f/max-connections", r#"{"value":1}"#).with(204);
    let refused = nodes.until("the virtual host is full", || ann(&nodes, 0).err());
    assert_eq!(refused.code, 530, "{refused:?}");
    // Queues count wherever they are.
    http.delete("/api/vhost-limits/%2f/max-connections").with(204);
    http.put("/api/vhost-limits/%2f/max-queues", r#"{"value":2}"#).with(204);
    let (mut one, a) = nodes.connect(0);
    let (mut three, b) = nodes.connect(2);
    one.declare(a, &QueueDeclare { name: "own", exclusive: true, ..QueueDeclare::default() }).unwrap();
    three.declare(b, &durable("kept")).unwrap();
    assert_eq!(one.declare(a, &durable("one too many")).unwrap_err().code, 406);
}

/// What was told so far, and the user or queue that it is about.
fn told(client: &mut Client, channel: u16) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(got) = client.get(channel, "told", true).unwrap() {
        let name = ["user", "name"].iter().find_map(|name| match got.properties.header(name) {
            Some(Argument::Str(text)) => Some(text),
            _ => None,
        });
        all.push(format!("{} {}", got.routing_key, name.unwrap_or_default()));
    }
    all
}

#[test]
fn events_of_all_nodes_are_told_once() {
    if is_foreign() {
        return;
    }
    let events: &[&str] = &["--event-exchange-vhost=/"];
    let nodes = Nodes::up(&[events; 3]);
    let (mut listener, channel) = nodes.connect(0);
    listener.declare(channel, &durable("told")).unwrap();
    listener.bind(channel, "told", "amq.rabbitmq.event", "queue.#", &[]).unwrap();
    listener.bind(channel, "told", "amq.rabbitmq.event", "connection.created", &[]).unwrap();
    let mut clients: Vec<(Client, u16)> = (0..3).map(|node| nodes.connect(node)).collect();
    for (node, (client, channel)) in clients.iter_mut().enumerate() {
        client.declare(*channel, &durable(&format!("q{node}"))).unwrap();
    }
    nodes.http[1].delete("/api/queues/%2f/q2").with(204);
    let mut expected = vec!["connection.created guest"; 3];
    expected.extend(["queue.created q0", "queue.created q1", "queue.created q2", "queue.deleted q2"]);
    let mut all = Vec::new();
    nodes.until("all events", || {
        all.extend(told(&mut listener, channel));
        (all.len() >= expected.len()).then_some(())
    });
    // What would be told twice has come by then, too: each node has carried all of it out.
    std::thread::sleep(Duration::from_millis(300));
    all.extend(told(&mut listener, channel));
    all.sort();
    assert_eq!(all, expected);
}

#[test]
fn a_virtual_host_is_traced_on_all_nodes_also_on_one_that_comes_back() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut listener, channel) = nodes.connect(0);
    listener.declare(channel, &durable("told")).unwrap();
    listener.declare(channel, &durable("q")).unwrap();
    listener.bind(channel, "told", "amq.rabbitmq.trace", "publish.#", &[]).unwrap();
    nodes.http[0].put("/api/vhosts/%2f", r#"{"tracing":true}"#).with(204);
    let publish_over = |nodes: &Nodes, node: usize| {
        let (mut client, channel) = nodes.connect(node);
        client.confirm_select(channel).unwrap();
        client.put(channel, "q", b"message");
        client.confirmed(channel, 1, 1);
    };
    let all_trace = |nodes: &Nodes, on: bool| {
        for http in &nodes.http {
            nodes.until("all nodes know", || (http.get("/api/vhosts/%2f").with(200)["tracing"] == on).then_some(()));
        }
    };
    all_trace(&nodes, true);
    nodes.brokers[2].kill();
    nodes.brokers[2].launch();
    nodes.brokers[2].until_it_answers();
    all_trace(&nodes, true);
    for node in 0..3 {
        publish_over(&nodes, node);
        nodes.until("it is traced", || (told(&mut listener, channel).len() == 1).then_some(()));
    }
    nodes.http[2].put("/api/vhosts/%2f", r#"{"tracing":false}"#).with(204);
    all_trace(&nodes, false);
    (0..3).for_each(|node| publish_over(&nodes, node));
    assert!(told(&mut listener, channel).is_empty());
}

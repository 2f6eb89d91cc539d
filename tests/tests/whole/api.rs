//! The management API of the whole cluster from any node.

use crate::nodes::{Nodes, fields};
use clients::broker::is_foreign;
use clients::{Broker, Client, Http, QueueDeclare, Tools, Value as Argument};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn quorum(name: &str) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", Argument::from("quorum"))];
    QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }
}

/// On each node a connection, which declares a quorum queue with 1 to 3 messages and one in the node's
/// memory with 1, and consumes from the latter.
fn declare_some(nodes: &Nodes) -> Vec<(Client, u16)> {
    let mut clients: Vec<_> = (0..3).map(|node| nodes.connect(node)).collect();
    for (node, (client, channel)) in clients.iter_mut().enumerate() {
        let (kept, own) = (format!("kept{node}"), format!("own{node}"));
        client.declare(*channel, &quorum(&kept)).unwrap();
        client.declare(*channel, &QueueDeclare { name: &own, exclusive: true, ..QueueDeclare::default() }).unwrap();
        client.confirm_select(*channel).unwrap();
        (0..=node).for_each(|_| client.put(*channel, &kept, b"message"));
        client.put(*channel, &own, b"message");
        client.confirmed(*channel, 1, node as u64 + 2);
        client.consume(*channel, &own, &format!("c{node}")).unwrap();
    }
    clients
}

/// What each node says of the queues, by name.
fn queues(nodes: &Nodes, node: usize, query: &str) -> Vec<Value> {
    nodes.http[node].get(&format!("/api/queues{query}")).with(200).as_array().unwrap().clone()
}

#[test]
fn whichever_node_is_asked_it_answers_for_all() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let _clients = declare_some(&nodes);
    let lists: Vec<Value> = (0..3).map(|node| nodes.http[node].get("/api/nodes").with(200)).collect();
    for list in &lists {
        assert_eq!(fields(list, "name"), nodes.names.iter().collect::<Vec<_>>());
        assert!(
            list.as_array().unwrap().iter().all(|node| node["running"] == true && node["mem_used"].as_u64() > Some(0))
        );
        assert_eq!(fields(list, "os_pid"), fields(&lists[0], "os_pid"), "each tells of itself");
    }
    for node in 0..3 {
        let http = &nodes.http[node];
        let figures = || {
            let all = queues(&nodes, node, "?columns=name,messages_ready,messages_unacknowledged,consumers");
            let expected: Vec<Value> = (0..3)
                .map(|at| json!({"name": format!("kept{at}"), "messages_ready": at + 1, "messages_unacknowledged": 0, "consumers": 0}))
                .chain((0..3).map(|at| json!({"name": format!("own{at}"), "messages_ready": 0, "messages_unacknowledged": 1, "consumers": 1})))
                .collect();
            (all == expected).then_some(())
        };
        nodes.until("figures of all queues", figures);
        let page = http.get("/api/queues?page=1&page_size=3").with(200);
        assert_eq!(page["total_count"], 6);
        assert_eq!(fields(&page["items"], "name"), ["kept0", "kept1", "kept2"]);
        assert_eq!(fields(&page["items"], "messages"), [1, 2, 3]);
        for kept in page["items"].as_array().unwrap() {
            assert_eq!(kept["members"], json!(nodes.names));
            assert_eq!(kept["online"], json!(nodes.names));
            assert_eq!((&kept["state"], &kept["node"]), (&json!("running"), &kept["leader"]));
        }
        let sorted = http.get("/api/queues?sort=messages_ready&sort_reverse=true&page=1&page_size=2").with(200);
        assert_eq!(fields(&sorted["items"], "name"), ["kept2", "kept1"]);
        for at in 0..3 {
            let own = http.get(&format!("/api/queues/%2f/own{at}")).with(200);
            assert_eq!(own["node"], nodes.names[at].as_str());
            assert_eq!((&own["messages"], &own["exclusive"]), (&json!(1), &json!(true)));
            assert_eq!(fields(&own["consumer_details"], "consumer_tag"), [format!("c{at}").as_str()]);
        }
        // Where each connection is, and in the same order from everywhere.
        let connections = http.get("/api/connections").with(200);
        assert_eq!(fields(&connections, "node"), nodes.names.iter().collect::<Vec<_>>());
        let channels = http.get("/api/channels").with(200);
        assert_eq!(fields(&channels, "node"), nodes.names.iter().collect::<Vec<_>>());
        let consumers = http.get("/api/consumers").with(200);
        assert_eq!(fields(&consumers, "consumer_tag"), ["c0", "c1", "c2"]);
        // What was published over each of the nodes.
        let counted = || {
            let one = http.get("/api/exchanges/%2F/amq.default").with(200);
            let all = http.get("/api/exchanges/%2F").with(200);
            let listed = all.as_array().unwrap().iter().find(|exchange| exchange["name"] == "").cloned();
            let counts = [one, listed.unwrap()].map(|exchange| exchange["message_stats"]["publish_in"].as_u64());
            (counts == [Some(9), Some(9)]).then_some(())
        };
        nodes.until("what went through the default exchange", counted);
        let one = http.get("/api/exchanges/%2F/amq.default").with(200);
        let to: Vec<&Value> = one["outgoing"].as_array().unwrap().iter().map(|to| &to["queue"]["name"]).collect();
        assert_eq!((one["incoming"].as_array().unwrap().len(), to.len()), (3, 6), "{one}");
        let overview = http.get("/api/overview").with(200);
        let totals = |name: &str| overview["object_totals"][name].as_u64();
        assert_eq!(
            [totals("connections"), totals("channels"), totals("consumers"), totals("queues")],
            [3, 3, 3, 6].map(Some)
        );
        let lengths =
            ["messages", "messages_ready", "messages_unacknowledged"].map(|name| &overview["queue_totals"][name]);
        assert_eq!(lengths, [9, 6, 3]);
        assert_eq!(overview["listeners"].as_array().unwrap().len(), 9, "AMQP, HTTP and for each other");
        let vhost = http.get("/api/vhosts/%2f").with(200);
        assert_eq!((&vhost["messages_ready"], &vhost["messages_unacknowledged"]), (&json!(6), &json!(3)));
        assert_eq!(vhost["cluster_state"].as_object().unwrap().len(), 3);
        assert_eq!(http.get("/api/health/checks/node-is-quorum-critical").status, 200);
        assert_eq!(metric(http, "leveret_members_behind"), 0.0);
        assert_eq!(http.get("/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts").status, 200);
        // What is about one node is asked of it.
        for name in &nodes.names {
            let node = http.get(&format!("/api/nodes/{name}")).with(200);
            assert_eq!(node["name"], name.as_str());
            let own = http.get("/api/overview").with(200)["leveret_version"].clone();
            assert!(own.is_string() && node["leveret_version"] == own, "{node}");
            assert!(
                http.get(&format!("/api/nodes/{name}/memory")).with(200)["memory"]["total"]["rss"].as_u64() > Some(0)
            );
        }
        assert_eq!(http.get("/api/nodes/leveret@n9").status, 404);
    }
}

#[test]
fn any_node_tells_which_consumer_is_the_active_one_wherever_it_is_and_wherever_its_queue_is_led() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let mut clients: Vec<_> = (0..3).map(|node| nodes.connect(node)).collect();
    // Led by several nodes; the one in memory by the first.
    let queues = ["q0", "q1", "q2", "q3", "memory"];
    for queue in queues {
        let mut single = QueueDeclare { name: queue, durable: true, ..quorum(queue) };
        single.arguments.push(("x-single-active-consumer", true.into()));
        if queue == "memory" {
            single.arguments.remove(0);
            single.durable = false;
        }
        let (client, channel) = &mut clients[0];
        client.declare(*channel, &single).unwrap();
        for node in [1, 2, 0] {
            let (client, channel) = &mut clients[node];
            client.consume(*channel, queue, &format!("{queue}c{node}")).unwrap();
        }
    }
    for active in [1, 2, 0] {
        for (node, http) in nodes.http.iter().enumerate() {
            let is_it = |one: &Value| {
                let tag = one["consumer_tag"].as_str().unwrap();
                let expected = if tag.ends_with(&format!("c{active}")) { "single_active" } else { "waiting" };
                one["activity_status"] == expected && one["active"] == (expected == "single_active")
            };
            let all_are = |list: &Value| list.as_array().unwrap().iter().all(is_it);
            nodes.until(&format!("node {node} tells that c{active} is active"), || {
                let whole = http.get("/api/consumers").with(200);
                let chosen = http.get("/api/consumers?columns=consumer_tag,active,activity_status&page=1").with(200);
                let listed = http.get("/api/queues?columns=name,single_active_consumer_tag").with(200);
                let plain = http.get("/api/queues").with(200);
                let tag = |queue: &str| json!(format!("{queue}c{active}"));
                let is_tagged = |one: &Value| one["single_active_consumer_tag"] == tag(one["name"].as_str().unwrap());
                let is_told = |queue: &&str| {
                    let found = http.get(&format!("/api/queues/%2f/{queue}")).with(200);
                    found["single_active_consumer_tag"] == tag(queue) && all_are(&found["consumer_details"])
                };
                let channels = http.get("/api/channels").with(200);
                let of_channels = channels.as_array().unwrap().iter().all(|channel| {
                    let name = channel["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
                    all_are(&http.get(&format!("/api/channels/{name}")).with(200)["consumer_details"])
                });
                assert!(!whole.to_string().contains("leveret_consumer"), "keys are for nodes alone: {whole}");
                assert!(!chosen.to_string().contains("leveret_consumer"), "keys are for nodes alone: {chosen}");
                let lists = [&listed, &plain].iter().all(|list| list.as_array().unwrap().iter().all(is_tagged));
                let is_all = all_are(&whole) && all_are(&chosen["items"]) && lists && of_channels;
                (is_all && queues.iter().all(is_told)).then_some(())
            });
            assert_eq!(http.get("/api/queues").with(200).as_array().unwrap().len(), queues.len());
        }
        let (client, channel) = &mut clients[active];
        queues.iter().for_each(|queue| client.cancel(*channel, &format!("{queue}c{active}")).unwrap());
    }
}

#[test]
fn sums_stay_what_they_are_while_a_leader_is_chosen() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(1);
    client.confirm_select(channel).unwrap();
    let names: Vec<String> = (0..8).map(|number| format!("kept{number}")).collect();
    for name in &names {
        client.declare(channel, &quorum(name)).unwrap();
        (0..5).for_each(|_| client.put(channel, name, b"message"));
    }
    client.confirmed(channel, 1, 40);
    let total = |nodes: &Nodes| {
        let totals = nodes.http[0].get("/api/overview").with(200)["queue_totals"].clone();
        ["messages", "messages_ready"].map(|name| totals[name].as_u64().unwrap())
    };
    let of_vhost = |nodes: &Nodes| {
        let all = nodes.http[0].get("/api/vhosts").with(200);
        let one = nodes.http[0].get("/api/vhosts/%2f").with(200);
        [&all[0], &one].map(|vhost| ["messages", "messages_ready"].map(|name| vhost[name].as_u64().unwrap()))
    };
    nodes.until("all of them", || (total(&nodes) == [40, 40]).then_some(()));
    nodes.until("of the virtual host too", || (of_vhost(&nodes) == [[40, 40]; 2]).then_some(()));
    // Their leader is where they were declared, and is not who is asked.
    let leaders = |nodes: &Nodes| -> Vec<Value> {
        fields(&json!(queues(nodes, 0, "?columns=name,leader")), "leader").into_iter().cloned().collect()
    };
    assert!(leaders(&nodes).contains(&json!(nodes.names[1])));
    nodes.brokers[1].kill();
    let (gone, begun) = (json!(nodes.names[1]), Instant::now());
    let mut has_next = false;
    while !has_next {
        assert_eq!(total(&nodes), [40, 40], "{:?} after its death", begun.elapsed());
        assert_eq!(of_vhost(&nodes), [[40, 40]; 2], "{:?} after its death", begun.elapsed());
        let now = leaders(&nodes);
        has_next =
            now.iter().all(|leader| *leader != gone && *leader != "") && begun.elapsed() > Duration::from_secs(1);
        assert!(begun.elapsed() < Duration::from_secs(9), "no leader: {now:?}");
    }
    assert_eq!(total(&nodes), [40, 40]);
    assert_eq!(of_vhost(&nodes), [[40, 40]; 2]);
}

#[test]
fn what_is_changed_over_one_node_is_changed_where_it_is() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let mut clients = declare_some(&nodes);
    for (node, http) in nodes.http.iter().enumerate() {
        let publish = r#"{"properties":{},"routing_key":"kept2","payload":"x","payload_encoding":"string"}"#;
        assert_eq!(http.post("/api/exchanges/%2f/amq.default/publish", publish).with(200)["routed"], true);
        let get = r#"{"count":1,"ackmode":"ack_requeue_false","encoding":"auto"}"#;
        assert_eq!(http.post("/api/queues/%2f/kept2/get", get).with(200)[0]["payload"], "message", "node {node}");
    }
    for (node, http) in nodes.http.iter().enumerate() {
        // One that this node may lead, and one that another does.
        let name = format!("kept{}", (node + 1) % 3);
        http.delete(&format!("/api/queues/%2f/{name}/contents")).with(204);
        nodes.until("the queue is empty", || {
            (http.get(&format!("/api/queues/%2f/{name}")).with(200)["messages"] == 0).then_some(())
        });
        http.delete(&format!("/api/queues/%2f/{name}?if-empty=true")).with(204);
        assert_eq!(http.get(&format!("/api/queues/%2f/{name}")).status, 404);
        // In the memory of another node: it is that connection's.
        let own = format!("/api/queues/%2f/own{}/contents", (node + 1) % 3);
        assert_eq!(http.delete(&own).status, 400, "as RabbitMQ refuses it");
    }
    // The connection of the third node, closed over the first.
    let list = nodes.http[0].get("/api/connections").with(200);
    let name = list[2]["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3e");
    assert_eq!(nodes.http[1].get(&format!("/api/connections/{name}")).with(200)["node"], nodes.names[2].as_str());
    nodes.http[0].send("DELETE", &format!("/api/connections/{name}"), &[("X-Reason", "enough")], "").with(204);
    let closed = clients[2].0.closed(0);
    assert_eq!((closed.code, closed.text.contains("enough")), (320, true), "{closed:?}");
    assert_eq!(nodes.http[0].delete(&format!("/api/connections/{name}")).status, 404);
    // And all of a user.
    nodes.http[1].delete("/api/connections/username/guest").with(204);
    clients.iter_mut().take(2).for_each(|(client, _)| assert_eq!(client.closed(0).code, 320));
}

#[test]
fn what_a_node_does_not_answer_is_told_and_nobody_hangs() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let _clients = declare_some(&nodes);
    // One that hangs is found out by its silence; who asks meanwhile waits no longer than that.
    nodes.brokers[2].signal(Signal::STOP);
    let begin = Instant::now();
    for http in &nodes.http[..2] {
        let connections = http.get("/api/connections");
        assert_eq!(connections.with(200).as_array().unwrap().len(), 2);
        assert!(connections.head.contains("leveret-missing-nodes: leveret@n3"), "{}", connections.head);
        http.get("/api/overview").with(200);
        http.get("/api/queues").with(200);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    nodes.brokers[2].signal(Signal::CONT);
    nodes.until("it is back", || (nodes.running(0) == nodes.names).then_some(()));
    nodes.brokers[2].kill();
    for http in &nodes.http[..2] {
        nodes.until("a node that is gone does not run", || {
            let list = http.get("/api/nodes").with(200);
            (fields(&list, "running") == [true, true, false]).then_some(())
        });
        assert_eq!(http.get("/api/nodes/leveret@n3").with(200)["running"], false);
        assert_eq!(http.get("/api/nodes/leveret@n3/memory").with(200)["memory"], "not_available");
        let kept = nodes.until("the next leader is known", || {
            let kept = http.get("/api/queues?name=kept&columns=name,state,online,messages").with(200);
            kept.as_array().unwrap().iter().all(|queue| queue["state"] == "running").then_some(kept)
        });
        assert_eq!(fields(&kept, "messages"), [1, 2, 3]);
        assert!(fields(&kept, "online").iter().all(|online| **online == json!(nodes.names[..2])));
        let critical = http.get("/api/health/checks/node-is-quorum-critical").with(503);
        assert_eq!(critical["queues"].as_array().unwrap().len(), 3);
        http.get("/api/health/checks/ready-to-serve-clients").with(200);
        assert_eq!(metric(http, "leveret_nodes_unreached"), 1.0);
    }
    nodes.until("the copies of the node that is gone are told of, each by one node", || {
        let of = |name: &str| nodes.http[..2].iter().map(|http| metric(http, name)).sum::<f64>();
        (of("leveret_members_behind") == 5.0 && of("leveret_partitions_without_leader") == 0.0).then_some(())
    });
    // Without a majority it says so, and answers.
    nodes.brokers[1].kill();
    let alone = &nodes.http[0];
    nodes.until("the majority is gone", || {
        let kept = alone.get("/api/queues?name=kept").with(200);
        fields(&kept, "state").iter().all(|state| **state == "minority").then_some(())
    });
    alone.get("/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts").with(503);
    nodes.until("it is not ready", || {
        (alone.get("/api/health/checks/ready-to-serve-clients").status == 503).then_some(())
    });
    for check in ["ready-to-serve-clients", "is-in-service"] {
        let failed = alone.get(&format!("/api/health/checks/{check}")).with(503);
        let reason = failed["reason"].as_str().unwrap();
        assert!(reason.contains("reaches no majority of its cluster and waits for leveret@n2, leveret@n3"), "{reason}");
    }
    let unserved = alone.get("/api/health/checks/virtual-hosts").with(503);
    assert_eq!(unserved["virtual-hosts"], json!(["/"]), "{unserved}");
    let reason = unserved["reason"].as_str().unwrap();
    assert!(reason.contains("unavailable over this node") && reason.contains("leveret@n2, leveret@n3"), "{reason}");
    let dead = alone.get("/api/aliveness-test/%2f").with(503);
    assert!(dead["reason"].as_str().unwrap().contains("waits for leveret@n2, leveret@n3"), "{dead}");
    let begin = Instant::now();
    let wanted = r#"{"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}"#;
    let got = alone.post("/api/queues/%2f/kept0/get", wanted).with(503);
    let reason = "the queue has no leader that this node reaches: it waits for leveret@n2, leveret@n3";
    assert!(got["reason"] == reason && begin.elapsed().as_secs() < 15, "{got}, after {:?}", begin.elapsed());
    let message = r#"{"routing_key": "kept0", "payload": "1", "payload_encoding": "string", "properties": {}}"#;
    let refused = alone.post("/api/exchanges/%2f/amq.default/publish", message).with(503);
    assert!(refused["reason"].as_str().unwrap().contains("no leader that this node reaches"), "{refused}");
    let running = Tools::of(&nodes.brokers[0]).diagnostics("check_running").bad(69);
    assert!(running.contains("waits for leveret@n2, leveret@n3"), "{running}");
    let undecided = Tools::of(&nodes.brokers[0]).ctl("add_user ann sesame").bad(69);
    assert!(undecided.contains("nobody knows whether it is made"), "{undecided}");
    assert!(undecided.contains("does not reach leveret@n2, leveret@n3"), "{undecided}");
    assert_eq!(metric(alone, "leveret_partitions_without_leader"), 5.0, "four of queues and the topology's");
    assert_eq!(metric(alone, "leveret_nodes_unreached"), 2.0);
}

#[test]
fn every_node_says_which_copies_a_durable_queue_has_and_how_far_they_are() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    for name in ["a", "b", "c", "d"] {
        client.declare(channel, &quorum(name)).unwrap();
    }
    client.declare(channel, &QueueDeclare { name: "own", exclusive: true, ..QueueDeclare::default() }).unwrap();
    let leaders = |http: &Http| {
        let listed = http.get("/api/queues?durable=true").with(200);
        let durable = listed.as_array().unwrap().iter().filter(|queue| queue["durable"] == true);
        durable.map(|queue| queue["leader"].clone()).collect::<Vec<_>>()
    };
    for (node, http) in nodes.http.iter().enumerate() {
        for name in ["a", "b", "c", "d"] {
            let told = nodes.until("all copies are in sync", || {
                let told = http.get(&format!("/api/leveret/queues/%2f/{name}")).with(200);
                (told["copies_in_sync"] == 3).then_some(told)
            });
            assert_eq!((&told["copies"], &told["leads"]), (&json!(3), &json!(true)), "node {node}: its leader says so");
            let queue = http.get(&format!("/api/queues/%2f/{name}")).with(200);
            assert_eq!((&queue["members"], &queue["online"]), (&json!(nodes.names), &json!(nodes.names)));
            assert_eq!(queue["leader"], queue["node"]);
        }
        assert!(
            leaders(http).iter().all(|leader| nodes.names.iter().any(|name| leader == name)),
            "{:?}",
            leaders(http)
        );
        assert_eq!(http.get("/api/queues/%2f/own").with(200)["members"], Value::Null, "it is in one node's memory");
    }
    let listed = Tools::of(&nodes.brokers[0]).ctl("-q list_queues name members").good();
    assert!(listed.lines().any(|line| line.starts_with("a\t") && line.contains("leveret@n3")), "{listed}");
    nodes.brokers[1..].iter_mut().for_each(Broker::kill);
    nodes.until("nobody leads them", || leaders(&nodes.http[0]).iter().all(|leader| leader == "").then_some(()));
}

/// A metric without labels.
fn metric(http: &Http, name: &str) -> f64 {
    let text = http.get("/metrics").text;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// Who was just elected leads a queue before it knows what is in it: that is left out, and not told as none.
#[test]
fn nobody_says_that_a_queue_is_empty_while_its_next_leader_does_not_know_yet() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    client.confirm_select(channel).unwrap();
    client.declare(channel, &quorum("counted")).unwrap();
    (0..5).for_each(|_| client.put(channel, "counted", b"message"));
    client.confirmed(channel, 1, 5);
    drop(client);
    let told = |http: &Http| {
        let one = http.get("/api/queues/%2f/counted");
        let list = http.get("/api/queues/%2f?columns=name,messages,consumers,state");
        let of_list = list.json().as_array().and_then(|all| all.iter().find(|row| row["name"] == "counted").cloned());
        [(one.status == 200).then(|| one.json()), of_list]
    };
    nodes.until("it is counted", || {
        let all = nodes.http.iter().flat_map(&told).collect::<Vec<_>>();
        all.iter().all(|row| row.as_ref().is_some_and(|row| row["messages"] == 5)).then_some(())
    });
    for _ in 0..4 {
        let leader = nodes.http[0].get("/api/queues/%2f/counted").with(200)["leader"].clone();
        let led = nodes.names.iter().position(|name| *name == leader).unwrap();
        let others: Vec<Http> = (0..3).filter(|node| *node != led).map(|node| nodes.http[node].clone()).collect();
        nodes.brokers[led].kill();
        let until = Instant::now() + Duration::from_secs(10);
        let mut is_led = false;
        while !is_led {
            assert!(Instant::now() < until, "nobody else leads it");
            for row in others.iter().flat_map(&told).flatten() {
                assert!(row["messages"].is_null() || row["messages"] == 5, "{row}");
                is_led |=
                    row["messages"] == 5 && row["leader"] != leader && row["leader"] != "" && !row["leader"].is_null();
            }
        }
        nodes.brokers[led].start();
        nodes.until("all nodes run", || (nodes.running(led) == nodes.names).then_some(()));
    }
}

#[test]
fn what_was_declared_is_led_once_that_is_answered() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let http = &nodes.http[0];
    let declare = |arguments: Value| json!({ "durable": true, "arguments": arguments }).to_string();
    for number in 0..4 {
        // Each comes with a partition of its own.
        let arguments = json!({ "x-queue-type": "quorum", "x-dedicated-partition": true });
        http.put(&format!("/api/queues/%2f/own{number}"), &declare(arguments)).with(201);
        http.get("/api/health/checks/virtual-hosts").with(200);
        http.get("/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts").with(200);
        assert_eq!(http.get(&format!("/api/queues/%2f/own{number}")).with(200)["state"], "running");
    }
    let queues: Vec<Value> = (0..5)
        .map(|number| json!({ "name": format!("classic{number}"), "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} }))
        .collect();
    let imported = http.send("POST", "/api/definitions", &[], &json!({ "queues": queues }).to_string());
    assert_eq!(imported.status, 204, "{imported:?}");
    for number in 0..5 {
        assert_eq!(http.get(&format!("/api/queues/%2f/classic{number}")).with(200)["state"], "running");
    }
}

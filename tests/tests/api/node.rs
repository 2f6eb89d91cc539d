//! The node over HTTP: its memory, and the fields without which RabbitMQ's own clients cannot read
//! it.

use clients::api::until;
use clients::broker::{is_foreign, unique};
use clients::{Broker, QueueDeclare};
use serde_json::{Value, json};

/// Asserts that each of these fields is a number that fits 32 or 64 bits without a sign.
fn numbers(of: &Value, fields: &[&str], most: u64) {
    for field in fields {
        assert!(of[field].as_u64().is_some_and(|number| number <= most), "{field}: {}", of[field]);
    }
}

#[test]
fn a_node_has_every_field_that_rabbitmqadmin_reads() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let nodes = http.get("/api/nodes").with(200);
    let node = &nodes[0];
    // As `ClusterNode` of RabbitMQ's client in Rust has them: a field that is missing or of another
    // type fails the whole list.
    numbers(node, &["uptime", "run_queue", "processors", "fd_total", "proc_total"], u32::MAX.into());
    numbers(node, &["mem_limit", "disk_free_limit"], u64::MAX);
    assert!(node["os_pid"].as_str().is_some_and(|pid| pid.parse::<u32>().is_ok()));
    for field in ["mem_alarm", "disk_free_alarm", "being_drained"] {
        assert!(node[field].is_boolean(), "{field}");
    }
    assert!(node["name"].is_string() && node["rates_mode"].is_string() && node["enabled_plugins"].is_array());
    // It looks for the application `rabbit` where this is missing, and panics without it.
    assert!(node["rabbitmq_version"].is_string());
    assert!(node["proc_used"].as_u64() <= node["proc_total"].as_u64());
    let overview = http.get("/api/overview").with(200);
    for field in ["cluster_name", "node", "rabbitmq_version", "product_name", "product_version"] {
        assert!(overview[field].is_string(), "{field}");
    }
    assert_eq!((&overview["cluster_tags"], &overview["node_tags"]), (&json!({}), &json!({})));
    numbers(&overview, &["statistics_db_event_queue"], u64::MAX);
    let churn = ["connection_created", "connection_closed", "channel_created", "channel_closed"];
    numbers(&overview["churn_rates"], &churn, u32::MAX.into());
    numbers(&overview["object_totals"], &["connections", "channels", "queues", "exchanges", "consumers"], u64::MAX);
    numbers(&overview["queue_totals"], &["messages", "messages_ready", "messages_unacknowledged"], u64::MAX);
    for listener in overview["listeners"].as_array().unwrap() {
        numbers(listener, &["port"], u16::MAX.into());
        assert!(["node", "protocol", "ip_address"].iter().all(|field| listener[field].is_string()), "{listener}");
    }
    http.put("/api/global-parameters/cluster_tags", r#"{"value":{"region":"hay"}}"#).with(201);
    assert_eq!(http.get("/api/overview").with(200)["cluster_tags"], json!({"region": "hay"}));
}

/// Which nodes there are, and where they listen, is for monitors.
#[test]
fn who_is_no_monitor_is_not_told_of_nodes_and_listeners() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let user = unique("low");
    http.put(&format!("/api/users/{user}"), r#"{"password":"pw","tags":"management"}"#).with(201);
    let own = http.as_user(&user, "pw").get("/api/overview").with(200);
    assert!(own["cluster_name"].is_string() && own["queue_totals"].is_object());
    for field in ["node", "listeners", "contexts"] {
        assert_eq!(own.get(field), None, "{field}");
        assert!(http.get("/api/overview").with(200).get(field).is_some(), "{field}");
    }
    http.delete(&format!("/api/users/{user}")).with(204);
}

#[test]
fn a_node_says_which_files_made_its_settings() {
    let folder = std::env::temp_dir().join(unique("leveret-files"));
    std::fs::create_dir_all(&folder).unwrap();
    let (ours, theirs) = (folder.join("leveret.toml"), folder.join("rabbitmq.conf"));
    std::fs::write(&ours, "log = \"info\"\n").unwrap();
    std::fs::write(&theirs, "channel_max = 100\n").unwrap();
    let arguments = ["--config", ours.to_str().unwrap(), "--rabbitmq-config", theirs.to_str().unwrap()];
    let Some((_broker, http)) = Broker::managed(&arguments).filter(|_| !is_foreign()) else { return };
    let node = http.get("/api/nodes").with(200)[0].clone();
    assert_eq!(node["config_files"], json!([theirs, ours]), "in the order in which they count");
    assert_eq!(node["log_files"], json!(["<stderr>"]));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn memory_is_told_in_rabbitmqs_parts_and_adds_up() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let at = format!("/api/nodes/{node}/memory");
    let memory = http.get(&at).with(200)["memory"].clone();
    let parts = [
        "connection_readers",
        "connection_writers",
        "connection_channels",
        "connection_other",
        "queue_procs",
        "quorum_queue_procs",
        "stream_queue_procs",
        "stream_queue_replica_reader_procs",
        "stream_queue_coordinator_procs",
        "plugins",
        "other_proc",
        "metrics",
        "mgmt_db",
        "mnesia",
        "quorum_ets",
        "other_ets",
        "binary",
        "msg_index",
        "code",
        "atom",
        "other_system",
        "allocated_unused",
        "reserved_unallocated",
    ];
    numbers(&memory, &parts, u64::MAX);
    numbers(&memory["total"], &["rss", "erlang", "allocated"], u64::MAX);
    assert_eq!(memory["strategy"], "rss");
    let relative = http.get(&format!("{at}/relative")).with(200)["memory"].clone();
    numbers(&relative, &parts, 100);
    assert_eq!(relative["total"], 100);
    assert_eq!(http.get("/api/nodes/none@nowhere/memory").status, 404);
    if !is_foreign() {
        let all = memory.as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
        assert!(all >= memory["total"]["rss"].as_u64().unwrap(), "{memory}");
        assert_eq!(http.get(&format!("{at}/ets")).with(200), json!({"ets_tables_memory": "no_tables"}));
        assert_eq!(http.get("/api/nodes/none@nowhere").status, 404);
    }
}

#[test]
fn an_exclusive_queue_names_its_owner_and_virtual_hosts_come_by_name() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let name = unique("owned");
    client.declare(channel, &QueueDeclare { name: &name, exclusive: true, ..QueueDeclare::default() }).unwrap();
    let path = format!("/api/queues/%2F/{name}");
    let told = || Some(http.get(&path).with(200)["owner_pid_details"].clone()).filter(Value::is_object);
    let owner = until("its owner", told);
    let connections = http.get("/api/connections").with(200);
    let names: Vec<&Value> = connections.as_array().unwrap().iter().map(|connection| &connection["name"]).collect();
    assert!(names.contains(&&owner["name"]), "{owner} in {names:?}");
    assert!(owner["peer_port"].is_u64() && owner["peer_host"] == "127.0.0.1", "{owner}");
    if is_foreign() {
        return;
    }
    let made: Vec<String> = ["zebra", "ant", "mule"].map(unique).to_vec();
    made.iter().for_each(|vhost| drop(http.put(&format!("/api/vhosts/{vhost}"), "{}").with(201)));
    let vhosts = http.get("/api/vhosts").with(200);
    let names: Vec<&str> = vhosts.as_array().unwrap().iter().map(|vhost| vhost["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted(), "{names:?}");
    made.iter().for_each(|vhost| drop(http.delete(&format!("/api/vhosts/{vhost}")).with(204)));
}

#[test]
fn the_operator_holds_publishers_and_lets_them_go_on() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let hold = format!("/api/nodes/{node}/publishers/hold");
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "q", b"before");
    client.confirmed(channel, 1, 1);
    http.put(&hold, "").with(204);
    let clients::Event::Method(clients::methods::CONNECTION_BLOCKED, reason) = client.event(0) else {
        panic!("blocked")
    };
    assert!(String::from_utf8_lossy(&reason).contains("held by the operator"), "{reason:?}");
    client.put(channel, "q", b"during");
    assert_eq!(http.get("/api/health/checks/alarms").with(503)["alarms"][0]["resource"], "operator");
    assert_eq!(http.get(&format!("/api/nodes/{node}")).with(200)["leveret_publishers_held"], true);
    assert!(http.get("/metrics").text.lines().any(|line| line == "leveret_publishers_held 1"));
    client.silent(channel);
    http.delete(&hold).with(204);
    client.confirmed(channel, 2, 2);
    http.put(&format!("/api/users/{}", "monitor"), r#"{"password":"secret","tags":"monitoring"}"#).with(201);
    assert_eq!(http.as_user("monitor", "secret").put(&hold, "").status, 401, "for administrators");
    assert_eq!(http.put("/api/nodes/nobody/publishers/hold", "").status, 404);
}

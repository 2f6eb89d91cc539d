//! What commands say of a cluster.

use crate::nodes::{Nodes, replicated};
use clients::broker::{binary, is_foreign};
use clients::{Event, QueueDeclare, Tools, Value as Argument};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

#[test]
fn commands_speak_of_all_nodes_and_of_those_that_are_gone() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(2);
    let arguments = vec![("x-queue-type", Argument::from("quorum"))];
    client.declare(channel, &QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "own", exclusive: true, ..QueueDeclare::default() }).unwrap();
    let tools = Tools::of(&nodes.brokers[0]);
    let status = |tools: &Tools| -> Value {
        serde_json::from_str(&tools.run("leveret", "cluster status --json").good()).unwrap()
    };
    let all_in_sync = |told: &Value, of: u64| {
        told["partitions"]
            .as_array()
            .unwrap()
            .iter()
            .all(|partition| partition["in_sync"] == of && partition["leader"].is_string())
    };
    let told = nodes.until("all members are in sync", || Some(status(&tools)).filter(|told| all_in_sync(told, 3)));
    assert_eq!(told["nodes"].as_array().unwrap().len(), 3);
    assert_eq!(told["partitions"].as_array().unwrap().len(), 5, "the topology's and four of queues");
    let expected = json!([
        {"guarantee": "3 of 3 copies synced to disk", "queues": 1},
        {"guarantee": "in the memory of leveret@n3 alone", "queues": 1},
    ]);
    assert_eq!((&told["queues"]["guarantees"], &told["queues"]["under_replicated"]), (&expected, &json!(0)));
    let shown = tools.run("leveret", "cluster status").good();
    assert!(shown.contains("3 of 3 copies synced to disk") && shown.contains("leveret@n2"), "{shown}");
    let members = tools.run("rabbitmq-queues", "quorum_status q").good();
    assert_eq!((members.matches("leader").count(), members.matches("follower").count()), (1, 2), "{members}");
    let listed = tools.ctl("-q list_queues name messages").good();
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["name\tmessages", "own\t0", "q\t0"]);
    assert_eq!(tools.ctl("-q list_connections user").good().lines().count(), 2);
    tools.ctl("await_online_nodes 3 -t 10").good();
    nodes.brokers[2].kill();
    let two = |told: &Value| all_in_sync(told, 2);
    let told = nodes.until("two are left", || Some(status(&tools)).filter(two));
    assert!(told["queues"]["under_replicated"].as_u64() >= Some(1), "{told}");
    assert_eq!(told["missing"], json!(["leveret@n3"]));
    let shown = tools.run("leveret", "cluster status").good();
    assert!(shown.contains("2 of 3 copies synced to disk") && shown.contains("unreachable"), "{shown}");
    let cluster = tools.ctl("cluster_status").good();
    let part = |title: &str| cluster.split(title).nth(1).unwrap().split("\n\n").nth(1).unwrap().lines().count();
    assert_eq!((part("Disk Nodes"), part("Running Nodes")), (3, 2), "{cluster}");
    assert!(tools.ctl("await_online_nodes 3 -t 1").bad(70).contains("Not enough nodes joined"));
    let critical = tools.diagnostics("check_if_node_is_quorum_critical").bad(69);
    assert!(critical.contains("queue 'q' in vhost '/' would lose quorum if node leveret@n1 is stopped"), "{critical}");
}

#[test]
fn a_node_that_is_drained_serves_nobody_and_leads_nothing_until_it_is_revived() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &replicated("q")).unwrap();
    let tools = Tools::of(&nodes.brokers[0]);
    let leaders = || -> Vec<String> {
        let told: Value = serde_json::from_str(&tools.run("leveret", "cluster status --json").good()).unwrap();
        let partitions = told["partitions"].as_array().unwrap().clone();
        // What it alone has nobody else can lead.
        let shared = partitions.iter().filter(|partition| partition["of"] != 1);
        shared.map(|partition| partition["leader"].as_str().unwrap_or_default().to_owned()).collect()
    };
    // As even as can be, so that it leads something.
    tools.run("rabbitmq-upgrade", "post_upgrade").good();
    tools.run("rabbitmq-upgrade", "await_online_quorum_plus_one -t 20").good();
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", 1.into())];
    client
        .declare(channel, &QueueDeclare { name: "sole", durable: true, arguments, ..QueueDeclare::default() })
        .unwrap();
    let critical = tools.diagnostics("check_if_node_is_quorum_critical").bad(69);
    assert!(critical.contains("queue 'sole' in vhost '/'") && !critical.contains("queue 'q'"), "{critical}");
    let late = tools.run("rabbitmq-upgrade", "await_online_quorum_plus_one -t 2").bad(70);
    assert!(late.contains("queue 'sole' in vhost '/'; a queue of one or two copies never has one to spare"), "{late}");
    assert!(leaders().iter().any(|leader| leader == "leveret@n1"), "{:?}", leaders());
    let said = tools.run("rabbitmq-upgrade", "drain").good();
    assert!(said.starts_with("Will put node leveret@n1 into maintenance mode"), "{said}");
    let closed = client.closed(0);
    assert!(closed.code == 320 && closed.text.contains("maintenance mode"), "{closed:?}");
    assert!(!leaders().contains(&"leveret@n1".to_owned()), "{:?}", leaders());
    let refused = std::net::TcpStream::connect(nodes.brokers[0].addr()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(tools.diagnostics("check_running").bad(69).contains("maintenance mode"));
    assert!(tools.ctl("cluster_status").good().contains("Node: leveret@n1, status: marked for maintenance"));
    assert!(tools.ctl("status").good().contains("Is under maintenance?: true"));
    let shown = Tools::of(&nodes.brokers[1]).run("leveret", "cluster status").good();
    let of_first = shown.lines().find(|line| line.starts_with("leveret@n1 ")).unwrap().to_owned();
    assert!(of_first.contains("  running, in maintenance  "), "{shown}");
    assert!(shown.contains("In maintenance, without clients: leveret@n1. `leveret ctl revive`"), "{shown}");
    for http in &nodes.http {
        assert_eq!(http.get("/api/nodes/leveret@n1").with(200)["being_drained"], true);
    }
    let port = nodes.brokers[0].addr().port();
    for check in [format!("port-listener/{port}"), "protocol-listener/amqp".to_owned()] {
        nodes.http[0].get(&format!("/api/health/checks/{check}")).with(503);
        assert_eq!(nodes.http[1].get("/api/health/checks/protocol-listener/amqp").status, 200);
    }
    let is_in_maintenance = |node: usize, text: &str| {
        let metrics = nodes.http[node].get("/metrics").text;
        assert!(metrics.contains(&format!("\nleveret_in_maintenance {text}\n")), "node {node}: {metrics}");
    };
    is_in_maintenance(0, "1");
    is_in_maintenance(1, "0");
    // Nobody gives it anything, and what it has is as good as before.
    let begin = std::time::Instant::now();
    Tools::of(&nodes.brokers[1]).run("rabbitmq-upgrade", "post_upgrade").good();
    assert!(begin.elapsed().as_secs() < 8, "it waits for none that is to lead nothing: {:?}", begin.elapsed());
    let (mut other, on_other) = nodes.connect(1);
    other.confirm_select(on_other).unwrap();
    // Its partition may be on its way from one leader to another.
    loop {
        other.put(on_other, "q", b"1");
        match other.event(on_other) {
            Event::Confirm { nack: false, .. } => break,
            Event::Confirm { .. } => std::thread::sleep(std::time::Duration::from_millis(50)),
            event => panic!("only answers are due: {event:?}"),
        }
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!leaders().contains(&"leveret@n1".to_owned()), "{:?}", leaders());
    tools.run("rabbitmq-upgrade", "revive").good();
    nodes.until("it lets clients in", || std::net::TcpStream::connect(nodes.brokers[0].addr()).ok());
    let (mut client, channel) = nodes.connect(0);
    assert_eq!(client.get(channel, "q", true).unwrap().unwrap().body, b"1");
    tools.diagnostics("check_running").good();
    tools.run("rabbitmq-upgrade", "post_upgrade").good();
    assert!(leaders().contains(&"leveret@n1".to_owned()), "{:?}", leaders());
    // Where nobody is left to lead in its stead it hands nothing over, and says so.
    for node in [0, 1] {
        Tools::of(&nodes.brokers[node]).run("rabbitmq-upgrade", "drain").good();
    }
    let begin = std::time::Instant::now();
    let said = Tools::of(&nodes.brokers[2]).run("rabbitmq-upgrade", "drain").good();
    assert!(said.contains("Skipping the transfer of leaders") && said.contains("leading 5 partitions"), "{said}");
    assert!(begin.elapsed().as_secs() < 8, "{:?}", begin.elapsed());
    assert!(nodes.brokers[2].log().contains("what it leads it goes on leading"), "{}", nodes.brokers[2].log());
    // Then none of them leaves: the others may be about to go, too, and waiting changes nothing about it.
    for (node, others) in [(0, ["leveret@n2", "leveret@n3"]), (2, ["leveret@n1", "leveret@n2"])] {
        let begin = std::time::Instant::now();
        let refused = Tools::of(&nodes.brokers[node]).run("leveret", "cluster leave").bad(69);
        let [first, second] = others;
        let told =
            format!("{first} and {second} are in maintenance mode and may be about to go, too: revive them first");
        assert!(refused.contains(&told), "{refused}");
        assert!(begin.elapsed().as_secs() < 8, "{:?}", begin.elapsed());
    }
}

#[test]
fn a_node_that_leads_nothing_and_is_left_alone_says_that_it_hands_nothing_over() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let tools = Tools::of(&nodes.brokers[2]);
    tools.run("rabbitmq-upgrade", "drain").good();
    nodes.brokers[0].kill();
    nodes.brokers[1].kill();
    nodes.until("the others are gone", || (nodes.running(2) == nodes.names[2..]).then_some(()));
    let said = tools.run("rabbitmq-upgrade", "drain").good();
    let told = "no other node runs that is not in maintenance mode. Node leveret@n3 leads nothing now of what other nodes have copies of";
    assert!(said.contains(&format!("Skipping the transfer of leaders: {told}")), "{said}");
    assert!(!said.contains("only copy"), "{said}");
}

#[test]
fn a_node_that_is_left_alone_says_that_it_goes_on_leading_its_classic_queues() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(2);
    client.declare(channel, &QueueDeclare { name: "classic", durable: true, ..QueueDeclare::default() }).unwrap();
    let tools = Tools::of(&nodes.brokers[2]);
    tools.run("rabbitmq-upgrade", "drain").good();
    nodes.brokers[0].kill();
    nodes.brokers[1].kill();
    nodes.until("the others are gone", || (nodes.running(2) == nodes.names[2..]).then_some(()));
    // What each node leads is looked at now and then.
    nodes.until("it says what it leads", || {
        let said = tools.run("rabbitmq-upgrade", "drain").good();
        let says =
            said.contains("It goes on leading ") && said.contains(" of which it has the only copy, as of classic");
        says.then_some(())
    });
}

/// One node is killed by a word and started again by another; at the end nothing runs.
#[test]
fn a_demo_starts_three_nodes_and_ends_them() {
    if is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("demo");
    let mut demo = Command::new(binary())
        .args(["cluster", "demo", "--port", "22300", "--dir"])
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut until =
        |what: &str| said.find(|line| line.contains(what)).unwrap_or_else(|| panic!("it ended before {what}"));
    until("Ctrl-C ends all");
    let mut words = demo.stdin.take().unwrap();
    let mut say = |word: &str| writeln!(words, "{word}").unwrap();
    say("kill 2");
    until("leveret@n2 was ended by signal 9");
    say("status");
    until("does not run");
    say("start 2");
    until("leveret@n2 starts");
    say("start 4");
    until("start which? 1 to 3");
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    until("the same command goes on with it");
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    let data = dir.join("n1");
    let again = Command::new(binary()).arg("inspect").arg(&data).args(["--quick"]).output().unwrap();
    assert!(again.status.success(), "nobody has the folder any more: {again:?}");
}

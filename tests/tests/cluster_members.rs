//! Nodes that join a cluster which is there, are forgotten, and take the place of others, under load
//! and under kills.
#![allow(clippy::unwrap_used)]

use clients::broker::{free_port, is_foreign};
use clients::nodes::{Node, PATIENCE, durable, quorum};
use clients::tools::Tools;
use clients::{Event, Nodes, QueueDeclare};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What these tests ask of a cluster beside what all of them do.
trait Members {
    /// Has one node forget another.
    fn forget(&self, node: usize, other: usize) -> (u16, Value);
    /// The same for a node that was killed just now, as soon as the asked one has noticed.
    fn forget_killed(&self, node: usize, other: usize) -> (u16, Value);
    /// All nodes say the same of the cluster, whose first one ran alone before, and count its queue once.
    fn are_one_to_those_who_look(&self);
    /// What all nodes that there are, as one says, are called.
    fn names(&self, node: usize) -> Vec<String>;
}

impl Members for Nodes {
    fn forget(&self, node: usize, other: usize) -> (u16, Value) {
        let answer = self.nodes[node].http.delete(&format!("/api/leveret/nodes/{}", self.nodes[other].name));
        (answer.status, if answer.status == 204 { Value::Null } else { answer.json() })
    }

    fn forget_killed(&self, node: usize, other: usize) -> (u16, Value) {
        let due = Instant::now() + Duration::from_secs(10);
        loop {
            let (status, answer) = self.forget(node, other);
            if !answer.to_string().contains("is running") || Instant::now() > due {
                return (status, answer);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn are_one_to_those_who_look(&self) {
        let mut clusters = BTreeSet::new();
        for node in &self.nodes {
            let overview = node.http.get("/api/overview").with(200);
            assert_eq!(overview["cluster_name"], self.nodes[0].name.as_str());
            let text = node.http.get("/metrics").text;
            let identity = text.lines().find(|line| line.starts_with("rabbitmq_identity_info{")).unwrap();
            clusters.extend(
                identity.split([',', '{']).filter(|label| label.starts_with("rabbitmq_cluster")).map(str::to_owned),
            );
        }
        assert_eq!(clusters.len(), 2, "a name and a permanent id: {clusters:?}");
        let due = Instant::now() + PATIENCE;
        let led = |node: &Node| {
            let text = node.http.get("/metrics").text;
            let line = text.lines().find_map(|line| line.strip_prefix("rabbitmq_queues ")).unwrap().to_owned();
            line.trim().parse::<f64>().unwrap()
        };
        while self.nodes.iter().map(led).sum::<f64>() != 1.0 {
            assert!(Instant::now() < due, "one queue is counted once");
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = self.nodes[0].broker.log();
        for number in [2, 3] {
            assert!(log.contains(&format!("leveret@n{number} joined as node {number}")), "{log}");
        }
        let opened = log.lines().rfind(|line| line.contains("data folder opened")).unwrap();
        assert!(!opened.contains("messages"), "what is not known yet is not told: {opened}");
    }

    fn names(&self, node: usize) -> Vec<String> {
        let nodes = self.nodes[node].http.get("/api/nodes").with(200);
        nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Publishes to a queue over one node, each message once, and knows which were confirmed.
struct Publisher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeSet<u64>>,
}

impl Publisher {
    fn of(nodes: &Nodes, node: usize, queue: &'static str, first: u64) -> Publisher {
        let (mut client, channel) = nodes.connect(node);
        client.declare(channel, &durable(queue)).unwrap();
        Publisher::to(nodes, node, queue, first)
    }

    /// The same to a queue that is there.
    fn to(nodes: &Nodes, node: usize, queue: &'static str, first: u64) -> Publisher {
        let (mut client, channel) = nodes.connect(node);
        client.confirm_select(channel).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let over = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut confirmed, mut count) = (BTreeSet::new(), 0);
            while !over.load(Ordering::Relaxed) {
                let number = first + count;
                client.put(channel, queue, number.to_string().as_bytes());
                count += 1;
                let Event::Confirm { tag, nack, .. } = client.event(channel) else { panic!("only answers are due") };
                assert_eq!(tag, count);
                if !nack {
                    confirmed.insert(number);
                }
                std::thread::sleep(Duration::from_millis(if nack { 20 } else { 2 }));
            }
            confirmed
        });
        Publisher { stop, thread }
    }

    fn end(self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("every publish was answered")
    }
}

#[test]
fn a_node_joins_under_load_takes_the_place_of_another_and_nothing_is_lost() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let publisher = Publisher::of(&nodes, 2, "kept", 0);
    let fourth = nodes.newcomer(0);
    // It dies on its way, again and again, and is still one node.
    for ms in [30, 150, 400, 900, 1_600] {
        nodes.launch(fourth);
        std::thread::sleep(Duration::from_millis(ms));
        nodes.kill(fourth);
    }
    nodes.start(fourth);
    nodes.until_copies(fourth, 4);
    assert_eq!(nodes.names(fourth).len(), 4, "{:?}", nodes.names(fourth));
    // It serves, and what it is told counts.
    let (mut client, channel) = nodes.connect(fourth);
    client.declare(channel, &durable("of the fourth")).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "of the fourth", b"1");
    client.confirmed(channel, 1, 1);

    // Who runs is not forgotten, nor who is none.
    let (status, why) = nodes.forget(fourth, 0);
    assert!(status == 400 && why["reason"].as_str().unwrap().contains("stop it first"), "{status} {why}");
    assert_eq!(nodes.nodes[0].http.delete("/api/leveret/nodes/nobody").status, 404);
    nodes.kill(0);
    let due = Instant::now() + PATIENCE;
    while nodes.forget(fourth, 0).0 != 204 {
        assert!(Instant::now() < due, "{:?}", nodes.forget(fourth, 0));
        std::thread::sleep(Duration::from_millis(200));
    }
    nodes.until_copies(fourth, 3);
    // Of the three that are left another one may go.
    nodes.kill(1);
    std::thread::sleep(Duration::from_secs(3));
    let confirmed = publisher.end();
    assert!(confirmed.len() > 50, "{} confirmed", confirmed.len());
    let there = nodes.drain(fourth, "kept");
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
    client.put(channel, "of the fourth", b"2");
    client.confirmed(channel, 2, 2);
    // Who was forgotten hears what to do.
    nodes.launch(0);
    let due = Instant::now() + PATIENCE;
    while !nodes.nodes[0].broker.log().contains("has been forgotten: start it with an empty data folder") {
        assert!(Instant::now() < due, "{}", nodes.nodes[0].broker.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    // All of them at once: everybody knows the others again.
    for node in [2, fourth] {
        nodes.kill(node);
    }
    for node in [1, 2, fourth] {
        nodes.launch(node);
    }
    for node in [1, 2, fourth] {
        nodes.nodes[node].broker.until_it_answers();
    }
    nodes.until_copies(1, 3);
}

#[test]
fn a_node_that_ran_alone_is_joined_by_others_with_all_that_it_has() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::none();
    let address = free_port().to_string();
    let first = nodes.add(&[], &address);
    // As it ran before: alone.
    let clustered = nodes.nodes[first].broker.without_arguments("--cluster-");
    nodes.start(first);
    let alone = Publisher::of(&nodes, first, "kept", 0);
    std::thread::sleep(Duration::from_millis(600));
    let mut confirmed = alone.end();
    nodes.nodes[first].broker.terminate();
    nodes.nodes[first].broker.set_arguments(clustered);
    nodes.start(first);
    let publisher = Publisher::of(&nodes, first, "kept", 1_000_000);
    let (second, third) = (nodes.newcomer(first), nodes.newcomer(first));
    nodes.start(second);
    nodes.until_copies(second, 2);
    nodes.start(third);
    nodes.until_copies(third, 3);
    nodes.are_one_to_those_who_look();
    confirmed.extend(publisher.end());
    assert!(confirmed.len() > 50, "{} confirmed", confirmed.len());
    nodes.kill(first);
    let there = nodes.drain(third, "kept");
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
    let (mut client, channel) = nodes.connect(second);
    client.confirm_select(channel).unwrap();
    client.put(channel, "kept", b"1");
    client.confirmed(channel, 1, 1);
    // Who came later is known by its folder from then on, without the address of another.
    nodes.kill(third);
    nodes.nodes[third].broker.without_arguments("--cluster-join");
    nodes.start(third);
    // Its disk is lost: another node comes in its stead.
    let due = Instant::now() + PATIENCE;
    while nodes.forget(second, first).0 != 204 {
        assert!(Instant::now() < due, "{:?}", nodes.forget(second, first));
        std::thread::sleep(Duration::from_millis(200));
    }
    let heir = nodes.newcomer(third);
    nodes.start(heir);
    nodes.until_copies(heir, 3);
    nodes.kill(second);
    client = nodes.connect(heir).0;
    let channel = client.channel();
    assert_eq!(client.get(channel, "kept", true).unwrap().unwrap().body, b"1");
    // Those who are left find each other again, though whoever they began with is forgotten.
    let due = Instant::now() + PATIENCE;
    while nodes.forget(heir, second).0 != 204 {
        assert!(Instant::now() < due, "{:?}", nodes.forget(heir, second));
        std::thread::sleep(Duration::from_millis(200));
    }
    [heir, third].into_iter().for_each(|node| nodes.kill(node));
    [heir, third].into_iter().for_each(|node| nodes.launch(node));
    [heir, third].into_iter().for_each(|node| nodes.nodes[node].broker.until_it_answers());
    nodes.until_copies(third, 2);
}

#[test]
fn a_node_that_stood_still_and_was_forgotten_meanwhile_closes_its_clients_and_ends() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    for node in [0, 2] {
        let (mut client, channel) = nodes.connect(node);
        client.declare(channel, &durable("kept")).unwrap();
        nodes.nodes[node].broker.signal(Signal::STOP);
        let due = Instant::now() + PATIENCE;
        while nodes.forget(1, node).0 != 204 {
            assert!(Instant::now() < due, "{:?}", nodes.forget(1, node));
            std::thread::sleep(Duration::from_millis(200));
        }
        // Whoever links is the one with the higher number: each of them learns of it.
        nodes.nodes[node].broker.signal(Signal::CONT);
        let closed = client.closed(0);
        assert_eq!(closed.code, 320, "{closed:?}");
        for is_started_again in [true, false] {
            let status = nodes.nodes[node].broker.wait_for_end();
            let log = nodes.nodes[node].broker.log();
            let last = log.lines().last().unwrap_or_default();
            assert!(status.code() == Some(2) && last.contains("start it with an empty data folder"), "{status}: {log}");
            if is_started_again {
                nodes.launch(node);
            }
        }
        if node == 0 {
            // Another one in its stead, without which nobody else could be forgotten.
            let fourth = nodes.newcomer(1);
            nodes.start(fourth);
            nodes.until_copies(fourth, 3);
        }
    }
    // A founder whose disk is lost hears how it comes back.
    let lost = nodes.nodes[2].broker.data_folder();
    std::fs::remove_dir_all(&lost).unwrap();
    nodes.launch(2);
    let status = nodes.nodes[2].broker.wait_for_end();
    let log = nodes.nodes[2].broker.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(!status.success() && last.contains("with cluster_join in place of cluster_peers"), "{last}");
}

#[test]
fn a_node_that_waits_for_its_cluster_says_so_to_whoever_asks() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    nodes.until_copies(0, 3);
    (0..3).for_each(|node| nodes.kill(node));
    nodes.launch(0);
    let due = Instant::now() + PATIENCE;
    let tools = Tools::of(&nodes.nodes[0].broker);
    // Their names are in the topology, which is not known before it is decided that this node is back.
    let addresses = [1, 2].map(|node| nodes.nodes[node].address.as_str()).join(", ");
    let waits = format!("does not reach {addresses}");
    let waits = waits.as_str();
    while !tools.ctl("status").bad(69).contains(waits) {
        assert!(Instant::now() < due, "{:?}", tools.ctl("status"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let (http, amqp) = (nodes.nodes[0].http.clone(), nodes.nodes[0].broker.addr());
    for path in ["/api/health/checks/ready-to-serve-clients", "/api/overview", "/metrics"] {
        let answer = http.get(path).with(503);
        assert!(answer["booting"] == true && answer["reason"].as_str().unwrap().contains(waits), "{answer}");
    }
    assert_eq!(std::net::TcpStream::connect(amqp).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    // It lives, and is not ready.
    assert!(tools.ctl("ping").good().contains("Ping succeeded"));
    assert!(tools.diagnostics("is_booting").good().contains("is booting"));
    assert!(tools.diagnostics("check_running").bad(69).contains("check with is_booting"));
    assert!(tools.diagnostics("await_startup -t 1").bad(75).contains(waits));
    tools.ctl("stop").good();
    assert_eq!(nodes.nodes[0].broker.wait_for_end().code(), Some(0), "{}", nodes.nodes[0].broker.log());
    (0..2).for_each(|node| nodes.launch(node));
    nodes.nodes[0].broker.until_it_answers();
    assert_eq!(http.get("/api/health/checks/ready-to-serve-clients").status, 200);
    // One that is to join, and one of a cluster that was never founded.
    let third = nodes.newcomer(2);
    nodes.launch(third);
    let first = free_port().to_string();
    let other = free_port().to_string();
    let founder = nodes.add(&["--cluster-peers", &format!("{first},{other}")], &first);
    nodes.launch(founder);
    for (node, says) in [(third, "waits to join the cluster of"), (founder, "a cluster is founded once")] {
        let tools = Tools::of(&nodes.nodes[node].broker);
        let due = Instant::now() + PATIENCE;
        while !tools.ctl("status").bad(69).contains(says) {
            assert!(Instant::now() < due, "{:?}", tools.ctl("status"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn who_cannot_join_is_told_what_to_do() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    // Another one has its name.
    let twin = nodes.newcomer(1);
    let name = nodes.nodes[0].name.clone();
    let mut arguments = nodes.nodes[twin].broker.without_arguments("--node-name");
    nodes.nodes[twin].broker.set_arguments({
        let at = arguments.iter().position(|argument| argument == "--node-name").unwrap();
        arguments[at + 1] = name;
        arguments
    });
    nodes.launch(twin);
    let due = Instant::now() + PATIENCE;
    while !nodes.nodes[twin].broker.log().contains("forget_cluster_node leveret@n1") {
        assert!(Instant::now() < due, "{}", nodes.nodes[twin].broker.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let says = "leveret@n1 cannot join: node 1, leveret@n1 at ";
    let log = nodes.nodes[twin].broker.log();
    assert!(log.contains(says) && log.contains("is called the same: give this one another node_name"), "{log}");
    assert_eq!(nodes.names(1).len(), 3);
    nodes.kill(twin);
    // The address of a node is not that for clients.
    let mut lost = nodes.nodes[twin].broker.without_arguments("--none");
    let at = lost.iter().position(|argument| argument == "--cluster-join").unwrap();
    lost[at + 1] = nodes.nodes[1].broker.addr().to_string();
    nodes.nodes[twin].broker.set_arguments(lost);
    nodes.launch(twin);
    nodes.until_log(
        twin,
        "it speaks AMQP; nodes meet at the cluster_address of each, which is not the address for clients",
    );
    nodes.kill(twin);
    // The folder of a founder does not join, and settings that do not go together are refused.
    nodes.kill(0);
    let before = nodes.nodes[0].broker.without_arguments("--cluster-peers");
    let via = nodes.nodes[1].address.clone();
    let with_join = |arguments: &[String]| {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--cluster-join".to_owned(), via.clone()]);
        arguments
    };
    let without_peers: Vec<String> = {
        let at = before.iter().position(|argument| argument == "--cluster-peers").unwrap();
        before.iter().enumerate().filter(|(n, _)| *n != at && *n != at + 1).map(|(_, a)| a.clone()).collect()
    };
    let with_another_list: Vec<String> = {
        let at = before.iter().position(|argument| argument == "--cluster-peers").unwrap() + 1;
        let list = format!("{},{}", before[at], free_port());
        before.iter().enumerate().map(|(n, a)| if n == at { list.clone() } else { a.clone() }).collect()
    };
    for (arguments, says) in [
        (with_another_list, "the cluster_peers with which it began"),
        (with_join(&without_peers), "needs another, empty folder"),
        (with_join(&before), "set one of them"),
        (without_peers, "start it with"),
    ] {
        nodes.nodes[0].broker.set_arguments(arguments);
        nodes.launch(0);
        let status = nodes.nodes[0].broker.wait_for_end();
        let log = nodes.nodes[0].broker.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(!status.success() && last.contains(says), "{says}: {last}");
    }
    nodes.nodes[0].broker.set_arguments(before);
    nodes.start(0);
}

#[test]
fn who_was_never_let_in_leaves_a_folder_that_may_come_to_any_cluster() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let late = nodes.newcomer(1);
    let with = |before: &[String], name: &str, value: &str| {
        let at = before.iter().position(|argument| argument == name).unwrap() + 1;
        before.iter().enumerate().map(|(n, a)| if n == at { value } else { a }.to_owned()).collect::<Vec<String>>()
    };
    let secret = nodes.folder.path().join("another");
    std::fs::write(&secret, "quite another secret").unwrap();
    let right = nodes.nodes[late].broker.without_arguments("--none");
    let wrong = with(&right, "--cluster-secret-file", secret.to_str().unwrap());
    nodes.nodes[late].broker.set_arguments(wrong);
    nodes.launch(late);
    let due = Instant::now() + PATIENCE;
    while !nodes.nodes[late].broker.log().contains("the peer has another secret") {
        assert!(Instant::now() < due, "{}", nodes.nodes[late].broker.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let identity = nodes.nodes[late].broker.data_folder().join("identity");
    assert!(identity.exists());
    assert_eq!(nodes.nodes[late].broker.terminate().code(), Some(0), "it was told to end");
    assert!(!identity.exists(), "nothing of it is left");
    // Begun for a cluster that was never founded, and killed.
    let mut other = with(&right, "--cluster-join", &format!("127.0.0.1:1,{}", nodes.nodes[late].address));
    other.iter_mut().filter(|argument| *argument == "--cluster-join").for_each(|a| *a = "--cluster-peers".to_owned());
    nodes.nodes[late].broker.set_arguments(with(&other, "--node-name", "leveret@other"));
    nodes.launch(late);
    while !identity.exists() {
        assert!(Instant::now() < due, "{}", nodes.nodes[late].broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    nodes.kill(late);
    assert!(identity.exists());
    nodes.nodes[late].broker.set_arguments(right);
    nodes.start(late);
    nodes.until_copies(late, 4);
    assert_eq!(nodes.names(late)[3], "leveret@n4");
}

#[test]
fn leaders_are_spread_again_when_that_is_asked_for() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let publisher = Publisher::of(&nodes, 1, "kept", 0);
    nodes.kill(0);
    let leaders = |cluster: &Value| -> BTreeSet<String> {
        let partitions = cluster["partitions"].as_array().unwrap().iter();
        let queues = partitions.filter(|partition| partition["kind"] == "queues");
        queues.map(|partition| partition["leader"].as_str().unwrap_or("nobody").to_owned()).collect()
    };
    nodes.until(1, "the others lead", |cluster| {
        leaders(cluster).iter().all(|leader| leader != "nobody" && *leader != "leveret@n1")
    });
    nodes.start(0);
    nodes.until_copies(1, 3);
    assert!(nodes.nodes[2].http.post("/api/rebalance/queues", "{}").status == 204);
    nodes.until(1, "each leads one of three", |cluster| {
        leaders(cluster).len() == 3 && !leaders(cluster).contains("nobody")
    });
    let confirmed = publisher.end();
    let there = nodes.drain(0, "kept");
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
}

/// The nodes that have a queue, as one of them says, and who leads it; waits until somebody does.
fn members_of(nodes: &Nodes, node: usize, queue: &str) -> (BTreeSet<usize>, usize) {
    let due = Instant::now() + PATIENCE;
    let place = |name: &Value| nodes.nodes.iter().position(|node| *name == node.name.as_str());
    loop {
        let told = nodes.nodes[node].http.get(&format!("/api/queues/%2F/{queue}")).with(200);
        let members = told["members"].as_array().unwrap().iter().filter_map(place).collect();
        if let Some(leader) = place(&told["leader"]) {
            return (members, leader);
        }
        assert!(Instant::now() < due, "nobody leads it: {told}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_queue_with_three_copies_on_five_nodes_is_served_by_all_and_outlives_its_members() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(5);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &quorum("three", 3)).unwrap();
    client.declare(channel, &quorum("one", 1)).unwrap();
    client.declare(channel, &quorum("all", 7)).unwrap();
    let (members, leader) = members_of(&nodes, 0, "three");
    assert_eq!((members.len(), members.contains(&leader)), (3, true));
    let (sole, _) = members_of(&nodes, 0, "one");
    assert_eq!((sole.len(), members_of(&nodes, 0, "all").0.len()), (1, 5));
    let outside = (0..5).find(|node| !members.contains(node)).unwrap();
    for node in [leader, outside] {
        let due = Instant::now() + PATIENCE;
        loop {
            let told = nodes.nodes[node].http.get("/api/leveret/queues/%2F/three").with(200);
            if told["guarantee"] == "3 of 3 copies synced to disk; 2 before a confirm" {
                break;
            }
            assert!(Instant::now() < due, "{told}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    // Who has no copy serves it, also while its leader dies.
    let publisher = Publisher::to(&nodes, outside, "three", 0);
    std::thread::sleep(Duration::from_secs(1));
    nodes.kill(leader);
    let (mut client, channel) = nodes.connect(outside);
    client.confirm_select(channel).unwrap();
    let due = Instant::now() + PATIENCE;
    for count in 1.. {
        client.put(channel, "three", b"1000000");
        let Event::Confirm { tag, nack, .. } = client.event(channel) else { panic!("only answers are due") };
        assert_eq!(tag, count);
        if !nack {
            break;
        }
        assert!(Instant::now() < due, "two of three are there");
        std::thread::sleep(Duration::from_millis(50));
    }

    // Another node takes the place of one that is gone for good, unless that has what nobody else has.
    if sole.contains(&leader) {
        let (status, why) = nodes.forget(outside, leader);
        let reason = why["reason"].as_str().unwrap();
        assert!(status == 400 && reason.starts_with("only ") && reason.contains(" has queue '"), "{why}");
        nodes.start(leader);
        client = nodes.connect(outside).0;
        let channel = client.channel();
        client.delete(channel, "one", false, false).unwrap();
        nodes.kill(leader);
    }
    let due = Instant::now() + PATIENCE;
    while nodes.forget(outside, leader).0 != 204 {
        assert!(Instant::now() < due, "{:?}", nodes.forget(outside, leader));
        std::thread::sleep(Duration::from_millis(200));
    }
    nodes.until(outside, "three copies again", |cluster| {
        let partitions = cluster["partitions"].as_array().unwrap();
        let is_small = |partition: &&Value| partition["of"] == 3;
        let small: Vec<&Value> = partitions.iter().filter(is_small).collect();
        small.len() == 12 && small.iter().all(|partition| partition["in_sync"] == 3)
    });
    let (now, _) = members_of(&nodes, outside, "three");
    assert!(now.len() == 3 && !now.contains(&leader), "{now:?}");
    assert_eq!(now.intersection(&members).count(), 2, "one took the place of the one that is gone");
    let confirmed = publisher.end();
    assert!(confirmed.len() > 100, "{} confirmed", confirmed.len());

    // All of them at once: everybody finds what it had, and who leads what it has not.
    let left: Vec<usize> = (0..5).filter(|node| *node != leader).collect();
    left.iter().for_each(|node| nodes.kill(*node));
    left.iter().for_each(|node| nodes.launch(*node));
    left.iter().for_each(|node| nodes.nodes[*node].broker.until_it_answers());
    let there = nodes.drain(outside, "three");
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty() && there.contains(&1_000_000), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
}

fn dedicated(name: &str) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-dedicated-partition", true.into())];
    QueueDeclare { arguments, ..durable(name) }
}

#[test]
fn a_queue_with_a_partition_of_its_own_shares_it_with_nobody_and_outlives_its_leader() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    for name in ["own", "other"] {
        client.declare(channel, &dedicated(name)).unwrap();
    }
    client.declare(channel, &quorum("shared", 3)).unwrap();
    let partition_of = |nodes: &Nodes, node: usize, queue: &str| {
        let told = nodes.nodes[node].http.get(&format!("/api/leveret/queues/%2F/{queue}")).with(200);
        told["partition"].as_u64().unwrap()
    };
    let all: BTreeSet<u64> = ["own", "other", "shared"].map(|queue| partition_of(&nodes, 0, queue)).into();
    assert_eq!(all.len(), 3, "each lives somewhere else");
    let (members, leader) = members_of(&nodes, 0, "own");
    assert_eq!(members.len(), 3);
    let other = (leader + 1) % 3;
    let publisher = Publisher::to(&nodes, other, "own", 0);
    std::thread::sleep(Duration::from_secs(1));
    nodes.kill(leader);
    let due = Instant::now() + PATIENCE;
    while members_of(&nodes, other, "own").1 == leader {
        assert!(Instant::now() < due, "two of three are there");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_secs(1));
    let confirmed = publisher.end();
    assert!(confirmed.len() > 100, "{} confirmed", confirmed.len());
    nodes.start(leader);

    // One that is free is taken by the next, and nobody else.
    let free = partition_of(&nodes, other, "other");
    let (mut client, channel) = nodes.connect(other);
    client.delete(channel, "other", false, false).unwrap();
    client.declare(channel, &quorum("shared too", 3)).unwrap();
    assert_ne!(partition_of(&nodes, other, "shared%20too"), free);
    let taken = ["next", "behind", "last"].into_iter().find(|name| {
        client.declare(channel, &dedicated(name)).unwrap();
        partition_of(&nodes, other, name) == free
    });
    assert!(taken.is_some(), "nobody takes what is free");

    (0..3).for_each(|node| nodes.kill(node));
    (0..3).for_each(|node| nodes.launch(node));
    (0..3).for_each(|node| nodes.nodes[node].broker.until_it_answers());
    let there = nodes.drain(other, "own");
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
}

/// Waits until the group of a queue has all of its copies on these nodes, as one of them sees it.
fn until_copies_are(nodes: &Nodes, node: usize, queue: &str, on: &BTreeSet<usize>) {
    let told = nodes.nodes[node].http.get(&format!("/api/leveret/queues/%2F/{queue}")).with(200);
    nodes.until(node, &format!("copies of {queue} on {on:?}"), |cluster| {
        let partitions = cluster["partitions"].as_array().unwrap();
        let Some(of) = partitions.iter().find(|of| of["partition"] == told["partition"]) else { return false };
        let place = |member: &Value| nodes.nodes.iter().position(|node| member["node"] == node.name.as_str());
        let there: BTreeSet<usize> = of["members"].as_array().unwrap().iter().filter_map(place).collect();
        there == *on && of["of"] == on.len() && of["in_sync"] == on.len()
    });
}

#[test]
fn copies_leave_a_node_and_come_back_to_it_under_load_and_nothing_is_lost() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(4);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &quorum("three", 3)).unwrap();
    let (all, leader) = members_of(&nodes, 0, "three");
    let outside = (0..4).find(|node| !all.contains(node)).unwrap();
    let tools = Tools::of(&nodes.nodes[outside].broker);
    let queues = |line: &str| tools.run("rabbitmq-queues", line);
    // Clients of the node that is to lose its copy, and of one that never had one.
    let publishers =
        [(outside, 0), (leader, 1_000_000)].map(|(node, first)| Publisher::to(&nodes, node, "three", first));
    std::thread::sleep(Duration::from_millis(500));

    // The leader's copy goes, with its office.
    let name = nodes.nodes[leader].name.clone();
    assert_eq!(queues(&format!("-q shrink {name}")).good(), "vhost\tname\tsize\tresult\n/\tthree\t2\tok\n");
    let others: BTreeSet<usize> = all.iter().copied().filter(|node| *node != leader).collect();
    until_copies_are(&nodes, outside, "three", &others);
    assert_eq!(queues(&format!("-q shrink {name}")).good(), "", "it has none any more");
    let status = queues("-q quorum_status three --formatter json").good();
    assert!(!status.contains(&name), "{status}");

    // It comes back, and dies on its way.
    queues(&format!("add_member three {name}")).good();
    std::thread::sleep(Duration::from_millis(300));
    let mut confirmed: BTreeSet<u64> = publishers.into_iter().flat_map(Publisher::end).collect();
    assert!(confirmed.len() > 100, "{} confirmed", confirmed.len());
    nodes.kill(leader);
    nodes.start(leader);
    until_copies_are(&nodes, outside, "three", &all);

    // What it has counts: without one of the others it is needed for every confirm.
    let publisher = Publisher::to(&nodes, outside, "three", 2_000_000);
    let gone = *others.first().unwrap();
    nodes.kill(gone);
    std::thread::sleep(Duration::from_secs(2));
    let refused = queues(&format!("-q shrink {name}")).good();
    assert!(refused.contains("cannot be reached: bring it back first"), "{refused}");
    nodes.start(gone);
    until_copies_are(&nodes, outside, "three", &all);

    // To the one that never had it, off all others but one, and back again.
    queues(&format!("grow {} all", nodes.nodes[outside].name)).good();
    for node in &others {
        queues(&format!("shrink {}", nodes.nodes[*node].name)).good();
    }
    let two = BTreeSet::from([leader, outside]);
    until_copies_are(&nodes, outside, "three", &two);
    for node in &others {
        queues(&format!("grow {} all", nodes.nodes[*node].name)).good();
    }
    until_copies_are(&nodes, leader, "three", &(0..4).collect());
    confirmed.extend(publisher.end());
    // All of them at once: everybody finds what it has now, and nothing of what it had before.
    (0..4).for_each(|node| nodes.kill(node));
    (0..4).for_each(|node| nodes.launch(node));
    (0..4).for_each(|node| nodes.nodes[node].broker.until_it_answers());
    until_copies_are(&nodes, gone, "three", &(0..4).collect());
    let there = nodes.drain(gone, "three");
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), confirmed.len());
}

#[test]
fn a_node_whose_vote_a_queue_needs_is_neither_forgotten_nor_shrunk() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &quorum("two", 2)).unwrap();
    let (two, leader) = members_of(&nodes, 0, "two");
    let follower = *two.iter().find(|node| **node != leader).unwrap();
    let outside = (0..3).find(|node| !two.contains(node)).unwrap();
    let tools = Tools::of(&nodes.nodes[outside].broker);
    until_copies_are(&nodes, outside, "two", &two);

    // Its leader has not found out yet that it has lost its majority.
    nodes.kill(follower);
    let (status, answer) = nodes.forget_killed(outside, follower);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("has no leader without"), "{answer}");
    let partition = nodes.nodes[outside].http.get("/api/leveret/queues/%2F/two").with(200)["partition"].clone();
    nodes.until(outside, "two has no leader", |cluster| {
        let partitions = cluster["partitions"].as_array().unwrap();
        partitions.iter().any(|of| of["partition"] == partition && of["leader"].is_null())
    });
    let refused = tools.run("rabbitmq-queues", &format!("-q shrink {}", nodes.nodes[follower].name)).good();
    assert!(refused.contains("have no majority now"), "{refused}");
    nodes.start(follower);
    until_copies_are(&nodes, outside, "two", &two);

    // It dies when it is to go, and its group may have decided so, or not.
    tools.run("rabbitmq-queues", &format!("-q shrink {}", nodes.nodes[leader].name)).good();
    nodes.kill(leader);
    let (status, answer) = nodes.forget_killed(outside, leader);
    if status != 204 {
        assert!(status == 400 && answer.to_string().contains("has no leader without"), "{answer}");
        nodes.start(leader);
    }
    until_copies_are(&nodes, outside, "two", &BTreeSet::from([follower]));
}

#[test]
fn clients_are_let_in_once_the_queues_of_a_majority_that_is_there_have_leaders() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    let names: Vec<String> = (0..9).map(|number| format!("q{number}")).collect();
    for name in &names {
        let arguments = vec![("x-queue-leader-locator", "balanced".into()), ("x-queue-type", "quorum".into())];
        client.declare(channel, &QueueDeclare { arguments, ..durable(name) }).unwrap();
    }
    for killed in [&[0, 1, 2][..], &[1], &[0, 1, 2], &[2]] {
        killed.iter().for_each(|node| nodes.kill(*node));
        killed.iter().for_each(|node| nodes.launch(*node));
        for node in killed {
            let node = &mut nodes.nodes[*node];
            node.broker.until_it_answers();
            for name in &names {
                let queue = node.http.get(&format!("/api/queues/%2f/{name}")).with(200);
                assert_eq!(queue["state"], "running", "{queue}\n{}", node.broker.log());
            }
        }
    }
}

/// Who leads the queue `q`, as a node has heard.
fn leader_at(nodes: &Nodes, node: usize) -> String {
    let queue = nodes.nodes[node].http.get("/api/queues/%2f/q").with(200);
    queue["leader"].as_str().unwrap_or_default().to_owned()
}

/// Who holds something without a consumer, as what it fetched, or was given before its consumer was cancelled, keeps it when
/// its queue has another leader, whether that was planned or not.
#[test]
fn what_is_held_without_a_consumer_outlives_the_leader_and_goes_to_nobody_else() {
    if is_foreign() {
        return;
    }
    for is_killed in [false, true] {
        let mut nodes = Nodes::founders(3);
        let (mut first, channel) = nodes.connect(0);
        first.confirm_select(channel).unwrap();
        first.declare(channel, &durable("q")).unwrap();
        (0..40).for_each(|_| first.put(channel, "q", b"m"));
        first.confirmed(channel, 1, 40);
        let (mut holder, mine) = nodes.connect(2);
        holder.qos(mine, 10, false).unwrap();
        holder.consume(mine, "q", "c").unwrap();
        (0..10).for_each(|_| _ = holder.delivery(mine));
        holder.cancel(mine, "c").unwrap();
        (0..10).for_each(|_| assert!(holder.get(mine, "q", false).unwrap().is_some()));
        assert_eq!(leader_at(&nodes, 0), "leveret@n1");
        match is_killed {
            true => nodes.kill(0),
            false => _ = nodes.nodes[0].http.put("/api/nodes/leveret@n1/maintenance", "{}").with(204),
        }
        let due = Instant::now() + PATIENCE;
        while !["leveret@n2", "leveret@n3"].contains(&leader_at(&nodes, 1).as_str()) {
            assert!(Instant::now() < due, "nobody else leads");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (mut other, theirs) = nodes.connect(1);
        let got = std::iter::from_fn(|| other.get(theirs, "q", false).unwrap()).count();
        assert_eq!(got, 20, "the rest is somebody's, killed: {is_killed}");
        holder.ack(mine, 0, true);
        other.ack(theirs, 0, true);
        holder.counts(mine, "q").unwrap();
        other.counts(theirs, "q").unwrap();
        drop((holder, other));
        let (mut last, channel) = nodes.connect(1);
        assert!(last.get(channel, "q", true).unwrap().is_none(), "all of them were acked");
    }
}

/// An older copy of a folder knows less than its node had said that it knows.
#[test]
fn a_node_over_an_older_copy_of_its_folder_is_to_the_others_as_one_that_does_not_run() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let folder = nodes.nodes[2].broker.data_folder();
    let copy = folder.with_extension("copy");
    nodes.nodes[2].broker.terminate();
    let copied = std::process::Command::new("cp").arg("-a").args([&folder, &copy]).status().unwrap();
    assert!(copied.success());
    nodes.start(2);
    nodes.nodes[0].http.put("/api/vhosts/later", "{}").with(201);
    nodes.nodes[2].broker.terminate();
    std::fs::rename(&folder, folder.with_extension("today")).unwrap();
    std::fs::rename(&copy, &folder).unwrap();
    nodes.launch(2);
    nodes.until_log(2, "HALTED");
    nodes.until_log(2, "this node is HALTED and takes no part in its cluster");
    let due = Instant::now() + PATIENCE;
    while nodes.nodes[0].http.get("/api/nodes/leveret@n3").with(200)["running"] != false {
        assert!(Instant::now() < due, "it takes part: {}", nodes.nodes[2].broker.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    // It gets no queue to lead, and may be forgotten.
    let (mut client, channel) = nodes.connect(0);
    client.confirm_select(channel).unwrap();
    let names: Vec<String> = (0..9).map(|number| format!("q{number}")).collect();
    for name in &names {
        let arguments = vec![("x-queue-leader-locator", "balanced".into()), ("x-queue-type", "quorum".into())];
        client.declare(channel, &QueueDeclare { arguments, ..durable(name) }).unwrap();
        client.put(channel, name, b"m");
    }
    client.confirmed(channel, 1, 9);
    assert_eq!(nodes.forget(0, 2).0, 204);
}

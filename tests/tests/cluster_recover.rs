//! A cluster that has lost the disks of most of its nodes goes on with one that is left.
#![allow(clippy::unwrap_used)]

use clients::broker::{free_port, is_foreign};
use clients::tools::{Told, run_with_input};
use clients::{Broker, Client, Http, QueueDeclare};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long something may take. Far above what it takes.
const PATIENCE: Duration = Duration::from_secs(60);
const PARTITIONS: u64 = 3;
const MESSAGES: u64 = 200;

struct Node {
    broker: Broker,
    http: Http,
    address: String,
}

struct Nodes {
    nodes: Vec<Node>,
    folder: tempfile::TempDir,
}

impl Nodes {
    /// Three that founded a cluster.
    fn three() -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "a secret of many nodes\n").unwrap();
        let mut nodes = Nodes { nodes: Vec::new(), folder };
        let mut addresses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        addresses.sort_unstable();
        let peers = addresses.join(",");
        addresses.iter().for_each(|address| _ = nodes.add(&["--cluster-peers", &peers], address));
        nodes.nodes.iter_mut().for_each(|node| node.broker.launch());
        nodes.nodes.iter_mut().for_each(|node| node.broker.until_it_answers());
        nodes
    }

    fn add(&mut self, arguments: &[&str], address: &str) -> usize {
        let (port, name) = (free_port(), format!("leveret@n{}", self.nodes.len() + 1));
        let (secret, management) = (self.folder.path().join("secret"), port.to_string());
        let partitions = PARTITIONS.to_string();
        let own = ["--cluster-address", address, "--cluster-secret-file", secret.to_str().unwrap()];
        let named = ["--node-name", &name, "--partitions", &partitions, "--management", &management];
        let broker = Broker::not_started(&[arguments, &own, &named].concat());
        self.nodes.push(Node { broker, http: Http::new(port), address: address.to_owned() });
        self.nodes.len() - 1
    }

    /// One with an empty folder that joins over another.
    fn join(&mut self, via: usize) -> usize {
        let (via, address) = (self.nodes[via].address.clone(), free_port().to_string());
        let node = self.add(&["--cluster-join", &via], &address);
        self.start(node);
        node
    }

    fn start(&mut self, node: usize) {
        self.nodes[node].broker.launch();
        self.nodes[node].broker.until_it_answers();
    }

    fn connect(&self, node: usize) -> (Client, u16) {
        let mut client = self.nodes[node].broker.connect();
        let channel = client.channel();
        (client, channel)
    }

    /// Runs `leveret cluster recover` over the folder of a node.
    fn recover(&self, node: usize, words: &[&str]) -> Told {
        let data = self.nodes[node].broker.data_folder();
        let data = data.to_str().unwrap();
        run_with_input(data, "leveret", &[&["cluster", "recover", data], words].concat(), "")
    }

    fn status(&self, node: usize) -> Value {
        self.nodes[node].http.get("/api/leveret/cluster").with(200)
    }

    /// Waits until all partitions that every node should have are on so many, and each of these has all of them, as
    /// this node sees it.
    fn until_copies(&self, node: usize, copies: usize) {
        let due = Instant::now() + PATIENCE;
        let is_whole = |partition: &&Value| {
            let has_all = |member: &Value| member["lag"] == 0 && member["term"] == partition["term"];
            let is_everywhere = partition["partition"].as_u64().unwrap() <= PARTITIONS;
            let has_copies = partition["in_sync"] == copies && partition["of"] == copies;
            is_everywhere && has_copies && partition["members"].as_array().unwrap().iter().all(has_all)
        };
        loop {
            let cluster = self.status(node);
            let whole = cluster["partitions"].as_array().unwrap().iter().filter(is_whole).count();
            // The topology's is one more.
            if whole as u64 == PARTITIONS + 1 {
                return;
            }
            assert!(Instant::now() < due, "{cluster}\n{}", self.nodes[node].broker.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn until_log(&self, node: usize, what: &str) {
        let due = Instant::now() + PATIENCE;
        while !self.nodes[node].broker.log().contains(what) {
            assert!(Instant::now() < due, "no '{what}' in\n{}", self.nodes[node].broker.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn quorum(name: &str, copies: i32) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", copies.into())];
    QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }
}

/// Publishes these numbers over a channel that has not published; all are confirmed when it returns.
fn publish(client: &mut Client, channel: u16, queue: &str, numbers: std::ops::Range<u64>) {
    client.confirm_select(channel).unwrap();
    let count = numbers.end - numbers.start;
    numbers.for_each(|number| client.put(channel, queue, number.to_string().as_bytes()));
    client.confirmed(channel, 1, count);
}

fn drain(client: &mut Client, channel: u16, queue: &str) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    while let Some(got) = client.get(channel, queue, true).unwrap() {
        all.insert(String::from_utf8_lossy(&got.body).parse().unwrap());
    }
    all
}

#[test]
fn one_node_of_three_goes_on_with_all_that_was_confirmed_and_becomes_three_again() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::three();
    nodes.until_copies(0, 3);
    let queues = ["a", "b", "c"];
    for (node, queue) in queues.iter().enumerate() {
        let (mut client, channel) = nodes.connect(node);
        client.declare(channel, &quorum(queue, 3)).unwrap();
        publish(&mut client, channel, queue, 0..MESSAGES);
    }
    let (mut client, channel) = nodes.connect(0);
    let settled: BTreeSet<u64> = (0..10).collect();
    settled.iter().for_each(|_| assert!(client.get(channel, "a", true).unwrap().is_some()));
    // A queue of one copy on each node: two of three are lost.
    let soles: Vec<String> = (0..3).map(|number| format!("sole-{number}")).collect();
    soles.iter().for_each(|name| _ = client.declare(channel, &quorum(name, 1)).unwrap());
    let held = nodes.recover(2, &[]).bad(3);
    assert!(held.contains("is in use by process"), "{held}");
    nodes.until_copies(0, 3);
    (0..3).for_each(|node| nodes.nodes[node].broker.kill());
    let kept = nodes.folder.path().join("old disk of the second");
    std::fs::rename(nodes.nodes[1].broker.data_folder(), &kept).unwrap();
    std::fs::remove_dir_all(nodes.nodes[0].broker.data_folder()).unwrap();

    // It says what it would do, and does nothing.
    let looked = nodes.recover(2, &[]);
    assert_eq!(looked.code, 1, "{looked:?}");
    for said in [
        "node 3 (leveret@n3) of cluster ",
        "given up for ever: node 1 (leveret@n1) at ",
        "given up for ever: node 2 (leveret@n2) at ",
        "partition 0 ",
        "nothing was changed. If none of the nodes",
    ] {
        assert!(looked.out.contains(said), "{said}: {}", looked.out);
    }
    assert_eq!(looked.out.matches("begins EMPTY").count(), 2, "{}", looked.out);
    nodes.nodes[2].broker.launch();
    nodes.until_log(2, "it waits for a majority of the 3 nodes of its cluster");
    nodes.nodes[2].broker.kill();

    let done = nodes.recover(2, &["--yes"]).good();
    assert!(done.contains("done: the cluster is ") && done.contains("messages are kept"), "{done}");
    assert!(nodes.recover(2, &["--yes"]).good().contains("nothing is to be done"));

    // With the settings that it had.
    nodes.start(2);
    let (mut client, channel) = nodes.connect(2);
    // What was settled everywhere stays so.
    let left: BTreeSet<u64> = (0..MESSAGES).filter(|number| !settled.contains(number)).collect();
    assert_eq!(drain(&mut client, channel, "a"), left);
    assert_eq!(drain(&mut client, channel, "b"), (0..MESSAGES).collect());
    // What begins anew takes messages.
    for name in &soles {
        client.put(channel, name, b"1");
        let due = Instant::now() + PATIENCE;
        while client.get(channel, name, true).unwrap().is_none() {
            assert!(Instant::now() < due, "{name} takes nothing");
        }
    }
    let names = nodes.nodes[2].http.get("/api/nodes").with(200);
    assert_eq!(names.as_array().unwrap().len(), 1, "{names}");

    // A node that was given up comes back with its old disk, with its own settings.
    std::fs::rename(&kept, nodes.nodes[1].broker.data_folder()).unwrap();
    nodes.nodes[1].broker.launch();
    let status = nodes.nodes[1].broker.wait_for_end();
    let log = nodes.nodes[1].broker.log();
    let last = log.lines().last().unwrap_or_default();
    assert!(status.code() == Some(2) && last.contains("which went on as another one"), "{status}: {log}");
    assert!(last.contains("start it with an empty data folder and with cluster_join"), "{last}");
    // So does one with a new disk and the settings from before.
    nodes.nodes[0].broker.launch();
    nodes.until_log(0, "which went on as another one");
    nodes.until_log(2, "went on as another one");
    nodes.nodes[0].broker.kill();
    assert_eq!(client.get(channel, "b", true).unwrap().map(|got| got.body), None, "it serves all the while");

    let (fourth, fifth) = (nodes.join(2), nodes.join(2));
    nodes.until_copies(2, 3);
    for number in [4, 5] {
        nodes.until_log(2, &format!("leveret@n{number} joined as node {number}"));
    }
    // Any two of the three go on.
    nodes.nodes[2].broker.kill();
    let (mut client, channel) = nodes.connect(fifth);
    assert_eq!(drain(&mut client, channel, "c"), (0..MESSAGES).collect());
    publish(&mut client, channel, "c", 0..10);
    drop(client);
    nodes.start(2);
    nodes.nodes[fourth].broker.kill();
    let (mut client, channel) = nodes.connect(2);
    assert_eq!(drain(&mut client, channel, "c"), (0..10).collect());
}

//! Nodes of one cluster, each a broker of its own over its own folder: founded, joined, killed and started again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::free_port;
use crate::verbs::QueueDeclare;
use crate::{Broker, Client, Http};

/// How long something may take. Far above what it takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Partitions of queues that every node has.
pub const PARTITIONS: u64 = 3;

/// One of them.
pub struct Node {
    /// Its process and its data folder.
    pub broker: Broker,
    /// Its management API.
    pub http: Http,
    /// What it is called.
    pub name: String,
    /// Where other nodes reach it.
    pub address: String,
}

/// All of them, by the order in which they were added; node `n` is called `leveret@n(n+1)`.
pub struct Nodes {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// A folder of the test, with the secret in it.
    pub folder: tempfile::TempDir,
}

impl Nodes {
    /// A secret, and no node yet.
    pub fn none() -> Nodes {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("secret"), "a secret of many nodes\n").expect("the folder takes a file");
        Nodes { nodes: Vec::new(), folder }
    }

    /// So many that founded a cluster, and answer.
    pub fn founders(count: usize) -> Nodes {
        let mut nodes = Nodes::none();
        let mut addresses: Vec<String> = (0..count).map(|_| free_port().to_string()).collect();
        addresses.sort_unstable();
        let peers = addresses.join(",");
        for address in addresses {
            nodes.add(&["--cluster-peers", &peers], &address);
        }
        nodes.nodes.iter_mut().for_each(|node| node.broker.launch());
        nodes.nodes.iter_mut().for_each(|node| node.broker.until_it_answers());
        nodes
    }

    /// One more with these arguments and this address, which is not started. Returns its place.
    pub fn add(&mut self, arguments: &[&str], address: &str) -> usize {
        let (port, name) = (free_port(), format!("leveret@n{}", self.nodes.len() + 1));
        let secret = self.folder.path().join("secret").display().to_string();
        let (partitions, management) = (PARTITIONS.to_string(), port.to_string());
        let own = ["--cluster-address", address, "--cluster-secret-file", &secret, "--node-name", &name];
        let own = [arguments, &own, &["--partitions", &partitions, "--management", &management]].concat();
        let broker = Broker::not_started(&own);
        self.nodes.push(Node { broker, http: Http::new(port), name, address: address.to_owned() });
        self.nodes.len() - 1
    }

    /// One with an empty folder that is to join over another, and is not started.
    pub fn newcomer(&mut self, via: usize) -> usize {
        let (via, address) = (self.nodes[via].address.clone(), free_port().to_string());
        self.add(&["--cluster-join", &via], &address)
    }

    /// Kills its process.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].broker.kill();
    }

    /// Starts its process, and waits for nothing.
    pub fn launch(&mut self, node: usize) {
        self.nodes[node].broker.launch();
    }

    /// Starts it, and waits until it answers.
    pub fn start(&mut self, node: usize) {
        self.launch(node);
        self.nodes[node].broker.until_it_answers();
    }

    /// A client of a node, with a channel.
    pub fn connect(&self, node: usize) -> (Client, u16) {
        let mut client = self.nodes[node].broker.connect();
        let channel = client.channel();
        (client, channel)
    }

    /// Waits until what a node says of the cluster is so.
    pub fn until(&self, node: usize, what: &str, is_so: impl Fn(&Value) -> bool) {
        let due = Instant::now() + PATIENCE;
        loop {
            let cluster = self.nodes[node].http.get("/api/leveret/cluster");
            if cluster.status == 200 && is_so(&cluster.json()) {
                return;
            }
            let (told, log) = (cluster.text, self.nodes[node].broker.log());
            assert!(Instant::now() < due, "{what}: not within {PATIENCE:?}: {told}\n{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until every group has so many copies, all in sync, as this node sees it.
    pub fn until_copies(&self, node: usize, copies: u64) {
        self.until(node, &format!("{copies} copies of everything"), |cluster| {
            let partitions = cluster["partitions"].as_array().expect("it lists them");
            partitions.len() > 1 && partitions.iter().all(|p| p["of"] == copies && p["in_sync"] == copies)
        });
    }

    /// Waits until a node's log says this.
    pub fn until_log(&self, node: usize, what: &str) {
        let due = Instant::now() + PATIENCE;
        while !self.nodes[node].broker.log().contains(what) {
            assert!(Instant::now() < due, "no '{what}' in\n{}", self.nodes[node].broker.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// All that is in a queue of numbers, taken out over this node.
    pub fn drain(&self, node: usize, queue: &str) -> BTreeSet<u64> {
        let (mut client, channel) = self.connect(node);
        let mut all = BTreeSet::new();
        while let Some(got) = client.get(channel, queue, true).expect("the queue is there") {
            all.insert(String::from_utf8_lossy(&got.body).parse().expect("messages are numbers"));
        }
        all
    }
}

/// A quorum queue with as many copies as it has without a word.
pub fn durable(name: &str) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", "quorum".into())];
    QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }
}

/// A durable classic queue: one copy.
pub fn classic(name: &str) -> QueueDeclare<'_> {
    QueueDeclare { arguments: Vec::new(), ..durable(name) }
}

/// A quorum queue that asks for so many copies.
pub fn quorum(name: &str, copies: i32) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", copies.into())];
    QueueDeclare { arguments, ..durable(name) }
}

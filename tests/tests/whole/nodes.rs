//! Three processes, or more, that are one broker, each with its management API.

use clients::broker::free_port;
use clients::{Broker, Client, Http, QueueDeclare};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long something may take to be known everywhere. Far above what it takes.
pub(crate) const KNOWN_WITHIN: Duration = Duration::from_secs(15);

/// See the module.
pub(crate) struct Nodes {
    pub brokers: Vec<Broker>,
    pub http: Vec<Http>,
    pub names: Vec<String>,
    /// Where they reach each other.
    pub addresses: Vec<String>,
    folder: tempfile::TempDir,
}

impl Nodes {
    /// As many that serve, with these arguments more for each.
    pub(crate) fn up<const COUNT: usize>(more: &[&[&str]; COUNT]) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "a secret of the nodes\n").unwrap();
        let mut addresses: Vec<String> = (0..COUNT).map(|_| free_port().to_string()).collect();
        // Nodes are numbered in the order of their addresses, and listed in that of their numbers.
        addresses.sort_unstable();
        let (peers, secret) = (addresses.join(","), secret.to_str().unwrap());
        let names: Vec<String> = (1..=COUNT).map(|number| format!("leveret@n{number}")).collect();
        let ports: Vec<_> = (0..COUNT).map(|_| free_port()).collect();
        let mut brokers: Vec<Broker> = (0..COUNT)
            .map(|node| {
                let management = ports[node].to_string();
                let arguments = [
                    "--cluster-peers",
                    &peers,
                    "--cluster-address",
                    &addresses[node],
                    "--cluster-secret-file",
                    secret,
                    "--node-name",
                    &names[node],
                    "--partitions",
                    "4",
                    "--management",
                    &management,
                ];
                Broker::not_started(&[&arguments[..], more[node]].concat())
            })
            .collect();
        brokers.iter_mut().for_each(Broker::launch);
        brokers.iter_mut().for_each(Broker::until_it_answers);
        let http = ports.into_iter().map(Http::new).collect();
        let nodes = Nodes { brokers, http, names, addresses: addresses.clone(), folder };
        // A node that has let clients in may not have heard of the others' names yet.
        for node in 0..COUNT {
            nodes.until("all nodes run", || (nodes.running(node) == nodes.names).then_some(()));
        }
        nodes
    }

    /// The file with their secret.
    pub(crate) fn secret(&self) -> PathBuf {
        self.folder.path().join("secret")
    }

    pub(crate) fn connect(&self, node: usize) -> (Client, u16) {
        let mut client = self.brokers[node].connect();
        let channel = client.channel();
        (client, channel)
    }

    /// The names of the nodes that run, as one of them says.
    pub(crate) fn running(&self, node: usize) -> Vec<String> {
        let nodes = self.http[node].get("/api/nodes").with(200);
        let running = nodes.as_array().unwrap().iter().filter(|node| node["running"] == true);
        running.map(|node| node["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Looks until something is there.
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let due = Instant::now() + KNOWN_WITHIN;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < due, "{what}: not within {KNOWN_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A quorum queue with a copy on each node.
pub(crate) fn replicated(name: &str) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", "quorum".into())];
    QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }
}

/// One field of each item, in order.
pub(crate) fn fields<'a>(list: &'a Value, field: &str) -> Vec<&'a Value> {
    list.as_array().unwrap_or_else(|| panic!("a list: {list}")).iter().map(|item| &item[field]).collect()
}

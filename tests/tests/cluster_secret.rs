//! The secret of a cluster changes: one node after the other while it serves, or all of them at once.
#![allow(clippy::unwrap_used)]

use clients::broker::is_foreign;
use clients::nodes::{PATIENCE, durable};
use clients::tools::run_with_input;
use clients::{Event, Nodes};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const OLD: &str = "a secret of many nodes\n";
const NEW: &str = "quite another secret\n";

/// What these tests do with the secrets of a cluster's nodes.
trait Secrets {
    fn file(&self, node: usize, what: &str) -> PathBuf;
    /// The node has files of its own from its next start on.
    fn give_own_files(&mut self, node: usize);
    fn write(&self, node: usize, now: &str, before: &str);
    /// The node reads its files, and has done so afterwards.
    fn read_again(&self, node: usize);
    fn until_all_are_linked(&self);
}

impl Secrets for Nodes {
    fn file(&self, node: usize, what: &str) -> PathBuf {
        self.folder.path().join(format!("{what}-{node}"))
    }

    fn give_own_files(&mut self, node: usize) {
        self.write(node, OLD, "");
        let (now, before) = (self.file(node, "now"), self.file(node, "before"));
        let mut arguments = self.nodes[node].broker.without_arguments("--none");
        let at = arguments.iter().position(|argument| argument == "--cluster-secret-file").unwrap();
        arguments[at + 1] = now.display().to_string();
        arguments.extend(["--cluster-secret-file-before".to_owned(), before.display().to_string()]);
        self.nodes[node].broker.set_arguments(arguments);
    }

    fn write(&self, node: usize, now: &str, before: &str) {
        for (what, text) in [("now", now), ("before", before)] {
            let path = self.file(node, what);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    fn read_again(&self, node: usize) {
        const SAYS: &str = "the secret of the cluster was read again";
        let count = || self.nodes[node].broker.log().matches(SAYS).count();
        let before = count();
        self.nodes[node].broker.signal(Signal::HUP);
        let due = Instant::now() + PATIENCE;
        while count() == before {
            assert!(Instant::now() < due, "{}", self.nodes[node].broker.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn until_all_are_linked(&self) {
        for node in 0..self.nodes.len() {
            self.until_copies(node, 3);
        }
    }
}

#[test]
fn the_secret_changes_on_one_node_after_the_other_and_each_is_linked_all_along() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::none();
    let mut addresses: Vec<String> = (0..3).map(|_| clients::broker::free_port().to_string()).collect();
    addresses.sort_unstable();
    let peers = addresses.join(",");
    for address in addresses {
        let node = nodes.add(&["--cluster-peers", &peers], &address);
        nodes.give_own_files(node);
    }
    (0..3).for_each(|node| nodes.launch(node));
    nodes.nodes.iter_mut().for_each(|node| node.broker.until_it_answers());
    let (mut client, channel) = nodes.connect(2);
    client.declare(channel, &durable("kept")).unwrap();
    client.confirm_select(channel).unwrap();
    let mut confirmed = BTreeSet::new();
    let mut publish = |at: &str| {
        let number = confirmed.len() as u64;
        client.put(channel, "kept", number.to_string().as_bytes());
        let event = client.event(channel);
        assert!(matches!(event, Event::Confirm { nack: false, .. }), "{at}: {event:?}");
        confirmed.insert(number);
    };
    publish("before");
    // Node 1 calls node 0 and is called by node 2: whoever has both secrets believes it with the old one, and calls
    // it with the old one where it does not know the new one.
    for changed in [0, 2] {
        nodes.write(changed, NEW, OLD);
        nodes.read_again(changed);
        nodes.kill(1);
        publish("while one is away");
        nodes.start(1);
        nodes.until_all_are_linked();
        publish("with a node that has the old one alone");
    }
    // The last one changes by a start.
    nodes.kill(1);
    nodes.write(1, NEW, OLD);
    nodes.start(1);
    nodes.until_all_are_linked();
    publish("all have both");
    // The old one is forgotten.
    for node in 0..3 {
        nodes.write(node, NEW, "");
        nodes.read_again(node);
    }
    nodes.kill(1);
    nodes.write(1, OLD, "");
    nodes.launch(1);
    nodes.until_log(1, "the peer has another secret");
    publish("one has the old secret, which counts no more");
    nodes.kill(1);
    nodes.write(1, NEW, "");
    nodes.start(1);
    nodes.until_all_are_linked();
    // So is a node that wants to join with it.
    let late = nodes.newcomer(0);
    nodes.launch(late);
    nodes.until_log(late, "the peer has another secret");
    nodes.kill(late);
    std::fs::write(nodes.folder.path().join("secret"), NEW).unwrap();
    nodes.start(late);
    nodes.until(late, "four nodes", |cluster| cluster["nodes"].as_array().is_some_and(|all| all.len() == 4));
    publish("four nodes");
    assert_eq!(nodes.drain(1, "kept"), confirmed);
}

#[test]
fn founders_that_were_all_stopped_go_on_with_another_secret() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &durable("kept")).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "kept", b"1");
    assert!(matches!(client.event(channel), Event::Confirm { nack: false, .. }));
    (0..3).for_each(|node| nodes.kill(node));
    // One that has it alone waits for the others, and says why.
    nodes.give_own_files(1);
    nodes.write(1, NEW, "");
    (0..3).for_each(|node| nodes.launch(node));
    nodes.nodes[0].broker.until_it_answers();
    nodes.until_log(1, "the peer has another secret");
    (0..3).for_each(|node| nodes.kill(node));
    std::fs::write(nodes.folder.path().join("secret"), NEW).unwrap();
    (0..3).for_each(|node| nodes.launch(node));
    (0..3).for_each(|node| nodes.nodes[node].broker.until_it_answers());
    nodes.until_all_are_linked();
    assert_eq!(nodes.drain(2, "kept"), BTreeSet::from([1]));
    // Who lost its disk, or a part of it, hears what it would have heard before.
    let refused = |nodes: &mut Nodes| {
        nodes.launch(2);
        let status = nodes.nodes[2].broker.wait_for_end();
        assert_eq!(status.code(), Some(2));
        nodes.nodes[2].broker.log().lines().last().unwrap_or_default().to_owned()
    };
    nodes.kill(2);
    let (data, aside) = (nodes.nodes[2].broker.data_folder(), nodes.file(2, "aside"));
    std::fs::rename(&data, &aside).unwrap();
    std::fs::create_dir(&data).unwrap();
    let line = refused(&mut nodes);
    assert!(line.contains("another data folder"), "{line}");
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();
    let (record, kept) = (data.join("cluster"), nodes.file(2, "cluster"));
    std::fs::rename(&record, &kept).unwrap();
    let line = refused(&mut nodes);
    assert!(line.contains("--cluster-of"), "{line}");
    std::fs::rename(&kept, &record).unwrap();
    nodes.start(2);
    nodes.until_all_are_linked();
    // Two disks are lost for good. The last node goes on, with the settings that it had.
    (0..3).for_each(|node| nodes.kill(node));
    let path = data.to_str().unwrap();
    run_with_input(path, "leveret", &["cluster", "recover", path, "--yes"], "").good();
    for _ in 0..2 {
        nodes.start(2);
        nodes.nodes[2].broker.until_it_answers();
        nodes.kill(2);
    }
    // And with yet another secret.
    std::fs::write(nodes.folder.path().join("secret"), OLD).unwrap();
    nodes.start(2);
    nodes.nodes[2].broker.until_it_answers();
}

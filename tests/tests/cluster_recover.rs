//! A cluster that has lost the disks of most of its nodes goes on with one that is left.
#![allow(clippy::unwrap_used)]

use clients::broker::is_foreign;
use clients::nodes::{PARTITIONS, PATIENCE, quorum};
use clients::tools::{Told, command, run_with_input};
use clients::{Client, Nodes};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Instant;

const MESSAGES: u64 = 200;

/// Runs `leveret cluster recover` over the folder of a node.
fn recover(nodes: &Nodes, node: usize, words: &[&str]) -> Told {
    let data = nodes.nodes[node].broker.data_folder();
    let data = data.to_str().unwrap();
    run_with_input(data, "leveret", &[&["cluster", "recover", data], words].concat(), "")
}

/// Waits until all partitions that every node should have are on so many, and each of these has all of them, as a node
/// sees it.
fn until_whole(nodes: &Nodes, node: usize, copies: usize) {
    let is_whole = |partition: &&Value| {
        let has_all = |member: &Value| member["lag"] == 0 && member["term"] == partition["term"];
        let is_everywhere = partition["partition"].as_u64().unwrap() <= PARTITIONS;
        let has_copies = partition["in_sync"] == copies && partition["of"] == copies;
        is_everywhere && has_copies && partition["members"].as_array().unwrap().iter().all(has_all)
    };
    nodes.until(node, &format!("{copies} whole copies"), |cluster| {
        let whole = cluster["partitions"].as_array().unwrap().iter().filter(is_whole).count();
        // The topology's is one more.
        whole as u64 == PARTITIONS + 1
    });
}

/// One that joins over another.
fn join(nodes: &mut Nodes, via: usize) -> usize {
    let node = nodes.newcomer(via);
    nodes.start(node);
    node
}

/// Publishes these numbers over a channel that has not published; all are confirmed when it returns.
fn publish(client: &mut Client, channel: u16, queue: &str, numbers: std::ops::Range<u64>) {
    client.confirm_select(channel).unwrap();
    let count = numbers.end - numbers.start;
    numbers.for_each(|number| client.put(channel, queue, number.to_string().as_bytes()));
    client.confirmed(channel, 1, count);
}

#[test]
fn one_node_of_three_goes_on_with_all_that_was_confirmed_and_becomes_three_again() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    until_whole(&nodes, 0, 3);
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
    for (node, name) in soles.iter().enumerate() {
        let (mut client, channel) = nodes.connect(node);
        client.declare(channel, &quorum(name, 1)).unwrap();
    }
    let held = recover(&nodes, 2, &[]).bad(3);
    assert!(held.contains("is in use by process"), "{held}");
    until_whole(&nodes, 0, 3);
    (0..3).for_each(|node| nodes.nodes[node].broker.kill());
    let kept = nodes.folder.path().join("old disk of the second");
    std::fs::rename(nodes.nodes[1].broker.data_folder(), &kept).unwrap();
    std::fs::remove_dir_all(nodes.nodes[0].broker.data_folder()).unwrap();

    // It says what it would do, and does nothing.
    let looked = recover(&nodes, 2, &[]);
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

    let done = recover(&nodes, 2, &["--yes"]).good();
    assert!(done.contains("done: the cluster is ") && done.contains("messages are kept"), "{done}");
    assert!(recover(&nodes, 2, &["--yes"]).good().contains("nothing is to be done"));

    // With the settings that it had.
    nodes.start(2);
    let (mut client, channel) = nodes.connect(2);
    // What was settled everywhere stays so.
    let left: BTreeSet<u64> = (0..MESSAGES).filter(|number| !settled.contains(number)).collect();
    assert_eq!(nodes.drain(2, "a"), left);
    assert_eq!(nodes.drain(2, "b"), (0..MESSAGES).collect());
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

    let (fourth, fifth) = (join(&mut nodes, 2), join(&mut nodes, 2));
    until_whole(&nodes, 2, 3);
    for number in [4, 5] {
        nodes.until_log(2, &format!("leveret@n{number} joined as node {number}"));
    }
    // Any two of the three go on.
    nodes.nodes[2].broker.kill();
    assert_eq!(nodes.drain(fifth, "c"), (0..MESSAGES).collect());
    let (mut client, channel) = nodes.connect(fifth);
    publish(&mut client, channel, "c", 0..10);
    drop(client);
    nodes.start(2);
    nodes.nodes[fourth].broker.kill();
    assert_eq!(nodes.drain(2, "c"), (0..10).collect());
}

/// What became of a folder is told where standard output takes nothing, too; and where a file that says whose it is is
/// damaged, what is told to do can be done.
#[test]
fn what_is_told_of_a_folder_is_so_though_its_small_files_are_damaged_or_nothing_can_be_written() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &quorum("a", 3)).unwrap();
    publish(&mut client, channel, "a", 0..MESSAGES);
    until_whole(&nodes, 0, 3);
    (0..3).for_each(|node| nodes.kill(node));
    let data = nodes.nodes[2].broker.data_folder();
    let repair = |words: &[&str]| {
        let data = data.to_str().unwrap();
        run_with_input(data, "leveret", &[&["repair", data], words].concat(), "")
    };
    let file = |name: &str| data.join(name);
    let rot = |name: &str, bytes: &[usize]| {
        let whole = std::fs::read(file(name)).unwrap();
        let mut rotten = whole.clone();
        bytes.iter().for_each(|at| rotten[*at] ^= 0x10);
        std::fs::write(file(name), rotten).unwrap();
        whole
    };
    // Nothing makes these anew, and no command names another one that would.
    for (name, is_gone) in [("identity", false), ("identity", true)] {
        let whole = rot(name, &[40, 41, 42]);
        if is_gone {
            std::fs::remove_file(file(name)).unwrap();
        }
        for yes in [&[][..], &["--yes"]] {
            let told = recover(&nodes, 2, yes).bad(1);
            assert!(told.contains("no command makes that file anew") && told.contains(name), "{name}: {told}");
            assert!(!told.contains("leveret repair"), "{name}: {told}");
        }
        let told = repair(&["--node-name", "leveret@n3"]).bad(1);
        let is_told = told.contains("no command makes that file anew");
        assert!(is_told && told.contains("leveret cluster recover"), "{name}: {told}");
        std::fs::write(file(name), whole).unwrap();
    }
    // A sound folder is one of which nothing is damaged, though others have what is in it.
    assert!(repair(&[]).good().contains("nothing is damaged"));
    // This one by the folder of another node, and no start makes one over what is there.
    for is_gone in [false, true] {
        let whole = rot("cluster", &[40, 41, 42]);
        if is_gone {
            std::fs::remove_file(file("cluster")).unwrap();
        }
        nodes.nodes[2].broker.launch();
        let status = nodes.nodes[2].broker.wait_for_end();
        let log = nodes.nodes[2].broker.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(
            status.code() == Some(2) && last.contains("is that of node 3 of a cluster with other nodes"),
            "{status}: {log}"
        );
        assert_eq!(file("cluster").exists(), !is_gone);
        assert!(repair(&[]).bad(1).contains("--cluster-of DIR"));
        let Told { out: told, code, .. } = recover(&nodes, 2, &[]);
        assert!(
            code == 1 && told.contains("the file `cluster` is ") && told.contains("given up for ever: node 1"),
            "{told}"
        );
        let other = nodes.nodes[1].broker.data_folder();
        let told = repair(&["--cluster-of", other.to_str().unwrap()]).good();
        assert!(told.contains("by that of node 2") && told.contains("the broker may start"), "{told}");
        assert_eq!(std::fs::read(file("cluster")).unwrap(), whole);
    }
    // These are: by a checksum, by the list of nodes, and by taking all steps again.
    for (name, bytes) in [("identity", &[40][..]), ("node", &[40, 41, 42])] {
        rot(name, bytes);
        let told = recover(&nodes, 2, &["--yes"]).bad(1);
        assert!(told.contains("run `leveret repair ") && told.contains("and then this again"), "{told}");
        let told = repair(&[]).good();
        assert!(told.contains("repaired; the broker may start"), "{told}");
    }
    // And where the others are lost it is not needed.
    std::fs::remove_file(file("cluster")).unwrap();
    std::fs::write(file("alone"), "rubbish").unwrap();
    assert!(repair(&[]).good().contains("run `leveret cluster recover` with --yes again"));

    let folder = data.to_str().unwrap();
    let mut full = command(folder, "leveret", &["cluster", "recover", folder, "--yes"]);
    let full = full.stdout(std::fs::File::create("/dev/full").unwrap()).output().unwrap();
    let told = String::from_utf8(full.stderr).unwrap();
    assert!(full.status.code() == Some(0) && told.contains("done: the cluster is "), "{told}");
    assert!(recover(&nodes, 2, &["--yes"]).good().contains("nothing is to be done"));
    nodes.start(2);
    assert_eq!(nodes.drain(2, "a"), (0..MESSAGES).collect());
}

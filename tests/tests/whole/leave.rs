//! A node goes out of its cluster while it runs, and another one comes, by one command each.

use crate::nodes::{KNOWN_WITHIN, Nodes, replicated};
use clients::api::reason;
use clients::broker::{binary, free_port, is_foreign};
use clients::{Broker, QueueDeclare, Tools};
use serde_json::json;
use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_node_leaves_with_one_command_and_another_joins_with_one() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    let names: Vec<String> = (0..6).map(|number| format!("q{number}")).collect();
    client.confirm_select(channel).unwrap();
    for name in &names {
        client.declare(channel, &replicated(name)).unwrap();
    }
    // Of what nobody uses any more each node has some alone: that holds nobody back.
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", 1.into())];
    client
        .declare(channel, &QueueDeclare { name: "sole", durable: true, arguments, ..QueueDeclare::default() })
        .unwrap();
    client.delete(channel, "sole", false, false).unwrap();
    for round in 0..20 {
        names.iter().for_each(|name| client.put(channel, name, format!("{round}").as_bytes()));
    }
    client.confirmed(channel, 1, 120);
    // What only the leaver has goes to another node with all that is in it: of one copy, and of two.
    let (mut on_leaver, own) = nodes.connect(2);
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", 2.into())];
    on_leaver.declare(own, &QueueDeclare { name: "classic", durable: true, ..QueueDeclare::default() }).unwrap();
    on_leaver.declare(own, &QueueDeclare { name: "two", durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    on_leaver.confirm_select(own).unwrap();
    for number in 0..50 {
        ["classic", "two"].iter().for_each(|name| on_leaver.put(own, name, format!("{number}").as_bytes()));
    }
    on_leaver.confirmed(own, 1, 100);
    let home = nodes.http[0].get("/api/queues/%2f/classic").with(200);
    assert_eq!(home["node"], "leveret@n3");
    // Two do not leave at once.
    Tools::of(&nodes.brokers[1]).run("rabbitmq-upgrade", "drain").good();
    let refused = Tools::of(&nodes.brokers[2]).run("leveret", "cluster leave").bad(69);
    assert!(refused.contains("leveret@n2 is in maintenance mode"), "{refused}");
    Tools::of(&nodes.brokers[1]).run("rabbitmq-upgrade", "revive").good();
    let leaver = Tools::of(&nodes.brokers[2]);
    let said = leaver.run("leveret", "cluster leave").good();
    assert!(said.contains("Node leveret@n3 has left its cluster and ended"), "{said}");
    let closed = on_leaver.closed(0);
    assert!(closed.code == 320 && closed.text.contains("maintenance mode"), "{closed:?}");
    let status = nodes.brokers[2].wait_for_end();
    let log = nodes.brokers[2].log();
    let last = log.lines().last().unwrap_or_default().to_owned();
    assert_eq!(status.code(), Some(0), "a service manager does not start it again: {log}");
    assert!(log.contains("this node has left its cluster"), "{last}");
    assert!(said.contains("Other nodes get copies of what would go with it"), "{said}");
    // Nobody counts on it: the two that are left go on, without it they could not before.
    nodes.until("it is forgotten", || (nodes.running(0) == nodes.names[..2]).then_some(()));
    nodes.until("its copies are gone", || {
        let cluster = nodes.http[0].get("/api/leveret/cluster").with(200);
        let partitions = cluster["partitions"].as_array().unwrap().clone();
        let is_as_meant = |partition: &serde_json::Value| {
            partition["in_sync"] == partition["of"] && partition["of"].as_u64() <= Some(2)
        };
        partitions.iter().all(is_as_meant).then_some(())
    });
    for (name, copies) in [("classic", 1), ("two", 2)] {
        let members = nodes.http[0].get(&format!("/api/leveret/queues/%2f/{name}")).with(200)["members"].clone();
        assert_eq!(members.as_array().unwrap().len(), copies, "{name}: {members}");
        let mut got = Vec::new();
        while let Some(message) = client.get(channel, name, true).unwrap() {
            got.push(String::from_utf8(message.body).unwrap().parse::<u32>().unwrap());
        }
        assert_eq!(got, (0..50).collect::<Vec<_>>(), "{name}, in its order");
    }
    for name in &names {
        let mut got = BTreeSet::new();
        while let Some(message) = client.get(channel, name, true).unwrap() {
            got.insert(String::from_utf8(message.body).unwrap().parse::<u32>().unwrap());
        }
        assert_eq!(got, (0..20).collect(), "{name}");
    }
    // Over its old folder it is nobody.
    nodes.brokers[2].launch();
    let status = nodes.brokers[2].wait_for_end();
    assert_eq!(status.code(), Some(2));
    assert!(nodes.brokers[2].log().lines().last().unwrap().contains("start it with an empty data folder"));
    // Of two each is needed: that is said before any client is closed.
    let (mut on_second, two) = nodes.connect(1);
    let refused = Tools::of(&nodes.brokers[1]).run("leveret", "cluster leave").bad(69);
    assert!(refused.contains("1 of 2 copies would keep up without it"), "{refused}");
    on_second.counts(two, "q0").unwrap();
    assert_eq!(nodes.http[1].get("/api/nodes/leveret@n2").with(200)["being_drained"], false);

    // Another one comes.
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("n4");
    let join = |via: &str| {
        let mut command = Command::new(binary());
        let (amqp, http, own) = (free_port(), free_port(), free_port());
        command.env_clear().args(["cluster", "join", via, "--data-dir"]).arg(&data);
        command.args(["--amqp", &amqp.to_string(), "--management", &http.to_string(), "--node-name", "leveret@n4"]);
        command.args(["--cluster-address", &own.to_string(), "--cluster-secret-file"]).arg(nodes.secret());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let nobody = join(&free_port().to_string()).output().unwrap();
    let why = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(nobody.status.code() == Some(1) && why.contains("no node answers at"), "{why}");
    assert!(!data.exists(), "nothing was made");
    let _running = Running(join(&nodes.addresses[0]).stderr(Stdio::null()).spawn().unwrap());
    let due = Instant::now() + KNOWN_WITHIN * 2;
    while nodes.running(0) != ["leveret@n1", "leveret@n2", "leveret@n4"] {
        assert!(Instant::now() < due, "{:?}", nodes.running(0));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Who has left is counted by no group of queues any more, so that the next node may go at once.
#[test]
fn behind_a_node_that_left_another_may_die_and_every_queue_goes_on() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 4]);
    let (mut client, channel) = nodes.connect(0);
    client.confirm_select(channel).unwrap();
    let names: Vec<String> = (0..12).map(|number| format!("q{number}")).collect();
    for name in &names {
        let arguments = vec![("x-queue-leader-locator", "balanced".into()), ("x-queue-type", "quorum".into())];
        client.declare(channel, &QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }).unwrap();
        (0..5).for_each(|_| client.put(channel, name, &[b'x'; 10_000]));
    }
    client.confirmed(channel, 1, 60);
    Tools::of(&nodes.brokers[3]).run("leveret", "cluster leave").good();
    let cluster = nodes.http[0].get("/api/leveret/cluster").with(200);
    for partition in cluster["partitions"].as_array().unwrap() {
        // Nobody waits for a group without queues: it lets the node go a moment later.
        let is_used = partition["kind"] == "queues" && partition["queues"] != 0;
        assert!(!is_used || partition["leaving"] == json!([]), "{partition}");
    }
    assert_eq!(nodes.brokers[3].wait_for_end().code(), Some(0));
    nodes.brokers[1].kill();
    for name in &names {
        let members = nodes.http[0].get(&format!("/api/queues/%2f/{name}")).with(200)["members"].clone();
        assert_eq!(members, json!(["leveret@n1", "leveret@n2", "leveret@n3"]), "{name}");
        client.put(channel, name, b"last");
    }
    client.confirmed(channel, 61, 72);
    for name in &names {
        let got: Vec<_> = std::iter::from_fn(|| client.get(channel, name, true).unwrap()).collect();
        assert_eq!(got.len(), 6, "{name}");
    }
}

#[test]
fn any_node_passes_on_that_another_is_to_leave() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let at = "/api/leveret/nodes/leveret@n3/leave";
    nodes.until("every group is led", || (nodes.http[0].get(at).status == 204).then_some(()));
    let serves = reason(&nodes.http[0].post(at, ""), 400);
    assert!(serves.contains("leveret@n3 serves clients: drain it first"), "{serves}");
    nodes.http[0].put("/api/users/mon", r#"{"password":"pw","tags":"monitoring"}"#).with(201);
    assert_eq!(nodes.http[0].as_user("mon", "pw").post(at, "").status, 401);
    nodes.http[0].put("/api/nodes/leveret@n3/maintenance", "").with(204);
    nodes.until("it leads nothing and leaves", || {
        // It may have ended before its answer was there.
        let status = nodes.http[0].post(at, "").status;
        (status == 204 || nodes.running(0) == nodes.names[..2]).then_some(())
    });
    assert_eq!(nodes.brokers[2].wait_for_end().code(), Some(0));
    nodes.until("it is forgotten", || (nodes.running(0) == nodes.names[..2]).then_some(()));
    let why = reason(&nodes.http[0].get("/api/leveret/nodes/leveret@n2/leave"), 400);
    assert!(why.contains("1 of 2 copies would keep up without it"), "{why}");
}

/// A leave that is broken off: what was copied for it would need both nodes from then on.
#[test]
fn what_was_given_away_for_a_node_that_stays_is_taken_back() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(2);
    client.declare(channel, &QueueDeclare { name: "stays", durable: true, ..QueueDeclare::default() }).unwrap();
    let members = || nodes.http[0].get("/api/queues/%2f/stays").with(200)["members"].clone();
    assert_eq!(members(), json!(["leveret@n3"]));
    nodes.http[2].put("/api/nodes/leveret@n3/maintenance", "{}").with(204);
    let waiting = nodes.http[0].send("POST", "/api/leveret/nodes/leveret@n3/give-away", &[], "{}").with(200);
    assert_eq!(waiting["waiting"][0]["step"], "copy", "{waiting}");
    nodes.until("another node has a copy", || (members().as_array()?.len() == 2).then_some(()));
    nodes.http[2].delete("/api/nodes/leveret@n3/maintenance").with(204);
    nodes.until("one has it again", || (members().as_array()?.len() == 1).then_some(()));
}

/// A node that dies after another one began to leave: whoever asks is told for whom it waits, and the log once.
#[test]
fn who_dies_while_a_node_leaves_is_named_as_what_it_waits_for() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &replicated("q")).unwrap();
    let give_away = "/api/leveret/nodes/leveret@n1/give-away";
    nodes.http[0].put("/api/nodes/leveret@n1/maintenance", "{}").with(204);
    let http = nodes.http[0].clone();
    let waiting = || http.send("POST", give_away, &[], "{}").with(200)["waiting"].clone();
    nodes.until("the others could do without it", || (waiting() == json!([])).then_some(()));
    nodes.brokers[2].kill();
    let late = json!([{ "node": "leveret@n3", "state": "unreachable" }]);
    nodes.until("what is declared waits for the third", || {
        let rows = waiting();
        rows.as_array()?.iter().find(|row| row["partition"] == 0 && row["late"] == late).map(|_| ())
    });
    for _ in 0..5 {
        assert!(waiting().as_array().unwrap().iter().all(|row| row["late"] == late), "nobody else");
    }
    let warning = "this node waits before it leaves its cluster: no answer from leveret@n3";
    let lines = |node: &Broker, of: &str| node.log().lines().filter(|line| line.contains(of)).count();
    assert_eq!(lines(&nodes.brokers[0], warning), 1, "{}", nodes.brokers[0].log());
    assert_eq!(lines(&nodes.brokers[0], "give-away"), 0, "nothing was changed");
    // The command that begins anew is refused at once, and says how the node is.
    let refused = Tools::of(&nodes.brokers[0]).run("leveret", "cluster leave").bad(69);
    assert!(refused.contains("1 of 3 copies would keep up without it"), "{refused}");
    assert!(refused.contains("was drained before, and serves no clients until `leveret ctl revive`"), "{refused}");
    nodes.brokers[2].launch();
    nodes.brokers[2].until_it_answers();
    nodes.until("it goes on", || (waiting() == json!([])).then_some(()));
    assert_eq!(lines(&nodes.brokers[0], "waits for nobody any more that is away"), 1);
}

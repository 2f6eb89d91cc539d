//! Levels of durability on three nodes: what each waits for while members stand still, and what is told of it.

use crate::nodes::{Nodes, replicated};
use clients::broker::is_foreign;
use clients::{Client, Event, Http, Properties, Publish, Value as Argument};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const QUEUE: &str = "kept";
const LEVELS: [&str; 4] = ["leader-written", "leader-synced", "written", "synced"];

/// Publishes a message that says so itself at which level it is safe, or says nothing.
fn put(client: &mut Client, channel: u16, level: Option<&str>, body: &[u8]) {
    let properties = match level {
        Some(level) => Properties::with_headers(&[("x-durability", Argument::from(level))]),
        None => Properties::persistent(),
    };
    client.publish(channel, &Publish { key: QUEUE, body, properties, ..Publish::default() });
}

/// Which of these are answered within some time; none of them is refused.
fn answered(client: &mut Client, channel: u16, open: &mut BTreeSet<u64>, patience: Duration) -> Vec<u64> {
    let Some(event) = client.event_within(channel, patience) else { return Vec::new() };
    let Event::Confirm { tag, multiple, nack } = event else { panic!("only answers are due: {event:?}") };
    assert!(!nack, "{tag} is refused, and its leader is there");
    let now: Vec<u64> = open.range(if multiple { 1..=tag } else { tag..=tag }).copied().collect();
    assert!(!now.is_empty(), "{tag} is answered twice");
    now.iter().for_each(|number| assert!(open.remove(number)));
    now
}

fn leader(nodes: &Nodes) -> usize {
    nodes.until("somebody leads the queue", || {
        let told = nodes.http[0].get("/api/queues/%2f/kept?columns=leader").with(200);
        nodes.names.iter().position(|name| told["leader"] == name.as_str())
    })
}

fn guarantee(http: &Http) -> (String, String) {
    let told = http.get("/api/leveret/queues/%2f/kept").with(200);
    let text = |field: &str| told[field].as_str().unwrap_or_default().to_owned();
    (text("durability"), text("guarantee"))
}

#[test]
fn the_leader_confirms_its_own_levels_while_the_others_stand_still_and_those_of_a_majority_wait() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &replicated(QUEUE)).unwrap();
    let leads = leader(&nodes);
    let others: Vec<usize> = (0..3).filter(|node| *node != leads).collect();
    let tell = |signal| others.iter().for_each(|node| nodes.brokers[*node].signal(signal));
    let (mut publisher, out) = nodes.connect(leads);
    publisher.confirm_select(out).unwrap();
    // Its route is known, and the channel to those who have it.
    put(&mut publisher, out, None, b"first");
    publisher.confirmed(out, 1, 1);

    tell(Signal::STOP);
    LEVELS.iter().for_each(|level| put(&mut publisher, out, Some(level), level.as_bytes()));
    let mut open: BTreeSet<u64> = (2..=5).collect();
    let mut alone = Vec::new();
    while alone.len() < 2 {
        let now = answered(&mut publisher, out, &mut open, Duration::from_secs(1));
        assert!(!now.is_empty(), "the leader needs nobody for its own levels, and {open:?} are open");
        alone.extend(now);
    }
    let more = answered(&mut publisher, out, &mut open, Duration::from_millis(200));
    tell(Signal::CONT);
    alone.sort_unstable();
    assert_eq!((alone, more), (vec![2, 3], vec![]), "the others wait for a majority");
    while !open.is_empty() {
        let now = answered(&mut publisher, out, &mut open, Duration::from_secs(20));
        assert!(!now.is_empty(), "a majority is there again, and {open:?} are open");
    }
    let mut came = Vec::new();
    while let Some(got) = client.get(channel, QUEUE, true).unwrap() {
        came.push(String::from_utf8(got.body).unwrap());
    }
    // Who stood still for less than an election keeps its leader, and then nothing is lost.
    assert!(came.ends_with(&["written".to_owned(), "synced".to_owned()]), "{came:?}");
}

#[test]
fn a_policy_chooses_the_level_and_whoever_looks_is_told() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &replicated(QUEUE)).unwrap();
    let told = |wanted: &str| {
        nodes.until("the queue's leader tells of it", || {
            let (level, words) = guarantee(&nodes.http[0]);
            (level == wanted && words.starts_with("3 of 3 copies")).then_some(words)
        })
    };
    assert_eq!(told("synced"), "3 of 3 copies synced to disk; 2 before a confirm");
    let policy = |kind: &str, definition: &str| {
        let body = format!(r#"{{"pattern": "^kept$", "apply-to": "queues", "definition": {definition}}}"#);
        nodes.http[1].put(&format!("/api/{kind}/%2f/level"), &body)
    };
    policy("policies", r#"{"durability": "leader-synced"}"#).with(201);
    assert_eq!(
        told("leader-synced"),
        "3 of 3 copies synced to disk; the leader's before a confirm, and a change of leaders may take what others lack"
    );
    policy("operator-policies", r#"{"durability": "written"}"#).with(201);
    assert!(told("written").contains("confirmed once written"));
    for wrong in [r#"{"durability": "soon"}"#, r#"{"durability": "selective"}"#, r#"{"durability-value-cap": 5}"#] {
        assert_eq!(policy("policies", wrong).status, 400, "{wrong}");
    }
    let status = nodes.http[2].get("/api/leveret/cluster").with(200);
    let words = status["queues"]["guarantees"][0]["guarantee"].as_str().unwrap().to_owned();
    assert!(words.ends_with(", confirmed once written"), "{words}");

    // A node is gone: there is none to spare, and written waits for disks until there is.
    let mut nodes = nodes;
    let leads = leader(&nodes);
    let victim = (leads + 1) % 3;
    let unspared = |nodes: &Nodes| {
        let of = |node: usize| {
            let text = nodes.http[node].get("/metrics").text;
            let name = "leveret_partitions_without_spare ";
            text.lines().find_map(|line| line.strip_prefix(name)).expect("it is told").parse::<f64>().unwrap()
        };
        (0..3).filter(|node| *node != victim).map(of).sum::<f64>()
    };
    assert_eq!(unspared(&nodes), 0.0);
    nodes.brokers[victim].kill();
    nodes.until("each of the four partitions has none to spare", || (unspared(&nodes) == 4.0).then_some(()));
    nodes.until("the queue says so", || {
        let (_, words) = guarantee(&nodes.http[leads]);
        words.ends_with("2 before a confirm, as there is no copy to spare").then_some(())
    });
    nodes.brokers[victim].launch();
    nodes.brokers[victim].until_it_answers();
    nodes.until("there is one again", || (unspared(&nodes) == 0.0).then_some(()));
}

#[test]
fn a_sync_that_is_asked_for_waits_for_nothing_but_disks_on_whichever_node() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    for node in 0..3 {
        let (mut client, channel) = nodes.connect(node);
        client.declare(channel, &replicated("q")).unwrap();
        client.confirm_select(channel).unwrap();
        let asked = Instant::now();
        let sync = Publish { exchange: "leveret.sync", ..Publish::default() };
        client.publish(channel, &sync);
        client.confirmed(channel, 1, 1);
        client.put(channel, "q", b"1");
        client.publish(channel, &sync);
        client.confirmed(channel, 2, 3);
        assert!(asked.elapsed().as_secs() < 7, "nobody leads what was asked: {:?}", asked.elapsed());
    }
}

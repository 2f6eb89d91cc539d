//! Durable classic queues of three nodes: each lives on one, says so, answers as RabbitMQ's do while that is away, and is
//! there again with it.

use crate::nodes::{Nodes, replicated};
use clients::api::reason;
use clients::broker::is_foreign;
use clients::{Client, Closed, Event, Publish, QueueDeclare, Tools};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

const QUEUE: &str = "home";

fn classic(name: &str) -> QueueDeclare<'_> {
    QueueDeclare { name, durable: true, ..QueueDeclare::default() }
}

/// Has another node notice that the queue's node is gone.
fn until_it_is_away(nodes: &Nodes, from: usize) {
    nodes.until("the queue's node is missed", || {
        let queue = nodes.http[from].get("/api/queues/%2f/home").with(200);
        (queue["state"] == "down").then_some(())
    });
}

fn answer(client: &mut Client, channel: u16) -> (u64, bool) {
    match client.event(channel) {
        Event::Confirm { tag, nack, .. } => (tag, nack),
        other => panic!("an answer is due, not {other:?}"),
    }
}

#[test]
fn a_classic_queue_lives_on_the_node_of_its_client_and_is_404_to_all_while_that_is_away() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut owner, own) = nodes.connect(0);
    owner.declare(own, &classic(QUEUE)).unwrap();
    owner.declare(own, &replicated("copied")).unwrap();
    owner.bind(own, QUEUE, "amq.fanout", "", &[]).unwrap();
    owner.bind(own, "copied", "amq.fanout", "", &[]).unwrap();
    owner.confirm_select(own).unwrap();
    (0..10).for_each(|number| owner.put(own, QUEUE, format!("{number}").as_bytes()));
    owner.confirmed(own, 1, 10);
    let told = nodes.http[2].get("/api/queues/%2f/home").with(200);
    assert_eq!(
        (&told["node"], &told["state"], &told["type"]),
        (&json!("leveret@n1"), &json!("running"), &json!("classic"))
    );
    let told = nodes.until("its node knows how it stands", || {
        let told = nodes.http[0].get("/api/leveret/queues/%2f/home").with(200);
        (told["copies_in_sync"] == 1).then_some(told)
    });
    assert_eq!((&told["copies"], &told["members"][0]["node"]), (&json!(1), &json!("leveret@n1")), "{told}");
    let shown = Tools::of(&nodes.brokers[1]).run("leveret", "cluster status").good();
    assert!(shown.contains("1 of 1 copy synced to disk"), "{shown}");

    // Any node serves it while its own is there. This consumer goes on when it is back.
    let (mut other, channel) = nodes.connect(1);
    assert_eq!(other.counts(channel, QUEUE).unwrap(), (10, 0));
    let (mut reader, on) = nodes.connect(2);
    reader.qos(on, 3, false).unwrap();
    reader.consume(on, QUEUE, "c").unwrap();
    let held: Vec<_> = (0..3).map(|_| reader.delivery(on)).collect();
    (0..3).for_each(|at| assert_eq!(held[at].body, format!("{at}").as_bytes()));
    reader.ack(on, held[2].tag, true);
    let held: Vec<_> = (3..6).map(|_| reader.delivery(on)).collect();
    nodes.until("the acks are counted", || (other.counts(channel, QUEUE).unwrap() == (4, 1)).then_some(()));

    nodes.brokers[0].kill();
    until_it_is_away(&nodes, 1);
    let away = "NOT_FOUND - home node 'leveret@n1' of durable queue 'home' in vhost '/' is down or inaccessible";
    let passive = QueueDeclare { passive: true, ..classic(QUEUE) };
    type Request<'a> = (&'a str, &'a dyn Fn(&mut Client, u16) -> Result<(), Closed>);
    let requests: [Request<'_>; 5] = [
        ("declare", &|client, channel| client.declare(channel, &classic(QUEUE)).map(drop)),
        ("passive", &|client, channel| client.declare(channel, &passive).map(drop)),
        ("get", &|client, channel| client.get(channel, QUEUE, true).map(drop)),
        ("consume", &|client, channel| client.consume(channel, QUEUE, "d").map(drop)),
        ("purge", &|client, channel| client.purge(channel, QUEUE).map(drop)),
    ];
    for (what, request) in requests {
        let channel = other.channel();
        let refused = request(&mut other, channel).unwrap_err();
        assert_eq!((refused.code, refused.text.as_str()), (404, away), "{what}");
    }
    // Over HTTP as over AMQP.
    let http = &nodes.http[1];
    let home = "/api/queues/%2f/home";
    let get = json!({ "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto" }).to_string();
    for (method, path, body) in [
        ("POST", format!("{home}/get"), &*get),
        ("DELETE", format!("{home}/contents"), ""),
        ("PUT", home.to_owned(), r#"{"durable":true}"#),
    ] {
        let why = reason(&http.send(method, &path, &[], body), 404);
        assert_eq!(format!("NOT_FOUND - {why}"), away, "{method} {path}");
    }
    assert_eq!(reason(&http.send("DELETE", &format!("{home}?if-empty=true"), &[], ""), 400), "not empty");
    let at = json!({ "durable": true, "node": "leveret@n3" }).to_string();
    http.send("PUT", "/api/queues/%2f/there", &[], &at).with(201);
    assert_eq!(http.get("/api/queues/%2f/there").with(200)["node"], "leveret@n3");
    let at = json!({ "durable": true, "node": "leveret@n1" }).to_string();
    assert_eq!(reason(&http.send("PUT", "/api/queues/%2f/where", &[], &at), 400), "Node leveret@n1 is not running");
    let drained = reason(&http.send("POST", "/api/leveret/nodes/leveret@n2/give-away", &[], "{}"), 400);
    assert!(drained.contains("drain it first"), "{drained}");
    let empty = other.channel();
    let refused = other.delete(empty, QUEUE, false, true).unwrap_err();
    assert_eq!((refused.code, &*refused.text), (406, "PRECONDITION_FAILED - queue 'home' in vhost '/' not empty"));

    // Nobody promises what nobody keeps; other queues get their copy.
    other.confirm_select(channel).unwrap();
    let publish = |client: &mut Client, exchange, key| {
        client.publish(channel, &Publish { exchange, key, body: b"x", mandatory: true, ..Publish::default() });
    };
    publish(&mut other, "", QUEUE);
    assert_eq!(answer(&mut other, channel), (1, true));
    publish(&mut other, "amq.fanout", "");
    assert_eq!(answer(&mut other, channel), (2, true));
    publish(&mut other, "", "copied");
    assert_eq!(answer(&mut other, channel), (3, false));
    assert_eq!(other.counts(channel, "copied").unwrap(), (2, 0));
    other.declare(channel, &classic("elsewhere")).unwrap();
    let told = nodes.http[2].get("/api/queues/%2f/elsewhere").with(200);
    assert_eq!(told["node"], "leveret@n2");

    // With its node it is there again, with all that was in it; whoever consumed goes on, and has what it holds.
    nodes.brokers[0].start();
    nodes.until("it is there", || {
        let queue = nodes.http[1].get("/api/queues/%2f/home").with(200);
        (queue["state"] == "running" && queue["consumers"] == 1).then_some(())
    });
    assert!(reader.event_within(on, Duration::from_millis(200)).is_none(), "it holds as many as it may");
    reader.ack(on, held[2].tag, true);
    (6..9).for_each(|at| assert_eq!(reader.delivery(on).body, format!("{at}").as_bytes()));
    publish(&mut other, "", QUEUE);
    assert_eq!(answer(&mut other, channel), (4, false), "the way is known again");

    // What is deleted while its node is away is gone when it is back.
    nodes.brokers[0].kill();
    until_it_is_away(&nodes, 1);
    assert_eq!(other.delete(channel, QUEUE, true, false).unwrap(), 0);
    assert!(matches!(reader.event(on), Event::Cancelled(_)), "its consumer hears so");
    other.declare(channel, &classic(QUEUE)).unwrap();
    nodes.brokers[0].start();
    let told = nodes.http[0].get("/api/queues/%2f/home").with(200);
    assert_eq!(told["node"], "leveret@n2", "it is another queue, of another node");
    let (mut again, on) = nodes.connect(0);
    assert_eq!(again.counts(on, QUEUE).unwrap(), (0, 0));
    assert!(again.event_within(on, Duration::from_millis(100)).is_none());

    // Who is gone for good keeps its place while somebody may want what it has, and goes with a word, but not while
    // anything else needs it.
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", 2.into())];
    other.declare(channel, &QueueDeclare { name: "two", durable: true, arguments, ..Default::default() }).unwrap();
    nodes.brokers[1].kill();
    until_it_is_away(&nodes, 0);
    nodes.until("the others lead what they share", || {
        let queue = nodes.http[0].get("/api/queues/%2f/copied").with(200);
        (queue["state"] == "running").then_some(())
    });
    let tools = Tools::of(&nodes.brokers[0]);
    for flag in ["", "--delete-queues "] {
        let refused = tools.ctl(&format!("forget_cluster_node {flag}leveret@n2")).bad(69);
        assert!(refused.contains("queue 'two' in vhost '/' has no leader without leveret@n2"), "{refused}");
        assert_eq!(refused.contains("only leveret@n2 has queue"), flag.is_empty(), "{refused}");
    }
    assert_eq!(nodes.http[0].get("/api/queues/%2f/home").with(200)["name"], "home", "nothing was deleted for nothing");
    nodes.http[0].delete("/api/queues/%2f/two").with(204);
    let refused = tools.ctl("forget_cluster_node leveret@n2").bad(69);
    assert!(refused.contains("only leveret@n2 has queue") && refused.contains("--delete-queues"), "{refused}");
    let done = tools.ctl("forget_cluster_node --delete-queues leveret@n2").good();
    assert!(done.contains("Deleted 2 queues of which leveret@n2 had the only copy"), "{done}");
    let left = nodes.http[0].get("/api/queues?columns=name").with(200);
    assert_eq!(left, json!([{ "name": "copied" }, { "name": "there" }]));
}

#[test]
fn what_living_consumers_hold_stays_theirs_when_the_node_of_their_queue_was_away() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up(&[&[]; 3]);
    let (mut owner, own) = nodes.connect(0);
    owner.declare(own, &classic(QUEUE)).unwrap();
    let arguments = vec![("x-single-active-consumer", true.into())];
    owner.declare(own, &QueueDeclare { arguments, ..classic("single") }).unwrap();
    owner.confirm_select(own).unwrap();
    (0..10).for_each(|_| [QUEUE, "single"].iter().for_each(|queue| owner.put(own, queue, b"held")));
    owner.confirmed(own, 1, 20);
    let (mut holder, holding) = nodes.connect(1);
    let (mut idle, waiting) = nodes.connect(2);
    for queue in [QUEUE, "single"] {
        holder.consume(holding, queue, queue).unwrap();
    }
    let held: Vec<_> = (0..20).map(|_| holder.delivery(holding)).collect();
    for queue in [QUEUE, "single"] {
        idle.consume(waiting, queue, queue).unwrap();
    }
    for _ in 0..3 {
        nodes.brokers[0].kill();
        until_it_is_away(&nodes, 1);
        nodes.brokers[0].start();
        nodes.until("both are there again", || {
            let queue = nodes.http[1].get("/api/queues/%2f/home").with(200);
            (queue["state"] == "running" && queue["consumers"] == 2).then_some(())
        });
        let came = idle.event_within(waiting, Duration::from_secs(1));
        assert!(came.is_none(), "somebody else holds it: {came:?}");
    }
    holder.ack(holding, held[19].tag, true);
    nodes.until("the acks are counted", || (idle.counts(waiting, QUEUE).unwrap() == (0, 2)).then_some(()));
    assert!(idle.event_within(waiting, Duration::from_millis(200)).is_none());
    let (mut publisher, out) = nodes.connect(0);
    publisher.put(out, "single", b"next");
    assert_eq!(holder.delivery(holding).consumer_tag, "single", "it is the active one still");
}

#[test]
fn what_was_acked_while_the_node_of_its_queue_was_away_does_not_come_again_whichever_of_its_threads_has_it() {
    if is_foreign() {
        return;
    }
    const ALL: usize = 200;
    let threads: &[&str] = &["--shard-threads", "3"];
    let mut nodes = Nodes::up(&[threads; 3]);
    let (mut owner, own) = nodes.connect(0);
    let (mut publisher, out) = nodes.connect(1);
    publisher.confirm_select(out).unwrap();
    let queues = [QUEUE, "second", "third"];
    for queue in queues {
        owner.declare(own, &classic(queue)).unwrap();
        (0..ALL).for_each(|number| publisher.put(out, queue, number.to_string().as_bytes()));
    }
    publisher.confirmed(out, 1, 3 * ALL as u64);
    let mut readers: Vec<(Client, u16, BTreeSet<Vec<u8>>)> = queues
        .iter()
        .map(|queue| {
            let (mut reader, on) = nodes.connect(1);
            reader.qos(on, 10, false).unwrap();
            reader.consume(on, queue, "c").unwrap();
            (reader, on, BTreeSet::new())
        })
        .collect();
    for round in 0..5 {
        let mut take = |count: usize, acks: bool| -> Vec<u64> {
            let take_one = |(reader, on, acked): &mut (Client, u16, BTreeSet<Vec<u8>>)| {
                let mut last = 0;
                for _ in 0..count {
                    let delivery = reader.delivery(*on);
                    let body = String::from_utf8_lossy(&delivery.body).into_owned();
                    assert!(acked.insert(delivery.body), "{body} was acked, and comes again in round {round}");
                    last = delivery.tag;
                    if acks {
                        reader.ack(*on, last, false);
                    }
                }
                last
            };
            readers.iter_mut().map(take_one).collect()
        };
        take(20, true);
        let last = take(10, false);
        nodes.brokers[0].kill();
        for ((reader, on, _), last) in readers.iter_mut().zip(last) {
            reader.ack(*on, last, true);
            // The answer says that the node has the acks.
            reader.qos(*on, 10, false).unwrap();
        }
        nodes.brokers[0].start();
    }
    for (reader, on, acked) in &mut readers {
        while acked.len() < ALL {
            let delivery = reader.delivery(*on);
            reader.ack(*on, delivery.tag, false);
            assert!(acked.insert(delivery.body));
        }
        assert!(reader.event_within(*on, Duration::from_millis(200)).is_none());
    }
}

#[test]
fn quorum_queues_that_are_given_copies_take_no_classic_queue_along() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up(&[&[]; 3]);
    let (mut client, channel) = nodes.connect(0);
    let single = vec![("x-queue-type", "quorum".into()), ("x-quorum-initial-group-size", 1.into())];
    // All that there is of these types comes first, so that each has what is free.
    for number in 0..6 {
        client.declare(channel, &classic(&format!("classic {number}"))).unwrap();
    }
    for number in 0..6 {
        let name = format!("single {number}");
        let declare = QueueDeclare { name: &name, durable: true, arguments: single.clone(), ..QueueDeclare::default() };
        client.declare(channel, &declare).unwrap();
    }
    let add = |number: usize, node: usize| {
        let path = format!("/api/queues/quorum/%2f/single%20{number}/replicas/add");
        nodes.http[0].send("POST", &path, &[], &json!({ "node": nodes.names[node] }).to_string())
    };
    for number in 0..6 {
        let answer = add(number, 1);
        // One of its partition may have been there before.
        assert!(answer.status == 200 || reason(&answer, 400) == "already_a_member", "{answer:?}");
    }
    let members =
        |name: &str| nodes.http[0].get(&format!("/api/leveret/queues/%2f/{name}")).with(200)["copies"].clone();
    assert_eq!(members("single%200"), 2);
    client.declare(channel, &classic("classic 6")).unwrap();
    for number in 0..7 {
        assert_eq!(members(&format!("classic%20{number}")), 1, "classic {number}");
    }
}

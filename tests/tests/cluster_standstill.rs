//! A node that stands still while the others go on: what is published over it afterwards goes where whoever was answered
//! meanwhile said that it goes.
#![allow(clippy::unwrap_used)]

use clients::broker::is_foreign;
use clients::nodes::{PATIENCE, classic, durable};
use clients::{Client, Event, Nodes, Publish};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// So long a node stands still that it asks what it missed before it routes anything.
const STOOD_STILL: Duration = Duration::from_secs(1);
const LOOKED_AT: Duration = Duration::from_secs(1);

/// Waits for the one answer that is due.
fn answer(client: &mut Client, channel: u16) -> Event {
    client.event_within(channel, PATIENCE).expect("it is answered")
}

/// Publishes by an exchange, and by the default one with `mandatory` for a queue.
fn publish(client: &mut Client, channel: u16, exchange: &str, queue: &str) {
    client.publish(channel, &Publish { exchange, key: "", body: b"1", ..Publish::default() });
    client.publish(channel, &Publish { key: queue, mandatory: true, body: b"2", ..Publish::default() });
}

#[test]
fn a_node_that_stood_still_asks_what_it_missed_before_it_routes() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::founders(3);
    let (mut elsewhere, there) = nodes.connect(0);
    let (mut client, channel) = nodes.connect(1);
    client.confirm_select(channel).unwrap();
    for round in 1..=6 {
        let queue = format!("q{round}");
        nodes.nodes[1].broker.signal(Signal::STOP);
        // Nobody waits for it for longer than half a second each.
        elsewhere.declare(there, &durable(&queue)).unwrap();
        elsewhere.bind(there, &queue, "amq.fanout", "", &[]).unwrap();
        publish(&mut client, channel, "amq.fanout", &queue);
        nodes.nodes[1].broker.signal(Signal::CONT);
        // As well as over a connection that comes now.
        let (mut other, other_channel) = nodes.connect(1);
        other.confirm_select(other_channel).unwrap();
        publish(&mut other, other_channel, "amq.fanout", &queue);
        client.confirmed(channel, 2 * round - 1, 2 * round);
        other.confirmed(other_channel, 1, 2);
        assert_eq!(elsewhere.counts(there, &queue).unwrap().0, 4, "round {round}");
    }
}

#[test]
fn a_publish_that_waited_for_what_its_node_knows_leaves_its_connection_asleep() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(1);
    client.declare(channel, &durable("q")).unwrap();
    client.confirm_select(channel).unwrap();
    let node = &nodes.nodes[1].broker;
    for seq in 1..=3 {
        node.signal(Signal::STOP);
        std::thread::sleep(STOOD_STILL);
        node.signal(Signal::CONT);
        client.put(channel, "q", b"1");
        client.confirmed(channel, seq, seq);
        let before = node.cpu_ticks();
        std::thread::sleep(LOOKED_AT);
        // Who wakes itself again and again takes all that the machine has, a third of a core beside other tests.
        let taken = node.cpu_ticks() - before;
        assert!(taken < 15, "round {seq}: {taken} hundredths of a second in one second without anything to do");
    }
}

#[test]
fn a_node_that_reaches_no_majority_refuses_what_it_knows_no_queue_for_and_keeps_what_is_its_own() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    client.confirm_select(channel).unwrap();
    client.declare(channel, &classic("own")).unwrap();
    client.put(channel, "own", b"1");
    client.put(channel, "not there", b"2");
    client.confirmed(channel, 1, 2);
    nodes.nodes[1..].iter().for_each(|node| node.broker.signal(Signal::STOP));
    let begin = Instant::now();
    let mut seq = 2;
    // As long as it counts on what it has just heard.
    loop {
        client.put(channel, "not there", b"3");
        seq += 1;
        match answer(&mut client, channel) {
            Event::Confirm { tag, nack: true, .. } => break assert_eq!(tag, seq),
            Event::Confirm { nack: false, .. } => assert!(begin.elapsed() < PATIENCE),
            other => panic!("an answer was due, got {other:?}"),
        }
    }
    nodes.until_log(0, "no majority of the nodes answers: ");
    client.put(channel, "own", b"4");
    client.confirmed(channel, seq + 1, seq + 1);
    nodes.nodes[1..].iter().for_each(|node| node.broker.signal(Signal::CONT));
    // Once it has heard that there is none.
    loop {
        client.put(channel, "not there", b"5");
        match answer(&mut client, channel) {
            Event::Confirm { nack: false, .. } => break,
            Event::Confirm { nack: true, .. } => assert!(begin.elapsed() < 2 * PATIENCE),
            other => panic!("an answer was due, got {other:?}"),
        }
    }
    assert_eq!(client.counts(channel, "own").unwrap().0, 2);
    nodes.until_log(0, "a majority of the nodes answers again");
}

#[test]
fn who_waits_for_a_majority_can_be_cut_off_and_what_a_client_left_behind_counts() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::founders(3);
    let (mut client, channel) = nodes.connect(0);
    client.confirm_select(channel).unwrap();
    client.declare(channel, &classic("own")).unwrap();
    let name = nodes.nodes[0].http.get("/api/connections").with(200)[0]["name"].as_str().unwrap().to_string();
    let (mut leaver, leavers) = nodes.connect(0);
    nodes.nodes[2].broker.signal(Signal::STOP);
    nodes.kill(1);
    nodes.until_log(0, "the link to another node is gone");
    // It counts on nothing that it knows from now on.
    leaver.put(leavers, "own", b"1");
    drop(leaver);
    client.put(channel, "own", b"2");
    client.silent(channel);
    nodes.nodes[0].http.delete(&format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"))).with(204);
    match answer(&mut client, channel) {
        Event::Closed(closed) => assert_eq!(closed.code, 320, "{closed:?}"),
        other => panic!("it is cut off before anything is answered, got {other:?}"),
    }
    nodes.nodes[2].broker.signal(Signal::CONT);
    let (mut client, channel) = nodes.connect(0);
    // Nobody is told when its node knows enough to put it there.
    let due = Instant::now() + PATIENCE;
    let mut count = client.counts(channel, "own").unwrap().0;
    while count == 0 && Instant::now() < due {
        std::thread::sleep(Duration::from_millis(20));
        count = client.counts(channel, "own").unwrap().0;
    }
    assert!((1..=2).contains(&count), "what the first left behind is there: {count}");
}

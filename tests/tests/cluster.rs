//! Three processes that are one broker: how they come together, what each of them serves, and what
//! is left when one of them is killed.
#![allow(clippy::unwrap_used)]

use clients::broker::{binary, free_port, is_foreign};
use clients::wire::{Args, Properties, Reader};
use clients::{Broker, Client, Closed, Event, ExchangeDeclare, Publish, QueueDeclare};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const REPLY_TO: &str = "amq.rabbitmq.reply-to";
const PRIORITY_BIT: u32 = 11;
const REPLY_TO_BIT: u32 = 9;
const SECRET: &str = "a secret of three nodes\n";

struct Nodes {
    brokers: Vec<Broker>,
    folder: tempfile::TempDir,
    peers: String,
}

impl Nodes {
    /// Three that are not started.
    fn new() -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let addresses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        let peers = addresses.join(",");
        let broker = |address: &String| {
            let secret = secret.to_str().unwrap();
            let name = format!("leveret@{address}").replace(':', "-");
            let arguments = ["--cluster-peers", &peers, "--cluster-address", address, "--cluster-secret-file", secret];
            Broker::not_started(&[&arguments[..], &["--node-name", &name, "--partitions", "4"]].concat())
        };
        Nodes { brokers: addresses.iter().map(broker).collect(), folder, peers }
    }

    /// Three that serve.
    fn up() -> Nodes {
        let mut nodes = Nodes::new();
        // In no order that means anything.
        [2, 0, 1].into_iter().for_each(|node: usize| nodes.brokers[node].launch());
        nodes.brokers.iter_mut().for_each(Broker::until_it_answers);
        nodes
    }

    fn connect(&self, node: usize) -> (Client, u16) {
        let mut client = self.brokers[node].connect();
        let channel = client.channel();
        (client, channel)
    }
}

fn durable(name: &str) -> QueueDeclare<'_> {
    let arguments = vec![("x-queue-type", "quorum".into())];
    QueueDeclare { name, durable: true, arguments, ..QueueDeclare::default() }
}

/// Which publishes up to `last` were confirmed, once all were answered.
fn confirmed_of(client: &mut Client, channel: u16, last: u64) -> BTreeSet<u64> {
    let mut open: BTreeSet<u64> = (1..=last).collect();
    let mut confirmed = BTreeSet::new();
    while !open.is_empty() {
        let Event::Confirm { tag, multiple, nack } = client.event(channel) else { panic!("only answers are due") };
        let answered: Vec<u64> = open.range(if multiple { 1..=tag } else { tag..=tag }).copied().collect();
        assert!(!answered.is_empty(), "{tag} is answered twice");
        answered.iter().for_each(|number| assert!(open.remove(number)));
        if !nack {
            confirmed.extend(answered);
        }
    }
    confirmed
}

#[test]
fn each_node_serves_every_queue() {
    if is_foreign() {
        return;
    }
    let nodes = Nodes::up();
    let (mut first, one) = nodes.connect(0);
    let (mut second, two) = nodes.connect(1);
    let (mut third, three) = nodes.connect(2);
    let names: Vec<String> = (0..6).map(|number| format!("q{number}")).collect();
    for (at, name) in names.iter().enumerate() {
        let (client, channel) =
            [(&mut first, one), (&mut second, two), (&mut third, three)].into_iter().nth(at % 3).unwrap();
        client.declare(channel, &durable(name)).unwrap();
    }
    second.confirm_select(two).unwrap();
    for round in 0..10 {
        for name in &names {
            second.put(two, name, format!("{name} {round}").as_bytes());
        }
    }
    second.confirmed(two, 1, 60);
    third.qos(three, 3, false).unwrap();
    for name in &names {
        third.consume(three, name, name).unwrap();
    }
    let mut came: Vec<Vec<String>> = names.iter().map(|_| Vec::new()).collect();
    for _ in 0..60 {
        let delivery = third.delivery(three);
        let body = String::from_utf8(delivery.body.clone()).unwrap();
        came[names.iter().position(|name| body.starts_with(name.as_str())).unwrap()].push(body);
        assert!(!delivery.redelivered);
        third.ack(three, delivery.tag, false);
    }
    for (name, came) in names.iter().zip(came) {
        let order: Vec<String> = (0..10).map(|round| format!("{name} {round}")).collect();
        assert_eq!(came, order, "each queue is in order, whoever leads it");
    }
    for name in &names {
        third.cancel(three, name).unwrap();
        assert_eq!(first.delete(one, name, true, true).unwrap(), 0);
    }
    let (mut late, channel) = nodes.connect(0);
    assert_eq!(late.counts(channel, "q0").unwrap_err().code, 404);
}

#[test]
fn what_a_node_has_in_memory_is_reached_from_every_node_and_gone_with_it() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let (mut first, one) = nodes.connect(0);
    let (mut second, two) = nodes.connect(1);
    let (mut third, three) = nodes.connect(2);
    let own = |name| QueueDeclare { name, exclusive: true, ..QueueDeclare::default() };
    // Bound from its own node to what another declared, and published to from a third.
    let news = ExchangeDeclare { name: "news", kind: "fanout", ..ExchangeDeclare::default() };
    second.declare_exchange(two, &news).unwrap();
    first.declare(one, &own("mine")).unwrap();
    first.bind(one, "mine", "news", "", &[]).unwrap();
    third.confirm_select(three).unwrap();
    third.publish(three, &Publish { exchange: "news", body: b"to all", ..Publish::default() });
    third.put(three, "mine", b"to one");
    third.confirmed(three, 1, 2);
    for body in [&b"to all"[..], b"to one"] {
        assert_eq!(first.get(one, "mine", true).unwrap().unwrap().body, body);
    }
    // Another connection's, on whichever node.
    let (mut stranger, channel) = nodes.connect(2);
    assert_eq!(stranger.declare(channel, &own("mine")).unwrap_err().code, 405);

    // A question and its answer, the two sides on two nodes.
    third.declare(three, &durable("questions")).unwrap();
    third.consume_with(three, "questions", "q", [false, true, false], &[]).unwrap();
    second.consume_with(two, REPLY_TO, "r", [false, true, false], &[]).unwrap();
    let properties = Properties::only(REPLY_TO_BIT, Args::new().shortstr(REPLY_TO).0);
    second.publish(two, &Publish { key: "questions", body: b"?", properties, ..Publish::default() });
    let question = third.delivery(three);
    let name = Reader(&question.properties.bytes).shortstr();
    third.put(three, &name, b"!");
    third.confirmed(three, 3, 3);
    assert_eq!(second.delivery(two).body, b"!");

    // A consumer elsewhere, and the end of the node.
    first.declare(one, &QueueDeclare { name: "fleeting", ..QueueDeclare::default() }).unwrap();
    second.consume(two, "fleeting", "c").unwrap();
    third.put(three, "fleeting", b"a");
    assert_eq!(second.delivery(two).body, b"a");
    nodes.brokers[0].kill();
    assert!(matches!(second.event(two), Event::Cancelled(tag) if tag == "c"));
    let (mut late, channel) = nodes.connect(2);
    assert_eq!(late.counts(channel, "fleeting").unwrap_err().code, 404);
    let (mut heir, channel) = nodes.connect(1);
    heir.declare(channel, &own("mine")).unwrap();
    let told: Vec<String> = nodes.brokers[1..]
        .iter()
        .flat_map(|broker| {
            let log = broker.log();
            log.lines()
                .filter(|line| line.contains("are gone with the memory of leveret@"))
                .map(str::to_string)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        matches!(&told[..], [line] if line.contains("2 exclusive") && line.ends_with("mine, fleeting")),
        "{told:?}"
    );

    // Without its node's end, what is one connection's goes with that.
    drop(heir);
    let due = Instant::now() + Duration::from_secs(10);
    loop {
        let (mut late, channel) = nodes.connect(2);
        match late.counts(channel, "mine").unwrap_err().code {
            404 => break,
            code => assert_eq!(code, 405),
        }
        assert!(Instant::now() < due, "an exclusive queue outlives its connection");
    }
}

#[test]
fn what_a_consumer_holds_and_its_place_as_the_active_one_outlive_the_leader() {
    if !is_foreign() {
        consumers_outlive(Broker::kill, |_| {});
    }
}

#[test]
fn what_a_consumer_holds_and_its_place_as_the_active_one_outlive_a_leader_that_hangs() {
    if !is_foreign() {
        consumers_outlive(|leader| leader.signal(Signal::STOP), |leader| leader.signal(Signal::CONT));
    }
}

/// Consumers on two nodes, and queues that the third may lead: that goes, and comes back at the end.
fn consumers_outlive(go: impl Fn(&mut Broker), come: impl Fn(&mut Broker)) {
    let nodes = &mut Nodes::up();
    let (mut declarer, channel) = nodes.connect(2);
    let (mut first, one) = nodes.connect(0);
    let (mut second, two) = nodes.connect(1);
    first.qos(one, 10, false).unwrap();
    second.qos(two, 10, false).unwrap();
    declarer.confirm_select(channel).unwrap();
    let (mut numbers, mut expected) = (0, 0);
    for number in 0..12 {
        // Of a queue that is shared all messages are in hand, of the others half.
        let (name, is_single) = (format!("q{number}"), number % 2 == 0);
        let arguments = vec![("x-queue-type", "quorum".into()), ("x-single-active-consumer", is_single.into())];
        declarer.declare(channel, &QueueDeclare { arguments, ..durable(&name) }).unwrap();
        first.consume(one, &name, &name).unwrap();
        for place in 0..if is_single { 20 } else { 10 } {
            // Some queues have messages of two priorities.
            let properties = match number % 3 == 0 && place % 2 == 0 {
                true => Properties::only(PRIORITY_BIT, vec![9]),
                false => Properties::default(),
            };
            declarer.publish(channel, &Publish { key: &name, body: b"m", properties, ..Publish::default() });
            numbers += 1;
        }
        expected += if is_single { 10 } else { 0 };
    }
    assert_eq!(confirmed_of(&mut declarer, channel, numbers).len() as u64, numbers);
    let held: Vec<_> = (0..120).map(|_| first.delivery(one)).collect();
    for number in 0..12 {
        let name = format!("q{number}");
        second.consume(two, &name, &name).unwrap();
    }
    let (mut third, three) = nodes.connect(1);
    third.qos(three, 10, false).unwrap();
    go(&mut nodes.brokers[2]);
    // Who comes now knows nothing of the leader before, and may come first.
    for number in 0..12 {
        third.consume(three, &format!("q{number}"), &format!("late{number}")).unwrap();
    }
    for (client, channel) in [(&mut second, two), (&mut third, three)] {
        let came = client.event_within(channel, Duration::from_secs(2));
        assert!(came.is_none(), "all of it is in another one's hands, who lives: {came:?}");
    }
    held.iter().for_each(|delivery| first.ack(one, delivery.tag, false));
    for _ in 0..expected {
        let Some(Event::Delivery(delivery)) = first.event_within(one, Duration::from_secs(20)) else {
            panic!("who was the active one is it");
        };
        assert!(!held.iter().any(|held| held.tag == delivery.tag), "it is another one");
        first.ack(one, delivery.tag, false);
    }
    let came = second.event_within(two, Duration::from_millis(500));
    assert!(came.is_none(), "what was acked is not there any more: {came:?}");
    come(&mut nodes.brokers[2]);
    let came = second.event_within(two, Duration::from_secs(2));
    assert!(came.is_none(), "who comes back gives nothing out: {came:?}");
}

#[test]
fn an_exclusive_consumer_stays_alone_when_its_queue_has_another_leader() {
    if is_foreign() {
        return;
    }
    let nodes = &mut Nodes::up();
    let (mut first, one) = nodes.connect(0);
    let names: Vec<String> = (0..12).map(|number| format!("q{number}")).collect();
    for name in &names {
        first.declare(one, &durable(name)).unwrap();
        // Tag, then: no local, no ack, exclusive.
        first.consume_with(one, name, name, [false, false, true], &[]).unwrap();
    }
    let others: Vec<_> = names.iter().map(|_| nodes.connect(1)).collect();
    nodes.brokers[2].kill();
    // Whichever comes first to a new leader: who was there is there.
    std::thread::scope(|scope| {
        for ((number, name), (mut other, channel)) in names.iter().enumerate().zip(others) {
            scope.spawn(move || {
                let refused = other.consume_with(channel, name, name, [false, false, number % 2 == 0], &[]);
                assert_eq!(refused.err().map(|error| error.code), Some(403), "{name} has two");
            });
        }
    });
    first.confirm_select(one).unwrap();
    names.iter().for_each(|name| first.put(one, name, b"m"));
    let mut came = BTreeSet::new();
    while came.len() < names.len() {
        if let Event::Delivery(delivery) = first.event(one) {
            came.insert(delivery.consumer_tag.clone());
            first.ack(one, delivery.tag, false);
        }
    }
}

#[test]
fn nothing_that_was_confirmed_is_lost_with_a_node_and_consumers_elsewhere_go_on() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let (mut declarer, channel) = nodes.connect(2);
    let names: Vec<String> = (0..4).map(|number| format!("q{number}")).collect();
    names.iter().for_each(|name| drop(declarer.declare(channel, &durable(name)).unwrap()));
    drop(declarer);
    let (mut publisher, out) = nodes.connect(0);
    let (mut consumer, into) = nodes.connect(0);
    consumer.qos(into, 10, false).unwrap();
    for name in &names {
        consumer.consume(into, name, name).unwrap();
    }
    publisher.confirm_select(out).unwrap();
    let (before, after) = (200_u64, 100);
    let put = |publisher: &mut Client, number: u64| {
        publisher.put(out, &names[number as usize % names.len()], number.to_string().as_bytes());
    };
    (1..=before).for_each(|number| put(&mut publisher, number));
    let mut confirmed = confirmed_of(&mut publisher, out, before);
    assert_eq!(confirmed.len() as u64, before, "all are there");
    nodes.brokers[2].kill();
    let (mut number, due) = (before, Instant::now() + Duration::from_secs(20));
    while (confirmed.len() as u64) < before + after {
        assert!(Instant::now() < due, "a majority is there, and {} are confirmed", confirmed.len());
        number += 1;
        put(&mut publisher, number);
        let Event::Confirm { tag, nack, .. } = publisher.event(out) else { panic!("only answers are due") };
        assert_eq!(tag, number);
        match nack {
            true => std::thread::sleep(Duration::from_millis(10)),
            false => drop(confirmed.insert(number)),
        }
    }
    let mut came = BTreeSet::new();
    let patience = Duration::from_secs(20);
    let due = Instant::now() + patience;
    while !confirmed.iter().all(|number| came.contains(number)) {
        assert!(Instant::now() < due, "{} of {} came", came.len(), confirmed.len());
        let Some(Event::Delivery(delivery)) = consumer.event_within(into, patience) else {
            panic!("a consumer on a node that lives hears nothing of another that died");
        };
        let number: u64 = String::from_utf8_lossy(&delivery.body).parse().unwrap();
        assert!(came.insert(number) || delivery.redelivered, "{number} came twice, and not flagged");
        consumer.ack(into, delivery.tag, false);
    }
    // Each of the others says once what it leads now.
    for broker in &nodes.brokers[..2] {
        let told = |log: &str| log.lines().filter(|line| line.contains("of 4 groups after leveret@")).count();
        let due = Instant::now() + patience;
        while told(&broker.log()) == 0 {
            assert!(Instant::now() < due, "who leads now is not told: {}", broker.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(told(&broker.log()), 1);
    }
    // It comes back, and serves.
    nodes.brokers[2].launch();
    nodes.brokers[2].until_it_answers();
    let (mut back, channel) = nodes.connect(2);
    back.confirm_select(channel).unwrap();
    back.put(channel, &names[0], b"0");
    back.confirmed(channel, 1, 1);
}

/// Publishes to queues in turn and has so many unanswered at most; `pause` is told how many were sent. Every one is
/// confirmed.
fn publish_all(client: &mut Client, channel: u16, names: &[String], last: u64, mut pause: impl FnMut(u64)) {
    const WINDOW: usize = 100;
    let mut open = BTreeSet::new();
    for number in 1..=last {
        client.put(channel, &names[number as usize % names.len()], number.to_string().as_bytes());
        open.insert(number);
        pause(number);
        while open.len() >= WINDOW || number == last && !open.is_empty() {
            let Some(Event::Confirm { tag, multiple, nack }) = client.event_within(channel, Duration::from_secs(30))
            else {
                panic!("a publish is answered: {open:?}")
            };
            assert!(!nack, "{tag} is refused, and a majority is there");
            match multiple {
                true => open = open.split_off(&(tag + 1)),
                false => assert!(open.remove(&tag), "{tag} is answered twice"),
            }
        }
    }
}

#[test]
fn who_publishes_over_a_node_that_lives_sees_a_pause_when_a_leader_dies_and_no_refusal() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let names: Vec<String> = (0..6).map(|number| format!("q{number}")).collect();
    let (mut client, channel) = nodes.connect(0);
    names.iter().for_each(|name| drop(client.declare(channel, &durable(name)).unwrap()));
    let (last, victims) = (4_000_u64, [2, 1]);
    for victim in victims {
        let (mut publisher, out) = nodes.connect(0);
        publisher.confirm_select(out).unwrap();
        publish_all(&mut publisher, out, &names, last, |number| {
            if number == last / 2 {
                nodes.brokers[victim].kill();
            }
        });
        nodes.brokers[victim].launch();
        nodes.brokers[victim].until_it_answers();
    }
    for (at, name) in names.iter().enumerate() {
        let of_one = (1..=last).filter(|number| *number as usize % names.len() == at);
        let wanted: Vec<String> =
            victims.iter().flat_map(|_| of_one.clone()).map(|number| number.to_string()).collect();
        let mut came = Vec::new();
        while let Some(got) = client.get(channel, name, true).unwrap() {
            came.push(String::from_utf8(got.body).unwrap());
        }
        assert_eq!(came, wanted, "each once, and in order");
    }
}

#[test]
fn what_was_confirmed_is_there_after_all_nodes_were_killed_at_once() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let (mut client, channel) = nodes.connect(1);
    client.declare(channel, &durable("kept")).unwrap();
    client.confirm_select(channel).unwrap();
    for number in 0..50 {
        client.put(channel, "kept", format!("{number}").as_bytes());
    }
    client.confirmed(channel, 1, 50);
    nodes.brokers.iter_mut().for_each(Broker::kill);
    nodes.brokers.iter_mut().for_each(Broker::launch);
    nodes.brokers.iter_mut().for_each(Broker::until_it_answers);
    let (mut client, channel) = nodes.connect(0);
    for number in 0..50 {
        let got = client.get(channel, "kept", true).unwrap().expect("it was confirmed and is there");
        assert_eq!(got.body, format!("{number}").into_bytes());
    }
    assert!(client.get(channel, "kept", true).unwrap().is_none());
}

#[test]
fn a_node_that_may_have_forgotten_something_notes_that_it_has_caught_up_and_how_it_ended() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let node = &mut nodes.brokers[1];
    node.kill();
    let boot = node.data_folder().join("boot");
    let says = |what: &str| std::fs::read_to_string(&boot).unwrap_or_default().contains(what);
    assert!(says("closed no\nforgot none\n"));
    // As after a cut of the power: nothing proves that the end of its log is there.
    std::fs::remove_file(&boot).unwrap();
    node.launch();
    node.until_it_answers();
    let due = Instant::now() + Duration::from_secs(30);
    while !says("forgot none\n") {
        assert!(Instant::now() < due, "{:?}", std::fs::read_to_string(&boot));
        std::thread::sleep(Duration::from_millis(50));
    }
    node.terminate();
    assert!(says("closed yes\nforgot none\n"), "{:?}", std::fs::read_to_string(&boot));
}

#[test]
fn who_is_no_node_of_the_cluster_is_told_why() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let refused = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["server", "--amqp", "127.0.0.1:0", "--management", "none"]).args(arguments);
        let output = command.env_clear().stdin(Stdio::null()).output().unwrap();
        // Of these no second start makes anything of it, so that a service manager does not try.
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
    };
    let secret = nodes.folder.path().join("secret");
    let secret = secret.to_str().unwrap();
    nodes.brokers[0].kill();
    let own = nodes.peers.split(',').next().unwrap().to_owned();
    // A node of a cluster does not start alone, nor with another list.
    let data = nodes.brokers[0].data_folder();
    let data = data.to_str().unwrap();
    let line = refused(&["--data-dir", data]);
    assert!(line.contains("start it with cluster_peers"), "{line}");
    let fewer = nodes.peers.rsplit_once(',').unwrap().0;
    let line = refused(&[
        "--data-dir",
        data,
        "--cluster-peers",
        fewer,
        "--cluster-address",
        &own,
        "--cluster-secret-file",
        secret,
    ]);
    assert!(line.contains("cluster"), "{line}");
    // A node that lost its disk is not itself any more.
    let empty = nodes.folder.path().join("empty");
    let line = refused(&[
        "--data-dir",
        empty.to_str().unwrap(),
        "--cluster-peers",
        &nodes.peers,
        "--cluster-address",
        &own,
        "--cluster-secret-file",
        secret,
    ]);
    assert!(line.contains("another data folder"), "{line}");
    assert!(!empty.join("identity").exists(), "nothing of it is left");
    // Settings that lack something.
    let line = refused(&["--data-dir", data, "--cluster-peers", &nodes.peers]);
    assert!(line.contains("cluster_secret_file"), "{line}");
    nodes.brokers[0].launch();
    nodes.brokers[0].until_it_answers();
}

/// By what it knew before, a node that has lost the others would say that each of these is done.
#[test]
fn a_node_without_a_majority_says_of_nothing_that_it_is_done() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &durable("there")).unwrap();
    client.bind(channel, "there", "amq.direct", "k", &[]).unwrap();
    type Ask = fn(&mut Client, u16) -> Result<(), Closed>;
    let asks: [Ask; 6] = [
        |client, channel| client.declare(channel, &durable("there")).map(drop),
        |client, channel| client.counts(channel, "there").map(drop),
        |client, channel| client.counts(channel, "not there").map(drop),
        |client, channel| client.bind(channel, "there", "amq.direct", "k", &[]),
        |client, channel| client.unbind(channel, "there", "amq.direct", "other", &[]),
        |client, channel| client.delete(channel, "not there", false, false).map(drop),
    ];
    // They hang, so that for two seconds the node does not even know that it is alone.
    nodes.brokers[1..].iter().for_each(|broker| broker.signal(Signal::STOP));
    std::thread::scope(|scope| {
        let mut asked = Vec::new();
        for (number, ask) in asks.into_iter().enumerate() {
            let (mut client, channel) = nodes.connect(0);
            asked.push((number, scope.spawn(move || ask(&mut client, channel))));
        }
        for (number, ask) in asked {
            let refused = ask.join().unwrap().expect_err("nobody knows that");
            assert_eq!(refused.code, 541, "{number}: {}", refused.text);
        }
    });
    // One of them is enough.
    nodes.brokers[1].signal(Signal::CONT);
    let (mut client, channel) = nodes.connect(0);
    client.declare(channel, &durable("there")).unwrap();
    client.unbind(channel, "there", "amq.direct", "other", &[]).unwrap();
    assert_eq!(client.delete(channel, "not there", false, false).unwrap(), 0);
    assert_eq!(client.counts(channel, "not there").unwrap_err().code, 404);
    nodes.brokers[2].signal(Signal::CONT);
    nodes.brokers.iter_mut().for_each(Broker::kill);
}

/// Turns one byte of a message in the log of a node that does not run.
fn damage(broker: &Broker, body: &[u8]) {
    let files = std::fs::read_dir(broker.data_folder().join("wal")).unwrap().map(|entry| entry.unwrap().path());
    for path in files {
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(body.len()).position(|window| window == body) {
            bytes[at] ^= 1;
            return std::fs::write(&path, bytes).unwrap();
        }
    }
    panic!("the message is nowhere in its log");
}

#[test]
fn what_is_damaged_on_one_node_is_served_by_the_others_also_over_that_one() {
    if is_foreign() {
        return;
    }
    let mut nodes = Nodes::up();
    let (mut client, channel) = nodes.connect(0);
    client.confirm_select(channel).unwrap();
    let names: Vec<String> = (0..4).map(|number| format!("q{number}")).collect();
    for name in &names {
        client.declare(channel, &durable(name)).unwrap();
        // Who leads may still change after the start.
        loop {
            client.put(channel, name, format!("the one message of {name}").as_bytes());
            let Event::Confirm { nack, .. } = client.event(channel) else { panic!("only answers are due") };
            if !nack {
                break;
            }
        }
    }
    // All three have it on their disks.
    for broker in &mut nodes.brokers {
        broker.terminate();
    }
    damage(&nodes.brokers[1], b"the one message of q2");
    nodes.brokers.iter_mut().for_each(Broker::launch);
    nodes.brokers.iter_mut().for_each(Broker::until_it_answers);
    assert!(nodes.brokers[1].log().contains("QUARANTINED on this node"), "{}", nodes.brokers[1].log());
    let (mut client, channel) = nodes.connect(1);
    for name in &names {
        let due = Instant::now() + Duration::from_secs(10);
        loop {
            match client.get(channel, name, true) {
                Ok(got) => break assert_eq!(got.unwrap().body, format!("the one message of {name}").as_bytes()),
                // It has not heard yet who leads.
                Err(refused) => assert!(Instant::now() < due, "{name}: {}", refused.text),
            }
            std::thread::sleep(Duration::from_millis(50));
            (client, _) = nodes.connect(1);
        }
    }
    nodes.brokers[1].terminate();
    let folder = nodes.brokers[1].data_folder();
    let repair = Command::new(binary()).arg("repair").arg(&folder).output().unwrap();
    let told = String::from_utf8_lossy(&repair.stderr);
    assert!(
        !repair.status.success() && told.contains("an older copy of the folder does not, and must not be used"),
        "{told}"
    );
}

/// Partitions that came to be on other nodes lie between those that the first one has: of these it knows nothing, and is to
/// begin nothing.
#[test]
fn the_first_node_leads_nothing_of_others_when_it_is_started_again() {
    if is_foreign() {
        return;
    }
    let mut nodes = clients::Nodes::none();
    let address = free_port().to_string();
    let first = nodes.add(&[], &address);
    nodes.start(first);
    let (second, third) = (nodes.newcomer(first), nodes.newcomer(first));
    [second, third].into_iter().for_each(|node| nodes.start(node));
    nodes.until_copies(third, 3);
    // One copy each, on the node of its client, in several partitions of that node's.
    let queues: Vec<(usize, String)> = [third, second, first]
        .into_iter()
        .flat_map(|node| (0..8).map(move |n| (node, format!("of-{node}-{n}"))))
        .collect();
    for (node, queue) in &queues {
        let (mut client, channel) = nodes.connect(*node);
        client.declare(channel, &clients::nodes::classic(queue)).unwrap();
        client.confirm_select(channel).unwrap();
        (1..=3u32).for_each(|number| client.put(channel, queue, number.to_string().as_bytes()));
        client.confirmed(channel, 1, 3);
    }
    // All partitions that came to be with the queues are begun where they are wanted.
    std::thread::sleep(Duration::from_secs(3));
    nodes.kill(first);
    nodes.start(first);
    for asked in [first, second, third] {
        let (mut client, channel) = nodes.connect(asked);
        client.confirm_select(channel).unwrap();
        for (at, (_, queue)) in (1..).zip(&queues) {
            assert_eq!(client.counts(channel, queue).unwrap().0, 3 + asked as u32, "{queue}, asked of node {asked}");
            client.put(channel, queue, b"4");
            client.confirmed(channel, at, at);
        }
    }
    for node in [first, second, third] {
        assert!(!nodes.nodes[node].broker.log().contains("HALTED"), "{}", nodes.nodes[node].broker.log());
    }
    for (_, queue) in &queues {
        let (mut client, channel) = nodes.connect(second);
        let got = std::iter::from_fn(|| client.get(channel, queue, true).unwrap()).count();
        assert_eq!(got, 6, "{queue}");
    }
}

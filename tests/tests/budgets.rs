//! What one client can cost the others: patterns that take for ever, and what is begun and never
//! ended.
//!
//! Invariant: limits are set so low that no test holds more than some megabytes.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use clients::client::{PATIENCE, connect_with_a_small_buffer};
use clients::methods::{TX_COMMIT, TX_COMMIT_OK, TX_ROLLBACK, TX_ROLLBACK_OK, TX_SELECT, TX_SELECT_OK};
use clients::verbs::header_frame;
use clients::wire::Args;
use clients::{Broker, Client, Closed, ExchangeDeclare, Http, Properties, Publish, QueueDeclare, Scope};
use serde_json::{Value, json};

/// Searched for in a name of many letters it tries every way to cut the name into ones and twos.
const ENDLESS: &str = "(?:(?=a)(?:a|aa))+(?!a)b";

const MEBIBYTE: usize = 1 << 20;

#[test]
fn what_deduplication_remembers_counts_for_the_memory_alarm() {
    let Some((broker, http)) = Broker::managed(&["--transient-bytes-max=16MiB"]) else { return };
    if clients::broker::is_foreign() {
        return;
    }
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    let (yes, week) = (clients::Value::from(true), clients::Value::from(604_800_000));
    for (name, durable) in [("kept", true), ("transient", false)] {
        let arguments = vec![
            ("x-message-deduplication", yes.clone()),
            ("x-deduplication-window-ms", week.clone()),
            ("x-max-length", clients::Value::from(0)),
        ];
        client.declare(channel, &QueueDeclare { name, durable, arguments, ..Default::default() }).unwrap();
    }
    let count: u64 = 30_000;
    for n in 0..count {
        let properties = Properties::with_headers(&[("x-deduplication-header", clients::Value::from(n as i64))]);
        let key = if n % 2 == 0 { "kept" } else { "transient" };
        client.publish(channel, &Publish { key, properties, ..Publish::default() });
    }
    client.confirmed(channel, 1, count);
    let bytes = figure(&http, "leveret_deduplication_bytes");
    assert!((count * 190..count * 200).contains(&bytes), "{bytes}");
    // Neither these nor the messages are too much by themselves.
    let alarm = |on: bool| {
        let due = Instant::now() + PATIENCE;
        while (http.get("/api/health/checks/alarms").status == 503) != on {
            assert!(Instant::now() < due, "the alarm is {}", if on { "off" } else { "on" });
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    alarm(false);
    client.declare(channel, &QueueDeclare { name: "q", ..Default::default() }).unwrap();
    (0..12)
        .for_each(|_| client.publish(channel, &Publish { key: "q", body: &vec![0; MEBIBYTE], ..Publish::default() }));
    alarm(true);
    http.delete("/api/queues/%2f/q").with(204);
    http.delete("/api/queues/%2f/transient").with(204);
    alarm(false);
    // Beyond half of the limit a key that is new is refused, while a message without one and a
    // repeat come in.
    let publish = |client: &mut Client, header: Option<i64>| {
        let header = header.map(|n| ("x-deduplication-header", clients::Value::from(n)));
        let properties = Properties::with_headers(header.as_slice());
        client.publish(channel, &Publish { key: "kept", properties, ..Publish::default() });
    };
    // The tag of the first that is refused, if one is, when the answer to the last is there.
    let first_refused = |client: &mut Client, last: u64| {
        let mut refused: Option<u64> = None;
        loop {
            match client.event(channel) {
                clients::client::Event::Confirm { tag, nack, .. } => {
                    refused = if nack { Some(refused.unwrap_or(tag).min(tag)) } else { refused };
                    if tag >= last {
                        return refused;
                    }
                }
                other => panic!("confirms were due, got {other:?}"),
            }
        }
    };
    let mut last = count + 12;
    let refused = (0..60).find_map(|lot: i64| {
        (0..1000).for_each(|n| publish(&mut client, Some(-1 - 1000 * lot - n)));
        last += 1000;
        first_refused(&mut client, last)
    });
    let taken = refused.expect("keys are limited") - count - 12;
    assert!((28_000..36_000).contains(&taken), "there are 15,000, and room for 28,690: {taken}");
    for header in [None, Some(0)] {
        publish(&mut client, header);
        last += 1;
        assert_eq!(first_refused(&mut client, last), None, "{header:?}");
    }
    http.delete("/api/queues/%2f/kept").with(204);
    wait_for_nothing(&http, "leveret_deduplication_bytes");
}

fn policy(pattern: &str, priority: i64, length: i64) -> String {
    json!({ "pattern": pattern, "apply-to": "queues", "priority": priority, "definition": { "max-length": length } })
        .to_string()
}

fn reason(response: &clients::http::Response) -> String {
    response.with(400)["reason"].as_str().unwrap().to_owned()
}

fn declare_long_names(client: &mut Client, count: usize) -> Vec<String> {
    let channel = client.channel();
    let names: Vec<String> = (0..count).map(|n| format!("{}{n:04}", "a".repeat(240))).collect();
    for name in &names {
        client.declare(channel, &QueueDeclare { name, durable: true, ..Default::default() }).unwrap();
    }
    names
}

#[test]
fn a_pattern_that_tries_every_combination_is_refused_and_never_stored() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let mut client = broker.connect();
    declare_long_names(&mut client, 50);
    for kind in ["policies", "operator-policies"] {
        let path = format!("/api/{kind}/%2F/endless");
        assert!(reason(&http.put(&path, &policy(ENDLESS, 1, 5))).contains("tries"), "{kind}");
        assert_eq!(http.get(&path).status, 404, "it is not stored");
    }
    let rights = json!({ "configure": ".*", "write": ENDLESS, "read": ".*" }).to_string();
    assert!(reason(&http.put("/api/permissions/%2F/guest", &rights)).contains("tries"));
    let topics = json!({ "exchange": "amq.topic", "write": ENDLESS, "read": ".*" }).to_string();
    assert!(reason(&http.put("/api/topic-permissions/%2F/guest", &topics)).contains("tries"));
    let definitions = json!({
        "vhosts": [{ "name": "from-the-file" }],
        "policies": [{
            "vhost": "/", "name": "endless", "pattern": ENDLESS, "apply-to": "queues",
            "definition": { "max-length": 5 }, "priority": 0,
        }],
    });
    assert!(reason(&http.post("/api/definitions", &definitions.to_string())).contains("tries"));
    assert_eq!(http.get("/api/vhosts/from-the-file").status, 404, "nothing of the file is done");
    let list = |pattern: &str| http.get(&format!("/api/queues?use_regex=true&name={}", pattern.replace('+', "%2B")));
    assert!(reason(&list(ENDLESS)).contains("too long"));
    assert_eq!(list("^(?!b)a%2B.*7$").with(200).as_array().unwrap().len(), 5);
}

#[test]
fn policies_hold_by_rank_whatever_comes_and_goes() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    for name in ["a1", "a2", "b1"] {
        client.declare(channel, &QueueDeclare { name, durable: true, ..Default::default() }).unwrap();
    }
    let held = || -> Vec<Value> {
        let queue = |name| http.get(&format!("/api/queues/%2F/{name}")).with(200)["policy"].clone();
        ["a1", "a2", "b1", "a3"].into_iter().take(4).map(queue).collect()
    };
    client.declare(channel, &QueueDeclare { name: "a3", ..Default::default() }).unwrap();
    let put = |name: &str, pattern: &str, priority| {
        let status = http.put(&format!("/api/policies/%2F/{name}"), &policy(pattern, priority, 5)).status;
        assert!([201, 204].contains(&status), "{status}");
    };
    put("all", ".*", 0);
    put("a", "^a", 1);
    assert_eq!(held(), ["a", "a", "all", "a"]);
    put("one", "1$", 2);
    assert_eq!(held(), ["one", "a", "one", "a"]);
    put("one", "1$", -1);
    assert_eq!(held(), ["a", "a", "all", "a"]);
    put("a", "^a[23]", 1);
    assert_eq!(held(), ["all", "a", "all", "a"]);
    http.delete("/api/policies/%2F/a").with(204);
    assert_eq!(held(), ["all", "all", "all", "all"]);
    http.delete("/api/policies/%2F/all").with(204);
    assert_eq!(held()[..3], [json!("one"), Value::Null, json!("one")]);
    // The rules follow: a queue of one message keeps the last one.
    http.put("/api/policies/%2F/short", &policy("^a2$", 9, 1)).with(201);
    client.confirm_select(channel).unwrap();
    client.put(channel, "a2", b"first");
    client.put(channel, "a2", b"second");
    client.confirmed(channel, 1, 2);
    assert_eq!(client.get(channel, "a2", true).unwrap().unwrap().body, b"second");
}

/// Small limits: 4 MiB a connection, 6.5 MiB a user, 8 MiB the node, 2 MiB for histories.
const SMALL: &[&str] = &[
    "--body-bytes-max=1MiB",
    "--connection-bytes-max=4MiB",
    "--user-bytes-max=6656KiB",
    "--transient-bytes-max=16MiB",
];

fn figure(http: &Http, name: &str) -> u64 {
    let overview = http.get("/api/nodes").with(200);
    overview[0][name].as_u64().unwrap_or_else(|| panic!("{name} is missing in {overview}"))
}

fn wait_for_nothing(http: &Http, name: &str) {
    let due = Instant::now() + PATIENCE;
    while figure(http, name) != 0 {
        assert!(Instant::now() < due, "{} bytes of {name} stay", figure(http, name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn assert_too_much(closed: &Closed, of: &str) {
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 506), "{closed:?}");
    assert!(closed.text.contains(of), "{closed:?}");
}

/// Publishes a megabyte in a transaction of its own, on each of so many channels, until the broker
/// has enough.
fn transactions(broker: &Broker, channels: u16) -> (Client, Result<(), Closed>) {
    let mut client = broker.connect();
    let body = vec![7; MEBIBYTE];
    let mut begin = |channel| {
        client.open_channel(channel)?;
        client.call(channel, TX_SELECT, &Args::new(), TX_SELECT_OK)?;
        client.put(channel, "kept", &body);
        client.round_trip(channel)
    };
    let begun = (1..=channels).try_for_each(&mut begin);
    (client, begun)
}

#[test]
fn open_transactions_have_a_budget_by_connection_and_user() {
    let Some((broker, http)) = Broker::managed(SMALL) else { return };
    let mut other = broker.connect();
    let channel = other.channel();
    other.declare(channel, &QueueDeclare { name: "kept", durable: true, ..Default::default() }).unwrap();
    let (_greedy, begun) = transactions(&broker, 8);
    assert_too_much(&begun.expect_err("eight megabytes are too much"), "of this connection");
    wait_for_nothing(&http, "leveret_unfinished_bytes");

    let (mut first, begun) = transactions(&broker, 3);
    begun.unwrap();
    let (second, begun) = transactions(&broker, 2);
    begun.unwrap();
    let bytes = figure(&http, "leveret_unfinished_bytes");
    assert!((5 * MEBIBYTE..6 * MEBIBYTE).contains(&(bytes as usize)), "{bytes}");
    let (_third, begun) = transactions(&broker, 2);
    assert_too_much(&begun.expect_err("it is more than a user has"), "of this user");
    // What was held before goes on, and its end gives the memory back.
    first.call(1, TX_COMMIT, &Args::new(), TX_COMMIT_OK).unwrap();
    first.call(2, TX_ROLLBACK, &Args::new(), TX_ROLLBACK_OK).unwrap();
    first.close_channel(3);
    second.close();
    wait_for_nothing(&http, "leveret_unfinished_bytes");
    assert_eq!(other.counts(channel, "kept").unwrap().0, 1);
    let (mut fourth, begun) = transactions(&broker, 3);
    begun.unwrap();
    fourth.call(1, TX_COMMIT, &Args::new(), TX_COMMIT_OK).unwrap();
}

#[test]
fn unfinished_bodies_have_a_budget_that_whole_messages_do_not_touch() {
    let Some((broker, http)) = Broker::managed(SMALL) else { return };
    let mut publisher = broker.connect();
    let channel = publisher.channel();
    publisher.declare(channel, &QueueDeclare { name: "kept", durable: true, ..Default::default() }).unwrap();
    publisher.confirm_select(channel).unwrap();
    let begin = |channels: u16| {
        let mut client = broker.connect();
        // All of them first: the connection may be closed behind any body.
        let channels: Vec<u16> = (0..channels).map(|_| client.channel()).collect();
        for channel in channels {
            let whole =
                Publish { key: "kept", body: &vec![1; MEBIBYTE], ..Publish::default() }.frames(channel, 131_072);
            // Its last frame, which has what eight whole ones leave, never comes.
            client.raw(&whole[..whole.len() - (MEBIBYTE - 8 * 131_064) - 8]);
        }
        client
    };
    let mut clients: Vec<Client> = [3, 3].into_iter().map(begin).collect();
    // Who grows beyond the limit is closed: that shall be the third.
    let due = Instant::now() + PATIENCE;
    while figure(&http, "leveret_unfinished_bytes") < 6 * 8 * 131_064 {
        assert!(Instant::now() < due, "{} bytes", figure(&http, "leveret_unfinished_bytes"));
        std::thread::sleep(Duration::from_millis(20));
    }
    clients.push(begin(1));
    assert_too_much(&clients.last_mut().unwrap().closed(0), "of this user");
    for seq in 1..=20 {
        publisher.put(channel, "kept", &[2; 10_000]);
        publisher.confirmed(channel, seq, seq);
    }
    drop(clients);
    wait_for_nothing(&http, "leveret_unfinished_bytes");
    let mut greedy = begin(5);
    assert_too_much(&greedy.closed(0), "this connection");
    // A header claims what it likes.
    let mut claims = broker.connect();
    for _ in 0..100 {
        let channel = claims.channel();
        let whole = Publish { key: "kept", body: &[1], ..Publish::default() }.frames(channel, 131_072);
        let header = header_frame(channel, &Properties::default(), MEBIBYTE as u64);
        let method = whole.len() - header.len() - 9;
        claims.raw(&whole[..method]);
        claims.raw(&header);
    }
    let still = claims.channel();
    claims.round_trip(still).unwrap();
}

/// Consumers of one queue on one channel, until the broker has enough; how many there are.
fn consumers(client: &mut Client, channel: u16, count: usize) -> Result<(), Closed> {
    (0..count).try_for_each(|n| client.consume(channel, "kept", &format!("{n:05}")).map(|_| ()))
}

#[test]
fn consumers_have_a_budget_by_connection_and_user() {
    let Some((broker, http)) = Broker::managed(&[
        "--body-bytes-max=1MiB",
        "--connection-bytes-max=1MiB",
        "--user-bytes-max=2MiB",
        "--transient-bytes-max=16MiB",
    ]) else {
        return;
    };
    let mut keeper = broker.connect();
    let channel = keeper.channel();
    keeper.declare(channel, &QueueDeclare { name: "kept", durable: true, ..Default::default() }).unwrap();
    let open = || {
        let mut client = broker.connect();
        let channel = client.channel();
        (client, channel)
    };
    let (mut greedy, channel) = open();
    let refused = consumers(&mut greedy, channel, 1_400).expect_err("a connection has room for four hundred");
    assert_too_much(&refused, "of this connection");
    wait_for_nothing(&http, "leveret_unfinished_bytes");
    // Those that were cancelled count no more.
    let (mut first, one) = open();
    consumers(&mut first, one, 360).unwrap();
    for n in 0..120 {
        first.cancel(one, &format!("{n:05}")).unwrap();
    }
    let bytes = figure(&http, "leveret_unfinished_bytes");
    assert!((600 << 10..610 << 10).contains(&bytes), "{bytes}");
    let (mut second, two) = open();
    consumers(&mut second, two, 360).unwrap();
    let (mut third, three) = open();
    assert_too_much(&consumers(&mut third, three, 360).expect_err("it is more than a user has"), "of this user");
    // Channels count too.
    let mut many = broker.connect();
    let opened = (1..=2_047).try_for_each(|number| many.open_channel(number));
    assert_too_much(&opened.expect_err("it is more than a user has left"), "of this");
    drop((first, second));
    wait_for_nothing(&http, "leveret_unfinished_bytes");
}

#[test]
fn publishers_that_are_held_back_keep_a_little_once_all_keep_much() {
    const PUBLISHERS: u32 = 96;
    let Some((broker, http)) = Broker::managed(SMALL) else { return };
    let mut keeper = broker.connect();
    let channel = keeper.channel();
    keeper.declare(channel, &QueueDeclare { name: "kept", durable: true, ..Default::default() }).unwrap();
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let hold = format!("/api/nodes/{node}/publishers/hold");
    assert!(http.put(&hold, "").status < 300);
    // Each sends more than the 64 KiB that one of them may keep; together they may keep a megabyte,
    // and 16 KiB each beyond it.
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|_| {
            let mut client = broker.connect();
            let channel = client.channel();
            client.confirm_select(channel).unwrap();
            let one = Publish { key: "kept", body: &[7; 3_000], ..Publish::default() }.frames(channel, 131_072);
            std::thread::spawn(move || {
                client.raw(&one.repeat(100));
                client.confirmed(channel, 1, 100);
            })
        })
        .collect();
    let mut most = 0;
    let due = Instant::now() + Duration::from_secs(2);
    while Instant::now() < due {
        most = most.max(figure(&http, "leveret_waiting_bytes"));
        std::thread::sleep(Duration::from_millis(20));
    }
    // One read of the socket is handled as a whole.
    assert!((1 << 20..4 << 20).contains(&most), "{most} bytes wait");
    assert!(http.delete(&hold).status < 300);
    publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    assert_eq!(keeper.counts(channel, "kept").unwrap().0, 100 * PUBLISHERS, "nothing of it is lost");
    wait_for_nothing(&http, "leveret_waiting_bytes");
}

#[test]
fn arguments_have_a_budget_by_virtual_host() {
    let Some((broker, http)) = Broker::managed(&["--vhost-arguments-bytes-max=64KiB"]) else { return };
    let text = clients::Value::Str("x".repeat(10_000));
    let note = [("note", text)];
    let mut client = broker.connect();
    let channel = client.channel();
    let declare = |client: &mut Client, channel, name: &str| {
        client.declare(channel, &QueueDeclare { name, durable: true, ..Default::default() })
    };
    declare(&mut client, channel, "kept").unwrap();
    client.bind(channel, "kept", "amq.headers", "", &note).unwrap();
    // Six of them fit, whatever the key is; the same again is no further one.
    for key in ["a", "b", "c", "d", "e", "e"] {
        client.bind(channel, "kept", "amq.headers", key, &note).unwrap();
    }
    let refused = client.bind(channel, "kept", "amq.headers", "f", &note).expect_err("it is full");
    assert_eq!((refused.scope, refused.code), (Scope::Channel, 406), "{refused:?}");
    assert!(refused.text.contains("vhost_arguments_bytes_max"), "{refused:?}");
    bindings_without_arguments_count_too(&broker, &http);
    let channel = client.channel();
    let long =
        ExchangeDeclare { name: "long", kind: "direct", durable: true, arguments: note.to_vec(), ..Default::default() };
    assert_eq!(client.declare_exchange(channel, &long).expect_err("it is full").code, 406);
    // A queue without arguments takes none, a binding little, and another virtual host has room of
    // its own.
    let channel = client.channel();
    declare(&mut client, channel, "other").unwrap();
    client.bind(channel, "other", "amq.direct", "key", &[]).unwrap();
    http.put("/api/vhosts/second", "").with(201);
    let over_http = json!({ "routing_key": "", "arguments": { "note": "x".repeat(10_000) } }).to_string();
    http.put("/api/queues/second/kept", r#"{"durable":true}"#).with(201);
    http.post("/api/bindings/second/e/amq.headers/q/kept", &over_http).with(201);
    assert!(reason(&http.post("/api/bindings/%2F/e/amq.headers/q/other", &over_http)).contains("raised"));
    // What goes makes room, and a queue takes its bindings along.
    client.unbind(channel, "kept", "amq.headers", "a", &note).unwrap();
    client.bind(channel, "kept", "amq.headers", "g", &note).unwrap();
    client.delete(channel, "kept", false, false).unwrap();
    client.declare_exchange(channel, &long).unwrap();
}

fn bindings_without_arguments_count_too(broker: &Broker, http: &Http) {
    http.put("/api/vhosts/bindings", "").with(201);
    let mut client =
        Client::login(broker.addr(), &clients::Login { vhost: "bindings".into(), ..Default::default() }).unwrap();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", ..Default::default() }).unwrap();
    let mut bind = |key: &str| client.bind(channel, "q", "amq.topic", key, &[]);
    let bound = (0..10_000).find_map(|n| bind(&format!("{n:036}")).err().map(|refused| (n, refused)));
    let (bound, refused) = bound.unwrap();
    assert_eq!((bound, refused.code), (496, 406), "of 132 bytes each, 64 KiB");
    assert!(refused.text.contains("vhost_arguments_bytes_max"), "{refused:?}");
    client.open_channel(channel).unwrap();
    client.bind(channel, "q", "amq.topic", &format!("{:036}", 0), &[]).unwrap();
    let unbind = Args::new().short(0).shortstr("q").shortstr("amq.topic").shortstr(&format!("{:036}", 0)).table(&[]);
    client.call(channel, clients::methods::QUEUE_UNBIND, &unbind, clients::methods::QUEUE_UNBIND_OK).unwrap();
    client.bind(channel, "q", "amq.topic", "new", &[]).unwrap();
}

#[test]
fn histories_of_all_exchanges_share_one_budget() {
    let Some((broker, http)) = Broker::managed(SMALL) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let names: Vec<String> = (0..10).map(|n| format!("remembers-{n}")).collect();
    for name in &names {
        let arguments = vec![("x-recent-history-length", clients::Value::I32(100))];
        let declare = ExchangeDeclare { name, kind: "x-recent-history", arguments, ..Default::default() };
        client.declare_exchange(channel, &declare).unwrap();
    }
    for n in 0..10u8 {
        for name in &names {
            client.publish(channel, &Publish { exchange: name, body: &vec![n; 100_000], ..Publish::default() });
        }
    }
    client.round_trip(channel).unwrap();
    let bytes = figure(&http, "leveret_history_bytes");
    assert!((500_000..=2 * MEBIBYTE as u64).contains(&bytes), "{bytes}");
    client.declare(channel, &QueueDeclare { name: "late", ..Default::default() }).unwrap();
    client.bind(channel, "late", &names[3], "", &[]).unwrap();
    let youngest = std::iter::from_fn(|| client.get(channel, "late", true).unwrap()).last().unwrap();
    assert_eq!(youngest.body[0], 9, "each keeps its youngest");
}

#[test]
fn who_reads_nothing_is_disconnected_once_all_of_them_leave_too_much_unread() {
    const MESSAGES: u64 = 60;
    let Some((broker, http)) = Broker::managed(&["--transient-bytes-max=32MiB", "--body-bytes-max=1MiB"]) else {
        return;
    };
    if clients::broker::is_foreign() {
        return;
    }
    let mut keeper = broker.connect();
    let channel = keeper.channel();
    keeper.confirm_select(channel).unwrap();
    let arguments = vec![("x-queue-type", "quorum".into()), ("x-delivery-limit", clients::Value::from(-1))];
    for name in ["kept", "small"] {
        let arguments = arguments.clone();
        keeper.declare(channel, &QueueDeclare { name, durable: true, arguments, ..Default::default() }).unwrap();
    }
    for number in 0..MESSAGES {
        let mut body = vec![7; MEBIBYTE - 1];
        body[..8].copy_from_slice(&number.to_be_bytes());
        keeper.put(channel, "kept", &body);
    }
    // More than the sockets take, and little beside what the others leave.
    (0..300).for_each(|_| keeper.put(channel, "small", &[7; 1024]));
    keeper.confirmed(channel, 1, MESSAGES + 300);
    let stuck = |queue: &str| {
        let mut client = Client::on(connect_with_a_small_buffer(broker.addr()));
        let channel = client.channel();
        client.consume(channel, queue, "").unwrap();
        client
    };
    let mut little = stuck("small");
    // They may leave 8 MiB unread, and each of these leaves one or two.
    let mut silent: Vec<Client> = (0..20).map(|_| stuck("kept")).collect();
    let due = Instant::now() + PATIENCE;
    let mut most = 0;
    loop {
        let now = figure(&http, "leveret_unread_bytes");
        most = most.max(now);
        if most > 8 << 20 && now <= 8 << 20 {
            break;
        }
        assert!(Instant::now() < due, "{now} bytes are unread, and {most} were");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(most < 48 << 20, "{most}");
    let log = broker.log();
    assert!(log.contains("a client does not read what it was sent, and is disconnected"), "{log}");
    // What they had comes to who reads, once the others are gone too.
    let ended: usize =
        silent.iter_mut().map(|client| usize::from(client.ends_within(Duration::from_millis(200)))).sum();
    assert!((1..20).contains(&ended), "{ended} of 20 were ended: what is left fits");
    drop(silent);
    keeper.consume(channel, "kept", "").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < MESSAGES as usize {
        let delivery = keeper.delivery(channel);
        keeper.ack(channel, delivery.tag, false);
        seen.insert(delivery.body[..8].to_vec());
    }
    // Who left little was not touched.
    let channel = 1;
    for _ in 0..300 {
        let delivery = little.delivery(channel);
        little.ack(channel, delivery.tag, false);
    }
    little.round_trip(channel).unwrap();
    wait_for_nothing(&http, "leveret_unread_bytes");
}

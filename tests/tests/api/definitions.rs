//! Definitions over HTTP.

use clients::api::vhost;
use clients::broker::{is_foreign, unique};
use clients::{Broker, Client, Login, Publish};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// As RabbitMQ 3.13.6 exports it over HTTP, with names of our own: with what 3.13 says twice of a virtual
/// host, policies for one type of queues, mirrored queues and a shovel.
const EXPORT: &str = include_str!("../../../crates/server/tests/fixtures/rabbitmq-3.13.6-definitions.json");
/// The same virtual host as it exports it alone.
const ONE: &str = include_str!("../../../crates/server/tests/fixtures/rabbitmq-3.13.6-one-virtual-host.json");
/// A shovel, five keys of mirrors and one of streams.
const LEFT_OUT: usize = 8;

#[test]
fn who_imports_the_first_definitions_over_http_stays_who_they_are() {
    // At its start RabbitMQ makes no guest where a file is to be imported; over HTTP somebody has logged
    // in already.
    if is_foreign() {
        return;
    }
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let queues = r#"{"queues":[{"name":"q","vhost":"/","durable":true,"auto_delete":false,"arguments":{}}]}"#;
    http.post("/api/definitions", queues).with(204);
    assert_eq!(http.get("/api/queues/%2f/q").with(200)["name"], "q");
}

/// `curl -F file=@definitions.json`, as scripts for RabbitMQ have it, and `curl -OJ` of what goes out.
#[test]
fn a_file_of_definitions_is_uploaded_as_a_form_and_saved_under_its_name() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let queue = r#"{"queues":[{"name":"q","durable":true,"auto_delete":false,"arguments":{}}]}"#;
    let disposition = r#"content-disposition: form-data; name="file"; filename="d.json""#;
    let form = format!("--hay\r\n{disposition}\r\ncontent-type: application/json\r\n\r\n{queue}\r\n--hay--\r\n");
    let sent = [("content-type", "multipart/form-data; boundary=hay")];
    let path = format!("/api/definitions/{vhost}");
    http.send("POST", &path, &sent, &form).with(204);
    assert_eq!(http.get(&format!("/api/queues/{vhost}/q")).with(200)["name"], "q");
    http.send("POST", &path, &sent, &form.replace("name=\"file\"", "name=\"other\"")).with(400);
    let saved = http.get(&format!("{path}?download=of%20one.json"));
    assert_eq!((saved.status, &saved.json()["queues"][0]["name"]), (200, &json!("q")));
    if !is_foreign() {
        assert!(saved.head.contains("content-disposition: attachment; filename=\"of one.json\""), "{}", saved.head);
    }
    let split = http.get(&format!("{path}?download=a%0d%0ax-evil:%201"));
    assert!(split.status == 200 && !split.head.contains("x-evil"), "{}", split.head);
}

/// `definitions.skip_if_unchanged`: what an operator deleted since stays deleted until the files change.
#[test]
fn definitions_that_were_taken_in_before_are_passed_over_until_they_change() {
    if is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, queue: &str| {
        let queue = json!({ "name": queue, "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} });
        std::fs::write(folder.path().join(file), json!({ "queues": [queue] }).to_string()).unwrap();
    };
    // A folder that begins with definitions has the users that they name.
    let users = json!({
        "users": [{ "name": "guest", "password": "guest", "tags": "administrator" }],
        "vhosts": [{ "name": "/" }],
        "permissions": [{ "user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" }],
    });
    std::fs::write(folder.path().join("0.json"), users.to_string()).unwrap();
    write("1.json", "kept");
    write("2.json", "deleted");
    let definitions = format!("--definitions={}", folder.path().display());
    let (mut broker, http) = Broker::managed(&[&definitions, "--definitions-skip-if-unchanged", "true"]).unwrap();
    let delete = || http.delete("/api/queues/%2f/deleted").with(204);
    let there = |queue: &str| http.get(&format!("/api/queues/%2f/{queue}")).status == 200;
    let said = |broker: &Broker, words: &str| broker.log().matches(words).count();
    assert_eq!([there("kept"), there("deleted")], [true, true]);
    delete();
    broker.terminate();
    broker.start();
    assert_eq!([there("kept"), there("deleted")], [true, false]);
    assert_eq!((said(&broker, "passed over"), said(&broker, "definitions taken in")), (1, 1), "{}", broker.log());
    broker.signal(rustix::process::Signal::HUP);
    let due = Instant::now() + Duration::from_secs(20);
    while said(&broker, "passed over") < 2 {
        assert!(Instant::now() < due, "{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!there("deleted"));
    write("1.json", "new");
    broker.terminate();
    broker.start();
    assert_eq!([there("kept"), there("deleted"), there("new")], [true, true, true]);
    // Without the setting they are taken in at each start.
    delete();
    broker.terminate();
    broker.without_arguments("--definitions-skip-if-unchanged");
    broker.start();
    assert!(there("deleted"));
}

/// Whoever makes room has to be let in first.
#[test]
fn a_node_takes_its_definitions_in_at_a_start_while_its_disk_is_low_and_says_why_it_does_not_while_it_serves() {
    if is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("definitions.json");
    let write = |queues: &[&str]| {
        let queue =
            |name: &&str| json!({ "name": name, "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} });
        let document = json!({
            "users": [{ "name": "guest", "password": "guest", "tags": "administrator" }],
            "vhosts": [{ "name": "/" }],
            "permissions": [{ "user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" }],
            "queues": queues.iter().map(queue).collect::<Vec<_>>(),
        });
        std::fs::write(&file, document.to_string()).unwrap();
    };
    write(&["kept"]);
    let definitions = format!("--definitions={}", file.display());
    // No disk here has so much room.
    let low = "--disk-free-min-bytes=16TiB";
    let (mut broker, http) = Broker::managed(&[&definitions, "--definitions-skip-if-unchanged", "true", low]).unwrap();
    assert!(broker.log().contains("the disk is low"), "{}", broker.log());
    http.get("/api/queues/%2f/kept").with(200);
    write(&["kept", "late"]);
    broker.signal(rustix::process::Signal::HUP);
    let due = Instant::now() + Duration::from_secs(20);
    while !broker.log().contains("make room, and take the file in again") {
        assert!(Instant::now() < due, "{}", broker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(broker.log().contains("after 0 changes: "), "{}", broker.log());
    assert_eq!(http.get("/api/queues/%2f/late").status, 404);
    broker.terminate();
    broker.start();
    http.get("/api/queues/%2f/late").with(200);
}

#[test]
fn a_folder_of_definitions_without_any_is_told() {
    if is_foreign() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("readme.txt"), "definitions come here").unwrap();
    let definitions = format!("--definitions={}", folder.path().display());
    let (broker, _http) = Broker::managed(&[&definitions]).unwrap();
    let log = broker.log();
    let told = log.lines().find(|line| line.contains("has no file that ends in .json"));
    let folder = folder.path().display().to_string();
    assert!(told.is_some_and(|line| line.contains("WARN") && line.contains(&folder)), "{log}");
    assert!(!log.contains("definitions taken in"), "{log}");
}

#[test]
fn an_export_of_rabbitmq_3_13_is_taken_in_whole_but_for_what_is_for_others() {
    if is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let answer = http.post("/api/definitions", EXPORT).with(200);
    assert_eq!(
        (answer["left_out"].as_array().unwrap().len(), &answer["different"]),
        (LEFT_OUT, &json!([])),
        "{answer}"
    );
    let vhost = http.get("/api/vhosts/billing").with(200);
    assert_eq!(
        [&vhost["description"], &vhost["tags"], &vhost["default_queue_type"]],
        [&json!("invoices and payments"), &json!(["eu"]), &json!("quorum")]
    );
    let ceiling = |policy: Value| {
        let mut definition = policy;
        definition["max-length"] = 250_000.into();
        definition
    };
    for (name, kind, policy) in [
        ("invoices.old", "classic", json!({ "queue-version": 2 })),
        ("invoices.new", "quorum", json!({ "delivery-limit": 5, "dead-letter-exchange": "invoices.lost" })),
        ("invoices.dead", "quorum", json!({})),
    ] {
        let queue = http.get(&format!("/api/queues/billing/{name}")).with(200);
        assert_eq!((&queue["type"], &queue["effective_policy_definition"]), (&kind.into(), &ceiling(policy)), "{name}");
    }
    // The virtual host's own type holds for who says none, and a hash of RabbitMQ's lets in.
    http.put("/api/queues/billing/invoices.later", r#"{"durable":true}"#).with(201);
    assert_eq!(http.get("/api/queues/billing/invoices.later").with(200)["type"], "quorum");
    let login = Login { vhost: "billing".to_owned(), response: b"\0carol\0winter".to_vec(), ..Login::default() };
    let mut carol = Client::login(broker.addr(), &login).unwrap();
    let channel = carol.channel();
    carol.confirm_select(channel).unwrap();
    for key in ["invoice.eu", "nobody.waits"] {
        carol.publish(channel, &Publish { exchange: "invoices", key, body: key.as_bytes(), ..Default::default() });
    }
    carol.confirmed(channel, 1, 2);
    for (queue, body) in [("invoices.new", "invoice.eu"), ("invoices.dead", "nobody.waits")] {
        assert_eq!(carol.get(channel, queue, true).unwrap().unwrap().body, body.as_bytes(), "{queue}");
    }
    // What came out goes in again, and changes nothing.
    let exported = http.get("/api/definitions").with(200);
    http.post("/api/definitions", &exported.to_string()).with(204);
    assert_eq!(http.get("/api/definitions").with(200), exported);
}

#[test]
fn an_export_of_one_virtual_host_of_rabbitmq_3_13_is_taken_into_another() {
    if is_foreign() {
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    http.put("/api/vhosts/copy", "").with(201);
    let answer = http.post("/api/definitions/copy", ONE).with(200);
    assert_eq!(
        (answer["left_out"].as_array().unwrap().len(), &answer["different"]),
        (LEFT_OUT, &json!([])),
        "{answer}"
    );
    let queues = http.get("/api/queues/copy").with(200);
    let kinds: Vec<_> = queues.as_array().unwrap().iter().map(|queue| (&queue["name"], &queue["type"])).collect();
    let of = |name: &str, kind: &str| (json!(name), json!(kind));
    let wanted = [of("invoices.dead", "quorum"), of("invoices.new", "quorum"), of("invoices.old", "classic")];
    assert_eq!(kinds, wanted.each_ref().map(|(name, kind)| (name, kind)));
    assert_eq!(http.get("/api/vhost-limits/copy").with(200)[0]["value"]["max-queues"], 40);
    // What is said of the virtual host that it came from says nothing of this one.
    let copy = http.get("/api/vhosts/copy").with(200);
    assert_eq!([&copy["description"], &copy["default_queue_type"]], [&json!(""), &json!("classic")]);
}

/// As RabbitMQ 3.10.8 exports it: see the server's tests.
const EXPORT_OF_3_10: &str = include_str!("../../../crates/server/tests/fixtures/rabbitmq-3.10.8-definitions.json");

#[test]
fn a_real_export_is_taken_in_whole_but_for_what_is_for_others() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let answer = http.post("/api/definitions", EXPORT_OF_3_10).with(200);
    assert_eq!((answer["left_out"].as_array().unwrap().len(), &answer["different"]), (9, &json!([])), "{answer}");
    let exported = http.get("/api/definitions").with(200);
    let wanted: Value = serde_json::from_str(EXPORT_OF_3_10).unwrap();
    let sorted = |document: &Value, part: &str| {
        let mut items: Vec<String> =
            document[part].as_array().unwrap().iter().map(|item| item["name"].to_string()).collect();
        items.sort();
        items
    };
    for part in ["users", "vhosts", "queues", "exchanges", "policies"] {
        assert_eq!(sorted(&exported, part), sorted(&wanted, part), "{part}");
    }
    for part in ["permissions", "topic_permissions", "bindings"] {
        assert_eq!(exported[part].as_array().unwrap().len(), wanted[part].as_array().unwrap().len(), "{part}");
    }
    // A password of RabbitMQ's hash, the rights, the topology and the policies are in force.
    let login = Login { vhost: "orders".to_owned(), response: b"\0alice\0wonder".to_vec(), ..Login::default() };
    let mut alice = Client::login(broker.addr(), &login).unwrap();
    let channel = alice.channel();
    alice.confirm_select(channel).unwrap();
    alice.publish(channel, &Publish { exchange: "events", key: "eu.alice.new", body: b"x", ..Default::default() });
    alice.confirmed(channel, 1, 1);
    assert_eq!(alice.get(channel, "orders.new", true).unwrap().unwrap().body, b"x");
    alice.publish(channel, &Publish { exchange: "events", key: "eu.bob.new", body: b"x", ..Default::default() });
    assert_eq!(alice.closed(channel).code, 403);
    let queue = http.get("/api/queues/orders/orders.old").with(200);
    assert_eq!(queue["effective_policy_definition"], json!({ "max-length": 100000, "expires": 86400000 }));
    // What came out goes in again, and changes nothing.
    http.post("/api/definitions", &exported.to_string()).with(204);
    assert_eq!(http.get("/api/definitions").with(200), exported);
}

#[test]
fn definitions_come_out_as_they_go_in() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"arguments":{"x-max-length":3}}"#).with(201);
    http.put(&format!("/api/exchanges/{vhost}/x"), r#"{"type":"fanout"}"#).with(201);
    http.post(&format!("/api/bindings/{vhost}/e/x/q/q"), "{}").with(201);
    let user = unique("user");
    http.put(&format!("/api/users/{user}"), r#"{"password":"secret","tags":"monitoring"}"#).with(201);
    let exported = http.get("/api/definitions").with(200);
    assert!(!exported.to_string().contains("secret"), "a password never comes out");
    let of = |part: &str, field: &str, name: &str| {
        exported[part].as_array().unwrap().iter().find(|item| item[field] == *name).cloned()
    };
    assert!(of("users", "name", &user).unwrap()["password_hash"].as_str().unwrap().len() > 10);
    assert_eq!(of("queues", "vhost", &vhost).unwrap()["arguments"]["x-max-length"], 3);
    assert_eq!(of("bindings", "vhost", &vhost).unwrap()["source"], "x");
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
    http.delete(&format!("/api/users/{user}")).with(204);
    http.post("/api/definitions", &exported.to_string()).with(204);
    assert_eq!(http.get(&format!("/api/queues/{vhost}/q")).with(200)["arguments"]["x-max-length"], 3);
    http.as_user(&user, "secret").get("/api/whoami").with(200);
    let wrong = r#"{"users":[{"name":"x"}]}"#;
    assert_eq!(http.post("/api/definitions", wrong).status, 400);
    http.delete(&format!("/api/users/{user}")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

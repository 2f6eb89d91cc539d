//! Virtual hosts over HTTP: made, described, deleted with everything that is in them.

use clients::api::{connect, reason, vhost};
use clients::broker::{is_foreign, unique};
use clients::{Broker, Client, Login, QueueDeclare, Scope};
use serde_json::{Value, json};

#[test]
fn a_deleted_virtual_host_takes_everything_with_it() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "mine", exclusive: true, ..QueueDeclare::default() }).unwrap();
    client.bind(channel, "q", "amq.topic", "a.#", &[]).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "q", b"gone soon");
    client.confirmed(channel, 1, 1);
    http.put(&format!("/api/policies/{vhost}/p"), r#"{"pattern":"q","definition":{"max-length":5}}"#).with(201);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
    let closed = client.closed(0);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 320));
    assert_eq!(closed.text, format!("CONNECTION_FORCED - vhost '{vhost}' is deleted"));
    assert_eq!(http.get(&format!("/api/vhosts/{vhost}")).status, 404);
    let refused = Client::login(broker.addr(), &Login { vhost: vhost.clone(), ..Login::default() });
    assert_eq!(refused.map(|_| ()).unwrap_err().code, 530);
    // Another one of the name is empty: nothing is left of the first.
    http.put(&format!("/api/vhosts/{vhost}"), "").with(201);
    http.put(&format!("/api/permissions/{vhost}/guest"), r#"{"configure":".*","write":".*","read":".*"}"#);
    assert_eq!(http.get(&format!("/api/queues/{vhost}")).with(200), json!([]));
    assert_eq!(http.get(&format!("/api/policies/{vhost}")).with(200), json!([]));
    let bindings = http.get(&format!("/api/exchanges/{vhost}/amq.topic/bindings/source")).with(200);
    assert_eq!(bindings, json!([]));
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_was_deleted_stays_deleted_after_a_crash() {
    if is_foreign() {
        return;
    }
    let (mut broker, http) = Broker::managed(&[]).unwrap();
    let (gone, kept) = (vhost(&http), vhost(&http));
    for name in [&gone, &kept] {
        http.put(&format!("/api/queues/{name}/q"), r#"{"durable":true}"#).with(201);
    }
    http.put("/api/users/ann", r#"{"password":"pw","tags":"management"}"#).with(201);
    http.put("/api/users/bob", r#"{"password":"pw","tags":"management"}"#).with(201);
    http.delete(&format!("/api/vhosts/{gone}")).with(204);
    http.delete("/api/users/ann").with(204);
    http.put(&format!("/api/vhosts/{kept}"), r#"{"description":"stays","tags":["a"],"default_queue_type":"quorum"}"#)
        .with(204);
    broker.kill();
    broker.start();
    assert_eq!(http.get(&format!("/api/vhosts/{gone}")).status, 404);
    let found = http.get(&format!("/api/vhosts/{kept}")).with(200);
    assert_eq!((&found["description"], &found["default_queue_type"]), (&json!("stays"), &json!("quorum")));
    assert_eq!(http.get(&format!("/api/queues/{kept}")).with(200)[0]["name"], "q");
    let users: Vec<Value> = http.get("/api/users").with(200).as_array().unwrap().clone();
    let names: Vec<&Value> = users.iter().map(|user| &user["name"]).collect();
    assert_eq!(names, [&json!("bob"), &json!("guest")]);
}

#[test]
fn the_default_queue_type_of_a_virtual_host_is_that_of_its_queues() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = unique("quorum");
    http.put(&format!("/api/vhosts/{vhost}"), r#"{"default_queue_type":"quorum"}"#).with(201);
    let all = r#"{"configure":".*","write":".*","read":".*"}"#;
    http.put(&format!("/api/permissions/{vhost}/guest"), all);
    if http.get(&format!("/api/vhosts/{vhost}")).with(200)["default_queue_type"] != "quorum" {
        eprintln!("skipped: this release of RabbitMQ has no default queue type");
        return;
    }
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "mine", exclusive: true, ..QueueDeclare::default() }).unwrap();
    let kind = |name: &str| http.get(&format!("/api/queues/{vhost}/{name}")).with(200)["type"].clone();
    assert_eq!((kind("q"), kind("mine")), (json!("quorum"), json!("classic")));
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_cannot_be_is_refused_and_the_older_name_of_a_default_type_is_known() {
    // RabbitMQ 3.10 has neither and says nothing.
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let path = format!("/api/vhosts/{}", unique("vhost"));
    let refused = reason(&http.put(&path, r#"{"protected_from_deletion":true}"#), 400);
    assert_eq!(refused, "a virtual host cannot be protected from deletion here");
    assert_eq!(http.get(&path).status, 404, "nothing was made");
    http.put(&path, r#"{"protected_from_deletion":false,"defaultqueuetype":"quorum"}"#).with(201);
    assert_eq!(http.get(&path).with(200)["default_queue_type"], "quorum");
    http.delete(&path).with(204);
}

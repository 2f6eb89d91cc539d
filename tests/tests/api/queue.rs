//! Queues over HTTP: declared, counted, purged, deleted, looked at.

use clients::api::{connect, reason, until, vhost};
use clients::broker::{is_foreign, unique};
use clients::{Broker, Client, ExchangeDeclare, Login, QueueDeclare, Scope};
use serde_json::{Value, json};

#[test]
fn queues_are_declared_counted_purged_and_deleted() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let at = |name: &str| format!("/api/queues/{vhost}/{name}");
    let body = r#"{"durable":true,"auto_delete":false,"arguments":{"x-max-length":10}}"#;
    http.put(&at("a%2Fb"), body).with(201);
    http.put(&at("a%2Fb"), body).with(204);
    let refused = reason(&http.put(&at("a%2Fb"), r#"{"durable":true}"#), 400);
    assert!(refused.contains("inequivalent arg"), "{refused}");
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    (0..3).for_each(|_| client.put(channel, "a/b", b"x"));
    client.confirmed(channel, 1, 3);
    let found = until("the messages", || {
        let found = http.get(&at("a%2Fb")).with(200);
        (found["messages_ready"] == 3).then_some(found)
    });
    for (field, value) in [
        ("name", json!("a/b")),
        ("vhost", json!(vhost)),
        ("type", json!("classic")),
        ("durable", json!(true)),
        ("auto_delete", json!(false)),
        ("exclusive", json!(false)),
        ("messages", json!(3)),
        ("consumers", json!(0)),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
    assert_eq!(found["arguments"]["x-max-length"], 10);
    let delivery = client.get(channel, "a/b", false).unwrap().unwrap();
    until("an unacked message", || {
        (http.get(&at("a%2Fb")).with(200)["messages_unacknowledged"] == 1).then_some(Value::Null)
    });
    let refused = reason(&http.delete(&format!("{}?if-empty=true", at("a%2Fb"))), 400);
    assert!(refused.contains("not empty"), "{refused}");
    for (mistyped, told) in [
        ("if_empty=true", "unknown condition if_empty; did you mean if-empty?"),
        ("if-empty=tru", "if-empty is neither true nor false"),
        ("if-unused=true&If-Empty=true", "unknown condition If-Empty; did you mean if-empty?"),
    ] {
        let refused = reason(&http.delete(&format!("{}?{mistyped}", at("a%2Fb"))), 400);
        assert!(refused.contains(told), "{mistyped}: {refused}");
    }
    client.ack(channel, delivery.tag, false);
    http.delete(&format!("{}/contents", at("a%2Fb"))).with(204);
    assert_eq!(client.counts(channel, "a/b").unwrap(), (0, 0));
    client.consume(channel, "a/b", "c").unwrap();
    let refused = reason(&http.delete(&format!("{}?if-unused=true", at("a%2Fb"))), 400);
    assert!(refused.contains("in use"), "{refused}");
    http.delete(&at("a%2Fb")).with(204);
    http.delete(&at("a%2Fb")).with(404);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn to_look_at_a_queue_or_an_exchange_by_a_passive_declare_needs_no_right() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, name) = (vhost(&http), unique("reader"));
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true}"#).with(201);
    http.put(&format!("/api/exchanges/{vhost}/x"), r#"{"type":"direct"}"#).with(201);
    http.put(&format!("/api/users/{name}"), r#"{"password":"pw","tags":""}"#).with(201);
    // The second may consume from what it looks at and nothing else; the first may do nothing at
    // all.
    for rights in
        [r#"{"configure":"^$","write":"^$","read":"^$"}"#, r#"{"configure":"^$","write":"^$","read":"^(q|x)$"}"#]
    {
        let status = http.put(&format!("/api/permissions/{vhost}/{name}"), rights).status;
        assert!([201, 204].contains(&status), "{status}");
        let response = format!("\0{name}\0pw").into_bytes();
        let login = Login { vhost: vhost.clone(), response, ..Login::default() };
        let mut client = Client::login(broker.addr(), &login).unwrap();
        let channel = client.channel();
        assert_eq!(client.counts(channel, "q").unwrap(), (0, 0));
        let look = ExchangeDeclare { name: "x", kind: "direct", passive: true, ..Default::default() };
        client.declare_exchange(channel, &look).unwrap();
        let missing = client.counts(channel, "missing").unwrap_err();
        assert_eq!((missing.scope, missing.code), (Scope::Channel, 404), "{missing:?}");
        let other = client.channel();
        let refused = client.declare(other, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() });
        assert_eq!(refused.unwrap_err().code, 403, "to declare it still needs one");
        client.close();
    }
    http.delete(&format!("/api/users/{name}")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn the_type_that_an_answer_shows_makes_such_a_queue() {
    // RabbitMQ passes `type` over and makes a classic queue.
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let vhost = vhost(&http);
    let made = |name: &str, body: &str| {
        let path = format!("/api/queues/{vhost}/{name}");
        http.put(&path, body).with(201);
        let found = http.get(&path).with(200);
        (found["type"].as_str().unwrap().to_owned(), found["arguments"].clone())
    };
    let typed = |word: &str| (word.to_owned(), json!({ "x-queue-type": word }));
    assert_eq!(made("a", r#"{"durable":true,"type":"quorum"}"#), typed("quorum"));
    assert_eq!(made("b", r#"{"durable":true,"type":"classic"}"#), typed("classic"));
    // Who says two is believed where RabbitMQ listens.
    let both = r#"{"durable":true,"type":"quorum","arguments":{"x-queue-type":"classic"}}"#;
    assert_eq!(made("c", both), typed("classic"));
    http.put(&format!("/api/vhosts/{vhost}"), r#"{"default_queue_type":"quorum"}"#).with(204);
    assert_eq!(made("d", r#"{"durable":true,"type":"classic"}"#), typed("classic"));
    let refused = reason(&http.put(&format!("/api/queues/{vhost}/e"), r#"{"durable":true,"type":"striem"}"#), 400);
    assert!(refused.contains("striem"), "{refused}");
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

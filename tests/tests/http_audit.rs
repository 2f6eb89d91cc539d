//! The audit log: who changed what, when and from where, over HTTP and over AMQP, and no secret in
//! it.
#![allow(clippy::unwrap_used)]

use clients::api::until;
use clients::broker::is_foreign;
use clients::{Broker, ExchangeDeclare, QueueDeclare};
use serde_json::Value;

/// The lines of the audit log.
fn audit(broker: &Broker) -> Vec<String> {
    broker.log().lines().filter(|line| line.contains(" INFO  audit")).map(str::to_owned).collect()
}

/// Waits for a line with all of these parts.
fn told(broker: &Broker, parts: &[&str]) {
    until(&format!("a line with {parts:?}"), || {
        audit(broker).iter().any(|line| parts.iter().all(|part| line.contains(part))).then_some(Value::Null)
    });
}

#[test]
fn every_change_over_http_is_told_with_who_made_it_and_without_a_secret() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let everything = r#"{"configure":".*","write":".*","read":".*"}"#;
    http.put("/api/users/ann", r#"{"password":"sesame-opens","tags":"administrator"}"#).with(201);
    http.put("/api/permissions/%2F/ann", everything).with(201);
    let theirs = http.as_user("ann", "sesame-opens");
    theirs.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    theirs.put("/api/policies/%2F/p", r#"{"pattern":"^q","definition":{"max-length":5}}"#).with(201);
    theirs.put("/api/vhost-limits/%2F/max-queues", r#"{"value":9}"#).with(204);
    theirs.put("/api/global-parameters/mine", r#"{"value":1}"#).with(201);
    theirs.delete("/api/queues/%2F/q/contents").with(204);
    theirs.delete("/api/queues/%2F/q").with(204);
    theirs.put("/api/queues/%2F/publish", "{}").with(201);
    let definitions = http.get("/api/definitions").with(200).to_string();
    theirs.post("/api/definitions", &definitions).with(204);
    http.post("/api/users/bulk-delete", r#"{"users":["ann"]}"#).with(204);
    let ann = "user=ann ";
    for (user, change) in [
        ("user=guest ", r#"change="PUT /api/users/ann" status=201"#),
        ("user=guest ", r#"change="PUT /api/permissions/%2F/ann" status=201"#),
        (ann, r#"change="PUT /api/queues/%2F/q" status=201"#),
        (ann, r#"change="PUT /api/policies/%2F/p" status=201"#),
        (ann, r#"change="PUT /api/vhost-limits/%2F/max-queues" status=204"#),
        (ann, r#"change="PUT /api/global-parameters/mine" status=201"#),
        (ann, r#"change="DELETE /api/queues/%2F/q/contents" status=204"#),
        (ann, r#"change="DELETE /api/queues/%2F/q" status=204"#),
        (ann, r#"change="PUT /api/queues/%2F/publish" status=201"#),
        (ann, r#"change="POST /api/definitions" status=204"#),
        ("user=guest ", r#"change=bulk-delete name=ann"#),
    ] {
        told(&broker, &[user, change, "peer=127.0.0.1:"]);
    }
    assert!(!broker.log().contains("sesame-opens"), "a password is in the log");
    // What was refused changed nothing, and what only looks does not either.
    assert_eq!(http.put("/api/users/bob", r#"{"tags":5}"#).status, 400);
    http.delete("/api/global-parameters/mine").with(204);
    told(&broker, &["DELETE /api/global-parameters/mine"]);
    assert!(!audit(&broker).iter().any(|line| line.contains("bob") || line.contains("GET ")));
}

#[test]
fn declares_deletions_and_purges_over_amqp_are_told() {
    let Some((broker, _http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "kept", durable: true, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "own", exclusive: true, ..QueueDeclare::default() }).unwrap();
    client.declare_exchange(channel, &ExchangeDeclare { name: "x", kind: "direct", ..Default::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "kept", b"a");
    client.put(channel, "kept", b"b");
    client.confirmed(channel, 1, 2);
    assert_eq!(client.purge(channel, "kept").unwrap(), 2);
    client.delete(channel, "own", false, false).unwrap();
    client.delete(channel, "kept", false, false).unwrap();
    client.delete_exchange(channel, "x", false).unwrap();
    let who = "user=guest peer=127.0.0.1:";
    told(&broker, &[who, r#"change=queue.declare vhost=/ name=kept"#]);
    told(&broker, &[who, r#"change=exchange.declare vhost=/ name=x"#]);
    told(&broker, &[who, r#"change=queue.purge vhost=/ name=kept messages=2"#]);
    told(&broker, &[who, r#"change=queue.delete vhost=/ name=kept messages=0"#]);
    told(&broker, &[who, r#"change=exchange.delete vhost=/ name=x"#]);
    assert!(!audit(&broker).iter().any(|line| line.contains("name=own")), "nobody else knows of an exclusive queue");
}

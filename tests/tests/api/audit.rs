//! The audit log: who changed what, when and from where, over HTTP and over AMQP, and no secret in
//! it.

use clients::api::until;
use clients::broker::is_foreign;
use clients::methods::{EXCHANGE_BIND, EXCHANGE_BIND_OK, EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK};
use clients::wire::Args;
use clients::{Broker, Client, ExchangeDeclare, Login, QueueDeclare};
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

#[test]
fn bindings_made_and_removed_over_amqp_are_told_once() {
    let Some((broker, _http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "own", exclusive: true, ..QueueDeclare::default() }).unwrap();
    for name in ["x", "y"] {
        client.declare_exchange(channel, &ExchangeDeclare { name, kind: "direct", ..Default::default() }).unwrap();
    }
    let ends = || Args::new().short(0).shortstr("y").shortstr("x").shortstr("e").octet(0).table(&[]);
    for _ in 0..2 {
        client.bind(channel, "own", "x", "k", &[]).unwrap();
        client.call(channel, EXCHANGE_BIND, &ends(), EXCHANGE_BIND_OK).unwrap();
    }
    for _ in 0..2 {
        client.unbind(channel, "own", "x", "k", &[]).unwrap();
        client.call(channel, EXCHANGE_UNBIND, &ends(), EXCHANGE_UNBIND_OK).unwrap();
    }
    client.delete_exchange(channel, "y", false).unwrap();
    let who = "user=guest peer=127.0.0.1:";
    told(&broker, &[who, "change=exchange.delete vhost=/ name=y"]);
    for change in [
        "change=queue.bind vhost=/ source=x destination=own key=k",
        "change=exchange.bind vhost=/ source=x destination=y key=e",
        "change=queue.unbind vhost=/ source=x destination=own key=k",
        "change=exchange.unbind vhost=/ source=x destination=y key=e",
    ] {
        let lines = audit(&broker).iter().filter(|line| line.contains(change) && line.contains(who)).count();
        assert_eq!(lines, 1, "{change}: what is there already, or is not, is no change");
    }
}

#[test]
fn what_is_refused_for_want_of_a_right_is_told_and_a_flood_of_it_is_counted() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/users/eve", r#"{"password":"sesame-opens","tags":"management"}"#).with(201);
    http.put("/api/permissions/%2F/eve", r#"{"configure":"^$","write":"^$","read":"^$"}"#).with(201);
    http.put("/api/vhosts/other", "").with(201);
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    let login = Login { response: b"\0eve\0sesame-opens".to_vec(), ..Login::default() };
    let other = Client::login(broker.addr(), &Login { vhost: "other".into(), ..login.clone() });
    assert_eq!(other.err().map(|closed| closed.code), Some(530));
    let mut client = Client::login(broker.addr(), &login).unwrap();
    let channel = client.channel();
    client.purge(channel, "q").unwrap_err();
    for _ in 0..300 {
        let channel = client.channel();
        client.put(channel, "q", b"hello");
        assert_eq!(client.closed(channel).code, 403);
    }
    assert_eq!(http.as_user("eve", "sesame-opens").put("/api/users/eve", r#"{"tags":"administrator"}"#).status, 401);
    http.put("/api/users/tom", r#"{"password":"sesame-opens","tags":""}"#).with(201);
    assert_eq!(http.as_user("tom", "sesame-opens").get("/api/overview").status, 401);
    told(&broker, &["user=tom peer=127.0.0.1:", r#"refused="management login" reason="Not management user""#]);
    let who = "user=eve peer=127.0.0.1:";
    told(&broker, &[who, "refused=queue.purge vhost=/", "access to queue 'q' in vhost '/' refused for user 'eve'"]);
    told(&broker, &[who, "refused=connection.open vhost=other", "access to vhost 'other' refused for user 'eve'"]);
    told(&broker, &[who, r#"refused="PUT /api/users/eve" reason="Not administrator user""#]);
    told(&broker, &["count=", "127.0.0.1: ", "users=", "eve: ", "more like this"]);
    let publishes = audit(&broker).iter().filter(|line| line.contains("refused=basic.publish vhost=/")).count();
    assert!((1..=50).contains(&publishes), "{publishes} lines");
    assert!(!broker.log().contains("sesame-opens"), "a password is in the log");
}

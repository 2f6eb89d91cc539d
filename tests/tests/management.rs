//! The management API from outside: what is asked over HTTP holds for clients over AMQP, and the
//! other way round.
//!
//! With `AMQP_URI` and `MANAGEMENT` the same tests run against RabbitMQ, whose figures about
//! connections come late: what is asked of them is waited for.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use clients::api::{reason, until, vhost};
use clients::broker::{is_foreign, unique};
use clients::client::PATIENCE;
use clients::{Broker, Client, ExchangeDeclare, Http, Login, Properties, Publish, QueueDeclare, Scope, Value as Field};
use serde_json::{Value, json};

/// The only connection of a virtual host.
fn connection_in(http: &Http, vhost: &str) -> Value {
    until("a connection in the list", || {
        let all = http.get("/api/connections").with(200);
        let mut own = all.as_array().unwrap().iter().filter(|c| c["vhost"] == vhost && c["state"] == "running");
        own.next().cloned()
    })
}

fn path_of(connection: &Value) -> String {
    let name = connection["name"].as_str().unwrap();
    format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"))
}

fn connect(broker: &Broker, vhost: &str) -> Client {
    Client::login(broker.addr(), &Login { vhost: vhost.to_owned(), ..Login::default() }).unwrap()
}

#[test]
fn a_connection_is_listed_and_closed_with_the_operators_reason() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let _channel = client.channel();
    let listed = connection_in(&http, &vhost);
    assert_eq!(listed["user"], "guest");
    assert_eq!(listed["protocol"], "AMQP 0-9-1");
    assert_eq!(listed["client_properties"]["product"], "leveret tests");
    assert_eq!(listed["client_properties"]["capabilities"]["basic.nack"], true);
    assert_eq!(listed["auth_mechanism"], "PLAIN");
    let one = http.get(&path_of(&listed)).with(200);
    assert_eq!(one["name"], listed["name"]);
    let channels = until("a channel in the list", || {
        let found = http.get(&format!("{}/channels", path_of(&listed))).with(200);
        (found.as_array().unwrap().len() == 1).then_some(found)
    });
    assert_eq!(channels[0]["number"], 1);
    http.send("DELETE", &path_of(&listed), &[("X-Reason", "tidying up")], "").with(204);
    let closed = client.closed(0);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 320));
    assert_eq!(closed.text, "CONNECTION_FORCED - tidying up");
    until("the end of the connection", || (http.get(&path_of(&listed)).status == 404).then_some(Value::Null));
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_is_not_there_is_answered_in_json_and_only_to_who_may_ask() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    assert_eq!(http.get("/api/connections/none").with(404)["error"], "Object Not Found");
    assert_eq!(reason(&http.get("/api/queues/%2F/none"), 404), "Not Found");
    assert_eq!(reason(&http.get("/api/nothing/of/the/kind"), 404), "Not Found");
    assert_eq!(http.post("/api/overview", "{}").status, 405);
    let stranger = http.as_user("guest", "wrong");
    let refused = stranger.get("/api/overview");
    assert_eq!(refused.status, 401, "{refused:?}");
    let nobody = http.raw(b"GET /api/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(nobody.status, 401);
    assert!(nobody.head.contains("www-authenticate: basic"), "{nobody:?}");
    assert_eq!(reason(&http.put("/api/vhosts/x", "{not json"), 400), "not_json");
    let me = http.get("/api/whoami").with(200);
    assert_eq!((me["name"].clone(), me["tags"].clone()), (json!("guest"), json!(["administrator"])));
}

#[test]
fn a_user_sees_and_does_what_the_tags_say() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    let user = |tags: &str| http.put(&format!("/api/users/{name}"), &format!(r#"{{"password":"pw","tags":"{tags}"}}"#));
    user("").with(201);
    let theirs = http.as_user(&name, "pw");
    assert_eq!(reason(&theirs.get("/api/whoami"), 401), "Not management user");
    user("management").with(204);
    theirs.get("/api/whoami").with(200);
    assert_eq!(theirs.get("/api/vhosts").with(200), json!([]));
    assert_eq!(theirs.get("/api/nodes").status, 401);
    assert_eq!(theirs.get("/api/users").status, 401);
    assert_eq!(theirs.put("/api/vhosts/of-nobody", "").status, 401);
    assert_eq!(theirs.get(&format!("/api/queues/{vhost}")).status, 401);
    let permission = r#"{"configure":"^own","write":"^own","read":"^own"}"#;
    http.put(&format!("/api/permissions/{vhost}/{name}"), permission).with(201);
    assert_eq!(theirs.get("/api/vhosts").with(200)[0]["name"], json!(vhost));
    theirs.put(&format!("/api/queues/{vhost}/own"), r#"{"durable":true}"#).with(201);
    let refused = reason(&theirs.put(&format!("/api/queues/{vhost}/other"), "{}"), 401);
    assert_eq!(refused, "Access refused.");
    // Other people's connections are nobody's business.
    let _client = connect(&broker, &vhost);
    connection_in(&http, &vhost);
    assert_eq!(theirs.get("/api/connections").with(200), json!([]));
    user("monitoring").with(204);
    until("a monitor sees it", || {
        (!theirs.get("/api/connections").with(200).as_array().unwrap().is_empty()).then_some(Value::Null)
    });
    theirs.get("/api/nodes").with(200);
    assert_eq!(theirs.put("/api/vhosts/of-nobody", "").status, 401);
    http.delete(&format!("/api/users/{name}")).with(204);
    assert_eq!(theirs.get("/api/whoami").status, 401);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_mistyped_field_is_refused_with_the_one_that_was_meant() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    for (path, body, told) in [
        (format!("users/{name}"), r#"{"pasword":"pw","tags":""}"#, "unknown field pasword; did you mean password?"),
        (
            format!("policies/{vhost}/p"),
            r#"{"pattern":".*","definition":{"max-length":1},"apply_to":"queues"}"#,
            "unknown field apply_to; did you mean apply-to?",
        ),
        (format!("queues/{vhost}/q"), r#"{"durabel":true}"#, "unknown field durabel; did you mean durable?"),
    ] {
        assert_eq!(reason(&http.put(&format!("/api/{path}"), body), 400), told);
        assert_eq!(http.get(&format!("/api/{path}")).status, 404, "nothing was made");
    }
    // What a client was shown it may send back.
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true}"#).with(201);
    let shown = http.get(&format!("/api/queues/{vhost}/q")).with(200).to_string();
    http.put(&format!("/api/queues/{vhost}/q"), &shown).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_deleted_user_is_disconnected() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    http.put(&format!("/api/users/{name}"), r#"{"password":"pw","tags":""}"#).with(201);
    let all = r#"{"configure":".*","write":".*","read":".*"}"#;
    http.put(&format!("/api/permissions/{vhost}/{name}"), all).with(201);
    let response = format!("\0{name}\0pw").into_bytes();
    let login = Login { vhost: vhost.clone(), response, ..Login::default() };
    let mut client = Client::login(broker.addr(), &login).unwrap();
    http.delete(&format!("/api/users/{name}")).with(204);
    let closed = client.closed(0);
    assert_eq!((closed.scope, closed.code), (Scope::Connection, 320), "{closed:?}");
    assert!(Client::login(broker.addr(), &login).is_err());
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

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
    if clients::broker::is_foreign() {
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
fn lists_are_paged_sorted_and_cut_to_columns() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    for name in ["b", "c", "a", "ab"] {
        http.put(&format!("/api/queues/{vhost}/{name}"), "{}").with(201);
    }
    let of = |query: &str| http.get(&format!("/api/queues/{vhost}?{query}")).with(200);
    assert_eq!(of("columns=name&sort=name"), json!([{"name":"a"},{"name":"ab"},{"name":"b"},{"name":"c"}]));
    let page = of("page=2&page_size=3&sort=name&columns=name");
    assert_eq!(page["items"], json!([{"name":"c"}]));
    assert_eq!((&page["page_count"], &page["total_count"], &page["item_count"]), (&json!(2), &json!(4), &json!(1)));
    let found = of("page=1&page_size=10&name=%5Ea&use_regex=true&columns=name&sort=name&sort_reverse=true");
    assert_eq!(found["items"], json!([{"name":"ab"},{"name":"a"}]));
    assert_eq!(found["filtered_count"], 2);
    assert_eq!(http.get(&format!("/api/queues/{vhost}?page=9")).status, 400);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn exchanges_and_bindings_are_made_and_unmade() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/exchanges/{vhost}/x"), r#"{"type":"topic","durable":true}"#).with(201);
    http.put(&format!("/api/exchanges/{vhost}/x"), r#"{"type":"topic","durable":true}"#).with(204);
    http.put(&format!("/api/queues/{vhost}/q"), "{}").with(201);
    let between = format!("/api/bindings/{vhost}/e/x/q/q");
    assert_eq!(http.post(&format!("/api/bindings/{vhost}/e/x/q/none"), "{}").with(404)["error"], "not_found");
    let made = http.post(&between, r#"{"routing_key":"a.#","arguments":{}}"#);
    made.with(201);
    assert!(made.head.contains("location: "), "{made:?}");
    let listed = http.get(&between).with(200);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    let key = listed[0]["properties_key"].as_str().unwrap().to_owned();
    assert_eq!(listed[0]["routing_key"], "a.#");
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    client.publish(channel, &Publish { exchange: "x", key: "a.b", body: b"m", ..Publish::default() });
    client.confirmed(channel, 1, 1);
    assert_eq!(client.counts(channel, "q").unwrap().0, 1);
    let to_queue = http.get(&format!("/api/queues/{vhost}/q/bindings")).with(200);
    assert_eq!(to_queue.as_array().unwrap().len(), 2, "its own and that of the default exchange");
    http.get(&format!("{between}/{}", key.replace('%', "%25"))).with(200);
    http.delete(&format!("{between}/{}", key.replace('%', "%25"))).with(204);
    assert_eq!(http.get(&between).with(200), json!([]));
    let refused = reason(&http.delete(&format!("/api/exchanges/{vhost}/amq.topic")), 401);
    assert_eq!(refused, "Access refused.");
    http.delete(&format!("/api/exchanges/{vhost}/x")).with(204);
    http.delete(&format!("/api/exchanges/{vhost}/x")).with(404);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn permissions_and_limits_hold_at_once() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    http.put(&format!("/api/vhost-limits/{vhost}/max-queues"), r#"{"value":1}"#).with(204);
    let listed = http.get(&format!("/api/vhost-limits/{vhost}")).with(200);
    assert_eq!(listed, json!([{ "vhost": vhost, "value": { "max-queues": 1 } }]));
    let refused = client.declare(channel, &QueueDeclare { name: "r", durable: true, ..QueueDeclare::default() });
    assert_eq!(refused.unwrap_err().code, 406);
    http.delete(&format!("/api/vhost-limits/{vhost}/max-queues")).with(204);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "r", durable: true, ..QueueDeclare::default() }).unwrap();
    let none = r#"{"configure":"^$","write":"^$","read":"^$"}"#;
    http.put(&format!("/api/permissions/{vhost}/guest"), none).with(204);
    let held = http.get(&format!("/api/permissions/{vhost}/guest")).with(200);
    assert_eq!((&held["user"], &held["configure"]), (&json!("guest"), &json!("^$")));
    let refused = client.declare(channel, &QueueDeclare { name: "s", durable: true, ..QueueDeclare::default() });
    assert_eq!(refused.unwrap_err().code, 403);
    http.delete(&format!("/api/permissions/{vhost}/guest")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn policies_are_shown_where_they_hold() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/q1"), "{}").with(201);
    let policy = r#"{"pattern":"^q","definition":{"max-length":9,"expires":60000},"priority":2,"apply-to":"queues"}"#;
    http.put(&format!("/api/policies/{vhost}/p"), policy).with(201);
    let operator = r#"{"pattern":"^q","definition":{"max-length":5},"apply-to":"queues"}"#;
    http.put(&format!("/api/operator-policies/{vhost}/op"), operator).with(201);
    let found = until("the policies in force", || {
        let found = http.get(&format!("/api/queues/{vhost}/q1")).with(200);
        (found["operator_policy"] == "op" && found["policy"] == "p").then_some(found)
    });
    assert_eq!(found["effective_policy_definition"], json!({ "max-length": 5, "expires": 60000 }));
    let one = http.get(&format!("/api/policies/{vhost}/p")).with(200);
    assert_eq!(
        (&one["priority"], &one["apply-to"], &one["definition"]["max-length"]),
        (&json!(2), &json!("queues"), &json!(9))
    );
    let wrong = r#"{"pattern":"^q","definition":{"max-lenght":5}}"#;
    let refused = reason(&http.put(&format!("/api/policies/{vhost}/wrong"), wrong), 400);
    assert!(refused.contains("max-lenght"), "{refused}");
    assert_eq!(
        http.get("/api/policies").with(200).as_array().unwrap().iter().filter(|p| p["vhost"] == *vhost).count(),
        1
    );
    http.delete(&format!("/api/policies/{vhost}/p")).with(204);
    http.delete(&format!("/api/policies/{vhost}/p")).with(404);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
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

#[test]
fn the_node_says_that_it_is_well() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    for check in ["alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "protocol-listener/amqp"] {
        assert_eq!(http.get(&format!("/api/health/checks/{check}")).with(200)["status"], "ok", "{check}");
    }
    let port = broker.addr().port();
    assert_eq!(http.get(&format!("/api/health/checks/port-listener/{port}")).with(200)["status"], "ok");
    assert_eq!(http.get("/api/health/checks/port-listener/1").status, 503);
    assert_eq!(http.get("/api/aliveness-test/%2F").with(200)["status"], "ok");
    let overview = http.get("/api/overview").with(200);
    assert!(overview["object_totals"]["queues"].is_u64() && overview["rabbitmq_version"].is_string(), "{overview}");
    let node = overview["node"].as_str().unwrap();
    assert_eq!(http.get(&format!("/api/nodes/{node}")).with(200)["running"], true);
    assert_eq!(http.get("/api/nodes").with(200).as_array().unwrap().len(), 1);
}

/// As RabbitMQ 3.10.8 exports it: see the server's tests.
const EXPORT: &str = include_str!("../../crates/server/tests/fixtures/rabbitmq-3.10.8-definitions.json");

#[test]
fn a_real_export_is_taken_in_whole_but_for_what_is_for_others() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let answer = http.post("/api/definitions", EXPORT).with(200);
    assert_eq!((answer["left_out"].as_array().unwrap().len(), &answer["different"]), (8, &json!([])), "{answer}");
    let exported = http.get("/api/definitions").with(200);
    let wanted: Value = serde_json::from_str(EXPORT).unwrap();
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
fn a_policy_drops_repeats_and_the_metrics_count_them() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let policy = r#"{"pattern":"^once","definition":{"message-deduplication":true},"apply-to":"queues"}"#;
    http.put("/api/policies/%2F/once", policy).with(201);
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for (queue, durable) in [("once-durable", true), ("once-in-memory", false), ("plain", true)] {
        client.declare(channel, &QueueDeclare { name: queue, durable, ..QueueDeclare::default() }).unwrap();
    }
    let queues = ["once-durable", "once-in-memory", "plain"];
    for queue in queues {
        for _ in 0..3 {
            let properties = Properties::with_headers(&[("x-deduplication-header", "k".into())]);
            client.publish(channel, &Publish { key: queue, properties, body: b"x", ..Default::default() });
        }
    }
    client.confirmed(channel, 1, 9);
    let of = |queue: &str| {
        let found = http.get(&format!("/api/queues/%2F/{queue}")).with(200);
        (found["messages"].clone(), found["leveret_repeats_dropped"].clone())
    };
    assert_eq!(queues.map(of), [(json!(1), json!(2)), (json!(1), json!(2)), (json!(3), Value::Null)]);
    let text = http.get("/metrics/per-object").text;
    for queue in ["once-durable", "once-in-memory"] {
        let line = format!("leveret_repeats_dropped_total{{vhost=\"/\",queue=\"{queue}\"}} 2");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("leveret_repeats_dropped_total{vhost=\"/\",queue=\"plain\"}"));
    assert!(http.get("/metrics").text.lines().any(|line| line == "leveret_repeats_dropped_total 4"));
    // Without the policy a repeat is as good as any other.
    http.delete("/api/policies/%2F/once").with(204);
    let properties = Properties::with_headers(&[("x-deduplication-header", "k".into())]);
    client.publish(channel, &Publish { key: "once-durable", properties, body: b"x", ..Default::default() });
    client.confirmed(channel, 10, 10);
    assert_eq!(of("once-durable").0, json!(2));
}

fn until_some<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let due = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < due, "it did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_waits_for_what_is_told_to_those_who_watch() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = connect(&broker, "/");
    let channel = client.channel();
    client.round_trip(channel).unwrap();
    assert_eq!(http.get("/api/leveret/waiting").with(200), json!([]), "nobody waits for anything");
    for (name, tags, status) in [("watches", "monitoring", 200), ("uses", "management", 401)] {
        let user = json!({ "password": "pw", "tags": tags }).to_string();
        assert!(http.put(&format!("/api/users/{name}"), &user).status < 300);
        http.as_user(name, "pw").get("/api/leveret/waiting").with(status);
    }
}

#[test]
fn the_event_exchange_tells_what_happens_on_the_broker() {
    let Some((broker, http)) = Broker::managed(&["--event-exchange-vhost=/"]) else { return };
    let mut client = connect(&broker, "/");
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "told", durable: true, ..QueueDeclare::default() }).unwrap();
    client.bind(channel, "told", "amq.rabbitmq.event", "#", &[]).unwrap();
    let next = |client: &mut Client| {
        let told = until_some(|| client.get(channel, "told", true).unwrap());
        let text = |name: &str| match told.properties.header(name) {
            Some(Field::Str(text)) => text,
            _ => String::new(),
        };
        assert_eq!((told.exchange.as_str(), told.body.len()), ("amq.rabbitmq.event", 0));
        assert!(matches!(told.properties.header("timestamp_in_ms"), Some(Field::I64(ms)) if ms > 1_600_000_000_000));
        if ["consumer.", "connection.", "channel."].iter().any(|of| told.routing_key.starts_with(of)) {
            assert_eq!(text("user_who_performed_action"), "guest", "{}", told.routing_key);
        }
        match &told.routing_key[..] {
            "binding.created" | "binding.deleted" => {
                format!("{} {} {}", told.routing_key, text("source_name"), text("destination_name"))
            }
            key if key.starts_with("consumer.") => format!("{key} {} {}", text("queue"), text("consumer_tag")),
            key if key.starts_with("connection.") || key.starts_with("channel.") => format!("{key} {}", text("user")),
            key => format!("{key} {}", text("name")),
        }
    };
    assert_eq!(next(&mut client), "binding.created amq.rabbitmq.event told");

    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.bind(channel, "q", "amq.fanout", "", &[]).unwrap();
    client.consume(channel, "q", "c").unwrap();
    client.cancel(channel, "c").unwrap();
    client.consume(channel, "q", "d").unwrap();
    client.delete(channel, "q", false, false).unwrap();
    assert!(matches!(client.event(channel), clients::Event::Cancelled(tag) if tag == "d"));
    http.put("/api/users/somebody", r#"{"password":"secret","tags":""}"#).with(201);
    for told in [
        "queue.created q",
        "binding.created amq.fanout q",
        "consumer.created q c",
        "consumer.deleted q c",
        "consumer.created q d",
        "binding.deleted amq.fanout q",
        "queue.deleted q",
        "consumer.deleted q d",
        "user.created somebody",
    ] {
        assert_eq!(next(&mut client), told);
    }

    let mut other = connect(&broker, "/");
    let _ = other.channel();
    drop(other);
    for told in [
        "user.authentication.success guest",
        "connection.created guest",
        "channel.created guest",
        "channel.closed guest",
        "connection.closed guest",
    ] {
        assert_eq!(next(&mut client), told);
    }
    assert!(client.get(channel, "told", true).unwrap().is_none(), "nothing else happened");
}

#[test]
fn the_firehose_tells_of_every_message_that_comes_in_and_goes_out() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    for queue in ["told", "q", "r"] {
        client.declare(channel, &QueueDeclare { name: queue, durable: true, ..QueueDeclare::default() }).unwrap();
    }
    client.bind(channel, "told", "amq.rabbitmq.trace", "#", &[]).unwrap();
    client.bind(channel, "q", "amq.fanout", "", &[]).unwrap();
    client.bind(channel, "r", "amq.fanout", "", &[]).unwrap();
    client.confirm_select(channel).unwrap();
    let mut properties =
        Properties::with_headers(&[("kind", "order".into()), ("CC", Field::Array(vec!["copy".into()]))]);
    properties = properties.with_expiration("60000");
    let publish = Publish { exchange: "amq.fanout", key: "k", properties, body: b"body", ..Default::default() };
    client.publish(channel, &publish);
    client.confirmed(channel, 1, 1);
    let untold = |client: &mut Client| client.get(channel, "told", true).unwrap();
    assert!(untold(&mut client).is_none(), "it is off until somebody wants it");

    http.put(&format!("/api/vhosts/{vhost}"), r#"{"tracing":true}"#).with(204);
    assert_eq!(http.get(&format!("/api/vhosts/{vhost}")).with(200)["tracing"], true);
    client.publish(channel, &publish);
    client.confirmed(channel, 2, 2);
    let header = |got: &clients::Delivery, name: &str| {
        got.properties.header(name).unwrap_or_else(|| panic!("{name} in {got:?}"))
    };
    let told = until_some(|| untold(&mut client));
    assert_eq!(
        (told.exchange.as_str(), told.routing_key.as_str(), &told.body[..]),
        ("amq.rabbitmq.trace", "publish.amq.fanout", &b"body"[..])
    );
    assert_eq!(header(&told, "exchange_name"), "amq.fanout".into());
    assert_eq!(header(&told, "routing_keys"), Field::Array(vec!["k".into(), "copy".into()]));
    assert_eq!(header(&told, "vhost"), vhost.as_str().into());
    assert_eq!(header(&told, "user"), "guest".into());
    assert_eq!(header(&told, "channel"), Field::I32(i32::from(channel)));
    let Field::Array(mut queues) = header(&told, "routed_queues") else { panic!("a list of queues") };
    queues.sort_by_key(|queue| format!("{queue:?}"));
    assert_eq!(queues, ["q".into(), "r".into()]);
    let Field::Table(of_message) = header(&told, "properties") else { panic!("a table") };
    let of = |name: &str| of_message.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
    assert_eq!(of("expiration"), Some("60000".into()));
    assert!(
        matches!(of("headers"), Some(Field::Table(fields)) if fields.iter().any(|(name, value)| name == "kind" && *value == "order".into()))
    );
    assert!(untold(&mut client).is_none(), "a message is told once as it comes in, and what is told is not told again");

    // As it goes out: to a get and to a consumer.
    let first = client.get(channel, "q", false).unwrap().unwrap();
    client.nack(channel, first.tag, false, true);
    client.consume(channel, "q", "c").unwrap();
    let again = [client.delivery(channel), client.delivery(channel)];
    assert_eq!(again.map(|delivery| delivery.redelivered), [true, false]);
    client.cancel(channel, "c").unwrap();
    for redelivered in [0, 1, 0] {
        let told = until_some(|| untold(&mut client));
        assert_eq!((told.routing_key.as_str(), &told.body[..]), ("deliver.q", &b"body"[..]));
        assert_eq!(header(&told, "redelivered"), Field::I32(redelivered));
        assert_eq!(header(&told, "exchange_name"), "amq.fanout".into());
    }
    http.put(&format!("/api/vhosts/{vhost}"), r#"{"tracing":false}"#).with(204);
    client.publish(channel, &publish);
    client.confirmed(channel, 3, 3);
    assert!(untold(&mut client).is_none());
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn the_operator_holds_publishers_and_lets_them_go_on() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let hold = format!("/api/nodes/{node}/publishers/hold");
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    client.put(channel, "q", b"before");
    client.confirmed(channel, 1, 1);
    http.put(&hold, "").with(204);
    let clients::Event::Method(clients::methods::CONNECTION_BLOCKED, reason) = client.event(0) else {
        panic!("blocked")
    };
    assert!(String::from_utf8_lossy(&reason).contains("held by the operator"), "{reason:?}");
    client.put(channel, "q", b"during");
    assert_eq!(http.get("/api/health/checks/alarms").with(503)["alarms"][0]["resource"], "operator");
    assert_eq!(http.get(&format!("/api/nodes/{node}")).with(200)["leveret_publishers_held"], true);
    assert!(http.get("/metrics").text.lines().any(|line| line == "leveret_publishers_held 1"));
    client.silent(channel);
    http.delete(&hold).with(204);
    client.confirmed(channel, 2, 2);
    http.put(&format!("/api/users/{}", "monitor"), r#"{"password":"secret","tags":"monitoring"}"#).with(201);
    assert_eq!(http.as_user("monitor", "secret").put(&hold, "").status, 401, "for administrators");
    assert_eq!(http.put("/api/nodes/nobody/publishers/hold", "").status, 404);
}

#[test]
fn metrics_count_what_clients_did() {
    if clients::broker::is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![
        ("x-durability", "selective".into()),
        ("x-durability-value-header", "amount".into()),
        ("x-durability-value-cap", 100i64.into()),
    ];
    let queue = QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() };
    client.declare(channel, &queue).unwrap();
    client.confirm_select(channel).unwrap();
    (0..3).for_each(|_| client.put(channel, "q", b"x"));
    client.put(channel, "nowhere", b"x");
    client.confirmed(channel, 1, 4);
    let delivery = client.get(channel, "q", false).unwrap().unwrap();
    let value = |text: &str, name: &str| -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    until("the counts", || {
        let text = http.get("/metrics").text;
        let global =
            |name: &str| value(&text, &format!("rabbitmq_global_messages_{name}_total{{protocol=\"amqp091\"}}"));
        let is_there = global("received") == Some(4.0)
            && global("confirmed") == Some(4.0)
            && global("unroutable_dropped") == Some(1.0)
            && value(
                &text,
                "rabbitmq_global_messages_delivered_total{protocol=\"amqp091\",queue_type=\"rabbit_classic_queue\"}",
            ) == Some(1.0)
            && value(&text, "rabbitmq_queue_messages_ready") == Some(2.0)
            && value(&text, "rabbitmq_queue_messages_unacked") == Some(1.0)
            && value(&text, "rabbitmq_connections") == Some(1.0)
            && value(&text, "rabbitmq_channels") == Some(1.0);
        is_there.then_some(Value::Null)
    });
    client.ack(channel, delivery.tag, false);
    client.round_trip(channel).unwrap();
    let answer = http.get("/metrics");
    assert!(answer.head.contains("content-type: application/openmetrics-text"), "{answer:?}");
    let text = answer.text;
    assert!(text.ends_with("# EOF\n"), "the text is whole");
    for name in
        ["process_resident_memory_bytes", "rabbitmq_disk_space_available_bytes", "leveret_log_written_bytes_total"]
    {
        assert!(value(&text, name).is_some_and(|bytes| bytes > 1000.0), "{name}\n{text}");
    }
    assert!(value(&text, "leveret_log_sync_seconds_count").is_some_and(|count| count >= 1.0), "{text}");
    assert_eq!(value(&text, "leveret_connections_blocked"), Some(0.0));
    assert!(text.contains("leveret_value_at_risk "), "{text}");
    let text = http.get("/metrics/per-object").text;
    let of_queue = |name: &str| value(&text, &format!("{name}{{vhost=\"/\",queue=\"q\"}}"));
    assert_eq!(of_queue("rabbitmq_queue_messages_ready"), Some(2.0));
    assert_eq!(of_queue("leveret_value_at_risk_cap"), Some(100.0), "{text}");
}

#[test]
fn bad_requests_harm_nobody() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    for bytes in [&b"what?\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", b"\x00\x01\x02\r\n\r\n"] {
        let answer = http.raw(bytes);
        assert!([0, 400, 404, 505].contains(&answer.status), "{answer:?}");
    }
    let head = format!("GET /api/whoami HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let answer = http.raw(head.as_bytes());
    assert!([0, 400, 414, 431].contains(&answer.status), "{}", answer.status);
    // Somebody who never asks holds up nobody.
    let _silent: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(http.addr()).unwrap()).collect();
    http.get("/api/whoami").with(200);
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

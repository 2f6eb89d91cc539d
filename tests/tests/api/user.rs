//! Users over HTTP: what their tags let them see and do, and what happens to who is deleted.

use clients::api::{connect, connection_in, reason, until, vhost};
use clients::broker::{is_foreign, unique};
use clients::client::method_frame;
use clients::methods::{CHANNEL_OPEN, CHANNEL_OPEN_OK};
use clients::wire::Args;
use clients::{Broker, Client, Login, Scope};
use serde_json::{Value, json};

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
fn limits_that_come_with_a_user_hold_and_one_password_is_enough() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let name = unique("user");
    let (path, limits) = (format!("/api/users/{name}"), format!("/api/user-limits/{name}"));
    let put = |body: &str| http.put(&path, body);
    // RabbitMQ fails at it.
    let mistyped = put(r#"{"password":"pw","tags":"","limits":{"max-chanels":5}}"#);
    assert_eq!(mistyped.status, if is_foreign() { 500 } else { 400 }, "{mistyped:?}");
    let two = r#"{"password":"pw","password_hash":"kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR","tags":""}"#;
    assert_eq!(reason(&put(two), 400), "both_password_and_password_hash_are_provided");
    assert_eq!(http.get(&path).status, 404, "nothing was made");
    put(r#"{"password":"pw","tags":"","limits":{"max-connections":3,"max-channels":5}}"#).with(201);
    let held = json!([{ "user": name, "value": { "max-connections": 3, "max-channels": 5 } }]);
    assert_eq!(http.get(&limits).with(200), held);
    if is_foreign() {
        // RabbitMQ keeps a limit below zero, and fails at an empty list.
        http.delete(&path).with(204);
        return;
    }
    // What a PUT does not name stays, and what a client was shown it may send back.
    put(r#"{"password":"pw","tags":"","limits":{"max-connections":-1}}"#).with(204);
    put(r#"{"password":"pw","tags":"","limits":[]}"#).with(204);
    put(r#"{"password":"pw","tags":""}"#).with(204);
    assert_eq!(http.get(&limits).with(200), json!([{ "user": name, "value": { "max-channels": 5 } }]));
    let shown = http.get(&path).with(200).to_string();
    put(&shown).with(204);
    assert_eq!(http.get(&limits).with(200)[0]["value"], json!({ "max-channels": 5 }));
    http.delete(&path).with(204);
}

#[test]
fn a_user_opens_as_many_channels_as_it_may_also_in_one_breath() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let name = unique("few");
    http.put(&format!("/api/users/{name}"), r#"{"password":"pw","tags":""}"#).with(201);
    let all = r#"{"configure":".*","write":".*","read":".*"}"#;
    http.put(&format!("/api/permissions/%2f/{name}"), all).with(201);
    for limit in [0, 3] {
        let body = json!({ "value": limit }).to_string();
        assert!(http.put(&format!("/api/user-limits/{name}/max-channels"), &body).status < 300);
        let login = Login { response: format!("\0{name}\0pw").into_bytes(), ..Login::default() };
        let mut client = Client::login(broker.addr(), &login).unwrap();
        let open = |channel| method_frame(channel, CHANNEL_OPEN, &Args::new().shortstr(""));
        client.raw(&(1..=20).flat_map(open).collect::<Vec<u8>>());
        for channel in 1..=limit {
            client.wait(channel, CHANNEL_OPEN_OK).unwrap();
        }
        let refused = client.wait(limit + 1, CHANNEL_OPEN_OK).unwrap_err();
        assert_eq!((refused.code, refused.scope), (530, Scope::Connection));
        assert!(refused.text.contains("has reached the maximum allowed user limit"), "{refused:?}");
    }
    http.delete(&format!("/api/users/{name}")).with(204);
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
fn a_new_user_comes_with_its_permissions_and_an_administrator_is_one_without_tags() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    let path = format!("/api/users/{name}");
    let with = |read: &str| {
        let said = json!({ "configure": "", "write": "^w", "read": read });
        json!({ "password": "pw", "tags": "management", "permissions": { vhost.clone(): said } }).to_string()
    };
    http.put(&path, &with("^r")).with(201);
    let permission = format!("/api/permissions/{vhost}/{name}");
    let held = http.get(&permission).with(200);
    assert_eq!((&held["configure"], &held["write"], &held["read"]), (&json!(""), &json!("^w"), &json!("^r")));
    // One that was there keeps its own.
    http.put(&path, &with(".*")).with(204);
    assert_eq!(http.get(&permission).with(200)["read"], "^r");
    http.delete(&path).with(204);
    if !is_foreign() {
        for permissions in
            [json!({ "none": {} }), json!({ vhost.clone(): { "read": "" } }), json!({ vhost.clone(): 5 }), json!(5)]
        {
            let body = json!({ "password": "pw", "tags": "", "permissions": permissions });
            assert_eq!(http.put(&path, &body.to_string()).status, 400, "{body}");
            assert_eq!(http.get(&path).status, 404, "nothing was made");
        }
    }
    let tags = |body: &str| {
        http.put(&path, body).with(201);
        let found = http.get(&path).with(200)["tags"].clone();
        http.delete(&path).with(204);
        found
    };
    assert_eq!(tags(r#"{"password":"pw","administrator":true}"#), json!(["administrator"]));
    assert_eq!(tags(r#"{"password":"pw","administrator":false}"#), json!([]));
    assert_eq!(tags(r#"{"password":"pw","administrator":true,"tags":"monitoring"}"#), json!(["monitoring"]));
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_put_that_came_half_way_is_finished_by_the_same_put() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let (one, two, name) = (vhost(&http), vhost(&http), unique("user"));
    let path = format!("/api/users/{name}");
    let said = json!({ "configure": "", "write": "^w", "read": "^r" });
    let body =
        json!({ "password": "pw", "tags": "management", "permissions": { one.clone(): said, two.clone(): said } });
    let held = || -> Vec<Value> {
        let all = http.get(&format!("{path}/permissions")).with(200).as_array().unwrap().clone();
        all.into_iter().map(|held| held["vhost"].clone()).collect()
    };
    let both = || {
        let mut both = vec![json!(one), json!(two)];
        both.sort_unstable_by_key(Value::to_string);
        both
    };
    // As a node that was killed between the user and its permissions leaves it, and between the two of them.
    http.put(&path, r#"{"password":"pw","tags":"management"}"#).with(201);
    http.put(&path, &body.to_string()).with(204);
    let mut found = held();
    found.sort_unstable_by_key(Value::to_string);
    assert_eq!(found, both());
    http.delete(&format!("/api/permissions/{two}/{name}")).with(204);
    http.put(&path, &body.to_string()).with(204);
    let mut found = held();
    found.sort_unstable_by_key(Value::to_string);
    assert_eq!(found, both());
    // Who has others keeps them.
    http.delete(&format!("/api/permissions/{two}/{name}")).with(204);
    http.put(&format!("/api/permissions/{one}/{name}"), r#"{"configure":"","write":"","read":""}"#).with(204);
    http.put(&path, &body.to_string()).with(204);
    assert_eq!(held(), [json!(one)]);
    assert_eq!(http.get(&format!("/api/permissions/{one}/{name}")).with(200)["write"], "");
    http.delete(&path).with(204);
    [one, two].iter().for_each(|vhost| drop(http.delete(&format!("/api/vhosts/{vhost}")).with(204)));
}

#[test]
fn nobody_is_called_as_the_audit_log_calls_the_operator() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let told = "(operator) is what the audit log calls who runs the machine: a user needs another name";
    for name in ["(operator)", "%28operator%29"] {
        let made = http.put(&format!("/api/users/{name}"), r#"{"password":"pw","tags":"administrator"}"#);
        assert_eq!(reason(&made, 400), told);
    }
    let user = json!({ "name": "(operator)", "password": "pw", "tags": [] });
    let refused = reason(&http.post("/api/definitions", &json!({ "users": [user] }).to_string()), 400);
    assert_eq!(refused, format!("users[0].name: {told}"));
    assert_eq!(http.get("/api/users").with(200).as_array().unwrap().len(), 1, "nobody was made");
    http.put("/api/users/operator", r#"{"password":"pw","tags":""}"#).with(201);
}

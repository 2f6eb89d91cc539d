//! Exchanges over HTTP: declared, told, and deleted by who may. Bindings between them are in `binding.rs`.

use clients::Broker;
use clients::api::{reason, vhost};
use clients::broker::unique;
use serde_json::json;

#[test]
fn exchanges_are_declared_told_and_deleted_by_who_may_configure_them() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, user) = (vhost(&http), unique("user"));
    let at = |name: &str| format!("/api/exchanges/{vhost}/{name}");
    http.put(&format!("/api/users/{user}"), r#"{"password":"pw","tags":"management"}"#).with(201);
    let rights = r#"{"configure":"^mine$","write":"^amq.direct$","read":"^mine$"}"#;
    http.put(&format!("/api/permissions/{vhost}/{user}"), rights).with(201);
    let theirs = http.as_user(&user, "pw");
    let body = r#"{"type":"fanout","durable":true,"internal":true,"arguments":{"alternate-exchange":"amq.direct"}}"#;
    assert_eq!(reason(&theirs.put(&at("others"), body), 401), "Access refused.");
    theirs.put(&at("mine"), body).with(201);
    let told = http.get(&at("mine")).with(200);
    for (field, value) in [
        ("name", json!("mine")),
        ("vhost", json!(vhost)),
        ("type", json!("fanout")),
        ("durable", json!(true)),
        ("auto_delete", json!(false)),
        ("internal", json!(true)),
    ] {
        assert_eq!(told[field], value, "{field}");
    }
    assert_eq!(told["arguments"]["alternate-exchange"], "amq.direct");
    // The same again changes nothing, another one under the name is refused, and so is a name that is the broker's.
    theirs.put(&at("mine"), body).with(204);
    let other = reason(&theirs.put(&at("mine"), r#"{"type":"direct"}"#), 400);
    assert!(other.contains("inequivalent arg 'type'"), "{other}");
    let unknown = reason(&http.put(&at("x"), r#"{"type":"nonsense"}"#), 400);
    assert!(unknown.contains("nonsense"), "{unknown}");
    assert_eq!(reason(&http.put(&at("amq.mine"), body), 401), "Access refused.");
    let listed = http.get(&format!("/api/exchanges/{vhost}?columns=name&sort=name")).with(200);
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"") && names.contains(&"amq.topic") && names.contains(&"mine"), "{names:?}");
    assert!(!names.contains(&"others") && !names.contains(&"x"), "{names:?}");
    // While somebody depends on it, who asks for that to be looked at is refused.
    http.put(&format!("/api/queues/{vhost}/q"), "{}").with(201);
    http.post(&format!("/api/bindings/{vhost}/e/mine/q/q"), "{}").with(201);
    let used = reason(&theirs.delete(&format!("{}?if-unused=true", at("mine"))), 400);
    assert!(used.contains("in use"), "{used}");
    assert_eq!(reason(&theirs.delete(&at("amq.topic")), 401), "Access refused.");
    theirs.delete(&at("mine")).with(204);
    assert_eq!(http.get(&at("mine")).status, 404);
    http.delete(&format!("/api/users/{user}")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

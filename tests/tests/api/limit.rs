//! Limits of virtual hosts and of users over HTTP: they hold at once.

use clients::api::{connect, vhost};
use clients::{Broker, QueueDeclare};
use serde_json::json;

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

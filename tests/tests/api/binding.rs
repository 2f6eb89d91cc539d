//! Bindings over HTTP, and the exchanges that they begin at.

use clients::api::{connect, reason, vhost};
use clients::{Broker, Publish};
use serde_json::json;

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

//! Connections over HTTP: listed, looked at, closed.

use clients::api::{connect, connection_in, path_of, until, vhost};
use clients::{Broker, Scope};
use serde_json::Value;

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

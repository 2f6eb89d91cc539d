//! Connections over HTTP: listed, looked at, closed.

use clients::api::{connect, connection_in, path_of, until, vhost};
use clients::broker::is_foreign;
use clients::{Broker, Client, Login, Scope};
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

#[test]
fn a_connection_is_found_by_its_address_and_by_the_name_that_its_client_chose() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    if is_foreign() {
        return;
    }
    let vhost = vhost(&http);
    let connect = |connection_name| {
        Client::login(broker.addr(), &Login { vhost: vhost.clone(), connection_name, ..Login::default() }).unwrap()
    };
    let _clients = [connect("billing-worker-7"), connect("")];
    let names = |filter: &str| -> Vec<Value> {
        let found = http.get(&format!("/api/vhosts/{vhost}/connections?{filter}")).with(200);
        found.as_array().unwrap().iter().map(|one| one["user_provided_name"].clone()).collect()
    };
    until("both", || (names("name=127.0.0.1").len() == 2).then_some(Value::Null));
    assert_eq!(names("name=Billing"), ["billing-worker-7"]);
    assert_eq!(names("name=%5Ebilling-.*7%24&use_regex=true"), ["billing-worker-7"]);
    assert_eq!(names("name=worker-8"), Vec::<Value>::new());
    assert_eq!(
        names("name=%5E%24&use_regex=true"),
        Vec::<Value>::new(),
        "who says no name is not found by an empty one"
    );
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

//! Channels and consumers over HTTP, and what waits for what.

use clients::Broker;
use clients::api::connect;
use clients::broker::is_foreign;
use serde_json::json;

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

//! Users over HTTP: what their tags let them see and do, and what happens to who is deleted.

use clients::api::{connect, connection_in, reason, until, vhost};
use clients::broker::unique;
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

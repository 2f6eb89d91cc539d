//! The operator's token: who may do what with it, and that nobody else has it.

use crate::begin;
use clients::{Broker, Http};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

fn told(broker: &Broker) -> Value {
    let text = std::fs::read_to_string(broker.data_folder().join("operator.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A request by token and by nothing else.
fn ask(http: &Http, method: &str, path: &str, token: &str, body: &str) -> clients::http::Response {
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    http.raw(text.as_bytes())
}

#[test]
fn the_token_is_in_a_file_for_the_servers_user_alone_and_in_no_log() {
    let Some((broker, http, _tools)) = begin(&["--log", "trace"]) else { return };
    let told = told(&broker);
    let token = told["token"].as_str().unwrap();
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    assert_eq!(told["pid"], broker.pid().unwrap());
    let mode = broker.data_folder().join("operator.json").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!broker.data_folder().join("operator.json.new").exists());
    ask(&http, "GET", "/api/whoami", token, "").with(200);
    ask(&http, "PUT", "/api/vhosts/v", token, "{}").with(201);
    ask(&http, "GET", "/api/whoami", &token.replace(|_: char| true, "0"), "").with(401);
    assert!(!broker.log().contains(token), "the token is in the log");
}

#[test]
fn who_has_it_may_do_what_an_administrator_with_all_permissions_may() {
    let Some((broker, http, _tools)) = begin(&[]) else { return };
    let told = told(&broker);
    let by_token =
        |method: &str, path: &str, body: &str| ask(&http, method, path, told["token"].as_str().unwrap(), body);
    let whoami = by_token("GET", "/api/whoami", "").with(200);
    assert_eq!((&whoami["name"], &whoami["tags"]), (&json!("(operator)"), &json!(["administrator"])));
    by_token("PUT", "/api/vhosts/v", "{}").with(201);
    by_token("PUT", "/api/users/ann", r#"{"password":"x","tags":""}"#).with(201);
    by_token("PUT", "/api/permissions/v/ann", r#"{"configure":"","write":"","read":""}"#).with(201);
    // Without a permission of its own, as it is no user.
    by_token("PUT", "/api/queues/v/q", r#"{"durable":true}"#).with(201);
    by_token("PUT", "/api/exchanges/v/x", r#"{"type":"topic"}"#).with(201);
    by_token("POST", "/api/bindings/v/e/x/q/q", r#"{"routing_key":"k"}"#).with(201);
    by_token("DELETE", "/api/queues/v/q/contents", "").with(204);
    by_token("DELETE", "/api/bindings/v/e/x/q/q/k", "").with(204);
    by_token("DELETE", "/api/exchanges/v/x", "").with(204);
    by_token("DELETE", "/api/queues/v/q", "").with(204);
    by_token("GET", "/api/aliveness-test/v", "").with(200);
    by_token("GET", "/api/leveret/settings", "").with(200);
    by_token("DELETE", "/api/vhosts/v", "").with(204);
    // Who did it is told.
    clients::api::until("the audit line", || broker.log().contains("user=(operator) ").then_some(Value::Null));
    // Messages are in the name of users.
    let message = r#"{"properties":{},"routing_key":"q","payload":"x","payload_encoding":"string"}"#;
    let refused = by_token("POST", "/api/exchanges/%2F/amq.default/publish", message).with(400);
    assert!(refused["reason"].as_str().unwrap().contains("in the name of a user"), "{refused}");
}

#[test]
fn a_wrong_token_is_answered_like_a_wrong_password() {
    let Some((broker, http, _tools)) = begin(&[]) else { return };
    let token = told(&broker)["token"].as_str().unwrap().to_owned();
    let longer = format!("{token}0");
    for wrong in ["", "x", &token[1..], &longer, &token.to_uppercase().replace('0', "1"), "null"] {
        let refused = ask(&http, "GET", "/api/whoami", wrong, "");
        assert_eq!(refused.with(401), json!({"error": "not_authorized", "reason": "Login failed"}), "{wrong}");
    }
    // It is no password, and no user's name.
    http.as_user("(operator)", &token).get("/api/whoami").with(401);
    http.as_user("guest", &token).get("/api/whoami").with(401);
}

#[test]
fn only_who_has_it_stops_a_node_over_http() {
    let Some((mut broker, http, _tools)) = begin(&[]) else { return };
    http.put("/api/users/mon", r#"{"password":"x","tags":"monitoring"}"#).with(201);
    for caller in [http.clone(), http.as_user("mon", "x")] {
        caller.post("/api/leveret/stop", "{}").with(401);
    }
    // What is set is an administrator's.
    http.get("/api/leveret/settings").with(200);
    http.as_user("mon", "x").get("/api/leveret/settings").with(401);
    let token = told(&broker)["token"].as_str().unwrap().to_owned();
    let page = format!(
        "POST /api/leveret/stop HTTP/1.1\r\nHost: broker\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Sec-Fetch-Site: cross-site\r\nContent-Length: 0\r\n\r\n"
    );
    http.raw(page.as_bytes()).with(403);
    let refused = ask(&http, "POST", "/api/leveret/stop", &token, r#"{"after_s":60}"#).with(400);
    assert_eq!(refused["reason"], "unknown field after_s; there is none here", "it would have ended at once");
    ask(&http, "POST", "/api/leveret/stop", &token, "").with(202);
    assert_eq!(broker.wait_for_end().code(), Some(0));
}

#[test]
fn from_another_address_of_this_machine_it_opens_nothing() {
    // An address that is not loopback, if there is one: a way out need not exist for it to be told.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()).map(|address| address.ip());
    let Ok(own) = own else { return };
    if own.is_loopback() {
        return;
    }
    if clients::broker::is_foreign() {
        return;
    }
    let broker = Broker::own(&["--management", "0.0.0.0:0"]);
    let told = told(&broker);
    let (url, token) = (told["url"].as_str().unwrap(), told["token"].as_str().unwrap());
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    let here = Http::new(([127, 0, 0, 1], port).into());
    ask(&here, "GET", "/api/whoami", token, "").with(200);
    let there = Http::new((own, port).into());
    ask(&there, "GET", "/api/whoami", token, "").with(401);
}

//! The page: what a browser is given, who is logged in on it, and messages moved from it. The page
//! itself is clicked through in `tests/page/`.
#![allow(clippy::unwrap_used)]

use clients::Broker;
use clients::broker::is_foreign;
use clients::http::{Http, Response};

/// A request of a browser: without a name, with these headers.
fn browse(http: &Http, method: &str, path: &str, headers: &str) -> Response {
    let length = if method == "GET" { "" } else { "Content-Length: 0\r\n" };
    let text = format!("{method} {path} HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n{length}{headers}\r\n");
    http.raw(text.as_bytes())
}

/// A header of an answer.
fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let start = format!("{name}: ");
    response.head.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default()
}

/// Logs in on the page; the cookie as it goes back.
fn login(http: &Http) -> String {
    let answer = http.send("POST", "/api/leveret/session", &[("X-Leveret-Page", "1")], "");
    assert_eq!(answer.status, 204, "{answer:?}");
    let set = header(&answer, "set-cookie");
    assert!(set.contains("httponly") && set.contains("samesite=strict") && set.contains("max-age="), "{set}");
    format!("Cookie: {}\r\n", set.split(';').next().unwrap())
}

const PAGE: &str = "X-Leveret-Page: 1\r\n";

#[test]
fn the_page_is_given_to_anybody_and_lets_a_browser_run_its_own_files_alone() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let page = browse(&http, "GET", "/", "");
    assert_eq!((page.status, header(&page, "content-type")), (200, "text/html; charset=utf-8"));
    let policy = header(&page, "content-security-policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(header(&page, "cache-control"), "no-cache");
    let tag = header(&page, "etag").to_owned();
    assert_eq!(browse(&http, "GET", "/", &format!("If-None-Match: {tag}\r\n")).status, 304);
    let mut asked = 0;
    for part in page.text.split("=\"ui/").skip(1) {
        let path = format!("/ui/{}", part.split('"').next().unwrap());
        let file = browse(&http, "GET", &path, "");
        assert_eq!(file.status, 200, "{path}");
        assert_eq!(header(&file, "cache-control"), "public, max-age=31536000, immutable", "{path}");
        assert!(!file.text.is_empty() && header(&file, "content-security-policy") == policy, "{path}");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
    assert_eq!(browse(&http, "GET", "/ui/0/../Cargo.toml", "").status, 404);
    assert_eq!(browse(&http, "GET", "/ui/0/none.js", "").status, 404);
    assert_eq!(browse(&http, "POST", "/", "").status, 405);
    // An older build's page may ask this one; it keeps nothing of the answer.
    let other = browse(&http, "GET", "/ui/0/app.css", "");
    assert_eq!((other.status, header(&other, "cache-control")), (200, "no-cache"));
}

/// As in RabbitMQ: its page's files have tags, what its API answers has none.
#[test]
fn files_of_the_page_are_not_sent_twice_and_answers_of_the_api_have_no_tags() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let page = browse(&http, "GET", "/", "");
    let mut asked = 0;
    for part in page.text.split("=\"ui/").skip(1) {
        let path = format!("/ui/{}", part.split('"').next().unwrap());
        let told = browse(&http, "GET", &path, "");
        let tag = header(&told, "etag").to_owned();
        assert!(told.status == 200 && tag.len() > 2, "{path}: {}", told.head);
        let again = browse(&http, "GET", &path, &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((again.status, &*again.text, header(&again, "etag")), (304, "", &*tag), "{path}");
        assert_eq!(browse(&http, "GET", &path, "If-None-Match: \"another\"\r\n").status, 200, "{path}");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    for path in
        ["overview", "nodes", "queues", "queues/%2F/q", "exchanges", "bindings", "vhosts", "users", "definitions"]
    {
        let told = http.send("GET", &format!("/api/{path}"), &[("If-None-Match", "*")], "");
        assert_eq!((told.status, header(&told, "etag")), (200, ""), "{path}: {}", told.head);
    }
}

#[test]
fn a_cookie_counts_with_the_pages_header_alone_and_until_the_logout() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    // The page asks for the password itself; a browser must not.
    let anonymous = browse(&http, "GET", "/api/whoami", PAGE);
    assert_eq!((anonymous.status, header(&anonymous, "www-authenticate")), (401, ""));
    assert_ne!(header(&browse(&http, "GET", "/api/whoami", ""), "www-authenticate"), "");
    let cookie = login(&http);
    let both = format!("{PAGE}{cookie}");
    assert_eq!(browse(&http, "GET", "/api/whoami", &both).with(200)["name"], "guest");
    assert_eq!(
        browse(&http, "GET", "/api/whoami", &cookie).status,
        401,
        "a page of another site sends only the cookie"
    );
    let elsewhere = format!("{both}Sec-Fetch-Site: cross-site\r\n");
    assert_eq!(browse(&http, "DELETE", "/api/queues/%2F/q", &elsewhere).status, 403);
    let own = http.send("GET", "/api/whoami", &[("X-Leveret-Page", "1")], "");
    assert_eq!(own.status, 401, "a password that the browser remembers is not a session");
    let end = browse(&http, "DELETE", "/api/leveret/session", &both);
    assert!(end.status == 204 && header(&end, "set-cookie").contains("max-age=0"), "{end:?}");
    assert_eq!(browse(&http, "GET", "/api/whoami", &both).status, 401);
    let wrong = http.as_user("guest", "wrong").send("POST", "/api/leveret/session", &[("X-Leveret-Page", "1")], "");
    assert_eq!((wrong.status, header(&wrong, "set-cookie")), (401, ""));
}

#[test]
fn a_session_ends_with_its_user_and_with_the_password_and_has_the_rights_of_the_moment() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/users/ann", r#"{"password":"a","tags":"administrator"}"#).with(201);
    let ann = format!("{PAGE}{}", login(&http.as_user("ann", "a")));
    browse(&http, "GET", "/api/users", &ann).with(200);
    let hash = http.get("/api/users/ann").with(200)["password_hash"].clone();
    let same = format!(r#"{{"password_hash":{hash},"tags":"management"}}"#);
    http.put("/api/users/ann", &same).with(204);
    assert_eq!(browse(&http, "GET", "/api/users", &ann).status, 401, "the tag is gone");
    browse(&http, "GET", "/api/whoami", &ann).with(200);
    http.put("/api/users/ann", r#"{"password":"b","tags":"management"}"#).with(204);
    assert_eq!(browse(&http, "GET", "/api/whoami", &ann).status, 401, "the password is another");
    let ann = format!("{PAGE}{}", login(&http.as_user("ann", "b")));
    http.delete("/api/users/ann").with(204);
    assert_eq!(browse(&http, "GET", "/api/whoami", &ann).status, 401, "the user is gone");
}

#[test]
fn moved_messages_keep_their_order_and_properties_and_are_in_one_queue() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    for queue in ["from", "to"] {
        http.put(&format!("/api/queues/%2F/{queue}"), r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#)
            .with(201);
    }
    for number in 0..12 {
        let body = format!(
            r#"{{"routing_key":"from","payload":"{number}","payload_encoding":"string","properties":{{"delivery_mode":2,"message_id":"m{number}","headers":{{"n":{number}}}}}}}"#
        );
        assert_eq!(http.post("/api/exchanges/%2F/amq.default/publish", &body).with(200)["routed"], true);
    }
    let path = "/api/leveret/queues/%2F/from/move";
    assert_eq!(http.post(path, r#"{"to":"to","count":5}"#).with(200)["moved"], 5);
    let rest = http.post(path, r#"{"to":"to","count":100}"#).with(200);
    assert_eq!((&rest["moved"], &rest["empty"]), (&7.into(), &true.into()));
    let get = r#"{"count":100,"ackmode":"ack_requeue_false","encoding":"auto"}"#;
    let got = http.post("/api/queues/%2F/to/get", get).with(200);
    let got = got.as_array().unwrap();
    assert_eq!(got.len(), 12);
    for (number, message) in got.iter().enumerate() {
        assert_eq!(message["payload"], number.to_string());
        assert_eq!(message["properties"]["message_id"], format!("m{number}"));
        assert_eq!(message["properties"]["headers"]["n"], number);
    }
    assert_eq!(http.post("/api/queues/%2F/from/get", get).with(200).as_array().unwrap().len(), 0);
    for (body, status) in [
        (r#"{"to":"nowhere","count":1}"#, 400),
        (r#"{"to":"from","count":1}"#, 400),
        (r#"{"to":"to"}"#, 400),
        (r#"{"to":"to","cuont":1}"#, 400),
        (r#"{"to":"to","count":10001}"#, 400),
    ] {
        assert_eq!(http.post(path, body).status, status, "{body}");
    }
    assert_eq!(http.post("/api/leveret/queues/%2F/none/move", r#"{"to":"to","count":1}"#).status, 404);
}

#[test]
fn a_queue_that_refuses_a_moved_message_leaves_it_where_it_was() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/from", r#"{"durable":true}"#).with(201);
    let full = r#"{"durable":true,"arguments":{"x-max-length":1,"x-overflow":"reject-publish"}}"#;
    http.put("/api/queues/%2F/full", full).with(201);
    let publish = r#"{"routing_key":"from","payload":"x","payload_encoding":"string","properties":{}}"#;
    for _ in 0..3 {
        http.post("/api/exchanges/%2F/amq.default/publish", publish).with(200);
    }
    assert_eq!(http.post("/api/leveret/queues/%2F/from/move", r#"{"to":"full","count":3}"#).status, 400);
    let get = r#"{"count":100,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
    let in_queue =
        |queue: &str| http.post(&format!("/api/queues/%2F/{queue}/get"), get).with(200).as_array().unwrap().len();
    assert_eq!(in_queue("from") + in_queue("full"), 3, "none is lost and none is in both");
}

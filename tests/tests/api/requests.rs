//! What holds for every path: who is answered at all, what is not there, what no field is called, lists, and
//! requests that are none.

use clients::api::{connect, reason, until, vhost};
use clients::broker::{is_foreign, unique};
use clients::client::PATIENCE;
use clients::http::Response;
use clients::{Broker, Publish};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

#[test]
fn what_is_not_there_is_answered_in_json_and_only_to_who_may_ask() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    assert_eq!(http.get("/api/connections/none").with(404)["error"], "Object Not Found");
    assert_eq!(reason(&http.get("/api/queues/%2F/none"), 404), "Not Found");
    assert_eq!(reason(&http.get("/api/nothing/of/the/kind"), 404), "Not Found");
    assert_eq!(http.post("/api/overview", "{}").status, 405);
    let stranger = http.as_user("guest", "wrong");
    let refused = stranger.get("/api/overview");
    assert_eq!(refused.status, 401, "{refused:?}");
    let nobody = http.raw(b"GET /api/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(nobody.status, 401);
    assert!(nobody.head.contains("www-authenticate: basic"), "{nobody:?}");
    assert_eq!(reason(&http.put("/api/vhosts/x", "{not json"), 400), "not_json");
    for broken in ["%zz", "a%2", "%"] {
        let why = reason(&http.put(&format!("/api/queues/%2F/{broken}"), "{}"), 400);
        assert!(why.starts_with("the path has a % without"), "{why}");
    }
    assert_eq!(http.put("/api/queues/%2F/per%25cent", r#"{"durable": null}"#).status, 201, "null says nothing");
    assert_eq!(http.delete("/api/queues/%2F/per%25cent").status, 204);
    let me = http.get("/api/whoami").with(200);
    assert_eq!((me["name"].clone(), me["tags"].clone()), (json!("guest"), json!(["administrator"])));
}

#[test]
fn a_mistyped_field_is_refused_with_the_one_that_was_meant() {
    // RabbitMQ passes it over.
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    for (path, body, told) in [
        (format!("users/{name}"), r#"{"pasword":"pw","tags":""}"#, "unknown field pasword; did you mean password?"),
        (
            format!("policies/{vhost}/p"),
            r#"{"pattern":".*","definition":{"max-length":1},"apply_to":"queues"}"#,
            "unknown field apply_to; did you mean apply-to?",
        ),
        (format!("queues/{vhost}/q"), r#"{"durabel":true}"#, "unknown field durabel; did you mean durable?"),
        (format!("vhosts/{name}"), r#"{"tracin":true}"#, "unknown field tracin; did you mean tracing?"),
        (
            format!("users/{name}"),
            &format!(r#"{{"password":"pw","tags":"","permissions":{{"{vhost}":{{"colour":1}}}}}}"#),
            "unknown field colour; there are configure, write and read",
        ),
        (
            format!("parameters/operator_policy/{vhost}/p"),
            r#"{"value":{"pattern":".*","definition":{"max-length":1},"aply-to":"queues"}}"#,
            "unknown field aply-to; did you mean apply-to?",
        ),
    ] {
        assert_eq!(reason(&http.put(&format!("/api/{path}"), body), 400), told);
        assert_eq!(http.get(&format!("/api/{path}")).status, 404, "nothing was made");
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn no_body_has_a_field_that_is_not_known() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    http.put("/api/queues/%2F/q", r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#).with(201);
    let document = http.get("/api/openapi.json").with(200);
    let mut asked = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let with_body = operations.as_object().unwrap().iter().filter(|(_, one)| one["requestBody"].is_object());
        for (method, operation) in with_body {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            // Of definitions what has no meaning here is left out and told; who stops a node has no password.
            let is_other = path.contains("definitions") || path.contains("configuration") || path.ends_with("/stop");
            if is_other {
                continue;
            }
            assert_eq!(schema["additionalProperties"], false, "{path}");
            let path = path.replace("{vhost}", "%2F").replace("{queue}", "q").replace("{node}", &node);
            let path = path.replace("{source}", "amq.direct").replace("{destination}", "amq.topic");
            let path =
                path.replace("{exchange}", "amq.direct").replace("{user}", "guest").replace("{name}", "quorum_queue");
            let path = path.replace("{component}", "vhost-limits");
            let known: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
            let refused = http.send(&method.to_uppercase(), &path, &[], r#"{"colour":"blue"}"#);
            let told = reason(&refused, 400);
            assert!(told.starts_with("unknown field colour; there "), "{method} {path}: {told}");
            // What is known is named, or one of it.
            let named = told.trim_start_matches("unknown field colour; there ").trim_start_matches("is none here");
            let named = named.trim_start_matches("is ").trim_start_matches("are ").replace(" and ", ", ");
            let named = named.split(", ").filter(|name| !name.is_empty());
            named.for_each(|name| assert!(known.iter().any(|known| *known == name), "{path}: {told}"));
            asked += 1;
        }
    }
    assert!(asked > 25, "{asked} bodies");
}

#[test]
fn what_was_read_may_be_written_back() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, user) = (vhost(&http), unique("user"));
    let quorum = r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#;
    http.put(&format!("/api/queues/{vhost}/plain"), r#"{"durable":true}"#).with(201);
    http.put(&format!("/api/queues/{vhost}/copies"), quorum).with(201);
    http.put(&format!("/api/exchanges/{vhost}/x"), r#"{"type":"topic","durable":true}"#).with(201);
    let between = format!("/api/bindings/{vhost}/e/x/q/plain");
    http.post(&between, r#"{"routing_key":"k","arguments":{"a":1}}"#).with(201);
    http.put(&format!("/api/users/{user}"), r#"{"password":"pw","tags":"monitoring"}"#).with(201);
    let permission = r#"{"configure":"","write":"","read":".*"}"#;
    http.put(&format!("/api/permissions/{vhost}/{user}"), permission).with(201);
    let topics = r#"{"exchange":"x","write":"a","read":"b"}"#;
    http.put(&format!("/api/topic-permissions/{vhost}/{user}"), topics).with(201);
    let policy = r#"{"pattern":"^p","definition":{"max-length":9},"apply-to":"queues"}"#;
    for kind in ["policies", "operator-policies"] {
        http.put(&format!("/api/{kind}/{vhost}/p"), policy).with(201);
    }
    http.put(&format!("/api/vhost-limits/{vhost}/max-queues"), r#"{"value":50}"#).with(204);
    http.put(&format!("/api/global-parameters/{user}"), r#"{"value":{"any":"thing"}}"#).with(201);
    // Figures are shown too.
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    client.publish(channel, &Publish { exchange: "x", key: "k", body: b"m", ..Publish::default() });
    client.put(channel, "copies", b"m");
    client.confirmed(channel, 1, 2);
    client.consume(channel, "copies", "c").unwrap();
    until("figures", || {
        let found = http.get(&format!("/api/queues/{vhost}/copies")).with(200);
        (found["message_stats"].is_object() && found["consumers"] == 1).then_some(Value::Null)
    });
    for path in [
        format!("queues/{vhost}/plain"),
        format!("queues/{vhost}/copies"),
        format!("exchanges/{vhost}/x"),
        format!("vhosts/{vhost}"),
        format!("users/{user}"),
        format!("permissions/{vhost}/{user}"),
        format!("policies/{vhost}/p"),
        format!("operator-policies/{vhost}/p"),
        format!("parameters/vhost-limits/{vhost}/limits"),
        format!("parameters/operator_policy/{vhost}/p"),
        format!("global-parameters/{user}"),
        "cluster-name".to_owned(),
    ] {
        let shown = http.get(&format!("/api/{path}")).with(200);
        let written = http.put(&format!("/api/{path}"), &shown.to_string());
        assert_eq!(written.status, 204, "{path}: {shown}: {written:?}");
    }
    let topics = http.get(&format!("/api/topic-permissions/{vhost}/{user}")).with(200);
    http.put(&format!("/api/topic-permissions/{vhost}/{user}"), &topics[0].to_string()).with(204);
    let binding = http.get(&between).with(200);
    http.post(&between, &binding[0].to_string()).with(201);
    assert_eq!(http.get(&between).with(200), binding);
    http.delete(&format!("/api/global-parameters/{user}")).with(204);
    http.delete(&format!("/api/users/{user}")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn lists_are_paged_sorted_and_cut_to_columns() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    for name in ["b", "c", "a", "ab"] {
        http.put(&format!("/api/queues/{vhost}/{name}"), "{}").with(201);
    }
    let of = |query: &str| http.get(&format!("/api/queues/{vhost}?{query}")).with(200);
    assert_eq!(of("columns=name&sort=name"), json!([{"name":"a"},{"name":"ab"},{"name":"b"},{"name":"c"}]));
    let page = of("page=2&page_size=3&sort=name&columns=name");
    assert_eq!(page["items"], json!([{"name":"c"}]));
    assert_eq!((&page["page_count"], &page["total_count"], &page["item_count"]), (&json!(2), &json!(4), &json!(1)));
    let found = of("page=1&page_size=10&name=%5Ea&use_regex=true&columns=name&sort=name&sort_reverse=true");
    assert_eq!(found["items"], json!([{"name":"ab"},{"name":"a"}]));
    assert_eq!(found["filtered_count"], 2);
    for (query, error, told) in [
        ("page=9", "page_out_of_range", "Page out of range, page: 9 page size: 100, len: 4"),
        (
            "page=0",
            "invalid_pagination_parameters",
            "Invalid pagination parameters: page number 0, page size undefined",
        ),
        (
            "page=1&page_size=501",
            "invalid_pagination_parameters",
            "Invalid pagination parameters: page number 1, page size 501",
        ),
        ("page=x", "bad_request", "Pagination parameters are invalid"),
    ] {
        let refused = http.get(&format!("/api/queues/{vhost}?{query}"));
        assert_eq!((reason(&refused, 400).as_str(), &refused.with(400)["error"]), (told, &json!(error)), "{query}");
    }
    let found = of("page=2&page_size=1&name=a&columns=name");
    assert_eq!(found["items"], json!([{"name":"ab"}]));
    assert_eq!(
        (&found["filtered_count"], &found["total_count"], &found["page_count"]),
        (&json!(2), &json!(4), &json!(2))
    );
    assert_eq!(of("name=B&columns=name"), json!([{"name":"ab"},{"name":"b"}]));
    assert_eq!(of("name=a&columns=name&sort=name&sort_reverse=true"), json!([{"name":"ab"},{"name":"a"}]));
    let refused = http.get(&format!("/api/queues/{vhost}?name=(&use_regex=true"));
    assert_eq!(reason(&refused, 400), "invalid regex");
    let exchanges = http.get(&format!("/api/exchanges/{vhost}?name=AMQ.T&page=1&columns=name")).with(200);
    assert_eq!((&exchanges["items"], &exchanges["filtered_count"]), (&json!([{"name":"amq.topic"}]), &json!(1)));
    let none = of("page=1&name=none");
    assert_eq!((&none["items"], &none["page_count"], &none["filtered_count"]), (&json!([]), &json!(0), &json!(0)));
    // The case of letters is the same to a pattern.
    let found = of("page=1&name=%5EA&use_regex=true&columns=name&sort=name");
    assert_eq!(found["items"], json!([{"name":"a"},{"name":"ab"}]));
    // The order that there is anyway can be turned round too.
    let backwards = json!([{"name":"c"},{"name":"b"},{"name":"ab"},{"name":"a"}]);
    assert_eq!(of("sort_reverse=true&columns=name"), backwards);
    assert_eq!(of("sort_reverse=true&columns=name&page=1&page_size=2")["items"], json!([{"name":"c"},{"name":"b"}]));
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_is_missing_or_not_there_is_told_with_rabbitmqs_statuses_and_words() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, name) = (vhost(&http), unique("nobody"));
    let told = |response: Response| {
        (response.status, serde_json::from_str::<Value>(&response.text).unwrap()["reason"].clone())
    };
    assert_eq!(told(http.get(&format!("/api/definitions/{name}"))), (400, json!("vhost_not_found")));
    assert_eq!(told(http.post(&format!("/api/definitions/{name}"), "{}")), (404, json!("vhost_not_found")));
    let limit = format!("/api/user-limits/{name}/max-channels");
    assert_eq!(told(http.put(&limit, r#"{"value":5}"#)), (400, json!(["no_such_user", name])));
    assert_eq!(
        http.put(&format!("/api/queues/{vhost}/q"), &format!(r#"{{"durable":true,"node":"{name}@nowhere"}}"#)).status,
        400
    );
    assert_eq!(http.get(&format!("/api/queues/{vhost}/q")).status, 404, "nothing was made");
    for (path, body, missing) in [
        (format!("permissions/{vhost}/guest"), r#"{"configure":""}"#, "[{key_missing,write},{key_missing,read}]"),
        (format!("topic-permissions/{vhost}/guest"), r#"{"write":"","read":""}"#, "[{key_missing,exchange}]"),
        (format!("policies/{vhost}/p"), "{}", "[{key_missing,pattern},{key_missing,definition}]"),
        (format!("vhost-limits/{vhost}/max-queues"), "{}", "[{key_missing,value}]"),
    ] {
        assert_eq!(told(http.put(&format!("/api/{path}"), body)), (400, json!(missing)), "{path}");
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn lists_go_by_the_names_of_virtual_hosts_and_then_of_things() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let prefix = unique("order");
    let vhosts = ["b", "a"].map(|name| format!("{prefix}-{name}"));
    for vhost in &vhosts {
        http.put(&format!("/api/vhosts/{vhost}"), "{}").with(201);
        for name in ["2", "1"] {
            http.put(&format!("/api/queues/{vhost}/{name}"), "{}").with(201);
            http.put(&format!("/api/exchanges/{vhost}/{name}"), r#"{"type":"fanout"}"#).with(201);
        }
    }
    for kind in ["queues", "exchanges"] {
        let all = http.get(&format!("/api/{kind}?columns=vhost,name")).with(200);
        let own = all.as_array().unwrap().iter().filter(|item| item["vhost"].as_str().unwrap().starts_with(&prefix));
        let own = own.map(|item| (item["vhost"].as_str().unwrap(), item["name"].as_str().unwrap()));
        let own: Vec<_> = own.filter(|(_, name)| ["1", "2"].contains(name)).collect();
        let (a, b) = (vhosts[1].as_str(), vhosts[0].as_str());
        assert_eq!(own, [(a, "1"), (a, "2"), (b, "1"), (b, "2")], "{kind}");
    }
    vhosts.iter().for_each(|vhost| drop(http.delete(&format!("/api/vhosts/{vhost}")).with(204)));
}

#[test]
fn bad_requests_harm_nobody() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    for bytes in [&b"what?\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", b"\x00\x01\x02\r\n\r\n"] {
        let answer = http.raw(bytes);
        assert!([0, 400, 404, 505].contains(&answer.status), "{answer:?}");
    }
    let head = format!("GET /api/whoami HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let answer = http.raw(head.as_bytes());
    assert!([0, 400, 414, 431].contains(&answer.status), "{}", answer.status);
    // Somebody who never asks holds up nobody.
    let _silent: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(http.addr()).unwrap()).collect();
    http.get("/api/whoami").with(200);
}

#[test]
fn who_sends_half_a_body_and_stalls_is_told_as_what_is_waited_for() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let body = r#"{"pattern":"q","definition":{"max-length":5}}"#;
    let (first, rest) = body.split_at(20);
    let head = "PUT /api/policies/%2F/slow HTTP/1.1\r\nHost: broker\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=";
    let mut socket = std::net::TcpStream::connect(http.addr()).unwrap();
    let sent = format!("{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{first}", body.len());
    socket.write_all(sent.as_bytes()).unwrap();
    let due = Instant::now() + PATIENCE + Duration::from_secs(10);
    let told = || -> Vec<String> {
        let is_of = |line: &&str| line.contains("an HTTP request is not answered");
        broker.log().lines().filter(is_of).map(str::to_owned).collect()
    };
    while told().is_empty() {
        assert!(Instant::now() < due, "nothing is told");
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown = http.get("/api/leveret/waiting").with(200);
    assert_eq!((&shown[0]["waits_for"], &shown[1]), (&json!("body"), &Value::Null), "{shown}");
    let told_once = told();
    assert!(told_once[0].contains(" waits_for=body ") && told_once[0].contains("/policies/"), "{told_once:?}");
    socket.write_all(rest.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert_eq!(told(), told_once, "it waited for nobody else");
}

#[test]
fn a_key_that_comes_twice_is_refused_by_its_name() {
    // RabbitMQ takes the last one.
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    for (path, body, key) in [
        (format!("users/{name}"), r#"{"password":"a","password":"b","tags":""}"#, "password"),
        (
            format!("queues/{vhost}/q"),
            r#"{"durable":true,"arguments":{"x-max-length":1,"x-max-length":2}}"#,
            "x-max-length",
        ),
        (format!("exchanges/{vhost}/x"), r#"{"type":"fanout","arguments":{"a":{"b":1,"b":2}}}"#, "b"),
        (format!("policies/{vhost}/p"), r#"{"pattern":".*","definition":{"expires":5,"expires":6}}"#, "expires"),
        (format!("global-parameters/{name}"), r#"{"value":[{"a":1,"a":1}]}"#, "a"),
    ] {
        let told = reason(&http.put(&format!("/api/{path}"), body), 400);
        assert_eq!(told, format!("the field \"{key}\" comes twice"), "{path}");
        assert_eq!(http.get(&format!("/api/{path}")).status, 404, "nothing was made");
    }
    let part = r#"{"policies":[],"queues":[{"name":"q","arguments":{"a":1,"a":2}}],"policies":[]}"#;
    for path in ["definitions".to_owned(), format!("definitions/{vhost}")] {
        assert_eq!(reason(&http.post(&format!("/api/{path}"), part), 400), "the field \"a\" comes twice");
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_field_that_is_known_is_of_its_type() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let (vhost, name) = (vhost(&http), unique("user"));
    let no_queue = "an exclusive queue belongs to a connection of AMQP and ends with it: over HTTP there is none";
    let hash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";
    let user = |more: &str| format!(r#"{{"password":"pw","tags":"",{more}}}"#);
    for (path, body, told) in [
        (format!("queues/{vhost}/q"), r#"{"exclusive":true}"#.to_owned(), no_queue),
        (format!("queues/{vhost}/q"), r#"{"exclusive":"true"}"#.to_owned(), no_queue),
        (format!("queues/{vhost}/q"), r#"{"exclusive":{}}"#.to_owned(), "exclusive is neither true nor false"),
        (format!("queues/{vhost}/q"), r#"{"queue_type":5}"#.to_owned(), "queue_type is no text"),
        (format!("queues/{vhost}/q"), r#"{"type":[]}"#.to_owned(), "type is no text"),
        (format!("queues/{vhost}/q"), r#"{"node":7}"#.to_owned(), "node is no text"),
        (format!("exchanges/{vhost}/x"), r#"{"type":"fanout","node":{}}"#.to_owned(), "node is no text"),
        (format!("users/{name}"), user(r#""hashing_algorithm":5"#), "hashing_algorithm is no text"),
        (format!("users/{name}"), user(r#""hashing_algorithm":[]"#), "hashing_algorithm is no text"),
        (format!("users/{name}"), user(r#""hashing_algorithm":"rot13""#), "unknown hashing algorithm 'rot13'"),
        (format!("users/{name}"), user(r#""administrator":{}"#), "administrator is neither true nor false"),
        (format!("users/{name}"), r#"{"password_hash":5,"tags":""}"#.to_owned(), "password_hash is no text"),
        (format!("vhosts/{name}"), r#"{"metadata":true}"#.to_owned(), "metadata is no object"),
        (format!("vhosts/{name}"), r#"{"default_queue_type":5}"#.to_owned(), "default_queue_type is no text"),
    ] {
        assert_eq!(reason(&http.put(&format!("/api/{path}"), &body), 400), told, "{path} {body}");
        assert_eq!(http.get(&format!("/api/{path}")).status, 404, "nothing was made");
    }
    for nonsense in ["true", "null", "5", "{}"] {
        let told = reason(&http.post("/api/definitions", &format!(r#"{{"nonsense":{nonsense}}}"#)), 400);
        assert_eq!(told, "nonsense: this part is not known here");
    }
    // What clients send.
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true,"exclusive":false,"type":null,"node":null}"#)
        .with(201);
    let with_hash =
        format!(r#"{{"password_hash":"{hash}","hashing_algorithm":"rabbit_password_hashing_sha256","tags":[]}}"#);
    http.put(&format!("/api/users/{name}"), &with_hash).with(201);
    http.put(&format!("/api/users/{name}"), &user(r#""hashing_algorithm":"rabbit_password_hashing_sha512""#)).with(204);
    http.put(&format!("/api/vhosts/{name}"), r#"{"metadata":{"description":""},"default_queue_type":null}"#).with(201);
    http.post("/api/definitions", r#"{"explanation":"a text","rabbit_version":"9.9.9","queues":null}"#).with(204);
    http.delete(&format!("/api/vhosts/{name}")).with(204);
    http.delete(&format!("/api/users/{name}")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_body_in_an_encoding_that_nobody_undoes_is_refused() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let body = r#"{"pattern":"q","definition":{"max-length":5}}"#;
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let put = |headers: &str| {
        let head = "PUT /api/policies/%2F/coded HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nConnection: close";
        match headers.contains("Transfer-Encoding") {
            true => http.raw(format!("{head}\r\n{headers}\r\n\r\n{chunked}").as_bytes()).status,
            false => {
                http.raw(format!("{head}\r\n{headers}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
                    .status
            }
        }
    };
    assert_eq!(put("Content-Encoding: gzip"), 415);
    assert_eq!(put("Transfer-Encoding: gzip, chunked"), 501);
    assert_eq!(put("Transfer-Encoding: chunked, chunked"), 501);
    assert_eq!(put("Expect: 200-maybe"), 417);
    assert_eq!(http.get("/api/policies/%2F/coded").status, 404, "nothing of it was done");
    assert_eq!(put("Content-Encoding: identity"), 201);
    assert_eq!(put("Transfer-Encoding: chunked"), 204);
}

#[test]
fn a_whole_number_that_no_argument_can_hold_is_refused_and_not_made_another_one() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let at = "/api/queues/%2F/numbers";
    let put = |number: &str| http.put(at, &format!(r#"{{"arguments":{{"x-note":[{{"n":{number}}}]}}}}"#));
    for number in ["9223372036854775808", "18446744073709551615"] {
        let why = format!("arguments: {number} does not fit into 64 bits with a sign");
        assert_eq!(reason(&put(number), 400), why);
    }
    for number in ["18446744073709551616", "-9223372036854775809"] {
        assert_eq!(reason(&put(number), 400), format!("{number}: a whole number has at most 64 bits"));
    }
    put("[9223372036854775807,-9223372036854775808,1e30]").with(201);
    let shown = http.get(at).with(200)["arguments"]["x-note"][0]["n"].clone();
    assert_eq!(shown, json!([i64::MAX, i64::MIN, 1e30]));
}

#[test]
fn minus_nought_is_a_whole_number() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"arguments":{"x-message-ttl":-0}}"#).with(201);
    let shown = http.get(&format!("/api/queues/{vhost}/q")).with(200)["arguments"]["x-message-ttl"].clone();
    assert_eq!(shown, json!(0));
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_body_of_very_many_values_is_refused_whoever_sends_it() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/users/ann", r#"{"password":"p","tags":"management"}"#).with(201);
    let lists = |count: usize| format!(r#"{{"a":[{}[]]}}"#, "[],".repeat(count));
    let ann = http.as_user("ann", "p");
    let told = "there are more than 10000 values in it";
    assert_eq!(reason(&ann.post("/api/leveret/session", &lists(1 << 20)), 400), told);
    assert_eq!(reason(&http.put("/api/queues/%2F/q", &lists(10_000)), 400), told);
    for path in ["/api/definitions", "/api/definitions/%2F"] {
        let refused = http.post(path, &lists(2 << 20));
        assert_eq!(reason(&refused, 400), "there are more than 2097152 values in it", "{path}");
    }
    // So many are a large import.
    http.post("/api/definitions/%2F", r#"{"queues":[{"name":"d","durable":true}]}"#).with(204);
    assert_eq!(http.get("/api/queues/%2F/d").with(200)["vhost"], "/");
}

#[test]
fn who_lacks_a_right_or_names_what_is_not_there_is_refused_before_a_body_comes() {
    // RabbitMQ reads it.
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/q", "{}").with(201);
    http.put("/api/users/ann", r#"{"password":"p","tags":"management"}"#).with(201);
    http.put("/api/permissions/%2F/ann", r#"{"configure":"","write":"","read":""}"#).with(201);
    // A head that tells of a body, and nothing behind it.
    let begun = |login: &str, method: &str, path: &str| {
        let head = format!("{method} /api/{path} HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {login}\r\n");
        http.raw(format!("{head}Connection: close\r\nContent-Length: 1000000\r\n\r\n").as_bytes()).status
    };
    let (ann, guest) = ("YW5uOnA=", "Z3Vlc3Q6Z3Vlc3Q=");
    for (method, path, status) in [
        ("PUT", "queues/%2F/new", 401),
        ("PUT", "exchanges/%2F/new", 401),
        ("POST", "bindings/%2F/e/amq.direct/q/q", 401),
        ("POST", "exchanges/%2F/amq.direct/publish", 400),
        ("POST", "queues/%2F/q/get", 401),
        ("POST", "leveret/queues/%2F/q/move", 401),
    ] {
        assert_eq!(begun(ann, method, path), status, "{method} {path}");
    }
    for (method, path) in [
        ("PUT", "queues/none/new"),
        ("POST", "bindings/%2F/e/amq.direct/q/none"),
        ("POST", "bindings/%2F/e/none/q/q"),
        ("POST", "exchanges/%2F/none/publish"),
        ("POST", "queues/%2F/none/get"),
        ("POST", "nothing/of/the/kind"),
    ] {
        assert_eq!(begun(guest, method, path), 404, "{method} {path}");
    }
}

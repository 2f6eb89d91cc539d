//! Publishing and getting over HTTP: what is answered, and where messages are when somebody
//! vanishes or something stalls.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};

use clients::api::{reason, until, vhost};
use clients::broker::{is_foreign, unique};
use clients::{Broker, Client, Http, Login, Properties, Publish, Stopped};
use serde_json::{Value, json};

/// A message for the default exchange.
fn message(key: &str, payload: &str) -> String {
    json!({"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string"}).to_string()
}

fn publish(http: &Http, vhost: &str, key: &str, payload: &str) {
    let answer = http.post(&format!("/api/exchanges/{vhost}/amq.default/publish"), &message(key, payload)).with(200);
    assert_eq!(answer, json!({"routed": true}));
}

fn get(http: &Http, vhost: &str, queue: &str, count: u64, ack_mode: &str) -> Vec<Value> {
    let body = json!({"count": count, "ackmode": ack_mode, "encoding": "auto"}).to_string();
    let got = http.post(&format!("/api/queues/{vhost}/{queue}/get"), &body).with(200);
    got.as_array().unwrap().clone()
}

fn payloads(got: &[Value]) -> Vec<&str> {
    got.iter().map(|message| message["payload"].as_str().unwrap()).collect()
}

fn ready(http: &Http, vhost: &str, queue: &str, wanted: u64) {
    until("the messages in the queue", || {
        let found = http.get(&format!("/api/queues/{vhost}/{queue}")).with(200);
        (found["messages_ready"] == wanted && found["messages_unacknowledged"] == 0).then_some(found)
    });
}

#[test]
fn a_message_goes_in_and_comes_out_with_all_that_it_has() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true}"#).with(201);
    let properties = json!({
        "content_type": "text/plain", "delivery_mode": 2, "priority": 7, "correlation_id": "c", "reply_to": "r",
        "expiration": "600000", "message_id": "m", "timestamp": 1234, "type": "t", "user_id": "guest", "app_id": "a",
        "headers": {"a": 1, "b": "x", "c": [1, "y"], "d": {"e": true}},
    });
    let body =
        json!({"properties": properties, "routing_key": "q", "payload": "AGhp/w==", "payload_encoding": "base64"});
    let at = format!("/api/exchanges/{vhost}/amq.default/publish");
    assert_eq!(http.post(&at, &body.to_string()).with(200), json!({"routed": true}));
    assert_eq!(http.post(&at, &message("nobody", "x")).with(200), json!({"routed": false}));
    publish(&http, &vhost, "q", "second");
    let got = get(&http, &vhost, "q", 5, "ack_requeue_true");
    let first = json!({
        "payload_bytes": 4, "redelivered": false, "exchange": "", "routing_key": "q", "message_count": 1,
        "properties": properties, "payload": "AGhp/w==", "payload_encoding": "base64",
    });
    assert_eq!(got[0], first);
    assert_eq!((&got[1]["payload"], &got[1]["properties"]), (&json!("second"), &json!([])));
    ready(&http, &vhost, "q", 2);
    // They came back in their order, and an AMQP client gets the same bytes.
    let mut client = Client::login(broker.addr(), &Login { vhost: vhost.clone(), ..Login::default() }).unwrap();
    let channel = client.channel();
    let delivery = client.get(channel, "q", false).unwrap().unwrap();
    assert_eq!((&delivery.body[..], delivery.redelivered), (&b"\0hi\xff"[..], true));
    client.ack(channel, delivery.tag, false);
    client.round_trip(channel).unwrap();
    let body = r#"{"count":"1","ackmode":"ack_requeue_false","encoding":"base64","truncate":3}"#;
    let cut = http.post(&format!("/api/queues/{vhost}/q/get"), body).with(200);
    assert_eq!((&cut[0]["payload"], &cut[0]["payload_bytes"]), (&json!("c2Vj"), &json!(6)));
    ready(&http, &vhost, "q", 0);
    assert_eq!(get(&http, &vhost, "q", 5, "ack_requeue_true"), Vec::<Value>::new());
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_was_got_is_kept_removed_or_dead_lettered_as_its_ackmode_says() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/dead"), r#"{"durable":true}"#).with(201);
    let arguments =
        json!({"durable": true, "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}});
    http.put(&format!("/api/queues/{vhost}/q"), &arguments.to_string()).with(201);
    (1..=4).for_each(|number| publish(&http, &vhost, "q", &number.to_string()));
    assert_eq!(payloads(&get(&http, &vhost, "q", 2, "reject_requeue_true")), ["1", "2"]);
    ready(&http, &vhost, "q", 4);
    assert_eq!(payloads(&get(&http, &vhost, "q", 1, "ack_requeue_false")), ["1"]);
    assert_eq!(payloads(&get(&http, &vhost, "q", 2, "reject_requeue_false")), ["2", "3"]);
    ready(&http, &vhost, "q", 1);
    ready(&http, &vhost, "dead", 2);
    assert_eq!(payloads(&get(&http, &vhost, "dead", 9, "ack_requeue_true")), ["2", "3"]);
    assert_eq!(payloads(&get(&http, &vhost, "q", 9, "ack_requeue_true")), ["4"]);
    assert_eq!(get(&http, &vhost, "q", 0, "ack_requeue_false"), Vec::<Value>::new());
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_cannot_be_published_or_got_is_refused_with_rabbitmqs_reasons() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let (vhost, user) = (vhost(&http), unique("user"));
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true}"#).with(201);
    let full = r#"{"durable":true,"arguments":{"x-max-length":0,"x-overflow":"reject-publish"}}"#;
    http.put(&format!("/api/queues/{vhost}/full"), full).with(201);
    let publish = |exchange: &str, body: &str| http.post(&format!("/api/exchanges/{vhost}/{exchange}/publish"), body);
    let with = |field: &str, value: Value| {
        let mut body: Value = serde_json::from_str(&message("q", "x")).unwrap();
        body[field] = value;
        publish("amq.default", &body.to_string()).with(400)["reason"].clone()
    };
    assert_eq!(with("payload_encoding", json!("utf8")), json!(["unsupported_encoding", "utf8"]));
    assert_eq!(with("payload", json!({"a": 1})), json!("payload_not_string"));
    let bad = json!({"properties": {}, "routing_key": "q", "payload": "A!", "payload_encoding": "base64"}).to_string();
    assert_eq!(publish("amq.default", &bad).with(400)["reason"], json!(["not_base64", "A!"]));
    assert_eq!(with("properties", json!({"delivery_mode": "2"})), json!(["not_int", "delivery_mode"]));
    assert_eq!(with("properties", json!({"expiration": 5000})), json!(["not_string", "expiration"]));
    assert_eq!(with("properties", json!({"headers": {"a": null}})), json!("null_not_allowed"));
    let forged = with("properties", json!({"user_id": "other"}));
    assert!(
        forged.as_str().unwrap().starts_with("406 PRECONDITION_FAILED - user_id property set to 'other'"),
        "{forged}"
    );
    let endless = with("properties", json!({"expiration": "abc"}));
    assert!(endless.as_str().unwrap().starts_with("406 PRECONDITION_FAILED - invalid expiration 'abc'"), "{endless}");
    let bare = json!({"properties": {}, "routing_key": "q", "payload": "x"}).to_string();
    assert_eq!(reason(&publish("amq.default", &bare), 400), "[{key_missing,payload_encoding}]");
    let rejected = reason(&publish("amq.default", &message("full", "x")), 400);
    assert_eq!(rejected, "rejected Unable to publish message. Check queue limits.");
    if !is_foreign() {
        // RabbitMQ says so from 4.x on.
        assert_eq!(reason(&publish("none", &message("q", "x")), 404), "exchange_not_found");
        let wanted = r#"{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
        assert_eq!(reason(&http.post(&format!("/api/queues/{vhost}/none/get"), wanted), 404), "queue_not_found");
        assert_eq!(reason(&http.post("/api/queues/none/q/get", wanted), 404), "vhost_not_found");
        // These it cuts to eight bits or takes without end.
        assert_eq!(with("properties", json!({"priority": 300})), json!("priority is at most 255"));
        let many = r#"{"count":10001,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
        assert_eq!(reason(&http.post(&format!("/api/queues/{vhost}/q/get"), many), 400), "count is at most 10000");
        // What was said before there was an ackmode may be said with it, and not against it.
        let both = r#"{"count":1,"requeue":false,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
        let refused = reason(&http.post(&format!("/api/queues/{vhost}/q/get"), both), 400);
        assert_eq!(refused, "requeue is false, but ackmode says otherwise");
        let both = both.replace("false", "true");
        assert_eq!(http.post(&format!("/api/queues/{vhost}/q/get"), &both).with(200), json!([]));
    }
    for (body, told) in [
        (r#"{"count":1,"encoding":"auto"}"#, json!("[{key_missing,ackmode}]")),
        (r#"{"count":"x","ackmode":"ack_requeue_true","encoding":"auto"}"#, json!(["not_integer", "x"])),
        (
            r#"{"count":1,"ackmode":"ack_requeue_true","encoding":"x"}"#,
            json!("Unsupported encoding. Please use auto or base64."),
        ),
    ] {
        assert_eq!(http.post(&format!("/api/queues/{vhost}/q/get"), body).with(400)["reason"], told);
    }
    assert_eq!(http.get(&format!("/api/queues/{vhost}/q/get")).status, 405);
    // Who may not read or write there does neither, and who may not use the virtual host is told no
    // more than that.
    http.put(&format!("/api/users/{user}"), r#"{"password":"pw","tags":"management"}"#).with(201);
    let theirs = http.as_user(&user, "pw");
    let wanted = r#"{"count":1,"ackmode":"ack_requeue_false","encoding":"auto"}"#;
    let try_get = || theirs.post(&format!("/api/queues/{vhost}/q/get"), wanted);
    let try_publish = || theirs.post(&format!("/api/exchanges/{vhost}/amq.direct/publish"), &message("q", "x"));
    if !is_foreign() {
        assert_eq!(reason(&try_get(), 401), "User not authorised to access virtual host");
        assert_eq!(reason(&try_publish(), 401), "User not authorised to access virtual host");
    }
    let permission = r#"{"configure":"","write":"^w","read":"^r"}"#;
    http.put(&format!("/api/permissions/{vhost}/{user}"), permission).with(201);
    let refused = reason(&try_get(), 401);
    assert!(refused.starts_with("ACCESS_REFUSED - "), "{refused}");
    let refused = reason(&try_publish(), 400);
    assert!(refused.starts_with("403 ACCESS_REFUSED - "), "{refused}");
    http.delete(&format!("/api/users/{user}")).with(204);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

/// A request whose sender is gone before the broker looks at it: the broker is stopped while it is
/// sent.
fn ask_and_vanish(broker: &Broker, http: &Http, path: &str, body: &str) {
    broker.signal(rustix::process::Signal::STOP);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: broker\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(http.addr()).unwrap();
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body.as_bytes()).unwrap();
    socket.shutdown(Shutdown::Both).unwrap();
    drop(socket);
    broker.signal(rustix::process::Signal::CONT);
}

#[test]
fn what_was_got_for_somebody_who_vanished_comes_back() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    (1..=50).for_each(|number| publish(&http, "%2F", "q", &number.to_string()));
    for ack_mode in ["ack_requeue_false", "reject_requeue_false"] {
        let body = json!({"count": 50, "ackmode": ack_mode, "encoding": "auto"}).to_string();
        ask_and_vanish(&broker, &http, "/api/queues/%2F/q/get", &body);
        // Once nothing of it is under way any more.
        until("its end", || {
            let waiting = http.get("/api/leveret/waiting").with(200);
            (waiting == json!([])).then_some(Value::Null)
        });
        ready(&http, "%2F", "q", 50);
    }
    let all = get(&http, "%2F", "q", 50, "ack_requeue_false");
    let wanted: Vec<String> = (1..=50).map(|number| number.to_string()).collect();
    assert_eq!(payloads(&all), wanted);
    // A publish is finished, whoever hears of it.
    ask_and_vanish(&broker, &http, "/api/exchanges/%2F/amq.default/publish", &message("q", "last"));
    ready(&http, "%2F", "q", 1);
}

#[test]
fn a_queue_that_goes_while_messages_are_got_is_told() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    publish(&http, "%2F", "q", "x");
    let mut client = broker.connect();
    let channel = client.channel();
    client.delete(channel, "q", false, false).unwrap();
    let wanted = r#"{"count":1,"ackmode":"ack_requeue_false","encoding":"auto"}"#;
    assert_eq!(reason(&http.post("/api/queues/%2F/q/get", wanted), 404), "queue_not_found");
    let answer = http.post("/api/exchanges/%2F/amq.default/publish", &message("q", "x")).with(200);
    assert_eq!(answer, json!({"routed": false}));
}

#[test]
fn while_publishers_are_held_a_publish_over_http_is_refused_and_a_get_is_not() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    publish(&http, "%2F", "q", "x");
    http.put(&format!("/api/nodes/{node}/publishers/hold"), "").with(204);
    let refused = reason(&http.post("/api/exchanges/%2F/amq.default/publish", &message("q", "y")), 503);
    assert!(refused.starts_with("publishers are blocked: "), "{refused}");
    assert_eq!(payloads(&get(&http, "%2F", "q", 5, "ack_requeue_true")), ["x"]);
    http.delete(&format!("/api/nodes/{node}/publishers/hold")).with(204);
    publish(&http, "%2F", "q", "z");
    assert_eq!(payloads(&get(&http, "%2F", "q", 5, "ack_requeue_true")), ["x", "z"]);
}

#[test]
fn while_a_shard_stands_still_nothing_is_said_to_be_routed() {
    let one_shard = ["--shard-threads", "1"];
    let Some((broker, http)) = Broker::managed(&one_shard).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    publish(&http, "%2F", "q", "x");
    let stopped = Stopped::thread(&broker, "shard-0");
    let asks = http.clone();
    let asked = std::thread::spawn(move || asks.post("/api/exchanges/%2F/amq.default/publish", &message("q", "y")));
    // Nothing but time can show that no answer comes.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!asked.is_finished(), "an answer without a shard that could confirm");
    drop(stopped);
    assert_eq!(asked.join().unwrap().with(200), json!({"routed": true}));
    assert_eq!(payloads(&get(&http, "%2F", "q", 5, "ack_requeue_true")), ["x", "y"]);
}

#[test]
fn an_answer_takes_no_more_once_it_is_large_and_what_is_not_in_it_stays() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    let body = vec![b'x'; 3 << 20];
    for _ in 0..5 {
        client.publish(
            channel,
            &Publish { key: "q", properties: Properties::default(), body: &body, ..Default::default() },
        );
    }
    client.confirmed(channel, 1, 5);
    let got = get(&http, "%2F", "q", 5, "ack_requeue_false");
    assert_eq!(got.len(), 3, "the third passes 8 MiB");
    assert_eq!(got[2]["message_count"], 2);
    ready(&http, "%2F", "q", 2);
}

#[test]
fn what_is_published_while_the_node_is_drained_is_answered_as_ever() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true}"#).with(201);
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    let maintenance = format!("/api/nodes/{node}/maintenance");
    let (threads, each) = (4, 50);
    std::thread::scope(|scope| {
        let publishers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| (0..each).for_each(|_| publish(&http, &vhost, "q", "x")))).collect();
        // Many times, as a publish is under way for a moment only.
        while !publishers.iter().all(|publisher| publisher.is_finished()) {
            http.put(&maintenance, "").with(204);
            http.delete(&maintenance).with(204);
        }
    });
    http.put(&maintenance, "").with(204);
    publish(&http, &vhost, "q", "in maintenance");
    ready(&http, &vhost, "q", threads * each + 1);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

//! Channels and consumers over HTTP, and what waits for what.

use clients::api::{connect, until, vhost};
use clients::broker::is_foreign;
use clients::{Broker, Http, QueueDeclare, Value as Argument};
use serde_json::{Value, json};

/// Tag, activity and status of consumers, by tag.
fn activities(list: &Value) -> Value {
    let mut all: Vec<Value> = list.as_array().unwrap().clone();
    all.sort_by_key(|one| one["consumer_tag"].as_str().unwrap_or_default().to_owned());
    all.iter().map(|one| json!([one["consumer_tag"], one["active"], one["activity_status"]])).collect()
}

#[test]
fn the_active_consumer_of_a_queue_is_told_and_so_is_the_next_one_once_it_is_gone() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    for kind in ["classic", "quorum"] {
        let arguments = vec![("x-queue-type", kind.into()), ("x-single-active-consumer", true.into())];
        let single = QueueDeclare { name: kind, durable: true, arguments, ..QueueDeclare::default() };
        client.declare(channel, &single).unwrap();
        let (first, second, other) = (format!("{kind}1"), format!("{kind}2"), format!("{kind}3"));
        client.consume(channel, kind, &first).unwrap();
        client.consume(channel, kind, &second).unwrap();
        let of_queue = |http: &Http, tag: Value, expected: Value| {
            until("the active consumer", || {
                let found = http.get(&format!("/api/queues/{vhost}/{kind}")).with(200);
                let all = http.get(&format!("/api/consumers/{vhost}")).with(200);
                let list = http.get(&format!("/api/queues/{vhost}")).with(200);
                let all = all.as_array().unwrap().iter().filter(|one| one["queue"]["name"] == kind).cloned().collect();
                let listed = list.as_array().unwrap().iter().find(|one| one["name"] == kind).unwrap().clone();
                let is_it = activities(&found["consumer_details"]) == expected
                    && activities(&all) == expected
                    && found["single_active_consumer_tag"] == tag
                    && listed["single_active_consumer_tag"] == tag;
                is_it.then_some(Value::Null)
            });
        };
        let active = json!([[first, true, "single_active"], [second, false, "waiting"]]);
        of_queue(&http, json!(first), active.clone());
        if !is_foreign() {
            let columns = "columns=name,single_active_consumer_tag";
            let listed = http.get(&format!("/api/queues/{vhost}?{columns}&name={kind}&page=1")).with(200);
            assert_eq!(listed["items"], json!([{ "name": kind, "single_active_consumer_tag": first }]));
            let channels = http.get("/api/channels").with(200);
            let name = channels[0]["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
            let found = http.get(&format!("/api/channels/{name}")).with(200);
            assert_eq!(activities(&found["consumer_details"]), active);
            let text = http.get("/api/consumers").with(200).to_string();
            assert!(!text.contains("leveret_consumer"), "keys are for nodes alone: {text}");
        }
        client.cancel(channel, &first).unwrap();
        of_queue(&http, json!(second), json!([[second, true, "single_active"]]));
        client.cancel(channel, &second).unwrap();
        of_queue(&http, Value::Null, json!([]));
        // Where several get messages all are active.
        let plain = format!("{kind}-plain");
        let arguments = vec![("x-queue-type", kind.into())];
        client.declare(channel, &QueueDeclare { name: &plain, durable: true, arguments, ..single }).unwrap();
        client.consume(channel, &plain, &other).unwrap();
        until("one that is up", || {
            let found = http.get(&format!("/api/queues/{vhost}/{plain}")).with(200);
            let is_it = activities(&found["consumer_details"]) == json!([[other, true, "up"]]);
            is_it.then_some(Value::Null)
        });
        client.cancel(channel, &other).unwrap();
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn arguments_of_consumers_are_told_as_they_were_given() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", ..QueueDeclare::default() }).unwrap();
    let long = "x".repeat(1000);
    let given: [(&str, &[(&str, Argument)]); 4] = [
        ("c0", &[]),
        ("c1", &[("x-priority", 0.into()), ("note", "why".into())]),
        ("c2", &[("x-priority", 7.into()), ("flag", true.into())]),
        ("c3", &[("x-priority", 7.into()), ("note", (&long[..]).into())]),
    ];
    for (tag, arguments) in given {
        client.consume_with(channel, "q", tag, [false; 3], arguments).unwrap();
    }
    // Of more than is kept the priority is told.
    let rest = if is_foreign() { json!({ "x-priority": 7, "note": long }) } else { json!({ "x-priority": 7 }) };
    let expected =
        [json!({}), json!({ "x-priority": 0, "note": "why" }), json!({ "x-priority": 7, "flag": true }), rest];
    until("all of them", || {
        let found = http.get(&format!("/api/consumers/{vhost}?sort=consumer_tag")).with(200);
        let told: Vec<&Value> = found.as_array().unwrap().iter().map(|one| &one["arguments"]).collect();
        (told == expected.iter().collect::<Vec<_>>()).then_some(Value::Null)
    });
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

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

#[test]
fn of_very_many_consumers_a_queue_and_a_channel_describe_the_first_and_the_list_has_all() {
    if is_foreign() {
        return eprintln!("skipped: RabbitMQ describes all of them");
    }
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    let consume = |number: u32| {
        let no_wait = 0b1000;
        let args = clients::wire::Args::new().short(0).shortstr("q").shortstr(&number.to_string()).octet(no_wait);
        clients::client::method_frame(channel, clients::methods::BASIC_CONSUME, &args.table(&[]))
    };
    const ALL: u64 = 10_001;
    let frames: Vec<u8> = (0..ALL as u32).flat_map(consume).collect();
    client.raw(&frames);
    until("all consumers", || {
        let page = http.get("/api/consumers?page=1&page_size=1").with(200);
        (page["total_count"] == ALL).then_some(page)
    });
    let queue = format!("/api/queues/{vhost}/q");
    let found = http.get(&queue).with(200);
    assert_eq!(found["consumer_details"].as_array().unwrap().len(), 10_000);
    assert_eq!(http.get(&format!("{queue}?columns=name")).with(200), json!({ "name": "q" }));
    let channels = http.get("/api/channels").with(200);
    let name = channels[0]["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
    let found = http.get(&format!("/api/channels/{name}")).with(200);
    assert_eq!(found["consumer_details"].as_array().unwrap().len(), 10_000);
    assert_eq!(found["consumer_count"], ALL);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

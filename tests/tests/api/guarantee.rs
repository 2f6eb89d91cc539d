//! What is promised and what it costs: latencies by stage, bytes on disk, and the guarantee of each queue.

use clients::api::{samples, until};
use clients::broker::{is_foreign, unique};
use clients::http::Http;
use clients::{Broker, Publish, QueueDeclare};
use serde_json::{Value, json};

/// The latencies by stage once they are as wanted: what is told may have been counted half a second
/// before.
fn measured(http: &Http, is_wanted: impl Fn(&Value) -> bool) -> Value {
    until("measured stages", || {
        let stages = http.get("/api/leveret/latencies").with(200)["stages"].take();
        is_wanted(&stages).then_some(stages)
    })
}

#[test]
fn the_confirm_of_a_message_that_goes_to_many_partitions_is_measured_too() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    for at in 0..8 {
        let name = format!("q{at}");
        client.declare(channel, &QueueDeclare { name: &name, durable: true, ..QueueDeclare::default() }).unwrap();
        client.bind(channel, &name, "amq.fanout", "", &[]).unwrap();
    }
    client.confirm_select(channel).unwrap();
    for seq in 1..=100 {
        client.publish(channel, &Publish { exchange: "amq.fanout", body: b"m", ..Publish::default() });
        client.confirmed(channel, seq, seq);
    }
    let stages = measured(&http, |stages| stages["confirm"]["count"].as_u64() > Some(10));
    let [least, route] = ["confirm", "route"].map(|stage| stages[stage]["p50_us"].as_u64());
    assert!(least >= route, "measured until the last partition has spoken: {stages}");
}

#[test]
fn stages_are_measured_and_a_queue_says_what_it_promises() {
    let Some((broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let arguments = vec![("x-queue-type", "quorum".into())];
    client.declare(channel, &QueueDeclare { name: "q", durable: true, arguments, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "t", exclusive: true, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    // Some of them are measured.
    for seq in 1..=200 {
        client.put(channel, "q", b"m");
        client.confirmed(channel, seq, seq);
    }
    let on_the_road = ["route", "queue", "write", "sync", "confirm"];
    let stages = measured(&http, |stages| on_the_road.iter().all(|stage| stages[stage]["count"].as_u64() > Some(0)));
    // Nobody else has copies.
    assert_eq!(stages["replicate"]["count"], 0, "{stages}");
    for stage in on_the_road {
        let told = &stages[stage];
        let us = ["p50_us", "p90_us", "p99_us", "p999_us"].map(|name| told[name].as_u64().unwrap_or(0));
        assert!(us.windows(2).all(|two| two[0] <= two[1]) && us[0] < 30_000_000, "{stage}: {told}");
    }
    assert!(stages["confirm"]["p50_us"].as_u64() >= stages["route"]["p50_us"].as_u64());
    let page = samples(&http.get("/metrics").text);
    let counted = |stage: &str| {
        let counts = &page["leveret_stage_seconds_count"];
        counts.iter().find(|(labels, _)| labels.contains(stage)).map(|(_, value)| *value)
    };
    assert!(counted("confirm").is_some_and(|count| count > 0.0) && counted("sync").is_some_and(|count| count > 0.0));

    let promise = http.get("/api/leveret/queues/%2F/q").with(200);
    assert_eq!(promise["guarantee"], "1 of 1 copy synced to disk; 1 before a confirm", "{promise}");
    assert_eq!(
        (&promise["copies"], &promise["copies_in_sync"], &promise["leads"]),
        (&1.into(), &1.into(), &true.into())
    );
    assert!(promise["synced_index"].as_u64() >= promise["committed_index"].as_u64(), "{promise}");
    assert!(promise["committed_index"].as_u64().unwrap() > 0);
    let other = http.get("/api/leveret/queues/%2F/t").with(200);
    assert!(other["guarantee"].as_str().unwrap().starts_with("in the memory of one node"), "{other}");
    assert_eq!(http.get("/api/leveret/queues/%2F?sort=name").with(200).as_array().unwrap().len(), 2);
    assert_eq!(http.get("/api/leveret/queues/%2F/none").status, 404);
    let disk = http.get("/api/leveret/disk").with(200);
    assert_eq!(disk["published_bytes"], 200);
    let appended = disk["partitions"].as_array().unwrap().iter().map(|one| one["appended_bytes"].as_u64().unwrap());
    assert!(appended.sum::<u64>() > 200, "{disk}");
}

#[test]
fn what_a_queue_takes_on_the_disk_and_what_it_cost_is_told_by_queue() {
    let Some((mut broker, http)) = Broker::managed(&["--partitions", "1"]).filter(|_| !is_foreign()) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    for (name, durable) in [("small", true), ("large", true), ("fleeting", false)] {
        client.declare(channel, &QueueDeclare { name, durable, ..QueueDeclare::default() }).unwrap();
    }
    client.confirm_select(channel).unwrap();
    let (count, bodies) =
        (50, [("small", vec![b's'; 10]), ("large", vec![b'l'; 10_000]), ("fleeting", vec![b'f'; 10])]);
    for (name, body) in &bodies {
        (0..count).for_each(|_| client.put(channel, name, body));
    }
    client.confirmed(channel, 1, 3 * count);
    let disk = |name: &str| http.get(&format!("/api/leveret/queues/%2F/{name}")).with(200)["disk"].clone();
    let of = |told: &Value, field: &str| told[field].as_u64().unwrap_or_else(|| panic!("{field}: {told}"));
    for (name, body) in &bodies[..2] {
        let told = disk(name);
        // Names and properties come on top.
        let sent = count * (body.len() + name.len()) as u64;
        let published = of(&told, "published_bytes");
        assert!((sent..sent + count * 30).contains(&published), "{name}: {told}");
        assert!((published..published + count * 100).contains(&of(&told, "live_bytes")), "{name}: {told}");
        assert!(of(&told, "log_bytes") >= of(&told, "live_bytes"), "{name}: {told}");
        let parts = ["log_bytes", "extent_bytes", "checkpoint_bytes"].map(|field| of(&told, field));
        assert_eq!(parts.iter().sum::<u64>(), of(&told, "written_bytes"), "{name}: {told}");
        let amplification = told["amplification"].as_f64().unwrap();
        let wanted = of(&told, "written_bytes") as f64 / published as f64;
        assert!((amplification - wanted).abs() <= 0.01, "{name}: {told}");
    }
    // The same in a list, where it can be sorted by and left out.
    let sorted = http.get("/api/leveret/queues?sort=disk.live_bytes&sort_reverse=true&columns=name,disk").with(200);
    assert_eq!((&sorted[0]["name"], &sorted[0]["disk"]["live_bytes"]), (&json!("large"), &disk("large")["live_bytes"]));
    assert_eq!(http.get("/api/leveret/queues?columns=name&sort=name").with(200)[0], json!({ "name": "fleeting" }));
    let memory = disk("fleeting");
    assert_eq!((of(&memory, "live_bytes"), of(&memory, "written_bytes")), (0, 0));
    assert_eq!((&memory["published_bytes"], &memory["amplification"]), (&Value::Null, &Value::Null));
    // What is gone takes nothing, and its end was written too.
    let before = disk("large");
    http.delete("/api/queues/%2F/large/contents").with(204);
    let after = disk("large");
    assert_eq!((of(&after, "live_bytes"), of(&after, "published_bytes")), (0, of(&before, "published_bytes")));
    assert!(of(&after, "written_bytes") > of(&before, "written_bytes"), "{before} {after}");
    // A start knows what is there and not what it cost; what it reads again it does not write.
    drop(client);
    broker.kill();
    broker.start();
    until("the leader", || disk("small").is_object().then(|| disk("small")));
    let told = disk("small");
    assert!(
        (of(&told, "published_bytes"), of(&told, "log_bytes")) == (0, 0) && told["amplification"].is_null(),
        "{told}"
    );
    assert!(of(&told, "live_bytes") >= count * 15, "{told}");
}

#[test]
fn what_is_our_own_is_told_to_whom_its_kind_is_told() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    http.put("/api/queues/%2F/q", r#"{"durable":true}"#).with(201);
    let paths = ["/api/leveret/latencies", "/api/leveret/disk", "/api/leveret/queues", "/api/leveret/queues/%2F/q"];
    let asked = |tags: &str| {
        let user = unique("looker");
        http.put(&format!("/api/users/{user}"), &format!(r#"{{"password":"p","tags":"{tags}"}}"#)).with(201);
        paths.map(|path| http.as_user(&user, "p").get(path).status)
    };
    // As a queue is: who is no administrator and has no rights in its virtual host sees none in the list.
    assert_eq!(asked("administrator"), [200, 200, 200, 200]);
    assert_eq!(asked("monitoring"), [200, 200, 200, 401]);
    assert_eq!(asked("policymaker"), [401, 401, 200, 401]);
    assert_eq!(asked("management"), [401, 401, 200, 401]);
    assert_eq!(asked(""), [401, 401, 401, 401]);
    assert_eq!(paths.map(|path| http.get(path).status), [200; 4]);
}

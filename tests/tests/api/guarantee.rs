//! What is promised and what it costs: latencies by stage, bytes on disk, and the guarantee of each queue.

use clients::api::samples;
use clients::broker::{is_foreign, unique};
use clients::{Broker, QueueDeclare};

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
    let latencies = http.get("/api/leveret/latencies").with(200);
    for stage in ["route", "queue", "write", "sync", "replicate", "confirm"] {
        let told = &latencies["stages"][stage];
        let us = ["p50_us", "p90_us", "p99_us", "p999_us"].map(|name| told[name].as_u64().unwrap_or(0));
        assert!(told["count"].as_u64().unwrap() > 0, "{stage}: {latencies}");
        assert!(us.windows(2).all(|two| two[0] <= two[1]) && us[0] < 30_000_000, "{stage}: {told}");
    }
    assert!(latencies["stages"]["confirm"]["p50_us"].as_u64() >= latencies["stages"]["route"]["p50_us"].as_u64());
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

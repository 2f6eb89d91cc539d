//! Policies over HTTP: where they hold, and that they do.

use clients::api::{reason, until, vhost};
use clients::broker::is_foreign;
use clients::{Broker, Properties, Publish, QueueDeclare};
use serde_json::{Value, json};

#[test]
fn policies_are_shown_where_they_hold() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    http.put(&format!("/api/queues/{vhost}/q1"), "{}").with(201);
    let policy = r#"{"pattern":"^q","definition":{"max-length":9,"expires":60000},"priority":2,"apply-to":"queues"}"#;
    http.put(&format!("/api/policies/{vhost}/p"), policy).with(201);
    let operator = r#"{"pattern":"^q","definition":{"max-length":5},"apply-to":"queues"}"#;
    http.put(&format!("/api/operator-policies/{vhost}/op"), operator).with(201);
    let found = until("the policies in force", || {
        let found = http.get(&format!("/api/queues/{vhost}/q1")).with(200);
        (found["operator_policy"] == "op" && found["policy"] == "p").then_some(found)
    });
    assert_eq!(found["effective_policy_definition"], json!({ "max-length": 5, "expires": 60000 }));
    let one = http.get(&format!("/api/policies/{vhost}/p")).with(200);
    assert_eq!(
        (&one["priority"], &one["apply-to"], &one["definition"]["max-length"]),
        (&json!(2), &json!("queues"), &json!(9))
    );
    let wrong = r#"{"pattern":"^q","definition":{"max-lenght":5}}"#;
    let refused = reason(&http.put(&format!("/api/policies/{vhost}/wrong"), wrong), 400);
    let rabbitmqs = "Validation failed\n\n[{<<\"max-lenght\">>,5}] are not recognised policy settings\n";
    // RabbitMQ writes it for a page.
    let told = |refused: String| refused.replace("&lt;", "<").replace("&gt;", ">");
    let ours = if is_foreign() { "" } else { "max-lenght: did you mean max-length?\n" };
    assert_eq!(told(refused), format!("{rabbitmqs}{ours}"));
    let operators = r#"{"pattern":"^q","definition":{"queue-mode":"lazy","expires":5}}"#;
    let refused = reason(&http.put(&format!("/api/operator-policies/{vhost}/wrong"), operators), 400);
    let rabbitmqs = "Validation failed\n\n[{<<\"queue-mode\">>,<<\"lazy\">>}] are not recognised policy settings\n";
    let ours = if is_foreign() { "" } else { "queue-mode is not a setting of operator policies\n" };
    assert_eq!(told(refused), format!("{rabbitmqs}{ours}"));
    assert_eq!(
        http.get("/api/policies").with(200).as_array().unwrap().iter().filter(|p| p["vhost"] == *vhost).count(),
        1
    );
    http.delete(&format!("/api/policies/{vhost}/p")).with(204);
    http.delete(&format!("/api/policies/{vhost}/p")).with(404);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn policies_whose_patterns_take_long_together_are_refused_and_lighter_ones_are_not() {
    if is_foreign() {
        return;
    }
    let (_broker, http) = Broker::managed(&[]).unwrap();
    // Each of these is in 600 places of a name at once.
    let heavy = |at: usize| format!("^{}_{at}", "(a|b)?".repeat(600));
    let policy = |pattern: &str| json!({ "pattern": pattern, "definition": { "max-length": 9 } }).to_string();
    let put = |kind: &str, at: usize| http.put(&format!("/api/{kind}/%2F/p{at}"), &policy(&heavy(at)));
    for kind in ["policies", "operator-policies"] {
        let taken = (0..50).take_while(|at| put(kind, *at).status == 201).count();
        assert!((2..10).contains(&taken), "{kind}: {taken} were taken");
        let refused = reason(&put(kind, taken), 400);
        let said = format!("the patterns of all {} of this virtual host would weigh", kind.replace('-', " "));
        assert!(refused.contains(&said), "{refused}");
        // Another virtual host has its own, and one that becomes lighter makes room.
        http.put(&format!("/api/{kind}/%2F/p0"), &policy("^usual")).with(204);
        put(kind, taken).with(201);
    }
    let other = vhost(&http);
    http.put(&format!("/api/policies/{other}/p"), &policy(&heavy(0))).with(201);

    let policies: Vec<Value> = (0..50)
        .map(|at| json!({ "vhost": other, "name": format!("d{at}"), "pattern": heavy(at), "definition": { "max-length": 9 } }))
        .collect();
    let refused = reason(&http.post("/api/definitions", &json!({ "policies": policies }).to_string()), 400);
    assert!(refused.contains("policies[") && refused.contains("would weigh"), "{refused}");
    assert_eq!(
        http.get(&format!("/api/policies/{other}")).with(200).as_array().unwrap().len(),
        1,
        "nothing of it was done"
    );
}

#[test]
fn a_policy_drops_repeats_and_the_metrics_count_them() {
    if is_foreign() {
        return;
    }
    let (broker, http) = Broker::managed(&[]).unwrap();
    let policy = r#"{"pattern":"^once","definition":{"message-deduplication":true},"apply-to":"queues"}"#;
    http.put("/api/policies/%2F/once", policy).with(201);
    let mut client = broker.connect();
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for (queue, durable) in [("once-durable", true), ("once-in-memory", false), ("plain", true)] {
        client.declare(channel, &QueueDeclare { name: queue, durable, ..QueueDeclare::default() }).unwrap();
    }
    let queues = ["once-durable", "once-in-memory", "plain"];
    for queue in queues {
        for _ in 0..3 {
            let properties = Properties::with_headers(&[("x-deduplication-header", "k".into())]);
            client.publish(channel, &Publish { key: queue, properties, body: b"x", ..Default::default() });
        }
    }
    client.confirmed(channel, 1, 9);
    let of = |queue: &str| {
        let found = http.get(&format!("/api/queues/%2F/{queue}")).with(200);
        (found["messages"].clone(), found["leveret_repeats_dropped"].clone())
    };
    assert_eq!(queues.map(of), [(json!(1), json!(2)), (json!(1), json!(2)), (json!(3), Value::Null)]);
    let text = http.get("/metrics/per-object").text;
    for queue in ["once-durable", "once-in-memory"] {
        let line = format!("leveret_repeats_dropped_total{{vhost=\"/\",queue=\"{queue}\"}} 2");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("leveret_repeats_dropped_total{vhost=\"/\",queue=\"plain\"}"));
    assert!(http.get("/metrics").text.lines().any(|line| line == "leveret_repeats_dropped_total 4"));
    // Without the policy a repeat is as good as any other.
    http.delete("/api/policies/%2F/once").with(204);
    let properties = Properties::with_headers(&[("x-deduplication-header", "k".into())]);
    client.publish(channel, &Publish { key: "once-durable", properties, body: b"x", ..Default::default() });
    client.confirmed(channel, 10, 10);
    assert_eq!(of("once-durable").0, json!(2));
}

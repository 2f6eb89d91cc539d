//! What is asked over HTTP of a cluster as a whole, on one node: flags, members, what changes
//! nothing, what comes later.

use clients::Broker;
use clients::api::{reason, vhost};
use clients::broker::{is_foreign, unique};
use serde_json::{Value, json};

#[test]
fn feature_flags_are_those_that_hold() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let flags = http.get("/api/feature-flags").with(200);
    let names: Vec<&str> = flags.as_array().unwrap().iter().map(|flag| flag["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"quorum_queue") && !names.contains(&"stream_queue"), "{names:?}");
    assert!(flags.as_array().unwrap().iter().all(|flag| flag["state"] == "enabled" && flag["stability"] == "required"));
    http.put("/api/feature-flags/quorum_queue/enable", "{}").with(204);
    assert_eq!(reason(&http.put("/api/feature-flags/stream_queue/enable", "{}"), 400), "unsupported");
    let deprecated = http.get("/api/deprecated-features").with(200);
    let phase = |name: &str| {
        let all = deprecated.as_array().unwrap().iter();
        all.filter(|feature| feature["name"] == name).map(|feature| feature["state"].clone()).next()
    };
    assert_eq!(phase("transient_nonexcl_queues"), Some(json!("permitted")));
    assert_eq!(phase("classic_queue_mirroring"), Some(json!("denied")));
    assert_eq!(http.get("/api/deprecated-features/used").with(200), json!([]));
    http.put("/api/queues/%2F/transient", r#"{"durable":false}"#).with(201);
    assert_eq!(http.get("/api/deprecated-features/used").with(200)[0]["name"], "transient_nonexcl_queues");
}

#[test]
fn what_several_nodes_would_do_is_done_or_refused_on_one() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let (vhost, user) = (vhost(&http), unique("user"));
    let node = http.get("/api/overview").with(200)["node"].as_str().unwrap().to_owned();
    http.put(&format!("/api/queues/{vhost}/c"), r#"{"durable":true}"#).with(201);
    http.put(&format!("/api/queues/{vhost}/q"), r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#).with(201);
    http.post("/api/rebalance/queues", "{}").with(204);
    http.delete("/api/reset").with(204);
    http.delete(&format!("/api/reset/{node}")).with(204);
    assert_eq!(http.delete("/api/reset/none@nowhere").status, 404);
    http.post(&format!("/api/vhosts/{vhost}/start/{node}"), "{}").with(204);
    assert_eq!(reason(&http.post(&format!("/api/vhosts/{vhost}/start/none"), "{}"), 400), "Unknown node: none");
    assert_eq!(http.post(&format!("/api/vhosts/none/start/{node}"), "{}").status, 400);
    let status = http.get(&format!("/api/queues/quorum/{vhost}/q/status")).with(200);
    assert_eq!((&status[0]["Node Name"], &status[0]["Raft State"]), (&json!(node), &json!("leader")));
    let classic = http.get(&format!("/api/queues/quorum/{vhost}/c/status")).with(503);
    assert_eq!(classic, json!({"status": "failed", "reason": "classic_queue_not_supported"}));
    // As RabbitMQ 4 answers; `grow` and `shrink` pass classic queues over.
    let member = json!({ "node": node }).to_string();
    for (method, end) in [("POST", "add"), ("DELETE", "delete")] {
        let path = format!("/api/queues/quorum/{vhost}/c/replicas/{end}");
        let told = http.send(method, &path, &[], &member).with(503);
        assert_eq!(told, json!({"error": "service_unavailable", "reason": "classic_queue_not_supported"}));
    }
    let add = |of: &str| {
        let body = json!({ "node": of }).to_string();
        reason(&http.post(&format!("/api/queues/quorum/{vhost}/q/replicas/add"), &body), 400)
    };
    assert_eq!(add("none@nowhere"), "Node is not a cluster member");
    assert_eq!(add(&node), "already_a_member");
    let body = json!({ "node": node }).to_string();
    let last = http.send("DELETE", &format!("/api/queues/quorum/{vhost}/q/replicas/delete"), &[], &body);
    assert_eq!(reason(&last, 400), "last_node");
    let grow = |body: &str| http.post(&format!("/api/queues/quorum/replicas/on/{node}/grow"), body);
    assert_eq!(
        reason(&grow(r#"{"strategy":"all"}"#), 400),
        "[{key_missing,vhost_pattern},{key_missing,queue_pattern}]"
    );
    assert_eq!(grow(r#"{"strategy":"all","vhost_pattern":".*","queue_pattern":".*"}"#).status, 202);
    let shrink = http.delete(&format!("/api/queues/quorum/replicas/on/{node}/shrink"));
    assert_eq!(reason(&shrink, 400), "last_node");
    http.get(&format!("/api/queues/{vhost}/q")).with(200);
    let act = |body: &str| http.post(&format!("/api/queues/{vhost}/q/actions"), body).with(400)["reason"].clone();
    assert_eq!(act(r#"{"action":"sync"}"#), "unknown action \"sync\": copies of a queue keep up by themselves");
    assert_eq!(act("{}"), json!("[{key_missing,action}]"));
    let detailed = http.get("/api/queues/detailed").with(200);
    assert!(detailed.as_array().unwrap().iter().any(|queue| queue["vhost"] == vhost && queue["name"] == "q"));
    // None of it is for everybody.
    http.put(&format!("/api/users/{user}"), r#"{"password":"pw","tags":"monitoring"}"#).with(201);
    let theirs = http.as_user(&user, "pw");
    for refused in [
        theirs.post("/api/rebalance/queues", "{}"),
        theirs.delete("/api/reset"),
        theirs.get("/api/feature-flags"),
        theirs.post(&format!("/api/vhosts/{vhost}/start/{node}"), "{}"),
        theirs.delete(&format!("/api/queues/quorum/replicas/on/{node}/shrink")),
        theirs.put("/api/cluster-name", r#"{"name":"x"}"#),
    ] {
        assert_eq!(refused.status, 401, "{refused:?}");
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn what_comes_later_says_so_and_plug_ins_are_off() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    for (path, told) in [
        ("shovels", "shovels come with a later version"),
        ("shovels/%2F", "shovels come with a later version"),
        ("federation-links", "federation comes with a later version"),
        ("stream/connections", "streams come with a later version"),
    ] {
        assert_eq!(reason(&http.get(&format!("/api/{path}")), 404), told);
    }
    for path in ["traces", "traces/%2F", "trace-files"] {
        let told = "messages are not traced here, as in RabbitMQ without rabbitmq_tracing";
        assert_eq!(reason(&http.get(&format!("/api/{path}")), 404), told);
    }
    assert_eq!(http.get("/api/extensions").with(200), json!([]));
    assert!(http.get("/api/version").with(200).is_string());
    assert_eq!(http.get("/api/whoami").with(200)["is_internal_user"], Value::Bool(true));
}

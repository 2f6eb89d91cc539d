//! Parameters over HTTP: what is kept by component and name, global ones, and the cluster's name.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use clients::api::{reason, vhost};
use clients::broker::is_foreign;
use clients::{Broker, End, Http};
use serde_json::{Value, json};

#[test]
fn parameters_are_limits_and_operator_policies_and_nothing_that_does_not_work() {
    let Some((_broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let at = |rest: &str| format!("/api/parameters/{rest}");
    let limits = at(&format!("vhost-limits/{vhost}/limits"));
    http.put(&limits, r#"{"value":{"max-queues":1000}}"#).with(201);
    let held = json!({"value": {"max-queues": 1000}, "vhost": vhost, "component": "vhost-limits", "name": "limits"});
    assert_eq!(http.get(&limits).with(200), held);
    assert_eq!(http.get(&at(&format!("vhost-limits/{vhost}"))).with(200), json!([held]));
    let same = http.get(&format!("/api/vhost-limits/{vhost}")).with(200);
    assert_eq!(same[0]["value"], json!({"max-queues": 1000}));
    // All of them are said at once.
    http.put(&limits, r#"{"value":{"max-connections":7}}"#).with(204);
    assert_eq!(http.get(&limits).with(200)["value"], json!({"max-connections": 7}));
    assert_eq!(reason(&http.put(&limits, "{}"), 400), "[{key_missing,value}]");
    http.delete(&limits).with(204);
    assert_eq!(http.delete(&limits).status, 404);
    assert_eq!(http.get(&limits).status, 404);
    let policy = at(&format!("operator_policy/{vhost}/op"));
    let value = json!({"pattern": "^x", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"});
    http.put(&policy, &json!({ "value": value }).to_string()).with(201);
    assert_eq!(http.get(&policy).with(200)["value"], value);
    assert_eq!(http.get(&format!("/api/operator-policies/{vhost}/op")).with(200)["pattern"], "^x");
    http.delete(&policy).with(204);
    assert_eq!(http.get(&policy).status, 404);
    let refused = |component: &str, value: &str| reason(&http.put(&at(&format!("{component}/{vhost}/n")), value), 400);
    let value = r#"{"value":{"pattern":"x","definition":{"max-length":5}}}"#;
    assert_eq!(refused("policy", value), "policies may not be set using this method");
    assert!(refused("none", value).starts_with("Validation failed\n\ncomponent none not found\n"));
    assert!(refused("shovel", value).starts_with("Validation failed\n\ncomponent shovel not found\n"));
    let nowhere = http.put(&at("vhost-limits/none/limits"), r#"{"value":{}}"#);
    assert_eq!(reason(&nowhere, 404), "vhost_not_found");
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn global_parameters_are_kept_over_a_crash_and_by_definitions() {
    let Some((mut broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let at = "/api/global-parameters/mine";
    let value = json!({"a": [1, 2.5, null, {"b": "c"}]});
    http.put(at, &json!({ "value": 1 }).to_string()).with(201);
    http.put(at, &json!({ "value": value }).to_string()).with(204);
    broker.restart(End::Killed);
    assert_eq!(http.get(at).with(200), json!({"name": "mine", "value": value}));
    let listed = http.get("/api/global-parameters").with(200);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!((names, &listed[0]["value"]), (vec!["mine", "internal_cluster_id"], &value));
    assert_eq!(reason(&http.put(at, "{}"), 400), "[{key_missing,value}]");
    let definitions = http.get("/api/definitions").with(200).to_string();
    http.delete(at).with(204);
    assert_eq!(http.delete(at).status, 404);
    http.post("/api/definitions", &definitions).with(204);
    assert_eq!(http.get(at).with(200)["value"], value);
    http.put("/api/users/policymaker", r#"{"password":"pw","tags":"policymaker"}"#).with(201);
    let theirs = http.as_user("policymaker", "pw");
    theirs.get(at).with(200);
    theirs.put(at, r#"{"value":2}"#).with(204);
    theirs.delete(at).with(204);
    // The cluster's name is an administrator's, whatever it is called.
    let name = "/api/global-parameters/cluster_name";
    assert_eq!(theirs.put(name, r#"{"value":"mine"}"#).status, 401);
    assert_eq!(theirs.delete(name).status, 401);
    http.put(name, r#"{"value":"ours"}"#).with(201);
}

#[test]
fn the_number_of_the_cluster_is_there_for_ever_and_not_anothers() {
    let Some((mut broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let at = "/api/global-parameters/internal_cluster_id";
    let before = http.get(at).with(200);
    assert!(before["value"].as_str().unwrap().starts_with("leveret-cluster-id-"), "{before}");
    assert_eq!(
        reason(&http.put(at, r#"{"value":"mine"}"#), 400),
        "internal_cluster_id is the cluster's own and does not change"
    );
    assert_eq!(http.delete(at).status, 400);
    let exported = http.get("/api/definitions").with(200);
    assert_eq!(exported["global_parameters"], json!([]), "a file may go to another cluster");
    let others = json!({"global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-1"}]});
    http.post("/api/definitions", &others.to_string()).with(204);
    http.put("/api/cluster-name", r#"{"name":"carrots"}"#).with(204);
    broker.restart(End::Killed);
    assert_eq!(http.get(at).with(200), before);
}

/// What a client is told of the cluster's name before it logs in.
fn told(broker: &Broker) -> String {
    let mut socket = TcpStream::connect(broker.addr()).unwrap();
    socket.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    let mut head = [0; 7];
    socket.read_exact(&mut head).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(head[3..].try_into().unwrap()) as usize];
    socket.read_exact(&mut frame).unwrap();
    let text = String::from_utf8_lossy(&frame).into_owned();
    let (_, rest) = text.split_once("cluster_name").unwrap();
    let bytes = rest.as_bytes();
    let length = u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize;
    String::from_utf8_lossy(&bytes[5..5 + length]).into_owned()
}

#[test]
fn the_cluster_has_the_name_that_it_was_given() {
    let Some((mut broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let named = |http: &Http| http.get("/api/cluster-name").with(200)["name"].clone();
    let node = http.get("/api/overview").with(200)["node"].clone();
    assert_eq!(named(&http), node);
    assert_eq!(Value::from(told(&broker)), node);
    http.put("/api/cluster-name", r#"{"name":"carrots"}"#).with(204);
    assert_eq!(named(&http), "carrots");
    assert_eq!(told(&broker), "carrots");
    broker.restart(End::Killed);
    assert_eq!(named(&http), "carrots");
    assert_eq!(http.get("/api/overview").with(200)["cluster_name"], "carrots");
    assert_eq!(told(&broker), "carrots");
    assert_eq!(reason(&http.put("/api/cluster-name", "{}"), 400), "[{key_missing,name}]");
    assert_eq!(http.put("/api/cluster-name", r#"{"name":5}"#).status, 400);
    assert_eq!(http.put("/api/global-parameters/cluster_name", r#"{"value":""}"#).status, 400);
    assert_eq!(http.delete("/api/global-parameters/cluster_name").status, 204);
    assert_eq!(named(&http), node);
}

#[test]
fn a_value_nests_no_deeper_than_arguments_and_what_was_kept_before_is_imported_and_exported() {
    let Some((_broker, http)) = Broker::managed(&[]).filter(|_| !is_foreign()) else { return };
    let lists = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let at = "/api/global-parameters/deep";
    let put = |levels: usize| http.put(at, &format!(r#"{{"value":{}}}"#, lists(levels)));
    put(64).with(201);
    for levels in [65, 125, 126] {
        assert_eq!(reason(&put(levels), 400), "value nests more than 64 lists and objects");
    }
    assert_eq!(reason(&put(200), 400), "lists and objects nest more than 160 levels deep");
    let document = |levels: usize| format!(r#"{{"global_parameters":[{{"name":"deep","value":{}}}]}}"#, lists(levels));
    // Builds before took as much.
    http.post("/api/definitions", &document(127)).with(204);
    let exported = http.get("/api/definitions").text;
    assert!(exported.contains(&lists(127)), "{exported}");
    http.delete(at).with(204);
    http.post("/api/definitions", &exported).with(204);
    assert!(http.get(at).text.contains(&lists(127)));
    http.post("/api/definitions/%2F", &exported).with(204);
    // What is a policy's is refused as soon.
    let policy = format!(r#"{{"pattern":"x","definition":{{"queue-mode":{}}}}}"#, lists(64));
    assert_eq!(
        reason(&http.put("/api/policies/%2F/deep", &policy), 400),
        "definition nests more than 64 lists and objects"
    );
    let wrong = reason(&http.post("/api/definitions", &document(128)), 400);
    assert!(wrong.ends_with("global_parameters[0].value: lists and objects nest more than 127 levels deep"), "{wrong}");
}

//! Definitions files taken in by a node: what they bring, what they leave alone, and what is wrong
//! with them.
//!
//! Invariant: a file that is wrong changes nothing, and one that was taken in changes nothing the
//! second time.
#![allow(clippy::unwrap_used)]

use broker::topology::{Command, Topology};
use server::definitions::{ImportError, Imported};
use server::{Answer, Changes, Node, NodeConfig, ShardParts, TopologyLog, Wiring};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

fn node() -> Node {
    Node::start_transient(NodeConfig::small(vec!["127.0.0.1:0".parse().unwrap()])).unwrap()
}

/// As `rabbitmqctl export_definitions` of 3.10 writes it, shortened; the password of ann is
/// "test12".
const FILE: &str = r#"{
 "rabbit_version": "3.10.8", "rabbitmq_version": "3.10.8", "product_name": "RabbitMQ", "product_version": "3.10.8",
 "users": [
  {"name": "ann", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
   "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ["management"], "limits": {"max-channels": 3}},
  {"name": "old", "password_hash": "AQIDBJR91gt1SAWTmvD+VzA7MFU=", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": "administrator, x"},
  {"name": "cert", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha512", "tags": [], "limits": []}
 ],
 "vhosts": [{"name": "/"}, {"name": "prod", "limits": [], "metadata": {"description": "", "tags": []}}],
 "permissions": [{"user": "ann", "vhost": "prod", "configure": "^ann-", "write": ".*", "read": ".*"}],
 "topic_permissions": [{"user": "ann", "vhost": "prod", "exchange": "amq.topic", "write": "^{username}", "read": ".*"}],
 "parameters": [
  {"vhost": "prod", "component": "vhost-limits", "name": "limits", "value": {"max-connections": 5, "max-queues": -1}},
  {"vhost": "/", "component": "operator_policy", "name": "op",
   "value": {"pattern": ".*", "apply-to": "queues", "priority": 1, "definition": {"max-in-memory-length": 10}}}
 ],
 "global_parameters": [{"name": "cluster_name", "value": "rabbit@here"}],
 "policies": [{"vhost": "prod", "name": "lazy", "pattern": "^(?!amq\\.).+", "apply-to": "queues", "priority": 0,
   "definition": {"queue-mode": "lazy"}}],
 "queues": [{"name": "fleeting", "vhost": "prod", "durable": false, "auto_delete": false, "arguments": {}}],
 "exchanges": [{"name": "x", "vhost": "prod", "type": "topic", "durable": true, "auto_delete": false, "internal": false, "arguments": {}}],
 "bindings": [{"source": "x", "vhost": "prod", "destination": "fleeting", "destination_type": "queue", "routing_key": "a.#", "arguments": {}}]
}"#;

#[test]
fn a_file_is_taken_in_once() {
    let node = node();
    let first = node.import_definitions(FILE).unwrap();
    // 1 virtual host; 3 users, 1 limit of one; guest gone; the name; 2 permissions; a limit, 2
    // policies; exchange, queue, binding.
    assert_eq!(first, Imported { changes: 15, ..Imported::default() });
    assert_eq!(node.import_definitions(FILE).unwrap(), Imported::default());
    let other = FILE.replace("\"type\": \"topic\"", "\"type\": \"fanout\"");
    let different = node.import_definitions(&other).unwrap();
    assert_eq!((different.changes, different.different.len()), (0, 1));
    node.drain();
}

/// As RabbitMQ 3.10.8 exports it, with shovels, federation, mirrored queues, limits of all kinds
/// and every part there is.
const EXPORT: &str = include_str!("fixtures/rabbitmq-3.10.8-definitions.json");

#[test]
fn a_real_export_is_taken_in_and_what_it_has_for_others_is_told() {
    let node = node();
    // A durable queue needs a node with a log; a test of the whole broker has those.
    let mut export: serde_json::Value = serde_json::from_str(EXPORT).unwrap();
    export["queues"] = serde_json::json!([]);
    export["bindings"].as_array_mut().unwrap().retain(|binding| binding["destination_type"] == "exchange");
    let mut with_streams = export.clone();
    let stream = |name: String| serde_json::json!({ "name": name, "vhost": "orders", "arguments": { "x-queue-type": "stream" } });
    with_streams["queues"] = (0..23).map(|number| stream(format!("s{number}"))).collect();
    // A binding that RabbitMQ passes over without a word.
    let from_default = |key: &str| {
        serde_json::json!({ "source": "", "vhost": "orders", "destination": "nowhere", "destination_type": "queue",
            "routing_key": key, "arguments": {} })
    };
    export["bindings"].as_array_mut().unwrap().push(from_default("nowhere"));
    let export = serde_json::to_string_pretty(&export).unwrap();
    let imported = node.import_definitions(&export).unwrap();
    let told = imported.left_out.join("\n");
    let expected = [
        "the global parameter \"mqtt_default_vhosts\" means nothing here",
        "the federation-upstream-set \"two\" needs a plugin that this version has not",
        "the federation-upstream \"berlin\" needs a plugin that this version has not",
        "the shovel \"move\" needs a plugin that this version has not",
        "policies[0].definition.federation-upstream-set: this key of the policy needs what this version has not",
        "policies[0].definition: none of the keys of the policy \"federated\" is left: it stays for its place before those of lower \
         priority, sets nothing, and is exported with \"queue-mode\": \"default\", which says nothing",
        "policies[1].definition.ha-mode: ",
        "policies[1].definition.ha-params: ",
        "policies[1].definition.ha-sync-mode: ",
        "the default exchange leads to queues alone that are there, by their names; the binding is left out",
    ];
    assert_eq!(imported.left_out.len(), expected.len(), "{told}");
    expected.iter().for_each(|sentence| assert!(told.contains(sentence), "{sentence}\nin\n{told}"));
    assert!(imported.left_out.iter().all(|sentence| sentence.starts_with("line ")), "{told}");
    let again = node.import_definitions(&export).unwrap();
    assert_eq!((again.changes, again.left_out.len(), again.different.len()), (0, expected.len(), 0));
    // What decides where messages go is never left out.
    let refused = node.import_definitions(&with_streams.to_string()).unwrap_err().to_string();
    assert_eq!(refused.matches("queue type 'stream' is not supported by this version yet").count(), 20, "{refused}");
    assert!(refused.contains("queues[19]: ") && refused.ends_with("; and 3 more"), "{refused}");
    node.drain();
}

/// As RabbitMQ 4.3.6 exports it.
const EXPORT_4: &str = include_str!("fixtures/rabbitmq-4.3.6-definitions.json");

#[test]
fn a_real_export_of_version_4_is_taken_in() {
    let node = node();
    let mut export: serde_json::Value = serde_json::from_str(EXPORT_4).unwrap();
    // A durable queue needs a node with a log; a test of the whole broker has those.
    export["queues"] = serde_json::json!([]);
    export["bindings"].as_array_mut().unwrap().retain(|binding| binding["destination_type"] == "exchange");
    let export = export.to_string();
    let imported = node.import_definitions(&export).unwrap();
    let told = imported.left_out.join("\n");
    let expected = [
        "exchange 'amq.rabbitmq.log' is what RabbitMQ itself publishes to",
        "nothing is published to 'amq.rabbitmq.log' here",
        "the federation-upstream \"up\" needs a plugin",
        "the shovel \"sh\" needs a plugin",
        "policies[0].definition.federation-upstream-set: ",
        "policies[0].definition: none of the keys of the policy \"fed\" is left",
        "policies[2].definition.max-age: ",
        "policies[2].definition: none of the keys of the policy \"str\" is left",
    ];
    assert_eq!(imported.left_out.len(), expected.len(), "{told}");
    expected.iter().for_each(|sentence| assert!(told.contains(sentence), "{sentence}\nin\n{told}"));
    let kept = r#"{"vhosts": [{"name": "prod", "description": "payments", "tags": ["a", "b"], "default_queue_type": "quorum",
        "limits": {"max-queues": 50}}]}"#;
    assert_eq!(node.import_definitions(kept).unwrap().changes, 0);
    assert_eq!(node.import_definitions(&kept.replace("quorum", "classic")).unwrap().changes, 1, "it was another");
    assert_eq!(node.import_definitions(kept).unwrap().changes, 1);
    assert_eq!(node.import_definitions(&export).unwrap().changes, 0);
    node.drain();
}

/// As RabbitMQ 3.13.6 exports it.
const EXPORT_3_13: &str = include_str!("fixtures/rabbitmq-3.13.6-definitions.json");

#[test]
fn a_real_export_of_version_3_13_is_taken_in() {
    let node = node();
    let mut export: serde_json::Value = serde_json::from_str(EXPORT_3_13).unwrap();
    // A durable queue needs a node with a log; a test of the whole broker has those.
    export["queues"] = serde_json::json!([]);
    export["bindings"].as_array_mut().unwrap().retain(|binding| binding["destination_type"] == "exchange");
    let text = export.to_string();
    let imported = node.import_definitions(&text).unwrap();
    let told = imported.left_out.join("\n");
    let expected = [
        "the shovel \"invoices\" needs a plugin",
        "policies[0].definition.ha-mode: mirrored queues are not there",
        "policies[0].definition.ha-params: ",
        "policies[0].definition.ha-promote-on-failure: ",
        "policies[0].definition.ha-promote-on-shutdown: ",
        "policies[0].definition.ha-sync-mode: ",
        "policies[1].definition.max-age: ",
        "policies[1].definition: none of the keys of the policy \"kept\" is left",
    ];
    assert_eq!(imported.left_out.len(), expected.len(), "{told}");
    expected.iter().for_each(|sentence| assert!(told.contains(sentence), "{sentence}\nin\n{told}"));
    assert_eq!(node.import_definitions(&text).unwrap().changes, 0);
    // What is said twice of a virtual host may be said in one place alone, as `rabbitmqctl` does, with a
    // list where nothing is limited.
    export["vhosts"][0]["limits"] = serde_json::json!([]);
    for field in ["description", "tags", "default_queue_type"] {
        export["vhosts"][0].as_object_mut().unwrap().remove(field);
    }
    assert_eq!(node.import_definitions(&export.to_string()).unwrap().changes, 0);
    export["vhosts"][0]["metadata"]["default_queue_type"] = "stream".into();
    let refused = node.import_definitions(&export.to_string()).unwrap_err().to_string();
    assert!(refused.contains("vhosts[0].metadata.default_queue_type: classic or quorum is expected"), "{refused}");
    node.drain();
}

/// What federation declared at the upstream side, as RabbitMQ 3.10.8 exports it; 4.3.6 leaves the exchange out, as it is
/// internal, and exports the bindings all the same.
#[test]
fn what_federation_declared_is_left_out_with_its_bindings() {
    let binding = |source: &str, destination: &str, kind: &str| {
        serde_json::json!({ "source": source, "vhost": "/", "destination": destination, "destination_type": kind,
            "routing_key": "a.#", "arguments": { "x-bound-from": [{ "cluster-name": "c1", "hops": 1, "vhost": "down" }] } })
    };
    let own = ["federation: fx -> c1:down:fx B", "federation: fx -> c1:down:fx"];
    let mut export = serde_json::json!({
        "rabbitmq_version": "3.10.8",
        "exchanges": [
            { "name": "fx", "vhost": "/", "type": "topic", "durable": true, "auto_delete": false, "internal": false, "arguments": {} },
            { "name": own[0], "vhost": "/", "type": "x-federation-upstream", "durable": true, "auto_delete": true, "internal": true,
              "arguments": { "x-downstream-name": "c1", "x-internal-purpose": "federation", "x-max-hops": 1 } },
        ],
        "queues": [{ "name": own[1], "vhost": "/", "durable": true, "auto_delete": false, "arguments": { "x-internal-purpose": "federation" } }],
        "bindings": [binding(own[0], own[1], "queue"), binding("fx", own[0], "exchange")],
    });
    let imported = node().import_definitions(&export.to_string()).unwrap();
    let told = imported.left_out.join("\n");
    // The exchange, and guest gone.
    assert_eq!((imported.changes, imported.left_out.len()), (2, 4), "{told}");
    for sentence in ["exchanges[1].name: ", "queues[0].name: ", "bindings[0]: ", "bindings[1]: "] {
        assert!(told.contains(sentence), "{sentence}\nin\n{told}");
    }
    export["exchanges"].as_array_mut().unwrap().truncate(1);
    let imported = node().import_definitions(&export.to_string()).unwrap();
    assert_eq!((imported.changes, imported.left_out.len()), (2, 3), "{:?}", imported.left_out);
    // What somebody made is not lost without a word.
    export["bindings"] = serde_json::json!([binding("internal", "fx", "exchange")]);
    let refused = node().import_definitions(&export.to_string()).unwrap_err().to_string();
    assert!(refused.contains("bindings[0]: there is no exchange 'internal' in virtual host '/'"), "{refused}");
    // All of them at once.
    export["bindings"] =
        serde_json::json!([binding("internal", "fx", "exchange"), binding("fx", "hidden", "exchange")]);
    let refused = node().import_definitions(&export.to_string()).unwrap_err().to_string();
    assert!(
        refused.contains("'internal'") && refused.contains("bindings[1]: there is no exchange 'hidden'"),
        "{refused}"
    );
}

/// `rabbitmqctl export_definitions` of 3.10.8 writes what Erlang has as a list of properties as such a list.
#[test]
fn lists_of_properties_are_read_where_the_tool_of_3_10_writes_them() {
    let export = serde_json::json!({
        "rabbitmq_version": "3.10.8",
        "vhosts": [
            { "name": "orders", "limits": [["max-connections", 20], ["max-queues", 50]], "metadata": { "description": "", "tags": [] } },
            { "name": "plain", "limits": [] },
        ],
        "users": [{ "name": "u", "hashing_algorithm": "rabbit_password_hashing_sha256", "limits": [["max-channels", 7]], "tags": [],
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR" }],
        "parameters": [{ "vhost": "orders", "component": "operator_policy", "name": "op",
            "value": { "apply-to": "all", "definition": [["max-length", 500]], "pattern": ".*", "priority": 0 } }],
        "policies": [{ "vhost": "orders", "name": "p", "pattern": ".*", "apply-to": "queues", "priority": 0,
            "definition": [["message-ttl", 60000]] }],
    });
    let node = node();
    let imported = node.import_definitions(&export.to_string()).unwrap();
    assert_eq!(imported.left_out, Vec::<String>::new());
    let again = node.import_definitions(&export.to_string()).unwrap();
    assert_eq!(again.changes, 0, "all of it is in force");
    let mut wrong = export.clone();
    wrong["vhosts"][0]["limits"] = serde_json::json!([["max-connections", 20], ["max-connections", 30]]);
    let refused = node.import_definitions(&wrong.to_string()).unwrap_err().to_string();
    assert!(refused.contains("vhosts[0].limits.max-connections: the field comes twice"), "{refused}");
    wrong["vhosts"][0]["limits"] = serde_json::json!([["max-connections"]]);
    let refused = node.import_definitions(&wrong.to_string()).unwrap_err().to_string();
    assert!(refused.contains("vhosts[0].limits[0]: a name and a value are expected"), "{refused}");
    node.drain();
}

#[test]
fn what_a_file_says_about_a_virtual_host_is_kept_and_is_no_change_the_second_time() {
    let node = node();
    let file = r#"{"vhosts": [{"name": "prod", "description": "all of it", "tags": ["a", "b"], "default_queue_type": "quorum"},
        {"name": "/", "description": "", "tags": [], "default_queue_type": "classic"}]}"#;
    // 1 virtual host and what is said about it; guest gone. That queues are classic says nothing
    // new.
    assert_eq!(node.import_definitions(file).unwrap().changes, 3);
    assert_eq!(node.import_definitions(file).unwrap().changes, 0);
    let silent = r#"{"vhosts": [{"name": "prod"}]}"#;
    assert_eq!(node.import_definitions(silent).unwrap().changes, 0);
    let wrong = file.replace("quorum", "stream");
    let refused = node.import_definitions(&wrong).unwrap_err().to_string();
    assert!(refused.contains("vhosts[0].default_queue_type: classic or quorum is expected"), "{refused}");
    node.drain();
}

#[test]
fn a_password_in_the_clear_is_hashed_and_is_no_change_the_second_time() {
    let node = node();
    let file = r#"{"users": [{"name": "guest", "password": "secret", "tags": []}]}"#;
    assert_eq!(node.import_definitions(file).unwrap().changes, 1);
    assert_eq!(node.import_definitions(file).unwrap().changes, 0);
    node.drain();
}

#[test]
fn a_wrong_file_is_named_by_line_and_field_and_changes_nothing() {
    let node = node();
    let wrongs = [
        ("\"configure\": \"^ann-\"", "\"configure\": \"(\"", "permissions[0].configure: not a regular expression"),
        (
            "\"user\": \"ann\", \"vhost\": \"prod\", \"configure\"",
            "\"user\": \"eve\", \"vhost\": \"prod\", \"configure\"",
            "permissions[0]: no user 'eve'",
        ),
        (
            "\"vhost\": \"prod\", \"name\": \"lazy\"",
            "\"vhost\": \"none\", \"name\": \"lazy\"",
            "policies[0].vhost: there is no virtual host 'none'",
        ),
        (
            "\"queue-mode\": \"lazy\"",
            "\"queue-mood\": \"lazy\"",
            "policies[0].definition.queue-mood: is not a policy setting that RabbitMQ recognises; did you mean queue-mode?",
        ),
        (
            "\"queue-mode\": \"lazy\"",
            "\"queue-mode\": 7",
            "policies[0].definition.queue-mode: one of default, lazy is expected",
        ),
        ("kI3GCqW5", "kI3GCg", "users[0].password_hash: "),
        ("_md5\"", "_bcrypt\"", "users[1].hashing_algorithm: one of rabbit_password_hashing_sha256, "),
        ("\"destination\": \"fleeting\"", "\"destination\": \"gone\"", "bindings[0]: no queue 'gone' in vhost 'prod'"),
        ("\"type\": \"topic\"", "\"type\": \"topik\"", "exchanges[0].type: unknown exchange type 'topik'"),
        (
            "\"component\": \"vhost-limits\"",
            "\"component\": \"shovelling\"",
            "parameters[0].component: parameters of \"shovelling\"",
        ),
        ("\"durable\": false", "\"durable\": \"no\"", "queues[0].durable: true or false is expected"),
        (
            "\"durable\": false",
            "\"dureable\": false",
            "queues[0].dureable: this field is not known here; did you mean durable?",
        ),
        (
            "\"password_hash\": \"kI3",
            "\"pasword_hash\": \"kI3",
            "users[0].pasword_hash: this field is not known here; did you mean password_hash?",
        ),
        (
            "\"password_hash\": \"kI3",
            "\"pasword\": \"kI3",
            "users[0].pasword: this field is not known here; did you mean password?",
        ),
        ("\"priority\": 0", "\"priority\": 0,,", "column "),
        ("\"bindings\"", "\"bindngs\"", "bindngs: this part is not known here; did you mean bindings?"),
    ];
    for (from, to, expected) in wrongs {
        let file = FILE.replacen(from, to, 1);
        assert_ne!(file, FILE, "{from}");
        let error = node.import_definitions(&file).unwrap_err();
        assert!(matches!(error, ImportError::Wrong(_)), "{error:?}");
        let line = 1 + file[..file.find(to).unwrap()].matches('\n').count();
        let expected = format!("line {line}: {expected}");
        assert!(error.to_string().starts_with(&expected), "{error}\nshould begin with\n{expected}");
    }
    assert_eq!(node.import_definitions(FILE).unwrap().changes, 15, "nothing of all that was kept");
    node.drain();
}

#[test]
fn a_whole_number_that_would_become_another_one_is_refused() {
    let node = node();
    let exchange = |argument: &str| {
        format!(
            r#"{{"exchanges": [{{"name": "e", "vhost": "/", "type": "direct", "durable": true, "auto_delete": false,
                "internal": false, "arguments": {{"x": {argument}}}}}]}}"#
        )
    };
    let global = r#"{"global_parameters": [{"name": "g", "value": {"n": [18446744073709551616]}}]}"#;
    for (file, expected) in [
        (exchange("9223372036854775808"), "arguments.x: 9223372036854775808 does not fit into 64 bits with a sign"),
        (exchange("[-9223372036854775809]"), "arguments.x: -9223372036854775809: a whole number has at most 64 bits"),
        (exchange(&"1".repeat(300)), "1111...: a whole number has at most 64 bits"),
        (global.to_owned(), "value: 18446744073709551616: a whole number has at most 64 bits"),
    ] {
        let error = node.import_definitions(&file).unwrap_err();
        assert!(matches!(error, ImportError::Wrong(_)) && error.to_string().ends_with(expected), "{error}");
    }
    let fine = exchange("[9223372036854775807, 1e300, 5.0]");
    node.import_definitions(&fine).unwrap();
    assert_eq!(node.import_definitions(&fine).unwrap().changes, 0, "it is there");
    node.drain();
}

#[test]
fn a_durable_queue_needs_a_node_that_has_a_place_for_it() {
    let node = node();
    let file = r#"{"queues": [{"name": "q", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}}]}"#;
    assert!(matches!(node.import_definitions(file), Err(ImportError::NoPlace)));
    node.drain();
}

/// A log without a majority: nothing is decided, and who asks is given up after a while.
struct NoMajority {
    asked: Arc<AtomicUsize>,
}

impl TopologyLog for NoMajority {
    fn propose(&self, _: Command, answer: Answer) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            drop(answer);
        });
    }

    fn catch_up(&self, answer: Answer) {
        drop(answer);
    }
}

fn node_with(log: impl FnOnce(Wiring) -> Arc<dyn TopologyLog>) -> Node {
    let config = NodeConfig::small(vec!["127.0.0.1:0".parse().unwrap()]);
    let node =
        Node::start(config, Topology::new(), |wiring| (log(wiring), Arc::new(|_| ShardParts::without_log(Vec::new()))));
    node.unwrap()
}

#[test]
fn an_import_that_nobody_decides_about_ends_and_who_waits_behind_it_with_it() {
    let asked = Arc::new(AtomicUsize::new(0));
    let log = NoMajority { asked: asked.clone() };
    let node = node_with(|_| Arc::new(log));
    let file = r#"{"global_parameters":[{"name":"a","value":1},{"name":"b","value":2}]}"#;
    let import = || node.import_definitions(file).unwrap_err();
    let begin = Instant::now();
    let errors = std::thread::scope(|scope| {
        let first = scope.spawn(import);
        std::thread::sleep(Duration::from_millis(300));
        [first, scope.spawn(import), scope.spawn(import)].map(|import| import.join().unwrap())
    });
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert!(errors.iter().all(|error| matches!(error, ImportError::Undecided { done: 0, .. })), "{errors:?}");
    let by_the_first = asked.load(Ordering::SeqCst);
    // Who comes later tries.
    import();
    assert_eq!(asked.load(Ordering::SeqCst), 2 * by_the_first, "who waited had nothing proposed");
    node.drain();
}

/// A log that is slow, and gives up what waited for too long.
struct Slow {
    changes: Mutex<mpsc::Sender<(Command, Answer, Instant)>>,
}

impl Slow {
    fn new(changes: Changes) -> Slow {
        let (sender, wanted) = mpsc::channel::<(Command, Answer, Instant)>();
        std::thread::spawn(move || {
            for (command, answer, since) in wanted {
                std::thread::sleep(Duration::from_millis(1));
                if since.elapsed() > Duration::from_secs(3) {
                    drop(answer);
                } else if let Some(applied) = changes.apply(&command, true) {
                    answer.send(applied);
                }
            }
        });
        Slow { changes: Mutex::new(sender) }
    }
}

impl TopologyLog for Slow {
    fn propose(&self, command: Command, answer: Answer) {
        self.changes.lock().unwrap().send((command, answer, Instant::now())).unwrap();
    }

    fn catch_up(&self, answer: Answer) {
        drop(answer);
    }
}

#[test]
fn a_long_import_that_makes_progress_goes_on() {
    let node = node_with(|wiring| Arc::new(Slow::new(wiring.changes())));
    let exchange = |number: usize| {
        serde_json::json!({ "name": format!("x{number}"), "vhost": "/", "type": "fanout", "durable": true,
            "auto_delete": false, "internal": false, "arguments": {} })
    };
    let file = serde_json::json!({ "exchanges": (0..4000).map(exchange).collect::<Vec<_>>() });
    let begin = Instant::now();
    // With guest, who goes.
    assert_eq!(node.import_definitions(&file.to_string()).unwrap().changes, 4001);
    assert!(begin.elapsed() > Duration::from_secs(3), "it took longer than a change may wait");
    node.drain();
}

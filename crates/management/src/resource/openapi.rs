//! `/api/openapi.json`: what there is to ask, for programs that make clients of it.
//!
//! Invariant: a path is in the table with the methods that its handler takes and no others; tests
//! hold both against each other.

use super::Cx;
use crate::answer::{Answer, Refused};
use crate::fields::{BY_PATH, Fields};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// Every path behind `/api/`, its methods, and what it is about; a star is a list, which can be
/// paged.
const PATHS: &[(&str, &str, &str)] = &[
    ("overview", "GET", "Everything at a glance"),
    ("openapi.json", "GET", "This document"),
    ("whoami", "GET", "Who asks"),
    ("version", "GET", "The version that clients are told"),
    ("auth", "GET", "How one logs in"),
    ("auth/attempts/{node}", "GET DELETE", "Logins, right and wrong, by protocol"),
    ("auth/attempts/{node}/source", "GET DELETE", "Logins by source, which are not counted"),
    ("auth/hash_password/{password}", "GET", "The hash of a password, for definitions"),
    ("cluster-name", "GET PUT", "The cluster's name"),
    ("nodes", "GET", "*The nodes"),
    ("nodes/{node}", "GET", "A node"),
    ("nodes/{node}/memory", "GET", "What its memory holds, in bytes"),
    ("nodes/{node}/memory/relative", "GET", "What its memory holds, as parts of a hundred"),
    ("nodes/{node}/memory/ets", "GET", "Tables of Erlang's runtime, of which there are none"),
    ("nodes/{node}/memory/ets/relative", "GET", "Tables of Erlang's runtime, of which there are none"),
    ("nodes/{node}/memory/ets/{filter}", "GET", "Tables of Erlang's runtime, of which there are none"),
    ("nodes/{node}/memory/ets/{filter}/relative", "GET", "Tables of Erlang's runtime, of which there are none"),
    ("nodes/{node}/publishers/hold", "PUT DELETE", "Holds publishers, or lets them go on"),
    ("nodes/{node}/maintenance", "PUT DELETE", "Closes clients, lets none in and hands leaders over, or ends that"),
    ("leveret/cluster", "GET", "Nodes, partitions, how far members are behind, what queues are promised now"),
    ("leveret/settings", "GET", "What the node is configured to be, and who said so"),
    ("leveret/session", "POST DELETE", "Begins a session of the page, and ends it"),
    ("leveret/queues/{vhost}/{queue}/move", "POST", "Moves messages to another queue"),
    ("leveret/stop", "POST", "Ends the node in order, for who has the operator's token"),
    ("leveret/waiting", "GET", "*What waits for what"),
    ("connections", "GET", "*Who is connected"),
    ("connections/{connection}", "GET DELETE", "A connection"),
    ("connections/{connection}/channels", "GET", "*Its channels"),
    ("connections/username/{user}", "GET DELETE", "*A user's connections"),
    ("channels", "GET", "*All channels"),
    ("channels/{channel}", "GET", "A channel"),
    ("consumers", "GET", "*All consumers"),
    ("consumers/{vhost}", "GET", "*The consumers in a virtual host"),
    ("exchanges", "GET", "*All exchanges"),
    ("exchanges/{vhost}", "GET", "*The exchanges of a virtual host"),
    ("exchanges/{vhost}/{exchange}", "GET PUT DELETE", "An exchange"),
    ("exchanges/{vhost}/{exchange}/publish", "POST", "Publishes a message and waits for its confirm"),
    ("exchanges/{vhost}/{exchange}/bindings/source", "GET", "*The bindings that lead away from it"),
    ("exchanges/{vhost}/{exchange}/bindings/destination", "GET", "*The bindings that lead to it"),
    ("queues", "GET", "*All queues"),
    ("queues/detailed", "GET", "*All queues"),
    ("queues/{vhost}", "GET", "*The queues of a virtual host"),
    ("queues/{vhost}/{queue}", "GET PUT DELETE", "A queue"),
    ("queues/{vhost}/{queue}/contents", "DELETE", "Drops what is ready in it"),
    ("queues/{vhost}/{queue}/get", "POST", "Gets messages from its front"),
    ("queues/{vhost}/{queue}/bindings", "GET", "*The bindings that lead to it"),
    ("queues/{vhost}/{queue}/actions", "POST", "Actions on a queue, of which there are none"),
    ("queues/quorum/{vhost}/{queue}/status", "GET", "The members of a quorum queue"),
    ("queues/quorum/{vhost}/{queue}/replicas/add", "POST", "Adds a member"),
    ("queues/quorum/{vhost}/{queue}/replicas/delete", "DELETE", "Removes a member"),
    ("queues/quorum/replicas/on/{node}/grow", "POST", "Adds members on a node"),
    ("queues/quorum/replicas/on/{node}/shrink", "DELETE", "Removes the members on a node"),
    ("bindings", "GET", "*All bindings"),
    ("bindings/{vhost}", "GET", "*The bindings of a virtual host"),
    ("bindings/{vhost}/e/{exchange}/q/{queue}", "GET POST", "*The bindings between an exchange and a queue"),
    ("bindings/{vhost}/e/{exchange}/q/{queue}/{key}", "GET DELETE", "One of them"),
    ("bindings/{vhost}/e/{source}/e/{destination}", "GET POST", "*The bindings between two exchanges"),
    ("bindings/{vhost}/e/{source}/e/{destination}/{key}", "GET DELETE", "One of them"),
    ("vhosts", "GET", "*The virtual hosts"),
    ("vhosts/{vhost}", "GET PUT DELETE", "A virtual host"),
    ("vhosts/{vhost}/connections", "GET", "*Who is connected to it"),
    ("vhosts/{vhost}/channels", "GET", "*The channels in it"),
    ("vhosts/{vhost}/permissions", "GET", "*Who may do what in it"),
    ("vhosts/{vhost}/topic-permissions", "GET", "*Who may do what with its topics"),
    ("vhosts/{vhost}/start/{node}", "POST", "Starts it on a node"),
    ("users", "GET", "*The users"),
    ("users/without-permissions", "GET", "*The users that may open no virtual host"),
    ("users/bulk-delete", "POST", "Deletes several users"),
    ("users/{user}", "GET PUT DELETE", "A user"),
    ("users/{user}/permissions", "GET", "*What a user may do"),
    ("users/{user}/topic-permissions", "GET", "*What a user may do with topics"),
    ("permissions", "GET", "*Who may do what"),
    ("permissions/{vhost}/{user}", "GET PUT DELETE", "What a user may do in a virtual host"),
    ("topic-permissions", "GET", "*Who may do what with topics"),
    ("topic-permissions/{vhost}/{user}", "GET PUT DELETE", "What a user may do with the topics of a virtual host"),
    ("topic-permissions/{vhost}/{user}/{exchange}", "DELETE", "What a user may do with the topics of an exchange"),
    ("policies", "GET", "*All policies"),
    ("policies/{vhost}", "GET", "*The policies of a virtual host"),
    ("policies/{vhost}/{name}", "GET PUT DELETE", "A policy"),
    ("operator-policies", "GET", "*All operator policies"),
    ("operator-policies/{vhost}", "GET", "*The operator policies of a virtual host"),
    ("operator-policies/{vhost}/{name}", "GET PUT DELETE", "An operator policy"),
    ("vhost-limits", "GET", "*The limits of all virtual hosts"),
    ("vhost-limits/{vhost}", "GET", "*The limits of a virtual host"),
    ("vhost-limits/{vhost}/{name}", "PUT DELETE", "A limit of a virtual host"),
    ("user-limits", "GET", "*The limits of all users"),
    ("user-limits/{user}", "GET", "*The limits of a user"),
    ("user-limits/{user}/{name}", "PUT DELETE", "A limit of a user"),
    ("parameters", "GET", "*All parameters"),
    ("parameters/{component}", "GET", "*The parameters of a component"),
    ("parameters/{component}/{vhost}", "GET", "*The parameters of a component in a virtual host"),
    ("parameters/{component}/{vhost}/{name}", "GET PUT DELETE", "A parameter"),
    ("global-parameters", "GET", "*The global parameters"),
    ("global-parameters/{name}", "GET PUT DELETE", "A global parameter"),
    ("definitions", "GET POST", "All that is declared, out and in"),
    ("all-configuration", "GET POST", "As definitions"),
    ("definitions/{vhost}", "GET POST", "What is declared in a virtual host, out and in"),
    ("leveret/latencies", "GET", "How long the stages of a message's road took within the last minute"),
    ("leveret/disk", "GET", "What partitions have on the disk; what a queue has is told with the queue"),
    ("leveret/nodes/{node}", "DELETE", "Forgets a node that is gone for good"),
    (
        "leveret/nodes/{node}/leave",
        "GET POST",
        "Whether a node could leave its cluster; has the cluster forget it once it is drained, and it ends then",
    ),
    (
        "leveret/nodes/{node}/give-away",
        "POST",
        "Gives other nodes copies of what only this one has; asked again until nothing is waited for, it may leave",
    ),
    ("leveret/queues", "GET", "*What each queue promises now, and what it has on the disk"),
    ("leveret/queues/{vhost}", "GET", "*What each queue of a virtual host promises now, and what it has on the disk"),
    ("leveret/queues/{vhost}/{queue}", "GET", "What a queue promises now, and what it has on the disk"),
    ("feature-flags", "GET", "*The feature flags"),
    ("feature-flags/{name}/enable", "PUT", "Enables one"),
    ("deprecated-features", "GET", "*What RabbitMQ deprecates"),
    ("deprecated-features/used", "GET", "*What of it is in use"),
    ("rebalance/queues", "POST", "Spreads leaders over the nodes"),
    ("reset", "DELETE", "Forgets the samples of rates and histories"),
    ("reset/{node}", "DELETE", "Forgets the samples of a node"),
    ("extensions", "GET", "What plug-ins add to pages: nothing"),
    ("aliveness-test/{vhost}", "GET", "The queues of a virtual host answer"),
    ("healthchecks/node", "GET", "The node as a whole is well"),
    ("healthchecks/node/{node}", "GET", "The node as a whole is well"),
    ("health/checks/alarms", "GET", "No alarm is on"),
    ("health/checks/local-alarms", "GET", "No alarm is on"),
    ("health/checks/port-listener/{port}", "GET", "Somebody listens on a port"),
    ("health/checks/protocol-listener/{protocol}", "GET", "A protocol is served"),
    ("health/checks/certificate-expiration/{within}/{unit}", "GET", "No certificate ends within a time"),
    ("health/checks/below-node-connection-limit", "GET", "The node takes another connection"),
    ("health/checks/virtual-hosts", "GET", "Every virtual host is served"),
    ("health/checks/node-is-quorum-critical", "GET", "No queue depends on this node alone"),
    ("health/checks/node-is-mirror-sync-critical", "GET", "No mirror depends on this node alone"),
    ("health/checks/ready-to-serve-clients", "GET", "The node serves clients"),
    ("health/checks/is-in-service", "GET", "The node serves clients"),
    ("health/checks/metadata-store/initialized", "GET", "The topology is there"),
    ("health/checks/metadata-store/initialized/with-data", "GET", "The topology is there with what is in it"),
    ("health/checks/quorum-queues-without-elected-leaders/all-vhosts", "GET", "Every quorum queue has a leader"),
    (
        "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}",
        "GET",
        "Every quorum queue of such a name has a leader",
    ),
    (
        "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}",
        "GET",
        "Every quorum queue of a virtual host has a leader",
    ),
    (
        "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}",
        "GET",
        "Every quorum queue of such a name there has a leader",
    ),
];

/// GET of the document, which is made once.
pub(super) fn document(cx: Cx<'_>) -> Result<Answer, Refused> {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let version = &cx.handle().facts().config.product_version;
    let document = DOCUMENT.get_or_init(|| made(version).to_string().into());
    Ok(Answer::text(document.clone(), crate::answer::JSON))
}

fn made(version: &str) -> Value {
    let mut paths = Map::new();
    for (path, methods, about) in PATHS {
        let (is_list, about) = about.strip_prefix('*').map_or((false, *about), |about| (true, about));
        let mut operations = Map::new();
        let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameters: Vec<Value> = names
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        operations.insert("parameters".to_owned(), parameters.into());
        for method in methods.split(' ') {
            operations.insert(method.to_lowercase(), operation(method, path, about, is_list));
        }
        paths.insert(format!("/api/{path}"), operations.into());
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Leveret management API",
            "summary": "RabbitMQ's management API, as far as this broker has what it is about",
            "version": version,
        },
        "security": [{ "basic": [] }, { "operator": [] }],
        "components": {
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "operator": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token in operator.json of the data folder, from this machine",
                },
            },
            "schemas": {
                "Refusal": {
                    "type": "object",
                    "required": ["error", "reason"],
                    "properties": { "error": { "type": "string" }, "reason": {} },
                },
                "QueuePromise": queue_promise(),
            },
        },
        "paths": paths,
    })
}

/// What a body may say. What changes nothing may be there, as in an answer.
fn body(fields: &Fields) -> Value {
    let taken = fields.taken.iter().map(|name| ((*name).to_owned(), json!({})));
    let shown = fields.shown.iter().map(|name| ((*name).to_owned(), json!({ "readOnly": true })));
    let properties: Map<String, Value> = taken.chain(shown).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Whether a request with this method has a body.
fn has_body(method: &str, path: &str) -> bool {
    ["PUT", "POST"].contains(&method) || (method == "DELETE" && path.ends_with("/replicas/delete"))
}

/// What `leveret/queues` tells of a queue on the disk; its other fields are words of its own.
fn queue_promise() -> Value {
    let disk = [
        ("live_bytes", "What its live messages take now, on the disk of its leader"),
        (
            "published_bytes",
            "Bodies, properties, names of exchanges and routing keys that came in since its leader's node started",
        ),
        ("written_bytes", "What was written for it since then: the next three together"),
        ("log_bytes", "To the log: its messages and what became of them, with its share of what fills blocks"),
        ("extent_bytes", "To extents, which its messages were copied to"),
        ("checkpoint_bytes", "To checkpoints"),
        ("amplification", "Bytes written for each that was published; null before the first"),
    ];
    let field =
        |(name, about): (&str, &str)| (name.to_owned(), json!({ "type": ["number", "null"], "description": about }));
    let disk: Map<String, Value> = disk.into_iter().map(field).collect();
    json!({ "type": "object", "properties": { "disk": { "type": ["object", "null"], "properties": disk } } })
}

fn operation(method: &str, path: &str, about: &str, is_list: bool) -> Value {
    let json = |schema: Value| json!({ "application/json": { "schema": schema } });
    let refusal =
        json!({ "description": "Refused", "content": json(json!({ "$ref": "#/components/schemas/Refusal" })) });
    let done = match (method, is_list) {
        ("GET", true) => json!({ "description": "All, or the page that was asked for", "content": json(json!({})) }),
        ("GET", false) if path == "leveret/queues/{vhost}/{queue}" => {
            json!({ "description": "What it is", "content": json(json!({ "$ref": "#/components/schemas/QueuePromise" })) })
        }
        ("GET", false) => json!({ "description": "What it is", "content": json(json!({})) }),
        _ => json!({ "description": "Decided, on disk and in force" }),
    };
    let mut operation = json!({ "summary": about, "responses": { "2XX": done, "default": refusal } });
    if has_body(method, path) {
        let known = BY_PATH.iter().find(|(of, _)| *of == path);
        let schema = known.map_or_else(|| json!({ "type": "object" }), |(_, fields)| body(fields));
        operation["requestBody"] = json!({ "content": json(schema) });
    }
    if method == "GET" && is_list {
        let texts = ["columns", "sort", "name"].map(|name| (name, "string"));
        let others =
            [("sort_reverse", "boolean"), ("use_regex", "boolean"), ("page", "integer"), ("page_size", "integer")];
        let query = texts.into_iter().chain(others);
        let query = query.map(|(name, kind)| json!({ "name": name, "in": "query", "schema": { "type": kind } }));
        operation["parameters"] = query.collect::<Vec<_>>().into();
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_word_of_a_path_that_is_handled_is_in_the_document() {
        // Where a path says only why there is nothing it has no handler.
        let later = ["shovels", "federation-links", "stream", "traces", "trace-files"];
        // What nodes ask each other.
        let between_nodes = ["active", "figures", "members", "rows"];
        let documented: BTreeSet<&str> = PATHS.iter().flat_map(|(path, ..)| path.split('/')).collect();
        let source = include_str!("mod.rs");
        let handled = source.split("b\"").skip(1).filter_map(|rest| rest.split('"').next());
        let missing: Vec<&str> = handled
            .filter(|word| !documented.contains(word) && !later.contains(word) && !between_nodes.contains(word))
            .collect();
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn every_body_but_that_of_definitions_has_its_fields() {
        let has_one = |path: &str, methods: &str| methods.split(' ').any(|method| has_body(method, path));
        let bodies: BTreeSet<&str> =
            PATHS.iter().filter(|(path, methods, _)| has_one(path, methods)).map(|(path, ..)| *path).collect();
        let mut known: BTreeSet<&str> = BY_PATH.iter().map(|(path, _)| *path).collect();
        assert_eq!(known.len(), BY_PATH.len(), "a path comes twice");
        known.extend(["definitions", "definitions/{vhost}", "all-configuration"]);
        assert_eq!(bodies, known);
    }

    #[test]
    fn no_path_comes_twice() {
        let paths: BTreeSet<&str> = PATHS.iter().map(|(path, ..)| *path).collect();
        assert_eq!(paths.len(), PATHS.len());
    }
}

//! Members of replicated queues: where they are, more of them, fewer of them.

use crate::api::{Answer, path};
use crate::context::{Cx, items, text};
use crate::failure::{Failure, USAGE};
use crate::form::{Rows, Shown};
use crate::options::{Switch, flag, text as text_option};
use crate::term::Cell;
use crate::tool::{DIAGNOSTICS, QUEUES};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long leaders move at once when somebody wants that, and how often it is looked how far they are.
const SPREAD_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);

const MEMBER: Verb = Verb { tools: QUEUES, section: Section::Replication, ..VERB };
const CLUSTER: Verb = Verb { tools: QUEUES, section: Section::Cluster, ..VERB };
const PATTERNS: &[Switch] = &[
    text_option("vhost-pattern", "queues of virtual hosts whose names match; all without it"),
    text_option("queue-pattern", "queues whose names match; all without it"),
    flag("errors-only", "only what did not work"),
];

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "quorum_status",
        tools: QUEUES | DIAGNOSTICS,
        section: Section::Monitoring,
        usage: "[--vhost <vhost>] <queue>",
        about: "Lists the members of a quorum queue",
        words: (1, 1),
        run: status,
        ..VERB
    },
    Verb {
        name: "add_member",
        usage: "[--vhost <vhost>] <queue> <node>",
        about: "Gives a quorum queue a member on a node",
        words: (2, 2),
        run: add,
        ..MEMBER
    },
    Verb {
        name: "delete_member",
        usage: "[--vhost <vhost>] <queue> <node>",
        about: "Takes a quorum queue's member on a node away",
        words: (2, 2),
        run: delete,
        ..MEMBER
    },
    Verb {
        name: "grow",
        usage: "<node> <all | even> [--vhost-pattern <pattern>] [--queue-pattern <pattern>]",
        about: "Gives quorum queues a member on a node",
        words: (2, 2),
        switches: PATTERNS,
        run: grow,
        ..CLUSTER
    },
    Verb {
        name: "shrink",
        usage: "<node> [--errors-only]",
        about: "Takes all members on a node away",
        words: (1, 1),
        switches: &[flag("errors-only", "only what did not work")],
        run: shrink,
        ..CLUSTER
    },
    Verb {
        name: "rebalance",
        usage: "<all | classic | quorum>",
        about: "Spreads the leaders of queues over the nodes: a leader leads all queues of a partition",
        words: (1, 1),
        run: rebalance,
        ..CLUSTER
    },
];

fn status(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (queue, vhost) = (cx.word(0), cx.vhost());
    cx.banner(&format!("Status of quorum queue {queue} on node {} ...", cx.node()?));
    let answer = cx.api()?.get(&path(&["queues", "quorum", vhost, queue, "status"]))?;
    if is_classic(&answer) {
        return Err(Failure::refused("Cannot get quorum status of a classic queue"));
    }
    let found = answer.good_or_none()?.ok_or_else(|| Failure::refused("not_found"))?;
    let found = items(found)?;
    let columns: Vec<&str> = [
        "Node Name",
        "Raft State",
        "Membership",
        "Last Log Index",
        "Last Written",
        "Last Applied",
        "Commit Index",
        "Snapshot Index",
        "Term",
        "Machine Version",
    ]
    .into_iter()
    .filter(|column| found.iter().any(|member| !member[*column].is_null()))
    .collect();
    let row = |member: &Value| columns.iter().map(|column| Cell::Value(member[*column].clone())).collect();
    let rows = Rows { is_pretty: true, ..Rows::new(&columns) };
    Ok(rows.with(found.iter().map(row)))
}

/// Whether the node says that the queue has no members, as it is a classic one.
fn is_classic(answer: &Answer) -> bool {
    answer.status == 503 && answer.reason() == "classic_queue_not_supported"
}

/// Words for what the node says of members.
fn told(reason: &str) -> String {
    match reason {
        "last_node" => "the last node cannot be removed".to_owned(),
        "Node is not a cluster member" => "node_not_running".to_owned(),
        other => other.to_owned(),
    }
}

fn add(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (queue, node) = (cx.word(0), cx.word(1));
    cx.banner(&format!("Adding a replica for queue {queue} on node {node}..."));
    let at = path(&["queues", "quorum", cx.vhost(), queue, "replicas", "add"]);
    let answer = cx.api()?.post(&at, &json!({ "node": node }))?;
    match answer.status {
        404 => Err(Failure::refused("not_found")),
        _ if is_classic(&answer) => Err(Failure::refused("Cannot add members to a classic queue")),
        // What was wanted is so.
        400 if answer.reason() == "already_a_member" => Ok(Shown::Done),
        400 => Err(Failure::refused(told(&answer.reason()))),
        _ => {
            let mut queues = items(answer.good()?)?;
            queues.retain(|row| row["name"] != queue || row["vhost"] != cx.vhost());
            if !queues.is_empty() {
                let names: Vec<String> = queues.iter().map(|row| format!("'{}'", text(&row["name"]))).collect();
                cx.banner(&format!("It shares a partition with {}, which got one too.", names.join(", ")));
            }
            Ok(Shown::Done)
        }
    }
}

fn delete(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (queue, node) = (cx.word(0), cx.word(1));
    cx.banner(&format!("Removing a replica of queue {queue} on node {node}..."));
    let at = path(&["queues", "quorum", cx.vhost(), queue, "replicas", "delete"]);
    let body = json!({ "node": node }).to_string();
    let answer = cx.api()?.ask("DELETE", &at, Some(body), &[])?;
    match answer.status {
        404 => Err(Failure::refused("not_found")),
        _ if is_classic(&answer) => Err(Failure::refused("Cannot delete members of a classic queue")),
        400 => Err(Failure::refused(told(&answer.reason()))),
        _ => answer.good().map(|_| Shown::Done),
    }
}

/// Queues with what became of their member on a node, each in a row.
fn outcomes(cx: &Cx<'_>, rows: &[Value]) -> Shown {
    let only_errors = cx.options.flag("errors-only");
    let is_error = |row: &Value| text(&row["result"]).starts_with("error");
    let row = |row: &Value| {
        let result = match text(&row["result"]).strip_prefix("error: ") {
            Some(why) => format!("error: {}", told(why)),
            None => text(&row["result"]),
        };
        vec![
            Cell::text(text(&row["vhost"])),
            Cell::text(text(&row["name"])),
            Cell::Value(row["size"].clone()),
            Cell::text(result),
        ]
    };
    let shown = rows.iter().filter(|row| !only_errors || is_error(row));
    Rows::new(&["vhost", "name", "size", "result"]).with(shown.map(row))
}

fn grow(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (node, strategy) = (cx.word(0), cx.word(1));
    if !["all", "even"].contains(&strategy) {
        return Err(Failure::argument(USAGE, format!("strategy '{strategy}' is not recognised.")));
    }
    cx.banner(&format!("Growing {strategy} quorum queues on {node}..."));
    let pattern = |name| cx.options.text(name).unwrap_or(".*");
    let wanted = json!({
        "strategy": strategy,
        "vhost_pattern": pattern("vhost-pattern"),
        "queue_pattern": pattern("queue-pattern"),
    });
    let answer = cx.api()?.post(&path(&["queues", "quorum", "replicas", "on", node, "grow"]), &wanted)?;
    match answer.status {
        404 => Err(Failure::refused(format!("node_not_running: {node}"))),
        400 => Err(Failure::refused(told(&answer.reason()))),
        _ if answer.body.is_empty() => answer.good().map(|_| outcomes(cx, &[])),
        _ => Ok(outcomes(cx, &items(answer.good()?)?)),
    }
}

/// Each queue with what became of its member.
fn shrink(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.word(0);
    cx.banner(&format!("Shrinking quorum queues on {node}..."));
    let answer = cx.api()?.delete(&path(&["queues", "quorum", "replicas", "on", node, "shrink"]))?;
    match answer.status {
        404 => Err(Failure::refused(format!("node_not_running: {node}"))),
        // Of a node that is alone.
        400 if answer.reason() == "last_node" => {
            let row = |queue: &Value| {
                let size = queue["members"].as_array().map_or(0, Vec::len);
                json!({ "vhost": queue["vhost"], "name": queue["name"], "size": size, "result": "error: last_node" })
            };
            let rows: Vec<Value> = quorum_queues(cx)?.iter().map(row).collect();
            Ok(outcomes(cx, &rows))
        }
        400 => Err(Failure::refused(told(&answer.reason()))),
        _ => Ok(outcomes(cx, &items(answer.good()?)?)),
    }
}

fn quorum_queues(cx: &Cx<'_>) -> Result<Vec<Value>, Failure> {
    let mut found = items(cx.api()?.get("queues")?.good()?)?;
    found.retain(|queue| queue["type"] == "quorum");
    Ok(found)
}

/// Waits until the nodes that run lead about as many partitions, for as long as leaders move at once.
fn until_spread(cx: &Cx<'_>) -> Result<(), Failure> {
    let until = Instant::now() + SPREAD_WITHIN;
    loop {
        let answer = cx.api()?.get("leveret/cluster?columns=nodes,partitions")?;
        // Who may not look at it hears what is so now.
        if !answer.is_good() || is_spread(&answer.json()) || Instant::now() >= until {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether no node leads a partition of queues of which another member that is to lead leads two fewer.
fn is_spread(cluster: &Value) -> bool {
    let list = |field: &str| cluster[field].as_array().cloned().unwrap_or_default();
    let able = list("nodes").into_iter().filter(|node| node["running"] == true && node["being_drained"] != true);
    let mut leads: BTreeMap<String, u64> = able.map(|node| (text(&node["name"]), 0)).collect();
    let mut partitions = list("partitions");
    partitions.retain(|partition| partition["kind"] == "queues");
    for partition in &partitions {
        if let Some(count) = leads.get_mut(&text(&partition["leader"])) {
            *count += 1;
        }
    }
    partitions.iter().all(|partition| {
        let members = partition["members"].as_array().into_iter().flatten();
        let fewest = members.filter_map(|member| leads.get(&text(&member["node"]))).min();
        match leads.get(&text(&partition["leader"])) {
            Some(own) => fewest.is_none_or(|fewest| own - fewest.min(own) <= 1),
            // Its leader went, or is about to hand it over, if there is anybody.
            None => fewest.is_none(),
        }
    })
}

fn rebalance(cx: &Cx<'_>) -> Result<Shown, Failure> {
    spread(cx, cx.word(0))
}

/// Spreads leaders over the nodes, and tells who leads how many.
pub(super) fn spread(cx: &Cx<'_>, kind: &str) -> Result<Shown, Failure> {
    if !["all", "classic", "quorum"].contains(&kind) {
        return Err(Failure::refused(format!("type {kind} is not supported. Try one of all, classic, quorum.")));
    }
    cx.banner(&format!("Re-balancing leaders of {kind} queues..."));
    cx.api()?.post("rebalance/queues", &json!({}))?.good()?;
    until_spread(cx)?;
    let queues = quorum_queues(cx)?;
    let nodes = items(cx.api()?.get("nodes")?.good()?)?;
    let row = |node: &Value| {
        let leads = queues.iter().filter(|queue| queue["leader"] == node["name"]).count();
        vec![Cell::text(text(&node["name"])), Cell::Value(json!(leads))]
    };
    let rows = Rows { is_pretty: true, ..Rows::new(&["Node name", "Number of quorum queues"]) };
    Ok(rows.with(nodes.iter().map(row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaders_are_spread_once_no_node_that_runs_has_two_more_than_another() {
        let cluster = |leaders: &[&str]| {
            let members = ["n1", "n2", "n3"].map(|node| json!({ "node": node }));
            let partition = |leader: &&str| json!({ "kind": "queues", "leader": leader, "members": members });
            let mut partitions: Vec<Value> = leaders.iter().map(partition).collect();
            partitions.push(json!({ "kind": "topology", "leader": "n1" }));
            let node = |name: &str, running: bool| json!({ "name": name, "running": running });
            json!({ "nodes": [node("n1", true), node("n2", true), node("n3", false)], "partitions": partitions })
        };
        assert!(!is_spread(&cluster(&["n1", "n1", "n1", "n2"])));
        assert!(is_spread(&cluster(&["n1", "n1", "n2"])), "that of the topology is not meant");
        assert!(!is_spread(&cluster(&["n1", "n1"])));
        assert!(is_spread(&json!({})), "a node alone");
        let mut sole = cluster(&["n1", "n1", "n1", "n2"]);
        for at in 0..3 {
            sole["partitions"][at]["members"] = json!([{ "node": "n1" }]);
        }
        assert!(is_spread(&sole), "nobody else has those of n1");
        let mut drained = cluster(&["n2", "n2", "n2"]);
        assert!(!is_spread(&drained));
        drained["nodes"][0]["being_drained"] = true.into();
        assert!(is_spread(&drained), "who is drained is to lead nothing");
        drained["partitions"][0]["leader"] = "n1".into();
        assert!(!is_spread(&drained), "it has not handed that over yet");
        drained["nodes"][1]["being_drained"] = true.into();
        assert!(is_spread(&drained), "there is nobody to hand it to");
    }
}

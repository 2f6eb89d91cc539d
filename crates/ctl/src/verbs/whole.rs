//! The cluster at a glance: nodes, partitions, how far behind members are, what queues are promised now.

use crate::context::{Cx, text};
use crate::failure::Failure;
use crate::form::Shown;
use crate::output::{heading, is_terminal};
use crate::tool::LEVERET;
use crate::verb::{Section, VERB, Verb};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(super) const VERBS: &[Verb] = &[Verb {
    name: "cluster",
    tools: LEVERET,
    section: Section::Cluster,
    about: "Shows nodes, leaders, how far members are behind, and what a confirm is worth now",
    run: status,
    ..VERB
}];

fn status(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let told = cx.api()?.get("leveret/cluster")?.good()?;
    let lines = lines(&told, is_terminal());
    Ok(Shown::Document(told, lines))
}

/// Columns as wide as what stands in them, two spaces apart.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let wide = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let mut lines = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell}{}  ", " ".repeat(width - cell.chars().count()));
        }
        let _ = writeln!(lines, "{}", line.trim_end());
    }
    lines
}

fn lines(told: &Value, on_terminal: bool) -> String {
    let list = |name: &str| told[name].as_array().cloned().unwrap_or_default();
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
    let size = |value: &Value| value.as_u64().map_or("-".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    let mut nodes = vec![row(&["node", "state", "up", "memory", "disk free", "leads", "alarms"])];
    for node in list("nodes") {
        let alarms: Vec<String> = node["alarms"].as_array().into_iter().flatten().map(text).collect();
        nodes.push(vec![
            text(&node["name"]),
            match (node["running"] == true, rests(&node)) {
                (true, true) => "running, in maintenance",
                (true, false) => "running",
                (false, _) => "unreachable",
            }
            .to_owned(),
            node["uptime"].as_u64().map_or("-".to_owned(), |ms| duration(ms / 1000)),
            size(&node["mem_used"]),
            size(&node["disk_free"]),
            node["leads"].to_string(),
            if alarms.is_empty() { "-".to_owned() } else { alarms.join(", ") },
        ]);
    }
    let mut partitions =
        vec![row(&["partition", "queues", "leader", "term", "commit", "copies in sync", "members (entries behind)"])];
    for partition in list("partitions") {
        let all = |field: &str| partition[field].as_array().cloned().unwrap_or_default();
        let members =
            all("members").iter().map(member).chain(all("leaving").iter().map(leaver)).collect::<Vec<String>>();
        let is_topology = partition["kind"] == "topology";
        let number = |value: &Value| value.as_u64().map_or("-".to_owned(), |number| number.to_string());
        partitions.push(vec![
            if is_topology { "topology".to_owned() } else { number(&partition["partition"]) },
            if is_topology { "-".to_owned() } else { number(&partition["queues"]) },
            partition["leader"].as_str().unwrap_or("none").to_owned(),
            number(&partition["term"]),
            number(&partition["commit"]),
            format!("{} of {}", partition["in_sync"], partition["of"]),
            members.join(", "),
        ]);
    }
    let queues = &told["queues"];
    let mut guarantees = vec![row(&["queues", "a confirm means"])];
    for one in queues["guarantees"].as_array().into_iter().flatten() {
        guarantees.push(vec![one["queues"].to_string(), text(&one["guarantee"])]);
    }
    let title = |text: &str| format!("{}\n\n", heading(text, on_terminal));
    let mut parts = vec![
        title(&format!("Cluster {}, as {} sees it", text(&told["cluster_name"]), text(&told["asked"])))
            + &aligned(&nodes),
        title("Partitions") + &aligned(&partitions),
    ];
    let resting: Vec<String> =
        list("nodes").iter().filter(|node| rests(node)).map(|node| text(&node["name"])).collect();
    if !resting.is_empty() {
        parts[0] += &format!(
            "\nIn maintenance, without clients: {}. `leveret ctl revive` there, or its restart, ends that.\n",
            resting.join(", ")
        );
    }
    parts[0] += &builds(told);
    match guarantees.len() {
        1 => parts.push(title("Queues") + "(none)\n"),
        _ => parts.push(title("Queues") + &aligned(&guarantees)),
    }
    let lacking = queues["under_replicated"].as_u64().unwrap_or_default();
    if lacking > 0 {
        let mut rows = vec![row(&["queue", "virtual host", "partition", "a confirm means"])];
        let first = queues["under_replicated_first"].as_array().cloned().unwrap_or_default();
        rows.extend(
            // A node of an earlier build does not say where it is.
            first.iter().map(|queue| {
                let partition = queue["partition"].as_u64().map_or("-".to_owned(), |number| number.to_string());
                vec![text(&queue["name"]), text(&queue["vhost"]), partition, text(&queue["guarantee"])]
            }),
        );
        let more = lacking.saturating_sub(first.len() as u64);
        let more = if more > 0 { format!("and {more} more\n") } else { String::new() };
        parts.push(title(&format!("Under-replicated: {lacking}")) + &aligned(&rows) + &more);
    }
    let missing: Vec<String> = list("missing").iter().map(text).collect();
    if !missing.is_empty() {
        parts.push(format!("Not heard of: {}. What is shown of them is what others know.\n", missing.join(", ")));
    }
    parts.join("\n")
}

/// What is to be seen of an upgrade under way: who runs which build, and whom new rules wait for.
fn builds(told: &Value) -> String {
    let list = |from: &Value, name: &str| from[name].as_array().cloned().unwrap_or_default();
    let mut lines = String::new();
    let mut by_build: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in list(told, "nodes").iter().filter(|node| node["leveret_version"].is_string()) {
        by_build.entry(text(&node["leveret_version"])).or_default().push(text(&node["name"]));
    }
    if by_build.len() > 1 {
        let each = by_build.iter().map(|(build, nodes)| format!("{} {build}", nodes.join(", ")));
        let _ = write!(lines, "\nThey run different builds: {}.\n", each.collect::<Vec<_>>().join("; "));
    }
    let version = &told["machine_version"];
    let behind: Vec<String> = list(version, "behind").iter().map(text).collect();
    if !behind.is_empty() {
        let (current, newest, behind) = (&version["current"], &version["newest"], behind.join(", "));
        let _ = writeln!(
            lines,
            "\nMachine version {current}: {newest} comes by itself once {behind} can do it, with a newer build."
        );
    }
    lines
}

/// Whether a node that runs is in maintenance mode.
fn rests(node: &Value) -> bool {
    node["running"] == true && node["being_drained"] == true
}

/// A member in a few letters: `n2 ok`, `n3 behind (+1200)`, `n3 unreachable`, `n4 joining (+40)`.
fn member(member: &Value) -> String {
    let name = text(&member["node"]);
    let state = text(&member["state"]);
    match (member["in_sync"] == true, member["lag"].as_u64()) {
        (true, Some(0)) | (true, None) => format!("{name} ok"),
        (true, Some(lag)) => format!("{name} ok (+{lag})"),
        // It has no vote before it has caught up.
        (false, lag) if state == "follower" && member["voter"] == false => {
            format!("{name} joining{}", lag.map(|lag| format!(" (+{lag})")).unwrap_or_default())
        }
        (false, Some(lag)) if state == "follower" || state == "leader" => format!("{name} behind (+{lag})"),
        _ => format!("{name} {state}"),
    }
}

/// A member that was taken from its group and still votes: `n3 leaving`, `n3 leaving (unreachable, its vote is needed)`.
fn leaver(member: &Value) -> String {
    let away = (member["state"] == "unreachable").then_some("unreachable");
    let needed = (member["vote_needed"] == true).then_some("its vote is needed");
    let more: Vec<&str> = away.into_iter().chain(needed).collect();
    let name = text(&member["node"]);
    if more.is_empty() { format!("{name} leaving") } else { format!("{name} leaving ({})", more.join(", ")) }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_lacks_copies_is_told_and_what_is_well_is_short() {
        let member = |node: &str, state: &str, lag: Option<u64>, in_sync: bool| json!({"node": node, "state": state, "lag": lag, "in_sync": in_sync});
        let told = json!({
            "cluster_name": "demo", "asked": "n1", "missing": ["n3"],
            "machine_version": {"current": 10, "newest": 11, "behind": ["n2", "n3"]},
            "nodes": [
                {"name": "n1", "running": true, "leveret_version": "0.2.0 (b)", "uptime": 7_300_000, "mem_used": 3 << 20, "disk_free": 9_u64 << 30, "leads": 1, "alarms": ["memory"]},
                {"name": "n2", "running": true, "leveret_version": "0.1.0 (a)", "being_drained": true, "uptime": 5_000, "mem_used": 1 << 20, "disk_free": 9_u64 << 30, "leads": 0, "alarms": []},
                {"name": "n3", "running": false, "uptime": null, "mem_used": null, "disk_free": null, "leads": 0, "alarms": []},
            ],
            "partitions": [{
                "partition": 1, "kind": "queues", "queues": 17, "leader": "n1", "term": 4, "commit": 900, "in_sync": 1, "of": 3,
                "members": [member("n1", "leader", Some(0), true), member("n2", "follower", Some(1500), false), member("n3", "unreachable", None, false), json!({"node": "n6", "state": "follower", "lag": 40, "in_sync": false, "voter": false}), json!({"node": "n7", "state": "follower", "lag": null, "in_sync": false, "voter": false})],
                "leaving": [
                    {"node": "n4", "state": "follower", "vote_needed": false},
                    {"node": "n5", "state": "unreachable", "vote_needed": true},
                ],
            }],
            "queues": {
                "guarantees": [{"guarantee": "1 of 3 copies synced to disk", "queues": 2}],
                "under_replicated": 2, "under_replicated_first": [{"name": "q", "vhost": "/", "partition": 1, "guarantee": "1 of 3 copies synced to disk"}],
            },
        });
        let expected = "\
Cluster demo, as n1 sees it

node  state                    up         memory  disk free  leads  alarms
n1    running                  2 h 1 min  3 MiB   9216 MiB   1      memory
n2    running, in maintenance  5 s        1 MiB   9216 MiB   0      -
n3    unreachable              -          -       -          0      -

In maintenance, without clients: n2. `leveret ctl revive` there, or its restart, ends that.

They run different builds: n2 0.1.0 (a); n1 0.2.0 (b).

Machine version 10: 11 comes by itself once n2, n3 can do it, with a newer build.

Partitions

partition  queues  leader  term  commit  copies in sync  members (entries behind)
1          17      n1      4     900     1 of 3          n1 ok, n2 behind (+1500), n3 unreachable, n6 joining (+40), n7 joining, n4 leaving, n5 leaving (unreachable, its vote is needed)

Queues

queues  a confirm means
2       1 of 3 copies synced to disk

Under-replicated: 2

queue  virtual host  partition  a confirm means
q      /             1          1 of 3 copies synced to disk
and 1 more

Not heard of: n3. What is shown of them is what others know.
";
        assert_eq!(lines(&told, false), expected);
    }
}

//! What goes before and after an upgrade of one node: it is emptied, and taken back.
//!
//! Invariant: `drain` comes back once others lead all that they can, and not when it was told. Where there are
//! no others it says so at once.

use super::replicas;
use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{Failure, SOFTWARE};
use crate::form::Shown;
use crate::tool::UPGRADE;
use crate::verb::{Section, VERB, Verb};
use serde_json::Value;
use std::time::{Duration, Instant};

const STEP: Verb = Verb { tools: UPGRADE, section: Section::Cluster, ..VERB };
/// How long others may take to lead what the node led, and how often it is looked how far they are.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it is looked whether the node is not needed any more.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// So many queues are named that are waited for.
const NAMED_MAX: usize = 10;

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "drain",
        about: "Puts the node into maintenance mode: it closes its clients, lets none in, and others lead its queues",
        run: drain,
        ..STEP
    },
    Verb { name: "revive", about: "Ends maintenance mode", run: revive, ..STEP },
    Verb {
        name: "await_online_quorum_plus_one",
        about: "Waits until no queue loses its majority with the node",
        timeout_s: 120,
        run: await_quorum_plus_one,
        ..STEP
    },
    Verb {
        name: "post_upgrade",
        about: "Spreads the leaders of queues over the nodes: a leader leads all queues of a partition",
        run: |cx| replicas::spread(cx, "all"),
        ..STEP
    },
];

fn drain(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!(
        "Will put node {node} into maintenance mode. The node will no longer serve any client traffic!"
    ));
    cx.api()?.put(&path(&["nodes", &node, "maintenance"]), &Value::Null)?.good()?;
    let cluster = cluster(cx)?;
    if !has_heirs(&cluster, &node) {
        return Ok(match is_alone(&cluster) {
            true => Shown::Done,
            false => Shown::Line(skipping(&cluster, &node)),
        });
    }
    let left = hand_over(cx, &node)?;
    match left.is_empty() {
        true => Ok(Shown::Done),
        false => Err(Failure::error(
            SOFTWARE,
            format!(
                "Node {node} serves no clients any more, and still leads partitions {}: no other node that can be reached has all of \
                 them, with a majority that keeps up (see `leveret cluster status`). They stand still once it stops, until a majority of their nodes is there",
                left.join(", ")
            ),
        )),
    }
}

/// What becomes of the partitions of a node in whose stead none can lead.
fn skipping(cluster: &Value, node: &str) -> String {
    let partitions = |count: usize| if count == 1 { "1 partition".to_owned() } else { format!("{count} partitions") };
    let (led, own) = (leads(cluster, node).len(), leads_alone(cluster, node));
    let shared = match led {
        0 => format!(
            "Node {node} leads nothing now of what other nodes have copies of, which stands still until a majority of their nodes is there"
        ),
        led => format!(
            "Node {node} goes on leading {} of which other nodes have copies, which stand still once it stops, until a majority of their \
             nodes is there",
            partitions(led)
        ),
    };
    let own = match own {
        0 => String::new(),
        own => format!(
            ". It goes on leading {} of which it has the only copy, as of classic queues; what lives there waits for it once it stops",
            partitions(own)
        ),
    };
    format!("Skipping the transfer of leaders: no other node runs that is not in maintenance mode. {shared}{own}")
}

/// Waits until others lead what a node that is drained led. Gives the partitions that it still leads when time is
/// over.
pub(super) fn hand_over(cx: &Cx<'_>, node: &str) -> Result<Vec<String>, Failure> {
    let until = Instant::now() + HANDED_OVER_WITHIN;
    loop {
        let left = leads(&cluster(cx)?, node);
        if left.is_empty() || Instant::now() >= until {
            return Ok(left);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Who is there and who leads what.
fn cluster(cx: &Cx<'_>) -> Result<Value, Failure> {
    cx.api()?.get("leveret/cluster?columns=nodes,partitions")?.good()
}

fn rows(cluster: &Value, field: &str) -> Vec<Value> {
    cluster[field].as_array().cloned().unwrap_or_default()
}

/// Whether there is no other node.
fn is_alone(cluster: &Value) -> bool {
    rows(cluster, "nodes").len() < 2
}

/// Whether another node could lead in a node's stead.
fn has_heirs(cluster: &Value, node: &str) -> bool {
    let is_heir = |other: &Value| other["name"] != node && other["running"] == true && other["being_drained"] != true;
    rows(cluster, "nodes").iter().any(is_heir)
}

/// How many partitions a node leads of which it has the only copy.
fn leads_alone(cluster: &Value, node: &str) -> usize {
    let partitions = rows(cluster, "partitions");
    partitions.iter().filter(|partition| partition["leader"] == node && partition["of"] == 1).count()
}

/// The partitions that a node leads while another one could: others have copies of them.
fn leads(cluster: &Value, node: &str) -> Vec<String> {
    let partitions = rows(cluster, "partitions");
    let led = partitions.iter().filter(|partition| partition["leader"] == node && partition["of"] != 1);
    led.map(|partition| partition["partition"].to_string()).collect()
}

fn revive(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let node = cx.node()?;
    cx.banner(&format!("Will revive node {node} from maintenance. The node will now serve client traffic!"));
    cx.api()?.delete(&path(&["nodes", &node, "maintenance"]))?.good().map(|_| Shown::Done)
}

/// The queues that a check names, and what no waiting mends.
fn critical_queues(answer: &Value) -> Option<String> {
    let queues = rows(answer, "queues");
    let names: Vec<String> = queues.iter().take(NAMED_MAX).map(|queue| text(&queue["readable_name"])).collect();
    let more = match queues.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| {
        format!(
            "{}{more}; a queue of one or two copies never has one to spare: let it grow (rabbitmq-queues grow), or restart \
             without this check",
            names.join(", ")
        )
    })
}

fn await_quorum_plus_one(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let timeout = cx.timeout().unwrap_or(Duration::from_secs(120));
    cx.banner(&format!(
        "Will wait for a quorum + 1 of nodes to be online for all quorum queues for {} seconds...",
        timeout.as_secs()
    ));
    if items(cx.api()?.get("nodes?columns=name")?.good()?)?.len() < 2 {
        let text = "Target node seems to be the only one in a single node cluster, the command does not apply";
        return Ok(Shown::Line(text.to_owned()));
    }
    // The request itself has all of that time, and is not to be the one that runs out of it.
    let until = Instant::now() + timeout.saturating_sub(ASK_EVERY * 2);
    let mut told = String::new();
    loop {
        let answer = cx.api()?.get("health/checks/node-is-quorum-critical")?;
        if answer.status != 503 {
            return answer.good().map(|_| Shown::Done);
        }
        let (time_is_up, answer) = (Instant::now() >= until, answer.json());
        let waits_for = critical_queues(&answer);
        if time_is_up {
            let late = "time is up, no quorum + 1 online replicas came online for at least some quorum queues";
            let why =
                format!("{}{}", text(&answer["reason"]), waits_for.map_or(String::new(), |it| format!(" ({it})")));
            return Err(Failure::error(SOFTWARE, format!("{late}: {why}")));
        }
        if let Some(waits_for) = waits_for.filter(|waits_for| *waits_for != told) {
            cx.say(&format!("Waiting for {waits_for}"));
            told = waits_for;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

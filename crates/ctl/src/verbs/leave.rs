//! A node that leaves its cluster for good, while it runs: it is drained, forgotten by the others, and ends.
//!
//! Invariant: what cannot be done is refused before any client is closed. Where it stops in the middle, the node is
//! what it was, or drained; the same command goes on from there.

mod waiting;

use self::waiting::Waiting;
use super::upgrade::hand_over;
use crate::api::{Answer, Api, path};
use crate::context::Cx;
use crate::failure::{Failure, SOFTWARE, UNAVAILABLE};
use crate::form::Shown;
use crate::process::Process;
use crate::tool::LEVERET;
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long it may take until partitions that change their leaders have one.
const LED_WITHIN: Duration = Duration::from_secs(10);
/// How long its end may take once it is forgotten, and how often it is looked.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const COPIES_LOOK_EVERY_MAX: Duration = Duration::from_secs(2);

/// What to do where nobody here knows whether it has left.
const ASK: &str = "Ask another node (`leveret cluster status`): where it is still a member, start it on its folder, and let it leave \
                   again";

pub(super) const VERBS: &[Verb] = &[Verb {
    name: "leave_cluster",
    tools: LEVERET,
    section: Section::Cluster,
    // Copies take as long as they take.
    timeout_s: 0,
    about: "Has the node leave its cluster for good: it is drained, the others forget it, and it ends",
    run: leave,
    ..VERB
}];

fn leave(cx: &Cx<'_>) -> Result<Shown, Failure> {
    // A leave that was broken off before leaves a node behind that does not run, and nobody here knows whether it left.
    let begun = cx.node().and_then(|node| Ok((node, cx.api()?)));
    let (node, api) = begun.map_err(|failure| match failure.is_unanswered() {
        true => {
            let text =
                format!("{}\nIf it was about to leave before, the leave may be half done. {ASK}\n", failure.text);
            Failure { text, ..failure }
        }
        false => failure,
    })?;
    let process = api.place.pid.and_then(Process::of);
    cx.banner(&format!("Node {node} leaves its cluster ..."));
    let left = walk(cx, api, &node, process.as_ref());
    match left {
        // Somebody ended it, or it was forgotten and its answer was lost: whoever takes the one for the other throws a
        // folder away that counts. What was asked last tells nothing of that.
        Err(failure) if failure.is_unanswered() && has_ended(cx, process.as_ref(), LOOK_EVERY) => Err(Failure::error(
            UNAVAILABLE,
            format!(
                "Node {node} ended before it said whether its cluster has forgotten it: the leave may be half done. {ASK}"
            ),
        )),
        left => left,
    }
}

/// All steps of it, in their order.
fn walk(cx: &Cx<'_>, api: &Api, node: &str, process: Option<&Process>) -> Result<Shown, Failure> {
    let at = path(&["leveret", "nodes", node, "leave"]);
    let maintenance = path(&["nodes", node, "maintenance"]);
    let was_drained = api.get(&path(&["nodes", node]))?.good()?["being_drained"] == true;
    let rests = || format!("Node {node} was drained before, and serves no clients until `leveret ctl revive`");
    match settled(LED_WITHIN, || api.get(&at))?.good() {
        Err(failure) if was_drained => return Err(failure.and(&rests())),
        answered => answered?,
    };
    api.put(&maintenance, &Value::Null)?.good()?;
    let handed = give_away(cx, api, node).and_then(|()| hand_over(cx, node));
    let asked = handed.and_then(|left| match left.is_empty() {
        true => settled(LED_WITHIN, || api.post(&at, &json!({}))),
        false => Err(Failure::error(
            SOFTWARE,
            format!("Node {node} still leads partitions {}: no other node has all of them", left.join(", ")),
        )),
    });
    let refused = match asked {
        Ok(answer) => answer.good().err(),
        Err(failure) if failure.is_unanswered() => return Err(failure),
        Err(failure) => Some(failure),
    };
    if let Some(failure) = refused {
        if was_drained {
            return Err(failure.and(&rests()));
        }
        // It is as it was before.
        api.delete(&maintenance)?.good()?;
        return Err(failure.and(&format!("Node {node} stays in its cluster, and serves clients again")));
    }
    if !has_ended(cx, process, ENDS_WITHIN) {
        return Err(Failure::error(
            SOFTWARE,
            format!(
                "The cluster has forgotten node {node}, which has not ended within {} s: stop it",
                ENDS_WITHIN.as_secs()
            ),
        ));
    }
    Ok(Shown::Line(format!(
        "Node {node} has left its cluster and ended. Its data folder is of no more use to it: to come back it joins anew, with an empty one \
         (`leveret cluster join`)"
    )))
}

/// Other nodes get what would go with this one.
fn give_away(cx: &Cx<'_>, api: &Api, node: &str) -> Result<(), Failure> {
    let at = path(&["leveret", "nodes", node, "give-away"]);
    let (mut before, mut told, mut pause) = (Value::Null, false, LOOK_EVERY);
    let mut waits = Waiting::new(node, Instant::now());
    loop {
        let waiting = api.post(&at, &json!({}))?.good()?["waiting"].take();
        let rows = waiting.as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            return Ok(());
        }
        if !told {
            let queues: u64 = rows.iter().filter_map(|row| row["queues"].as_u64()).sum();
            let text = "Other nodes get copies of what would go with it, or catch up with theirs";
            let partitions = rows.len();
            cx.banner(&format!("{text}: queues {queues}, in partitions {partitions} ..."));
            told = true;
        }
        let now = Instant::now();
        if let Some(said) = waits.look(&waiting, now) {
            cx.banner(&said);
        }
        if let Some(why) = waits.stalled(&waiting, now) {
            return Err(Failure::error(SOFTWARE, why));
        }
        // What is next can be done at once.
        if steps(&waiting) != steps(&before) {
            pause = LOOK_EVERY;
        }
        before = waiting;
        std::thread::sleep(pause);
        // Each request has all nodes asked.
        pause = (2 * pause).min(COPIES_LOOK_EVERY_MAX);
    }
}

/// The partitions that are waited for, and what for.
fn steps(waiting: &Value) -> Vec<(&Value, &Value)> {
    waiting.as_array().into_iter().flatten().map(|row| (&row["partition"], &row["step"])).collect()
}

/// Asks again while the node says that it cannot be done yet.
fn settled(within: Duration, mut ask: impl FnMut() -> Result<Answer, Failure>) -> Result<Answer, Failure> {
    let until = Instant::now() + within;
    loop {
        let answer = ask()?;
        if answer.status != 503 || Instant::now() >= until {
            return Ok(answer);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits for its end.
fn has_ended(cx: &Cx<'_>, process: Option<&Process>, within: Duration) -> bool {
    if let Some(process) = process {
        return process.wait(Some(within));
    }
    // On another machine: it is gone when nothing answers.
    let until = Instant::now() + within;
    loop {
        match cx.api().and_then(|api| api.get("whoami")) {
            Err(_) => return true,
            Ok(_) if Instant::now() >= until => return false,
            Ok(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

//! A node's beginning and end: wait for it, stop it.
//!
//! Invariant: `stop` and `shutdown` come back when the process is gone and not when it was told;
//! waiting ends when the node answers, and not when its file is there.

use crate::api::Api;
use crate::context::Cx;
use crate::failure::{DATA, Failure, SOFTWARE, TOO_LATE, UNAVAILABLE, USAGE};
use crate::form::Shown;
use crate::options::{Switch, Takes, flag};
use crate::process::Process;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

const NODE: Verb = Verb { section: Section::Nodes, ..VERB };
/// Between two looks at something that is not there yet.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long one look may take: a node that hangs is looked at again.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// As RabbitMQ's tool waits.
const WAIT_S: u64 = 300;

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "ping",
        tools: CTL | DIAGNOSTICS,
        section: Section::Monitoring,
        about: "Tells whether the node answers",
        run: ping,
        ..VERB
    },
    Verb {
        name: "await_startup",
        tools: CTL | DIAGNOSTICS,
        about: "Waits until the node answers",
        timeout_s: WAIT_S,
        run: await_startup,
        ..NODE
    },
    Verb {
        name: "wait",
        tools: CTL | DIAGNOSTICS,
        usage: "[<pidfile>] [--pid|-P <pid>]",
        about: "Waits until the node of this process answers, and fails if the process ends before",
        words: (0, 1),
        switches: &[Switch { name: "pid", short: Some('P'), takes: Takes::Number, about: "the process" }],
        timeout_s: 10,
        run: wait,
        ..NODE
    },
    Verb {
        name: "await_online_nodes",
        section: Section::Cluster,
        usage: "<count>",
        about: "Waits until so many nodes of the cluster run",
        words: (1, 1),
        timeout_s: WAIT_S,
        run: await_nodes,
        ..VERB
    },
    Verb {
        name: "stop",
        usage: "[<pidfile>]",
        about: "Ends the node in order, as SIGTERM does, and waits for its process",
        words: (0, 1),
        timeout_s: 0,
        run: |cx| stop(cx, "Stopping and halting node", true),
        ..NODE
    },
    Verb {
        name: "shutdown",
        usage: "[--wait]",
        about: "Ends the node in order and waits for its process; --no-wait does not wait",
        switches: &[flag("wait", "wait for the end of the process, as it is without"), flag("no-wait", "do not")],
        timeout_s: 0,
        run: shutdown,
        ..NODE
    },
];

fn ping(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let wanted = crate::place::wanted_node(cx.options);
    let timeout = cx.timeout().unwrap_or_default().as_millis();
    let found = cx.found();
    // Said before it is told that the node is not there.
    let node = match (&found, wanted) {
        (Ok((api, _)), _) => api.node_shown().to_owned(),
        (Err(_), Some(wanted)) => wanted,
        (Err(failure), None) => return Err(failure.clone()),
    };
    cx.say(&format!("Will ping {node}. This only checks if its management API answers. Timeout: {timeout} ms."));
    match found {
        // As of one that runs: it lives.
        Ok(_) => Ok(Shown::Line("Ping succeeded".to_owned())),
        Err(failure) => {
            let why =
                failure.text.lines().find_map(|line| line.strip_prefix("  * ")).unwrap_or(&failure.text).to_owned();
            let text = format!("Failed to connect and authenticate to {node} in {timeout} ms\n{why}");
            Err(Failure::error(UNAVAILABLE, text))
        }
    }
}

/// A node that answers now, if there is one. Its file may appear, and change, at any time.
fn look(cx: &Cx<'_>, left: Duration) -> Result<Api, Failure> {
    let api = Api::new(crate::place::find(cx.options)?, cx.verb.name, Some(left.min(LOOK_TIMEOUT)))?;
    let answer = api.get("whoami")?;
    if let Some(why) = answer.booting() {
        return Err(crate::place::unable(Some(api.node_shown()), &why, "wait for longer"));
    }
    answer.good()?;
    Ok(api)
}

/// Looks until `found` gives something; it is told how long it may take. Errors: what the last look
/// found, when time is over.
fn look_until<T>(cx: &Cx<'_>, mut found: impl FnMut(Duration) -> Result<T, Failure>) -> Result<T, Failure> {
    let until = cx.timeout().map(|timeout| Instant::now() + timeout);
    loop {
        let left = until.map_or(LOOK_TIMEOUT, |until| until.saturating_duration_since(Instant::now()));
        match found(left) {
            Ok(found) => return Ok(found),
            // More time changes nothing.
            Err(failure) if failure.code == USAGE || failure.code == SOFTWARE => return Err(failure),
            Err(failure) if until.is_some_and(|until| Instant::now() >= until) => return Err(failure),
            Err(_) => {
                let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
                std::thread::sleep(left.min(LOOK_EVERY));
            }
        }
    }
}

fn await_startup(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let mut known = None;
    let found = look_until(cx, |left| {
        look(cx, left).inspect_err(|failure| {
            if failure.code == UNAVAILABLE {
                known = Some(failure.text.clone());
            }
        })
    });
    found.map(|_| Shown::Done).map_err(|failure| match failure.code {
        // It is there and hangs, or the last look had no time left.
        TOO_LATE => Failure { text: known.unwrap_or_else(|| late(cx)), ..failure },
        // That a node is not there is, after a wait, that it took too long; why is told.
        UNAVAILABLE => Failure { code: TOO_LATE, ..failure },
        _ => failure,
    })
}

/// What is said when time is over.
fn late(cx: &Cx<'_>) -> String {
    let timeout = cx.timeout().unwrap_or_default().as_millis();
    format!(
        "Error: operation {} on {} timed out. Timeout value used: {timeout}",
        cx.verb.name,
        crate::place::meant(cx.options)
    )
}

fn wait(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let late = || Failure::plain(TOO_LATE, late(cx));
    // No longer waiting would help, and to RabbitMQ's tool that is a node that is not there.
    let failed = |failure: Failure| Failure {
        code: if failure.code == SOFTWARE { UNAVAILABLE } else { failure.code },
        ..failure
    };
    let file = cx.options.words.first();
    let pid = match (cx.options.number("pid"), file) {
        (Some(_), Some(_)) => return Err(Failure::argument(USAGE, "Cannot specify both pid and pidfile")),
        (None, None) => return Err(Failure::argument(USAGE, "\"No pid or pidfile specified\"")),
        (Some(pid), None) => u32::try_from(pid).map_err(|_| Failure::argument(USAGE, "no process has this number"))?,
        (None, Some(file)) => {
            cx.say(&format!("Waiting for pid file '{file}' to appear"));
            let pid = look_until(cx, |_| read_pid(Path::new(file))).map_err(|failure| match failure.code {
                UNAVAILABLE => late(),
                _ => failed(failure),
            })?;
            cx.say(&format!("pid is {pid}"));
            pid
        }
    };
    cx.say(&format!("Waiting for the node to answer while OS process '{pid}' is running"));
    let process = Process::of(pid);
    let found = look_until(cx, |left| {
        if process.as_ref().is_none_or(|process| !process.runs()) {
            return Err(Failure::error(SOFTWARE, format!("process_not_running: {pid}")));
        }
        look(cx, left)
    });
    let api = found.map_err(|failure| match failure.code {
        UNAVAILABLE | TOO_LATE => late(),
        _ => failed(failure),
    })?;
    cx.say(&format!("Node '{}' is running", api.node_shown()));
    Ok(Shown::Done)
}

fn read_pid(path: &Path) -> Result<u32, Failure> {
    match std::fs::read_to_string(path) {
        // Written, and not as a whole yet.
        Ok(text) if text.trim().is_empty() => Err(Failure::refused("the pid file is empty")),
        Ok(text) => {
            let pid = text.trim().parse().ok();
            pid.ok_or_else(|| Failure::error(SOFTWARE, format!("{}: garbage_in_pid_file", path.display())))
        }
        Err(error) => Err(Failure::refused(error.to_string())),
    }
}

fn await_nodes(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let count = cx.word(0).parse().ok().filter(|count: &usize| *count > 0);
    let count = count.ok_or_else(|| Failure::argument(DATA, "Bad argument: Argument must be a positive integer"))?;
    let node = cx.node()?;
    let timeout = cx.timeout().unwrap_or_default().as_secs();
    cx.banner(&format!(
        "Will wait for at least {count} nodes to join the cluster of {node}. Timeout: {timeout} seconds."
    ));
    let enough = |left| -> Result<(), Failure> {
        let nodes = crate::context::items(look(cx, left)?.get("nodes")?.good()?)?;
        let running = nodes.iter().filter(|node| node["running"] == true).count();
        if running >= count { Ok(()) } else { Err(Failure::refused(format!("{running} nodes run"))) }
    };
    look_until(cx, enough).map(|()| Shown::Done).map_err(|_| {
        let text = format!("Error: timed out while waiting. Not enough nodes joined {node}'s cluster.");
        Failure::error(SOFTWARE, text)
    })
}

fn shutdown(cx: &Cx<'_>) -> Result<Shown, Failure> {
    stop(cx, "Shutting down RabbitMQ node", !cx.options.flag("no-wait"))
}

/// The process is held before it is told to end, so that its end is not mistaken for another's. One that is
/// on its way up ends too.
fn stop(cx: &Cx<'_>, doing: &str, waits: bool) -> Result<Shown, Failure> {
    let (api, _) = cx.found()?;
    let node = match &api.place.node {
        Some(node) => node.clone(),
        None => cx.node()?,
    };
    cx.say(&format!("{doing} {node} ..."));
    let Some(pid) = api.place.pid else {
        let text = "a node is stopped on its own machine, by leveret ctl stop or SIGTERM";
        return Err(Failure::error(UNAVAILABLE, text));
    };
    let process = Process::of(pid);
    match api.post("leveret/stop", &json!({})) {
        Ok(answer) => drop(answer.good()?),
        // It may have gone before it could answer.
        Err(failure) if process.as_ref().is_none_or(Process::runs) => return Err(failure),
        Err(_) => {}
    }
    if !waits {
        return Ok(Shown::Done);
    }
    let is_gone = match &process {
        Some(process) => process.wait(cx.timeout()),
        // Another process namespace, as with containers: it is gone when nothing answers.
        None => look_until(cx, |left| match look(cx, left) {
            Ok(_) => Err(Failure::refused("it still answers")),
            Err(_) => Ok(()),
        })
        .is_ok(),
    };
    if !is_gone {
        return Err(api.too_late());
    }
    cx.say(&format!("Node {} stopped", api.node_shown()));
    Ok(Shown::Done)
}

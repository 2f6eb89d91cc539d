//! Readable traces: each file under `scripts/` says what is done and, after `---`, what then
//! happened.
//!
//! A block is commands, `---`, the trace, and an empty line; `#` begins a comment. A command is a
//! word and its arguments; several on a line are separated by ` ; `. `UPDATE_SCRIPTS=1` writes the
//! traces anew: read the difference.
//!
//! | command | does |
//! |---|---|
//! | `cluster members=3 [leader=1] [seed=1] [cache=bytes] [message=bytes] [heartbeat=ticks]` | a new group of voters n1..; with a leader, its election is not shown |
//! | `join n4` | a member that knows nothing |
//! | `campaign n1`, `tick n1 [times]`, `hold n1 [times]` | the last: ticks that bring no heartbeat |
//! | `propose n1 text`, `change n1 voter=n4 learner=n2 remove=n1`, `transfer n1 n2`, `read n1 7` | |
//! | `sync [n1..]` | everyone, or these |
//! | `deliver [n1->n2[:Kind] ..]` | all that is on its way, or between these; not the answers |
//! | `drop [n1->n2[:Kind] ..]` | the same, lost |
//! | `keep [n1->n2[:Kind] ..]`, `replay` | keeps a copy of these; lets the copies arrive |
//! | `unreachable n1 n2` | n1 is told that a message to n2 was lost |
//! | `run` | syncs and delivers until nothing moves |
//! | `crash n1 [kept]`, `restart n1 [replay]`, `checkpoint n1 [behind]` | |
//! | `sent n1 n2 ok`, `sent n1 n2 failed` | how a snapshot transfer ended |
//! | `progress n1` | what a leader knows of the others |

mod cluster;

use std::fmt::Write as _;
use std::path::PathBuf;

use cluster::Cluster;
use consensus::{Change, Config, NodeId, Refused};

#[test]
fn scripts_say_what_happens() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let update = std::env::var_os("UPDATE_SCRIPTS").is_some();
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry of the folder").path())
        .collect();
    names.sort();
    assert!(names.len() >= 8, "the scripts are found");
    let mut wrong = Vec::new();
    for name in names {
        let text = std::fs::read_to_string(&name).expect("a readable script");
        let actual = run_script(&text);
        if actual != text {
            if update {
                std::fs::write(&name, &actual).expect("a writable script");
            } else {
                wrong.push(format!("{}:\n{}", name.display(), difference(&text, &actual)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs a script and returns it with the traces as they really are.
fn run_script(text: &str) -> String {
    let mut out = String::new();
    let mut cluster = None;
    for (place, block) in text.trim_end().split("\n\n").enumerate() {
        if place > 0 {
            out.push('\n');
        }
        let mut trace = String::new();
        for line in block.lines().take_while(|line| *line != "---") {
            writeln!(out, "{line}").expect("writing to a string");
            if line.starts_with('#') {
                continue;
            }
            for command in line.split(" ; ") {
                run_command(&mut cluster, command.trim(), &mut trace);
            }
        }
        if !trace.is_empty() || block.contains("\n---") {
            out.push_str("---\n");
            out.push_str(&trace);
        }
    }
    out
}

fn run_command(slot: &mut Option<Cluster>, command: &str, trace: &mut String) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (name, arguments) = words.split_first().expect("a command");
    if *name == "cluster" {
        *slot = Some(new_cluster(arguments));
    } else {
        let cluster = slot.as_mut().expect("a script begins with `cluster`");
        run_on(cluster, name, arguments, trace);
    }
    trace.push_str(&slot.as_mut().expect("there is a cluster").take_trace());
}

fn new_cluster(arguments: &[&str]) -> Cluster {
    let value = |key: &str, default: u64| {
        let found = arguments.iter().find_map(|argument| argument.strip_prefix(key)?.strip_prefix('='));
        found.map_or(default, |text| text.parse().expect("a number"))
    };
    let or = |value: u64, default: usize| if value == 0 { default } else { value as usize };
    let (cache, message, heartbeat) = (value("cache", 0), value("message", 0), value("heartbeat", 0));
    let config = move |config: Config| Config {
        cache_bytes_max: or(cache, config.cache_bytes_max),
        message_bytes_max: or(message, config.message_bytes_max),
        heartbeat_ticks: or(heartbeat, config.heartbeat_ticks),
        ..config
    };
    let mut cluster = Cluster::new(value("members", 3), value("seed", 1), config);
    let leader = value("leader", 0);
    if leader > 0 {
        cluster.with(NodeId(leader), |group| group.campaign());
        cluster.run();
        // Followers learn what is committed.
        for _ in 0..or(heartbeat, 1) {
            cluster.with(NodeId(leader), |group| group.tick());
        }
        cluster.run();
        cluster.take_trace();
    }
    cluster
}

fn run_on(cluster: &mut Cluster, name: &str, arguments: &[&str], trace: &mut String) {
    let first = arguments.first().copied();
    let node = || parse_node(first.expect("a member"));
    let number = |at: usize, default: usize| arguments.get(at).map_or(default, |text| text.parse().expect("a number"));
    match name {
        "join" => cluster.add_joining(node()),
        "campaign" => {
            if cluster.with(node(), |group| group.campaign()) == Some(false) {
                cluster.say(node(), "does not stand");
            }
        }
        "tick" | "hold" => {
            for _ in 0..number(1, 1) {
                cluster.with(node(), |group| {
                    if name == "hold" {
                        group.hold_heartbeat();
                    }
                    group.tick();
                });
            }
        }
        "propose" => {
            let outcome = cluster.propose(node(), arguments[1..].join(" ")).expect("it is up");
            refused(cluster, node(), outcome.map(drop));
        }
        "change" => {
            let changes: Vec<Change> = arguments[1..].iter().map(|text| parse_change(text)).collect();
            let outcome = cluster.change(node(), &changes).expect("it is up");
            refused(cluster, node(), outcome.map(drop));
        }
        "transfer" => {
            let to = parse_node(arguments[1]);
            let outcome = cluster.with(node(), |group| group.transfer_leadership(to)).expect("it is up");
            refused(cluster, node(), outcome);
        }
        "read" => {
            let context = number(1, 0) as u64;
            let outcome = cluster.with(node(), |group| group.read_index(context)).expect("it is up");
            refused(cluster, node(), outcome);
        }
        "sync" if arguments.is_empty() => cluster.nodes().into_iter().for_each(|node| cluster.sync(node)),
        "sync" => arguments.iter().for_each(|node| cluster.sync(parse_node(node))),
        "deliver" if arguments.is_empty() => cluster.deliver_all(),
        "drop" if arguments.is_empty() => cluster.network.clear(),
        "replay" => std::mem::take(&mut cluster.kept).into_iter().for_each(|message| cluster.deliver(message)),
        "unreachable" => {
            let to = parse_node(arguments[1]);
            cluster.with(node(), |group| group.report_unreachable(to));
        }
        "deliver" | "drop" | "keep" => {
            for pair in arguments {
                let (pair, kind) = pair.split_once(':').map_or((*pair, None), |(pair, kind)| (pair, Some(kind)));
                let (from, to) = pair.split_once("->").expect("n1->n2");
                let (from, to) = (parse_node(from), parse_node(to));
                let all = std::mem::take(&mut cluster.network);
                let (chosen, rest) = all.into_iter().partition(|message| {
                    let is_kind = kind.is_none_or(|kind| kind == format!("{:?}", message.kind()));
                    is_kind && message.from() == from && message.to() == to
                });
                cluster.network = rest;
                let chosen: Vec<_> = chosen;
                match name {
                    "deliver" => chosen.into_iter().for_each(|message| cluster.deliver(message)),
                    "keep" => {
                        cluster.kept.extend(chosen.iter().cloned());
                        cluster.network.extend(chosen);
                    }
                    _ => {}
                }
            }
        }
        "run" => cluster.run(),
        "crash" => cluster.crash(node(), number(1, 0)),
        "restart" => {
            cluster.checks.restarted(node());
            cluster.restart(node(), arguments.get(1) == Some(&"replay"));
        }
        "checkpoint" => cluster.checkpoint(node(), number(1, 0) as u64),
        "sent" => {
            let to = parse_node(arguments[1]);
            cluster.with(node(), |group| group.snapshot_sent(to, arguments[2] == "ok"));
        }
        "progress" => {
            let group = cluster.members[&node()].group.as_ref().expect("it is up");
            for progress in group.progress() {
                let paused = if progress.is_paused { " paused" } else { "" };
                writeln!(
                    trace,
                    "{} match={} next={} {:?}{paused}",
                    progress.node, progress.matched, progress.next, progress.state
                )
                .expect("writing to a string");
            }
        }
        _ => panic!("{name} is no command"),
    }
}

fn refused(cluster: &mut Cluster, node: NodeId, outcome: Result<(), Refused>) {
    if let Err(why) = outcome {
        cluster.say(node, format!("refuses: {why}"));
    }
}

fn parse_node(text: &str) -> NodeId {
    NodeId(text.strip_prefix('n').expect("n1").parse().expect("a number"))
}

fn parse_change(text: &str) -> Change {
    let (what, node) = text.split_once('=').expect("voter=n1");
    let node = parse_node(node);
    match what {
        "voter" => Change::Voter(node),
        "learner" => Change::Learner(node),
        "remove" => Change::Remove(node),
        _ => panic!("{what} is no change of members"),
    }
}

fn difference(expected: &str, actual: &str) -> String {
    let at = expected.lines().zip(actual.lines()).take_while(|(left, right)| left == right).count();
    let around = |text: &str| text.lines().skip(at.saturating_sub(3)).take(12).collect::<Vec<_>>().join("\n");
    format!("line {}\n--- the file says\n{}\n--- what happened\n{}\n", at + 1, around(expected), around(actual))
}

//! What no compiler checks: file headers, who may know whom, leftovers, paths and hosts of one
//! machine.
//!
//! Invariant: the map of crates in `docs/ARCHITECTURE.md` and `LAYERS` below say the same.

use std::path::Path;

use crate::shell;

/// A file is expected to hold one noun; near this many lines there is a second one in it.
const LINES_MAX: usize = 900;

/// A crate, the crates of ours it may depend on, and words its code may not contain outside of
/// tests.
struct Layer {
    name: &'static str,
    may_know: &'static [&'static str],
    banned: &'static [&'static str],
}

/// Sockets, files, threads and clocks, which a sans-io crate is told about and never asks.
const OUTSIDE: &[&str] = &["std::net", "std::fs", "std::thread", "tokio::", "Instant::now", "SystemTime", "std::env"];

/// The same, and maps whose order differs between two runs of the same log.
const OUTSIDE_AND_DISORDER: &[&str] = &[
    "std::net",
    "std::fs",
    "std::thread",
    "tokio::",
    "Instant::now",
    "SystemTime",
    "std::env",
    "std::collections::HashMap",
    "std::collections::HashSet",
    "RandomState",
    "rand::rng",
    "thread_rng",
];

/// The same, and random numbers of its own.
const OUTSIDE_AND_CHANCE: &[&str] = &[
    "std::net",
    "std::fs",
    "std::thread",
    "tokio::",
    "Instant::now",
    "SystemTime",
    "std::env",
    "RandomState",
    "rand::rng",
    "thread_rng",
    "getrandom",
];

const LAYERS: &[Layer] = &[
    Layer { name: "amqp", may_know: &[], banned: OUTSIDE },
    Layer { name: "broker", may_know: &["amqp"], banned: OUTSIDE_AND_DISORDER },
    Layer { name: "consensus", may_know: &[], banned: OUTSIDE },
    Layer { name: "storage", may_know: &[], banned: &["std::net", "tokio::", "SystemTime"] },
    Layer { name: "partition", may_know: &["amqp", "broker", "consensus", "storage"], banned: OUTSIDE_AND_DISORDER },
    Layer { name: "session", may_know: &["amqp", "broker", "partition"], banned: OUTSIDE_AND_CHANCE },
    Layer { name: "node", may_know: &["broker", "consensus", "partition", "storage"], banned: OUTSIDE_AND_CHANCE },
    Layer { name: "json_once", may_know: &[], banned: OUTSIDE_AND_CHANCE },
    Layer { name: "tokens", may_know: &["broker", "json_once"], banned: OUTSIDE_AND_CHANCE },
    Layer { name: "switch", may_know: &["amqp", "broker", "node", "partition", "session"], banned: OUTSIDE_AND_CHANCE },
    Layer {
        name: "server",
        may_know: &["amqp", "broker", "json_once", "node", "partition", "session", "storage", "switch", "tokens"],
        banned: &[],
    },
    Layer {
        name: "sim",
        may_know: &["amqp", "broker", "consensus", "node", "partition", "session", "storage", "switch"],
        banned: &["std::net", "tokio::", "SystemTime"],
    },
    Layer { name: "testbed", may_know: &[], banned: &["tokio::", "SystemTime"] },
    Layer { name: "page", may_know: &[], banned: OUTSIDE },
    Layer { name: "sizing", may_know: &["page", "testbed"], banned: &["tokio::", "SystemTime"] },
    Layer { name: "bench", may_know: &["amqp", "page", "testbed"], banned: &[] },
    Layer { name: "ctl", may_know: &["json_once"], banned: &["tokio::"] },
    Layer { name: "management", may_know: &["amqp", "broker", "json_once", "partition", "server"], banned: &[] },
    Layer { name: "leveret", may_know: &["bench", "ctl", "management", "server", "sizing", "storage"], banned: &[] },
];

/// Only this crate may know raft-rs: the library behind it can then be swapped in one place.
const RAFT_LIVES_IN: &str = "consensus";

/// Looks at every tracked file.
pub(crate) fn run() -> Result<(), String> {
    let listed = shell::output("git", &["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = listed.ok_or("git ls-files failed: tidy looks at tracked files")?;
    let mut wrong = Vec::new();
    let mut files = 0;
    for path in listed.lines() {
        // Not text, or removed and not committed yet.
        let Ok(text) = std::fs::read_to_string(shell::root().join(path)) else { continue };
        files += 1;
        wrong.extend(leftovers(path, &text));
        if path.ends_with(".rs") {
            wrong.extend(source(path, &text));
        }
        if let Some(name) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) {
            wrong.extend(manifest(path, name, &text)?);
        }
    }
    if wrong.is_empty() {
        println!("tidy: ok, {files} files");
        return Ok(());
    }
    wrong.sort();
    Err(wrong.join("\n"))
}

/// Paths of one machine and hosts of one registry, in any file.
fn leftovers(path: &str, text: &str) -> Vec<String> {
    let generated = ["Cargo.lock", "fuzz/Cargo.lock", "deny.toml"].contains(&path) || path.ends_with("go.sum");
    if generated || path == "xtask/src/tidy.rs" {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let at = at + 1;
        if ["/root/", "/home/", "/Users/"].iter().any(|folder| starts_a_path(line, folder)) {
            wrong.push(format!("{path}:{at}: a path of somebody's machine: {}", line.trim()));
        }
        if names_a_registry(line) {
            wrong.push(format!("{path}:{at}: a registry's host: {}", line.trim()));
        }
    }
    wrong
}

/// True when `folder` occurs as an absolute path, and not in the middle of another one.
fn starts_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && !"._-}/~*".contains(before))
    })
}

fn names_a_registry(line: &str) -> bool {
    let hosts = ["debian", "maven", "npmjs", "golang", "pypi", "crates"];
    line.match_indices("://").any(|(at, _)| {
        let rest = &line[at + 3..];
        let host = rest.split(|c: char| !c.is_alphanumeric() && !".-".contains(c)).next().unwrap_or_default();
        rest[host.len()..].starts_with('/') && hosts.iter().any(|word| host.contains(word))
    })
}

/// What is left undone, or switched off. In two halves each, so that this file keeps the rule too.
const LEFTOVERS: [&str; 4] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("#[", "ignore")];

/// A Rust file's header, size, leftovers, and what its crate may not know.
fn source(path: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if !text.starts_with("//!") {
        wrong.push(format!("{path}:1: opens without `//!`: what does the file hold, and what always holds in it?"));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        wrong.push(format!("{path}: {lines} lines; is there a second noun in it?"));
    }
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for leftover in LEFTOVERS {
            if code.contains(leftover) {
                wrong.push(format!("{path}:{}: {leftover}: left undone, or switched off", at + 1));
            }
        }
    }
    let name = path.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")).map(|(name, _)| name);
    let Some(layer) = name.and_then(|name| LAYERS.iter().find(|layer| layer.name == name)) else { return wrong };
    if Path::new(path).file_stem().is_some_and(|stem| stem == "tests") {
        return wrong;
    }
    let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    for (at, line) in production.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for word in layer.banned.iter().filter(|word| code.contains(**word)) {
            wrong.push(format!("{path}:{}: {} may not know of {word}", at + 1, layer.name));
        }
    }
    wrong
}

/// A crate's dependencies on our other crates.
fn manifest(path: &str, name: &str, text: &str) -> Result<Vec<String>, String> {
    let manifest: toml::Table = text.parse().map_err(|why| format!("{path}: {why}"))?;
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
        return Ok(vec![format!("{path}: the crate is not on the map: give it a layer in xtask/src/tidy.rs")]);
    };
    let ours = |dependency: &str| LAYERS.iter().any(|layer| layer.name == dependency);
    let mut wrong = Vec::new();
    for dependency in dependencies.keys() {
        if ours(dependency) && !layer.may_know.contains(&dependency.as_str()) {
            wrong.push(format!("{path}: {name} may not know {dependency}: a new arrow is a decision (docs/decisions)"));
        }
        if dependency.starts_with("raft") && name != RAFT_LIVES_IN {
            wrong.push(format!("{path}: only {RAFT_LIVES_IN} may know {dependency}"));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untidy_sources_are_named() {
        let source_of = |text: &str| source("crates/broker/src/x.rs", text).len();
        assert_eq!(source_of("//! Purpose.\nfn f() {}\n"), 0);
        assert_eq!(source_of("fn f() {}\n"), 1);
        for leftover in LEFTOVERS {
            assert_eq!(source_of(&format!("//! P\nfn f() {{ {leftover}) }}\n")), 1, "{leftover}");
        }
        assert_eq!(source_of("//! P\nuse std::collections::HashMap;\n"), 1);
        assert_eq!(source_of("//! P\n// std::net is not for us\n#[cfg(test)]\nmod tests {\n use std::fs;\n}\n"), 0);
        assert_eq!(source_of(&format!("//! P\n{}", "\n".repeat(LINES_MAX))), 1);
    }

    #[test]
    fn forbidden_arrows_are_named() {
        let of = |name: &str, text: &str| manifest("Cargo.toml", name, text).expect("it parses").len();
        assert_eq!(of("amqp", "[dependencies]\nbytes.workspace = true\n"), 0);
        assert_eq!(of("amqp", "[dependencies]\nbroker.workspace = true\n"), 1);
        assert_eq!(of("partition", "[dependencies]\nconsensus.workspace = true\nraft.workspace = true\n"), 1);
        assert_eq!(of("novel", ""), 1);
    }

    #[test]
    fn machine_paths_and_registry_hosts_are_named() {
        let of = |text: &str| leftovers("README.md", text).len();
        assert_eq!(of("see docs/home/order and https://example.org/crates/"), 0);
        assert_eq!(of(concat!("cd /ro", "ot/project")), 1);
        assert_eq!(of(concat!("[x](https://index.cra", "tes.io/abc)")), 1);
        assert_eq!(of("written once per /proc/PID/io and $HOME/home/"), 0);
    }
}

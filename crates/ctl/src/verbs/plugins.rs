//! `rabbitmq-plugins`, as far as it has a meaning: nothing is plugged in here. What some of
//! RabbitMQ's plug-ins do is built in, and is enabled for good.

use crate::context::Cx;
use crate::failure::{Failure, SOFTWARE, UNAVAILABLE};
use crate::form::{Rows, Shown};
use crate::options::{Switch, flag, short};
use crate::term::{Cell, atom};
use crate::tool::PLUGINS;
use crate::verb::{ANY, Section, VERB, Verb};

/// Plug-ins of RabbitMQ whose work is done here without one.
const BUILT_IN: [&str; 11] = [
    "rabbitmq_auth_mechanism_ssl",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_delayed_message_exchange",
    "rabbitmq_event_exchange",
    "rabbitmq_jms_topic_exchange",
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_prometheus",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
    "rabbitmq_sharding",
];

const PLUGIN: Verb = Verb { tools: PLUGINS, section: Section::Plugins, ..VERB };
const LIST_SWITCHES: &[Switch] = &[
    short('v', flag("verbose", "a row for each")),
    short('m', flag("minimal", "names alone")),
    short('E', flag("enabled", "those that are enabled")),
    short('e', flag("implicitly-enabled", "those that are enabled, by themselves or for others")),
];

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list",
        usage: "[pattern] [--verbose] [--minimal] [--enabled] [--implicitly-enabled]",
        about: "Lists RabbitMQ's plug-ins whose work is done here",
        words: (0, 1),
        switches: LIST_SWITCHES,
        run: list,
        ..PLUGIN
    },
    Verb {
        name: "is_enabled",
        usage: "<plugin1> [ <plugin2> ...]",
        about: "Succeeds if what these plug-ins do is done here",
        words: (1, ANY),
        run: is_enabled,
        ..PLUGIN
    },
    Verb {
        name: "enable",
        usage: "<plugin1> [ <plugin2> ...] [--offline] [--online]",
        about: "Succeeds if what these plug-ins do is done here, which it is for good",
        words: (1, ANY),
        switches: &[flag("offline", "without the node"), flag("online", "with the node")],
        run: enable,
        ..PLUGIN
    },
    Verb {
        name: "disable",
        usage: "<plugin1> [ <plugin2> ...]",
        about: "Refused: what is built in cannot be taken out",
        words: (1, ANY),
        switches: &[flag("all", "all of them"), flag("offline", "without the node"), flag("online", "with the node")],
        run: |_| {
            let text =
                "what these plug-ins do is built in and cannot be taken out; --management none serves no HTTP API";
            Err(Failure::error(UNAVAILABLE, text))
        },
        ..PLUGIN
    },
];

/// Names are matched as far as RabbitMQ's scripts do: a part of a name.
fn list(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let pattern = cx.word(0);
    cx.say(&format!("Listing plugins with pattern \"{}\" ...", if pattern.is_empty() { ".*" } else { pattern }));
    let part = pattern.trim_start_matches('^').trim_end_matches('$').trim_matches(['.', '*']);
    let found: Vec<&str> = BUILT_IN.into_iter().filter(|name| name.contains(part)).collect();
    let version = env!("CARGO_PKG_VERSION");
    if cx.form.is_some() {
        let row =
            |name: &&str| vec![Cell::text(*name), Cell::text(version), Cell::text("enabled"), Cell::Value(true.into())];
        return Ok(Rows::new(&["name", "version", "enabled", "running"]).with(found.iter().map(row)));
    }
    if cx.options.flag("minimal") {
        return Ok(Shown::Raw(found.iter().map(|name| format!("{name}\n")).collect()));
    }
    if !cx.options.flag("silent") {
        cx.say(" Configured: E = explicitly enabled; e = implicitly enabled\n | Status: * = running, built in\n |/");
    }
    let width = found.iter().map(|name| name.len()).max().unwrap_or(0);
    Ok(Shown::Raw(found.iter().map(|name| format!("[E*] {name:width$} {version}\n")).collect()))
}

/// Those of the words that are not done here.
fn unknown(cx: &Cx<'_>) -> Vec<String> {
    cx.options.words.iter().filter(|name| !BUILT_IN.contains(&name.as_str())).cloned().collect()
}

fn is_enabled(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let names = cx.options.words.join(", ");
    let (plugins, are) = if cx.options.words.len() == 1 { ("Plugin", "is") } else { ("Plugins", "are") };
    let node = cx.node()?;
    cx.banner(&format!("Asking node {node} if {} {names} {are} enabled...", plugins.to_lowercase()));
    let missing = unknown(cx);
    if missing.is_empty() {
        return Ok(Shown::Line(format!("{plugins} {names} {are} enabled on node {node}")));
    }
    let text = format!(
        "{plugins} {} {are} not enabled on node {node}. Enabled plugins and dependencies: {}",
        missing.join(", "),
        BUILT_IN.join(", ")
    );
    Err(Failure::error(UNAVAILABLE, text))
}

fn enable(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let names = cx.options.words.join("\n");
    match cx.options.flag("offline") {
        true => cx.say(&format!("Enabling plugins:\n{names}")),
        false => cx.banner(&format!("Enabling plugins on node {}:\n{names}", cx.node()?)),
    }
    let missing: Vec<String> = unknown(cx).iter().map(|name| format!(":{}", atom(name))).collect();
    if !missing.is_empty() {
        let text = format!(
            "{{:plugins_not_found, [{}]}}\nnothing is plugged in here; built in is what these do: {}",
            missing.join(", "),
            BUILT_IN.join(", ")
        );
        return Err(Failure::error(SOFTWARE, text));
    }
    Ok(Shown::Line("Plugin configuration unchanged.".to_owned()))
}

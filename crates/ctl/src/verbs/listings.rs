//! Lists of queues, exchanges, bindings, connections, channels and consumers, by columns.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::Failure;
use crate::form::{Rows, Shown};
use crate::options::{flag, number};
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{ANY, Section, VERB, Verb};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const LIST: Verb = Verb { tools: CTL | DIAGNOSTICS, section: Section::Monitoring, words: (0, ANY), ..VERB };
const OF_VHOST: &str = "[--vhost <vhost>] [--no-table-headers] [<column> ...]";
/// How long a queue may not answer before it is called unresponsive.
const UNRESPONSIVE_AFTER_MS: u64 = 15_000;

#[rustfmt::skip]
const QUEUE_COLUMNS: &[&str] = &[
    "name", "durable", "auto_delete", "arguments", "policy", "operator_policy", "effective_policy_definition", "pid",
    "owner_pid", "exclusive", "exclusive_consumer_pid", "exclusive_consumer_tag", "messages_ready",
    "messages_unacknowledged", "messages", "messages_delayed", "messages_dlx", "messages_ready_ram", "messages_unacknowledged_ram",
    "messages_ram", "messages_persistent", "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged",
    "message_bytes_ram", "message_bytes_persistent", "head_message_timestamp", "disk_reads", "disk_writes", "consumers",
    "consumer_utilisation", "consumer_capacity", "memory", "slave_pids", "synchronised_slave_pids", "state", "type",
    "leader", "members", "online", "leveret_joining", "leveret_value_at_risk", "leveret_value_at_risk_cap",
    "leveret_repeats_dropped",
];
const EXCHANGE_COLUMNS: &[&str] = &["name", "type", "durable", "auto_delete", "internal", "arguments", "policy"];
const BINDING_COLUMNS: &[&str] =
    &["source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments"];
#[rustfmt::skip]
const CONNECTION_COLUMNS: &[&str] = &[
    "pid", "name", "port", "host", "peer_port", "peer_host", "ssl", "ssl_protocol", "ssl_key_exchange", "ssl_cipher",
    "ssl_hash", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity", "state", "channels", "protocol",
    "auth_mechanism", "user", "vhost", "timeout", "frame_max", "channel_max", "client_properties", "recv_oct",
    "recv_cnt", "send_oct", "send_cnt", "send_pend", "connected_at", "user_provided_name",
];
#[rustfmt::skip]
const CHANNEL_COLUMNS: &[&str] = &[
    "pid", "connection", "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count",
    "messages_unacknowledged", "messages_uncommitted", "acks_uncommitted", "messages_unconfirmed", "prefetch_count",
    "global_prefetch_count", "state",
];
const CONSUMER_COLUMNS: &[&str] = &[
    "queue_name",
    "channel_pid",
    "consumer_tag",
    "ack_required",
    "prefetch_count",
    "active",
    "activity_status",
    "arguments",
];
/// As RabbitMQ's tool has them.
const UNRESPONSIVE_COLUMNS: &[&str] = &["name", "durable", "auto_delete", "arguments", "pid", "recoverable_slaves"];

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_queues",
        usage: "[--vhost <vhost>] [--online] [--offline] [--local] [--no-table-headers] [<column>, ...]",
        about: "Lists queues with what is in them",
        switches: &[
            flag("online", "those that are served"),
            flag("offline", "those whose partition is damaged and not served"),
            flag("local", "those whose node this is"),
        ],
        columns: QUEUE_COLUMNS,
        run: queues,
        ..LIST
    },
    Verb {
        name: "list_exchanges",
        usage: OF_VHOST,
        about: "Lists exchanges",
        columns: EXCHANGE_COLUMNS,
        run: exchanges,
        ..LIST
    },
    Verb {
        name: "list_bindings",
        usage: OF_VHOST,
        about: "Lists bindings",
        columns: BINDING_COLUMNS,
        run: bindings,
        ..LIST
    },
    Verb {
        name: "list_connections",
        usage: "[--no-table-headers] [<column> ...]",
        about: "Lists connections",
        columns: CONNECTION_COLUMNS,
        run: connections,
        ..LIST
    },
    Verb {
        name: "list_channels",
        usage: "[--no-table-headers] [<column> ...]",
        about: "Lists channels",
        columns: CHANNEL_COLUMNS,
        run: channels,
        ..LIST
    },
    Verb {
        name: "list_consumers",
        usage: OF_VHOST,
        about: "Lists consumers",
        columns: CONSUMER_COLUMNS,
        run: consumers,
        ..LIST
    },
    Verb {
        name: "list_unresponsive_queues",
        usage: "[--local] [--queue-timeout <milliseconds>] [--vhost <vhost>] [--no-table-headers] [<column> ...]",
        about: "Lists queues that have not answered a request for 15 seconds",
        switches: &[flag("local", "those whose node this is"), number("queue-timeout", "for so many milliseconds")],
        columns: UNRESPONSIVE_COLUMNS,
        run: unresponsive,
        ..LIST
    },
];

/// Rows of what the API lists below `at`; a virtual host that is not there has nothing in it.
fn rows(
    cx: &Cx<'_>,
    at: &str,
    columns: &[&str],
    is_shown: impl Fn(&Value) -> bool,
    cell: impl Fn(&Value, &str) -> Cell,
) -> Result<Shown, Failure> {
    let found = cx.api()?.get(at)?.good_or_none()?;
    let found = items(found.unwrap_or_else(|| json!([])))?;
    let row = |item: &Value| columns.iter().map(|column| cell(item, column)).collect();
    Ok(Rows::new(columns).with(found.iter().filter(|item| is_shown(item)).map(row)))
}

/// A field as it is, or as what its name says that it is.
fn field(item: &Value, column: &str) -> Cell {
    match (column, &item[column]) {
        ("arguments" | "client_properties", Value::Object(_)) => Cell::Table(item[column].clone()),
        ("effective_policy_definition", value @ Value::Object(_)) => Cell::text(value.to_string()),
        (_, Value::Array(items)) => Cell::Words(items.iter().map(text).collect()),
        (_, value) => Cell::Value(value.clone()),
    }
}

fn queues(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["name", "messages"])?;
    let vhost = cx.vhost();
    if let Some(timeout) = cx.timeout() {
        cx.banner(&format!("Timeout: {:.1} seconds ...", timeout.as_secs_f64()));
    }
    cx.banner(&format!("Listing queues for vhost {vhost} ..."));
    let [online, offline, local] = ["online", "offline", "local"].map(|name| cx.options.flag(name));
    let node = if local { cx.node()? } else { String::new() };
    let is_shown = |queue: &Value| {
        let is_down = queue["state"] == "down";
        (!local || queue["node"] == node) && (online == offline || is_down == offline)
    };
    rows(cx, &path(&["queues", vhost]), &columns, is_shown, field)
}

fn exchanges(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["name", "type"])?;
    cx.banner(&format!("Listing exchanges for vhost {} ...", cx.vhost()));
    rows(cx, &path(&["exchanges", cx.vhost()]), &columns, |_| true, field)
}

fn bindings(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(BINDING_COLUMNS)?;
    cx.banner(&format!("Listing bindings for vhost {}...", cx.vhost()));
    let cell = |binding: &Value, column: &str| match column {
        "source_name" => field(binding, "source"),
        "source_kind" => Cell::text("exchange"),
        "destination_name" => field(binding, "destination"),
        "destination_kind" => field(binding, "destination_type"),
        other => field(binding, other),
    };
    rows(cx, &path(&["bindings", cx.vhost()]), &columns, |_| true, cell)
}

/// What stands for Erlang's process id: the connection's name in one word, so that scripts can take
/// it from here and give it to `close_connection`.
pub(super) fn pid(node: &str, name: &str) -> String {
    format!("<{node}.{}>", name.replace(" -> ", "->"))
}

/// The name of the connection that such an id is of; another text is taken for the name itself.
pub(super) fn name_of_pid<'a>(pid: &'a str, node: &str) -> std::borrow::Cow<'a, str> {
    let inner = pid.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    match inner.and_then(|inner| inner.strip_prefix(node)?.strip_prefix('.')) {
        Some(name) => name.replacen("->", " -> ", 1).into(),
        None => pid.into(),
    }
}

/// The id of a channel, by its connection's and its number.
fn channel_pid(node: &Value, connection: &Value, number: &Value) -> Cell {
    Cell::text(pid(&text(node), &format!("{}.{number}", text(connection))))
}

fn connections(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["user", "peer_host", "peer_port", "state"])?;
    cx.banner("Listing connections ...");
    let cell = |connection: &Value, column: &str| match column {
        "pid" => Cell::text(pid(&text(&connection["node"]), &text(&connection["name"]))),
        "protocol" if connection["protocol"] == "AMQP 0-9-1" => Cell::text("{0,9,1}"),
        other => field(connection, other),
    };
    rows(cx, "connections", &columns, |_| true, cell)
}

fn channels(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["pid", "user", "consumer_count", "messages_unacknowledged"])?;
    cx.banner("Listing channels ...");
    let cell = |channel: &Value, column: &str| {
        let connection = &channel["connection_details"]["name"];
        match column {
            "pid" => channel_pid(&channel["node"], connection, &channel["number"]),
            "connection" => Cell::text(pid(&text(&channel["node"]), &text(connection))),
            other => field(channel, other),
        }
    };
    rows(cx, "channels", &columns, |_| true, cell)
}

fn consumers(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns =
        ["queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments"];
    let columns = cx.columns(&columns)?;
    cx.banner(&format!("Listing consumers in vhost {} ...", cx.vhost()));
    let cell = |consumer: &Value, column: &str| {
        let channel = &consumer["channel_details"];
        match column {
            "queue_name" => field(&consumer["queue"], "name"),
            "channel_pid" => channel_pid(&channel["node"], &channel["connection_name"], &channel["number"]),
            other => field(consumer, other),
        }
    };
    rows(cx, &path(&["consumers", cx.vhost()]), &columns, |_| true, cell)
}

/// Those that somebody waits for.
fn unresponsive(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["name"])?;
    let after = cx.options.number("queue-timeout").unwrap_or(UNRESPONSIVE_AFTER_MS);
    cx.banner(&format!("Listing unresponsive queues for vhost {} ...", cx.vhost()));
    let found = items(cx.api()?.get("leveret/waiting")?.good()?)?;
    let names = late(&found, cx.vhost(), after);
    let local = cx.options.flag("local");
    if names.is_empty() || !local && columns.iter().all(|column| *column == "name") {
        let row = |name: String| columns.iter().map(|_| Cell::text(name.clone())).collect();
        return Ok(Rows::new(&columns).with(names.into_iter().map(row)));
    }
    let node = if local { cx.node()? } else { String::new() };
    let is_shown = |queue: &Value| names.contains(&text(&queue["name"])) && (!local || queue["node"] == node);
    rows(cx, &path(&["queues", cx.vhost()]), &columns, is_shown, field)
}

/// The queues of a virtual host for which something has waited so long.
fn late(found: &[Value], vhost: &str, after_ms: u64) -> BTreeSet<String> {
    let waited = |item: &Value| item["waited_ms"].as_u64().unwrap_or(0);
    let is_late = |item: &&Value| item["vhost"] == vhost && item["queue"].is_string() && waited(item) >= after_ms;
    found.iter().filter(is_late).map(|item| text(&item["queue"])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresponsive_queues_have_columns_and_are_listed_once() {
        let verb = VERBS.iter().find(|verb| verb.name == "list_unresponsive_queues").expect("it is there");
        assert!(verb.words.1 >= verb.columns.len() && verb.columns.contains(&"name") && verb.columns.contains(&"pid"));
        assert!(verb.switches.iter().any(|switch| switch.name == "local"));
        let waits = |queue: &str, waited_ms: u64| json!({ "vhost": "/", "queue": queue, "waited_ms": waited_ms });
        let found =
            [waits("b", 20_000), waits("a", 15_000), waits("b", 16_000), waits("c", 14_999), json!({ "vhost": "/" })];
        assert_eq!(late(&found, "/", UNRESPONSIVE_AFTER_MS).into_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert!(late(&found, "other", 0).is_empty());
    }

    #[test]
    fn an_id_is_one_word_and_leads_back_to_the_connection() {
        let id = pid("rabbit@box", "127.0.0.1:4 -> 127.0.0.1:5672");
        assert_eq!(id, "<rabbit@box.127.0.0.1:4->127.0.0.1:5672>");
        assert_eq!(name_of_pid(&id, "rabbit@box"), "127.0.0.1:4 -> 127.0.0.1:5672");
        assert_eq!(name_of_pid("127.0.0.1:4 -> 127.0.0.1:5672", "rabbit@box"), "127.0.0.1:4 -> 127.0.0.1:5672");
        assert_eq!(name_of_pid("<0.1.0>", "rabbit@box"), "<0.1.0>");
    }
}

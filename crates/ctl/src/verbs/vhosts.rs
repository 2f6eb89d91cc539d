//! Virtual hosts.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{Failure, USAGE};
use crate::form::{Rows, Shown};
use crate::options::text as text_option;
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{ANY, Section, VERB, Verb};
use serde_json::{Map, Value, json};

const VHOST: Verb = Verb { section: Section::VirtualHosts, ..VERB };
const DESCRIBED: &[crate::options::Switch] = &[
    text_option("description", "what it is for"),
    text_option("tags", "tags with commas between them"),
    text_option("default-queue-type", "the type of queues that do not name one: classic or quorum"),
];

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_vhosts",
        tools: CTL | DIAGNOSTICS,
        section: Section::Access,
        usage: "[--no-table-headers] [<column> ...]",
        about: "Lists virtual hosts",
        words: (0, ANY),
        columns: &["name", "description", "tags", "default_queue_type", "tracing", "cluster_state", "metadata"],
        run: list,
        ..VERB
    },
    Verb {
        name: "add_vhost",
        usage: "<vhost> [--description <description>] [--tags \"<tag1>,<tag2>,<...>\"] [--default-queue-type <type>]",
        about: "Makes a virtual host",
        words: (1, 1),
        switches: DESCRIBED,
        run: add,
        ..VHOST
    },
    Verb {
        name: "delete_vhost",
        usage: "<vhost>",
        about: "Deletes a virtual host with everything in it",
        words: (1, 1),
        run: delete,
        ..VHOST
    },
    Verb {
        name: "update_vhost_metadata",
        usage: "<vhost> [--description <description>] [--tags \"<tag1>,<tag2>,<...>\"] [--default-queue-type <type>]",
        about: "Changes the description, the tags or the default queue type of a virtual host",
        words: (1, 1),
        switches: DESCRIBED,
        run: update,
        ..VHOST
    },
    Verb {
        name: "set_vhost_tags",
        usage: "<vhost> <tag> [...]",
        about: "Says which tags a virtual host has",
        words: (1, ANY),
        run: set_tags,
        ..VHOST
    },
    Verb {
        name: "restart_vhost",
        usage: "[--vhost <vhost>]",
        about: "Tells that a virtual host runs: here none stops alone",
        run: restart,
        ..VHOST
    },
    Verb {
        name: "trace_on",
        usage: "[--vhost <vhost>]",
        about: "Begins to publish every message of a virtual host to amq.rabbitmq.trace too, until a restart",
        run: |cx| trace(cx, true),
        ..VHOST
    },
    Verb { name: "trace_off", usage: "[--vhost <vhost>]", about: "Ends that", run: |cx| trace(cx, false), ..VHOST },
];

fn list(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let columns = cx.columns(&["name"])?;
    cx.banner("Listing vhosts ...");
    let found = items(cx.api()?.get("vhosts")?.good()?)?;
    let cell = |vhost: &Value, column: &str| match column {
        "tags" => Cell::Words(vhost["tags"].as_array().into_iter().flatten().map(text).collect()),
        "cluster_state" | "metadata" => Cell::Table(vhost[column].clone()),
        _ => Cell::Value(vhost[column].clone()),
    };
    let row = |vhost: &Value| columns.iter().map(|column| cell(vhost, column)).collect();
    Ok(Rows::new(&columns).with(found.iter().map(row)))
}

/// What the options say of a virtual host.
fn described(cx: &Cx<'_>) -> Map<String, Value> {
    let mut wanted = Map::new();
    for (option, field) in
        [("description", "description"), ("tags", "tags"), ("default-queue-type", "default_queue_type")]
    {
        if let Some(value) = cx.options.text(option) {
            wanted.insert(field.to_owned(), Value::from(value));
        }
    }
    wanted
}

fn need(cx: &Cx<'_>, vhost: &str) -> Result<Value, Failure> {
    cx.api()?.get(&path(&["vhosts", vhost]))?.good_or_none()?.ok_or_else(|| Failure::no_vhost(vhost))
}

fn add(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.name(0, "vhost")?;
    cx.banner(&format!("Adding vhost \"{vhost}\" ..."));
    cx.api()?.put(&path(&["vhosts", vhost]), &described(cx).into())?.good()?;
    Ok(Shown::Done)
}

fn update(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (vhost, wanted) = (cx.name(0, "vhost")?, described(cx));
    if wanted.is_empty() {
        let text = "at least one of --description, --tags and --default-queue-type has to be given";
        return Err(Failure::argument(USAGE, text));
    }
    cx.banner(&format!("Updating metadata of vhost \"{vhost}\" ..."));
    need(cx, vhost)?;
    cx.api()?.put(&path(&["vhosts", vhost]), &wanted.into())?.good()?;
    Ok(Shown::Done)
}

fn delete(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.word(0);
    cx.banner(&format!("Deleting vhost \"{vhost}\" ..."));
    let deleted = cx.api()?.delete(&path(&["vhosts", vhost]))?.good_or_none()?;
    deleted.map(|_| Shown::Done).ok_or_else(|| Failure::no_vhost(vhost))
}

fn set_tags(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (vhost, tags) = (cx.word(0), &cx.options.words[1..]);
    cx.banner(&format!("Setting tags for virtual host \"{vhost}\" to [{}] ...", tags.join(", ")));
    need(cx, vhost)?;
    cx.api()?.put(&path(&["vhosts", vhost]), &json!({ "tags": tags }))?.good()?;
    Ok(Shown::Done)
}

fn restart(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (vhost, node) = (cx.vhost(), cx.node()?);
    cx.banner(&format!("Trying to restart vhost '{vhost}' on node '{node}' ..."));
    need(cx, vhost)?;
    cx.api()?.post(&path(&["vhosts", vhost, "start", &node]), &json!({}))?.good()?;
    Ok(Shown::Line(format!("Vhost '{vhost}' is already running on node '{node}'")))
}

fn trace(cx: &Cx<'_>, on: bool) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("{} tracing for vhost \"{vhost}\" ...", if on { "Starting" } else { "Stopping" }));
    need(cx, vhost)?;
    cx.api()?.put(&path(&["vhosts", vhost]), &json!({ "tracing": on }))?.good()?;
    let text = format!("Trace {} for vhost {vhost}", if on { "enabled" } else { "disabled" });
    Ok(Shown::Told(json!({ "node": cx.node()?, "result": "ok", "value": text }), text))
}

//! Everything at once, for whoever helps.

use crate::context::{Cx, items, text};
use crate::failure::Failure;
use crate::form::{Shown, written};
use crate::options;
use crate::tool::{CTL, DIAGNOSTICS, Tool};
use crate::verb::{Section, VERB, Verb, find};

pub(super) const VERBS: &[Verb] = &[Verb {
    name: "report",
    tools: CTL | DIAGNOSTICS,
    section: Section::Monitoring,
    about: "Shows the status and all lists, for whoever helps; names are in it, passwords are not",
    timeout_s: 600,
    run: report,
    ..VERB
}];

const OF_NODE: [&str; 7] =
    ["status", "cluster_status", "environment", "list_connections", "list_channels", "list_users", "list_vhosts"];
const OF_VHOST: [&str; 7] = [
    "list_queues",
    "list_exchanges",
    "list_bindings",
    "list_consumers",
    "list_permissions",
    "list_policies",
    "list_parameters",
];

fn report(cx: &Cx<'_>) -> Result<Shown, Failure> {
    cx.banner(&format!("Reporting server status of node {} ...\n", cx.node()?));
    for name in OF_NODE {
        part(cx, name, None)?;
    }
    for vhost in items(cx.api()?.get("vhosts?columns=name")?.good()?)? {
        let vhost = text(&vhost["name"]);
        for name in OF_VHOST {
            part(cx, name, Some(&vhost))?;
        }
    }
    Ok(Shown::Done)
}

/// One of the verbs, with the options that say where the node is.
fn part(cx: &Cx<'_>, name: &str, vhost: Option<&str>) -> Result<(), Failure> {
    let Some(verb) = find(Tool::Leveret, name) else { return Ok(()) };
    let mut words = Vec::new();
    for option in ["node", "data-dir", "url", "username", "password", "timeout"] {
        words.extend(cx.options.text(option).map(|value| format!("--{option}={value}")));
    }
    words.extend(vhost.map(|vhost| format!("--vhost={vhost}")));
    let options = options::read(&words, verb.switches);
    let shown = (verb.run)(&cx.for_verb(verb, &options))?;
    crate::output::out(&written(&shown, cx.form, true, crate::output::is_terminal(), ""));
    crate::output::out("\n");
    Ok(())
}

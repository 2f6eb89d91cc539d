//! Parameters of virtual hosts and of the cluster, and the cluster's name.

use crate::api::{Answer, path};
use crate::context::{Cx, items, text};
use crate::failure::Failure;
use crate::form::{Rows, Shown};
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};

const PARAMETER: Verb = Verb { section: Section::Parameters, ..VERB };

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_parameters",
        tools: CTL | DIAGNOSTICS,
        usage: "[--vhost <vhost>] [--no-table-headers]",
        about: "Lists the parameters of a virtual host",
        run: list,
        ..PARAMETER
    },
    Verb {
        name: "set_parameter",
        usage: "[--vhost <vhost>] <component_name> <name> <value>",
        about: "Sets a parameter of a virtual host, in JSON",
        words: (3, 3),
        run: set,
        ..PARAMETER
    },
    Verb {
        name: "clear_parameter",
        usage: "[--vhost <vhost>] <component_name> <name>",
        about: "Takes a parameter of a virtual host away",
        words: (2, 2),
        run: clear,
        ..PARAMETER
    },
    Verb {
        name: "list_global_parameters",
        tools: CTL | DIAGNOSTICS,
        usage: "[--no-table-headers]",
        about: "Lists the parameters of the cluster",
        run: list_global,
        ..PARAMETER
    },
    Verb {
        name: "set_global_parameter",
        usage: "<name> <value>",
        about: "Sets a parameter of the cluster, in JSON",
        words: (2, 2),
        run: set_global,
        ..PARAMETER
    },
    Verb {
        name: "clear_global_parameter",
        usage: "<name>",
        about: "Takes a parameter of the cluster away",
        words: (1, 1),
        run: clear_global,
        ..PARAMETER
    },
    Verb {
        name: "set_cluster_name",
        section: Section::Configuration,
        usage: "<name>",
        about: "Gives the cluster a name, which clients that connect from then on are told",
        words: (1, 1),
        run: set_cluster_name,
        ..VERB
    },
];

/// What RabbitMQ's tool says where there is nothing to take away.
pub(super) fn missing() -> Failure {
    Failure::refused("Parameter does not exist")
}

/// A change that the node checks. Errors: in RabbitMQ's form.
pub(super) fn validated(answer: Answer, vhost: &str) -> Result<(), Failure> {
    match answer.status {
        404 => Err(Failure::refused(format!("Virtual host '{vhost}' does not exist"))),
        _ if answer.is_good() => Ok(()),
        _ => Err(not_valid(&answer)),
    }
}

/// What the node found wrong, in the form of RabbitMQ's tool. Some of it the node says in that form itself.
pub(super) fn not_valid(answer: &Answer) -> Failure {
    let reason = answer.reason();
    let reason = reason.strip_prefix("Validation failed\n\n").unwrap_or(&reason).trim_end();
    Failure::refused(format!("Validation failed\n\n{reason}\n"))
}

/// RabbitMQ keeps policies as parameters, too: those of operators are in this list there, those of users are not.
fn list(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("Listing runtime parameters for vhost \"{vhost}\" ..."));
    if cx.api()?.get(&path(&["vhosts", vhost]))?.good_or_none()?.is_none() {
        return Err(Failure::no_vhost(vhost));
    }
    let found = items(cx.api()?.get("parameters")?.good()?)?;
    let row = |shown: [String; 3]| shown.map(Cell::text).into();
    Ok(Rows::new(&["component", "name", "value"]).with(of_vhost(&found, vhost).map(row)))
}

/// Component, name and value of each parameter of a virtual host.
fn of_vhost<'a>(found: &'a [Value], vhost: &'a str) -> impl Iterator<Item = [String; 3]> + 'a {
    let theirs = found.iter().filter(move |item| item["vhost"] == vhost);
    theirs.map(|item| [text(&item["component"]), text(&item["name"]), item["value"].to_string()])
}

fn set(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (component, name) = (cx.name(0, "the component")?, cx.name(1, "the name of a parameter")?);
    let (value, vhost) = (cx.word(2), cx.vhost());
    cx.banner(&format!(
        "Setting runtime parameter \"{name}\" for component \"{component}\" to \"{value}\" in vhost \"{vhost}\" ..."
    ));
    let answer = cx.api()?.put(&path(&["parameters", component, vhost, name]), &json!({ "value": cx.json(2)? }))?;
    validated(answer, vhost).map(|()| Shown::Done)
}

fn clear(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (component, name) = (cx.name(0, "the component")?, cx.name(1, "the name of a parameter")?);
    let vhost = cx.vhost();
    cx.banner(&format!("Clearing runtime parameter \"{name}\" for component \"{component}\" on vhost \"{vhost}\" ..."));
    let cleared = cx.api()?.delete(&path(&["parameters", component, vhost, name]))?.good_or_none()?;
    cleared.map(|_| Shown::Done).ok_or_else(missing)
}

fn list_global(cx: &Cx<'_>) -> Result<Shown, Failure> {
    cx.banner("Listing global runtime parameters ...");
    let found = items(cx.api()?.get("global-parameters")?.good()?)?;
    let row = |item: &Value| vec![Cell::text(text(&item["name"])), Cell::text(item["value"].to_string())];
    Ok(Rows::new(&["name", "value"]).with(found.iter().map(row)))
}

fn set_global(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (name, value) = (cx.name(0, "the name of a parameter")?, cx.word(1));
    cx.banner(&format!("Setting global runtime parameter \"{name}\" to \"{value}\" ..."));
    let value = json!({ "name": name, "value": cx.json(1)? });
    let answer = cx.api()?.put(&path(&["global-parameters", name]), &value)?;
    validated(answer, "").map(|()| Shown::Done)
}

fn clear_global(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.name(0, "the name of a parameter")?;
    cx.banner(&format!("Clearing global runtime parameter \"{name}\" ..."));
    let cleared = cx.api()?.delete(&path(&["global-parameters", name]))?.good_or_none()?;
    cleared.map(|_| Shown::Done).ok_or_else(missing)
}

fn set_cluster_name(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.name(0, "cluster name")?;
    cx.banner(&format!("Setting cluster name to {name} ..."));
    cx.api()?.put("cluster-name", &json!({ "name": name }))?.good()?;
    Ok(Shown::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_operators_are_listed_beside_limits() {
        let one = |vhost: &str, component: &str, name: &str, value: Value| json!({ "vhost": vhost, "component": component, "name": name, "value": value });
        let found = [
            one("/", "vhost-limits", "limits", json!({ "max-queues": 9 })),
            one("other", "operator_policy", "op2", json!({})),
            one("/", "operator_policy", "op1", json!({ "pattern": ".*" })),
        ];
        let listed: Vec<String> = of_vhost(&found, "/").map(|row| row.join(" ")).collect();
        assert_eq!(listed, ["vhost-limits limits {\"max-queues\":9}", "operator_policy op1 {\"pattern\":\".*\"}"]);
    }
}

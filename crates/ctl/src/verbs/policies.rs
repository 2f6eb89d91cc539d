//! Policies, of users and of operators.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::Failure;
use crate::form::{Rows, Shown};
use crate::options::{Switch, number, text as text_option};
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};

const POLICY: Verb = Verb { section: Section::Policies, ..VERB };
const HOW: &[Switch] = &[
    number("priority", "the one of the highest priority counts; 0 without it"),
    text_option("apply-to", "queues, classic_queues, quorum_queues, exchanges or all"),
];
const SET_USAGE: &str =
    "[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>";

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_policies",
        tools: CTL | DIAGNOSTICS,
        usage: "[--vhost <vhost>] [--no-table-headers]",
        about: "Lists the policies of a virtual host",
        run: |cx| list(cx, USERS),
        ..POLICY
    },
    Verb {
        name: "set_policy",
        usage: SET_USAGE,
        about: "Makes or changes a policy",
        words: (3, 3),
        switches: HOW,
        run: |cx| set(cx, USERS),
        ..POLICY
    },
    Verb {
        name: "clear_policy",
        usage: "[--vhost <vhost>] <name>",
        about: "Deletes a policy",
        words: (1, 1),
        run: |cx| clear(cx, USERS),
        ..POLICY
    },
    Verb {
        name: "list_operator_policies",
        tools: CTL | DIAGNOSTICS,
        usage: "[--vhost <vhost>] [--no-table-headers]",
        about: "Lists the operator policies of a virtual host",
        run: |cx| list(cx, OPERATORS),
        ..POLICY
    },
    Verb {
        name: "set_operator_policy",
        usage: SET_USAGE,
        about: "Makes or changes an operator policy, which bounds what users and their policies say",
        words: (3, 3),
        switches: HOW,
        run: |cx| set(cx, OPERATORS),
        ..POLICY
    },
    Verb {
        name: "clear_operator_policy",
        usage: "[--vhost <vhost>] <name>",
        about: "Deletes an operator policy",
        words: (1, 1),
        run: |cx| clear(cx, OPERATORS),
        ..POLICY
    },
];

/// Whose policies: where they are, and what they are called.
#[derive(Clone, Copy)]
struct Whose {
    path: &'static str,
    one: &'static str,
    all: &'static str,
}

const USERS: Whose = Whose { path: "policies", one: "policy", all: "policies" };
const OPERATORS: Whose = Whose { path: "operator-policies", one: "operator policy", all: "operator policy overrides" };

fn list(cx: &Cx<'_>, whose: Whose) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("Listing {} for vhost \"{vhost}\" ...", whose.all));
    let found = cx.api()?.get(&path(&[whose.path, vhost]))?.good_or_none()?;
    let found = items(found.ok_or_else(|| Failure::no_vhost(vhost))?)?;
    let row = |policy: &Value| {
        let mut row: Vec<Cell> =
            ["vhost", "name", "pattern", "apply-to"].iter().map(|field| Cell::text(text(&policy[*field]))).collect();
        row.push(Cell::text(policy["definition"].to_string()));
        row.push(Cell::Value(policy["priority"].clone()));
        row
    };
    Ok(Rows::new(&["vhost", "name", "pattern", "apply-to", "definition", "priority"]).with(found.iter().map(row)))
}

/// The policy's name. Errors: it is empty, and the path of the API would be that of all policies.
fn named<'a>(cx: &'a Cx<'_>) -> Result<&'a str, Failure> {
    cx.name(0, "the name of a policy")
}

fn set(cx: &Cx<'_>, whose: Whose) -> Result<Shown, Failure> {
    let (name, pattern, definition, vhost) = (named(cx)?, cx.word(1), cx.word(2), cx.vhost());
    let priority = cx.options.number("priority").unwrap_or(0);
    let what = if whose.path == USERS.path { "policy" } else { "operator policy override" };
    cx.banner(&format!(
        "Setting {what} \"{name}\" for pattern \"{pattern}\" to \"{definition}\" with priority \"{priority}\" for \
         vhost \"{vhost}\" ..."
    ));
    let default = if whose.path == USERS.path { "all" } else { "queues" };
    let wanted = json!({
        "pattern": pattern,
        "definition": cx.json(2)?,
        "priority": priority,
        "apply-to": cx.options.text("apply-to").unwrap_or(default),
    });
    let answer = cx.api()?.put(&path(&[whose.path, vhost, name]), &wanted)?;
    super::parameters::validated(answer, vhost).map(|()| Shown::Done)
}

fn clear(cx: &Cx<'_>, whose: Whose) -> Result<Shown, Failure> {
    let (name, vhost) = (named(cx)?, cx.vhost());
    cx.banner(&format!("Clearing {} \"{name}\" on vhost \"{vhost}\" ...", whose.one));
    let cleared = cx.api()?.delete(&path(&[whose.path, vhost, name]))?.good_or_none()?;
    cleared.map(|_| Shown::Done).ok_or_else(super::parameters::missing)
}

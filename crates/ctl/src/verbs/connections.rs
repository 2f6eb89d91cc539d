//! Connections: close one, or many.

use super::listings::{name_of_pid, pid};
use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::Failure;
use crate::form::Shown;
use crate::options::{flag, number};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};
use std::time::Duration;

const CONNECTION: Verb = Verb { section: Section::Operations, ..VERB };

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "close_connection",
        usage: "<pid> <explanation>",
        about: "Closes a connection, by the pid of list_connections or by its name",
        words: (2, 2),
        run: close,
        ..CONNECTION
    },
    Verb {
        name: "close_all_connections",
        usage: "[--vhost <vhost> --limit <limit>] [-n <node> --global] [--per-connection-delay <delay>] <explanation>",
        about: "Closes the connections to a virtual host, or all",
        words: (1, 1),
        switches: &[
            flag("global", "those to all virtual hosts"),
            number("limit", "no more than so many"),
            number("per-connection-delay", "so many milliseconds between two"),
        ],
        timeout_s: 0,
        run: close_all,
        ..CONNECTION
    },
    Verb {
        name: "close_all_user_connections",
        usage: "<username> <explanation>",
        about: "Closes a user's connections",
        words: (2, 2),
        run: close_of_user,
        ..CONNECTION
    },
];

/// The text for whom it concerns, as a header can have it.
fn reason(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

fn end(cx: &Cx<'_>, name: &str, explanation: &str) -> Result<bool, Failure> {
    let answer = cx.api()?.ask("DELETE", &path(&["connections", name]), None, &[("x-reason", &reason(explanation))])?;
    Ok(answer.good_or_none()?.is_some())
}

fn close(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (id, explanation) = (cx.word(0), cx.word(1));
    cx.banner(&format!("Closing connection {id}, reason: {explanation}..."));
    let node = cx.node()?;
    let name = name_of_pid(id, &node);
    if end(cx, &name, explanation)? {
        return Ok(Shown::Done);
    }
    // It may be another node's, and a name of its own may hold an arrow: the list knows.
    if let Some(name) = named_by(&items(cx.api()?.get("connections")?.good()?)?, id)
        && end(cx, &name, explanation)?
    {
        return Ok(Shown::Done);
    }
    // As there: what is wanted of a pid is so once nobody has it, and a name that nobody has is a wrong one.
    if is_pid(id) {
        let text = format!("No node of the cluster has a connection {id}: was it closed already?\n");
        crate::output::err(&crate::term::harmless_lines(&text));
        return Ok(Shown::Done);
    }
    Err(Failure::refused("not_found: list_connections pid name tells which connections there are"))
}

/// Whether these words are the pid of some connection, of ours or of RabbitMQ's: `<node.PEER->HOST>`, `<node.1.2.3>`.
fn is_pid(id: &str) -> bool {
    let Some(inner) = id.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) else { return false };
    let parts: Vec<&str> = inner.rsplitn(4, '.').collect();
    inner.contains("->") || parts.len() == 4 && parts[..3].iter().all(|part| part.parse::<u32>().is_ok())
}

/// The name of the connection that such an id is of, which has the connection's own node in it.
fn named_by(found: &[Value], id: &str) -> Option<String> {
    let is_it = |connection: &&Value| pid(&text(&connection["node"]), &text(&connection["name"])) == id;
    found.iter().find(is_it).map(|connection| text(&connection["name"]))
}

fn close_all(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (vhost, explanation, all) = (cx.vhost(), cx.word(0), cx.options.flag("global"));
    let limit = cx.options.number("limit").filter(|limit| *limit > 0).and_then(|limit| usize::try_from(limit).ok());
    cx.banner(&match (all, limit) {
        (true, None) => {
            format!("Closing all connections to node {} (across all vhosts), reason: {explanation}...", cx.node()?)
        }
        (true, Some(limit)) => {
            format!("Closing {limit} connections to node {} (across all vhosts), reason: {explanation}...", cx.node()?)
        }
        (false, None) => format!("Closing all connections in vhost {vhost}, reason: {explanation}..."),
        (false, Some(limit)) => format!("Closing {limit} connections in vhost {vhost}, reason: {explanation}..."),
    });
    let pause = Duration::from_millis(cx.options.number("per-connection-delay").unwrap_or(0));
    let found = items(cx.api()?.get("connections")?.good()?)?;
    let theirs = found.iter().filter(|connection| all || connection["vhost"] == vhost);
    let mut closed = 0;
    for connection in theirs.take(limit.unwrap_or(usize::MAX)) {
        if closed > 0 {
            std::thread::sleep(pause);
        }
        // One that went by itself meanwhile was not closed by us.
        closed += usize::from(end(cx, &text(&connection["name"]), explanation)?);
    }
    let text = format!("Closed {closed} connections");
    Ok(Shown::Told(json!({ "node": cx.node()?, "result": "ok", "value": text }), text))
}

fn close_of_user(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (user, explanation) = (cx.word(0), cx.word(1));
    cx.banner(&format!("Closing connections of user {user}, reason: {explanation}..."));
    let at = path(&["connections", "username", user]);
    let answer = cx.api()?.ask("DELETE", &at, None, &[("x-reason", &reason(explanation))])?;
    answer.good_or_none().map(|_: Option<Value>| Shown::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_is_told_from_a_name_and_from_what_is_neither() {
        assert!(is_pid("<leveret@n1.127.0.0.1:41822->127.0.0.1:23001>") && is_pid("<rabbit@box.1.2.3>"));
        assert!(!is_pid("127.0.0.1:41822 -> 127.0.0.1:23001") && !is_pid("<0.1.0>") && !is_pid("<a.b.c.d>"));
    }

    #[test]
    fn an_id_leads_to_the_connection_of_whichever_node_it_is() {
        let name = "127.0.0.1:41822 -> 127.0.0.1:23001";
        let found = [
            json!({ "node": "leveret@n2", "name": "127.0.0.1:5 -> 127.0.0.1:23002" }),
            json!({ "node": "leveret@n1", "name": name }),
        ];
        assert_eq!(named_by(&found, "<leveret@n1.127.0.0.1:41822->127.0.0.1:23001>").as_deref(), Some(name));
        assert_eq!(named_by(&found, "<leveret@n2.127.0.0.1:41822->127.0.0.1:23001>"), None);
    }
}

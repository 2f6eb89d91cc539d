//! Permissions: what users may do in virtual hosts, and with which routing keys.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{Failure, NO_USER};
use crate::form::{Rows, Shown};
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};

const ACCESS: Verb = Verb { section: Section::Access, ..VERB };
const LIST: Verb = Verb { tools: CTL | DIAGNOSTICS, ..ACCESS };

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_permissions",
        usage: "[--vhost <vhost>] [--no-table-headers]",
        about: "Lists what users may do in a virtual host",
        run: list,
        ..LIST
    },
    Verb {
        name: "list_user_permissions",
        usage: "[--no-table-headers] <username>",
        about: "Lists what a user may do, by virtual host",
        words: (1, 1),
        run: list_of_user,
        ..LIST
    },
    Verb {
        name: "set_permissions",
        usage: "[--vhost <vhost>] <username> <configure> <write> <read>",
        about: "Says what a user may do in a virtual host, by patterns for names",
        words: (4, 4),
        run: set,
        ..ACCESS
    },
    Verb {
        name: "clear_permissions",
        usage: "[--vhost <vhost>] <username>",
        about: "Takes a user's permissions in a virtual host away",
        words: (1, 1),
        run: clear,
        ..ACCESS
    },
    Verb {
        name: "list_topic_permissions",
        usage: "[--vhost <vhost>] [--no-table-headers]",
        about: "Lists which routing keys users may write and read in a virtual host",
        run: list_topics,
        ..LIST
    },
    Verb {
        name: "list_user_topic_permissions",
        usage: "[--no-table-headers] <username>",
        about: "Lists which routing keys a user may write and read, by virtual host",
        words: (1, 1),
        run: list_topics_of_user,
        ..LIST
    },
    Verb {
        name: "set_topic_permissions",
        usage: "[--vhost <vhost>] <username> <exchange> <write> <read>",
        about: "Says which routing keys a user may write and read at a topic exchange",
        words: (4, 4),
        run: set_topic,
        ..ACCESS
    },
    Verb {
        name: "clear_topic_permissions",
        usage: "[--vhost <vhost>] <username> [<exchange>]",
        about: "Takes a user's topic permissions away, at one exchange or at all",
        words: (1, 2),
        run: clear_topics,
        ..ACCESS
    },
];

/// Rows out of the fields of these names.
fn rows(shown: &[&str], fields: &[&str], found: &[Value]) -> Shown {
    let row = |item: &Value| fields.iter().map(|field| Cell::text(text(&item[*field]))).collect();
    Rows::new(shown).with(found.iter().map(row))
}

fn list(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("Listing permissions for vhost \"{vhost}\" ..."));
    let found = cx.api()?.get(&path(&["vhosts", vhost, "permissions"]))?.good_or_none()?;
    let found = items(found.ok_or_else(|| Failure::no_vhost(vhost))?)?;
    let names = ["user", "configure", "write", "read"];
    Ok(rows(&names, &names, &found))
}

fn list_of_user(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let user = cx.word(0);
    cx.banner(&format!("Listing permissions for user \"{user}\" ..."));
    let found = cx.api()?.get(&path(&["users", user, "permissions"]))?.good_or_none()?;
    let found = items(found.ok_or_else(|| no_such_user(user))?)?;
    let names = ["vhost", "configure", "write", "read"];
    Ok(rows(&names, &names, &found))
}

/// In RabbitMQ's words for lists, which are not those for changes.
fn no_such_user(user: &str) -> Failure {
    Failure::refused(format!("{{:no_such_user, \"{user}\"}}"))
}

/// A change of what a user may do in a virtual host. Errors: neither may be missing.
fn need_both(cx: &Cx<'_>) -> Result<(), Failure> {
    let (api, user, vhost) = (cx.api()?, cx.word(0), cx.vhost());
    if api.get(&path(&["users", user]))?.good_or_none()?.is_none() {
        return Err(Failure::error(NO_USER, format!("User {user} does not exist")));
    }
    if api.get(&path(&["vhosts", vhost]))?.good_or_none()?.is_none() {
        return Err(Failure::refused(format!("Virtual host {vhost} does not exist")));
    }
    Ok(())
}

fn set(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (user, vhost) = (cx.word(0), cx.vhost());
    cx.banner(&format!("Setting permissions for user \"{user}\" in vhost \"{vhost}\" ..."));
    need_both(cx)?;
    let wanted = json!({ "configure": cx.word(1), "write": cx.word(2), "read": cx.word(3) });
    cx.api()?.put(&path(&["permissions", vhost, user]), &wanted)?.good()?;
    Ok(Shown::Done)
}

fn clear(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (user, vhost) = (cx.word(0), cx.vhost());
    cx.banner(&format!("Clearing permissions for user \"{user}\" in vhost \"{vhost}\" ..."));
    need_both(cx)?;
    // None to begin with is what was wanted.
    cx.api()?.delete(&path(&["permissions", vhost, user]))?.good_or_none()?;
    Ok(Shown::Done)
}

fn list_topics(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("Listing topic permissions for vhost \"{vhost}\" ..."));
    let found = cx.api()?.get(&path(&["vhosts", vhost, "topic-permissions"]))?.good_or_none()?;
    let found = items(found.ok_or_else(|| Failure::no_vhost(vhost))?)?;
    let names = ["user", "exchange", "write", "read"];
    Ok(rows(&names, &names, &found))
}

fn list_topics_of_user(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let user = cx.word(0);
    cx.banner(&format!("Listing topic permissions for user \"{user}\" ..."));
    let found = cx.api()?.get(&path(&["users", user, "topic-permissions"]))?.good_or_none()?;
    let found = items(found.ok_or_else(|| no_such_user(user))?)?;
    let names = ["vhost", "exchange", "write", "read"];
    Ok(match rows(&names, &names, &found) {
        Shown::Rows(rows) => Shown::Rows(Rows { is_headless: true, ..rows }),
        other => other,
    })
}

fn set_topic(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (user, exchange, vhost) = (cx.word(0), cx.word(1), cx.vhost());
    cx.banner(&format!("Setting topic permissions on \"{exchange}\" for user \"{user}\" in vhost \"{vhost}\" ..."));
    need_both(cx)?;
    let wanted = json!({ "exchange": exchange, "write": cx.word(2), "read": cx.word(3) });
    cx.api()?.put(&path(&["topic-permissions", vhost, user]), &wanted)?.good()?;
    Ok(Shown::Done)
}

fn clear_topics(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (user, vhost) = (cx.word(0), cx.vhost());
    let exchange = cx.options.words.get(1);
    match exchange {
        Some(exchange) => cx.banner(&format!(
            "Clearing topic permissions on \"{exchange}\" for user \"{user}\" in vhost \"{vhost}\" ..."
        )),
        None => cx.banner(&format!("Clearing topic permissions for user \"{user}\" in vhost \"{vhost}\" ...")),
    }
    need_both(cx)?;
    let at = match exchange {
        Some(exchange) => path(&["topic-permissions", vhost, user, exchange]),
        None => path(&["topic-permissions", vhost, user]),
    };
    cx.api()?.delete(&at)?.good_or_none()?;
    Ok(Shown::Done)
}

//! Limits of virtual hosts and of users.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::Failure;
use crate::form::{Rows, Shown};
use crate::options::{flag, text as text_option};
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_vhost_limits",
        tools: CTL | DIAGNOSTICS,
        section: Section::VirtualHosts,
        usage: "[--vhost <vhost>] [--global] [--no-table-headers]",
        about: "Tells the limits of a virtual host, or of all",
        switches: &[flag("global", "of all virtual hosts")],
        run: list_of_vhosts,
        ..VERB
    },
    Verb {
        name: "set_vhost_limits",
        section: Section::VirtualHosts,
        usage: "[--vhost <vhost>] <definition>",
        about: "Sets the limits of a virtual host, all at once: '{\"max-queues\": 100, \"max-connections\": 50}'",
        words: (1, 1),
        run: set_of_vhost,
        ..VERB
    },
    Verb {
        name: "clear_vhost_limits",
        section: Section::VirtualHosts,
        usage: "[--vhost <vhost>]",
        about: "Takes the limits of a virtual host away",
        run: clear_of_vhost,
        ..VERB
    },
    Verb {
        name: "list_user_limits",
        tools: CTL | DIAGNOSTICS,
        section: Section::Users,
        usage: "[--user <username>] [--global] [--no-table-headers]",
        about: "Tells the limits of a user, guest without a name, or of all",
        switches: &[text_option("user", "of this user"), flag("global", "of all users")],
        run: list_of_users,
        ..VERB
    },
    Verb {
        name: "set_user_limits",
        section: Section::Users,
        usage: "<username> <definition>",
        about: "Sets limits of a user: '{\"max-connections\": 5, \"max-channels\": 50}'",
        words: (2, 2),
        run: set_of_user,
        ..VERB
    },
    Verb {
        name: "clear_user_limits",
        section: Section::Users,
        usage: "<username> <limit> | all",
        about: "Takes a limit of a user away, or all",
        words: (2, 2),
        run: clear_of_user,
        ..VERB
    },
];

/// One object of limits; nothing where there are none.
fn one(found: &[Value]) -> Option<Value> {
    found.first().map(|item| item["value"].clone()).filter(|value| value != &json!({}))
}

fn all(of: &str, found: &[Value]) -> Shown {
    let row = |item: &Value| vec![Cell::text(text(&item[of])), Cell::text(item["value"].to_string())];
    Rows::new(&[of, "limits"]).with(found.iter().map(row))
}

fn list_of_vhosts(cx: &Cx<'_>) -> Result<Shown, Failure> {
    if cx.options.flag("global") {
        cx.banner("Listing limits for all vhosts ...");
        return Ok(all("vhost", &items(cx.api()?.get("vhost-limits")?.good()?)?));
    }
    let vhost = cx.vhost();
    cx.banner(&format!("Listing limits for vhost \"{vhost}\" ..."));
    let found = cx.api()?.get(&path(&["vhost-limits", vhost]))?.good_or_none()?;
    // To a program limits are JSON in a text, as in RabbitMQ; none of a virtual host are an empty list.
    Ok(match one(&items(found.ok_or_else(|| Failure::no_vhost(vhost))?)?).map(|limits| limits.to_string()) {
        Some(limits) => Shown::Told(json!({ "node": cx.node()?, "result": "ok", "value": limits }), limits),
        None => Shown::Told(json!([]), String::new()),
    })
}

fn limits(cx: &Cx<'_>, at: usize) -> Result<serde_json::Map<String, Value>, Failure> {
    match cx.json(at)? {
        Value::Object(limits) => Ok(limits),
        _ => Err(Failure::refused("Validation failed\n\nlimits are an object in JSON\n")),
    }
}

fn set_of_vhost(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("Setting vhost limits to \"{}\" for vhost \"{vhost}\" ...", cx.word(0)));
    let at = path(&["parameters", "vhost-limits", vhost, "limits"]);
    let answer = cx.api()?.put(&at, &json!({ "value": limits(cx, 0)? }))?;
    super::parameters::validated(answer, vhost).map(|()| Shown::Done)
}

fn clear_of_vhost(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let vhost = cx.vhost();
    cx.banner(&format!("Clearing vhost \"{vhost}\" limits ..."));
    if cx.api()?.get(&path(&["vhosts", vhost]))?.good_or_none()?.is_none() {
        return Err(Failure::no_vhost(vhost));
    }
    cx.api()?.delete(&path(&["parameters", "vhost-limits", vhost, "limits"]))?.good_or_none()?;
    Ok(Shown::Done)
}

fn list_of_users(cx: &Cx<'_>) -> Result<Shown, Failure> {
    if cx.options.flag("global") {
        cx.banner("Listing limits for all users ...");
        return Ok(all("user", &items(cx.api()?.get("user-limits")?.good()?)?));
    }
    let user = cx.options.text("user").unwrap_or("guest");
    cx.banner(&format!("Listing limits for user \"{user}\" ..."));
    let found = cx.api()?.get(&path(&["user-limits", user]))?.good_or_none()?;
    let limits = one(&items(found.ok_or_else(|| Failure::no_user(user))?)?);
    let told = limits.as_ref().map_or_else(|| "{}".to_owned(), Value::to_string);
    Ok(Shown::Told(json!({ "message": told }), limits.map_or_else(String::new, |limits| limits.to_string())))
}

/// One after the other, as the API has them: what stands before one that is refused is set.
fn set_of_user(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let user = cx.word(0);
    cx.banner(&format!("Setting user limits to \"{}\" for user \"{user}\" ...", cx.word(1)));
    let limits = limits(cx, 1)?;
    need_user(cx, user)?;
    for (name, value) in limits {
        let answer = cx.api()?.put(&path(&["user-limits", user, &name]), &json!({ "value": value }))?;
        if !answer.is_good() {
            return Err(super::parameters::not_valid(&answer));
        }
    }
    Ok(Shown::Done)
}

fn need_user(cx: &Cx<'_>, user: &str) -> Result<(), Failure> {
    let found = cx.api()?.get(&path(&["users", user]))?.good_or_none()?;
    found.map(|_| ()).ok_or_else(|| Failure::no_user(user))
}

fn clear_of_user(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (user, limit) = (cx.word(0), cx.word(1));
    match limit {
        "all" => cx.banner(&format!("Clearing all limits for user \"{user}\" ...")),
        one => cx.banner(&format!("Clearing \"{one}\" limit for user \"{user}\" ...")),
    }
    need_user(cx, user)?;
    let limits = if limit == "all" { vec!["max-connections", "max-channels"] } else { vec![limit] };
    for limit in limits {
        cx.api()?.delete(&path(&["user-limits", user, limit]))?.good_or_none()?;
    }
    Ok(Shown::Done)
}

//! Users: who there is, their passwords and tags.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{DATA, Failure, SOFTWARE};
use crate::form::{Rows, Shown};
use crate::options::flag;
use crate::place::Login;
use crate::term::Cell;
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{ANY, Section, VERB, Verb};
use serde_json::{Value, json};

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "list_users",
        tools: CTL | DIAGNOSTICS,
        section: Section::Users,
        usage: "[--no-table-headers]",
        about: "Lists users and their tags",
        run: list,
        ..VERB
    },
    Verb {
        name: "add_user",
        section: Section::Users,
        usage: "<username> [<password>] [--pre-hashed-password]",
        about: "Makes a user, who may do nothing yet; the password may come on standard input",
        words: (1, 2),
        switches: &[flag("pre-hashed-password", "the password is a salted SHA-256 hash in base64")],
        run: add,
        ..VERB
    },
    Verb {
        name: "delete_user",
        section: Section::Users,
        usage: "<username>",
        about: "Deletes a user and closes the user's connections",
        words: (1, 1),
        run: delete,
        ..VERB
    },
    Verb {
        name: "change_password",
        section: Section::Users,
        usage: "<username> [<password>]",
        about: "Gives a user another password, which may come on standard input",
        words: (1, 2),
        run: change_password,
        ..VERB
    },
    Verb {
        name: "clear_password",
        section: Section::Users,
        usage: "<username>",
        about: "Takes a user's password away: nobody logs in with one then",
        words: (1, 1),
        run: clear_password,
        ..VERB
    },
    Verb {
        name: "authenticate_user",
        section: Section::Users,
        usage: "<username> [<password>]",
        about: "Tells whether a password is a user's",
        words: (1, 2),
        run: authenticate,
        ..VERB
    },
    Verb {
        name: "set_user_tags",
        section: Section::Users,
        usage: "<username> <tag> [...]",
        about: "Says which tags a user has; none without any",
        words: (1, ANY),
        run: set_tags,
        ..VERB
    },
];

fn list(cx: &Cx<'_>) -> Result<Shown, Failure> {
    cx.banner("Listing users ...");
    let users = items(cx.api()?.get("users")?.good()?)?;
    let row = |user: &Value| vec![Cell::text(text(&user["name"])), Cell::Words(tags(user))];
    Ok(Rows::new(&["user", "tags"]).with(users.iter().map(row)))
}

fn tags(user: &Value) -> Vec<String> {
    user["tags"].as_array().into_iter().flatten().map(text).collect()
}

/// A user as the API has it. Errors: 67.
fn found(cx: &Cx<'_>, name: &str) -> Result<Value, Failure> {
    cx.api()?.get(&path(&["users", name]))?.good_or_none()?.ok_or_else(|| Failure::no_user(name))
}

fn password(cx: &Cx<'_>) -> Result<String, Failure> {
    match cx.options.words.get(1) {
        Some(password) if password.is_empty() => {
            Err(Failure::argument(DATA, "Bad argument: password cannot be an empty string"))
        }
        Some(password) => Ok(password.clone()),
        None => crate::password::ask(),
    }
}

fn add(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.name(0, "user")?;
    let password = password(cx)?;
    cx.banner(&format!("Adding user \"{name}\" ..."));
    let api = cx.api()?;
    // RabbitMQ's tool refuses what the API takes as a change. Two that add the same user at once may both be told that they did.
    if api.get(&path(&["users", name]))?.good_or_none()?.is_some() {
        return Err(Failure::error(SOFTWARE, format!("User \"{name}\" already exists")));
    }
    let field = if cx.options.flag("pre-hashed-password") { "password_hash" } else { "password" };
    api.put(&path(&["users", name]), &json!({ field: password, "tags": [] }))?.good()?;
    cx.banner(
        "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help set_permissions' to learn more.",
    );
    Ok(Shown::Done)
}

fn delete(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.word(0);
    cx.banner(&format!("Deleting user \"{name}\" ..."));
    let deleted = cx.api()?.delete(&path(&["users", name]))?.good_or_none()?;
    deleted.map(|_| Shown::Done).ok_or_else(|| Failure::no_user(name))
}

fn change_password(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (name, password) = (cx.word(0), password(cx)?);
    cx.banner(&format!("Changing password for user \"{name}\" ..."));
    let tags = tags(&found(cx, name)?);
    cx.api()?.put(&path(&["users", name]), &json!({ "password": password, "tags": tags }))?.good()?;
    Ok(Shown::Done)
}

fn clear_password(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.word(0);
    cx.banner(&format!("Clearing password for user \"{name}\" ..."));
    let tags = tags(&found(cx, name)?);
    cx.api()?.put(&path(&["users", name]), &json!({ "password_hash": "", "tags": tags }))?.good()?;
    Ok(Shown::Done)
}

fn set_tags(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let name = cx.word(0);
    // RabbitMQ takes `a,b` as two tags too.
    let tags: Vec<&str> = cx.options.words[1..].iter().flat_map(|word| word.split(',')).map(str::trim).collect();
    let tags: Vec<&str> = tags.into_iter().filter(|tag| !tag.is_empty()).collect();
    cx.banner(&format!("Setting tags for user \"{name}\" to [{}] ...", tags.join(", ")));
    let user = found(cx, name)?;
    let wanted =
        json!({ "password_hash": user["password_hash"], "hashing_algorithm": user["hashing_algorithm"], "tags": tags });
    cx.api()?.put(&path(&["users", name]), &wanted)?.good()?;
    Ok(Shown::Done)
}

/// A login over HTTP: who may not use the API has shown the right password all the same.
fn authenticate(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (name, password) = (cx.word(0).to_owned(), password(cx)?);
    cx.banner(&format!("Authenticating user \"{name}\" ..."));
    let answer = cx.api()?.ask_as(&Login::User(name.clone(), password), "GET", "whoami", None, &[])?;
    if answer.is_good() || answer.reason() == "Not management user" {
        return Ok(Shown::Line("Success".to_owned()));
    }
    let text = format!("Error: failed to authenticate user \"{name}\"\nuser '{name}' - invalid credentials");
    Err(Failure::error(DATA, text))
}

//! What rabbitmqadmin lists, declares and deletes, and with which fields.
//!
//! Invariant: a field that a kind has not is refused, and one that it must have is missed, before
//! the node is asked.

use crate::api::path as encoded;
use json_once::NotRead;
use serde_json::{Map, Value};

/// A kind of thing in lists.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) by_vhost: bool,
    /// Columns where nobody names any.
    pub(super) columns: &'static [&'static str],
    /// Columns that are shown as JSON.
    pub(super) json: &'static [&'static str],
}

/// A kind of thing that is changed.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) method: &'static str,
    pub(super) fields: Fields,
}

/// The fields of a request, and its path.
#[derive(Debug)]
pub(super) struct Fields {
    /// Those that must be there; of several in one, one.
    mandatory: &'static [&'static str],
    /// Those that may be there, with what they are without.
    optional: &'static [(&'static str, Option<&'static str>)],
    /// Those that are JSON.
    json: &'static [&'static str],
    /// With `{field}` for a field.
    path: &'static str,
}

const fn listed(by_vhost: bool, columns: &'static [&'static str], json: &'static [&'static str]) -> Listed {
    Listed { by_vhost, columns, json }
}

pub(super) const LISTABLE: &[(&str, Listed)] = &[
    ("connections", listed(false, &["name", "user", "channels"], &[])),
    ("channels", listed(false, &["name", "user"], &[])),
    ("consumers", listed(true, &[], &[])),
    ("exchanges", listed(true, &["name", "type"], &[])),
    ("queues", listed(true, &["name", "messages"], &[])),
    ("bindings", listed(true, &["source", "destination", "routing_key"], &[])),
    ("users", listed(false, &[], &[])),
    ("vhosts", listed(false, &["name", "messages"], &[])),
    ("permissions", listed(false, &[], &[])),
    ("nodes", listed(false, &["name", "type", "mem_used"], &[])),
    ("parameters", listed(false, &[], &["value"])),
    ("policies", listed(false, &[], &["definition"])),
    ("operator_policies", listed(false, &[], &["definition"])),
    ("vhost_limits", listed(false, &[], &["value"])),
];

pub(super) const SHOWABLE: &[(&str, Listed)] = &[(
    "overview",
    listed(false, &["rabbitmq_version", "cluster_name", "queue_totals.messages", "object_totals.queues"], &[]),
)];

const fn put(
    path: &'static str,
    mandatory: &'static [&'static str],
    optional: &'static [(&'static str, Option<&'static str>)],
    json: &'static [&'static str],
) -> Kind {
    Kind { method: "PUT", fields: Fields { mandatory, optional, json, path } }
}

const fn delete(
    path: &'static str,
    mandatory: &'static [&'static str],
    optional: &'static [(&'static str, Option<&'static str>)],
) -> Kind {
    Kind { method: "DELETE", fields: Fields { mandatory, optional, json: &[], path } }
}

const POLICY_FIELDS: &[(&str, Option<&str>)] = &[("priority", Some("0")), ("apply-to", None)];

pub(super) const DECLARABLE: &[(&str, Kind)] = &[
    (
        "exchange",
        put(
            "exchanges/{vhost}/{name}",
            &["name", "type"],
            &[
                ("auto_delete", Some("false")),
                ("durable", Some("true")),
                ("internal", Some("false")),
                ("arguments", Some("{}")),
            ],
            &["arguments"],
        ),
    ),
    (
        "queue",
        put(
            "queues/{vhost}/{name}",
            &["name"],
            &[
                ("auto_delete", Some("false")),
                ("durable", Some("true")),
                ("arguments", Some("{}")),
                ("node", None),
                ("queue_type", None),
            ],
            &["arguments"],
        ),
    ),
    (
        "binding",
        Kind {
            method: "POST",
            fields: Fields {
                mandatory: &["source", "destination"],
                optional: &[("destination_type", Some("queue")), ("routing_key", Some("")), ("arguments", Some("{}"))],
                json: &["arguments"],
                path: "bindings/{vhost}/e/{source}/{destination_char}/{destination}",
            },
        },
    ),
    (
        "vhost",
        put(
            "vhosts/{name}",
            &["name"],
            &[("tracing", None), ("description", None), ("tags", None), ("default_queue_type", None)],
            &[],
        ),
    ),
    ("user", put("users/{name}", &["name", "password|password_hash", "tags"], &[("hashing_algorithm", None)], &[])),
    ("permission", put("permissions/{vhost}/{user}", &["vhost", "user", "configure", "write", "read"], &[], &[])),
    ("parameter", put("parameters/{component}/{vhost}/{name}", &["component", "name", "value"], &[], &["value"])),
    (
        "policy",
        put("policies/{vhost}/{name}", &["name", "pattern", "definition"], POLICY_FIELDS, &["definition", "priority"]),
    ),
    (
        "operator_policy",
        put(
            "operator-policies/{vhost}/{name}",
            &["name", "pattern", "definition"],
            POLICY_FIELDS,
            &["definition", "priority"],
        ),
    ),
    ("vhost_limit", put("vhost-limits/{vhost}/{name}", &["vhost", "name", "value"], &[], &["value"])),
];

pub(super) const DELETABLE: &[(&str, Kind)] = &[
    ("exchange", delete("exchanges/{vhost}/{name}", &["name"], &[])),
    ("queue", delete("queues/{vhost}/{name}", &["name"], &[])),
    (
        "binding",
        delete(
            "bindings/{vhost}/e/{source}/{destination_char}/{destination}/{properties_key}",
            &["source", "destination_type", "destination"],
            &[("properties_key", Some("~"))],
        ),
    ),
    ("vhost", delete("vhosts/{name}", &["name"], &[])),
    ("user", delete("users/{name}", &["name"], &[])),
    ("permission", delete("permissions/{vhost}/{user}", &["vhost", "user"], &[])),
    ("parameter", delete("parameters/{component}/{vhost}/{name}", &["component", "name"], &[])),
    ("policy", delete("policies/{vhost}/{name}", &["name"], &[])),
    ("operator_policy", delete("operator-policies/{vhost}/{name}", &["name"], &[])),
    ("vhost_limit", delete("vhost-limits/{vhost}/{name}", &["vhost", "name"], &[])),
];

pub(super) const CLOSABLE: &[(&str, Kind)] = &[("connection", delete("connections/{name}", &["name"], &[]))];
pub(super) const PURGABLE: &[(&str, Kind)] = &[("queue", delete("queues/{vhost}/{name}/contents", &["name"], &[]))];

pub(super) const PUBLISH: Fields = Fields {
    mandatory: &["routing_key"],
    optional: &[
        ("payload", None),
        ("properties", Some("{}")),
        ("exchange", Some("amq.default")),
        ("payload_encoding", Some("string")),
    ],
    json: &["properties"],
    path: "exchanges/{vhost}/{exchange}/publish",
};

pub(super) const GET: Fields = Fields {
    mandatory: &["queue"],
    optional: &[
        ("count", Some("1")),
        ("ackmode", Some("ack_requeue_true")),
        ("payload_file", None),
        ("encoding", Some("auto")),
    ],
    json: &[],
    path: "queues/{vhost}/{queue}/get",
};

/// The fields that words of the form `name=value` say, the usual ones among them. Errors: one line.
pub(super) fn said(words: &[String], fields: &Fields, vhost: &str) -> Result<Map<String, Value>, String> {
    let as_value = |name: &str, text: &str| match fields.json.contains(&name) {
        true => json_once::read(text.as_bytes()).map_err(|why| match why {
            NotRead::Unfit(sentence) => format!("{name}: {sentence}"),
            NotRead::NoJson(_) => format!("Could not parse JSON:\n  {text}"),
        }),
        false => Ok(Value::from(text)),
    };
    let mut said = Map::new();
    for (name, usual) in fields.optional {
        if let Some(usual) = usual {
            said.insert((*name).to_owned(), as_value(name, usual)?);
        }
    }
    for word in words {
        let pair = word.split_once('=');
        let (name, value) = pair.ok_or_else(|| format!("Argument \"{word}\" not in the name=value format"))?;
        let is_known = fields.mandatory.iter().any(|known| known.split('|').any(|known| known == name))
            || fields.optional.iter().any(|(known, _)| *known == name);
        if !is_known {
            return Err(format!("Argument \"{name}\" is not recognised"));
        }
        said.insert(name.to_owned(), as_value(name, value)?);
    }
    for wanted in fields.mandatory {
        if !wanted.split('|').any(|name| said.contains_key(name)) {
            return Err(match wanted.contains('|') {
                true => format!("one of mandatory arguments \"{}\" is required", wanted.replace('|', ", ")),
                false => format!("mandatory argument \"{wanted}\" is required"),
            });
        }
    }
    if !said.contains_key("vhost") && fields.path.contains("{vhost}") {
        said.insert("vhost".to_owned(), vhost.into());
    }
    Ok(said)
}

/// The path with the fields in it. Errors: one that it needs is empty.
pub(super) fn path(fields: &Fields, said: &Map<String, Value>) -> Result<String, String> {
    let mut path = String::new();
    let mut rest = fields.path;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        path += before;
        let value = match name {
            "destination_char" => said["destination_type"].as_str().and_then(|kind| kind.get(..1)),
            name => said.get(name).and_then(Value::as_str),
        };
        let value = value.filter(|value| !value.is_empty()).ok_or_else(|| format!("{name} cannot be empty"))?;
        path += &encoded(&[value]);
        rest = behind;
    }
    Ok(path + rest)
}

const ACTIONS: [&str; 11] =
    ["list", "show", "declare", "delete", "close", "purge", "publish", "get", "export", "import", "help"];

/// The action that was probably meant.
pub(super) fn nearest_action(word: &str) -> Option<&'static str> {
    let near = ACTIONS.into_iter().max_by(|a, b| strsim::jaro(word, a).total_cmp(&strsim::jaro(word, b)))?;
    (strsim::jaro(word, near) > 0.8).then_some(near)
}

/// Everything that can be said.
pub(super) fn help(name: &str) -> String {
    let mut text = format!(
        "Usage\n=====\n  {name} [options] subcommand\n\nOptions\n=======\n  -H --host, -P --port, -u --username, -p \
         --password   localhost, 15672, guest and guest without them\n  -V --vhost     all virtual hosts in lists, / \
         otherwise\n  -U --base-uri  http://user:password@host:port\n  -c --config, -N --node   a file with these, \
         ~/.rabbitmqadmin.conf, and a section of it\n  -f --format    table, tsv, long, kvp, bash, raw_json or \
         pretty_json\n  -S --sort, -R --sort-reverse, -d --depth   for lists\n  -t --request-timeout, -q --quiet, \
         --path-prefix, --version, -h --help\n\nDisplay\n=======\n"
    );
    for (kind, _) in LISTABLE {
        text += &format!("  list {kind} [<column>...]\n");
    }
    for (kind, _) in SHOWABLE {
        text += &format!("  show {kind} [<column>...]\n");
    }
    text += "\nObject Manipulation\n===================\n";
    for (verb, kinds) in [("declare", DECLARABLE), ("delete", DELETABLE), ("close", CLOSABLE), ("purge", PURGABLE)] {
        for (kind, what) in kinds {
            text += &format!("  {verb} {kind} {}\n", fields_help(&what.fields));
        }
    }
    text += "\nBroker Definitions\n==================\n  export <file>\n  import <file>\n\nPublishing and Consuming\n";
    text += &format!("========================\n  publish {}\n  get {}\n", fields_help(&PUBLISH), fields_help(&GET));
    text + "\n  Without a payload, publish takes standard input. With payload_file, get writes the payload there.\n"
}

fn fields_help(fields: &Fields) -> String {
    let mandatory: Vec<String> =
        fields.mandatory.iter().map(|name| format!("{}=...", name.replace('|', "=... OR "))).collect();
    let optional: Vec<String> = fields.optional.iter().map(|(name, _)| format!("{name}=...")).collect();
    match optional.is_empty() {
        true => mandatory.join(" "),
        false => format!("{} [{}]", mandatory.join(" "), optional.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn fields_are_those_of_the_kind() {
        let queue = &DECLARABLE[1].1.fields;
        let said = |line: &str| super::said(&words(line), queue, "v");
        let fields = said("name=a/b durable=false arguments={\"x-max-length\":5}").expect("it is right");
        assert_eq!(fields["arguments"], json!({"x-max-length": 5}));
        assert_eq!((&fields["durable"], &fields["auto_delete"]), (&json!("false"), &json!("false")));
        assert_eq!(path(queue, &fields), Ok("queues/v/a%2Fb".to_owned()));
        for wrong in ["name", "nosuch=1", "durable=true", "name=a arguments={"] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
        assert!(path(queue, &said("name=").expect("it was said")).is_err());
    }

    #[test]
    fn a_password_comes_plain_or_as_a_hash() {
        let user = &DECLARABLE[4].1.fields;
        assert!(said(&words("name=a tags="), user, "/").is_err());
        assert!(said(&words("name=a tags= password_hash=x"), user, "/").is_ok());
    }

    #[test]
    fn a_binding_says_what_it_leads_to() {
        let binding = &DECLARABLE[2].1.fields;
        let fields = said(&words("source=x destination=y destination_type=exchange"), binding, "/").expect("right");
        assert_eq!(path(binding, &fields), Ok("bindings/%2F/e/x/e/y".to_owned()));
    }
}

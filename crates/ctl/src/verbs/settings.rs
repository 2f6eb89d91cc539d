//! What a node is configured to be, and the few things that can be changed while it runs.

use crate::api::path;
use crate::context::{Cx, items, text};
use crate::failure::{DATA, Failure, USAGE};
use crate::form::Shown;
use crate::options::{flag, short};
use crate::tool::{CTL, DIAGNOSTICS};
use crate::verb::{Section, VERB, Verb};
use serde_json::{Value, json};
use std::net::ToSocketAddrs as _;

/// Below this part of the memory publishers are held at once, which is what such a mark is set for.
const HELD_BELOW: f64 = 0.01;
/// The same in bytes.
const HELD_BELOW_BYTES: u64 = 1 << 20;

const ENVIRONMENT: Verb = Verb { tools: DIAGNOSTICS, section: Section::Configuration, ..VERB };

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "environment",
        tools: CTL | DIAGNOSTICS,
        about: "Lists the node's settings and who said so",
        run: |cx| {
            cx.banner(&format!("Application environment of node {} ...", cx.node()?));
            settings(cx, |_| true)
        },
        ..ENVIRONMENT
    },
    Verb {
        name: "command_line_arguments",
        about: "Lists the settings that the node was given as flags",
        run: |cx| {
            cx.banner(&format!("Command line arguments of node {} ...", cx.node()?));
            settings(cx, |origin| origin == "command line")
        },
        ..ENVIRONMENT
    },
    Verb {
        name: "os_env",
        about: "Lists the settings that the node was given as environment variables",
        run: |cx| {
            cx.banner(&format!("Listing RabbitMQ-specific environment variables defined on node {}...", cx.node()?));
            settings(cx, |origin| origin == "environment")
        },
        ..ENVIRONMENT
    },
    Verb {
        name: "log_location",
        usage: "[--all|-a]",
        about: "Tells where the log goes: to standard error, for whatever starts the node to keep",
        switches: &[short('a', flag("all", "all of them; there is one"))],
        run: |cx| {
            let (node, place) = (cx.node()?, "<stderr>");
            cx.banner(&format!("Log file location(s) on node {node} ..."));
            Ok(Shown::Told(json!({ "node_name": node, "paths": [place], "result": "ok" }), place.to_owned()))
        },
        ..ENVIRONMENT
    },
    Verb {
        name: "tls_versions",
        section: Section::Monitoring,
        about: "Lists the versions of TLS that the node speaks where it has a certificate",
        run: |cx| {
            cx.say("Listing all TLS versions supported by the runtime...");
            let versions = ["tlsv1.3", "tlsv1.2"];
            Ok(Shown::Document(json!({ "versions": versions }), versions.join("\n") + "\n"))
        },
        ..ENVIRONMENT
    },
    Verb {
        name: "resolve_hostname",
        usage: "<hostname> [--address-family <ipv4 | ipv6>]",
        about: "Tells the addresses of a host, as this machine finds them",
        words: (1, 1),
        switches: &[crate::options::text("address-family", "ipv4 or ipv6; ipv4 without it")],
        run: resolve,
        ..ENVIRONMENT
    },
    Verb {
        name: "set_vm_memory_high_watermark",
        tools: CTL,
        usage: "<fraction> | absolute <value>",
        about: "Below 0.01 or 1 MiB holds publishers until it is set higher; the limits themselves are settings",
        words: (1, 2),
        run: watermark,
        ..ENVIRONMENT
    },
];

fn settings(cx: &Cx<'_>, is_shown: impl Fn(&str) -> bool) -> Result<Shown, Failure> {
    let found = items(cx.api()?.get("leveret/settings")?.good()?)?;
    let found: Vec<&Value> = found.iter().filter(|setting| is_shown(&text(&setting["origin"]))).collect();
    let line = |setting: &&Value| {
        format!("{} = {} ({})\n", text(&setting["name"]), text(&setting["value"]), text(&setting["origin"]))
    };
    Ok(Shown::Document(json!(found), found.iter().map(line).collect()))
}

fn resolve(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let (host, family) = (cx.word(0), cx.options.text("address-family").unwrap_or("ipv4").to_ascii_lowercase());
    if !["ipv4", "ipv6"].contains(&family.as_str()) {
        return Err(Failure::argument(USAGE, format!("unsupported address family '{family}': ipv4 or ipv6")));
    }
    let shown = if family == "ipv4" { "IPv4" } else { "IPv6" };
    cx.say(&format!("Asking this machine to resolve hostname {host} to {shown} addresses..."));
    let found = (host, 0).to_socket_addrs();
    let found = found.map_err(|error| Failure::refused(format!("{host} cannot be resolved: {error}")))?;
    let mut addresses: Vec<String> = found
        .filter(|address| address.is_ipv4() == (family == "ipv4"))
        .map(|address| address.ip().to_string())
        .collect();
    addresses.dedup();
    match addresses.is_empty() {
        true => Err(Failure::refused(format!("{host} has no {shown} address"))),
        false => Ok(Shown::Document(json!({ "addresses": addresses }), addresses.join("\n") + "\n")),
    }
}

/// What a mark stands for: whether publishers are held.
fn is_held(words: &[String]) -> Result<bool, Failure> {
    let wrong = |text: &str| Failure::argument(DATA, format!("Bad argument: {text}"));
    match words {
        [word, value] if word == "absolute" => {
            let bytes =
                bytes(value).ok_or_else(|| wrong("an absolute value is a number, perhaps with a unit: 512MB"))?;
            Ok(bytes < HELD_BELOW_BYTES)
        }
        [fraction] => match fraction.parse::<f64>() {
            Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction < HELD_BELOW),
            _ => Err(wrong("a fraction is a number between 0.0 and 1.0, or else `absolute` and a value")),
        },
        _ => Err(wrong("a fraction, or `absolute` and a value")),
    }
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "k" | "kib" => 1 << 10,
        "mb" => 1_000_000,
        "m" | "mib" => 1 << 20,
        "gb" => 1_000_000_000,
        "g" | "gib" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}

fn watermark(cx: &Cx<'_>) -> Result<Shown, Failure> {
    let holds = is_held(&cx.options.words)?;
    let node = cx.node()?;
    let shown = cx.options.words.last().map_or("", String::as_str);
    let unit = if cx.options.words.len() > 1 { " bytes" } else { "" };
    cx.banner(&format!("Setting memory threshold on {node} to {shown}{unit} ..."));
    let at = path(&["nodes", &node, "publishers", "hold"]);
    let answer = if holds { cx.api()?.put(&at, &json!({}))? } else { cx.api()?.delete(&at)? };
    answer.good()?;
    crate::output::err(match holds {
        true => "publishers are held until this is set to 0.01 or more, or the node starts anew\n",
        false => {
            "publishers may go on; no limit was changed: transient_bytes_max and unwritten_bytes_max are settings\n"
        }
    });
    Ok(Shown::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_near_nothing_holds_publishers() {
        let held = |line: &str| is_held(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).ok();
        assert_eq!(held("0"), Some(true));
        assert_eq!(held("0.000000001"), Some(true));
        assert_eq!(held("0.4"), Some(false));
        assert_eq!(held("absolute 1000"), Some(true));
        assert_eq!(held("absolute 2GiB"), Some(false));
        for wrong in ["1.5", "x", "absolute 1XB", "absolute", "NaN"] {
            assert_eq!(held(wrong), None, "{wrong}");
        }
    }
}

//! From the words of a command line to an exit code.

use crate::context::Cx;
use crate::failure::{Failure, Kind, USAGE};
use crate::form::{Form, Shown, written};
use crate::options::{self, Options};
use crate::output::{err, is_terminal, out};
use crate::tool::Tool;
use crate::verb::{self, Verb};
use crate::{admin, help, top};
use std::io::IsTerminal as _;
use std::time::Duration;

/// How long a watched result stands where nobody says.
const WATCH_EVERY_S: u64 = 2;

/// Runs a tool with these words, its own name not among them. Gives the exit code.
///
/// `version` is what `version` says where the node is not asked.
pub fn run(tool: Tool, words: &[String], version: &str) -> u8 {
    match (tool, words.first().map(String::as_str)) {
        (Tool::Admin, _) => return admin::run(tool.name(), words, version),
        (Tool::Leveret, Some("admin")) => return admin::run("leveret ctl admin", &words[1..], version),
        _ => {}
    }
    let Some((at, name)) = options::find_verb(words) else {
        return without_verb(tool, words, version);
    };
    let rest = [&words[..at], &words[at + 1..]].concat();
    match (tool, name) {
        (Tool::Leveret, "plugins") => return run(Tool::Plugins, &rest, version),
        (Tool::Leveret, "admin") => {
            err(&format!(
                "Error:\nThe options of rabbitmqadmin stand behind its word, and are its own: leveret ctl admin [options] ...\n\
                 It asks the node at --host and --port, in the name of --username: {} is not for it.\n",
                crate::term::harmless(&words[..at].join(" "))
            ));
            return USAGE;
        }
        (_, "help") => return helped(tool, &rest),
        (_, "version") => {
            out(&format!("{version}\n"));
            return 0;
        }
        (_, "autocomplete") => {
            let begin = rest.iter().find(|word| !word.starts_with('-')).map_or("", String::as_str);
            let mut names: Vec<&str> =
                verb::of(tool).map(|verb| verb.name).filter(|name| name.starts_with(begin)).collect();
            names.sort_unstable();
            names.iter().for_each(|name| out(&format!("{name}\n")));
            return 0;
        }
        (Tool::Leveret, "top") => return ended(tool, None, &rest, top::run(&options::read(&rest, top::SWITCHES))),
        _ => {}
    }
    let Some(verb) = verb::find(tool, name) else {
        return unknown(tool, name);
    };
    let options = options::read(&rest, verb.switches);
    if options.flag("help") {
        out(&help::of(tool, verb, is_terminal()));
        return 0;
    }
    let ended_with = asked(tool, verb, &options);
    let is_json = options.text("formatter") == Some("json");
    if let Some(failure) = ended_with.as_ref().err().filter(|_| is_json)
        && let Some(told) = failure.json()
    {
        err(&format!("{told}\n"));
        return failure.code_in(true);
    }
    ended(tool, Some((verb, name)), &rest, ended_with)
}

/// Nothing but options, or nothing at all.
fn without_verb(tool: Tool, words: &[String], version: &str) -> u8 {
    let options = options::read(words, &[options::flag("version", "")]);
    if options.flag("version") {
        out(&format!("{version}\n"));
        return 0;
    }
    if options.flag("help") || words.iter().any(|word| word == "-h") {
        out(&help::all(tool, is_terminal()));
        return 0;
    }
    err(&help::all(tool, std::io::stderr().is_terminal()));
    USAGE
}

fn helped(tool: Tool, words: &[String]) -> u8 {
    let Some(name) = words.iter().find(|word| !word.starts_with('-')) else {
        out(&help::all(tool, is_terminal()));
        return 0;
    };
    match verb::find(tool, name) {
        Some(verb) => {
            out(&help::of(tool, verb, is_terminal()));
            0
        }
        None => {
            err(&format!("Error:\n\nCommand '{}' not found.\n", crate::term::harmless(name)));
            USAGE
        }
    }
}

fn unknown(tool: Tool, name: &str) -> u8 {
    let shown = crate::term::harmless(name);
    match verb::nearest(tool, name) {
        Some(near) => err(&format!("\nCommand '{shown}' not found. \nDid you mean '{near}'? \n\n")),
        None => err(&format!("\nCommand '{shown}' not found. \n{}", help::all(tool, std::io::stderr().is_terminal()))),
    }
    USAGE
}

/// Checks what can be checked without the node, and does it.
fn asked(tool: Tool, verb: &'static Verb, options: &Options) -> Result<(), Failure> {
    if !options.wrong.is_empty() {
        let wrong: Vec<String> = options.wrong.iter().map(|(name, value)| format!("{name} : {value}")).collect();
        return Err(Failure::argument(USAGE, format!("Invalid options for this command:\n{}", wrong.join("\n"))));
    }
    let (least, most) = verb.words;
    if options.words.len() < least {
        return Err(Failure::argument(USAGE, "not enough arguments."));
    }
    if options.words.len() > most {
        return Err(Failure::argument(USAGE, "too many arguments."));
    }
    let form = match options.text("formatter") {
        None => None,
        Some(name) => Some(Form::of(name).ok_or_else(|| {
            let known = Form::NAMES.map(|(name, _)| name).join(", ");
            Failure::argument(USAGE, format!("unknown formatter '{name}'; there are {known}"))
        })?),
    };
    let has_header = !options.flag("silent") && (!options.flag("no-table-headers") || options.flag("table-headers"));
    let every = options.flag("watch").then(|| Duration::from_secs(options.number("watch").unwrap_or(WATCH_EVERY_S)));
    loop {
        if every.is_some() && is_terminal() {
            // Home, and nothing below.
            out("\x1b[H\x1b[2J");
        }
        let cx = Cx::new(tool, verb, options, form);
        let shown = (verb.run)(&cx)?;
        let node = match shown {
            Shown::Done | Shown::Line(_) if form == Some(Form::Json) => cx.node()?,
            _ => String::new(),
        };
        out(&written(&shown, form, has_header, is_terminal(), &node));
        match every {
            Some(every) => std::thread::sleep(every.max(Duration::from_millis(100))),
            None => return Ok(()),
        }
    }
}

/// Says how it ended; the exit code.
fn ended(tool: Tool, verb: Option<(&'static Verb, &str)>, words: &[String], ended: Result<(), Failure>) -> u8 {
    let Err(failure) = ended else { return 0 };
    let on_terminal = std::io::stderr().is_terminal();
    let text = crate::term::harmless_lines(&failure.text);
    match failure.kind {
        Kind::Plain => err(&format!("{text}\n")),
        Kind::Error => err(&format!("Error:\n{text}\n")),
        Kind::Argument => {
            err(&format!("Error (argument validation): {text}\n"));
            if let Some((verb, name)) = verb {
                // What stands behind these verbs may be a password, and this may go into a log.
                let has_secret = name.contains("password") || ["add_user", "authenticate_user"].contains(&name);
                let said = if has_secret { "..." } else { &words.join(" ") };
                err(&format!("Arguments given:\n\t{name} {}\n", crate::term::harmless(said)));
                err(&help::usage(tool, verb, on_terminal));
            }
        }
    }
    failure.code
}

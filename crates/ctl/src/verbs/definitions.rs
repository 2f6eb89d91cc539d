//! Definitions out and in.
//!
//! Invariant: a file is there as a whole or not at all, and nobody but its owner may read it: hashes
//! of passwords are in it.

use crate::context::Cx;
use crate::failure::{DATA, Failure, SOFTWARE, USAGE};
use crate::form::Shown;
use crate::options::{Switch, flag, text as text_option};
use crate::verb::{Section, VERB, Verb};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const FORMAT: Switch = text_option("format", "json, the only one there is here");

pub(super) const VERBS: &[Verb] = &[
    Verb {
        name: "export_definitions",
        section: Section::Definitions,
        usage: "<file_path | \"-\"> [--format json]",
        about: "Writes users, virtual hosts, queues, bindings, policies and the like as JSON to a file or standard output",
        words: (0, 1),
        switches: &[FORMAT],
        timeout_s: 600,
        run: export,
        ..VERB
    },
    Verb {
        name: "import_definitions",
        section: Section::Definitions,
        usage: "<file_path | \"-\"> [--format json] [--skip-if-unchanged]",
        about: "Takes them in from a file or standard input, and ends when everything is in force",
        words: (0, 1),
        switches: &[FORMAT, flag("skip-if-unchanged", "what is the same already is passed over, with it and without")],
        timeout_s: 600,
        run: import,
        ..VERB
    },
];

fn need_json(cx: &Cx<'_>) -> Result<(), Failure> {
    match cx.options.text("format") {
        None | Some("json" | "JSON") => Ok(()),
        Some(_) => Err(Failure::argument(USAGE, "Bad argument: there is no format but json here")),
    }
}

fn export(cx: &Cx<'_>) -> Result<Shown, Failure> {
    need_json(cx)?;
    let to = cx.options.words.first().map_or("-", String::as_str);
    if to != "-" {
        need_folder(Path::new(to))?;
        cx.banner(&format!("Exporting definitions in JSON to a file at \"{to}\" ..."));
    }
    let definitions = cx.api()?.get("definitions")?.good()?;
    if to == "-" {
        return Ok(Shown::Raw(format!("{definitions}\n")));
    }
    write(Path::new(to), &definitions).map_err(|error| Failure::error(SOFTWARE, format!("{to}: {error}")))?;
    Ok(Shown::Done)
}

/// Errors: there is no folder for the file.
fn need_folder(path: &Path) -> Result<(), Failure> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        Some(folder) => {
            let text = format!("Bad argument: Directory {} does not exist", folder.display());
            Err(Failure::argument(DATA, text))
        }
        None => Ok(()),
    }
}

fn write(path: &Path, definitions: &Value) -> std::io::Result<()> {
    // A pipe or a device is written to as it is.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return std::fs::OpenOptions::new().write(true).open(path)?.write_all(format!("{definitions}\n").as_bytes());
    }
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}.new", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(format!("{definitions}\n").as_bytes()).and_then(|()| file.sync_all());
    let named = written.and_then(|()| std::fs::rename(&new, path));
    if named.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    named
}

fn import(cx: &Cx<'_>) -> Result<Shown, Failure> {
    need_json(cx)?;
    let from = cx.options.words.first().map_or("-", String::as_str);
    let mut text = String::new();
    if from == "-" {
        cx.banner("Importing definitions in JSON from standard input ...");
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|error| Failure::error(DATA, format!("standard input: {error}")))?;
    } else {
        let missing = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::argument(DATA, format!("Bad argument: File {from} does not exist"))
            }
            _ => Failure::argument(DATA, format!("Bad argument: {from}: {error}")),
        };
        text = std::fs::read_to_string(from).map_err(missing)?;
        cx.banner(&format!("Importing definitions in JSON from a file at \"{from}\" ..."));
    }
    if let Err(error) = json_once::read(text.as_bytes()) {
        return Err(Failure::error(DATA, format!("{from} is no JSON: {error}")));
    }
    let told = cx.api()?.ask("POST", "definitions", Some(text), &[])?.good()?;
    for (field, what) in [("left_out", "left out"), ("different", "there already, and different")] {
        for item in told[field].as_array().into_iter().flatten() {
            let item = item.as_str().map_or_else(|| item.to_string(), str::to_owned);
            crate::output::err(&format!("{what}: {}\n", crate::term::harmless(&item)));
        }
    }
    Ok(Shown::Line("Successfully imported definitions.".to_owned()))
}

//! rabbitmqadmin: RabbitMQ's other command line tool, which works by name and password.
//!
//! Invariant: what it prints and takes is what scripts know of version 3.10: tables with `+---+`,
//! `name=value` arguments, `*** REASON` and exit code 1.

mod arguments;
mod kinds;
mod table;

use crate::api::{Answer, Api};
use crate::failure::Failure;
use crate::output::{err, out};
use crate::place::{Login, Place};
use arguments::Arguments;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kinds::{Fields, Kind};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};

/// Every failure of this tool but wrong options.
const FAILED: u8 = 1;
const WRONG_OPTIONS: u8 = 2;

/// Why it ends.
#[derive(Debug)]
enum End {
    /// The options are wrong.
    Options(String),
    /// The words are wrong.
    Usage(String),
    /// It did not work.
    Died(String),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        // In one line what went wrong, where what to do is about the node's own machine.
        let line = failure.text.lines().find_map(|line| line.strip_prefix("  * "));
        End::Died(line.map_or_else(|| failure.text.clone(), |line| format!("Could not connect: {line}")))
    }
}

/// Runs it with these words.
pub(crate) fn run(name: &str, words: &[String], version: &str) -> u8 {
    match asked(name, words, version) {
        Ok(()) => 0,
        Err(End::Options(text)) => {
            err(&format!("\n{name}: error: {}\n", crate::term::harmless_lines(&text)));
            WRONG_OPTIONS
        }
        Err(End::Usage(text)) => {
            err(&format!("\nERROR: {}\n\n{name} --help for help\n\n", crate::term::harmless_lines(&text)));
            FAILED
        }
        Err(End::Died(text)) => {
            err(&format!("*** {}\n\n", crate::term::harmless_lines(&text)));
            FAILED
        }
    }
}

fn asked(name: &str, words: &[String], version: &str) -> Result<(), End> {
    let arguments = arguments::read(words).map_err(End::Options)?;
    if arguments.version {
        out(&format!("rabbitmqadmin {version}\n"));
        return Ok(());
    }
    if arguments.help || arguments.words.first().is_some_and(|word| word == "help") {
        out(&kinds::help(name));
        return Ok(());
    }
    let Some((action, rest)) = arguments.words.split_first() else {
        return Err(End::Usage("Action not specified".to_owned()));
    };
    let admin = Admin { arguments: &arguments, api: api(&arguments)? };
    match action.as_str() {
        "list" => admin.list(rest, kinds::LISTABLE, "list"),
        "show" => admin.list(rest, kinds::SHOWABLE, "show"),
        "declare" => admin.change(rest, kinds::DECLARABLE, "declared"),
        "delete" => admin.change(rest, kinds::DELETABLE, "deleted"),
        "close" => admin.change(rest, kinds::CLOSABLE, "closed"),
        "purge" => admin.change(rest, kinds::PURGABLE, "purged"),
        "publish" => admin.publish(rest),
        "get" => admin.get(rest),
        "export" => admin.export(rest),
        "import" => admin.import(rest),
        other => Err(End::Usage(match kinds::nearest_action(other) {
            Some(near) => format!("Action {other} not understood; did you mean {near}?"),
            None => format!("Action {other} not understood"),
        })),
    }
}

fn api(arguments: &Arguments) -> Result<Api, End> {
    let place = Place {
        url: format!(
            "{}://{}:{}{}",
            if arguments.ssl { "https" } else { "http" },
            arguments.host,
            arguments.port,
            arguments.path_prefix.trim_end_matches('/')
        ),
        login: Login::User(arguments.username.clone(), arguments.password.clone()),
        node: None,
        pid: None,
        file: None,
        trust: arguments.trust.clone(),
    };
    let timeout = std::time::Duration::from_secs(arguments.timeout_s);
    Api::new(place, "rabbitmqadmin", Some(timeout)).map_err(|failure| End::Usage(failure.text))
}

struct Admin<'a> {
    arguments: &'a Arguments,
    api: Api,
}

impl Admin<'_> {
    fn say(&self, text: &str) {
        if !self.arguments.quiet {
            out(&format!("{}\n", crate::term::harmless(text)));
        }
    }

    fn ask(&self, method: &str, path: &str, body: Option<String>) -> Result<Answer, End> {
        let answer = self.api.ask_as(&self.api.place.login, method, path, body, &[])?;
        match answer.status {
            401 => Err(End::Died(format!("Access refused: /api/{path}"))),
            404 => Err(End::Died(format!("Not found: /api/{path}"))),
            400 => Err(End::Died(answer.reason())),
            _ if answer.is_good() => Ok(answer),
            status => Err(End::Died(format!("Received response {status} for path /api/{path}: {}", answer.reason()))),
        }
    }

    fn list(&self, words: &[String], known: &[(&str, kinds::Listed)], verb: &str) -> Result<(), End> {
        let Some((what, columns)) = words.split_first() else {
            return Err(End::Usage("Type not specified".to_owned()));
        };
        let found = known.iter().find(|(name, _)| name == what);
        let (_, listed) = found.ok_or_else(|| End::Usage(format!("Don't know how to {verb} {what}")))?;
        let format = table::Format::of(&self.arguments.format).map_err(End::Usage)?;
        let mut path = what.replace('_', "-");
        if let Some(vhost) = self.arguments.vhost.as_ref().filter(|_| listed.by_vhost) {
            path += &format!("/{}", crate::api::path(&[vhost]));
        }
        let shows_default = columns.is_empty() && self.arguments.depth == 1 && !format.is_json();
        let columns: Vec<String> = match shows_default {
            true => listed.columns.iter().map(|&column| column.to_owned()).collect(),
            false => columns.to_vec(),
        };
        let escaped: Vec<String> = columns.iter().map(|column| crate::api::path(&[column])).collect();
        let mut query = Vec::new();
        if !columns.is_empty() {
            query.push(format!("columns={}", escaped.join(",")));
        }
        if let Some(sort) = &self.arguments.sort {
            query.push(format!("sort={}", crate::api::path(&[sort])));
        }
        if self.arguments.sort_reverse {
            query.push("sort_reverse=true".to_owned());
        }
        if !query.is_empty() {
            path += &format!("?{}", query.join("&"));
        }
        let answer = self.ask("GET", &path, None)?;
        let text = if verb == "show" { format!("[{}]", answer.body) } else { answer.body };
        self.show(format, &text, &columns, listed.json)
    }

    fn show(&self, format: table::Format, text: &str, columns: &[String], json: &[&str]) -> Result<(), End> {
        let shown = table::written(format, text, columns, json, self.arguments.depth, self.arguments.quiet);
        out(&shown.map_err(End::Died)?);
        Ok(())
    }

    /// The fields that the words say, and the path that they make.
    fn fields(&self, words: &[String], fields: &Fields) -> Result<(String, serde_json::Map<String, Value>), End> {
        let vhost = self.arguments.vhost.as_deref().unwrap_or(&self.arguments.declare_vhost);
        let said = kinds::said(words, fields, vhost).map_err(End::Usage)?;
        let path = kinds::path(fields, &said).map_err(End::Usage)?;
        Ok((path, said))
    }

    fn change(&self, words: &[String], known: &[(&str, Kind)], done: &str) -> Result<(), End> {
        let Some((what, words)) = words.split_first() else {
            return Err(End::Usage("Type not specified".to_owned()));
        };
        let found = known.iter().find(|(name, _)| name == what);
        let (_, kind) = found.ok_or_else(|| End::Usage(format!("Type {what} not recognised")))?;
        let (path, mut said) = self.fields(words, &kind.fields)?;
        if let Some(Value::String(queue_type)) = said.remove("queue_type") {
            said.entry("arguments").or_insert_with(|| json!({}))["x-queue-type"] = Value::String(queue_type);
        }
        let body = (kind.method != "DELETE").then(|| Value::Object(said).to_string());
        self.ask(kind.method, &path, body)?;
        self.say(&format!("{what} {done}"));
        Ok(())
    }

    fn publish(&self, words: &[String]) -> Result<(), End> {
        let (path, mut said) = self.fields(words, &kinds::PUBLISH)?;
        if !said.contains_key("payload") {
            let mut payload = Vec::new();
            let read = std::io::stdin().read_to_end(&mut payload);
            read.map_err(|error| End::Died(format!("standard input: {error}")))?;
            said.insert("payload".to_owned(), STANDARD.encode(payload).into());
            said.insert("payload_encoding".to_owned(), "base64".into());
        }
        let answer = self.ask("POST", &path, Some(Value::Object(said).to_string()))?;
        match answer.json()["routed"] == true {
            true => self.say("Message published"),
            false => self.say("Message published but NOT routed"),
        }
        Ok(())
    }

    fn get(&self, words: &[String]) -> Result<(), End> {
        let format = table::Format::of(&self.arguments.format).map_err(End::Usage)?;
        let (path, mut said) = self.fields(words, &kinds::GET)?;
        let file = said.remove("payload_file").and_then(|file| file.as_str().map(str::to_owned));
        if file.is_some() && said["count"] != "1" {
            return Err(End::Usage("Cannot get multiple messages using payload_file".to_owned()));
        }
        let answer = self.ask("POST", &path, Some(Value::Object(said).to_string()))?;
        let Some(file) = file else {
            return self.show(format, &answer.body, &[], &[]);
        };
        let message = &answer.json()[0];
        let payload = message["payload"].as_str().ok_or_else(|| End::Died("the queue is empty".to_owned()))?;
        let payload = match message["payload_encoding"] == "base64" {
            true => STANDARD.decode(payload).map_err(|error| End::Died(error.to_string()))?,
            false => payload.as_bytes().to_vec(),
        };
        std::fs::write(&file, payload).map_err(|error| End::Died(format!("{file}: {error}")))?;
        let columns = ["routing_key", "exchange", "message_count", "payload_bytes", "redelivered"];
        self.show(format, &answer.body, &columns.map(str::to_owned), &[])
    }

    fn definitions_path(&self) -> String {
        match &self.arguments.vhost {
            Some(vhost) => crate::api::path(&["definitions", vhost]),
            None => "definitions".to_owned(),
        }
    }

    fn export(&self, words: &[String]) -> Result<(), End> {
        let [file] = words else { return Err(End::Usage("Exactly one argument required".to_owned())) };
        let answer = self.ask("GET", &self.definitions_path(), None)?;
        let failed = |error: std::io::Error| End::Died(format!("{file}: {error}"));
        let mut to = std::fs::File::create(file).map_err(failed)?;
        to.write_all(answer.body.as_bytes()).map_err(failed)?;
        self.say(&format!("Exported definitions for {} to \"{file}\"", self.arguments.host));
        Ok(())
    }

    fn import(&self, words: &[String]) -> Result<(), End> {
        let [file] = words else { return Err(End::Usage("Exactly one argument required".to_owned())) };
        let text = std::fs::read_to_string(file).map_err(|error| End::Died(format!("{file}: {error}")))?;
        let told = self.ask("POST", &self.definitions_path(), Some(text))?.json();
        for field in ["left_out", "different"] {
            for item in told[field].as_array().into_iter().flatten() {
                err(&format!("{}: {item}\n", field.replace('_', " ")));
            }
        }
        self.say(&format!("Uploaded definitions from \"{file}\" to {}.", self.arguments.host));
        Ok(())
    }
}

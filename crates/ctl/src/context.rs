//! What a verb works with: its words, the node, and where it says what it is about to do.

use crate::api::Api;
use crate::failure::{DATA, Failure, SOFTWARE, USAGE};
use crate::form::Form;
use crate::options::Options;
use crate::tool::Tool;
use crate::verb::Verb;
use serde_json::Value;
use std::cell::OnceCell;
use std::time::Duration;

/// See the module.
pub(crate) struct Cx<'a> {
    pub(crate) tool: Tool,
    pub(crate) verb: &'static Verb,
    pub(crate) options: &'a Options,
    pub(crate) form: Option<Form>,
    api: OnceCell<Result<Api, Failure>>,
}

impl<'a> Cx<'a> {
    pub(crate) fn new(tool: Tool, verb: &'static Verb, options: &'a Options, form: Option<Form>) -> Cx<'a> {
        Cx { tool, verb, options, form, api: OnceCell::new() }
    }

    /// The same for another verb without words, of the same node.
    pub(crate) fn for_verb<'b>(&self, verb: &'static Verb, options: &'b Options) -> Cx<'b> {
        Cx::new(self.tool, verb, options, self.form)
    }

    /// The node, once it has answered. Errors: it is not here, is on its way up, or does not let us in; it
    /// is looked for once.
    pub(crate) fn api(&self) -> Result<&Api, Failure> {
        let found = self.api.get_or_init(|| match self.found()? {
            (api, None) => Ok(api),
            (api, Some(why)) => {
                let until = "wait until it serves: leveret ctl await_startup";
                Err(crate::place::unable(Some(api.node_shown()), &why, until))
            }
        });
        found.as_ref().map_err(Clone::clone)
    }

    /// The node once it has answered, and what it waits for if it is on its way up. Errors: it is not here,
    /// or does not let us in.
    pub(crate) fn found(&self) -> Result<(Api, Option<String>), Failure> {
        let api = Api::new(crate::place::find(self.options)?, self.verb.name, self.timeout())?;
        let answer = api.get("whoami")?;
        if let Some(why) = answer.booting() {
            return Ok((api, Some(why)));
        }
        answer.good()?;
        Ok((api, None))
    }

    /// How long everything may take; `None` is for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let seconds = self.options.number("timeout").map(Some);
        let seconds = seconds.unwrap_or((self.verb.timeout_s > 0).then_some(self.verb.timeout_s));
        seconds.map(Duration::from_secs)
    }

    /// The node's name: the file's, or the node's own.
    pub(crate) fn node(&self) -> Result<String, Failure> {
        let api = self.api()?;
        match &api.place.node {
            Some(node) => Ok(node.clone()),
            None => Ok(text(&api.get("overview")?.good()?["node"])),
        }
    }

    /// The word at this place; the number of words was checked.
    pub(crate) fn word(&self, at: usize) -> &str {
        self.options.words.get(at).map_or("", String::as_str)
    }

    /// A word that names something. Errors: it is empty.
    pub(crate) fn name(&self, at: usize, what: &str) -> Result<&str, Failure> {
        match self.word(at) {
            "" => Err(Failure::argument(DATA, format!("Bad argument: {what} cannot be an empty string"))),
            name => Ok(name),
        }
    }

    /// The virtual host.
    pub(crate) fn vhost(&self) -> &str {
        self.options.text("vhost").unwrap_or("/")
    }

    /// Says what is about to be done, where somebody wants to read that and there is a node to do
    /// it: without one, that is all there is to say.
    pub(crate) fn banner(&self, text: &str) {
        if self.api().is_ok() {
            self.say(text);
        }
    }

    /// The same without a node.
    pub(crate) fn say(&self, text: &str) {
        let is_quiet = self.options.flag("quiet") || self.options.flag("silent");
        if !is_quiet && !self.form.is_some_and(Form::is_for_programs) {
            crate::output::out(&format!("{}\n", crate::term::harmless_lines(text)));
        }
    }

    /// The columns that were named, or these. Errors: one that there is not.
    pub(crate) fn columns(&self, default: &[&'static str]) -> Result<Vec<&'static str>, Failure> {
        if self.options.words.is_empty() {
            return Ok(default.to_vec());
        }
        let known = |word: &String| self.verb.columns.iter().find(|name| *name == word).copied().ok_or(word.clone());
        let (found, wrong): (Vec<_>, Vec<_>) = self.options.words.iter().map(known).partition(Result::is_ok);
        let wrong: Vec<String> = wrong.into_iter().filter_map(Result::err).collect();
        if wrong.is_empty() {
            return Ok(found.into_iter().flatten().collect());
        }
        let text = format!("Info key(s) {} are not supported", wrong.join(","));
        Err(Failure::argument(USAGE, text))
    }

    /// A word as JSON. Errors: it is none, or a key comes twice.
    pub(crate) fn json(&self, at: usize) -> Result<Value, Failure> {
        json_once::read(self.word(at).as_bytes())
            .map_err(|error| Failure::refused(format!("JSON decoding error. Reason: {error}")))
    }
}

/// A text out of an answer; anything else is empty.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The items of a list out of an answer.
pub(crate) fn items(value: Value) -> Result<Vec<Value>, Failure> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Failure::error(SOFTWARE, format!("the node's answer is no list: {other}"))),
    }
}

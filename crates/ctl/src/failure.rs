//! What did not work: the words on standard error and the exit code, which are RabbitMQ's.
//!
//! Invariant: a script tells by the code alone whether it was written wrong (64, 65), a user is
//! missing (67), the node is not there or refuses (69), the node is there and it went wrong (70), or
//! it took too long (75). These are the codes of sysexits(3).

use serde_json::{Value, json};

/// The words of the command are wrong.
pub(crate) const USAGE: u8 = 64;
/// What they name is wrong or missing.
pub(crate) const DATA: u8 = 65;
/// A user is missing.
pub(crate) const NO_USER: u8 = 67;
/// The node does not answer, or refuses.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The node answers that it did not work.
pub(crate) const SOFTWARE: u8 = 70;
/// It took too long.
pub(crate) const TOO_LATE: u8 = 75;

/// An end that is not a good one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
    pub(crate) kind: Kind,
    /// What a program reads beside its words, which are the `message`, and `result`.
    pub(crate) told: Option<Box<Value>>,
}

/// How its words are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As they are.
    Plain,
    /// After `Error:` on a line of its own.
    Error,
    /// After `Error (argument validation): `, and the usage of the verb behind it.
    Argument,
}

impl Failure {
    pub(crate) fn plain(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), kind: Kind::Plain, told: None }
    }

    pub(crate) fn error(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), kind: Kind::Error, told: None }
    }

    pub(crate) fn argument(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), kind: Kind::Argument, told: None }
    }

    /// The node was asked and said no.
    pub(crate) fn refused(text: impl Into<String>) -> Failure {
        Failure::error(UNAVAILABLE, text)
    }

    /// The same with what a program reads, an object.
    pub(crate) fn told(self, value: Value) -> Failure {
        Failure { told: Some(Box::new(value)), ..self }
    }

    /// What a program reads of it on standard error; `None` where it is words in every form, as they are in RabbitMQ: those of
    /// what never came to the node, or of what it does not have.
    pub(crate) fn json(&self) -> Option<Value> {
        if self.told.is_none() && self.kind != Kind::Error {
            return None;
        }
        let mut object = self.told.as_deref().cloned().unwrap_or_else(|| json!({}));
        object["message"] = self.text.trim_end().into();
        object["result"] = "error".into();
        Some(object)
    }

    /// The exit code, which for one is another where a program reads the answer.
    pub(crate) fn code_in(&self, is_json: bool) -> u8 {
        match self.code {
            // As there: that a user is missing is then an answer like any other.
            NO_USER if is_json && self.kind == Kind::Error => UNAVAILABLE,
            code => code,
        }
    }

    /// The same with a line more.
    pub(crate) fn and(self, line: &str) -> Failure {
        Failure { text: format!("{}\n{line}", self.text.trim_end()), ..self }
    }

    /// Whether the node said nothing of it, neither yes nor no.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.kind == Kind::Plain && [UNAVAILABLE, TOO_LATE].contains(&self.code)
    }

    /// What RabbitMQ says of a user that is not there.
    pub(crate) fn no_user(name: &str) -> Failure {
        Failure::error(NO_USER, format!("User \"{name}\" does not exist"))
    }

    /// What RabbitMQ says of a virtual host that is not there.
    pub(crate) fn no_vhost(name: &str) -> Failure {
        Failure::plain(DATA, format!("Virtual host '{name}' does not exist"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_node_refuses_is_an_object_for_a_program_and_wrong_words_are_words() {
        let no_user = Failure::no_user("u");
        let told = json!({ "message": "User \"u\" does not exist", "result": "error" });
        assert_eq!(no_user.json(), Some(told));
        assert_eq!((no_user.code_in(true), no_user.code_in(false)), (UNAVAILABLE, NO_USER));
        let failed = Failure::plain(UNAVAILABLE, "no listener\n").told(json!({ "missing": "1" }));
        assert_eq!(failed.json(), Some(json!({ "message": "no listener", "missing": "1", "result": "error" })));
        assert_eq!(Failure::no_vhost("v").json(), None);
        assert_eq!(Failure::argument(USAGE, "too many arguments.").json(), None);
    }
}

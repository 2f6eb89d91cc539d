//! What did not work: the words on standard error and the exit code, which are RabbitMQ's.
//!
//! Invariant: a script tells by the code alone whether it was written wrong (64, 65), a user is
//! missing (67), the node is not there or refuses (69), the node is there and it went wrong (70), or
//! it took too long (75). These are the codes of sysexits(3).

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
        Failure { code, text: text.into(), kind: Kind::Plain }
    }

    pub(crate) fn error(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), kind: Kind::Error }
    }

    pub(crate) fn argument(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into(), kind: Kind::Argument }
    }

    /// The node was asked and said no.
    pub(crate) fn refused(text: impl Into<String>) -> Failure {
        Failure::error(UNAVAILABLE, text)
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

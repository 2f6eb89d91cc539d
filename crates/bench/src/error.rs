//! Why a run could not be made, and whose fault that is.
//!
//! Invariant: a run that was made and found something (lost messages, a missed requirement) is no
//! error: that is a verdict.

/// What stops a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// Somebody ended it before it began.
    #[error("interrupted before the first run was over")]
    Interrupted,
    /// No broker answers, or it went away and did not come back.
    #[error("no broker at {address}: {why}")]
    Unreachable {
        /// Where it was looked for.
        address: String,
        /// What the attempt said.
        why: String,
    },
    /// The broker said no.
    #[error("the broker refused {what}: {code} {text}")]
    Refused {
        /// What was asked.
        what: String,
        /// Its reply code.
        code: u16,
        /// Its words.
        text: String,
    },
    /// The broker's bytes make no sense.
    #[error("the broker at {address} broke the protocol: {why}")]
    Protocol {
        /// Which one.
        address: String,
        /// What was wrong.
        why: String,
    },
    /// The machine refused something: a file, a process, a cgroup.
    #[error("{what}: {why}")]
    Machine {
        /// What was tried.
        what: String,
        /// What the system said.
        why: String,
    },
}

impl Error {
    /// A machine's refusal.
    pub fn machine(what: impl Into<String>, why: impl std::fmt::Display) -> Error {
        Error::Machine { what: what.into(), why: why.to_string() }
    }

    /// A wrong command line.
    pub fn usage(text: impl Into<String>) -> Error {
        Error::Usage(text.into())
    }
}

impl From<testbed::Failed> for Error {
    fn from(failed: testbed::Failed) -> Error {
        Error::machine(failed.what, failed.why)
    }
}

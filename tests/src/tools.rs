//! Our binary under the names of RabbitMQ's command line tools, as scripts call them.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::broker::{Broker, binary};

/// What a tool printed, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// The exit code.
    pub code: i32,
}

impl Told {
    /// Standard output, once the exit code is 0.
    pub fn good(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Standard error, once the exit code is this one.
    pub fn bad(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.err
    }
}

/// A tool with words that are given to it as they are, in the data folder's environment.
pub fn command(folder: &str, name: &str, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg0(name).args(words);
    // Nothing of a person's own settings, as with the broker.
    for (known, _) in std::env::vars_os() {
        let known = known.to_string_lossy();
        if known.starts_with("LEVERET_") || known.starts_with("RABBITMQ") {
            command.env_remove(&*known);
        }
    }
    command.env("LEVERET_DATA_DIR", folder).env("HOME", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end, with this on its standard input.
pub fn run_with_input(folder: &str, name: &str, words: &[&str], input: &str) -> Told {
    let mut child = command(folder, name, words).stdin(Stdio::piped()).spawn().expect("the binary starts");
    // It may end without reading.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    Told {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap_or(-1),
    }
}

/// The tools of a broker.
#[derive(Clone, Debug)]
pub struct Tools {
    folder: String,
}

impl Tools {
    /// Those that look into the broker's own data folder.
    pub fn of(broker: &Broker) -> Tools {
        Tools { folder: broker.data_folder().display().to_string() }
    }

    /// The data folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Any tool; words are divided by spaces.
    pub fn run(&self, name: &str, line: &str) -> Told {
        self.words(name, &line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
    }

    /// The same with words that may have spaces.
    pub fn words(&self, name: &str, words: &[&str]) -> Told {
        run_with_input(&self.folder, name, words, "")
    }

    /// rabbitmqctl.
    pub fn ctl(&self, line: &str) -> Told {
        self.run("rabbitmqctl", line)
    }

    /// rabbitmq-diagnostics.
    pub fn diagnostics(&self, line: &str) -> Told {
        self.run("rabbitmq-diagnostics", line)
    }
}

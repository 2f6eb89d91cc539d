//! The broker of one run of a campaign: by a command that it is, or by one that starts and one
//! that stops it.
//!
//! Invariant: what was started is stopped before the next one starts, also what a campaign that
//! was killed had left.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::file::Broker;
use crate::Error;
use crate::run::Context;

/// How long a command that starts or stops a broker may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A broker that is stopped when this goes.
pub(super) struct Peer<'a> {
    broker: &'a Broker,
    out: &'a Path,
}

impl<'a> Peer<'a> {
    /// Starts it; one that the run starts itself is only named here.
    pub(super) fn start(broker: &'a Broker, out: &'a Path, context: &Context) -> Result<Peer<'a>, Error> {
        let peer = Peer { broker, out };
        if let Some(start) = &broker.start {
            shell(start, out, &|| context.interrupted.load(Ordering::Relaxed))?;
        }
        Ok(peer)
    }

    /// Stops one that a campaign left which was killed, if there is one.
    pub(super) fn end(broker: &'a Broker, out: &'a Path) {
        drop(Peer { broker, out });
    }

    /// The words that bring a run to it.
    pub(super) fn words(&self) -> Vec<String> {
        let Broker { command, uri, nodes, .. } = self.broker;
        let mut words = match (uri, command) {
            (Some(uris), _) if uris.contains(',') => vec!["--uris".to_owned(), uris.clone()],
            (Some(uri), _) => vec!["--uri".to_owned(), uri.clone()],
            (None, Some(command)) => vec!["--broker".to_owned(), command.clone()],
            // Without a command and with nodes it is this program's.
            (None, None) if nodes.is_some() => Vec::new(),
            (None, None) => vec!["--broker".to_owned(), crate::broker::OWN.to_owned()],
        };
        words.extend(nodes.iter().flat_map(|nodes| ["--nodes".to_owned(), nodes.to_string()]));
        words
    }

    fn stop(&self) {
        // One that does not stop is told by the next start, which finds its port taken.
        if let Some(stop) = &self.broker.stop {
            let _ = shell(stop, self.out, &|| false);
        }
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a command to its end. Its words go to a file, because a broker that it leaves behind may
/// keep them open.
fn shell(command: &str, out: &Path, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
    let failed = |why: String| Error::machine(command.to_owned(), why);
    let path = out.join("broker.log");
    let log = File::create(&path).map_err(|why| failed(why.to_string()))?;
    let errors = log.try_clone().map_err(|why| failed(why.to_string()))?;
    let mut shell = Command::new("sh");
    // In a group of its own: Ctrl-C at a terminal is meant for the campaign, which then stops what
    // it started.
    shell.args(["-c", command]).process_group(0).stdin(Stdio::null()).stdout(log).stderr(errors);
    let mut child = shell.spawn().map_err(|why| failed(why.to_string()))?;
    let began = Instant::now();
    loop {
        let ended = child.try_wait().map_err(|why| failed(why.to_string()))?;
        let why = match ended {
            Some(status) if status.success() => return Ok(()),
            Some(status) => status.to_string(),
            None if is_over() => "interrupted".to_owned(),
            None if began.elapsed() > PATIENCE => format!("it did not end within {} s", PATIENCE.as_secs()),
            None => {
                std::thread::sleep(LOOK);
                continue;
            }
        };
        if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32).filter(|_| ended.is_none()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
        let words = std::fs::read_to_string(&path).unwrap_or_default();
        let last: Vec<&str> = words.lines().rev().take(5).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        return Err(failed(format!("{why}; its last words: {}", last.join(" / "))));
    }
}

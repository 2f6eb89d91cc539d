//! The broker under test when this tool starts it: on a free port, on a fresh folder, in a box if limits were asked for.
//!
//! Invariant: what was started is stopped, with its cgroup and its folder, however the run ends; a broker that does not come up is
//! told with its last words.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cgroup::{Cgroup, Limits};

use crate::Error;
use crate::options::BrokerStart;
use crate::uri::Uri;

/// How long a broker may take to come up. RabbitMQ on a fraction of a core takes most of a minute.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// How long it may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of its log that are told when it does not come up.
const LAST_WORDS_BYTES: usize = 600;

/// A broker of our own.
#[derive(Debug)]
pub struct Broker {
    command: Vec<String>,
    port: u16,
    folder: tempfile::TempDir,
    cgroup: Option<Cgroup>,
    child: Option<Child>,
}

impl Broker {
    /// Starts it and waits until it listens.
    pub fn start(wanted: &BrokerStart) -> Result<Broker, Error> {
        let folder = tempfile::Builder::new().prefix("leveret-bench-").tempdir();
        let folder = folder.map_err(|why| Error::machine("making a folder for the broker", why))?;
        let port = free_port()?;
        let command = command(wanted, port, &folder.path().join("data"))?;
        let cgroup = match wanted.cpu.is_some() || wanted.memory_bytes.is_some() {
            true => Some(boxed(wanted)?),
            false => None,
        };
        let mut broker = Broker { command, port, folder, cgroup, child: None };
        broker.launch()?;
        Ok(broker)
    }

    /// Starts it on its data as they are.
    pub fn launch(&mut self) -> Result<(), Error> {
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.map_err(|why| Error::machine("writing the broker's log", why))?;
        let errors = log.try_clone().map_err(|why| Error::machine("writing the broker's log", why))?;
        let words = match &self.cgroup {
            None => self.command.clone(),
            Some(cgroup) => cgroup.wrapped(&self.command),
        };
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|why| Error::machine(format!("starting {}", self.command[0]), why))?;
        self.child = Some(child);
        self.wait_until_it_listens()
    }

    /// Where it listens.
    pub fn uri(&self) -> Uri {
        Uri {
            tls: false,
            host: "127.0.0.1".into(),
            port: self.port,
            user: "guest".into(),
            password: "guest".into(),
            vhost: "/".into(),
        }
    }

    /// Its process. A broker that forks is found by its port instead.
    pub fn pids(&self) -> Vec<u32> {
        let listening = crate::process::listeners(self.port);
        if listening.is_empty() { self.child.iter().map(Child::id).collect() } else { listening }
    }

    /// Its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        let pids = self.pids();
        for pid in pids.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
            rustix::process::kill_process(pid, signal).map_err(|why| Error::machine("signalling the broker", why))?;
        }
        Ok(())
    }

    /// Kills it hard, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.signal(rustix::process::Signal::KILL)?;
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("broker.log")
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            let child = self.child.as_mut().expect("it was launched");
            let ended = child.try_wait().ok().flatten();
            if ended.is_some() || started.elapsed() > START_PATIENCE {
                let log = self.log();
                let last = log.char_indices().rev().nth(LAST_WORDS_BYTES).map_or(0, |(at, _)| at);
                use std::os::unix::process::ExitStatusExt as _;
                let why = match ended {
                    Some(status) if self.cgroup.is_some() && status.signal() == Some(9) => {
                        format!("it ended with {status}, which is how a box with too little memory ends it")
                    }
                    Some(status) => format!("it ended with {status}"),
                    None => format!("it does not listen after {} s", START_PATIENCE.as_secs()),
                };
                return Err(Error::machine(
                    format!("starting {}", self.command.join(" ")),
                    format!("{why}; its last words: {}", log[last..].trim()),
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = self.signal(rustix::process::Signal::TERM);
        let started = Instant::now();
        while started.elapsed() < STOP_PATIENCE {
            if matches!(child.try_wait(), Ok(Some(_))) && crate::process::listeners(self.port).is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.signal(rustix::process::Signal::KILL);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A box with all of its limits; one that does not hold is a run that would measure something else.
fn boxed(wanted: &BrokerStart) -> Result<Cgroup, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("leveret-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let limits = Limits { cpu: wanted.cpu, memory_bytes: wanted.memory_bytes, disk: None };
    let cgroup = Cgroup::create(&name, &limits);
    match cgroup.refused.first() {
        Some(refused) => Err(Error::machine(format!("limiting the broker's {}", refused.what), &refused.why)),
        None => Ok(cgroup),
    }
}

/// The command with its port and folder filled in; without one, this binary's own server.
fn command(wanted: &BrokerStart, port: u16, data: &Path) -> Result<Vec<String>, Error> {
    let data = data.display().to_string();
    let Some(command) = &wanted.command else {
        let this = std::env::current_exe().map_err(|why| Error::machine("finding this program", why))?;
        let amqp = format!("127.0.0.1:{port}");
        return Ok([
            &this.display().to_string(),
            "server",
            "--data-dir",
            &data,
            "--amqp",
            &amqp,
            "--management",
            "none",
        ]
        .map(str::to_owned)
        .to_vec());
    };
    if !command.contains("{port}") {
        return Err(Error::usage(format!("--broker {command:?} has no {{port}}: it must listen where it is told")));
    }
    let filled = command.replace("{port}", &port.to_string()).replace("{dir}", &data);
    let words: Vec<String> = filled.split_whitespace().map(str::to_owned).collect();
    Ok(words)
}

fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(|why| Error::machine("finding a free port", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(command: &str) -> BrokerStart {
        BrokerStart { command: Some(command.to_owned()), ..BrokerStart::default() }
    }

    #[test]
    fn a_broker_that_ends_at_once_is_told_with_its_last_words() {
        let error = Broker::start(&wanted("cat /nonexistent/{port}")).expect_err("cat is no broker").to_string();
        assert!(error.contains("No such file"), "{error}");
        let error = Broker::start(&wanted("sleep 1")).expect_err("no port").to_string();
        assert!(error.contains("{port}"), "{error}");
    }
}

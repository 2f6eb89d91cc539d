//! One node of the broker under test, as this tool starts it: on free ports, on a fresh folder, in a
//! box if limits were asked for.
//!
//! Invariant: what was started is stopped, with its cgroup and its folder, however the run ends; a
//! node that does not come up is told with its last words.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
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

/// A broker that nothing shows to be ours counts as ours when its port answers and what was started
/// still runs after this long: whoever finds its port taken ends before.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// The variable by which a process shows that it comes from what was started, whoever forked it:
/// its value is the run's folder.
const MARK: &str = "BENCH_BROKER_FOLDER";

/// How the names of folders begin.
const FOLDERS: &str = "leveret-bench-";

/// The file of a folder that is locked by the process that made it.
const OWNER: &str = "owner";

/// A folder that is younger than this may belong to a process that has not come to locking it.
const YOUNG: Duration = Duration::from_secs(5);

/// The process groups of the brokers that run. Ctrl-C at a terminal goes to this program's group,
/// and a broker that got it too would be gone before its load is.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Bytes of its log that are told when it does not come up.
const LAST_WORDS_BYTES: usize = 600;

/// A node of our own.
#[derive(Debug)]
pub(super) struct Node {
    command: Vec<String>,
    pub(super) port: u16,
    folder: tempfile::TempDir,
    cgroup: Option<Cgroup>,
    child: Option<Child>,
    /// Locked as long as this process lives.
    _owner: Option<File>,
}

impl Node {
    /// A node that is not started yet, with its folder and its box.
    pub(super) fn new(wanted: &BrokerStart) -> Result<Node, Error> {
        let folder = tempfile::Builder::new().prefix(FOLDERS).tempdir();
        let folder = folder.map_err(|why| Error::machine("making a folder for the broker", why))?;
        let cgroup = match wanted.cpu.is_some() || wanted.memory_bytes.is_some() {
            true => Some(boxed(wanted)?),
            false => None,
        };
        let owner = owner(folder.path())?;
        Ok(Node { command: Vec::new(), port: 0, folder, cgroup, child: None, _owner: Some(owner) })
    }

    /// Where it is to listen, and what starts it there.
    pub(super) fn set(&mut self, port: u16, command: Vec<String>) {
        self.port = port;
        self.command = command;
    }

    /// Where its data are.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Whether somebody else listens where it should.
    pub(super) fn is_port_taken(&self) -> bool {
        whose(self.port, self.folder.path()) == Whose::Strange
    }

    /// Whether it was started and not ended by us.
    pub(super) fn is_launched(&self) -> bool {
        self.child.is_some()
    }

    /// Ends it without asking.
    pub(super) fn end_child(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
            groups().remove(&child.id());
        }
    }

    /// Starts it on its data as they are, and waits for nothing.
    pub(super) fn launch(&mut self) -> Result<(), Error> {
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.map_err(|why| Error::machine("writing the broker's log", why))?;
        let errors = log.try_clone().map_err(|why| Error::machine("writing the broker's log", why))?;
        let words = match &self.cgroup {
            None => self.command.clone(),
            Some(cgroup) => cgroup.wrapped(&self.command),
        };
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env(MARK, self.folder.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|why| Error::machine(format!("starting {}", self.command[0]), why))?;
        groups().insert(child.id());
        self.child = Some(child);
        Ok(())
    }

    /// Where it listens.
    pub(super) fn uri(&self) -> Uri {
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
    pub(super) fn pids(&self) -> Vec<u32> {
        let mut listening = crate::process::listeners(self.port);
        listening.retain(|pid| is_marked(*pid, self.folder.path()) != Some(false));
        if listening.is_empty() { self.child.iter().map(Child::id).collect() } else { listening }
    }

    /// Its folder, in which its data and its log are.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it logged.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Sends a signal to its process.
    pub(super) fn signal(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        let pids = self.pids();
        for pid in pids.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
            rustix::process::kill_process(pid, signal).map_err(|why| Error::machine("signalling the broker", why))?;
        }
        Ok(())
    }

    /// Kills it hard, as a crash would, and waits until it is gone.
    pub(super) fn kill(&mut self) -> Result<(), Error> {
        self.signal(rustix::process::Signal::KILL)?;
        self.end_child();
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("broker.log")
    }

    /// Waits until it serves clients.
    pub(super) fn wait_until_it_listens(&mut self) -> Result<(), Error> {
        let started = Instant::now();
        let mut answers_since = None;
        loop {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                let since = *answers_since.get_or_insert_with(Instant::now);
                match whose(self.port, self.folder.path()) {
                    Whose::Ours => return Ok(()),
                    // It may be that of a container, whose processes are not its starter's.
                    Whose::Unknown if since.elapsed() > STRANGER_PATIENCE => return Ok(()),
                    Whose::Unknown => {}
                    Whose::Strange => {
                        let taken = format!("somebody else listens on port {}", self.port);
                        return Err(Error::machine(format!("starting {}", self.command.join(" ")), taken));
                    }
                }
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

impl Drop for Node {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = self.signal(rustix::process::Signal::TERM);
        let started = Instant::now();
        let is_gone = |child: &mut Child| {
            matches!(child.try_wait(), Ok(Some(_))) && crate::process::listeners(self.port).is_empty()
        };
        while !is_gone(&mut child) {
            if started.elapsed() > STOP_PATIENCE {
                let _ = self.signal(rustix::process::Signal::KILL);
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child = Some(child);
        self.end_child();
    }
}

fn groups() -> std::sync::MutexGuard<'static, BTreeSet<u32>> {
    GROUPS.lock().expect("nobody panics with this lock")
}

/// Kills all brokers that run, without asking: for a program that is told to end at once.
pub fn kill_all() {
    for group in groups().iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
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

/// Who listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// What was started for this folder, or what it started.
    Ours,
    /// What another run of this tool started.
    Strange,
    /// Nothing shows whose it is, or nobody listens.
    Unknown,
}

fn whose(port: u16, folder: &Path) -> Whose {
    let marks: Vec<bool> =
        crate::process::listeners(port).into_iter().filter_map(|pid| is_marked(pid, folder)).collect();
    match (marks.contains(&true), marks.is_empty()) {
        (true, _) => Whose::Ours,
        (false, false) => Whose::Strange,
        (false, true) => Whose::Unknown,
    }
}

/// Whether a process comes from what was started for this folder; `None` if it has no mark or we
/// may not see it.
fn is_marked(pid: u32, folder: &Path) -> Option<bool> {
    use std::os::unix::ffi::OsStrExt as _;
    crate::process::variable(pid, MARK).map(|mark| mark == folder.as_os_str().as_bytes())
}

fn owner(folder: &Path) -> Result<File, Error> {
    let file = File::create(folder.join(OWNER)).and_then(|file| file.try_lock().map(|()| file).map_err(Into::into));
    file.map_err(|why| Error::machine("locking the broker's folder", why))
}

/// Ends the brokers of runs that were killed, and removes their folders. Nobody else would, and
/// they would go on using the machine that is measured. Waits for a few seconds where it is too
/// early to tell whose a folder is: a run that is begun again at once finds its own of before.
pub fn end_orphans() {
    end_orphans_in(&std::env::temp_dir(), YOUNG);
}

fn end_orphans_in(all: &Path, young: Duration) {
    if let Some(left) = end_those_of_age(all, young) {
        std::thread::sleep(left);
        // What has come since is nobody's that was killed before.
        let _ = end_those_of_age(all, young);
    }
}

/// Ends those whose folders are older than `young`. Says after how long all of the others will be.
fn end_those_of_age(all: &Path, young: Duration) -> Option<Duration> {
    let mut longest = None;
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(FOLDERS)) {
        let folder = entry.path();
        let Ok(file) = File::open(folder.join(OWNER)) else { continue };
        // One of the future is left alone: the clock was set.
        let Some(age) = file.metadata().and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok()) else {
            continue;
        };
        if age < young {
            let left = young - age;
            longest = longest.max(Some(left));
            continue;
        }
        if file.try_lock().is_err() {
            continue;
        }
        for pid in crate::process::all().filter(|pid| is_marked(*pid, &folder) == Some(true)) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
    longest
}

/// A port that nobody has.
pub(super) fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(|why| Error::machine("finding a free port", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_ends_at_once_is_told_with_its_last_words() {
        let mut node = Node::new(&BrokerStart::default()).expect("a folder");
        node.set(free_port().expect("a port"), ["cat", "/nonexistent"].map(str::to_owned).to_vec());
        node.launch().expect("it is a program");
        let error = node.wait_until_it_listens().expect_err("cat is no broker").to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_broker_that_a_killed_run_left_a_moment_ago_is_ended_too() {
        let all = tempfile::tempdir().expect("a folder");
        let of = |name: &str| {
            let folder = all.path().join(format!("{FOLDERS}{name}"));
            std::fs::create_dir(&folder).expect("a folder");
            folder
        };
        let (left, lives) = (of("left"), of("lives"));
        drop(owner(&left).expect("it is locked, until its owner is killed"));
        let _lock = owner(&lives).expect("it is locked");
        let start = |folder: &Path| Command::new("sleep").arg("60").env(MARK, folder).spawn().expect("it starts");
        let (mut orphan, mut other) = (start(&left), start(&lives));
        end_orphans_in(all.path(), Duration::from_millis(300));
        assert!(!orphan.wait().expect("it ends").success(), "it was killed");
        assert!(!left.exists() && lives.exists());
        assert!(other.try_wait().expect("it is asked").is_none(), "its run lives");
        other.kill().expect("it is ended");
        other.wait().expect("it ends");
    }

    /// Two runs that were given one port would measure one broker, and lose to each other what the
    /// other receives.
    #[test]
    fn a_port_that_another_run_has_is_not_ours() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(whose(port, folder.path()), Whose::Unknown, "this process bears no mark");
        drop(listener);
        let script = "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(60)";
        let child = Command::new("python3")
            .args(["-c", script, &port.to_string()])
            .env(MARK, folder.path())
            .spawn()
            .expect("the tests need python3");
        let mut broker = Node { command: Vec::new(), port, folder, cgroup: None, child: Some(child), _owner: None };
        broker.wait_until_it_listens().expect("it is ours");
        let other = tempfile::tempdir().expect("a folder");
        assert_eq!(whose(port, other.path()), Whose::Strange);
        let command = ["sleep", "60"].map(str::to_owned).to_vec();
        let mut second = Node { command, port, folder: other, cgroup: None, child: None, _owner: None };
        second.launch().expect("it is a program");
        let error = second.wait_until_it_listens().expect_err("it is another's").to_string();
        assert!(error.contains("somebody else listens") && second.is_port_taken(), "{error}");
        second.end_child();
        broker.end_child();
    }
}

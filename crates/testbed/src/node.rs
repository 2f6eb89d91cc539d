//! One node of a broker under test, as it is started here: a process on a port, with a folder and a
//! box of its own.
//!
//! Invariant: what was started is stopped, with all that it started itself, before its box and its
//! folder go; a node that does not come up is told with its last words.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::folder::{MARK, is_marked};
use crate::{Cgroup, Failed, Folder, process};

/// How long a node may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// A broker that nothing shows to be ours counts as ours when its port answers and what was started
/// still runs after this long: whoever finds its port taken ends before.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// How long one answer of a starting node may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a client says first; a broker that is up answers it.
const AMQP_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Bytes of its log that are told when it does not come up.
const LAST_WORDS_BYTES: usize = 600;

/// The process groups of the nodes that run. Ctrl-C at a terminal goes to this program's group, and
/// a broker that got it too would be gone before its load is.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A node of our own.
#[derive(Debug)]
pub struct Node {
    command: Vec<String>,
    port: u16,
    child: Option<Child>,
    // Dropped in this order, after the process.
    cgroup: Option<Cgroup>,
    folder: Folder,
}

/// When a node counts as up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// When it listens: it may be a stand-in that is no broker.
    Listens,
    /// When it answers what a client of AMQP says first.
    Answers,
}

/// Who listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// What was started for this folder, or what it started.
    Ours,
    /// What another run started.
    Strange,
    /// Nothing shows whose it is, or nobody listens.
    Unknown,
}

impl Node {
    /// A node that is not started yet.
    pub fn new(folder: Folder, cgroup: Option<Cgroup>) -> Node {
        Node { command: Vec::new(), port: 0, child: None, cgroup, folder }
    }

    /// Where it is to listen, and what starts it there.
    pub fn set(&mut self, port: u16, command: Vec<String>) {
        self.port = port;
        self.command = command;
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder, in which its data and its log are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its box.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Leaves its folder behind: its log says what went wrong.
    pub fn keep_folder(&mut self) {
        self.folder.is_kept = true;
    }

    /// Whether another run listens where it should.
    pub fn is_port_taken(&self) -> bool {
        whose(self.port, self.folder()) == Whose::Strange
    }

    /// Whether anybody listens where it should.
    pub fn is_port_open(&self) -> bool {
        TcpStream::connect_timeout(&self.address(), ANSWER_PATIENCE).is_ok()
    }

    /// Whether it was started and not ended by us.
    pub fn is_launched(&self) -> bool {
        self.child.is_some()
    }

    /// The process group that it was started as.
    pub fn group(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts it on its data as they are, and waits for nothing.
    pub fn launch(&mut self) -> Result<(), Failed> {
        let logging = |why| Failed::new("writing the broker's log", why);
        let log = File::options().create(true).append(true).open(self.log_path()).map_err(logging)?;
        let errors = log.try_clone().map_err(logging)?;
        let words = self.cgroup.as_ref().map_or_else(|| self.command.clone(), |cgroup| cgroup.wrapped(&self.command));
        let child = Command::new(&words[0])
            .args(&words[1..])
            .env(MARK, self.folder())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|why| Failed::new(format!("starting {}", self.command[0]), why))?;
        groups().insert(child.id());
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it serves clients.
    pub fn wait(&mut self, up: Up, patience: Duration) -> Result<(), Failed> {
        let started = Instant::now();
        let mut answers_since = None;
        loop {
            if self.is(up) {
                let since = *answers_since.get_or_insert_with(Instant::now);
                match whose(self.port, self.folder()) {
                    Whose::Ours => return Ok(()),
                    // It may be that of a container, whose processes are not its starter's.
                    Whose::Unknown if since.elapsed() > STRANGER_PATIENCE => return Ok(()),
                    Whose::Unknown => {}
                    Whose::Strange => {
                        return Err(self.not_started(format!("somebody else listens on port {}", self.port)));
                    }
                }
            }
            let child = self.child.as_mut().expect("it was launched");
            let ended = child.try_wait().ok().flatten();
            if ended.is_some() || started.elapsed() > patience {
                return Err(self.not_started(self.last_words(ended, patience)));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn not_started(&self, why: String) -> Failed {
        Failed::new(format!("starting {}", self.command.join(" ")), why)
    }

    fn last_words(&self, ended: Option<ExitStatus>, patience: Duration) -> String {
        let log = self.log();
        let last = log.char_indices().rev().nth(LAST_WORDS_BYTES).map_or(0, |(at, _)| at);
        let why = match ended {
            Some(status) if self.cgroup.is_some() && status.signal() == Some(9) => {
                format!("it ended with {status}, which is how a box with too little memory ends it")
            }
            Some(status) => format!("it ended with {status}"),
            None => format!("it does not serve port {} after {:.0} s", self.port, patience.as_secs_f64()),
        };
        format!("{why}; its last words: {}", log[last..].trim())
    }

    fn is(&self, up: Up) -> bool {
        let Ok(mut stream) = TcpStream::connect_timeout(&self.address(), ANSWER_PATIENCE) else { return false };
        if up == Up::Listens {
            return true;
        }
        // A port that is only open, or another program's, does not say the same.
        let _ = stream.set_read_timeout(Some(ANSWER_PATIENCE));
        let mut first = [0_u8; 1];
        stream.write_all(AMQP_HEADER).is_ok() && stream.read_exact(&mut first).is_ok() && first == [1]
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its process. A broker that forks is found by its port instead.
    pub fn pids(&self) -> Vec<u32> {
        let mut listening = process::listeners(self.port);
        listening.retain(|pid| is_marked(*pid, self.folder()) != Some(false));
        if listening.is_empty() { self.child.iter().map(Child::id).collect() } else { listening }
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder().join("broker.log")
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) -> Result<(), Failed> {
        for pid in self.pids().iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            kill_process(pid, signal).map_err(|why| Failed::new("signalling the broker", why))?;
        }
        Ok(())
    }

    /// Kills it hard, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) -> Result<(), Failed> {
        self.signal(Signal::KILL)?;
        self.end();
        Ok(())
    }

    /// Ends it and whoever is left of what it started, without asking.
    pub fn end(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(group) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.kill();
        let _ = child.wait();
        groups().remove(&child.id());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = self.signal(Signal::TERM);
        if let Some(group) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process_group(group, Signal::TERM);
        }
        let started = Instant::now();
        let is_gone =
            |child: &mut Child| matches!(child.try_wait(), Ok(Some(_))) && process::listeners(self.port).is_empty();
        while !is_gone(&mut child) {
            if started.elapsed() > STOP_PATIENCE {
                let _ = self.signal(Signal::KILL);
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.child = Some(child);
        self.end();
    }
}

fn groups() -> MutexGuard<'static, BTreeSet<u32>> {
    GROUPS.lock().expect("nobody panics with this lock")
}

/// Kills all nodes that run, without asking: for a program that is told to end at once.
pub fn kill_all() {
    for group in groups().iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// A port that nobody has.
pub fn free_port() -> Result<u16, Failed> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(|why| Failed::new("finding a free port", why))
}

fn whose(port: u16, folder: &Path) -> Whose {
    let marks: Vec<bool> = process::listeners(port).into_iter().filter_map(|pid| is_marked(pid, folder)).collect();
    match (marks.contains(&true), marks.is_empty()) {
        (true, _) => Whose::Ours,
        (false, false) => Whose::Strange,
        (false, true) => Whose::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: &str =
        "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(60)";
    const PATIENCE: Duration = Duration::from_secs(20);

    fn node(command: &[&str]) -> Node {
        let mut node = Node::new(Folder::for_a_while().expect("a folder"), None);
        let port = free_port().expect("a port");
        node.set(port, command.iter().map(|word| word.replace("{port}", &port.to_string())).collect());
        node
    }

    #[test]
    fn a_broker_that_ends_at_once_is_told_with_its_last_words() {
        let mut node = node(&["cat", "/nonexistent"]);
        node.launch().expect("it is a program");
        let error = node.wait(Up::Listens, PATIENCE).expect_err("cat is no broker").to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    /// Two runs that were given one port would measure one broker, and lose to each other what the
    /// other receives.
    #[test]
    fn a_port_that_another_run_has_is_not_ours() {
        let mut broker = node(&["python3", "-c", LISTENER, "{port}"]);
        let listener = TcpListener::bind(broker.address()).expect("nobody has it yet");
        assert_eq!(whose(broker.port, broker.folder()), Whose::Unknown, "this process bears no mark");
        drop(listener);
        broker.launch().expect("the tests need python3");
        broker.wait(Up::Listens, PATIENCE).expect("it is ours");
        let mut second = node(&["sleep", "60"]);
        second.port = broker.port;
        assert!(second.is_port_taken() && !broker.is_port_taken());
        second.launch().expect("it is a program");
        let error = second.wait(Up::Listens, PATIENCE).expect_err("it is another's").to_string();
        assert!(error.contains("somebody else listens"), "{error}");
    }

    #[test]
    fn a_port_that_only_listens_is_no_broker_that_answers() {
        let mut node = node(&["python3", "-c", LISTENER, "{port}"]);
        node.launch().expect("the tests need python3");
        node.wait(Up::Listens, PATIENCE).expect("it listens");
        let error = node.wait(Up::Answers, Duration::from_millis(10)).expect_err("it says nothing").to_string();
        assert!(error.contains("does not serve port"), "{error}");
    }

    #[test]
    fn what_a_broker_started_itself_goes_with_it() {
        let mut node = node(&["sh", "-c", "sleep 600 & echo $! > \"$0\"; wait", "{file}"]);
        let file = node.folder().join("pid");
        node.command[3] = file.display().to_string();
        node.launch().expect("it is a program");
        let started = Instant::now();
        let pid = loop {
            match fs::read_to_string(&file).unwrap_or_default().trim().parse::<u32>() {
                Ok(pid) => break pid,
                Err(_) => assert!(started.elapsed() < PATIENCE, "it starts another"),
            }
            std::thread::sleep(LOOK_EVERY);
        };
        node.end();
        // Its parent is gone, and whoever reaps it may take a moment.
        let is_running = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
        };
        while is_running() {
            assert!(started.elapsed() < PATIENCE, "{pid} was left behind");
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

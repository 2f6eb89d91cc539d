//! The broker under test: a `leveret server` of our own on a free port and a fresh folder, or one
//! that already runs.
//!
//! Invariant: a process that a fixture started never outlives the test process, however that ends.
//!
//! Environment: `AMQP_URI` points at a running broker (RabbitMQ, to compare with) and nothing is
//! started then. What needs a restart is skipped, unless `BROKER_CONTROL` names a program that does
//! it for `start`, `stop` (SIGTERM) and `kill` (SIGKILL) as its only argument, as
//! `tests/rabbitmq.sh` does. Otherwise `LEVERET_BIN` names the binary, or the newest one built into
//! the target folder is used.

use std::collections::HashSet;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::http::Http;

/// How long a start may take before the fixture gives up. Far above the target of 0.3 s: a loaded
/// machine is no bug.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// How long a process may take to end after a signal.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// A free port is looked for this often when others keep taking it.
const PORT_ATTEMPTS_MAX: usize = 5;

/// A broker to test.
pub struct Broker {
    addr: SocketAddr,
    own: Option<Own>,
    /// What starts and ends a broker that is not ours.
    control: Option<PathBuf>,
}

/// How a broker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// SIGTERM: it has time to settle its affairs.
    Terminated,
    /// `kill -9`.
    Killed,
}

struct Own {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Option<Child>,
}

/// True when the tests run against a broker that is not ours.
pub fn is_foreign() -> bool {
    std::env::var_os("AMQP_URI").is_some()
}

/// A name that no other test of this run uses.
pub fn unique(stem: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{stem}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether all threads of a process stand still: one may go on for a moment behind the signal.
fn is_stopped(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("the broker runs").flatten();
    let state = |stat: String| stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('T'));
    threads
        .map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok().and_then(state))
        .all(|is| is != Some(false))
}

impl Broker {
    /// The broker that all tests of this process share. Started at the first call.
    pub fn shared() -> &'static Broker {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| Self::foreign().unwrap_or_else(|| Self::own(&[])))
    }

    /// A broker for one test alone, which it may kill; `None` (and a line that says so) when the
    /// broker is not ours.
    pub fn own_or_skip(arguments: &[&str]) -> Option<Broker> {
        if is_foreign() {
            eprintln!("skipped: this test restarts its broker, and AMQP_URI names one that it may not");
            return None;
        }
        Some(Self::own(arguments))
    }

    /// A broker that may be restarted, and its management API: one of our own, or the one that
    /// `BROKER_CONTROL` controls. That one is shared by all tests of a run, which have to take
    /// turns. `None` (and a line that says so) if there is neither.
    pub fn restartable(arguments: &[&str]) -> Option<(Broker, Http)> {
        if !is_foreign() {
            return Self::managed(arguments);
        }
        let Some(control) = std::env::var_os("BROKER_CONTROL") else {
            eprintln!("skipped: this test restarts its broker, and BROKER_CONTROL names nothing that could");
            return None;
        };
        let (mut broker, http) = Self::managed(&[])?;
        broker.control = Some(control.into());
        Some((broker, http))
    }

    /// Ends it and starts it again on what it left, and waits until it answers.
    pub fn restart(&mut self, end: End) {
        if self.control.is_some() {
            self.tell_control(if end == End::Killed { "kill" } else { "stop" });
            self.tell_control("start");
            let due = Instant::now() + START_PATIENCE;
            while Client::login(self.addr, &Default::default()).is_err() {
                assert!(Instant::now() < due, "the broker does not answer after {START_PATIENCE:?}");
                std::thread::sleep(Duration::from_millis(50));
            }
            return;
        }
        match end {
            End::Killed => self.kill(),
            End::Terminated => {
                let status = self.terminate();
                assert_eq!(status.code(), Some(0), "SIGTERM is a good end\n{}", self.log());
            }
        }
        self.start();
    }

    fn tell_control(&self, what: &str) {
        let control = self.control.as_deref().expect("asked for by those that have one");
        let status = Command::new(control).arg(what).status();
        let status = status.unwrap_or_else(|why| panic!("{}: {why}", control.display()));
        assert!(status.success(), "{} {what}: {status}", control.display());
    }

    /// Starts a broker on a fresh folder, with more arguments after the fixture's own.
    pub fn own(arguments: &[&str]) -> Broker {
        let mut broker = Broker::not_started(arguments);
        broker.start();
        broker
    }

    /// The same, to be [launched](Broker::launch): it may have to wait for others.
    pub fn not_started(arguments: &[&str]) -> Broker {
        let own = Own {
            folder: tempfile::Builder::new().prefix("leveret-test-").tempdir().expect("a temporary folder"),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            environment: Vec::new(),
            child: None,
        };
        Broker { addr: free_port(), own: Some(own), control: None }
    }

    /// Waits until one that was launched answers. Panics with its log when it does not.
    pub fn until_it_answers(&mut self) {
        if let Err(why) = self.wait_until_it_answers() {
            panic!("{why}\n--- its log ---\n{}", self.log());
        }
    }

    /// A broker with its management API, for one test alone; of one that is not ours, where
    /// `MANAGEMENT` says that it is.
    pub fn managed(arguments: &[&str]) -> Option<(Broker, Http)> {
        if is_foreign() {
            let Ok(addr) = std::env::var("MANAGEMENT") else {
                eprintln!("skipped: MANAGEMENT does not name the API of the broker that AMQP_URI names");
                return None;
            };
            let addr = addr.parse().expect("MANAGEMENT is an address and a port");
            return Some((Self::foreign()?, Http::new(addr)));
        }
        let addr = free_port();
        let mut all = vec!["--management".to_owned(), addr.to_string()];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Some((Self::own(&all), Http::new(addr)))
    }

    fn foreign() -> Option<Broker> {
        let uri = std::env::var("AMQP_URI").ok()?;
        let rest = uri.strip_prefix("amqp://").expect("AMQP_URI starts with amqp://");
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        let host = host.split('/').next().unwrap_or(host);
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:5672") };
        let addr =
            host.to_socket_addrs().expect("AMQP_URI names a host").next().expect("AMQP_URI's host has an address");
        Some(Broker { addr, own: None, control: None })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its URI for client libraries.
    pub fn uri(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.addr)
    }

    /// A new connection.
    pub fn connect(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Its data folder; only of a broker of our own.
    pub fn data_folder(&self) -> PathBuf {
        self.owned().folder.path().join("data")
    }

    /// What it logged so far; only of a broker of our own.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.own.as_ref()?.child.as_ref().map(Child::id)
    }

    /// Processor time that its process has taken so far, in hundredths of a second.
    ///
    /// # Panics
    /// If it does not run.
    pub fn cpu_ticks(&self) -> u64 {
        let pid = self.pid().expect("the broker runs");
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its process is ours");
        // The name of the program may have spaces in it.
        let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
        // Its own code's and the kernel's for it: the 14th and 15th of all, counted from the third here.
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a count")).sum()
    }

    /// An environment variable for the next start.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.owned_mut().environment.push((name.to_owned(), value.to_owned()));
    }

    /// Takes away those arguments of the next starts that begin with `prefix`, each with its value;
    /// gives back what there was before.
    pub fn without_arguments(&mut self, prefix: &str) -> Vec<String> {
        let own = self.owned_mut();
        let before = own.arguments.clone();
        while let Some(at) = own.arguments.iter().position(|argument| argument.starts_with(prefix)) {
            own.arguments.drain(at..at + 2);
        }
        before
    }

    /// All arguments of the next starts.
    pub fn set_arguments(&mut self, arguments: Vec<String>) {
        self.owned_mut().arguments = arguments;
    }

    /// Starts it on the data as it is, and waits until it answers. Panics with its log when it does
    /// not.
    pub fn start(&mut self) {
        for attempt in 1.. {
            self.launch();
            match self.wait_until_it_answers() {
                Ok(()) => return,
                Err(why)
                    if attempt < PORT_ATTEMPTS_MAX && self.log().to_lowercase().contains("address already in use") =>
                {
                    eprintln!("port {} was taken meanwhile ({why}), trying another", self.addr.port());
                    self.addr = free_port();
                }
                Err(why) => panic!("{why}\n--- its log ---\n{}", self.log()),
            }
        }
    }

    /// Starts it and does not wait: for tests that kill it while it recovers.
    pub fn launch(&mut self) {
        let addr = self.addr;
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the log can be written");
        let data = self.data_folder();
        let own = self.owned_mut();
        assert!(own.child.is_none(), "the broker runs already");
        let mut command = Command::new(binary());
        command.arg("server").arg("--data-dir").arg(data).arg("--amqp").arg(addr.to_string());
        if !own.arguments.iter().any(|argument| argument == "--management") {
            // Brokers of other tests run at the same time, and the default is one port.
            command.args(["--management", "none"]);
        }
        // The tests' own variable would be an unknown setting to the broker, and a person's
        // settings would change the tests.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEVERET_") {
                command.env_remove(name);
            }
        }
        command.args(&own.arguments).envs(own.environment.iter().cloned());
        command.stdin(std::process::Stdio::null());
        command.stdout(log.try_clone().expect("a file can be duplicated")).stderr(log);
        own.child = Some(spawn(command));
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        let status = self.wait_for_end();
        assert_eq!(
            status.signal(),
            Some(9),
            "the broker ended by itself before it was killed: {status}\n{}",
            self.log()
        );
    }

    /// SIGTERM, and how it ended.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.wait_for_end()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = self.pid().expect("the broker runs");
        let pid = rustix::process::Pid::from_raw(i32::try_from(id).expect("process ids are small")).expect("not zero");
        rustix::process::kill_process(pid, signal).expect("our own child can be signalled");
        let due = Instant::now() + END_PATIENCE;
        while signal == rustix::process::Signal::STOP && !is_stopped(id) {
            assert!(Instant::now() < due, "the broker goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the process to end by itself or by a signal sent before.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut child = self.owned_mut().child.take().expect("the broker runs");
        let due = Instant::now() + END_PATIENCE;
        loop {
            if let Some(status) = child.try_wait().expect("our own child can be waited for") {
                return status;
            }
            assert!(Instant::now() < due, "the broker did not end within {END_PATIENCE:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_until_it_answers(&mut self) -> Result<(), String> {
        let due = Instant::now() + START_PATIENCE;
        loop {
            let child = self.owned_mut().child.as_mut().expect("just launched");
            if let Some(status) = child.try_wait().expect("our own child can be waited for") {
                self.owned_mut().child = None;
                return Err(format!("the broker ended at its start: {status}"));
            }
            if TcpStream::connect(self.addr).is_ok() {
                match Client::login(self.addr, &Default::default()) {
                    Ok(_) => return Ok(()),
                    // It knows nobody who is called guest.
                    Err(refused) if refused.code == 403 => return Ok(()),
                    Err(_) => {}
                }
            }
            if Instant::now() > due {
                return Err(format!("the broker does not answer after {START_PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log_path(&self) -> PathBuf {
        self.owned().folder.path().join("log")
    }

    fn owned(&self) -> &Own {
        self.own.as_ref().expect("only for a broker of our own")
    }

    fn owned_mut(&mut self) -> &mut Own {
        self.own.as_mut().expect("only for a broker of our own")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut child) = self.own.as_mut().and_then(|own| own.child.take()) {
            // It may have ended by itself meanwhile; then there is nothing left to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() && self.own.is_some() {
            eprintln!("--- the broker's log ---\n{}", self.log());
        }
    }
}

/// A loopback address with a port that is free now and that no other fixture of this process was
/// given.
pub fn free_port() -> SocketAddr {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    loop {
        let addr = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
        let mut given = GIVEN.lock().expect("no test panics while it holds this lock");
        if given.get_or_insert_default().insert(addr.port()) {
            return addr;
        }
    }
}

/// Starts `command` so that the kernel kills it when this process ends.
///
/// The kernel ties that to the *thread* that forked, and test threads end early; so one thread that
/// lives as long as the process does all the forking.
fn spawn(mut command: Command) -> Child {
    type Request = (Command, mpsc::Sender<std::io::Result<Child>>);
    static FORKS: OnceLock<Mutex<mpsc::Sender<Request>>> = OnceLock::new();
    let forks = FORKS.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in requests {
                // The test that asked may be gone; its child then dies with this process.
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    // SAFETY: between fork and exec the closure makes one system call and touches no memory of the
    // parent.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(Into::into)
        });
    }
    let (sender, reply) = mpsc::channel();
    forks.lock().expect("nobody panics with it").send((command, sender)).expect("the thread lives");
    reply.recv().expect("each request is answered").unwrap_or_else(|why| panic!("{}: {why}", binary().display()))
}

/// The binary under test.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("LEVERET_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let target = test.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()).unwrap_or(Path::new("target"));
    let built = ["release", "debug"].map(|profile| target.join(profile).join("leveret"));
    let newest = built
        .into_iter()
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path);
    newest.expect("no leveret binary: build one (`cargo build -p leveret`), or name it in LEVERET_BIN")
}

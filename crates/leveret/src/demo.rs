//! `leveret cluster demo`: three nodes on this machine, for who wants to try what happens when one is
//! killed.
//!
//! Invariant: what it starts ends with it, in good order, and the folder keeps all that was confirmed:
//! the same command goes on with it, on the same ports. Nothing outside that folder is touched.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::{Value, json};

use crate::exit::{self, Exit};
use crate::signals;

/// What the folder says of its nodes: they keep their ports.
const FILE_NAME: &str = "demo.json";
const SECRET_NAME: &str = "secret";
const LOCK_NAME: &str = "demo.lock";
const SECRET_BYTES: usize = 32;
/// Ports of the API and for other nodes lie so far above those of AMQP: 15672 and 27672 for 5672.
const MANAGEMENT_ABOVE: u16 = 10_000;
const PEER_ABOVE: u16 = 22_000;
/// How far up they are looked for.
const PORTS_TRIED: u16 = 1000;
/// How long nodes may take to serve, and to end.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Demo {
    folder: PathBuf,
    nodes: u8,
    port: u16,
}

pub(crate) fn command() -> Command {
    let folder = Arg::new("dir")
        .long("dir")
        .value_name("DIR")
        .default_value("leveret-demo")
        .value_parser(ValueParser::path_buf())
        .help("Where their data and logs go; one that is there goes on where it was");
    let nodes = Arg::new("nodes")
        .long("nodes")
        .value_name("COUNT")
        .default_value("3")
        .value_parser(clap::value_parser!(u8).range(2..=7))
        .help("How many, 2 to 7; a folder that is there keeps its own number");
    let port = Arg::new("port")
        .long("port")
        .value_name("PORT")
        .default_value("5672")
        .value_parser(clap::value_parser!(u16).range(1..=40_000))
        .help(
            "From where on free ports are looked for, for AMQP; 10000 above that for the API and 22000 above \
             that between the nodes. A folder that is there keeps its own",
        );
    Command::new("demo")
        .about("Start three nodes on this machine, one of which may be killed to see what happens")
        .after_help(
            "While it runs: `kill 2`, `stop 2` (it hangs), `cont 2`, `start 2`, `status`; Ctrl-C and `quit` end all, and so does the end of its terminal; the end of its input does not.\n\
             For real clusters see docs/clustering.md: every node on a machine of its own.",
        )
        .arg(folder)
        .arg(nodes)
        .arg(port)
}

/// What was asked for.
pub(crate) fn asked(mut matches: ArgMatches) -> Demo {
    let folder = matches.remove_one("dir").expect("it has a default");
    let nodes = matches.remove_one("nodes").expect("it has a default");
    Demo { folder, nodes, port: matches.remove_one("port").expect("it has a default") }
}

/// The ports of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    amqp: u16,
    management: u16,
    peer: u16,
}

/// A node, and its process while it runs.
struct Node {
    number: usize,
    ports: Ports,
    child: Option<Child>,
    is_stopped: bool,
}

/// All of them.
struct Nodes {
    folder: PathBuf,
    peers: String,
    nodes: Vec<Node>,
    /// It goes on without its terminal (`nohup`).
    outlives_terminal: bool,
}

/// Starts them, and does what it is told until the end.
pub(crate) fn run(demo: &Demo) -> Exit {
    let outlives_terminal = ignores_hangup();
    // From here on Ctrl-C is ours to handle; the nodes are in groups of their own and do not hear it.
    let _shutdown = match signals::listen() {
        Ok(shutdown) => shutdown,
        Err(error) => return failed(&format!("cannot listen to signals: {error}")),
    };
    let mut nodes = match prepare(demo) {
        Ok(nodes) => nodes,
        Err(why) => return failed(&why),
    };
    nodes.outlives_terminal = outlives_terminal;
    let _lock = match lock(&nodes.folder) {
        Ok(lock) => lock,
        Err(why) => return failed(&why),
    };
    let ended = nodes.start_all().map(|()| {
        tell(&nodes.introduction());
        nodes.attend(&words());
    });
    tell("ending all nodes\n");
    let stopped = nodes.stop_all();
    match ended.and(stopped) {
        Ok(()) => {
            tell(&format!(
                "ended; what was confirmed is in {}, and the same command goes on with it\n",
                demo.folder.display()
            ));
            Exit::Done
        }
        Err(why) => failed(&why),
    }
}

fn failed(why: &str) -> Exit {
    exit::say(why);
    Exit::Failed
}

fn tell(text: &str) {
    exit::print(text);
}

/// The folder with its secret and ports, new or as it was.
fn prepare(demo: &Demo) -> Result<Nodes, String> {
    let folder = &demo.folder;
    let wrong = |what: &str, error: io::Error| format!("{}: cannot {what}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(|error| wrong("make the folder", error))?;
    let folder = fs::canonicalize(folder).map_err(|error| wrong("find the folder", error))?;
    let file = folder.join(FILE_NAME);
    let ports = match fs::read_to_string(&file) {
        Ok(text) => ports_of(&text).ok_or_else(|| {
            format!("{}: not written by this command: name another folder with --dir", file.display())
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if fs::read_dir(&folder).map_err(|error| wrong("look into it", error))?.next().is_some() {
                return Err(format!("{} is not empty and no demo's: name another folder with --dir", folder.display()));
            }
            let ports = free_ports(usize::from(demo.nodes), demo.port)?;
            write_secret(&folder.join(SECRET_NAME)).map_err(|error| wrong("write a secret", error))?;
            // Last: a folder with this file is whole.
            fs::write(&file, text_of(&ports)).map_err(|error| wrong("write into it", error))?;
            ports
        }
        Err(error) => return Err(wrong("read what is in it", error)),
    };
    let peers: Vec<String> = ports.iter().map(|ports| format!("127.0.0.1:{}", ports.peer)).collect();
    let nodes = ports.into_iter().enumerate();
    let nodes = nodes.map(|(at, ports)| Node { number: at + 1, ports, child: None, is_stopped: false }).collect();
    Ok(Nodes { folder, peers: peers.join(","), nodes, outlives_terminal: false })
}

/// Whether whoever started this wants it to go on when its terminal goes.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// Has the folder for this process alone: two of them would start the same nodes, and write into the same logs. The file says which
/// process has it.
fn lock(folder: &Path) -> Result<File, String> {
    let path = folder.join(LOCK_NAME);
    let wrong = |error: io::Error| format!("{}: {error}", path.display());
    let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _ = file.read_to_string(&mut owner);
            return Err(format!(
                "a demo runs on {} already, process {}: end it, or name another folder with --dir",
                folder.display(),
                owner.trim()
            ));
        }
        Err(TryLockError::Error(error)) => return Err(wrong(error)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(wrong)?;
    Ok(file)
}

fn write_secret(path: &Path) -> io::Result<()> {
    let mut random = [0; SECRET_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let text: String = random.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

fn text_of(ports: &[Ports]) -> String {
    let node = |ports: &Ports| json!({"amqp": ports.amqp, "management": ports.management, "peer": ports.peer});
    format!("{:#}\n", json!({ "nodes": ports.iter().map(node).collect::<Vec<_>>() }))
}

fn ports_of(text: &str) -> Option<Vec<Ports>> {
    let document: Value = serde_json::from_str(text).ok()?;
    let port = |node: &Value, name: &str| u16::try_from(node[name].as_u64()?).ok();
    let nodes = document["nodes"].as_array()?.iter().map(|node| {
        Some(Ports { amqp: port(node, "amqp")?, management: port(node, "management")?, peer: port(node, "peer")? })
    });
    nodes.collect::<Option<Vec<Ports>>>().filter(|ports| ports.len() >= 2)
}

/// Ports in a row of each kind that nobody listens on now.
fn free_ports(nodes: usize, from: u16) -> Result<Vec<Ports>, String> {
    let row = |from: u16| {
        let mut last = from..from + PORTS_TRIED;
        let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        let first = last.find(|first| (0..nodes as u16).all(|at| is_free(first + at)));
        first.ok_or_else(|| format!("no {nodes} free ports in a row from {from} on"))
    };
    let (amqp, management, peer) = (row(from)?, row(from + MANAGEMENT_ABOVE)?, row(from + PEER_ABOVE)?);
    let all = (0..nodes as u16).map(|at| Ports { amqp: amqp + at, management: management + at, peer: peer + at });
    Ok(all.collect())
}

/// What is said on standard input, a line at a time.
fn words() -> Receiver<String> {
    let (sender, words) = mpsc::channel();
    // It ends with the process, or with what it reads from.
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        // With the end of the input nothing ends: it may never have had one.
        if io::stdin().is_terminal() {
            tell("no more commands can be given; Ctrl-C ends all\n");
        }
        std::thread::park();
    });
    words
}

impl Node {
    fn name(&self) -> String {
        format!("leveret@n{}", self.number)
    }

    fn log(&self, folder: &Path) -> PathBuf {
        folder.join(format!("n{}.log", self.number))
    }

    fn start(&mut self, folder: &Path, peers: &str) -> Result<(), String> {
        let log = File::options().create(true).append(true).open(self.log(folder));
        let log = log.map_err(|error| format!("{}: {error}", self.log(folder).display()))?;
        let own = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
        let address = |port: u16| format!("127.0.0.1:{port}");
        let mut process = Process::new(own);
        process
            .arg("server")
            .args(["--node-name", &self.name(), "--data-dir"])
            .arg(folder.join(format!("n{}", self.number)))
            .args(["--amqp", &address(self.ports.amqp), "--management", &address(self.ports.management)])
            .args(["--cluster-peers", peers, "--cluster-address", &address(self.ports.peer)])
            .arg("--cluster-secret-file")
            .arg(folder.join(SECRET_NAME))
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|error| error.to_string())?)
            .stderr(log)
            .process_group(0);
        // SAFETY: between fork and exec the closure makes one system call and touches no memory of the
        // parent. It goes by the thread that forks, which is the main one.
        unsafe {
            process.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        self.child = Some(process.spawn().map_err(|error| format!("cannot start node {}: {error}", self.number))?);
        self.is_stopped = false;
        Ok(())
    }

    fn serves(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports.amqp));
        TcpStream::connect_timeout(&address, LOOK_EVERY).is_ok()
    }

    /// How it ended, if it has.
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status)
    }

    fn signal(&self, signal: Signal) -> bool {
        self.child.as_ref().is_some_and(|child| kill_process(Pid::from_child(child), signal).is_ok())
    }

    fn state(&self) -> String {
        match &self.child {
            Some(child) if self.is_stopped => {
                format!("process {} hangs (`cont {}` lets it go on)", child.id(), self.number)
            }
            Some(child) => format!("process {}", child.id()),
            None => format!("does not run (`start {}` starts it)", self.number),
        }
    }
}

/// How a process ended, in words.
fn words_of(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(0)) => "ended in good order".to_owned(),
        (None, code) => format!("ended with code {}", code.unwrap_or_default()),
    }
}

impl Nodes {
    /// It was told so, or its terminal is gone, so that nobody could tell it any more.
    fn is_to_end(&self) -> bool {
        let has_lost_terminal = signals::RELOAD.load(Ordering::Relaxed) && !self.outlives_terminal;
        signals::ENDS.load(Ordering::Relaxed) || has_lost_terminal
    }

    /// Starts all and waits until each serves.
    fn start_all(&mut self) -> Result<(), String> {
        tell(&format!("starting {} nodes in {}\n", self.nodes.len(), self.folder.display()));
        for node in &mut self.nodes {
            node.start(&self.folder, &self.peers)?;
        }
        let due = Instant::now() + START_TIMEOUT;
        loop {
            let mut waiting = BTreeMap::new();
            for node in &mut self.nodes {
                let log = node.log(&self.folder);
                if let Some(status) = node.ended() {
                    let last = fs::read_to_string(&log).unwrap_or_default();
                    let last = last.lines().last().unwrap_or_default().to_owned();
                    return Err(format!(
                        "node {} {}: {last}\nits log is {}; a demo in another folder (--dir) gets ports of its own",
                        node.number,
                        words_of(status),
                        log.display()
                    ));
                }
                if !node.serves() {
                    waiting.insert(node.number, log);
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if self.is_to_end() {
                return Ok(());
            }
            if Instant::now() >= due {
                let logs: Vec<String> = waiting.values().map(|log| log.display().to_string()).collect();
                return Err(format!("not all nodes serve after {START_TIMEOUT:?}; their logs: {}", logs.join(", ")));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn introduction(&self) -> String {
        let mut text = String::from("they are one broker: connect to any of them, user guest, password guest\n\n");
        for node in &self.nodes {
            let Ports { amqp, management, .. } = node.ports;
            let _ = writeln!(
                text,
                "  {}  amqp://localhost:{amqp}  http://localhost:{management}  {}",
                node.name(),
                node.state()
            );
        }
        let uris: Vec<String> = self.nodes.iter().map(|node| format!("amqp://localhost:{}", node.ports.amqp)).collect();
        let _ = write!(
            text,
            "\nload with a check that nothing is lost, in another terminal:\n  \
             leveret bench --quorum-queue --queue demo -x 1 -y 1 -c 100 -r 1000 -cri 0.2 --uris {}\n\
             then here: `kill 2` kills a node, `start 2` starts it again, `stop 2` and `cont 2` have it hang and go on,\n\
             `status` tells what is where. Who leads what: leveret cluster status --data-dir {}\n\
             Logs and data: {}. Ctrl-C ends all, and so does `quit`.\n",
            uris.join(","),
            self.folder.join("n1").display(),
            self.folder.display()
        );
        text
    }

    /// Does what it is told, and tells of nodes that end, until the end is asked for.
    fn attend(&mut self, words: &Receiver<String>) {
        let prompts = io::stdin().is_terminal();
        while !self.is_to_end() {
            match words.recv_timeout(LOOK_EVERY) {
                Ok(line) => match self.obey(line.trim()) {
                    Some(said) => tell(&said),
                    None => return,
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_EVERY),
            }
            for node in &mut self.nodes {
                if let Some(status) = node.ended() {
                    let how = words_of(status);
                    let again =
                        if prompts { format!(": `start {}` starts it again", node.number) } else { String::new() };
                    tell(&format!("{} {how}{again}\n", node.name()));
                }
            }
        }
    }

    /// Does one thing; what is to be said of it, or nothing where all is to end.
    fn obey(&mut self, line: &str) -> Option<String> {
        let mut words = line.split_whitespace();
        let (verb, number) = (words.next().unwrap_or_default(), words.next());
        let help = "kill N, stop N, cont N, start N, status, quit\n".to_owned();
        match verb {
            "" => return Some(String::new()),
            "quit" | "exit" => return None,
            "status" => return Some(self.status()),
            "kill" | "stop" | "cont" | "start" => {}
            _ => return Some(help),
        }
        let node = number.and_then(|number| number.parse::<usize>().ok());
        let Some(node) = node.and_then(|number| self.nodes.iter_mut().find(|node| node.number == number)) else {
            return Some(format!("{verb} which? 1 to {}\n", self.nodes.len()));
        };
        let signal = match verb {
            "start" if node.child.is_some() => return Some(format!("{} runs\n", node.name())),
            "start" => {
                let started = node.start(&self.folder, &self.peers);
                return Some(
                    started.map_or_else(|why| why + "\n", |()| format!("{} starts: {}\n", node.name(), node.state())),
                );
            }
            "kill" => Signal::KILL,
            "stop" => Signal::STOP,
            _ => Signal::CONT,
        };
        if !node.signal(signal) {
            return Some(format!("{} does not run\n", node.name()));
        }
        node.is_stopped = signal == Signal::STOP;
        Some(match signal {
            // What became of it is told when it has ended.
            Signal::KILL => String::new(),
            _ => format!("{}: {}\n", node.name(), node.state()),
        })
    }

    fn status(&self) -> String {
        self.nodes.iter().map(|node| format!("{}  {}\n", node.name(), node.state())).collect()
    }

    /// Ends all of them in good order, and by force what does not end.
    fn stop_all(&mut self) -> Result<(), String> {
        for node in &mut self.nodes {
            node.signal(Signal::CONT);
            node.signal(Signal::TERM);
        }
        let due = Instant::now() + STOP_TIMEOUT;
        let mut hung = Vec::new();
        for node in &mut self.nodes {
            while node.child.is_some() && node.ended().is_none() {
                if Instant::now() >= due {
                    node.signal(Signal::KILL);
                    hung.push(node.name());
                    // It ends at once, whatever it does.
                    let _ = node.child.take().map(|mut child| child.wait());
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        match hung.is_empty() {
            true => Ok(()),
            false => Err(format!("{} did not end within {STOP_TIMEOUT:?} and were killed", hung.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_its_ports() {
        let ports = [Ports { amqp: 1, management: 2, peer: 3 }, Ports { amqp: 4, management: 5, peer: 65_535 }];
        assert_eq!(ports_of(&text_of(&ports)), Some(ports.to_vec()));
        for text in ["", "{}", r#"{"nodes":[]}"#, r#"{"nodes":[{"amqp":1,"management":2,"peer":65536}]}"#] {
            assert_eq!(ports_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_folder_that_is_somebody_elses_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("letter"), "mine").expect("a file");
        let demo = Demo { folder: folder.path().to_owned(), nodes: 3, port: 5672 };
        let why = prepare(&demo).err().expect("it is refused");
        assert!(why.contains("not empty"), "{why}");
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 1);
    }

    #[test]
    fn a_folder_has_one_demo_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = lock(folder.path()).expect("nobody has it");
        let why = lock(folder.path()).expect_err("somebody has it");
        assert!(why.contains(&format!("process {}:", std::process::id())), "{why}");
        drop(first);
        lock(folder.path()).expect("nobody has it any more");
    }

    #[test]
    fn a_new_folder_gets_a_secret_for_its_owner_alone_and_the_next_start_finds_the_same() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let demo = Demo { folder: folder.path().join("demo"), nodes: 3, port: 5672 };
        let first = prepare(&demo).unwrap_or_else(|why| panic!("{why}"));
        let secret = first.folder.join(SECRET_NAME);
        let text = fs::read_to_string(&secret).expect("it is there");
        assert_eq!(text.len(), 2 * SECRET_BYTES);
        assert_eq!(fs::metadata(&secret).expect("it is there").permissions().mode() & 0o777, 0o600);
        let again = prepare(&Demo { nodes: 5, ..demo }).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((again.peers, fs::read_to_string(&secret).expect("it is there")), (first.peers, text));
    }
}

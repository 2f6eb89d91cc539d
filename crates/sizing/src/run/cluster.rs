//! A candidate that is up: its addresses, and ways to lose a node and to bring it back.
//!
//! Invariant: what was started here is stopped when this is dropped, with everything it started
//! itself, and its data folders go with it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cgroup::{Cgroup, DiskLimits, Limits};
use rustix::process::{Pid, Signal, kill_process_group};

use super::plan::{Candidate, Local, Place};
use super::usage::{Boxed, Usage, Used, mean};

/// How long a node may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How long one answer of a starting node may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What a client says first; a broker that is up answers it.
const AMQP_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// A node of this program; several know each other by the rest.
const OWN: &[&str] = &[
    "{program}",
    "server",
    // Several on one machine, and the default is one port.
    "--management",
    "none",
    "--data-dir",
    "{data}/store",
    "--amqp",
    "127.0.0.1:{port}",
    "--node-name",
    "{name}@localhost",
];
const OWN_AS_ONE_OF_SEVERAL: &[&str] =
    &["--cluster-peers", "{peers}", "--cluster-address", "{peer}", "--cluster-secret-file", "{secret}"];

/// What nodes that were started here say to know each other. It guards nothing: they listen on this
/// machine only, and for the time of a run.
const SECRET: &str = "known to all nodes of this measurement\n";

/// A cluster that is up.
#[derive(Debug)]
pub struct Cluster {
    /// Where load goes.
    pub uris: Vec<String>,
    /// What a reader of the results must know.
    pub notes: Vec<String>,
    place: Place,
    nodes: Vec<Node>,
    folder: PathBuf,
    /// The logs in it are needed to see what went wrong.
    is_kept: bool,
}

#[derive(Debug)]
struct Node {
    index: u64,
    child: Option<Child>,
    cgroup: Cgroup,
    seen: Option<Usage>,
}

impl Cluster {
    /// Brings a candidate up. `program` is this program, `folder` a place for data of local nodes.
    pub fn up(candidate: &Candidate, program: &str, folder: PathBuf) -> Result<Cluster, String> {
        let (uris, notes, nodes) = (Vec::new(), Vec::new(), Vec::new());
        let mut cluster = Cluster { uris, notes, place: candidate.place.clone(), nodes, folder, is_kept: false };
        match &candidate.place {
            Place::Addresses { uris, .. } => cluster.uris = uris.clone(),
            Place::Local(local) => {
                let started = cluster.start(local, candidate.configuration.nodes, program);
                cluster.is_kept = started.is_err();
                started?;
            }
        }
        Ok(cluster)
    }

    fn start(&mut self, local: &Local, nodes: u64, program: &str) -> Result<(), String> {
        if let Some(folder) = &local.folder {
            self.folder = PathBuf::from(folder).join(self.folder.file_name().unwrap_or_default());
        }
        for index in 0..nodes {
            let data = self.data(index);
            // Data of a run that was interrupted would be a head start.
            let _ = fs::remove_dir_all(&data);
            fs::create_dir_all(&data).map_err(|why| format!("{}: {why}", data.display()))?;
            let name = format!("leveret-sizing-{}-{index}", std::process::id());
            let cgroup = Cgroup::create(&name, &limits(local, &data));
            for note in cgroup.refused.iter().map(ToString::to_string).chain(cgroup.caveats.iter().cloned()) {
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
            self.nodes.push(Node { index, child: None, cgroup, seen: None });
            self.uris.push(format!("amqp://guest:guest@127.0.0.1:{}/%2f", local.port + index as u16));
        }
        let secret = self.secret();
        fs::write(&secret, SECRET).map_err(|why| format!("{secret}: {why}"))?;
        if local.forms_itself(nodes) {
            // Each may answer only once all are there.
            (0..nodes).try_for_each(|index| self.launch(local, index, program))?;
            return (0..nodes).try_for_each(|index| self.wait_for(local, index));
        }
        for index in 0..nodes {
            self.start_node(local, index, program)?;
            if index > 0
                && let Some(join) = &local.join_command
            {
                command(&self.filled(join, local, index), "join_command")?;
            }
        }
        Ok(())
    }

    fn secret(&self) -> String {
        self.folder.join("secret").display().to_string()
    }

    fn data(&self, index: u64) -> PathBuf {
        self.folder.join(format!("node-{index}"))
    }

    fn filled(&self, words: &[String], local: &Local, index: u64) -> Vec<String> {
        let name = |index: u64| format!("sizing{index}");
        // Behind the ports for clients.
        let nodes = self.nodes.len() as u64;
        let peer = |index: u64| format!("127.0.0.1:{}", u64::from(local.port) + nodes + index);
        let pairs = [
            ("{peers}", (0..nodes).map(peer).collect::<Vec<_>>().join(",")),
            ("{peer}", peer(index)),
            ("{secret}", self.secret()),
            ("{port}", (u64::from(local.port) + index).to_string()),
            ("{data}", self.data(index).display().to_string()),
            ("{name}", name(index)),
            ("{first}", name(0)),
            ("{index}", index.to_string()),
        ];
        let fill = |word: &String| pairs.iter().fold(word.clone(), |word, (mark, value)| word.replace(mark, value));
        words.iter().map(fill).collect()
    }

    /// Starts a node and waits until it answers.
    fn start_node(&mut self, local: &Local, index: u64, program: &str) -> Result<(), String> {
        self.launch(local, index, program)?;
        self.wait_for(local, index)
    }

    fn log(&self, index: u64) -> PathBuf {
        self.data(index).join("node.log")
    }

    fn launch(&mut self, local: &Local, index: u64, program: &str) -> Result<(), String> {
        let words = match &local.command {
            Some(words) => self.filled(words, local, index),
            None => {
                let several = if self.nodes.len() > 1 { OWN_AS_ONE_OF_SEVERAL } else { &[] };
                let own: Vec<String> =
                    OWN.iter().chain(several).map(|word| word.replace("{program}", program)).collect();
                self.filled(&own, local, index)
            }
        };
        let port = local.port + index as u16;
        // Or the answer of another broker would be taken for this one's, limits and all: one that a
        // killed run left behind, say.
        if TcpStream::connect_timeout(&address(port), ANSWER_WITHIN).is_ok() {
            return Err(format!(
                "port {port} is taken, by a node of a run that was killed or by another program: end it first"
            ));
        }
        let log = self.log(index);
        let told = |why: std::io::Error| format!("{}: {why}", log.display());
        let out = fs::OpenOptions::new().create(true).append(true).open(&log).map_err(told)?;
        let err = out.try_clone().map_err(told)?;
        let node = &mut self.nodes[index as usize];
        let words = node.cgroup.wrapped(&words);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0).stdin(Stdio::null()).stdout(out).stderr(err);
        node.child = Some(command.spawn().map_err(|why| format!("node {index} cannot be started: {why}"))?);
        Ok(())
    }

    fn wait_for(&mut self, local: &Local, index: u64) -> Result<(), String> {
        let (port, log) = (local.port + index as u16, self.log(index));
        let until = Instant::now() + Duration::from_secs_f64(local.start_seconds);
        while !answers(port) {
            let child = self.nodes[index as usize].child.as_mut().expect("it was started above");
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("node {index} ended with {status} before it answered; see {}", log.display()));
            }
            if Instant::now() > until {
                return Err(format!("node {index} did not answer on port {port} in time; see {}", log.display()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Kills the last node, hard.
    pub fn lose_node(&mut self) -> Result<(), String> {
        match &self.place {
            Place::Addresses { lose_command: Some(words), .. } => command(words, "lose_command"),
            // The plan said so before: this trial is skipped.
            Place::Addresses { lose_command: None, .. } => Err("no lose_command was given for this cluster".to_owned()),
            Place::Local(_) => {
                let node = self.nodes.last_mut().expect("a local cluster has a node");
                node.end(Signal::KILL);
                Ok(())
            }
        }
    }

    /// Brings the lost node back.
    pub fn restore_node(&mut self, program: &str) -> Result<(), String> {
        match self.place.clone() {
            Place::Addresses { restore_command: Some(words), .. } => command(&words, "restore_command"),
            Place::Addresses { restore_command: None, .. } => Ok(()),
            Place::Local(local) => match self.nodes.last() {
                Some(node) if node.child.is_none() => self.start_node(&local, node.index, program),
                _ => Ok(()),
            },
        }
    }

    /// Begins to count what nodes use.
    pub fn look(&mut self) {
        for node in &mut self.nodes {
            node.seen = node.look();
        }
    }

    /// What a node used on average since [`Cluster::look`]; `None` for clusters elsewhere.
    pub fn used(&self) -> Option<Used> {
        let of = |node: &Node| Some(node.look()?.since(node.seen.as_ref()?));
        mean(&self.nodes.iter().filter_map(of).collect::<Vec<_>>())
    }
}

impl Node {
    fn look(&self) -> Option<Usage> {
        let boxed = Boxed { operations: self.cgroup.disk_operations(), throttled: self.cgroup.throttled() };
        Usage::of_group(self.child.as_ref()?.id(), boxed)
    }

    /// Ends the node's whole process group.
    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return };
        let _ = kill_process_group(group, signal);
        let until = Instant::now() + STOP_WITHIN;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        // Whoever is left of the group, the node itself included when it did not listen.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.end(Signal::TERM);
        }
        if matches!(self.place, Place::Local(_)) && !self.is_kept {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// What a node's box limits. `data` lies on the disk to limit.
fn limits(local: &Local, data: &Path) -> Limits {
    let bytes = |mib: f64| (mib * 1_048_576.0).round() as u64;
    let disk = DiskLimits {
        folder: data.to_owned(),
        bytes_s: local.mib_s.map(bytes),
        operations_s: local.iops.map(|iops| iops.round().max(1.0) as u64),
    };
    Limits { cpu: local.cpu, memory_bytes: local.memory_mib.map(bytes), disk: Some(disk) }
}

/// Runs a command of the plan to its end.
fn command(words: &[String], field: &str) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or_else(|| format!("{field} names no program"))?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|why| format!("{field}: {program}: {why}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{field}: {program} ended with {}: {}", output.status, said.lines().last().unwrap_or_default()))
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A broker answers a client's first bytes; a port that is only open, or another program's, does
/// not say the same.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address(port), ANSWER_WITHIN) else { return false };
    let _ = stream.set_read_timeout(Some(ANSWER_WITHIN));
    let mut first = [0_u8; 1];
    stream.write_all(AMQP_HEADER).is_ok() && stream.read_exact(&mut first).is_ok() && first == [1]
}

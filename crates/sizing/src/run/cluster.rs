//! A candidate that is up: its addresses, and ways to lose a node and to bring it back.
//!
//! Invariant: what was started here is stopped when this is dropped, with everything it started
//! itself, and its data folders go with it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::node::{Up, filled};
use testbed::{Cgroup, DiskLimits, Folder, Limits, Node};

use super::plan::{Candidate, Local, Place};
use super::usage::{Boxed, Usage, Used, mean};

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
    /// What each node had used when it was looked at.
    seen: Vec<Option<Usage>>,
    folder: PathBuf,
}

impl Cluster {
    /// Brings a candidate up. `program` is this program, `folder` a place for data of local nodes.
    pub fn up(candidate: &Candidate, program: &str, folder: PathBuf) -> Result<Cluster, String> {
        let (uris, notes, nodes, seen) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut cluster = Cluster { uris, notes, place: candidate.place.clone(), nodes, seen, folder };
        match &candidate.place {
            Place::Addresses { uris, .. } => cluster.uris = uris.clone(),
            Place::Local(local) => {
                let started = cluster.start(local, candidate.configuration.nodes, program);
                if started.is_err() {
                    // The logs in them are needed to see what went wrong.
                    cluster.nodes.iter_mut().for_each(Node::keep_folder);
                }
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
            let folder = Folder::at(self.folder.join(format!("node-{index}"))).map_err(|failed| failed.to_string())?;
            let name = format!("leveret-sizing-{}-{index}", std::process::id());
            let cgroup = Cgroup::create(&name, &limits(local, folder.path().to_owned()));
            for note in cgroup.refused.iter().map(ToString::to_string).chain(cgroup.caveats.iter().cloned()) {
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
            self.nodes.push(Node::new(folder, Some(cgroup)));
            self.uris.push(format!("amqp://guest:guest@127.0.0.1:{}/%2f", local.port + index as u16));
        }
        for index in 0..nodes {
            let words = self.words(local, index, program);
            self.nodes[index as usize].set(local.port + index as u16, words);
        }
        let secret = self.secret();
        fs::write(&secret, SECRET).map_err(|why| format!("{secret}: {why}"))?;
        if local.forms_itself(nodes) {
            // Each may answer only once all are there.
            (0..nodes).try_for_each(|index| self.launch(index))?;
            return (0..nodes).try_for_each(|index| self.wait_for(local, index));
        }
        for index in 0..nodes {
            self.launch(index)?;
            self.wait_for(local, index)?;
            if index > 0
                && let Some(join) = &local.join_command
            {
                command(&filled(join.iter().map(String::as_str), &self.marks(local, index)), "join_command")?;
            }
        }
        Ok(())
    }

    fn secret(&self) -> String {
        self.nodes[0].folder().join("secret").display().to_string()
    }

    /// What starts a node.
    fn words(&self, local: &Local, index: u64, program: &str) -> Vec<String> {
        let mut marks = self.marks(local, index);
        match &local.command {
            Some(words) => filled(words.iter().map(String::as_str), &marks),
            None => {
                let several = if self.nodes.len() > 1 { OWN_AS_ONE_OF_SEVERAL } else { &[] };
                marks.push(("{program}", program.to_owned()));
                filled(OWN.iter().chain(several).copied(), &marks)
            }
        }
    }

    fn marks(&self, local: &Local, index: u64) -> Vec<(&'static str, String)> {
        let name = |index: u64| format!("sizing{index}");
        // Behind the ports for clients.
        let nodes = self.nodes.len() as u64;
        let peer = |index: u64| format!("127.0.0.1:{}", u64::from(local.port) + nodes + index);
        vec![
            ("{peers}", (0..nodes).map(peer).collect::<Vec<_>>().join(",")),
            ("{peer}", peer(index)),
            ("{secret}", self.secret()),
            ("{port}", (u64::from(local.port) + index).to_string()),
            ("{data}", self.nodes[index as usize].folder().display().to_string()),
            ("{name}", name(index)),
            ("{first}", name(0)),
            ("{index}", index.to_string()),
        ]
    }

    /// Starts a node, and waits for nothing.
    fn launch(&mut self, index: u64) -> Result<(), String> {
        let node = &mut self.nodes[index as usize];
        // Or the answer of another broker would be taken for this one's, limits and all.
        if node.is_port_open() {
            return Err(format!(
                "port {} is taken, by a node of a run that was killed or by another program: end it first",
                node.port()
            ));
        }
        node.launch().map_err(|failed| format!("node {index}: {failed}"))
    }

    /// Waits until it answers.
    fn wait_for(&mut self, local: &Local, index: u64) -> Result<(), String> {
        let node = &mut self.nodes[index as usize];
        let patience = Duration::from_secs_f64(local.start_seconds);
        let up = node.wait(Up::Answers, patience);
        up.map_err(|failed| format!("node {index}: {failed}; its log is in {}", node.folder().display()))
    }

    /// Kills the last node, hard.
    pub fn lose_node(&mut self) -> Result<(), String> {
        match &self.place {
            Place::Addresses { lose_command: Some(words), .. } => command(words, "lose_command"),
            // The plan said so before: this trial is skipped.
            Place::Addresses { lose_command: None, .. } => Err("no lose_command was given for this cluster".to_owned()),
            Place::Local(_) => {
                let node = self.nodes.last_mut().expect("a local cluster has a node");
                node.kill().map_err(|failed| failed.to_string())
            }
        }
    }

    /// Brings the lost node back.
    pub fn restore_node(&mut self) -> Result<(), String> {
        match self.place.clone() {
            Place::Addresses { restore_command: Some(words), .. } => command(&words, "restore_command"),
            Place::Addresses { restore_command: None, .. } => Ok(()),
            Place::Local(local) => {
                let last = self.nodes.len() as u64 - 1;
                if self.nodes[last as usize].is_launched() {
                    return Ok(());
                }
                self.launch(last)?;
                self.wait_for(&local, last)
            }
        }
    }

    /// Begins to count what nodes use.
    pub fn look(&mut self) {
        self.seen = self.nodes.iter().map(look).collect();
    }

    /// What a node used on average since [`Cluster::look`]; `None` for clusters elsewhere.
    pub fn used(&self) -> Option<Used> {
        let of = |(node, seen): (&Node, &Option<Usage>)| Some(look(node)?.since(seen.as_ref()?));
        mean(&self.nodes.iter().zip(&self.seen).filter_map(of).collect::<Vec<_>>())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        // Not there where nodes are elsewhere, and not empty where a log is kept.
        let _ = fs::remove_dir(&self.folder);
    }
}

fn look(node: &Node) -> Option<Usage> {
    let cgroup = node.cgroup()?;
    let boxed = Boxed { operations: cgroup.disk_operations(), throttled: cgroup.throttled() };
    Usage::of_group(node.group()?, boxed)
}

/// What a node's box limits. `folder` lies on the disk to limit.
fn limits(local: &Local, folder: PathBuf) -> Limits {
    let bytes = |mib: f64| (mib * 1_048_576.0).round() as u64;
    let disk = DiskLimits {
        folder,
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

//! A candidate that is up: its addresses, and ways to lose a node and to bring it back.
//!
//! Invariant: what was started here is stopped when this is dropped, with everything it started
//! itself, and its data folders go with it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::node::Up;
use testbed::nodes::own_command;
use testbed::used::of_group;
use testbed::{Cgroup, DiskLimits, Failed, Folder, Limits, Look, Node, Nodes, Used, Watch};

use super::plan::{Candidate, Local, Place};

/// A cluster that is up.
#[derive(Debug)]
pub struct Cluster {
    /// Where load goes.
    pub uris: Vec<String>,
    /// What a reader of the results must know.
    pub notes: Vec<String>,
    place: Place,
    /// Those that were started here.
    nodes: Option<Nodes>,
    /// What each node had used when it was looked at.
    seen: Vec<(Watch, Option<Look>)>,
    folder: PathBuf,
}

impl Cluster {
    /// Brings a candidate up. `folder` is a place for data of local nodes.
    pub fn up(candidate: &Candidate, folder: PathBuf) -> Result<Cluster, String> {
        let (uris, notes, nodes, seen) = (Vec::new(), Vec::new(), None, Vec::new());
        let mut cluster = Cluster { uris, notes, place: candidate.place.clone(), nodes, seen, folder };
        match &candidate.place {
            Place::Addresses { uris, .. } => cluster.uris = uris.clone(),
            Place::Local(local) => {
                let started = cluster.start(local, candidate.configuration.nodes as u16);
                if let (Err(_), Some(local)) = (&started, &mut cluster.nodes) {
                    // The logs in them are needed to see what went wrong.
                    local.nodes.iter_mut().for_each(Node::keep_folder);
                }
                started?;
            }
        }
        Ok(cluster)
    }

    fn start(&mut self, local: &Local, count: u16) -> Result<(), String> {
        let told = |failed: Failed| failed.to_string();
        if let Some(folder) = &local.folder {
            self.folder = PathBuf::from(folder).join(self.folder.file_name().unwrap_or_default());
        }
        let mut nodes = Vec::new();
        for index in 0..count {
            let folder = Folder::at(self.folder.join(format!("node-{index}"))).map_err(told)?;
            let name = format!("leveret-sizing-{}-{index}", std::process::id());
            let cgroup = Cgroup::create(&name, &limits(local, folder.path().to_owned()));
            for note in cgroup.refused.iter().map(ToString::to_string).chain(cgroup.caveats.iter().cloned()) {
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
            nodes.push(Node::new(folder, Some(cgroup)));
            self.uris.push(format!("amqp://guest:guest@127.0.0.1:{}/%2f", local.port + index));
        }
        let folders: Vec<String> = nodes.iter().map(|node| node.folder().display().to_string()).collect();
        let nodes = self.nodes.insert(Nodes::new(nodes).map_err(told)?);
        // The ports for the other nodes are behind those for clients.
        let ports: Vec<(u16, u16)> = (local.port..).take(count.into()).map(|port| (port, port + count)).collect();
        let own = || own_command(count.into()).split(' ').map(str::to_owned).collect();
        let more = |at: usize| {
            let name = |at: usize| format!("sizing{at}");
            vec![
                ("{data}", folders[at].clone()),
                ("{name}", name(at)),
                ("{first}", name(0)),
                ("{index}", at.to_string()),
            ]
        };
        nodes.set(&local.command.clone().unwrap_or_else(own), &ports, more).map_err(told)?;
        if local.forms_itself(count.into()) {
            // Each may answer only once all are there.
            (0..nodes.nodes.len()).try_for_each(|at| launch(nodes, at))?;
            return (0..nodes.nodes.len()).try_for_each(|at| wait_for(nodes, local, at));
        }
        for at in 0..nodes.nodes.len() {
            launch(nodes, at)?;
            wait_for(nodes, local, at)?;
            if let Some(join) = local.join_command.as_ref().filter(|_| at > 0) {
                command(&nodes.filled(at, join), "join_command")?;
            }
        }
        Ok(())
    }

    /// Kills the last node, hard.
    pub fn lose_node(&mut self) -> Result<(), String> {
        match &self.place {
            Place::Addresses { lose_command: Some(words), .. } => command(words, "lose_command"),
            // The plan said so before: this trial is skipped.
            Place::Addresses { lose_command: None, .. } => Err("no lose_command was given for this cluster".to_owned()),
            Place::Local(_) => self.local().last().kill().map_err(|failed| failed.to_string()),
        }
    }

    fn local(&mut self) -> &mut Nodes {
        self.nodes.as_mut().expect("a local cluster has nodes")
    }

    /// Brings the lost node back.
    pub fn restore_node(&mut self) -> Result<(), String> {
        match self.place.clone() {
            Place::Addresses { restore_command: Some(words), .. } => command(&words, "restore_command"),
            Place::Addresses { restore_command: None, .. } => Ok(()),
            Place::Local(local) => {
                let nodes = self.local();
                let last = nodes.nodes.len() - 1;
                if nodes.nodes[last].is_launched() {
                    return Ok(());
                }
                launch(nodes, last)?;
                wait_for(nodes, &local, last)
            }
        }
    }

    /// Begins to count what nodes use.
    pub fn look(&mut self) {
        let begin = |node: &Node| {
            let mut watch = Watch::default();
            let look = look(node, &mut watch);
            (watch, look)
        };
        self.seen = self.nodes.iter().flat_map(|local| &local.nodes).map(begin).collect();
    }

    /// What each node used since [`Cluster::look`]; none of clusters elsewhere.
    pub fn used(&mut self) -> Vec<Used> {
        let nodes = self.nodes.iter().flat_map(|local| &local.nodes).zip(&mut self.seen);
        nodes.filter_map(|(node, (watch, seen))| Some(look(node, watch)?.since(seen.as_ref()?))).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes = None;
        // Not there where nodes are elsewhere, and not empty where a log is kept.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Starts a node, and waits for nothing.
fn launch(nodes: &mut Nodes, at: usize) -> Result<(), String> {
    let node = &mut nodes.nodes[at];
    // Or the answer of another broker would be taken for this one's, limits and all.
    if node.is_port_open() {
        return Err(format!(
            "port {} is taken, by a node of a run that was killed or by another program: end it first",
            node.port()
        ));
    }
    node.launch().map_err(|failed| format!("node {at}: {failed}"))
}

/// Waits until it answers.
fn wait_for(nodes: &mut Nodes, local: &Local, at: usize) -> Result<(), String> {
    let node = &mut nodes.nodes[at];
    let up = node.wait(Up::Answers, Duration::from_secs_f64(local.start_seconds));
    up.map_err(|failed| format!("node {at}: {failed}; its log is in {}", node.folder().display()))
}

fn look(node: &Node, watch: &mut Watch) -> Option<Look> {
    watch.look(&of_group(node.group()?))
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

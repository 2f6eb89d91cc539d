//! The broker under test when this tool starts it: one node, or several that found a cluster.
//!
//! Invariant: either all of its nodes serve clients when it is handed out, or none is left. What is
//! killed is its last node: the others go on, where there are others.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use testbed::folder::end_orphans;
pub use testbed::node::kill_all;
use testbed::node::{Up, free_port};
pub use testbed::nodes::OWN;
use testbed::nodes::own_command;
use testbed::{Cgroup, Folder, Limits, Node, Nodes};

use crate::Error;
use crate::options::BrokerStart;
use crate::uri::Uri;
use crate::words::words_of;

/// How long a broker may take to come up. RabbitMQ on a fraction of a core takes most of a minute.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// How many sets of ports are tried. Others look for free ones at the same moment, and both may be
/// given the same.
const PORTS_TRIED: u32 = 5;

/// A broker of our own.
#[derive(Debug)]
pub struct Broker(Nodes);

impl Broker {
    /// Starts it and waits until all of its nodes listen.
    pub fn start(wanted: &BrokerStart) -> Result<Broker, Error> {
        let template = words_of(&template(wanted)?);
        let count = wanted.nodes.unwrap_or(1);
        let mut nodes = Nodes::new((0..count).map(|_| node(wanted)).collect::<Result<_, _>>()?)?;
        for tried in 1.. {
            let ports = (0..count).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<Vec<_>, Error>>()?;
            nodes.set(&template, &ports, |_| Vec::new())?;
            match nodes.launch(Up::Listens, START_PATIENCE) {
                Err(_) if tried < PORTS_TRIED && nodes.nodes.iter().any(Node::is_port_taken) => {
                    nodes.nodes.iter_mut().for_each(Node::end);
                }
                launched => return Ok(launched.map(|()| Broker(nodes))?),
            }
        }
        unreachable!("the last try returns")
    }

    /// Starts those of its nodes that do not run, each on its data as they are, and waits for them.
    pub fn launch(&mut self) -> Result<(), Error> {
        Ok(self.0.launch(Up::Listens, START_PATIENCE)?)
    }

    /// Where its nodes listen.
    pub fn uris(&self) -> Vec<Uri> {
        self.0.nodes.iter().map(uri).collect()
    }

    /// Their processes.
    pub fn pids(&self) -> Vec<u32> {
        self.0.nodes.iter().flat_map(Node::pids).collect()
    }

    /// The folder of its first node.
    pub fn folder(&self) -> &Path {
        self.0.nodes[0].folder()
    }

    /// What its nodes logged, one after the other.
    pub fn log(&self) -> String {
        self.0.nodes.iter().map(Node::log).collect()
    }

    /// Sends a signal to all of its processes.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        self.0.nodes.iter().try_for_each(|node| Ok(node.signal(signal)?))
    }

    /// Kills a node hard, as a crash would, and waits until it is gone: the last one.
    pub fn kill(&mut self) -> Result<(), Error> {
        Ok(self.0.last().kill()?)
    }
}

fn node(wanted: &BrokerStart) -> Result<Node, Error> {
    let is_limited = wanted.cpu.is_some() || wanted.memory_bytes.is_some();
    let cgroup = if is_limited { Some(boxed(wanted)?) } else { None };
    Ok(Node::new(Folder::for_a_while()?, cgroup))
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

fn uri(node: &Node) -> Uri {
    Uri {
        tls: false,
        host: "127.0.0.1".into(),
        port: node.port(),
        user: "guest".into(),
        password: "guest".into(),
        vhost: "/".into(),
    }
}

/// The command of a node, with its marks; without one, this binary's own server.
fn template(wanted: &BrokerStart) -> Result<String, Error> {
    let is_several = wanted.nodes.is_some_and(|nodes| nodes > 1);
    let command = wanted.command.clone().unwrap_or_else(|| own_command(usize::from(wanted.nodes.unwrap_or(1))));
    let lacks = |mark: &str, why: &str| Err(Error::usage(format!("--broker {command:?} has no {mark}: {why}")));
    match (command.contains("{port}"), command.contains("{peers}")) {
        (false, _) => lacks("{port}", "it must listen where it is told"),
        (_, false) if is_several => {
            lacks("{peers}", "several --nodes must be told of each other (and {peer}, {secret}, {index} are there too)")
        }
        _ => Ok(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(command: &str, nodes: Option<u16>) -> String {
        let wanted = BrokerStart { command: Some(command.to_owned()), nodes, ..BrokerStart::default() };
        Broker::start(&wanted).expect_err("it cannot be started").to_string()
    }

    #[test]
    fn a_command_that_cannot_listen_where_it_is_told_is_refused() {
        assert!(error("sleep 1", None).contains("has no {port}"));
        assert!(error("sleep {port}", Some(3)).contains("has no {peers}"));
        assert!(error("cat /nonexistent/{port}", None).contains("No such file"));
    }

    /// A node listens once it sees the files of all: who waited for the first before starting the
    /// second would wait for ever.
    #[test]
    fn nodes_that_need_one_another_come_up_together_and_the_last_one_is_killed_and_comes_back() {
        let script = "import os,socket,sys,time
peers=sys.argv[2].split(',')
folder=os.path.dirname(sys.argv[3])
open(folder+'/'+sys.argv[4],'w')
while len([n for n in os.listdir(folder) if n.startswith('127.')])<len(peers): time.sleep(0.01)
s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(60)";
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("node.py");
        std::fs::write(&file, script).expect("it is written");
        let command = format!("python3 {} {{port}} {{peers}} {{secret}} {{peer}}", file.display());
        let wanted = BrokerStart { command: Some(command), nodes: Some(3), ..BrokerStart::default() };
        let mut broker = Broker::start(&wanted).expect("all three come up");
        let before = broker.pids();
        assert_eq!((before.len(), broker.uris().len()), (3, 3));
        broker.kill().expect("it is there");
        assert_eq!(broker.pids(), before[..2], "the others live");
        broker.launch().expect("it comes back");
        let after = broker.pids();
        assert!(after[..2] == before[..2] && after[2] != before[2], "{before:?} {after:?}");
    }
}

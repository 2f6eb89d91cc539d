//! The broker under test when this tool starts it: one node, or several that found a cluster.
//!
//! Invariant: either all of its nodes serve clients when it is handed out, or none is left. What is
//! killed is its last node: the others go on, where there are others.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub use testbed::folder::end_orphans;
pub use testbed::node::kill_all;
use testbed::node::{Up, filled, free_port};
use testbed::{Cgroup, Folder, Limits, Node};

use crate::Error;
use crate::options::BrokerStart;
use crate::uri::Uri;

/// The server of this binary.
pub(crate) const OWN: &str = "{leveret} server --data-dir {dir} --amqp 127.0.0.1:{port} --management none";

/// What it is told beside that to be one of several.
const OWN_AS_ONE_OF_SEVERAL: &str =
    "--node-name leveret@n{index} --cluster-peers {peers} --cluster-address {peer} --cluster-secret-file {secret}";

/// How long a broker may take to come up. RabbitMQ on a fraction of a core takes most of a minute.
const START_PATIENCE: Duration = Duration::from_secs(120);

/// How many sets of ports are tried. Others look for free ones at the same moment, and both may be
/// given the same.
const PORTS_TRIED: u32 = 5;

/// What nodes that were started here say to know each other. It guards nothing: they listen on this
/// machine only, and for the time of a run.
const SECRET: &str = "known to all nodes of this benchmark\n";

/// A broker of our own.
#[derive(Debug)]
pub struct Broker {
    nodes: Vec<Node>,
}

impl Broker {
    /// Starts it and waits until all of its nodes listen.
    pub fn start(wanted: &BrokerStart) -> Result<Broker, Error> {
        let template = template(wanted)?;
        let nodes = (0..wanted.nodes.unwrap_or(1)).map(|_| node(wanted)).collect::<Result<_, _>>()?;
        let mut broker = Broker { nodes };
        broker.write_secret()?;
        for _ in 1..PORTS_TRIED {
            broker.choose_ports(&template)?;
            match broker.launch() {
                Err(_) if broker.nodes.iter().any(Node::is_port_taken) => {
                    broker.nodes.iter_mut().for_each(Node::end);
                }
                launched => return launched.map(|()| broker),
            }
        }
        broker.choose_ports(&template)?;
        broker.launch().map(|()| broker)
    }

    fn write_secret(&self) -> Result<(), Error> {
        let name = self.secret();
        std::fs::write(&name, SECRET).map_err(|why| Error::machine(format!("writing {name}"), why))
    }

    fn secret(&self) -> String {
        self.nodes[0].folder().join("secret").display().to_string()
    }

    fn choose_ports(&mut self, template: &str) -> Result<(), Error> {
        let this = std::env::current_exe().map_err(|why| Error::machine("finding this program", why))?;
        let this = this.display().to_string();
        let secret = self.secret();
        let mut peers = Vec::new();
        for _ in &self.nodes {
            peers.push(format!("127.0.0.1:{}", free_port()?));
        }
        let all = peers.join(",");
        for ((at, node), peer) in self.nodes.iter_mut().enumerate().zip(&peers) {
            let port = free_port()?;
            let pairs = [
                ("{port}", port.to_string()),
                ("{dir}", node.folder().join("data").display().to_string()),
                ("{leveret}", this.clone()),
                ("{index}", (at + 1).to_string()),
                ("{peers}", all.clone()),
                ("{peer}", peer.clone()),
                ("{secret}", secret.clone()),
            ];
            node.set(port, filled(template.split_whitespace(), &pairs));
        }
        Ok(())
    }

    /// Starts those of its nodes that do not run, each on its data as they are, and waits for them.
    pub fn launch(&mut self) -> Result<(), Error> {
        let mut launched = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| !node.is_launched()) {
            node.launch()?;
            launched.push(at);
        }
        // They may need one another to come up.
        launched.into_iter().try_for_each(|at| Ok(self.nodes[at].wait(Up::Listens, START_PATIENCE)?))
    }

    /// Where its nodes listen.
    pub fn uris(&self) -> Vec<Uri> {
        self.nodes.iter().map(uri).collect()
    }

    /// Their processes.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().flat_map(Node::pids).collect()
    }

    /// The folder of its first node.
    pub fn folder(&self) -> &Path {
        self.nodes[0].folder()
    }

    /// What its nodes logged, one after the other.
    pub fn log(&self) -> String {
        self.nodes.iter().map(Node::log).collect()
    }

    /// Sends a signal to all of its processes.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        self.nodes.iter().try_for_each(|node| Ok(node.signal(signal)?))
    }

    /// Kills a node hard, as a crash would, and waits until it is gone: the last one.
    pub fn kill(&mut self) -> Result<(), Error> {
        Ok(self.nodes.last_mut().expect("a broker has a node").kill()?)
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
    let own = if is_several { format!("{OWN} {OWN_AS_ONE_OF_SEVERAL}") } else { OWN.to_owned() };
    let command = wanted.command.clone().unwrap_or(own);
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

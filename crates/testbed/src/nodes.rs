//! The nodes of one broker that is started here: what each is told of itself and of the others.
//!
//! Invariant: all of them share one secret and one list of addresses, and each has ports, data and a
//! number of its own.

use std::time::Duration;

use crate::node::Up;
use crate::{Failed, Node};

/// The server of this program.
pub const OWN: &str = "{leveret} server --data-dir {dir} --amqp 127.0.0.1:{port} --management none";

/// What it is told beside that to be one of several.
const OWN_AS_ONE_OF_SEVERAL: &str =
    "--node-name leveret@n{index} --cluster-peers {peers} --cluster-address {peer} --cluster-secret-file {secret}";

/// What nodes that were started here say to know each other. It guards nothing: they listen on this
/// machine only, and for the time of a run.
const SECRET: &str = "known to all nodes of this measurement\n";

/// A mark in a command, and what it stands for.
pub type Mark = (&'static str, String);

/// The command of a node of this program's own, of so many.
pub fn own_command(nodes: usize) -> String {
    if nodes > 1 { format!("{OWN} {OWN_AS_ONE_OF_SEVERAL}") } else { OWN.to_owned() }
}

/// Nodes of one broker, at least one.
#[derive(Debug)]
pub struct Nodes {
    /// The nodes.
    pub nodes: Vec<Node>,
    marks: Vec<Vec<Mark>>,
}

impl Nodes {
    /// Nodes that are not started yet; what they have in common is written into the first one's folder.
    pub fn new(nodes: Vec<Node>) -> Result<Nodes, Failed> {
        let nodes = Nodes { nodes, marks: Vec::new() };
        let secret = nodes.secret();
        std::fs::write(&secret, SECRET).map_err(|why| Failed::new(format!("writing {secret}"), why))?;
        Ok(nodes)
    }

    fn secret(&self) -> String {
        self.nodes[0].folder().join("secret").display().to_string()
    }

    /// What starts them, with `{port}`, `{dir}`, `{leveret}`, `{index}` (from 1), `{peers}`, `{peer}`,
    /// `{secret}` and the marks of `more` filled in. Each has a port for clients and one for the others.
    pub fn set(
        &mut self,
        words: &[String],
        ports: &[(u16, u16)],
        more: impl Fn(usize) -> Vec<Mark>,
    ) -> Result<(), Failed> {
        let this = std::env::current_exe().map_err(|why| Failed::new("finding this program", why))?;
        let peers: Vec<String> = ports.iter().map(|(_, peer)| format!("127.0.0.1:{peer}")).collect();
        let marks = |at: usize| {
            let own = [
                ("{port}", ports[at].0.to_string()),
                ("{dir}", self.nodes[at].folder().join("data").display().to_string()),
                ("{leveret}", this.display().to_string()),
                ("{index}", (at + 1).to_string()),
                ("{peers}", peers.join(",")),
                ("{peer}", peers[at].clone()),
                ("{secret}", self.secret()),
            ];
            more(at).into_iter().chain(own).collect()
        };
        self.marks = (0..self.nodes.len()).map(marks).collect();
        for (at, (port, _)) in ports.iter().enumerate() {
            let words = self.filled(at, words);
            self.nodes[at].set(*port, words);
        }
        Ok(())
    }

    /// Words with the marks of a node filled in.
    pub fn filled(&self, at: usize, words: &[String]) -> Vec<String> {
        let fill = |word: &String| self.marks[at].iter().fold(word.clone(), |word, (mark, of)| word.replace(mark, of));
        words.iter().map(fill).collect()
    }

    /// Starts those that do not run, each on its data as they are, and then waits for them: they may need
    /// one another to come up.
    pub fn launch(&mut self, up: Up, patience: Duration) -> Result<(), Failed> {
        let mut launched = Vec::new();
        for node in self.nodes.iter_mut().filter(|node| !node.is_launched()) {
            node.launch()?;
            launched.push(node);
        }
        launched.into_iter().try_for_each(|node| node.wait(up, patience))
    }

    /// The one that is lost where one is to be lost.
    pub fn last(&mut self) -> &mut Node {
        self.nodes.last_mut().expect("a broker has a node")
    }
}

//! The group that decides what exists: what Raft promises, equal topologies at equal index, and
//! what proposers are told.
//!
//! Invariant: who is told that a change was decided is told an entry that is committed by then, and
//! which is that change.

use super::raft::{Group, Reference};
use super::{Figures, violated};
use crate::node::View;
use broker::topology::{Command as Change, Topology, stable_hash};
use bytes::Bytes;
use consensus::{LogIndex, NodeId, Term};
use std::collections::BTreeMap;

/// The version with which an entry of the topology begins; other bodies are changes of members, or
/// empty.
const COMMAND: u8 = 1;
/// What stands before the command in an entry.
const PREFIX_BYTES: usize = 4;

/// The topology of the observer.
struct Declared(Topology);

impl Default for Declared {
    fn default() -> Self {
        Declared(Topology::new())
    }
}

impl Reference for Declared {
    fn apply(&mut self, body: &Bytes) {
        if body.first() == Some(&COMMAND) {
            self.0.apply(&Change::decode(&body[PREFIX_BYTES..]).expect("a committed entry can be read"));
        }
    }

    fn state_hash(&self) -> u64 {
        hash_of(&self.0)
    }
}

/// Equal for equal topologies.
pub fn hash_of(topology: &Topology) -> u64 {
    stable_hash(&topology.encode_snapshot())
}

/// What is known of the group, and of what was proposed to it.
#[derive(Default)]
pub struct Decisions {
    group: Group<Declared>,
    /// Proposals that nothing was heard of yet.
    asked: BTreeMap<u64, Bytes>,
}

impl Decisions {
    /// A member came up.
    pub fn started(&mut self, node: NodeId, applied: LogIndex, entries: Vec<(LogIndex, Term, Bytes)>) {
        self.group.started(node, applied, entries);
    }

    /// A member is down; what was proposed there is not answered any more.
    pub fn stopped(&mut self, node: NodeId) {
        self.group.stopped(node);
    }

    /// A member appended an entry.
    pub fn appended(&mut self, node: NodeId, term: Term, index: LogIndex, body: Bytes) {
        self.group.appended(node, index, term, body);
    }

    /// A member took a step: how it stands now.
    pub fn observe(&mut self, node: NodeId, view: &View, topology: &Topology, figures: &mut Figures) {
        self.group.observe_role(node, view);
        self.group.observe_applied(node, view, || hash_of(topology), &mut figures.topology_snapshots, &mut |_, _| {});
    }

    /// Somebody proposes a change.
    pub fn asked(&mut self, token: u64, change: &Change) {
        self.asked.insert(token, change.encode());
    }

    /// A proposer hears that its change was decided by this entry.
    pub fn decided(&mut self, token: u64, index: LogIndex) {
        let Some(change) = self.asked.remove(&token) else {
            violated("decided", &format!("proposal {token} is answered twice, or was never made"));
        };
        let is_it = |(_, body): &(Term, Bytes)| body.get(PREFIX_BYTES..) == Some(&change[..]);
        if !self.group.committed_entry(index).is_some_and(is_it) {
            violated("decided", &format!("proposal {token} is said to be decided by entry {index}, which it is not"));
        }
    }

    /// A proposer hears that nothing more will be heard of its change.
    pub fn lost(&mut self, token: u64) {
        if self.asked.remove(&token).is_none() {
            violated("decided", &format!("proposal {token} is given up after it was answered"));
        }
    }

    /// Whether nobody waits for an answer to this any more.
    pub fn is_answered(&self, token: u64) -> bool {
        !self.asked.contains_key(&token)
    }

    /// The last committed entry, as far as a member has applied it.
    pub fn committed(&self) -> LogIndex {
        self.group.committed()
    }
}

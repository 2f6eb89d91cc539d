//! The log that decides about the topology: how proposers reach it, and what becomes of what it
//! decides.
//!
//! Invariant: a command is applied to the node's topology before its proposer hears of it, and in
//! the order of the log.

use crate::node::PartitionWaker;
use crate::topology_log::{Answer, Changes, TopologyLog};
use broker::NodeNumber;
use broker::topology::{Applied, Command as Change, Home, Topology};
use bytes::Bytes;
use node::{Knowledge, LogIndex, Proposer, TOPOLOGY, Wish};
use partition::log_partition::{AppliedEntry, Machine};
use partition::machine::WrittenByNewer;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// What waits to be handed to the log.
#[derive(Clone, Default)]
pub(crate) struct Proposals {
    list: Arc<Mutex<Vec<(Wish, Answer)>>>,
}

impl Proposals {
    fn add(&self, wish: Wish, answer: Answer) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((wish, answer));
    }

    fn take(&self) -> Vec<(Wish, Answer)> {
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The way in for proposers.
pub(crate) struct MetadataLog {
    pub(crate) proposals: Proposals,
    pub(crate) waker: PartitionWaker,
}

impl TopologyLog for MetadataLog {
    fn propose(&self, command: Change, answer: Answer) {
        self.proposals.add(Wish::Change(command.encode()), answer);
        self.waker.wake();
    }

    fn catch_up(&self, answer: Answer) {
        self.proposals.add(Wish::CatchUp, answer);
        self.waker.wake();
    }
}

/// The node's topology, as the machine of the log, and who waits for what.
pub(crate) struct Decided {
    changes: Changes,
    proposals: Proposals,
    /// Taken from there, and not proposed yet.
    next: VecDeque<(Wish, Answer)>,
    answers: BTreeMap<u64, Answer>,
    last_token: u64,
    /// Carried out here, and not yet on every node that can be reached; in the order of the log.
    done: VecDeque<(LogIndex, Answer, Applied)>,
}

impl Decided {
    /// Nobody waits yet.
    pub(crate) fn new(changes: Changes, proposals: Proposals) -> Decided {
        Decided {
            changes,
            proposals,
            next: VecDeque::new(),
            answers: BTreeMap::new(),
            last_token: 0,
            done: VecDeque::new(),
        }
    }
}

impl Proposer for Decided {
    fn next_wish(&mut self) -> Option<(Wish, u64)> {
        if self.next.is_empty() {
            self.next.extend(self.proposals.take());
        }
        let (wish, answer) = self.next.pop_front()?;
        self.last_token += 1;
        self.answers.insert(self.last_token, answer);
        Some((wish, self.last_token))
    }

    fn caught_up(&mut self, token: u64) {
        self.answers.remove(&token).into_iter().for_each(Answer::done);
    }

    fn release(&mut self, up_to: LogIndex) {
        while self.done.front().is_some_and(|(at, ..)| *at <= up_to) {
            let (_, answer, applied) = self.done.pop_front().expect("it is in front");
            answer.send(applied);
        }
    }

    fn knows_leases(&self) -> bool {
        self.changes.with_topology(Topology::knows_leases).unwrap_or_default()
    }

    fn knows(&mut self, knowledge: Knowledge) {
        self.changes.known(knowledge);
    }

    fn was_knowledge_used(&mut self) -> bool {
        self.changes.was_knowledge_used()
    }

    fn homes(&self) -> Vec<NodeNumber> {
        self.changes.with_topology(|topology| topology.homes()).unwrap_or_default()
    }

    fn members_wanted(&self) -> Vec<NodeNumber> {
        self.changes.with_topology(|topology| topology.members_wanted(TOPOLOGY)).unwrap_or_default()
    }

    fn next_standing(&self, voters: &[NodeNumber]) -> Option<Bytes> {
        let change = self.changes.with_topology(|topology| topology.next_standing(voters))?;
        change.map(|change| change.encode())
    }

    fn heir(&self) -> Option<NodeNumber> {
        self.changes.heir()
    }

    fn shown_node(&self, node: NodeNumber) -> String {
        let known = self.changes.with_topology(|topology| topology.shown_node(node));
        known.unwrap_or_else(|| format!("node {}", node.0))
    }

    fn end_of(&self, node: NodeNumber) -> Bytes {
        let era = self.changes.with_topology(|topology| topology.era(node)).unwrap_or_default();
        Change::EndHome(Home { node, era }).encode()
    }
}

/// The change of a decided entry. One that this build cannot read ends the process: passed over, what this node has would
/// part from what the others have.
fn change_of(entry: &AppliedEntry) -> Change {
    Change::decode(&entry.data).unwrap_or_else(|error| {
        WrittenByNewer::end("the topology", &format_args!("entry {}: {error}", entry.index));
    })
}

impl Machine for Decided {
    fn apply(&mut self, entry: AppliedEntry) {
        let applied = self.changes.apply(&change_of(&entry), entry.token.is_some());
        let answer = entry.token.and_then(|token| self.answers.remove(&token));
        if let (Some(applied), Some(answer)) = (applied, answer) {
            self.done.push_back((entry.index, answer, applied));
        }
    }

    fn lost(&mut self, token: u64) {
        // Dropped unanswered: in a group of one, which always leads, nothing is ever lost.
        self.answers.remove(&token);
    }

    fn snapshot(&self) -> Vec<u8> {
        self.changes.snapshot()
    }

    fn can_read(&self, state: &Bytes) -> bool {
        can_read(state)
    }

    fn install(&mut self, state: &Bytes) {
        self.changes.install(state);
    }
}

/// Whether this build reads a leader's snapshot, which came whole. One of a newer build ends the process: refused without a word, this node would
/// ask for it for ever, and say that it catches up.
fn can_read(state: &Bytes) -> bool {
    match Topology::decode_snapshot(state) {
        Ok(_) => true,
        Err(error) if error.is_of_newer() => WrittenByNewer::end("the topology", &format_args!("a snapshot: {error}")),
        Err(error) => {
            tracing::error!(%error, "the leader's snapshot of the topology cannot be read, and is asked for again");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::topology::MACHINE_VERSION;

    #[test]
    fn what_a_newer_build_decided_ends_the_process_with_what_to_do() {
        let data = Change::RaiseVersion { version: MACHINE_VERSION + 1 }.encode();
        let entry = AppliedEntry { index: LogIndex(62), data, token: None };
        let ended = std::panic::catch_unwind(|| change_of(&entry)).expect_err("nobody can read it");
        let told = ended.downcast_ref::<WrittenByNewer>().expect("it is no bug").to_string();
        assert!(told.starts_with("the topology cannot be read (entry 62: "), "{told}");
        assert!(
            told.contains("raised by a newer leveret") && told.contains("start the version that wrote it"),
            "{told}"
        );
    }

    #[test]
    fn a_snapshot_of_a_newer_build_ends_the_process_and_is_not_asked_for_for_ever() {
        let known = Topology::new().encode_snapshot();
        assert!(can_read(&known));
        assert!(!can_read(&known.slice(..known.len() - 1)), "damage is no newer build");
        for (byte, to) in
            [(4, broker::topology::SNAPSHOT_VERSION + 1), (5, u8::try_from(MACHINE_VERSION + 1).expect("it is small"))]
        {
            let mut newer = known.to_vec();
            newer[byte] = to;
            let ended = std::panic::catch_unwind(|| can_read(&newer.into())).expect_err("nobody can read it");
            let told = ended.downcast_ref::<WrittenByNewer>().expect("it is no bug").to_string();
            assert!(told.starts_with("the topology cannot be read (a snapshot: "), "{told}");
        }
    }
}

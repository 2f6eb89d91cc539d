//! What must hold in every run: the promises of Raft, checked as things happen.
//!
//! - Election safety: one leader a term. - Vote safety: one vote a member and term.
//! - Log matching: an entry has one content and one predecessor. - Leader completeness: a leader
//!   has every committed entry.
//! - State machine safety: one entry an index, on all members. - Durability: what is committed is
//!   synced by a majority.

use std::collections::BTreeMap;

use bytes::Bytes;
use consensus::{Entry, EntryKind, Kind, LogIndex, Membership, Message, NodeId, Position, Term};

use super::State;

#[derive(Default)]
pub struct Checks {
    leaders: BTreeMap<Term, NodeId>,
    votes: BTreeMap<(Term, NodeId), NodeId>,
    entries: BTreeMap<Position, (Term, EntryKind, Bytes)>,
    committed: BTreeMap<LogIndex, Entry>,
    applied: BTreeMap<NodeId, LogIndex>,
    /// How far any leader moved its commit index.
    led_commit: LogIndex,
    /// The term of the leader that committed an entry first.
    committed_in: BTreeMap<LogIndex, Term>,
}

impl Checks {
    /// Commands committed so far.
    pub fn committed_count(&self) -> usize {
        self.committed.len()
    }

    pub fn committed_index(&self) -> LogIndex {
        self.committed.keys().next_back().copied().unwrap_or_default()
    }

    pub fn leaders_count(&self) -> usize {
        self.leaders.len()
    }

    pub fn leads(&mut self, node: NodeId, term: Term, log: impl FnOnce() -> (Position, Vec<Entry>)) {
        let first = !self.leaders.contains_key(&term);
        let leader = *self.leaders.entry(term).or_insert(node);
        assert_eq!(leader, node, "two leaders in term {term}");
        if first {
            let (compacted, log) = log();
            for (index, entry) in self.committed.range(compacted.index.next()..) {
                // A late winner of an old term knows nothing of what later terms committed, and
                // commits nothing itself.
                if self.committed_in[index] >= term {
                    continue;
                }
                let own = log.iter().find(|own| own.index == *index);
                assert_eq!(
                    own.map(Entry::position),
                    Some(entry.position()),
                    "{node} leads term {term} without the committed entry {}",
                    entry.position()
                );
            }
        }
    }

    pub fn sent(&mut self, message: &Message) {
        let text = message.to_string();
        if message.kind() == Kind::VoteReply && text.ends_with("yes") {
            let given = *self.votes.entry((message.term(), message.from())).or_insert(message.to());
            assert_eq!(given, message.to(), "{} votes twice in term {}", message.from(), message.term());
        }
        // Standing for election is a vote for oneself.
        if message.kind() == Kind::Vote {
            let given = *self.votes.entry((message.term(), message.from())).or_insert(message.from());
            assert_eq!(given, message.from(), "{} votes twice in term {}", message.from(), message.term());
        }
    }

    pub fn appended(&mut self, before: Option<Term>, entries: &[Entry]) {
        let Some(mut before) = before else { return };
        for entry in entries {
            let content = (before, entry.kind, entry.data.clone());
            let known = self.entries.entry(entry.position()).or_insert_with(|| content.clone());
            assert_eq!(*known, content, "{} means two things", entry.position());
            before = entry.term;
        }
    }

    /// A leader moves its commit index, on the strength of `members`.
    pub fn leader_commits(&mut self, term: Term, at: Position, members: &Membership, synced: impl Fn(&NodeId) -> bool) {
        if at.index <= self.led_commit {
            return;
        }
        for index in self.led_commit.0 + 1..=at.index.0 {
            self.committed_in.insert(LogIndex(index), term);
        }
        self.led_commit = at.index;
        for voters in [&members.voters, &members.voters_outgoing] {
            let holders = voters.iter().filter(|voter| synced(voter)).count();
            assert!(
                voters.is_empty() || holders > voters.len() / 2,
                "{at} is committed with {holders} synced copies of {}",
                voters.len()
            );
        }
    }

    /// A member hands out a committed entry.
    pub fn committed(&mut self, node: NodeId, entry: &Entry) {
        if let Some(before) = self.applied.insert(node, entry.index) {
            assert!(entry.index == before.next(), "{node} applies {} after {before}", entry.position());
        }
        let known = self.committed.entry(entry.index).or_insert_with(|| entry.clone());
        assert_eq!(known, entry, "{node} commits something else");
    }

    pub fn installed(&mut self, node: NodeId, at: Position, state: &State) {
        let commands = self
            .committed
            .range(..=at.index)
            .filter(|(_, entry)| entry.kind == EntryKind::Command)
            .map(|(_, entry)| (entry.position(), entry.data.clone()));
        assert!(commands.eq(state.iter().cloned()), "{node} installs a snapshot at {at} that is not the committed log");
        self.applied.insert(node, at.index);
    }

    /// A restarted member applies again from where its checkpoint stands.
    pub fn restarted(&mut self, node: NodeId) {
        self.applied.remove(&node);
    }

    /// The committed commands, in order.
    pub fn commands(&self) -> State {
        self.committed
            .values()
            .filter(|entry| entry.kind == EntryKind::Command)
            .map(|entry| (entry.position(), entry.data.clone()))
            .collect()
    }
}

//! The disk of one member: what is synced, and what is written and would be lost with the power.

use std::collections::VecDeque;

use consensus::{
    Entry, EntryKind, Fetch, HardState, LogIndex, Membership, Position, Restored, SnapshotOffer, Term, TermRun,
};

use super::{State, decode_state};

/// One write, in the order the member asked for it.
#[derive(Clone, Debug)]
pub struct Write {
    pub number: u64,
    pub must_sync: bool,
    pub append: Vec<Entry>,
    pub hard_state: Option<HardState>,
    pub snapshot: Option<SnapshotOffer>,
}

/// The disk of one member.
#[derive(Clone, Debug)]
pub struct Disk {
    pub pending: VecDeque<Write>,
    hard_state: HardState,
    checkpoint: Position,
    membership: Membership,
    state: State,
    compacted: Position,
    /// Synced entries after `compacted`.
    log: Vec<Entry>,
}

impl Disk {
    pub fn new(restored: &Restored) -> Self {
        Self {
            pending: VecDeque::new(),
            hard_state: restored.hard_state,
            checkpoint: restored.compacted,
            membership: restored.membership.clone(),
            state: Vec::new(),
            compacted: restored.compacted,
            log: Vec::new(),
        }
    }

    pub fn write(&mut self, write: Write) {
        if write.must_sync || write.hard_state.is_some() {
            self.pending.push_back(write);
        }
    }

    /// Whether something that must be synced is not.
    pub fn is_behind(&self) -> bool {
        self.pending.iter().any(|write| write.must_sync)
    }

    /// Whether a snapshot is written and not synced.
    pub fn is_installing(&self) -> bool {
        self.pending.iter().any(|write| write.snapshot.is_some())
    }

    pub fn make_durable(&mut self, write: Write) {
        if let Some(snapshot) = write.snapshot {
            self.checkpoint = snapshot.position;
            self.membership = snapshot.membership;
            self.state = decode_state(&snapshot.manifest);
            self.compacted = snapshot.position;
            self.log.clear();
        }
        for entry in write.append {
            self.log.retain(|old| old.index < entry.index);
            assert_eq!(entry.index.0, self.end().index.0 + 1, "no holes on disk");
            self.log.push(entry);
        }
        if let Some(hard_state) = write.hard_state {
            assert!(hard_state.commit <= self.end().index, "a commit index never overtakes the log on disk");
            self.hard_state = hard_state;
        }
    }

    /// Loses the power: of the pending writes the first `kept` happen to survive.
    pub fn crash(&mut self, kept: usize) {
        let pending = std::mem::take(&mut self.pending);
        for write in pending.into_iter().take(kept) {
            self.make_durable(write);
        }
    }

    /// The term that is synced.
    pub fn synced_term(&self) -> Term {
        self.hard_state.term
    }

    /// The end of the synced log.
    pub fn end(&self) -> Position {
        self.log.last().map_or(self.compacted, Entry::position)
    }

    /// Whether this very entry is synced, or part of a synced checkpoint.
    pub fn has_synced(&self, position: Position) -> bool {
        position.index <= self.compacted.index || self.log.iter().any(|entry| entry.position() == position)
    }

    /// The log with everything that is written, synced or not.
    pub fn log_as_written(&self) -> (Position, Vec<Entry>) {
        let mut view = self.clone();
        view.crash(usize::MAX);
        (view.compacted, view.log)
    }

    pub fn term_at(&self, index: LogIndex) -> Term {
        let (compacted, log) = self.log_as_written();
        if index == compacted.index {
            return compacted.term;
        }
        log.iter().find(|entry| entry.index == index).expect("an entry of the log").term
    }

    pub fn synced_term_at(&self, index: LogIndex) -> Term {
        if index == self.compacted.index {
            return self.compacted.term;
        }
        self.log.iter().find(|entry| entry.index == index).expect("a synced entry").term
    }

    /// The term of the entry before `first`.
    pub fn term_before(&self, first: Option<&Entry>) -> Option<Term> {
        Some(self.term_at(LogIndex(first?.index.0 - 1)))
    }

    pub fn fetch(&self, fetch: Fetch) -> Vec<Entry> {
        let mut bytes = 0;
        let mut entries = Vec::new();
        for entry in &self.log {
            if entry.index >= fetch.from && entry.index < fetch.limit {
                bytes += entry.data.len() as u64;
                if bytes > fetch.bytes_max && !entries.is_empty() {
                    break;
                }
                entries.push(entry.clone());
            }
        }
        entries
    }

    pub fn checkpoint(&mut self, applied: LogIndex, membership: Membership, state: State) {
        assert!(applied.0 <= self.end().index.0, "what is applied is synced");
        if applied > self.checkpoint.index {
            self.checkpoint = Position { index: applied, term: self.term_at(applied) };
            self.membership = membership;
            self.state = state;
        }
    }

    /// Gives up the log up to `index`, or up to the checkpoint if that is less. Returns how far.
    pub fn compact(&mut self, index: LogIndex) -> LogIndex {
        let index = index.min(self.checkpoint.index);
        if index > self.compacted.index {
            self.compacted = Position { index, term: self.term_at(index) };
            self.log.retain(|entry| entry.index > index);
        }
        self.compacted.index
    }

    /// What a member finds when it starts. With `replay` the committed log is applied before it
    /// starts, and its bodies stay on disk.
    pub fn restore(&self, replay: bool) -> (Restored, State) {
        let mut state = self.state.clone();
        let mut changes = Vec::new();
        let mut applied = self.checkpoint.index;
        if replay {
            applied = applied.max(self.hard_state.commit);
            for entry in &self.log {
                if entry.index <= self.checkpoint.index || entry.index > applied {
                    continue;
                }
                match entry.kind {
                    EntryKind::Command => state.push((entry.position(), entry.data.clone())),
                    EntryKind::Membership => changes.push(entry.clone()),
                    EntryKind::Empty => {}
                }
            }
        }
        let mut evicted: Vec<TermRun> = Vec::new();
        let mut term = self.compacted.term;
        for entry in self.log.iter().filter(|entry| entry.index <= applied) {
            if entry.term != term {
                term = entry.term;
                evicted.push(TermRun { first: entry.index, term });
            }
        }
        let mut hard_state = self.hard_state;
        hard_state.commit = hard_state.commit.max(self.checkpoint.index);
        let restored = Restored {
            hard_state,
            membership: self.membership.clone(),
            changes,
            compacted: self.compacted,
            applied,
            evicted,
            entries: self.log.iter().filter(|entry| entry.index > applied).cloned().collect(),
            forgot: false,
        };
        (restored, state)
    }

    /// A disk that lied: the vote it synced is gone.
    pub fn forget_vote(&mut self) {
        self.hard_state.vote = None;
    }

    /// A disk that lied: the last entry it synced is gone.
    pub fn lose_last(&mut self) {
        if self.log.last().is_some_and(|last| last.index > self.checkpoint.index) {
            self.log.pop();
            self.hard_state.commit = self.hard_state.commit.min(self.end().index);
        }
    }
}

//! What a group may start from: settings that make sense, and a restored state that can be a
//! member's.
//!
//! What is restored comes from a disk. A disk that rots is found out by checksums; a folder that
//! was put together from two, or that a broken build wrote, is whole and says what cannot be.
//! Invariant: nothing that a folder says ends the process. A state that contradicts itself is
//! refused before the library sees it.

use crate::config::{ConfigError, Restored};
use crate::entry::EntryKind;
use crate::position::LogIndex;

/// Why a group does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Two things that were restored cannot both be true.
    #[error("{0}")]
    Contradictory(String),
}

fn contradiction(what: String) -> Result<(), StartError> {
    Err(StartError::Contradictory(what))
}

impl Restored {
    /// Whether all of it can be true at once. Changes of members are tried later, one after the
    /// other.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        let Restored { hard_state, compacted, applied, .. } = self;
        let last = self.entries.last().map_or(*applied, |entry| entry.index);
        if !(compacted.index <= *applied && *applied <= hard_state.commit && hard_state.commit <= last) {
            let commit = hard_state.commit;
            return contradiction(format!(
                "compacted ({compacted}), applied ({applied}), committed ({commit}) and last ({last}) are not in this order"
            ));
        }
        // Who joins a group has nothing, and no members either.
        if !self.membership.is_lawful() && applied.0 > 0 {
            return contradiction(format!("the members at {applied} can be those of no group"));
        }
        self.check_terms()?;
        let is_applied = |kind, index| kind == EntryKind::Membership && index <= *applied;
        match self.changes.iter().find(|change| !is_applied(change.kind, change.index)) {
            Some(change) => contradiction(format!("{} is not an applied change of members", change.position())),
            None => Ok(()),
        }
    }

    /// Up to where the log is known to be committed: as far as was said, and up to the last change
    /// of members but one.
    ///
    /// A leader begins a change of members only once it has applied the one before, so a log that
    /// holds two proves that the first is committed. Who forgot that by a restart could be elected
    /// by members that count no more, and nobody who counts would know.
    pub(crate) fn committed(&self) -> LogIndex {
        let mut changes = self.entries.iter().rev().filter(|entry| entry.kind == EntryKind::Membership);
        changes.nth(1).map_or(self.hard_state.commit, |change| change.index.max(self.hard_state.commit))
    }

    /// Entries follow one another without a gap, and terms only grow.
    fn check_terms(&self) -> Result<(), StartError> {
        let begin = self.entries.first().map_or(self.applied.next(), |entry| entry.index);
        if begin <= self.compacted.index || begin > self.applied.next() {
            let compacted = self.compacted;
            return contradiction(format!("the log begins at {begin}, and {compacted} is what it follows"));
        }
        let (mut before, mut next) = (self.compacted.term, begin);
        let mut run_before = self.compacted.index;
        for run in &self.evicted {
            if run.first <= run_before || run.first >= begin || run.term < before {
                return contradiction(format!("a stretch of term {} begins at {}, and none can", run.term, run.first));
            }
            (before, run_before) = (run.term, run.first);
        }
        for entry in &self.entries {
            if entry.index != next || entry.term < before {
                let found = entry.position();
                return contradiction(format!(
                    "{found} is in the log where {next} of term {before} or later should be"
                ));
            }
            (before, next) = (entry.term, next.next());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::entry::Entry;
    use crate::group::Group;
    use crate::membership::Membership;
    use crate::position::{LogIndex, NodeId, Position, Term};
    use crate::ready::HardState;
    use crate::terms::TermRun;
    use bytes::Bytes;

    fn entry(index: u64, term: u64, kind: EntryKind) -> Entry {
        Entry { index: LogIndex(index), term: Term(term), kind, data: Bytes::new(), crc: None }
    }

    /// Five entries, of which three are applied.
    fn sound() -> Restored {
        Restored {
            hard_state: HardState { term: Term(3), vote: None, commit: LogIndex(5) },
            membership: Membership::of_voters([NodeId(1), NodeId(2), NodeId(3)]),
            changes: Vec::new(),
            compacted: Position::new(2, 1),
            applied: LogIndex(4),
            evicted: vec![TermRun { first: LogIndex(3), term: Term(2) }],
            entries: vec![entry(5, 2, EntryKind::Command), entry(6, 3, EntryKind::Command)],
            forgot: false,
        }
    }

    type Spoil = fn(&mut Restored);

    fn started(restored: Restored) -> Result<(), StartError> {
        Group::new(Config::new(NodeId(1), 1, 1), restored).map(|_| ())
    }

    #[test]
    fn what_contradicts_itself_is_refused_and_ends_nothing() {
        started(sound()).expect("it can be true");
        started(Restored::joining()).expect("who joins has nothing");
        let contradictions: [(&str, Spoil); 8] = [
            ("applied beyond the commit", |r| r.hard_state.commit = LogIndex(3)),
            ("committed beyond the end", |r| r.hard_state.commit = LogIndex(7)),
            ("applied before what is compacted", |r| r.applied = LogIndex(1)),
            ("nobody is a member", |r| r.membership = Membership::default()),
            ("a gap", |r| r.entries[1].index = LogIndex(7)),
            ("a term that falls", |r| r.entries[1].term = Term(1)),
            ("stretches out of order", |r| r.evicted[0].first = LogIndex(2)),
            ("a change of members that cannot be read", |r| r.changes = vec![entry(3, 2, EntryKind::Membership)]),
        ];
        for (what, spoil) in contradictions {
            let mut restored = sound();
            spoil(&mut restored);
            assert!(matches!(started(restored), Err(StartError::Contradictory(_))), "{what}");
        }
        let mut nobody = Config::new(NodeId(1), 1, 1);
        nobody.inflight_messages_max = 0;
        assert!(matches!(Group::new(nobody, sound()), Err(StartError::Config(_))));
    }
}

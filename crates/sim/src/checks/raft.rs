//! The promises of Raft for one group, and equal state at equal index.
//!
//! Invariant: `committed` is what the first member that applied an entry applied; every other
//! member, at any time later, must agree. It is longer than what any single member knows, and never
//! shorter than what any client was told.

use super::{id_of, violated};
use crate::node::View;
use broker::QueueId;
use bytes::Bytes;
use consensus::{LogIndex, NodeId, Restored, Term};
use partition::entry::{Commands, LogCommand};
use partition::machine::{MACHINE_VERSION, Queues, Unobserved};
use std::collections::BTreeMap;
use storage::{FileNo, Location};

/// A member's log as it was told to write it.
#[derive(Debug, Default)]
struct Mirror {
    log: BTreeMap<u64, (Term, Bytes)>,
    applied: u64,
    /// Its state was looked at since it started.
    is_checked: bool,
}

/// A machine of the observer's own, which entries alone change.
pub trait Reference: Default {
    /// Carries out a committed entry, as stored.
    fn apply(&mut self, body: &Bytes);

    /// Equal for equal states.
    fn state_hash(&self) -> u64;
}

/// Where a log publishes a message.
#[derive(Debug, Default)]
pub struct Taken {
    /// The last entry that does.
    pub index: u64,
    /// The queues that take it in.
    pub queues: Vec<QueueId>,
}

/// What is known of one group.
#[derive(Default)]
pub struct Group<R> {
    leaders: BTreeMap<Term, NodeId>,
    /// Each entry that was ever appended anywhere, with the term of the one before it where that is
    /// known.
    entries: BTreeMap<(u64, Term), (Bytes, Option<Term>)>,
    mirrors: BTreeMap<NodeId, Mirror>,
    /// From the first index after the beginning on.
    committed: Vec<(Term, Bytes)>,
    reference: R,
    hashes: BTreeMap<u64, u64>,
}

const FIRST: u64 = Restored::BOOTSTRAP.index.0 + 1;

impl<R: Reference> Group<R> {
    /// A member came up.
    pub fn started(&mut self, node: NodeId, applied: LogIndex, entries: Vec<(LogIndex, Term, Bytes)>) {
        let log = entries.into_iter().map(|(index, term, body)| (index.0, (term, body))).collect();
        self.mirrors.insert(node, Mirror { log, applied: applied.0, is_checked: false });
    }

    /// A member is down.
    pub fn stopped(&mut self, node: NodeId) {
        self.mirrors.remove(&node);
    }

    /// A member appended an entry.
    pub fn appended(&mut self, node: NodeId, index: LogIndex, term: Term, body: Bytes) {
        let index = index.0;
        let mirror = self.mirrors.entry(node).or_default();
        if index <= mirror.applied {
            violated("committed", &format!("{node} writes over entry {index}, which it has applied"));
        }
        mirror.log.split_off(&index);
        let before = index.checked_sub(1).and_then(|i| mirror.log.get(&i)).map(|e| e.0);
        let (known, known_before) = self.entries.entry((index, term)).or_insert((body.clone(), before));
        if *known != body || (before.is_some() && known_before.is_some() && *known_before != before) {
            violated("log-matching", &format!("entry {index}@{} is not the same on {node}", term.0));
        }
        if known_before.is_none() {
            *known_before = before;
        }
        mirror.log.insert(index, (term, body));
    }

    /// Looks whether a member leads; true if that is new.
    pub fn observe_role(&mut self, node: NodeId, view: &View) -> bool {
        if !view.leads {
            return false;
        }
        match self.leaders.get(&view.term) {
            Some(leader) if *leader == node => return false,
            Some(leader) => violated("one-leader", &format!("{leader} and {node} both lead term {}", view.term.0)),
            None => {}
        }
        self.leaders.insert(view.term, node);
        self.check_complete(node, view);
        true
    }

    /// A new leader has every committed entry.
    fn check_complete(&self, node: NodeId, view: &View) {
        let mirror = self.mirrors.get(&node).unwrap_or_else(|| violated("one-leader", "a leader that is down"));
        let from = view.compacted.0.max(FIRST - 1) + 1;
        for index in from..FIRST + self.committed.len() as u64 {
            let (term, _) = &self.committed[(index - FIRST) as usize];
            if mirror.log.get(&index).map(|e| e.0) != Some(*term) {
                let found = mirror.log.get(&index).map(|e| e.0);
                violated(
                    "leader-complete",
                    &format!(
                        "{node} leads term {} with {found:?} at {index}, committed in term {}",
                        view.term.0, term.0
                    ),
                );
            }
        }
    }

    /// Looks at what a member has applied; entries that nobody had applied before go to `commit`.
    /// Returns how many.
    pub fn observe_applied(
        &mut self,
        node: NodeId,
        view: &View,
        state_hash: impl Fn() -> u64,
        installed: &mut u64,
        commit: &mut dyn FnMut(LogIndex, &Bytes),
    ) -> u64 {
        let Some(mirror) = self.mirrors.get_mut(&node) else { return 0 };
        if view.compacted.0 > mirror.applied && view.applied >= view.compacted {
            // A snapshot took the place of the log up to there.
            if view.compacted.0 >= FIRST + self.committed.len() as u64 {
                violated("committed", &format!("{node} has a snapshot at {}, which nobody committed", view.compacted));
            }
            *installed += 1;
            mirror.applied = view.compacted.0;
            mirror.log = mirror.log.split_off(&(view.compacted.0 + 1));
            mirror.is_checked = false;
        }
        let before = mirror.applied;
        let mut fresh = 0;
        for index in before + 1..=view.applied.0 {
            let Some((term, body)) = mirror.log.get(&index) else {
                violated("committed", &format!("{node} applied entry {index}, which was never appended there"));
            };
            match self.committed.get((index - FIRST) as usize) {
                Some((known_term, known)) if known_term == term && known == body => {}
                Some((known_term, _)) => violated(
                    "committed",
                    &format!("{node} applied {index}@{} where {index}@{} was committed", term.0, known_term.0),
                ),
                None => {
                    assert_eq!(index - FIRST, self.committed.len() as u64, "entries are applied in order");
                    self.committed.push((*term, body.clone()));
                    self.reference.apply(body);
                    self.hashes.insert(index, self.reference.state_hash());
                    commit(LogIndex(index), body);
                    fresh += 1;
                }
            }
        }
        if view.applied.0 != before || !mirror.is_checked {
            mirror.is_checked = true;
            mirror.applied = view.applied.0;
            // What is applied and compacted is never looked at again.
            let kept = mirror.log.split_off(&view.compacted.0);
            mirror.log = kept;
            self.check_state(node, view.applied.0, state_hash);
        }
        fresh
    }

    /// The state of a member is the one that everybody has at that index.
    fn check_state(&self, node: NodeId, applied: u64, state_hash: impl Fn() -> u64) {
        if self.hashes.get(&applied).is_some_and(|hash| state_hash() != *hash) {
            violated("equal-state", &format!("{node} differs from the others at index {applied}"));
        }
    }

    /// Who led the last term that anybody led.
    pub fn last_leader(&self) -> Option<NodeId> {
        self.leaders.last_key_value().map(|(_, node)| *node)
    }

    /// The messages that were published by entries of a member's log that are not known to be
    /// applied.
    pub fn published_on(&self, node: NodeId) -> BTreeMap<u64, Taken> {
        let mut published = BTreeMap::new();
        for (index, (_, body)) in self.mirrors.get(&node).into_iter().flat_map(|mirror| &mirror.log) {
            note_published(*index, body, &mut published);
        }
        published
    }

    /// A committed entry as stored, with its term.
    pub fn committed_entry(&self, index: LogIndex) -> Option<&(Term, Bytes)> {
        self.committed.get(index.0.checked_sub(FIRST)? as usize)
    }

    /// The last entry that a member is known to have applied.
    pub fn committed(&self) -> LogIndex {
        LogIndex(FIRST - 1 + self.committed.len() as u64)
    }
}

/// Adds the messages that an entry publishes.
fn note_published(index: u64, body: &Bytes, published: &mut BTreeMap<u64, Taken>) {
    let Ok(mut commands) = Commands::parse(body) else { return };
    while let Ok(Some(command)) = commands.next() {
        if let LogCommand::Publish(batch) = command {
            for id in batch.iter().filter_map(|message| id_of(message.body())) {
                let taken = published.entry(id).or_default();
                taken.index = index;
                taken.queues.extend(batch.targets());
            }
        }
    }
}

impl Reference for Queues {
    fn apply(&mut self, body: &Bytes) {
        // Empty entries and changes of members say nothing to the queues.
        if body.first() != Some(&partition::entry::ENTRY_VERSION) {
            return;
        }
        let at = Location { file: FileNo(1), offset: 0, bytes: body.len() as u32 };
        self.know_versions_to(MACHINE_VERSION + 1);
        Queues::apply(self, body, at, &mut Unobserved).expect("a committed entry can be read");
    }

    fn state_hash(&self) -> u64 {
        Queues::state_hash(self)
    }
}

/// The simulator finds most faults by another check first: here each of these is shown to bite.
#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A machine without a state.
    #[derive(Default)]
    struct Nothing;

    impl Reference for Nothing {
        fn apply(&mut self, _: &Bytes) {}

        fn state_hash(&self) -> u64 {
            0
        }
    }

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    /// A group whose first entry both members appended in term 2, and A has applied.
    fn group() -> Group<Nothing> {
        let mut group = Group::default();
        for node in [A, B] {
            group.started(node, Restored::BOOTSTRAP.index, Vec::new());
            group.appended(node, LogIndex(FIRST), Term(2), Bytes::from_static(b"one"));
        }
        assert_eq!(applies(&mut group, A, FIRST, 0), 1);
        group
    }

    fn applies(group: &mut Group<Nothing>, node: NodeId, applied: u64, compacted: u64) -> u64 {
        let (applied, compacted) = (LogIndex(applied), LogIndex(compacted));
        let view = View {
            term: Term(2),
            leads: false,
            serves: false,
            leader: None,
            applied,
            compacted,
            last: applied,
            may_have_forgotten: false,
            gave_up_waiting: false,
        };
        group.observe_applied(node, &view, || 0, &mut 0, &mut |_, _| {})
    }

    fn violation(violate: impl FnOnce(&mut Group<Nothing>)) -> String {
        let mut group = group();
        let ended = catch_unwind(AssertUnwindSafe(|| violate(&mut group))).expect_err("it is found out");
        ended.downcast_ref::<String>().expect("a text").clone()
    }

    #[test]
    fn what_one_member_applied_every_other_may_apply_once_more() {
        assert_eq!(applies(&mut group(), B, FIRST, 0), 0);
    }

    #[test]
    fn what_was_applied_is_neither_written_over_nor_another_elsewhere_nor_from_nowhere() {
        let other = Bytes::from_static(b"other");
        let over = violation(|group| group.appended(A, LogIndex(FIRST), Term(3), other.clone()));
        assert!(over.starts_with("[committed] ") && over.contains("writes over entry"), "{over}");
        let parted = violation(|group| {
            group.appended(B, LogIndex(FIRST), Term(3), other.clone());
            applies(group, B, FIRST, 0);
        });
        assert!(parted.starts_with("[committed] ") && parted.contains("was committed"), "{parted}");
        let from_nowhere = violation(|group| {
            applies(group, A, FIRST + 1, 0);
        });
        assert!(from_nowhere.contains("never appended there"), "{from_nowhere}");
        let snapshot = violation(|group| {
            applies(group, B, FIRST + 1, FIRST + 1);
        });
        assert!(snapshot.contains("which nobody committed"), "{snapshot}");
    }
}

//! What a member remembers of its log in memory: the term of every entry since the last compaction,
//! the bodies of the newest ones, and what has to be brought in from disk.
//!
//! ```text
//!   compacted        cache_first           applied            last
//!       |   terms only    |   bodies, may go  |  bodies, stay   |
//!       +-----------------+-------------------+-----------------+
//!       3@2               90                  140               150
//! ```
//!
//! A follower that needs an entry between `compacted` and `cache_first` is served through a
//! [`Fetch`]: the caller reads the entries from disk and lends them to this view for one call. A
//! follower that needs less than that gets a snapshot.
//!
//! Invariant: what is not applied yet is never evicted, because the library reads it again without
//! a way to wait: to hand it out, and whole, before every campaign. The leader bounds it through
//! `uncommitted_bytes_max`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{self, SnapshotMetadata};
use raft::{Error, GetEntriesContext, RaftState, StorageError};

use crate::entry::Entry;
use crate::membership::Membership;
use crate::position::{LogIndex, NodeId, Position, Term};
use crate::terms::{TermRun, TermRuns};

/// A manifest names extents and checkpoints, it does not contain them: a few bytes for each.
pub const MANIFEST_BYTES_MAX: usize = 1 << 20;

/// Each entry costs this much memory beside its body.
const ENTRY_OVERHEAD_BYTES: usize = size_of::<eraftpb::Entry>();

/// Followers that wait for one fetch. The library asks again at every heartbeat and does not say
/// for whom, so beyond a few times the members of any group these are repetitions; what is dropped
/// here is asked for again.
const WAITERS_PER_FETCH_MAX: usize = 16;

/// Fetches under way. More followers than this at different places wait for their next heartbeat.
const FETCHES_MAX: usize = 8;

/// The cache keeps room for this many entries when it empties, so that a steady trickle does not
/// allocate.
const CACHE_ROOM_MIN: usize = 16;

/// Entries that a follower needs and that are no longer in memory. Read them from disk and call
/// [`Group::fetched`](crate::Group::fetched).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The first entry wanted.
    pub from: LogIndex,
    /// One past the last entry wanted.
    pub limit: LogIndex,
    /// Enough once the bodies sum up to this; at least one entry whatever its size.
    pub bytes_max: u64,
}

/// A follower needs more than the log still has. Make a snapshot and call
/// [`Group::offer_snapshot`](crate::Group::offer_snapshot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotWanted {
    /// The follower.
    pub to: NodeId,
    /// The snapshot must stand at this index or later, or the log after it would have a hole.
    pub index_min: LogIndex,
}

/// A snapshot as the group knows it: where it stands, who the members were there, and a manifest of
/// which the group understands nothing, from which the receiver fetches the contents by other
/// means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// The last entry the snapshot contains.
    pub position: Position,
    /// The members as of that entry.
    pub membership: Membership,
    /// What to fetch and from whom, opaque. At most [`MANIFEST_BYTES_MAX`].
    pub manifest: Bytes,
}

impl SnapshotOffer {
    pub(crate) fn from_raft(mut snapshot: eraftpb::Snapshot) -> Self {
        let metadata = snapshot.take_metadata();
        Self {
            position: Position::new(metadata.index, metadata.term),
            membership: Membership::from_raft(metadata.get_conf_state()),
            manifest: snapshot.data,
        }
    }

    pub(crate) fn into_raft(self) -> eraftpb::Snapshot {
        let mut metadata = SnapshotMetadata {
            index: self.position.index.0,
            term: self.position.term.0,
            ..SnapshotMetadata::default()
        };
        metadata.set_conf_state(self.membership.to_raft());
        let mut snapshot = eraftpb::Snapshot { data: self.manifest, ..eraftpb::Snapshot::default() };
        snapshot.set_metadata(metadata);
        snapshot
    }
}

/// The log as the library's storage.
pub(crate) struct LogView {
    initial: RaftState,
    compacted: Position,
    terms: TermRuns,
    last: u64,
    applied: u64,
    cache: VecDeque<eraftpb::Entry>,
    cache_bytes: usize,
    cache_bytes_max: usize,
    /// Entries lent by the caller, for the time of one call.
    loan: Vec<eraftpb::Entry>,
    /// The library asks through a shared reference.
    wanted: RefCell<Wanted>,
}

/// What the library asked for and did not get at once.
#[derive(Default)]
struct Wanted {
    fetches: Vec<PendingFetch>,
    snapshots: BTreeMap<u64, PendingSnapshot>,
}

struct PendingFetch {
    fetch: Fetch,
    waiters: Vec<GetEntriesContext>,
    told: bool,
}

enum PendingSnapshot {
    Wanted { index_min: u64, told: bool },
    Offered(eraftpb::Snapshot),
}

impl LogView {
    /// A log that continues after `compacted` with entries whose bodies are on disk only, then with
    /// `entries`.
    pub(crate) fn new(
        initial: RaftState,
        compacted: Position,
        evicted: &[TermRun],
        entries: Vec<Entry>,
        applied: LogIndex,
        cache_bytes_max: usize,
    ) -> Self {
        let mut view = Self {
            initial,
            compacted,
            terms: TermRuns::new(compacted),
            last: compacted.index.0,
            applied: compacted.index.0,
            cache: VecDeque::new(),
            cache_bytes: 0,
            cache_bytes_max,
            loan: Vec::new(),
            wanted: RefCell::default(),
        };
        let bodies_from = entries.first().map_or(applied.0 + 1, |entry| entry.index.0);
        for run in evicted {
            assert!(run.first.0 < bodies_from, "an evicted run begins before the first entry with a body");
            view.terms.push(run.first.0, run.term.0);
        }
        assert!(
            bodies_from > compacted.index.0 && bodies_from <= applied.0 + 1,
            "bodies begin at {bodies_from}: after what is compacted ({compacted}) and not after what is not applied ({applied})"
        );
        view.last = bodies_from - 1;
        view.append(entries.into_iter().map(Entry::into_raft));
        view.applied = applied.0;
        view.evict(0);
        view
    }

    /// Takes entries that are being written. The first may replace an entry that is not committed,
    /// and with it all that followed.
    pub(crate) fn append(&mut self, entries: impl Iterator<Item = eraftpb::Entry>) {
        for entry in entries {
            if entry.index <= self.last {
                self.truncate(entry.index);
            }
            assert_eq!(entry.index, self.last + 1, "the log has no holes");
            self.terms.push(entry.index, entry.term);
            self.last = entry.index;
            self.cache_bytes += entry_bytes(&entry);
            self.cache.push_back(entry);
        }
    }

    /// Forgets everything: the log begins anew after a snapshot at `position`.
    pub(crate) fn restore(&mut self, position: Position) {
        assert!(position.index.0 > self.applied, "a snapshot never takes back what is applied");
        self.compacted = position;
        self.terms = TermRuns::new(position);
        self.last = position.index.0;
        self.cache = VecDeque::new();
        self.cache_bytes = 0;
    }

    /// Notes that everything up to `index` is applied, and evicts the oldest applied bodies: those
    /// that every member has (`everyone_has`, zero if that is not known here), and those beyond the
    /// budget.
    pub(crate) fn applied(&mut self, index: u64, everyone_has: u64) {
        self.applied = index;
        self.evict(everyone_has);
    }

    /// Sets the budget and evicts down to it, as far as entries are applied.
    pub(crate) fn set_cache_bytes_max(&mut self, bytes_max: usize) {
        self.cache_bytes_max = bytes_max;
        self.evict(0);
    }

    /// Gives up the entries up to and including `index`, which are applied.
    pub(crate) fn compact(&mut self, index: u64) {
        assert!(index <= self.applied, "only what is applied can be compacted");
        if index <= self.compacted.index.0 {
            return;
        }
        self.terms.compact(index);
        self.compacted = Position::new(index, self.terms.at(index));
        while self.cache.front().is_some_and(|entry| entry.index <= index) {
            self.drop_first();
        }
        self.make_room();
    }

    pub(crate) fn compacted(&self) -> Position {
        self.compacted
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// Index and size of each body in memory.
    pub(crate) fn cached_bodies(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.cache.iter().map(|entry| (entry.index, entry.data.len()))
    }

    /// The index of the first entry whose body is in memory, or one past the end.
    pub(crate) fn cache_first(&self) -> u64 {
        self.last + 1 - self.cache.len() as u64
    }

    /// What is to be read from disk and was not reported yet.
    pub(crate) fn take_fetches(&mut self, out: &mut Vec<Fetch>) {
        for pending in &mut self.wanted.get_mut().fetches {
            if !pending.told {
                pending.told = true;
                out.push(pending.fetch);
            }
        }
    }

    /// Whom to make a snapshot for and was not reported yet.
    pub(crate) fn take_snapshots_wanted(&mut self, out: &mut Vec<SnapshotWanted>) {
        for (&to, pending) in &mut self.wanted.get_mut().snapshots {
            if let PendingSnapshot::Wanted { index_min, told } = pending
                && !*told
            {
                *told = true;
                out.push(SnapshotWanted { to: NodeId(to), index_min: LogIndex(*index_min) });
            }
        }
    }

    /// Whether [`Self::take_fetches`] or [`Self::take_snapshots_wanted`] would say anything.
    pub(crate) fn has_wanted(&self) -> bool {
        let wanted = self.wanted.borrow();
        wanted.fetches.iter().any(|pending| !pending.told)
            || wanted.snapshots.values().any(|pending| matches!(pending, PendingSnapshot::Wanted { told: false, .. }))
    }

    /// Lends `entries`, which answer the fetch from `from`, and returns who waited for them.
    /// Entries that are no longer those of this log are ignored: it may have changed while they
    /// were read.
    pub(crate) fn lend(&mut self, from: LogIndex, entries: Vec<Entry>) -> Vec<GetEntriesContext> {
        let wanted = self.wanted.get_mut();
        let Some(at) = wanted.fetches.iter().position(|pending| pending.fetch.from == from) else {
            return Vec::new();
        };
        let waiters = wanted.fetches.swap_remove(at).waiters;
        let mut next = from.0;
        self.loan = entries
            .into_iter()
            .map_while(|entry| {
                let is_ours = entry.index.0 == next
                    && entry.index > self.compacted.index
                    && entry.index.0 <= self.last
                    && Term(self.terms.at(entry.index.0)) == entry.term;
                next += 1;
                is_ours.then(|| entry.into_raft())
            })
            .collect();
        if self.loan.is_empty() {
            return Vec::new();
        }
        waiters
    }

    /// Takes back what was lent.
    pub(crate) fn end_loan(&mut self) {
        self.loan = Vec::new();
    }

    /// Keeps a snapshot for the member it was wanted for. `false` when nobody waits for it any
    /// more.
    pub(crate) fn offer_snapshot(&mut self, to: NodeId, offer: SnapshotOffer) -> bool {
        let too_old = offer.position.index < self.compacted.index;
        let snapshots = &mut self.wanted.get_mut().snapshots;
        if too_old || !snapshots.contains_key(&to.0) {
            snapshots.remove(&to.0);
            return false;
        }
        snapshots.insert(to.0, PendingSnapshot::Offered(offer.into_raft()));
        true
    }

    /// Forgets that `to` wants a snapshot; it is asked for again if it is still needed.
    pub(crate) fn forget_snapshot(&mut self, to: NodeId) {
        self.wanted.get_mut().snapshots.remove(&to.0);
    }

    /// Forgets all that followers wanted: this member does not lead any more.
    pub(crate) fn forget_wanted(&mut self) {
        *self.wanted.get_mut() = Wanted::default();
    }

    fn truncate(&mut self, index: u64) {
        assert!(index > self.applied, "what is applied is never replaced");
        while self.cache.back().is_some_and(|entry| entry.index >= index) {
            let entry = self.cache.pop_back().expect("there is a last entry");
            self.cache_bytes -= entry_bytes(&entry);
        }
        self.terms.truncate(index);
        self.last = index - 1;
    }

    fn evict(&mut self, everyone_has: u64) {
        while let Some(first) = self.cache.front() {
            let is_spare = self.cache_bytes > self.cache_bytes_max || first.index <= everyone_has;
            if first.index > self.applied || !is_spare {
                break;
            }
            self.drop_first();
        }
        self.make_room();
    }

    fn drop_first(&mut self) {
        let entry = self.cache.pop_front().expect("the caller saw a first entry");
        self.cache_bytes -= entry_bytes(&entry);
    }

    /// Gives memory back after a burst: what is empty must not keep the size it had when it was
    /// full.
    fn make_room(&mut self) {
        let room = self.cache.len().max(CACHE_ROOM_MIN);
        if self.cache.capacity() > 4 * room {
            self.cache.shrink_to(2 * room);
        }
    }

    /// Entries of `source`, whose first is `first`, from `low` on, until `high` or `bytes_max`; at
    /// least one.
    fn copy<'a>(source: impl Iterator<Item = &'a eraftpb::Entry>, count: usize, bytes_max: u64) -> Vec<eraftpb::Entry> {
        let mut entries = Vec::with_capacity(count.min(CACHE_ROOM_MIN));
        let mut bytes = 0_u64;
        for entry in source.take(count) {
            bytes += entry.data.len() as u64;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        entries
    }

    fn want_fetch(&self, low: u64, high: u64, bytes_max: u64, context: GetEntriesContext) {
        let fetches = &mut self.wanted.borrow_mut().fetches;
        if let Some(pending) = fetches.iter_mut().find(|pending| pending.fetch.from.0 == low) {
            if pending.waiters.len() < WAITERS_PER_FETCH_MAX {
                pending.waiters.push(context);
            }
        } else if fetches.len() < FETCHES_MAX {
            fetches.push(PendingFetch {
                fetch: Fetch { from: LogIndex(low), limit: LogIndex(high), bytes_max },
                waiters: vec![context],
                told: false,
            });
        }
    }
}

impl raft::Storage for LogView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        assert!(high <= self.last + 1, "nothing beyond the end of the log is asked for");
        if low <= self.compacted.index.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let count = (high - low) as usize;
        let cache_first = self.cache_first();
        if low >= cache_first {
            let start = (low - cache_first) as usize;
            return Ok(Self::copy(self.cache.range(start..), count, bytes_max));
        }
        if let Some(first) = self.loan.first()
            && (first.index..first.index + self.loan.len() as u64).contains(&low)
        {
            let start = (low - first.index) as usize;
            return Ok(Self::copy(self.loan[start..].iter(), count, bytes_max));
        }
        assert!(context.can_async(), "entry {low} was evicted before it was applied ({})", self.applied);
        self.want_fetch(low, high.min(cache_first), bytes_max, context);
        Err(Error::Store(StorageError::LogTemporarilyUnavailable))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.compacted.index.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index > self.last {
            return Err(Error::Store(StorageError::Unavailable));
        }
        Ok(self.terms.at(index))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compacted.index.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        let index_min = request_index.max(self.compacted.index.0);
        let snapshots = &mut self.wanted.borrow_mut().snapshots;
        match snapshots.remove(&to) {
            Some(PendingSnapshot::Offered(snapshot)) if snapshot.get_metadata().index >= index_min => {
                return Ok(snapshot);
            }
            // Asked at every heartbeat, reported once.
            Some(PendingSnapshot::Wanted { told, .. }) => {
                snapshots.insert(to, PendingSnapshot::Wanted { index_min, told });
            }
            _ => {
                snapshots.insert(to, PendingSnapshot::Wanted { index_min, told: false });
            }
        }
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

fn entry_bytes(entry: &eraftpb::Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use raft::Storage;

    use super::*;
    use crate::entry::EntryKind;

    fn entry(index: u64, term: u64) -> Entry {
        Entry {
            index: LogIndex(index),
            term: Term(term),
            kind: EntryKind::Command,
            data: Bytes::from(vec![index as u8; 10]),
            crc: None,
        }
    }

    /// 1@1 compacted, 2@1 to 99@1 applied and on disk only, 100@2 to 109@2 in memory.
    fn view() -> LogView {
        let entries = (100..110).map(|index| entry(index, 2)).collect();
        LogView::new(RaftState::default(), Position::new(1, 1), &[], entries, LogIndex(99), 1 << 20)
    }

    fn ask(view: &LogView, low: u64) -> raft::Result<Vec<eraftpb::Entry>> {
        view.entries(low, 110, 1000, GetEntriesContext::empty(true))
    }

    fn indexes(entries: &[eraftpb::Entry]) -> Vec<u64> {
        entries.iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn what_is_in_memory_is_answered_up_to_the_asked_bytes_and_at_least_one() {
        let view = view();
        assert_eq!(indexes(&ask(&view, 107).expect("cached")), [107, 108, 109]);
        let few = view.entries(100, 110, 25, GetEntriesContext::empty(true)).expect("cached");
        assert_eq!(indexes(&few), [100, 101]);
        let one = view.entries(100, 110, 0, GetEntriesContext::empty(true)).expect("cached");
        assert_eq!(indexes(&one), [100]);
    }

    #[test]
    fn the_place_decides_between_memory_disk_and_snapshot() {
        let mut view = view();
        assert_eq!(ask(&view, 1), Err(Error::Store(StorageError::Compacted)));
        assert_eq!(ask(&view, 50), Err(Error::Store(StorageError::LogTemporarilyUnavailable)));
        let mut fetches = Vec::new();
        view.take_fetches(&mut fetches);
        assert_eq!(fetches, [Fetch { from: LogIndex(50), limit: LogIndex(100), bytes_max: 1000 }]);
        assert_eq!(view.term(1), Ok(1));
        assert_eq!(view.term(0), Err(Error::Store(StorageError::Compacted)));
        assert_eq!(view.term(110), Err(Error::Store(StorageError::Unavailable)));
    }

    #[test]
    fn what_is_lent_answers_until_it_is_taken_back() {
        let mut view = view();
        ask(&view, 50).expect_err("on disk");
        let waiters = view.lend(LogIndex(50), (50..60).map(|index| entry(index, 1)).collect());
        assert_eq!(waiters.len(), 1);
        assert_eq!(indexes(&ask(&view, 55).expect("lent")), [55, 56, 57, 58, 59]);
        view.end_loan();
        ask(&view, 55).expect_err("taken back");
    }

    #[test]
    fn questions_that_cannot_be_answered_take_bounded_room() {
        let view = view();
        for round in 0..100 {
            for low in 2..99 {
                assert_eq!(
                    ask(&view, low),
                    Err(Error::Store(StorageError::LogTemporarilyUnavailable)),
                    "round {round}"
                );
            }
        }
        let wanted = view.wanted.borrow();
        assert_eq!(wanted.fetches.len(), FETCHES_MAX);
        assert!(wanted.fetches.iter().all(|pending| pending.waiters.len() == WAITERS_PER_FETCH_MAX));
    }

    #[test]
    fn applied_bodies_go_when_the_budget_is_spent_or_everyone_has_them() {
        let mut view = view();
        view.set_cache_bytes_max(0);
        assert_eq!(view.cache_first(), 100, "what is not applied stays, whatever the budget");
        view.applied(104, 0);
        assert_eq!(view.cache_first(), 105);
        view.set_cache_bytes_max(1 << 20);
        view.applied(108, 0);
        assert_eq!(view.cache_first(), 105, "within the budget they stay for who lags");
        view.applied(109, 107);
        assert_eq!(view.cache_first(), 108, "no one lags behind 107");
        assert_eq!(view.cache_bytes(), 2 * (10 + ENTRY_OVERHEAD_BYTES));
    }

    #[test]
    fn a_conflicting_tail_is_replaced() {
        let mut view = view();
        view.append([entry(105, 3), entry(106, 3)].into_iter().map(Entry::into_raft));
        assert_eq!(view.last_index(), Ok(106));
        assert_eq!((view.term(104), view.term(105)), (Ok(2), Ok(3)));
        assert_eq!(view.cache_bytes(), 7 * (10 + ENTRY_OVERHEAD_BYTES));
    }

    #[test]
    #[should_panic(expected = "what is applied is never replaced")]
    fn an_applied_entry_is_never_replaced() {
        view().append([entry(99, 3)].into_iter().map(Entry::into_raft));
    }
}

//! The queues of one partition as the log says: applied the same way on every member, in a replay
//! in three years too.
//!
//! Invariants: applying the same entries gives the same logical state everywhere (what differs is
//! only where bytes lie); `wal_runs` counts the runs that lie in each WAL file, and a file that is
//! not in it holds nothing live of this partition. The state hash covers the logical state alone.

use crate::entry::{Batch, Commands, EntryDamaged, LogCommand, Ranges};
use crate::message::Stamp;
use crate::outputs::{ExtentReady, ExtentRun};
use crate::place::Place;
use crate::publishers::{Publisher, runs_max};
use broker::queue::levels::priority_of;
use broker::queue::{Aside, DedupRule, Extras, KeyMeter, Levels, QueueState, Run, SeqRanges};
use broker::{ChannelKey, QueueId};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;
use storage::Location;

/// The newest version of the machine that this build carries out. A rule that changes what `apply`
/// makes of an entry gets the next one, and the old rule stays beside it.
pub const MACHINE_VERSION: u32 = 1;
/// The version of a state that does not say which it works by.
pub const FIRST_MACHINE_VERSION: u32 = 1;

/// The version that a machine works by, and the newest that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) current: u32,
    pub(crate) newest: u32,
}

impl Default for Versions {
    fn default() -> Self {
        Versions { current: FIRST_MACHINE_VERSION, newest: MACHINE_VERSION }
    }
}

/// What a machine says of a version that it does not know.
pub(crate) const TOO_NEW: &str = "a newer leveret raised the machine version: start that leveret again";

/// A map whose hash is the same in every run: simulations replay.
pub type FixedMap<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// Places that a map keeps for a next burst though they are empty.
pub(crate) const ROOM_KEPT: usize = 256;

/// A map that gives back room which it does not need any more.
pub(crate) trait Trim {
    /// Leaves room for about twice what is in it, if there is room for more than four times of
    /// that.
    fn trim(&mut self);
}

impl<K: Eq + std::hash::Hash, V> Trim for FixedMap<K, V> {
    fn trim(&mut self) {
        if self.capacity() > (4 * self.len()).max(ROOM_KEPT) {
            self.shrink_to(2 * self.len());
        }
    }
}

/// What a run costs in memory; lists of them have up to as much room again.
pub const RUN_BYTES: usize = size_of::<Run<Place>>();
const _: () = assert!(RUN_BYTES <= 40, "the index of the log is bounded in bytes: a larger run means fewer of them");

/// Marks the queue that holds another one's scheduled messages until they are due.
const SCHEDULED_BIT: u64 = 1 << 62;

/// The queue that holds the scheduled messages of `queue`. It has no place in the topology: it
/// comes with the first of them and goes with its queue.
pub fn scheduled_for(queue: QueueId) -> QueueId {
    QueueId(queue.0 | SCHEDULED_BIT)
}

/// The queue whose scheduled messages `queue` holds, if it is such a one.
pub fn schedule_of(queue: QueueId) -> Option<QueueId> {
    (queue.0 & SCHEDULED_BIT != 0).then_some(QueueId(queue.0 & !SCHEDULED_BIT))
}

/// What a member wants to hear of while entries are applied. Replays pass [`Unobserved`].
pub trait Observer {
    /// A batch came in.
    fn published(&mut self, batch: &Batch<'_>);

    /// Something else was noted, in a command of so many bytes.
    fn noted(&mut self, command: &LogCommand<'_>, bytes: usize);

    /// A queue ended; its id never comes again.
    fn deleted(&mut self, queue: QueueId);
}

/// Nobody listens.
pub struct Unobserved;

impl Observer for Unobserved {
    fn published(&mut self, _: &Batch<'_>) {}

    fn noted(&mut self, _: &LogCommand<'_>, _: usize) {}

    fn deleted(&mut self, _: QueueId) {}
}

/// What of an extent file is still live here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentUse {
    /// Messages in the file.
    pub messages: u64,
    /// Live ones.
    pub live: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The replicated state of one partition.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    pub(crate) queues: FixedMap<QueueId, QueueState<Place>>,
    pub(crate) publishers: FixedMap<ChannelKey, Publisher>,
    pub(crate) time_ms: u64,
    /// Per WAL file: runs that lie in it.
    wal_runs: BTreeMap<u32, u64>,
    /// Per extent: how much of it is live.
    extents: BTreeMap<u32, ExtentUse>,
    /// Per extent that was written since the start: what a message of each of its runs takes.
    message_bytes: BTreeMap<u32, Box<[u32]>>,
    wal_run_count: u64,
    /// The highest number of an extent that ever held something of this partition.
    highest_extent: u32,
    /// Counts the keys of messages that come in once.
    pub(crate) key_meter: KeyMeter,
    pub(crate) versions: Versions,
}

impl Queues {
    /// Nothing yet, for a machine that knows these versions.
    pub(crate) fn new(versions: Versions) -> Self {
        Queues { versions, ..Queues::default() }
    }

    /// Knows versions up to another one than this build does: for simulated clusters whose members
    /// differ.
    pub fn know_versions_to(&mut self, newest: u32) {
        self.versions.newest = newest;
    }

    /// The version of the machine that entries are applied by. It is part of the state.
    pub fn machine_version(&self) -> u32 {
        self.versions.current
    }

    /// Entries are applied by this version from here on; false for one that this machine does not
    /// know.
    #[must_use]
    pub(crate) fn raise_version(&mut self, version: u32) -> bool {
        let is_known = version <= self.versions.newest;
        if is_known {
            // Said twice, or behind a higher one: it is as high already.
            self.versions.current = self.versions.current.max(version);
        }
        is_known
    }

    /// Counts the keys of messages that come in once.
    pub fn key_meter(&self) -> &KeyMeter {
        &self.key_meter
    }

    /// Gives back room that is not needed any more.
    pub(crate) fn trim(&mut self) {
        self.queues.trim();
        self.publishers.trim();
    }

    /// The queue, if it ever held a message.
    pub fn queue(&self, queue: QueueId) -> Option<&QueueState<Place>> {
        self.queues.get(&queue)
    }

    /// Every queue that has state here, scheduled messages included, in no order that means
    /// anything.
    pub(crate) fn states(&self) -> impl Iterator<Item = (QueueId, &QueueState<Place>)> {
        self.queues.iter().map(|(id, state)| (*id, state))
    }

    /// The levels of a queue's messages; `None` while all have the default level.
    pub(crate) fn levels(&self, queue: QueueId) -> Option<&Levels> {
        self.queue(queue).and_then(QueueState::levels)
    }

    /// The ids of all queues that have state here, ascending.
    pub fn queue_ids(&self) -> Vec<QueueId> {
        let mut ids: Vec<_> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The last publish number taken in from `publisher`.
    pub fn last_publish_seq(&self, publisher: ChannelKey) -> u64 {
        self.publishers.get(&publisher).map_or(0, Publisher::last)
    }

    /// Remembers publishers as a checkpoint or a snapshot has them: each by its last number.
    pub(crate) fn remember_publishers(&mut self, publishers: impl IntoIterator<Item = (ChannelKey, u64)>) {
        let known = publishers.into_iter().map(|(channel, last)| (channel, Publisher::known_by(last)));
        self.publishers.extend(known);
    }

    /// The leader's time in the last entry; never falls.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// The oldest WAL file in which something live lies.
    pub fn oldest_wal_file(&self) -> Option<u32> {
        self.wal_runs.keys().next().copied()
    }

    /// How many runs lie in WAL files: what the index of unflushed messages costs, times
    /// [`RUN_BYTES`].
    pub fn wal_run_count(&self) -> u64 {
        self.wal_run_count
    }

    /// The extents that hold something of this partition, used up ones included until they are
    /// forgotten.
    pub fn extents(&self) -> &BTreeMap<u32, ExtentUse> {
        &self.extents
    }

    /// The highest number of an extent that ever held something of this partition, though it may be
    /// gone. Checkpoints keep it, and an extent goes only after two of them: so no start gives its
    /// number out again.
    pub fn highest_extent(&self) -> u32 {
        self.highest_extent
    }

    /// Numbers up to this one are used, as a checkpoint has it.
    pub(crate) fn raise_highest_extent(&mut self, id: u32) {
        self.highest_extent = self.highest_extent.max(id);
    }

    /// Notes an extent that is about to be referred to.
    pub fn add_extent(&mut self, id: u32, messages: u64, bytes: u64) {
        self.raise_highest_extent(id);
        let before = self.extents.insert(id, ExtentUse { messages, live: 0, bytes });
        assert!(before.is_none(), "extent ids are used once");
    }

    /// The same of one that was just written.
    pub(crate) fn add_ready(&mut self, ready: &ExtentReady) {
        self.add_extent(ready.id, ready.messages, ready.bytes);
        let of = |run: &ExtentRun| run.bytes.div_ceil(run.messages.max(1));
        self.message_bytes.insert(ready.id, ready.runs.iter().map(of).collect());
    }

    /// Knows of its extents what another state knew of them.
    pub(crate) fn take_message_bytes(&mut self, other: &mut Queues) {
        let mut known = std::mem::take(&mut other.message_bytes);
        known.retain(|id, _| self.extents.contains_key(id));
        self.message_bytes.append(&mut known);
    }

    /// Bytes of what is live in a run, where it lies. A batch in the log, and an extent that was there at the start,
    /// are taken to have messages of equal length.
    fn live_bytes(&self, run: &Run<Place>) -> u64 {
        let live = u64::from(run.live());
        match run.place {
            Place::Wal { bytes, .. } => u64::from(bytes) * live / u64::from(run.count),
            Place::Extent { id, run } => match self.message_bytes.get(&id).and_then(|runs| runs.get(run as usize)) {
                Some(bytes) => u64::from(*bytes) * live,
                None => self.extents.get(&id).map_or(0, |extent| extent.bytes * live / extent.messages.max(1)),
            },
        }
    }

    /// Bytes that the live messages of a queue take on this member's disk, scheduled ones included. Cost: a look at
    /// each of its runs.
    pub(crate) fn live_bytes_of(&self, queue: QueueId) -> u64 {
        let states = [queue, scheduled_for(queue)].into_iter().filter_map(|id| self.queue(id));
        states.flat_map(|state| state.runs().iter()).map(|run| self.live_bytes(run)).sum()
    }

    /// Forgets an extent in which nothing is live.
    pub fn forget_extent(&mut self, id: u32) {
        self.message_bytes.remove(&id);
        let gone = self.extents.remove(&id);
        assert!(gone.is_some_and(|e| e.live == 0), "an extent with live messages is kept");
    }

    /// Applies one entry whose body lies at `body`.
    pub fn apply(&mut self, entry: &[u8], body: Location, observer: &mut impl Observer) -> Result<(), EntryDamaged> {
        let mut commands = Commands::parse(entry)?;
        self.time_ms = self.time_ms.max(commands.time_ms);
        let mut at = commands.past();
        while let Some(command) = commands.next()? {
            let bytes = commands.past() - at;
            at = commands.past();
            match command {
                LogCommand::Publish(batch) => self.publish(&batch, body, observer),
                LogCommand::RaiseVersion { version } => {
                    if !self.raise_version(version) {
                        return Err(EntryDamaged { what: TOO_NEW, offset: commands.past() });
                    }
                }
                LogCommand::Delete { queue } => {
                    self.note(LogCommand::Delete { queue }, u64::MAX);
                    observer.deleted(queue);
                }
                other => {
                    observer.noted(&other, bytes);
                    self.note(other, u64::MAX);
                }
            }
        }
        Ok(())
    }

    /// Notes what became of messages with numbers below `below`; nothing of others.
    pub(crate) fn note(&mut self, command: LogCommand<'_>, below: u64) {
        match command {
            LogCommand::Publish(_) | LogCommand::RaiseVersion { .. } => unreachable!("they are carried out elsewhere"),
            LogCommand::Settle { queue, ranges, .. } => self.settle(queue, within(ranges, below)),
            LogCommand::Requeue { queue, counts_against, ranges } => {
                if let Some(state) = self.queues.get_mut(&queue) {
                    for (first, count) in within(ranges, below) {
                        (first..first + count).for_each(|seq| state.requeue(seq, counts_against));
                    }
                }
            }
            LogCommand::Dead { queue, reason, ranges } => {
                if let Some(state) = self.queues.get_mut(&queue) {
                    for (first, count) in within(ranges, below) {
                        (first..first + count).for_each(|seq| state.set_aside(seq, Aside::Dead(reason as u8)));
                    }
                }
            }
            LogCommand::Retry { queue, counts_against, until_ms, ranges } => {
                if let Some(state) = self.queues.get_mut(&queue) {
                    for seq in within(ranges, below).flat_map(|(first, count)| first..first + count) {
                        state.requeue(seq, counts_against);
                        state.set_aside(seq, Aside::Until(until_ms));
                    }
                }
            }
            LogCommand::Sent { queue, dispatched_below, lowers } => {
                if let Some(state) = self.queues.get_mut(&queue) {
                    match lowers {
                        false => state.raise_dispatched_below(dispatched_below.min(below)),
                        true => state.lower_dispatched_below(dispatched_below),
                    }
                }
            }
            LogCommand::Delete { queue } => {
                self.delete(queue);
                self.delete(scheduled_for(queue));
            }
            LogCommand::Closed { publisher } => {
                self.publishers.remove(&publisher);
            }
        }
    }

    /// Takes in a batch whose messages are lost: they get their numbers, so that what follows is
    /// numbered as it was, and end at once. Returns them.
    pub(crate) fn publish_lost(&mut self, batch: &Batch<'_>, body: Location) -> Vec<(QueueId, u64, u64)> {
        let place = Place::in_record(body, batch.offset, batch.bytes());
        let (count, mut lost) = (batch.messages(), Vec::new());
        for queue in batch.targets() {
            let first = self.queues.entry(queue).or_default().publish(count, place);
            self.wal_run_count += 1;
            *self.wal_runs.entry(wal_file(place)).or_default() += 1;
            self.settle(queue, std::iter::once((first, u64::from(count))));
            lost.push((queue, first, u64::from(count)));
        }
        let publisher = batch.publisher();
        if publisher != ChannelKey::NOBODY {
            // How far apart their numbers were, the messages knew; they were no closer.
            let last = batch.first_publish_seq() + u64::from(count) - 1;
            let known = self.publishers.entry(publisher).or_default();
            if last > known.last() {
                *known = Publisher::known_by(last);
            }
        }
        lost
    }

    pub(crate) fn publish(&mut self, batch: &Batch<'_>, body: Location, observer: &mut impl Observer) {
        let place = Place::in_record(body, batch.offset, batch.bytes());
        let count = batch.messages();
        let repeated = self.repeated(batch);
        observer.published(batch);
        let (mut rules, mut dedup) = (batch.level_rules(), batch.dedup_rules());
        for queue in batch.targets() {
            let state = self.queues.entry(queue).or_default();
            let first = state.publish(count, place);
            self.wal_run_count += 1;
            *self.wal_runs.entry(wal_file(place)).or_default() += 1;
            if let Some(rule) = rules.next() {
                state.note_priorities(first, rule, batch.iter().map(|m| priority_of(m.properties())));
            }
            if batch.is_timed() {
                state.note_timed();
            }
            if batch.is_scheduled() {
                for (seq, message) in (first..).zip(batch.iter()) {
                    if let Stamp::Due(due_ms) = message.stamp() {
                        state.schedule(seq, due_ms);
                    }
                }
            }
            if let Some(Some(rule)) = dedup.next() {
                note_keys(state, first, batch, &repeated, (rule, self.time_ms), &self.key_meter);
            }
            // A repeat of what is here already (sent again after a change of leader) takes numbers,
            // so that leader and followers count alike, and ends at once.
            for &offset in &repeated {
                self.settle(queue, std::iter::once((first + u64::from(offset), 1)));
            }
        }
    }

    /// Offsets of messages that the log has already; empty in all but the moments after a change of
    /// leader.
    fn repeated(&mut self, batch: &Batch<'_>) -> Vec<u32> {
        let publisher = batch.publisher();
        if publisher == ChannelKey::NOBODY {
            return Vec::new();
        }
        let first = batch.first_publish_seq();
        let publishers = self.publishers.len();
        let known = self.publishers.entry(publisher).or_default();
        let mut repeated = Vec::new();
        if first > known.last() && batch.messages() == 1 {
            known.take(first, || runs_max(publishers));
            return repeated;
        }
        for (offset, message) in batch.iter().enumerate() {
            let seq = first + u64::from(message.publish_delta());
            match seq <= known.last() {
                true => repeated.push(offset as u32),
                false => known.take(seq, || runs_max(publishers)),
            }
        }
        repeated
    }

    pub(crate) fn settle(&mut self, queue: QueueId, ranges: impl Iterator<Item = (u64, u64)>) {
        let Some(state) = self.queues.get_mut(&queue) else { return };
        let (wal_runs, extents, wal_run_count) = (&mut self.wal_runs, &mut self.extents, &mut self.wal_run_count);
        for (first, count) in ranges {
            // Most settles concern runs in the WAL only; extents are counted by message, so the
            // live ones are counted before and after.
            if extents.is_empty() {
                state.settle(first, count, &mut |run| run_gone(run, wal_runs, wal_run_count));
            } else {
                count_extents(state, first, count, extents);
                state.settle(first, count, &mut |run| run_gone(run, wal_runs, wal_run_count));
            }
        }
    }

    fn delete(&mut self, queue: QueueId) {
        let Some(state) = self.queues.remove(&queue) else { return };
        for run in state.runs().iter() {
            match run.place {
                Place::Wal { .. } => run_gone(run, &mut self.wal_runs, &mut self.wal_run_count),
                Place::Extent { id, .. } => {
                    let extent = self.extents.get_mut(&id).expect("a run's extent is known");
                    extent.live -= u64::from(run.live());
                }
            }
        }
    }

    /// Puts runs of a queue whose live messages were copied to an extent into their new places.
    /// Which messages are live stays the same: what was settled since they were copied is not
    /// revived.
    pub fn move_runs(&mut self, queue: QueueId, copied: &[(Place, u64)], extent: u32, new: &[ExtentRun]) {
        let Some(state) = self.queues.get_mut(&queue) else { return };
        let (Some(first), Some(last)) = (new.first(), new.last()) else { return };
        let copied: HashSet<(Place, u64), foldhash::fast::FixedState> = copied.iter().copied().collect();
        let (wal_runs, extents, wal_run_count) = (&mut self.wal_runs, &mut self.extents, &mut self.wal_run_count);
        // Each run that was copied held something live then, so it reaches into what the new ones
        // cover.
        state.runs_mut().replace(first.first, last.past, |stretch| {
            let (mut kept, mut live) = (Vec::new(), SeqRanges::new());
            for run in stretch {
                if copied.contains(&(run.place, run.first)) {
                    uncount(&run, wal_runs, extents, wal_run_count);
                    run.live_ranges().for_each(|(first, count)| live.insert_range(first, count));
                } else {
                    kept.push(run);
                }
            }
            for run in new {
                let place = Place::Extent { id: extent, run: run.run };
                let within = live.iter().filter_map(|(first, count)| {
                    let (low, high) = (first.max(run.first), (first + count).min(run.past));
                    (low < high).then(|| (low, high - low))
                });
                let Some(moved) = Run::restore(run.first, (run.past - run.first) as u32, place, within) else {
                    continue;
                };
                extents.get_mut(&extent).expect("an extent is added first").live += u64::from(moved.live());
                kept.push(moved);
            }
            kept.sort_by_key(|run| run.first);
            kept
        });
    }

    /// Puts what is live among messages `first..past` of the run at `place` into runs of an extent,
    /// which was added before and has all of it; what lies around them stays. A run in the log goes
    /// over whole.
    pub(crate) fn repair_run(
        &mut self,
        queue: QueueId,
        place: Place,
        (first, past): (u64, u64),
        extent: u32,
        new: &[ExtentRun],
    ) {
        let Some(state) = self.queues.get_mut(&queue) else { return };
        let (wal_runs, extents, wal_run_count) = (&mut self.wal_runs, &mut self.extents, &mut self.wal_run_count);
        state.runs_mut().replace(first, past, |stretch| {
            let mut kept = Vec::new();
            for run in stretch {
                if run.place != place {
                    kept.push(run);
                    continue;
                }
                uncount(&run, wal_runs, extents, wal_run_count);
                let piece = |low: u64, high: u64, place: Place| {
                    let (low, high) = (low.max(run.first), high.min(run.past()));
                    let within = run.live_ranges().filter_map(move |(first, count)| {
                        let (low, high) = (first.max(low), (first + count).min(high));
                        (low < high).then(|| (low, high - low))
                    });
                    if low < high { Run::restore(low, (high - low) as u32, place, within) } else { None }
                };
                let at = |new: &ExtentRun| Place::Extent { id: extent, run: new.run };
                let middle = new.iter().filter_map(|new| piece(new.first, new.past, at(new)));
                let pieces = piece(0, first, place).into_iter().chain(middle).chain(piece(past, u64::MAX, place));
                for piece in pieces {
                    let Place::Extent { id, .. } = piece.place else {
                        panic!("of a batch in the log nothing is left behind")
                    };
                    extents.get_mut(&id).expect("an extent is added first").live += u64::from(piece.live());
                    kept.push(piece);
                }
            }
            kept
        });
    }

    fn count(&mut self, place: Place, live: u64) {
        match place {
            Place::Wal { file, .. } => {
                *self.wal_runs.entry(file).or_default() += 1;
                self.wal_run_count += 1;
            }
            Place::Extent { id, .. } => self.extents.get_mut(&id).expect("an extent is added first").live += live,
        }
    }

    /// Puts a queue back as a checkpoint has it; its extents were added before.
    pub(crate) fn restore(&mut self, queue: QueueId, mut state: QueueState<Place>) {
        state.count_keys(&self.key_meter);
        let places: Vec<_> = state.runs().iter().map(|r| (r.place, u64::from(r.live()))).collect();
        for (place, live) in places {
            self.count(place, live);
        }
        self.queues.insert(queue, state);
    }

    /// A hash over the logical state: equal on all members that applied the same entries.
    pub fn state_hash(&self) -> u64 {
        use std::hash::{BuildHasher, Hash, Hasher};
        let mut hasher = foldhash::fast::FixedState::with_seed(7).build_hasher();
        for queue in self.queue_ids() {
            let state = &self.queues[&queue];
            (queue, state.next_seq(), state.dispatched_below(), state.runs().live()).hash(&mut hasher);
            let mut from = 0;
            while let Some((seq, _)) = state.runs().next_live(from) {
                seq.hash(&mut hasher);
                from = seq + 1;
            }
            for (seq, counts) in state.counts() {
                (seq, counts.acquired, counts.delivery).hash(&mut hasher);
            }
            for (seq, count, level) in state.levels().into_iter().flat_map(|levels| levels.stretches()) {
                let live = (seq..seq + u64::from(count)).filter(|seq| state.runs().is_live(*seq));
                live.for_each(|seq| (seq, level).hash(&mut hasher));
            }
            // What is there and empty is as good as not there: a checkpoint does not keep it.
            if let Some(extras) = state.extras().filter(|extras| **extras != Extras::default()) {
                (extras.timed_below, &extras.aside, &extras.due).hash(&mut hasher);
                extras.keys.iter().for_each(|(key, s)| (key, s.seq, s.until_ms, s.is_gone).hash(&mut hasher));
            }
        }
        let mut publishers: Vec<_> = self.publishers.iter().map(|(k, v)| (*k, v.last())).collect();
        publishers.sort_unstable();
        publishers.hash(&mut hasher);
        self.time_ms.hash(&mut hasher);
        // What version 1 hashes stays as it was.
        if self.versions.current > FIRST_MACHINE_VERSION {
            self.versions.current.hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Notes the keys of a batch's messages, but for those that end at once.
fn note_keys(
    state: &mut QueueState<Place>,
    first: u64,
    batch: &Batch<'_>,
    repeated: &[u32],
    (rule, now_ms): (DedupRule, u64),
    meter: &KeyMeter,
) {
    for (offset, message) in (0u32..).zip(batch.iter()).filter(|(offset, _)| !repeated.contains(offset)) {
        if let Some(key) = broker::properties::dedup_key(message.properties()) {
            state.note_key(first + u64::from(offset), key, rule, now_ms, meter);
        }
    }
}

/// What of these ranges lies below a number.
fn within(ranges: Ranges<'_>, below: u64) -> impl Iterator<Item = (u64, u64)> {
    ranges.map(move |(first, count)| (first, count.min(below.saturating_sub(first)))).filter(|(_, count)| *count > 0)
}

fn wal_file(place: Place) -> u32 {
    match place {
        Place::Wal { file, .. } => file,
        Place::Extent { .. } => unreachable!("new messages lie in the WAL"),
    }
}

fn run_gone(run: &Run<Place>, wal_runs: &mut BTreeMap<u32, u64>, wal_run_count: &mut u64) {
    if let Place::Wal { file, .. } = run.place {
        let left = wal_runs.get_mut(&file).expect("a run's file is counted");
        *left -= 1;
        *wal_run_count -= 1;
        if *left == 0 {
            wal_runs.remove(&file);
        }
    }
}

fn uncount(
    run: &Run<Place>,
    wal_runs: &mut BTreeMap<u32, u64>,
    extents: &mut BTreeMap<u32, ExtentUse>,
    wal_run_count: &mut u64,
) {
    match run.place {
        Place::Wal { .. } => run_gone(run, wal_runs, wal_run_count),
        Place::Extent { id, .. } => {
            extents.get_mut(&id).expect("a run's extent is known").live -= u64::from(run.live());
        }
    }
}

/// Takes what is about to be settled off the extents that it lies in.
fn count_extents(state: &QueueState<Place>, first: u64, count: u64, extents: &mut BTreeMap<u32, ExtentUse>) {
    let mut from = first;
    while let Some((seq, run)) = state.runs().next_live(from) {
        if seq >= first + count {
            return;
        }
        match run.place {
            Place::Extent { id, .. } => {
                extents.get_mut(&id).expect("a run's extent is known").live -= 1;
                from = seq + 1;
            }
            Place::Wal { .. } => from = run.past(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::checkpoint::{decode_queues_by, encode_queues};
    use crate::entry::EntryBuilder;
    use bytes::Bytes;

    /// A version that no build ships: it shows the mechanism while there is one version only.
    const NEXT: u32 = MACHINE_VERSION + 1;

    fn knows(newest: u32) -> Versions {
        Versions { newest, ..Versions::default() }
    }

    fn raise(version: u32) -> Bytes {
        let mut builder = EntryBuilder::default();
        builder.raise_version(version);
        builder.finish(5).0
    }

    fn apply(queues: &mut Queues, entry: &[u8]) -> Result<(), EntryDamaged> {
        queues.apply(entry, Location { file: storage::FileNo(1), offset: 0, bytes: 0 }, &mut Unobserved)
    }

    fn saved(queues: &Queues) -> Bytes {
        let mut payload = Vec::new();
        encode_queues(queues, &mut payload);
        payload.into()
    }

    #[test]
    fn the_entry_that_raises_the_machine_has_these_bytes() {
        let command = b"\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0";
        assert_eq!(&raise(2)[crate::entry::ENTRY_HEADER_BYTES..], command);
    }

    #[test]
    fn the_version_is_part_of_the_state_and_only_rises() {
        let (mut one, mut other) = (Queues::new(knows(NEXT)), Queues::new(knows(NEXT)));
        for entry in [raise(1), raise(5)] {
            assert_eq!(apply(&mut one, &entry).is_ok(), entry == raise(1), "nobody knows version 5");
        }
        assert_eq!(one.machine_version(), FIRST_MACHINE_VERSION);
        apply(&mut other, &raise(1)).unwrap();
        assert_eq!((one.state_hash(), saved(&one)), (other.state_hash(), saved(&other)));
        for entry in [raise(NEXT), raise(NEXT), raise(1)] {
            apply(&mut one, &entry).unwrap();
            assert_eq!(one.machine_version(), NEXT);
        }
        assert_ne!(one.state_hash(), other.state_hash(), "members that work by other versions have parted");
    }

    #[test]
    fn a_machine_that_does_not_know_a_version_stops_and_says_what_to_do() {
        let (mut old, mut new) = (Queues::default(), Queues::new(knows(NEXT)));
        let why = apply(&mut old, &raise(NEXT)).unwrap_err().to_string();
        assert!(why.contains("start that leveret again"), "{why}");
        assert_eq!(old.machine_version(), FIRST_MACHINE_VERSION);
        apply(&mut new, &raise(NEXT)).unwrap();
        let why = decode_queues_by(&saved(&new), knows(MACHINE_VERSION)).unwrap_err().to_string();
        assert!(why.contains("start that leveret again"), "{why}");
    }

    #[test]
    fn a_checkpoint_says_its_version_from_the_second_on() {
        let mut queues = Queues::new(knows(NEXT));
        let first = saved(&queues);
        assert_eq!(decode_queues_by(&first, knows(NEXT)).unwrap().machine_version(), FIRST_MACHINE_VERSION);
        apply(&mut queues, &raise(NEXT)).unwrap();
        let second = saved(&queues);
        assert_eq!(second[first.len()..], NEXT.to_le_bytes(), "it stands behind what was there before");
        let back = decode_queues_by(&second, knows(NEXT)).unwrap();
        assert_eq!((back.machine_version(), back.state_hash()), (NEXT, queues.state_hash()));
        let needless = Bytes::from([&first[..], &FIRST_MACHINE_VERSION.to_le_bytes()].concat());
        assert!(decode_queues_by(&needless, knows(NEXT)).is_err(), "one state has one spelling");
    }
}

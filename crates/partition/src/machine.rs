//! The queues of one partition as the log says: applied the same way on every member, in a replay
//! in three years too.
//!
//! Invariant: applying the same entries gives the same logical state everywhere; what differs is
//! only where bytes lie (`machine/runs.rs`). The state hash covers the logical state alone. By which
//! rules entries are applied, the version says (`machine/version.rs`).

mod runs;
mod version;

pub use runs::{ExtentUse, RUN_BYTES};
pub use version::{FIRST_MACHINE_VERSION, MACHINE_VERSION, WrittenByNewer};
pub(crate) use version::{TOO_NEW, Versions};

use crate::entry::{Batch, Commands, EntryDamaged, LogCommand, Ranges};
use crate::message::Stamp;
use crate::place::Place;
use crate::publishers::{Publisher, runs_max};
use broker::queue::levels::priority_of;
use broker::queue::{Aside, DedupRule, Extras, KeyMeter, Levels, QueueState};
use broker::{ChannelKey, QueueId};
use hashbrown::HashMap;
use runs::{count_extents, run_gone};
use std::collections::BTreeMap;
use storage::Location;

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
                        state.requeue(first, count, counts_against);
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
                    for (first, count) in within(ranges, below) {
                        state.requeue(first, count, counts_against);
                        (first..first + count).for_each(|seq| state.set_aside(seq, Aside::Until(until_ms)));
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
            for (seq, counts) in state.counts().iter() {
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

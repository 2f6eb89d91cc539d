//! What waits for the log, and the decision who writes it: the shard that brought it, or the log's
//! own thread.
//!
//! A shard that has told its clients everything would only sleep until its batch is on the disk. If
//! the batch is small and the disk is quick, it writes and syncs it then and there: that saves two
//! hand-overs between threads (each about 5 us of CPU) and the wake-ups for what arrives meanwhile,
//! which is the next batch anyway. A large batch, a slow disk, a full one, or a log that somebody
//! else is writing is the thread's business, and the shard goes on serving. It may stand still
//! meanwhile for a short while ([`REST_MAX`]), unless its turn was a busy one: the thread's round is over
//! sooner, or what arrived until then is looked at together.
//!
//! What nobody waits for (acks, mostly) goes out with the next batch that somebody waits for, at
//! the latest when its own sync is due; the thread is not woken for it but sleeps until then.
//!
//! Invariant: what is put leaves in the order in which it was put, all of it at once. Whoever
//! changes something here asks [`LogQueue::rouse`] afterwards whether the thread has to be woken.

use crate::batch::Batch;
use crate::gauges::LogGauges;
use broker::PartitionId;
use partition::outputs::WalWrite;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What nobody waits for is written once it is this much.
const HELD_BYTES_MAX: usize = 256 << 10;
/// The largest batch that a shard writes itself: above, work for the shard arrives faster than it
/// is worth to stand still.
pub const OWN_BATCH_BYTES_MAX: usize = 256 << 10;
/// A turn that brought more commands than this was a busy one, and the next is about to come.
pub const OWN_COMMANDS_MAX: usize = 256;
/// A shard syncs itself while syncs take no longer than this: so long nobody else on it is served, not those either whose
/// messages are in memory alone.
pub const OWN_SYNC_MAX: Duration = Duration::from_micros(500);
/// The same for a shard that has had nothing to do with messages in memory alone lately: what it is asked meanwhile is mostly
/// the next batch, which waits for the next sync in any case, and to look at it piece by piece costs more than once.
pub const OWN_SYNC_ALONE_MAX: Duration = Duration::from_millis(2);
/// For so long at a time a shard stands still while the log's thread writes for it. Who waits for none of that waits so long
/// as well, but for consumers of its queues that ack one message to get the next.
pub const REST_MAX: Duration = Duration::from_millis(1);
/// Bytes in the page cache that a shard is willing to bring to the disk on the way.
const OWN_UNSYNCED_BYTES_MAX: u64 = 256 << 10;

/// What a shard's turn was busy with, as far as it matters to who writes the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Commands that the turn brought.
    pub commands: usize,
    /// The shard has served somebody lately whose messages are in memory alone.
    pub serves_memory: bool,
    /// Somebody has acked a few messages at a time lately, and may get the next ones for them.
    pub serves_few: bool,
}

impl Load {
    /// How long syncs may take for which the shard stands still.
    fn sync_max(self) -> Duration {
        if self.serves_memory { OWN_SYNC_MAX } else { OWN_SYNC_ALONE_MAX }
    }

    fn is_quiet(self) -> bool {
        self.commands <= OWN_COMMANDS_MAX
    }

    /// How long the shard may stand still while the log's thread writes for it; `None`: it has others to serve.
    pub fn rest_max(self) -> Option<Duration> {
        (self.is_quiet() && !self.serves_memory && !self.serves_few).then_some(REST_MAX)
    }
}

/// A round of the log's thread: it takes what waits, writes it, and syncs it if somebody asked. Counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Round(u64);

/// Who writes what a turn put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBy {
    /// Nobody waits for it: it goes out with the next that somebody waits for, or when its own sync is due.
    Whoever,
    /// The shard, which asks for it with [`LogQueue::take_for_shard`] once it has nothing better to do, and soon.
    Shard,
    /// The thread, in this round.
    Thread(Round),
}

/// What is asked of the log. Times are since the node's start.
#[derive(Debug)]
pub struct LogQueue {
    batch: Batch,
    /// The oldest file that a partition needs, where that changed.
    needs: Vec<(PartitionId, u32)>,
    /// Members that have all that they may have forgotten.
    whole: Vec<PartitionId>,
    is_stopped: bool,
    /// Somebody waits for the batch, and the thread has to write it.
    is_thread_wanted: bool,
    /// When the writer has something to do by itself.
    writer_due: Option<Duration>,
    rest: Rest,
    /// The longest that anything written stays unsynced, whatever it asked for.
    sync_delay: Duration,
    /// The thread's last rounds.
    begun: Round,
    over: Round,
    gauges: Arc<LogGauges>,
}

/// What the thread is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    /// It will look at what waits before it sleeps.
    Awake,
    /// It sleeps until this time, or until it is woken.
    Until(Option<Duration>),
}

impl LogQueue {
    /// Nothing waits, and the thread is about to look. Nothing stays unsynced for longer than
    /// `sync_delay`.
    pub fn new(sync_delay: Duration, gauges: Arc<LogGauges>) -> LogQueue {
        LogQueue {
            batch: Batch::default(),
            needs: Vec::new(),
            whole: Vec::new(),
            is_stopped: false,
            is_thread_wanted: false,
            writer_due: None,
            rest: Rest::Awake,
            sync_delay,
            begun: Round::default(),
            over: Round::default(),
            gauges,
        }
    }

    /// Takes the writes of a turn that was busy with `load`, in order, and says who writes them; `writes` is empty
    /// afterwards and keeps some room.
    #[must_use]
    pub fn put(&mut self, writes: &mut Vec<WalWrite>, load: Load, now: Duration) -> WrittenBy {
        let before = self.batch.bytes;
        self.batch.add(writes, now, self.sync_delay);
        self.gauges.waiting_bytes.fetch_add((self.batch.bytes - before) as u64, Ordering::Relaxed);
        let is_awaited = self.batch.is_awaited();
        if !is_awaited {
            return WrittenBy::Whoever;
        }
        if load.is_quiet() && self.rest != Rest::Awake && self.is_for_shard(load) {
            return WrittenBy::Shard;
        }
        self.is_thread_wanted = true;
        WrittenBy::Thread(self.next_round())
    }

    fn next_round(&self) -> Round {
        Round(self.begun.0 + 1)
    }

    /// The round in which the thread writes what waits, if it is wanted for that.
    pub fn awaited_round(&self) -> Option<Round> {
        self.is_thread_wanted.then(|| self.next_round())
    }

    /// The thread is through with a round, and has told those who waited for it.
    pub fn is_over(&self, round: Round) -> bool {
        self.over >= round
    }

    /// A shard that is busy with `load` may stand still for what waits.
    fn is_for_shard(&self, load: Load) -> bool {
        let batch = &self.batch;
        !self.is_thread_wanted
            && batch.bytes <= OWN_BATCH_BYTES_MAX
            // Who waits for the write alone is not kept until the sync of others.
            && batch.is_write_awaited != batch.is_sync_awaited
            && self.gauges.sync_times.recent() <= load.sync_max()
            && self.gauges.is_full.load(Ordering::Relaxed) == 0
    }

    /// What a shard whose turn was busy with `load` shall write now, and sync if somebody waits for that. `unsynced_bytes` are
    /// in the page cache already. `None`: somebody else took it, or it is the thread's business.
    pub fn take_for_shard(&mut self, load: Load, unsynced_bytes: u64) -> Option<Batch> {
        if !self.batch.is_awaited() {
            return None;
        }
        if !self.is_for_shard(load) || unsynced_bytes > OWN_UNSYNCED_BYTES_MAX {
            self.is_thread_wanted = true;
            return None;
        }
        Some(std::mem::take(&mut self.batch))
    }

    /// A shard wrote what it had taken; `batch` is empty. The writer has something to do by itself
    /// at `due`, or now.
    pub fn shard_wrote(&mut self, batch: Batch, due: Option<Duration>, is_sync_due: bool) {
        self.writer_due = due;
        self.is_thread_wanted |= is_sync_due;
        if self.batch.writes.is_empty() {
            // Its memory is wanted again.
            self.batch.writes = batch.writes;
        }
    }

    /// Leaves to the thread what waits, after what a shard could not write.
    pub fn want_thread(&mut self, unwritten: Option<Batch>) {
        if let Some(batch) = unwritten {
            self.batch.put_back(batch);
        }
        // Somebody else may have taken all of it in the meantime.
        self.is_thread_wanted |= self.batch.is_awaited();
    }

    /// Notes the oldest file that a partition needs.
    pub fn needs(&mut self, partition: PartitionId, file: u32) {
        self.needs.push((partition, file));
    }

    /// A member has all that it may have forgotten.
    pub fn is_whole(&mut self, partition: PartitionId) {
        self.whole.push(partition);
    }

    /// The thread is to write what waits, sync it and end.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether the thread is to end once it has written what waits.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// When the thread has something to do, if nobody asks it before.
    fn due(&self) -> Option<Duration> {
        self.writer_due.into_iter().chain(self.batch.due).min()
    }

    /// The thread is asked to do something.
    fn is_thread_asked(&self) -> bool {
        let is_told = !self.needs.is_empty() || !self.whole.is_empty();
        self.is_thread_wanted || self.is_stopped || is_told || self.batch.bytes >= HELD_BYTES_MAX
    }

    /// Whether the thread has to be woken, as it would sleep too long. It is, once, however long it
    /// takes to get up.
    #[must_use]
    pub fn rouse(&mut self) -> bool {
        let Rest::Until(until) = self.rest else { return false };
        let oversleeps = self.is_thread_asked() || self.due().is_some_and(|due| until.is_none_or(|until| due < until));
        if oversleeps {
            self.rest = Rest::Awake;
        }
        oversleeps
    }

    /// The thread has nothing to do and sleeps, until the time that it is given or until somebody
    /// is told to rouse it. `None`: it has something to do now.
    pub fn rest(&mut self, now: Duration) -> Option<Option<Duration>> {
        let until = self.due();
        if self.is_thread_asked() || until.is_some_and(|due| due <= now) {
            self.rest = Rest::Awake;
            return None;
        }
        self.rest = Rest::Until(until);
        Some(until)
    }

    /// The thread is up: it takes what is to be written into `batch`, which is empty, and what
    /// partitions need into `needs`. `is_sync_due`: the writer has to sync anyway.
    pub fn take_for_thread(
        &mut self,
        now: Duration,
        is_sync_due: bool,
        batch: &mut Batch,
        needs: &mut Vec<(PartitionId, u32)>,
    ) {
        let is_ripe = self.is_thread_wanted
            || self.is_stopped
            || self.batch.bytes >= HELD_BYTES_MAX
            || is_sync_due
            || self.batch.due.is_some_and(|due| due <= now);
        if is_ripe {
            std::mem::swap(&mut self.batch, batch);
            self.is_thread_wanted = false;
            self.begun = self.next_round();
        }
        self.take_needs(needs);
    }

    /// Takes what partitions need into `needs`, which is empty.
    pub fn take_needs(&mut self, needs: &mut Vec<(PartitionId, u32)>) {
        std::mem::swap(&mut self.needs, needs);
    }

    /// Takes the members that have all that they may have forgotten into `whole`, which is empty. Each
    /// time when the thread is up.
    pub fn take_whole(&mut self, whole: &mut Vec<PartitionId>) {
        std::mem::swap(&mut self.whole, whole);
    }

    /// The thread wrote, and told of it; the writer has something to do by itself at `due`.
    pub fn thread_wrote(&mut self, due: Option<Duration>) {
        self.writer_due = due;
        self.over = self.begun;
    }

    /// Somebody waits for the batch, and the thread has to write it.
    pub fn is_thread_wanted(&self) -> bool {
        self.is_thread_wanted
    }

    /// When the writer has something to do by itself.
    pub fn writer_due(&self) -> Option<Duration> {
        self.writer_due
    }
}

//! How shards reach the log, and the thread that writes it for them.
//!
//! ```text
//!                      small, and syncs are quick: the shard itself, once it has nothing else to do
//!                    ┌──────────────────────────────────────────────────────────────┐
//! shards ──put──▶ waiting ──wake──▶ wal thread ──▶ append (one pwritev) ──▶ fdatasync, if one of them asked ──▶ synced
//!                    ▲ what arrives meanwhile is the next batch; nothing lingers
//! ```
//!
//! A shard that has told its clients everything would only sleep until its batch is on the disk. If the batch is small
//! and the disk is quick, it writes and syncs it then and there: that saves two hand-overs between threads (each about
//! 5 us of CPU) and the wake-ups for what arrives meanwhile, which is the next batch anyway. A large batch, a slow disk,
//! a full one, or a log that somebody else is writing is the thread's business, and the shard goes on serving.
//!
//! What nobody waits for (acks, mostly) goes out with the next batch that somebody waits for, at the latest when its own
//! sync is due; the thread is not woken for it but sleeps until then.
//!
//! Invariants: writes reach the log in the order in which they were put; whoever writes holds the writer and takes all
//! that waits; what nobody waits for is synced within its own deadline.

use super::log_writer::{Batch, DiskFull, LogParts, LogWriter};
use super::sync_times::SyncClock;
use partition::outputs::WalWrite;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use broker::PartitionId;

/// How long to wait before a write is tried again on a full disk.
const FULL_RETRY: Duration = Duration::from_millis(100);
/// How often it is tried after the broker was told to end: no consumer is left who could make room.
const FULL_RETRIES_AT_END: u32 = 10;
/// What nobody waits for is written once it is this much.
const HELD_BYTES_MAX: usize = 256 << 10;
/// The largest batch that a shard writes itself: above, work for the shard arrives faster than it is worth to stand still.
const OWN_BATCH_BYTES_MAX: usize = 32 << 10;
/// A turn that brought more commands than this was a busy one, and the next is about to come.
const OWN_COMMANDS_MAX: usize = 64;
/// A shard syncs itself while syncs take no longer than this: so long nobody else on it is served.
const OWN_SYNC_MAX: Duration = Duration::from_micros(500);
/// Bytes in the page cache that a shard is willing to bring to the disk on the way.
const OWN_UNSYNCED_BYTES_MAX: u64 = 256 << 10;

/// What is asked of the log.
#[derive(Default)]
struct Waiting {
    batch: Batch,
    /// The oldest file that a partition needs, where that changed.
    needs: Vec<(PartitionId, u32)>,
    stop: bool,
    /// Somebody waits for the batch, and the thread has to write it.
    is_thread_wanted: bool,
    /// When the writer has something to do by itself.
    writer_due: Option<Instant>,
    rest: Rest,
}

/// What the thread is doing.
#[derive(Clone, Copy, Default, PartialEq)]
enum Rest {
    /// It will look at what waits before it sleeps.
    #[default]
    Awake,
    /// It sleeps until this time, or until it is woken.
    Until(Option<Instant>),
}

impl Waiting {
    /// When the thread has something to do, if nobody asks it before.
    fn due(&self) -> Option<Instant> {
        self.writer_due.into_iter().chain(self.batch.due).min()
    }

    /// The thread is asked to do something.
    fn is_thread_asked(&self) -> bool {
        self.is_thread_wanted || self.stop || !self.needs.is_empty() || self.batch.bytes >= HELD_BYTES_MAX
    }

    /// The thread has something to do.
    fn has_work(&self) -> bool {
        self.is_thread_asked() || self.due().is_some_and(|due| due <= Instant::now())
    }

    /// The thread sleeps, and would do so too long.
    fn oversleeps(&self) -> bool {
        let Rest::Until(until) = self.rest else { return false };
        self.is_thread_asked() || self.due().is_some_and(|due| until.is_none_or(|until| due < until))
    }
}

/// Figures about the log, for metrics and upkeep.
#[derive(Default)]
pub(crate) struct WalGauges {
    /// The newest file of which something is durable.
    pub(crate) durable_file: AtomicU32,
    /// Files up to this one are to be given up; 0 for none.
    pub(crate) retire_through: AtomicU32,
    /// Bytes written, headers and padding included.
    pub(crate) written_bytes: AtomicU64,
    /// Bytes of entries that shards gave up while somebody was still to get them.
    pub(crate) pushed_out_bytes: AtomicU64,
    /// Syncs made.
    pub(crate) syncs: AtomicU64,
    /// How long they took.
    pub(crate) sync_times: SyncClock,
    /// The disk is full and writes wait.
    pub(crate) is_full: AtomicU32,
}

struct Inner {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// Locked before `waiting` where both are.
    writer: Mutex<LogWriter>,
    gauges: Arc<WalGauges>,
    /// The longest that anything written stays unsynced, whatever it asked for.
    sync_delay_ms: u64,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread if it would sleep too long.
    fn rouse(&self, mut waiting: MutexGuard<'_, Waiting>) {
        if waiting.oversleeps() {
            // Once is enough, however long it takes to get up.
            waiting.rest = Rest::Awake;
            drop(waiting);
            self.arrived.notify_one();
        }
    }
}

/// A writer that panicked in the middle of a write may have half of it behind it: nobody may go on from there.
fn half_written() -> ! {
    tracing::error!("whoever wrote the log panicked: the process ends here, a restart recovers what is on the disk");
    std::process::abort()
}

/// A handle on the log, for shards.
#[derive(Clone)]
pub(crate) struct WalHandle {
    inner: Arc<Inner>,
}

impl WalHandle {
    /// A handle, and the loop to run on a thread of its own. Nothing stays unsynced for longer than `sync_delay_ms`.
    pub(crate) fn prepare(parts: LogParts, sync_delay_ms: u64) -> (WalHandle, impl FnOnce() + Send) {
        let gauges = Arc::new(WalGauges::default());
        let writer = Mutex::new(LogWriter::new(parts, gauges.clone()));
        let waiting = Mutex::default();
        let inner = Arc::new(Inner { waiting, arrived: Condvar::new(), writer, gauges, sync_delay_ms });
        (WalHandle { inner: inner.clone() }, move || run(&inner))
    }

    /// Hands over the writes of a turn that brought so many commands, in order; `writes` is empty afterwards and keeps some
    /// room. True if they are left to the caller, who calls [`WalHandle::commit`] once it has nothing better to do, and soon.
    #[must_use]
    pub(crate) fn put(&self, writes: &mut Vec<WalWrite>, commands: usize) -> bool {
        if writes.is_empty() {
            return false;
        }
        let mut waiting = self.inner.lock();
        waiting.batch.add(writes, self.inner.sync_delay_ms);
        let is_awaited = waiting.batch.is_awaited();
        let is_quiet = commands <= OWN_COMMANDS_MAX && waiting.rest != Rest::Awake;
        let is_left = is_awaited && is_quiet && self.is_for_shards(&waiting);
        waiting.is_thread_wanted |= is_awaited && !is_left;
        self.inner.rouse(waiting);
        is_left
    }

    /// A shard may stand still for what waits.
    fn is_for_shards(&self, waiting: &Waiting) -> bool {
        let batch = &waiting.batch;
        let gauges = &self.inner.gauges;
        !waiting.is_thread_wanted
            && batch.bytes <= OWN_BATCH_BYTES_MAX
            // Who waits for the write alone is not kept until the sync of others.
            && batch.is_write_awaited != batch.is_sync_awaited
            && gauges.sync_times.recent() <= OWN_SYNC_MAX
            && gauges.is_full.load(Ordering::Relaxed) == 0
    }

    /// Writes what waits and syncs it if somebody waits for that, on this thread; or has the log's thread do it.
    /// Completions are put and shards woken, the caller's own as well, when it returns.
    pub(crate) fn commit(&self) {
        let inner = &*self.inner;
        let mut writer = match inner.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::WouldBlock) => return self.want_thread(None),
            Err(TryLockError::Poisoned(_)) => half_written(),
        };
        let mut waiting = inner.lock();
        if !waiting.batch.is_awaited() {
            return;
        }
        if !self.is_for_shards(&waiting) || writer.unsynced_bytes() > OWN_UNSYNCED_BYTES_MAX {
            drop(waiting);
            return self.want_thread(None);
        }
        let mut batch = std::mem::take(&mut waiting.batch);
        drop(waiting);
        let is_sync_awaited = batch.is_sync_awaited;
        if let Err(DiskFull) = writer.write(&mut batch) {
            return self.want_thread(Some(batch));
        }
        if is_sync_awaited {
            writer.sync();
        }
        writer.post();
        let mut waiting = inner.lock();
        waiting.writer_due = writer.due();
        waiting.is_thread_wanted |= writer.is_sync_due();
        if waiting.batch.writes.is_empty() {
            // Its memory is wanted again.
            waiting.batch.writes = batch.writes;
        }
        drop(writer);
        inner.rouse(waiting);
    }

    /// Leaves to the thread what waits, after what could not be written.
    fn want_thread(&self, unwritten: Option<Batch>) {
        let mut waiting = self.inner.lock();
        if let Some(batch) = unwritten {
            waiting.batch.put_back(batch);
        }
        // Somebody else may have taken all of it in the meantime.
        waiting.is_thread_wanted |= waiting.batch.is_awaited();
        self.inner.rouse(waiting);
    }

    /// Tells that a shard gave up entries before they were delivered: they will be read from the log.
    pub(crate) fn note_pushed_out(&self, bytes: u64) {
        if bytes > 0 {
            self.inner.gauges.pushed_out_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Tells the oldest file that a partition needs.
    pub(crate) fn needs(&self, partition: PartitionId, file: u32) {
        let mut waiting = self.inner.lock();
        waiting.needs.push((partition, file));
        self.inner.rouse(waiting);
    }

    /// Figures about the log.
    pub(crate) fn gauges(&self) -> &WalGauges {
        &self.inner.gauges
    }

    /// Syncs what is written and ends the thread.
    pub(crate) fn stop(&self) {
        let mut waiting = self.inner.lock();
        waiting.stop = true;
        self.inner.rouse(waiting);
    }
}

/// The thread.
fn run(inner: &Inner) {
    let (mut batch, mut needs) = (Batch::default(), Vec::new());
    loop {
        sleep(inner);
        let mut writer = inner.writer.lock().unwrap_or_else(|_| half_written());
        let is_sync_due = writer.is_sync_due();
        let stop = {
            let mut waiting = inner.lock();
            let now = Instant::now();
            let is_ripe = waiting.is_thread_wanted
                || waiting.stop
                || waiting.batch.bytes >= HELD_BYTES_MAX
                || is_sync_due
                || waiting.batch.due.is_some_and(|due| due <= now);
            if is_ripe {
                std::mem::swap(&mut waiting.batch, &mut batch);
                waiting.is_thread_wanted = false;
            }
            std::mem::swap(&mut waiting.needs, &mut needs);
            waiting.stop
        };
        writer.release(&mut needs);
        let is_sync_awaited = batch.is_sync_awaited;
        // Nothing that was taken in is given up: on a full disk it waits for room, as long as the broker runs.
        let mut tries_at_end = 0;
        while let Err(DiskFull) = writer.write(&mut batch) {
            std::thread::sleep(FULL_RETRY);
            // Old files may be given up meanwhile, which makes room.
            let stop = {
                let mut waiting = inner.lock();
                std::mem::swap(&mut waiting.needs, &mut needs);
                waiting.stop
            };
            writer.release(&mut needs);
            tries_at_end += u32::from(stop);
            if tries_at_end > FULL_RETRIES_AT_END {
                tracing::error!(
                    bytes = batch.bytes,
                    "the disk is full to the end: what came last is not written; nobody was told that it was"
                );
                batch = Batch::default();
            }
        }
        // Who waits for the write alone does not wait for the sync.
        writer.post();
        if is_sync_awaited || stop || writer.is_sync_due() {
            writer.sync();
        }
        writer.post();
        writer.note(stop);
        inner.lock().writer_due = writer.due();
        if stop {
            return;
        }
    }
}

/// Sleeps until the thread has something to do.
fn sleep(inner: &Inner) {
    let mut waiting = inner.lock();
    while !waiting.has_work() {
        let until = waiting.due();
        waiting.rest = Rest::Until(until);
        waiting = match until {
            None => inner.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                inner.arrived.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
    waiting.rest = Rest::Awake;
}

#[cfg(test)]
mod tests {
    use super::super::completions::{Completion, Completions};
    use super::super::log_writer::Route;
    use super::*;
    use crate::shard::{Mailbox, Parcel};
    use bytes::Bytes;
    use partition::outputs::{SyncWish, Ticket};
    use std::task::Waker;
    use storage::wal::{GroupId, WalOptions, WalPosition};
    use storage::{FileNo, RealDisk, Record, RecordKind};

    const PARTITION: PartitionId = PartitionId(1);
    /// However busy this machine is, no test takes so long that the thread would be wanted for a sync that is due.
    const AN_HOUR_MS: u32 = 3_600_000;

    /// A log in a folder of its own, with one partition and the mailbox of its shard.
    struct Lab {
        handle: WalHandle,
        completions: Completions,
        mailbox: Mailbox,
        ticket: u64,
        _folder: tempfile::TempDir,
    }

    impl Lab {
        /// The thread does not run, and seems to sleep, but not for long.
        fn new() -> (Lab, impl FnOnce() + Send) {
            let folder = tempfile::tempdir().expect("a folder");
            let disk = Arc::new(RealDisk::create(folder.path()).expect("a folder"));
            let (wal, _) =
                storage::recover(&disk, 7, WalOptions::new(7), FileNo(0), WalPosition::START, &mut |_, _| {})
                    .expect("an empty log");
            let (completions, mailbox) = (Completions::default(), Mailbox::default());
            let parts = LogParts {
                wal,
                routes: [(PARTITION, Route { completions: completions.clone(), shard: 0 })].into(),
                mailboxes: vec![mailbox.clone()],
                retained_bytes_max: 1 << 30,
                on_quiet: || {},
                prepare: Box::new(|| {}),
            };
            let (handle, run) = WalHandle::prepare(parts, AN_HOUR_MS.into());
            handle.inner.lock().rest = Rest::Until(Some(Instant::now()));
            (Lab { handle, completions, mailbox, ticket: 0, _folder: folder }, run)
        }

        fn put(&mut self, bytes: usize, sync: SyncWish, report_written: bool) -> bool {
            self.put_of(1, bytes, sync, report_written)
        }

        /// Puts what a turn of so many commands left.
        fn put_of(&mut self, commands: usize, bytes: usize, sync: SyncWish, report_written: bool) -> bool {
            self.ticket += 1;
            let record = Record {
                group: GroupId(PARTITION.0),
                kind: RecordKind::Entry,
                term: 1,
                index: self.ticket,
                body: Bytes::from(vec![7; bytes]),
            };
            let ticket = Ticket(self.ticket);
            self.handle.put(
                &mut vec![WalWrite { partition: PARTITION, ticket, records: vec![record], sync, report_written }],
                commands,
            )
        }

        /// However slow the disk of this machine is: a slow one would be left to the thread from now on.
        fn commit(&self) {
            self.handle.commit();
            self.handle.gauges().sync_times.forget();
        }

        /// What was told so far: written up to, synced up to.
        fn told(&self) -> (Vec<u64>, Vec<u64>) {
            let (mut taken, mut written, mut synced) = (Vec::new(), Vec::new(), Vec::new());
            self.completions.take(&mut taken);
            for completion in taken {
                match completion {
                    Completion::Written(ticket, places) => {
                        assert_eq!(places.len(), 1, "the place of its one entry");
                        written.push(ticket.0);
                    }
                    Completion::Synced(ticket) => synced.push(ticket.0),
                    other => panic!("{other:?} was not asked for"),
                }
            }
            (written, synced)
        }

        fn is_shard_woken(&self) -> bool {
            let mut parcels = Vec::new();
            self.mailbox.take(&mut parcels, Waker::noop());
            parcels.iter().any(|parcel| matches!(parcel, Parcel::Wake(PARTITION)))
        }

        fn is_thread_wanted(&self) -> bool {
            self.handle.inner.lock().is_thread_wanted
        }
    }

    #[test]
    fn a_small_batch_is_left_to_its_shard_which_takes_along_what_nobody_waits_for() {
        let (mut lab, _run) = Lab::new();
        assert!(!lab.put(100, SyncWish::Within(AN_HOUR_MS), false), "nobody waits for it");
        assert!(lab.put(100, SyncWish::Now, false));
        assert_eq!((lab.told(), lab.is_thread_wanted()), ((vec![], vec![]), false));
        lab.commit();
        assert_eq!(lab.told(), (vec![1, 2], vec![2]));
        assert!(lab.is_shard_woken() && !lab.is_thread_wanted());
        lab.commit();
        assert_eq!(lab.told(), (vec![], vec![]), "there is nothing left");
        assert_eq!(lab.handle.gauges().syncs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_waits_for_the_write_alone_costs_no_sync_and_never_waits_for_one() {
        let (mut lab, _run) = Lab::new();
        assert!(lab.put(100, SyncWish::Within(AN_HOUR_MS), true));
        lab.commit();
        assert_eq!(lab.told(), (vec![1], vec![]));
        assert!(lab.is_shard_woken());
        let due = lab.handle.inner.lock().writer_due;
        assert!(due.is_some(), "its sync has a time");
        assert!(lab.put(100, SyncWish::Within(AN_HOUR_MS), true));
        assert!(!lab.put(100, SyncWish::Now, false), "two that wait for different things");
        assert!(lab.is_thread_wanted());
    }

    #[test]
    fn who_waits_for_the_write_alone_is_woken_though_something_nobody_waits_for_lies_before_it() {
        // In the same batch.
        let (mut lab, _run) = Lab::new();
        assert!(!lab.put(100, SyncWish::Within(AN_HOUR_MS), false), "an ack: nobody waits for it");
        assert!(lab.put(100, SyncWish::Within(AN_HOUR_MS), true));
        lab.commit();
        assert!(lab.is_shard_woken(), "the write is what it waits for");
        assert_eq!(lab.told(), (vec![1, 2], vec![]));
        // In a batch before, which its partition has not taken.
        lab.put(100, SyncWish::Within(AN_HOUR_MS), false);
        lab.put(100, SyncWish::Now, false);
        lab.commit();
        assert!(lab.is_shard_woken());
        assert!(lab.put(100, SyncWish::Within(AN_HOUR_MS), true));
        lab.commit();
        assert!(lab.is_shard_woken(), "what lies there was told, this was not");
        lab.put(100, SyncWish::Within(AN_HOUR_MS), true);
        lab.commit();
        assert!(!lab.is_shard_woken(), "once is enough until it looks");
        assert_eq!(lab.told().0, [3, 4, 5, 6]);
    }

    #[test]
    fn large_batches_busy_shards_and_slow_disks_are_the_threads_business() {
        let (mut lab, _run) = Lab::new();
        assert!(!lab.put(OWN_BATCH_BYTES_MAX + 1, SyncWish::Now, false));
        assert!(lab.is_thread_wanted());
        let (mut lab, _run) = Lab::new();
        assert!(!lab.put_of(OWN_COMMANDS_MAX + 1, 100, SyncWish::Now, false), "a busy shard goes on");
        assert!(lab.is_thread_wanted());
        let (mut lab, _run) = Lab::new();
        lab.handle.gauges().sync_times.note(OWN_SYNC_MAX * 9);
        assert!(!lab.put(100, SyncWish::Now, false));
        let (mut lab, _run) = Lab::new();
        lab.handle.inner.lock().rest = Rest::Awake;
        assert!(!lab.put(100, SyncWish::Now, false), "the thread is at it and will look again");
    }

    #[test]
    fn a_batch_that_was_left_goes_to_the_thread_if_somebody_else_writes() {
        let (mut lab, _run) = Lab::new();
        assert!(lab.put(100, SyncWish::Now, false));
        let writer = lab.handle.inner.writer.lock().expect("nobody panicked");
        lab.commit();
        assert!(lab.is_thread_wanted());
        drop(writer);
        assert_eq!(lab.told(), (vec![], vec![]));
    }

    #[test]
    fn the_thread_syncs_in_time_what_nobody_waits_for_and_writes_everything_before_it_ends() {
        let (mut lab, run) = Lab::new();
        let thread = std::thread::spawn(run);
        lab.put(100, SyncWish::Within(1), false);
        let mut told = (Vec::new(), Vec::new());
        while told.1.is_empty() {
            std::thread::yield_now();
            let more = lab.told();
            told.0.extend(more.0);
            told.1.extend(more.1);
        }
        assert_eq!(told, (vec![1], vec![1]));
        lab.put(100, SyncWish::Within(AN_HOUR_MS), false);
        // Left to a shard that ends before it gets to it.
        lab.put(100, SyncWish::Now, false);
        lab.handle.stop();
        thread.join().expect("it ends by itself");
        let (written, synced) = lab.told();
        assert_eq!((written, synced.last()), (vec![2, 3], Some(&3)));
    }

    #[test]
    fn what_could_not_be_written_goes_before_what_came_meanwhile() {
        let write = |ticket| WalWrite {
            partition: PARTITION,
            ticket: Ticket(ticket),
            records: Vec::new(),
            sync: SyncWish::Within(5),
            report_written: ticket == 1,
        };
        let (mut first, mut later) = (Batch::default(), Batch::default());
        first.add(&mut vec![write(1), write(2)], 10);
        later.add(&mut vec![write(3)], 10);
        let due = first.due;
        later.put_back(first);
        assert_eq!(later.writes.iter().map(|w| w.ticket.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(later.is_write_awaited && !later.is_sync_awaited && later.due == due);
    }
}

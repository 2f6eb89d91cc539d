//! How shards reach the log, and the thread that writes it for them.
//!
//! ```text
//!                      small, and syncs are quick: the shard itself, once it has nothing else to do
//!                    ┌──────────────────────────────────────────────────────────────┐
//! shards ──put──▶ LogQueue ──wake──▶ wal thread ──▶ append (one pwritev) ──▶ fdatasync, if one of them asked ──▶ synced
//!                    ▲ what arrives meanwhile is the next batch; nothing lingers
//! ```
//!
//! [`LogQueue`] decides who writes, [`LogWriter`] writes. Here are the locks, the thread, and what
//! wakes whom.
//!
//! Invariants: writes reach the log in the order in which they were put; whoever writes holds the
//! writer and takes all that waits; what nobody waits for is synced within its own deadline. A sync
//! that fails ends the process at once.

use super::{Route, fatal};
use crate::shard::{Mailbox, Parcel};
use node::{Batch, Completion, Listener, Load, LogGauges, LogQueue, LogWriter, Round, WrittenBy};
use partition::outputs::WalWrite;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use storage::RealDisk;
use switch::Parcel as Crossing;

use broker::PartitionId;

/// How long to wait before a write is tried again on a full disk.
const FULL_RETRY: Duration = Duration::from_millis(100);
/// How often it is tried after the broker was told to end: no consumer is left who could make room.
const FULL_RETRIES_AT_END: u32 = 10;

/// The disk has no room for a batch; nothing of it is written.
#[derive(Debug)]
struct DiskFull;

/// What the log's thread is made of.
pub(crate) struct LogParts {
    pub(crate) writer: LogWriter<RealDisk>,
    pub(crate) routes: BTreeMap<PartitionId, Route>,
    pub(crate) mailboxes: Vec<Mailbox>,
    /// When the writer's times began.
    pub(crate) epoch: Instant,
    /// Called when traffic ends.
    pub(crate) on_quiet: fn(),
    /// Called at each new file, to have spares made.
    pub(crate) prepare: Box<dyn Fn() + Send>,
}

/// The log, and the shards that hear of it once a round is over.
struct Writer {
    log: LogWriter<RealDisk>,
    listener: LogListener,
    epoch: Instant,
    on_quiet: fn(),
    prepare: Box<dyn Fn() + Send>,
    #[cfg(test)]
    before_syncs: Option<super::hanging_sync::Hook>,
}

/// Completions are put at once, their partitions woken together.
struct LogListener {
    routes: BTreeMap<PartitionId, Route>,
    mailboxes: Vec<Mailbox>,
    parcels: Vec<Vec<Parcel>>,
}

impl Listener for LogListener {
    fn tell(&mut self, partition: PartitionId, completion: Completion, is_awaited: bool) {
        let route = &self.routes[&partition];
        if !is_awaited {
            route.completions.put(completion);
        } else if route.completions.put_awaited(completion) {
            self.parcels[route.shard].push(Parcel::Crossing(Crossing::Wake(partition)));
        }
    }
}

impl Writer {
    fn new(parts: LogParts) -> Writer {
        let LogParts { writer: log, routes, mailboxes, epoch, on_quiet, prepare } = parts;
        let parcels = mailboxes.iter().map(|_| Vec::new()).collect();
        Writer {
            log,
            listener: LogListener { routes, mailboxes, parcels },
            epoch,
            on_quiet,
            prepare,
            #[cfg(test)]
            before_syncs: super::hanging_sync::hook_of_this_thread(),
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn write(&mut self, batch: &mut Batch) -> Result<(), DiskFull> {
        let begin = self.epoch.elapsed();
        let has_writes = !batch.writes.is_empty();
        match self.log.write(batch, begin, &mut self.listener) {
            Ok(()) => {
                if has_writes {
                    self.log.gauges().write_times.note(self.epoch.elapsed().saturating_sub(begin));
                }
                Ok(())
            }
            Err(error) if error.is_full() => Err(DiskFull),
            Err(error) => fatal("the log could not be written", &error),
        }
    }

    fn sync(&mut self) {
        let begin = Instant::now();
        #[cfg(test)]
        if let Some(hook) = &self.before_syncs {
            hook();
        }
        if let Err(error) = self.log.sync(&mut self.listener) {
            fatal("the log could not be synced", &error);
        }
        self.log.gauges().sync_times.note(begin.elapsed());
    }

    /// Wakes the shards of those that were told something, and has spare files made.
    fn post(&mut self) {
        let LogListener { mailboxes, parcels, .. } = &mut self.listener;
        for (mailbox, parcels) in mailboxes.iter().zip(parcels) {
            mailbox.send_all(parcels.drain(..), 0);
        }
        if self.log.take_wants_spares() {
            (self.prepare)();
        }
    }

    fn note(&mut self, is_last: bool) {
        match self.log.note(self.epoch.elapsed(), is_last) {
            Ok(true) => (self.on_quiet)(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "the note of what is durable could not be written; nothing is lost by it");
            }
        }
    }
}

struct Inner {
    queue: Mutex<LogQueue>,
    arrived: Condvar,
    /// Locked before `queue` where both are.
    writer: Mutex<Writer>,
    gauges: Arc<LogGauges>,
    epoch: Instant,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, LogQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread if it would sleep too long.
    fn rouse(&self, mut queue: MutexGuard<'_, LogQueue>) {
        if queue.rouse() {
            drop(queue);
            self.arrived.notify_one();
        }
    }
}

/// A writer that panicked in the middle of a write may have half of it behind it: nobody may go on
/// from there.
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
    /// A handle, and the loop to run on a thread of its own. Nothing stays unsynced for longer than
    /// `sync_delay_ms`.
    pub(crate) fn prepare(parts: LogParts, sync_delay_ms: u64) -> (WalHandle, impl FnOnce() + Send) {
        let (gauges, epoch) = (parts.writer.gauges().clone(), parts.epoch);
        let queue = Mutex::new(LogQueue::new(Duration::from_millis(sync_delay_ms), gauges.clone()));
        let writer = Mutex::new(Writer::new(parts));
        let inner = Arc::new(Inner { queue, arrived: Condvar::new(), writer, gauges, epoch });
        (WalHandle { inner: inner.clone() }, move || run(&inner))
    }

    /// Hands over the writes of a turn that was busy with `load`, in order; `writes` is empty
    /// afterwards and keeps some room. Where they are left to the shard it calls
    /// [`WalHandle::commit`] once it has nothing better to do, and soon.
    #[must_use]
    pub(crate) fn put(&self, writes: &mut Vec<WalWrite>, load: Load) -> WrittenBy {
        if writes.is_empty() {
            return WrittenBy::Whoever;
        }
        let mut queue = self.inner.lock();
        let by = queue.put(writes, load, self.inner.epoch.elapsed());
        self.inner.rouse(queue);
        by
    }

    /// Writes what waits and syncs it if somebody waits for that, on this thread; or has the log's
    /// thread do it, in the round that is returned. `load`: what the turn was busy with. Completions are put and shards woken,
    /// the caller's own as well, when it returns, but for what the thread does.
    pub(crate) fn commit(&self, load: Load) -> Option<Round> {
        let inner = &*self.inner;
        let mut writer = match inner.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::WouldBlock) => return self.want_thread(None),
            Err(TryLockError::Poisoned(_)) => half_written(),
        };
        let mut queue = inner.lock();
        let Some(mut batch) = queue.take_for_shard(load, writer.log.unsynced_bytes()) else {
            drop(writer);
            let round = queue.awaited_round();
            inner.rouse(queue);
            return round;
        };
        drop(queue);
        let is_sync_awaited = batch.is_sync_awaited;
        if let Err(DiskFull) = writer.write(&mut batch) {
            return self.want_thread(Some(batch));
        }
        if is_sync_awaited {
            writer.sync();
        }
        writer.post();
        let mut queue = inner.lock();
        queue.shard_wrote(batch, writer.log.due(), writer.log.is_sync_due(writer.now()));
        drop(writer);
        inner.rouse(queue);
        None
    }

    /// Leaves to the thread what waits, after what could not be written.
    fn want_thread(&self, unwritten: Option<Batch>) -> Option<Round> {
        let mut queue = self.inner.lock();
        queue.want_thread(unwritten);
        let round = queue.awaited_round();
        self.inner.rouse(queue);
        round
    }

    /// The thread is through with a round, and has told those who waited for it.
    pub(crate) fn is_over(&self, round: Round) -> bool {
        self.inner.lock().is_over(round)
    }

    /// Tells the oldest file that a partition needs.
    pub(crate) fn needs(&self, partition: PartitionId, file: u32) {
        let mut queue = self.inner.lock();
        queue.needs(partition, file);
        self.inner.rouse(queue);
    }

    /// Members say that they have all that they may have forgotten; empties `whole`.
    pub(crate) fn are_whole(&self, whole: &mut Vec<PartitionId>) {
        if whole.is_empty() {
            return;
        }
        let mut queue = self.inner.lock();
        whole.drain(..).for_each(|partition| queue.is_whole(partition));
        self.inner.rouse(queue);
    }

    /// Figures about the log.
    pub(crate) fn gauges(&self) -> &LogGauges {
        &self.inner.gauges
    }

    /// Syncs what is written and ends the thread.
    pub(crate) fn stop(&self) {
        let mut queue = self.inner.lock();
        queue.stop();
        self.inner.rouse(queue);
    }
}

/// The thread.
fn run(inner: &Inner) {
    let (mut batch, mut needs, mut whole) = (Batch::default(), Vec::new(), Vec::new());
    loop {
        sleep(inner);
        let mut writer = inner.writer.lock().unwrap_or_else(|_| half_written());
        let is_sync_due = writer.log.is_sync_due(writer.now());
        let stop = {
            let mut queue = inner.lock();
            queue.take_for_thread(inner.epoch.elapsed(), is_sync_due, &mut batch, &mut needs);
            queue.take_whole(&mut whole);
            queue.is_stopped()
        };
        writer.log.release(&mut needs);
        let now = writer.now();
        writer.log.remember(&mut whole, now);
        let is_sync_awaited = batch.is_sync_awaited;
        // Nothing that was taken in is given up: on a full disk it waits for room, as long as the
        // broker runs.
        let mut tries_at_end = 0;
        while let Err(DiskFull) = writer.write(&mut batch) {
            std::thread::sleep(FULL_RETRY);
            // Old files may be given up meanwhile, which makes room.
            let stop = {
                let mut queue = inner.lock();
                queue.take_needs(&mut needs);
                queue.is_stopped()
            };
            writer.log.release(&mut needs);
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
        if is_sync_awaited || stop || writer.log.is_sync_due(writer.now()) {
            writer.sync();
        }
        writer.post();
        writer.note(stop);
        inner.lock().thread_wrote(writer.log.due());
        if stop {
            return;
        }
    }
}

/// Sleeps until the thread has something to do.
fn sleep(inner: &Inner) {
    let mut queue = inner.lock();
    while let Some(until) = queue.rest(inner.epoch.elapsed()) {
        queue = match until {
            None => inner.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let left = until.saturating_sub(inner.epoch.elapsed());
                inner.arrived.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use node::{Completions, OWN_BATCH_BYTES_MAX, OWN_COMMANDS_MAX, OWN_SYNC_ALONE_MAX, OWN_SYNC_MAX, REST_MAX};
    use partition::outputs::{SyncWish, Ticket};
    use std::sync::atomic::Ordering;
    use std::task::Waker;
    use storage::wal::{GroupId, WalOptions, WalPosition};
    use storage::{FileNo, RealDisk, Record, RecordKind};

    const PARTITION: PartitionId = PartitionId(1);
    const ONE_COMMAND: Load = Load { commands: 1, serves_memory: false, serves_few: false };
    /// However busy this machine is, no test takes so long that the thread would be wanted for a
    /// sync that is due.
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
            let writer = LogWriter::new(wal, [PARTITION].into(), 1 << 30, Arc::default());
            let parts = LogParts {
                writer,
                routes: [(PARTITION, Route { completions: completions.clone(), shard: 0 })].into(),
                mailboxes: vec![mailbox.clone()],
                epoch: Instant::now(),
                on_quiet: || {},
                prepare: Box::new(|| {}),
            };
            let (handle, run) = WalHandle::prepare(parts, AN_HOUR_MS.into());
            let mut queue = handle.inner.lock();
            queue.thread_wrote(Some(Duration::from_nanos(1)));
            queue.rest(Duration::ZERO).expect("there is nothing to do yet");
            queue.thread_wrote(None);
            drop(queue);
            (Lab { handle, completions, mailbox, ticket: 0, _folder: folder }, run)
        }

        fn put(&mut self, bytes: usize, sync: SyncWish, report_written: bool) -> bool {
            self.put_of(ONE_COMMAND, bytes, sync, report_written)
        }

        /// Puts what a turn left; whether it is left to the shard.
        fn put_of(&mut self, load: Load, bytes: usize, sync: SyncWish, report_written: bool) -> bool {
            self.put_by(load, bytes, sync, report_written) == WrittenBy::Shard
        }

        fn put_by(&mut self, load: Load, bytes: usize, sync: SyncWish, report_written: bool) -> WrittenBy {
            self.ticket += 1;
            let record = Record {
                group: GroupId(PARTITION.0),
                kind: RecordKind::Entry,
                term: 1,
                index: self.ticket,
                body: Bytes::from(vec![7; bytes]),
                body_crc: None,
            };
            let ticket = Ticket(self.ticket);
            self.handle.put(
                &mut vec![WalWrite { partition: PARTITION, ticket, records: vec![record], sync, report_written }],
                load,
            )
        }

        /// However slow the disk of this machine is: a slow one would be left to the thread from
        /// now on.
        fn commit(&self) -> Option<Round> {
            let round = self.handle.commit(ONE_COMMAND);
            self.handle.gauges().sync_times.forget();
            round
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
            parcels.iter().any(|parcel| matches!(parcel, Parcel::Crossing(Crossing::Wake(PARTITION))))
        }

        fn is_thread_wanted(&self) -> bool {
            self.handle.inner.lock().is_thread_wanted()
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
        let due = lab.handle.inner.lock().writer_due();
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
        let (mut batch, when_due) = (Batch::default(), Duration::from_millis(2 * u64::from(AN_HOUR_MS)));
        lab.handle.inner.lock().take_for_thread(when_due, false, &mut batch, &mut Vec::new());
        let mut writer = lab.handle.inner.writer.lock().expect("nobody panicked");
        writer.write(&mut batch).expect("there is room");
        writer.post();
        drop(writer);
        assert!(!lab.is_shard_woken(), "nobody waits for it");
        assert!(lab.put(100, SyncWish::Within(AN_HOUR_MS), true));
        lab.commit();
        assert!(lab.is_shard_woken(), "what lies there was told, this was not");
        lab.put(100, SyncWish::Within(AN_HOUR_MS), true);
        lab.commit();
        assert!(!lab.is_shard_woken(), "once is enough until it looks");
        assert_eq!(lab.told().0, [3, 4, 5]);
    }

    #[test]
    fn large_batches_busy_shards_and_slow_disks_are_the_threads_business() {
        let (mut lab, _run) = Lab::new();
        assert!(!lab.put(OWN_BATCH_BYTES_MAX + 1, SyncWish::Now, false));
        assert!(lab.is_thread_wanted());
        let (mut lab, _run) = Lab::new();
        assert!(
            !lab.put_of(Load { commands: OWN_COMMANDS_MAX + 1, ..ONE_COMMAND }, 100, SyncWish::Now, false),
            "a busy shard goes on"
        );
        assert!(lab.is_thread_wanted());
        let (mut lab, _run) = Lab::new();
        lab.handle.gauges().sync_times.note(OWN_SYNC_ALONE_MAX * 9);
        assert!(!lab.put(100, SyncWish::Now, false));
        let (mut lab, _run) = Lab::new();
        lab.handle.inner.lock().stop();
        assert!(lab.handle.inner.lock().rouse(), "it is woken");
        assert!(!lab.put(100, SyncWish::Now, false), "the thread is at it and will look again");
    }

    #[test]
    fn a_shard_that_serves_messages_in_memory_stands_still_for_quicker_syncs_than_others() {
        let load = |serves_memory| Load { serves_memory, ..ONE_COMMAND };
        let (mut lab, _run) = Lab::new();
        lab.handle.gauges().sync_times.note(OWN_SYNC_MAX * 9);
        assert!(lab.put_of(load(false), 100, SyncWish::Now, false));
        // One that does comes to the same batch, and has the thread write it.
        assert!(!lab.put_of(load(true), 100, SyncWish::Now, false));
        lab.handle.commit(load(false));
        assert_eq!((lab.told().1, lab.is_thread_wanted()), (vec![], true));
        let (mut lab, _run) = Lab::new();
        lab.put_of(load(true), 100, SyncWish::Now, false);
        lab.handle.gauges().sync_times.note(OWN_SYNC_MAX * 9);
        lab.handle.commit(load(true));
        assert_eq!((lab.told().1, lab.is_thread_wanted()), (vec![], true), "it became slow meanwhile");
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
    fn a_shard_waits_for_the_round_of_the_thread_that_takes_what_it_put() {
        let (mut lab, run) = Lab::new();
        let large = |lab: &mut Lab| lab.put_by(ONE_COMMAND, OWN_BATCH_BYTES_MAX + 1, SyncWish::Now, false);
        let WrittenBy::Thread(first) = large(&mut lab) else { panic!("it is too large for the shard") };
        assert_eq!(large(&mut lab), WrittenBy::Thread(first), "it takes all that waits");
        let (mut batch, mut needs) = (Batch::default(), Vec::new());
        lab.handle.inner.lock().take_for_thread(Duration::ZERO, false, &mut batch, &mut needs);
        assert_eq!(batch.writes.len(), 2);
        assert_eq!(
            lab.put_by(ONE_COMMAND, 100, SyncWish::Within(AN_HOUR_MS), false),
            WrittenBy::Whoever,
            "nobody waits for it"
        );
        let WrittenBy::Thread(second) = large(&mut lab) else { panic!("it is too large for the shard") };
        assert!(second > first, "what comes while it writes has a round of its own");
        assert!(!lab.handle.is_over(first));
        lab.handle.inner.lock().thread_wrote(None);
        assert!(lab.handle.is_over(first) && !lab.handle.is_over(second));
        // What the shard leaves to it after all has one as well.
        let writer = lab.handle.inner.writer.lock().expect("nobody panicked");
        assert_eq!(lab.commit(), Some(second));
        drop(writer);
        lab.handle.stop();
        run();
        assert!(lab.handle.is_over(second), "it ends with what waits");
        assert_eq!(lab.commit(), None);
    }

    #[test]
    fn who_serves_others_or_was_busy_does_not_stand_still_for_the_thread() {
        assert_eq!(ONE_COMMAND.rest_max(), Some(REST_MAX));
        assert_eq!(Load { serves_memory: true, ..ONE_COMMAND }.rest_max(), None);
        assert_eq!(Load { serves_few: true, ..ONE_COMMAND }.rest_max(), None);
        assert_eq!(Load { commands: OWN_COMMANDS_MAX + 1, ..ONE_COMMAND }.rest_max(), None);
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
}

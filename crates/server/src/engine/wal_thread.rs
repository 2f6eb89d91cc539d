//! The thread that owns the write-ahead log: everything that waits is one write, and at most one sync serves it all.
//!
//! ```text
//! shards ──writes──▶ waiting ──swap──▶ append (one pwritev) ──▶ written ──▶ fdatasync, if one of them asked ──▶ synced
//!                       ▲ what arrives meanwhile is the next batch; nothing lingers
//! ```
//!
//! What nobody waits for (acks, mostly) goes out with the next batch that somebody waits for, at the latest when its own
//! sync is due. What is synced at once goes past the page cache, unless consumers lag behind what shards keep in memory:
//! then the log is about to be read, and the cache earns its keep.
//!
//! Invariants: *synced* is told only after a sync that began after the write; what nobody waits for is synced within its
//! own deadline; a sync that fails ends the process at once and is never tried again, because the kernel may have
//! dropped what it could not write.

use super::completions::{Completion, Completions};
use super::fatal;
use super::sync_times::SyncClock;
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use partition::outputs::{SyncWish, Ticket, WalWrite};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use storage::{FileNo, RealDisk, Record, RecordKind, StorageError, Wal, WriteWay};

/// Unsynced bytes beyond which a sync is made though nobody asked: bounds what a power cut can take.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;
/// How long to wait before a write is tried again on a full disk.
const FULL_RETRY: Duration = Duration::from_millis(100);
/// What nobody waits for is written once it is this much.
const HELD_BYTES_MAX: usize = 256 << 10;
/// For so many more bytes the log goes through the page cache after a shard gave up an entry that somebody is still to
/// get.
const CACHED_AFTER_BYTES: u64 = 8 << 20;
/// How often the durable end is noted beside the log while there is traffic, and once after.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// What is asked of the thread.
#[derive(Default)]
struct Waiting {
    writes: Vec<WalWrite>,
    /// The oldest file that a partition needs, where that changed.
    needs: Vec<(PartitionId, u32)>,
    stop: bool,
}

/// Figures about the log, for metrics and upkeep.
#[derive(Default)]
pub(crate) struct WalGauges {
    /// The file that is written now.
    pub(crate) current_file: AtomicU32,
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
    gauges: WalGauges,
}

/// A handle on the thread, for shards.
#[derive(Clone)]
pub(crate) struct WalHandle {
    inner: Arc<Inner>,
}

impl WalHandle {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over writes, in order; `writes` is empty afterwards and keeps some room.
    pub(crate) fn write(&self, writes: &mut Vec<WalWrite>) {
        if writes.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        let was_empty = waiting.writes.is_empty();
        if was_empty {
            std::mem::swap(&mut waiting.writes, writes);
        } else {
            waiting.writes.append(writes);
        }
        drop(waiting);
        if was_empty {
            self.inner.arrived.notify_one();
        }
    }

    /// Tells that a shard gave up entries before they were delivered: they will be read from the log.
    pub(crate) fn note_pushed_out(&self, bytes: u64) {
        if bytes > 0 {
            self.inner.gauges.pushed_out_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Tells the oldest file that a partition needs.
    pub(crate) fn needs(&self, partition: PartitionId, file: u32) {
        self.lock().needs.push((partition, file));
        self.inner.arrived.notify_one();
    }

    /// Figures about the log.
    pub(crate) fn gauges(&self) -> &WalGauges {
        &self.inner.gauges
    }

    /// Syncs what is written and ends the thread.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.inner.arrived.notify_one();
    }
}

/// Whom a partition's completions go to.
pub(crate) struct Route {
    pub(crate) completions: Completions,
    pub(crate) shard: usize,
}

/// What the thread is started with.
pub(crate) struct WalThread {
    pub(crate) wal: Wal<RealDisk>,
    pub(crate) routes: BTreeMap<PartitionId, Route>,
    pub(crate) mailboxes: Vec<Mailbox>,
    /// Closed files are kept up to this many bytes before live messages are copied out of them.
    pub(crate) retained_bytes_max: u64,
    /// The longest that anything written stays unsynced, whatever it asked for.
    pub(crate) sync_delay_ms: u64,
    /// Called when traffic ends.
    pub(crate) on_quiet: fn(),
    /// Called at each new file, to have spares made.
    pub(crate) prepare: Box<dyn Fn() + Send>,
}

struct Running {
    thread: WalThread,
    inner: Arc<Inner>,
    /// Writes that are written and not synced, newest ticket a partition.
    unsynced: BTreeMap<PartitionId, Ticket>,
    sync_at: Option<Instant>,
    needs: BTreeMap<PartitionId, u32>,
    parcels: Vec<Vec<Parcel>>,
    last_file: FileNo,
    note_at: Option<Instant>,
    /// Taken in and not yet written.
    held: Held,
    /// What shards had given up when it was last looked at.
    pushed_out_seen: u64,
    /// Writes go through the page cache until so many bytes are written.
    cached_until: u64,
}

/// What waits for a write.
#[derive(Default)]
struct Held {
    writes: Vec<WalWrite>,
    bytes: usize,
    /// Somebody waits for the write, or for the sync behind it.
    is_awaited: bool,
    /// Somebody waits for the sync.
    is_sync_awaited: bool,
}

impl Held {
    fn add(&mut self, writes: &mut Vec<WalWrite>) {
        for write in &writes[..] {
            self.bytes += write.records.iter().map(|r| r.body.len()).sum::<usize>();
            self.is_sync_awaited |= write.sync == SyncWish::Now;
            self.is_awaited |= write.report_written || write.sync == SyncWish::Now;
        }
        self.writes.append(writes);
    }
}

impl WalThread {
    /// A handle, and the loop to run on a thread of its own.
    pub(crate) fn prepare(self) -> (WalHandle, impl FnOnce() + Send) {
        let gauges = WalGauges::default();
        gauges.current_file.store(partition::place::file_u32(self.wal.position().file), Ordering::Relaxed);
        let inner = Arc::new(Inner { waiting: Mutex::default(), arrived: Condvar::new(), gauges });
        let handle = WalHandle { inner: inner.clone() };
        let parcels = self.mailboxes.iter().map(|_| Vec::new()).collect();
        let last_file = self.wal.position().file;
        let running = Running {
            thread: self,
            inner,
            unsynced: BTreeMap::new(),
            sync_at: None,
            needs: BTreeMap::new(),
            parcels,
            last_file,
            note_at: None,
            held: Held::default(),
            pushed_out_seen: 0,
            cached_until: 0,
        };
        (handle, move || running.run())
    }
}

impl Running {
    fn run(mut self) {
        let (mut writes, mut needs) = (Vec::new(), Vec::new());
        loop {
            let stop = self.wait(&mut writes, &mut needs);
            if !needs.is_empty() {
                self.release(&mut needs);
            }
            if !writes.is_empty() {
                self.take_in(&mut writes);
            }
            let sync_due = self.sync_at.is_some_and(|at| at <= Instant::now());
            if self.held.is_awaited || self.held.bytes >= HELD_BYTES_MAX || sync_due || stop {
                self.write();
            }
            if sync_due || stop || self.thread.wal.unsynced_bytes() >= UNSYNCED_BYTES_MAX {
                // What is still held has its deadline in `sync_at` as well.
                self.write();
                self.sync();
            }
            self.post();
            self.note(stop);
            if stop {
                return;
            }
        }
    }

    /// Sleeps until there is something to do; takes all of it.
    fn wait(&mut self, writes: &mut Vec<WalWrite>, needs: &mut Vec<(PartitionId, u32)>) -> bool {
        let mut waiting = self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if !waiting.writes.is_empty() || !waiting.needs.is_empty() || waiting.stop {
                std::mem::swap(&mut waiting.writes, writes);
                std::mem::swap(&mut waiting.needs, needs);
                return waiting.stop;
            }
            let until = [self.sync_at, self.note_at].into_iter().flatten().min();
            let Some(until) = until else {
                waiting = self.inner.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return waiting.stop;
            }
            waiting = self.inner.arrived.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Notes what arrived, and when it must be synced.
    fn take_in(&mut self, writes: &mut Vec<WalWrite>) {
        let now = Instant::now();
        for write in &writes[..] {
            let deadline = match write.sync {
                SyncWish::Now => now,
                SyncWish::Within(ms) => now + Duration::from_millis(u64::from(ms).min(self.thread.sync_delay_ms)),
            };
            self.sync_at = Some(self.sync_at.map_or(deadline, |at| at.min(deadline)));
        }
        self.held.add(writes);
    }

    /// Writes all that is held, in order, with one call.
    fn write(&mut self) {
        if self.held.writes.is_empty() {
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        let mut records: Vec<Record> = Vec::with_capacity(held.writes.iter().map(|w| w.records.len()).sum());
        let mut entries = Vec::with_capacity(records.capacity());
        let mut counts = Vec::with_capacity(held.writes.len());
        for write in &mut held.writes {
            counts.push(write.records.len());
            entries.extend(write.records.iter().map(|r| r.kind == RecordKind::Entry));
            records.append(&mut write.records);
        }
        let mut places = Vec::with_capacity(records.len());
        let way = if held.is_sync_awaited { self.way() } else { WriteWay::Cached };
        let bytes = self.append(way, &records, &mut places);
        drop(records);
        let gauges = &self.inner.gauges;
        gauges.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut at = 0;
        for (write, count) in held.writes.drain(..).zip(counts) {
            let bodies = (at..at + count).filter(|i| entries[*i]).map(|i| places[i]).collect();
            at += count;
            self.unsynced.insert(write.partition, write.ticket);
            let route = &self.thread.routes[&write.partition];
            // Woken now only if somebody waits for *written*; else the places wait for the news of the sync.
            let first = route.completions.put(Completion::Written(write.ticket, bodies));
            if first && write.report_written && write.sync != SyncWish::Now {
                self.parcels[route.shard].push(Parcel::Wake(write.partition));
            }
        }
        // Its memory is wanted again.
        self.held.writes = held.writes;
        self.note_at.get_or_insert_with(|| Instant::now() + NOTE_EVERY);
        self.note_roll();
        self.post();
    }

    /// The way of what is synced at once.
    fn way(&mut self) -> WriteWay {
        let gauges = &self.inner.gauges;
        let written = gauges.written_bytes.load(Ordering::Relaxed);
        let pushed_out = gauges.pushed_out_bytes.load(Ordering::Relaxed);
        if pushed_out != self.pushed_out_seen {
            self.pushed_out_seen = pushed_out;
            self.cached_until = written + CACHED_AFTER_BYTES;
        }
        if written < self.cached_until { WriteWay::Cached } else { WriteWay::Direct }
    }

    /// Appends, waiting for room on a full disk: nothing that was taken in is given up.
    fn append(&mut self, way: WriteWay, records: &[Record], places: &mut Vec<storage::Location>) -> u64 {
        let inner = self.inner.clone();
        let gauges = &inner.gauges;
        loop {
            match self.thread.wal.append_by(way, records, places) {
                Ok(bytes) => {
                    if gauges.is_full.swap(0, Ordering::Relaxed) != 0 {
                        tracing::warn!("the disk has room again: writing goes on");
                    }
                    return bytes;
                }
                Err(StorageError::Full { .. }) => {
                    if gauges.is_full.swap(1, Ordering::Relaxed) == 0 {
                        tracing::error!("the disk is full: publishers wait until there is room");
                    }
                    std::thread::sleep(FULL_RETRY);
                    // Old files may be given up meanwhile, which makes room.
                    let mut needs = Vec::new();
                    std::mem::swap(
                        &mut self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner).needs,
                        &mut needs,
                    );
                    self.release(&mut needs);
                }
                Err(error) => fatal("the log could not be written", &error),
            }
        }
    }

    fn sync(&mut self) {
        let begin = Instant::now();
        if let Err(error) = self.thread.wal.sync() {
            fatal("the log could not be synced", &error);
        }
        self.inner.gauges.sync_times.note(begin.elapsed());
        self.inner.gauges.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_at = None;
        for (partition, ticket) in std::mem::take(&mut self.unsynced) {
            let route = &self.thread.routes[&partition];
            route.completions.put(Completion::Synced(ticket));
            self.parcels[route.shard].push(Parcel::Wake(partition));
        }
    }

    fn post(&mut self) {
        for (mailbox, parcels) in self.thread.mailboxes.iter().zip(&mut self.parcels) {
            mailbox.send_all(parcels);
        }
    }

    /// A new file was begun: partitions look whether they keep too much.
    fn note_roll(&mut self) {
        let file = self.thread.wal.position().file;
        if file == self.last_file {
            return;
        }
        self.last_file = file;
        let gauges = &self.inner.gauges;
        gauges.current_file.store(partition::place::file_u32(file), Ordering::Relaxed);
        self.note_retained();
        (self.thread.prepare)();
        for (partition, route) in &self.thread.routes {
            route.completions.put(Completion::Rolled);
            self.parcels[route.shard].push(Parcel::Wake(*partition));
        }
    }

    fn note_retained(&self) {
        let closed: Vec<_> = self.thread.wal.closed_files().collect();
        let mut over = closed.iter().map(|c| c.1).sum::<u64>().saturating_sub(self.thread.retained_bytes_max);
        let mut through = 0;
        for (file, bytes) in closed {
            if over == 0 {
                break;
            }
            through = partition::place::file_u32(file);
            over = over.saturating_sub(bytes);
        }
        self.inner.gauges.retire_through.store(through, Ordering::Relaxed);
    }

    /// Gives back files that no partition needs. A partition that never said what it needs keeps everything.
    fn release(&mut self, needs: &mut Vec<(PartitionId, u32)>) {
        self.needs.extend(needs.drain(..));
        if self.needs.len() < self.thread.routes.len() {
            return;
        }
        let Some(first) = self.needs.values().min() else { return };
        self.thread.wal.release_before(FileNo(u64::from(*first)));
        self.note_retained();
        (self.thread.prepare)();
    }

    fn note(&mut self, stop: bool) {
        let due = self.note_at.is_some_and(|at| at <= Instant::now());
        if !(due || stop) || !self.unsynced.is_empty() || !self.held.writes.is_empty() {
            return;
        }
        self.note_at = None;
        (self.thread.on_quiet)();
        if let Err(error) = self.thread.wal.note_durable() {
            tracing::warn!(%error, "the note of the log's durable end could not be written; nothing is lost by it");
        }
    }
}

//! Who holds this writes the log: everything that waits is one write, and at most one sync serves it all.
//!
//! It belongs to the log's thread and is borrowed by a shard that has a small batch and nothing else to do until it is
//! on the disk ([`super::wal_thread`] says when).
//!
//! What is synced at once goes past the page cache, unless consumers lag behind what shards keep in memory: then the log
//! is about to be read, and the cache earns its keep.
//!
//! Invariants: *synced* is told only after a sync that began after the write; a sync that fails ends the process at once
//! and is never tried again, because the kernel may have dropped what it could not write.

use super::completions::{Completion, Completions};
use super::fatal;
use super::wal_thread::WalGauges;
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use partition::outputs::{SyncWish, Ticket, WalWrite};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use storage::{FileNo, Location, RealDisk, Record, RecordKind, StorageError, Wal, WriteWay};

/// Unsynced bytes beyond which a sync is made though nobody asked: bounds what a power cut can take.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;
/// For so many more bytes the log goes through the page cache after a shard gave up an entry that somebody is still to
/// get.
const CACHED_AFTER_BYTES: u64 = 8 << 20;
/// How often the durable end is noted beside the log while there is traffic, and once after.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Writes that wait, in order.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) writes: Vec<WalWrite>,
    /// Bytes of the bodies.
    pub(crate) bytes: usize,
    /// Somebody waits for the write alone.
    pub(crate) is_write_awaited: bool,
    /// Somebody waits for the sync behind it.
    pub(crate) is_sync_awaited: bool,
    /// When what nobody waits for has to be synced.
    pub(crate) due: Option<Instant>,
}

impl Batch {
    /// Adds writes; `writes` is empty afterwards and keeps some room. Nothing waits longer than `delay_ms_max` for its sync.
    pub(crate) fn add(&mut self, writes: &mut Vec<WalWrite>, delay_ms_max: u64) {
        for write in &writes[..] {
            self.bytes += write.records.iter().map(|r| r.body.len()).sum::<usize>();
            match write.sync {
                SyncWish::Now => self.is_sync_awaited = true,
                SyncWish::Within(ms) => {
                    let due = Instant::now() + Duration::from_millis(u64::from(ms).min(delay_ms_max));
                    self.due = Some(self.due.map_or(due, |at| at.min(due)));
                    self.is_write_awaited |= write.report_written;
                }
            }
        }
        if self.writes.is_empty() {
            std::mem::swap(&mut self.writes, writes);
        } else {
            self.writes.append(writes);
        }
    }

    /// Puts what could not be written back before what came meanwhile.
    pub(crate) fn put_back(&mut self, mut first: Batch) {
        first.writes.append(&mut self.writes);
        self.writes = first.writes;
        self.bytes += first.bytes;
        self.is_write_awaited |= first.is_write_awaited;
        self.is_sync_awaited |= first.is_sync_awaited;
        self.due = self.due.into_iter().chain(first.due).min();
    }

    /// Somebody waits for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_write_awaited || self.is_sync_awaited
    }

    /// Empty again; its memory is kept.
    fn clear(&mut self) {
        let mut writes = std::mem::take(&mut self.writes);
        writes.clear();
        *self = Batch { writes, ..Batch::default() };
    }
}

/// Whom a partition's completions go to.
pub(crate) struct Route {
    pub(crate) completions: Completions,
    pub(crate) shard: usize,
}

/// What a writer is made of.
pub(crate) struct LogParts {
    pub(crate) wal: Wal<RealDisk>,
    pub(crate) routes: BTreeMap<PartitionId, Route>,
    pub(crate) mailboxes: Vec<Mailbox>,
    /// Closed files are kept up to this many bytes before live messages are copied out of them.
    pub(crate) retained_bytes_max: u64,
    /// Called when traffic ends.
    pub(crate) on_quiet: fn(),
    /// Called at each new file, to have spares made.
    pub(crate) prepare: Box<dyn Fn() + Send>,
}

/// The disk has no room for a batch; nothing of it is written.
#[derive(Debug)]
pub(crate) struct DiskFull;

/// The log and what is on its way in it.
pub(crate) struct LogWriter {
    parts: LogParts,
    gauges: Arc<WalGauges>,
    /// Writes that are written and not synced, newest ticket a partition.
    unsynced: BTreeMap<PartitionId, Ticket>,
    /// When they have to be.
    sync_at: Option<Instant>,
    needs: BTreeMap<PartitionId, u32>,
    parcels: Vec<Vec<Parcel>>,
    last_file: FileNo,
    durable_file: FileNo,
    note_at: Option<Instant>,
    /// What shards had given up when it was last looked at.
    pushed_out_seen: u64,
    /// Writes go through the page cache until so many bytes are written.
    cached_until: u64,
    places: Vec<Location>,
    #[cfg(test)]
    before_syncs: Option<super::hanging_sync::Hook>,
}

impl LogWriter {
    pub(crate) fn new(parts: LogParts, gauges: Arc<WalGauges>) -> LogWriter {
        let last_file = parts.wal.position().file;
        let durable_file = parts.wal.durable_file();
        gauges.durable_file.store(partition::place::file_u32(durable_file), Ordering::Relaxed);
        let parcels = parts.mailboxes.iter().map(|_| Vec::new()).collect();
        LogWriter {
            parts,
            gauges,
            unsynced: BTreeMap::new(),
            sync_at: None,
            needs: BTreeMap::new(),
            parcels,
            last_file,
            durable_file,
            note_at: None,
            pushed_out_seen: 0,
            cached_until: 0,
            places: Vec::new(),
            #[cfg(test)]
            before_syncs: super::hanging_sync::hook_of_this_thread(),
        }
    }

    /// When there is something to do though nobody writes.
    pub(crate) fn due(&self) -> Option<Instant> {
        // What is unsynced has its time; the note waits for it.
        if self.unsynced.is_empty() { self.note_at } else { self.sync_at }
    }

    /// What is written has to be synced now, though nobody may wait for it.
    pub(crate) fn is_sync_due(&self) -> bool {
        self.parts.wal.unsynced_bytes() >= UNSYNCED_BYTES_MAX || self.sync_at.is_some_and(|at| at <= Instant::now())
    }

    /// Bytes that the next sync has to bring to the disk beside those that go past the page cache.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        self.parts.wal.unsynced_bytes()
    }

    /// Writes a batch, in order and with one call, and empties it. Who waits for the write alone is told.
    pub(crate) fn write(&mut self, batch: &mut Batch) -> Result<(), DiskFull> {
        if batch.writes.is_empty() {
            return Ok(());
        }
        let count = batch.writes.iter().map(|w| w.records.len()).sum();
        let mut records: Vec<Record> = Vec::with_capacity(count);
        let mut counts = Vec::with_capacity(batch.writes.len());
        for write in &mut batch.writes {
            counts.push(write.records.len());
            records.append(&mut write.records);
        }
        let way = if batch.is_sync_awaited { self.way() } else { WriteWay::Cached };
        self.places.clear();
        let bytes = match self.parts.wal.append_by(way, &records, &mut self.places) {
            Ok(bytes) => bytes,
            Err(StorageError::Full { .. }) => {
                if self.gauges.is_full.swap(1, Ordering::Relaxed) == 0 {
                    tracing::error!("the disk is full: publishers wait until there is room");
                }
                let mut records = records.into_iter();
                for (write, count) in batch.writes.iter_mut().zip(counts) {
                    write.records.extend(records.by_ref().take(count));
                }
                return Err(DiskFull);
            }
            Err(error) => fatal("the log could not be written", &error),
        };
        if self.gauges.is_full.swap(0, Ordering::Relaxed) != 0 {
            tracing::warn!("the disk has room again: writing goes on");
        }
        self.gauges.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut at = 0;
        for (write, count) in batch.writes.drain(..).zip(counts) {
            let placed = records[at..at + count].iter().zip(&self.places[at..at + count]);
            let bodies = placed.filter(|(r, _)| r.kind == RecordKind::Entry).map(|(_, place)| *place).collect();
            at += count;
            self.unsynced.insert(write.partition, write.ticket);
            let route = &self.parts.routes[&write.partition];
            let written = Completion::Written(write.ticket, bodies);
            // Woken now only if somebody waits for *written*; else the places wait for the news of the sync.
            if !write.report_written || write.sync == SyncWish::Now {
                route.completions.put(written);
            } else if route.completions.put_awaited(written) {
                self.parcels[route.shard].push(Parcel::Wake(write.partition));
            }
        }
        self.sync_at = self.sync_at.into_iter().chain(batch.due).min();
        batch.clear();
        self.note_at.get_or_insert_with(|| Instant::now() + NOTE_EVERY);
        self.note_roll();
        Ok(())
    }

    /// The way of what is synced at once.
    fn way(&mut self) -> WriteWay {
        let written = self.gauges.written_bytes.load(Ordering::Relaxed);
        let pushed_out = self.gauges.pushed_out_bytes.load(Ordering::Relaxed);
        if pushed_out != self.pushed_out_seen {
            self.pushed_out_seen = pushed_out;
            self.cached_until = written + CACHED_AFTER_BYTES;
        }
        if written < self.cached_until { WriteWay::Cached } else { WriteWay::Direct }
    }

    /// Makes all that is written durable, for whoever waits for it and everybody else.
    pub(crate) fn sync(&mut self) {
        let begin = Instant::now();
        #[cfg(test)]
        if let Some(hook) = &self.before_syncs {
            hook();
        }
        if let Err(error) = self.parts.wal.sync() {
            fatal("the log could not be synced", &error);
        }
        self.gauges.sync_times.note(begin.elapsed());
        self.gauges.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_at = None;
        while let Some((partition, ticket)) = self.unsynced.pop_first() {
            let route = &self.parts.routes[&partition];
            route.completions.put(Completion::Synced(ticket));
            self.parcels[route.shard].push(Parcel::Wake(partition));
        }
        self.note_durable_file();
    }

    /// Wakes the shards of those that were told something.
    pub(crate) fn post(&mut self) {
        for (mailbox, parcels) in self.parts.mailboxes.iter().zip(&mut self.parcels) {
            mailbox.send_all(parcels, 0);
        }
    }

    /// A new file was begun: there may be too much of the log.
    fn note_roll(&mut self) {
        let file = self.parts.wal.position().file;
        if file == self.last_file {
            return;
        }
        self.last_file = file;
        self.note_retained();
        (self.parts.prepare)();
    }

    /// It will be there after a cut of the power: partitions look whether they keep too much.
    fn note_durable_file(&mut self) {
        let file = self.parts.wal.durable_file();
        if file == self.durable_file {
            return;
        }
        self.durable_file = file;
        self.gauges.durable_file.store(partition::place::file_u32(file), Ordering::Relaxed);
        for (partition, route) in &self.parts.routes {
            route.completions.put(Completion::Rolled);
            self.parcels[route.shard].push(Parcel::Wake(*partition));
        }
    }

    fn note_retained(&self) {
        let closed: Vec<_> = self.parts.wal.closed_files().collect();
        let mut over = closed.iter().map(|c| c.1).sum::<u64>().saturating_sub(self.parts.retained_bytes_max);
        let mut through = 0;
        for (file, bytes) in closed {
            if over == 0 {
                break;
            }
            through = partition::place::file_u32(file);
            over = over.saturating_sub(bytes);
        }
        self.gauges.retire_through.store(through, Ordering::Relaxed);
    }

    /// Gives back files that no partition needs. A partition that never said what it needs keeps everything.
    pub(crate) fn release(&mut self, needs: &mut Vec<(PartitionId, u32)>) {
        if needs.is_empty() {
            return;
        }
        self.needs.extend(needs.drain(..));
        if self.needs.len() < self.parts.routes.len() {
            return;
        }
        let Some(first) = self.needs.values().min() else { return };
        self.parts.wal.release_before(FileNo(u64::from(*first)));
        self.note_retained();
        (self.parts.prepare)();
    }

    /// Notes the durable end beside the log, if it is time and nothing is on its way.
    pub(crate) fn note(&mut self, is_last: bool) {
        let due = self.note_at.is_some_and(|at| at <= Instant::now());
        if !(due || is_last) || !self.unsynced.is_empty() {
            return;
        }
        self.note_at = None;
        (self.parts.on_quiet)();
        if let Err(error) = self.parts.wal.note_durable() {
            tracing::warn!(%error, "the note of the log's durable end could not be written; nothing is lost by it");
        }
    }
}

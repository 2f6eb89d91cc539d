//! Who holds this writes the log: everything that waits is one write, and at most one sync serves
//! it all.
//!
//! It belongs to the log's thread and is borrowed by a shard that has a small batch and nothing
//! else to do until it is on the disk ([`crate::LogQueue`] says when).
//!
//! What is synced at once goes past the page cache, unless consumers lag behind what shards keep in
//! memory: then the log is about to be read, and the cache earns its keep.
//!
//! Invariants: *synced* is told only after a sync that began after the write; a sync that fails is
//! final, because the kernel may have dropped what it could not write: its caller ends the process,
//! and never calls again.

use crate::batch::Batch;
use crate::completions::Completion;
use crate::gauges::LogGauges;
use crate::memory::Memory;
use broker::PartitionId;
use partition::outputs::{SyncWish, Ticket};
use partition::place::file_u32;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::{Disk, FileNo, Location, Record, RecordKind, StorageError, Wal, WriteWay};

/// Unsynced bytes beyond which a sync is made though nobody asked: bounds what a power cut can
/// take.
const UNSYNCED_BYTES_MAX: u64 = 4 << 20;
/// For so many more bytes the log goes through the page cache after a shard gave up an entry that
/// somebody is still to get.
const CACHED_AFTER_BYTES: u64 = 8 << 20;
/// How often the durable end is noted beside the log while there is traffic, and once after.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Where goes what the writer has to say.
pub trait Listener {
    /// Says something to a partition. `is_awaited`: somebody waits for it, so the partition has to
    /// be stepped.
    fn tell(&mut self, partition: PartitionId, completion: Completion, is_awaited: bool);
}

/// The log and what is on its way in it. Times are since the node's start.
pub struct LogWriter<D: Disk> {
    wal: Wal<D>,
    gauges: Arc<LogGauges>,
    /// Who writes here.
    members: BTreeSet<PartitionId>,
    /// Closed files are kept up to this many bytes before live messages are copied out of them.
    retained_bytes_max: u64,
    /// Writes that are written and not synced, newest ticket a partition.
    unsynced: BTreeMap<PartitionId, Ticket>,
    /// When they have to be.
    sync_at: Option<Duration>,
    needs: BTreeMap<PartitionId, u32>,
    last_file: FileNo,
    durable_file: FileNo,
    note_at: Option<Duration>,
    /// What shards had given up when it was last looked at.
    pushed_out_seen: u64,
    /// Writes go through the page cache until so many bytes are written.
    cached_until: u64,
    places: Vec<Location>,
    wants_spares: bool,
    /// Of a node among others.
    memory: Option<Memory<D>>,
}

impl<D: Disk> LogWriter<D> {
    /// The log of these partitions, none of which has said yet which files it needs.
    pub fn new(
        wal: Wal<D>,
        members: BTreeSet<PartitionId>,
        retained_bytes_max: u64,
        gauges: Arc<LogGauges>,
    ) -> LogWriter<D> {
        let (last_file, durable_file) = (wal.position().file, wal.durable_file());
        gauges.durable_file.store(file_u32(durable_file), Ordering::Relaxed);
        let writer = LogWriter {
            wal,
            gauges,
            members,
            retained_bytes_max,
            unsynced: BTreeMap::new(),
            sync_at: None,
            needs: BTreeMap::new(),
            last_file,
            durable_file,
            note_at: None,
            pushed_out_seen: 0,
            cached_until: 0,
            places: Vec::new(),
            wants_spares: false,
            memory: None,
        };
        writer.note_retained();
        writer
    }

    /// Of a node among others: its folder says which members may have forgotten something.
    #[must_use]
    pub fn with_memory(self, memory: Option<Memory<D>>) -> LogWriter<D> {
        LogWriter { memory, ..self }
    }

    /// Figures about it.
    pub fn gauges(&self) -> &Arc<LogGauges> {
        &self.gauges
    }

    /// The log itself.
    pub fn wal(&self) -> &Wal<D> {
        &self.wal
    }

    /// When there is something to do though nobody writes.
    pub fn due(&self) -> Option<Duration> {
        // What is unsynced has its time; the note waits for it.
        if self.unsynced.is_empty() { self.note_at } else { self.sync_at }
    }

    /// What is written has to be synced now, though nobody may wait for it.
    pub fn is_sync_due(&self, now: Duration) -> bool {
        self.wal.unsynced_bytes() >= UNSYNCED_BYTES_MAX || self.sync_at.is_some_and(|at| at <= now)
    }

    /// Bytes that the next sync has to bring to the disk beside those that go past the page cache.
    pub fn unsynced_bytes(&self) -> u64 {
        self.wal.unsynced_bytes()
    }

    /// Writes a batch, in order and with one call, and empties it. Who waits for the write alone is
    /// told.
    ///
    /// - Errors: on a full disk nothing of it is written and the batch is as it was; any other
    ///   error is final.
    pub fn write(
        &mut self,
        batch: &mut Batch,
        now: Duration,
        listener: &mut impl Listener,
    ) -> Result<(), StorageError> {
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
        let bytes = match self.wal.append_by(way, &records, &mut self.places) {
            Ok(bytes) => bytes,
            Err(error) => {
                let mut records = records.into_iter();
                for (write, count) in batch.writes.iter_mut().zip(counts) {
                    write.records.extend(records.by_ref().take(count));
                }
                if error.is_full() && self.gauges.is_full.swap(1, Ordering::Relaxed) == 0 {
                    tracing::error!("the disk is full: publishers wait until there is room");
                }
                return Err(error);
            }
        };
        if self.gauges.is_full.swap(0, Ordering::Relaxed) != 0 {
            tracing::warn!("the disk has room again: writing goes on");
        }
        self.gauges.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        let handed_over = batch.bytes as u64;
        let less = |waiting: u64| Some(waiting.saturating_sub(handed_over));
        let _ = self.gauges.waiting_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let mut at = 0;
        for (write, count) in batch.writes.drain(..).zip(counts) {
            let placed = records[at..at + count].iter().zip(&self.places[at..at + count]);
            let bodies = placed.filter(|(r, _)| r.kind == RecordKind::Entry).map(|(_, place)| *place).collect();
            at += count;
            self.unsynced.insert(write.partition, write.ticket);
            // Woken now only if somebody waits for *written*; else the places wait until the sync
            // is told.
            let is_awaited = write.report_written && write.sync != SyncWish::Now;
            listener.tell(write.partition, Completion::Written(write.ticket, bodies), is_awaited);
        }
        self.sync_at = self.sync_at.into_iter().chain(batch.due).min();
        batch.clear();
        self.note_at.get_or_insert(now + NOTE_EVERY);
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
    ///
    /// - Errors: final. Nobody knows what is on the disk, and a second try would say that all is.
    pub fn sync(&mut self, listener: &mut impl Listener) -> Result<(), StorageError> {
        let synced = self.wal.sync();
        if let (Err(_), Some(memory)) = (&synced, &mut self.memory) {
            memory.is_lost();
        }
        synced?;
        self.gauges.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_at = None;
        while let Some((partition, ticket)) = self.unsynced.pop_first() {
            listener.tell(partition, Completion::Synced(ticket), true);
        }
        self.note_durable_file(listener);
        Ok(())
    }

    /// A new file was begun: there may be too much of the log.
    fn note_roll(&mut self) {
        let file = self.wal.position().file;
        if file != self.last_file {
            self.last_file = file;
            self.note_retained();
            self.wants_spares = true;
        }
    }

    /// It will be there after a cut of the power: partitions look whether they keep too much.
    fn note_durable_file(&mut self, listener: &mut impl Listener) {
        let file = self.wal.durable_file();
        if file == self.durable_file {
            return;
        }
        self.durable_file = file;
        self.gauges.durable_file.store(file_u32(file), Ordering::Relaxed);
        self.members.iter().for_each(|partition| listener.tell(*partition, Completion::Rolled, true));
    }

    fn note_retained(&self) {
        let closed: Vec<_> = self.wal.closed_files().collect();
        let mut over = closed.iter().map(|c| c.1).sum::<u64>().saturating_sub(self.retained_bytes_max);
        let mut through = 0;
        for (file, bytes) in closed {
            if over == 0 {
                break;
            }
            through = file_u32(file);
            over = over.saturating_sub(bytes);
        }
        self.gauges.retire_through.store(through, Ordering::Relaxed);
    }

    /// Gives back files that no partition needs, and empties `needs`. A partition that never said
    /// what it needs keeps everything.
    pub fn release(&mut self, needs: &mut Vec<(PartitionId, u32)>) {
        if needs.is_empty() {
            return;
        }
        self.needs.extend(needs.drain(..));
        if self.needs.len() < self.members.len() {
            return;
        }
        let Some(first) = self.needs.values().min() else { return };
        self.wal.release_before(FileNo(u64::from(*first)));
        self.note_retained();
        self.wants_spares = true;
    }

    /// Members say that they have all that they may have forgotten. Empties `whole`; it is written down
    /// with the next note.
    pub fn remember(&mut self, whole: &mut Vec<PartitionId>, now: Duration) {
        let Some(memory) = &mut self.memory else { return whole.clear() };
        if whole.drain(..).fold(false, |is_new, group| is_new | memory.is_whole(group)) {
            self.note_at.get_or_insert(now + NOTE_EVERY);
        }
    }

    /// Whether spare files may be missing since this was last asked.
    pub fn take_wants_spares(&mut self) -> bool {
        std::mem::take(&mut self.wants_spares)
    }

    /// Notes the durable end beside the log, and which members may have forgotten something, if it is time
    /// and nothing is on its way; true if traffic has ended. `is_last`: the process ends, and nothing is
    /// written after this.
    ///
    /// - Errors: nothing is lost by it. What follows the note is read at the next start.
    pub fn note(&mut self, now: Duration, is_last: bool) -> Result<bool, StorageError> {
        let due = self.note_at.is_some_and(|at| at <= now);
        if !(due || is_last) || !self.unsynced.is_empty() {
            return Ok(false);
        }
        self.note_at = None;
        let noted = self.wal.note_durable();
        let remembered = match &mut self.memory {
            Some(memory) if is_last => memory.close(),
            Some(memory) => memory.note(),
            None => Ok(()),
        };
        if remembered.is_err() {
            self.note_at = Some(now + NOTE_EVERY);
        }
        noted.and(remembered)?;
        Ok(true)
    }
}

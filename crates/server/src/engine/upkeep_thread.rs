//! The thread with time: extents, checkpoints, deletions, spare WAL files. Nothing a client waits for runs here.
//!
//! Invariant: an extent is synced, name included, before its partition hears of it, and a checkpoint before its
//! partition gives anything up; an extent's number is used once in the life of the folder.

use super::completions::{Completion, Completions};
use super::fatal;
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use bytes::Bytes;
use partition::entry::Batch;
use partition::extent_copy::write_received;
use partition::outputs::{CopyRun, ExtentReady, ExtentRun, Job};
use partition::place::Place;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use storage::extent::{remove_extent, sync_extent_removals};
use storage::wal::{Preparation, SparePreparer};
use storage::{
    CheckpointStore, Extent, ExtentId, ExtentWriter, FileNo, GroupId, Location, RealDisk, StorageError, WalPosition,
    WalReader,
};

/// A hole longer than this between two live messages begins a new run: its bitmap would cost more than the run.
const HOLE_MESSAGES_MAX: u64 = 4096;
/// A job that met a full disk is tried again after this long; consumers may have made room.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
pub(crate) enum Task {
    /// A partition's job.
    Job(Job),
    /// The WAL may want spare files.
    PrepareSpares,
}

/// The thread's own state.
pub(crate) struct UpkeepThread {
    pub(crate) disk: Arc<RealDisk>,
    pub(crate) folder_id: u128,
    pub(crate) wal: WalReader<RealDisk>,
    pub(crate) spares: SparePreparer<RealDisk>,
    pub(crate) checkpoints: CheckpointStore<RealDisk>,
    pub(crate) next_extent: u32,
    /// Called after each job: an extent's bodies went through memory.
    pub(crate) on_quiet: fn(),
    pub(crate) routes: BTreeMap<PartitionId, (Completions, Mailbox)>,
}

impl UpkeepThread {
    /// Where tasks go, and the loop to run on a thread of its own; it ends when all senders are gone.
    pub(crate) fn prepare(self) -> (Sender<Task>, impl FnOnce() + Send) {
        let (sender, receiver) = channel();
        (sender, move || self.run(&receiver))
    }

    fn run(mut self, receiver: &Receiver<Task>) {
        let mut preparing = false;
        loop {
            // Spare files are made in slices between jobs.
            let task = if preparing {
                match receiver.recv_timeout(Duration::ZERO) {
                    Ok(task) => Some(task),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            } else {
                match receiver.recv() {
                    Ok(task) => Some(task),
                    Err(_) => return,
                }
            };
            match task {
                Some(Task::Job(job)) => {
                    self.job(job);
                    (self.on_quiet)();
                }
                Some(Task::PrepareSpares) => preparing = true,
                None => preparing = self.prepare_spare(),
            }
        }
    }

    fn prepare_spare(&mut self) -> bool {
        match self.spares.step() {
            Ok(Preparation::Worked) => true,
            Ok(Preparation::Idle) => false,
            Err(error) if error.is_full() => false,
            Err(error) => fatal("a spare log file could not be made", &error),
        }
    }

    fn job(&mut self, job: Job) {
        match job {
            Job::WriteExtent { partition, runs } => {
                let ready = self.write_extent(&runs);
                self.done(partition, Completion::Extent(ready));
            }
            Job::SaveCheckpoint { partition, payload, replay_file, .. } => {
                let replay_from = WalPosition { file: FileNo(u64::from(replay_file)), offset: 0 };
                self.until_there_is_room("a checkpoint", |this| {
                    this.checkpoints.save(GroupId(partition.0), replay_from, &payload)
                });
                self.done(partition, Completion::Checkpoint);
            }
            Job::WriteReceived { partition, messages } => {
                let ready = self.until_there_is_room("an extent", |this| {
                    let id = ExtentId(u64::from(this.next_extent));
                    this.next_extent += 1;
                    let written = write_received(&this.disk, this.folder_id, id, &messages);
                    if written.is_err() {
                        // What there is of it belongs to nobody.
                        let _ = remove_extent(&*this.disk, id);
                    }
                    written
                });
                self.done(partition, Completion::Received(ready));
            }
            Job::DropExtent { id } => {
                let removed = remove_extent(&*self.disk, ExtentId(u64::from(id)));
                if let Err(error) = removed.and_then(|()| sync_extent_removals(&*self.disk)) {
                    tracing::warn!(%error, "an extent that is used up could not be deleted; it is at the next start");
                }
            }
        }
    }

    fn done(&self, partition: PartitionId, completion: Completion) {
        let (completions, mailbox) = &self.routes[&partition];
        if completions.put(completion) {
            mailbox.send(Parcel::Wake(partition));
        }
    }

    fn until_there_is_room<T>(&mut self, what: &str, mut act: impl FnMut(&mut Self) -> Result<T, StorageError>) -> T {
        loop {
            match act(self) {
                Ok(done) => return done,
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "{what} waits for room on the disk");
                    std::thread::sleep(FULL_RETRY);
                }
                Err(error) => fatal(&format!("{what} could not be written"), &error),
            }
        }
    }

    /// Copies what fits of `runs` into one extent; `None` if there was nothing to copy.
    fn write_extent(&mut self, runs: &[CopyRun]) -> Option<ExtentReady> {
        self.until_there_is_room("an extent", |this| {
            let id = ExtentId(u64::from(this.next_extent));
            this.next_extent += 1;
            let copied = this.copy(id, runs);
            if copied.is_err() {
                // What there is of it belongs to nobody.
                let _ = remove_extent(&*this.disk, id);
            }
            copied
        })
    }

    fn copy(&self, id: ExtentId, runs: &[CopyRun]) -> Result<Option<ExtentReady>, StorageError> {
        let mut writer = ExtentWriter::create(&self.disk, self.folder_id, id)?;
        let (mut copied, mut messages) = (Vec::new(), 0u64);
        let (mut run_first, mut last) = (0u64, None);
        for run in runs {
            let bodies = self.read(run)?;
            let bytes: usize = bodies.iter().map(|(_, body)| body.len()).sum();
            // A run goes over whole or not at all: half a batch in two places would have to be told apart.
            if !writer.has_room(bytes + bodies.len() * 16) {
                break;
            }
            if !run.joins {
                last = None;
            }
            for (seq, body) in bodies {
                let far = last.is_none_or(|last| seq - last > HOLE_MESSAGES_MAX);
                let long = !far && seq - run_first >= u64::from(broker::queue::runs::RUN_MESSAGES_MAX);
                if far || long {
                    writer.end_run()?;
                    run_first = seq;
                }
                writer.push(run.queue.0, seq, &body)?;
                last = Some(seq);
                messages += 1;
            }
            copied.push((run.queue, run.place));
        }
        if messages == 0 {
            drop(writer);
            let _ = remove_extent(&*self.disk, id);
            return Ok(None);
        }
        let summary = writer.finish()?;
        let runs = summary.runs.iter().enumerate().map(|(number, run)| ExtentRun {
            queue: broker::QueueId(run.queue),
            run: number as u32,
            first: run.first_seq,
            past: run.last_seq + 1,
        });
        let id = u32::try_from(id.0).expect("extents are numbered in 32 bits");
        Ok(Some(ExtentReady { id, bytes: u64::from(summary.bytes), messages, runs: runs.collect(), copied }))
    }

    /// The live messages of a run.
    fn read(&self, run: &CopyRun) -> Result<Vec<(u64, Bytes)>, StorageError> {
        let is_live = |seq: u64| run.live.iter().any(|(first, count)| (*first..first + count).contains(&seq));
        match run.place {
            Place::Wal { file, offset, bytes } => {
                let at = Location { file: FileNo(u64::from(file)), offset, bytes };
                let stored = self.wal.read(at)?;
                let damaged = || StorageError::Corrupt {
                    file: format!("wal file {file}"),
                    offset: u64::from(offset),
                    what: "a batch of messages, by its checksum,",
                    expected: 1,
                    found: 0,
                };
                let batch = Batch::parse(&stored, 0).ok().filter(|b| b.is_intact()).ok_or_else(damaged)?;
                let mut at = batch.first_message_at();
                let mut live = Vec::with_capacity(run.live.iter().map(|l| l.1 as usize).sum());
                for (number, message) in batch.iter().enumerate() {
                    let seq = run.first + number as u64;
                    if is_live(seq) {
                        live.push((seq, stored.slice(at..at + message.len())));
                    }
                    at += message.len();
                }
                Ok(live)
            }
            Place::Extent { id, run: number } => {
                let extent = Extent::open(&*self.disk, ExtentId(u64::from(id)))?;
                let (mut live, mut from) = (Vec::new(), run.first);
                loop {
                    let read = extent.read(number as usize, from, 4096, 4 << 20)?;
                    let Some(last) = read.last() else { return Ok(live) };
                    from = last.seq + 1;
                    live.extend(read.into_iter().filter(|m| is_live(m.seq)).map(|m| (m.seq, m.body)));
                }
            }
        }
    }
}

//! The thread with time: extents, checkpoints, deletions, spare WAL files. Nothing a client waits for runs here.
//!
//! Invariant: an extent is synced, name included, before its partition hears of it, and a checkpoint before its
//! partition gives anything up; an extent's number is used once in the life of the folder.

use super::completions::{Completion, Completions};
use super::fatal;
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use partition::extent_copy::{Copied, copy_runs, write_received};
use partition::outputs::{CopyRun, Job};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use storage::extent::{remove_extent, sync_extent_removals};
use storage::wal::{Preparation, SparePreparer};
use storage::{CheckpointStore, ExtentId, FileNo, GroupId, RealDisk, StorageError, WalPosition, WalReader};

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
                let copied = self.write_extent(&runs);
                self.done(partition, Completion::Extent(copied));
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

    /// Copies what fits of `runs` into one extent.
    fn write_extent(&mut self, runs: &[CopyRun]) -> Copied {
        self.until_there_is_room("an extent", |this| {
            let id = ExtentId(u64::from(this.next_extent));
            this.next_extent += 1;
            let copied = copy_runs(&this.disk, this.folder_id, &this.wal, id, runs);
            if copied.is_err() {
                // What there is of it belongs to nobody.
                let _ = remove_extent(&*this.disk, id);
            }
            copied
        })
    }
}

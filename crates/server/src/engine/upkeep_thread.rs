//! The thread with time: extents, checkpoints, deletions, spare WAL files. Nothing a client waits for runs here.
//!
//! Invariants: an extent is synced, name included, before its partition hears of it, and a checkpoint before its
//! partition gives anything up; an extent's number is used once in the life of the folder. Nobody stands behind a job that
//! finds no room: what comes after it, a deletion above all, is what makes some.

use super::completions::{Completion, Completions};
use super::fatal;
use crate::shard::{Mailbox, Parcel};
use broker::PartitionId;
use partition::extent_copy::{Copied, copy_runs, write_received};
use partition::outputs::{CopyRun, Job};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use storage::extent::{remove_extent, sync_extent_removals};
use storage::wal::{Preparation, SparePreparer};
use storage::{CheckpointStore, Disk, ExtentId, FileNo, GroupId, StorageError, WalPosition, WalReader};

/// What met a full disk is tried again after this long; consumers may have made room.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
pub(crate) enum Task {
    /// A partition's job.
    Job(Job),
    /// The WAL may want spare files.
    PrepareSpares,
}

/// What found no room. At most three for each partition: it has one job of a kind under way.
enum PutOff {
    /// Is tried again as it is.
    Job(Job),
    /// The partition is told that nothing was copied, and asks anew. What it asked for may not be tried again: once its runs
    /// are settled, their files may go.
    Copy(PartitionId),
}

/// The thread's own state.
pub(crate) struct UpkeepThread<D: Disk> {
    pub(crate) disk: Arc<D>,
    pub(crate) folder_id: u128,
    pub(crate) wal: WalReader<D>,
    pub(crate) spares: SparePreparer<D>,
    pub(crate) checkpoints: CheckpointStore<D>,
    pub(crate) next_extent: u32,
    /// Called after each job: an extent's bodies went through memory.
    pub(crate) on_quiet: fn(),
    pub(crate) routes: BTreeMap<PartitionId, (Completions, Mailbox)>,
}

/// What waits for room, and until when.
#[derive(Default)]
struct Waiting {
    put_off: VecDeque<PutOff>,
    until: Option<Instant>,
}

impl<D: Disk> UpkeepThread<D> {
    /// Where tasks go, and the loop to run on a thread of its own; it ends when all senders are gone.
    pub(crate) fn prepare(self) -> (Sender<Task>, impl FnOnce() + Send) {
        let (sender, receiver) = channel();
        (sender, move || self.run(&receiver))
    }

    fn run(mut self, receiver: &Receiver<Task>) {
        let (mut preparing, mut waiting) = (false, Waiting::default());
        loop {
            // Spare files are made in slices between jobs.
            let patience = match waiting.until {
                _ if preparing => Some(Duration::ZERO),
                until => until.map(|at| at.saturating_duration_since(Instant::now())),
            };
            let task = match patience.map_or_else(
                || receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                |patience| receiver.recv_timeout(patience),
            ) {
                Ok(task) => Some(task),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            match task {
                Some(Task::Job(job)) => {
                    self.job(job, &mut waiting);
                    (self.on_quiet)();
                }
                Some(Task::PrepareSpares) => preparing = true,
                None if preparing => preparing = self.prepare_spare(),
                None => {}
            }
            if waiting.until.is_some_and(|at| at <= Instant::now()) {
                self.try_again(&mut waiting);
            }
        }
    }

    fn try_again(&mut self, waiting: &mut Waiting) {
        waiting.until = None;
        for put_off in std::mem::take(&mut waiting.put_off) {
            match put_off {
                PutOff::Job(job) => self.job(job, waiting),
                PutOff::Copy(partition) => self.done(partition, Completion::Extent(Copied::default())),
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

    fn job(&mut self, job: Job, waiting: &mut Waiting) {
        match job {
            // A whole extent would be written in vain for every partition that wants one.
            Job::WriteExtent { partition, .. } if waiting.until.is_some() => {
                waiting.put_off.push_back(PutOff::Copy(partition));
            }
            Job::WriteExtent { partition, runs } => match self.write_extent(&runs) {
                Ok(copied) => self.done(partition, Completion::Extent(copied)),
                Err(error) => waiting.for_room("an extent", &error, PutOff::Copy(partition)),
            },
            Job::SaveCheckpoint { partition, ref payload, replay_file, .. } => {
                let replay_from = WalPosition { file: FileNo(u64::from(replay_file)), offset: 0 };
                match self.checkpoints.save(GroupId(partition.0), replay_from, payload) {
                    Ok(_) => self.done(partition, Completion::Checkpoint),
                    Err(error) => waiting.for_room("a checkpoint", &error, PutOff::Job(job)),
                }
            }
            Job::WriteReceived { partition, ref messages } => {
                let id = self.number_extent();
                match write_received(&self.disk, self.folder_id, id, messages) {
                    Ok(ready) => self.done(partition, Completion::Received(ready)),
                    Err(error) => waiting.for_room("an extent", &error, PutOff::Job(job)),
                }
            }
            Job::DropExtent { id } => {
                if let Err(error) = self.drop_extent(id) {
                    fatal("a deletion could not be synced", &error);
                }
            }
        }
    }

    /// That a file cannot be deleted costs its room until the next start. A sync that fails is final, whatever it was for: what
    /// else the disk took in and has not, nobody knows.
    fn drop_extent(&self, id: u32) -> Result<(), StorageError> {
        match remove_extent(&*self.disk, ExtentId(u64::from(id))) {
            Ok(()) => sync_extent_removals(&*self.disk),
            Err(error) => {
                tracing::warn!(%error, "an extent that is used up could not be deleted; it is at the next start");
                Ok(())
            }
        }
    }

    fn done(&self, partition: PartitionId, completion: Completion) {
        let (completions, mailbox) = &self.routes[&partition];
        if completions.put_awaited(completion) {
            mailbox.send(Parcel::Wake(partition));
        }
    }

    fn number_extent(&mut self) -> ExtentId {
        let id = ExtentId(u64::from(self.next_extent));
        self.next_extent += 1;
        id
    }

    /// Copies what fits of `runs` into one extent.
    fn write_extent(&mut self, runs: &[CopyRun]) -> Result<Copied, StorageError> {
        let id = self.number_extent();
        copy_runs(&self.disk, self.folder_id, &self.wal, id, runs)
    }
}

impl Waiting {
    /// Keeps for later what met a full disk. Any other error ends the process.
    fn for_room(&mut self, what: &str, error: &StorageError, put_off: PutOff) {
        if !error.is_full() {
            fatal(&format!("{what} could not be written"), error);
        }
        if self.until.is_none() {
            tracing::warn!(%error, "{what} waits for room on the disk");
            self.until = Some(Instant::now() + FULL_RETRY);
        }
        self.put_off.push_back(put_off);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::QueueId;
    use bytes::Bytes;
    use consensus::LogIndex;
    use storage::disk::Fault;
    use storage::extent::list_extents;
    use storage::{ExtentWriter, FaultyDisk, WalOptions};

    const PARTITION: PartitionId = PartitionId(1);
    const FOLDER: u128 = 7;

    fn thread(disk: &Arc<FaultyDisk>) -> (UpkeepThread<FaultyDisk>, Completions) {
        let (wal, _) =
            storage::recover(disk, FOLDER, WalOptions::new(7), FileNo(0), WalPosition::START, &mut |_, _| {})
                .expect("an empty log");
        let completions = Completions::default();
        let thread = UpkeepThread {
            disk: disk.clone(),
            folder_id: FOLDER,
            wal: wal.reader(),
            spares: wal.spare_preparer(),
            checkpoints: CheckpointStore::open(disk, FOLDER).expect("no checkpoints"),
            next_extent: 2,
            on_quiet: || {},
            routes: [(PARTITION, (completions.clone(), Mailbox::default()))].into(),
        };
        (thread, completions)
    }

    fn taken(completions: &Completions) -> Vec<Completion> {
        let mut taken = Vec::new();
        completions.take(&mut taken);
        taken
    }

    #[test]
    fn a_deletion_whose_sync_fails_ends_the_process_and_one_that_is_refused_does_not() {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut used_up = ExtentWriter::create(&disk, FOLDER, ExtentId(1)).expect("there is room");
        used_up.push(5, 1, &[1; 100]).expect("there is room");
        used_up.finish().expect("there is room");
        let (thread, _) = thread(&disk);
        thread.drop_extent(9).expect("there is none, and nothing else is wrong");
        disk.schedule(disk.operations(), Fault::SyncError);
        let error = thread.drop_extent(1).expect_err("nobody knows what else was not synced");
        assert!(matches!(error, StorageError::SyncFailed { .. }), "{error}");
    }

    #[test]
    fn an_extent_that_waits_for_room_lets_the_deletion_pass_that_makes_some() {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut used_up = ExtentWriter::create(&disk, FOLDER, ExtentId(1)).expect("there is room");
        used_up.push(5, 1, &[1; 1 << 20]).expect("there is room");
        used_up.finish().expect("there is room");
        let (mut thread, completions) = thread(&disk);
        disk.set_capacity(disk.used_bytes() + 4096);

        let mut waiting = Waiting::default();
        let messages = vec![(QueueId(5), 2, Bytes::from(vec![2; 600 << 10]))];
        thread.job(Job::WriteReceived { partition: PARTITION, messages }, &mut waiting);
        let payload = vec![3; 100 << 10];
        let save = Job::SaveCheckpoint { partition: PARTITION, payload, applied: LogIndex(1), replay_file: 1 };
        thread.job(save, &mut waiting);
        thread.job(Job::WriteExtent { partition: PARTITION, runs: Vec::new() }, &mut waiting);
        assert!(taken(&completions).is_empty(), "nothing of it had room");
        thread.try_again(&mut waiting);
        assert!(waiting.until.is_some() && waiting.put_off.len() == 2, "what can be tried again waits on");
        let told = taken(&completions);
        let is_given_up = |told: &Completion| matches!(told, Completion::Extent(copied) if copied.ready.is_none());
        assert!(told.len() == 1 && is_given_up(&told[0]), "a copy is asked for anew: {told:?}");

        thread.job(Job::DropExtent { id: 1 }, &mut waiting);
        assert_eq!(list_extents(&*disk).expect("a list"), [], "neither the old one nor half of a new one");
        thread.try_again(&mut waiting);
        assert!(waiting.until.is_none() && waiting.put_off.is_empty());
        let told = taken(&completions);
        assert!(matches!(told[..], [Completion::Received(Some(_)), Completion::Checkpoint]), "{told:?}");
    }
}

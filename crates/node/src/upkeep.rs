//! The work with time: extents, checkpoints, deletions, spare log files. Nothing a client waits for
//! is done here.
//!
//! Invariants: an extent is synced, name included, before its partition hears of it, and a
//! checkpoint before its partition gives anything up; an extent's number is used once in the life
//! of the folder. Nobody stands behind a job that finds no room: what comes after it, a deletion
//! above all, is what makes some.

use crate::completions::Completion;
use crate::log_writer::Listener;
use crate::open_extents::OpenExtents;
use broker::PartitionId;
use partition::extent_copy::{Copied, copy_runs, write_received};
use partition::outputs::Job;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use storage::extent::{remove_extent, sync_extent_removals};
use storage::wal::{Preparation, SparePreparer};
use storage::{CheckpointStore, Disk, ExtentId, FileNo, GroupId, StorageError, WalPosition, WalReader};

/// What met a full disk is tried again after this long; consumers may have made room.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Debug)]
pub enum Task {
    /// A partition's job.
    Job(Job),
    /// The log may want spare files.
    PrepareSpares,
}

/// The disk failed: what it took in and has not, nobody knows. Final, whatever it was for.
#[derive(Debug)]
pub struct UpkeepFailed {
    /// What was tried, as the beginning of a sentence that the error ends.
    pub what: &'static str,
    /// Why it failed.
    pub error: StorageError,
}

/// What found no room. At most three for each partition: it has one job of a kind under way.
enum PutOff {
    /// Is tried again as it is.
    Job(Job),
    /// The partition is told that nothing was copied, and asks anew. What it asked for may not be
    /// tried again: once its runs are settled, their files may go.
    Copy(PartitionId),
}

/// See the module. Times are since the node's start.
pub struct Upkeep<D: Disk> {
    disk: Arc<D>,
    folder_id: u128,
    wal: WalReader<D>,
    spares: SparePreparer<D>,
    checkpoints: CheckpointStore<D>,
    /// What readers keep open.
    open: OpenExtents<D>,
    next_extent: u32,
    is_preparing: bool,
    put_off: VecDeque<PutOff>,
    /// What was put off is tried again then.
    until: Option<Duration>,
}

impl<D: Disk> Upkeep<D> {
    /// Upkeep of a folder whose next extent has this number, and of which `open` is kept open to be read.
    pub fn new(
        (disk, folder_id): (Arc<D>, u128),
        wal: WalReader<D>,
        spares: SparePreparer<D>,
        checkpoints: CheckpointStore<D>,
        open: OpenExtents<D>,
        next_extent: u32,
    ) -> Upkeep<D> {
        let (is_preparing, put_off, until) = (false, VecDeque::new(), None);
        Upkeep { disk, folder_id, wal, spares, checkpoints, open, next_extent, is_preparing, put_off, until }
    }

    /// How long to wait for a task before [`Upkeep::go_on`] has something to do; `None`: forever.
    pub fn patience(&self, now: Duration) -> Option<Duration> {
        // Spare files are made in slices between jobs.
        if self.is_preparing { Some(Duration::ZERO) } else { self.until.map(|at| at.saturating_sub(now)) }
    }

    /// Does what is asked; blocks as long as the disk takes. Who asked hears of it through
    /// `listener`.
    pub fn begin(&mut self, task: Task, now: Duration, listener: &mut impl Listener) -> Result<(), UpkeepFailed> {
        match task {
            Task::Job(job) => self.job(job, now, listener),
            Task::PrepareSpares => {
                self.is_preparing = true;
                Ok(())
            }
        }
    }

    /// Nothing was asked for in time: does a slice of what was begun. Also to be called while tasks
    /// keep coming.
    pub fn go_on(&mut self, is_idle: bool, now: Duration, listener: &mut impl Listener) -> Result<(), UpkeepFailed> {
        if is_idle && self.is_preparing {
            self.is_preparing = self.prepare_spare()?;
        }
        if self.until.is_some_and(|at| at <= now) {
            self.try_again(now, listener)?;
        }
        Ok(())
    }

    fn try_again(&mut self, now: Duration, listener: &mut impl Listener) -> Result<(), UpkeepFailed> {
        self.until = None;
        for put_off in std::mem::take(&mut self.put_off) {
            match put_off {
                PutOff::Job(job) => self.job(job, now, listener)?,
                PutOff::Copy(partition) => listener.tell(partition, Completion::Extent(Copied::default()), true),
            }
        }
        Ok(())
    }

    fn prepare_spare(&mut self) -> Result<bool, UpkeepFailed> {
        match self.spares.step() {
            Ok(Preparation::Worked) => Ok(true),
            Ok(Preparation::Idle) => Ok(false),
            Err(error) if error.is_full() => Ok(false),
            Err(error) => Err(UpkeepFailed { what: "a spare log file could not be made", error }),
        }
    }

    fn job(&mut self, job: Job, now: Duration, listener: &mut impl Listener) -> Result<(), UpkeepFailed> {
        match job {
            // A whole extent would be written in vain for every partition that wants one.
            Job::WriteExtent { partition, .. } if self.until.is_some() => {
                self.put_off.push_back(PutOff::Copy(partition));
            }
            Job::WriteExtent { partition, runs } => {
                let id = self.number_extent();
                match copy_runs(&self.disk, self.folder_id, &self.wal, id, &runs) {
                    Ok(copied) => listener.tell(partition, Completion::Extent(copied), true),
                    Err(error) => {
                        self.put_off("an extent could not be written", error, PutOff::Copy(partition), now)?
                    }
                }
            }
            Job::SaveCheckpoint { partition, ref payload, replay_file, .. } => {
                let replay_from = WalPosition { file: FileNo(u64::from(replay_file)), offset: 0 };
                match self.checkpoints.save(GroupId(partition.0), replay_from, payload) {
                    Ok(_) => listener.tell(partition, Completion::Checkpoint, true),
                    Err(error) => self.put_off("a checkpoint could not be written", error, PutOff::Job(job), now)?,
                }
            }
            Job::WriteReceived { partition, ref messages } => {
                let id = self.number_extent();
                match write_received(&self.disk, self.folder_id, id, messages) {
                    Ok(ready) => listener.tell(partition, Completion::Received(ready), true),
                    Err(error) => self.put_off("an extent could not be written", error, PutOff::Job(job), now)?,
                }
            }
            Job::DropExtent { id } => {
                self.drop_extent(id).map_err(|error| UpkeepFailed { what: "a deletion could not be synced", error })?
            }
        }
        Ok(())
    }

    /// That a file cannot be deleted costs its room until the next start. A sync that fails is
    /// final, whatever it was for: what else the disk took in and has not, nobody knows.
    fn drop_extent(&self, id: u32) -> Result<(), StorageError> {
        let id = ExtentId(u64::from(id));
        let removed = remove_extent(&*self.disk, id);
        self.open.is_deleted(id);
        match removed {
            Ok(()) => sync_extent_removals(&*self.disk),
            Err(error) => {
                tracing::warn!(%error, "an extent that is used up could not be deleted; it is at the next start");
                Ok(())
            }
        }
    }

    fn number_extent(&mut self) -> ExtentId {
        let id = ExtentId(u64::from(self.next_extent));
        self.next_extent += 1;
        id
    }

    /// Keeps for later what met a full disk. Any other error is final.
    fn put_off(
        &mut self,
        what: &'static str,
        error: StorageError,
        put_off: PutOff,
        now: Duration,
    ) -> Result<(), UpkeepFailed> {
        if !error.is_full() {
            return Err(UpkeepFailed { what, error });
        }
        if self.until.is_none() {
            tracing::warn!(%error, "{what}: it waits for room on the disk");
            self.until = Some(now + FULL_RETRY);
        }
        self.put_off.push_back(put_off);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;
    use broker::QueueId;
    use bytes::Bytes;
    use consensus::LogIndex;
    use partition::outputs::{Read, ReadAt, ReadBytes, ReadPurpose};
    use partition::place::Place;
    use storage::disk::Fault;
    use storage::extent::list_extents;
    use storage::{ExtentWriter, FaultyDisk, WalOptions};

    const PARTITION: PartitionId = PartitionId(1);
    const FOLDER: u128 = 7;

    #[derive(Default)]
    struct Heard(Vec<Completion>);

    impl Listener for Heard {
        fn tell(&mut self, partition: PartitionId, completion: Completion, is_awaited: bool) {
            assert!(partition == PARTITION && is_awaited);
            self.0.push(completion);
        }
    }

    fn upkeep(disk: &Arc<FaultyDisk>) -> Upkeep<FaultyDisk> {
        let (wal, _) =
            storage::recover(disk, FOLDER, WalOptions::new(7), FileNo(0), WalPosition::START, &mut |_, _| {})
                .expect("an empty log");
        let checkpoints = CheckpointStore::open(disk, FOLDER).expect("no checkpoints");
        Upkeep::new((disk.clone(), FOLDER), wal.reader(), wal.spare_preparer(), checkpoints, OpenExtents::default(), 2)
    }

    #[test]
    fn a_deletion_whose_sync_fails_ends_the_process_and_one_that_is_refused_does_not() {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut used_up = ExtentWriter::create(&disk, FOLDER, ExtentId(1)).expect("there is room");
        used_up.push(5, 1, &[1; 100]).expect("there is room");
        used_up.finish().expect("there is room");
        let upkeep = upkeep(&disk);
        upkeep.drop_extent(9).expect("there is none, and nothing else is wrong");
        disk.schedule(disk.operations(), Fault::SyncError);
        let error = upkeep.drop_extent(1).expect_err("nobody knows what else was not synced");
        assert!(matches!(error, StorageError::SyncFailed { .. }), "{error}");
    }

    #[test]
    fn the_room_of_an_extent_that_was_read_comes_back_when_it_is_deleted() {
        let disk = Arc::new(FaultyDisk::new(1));
        let upkeep = upkeep(&disk);
        let before = disk.used_bytes();
        let mut used_up = ExtentWriter::create(&disk, FOLDER, ExtentId(1)).expect("there is room");
        used_up.push(5, 1, &[1; 100_000]).expect("there is room");
        used_up.finish().expect("there is room");
        let place = Place::Extent { id: 1, run: 0 };
        let read = Read {
            partition: PARTITION,
            at: ReadAt::Extent { id: 1, run: 0, from: 1, past: 2, bytes_max: 1 << 20 },
            purpose: ReadPurpose::Messages { queue: QueueId(5), seq: 1, place, is_second: false },
        };
        let mut reader = Reader::new(disk.clone(), upkeep.wal.clone(), upkeep.open.clone());
        let found = reader.read(read);
        assert!(matches!(found, Completion::Read(_, Ok(ReadBytes::Extent { damage: None, .. }))), "{found:?}");
        upkeep.drop_extent(1).expect("nothing is wrong");
        assert_eq!(disk.used_bytes(), before, "nobody reads again, and nobody has to");
    }

    #[test]
    fn an_extent_that_waits_for_room_lets_the_deletion_pass_that_makes_some() {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut used_up = ExtentWriter::create(&disk, FOLDER, ExtentId(1)).expect("there is room");
        used_up.push(5, 1, &[1; 1 << 20]).expect("there is room");
        used_up.finish().expect("there is room");
        let mut upkeep = upkeep(&disk);
        disk.set_capacity(disk.used_bytes() + 4096);

        let (mut heard, now, later) = (Heard::default(), Duration::ZERO, FULL_RETRY);
        let job = |upkeep: &mut Upkeep<FaultyDisk>, job, heard: &mut Heard| {
            upkeep.begin(Task::Job(job), now, heard).expect("a full disk is no failure");
        };
        let messages = vec![(QueueId(5), 2, Bytes::from(vec![2; 600 << 10]))];
        job(&mut upkeep, Job::WriteReceived { partition: PARTITION, messages }, &mut heard);
        let payload = vec![3; 100 << 10];
        let save = Job::SaveCheckpoint { partition: PARTITION, payload, applied: LogIndex(1), replay_file: 1 };
        job(&mut upkeep, save, &mut heard);
        job(&mut upkeep, Job::WriteExtent { partition: PARTITION, runs: Vec::new() }, &mut heard);
        assert!(heard.0.is_empty(), "nothing of it had room");
        assert_eq!(upkeep.patience(now), Some(FULL_RETRY));
        upkeep.go_on(true, later, &mut heard).expect("a full disk is no failure");
        assert!(upkeep.until.is_some() && upkeep.put_off.len() == 2, "what can be tried again waits on");
        let told = std::mem::take(&mut heard.0);
        let is_given_up = |told: &Completion| matches!(told, Completion::Extent(copied) if copied.ready.is_none());
        assert!(told.len() == 1 && is_given_up(&told[0]), "a copy is asked for anew: {told:?}");

        job(&mut upkeep, Job::DropExtent { id: 1 }, &mut heard);
        assert_eq!(list_extents(&*disk).expect("a list"), [], "neither the old one nor half of a new one");
        upkeep.go_on(true, later * 2, &mut heard).expect("there is room");
        assert!(upkeep.until.is_none() && upkeep.put_off.is_empty());
        let told = heard.0;
        assert!(matches!(told[..], [Completion::Received(Some(_)), Completion::Checkpoint]), "{told:?}");
    }
}

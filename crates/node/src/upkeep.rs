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
use partition::extent_copy::{Copied, copy_runs_within, write_received};
use partition::outputs::Job;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use storage::data_folder::give_back;
use storage::extent::{extent_name, remove_extent, sync_extent_removals};
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

/// What upkeep leaves free on the disk, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoomLeft {
    /// With less than this, publishers are blocked. No copy that can wait takes any of it.
    pub free_min_bytes: u64,
    /// One file of the log: no message is copied into that room. It is the log's, for
    /// acknowledgements, and that of checkpoints.
    pub log_file_bytes: u64,
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
    left: RoomLeft,
    /// That something waits for room was said, and nothing found room since.
    is_told: bool,
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
        let (is_preparing, put_off, until, left, is_told) = (false, VecDeque::new(), None, RoomLeft::default(), false);
        Upkeep {
            disk,
            folder_id,
            wal,
            spares,
            checkpoints,
            open,
            next_extent,
            is_preparing,
            put_off,
            until,
            left,
            is_told,
        }
    }

    /// So much is left free on the disk; without it, nothing is.
    #[must_use]
    pub fn leaving(self, left: RoomLeft) -> Upkeep<D> {
        Upkeep { left, ..self }
    }

    /// Bytes that may be written if `leave` are to be left. Where the disk cannot say what is free, a
    /// write finds out.
    fn room(&self, leave: u64) -> u64 {
        self.disk.free_bytes().map_or(u64::MAX, |free| free.saturating_sub(leave))
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
        // Publishers are blocked, or about to be: the log grows slowly, and files that wait for it are room
        // that they wait for. They go on at a tenth more than the least.
        let RoomLeft { free_min_bytes, .. } = self.left;
        if self.room(free_min_bytes + free_min_bytes / 10) == 0 {
            self.spares.shed();
        }
        match self.spares.step() {
            Ok(Preparation::Worked) => Ok(true),
            Ok(Preparation::Idle) => Ok(false),
            Err(error) if error.is_full() => Ok(false),
            Err(error) => Err(UpkeepFailed { what: "a spare log file could not be made", error }),
        }
    }

    fn job(&mut self, job: Job, now: Duration, listener: &mut impl Listener) -> Result<(), UpkeepFailed> {
        match job {
            // A whole extent would be written in vain for every partition that wants one. What presses is
            // tried all the same: it may make room.
            Job::WriteExtent { partition, is_pressing: false, .. } if self.until.is_some() => {
                self.put_off.push_back(PutOff::Copy(partition));
            }
            Job::WriteExtent { partition, runs, is_pressing } => {
                let leave = if is_pressing { self.left.log_file_bytes } else { self.left.free_min_bytes };
                let (id, bytes_max) = (self.number_extent(), self.room(leave));
                match copy_runs_within((&self.disk, bytes_max), self.folder_id, &self.wal, id, &runs) {
                    Ok(copied) => {
                        self.is_told = false;
                        listener.tell(partition, Completion::Extent(copied), true);
                    }
                    Err(error) => {
                        self.put_off("an extent could not be written", error, PutOff::Copy(partition), now)?
                    }
                }
            }
            Job::SaveCheckpoint { partition, ref payload, replay_file, .. } => {
                let replay_from = WalPosition { file: FileNo(u64::from(replay_file)), offset: 0 };
                let mut saved = self.checkpoints.save(GroupId(partition.0), replay_from, payload);
                // Nothing can be given up without it, so it has what is kept for the next start.
                if saved.as_ref().is_err_and(StorageError::is_full) && self.give_back()? {
                    saved = self.checkpoints.save(GroupId(partition.0), replay_from, payload);
                }
                match saved {
                    Ok(_) => listener.tell(partition, Completion::Checkpoint, true),
                    Err(error) => self.put_off("a checkpoint could not be written", error, PutOff::Job(job), now)?,
                }
            }
            Job::WriteReceived { partition, ref messages } => {
                let bytes: u64 = messages.iter().map(|(_, _, body)| body.len() as u64).sum();
                let (id, room) = (self.number_extent(), self.room(self.left.log_file_bytes));
                let written = match room < bytes {
                    true => Err(StorageError::Full { file: extent_name(id), free_bytes: room }),
                    false => write_received(&self.disk, self.folder_id, id, messages),
                };
                match written {
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

    /// Gives the disk back what is kept for the next start; whether there was something.
    fn give_back(&self) -> Result<bool, UpkeepFailed> {
        match give_back(&*self.disk) {
            Err(error @ StorageError::SyncFailed { .. }) => {
                Err(UpkeepFailed { what: "the room that is kept for a start could not be given back", error })
            }
            given => Ok(given.unwrap_or(false)),
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
        let error = match error {
            // What is free, of which something may be left to the log.
            StorageError::Full { file, .. } => {
                StorageError::Full { file, free_bytes: self.disk.free_bytes().unwrap_or(0) }
            }
            error => return Err(UpkeepFailed { what, error }),
        };
        if !std::mem::replace(&mut self.is_told, true) {
            let limit_bytes = self.left.free_min_bytes;
            tracing::warn!(%error, limit_bytes, "{what}: it waits for room on the disk");
        }
        self.until.get_or_insert(now + FULL_RETRY);
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
    use partition::outputs::{CopyRun, Read, ReadAt, ReadBytes, ReadPurpose};
    use partition::place::Place;
    use storage::disk::Fault;
    use storage::extent::list_extents;
    use storage::{ExtentWriter, FaultyDisk, Record, RecordKind, WalOptions};

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

    /// An extent with a message of each of these queues, and the runs to copy it by.
    fn sparse(disk: &Arc<FaultyDisk>, queues: &[u64], bytes: usize) -> Vec<CopyRun> {
        let mut extent = ExtentWriter::create(disk, FOLDER, ExtentId(1)).expect("there is room");
        for queue in queues {
            extent.push(*queue, 1, &vec![1; bytes]).expect("there is room");
        }
        extent.finish().expect("there is room");
        let run = |(run, queue): (usize, &u64)| CopyRun {
            queue: QueueId(*queue),
            place: Place::Extent { id: 1, run: run as u32 },
            first: 1,
            count: 1,
            live: [(1, 1)].into_iter().collect(),
            joins: false,
        };
        queues.iter().enumerate().map(run).collect()
    }

    #[test]
    fn a_copy_leaves_what_publishers_are_blocked_for_and_one_that_presses_the_logs_next_file() {
        const KIB: u64 = 1 << 10;
        let disk = Arc::new(FaultyDisk::new(1));
        let runs = sparse(&disk, &[5, 6, 7], 100 << 10);
        let left = RoomLeft { free_min_bytes: 600 * KIB, log_file_bytes: 200 * KIB };
        let mut upkeep = upkeep(&disk).leaving(left);
        let (mut heard, now) = (Heard::default(), Duration::ZERO);
        let mut copy = |free: u64, is_pressing: bool| {
            disk.set_capacity(disk.used_bytes() + free);
            let job = Job::WriteExtent { partition: PARTITION, runs: runs.clone(), is_pressing };
            upkeep.begin(Task::Job(job), now, &mut heard).expect("little room is no failure");
            let is_free = disk.free_bytes().expect("it says so");
            let told = heard.0.pop();
            // Those that wait are told, so that the next one is tried.
            upkeep.go_on(true, FULL_RETRY * 2, &mut heard).expect("little room is no failure");
            heard.0.clear();
            let copied = told.map(|told| match told {
                Completion::Extent(Copied { ready: Some(ready), .. }) => ready.copied.len(),
                told => panic!("{told:?}"),
            });
            (copied, is_free)
        };
        assert_eq!(copy(650 * KIB, false), (None, 650 * KIB), "none fits");
        let (copied, is_free) = copy(850 * KIB, false);
        assert!(copied == Some(2) && is_free >= 600 * KIB, "what fits: {copied:?} {is_free}");
        let (copied, is_free) = copy(650 * KIB, true);
        assert!(copied == Some(3) && is_free >= 200 * KIB, "{copied:?} {is_free}");
        assert_eq!(copy(250 * KIB, true), (None, 250 * KIB), "that is the log's");
    }

    #[test]
    fn a_checkpoint_without_room_has_what_is_kept_for_the_next_start() {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut upkeep = upkeep(&disk);
        storage::data_folder::keep_reserve(&*disk).expect("there is room");
        disk.set_capacity(disk.used_bytes());
        let payload = vec![3; 100 << 10];
        let save = Job::SaveCheckpoint { partition: PARTITION, payload, applied: LogIndex(1), replay_file: 1 };
        let mut heard = Heard::default();
        upkeep.begin(Task::Job(save), Duration::ZERO, &mut heard).expect("a full disk is no failure");
        assert!(matches!(heard.0[..], [Completion::Checkpoint]), "{:?}", heard.0);
        assert!(upkeep.until.is_none());
    }

    #[test]
    fn files_that_wait_for_the_log_go_while_the_disk_has_little_room() {
        let disk = Arc::new(FaultyDisk::new(1));
        let options = WalOptions { file_bytes: 64 << 10, ..WalOptions::new(7) };
        let (mut wal, _) = storage::recover(&disk, FOLDER, options, FileNo(0), WalPosition::START, &mut |_, _| {})
            .expect("an empty log");
        let checkpoints = CheckpointStore::open(&disk, FOLDER).expect("no checkpoints");
        let left = RoomLeft { free_min_bytes: 1 << 20, log_file_bytes: 64 << 10 };
        let spares = wal.spare_preparer();
        let mut upkeep =
            Upkeep::new((disk.clone(), FOLDER), wal.reader(), spares, checkpoints, OpenExtents::default(), 2)
                .leaving(left);
        for index in 1..=5 {
            let (group, kind, body) = (GroupId(1), RecordKind::Entry, Bytes::from(vec![1; 40 << 10]));
            wal.append(&[Record { group, kind, term: 1, index, body, body_crc: None }], &mut Vec::new())
                .expect("there is room");
        }
        wal.sync().expect("nothing is wrong");
        wal.release_before(FileNo(5));
        let mut prepare = |free: u64| {
            disk.set_capacity(disk.used_bytes() + free);
            let mut heard = Heard::default();
            upkeep.begin(Task::PrepareSpares, Duration::ZERO, &mut heard).expect("nothing is wrong");
            while upkeep.patience(Duration::ZERO).is_some() {
                upkeep.go_on(true, Duration::ZERO, &mut heard).expect("nothing is wrong");
            }
            disk.list("wal").expect("a list").iter().filter(|name| name.ends_with(".wal")).count()
        };
        assert_eq!(prepare(2 << 20), 5, "there is room: they are written again");
        assert_eq!(prepare(1 << 20), 3, "until there is more than publishers are blocked for");
        assert_eq!(prepare(100 << 10), 2, "the log's, and its next one");
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
        job(&mut upkeep, Job::WriteExtent { partition: PARTITION, runs: Vec::new(), is_pressing: false }, &mut heard);
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

//! The threads of a node that touch its disk: log, reader, upkeep. They do what the server's threads do, in virtual time.
//!
//! Invariants: *synced* is told only after a sync that began after the write; an extent is synced before its partition
//! hears of it, and a checkpoint before its partition gives anything up; any error but a full disk stops the node.

use super::{Completion, Happening, Node, PowerLoss, RETAINED_BYTES_MAX, Running, StepOutput, deadline, is_vote_only};
use crate::bug::Bug;
use crate::schedule::{MS, Micros};
use partition::cold_read::carry_out;
use partition::extent_copy::{copy_runs, write_received};
use partition::outputs::{Job, Read, ReadFailed, ReadPurpose, SyncWish};
use partition::place::file_u32;
use storage::disk::Crash;
use storage::extent::{remove_extent, sync_extent_removals};
use storage::wal::Preparation;
use storage::{Extent, ExtentId, FileNo, GroupId, Location, Record, RecordKind, StorageError, WalPosition, WriteWay};

/// How long to wait before a write is tried again on a full disk.
const FULL_RETRY: Micros = 100 * MS;

impl Node {
    /// The log thread takes everything that waits: one write, and a sync behind it if one of them asked.
    pub(super) fn write(&mut self, out: &mut StepOutput) {
        let (now, bug) = (self.now, self.settings.bug);
        let r = self.up();
        assert!(r.wal_busy, "the log thread writes only after it took up work");
        let writes = std::mem::take(&mut r.waiting);
        let records: Vec<Record> = writes.iter().flat_map(|w| w.records.iter().cloned()).collect();
        let mut places = Vec::with_capacity(records.len());
        // As the server's log thread chooses, but for what its readers were busy with.
        let now_wanted = writes.iter().any(|w| w.sync == SyncWish::Now);
        let way = if now_wanted { WriteWay::Direct } else { WriteWay::Cached };
        match r.wal.append_by(way, &records, &mut places) {
            Ok(_) => {}
            Err(StorageError::Full { .. }) => {
                r.waiting.splice(0..0, writes);
                out.later.push((FULL_RETRY, Happening::Write));
                return;
            }
            Err(error) => return self.fail("the log could not be written", &error, out),
        }
        if self.power_loss == PowerLoss::AfterWrite {
            self.power_loss = PowerLoss::AtSync;
        }
        let (mut at, mut wake) = (0, false);
        for write in writes {
            let here = at..at + write.records.len();
            at = here.end;
            let bodies: Vec<Location> =
                here.clone().filter(|i| records[*i].kind == RecordKind::Entry).map(|i| places[i]).collect();
            let due = deadline(write.sync, now);
            let number = self.partition_number(write.partition);
            let r = self.up();
            r.completions[number].push(Completion::Written(write.ticket, bodies));
            let lie = match bug {
                Some(Bug::SyncIsALie) => true,
                Some(Bug::VoteIsNotSynced) => {
                    is_vote_only(&write.records) && !r.unsynced.contains_key(&write.partition)
                }
                _ => false,
            };
            if lie {
                r.completions[number].push(Completion::Synced(write.ticket));
                wake = true;
                continue;
            }
            r.sync_at = Some(r.sync_at.map_or(due, |at| at.min(due)));
            r.unsynced.insert(write.partition, write.ticket);
            wake |= write.report_written && due > now;
        }
        if wake {
            self.want_turn(out);
        }
        self.note_roll(out);
        self.next_log_work(out);
    }

    /// What the log thread does next: sync if that is due, else write what came meanwhile, else wait.
    fn next_log_work(&mut self, out: &mut StepOutput) {
        let (now, slowness) = (self.now, self.disk_slowness);
        let (sync_takes, write_takes) =
            (self.random.between(200, 3_000) * slowness, self.random.between(10, 80) * slowness);
        let r = self.up();
        match r.sync_at {
            Some(at) if at <= now => {
                r.wal_busy = true;
                out.later.push((sync_takes, Happening::Sync));
            }
            at => {
                r.wal_busy = !r.waiting.is_empty();
                if r.wal_busy {
                    out.later.push((write_takes, Happening::Write));
                }
                if let Some(at) = at {
                    out.later.push((at - now, Happening::SyncDue));
                }
            }
        }
    }

    pub(super) fn sync_due(&mut self, out: &mut StepOutput) {
        // A thread that is busy looks at the time itself when it is done.
        if !self.up().wal_busy && self.up().sync_at.is_some_and(|at| at <= self.now) {
            self.next_log_work(out);
        }
    }

    pub(super) fn sync(&mut self, out: &mut StepOutput) {
        if self.power_loss == PowerLoss::AtSync {
            self.disk.crash(Crash::Power);
        }
        if let Err(error) = self.up().wal.sync() {
            return self.fail("the log could not be synced", &error, out);
        }
        let r = self.up();
        r.sync_at = None;
        let synced = std::mem::take(&mut r.unsynced);
        for (partition, ticket) in &synced {
            let number = self.partition_number(*partition);
            self.up().completions[number].push(Completion::Synced(*ticket));
        }
        let r = self.up();
        if std::mem::replace(&mut r.durable_file, r.wal.durable_file()) != r.wal.durable_file() {
            r.look = true;
        }
        if !synced.is_empty() || self.up().look {
            self.want_turn(out);
        }
        self.next_log_work(out);
    }

    fn partition_number(&self, partition: broker::PartitionId) -> usize {
        self.settings.number_of(partition).expect("a partition of this node")
    }

    /// A new file was begun: partitions look whether they keep too much, and a spare is made for the next one.
    fn note_roll(&mut self, out: &mut StepOutput) {
        let r = self.up();
        let file = r.wal.position().file;
        if file == r.last_file {
            return;
        }
        r.last_file = file;
        r.note_retained();
        r.look = true;
        out.later.push((MS, Happening::Spare));
        self.want_turn(out);
    }

    pub(super) fn spare(&mut self, out: &mut StepOutput) {
        match self.up().spares.step() {
            Ok(Preparation::Worked) => out.later.push((self.random.between(1, 5) * MS, Happening::Spare)),
            Ok(Preparation::Idle) => {}
            Err(error) if error.is_full() => {}
            Err(error) => self.fail("a spare log file could not be made", &error, out),
        }
    }

    pub(super) fn read(&mut self, read: Read, out: &mut StepOutput) {
        let disk = self.disk.clone();
        let (number, bug) = (self.partition_number(read.partition), self.settings.bug);
        let r = self.up();
        r.reading -= 1;
        let mut opened = None;
        // Given up because its messages moved: the partition knows where they are now, and says so if they should be there.
        let found = carry_out(&read, &*disk, &r.wal.reader(), |id| {
            Extent::open(&*disk, id).map(|extent| &*opened.insert(extent))
        });
        let is_claimed = bug == Some(Bug::LossIsClaimed) && matches!(read.purpose, ReadPurpose::Repair { .. });
        let found = if is_claimed { Err(ReadFailed::Damaged("so it says".to_owned())) } else { found };
        let is_hidden = bug == Some(Bug::LostEntryIsHidden) && matches!(read.purpose, ReadPurpose::Entries { .. });
        let found = match found {
            Err(ReadFailed::Damaged(why)) if is_hidden => Err(ReadFailed::Refused(why)),
            found => found,
        };
        r.completions[number].push(Completion::Read(read.purpose, found));
        self.want_turn(out);
    }

    pub(super) fn job(&mut self, out: &mut StepOutput) {
        let (disk, folder_id, bug) = (self.disk.clone(), self.folder_id(), self.settings.bug);
        let slowness = self.disk_slowness;
        let takes = self.random.between(500, 20_000) * slowness;
        let r = self.up();
        let done = match r.jobs.front().expect("the upkeep thread has a job") {
            Job::WriteExtent { partition, runs } => {
                let id = ExtentId(u64::from(r.next_extent));
                r.next_extent += 1;
                let copied = copy_runs(&disk, folder_id, &r.wal.reader(), id, runs);
                copied.map(|copied| Some((*partition, Completion::Extent(copied))))
            }
            Job::SaveCheckpoint { partition, payload, replay_file, .. } => {
                let replay_from = WalPosition { file: FileNo(u64::from(*replay_file)), offset: 0 };
                let saved = r.checkpoints.save(GroupId(partition.0), replay_from, payload);
                saved.map(|_| Some((*partition, Completion::Checkpoint)))
            }
            Job::WriteReceived { partition, messages } => {
                let id = ExtentId(u64::from(r.next_extent));
                r.next_extent += 1;
                let written = write_received(&disk, folder_id, id, messages);
                written.map(|ready| Some((*partition, Completion::Received(ready))))
            }
            Job::DropExtent { .. } if bug == Some(Bug::SpaceIsKept) => Ok(None),
            Job::DropExtent { id } => {
                let removed = remove_extent(&*disk, ExtentId(u64::from(*id)));
                removed.and_then(|()| sync_extent_removals(&*disk)).map(|()| None)
            }
        };
        match done {
            Ok(completion) => {
                r.jobs.pop_front();
                if let Some((partition, completion)) = completion {
                    let number = self.partition_number(partition);
                    self.up().completions[number].push(completion);
                    self.want_turn(out);
                }
            }
            Err(error) if error.is_full() => {}
            Err(error) => return self.fail("upkeep failed", &error, out),
        }
        if !self.up().jobs.is_empty() {
            out.later.push((takes, Happening::Job));
        }
    }

    /// The server ends at once on an error like this; so does the node.
    fn fail(&mut self, what: &str, error: &StorageError, out: &mut StepOutput) {
        out.stopped = Some(format!("{what}: {error}"));
    }
}

impl Running {
    /// The file of the log that partitions are told of: the newest of which something is durable.
    pub(super) fn told_file(&self) -> FileNo {
        match self.bug {
            Some(Bug::RollIsHasty) => self.wal.position().file,
            _ => self.wal.durable_file(),
        }
    }

    /// Up to which file the log is to be given up, because too much of it is kept.
    pub(super) fn note_retained(&mut self) {
        let closed: Vec<_> = self.wal.closed_files().collect();
        let mut over = closed.iter().map(|c| c.1).sum::<u64>().saturating_sub(RETAINED_BYTES_MAX);
        self.retire_through = 0;
        for (file, bytes) in closed {
            if over == 0 {
                break;
            }
            self.retire_through = file_u32(file);
            over = over.saturating_sub(bytes);
        }
    }
}

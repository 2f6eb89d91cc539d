//! What a node's folder says of the memory of its members: which groups may have forgotten what they
//! wrote last.
//!
//! Invariants: a group counts as whole only once its member said so. Nothing is noted any more after a
//! sync of the log failed. What is noted counts for the next process of this boot of the machine; for
//! another boot all is in doubt, unless the folder was closed.

use broker::PartitionId;
use std::collections::BTreeSet;
use std::sync::Arc;
use storage::{Disk, Life, StorageError, doubt_log};

/// See the module.
#[derive(Debug)]
pub struct Memory<D: Disk> {
    disk: Arc<D>,
    /// As it is on the disk.
    life: Life,
    /// Those that may have forgotten something, as of now.
    in_doubt: BTreeSet<u32>,
    is_lost: bool,
}

impl<D: Disk> Memory<D> {
    /// Of a life that just began, over a folder with these groups.
    pub fn new(disk: Arc<D>, life: Life, groups: impl IntoIterator<Item = PartitionId>) -> Memory<D> {
        let groups = groups.into_iter().map(|group| group.0);
        let in_doubt = groups.filter(|group| life.forgot().contains(*group)).collect();
        Memory { disk, life, in_doubt, is_lost: false }
    }

    /// The life, for who notes by himself what is known of it.
    pub fn into_life(self) -> Life {
        self.life
    }

    /// The member of a group has all that it may have forgotten. True if that was not known.
    pub(crate) fn is_whole(&mut self, group: PartitionId) -> bool {
        self.in_doubt.remove(&group.0)
    }

    /// Writes down what is known, if that is not there yet.
    ///
    /// - Errors: nothing is lost by it, the next process is in doubt as this one was.
    pub(crate) fn note(&mut self) -> Result<(), StorageError> {
        match self.is_lost {
            true => Ok(()),
            false => self.life.note_forgot(&*self.disk, &self.in_doubt),
        }
    }

    /// A sync of the log failed: what the next process reads may never reach the disk.
    pub(crate) fn is_lost(&mut self) {
        self.is_lost = true;
        doubt_log(&*self.disk);
    }

    /// The process ends by its own will, with everything synced.
    pub(crate) fn close(&mut self) -> Result<(), StorageError> {
        match self.is_lost {
            true => Ok(()),
            false => self.note().and_then(|()| self.life.close(&*self.disk)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::completions::Completion;
    use crate::log_writer::{Listener, LogWriter};
    use bytes::Bytes;
    use partition::outputs::{SyncWish, Ticket, WalWrite};
    use std::time::Duration;
    use storage::disk::Fault;
    use storage::{DataFolder, FaultyDisk, FileNo, FolderIdentity, Forgot, GroupId, Record, RecordKind};
    use storage::{WalOptions, WalPosition};

    const FOLDER: u128 = 7;
    const LONG: Duration = Duration::from_secs(5);

    struct Deaf;
    impl Listener for Deaf {
        fn tell(&mut self, _: PartitionId, _: Completion, _: bool) {}
    }

    /// A life in this boot of the machine: how it begins.
    fn begin(disk: &Arc<FaultyDisk>, boot: u128) -> Life {
        let founding = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: FOLDER };
        DataFolder::open(disk.clone(), founding, 1).unwrap().begin_life(boot).unwrap()
    }

    /// The writer of a node with the groups 1 to 3, in a life of this boot.
    fn writer(disk: &Arc<FaultyDisk>, boot: u128) -> LogWriter<FaultyDisk> {
        let groups = [1, 2, 3].map(PartitionId);
        let memory = Memory::new(disk.clone(), begin(disk, boot), groups);
        let start = WalPosition::START;
        let (wal, _) = storage::recover(disk, FOLDER, WalOptions::new(7), FileNo(0), start, &mut |_, _| {}).unwrap();
        LogWriter::new(wal, groups.into(), 1 << 30, Arc::default()).with_memory(Some(memory))
    }

    fn write(writer: &mut LogWriter<FaultyDisk>) {
        let (group, kind, body) = (GroupId(1), RecordKind::Entry, Bytes::from_static(b"one"));
        let records = vec![Record { group, kind, term: 1, index: 1, body, body_crc: None }];
        let (partition, ticket, sync) = (PartitionId(1), Ticket(1), SyncWish::Now);
        let mut batch = Batch::default();
        let mut writes = vec![WalWrite { partition, ticket, records, sync, report_written: false }];
        batch.add(&mut writes, Duration::ZERO, LONG);
        writer.write(&mut batch, Duration::ZERO, &mut Deaf).unwrap();
    }

    fn some(groups: &[u32]) -> Forgot {
        Forgot::Groups(groups.iter().copied().collect())
    }

    #[test]
    fn who_has_caught_up_is_not_in_doubt_in_the_next_process() {
        let disk = Arc::new(FaultyDisk::new(1));
        begin(&disk, 1);
        let mut first = writer(&disk, 2);
        first.remember(&mut vec![PartitionId(1), PartitionId(3)], Duration::ZERO);
        let due = first.due().expect("it is to be written down, though nobody writes");
        assert!(!first.note(due / 2, false).unwrap(), "not for each of them");
        first.note(due, false).unwrap();
        assert_eq!(first.due(), None);
        let operations = disk.operations();
        first.remember(&mut vec![PartitionId(1)], due);
        assert_eq!((first.due(), disk.operations()), (None, operations), "once");
        let mut second = writer(&disk, 2);
        second.remember(&mut vec![PartitionId(2)], Duration::ZERO);
        second.note(LONG, false).unwrap();
        assert_eq!(begin(&disk, 2).forgot(), &some(&[]));
        assert_eq!(begin(&disk, 3).forgot(), &Forgot::Everything, "of another boot nothing is known");
    }

    #[test]
    fn a_node_that_ends_by_its_own_will_is_not_in_doubt_after_another_boot() {
        let disk = Arc::new(FaultyDisk::new(1));
        begin(&disk, 1);
        let mut last = writer(&disk, 2);
        write(&mut last);
        last.remember(&mut vec![PartitionId(1), PartitionId(2)], Duration::ZERO);
        assert!(!last.note(LONG, true).unwrap(), "what is not synced could be missing");
        last.sync(&mut Deaf).unwrap();
        last.note(LONG, true).unwrap();
        assert_eq!(begin(&disk, 3).forgot(), &some(&[3]), "who had not caught up has not");
    }

    #[test]
    fn after_a_sync_that_failed_nothing_is_known_whatever_is_said_then() {
        let disk = Arc::new(FaultyDisk::new(1));
        let mut writer = writer(&disk, 1);
        write(&mut writer);
        disk.schedule(disk.operations(), Fault::SyncError);
        writer.sync(&mut Deaf).expect_err("it fails");
        writer.remember(&mut [1, 2, 3].map(PartitionId).to_vec(), Duration::ZERO);
        let _ = writer.note(LONG, true);
        assert_eq!(begin(&disk, 1).forgot(), &Forgot::Everything);
    }

    #[test]
    fn what_found_no_room_is_noted_later() {
        let disk = Arc::new(FaultyDisk::new(1));
        begin(&disk, 1);
        let mut writer = writer(&disk, 2);
        writer.remember(&mut [1, 2, 3].map(PartitionId).to_vec(), Duration::ZERO);
        let due = writer.due().unwrap();
        disk.set_capacity(disk.used_bytes());
        writer.note(due, false).expect_err("there is no room");
        disk.set_capacity(u64::MAX);
        let again = writer.due().expect("it is tried again");
        assert!(again > due);
        writer.note(again, false).unwrap();
        assert_eq!(begin(&disk, 2).forgot(), &some(&[]));
    }
}

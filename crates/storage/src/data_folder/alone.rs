//! The file `alone`: the other nodes of a cluster are given up, and the folder is on its way to being that of a
//! cluster of one. It is there from before the first step until after the last one.
//!
//! ```text
//! alone
//!   leveret alone
//!   format 1
//!   cluster 0123...ef (32 digits)   what the cluster is called from then on
//!   before 0123...ef (32 digits)    what it was called; 0 where nothing says so any more
//!   empty 5 7                       the partitions that begin anew, or none
//!   check 89abcdef (CRC-32C of the lines before)
//! ```
//!
//! Invariant: no broker opens a folder with this file: some of its groups may have this node as their only
//! member already, and others not. Whoever takes the steps again after a crash takes the same ones.

use crate::crc32c;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::cluster::{CLUSTER_FILE, ClusterRecord, Founder, WENT_ON_MAX, read_cluster_record};
use super::{
    DataFolder, FOLDER_FORMAT_VERSION, IDENTITY_NAME, line_of, node, note_holder, read_identity, read_text,
    replace_text, seal_text, take_lock,
};
use crate::disk::Disk;
use crate::error::{StorageError, at, syncing};

/// The file.
pub const ALONE_FILE: &str = "alone";
const FIRST_LINE: &str = "leveret alone";
const FORMAT_VERSION: u32 = 1;
/// Six lines, one of which names each partition at most once.
const BYTES_MAX: usize = 1 << 20;

/// What becomes of a cluster of which one node goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AloneRecord {
    /// The number of the cluster from then on, which no other one has.
    pub cluster: u128,
    /// The number that it had; 0 where the file that said so is lost.
    pub before: u128,
    /// The partitions of which the node has nothing: they begin anew.
    pub empty: BTreeSet<u32>,
}

impl AloneRecord {
    fn encode(&self) -> String {
        let AloneRecord { cluster, before, empty } = self;
        let empty: Vec<String> = empty.iter().map(u32::to_string).collect();
        let empty = if empty.is_empty() { "none".to_owned() } else { empty.join(" ") };
        seal_text(format!(
            "{FIRST_LINE}\nformat {FORMAT_VERSION}\ncluster {cluster:032x}\nbefore {before:032x}\nempty {empty}\n"
        ))
    }

    /// The record in these bytes. Only what [`AloneRecord::encode`] writes is one, to the byte.
    fn decode(contents: &[u8]) -> Result<AloneRecord, StorageError> {
        let text = String::from_utf8_lossy(contents);
        let version = line_of(&text, 1, "format ").and_then(|version| version.parse().ok());
        if let Some(found) = version.filter(|version| *version != FORMAT_VERSION) {
            let (file, supported) = (ALONE_FILE.to_owned(), FORMAT_VERSION);
            return Err(StorageError::OtherVersion { file, found, supported });
        }
        let number = |line, key| line_of(&text, line, key).and_then(|digits| u128::from_str_radix(digits, 16).ok());
        let empty = match line_of(&text, 4, "empty ") {
            Some("none") => Some(BTreeSet::new()),
            Some(numbers) => numbers.split(' ').map(|number| number.parse().ok()).collect(),
            None => None,
        };
        let record = number(2, "cluster ").zip(number(3, "before ")).zip(empty);
        let record = record.map(|((cluster, before), empty)| AloneRecord { cluster, before, empty });
        record.filter(|record| record.encode().as_bytes() == contents).ok_or_else(|| {
            let hashed = text.rfind("check ").map_or(0, |end| crc32c::crc32c(&text.as_bytes()[..end]));
            let (file, what) = (ALONE_FILE.to_owned(), "checksum of the lines");
            StorageError::Corrupt { file, offset: 0, what, expected: u64::from(hashed), found: 0 }
        })
    }
}

/// Whether the folder is on its way; what the file says is not looked at.
pub(super) fn is_begun<D: Disk>(disk: &D) -> Result<bool, StorageError> {
    read_bytes(disk).map(|bytes| bytes.is_some())
}

fn read_bytes<D: Disk>(disk: &D) -> Result<Option<Vec<u8>>, StorageError> {
    read_text(disk, ALONE_FILE, BYTES_MAX)
}

impl<D: Disk> DataFolder<D> {
    /// Opens the folder of whichever node it is, also one that is on its way to being alone, and takes its lock.
    /// No start is counted, and nothing in it changes but the file of the lock. Errors: there is none, another
    /// process has it, what says whose it is cannot be read.
    pub fn open_as_it_is(disk: Arc<D>, process_id: u32) -> Result<DataFolder<D>, StorageError> {
        let folder = disk.describe();
        let told = |error: StorageError| match error.is_damage() {
            true => StorageError::IdentityDamaged { folder: folder.clone(), why: error.to_string() },
            false => error,
        };
        let identity = read_identity(&*disk).map_err(told)?;
        let Some((identity, version)) = identity else { return Err(StorageError::IdentityGone { folder }) };
        if version != FOLDER_FORMAT_VERSION {
            let (file, supported) = (IDENTITY_NAME.to_owned(), FOLDER_FORMAT_VERSION);
            return Err(StorageError::OtherVersion { file, found: version, supported });
        }
        let (lock, folder_lock) = take_lock(&*disk, &folder)?;
        note_holder(&lock, process_id)?;
        let Some(node) = node::read(&*disk).map_err(told)? else { return Err(StorageError::NodeFileGone { folder }) };
        let (founded, is_new_member, was_short) = (false, false, false);
        Ok(DataFolder {
            disk,
            identity,
            node,
            founded,
            is_new_member,
            was_short,
            _lock: lock,
            _folder_lock: folder_lock,
        })
    }

    /// Whether it is on its way to being alone.
    pub fn is_going_alone(&self) -> Result<bool, StorageError> {
        is_begun(&*self.disk)
    }

    /// What is to become of it, if it is on its way to being alone. A file that is damaged is one that says nothing
    /// ([`StorageError::Corrupt`]): no node has heard of the number that it had, so the way may go on to another one.
    pub fn alone_record(&self) -> Result<Option<AloneRecord>, StorageError> {
        read_bytes(&*self.disk)?.map(|bytes| AloneRecord::decode(&bytes)).transpose()
    }

    /// The number of the cluster that its node is of; `None` where no file says so. Errors: the file is damaged.
    pub fn cluster_number(&self) -> Result<Option<u128>, StorageError> {
        Ok(self.cluster_record()?.map(|record| record.joined.unwrap_or(self.identity.cluster_id)))
    }

    /// No broker opens it any more before [`DataFolder::end_going_alone`]. Returns when that is durable. What was
    /// begun before may have named fewer partitions, or is damaged.
    ///
    /// # Panics
    /// If it is to be another cluster than was begun before.
    pub fn begin_going_alone(&self, record: &AloneRecord) -> Result<(), StorageError> {
        let begun = match self.alone_record() {
            Err(StorageError::Corrupt { .. }) => None,
            read => read?,
        };
        if begun.as_ref() == Some(record) {
            return Ok(());
        }
        assert!(begun.is_none_or(|begun| begun.cluster == record.cluster), "what was begun is ended first");
        replace_text(&*self.disk, ALONE_FILE, &record.encode())
    }

    /// The folder is that of the only node of a cluster with the number that `record` says, at this address. All
    /// else of it was made so before. Returns when it is durable, and brokers open it again. Of a file that is lost
    /// nothing is taken over: there are so many `partitions` then.
    pub fn end_going_alone(&self, record: &AloneRecord, address: &str, partitions: u32) -> Result<(), StorageError> {
        let known = match read_cluster_record(&*self.disk) {
            Err(error) if error.is_damage() => None,
            read => read?,
        };
        let is_done = known.as_ref().is_some_and(|known| known.joined == Some(record.cluster));
        let (partitions, mut before) = known.map_or((partitions, Vec::new()), |known| (known.partitions, known.before));
        if !is_done && record.before != 0 {
            before.push(record.before);
        }
        before.drain(..before.len().saturating_sub(WENT_ON_MAX));
        let own = Founder { number: self.node.id, folder_id: self.identity.folder_id, address: address.to_owned() };
        let (joined, founders) = (Some(record.cluster), vec![own]);
        let alone = ClusterRecord { joined, partitions, founders, before };
        replace_text(&*self.disk, CLUSTER_FILE, &alone.encode())?;
        self.disk.remove(ALONE_FILE).map_err(at("remove", ALONE_FILE))?;
        self.disk.sync_folder("").map_err(syncing(ALONE_FILE))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::data_folder::FolderIdentity;
    use crate::disk::{Crash, Fault, FaultyDisk};

    const RECORD: AloneRecord = AloneRecord { cluster: 8, before: 7, empty: BTreeSet::new() };

    /// The folder of node 2 of three that founded cluster 7.
    fn folder_of_a_member(disk: &Arc<FaultyDisk>) -> DataFolder<FaultyDisk> {
        let founder = |number| Founder { number, folder_id: u128::from(number), address: format!("host{number}:1") };
        let (joined, partitions, before) = (None, 4, Vec::new());
        let record = ClusterRecord { joined, partitions, founders: (1..=3).map(founder).collect(), before };
        let mut folder = join(disk).unwrap();
        folder.store_cluster_record(&record).unwrap();
        folder.become_member(2).unwrap();
        folder
    }

    fn join(disk: &Arc<FaultyDisk>) -> Result<DataFolder<FaultyDisk>, StorageError> {
        let identity = FolderIdentity { node_name: "b@host".to_owned(), cluster_id: 7, folder_id: 2 };
        DataFolder::join(disk.clone(), identity, 1)
    }

    #[test]
    fn what_is_begun_is_read_as_it_was_written_and_nothing_else_is_one() {
        for empty in [vec![], vec![5, 7]] {
            let record = AloneRecord { empty: empty.into_iter().collect(), ..RECORD };
            let text = record.encode();
            assert_eq!(AloneRecord::decode(text.as_bytes()).unwrap(), record);
            for at in 0..text.len() {
                let mut other = text.as_bytes().to_vec();
                other[at] ^= 1;
                assert!(AloneRecord::decode(&other).is_err(), "byte {at}");
                assert!(AloneRecord::decode(&text.as_bytes()[..at]).is_err(), "{at} bytes");
            }
        }
    }

    #[test]
    fn no_broker_opens_a_folder_that_is_on_its_way_wherever_a_crash_fell() {
        for crash in [Crash::Power, Crash::Process] {
            let mut is_done = false;
            for at in 0.. {
                let disk = Arc::new(FaultyDisk::new(at));
                drop(folder_of_a_member(&disk));
                let folder = DataFolder::open_as_it_is(disk.clone(), 1).unwrap();
                folder.begin_going_alone(&RECORD).unwrap();
                disk.schedule(disk.operations() + at, Fault::Crash(crash));
                is_done |= folder.end_going_alone(&RECORD, "host2:1", 4).is_ok() && disk.down().is_none();
                drop(folder);
                if disk.down().is_none() {
                    disk.crash(crash);
                }
                disk.clear_faults();
                disk.restart();
                match join(&disk) {
                    Err(error) => {
                        assert!(matches!(error, StorageError::GoingAlone { .. }), "{error}");
                        assert!(!is_done, "{crash:?} at operation {at}");
                        let folder = DataFolder::open_as_it_is(disk.clone(), 1).unwrap();
                        assert_eq!(folder.alone_record().unwrap(), Some(RECORD));
                        folder.begin_going_alone(&RECORD).unwrap();
                        folder.end_going_alone(&RECORD, "host2:1", 4).unwrap();
                    }
                    Ok(folder) => drop(folder),
                }
                let folder = join(&disk).unwrap();
                let record = folder.cluster_record().unwrap().unwrap();
                assert_eq!((record.joined, &record.before[..]), (Some(8), &[7][..]), "{crash:?} at operation {at}");
                assert_eq!(record.founders.len(), 1);
                assert_eq!((record.founders[0].number, record.founders[0].folder_id), (2, 2));
                assert_eq!(folder.cluster_number().unwrap(), Some(8));
                if is_done {
                    assert!(at > 3, "there are several steps");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_folder_that_is_opened_as_it_is_stays_so() {
        let disk = Arc::new(FaultyDisk::new(1));
        drop(folder_of_a_member(&disk));
        let node = disk.contents("node");
        let folder = DataFolder::open_as_it_is(disk.clone(), 1).unwrap();
        assert_eq!((folder.node().id, folder.identity().cluster_id), (2, 7));
        assert!(matches!(join(&disk), Err(StorageError::Locked { .. })), "one process at a time");
        drop(folder);
        assert_eq!(disk.contents("node"), node, "no start was counted");
        let nothing = Arc::new(FaultyDisk::new(1));
        assert!(matches!(DataFolder::open_as_it_is(nothing, 1), Err(StorageError::IdentityGone { .. })));
    }
}

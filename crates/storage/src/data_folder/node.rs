//! Which node of its cluster a data folder is, how far it has come, and how often it was started.
//!
//! ```text
//! node
//!   leveret node
//!   format 1
//!   id 1                            its number in the cluster, given once and to no other node; 0: it has none yet
//!   state member                    founding, joining or member
//!   start 12                        counts the starts of a process over this folder
//!   check 89abcdef (CRC-32C of the lines before)
//! ```
//!
//! Invariant: the file is durable before the identity that makes the folder a data folder. So a
//! folder with an identity always says whether its node may found groups, and one that is to join a
//! cluster never founds any, whatever crashes on the way. A start is counted durably before
//! anything else happens in it: a number of a start is never used twice.

use super::{DataFolder, line_of, read_text, replace_text, seal_text};
use crate::crc32c;
use crate::disk::Disk;
use crate::error::StorageError;

/// The file.
pub const NODE_FILE: &str = "node";
const FIRST_LINE: &str = "leveret node";
const FORMAT_VERSION: u32 = 1;
/// Six short lines.
pub(super) const BYTES_MAX: usize = 1024;

/// How far a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It founds its cluster: groups of which nothing is there yet begin here, with this node as
    /// their only member.
    Founding,
    /// It waits for a cluster to take it in. It founds nothing.
    Joining,
    /// What it is a member of is on its disk, or is sent to it.
    Member,
}

impl NodeState {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Founding => "founding",
            Self::Joining => "joining",
            Self::Member => "member",
        }
    }

    fn of_name(name: &str) -> Option<NodeState> {
        [Self::Founding, Self::Joining, Self::Member].into_iter().find(|state| state.name() == name)
    }
}

/// What a folder says of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its number in the cluster. It is never given to another node, nor to this one after its disk
    /// was lost. 0: none yet.
    pub id: u32,
    /// How far it has come.
    pub state: NodeState,
    /// Which start this is, from 1 on: no other start of this node has the number.
    pub start: u32,
}

impl NodeRecord {
    /// The number of the node that founds a cluster. Others get theirs from the cluster.
    pub const FOUNDER: u32 = 1;

    /// Of a folder in which no process has run yet, or only those of builds that founded always and
    /// kept no such file.
    pub(super) const UNSTARTED: NodeRecord = NodeRecord { id: Self::FOUNDER, state: NodeState::Founding, start: 0 };

    /// One more start.
    pub(super) fn started(self) -> Result<NodeRecord, StorageError> {
        let used_up = || corrupt("number of a start", u32::MAX - 1, self.start);
        Ok(NodeRecord { start: self.start.checked_add(1).ok_or_else(used_up)?, ..self })
    }
}

impl<D: Disk> DataFolder<D> {
    /// What the folder says of its node, with this start counted.
    pub fn node(&self) -> NodeRecord {
        self.node
    }

    /// Notes that the node has become a member, with the number that it has in its cluster: all
    /// that it founded is durable, or a cluster has taken it in. Writes nothing if that was noted
    /// before.
    ///
    /// A number other than the one that it has, or none, is a caller's bug and panics.
    pub fn become_member(&mut self, id: u32) -> Result<(), StorageError> {
        let NodeRecord { id: own, state, .. } = self.node;
        assert!(id != 0 && (own == id || state == NodeState::Joining), "node {own} does not become node {id}");
        if state != NodeState::Member {
            let member = NodeRecord { id, state: NodeState::Member, ..self.node };
            write(&*self.disk, &member)?;
            (self.node, self.is_new_member) = (member, true);
        }
        Ok(())
    }
}

/// What a folder says of its node; `None` if it has no such file. Changes nothing.
pub(crate) fn read<D: Disk>(disk: &D) -> Result<Option<NodeRecord>, StorageError> {
    read_bytes(disk)?.map(|contents| decode(&contents)).transpose()
}

pub(super) fn read_bytes<D: Disk>(disk: &D) -> Result<Option<Vec<u8>>, StorageError> {
    read_text(disk, NODE_FILE, BYTES_MAX)
}

/// Returns when the record is durable.
pub(super) fn write<D: Disk>(disk: &D, record: &NodeRecord) -> Result<(), StorageError> {
    replace_text(disk, NODE_FILE, &encode(record))
}

fn encode(record: &NodeRecord) -> String {
    let NodeRecord { id, state, start } = record;
    let state = state.name();
    seal_text(format!("{FIRST_LINE}\nformat {FORMAT_VERSION}\nid {id}\nstate {state}\nstart {start}\n"))
}

/// The record in these bytes. Only what [`encode`] writes is one, to the byte.
pub(crate) fn decode(contents: &[u8]) -> Result<NodeRecord, StorageError> {
    let text = String::from_utf8_lossy(contents);
    // The version comes before the checksum: another version may have other lines.
    let version = line_of(&text, 1, "format ").and_then(|version| version.parse().ok());
    if let Some(found) =
        version.filter(|version| *version != FORMAT_VERSION && line_of(&text, 0, FIRST_LINE) == Some(""))
    {
        let (file, supported) = (NODE_FILE.to_owned(), FORMAT_VERSION);
        return Err(StorageError::OtherVersion { file, found, supported });
    }
    let record = lines(&text);
    record.filter(|record| encode(record).as_bytes() == contents).ok_or_else(|| {
        let count = text.lines().count();
        if count != 6 {
            return corrupt("count of its lines", 6, count as u32);
        }
        let hashed = text.rfind("check ").map_or(0, |at| crc32c::crc32c(&text.as_bytes()[..at]));
        let stored = line_of(&text, 5, "check ").and_then(|digits| u32::from_str_radix(digits, 16).ok());
        corrupt("checksum of the lines", hashed, stored.unwrap_or(0))
    })
}

/// The record as the lines have it, whatever their checksum.
pub(super) fn lines(text: &str) -> Option<NodeRecord> {
    let id = line_of(text, 2, "id ").and_then(|id| id.parse().ok());
    let state = line_of(text, 3, "state ").and_then(NodeState::of_name);
    let start = line_of(text, 4, "start ").and_then(|start| start.parse().ok());
    Some(NodeRecord { id: id?, state: state?, start: start? })
}

fn corrupt(what: &'static str, expected: u32, found: u32) -> StorageError {
    let (expected, found) = (u64::from(expected), u64::from(found));
    StorageError::Corrupt { file: NODE_FILE.to_owned(), offset: 0, what, expected, found }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::data_folder::FolderIdentity;
    use crate::disk::{Crash, Fault, FaultyDisk, SurvivalUnit};
    use std::sync::Arc;

    fn identity(folder_id: u128) -> FolderIdentity {
        FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id }
    }

    fn open(disk: &Arc<FaultyDisk>) -> DataFolder<FaultyDisk> {
        DataFolder::open(disk.clone(), identity(2), 1).unwrap()
    }

    fn join(disk: &Arc<FaultyDisk>) -> DataFolder<FaultyDisk> {
        DataFolder::join(disk.clone(), identity(2), 1).unwrap()
    }

    fn record(id: u32, state: NodeState, start: u32) -> NodeRecord {
        NodeRecord { id, state, start }
    }

    #[test]
    fn a_founder_founds_until_all_is_there_and_each_start_has_a_number_of_its_own() {
        let disk = Arc::new(FaultyDisk::new(1));
        assert_eq!(open(&disk).node(), record(1, NodeState::Founding, 1));
        let mut folder = open(&disk);
        assert_eq!(folder.node(), record(1, NodeState::Founding, 2), "it died before it was done");
        folder.become_member(1).unwrap();
        let operations = disk.operations();
        folder.become_member(1).unwrap();
        assert_eq!(disk.operations(), operations, "known already");
        drop(folder);
        assert_eq!(open(&disk).node(), record(1, NodeState::Member, 3));
    }

    #[test]
    fn a_node_that_joins_founds_nothing_however_it_is_started_and_keeps_the_number_that_it_is_given() {
        let disk = Arc::new(FaultyDisk::new(1));
        assert_eq!(join(&disk).node(), record(0, NodeState::Joining, 1));
        assert_eq!(open(&disk).node(), record(0, NodeState::Joining, 2), "though nobody said join");
        let mut folder = join(&disk);
        folder.become_member(7).unwrap();
        drop(folder);
        assert_eq!(open(&disk).node(), record(7, NodeState::Member, 4));
    }

    #[test]
    fn a_folder_of_another_cluster_joins_none() {
        let disk = Arc::new(FaultyDisk::new(1));
        drop(open(&disk));
        let other = FolderIdentity { cluster_id: 9, ..identity(3) };
        let error = DataFolder::join(disk.clone(), other, 1).err().unwrap();
        assert!(matches!(error, StorageError::OtherCluster { .. }), "{error}");
        assert_eq!(join(&disk).node(), record(1, NodeState::Founding, 2), "a refused start is none");
    }

    #[test]
    fn a_folder_that_no_cluster_has_taken_in_may_come_to_another_and_one_that_is_taken_in_may_not() {
        let disk = Arc::new(FaultyDisk::new(1));
        drop(join(&disk));
        let other = || FolderIdentity { cluster_id: 9, node_name: "b@host".to_owned(), ..identity(3) };
        let mut folder = DataFolder::join(disk.clone(), other(), 1).unwrap();
        assert_eq!(folder.identity().node_name, "b@host");
        let identity_of = |folder: &DataFolder<FaultyDisk>| (folder.identity().cluster_id, folder.identity().folder_id);
        assert_eq!(identity_of(&folder), (9, 2), "the one before would know it again");
        folder.become_member(7).unwrap();
        drop(folder);
        let same_name = FolderIdentity { cluster_id: 1, ..other() };
        let error = DataFolder::join(disk.clone(), same_name, 1).err().unwrap();
        assert!(matches!(error, StorageError::OtherCluster { .. }), "{error}");
        let error = DataFolder::join(disk.clone(), identity(2), 1).err().unwrap();
        assert!(matches!(error, StorageError::OtherNode { .. }), "{error}");
        assert_eq!(identity_of(&DataFolder::join(disk.clone(), other(), 1).unwrap()), (9, 2));
    }

    #[test]
    fn a_folder_that_is_given_up_counts_as_empty_wherever_a_crash_fell() {
        for crash in [Crash::Power, Crash::Process] {
            let mut is_done = false;
            for at in 0.. {
                let disk = Arc::new(FaultyDisk::new(at));
                let folder = join(&disk);
                disk.schedule(disk.operations() + at, Fault::Crash(crash));
                is_done |= folder.abandon().is_ok() && disk.down().is_none();
                drop(folder);
                let was_down = disk.down().is_some();
                disk.clear_faults();
                if was_down {
                    disk.restart();
                }
                let is_there = disk.contents("identity").is_some();
                let next = open(&disk).node();
                let expected =
                    if is_there { record(0, NodeState::Joining, 2) } else { record(1, NodeState::Founding, 1) };
                assert_eq!(next, expected, "{crash:?} at operation {at}");
                if is_done {
                    assert!(!is_there && at > 3, "there are several steps");
                    break;
                }
            }
        }
    }

    #[test]
    fn a_folder_with_a_format_2_identity_is_not_taken_for_an_earlier_builds_when_the_file_is_gone() {
        let disk = Arc::new(FaultyDisk::new(1));
        drop(join(&disk));
        disk.remove(NODE_FILE).unwrap();
        let error = DataFolder::open(disk.clone(), identity(2), 1).err().unwrap();
        assert!(error.to_string().contains("leveret repair"), "{error}");
    }

    #[test]
    fn a_folder_of_an_earlier_build_gets_its_number_once_whatever_crashes_on_the_way() {
        let old = include_str!("../../tests/goldens/identity-1.txt");
        let founding = || FolderIdentity { node_name: "rabbit@host".to_owned(), cluster_id: 9, folder_id: 9 };
        let mut is_done = false;
        for at in 0.. {
            let disk = Arc::new(FaultyDisk::new(at));
            crate::wal::found_log(&*disk).unwrap();
            disk.plant("identity", old.as_bytes());
            disk.schedule(disk.operations() + at, Fault::Crash(Crash::Power));
            let opened = DataFolder::open(disk.clone(), founding(), 1).and_then(|mut folder| folder.become_member(1));
            is_done |= opened.is_ok() && disk.down().is_none();
            disk.clear_faults();
            disk.restart();
            let folder = DataFolder::open(disk.clone(), founding(), 1).unwrap();
            assert_eq!((folder.identity().cluster_id, folder.node().id), (0xabc, 1), "cut at operation {at}");
            assert!(opened.is_err() || folder.node().state == NodeState::Member, "cut at operation {at}");
            assert!(disk.contents("identity").unwrap().starts_with(b"leveret data folder\nformat 2\n"));
            if is_done {
                assert!(at > 8, "there are several steps");
                break;
            }
        }
    }

    #[test]
    fn a_crash_at_any_operation_leaves_a_folder_of_one_identity_that_says_what_it_was_made_for() {
        for wish in [NodeState::Founding, NodeState::Joining] {
            for crash in [Crash::Power, Crash::Process] {
                let mut points = 0;
                for at in 0.. {
                    let disk = Arc::new(FaultyDisk::new(at));
                    disk.set_survival(SurvivalUnit::Sector);
                    disk.schedule(at, Fault::Crash(crash));
                    let make = |folder_id| match wish {
                        NodeState::Joining => DataFolder::join(disk.clone(), identity(folder_id), 1),
                        _ => DataFolder::open(disk.clone(), identity(folder_id), 1),
                    };
                    // What is told of a life counts for ever: its identity, its number of the
                    // start, that it is a member.
                    let mut told = None;
                    let lived = make(10).and_then(|mut folder| {
                        told = Some((folder.identity().clone(), folder.node()));
                        folder.become_member(folder.node().id.max(1))?;
                        Ok(folder.node())
                    });
                    let has_crashed = disk.down().is_some();
                    if !has_crashed {
                        disk.crash(Crash::Power);
                    }
                    disk.clear_faults();
                    disk.restart();
                    // An identity that is there forbids that the folder is made for something else.
                    let was_made = disk.contents("identity").is_some();
                    let folder = if was_made { open(&disk) } else { make(20).unwrap() };
                    let (now, at) = (folder.node(), format!("{wish:?} {crash:?} at operation {at}"));
                    if let Some((identity, told)) = told {
                        assert_eq!(folder.identity(), &identity, "{at}");
                        assert!(now.start > told.start, "{at}: {now:?} after {told:?}");
                    }
                    match lived {
                        Ok(member) => assert_eq!((now.id, now.state), (member.id, NodeState::Member), "{at}"),
                        Err(_) => assert!([wish, NodeState::Member].contains(&now.state), "{at}: {now:?}"),
                    }
                    drop(folder);
                    let again = open(&disk);
                    assert_eq!(again.node(), NodeRecord { start: now.start + 1, ..now }, "{at}");
                    points += 1;
                    if !has_crashed {
                        break;
                    }
                }
                assert!(points > 15, "{wish:?}: a founding has more steps than {points}");
            }
        }
    }

    #[test]
    fn any_turned_bit_is_found() {
        let whole = encode(&record(300, NodeState::Member, 12));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
        }
        assert!(decode(b"").is_err());
        assert!(matches!(
            decode(whole.replace("format 1", "format 4").as_bytes()),
            Err(StorageError::OtherVersion { found: 4, .. })
        ));
        assert!(record(1, NodeState::Member, u32::MAX).started().is_err());
    }
}

//! The file `cluster` of a data folder: which nodes founded the cluster together, each with its
//! folder; in the folder of a node that joined later, which nodes there were then, itself among them.
//! Absent in the folder of a node that founded alone.
//!
//! Invariant: it is written once, before the node founds its groups or waits to be spoken to, and
//! never changed: who came later is in the topology. Only where the other nodes of the cluster are
//! given up it is written anew, for the cluster that goes on with this node alone
//! ([`super::AloneRecord`]); and where it was lost, by what another node's says.

use super::node::{self, NodeRecord, NodeState};
use super::repair::keep;
use super::{DataFolder, FolderIdentity, line_of, read_identity, read_text, replace_text, seal_text};
use crate::crc32c;
use crate::disk::Disk;
use crate::error::StorageError;
use std::fmt::Write;

pub(crate) const CLUSTER_FILE: &str = "cluster";
const FIRST_LINE: &str = "leveret cluster";
const FORMAT_VERSION: u32 = 1;
/// Of a node that joined: it names the cluster, whose number does not follow from the nodes.
const JOINED_VERSION: u32 = 2;
/// The same, with the clusters that it goes on from.
const WENT_ON_VERSION: u32 = 3;
const BYTES_MAX: usize = 16 << 10;
/// What a damaged file may have in all; it is kept whole beside the new one.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A node that founded the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Its number.
    pub number: u32,
    /// Its data folder.
    pub folder_id: u128,
    /// Where the others reach it; without white space.
    pub address: String,
}

/// What the founders of a cluster agreed on, or what a node was told that joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRecord {
    /// The number of the cluster that is joined; `None` for one that is founded.
    pub joined: Option<u128>,
    /// How many partitions of queues there are.
    pub partitions: u32,
    /// By number; from 1 without gaps where they found the cluster.
    pub founders: Vec<Founder>,
    /// The clusters that this one was before all nodes but one were given up, the first of them first: a node
    /// that still is of one of these was given up. At most [`WENT_ON_MAX`], the last ones.
    pub before: Vec<u128>,
}

/// Clusters that are remembered as what this one was.
pub const WENT_ON_MAX: usize = 16;

impl ClusterRecord {
    /// The text of the file.
    pub fn encode(&self) -> String {
        let mut text = match self.joined {
            None => format!("{FIRST_LINE}\nformat {FORMAT_VERSION}\n"),
            Some(cluster) => {
                let version = if self.before.is_empty() { JOINED_VERSION } else { WENT_ON_VERSION };
                format!("{FIRST_LINE}\nformat {version}\ncluster {cluster:032x}\n")
            }
        };
        for cluster in &self.before {
            writeln!(text, "before {cluster:032x}").expect("a string takes all text");
        }
        writeln!(text, "partitions {}", self.partitions).expect("a string takes all text");
        for Founder { number, folder_id, address } in &self.founders {
            writeln!(text, "node {number} {folder_id:032x} {address}").expect("a string takes all text");
        }
        seal_text(text)
    }

    /// The record in these bytes. Only what [`ClusterRecord::encode`] writes is one, to the byte.
    pub fn decode(contents: &[u8]) -> Result<ClusterRecord, StorageError> {
        let text = String::from_utf8_lossy(contents);
        let version = line_of(&text, 1, "format ").and_then(|version| version.parse().ok());
        if let Some(found) = version.filter(|version| !(FORMAT_VERSION..=WENT_ON_VERSION).contains(version)) {
            let (file, supported) = (CLUSTER_FILE.to_owned(), WENT_ON_VERSION);
            return Err(StorageError::OtherVersion { file, found, supported });
        }
        let number = |digits: &str| u128::from_str_radix(digits, 16).ok();
        let joined = line_of(&text, 2, "cluster ").and_then(number);
        let line = if joined.is_some() { 3 } else { 2 };
        let before = text.lines().skip(line).map_while(|line| line.strip_prefix("before ").and_then(number));
        let before: Vec<u128> = before.collect();
        let line = line + before.len();
        let partitions = line_of(&text, line, "partitions ").and_then(|count| count.parse().ok());
        let founders: Vec<Founder> = text.lines().skip(line + 1).filter_map(founder).collect();
        let record = partitions.map(|partitions| ClusterRecord { joined, partitions, founders, before });
        let is_sound = |record: &ClusterRecord| {
            let mut numbers = record.founders.iter().map(|founder| founder.number);
            let is_rising = match joined {
                None => numbers.eq(1..=record.founders.len() as u32),
                Some(_) => numbers.try_fold(0, |last, number| (number > last).then_some(number)).is_some(),
            };
            // Who founds a cluster goes on from none.
            let goes_on = record.before.is_empty() || joined.is_some();
            !record.founders.is_empty() && is_rising && goes_on && record.before.len() <= WENT_ON_MAX
        };
        record.filter(|record| is_sound(record) && record.encode().as_bytes() == contents).ok_or_else(|| {
            let hashed = text.rfind("check ").map_or(0, |end| crc32c::crc32c(&text.as_bytes()[..end]));
            let (file, what) = (CLUSTER_FILE.to_owned(), "checksum of the lines");
            StorageError::Corrupt { file, offset: 0, what, expected: u64::from(hashed), found: 0 }
        })
    }
}

fn founder(line: &str) -> Option<Founder> {
    let mut words = line.strip_prefix("node ")?.split(' ');
    let (number, folder, address) = (words.next()?, words.next()?, words.next()?);
    let folder_id = u128::from_str_radix(folder, 16).ok()?;
    Some(Founder { number: number.parse().ok()?, folder_id, address: address.to_owned() })
}

/// The record of a folder, if it has one.
pub(crate) fn read_cluster_record<D: Disk>(disk: &D) -> Result<Option<ClusterRecord>, StorageError> {
    read_text(disk, CLUSTER_FILE, BYTES_MAX)?.map(|contents| ClusterRecord::decode(&contents)).transpose()
}

impl<D: Disk> DataFolder<D> {
    /// What the founders of the cluster agreed on, if this folder's node was one of several. Errors: the file is
    /// damaged, or cannot be this folder's ([`StorageError::ClusterFileLost`]).
    pub fn cluster_record(&self) -> Result<Option<ClusterRecord>, StorageError> {
        let record = read_cluster_record(&*self.disk).map_err(|error| match error.is_damage() {
            true => self.cluster_file_lost(format!("is damaged ({error})")),
            false => error,
        })?;
        // Earlier builds wrote one over a folder whose own was lost. Who begins alone has the first number.
        let is_of_who_began_alone =
            |record: &ClusterRecord| record.joined == Some(self.identity.cluster_id) && record.founders.len() == 1;
        match record.as_ref().is_some_and(is_of_who_began_alone) && self.node.id > NodeRecord::FOUNDER {
            true => Err(self.cluster_file_lost("is not its own, but that of a node that began alone".to_owned())),
            false => Ok(record),
        }
    }

    /// What is to be said where that file is no good and the node is one of several.
    pub fn cluster_file_lost(&self, what: String) -> StorageError {
        StorageError::ClusterFileLost { folder: self.disk.describe(), number: self.node.id, what }
    }

    /// Writes down what they agreed on. Returns when that is durable.
    ///
    /// # Panics
    /// If something else was written down before.
    pub fn store_cluster_record(&self, record: &ClusterRecord) -> Result<(), StorageError> {
        match self.cluster_record()? {
            Some(before) => assert!(before == *record, "what founders agreed on stands for ever"),
            None => replace_text(&*self.disk, CLUSTER_FILE, &record.encode())?,
        }
        Ok(())
    }

    /// Makes a file anew that is gone, or damaged, and gives the name under which what was left of it is kept
    /// then. Returns when it is durable.
    ///
    /// # Panics
    /// If there is one that can be read.
    pub fn make_cluster_record_anew(
        &self,
        record: &ClusterRecord,
        aside: impl FnOnce() -> Result<String, StorageError>,
    ) -> Result<Option<String>, StorageError> {
        assert!(!matches!(self.cluster_record(), Ok(Some(_))), "what founders agreed on stands for ever");
        let left = read_text(&*self.disk, CLUSTER_FILE, KEPT_BYTES_MAX)?;
        let kept = left.map(|left| aside().and_then(|name| keep(&*self.disk, &name, &left).map(|()| name)));
        let kept = kept.transpose()?;
        replace_text(&*self.disk, CLUSTER_FILE, &record.encode())?;
        Ok(kept)
    }
}

/// What a data folder says of its node, to whoever asks about another folder of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldOfItself {
    /// Its number.
    pub node: NodeRecord,
    /// Its folder, and the number of the cluster as far as it is there.
    pub identity: FolderIdentity,
    /// Which cluster it is of.
    pub record: ClusterRecord,
}

impl ToldOfItself {
    /// Reads it, and takes no lock: it is written once. `None`: the folder is not that of a member of a cluster.
    pub fn read<D: Disk>(disk: &D) -> Result<Option<ToldOfItself>, StorageError> {
        let (identity, node, record) = (read_identity(disk)?, node::read(disk)?, read_cluster_record(disk)?);
        let all = identity.zip(node).zip(record);
        let member = all.filter(|((_, node), _)| node.state == NodeState::Member);
        Ok(member.map(|(((identity, _), node), record)| ToldOfItself { node, identity, record }))
    }

    /// The identity of a member's folder, whatever became of the file that says which cluster it is of. Takes no lock.
    pub fn identity_of_member<D: Disk>(disk: &D) -> Result<Option<FolderIdentity>, StorageError> {
        let found = read_identity(disk)?.zip(node::read(disk)?);
        Ok(found.filter(|(_, node)| node.state == NodeState::Member).map(|((identity, _), _)| identity))
    }

    /// The number of its cluster.
    pub fn cluster_number(&self) -> u128 {
        self.record.joined.unwrap_or(self.identity.cluster_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let founder = |number| Founder { number, folder_id: 7 << number, address: format!("host{number}:25672") };
        for (joined, before, numbers, begins) in [
            (None, vec![], [1, 2, 3], "leveret cluster\nformat 1\npartitions 16\nnode 1 "),
            (
                Some(7),
                vec![],
                [1, 4, 9],
                "leveret cluster\nformat 2\ncluster 00000000000000000000000000000007\npartitions 16\nnode 1 ",
            ),
            (
                Some(7),
                vec![9, 8],
                [1, 4, 9],
                "leveret cluster\nformat 3\ncluster 00000000000000000000000000000007\n\
                 before 00000000000000000000000000000009\nbefore 00000000000000000000000000000008\npartitions 16\nnode 1 ",
            ),
        ] {
            let founders = numbers.into_iter().map(founder).collect();
            let record = ClusterRecord { joined, partitions: 16, founders, before };
            let text = record.encode();
            assert!(text.starts_with(begins), "{text}");
            assert_eq!(ClusterRecord::decode(text.as_bytes()).ok(), Some(record.clone()));
            let unsound = ClusterRecord { founders: vec![founder(4), founder(2)], ..record };
            assert!(ClusterRecord::decode(unsound.encode().as_bytes()).is_err(), "numbers rise");
            refuses_every_other_text(&text);
        }
    }

    #[test]
    fn a_cluster_goes_on_from_few_others_and_one_that_is_founded_from_none() {
        let founders = vec![Founder { number: 1, folder_id: 7, address: "host1:25672".to_owned() }];
        let record = |joined, count: usize| {
            let before = (1..=count as u128).collect();
            ClusterRecord { joined, partitions: 16, founders: founders.clone(), before }
        };
        let is_read = |record: ClusterRecord| ClusterRecord::decode(record.encode().as_bytes()).is_ok();
        assert!(is_read(record(Some(9), WENT_ON_MAX)) && is_read(record(None, 0)));
        assert!(!is_read(record(Some(9), WENT_ON_MAX + 1)) && !is_read(record(None, 1)));
    }

    fn refuses_every_other_text(text: &str) {
        for at in 0..text.len() {
            let mut other = text.as_bytes().to_vec();
            other[at] ^= 1;
            assert!(ClusterRecord::decode(&other).is_err(), "byte {at}");
            assert!(ClusterRecord::decode(&text.as_bytes()[..at]).is_err(), "{at} bytes");
        }
    }
}

//! A folder of a node of a cluster whose file `cluster` is lost: how the rest of the folder tells that it is one, and
//! how the file is made anew.
//!
//! Invariant: a file that is made anew never names a cluster that went on without this node, or that this node went on
//! without. Two folders are of one cluster if each has the other's node among those that are there, and one of the two
//! knows the folder of the other by its number, which no other folder has. Going on alone takes all others out of what is
//! declared for ever, so what one of them still believes proves nothing.
//!
//! Absent on purpose: a list of founders from one folder alone. It names the folders of the others, and nothing but that
//! file has those.

use super::alone::TERMS_PASSED_OVER;
use super::{Found, Others, is_alone, next_aside, read_topology};
use crate::open_error::OpenError;
use broker::NodeNumber;
use broker::topology::{FIRST_POOL, NodeStanding, Topology};
use std::sync::Arc;
use storage::data_folder::ToldOfItself;
use storage::{ClusterRecord, DataFolder, Disk, DryDisk, Founder, NodeRecord, NodeState};

/// What became of the file `cluster` of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterFile {
    /// It is there; or the node is of no cluster, and has none.
    Sound,
    /// It was made anew; each is a line for a person.
    MadeAnew {
        /// What was wrong with it.
        found: String,
        /// By what it was made.
        changed: String,
        /// Where the damaged one is kept.
        aside: Option<String>,
    },
}

/// Whether the node of a folder without a file `cluster` is one of several: by its number, by the members of its
/// group, by the nodes that are declared.
///
/// - Cost: reads the states and the whole log.
/// - Nothing on the disk changes. `nonce` is random.
pub fn is_one_of_several<D: Disk>(folder: &DataFolder<D>, nonce: u64) -> Result<bool, OpenError> {
    // One that no cluster has taken in has nothing yet, and neither has one that founds.
    if folder.node().state != NodeState::Member {
        return Ok(false);
    }
    if folder.node().id != NodeRecord::FOUNDER {
        return Ok(true);
    }
    let found = look(folder.disk(), folder.identity().folder_id, folder.node(), nonce)?;
    Ok(!is_alone(found.topology.membership()) || read_topology(&found.topology)?.nodes().count() > 1)
}

/// How many partitions of queues a folder has that came to be with its cluster.
pub(super) fn partitions_of(topology: &Topology) -> u32 {
    let of_all = topology.partitions().filter(|(_, put)| put.pool == FIRST_POOL);
    of_all.map(|(id, _)| id.0).max().unwrap_or(1)
}

/// Makes the file `cluster` of a folder anew if it is lost: by `other`, the disk of another node of its cluster; without
/// one by what the folder says, if that says all.
///
/// - Cost: where it is lost, reads the states and the log of both folders.
/// - Errors: nothing says of which cluster the node is ([`storage::StorageError::ClusterFileLost`]); `other` is not
///   proven to be of the same one.
pub fn make_cluster_file<D: Disk, O: Disk>(
    folder: &DataFolder<D>,
    other: Option<&Arc<O>>,
    nonce: u64,
) -> Result<ClusterFile, OpenError> {
    let what = match folder.cluster_record() {
        Ok(Some(_)) => return Ok(ClusterFile::Sound),
        Ok(None) if !is_one_of_several(folder, nonce)? => return Ok(ClusterFile::Sound),
        Ok(None) => "is gone".to_owned(),
        Err(storage::StorageError::ClusterFileLost { what, .. }) => what,
        Err(error) => return Err(error.into()),
    };
    let found = look(folder.disk(), folder.identity().folder_id, folder.node(), nonce)?;
    let topology = read_topology(&found.topology)?;
    let made = match other {
        Some(other) => by_another(folder, &topology, other, nonce)?,
        None => by_itself(folder, &topology, &found).map(|record| (record, "what the folder itself says".to_owned())),
    };
    let Some((record, by)) = made else { return Err(folder.cluster_file_lost(what).into()) };
    drop(found);
    let aside = folder.make_cluster_record_anew(&record, || next_aside(&**folder.disk(), "cluster"))?;
    let found = format!("the file `cluster` {what}");
    let number = record.joined.unwrap_or(folder.identity().cluster_id);
    let changed =
        format!("the file `cluster` is made anew, by {by}: node {} of cluster {number:032x}", folder.node().id);
    Ok(ClusterFile::MadeAnew { found, changed, aside })
}

fn look<D: Disk>(disk: &Arc<D>, folder_id: u128, node: NodeRecord, nonce: u64) -> Result<Found<DryDisk<D>>, OpenError> {
    Found::look(&Arc::new(DryDisk::new(disk.clone())), folder_id, node, nonce, Others::GivenUp)
}

fn is_there(topology: &Topology, number: u32) -> bool {
    topology.node(NodeNumber(number)).is_some_and(|node| node.standing != NodeStanding::Gone)
}

/// That of the first node of a cluster, which began alone: its number is that of its folder, and those that joined it
/// are known by their folders. One that went on alone was given another number, which is lost.
fn by_itself<D: Disk, L: Disk>(folder: &DataFolder<D>, topology: &Topology, found: &Found<L>) -> Option<ClusterRecord> {
    let (own, identity) = (folder.node().id, folder.identity());
    let others_joined = || topology.nodes().all(|(number, _)| number.0 == own || topology.folder_of(number).is_some());
    let terms = found.partitions.iter().map(|partition| partition.last().1).chain([found.topology.last().1]);
    let went_on = terms.max().is_some_and(|term| term.0 >= TERMS_PASSED_OVER);
    let is_first = own == NodeRecord::FOUNDER && identity.cluster_id != 0 && is_there(topology, own);
    let is_known = is_first && !went_on && others_joined();
    is_known.then(|| ClusterRecord {
        joined: Some(identity.cluster_id),
        partitions: partitions_of(topology),
        founders: vec![listed(folder, topology)],
        before: Vec::new(),
    })
}

/// The line of a folder's own node.
fn listed<D: Disk>(folder: &DataFolder<D>, topology: &Topology) -> Founder {
    let number = folder.node().id;
    let address = topology.node(NodeNumber(number)).map(|node| node.address.to_string()).unwrap_or_default();
    Founder { number, folder_id: folder.identity().folder_id, address }
}

/// The record by that of another node, and whose that is.
fn by_another<D: Disk, O: Disk>(
    folder: &DataFolder<D>,
    own_topology: &Topology,
    other: &Arc<O>,
    nonce: u64,
) -> Result<Option<(ClusterRecord, String)>, OpenError> {
    let where_it_is = other.describe();
    let not_proven = |why: String| OpenError::NotOfOneCluster { other: where_it_is.clone(), why };
    let told =
        ToldOfItself::read(&**other)?.ok_or_else(|| not_proven("it is that of no node of a cluster".to_owned()))?;
    let found = look(other, told.identity.folder_id, told.node, nonce)?;
    let topology = read_topology(&found.topology)?;
    let (own, its) = (folder.node().id, told.node.id);
    let (own_folder, its_folder) = (folder.identity().folder_id, told.identity.folder_id);
    if own_folder == its_folder {
        return Err(not_proven(
            "it is a copy of the same folder: take the file itself from it, if it has one".to_owned(),
        ));
    }
    for (topology, whose, number) in [(own_topology, own, its), (&topology, its, own)] {
        if !is_there(topology, number) {
            return Err(not_proven(format!("for node {whose} there is no node {number}, or none any more")));
        }
    }
    let by_file = told.record.founders.iter().find(|founder| founder.number == own).map(|founder| founder.folder_id);
    let by_file = by_file.filter(|folder| *folder != 0);
    let known = [
        (by_file.or_else(|| topology.folder_of(NodeNumber(own))), own_folder, own),
        (own_topology.folder_of(NodeNumber(its)), its_folder, its),
    ];
    if let Some((.., number)) = known.iter().find(|(known, folder, _)| known.is_some_and(|known| known != *folder)) {
        return Err(not_proven(format!("the folder of its node {number} is another one")));
    }
    if known.iter().all(|(known, ..)| known.is_none()) {
        return Err(not_proven("neither of the two knows the folder of the other".to_owned()));
    }
    let number = told.cluster_number();
    let by = format!("that of node {its} in {where_it_is}");
    let ClusterRecord { partitions, before, .. } = told.record.clone();
    let is_founder = told.record.joined.is_none() && by_file.is_some();
    if is_founder && folder.identity().cluster_id == number {
        return Ok(Some((told.record, by)));
    }
    let mut founders: Vec<Founder> = told.record.founders.into_iter().filter(|founder| founder.number != own).collect();
    founders.push(listed(folder, own_topology));
    founders.sort_by_key(|founder| founder.number);
    Ok(Some((ClusterRecord { joined: Some(number), partitions, founders, before }, by)))
}

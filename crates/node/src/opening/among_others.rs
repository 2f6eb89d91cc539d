//! A node whose groups have members on other nodes: how it founds them with these, and how it comes
//! back.
//!
//! Invariants: every group has a checkpoint with its members before the node is a member of the
//! cluster, so that a log which is gone is never taken for one that has not begun. What comes back
//! leads nothing, and its topology may lag: nobody is served before it has heard from the others.
//! Of a group of which the folder has nothing the node is no member, and no leader: others may have all of it.

use super::{Brought, Groups, Started, contradictory, entry_bytes_max, raft, recovery_of, topology_of};
use crate::open_error::OpenError;
use crate::quarantine::Quarantined;
use crate::{Memory, TOPOLOGY, member_of};
use broker::topology::Topology;
use broker::{NodeLife, PartitionId};
use consensus::{Config, NodeId};
use partition::place::file_u32;
use partition::{founding_checkpoint, founding_log_checkpoint, joining_checkpoint, joining_log_checkpoint};
use std::collections::BTreeSet;
use storage::{CheckpointStore, ClusterRecord, DataFolder, Disk, FileNo, GroupId, NodeState, WalOptions, WalPosition};

/// Founds the groups of a node together with others, in a folder that is to join; or, where these are
/// there already, begins as a member of each that nobody has spoken to yet. It may have been begun
/// before.
///
/// # Panics
/// If the folder is none of those in `record`.
pub fn found_among_others<D: Disk>(folder: &mut DataFolder<D>, record: &ClusterRecord) -> Result<(), OpenError> {
    let own = record.founders.iter().find(|founder| founder.folder_id == folder.identity().folder_id);
    let number = own.expect("it is one of the founders").number;
    folder.store_cluster_record(record)?;
    if folder.node().state == NodeState::Member {
        return Ok(());
    }
    // Who joins founds nothing, however often it is started: it is told who the members are.
    let (topology, queues) = match record.joined {
        Some(_) => (joining_log_checkpoint(&Topology::new().encode_snapshot()), joining_checkpoint()),
        None => founding(record),
    };
    let mut checkpoints = CheckpointStore::open(folder.disk(), folder.identity().folder_id)?;
    checkpoints.note_last_group(GroupId(record.partitions));
    let begin = WalPosition { file: FileNo(1), offset: 0 };
    checkpoints.save(GroupId(TOPOLOGY.0), begin, &topology)?;
    for id in 1..=record.partitions {
        checkpoints.save(GroupId(id), begin, &queues)?;
    }
    folder.become_member(number)?;
    Ok(())
}

/// What the groups of founders begin with: the topology's, and those of queues.
fn founding(record: &ClusterRecord) -> (Vec<u8>, Vec<u8>) {
    let founders: Vec<NodeId> = record.founders.iter().map(|founder| NodeId(founder.number.into())).collect();
    (founding_log_checkpoint(&founders, &Topology::new().encode_snapshot()), founding_checkpoint(&founders))
}

/// Opens what is on a disk for a member of a cluster. `boot`: a number that no other boot of the
/// machine has.
pub fn bring_back_among_others<D: Disk>(
    folder: &DataFolder<D>,
    options: WalOptions,
    boot: u128,
    now_ms: u64,
) -> Result<Brought<D>, OpenError> {
    let (disk, folder_id, node) = (&folder.disk().clone(), folder.identity().folder_id, folder.node());
    if node.state != NodeState::Member {
        return Err(OpenError::Joining);
    }
    let own = member_of(node);
    // Of a node that was alone, groups may have all of their state in the log, and one that it began with may have nothing there.
    let alone_with =
        folder.cluster_record()?.filter(|record| record.founders.len() == 1).map(|record| record.partitions);
    let founders: &[NodeId] = if alone_with.is_some() { &[own] } else { &[] };
    let folder_life = folder.begin_life(boot)?;
    let mut checkpoints = CheckpointStore::open(disk, folder_id)?;
    // What was founded with the node, and what came to be since: of that this node has some.
    if let Some(count) = alone_with.filter(|_| checkpoints.last_group().is_none()) {
        // Groups that came to be on others since lie between those that it has.
        checkpoints.note_last_group(GroupId(count));
    }
    let last = checkpoints.last_group().or_else(|| checkpoints.groups().last()).map_or(0, |group| group.0);
    let ids: BTreeSet<u32> = (0..=last).chain(checkpoints.groups().map(|group| group.0)).collect();
    let mut groups = Groups::load(&mut checkpoints, ids, &recovery_of)?;
    let (wal, report) = groups.read_log(disk, folder_id, options, true)?;
    groups.finish_endings(&mut checkpoints)?;
    let there = groups.look_for_extents(&**disk, folder_id)?;
    let (known, used) = groups.extents();
    let Groups { whole: mut groups, mut quarantined, .. } = groups;
    for recovery in groups.values_mut().filter(|recovery| recovery.id() != TOPOLOGY) {
        // Nothing in the topology counts before it is synced.
        if folder_life.forgot().contains(recovery.id().0) {
            recovery.may_have_forgotten(folder_life.start());
        }
    }
    let current_file = file_u32(wal.durable_file());
    let raft = |id: u32| Config { entry_bytes_max: entry_bytes_max(&wal), ..raft(own, id) };
    let metadata = groups.remove(&TOPOLOGY.0).ok_or_else(|| contradictory(TOPOLOGY, &"it has ended on this node"))?;
    let (mut metadata, state) =
        metadata.finish_log(own, raft(TOPOLOGY.0), founders).map_err(|why| contradictory(TOPOLOGY, &why))?;
    metadata.log_is_at(current_file);
    let topology = topology_of(state.as_ref())?;
    let mut partitions = Vec::new();
    for (id, recovery) in groups {
        let mut aside = Quarantined::new(OpenError::LogGone, Some(&recovery));
        let member = recovery.member(own);
        match recovery.finish(member, Config { node: member, ..raft(id) }, founders) {
            Ok(mut partition) => {
                partition.log_is_at(current_file);
                partition.ask_for_queues();
                partitions.push(Started::new(partition));
            }
            Err(why) => {
                aside.why = contradictory(PartitionId(id), &why);
                quarantined.insert(id, aside);
            }
        }
    }
    let next_extent = super::drop_orphans(&**disk, &there, &known, used, quarantined.is_empty())?;
    let whole = partitions.iter().map(|started| started.partition.id());
    let all = whole.chain(quarantined.keys().map(|id| PartitionId(*id)));
    let memory = Some(Memory::new(disk.clone(), folder_life, all));
    let quarantined = quarantined.into_iter().map(|(id, aside)| (PartitionId(id), aside)).collect();
    let mut brought = Brought {
        wal,
        checkpoints,
        metadata: Started::new(metadata),
        partitions,
        quarantined,
        topology,
        life: NodeLife { node: node.id, start: node.start },
        next_extent,
        memory,
        report,
        now_ms,
    };
    brought.know_queues();
    brought.configure_queues();
    Ok(brought)
}

impl<D: Disk> Brought<D> {
    /// Tells the partitions which queues the topology has, as far as it was saved.
    fn know_queues(&mut self) {
        for queue in self.topology.queues().filter(|queue| !queue.id.is_local()) {
            if let Some(started) = self.partitions.iter_mut().find(|s| s.partition.id() == queue.partition) {
                started.partition.queue_is_known(queue.id);
            }
        }
    }
}

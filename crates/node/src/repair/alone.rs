//! Going on with one node of a cluster whose other nodes are given up, offline: every group that the node has a
//! copy of becomes one of this one member, with all that its log holds; others begin anew, empty.
//!
//! Entries behind what the node knew to be decided are kept: a majority that is gone may have confirmed them. What no
//! majority had comes along; nothing tells them apart.
//!
//! Order, each step durable before the next: the folder says that it is on its way, and no broker opens it; a new
//! file of the log; a new checkpoint of every group, twice, so that both generations stand on it and go on with that
//! file, the topology's last of them; the folder's cluster is another one, so that no node of the old one is believed
//! any more; brokers may open it. So a crash anywhere leaves a folder as it was, or one for which the same steps are
//! taken again, and so does a disk that fills; one that has too little room at the start is refused before any of it.
//! Nothing is copied and nothing is deleted: logs and extents stay as they lie.
//!
//! Invariant: on a [`storage::DryDisk`] the folder stays as it is, byte for byte, and the same code runs both ways.

use super::aside::failed;
use super::cluster_file::{is_one_of_several, partitions_of};
use super::{Found, Others, in_words, live, read_topology};
use crate::TOPOLOGY;
use crate::open_error::OpenError;
use broker::topology::{NodeStanding, PartitionStage, Topology};
use broker::{NodeNumber, PartitionId};
use consensus::{NodeId, Position, Term};
use partition::machine::schedule_of;
use partition::salvage::{Salvage, SalvagedLog};
use partition::{Part, anew_checkpoint};
use std::collections::{BTreeMap, BTreeSet};
use storage::{AloneRecord, CheckpointStore, DataFolder, Disk, GroupId, NodeState, StorageError, WalPosition};

/// The term of the groups is so far above all that the node knows. The others cannot have come as far: in the worst
/// case every member has begun an election of its own each second since.
pub(super) const TERMS_PASSED_OVER: u64 = 1 << 32;
/// A state takes so much of the disk beside what is in it, at most: what is in front of it, and the end of its last block.
const ROOM_OF_HEADER: u64 = 16 << 10;
/// The files `alone` and `cluster`, and names.
const ROOM_OF_SMALL_FILES: u64 = 256 << 10;

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Its number, which no other node will have.
    pub number: u32,
    /// What it is called.
    pub name: String,
    /// Where it was reached.
    pub address: String,
}

/// What the node has of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The partition; 0 is what is declared.
    pub partition: u32,
    /// The last entry of its log. Of several nodes that are left the one with the higher term, and with the higher
    /// index among equals, has more.
    pub last: Position,
    /// Whether it votes there. One that does not may lack much, and have what was settled long ago.
    pub votes: bool,
    /// How many messages.
    pub messages: u64,
}

/// What a folder has, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AloneReport {
    /// The number of the node that goes on, and what it is called.
    pub own: (u32, String),
    /// The cluster that it is of, and the one that it is of from then on.
    pub clusters: (u128, u128),
    /// What is damaged. With anything of it nothing else was done: it is repaired first.
    pub damage: Vec<String>,
    /// Those that are given up; with none of them there is nothing to be done.
    pub given_up: Vec<GivenUp>,
    /// Its copies.
    pub copies: Vec<Copy>,
    /// The queues that begin empty, with their virtual hosts.
    pub empty: Vec<String>,
    /// Messages of queues of which the node has not heard, and where they are.
    pub adopted: Vec<String>,
    /// Messages that are there afterwards.
    pub messages: u64,
    /// An earlier try had not come to its end.
    pub was_begun: bool,
    /// What was wrong with the file that says of which cluster it is, which is made anew.
    pub lost_file: Option<String>,
    /// The disk has too little room. Then nothing was done.
    pub room_short: Option<RoomShort>,
}

/// How much room of the disk, in bytes, there should be, and how much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomShort {
    /// All that is written, at most.
    pub needed: u64,
    /// What is free.
    pub free: u64,
}

impl AloneReport {
    /// Whether the node is the only one of its cluster already.
    pub fn is_alone(&self) -> bool {
        self.given_up.is_empty() && self.damage.is_empty() && !self.was_begun && self.lost_file.is_none()
    }
}

/// Makes a folder that of the only node of a cluster with this number, which no other has.
///
/// - Cost: reads the whole log and every extent once; writes two states of each group.
/// - Errors: as [`crate::bring_back`] has them; a node that runs alone, or that the cluster has not taken in yet. Of a disk that fills, or fails, half way the error says that it
///   is to be run again.
/// - `nonce` is random: what is written tells itself by it from what lay there before.
pub fn go_on_alone<D: Disk>(folder: &DataFolder<D>, cluster: u128, nonce: u64) -> Result<AloneReport, OpenError> {
    if folder.node().state == NodeState::Joining {
        return Err(OpenError::NotTakenIn);
    }
    let (before, lost_file) = cluster_of(folder, nonce)?;
    let was_begun = folder.is_going_alone()?;
    let begun = match folder.alone_record() {
        // Its steps are taken again, to another number.
        Err(StorageError::Corrupt { .. }) => None,
        read => read?,
    };
    let mut found = Found::look(folder.disk(), folder.identity().folder_id, folder.node(), nonce, Others::GivenUp)?;
    let mut damage = std::mem::take(&mut found.report);
    found.damaged_extents(folder.identity().folder_id, &mut damage)?;
    let topology = read_topology(&found.topology);
    let mut report = AloneReport { damage: damage.found, was_begun, lost_file, ..AloneReport::default() };
    report.own = (folder.node().id, folder.identity().node_name.clone());
    let plan = begun.unwrap_or(AloneRecord { cluster, before, empty: BTreeSet::new() });
    report.clusters = (plan.before, plan.cluster);
    if !report.damage.is_empty() {
        // From here on a repair may make up what the others have: they are not asked any more.
        folder.begin_going_alone(&plan).map_err(|error| half_way(folder, error.into()))?;
        return Ok(report);
    }
    let mut work = Work { own: folder.node().id, topology: topology?, found, plan, report };
    work.look_at_nodes()?;
    if work.report.is_alone() {
        return Ok(work.report);
    }
    work.choose();
    let address = work.topology.node(NodeNumber(work.own)).map(|node| node.address.to_string()).unwrap_or_default();
    let partitions = partitions_of(&work.topology);
    let states = work.states();
    let needed = states.room() + work.found.wal.room_of_next_file() + ROOM_OF_SMALL_FILES;
    let free = folder.disk().free_bytes().map_err(|error| failed("measure", "", error))?;
    if free < needed {
        work.report.room_short = Some(RoomShort { needed, free });
        return Ok(work.report);
    }
    let Work { plan, found, report, .. } = work;
    let done = folder.begin_going_alone(&plan).map_err(OpenError::from);
    let done = done.and_then(|()| states.write(found));
    match done.and_then(|()| Ok(folder.end_going_alone(&plan, &address, partitions)?)) {
        Ok(()) => Ok(report),
        Err(error) => Err(half_way(folder, error)),
    }
}

fn half_way<D: Disk>(folder: &DataFolder<D>, error: OpenError) -> OpenError {
    // What cannot be told is taken for begun: to run it again is right in any case.
    let is_begun = folder.is_going_alone().unwrap_or(true);
    OpenError::StoppedHalfWay { error: Box::new(error), is_begun }
}

/// The number of the cluster that a folder is of, and what is wrong with the file that says so. Without it the number is
/// that of the cluster that was founded, or 0, of a node that joined: no other node is believed by it from here on, and it
/// only tells those that were given up that they were. Errors: the node is of none.
fn cluster_of<D: Disk>(folder: &DataFolder<D>, nonce: u64) -> Result<(u128, Option<String>), OpenError> {
    match folder.cluster_number() {
        Ok(Some(number)) => Ok((number, None)),
        Ok(None) if !is_one_of_several(folder, nonce)? => Err(OpenError::RunsAlone),
        Ok(None) => Ok((folder.identity().cluster_id, Some("is gone".to_owned()))),
        Err(StorageError::ClusterFileLost { what, .. }) => Ok((folder.identity().cluster_id, Some(what))),
        Err(error) => Err(error.into()),
    }
}

/// The states of all groups as they are to be, before anything of them is written.
struct States {
    /// The topology's last.
    payloads: Vec<(u32, Vec<u8>)>,
    topology: SalvagedLog,
}

impl States {
    /// How much room of the disk they take at most.
    fn room(&self) -> u64 {
        2 * self.payloads.iter().map(|(_, payload)| payload.len() as u64 + ROOM_OF_HEADER).sum::<u64>()
    }

    /// Has the log begin a new file, and both states of each group stand on it.
    fn write<D: Disk>(self, found: Found<D>) -> Result<(), OpenError> {
        let Found { mut checkpoints, mut wal, .. } = found;
        // As for a repair: every state names a file that is there, behind every one that the log ever had.
        wal.begin_next_file()?;
        wal.append(&[self.topology.vote(GroupId(TOPOLOGY.0))], &mut Vec::new())?;
        wal.sync()?;
        let replay_from = WalPosition { file: wal.position().file, offset: 0 };
        self.payloads.iter().try_for_each(|(id, payload)| save_twice(&mut checkpoints, *id, replay_from, payload))
    }
}

struct Work<D: Disk> {
    own: u32,
    /// What is declared; by and by as it is to be.
    topology: Topology,
    found: Found<D>,
    plan: AloneRecord,
    report: AloneReport,
}

impl<D: Disk> Work<D> {
    /// Who goes and who stays. Errors: this node cannot be the one.
    fn look_at_nodes(&mut self) -> Result<(), OpenError> {
        let own = self.topology.node(NodeNumber(self.own)).map(|node| node.standing);
        match own {
            Some(NodeStanding::Gone) => return Err(OpenError::WasForgotten),
            Some(NodeStanding::Member | NodeStanding::Leaving) => {}
            Some(NodeStanding::Joining) | None => return Err(OpenError::NotTakenIn),
        }
        let others = self.topology.present_nodes().filter(|(number, _)| number.0 != self.own);
        let given_up = others.map(|(number, node)| GivenUp {
            number: number.0,
            name: self.topology.shown_node(number),
            address: node.address.to_string(),
        });
        self.report.given_up = given_up.collect();
        Ok(())
    }

    /// The id of this node as a member of a group. Where the map had it leave and come back, or it was about to leave, it is the
    /// one that the map wants.
    fn member(&self, partition: PartitionId) -> NodeId {
        NodeId::of(self.own, self.topology.life_in(partition, NodeNumber(self.own)))
    }

    /// Whether there is anything of a partition that can go on: of one that is no member any more too. What an earlier
    /// try began anew is nothing.
    fn has_some(&self, partition: &Salvage) -> bool {
        let id = partition.id().0;
        self.found.parts.contains_key(&id) && !self.plan.empty.contains(&id)
    }

    /// What is kept, what begins anew, and what the map says then.
    fn choose(&mut self) {
        let votes = |id: u32| self.found.parts.get(&id) == Some(&Part::Voter);
        let (last, _) = self.found.topology.last();
        let mut copies = vec![Copy { partition: TOPOLOGY.0, last, votes: votes(TOPOLOGY.0), messages: 0 }];
        let kept: Vec<&Salvage> = self.found.partitions.iter().filter(|partition| self.has_some(partition)).collect();
        copies.extend(kept.iter().map(|partition| {
            let (id, messages) = (partition.id().0, live(partition));
            Copy { partition: id, last: partition.last().0, votes: votes(id), messages }
        }));
        self.report.messages = copies.iter().map(|copy| copy.messages).sum();
        self.report.copies = copies;
        let kept: BTreeSet<PartitionId> = kept.into_iter().map(Salvage::id).collect();
        let anew = self.topology.go_on_alone(NodeNumber(self.own), &kept);
        self.plan.empty.extend(anew.iter().map(|id| id.0));
        let is_empty = |queue: &&broker::topology::Queue| !queue.id.is_local() && anew.contains(&queue.partition);
        let empty = self.topology.queues().filter(is_empty).map(|queue| in_words(&self.topology, queue.id));
        self.report.empty = empty.collect();
        self.adopt(&kept);
    }

    /// What was declared behind the last entry that this node has of the topology may have messages here already.
    fn adopt(&mut self, kept: &BTreeSet<PartitionId>) {
        let first_unknown = self.topology.next_queue_id();
        for partition in self.found.partitions.iter().filter(|partition| kept.contains(&partition.id())) {
            for id in partition.queues().queue_ids() {
                let owner = schedule_of(id).unwrap_or(id);
                if owner < first_unknown {
                    continue;
                }
                // No other queue is to have its number, and with it what it had.
                self.topology.pass_over_queue_ids(owner);
                let messages = partition.queues().queue(id).map_or(0, |state| state.runs().live());
                let (number, queue) = (partition.id().0, owner.0);
                if messages > 0
                    && (self.topology.queue(owner).is_some() || self.topology.adopt_queue(owner, partition.id()))
                {
                    self.report.adopted.push(format!(
                        "{} of a queue that was declared on other nodes, of which this one has not heard: queue recovered.{number}.{queue} of \
                         virtual host /",
                        partition::messages_in_words(messages)
                    ));
                }
            }
        }
    }

    /// A term that no group was in.
    fn next_term(&self) -> Term {
        let of_queues = self.found.partitions.iter().map(Salvage::last);
        let known = of_queues.chain([self.found.topology.last()]).flat_map(|(last, term)| [last.term, term]);
        Term(known.max().map_or(0, |term| term.0) + TERMS_PASSED_OVER)
    }

    /// The states as they are to be.
    fn states(&mut self) -> States {
        let term = self.next_term();
        let mut payloads: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for id in self.plan.empty.iter().filter(|id| self.is_there(**id)) {
            payloads.insert(*id, anew_checkpoint(self.member(PartitionId(*id)), term));
        }
        let mut partitions = std::mem::take(&mut self.found.partitions);
        for partition in partitions.iter_mut().filter(|partition| self.has_some(partition)) {
            partition.stand_alone(self.member(partition.id()), term);
            payloads.insert(partition.id().0, partition.checkpoint());
        }
        let mut topology = self.found.topology.clone();
        topology.stand_alone(member_of_number(self.own), term);
        let state = topology.checkpoint(&self.topology.encode_snapshot());
        States { payloads: payloads.into_iter().chain([(TOPOLOGY.0, state)]).collect(), topology }
    }

    fn is_there(&self, partition: u32) -> bool {
        let put = self.topology.partitions().find(|(id, _)| id.0 == partition);
        put.is_some_and(|(_, put)| put.stage != PartitionStage::Retired)
    }
}

/// Both of a group's checkpoints are this one: a start that finds only one of them finds the same.
fn save_twice<D: Disk>(
    checkpoints: &mut CheckpointStore<D>,
    group: u32,
    replay_from: WalPosition,
    payload: &[u8],
) -> Result<(), OpenError> {
    for _ in 0..2 {
        checkpoints.save(GroupId(group), replay_from, payload)?;
    }
    Ok(())
}

/// The topology's group nobody leaves and comes back to.
fn member_of_number(number: u32) -> NodeId {
    NodeId::of(number, 0)
}

//! Pools of partitions with fewer copies than the cluster has nodes, and where a new queue may live;
//! such pools are made from machine version 5 on.
//!
//! A quorum queue asks for a number of copies. Where the cluster has more nodes than that, the queue
//! lives in a partition of the pool of that size, which comes to be with its first queue; otherwise in
//! the first pool, whose partitions have a copy on every node. A durable classic queue of a cluster has one
//! copy; what was declared before machine version 11, or on a node alone, lives in the first pool.
//!
//! Invariants: which nodes have a partition is a function of the commands; a node that was a member of
//! a partition and is none any more is gone for ever, or comes back as another member (`copies.rs`), so
//! nobody comes to a group twice; a partition has founders, who begin as its members, and everybody else learns from those.
//!
//! ```text
//! founders = number partition, number founders, per founder: number node, rising; in the snapshot
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::Topology;
use super::apply::Effect;
use super::cluster::{
    FIRST_POOL, MAP_DECIDES, PARTITIONS_EVER_MAX, POOLS_MAX, PartitionPool, PartitionStage, PoolPartition,
};
use super::command::DeclareQueue;
use super::encoding::{Malformed, Reader, Writer};
use super::name::Name;
use super::policy_plan::Held;
use super::queue::{Queue, QueueShape};
use super::refusal::Refusal;
use super::settings::{LeaderLocator, QueueType};
use super::{NODES_MAX, NodeStanding};
use crate::ids::{NodeNumber, PartitionId, PoolId, VhostId};
use crate::queue::Rules;

/// The version from which on there are pools of fewer copies than nodes.
const HAS_SMALL_POOLS: u32 = 5;
/// Copies of a quorum queue that asks for no number, as in RabbitMQ.
pub const GROUP_SIZE_DEFAULT: u32 = 3;
/// Partitions of a pool of fewer copies than nodes: some for each node to lead.
pub const POOL_PARTITIONS: u32 = 12;
/// Partitions of the pool with one member that each node has at least.
const OF_ONE_NODE_MIN: u32 = 2;
/// Partitions that pools of all sizes have at a time. Nodes keep room for as many.
pub const POOL_PARTITIONS_OF_ALL: u32 = POOL_PARTITIONS * (NODES_MAX as u32 - 1);

/// What decides where a new queue should live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// In the memory of this node: choose a shard. Otherwise choose one of `among`.
    pub in_memory: bool,
    /// Where its leader should be, if the declare or a policy says so.
    pub leader_locator: Option<LeaderLocator>,
    /// Whether `among` says where it may live. Before machine version 2 it may live anywhere.
    pub is_mapped: bool,
    /// The partitions in which it may live.
    pub among: Vec<PlacedPartition>,
    /// How many queues live in each partition that has some.
    pub queues: BTreeMap<PartitionId, u32>,
}

/// A partition in which a new queue may live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPartition {
    /// Its number.
    pub partition: PartitionId,
    /// Who is to lead it first, if it comes to be with the queue or has one member.
    pub leads_first: Option<NodeNumber>,
    /// Its members, in these cases.
    pub founders: Vec<NodeNumber>,
}

impl PlacedPartition {
    /// One that is there.
    pub fn there(partition: PartitionId) -> PlacedPartition {
        PlacedPartition { partition, leads_first: None, founders: Vec::new() }
    }
}

impl Placement {
    fn in_memory() -> Placement {
        let (among, queues) = (Vec::new(), BTreeMap::new());
        Placement { in_memory: true, leader_locator: None, is_mapped: true, among, queues }
    }
}

/// Who is to lead each partition of a pool first: of its founders the one that leads the fewest before it.
pub(super) fn first_leaders<'a>(
    pool: impl Iterator<Item = (PartitionId, &'a [NodeNumber])>,
) -> BTreeMap<PartitionId, NodeNumber> {
    let mut led: BTreeMap<NodeNumber, u32> = BTreeMap::new();
    let mut choose = |(partition, founders): (PartitionId, &[NodeNumber])| {
        let first = *founders.iter().min_by_key(|node| (led.get(node).copied().unwrap_or(0), **node))?;
        *led.entry(first).or_default() += 1;
        Some((partition, first))
    };
    pool.filter_map(&mut choose).collect()
}

fn least_laden(held: &BTreeMap<NodeNumber, u32>, size: u32) -> Vec<NodeNumber> {
    let mut members: Vec<NodeNumber> = held.keys().copied().collect();
    members.sort_by_key(|node| (held[node], *node));
    members.truncate(size as usize);
    members.sort_unstable();
    members
}

fn pool_name(size: u32) -> Name {
    Name::from(format!("quorum-{size}").as_str())
}

impl Topology {
    fn is_mapped(&self) -> bool {
        self.machine_version >= MAP_DECIDES
    }

    fn has_small_pools(&self) -> bool {
        self.machine_version >= HAS_SMALL_POOLS
    }

    /// The nodes that began the group of a partition; `None` where those did who founded the cluster.
    pub fn founders_of(&self, partition: PartitionId) -> Option<&[NodeNumber]> {
        self.cluster.founders.get(&partition).map(Vec::as_slice)
    }

    pub(super) fn founders_in(&self, pool: PoolId) -> impl Iterator<Item = (PartitionId, &[NodeNumber])> {
        let is_of = move |id: &PartitionId| self.cluster.partitions.get(id).is_some_and(|put| put.pool == pool);
        self.cluster.founders.iter().filter(move |(id, _)| is_of(id)).map(|(id, founders)| (*id, &founders[..]))
    }

    /// Who of the founders of a partition is to lead it first.
    pub fn leads_first(&self, partition: PartitionId) -> Option<NodeNumber> {
        let pool = self.cluster.partitions.get(&partition)?.pool;
        first_leaders(self.founders_in(pool)).get(&partition).copied()
    }

    /// The nodes that have copies.
    pub(super) fn hosts(&self) -> Vec<NodeNumber> {
        self.nodes().filter(|(_, node)| node.standing == NodeStanding::Member).map(|(number, _)| number).collect()
    }

    /// How many copies a new queue is to have, if those are fewer than the nodes.
    fn size_wanted(&self, shape: &QueueShape, rules: &Rules) -> Option<u32> {
        if shape.queue_type == QueueType::Classic {
            return (self.keeps_classic_on_one() && self.hosts().len() > 1).then_some(1);
        }
        if !self.has_small_pools() {
            return None;
        }
        let size = Topology::copies_asked(shape, rules);
        let has_fewer = (size as usize) < self.hosts().len();
        // Where no partition is left that is on all nodes, the queue is to have its copies all the same.
        (has_fewer || self.is_nowhere_whole()).then_some(size)
    }

    /// Whether there are partitions for quorum queues that all nodes should have, and none that all have.
    fn is_nowhere_whole(&self) -> bool {
        let everywhere = || self.partitions_everywhere(Some(QueueType::Quorum));
        self.has_moved_copies() && !everywhere().is_empty() && self.everywhere_whole().is_empty()
    }

    /// The partitions for quorum queues that all nodes have.
    fn everywhere_whole(&self) -> Vec<PlacedPartition> {
        let mut everywhere = self.partitions_everywhere(Some(QueueType::Quorum));
        everywhere.retain(|placed| !self.lacks_copies(placed.partition));
        everywhere
    }

    /// How many copies a quorum queue asks for.
    pub(super) fn copies_asked(shape: &QueueShape, rules: &Rules) -> u32 {
        let target = rules.target_group_size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        shape.settings.initial_group_size.max(target).unwrap_or(GROUP_SIZE_DEFAULT)
    }

    fn pool_of_size(&self, size: u32) -> Option<PoolId> {
        let name = pool_name(size);
        self.cluster.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, _)| *id)
    }

    /// Whether a partition belongs to a pool of fewer copies than nodes.
    fn is_of_size(&self, partition: PartitionId) -> bool {
        self.cluster.founders.contains_key(&partition)
    }

    /// Whether a pool is one of fewer copies than nodes: its partitions have founders.
    pub(super) fn is_small_pool(&self, pool: PoolId) -> bool {
        let of_pool = |id: &PartitionId| self.cluster.partitions.get(id).is_some_and(|put| put.pool == pool);
        self.cluster.founders.keys().any(of_pool)
    }

    /// Whether anybody misses a partition that nobody leads: of pools of fewer copies than nodes only those with
    /// queues.
    pub fn is_missed(&self, partition: PartitionId) -> bool {
        !self.is_of_size(partition) || self.queues_in(partition) > 0
    }

    /// How many queues live in a partition.
    pub fn queues_in(&self, partition: PartitionId) -> u32 {
        self.queues.by_partition().get(&partition).copied().unwrap_or(0)
    }

    /// Where a new queue may live.
    pub(super) fn placement(&self, in_memory: bool, vhost: VhostId, name: &Name, shape: &QueueShape) -> Placement {
        if in_memory {
            return Placement::in_memory();
        }
        let held = self.policies_matching(vhost, name, shape.queue_type);
        let rules = self.rules_under(vhost, &held, shape);
        let leader_locator = self.locator_under(vhost, &held).or(shape.settings.leader_locator);
        let among = match self.size_wanted(shape, &rules) {
            _ if shape.settings.is_dedicated && self.has_dedicated() => self.dedicated_places(shape, &rules),
            None if shape.queue_type == QueueType::Quorum && self.has_moved_copies() => self.everywhere_whole(),
            None => self.partitions_everywhere(Some(shape.queue_type)),
            Some(size) => self.kept_apart(size, shape.queue_type, self.partitions_of_size(size)),
        };
        let (is_mapped, queues) = (self.is_mapped(), self.queues.by_partition().clone());
        Placement { in_memory, leader_locator, is_mapped, among, queues }
    }

    /// Where a durable queue may live of which no more is known: what is declared takes the place that
    /// it asks for.
    pub fn placement_everywhere(&self) -> Placement {
        let (among, queues) = (self.partitions_everywhere(None), self.queues.by_partition().clone());
        Placement { in_memory: false, leader_locator: None, is_mapped: self.is_mapped(), among, queues }
    }

    /// The policy's word on where leaders should be.
    fn locator_under(&self, vhost: VhostId, held: &Held) -> Option<LeaderLocator> {
        let policies = &self.vhost_of(vhost)?.policies;
        LeaderLocator::of(policies.get(held[0].as_ref()?)?.definition.get("queue-leader-locator")?)
    }

    fn partitions_everywhere(&self, queue_type: Option<QueueType>) -> Vec<PlacedPartition> {
        let may = |id: &PartitionId| self.may_place_in(*id, queue_type) && !self.is_of_size(*id);
        let known = self.cluster.partitions.keys().copied().filter(may);
        known.map(PlacedPartition::there).collect()
    }

    fn serving_of_size(&self, size: u32) -> Vec<PartitionId> {
        let Some(pool) = self.pool_of_size(size) else { return Vec::new() };
        let serves = |(id, put): (&PartitionId, &PoolPartition)| {
            (put.pool == pool && put.stage == PartitionStage::Serving).then_some(*id)
        };
        self.cluster.partitions.iter().filter_map(serves).collect()
    }

    /// Those in which a new queue has as many copies as it asks for.
    fn whole_of_size(&self, size: u32) -> Vec<PartitionId> {
        let mut serving = self.serving_of_size(size);
        serving.retain(|id| !self.is_short_of_copies(*id));
        serving
    }

    /// Where a new queue may live of what there is, and what comes to be with it. Partitions that lack copies take it
    /// only where there is nothing else.
    fn homes_of_size(&self, size: u32) -> (Vec<PartitionId>, Vec<(PartitionId, Vec<NodeNumber>)>) {
        let whole = self.whole_of_size(size);
        let new = self.planned(size, &whole);
        match whole.is_empty() && new.is_empty() {
            true => (self.serving_of_size(size), new),
            false => (whole, new),
        }
    }

    /// Those that there are, and those that come to be with the next queue.
    fn partitions_of_size(&self, size: u32) -> Vec<PlacedPartition> {
        let (serving, new) = self.homes_of_size(size);
        let there = serving.into_iter().map(|id| self.placed(id));
        let founded = self.pool_of_size(size).into_iter().flat_map(|pool| self.founders_in(pool));
        let first = first_leaders(founded.chain(new.iter().map(|(id, members)| (*id, &members[..]))));
        let planned = new.into_iter().map(|(partition, founders)| PlacedPartition {
            partition,
            leads_first: first.get(&partition).copied(),
            founders,
        });
        there.chain(planned).collect()
    }

    /// Those of `among` in which a queue of this type is to live. What was given copies is no home for whoever asks for
    /// fewer; and of the partitions that a node has alone every other one is for classic queues and the rest for quorum
    /// queues, as those may be given copies, which would come to all queues of their partition. Where a node has none
    /// such, all of its own will do.
    fn kept_apart(&self, size: u32, queue_type: QueueType, mut among: Vec<PlacedPartition>) -> Vec<PlacedPartition> {
        let is_whole = |placed: &PlacedPartition| !self.cluster.copies.contains_key(&placed.partition);
        if among.iter().any(is_whole) {
            among.retain(is_whole);
        }
        if size != 1 || !self.keeps_classic_on_one() {
            return among;
        }
        let founded = self.pool_of_size(size).into_iter().flat_map(|pool| self.founders_in(pool));
        let planned = among.iter().map(|placed| (placed.partition, &placed.founders[..]));
        let founders: BTreeMap<PartitionId, &[NodeNumber]> = planned.chain(founded).collect();
        let mut takes_classic = BTreeMap::new();
        let meant: BTreeSet<PartitionId> = founders
            .into_iter()
            .filter(|(_, founders)| {
                let turn = takes_classic.entry(founders.first().copied()).or_insert(false);
                *turn = !*turn;
                *turn == (queue_type == QueueType::Classic)
            })
            .map(|(partition, _)| partition)
            .collect();
        let is_meant = |placed: &PlacedPartition| meant.contains(&placed.partition);
        let served: BTreeSet<Option<NodeNumber>> =
            among.iter().filter(|placed| is_meant(placed)).map(|placed| placed.leads_first).collect();
        among.retain(|placed| is_meant(placed) || !served.contains(&placed.leads_first));
        among
    }

    /// Where a new durable queue is to live of a declare that nobody has placed, if it is to have one copy only: where the
    /// fewest do.
    pub fn place_on_one(&self, declare: &DeclareQueue) -> Option<PartitionId> {
        let shape = self.queue_shape(declare).ok()?;
        let held = self.policies_matching(declare.vhost, &declare.name, shape.queue_type);
        let size = self.size_wanted(&shape, &self.rules_under(declare.vhost, &held, &shape))?;
        if size != 1 || shape.settings.is_dedicated {
            return None;
        }
        let among = self.kept_apart(size, shape.queue_type, self.partitions_of_size(size));
        among.into_iter().map(|placed| placed.partition).min_by_key(|id| (self.queues_in(*id), *id))
    }

    /// A classic queue that has its only copy in a partition, and how many others do beside it: nobody gives that
    /// partition copies.
    pub fn classic_kept_on_one(&self, partition: PartitionId) -> Option<(&Name, usize)> {
        if !self.is_of_size(partition) || !self.keeps_classic_on_one() {
            return None;
        }
        let is_classic = |queue: &&Queue| queue.partition == partition && queue.shape.queue_type == QueueType::Classic;
        let mut classic = self.declared_queues().filter(is_classic);
        let first = classic.next()?;
        Some((&first.name, classic.count()))
    }

    /// One that is there. Who has the only copy of it leads it, heard of or not.
    fn placed(&self, partition: PartitionId) -> PlacedPartition {
        let sole = self.sole_member(partition);
        PlacedPartition { partition, leads_first: sole, founders: sole.into_iter().collect() }
    }

    /// How many copies of small pools each node has.
    fn copies_held(&self) -> BTreeMap<NodeNumber, u32> {
        let mut held: BTreeMap<NodeNumber, u32> = self.hosts().into_iter().map(|node| (node, 0)).collect();
        for partition in self.cluster.founders.keys().filter_map(|id| self.cluster.partitions.get(id)) {
            for member in &partition.members {
                held.entry(*member).and_modify(|held| *held += 1);
            }
        }
        held
    }

    /// The nodes that have the fewest copies, so many if there are as many.
    pub(super) fn least_laden(&self, size: u32) -> Vec<NodeNumber> {
        least_laden(&self.copies_held(), size)
    }

    /// The partitions that a pool lacks, with the members that they would have: those with the fewest
    /// copies.
    fn planned(&self, size: u32, serving: &[PartitionId]) -> Vec<(PartitionId, Vec<NodeNumber>)> {
        let known = self.pool_of_size(size).and_then(|id| self.cluster.pools.get(&id));
        // Those that lack copies are beyond what a pool is to have for new queues.
        let target = known.map_or(POOL_PARTITIONS, |pool| pool.target.min(POOL_PARTITIONS));
        let lacks = (target as usize).saturating_sub(serving.len());
        let of_all = self.cluster.founders.len().saturating_sub(self.dedicated_count());
        let places = (POOL_PARTITIONS_OF_ALL as usize).saturating_sub(of_all);
        let room = PARTITIONS_EVER_MAX.saturating_sub(self.cluster.partitions.len()).min(places);
        let first = self.cluster.partitions.keys().last().map_or(1, |last| last.0 + 1);
        let mut held = self.copies_held();
        let plan = |at| {
            let members = least_laden(&held, size);
            members.iter().for_each(|member| *held.entry(*member).or_default() += 1);
            (PartitionId(first + at as u32), members)
        };
        let mut planned: Vec<_> = (0..lacks.min(room)).map(plan).collect();
        if size == 1 && self.keeps_classic_on_one() {
            self.plan_for_each_node(target, serving, &mut planned, (first, room));
        }
        planned
    }

    /// Partitions on one node for those that have too few, as they came later: what is declared over a node may
    /// live there.
    fn plan_for_each_node(
        &self,
        target: u32,
        serving: &[PartitionId],
        planned: &mut Vec<(PartitionId, Vec<NodeNumber>)>,
        (first, room): (u32, usize),
    ) {
        for node in self.hosts() {
            let there = serving.iter().filter(|id| self.sole_member(**id) == Some(node)).count();
            let to_come = planned.iter().filter(|(_, members)| members[..] == [node]).count();
            for _ in there + to_come..(target / POOL_PARTITIONS * OF_ONE_NODE_MIN) as usize {
                if planned.len() < room {
                    planned.push((PartitionId(first + planned.len() as u32), vec![node]));
                }
            }
        }
    }

    /// Makes what a pool lacks.
    fn make_pool(&mut self, size: u32, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let (serving, planned) = self.homes_of_size(size);
        if serving.is_empty() && planned.is_empty() {
            return Err(Refusal::precondition_failed("there were too many partitions"));
        }
        let known = self.pool_of_size(size);
        if known.is_none() && self.cluster.pools.len() >= POOLS_MAX {
            return Err(Refusal::precondition_failed("there are too many pools of partitions"));
        }
        let next = PoolId(self.cluster.pools.keys().last().map_or(FIRST_POOL.0, |last| last.0) + 1);
        let pool = known.unwrap_or(next);
        let serves_classic = size == 1 && self.keeps_classic_on_one();
        self.cluster.pools.entry(pool).or_insert_with(|| PartitionPool {
            name: pool_name(size),
            replication_factor: size,
            target: POOL_PARTITIONS,
            serves_classic,
            serves_quorum: true,
        });
        for (id, members) in planned {
            self.cluster.founders.insert(id, members.clone());
            let partition = PoolPartition { pool, members, stage: PartitionStage::Serving };
            self.cluster.partitions.insert(id, partition);
            effects.push(Effect::MembersChanged { partition: id });
        }
        let there = self.partitions_in(pool);
        self.cluster.pools.entry(pool).and_modify(|pool| pool.target = pool.target.max(there));
        Ok(())
    }

    /// Where a new durable queue lives that whoever declares it would have in `asked`. Errors: 406 where
    /// it may live nowhere; nothing has changed.
    pub(super) fn settle_place(
        &mut self,
        asked: PartitionId,
        (queue, shape, rules): (&Name, &QueueShape, &Rules),
        effects: &mut Vec<Effect>,
    ) -> Result<PartitionId, Refusal> {
        let refused = || {
            Refusal::precondition_failed(&format!(
                "cannot declare queue '{queue}': partition {} takes no such queues",
                asked.0
            ))
        };
        if shape.settings.is_dedicated && self.has_dedicated() {
            return self.settle_dedicated(asked, (queue, shape, rules), effects);
        }
        let (among, may_move) = match self.size_wanted(shape, rules) {
            Some(size) => {
                self.make_pool(size, effects)?;
                (self.homes_of_size(size).0, true)
            }
            // Who asks for fewer copies may have seen more nodes.
            None if self.is_of_size(asked) => {
                let everywhere = self.partitions_everywhere(Some(shape.queue_type));
                (everywhere.iter().map(|placed| placed.partition).collect(), true)
            }
            // So may who asks for a partition that had a copy everywhere then.
            None if shape.queue_type == QueueType::Quorum && self.lacks_copies(asked) => {
                (self.everywhere_whole().iter().map(|placed| placed.partition).collect(), true)
            }
            None => (Vec::new(), false),
        };
        if !may_move {
            return if self.may_place_in(asked, Some(shape.queue_type)) { Ok(asked) } else { Err(refused()) };
        }
        let fewest = || among.iter().copied().min_by_key(|id| (self.queues_in(*id), *id));
        let place = if among.contains(&asked) { Some(asked) } else { fewest() };
        let place = place.ok_or_else(refused)?;
        self.restore_copies(place, effects);
        Ok(place)
    }

    /// Partitions of small pools that have no majority without a node, as it is one of two members or the
    /// only one: those without queues retire, and the others keep it from being forgotten where it has the
    /// only copy. Errors: how many queues would be lost.
    pub(super) fn retire_without(&mut self, number: NodeNumber) -> Result<(), String> {
        let is_sole = |put: &PoolPartition| put.members == [number];
        let sole: Vec<PartitionId> =
            self.cluster.partitions.iter().filter(|(_, put)| is_sole(put)).map(|(id, _)| *id).collect();
        if sole.iter().any(|id| !self.is_of_size(*id)) {
            return Err("it has the only copy of a partition".to_owned());
        }
        let queues: u32 = sole.iter().map(|id| self.queues_in(*id)).sum();
        if queues > 0 {
            return Err(format!("it has the only copy of {queues} queues: delete them first"));
        }
        let has_no_majority = |put: &PoolPartition| put.members.contains(&number) && put.members.len() <= 2;
        let is_empty = |id: &PartitionId| self.is_of_size(*id) && self.queues_in(*id) == 0;
        let partitions = self.cluster.partitions.iter();
        let retiring: Vec<PartitionId> =
            partitions.filter(|(id, put)| has_no_majority(put) && is_empty(id)).map(|(id, _)| *id).collect();
        for id in retiring {
            let retired = self.cluster.partitions.get_mut(&id).expect("it was found");
            (retired.members, retired.stage) = (Vec::new(), PartitionStage::Retired);
            self.cluster.founders.remove(&id);
            self.cluster.copies.remove(&id);
        }
        Ok(())
    }

    /// Partitions of small pools that have fewer members than they are to have get others, as far as
    /// there are nodes.
    pub(super) fn fill_pools(&mut self, effects: &mut Vec<Effect>) {
        let lacking: Vec<PartitionId> = self.cluster.founders.keys().copied().collect();
        for id in lacking {
            let Some(partition) = self.cluster.partitions.get(&id) else { continue };
            let size = self.copies_wanted(id, partition);
            let mut members = partition.members.clone();
            let held = self.copies_held();
            let others = held.keys().copied().filter(|node| !members.contains(node));
            let mut others: Vec<NodeNumber> = others.collect();
            // Who had the copy taken from it gets it back last.
            others.sort_by_key(|node| (self.life_in(id, *node) > 0, held[node], *node));
            let missing = size.saturating_sub(members.len());
            members.extend(others.into_iter().take(missing));
            members.sort_unstable();
            if members != partition.members {
                self.cluster.partitions.entry(id).and_modify(|partition| partition.members = members);
                effects.push(Effect::MembersChanged { partition: id });
            }
        }
    }

    /// Partitions whose members differ between two states, as effects of the change.
    pub(super) fn members_changed_since(&self, before: &Topology, effects: &mut Vec<Effect>) {
        let lives = self.cluster.lives.keys().map(|(id, _)| id);
        for id in self.cluster.founders.keys().chain(lives).collect::<BTreeSet<_>>() {
            let members = |topology: &Topology| {
                let members = topology.cluster.partitions.get(id).map(|put| put.members.clone()).unwrap_or_default();
                members.into_iter().map(|node| (node, topology.life_in(*id, node))).collect::<Vec<_>>()
            };
            if members(self) != members(before) {
                effects.push(Effect::MembersChanged { partition: *id });
            }
        }
    }

    pub(super) fn has_founders(&self) -> bool {
        !self.cluster.founders.is_empty()
    }

    pub(super) fn write_founders(&self, writer: &mut Writer) {
        writer.length(self.cluster.founders.len());
        for (partition, founders) in &self.cluster.founders {
            writer.number(partition.0.into());
            writer.length(founders.len());
            founders.iter().for_each(|founder| writer.number(founder.0.into()));
        }
    }

    /// `may_be_none`: there need be no such pools.
    pub(super) fn read_founders(&mut self, reader: &mut Reader<'_>, may_be_none: bool) -> Result<(), Malformed> {
        let mut last = PartitionId(0);
        for _ in 0..reader.count("founders")? {
            let id = PartitionId(reader.number_u32("partition")?);
            let mut founders = Vec::new();
            for _ in 0..reader.count("founders")? {
                founders.push(NodeNumber(reader.number_u32("founder")?));
            }
            let is_there = self.cluster.partitions.get(&id).is_some_and(|put| put.stage != PartitionStage::Retired);
            let are_nodes = founders.iter().all(|founder| self.node(*founder).is_some());
            if id <= last || !is_there || !are_nodes || founders.is_empty() || !founders.is_sorted_by(|a, b| a < b) {
                return Err(reader.malformed("founders"));
            }
            self.cluster.founders.insert(id, founders);
            last = id;
        }
        if self.has_founders() || may_be_none { Ok(()) } else { Err(reader.malformed("founders")) }
    }
}

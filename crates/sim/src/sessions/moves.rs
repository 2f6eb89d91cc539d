//! Copies that somebody gives to nodes and takes from them while all goes on, as who runs a cluster does it, and is in
//! a hurry: nobody waits until groups are where the last change wants them.
//!
//! Invariant: a partition has three copies at least. With fewer new queues would live elsewhere.

use super::members::number_of;
use super::{Event, Phase, Sessions};
use crate::node::StepOutput;
use crate::schedule::{MS, Micros};
use crate::sessions::front::PARTITIONS;
use broker::topology::{Command as Change, CopyChange};
use broker::{NodeNumber, PartitionId};
use consensus::NodeId;

/// How often somebody looks.
const LOOK_EVERY: Micros = 700 * MS;
/// How often that changes something.
const CHANGE_PERCENT: u64 = 60;

impl Sessions {
    /// Somebody gives a copy of a partition to a node, or takes one.
    pub(super) fn move_copies(&mut self) {
        self.schedule.after(LOOK_EVERY, Event::Moves);
        if self.phase != Phase::Works || !self.random.chance(CHANGE_PERCENT) {
            return;
        }
        let is_open = |node: &usize| self.fronts[*node].as_ref().is_some_and(|front| front.is_open);
        let open: Vec<usize> = (0..self.nodes.len()).filter(is_open).collect();
        if open.is_empty() {
            return;
        }
        let via = *self.random.pick(&open);
        let topology = self.nodes[via].topology().expect("it is open");
        let small = (1..=PARTITIONS).map(PartitionId).filter(|id| topology.founders_of(*id).is_some());
        let small: Vec<PartitionId> = small.collect();
        if small.is_empty() {
            return;
        }
        let all: Vec<NodeNumber> = (0..self.nodes.len()).map(number_of).collect();
        let wanted = |id: PartitionId| self.nodes[via].topology().expect("it is open").members_wanted(id);
        let partition = *self.random.pick(&small);
        let (members, taken) = (wanted(partition), all.iter().map(|node| topology.life_in(partition, *node)).sum());
        let others: Vec<NodeNumber> = all.into_iter().filter(|node| !members.contains(node)).collect();
        // One that was asked for before may be on its way.
        let may_take = members.len() > 3 && self.taken.get(&partition).is_none_or(|before| *before < taken);
        let change = match may_take {
            true => CopyChange::Take { partition, node: *self.random.pick(&members) },
            false if others.is_empty() => return,
            false => CopyChange::Give { partition, node: *self.random.pick(&others) },
        };
        if may_take {
            self.taken.insert(partition, taken);
        }
        let token = self.fronts[via].as_ref().expect("it is open").next();
        let now = self.schedule.now();
        self.trace.line(now, || format!("n{} is asked for {change:?}", via + 1));
        self.ledger.figures.moved += 1;
        let mut out = StepOutput::default();
        self.nodes[via].propose(token, &Change::ChangeCopies(change), &mut out);
        self.settle(via, out);
    }

    /// What is not yet as the map has it.
    pub(super) fn unmoved(&self) -> Option<String> {
        let topology = self.nodes.iter().find_map(|node| node.topology())?;
        for id in (1..=PARTITIONS).map(PartitionId).filter(|id| topology.founders_of(*id).is_some()) {
            let mut wanted: Vec<NodeId> =
                topology.lives_wanted(id).into_iter().map(|(node, life)| NodeId::of(node.0, life)).collect();
            wanted.sort_unstable();
            for (node, known) in self.nodes.iter().enumerate() {
                let own = wanted.iter().find(|member| member.number() == number_of(node).0).copied();
                let here = known.partition(id.0 as usize - 1).map(|partition| partition.replica());
                let is_so = here.map(|replica| replica.node()) == own
                    && here.is_none_or(|replica| replica.group().membership().voters == wanted);
                if !is_so {
                    let has = here.map(|replica| (replica.node(), replica.group().membership()));
                    return Some(format!("n{} has of group {} {has:?} where {wanted:?} are wanted", node + 1, id.0));
                }
            }
        }
        None
    }
}

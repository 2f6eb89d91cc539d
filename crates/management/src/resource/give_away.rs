//! `/api/leveret/nodes/NODE/give-away`: other nodes get what only this one has, or too few have without it, before it
//! leaves its cluster.
//!
//! Invariant: each request does the next step of each partition, and says what is to be waited for; asked again, it goes on
//! from there, whoever asks. A copy is taken from this node once every other one keeps up, so none is ever the last.

use super::Cx;
use super::leaving;
use super::whole::{DAMAGED, Members, in_step, leading, members, of_group};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::map::Map;
use crate::quorum::TOPOLOGY;
use broker::topology::{Command, CopyChange, NodeStanding, PartitionStage, PoolPartition, Topology};
use broker::{NodeNumber, PartitionId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What a partition needs before this node may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Another copy, on this node.
    Give(NodeNumber),
    /// Its other copies have to catch up.
    Wait,
    /// This node's copy is to go.
    Take,
    /// Its group has to let this node go.
    Leave,
    /// No other node can have a copy.
    Nobody,
}

/// How a partition stands, of which this node has a copy.
struct Held<'a> {
    own: NodeNumber,
    members: &'a [NodeNumber],
    /// How many copies its pool has.
    of_pool: usize,
    /// Its other members keep up, so that it can do without this node's.
    is_in_step: bool,
}

/// So many copies, this node's among them, are enough: the others are a majority.
const ENOUGH: usize = 3;
/// So many partitions are copied at a time, or a node would write all that another has at once.
const COPIED_AT_ONCE: usize = 3;

impl Held<'_> {
    /// `None`: the others can do without this node as it is. `heirs`: nodes that could have a copy, best first. Another one
    /// gets a copy also where the others are a majority: they would count this node's vote until they have caught up with
    /// a copy that is made when it is gone, and until then no other one of them may go.
    fn step(&self, heirs: impl IntoIterator<Item = NodeNumber>) -> Option<Step> {
        let has_more = self.members.len() > self.of_pool;
        if has_more {
            return Some(if self.is_in_step { Step::Take } else { Step::Wait });
        }
        let heir = heirs.into_iter().find(|node| *node != self.own && !self.members.contains(node));
        match heir {
            Some(heir) => Some(Step::Give(heir)),
            None if self.members.len() < ENOUGH => Some(Step::Nobody),
            None => self.waits(),
        }
    }

    /// One of the others may have no vote before it has caught up: with this node's vote still counted none of them could go.
    fn waits(&self) -> Option<Step> {
        (self.members.len() >= ENOUGH && !self.is_in_step).then_some(Step::Wait)
    }
}

/// Whether other nodes can get copies of a partition that could not do without this node, so that it may go afterwards.
pub(super) fn is_possible(cx: Cx<'_>, topology: &Topology, map: &Map, partition: PartitionId) -> bool {
    let Some((_, put)) = topology.partitions().find(|(id, _)| *id == partition) else { return false };
    let held = Held { own: map.own, members: &put.members, of_pool: of_pool(topology, put), is_in_step: false };
    put.members.len().min(held.of_pool) < ENOUGH
        && topology.founders_of(partition).is_some()
        && topology.moves_copies()
        && held.step(heirs(cx, topology, map)).is_some_and(|step| step != Step::Nobody)
}

fn of_pool(topology: &Topology, put: &PoolPartition) -> usize {
    topology.pools().find(|(id, _)| *id == put.pool).map_or(0, |(_, pool)| pool.replication_factor as usize)
}

fn standing_of(topology: &Topology, number: NodeNumber) -> NodeStanding {
    topology.node(number).map_or(NodeStanding::Gone, |node| node.standing)
}

/// Nodes that may get copies, those with the fewest first.
fn heirs(cx: Cx<'_>, topology: &Topology, map: &Map) -> Vec<NodeNumber> {
    let mut held: BTreeMap<NodeNumber, usize> = BTreeMap::new();
    for (_, put) in topology.partitions() {
        put.members.iter().for_each(|member| *held.entry(*member).or_default() += 1);
    }
    let may =
        |number: NodeNumber| standing_of(topology, number) == NodeStanding::Member && !cx.handle().node_rests(number);
    let reached = map.nodes().filter(|node| node.is_reached && !node.is_own).map(|node| node.number);
    let mut all: Vec<NodeNumber> = reached.filter(|number| may(*number)).collect();
    all.sort_by_key(|number| (held.get(number).copied().unwrap_or(0), *number));
    all
}

/// POST: the next step of each partition; answers with those that have to be waited for, each with why. Errors: 400
/// where no other node can have a copy.
pub(super) async fn step(cx: Cx<'_>, node: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.need_node(node)?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    if !cx.handle().rests() {
        return Err(Refused::BadRequest(format!(
            "{} serves clients, and would make for itself alone again what it gave away: drain it first (`leveret cluster leave` does \
             all of it)",
            cx.handle().facts().node_name
        )));
    }
    // Whichever node passed the question on, this one asks all others itself.
    let cx = Cx { is_asked: false, ..cx };
    let map = cx.map();
    let (rows, _) = members(cx, &map).await;
    let steps = steps(cx, &map, &rows);
    let nobody: Vec<String> =
        steps.iter().filter(|(_, step)| *step == Step::Nobody).map(|(id, _)| id.0.to_string()).collect();
    if !nobody.is_empty() {
        return Err(Refused::BadRequest(format!(
            "no other node runs that could get a copy of what only {} has (partition {}): bring one back, let one join, or \
             delete these queues",
            cx.handle().facts().node_name,
            nobody.join(", ")
        )));
    }
    let mut waiting = Vec::new();
    for (partition, step) in steps {
        let is_busy = waiting.iter().filter(|row: &&Value| row["step"] == "copy").count() >= COPIED_AT_ONCE;
        let change = match step {
            Step::Give(node) if !is_busy => {
                let to = map.node(node).map(|node| node.name.as_str());
                tracing::info!(partition = partition.0, to, "another node gets a copy before this one leaves");
                Some(CopyChange::Give { partition, node })
            }
            Step::Take => {
                tracing::info!(partition = partition.0, "the others keep up: this node's copy goes");
                Some(CopyChange::Take { partition, node: map.own })
            }
            _ => None,
        };
        if let Some(change) = change {
            cx.handle().change(Command::ChangeCopies(change)).await?;
        }
        let (word, behind) = match step {
            Step::Take | Step::Leave => ("leave", 0),
            Step::Give(_) if is_busy => ("turn", 0),
            _ => ("copy", behind(&rows, partition)),
        };
        let queues = cx.handle().topology().declared_queues().filter(|queue| queue.partition == partition).count();
        waiting.push(json!({ "partition": partition.0, "queues": queues, "step": word, "behind": behind }));
    }
    Ok(Answer::json(&json!({ "waiting": waiting })))
}

fn steps(cx: Cx<'_>, map: &Map, rows: &Members) -> Vec<(PartitionId, Step)> {
    let topology = cx.handle().topology();
    let heirs = heirs(cx, &topology, map);
    let own_name = cx.handle().facts().node_name.as_str();
    let of_topology: Vec<NodeNumber> = map.nodes().map(|node| node.number).collect();
    let held = |members, of_pool, id| Held {
        own: map.own,
        members,
        of_pool,
        is_in_step: others_in_step(map, rows, id, members),
    };
    let mut steps = Vec::new();
    // All partitions get one that joins once it is a member.
    let joins = map.nodes().any(|node| node.is_reached && standing_of(&topology, node.number) == NodeStanding::Joining);
    if joins || held(&of_topology, of_topology.len(), TOPOLOGY).waits().is_some() {
        steps.push((TOPOLOGY, Step::Wait));
    }
    for (id, put) in topology.partitions().filter(|(_, put)| put.stage != PartitionStage::Retired) {
        if !put.members.contains(&map.own) {
            if topology.founders_of(id).is_none() || !topology.is_missed(id) {
                continue;
            }
            let is_leaving = leaving::of(&topology, map, rows, id).iter().any(|leaver| leaver.node == own_name);
            steps.extend(is_leaving.then_some((id, Step::Leave)));
            continue;
        }
        let held = held(&put.members, of_pool(&topology, put), id);
        // What nobody uses may go with its only copy, and what all nodes have goes on with the others'. Nodes of earlier
        // builds know of no copies that move, and do without this node.
        let stays = topology.founders_of(id).is_none()
            || !topology.is_missed(id)
            || put.members.len() >= ENOUGH && !topology.moves_copies();
        let step = if stays { held.waits() } else { held.step(heirs.iter().copied()) };
        steps.extend(step.map(|step| (id, step)));
    }
    steps
}

fn leader_row(rows: &Members, partition: PartitionId) -> Option<&Value> {
    leading(&of_group(rows, partition)).map(|(_, row)| row)
}

/// Whether the members of a partition without this node's keep up with its leader: all of them, or of three and more all that
/// are reached and not damaged, and a majority.
fn others_in_step(map: &Map, rows: &Members, partition: PartitionId, members: &[NodeNumber]) -> bool {
    let Some(leader) = leader_row(rows, partition) else { return false };
    let others: Vec<NodeNumber> = members.iter().copied().filter(|number| *number != map.own).collect();
    let keeps_up = |number: &NodeNumber| {
        let name = map.node(*number).map(|node| node.name.clone());
        name.and_then(|name| rows.get(&(partition.0, name))).is_some_and(|row| in_step(row, leader))
    };
    let is_damaged = |name: &str| rows.get(&(partition.0, name.to_owned())).is_some_and(|row| row["role"] == DAMAGED);
    let is_excused = |number: &NodeNumber| {
        others.len() >= ENOUGH && map.node(*number).is_none_or(|node| !node.is_reached || is_damaged(&node.name))
    };
    others.iter().all(|number| keeps_up(number) || is_excused(number))
        && 2 * others.iter().filter(|number| keeps_up(number)).count() > others.len()
}

/// How many entries the copy of a partition that is the furthest behind has to fetch.
fn behind(rows: &Members, partition: PartitionId) -> u64 {
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap_or_default();
    let commit = leader_row(rows, partition).map_or(0, |leader| number(leader, "commit"));
    let synced = rows.iter().filter(|((id, _), _)| *id == partition.0).map(|(_, row)| number(row, "synced")).min();
    commit.saturating_sub(synced.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(members: &[u32], of_pool: usize, is_in_step: bool, heirs: &[u32]) -> Option<Step> {
        let members: Vec<NodeNumber> = members.iter().copied().map(NodeNumber).collect();
        Held { own: NodeNumber(1), members: &members, of_pool, is_in_step }.step(heirs.iter().copied().map(NodeNumber))
    }

    #[test]
    fn what_only_one_node_has_is_given_to_another_and_taken_from_it_once_that_keeps_up() {
        assert_eq!(step(&[1], 1, false, &[3, 2]), Some(Step::Give(NodeNumber(3))));
        assert_eq!(step(&[1, 3], 1, false, &[3, 2]), Some(Step::Wait));
        assert_eq!(step(&[1, 3], 1, true, &[3, 2]), Some(Step::Take));
        assert_eq!(step(&[1], 1, false, &[]), Some(Step::Nobody));
    }

    #[test]
    fn of_two_copies_one_more_comes_first_and_of_three_where_another_node_can_have_one() {
        assert_eq!(step(&[1, 3], 2, true, &[3, 2]), Some(Step::Give(NodeNumber(2))));
        assert_eq!(step(&[1, 3], 2, true, &[3]), Some(Step::Nobody));
        assert_eq!(step(&[1, 2, 3], 2, false, &[4]), Some(Step::Wait));
        assert_eq!(step(&[1, 2, 3], 2, true, &[4]), Some(Step::Take));
        assert_eq!(step(&[1, 2, 3], 3, false, &[3, 4]), Some(Step::Give(NodeNumber(4))));
        assert_eq!(step(&[1, 2, 3, 4], 3, false, &[5]), Some(Step::Wait));
        assert_eq!(step(&[1, 2, 3, 4], 3, true, &[5]), Some(Step::Take));
        assert_eq!(step(&[1, 2, 3], 3, true, &[2, 3]), None, "the others suffice");
        assert_eq!(step(&[1, 2, 3, 4, 5], 5, true, &[]), None);
    }

    #[test]
    fn what_all_nodes_have_waits_until_newcomers_vote() {
        assert_eq!(step(&[1, 2, 3, 4], 9, false, &[2, 3, 4]), Some(Step::Wait), "one of the others is no voter yet");
        assert_eq!(step(&[1, 2, 3, 4], 9, true, &[2, 3, 4]), None);
    }
}

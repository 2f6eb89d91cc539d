//! `/api/leveret/nodes/NODE/give-away`: other nodes get what only this one has, or too few have without it, before it
//! leaves its cluster.
//!
//! Invariant: each request does the next step of each partition, and says what is to be waited for; asked again, it goes on
//! from there, whoever asks. A copy is taken from this node once every other one keeps up, so none is ever the last.

use super::late::{self, Late};
use super::whole::{DAMAGED, Members, in_step, leading, members, of_group};
use super::{Cx, leave, leaving, tell_audit};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::map::Map;
use crate::quorum::TOPOLOGY;
use broker::topology::{Command, CopyChange, NodeStanding, PartitionStage, PoolPartition, Topology};
use broker::{NodeNumber, PartitionId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

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

/// POST: the next step of each partition; answers with those that have to be waited for, each with why and for whom.
/// The audit log has it where something changes, as it is asked again and again. Errors: 400 where no other node can
/// have a copy.
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
    let late = late_in(cx, &map, &rows, &steps);
    tell_log(cx, late.values().flatten());
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
    let (mut waiting, mut is_change) = (Vec::new(), false);
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
            is_change = true;
        }
        let (word, behind) = match step {
            Step::Take | Step::Leave => ("leave", 0),
            Step::Give(_) if is_busy => ("turn", 0),
            _ => ("copy", behind(&rows, partition)),
        };
        let queues = cx.handle().topology().declared_queues().filter(|queue| queue.partition == partition).count();
        let late: Vec<Value> = late.get(&partition).into_iter().flatten().map(Late::told).collect();
        waiting
            .push(json!({ "partition": partition.0, "queues": queues, "step": word, "behind": behind, "late": late }));
    }
    let answer = Answer::json(&json!({ "waiting": waiting }));
    if is_change {
        tell_audit(cx, &answer);
    }
    Ok(answer)
}

/// The members that are waited for, of each partition that has a step to go. Who is away is not among them where the step
/// is done without it.
fn late_in(cx: Cx<'_>, map: &Map, rows: &Members, steps: &[(PartitionId, Step)]) -> BTreeMap<PartitionId, Vec<Late>> {
    let topology = cx.handle().topology();
    let own_name = cx.handle().facts().node_name.as_str();
    let of = |id: PartitionId, step: Step| {
        let put = topology.partitions().find(|(other, _)| *other == id).map(|(_, put)| put);
        // All nodes are to have what is declared.
        let members = match put {
            Some(_) => topology.members_wanted(id),
            None => map.nodes().map(|node| node.number).collect(),
        };
        let has_more = put.is_some_and(|put| members.len() > of_pool(&topology, put));
        let others: Vec<NodeNumber> = members.into_iter().filter(|number| *number != map.own).collect();
        let mut late = late::of(map, rows, id, &others);
        let there = others.len() - late.iter().filter(|one| one.is_away()).count();
        let is_majority = 2 * there > others.len();
        // What nobody uses may be without a leader for a while.
        let is_used = put.is_none() || topology.is_missed(id);
        let is_needed = || is_used && leave::need(own_name, &of_group(rows, id));
        let votes = leader_row(rows, id).map(|leader| leader["votes"].clone()).unwrap_or_default();
        let has_vote = |one: &Late| {
            let number = map.nodes().find(|node| node.name == one.node).map(|node| node.number.0);
            votes.as_array().is_some_and(|votes| votes.iter().any(|vote| vote[0].as_u64() == number.map(u64::from)))
        };
        late.retain(|one| {
            let is_excused = match step {
                Step::Give(_) | Step::Take | Step::Nobody => true,
                Step::Wait => is_majority && others.len() >= ENOUGH && (has_more || !is_needed()),
                // Who was to come before this node's member goes holds it up, with a majority and without.
                Step::Leave => is_majority && has_vote(one),
            };
            !(one.is_away() && is_excused)
        });
        late
    };
    steps.iter().map(|(id, step)| (*id, of(*id, *step))).collect()
}

/// Tells the log for whom this node waits that does not come by itself: once each time that it changes.
fn tell_log<'a>(cx: Cx<'_>, late: impl Iterator<Item = &'a Late>) {
    let away: BTreeSet<Late> = late.filter(|one| one.is_away()).cloned().collect();
    let warning = late::warning(&away);
    let before = cx.call.leave_waits.replace(warning.clone());
    match (before, warning) {
        (before, Some(warning)) if before.as_ref() != Some(&warning) => tracing::warn!("{warning}"),
        (Some(_), None) => {
            tracing::info!("this node waits for nobody any more that is away, and goes on leaving its cluster")
        }
        _ => {}
    }
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
    // Of these it is asked last whether the others decide without this node. Who could answer otherwise is waited for.
    let is_held_up = |id: PartitionId, members: &[NodeNumber]| {
        let others: Vec<NodeNumber> = members.iter().copied().filter(|number| *number != map.own).collect();
        leave::need(own_name, &of_group(rows, id)) && late::of(map, rows, id, &others).iter().any(Late::is_away)
    };
    let of_declared = held(&of_topology, of_topology.len(), TOPOLOGY);
    if joins || of_declared.waits().is_some() || is_held_up(TOPOLOGY, &of_topology) {
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
        // Where one of the others is away, nobody could lead it without this node, and it could have no queue then.
        let is_away = |number: &NodeNumber| map.node(*number).is_none_or(|node| !node.is_reached);
        let is_whole = put.members.len() <= held.of_pool && !put.members.iter().any(is_away);
        // What nobody uses may go with its only copy, and what all nodes have goes on with the others'. Nodes of earlier
        // builds know of no copies that move, and do without this node.
        let stays = topology.founders_of(id).is_none()
            || !topology.is_missed(id) && (is_whole || put.members.len() < ENOUGH)
            || put.members.len() >= ENOUGH && !topology.moves_copies();
        let step = if stays { held.waits() } else { held.step(heirs.iter().copied()) };
        let held_up = || (topology.is_missed(id) && is_held_up(id, &put.members)).then_some(Step::Wait);
        steps.extend(step.or_else(held_up).map(|step| (id, step)));
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

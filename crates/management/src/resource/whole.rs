//! `/api/leveret/cluster`: the cluster at a glance, as `leveret cluster status` shows it: nodes,
//! partitions with their leaders and how far each member is behind, and what queues are promised now.
//!
//! Invariant: what a node does not answer is not made up. A copy counts as in sync only if its node
//! answered, has a vote, follows the leader and has what a majority has on its own disk, but for a moment's worth.

use super::{Cx, leaving};
use crate::answer::{Answer, Refused};
use crate::map::{Map, Place};
use crate::quorum::{LAG_MAX, LEADING, TOPOLOGY};
use crate::{json, listing};
use broker::PartitionId;
use broker::topology::{DurabilityLevel, PartitionStage, Queue, Topology};
use serde_json::{Value, json};
use server::handle::{Member, MemberStanding};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Queues that lack copies are listed up to so many.
const LISTED_MAX: usize = 100;

/// For another node: how the members of this one stand.
pub(super) async fn own_members(cx: Cx<'_>) -> Result<Answer, Refused> {
    let rows: Vec<Value> = cx.handle().member_standings().await.iter().map(row).collect();
    Ok(Answer::json(&rows.into()))
}

fn row(member: &MemberStanding) -> Value {
    json!({
        "partition": member.partition.0,
        "role": member.role,
        "term": member.term,
        "last": member.last,
        "synced": member.synced,
        "commit": member.commit,
        "applied": member.applied,
        "snapshot": member.snapshot,
        "voter": member.is_voter,
        "voters": member.voters.len(),
        "votes": member.voters.iter().map(|voter| json!([voter.node.0, voter.life])).collect::<Vec<_>>(),
        "unspared": member.is_unspared,
    })
}

/// How every member that answered stands: by partition and name of the node.
pub(super) type Members = BTreeMap<(u32, String), Value>;

/// Where a copy lacks something, it is looked again after this long whether it has moved.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// What all nodes say of their members, and the names of those that say nothing. A member that lacks little may lack
/// what is on its way, or be stuck: it is looked twice then, and one that has not moved is told apart.
pub(super) async fn members(cx: Cx<'_>, map: &Map) -> (Members, Vec<String>) {
    let (before, missing) = gather(cx, map).await;
    if lacking(&before).is_empty() {
        return (before, missing);
    }
    tokio::time::sleep(LOOK_AGAIN).await;
    let (mut members, missing) = gather(cx, map).await;
    mark_stuck(&before, &mut members);
    (members, missing)
}

/// The members that vote and have not all in their logs that a majority has.
fn lacking(members: &Members) -> BTreeSet<(u32, String)> {
    // Of two that believe that they lead the one of the later term does.
    let mut leaders: BTreeMap<u32, &Value> = BTreeMap::new();
    for ((partition, _), row) in members.iter().filter(|(_, row)| row["role"] == LEADING) {
        let leader = leaders.entry(*partition).or_insert(row);
        if row["term"].as_u64() > leader["term"].as_u64() {
            *leader = row;
        }
    }
    let lacks = |((partition, _), row): &(&(u32, String), &Value)| {
        let commit = leaders.get(partition).and_then(|leader| leader["commit"].as_u64());
        row["voter"] == true && row["last"].as_u64() < commit
    };
    members.iter().filter(lacks).map(|(key, _)| key.clone()).collect()
}

/// Notes of each that lacked something before and does now that it has not moved.
fn mark_stuck(before: &Members, members: &mut Members) {
    let both: Vec<_> = lacking(before).intersection(&lacking(members)).cloned().collect();
    for key in both {
        if let Some(row) = members.get_mut(&key).filter(|row| row["last"] == before[&key]["last"]) {
            row["stuck"] = true.into();
        }
    }
}

async fn gather(cx: Cx<'_>, map: &Map) -> (Members, Vec<String>) {
    let asked = cx.ask(cx.others(), "GET", "/api/leveret/members");
    let (own, gathered) = tokio::join!(cx.handle().member_standings(), asked);
    let mut members = Members::new();
    let own_name = cx.handle().facts().node_name.clone();
    members.extend(own.iter().map(|member| ((member.partition.0, own_name.clone()), row(member))));
    for said in &gathered.said {
        let Some(node) = map.node(said.node) else { continue };
        let rows = said.json().and_then(|rows| rows.as_array().cloned()).unwrap_or_default();
        members.extend(rows.into_iter().filter_map(|row| {
            let partition = u32::try_from(row["partition"].as_u64()?).ok()?;
            Some(((partition, node.name.clone()), row))
        }));
    }
    (members, gathered.missing)
}

/// The role of a member that takes no part until it is repaired.
pub(super) const DAMAGED: &str = "damaged";

/// Whether a member keeps up with the leader of its group: it has a vote, follows it, and has about all that a
/// majority has, or is about to.
pub(super) fn in_step(member: &Value, leader: &Value) -> bool {
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap_or_default();
    let lag = number(leader, "commit").saturating_sub(number(member, "synced"));
    member["voter"] == true
        && member["stuck"] != true
        && number(member, "term") == number(leader, "term")
        && lag <= LAG_MAX
}

/// How those members of a group stand that answered, with the names of their nodes.
pub(super) fn of_group(members: &Members, partition: PartitionId) -> Vec<(&str, &Value)> {
    let of_it = members.iter().filter(|((group, _), _)| *group == partition.0);
    of_it.map(|((_, node), row)| (node.as_str(), row)).collect()
}

/// Who leads a group: of two that believe it the one of the later term.
pub(super) fn leading<'a>(members: &[(&'a str, &'a Value)]) -> Option<(&'a str, &'a Value)> {
    let leading = members.iter().filter(|(_, row)| row["role"] == LEADING);
    leading.max_by_key(|(_, row)| row["term"].as_u64()).copied()
}

/// Whether a group has no majority without a node that votes in it: of all whose votes are counted too few others keep up
/// with their leader, or, where nobody leads, too few that vote have answered. A node that tells nothing of a group that
/// nobody leads votes in it if the map has it there (`is_mapped`): it may be about to found it.
pub(super) fn is_needed(node: &str, members: &[(&str, &Value)], is_mapped: bool) -> bool {
    let votes = |row: &Value| row["voter"] == true;
    let leader = leading(members).map(|(_, row)| row);
    let own = members.iter().find(|(one, _)| *one == node);
    if !own.map_or(is_mapped && leader.is_none(), |(_, row)| votes(row)) {
        return false;
    }
    let voters = match leader {
        Some(row) => row["voters"].as_u64(),
        None => members.iter().filter_map(|(_, row)| row["voters"].as_u64()).max(),
    };
    let keeps_up = |row: &Value| leader.map_or_else(|| votes(row), |leader| in_step(row, leader));
    let others = members.iter().filter(|(one, row)| *one != node && keeps_up(row)).count() as u64;
    others <= voters.unwrap_or(u64::MAX) / 2
}

/// One partition, and how many of its copies are in sync.
struct Standing {
    described: Value,
    in_sync: usize,
    of: usize,
}

/// GET of the cluster at a glance.
pub(super) async fn get(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_monitoring()?;
    let map = cx.map();
    let rates = cx.rates().await?;
    let nodes = super::node::all(cx, rates.as_ref()).await;
    let (members, missing) = members(cx, &map).await;
    let topology = cx.handle().topology();
    let mut ids: Vec<PartitionId> = vec![TOPOLOGY];
    let serving = topology.partitions().filter(|(_, partition)| partition.stage != PartitionStage::Retired);
    ids.extend(serving.map(|(id, _)| id));
    let standings: BTreeMap<PartitionId, Standing> =
        ids.into_iter().map(|id| (id, standing(cx, &topology, &map, &members, id))).collect();
    let mut led: BTreeMap<&str, usize> = BTreeMap::new();
    for standing in standings.values() {
        *led.entry(standing.described["leader"].as_str().unwrap_or_default()).or_default() += 1;
    }
    let node = |node: &Value| {
        let name = node["name"].as_str().unwrap_or_default();
        let alarms = [("memory", "mem_alarm"), ("disk", "disk_free_alarm"), ("operator", "leveret_publishers_held")];
        let alarms: Vec<&str> =
            alarms.iter().filter(|(_, field)| node[*field] == true).map(|(name, _)| *name).collect();
        json!({
            "name": name,
            "running": node["running"],
            "leveret_version": node["leveret_version"],
            "being_drained": node["being_drained"] == true,
            "uptime": node["uptime"],
            "mem_used": node["mem_used"],
            "disk_free": node["disk_free"],
            "alarms": alarms,
            "leads": led.get(name).copied().unwrap_or_default(),
        })
    };
    let nodes: Vec<Value> = nodes.iter().map(node).collect();
    let queues = queues(cx, &topology, &map, &standings);
    let machine_version = machine_version(&topology);
    drop(topology);
    let document = json!({
        "cluster_name": cx.handle().cluster_name(),
        "asked": cx.handle().facts().node_name,
        "nodes": nodes,
        "missing": missing,
        "machine_version": machine_version,
        "partitions": standings.values().map(|standing| &standing.described).collect::<Vec<_>>(),
        "queues": queues,
    });
    Ok(Answer::json(&listing::one(cx.call, document)))
}

fn standing(cx: Cx<'_>, topology: &Topology, map: &Map, members: &Members, id: PartitionId) -> Standing {
    let place = if id == TOPOLOGY { map.everywhere() } else { map.place(id, cx.handle().leader(id)) };
    let found: Vec<(&Member, Option<&Value>)> =
        place.members.iter().map(|member| (*member, members.get(&(id.0, member.name.clone())))).collect();
    // Of two that believe that they lead the one of the later term does.
    let leading = found.iter().filter(|(_, row)| row.is_some_and(|row| row["role"] == LEADING));
    let leader = leading.max_by_key(|(_, row)| row.and_then(|row| row["term"].as_u64()));
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap_or_default();
    let commit = leader.and_then(|(_, row)| *row).map(|row| (number(row, "commit"), number(row, "term")));
    let mut in_sync = 0;
    let describe = |(member, row): &(&Member, Option<&Value>)| {
        let lag = row.zip(commit).map(|(row, (commit, _))| commit.saturating_sub(number(row, "synced")));
        let is_in_sync = row.zip(leader.and_then(|(_, row)| *row)).is_some_and(|(row, leader)| in_step(row, leader));
        in_sync += usize::from(is_in_sync);
        json!({
            "node": member.name,
            "state": row.map_or(json!("unreachable"), |row| row["role"].clone()),
            "voter": row.map(|row| row["voter"].clone()),
            "term": row.map(|row| row["term"].clone()),
            "last": row.map(|row| row["last"].clone()),
            "synced": row.map(|row| row["synced"].clone()),
            "lag": lag,
            "in_sync": is_in_sync,
        })
    };
    let described: Vec<Value> = found.iter().map(describe).collect();
    // One that was forgotten counts until the group has let it go.
    let voters = leader.and_then(|(_, row)| *row).map_or(0, |row| number(row, "voters"));
    let of = found.len().max(usize::try_from(voters).unwrap_or(0));
    let described = json!({
        "partition": id.0,
        "kind": if id == TOPOLOGY { "topology" } else { "queues" },
        "queues": topology.queues_in(id),
        "leader": leader.map(|(member, _)| &member.name),
        "term": commit.map(|(_, term)| term),
        "commit": commit.map(|(commit, _)| commit),
        "members": described,
        "leaving": leaving::told(topology, map, members, id),
        "in_sync": in_sync,
        "of": of,
        "unspared": leader.and_then(|(_, row)| *row).is_some_and(|row| row["unspared"] == true),
    });
    Standing { described, in_sync, of }
}

/// The version of the rules by which the topology's commands are carried out, the newest that some node can do, and
/// the nodes that cannot do it yet: as long as there are some, the version is not raised to it.
fn machine_version(topology: &Topology) -> Value {
    let newest = topology.present_nodes().map(|(_, node)| node.can.topology).max().unwrap_or_default();
    let behind = topology.present_nodes().filter(|(_, node)| node.can.topology < newest);
    json!({
        "current": topology.machine_version(),
        "newest": newest.max(topology.machine_version()),
        "behind": behind.map(|(_, node)| json::text(&node.name)).collect::<Vec<_>>(),
    })
}

/// What queues are promised now: how many of which, and those that lack something.
fn queues(cx: Cx<'_>, topology: &Topology, map: &Map, standings: &BTreeMap<PartitionId, Standing>) -> Value {
    let (mut guarantees, mut lacking, mut lacking_count) = (BTreeMap::<String, u64>::new(), Vec::new(), 0u64);
    for queue in topology.declared_queues() {
        let place = map.place(queue.partition, cx.handle().leader(queue.partition));
        let Guarantee { words, lacks } = guarantee(queue, &place, standings.get(&queue.partition));
        if lacks {
            lacking_count += 1;
            if lacking.len() < LISTED_MAX {
                let vhost = topology.vhost_of(queue.vhost).map(|vhost| json::text(&vhost.name));
                let (name, partition) = (json::text(&queue.name), queue.partition.0);
                lacking.push(json!({ "vhost": vhost, "name": name, "partition": partition, "guarantee": words }));
            }
        }
        *guarantees.entry(words).or_default() += 1;
    }
    let guarantees: Vec<Value> =
        guarantees.into_iter().map(|(words, queues)| json!({ "guarantee": words, "queues": queues })).collect();
    json!({
        "total": topology.declared_queues().count(),
        "guarantees": guarantees,
        "under_replicated": lacking_count,
        "under_replicated_first": lacking,
    })
}

/// What a queue's confirms are worth now.
struct Guarantee {
    words: String,
    /// Less than they should be.
    lacks: bool,
}

fn guarantee(queue: &Queue, place: &Place<'_>, standing: Option<&Standing>) -> Guarantee {
    if queue.partition.is_in_memory() {
        let home = place.members.first();
        let words = match home {
            Some(home) if home.is_reached => format!("in the memory of {} alone", home.name),
            _ => "gone with its node".to_owned(),
        };
        return Guarantee { words, lacks: home.is_none_or(|home| !home.is_reached) };
    }
    let Some(Standing { in_sync, of, described }) = standing else {
        return Guarantee { words: "not known".to_owned(), lacks: true };
    };
    let waits = match queue.durability().level() {
        DurabilityLevel::Memory => ", confirmed from memory",
        // The leader is all there is.
        DurabilityLevel::LeaderWritten if *of > 1 => ", confirmed once its leader has written it",
        DurabilityLevel::LeaderSynced if *of > 1 => ", confirmed once its leader has synced it",
        DurabilityLevel::Written if described["unspared"] == true => {
            ", confirmed once a majority has synced it, as none is to spare"
        }
        DurabilityLevel::LeaderWritten | DurabilityLevel::Written => ", confirmed once written",
        DurabilityLevel::LeaderSynced | DurabilityLevel::Synced => "",
        DurabilityLevel::Selective => ", confirmed by value at risk",
    };
    let copies = if *of == 1 { "copy" } else { "copies" };
    let words = match described["leader"].is_null() {
        true => format!("nothing is confirmed: no leader, {of} {copies}"),
        false => format!("{in_sync} of {of} {copies} synced to disk{waits}"),
    };
    Guarantee { words, lacks: in_sync < of }
}

/// GET of the members of one quorum queue, as RabbitMQ's tool shows them; behind them those that are leaving.
pub(super) async fn quorum_status(cx: Cx<'_>, partition: PartitionId) -> Value {
    let map = cx.map();
    let (members, _) = members(cx, &map).await;
    let topology = cx.handle().topology();
    let row_of = |node: &str| members.get(&(partition.0, node.to_owned()));
    let describe = |member: &Member| match row_of(&member.name) {
        Some(row) => member_status(&member.name, row, if row["voter"] == true { "voter" } else { "promotable" }),
        None => missing_status(&member.name, member.is_reached, "", partition),
    };
    let mut described: Vec<Value> = map.members_of(partition).into_iter().map(describe).collect();
    for leaver in leaving::of(&topology, &map, &members, partition) {
        let mut told = match row_of(&leaver.node) {
            Some(row) => member_status(&leaver.node, row, leaving::WORD),
            None => missing_status(&leaver.node, leaver.is_reached, leaving::WORD, partition),
        };
        told["leveret_vote_needed"] = leaver.is_needed.into();
        described.push(told);
    }
    described.into()
}

fn member_status(node: &str, row: &Value, membership: &str) -> Value {
    json!({
        "Node Name": node,
        "Raft State": row["role"],
        "Membership": membership,
        "Last Log Index": row["last"],
        "Last Written": row["synced"],
        "Last Applied": row["applied"],
        "Commit Index": row["commit"],
        "Snapshot Index": row["snapshot"],
        "Term": row["term"],
        "Machine Version": partition::machine::MACHINE_VERSION,
        "leveret_partition": row["partition"],
    })
}

/// Of a member that does not say how it stands.
fn missing_status(node: &str, is_reached: bool, membership: &str, partition: PartitionId) -> Value {
    json!({
        "Node Name": node,
        "Raft State": if is_reached { "noproc" } else { "nodedown" },
        "Membership": membership,
        "Last Log Index": "",
        "Last Written": "",
        "Last Applied": "",
        "Commit Index": "",
        "Snapshot Index": "",
        "Term": "",
        "Machine Version": "",
        "leveret_partition": partition.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lacks_little_and_does_not_move_is_not_in_step() {
        let row = |role: &str, last: u64| json!({ "role": role, "term": 3, "commit": 903, "last": last, "synced": last, "voter": true, "voters": 3 });
        let of = |second: u64, third: u64| -> Members {
            let rows = [("n1", row(LEADING, 903)), ("n2", row("follower", second)), ("n3", row("follower", third))];
            rows.into_iter().map(|(node, row)| ((7, node.to_owned()), row)).collect()
        };
        let keep_up = |before: &Members, mut now: Members| {
            mark_stuck(before, &mut now);
            let group = of_group(&now, PartitionId(7));
            let (_, leader) = leading(&group).expect("one leads");
            group.iter().filter(|(_, row)| in_step(row, leader)).map(|(node, _)| *node).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keep_up(&of(900, 2), of(903, 2)), "n1 n2");
        assert_eq!(keep_up(&of(900, 2), of(901, 3)), "n1 n2 n3", "it moves");
        assert_eq!(keep_up(&of(903, 903), of(903, 902)), "n1 n2 n3", "it had all a moment ago");
    }

    #[test]
    fn a_node_is_needed_where_too_few_others_vote_and_keep_up_of_all_whose_votes_are_counted() {
        let row = |role: &str, is_voter: bool, synced: u64, voters: u64| json!({ "role": role, "term": 3, "commit": 5_000, "synced": synced, "voter": is_voter, "voters": voters });
        let of = |voters| (row(LEADING, true, 5_000, voters), row("follower", true, 4_990, voters));
        let (leader, follower) = of(3);
        let three = [("n1", &leader), ("n2", &follower), ("n3", &follower)];
        assert!(!is_needed("n3", &three, true));
        assert!(is_needed("n3", &[three[0], three[2]], true), "the second does not answer");
        assert!(
            is_needed("n3", &[three[0], ("n2", &row("follower", true, 100, 3)), three[2]], true),
            "it is far behind"
        );
        // The second has left and its vote is counted, the fourth is to come and has none.
        let newcomer = row("follower", false, 5_000, 3);
        let between = [("n1", &leader), ("n3", &follower), ("n4", &newcomer)];
        assert!(is_needed("n1", &between, true) && is_needed("n3", &between, true));
        assert!(
            !is_needed("n4", &between, true) && !is_needed("n9", &between, true),
            "nothing is lost with a node without a vote"
        );
        // Before it has left, with its vote.
        let before = [("n1", &leader), ("n2", &follower), ("n3", &follower), ("n4", &newcomer)];
        assert!(!is_needed("n3", &before, true));
        let (leader, follower) = of(4);
        let four = [("n1", &leader), ("n2", &follower), ("n3", &follower), ("n4", &follower)];
        assert!(!is_needed("n3", &four, true) && is_needed("n3", &four[..3], true));
        // Nobody leads: whoever votes and answers.
        let candidate = row("pre_vote", true, 5_000, 3);
        assert!(is_needed("n1", &[("n1", &candidate), ("n4", &newcomer)], true));
        assert!(is_needed("n1", &[("n1", &candidate), ("n2", &candidate)], true));
        assert!(!is_needed("n1", &[("n1", &candidate), ("n2", &candidate), ("n3", &candidate)], true));
        // Of a group that is about to be founded, and one that others lead already.
        assert!(is_needed("n1", &[], true) && !is_needed("n1", &[], false));
        assert!(!is_needed("n1", &[("n2", &of(3).0)], true), "those who lead it say who is missing");
    }
}

//! Members of groups that are to go and still have a vote: their copy was taken from a node, or their node was forgotten.
//!
//! Invariant: what the members count is told, and not what the map wants. A vote that one of them still counts may be
//! needed by whoever is to lead next; the last of them lets it go when it has applied that.

use super::whole::Members;
use crate::map::Map;
use broker::topology::Topology;
use broker::{NodeNumber, PartitionId};
use serde_json::{Value, json};
use server::handle::Voter;
use std::collections::BTreeSet;

/// What its membership is called.
pub(super) const WORD: &str = "leaving";

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leaver {
    /// The name of its node.
    pub(super) node: String,
    pub(super) is_reached: bool,
    /// The members that are to stay, as far as they are reached, are no majority of all who vote.
    pub(super) is_needed: bool,
}

/// Those of one group. `members`: how the members stand that answered.
pub(super) fn of(topology: &Topology, map: &Map, members: &Members, partition: PartitionId) -> Vec<Leaver> {
    let stay: BTreeSet<Voter> =
        topology.lives_wanted(partition).into_iter().map(|(node, life)| Voter { node, life }).collect();
    // What one node has in memory has no group.
    if stay.is_empty() {
        return Vec::new();
    }
    let name_of = |number: NodeNumber| match map.node(number) {
        Some(node) => node.name.clone(),
        // It was forgotten.
        None => {
            let known = topology.nodes().find(|(other, _)| *other == number);
            known.map_or_else(|| format!("node {}", number.0), |(_, node)| node.name.to_string())
        }
    };
    let is_reached = |number: NodeNumber| map.node(number).is_some_and(|node| node.is_reached);
    let counted = counted(members, partition, |node| stay.iter().any(|voter| name_of(voter.node) == node));
    leavers(&counted, &stay, is_reached)
        .into_iter()
        .map(|(voter, is_needed)| Leaver { node: name_of(voter.node), is_reached: is_reached(voter.node), is_needed })
        .collect()
}

/// The same for programs.
pub(super) fn told(topology: &Topology, map: &Map, members: &Members, partition: PartitionId) -> Vec<Value> {
    let describe = |leaver: Leaver| {
        let row = members.get(&(partition.0, leaver.node.clone()));
        json!({
            "node": leaver.node,
            "state": row.map_or(json!("unreachable"), |row| row["role"].clone()),
            "vote_needed": leaver.is_needed,
        })
    };
    of(topology, map, members, partition).into_iter().map(describe).collect()
}

/// Whose votes the members of a group count. One that is to go hears of nothing any more, and is asked only where no
/// other one answers.
fn counted(members: &Members, partition: PartitionId, stays: impl Fn(&str) -> bool) -> BTreeSet<Voter> {
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let votes = |is_wanted: bool| -> BTreeSet<Voter> {
        let rows = members.iter().filter(|((id, node), _)| *id == partition.0 && stays(node) == is_wanted);
        let pairs = rows.flat_map(|(_, row)| row["votes"].as_array().into_iter().flatten());
        pairs.filter_map(|pair| Some(Voter { node: NodeNumber(number(&pair[0])?), life: number(&pair[1])? })).collect()
    };
    let counted = votes(true);
    if counted.is_empty() { votes(false) } else { counted }
}

/// Who of those that are counted is to go, and whether its vote is needed now.
fn leavers(
    counted: &BTreeSet<Voter>,
    stay: &BTreeSet<Voter>,
    is_reached: impl Fn(NodeNumber) -> bool,
) -> Vec<(Voter, bool)> {
    let there = counted.intersection(stay).filter(|voter| is_reached(voter.node)).count();
    let is_needed = 2 * there <= counted.len();
    counted.difference(stay).map(|voter| (*voter, is_needed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voter(node: u32, life: u32) -> Voter {
        Voter { node: NodeNumber(node), life }
    }

    #[test]
    fn who_was_taken_is_told_while_a_vote_of_it_is_counted_and_as_the_member_that_it_was() {
        let three: BTreeSet<Voter> = [voter(1, 0), voter(2, 0), voter(3, 0)].into();
        let two: BTreeSet<Voter> = [voter(1, 0), voter(2, 0)].into();
        let all = |_: NodeNumber| true;
        assert_eq!(leavers(&three, &two, all), [(voter(3, 0), false)]);
        assert_eq!(leavers(&three, &two, |node| node != NodeNumber(2)), [(voter(3, 0), true)], "one of three is there");
        assert_eq!(leavers(&two, &two, all), []);
        // Its node comes back as another member.
        let again: BTreeSet<Voter> = [voter(1, 0), voter(2, 0), voter(3, 1)].into();
        assert_eq!(leavers(&three, &again, all), [(voter(3, 0), false)]);
        assert_eq!(leavers(&again, &again, all), []);
    }

    #[test]
    fn a_vote_is_counted_while_any_member_counts_it_and_who_is_to_go_is_asked_last() {
        let row = |votes: Value| json!({ "votes": votes });
        let mut members = Members::new();
        members.insert((7, "n3".to_owned()), row(json!([[1, 0], [2, 0], [3, 0]])));
        let stays = |node: &str| node != "n3";
        let numbers = |members: &Members| -> Vec<u32> {
            counted(members, PartitionId(7), stays).into_iter().map(|voter| voter.node.0).collect()
        };
        assert_eq!(numbers(&members), [1, 2, 3], "nobody else answers");
        members.insert((7, "n1".to_owned()), row(json!([[1, 0], [2, 0]])));
        assert_eq!(numbers(&members), [1, 2], "it does not know that it has left");
        members.insert((7, "n2".to_owned()), row(json!([[1, 0], [2, 0], [3, 0]])));
        assert_eq!(numbers(&members), [1, 2, 3], "one that is behind may need it");
        members.insert((8, "n2".to_owned()), row(json!([[9, 0]])));
        assert_eq!(numbers(&members), [1, 2, 3], "another group");
        // A node of a version that does not tell.
        assert_eq!(numbers(&[((7, "n1".to_owned()), json!({ "voters": 3 }))].into()), Vec::<u32>::new());
    }
}

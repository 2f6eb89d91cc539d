//! For whom a node waits that is about to leave its cluster: members that do not keep up, by their nodes.
//!
//! Invariant: a node is named where nothing moves before it is back or forgotten, and apart from those that only have to
//! catch up: who waits is told which of the two it is.

use super::whole::{DAMAGED, Members, in_step, leading, of_group};
use crate::map::Map;
use broker::{NodeNumber, PartitionId};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Why a member does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// Its node does not answer.
    Unreachable,
    /// It takes no part until it is repaired.
    Damaged,
    /// It has no vote before it has caught up.
    Joining,
    /// It has a vote, and lacks entries.
    Behind,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Late {
    /// The name of its node.
    pub(super) node: String,
    pub(super) why: Why,
}

impl Late {
    /// It does not catch up by itself.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.why, Why::Unreachable | Why::Damaged)
    }

    /// The same for programs, with the words of `leveret cluster status`.
    pub(super) fn told(&self) -> Value {
        let state = match self.why {
            Why::Unreachable => "unreachable",
            Why::Damaged => DAMAGED,
            Why::Joining => "joining",
            Why::Behind => "behind",
        };
        json!({ "node": self.node, "state": state })
    }
}

/// Those of one group. `others`: its members without that of the node that is to leave.
pub(super) fn of(map: &Map, rows: &Members, group: PartitionId, others: &[NodeNumber]) -> Vec<Late> {
    let leader = leading(&of_group(rows, group)).map(|(_, row)| row);
    let late = |number: &NodeNumber| {
        let node = map.node(*number)?;
        let row = rows.get(&(group.0, node.name.clone())).filter(|_| node.is_reached);
        Some(Late { node: node.name.clone(), why: why(node.is_reached, row, leader)? })
    };
    others.iter().filter_map(late).collect()
}

/// `row`: how the member stands, if it answered; of one that is made just now there is none yet.
fn why(is_reached: bool, row: Option<&Value>, leader: Option<&Value>) -> Option<Why> {
    let Some(row) = row else { return Some(if is_reached { Why::Joining } else { Why::Unreachable }) };
    if row["role"] == DAMAGED {
        return Some(Why::Damaged);
    }
    // Without a leader nobody knows who is behind.
    let leader = leader?;
    if in_step(row, leader) {
        return None;
    }
    Some(if row["voter"] == true { Why::Behind } else { Why::Joining })
}

/// What the log has to say of it, once each time that it changes: `None` while nobody is away.
pub(super) fn warning(late: &BTreeSet<Late>) -> Option<String> {
    let of = |why: Why| late.iter().filter(|one| one.why == why).map(|one| one.node.as_str()).collect::<Vec<_>>();
    let (silent, damaged) = (of(Why::Unreachable), of(Why::Damaged));
    let mut told = Vec::new();
    if !silent.is_empty() {
        let commands: Vec<String> =
            silent.iter().map(|node| format!("`leveret ctl forget_cluster_node {node}`")).collect();
        told.push(format!(
            "no answer from {}: start it again, or have another node forget it ({})",
            silent.join(", "),
            commands.join(", ")
        ));
    }
    if !damaged.is_empty() {
        told.push(format!("damaged copies on {}: mend them, or take them out of their groups", damaged.join(", ")));
    }
    (!told.is_empty()).then(|| {
        format!(
            "this node waits before it leaves its cluster: {}. Until then it serves no clients; `leveret ctl revive` ends that, and it \
             does not leave",
            told.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::LEADING;

    fn row(role: &str, is_voter: bool, synced: u64) -> Value {
        json!({ "role": role, "term": 3, "commit": 5_000, "synced": synced, "voter": is_voter, "voters": 3 })
    }

    #[test]
    fn who_is_away_is_told_apart_from_who_catches_up() {
        let leader = row(LEADING, true, 5_000);
        let of = |row: Option<&Value>| why(true, row, Some(&leader));
        assert_eq!(of(Some(&row("follower", true, 4_990))), None);
        assert_eq!(of(Some(&row("follower", true, 10))), Some(Why::Behind));
        assert_eq!(of(Some(&row("follower", false, 4_990))), Some(Why::Joining), "it has no vote, however near it is");
        assert_eq!(of(Some(&row(DAMAGED, false, 0))), Some(Why::Damaged));
        assert_eq!(of(None), Some(Why::Joining), "its copy is made just now");
        assert_eq!(why(false, None, Some(&leader)), Some(Why::Unreachable));
        assert_eq!(why(true, Some(&row("follower", true, 10)), None), None, "nobody leads");
        assert_eq!(why(false, None, None), Some(Why::Unreachable));
    }

    #[test]
    fn a_group_names_the_nodes_of_the_members_that_do_not_keep_up() {
        let map = Map::of_three([true, true, false]);
        let mut rows = Members::new();
        rows.insert((7, "n1".to_owned()), row(LEADING, true, 5_000));
        rows.insert((7, "n2".to_owned()), row("follower", true, 10));
        let others = [NodeNumber(2), NodeNumber(3)];
        let late = |node: &str, why| Late { node: node.to_owned(), why };
        assert_eq!(of(&map, &rows, PartitionId(7), &others), [late("n2", Why::Behind), late("n3", Why::Unreachable)]);
        assert_eq!(late("n3", Why::Unreachable).told(), json!({ "node": "n3", "state": "unreachable" }));
    }

    #[test]
    fn the_log_says_who_is_away_and_what_helps_and_nothing_of_those_that_catch_up() {
        let late = |node: &str, why| Late { node: node.to_owned(), why };
        assert_eq!(warning(&[late("n2", Why::Behind), late("n5", Why::Joining)].into()), None);
        let told = warning(&[late("n2", Why::Behind), late("n4", Why::Unreachable)].into()).expect("something is said");
        assert!(told.contains("no answer from n4: start it again, or have another node forget it"), "{told}");
        assert!(told.contains("`leveret ctl forget_cluster_node n4`") && !told.contains("n2"), "{told}");
        let told = warning(&[late("n3", Why::Damaged)].into()).expect("something is said");
        assert!(told.contains("damaged copies on n3") && told.contains("`leveret ctl revive`"), "{told}");
    }
}

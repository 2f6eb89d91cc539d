//! What is said while a node that leaves waits for copies on other nodes, and when that has gone on for too long.
//!
//! Invariant: who is away, and what helps, is said at once when it changes, and how far the rest is from time to time. What
//! a node that is away holds up counts as no progress, however much the queues in it are used.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long nothing may move.
pub(super) const STALLS_WITHIN: Duration = Duration::from_secs(600);
/// How often it is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// The partition of what is declared.
const DECLARED: u64 = 0;
/// So many partitions are named.
const NAMED_MAX: usize = 6;

/// See the module.
#[derive(Debug)]
pub(super) struct Waiting {
    node: String,
    begun: Instant,
    /// What it was when something moved last, and when that was.
    before: Value,
    moved: Instant,
    /// Who is away, as far as it was said, and when something was.
    away: BTreeMap<Away, BTreeSet<u64>>,
    said: Instant,
}

/// A node whose copies do not catch up by themselves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Away {
    node: String,
    is_damaged: bool,
}

impl Waiting {
    pub(super) fn new(node: &str, now: Instant) -> Waiting {
        let (node, before, away) = (node.to_owned(), Value::Null, BTreeMap::new());
        Waiting { node, begun: now, before, moved: now, away, said: now }
    }

    /// What is to be said of these partitions, if anything is.
    pub(super) fn look(&mut self, waiting: &Value, now: Instant) -> Option<String> {
        let what_moves = what_moves(waiting);
        if what_moves != self.before {
            (self.before, self.moved) = (what_moves, now);
        }
        let away = away(waiting);
        let is_same = away.keys().eq(self.away.keys());
        if is_same && now.duration_since(self.said) < SAY_EVERY {
            return None;
        }
        let had_away = !self.away.is_empty();
        (self.away, self.said) = (away, now);
        Some(match (is_same, self.away.is_empty()) {
            (false, false) => format!("{}.\n{}", self.waits_for(), self.meanwhile()),
            (false, true) if had_away => "Nobody is away any more, and it goes on ...".to_owned(),
            _ => self.still(waiting, now),
        })
    }

    /// Why it is given up, once nothing has moved for too long.
    pub(super) fn stalled(&self, waiting: &Value, now: Instant) -> Option<String> {
        if now.duration_since(self.moved) <= STALLS_WITHIN {
            return None;
        }
        let seconds = STALLS_WITHIN.as_secs();
        Some(match self.away.is_empty() {
            false => format!("Nothing has moved for {seconds} s. {}, and let this one leave again", self.waits_for()),
            true => format!(
                "Nothing has moved for {seconds} s of what is to be copied: {}. See `leveret cluster status`, and ask again",
                copies(waiting)
            ),
        })
    }

    /// Who is away, and what helps.
    fn waits_for(&self) -> String {
        let one = |(away, partitions): (&Away, &BTreeSet<u64>)| {
            let (node, what) = (&away.node, named(partitions));
            match away.is_damaged {
                false => format!(
                    "{node} does not answer, which has copies of {what}: start it again, or have another node forget it for good \
                     (`leveret ctl forget_cluster_node {node}`)"
                ),
                true => format!(
                    "the copies on {node} of {what} are damaged: mend them, or take them out of their groups (`rabbitmq-queues shrink {node}`)"
                ),
            }
        };
        let all: Vec<String> = self.away.iter().map(one).collect();
        format!("Node {} cannot leave yet: {}", self.node, all.join("; "))
    }

    fn meanwhile(&self) -> String {
        format!(
            "Meanwhile node {node} serves no clients. Once nothing has moved for {seconds} s this command gives up, and the node serves \
             clients again. If it is ended before (Ctrl-C), the node stays drained: the same command goes on from here, and \
             `leveret ctl revive` has it serve clients again ...",
            node = self.node,
            seconds = STALLS_WITHIN.as_secs()
        )
    }

    fn still(&self, waiting: &Value, now: Instant) -> String {
        let silent: Vec<&str> = self.away.keys().map(|away| away.node.as_str()).collect();
        let away = if silent.is_empty() { String::new() } else { format!("; {} away", are(&silent)) };
        format!("Still waiting after {} s: {}{away} ...", now.duration_since(self.begun).as_secs(), copies(waiting))
    }
}

fn rows(waiting: &Value) -> impl Iterator<Item = &Value> {
    waiting.as_array().into_iter().flatten()
}

/// The members that are waited for; a node of an earlier build names none.
fn late(row: &Value) -> impl Iterator<Item = (&str, &str)> {
    let late = row["late"].as_array().into_iter().flatten();
    late.filter_map(|one| Some((one["node"].as_str()?, one["state"].as_str()?)))
}

fn is_away(state: &str) -> bool {
    matches!(state, "unreachable" | "damaged")
}

/// The partitions with what is waited for, and how far they are where that says something: a copy on a node that is away
/// falls behind as its queues are used.
fn what_moves(waiting: &Value) -> Value {
    let one = |row: &Value| {
        let is_held_up = late(row).any(|(_, state)| is_away(state));
        json!([
            row["partition"],
            row["step"],
            row["late"],
            if is_held_up { Value::Null } else { row["behind"].clone() }
        ])
    };
    rows(waiting).map(one).collect()
}

/// Who is away, each with the partitions that wait for it.
fn away(waiting: &Value) -> BTreeMap<Away, BTreeSet<u64>> {
    let mut away: BTreeMap<Away, BTreeSet<u64>> = BTreeMap::new();
    for row in rows(waiting) {
        for (node, state) in late(row).filter(|(_, state)| is_away(state)) {
            let key = Away { node: node.to_owned(), is_damaged: state == "damaged" };
            away.entry(key).or_default().extend(row["partition"].as_u64());
        }
    }
    away
}

/// How far copies are.
fn copies(waiting: &Value) -> String {
    let catch_up: BTreeSet<&str> =
        rows(waiting).flat_map(late).filter(|(_, state)| !is_away(state)).map(|(node, _)| node).collect();
    let most = rows(waiting).filter_map(|row| row["behind"].as_u64()).max().unwrap_or(0);
    let left = match rows(waiting).count() {
        1 => "1 partition is left".to_owned(),
        count => format!("{count} partitions are left"),
    };
    match catch_up.is_empty() {
        true => left,
        false => {
            let nodes: Vec<&str> = catch_up.into_iter().collect();
            let verb = if nodes.len() == 1 { "catches" } else { "catch" };
            format!("{left}, {} {verb} up, {most} entries behind at most", nodes.join(" and "))
        }
    }
}

fn are(nodes: &[&str]) -> String {
    format!("{} {}", nodes.join(" and "), if nodes.len() == 1 { "is" } else { "are" })
}

/// Partitions in words.
fn named(partitions: &BTreeSet<u64>) -> String {
    let numbers: Vec<String> = partitions.iter().filter(|id| **id != DECLARED).map(u64::to_string).collect();
    let shown = numbers[..numbers.len().min(NAMED_MAX)].join(", ");
    let more = numbers.len().saturating_sub(NAMED_MAX);
    let mut words = Vec::new();
    if partitions.contains(&DECLARED) {
        words.push("what is declared".to_owned());
    }
    match (numbers.len(), more) {
        (0, _) => {}
        (1, _) => words.push(format!("partition {shown}")),
        (_, 0) => words.push(format!("partitions {shown}")),
        _ => words.push(format!("partitions {shown} and {more} more")),
    }
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(partition: u64, behind: u64, late: &[(&str, &str)]) -> Value {
        let late: Vec<Value> = late.iter().map(|(node, state)| json!({ "node": node, "state": state })).collect();
        json!({ "partition": partition, "queues": 1, "step": "copy", "behind": behind, "late": late })
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn who_went_away_is_said_at_once_and_once_with_what_helps_and_how_far_it_is_every_minute() {
        let begun = Instant::now();
        let mut waiting = Waiting::new("n1", begun);
        let catches_up = json!([row(7, 90, &[("n3", "joining")])]);
        assert_eq!(waiting.look(&catches_up, begun + S), None, "that is what it does");
        let held_up =
            json!([row(0, 0, &[("n4", "unreachable")]), row(7, 90, &[("n4", "unreachable"), ("n3", "joining")])]);
        let said = waiting.look(&held_up, begun + 2 * S).expect("something is said");
        for told in [
            "n4 does not answer, which has copies of what is declared and partition 7: start it again",
            "`leveret ctl forget_cluster_node n4`",
            "Meanwhile node n1 serves no clients",
            "`leveret ctl revive`",
        ] {
            assert!(said.contains(told), "{told}: {said}");
        }
        assert_eq!(waiting.look(&held_up, begun + 50 * S), None, "it is known");
        let said = waiting.look(&held_up, begun + 62 * S).expect("something is said");
        assert_eq!(
            said,
            "Still waiting after 62 s: 2 partitions are left, n3 catches up, 90 entries behind at most; n4 is away ..."
        );
        let said = waiting.look(&catches_up, begun + 63 * S).expect("something is said");
        assert!(said.contains("Nobody is away any more"), "{said}");
        assert_eq!(waiting.look(&catches_up, begun + 64 * S), None);
    }

    #[test]
    fn what_is_held_up_by_a_node_that_is_away_makes_no_progress_however_much_it_is_used() {
        let begun = Instant::now();
        let mut waiting = Waiting::new("n1", begun);
        let at = |seconds: u32, late: &[(&str, &str)]| json!([row(7, u64::from(seconds), late)]);
        let away = [("n4", "unreachable")];
        for second in 0..=600 {
            let now = begun + second * S;
            waiting.look(&at(second, &away), now);
            assert_eq!(waiting.stalled(&at(second, &away), now), None);
        }
        let why = waiting.stalled(&at(601, &away), begun + 601 * S).expect("it is given up");
        assert!(why.starts_with("Nothing has moved for 600 s.") && why.contains("n4 does not answer"), "{why}");
        // A copy that is made may take as long as it takes.
        let mut waiting = Waiting::new("n1", begun);
        let joins = [("n4", "joining")];
        for second in 0..2_000 {
            let now = begun + second * S;
            waiting.look(&at(second, &joins), now);
            assert_eq!(waiting.stalled(&at(second, &joins), now), None);
        }
        let stands = at(1_999, &joins);
        let why = waiting.stalled(&stands, begun + 2_600 * S).expect("it is given up");
        assert!(why.contains("n4 catches up, 1999 entries behind at most"), "{why}");
    }

    #[test]
    fn copies_that_are_damaged_are_told_as_that_and_a_node_of_an_earlier_build_names_nobody() {
        let begun = Instant::now();
        let mut waiting = Waiting::new("n1", begun);
        let said = waiting.look(&json!([row(7, 0, &[("n3", "damaged")])]), begun).expect("something is said");
        assert!(said.contains("the copies on n3 of partition 7 are damaged"), "{said}");
        let mut waiting = Waiting::new("n1", begun);
        let old = json!([{ "partition": 7, "queues": 1, "step": "copy", "behind": 4 }]);
        assert_eq!(waiting.look(&old, begun), None);
        assert_eq!(
            waiting.look(&old, begun + 60 * S).expect("something is said"),
            "Still waiting after 60 s: 1 partition is left ..."
        );
        let many: BTreeSet<u64> = (1..=14).collect();
        assert_eq!(named(&many), "partitions 1, 2, 3, 4, 5, 6 and 8 more");
    }
}

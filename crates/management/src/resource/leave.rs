//! `/api/leveret/nodes/NODE/leave`: a node goes out of its cluster for good, while it runs.
//!
//! Invariant: the cluster is asked only once the others have all that is confirmed and decide without this
//! node: each group is led by another one, and a majority of its votes is on others that keep up and are not
//! drained themselves. What was looked at still holds when the cluster forgets it: no other node was forgotten since.

use super::whole::{DAMAGED, in_step, leading, members, of_group};
use super::{Cx, give_away, leaving};
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::quorum::TOPOLOGY;
use broker::PartitionId;
use broker::topology::{PartitionStage, PoolPartition};
use serde_json::Value;

/// GET: the node could leave, once it is drained. Errors: 400 with what is in its way.
pub(super) async fn could_leave(cx: Cx<'_>, name: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.need_node(name)?;
    check(cx, false).await.map(|()| Answer::done())
}

/// POST: the cluster forgets this node, which ends then. Errors: 400 with what has to be done first, 503 with what
/// will be so by itself.
pub(super) async fn leave(cx: Cx<'_>, name: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    cx.need_node(name)?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    let handle = cx.handle();
    if !handle.rests() {
        return Err(Refused::BadRequest(format!(
            "{} serves clients: drain it first (`leveret cluster leave` does that, `rabbitmq-upgrade drain` too)",
            handle.facts().node_name
        )));
    }
    // Whoever leaves at the same time looks at the same nodes: one of the two is refused.
    let forgotten = handle.topology().nodes_forgotten();
    check(cx, true).await?;
    handle.leave(forgotten).await?;
    Ok(Answer::done())
}

/// Errors: why the others cannot do without this node. `is_drained`: it is to lead nothing any more.
async fn check(cx: Cx<'_>, is_drained: bool) -> Result<(), Refused> {
    // Whichever node passed the question on, this one asks all others itself.
    let cx = Cx { is_asked: false, ..cx };
    let handle = cx.handle();
    let own = handle.facts().node_name.as_str();
    let map = cx.map();
    if map.nodes().all(|member| member.is_own) {
        return Err(Refused::BadRequest(format!(
            "{own} is the only node of its cluster, and there is nobody to go on without it: stop it"
        )));
    }
    let (members, missing) = members(cx, &map).await;
    // They may be about to leave, too.
    let resting: Vec<&str> = map
        .nodes()
        .filter(|member| !member.is_own && handle.node_rests(member.number))
        .map(|member| member.name.as_str())
        .collect();
    let groups: Vec<PartitionId> = {
        let topology = handle.topology();
        // One that has decided that this node goes may still need its vote.
        let votes = |id: PartitionId| {
            leaving::of(&topology, &map, &members, id).iter().any(|leaver| leaver.node == own && leaver.is_needed)
        };
        let is_here = |id: PartitionId, put: &PoolPartition| {
            put.stage != PartitionStage::Retired && (put.members.contains(&map.own) || votes(id))
        };
        // Once it is drained, others get copies of what it would take along.
        let is_given = |id: PartitionId| !is_drained && give_away::is_possible(cx, &topology, &map, id);
        // What nobody uses may go with its only copy.
        let is_meant =
            |(id, put): &(PartitionId, &PoolPartition)| is_here(*id, put) && topology.is_missed(*id) && !is_given(*id);
        let serving = topology.partitions().filter(is_meant);
        std::iter::once(TOPOLOGY).chain(serving.map(|(id, _)| id)).collect()
    };
    for id in groups {
        let of_group = of_group(&members, id);
        let newcomer = newcomer(&of_group, |node| map.members_of_group(id).iter().any(|member| member.name == node));
        let newcomer = newcomer.filter(|_| is_drained).map(|node| {
            Objection::Passing(format!("the copy on {node} has no vote yet, and no other node could go after this one"))
        });
        if let Some(objection) = objection(own, &of_group, &resting, is_drained).or(newcomer) {
            let what = if id == TOPOLOGY { "what is declared".to_owned() } else { format!("partition {}", id.0) };
            let silent = match &missing[..] {
                [] => String::new(),
                missing => format!(" (no answer from {})", missing.join(", ")),
            };
            let told = |why: String| format!("{own} cannot leave now: of {what} {why}{silent}");
            return Err(match objection {
                Objection::Passing(why) => Refused::Unavailable(told(why)),
                Objection::Lasting(why) => Refused::BadRequest(told(why)),
            });
        }
    }
    Ok(())
}

/// Why a group is not to lose a node now.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Objection {
    /// Its leadership is about to be settled.
    Passing(String),
    /// Something has to be done first.
    Lasting(String),
}

/// A node that is to have a copy and runs, and has no vote before it has caught up.
fn newcomer<'a>(members: &[(&'a str, &Value)], is_wanted: impl Fn(&str) -> bool) -> Option<&'a str> {
    let learns = |row: &Value| row["voter"] != true && row["role"] != DAMAGED;
    members.iter().find(|(node, row)| learns(row) && is_wanted(node)).map(|(node, _)| *node)
}

/// What is to be said against it. `members`: how those stand that answered; `resting`: other nodes that are in
/// maintenance mode, and may be about to go, too.
fn objection(own: &str, members: &[(&str, &Value)], resting: &[&str], is_drained: bool) -> Option<Objection> {
    let Some((leader, row)) = leading(members) else {
        return Some(Objection::Passing("nobody leads".to_owned()));
    };
    let voters = row["voters"].as_u64().unwrap_or(u64::MAX);
    if voters == 1 && leader == own {
        return Some(Objection::Lasting("this node has the only copy, and what is in it would be lost".to_owned()));
    }
    let in_step_with = |is_resting: bool| {
        let others = members.iter().filter(|(node, _)| *node != own && resting.contains(node) == is_resting);
        others.filter(|(_, other)| in_step(other, row)).map(|(node, _)| *node).collect::<Vec<_>>()
    };
    let others = in_step_with(false).len() as u64;
    let rest = in_step_with(true);
    let (are, them) = if rest.len() == 1 { ("is", "it") } else { ("are", "them") };
    if others <= voters / 2 && others + rest.len() as u64 > voters / 2 {
        return Some(Objection::Lasting(format!(
            "{others} of {voters} copies would keep up without it, which is no majority, as {} {are} in maintenance mode and may be about \
             to go, too: revive {them} first (`leveret ctl revive`)",
            rest.join(" and "),
        )));
    }
    if is_drained && leader == own {
        return Some(Objection::Passing("this node is still the leader: wait until another one is".to_owned()));
    }
    if resting.contains(&leader) && others > voters / 2 {
        return Some(Objection::Passing(format!(
            "{leader} leads, which is in maintenance mode: wait until another one does"
        )));
    }
    (others <= voters / 2).then(|| {
        Objection::Lasting(format!(
            "{others} of {voters} copies would keep up without it, which is no majority: bring other nodes back, or let another one join \
             first"
        ))
    })
}

/// Whether the others of a group are no majority of its votes now, or nobody leads it.
pub(super) fn need(own: &str, members: &[(&str, &Value)]) -> bool {
    let Some((_, leader)) = leading(members) else { return true };
    let others = members.iter().filter(|(node, row)| *node != own && in_step(row, leader)).count() as u64;
    others <= leader["voters"].as_u64().unwrap_or(u64::MAX) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::LEADING;
    use serde_json::json;

    #[test]
    fn a_node_leaves_once_others_lead_and_decide_without_it() {
        let row = |role: &str, voters: u64, synced: u64| json!({ "role": role, "term": 3, "commit": 5_000, "synced": synced, "voter": true, "voters": voters });
        let (leader, follower, behind) = (row(LEADING, 3, 5_000), row("follower", 3, 5_000), row("follower", 3, 100));
        let of = |members: &[(&str, &Value)]| match objection("n1", members, &[], true) {
            None => String::new(),
            Some(Objection::Passing(why) | Objection::Lasting(why)) => why,
        };
        assert_eq!(of(&[("n1", &follower), ("n2", &leader), ("n3", &follower)]), "");
        assert!(of(&[("n1", &leader), ("n2", &follower), ("n3", &follower)]).contains("still the leader"));
        assert!(of(&[("n1", &follower), ("n2", &leader), ("n3", &behind)]).contains("1 of 3 copies"));
        assert!(of(&[("n1", &follower), ("n2", &leader)]).contains("1 of 3 copies"), "the third does not answer");
        assert!(of(&[("n1", &follower), ("n2", &follower)]).contains("nobody leads"));
        assert_eq!(
            objection("n1", &[("n1", &leader), ("n2", &follower), ("n3", &follower)], &[], false),
            None,
            "it can be drained"
        );
        // Of two each is needed for a majority.
        let (leader, follower) = (row(LEADING, 2, 5_000), row("follower", 2, 5_000));
        assert!(of(&[("n1", &follower), ("n2", &leader)]).contains("1 of 2 copies"));
        assert!(of(&[("n1", &row(LEADING, 1, 9))]).contains("the only copy"));
        // Another one that thinks it leads, of an earlier term.
        let old = json!({ "role": LEADING, "term": 2, "voter": true, "voters": 3 });
        let leader = row(LEADING, 3, 5_000);
        assert_eq!(of(&[("n1", &old), ("n2", &leader), ("n3", &row("follower", 3, 4_900))]), "");
    }

    #[test]
    fn a_copy_without_a_vote_is_waited_for_where_it_is_to_stay() {
        let row = |is_voter: bool| json!({ "role": "follower", "term": 3, "commit": 9, "synced": 9, "voter": is_voter, "voters": 3 });
        let (voter, learner) = (row(true), row(false));
        let members = [("n1", &voter), ("n3", &voter), ("n4", &learner)];
        assert_eq!(newcomer(&members, |_| true), Some("n4"));
        assert_eq!(newcomer(&members, |node| node != "n4"), None, "it is on its way out");
        assert_eq!(newcomer(&members[..2], |_| true), None);
        let damaged = json!({ "role": DAMAGED, "voter": false });
        assert_eq!(newcomer(&[("n3", &voter), ("n4", &damaged)], |_| true), None, "it waits for a repair");
    }

    #[test]
    fn nodes_that_are_drained_are_named_as_what_is_to_be_revived_and_not_as_ones_that_do_not_lead() {
        let row = |role: &str| json!({ "role": role, "term": 3, "commit": 9, "synced": 9, "voter": true, "voters": 3 });
        let (leader, follower) = (row(LEADING), row("follower"));
        let members = [("n1", &follower), ("n2", &leader), ("n3", &follower)];
        let with = |resting: &[&str], is_drained| objection("n1", &members, resting, is_drained);
        assert_eq!(with(&[], true), None);
        for is_drained in [false, true] {
            let Some(Objection::Lasting(why)) = with(&["n2", "n3"], is_drained) else {
                panic!("nothing will be so by itself")
            };
            let told = "0 of 3 copies would keep up without it, which is no majority, as n2 and n3 are in maintenance mode and may be \
                        about to go, too: revive them first (`leveret ctl revive`)";
            assert_eq!(why, told);
            let Some(Objection::Lasting(why)) = with(&["n2"], is_drained) else { panic!("the same of one") };
            assert!(why.starts_with("1 of 3") && why.contains("as n2 is in maintenance mode"), "{why}");
        }
        // The others suffice, and one of them takes over soon.
        let members = [("n1", &follower), ("n2", &leader), ("n3", &follower), ("n4", &follower), ("n5", &follower)];
        let why = objection("n1", &members, &["n2"], true);
        assert!(
            matches!(&why, Some(Objection::Passing(why)) if why.starts_with("n2 leads, which is in maintenance mode"))
        );
        // Nobody would suffice if it were revived.
        let (leader, follower) = (json!({ "role": LEADING, "term": 3, "voters": 3 }), row("follower"));
        let why = objection("n1", &[("n1", &leader), ("n2", &follower)], &["n2"], false);
        assert!(matches!(&why, Some(Objection::Lasting(why)) if why.contains("bring other nodes back")), "{why:?}");
    }
}

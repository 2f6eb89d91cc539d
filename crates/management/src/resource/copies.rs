//! Where quorum queues have their copies: which nodes, one more, one fewer, for one queue or for many.
//!
//! Invariant: a queue's copies are where those of its partition are, with other queues. What gives copies does so to
//! all queues of a partition, and tells which; what takes them for one queue is refused where others would lose
//! theirs too. Nothing is taken where the other members have no majority that is reached. What is answered is
//! decided: groups follow within a moment, one member after the other, and `status` tells how far they are.

use super::Cx;
use super::message::need_keys;
use super::queue::checked;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use broker::topology::{Command, CopyChange, NodeStanding, Pattern, Queue, QueueType, Topology};
use broker::{NodeNumber, PartitionId};
use serde_json::{Map as Fields, Value, json};

use server::handle::{ChangeError, Member};
use std::collections::BTreeSet;

/// What RabbitMQ says of the members of a classic queue.
const CLASSIC: &str = "classic_queue_not_supported";

/// GET of the members of a quorum queue.
pub(super) async fn quorum_status(cx: Cx<'_>, vhost: &[u8], name: &[u8]) -> Result<Answer, Refused> {
    let partition = {
        let topology = cx.handle().topology();
        let vhost = cx.visible_vhost(&topology, vhost)?;
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        if queue.shape.queue_type != QueueType::Quorum {
            return Ok(Answer::unhealthy(&json!({ "status": "failed", "reason": CLASSIC })));
        }
        queue.partition
    };
    Ok(Answer::json(&super::whole::quorum_status(cx, partition).await))
}

fn wrong<T>(text: &str) -> Result<T, Refused> {
    Err(Refused::BadRequest(text.to_owned()))
}

/// A partition as somebody looks who wants to change its members.
struct Look {
    partition: PartitionId,
    members: Vec<NodeNumber>,
}

impl Look {
    fn at(topology: &Topology, partition: PartitionId) -> Look {
        Look { partition, members: topology.members_wanted(partition) }
    }

    fn has(&self, node: NodeNumber) -> bool {
        self.members.contains(&node)
    }

    /// Errors: why the others cannot do without a node. `leader`: who leads the group now, as far as is known:
    /// its present members decide whether one of them goes, and those that are to be left have no say in it.
    fn may_do_without(&self, node: NodeNumber, nodes: &[Member], leader: Option<NodeNumber>) -> Result<(), String> {
        let others: Vec<&NodeNumber> = self.members.iter().filter(|member| **member != node).collect();
        if others.is_empty() {
            return Err("last_node".to_owned());
        }
        let is_reached = |number: &&NodeNumber| nodes.iter().any(|node| node.number == **number && node.is_reached);
        let away: Vec<&NodeNumber> = others.iter().copied().filter(|number| !is_reached(number)).collect();
        if 2 * away.len() < others.len() {
            return match leader.filter(|leader| is_reached(&leader)) {
                Some(_) => Ok(()),
                None => {
                    Err("its members have no majority now, and cannot decide that one of them goes: bring nodes back \
                             first"
                        .to_owned())
                }
            };
        }
        let name = |number: &NodeNumber| {
            let known = nodes.iter().find(|node| node.number == *number);
            known.map_or_else(|| format!("node {}", number.0), |node| node.name.clone())
        };
        let away: Vec<String> = away.into_iter().map(name).collect();
        Err(format!(
            "the other copies have no majority while {} cannot be reached: bring it back first",
            away.join(", ")
        ))
    }
}

/// POST and DELETE of a member of a quorum queue.
pub(super) async fn change_member(
    cx: Cx<'_>,
    vhost: &[u8],
    name: &[u8],
    adds: bool,
    body: Body,
) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let found = |topology: &Topology| {
        let vhost = super::find_vhost(topology, vhost)?;
        let queue = topology.find_queue(vhost, checked(name)?).ok_or(Refused::NotFound)?;
        Ok::<_, Refused>((queue.shape.queue_type == QueueType::Quorum, queue.partition))
    };
    found(&cx.handle().topology())?;
    let known = if adds { &fields::ADD_MEMBER } else { &fields::DELETE_MEMBER };
    let fields = known.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["node"])?;
    check_membership(&fields)?;
    let nodes = cx.handle().members();
    let Some(node) = nodes.iter().find(|member| Some(member.name.as_str()) == fields["node"].as_str()) else {
        return wrong("Node is not a cluster member");
    };
    let (look, others, classic) = {
        let topology = cx.handle().topology();
        let (is_quorum, partition) = found(&topology)?;
        if !is_quorum {
            // The status is RabbitMQ's, which has it of all that it does not do with members.
            return Err(Refused::Unavailable(CLASSIC.to_owned()));
        }
        let classic = classic_there(&topology, partition).filter(|_| adds);
        (Look::at(&topology, partition), others_in(&topology, partition), classic)
    };
    let is_alone = nodes.len() == 1;
    match adds {
        true if is_alone || look.has(node.number) => return wrong("already_a_member"),
        true => {
            need_running(cx, node)?;
            if let Some(why) = classic {
                return wrong(&why);
            }
        }
        false if is_alone => return wrong("last_node"),
        false if !look.has(node.number) => return wrong(&no_member(cx, look.partition, &node.name).await),
        false => {
            if let Some((other, count)) = others {
                return wrong(&shared_with(&other, count));
            }
            let leader = cx.handle().leader(look.partition);
            look.may_do_without(node.number, &nodes, leader).map_err(Refused::BadRequest)?;
        }
    }
    need_moves(cx)?;
    let (partition, node) = (look.partition, node.number);
    let change = match adds {
        true => CopyChange::Give { partition, node },
        false => CopyChange::Take { partition, node },
    };
    cx.handle().change(Command::ChangeCopies(change)).await?;
    Ok(Answer::json(&Value::Array(rows(&cx.handle().topology(), partition, |_| "ok".to_owned()))))
}

/// What is to be said of a node whose member is to go where it is not meant to have one.
async fn no_member(cx: Cx<'_>, partition: PartitionId, node: &str) -> String {
    let map = cx.map();
    let (members, _) = super::whole::members(cx, &map).await;
    let leavers = super::leaving::of(&cx.handle().topology(), &map, &members, partition);
    match leavers.iter().any(|leaver| leaver.node == node) {
        true => format!(
            "the member on {node} is on its way out already: it is shown as 'leaving' until its group has let it go"
        ),
        false => "not_a_member".to_owned(),
    }
}

/// Another queue of a partition beside one, and how many there are beside that.
fn others_in(topology: &Topology, partition: PartitionId) -> Option<(String, usize)> {
    let mut queues = topology.declared_queues().filter(|queue| queue.partition == partition);
    let (first, second) = (queues.next()?, queues.next()?);
    let _ = first;
    Some((second.name.to_string(), queues.count() + 1))
}

fn shared_with(other: &str, count: usize) -> String {
    let (more, live) = match count {
        1 => (String::new(), "lives"),
        count => (format!(" and {} more", count - 1), "live"),
    };
    format!(
        "its copies are those of its partition, in which queue '{other}'{more} {live} too and would lose theirs: shrink \
         takes the copies of all quorum queues from a node, and a queue declared with x-dedicated-partition has its own"
    )
}

/// Why a partition is given no more copies, if it is not.
fn classic_there(topology: &Topology, partition: PartitionId) -> Option<String> {
    let (name, more) = topology.classic_kept_on_one(partition)?;
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Some(format!(
        "its copies are those of its partition, in which classic queue '{name}'{more} lives on one node too: a queue \
         declared with x-dedicated-partition has its own"
    ))
}

/// The quorum queues of a partition, each with what became of it.
fn rows(topology: &Topology, partition: PartitionId, result: impl Fn(&Queue) -> String) -> Vec<Value> {
    let size = topology.members_wanted(partition).len();
    let of = |queue: &&Queue| queue.partition == partition && queue.shape.queue_type == QueueType::Quorum;
    let row = |queue: &Queue| {
        let vhost = topology.vhost_of(queue.vhost).map_or_else(String::new, |vhost| vhost.name.to_string());
        let name = queue.name.to_string();
        json!({ "vhost": vhost, "name": name, "size": size, "result": result(queue), "partition": partition.0 })
    };
    topology.declared_queues().filter(of).map(row).collect()
}

/// What a change of a partition came to, in a word for each of its queues. Errors: nobody decided.
fn told(outcome: Result<(), ChangeError>) -> Result<Result<(), String>, Refused> {
    match outcome {
        Ok(()) => Ok(Ok(())),
        Err(ChangeError::Refused(refusal)) => Ok(Err(refusal.text.to_string())),
        Err(other) => Err(other.into()),
    }
}

/// POST: quorum queues get a member on a node. Those that have one, or are getting it, need nothing. The answer names
/// the others, and those that come along.
pub(super) async fn grow(cx: Cx<'_>, node: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let node = member(cx, node)?;
    let fields = fields::GROW.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["strategy", "vhost_pattern", "queue_pattern"])?;
    let only_even = match fields["strategy"].as_str() {
        Some("all") => false,
        Some("even") => true,
        _ => return wrong("the strategy is 'all' or 'even'"),
    };
    check_membership(&fields)?;
    let (vhosts, queues) = (pattern(&fields, "vhost_pattern")?, pattern(&fields, "queue_pattern")?);
    if cx.handle().members().len() == 1 {
        return Ok(Answer::accepted());
    }
    need_running(cx, &node)?;
    let is_meant = |topology: &Topology, queue: &Queue| {
        let vhost = topology.vhost_of(queue.vhost);
        let is_in = vhost.is_some_and(|vhost| vhosts.matches(&vhost.name));
        is_in && queue.shape.queue_type == QueueType::Quorum && queues.matches(&queue.name)
    };
    let chosen: Vec<PartitionId> = {
        let topology = cx.handle().topology();
        let meant = topology.declared_queues().filter(|queue| is_meant(&topology, queue));
        let partitions: BTreeSet<PartitionId> = meant.map(|queue| queue.partition).collect();
        let lacks = |id: &PartitionId| {
            let look = Look::at(&topology, *id);
            !look.has(node.number) && (!only_even || look.members.len().is_multiple_of(2))
        };
        partitions.into_iter().filter(lacks).collect()
    };
    if !chosen.is_empty() {
        need_moves(cx)?;
    }
    let mut all = Vec::new();
    for partition in chosen {
        let change = Command::ChangeCopies(CopyChange::Give { partition, node: node.number });
        let kept = classic_there(&cx.handle().topology(), partition);
        let became = match kept {
            None => told(cx.handle().change(change).await.map(|_| ()))?,
            Some(why) => Err(why),
        };
        let topology = cx.handle().topology();
        all.extend(rows(&topology, partition, |queue| match &became {
            Err(why) => format!("error: {why}"),
            Ok(()) if is_meant(&topology, queue) => "ok".to_owned(),
            Ok(()) => "ok: it shares a partition with a queue that was meant".to_owned(),
        }));
    }
    Ok(Answer::json(&Value::Array(all)).accepted_with_body())
}

/// DELETE: quorum queues lose their members on a node, which may be away. The answer names all that had one; a queue
/// that has no other one keeps it.
pub(super) async fn shrink(cx: Cx<'_>, node: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let node = member(cx, node)?;
    if cx.handle().members().len() == 1 {
        return wrong("last_node");
    }
    let looks: Vec<Look> = {
        let topology = cx.handle().topology();
        let all = topology.partitions_with(QueueType::Quorum).into_iter().map(|id| Look::at(&topology, id));
        all.filter(|look| look.has(node.number)).collect()
    };
    if !looks.is_empty() {
        need_moves(cx)?;
    }
    let mut all = Vec::new();
    for look in looks {
        // Nodes come and go meanwhile.
        let leader = cx.handle().leader(look.partition);
        let may = look.may_do_without(node.number, &cx.handle().members(), leader);
        let change = Command::ChangeCopies(CopyChange::Take { partition: look.partition, node: node.number });
        let became = match may {
            Ok(()) => told(cx.handle().change(change).await.map(|_| ()))?,
            Err(why) => Err(why),
        };
        all.extend(rows(&cx.handle().topology(), look.partition, |_| match &became {
            Err(why) => format!("error: {why}"),
            Ok(()) => "ok".to_owned(),
        }));
    }
    Ok(Answer::json(&Value::Array(all)).accepted_with_body())
}

/// Errors: 400 for a member that would never vote.
fn check_membership(fields: &Fields<String, Value>) -> Result<(), Refused> {
    match fields.get("membership") {
        None => Ok(()),
        Some(Value::String(word)) if ["voter", "promotable"].contains(&word.as_str()) => Ok(()),
        Some(_) => wrong("a new member gets a vote once it has caught up: the membership is 'voter' or 'promotable'"),
    }
}

fn pattern(fields: &Fields<String, Value>, name: &str) -> Result<Pattern, Refused> {
    let text = fields[name].as_str().ok_or_else(|| Refused::BadRequest(format!("{name} is a text")))?;
    Pattern::new(text).map_err(|why| Refused::BadRequest(format!("{name}: {why}")))
}

/// Errors: 404 for what is no node of the cluster.
fn member(cx: Cx<'_>, node: &[u8]) -> Result<Member, Refused> {
    cx.handle().members().into_iter().find(|member| member.name.as_bytes() == node).ok_or(Refused::NotFound)
}

/// Errors: 400 for a node that cannot take a copy now.
fn need_running(cx: Cx<'_>, node: &Member) -> Result<(), Refused> {
    let standing = cx.handle().topology().node(node.number).map(|known| known.standing);
    match node.is_reached && standing == Some(NodeStanding::Member) {
        true => Ok(()),
        false => wrong("node_not_running"),
    }
}

/// Errors: 400 while a node runs a version that cannot do it.
fn need_moves(cx: Cx<'_>) -> Result<(), Refused> {
    match cx.handle().topology().moves_copies() {
        true => Ok(()),
        false => wrong("copies are given and taken once every node of the cluster runs a leveret that can do it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32, is_reached: bool) -> Member {
        let (name, address) = (format!("n{number}"), String::new());
        Member { number: NodeNumber(number), name, address, is_own: number == 1, is_reached }
    }

    #[test]
    fn nothing_is_taken_where_the_others_have_no_majority_that_is_reached() {
        let may = |members: &[u32], reached: [bool; 3], leaver: u32| {
            let nodes: Vec<Member> = (1..=3).zip(reached).map(|(number, reached)| node(number, reached)).collect();
            let members = members.iter().copied().map(NodeNumber).collect();
            Look { partition: PartitionId(1), members }.may_do_without(NodeNumber(leaver), &nodes, Some(NodeNumber(1)))
        };
        assert_eq!(may(&[1, 2, 3], [true; 3], 3), Ok(()));
        assert_eq!(may(&[1, 2, 3], [true, true, false], 3), Ok(()), "the node itself may be away");
        let why = may(&[1, 2, 3], [true, false, true], 3).expect_err("one of two is no majority");
        assert!(why.contains("while n2 cannot be reached"), "{why}");
        assert_eq!(may(&[3], [true; 3], 3), Err("last_node".to_owned()));
        assert_eq!(may(&[2, 3], [true; 3], 3), Ok(()));
        // One of two copies is dead: nobody leads, and nobody can decide that it goes.
        let nodes = [node(1, true), node(2, true), node(3, false)];
        for leader in [None, Some(NodeNumber(3))] {
            let look = Look { partition: PartitionId(1), members: vec![NodeNumber(2), NodeNumber(3)] };
            let why = look.may_do_without(NodeNumber(3), &nodes, leader).expect_err("no majority decides it");
            assert!(why.contains("no majority now"), "{why}");
        }
    }
}

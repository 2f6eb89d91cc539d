//! What is asked of a cluster as a whole: feature flags, deprecated features, rebalancing, nodes that are
//! forgotten, what is reset.
//!
//! Invariant: what has no meaning here is answered as RabbitMQ answers it where it changes nothing; what
//! comes later says so.

use super::Cx;
use super::message::need_keys;
use super::queue::checked;
use crate::answer::{Answer, Refused};
use crate::body::Body;
use crate::fields;
use crate::listing;
use broker::topology::{PoolPartition, Topology};
use broker::{NodeNumber, PartitionId, QueueId};
use serde_json::json;
use server::handle::Member;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A leader that hears of no majority any more has given up leading by then: at the end of the second election
/// timeout.
const LEADERS_FIND_OUT: Duration = Duration::from_millis(3_500);
/// How long an election may take, and how often it is looked.
const ELECTED_WITHIN: Duration = Duration::from_secs(3);
const ELECTION_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Feature flags of RabbitMQ whose meaning holds here, always: name, description, who provides it.
const FEATURE_FLAGS: &[(&str, &str, &str)] = &[
    ("classic_queue_type_delivery_support", "Consumers of classic queues get what they are owed", "rabbit"),
    ("detailed_queues_endpoint", "There is /api/queues/detailed", "rabbitmq_management"),
    ("direct_exchange_routing_v2", "Direct exchanges find their queues by a look-up", "rabbit"),
    ("drop_unroutable_metric", "Messages dropped for want of a route are counted", "rabbitmq_management_agent"),
    ("empty_basic_get_metric", "A basic.get of an empty queue is told from others", "rabbitmq_management_agent"),
    ("implicit_default_bindings", "Bindings of the default exchange are not stored", "rabbit"),
    ("maintenance_mode_status", "A node can be drained", "rabbit"),
    ("message_containers", "Messages are kept as they came", "rabbit"),
    ("quorum_queue", "There are queues of type quorum", "rabbit"),
    ("tracking_records_in_ets", "Connections are counted in memory", "rabbit"),
    ("user_limits", "Connections and channels of a user have limits", "rabbit"),
    ("virtual_host_metadata", "Virtual hosts have a description and tags", "rabbit"),
];

/// What RabbitMQ deprecates, whether it is there, and in which phase: that of RabbitMQ 4.3, but for what it denies and
/// this broker permits.
const DEPRECATED: &[(&str, &str, &str)] = &[
    ("amqp_address_v1", "denied", "denied_by_default"),
    ("classic_queue_mirroring", "denied", "removed"),
    ("global_qos", "permitted", "permitted_by_default"),
    ("queue_master_locator", "permitted", "permitted_by_default"),
    ("ram_node_type", "denied", "removed"),
    ("transient_nonexcl_queues", "permitted", "permitted_by_default"),
];

/// GET of feature flags.
pub(super) fn feature_flags(cx: Cx<'_>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let describe = |(name, description, provided_by): &(&str, &str, &str)| {
        json!({
            "name": name,
            "desc": description,
            "doc_url": "",
            "state": "enabled",
            "stability": "required",
            "require_level": "hard",
            "experiment_level": "supported",
            "callbacks": [],
            "provided_by": provided_by,
        })
    };
    Ok(Answer::json(&listing::list(cx.call, FEATURE_FLAGS.iter().map(describe).collect())?))
}

/// PUT: those that are there are enabled.
pub(super) async fn enable_feature_flag(cx: Cx<'_>, name: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    fields::FEATURE_FLAG.of(&body.read(cx.caller).await?)?;
    match FEATURE_FLAGS.iter().any(|(known, ..)| known.as_bytes() == name) {
        true => Ok(Answer::done()),
        false => Err(Refused::BadRequest("unsupported".to_owned())),
    }
}

/// GET of deprecated features; those in use are not told apart.
pub(super) fn deprecated_features(cx: Cx<'_>, only_used: bool) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let uses_transient = {
        let topology = cx.handle().topology();
        topology.declared_queues().any(|queue| !queue.shape.durable && queue.exclusive.is_none())
    };
    let is_used = |name: &str| name == "transient_nonexcl_queues" && uses_transient;
    let seen = DEPRECATED.iter().filter(|(name, ..)| !only_used || is_used(name));
    let describe = |(name, state, phase): &(&str, &str, &str)| {
        json!({
            "name": name,
            "state": state,
            "desc": "",
            "deprecation_phase": phase,
            "doc_url": "",
            "provided_by": "rabbit",
        })
    };
    Ok(Answer::json(&listing::list(cx.call, seen.map(describe).collect())?))
}

/// POST: leaders are spread over the nodes, within the next seconds.
pub(super) async fn rebalance(cx: Cx<'_>, body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    cx.handle().balance_leaders();
    let gathered = cx.ask(cx.others(), "POST", "/api/rebalance/queues").await;
    Ok(gathered.told(Answer::done()))
}

/// DELETE of a node that is gone for good, by its name or number: no group counts on it any more, and it
/// never comes back under its number. With `delete-queues=true` the queues of which it has the only copy are deleted, once
/// nothing else is in the way, and the answer says how many. Errors: 404 for one that is not there, 400 where it is or
/// where something would be lost with it.
pub(super) async fn forget(cx: Cx<'_>, node: &[u8]) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let handle = cx.handle();
    let forgotten = handle.topology().nodes_forgotten();
    let members = handle.members();
    let is_meant = |member: &&Member| member.name.as_bytes() == node || member.number.0.to_string().as_bytes() == node;
    let Some(member) = members.iter().find(is_meant) else {
        return Err(Refused::Missing("The node selected is not in the cluster.".to_owned()));
    };
    let (name, number) = (&member.name, member.number);
    let deletes = cx.call.flag("delete-queues");
    let wrong = |why: String| Err(Refused::BadRequest(why));
    if member.is_own {
        return wrong(format!("{name} is the node that was asked: stop it, and have another one forget it"));
    }
    if member.is_reached {
        return wrong(format!("{name} is running: stop it first"));
    }
    // Where it died just now, others are about to lead.
    let due = Instant::now() + ELECTED_WITHIN;
    while let Some(why) = lost_without(cx, member, deletes) {
        if Instant::now() >= due {
            return wrong(why);
        }
        tokio::time::sleep(ELECTION_LOOK_EVERY).await;
    }
    // A leader that has lost its majority with this node leads on until it finds out.
    if may_miss(cx, number) {
        tokio::time::sleep(LEADERS_FIND_OUT).await;
        let members = cx.handle().members();
        if members.iter().any(|other| other.number == number && other.is_reached) {
            return wrong(format!("{name} is running: stop it first"));
        }
        if let Some(why) = lost_without(cx, member, deletes) {
            return wrong(why);
        }
    }
    let is_back = || handle.members().iter().any(|other| other.number == number && other.is_reached);
    let doomed = if deletes { queues_of(&handle.topology(), number) } else { Vec::new() };
    for (deleted, (queue, partition)) in doomed.iter().enumerate() {
        // With each of them it may be there again.
        if is_back() {
            return wrong(format!(
                "{name} is running again: stop it first. {deleted} of its {} queues were deleted",
                doomed.len()
            ));
        }
        handle.delete_queue(*queue, *partition, false, false).await?;
    }
    if is_back() {
        return wrong(format!("{name} is running again: stop it first. {} queues were deleted", doomed.len()));
    }
    let forget = handle.topology().forgetting(number, forgotten);
    handle.change(forget).await?;
    tracing::info!(node = %name, number = number.0, queues_deleted = doomed.len(), "a node was forgotten");
    Ok(if deletes { Answer::json(&json!({ "queues_deleted": doomed.len() })) } else { Answer::done() })
}

/// The queues of which a node has the only copy.
fn queues_of(topology: &Topology, node: NodeNumber) -> Vec<(QueueId, PartitionId)> {
    let alone = |partition: PartitionId| is_alone_in(topology, node, partition);
    let queues = topology.declared_queues().filter(|queue| alone(queue.partition));
    queues.map(|queue| (queue.id, queue.partition)).collect()
}

fn is_alone_in(topology: &Topology, node: NodeNumber, partition: PartitionId) -> bool {
    topology.members_wanted(partition).into_iter().eq([node])
}

/// Partitions with queues in whose group a node may have a vote: those that it is to have, and those that it
/// was taken from, as it leaves them once their members have decided so.
fn voted_in(topology: &Topology, node: NodeNumber) -> BTreeSet<PartitionId> {
    let may_vote =
        |(id, put): &(PartitionId, &PoolPartition)| put.members.contains(&node) || topology.life_in(*id, node) > 0;
    // Without queues nothing is lost.
    topology.partitions().filter(may_vote).map(|(id, _)| id).filter(|id| topology.is_missed(*id)).collect()
}

/// Why a node cannot be forgotten: what only it has would be lost. A group that can do without it has a leader
/// elsewhere. `deletes`: the queues of which it has the only copy are meant to go.
fn lost_without(cx: Cx<'_>, node: &Member, deletes: bool) -> Option<String> {
    let handle = cx.handle();
    let members = handle.members();
    let is_served = |partition: &PartitionId| {
        let leader = handle.leader(*partition);
        members.iter().any(|other| Some(other.number) == leader && other.is_reached && other.number != node.number)
    };
    let topology = handle.topology();
    let mut unserved = voted_in(&topology, node.number);
    unserved.retain(|partition| !is_served(partition));
    let (alone, others): (BTreeSet<_>, BTreeSet<_>) =
        unserved.into_iter().partition(|partition| is_alone_in(&topology, node.number, *partition));
    let name = &node.name;
    let told = |partitions: &BTreeSet<PartitionId>| {
        let first = partitions.first()?;
        Some(lost_with(&topology, partitions).unwrap_or_else(|| format!("partition {}", first.0)))
    };
    if let Some(what) = told(&others) {
        let more = match told(&alone) {
            Some(what) if !deletes => format!("; and only {name} has {what}, which --delete-queues would delete"),
            _ => String::new(),
        };
        // Of a partition without a queue that is declared there is nothing to delete.
        let or_delete = if lost_with(&topology, &others).is_some() { ", or delete these queues" } else { "" };
        return Some(format!(
            "{what} has no leader without {name}, and copies elsewhere that are too few to decide: bring nodes back first\
             {or_delete}{more}"
        ));
    }
    told(&alone).filter(|_| !deletes).map(|what| {
        format!(
            "only {name} has {what}: bring it back, or say --delete-queues (?delete-queues=true), which deletes them"
        )
    })
}

/// Whether a group that leads now may have no majority without a node.
fn may_miss(cx: Cx<'_>, node: NodeNumber) -> bool {
    let handle = cx.handle();
    let members = handle.members();
    let topology = handle.topology();
    let is_reached = |number: &NodeNumber| members.iter().any(|one| one.number == *number && one.is_reached);
    voted_in(&topology, node).into_iter().any(|partition| {
        let is_taken = |one: &&Member| topology.life_in(partition, one.number) > 0;
        let taken = members.iter().filter(is_taken).map(|one| one.number);
        let mut voters: BTreeSet<NodeNumber> = topology.members_wanted(partition).into_iter().chain(taken).collect();
        voters.insert(node);
        2 * voters.iter().filter(|number| **number != node && is_reached(number)).count() <= voters.len()
    })
}

/// The queues of partitions, for people: the first of them, and how many more there are.
fn lost_with(topology: &Topology, partitions: &BTreeSet<PartitionId>) -> Option<String> {
    let mut queues = topology.declared_queues().filter(|queue| partitions.contains(&queue.partition));
    let first = queues.next()?;
    let vhost = topology.vhost_of(first.vhost).map_or_else(String::new, |vhost| vhost.name.to_string());
    let more = match queues.count() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };
    Some(format!("queue '{}' in vhost '{vhost}'{more}", first.name))
}

/// DELETE of the samples behind rates and histories.
pub(super) fn reset(cx: Cx<'_>, node: Option<&[u8]>) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    node.map_or(Ok(()), |node| cx.need_node(node))?;
    cx.call.statistics.reset();
    Ok(Answer::done())
}

/// GET of what plugins add to RabbitMQ's pages: nothing.
pub(super) fn extensions() -> Result<Answer, Refused> {
    Ok(Answer::json(&json!([])))
}

/// GET of the version that clients are told.
pub(super) fn version(cx: Cx<'_>) -> Result<Answer, Refused> {
    Ok(Answer::json(&json!(cx.handle().facts().config.product_version)))
}

/// POST: a virtual host is started on a node, where all of them run.
pub(super) async fn start_vhost(cx: Cx<'_>, vhost: &[u8], node: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    fields::NOTHING.of(&body.read(cx.caller).await?)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    cx.need_node(node).map_err(|_| Refused::BadRequest(format!("Unknown node: {}", text(node))))?;
    let found = super::find_vhost(&cx.handle().topology(), vhost);
    let missing = || format!("Request to node {} failed with {{no_such_vhost,<<\"{}\">>}}", text(node), text(vhost));
    found.map_err(|_| Refused::BadRequest(missing()))?;
    Ok(Answer::done())
}

/// POST of an action on a queue: those of RabbitMQ were about mirrors, which 4.0 has no more. The reason is a text:
/// RabbitMQ's is a list here, which its clients in Go cannot read, and those who ask for mirrors are told why there are none.
pub(super) async fn queue_action(cx: Cx<'_>, vhost: &[u8], name: &[u8], body: Body) -> Result<Answer, Refused> {
    cx.caller.need_administrator()?;
    let id = super::find_vhost(&cx.handle().topology(), vhost)?;
    cx.handle().topology().find_queue(id, checked(name)?).ok_or(Refused::NotFound)?;
    let fields = fields::QUEUE_ACTION.of(&body.read(cx.caller).await?)?;
    need_keys(&fields, &["action"])?;
    let action = fields::text(&fields, "action")?.unwrap_or_default();
    Err(Refused::BadRequest(format!("unknown action \"{action}\": copies of a queue keep up by themselves")))
}

/// What RabbitMQ's plug-ins serve and this broker does not yet.
pub(super) fn comes_later(what: &str) -> Result<Answer, Refused> {
    Err(Refused::Missing(format!("{what} with a later version")))
}

/// What RabbitMQ's plug-in for tracing serves.
pub(super) fn untraced() -> Result<Answer, Refused> {
    Err(Refused::Missing("messages are not traced here, as in RabbitMQ without rabbitmq_tracing".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deprecated_and_permitted_is_permitted_by_default() {
        for (name, state, phase) in DEPRECATED {
            assert_eq!(*state == "permitted", *phase == "permitted_by_default", "{name}");
        }
    }
}

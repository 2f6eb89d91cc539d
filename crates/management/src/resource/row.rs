//! A queue as `/api/queues` describes it.
//!
//! Invariant: the fields of a row stand in the order of their names, so a row that is written at once
//! and one that was chosen from, sorted or sent by another node is the same text.

use super::Cx;
use crate::json::{Fields, Text};
use crate::map::{Map, names};
use crate::statistics::{Details, History, MessageStats, Ranges, Store, lengths, message_stats};
use broker::topology::{Name, Queue, QueueType, Topology};
use broker::{NodeNumber, PartitionId, QueueId};
use partition::QueueFigures;
use serde::Serialize;
use serde_json::{Value, json};
use server::handle::{InQueues, Member, Voter};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

/// See the module. What is `None` is not told; a `None` in a `Some` is told as `null`.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    arguments: Fields<'a>,
    auto_delete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumers: Option<u64>,
    durable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    effective_policy_definition: Option<Fields<'a>>,
    exclusive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leveret_joining: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leveret_repeats_dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leveret_value_at_risk: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leveret_value_at_risk_cap: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_stats: Option<MessageStats<'a, History>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_delayed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_dlx: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_details: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_ready: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_ready_details: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_unacknowledged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_unacknowledged_details: Option<Details>,
    name: Text<'a>,
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    online: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operator_policy: Option<Option<Text<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_pid_details: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<Option<Text<'a>>>,
    state: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    vhost: Option<Text<'a>>,
}

/// What rows are made of.
pub(super) struct Rows<'a> {
    cx: Cx<'a>,
    map: &'a Map,
    topology: &'a Topology,
    store: &'a Store,
    /// What this node knows of the queues that it leads.
    figures: &'a InQueues,
    owners: &'a Owners,
    /// Nodes that are to have a copy and have no vote yet, of partitions that this node leads.
    joining: HashMap<PartitionId, BTreeSet<NodeNumber>>,
    /// `None` where no statistics are wanted.
    rates: Option<&'a Ranges>,
    wants_lengths: bool,
    wants_stats: bool,
    wants_totals: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        cx: Cx<'a>,
        (map, topology): (&'a Map, &'a Topology),
        store: &'a Store,
        (figures, owners): (&'a InQueues, &'a Owners),
        rates: Option<&'a Ranges>,
    ) -> Rows<'a> {
        let lengths = ["messages_details", "messages_ready_details", "messages_unacknowledged_details"];
        Rows {
            cx,
            map,
            topology,
            store,
            figures,
            owners,
            joining: if cx.handle().has_peers() { joining(topology, figures.voters()) } else { HashMap::new() },
            rates,
            wants_lengths: lengths.iter().any(|one| cx.call.wants(one)),
            wants_stats: cx.call.wants("message_stats"),
            wants_totals: cx.call.flag("enable_queue_totals"),
        }
    }

    /// A queue of the topology.
    pub(super) fn row(&self, queue: &'a Queue) -> Row<'a> {
        let (handle, map) = (self.cx.handle(), self.map);
        let found = self.figures.of(queue);
        let leader = handle.leader(queue.partition);
        let place = map.place(queue.partition, leader);
        // What is damaged here alone is led elsewhere.
        let is_damaged = handle.is_quarantined(queue.partition) && leader.is_none_or(|node| node == map.own);
        let leader = place.leader.filter(|_| !is_damaged);
        // Who came to lead it a moment ago does not know yet what is in it.
        let is_known = leader.is_some_and(|member| member.is_own) && found.is_some();
        let figures = found.unwrap_or_else(|| QueueFigures::empty(queue.id));
        // In a cluster a durable classic queue has copies too.
        let has_copies =
            queue.shape.queue_type == QueueType::Quorum || handle.has_peers() && !queue.partition.is_in_memory();
        let newcomers = self.joining.get(&queue.partition);
        let joins = |member: &Member| newcomers.is_some_and(|nodes| nodes.contains(&member.number));
        let online = || place.online().filter(|member| !joins(member));
        let policies = self.topology.policies_of_queue(queue);
        let text = |name: Option<&'a Name>| name.map(|name| Text(name));
        let totals = |count: u64| Some(count).filter(|_| is_known && (self.rates.is_some() || self.wants_totals));
        let row = Row {
            arguments: Fields(Cow::Borrowed(&queue.shape.arguments)),
            auto_delete: queue.shape.auto_delete,
            consumers: None,
            durable: queue.shape.durable,
            effective_policy_definition: None,
            exclusive: queue.exclusive.is_some(),
            leader: has_copies.then(|| leader.map_or("", |member| &member.name)),
            leveret_joining: names(place.members.iter().copied().filter(|member| joins(member))),
            leveret_repeats_dropped: None,
            leveret_value_at_risk: None,
            leveret_value_at_risk_cap: None,
            members: has_copies.then(|| names(place.members.iter().copied())),
            message_stats: None,
            messages: totals(figures.ready + figures.unacked),
            messages_delayed: None,
            messages_dlx: None,
            messages_details: None,
            messages_ready: totals(figures.ready),
            messages_ready_details: None,
            messages_unacknowledged: totals(figures.unacked),
            messages_unacknowledged_details: None,
            name: Text(&queue.name),
            node: leader.or(place.members.first().copied()).map(|member| &*member.name),
            online: has_copies.then(|| if is_damaged { Vec::new() } else { names(online()) }),
            operator_policy: None,
            owner_pid_details: None,
            policy: policies.policy.map(|name| Some(Text(name))),
            state: if is_damaged { "down" } else { place.state() },
            kind: queue.shape.queue_type.word(),
            vhost: self.topology.vhost_of(queue.vhost).map(|vhost| Text(&vhost.name)),
        };
        let Some(ranges) = self.rates else { return row };
        let history = self.store.queue(queue.id).map(std::slice::from_ref);
        // Of what is led elsewhere nobody knows them here.
        let lengths = history.filter(|_| is_known && self.wants_lengths).map(|of| lengths(of, self.store, ranges));
        let [all, ready, unacked] = lengths.map_or([None, None, None], |of| of.map(|(_, details)| Some(details)));
        Row {
            consumers: Some(figures.consumers).filter(|_| is_known),
            effective_policy_definition: Some(Fields(policies.definition.map_or_else(Cow::default, Cow::Owned))),
            leveret_repeats_dropped: queue.rules.dedup.is_some().then_some(figures.repeats_dropped),
            leveret_value_at_risk: figures.value_cap.map(|_| figures.value_at_risk),
            leveret_value_at_risk_cap: figures.value_cap,
            message_stats: history.filter(|_| self.wants_stats).and_then(|of| message_stats(of, self.store, ranges)),
            messages_delayed: Some(figures.delayed).filter(|_| is_known),
            messages_dlx: Some(figures.letters).filter(|_| is_known && queue.shape.queue_type == QueueType::Quorum),
            messages_details: all,
            messages_ready_details: ready,
            messages_unacknowledged_details: unacked,
            operator_policy: Some(text(policies.operator_policy)),
            owner_pid_details: queue.exclusive.and_then(|owner| self.owners.0.get(&owner)).filter(|_| is_known),
            policy: Some(text(policies.policy)),
            ..row
        }
    }
}

/// The nodes that are to have a copy of a partition and have no vote there: until they have caught up they count for no
/// majority. `voters`: who has one, by partition; what is left out is known to be whole, or not known here.
fn joining<'a>(
    topology: &Topology,
    voters: impl Iterator<Item = (PartitionId, &'a [Voter])>,
) -> HashMap<PartitionId, BTreeSet<NodeNumber>> {
    let of = |(partition, voters)| (partition, without_vote(topology.lives_wanted(partition), voters));
    voters.map(of).filter(|(_, nodes)| !nodes.is_empty()).collect()
}

/// `wanted`: the members that are to be, each with how often its node has left the group before.
fn without_vote(wanted: Vec<(NodeNumber, u32)>, voters: &[Voter]) -> BTreeSet<NodeNumber> {
    let has_vote = |(node, life): &(NodeNumber, u32)| voters.contains(&Voter { node: *node, life: *life });
    wanted.into_iter().filter(|member| !has_vote(member)).map(|(node, _)| node).collect()
}

/// The connections of this node that exclusive queues belong to, by their numbers.
#[derive(Default)]
pub(super) struct Owners(HashMap<u64, Value>);

impl Owners {
    /// The owners of these queues; none where nobody wants to know.
    pub(super) async fn of(cx: Cx<'_>, queues: impl Iterator<Item = QueueId>) -> Owners {
        let wanted: BTreeSet<u64> = {
            let (topology, own) = (cx.handle().topology(), Some(cx.handle().own_node()));
            let queues = queues.filter_map(|id| topology.queue(id));
            let here = queues.filter(|queue| queue.exclusive.is_some() && cx.handle().leader(queue.partition) == own);
            here.filter_map(|queue| queue.exclusive).collect()
        };
        if wanted.is_empty() || !cx.call.wants("owner_pid_details") {
            return Owners::default();
        }
        let connections = cx.handle().connections().await;
        let owners = connections.iter().filter(|report| wanted.contains(&report.number.0));
        let describe = |report: &server::report::ConnectionReport| {
            let (name, peer) = (super::connection::name(report), report.peer);
            let details = json!({ "name": name, "peer_host": peer.ip().to_string(), "peer_port": peer.port() });
            (report.number.0, details)
        };
        Owners(owners.map(describe).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_a_vote_is_told_as_joining_also_where_its_node_had_one_before() {
        let (one, two) = (NodeNumber(1), NodeNumber(2));
        let voters = [Voter { node: one, life: 0 }, Voter { node: two, life: 0 }];
        assert_eq!(without_vote(vec![(one, 0), (two, 0)], &voters), [].into());
        assert_eq!(without_vote(vec![(one, 0), (two, 0), (NodeNumber(3), 0)], &voters), [NodeNumber(3)].into());
        assert_eq!(without_vote(vec![(one, 0), (two, 1)], &voters), [two].into(), "it comes back as another member");
        assert_eq!(without_vote(Vec::new(), &[]), [].into(), "nobody votes about what is in memory");
    }
}

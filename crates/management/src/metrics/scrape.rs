//! Everything that a page of metrics may tell, gathered at one moment.
//!
//! Invariant: a shard is asked for what the page tells and for nothing else. To scrape is not to
//! look: samples of rates go on as if nobody had asked.

use super::view::View;
use crate::call::Call;
use crate::map::Map;
use crate::process::Process;
use crate::quorum::Quorum;
use crate::statistics::column::QUEUE_WIDTH;
use broker::topology::Topology;
use broker::{NodeNumber, PartitionId, VhostId};
use partition::QueueFigures;
use server::handle::{DeadLettered, InQueues, LoginOver, MemberStanding, NodeFigures, QueueTraffic, ShownCertificate};
use server::report::ConnectionState;
use std::collections::HashMap;

/// A queue.
#[derive(Clone, Debug)]
pub(super) struct QueueRow {
    /// Its names are empty where sums are told.
    pub(super) vhost: String,
    pub(super) name: String,
    pub(super) figures: QueueFigures,
    /// What went through it, by column of its history.
    pub(super) counts: [u64; QUEUE_WIDTH],
    pub(super) has_dedup: bool,
}

/// An exchange, and where messages went from it.
#[derive(Clone, Debug)]
pub(super) struct ExchangeRow {
    pub(super) vhost: String,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) bindings: u64,
    pub(super) published: u64,
    /// By queue: its virtual host, its name, how many.
    pub(super) queues: Vec<(String, String, u64)>,
}

/// A channel.
#[derive(Clone, Debug)]
pub(super) struct ChannelRow {
    pub(super) name: String,
    pub(super) vhost: String,
    pub(super) consumers: u64,
    pub(super) unacked: u64,
    pub(super) unconfirmed: u64,
    pub(super) prefetch: u64,
    pub(super) global_prefetch: u64,
    pub(super) confirmed: u64,
    pub(super) returned: u64,
    pub(super) dropped: u64,
    /// By exchange.
    pub(super) publishes: Vec<(String, u64)>,
    /// By queue.
    pub(super) deliveries: Vec<(String, [u64; QUEUE_WIDTH])>,
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionRow {
    pub(super) name: String,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) channels: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) view: View,
    pub(super) node: String,
    pub(super) cluster: String,
    pub(super) cluster_id: String,
    pub(super) version: String,
    pub(super) figures: NodeFigures,
    pub(super) process: Process,
    pub(super) disk_limit_bytes: u64,
    pub(super) memory_limit_bytes: u64,
    pub(super) connections_max: u64,
    pub(super) uptime_s: f64,
    pub(super) queue_count: u64,
    pub(super) exchange_count: u64,
    pub(super) binding_count: u64,
    pub(super) publisher_count: u64,
    pub(super) blocked_connections: u64,
    /// Right and wrong, over AMQP and HTTP.
    pub(super) logins: [(&'static str, (u64, u64)); 2],
    /// By RabbitMQ's name of the type of queue.
    pub(super) types: [(&'static str, QueueTraffic); 2],
    pub(super) dead_lettered: DeadLettered,
    pub(super) routed: u64,
    pub(super) received_confirm: u64,
    pub(super) vhosts: Vec<String>,
    pub(super) queues: Vec<QueueRow>,
    pub(super) exchanges: Vec<ExchangeRow>,
    pub(super) channels: Vec<ChannelRow>,
    pub(super) connections: Vec<ConnectionRow>,
    /// Groups and copies, of a node of a cluster.
    pub(super) quorum: Quorum,
    /// How the members of this node stand, if somebody asks for it.
    pub(super) standings: Vec<MemberStanding>,
    /// From an entry's proposal until a majority has it: the mean, if any was measured.
    pub(super) commit_latency_s: Option<f64>,
    /// It is in maintenance mode.
    pub(super) rests: bool,
    /// What it shows to clients and to other nodes.
    pub(super) certificates: Vec<ShownCertificate>,
    /// How long the stages of a message's road took since the start.
    pub(super) stages: crate::statistics::Stages,
    /// RabbitMQ's parts of the memory.
    pub(super) memory: Vec<(&'static str, u64)>,
}

fn vhost_name(topology: &Topology, vhost: VhostId) -> String {
    topology.vhost_of(vhost).map(|vhost| vhost.name.to_string()).unwrap_or_default()
}

/// The counts of a history of a queue.
fn counts(now: &[u64]) -> [u64; QUEUE_WIDTH] {
    std::array::from_fn(|column| now.get(column).copied().unwrap_or(0))
}

impl Scrape {
    pub(super) async fn new(call: &Call<'_>, view: View) -> Scrape {
        let (handle, facts) = (call.handle, call.handle.facts());
        call.statistics.count(handle).await;
        let reports = handle.connections().await;
        let found = handle.queue_figures().await;
        let figures = handle.figures();
        let is_asked = handle.has_peers() && matches!(view, View::Total | View::Each);
        let standings = if is_asked || view.has("ra_metrics") { handle.member_standings().await } else { Vec::new() };
        let (members, cluster) = (handle.members(), handle.cluster_name());
        // Nothing below looks at it a second time.
        let topology = handle.topology();
        let seen = match is_asked {
            true => Quorum::of(&Map::of(handle, &topology, members), |id| handle.leader(id), &standings),
            false => Quorum::default(),
        };
        let store = call.statistics.store();
        let blocked = reports.iter().filter(|report| report.state == ConnectionState::Blocked).count();
        let is_seen = |vhost: &[u8]| view.has_vhost(&String::from_utf8_lossy(vhost));
        let (channels, connections) = rows_of(&reports, &store, &topology, &is_seen);
        let publishers = reports.iter().flat_map(|report| {
            let number = report.number;
            report.channels.iter().map(move |channel| (number, channel.number))
        });
        let has_published = |(connection, channel): &(_, u16)| {
            let counted = store.channel(*connection, *channel);
            counted.is_some_and(|channel| channel.messages.now()[crate::statistics::column::PUBLISH] > 0)
        };
        let [classic, quorum] = store.types();
        let (routed, received_confirm) = store.routed();
        Scrape {
            node: facts.node_name.clone(),
            cluster,
            cluster_id: facts.permanent_id(),
            version: facts.config.product_version.clone(),
            process: Process::look(),
            disk_limit_bytes: facts.config.disk_free_min_bytes,
            memory_limit_bytes: facts.config.transient_bytes_max,
            connections_max: facts.config.connections_max as u64,
            uptime_s: facts.started.elapsed().as_secs_f64(),
            queue_count: led(&topology, |partition| handle.leader(partition), handle.own_node()),
            exchange_count: topology.exchanges().count() as u64,
            binding_count: topology.binding_count() as u64,
            publisher_count: publishers.filter(has_published).count() as u64,
            blocked_connections: blocked as u64,
            logins: [("amqp091", handle.logins(LoginOver::Amqp)), ("http", handle.logins(LoginOver::Http))],
            types: [("rabbit_classic_queue", classic), ("rabbit_quorum_queue", quorum)],
            dead_lettered: store.dead_lettered(),
            routed,
            received_confirm,
            vhosts: topology
                .vhosts()
                .map(|(_, vhost)| vhost.name.to_string())
                .filter(|name| view.has_vhost(name))
                .collect(),
            queues: queue_rows(&topology, &found, &store, &view),
            exchanges: exchange_rows(&topology, &store, &view),
            channels,
            connections,
            quorum: seen,
            standings,
            commit_latency_s: store.stages().mean_commit_s(store.now_ms()),
            rests: handle.rests(),
            certificates: handle.certificates(),
            stages: *store.stages().since_start(),
            memory: crate::resource::memory_parts(&figures),
            figures,
            view,
        }
    }
}

/// Queues whose leader is this node, or that are in its memory: each node of a cluster counts its own,
/// so that their sum is that of all queues.
fn led(topology: &Topology, leader: impl Fn(PartitionId) -> Option<NodeNumber>, own: NodeNumber) -> u64 {
    topology.declared_queues().filter(|queue| leader(queue.partition) == Some(own)).count() as u64
}

fn queue_rows(topology: &Topology, found: &InQueues, store: &crate::statistics::Store, view: &View) -> Vec<QueueRow> {
    let row = |queue: &broker::topology::Queue| QueueRow {
        vhost: if view.is_each() { vhost_name(topology, queue.vhost) } else { String::new() },
        name: if view.is_each() { queue.name.to_string() } else { String::new() },
        figures: found.of(queue).unwrap_or_else(|| QueueFigures::empty(queue.id)),
        counts: counts(store.queue(queue.id).map_or(&[], |history| history.now())),
        has_dedup: queue.rules.dedup.is_some(),
    };
    let mut rows: Vec<QueueRow> =
        topology.declared_queues().map(row).filter(|row| view.has_vhost(&row.vhost)).collect();
    if !view.is_each() {
        // What is known of queues whose record is not here yet counts too.
        let rest = found.all().filter(|figures| topology.queue(figures.queue).is_none());
        rows.extend(rest.map(|figures| QueueRow {
            vhost: String::new(),
            name: String::new(),
            figures: *figures,
            counts: [0; QUEUE_WIDTH],
            has_dedup: true,
        }));
    }
    rows
}

fn exchange_rows(topology: &Topology, store: &crate::statistics::Store, view: &View) -> Vec<ExchangeRow> {
    let wants = ["exchange_bindings", "exchange_names"].iter().any(|family| view.has_by_name(family));
    let mut bindings: HashMap<(VhostId, broker::topology::Name), u64> = HashMap::new();
    if view.has_by_name("exchange_bindings") {
        for binding in topology.bindings() {
            *bindings.entry((binding.vhost, binding.source.clone())).or_default() += 1;
        }
    }
    let row = |exchange: &broker::topology::Exchange| {
        let counted = store.exchange(exchange.vhost, &exchange.name);
        let queues = counted.into_iter().flat_map(|counted| &counted.queues).filter_map(|(queue, count)| {
            let queue = topology.queue(*queue)?;
            Some((vhost_name(topology, queue.vhost), queue.name.to_string(), count.now()[0]))
        });
        ExchangeRow {
            vhost: vhost_name(topology, exchange.vhost),
            name: exchange.name.to_string(),
            kind: exchange.kind.word(),
            bindings: bindings.get(&(exchange.vhost, exchange.name.clone())).copied().unwrap_or(0),
            published: counted.map_or(0, |counted| counted.messages.now()[crate::statistics::column::IN]),
            queues: queues.collect(),
        }
    };
    let is_used = |row: &ExchangeRow| wants || row.published > 0;
    topology.exchanges().map(row).filter(|row| view.has_vhost(&row.vhost) && is_used(row)).collect()
}

fn rows_of(
    reports: &[server::report::ConnectionReport],
    store: &crate::statistics::Store,
    topology: &Topology,
    is_seen: &dyn Fn(&[u8]) -> bool,
) -> (Vec<ChannelRow>, Vec<ConnectionRow>) {
    let (mut channels, mut connections) = (Vec::new(), Vec::with_capacity(reports.len()));
    for report in reports.iter().filter(|report| is_seen(&report.vhost)) {
        let name = crate::resource::connection_name(report);
        for channel in &report.channels {
            let counted = store.channel(report.number, channel.number);
            let of = |column: usize| counted.map_or(0, |counted| counted.messages.now()[column]);
            let exchanges = counted.into_iter().flat_map(|counted| &counted.exchanges);
            let queues = counted
                .into_iter()
                .flat_map(|counted| &counted.queues)
                .filter_map(|(queue, history)| Some((topology.queue(*queue)?.name.to_string(), counts(history.now()))));
            channels.push(ChannelRow {
                name: format!("{name} ({})", channel.number),
                vhost: String::from_utf8_lossy(&report.vhost).into_owned(),
                consumers: channel.consumers.len() as u64,
                unacked: channel.unacked,
                unconfirmed: channel.unconfirmed,
                prefetch: channel.prefetch.into(),
                global_prefetch: channel.global_prefetch,
                confirmed: of(crate::statistics::column::CONFIRM),
                returned: of(crate::statistics::column::RETURN),
                dropped: of(crate::statistics::column::DROP),
                publishes: exchanges.map(|(name, history)| (name.to_string(), history.now()[0])).collect(),
                deliveries: queues.collect(),
            });
        }
        connections.push(ConnectionRow {
            name,
            received: report.seen.received_bytes,
            sent: report.seen.sent_bytes,
            channels: report.channels.len() as u64,
        });
    }
    (channels, connections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::topology::{Command, DeclareQueue, Name};

    #[test]
    fn nodes_count_each_queue_once_between_them() {
        let mut topology = Topology::new();
        for (name, partition) in [("a", 1), ("b", 1), ("c", 2), ("d", 3)] {
            let declare = Command::DeclareQueue(DeclareQueue {
                vhost: VhostId(0),
                name: Name::from(name),
                durable: true,
                exclusive: None,
                auto_delete: false,
                arguments: amqp::Table::new(),
                partition: PartitionId(partition),
                home: None,
            });
            let _ = topology.apply(&declare).outcome.expect("it is declared");
        }
        // Nobody is known to lead the third partition.
        let leader = |partition: PartitionId| Some(NodeNumber(partition.0)).filter(|node| node.0 < 3);
        assert_eq!([1, 2, 3].map(|node| led(&topology, leader, NodeNumber(node))), [2, 1, 0]);
    }
}

//! What went through everything that the node has, added up, and its histories.
//!
//! Invariant: a count never falls, whatever was counted where: shards tell what came since they
//! were asked before, and it is added here. What is gone is forgotten with the next sample.

use super::column::{self, CHANNEL_WIDTH, NODE_WIDTH, QUEUE_WIDTH, VHOST_WIDTH};
use super::series::{Series, Timeline};
use super::stages::{self, StageHistory};
use crate::process::Process;
use broker::topology::{Name, Topology};
use broker::{PartitionId, QueueId, VhostId};
use partition::PartitionFigures;
use server::handle::{ChannelTraffic, DeadLettered, NodeFigures, QueueTraffic, ShardStatistics};
use server::report::{ChannelFigures, ConnectionNumber};
use std::collections::{BTreeMap, HashMap};

/// Things of one kind that have histories; those that come later have rates, which cost little.
const HISTORIES_MAX: usize = 20_000;
/// Samples this much apart are those of somebody who looks.
const FRESH_MS: u64 = 15_000;

/// The counts of one thing, and their history.
#[derive(Clone, Debug)]
pub(crate) struct History {
    now: Box<[u64]>,
    past: Past,
}

#[derive(Clone, Debug)]
enum Past {
    Kept(Box<Series>),
    /// The newest sample, and how it changed with it.
    Newest(Box<[u64]>, Box<[i64]>),
}

impl History {
    fn new(width: usize, is_kept: bool) -> History {
        let zeros = vec![0; width];
        let past = match is_kept {
            true => Past::Kept(Box::new(Series::new(&zeros))),
            false => Past::Newest(zeros.clone().into(), vec![0; width].into()),
        };
        History { now: zeros.into(), past }
    }

    /// What it is now is where it begins.
    fn begin(&mut self) {
        match &mut self.past {
            Past::Kept(series) => **series = Series::new(&self.now),
            Past::Newest(sampled, _) => sampled.copy_from_slice(&self.now),
        }
    }

    fn record(&mut self, timeline: &Timeline) {
        match &mut self.past {
            Past::Kept(series) => series.record(&self.now, timeline),
            Past::Newest(sampled, changes) => {
                for (change, (new, old)) in changes.iter_mut().zip(self.now.iter().zip(sampled.iter())) {
                    *change = new.wrapping_sub(*old) as i64;
                }
                sampled.copy_from_slice(&self.now);
            }
        }
    }

    /// Whether more than the newest sample is kept.
    pub(super) fn keeps_samples(&self) -> bool {
        matches!(self.past, Past::Kept(_))
    }

    /// The counts now.
    pub(crate) fn now(&self) -> &[u64] {
        &self.now
    }

    /// The counts at the newest sample.
    pub(super) fn sampled(&self) -> &[u64] {
        match &self.past {
            Past::Kept(series) => series.values(),
            Past::Newest(sampled, _) => sampled,
        }
    }

    /// How they changed with it.
    pub(super) fn changes(&self) -> &[i64] {
        match &self.past {
            Past::Kept(series) => series.changes(),
            Past::Newest(_, changes) => changes,
        }
    }

    pub(super) fn points(&self, column: usize, timeline: &Timeline) -> Vec<(u64, u64)> {
        match &self.past {
            Past::Kept(series) => series.points(column, timeline),
            Past::Newest(..) => timeline.newest().map(|time| (time, self.sampled()[column])).into_iter().collect(),
        }
    }
}

fn add_traffic(now: &mut [u64], traffic: &QueueTraffic) {
    for (column, count) in column::of_queue(traffic) {
        now[column] += count;
    }
}

/// Adds by how much `new` is more than `old`.
fn add_growth(now: &mut [u64], column: usize, new: u64, old: u64) {
    now[column] += new.saturating_sub(old);
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHistory {
    pub(crate) bytes: History,
    vhost: VhostId,
    pub(crate) channels: Vec<ChannelHistory>,
}

/// A channel.
#[derive(Clone, Debug)]
pub(crate) struct ChannelHistory {
    pub(crate) number: u16,
    pub(crate) messages: History,
    traffic: ChannelTraffic,
    pub(crate) exchanges: Vec<(Name, History)>,
    pub(crate) queues: Vec<(QueueId, History)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Store {
    timeline: Timeline,
    now_ms: u64,
    pub(super) has_begun: bool,
    queues: HashMap<QueueId, History>,
    vhosts: HashMap<VhostId, History>,
    exchanges: HashMap<(VhostId, Name), Exchange>,
    connections: HashMap<ConnectionNumber, ConnectionHistory>,
    node: Option<History>,
    stages: StageHistory,
    partitions: HashMap<PartitionId, PartitionFigures>,
    /// What came out of classic and of quorum queues.
    types: [QueueTraffic; 2],
    /// Dead letters, since the start.
    dead_lettered: DeadLettered,
    /// Copies that went into queues.
    routed: u64,
    /// Messages published on channels that confirm.
    published_to_confirm: u64,
}

/// An exchange, and what went from it into each queue.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) messages: History,
    pub(crate) queues: BTreeMap<QueueId, History>,
}

impl Store {
    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// When it was last brought up to date, in milliseconds since the epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// How old the newest sample is.
    pub(super) fn since_newest_ms(&self) -> Option<u64> {
        Some(self.now_ms.saturating_sub(self.timeline.newest()?))
    }

    /// How old it is at most while somebody looks.
    pub(super) fn fresh_ms(&self) -> u64 {
        FRESH_MS
    }

    pub(crate) fn queue(&self, queue: QueueId) -> Option<&History> {
        self.queues.get(&queue)
    }

    pub(crate) fn vhost(&self, vhost: VhostId) -> Option<&History> {
        self.vhosts.get(&vhost)
    }

    pub(crate) fn exchange(&self, vhost: VhostId, name: &Name) -> Option<&Exchange> {
        self.exchanges.get(&(vhost, name.clone()))
    }

    /// All exchanges, in no order.
    pub(crate) fn exchanges(&self) -> impl Iterator<Item = (&(VhostId, Name), &Exchange)> {
        self.exchanges.iter()
    }

    pub(crate) fn connection(&self, number: ConnectionNumber) -> Option<&ConnectionHistory> {
        self.connections.get(&number)
    }

    pub(crate) fn channel(&self, connection: ConnectionNumber, number: u16) -> Option<&ChannelHistory> {
        self.connections.get(&connection)?.channels.iter().find(|channel| channel.number == number)
    }

    /// How long things take.
    pub(crate) fn stages(&self) -> &StageHistory {
        &self.stages
    }

    /// The groups of queues that have a copy on this node.
    pub(crate) fn partitions(&self) -> &HashMap<PartitionId, PartitionFigures> {
        &self.partitions
    }

    /// What came out of classic and of quorum queues, those too that are gone.
    pub(crate) fn types(&self) -> [QueueTraffic; 2] {
        self.types
    }

    /// Copies of messages that went into queues, and messages published on channels that confirm.
    pub(crate) fn routed(&self) -> (u64, u64) {
        (self.routed, self.published_to_confirm)
    }

    /// Dead letters that were sent since the start.
    pub(crate) fn dead_lettered(&self) -> DeadLettered {
        self.dead_lettered
    }

    pub(crate) fn node(&self) -> Option<&History> {
        self.node.as_ref()
    }

    /// Forgets all histories; counts go on.
    pub(super) fn reset(&mut self) {
        self.timeline = Timeline::default();
        self.has_begun = false;
        self.each(&mut |history| {
            let is_kept = matches!(history.past, Past::Kept(_));
            let fresh = History::new(history.now.len(), is_kept);
            history.past = fresh.past;
            history.begin();
        });
    }

    /// Adds what shards counted, and takes over what there is now.
    pub(super) fn take_in(
        &mut self,
        shards: Vec<ShardStatistics>,
        figures: &NodeFigures,
        topology: &Topology,
        now_ms: u64,
    ) {
        self.now_ms = now_ms;
        let mut lengths: HashMap<QueueId, (u64, u64)> = HashMap::new();
        let mut connected = Vec::new();
        self.stages.update(stages::gather(&shards, figures));
        self.partitions.clear();
        self.dead_lettered = DeadLettered::default();
        for ShardStatistics { connections, queues, counted, partitions, dead_lettered, .. } in shards {
            self.dead_lettered.add(&dead_lettered);
            self.partitions.extend(partitions.into_iter().map(|group| (group.partition, group)));
            self.add_exchanges(&counted, topology);
            for (queue, traffic) in &counted.queues {
                if let Some(known) = topology.queue(*queue) {
                    add_traffic(&mut self.vhost_mut(known.vhost).now, traffic);
                    add_traffic(&mut self.queue_mut(*queue).now, traffic);
                }
            }
            self.types.iter_mut().zip(&counted.types).for_each(|(sum, traffic)| sum.add(traffic));
            for (vhost, counted) in counted.vhosts {
                self.published_to_confirm += counted.published_to_confirm;
                let now = &mut self.vhost_mut(vhost).now;
                now[column::CONFIRM] += counted.confirmed;
                now[column::RETURN] += counted.returned;
                now[column::DROP] += counted.dropped;
            }
            for queue in queues {
                // A queue that is led elsewhere is told by others, and by this node not at all.
                let length = lengths.entry(queue.queue).or_default();
                *length = (length.0 + queue.ready, length.1 + queue.unacked);
            }
            connected.extend(connections);
        }
        self.take_lengths(&lengths, topology);
        self.take_connections(connected);
        self.take_node(figures);
    }

    fn add_exchanges(&mut self, counted: &server::handle::Counted, topology: &Topology) {
        let keys: Vec<(VhostId, Name)> = counted.exchanges.iter().map(|one| (one.vhost, one.name.clone())).collect();
        for (one, key) in counted.exchanges.iter().zip(&keys) {
            self.routed += one.published_out;
            self.vhost_mut(one.vhost).now[column::PUBLISH] += one.published_in;
            let is_kept = self.exchanges.len() < HISTORIES_MAX;
            let new = || Exchange { messages: History::new(column::EXCHANGE_WIDTH, is_kept), queues: BTreeMap::new() };
            let now = &mut self.exchanges.entry(key.clone()).or_insert_with(new).messages.now;
            now[column::IN] += one.published_in;
            now[column::OUT] += one.published_out;
        }
        for (place, queue, count) in &counted.routed {
            if topology.queue(*queue).is_none() {
                continue;
            }
            self.queue_mut(*queue).now[column::PUBLISH] += count;
            let Some(exchange) = self.exchanges.get_mut(&keys[*place as usize]) else { continue };
            let pair = exchange.queues.entry(*queue).or_insert_with(|| History::new(1, false));
            pair.now[0] += count;
        }
    }

    fn queue_mut(&mut self, queue: QueueId) -> &mut History {
        let is_kept = self.queues.len() < HISTORIES_MAX;
        self.queues.entry(queue).or_insert_with(|| History::new(QUEUE_WIDTH, is_kept))
    }

    fn vhost_mut(&mut self, vhost: VhostId) -> &mut History {
        let is_kept = self.vhosts.len() < HISTORIES_MAX;
        self.vhosts.entry(vhost).or_insert_with(|| History::new(VHOST_WIDTH, is_kept))
    }

    fn take_lengths(&mut self, lengths: &HashMap<QueueId, (u64, u64)>, topology: &Topology) {
        let mut sums: HashMap<VhostId, (u64, u64)> = HashMap::new();
        for (id, (ready, unacked)) in lengths {
            let Some(queue) = topology.queue(*id) else { continue };
            let now = &mut self.queue_mut(*id).now;
            (now[column::READY], now[column::UNACKED]) = (*ready, *unacked);
            let sum = sums.entry(queue.vhost).or_default();
            *sum = (sum.0 + ready, sum.1 + unacked);
        }
        for (id, history) in &mut self.queues {
            if !lengths.contains_key(id) {
                (history.now[column::READY], history.now[column::UNACKED]) = (0, 0);
            }
        }
        for (vhost, _) in topology.vhosts() {
            let now = &mut self.vhost_mut(vhost).now;
            (now[column::READY], now[column::UNACKED]) = sums.get(&vhost).copied().unwrap_or_default();
        }
    }

    fn take_connections(&mut self, connected: Vec<server::report::ConnectionFigures>) {
        let mut there = HashMap::with_capacity(connected.len());
        for figures in connected {
            let is_kept = there.len() < HISTORIES_MAX;
            let known = self.connections.remove(&figures.number);
            let mut history = known.unwrap_or_else(|| ConnectionHistory {
                bytes: History::new(column::BYTES_WIDTH, is_kept),
                vhost: figures.vhost,
                channels: Vec::new(),
            });
            let now = &mut history.bytes.now;
            let before = (now[column::RECEIVED], now[column::SENT]);
            (now[column::RECEIVED], now[column::SENT]) = (figures.received_bytes, figures.sent_bytes);
            let of_vhost = &mut self.vhost_mut(history.vhost).now;
            add_growth(of_vhost, column::RECV_OCT, figures.received_bytes, before.0);
            add_growth(of_vhost, column::SEND_OCT, figures.sent_bytes, before.1);
            let channels = std::mem::take(&mut history.channels);
            let mut channels = channels.into_iter().peekable();
            for figures in figures.channels {
                // Both are in the order of their numbers.
                while channels.next_if(|known| known.number < figures.number).is_some() {}
                // A channel that was opened again begins again.
                let known = channels.next_if(|known| known.number == figures.number && known.is_still(&figures));
                let mut channel = known.unwrap_or_else(|| ChannelHistory::new(figures.number, is_kept));
                channel.take(figures);
                history.channels.push(channel);
            }
            there.insert(figures.number, history);
        }
        self.connections = there;
    }

    fn take_node(&mut self, figures: &NodeFigures) {
        let node = self.node.get_or_insert_with(|| History::new(NODE_WIDTH, true));
        for (column, count) in column::of_node(figures) {
            node.now[column] = count;
        }
    }

    /// Makes what there is now a sample.
    pub(super) fn sample(&mut self, topology: &Topology, process: &Process) {
        if let Some(node) = &mut self.node {
            for (column, count) in column::of_process(process) {
                // Threads that have ended switch no more, and are not counted.
                let least = if column == column::CONTEXT_SWITCHES { node.now[column] } else { 0 };
                node.now[column] = count.max(least);
            }
        }
        let sums = self
            .vhosts
            .values()
            .fold((0, 0), |sum, vhost| (sum.0 + vhost.now[column::READY], sum.1 + vhost.now[column::UNACKED]));
        if let Some(node) = &mut self.node {
            (node.now[column::READY], node.now[column::UNACKED]) = sums;
        }
        self.queues.retain(|queue, _| topology.queue(*queue).is_some());
        self.vhosts.retain(|vhost, _| topology.vhost_of(*vhost).is_some());
        self.exchanges.retain(|(vhost, name), exchange| {
            exchange.queues.retain(|queue, _| topology.queue(*queue).is_some());
            topology.find_exchange(*vhost, name).is_some()
        });
        self.stages.sample(self.now_ms);
        self.timeline.advance(self.now_ms);
        if !std::mem::replace(&mut self.has_begun, true) {
            // What was counted before the first look happened at nobody knows what time.
            self.each(&mut History::begin);
        }
        let timeline = std::mem::take(&mut self.timeline);
        self.each(&mut |history| history.record(&timeline));
        self.timeline = timeline;
    }

    fn each(&mut self, visit: &mut dyn FnMut(&mut History)) {
        self.queues.values_mut().for_each(&mut *visit);
        self.vhosts.values_mut().for_each(&mut *visit);
        for exchange in self.exchanges.values_mut() {
            visit(&mut exchange.messages);
            exchange.queues.values_mut().for_each(&mut *visit);
        }
        for connection in self.connections.values_mut() {
            visit(&mut connection.bytes);
            for channel in &mut connection.channels {
                visit(&mut channel.messages);
                channel.exchanges.iter_mut().for_each(|(_, history)| visit(history));
                channel.queues.iter_mut().for_each(|(_, history)| visit(history));
            }
        }
        self.node.iter_mut().for_each(visit);
    }
}

impl ChannelHistory {
    fn new(number: u16, is_kept: bool) -> ChannelHistory {
        ChannelHistory {
            number,
            messages: History::new(CHANNEL_WIDTH, is_kept),
            traffic: ChannelTraffic::default(),
            exchanges: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// Whether these may be figures of the same channel: no count falls.
    fn is_still(&self, figures: &ChannelFigures) -> bool {
        let (before, now) = (&self.traffic, &figures.traffic);
        before.published <= now.published
            && before.confirmed <= now.confirmed
            && before.out.acked <= now.out.acked
            && before.out.delivered <= now.out.delivered
    }

    fn take(&mut self, figures: ChannelFigures) {
        self.traffic = figures.traffic;
        let now = &mut self.messages.now;
        for (column, count) in column::of_channel(&figures.traffic) {
            now[column] = count;
        }
        for (name, count) in figures.publishes {
            let known = self.exchanges.iter().position(|(known, _)| *known == name);
            let at = known.unwrap_or_else(|| {
                self.exchanges.push((name, History::new(1, false)));
                self.exchanges.len() - 1
            });
            self.exchanges[at].1.now[0] = count;
        }
        for (queue, traffic) in figures.deliveries {
            let known = self.queues.iter().position(|(known, _)| *known == queue);
            let at = known.unwrap_or_else(|| {
                self.queues.push((queue, History::new(QUEUE_WIDTH, false)));
                self.queues.len() - 1
            });
            for (column, count) in column::of_queue(&traffic) {
                self.queues[at].1.now[column] = count;
            }
        }
    }
}

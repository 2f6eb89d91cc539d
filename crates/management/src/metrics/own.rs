//! What only this broker tells, and what is told in histograms.

use super::out::{Labels, Out, counter, gauge};
use super::scrape::{QueueRow, Scrape};
use super::view::View;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use server::engine::BOUNDS_US;
use server::handle::{NodeFigures, ShownCertificate, ShownTo};
use std::fmt::Error;
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

/// A histogram that is counted elsewhere: bounds and counts, not added up.
struct Counted<'s> {
    sum: f64,
    buckets: &'s [(f64, u64)],
}

impl EncodeMetric for Counted<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// How large published messages are, in RabbitMQ's buckets.
pub(super) fn sizes(figures: &NodeFigures, out: &mut Out<'_>) -> Result<(), Error> {
    let sizes = &figures.message_sizes;
    let buckets: Vec<(f64, u64)> = sizes.buckets().collect();
    let mut encoder = out.encoder.encode_descriptor(
        "rabbitmq_message_size_bytes",
        "Bodies of published messages",
        None,
        MetricType::Histogram,
    )?;
    Counted { sum: sizes.sum_bytes as f64, buckets: &buckets }
        .encode(encoder.encode_family(&[("protocol", "amqp091")])?)
}

impl Scrape {
    /// When what the node shows ends.
    fn certificates(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let help = "When a certificate that the node shows ends, or one between it and its authority, since the epoch";
        let rows = self.certificates.iter().map(|ShownCertificate { to, file, ends }| {
            let to = match to {
                ShownTo::Clients => "clients",
                ShownTo::Management => "management",
                ShownTo::Nodes => "nodes",
            };
            (to, file.to_string_lossy(), ends.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
        });
        let rows: Vec<_> = rows.collect();
        let rows = rows.iter().map(|(to, file, ends)| (vec![("shown_to", *to), ("file", file.as_ref())], *ends));
        out.labelled(gauge("certificate_end_timestamp_seconds", help), rows)
    }

    /// How long the stages of a message's road take.
    fn stages(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let help = "How long the stages of a message's road take, measured on some messages";
        let mut encoder = out.encoder.encode_descriptor("leveret_stage_seconds", help, None, MetricType::Histogram)?;
        for (name, stage) in crate::statistics::STAGE_NAMES.iter().zip(&self.stages) {
            let ends = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(stage.counts).collect();
            let sum = stage.total_us as f64 / 1e6;
            Counted { sum, buckets: &buckets }.encode(encoder.encode_family(&[("stage", *name)])?)?;
        }
        Ok(())
    }
}

fn of_queue(row: &QueueRow) -> Labels<'_> {
    vec![("vhost", &row.vhost), ("queue", &row.name)]
}

/// The second in which the process began. It is reckoned once: who watches for restarts must not see
/// it change with the clock.
fn began(uptime_s: f64) -> u64 {
    static BEGAN: OnceLock<u64> = OnceLock::new();
    *BEGAN.get_or_init(|| UNIX_EPOCH.elapsed().map_or(0, |now| (now.as_secs_f64() - uptime_s) as u64))
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let out = &mut Out { encoder, prefix: self.view.prefix(), is_each: self.view.is_each(), name: String::new() };
        match self.view {
            View::Memory => self.memory(out)?,
            _ => {
                self.node(out)?;
                self.of_queues(out)?;
                self.of_channels(out)?;
                self.of_groups(out)?;
            }
        }
        if matches!(self.view, View::Detailed(_)) {
            self.of_cluster(out)?;
        }
        if matches!(self.view, View::Total | View::Each) {
            self.own(out)?;
        }
        self.identity(out)
    }
}

impl Scrape {
    fn own(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let figures = &self.figures;
        out.prefix = "";
        out.maybe(
            gauge("process_resident_memory_bytes", "Memory that the process holds"),
            self.process.resident_bytes,
        )?;
        let help = "When the process began, in seconds since 1970";
        out.one(gauge("process_start_time_seconds", help), began(self.uptime_s))?;
        out.prefix = "leveret_";
        let is_each = out.is_each;
        let help = "Value confirmed and not yet synced, of queues with selective durability";
        let rows = self.queues.iter().map(|row| {
            let value = row.figures.value_at_risk;
            (of_queue(row), row.figures.value_cap.map(|_| value).or((!is_each).then_some(value)))
        });
        out.rows(gauge("value_at_risk", help), rows)?;
        let help = "What the value at risk never passes, of queues in use";
        out.rows(
            gauge("value_at_risk_cap", help),
            self.queues.iter().map(|row| (of_queue(row), row.figures.value_cap)),
        )?;
        let help = "Messages dropped since the start, because the queue had taken in one of the same key";
        let rows = self.queues.iter().map(|row| {
            let dropped = row.figures.repeats_dropped;
            (of_queue(row), (row.has_dedup || !is_each).then_some(dropped))
        });
        out.rows(counter("repeats_dropped", help), rows)?;
        out.one(gauge("publishers_held", "Publishers are held by the operator"), figures.alarms.operator.into())?;
        out.one(gauge("in_maintenance", "The node is in maintenance mode and serves no clients"), self.rests.into())?;
        self.certificates(out)?;
        out.real(gauge("uptime_seconds", "Since the start"), self.uptime_s)?;
        let gauges = [
            ("connections_blocked", "Publishers held back by an alarm", self.blocked_connections),
            ("exchanges", "Exchanges, of the whole cluster", self.exchange_count),
            (
                "bindings",
                "Bindings of the whole cluster, those of the default exchange not counted",
                self.binding_count,
            ),
            (
                "partitions_quarantined",
                "Partitions of which this node's copy is damaged until it is repaired: their queues are unavailable where no other node has a sound one",
                figures.partitions_quarantined,
            ),
            (
                "partitions_without_leader",
                "Partitions, and the group of the topology, without a leader that this node reaches: nothing goes into their queues",
                self.quorum.leaderless.len() as u64,
            ),
            (
                "members_behind",
                "Copies of partitions that this node leads which are not in sync or not begun yet, or whose node is not reached",
                self.quorum.behind,
            ),
            (
                "partitions_without_spare",
                "Partitions that this node leads without a member to spare, where written waits for the disks of a majority",
                self.quorum.unspared,
            ),
            (
                "nodes_unreached",
                "Nodes of the cluster that this one is not linked with",
                self.quorum.unreached.len() as u64,
            ),
            ("transient_messages_bytes", "Memory pinned by messages of transient queues", figures.transient_bytes),
            (
                "transient_messages_limit_bytes",
                "Memory pinned by messages of transient queues at which publishers are blocked",
                self.memory_limit_bytes,
            ),
            (
                "unfinished_bytes",
                "Memory of messages that have not arrived as a whole, and of transactions",
                figures.unfinished_bytes,
            ),
            ("history_bytes", "Memory of what x-recent-history exchanges remember", figures.history_bytes),
            (
                "deduplication_bytes",
                "Memory of the keys that queues with deduplication remember",
                figures.deduplication_bytes,
            ),
            (
                "waiting_bytes",
                "Bytes of frames that wait for their channel's turn, as those of blocked publishers do",
                figures.waiting_bytes,
            ),
            (
                "unread_bytes",
                "Bytes of messages and answers that clients were sent and have not read",
                figures.unread_bytes,
            ),
            ("unwritten_bytes", "Memory of what was published and is not yet written", figures.unwritten_bytes),
        ];
        for (name, help, value) in gauges {
            out.one(gauge(name, help), value)?;
        }
        let help = "Messages set aside since the start, because their bytes are damaged on the disk";
        out.one(counter("messages_set_aside", help), figures.messages_set_aside)?;
        let help = "Messages refused to publishers with basic.nack: their queue is full, or has nobody who leads it";
        out.one(counter("messages_refused", help), figures.traffic.refused)?;
        let help = "Dead letters of strategy at-most-once that were given up, as nobody came to lead their queues";
        out.one(counter("dead_letters_given_up", help), self.dead_lettered.given_up)?;
        let kept: u64 = self.queues.iter().map(|row| row.figures.letters).sum();
        let help = "Dead letters of strategy at-least-once that wait in their queues for a place, or for an answer";
        out.one(gauge("dead_letters_kept", help), kept)?;
        out.one(counter("log_written_bytes", "Bytes written to the log"), figures.log_bytes)?;
        out.one(counter("spans_sent", "Spans of traced messages that a collector has taken"), figures.spans.sent)?;
        let help = "Spans of traced messages that were dropped, as the collector did not take them in time";
        out.one(counter("spans_dropped", help), figures.spans.dropped)?;
        self.stages(out)?;
        if let Some(times) = &figures.sync_times {
            let syncs = Counted { sum: times.total_s, buckets: &times.buckets };
            let help = "How long syncs of the log took";
            syncs.encode(out.encoder.encode_descriptor(
                "leveret_log_sync_seconds",
                help,
                None,
                MetricType::Histogram,
            )?)?;
        }
        Ok(())
    }
}

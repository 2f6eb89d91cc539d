//! `GET /metrics` and `/metrics/per-object`: what the node knows of itself, in the text that
//! Prometheus reads.
//!
//! Invariant: where the meaning is RabbitMQ's the name is RabbitMQ's, and a name of RabbitMQ's
//! never means anything else; what only this broker has begins with `leveret_`. Nothing of it is on
//! the road of a message: counters are read from gauges that shards set at the end of a step
//! anyway, and queues tell their counts once a scrape. Nobody is asked for a password, as in
//! RabbitMQ: the figures hold no message, and per object the names of queues.

use crate::answer::{Answer, Refused};
use crate::call::Call;
use crate::process::Process;
use bytes::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use server::handle::NodeFigures;
use server::report::ConnectionState;
use std::cell::RefCell;
use std::fmt::Error;
use std::rc::Rc;
use std::time::Duration;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// RabbitMQ's label of everything that came by AMQP 0-9-1.
const PROTOCOL: [(&str, &str); 1] = [("protocol", "amqp091")];

/// The answer to a request for metrics.
pub(crate) async fn answer(call: &Call<'_>) -> Result<Answer, Refused> {
    let per_object = match call.head.uri.path().trim_end_matches('/') {
        "/metrics" => false,
        "/metrics/per-object" => true,
        _ => return Err(Refused::NotFound),
    };
    if !["GET", "HEAD"].contains(&call.head.method.as_str()) {
        return Err(Refused::NotAllowed(&["GET", "HEAD"]));
    }
    let page = match per_object {
        false => encode(Scrape::new(call, false).await).ok_or(Refused::NoAnswer)?,
        true => call.pages.page(call).await?,
    };
    Ok(Answer::text(page, CONTENT_TYPE))
}

fn encode(scrape: Scrape) -> Option<Bytes> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).ok()?;
    Some(text.into())
}

/// How long a page is given to others who ask: they are not asked for a password, and a page of
/// many queues takes long to make.
const PAGE_AGE: Duration = Duration::from_secs(1);
/// Shorter pages are made for each.
const PAGE_BYTES: usize = 256 << 10;

/// The page per object that was made last, if that was a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    newest: RefCell<Option<Bytes>>,
    making: tokio::sync::Mutex<()>,
}

impl Pages {
    async fn page(self: &Rc<Self>, call: &Call<'_>) -> Result<Bytes, Refused> {
        let _turn = self.making.lock().await;
        if let Some(page) = self.newest.borrow().clone() {
            return Ok(page);
        }
        let scrape = Scrape::new(call, true).await;
        // Others have this thread meanwhile.
        let page = tokio::task::spawn_blocking(|| encode(scrape)).await;
        let page = page.ok().flatten().ok_or(Refused::NoAnswer)?;
        if page.len() >= PAGE_BYTES {
            *self.newest.borrow_mut() = Some(page.clone());
            let pages = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(PAGE_AGE).await;
                *pages.newest.borrow_mut() = None;
            });
        }
        Ok(page)
    }
}

/// What is in one queue, or in all of them together.
#[derive(Clone, Debug, Default)]
struct QueueSum {
    vhost: String,
    name: String,
    ready: u64,
    unacked: u64,
    consumers: u64,
    value_at_risk: u64,
    value_cap: Option<u64>,
    /// `None` of a queue that drops no repeats.
    repeats_dropped: Option<u64>,
}

/// Everything, at one moment.
#[derive(Debug)]
struct Scrape {
    node: String,
    version: String,
    figures: NodeFigures,
    process: Process,
    disk_limit_bytes: u64,
    memory_limit_bytes: u64,
    connections_max: u64,
    uptime_s: f64,
    queue_count: u64,
    exchange_count: u64,
    binding_count: u64,
    blocked_connections: u64,
    sum: QueueSum,
    /// One by one, if that was asked for.
    queues: Option<Vec<QueueSum>>,
}

impl Scrape {
    async fn new(call: &Call<'_>, per_object: bool) -> Scrape {
        let (handle, facts) = (call.handle, call.handle.facts());
        let figures = handle.figures();
        let blocked_connections = match handle.blocked_reason() {
            // Without an alarm nobody is blocked, and no connection needs to be asked.
            None => 0,
            Some(_) => {
                let all = handle.connections().await;
                all.iter().filter(|report| report.state == ConnectionState::Blocked).count() as u64
            }
        };
        let found = handle.queue_figures().await;
        let mut sum = QueueSum::default();
        for queue in found.values() {
            sum.ready += queue.ready;
            sum.unacked += queue.unacked;
            sum.consumers += queue.consumers;
            sum.value_at_risk += queue.value_at_risk;
            *sum.repeats_dropped.get_or_insert_default() += queue.repeats_dropped;
            sum.value_cap = queue
                .value_cap
                .or(sum.value_cap)
                .map(|_| sum.value_cap.unwrap_or(0).saturating_add(queue.value_cap.unwrap_or(0)));
        }
        let topology = handle.topology();
        let queues = per_object.then(|| {
            let one = |queue: &broker::topology::Queue| {
                let vhost = topology.vhost_of(queue.vhost).map(|vhost| vhost.name.to_string());
                let names = QueueSum {
                    vhost: vhost.unwrap_or_default(),
                    name: queue.name.to_string(),
                    repeats_dropped: queue.rules.dedup.map(|_| 0),
                    ..QueueSum::default()
                };
                match found.get(&queue.id) {
                    None => names,
                    Some(found) => QueueSum {
                        ready: found.ready,
                        unacked: found.unacked,
                        consumers: found.consumers,
                        value_at_risk: found.value_at_risk,
                        value_cap: found.value_cap,
                        repeats_dropped: names.repeats_dropped.map(|_| found.repeats_dropped),
                        ..names
                    },
                }
            };
            topology.queues().map(one).collect()
        });
        Scrape {
            node: facts.node_name.clone(),
            version: facts.config.product_version.clone(),
            figures,
            process: Process::look(),
            disk_limit_bytes: facts.config.disk_free_min_bytes,
            memory_limit_bytes: facts.config.transient_bytes_max,
            connections_max: facts.config.connections_max as u64,
            uptime_s: facts.started.elapsed().as_secs_f64(),
            queue_count: topology.queues().count() as u64,
            exchange_count: topology.exchanges().count() as u64,
            binding_count: topology.binding_count() as u64,
            blocked_connections,
            sum,
            queues,
        }
    }
}

/// The encoder, with the few forms that are used here.
struct Out<'e>(DescriptorEncoder<'e>);

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn flag(&mut self, name: &str, help: &str, value: bool) -> Result<(), Error> {
        self.gauge(name, help, u64::from(value))
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn global(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder.encode_family(&PROTOCOL)?)
    }

    fn info<L: EncodeLabelSet>(&mut self, name: &str, help: &str, labels: &L) -> Result<(), Error> {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(1u64).encode(encoder.encode_family(labels)?)
    }

    fn queues(
        &mut self,
        name: &str,
        help: &str,
        scrape: &Scrape,
        value: impl Fn(&QueueSum) -> Option<u64>,
    ) -> Result<(), Error> {
        let gauge = MetricType::Gauge;
        self.of_queues((name, help, gauge), scrape, value, |value, encoder| ConstGauge::new(value).encode(encoder))
    }

    fn queue_counter(
        &mut self,
        name: &str,
        help: &str,
        scrape: &Scrape,
        value: impl Fn(&QueueSum) -> Option<u64>,
    ) -> Result<(), Error> {
        let counter = MetricType::Counter;
        self.of_queues((name, help, counter), scrape, value, |value, encoder| ConstCounter::new(value).encode(encoder))
    }

    fn of_queues(
        &mut self,
        (name, help, kind): (&str, &str, MetricType),
        scrape: &Scrape,
        value: impl Fn(&QueueSum) -> Option<u64>,
        encode: impl Fn(u64, MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut encoder = self.0.encode_descriptor(name, help, None, kind)?;
        let Some(queues) = &scrape.queues else {
            return encode(value(&scrape.sum).unwrap_or(0), encoder);
        };
        for queue in queues {
            let Some(value) = value(queue) else { continue };
            let labels = [("vhost", queue.vhost.as_str()), ("queue", queue.name.as_str())];
            encode(value, encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// How long syncs took.
struct Syncs<'s>(&'s server::engine::SyncTimes);

impl EncodeMetric for Syncs<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), Error> {
        let count = self.0.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<prometheus_client::encoding::NoLabelSet>(
            self.0.total_s,
            count,
            &self.0.buckets,
            None,
        )
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let out = &mut Out(encoder);
        self.node(out)?;
        self.traffic(out)?;
        self.objects(out)?;
        self.own(out)
    }
}

impl Scrape {
    fn node(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let build = [("rabbitmq_version", self.version.as_str()), ("leveret_version", env!("CARGO_PKG_VERSION"))];
        out.info("rabbitmq_build_info", "Version that clients are told, and this build's own", &build)?;
        let identity = [("rabbitmq_node", self.node.as_str()), ("rabbitmq_cluster", self.node.as_str())];
        out.info("rabbitmq_identity_info", "Node and cluster", &identity)?;
        let process = &self.process;
        if let Some(bytes) = process.resident_bytes {
            out.gauge("rabbitmq_process_resident_memory_bytes", "Memory that the process holds", bytes)?;
            out.gauge("process_resident_memory_bytes", "Memory that the process holds", bytes)?;
        }
        if let Some(count) = process.open_fds {
            out.gauge("rabbitmq_process_open_fds", "Open descriptors", count)?;
        }
        if let Some(count) = process.max_fds {
            out.gauge("rabbitmq_process_max_fds", "Descriptors that may be open", count)?;
        }
        out.gauge("rabbitmq_process_open_tcp_sockets", "Open client connections", self.figures.connections)?;
        out.gauge("rabbitmq_process_max_tcp_sockets", "Client connections that may be open", self.connections_max)?;
        if let Some(bytes) = self.figures.disk_free_bytes {
            out.gauge("rabbitmq_disk_space_available_bytes", "Free disk space", bytes)?;
        }
        let help = "Free disk space below which publishers are blocked";
        out.gauge("rabbitmq_disk_space_available_limit_bytes", help, self.disk_limit_bytes)?;
        let help = "The free disk space alarm is on";
        out.flag("rabbitmq_alarms_free_disk_space_watermark", help, self.figures.alarms.disk)?;
        let help = "The alarm for messages in memory is on";
        out.flag("rabbitmq_alarms_memory_used_watermark", help, self.figures.alarms.memory)?;
        let help = "Publishers are held by the operator";
        out.flag("leveret_publishers_held", help, self.figures.alarms.operator)?;
        let uptime = ConstGauge::new(self.uptime_s);
        uptime.encode(out.0.encode_descriptor("leveret_uptime_seconds", "Since the start", None, MetricType::Gauge)?)
    }

    fn traffic(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let traffic = &self.figures.traffic;
        out.counter("rabbitmq_connections_opened", "Connections opened", traffic.connections_opened)?;
        out.counter("rabbitmq_connections_closed", "Connections closed", traffic.connections_closed)?;
        out.counter("rabbitmq_channels_opened", "Channels opened", traffic.channels_opened)?;
        out.counter("rabbitmq_channels_closed", "Channels closed", traffic.channels_closed)?;
        out.global("rabbitmq_global_messages_received", "Messages published by clients", traffic.published)?;
        out.global("rabbitmq_global_messages_confirmed", "Messages confirmed to publishers", traffic.confirmed)?;
        let help = "Messages without a route that came back";
        out.global("rabbitmq_global_messages_unroutable_returned", help, traffic.returned)?;
        let help = "Messages without a route that were dropped";
        out.global("rabbitmq_global_messages_unroutable_dropped", help, traffic.dropped)?;
        let delivered = traffic.delivered + traffic.delivered_no_ack + traffic.got + traffic.got_no_ack;
        out.global("rabbitmq_global_messages_delivered", "Messages delivered, by consume or get", delivered)?;
        let help = "Messages delivered to consumers that acknowledge";
        out.global("rabbitmq_global_messages_delivered_consume_manual_ack", help, traffic.delivered)?;
        let help = "Messages delivered to consumers that do not acknowledge";
        out.global("rabbitmq_global_messages_delivered_consume_auto_ack", help, traffic.delivered_no_ack)?;
        let help = "Deliveries of messages that were delivered before";
        out.global("rabbitmq_global_messages_redelivered", help, traffic.redelivered)?;
        out.global("rabbitmq_global_messages_acknowledged", "Messages acknowledged", traffic.acked)
    }

    fn objects(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let traffic = &self.figures.traffic;
        out.gauge(
            "rabbitmq_connections",
            "Connections that are open",
            traffic.connections_opened.saturating_sub(traffic.connections_closed),
        )?;
        let channels = traffic.channels_opened.saturating_sub(traffic.channels_closed);
        out.gauge("rabbitmq_channels", "Channels that are open", channels)?;
        out.gauge("rabbitmq_consumers", "Consumers", self.sum.consumers)?;
        out.gauge("rabbitmq_queues", "Queues", self.queue_count)?;
        let help = "Messages that wait for a consumer";
        out.queues("rabbitmq_queue_messages_ready", help, self, |queue| Some(queue.ready))?;
        let help = "Messages delivered and not acknowledged";
        out.queues("rabbitmq_queue_messages_unacked", help, self, |queue| Some(queue.unacked))?;
        let help = "Messages ready and unacknowledged together";
        out.queues("rabbitmq_queue_messages", help, self, |queue| Some(queue.ready + queue.unacked))?;
        out.queues("rabbitmq_queue_consumers", "Consumers of the queue", self, |queue| Some(queue.consumers))
    }

    fn own(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let figures = &self.figures;
        let help = "Value confirmed and not yet synced, of queues with selective durability";
        out.queues("leveret_value_at_risk", help, self, |queue| {
            queue.value_cap.map(|_| queue.value_at_risk).or(self.queues.is_none().then_some(queue.value_at_risk))
        })?;
        let help = "What the value at risk never passes, of queues in use";
        out.queues("leveret_value_at_risk_cap", help, self, |queue| queue.value_cap)?;
        let help = "Partitions led here without a member to spare: written is confirmed as synced";
        out.gauge("leveret_partitions_without_spare", help, self.figures.partitions_without_spare)?;
        let help = "Messages dropped since the start, because the queue had taken in one of the same key";
        out.queue_counter("leveret_repeats_dropped", help, self, |queue| queue.repeats_dropped)?;
        out.gauge("leveret_connections_blocked", "Publishers held back by an alarm", self.blocked_connections)?;
        out.gauge("leveret_exchanges", "Exchanges", self.exchange_count)?;
        out.gauge("leveret_bindings", "Bindings, those of the default exchange not counted", self.binding_count)?;
        let help = "Messages set aside since the start, because their bytes are damaged on the disk";
        out.counter("leveret_messages_set_aside", help, figures.messages_set_aside)?;
        let help = "Partitions that are damaged, whose queues are unavailable until they are repaired";
        out.gauge("leveret_partitions_quarantined", help, figures.partitions_quarantined)?;
        let help = "Memory pinned by messages of transient queues";
        out.gauge("leveret_transient_messages_bytes", help, figures.transient_bytes)?;
        let help = "Memory pinned by messages of transient queues at which publishers are blocked";
        out.gauge("leveret_transient_messages_limit_bytes", help, self.memory_limit_bytes)?;
        let help = "Memory of messages that have not arrived as a whole, and of transactions";
        out.gauge("leveret_unfinished_bytes", help, figures.unfinished_bytes)?;
        let help = "Memory of what x-recent-history exchanges remember";
        out.gauge("leveret_history_bytes", help, figures.history_bytes)?;
        let help = "Memory of the keys that queues with deduplication remember";
        out.gauge("leveret_deduplication_bytes", help, figures.deduplication_bytes)?;
        let help = "Bytes of frames that wait for their channel's turn, as those of blocked publishers do";
        out.gauge("leveret_waiting_bytes", help, figures.waiting_bytes)?;
        let help = "Memory of what was published and is not yet written";
        out.gauge("leveret_unwritten_bytes", help, figures.unwritten_bytes)?;
        out.counter("leveret_log_written_bytes", "Bytes written to the log", figures.log_bytes)?;
        if let Some(times) = &figures.sync_times {
            let syncs = Syncs(times);
            let help = "How long syncs of the log took";
            syncs.encode(out.0.encode_descriptor("leveret_log_sync_seconds", help, None, MetricType::Histogram)?)?;
        }
        Ok(())
    }
}

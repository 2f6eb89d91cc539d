//! RabbitMQ's metrics, family by family, as far as this broker has what they tell.
//!
//! Invariant: names, types and labels are RabbitMQ's. Where RabbitMQ names a process, this broker
//! names the channel or the connection. What only Erlang has is left out and never made up.

use super::out::{Labels, Metric, Out, counter, gauge};
use super::scrape::{ChannelRow, QueueRow, Scrape};
use super::view::View;
use crate::statistics::column;
use server::handle::QueueTraffic;
use std::fmt::Error;

/// What RabbitMQ tells of queues, by column of their history.
const QUEUE_DELIVERIES: [(Metric, usize); 7] = [
    (counter("queue_get_ack", "Messages that basic.get took from the queue, to be acknowledged"), column::GET),
    (counter("queue_get", "Messages that basic.get took from the queue without acknowledgement"), column::GET_NO_ACK),
    (counter("queue_messages_delivered_ack", "Messages given to consumers that acknowledge"), column::DELIVER),
    (
        counter("queue_messages_delivered", "Messages given to consumers that do not acknowledge"),
        column::DELIVER_NO_ACK,
    ),
    (counter("queue_messages_redelivered", "Messages given to somebody again"), column::REDELIVER),
    (counter("queue_messages_acked", "Messages that consumers acknowledged"), column::ACK),
    (counter("queue_get_empty", "Times that basic.get found the queue empty"), column::GET_EMPTY),
];

/// The same by channel.
const CHANNEL_DELIVERIES: [(Metric, usize); 7] = [
    (counter("channel_get_ack", "Messages that basic.get took, to be acknowledged"), column::GET),
    (counter("channel_get", "Messages that basic.get took without acknowledgement"), column::GET_NO_ACK),
    (counter("channel_messages_delivered_ack", "Messages given to consumers that acknowledge"), column::DELIVER),
    (
        counter("channel_messages_delivered", "Messages given to consumers that do not acknowledge"),
        column::DELIVER_NO_ACK,
    ),
    (counter("channel_messages_redelivered", "Messages given to somebody again"), column::REDELIVER),
    (counter("channel_messages_acked", "Messages that consumers acknowledged"), column::ACK),
    (counter("channel_get_empty", "Times that basic.get found a queue empty"), column::GET_EMPTY),
];

/// A metric, and what of the traffic it tells.
type OfTraffic = (Metric, fn(&QueueTraffic) -> u64);

/// What RabbitMQ tells of all traffic, by type of queue.
const GLOBAL: [OfTraffic; 8] = [
    (counter("global_messages_delivered", "Messages that went to consumers, by consume or get"), |of| {
        of.delivered + of.delivered_no_ack + of.got + of.got_no_ack
    }),
    (counter("global_messages_delivered_consume_manual_ack", "Messages given to consumers that acknowledge"), |of| {
        of.delivered
    }),
    (
        counter("global_messages_delivered_consume_auto_ack", "Messages given to consumers that do not acknowledge"),
        |of| of.delivered_no_ack,
    ),
    (counter("global_messages_delivered_get_manual_ack", "Messages that basic.get took, to be acknowledged"), |of| {
        of.got
    }),
    (counter("global_messages_delivered_get_auto_ack", "Messages that basic.get took without acknowledgement"), |of| {
        of.got_no_ack
    }),
    (counter("global_messages_get_empty", "Times that basic.get found a queue empty"), |of| of.got_empty),
    (counter("global_messages_redelivered", "Messages given to somebody again"), |of| of.redelivered),
    (counter("global_messages_acknowledged", "Messages that consumers acknowledged"), |of| of.acked),
];

/// Dead letters, in the order of [`server::handle::DeadLettered::REASONS`].
const DEAD_LETTERED: [Metric; 4] = [
    counter("global_messages_dead_lettered_rejected", "Dead letters that consumers rejected"),
    counter("global_messages_dead_lettered_expired", "Dead letters whose time was over"),
    counter("global_messages_dead_lettered_maxlen", "Dead letters that their queue had no room for"),
    counter("global_messages_dead_lettered_delivery_limit", "Dead letters that came back too often"),
];

/// The memory's parts, by RabbitMQ's names in the API and here.
const MEMORY: [(&str, Metric); 7] = [
    ("connection_readers", gauge("memory_client_connection_reader_bytes", "Frames that wait to be handled")),
    ("connection_channels", gauge("memory_client_connection_channel_bytes", "Messages that are not finished")),
    ("queue_procs", gauge("memory_classic_queue_erlang_process_bytes", "Messages of transient queues")),
    ("quorum_queue_procs", gauge("memory_quorum_queue_erlang_process_bytes", "What is on its way to the log")),
    ("plugins", gauge("memory_plugin_bytes", "What x-recent-history exchanges remember")),
    ("mgmt_db", gauge("memory_management_stats_db_bytes", "Rates and histories")),
    ("other_system", gauge("memory_other_system_bytes", "What nobody counts")),
];

/// RabbitMQ's label of everything that came by AMQP 0-9-1.
fn amqp<'l>() -> Labels<'l> {
    vec![("protocol", "amqp091")]
}

fn of_queue(row: &QueueRow) -> Labels<'_> {
    vec![("vhost", &row.vhost), ("queue", &row.name)]
}

fn of_channel(row: &ChannelRow) -> Labels<'_> {
    vec![("channel", &row.name)]
}

impl Scrape {
    /// Who this is.
    pub(super) fn identity(&self, out: &mut Out<'_>) -> Result<(), Error> {
        out.prefix = "rabbitmq_";
        // The names that dashboards take their legends from; of Erlang there is none.
        let build = vec![
            ("rabbitmq_version", self.version.as_str()),
            ("prometheus_plugin_version", self.version.as_str()),
            ("erlang_version", ""),
            ("leveret_version", env!("CARGO_PKG_VERSION")),
        ];
        out.labelled(gauge("build_info", "Version that clients are told, and this build's own"), [(build, 1)])?;
        let identity = vec![
            ("rabbitmq_node", self.node.as_str()),
            ("rabbitmq_cluster", self.cluster.as_str()),
            ("rabbitmq_cluster_permanent_id", self.cluster_id.as_str()),
            ("rabbitmq_endpoint", self.view.word()),
        ];
        out.labelled(gauge("identity_info", "Node and cluster"), [(identity, 1)])
    }

    /// What the memory holds.
    pub(super) fn memory(&self, out: &mut Out<'_>) -> Result<(), Error> {
        for (part, metric) in MEMORY {
            let bytes = self.memory.iter().find(|(name, _)| *name == part).map(|(_, bytes)| *bytes);
            out.maybe(metric, bytes)?;
        }
        Ok(())
    }

    /// The families about the node, and what it does as a whole.
    pub(super) fn node(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let (figures, process, view) = (&self.figures, &self.process, &self.view);
        if view.has("connection_churn_metrics") {
            let traffic = &figures.traffic;
            out.one(counter("connections_opened", "Connections opened"), traffic.connections_opened)?;
            out.one(counter("connections_closed", "Connections closed"), traffic.connections_closed)?;
            out.one(counter("channels_opened", "Channels opened"), traffic.channels_opened)?;
            out.one(counter("channels_closed", "Channels closed"), traffic.channels_closed)?;
            out.one(
                counter("queues_declared", "Declares of queues, of those that were there too"),
                traffic.queues_declared,
            )?;
            out.one(counter("queues_created", "Queues that came"), figures.queues_created)?;
            out.one(counter("queues_deleted", "Queues that went"), figures.queues_deleted)?;
        }
        if view.has("node_coarse_metrics") {
            out.maybe(gauge("process_open_fds", "Open descriptors"), process.open_fds)?;
            out.maybe(gauge("process_resident_memory_bytes", "Memory that the process holds"), process.resident_bytes)?;
            out.one(gauge("process_open_tcp_sockets", "Open client connections"), figures.connections)?;
            out.maybe(gauge("disk_space_available_bytes", "Free disk space"), figures.disk_free_bytes)?;
            out.maybe(gauge("erlang_processes_used", "Threads of the process"), process.threads)?;
            let help = "How often a processor left a thread of the process for another";
            out.maybe(counter("erlang_scheduler_context_switches", help), process.context_switches)?;
        }
        if view.has("node_metrics") {
            out.maybe(gauge("process_max_fds", "Descriptors that may be open"), process.max_fds)?;
            out.one(gauge("process_max_tcp_sockets", "Client connections that may be open"), self.connections_max)?;
            let help = "Memory of transient messages at which publishers are blocked";
            out.one(gauge("resident_memory_limit_bytes", help), self.memory_limit_bytes)?;
            let help = "Free disk space below which publishers are blocked";
            out.one(gauge("disk_space_available_limit_bytes", help), self.disk_limit_bytes)?;
            out.maybe(gauge("erlang_processes_limit", "Threads that there may be"), process.max_threads)?;
            out.maybe(
                gauge("erlang_scheduler_run_queue", "Threads that run or wait for a processor"),
                process.runnable,
            )?;
            out.real(gauge("erlang_uptime_seconds", "Since the start"), self.uptime_s)?;
        }
        if view.has("node_persister_metrics") {
            out.one(counter("io_write_bytes", "Bytes written to the log"), figures.log_bytes)?;
            out.one(counter("io_sync_ops", "Syncs of the log"), figures.log_syncs)?;
            if let Some(times) = &figures.sync_times {
                out.real(counter("io_sync_time_seconds", "Time that syncs of the log took together"), times.total_s)?;
            }
        }
        if view.has("auth_attempt_metrics") {
            let logins = |pick: fn((u64, u64)) -> u64| {
                self.logins.map(|(protocol, counted)| (vec![("protocol", protocol)], pick(counted)))
            };
            let all = logins(|(right, wrong)| right + wrong);
            out.labelled(counter("auth_attempts", "Logins, right and wrong"), all)?;
            out.labelled(counter("auth_attempts_succeeded", "Logins that were right"), logins(|(right, _)| right))?;
            out.labelled(counter("auth_attempts_failed", "Logins that were wrong"), logins(|(_, wrong)| wrong))?;
        }
        if !matches!(view, View::Total | View::Each) {
            return Ok(());
        }
        let help = "The free disk space alarm is on";
        out.one(gauge("alarms_free_disk_space_watermark", help), figures.alarms.disk.into())?;
        let help = "The alarm for messages in memory is on";
        out.one(gauge("alarms_memory_used_watermark", help), figures.alarms.memory.into())?;
        out.one(gauge("alarms_file_descriptor_limit", "Never: descriptors are limited by connections"), 0)?;
        self.global(out)?;
        let traffic = &figures.traffic;
        let open = traffic.connections_opened.saturating_sub(traffic.connections_closed);
        out.one(gauge("connections", "Connections that are open"), open)?;
        let open = traffic.channels_opened.saturating_sub(traffic.channels_closed);
        out.one(gauge("channels", "Channels that are open"), open)?;
        out.one(gauge("consumers", "Consumers"), self.consumer_count())?;
        out.one(gauge("queues", "Queues that this node leads or has in its memory"), self.queue_count)
    }

    fn consumer_count(&self) -> u64 {
        self.queues.iter().map(|queue| queue.figures.consumers).sum()
    }

    fn global(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let traffic = &self.figures.traffic;
        let counters = [
            (counter("global_messages_received", "Messages published by clients"), traffic.published),
            (
                counter("global_messages_received_confirm", "Messages published on channels that confirm"),
                self.received_confirm,
            ),
            (counter("global_messages_routed", "Copies of messages that went into queues"), self.routed),
            (counter("global_messages_confirmed", "Messages confirmed to publishers"), traffic.confirmed),
            (
                counter("global_messages_unroutable_returned", "Messages without a route that came back"),
                traffic.returned,
            ),
            (
                counter("global_messages_unroutable_dropped", "Messages without a route that were dropped"),
                traffic.dropped,
            ),
        ];
        for (metric, value) in counters {
            out.labelled(metric, [(amqp(), value)])?;
        }
        for (metric, value) in GLOBAL {
            let samples = self
                .types
                .iter()
                .map(|(kind, traffic)| (vec![("protocol", "amqp091"), ("queue_type", *kind)], value(traffic)));
            out.labelled(metric, samples)?;
        }
        self.dead_letters(out)?;
        out.labelled(gauge("global_publishers", "Channels that have published"), [(amqp(), self.publisher_count)])?;
        out.labelled(gauge("global_consumers", "Consumers"), [(amqp(), self.consumer_count())])?;
        super::own::sizes(&self.figures, out)
    }

    /// What died, by reason, also where there was no dead-letter exchange and it was gone (`disabled`).
    fn dead_letters(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let [[classic, _, of_classic], [at_most_once, at_least_once, of_quorum]] = &self.dead_lettered.counts;
        let types = ["rabbit_classic_queue", "rabbit_quorum_queue"];
        let strategies = ["at_most_once", "at_least_once", "disabled"];
        let labels = |queue_type: usize, strategy: usize| -> Labels<'_> {
            vec![("queue_type", types[queue_type]), ("dead_letter_strategy", strategies[strategy])]
        };
        for (at, metric) in DEAD_LETTERED.into_iter().enumerate() {
            let samples = [
                (0, 0, classic[at]),
                (0, 2, of_classic[at]),
                (1, 0, at_most_once[at]),
                (1, 1, at_least_once[at]),
                (1, 2, of_quorum[at]),
            ];
            out.labelled(metric, samples.map(|(of, strategy, count)| (labels(of, strategy), count)))?;
        }
        let help = "Dead letters that all their queues have confirmed";
        let confirmed = (labels(1, 1), at_least_once.iter().sum());
        out.labelled(counter("global_messages_dead_lettered_confirmed", help), [confirmed])
    }

    /// The families about queues.
    pub(super) fn of_queues(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let each = |value: fn(&QueueRow) -> u64| self.queues.iter().map(move |row| (of_queue(row), Some(value(row))));
        if self.view.has("queue_coarse_metrics") {
            let help = "Messages that wait for a consumer";
            out.rows(gauge("queue_messages_ready", help), each(|row| row.figures.ready))?;
            let help = "Messages delivered and not acknowledged";
            out.rows(gauge("queue_messages_unacked", help), each(|row| row.figures.unacked))?;
            let help = "Messages ready and unacknowledged together";
            out.rows(gauge("queue_messages", help), each(|row| row.figures.ready + row.figures.unacked))?;
        }
        if self.view.has("queue_metrics") || self.view.has_by_name("queue_consumer_count") {
            out.rows(gauge("queue_consumers", "Consumers of the queue"), each(|row| row.figures.consumers))?;
        }
        if self.view.has("channel_queue_exchange_metrics") || self.view.has_by_name("queue_exchange_metrics") {
            let pairs = self.exchanges.iter().flat_map(|exchange| {
                exchange.queues.iter().map(|(vhost, queue, count)| {
                    let queue: Labels<'_> = vec![("queue_vhost", vhost), ("queue", queue)];
                    let exchange: Labels<'_> = vec![("exchange_vhost", &exchange.vhost), ("exchange", &exchange.name)];
                    ([queue, exchange].concat(), Some(*count))
                })
            });
            let name = match self.view.has_by_name("queue_exchange_metrics") {
                true => "queue_exchange_messages_published",
                false => "queue_messages_published",
            };
            let help = "Messages that went into the queue by way of the exchange";
            match self.view {
                View::Total => out.one(counter(name, help), self.routed)?,
                _ => out.rows(counter(name, help), pairs)?,
            }
        }
        if self.view.has_by_name("queue_delivery_metrics") || self.view == View::Each {
            for (metric, column) in QUEUE_DELIVERIES {
                out.rows(metric, self.queues.iter().map(|row| (of_queue(row), Some(row.counts[column]))))?;
            }
        }
        if self.view.has_by_name("exchange_metrics") || self.view == View::Each {
            let rows = self.exchanges.iter().map(|row| {
                let labels: Labels<'_> = vec![("vhost", &row.vhost), ("exchange", &row.name)];
                (labels, Some(row.published))
            });
            out.rows(counter("exchange_messages_published", "Messages published to the exchange"), rows)?;
        }
        Ok(())
    }

    /// The families about channels and connections.
    pub(super) fn of_channels(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let each =
            |value: fn(&ChannelRow) -> u64| self.channels.iter().map(move |row| (of_channel(row), Some(value(row))));
        if self.view.has("channel_metrics") {
            out.rows(gauge("channel_consumers", "Consumers on the channel"), each(|row| row.consumers))?;
            let help = "Messages delivered on the channel and not acknowledged";
            out.rows(gauge("channel_messages_unacked", help), each(|row| row.unacked))?;
            let help = "Messages published on the channel and not confirmed";
            out.rows(gauge("channel_messages_unconfirmed", help), each(|row| row.unconfirmed))?;
            out.rows(gauge("consumer_prefetch", "Prefetch of consumers to come"), each(|row| row.prefetch))?;
            out.rows(gauge("channel_prefetch", "Prefetch of the channel as a whole"), each(|row| row.global_prefetch))?;
        }
        if self.view.has("channel_exchange_metrics") {
            let published = self.channels.iter().flat_map(|row| {
                row.publishes.iter().map(|(exchange, count)| {
                    let labels: Labels<'_> =
                        vec![("channel", &row.name), ("vhost", &row.vhost), ("exchange", exchange)];
                    (labels, Some(*count))
                })
            });
            out.rows(counter("channel_messages_published", "Messages published on the channel"), published)?;
            let help = "Messages confirmed on the channel";
            out.rows(counter("channel_messages_confirmed", help), each(|row| row.confirmed))?;
            let help = "Messages without a route that came back on the channel";
            out.rows(counter("channel_messages_unroutable_returned", help), each(|row| row.returned))?;
            let help = "Messages without a route that were dropped";
            out.rows(counter("channel_messages_unroutable_dropped", help), each(|row| row.dropped))?;
        }
        if self.view.has("channel_queue_metrics") {
            for (metric, column) in CHANNEL_DELIVERIES {
                let rows = self.channels.iter().flat_map(|row| {
                    row.deliveries.iter().map(move |(queue, counts)| {
                        let labels: Labels<'_> = vec![("channel", &row.name), ("vhost", &row.vhost), ("queue", queue)];
                        (labels, Some(counts[column]))
                    })
                });
                out.rows(metric, rows)?;
            }
        }
        let connections = |value: fn(&super::scrape::ConnectionRow) -> u64| {
            self.connections.iter().map(move |row| {
                let labels: Labels<'_> = vec![("channel", &row.name)];
                (labels, Some(value(row)))
            })
        };
        if self.view.has("connection_coarse_metrics") {
            let help = "Bytes that came over the connection";
            out.rows(counter("connection_incoming_bytes", help), connections(|row| row.received))?;
            let help = "Bytes that went over the connection";
            out.rows(counter("connection_outgoing_bytes", help), connections(|row| row.sent))?;
        }
        if self.view.has("connection_metrics") {
            out.rows(gauge("connection_channels", "Channels on the connection"), connections(|row| row.channels))?;
        }
        Ok(())
    }

    /// The families that are about no node, which have to be asked for.
    pub(super) fn of_cluster(&self, out: &mut Out<'_>) -> Result<(), Error> {
        out.prefix = "rabbitmq_cluster_";
        if self.view.has_by_name("vhost_status") {
            let rows = self.vhosts.iter().map(|name| (vec![("vhost", name.as_str())], 1));
            out.labelled(gauge("vhost_status", "Whether the virtual host is served"), rows)?;
        }
        let exchanges = |value: fn(&super::scrape::ExchangeRow) -> u64| {
            self.exchanges.iter().map(move |row| {
                let labels: Labels<'_> = vec![("vhost", &row.vhost), ("exchange", &row.name), ("type", row.kind)];
                (labels, value(row))
            })
        };
        if self.view.has_by_name("exchange_bindings") {
            out.labelled(
                gauge("exchange_bindings", "Bindings that lead on from the exchange"),
                exchanges(|row| row.bindings),
            )?;
        }
        if self.view.has_by_name("exchange_names") {
            out.labelled(gauge("exchange_name", "That there is the exchange"), exchanges(|_| 1))?;
        }
        Ok(())
    }
}

//! The firehose: of every message of a traced virtual host, a copy as it comes in and one for each
//! time it goes out, to the exchange `amq.rabbitmq.trace`.
//!
//! Invariant: what the firehose says is not told again. Where nothing is traced, by this or by spans, a
//! message costs a look at one flag. Source: RabbitMQ's guide on the firehose tracer; names and types of the
//! headers are RabbitMQ's.

use super::traits::{self, Copies};
use super::{Cx, Host, Session};
use amqp::{Properties, Table, Value};
use broker::QueueId;
use bytes::Bytes;
use partition::Delivery;
use partition::message::MessageView;

const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

/// Headers of a traced message that take more are left out of its copy, which has to fit a frame
/// like any other message.
const HEADERS_BYTES_MAX: usize = 32 << 10;

fn text(bytes: &[u8]) -> Value {
    Value::LongString(Bytes::copy_from_slice(bytes))
}

/// The properties that a message has, by their names.
fn properties_table(properties: &[u8]) -> Table {
    let parsed = Properties::parse(properties).expect("the machine checks the properties of every message");
    let mut table = Table::new();
    let strings = [
        ("content_type", parsed.content_type),
        ("content_encoding", parsed.content_encoding),
        ("correlation_id", parsed.correlation_id),
        ("reply_to", parsed.reply_to),
        ("expiration", parsed.expiration),
        ("message_id", parsed.message_id),
        ("type", parsed.kind),
        ("user_id", parsed.user_id),
        ("app_id", parsed.app_id),
        ("cluster_id", parsed.cluster_id),
    ];
    for (name, value) in strings {
        if let Some(value) = value {
            table.push(name, text(value));
        }
    }
    for (name, value) in [("delivery_mode", parsed.delivery_mode), ("priority", parsed.priority)] {
        if let Some(value) = value {
            table.push(name, Value::I32(value.into()));
        }
    }
    if let Some(seconds) = parsed.timestamp {
        table.push("timestamp", Value::I64(i64::try_from(seconds).unwrap_or(i64::MAX)));
    }
    if parsed.headers.is_some_and(|fields| fields.len() <= HEADERS_BYTES_MAX)
        && let Some(headers) = parsed.headers_table()
    {
        table.push("headers", Value::Table(headers));
    }
    table
}

impl Session {
    /// Tells of a message that a client published where that is traced, and of the queues that it goes
    /// to.
    #[cold]
    pub(super) fn trace_publish(
        &self,
        publish: &amqp::Publish,
        copies: &Copies,
        queues: &[QueueId],
        cx: &Cx<'_, impl Host>,
    ) {
        if publish.exchange == TRACE_EXCHANGE {
            return;
        }
        let names = {
            let topology = cx.host.topology();
            queues.iter().filter_map(|id| topology.queue(*id)).map(|queue| text(&queue.name)).collect()
        };
        let mut headers =
            self.trace_headers(&publish.exchange, &publish.routing_key, &copies.keys, &publish.properties, cx);
        self.tell_whose(&mut headers, publish.channel.number());
        headers.push("routed_queues", Value::Array(names));
        let key = [b"publish.", &publish.exchange[..]].concat();
        cx.host.emit(self.vhost, TRACE_EXCHANGE, &key, &headers, publish.body.clone());
    }

    /// Tells of a message that goes out to the channel at `at`, from `queue`.
    pub(super) fn trace_delivery(
        &self,
        at: usize,
        queue: Option<QueueId>,
        delivery: &Delivery,
        cx: &Cx<'_, impl Host>,
    ) {
        if !cx.host.traces(self.vhost) {
            return;
        }
        let view = MessageView::parse(&delivery.message).expect("partitions deliver whole messages");
        if view.exchange() == TRACE_EXCHANGE.as_bytes() {
            return;
        }
        let name = {
            let topology = cx.host.topology();
            let Some(queue) = queue.and_then(|id| topology.queue(id)) else { return };
            queue.name.clone()
        };
        let copies = traits::copies(view.properties());
        let mut headers = self.trace_headers(view.exchange(), view.routing_key(), &copies.keys, view.properties(), cx);
        headers.push("redelivered", Value::I32(i32::from(delivery.redelivered)));
        self.tell_whose(&mut headers, self.channels[at].id.number());
        let key = [b"deliver.", &name[..]].concat();
        cx.host.emit(self.vhost, TRACE_EXCHANGE, &key, &headers, view.body_of(&delivery.message));
    }

    fn trace_headers(
        &self,
        exchange: &[u8],
        routing_key: &[u8],
        copies: &[Bytes],
        properties: &[u8],
        cx: &Cx<'_, impl Host>,
    ) -> Table {
        let keys = std::iter::once(text(routing_key)).chain(copies.iter().map(|key| Value::LongString(key.clone())));
        let mut headers = Table::new();
        headers.push("exchange_name", text(exchange));
        headers.push("routing_keys", Value::Array(keys.collect()));
        headers.push("properties", Value::Table(properties_table(properties)));
        headers.push("node", text(cx.host.common().settings.node_name.as_bytes()));
        headers
    }

    fn tell_whose(&self, headers: &mut Table, channel: u16) {
        headers.push("vhost", text(&self.vhost_name));
        headers.push("connection", text(self.connection_name().as_bytes()));
        headers.push("channel", Value::I32(channel.into()));
        headers.push("user", text(&self.user));
    }
}

//! AMQP's verbs on a `Client`: declare, bind, publish, consume, settle.
//!
//! Invariant: a verb sends exactly one method (plus content) and waits for its reply when AMQP
//! gives it one.

use crate::client::{Client, Closed, Delivery, Event, FRAME_BODY, FRAME_HEADER, frame, method_frame};
use crate::methods::*;
use crate::wire::{Args, Properties, Reader, Value};

/// Arguments of `queue.declare`.
#[derive(Clone, Debug, Default)]
pub struct QueueDeclare<'a> {
    /// Name; empty asks the broker for one.
    pub name: &'a str,
    /// Only look.
    pub passive: bool,
    /// Survives a restart.
    pub durable: bool,
    /// Belongs to this connection.
    pub exclusive: bool,
    /// Goes with its last consumer.
    pub auto_delete: bool,
    /// Arguments.
    pub arguments: Vec<(&'a str, Value)>,
}

/// Arguments of `exchange.declare`.
#[derive(Clone, Debug, Default)]
pub struct ExchangeDeclare<'a> {
    /// Name.
    pub name: &'a str,
    /// Type.
    pub kind: &'a str,
    /// Only look.
    pub passive: bool,
    /// Survives a restart.
    pub durable: bool,
    /// Goes with its last binding.
    pub auto_delete: bool,
    /// Takes nothing from clients.
    pub internal: bool,
    /// Arguments.
    pub arguments: Vec<(&'a str, Value)>,
}

/// A publish.
#[derive(Clone, Debug, Default)]
pub struct Publish<'a> {
    /// Exchange; empty for the default one.
    pub exchange: &'a str,
    /// Routing key.
    pub key: &'a str,
    /// Return it when nobody takes it.
    pub mandatory: bool,
    /// AMQP's `immediate`, which RabbitMQ refuses.
    pub immediate: bool,
    /// Properties.
    pub properties: Properties,
    /// Body.
    pub body: &'a [u8],
}

impl Publish<'_> {
    /// The frames of this publish, body split to `frame_max`.
    pub fn frames(&self, channel: u16, frame_max: u32) -> Vec<u8> {
        let args = Args::new().short(0).shortstr(self.exchange).shortstr(self.key);
        let mut out = method_frame(channel, BASIC_PUBLISH, &args.bits(&[self.mandatory, self.immediate]));
        out.extend(header_frame(channel, &self.properties, self.body.len() as u64));
        let chunk_bytes = if frame_max == 0 { 131_064 } else { frame_max as usize - 8 };
        for chunk in self.body.chunks(chunk_bytes) {
            out.extend(frame(FRAME_BODY, channel, chunk));
        }
        out
    }
}

/// A content header frame of class basic that announces `body_bytes`.
pub fn header_frame(channel: u16, properties: &Properties, body_bytes: u64) -> Vec<u8> {
    let mut header = Args::new().short(60).short(0).longlong(body_bytes).short(properties.flags).0;
    header.extend(&properties.bytes);
    frame(FRAME_HEADER, channel, &header)
}

impl Client {
    /// `queue.declare`: name, ready messages, consumers.
    pub fn declare(&mut self, channel: u16, queue: &QueueDeclare<'_>) -> Result<(String, u32, u32), Closed> {
        let bits = [queue.passive, queue.durable, queue.exclusive, queue.auto_delete, false];
        let args = Args::new().short(0).shortstr(queue.name).bits(&bits).table(&queue.arguments);
        let reply = self.call(channel, QUEUE_DECLARE, &args, QUEUE_DECLARE_OK)?;
        let mut reader = Reader(&reply);
        Ok((reader.shortstr(), reader.long(), reader.long()))
    }

    /// Passive declare: ready messages and consumers.
    pub fn counts(&mut self, channel: u16, queue: &str) -> Result<(u32, u32), Closed> {
        let look = QueueDeclare { name: queue, passive: true, ..Default::default() };
        self.declare(channel, &look).map(|(_, messages, consumers)| (messages, consumers))
    }

    /// `queue.bind`.
    pub fn bind(&mut self, ch: u16, q: &str, exchange: &str, key: &str, a: &[(&str, Value)]) -> Result<(), Closed> {
        let args = Args::new().short(0).shortstr(q).shortstr(exchange).shortstr(key).octet(0).table(a);
        self.call(ch, QUEUE_BIND, &args, QUEUE_BIND_OK).map(|_| ())
    }

    /// `queue.unbind`.
    pub fn unbind(&mut self, ch: u16, q: &str, exchange: &str, key: &str, a: &[(&str, Value)]) -> Result<(), Closed> {
        let args = Args::new().short(0).shortstr(q).shortstr(exchange).shortstr(key).table(a);
        self.call(ch, QUEUE_UNBIND, &args, QUEUE_UNBIND_OK).map(|_| ())
    }

    /// `queue.purge`: how many went.
    pub fn purge(&mut self, channel: u16, queue: &str) -> Result<u32, Closed> {
        let args = Args::new().short(0).shortstr(queue).octet(0);
        self.call(channel, QUEUE_PURGE, &args, QUEUE_PURGE_OK).map(|reply| Reader(&reply).long())
    }

    /// `queue.delete`: how many messages went with it.
    pub fn delete(&mut self, channel: u16, queue: &str, if_unused: bool, if_empty: bool) -> Result<u32, Closed> {
        let args = Args::new().short(0).shortstr(queue).bits(&[if_unused, if_empty, false]);
        self.call(channel, QUEUE_DELETE, &args, QUEUE_DELETE_OK).map(|reply| Reader(&reply).long())
    }

    /// `exchange.declare`.
    pub fn declare_exchange(&mut self, channel: u16, exchange: &ExchangeDeclare<'_>) -> Result<(), Closed> {
        let bits = [exchange.passive, exchange.durable, exchange.auto_delete, exchange.internal, false];
        let args = Args::new().short(0).shortstr(exchange.name).shortstr(exchange.kind).bits(&bits);
        self.call(channel, EXCHANGE_DECLARE, &args.table(&exchange.arguments), EXCHANGE_DECLARE_OK).map(|_| ())
    }

    /// `exchange.delete`.
    pub fn delete_exchange(&mut self, channel: u16, exchange: &str, if_unused: bool) -> Result<(), Closed> {
        let args = Args::new().short(0).shortstr(exchange).bits(&[if_unused, false]);
        self.call(channel, EXCHANGE_DELETE, &args, EXCHANGE_DELETE_OK).map(|_| ())
    }

    /// `confirm.select`.
    pub fn confirm_select(&mut self, channel: u16) -> Result<(), Closed> {
        self.call(channel, CONFIRM_SELECT, &Args::new().octet(0), CONFIRM_SELECT_OK).map(|_| ())
    }

    /// `basic.publish` with its content.
    pub fn publish(&mut self, channel: u16, publish: &Publish<'_>) {
        let frames = publish.frames(channel, self.frame_max);
        self.raw(&frames);
    }

    /// Publishes a persistent message to a queue by the default exchange.
    pub fn put(&mut self, channel: u16, queue: &str, body: &[u8]) {
        self.publish(
            channel,
            &Publish { key: queue, body, properties: Properties::persistent(), ..Default::default() },
        );
    }

    /// Waits until every publish up to sequence `last` is confirmed, starting from `first`. Panics
    /// on a nack.
    pub fn confirmed(&mut self, channel: u16, first: u64, last: u64) {
        let mut open: std::collections::BTreeSet<u64> = (first..=last).collect();
        while !open.is_empty() {
            match self.event(channel) {
                Event::Confirm { tag, multiple, nack: false } => {
                    assert!(tag <= last, "confirm {tag} for a publish that was not made");
                    if multiple { open.retain(|seq| *seq > tag) } else { assert!(open.remove(&tag), "{tag} twice") }
                }
                other => panic!("confirms were due, got {other:?}"),
            }
        }
    }

    /// `basic.qos`.
    pub fn qos(&mut self, channel: u16, prefetch: u16, global: bool) -> Result<(), Closed> {
        let args = Args::new().long(0).short(prefetch).bits(&[global]);
        self.call(channel, BASIC_QOS, &args, BASIC_QOS_OK).map(|_| ())
    }

    /// `basic.consume` with manual acks: the consumer tag.
    pub fn consume(&mut self, channel: u16, queue: &str, tag: &str) -> Result<String, Closed> {
        self.consume_with(channel, queue, tag, [false, false, false], &[])
    }

    /// `basic.consume` with `[no_local, no_ack, exclusive]` and arguments.
    pub fn consume_with(
        &mut self,
        channel: u16,
        queue: &str,
        tag: &str,
        bits: [bool; 3],
        arguments: &[(&str, Value)],
    ) -> Result<String, Closed> {
        let args = Args::new().short(0).shortstr(queue).shortstr(tag).bits(&[bits[0], bits[1], bits[2], false]);
        let reply = self.call(channel, BASIC_CONSUME, &args.table(arguments), BASIC_CONSUME_OK)?;
        Ok(Reader(&reply).shortstr())
    }

    /// `basic.cancel`.
    pub fn cancel(&mut self, channel: u16, tag: &str) -> Result<(), Closed> {
        let args = Args::new().shortstr(tag).octet(0);
        self.call(channel, BASIC_CANCEL, &args, BASIC_CANCEL_OK).map(|_| ())
    }

    /// `basic.get`: a message, or `None` when the queue has none ready.
    pub fn get(&mut self, channel: u16, queue: &str, no_ack: bool) -> Result<Option<Delivery>, Closed> {
        self.send(channel, BASIC_GET, &Args::new().short(0).shortstr(queue).bits(&[no_ack]));
        match self.event(channel) {
            Event::Delivery(delivery) => Ok(Some(delivery)),
            Event::Method(BASIC_GET_EMPTY, _) => Ok(None),
            Event::Closed(closed) => Err(closed),
            other => panic!("an answer to basic.get was due, got {other:?}"),
        }
    }

    /// `basic.ack`.
    pub fn ack(&mut self, channel: u16, tag: u64, multiple: bool) {
        self.send(channel, BASIC_ACK, &Args::new().longlong(tag).bits(&[multiple]));
    }

    /// `basic.nack`.
    pub fn nack(&mut self, channel: u16, tag: u64, multiple: bool, requeue: bool) {
        self.send(channel, BASIC_NACK, &Args::new().longlong(tag).bits(&[multiple, requeue]));
    }

    /// `basic.reject`.
    pub fn reject(&mut self, channel: u16, tag: u64, requeue: bool) {
        self.send(channel, BASIC_REJECT, &Args::new().longlong(tag).bits(&[requeue]));
    }

    /// A call whose only purpose is its answer: everything sent before it on this channel has been
    /// looked at.
    pub fn round_trip(&mut self, channel: u16) -> Result<(), Closed> {
        let look = ExchangeDeclare { name: "amq.direct", kind: "direct", passive: true, ..Default::default() };
        self.declare_exchange(channel, &look)
    }
}

//! What one cell over AMQP is about, and what always has to hold there.
//!
//! Invariant: names are of one cell alone, so that all of them share a broker.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clients::broker::{is_foreign, unique};
use clients::client::PATIENCE;
use clients::{Client, Closed, Event, ExchangeDeclare, Outcome, Properties, Publish, QueueDeclare, Value};

use crate::Kind;

/// What one cell is about: names that no other cell has.
pub(crate) struct Scene {
    addr: SocketAddr,
    pub(crate) kind: Kind,
    pub(crate) queue: String,
    pub(crate) source: String,
    pub(crate) between: String,
}

pub(crate) const SEED: &[u8] = b"was there before";

impl Scene {
    pub(crate) fn new(addr: SocketAddr, kind: Kind) -> Scene {
        Scene { addr, kind, queue: unique("askers-q"), source: unique("askers-x"), between: unique("askers-y") }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.kind != Kind::Transient
    }

    pub(crate) fn queue_declare(&self) -> QueueDeclare<'_> {
        let arguments = match self.kind {
            Kind::Classic => vec![("x-queue-type", Value::from("classic"))],
            Kind::Quorum => vec![("x-queue-type", Value::from("quorum"))],
            Kind::Transient => Vec::new(),
        };
        QueueDeclare { name: &self.queue, durable: self.is_durable(), arguments, ..Default::default() }
    }

    pub(crate) fn exchange_declare<'a>(&self, name: &'a str) -> ExchangeDeclare<'a> {
        ExchangeDeclare { name, kind: "fanout", durable: self.is_durable(), ..Default::default() }
    }

    pub(crate) fn fresh(&self) -> Client {
        let mut client = Client::connect(self.addr);
        client.channel();
        client
    }

    /// Whether the queue is there.
    pub(crate) fn has_queue(&self) -> bool {
        self.fresh().counts(1, &self.queue).is_ok()
    }

    pub(crate) fn has_exchange(&self) -> bool {
        let look = ExchangeDeclare { name: &self.source, kind: "fanout", passive: true, ..Default::default() };
        self.fresh().declare_exchange(1, &look).is_ok()
    }

    /// Whether what is published to the exchange comes to some queue.
    pub(crate) fn is_routed(&self) -> bool {
        let mut client = self.fresh();
        client.confirm_select(1).unwrap();
        let (exchange, key) = (&*self.source, "k");
        client.publish(1, &Publish { exchange, key, mandatory: true, body: b"routed?", ..Default::default() });
        match client.event(1) {
            Event::Confirm { nack: false, .. } => true,
            Event::Returned(_) => false,
            other => panic!("a confirm or a return was due: {other:?}"),
        }
    }

    /// Everything that is in the queue, in order.
    pub(crate) fn drain(&self) -> Vec<Vec<u8>> {
        let mut client = self.fresh();
        let mut all = Vec::new();
        while let Some(delivery) = client.get(1, &self.queue, true).unwrap() {
            all.push(delivery.body);
        }
        all
    }

    /// Publishes into the queue and gets it back, and declares it before that wherever it is not
    /// there.
    pub(crate) fn probe(&self) -> Outcome {
        for round in 0..8 {
            let mut client = self.fresh();
            if client.counts(1, &self.queue).is_err() {
                client = self.fresh();
                client.declare(1, &self.queue_declare()).map_err(|why| format!("declared again: {why:?}"))?;
            }
            let channel = client.channel();
            client.confirm_select(channel).unwrap();
            let body = format!("probe {round}").into_bytes();
            let (key, properties) = (&*self.queue, Properties::persistent());
            client.publish(channel, &Publish { key, mandatory: true, body: &body, properties, ..Default::default() });
            match client.event(channel) {
                Event::Confirm { nack: false, .. } => {}
                Event::Returned(_) if !self.has_queue() => continue,
                // RabbitMQ refuses what meets the beginning or the end of a quorum queue, or closes
                // the connection.
                Event::Confirm { nack: true, .. } | Event::Closed(Closed { code: 541, .. })
                    if is_foreign() && self.kind == Kind::Quorum =>
                {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
                other => return Err(format!("a publish with a confirm: {other:?}")),
            }
            let due = Instant::now() + PATIENCE / 2;
            loop {
                match client.get(1, &self.queue, true) {
                    Ok(Some(delivery)) if delivery.body == body => return Ok(()),
                    Ok(Some(_)) => {}
                    // The end of the queue was decided after the confirm.
                    Err(_) => break,
                    Ok(None) if Instant::now() > due => return Err("confirmed, and not in its queue".to_owned()),
                    Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        }
        Err("the queue ends again and again".to_owned())
    }
}

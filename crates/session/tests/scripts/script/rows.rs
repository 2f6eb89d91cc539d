//! What a client of a script publishes in a row.

use super::Script;
use amqp::{Bodies, Event, Publish};
use bytes::Bytes;

impl Script {
    /// The client publishes several messages in a row, from the publish of this number on.
    pub(crate) fn publish_run(&mut self, number: u16, key: &str, bodies: &[&str], publish_seq: u64, properties: &[u8]) {
        let more = Bodies::copied(bodies[1..].iter().map(|body| body.as_bytes()));
        self.event(Event::Publish(Publish {
            channel: self.id(number),
            exchange: Bytes::new(),
            routing_key: Bytes::copy_from_slice(key.as_bytes()),
            mandatory: true,
            properties: Bytes::copy_from_slice(properties),
            body: Bytes::copy_from_slice(bodies[0].as_bytes()),
            publish_seq,
            more: Some(more.into()),
        }));
    }
}

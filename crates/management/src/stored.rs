//! A message as it is stored, as JSON: what `GET /api/queues/VHOST/NAME/get` of RabbitMQ answers
//! with, and what that leaves out.
//!
//! Invariant: nothing of the message is lost in it. Texts are readable where they are UTF-8; the
//! body and the properties' own bytes are there in base64.

use amqp::wire::content::Properties;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use partition::machine::schedule_of;
use partition::message::{MessageView, Stamp};
use serde_json::{Value, json};

use crate::json;

/// The message that `stored` is, of the queue with this number. `None`: it is none.
pub fn stored_message(queue: u64, seq: u64, stored: &[u8]) -> Option<Value> {
    let view = MessageView::parse(stored).filter(|view| view.len() == stored.len())?;
    let queue = broker::QueueId(queue);
    let mut message = json!({
        "queue_id": schedule_of(queue).unwrap_or(queue).0,
        "number": seq,
        "exchange": json::text(view.exchange()),
        "routing_key": json::text(view.routing_key()),
        "properties": Properties::parse(view.properties()).map_or(Value::Null, |found| json::properties(&found)),
        "properties_bytes": STANDARD.encode(view.properties()),
        "payload_bytes": view.body().len(),
        "payload_encoding": "base64",
        "payload": STANDARD.encode(view.body()),
    });
    match view.stamp() {
        Stamp::None => {}
        Stamp::Since(ms) => message["published_ms"] = ms.into(),
        Stamp::Due(ms) => message["due_ms"] = ms.into(),
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use partition::command::Message;
    use partition::message::store;

    fn stored(properties: &'static [u8], stamp: Stamp) -> Vec<u8> {
        let slice = |text: &'static [u8]| Bytes::from_static(text);
        let message = Message {
            exchange: slice(b"logs"),
            routing_key: slice(b"a.\xff"),
            properties: slice(properties),
            body: slice(b"\0carrot"),
        };
        let mut bytes = Vec::new();
        store(&message, 0, stamp, &mut bytes);
        bytes
    }

    #[test]
    fn a_stored_message_keeps_all_that_it_has() {
        let bytes = stored(b"\x98\x00\x0atext/plain\x02\x07", Stamp::Since(5));
        let expected = json!({
            "queue_id": 7,
            "number": 12,
            "exchange": "logs",
            "routing_key": "a.\u{fffd}",
            "properties": {"content_type": "text/plain", "delivery_mode": 2, "priority": 7},
            "properties_bytes": "mAAKdGV4dC9wbGFpbgIH",
            "payload_bytes": 7,
            "payload_encoding": "base64",
            "payload": "AGNhcnJvdA==",
            "published_ms": 5,
        });
        assert_eq!(stored_message(7, 12, &bytes), Some(expected));
        assert_eq!(stored_message(7, 12, &bytes[1..]), None);
    }

    #[test]
    fn what_waits_for_its_time_belongs_to_its_queue_and_headers_are_readable() {
        let bytes = stored(b"\x20\x00\0\0\0\x05\x01hS\0\0\0\0", Stamp::Due(9));
        // A table that ends early is none; the bytes are there all the same.
        let message = stored_message(partition::machine::scheduled_for(broker::QueueId(7)).0, 1, &bytes);
        let message = message.expect("the message itself is whole");
        assert_eq!((&message["queue_id"], &message["due_ms"]), (&json!(7), &json!(9)));
        assert_eq!(message["properties"], Value::Null);
        let bytes = stored(b"\x20\x00\0\0\0\x03\x01ht\x01", Stamp::None);
        assert_eq!(stored_message(7, 1, &bytes).map(|m| m["properties"].clone()), Some(Value::Null));
        let bytes = stored(b"\x20\x00\0\0\0\x04\x01ht\x01", Stamp::None);
        assert_eq!(
            stored_message(7, 1, &bytes).map(|m| m["properties"].clone()),
            Some(json!({"headers": {"h": true}}))
        );
    }
}

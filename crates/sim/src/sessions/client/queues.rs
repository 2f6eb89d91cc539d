//! The queues that clients know of by their names, and how they are declared.

use super::name;
use amqp::wire::method::Method;
use amqp::{Table, Value};
use bytes::Bytes;

/// The queues that come and go. Those with an odd number are in a node's memory.
pub(in crate::sessions) fn fleeting(number: u64) -> String {
    format!("e.{number}")
}

pub(in crate::sessions) const FLEETING: u64 = 4;

/// Queues that go with their last consumer.
pub(in crate::sessions) fn auto_delete(number: u64) -> String {
    format!("a.{number}")
}

pub(in crate::sessions) const AUTO_DELETE: u64 = 2;

/// A queue whose messages end by themselves.
pub(in crate::sessions) const SHORT_LIVED: &str = "t.0";

/// Where they go then, once more than once if an answer gets lost. Only the audit takes from it.
pub(in crate::sessions) const DEAD: &str = "d.0";

/// The queue that only one client may use.
pub(in crate::sessions) fn exclusive(client: u64) -> String {
    format!("x.{client}")
}

pub(in crate::sessions) fn declare(
    queue: &str,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: Table,
) -> Method {
    let (queue, no_wait) = (name(queue), false);
    Method::QueueDeclare { ticket: 0, queue, passive: false, durable, exclusive, auto_delete, no_wait, arguments }
}

/// A queue of its kind, by the first letter of its name.
pub(in crate::sessions) fn declare_fleeting(number: u64, classic: bool) -> Method {
    let (durable, mut arguments) = (number.is_multiple_of(2), Table::new());
    if classic && durable {
        arguments.push("x-queue-type", Value::LongString(Bytes::from_static(b"classic")));
    }
    declare(&fleeting(number), durable, false, false, arguments)
}

/// The queue whose messages end by themselves and go to another, at least once.
pub(in crate::sessions) fn declare_short_lived() -> Method {
    let text = |text: &'static str| Value::LongString(Bytes::from_static(text.as_bytes()));
    let mut arguments = Table::new();
    arguments.push("x-queue-type", text("quorum"));
    arguments.push("x-message-ttl", Value::I32(1_000));
    arguments.push("x-overflow", text("reject-publish"));
    arguments.push("x-dead-letter-exchange", text(""));
    arguments.push("x-dead-letter-routing-key", text(DEAD));
    arguments.push("x-dead-letter-strategy", text("at-least-once"));
    declare(SHORT_LIVED, true, false, false, arguments)
}

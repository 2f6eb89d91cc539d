//! What a channel asks the broker. The channel waits until
//! [`Connection::reply`](super::Connection::reply), an error, or for [`Request::Get`] `get_ok` or
//! `get_empty` answers; the frames behind the request wait with it.
//!
//! Also the requests whose method has `no-wait` must be answered: the answer is not sent, but it
//! lets the channel go on.

use bytes::Bytes;

use super::event::Settlement;
use crate::channel::{ConsumerTag, Deliveries};
use crate::wire::table::Table;

/// A request. Names of queues are never empty except in [`Request::QueueDeclare`], where that asks
/// for a generated name: the last queue declared on the channel has been put in their place.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// `exchange.declare`, answered with [`Reply::Done`](super::answer::Reply::Done).
    ExchangeDeclare {
        /// The name.
        exchange: Bytes,
        /// The type, such as `direct`.
        kind: Bytes,
        /// Only ask whether it exists.
        passive: bool,
        /// Survives a restart.
        durable: bool,
        /// Goes with its last binding.
        auto_delete: bool,
        /// Takes messages from other exchanges only.
        internal: bool,
        /// Further arguments.
        arguments: Table,
    },
    /// `exchange.delete`, answered with `Done`.
    ExchangeDelete {
        /// The name.
        exchange: Bytes,
        /// Refuse while it has bindings.
        if_unused: bool,
    },
    /// `exchange.bind`, answered with `Done`.
    ExchangeBind {
        /// The exchange that gets the messages.
        destination: Bytes,
        /// The exchange that they come from.
        source: Bytes,
        /// The routing key.
        routing_key: Bytes,
        /// Further arguments.
        arguments: Table,
    },
    /// `exchange.unbind`, answered with `Done`.
    ExchangeUnbind {
        /// The exchange that got the messages.
        destination: Bytes,
        /// The exchange that they came from.
        source: Bytes,
        /// The routing key.
        routing_key: Bytes,
        /// Further arguments.
        arguments: Table,
    },
    /// `queue.declare`, answered with `QueueDeclared`.
    QueueDeclare {
        /// The name; empty asks for a generated one.
        queue: Bytes,
        /// Only ask whether it exists.
        passive: bool,
        /// Survives a restart.
        durable: bool,
        /// Belongs to this connection.
        exclusive: bool,
        /// Goes with its last consumer.
        auto_delete: bool,
        /// Further arguments.
        arguments: Table,
    },
    /// `queue.bind`, answered with `Done`.
    QueueBind {
        /// The queue.
        queue: Bytes,
        /// The exchange.
        exchange: Bytes,
        /// The routing key; the queue's name where both were left empty.
        routing_key: Bytes,
        /// Further arguments.
        arguments: Table,
    },
    /// `queue.unbind`, answered with `Done`.
    QueueUnbind {
        /// The queue.
        queue: Bytes,
        /// The exchange.
        exchange: Bytes,
        /// The routing key; the queue's name where both were left empty.
        routing_key: Bytes,
        /// Further arguments.
        arguments: Table,
    },
    /// `queue.purge`, answered with `QueuePurged`.
    QueuePurge {
        /// The queue.
        queue: Bytes,
    },
    /// `queue.delete`, answered with `QueueDeleted`.
    QueueDelete {
        /// The queue.
        queue: Bytes,
        /// Refuse while it has consumers.
        if_unused: bool,
        /// Refuse while it has messages.
        if_empty: bool,
    },
    /// `basic.qos` (a size limit was refused with 540 already), answered with `Done`.
    Qos {
        /// How many deliveries may be outstanding; 0 is no limit.
        prefetch_count: u16,
        /// Whether it counts for the channel as a whole and not for each consumer from now on.
        global: bool,
    },
    /// `basic.consume`, answered with `Consuming`.
    Consume {
        /// The queue.
        queue: Bytes,
        /// The tag, not in use on this channel; empty asks for a generated one.
        consumer_tag: ConsumerTag,
        /// Not to get messages published on this connection.
        no_local: bool,
        /// Deliveries are settled as they are sent.
        no_ack: bool,
        /// Refuse other consumers.
        exclusive: bool,
        /// Further arguments.
        arguments: Table,
    },
    /// `basic.cancel` of a consumer of this channel, answered with `Done`. A tag that is not in use
    /// was answered already.
    Cancel {
        /// The consumer's tag.
        consumer_tag: ConsumerTag,
    },
    /// `basic.get`, answered with `get_ok` or `get_empty`.
    Get {
        /// The queue.
        queue: Bytes,
        /// The delivery is settled as it is sent.
        no_ack: bool,
    },
    /// `basic.recover` or `basic.recover-async` with requeue, answered with `Done`. The channel
    /// forgot these deliveries.
    Recover {
        /// All outstanding deliveries, in the order of their tags, to be requeued.
        unsettled: Deliveries,
    },
    /// `tx.select`, answered with `Done`: publishes from here on wait for their commit. The session
    /// holds them; the acks wait in the channel.
    TxSelect,
    /// `tx.commit`, answered with `Done` once the publishes since the last commit or rollback were
    /// handed on, in their order, and after them the acks. `tx.commit-ok` waits for the confirm of
    /// each of these publishes.
    TxCommit {
        /// The acks of the transaction, in their order.
        settles: Vec<(Settlement, Deliveries)>,
    },
    /// `tx.rollback`, answered with `Done`: the publishes since the last commit or rollback are
    /// dropped, unconfirmed.
    TxRollback,
}

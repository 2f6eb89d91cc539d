//! What the broker says to a connection: replies, deliveries, returns, confirms. All of it is data;
//! `broker_side.rs` puts it on the wire.

use bytes::Bytes;

use crate::channel::ConsumerTag;
use crate::reply_code::ReplyCode;
use crate::wire::frame::Payload;

/// The credentials were refused. The client learns nothing but that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("login refused")]
pub struct AuthRefused;

/// The answer to a request. Which one fits is said at [`Request`](super::request::Request); another
/// is the caller's bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The queue exists.
    QueueDeclared {
        /// Its name, generated or not.
        queue: Bytes,
        /// Messages ready.
        message_count: u32,
        /// Consumers.
        consumer_count: u32,
    },
    /// The queue was purged.
    QueuePurged {
        /// Messages dropped.
        message_count: u32,
    },
    /// The queue is gone.
    QueueDeleted {
        /// Messages dropped with it.
        message_count: u32,
    },
    /// The consumer is there.
    Consuming {
        /// Its tag, generated or not.
        consumer_tag: ConsumerTag,
    },
}

/// The broker's word about a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// It is where it should be.
    Ack,
    /// It is not.
    Nack,
}

/// A message on its way out.
#[derive(Clone, Copy, Debug)]
pub struct MessageParts<'a> {
    /// The exchange it was published to, at most 255 bytes.
    pub exchange: &'a [u8],
    /// The routing key it was published with, at most 255 bytes.
    pub routing_key: &'a [u8],
    /// The content header from the property flags on.
    pub properties: &'a [u8],
    /// The body.
    pub body: Payload<'a>,
}

/// A message for a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The consumer's tag.
    pub consumer_tag: &'a ConsumerTag,
    /// The broker's number of the consumer, which comes back with the ack.
    pub consumer: u32,
    /// The message's number in its queue, which comes back with the ack.
    pub seq: u64,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// Whether no ack will come.
    pub no_ack: bool,
    /// The message.
    pub message: MessageParts<'a>,
}

/// A message for a `basic.get`.
#[derive(Clone, Copy, Debug)]
pub struct GetDelivery<'a> {
    /// A number of the broker's choice, which comes back with the ack.
    pub consumer: u32,
    /// The message's number in its queue, which comes back with the ack.
    pub seq: u64,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// Whether no ack will come.
    pub no_ack: bool,
    /// Messages that are left in the queue.
    pub message_count: u32,
    /// The message.
    pub message: MessageParts<'a>,
}

/// A message that goes back to its publisher.
#[derive(Clone, Copy, Debug)]
pub struct ReturnedMessage<'a> {
    /// 312 for a mandatory message without a queue.
    pub code: ReplyCode,
    /// The message.
    pub message: MessageParts<'a>,
}

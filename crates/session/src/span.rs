//! A span: one thing that the broker did with a traced message, and how long it took.
//!
//! ```text
//!   whoever published ─┬─ publish ── store        a node took it ── the leader of its queues has it safe
//!                      ├─ deliver ── ack          once for each consumer that got it
//!                      └─ (the application that consumed it)
//! ```
//!
//! Invariant: times are microseconds since the node started, as [`Host::elapsed_us`](crate::Host::elapsed_us)
//! has them, so no change of the wall clock is in a length. What is here is data: who sends it where, and
//! under which names, the server knows.

use crate::trace_context::{TraceContext, publish_span_id};
use amqp::{MessageParts, Properties};
use broker::topology::Name;
use bytes::Bytes;
use core::net::SocketAddr;
use partition::Publish;
use smallvec::SmallVec;
use std::sync::Arc;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A client published it: from the read that brought it to its confirm, or to its partitions where
    /// nobody waits for one.
    Publish,
    /// A partition took it in: from there until it is as safe as its queues are.
    Store,
    /// A consumer was given it: from its partition's hands to the socket.
    Deliver,
    /// The same by `basic.get`.
    Get,
    /// A client settled it.
    Ack,
    /// A client gave it back by `basic.nack` or `basic.recover`.
    Nack,
    /// The same by `basic.reject`.
    Reject,
    /// A client had it dropped, or dead-lettered, by either of them.
    Discard,
}

/// A point that a message passes between the beginning and the end of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Its queues are known, and it is on its way to their partitions.
    Routed,
    /// The shard of its partition takes it in.
    Queued,
    /// It is in this node's log.
    Written,
    /// It is on this node's disk.
    Synced,
    /// A majority has it on disk.
    Replicated,
}

/// What spans tell of a message. Texts are as they came, whatever their encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageFacts {
    /// The exchange that it was published to.
    pub exchange: Bytes,
    /// Its routing key.
    pub routing_key: Bytes,
    /// Bytes of its body.
    pub body_bytes: usize,
    /// The application's message id.
    pub message_id: Option<Bytes>,
    /// The application's correlation id.
    pub correlation_id: Option<Bytes>,
}

impl MessageFacts {
    /// Of a message, none of whose bytes they hold on to.
    pub(crate) fn new(message: &MessageParts<'_>) -> MessageFacts {
        let parsed = Properties::parse(message.properties).expect("the machine checks the properties of every message");
        MessageFacts {
            exchange: Bytes::copy_from_slice(message.exchange),
            routing_key: Bytes::copy_from_slice(message.routing_key),
            body_bytes: message.body.len(),
            message_id: parsed.message_id.map(Bytes::copy_from_slice),
            correlation_id: parsed.correlation_id.map(Bytes::copy_from_slice),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What was done.
    pub operation: Operation,
    /// The trace.
    pub trace_id: u128,
    /// The span's own number; never 0.
    pub id: u64,
    /// The span that it belongs to; 0 is none.
    pub parent: u64,
    /// The `tracestate` that came with the message.
    pub state: Option<Box<str>>,
    /// When it began, in microseconds since the node started.
    pub begin_us: u64,
    /// When it ended.
    pub end_us: u64,
    /// The message.
    pub message: Arc<MessageFacts>,
    /// The queue, where it is about one.
    pub queue: Option<Name>,
    /// The client, where it is about one.
    pub client: Option<SocketAddr>,
    /// The client's virtual host.
    pub vhost: Bytes,
    /// The delivery tag.
    pub delivery_tag: Option<u64>,
    /// The message was given to somebody before.
    pub is_redelivered: bool,
    /// What it passed on its way.
    pub moments: SmallVec<[(Moment, u64); 4]>,
    /// Why it came to nothing, if it did: one word.
    pub error: Option<&'static str>,
}

impl Span {
    /// A span in the trace of a message that begins now.
    pub(crate) fn new(
        operation: Operation,
        context: TraceContext,
        id: u64,
        message: MessageFacts,
        now_us: u64,
    ) -> Span {
        Span {
            operation,
            trace_id: context.trace_id,
            id: id.max(1),
            parent: context.span_id,
            state: context.state,
            begin_us: now_us,
            end_us: now_us,
            message: Arc::new(message),
            queue: None,
            client: None,
            vhost: Bytes::new(),
            delivery_tag: None,
            is_redelivered: false,
            moments: SmallVec::new(),
            error: None,
        }
    }

    /// One that belongs to it and is about the same message.
    pub(crate) fn child(&self, operation: Operation, id: u64, now_us: u64) -> Span {
        Span {
            operation,
            id: id.max(1),
            parent: self.id,
            begin_us: now_us,
            end_us: now_us,
            moments: SmallVec::new(),
            error: None,
            ..self.clone()
        }
    }

    /// It passes a point now.
    pub fn pass(&mut self, moment: Moment, now_us: u64) {
        self.moments.push((moment, now_us));
    }

    /// What becomes of a publish of another shard or another node in the partition that takes it in now;
    /// nothing if it is not traced.
    pub fn of_stored(publish: &Publish, id: impl FnOnce() -> u64, now_us: u64) -> Option<Box<Span>> {
        let message = &publish.message;
        let mut context = TraceContext::of(&message.properties).filter(|context| context.is_sampled)?;
        if publish.publish_seq != 0 {
            context.span_id = publish_span_id(context.trace_id, publish.channel, publish.publish_seq);
        }
        let parts = MessageParts {
            exchange: &message.exchange,
            routing_key: &message.routing_key,
            properties: &message.properties,
            body: (&message.body).into(),
        };
        Some(Box::new(Span::new(Operation::Store, context, id(), MessageFacts::new(&parts), now_us)))
    }
}

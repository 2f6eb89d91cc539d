//! What a session knows of traced messages on their way through it, and when each of their spans
//! begins and ends.
//!
//! Invariant: a span that began ends: with what it waited for, or with its channel or connection. Where
//! nothing is traced nothing is kept, and a message costs no more than it would without this file. What is
//! kept has a limit; a span beyond it is counted as dropped.

use super::publish::SYNC_EXCHANGE;
use super::span::{MessageFacts, Moment, Operation, Span};
use super::trace_context::{Sampler, TraceContext, publish_span_id};
use super::{Client, Cx, Host, Session};
use amqp::MessageParts;
use broker::topology::Name;
use broker::{ChannelKey, PartitionId, QueueId};
use partition::message::MessageView;
use partition::{Delivery, Disposition};
use std::collections::{BTreeMap, VecDeque};

/// Publishes that wait for their confirm, deliveries that wait for the socket and deliveries that wait
/// for their ack: so many of each, of one connection.
const KEPT_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Publishes that are not confirmed, by channel and number.
    unconfirmed: BTreeMap<(ChannelKey, u64), Box<Span>>,
    /// Deliveries in the order in which they stand in the output, each with where it ends there.
    unwritten: VecDeque<(u64, Box<Span>)>,
    /// Deliveries that are not settled, by channel, consumer and number.
    unsettled: BTreeMap<(ChannelKey, u32, u64), Box<Span>>,
}

impl Session {
    /// The trace of a message that a client publishes, if it has one: the publisher's, or one that begins
    /// here and is written into the message.
    pub(super) fn begin_publish_span(
        &self,
        sampler: Sampler,
        channel: ChannelKey,
        publish: &mut amqp::Publish,
        cx: &Cx<'_, impl Host>,
    ) -> Option<Box<Span>> {
        let found = TraceContext::of(&publish.properties);
        let is_traced = found.as_ref().map_or_else(|| sampler.takes(|| cx.host.dice()), |found| found.is_sampled);
        if !is_traced || publish.exchange == SYNC_EXCHANGE {
            return None;
        }
        let id_in = |trace_id| match publish.publish_seq {
            0 => cx.host.dice().max(1),
            seq => publish_span_id(trace_id, channel, seq),
        };
        let (context, id) = match found {
            Some(context) => {
                let id = id_in(context.trace_id);
                (context, id)
            }
            None => {
                let trace_id = u128::from(cx.host.dice()) << 64 | u128::from(cx.host.dice().max(1));
                let id = id_in(trace_id);
                let own = TraceContext { trace_id, span_id: id, is_sampled: true, state: None };
                publish.properties = own.written_into(&publish.properties);
                (TraceContext { span_id: 0, ..own }, id)
            }
        };
        let message = MessageFacts::new(&MessageParts {
            exchange: &publish.exchange,
            routing_key: &publish.routing_key,
            properties: &publish.properties,
            body: (&publish.body).into(),
        });
        let span = Span::new(Operation::Publish, context, id, message, self.turn_us);
        Some(Box::new(self.with_client(span)))
    }

    fn with_client(&self, span: Span) -> Span {
        Span { client: Some(self.peer), vhost: self.vhost_name.clone(), ..span }
    }

    /// A traced publish is on its way to these partitions, and is `refused` by others already.
    pub(super) fn publish_span_routed(
        &mut self,
        mut span: Box<Span>,
        (channel, publish_seq): (ChannelKey, u64),
        partitions: &[PartitionId],
        is_refused: bool,
        host: &impl Host,
    ) {
        let now_us = host.elapsed_us();
        span.pass(Moment::Routed, now_us);
        span.error = is_refused.then_some("refused");
        for partition in partitions {
            host.watch(*partition, Box::new(span.child(Operation::Store, host.dice(), now_us)));
        }
        let spans = self.spans.get_or_insert_default();
        if publish_seq == 0 {
            end(span, None, host);
        } else if spans.unconfirmed.len() < KEPT_MAX {
            spans.unconfirmed.insert((channel, publish_seq), span);
        } else {
            host.drop_span();
        }
    }

    /// A partition's word about `count` publishes of a channel from `first` was passed on.
    #[cold]
    pub(super) fn publish_spans_answered(
        &mut self,
        at: usize,
        first: u64,
        count: u64,
        refused: bool,
        host: &impl Host,
    ) {
        let (Some(spans), channel) = (&mut self.spans, &self.channels[at]) else { return };
        let key = channel.key;
        let range = (key, first)..(key, first + count);
        let numbers: Vec<u64> = spans.unconfirmed.range(range).map(|((_, seq), _)| *seq).collect();
        for seq in numbers {
            let span = spans.unconfirmed.get_mut(&(key, seq)).expect("it was listed");
            if refused {
                span.error = Some("refused");
            }
            // Where it went to several partitions the last one of them ends it.
            if !channel.awaits(seq) {
                let span = spans.unconfirmed.remove(&(key, seq)).expect("it was listed");
                end(span, None, host);
            }
        }
    }

    /// The trace of a message that goes out to a client, if it has one.
    pub(super) fn begin_delivery_span(
        &self,
        operation: Operation,
        queue: Option<QueueId>,
        delivery: &Delivery,
        cx: &Cx<'_, impl Host>,
    ) -> Option<Box<Span>> {
        cx.host.sampler()?;
        let view = MessageView::parse(&delivery.message).expect("partitions deliver whole messages");
        let context = TraceContext::of(view.properties()).filter(|context| context.is_sampled)?;
        let queue: Option<Name> = {
            let topology = cx.host.topology();
            queue.and_then(|id| topology.queue(id)).map(|queue| queue.name.clone())
        };
        let body = view.body_in(&delivery.message);
        let message = MessageFacts::new(&MessageParts {
            exchange: view.exchange(),
            routing_key: view.routing_key(),
            properties: view.properties(),
            body,
        });
        let span = Span::new(operation, context, cx.host.dice(), message, cx.host.elapsed_us());
        let span = Span { queue, is_redelivered: delivery.redelivered, ..span };
        Some(Box::new(self.with_client(span)))
    }

    /// A traced message is in the output of its client, under this tag. `consumer` holds it until it is
    /// settled, if it is to be.
    pub(super) fn delivery_span_encoded(
        &mut self,
        mut span: Box<Span>,
        tag: Option<u64>,
        consumer: Option<(ChannelKey, u32, u64)>,
        cx: &Cx<'_, impl Host>,
    ) {
        span.delivery_tag = tag;
        let spans = self.spans.get_or_insert_default();
        if tag.is_none() {
            return end(span, Some("channel_closed"), cx.host);
        }
        if let Some(holder) = consumer
            && spans.unsettled.len() < KEPT_MAX
        {
            spans.unsettled.insert(holder, span.clone());
        }
        if spans.unwritten.len() < KEPT_MAX {
            spans.unwritten.push_back((cx.client.output_end(), span));
        } else {
            cx.host.drop_span();
        }
    }

    /// Whether a traced message waits for the socket.
    #[inline]
    pub fn has_unwritten_spans(&self) -> bool {
        self.spans.as_ref().is_some_and(|spans| !spans.unwritten.is_empty())
    }

    /// The socket has taken so many bytes of the output since it was opened.
    pub fn spans_written(&mut self, bytes: u64, host: &impl Host) {
        let Some(spans) = &mut self.spans else { return };
        while spans.unwritten.front().is_some_and(|(end, _)| *end <= bytes) {
            let (_, span) = spans.unwritten.pop_front().expect("there is a first");
            end(span, None, host);
        }
    }

    /// A client settled deliveries of the channel at `at`, or gave them back.
    #[cold]
    pub(super) fn spans_settled(
        &mut self,
        at: usize,
        deliveries: &[amqp::Delivered],
        outcome: Disposition,
        host: &impl Host,
    ) {
        let (Some(spans), key) = (&mut self.spans, self.channels[at].key) else { return };
        let operation = match outcome {
            Disposition::Ack => Operation::Ack,
            Disposition::Nack => Operation::Nack,
            Disposition::Reject => Operation::Reject,
            Disposition::Discard => Operation::Discard,
        };
        for run in deliveries {
            let first = (key, run.consumer, run.first_seq);
            let limit = (key, run.consumer, run.first_seq + u64::from(run.count));
            let holders: Vec<_> = spans.unsettled.range(first..limit).map(|(holder, _)| *holder).collect();
            for holder in holders {
                let delivery = spans.unsettled.remove(&holder).expect("it was listed");
                end(Box::new(delivery.child(operation, host.dice(), self.turn_us)), None, host);
            }
        }
    }

    /// A channel is gone: nobody hears of its publishes any more.
    #[cold]
    pub(super) fn spans_of_channel_end(&mut self, channel: ChannelKey, host: &impl Host) {
        let Some(spans) = &mut self.spans else { return };
        let range = (channel, 0)..=(channel, u64::MAX);
        let numbers: Vec<u64> = spans.unconfirmed.range(range).map(|((_, seq), _)| *seq).collect();
        for seq in numbers {
            let span = spans.unconfirmed.remove(&(channel, seq)).expect("it was listed");
            end(span, Some("channel_closed"), host);
        }
        spans.unsettled.retain(|(of, _, _), _| *of != channel);
    }

    /// The socket is gone: what it has not taken never comes to its client.
    pub fn spans_of_connection_end(&mut self, host: &impl Host) {
        let Some(spans) = self.spans.take() else { return };
        let unwritten = spans.unwritten.into_iter().map(|(_, span)| span);
        unwritten.for_each(|span| end(span, Some("connection_closed"), host));
    }
}

/// A span ends now.
pub(super) fn end(mut span: Box<Span>, error: Option<&'static str>, host: &impl Host) {
    span.end_us = host.elapsed_us();
    span.error = error.or(span.error);
    host.end_span(span);
}

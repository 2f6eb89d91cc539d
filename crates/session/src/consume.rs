//! Requests about consumers and messages, and what partitions answer to all requests.
//!
//! Invariant: an answer belongs to the request whose number it carries; an answer to a request that
//! its channel does not wait for any more is dropped. A message that was taken for a `basic.get`
//! nobody waits for stays with its channel's key, and comes back to its queue with the channel's
//! end.

use super::asking::Found;
use super::channel::{Consumer, Pending, RequestKind, State};
use super::refusal::channel_error;
use super::span::Operation;
use super::timeouts::Aging;
use super::{Client, Cx, Host, Session, names, traits};
use crate::ledger::QueueTraffic;
use crate::tally::Count;
use amqp::{ChannelError, ConsumerTag, GetDelivery, MessageParts, Millis, ReplyCode, Table};
use broker::topology::QueueType;
use broker::{PartitionId, QueueId};
use bytes::Bytes;
use partition::message::MessageView;
use partition::{Delivery, Reply, RequestId};

/// A consumer that is lawful and not attached yet.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) queue: QueueId,
    pub(super) partition: PartitionId,
    /// Empty if the server is to choose it.
    pub(super) tag: ConsumerTag,
    pub(super) no_ack: bool,
    pub(super) exclusive: bool,
    pub(super) priority: i32,
    /// As the client gave them, for those who look; see [`kept`].
    pub(super) arguments: Option<Box<[u8]>>,
    pub(super) is_quorum: bool,
    /// How long it may hold a message; `None` is for ever.
    pub(super) timeout_ms: Option<Millis>,
}

/// Arguments of a consumer that encode to more bytes than this are not kept: they are for those who look, and what a
/// consumer takes stays within what a connection is charged for it.
const ARGUMENTS_BYTES_MAX: usize = 512;

/// What is kept of a consumer's arguments: the encoded table, or nothing where there are none, or too many.
fn kept(arguments: &Table) -> Option<Box<[u8]>> {
    if arguments.is_empty() {
        return None;
    }
    Some(arguments.encode()).filter(|encoded| encoded.len() <= ARGUMENTS_BYTES_MAX).map(Vec::into_boxed_slice)
}

impl Session {
    #[allow(clippy::too_many_arguments)] // They are the fields of one method.
    pub(super) fn consume(
        &mut self,
        at: usize,
        name: Bytes,
        tag: ConsumerTag,
        no_ack: bool,
        exclusive: bool,
        arguments: &Table,
        cx: &mut Cx<'_, impl Host>,
    ) {
        if &name[..] == traits::DIRECT_REPLY_TO {
            return self.consume_replies(at, tag, no_ack, cx);
        }
        let topology = cx.host.topology();
        let found = topology.check_read(self.actor(), self.vhost, &name).and_then(|queue| {
            let asked = topology.check_consume_arguments(queue, arguments)?;
            let is_quorum = queue.shape.queue_type == QueueType::Quorum;
            let default = Some(cx.host.common().settings.consumer_timeout_ms);
            let timeout_ms = asked.timeout_ms.or(queue.rules.consumer_timeout_ms).or(default).filter(|ms| *ms > 0);
            let (queue, partition, priority) = (queue.id, queue.partition, asked.priority);
            let arguments = kept(arguments);
            Ok(Wanted { queue, partition, tag, no_ack, exclusive, priority, arguments, is_quorum, timeout_ms })
        });
        drop(topology);
        match found {
            Ok(wanted) => {
                self.attach(at, wanted, name, cx);
            }
            Err(_) if self.catches_up(at, cx) => {}
            Err(refusal) => self.fail(at, channel_error(refusal), cx),
        }
    }

    /// Has a partition attach a consumer; returns the consumer's number. `name` is its queue's for
    /// a refusal.
    pub(super) fn attach(&mut self, at: usize, wanted: Wanted, name: Bytes, cx: &mut Cx<'_, impl Host>) -> u32 {
        let Wanted { queue, partition, tag, no_ack, exclusive, priority, arguments, is_quorum, timeout_ms } = wanted;
        let aging = timeout_ms.filter(|_| !no_ack).map(|timeout_ms| Box::new(Aging::new(timeout_ms)));
        if let Some(aging) = &aging {
            self.watch(aging, cx.host.now());
        }
        let tag = if tag.is_empty() { ConsumerTag::new(names::name("amq.ctag-", cx.host.random())) } else { tag };
        let channel = &mut self.channels[at];
        let number = channel.next_number();
        let consumer = Consumer {
            number,
            origin: number,
            state: State::Starting,
            // A tag that was cut from the read buffer would keep the buffer alive as long as the
            // consumer.
            tag: ConsumerTag::new(Bytes::copy_from_slice(tag.as_bytes())),
            queue,
            partition,
            is_remote: cx.host.is_remote(partition),
            is_detached: false,
            is_attaching: false,
            no_ack,
            exclusive,
            priority,
            arguments,
            prefetch: channel.prefetch,
            granted_only: channel.credit.as_ref().is_some_and(|credit| credit.limit().is_some()) && !no_ack,
            granted: 0,
            unacked: 0,
            past: 0,
            counts: super::counts::ConsumerCounts::default(),
            is_quorum,
            is_timed_out: false,
            aging,
            told: None,
        };
        channel.consumers.push(consumer);
        channel.use_partition(partition);
        self.wait_for(at, Pending::Consume { number, queue_name: name }, cx);
        number
    }

    pub(super) fn cancel(&mut self, at: usize, tag: &ConsumerTag, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        let Some(found) = channel.consumers.place_of_tag(tag) else {
            // It was cancelled by the server while the request was on its way.
            return cx.client.reply(channel.id, amqp::Reply::Done);
        };
        let consumer = &mut channel.consumers[found];
        consumer.state = State::Stopping;
        let number = consumer.number;
        self.wait_for(at, Pending::Cancel { number }, cx);
    }

    pub(super) fn get(&mut self, at: usize, name: Bytes, no_ack: bool, cx: &mut Cx<'_, impl Host>) {
        let topology = cx.host.topology();
        let found = topology.check_get(self.actor(), self.vhost, &name).map(|queue| (queue.id, queue.partition));
        drop(topology);
        match found {
            Err(_) if self.catches_up(at, cx) => {}
            Err(refusal) => self.fail(at, channel_error(refusal), cx),
            Ok((queue, partition)) => {
                self.channels[at].use_partition(partition);
                self.wait_for(at, Pending::Get { of: Found { queue, partition, name }, no_ack }, cx);
            }
        }
    }

    /// A partition answered.
    pub(super) fn handle_reply(&mut self, at: usize, request: RequestId, reply: Reply, cx: &mut Cx<'_, impl Host>) {
        let channel = &mut self.channels[at];
        match RequestKind::of(request) {
            RequestKind::Pending(number) if number == channel.request && !channel.failed => self.answer(at, reply, cx),
            RequestKind::Pending(_) => {}
            RequestKind::Sync(publish_seq) => {
                channel.confirm(publish_seq, 1, reply != Reply::Done, cx.client).count(cx.host);
            }
            RequestKind::Replaced(number) => {
                if let Some(found) = channel.consumer_at(number as u32) {
                    channel.stop(found, cx);
                    self.hold_of(at, number as u32, cx);
                }
            }
            RequestKind::Replacing(number) => self.attached_again(at, number as u32, &reply, cx),
        }
    }

    /// A partition answered the request under way.
    pub(super) fn answer(&mut self, at: usize, reply: Reply, cx: &mut Cx<'_, impl Host>) {
        if matches!(reply, Reply::NotLeader) {
            return self.wait_for_leader(at, cx);
        }
        if matches!(reply, Reply::Unavailable) {
            return self.is_unavailable(at, cx);
        }
        if self.is_of_the_past(at, &reply, cx) {
            return self.wait_for_leader(at, cx);
        }
        let channel = &mut self.channels[at];
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match (std::mem::take(&mut channel.pending), reply) {
            (Pending::Stat { of: Found { name, .. }, .. }, Reply::Stat { ready, consumers, .. }) => {
                let declared = amqp::Reply::QueueDeclared {
                    queue: name,
                    message_count: count(ready),
                    consumer_count: count(consumers),
                };
                cx.client.reply(channel.id, declared);
            }
            (Pending::Consume { number, .. }, Reply::Consuming) => {
                let found = channel.consumer_at(number).expect("a starting consumer stays known");
                channel.consumers[found].state = State::Active;
                // It is answered, and may stay for long.
                channel.repeat = None;
                let consumer_tag = channel.consumers[found].tag.clone();
                if cx.host.common().settings.tells_events {
                    channel.consumers[found].tell_begin(&self.user, cx.host);
                }
                cx.client.reply(channel.id, amqp::Reply::Consuming { consumer_tag });
            }
            (Pending::Consume { number, queue_name }, refused) => {
                if let Some(found) = channel.consumer_at(number) {
                    channel.stop(found, cx);
                }
                if refused == Reply::ConsumeRefused {
                    let text = format!("{} in exclusive use", self.queue_text(&queue_name));
                    self.fail(at, ChannelError::new(ReplyCode::AccessRefused, text), cx);
                } else {
                    self.refuse_gone(at, &queue_name, cx);
                }
            }
            (Pending::Cancel { number }, _) => {
                let id = channel.id;
                if let Some(found) = channel.consumer_at(number) {
                    channel.stop(found, cx);
                    // Who answered may not lead any more. A leader that knows it anyway hears nothing new.
                    self.hold_of(at, number, cx);
                }
                cx.client.reply(id, amqp::Reply::Done);
            }
            (Pending::Get { of: Found { queue, partition, .. }, no_ack }, Reply::Got { delivery, ready }) => {
                self.got(at, queue, partition, no_ack, &delivery, count(ready), cx);
            }
            (Pending::Get { of, .. }, Reply::Empty) => {
                cx.host.count(Count::GotEmpty, 1);
                let traffic = QueueTraffic { got_empty: 1, ..QueueTraffic::default() };
                let is_quorum = is_quorum(of.queue, cx.host);
                channel.counts.pass(of.queue, is_quorum, &traffic, cx.host.ledger());
                cx.client.get_empty(channel.id);
            }
            (Pending::Purge(Found { name, .. }), Reply::Counted(ready)) => {
                let id = channel.id;
                self.tell_audit("queue.purge", &name, Some(ready));
                cx.client.reply(id, amqp::Reply::QueuePurged { message_count: count(ready) });
            }
            (Pending::Delete { of: Found { name, .. }, is_exclusive, cancelled, .. }, Reply::Counted(ready)) => {
                let id = channel.id;
                // A queue of one connection is nobody else's business, and comes and goes by the
                // thousand.
                if !is_exclusive {
                    self.tell_audit("queue.delete", &name, Some(ready));
                }
                cx.client.reply(id, amqp::Reply::QueueDeleted { message_count: count(ready) });
                let channel = &mut self.channels[at];
                cancelled.into_iter().for_each(|number| channel.cancelled(number, cx));
            }
            (Pending::Delete { of: Found { name, .. }, .. }, Reply::DeleteRefused { in_use }) => {
                let why = if in_use { "in use" } else { "not empty" };
                let text = format!("{} {why}", self.queue_text(&name));
                self.fail(at, ChannelError::new(ReplyCode::PreconditionFailed, text), cx);
            }
            // The queue went while the request was on its way: for a delete that is as it should be. Or
            // this node lags behind, and there is another one of that name, which is to go.
            (Pending::Delete { cancelled, .. }, Reply::Gone) => {
                let id = channel.id;
                if !self.catches_up(at, cx) {
                    cx.client.reply(id, amqp::Reply::QueueDeleted { message_count: 0 });
                }
                let channel = &mut self.channels[at];
                cancelled.into_iter().for_each(|number| channel.cancelled(number, cx));
            }
            (Pending::Stat { of, declare: Some(declare) }, Reply::Gone) => {
                self.declared_is_gone(at, of, declare, cx);
            }
            (Pending::Stat { of, .. } | Pending::Get { of, .. } | Pending::Purge(of), Reply::Gone) => {
                self.refuse_gone(at, &of.name, cx);
            }
            (pending, reply) => panic!("{reply:?} does not answer {pending:?}"),
        }
    }

    /// Whether a message was taken from a leader that leads no more: it is back in its queue, unless
    /// it needs no ack, and was settled with its taking.
    fn is_of_the_past(&self, at: usize, reply: &Reply, cx: &Cx<'_, impl Host>) -> bool {
        let Pending::Get { of, no_ack: false } = &self.channels[at].pending else { return false };
        matches!(reply, Reply::Got { delivery, .. } if cx.host.is_outdated(of.partition, delivery.term))
    }

    pub(super) fn queue_text(&self, name: &[u8]) -> String {
        format!("queue '{}' in vhost '{}'", String::from_utf8_lossy(name), String::from_utf8_lossy(&self.vhost_name))
    }

    #[allow(clippy::too_many_arguments)] // They are the fields of one answer.
    fn got(
        &mut self,
        at: usize,
        queue: QueueId,
        partition: PartitionId,
        no_ack: bool,
        delivery: &Delivery,
        message_count: u32,
        cx: &mut Cx<'_, impl Host>,
    ) {
        let mut span = None;
        if cx.host.is_tracing() {
            self.trace_delivery(at, Some(queue), delivery, cx);
            span = self.begin_delivery_span(Operation::Get, Some(queue), delivery, cx);
        }
        let channel = &mut self.channels[at];
        let holder = channel.holder_of_got(queue, partition, cx.host.ledger());
        let view = MessageView::parse(&delivery.message).expect("partitions deliver whole messages");
        let counted;
        let mut properties = view.properties();
        let is_quorum = is_quorum(queue, cx.host);
        if delivery.counts.acquired > 0 && is_quorum {
            counted = super::publish::with_counts(properties, delivery.counts);
            properties = &counted;
        }
        let body = view.body_in(&delivery.message);
        let channel = &mut self.channels[at];
        let consumer = &mut channel.consumers[holder];
        let got = GetDelivery {
            consumer: consumer.number,
            seq: delivery.seq,
            redelivered: delivery.redelivered,
            no_ack,
            message_count,
            message: MessageParts { exchange: view.exchange(), routing_key: view.routing_key(), properties, body },
        };
        if !no_ack {
            consumer.unacked += 1;
            cx.host.note_holder(partition);
        }
        let (with_ack, without, redelivered) = (u64::from(!no_ack), u64::from(no_ack), u64::from(delivery.redelivered));
        cx.host.count(Count::Got, with_ack);
        cx.host.count(Count::GotNoAck, without);
        cx.host.count(Count::Redelivered, redelivered);
        let traffic = QueueTraffic { got: with_ack, got_no_ack: without, redelivered, ..QueueTraffic::default() };
        consumer.is_quorum = is_quorum;
        channel.counts.pass(queue, is_quorum, &traffic, cx.host.ledger());
        let tag = cx.client.get_ok(channel.id, &got);
        if let Some(span) = span {
            let holder = (!no_ack).then_some((channel.key, got.consumer, delivery.seq));
            self.delivery_span_encoded(span, tag, holder, cx);
        }
    }
}

fn is_quorum(queue: QueueId, host: &impl Host) -> bool {
    let topology = host.topology();
    topology.queue(queue).is_some_and(|queue| queue.shape.queue_type == QueueType::Quorum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use amqp::Value;

    #[test]
    fn arguments_are_kept_as_they_came_unless_there_are_none_or_too_many() {
        assert_eq!(kept(&Table::new()), None);
        let mut arguments = Table::new();
        arguments.push("x-priority", Value::I8(0));
        let text = ARGUMENTS_BYTES_MAX - arguments.encode().len() - "\x04note".len() - 5;
        for more in [0, 1] {
            let mut arguments = arguments.clone();
            arguments.push("note", Value::LongString(vec![b'x'; text + more].into()));
            let decoded = kept(&arguments).map(|kept| Table::decode(&Bytes::from(kept)).expect("it was encoded here"));
            assert_eq!(decoded, (more == 0).then_some(arguments));
        }
    }
}

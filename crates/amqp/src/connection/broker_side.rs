//! The broker's side of a connection: answers, deliveries, returns, confirms, alarms.
//!
//! Invariant: what is said to a channel that is closed, or about a request that nobody waits for,
//! is dropped without a trace; the broker cannot know about a close that is still on its way to it.
//! Deliveries and confirms go out while the channel waits for an answer.

use bytes::Bytes;

use super::answer::{Confirm, Delivery, GetDelivery, MessageParts, Reply, ReturnedMessage};
use super::delivery_head::DeliveryHead;
use super::event::{Event, Publish};
use super::{Connection, Phase};
use crate::channel::{Channel, ChannelId, ChannelPhase, ConsumerTag, Question, Waiting};
use crate::reply_code::{ChannelError, ConnectionError, Fault, MethodId, ReplyCode};
use crate::wire::content::{CLASS_BASIC, CONTENT_HEADER_BYTES};
use crate::wire::frame::{FRAME_BODY, FRAME_EMPTY_BYTES, FRAME_END, FRAME_HEADER, FRAME_METHOD};
use crate::wire::method::Method;
use crate::wire::output::{Output, SPLICE_BYTES_MIN};

/// Channels whose list of unsent confirms keeps its memory between flushes.
const UNFLUSHED_KEPT: usize = 64;

impl Connection {
    /// Answers the request that `channel` waits on, and lets the channel go on: events may follow.
    pub fn reply(&mut self, channel: ChannelId, reply: Reply) {
        let Some(waiting) = self.take_waiting(channel) else { return };
        if waiting.question == Question::TxCommit {
            assert_eq!(reply, Reply::Done, "a commit was carried out, or the channel failed");
            return self.commit_carried_out(channel, waiting);
        }
        let answer = self.answer(channel, &waiting, reply);
        if let Some(answer) = answer.filter(|_| !waiting.no_wait) {
            self.send(channel.number(), &answer);
        }
        self.resume_channel(channel);
    }

    fn take_waiting(&mut self, id: ChannelId) -> Option<Waiting> {
        let channel = self.channels.open(id)?;
        match std::mem::replace(&mut channel.phase, ChannelPhase::Open) {
            ChannelPhase::Waiting(waiting) => {
                if waiting.question == Question::Get {
                    self.gets.end();
                }
                Some(waiting)
            }
            other => {
                channel.phase = other;
                None
            }
        }
    }

    /// The method that carries a reply, after the channel has noted what it has to.
    fn answer(&mut self, id: ChannelId, waiting: &Waiting, reply: Reply) -> Option<Method> {
        let channel = self.channels.open(id)?;
        Some(match (&waiting.question, reply) {
            (Question::Open, Reply::Done) => Method::ChannelOpenOk { channel_id: Bytes::new() },
            (Question::ExchangeDeclare, Reply::Done) => Method::ExchangeDeclareOk {},
            (Question::ExchangeDelete, Reply::Done) => Method::ExchangeDeleteOk {},
            (Question::ExchangeBind, Reply::Done) => Method::ExchangeBindOk {},
            (Question::ExchangeUnbind, Reply::Done) => Method::ExchangeUnbindOk {},
            (Question::QueueDeclare, Reply::QueueDeclared { queue, message_count, consumer_count }) => {
                channel.last_queue = queue.clone();
                Method::QueueDeclareOk { queue, message_count, consumer_count }
            }
            (Question::QueueBind, Reply::Done) => Method::QueueBindOk {},
            (Question::QueueUnbind, Reply::Done) => Method::QueueUnbindOk {},
            (Question::QueuePurge, Reply::QueuePurged { message_count }) => Method::QueuePurgeOk { message_count },
            (Question::QueueDelete, Reply::QueueDeleted { message_count }) => Method::QueueDeleteOk { message_count },
            (Question::Qos, Reply::Done) => Method::BasicQosOk {},
            (Question::Consume, Reply::Consuming { consumer_tag }) => {
                assert!(!consumer_tag.is_empty(), "the broker names a consumer that the client did not name");
                let answer = Method::BasicConsumeOk { consumer_tag: consumer_tag.bytes() };
                self.consumers += usize::from(channel.consumers.insert(consumer_tag));
                answer
            }
            (Question::Cancel(tag), Reply::Done) => {
                self.consumers -= usize::from(channel.consumers.remove(tag));
                Method::BasicCancelOk { consumer_tag: tag.bytes() }
            }
            (Question::Recover | Question::RecoverAsync, Reply::Done) => Method::BasicRecoverOk {},
            (Question::TxSelect, Reply::Done) => Method::TxSelectOk {},
            (Question::TxRollback, Reply::Done) => Method::TxRollbackOk {},
            (question, reply) => panic!("{reply:?} is no answer to {question:?}"),
        })
    }

    /// A commit was handed on: the channel goes on waiting until its publishes are confirmed.
    fn commit_carried_out(&mut self, id: ChannelId, waiting: Waiting) {
        let Some(channel) = self.channels.open(id) else { return };
        channel.phase = ChannelPhase::Waiting(waiting);
        channel.tx.as_mut().expect("only a transactional channel commits").note_carried_out();
        self.finish_commit(id);
    }

    fn confirm_in_tx(&mut self, id: ChannelId, confirm: Confirm) {
        let Some(channel) = self.channels.open(id) else { return };
        let tx = channel.tx.as_mut().expect("only a channel in confirm mode or a transaction has publishes to confirm");
        tx.note_confirm(confirm == Confirm::Nack);
        self.finish_commit(id);
    }

    /// Answers a commit whose last confirm came.
    fn finish_commit(&mut self, id: ChannelId) {
        let Some(channel) = self.channels.open(id) else { return };
        match channel.tx.as_ref().and_then(|tx| tx.end_of_commit()) {
            None => return,
            Some(true) => {
                channel.phase = ChannelPhase::Open;
                self.send(id.number(), &Method::TxCommitOk {});
            }
            Some(false) => {
                let text = "partial tx completion";
                self.fail(id.number(), Fault::new(ReplyCode::PreconditionFailed, MethodId::TX_COMMIT, text));
            }
        }
        self.resume_channel(id);
    }

    /// Closes a channel with an error; also the answer to a request that cannot be granted. A hard
    /// code closes the connection. Does nothing when the channel is closed already.
    pub fn channel_error(&mut self, channel: ChannelId, error: ChannelError) {
        let Some(open) = self.channels.open(channel) else { return };
        let mut fault = Fault::from(error);
        if let ChannelPhase::Waiting(waiting) = &open.phase
            && fault.method == MethodId::NONE
        {
            fault.method = waiting.method;
        }
        self.fail(channel.number(), fault);
        self.run_stalled();
    }

    /// The answer to [`Event::UpdateSecret`]; one for each, in
    /// their order.
    pub fn secret_updated(&mut self, result: Result<(), ConnectionError>) {
        if self.phase != Phase::Running || self.secrets_asked == 0 {
            return;
        }
        self.secrets_asked -= 1;
        match result {
            Ok(()) => self.send(0, &Method::ConnectionUpdateSecretOk {}),
            Err(error) => self.connection_error(error),
        }
    }

    /// Sends a message to a consumer and returns its delivery tag; `None` when the channel is
    /// closed: the message is not delivered then, and the broker keeps it.
    ///
    /// - Order: deliveries of a channel go out in the order of the calls.
    /// - Limits: none here; the broker stops while `Output::len` is large.
    /// - Cost: no allocation once the output's buffer has grown; a body of `SPLICE_BYTES_MIN` or
    ///   more is not copied.
    #[inline]
    pub fn deliver(&mut self, channel: ChannelId, delivery: &Delivery<'_>) -> Option<u64> {
        let open = self.channels.open(channel)?;
        let tag = match delivery.no_ack {
            true => open.unacked.skip_tag(),
            false => open.unacked.push(delivery.consumer, delivery.seq),
        };
        let Delivery { consumer_tag, message, redelivered, .. } = delivery;
        let consumer_tag = consumer_tag.as_bytes();
        let fields_bytes = 4 + 1 + consumer_tag.len() + 9 + 2 + message.exchange.len() + message.routing_key.len();
        let before = self.output.len();
        let body = message.body;
        if body.len() <= body_room(self.frame_max) && DeliveryHead::is_kept(delivery) {
            let head = self.delivery_head.of(channel.number(), delivery);
            self.output.reserve(head.len() + body.len().min(SPLICE_BYTES_MIN) + 1);
            head.put(self.output.small(), tag, *redelivered, body.len());
            if !body.is_empty() {
                self.output.push_body(body);
                self.output.small().push(FRAME_END);
            }
            self.output.note_delivery(before);
            return Some(tag);
        }
        let small = begin_content(&mut self.output, channel.number(), fields_bytes, message);
        let mut fixed = [0, 60, 0, 60, 0];
        fixed[4] = short_len(consumer_tag);
        small.extend_from_slice(&fixed);
        small.extend_from_slice(consumer_tag);
        put_tag(small, tag, *redelivered, message.exchange);
        small.extend_from_slice(message.exchange);
        small.push(short_len(message.routing_key));
        small.extend_from_slice(message.routing_key);
        finish_content(&mut self.output, channel.number(), self.frame_max, message);
        self.output.note_delivery(before);
        Some(tag)
    }

    /// Answers `basic.get` with a message and returns its delivery tag; `None` as for
    /// [`deliver`](Self::deliver).
    pub fn get_ok(&mut self, channel: ChannelId, delivery: &GetDelivery<'_>) -> Option<u64> {
        let waiting = self.take_waiting(channel)?;
        assert_eq!(waiting.question, Question::Get, "get_ok answers basic.get");
        let open = self.channels.open(channel)?;
        let tag = match delivery.no_ack {
            true => open.unacked.skip_tag(),
            false => open.unacked.push(delivery.consumer, delivery.seq),
        };
        let message = &delivery.message;
        let fields_bytes = 4 + 9 + 2 + message.exchange.len() + message.routing_key.len() + 4;
        let before = self.output.len();
        let small = begin_content(&mut self.output, channel.number(), fields_bytes, message);
        small.extend_from_slice(&[0, 60, 0, 71]);
        put_tag(small, tag, delivery.redelivered, message.exchange);
        small.extend_from_slice(message.exchange);
        small.push(short_len(message.routing_key));
        small.extend_from_slice(message.routing_key);
        small.extend_from_slice(&delivery.message_count.to_be_bytes());
        finish_content(&mut self.output, channel.number(), self.frame_max, message);
        self.gets.note_size(self.output.len() - before);
        self.resume_channel(channel);
        Some(tag)
    }

    /// Answers `basic.get` on an empty queue.
    pub fn get_empty(&mut self, channel: ChannelId) {
        let Some(waiting) = self.take_waiting(channel) else { return };
        assert_eq!(waiting.question, Question::Get, "get_empty answers basic.get");
        self.send(channel.number(), &Method::BasicGetEmpty { cluster_id: Bytes::new() });
        self.resume_channel(channel);
    }

    /// Sends a message back to its publisher; to be called before its [`confirm`](Self::confirm),
    /// which it precedes.
    pub fn return_message(&mut self, channel: ChannelId, returned: &ReturnedMessage<'_>) {
        if self.channels.open(channel).is_none() {
            return;
        }
        let message = &returned.message;
        let text = returned.code.name().as_bytes();
        let fields_bytes = 4 + 2 + 1 + text.len() + 2 + message.exchange.len() + message.routing_key.len();
        let small = begin_content(&mut self.output, channel.number(), fields_bytes, message);
        small.extend_from_slice(&[0, 60, 0, 50]);
        small.extend_from_slice(&returned.code.number().to_be_bytes());
        for string in [text, message.exchange, message.routing_key] {
            small.push(short_len(string));
            small.extend_from_slice(string);
        }
        finish_content(&mut self.output, channel.number(), self.frame_max, message);
    }

    /// The last delivery tag of a channel; 0 before the first.
    pub fn last_delivery_tag(&self, channel: ChannelId) -> u64 {
        self.channels.look(channel).map_or(0, |channel| channel.unacked.last_tag())
    }

    /// Whether the client said that it understands a cancel of the server's.
    pub fn knows_cancel(&self) -> bool {
        self.client.consumer_cancel_notify
    }

    /// The consumer is gone, with its queue or for another reason of the server's. The client hears
    /// of it if it said that it understands; the tag is free again either way.
    pub fn cancel_notify(&mut self, channel: ChannelId, consumer_tag: &ConsumerTag) {
        let Some(open) = self.channels.open(channel) else { return };
        let is_known = open.consumers.remove(consumer_tag);
        self.consumers -= usize::from(is_known);
        if is_known && self.client.consumer_cancel_notify {
            let cancel = Method::BasicCancel { consumer_tag: consumer_tag.bytes(), no_wait: true };
            self.send(channel.number(), &cancel);
        }
    }

    /// What is left of several messages that were one event is the next event.
    pub fn put_back(&mut self, publish: Publish) {
        self.events.push_front(Event::Publish(publish));
    }

    /// The broker's word about a publish. The client hears it with the next
    /// [`flush_confirms`](Self::flush_confirms).
    ///
    /// A number that was not published, or a second word about the same, is the caller's bug.
    #[inline]
    pub fn confirm(&mut self, channel: ChannelId, publish_seq: u64, confirm: Confirm) {
        self.confirm_run(channel, publish_seq, 1, confirm);
    }

    /// The same about `count` publishes in a row.
    #[inline]
    pub fn confirm_run(&mut self, channel: ChannelId, first: u64, count: u64, confirm: Confirm) {
        let Some(open) = self.channels.open(channel) else { return };
        let Some(confirms) = &mut open.confirms else {
            return (0..count).for_each(|_| self.confirm_in_tx(channel, confirm));
        };
        confirms.confirm_run(first, count, confirm);
        if !open.confirms_listed {
            open.confirms_listed = true;
            self.unflushed.push(channel);
        }
    }

    /// Sends what was confirmed since the last call, in as few frames as possible. To be called
    /// once a loop.
    pub fn flush_confirms(&mut self) {
        let mut unflushed = std::mem::take(&mut self.unflushed);
        for id in unflushed.drain(..) {
            let Some(channel) = self.channels.open(id) else { continue };
            channel.confirms_listed = false;
            let small = self.output.small();
            if let Some(confirms) = &mut channel.confirms {
                confirms.flush(|frame| {
                    let method: u8 = if frame.confirm == Confirm::Ack { 80 } else { 120 };
                    let mut bytes =
                        [FRAME_METHOD, 0, 0, 0, 0, 0, 13, 0, 60, 0, method, 0, 0, 0, 0, 0, 0, 0, 0, 0, FRAME_END];
                    bytes[1..3].copy_from_slice(&id.number().to_be_bytes());
                    bytes[11..19].copy_from_slice(&frame.publish_seq.to_be_bytes());
                    bytes[19] = u8::from(frame.multiple);
                    small.extend_from_slice(&bytes);
                });
            }
        }
        unflushed.shrink_to(UNFLUSHED_KEPT);
        self.unflushed = unflushed;
    }

    /// The server cannot take publishes for now, and why; or `None`: it can again.
    ///
    /// While it cannot, a channel that publishes waits at its first publish, so that consumers,
    /// acks and requests on other channels go on. A client that publishes is told once, if it said
    /// that it understands.
    pub fn set_blocked(&mut self, reason: Option<&str>) {
        match reason {
            Some(reason) => {
                self.blocked.reason = Some(reason.into());
                self.tell_blocked();
            }
            None => {
                self.blocked.reason = None;
                if std::mem::take(&mut self.blocked.told) && self.phase == Phase::Running {
                    self.send(0, &Method::ConnectionUnblocked {});
                }
                self.release_held();
            }
        }
    }

    /// Tells the client that it is blocked, if that is due.
    pub(crate) fn tell_blocked(&mut self) {
        let due = self.phase == Phase::Running
            && self.client.connection_blocked
            && self.blocked.publishes
            && !self.blocked.told;
        if let Some(reason) = self.blocked.reason.as_deref().filter(|_| due) {
            let reason = Bytes::copy_from_slice(&reason.as_bytes()[..reason.len().min(255)]);
            self.blocked.told = true;
            self.send(0, &Method::ConnectionBlocked { reason });
        }
    }

    /// Lets channels go on that wait with a get, as far as there is room, each until it waits again.
    #[cold]
    pub(crate) fn release_gets(&mut self) {
        while let Some(id) = self.gets.next(self.output.answer_bytes()) {
            if let Some(channel) = self.channels.open(id)
                && matches!(channel.phase, ChannelPhase::Held)
            {
                channel.phase = ChannelPhase::Open;
                self.drain_channel(id);
            }
        }
        self.run_stalled();
    }

    /// Lets channels go on that wait with a publish or a get; whoever may not yet waits again.
    fn release_held(&mut self) {
        self.gets.forget_held();
        let is_held = |channel: &&Channel| matches!(channel.phase, ChannelPhase::Held);
        let held: Vec<ChannelId> = self.channels.iter().filter(is_held).map(|channel| channel.id).collect();
        for id in held {
            if let Some(channel) = self.channels.open(id) {
                channel.phase = ChannelPhase::Open;
            }
            self.drain_channel(id);
        }
        // Only now: what waited for room may belong to any of these channels, and comes after what
        // waited in it.
        self.run_stalled();
    }
}

fn short_len(string: &[u8]) -> u8 {
    u8::try_from(string.len()).expect("names, keys and tags are short strings")
}

/// The header of the method frame, and room for it and the content's small parts. Returns where the rest goes.
#[inline]
fn begin_content<'a>(
    output: &'a mut Output,
    number: u16,
    fields_bytes: usize,
    message: &MessageParts<'_>,
) -> &'a mut Vec<u8> {
    let frames = 3 * FRAME_EMPTY_BYTES + CONTENT_HEADER_BYTES;
    let body = message.body.len().min(SPLICE_BYTES_MIN);
    output.reserve(fields_bytes + frames + message.properties.len() + body);
    let small = output.small();
    frame_header(small, FRAME_METHOD, number, fields_bytes);
    small
}

#[inline]
fn frame_header(small: &mut Vec<u8>, kind: u8, number: u16, payload_bytes: usize) {
    let [n1, n2] = number.to_be_bytes();
    let count = u32::try_from(payload_bytes).expect("a payload has less than 4 GiB");
    let [p1, p2, p3, p4] = count.to_be_bytes();
    small.extend_from_slice(&[kind, n1, n2, p1, p2, p3, p4]);
}

/// The delivery tag, the redelivered bit, and the length of the exchange's name.
#[inline]
fn put_tag(small: &mut Vec<u8>, tag: u64, redelivered: bool, exchange: &[u8]) {
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&tag.to_be_bytes());
    bytes[8] = u8::from(redelivered);
    bytes[9] = short_len(exchange);
    small.extend_from_slice(&bytes);
}

/// How much of a body goes into one frame.
#[inline]
fn body_room(frame_max: u32) -> usize {
    if frame_max == 0 { u32::MAX as usize } else { frame_max as usize - FRAME_EMPTY_BYTES }
}

/// The end of the method frame, the content header, the body in frames of at most `frame_max`.
#[inline]
fn finish_content(output: &mut Output, number: u16, frame_max: u32, message: &MessageParts<'_>) {
    let [n1, n2] = number.to_be_bytes();
    let header_bytes = u32::try_from(CONTENT_HEADER_BYTES + message.properties.len()).expect("properties fit a frame");
    let [p1, p2, p3, p4] = header_bytes.to_be_bytes();
    let [b1, b2, b3, b4, b5, b6, b7, b8] = (message.body.len() as u64).to_be_bytes();
    let [c1, c2] = CLASS_BASIC.to_be_bytes();
    let small = output.small();
    small.extend_from_slice(&[
        FRAME_END,
        FRAME_HEADER,
        n1,
        n2,
        p1,
        p2,
        p3,
        p4,
        c1,
        c2,
        0,
        0,
        b1,
        b2,
        b3,
        b4,
        b5,
        b6,
        b7,
        b8,
    ]);
    small.extend_from_slice(message.properties);
    small.push(FRAME_END);
    let room = body_room(frame_max);
    if message.body.len() <= room {
        if !message.body.is_empty() {
            frame_header(small, FRAME_BODY, number, message.body.len());
            output.push_body(message.body);
            output.small().push(FRAME_END);
        }
        return;
    }
    let mut at = 0;
    while at < message.body.len() {
        let part = message.body.part(at, message.body.len().min(at + room));
        at += part.len();
        frame_header(output.small(), FRAME_BODY, number, part.len());
        output.push_body(part);
        output.small().push(FRAME_END);
    }
}

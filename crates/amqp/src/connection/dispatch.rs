//! The rules of a channel's methods, publish excepted: what is answered here, what is asked of the
//! broker, and what costs the channel or the connection.
//!
//! Invariant: a method either gets its answer here, or becomes exactly one request after which the
//! channel waits, or is a fault. Nothing is accepted and ignored.

use bytes::Bytes;

use super::Connection;
use super::event::{Event, Settlement};
use super::input::decode_method;
use super::request::Request;
use crate::channel::{Channel, ChannelPhase, ConsumerTag, Question, Waiting};
use crate::reply_code::{Fault, MethodId, ReplyCode};
use crate::wire::frame::Payload;
use crate::wire::method::Method;

const BASIC_ACK: u16 = 80;
const BASIC_REJECT: u16 = 90;
const BASIC_NACK: u16 = 120;

/// What a method turned out to be.
enum Step {
    /// A request, its question, and whether the client does not want to hear the answer.
    Ask(Request, Question, bool),
    /// The answer itself.
    Answer(Method),
    /// Nothing to say.
    Silent,
}

impl Connection {
    /// A method of the class basic, publish excepted: the acks are read by hand, as they may come
    /// once a message.
    #[inline]
    pub(crate) fn handle_basic_method(&mut self, number: u16, id: MethodId, payload: Payload<'_>) -> Result<(), Fault> {
        if !matches!(id.method, BASIC_ACK | BASIC_REJECT | BASIC_NACK) || payload.len() != 13 {
            return self.handle_channel_method(number, payload);
        }
        let tag = payload[4..].first_chunk().copied().map_or(0, u64::from_be_bytes);
        let bits = payload[12];
        let (outcome, multiple) = match id.method {
            BASIC_ACK => (Settlement::Ack, bits & 1 != 0),
            BASIC_REJECT => (Settlement::Reject { requeue: bits & 1 != 0 }, false),
            _ => (Settlement::Nack { requeue: bits & 2 != 0 }, bits & 1 != 0),
        };
        let channel = self.channels.by_number(number).expect("the caller found it");
        let unknown = || Err(Fault::new(ReplyCode::PreconditionFailed, id, format!("unknown delivery tag {tag}")));
        if let Some(tx) = &mut channel.tx {
            let Some(tagged) = channel.unacked.settle_tagged(tag, multiple) else { return unknown() };
            tx.keep(outcome, tagged);
            return Ok(());
        }
        let Some(runs) = channel.unacked.settle(tag, multiple) else { return unknown() };
        let channel = channel.id;
        self.push_settle(channel, outcome, runs);
        Ok(())
    }

    /// Every other method on an open channel whose turn it is.
    pub(crate) fn handle_channel_method(&mut self, number: u16, payload: Payload<'_>) -> Result<(), Fault> {
        if self.waits_for_returns(number, &payload) {
            let id = self.hold_method(number, payload);
            self.behind_returns.push(id);
            return Ok(());
        }
        let method = decode_method(payload)?;
        let blame = method.id();
        if matches!(method, Method::ChannelClose { .. }) {
            self.close_channel_by_client(number);
            return Ok(());
        }
        let channel = self.channels.by_number(number).expect("the caller found it");
        let id = channel.id;
        match step(channel, method, self.config.consumers_max).map_err(|(code, text)| Fault::new(code, blame, text))? {
            Step::Ask(request, question, no_wait) => {
                if question == Question::Get {
                    self.gets.begin();
                }
                self.recovers |= matches!(question, Question::Recover | Question::RecoverAsync);
                channel.phase = ChannelPhase::Waiting(Waiting { question, method: blame, no_wait });
                self.events.push_back(Event::Request { channel: id, request });
            }
            Step::Answer(answer) => self.send(number, &answer),
            Step::Silent => {}
        }
        Ok(())
    }
}

/// One function decides for every method; `Err` is a reply code and a text.
fn step(channel: &mut Channel, method: Method, consumers_max: usize) -> Result<Step, (ReplyCode, String)> {
    use Step::{Answer, Ask, Silent};
    Ok(match method {
        Method::ChannelOpen { .. } => {
            return Err((ReplyCode::ChannelError, "second 'channel.open' seen".to_owned()));
        }
        Method::ChannelFlow { active: true } => Answer(Method::ChannelFlowOk { active: true }),
        Method::ChannelFlow { active: false } => return Err(not_implemented("active=false")),
        Method::AccessRequest { .. } => Answer(Method::AccessRequestOk { ticket: 1 }),

        Method::ExchangeDeclare {
            exchange, kind, passive, durable, auto_delete, internal, no_wait, arguments, ..
        } => Ask(
            Request::ExchangeDeclare { exchange, kind, passive, durable, auto_delete, internal, arguments },
            Question::ExchangeDeclare,
            no_wait,
        ),
        Method::ExchangeDelete { exchange, if_unused, no_wait, .. } => {
            Ask(Request::ExchangeDelete { exchange, if_unused }, Question::ExchangeDelete, no_wait)
        }
        Method::ExchangeBind { destination, source, routing_key, no_wait, arguments, .. } => {
            Ask(Request::ExchangeBind { destination, source, routing_key, arguments }, Question::ExchangeBind, no_wait)
        }
        Method::ExchangeUnbind { destination, source, routing_key, no_wait, arguments, .. } => Ask(
            Request::ExchangeUnbind { destination, source, routing_key, arguments },
            Question::ExchangeUnbind,
            no_wait,
        ),

        Method::QueueDeclare { queue, passive, durable, exclusive, auto_delete, no_wait, arguments, .. } => Ask(
            Request::QueueDeclare { queue, passive, durable, exclusive, auto_delete, arguments },
            Question::QueueDeclare,
            no_wait,
        ),
        Method::QueueBind { queue, exchange, routing_key, no_wait, arguments, .. } => {
            let routing_key = expand_routing_key(channel, &queue, routing_key);
            let queue = expand_queue(channel, queue)?;
            Ask(Request::QueueBind { queue, exchange, routing_key, arguments }, Question::QueueBind, no_wait)
        }
        Method::QueueUnbind { queue, exchange, routing_key, arguments, .. } => {
            let routing_key = expand_routing_key(channel, &queue, routing_key);
            let queue = expand_queue(channel, queue)?;
            Ask(Request::QueueUnbind { queue, exchange, routing_key, arguments }, Question::QueueUnbind, false)
        }
        Method::QueuePurge { queue, no_wait, .. } => {
            Ask(Request::QueuePurge { queue: expand_queue(channel, queue)? }, Question::QueuePurge, no_wait)
        }
        Method::QueueDelete { queue, if_unused, if_empty, no_wait, .. } => {
            let queue = expand_queue(channel, queue)?;
            Ask(Request::QueueDelete { queue, if_unused, if_empty }, Question::QueueDelete, no_wait)
        }

        Method::BasicQos { prefetch_size: 0, prefetch_count, global } => {
            Ask(Request::Qos { prefetch_count, global }, Question::Qos, false)
        }
        Method::BasicQos { prefetch_size, .. } => {
            return Err(not_implemented(&format!("prefetch_size!=0 ({prefetch_size})")));
        }
        Method::BasicConsume { queue, consumer_tag, no_local, no_ack, exclusive, no_wait, arguments, .. } => {
            let consumer_tag = ConsumerTag::new(consumer_tag);
            if channel.consumers.contains(&consumer_tag) {
                return Err((ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{consumer_tag}'")));
            }
            if channel.consumers.len() >= consumers_max {
                let text = format!("reached maximum ({consumers_max}) of consumers per channel");
                return Err((ReplyCode::NotAllowed, text));
            }
            let queue = expand_queue(channel, queue)?;
            let request = Request::Consume { queue, consumer_tag, no_local, no_ack, exclusive, arguments };
            Ask(request, Question::Consume, no_wait)
        }
        Method::BasicCancel { consumer_tag, no_wait } => {
            let tag = ConsumerTag::new(consumer_tag);
            if channel.consumers.contains(&tag) {
                Ask(Request::Cancel { consumer_tag: tag.clone() }, Question::Cancel(tag), no_wait)
            } else if no_wait {
                Silent
            } else {
                // The specification wants a tag that is not in use answered like any other.
                Answer(Method::BasicCancelOk { consumer_tag: tag.bytes() })
            }
        }
        // The client's answer to our own basic.cancel, which was forgotten when it was sent.
        Method::BasicCancelOk { .. } => Silent,
        Method::BasicGet { queue, no_ack, .. } => {
            Ask(Request::Get { queue: expand_queue(channel, queue)?, no_ack }, Question::Get, false)
        }
        Method::BasicRecover { requeue: true } => {
            Ask(Request::Recover { unsettled: channel.unacked.take_all() }, Question::Recover, false)
        }
        Method::BasicRecoverAsync { requeue: true } => {
            Ask(Request::Recover { unsettled: channel.unacked.take_all() }, Question::RecoverAsync, true)
        }
        Method::BasicRecover { requeue: false } | Method::BasicRecoverAsync { requeue: false } => {
            return Err(not_implemented("requeue=false"));
        }

        Method::ConfirmSelect { .. } if channel.tx.is_some() => {
            return Err(precondition_failed("cannot switch from tx to confirm mode"));
        }
        Method::ConfirmSelect { no_wait } => {
            channel.confirms.get_or_insert_default();
            if no_wait { Silent } else { Answer(Method::ConfirmSelectOk {}) }
        }
        Method::TxSelect {} if channel.confirms.is_some() => {
            return Err(precondition_failed("cannot switch from confirm to tx mode"));
        }
        Method::TxSelect {} => {
            channel.tx.get_or_insert_default();
            Ask(Request::TxSelect, Question::TxSelect, false)
        }
        Method::TxCommit {} | Method::TxRollback {} if channel.tx.is_none() => {
            return Err(precondition_failed("channel is not transactional"));
        }
        Method::TxCommit {} => {
            let settles = channel.tx.as_mut().expect("the arm above has the others").commit();
            Ask(Request::TxCommit { settles }, Question::TxCommit, false)
        }
        Method::TxRollback {} => {
            let tx = channel.tx.as_mut().expect("the arm above the last has the others");
            tx.rollback(&mut channel.unacked);
            Ask(Request::TxRollback, Question::TxRollback, false)
        }
        _ => return Err((ReplyCode::CommandInvalid, "unimplemented method".to_owned())),
    })
}

fn not_implemented(text: &str) -> (ReplyCode, String) {
    (ReplyCode::NotImplemented, text.to_owned())
}

fn precondition_failed(text: &str) -> (ReplyCode, String) {
    (ReplyCode::PreconditionFailed, text.to_owned())
}

/// An empty queue name stands for the queue that was declared last on this channel.
fn expand_queue(channel: &Channel, queue: Bytes) -> Result<Bytes, (ReplyCode, String)> {
    match (queue.is_empty(), channel.last_queue.is_empty()) {
        (false, _) => Ok(queue),
        (true, false) => Ok(channel.last_queue.clone()),
        (true, true) => Err((ReplyCode::NotFound, "no previously declared queue".to_owned())),
    }
}

/// Where the queue's name is left empty and the routing key too, the key is that queue's name.
fn expand_routing_key(channel: &Channel, queue: &Bytes, routing_key: Bytes) -> Bytes {
    if queue.is_empty() && routing_key.is_empty() { channel.last_queue.clone() } else { routing_key }
}

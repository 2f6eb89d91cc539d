//! Direct reply-to: answers that go over the asker's own channel, without a queue that anybody
//! declares.
//!
//! The asker consumes from [`DIRECT_REPLY_TO`] and publishes with that name as `reply_to`; the
//! broker puts a name in its place that nobody can guess, and a message to that name over the
//! default exchange is a delivery to the asker. Behind the name stands a transient queue of the
//! asker's channel, so that replies have flow control and memory accounting like any other message,
//! and a reply after the asker left meets nobody. What an asker leaves unread is bounded by connection
//! (`partition::ReplyRoom`); beyond, replies are dropped.
//!
//! Invariant: the queue goes with its one consumer; no client may do anything to it but publish.

use super::channel::{Pending, State};
use super::consume::Wanted;
use super::session::log_text;
use super::traits::DIRECT_REPLY_TO;
use super::{Client, Cx, Host, Session, names};
use amqp::{ChannelError, ConsumerTag, MethodId, Properties, Reply, ReplyCode, Request, Table, Value};
use broker::QueueId;
use broker::topology::{Command as Change, CommandReply, DeclareQueue, Name, REPLY_PREFIX};
use bytes::Bytes;
use partition::{Command, ReplyRoom};
use std::sync::Arc;

fn is_reply_name(name: &[u8]) -> bool {
    name == DIRECT_REPLY_TO || name.starts_with(REPLY_PREFIX.as_bytes())
}

/// The one consumer of replies of a channel.
#[derive(Clone, Debug)]
pub(super) struct ReplyConsumer {
    /// Its number on the channel.
    pub(super) number: u32,
    name: Bytes,
}

fn precondition(text: &str) -> ChannelError {
    ChannelError::new(ReplyCode::PreconditionFailed, text)
}

impl Session {
    /// Whether a request names a reply queue where that means something of its own; answered here
    /// if so.
    pub(super) fn is_about_replies(&mut self, at: usize, request: &Request, cx: &mut Cx<'_, impl Host>) -> bool {
        let (name, missing_is_fine) = match request {
            Request::QueueDeclare { queue, .. } if is_reply_name(queue) => {
                let known = queue == DIRECT_REPLY_TO || {
                    let topology = cx.host.topology();
                    topology.find_queue(self.vhost, queue).is_some()
                };
                match known {
                    true => {
                        let reply = Reply::QueueDeclared { queue: queue.clone(), message_count: 0, consumer_count: 1 };
                        cx.client.reply(self.channels[at].id, reply);
                    }
                    false => self.refuse_gone(at, queue, cx),
                }
                return true;
            }
            Request::QueueDelete { queue, .. } => (queue, true),
            Request::QueuePurge { queue }
            | Request::Get { queue, .. }
            | Request::QueueBind { queue, .. }
            | Request::QueueUnbind { queue, .. } => (queue, false),
            Request::Consume { queue, .. } if queue != DIRECT_REPLY_TO => (queue, false),
            _ => return false,
        };
        if !is_reply_name(name) {
            return false;
        }
        match missing_is_fine {
            true => cx.client.reply(self.channels[at].id, Reply::QueueDeleted { message_count: 0 }),
            false => self.refuse_gone(at, name, cx),
        }
        true
    }

    /// `basic.consume` from [`DIRECT_REPLY_TO`].
    ///
    /// Errors: 406 for a consumer that would ack, and for a second one on the channel.
    pub(super) fn consume_replies(&mut self, at: usize, tag: ConsumerTag, no_ack: bool, cx: &mut Cx<'_, impl Host>) {
        if !no_ack {
            return self.fail(at, precondition("reply consumer cannot acknowledge"), cx);
        }
        if self.reply_consumer(at).is_some() {
            return self.fail(at, precondition("reply consumer already set"), cx);
        }
        let name = Bytes::from(names::name(REPLY_PREFIX, cx.host.random()));
        let declare = self.reply_queue(&name, cx);
        if declare.is_local() {
            let outcome = cx.host.change(&Change::DeclareQueue(declare)).outcome;
            let Ok(CommandReply::Queue { id, .. }) = outcome else {
                return self.fail(at, ChannelError::new(ReplyCode::InternalError, "no room for a reply queue"), cx);
            };
            return self.attach_replies(at, tag, (id, name), cx);
        }
        // Every node has to know it, so that answers find it from wherever they come.
        let channel = &mut self.channels[at];
        channel.pending = Pending::Replies { tag, name };
        cx.host.propose(Change::DeclareQueue(declare), channel.key, channel.request_id());
    }

    /// Attaches the consumer of replies to the queue that was made for it.
    pub(super) fn attach_replies(
        &mut self,
        at: usize,
        tag: ConsumerTag,
        (queue, name): (QueueId, Bytes),
        cx: &mut Cx<'_, impl Host>,
    ) {
        let partition = cx.host.transient_partition();
        // Before the consumer, whose answer tells the client that it may ask.
        let (channel, room) = (self.channels[at].key, self.reply_room(cx.host));
        cx.host.push(partition, Command::LimitReplies { queue, channel, room });
        let no_ack = true;
        let (exclusive, priority, is_quorum, timeout_ms) = (false, 0, false, None);
        let arguments = None;
        let wanted = Wanted { queue, partition, tag, no_ack, exclusive, priority, arguments, is_quorum, timeout_ms };
        let number = self.attach(at, wanted, Bytes::from_static(DIRECT_REPLY_TO), cx);
        self.channels[at].reply_consumer = Some(Box::new(ReplyConsumer { number, name }));
    }

    /// What may wait for all channels of the connection.
    fn reply_room(&mut self, host: &impl Host) -> Arc<ReplyRoom> {
        let new = || Arc::new(ReplyRoom::new(host.common().sums.replies.clone()));
        self.reply_room.get_or_insert_with(new).clone()
    }

    /// A reply was dropped that the client left no room for; said once.
    #[cold]
    pub(super) fn replies_dropped(&self, at: usize) {
        let (user, vhost) = (log_text(&self.user), log_text(&self.vhost_name));
        let (connection, channel) = (self.connection_name(), self.channels[at].id.number());
        tracing::warn!(
            peer = %self.peer, connection, channel, user = &*user, vhost = &*vhost,
            "direct replies are dropped: the connection leaves too many unread"
        );
    }

    /// The consumer of replies, unless it was cancelled since.
    fn reply_consumer(&self, at: usize) -> Option<&ReplyConsumer> {
        let channel = &self.channels[at];
        channel.reply_consumer.as_deref().filter(|replies| {
            let known = channel.consumer(replies.number);
            known.is_some_and(|c| matches!(c.state, State::Starting | State::Active))
        })
    }

    fn reply_queue(&self, name: &[u8], cx: &Cx<'_, impl Host>) -> DeclareQueue {
        let mut arguments = Table::new();
        arguments.push("x-queue-type", Value::LongString(Bytes::from_static(b"classic")));
        let home = cx.host.topology().own_home();
        DeclareQueue {
            vhost: self.vhost,
            name: Name::new(name),
            durable: false,
            // One that every node knows goes with the connection even if nobody came to consume.
            exclusive: home.map(|_| self.connection),
            auto_delete: true,
            arguments,
            partition: cx.host.transient_partition(),
            home,
        }
    }

    /// The properties of a request whose answer is to come over its own channel: with the name that
    /// leads here.
    ///
    /// Errors: 406 when nobody on the channel consumes replies.
    pub(super) fn with_reply_name(&self, at: usize, properties: &[u8]) -> Result<Bytes, ChannelError> {
        let Some(consumer) = self.reply_consumer(at) else {
            let text = "fast reply consumer does not exist".to_owned();
            return Err(ChannelError { code: ReplyCode::PreconditionFailed, text, method: MethodId::BASIC_PUBLISH });
        };
        let parsed = Properties::parse(properties).expect("the machine checks the properties of every message");
        let mut named = Vec::with_capacity(properties.len() + consumer.name.len());
        Properties { reply_to: Some(&consumer.name), ..parsed }.encode_to(&mut named);
        Ok(named.into())
    }
}

//! What the connection tells the server, in the order in which it happened.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::config::Mechanism;
use super::request::Request;
use crate::channel::{ChannelId, Deliveries};
use crate::reply_code::{ChannelError, ConnectionError};
use crate::wire::bodies::Bodies;
use crate::wire::table::Table;

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The client says who it is; [`Connection::authenticated`](super::Connection::authenticated)
    /// answers.
    Authenticate(Box<Authenticate>),
    /// The client wants this virtual host; [`Connection::opened`](super::Connection::opened)
    /// answers.
    Open {
        /// The name of the virtual host.
        vhost: Bytes,
    },
    /// The client renews its password;
    /// [`Connection::secret_updated`](super::Connection::secret_updated) answers.
    UpdateSecret {
        /// The new password or token.
        new_secret: Bytes,
        /// Why, for the log.
        reason: Bytes,
    },
    /// A channel is to be opened; [`Connection::reply`](super::Connection::reply) with
    /// [`Reply::Done`](crate::Reply::Done) lets its client go on, or an error ends the connection.
    ChannelOpened {
        /// The channel.
        channel: ChannelId,
    },
    /// A channel is closed, by the client, by an error or with its connection. Nothing more comes
    /// from it, and nothing that is still said to it arrives.
    ChannelClosed {
        /// The channel.
        channel: ChannelId,
        /// Its outstanding deliveries in the order of their tags; they are to be requeued before
        /// `output` is written, as the client may look for them as soon as it reads
        /// `channel.close-ok`.
        unsettled: Deliveries,
        /// Why, if an error closed it.
        error: Option<Box<ChannelError>>,
    },
    /// A message.
    Publish(Publish),
    /// The consumer is done with deliveries.
    Settle(Settle),
    /// The channel waits for an answer.
    Request {
        /// The channel.
        channel: ChannelId,
        /// What is asked.
        request: Request,
    },
    /// The connection is over; the last event, and there is always exactly one.
    Closed(Closed),
}

/// A client's name and password.
///
/// Its debug form leaves the password out.
#[derive(Clone, PartialEq)]
pub struct Authenticate {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// The user; empty where the mechanism does not say it.
    pub user: Bytes,
    /// The password.
    pub password: Bytes,
    /// What the client says about itself.
    pub client_properties: Table,
}

impl fmt::Debug for Authenticate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticate")
            .field("mechanism", &self.mechanism.name())
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// A message to route, or several in a row that differ from it in their bodies alone. Its bytes are mostly slices of
/// the read buffer, which stays alive as long as any of them; nothing else in any event keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The channel.
    pub channel: ChannelId,
    /// The exchange's name; empty is the default exchange.
    pub exchange: Bytes,
    /// The routing key.
    pub routing_key: Bytes,
    /// Whether the message is to come back when it reaches no queue.
    pub mandatory: bool,
    /// The content header from the property flags on, checked and unchanged.
    pub properties: Bytes,
    /// The body.
    pub body: Bytes,
    /// The number to confirm, from 1; 0 when the channel is neither in confirm mode nor
    /// transactional.
    pub publish_seq: u64,
    /// The bodies of those that came right behind it. Their numbers follow its own, or are 0 as that is. At most
    /// [`RUN_MESSAGES_MAX`] and [`RUN_BYTES_MAX`] with its own.
    pub more: Option<Arc<Bodies>>,
}

/// Messages that one event publishes at most.
pub const RUN_MESSAGES_MAX: usize = 256;
/// Bytes of an event that publishes more than one message: of all bodies, names and properties, and what frames them.
pub const RUN_BYTES_MAX: usize = 64 << 10;

impl Publish {
    /// How many messages it is.
    #[inline]
    pub fn count(&self) -> u64 {
        1 + self.more.as_ref().map_or(0, |more| more.len() as u64)
    }

    /// Takes the first of several messages out.
    pub fn take_first(&mut self) -> Option<Publish> {
        let mut more = self.more.take()?;
        let body = Arc::make_mut(&mut more).take_first()?;
        let first = Publish { body: std::mem::replace(&mut self.body, body), ..self.clone() };
        self.publish_seq += u64::from(self.publish_seq != 0);
        self.more = (!more.is_empty()).then_some(more);
        Some(first)
    }

    /// Each message by itself.
    pub fn apart(mut self) -> impl Iterator<Item = Publish> {
        let (more, numbered) = (self.more.take(), u64::from(self.publish_seq != 0));
        (0..=more.as_ref().map_or(0, |more| more.len())).map(move |number| {
            let mut one = self.clone();
            if let (Some(more), Some(before)) = (&more, number.checked_sub(1)) {
                one.body = more.get(before);
                one.publish_seq += numbered * number as u64;
            }
            one
        })
    }
}

/// What a consumer decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// `basic.ack`.
    Ack,
    /// `basic.nack`.
    Nack {
        /// Whether the messages are to be delivered again; otherwise they are dead-lettered or
        /// dropped.
        requeue: bool,
    },
    /// `basic.reject`.
    Reject {
        /// Whether the message is to be delivered again; otherwise it is dead-lettered or dropped.
        requeue: bool,
    },
}

/// Deliveries that are settled. Acks that follow one another on a channel with the same outcome are
/// one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The channel.
    pub channel: ChannelId,
    /// What was decided.
    pub outcome: Settlement,
    /// The deliveries, in the order in which they were settled, and of one ack in the order of
    /// their tags.
    pub deliveries: Deliveries,
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The client closed it.
    ByClient {
        /// The client's reply code, 200 when all is well.
        code: u16,
        /// The client's text.
        text: Bytes,
    },
    /// The client broke a rule, or the server closes it with 320; the client was told.
    ByServer(ConnectionError),
    /// The first eight bytes are no protocol header that is spoken here.
    WrongProtocol([u8; 8]),
    /// The credentials were refused.
    LoginRefused,
    /// The handshake took too long.
    HandshakeTimeout,
    /// Nothing came for two heartbeat intervals.
    HeartbeatTimeout,
    /// The socket ended without a close.
    Disconnected,
    /// The client closed its end while it was not read, and what it had sent is not waited for any longer.
    ClosedUnread,
}

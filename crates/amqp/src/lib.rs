//! AMQP 0-9-1 without sockets: the wire, the connection's rules, the channel's rules.
//!
//! Invariant: nothing here reads a clock, a socket or a random number. Bytes and the time come in,
//! bytes and events go out, and the same inputs give the same outputs, so that a recorded
//! conversation can be replayed byte for byte.
//!
//! Read in this order: [`wire`] (what the bytes mean), [`connection`] (whose turn it is),
//! [`channel`] (what a channel remembers). A server owns one [`Connection`] per socket and calls,
//! once a loop: `handle_input`, `poll_event` until it is empty, the answers, `flush_confirms`, and
//! then writes `output`.

pub mod channel;
pub mod connection;
pub mod fuzz;
pub mod reply_code;
pub mod wire;

pub use channel::{ChannelId, ConsumerTag, Delivered, Deliveries};
pub use connection::Connection;
pub use connection::answer::{AuthRefused, Confirm, Delivery, GetDelivery, MessageParts, Reply, ReturnedMessage};
pub use connection::config::{ConnectionConfig, Mechanism};
pub use connection::event::{Authenticate, Closed, Event, Publish, Settle, Settlement};
pub use connection::request::Request;
pub use reply_code::{ChannelError, ConnectionError, MethodId, ReplyCode};
pub use wire::bodies::Bodies;
pub use wire::content::Properties;
pub use wire::frame::Payload;
pub use wire::output::Output;
pub use wire::table::{Table, Value};

/// Milliseconds on the caller's monotonic clock; only differences mean anything.
pub type Millis = u64;

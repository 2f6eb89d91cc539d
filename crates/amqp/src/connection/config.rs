//! What a server offers its clients, the same for all connections of a listener.

use crate::wire::frame::{FRAME_BYTES_INITIAL, FRAME_BYTES_MIN};
use crate::wire::table::{Table, Value};

/// How a client may say who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// RFC 4616: user and password between zero octets.
    Plain,
    /// A field table with LOGIN and PASSWORD.
    AmqPlain,
    /// Somebody below AMQP knows who it is: a certificate. What the client adds is not looked at,
    /// as in RabbitMQ.
    External,
    /// RFC 4505: nobody says who it is, and the server has a user for those.
    Anonymous,
    /// RabbitMQ's demonstration of a challenge: the user first, and the password when asked for it.
    CrDemo,
}

impl Mechanism {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::AmqPlain => "AMQPLAIN",
            Self::External => "EXTERNAL",
            Self::Anonymous => "ANONYMOUS",
            Self::CrDemo => "RABBIT-CR-DEMO",
        }
    }
}

/// What a server offers its clients.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Sent in `connection.start`: product, version, platform and, from
    /// [`capabilities`](Self::capabilities), what the server can do.
    pub server_properties: Table,
    /// The mechanisms offered, the preferred one first.
    pub mechanisms: Vec<Mechanism>,
    /// The largest frame in bytes, end octet and header included, at least 4096. 0 sets no limit
    /// but that of the bodies.
    pub frame_max: u32,
    /// The largest frame before that is negotiated, at least 4096: what a client logs in with is in
    /// one.
    pub initial_frame_max: u32,
    /// How many channels a connection may have; 0 sets no limit.
    pub channel_max: u16,
    /// The heartbeat interval proposed, in seconds; the client's answer counts, and 0 is none.
    pub heartbeat_s: u16,
    /// How many consumers a channel may have; one more costs the connection (530). Tags are
    /// searched one by one.
    pub consumers_max: usize,
    /// The largest message body; larger ones cost the channel (406).
    pub body_bytes_max: u64,
    /// Memory for all unfinished messages of one connection together, their properties too; beyond
    /// it the connection is closed (506), as a client could otherwise hold one unfinished body of
    /// the largest size on each of its channels.
    pub assembling_bytes_max: usize,
    /// How long the handshake may take, from the first byte to `connection.open-ok`.
    pub handshake_timeout_ms: u64,
    /// How many frames may wait for their channels' turn before the socket is not read any more.
    pub pending_frames_max: usize,
    /// How many bytes may wait likewise.
    pub pending_bytes_max: usize,
    /// Output beyond which the socket is not read any more, so that a client that does not read
    /// what it asked for cannot fill the memory. Deliveries are to stop far below it, see
    /// `Output::len`.
    pub output_bytes_max: usize,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        let mut server_properties = Table::new();
        server_properties.push("capabilities", Value::Table(Self::capabilities()));
        Self {
            server_properties,
            mechanisms: vec![Mechanism::Plain, Mechanism::AmqPlain],
            frame_max: 131_072,
            initial_frame_max: FRAME_BYTES_INITIAL,
            channel_max: 2047,
            heartbeat_s: 60,
            consumers_max: 32_768,
            body_bytes_max: 16 * 1024 * 1024,
            assembling_bytes_max: 64 * 1024 * 1024,
            handshake_timeout_ms: 10_000,
            pending_frames_max: 4096,
            pending_bytes_max: 1024 * 1024,
            output_bytes_max: 4 * 1024 * 1024,
        }
    }
}

impl ConnectionConfig {
    /// The capabilities that this crate and the broker behind it have, with RabbitMQ's names.
    pub const CAPABILITIES: [&str; 9] = [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ];

    /// All of them, as clients are told.
    pub fn capabilities() -> Table {
        let mut table = Table::new();
        Self::CAPABILITIES.into_iter().for_each(|name| table.push(name, Value::Bool(true)));
        table
    }

    /// Asserts the relations between the limits.
    pub(crate) fn check(&self) {
        assert!(self.initial_frame_max >= FRAME_BYTES_MIN, "initial_frame_max is at least 4096");
        assert!(self.frame_max == 0 || self.frame_max >= FRAME_BYTES_MIN, "frame_max is 0 or at least 4096");
        assert!(
            self.body_bytes_max <= crate::channel::assembly::CONTENT_BYTES_MAX,
            "bodies beyond what AMQP can frame"
        );
        assert!(self.assembling_bytes_max as u64 >= self.body_bytes_max, "one body of the largest size must fit");
        assert!(!self.mechanisms.is_empty(), "a client needs a way to log in");
        assert!(self.pending_frames_max > 0 && self.pending_bytes_max > 0, "one frame must be able to wait");
    }
}

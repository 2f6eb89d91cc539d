//! Entry points for fuzzers: any bytes may be passed in, and the only wrong answer is a panic.
//!
//! Invariant: nothing here checks anything that the tests of this crate do not check as well; a
//! finding becomes a test.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::connection::Connection;
use crate::connection::answer::{Confirm, Delivery, GetDelivery, MessageParts, Reply};
use crate::connection::config::ConnectionConfig;
use crate::connection::event::Event;
use crate::connection::request::Request;
use crate::wire::content::Properties;
use crate::wire::frame::{FRAME_HEADER_BYTES, FrameHeader, PROTOCOL_HEADER};
use crate::wire::method::Method;
use crate::wire::table::{Table, check_fields};
use crate::{ChannelId, ConsumerTag};

/// Decodes one frame's payload as a method; what decodes must encode to something that decodes to
/// the same.
pub fn decode_frame(data: &[u8]) {
    let Some(header) = FrameHeader::read(data) else { return };
    let payload = Bytes::copy_from_slice(&data[FRAME_HEADER_BYTES..]);
    if let Ok(method) = Method::decode(&payload) {
        let mut bytes = Vec::new();
        method.write(&mut bytes, header.channel);
        let again = Bytes::from(bytes).slice(FRAME_HEADER_BYTES..);
        let again = Method::decode(&again.slice(..again.len() - 1)).expect("what was encoded decodes");
        assert_eq!(format!("{method:?}"), format!("{again:?}"));
    }
}

/// Decodes a table; what decodes is well-formed, and encodes to something that decodes to the same.
pub fn decode_table(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(table) = Table::decode(&bytes) {
        check_fields(&data[4..]).expect("what decodes is well-formed");
        let again = Table::decode(&Bytes::from(table.encode())).expect("what was encoded decodes");
        assert_eq!(format!("{table:?}"), format!("{again:?}"));
    }
}

/// Decodes properties; what decodes encodes to the same bytes.
pub fn decode_properties(data: &[u8]) {
    if let Ok(properties) = Properties::parse(data) {
        let mut bytes = Vec::new();
        properties.encode_to(&mut bytes);
        assert_eq!(bytes, data);
    }
}

/// Drives a connection that is open already, with a channel open, through whatever frames `data`
/// holds; a broker that grants everything answers. The first byte chooses how the input is cut.
pub fn drive_connection(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let mut driver = Driver::opened();
    for part in data.chunks(usize::from(cut) + 1) {
        driver.feed(part);
    }
    driver.connection.handle_timeout(u64::MAX / 2);
    driver.connection.handle_disconnect();
    driver.answer_events();
    assert!(driver.closed, "a connection that is over says so");
}

/// Drives a connection from its first byte.
pub fn drive_handshake(data: &[u8]) {
    let mut driver = Driver::new();
    driver.feed(data);
    driver.connection.handle_disconnect();
    driver.answer_events();
    assert!(driver.closed, "a connection that is over says so");
}

struct Driver {
    connection: Connection,
    input: BytesMut,
    now: u64,
    seq: u64,
    closed: bool,
    open_channels: usize,
}

impl Driver {
    fn new() -> Self {
        let connection = Connection::new(Arc::new(ConnectionConfig::default()), 0);
        Self { connection, input: BytesMut::new(), now: 0, seq: 0, closed: false, open_channels: 0 }
    }

    fn opened() -> Self {
        let mut driver = Self::new();
        let mut bytes = PROTOCOL_HEADER.to_vec();
        let start_ok = Method::ConnectionStartOk {
            client_properties: Table::new(),
            mechanism: Bytes::from_static(b"PLAIN"),
            response: Bytes::from_static(b"\0guest\0guest"),
            locale: Bytes::from_static(b"en_US"),
        };
        start_ok.write(&mut bytes, 0);
        Method::ConnectionTuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 60 }.write(&mut bytes, 0);
        let vhost = Bytes::from_static(b"/");
        Method::ConnectionOpen { virtual_host: vhost, capabilities: Bytes::new(), insist: false }.write(&mut bytes, 0);
        Method::ChannelOpen { out_of_band: Bytes::new() }.write(&mut bytes, 1);
        driver.feed(&bytes);
        assert!(driver.connection.is_running(), "the prepared handshake is right");
        driver
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.now += 1;
        self.input.extend_from_slice(bytes);
        self.connection.handle_input(&mut self.input, self.now);
        self.answer_events();
        self.connection.flush_confirms();
        // Input that had to wait for an answer is taken now.
        self.connection.handle_input(&mut self.input, self.now);
        self.answer_events();
        let written = self.connection.output().len();
        self.connection.output().advance(written);
        if let Some(at) = self.connection.poll_timeout().filter(|at| *at <= self.now) {
            self.connection.handle_timeout(at);
        }
    }

    fn answer_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            assert!(!self.closed, "Closed is the last event, not before {event:?}");
            match event {
                Event::Authenticate(_) => self.connection.authenticated(Ok(())),
                Event::Open { .. } => self.connection.opened(Ok(())),
                Event::UpdateSecret { .. } => self.connection.secret_updated(Ok(())),
                Event::ChannelOpened { channel } => {
                    self.open_channels += 1;
                    self.connection.reply(channel, Reply::Done);
                }
                Event::ChannelClosed { .. } => self.open_channels -= 1,
                Event::Publish(publish) => {
                    for publish in publish.apart().filter(|publish| publish.publish_seq > 0) {
                        self.connection.confirm(publish.channel, publish.publish_seq, Confirm::Ack);
                    }
                }
                Event::Settle(_) => {}
                Event::Request { channel, request } => self.answer(channel, request),
                Event::Closed(_) => {
                    self.connection.left();
                    assert_eq!(self.open_channels, 0, "channels close before their connection");
                    self.closed = true;
                }
            }
        }
    }

    fn answer(&mut self, channel: ChannelId, request: Request) {
        let body = Bytes::from_static(b"body");
        let message = MessageParts { exchange: b"", routing_key: b"q", properties: &[0, 0], body: (&body).into() };
        self.seq += 1;
        let reply = match request {
            Request::QueueDeclare { queue, .. } => Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 },
            Request::QueuePurge { .. } => Reply::QueuePurged { message_count: 0 },
            Request::QueueDelete { .. } => Reply::QueueDeleted { message_count: 0 },
            Request::Consume { consumer_tag, no_ack, .. } => {
                let generated = || ConsumerTag::new(Bytes::from(format!("amq.ctag-{}", self.seq)));
                let tag = if consumer_tag.is_empty() { generated() } else { consumer_tag };
                self.connection.reply(channel, Reply::Consuming { consumer_tag: tag.clone() });
                let (consumer, seq) = (1, self.seq);
                let delivery = Delivery { consumer_tag: &tag, consumer, seq, redelivered: false, no_ack, message };
                self.connection.deliver(channel, &delivery);
                return;
            }
            Request::Get { no_ack, .. } if self.seq.is_multiple_of(2) => {
                let (consumer, seq) = (2, self.seq);
                let get = GetDelivery { consumer, seq, redelivered: true, no_ack, message_count: 3, message };
                self.connection.get_ok(channel, &get);
                return;
            }
            Request::Get { .. } => return self.connection.get_empty(channel),
            Request::Cancel { consumer_tag } => {
                self.connection.cancel_notify(channel, &ConsumerTag::new(Bytes::from_static(b"other")));
                self.connection.cancel_notify(channel, &consumer_tag);
                Reply::Done
            }
            _ => Reply::Done,
        };
        self.connection.reply(channel, reply);
    }
}

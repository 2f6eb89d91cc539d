//! A client for tests: writes frames into a connection, and reads what the connection wants
//! written, frame by frame.
//!
//! Invariant: it understands frames by itself and shares nothing with the connection but the table
//! of methods, so a frame that is wrong on the wire is seen here.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, PROTOCOL_HEADER, write_frame};
use amqp::wire::method::Method;
use amqp::{ChannelId, Reply, Settlement};
use amqp::{Closed, Connection, ConnectionConfig, Event, Publish, Request, Settle, Table, Value};
use bytes::{Bytes, BytesMut};

/// One frame from the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    Method(u16, Method),
    Header { channel: u16, size: u64, properties: Vec<u8> },
    Body(u16, Vec<u8>),
    Heartbeat,
}

pub struct Client {
    pub connection: Connection,
    pub input: BytesMut,
    pub now: u64,
    pub channels: Vec<ChannelId>,
    /// What came with the last publish.
    behind: VecDeque<Publish>,
}

/// What a client with every capability says about itself.
pub fn capable() -> Table {
    let mut capabilities = Table::new();
    for name in ["authentication_failure_close", "connection.blocked", "consumer_cancel_notify", "basic.nack"] {
        capabilities.push(name, Value::Bool(true));
    }
    let mut properties = Table::new();
    properties.push("product", Value::LongString(Bytes::from_static(b"test")));
    properties.push("capabilities", Value::Table(capabilities));
    properties
}

pub fn start_ok(client_properties: Table) -> Method {
    Method::ConnectionStartOk {
        client_properties,
        mechanism: Bytes::from_static(b"PLAIN"),
        response: Bytes::from_static(b"\0guest\0secret"),
        locale: Bytes::from_static(b"en_US"),
    }
}

pub fn tune_ok(channel_max: u16, frame_max: u32, heartbeat: u16) -> Method {
    Method::ConnectionTuneOk { channel_max, frame_max, heartbeat }
}

pub fn open(vhost: &'static str) -> Method {
    Method::ConnectionOpen {
        virtual_host: Bytes::from_static(vhost.as_bytes()),
        capabilities: Bytes::new(),
        insist: false,
    }
}

pub fn channel_open() -> Method {
    Method::ChannelOpen { out_of_band: Bytes::new() }
}

impl Client {
    /// A socket that was just accepted.
    pub fn connect(config: ConnectionConfig) -> Self {
        let connection = Connection::new(Arc::new(config), 0);
        Self { connection, input: BytesMut::new(), now: 0, channels: Vec::new(), behind: VecDeque::new() }
    }

    /// An open connection of a client with every capability, without heartbeats.
    pub fn open() -> Self {
        Self::open_with(ConnectionConfig::default(), capable(), tune_ok(2047, 131_072, 0))
    }

    pub fn open_with(config: ConnectionConfig, properties: Table, tune: Method) -> Self {
        let mut client = Self::connect(config);
        client.raw(&PROTOCOL_HEADER);
        client.send(0, start_ok(properties));
        assert!(matches!(client.event(), Some(Event::Authenticate(_))));
        client.connection.authenticated(Ok(()));
        client.send(0, tune);
        client.send(0, open("/"));
        assert!(matches!(client.event(), Some(Event::Open { .. })), "the handshake goes on");
        client.connection.opened(Ok(()));
        assert!(client.connection.is_running());
        client.read();
        client
    }

    /// An open connection with channel 1 open.
    pub fn with_channel() -> (Self, ChannelId) {
        let mut client = Self::open();
        let channel = client.open_channel(1);
        (client, channel)
    }

    pub fn open_channel(&mut self, number: u16) -> ChannelId {
        self.send(number, channel_open());
        let Some(Event::ChannelOpened { channel }) = self.event() else { panic!("channel {number} opens") };
        self.channels.push(channel);
        assert_eq!(self.read(), [], "who opens it may be refused");
        self.connection.reply(channel, Reply::Done);
        assert_eq!(self.read(), [Sent::Method(number, Method::ChannelOpenOk { channel_id: Bytes::new() })]);
        channel
    }

    /// The channel that was opened last with this number.
    pub fn channel_id(&self, number: u16) -> Option<ChannelId> {
        self.channels.iter().rev().find(|channel| channel.number() == number).copied()
    }

    /// Opens a channel while earlier events were not looked at.
    pub fn open_channel_after_events(&mut self, number: u16) -> ChannelId {
        self.events();
        self.read();
        self.open_channel(number)
    }

    /// Turns confirms on.
    pub fn confirm_select(&mut self, number: u16) {
        self.send(number, Method::ConfirmSelect { no_wait: false });
        assert_eq!(self.read(), [Sent::Method(number, Method::ConfirmSelectOk {})]);
    }

    /// The same when something else is still to be read.
    pub fn confirm_select_after_reading(&mut self, number: u16) {
        self.read();
        self.confirm_select(number);
    }

    /// Subscribes `tag` and lets the broker agree.
    pub fn consume(&mut self, channel: ChannelId, tag: &'static str) -> amqp::ConsumerTag {
        let tag = Bytes::from_static(tag.as_bytes());
        self.send(channel.number(), consume(tag.clone()));
        let Some(Event::Request { request: Request::Consume { consumer_tag, .. }, .. }) = self.event() else {
            panic!("the broker is asked")
        };
        self.connection.reply(channel, Reply::Consuming { consumer_tag: consumer_tag.clone() });
        let ok = Method::BasicConsumeOk { consumer_tag: tag };
        assert_eq!(self.read(), [Sent::Method(channel.number(), ok)]);
        consumer_tag
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.connection.handle_input(&mut self.input, self.now);
    }

    pub fn send(&mut self, channel: u16, method: Method) {
        let mut bytes = Vec::new();
        method.write(&mut bytes, channel);
        self.raw(&bytes);
    }

    pub fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, channel, |w| w.raw(payload));
        self.raw(&bytes);
    }

    pub fn publish(&mut self, channel: u16, routing_key: &'static str, body: &[u8]) {
        self.raw(&publish_bytes(channel, routing_key, body));
    }

    /// The next one; of several messages that are published as one each by itself.
    pub fn event(&mut self) -> Option<Event> {
        if self.behind.is_empty() {
            match self.connection.poll_event() {
                Some(Event::Publish(publish)) => self.behind = publish.apart().collect(),
                other => return other,
            }
        }
        self.behind.pop_front().map(Event::Publish)
    }

    /// All that there are; whoever opens a channel is let in.
    pub fn events(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.event() {
            if let Event::ChannelOpened { channel } = event {
                self.connection.reply(channel, Reply::Done);
            }
            all.push(event);
        }
        all
    }

    pub fn published(&mut self) -> Publish {
        match self.event() {
            Some(Event::Publish(publish)) => publish,
            other => panic!("a publish and not {other:?}"),
        }
    }

    pub fn settled(&mut self) -> Settle {
        match self.event() {
            Some(Event::Settle(settle)) => settle,
            other => panic!("a settle and not {other:?}"),
        }
    }

    pub fn request(&mut self) -> Request {
        match self.event() {
            Some(Event::Request { request, .. }) => request,
            other => panic!("a request and not {other:?}"),
        }
    }

    /// Everything that is to be written, as bytes.
    pub fn read_bytes(&mut self) -> Vec<u8> {
        let now = self.now;
        let mut bytes = Vec::new();
        while !self.connection.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = self.connection.output().chunks(&mut slices);
            let before = bytes.len();
            slices[..filled].iter().for_each(|slice| bytes.extend_from_slice(slice));
            self.connection.wrote(bytes.len() - before, now);
        }
        bytes
    }

    /// Everything that is to be written, as frames.
    pub fn read(&mut self) -> Vec<Sent> {
        frames(&self.read_bytes())
    }

    /// The only frame that is to be written, a method.
    pub fn read_method(&mut self) -> (u16, Method) {
        let mut sent = self.read();
        assert_eq!(sent.len(), 1, "one frame, not {sent:?}");
        match sent.remove(0) {
            Sent::Method(channel, method) => (channel, method),
            other => panic!("a method and not {other:?}"),
        }
    }

    /// Lets time pass, with every timer handled when it is due.
    pub fn sleep(&mut self, ms: u64) {
        let until = self.now + ms;
        while let Some(at) = self.connection.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.connection.handle_timeout(self.now);
        }
        self.now = until;
    }

    /// Why the connection is over; it must be.
    pub fn closed(&mut self) -> Closed {
        match self.events().pop() {
            Some(Event::Closed(closed)) => closed,
            other => panic!("the connection is over, not {other:?}"),
        }
    }
}

pub fn consume(tag: Bytes) -> Method {
    Method::BasicConsume {
        ticket: 0,
        queue: Bytes::from_static(b"q"),
        consumer_tag: tag,
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments: Table::new(),
    }
}

pub fn declare(queue: &'static str, no_wait: bool) -> Method {
    Method::QueueDeclare {
        ticket: 0,
        queue: Bytes::from_static(queue.as_bytes()),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait,
        arguments: Table::new(),
    }
}

pub fn publish_method(routing_key: &'static str) -> Method {
    Method::BasicPublish {
        ticket: 0,
        exchange: Bytes::new(),
        routing_key: Bytes::from_static(routing_key.as_bytes()),
        mandatory: false,
        immediate: false,
    }
}

/// A content header's payload without properties.
pub fn header_payload(size: u64) -> Vec<u8> {
    let mut payload = vec![0, 60, 0, 0];
    payload.extend_from_slice(&size.to_be_bytes());
    payload.extend_from_slice(&[0, 0]);
    payload
}

pub fn publish_bytes(channel: u16, routing_key: &'static str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    publish_method(routing_key).write(&mut bytes, channel);
    write_frame(&mut bytes, FRAME_HEADER, channel, |w| w.raw(&header_payload(body.len() as u64)));
    for part in body.chunks(131_072 - 8) {
        write_frame(&mut bytes, FRAME_BODY, channel, |w| w.raw(part));
    }
    bytes
}

/// Cuts bytes into frames, checking each header and end octet.
pub fn frames(mut bytes: &[u8]) -> Vec<Sent> {
    let mut sent = Vec::new();
    while !bytes.is_empty() {
        let channel = u16::from_be_bytes([bytes[1], bytes[2]]);
        let size = u32::from_be_bytes([bytes[3], bytes[4], bytes[5], bytes[6]]) as usize;
        let payload = &bytes[7..7 + size];
        assert_eq!(bytes[7 + size], 0xce, "every frame ends");
        sent.push(match bytes[0] {
            FRAME_METHOD => {
                let method = Method::decode(&Bytes::copy_from_slice(payload)).expect("the server writes methods");
                Sent::Method(channel, method)
            }
            FRAME_HEADER => {
                assert_eq!(payload[..4], [0, 60, 0, 0]);
                let size = payload[4..12].iter().fold(0, |sum, b| sum << 8 | u64::from(*b));
                Sent::Header { channel, size, properties: payload[12..].to_vec() }
            }
            FRAME_BODY => Sent::Body(channel, payload.to_vec()),
            FRAME_HEARTBEAT => {
                assert_eq!((channel, size), (0, 0));
                Sent::Heartbeat
            }
            other => panic!("frame type {other}"),
        });
        bytes = &bytes[8 + size..];
    }
    sent
}

pub fn ack(delivery_tag: u64, multiple: bool) -> Method {
    Method::BasicAck { delivery_tag, multiple }
}

/// Runs as `(consumer, first_seq, count)`.
pub fn runs(settle: &Settle) -> (Settlement, Vec<(u32, u64, u32)>) {
    (settle.outcome, settle.deliveries.iter().map(|run| (run.consumer, run.first_seq, run.count)).collect())
}

//! A client that speaks AMQP frame by frame over a real socket, so that tests say exactly what goes
//! over the wire.
#![allow(clippy::unwrap_used, dead_code, missing_docs, unreachable_pub, clippy::result_large_err)]

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameHeader, write_frame};
use amqp::wire::method::Method;
use amqp::{Table, Value};
use bytes::Bytes;
use server::{Node, NodeConfig};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub fn config() -> NodeConfig {
    NodeConfig::small(vec!["127.0.0.1:0".parse().unwrap()])
}

/// Runs each test on a node of one shard, where everything is one thread, and on one of three,
/// where the connections of a test are on different threads.
#[macro_export]
macro_rules! on_one_and_three_shards {
    ($($name:ident),* $(,)?) => {
        mod one_shard {
            $(#[test] fn $name() { super::$name(1) })*
        }
        mod three_shards {
            $(#[test] fn $name() { super::$name(3) })*
        }
    };
}

/// Waits until `done`; panics if that takes too long.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A node that is drained when the test is over.
pub struct TestNode(pub Node);

impl TestNode {
    pub fn start() -> Self {
        TestNode(Node::start_transient(config()).unwrap())
    }

    pub fn shards(shards: usize) -> Self {
        Self::with(|config| config.shards = shards)
    }

    pub fn with(change: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        TestNode(Node::start_transient(config).unwrap())
    }

    pub fn address(&self) -> SocketAddr {
        self.0.addresses()[0]
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// A client with channel 1 open.
    pub fn channel(&self) -> Client {
        let mut client = self.client();
        client.open(1);
        client
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.0.drain();
    }
}

/// A method, with its content where it has one.
#[derive(Debug)]
pub struct Received {
    pub channel: u16,
    pub method: Method,
    pub properties: Bytes,
    pub body: Bytes,
}

pub struct Client {
    pub stream: TcpStream,
    input: Vec<u8>,
    consumed: usize,
}

pub const TIMEOUT: Duration = Duration::from_secs(10);

impl Client {
    pub fn raw(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Client { stream, input: Vec::new(), consumed: 0 }
    }

    pub fn connect(address: SocketAddr) -> Self {
        Self::login(address, "guest", "guest").unwrap()
    }

    /// Logs in; the error is what the server said instead of `open-ok`, or nothing if it just
    /// closed.
    pub fn login(address: SocketAddr, user: &str, password: &str) -> Result<Self, Option<Method>> {
        Self::login_with(address, user, password, 0)
    }

    pub fn login_with(address: SocketAddr, user: &str, password: &str, heartbeat: u16) -> Result<Self, Option<Method>> {
        let mut client = Client::raw(address);
        client.stream.write_all(b"AMQP\0\0\x09\x01").unwrap();
        assert!(matches!(client.recv().method, Method::ConnectionStart { .. }));
        client.send(0, &Client::start_ok(user, password));
        let (channel_max, frame_max) = match client.try_recv().map(|r| r.method) {
            Some(Method::ConnectionTune { channel_max, frame_max, .. }) => (channel_max, frame_max),
            other => return Err(other),
        };
        client.send(0, &Method::ConnectionTuneOk { channel_max, frame_max, heartbeat });
        let open = Method::ConnectionOpen {
            virtual_host: Bytes::from_static(b"/"),
            capabilities: Bytes::new(),
            insist: false,
        };
        client.send(0, &open);
        match client.try_recv().map(|r| r.method) {
            Some(Method::ConnectionOpenOk { .. }) => Ok(client),
            other => Err(other),
        }
    }

    /// The answer to `connection.start`.
    pub fn start_ok(user: &str, password: &str) -> Method {
        let mut capabilities = Table::new();
        for name in ["authentication_failure_close", "connection.blocked", "consumer_cancel_notify"] {
            capabilities.push(name, Value::Bool(true));
        }
        let mut client_properties = Table::new();
        client_properties.push("capabilities", Value::Table(capabilities));
        Method::ConnectionStartOk {
            client_properties,
            mechanism: Bytes::from_static(b"PLAIN"),
            response: Bytes::from(format!("\0{user}\0{password}")),
            locale: Bytes::from_static(b"en_US"),
        }
    }

    pub fn send(&mut self, channel: u16, method: &Method) {
        let mut out = Vec::new();
        method.write(&mut out, channel);
        self.stream.write_all(&out).unwrap();
    }

    /// Sends `method` and gives the answer.
    pub fn call(&mut self, channel: u16, method: &Method) -> Method {
        self.send(channel, method);
        let received = self.recv();
        assert_eq!(received.channel, channel, "{received:?}");
        received.method
    }

    pub fn open(&mut self, channel: u16) {
        let opened = self.call(channel, &Method::ChannelOpen { out_of_band: Bytes::new() });
        assert!(matches!(opened, Method::ChannelOpenOk { .. }), "{opened:?}");
    }

    pub fn confirm_select(&mut self, channel: u16) {
        assert_eq!(self.call(channel, &Method::ConfirmSelect { no_wait: false }), Method::ConfirmSelectOk {});
    }

    /// Declares a transient queue, with the flags named in `flags`: exclusive, auto-delete,
    /// passive, durable.
    pub fn declare_as(&mut self, channel: u16, queue: &str, flags: &[&str]) -> Method {
        let has = |name: &str| flags.contains(&name);
        let declare = Method::QueueDeclare {
            ticket: 0,
            queue: Bytes::copy_from_slice(queue.as_bytes()),
            passive: has("passive"),
            durable: has("durable"),
            exclusive: has("exclusive"),
            auto_delete: has("auto-delete"),
            no_wait: false,
            arguments: Table::new(),
        };
        self.call(channel, &declare)
    }

    /// Declares a transient queue and gives its name and counts.
    pub fn declare(&mut self, channel: u16, queue: &str) -> (Bytes, u32, u32) {
        declared(self.declare_as(channel, queue, &[]))
    }

    /// Ready messages and consumers.
    pub fn counts(&mut self, channel: u16, queue: &str) -> (u32, u32) {
        let (_, messages, consumers) = declared(self.declare_as(channel, queue, &["passive"]));
        (messages, consumers)
    }

    pub fn bind(&mut self, channel: u16, queue: &str, exchange: &str, key: &str) {
        let bind = Method::QueueBind {
            ticket: 0,
            queue: Bytes::copy_from_slice(queue.as_bytes()),
            exchange: Bytes::copy_from_slice(exchange.as_bytes()),
            routing_key: Bytes::copy_from_slice(key.as_bytes()),
            no_wait: false,
            arguments: Table::new(),
        };
        assert_eq!(self.call(channel, &bind), Method::QueueBindOk {});
    }

    pub fn qos(&mut self, channel: u16, prefetch_count: u16, global: bool) {
        let qos = Method::BasicQos { prefetch_size: 0, prefetch_count, global };
        assert_eq!(self.call(channel, &qos), Method::BasicQosOk {});
    }

    pub fn consume_as(&mut self, channel: u16, queue: &str, tag: &str, flags: &[&str]) -> Method {
        let consume = Method::BasicConsume {
            ticket: 0,
            queue: Bytes::copy_from_slice(queue.as_bytes()),
            consumer_tag: Bytes::copy_from_slice(tag.as_bytes()),
            no_local: false,
            no_ack: flags.contains(&"no-ack"),
            exclusive: flags.contains(&"exclusive"),
            no_wait: false,
            arguments: Table::new(),
        };
        self.call(channel, &consume)
    }

    pub fn consume(&mut self, channel: u16, queue: &str, tag: &str) {
        let consuming = self.consume_as(channel, queue, tag, &[]);
        assert!(matches!(consuming, Method::BasicConsumeOk { .. }), "{consuming:?}");
    }

    pub fn publish(&mut self, channel: u16, exchange: &str, key: &str, body: &[u8]) {
        let mut out = Vec::new();
        publish_frames(&mut out, channel, exchange, key, false, &[0, 0], body);
        self.stream.write_all(&out).unwrap();
    }

    pub fn publish_mandatory(&mut self, channel: u16, exchange: &str, key: &str, body: &[u8]) {
        let mut out = Vec::new();
        publish_frames(&mut out, channel, exchange, key, true, &[0, 0], body);
        self.stream.write_all(&out).unwrap();
    }

    pub fn ack(&mut self, channel: u16, delivery_tag: u64, multiple: bool) {
        self.send(channel, &Method::BasicAck { delivery_tag, multiple });
    }

    /// The next method, heartbeats left out. Panics if none comes in time.
    pub fn recv(&mut self) -> Received {
        self.try_recv().expect("the server closed the socket")
    }

    /// The next method; `None` at the end of the stream.
    pub fn try_recv(&mut self) -> Option<Received> {
        let (channel, method) = loop {
            let (kind, channel, payload) = self.frame()?;
            if kind == FRAME_METHOD {
                break (channel, Method::decode(&payload).unwrap());
            }
            assert_eq!(kind, 8, "a heartbeat or a method");
        };
        let mut received = Received { channel, method, properties: Bytes::new(), body: Bytes::new() };
        if received.method.has_content() {
            let (kind, _, header) = self.frame()?;
            assert_eq!(kind, FRAME_HEADER);
            let size = u64::from_be_bytes(header[4..12].try_into().unwrap()) as usize;
            received.properties = header.slice(12..);
            let mut body = Vec::new();
            while body.len() < size {
                let (kind, _, part) = self.frame()?;
                assert_eq!(kind, FRAME_BODY);
                body.extend_from_slice(&part);
            }
            received.body = Bytes::from(body);
        }
        Some(received)
    }

    /// The next delivery: its tag, whether it is a redelivery, its body.
    pub fn delivery(&mut self) -> (u64, bool, Bytes) {
        let received = self.recv();
        match received.method {
            Method::BasicDeliver { delivery_tag, redelivered, .. } => (delivery_tag, redelivered, received.body),
            other => panic!("a delivery was expected, not {other:?}"),
        }
    }

    /// Reads confirms until the one with this number came; panics at a nack.
    pub fn confirmed(&mut self, last: u64) {
        loop {
            match self.recv().method {
                Method::BasicAck { delivery_tag, .. } if delivery_tag >= last => return,
                Method::BasicAck { .. } => {}
                other => panic!("a confirm was expected, not {other:?}"),
            }
        }
    }

    /// Asserts that nothing comes for a while.
    pub fn silent(&mut self, millis: u64) {
        self.stream.set_read_timeout(Some(Duration::from_millis(millis))).unwrap();
        let start = Instant::now();
        let mut byte = [0; 4096];
        assert_eq!(self.input.len(), self.consumed, "something came already");
        match self.stream.read(&mut byte) {
            Err(error) => assert!(matches!(error.kind(), std::io::ErrorKind::WouldBlock), "{error}"),
            Ok(count) => {
                self.input.extend_from_slice(&byte[..count]);
                panic!("after {:?} {count} bytes came: {:?}", start.elapsed(), self.try_recv());
            }
        }
        self.stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    }

    /// Reads what comes until the server closes, and gives the bytes; for peers that do not speak
    /// AMQP.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = self.input.split_off(self.consumed);
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return all,
                Ok(count) => all.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn frame(&mut self) -> Option<(u8, u16, Bytes)> {
        loop {
            let bytes = &self.input[self.consumed..];
            if let Some(header) = FrameHeader::read(bytes)
                && bytes.len() >= header.frame_bytes()
            {
                let payload = Bytes::copy_from_slice(&bytes[7..7 + header.payload_bytes as usize]);
                self.consumed += header.frame_bytes();
                return Some((header.kind, header.channel, payload));
            }
            self.input.drain(..std::mem::take(&mut self.consumed));
            let mut more = [0; 65536];
            match self.stream.read(&mut more) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&more[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }
}

pub fn declared(method: Method) -> (Bytes, u32, u32) {
    match method {
        Method::QueueDeclareOk { queue, message_count, consumer_count } => (queue, message_count, consumer_count),
        other => panic!("queue.declare-ok was expected, not {other:?}"),
    }
}

/// The code and text of a close.
pub fn closed(method: Method) -> (u16, String) {
    match method {
        Method::ChannelClose { reply_code, reply_text, .. }
        | Method::ConnectionClose { reply_code, reply_text, .. } => {
            (reply_code, String::from_utf8(reply_text.to_vec()).unwrap())
        }
        other => panic!("a close was expected, not {other:?}"),
    }
}

/// The frames of a publish.
pub fn publish_frames(
    out: &mut Vec<u8>,
    channel: u16,
    exchange: &str,
    key: &str,
    mandatory: bool,
    properties: &[u8],
    body: &[u8],
) {
    let publish = Method::BasicPublish {
        ticket: 0,
        exchange: Bytes::copy_from_slice(exchange.as_bytes()),
        routing_key: Bytes::copy_from_slice(key.as_bytes()),
        mandatory,
        immediate: false,
    };
    publish.write(out, channel);
    write_frame(out, FRAME_HEADER, channel, |w| {
        w.short(60);
        w.short(0);
        w.longlong(body.len() as u64);
        w.raw(properties);
    });
    for part in body.chunks(131_072 - 8) {
        write_frame(out, FRAME_BODY, channel, |w| w.raw(part));
    }
}

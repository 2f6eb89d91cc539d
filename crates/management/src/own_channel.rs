//! A channel of AMQP on a connection inside the process, in the name of who asks over HTTP: what
//! publishing and getting over HTTP go through, as RabbitMQ does it.
//!
//! Invariant: it is a client like any other. Every right, limit and rule of AMQP is checked where
//! all of them are, and what it holds unacknowledged goes back to its queue when it is dropped, at
//! whatever point that is.

use amqp::wire::content::{CLASS_BASIC, CONTENT_HEADER_BYTES};
use amqp::wire::frame::{
    FRAME_BODY, FRAME_EMPTY_BYTES, FRAME_HEADER, FRAME_HEADER_BYTES, FRAME_METHOD, FrameHeader, PROTOCOL_HEADER,
    write_frame,
};
use amqp::wire::method::Method;
use amqp::{Table, Value};
use broker::topology::Token;
use bytes::{Bytes, BytesMut};
use server::Handle;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The only channel.
const CHANNEL: u16 = 1;
/// The protocol's reply code for a good end.
const REPLY_SUCCESS: u16 = 200;

/// See the module.
#[derive(Debug)]
pub(crate) struct OwnChannel {
    socket: UnixStream,
    input: BytesMut,
    frame_max: usize,
}

/// Why there is no other answer.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The broker closed the channel or the connection, with AMQP's code and text.
    Closed {
        /// The code.
        code: u16,
        /// The text.
        text: String,
    },
    /// The node takes no connection, or broke this one off.
    Gone,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// Queues took it in.
    Routed,
    /// There was no queue for it.
    Unrouted,
    /// A queue refused it.
    Rejected,
}

/// A message that was got and is not acknowledged.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) delivery_tag: u64,
    pub(crate) redelivered: bool,
    pub(crate) exchange: Bytes,
    pub(crate) routing_key: Bytes,
    pub(crate) message_count: u32,
    /// In AMQP's form, from the flags on.
    pub(crate) properties: Bytes,
    pub(crate) body: Bytes,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Ended {
        Ended::Gone
    }
}

impl OwnChannel {
    /// Opens one in this virtual host for `user`, who asks from `peer`.
    pub(crate) async fn open(
        handle: &Handle,
        (user, token): (&[u8], Option<Arc<Token>>),
        peer: SocketAddr,
        vhost: &[u8],
    ) -> Result<OwnChannel, Ended> {
        let socket = UnixStream::from_std(handle.connect_for(user, token, peer)?)?;
        let mut channel = OwnChannel { socket, input: BytesMut::new(), frame_max: 0 };
        channel.socket.write_all(&PROTOCOL_HEADER).await?;
        channel.method().await?;
        let start_ok = Method::ConnectionStartOk {
            client_properties: client_properties(),
            mechanism: Bytes::from_static(b"EXTERNAL"),
            response: Bytes::new(),
            locale: Bytes::from_static(b"en_US"),
        };
        let Method::ConnectionTune { channel_max, frame_max, .. } = channel.call(0, &start_ok).await? else {
            return Err(Ended::Gone);
        };
        channel.frame_max = frame_max as usize;
        // Nothing lies between the two ends that could die silently.
        channel.send(0, &Method::ConnectionTuneOk { channel_max, frame_max, heartbeat: 0 }).await?;
        let virtual_host = Bytes::copy_from_slice(vhost);
        let open = Method::ConnectionOpen { virtual_host, capabilities: Bytes::new(), insist: false };
        channel.call(0, &open).await?;
        channel.call(CHANNEL, &Method::ChannelOpen { out_of_band: Bytes::new() }).await?;
        Ok(channel)
    }

    /// Publishes a message as mandatory and waits for its confirm.
    pub(crate) async fn publish(
        &mut self,
        exchange: &[u8],
        routing_key: &[u8],
        properties: &[u8],
        body: &[u8],
    ) -> Result<Published, Ended> {
        self.call(CHANNEL, &Method::ConfirmSelect { no_wait: false }).await?;
        let publish = Method::BasicPublish {
            ticket: 0,
            exchange: Bytes::copy_from_slice(exchange),
            routing_key: Bytes::copy_from_slice(routing_key),
            mandatory: true,
            immediate: false,
        };
        let mut frames = Vec::with_capacity(body.len() + 512);
        publish.write(&mut frames, CHANNEL);
        write_frame(&mut frames, FRAME_HEADER, CHANNEL, |writer| {
            writer.short(CLASS_BASIC);
            writer.short(0);
            writer.longlong(body.len() as u64);
            writer.raw(properties);
        });
        for part in body.chunks(self.frame_max.max(FRAME_EMPTY_BYTES + 1) - FRAME_EMPTY_BYTES) {
            write_frame(&mut frames, FRAME_BODY, CHANNEL, |writer| writer.raw(part));
        }
        // A refusal may come while the body is on its way.
        self.write(&frames).await?;
        let mut published = Published::Routed;
        loop {
            match self.method().await? {
                Method::BasicReturn { .. } => {
                    self.content().await?;
                    published = Published::Unrouted;
                }
                Method::BasicAck { .. } => return Ok(published),
                Method::BasicNack { .. } => return Ok(Published::Rejected),
                _ => return Err(Ended::Gone),
            }
        }
    }

    /// The next message of a queue, if there is one.
    pub(crate) async fn get(&mut self, queue: &[u8]) -> Result<Option<Got>, Ended> {
        let get = Method::BasicGet { ticket: 0, queue: Bytes::copy_from_slice(queue), no_ack: false };
        match self.call(CHANNEL, &get).await? {
            Method::BasicGetOk { delivery_tag, redelivered, exchange, routing_key, message_count } => {
                let (properties, body) = self.content().await?;
                Ok(Some(Got { delivery_tag, redelivered, exchange, routing_key, message_count, properties, body }))
            }
            Method::BasicGetEmpty { .. } => Ok(None),
            _ => Err(Ended::Gone),
        }
    }

    /// Sends a method that has no answer of its own.
    pub(crate) async fn tell(&mut self, method: &Method) -> Result<(), Ended> {
        self.send(CHANNEL, method).await
    }

    /// Ends in order: what was told before has been handled once this is done.
    pub(crate) async fn close(mut self) -> Result<(), Ended> {
        let (reply_code, reply_text) = (REPLY_SUCCESS, Bytes::from_static(b"done"));
        let close = Method::ChannelClose { reply_code, reply_text: reply_text.clone(), class_id: 0, method_id: 0 };
        self.call(CHANNEL, &close).await?;
        self.call(0, &Method::ConnectionClose { reply_code, reply_text, class_id: 0, method_id: 0 }).await?;
        Ok(())
    }

    async fn call(&mut self, channel: u16, method: &Method) -> Result<Method, Ended> {
        self.send(channel, method).await?;
        self.method().await
    }

    async fn send(&mut self, channel: u16, method: &Method) -> Result<(), Ended> {
        let mut bytes = Vec::with_capacity(128);
        method.write(&mut bytes, channel);
        self.write(&bytes).await
    }

    /// Writes, and tells why if the other side has closed meanwhile.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        match self.socket.write_all(bytes).await {
            Ok(()) => Ok(()),
            Err(_) => loop {
                self.method().await?;
            },
        }
    }

    /// The next method. Errors: it is the end of the channel or of the connection.
    async fn method(&mut self) -> Result<Method, Ended> {
        loop {
            let (kind, payload) = self.frame().await?;
            if kind != FRAME_METHOD {
                continue;
            }
            match Method::decode(&payload).map_err(|_| Ended::Gone)? {
                Method::ChannelClose { reply_code, reply_text, .. }
                | Method::ConnectionClose { reply_code, reply_text, .. } => {
                    let text = String::from_utf8_lossy(&reply_text).into_owned();
                    return Err(Ended::Closed { code: reply_code, text });
                }
                method => return Ok(method),
            }
        }
    }

    /// Properties and body of the message whose method was just read.
    async fn content(&mut self) -> Result<(Bytes, Bytes), Ended> {
        let (kind, header) = self.frame().await?;
        let size = header.get(4..CONTENT_HEADER_BYTES).and_then(|bytes| bytes.try_into().ok());
        let (FRAME_HEADER, Some(size)) = (kind, size) else { return Err(Ended::Gone) };
        let size = u64::from_be_bytes(size) as usize;
        let properties = header.slice(CONTENT_HEADER_BYTES..);
        let mut body = BytesMut::new();
        while body.len() < size {
            let (kind, part) = self.frame().await?;
            if kind != FRAME_BODY {
                return Err(Ended::Gone);
            }
            body.extend_from_slice(&part);
        }
        Ok((properties, body.freeze()))
    }

    async fn frame(&mut self) -> Result<(u8, Bytes), Ended> {
        loop {
            if let Some(header) = FrameHeader::read(&self.input)
                && self.input.len() >= header.frame_bytes()
            {
                let frame = self.input.split_to(header.frame_bytes()).freeze();
                return Ok((header.kind, frame.slice(FRAME_HEADER_BYTES..frame.len() - 1)));
            }
            if self.socket.read_buf(&mut self.input).await? == 0 {
                return Err(Ended::Gone);
            }
        }
    }
}

/// What connection lists show, and the capability without which a refused login has no reason.
fn client_properties() -> Table {
    let mut capabilities = Table::new();
    capabilities.push("authentication_failure_close", Value::Bool(true));
    let mut properties = Table::new();
    properties.push("product", Value::LongString(Bytes::from_static(b"HTTP API")));
    properties.push("capabilities", Value::Table(capabilities));
    properties
}

//! A blocking AMQP client for everything before and after the load: connecting, declaring, counting
//! what is left.
//!
//! Invariant: one request is outstanding at a time, and its answer is the next method on its
//! channel. The load itself never runs through here: [`Client::into_parts`] hands the socket over.

mod handshake;
mod stream;
mod tls;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use amqp::Table;
use amqp::wire::frame::{
    FRAME_BODY, FRAME_EMPTY_BYTES, FRAME_HEADER_BYTES, FRAME_HEARTBEAT, FRAME_METHOD, FrameHeader,
};
use amqp::wire::method::Method;
use bytes::Bytes;

use crate::Error;
use crate::options::Options;
use crate::uri::Uri;

pub use handshake::Identity;
pub use stream::Stream;
pub use tls::{Tls, TlsAsked};

/// How long one answer may take. RabbitMQ takes seconds to declare a quorum queue on a busy
/// machine.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// How long a connection attempt may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// The largest frame that is taken before one is negotiated, and whatever is negotiated: nothing in
/// a set-up is larger.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How the alert begins with which a listener for TLS answers a plain client: its type, and 3 as in
/// every version.
const TLS_ALERT: [u8; 2] = [21, 3];

/// What was negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest frame, all of it.
    pub frame_max: u32,
    /// Channels.
    pub channel_max: u16,
    /// Heartbeat; 0 is none.
    pub heartbeat_secs: u16,
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    input: Vec<u8>,
    address: String,
    limits: Limits,
    identity: Identity,
    /// What connection.blocked said, until connection.unblocked.
    blocked: Option<Bytes>,
}

impl Client {
    /// Connects, logs in and opens the virtual host.
    pub fn connect(uri: &Uri, options: &Options) -> Result<Client, Error> {
        let address = uri.address();
        let unreachable = |why: String| Error::Unreachable { address: address.clone(), why };
        let places = address.to_socket_addrs().map_err(|why| unreachable(why.to_string()))?;
        let mut last = "the name has no address".to_owned();
        for place in places {
            match TcpStream::connect_timeout(&place, CONNECT_PATIENCE) {
                Ok(stream) => return Client::greet(stream, uri, options),
                Err(why) if why.kind() == ErrorKind::ConnectionRefused => {
                    last = format!("{why}; --uri names another, --nodes 1 starts one for the run");
                }
                Err(why) => last = why.to_string(),
            }
        }
        Err(unreachable(last))
    }

    fn greet(stream: TcpStream, uri: &Uri, options: &Options) -> Result<Client, Error> {
        let socket = |why| Error::machine("setting up a socket", why);
        stream.set_nodelay(options.no_delay).map_err(socket)?;
        stream.set_read_timeout(Some(ANSWER_PATIENCE)).map_err(socket)?;
        stream.set_write_timeout(Some(ANSWER_PATIENCE)).map_err(socket)?;
        let option = |why: rustix::io::Errno| Error::machine("setting a buffer's size", why);
        if let Some(bytes) = options.receive_buffer {
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, bytes).map_err(option)?;
        }
        if let Some(bytes) = options.send_buffer {
            rustix::net::sockopt::set_socket_send_buffer_size(&stream, bytes).map_err(option)?;
        }
        let stream = match (uri.tls, &options.tls) {
            (false, _) => Stream::plain(stream),
            (true, Some(tls)) => Stream::sealed(stream, tls.connection(&uri.host)?),
            (true, None) => return Err(Error::usage("an amqps URI, and nothing was said about TLS")),
        };
        let limits = Limits { frame_max: 0, channel_max: 0, heartbeat_secs: 0 };
        let mut client = Client {
            stream,
            input: Vec::new(),
            address: uri.address(),
            limits,
            identity: Identity::default(),
            blocked: None,
        };
        client.shake_hands(uri, options)?;
        Ok(client)
    }

    /// The reason for which the broker holds this connection back, when it has said so during the
    /// set-up.
    pub fn blocked(&self) -> Option<&Bytes> {
        self.blocked.as_ref()
    }

    /// Who the broker says that it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The version of TLS, over TLS.
    pub fn tls_version(&self) -> Option<&'static str> {
        self.stream.tls_version()
    }

    /// Opens a channel.
    pub fn open_channel(&mut self, channel: u16) -> Result<(), Error> {
        if self.limits.channel_max != 0 && channel > self.limits.channel_max {
            let most = self.limits.channel_max;
            return Err(Error::usage(format!("{channel} channels on a connection: the broker takes {most}")));
        }
        self.call(channel, Method::ChannelOpen { out_of_band: Bytes::new() }, "a channel").map(|_| ())
    }

    /// Declares a queue; returns its name, how many messages are ready and how many consumers there
    /// are.
    pub fn declare_queue(&mut self, declare: &QueueDeclare<'_>) -> Result<(String, u32, u32), Error> {
        let method = Method::QueueDeclare {
            ticket: 0,
            queue: Bytes::copy_from_slice(declare.name.as_bytes()),
            passive: declare.passive,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            no_wait: false,
            arguments: declare.arguments.clone(),
        };
        let what = format!("queue {:?}", declare.name);
        match self.call(1, method, &what)? {
            Method::QueueDeclareOk { queue, message_count, consumer_count } => {
                Ok((String::from_utf8_lossy(&queue).into_owned(), message_count, consumer_count))
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a method and returns the next one on its channel.
    pub fn call(&mut self, channel: u16, method: Method, what: &str) -> Result<Method, Error> {
        self.send(channel, &method)?;
        loop {
            let (from, answer) = self.receive()?;
            match answer {
                Method::ConnectionClose { reply_code, reply_text, .. } => {
                    let _ = self.send(0, &Method::ConnectionCloseOk {});
                    return Err(refused(what, reply_code, &reply_text));
                }
                Method::ChannelClose { reply_code, reply_text, .. } if from == channel => {
                    let _ = self.send(channel, &Method::ChannelCloseOk {});
                    return Err(refused(what, reply_code, &reply_text));
                }
                Method::ConnectionBlocked { reason } => self.blocked = Some(reason),
                Method::ConnectionUnblocked {} => self.blocked = None,
                answer if from == channel => return Ok(answer),
                _ => {}
            }
        }
    }

    /// Closes the connection in order; a broker that is gone is no error any more.
    pub fn close(mut self) {
        let close = Method::ConnectionClose {
            reply_code: 200,
            reply_text: Bytes::from_static(b"done"),
            class_id: 0,
            method_id: 0,
        };
        let _ = self.call(0, close, "the end of the connection");
    }

    /// The socket, what was read too much, and the limits.
    pub fn into_parts(self) -> (Stream, Vec<u8>, Limits) {
        (self.stream, self.input, self.limits)
    }

    fn send(&mut self, channel: u16, method: &Method) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(128);
        method.write(&mut bytes, channel);
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(|why| self.gone(&why))
    }

    /// The next method; heartbeats and bodies are passed over.
    fn receive(&mut self) -> Result<(u16, Method), Error> {
        loop {
            if let Some(header) = FrameHeader::read(&self.input) {
                let frame = header.frame_bytes();
                if frame > FRAME_BYTES_MAX || ![FRAME_METHOD, 2, FRAME_BODY, FRAME_HEARTBEAT].contains(&header.kind) {
                    if self.input.starts_with(&TLS_ALERT) {
                        return Err(self.broken("it answers in TLS; is amqps:// meant?".to_owned()));
                    }
                    let shown = String::from_utf8_lossy(&self.input[..FRAME_HEADER_BYTES]).into_owned();
                    return Err(self.broken(format!("{shown:?} starts no frame")));
                }
                if self.input.len() >= frame {
                    let payload = Bytes::copy_from_slice(&self.input[FRAME_HEADER_BYTES..frame - 1]);
                    debug_assert_eq!(frame, payload.len() + FRAME_EMPTY_BYTES);
                    self.input.drain(..frame);
                    if header.kind != FRAME_METHOD {
                        continue;
                    }
                    let method = Method::decode(&payload).map_err(|why| self.broken(why.to_string()))?;
                    return Ok((header.channel, method));
                }
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    let why = "it closed the connection without a word".to_owned();
                    return Err(Error::Unreachable { address: self.address.clone(), why });
                }
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(self.gone(&why)),
            }
        }
    }

    fn gone(&self, why: &std::io::Error) -> Error {
        let tls = why.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let why = match (why.kind(), tls) {
            (ErrorKind::WouldBlock | ErrorKind::TimedOut, _) => {
                format!("no answer in {} s", ANSWER_PATIENCE.as_secs())
            }
            (_, Some(rustls::Error::InvalidMessage(why))) => {
                format!("it does not answer in TLS ({why:?}); is it a plain listener?")
            }
            (_, Some(why)) => format!("TLS: {why}"),
            _ => why.to_string(),
        };
        Error::Unreachable { address: self.address.clone(), why }
    }

    fn broken(&self, why: String) -> Error {
        Error::Protocol { address: self.address.clone(), why }
    }

    fn unexpected(&self, method: &Method) -> Error {
        self.broken(format!("{} was not expected here", method.name()))
    }
}

/// A queue to declare.
#[derive(Default, Clone, Debug)]
pub struct QueueDeclare<'a> {
    /// Its name; empty lets the broker choose.
    pub name: &'a str,
    /// Only look.
    pub passive: bool,
    /// Durable.
    pub durable: bool,
    /// Exclusive.
    pub exclusive: bool,
    /// Auto-delete.
    pub auto_delete: bool,
    /// Arguments.
    pub arguments: Table,
}

impl<'a> QueueDeclare<'a> {
    /// A look at a queue.
    pub fn passive(name: &'a str) -> QueueDeclare<'a> {
        QueueDeclare { name, passive: true, ..QueueDeclare::default() }
    }
}

fn refused(what: &str, code: u16, text: &[u8]) -> Error {
    Error::Refused { what: what.to_owned(), code, text: String::from_utf8_lossy(text).into_owned() }
}

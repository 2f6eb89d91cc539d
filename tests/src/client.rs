//! A blocking AMQP 0-9-1 client over one socket that hides nothing: every frame the broker sends
//! becomes an `Event`, in order.
//!
//! Invariant: events of a channel are handed out in the order in which the broker sent them,
//! whatever is waited for; what a call steps over stays in the channel's backlog.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::methods::*;
use crate::wire::{Args, Properties, Reader, Value};

/// How long a test waits for something that must come. Long, because a loaded machine is no bug of
/// the broker.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long a test listens before it believes that nothing comes.
pub const SILENCE: Duration = Duration::from_millis(250);

/// A method frame.
pub const FRAME_METHOD: u8 = 1;
/// A content header frame.
pub const FRAME_HEADER: u8 = 2;
/// A content body frame.
pub const FRAME_BODY: u8 = 3;
/// A heartbeat frame.
pub const FRAME_HEARTBEAT: u8 = 8;
/// The last octet of each frame.
pub const FRAME_END: u8 = 0xCE;

/// What a close took down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `channel.close`
    Channel,
    /// `connection.close`
    Connection,
    /// The socket ended without a word.
    Socket,
}

/// A close, as the broker announced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// What was closed.
    pub scope: Scope,
    /// The reply code; 0 when only the socket ended.
    pub code: u16,
    /// The reply text.
    pub text: String,
    /// The method that caused it, as the broker names it; 0.0 when it names none.
    pub method: Method,
}

/// A message that the broker handed over by `basic.deliver` or `basic.get-ok`.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The consumer it came for; empty for a `basic.get`.
    pub consumer_tag: String,
    /// Delivery tag.
    pub tag: u64,
    /// The redelivered flag.
    pub redelivered: bool,
    /// Exchange it was published to.
    pub exchange: String,
    /// Routing key it was published with.
    pub routing_key: String,
    /// Ready messages left behind it; only `basic.get` says.
    pub message_count: Option<u32>,
    /// Properties, verbatim.
    pub properties: Properties,
    /// Body.
    pub body: Vec<u8>,
}

/// A message that came back by `basic.return`.
#[derive(Clone, Debug)]
pub struct Returned {
    /// 312, no route.
    pub code: u16,
    /// Reply text.
    pub text: String,
    /// Exchange it was published to.
    pub exchange: String,
    /// Routing key.
    pub routing_key: String,
    /// Properties, verbatim.
    pub properties: Properties,
    /// Body.
    pub body: Vec<u8>,
}

/// What the broker sent on a channel.
#[derive(Clone, Debug)]
pub enum Event {
    /// A delivery or the answer to a `basic.get`.
    Delivery(Delivery),
    /// A message nobody could route.
    Returned(Returned),
    /// `basic.ack` (`nack` false) or `basic.nack` from the broker: a confirm.
    Confirm {
        /// Publish sequence number.
        tag: u64,
        /// Everything up to it.
        multiple: bool,
        /// Refused instead of confirmed.
        nack: bool,
    },
    /// `basic.cancel` from the broker.
    Cancelled(String),
    /// The channel, connection or socket is gone.
    Closed(Closed),
    /// Any other method.
    Method(Method, Vec<u8>),
}

/// How to log in.
#[derive(Clone, Debug)]
pub struct Login {
    /// Mechanism.
    pub mechanism: String,
    /// The mechanism's response.
    pub response: Vec<u8>,
    /// What to answer to a challenge; `None` expects none.
    pub challenge_response: Option<Vec<u8>>,
    /// Virtual host.
    pub vhost: String,
    /// `frame_max` to answer; `None` takes the broker's.
    pub frame_max: Option<u32>,
    /// `channel_max` to answer; `None` takes the broker's.
    pub channel_max: Option<u16>,
    /// Heartbeat seconds to answer. 0 by default: a test decides itself when it sends one.
    pub heartbeat: u16,
    /// The client's capabilities.
    pub capabilities: Vec<(&'static str, bool)>,
    /// What the client calls its connection; "" says nothing.
    pub connection_name: &'static str,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            mechanism: "PLAIN".into(),
            response: b"\0guest\0guest".to_vec(),
            challenge_response: None,
            vhost: "/".into(),
            frame_max: None,
            channel_max: None,
            heartbeat: 0,
            capabilities: vec![
                ("publisher_confirms", true),
                ("consumer_cancel_notify", true),
                ("basic.nack", true),
                ("connection.blocked", true),
                ("authentication_failure_close", true),
            ],
            connection_name: "",
        }
    }
}

/// Why a connection did not come about.
pub type Refused = Closed;

struct Partial {
    method: Method,
    args: Vec<u8>,
    header: Option<(Properties, u64)>,
    body: Vec<u8>,
}

/// One connection.
pub struct Client {
    /// The socket, for tests that write bytes of their own.
    pub stream: TcpStream,
    /// `frame_max` in force.
    pub frame_max: u32,
    /// `channel_max` in force.
    pub channel_max: u16,
    /// What the broker proposed in tune: channel_max, frame_max, heartbeat.
    pub proposed: (u16, u32, u16),
    /// The broker's properties from `connection.start`.
    pub server: Vec<(String, Value)>,
    /// Mechanisms it offers, separated by spaces.
    pub mechanisms: String,
    /// Frames seen, heartbeats included, by type. A test may count them.
    pub frames_seen: HashMap<u8, usize>,
    inbox: Vec<u8>,
    taken: usize,
    backlog: HashMap<u16, VecDeque<Event>>,
    partial: HashMap<u16, Partial>,
    closed: Option<Closed>,
    next_channel: u16,
}

/// Writes a whole frame.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 8);
    out.push(kind);
    out.extend(channel.to_be_bytes());
    out.extend(u32::try_from(payload.len()).expect("a test's frame is small").to_be_bytes());
    out.extend(payload);
    out.push(FRAME_END);
    out
}

/// Writes a method frame.
pub fn method_frame(channel: u16, method: Method, args: &Args) -> Vec<u8> {
    let payload = Args::new().short(method.0).short(method.1);
    frame(FRAME_METHOD, channel, &[payload.0.as_slice(), args.0.as_slice()].concat())
}

/// A socket that takes little unread.
pub fn connect_with_a_small_buffer(addr: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_recv_buffer_size(&socket, 4096).expect("it is set");
    connect(&socket, &addr).expect("the broker listens");
    socket.into()
}

impl Client {
    /// Connects and logs in as guest. Panics when the broker does not let it in.
    pub fn connect(addr: SocketAddr) -> Client {
        Self::login(addr, &Login::default()).unwrap_or_else(|refused| panic!("no connection to {addr}: {refused:?}"))
    }

    /// Opens the socket and does nothing else.
    pub fn socket(addr: SocketAddr) -> std::io::Result<Client> {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
        stream.set_nodelay(true)?;
        Ok(Self::of(stream))
    }

    /// Logs in as guest on a socket that is connected. Panics when the broker does not let it in.
    pub fn on(stream: TcpStream) -> Client {
        let (mut client, login) = (Client::of(stream), Login::default());
        client.raw(b"AMQP\x00\x00\x09\x01");
        client.start(&login).and_then(|()| client.open(&login)).unwrap_or_else(|refused| panic!("{refused:?}"));
        client
    }

    /// On a socket that is connected.
    pub fn of(stream: TcpStream) -> Client {
        Client {
            stream,
            frame_max: 4096,
            channel_max: 0,
            proposed: (0, 0, 0),
            server: Vec::new(),
            mechanisms: String::new(),
            frames_seen: HashMap::new(),
            inbox: Vec::new(),
            taken: 0,
            backlog: HashMap::new(),
            partial: HashMap::new(),
            closed: None,
            next_channel: 1,
        }
    }

    /// Connects with a login of the test's own.
    pub fn login(addr: SocketAddr, login: &Login) -> Result<Client, Refused> {
        let mut client = Self::socket(addr).map_err(|why| Closed {
            scope: Scope::Socket,
            code: 0,
            text: why.to_string(),
            method: Method(0, 0),
        })?;
        client.raw(b"AMQP\x00\x00\x09\x01");
        client.start(login)?;
        client.open(login)?;
        Ok(client)
    }

    /// From `connection.start` to the `connection.tune` that answers the login.
    pub fn start(&mut self, login: &Login) -> Result<(), Refused> {
        let start = self.wait(0, CONNECTION_START)?;
        let mut reader = Reader(&start);
        assert_eq!((reader.octet(), reader.octet()), (0, 9), "the protocol version in connection.start");
        self.server = reader.table();
        self.mechanisms = String::from_utf8_lossy(reader.longstr()).into_owned();
        let capabilities = login.capabilities.iter().map(|(k, v)| ((*k).to_owned(), Value::Bool(*v))).collect();
        let name = (!login.connection_name.is_empty()).then(|| ("connection_name", login.connection_name.into()));
        let own = [("product", "leveret tests".into()), ("capabilities", Value::Table(capabilities))];
        let properties: Vec<_> = own.into_iter().chain(name).collect();
        let args = Args::new().table(&properties).shortstr(&login.mechanism).longstr(&login.response).shortstr("en_US");
        self.send(0, CONNECTION_START_OK, &args);
        if let Some(answer) = &login.challenge_response {
            self.wait(0, CONNECTION_SECURE)?;
            self.send(0, CONNECTION_SECURE_OK, &Args::new().longstr(answer));
        }
        let tune = self.wait(0, CONNECTION_TUNE)?;
        let mut reader = Reader(&tune);
        self.proposed = (reader.short(), reader.long(), reader.short());
        Ok(())
    }

    /// Answers the tune and opens the vhost.
    pub fn open(&mut self, login: &Login) -> Result<(), Refused> {
        self.channel_max = login.channel_max.unwrap_or(self.proposed.0);
        self.frame_max = login.frame_max.unwrap_or(self.proposed.1);
        self.send(
            0,
            CONNECTION_TUNE_OK,
            &Args::new().short(self.channel_max).long(self.frame_max).short(login.heartbeat),
        );
        self.send(0, CONNECTION_OPEN, &Args::new().shortstr(&login.vhost).shortstr("").octet(0));
        self.wait(0, CONNECTION_OPEN_OK).map(|_| ())
    }

    /// Opens the next channel.
    pub fn channel(&mut self) -> u16 {
        let channel = self.next_channel;
        self.next_channel += 1;
        self.open_channel(channel).unwrap_or_else(|closed| panic!("channel.open {channel}: {closed:?}"));
        channel
    }

    /// Opens channel `channel`.
    pub fn open_channel(&mut self, channel: u16) -> Result<(), Closed> {
        self.call(channel, CHANNEL_OPEN, &Args::new().shortstr(""), CHANNEL_OPEN_OK).map(|_| ())
    }

    /// Closes a channel and waits for the answer.
    pub fn close_channel(&mut self, channel: u16) {
        let args = Args::new().short(200).shortstr("done").short(0).short(0);
        self.call(channel, CHANNEL_CLOSE, &args, CHANNEL_CLOSE_OK).expect("channel.close is answered");
    }

    /// Closes the connection in good order.
    pub fn close(mut self) {
        let args = Args::new().short(200).shortstr("done").short(0).short(0);
        self.call(0, CONNECTION_CLOSE, &args, CONNECTION_CLOSE_OK).expect("connection.close is answered");
    }

    /// Sends `connection.close` and waits for nothing.
    pub fn start_close(&mut self) {
        let args = Args::new().short(200).shortstr("done").short(0).short(0);
        self.send(0, CONNECTION_CLOSE, &args);
    }

    /// Writes bytes as they are. Errors are left for the reader to find, as the close that caused
    /// them is more telling.
    pub fn raw(&mut self, bytes: &[u8]) {
        if let Err(why) = self.stream.write_all(bytes) {
            assert!(
                matches!(why.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted),
                "writing to the broker: {why}"
            );
        }
    }

    /// Sends a method.
    pub fn send(&mut self, channel: u16, method: Method, args: &Args) {
        let bytes = method_frame(channel, method, args);
        self.raw(&bytes);
    }

    /// Sends a method and waits for its reply; `Err` when the channel or connection is closed
    /// instead.
    pub fn call(&mut self, channel: u16, method: Method, args: &Args, reply: Method) -> Result<Vec<u8>, Closed> {
        self.send(channel, method, args);
        self.wait(channel, reply)
    }

    /// Waits for method `reply`; other events stay in the backlog in their order.
    pub fn wait(&mut self, channel: u16, reply: Method) -> Result<Vec<u8>, Closed> {
        let due = Instant::now() + PATIENCE;
        let mut looked_at = 0;
        loop {
            let backlog = self.backlog.entry(channel).or_default();
            while looked_at < backlog.len() {
                match &backlog[looked_at] {
                    Event::Method(method, _) if *method == reply => match backlog.remove(looked_at) {
                        Some(Event::Method(_, args)) => return Ok(args),
                        other => unreachable!("just seen to be a method: {other:?}"),
                    },
                    Event::Closed(closed) => {
                        let closed = closed.clone();
                        backlog.remove(looked_at);
                        return Err(closed);
                    }
                    _ => looked_at += 1,
                }
            }
            if let Some(closed) = &self.closed {
                return Err(closed.clone());
            }
            let left = due.saturating_duration_since(Instant::now());
            assert!(self.read_frame(left), "no {reply:?} on channel {channel} within {PATIENCE:?}");
        }
    }

    /// The next event of a channel. Panics when none comes.
    pub fn event(&mut self, channel: u16) -> Event {
        self.event_within(channel, PATIENCE)
            .unwrap_or_else(|| panic!("nothing came on channel {channel} within {PATIENCE:?}"))
    }

    /// The next event of a channel, if one comes within `patience`.
    pub fn event_within(&mut self, channel: u16, patience: Duration) -> Option<Event> {
        let due = Instant::now() + patience;
        loop {
            if let Some(event) = self.backlog.get_mut(&channel).and_then(VecDeque::pop_front) {
                return Some(event);
            }
            if let Some(closed) = &self.closed {
                return Some(Event::Closed(closed.clone()));
            }
            if !self.read_frame(due.saturating_duration_since(Instant::now())) {
                return None;
            }
        }
    }

    /// Asserts that nothing comes on a channel for a while.
    pub fn silent(&mut self, channel: u16) {
        if let Some(event) = self.event_within(channel, SILENCE) {
            panic!("nothing should come on channel {channel}, but {event:?} did");
        }
    }

    /// The next delivery of a channel. Panics when something else comes.
    pub fn delivery(&mut self, channel: u16) -> Delivery {
        match self.event(channel) {
            Event::Delivery(delivery) => delivery,
            other => panic!("a delivery was due on channel {channel}, got {other:?}"),
        }
    }

    /// Waits until the channel, connection or socket is closed; deliveries and confirms on the way
    /// are dropped.
    pub fn closed(&mut self, channel: u16) -> Closed {
        loop {
            if let Event::Closed(closed) = self.event(channel) {
                return closed;
            }
        }
    }

    /// Waits until the broker closes the socket; true when it did so in time.
    pub fn ends_within(&mut self, patience: Duration) -> bool {
        let due = Instant::now() + patience;
        while self.closed.as_ref().is_none_or(|closed| closed.scope != Scope::Socket) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.closed = None;
            self.read_frame(left);
        }
        true
    }

    /// Reads one frame and files it; false when none came in time.
    fn read_frame(&mut self, patience: Duration) -> bool {
        let due = Instant::now() + patience;
        loop {
            let unread = self.inbox.len() - self.taken;
            let have = &self.inbox[self.taken..];
            if unread >= 7 {
                let length = u32::from_be_bytes([have[3], have[4], have[5], have[6]]) as usize;
                if have.starts_with(b"AMQP") {
                    let header = have[..8.min(unread)].to_vec();
                    self.taken += header.len();
                    self.file(0, Event::Method(Method(0, 0), header));
                    return true;
                }
                if unread >= length + 8 {
                    let kind = have[0];
                    let channel = u16::from_be_bytes([have[1], have[2]]);
                    assert_eq!(have[7 + length], FRAME_END, "the broker ends its frames with 0xCE");
                    let payload = have[7..7 + length].to_vec();
                    self.taken += length + 8;
                    *self.frames_seen.entry(kind).or_default() += 1;
                    self.handle(kind, channel, &payload);
                    return true;
                }
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.fill(left) {
                return self.closed.is_some();
            }
        }
    }

    fn fill(&mut self, patience: Duration) -> bool {
        self.inbox.drain(..self.taken);
        self.taken = 0;
        self.stream.set_read_timeout(Some(patience.max(Duration::from_millis(1)))).expect("a timeout above zero");
        let start = self.inbox.len();
        self.inbox.resize(start + 65_536, 0);
        let read = self.stream.read(&mut self.inbox[start..]);
        self.inbox.truncate(start + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => self.lost("end of stream"),
            Ok(_) => return true,
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return false,
            Err(why) if why.kind() == ErrorKind::Interrupted => return true,
            Err(why) => self.lost(&why.to_string()),
        }
        false
    }

    fn lost(&mut self, why: &str) {
        let closed = Closed { scope: Scope::Socket, code: 0, text: why.into(), method: Method(0, 0) };
        self.closed.get_or_insert(closed);
    }

    fn file(&mut self, channel: u16, event: Event) {
        self.backlog.entry(channel).or_default().push_back(event);
    }

    fn handle(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        match kind {
            FRAME_METHOD => {
                let mut reader = Reader(payload);
                let method = Method(reader.short(), reader.short());
                self.handle_method(channel, method, reader.0);
            }
            FRAME_HEADER => {
                let partial = self.partial.get_mut(&channel).expect("a content header follows a method with content");
                let mut reader = Reader(payload);
                assert_eq!(reader.short(), partial.method.0, "the class of a content header");
                reader.short();
                let body_bytes = reader.longlong();
                let flags = reader.short();
                partial.header = Some((Properties { flags, bytes: reader.0.to_vec() }, body_bytes));
                self.finish_content(channel);
            }
            FRAME_BODY => {
                let limit = self.frame_max as usize;
                assert!(limit == 0 || payload.len() + 8 <= limit, "a body frame of {} over frame_max", payload.len());
                let partial = self.partial.get_mut(&channel).expect("a body follows its header");
                partial.body.extend_from_slice(payload);
                self.finish_content(channel);
            }
            FRAME_HEARTBEAT => assert_eq!((channel, payload.len()), (0, 0), "a heartbeat is empty and on channel 0"),
            other => panic!("the broker sent a frame of type {other}"),
        }
    }

    fn handle_method(&mut self, channel: u16, method: Method, args: &[u8]) {
        let mut reader = Reader(args);
        match method {
            CONNECTION_CLOSE | CHANNEL_CLOSE => {
                let scope = if method == CHANNEL_CLOSE { Scope::Channel } else { Scope::Connection };
                let closed = Closed {
                    scope,
                    code: reader.short(),
                    text: reader.shortstr(),
                    method: Method(reader.short(), reader.short()),
                };
                if scope == Scope::Channel {
                    self.send(channel, CHANNEL_CLOSE_OK, &Args::new());
                    self.partial.remove(&channel);
                    self.file(channel, Event::Closed(closed));
                } else {
                    assert_eq!(channel, 0, "connection.close comes on channel 0");
                    self.send(0, CONNECTION_CLOSE_OK, &Args::new());
                    self.closed.get_or_insert(closed);
                }
            }
            BASIC_ACK | BASIC_NACK => {
                let tag = reader.longlong();
                let multiple = reader.octet() & 1 == 1;
                self.file(channel, Event::Confirm { tag, multiple, nack: method == BASIC_NACK });
            }
            BASIC_CANCEL => {
                let tag = reader.shortstr();
                self.file(channel, Event::Cancelled(tag));
            }
            BASIC_DELIVER | BASIC_RETURN | BASIC_GET_OK => {
                let partial = Partial { method, args: args.to_vec(), header: None, body: Vec::new() };
                assert!(self.partial.insert(channel, partial).is_none(), "a method cuts into a content on {channel}");
            }
            other => self.file(channel, Event::Method(other, args.to_vec())),
        }
    }

    fn finish_content(&mut self, channel: u16) {
        let whole = self.partial.get(&channel).is_some_and(|partial| {
            partial.header.as_ref().is_some_and(|(_, bytes)| *bytes == partial.body.len() as u64)
        });
        if !whole {
            return;
        }
        let Some(Partial { method, args, header: Some((properties, _)), body }) = self.partial.remove(&channel) else {
            unreachable!("seen to be whole just above");
        };
        let mut reader = Reader(&args);
        let event = match method {
            BASIC_RETURN => Event::Returned(Returned {
                code: reader.short(),
                text: reader.shortstr(),
                exchange: reader.shortstr(),
                routing_key: reader.shortstr(),
                properties,
                body,
            }),
            _ => {
                let consumer_tag = if method == BASIC_DELIVER { reader.shortstr() } else { String::new() };
                Event::Delivery(Delivery {
                    consumer_tag,
                    tag: reader.longlong(),
                    redelivered: reader.octet() & 1 == 1,
                    exchange: reader.shortstr(),
                    routing_key: reader.shortstr(),
                    message_count: (method == BASIC_GET_OK).then(|| reader.long()),
                    properties,
                    body,
                })
            }
        };
        self.file(channel, event);
    }
}

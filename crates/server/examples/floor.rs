//! The least that any broker could cost on this machine: it answers each publish and hands it on,
//! and does nothing else.
//!
//! `cargo run --release -p server --example floor -- PORT [LOG]` serves PerfTest with one thread:
//! `epoll_wait`, one `recv` a readable socket, one `send` a socket with output. There is no user,
//! no queue, no limit and no acknowledgement; a body goes on as it came. With LOG each round's
//! publishes are copied to the file of that name and synced before they are answered, as a log of
//! full pages would be: one write past the page cache, one `fdatasync`. What a load costs here is
//! what its system calls cost; a broker comes on top of it. docs/performance.md holds what was
//! measured.
//!
//! Three processes are the floor of three nodes: two that are followers,
//! `floor -- PORT LOG --follow`, and one that serves, `floor -- PORT LOG FOLLOWER FOLLOWER`. It
//! passes each round's publishes to both, syncs its own copy meanwhile, and answers once one of
//! them has synced too: with its own that is a majority. A follower writes and syncs what it was
//! sent, answers with how many bytes that were, and does nothing else.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;

use rustix::event::{Timespec, epoll};
use rustix::fs::{Mode, OFlags, fdatasync, open};

const LISTENER: u64 = u64::MAX;
/// The first of the followers' tokens.
const FOLLOWERS: u64 = 1 << 32;
const LOG_BYTES: u64 = 64 << 20;
/// Above the largest frame, 128 KiB, and what one read takes beside a part of one.
const ROOM_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;
/// How soon a client that was full is tried again.
const FULL_NS: i64 = 200_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port: u16 = arguments.first().map_or(5690, |a| a.parse().unwrap());
    let mut log = arguments.get(1).map(|path| Log::create(path));
    let others = &arguments[2.min(arguments.len())..];
    if others == ["--follow"] {
        follow(port, log.unwrap());
        return;
    }
    let mut followers = Followers::connect(others.iter().map(|port| port.parse().unwrap()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).unwrap();
    followers.watch(&poll);
    println!("answers on port {port}{}", if log.is_some() { ", each round synced" } else { "" });

    let mut room = vec![0; ROOM_BYTES];
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut routes = Routes::default();
    let mut events = Vec::with_capacity(256);
    let mut touched: Vec<usize> = Vec::new();
    // Clients that did not take all that is theirs.
    let mut full: Vec<usize> = Vec::new();
    loop {
        events.clear();
        let soon = (!full.is_empty()).then_some(Timespec { tv_sec: 0, tv_nsec: FULL_NS });
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), soon.as_ref()).unwrap();
        for event in &events {
            let token = event.data.u64();
            if token == LISTENER {
                while let Ok((socket, _)) = listener.accept() {
                    socket.set_nonblocking(true).unwrap();
                    socket.set_nodelay(true).unwrap();
                    let id = connections.len();
                    epoll::add(&poll, &socket, epoll::EventData::new_u64(id as u64), epoll::EventFlags::IN).unwrap();
                    connections.push(Some(Connection::new(socket)));
                }
                continue;
            }
            if token >= FOLLOWERS {
                followers.read(usize::try_from(token - FOLLOWERS).unwrap());
                continue;
            }
            let id = usize::try_from(token).unwrap();
            // Taken out while it is read: what it publishes goes to the output of others.
            let Some(mut connection) = connections[id].take() else { continue };
            if connection.read(id, &mut room, &mut connections, &mut routes, log.as_mut(), &mut touched) {
                touched.push(id);
                connections[id] = Some(connection);
            }
        }
        if let Some(log) = &mut log {
            followers.send(&log.pending);
            log.sync();
        }
        for id in touched.drain(..) {
            if let Some(connection) = &mut connections[id] {
                followers.hold(id, connection);
                full.push(id);
            }
        }
        while let Some((id, output)) = followers.released() {
            if let Some(connection) = &mut connections[id] {
                connection.sending.extend_from_slice(&output);
                full.push(id);
            }
        }
        full.sort_unstable();
        full.dedup();
        full.retain(|id| connections[*id].as_mut().is_some_and(|connection| !connection.write()));
    }
}

/// The other two, and what waits for one of them.
struct Followers {
    sockets: Vec<TcpStream>,
    /// Half an answer of each.
    answers: Vec<Vec<u8>>,
    /// Bytes that each has synced, of those that were sent.
    synced: Vec<u64>,
    sent: u64,
    /// Output of a connection, and how many bytes a follower must have synced before it may go.
    held: VecDeque<(u64, usize, Vec<u8>)>,
}

impl Followers {
    fn connect(ports: impl Iterator<Item = u16>) -> Self {
        let connect = |port| {
            let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            socket.set_nodelay(true).unwrap();
            socket
        };
        let sockets: Vec<TcpStream> = ports.map(connect).collect();
        let (answers, synced) = (vec![Vec::new(); sockets.len()], vec![0; sockets.len()]);
        Self { sockets, answers, synced, sent: 0, held: VecDeque::new() }
    }

    fn watch(&self, poll: &impl std::os::fd::AsFd) {
        for (at, socket) in self.sockets.iter().enumerate() {
            let token = epoll::EventData::new_u64(FOLLOWERS + at as u64);
            epoll::add(poll, socket, token, epoll::EventFlags::IN).unwrap();
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.sockets.iter_mut().for_each(|socket| socket.write_all(bytes).unwrap());
        self.sent += bytes.len() as u64;
    }

    /// An answer is the number of bytes that are synced.
    fn read(&mut self, at: usize) {
        let mut room = [0; 4096];
        let read = self.sockets[at].read(&mut room).unwrap();
        assert!(read > 0, "a follower is gone");
        let answer = &mut self.answers[at];
        answer.extend_from_slice(&room[..read]);
        let whole = answer.len() / 8 * 8;
        if let Some(last) = answer[..whole].chunks_exact(8).next_back() {
            self.synced[at] = u64::from_be_bytes(last.try_into().unwrap());
        }
        answer.drain(..whole);
    }

    /// Keeps what a connection would send until a majority has synced what it tells of.
    fn hold(&mut self, id: usize, connection: &mut Connection) {
        if self.sockets.is_empty() {
            connection.sending.append(&mut connection.output);
        } else if !connection.output.is_empty() {
            self.held.push_back((self.sent, id, std::mem::take(&mut connection.output)));
        }
    }

    fn released(&mut self) -> Option<(usize, Vec<u8>)> {
        let synced = self.synced.iter().copied().max()?;
        self.held.front().filter(|(at, ..)| *at <= synced)?;
        self.held.pop_front().map(|(_, id, output)| (id, output))
    }
}

/// Writes and syncs what one leader sends, as it comes.
fn follow(port: u16, mut log: Log) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    println!("follows on port {port}");
    let (mut leader, _) = listener.accept().unwrap();
    leader.set_nodelay(true).unwrap();
    let (mut room, mut synced) = (vec![0; 1 << 20], 0_u64);
    loop {
        let read = leader.read(&mut room).unwrap();
        if read == 0 {
            return;
        }
        log.pending.extend_from_slice(&room[..read]);
        log.sync();
        synced += read as u64;
        leader.write_all(&synced.to_be_bytes()).unwrap();
    }
}

/// Which connection, channel and tag consumes what is published with a routing key.
#[derive(Default)]
struct Routes {
    /// Routing key to queue, from bindings.
    queues: HashMap<Vec<u8>, Vec<u8>>,
    consumers: HashMap<Vec<u8>, (usize, [u8; 2], Vec<u8>)>,
}

struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    /// What this round made for it.
    output: Vec<u8>,
    /// What may go, ahead of all that is held.
    sending: Vec<u8>,
    greeted: bool,
    /// Publishes so far and those that were confirmed, for the one publishing channel.
    published: u64,
    confirmed: u64,
    delivered: u64,
    channel: [u8; 2],
    /// Where the content of the publish under way goes.
    target: Option<(usize, [u8; 2])>,
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            sending: Vec::new(),
            greeted: false,
            published: 0,
            confirmed: 0,
            delivered: 0,
            channel: [0; 2],
            target: None,
        }
    }

    /// Reads what is there, once, and answers into the outputs; false when the socket has ended.
    fn read(
        &mut self,
        id: usize,
        room: &mut [u8],
        others: &mut [Option<Self>],
        routes: &mut Routes,
        mut log: Option<&mut Log>,
        touched: &mut Vec<usize>,
    ) -> bool {
        // Behind what is left of the last read, so that a frame stands in one piece.
        let left = self.input.len();
        room[..left].copy_from_slice(&self.input);
        self.input.clear();
        let read = match self.socket.read(&mut room[left..]) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return false,
        };
        let input = &room[..left + read];
        let mut at = 0;
        if !self.greeted && input.len() >= 8 {
            self.greeted = true;
            at = 8;
            let mut start = vec![0, 9, 0, 0, 0, 0];
            long_string(&mut start, b"PLAIN");
            long_string(&mut start, b"en_US");
            self.method([0; 2], 10, 10, &start);
        }
        while let Some(frame) = frame(&input[at..]) {
            // A publish goes on as a whole, or another publisher's would come between its frames.
            if frame[0] == 1 && frame[7..11] == [0, 60, 0, 40] && !is_whole(&input[at + frame.len()..]) {
                break;
            }
            at += frame.len();
            let payload = &frame[7..frame.len() - 1];
            let channel = [frame[1], frame[2]];
            match frame[0] {
                1 => self.on_method(id, channel, payload, others, routes, touched),
                2 | 3 => {
                    if let Some((to, as_channel)) = self.target {
                        let to = if to == id { &mut *self } else { others[to].as_mut().unwrap() };
                        let start = to.output.len();
                        to.output.extend_from_slice(frame);
                        to.output[start + 1..start + 3].copy_from_slice(&as_channel);
                    }
                    if let Some(log) = &mut log {
                        log.pending.extend_from_slice(frame);
                    }
                }
                _ => {}
            }
        }
        self.input.extend_from_slice(&input[at..]);
        if self.published > self.confirmed {
            self.confirmed = self.published;
            let mut ack = self.published.to_be_bytes().to_vec();
            ack.push(1);
            self.method(self.channel, 60, 80, &ack);
        }
        true
    }

    fn on_method(
        &mut self,
        id: usize,
        channel: [u8; 2],
        payload: &[u8],
        others: &mut [Option<Self>],
        routes: &mut Routes,
        touched: &mut Vec<usize>,
    ) {
        let class = u16::from_be_bytes([payload[0], payload[1]]);
        let method = u16::from_be_bytes([payload[2], payload[3]]);
        let arguments = &payload[4..];
        match (class, method) {
            (10, 11) => self.method(channel, 10, 30, &[0x07, 0xff, 0, 2, 0, 0, 0, 0]),
            (10, 40) => self.method(channel, 10, 41, &[0]),
            (10, 50) => self.method(channel, 10, 51, &[]),
            (20, 10) => self.method(channel, 20, 11, &[0; 4]),
            (20, 40) | (40, 10) | (60, 10) | (85, 10) => self.method(channel, class, method + 1, &[]),
            (50, 10) => {
                let mut ok = short_string(&arguments[2..]).to_vec();
                ok.insert(0, u8::try_from(ok.len()).unwrap());
                ok.extend_from_slice(&[0; 8]);
                self.method(channel, 50, 11, &ok);
            }
            (50, 20) => {
                let queue = short_string(&arguments[2..]);
                let exchange = short_string(&arguments[3 + queue.len()..]);
                let key = short_string(&arguments[4 + queue.len() + exchange.len()..]);
                routes.queues.insert(key.to_vec(), queue.to_vec());
                self.method(channel, 50, 21, &[]);
            }
            (60, 20) => {
                let queue = short_string(&arguments[2..]);
                let mut tag = short_string(&arguments[3 + queue.len()..]).to_vec();
                if tag.is_empty() {
                    tag = format!("consumer-{id}").into_bytes();
                }
                tag.insert(0, u8::try_from(tag.len()).unwrap());
                self.method(channel, 60, 21, &tag);
                routes.consumers.insert(queue.to_vec(), (id, channel, tag));
            }
            (60, 40) => {
                let exchange = short_string(&arguments[2..]);
                let key = short_string(&arguments[3 + exchange.len()..]);
                self.published += 1;
                self.channel = channel;
                let queue = routes.queues.get(key).map_or(key, Vec::as_slice);
                self.target = None;
                if let Some((to, as_channel, tag)) = routes.consumers.get(queue) {
                    let target = if *to == id { &mut *self } else { others[*to].as_mut().unwrap() };
                    target.deliver(*as_channel, tag, exchange, key);
                    touched.push(*to);
                    self.target = Some((*to, *as_channel));
                }
            }
            _ => {}
        }
    }

    fn deliver(&mut self, channel: [u8; 2], tag: &[u8], exchange: &[u8], key: &[u8]) {
        self.delivered += 1;
        let size = 4 + tag.len() + 9 + 2 + exchange.len() + key.len();
        let output = &mut self.output;
        output.push(1);
        output.extend_from_slice(&channel);
        output.extend_from_slice(&u32::try_from(size).unwrap().to_be_bytes());
        output.extend_from_slice(&[0, 60, 0, 60]);
        output.extend_from_slice(tag);
        output.extend_from_slice(&self.delivered.to_be_bytes());
        output.push(0);
        output.push(u8::try_from(exchange.len()).unwrap());
        output.extend_from_slice(exchange);
        output.push(u8::try_from(key.len()).unwrap());
        output.extend_from_slice(key);
        output.push(0xce);
    }

    fn method(&mut self, channel: [u8; 2], class: u16, method: u16, arguments: &[u8]) {
        self.output.push(1);
        self.output.extend_from_slice(&channel);
        self.output.extend_from_slice(&u32::try_from(4 + arguments.len()).unwrap().to_be_bytes());
        self.output.extend_from_slice(&class.to_be_bytes());
        self.output.extend_from_slice(&method.to_be_bytes());
        self.output.extend_from_slice(arguments);
        self.output.push(0xce);
    }

    /// Sends what may go; false where the client did not take all of it, which is tried again soon.
    fn write(&mut self) -> bool {
        if let (false, Ok(sent)) = (self.sending.is_empty(), self.socket.write(&self.sending)) {
            self.sending.drain(..sent);
        }
        self.sending.is_empty()
    }
}

/// A file of pages full of zeroes, written round and round.
struct Log {
    file: File,
    at: u64,
    pending: Vec<u8>,
    pages: Vec<u8>,
}

impl Log {
    fn create(path: &str) -> Self {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mut file: File = open(path, flags, Mode::RUSR | Mode::WUSR).unwrap().into();
        for _ in 0..LOG_BYTES >> 20 {
            file.write_all(&vec![0; 1 << 20]).unwrap();
        }
        file.sync_all().unwrap();
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT, Mode::empty()).unwrap().into();
        Self { file, at: 0, pending: Vec::new(), pages: vec![0; (4 << 20) + PAGE_BYTES] }
    }

    fn sync(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let start = self.pages.as_ptr().align_offset(PAGE_BYTES);
        let length = self.pending.len().next_multiple_of(PAGE_BYTES);
        self.pages[start..start + self.pending.len()].copy_from_slice(&self.pending);
        self.pending.clear();
        if self.at + length as u64 > LOG_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(&self.pages[start..start + length], self.at).unwrap();
        self.at += length as u64;
        fdatasync(&self.file).unwrap();
    }
}

/// The first frame of these bytes, whole, if it is all there.
fn frame(bytes: &[u8]) -> Option<&[u8]> {
    let size = u32::from_be_bytes(bytes.get(3..7)?.try_into().unwrap()) as usize;
    bytes.get(..size + 8)
}

/// Whether a content, header and body, is all there.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(header) = frame(bytes) else { return false };
    let (mut at, mut left) = (header.len(), u64::from_be_bytes(header[11..19].try_into().unwrap()));
    while left > 0 {
        let Some(body) = frame(&bytes[at..]) else { return false };
        at += body.len();
        left -= body.len() as u64 - 8;
    }
    true
}

fn short_string(bytes: &[u8]) -> &[u8] {
    &bytes[1..=usize::from(bytes[0])]
}

fn long_string(output: &mut Vec<u8>, string: &[u8]) {
    output.extend_from_slice(&u32::try_from(string.len()).unwrap().to_be_bytes());
    output.extend_from_slice(string);
}

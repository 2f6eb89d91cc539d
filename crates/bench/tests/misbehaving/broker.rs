//! A broker of one queue that can be told to misbehave: what the load generator must notice.
//!
//! Invariant: except for its one mischief it delivers every message once, in order, and confirms
//! it; and what a consumer has not acked when it closes its connection is in the queue again.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use amqp::Table;
use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, FRAME_HEADER_BYTES, FRAME_METHOD, FrameHeader, write_frame};
use amqp::wire::method::Method;
use bytes::Bytes;

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mischief {
    /// Nothing.
    None,
    /// Every so many-th message is confirmed and dropped.
    Lose(u64),
    /// Every so many-th is delivered twice; flagged or not.
    Duplicate(u64, bool),
    /// Every so many-th is delivered after the next one.
    Swap(u64),
    /// Every so many-th has a bit flipped.
    Corrupt(u64),
    /// Every so many-th is refused with basic.nack.
    Nack(u64),
    /// At this message everything stands still for so long.
    Stall(u64, Duration),
    /// Everything is confirmed at once, and delivered with such a pause before each.
    Slow(Duration),
    /// At this message the publisher is told connection.blocked, for so long.
    Block(u64, Duration),
    /// Every connection is told connection.blocked as soon as it is open, for so long.
    BlockAtOnce(Duration),
    /// At this message the publisher's connection is cut.
    Cut(u64),
    /// The first publish closes its channel.
    CloseChannel,
}

struct Consumer {
    stream: TcpStream,
    channel: u16,
    tag: Bytes,
    delivery_tag: u64,
    no_ack: bool,
    unacked: BTreeSet<u64>,
}

impl Consumer {
    fn is_at(&self, stream: &TcpStream) -> bool {
        self.stream.peer_addr().is_ok_and(|own| stream.peer_addr().is_ok_and(|other| own == other))
    }

    fn acked(&mut self, tag: u64, multiple: bool) {
        match multiple {
            true => self.unacked = self.unacked.split_off(&(tag + 1)),
            false => _ = self.unacked.remove(&tag),
        }
    }
}

struct State {
    mischief: Mischief,
    count: u64,
    backlog: Vec<(Vec<u8>, bool)>,
    held: Option<Vec<u8>>,
    consumer: Option<Consumer>,
    /// What a consumer that has closed its connection had not acked. It is counted, and delivered to
    /// nobody else.
    given_back: u32,
}

/// Starts it; returns its port. It lives as long as the test.
pub(crate) fn start(mischief: Mischief) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let state = State { mischief, count: 0, backlog: Vec::new(), held: None, consumer: None, given_back: 0 };
    let state = Arc::new(Mutex::new(state));
    if let Mischief::Slow(pause) = mischief {
        let state = Arc::clone(&state);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(pause);
                let mut state = state.lock().expect("nobody panics");
                if state.consumer.is_some() && !state.backlog.is_empty() {
                    let (body, flagged) = state.backlog.remove(0);
                    deliver(&mut state, body, flagged);
                }
            }
        });
    }
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            std::thread::spawn(move || serve(stream, &state));
        }
    });
    port
}

/// Half a message of a channel: its size once the header came, and its body so far.
type Half = (Option<usize>, Vec<u8>);

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut input = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    let mut halves: HashMap<u16, Half> = HashMap::new();
    let mut published: HashMap<u16, u64> = HashMap::new();
    stream.read_exact(&mut chunk[..8]).ok()?;
    let start = Method::ConnectionStart {
        version_major: 0,
        version_minor: 9,
        server_properties: Table::new(),
        mechanisms: Bytes::from_static(b"PLAIN"),
        locales: Bytes::from_static(b"en_US"),
    };
    send(&mut stream, 0, &start)?;
    loop {
        let count = stream.read(&mut chunk).ok().filter(|count| *count > 0)?;
        input.extend_from_slice(&chunk[..count]);
        let mut at = 0;
        while let Some(header) = FrameHeader::read(&input[at..]).filter(|h| input.len() - at >= h.frame_bytes()) {
            let payload = input[at + FRAME_HEADER_BYTES..at + header.frame_bytes() - 1].to_vec();
            at += header.frame_bytes();
            let half = halves.entry(header.channel).or_default();
            match header.kind {
                FRAME_METHOD => {
                    let method = Method::decode(&Bytes::from(payload)).expect("a lawful method");
                    answer(&mut stream, header.channel, method, state)?;
                }
                FRAME_HEADER => half.0 = Some(u64::from_be_bytes(payload[4..12].try_into().expect("8 bytes")) as usize),
                FRAME_BODY => half.1.extend_from_slice(&payload),
                _ => {}
            }
            if half.0 == Some(half.1.len()) {
                let body = std::mem::take(half).1;
                let number = published.entry(header.channel).or_default();
                *number += 1;
                publish(&mut stream, header.channel, *number, body, state)?;
            }
        }
        input.drain(..at);
    }
}

fn send(stream: &mut TcpStream, channel: u16, method: &Method) -> Option<()> {
    let mut bytes = Vec::new();
    method.write(&mut bytes, channel);
    stream.write_all(&bytes).ok()
}

fn answer(stream: &mut TcpStream, channel: u16, method: Method, state: &Mutex<State>) -> Option<()> {
    let reply = match method {
        Method::ConnectionStartOk { .. } => Method::ConnectionTune { channel_max: 100, frame_max: 8192, heartbeat: 0 },
        Method::ConnectionOpen { .. } => {
            send(stream, 0, &Method::ConnectionOpenOk { known_hosts: Bytes::new() })?;
            if let Mischief::BlockAtOnce(length) = state.lock().expect("nobody panics").mischief {
                send(stream, 0, &blocked())?;
                let mut own = stream.try_clone().expect("a socket can be cloned");
                std::thread::spawn(move || {
                    std::thread::sleep(length);
                    send(&mut own, 0, &Method::ConnectionUnblocked {})
                });
            }
            return Some(());
        }
        Method::ChannelOpen { .. } => Method::ChannelOpenOk { channel_id: Bytes::new() },
        Method::ExchangeDeclare { .. } => Method::ExchangeDeclareOk {},
        Method::QueueDeclare { queue, .. } => {
            let state = state.lock().expect("nobody panics");
            let message_count = state.backlog.len() as u32 + state.given_back;
            Method::QueueDeclareOk { queue, message_count, consumer_count: 0 }
        }
        Method::QueueBind { .. } => Method::QueueBindOk {},
        Method::BasicQos { .. } => Method::BasicQosOk {},
        Method::ConfirmSelect { .. } => Method::ConfirmSelectOk {},
        Method::ConnectionClose { .. } => {
            let mut state = state.lock().expect("nobody panics");
            if let Some(gone) = state.consumer.take_if(|consumer| consumer.is_at(stream)) {
                state.given_back += gone.unacked.len() as u32;
            }
            Method::ConnectionCloseOk {}
        }
        Method::BasicAck { delivery_tag, multiple } => {
            if let Some(consumer) = &mut state.lock().expect("nobody panics").consumer {
                consumer.acked(delivery_tag, multiple);
            }
            return Some(());
        }
        Method::BasicConsume { consumer_tag, no_ack, .. } => {
            send(stream, channel, &Method::BasicConsumeOk { consumer_tag: consumer_tag.clone() })?;
            let mut state = state.lock().expect("nobody panics");
            let own = stream.try_clone().expect("a socket can be cloned");
            state.consumer = Some(Consumer {
                stream: own,
                channel,
                tag: consumer_tag,
                delivery_tag: 0,
                no_ack,
                unacked: BTreeSet::new(),
            });
            if let Mischief::Slow(_) = state.mischief {
                return Some(());
            }
            let backlog = std::mem::take(&mut state.backlog);
            return backlog.into_iter().try_for_each(|(body, flagged)| deliver(&mut state, body, flagged));
        }
        _ => return Some(()),
    };
    send(stream, channel, &reply)
}

/// The escape character is not to reach a terminal.
fn blocked() -> Method {
    Method::ConnectionBlocked { reason: Bytes::from_static(b"low on\x1b disk") }
}

fn publish(stream: &mut TcpStream, channel: u16, number: u64, mut body: Vec<u8>, state: &Mutex<State>) -> Option<()> {
    let mut state = state.lock().expect("nobody panics");
    state.count += 1;
    let nth = |every: u64| state.count.is_multiple_of(every);
    match state.mischief {
        Mischief::Nack(every) if nth(every) => {
            return send(stream, channel, &Method::BasicNack { delivery_tag: number, multiple: false, requeue: false });
        }
        Mischief::Lose(every) if nth(every) => {}
        Mischief::Duplicate(every, flagged) if nth(every) => {
            deliver(&mut state, body.clone(), false);
            deliver(&mut state, body, flagged);
        }
        Mischief::Swap(every) if nth(every) => state.held = Some(body),
        Mischief::Corrupt(every) if nth(every) => {
            let last = body.len() - 1;
            body[last] ^= 1;
            deliver(&mut state, body, false);
        }
        Mischief::Stall(at, length) if state.count == at => {
            std::thread::sleep(length);
            deliver(&mut state, body, false);
        }
        // The thread that delivers takes it from here.
        Mischief::Slow(_) => state.backlog.push((body, false)),
        Mischief::Block(at, length) if state.count == at => {
            send(stream, 0, &blocked())?;
            std::thread::sleep(length);
            send(stream, 0, &Method::ConnectionUnblocked {})?;
            deliver(&mut state, body, false);
        }
        Mischief::Cut(at) if state.count == at => return stream.shutdown(std::net::Shutdown::Both).ok(),
        Mischief::CloseChannel => {
            let reply_text = Bytes::from_static(b"NOT_FOUND - no such thing");
            let close = Method::ChannelClose { reply_code: 404, reply_text, class_id: 60, method_id: 40 };
            return send(stream, channel, &close);
        }
        _ => {
            deliver(&mut state, body, false);
            if let Some(held) = state.held.take() {
                deliver(&mut state, held, false);
            }
        }
    }
    send(stream, channel, &Method::BasicAck { delivery_tag: number, multiple: false })
}

/// To the consumer, or kept for it. A consumer that is gone takes nothing, which is no matter of
/// the publisher's connection.
fn deliver(state: &mut State, body: Vec<u8>, redelivered: bool) -> Option<()> {
    let Some(consumer) = &mut state.consumer else {
        state.backlog.push((body, redelivered));
        return Some(());
    };
    consumer.delivery_tag += 1;
    if !consumer.no_ack {
        consumer.unacked.insert(consumer.delivery_tag);
    }
    let mut bytes = Vec::new();
    Method::BasicDeliver {
        consumer_tag: consumer.tag.clone(),
        delivery_tag: consumer.delivery_tag,
        redelivered,
        exchange: Bytes::new(),
        routing_key: Bytes::new(),
    }
    .write(&mut bytes, consumer.channel);
    write_frame(&mut bytes, FRAME_HEADER, consumer.channel, |writer| {
        writer.short(60);
        writer.short(0);
        writer.longlong(body.len() as u64);
        writer.short(0);
    });
    // In two frames, so that bodies are put together too.
    for part in body.chunks(body.len().div_ceil(2)) {
        write_frame(&mut bytes, FRAME_BODY, consumer.channel, |writer| writer.raw(part));
    }
    let _ = consumer.stream.write_all(&bytes);
    Some(())
}

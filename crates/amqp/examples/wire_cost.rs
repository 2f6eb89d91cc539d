//! What the hot paths cost: nanoseconds and allocations per publish read, delivery written, ack
//! read, confirm sent.
//!
//! Run with `cargo run --release -p amqp --example wire_cost`. Each figure is the best of several
//! rounds on a warm cache, so it is the price of the code and not of the machine's other guests.

#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, PROTOCOL_HEADER, write_frame};
use amqp::wire::method::Method;
use amqp::{ChannelId, Confirm, Connection, ConnectionConfig, ConsumerTag, Delivery, Event, MessageParts, Table};
use bytes::{Bytes, BytesMut};

const ROUNDS: usize = 300;
/// Operations between two looks at the output, as a loop of the server would do.
const BATCH: usize = 32;
const BATCHES: usize = 100;
/// Read buffers of 64 KiB a round: few enough to be in the cache, as what was just read from a
/// socket is.
const READS: usize = 4;

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    println!("{:<34} {:>9} {:>12}", "", "ns each", "allocations");
    for body in [10, 1000, 16 * 1024] {
        publish(body);
    }
    for body in [10, 1000, 4 * 1024, 8 * 1024 - 1, 8 * 1024, 16 * 1024] {
        deliver(body);
    }
    ack();
    ack_multiple();
    confirm();
    declare();
    let (connection, _) = opened();
    println!("an open connection with one channel holds {} bytes", connection.held_bytes());
    println!("a connection is {} bytes, an event {}", size_of::<Connection>(), size_of::<Event>());
}

/// Runs `round`, which does `count` operations after `prepare`, and prints the best round.
fn measure<T>(name: &str, count: usize, mut prepare: impl FnMut() -> T, mut round: impl FnMut(&mut T)) {
    let mut best = f64::MAX;
    let mut allocations = u64::MAX;
    for _ in 0..ROUNDS {
        let mut state = prepare();
        let allocated = ALLOCATIONS.load(Ordering::Relaxed);
        let started = Instant::now();
        round(&mut state);
        let spent = started.elapsed();
        best = best.min(spent.as_nanos() as f64 / count as f64);
        allocations = allocations.min(ALLOCATIONS.load(Ordering::Relaxed) - allocated);
        black_box(&state);
    }
    println!("{name:<34} {best:>9.1} {:>12.4}", allocations as f64 / count as f64);
}

fn opened() -> (Connection, ChannelId) {
    let mut connection = Connection::new(Arc::new(ConnectionConfig::default()), 0);
    let mut bytes = PROTOCOL_HEADER.to_vec();
    let start_ok = Method::ConnectionStartOk {
        client_properties: Table::new(),
        mechanism: Bytes::from_static(b"PLAIN"),
        response: Bytes::from_static(b"\0guest\0guest"),
        locale: Bytes::from_static(b"en_US"),
    };
    start_ok.write(&mut bytes, 0);
    Method::ConnectionTuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 60 }.write(&mut bytes, 0);
    let virtual_host = Bytes::from_static(b"/");
    Method::ConnectionOpen { virtual_host, capabilities: Bytes::new(), insist: false }.write(&mut bytes, 0);
    Method::ChannelOpen { out_of_band: Bytes::new() }.write(&mut bytes, 1);
    Method::ConfirmSelect { no_wait: true }.write(&mut bytes, 1);
    let mut input = BytesMut::from(&bytes[..]);
    let mut channel = None;
    for _ in 0..4 {
        connection.handle_input(&mut input, 0);
        while let Some(event) = connection.poll_event() {
            match event {
                Event::Authenticate(_) => connection.authenticated(Ok(())),
                Event::Open { .. } => connection.opened(Ok(())),
                Event::ChannelOpened { channel: id } => channel = Some(id),
                other => panic!("{other:?}"),
            }
        }
    }
    let written = connection.output().len();
    connection.output().advance(written);
    (connection, channel.expect("the channel opened"))
}

/// A read buffer's worth of publishes at a time, as a socket gives them: read, parse, hand over,
/// drop.
fn publish(body_bytes: usize) {
    let mut one = Vec::new();
    let exchange = Bytes::from_static(b"orders");
    let routing_key = Bytes::from_static(b"order.created");
    Method::BasicPublish { ticket: 0, exchange, routing_key, mandatory: false, immediate: false }.write(&mut one, 1);
    write_frame(&mut one, FRAME_HEADER, 1, |w| {
        w.short(60);
        w.short(0);
        w.longlong(body_bytes as u64);
        w.raw(b"\x90\0\x0atext/plain\x02");
    });
    write_frame(&mut one, FRAME_BODY, 1, |w| w.raw(&vec![7; body_bytes]));
    let count = (65_536 / one.len()).max(1);
    let batch = one.repeat(count);
    let prepare = || {
        let (connection, _) = opened();
        let inputs: Vec<BytesMut> = (0..READS).map(|_| BytesMut::from(&batch[..])).collect();
        (connection, inputs)
    };
    measure(&format!("publish, {body_bytes} byte body"), count * READS, prepare, |(connection, inputs)| {
        for input in inputs {
            connection.handle_input(input, 1);
            while let Some(event) = connection.poll_event() {
                black_box(&event);
            }
        }
    });
}

fn deliver(body_bytes: usize) {
    let body = Bytes::from(vec![7; body_bytes]);
    let consumer_tag = ConsumerTag::new(Bytes::from_static(b"amq.ctag-abcdefghijklmnopqrstuv"));
    measure(&format!("deliver, {body_bytes} byte body"), BATCH * BATCHES, opened, |(connection, channel)| {
        for batch in 0..BATCHES {
            for i in 0..BATCH {
                let message = MessageParts {
                    exchange: b"orders",
                    routing_key: b"order.created",
                    properties: b"\x90\0\x0atext/plain\x02",
                    body: (&body).into(),
                };
                let delivery = Delivery {
                    consumer_tag: &consumer_tag,
                    consumer: 7,
                    seq: (batch * BATCH + i) as u64,
                    redelivered: false,
                    no_ack: false,
                    message,
                };
                connection.deliver(*channel, &delivery);
            }
            let written = connection.output().len();
            connection.output().advance(written);
        }
    });
}

fn delivered() -> (Connection, ChannelId) {
    let (mut connection, channel) = opened();
    let body = Bytes::from_static(b"body");
    let consumer_tag = ConsumerTag::new(Bytes::from_static(b"tag"));
    let message = MessageParts { exchange: b"", routing_key: b"q", properties: &[0, 0], body: (&body).into() };
    for seq in 0..(BATCH * BATCHES) as u64 {
        let delivery =
            Delivery { consumer_tag: &consumer_tag, consumer: 7, seq, redelivered: false, no_ack: false, message };
        connection.deliver(channel, &delivery);
    }
    let written = connection.output().len();
    connection.output().advance(written);
    (connection, channel)
}

fn acks(multiple: bool) -> Vec<BytesMut> {
    (0..BATCHES)
        .map(|batch| {
            let mut bytes = Vec::new();
            for i in 0..BATCH {
                let delivery_tag = (batch * BATCH + i + 1) as u64;
                Method::BasicAck { delivery_tag, multiple }.write(&mut bytes, 1);
            }
            BytesMut::from(&bytes[..])
        })
        .collect()
}

fn run_acks(name: &str, multiple: bool) {
    let prepare = || (delivered(), acks(multiple));
    measure(name, BATCH * BATCHES, prepare, |((connection, _), inputs)| {
        for input in inputs {
            connection.handle_input(input, 1);
            while let Some(event) = connection.poll_event() {
                black_box(&event);
            }
        }
    });
}

fn ack() {
    run_acks("ack, one by one", false);
}

fn ack_multiple() {
    run_acks("ack, each multiple", true);
}

fn confirm() {
    let prepare = || {
        let (mut connection, channel) = opened();
        let mut bytes = Vec::new();
        Method::BasicPublish {
            ticket: 0,
            exchange: Bytes::new(),
            routing_key: Bytes::from_static(b"q"),
            mandatory: false,
            immediate: false,
        }
        .write(&mut bytes, 1);
        write_frame(&mut bytes, FRAME_HEADER, 1, |w| w.raw(&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        let mut input = BytesMut::from(&bytes.repeat(BATCH * BATCHES)[..]);
        connection.handle_input(&mut input, 1);
        while connection.poll_event().is_some() {}
        (connection, channel)
    };
    measure("confirm, in order", BATCH * BATCHES, prepare, |(connection, channel)| {
        for batch in 0..BATCHES {
            for i in 0..BATCH {
                connection.confirm(*channel, (batch * BATCH + i + 1) as u64, Confirm::Ack);
            }
            connection.flush_confirms();
        }
    });
    measure("confirm, out of order", BATCH * BATCHES, prepare, |(connection, channel)| {
        for batch in 0..BATCHES {
            for i in 0..BATCH {
                connection.confirm(*channel, (batch * BATCH + (i ^ 5) + 1) as u64, Confirm::Ack);
            }
            connection.flush_confirms();
        }
    });
}

fn declare() {
    let mut one = Vec::new();
    let method = Method::QueueDeclare {
        ticket: 0,
        queue: Bytes::from_static(b"orders"),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::new(),
    };
    method.write(&mut one, 1);
    let prepare = || {
        let inputs: Vec<BytesMut> = (0..BATCHES).map(|_| BytesMut::from(&one[..])).collect();
        (opened(), inputs)
    };
    measure("queue.declare and its answer", BATCHES, prepare, |((connection, channel), inputs)| {
        for input in inputs {
            connection.handle_input(input, 1);
            while let Some(event) = connection.poll_event() {
                black_box(&event);
            }
            let queue = Bytes::from_static(b"orders");
            connection.reply(*channel, amqp::Reply::QueueDeclared { queue, message_count: 0, consumer_count: 0 });
        }
    });
}

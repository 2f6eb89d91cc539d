//! A flood of logins against a running broker, and what it does to a publisher that waits for each
//! of its confirms.
//!
//! ```text
//! login_flood ADDR:PORT [logins a second] [seconds] [half|silent|password|right]
//! ```
//!
//! Every other login says nothing behind the protocol header and stays; the rest send a wrong
//! password, which the broker answers after a second. Or all are of one of these two kinds, or have
//! the right password and go no further than the tune. Sockets are kept in a ring, so as many are
//! half open as come in two seconds, at most `OPEN_MAX`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clients::wire::Args;
use clients::{Client, QueueDeclare};

/// Sockets of the flood at one time.
const OPEN_MAX: usize = 8_000;
/// Threads that log in.
const THREADS: u64 = 2;

/// Bytes of a login that says nothing: the protocol header.
const HEADER_BYTES: usize = 8;

/// The protocol header, and `connection.start-ok` with this password.
fn login_with(password: &str) -> Vec<u8> {
    let args = Args::new()
        .table(&[("product", "flood".into())])
        .shortstr("PLAIN")
        .longstr(format!("\0guest\0{password}").as_bytes())
        .shortstr("en_US");
    let mut bytes = b"AMQP\x00\x00\x09\x01".to_vec();
    bytes.extend(clients::client::method_frame(0, clients::methods::CONNECTION_START_OK, &args));
    bytes
}

fn flood(addr: SocketAddr, per_second: u64, kind: &str, until: &AtomicBool, tried: &AtomicU64, failed: &AtomicU64) {
    let (login, begin) = (login_with(if kind == "right" { "guest" } else { "wrong" }), Instant::now());
    let mut open: VecDeque<TcpStream> = VecDeque::new();
    for count in 0u64.. {
        let due = begin + Duration::from_nanos(count * 1_000_000_000 / per_second);
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            std::thread::sleep(early);
        }
        if until.load(Ordering::Relaxed) {
            return;
        }
        tried.fetch_add(1, Ordering::Relaxed);
        let says_nothing = match kind {
            "half" => count % 2 == 0,
            _ => kind == "silent",
        };
        let bytes = if says_nothing { &login[..HEADER_BYTES] } else { &login[..] };
        let done = TcpStream::connect_timeout(&addr, Duration::from_secs(1));
        match done.and_then(|mut socket| socket.write_all(bytes).map(|()| socket)) {
            Ok(socket) => open.push_back(socket),
            Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
        }
        let kept = (2 * per_second as usize).min(OPEN_MAX / THREADS as usize);
        while open.len() > kept {
            open.pop_front();
        }
    }
}

/// Publishes and waits for each confirm, for so long; the waits, sorted.
fn publish(client: &mut Client, channel: u16, seq: &mut u64, seconds: u64) -> Vec<Duration> {
    let (begin, mut waits) = (Instant::now(), Vec::new());
    while begin.elapsed() < Duration::from_secs(seconds) {
        let sent = Instant::now();
        client.put(channel, "login-flood", b"still here");
        *seq += 1;
        client.confirmed(channel, *seq, *seq);
        waits.push(sent.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    waits.sort_unstable();
    waits
}

fn show(what: &str, waits: &[Duration]) {
    let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    println!(
        "{what}: {} confirms, p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
        waits.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let addr: SocketAddr = words.get(1).expect("ADDR:PORT").parse().expect("ADDR:PORT");
    let number = |at: usize, default: u64| words.get(at).map_or(default, |word| word.parse().expect("a number"));
    let (per_second, seconds) = (number(2, 10_000), number(3, 10));
    let kind = words.get(4).map_or("half", String::as_str).to_owned();
    assert!(["half", "silent", "password", "right"].contains(&&*kind), "half, silent, password or right");
    let mut client = Client::connect(addr);
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "login-flood", durable: true, ..QueueDeclare::default() }).unwrap();
    client.confirm_select(channel).unwrap();
    let mut seq = 0;
    show("quiet", &publish(&mut client, channel, &mut seq, seconds));
    let (until, tried, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (until, tried, failed, kind) = (until.clone(), tried.clone(), failed.clone(), kind.clone());
            std::thread::spawn(move || flood(addr, per_second / THREADS, &kind, &until, &tried, &failed))
        })
        .collect();
    let waits = publish(&mut client, channel, &mut seq, seconds);
    until.store(true, Ordering::Relaxed);
    show("flooded", &waits);
    let (tried, failed) = (tried.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    println!("{} logins a second, {failed} of {tried} not taken", tried / seconds);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    client.purge(channel, "login-flood").unwrap();
}

//! What one message costs a shard: CPU time of its thread per message published, delivered and
//! acked, no disk involved.
//!
//! `cargo run --release -p server --example shard_cost [body bytes] [seconds]`
//!
//! The clients are threads of the same process that send and count frames with as little work as
//! possible; the figure is the shard thread's own CPU time, so on a machine with few cores the
//! throughput is the clients', the cost is ours.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/support/mod.rs"]
mod support;

use amqp::wire::method::Method;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{TestNode, publish_frames};

/// User and system time of the thread with this name, in seconds.
fn cpu_of(thread: &str) -> (f64, f64) {
    let mut sum = (0.0, 0.0);
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let Ok(stat) = std::fs::read_to_string(path.join("stat")) else { continue };
        let (head, tail) = stat.rsplit_once(") ").unwrap();
        if head.split_once('(').unwrap().1.starts_with(thread) {
            let fields: Vec<&str> = tail.split(' ').collect();
            sum.0 += fields[11].parse::<f64>().unwrap() / 100.0;
            sum.1 += fields[12].parse::<f64>().unwrap() / 100.0;
        }
    }
    sum
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize = arguments.next().map_or(1000, |a| a.parse().unwrap());
    let seconds: u64 = arguments.next().map_or(5, |a| a.parse().unwrap());
    let pause: Option<u64> = arguments.next().map(|a| a.parse().unwrap());
    let node = TestNode::start();
    let stop = Arc::new(AtomicBool::new(false));
    let delivered = Arc::new(AtomicU64::new(0));

    let mut consumer = node.channel();
    consumer.declare(1, "q");
    consumer.qos(1, 3000, false);
    consumer.consume(1, "q", "c");
    let frame_bytes = {
        let mut publisher = node.channel();
        publisher.publish(1, "", "q", &vec![1; bytes]);
        let (tag, ..) = consumer.delivery();
        consumer.ack(1, tag, false);
        // A delivery: method, header, body, as the consumer below counts them.
        8 + 4 + 2 + 8 + 1 + 1 + 2 + (8 + 12 + 2) + if bytes > 0 { 8 + bytes } else { 0 }
    };
    let consuming = {
        let (stop, delivered) = (stop.clone(), delivered.clone());
        std::thread::spawn(move || {
            let (mut rest, mut tag, mut acked) = (0usize, 1u64, 1u64);
            let mut buffer = vec![0; 1 << 18];
            while !stop.load(Ordering::Relaxed) {
                let Ok(count) = consumer.stream.read(&mut buffer) else { break };
                rest += count;
                tag += (rest / frame_bytes) as u64;
                delivered.fetch_add((rest / frame_bytes) as u64, Ordering::Relaxed);
                rest %= frame_bytes;
                if tag - acked >= if pause.is_some() { 1 } else { 500 } {
                    acked = tag;
                    consumer.send(1, &Method::BasicAck { delivery_tag: tag, multiple: true });
                }
            }
        })
    };
    let publishing = {
        let (stop, delivered) = (stop.clone(), delivered.clone());
        let mut publisher = node.channel();
        publisher.confirm_select(1);
        std::thread::spawn(move || {
            let batch = if pause.is_some() { 1 } else { 20 };
            let mut out = Vec::new();
            (0..batch).for_each(|_| publish_frames(&mut out, 1, "", "q", false, &[0, 0], &vec![1; bytes]));
            let mut confirms = publisher.stream.try_clone().unwrap();
            let reading = std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while confirms.read(&mut buffer).is_ok_and(|count| count > 0) {}
            });
            let mut sent = 0u64;
            while !stop.load(Ordering::Relaxed) {
                if sent > delivered.load(Ordering::Relaxed) + 6000 {
                    std::thread::sleep(Duration::from_micros(100));
                    continue;
                }
                if publisher.stream.write_all(&out).is_err() {
                    break;
                }
                sent += batch;
                if let Some(pause) = pause {
                    std::thread::sleep(Duration::from_micros(pause));
                }
            }
            publisher.stream.shutdown(std::net::Shutdown::Both).unwrap();
            reading.join().unwrap();
        })
    };
    std::thread::sleep(Duration::from_secs(1));
    let (start, first, cpu) = (Instant::now(), delivered.load(Ordering::Relaxed), cpu_of("shard-"));
    std::thread::sleep(Duration::from_secs(seconds));
    let count = (delivered.load(Ordering::Relaxed) - first) as f64;
    let (user, system) = cpu_of("shard-");
    let (user, system) = ((user - cpu.0) / count * 1e6, (system - cpu.1) / count * 1e6);
    println!(
        "{bytes} B: {:.0} msg/s, shard CPU {:.2} us a message ({user:.2} user, {system:.2} system)",
        count / start.elapsed().as_secs_f64(),
        user + system
    );
    stop.store(true, Ordering::Relaxed);
    publishing.join().unwrap();
    drop(node);
    let _ = consuming.join();
}

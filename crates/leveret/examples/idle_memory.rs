//! What an allocator keeps of a burst: resident memory of a small process at its start, at the
//! height of a load and after it.
//!
//! ```text
//! cargo run -p leveret --example idle_memory                          with mimalloc as the binary sets it
//! cargo run -p leveret --example idle_memory -- default               with mimalloc as it comes
//! cargo run -p leveret --example idle_memory --no-default-features    with the system's allocator
//! ```
//!
//! The load has the shape of a broker's: threads that stay, read buffers that grow and shrink,
//! bodies made on one thread and freed on another. Invariant: the same work with either allocator,
//! so the two tables may be compared.
#![allow(clippy::print_stdout)]

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A node on two cores: one shard, the log's thread, the one that flushes and the one for signals.
const THREADS: usize = 4;
const CONNECTIONS: usize = 500;
const MESSAGES: usize = 400_000;
/// Messages that are in memory at one time.
const BACKLOG: usize = 20_000;
const BODY_BYTES: usize = 1000;
const READ_BUFFER_BYTES: usize = 64 * 1024;

fn main() {
    // What the binary does (src/allocator.rs); `default` shows mimalloc as it comes.
    #[cfg(feature = "mimalloc")]
    if std::env::args().nth(1).as_deref() != Some("default") {
        // SAFETY: sets the option `purge_delay` in a table of the allocator; allowed at any time.
        unsafe { libmimalloc_sys::mi_option_set(15, 0) };
    }
    println!("allocator: {}", if cfg!(feature = "mimalloc") { "mimalloc" } else { "system" });
    report("start");
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (mailbox, messages) = mpsc::sync_channel::<Vec<u8>>(1024);
            (mailbox, thread::spawn(move || hold_backlog(&messages)))
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    report("threads started");

    let start = Instant::now();
    let mut buffers: Vec<Vec<u8>> = (0..CONNECTIONS).map(|_| vec![1; READ_BUFFER_BYTES]).collect();
    for number in 0..MESSAGES {
        let connection = number % CONNECTIONS;
        if number % 64 == 0 {
            buffers[connection] = vec![1; READ_BUFFER_BYTES];
        }
        let bytes = BODY_BYTES / 2 + number % BODY_BYTES;
        let body = buffers[connection][..bytes].to_vec();
        if threads[number % THREADS].0.send(body).is_err() {
            break;
        }
    }
    println!("{:>8.0} ns per message", start.elapsed().as_nanos() as f64 / MESSAGES as f64);
    report("load");
    drop(buffers);
    // The threads stay, as a server's do; a queue that was drained is empty.
    for (mailbox, _) in &threads {
        let _ = mailbox.send(Vec::new());
    }
    thread::sleep(Duration::from_millis(200));
    report("all freed");
    thread::sleep(Duration::from_secs(2));
    // An idle node still has timers, which allocate a little.
    drop(vec![1_u8; 100_000]);
    report("idle for 2 s");
    let _ = thread::spawn(give_back).join();
    report("asked to give back by another thread");
    for (mailbox, thread) in threads {
        drop(mailbox);
        let _ = thread.join();
    }
}

/// Asks the allocator for its free pages.
fn give_back() {
    // SAFETY: both functions take no memory of ours and may be called at any time from any thread.
    #[cfg(feature = "mimalloc")]
    unsafe {
        libmimalloc_sys::mi_collect(false);
    }
    // musl's allocator cannot be asked.
    #[cfg(all(not(feature = "mimalloc"), target_env = "gnu"))]
    unsafe {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

/// Keeps the newest messages, frees the others, as a queue with a consumer does.
fn hold_backlog(messages: &mpsc::Receiver<Vec<u8>>) {
    let mut backlog = VecDeque::new();
    while let Ok(body) = messages.recv() {
        if body.is_empty() {
            backlog = VecDeque::new();
            continue;
        }
        backlog.push_back(body);
        if backlog.len() > BACKLOG / THREADS {
            backlog.pop_front();
        }
    }
}

fn report(moment: &str) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).map_or("unknown", str::trim);
    println!("{resident:>12}  {moment}");
}

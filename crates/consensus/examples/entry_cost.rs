//! What one entry costs, from proposal to commit, in nanoseconds and allocations.
//!
//! `cargo run --release -p consensus --example entry_cost`. The disk is a counter and the network a
//! vector, so all of the time is this crate's and the library's. One member: propose, ready
//! (append), persisted, ready (committed), applied. Three members: the same, with every message
//! encoded and decoded.

#![allow(clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use consensus::{Config, Group, Message, NodeId, Ready, Restored, Segments};

/// Counts allocations and hands them on.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CYCLES: usize = 200_000;
const CYCLES_WARM: usize = 10_000;
const BODY_BYTES: usize = 1000;
/// A checkpoint and compaction every so many cycles.
const COMPACT_EVERY: usize = 1000;

fn main() {
    println!("{BODY_BYTES} B bodies, {CYCLES} cycles");
    for batch in [1, 10, 100] {
        measure(&format!("1 member, {batch} a turn"), batch, single(batch));
    }
    breakdown();
    for batch in [1, 10] {
        measure(&format!("3 members, {batch} a turn"), batch, triple(batch));
    }
    memory();
}

fn measure(what: &str, batch: usize, mut cycle: impl FnMut()) {
    let cycles = CYCLES / batch;
    for _ in 0..CYCLES_WARM / batch {
        cycle();
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed);
    let start = Instant::now();
    for _ in 0..cycles {
        cycle();
    }
    let elapsed = start.elapsed();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
    let entries = (cycles * batch) as f64;
    println!(
        "{what:26} {:7.0} ns and {:5.2} allocations an entry",
        elapsed.as_nanos() as f64 / entries,
        allocations as f64 / entries
    );
}

fn single(batch: usize) -> impl FnMut() {
    let node = NodeId(1);
    let mut group = Group::new(Config::new(node, 1, 1), Restored::bootstrap([node])).expect("valid");
    let mut ready = Ready::new();
    settle(&mut group, &mut ready);
    let body = Bytes::from(vec![1; BODY_BYTES]);
    let mut turn = 0;
    move || {
        for _ in 0..batch {
            group.propose(body.clone()).expect("a sole voter leads");
        }
        settle(&mut group, &mut ready);
        turn += 1;
        if turn % COMPACT_EVERY == 0 {
            group.compact(group.status().applied);
        }
    }
}

fn settle(group: &mut Group, ready: &mut Ready) {
    while group.ready(ready) {
        if ready.must_sync {
            group.persisted(ready.number);
        }
        if let Some(last) = ready.committed.last() {
            group.applied(last.index);
        }
    }
}

struct Three {
    groups: Vec<Group>,
    ready: Ready,
    network: Vec<Message>,
    wire: Segments,
}

impl Three {
    fn turn(&mut self) {
        loop {
            for group in &mut self.groups {
                while group.ready(&mut self.ready) {
                    self.network.append(&mut self.ready.messages);
                    if self.ready.must_sync {
                        group.persisted(self.ready.number);
                    }
                    self.network.append(&mut self.ready.messages_after_sync);
                    if let Some(last) = self.ready.committed.last() {
                        group.applied(last.index);
                    }
                }
            }
            if self.network.is_empty() {
                return;
            }
            for message in self.network.drain(..) {
                message.encode(&mut self.wire);
                let mut frame = self.wire.to_bytes();
                self.wire.take().for_each(drop);
                let message = Message::decode(&mut frame).expect("just encoded");
                let to = message.to().0 as usize - 1;
                self.groups[to].step(message).expect("a member");
            }
        }
    }
}

fn triple(batch: usize) -> impl FnMut() {
    let nodes = [NodeId(1), NodeId(2), NodeId(3)];
    let groups = nodes
        .iter()
        .map(|node| Group::new(Config::new(*node, 1, 1), Restored::bootstrap(nodes)).expect("valid"))
        .collect();
    let mut three = Three { groups, ready: Ready::new(), network: Vec::new(), wire: Segments::new() };
    three.groups[0].campaign();
    three.turn();
    let body = Bytes::from(vec![1; BODY_BYTES]);
    let mut turn = 0;
    move || {
        for _ in 0..batch {
            three.groups[0].propose(body.clone()).expect("it leads");
        }
        three.turn();
        turn += 1;
        if turn % COMPACT_EVERY == 0 {
            three.groups[0].tick();
            three.turn();
            for group in &mut three.groups {
                group.compact(group.status().applied);
            }
        }
    }
}

/// Where the time of one member goes. Each step is timed apart, so the sum holds five readings of
/// the clock, which are measured and taken off.
fn breakdown() {
    let node = NodeId(1);
    let mut group = Group::new(Config::new(node, 1, 1), Restored::bootstrap([node])).expect("valid");
    let mut ready = Ready::new();
    settle(&mut group, &mut ready);
    let body = Bytes::from(vec![1; BODY_BYTES]);
    let mut nanos = [0_u128; 6];
    for turn in 0..CYCLES {
        let mut at = Instant::now();
        let mut lap = |step: usize| {
            let now = Instant::now();
            nanos[step] += (now - at).as_nanos();
            at = now;
        };
        lap(0);
        group.propose(body.clone()).expect("a sole voter leads");
        lap(1);
        group.ready(&mut ready);
        lap(2);
        group.persisted(ready.number);
        lap(3);
        group.ready(&mut ready);
        lap(4);
        group.applied(ready.committed[0].index);
        lap(5);
        if turn % COMPACT_EVERY == 0 {
            group.compact(group.status().applied);
        }
    }
    let clock = nanos[0];
    let step = |at: usize| nanos[at].saturating_sub(clock) as usize / CYCLES;
    println!(
        "of these: propose {}, ready to append {}, persisted {}, ready to apply {}, applied {} ns",
        step(1),
        step(2),
        step(3),
        step(4),
        step(5)
    );
}

/// Resident memory of many idle groups.
fn memory() {
    const GROUPS: u32 = 10_000;
    let before = resident_kib();
    let node = NodeId(1);
    let mut ready = Ready::new();
    let groups: Vec<Group> = (0..GROUPS)
        .map(|id| {
            let mut group = Group::new(Config::new(node, id, 1), Restored::bootstrap([node])).expect("valid");
            settle(&mut group, &mut ready);
            group
        })
        .collect();
    let after = resident_kib();
    println!(
        "{:.2} KiB an idle group ({} B of it the struct)",
        (after - before) as f64 / f64::from(GROUPS),
        size_of::<Group>()
    );
    drop(groups);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its resident size");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

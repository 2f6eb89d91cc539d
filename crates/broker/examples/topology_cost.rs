//! What a route costs in time and a queue in memory:
//! `cargo run --release -p broker --example topology_cost`.
//!
//! Invariant: the numbers are per route over keys in an order that no cache foresees, from the
//! quickest of many slices of the run, since neighbours on the machine only ever make one slower;
//! memory is counted at the allocator. So both can be compared from one change to the next.
#![allow(clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use amqp::{Table, Value};
use broker::ids::{PartitionId, VhostId};
use broker::topology::{
    Actor, Binding, Checked, Command, DeclareExchange, ExchangeType, Kind, Name, NoFacts, QueueDeclare, QueueDeclared,
    RouteRequest, RouteTarget, Topology,
};
use bytes::Bytes;

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is; only counters are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SLASH: VhostId = VhostId(0);
const GUEST: Actor<'static> = Actor { user: b"guest", connection: 1, scopes: None };
const ROUTES: usize = 2_000_000;
const SLICES: usize = 50;

fn declare(topology: &mut Topology, name: &str, arguments: &Table) {
    let declare = QueueDeclare {
        vhost: SLASH,
        name: name.as_bytes(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments,
    };
    let declared = topology.check_queue_declare(GUEST, &declare, |_| PartitionId(1)).expect("the declare is lawful");
    if let QueueDeclared::Propose(command) = declared {
        topology.apply(&command).outcome.expect("the declare is lawful");
    }
}

fn exchange(topology: &mut Topology, name: &str, kind: ExchangeType) {
    let declare = DeclareExchange {
        vhost: SLASH,
        name: Name::from(name),
        kind,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::new(),
        is_shared: false,
    };
    topology.apply(&Command::DeclareExchange(declare)).outcome.expect("the declare is lawful");
}

fn bind(topology: &mut Topology, source: &str, queue: &str, key: &str, arguments: Table) {
    let binding = Binding {
        vhost: SLASH,
        source: Name::from(source),
        destination_kind: Kind::Queue,
        destination: Name::from(queue),
        key: Name::from(key),
        arguments,
    };
    match topology.check_bind(GUEST, binding).expect("the binding is lawful") {
        Checked::Propose(command) => drop(topology.apply(&command)),
        other => panic!("a new binding between durable things goes through the log, not {other:?}"),
    }
}

/// Measures routes to `exchange` with `key(i)`, which is made outside the clock, and prints a line.
fn measure(topology: &Topology, what: &str, exchange: &str, rounds: usize, key: impl Fn(usize) -> String) {
    // A prime step visits the keys in an order that is not that of their creation.
    let keys: Vec<String> = (0..10_000).map(|i| key(i * 7919)).collect();
    let mut out: Vec<RouteTarget> = Vec::with_capacity(1024);
    let mut routed = 0;
    let calls = CALLS.load(Ordering::Relaxed);
    let mut best = f64::INFINITY;
    for slice in 0..SLICES {
        let start = Instant::now();
        for i in 0..rounds / SLICES {
            out.clear();
            let key = keys[(slice * rounds / SLICES + i) % keys.len()].as_bytes();
            topology
                .route(
                    &RouteRequest {
                        vhost: SLASH,
                        exchange: black_box(exchange.as_bytes()),
                        keys: &[black_box(key)],
                        facts: &NoFacts,
                    },
                    &mut out,
                )
                .expect("the exchange exists");
            routed += black_box(&out).len();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (rounds / SLICES) as f64);
    }
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    let queues = routed as f64 / rounds as f64;
    println!("{what:<44} {best:>9.1} ns/route  {queues:>6.2} queues/route  {calls} allocations");
}

fn main() {
    let none = Table::new();
    let mut quorum = Table::new();
    quorum.push("x-queue-type", Value::LongString(Bytes::from_static(b"quorum")));

    let mut topology = Topology::new();
    let before = BYTES.load(Ordering::Relaxed);
    for i in 0..10_000 {
        declare(&mut topology, &format!("queue-{i}"), if i % 2 == 0 { &none } else { &quorum });
    }
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    println!("10,000 durable queues: {} B each", bytes / 10_000);

    exchange(&mut topology, "direct", ExchangeType::Direct);
    exchange(&mut topology, "topic", ExchangeType::Topic);
    exchange(&mut topology, "fanout", ExchangeType::Fanout);
    let before = BYTES.load(Ordering::Relaxed);
    for i in 0..100_000 {
        bind(&mut topology, "direct", &format!("queue-{}", i % 10_000), &format!("key.{i}"), Table::new());
    }
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    println!("100,000 direct bindings: {} B each", bytes / 100_000);
    let before = BYTES.load(Ordering::Relaxed);
    for i in 0..100_000 {
        let key = match i % 4 {
            0 => format!("site{}.dev{i}.temp", i % 100),
            1 => format!("site{}.*.m{i}", i % 100),
            2 => format!("site{}.dev{i}.#", i % 100),
            _ => format!("*.dev{i}.temp"),
        };
        bind(&mut topology, "topic", &format!("queue-{}", i % 10_000), &key, Table::new());
    }
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    println!("100,000 topic bindings: {} B each", bytes / 100_000);
    for i in 0..100 {
        bind(&mut topology, "fanout", &format!("queue-{}", i * 97), "", Table::new());
    }

    measure(&topology, "default exchange, 10,000 queues", "", ROUTES, |i| format!("queue-{}", i % 10_000));
    measure(&topology, "direct, 100,000 bindings", "direct", ROUTES, |i| format!("key.{}", i % 100_000));
    measure(&topology, "topic, 100,000 bindings", "topic", ROUTES, |i| {
        let i = i % 100_000;
        format!("site{}.dev{i}.temp", i % 100)
    });
    measure(&topology, "topic, no binding matches", "topic", ROUTES, |i| format!("other.thing{i}.temp"));
    measure(&topology, "fanout to 100", "fanout", ROUTES / 20, |_| String::new());

    exchange(&mut topology, "wide", ExchangeType::Topic);
    for i in 0..100_000 {
        bind(&mut topology, "wide", &format!("queue-{}", i % 10_000), &format!("#.w{i}.#"), Table::new());
    }
    let long = |i: usize| (0..40).map(|w| format!("w{}", (i + w * 101) % 100_000)).collect::<Vec<_>>().join(".");
    measure(&topology, "topic, 100,000 of `#.w.#`, 40 words", "wide", ROUTES / 50, long);

    drop(topology);
    curve();
}

/// A topic exchange from ten to a million bindings: keys of three words, a quarter each exact, with
/// `*` in the middle, with `#` at the end, with `*` at the start; 10,000 queues, or as many as
/// there are bindings.
fn curve() {
    for bindings in [10, 100, 1_000, 10_000, 100_000, 1_000_000] {
        let mut topology = Topology::new();
        let queues = bindings.min(10_000);
        (0..queues).for_each(|i| declare(&mut topology, &format!("queue-{i}"), &Table::new()));
        exchange(&mut topology, "curve", ExchangeType::Topic);
        let before = BYTES.load(Ordering::Relaxed);
        let start = Instant::now();
        for i in 0..bindings {
            let (site, key) = (i % 100, i);
            let key = match i % 4 {
                0 => format!("site{site}.dev{key}.temp"),
                1 => format!("site{site}.*.m{key}"),
                2 => format!("site{site}.dev{key}.#"),
                _ => format!("*.dev{key}.temp"),
            };
            bind(&mut topology, "curve", &format!("queue-{}", i % queues), &key, Table::new());
        }
        let took = start.elapsed() / bindings as u32;
        let bytes = (BYTES.load(Ordering::Relaxed) - before) / bindings;
        println!("{bindings} topic bindings: {bytes} B and {took:.1?} each");
        measure(&topology, &format!("topic, {bindings} bindings"), "curve", ROUTES, |i| {
            let i = i % bindings;
            format!("site{}.dev{i}.temp", i % 100)
        });
        if bindings == 1_000_000 {
            snapshot(&topology);
        }
    }
}

fn snapshot(topology: &Topology) {
    let start = Instant::now();
    let snapshot = topology.encode_snapshot();
    let encoded = start.elapsed();
    let start = Instant::now();
    let decoded = Topology::decode_snapshot(&snapshot).expect("what is encoded can be decoded");
    println!(
        "snapshot: {} bytes, encoded in {:.0?}, decoded in {:.0?}, {} bindings",
        snapshot.len(),
        encoded,
        start.elapsed(),
        decoded.binding_count()
    );
}

//! The topology's memory budget, and that a route makes no garbage, counted at the allocator.
//!
//! Invariant: one test to a process, because the counters are the process's.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use amqp::{Table, Value};
use broker::ids::{PartitionId, VhostId};
use broker::topology::{
    Actor, Binding, Checked, Kind, Name, NoFacts, QueueDeclare, QueueDeclared, RouteRequest, Topology,
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
const QUEUES: usize = 10_000;
/// What a durable queue may cost here, its name of some ten bytes included.
const QUEUE_BYTES_MAX: usize = 400;

#[test]
fn queues_stay_within_their_budget_and_routes_allocate_nothing() {
    let mut topology = Topology::new();
    let empty = BYTES.load(Ordering::Relaxed);
    for i in 0..QUEUES {
        // A table of its own for each, as it comes from the wire: the topology has to find that
        // they are alike.
        let mut arguments = Table::new();
        arguments.push("x-queue-type", Value::LongString(Bytes::copy_from_slice(b"quorum")));
        let name = format!("queue-{i}");
        let declare = QueueDeclare {
            vhost: SLASH,
            name: name.as_bytes(),
            server_named: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: &arguments,
        };
        let declared = topology.check_queue_declare(GUEST, &declare, |_| PartitionId(0)).unwrap();
        let QueueDeclared::Propose(command) = declared else { panic!("a durable queue goes through the log") };
        topology.apply(&command).outcome.unwrap();
    }
    let bytes = (BYTES.load(Ordering::Relaxed) - empty) / QUEUES;
    assert!(bytes <= QUEUE_BYTES_MAX, "{bytes} bytes a queue");

    for i in 0..500 {
        for (exchange, key) in [("amq.direct", "a.b.c"), ("amq.fanout", ""), ("amq.topic", "a.*.#")] {
            let binding = Binding {
                vhost: SLASH,
                source: Name::from(exchange),
                destination_kind: Kind::Queue,
                destination: Name::new(format!("queue-{i}").as_bytes()),
                key: Name::from(key),
                arguments: Table::new(),
            };
            let Checked::Propose(command) = topology.check_bind(GUEST, binding).unwrap() else { panic!("it is new") };
            topology.apply(&command).outcome.unwrap();
        }
    }
    let mut out = Vec::with_capacity(500);
    let calls = CALLS.load(Ordering::Relaxed);
    let mut routed = 0;
    for exchange in ["", "amq.direct", "amq.fanout", "amq.topic"] {
        let key: &[u8] = if exchange.is_empty() { b"queue-7" } else { b"a.b.c" };
        out.clear();
        topology
            .route(
                &RouteRequest { vhost: SLASH, exchange: exchange.as_bytes(), keys: &[key], facts: &NoFacts },
                &mut out,
            )
            .unwrap();
        routed += out.len();
    }
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    assert_eq!((routed, calls), (1501, 0));
}

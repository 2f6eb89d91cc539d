//! What a member keeps: no more after a long time than before it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use bytes::Bytes;
use consensus::{Config, Group, Message, NodeId, Ready, Restored};

/// Counts the bytes that are allocated and not freed. This file has one test, so they are that
/// test's.
struct Counting;

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SLACK_BYTES: isize = 32 * 1024;

struct Pair {
    groups: Vec<Group>,
}

impl Pair {
    fn turn(&mut self) {
        let mut ready = Ready::new();
        let mut network: Vec<Message> = Vec::new();
        loop {
            for group in &mut self.groups {
                while group.ready(&mut ready) {
                    network.append(&mut ready.messages);
                    if ready.must_sync {
                        group.persisted(ready.number);
                    }
                    network.append(&mut ready.messages_after_sync);
                    if let Some(last) = ready.committed.last() {
                        group.applied(last.index);
                    }
                }
            }
            if network.is_empty() {
                return;
            }
            for message in network.drain(..) {
                let to = message.to().0 as usize - 1;
                self.groups[to].step(message).expect("a member");
            }
        }
    }
}

#[test]
fn neither_an_idle_day_nor_a_burst_leaves_anything_behind() {
    let nodes = [NodeId(1), NodeId(2)];
    let config = |node| Config { cache_bytes_max: 1, ..Config::new(node, 1, 1) };
    let groups = nodes.map(|node| Group::new(config(node), Restored::bootstrap(nodes)).expect("valid"));
    let mut pair = Pair { groups: groups.into() };
    pair.groups[0].campaign();
    pair.turn();

    let before = LIVE_BYTES.load(Ordering::Relaxed);
    for _ in 0..20_000 {
        pair.groups[0].tick();
        pair.turn();
    }
    let grown = LIVE_BYTES.load(Ordering::Relaxed) - before;
    assert!(grown < SLACK_BYTES, "heartbeats leave {grown} bytes");

    for _ in 0..10_000 {
        pair.groups[0].propose(Bytes::from_static(b"a command")).expect("it leads");
    }
    pair.turn();
    pair.groups[0].tick();
    pair.turn();
    assert_eq!(pair.groups[0].status().applied, pair.groups[1].status().applied);
    let grown = LIVE_BYTES.load(Ordering::Relaxed) - before;
    assert!(grown < SLACK_BYTES, "a burst leaves {grown} bytes");
}

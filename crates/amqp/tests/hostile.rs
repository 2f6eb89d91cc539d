//! Hostile clients: whatever they send, memory stays bounded, and it is their own connection that
//! they lose.
//!
//! One test in this file, as it counts every byte that the process allocates.

mod client;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use amqp::wire::frame::{FRAME_BODY, FRAME_HEADER, FRAME_METHOD};
use amqp::wire::method::Method;
use amqp::{ConnectionConfig, Event, Reply, Request};
use bytes::Bytes;
use client::*;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that `attack` needed at any time beyond what was there before.
fn peak(attack: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    attack();
    PEAK.load(Ordering::Relaxed) - before
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Feeds in parts as a socket would, for as long as the connection reads; looks at no event and
/// reads no byte.
fn flood(client: &mut Client, bytes: &[u8], total: usize) -> usize {
    let mut fed = 0;
    while fed < total && client.connection.wants_input() {
        client.raw(bytes);
        while let Some(event) = client.event() {
            drop(event);
        }
        fed += bytes.len();
    }
    fed
}

/// A queue declare with these table fields.
fn declare_with(fields: &[u8]) -> Vec<u8> {
    let mut payload = b"\0\x32\0\x0a\0\0\x01q\0".to_vec();
    payload.extend_from_slice(&(fields.len() as u32).to_be_bytes());
    payload.extend_from_slice(fields);
    payload
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut report = Vec::new();
    let mut bounded = |name: &str, limit: usize, attack: fn()| {
        let used = peak(attack);
        report.push(format!("{name}: {used} of {limit}"));
        assert!(used <= limit, "{report:#?}");
    };

    bounded("garbage instead of a protocol header", 64 * KIB, || {
        let mut client = Client::connect(ConnectionConfig::default());
        flood(&mut client, &[0xa5; 4096], MIB);
        assert!(client.connection.is_finished());
    });

    bounded("a frame that claims four gigabytes", 64 * KIB, || {
        let (mut client, _) = Client::with_channel();
        client.raw(&[FRAME_BODY, 0, 1, 0xff, 0xff, 0xff, 0xff]);
        flood(&mut client, &[0; 8192], 10 * MIB);
        assert!(client.input.is_empty());
        client.sleep(3_000);
        assert!(client.connection.is_finished());
    });

    bounded("a table of sixty thousand entries in one frame", 2 * MIB, || {
        let (mut client, _) = Client::with_channel();
        client.frame(FRAME_METHOD, 1, &declare_with(&b"\0V".repeat(65_000)));
        assert!(matches!(client.read_method(), (0, Method::ConnectionClose { reply_code: 502, .. })));
    });

    bounded("a table as deep as a frame allows", MIB, || {
        let (mut client, _) = Client::with_channel();
        let mut fields = Vec::new();
        for _ in 0..10_000 {
            let mut outer = b"\x01aF".to_vec();
            outer.extend_from_slice(&(fields.len() as u32).to_be_bytes());
            // Built from the outside in would be quadratic; the inner length does not matter for
            // the depth.
            outer.append(&mut fields);
            fields = outer;
        }
        client.frame(FRAME_METHOD, 1, &declare_with(&fields));
        assert!(matches!(client.read_method(), (0, Method::ConnectionClose { reply_code: 502, .. })));
    });

    bounded("headers as deep as a frame allows", MIB, || {
        let (mut client, _) = Client::with_channel();
        client.send(1, publish_method("q"));
        let mut fields: Vec<u8> = Vec::new();
        for _ in 0..10_000 {
            let mut outer = b"\x01aF".to_vec();
            outer.extend_from_slice(&(fields.len() as u32).to_be_bytes());
            outer.append(&mut fields);
            fields = outer;
        }
        let mut header = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0];
        header.extend_from_slice(&(fields.len() as u32).to_be_bytes());
        header.extend_from_slice(&fields);
        client.frame(FRAME_HEADER, 1, &header);
        assert!(matches!(client.read_method(), (0, Method::ConnectionClose { reply_code: 502, .. })));
    });

    bounded("the largest body claimed on every channel, one byte sent", 3 * MIB, || {
        let (mut client, _) = Client::with_channel();
        for number in 2..=2047 {
            client.open_channel(number);
            client.send(number, publish_method("q"));
            client.frame(FRAME_HEADER, number, &header_payload(16 * MIB as u64));
            client.frame(FRAME_BODY, number, b"x");
        }
        assert!(client.connection.is_running());
    });

    bounded("unfinished bodies on every channel", 64 * MIB + 4 * MIB, || {
        let (mut client, _) = Client::with_channel();
        for number in 2..=2047 {
            client.open_channel(number);
            client.send(number, publish_method("q"));
            client.frame(FRAME_HEADER, number, &header_payload(16 * MIB as u64));
            client.frame(FRAME_BODY, number, &[1; 100_000]);
            if !client.connection.is_running() {
                break;
            }
        }
        assert!(matches!(client.events().pop(), Some(Event::Closed(_))));
    });

    bounded("a few bytes kept of each read buffer", 4 * MIB, || {
        let (mut client, channel) = Client::with_channel();
        let tag = client.consume(channel, "tag");
        for number in 2..=1000 {
            // A read buffer of its own each time, of which only the start of a message is kept.
            client.input = Default::default();
            let mut bytes = Vec::new();
            channel_open().write(&mut bytes, number);
            publish_method("q").write(&mut bytes, number);
            bytes.extend_from_slice(&publish_bytes(1, "q", &[7; 1000]).repeat(60));
            client.raw(&bytes);
            client.frame(FRAME_HEADER, number, &header_payload(10));
            client.events();
            client.read_bytes();
        }
        assert!(client.connection.is_running());
        assert_eq!(tag.as_bytes(), b"tag");
    });

    bounded("a frame that waits in each read buffer", 4 * MIB, || {
        let (mut client, _) = Client::with_channel();
        client.open_channel(2);
        client.send(2, declare("q", false));
        for _ in 0..1000 {
            client.input = Default::default();
            let mut bytes = Vec::new();
            ack(1, false).write(&mut bytes, 2);
            bytes.extend_from_slice(&publish_bytes(1, "q", &[7; 1000]).repeat(60));
            client.raw(&bytes);
            client.events();
        }
        assert!(client.connection.wants_input());
    });

    bounded("a consumer tag in each read buffer", 4 * MIB, || {
        let (mut client, channel) = Client::with_channel();
        for number in 0..1000u32 {
            client.input = Default::default();
            let mut bytes = Vec::new();
            consume(Bytes::from(format!("tag {number}"))).write(&mut bytes, 1);
            bytes.extend_from_slice(&publish_bytes(1, "q", &[7; 1000]).repeat(60));
            client.raw(&bytes);
            let Request::Consume { consumer_tag, .. } = client.request() else { panic!("a consume") };
            client.connection.reply(channel, Reply::Consuming { consumer_tag });
            client.events();
            client.read_bytes();
        }
    });

    bounded("a channel that never stops talking while it waits", 4 * MIB, || {
        let (mut client, _) = Client::with_channel();
        client.send(1, declare("q", false));
        client.event();
        let fed = flood(&mut client, &publish_bytes(1, "q", &[7; 1000]).repeat(60), 100 * MIB);
        assert!(fed < 2 * MIB, "{fed}");
        assert!(client.connection.is_running());
    });

    bounded("a publisher that is blocked and does not stop", 4 * MIB, || {
        let (mut client, _) = Client::with_channel();
        client.connection.set_blocked(Some("low on disk"));
        let fed = flood(&mut client, &publish_bytes(1, "q", &[7; 1000]).repeat(60), 100 * MIB);
        assert!(fed < 2 * MIB, "{fed}");
    });

    bounded("requests whose answers are not read", 16 * MIB, || {
        let (mut client, _) = Client::with_channel();
        let mut flow = Vec::new();
        Method::ChannelFlow { active: true }.write(&mut flow, 1);
        let fed = flood(&mut client, &flow.repeat(5000), 100 * MIB);
        assert!(fed < 10 * MIB, "{fed}");
    });

    bounded("a read full of the smallest publishes", 3 * MIB, || {
        let (mut client, _) = Client::with_channel();
        let bytes = publish_bytes(1, "q", b"").repeat(20_000);
        client.raw(&bytes);
        let mut count = 0;
        while let Some(Event::Publish(_)) = client.event() {
            count += 1;
        }
        assert_eq!((count, client.connection.wants_input()), (20_000, true));
    });

    bounded("channels opened and closed without end", MIB, || {
        let (mut client, _) = Client::with_channel();
        let mut bytes = Vec::new();
        channel_open().write(&mut bytes, 7);
        Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 }
            .write(&mut bytes, 7);
        for _ in 0..20_000 {
            client.raw(&bytes);
            client.events();
            client.read_bytes();
        }
        assert_eq!(client.connection.channel_count(), 1);
    });

    bounded("content for a channel that is closed, without end", 2 * MIB, || {
        let (mut client, _) = Client::with_channel();
        client.send(1, ack(9, false));
        client.read();
        flood(&mut client, &publish_bytes(1, "q", &[7; 1000]).repeat(60), 20 * MIB);
        assert_eq!(client.read(), []);
    });

    bounded("half frames, a byte at a time", 256 * KIB, || {
        let (mut client, _) = Client::with_channel();
        let mut bytes = Vec::new();
        (0..50).for_each(|_| bytes.extend_from_slice(&publish_bytes(1, "q", &[7; 100])));
        for byte in &bytes {
            client.raw(&[*byte]);
        }
        assert_eq!(client.events().len(), 50);
    });
}

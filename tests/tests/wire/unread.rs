//! Clients that leave unread what the broker has for them: those that are gone are noticed, those
//! that are slow are not.
//!
//! Invariant: what such a client holds comes back to its queues once it is gone, and not before.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use clients::broker::{is_foreign, unique};
use clients::client::{FRAME_HEARTBEAT, PATIENCE, frame};
use clients::methods::*;
use clients::wire::Args;
use clients::{Broker, Client, Event, Login, QueueDeclare};

/// Together far more than socket buffers take.
const MESSAGES: u64 = 100;
static BODY: [u8; 100_000] = [7; 100_000];

/// How a client gets messages that it does not read.
#[derive(Clone, Copy, Debug)]
enum Way {
    Consume,
    Get,
}

impl Way {
    const ALL: [Way; 2] = [Way::Consume, Way::Get];
}

/// A queue with large messages, and a client that asked for all of them and has read none.
fn flooded(way: Way, heartbeat: u16) -> (Client, u16, String, Client, u16) {
    let mut watcher = Broker::shared().connect();
    let (watching, queue) = (watcher.channel(), unique("unread"));
    // In memory: these tests are about sockets.
    watcher.declare(watching, &QueueDeclare { name: &queue, ..Default::default() }).unwrap();
    watcher.confirm_select(watching).unwrap();
    for _ in 0..MESSAGES {
        watcher.put(watching, &queue, &BODY);
    }
    watcher.confirmed(watching, 1, MESSAGES);
    let login = Login { heartbeat, ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    let channel = client.channel();
    match way {
        Way::Consume => {
            let args = Args::new().short(0).shortstr(&queue).shortstr("unread").octet(0).table(&[]);
            client.send(channel, BASIC_CONSUME, &args);
        }
        Way::Get => {
            for _ in 0..MESSAGES {
                client.send(channel, BASIC_GET, &Args::new().short(0).shortstr(&queue).octet(0));
            }
        }
    }
    // Until what it asked for is in its hands, as far as the broker gives it out.
    let due = Instant::now() + PATIENCE;
    while u64::from(watcher.counts(watching, &queue).unwrap().0) > MESSAGES - 5 {
        assert!(Instant::now() < due, "{way:?}: nothing is given out");
    }
    (watcher, watching, queue, client, channel)
}

fn all_come_back(watcher: &mut Client, watching: u16, queue: &str, way: Way) {
    let due = Instant::now() + PATIENCE;
    loop {
        let (ready, consumers) = watcher.counts(watching, queue).unwrap();
        if u64::from(ready) == MESSAGES && consumers == 0 {
            return;
        }
        assert!(Instant::now() < due, "{way:?}: {ready} of {MESSAGES} messages are back, {consumers} consumers left");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_client_that_neither_reads_nor_writes_is_dropped_for_its_silence() {
    for way in Way::ALL {
        let (mut watcher, watching, queue, _client, _) = flooded(way, 2);
        all_come_back(&mut watcher, watching, &queue, way);
    }
}

#[test]
fn a_client_that_does_not_read_and_sends_heartbeats_is_not_silent() {
    for way in Way::ALL {
        let (mut watcher, watching, queue, mut client, channel) = flooded(way, 1);
        let until = Instant::now() + Duration::from_secs(6);
        while Instant::now() < until {
            client.raw(&frame(FRAME_HEARTBEAT, 0, b""));
            std::thread::sleep(Duration::from_millis(400));
        }
        assert!(watcher.counts(watching, &queue).unwrap().0 < MESSAGES as u32, "{way:?}: it was dropped");
        for n in 0..MESSAGES {
            assert_eq!(client.delivery_or_got(channel).len(), BODY.len(), "{way:?}: message {n}");
        }
    }
}

#[test]
fn a_client_that_closes_its_end_without_reading_is_gone_also_without_heartbeats() {
    for way in Way::ALL {
        let (mut watcher, watching, queue, client, _) = flooded(way, 0);
        client.stream.shutdown(Shutdown::Write).unwrap();
        all_come_back(&mut watcher, watching, &queue, way);
    }
    for way in Way::ALL {
        // Unread bytes in a socket that is closed are a reset.
        let (mut watcher, watching, queue, client, _) = flooded(way, 0);
        drop(client);
        all_come_back(&mut watcher, watching, &queue, way);
    }
}

#[test]
fn what_was_sent_before_the_end_counts_although_nobody_read_the_answers() {
    let (mut watcher, watching, queue, mut client, channel) = flooded(Way::Get, 0);
    let kept = unique("kept");
    let declare = QueueDeclare { name: &kept, durable: true, ..Default::default() };
    watcher.declare(watching, &declare).unwrap();
    // On a channel of its own, as the first one still has questions to ask.
    let other = channel + 1;
    client.send(other, CHANNEL_OPEN, &Args::new().shortstr(""));
    client.put(other, &kept, b"last words");
    client.stream.shutdown(Shutdown::Write).unwrap();
    all_come_back(&mut watcher, watching, &queue, Way::Get);
    let due = Instant::now() + PATIENCE;
    while watcher.counts(watching, &kept).unwrap().0 == 0 {
        assert!(Instant::now() < due, "a publish was in the socket when the client closed its end");
    }
}

#[test]
fn a_consumer_that_writes_for_long_before_it_reads_is_read() {
    let (_watcher, _, _, mut client, channel) = flooded(Way::Consume, 0);
    client.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // More than the sockets take: the broker has to read although its deliveries lie there.
    for _ in 0..MESSAGES {
        client.put(channel, "no-such-queue", &BODY);
    }
    for n in 0..MESSAGES {
        assert_eq!(client.delivery_or_got(channel).len(), BODY.len(), "message {n}");
    }
}

#[test]
fn the_first_heartbeat_comes_well_before_an_interval_has_passed() {
    if is_foreign() {
        eprintln!("RabbitMQ sends its first heartbeat between half an interval and a whole one");
    }
    let login = Login { heartbeat: 8, ..Default::default() };
    let mut client = Client::login(Broker::shared().addr(), &login).unwrap();
    let since = Instant::now();
    while !client.frames_seen.contains_key(&FRAME_HEARTBEAT) {
        assert!(since.elapsed() < Duration::from_millis(7_000), "no heartbeat for {:?}", since.elapsed());
        if let Some(other) = client.event_within(0, Duration::from_millis(100)) {
            panic!("a heartbeat was due, and not {other:?}");
        }
    }
}

trait Bodies {
    fn delivery_or_got(&mut self, channel: u16) -> Vec<u8>;
}

impl Bodies for Client {
    /// The body of the next message, whichever way it was asked for.
    fn delivery_or_got(&mut self, channel: u16) -> Vec<u8> {
        loop {
            match self.event(channel) {
                Event::Delivery(delivery) => return delivery.body,
                Event::Method(BASIC_CONSUME_OK, _) => {}
                other => panic!("a message was due, got {other:?}"),
            }
        }
    }
}

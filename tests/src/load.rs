//! Load for a crash test: publishers and consumers that note in a ledger what they see, until the
//! broker is gone.
//!
//! Invariant: an event enters the ledger before its cause is sent (publish, ack) or after its proof
//! has come (confirm, settle), so the ledger never promises more than the broker did.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::client::{Client, Event, Login, PATIENCE, SILENCE};
use crate::ledger::{Broken, Found, Ledger, MessageId, Publisher, body, identify};
use crate::verbs::Publish;
use crate::wire::{Properties, Value};

/// Publishes that a publisher leaves unconfirmed.
const UNCONFIRMED_MAX: usize = 200;

/// Consumers have publisher numbers from here on, for the barriers they publish.
const BARRIERS: Publisher = 1000;
/// A queue that says so often that it has something, and sends nothing, is taken at its silence.
const LOOKS_MAX: u32 = 40;
/// For what came before an answer on the same connection.
const ARRIVED: Duration = Duration::from_millis(10);

/// A queue under load, and what is known of it.
pub struct LoadedQueue {
    /// Its name.
    pub name: String,
    /// Headers of every message, for a durability level of its own.
    pub headers: Vec<(&'static str, Value)>,
    ledger: Arc<Mutex<Ledger>>,
}

/// The threads of one round.
pub struct Load(Vec<JoinHandle<Result<(), Broken>>>);

impl LoadedQueue {
    /// A queue that exists already and is empty.
    pub fn new(name: String) -> Self {
        Self { name, headers: Vec::new(), ledger: Arc::default() }
    }

    /// The same, its messages with these headers.
    pub fn with_headers(self, headers: Vec<(&'static str, Value)>) -> Self {
        Self { headers, ..self }
    }

    /// The ledger.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no thread panics while it writes into the ledger")
    }

    /// Reads all that the queue holds, audits it, and then either gives everything back or takes it
    /// for good.
    pub fn audit(&self, addr: SocketAddr, keep: bool) -> Vec<Broken> {
        let mut client = Client::connect(addr);
        let channel = client.channel();
        client.confirm_select(channel).expect("confirm.select");
        client.consume(channel, &self.name, "audit").expect("basic.consume");
        let eye = client.channel();
        let mut found = Vec::new();
        // Until it falls silent, not as many as it says it has: a count may lag behind, a message
        // may not be missing. But a machine that stood still is silent too: then the queue says
        // that there is more, or has sent it meanwhile.
        let mut patience = SILENCE * 2;
        for _ in 0..LOOKS_MAX {
            while let Some(event) = client.event_within(channel, patience) {
                patience = SILENCE * 2;
                let Event::Delivery(delivery) = event else { panic!("a delivery was due, got {event:?}") };
                match identify(&delivery.body) {
                    Ok(id) => found.push(Found { id, redelivered: delivery.redelivered }),
                    Err(broken) => return vec![broken],
                }
            }
            if patience == ARRIVED {
                break;
            }
            let (ready, _) = client.counts(eye, &self.name).expect("the queue is there");
            if ready == 0 {
                patience = ARRIVED;
            }
        }
        let mut ledger = self.ledger();
        let broken = ledger.audit(&found);
        if keep {
            client.nack(channel, 0, true, true);
            client.round_trip(channel).expect("the channel lives");
            drop(ledger);
            client.close();
            return broken;
        }
        found.iter().for_each(|found| ledger.ack(found.id));
        client.cancel(channel, "audit").expect("basic.cancel");
        client.ack(channel, 0, true);
        let id = (BARRIERS - 1, ledger.publish(BARRIERS - 1));
        let bytes = body(id, 20);
        client.publish(channel, &self.message(&bytes));
        client.confirmed(channel, 1, 1);
        ledger.confirm(id);
        ledger.settle(found.into_iter().map(|found| found.id));
        drop(ledger);
        client.close();
        broken
    }

    fn message<'a>(&'a self, body: &'a [u8]) -> Publish<'a> {
        let headers: Vec<(&str, Value)> = self.headers.iter().map(|(key, value)| (*key, value.clone())).collect();
        let properties = if headers.is_empty() { Properties::persistent() } else { Properties::with_headers(&headers) };
        Publish { key: &self.name, properties, body, ..Default::default() }
    }

    fn handle(&self) -> LoadedQueue {
        LoadedQueue { name: self.name.clone(), headers: self.headers.clone(), ledger: Arc::clone(&self.ledger) }
    }
}

impl Load {
    /// Starts `publishers` and `consumers` on each queue. They run until the broker goes away.
    pub fn start(addr: SocketAddr, queues: &[LoadedQueue], publishers: u32, consumers: u32, seed: u64) -> Load {
        let mut threads = Vec::new();
        for (at, queue) in queues.iter().enumerate() {
            for number in 0..publishers {
                let (queue, seed) = (queue.handle(), seed ^ (at as u64) << 32 ^ u64::from(number));
                threads.push(std::thread::spawn(move || publisher(addr, &queue, number, seed)));
            }
            for number in 0..consumers {
                let (queue, seed) = (queue.handle(), !seed ^ (at as u64) << 32 ^ u64::from(number));
                threads.push(std::thread::spawn(move || consumer(addr, &queue, BARRIERS + number, seed)));
            }
        }
        Load(threads)
    }

    /// Waits for all of them; what they saw broken while the broker was up.
    pub fn join(self) -> Vec<Broken> {
        self.0.into_iter().filter_map(|thread| thread.join().expect("a load thread does not panic").err()).collect()
    }
}

/// A body size as applications have them: mostly small, some of a few kilobytes, now and then one
/// over many frames.
fn body_bytes(random: &mut Pcg64) -> usize {
    match random.random_range(0..100) {
        0 => random.random_range(100_000..400_000),
        1..10 => random.random_range(1000..9000),
        _ => random.random_range(16..300),
    }
}

fn publisher(addr: SocketAddr, queue: &LoadedQueue, me: Publisher, seed: u64) -> Result<(), Broken> {
    let mut random = Pcg64::seed_from_u64(seed);
    let Ok(mut client) = Client::login(addr, &Login::default()) else { return Ok(()) };
    if client.open_channel(1).is_err() || client.confirm_select(1).is_err() {
        return Ok(());
    }
    // The numbers of this channel's publishes, oldest first: its sequence numbers start at 1 and
    // have no gaps.
    let mut open: VecDeque<(u64, u64)> = VecDeque::new();
    let mut sequence = 0;
    loop {
        for _ in 0..random.random_range(1..=UNCONFIRMED_MAX / 2) {
            let number = queue.ledger().publish(me);
            let bytes = body((me, number), body_bytes(&mut random));
            sequence += 1;
            open.push_back((sequence, number));
            client.publish(1, &queue.message(&bytes));
        }
        while open.len() > UNCONFIRMED_MAX / 2 {
            match client.event_within(1, PATIENCE) {
                Some(Event::Confirm { tag, multiple, nack }) => {
                    let mut ledger = queue.ledger();
                    open.retain(|(sequence, number)| {
                        let covered = *sequence == tag || (multiple && *sequence < tag);
                        match (covered, nack) {
                            (true, false) => ledger.confirm((me, *number)),
                            (true, true) => ledger.refuse((me, *number)),
                            _ => {}
                        }
                        !covered
                    });
                }
                Some(Event::Closed(_)) => return Ok(()),
                other => panic!("a confirm was due, got {other:?}"),
            }
        }
    }
}

fn consumer(addr: SocketAddr, queue: &LoadedQueue, me: Publisher, seed: u64) -> Result<(), Broken> {
    let mut random = Pcg64::seed_from_u64(seed);
    let Ok(mut client) = Client::login(addr, &Login::default()) else { return Ok(()) };
    let prefetch = random.random_range(1..300);
    let ready = client.open_channel(1).is_ok()
        && client.confirm_select(1).is_ok()
        && client.qos(1, prefetch, false).is_ok()
        && client.consume(1, &queue.name, "load").is_ok();
    if !ready {
        return Ok(());
    }
    let mut unacked: BTreeMap<u64, MessageId> = BTreeMap::new();
    let mut acked: Vec<MessageId> = Vec::new();
    // Barriers on their way: sequence, number, and the acks that were sent before it.
    let mut barriers: VecDeque<(u64, u64, Vec<MessageId>)> = VecDeque::new();
    let mut sequence = 0;
    let mut fresh: BTreeMap<Publisher, u64> = BTreeMap::new();
    loop {
        match client.event_within(1, Duration::from_millis(20)) {
            Some(Event::Delivery(delivery)) => {
                let id = identify(&delivery.body)?;
                queue.ledger().deliver(id, delivery.redelivered)?;
                if !delivery.redelivered
                    && let Some(before) = fresh.insert(id.0, id.1)
                    && before > id.1
                {
                    return Err(Broken::Disorder((id.0, before), id));
                }
                unacked.insert(delivery.tag, id);
            }
            Some(Event::Confirm { tag, multiple, nack }) => {
                let mut ledger = queue.ledger();
                barriers.retain_mut(|(sequence, number, before)| {
                    let covered = *sequence == tag || (multiple && *sequence < tag);
                    if covered && nack {
                        ledger.refuse((me, *number));
                    } else if covered {
                        ledger.confirm((me, *number));
                        ledger.settle(before.drain(..));
                    }
                    !covered
                });
                continue;
            }
            // A broker that ends in good order may cancel its consumers before it closes their
            // connections.
            Some(Event::Closed(_) | Event::Cancelled(_)) => return Ok(()),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        settle_some(&mut client, queue, &mut random, &mut unacked, &mut acked);
        if acked.len() > 50 && random.random_bool(0.2) {
            let number = queue.ledger().publish(me);
            sequence += 1;
            barriers.push_back((sequence, number, std::mem::take(&mut acked)));
            let bytes = body((me, number), 20);
            client.publish(1, &queue.message(&bytes));
        }
    }
}

/// Acks one, many, or none of what is unacked, and gives one back now and then.
fn settle_some(
    client: &mut Client,
    queue: &LoadedQueue,
    random: &mut Pcg64,
    unacked: &mut BTreeMap<u64, MessageId>,
    acked: &mut Vec<MessageId>,
) {
    let tags: Vec<u64> = unacked.keys().copied().collect();
    if tags.is_empty() {
        return;
    }
    let tag = tags[random.random_range(0..tags.len())];
    let (taken, multiple): (Vec<u64>, bool) = match random.random_range(0..100) {
        0..40 => return,
        40..85 => (vec![tag], false),
        85..99 => (tags.into_iter().filter(|other| *other <= tag).collect(), true),
        _ => {
            unacked.remove(&tag);
            return client.nack(1, tag, false, true);
        }
    };
    let mut ledger = queue.ledger();
    for tag in &taken {
        let id = unacked.remove(tag).expect("taken from it just now");
        ledger.ack(id);
        acked.push(id);
    }
    drop(ledger);
    client.ack(1, tag, multiple);
}

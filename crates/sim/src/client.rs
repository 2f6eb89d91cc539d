//! Clients: publishers that resend until they are confirmed, and readers that consume, get, ack,
//! give back and purge.
//!
//! A client knows nothing but what nodes tell it. Invariants: a publisher sends, on each
//! connection, all its unconfirmed publishes in order before anything new, under the numbers that
//! they had; a reader settles only what it was given on the same channel, each once.

mod composing;
mod reading;

use crate::checks::Checks;
use crate::node::SessionId;
use crate::random::Random;
use crate::registry::Registry;
use crate::schedule::{MS, Micros, SECOND};
use broker::queue::Consumer;
use broker::{ChannelKey, ConsumerKey, QueueId};
use partition::command::Selective;
use partition::{Command, Effect, Reply, RequestId};
use std::collections::{BTreeMap, VecDeque};

pub use composing::mix_up_key;
use composing::{DELAYED_PERCENT, Way, compose};

/// Publishes that a publisher has under way at most.
const WINDOW: usize = 40;
/// How long a publisher waits for a confirm before it tries another node.
const CONFIRM_TIMEOUT: Micros = 2 * SECOND;
/// How long a reader waits for any sign of life before it tries another node.
const REPLY_TIMEOUT: Micros = 3 * SECOND;

/// After so many refusals in a row a publisher looks for another node; where it sends again what is refused, it
/// gives up what was refused last.
const REFUSALS_MAX: u32 = 20;

/// How a queue keeps its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Confirm once the leader has written it.
    LeaderWritten,
    /// Confirm once the leader has synced it.
    LeaderSynced,
    /// Confirm once written.
    Written,
    /// Confirm once synced.
    Synced,
    /// Written within a cap.
    Selective(Selective),
}

/// A queue, as clients know it.
#[derive(Clone, Copy, Debug)]
pub struct QueueSettings {
    /// Its id.
    pub id: QueueId,
    /// How it keeps its messages.
    pub keeping: Keeping,
}

/// Dead letters are published on channels from here on, one for each life of a node.
const BURIALS_FROM: u128 = 1 << 60;

/// The channel on which a node publishes dead letters in one of its lives.
pub fn dead_letter_channel(node: u64, life: u32) -> ChannelKey {
    ChannelKey(BURIALS_FROM | u128::from(node) << 32 | u128::from(life))
}

/// Whether dead letters are published on this channel.
pub fn is_dead_letter_channel(channel: ChannelKey) -> bool {
    channel.0 >= BURIALS_FROM && channel != ChannelKey::NOBODY
}

/// A question about a queue: the number says which queue it is.
fn question(queue: QueueId, number: u64) -> RequestId {
    RequestId(queue.0 << 32 | number)
}

/// The queue that a question is about.
pub fn queue_of(request: RequestId) -> QueueId {
    QueueId(request.0 >> 32)
}

/// The header of a delay up to its value, which is four bytes.
const DELAY_FIELD: &[u8] = b"\x07x-delayI";

/// What publishers to the queues of a partition do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// Their messages have priorities, time limits and delays.
    pub varied: bool,
    /// A publish that was refused is given up: one of the queues refuses what is too much.
    pub gives_up: bool,
    /// Some messages go through an exchange that lets them wait.
    pub delays: bool,
}

/// What a client wants of the world.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Most wishes are commands.
pub enum Wish {
    /// A connection to some node, for this channel.
    Open(ChannelKey),
    /// A command on its connection.
    Send(Command),
    /// The end of its connection, and of the channel if `ended`.
    Close {
        /// The channel is over; otherwise it goes on elsewhere.
        ended: bool,
    },
    /// To be woken.
    Wake(Micros),
}

/// One client. `group` is its partition, by number.
pub struct Client {
    /// Its partition.
    pub group: usize,
    /// Its connection.
    pub session: Option<SessionId>,
    channels: u64,
    next_channel: u64,
    channel: ChannelKey,
    random: Random,
    queues: Vec<QueueSettings>,
    heard: Micros,
    part: Part,
}

enum Part {
    Publisher(Publisher),
    Reader(Reader),
}

struct Publisher {
    habits: Habits,
    confirms: bool,
    next_seq: u64,
    number: u64,
    unconfirmed: VecDeque<(u64, u64, Command)>,
    body_bytes_max: u64,
    pause_max: Micros,
    sessions: u32,
    /// Refusals since the last confirm.
    refusals: u32,
}

struct Reader {
    consumers: BTreeMap<u32, (QueueId, u32)>,
    /// Requests for a consumer, not answered yet.
    asked: BTreeMap<RequestId, u32>,
    /// Queues that were created since it connected.
    new_queues: Vec<QueueId>,
    next_consumer: u32,
    next_request: u64,
    /// What it holds: queue, holder, number, when it is settled.
    held: VecDeque<(QueueId, ConsumerKey, u64, Micros)>,
    prefetch: u32,
    no_ack: bool,
    granted_only: bool,
    gets: bool,
    think_max: Micros,
    unruly: bool,
}

/// What a client is told from outside.
pub struct Now<'a> {
    /// The time.
    pub now: Micros,
    /// Publishing and mischief are over: what is there is to be drained.
    pub draining: bool,
    /// Where it says what it does.
    pub checks: &'a mut Checks,
    /// Where exchanges lead.
    pub registry: &'a Registry,
    /// What it wants.
    pub wishes: &'a mut Vec<Wish>,
}

impl Client {
    fn new(number: u64, group: usize, queues: &[QueueSettings], mut random: Random, part: Part) -> Client {
        let channels = (number + 1) << 32;
        let random = random.fork();
        Client {
            group,
            session: None,
            channels,
            next_channel: 1,
            channel: ChannelKey(u128::from(channels)),
            random,
            queues: queues.to_vec(),
            heard: 0,
            part,
        }
    }

    /// A publisher to the queues of a partition.
    pub fn publisher(
        number: u64,
        group: usize,
        queues: &[QueueSettings],
        mut random: Random,
        habits: Habits,
    ) -> Client {
        let confirms = !random.chance(15);
        let body_bytes_max = match habits.varied {
            true => *random.pick(&[40, 200, 1_000]),
            false => *random.pick(&[40, 200, 2_000, 20_000]),
        };
        let pause_max = *random.pick(&[20 * MS, 80 * MS, 300 * MS]);
        let publisher = Publisher {
            habits,
            confirms,
            next_seq: 1,
            number: 1,
            unconfirmed: VecDeque::new(),
            body_bytes_max,
            pause_max,
            sessions: 0,
            refusals: 0,
        };
        Client::new(number, group, queues, random, Part::Publisher(publisher))
    }

    /// A reader of the queues of a partition. An unruly one gives back, purges, and leaves.
    pub fn reader(number: u64, group: usize, queues: &[QueueSettings], mut random: Random, unruly: bool) -> Client {
        let reader = Reader {
            consumers: BTreeMap::new(),
            asked: BTreeMap::new(),
            new_queues: Vec::new(),
            next_consumer: 1,
            next_request: 1,
            held: VecDeque::new(),
            prefetch: *random.pick(&[0, 1, 3, 10, 100]),
            no_ack: unruly && random.chance(15),
            granted_only: unruly && random.chance(15),
            gets: unruly && random.chance(20),
            think_max: *random.pick(&[MS, 5 * MS, 40 * MS]),
            unruly,
        };
        Client::new(number, group, queues, random, Part::Reader(reader))
    }

    /// Most messages that it takes from one queue at a time; `None` is no limit, and 0 is a
    /// publisher.
    pub fn credit(&self) -> Option<u64> {
        match &self.part {
            Part::Publisher(_) => Some(0),
            Part::Reader(r) => (r.prefetch > 0 && !r.no_ack && !r.granted_only).then_some(r.prefetch.into()),
        }
    }

    /// Whether it waits for nothing.
    pub fn is_done(&self) -> bool {
        match &self.part {
            Part::Publisher(p) => p.unconfirmed.is_empty(),
            Part::Reader(r) => {
                let is_there = |queue: &QueueId| self.queues.iter().any(|known| known.id == *queue);
                r.consumers.values().all(|(queue, _)| is_there(queue))
            }
        }
    }

    /// Whether it reads.
    pub fn is_reader(&self) -> bool {
        matches!(self.part, Part::Reader(_))
    }

    /// A queue is gone: it is not published to any more. Its readers are told by their partition.
    pub fn queue_gone(&mut self, queue: QueueId) {
        self.queues.retain(|known| known.id != queue);
    }

    /// There is a new queue.
    pub fn queue_created(&mut self, queue: QueueSettings) {
        self.queues.push(queue);
        if let Part::Reader(r) = &mut self.part {
            r.new_queues.push(queue.id);
        }
    }

    /// One line about how it stands.
    pub fn describe(&self) -> String {
        let session = self.session;
        match &self.part {
            Part::Publisher(p) => {
                let first = p.unconfirmed.front().map(|u| (u.0, u.1));
                format!(
                    "publisher {} {session:?} unconfirmed {} from {first:?}",
                    self.channel.number(),
                    p.unconfirmed.len()
                )
            }
            Part::Reader(r) => {
                format!(
                    "reader {} {session:?} consumers {:?} held {}",
                    self.channel.number(),
                    r.consumers,
                    r.held.len()
                )
            }
        }
    }

    /// It was woken.
    pub fn wake(&mut self, n: &mut Now<'_>) {
        let pause = match &self.part {
            Part::Publisher(p) if self.session.is_some() => self.random.between(1, p.pause_max),
            _ => self.random.between(1, 10) * MS,
        };
        n.wishes.push(Wish::Wake(pause));
        if self.session.is_none() {
            return self.open(n);
        }
        match &self.part {
            Part::Publisher(_) => self.publish(n),
            Part::Reader(_) => self.read(n),
        }
    }

    fn open(&mut self, n: &mut Now<'_>) {
        self.heard = n.now;
        let starts_over = match &mut self.part {
            Part::Reader(_) => true,
            Part::Publisher(p) => p.habits.gives_up,
        };
        if starts_over || self.next_channel == 1 {
            self.channel = ChannelKey(u128::from(self.channels + self.next_channel));
            self.next_channel += 1;
        }
        n.wishes.push(Wish::Open(self.channel));
    }

    /// It has a connection.
    pub fn opened(&mut self, n: &mut Now<'_>) {
        let draining = n.draining;
        match &mut self.part {
            Part::Publisher(p) => {
                if p.habits.gives_up {
                    // A number that was refused, unheard, must not come again: as clients do, it
                    // begins a new channel.
                    p.unconfirmed.clear();
                    (p.next_seq, p.number) = (1, 1);
                }
                p.sessions += 1;
                n.wishes.extend(p.unconfirmed.iter().map(|(_, _, command)| Wish::Send(command.clone())));
            }
            Part::Reader(r) => {
                r.forget();
                if !r.gets || draining {
                    for queue in self.queues.clone() {
                        self.consume(queue.id, n);
                    }
                }
            }
        }
    }

    fn consume(&mut self, queue: QueueId, n: &mut Now<'_>) {
        let Part::Reader(r) = &mut self.part else { return };
        let number = r.next_consumer;
        r.next_consumer += 1;
        let (no_ack, granted_only) = (r.no_ack && !n.draining, r.granted_only && !n.draining);
        r.consumers.insert(number, (queue, if no_ack { 0 } else { r.prefetch }));
        let key = ConsumerKey { channel: self.channel, number };
        let consumer = Consumer {
            key,
            prefetch: r.prefetch,
            no_ack,
            exclusive: false,
            priority: self.random.below(3) as i32,
            granted_only,
        };
        // No other question has its number, or the answer to one would be taken for the answer to
        // the other.
        r.next_request += 1;
        let request = question(queue, r.next_request);
        r.asked.insert(request, number);
        n.wishes.push(Wish::Send(Command::Consume { queue, consumer, again: false, request }));
    }

    /// Its connection is gone.
    pub fn lost(&mut self) {
        self.session = None;
        if let Part::Reader(r) = &mut self.part {
            r.forget();
        }
    }

    fn close(&mut self, ended: bool, n: &mut Now<'_>) {
        if ended {
            n.checks.channel_ended(self.channel);
        }
        n.wishes.push(Wish::Close { ended });
        self.lost();
    }

    /// A node says something on its connection.
    pub fn hear(&mut self, effect: Effect, n: &mut Now<'_>) {
        self.heard = n.now;
        match effect {
            Effect::Confirm { first, count, .. } => {
                if let Part::Publisher(p) = &mut self.part {
                    p.refusals = 0;
                    p.unconfirmed.retain(|(seq, _, _)| *seq < first || *seq >= first + count);
                }
            }
            Effect::Refuse { first, count, .. } | Effect::Returned { first, count, .. } => match &mut self.part {
                Part::Publisher(p) if p.habits.gives_up => {
                    p.unconfirmed.retain(|(seq, _, _)| *seq < first || *seq >= first + count);
                    p.refusals += 1;
                    if p.refusals >= REFUSALS_MAX {
                        p.refusals = 0;
                        self.close(false, n);
                    }
                }
                Part::Publisher(p) => {
                    p.refusals += 1;
                    if p.refusals >= REFUSALS_MAX {
                        // Its leader does not know whether it was taken in, and never will.
                        p.refusals = 0;
                        p.unconfirmed.retain(|(seq, _, _)| *seq < first || *seq >= first + count);
                    }
                    self.close(false, n);
                }
                Part::Reader(_) => self.close(false, n),
            },
            Effect::Reply { reply: Reply::NotLeader | Reply::Unavailable, .. } => {
                let ended = matches!(self.part, Part::Reader(_));
                self.close(ended, n);
            }
            Effect::Reply { reply: Reply::Got { delivery, .. }, .. } => self.hold(delivery, n),
            Effect::Deliver(delivery) => self.hold(delivery, n),
            Effect::GrantWanted { consumer, queue, .. } => {
                let count = self.random.between(1, 5) as u32;
                n.wishes.push(Wish::Send(Command::Grant { queue, consumer, count }));
            }
            Effect::Cancelled { consumer, queue } => {
                let settles_late = self.random.chance(50);
                if let Part::Reader(r) = &mut self.part {
                    r.consumers.remove(&consumer.number);
                    // What it holds is gone; it may try to settle it all the same.
                    r.held.retain(|held| held.0 != queue || settles_late);
                }
            }
            Effect::Reply { request, reply, .. } => {
                if let Part::Reader(r) = &mut self.part
                    && let Some(number) = r.asked.remove(&request)
                    && reply == Reply::Gone
                {
                    r.consumers.remove(&number);
                }
            }
            Effect::Unused { .. }
            | Effect::DeadLetter(_)
            | Effect::Lapsed { .. }
            | Effect::GrantReturned { .. }
            | Effect::RepliesDropped { .. }
            | Effect::Parted { .. } => {}
        }
    }

    fn hold(&mut self, delivery: partition::Delivery, n: &mut Now<'_>) {
        let Part::Reader(r) = &mut self.part else { return };
        if !delivery.needs_ack {
            return;
        }
        let think = if n.draining { MS } else { self.random.between(1, r.think_max) };
        let key = delivery.consumer;
        r.held.push_back((delivery.queue, key, delivery.seq, n.now + think));
        let prefetch = r.consumers.get(&key.number).map_or(0, |c| c.1);
        let held = r.held.iter().filter(|h| h.1 == key).count();
        if prefetch != 0 && held > prefetch as usize {
            crate::checks::violated("prefetch", &format!("a consumer with prefetch {prefetch} holds {held} messages"));
        }
    }

    fn publish(&mut self, n: &mut Now<'_>) {
        let Part::Publisher(p) = &mut self.part else { return };
        if !p.unconfirmed.is_empty() && n.now > self.heard + CONFIRM_TIMEOUT {
            return self.close(false, n);
        }
        if n.draining {
            return;
        }
        if p.confirms && p.unconfirmed.is_empty() && p.sessions == 1 && self.random.chance(1) {
            // The channel ends; the next one is another publisher to the log.
            (p.next_seq, p.number, p.sessions) = (1, 1, 0);
            self.next_channel += 1;
            let next = ChannelKey(u128::from(self.channels + self.next_channel));
            self.close(true, n);
            self.channel = next;
            return;
        }
        let burst = if self.queues.is_empty() { 0 } else { self.random.between(1, 4) };
        for _ in 0..burst {
            if p.unconfirmed.len() >= WINDOW {
                break;
            }
            if p.unconfirmed.is_empty() {
                self.heard = n.now;
            }
            let seq = if p.confirms { p.next_seq } else { 0 };
            let bytes = self.random.between(16, p.body_bytes_max) as usize;
            let sender = Sender { group: self.group, channel: self.channel, habits: p.habits };
            let way = match p.habits.delays && self.random.chance(DELAYED_PERCENT) {
                true => Way::delayed(self.group, n, &mut self.random),
                false => Way::straight(&self.queues, &mut self.random),
            };
            if way.chosen.is_empty() {
                // Confirmed by the node that looks where it goes: no partition hears of it.
                continue;
            }
            let (command, id) = compose(sender, seq, p.number, way, bytes, &mut self.random, n.checks);
            p.next_seq += 1;
            p.number += 1;
            if p.confirms {
                p.unconfirmed.push_back((seq, id, command.clone()));
            }
            n.wishes.push(Wish::Send(command));
        }
    }
}

/// Who publishes.
struct Sender {
    group: usize,
    channel: ChannelKey,
    habits: Habits,
}

const HEADERS: u16 = 1 << 13;
/// The header of a key up to its value, which is one byte.
const KEY_FIELD: &[u8] = b"\x16x-deduplication-headerb";
/// Keys that messages have.
const KEYS: u64 = 12;

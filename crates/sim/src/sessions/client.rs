//! A client as an application is one: a connection with several channels, each with a habit of its
//! own.
//!
//! Invariant: it knows nothing but what its connection says. It never publishes a message twice;
//! what it was not told of when its connection or channel ended may have come to pass or not.

mod hearing;
mod queues;

use super::front::ConnectionId;
use super::ledger::{ANSWER_MAX, Fate, Ledger, TO_ALL, To};
use super::wire::{self, Wire};
use crate::checks::violated;
use crate::random::Random;
use crate::schedule::{MS, Micros};
use amqp::wire::method::Method;
use amqp::{Properties, Table, Value};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

pub(super) use queues::{
    AUTO_DELETE, DEAD, FLEETING, SHORT_LIVED, auto_delete, declare, declare_fleeting, declare_short_lived, exclusive,
    fleeting,
};

/// Channels that a client has at most.
const CHANNELS: u64 = 4;
/// Publishes that a channel has under way at most.
const WINDOW: usize = 30;
/// Requests that a channel sends ahead.
const REQUESTS_AHEAD: usize = 3;
/// A consumer without acks is passed over while its channel holds as much as it may, once its queue
/// has heard of that.
const PASSED_OVER_AFTER: Micros = 1_500 * MS;
/// The same where its queue may be on another node, over a link that is seconds late.
const PASSED_OVER_AWAY_AFTER: Micros = 6_000 * MS;
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// What a channel does all its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    Publishes,
    Transacts,
    Consumes,
    Gets,
    Declares,
    Calls,
}

/// A request that waits for its answer.
#[derive(Clone, Debug, PartialEq)]
enum Asked {
    Open,
    Select,
    Qos(u16, bool),
    Consume(String),
    Cancel(String),
    /// Of a queue, with or without an ack, and the channel's own consumer there, which is to have
    /// what there is.
    Get(String, bool, Option<String>),
    Commit,
    Rollback,
    Recover,
    /// Of a declare, a bind, a delete, a purge: the number of the method that answers it.
    Other(u16, u16),
    Close,
}

#[derive(Debug)]
struct Consumer {
    number: u64,
    queue: String,
    prefetch: u16,
    no_ack: bool,
    is_cancelled: bool,
    /// Since when gets have gone past it, and nothing came to it.
    passed_since: Option<Micros>,
}

/// How long gets may go past a consumer that is on its way to the next leader, once nothing of that is late any more over a
/// link of its node: the leader before says over its link that it has let go of the consumer, and until then nobody asks the
/// next one.
const ATTACHED_WITHIN: Micros = 2_000 * MS;

#[derive(Debug)]
struct Held {
    id: u64,
    queue: String,
    /// Its consumer; empty for who got it.
    tag: String,
    until: Micros,
}

#[derive(Debug)]
struct Channel {
    key: u64,
    habit: Habit,
    is_open: bool,
    asked: VecDeque<(Asked, Micros)>,
    next_seq: u64,
    unconfirmed: BTreeMap<u64, (u64, Micros)>,
    /// The last publish that was confirmed, by queue.
    confirmed: BTreeMap<String, u64>,
    uncommitted: Vec<u64>,
    committing: Vec<u64>,
    consumers: BTreeMap<String, Consumer>,
    next_tag: u64,
    prefetch: u16,
    /// What all its consumers may hold together; 0 is no limit.
    limit: u16,
    held: BTreeMap<u64, Held>,
    /// When that limit was reached, if nothing was settled since.
    full_since: Option<Micros>,
    /// The level that its messages ask for themselves.
    level: Option<&'static str>,
}

/// Levels that a channel may ask for: those of the leader alone.
const LEVELS: [&str; 2] = ["leader-written", "leader-synced"];

/// What a client wants of the world.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Nothing,
    Connect,
    /// Its socket is gone, now, with whatever was on its way.
    Cut,
}

/// See the module.
pub(super) struct Client {
    number: u64,
    random: Random,
    pub(super) connection: Option<ConnectionId>,
    is_open: bool,
    is_closing: bool,
    wire: Wire,
    channels: BTreeMap<u16, Channel>,
    /// Bytes for the server.
    pub(super) output: Vec<u8>,
    /// It begins nothing any more.
    pub(super) is_done: bool,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Client {
    pub(super) fn new(number: u64, random: Random) -> Client {
        Client {
            number,
            random,
            connection: None,
            is_open: false,
            is_closing: false,
            wire: Wire::default(),
            channels: BTreeMap::new(),
            output: Vec::new(),
            is_done: false,
        }
    }

    /// It has a connection.
    pub(super) fn connected(&mut self, connection: ConnectionId) {
        self.lost();
        self.connection = Some(connection);
        self.output = wire::greeting();
    }

    /// Its connection is gone.
    pub(super) fn lost(&mut self) {
        (self.connection, self.is_open, self.is_closing) = (None, false, false);
        self.wire = Wire::default();
        self.channels.clear();
        self.output.clear();
    }

    /// Whether it waits for nothing that it was promised.
    pub(super) fn is_quiet(&self) -> bool {
        self.channels.values().all(|channel| channel.asked.is_empty() && channel.unconfirmed.is_empty())
    }

    /// Nothing may wait for ever.
    pub(super) fn check(&self, now: Micros) {
        for (number, channel) in &self.channels {
            if let Some((asked, since)) = channel.asked.front().filter(|(_, since)| since + ANSWER_MAX < now) {
                let what = format!("client {} waits on channel {number} since {since} for {asked:?}", self.number);
                violated("answer", &what);
            }
            if let Some((seq, (id, since))) =
                channel.unconfirmed.first_key_value().filter(|(_, u)| u.1 + ANSWER_MAX < now)
            {
                let what = format!(
                    "publish {seq} of client {} on channel {number}, message {id}, waits since {since}",
                    self.number
                );
                violated("answer", &what);
            }
        }
    }

    /// It was woken.
    pub(super) fn act(&mut self, now: Micros, ledger: &mut Ledger) -> Wish {
        if self.connection.is_none() {
            return if self.is_done { Wish::Nothing } else { Wish::Connect };
        }
        if !self.is_open || self.is_closing {
            return Wish::Nothing;
        }
        if !self.is_done && self.random.below(700) == 0 {
            return Wish::Cut;
        }
        if !self.is_done && self.random.below(1_000) == 0 {
            self.is_closing = true;
            let close =
                Method::ConnectionClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 };
            close.write(&mut self.output, 0);
            return Wish::Nothing;
        }
        let number = 1 + self.random.below(CHANNELS) as u16;
        if !self.channels.contains_key(&number) {
            if !self.is_done {
                self.open(number, now, ledger);
            }
            return Wish::Nothing;
        }
        if self.channels[&number].is_open {
            return self.use_channel(number, now, ledger);
        }
        Wish::Nothing
    }

    fn open(&mut self, number: u16, now: Micros, ledger: &mut Ledger) {
        let habits = [
            Habit::Publishes,
            Habit::Publishes,
            Habit::Transacts,
            Habit::Consumes,
            Habit::Consumes,
            Habit::Gets,
            Habit::Declares,
            Habit::Calls,
        ];
        let channel = Channel {
            key: ledger.next_channel(),
            habit: *self.random.pick(&habits),
            is_open: false,
            asked: VecDeque::new(),
            next_seq: 1,
            unconfirmed: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            uncommitted: Vec::new(),
            committing: Vec::new(),
            consumers: BTreeMap::new(),
            next_tag: 1,
            prefetch: 0,
            limit: 0,
            held: BTreeMap::new(),
            full_since: None,
            level: (ledger.has_levels && self.random.chance(60)).then(|| *self.random.pick(&LEVELS)),
        };
        let habit = channel.habit;
        self.channels.insert(number, channel);
        self.ask(number, Asked::Open, Method::ChannelOpen { out_of_band: Bytes::new() }, now, ledger);
        match habit {
            Habit::Publishes => self.ask(number, Asked::Select, Method::ConfirmSelect { no_wait: false }, now, ledger),
            Habit::Transacts => self.ask(number, Asked::Select, Method::TxSelect {}, now, ledger),
            Habit::Consumes => {
                let (count, global) = (self.random.below(6) as u16, self.random.chance(30));
                let qos = Method::BasicQos { prefetch_size: 0, prefetch_count: count, global };
                self.ask(number, Asked::Qos(count, global), qos, now, ledger);
                self.ask(number, Asked::Select, Method::ConfirmSelect { no_wait: false }, now, ledger);
            }
            Habit::Calls => self.consume(number, DIRECT_REPLY_TO, true, now, ledger),
            Habit::Gets | Habit::Declares => {}
        }
    }

    fn ask(&mut self, number: u16, asked: Asked, method: Method, now: Micros, ledger: &mut Ledger) {
        ledger.figures.requests += 1;
        let channel = self.channels.get_mut(&number).expect("it is there");
        channel.asked.push_back((asked, now));
        method.write(&mut self.output, number);
    }

    fn consume(&mut self, number: u16, queue: &str, no_ack: bool, now: Micros, ledger: &mut Ledger) {
        let channel = self.channels.get_mut(&number).expect("it is there");
        let tag = format!("c{}", channel.next_tag);
        channel.next_tag += 1;
        let consumer = Consumer {
            number: ledger.next_channel(),
            queue: queue.to_owned(),
            prefetch: channel.prefetch,
            no_ack,
            passed_since: None,
            is_cancelled: false,
        };
        channel.consumers.insert(tag.clone(), consumer);
        let no_wait = queue != DIRECT_REPLY_TO && self.random.chance(50);
        let consume = Method::BasicConsume {
            ticket: 0,
            queue: name(queue),
            consumer_tag: name(&tag),
            no_local: false,
            no_ack,
            exclusive: false,
            no_wait,
            arguments: Table::new(),
        };
        match no_wait {
            true => consume.write(&mut self.output, number),
            false => self.ask(number, Asked::Consume(tag), consume, now, ledger),
        }
    }

    fn publish(&mut self, number: u16, to: To, confirms: bool, now: Micros, ledger: &mut Ledger) {
        let expires = to != To::All && self.random.chance(8);
        let bytes = self.random.between(0, 400) as usize;
        let channel = self.channels.get_mut(&number).expect("it is there");
        let id = ledger.publish(channel.key, to.clone(), expires);
        ledger.message(id).is_of_leader = channel.level.is_some();
        let mut body = id.to_be_bytes().to_vec();
        body.resize(8 + bytes, id as u8);
        if confirms {
            channel.unconfirmed.insert(channel.next_seq, (id, now));
            channel.next_seq += 1;
        } else if channel.habit == Habit::Transacts {
            channel.uncommitted.push(id);
        }
        let (exchange, key) = match &to {
            To::Queue(queue) => ("", queue.as_str()),
            To::All => (TO_ALL, ""),
            To::Caller(_) => unreachable!("replies are written where they are made"),
        };
        let lives = self.random.between(0, 3_000).to_string();
        let caller = channel.key.to_be_bytes();
        let headers = channel.level.map(|level| {
            let mut headers = Table::new();
            headers.push("x-durability", Value::LongString(Bytes::from_static(level.as_bytes())));
            headers.encode()
        });
        let properties = Properties {
            // A table's length is not part of its fields.
            headers: headers.as_ref().map(|encoded| &encoded[4..]),
            delivery_mode: Some(2),
            reply_to: (channel.habit == Habit::Calls).then_some(DIRECT_REPLY_TO.as_bytes()),
            correlation_id: (channel.habit == Habit::Calls).then_some(&caller),
            expiration: expires.then_some(lives.as_bytes()),
            ..Properties::default()
        };
        let (exchange, routing_key) = (name(exchange), name(key));
        let publish = Method::BasicPublish { ticket: 0, exchange, routing_key, mandatory: false, immediate: false };
        wire::publish(&mut self.output, number, &publish, &properties, &body);
    }

    /// A queue that anybody may do anything with.
    fn any_fleeting(&mut self) -> String {
        fleeting(self.random.below(FLEETING))
    }

    fn any_kept(&mut self, ledger: &Ledger) -> String {
        self.random.pick(&ledger.kept).clone()
    }

    fn anywhere(&mut self, ledger: &Ledger) -> To {
        match self.random.below(12) {
            0..6 => To::Queue(self.any_kept(ledger)),
            6..8 => To::All,
            8 => To::Queue(SHORT_LIVED.to_owned()),
            9..11 => To::Queue(self.any_fleeting()),
            _ => To::Queue(auto_delete(self.random.below(AUTO_DELETE))),
        }
    }

    fn use_channel(&mut self, number: u16, now: Micros, ledger: &mut Ledger) -> Wish {
        self.settle(number, now, ledger);
        let channel = self.channels.get_mut(&number).expect("it is there");
        let is_closing = channel.asked.iter().any(|(asked, _)| *asked == Asked::Close);
        if is_closing || channel.asked.len() > REQUESTS_AHEAD || self.is_done {
            return Wish::Nothing;
        }
        let habit = channel.habit;
        if self.random.below(250) == 0 {
            let close = Method::ChannelClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 };
            self.ask(number, Asked::Close, close, now, ledger);
            return Wish::Nothing;
        }
        match habit {
            Habit::Publishes => {
                if channel.unconfirmed.len() < WINDOW {
                    let (count, row) = match ledger.has_rows {
                        true => (self.random.between(1, 20), Some(self.anywhere(ledger))),
                        false => (self.random.between(1, 5), None),
                    };
                    for _ in 0..count {
                        let to = row.clone().unwrap_or_else(|| self.anywhere(ledger));
                        self.publish(number, to, true, now, ledger);
                    }
                }
            }
            Habit::Transacts => {
                for _ in 0..self.random.below(4) {
                    let to = self.anywhere(ledger);
                    self.publish(number, to, false, now, ledger);
                }
                let ends = self.random.below(10);
                let channel = self.channels.get_mut(&number).expect("it is there");
                if ends < 4 && channel.committing.is_empty() && !channel.uncommitted.is_empty() {
                    channel.committing = std::mem::take(&mut channel.uncommitted);
                    self.ask(number, Asked::Commit, Method::TxCommit {}, now, ledger);
                } else if ends == 4 {
                    for id in std::mem::take(&mut channel.uncommitted) {
                        ledger.message(id).fate = Fate::RolledBack;
                    }
                    self.ask(number, Asked::Rollback, Method::TxRollback {}, now, ledger);
                }
            }
            Habit::Consumes => self.consumes(number, now, ledger),
            Habit::Gets => self.gets(number, now, ledger),
            Habit::Declares => return self.declares(number, now, ledger),
            Habit::Calls => {
                let to = To::Queue(self.any_kept(ledger));
                self.publish(number, to, false, now, ledger);
            }
        }
        Wish::Nothing
    }

    fn consumes(&mut self, number: u16, now: Micros, ledger: &mut Ledger) {
        let channel = &self.channels[&number];
        let active = channel.consumers.iter().find(|(_, consumer)| !consumer.is_cancelled).map(|(tag, _)| tag.clone());
        if channel.consumers.len() < 2 && channel.asked.is_empty() {
            let has_other = channel.limit > 0 && !channel.consumers.is_empty();
            let (queue, no_ack) = match self.random.below(10) {
                0..6 if has_other => (self.any_fleeting(), true),
                0..6 => (self.any_kept(ledger), false),
                6..8 => (self.any_fleeting(), self.random.chance(60)),
                8 => (auto_delete(self.random.below(AUTO_DELETE)), false),
                _ => (exclusive(self.number), false),
            };
            return self.consume(number, &queue, no_ack, now, ledger);
        }
        match (self.random.below(300), active) {
            (0, Some(tag)) => {
                let channel = self.channels.get_mut(&number).expect("it is there");
                channel.consumers.get_mut(&tag).expect("it was found").is_cancelled = true;
                let cancel = Method::BasicCancel { consumer_tag: name(&tag), no_wait: false };
                self.ask(number, Asked::Cancel(tag), cancel, now, ledger);
            }
            (1, _) => {
                let channel = self.channels.get_mut(&number).expect("it is there");
                channel.held.clear();
                channel.full_since = None;
                self.ask(number, Asked::Recover, Method::BasicRecover { requeue: true }, now, ledger);
            }
            _ => {}
        }
    }

    fn gets(&mut self, number: u16, now: Micros, ledger: &mut Ledger) {
        let (mut queue, mut no_ack) = match self.random.chance(70) {
            true => (self.any_kept(ledger), false),
            false => (self.any_fleeting(), self.random.chance(50)),
        };
        if let Some(consumer) = self.channels[&number].consumers.values().next() {
            // Where it consumes itself there is nothing to get.
            (queue, no_ack) = (consumer.queue.clone(), false);
        } else if self.random.chance(30) {
            self.consume(number, &queue, false, now, ledger);
        }
        // A queue that comes and goes may be another one by now, and its consumer not have heard
        // yet.
        let own = self.channels[&number].consumers.keys().next().filter(|_| ledger.kept.contains(&queue)).cloned();
        let get = Method::BasicGet { ticket: 0, queue: name(&queue), no_ack };
        self.ask(number, Asked::Get(queue, no_ack, own), get, now, ledger);
    }

    fn declares(&mut self, number: u16, now: Micros, ledger: &mut Ledger) -> Wish {
        let at = self.random.below(FLEETING);
        let queue = fleeting(at);
        let no_wait = self.random.chance(30);
        let ticket = 0;
        let (method, answer) = match self.random.below(12) {
            0..4 => (declare_fleeting(at, ledger.has_classic), (50, 11)),
            4 => (declare(&exclusive(self.number), false, true, false, Table::new()), (50, 11)),
            5 => {
                let of = self.random.below(AUTO_DELETE);
                (declare(&auto_delete(of), of == 0, false, true, Table::new()), (50, 11))
            }
            6..8 => {
                let (exchange, routing_key, arguments) = (name(TO_ALL), Bytes::new(), Table::new());
                (Method::QueueBind { ticket, queue: name(&queue), exchange, routing_key, no_wait, arguments }, (50, 21))
            }
            8 => {
                let (exchange, routing_key, arguments) = (name(TO_ALL), Bytes::new(), Table::new());
                (Method::QueueUnbind { ticket, queue: name(&queue), exchange, routing_key, arguments }, (50, 51))
            }
            9 => (Method::QueuePurge { ticket, queue: name(&queue), no_wait }, (50, 31)),
            _ => {
                ledger.figures.deletes += 1;
                let (if_unused, if_empty) = (self.random.chance(40), self.random.chance(30));
                (Method::QueueDelete { ticket, queue: name(&queue), if_unused, if_empty, no_wait }, (50, 41))
            }
        };
        let is_no_wait = no_wait && matches!(answer, (50, 21 | 31 | 41));
        let is_delete = answer == (50, 41);
        match is_no_wait {
            true => method.write(&mut self.output, number),
            false => self.ask(number, Asked::Other(answer.0, answer.1), method, now, ledger),
        }
        // Who asks and goes: nothing that was begun may need it.
        match is_delete && self.random.chance(15) {
            true => {
                self.is_closing = true;
                let close =
                    Method::ConnectionClose { reply_code: 200, reply_text: Bytes::new(), class_id: 0, method_id: 0 };
                close.write(&mut self.output, 0);
                Wish::Nothing
            }
            false => Wish::Nothing,
        }
    }

    /// Ends, or gives back, what it has held for long enough.
    fn settle(&mut self, number: u16, now: Micros, ledger: &mut Ledger) {
        let is_done = self.is_done;
        let channel = self.channels.get_mut(&number).expect("it is there");
        if channel.asked.iter().any(|(asked, _)| matches!(asked, Asked::Close | Asked::Recover)) {
            return;
        }
        let at = (self.connection.expect("it has channels"), number);
        let mut acked = None;
        let due: Vec<u64> = channel.held.iter().filter(|(_, held)| held.until <= now).map(|(tag, _)| *tag).collect();
        for delivery_tag in due {
            let Some(held) = channel.held.remove(&delivery_tag) else { continue };
            channel.full_since = None;
            let method = match self.random.below(20) {
                _ if is_done => Method::BasicAck { delivery_tag, multiple: false },
                0 => Method::BasicReject { delivery_tag, requeue: true },
                1 => Method::BasicNack { delivery_tag, multiple: false, requeue: true },
                2 | 3 => {
                    let rest = channel.held.split_off(&delivery_tag);
                    for before in std::mem::replace(&mut channel.held, rest).into_values() {
                        ledger.ended(before.id, &before.queue);
                        ledger.acked(at, channel.key, before.id, &before.queue);
                    }
                    Method::BasicAck { delivery_tag, multiple: true }
                }
                _ => Method::BasicAck { delivery_tag, multiple: false },
            };
            if matches!(method, Method::BasicAck { .. }) {
                ledger.ended(held.id, &held.queue);
                ledger.acked(at, channel.key, held.id, &held.queue);
                acked = Some(held.queue);
            }
            method.write(&mut self.output, number);
        }
        // Who goes on: what it publishes into the queue is confirmed behind its acks.
        let goes_on = channel.habit == Habit::Consumes && channel.is_open && channel.unconfirmed.len() < WINDOW;
        if let Some(queue) = acked.filter(|queue| goes_on && !is_done && ledger.kept.contains(queue))
            && self.random.chance(40)
        {
            let (key, publish) = (self.channels[&number].key, self.channels[&number].next_seq);
            // A confirm of the leader alone says of an ack no more than of its message.
            if self.channels[&number].level.is_none() {
                ledger.claims(key, publish, &queue);
            }
            self.publish(number, To::Queue(queue), true, now, ledger);
        }
    }
}

//! What clients did and heard, and what follows from it.
//!
//! Queues whose names begin with `k` are kept: nobody deletes or purges them, or takes from them
//! without an ack, so that what was confirmed there must come out. Invariant: it knows what clients
//! know, and nothing of the nodes.

use super::client::{DEAD, SHORT_LIVED};
use crate::checks::violated;
use crate::schedule::{MS, Micros, SECOND};
use broker::{ChannelKey, ConsumerKey};
use std::collections::{BTreeMap, BTreeSet};

/// The exchange that leads to all queues that are kept.
pub(super) const TO_ALL: &str = "to.all";
/// A session gives a request up after 30 s without a leader; nothing else may wait for as long.
pub(super) const ANSWER_MAX: Micros = 45 * SECOND;

/// Where a message was published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// A queue, by its name.
    Queue(String),
    /// All queues that are kept.
    All,
    /// Who waits for a reply, on this channel.
    Caller(u64),
}

/// What its publisher knows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing yet, or nothing ever.
    Sent,
    /// It is safe.
    Confirmed,
    /// It was rolled back.
    RolledBack,
}

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    /// Its channel, which is no other's.
    pub(super) channel: u64,
    pub(super) to: To,
    pub(super) fate: Fate,
    /// It may end by its own time.
    pub(super) expires: bool,
    /// Its leader confirmed it alone: who leads next may lack it.
    pub(super) is_of_leader: bool,
    /// Queues out of which it came without `redelivered`.
    fresh: BTreeSet<String>,
    /// Queues out of which it came, and when first.
    came: BTreeMap<String, Micros>,
    /// Queues in which a client ended it.
    ended: BTreeSet<String>,
    /// Whom the leaders of queues gave it to last, and how often that was somebody else than before.
    given: BTreeMap<String, (ConsumerKey, u32)>,
    /// Queues in which an ack of it counts, as a later confirm says, and when that came.
    proven: BTreeMap<String, Micros>,
}

/// A leader that was voted out hears of it within this time, and so does everybody else who gets what
/// it said, as long as no link is cut.
const OUTVOTED_WITHIN: Micros = 1_500 * MS;

/// What runs had in them, all together.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // Their names say what was counted.
pub struct Figures {
    pub published: u64,
    pub confirmed: u64,
    pub nacked: u64,
    pub resent: u64,
    /// Messages that came to a leader as one with the one before them.
    pub in_rows: u64,
    pub committed: u64,
    pub delivered: u64,
    /// Messages with a time of their own that came to who settles them.
    pub held: u64,
    pub proven: u64,
    pub redelivered: u64,
    pub got: u64,
    pub replies: u64,
    pub dead_letters: u64,
    pub requests: u64,
    pub channel_errors: u64,
    /// Those of them of queues whose node was away.
    pub homes_away: u64,
    pub deletes: u64,
    pub cuts: u64,
    pub restarts: u64,
    pub leaders_moved: u64,
    pub passed_over: u64,
    pub alarms: u64,
    pub links_broken: u64,
    /// Looks at nodes that had no lease on what they know of the topology.
    pub without_lease: u64,
    /// Turns of connections that ended as nobody knew where their messages go.
    pub waits_to_know: u64,
    pub forwarded: u64,
    pub spread: u64,
    pub joined: u64,
    /// Copies that somebody gave or took.
    pub moved: u64,
    pub forgotten: u64,
    pub came_back: u64,
    pub blocked_writes: u64,
    /// Queues in partitions with members on few of the nodes.
    pub pooled: u64,
}

impl Figures {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Figures) {
        self.published += other.published;
        self.confirmed += other.confirmed;
        self.nacked += other.nacked;
        self.resent += other.resent;
        self.in_rows += other.in_rows;
        self.committed += other.committed;
        self.delivered += other.delivered;
        self.held += other.held;
        self.proven += other.proven;
        self.redelivered += other.redelivered;
        self.got += other.got;
        self.replies += other.replies;
        self.dead_letters += other.dead_letters;
        self.requests += other.requests;
        self.channel_errors += other.channel_errors;
        self.homes_away += other.homes_away;
        self.deletes += other.deletes;
        self.cuts += other.cuts;
        self.restarts += other.restarts;
        self.leaders_moved += other.leaders_moved;
        self.passed_over += other.passed_over;
        self.pooled += other.pooled;
        self.alarms += other.alarms;
        self.links_broken += other.links_broken;
        self.without_lease += other.without_lease;
        self.waits_to_know += other.waits_to_know;
        self.forwarded += other.forwarded;
        self.spread += other.spread;
        self.joined += other.joined;
        self.moved += other.moved;
        self.forgotten += other.forgotten;
        self.came_back += other.came_back;
        self.blocked_writes += other.blocked_writes;
    }
}

/// Messages that were acked, and who held them, as in `given`.
type Acks = Vec<(u64, (ConsumerKey, u32))>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    messages: Vec<Message>,
    /// Of each consumer, by queue and publishing channel, the last message that came without
    /// `redelivered`.
    order: BTreeMap<(u64, String, u64), u64>,
    /// The queues that are kept.
    pub(super) kept: Vec<String>,
    /// The keys of channels, by connection and number.
    keys: BTreeMap<(u64, u16), ChannelKey>,
    /// The same the other way round.
    places: BTreeMap<ChannelKey, (u64, u16)>,
    /// Of a node: when a link of it was last cut, or broke with both its ends up, or what is late on one arrives, and when it stood
    /// still.
    stormy_until: BTreeMap<usize, Micros>,
    /// What was acked over a channel and who held it, by queue, since its last publish to that queue.
    acks: BTreeMap<(u64, String), Acks>,
    /// The same, once a publish of the channel with this number is confirmed.
    claims: BTreeMap<(u64, u64), (String, Acks)>,
    channels: u64,
    /// Sockets are full at times: a message may be got past a consumer that has no room.
    pub(super) has_full_sockets: bool,
    /// Some channels ask for levels of the leader alone.
    pub(super) has_levels: bool,
    /// Who publishes sends several messages in a row to one place.
    pub(super) has_rows: bool,
    /// Durable queues that come and go live on one node.
    pub(super) has_classic: bool,
    /// Consumers may be on their way to the next leader.
    pub(super) leaders_move: bool,
    /// When a consumer got something of a queue last.
    pub(super) fed_at: BTreeMap<String, Micros>,
    /// What time it is.
    pub(super) now: Micros,
    /// When a link was last seen to be cut.
    pub(super) cut_at: Micros,
    /// When the last arrives, or arrived, that nodes say late of consumers and leaders of a queue: by an end of their
    /// link, and the queue.
    pub(super) late_until: BTreeMap<(usize, String), Micros>,
    /// The node of the client that hears something now.
    pub(super) node: usize,
    pub(super) figures: Figures,
}

/// How a message came out.
#[derive(Debug)]
pub(super) struct Out<'a> {
    pub(super) body: &'a [u8],
    pub(super) queue: &'a str,
    pub(super) redelivered: bool,
    /// A number of its consumer's own; `None` for who gets.
    pub(super) consumer: Option<u64>,
    /// It is to be acked.
    pub(super) needs_ack: bool,
}

impl Ledger {
    /// Nothing has happened; these queues are kept.
    pub(super) fn new(kept: Vec<String>) -> Ledger {
        Ledger { kept, ..Ledger::default() }
    }

    /// A number for a channel that opens, or a consumer.
    pub(super) fn next_channel(&mut self) -> u64 {
        self.channels += 1;
        self.channels
    }

    /// Somebody is about to publish; the number stands in the body.
    pub(super) fn publish(&mut self, channel: u64, to: To, expires: bool) -> u64 {
        self.figures.published += 1;
        self.messages.push(Message {
            channel,
            to,
            fate: Fate::Sent,
            expires,
            is_of_leader: false,
            fresh: BTreeSet::new(),
            came: BTreeMap::new(),
            ended: BTreeSet::new(),
            given: BTreeMap::new(),
            proven: BTreeMap::new(),
        });
        self.messages.len() as u64 - 1
    }

    pub(super) fn message(&mut self, id: u64) -> &mut Message {
        &mut self.messages[id as usize]
    }

    /// A message came out of a queue; its number comes back.
    pub(super) fn came(&mut self, out: &Out<'_>) -> u64 {
        let Out { body, queue, redelivered, consumer, needs_ack } = out;
        if consumer.is_some() {
            self.fed_at.insert((*queue).to_owned(), self.now);
        }
        let id = body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        let Some((id, message)) = id.and_then(|id| Some((id, self.messages.get_mut(id as usize)?))) else {
            violated("published", &format!("nobody published what came out of {queue}: {body:02x?}"));
        };
        if body[8..].iter().any(|byte| *byte != id as u8) {
            violated("published", &format!("message {id} came out of {queue} with another body"));
        }
        let is_dead = *queue == DEAD;
        let is_there = match &message.to {
            To::Queue(name) => name == queue || is_dead && name == SHORT_LIVED,
            To::All => self.kept.iter().any(|name| name == queue) || queue.starts_with('e'),
            To::Caller(_) => false,
        };
        if !is_there || message.fate == Fate::RolledBack {
            violated("published", &format!("{message:?}, number {id}, came out of {queue}"));
        }
        if is_dead {
            self.figures.dead_letters += 1;
            return id;
        }
        let first = *message.came.entry((*queue).to_owned()).or_insert(self.now);
        let is_late = first.max(self.cut_at) + OUTVOTED_WITHIN < self.now;
        // What lies in a socket is older than that.
        if is_late && *needs_ack && !redelivered && !self.has_full_sockets {
            violated(
                "unflagged",
                &format!("message {id} came out of {queue} at {first}, and comes as new: {message:?}"),
            );
        }
        if *redelivered {
            self.figures.redelivered += 1;
            return id;
        }
        if !message.fresh.insert((*queue).to_owned()) {
            violated(
                "duplicate",
                &format!("message {id} came out of {queue} twice, and not as redelivered: {message:?}"),
            );
        }
        if let Some(consumer) = consumer {
            let last = self.order.entry((*consumer, (*queue).to_owned(), message.channel)).or_insert(id);
            if *last > id {
                let what = format!("message {id} of channel {} came out of {queue} after {last}", message.channel);
                violated("order", &what);
            }
            *last = id;
        }
        id
    }

    /// A reply came to who waits for it on this channel.
    pub(super) fn replied(&mut self, body: &[u8], channel: u64) {
        let id = body.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
        let Some(message) = self.messages.get_mut(id as usize).filter(|message| message.to == To::Caller(channel))
        else {
            violated("published", &format!("a reply {body:02x?} came to channel {channel}, for which it is not"));
        };
        if !message.fresh.insert(String::new()) {
            violated("duplicate", &format!("reply {id} came twice"));
        }
        self.figures.replies += 1;
    }

    /// The key of a channel on a connection.
    pub(super) fn is_key(&mut self, connection: u64, (key, number): (ChannelKey, u16)) {
        self.keys.insert((connection, number), key);
        self.places.insert(key, (connection, number));
    }

    /// Something goes wrong at a node.
    pub(super) fn is_stormy(&mut self, node: usize, until: Micros) {
        let known = self.stormy_until.entry(node).or_default();
        *known = until.max(*known);
    }

    /// Until when something goes wrong at a node.
    pub(super) fn stormy_until(&self, node: usize) -> Micros {
        self.stormy_until.get(&node).copied().unwrap_or_default()
    }

    /// The connection of a channel, and its number there, unless another one has that number by now.
    pub(super) fn place_of(&self, key: ChannelKey) -> Option<(u64, u16)> {
        self.places.get(&key).copied().filter(|place| self.keys.get(place) == Some(&key))
    }

    /// Whether a message may end by its own time in this queue, which nobody deletes or purges.
    pub(super) fn may_expire(&self, body: &[u8], queue: &str) -> Option<u64> {
        let id = body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))?;
        let message = self.messages.get(id as usize)?;
        (message.expires && self.kept.iter().any(|kept| kept == queue)).then_some(id)
    }

    /// The leader of a queue gives a message out.
    pub(super) fn given(&mut self, body: &[u8], queue: &str, to: ConsumerKey) {
        let id = body.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
        let (now, Some(message)) = (self.now, self.messages.get_mut(id as usize)) else { return };
        if let Some(since) = message.proven.get(queue) {
            violated("undone", &format!("message {id} goes out of {queue} at {now}; its ack was proven at {since}"));
        }
        let given = message.given.entry(queue.to_owned()).or_insert((to, 0));
        *given = (to, given.1 + u32::from(given.0 != to));
    }

    /// A consumer of a channel, or who got it, acks a message.
    pub(super) fn acked(&mut self, (connection, number): (u64, u16), channel: u64, id: u64, queue: &str) {
        let (Some(key), true) = (self.keys.get(&(connection, number)), self.kept.iter().any(|kept| kept == queue))
        else {
            return;
        };
        // An ack of what somebody else was given meanwhile counts for nothing.
        let given = self.messages[id as usize].given.get(queue).filter(|(holder, _)| holder.channel == *key);
        if let Some(given) = given.copied() {
            self.acks.entry((channel, queue.to_owned())).or_default().push((id, given));
        }
    }

    /// A channel publishes to a queue: its confirm will say that the acks before it count.
    pub(super) fn claims(&mut self, channel: u64, publish: u64, queue: &str) {
        if let Some(acks) = self.acks.remove(&(channel, queue.to_owned())) {
            self.claims.insert((channel, publish), (queue.to_owned(), acks));
        }
    }

    /// A publish of a channel was confirmed, or refused.
    pub(super) fn answered(&mut self, channel: u64, publish: u64, is_confirmed: bool) {
        let Some((queue, acks)) = self.claims.remove(&(channel, publish)) else { return };
        for (id, given) in acks.into_iter().filter(|_| is_confirmed) {
            let message = &mut self.messages[id as usize];
            // Who had it then may have it again, after somebody else.
            if message.given.get(&queue) == Some(&given) {
                self.figures.proven += 1;
                message.proven.insert(queue.clone(), self.now);
            }
        }
    }

    /// A client ends a message.
    pub(super) fn ended(&mut self, id: u64, queue: &str) {
        self.messages[id as usize].ended.insert(queue.to_owned());
    }

    /// All queues are empty: what was confirmed must have come out of each of its queues.
    pub(super) fn finish(&self) {
        for (id, message) in self.messages.iter().enumerate() {
            if message.fate != Fate::Confirmed || message.is_of_leader {
                continue;
            }
            if message.to == To::Queue(SHORT_LIVED.to_owned()) && !message.ended.contains(DEAD) {
                violated("lost", &format!("message {id} was confirmed, died, and is not in {DEAD}: {message:?}"));
            }
            if message.expires {
                continue;
            }
            let missing = self.kept.iter().find(|name| {
                let is_meant = message.to == To::All || message.to == To::Queue((*name).clone());
                is_meant && !message.ended.contains(*name)
            });
            if let Some(name) = missing {
                violated("lost", &format!("message {id} was confirmed and is not in {name}: {message:?}"));
            }
        }
    }
}

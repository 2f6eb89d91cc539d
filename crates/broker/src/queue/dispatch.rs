//! What only the leader knows of a queue: its consumers, their credit, who holds which message,
//! what goes out next.
//!
//! Invariants: a message is at any time exactly one of ready, held, or settled here; a held message
//! belongs to one holder; what was `brought` is held; `ready` counts what `head` can still give.
//! Everything below `cursor` that is ready is in `returned`. Nothing here is logged: a new leader
//! starts with everything live ready again, and flags what may have been sent.
//!
//! What comes, goes and waits is kept in order and in sums, so that a consumer's attach, turn and end
//! cost about the same however many there are: one client may attach tens of thousands.

mod holding;

use super::active::{ActiveConsumer, SingleActive};
use super::attached::{Attached, Tally};
use super::lanes::Lanes;
use super::levels::Levels;
use super::ranges::SeqRanges;
use super::ring::Ring;
use crate::ids::{ChannelKey, ConsumerKey};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// One consumer's share of a turn when much is ready: long enough that its acks come as ranges.
const TURN_MESSAGES_MAX: u64 = 64;
/// Turns that what is ready is divided into, per consumer; below this many messages they alternate
/// one by one.
const TURNS_PER_CONSUMER: u64 = 8;

/// What a consumer asked for when it attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Who it is.
    pub key: ConsumerKey,
    /// Most messages that it holds unacked; 0 is no limit. Not looked at with `no_ack`.
    pub prefetch: u32,
    /// Deliveries settle themselves.
    pub no_ack: bool,
    /// No other consumer may attach.
    pub exclusive: bool,
    /// Higher goes first while it has credit; equals share in turn.
    pub priority: i32,
    /// The channel hands out credit itself (a channel-wide prefetch): nothing goes out without a
    /// grant.
    pub granted_only: bool,
}

/// The message that goes out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub seq: u64,
    /// It was out before, under this leader.
    pub returned: bool,
}

/// Why a consumer may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRefused {
    /// Another consumer is exclusive, or this one wants to be and is not alone.
    Exclusive,
    /// It is attached already.
    Repeated,
}

/// The dispatcher of one queue.
#[derive(Debug)]
pub struct Dispatch {
    /// Nothing at or above was ever handed out by this leader.
    cursor: u64,
    /// Messages below have reached their durability level.
    end: u64,
    returned: BTreeSet<u64>,
    ready: u64,
    held: u64,
    attached: HashMap<ConsumerKey, Attached, foldhash::fast::FixedState>,
    /// The keys of those, in order: a channel's lie together.
    keys: BTreeSet<ConsumerKey>,
    /// What they would take together, and who of them waits for its channel's word.
    tally: Tally,
    /// Consumers with credit: by priority, then in turn.
    ring: Ring,
    /// What cancelled consumers and `basic.get` hold.
    holders: BTreeMap<ConsumerKey, SeqRanges>,
    /// Of what is held: what its holder came with, as it was given it by an earlier leader, or before its link broke.
    /// After that, others may have been given it too.
    brought: SeqRanges,
    /// Only one consumer at a time gets messages. Absent on a plain queue.
    single: Option<Box<ActiveConsumer>>,
    /// What is ready, by level, while some message has a priority; `returned` is empty then, and
    /// `cursor` only bounds what was handed out.
    lanes: Option<Box<Lanes>>,
}

impl Dispatch {
    /// Starts with `ready` live messages, the first of them at or after `first`, none at or after
    /// `end`.
    pub fn new(first: u64, end: u64, ready: u64) -> Self {
        Dispatch {
            cursor: first,
            end,
            returned: BTreeSet::new(),
            ready,
            held: 0,
            attached: HashMap::default(),
            keys: BTreeSet::new(),
            tally: Tally::default(),
            ring: Ring::default(),
            holders: BTreeMap::new(),
            brought: SeqRanges::new(),
            single: None,
            lanes: None,
        }
    }

    /// Messages that wait for a consumer.
    pub fn ready(&self) -> u64 {
        self.ready
    }

    /// Messages that consumers hold unacked.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// How many messages in a row one consumer gets in its turn: one while few are ready, so that
    /// equals alternate; more when many are, so that acks come as ranges.
    pub fn share(&self) -> u64 {
        let consumers = self.attached.len().max(1) as u64;
        (self.ready / (consumers * TURNS_PER_CONSUMER)).clamp(1, TURN_MESSAGES_MAX)
    }

    /// Consumers attached.
    pub fn consumers(&self) -> usize {
        self.attached.len()
    }

    /// One past the last message that may go out.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where the first pass over the queue stands.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Whether forgetting this dispatcher loses nothing.
    pub fn is_idle(&self) -> bool {
        self.attached.is_empty() && self.held == 0 && self.returned.is_empty() && self.lanes.is_none()
    }

    /// The keys of all consumers, in order.
    pub fn consumer_keys(&self) -> Vec<ConsumerKey> {
        self.keys.iter().copied().collect()
    }

    /// Credit that consumers have together, for sizing the dispatch watermark; unlimited counts as
    /// `unlimited`.
    pub fn credit(&self, unlimited: u64) -> u64 {
        self.tally.credit(unlimited)
    }

    /// A dispatcher as [`new`](Self::new) makes it, of messages of several levels: those in `live`,
    /// ascending.
    pub fn with_levels(end: u64, levels: &Levels, returned_first: bool, live: impl Iterator<Item = u64>) -> Self {
        let mut dispatch = Dispatch::new(end, end, 0);
        let mut lanes = Lanes::new(levels.default_level(), end, 0, BTreeSet::new(), returned_first);
        for seq in live.take_while(|seq| *seq < end) {
            lanes.add(seq, 1, Some(levels));
            dispatch.ready += 1;
        }
        dispatch.lanes = Some(Box::new(lanes));
        dispatch
    }

    /// `count` more messages, the next ones in order, may go out. They have the default level.
    pub fn add_ready(&mut self, count: u64) {
        if let Some(lanes) = &mut self.lanes {
            lanes.add_plain(self.end, count);
        }
        self.add(count);
    }

    /// As [`add_ready`](Self::add_ready), and `levels` knows their levels.
    pub fn add_ready_by_level(&mut self, count: u64, levels: &Levels, returned_first: bool) {
        if self.lanes.is_none() {
            let returned = std::mem::take(&mut self.returned);
            let fresh = self.ready - returned.len() as u64;
            let lanes = Lanes::new(levels.default_level(), self.cursor, fresh, returned, returned_first);
            self.lanes = Some(Box::new(lanes));
        }
        let lanes = self.lanes.as_mut().expect("made above");
        lanes.add(self.end, count, Some(levels));
        self.add(count);
    }

    /// All messages have the default level again, if `levels` is gone: what is ready is in order
    /// again.
    pub fn follow_levels(&mut self, levels: Option<&Levels>) {
        if levels.is_none()
            && let Some(lanes) = self.lanes.take()
        {
            let (cursor, fresh, returned) = lanes.into_plain(self.end);
            self.ready = fresh + returned.len() as u64;
            (self.cursor, self.returned) = (cursor, returned);
        }
    }

    fn add(&mut self, count: u64) {
        self.end += count;
        self.ready += count;
    }

    /// From here on one consumer at a time gets messages. Once so, always so.
    pub fn set_single_active(&mut self, rule: SingleActive) {
        if self.single.is_none() {
            assert!(self.attached.is_empty(), "a queue has its single active consumer from its declare on");
            self.single = Some(Box::new(ActiveConsumer::new(rule)));
        }
    }

    /// Attaches a consumer.
    pub fn attach(&mut self, consumer: Consumer) -> Result<(), AttachRefused> {
        // An exclusive one is alone.
        let only = self.keys.first().filter(|_| self.keys.len() == 1).and_then(|key| self.attached.get(key));
        let taken = only.is_some_and(|a| a.consumer.exclusive);
        if taken || (consumer.exclusive && (!self.attached.is_empty() || self.single.is_some())) {
            return Err(AttachRefused::Exclusive);
        }
        let key = consumer.key;
        // A sound node uses each key once.
        if self.attached.contains_key(&key) {
            return Err(AttachRefused::Repeated);
        }
        let mut attached = Attached::new(consumer);
        // It may have said what it holds before it came.
        attached.held = self.holders.remove(&key).unwrap_or_default();
        attached.waits = self.single.is_some();
        if let Some(single) = &mut self.single {
            attached.in_line = single.join(key, attached.consumer.priority);
        }
        self.tally.enter(&attached);
        self.keys.insert(key);
        self.attached.insert(key, attached);
        match self.single {
            Some(_) => self.choose_active(),
            None => self.refresh(key),
        }
        Ok(())
    }

    /// Takes a consumer away; what it holds stays with its channel. False if it was not there.
    pub fn cancel(&mut self, key: ConsumerKey) -> bool {
        let was_there = self.remove(key);
        self.choose_active();
        was_there
    }

    fn remove(&mut self, key: ConsumerKey) -> bool {
        let Some(mut gone) = self.attached.remove(&key) else { return false };
        self.keys.remove(&key);
        self.tally.leave(&gone);
        if let Some(ticket) = gone.ticket {
            self.ring.remove(gone.consumer.priority, ticket);
        }
        if self.attached.is_empty() {
            self.ring.clear();
        }
        if !gone.held.is_empty() {
            let holder = self.holders.entry(key).or_default();
            for (first, count) in gone.held.drain() {
                holder.insert_range(first, count);
            }
        }
        if let Some(single) = &mut self.single {
            single.leave(gone.in_line);
        }
        true
    }

    /// The consumer that alone gets messages, on a queue that has such a rule.
    pub fn active(&self) -> Option<ConsumerKey> {
        self.single.as_ref().and_then(|single| single.active())
    }

    /// Settles who is active, after something changed that it depends on.
    fn choose_active(&mut self) {
        let holds = self.active_holds();
        let Some(single) = &mut self.single else { return };
        let before = single.active();
        let takes = single.choose(holds);
        let after = single.active();
        for (key, waits) in [(before, true), (after, !takes)] {
            let Some(key) = key else { continue };
            if let Some(attached) = self.attached.get_mut(&key) {
                attached.waits = waits;
                self.refresh(key);
            }
        }
    }

    /// Ends a channel: its consumers go, what it held comes back to its old place. Returns what
    /// came back, in order.
    pub fn detach(&mut self, channel: ChannelKey, levels: Option<&Levels>) -> SeqRanges {
        let keys: Vec<_> = self.keys.range(keys_of(channel)).copied().collect();
        for key in keys {
            self.remove(key);
        }
        let keys: Vec<_> = self.holders.range(keys_of(channel)).map(|(key, _)| *key).collect();
        let mut back = SeqRanges::new();
        for key in keys {
            for (first, count) in self.holders.remove(&key).unwrap_or_default().drain() {
                back.insert_range(first, count);
            }
        }
        self.held -= back.count();
        for (first, count) in back.iter() {
            self.brought.remove_range(first, count);
            self.put_back(first, count, levels);
        }
        self.choose_active();
        back
    }

    /// Whether any consumer of this channel is attached or holds something.
    pub fn knows(&self, channel: ChannelKey) -> bool {
        let is_attached = self.keys.range(keys_of(channel)).next().is_some();
        is_attached || self.holders.range(keys_of(channel)).next().is_some()
    }

    /// The consumer whose turn it is, if one has credit.
    pub fn next_consumer(&self) -> Option<&Consumer> {
        self.ring.front().and_then(|key| self.attached.get(&key)).map(|a| &a.consumer)
    }

    /// The message that goes out next. `next_live(from)` gives the first live number at or after
    /// `from`; `levels` are the queue's, if any.
    #[inline]
    pub fn head(&self, levels: Option<&Levels>, next_live: impl Fn(u64) -> Option<u64>) -> Option<Head> {
        if self.ready == 0 {
            return None;
        }
        if self.lanes.is_some() {
            return self.head_of_lanes(levels, &next_live);
        }
        if let Some(&seq) = self.returned.first() {
            return Some(Head { seq, returned: true });
        }
        next_live(self.cursor).filter(|seq| *seq < self.end).map(|seq| Head { seq, returned: false })
    }

    /// Apart, so that a queue without levels pays for one question only.
    #[inline(never)]
    fn head_of_lanes(&self, levels: Option<&Levels>, next_live: &dyn Fn(u64) -> Option<u64>) -> Option<Head> {
        self.lanes.as_ref().and_then(|lanes| lanes.head(levels, self.end, next_live))
    }

    /// Hands `head` to the consumer whose turn it is. After `share` messages in a row the turn goes
    /// on to the next one. True while it stays where it is: then nobody need ask whose it is.
    pub fn assign(&mut self, head: Head, share: u64, levels: Option<&Levels>) -> bool {
        self.take(head, levels);
        self.given(head.seq, 1, share)
    }

    /// The next number of the first pass, where nothing else goes out before it: no message that came back, and none of
    /// another level.
    #[inline]
    pub fn next_plain(&self) -> Option<u64> {
        (self.ready > 0 && self.lanes.is_none() && self.returned.is_empty()).then_some(self.cursor)
    }

    /// How many messages in a row the consumer whose turn it is may have before it is asked again whose it is.
    pub fn burst(&self, share: u64) -> u64 {
        let Some(attached) = self.ring.front().and_then(|key| self.attached.get(&key)) else { return 0 };
        let turn = if self.ring.is_alone() { u64::MAX } else { share.saturating_sub(attached.turn) };
        attached.takes().min(turn)
    }

    /// Hands `count` messages from `first`, which [`next_plain`](Self::next_plain) gave, to the consumer whose turn it is, as
    /// many as it may [have](Self::burst). As if each was [assigned](Self::assign).
    pub fn assign_run(&mut self, first: u64, count: u64, share: u64) -> bool {
        assert!(first >= self.cursor && count > 0, "the first pass only goes forward");
        self.cursor = first + count;
        self.ready -= count;
        self.given(first, count, share)
    }

    /// The consumer whose turn it is has these. True while it stays where it is.
    fn given(&mut self, first: u64, count: u64, share: u64) -> bool {
        let key = self.ring.front().expect("assign follows a next_consumer that gave one");
        let attached = self.attached.get_mut(&key).expect("who is in the ring is attached");
        attached.granted = attached.granted.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        if !attached.consumer.no_ack {
            attached.held.insert_range(first, count);
            self.held += count;
        }
        attached.turn += count;
        if let Some(single) = &mut self.single {
            single.note_given();
        }
        if attached.is_bounded() {
            self.tally.note_given(attached, count);
        }
        let is_over = attached.turn >= share;
        if is_over {
            attached.turn %= share;
        }
        // Who is alone has the next turn too.
        if attached.has_credit() && (!is_over || self.ring.is_alone()) {
            return true;
        }
        attached.turn = 0;
        if let Some(ticket) = attached.ticket.take() {
            self.ring.remove(attached.consumer.priority, ticket);
        }
        place(attached, &mut self.tally, &mut self.ring);
        false
    }

    /// Hands `head` to a `basic.get` of `channel`.
    pub fn assign_get(&mut self, channel: ChannelKey, no_ack: bool, head: Head, levels: Option<&Levels>) {
        self.take(head, levels);
        if !no_ack {
            self.holders.entry(ConsumerKey::get(channel)).or_default().insert(head.seq);
            self.held += 1;
        }
    }

    #[inline]
    fn take(&mut self, head: Head, levels: Option<&Levels>) {
        if self.lanes.is_some() {
            self.take_from_lanes(head, levels);
        } else if head.returned {
            self.returned.remove(&head.seq);
        } else {
            assert!(head.seq >= self.cursor, "the first pass only goes forward");
            self.cursor = head.seq + 1;
        }
        self.ready -= 1;
    }

    #[inline(never)]
    fn take_from_lanes(&mut self, head: Head, levels: Option<&Levels>) {
        self.lanes.as_mut().expect("a queue with levels has lanes").take(head, levels);
        self.cursor = self.cursor.max(head.seq + 1);
    }

    /// Takes `head` out for good: nobody gets it.
    pub fn drop_head(&mut self, head: Head, levels: Option<&Levels>) {
        self.take(head, levels);
    }

    /// Takes a message that came back out for good. False if it was not there.
    pub fn drop_returned(&mut self, seq: u64, levels: Option<&Levels>) -> bool {
        let was_there = match &mut self.lanes {
            Some(lanes) => lanes.drop_returned(seq, levels),
            None => self.returned.remove(&seq),
        };
        self.ready -= u64::from(was_there);
        was_there
    }

    /// Takes a message out for good, wherever it stands among those that are ready. False, and
    /// nothing happens, if it is not ready. From now on until it has ended, the caller's
    /// `next_live` passes over it.
    pub fn drop_ready(&mut self, seq: u64, levels: Option<&Levels>) -> bool {
        let was_ready = match &mut self.lanes {
            Some(lanes) => seq < self.end && lanes.drop_ready(seq, levels),
            None => self.returned.remove(&seq) || (self.cursor..self.end).contains(&seq),
        };
        self.ready -= u64::from(was_ready);
        was_ready
    }

    /// Puts released messages back to their old place.
    pub fn put_back(&mut self, first: u64, count: u64, levels: Option<&Levels>) {
        match &mut self.lanes {
            Some(lanes) => (first..first + count).for_each(|seq| lanes.put_back(seq, levels)),
            None => self.returned.extend(first..first + count),
        }
        self.ready += count;
    }

    /// Forgets everything that is ready: a purge. Returns what that was, and among it numbers that
    /// have ended already.
    pub fn purge(&mut self, levels: Option<&Levels>, next_live: impl Fn(u64) -> Option<u64>) -> SeqRanges {
        self.ready = 0;
        let cursor = std::mem::replace(&mut self.cursor, self.end);
        if let Some(lanes) = &mut self.lanes {
            return lanes.purge(levels, self.end, next_live);
        }
        let mut all = SeqRanges::new();
        // They are all below the cursor.
        std::mem::take(&mut self.returned).into_iter().for_each(|seq| all.insert(seq));
        all.insert_range(cursor, self.end - cursor);
        all
    }

    /// The consumer's connection is full, or has room again. False if there is no such consumer.
    pub fn set_stalled(&mut self, key: ConsumerKey, stalled: bool) -> bool {
        let Some(attached) = self.attached.get_mut(&key) else { return false };
        attached.stalled = stalled;
        place(attached, &mut self.tally, &mut self.ring);
        true
    }

    /// Lets a consumer with a channel-wide prefetch take `count` more; 0 says that its channel has
    /// none to give now.
    pub fn grant(&mut self, key: ConsumerKey, count: u32) -> bool {
        let Some(attached) = self.attached.get_mut(&key) else { return false };
        attached.granted = attached.granted.saturating_add(count);
        attached.asked &= count == 0;
        attached.refused = count == 0;
        place(attached, &mut self.tally, &mut self.ring);
        true
    }

    /// Whether anybody is to be asked for a grant, or has one: only where channels have a prefetch of
    /// their own.
    #[inline]
    pub fn has_to_do_with_grants(&self) -> bool {
        self.tally.has_to_do_with_grants()
    }

    /// Consumers that wait for a grant while messages are ready; each is told once until its grant
    /// comes.
    pub fn ask_for_grants(&mut self, wanted: &mut Vec<ConsumerKey>) {
        if self.ready == 0 {
            return;
        }
        let start = wanted.len();
        wanted.extend(self.tally.unasked());
        for key in &wanted[start..] {
            if let Some(a) = self.attached.get_mut(key) {
                a.asked = true;
                self.tally.note(a);
            }
        }
    }

    /// Whether a consumer is there that may take what is ready, and only the word of its channel is
    /// missing.
    pub fn awaits_grant(&self) -> bool {
        self.ready > 0 && self.tally.awaits_grant()
    }

    /// Takes back grants that nothing is ready for, as `(consumer, count)`.
    pub fn return_grants(&mut self, returned: &mut Vec<(ConsumerKey, u32)>) {
        if self.ready != 0 {
            return;
        }
        let granted: Vec<_> = self.tally.granted().collect();
        for key in granted {
            if let Some(attached) = self.attached.get_mut(&key) {
                returned.push((key, std::mem::take(&mut attached.granted)));
                place(attached, &mut self.tally, &mut self.ring);
            }
        }
    }

    /// Something about a consumer changed.
    fn refresh(&mut self, key: ConsumerKey) {
        if let Some(attached) = self.attached.get_mut(&key) {
            place(attached, &mut self.tally, &mut self.ring);
        }
    }
}

/// Puts a consumer into the ring, or takes it out, as its credit says.
#[inline]
fn place(attached: &mut Attached, tally: &mut Tally, ring: &mut Ring) {
    tally.note(attached);
    let (key, priority) = (attached.consumer.key, attached.consumer.priority);
    match (attached.has_credit(), attached.ticket) {
        (true, None) => attached.ticket = Some(ring.push(priority, key)),
        (false, Some(ticket)) => {
            attached.ticket = None;
            ring.remove(priority, ticket);
        }
        _ => {}
    }
}

/// All keys of a channel, that of its `basic.get` among them.
fn keys_of(channel: ChannelKey) -> RangeInclusive<ConsumerKey> {
    ConsumerKey::get(channel)..=ConsumerKey { channel, number: u32::MAX }
}

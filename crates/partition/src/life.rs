//! The life of a message in a queue with rules, as its leader sees it: time limits, length limits, what is given up and
//! where it goes, what waits for its time.
//!
//! Order of a turn: messages go out first, then what is too much or too old goes, then questions are answered, so that
//! nobody sees a queue beyond its limit. Invariants: a message that is given up is settled with its reason in the log,
//! and at most once its dead letter leaves with that entry; with *at least once* it is set aside in the log first, and
//! settled when its dead letter is safe. Nothing here is asked of a plain queue, which has no [`Life`].

use crate::command::{DeadLetter, Effect};
use crate::damage::next_sound;
use crate::deliver::{Next, Turn};
use crate::entry::Reason;
use crate::leader::{Leader, LeaderQueue};
use crate::machine::{FixedMap, schedule_of};
use crate::message::{MessageView, Stamp};
use crate::partition::Context;
use crate::place::Place;
use broker::QueueId;
use broker::queue::dispatch::Head;
use broker::queue::{Aside, DedupKey, QueueState, Rules, SeqRanges};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Messages given up whose bytes are still to be fetched; while there are as many, no more expire.
const DYING_MAX: usize = 1024;
/// Dead letters of one queue under way at a time with *at least once*.
const AWAITING_MAX: usize = 256;
/// A dead letter that found no place, and a due message that found its queue full, are tried again after this long.
const AGAIN_MS: u64 = 1_000;
/// Scheduled messages that one turn makes ready at most.
const DUE_MAX: usize = 1024;

/// When queues want to be looked at, earliest first.
pub(crate) type Timers = BTreeSet<(u64, QueueId)>;

/// A scheduled message that is due: the queue that it goes to, its time and number, its bytes.
pub(crate) type DueMessage = (QueueId, (u64, u64), Bytes);

/// A message that is given up and not settled yet.
struct Dying {
    /// Its place among those that were given up.
    turn: u64,
    seq: u64,
    reason: Reason,
    /// Its bytes, if they were in hand.
    message: Option<Bytes>,
}

/// What a leader keeps of a queue that is not plain.
#[derive(Default)]
pub(crate) struct Life {
    /// Messages below may have a time in them.
    pub(crate) timed_below: u64,
    /// The head as it was looked at last: its number and when it expires.
    looked: Option<(u64, Option<u64>)>,
    /// Messages from here on were not seen by an earlier turn: even with no time at all they may go out now.
    fresh_from: u64,
    /// Bodies of the messages that are ready or on their way to be; kept only under a limit of bytes.
    bytes: u64,
    /// The same, of what consumers hold.
    held_bytes: BTreeMap<u64, u32>,
    /// Messages in this range are not in `bytes` yet: they were there before anybody counted.
    uncounted: std::ops::Range<u64>,
    /// The limit of its length was passed when a turn ended that had nobody to give anything to: what was too much then goes before
    /// anything goes out.
    trims_first: bool,
    /// By their turns.
    dying: VecDeque<Dying>,
    /// The turn of the next one.
    next_turn: u64,
    /// With *at least once*: dead letters under way, and the turns that they had.
    awaiting: BTreeMap<u64, (u64, Reason)>,
    /// Returned messages that wait: until when, and which.
    retrying: BTreeSet<(u64, u64)>,
    /// Outcomes for the entry that is being built.
    pub(crate) ended: Vec<(Reason, SeqRanges)>,
    /// When somebody used the queue last; 0: the first turn will tell.
    used_ms: u64,
    /// It had consumers when it was looked at last: the day they are gone, its time begins.
    was_in_use: bool,
    /// The timer that is set.
    timer_ms: Option<u64>,
    /// Not before this time is a dead letter tried that found no place.
    again_ms: u64,
    /// Of a queue of scheduled messages: those that were made ready in entries not applied yet.
    released: BTreeSet<(u64, u64)>,
    /// Keys of messages that were taken in and are not applied yet: whose they are, and all of them, oldest first.
    keys: FixedMap<DedupKey, u64>,
    keys_in_order: VecDeque<(u64, DedupKey)>,
}

impl Life {
    /// The life of a queue as its rules and its replicated state want it; `None` if they want nothing.
    pub(crate) fn new(state: Option<&QueueState<Place>>, rules: Option<&Rules>, next_seq: u64) -> Option<Box<Life>> {
        let extras = state.and_then(QueueState::extras);
        if extras.is_none() && !rules.is_some_and(Life::is_wanted_by) {
            return None;
        }
        let timed_below = extras.map_or(0, |e| e.timed_below);
        // What was too much before a restart may be there again.
        let trims_first = next_seq > 1;
        let mut life = Box::new(Life { timed_below, fresh_from: next_seq, trims_first, ..Life::default() });
        if rules.is_some_and(|r| r.length_bytes_max.is_some()) {
            life.uncounted = 0..next_seq;
        }
        for (seq, aside) in extras.iter().flat_map(|e| &e.aside) {
            match aside {
                Aside::Dead(reason) => {
                    let reason = Reason::from_byte(*reason).expect("the log names known reasons");
                    life.queue_up(*seq, reason, None);
                }
                Aside::Until(until_ms) => {
                    life.retrying.insert((*until_ms, *seq));
                }
            }
        }
        Some(life)
    }

    /// Whether a queue with these rules has more to its messages than that they come and go.
    pub(crate) fn is_wanted_by(rules: &Rules) -> bool {
        rules.message_ttl_ms.is_some()
            || rules.expires_ms.is_some()
            || rules.length_max.is_some()
            || rules.length_bytes_max.is_some()
            || rules.dead_letter.is_some()
            || rules.retry.is_some()
            || rules.dedup.is_some()
    }

    /// Other rules hold: what the old ones began and the new ones do not know ends.
    pub(crate) fn configured(&mut self, before: Option<&Rules>, after: Option<&Rules>, next_seq: u64) {
        let counts = |rules: Option<&Rules>| rules.is_some_and(|r| r.length_bytes_max.is_some());
        if !counts(before) {
            self.recount(after, next_seq);
        }
        let waits = |rules: Option<&Rules>| rules.and_then(|r| r.dead_letter.as_ref()).is_some_and(|d| d.at_least_once);
        if waits(before) && !waits(after) {
            // As RabbitMQ does when the strategy changes: those that are not confirmed are gone.
            for (seq, (_, reason)) in std::mem::take(&mut self.awaiting) {
                self.end(seq, reason);
            }
            for dying in std::mem::take(&mut self.dying) {
                self.end(dying.seq, dying.reason);
            }
        }
        self.looked = None;
    }

    /// Whether forgetting it loses nothing.
    pub(crate) fn is_idle(&self, rules: Option<&Rules>) -> bool {
        self.dying.is_empty()
            && self.awaiting.is_empty()
            && self.retrying.is_empty()
            && self.ended.is_empty()
            && rules.is_none_or(|r| r.expires_ms.is_none())
    }

    /// Messages that are given up and still in the queue.
    pub(crate) fn kept(&self) -> u64 {
        (self.dying.len() + self.awaiting.len()) as u64
    }

    /// Returned messages that wait for their retry.
    pub(crate) fn retrying(&self) -> u64 {
        self.retrying.len() as u64
    }

    /// Ends a message, for the entry that is being built.
    pub(crate) fn end(&mut self, seq: u64, reason: Reason) {
        match self.ended.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, ranges)) => ranges.insert(seq),
            None => {
                let mut ranges = SeqRanges::new();
                ranges.insert(seq);
                self.ended.push((reason, ranges));
            }
        }
    }

    /// Messages below are applied: the replicated state knows their keys.
    pub(crate) fn keys_applied(&mut self, past: u64) {
        while let Some(&(seq, key)) = self.keys_in_order.front().filter(|(seq, _)| *seq < past) {
            self.keys_in_order.pop_front();
            if self.keys.get(&key) == Some(&seq) {
                self.keys.remove(&key);
            }
        }
    }

    /// Whether a message that is out of the dispatcher's hands is in the queue yet.
    fn keeps(&self, seq: u64) -> bool {
        self.dying.iter().any(|dying| dying.seq == seq)
            || self.awaiting.contains_key(&seq)
            || self.retrying.iter().any(|(_, waiting)| *waiting == seq)
    }

    /// Everything that was ready is gone.
    pub(crate) fn purged(&mut self) {
        self.bytes = 0;
    }

    /// What is ready is counted anew, if bytes are limited.
    pub(crate) fn recount(&mut self, rules: Option<&Rules>, next_seq: u64) {
        if rules.is_some_and(|r| r.length_bytes_max.is_some()) {
            (self.bytes, self.uncounted) = (0, 0..next_seq);
            self.held_bytes.clear();
        }
    }

    /// Whether a scheduled message is on its way to its queue.
    pub(crate) fn is_released(&self, seq: u64) -> bool {
        self.released.iter().any(|(_, released)| *released == seq)
    }

    /// Takes out a message that waits here and whose bytes are not in hand: given up, or until its retry. False if it does not.
    pub(crate) fn drop_waiting(&mut self, seq: u64) -> bool {
        let before = self.dying.len() + self.retrying.len();
        self.dying.retain(|dying| dying.seq != seq || dying.message.is_some());
        self.retrying.retain(|(_, waiting)| *waiting != seq);
        self.dying.len() + self.retrying.len() < before
    }

    /// The timer that is set, if one is.
    pub(crate) fn timer_ms(&self) -> Option<u64> {
        self.timer_ms
    }

    /// Somebody used the queue.
    pub(crate) fn used(&mut self, now_ms: u64) {
        self.used_ms = now_ms;
    }

    /// The dead letter of `seq` is safe, or is to be tried again. True if that ends the message.
    pub(crate) fn buried(&mut self, seq: u64, is_safe: bool, now_ms: u64) -> bool {
        let all = self.dying.len() + self.awaiting.len();
        let Some((turn, reason)) = self.awaiting.remove(&seq) else { return false };
        if is_safe {
            self.end(seq, reason);
            return true;
        }
        self.again_ms = now_ms + AGAIN_MS;
        if all <= AWAITING_MAX {
            // It goes back to where it was: dead letters leave in the order in which their messages were given up.
            let at = self.dying.partition_point(|dying| dying.turn < turn);
            self.dying.insert(at, Dying { turn, seq, reason, message: None });
        } else {
            // There are more than are tried at a time: those that find no place shall not keep the others from it.
            self.queue_up(seq, reason, None);
        }
        false
    }

    /// A message that is given up stands behind those that were before.
    fn queue_up(&mut self, seq: u64, reason: Reason, message: Option<Bytes>) {
        self.dying.push_back(Dying { turn: self.next_turn, seq, reason, message });
        self.next_turn += 1;
    }
}

impl LeaderQueue {
    /// Whether one more message with a body of so many bytes is too much for a queue that refuses then.
    ///
    /// Messages that are not safe yet count as ready, but for those that consumers will take the moment they are.
    pub(crate) fn is_full(&self, rules: &Rules, body_bytes: usize) -> bool {
        if !rules.overflow.is_reject() {
            return false;
        }
        let kept = self.life.as_ref().map_or(0, |l| l.kept());
        let pending = self.next_seq - self.dispatch.end();
        let count = self.dispatch.ready() + pending + kept;
        if let Some(max) = rules.length_max
            && count >= max
            && count - pending.min(self.dispatch.free_credit()) >= max
        {
            return true;
        }
        let Some((max, life)) = rules.length_bytes_max.zip(self.life.as_ref()) else { return false };
        let bytes = if self.dispatch.free_credit() >= count { 0 } else { life.bytes };
        bytes + body_bytes as u64 > max
    }

    /// Whether something that was there before anybody counted is not in the count of bytes yet. A queue whose delete is being
    /// decided counts nothing meanwhile.
    pub(crate) fn has_uncounted(&self, state: Option<&QueueState<Place>>) -> bool {
        let Some(range) = self.life.as_ref().map(|life| &life.uncounted).filter(|range| !range.is_empty()) else {
            return false;
        };
        let next = state.and_then(|state| next_sound(state, self.spoilt.as_deref(), range.start));
        self.closing.is_none() && next.is_some_and(|seq| seq < range.end)
    }

    /// Whether a message with this key is here, or was so lately that another one is a repeat.
    pub(crate) fn knows_key(&self, key: DedupKey, state: Option<&QueueState<Place>>, now_ms: u64) -> bool {
        let Some(life) = &self.life else { return false };
        let has_window = self.rules.as_ref().and_then(|r| r.dedup).is_some_and(|rule| rule.window_ms > 0);
        if let Some(seq) = life.keys.get(&key) {
            return has_window || self.has(*seq, state);
        }
        let seen = state.and_then(|state| state.seen(key));
        seen.is_some_and(|seen| seen.until_ms > now_ms || self.has(seen.seq, state))
    }

    /// Whether a message is here, as this leader knows it, which is ahead of the log.
    fn has(&self, seq: u64, state: Option<&QueueState<Place>>) -> bool {
        let is_over = state.is_some_and(|state| seq < state.next_seq() && !state.runs().is_live(seq));
        let levels = state.and_then(QueueState::levels);
        !is_over && (self.dispatch.is_there(seq, levels) || self.life.as_ref().is_some_and(|life| life.keeps(seq)))
    }

    /// The message that was numbered last has this key.
    pub(crate) fn note_key(&mut self, key: DedupKey) {
        if self.rules.as_ref().is_some_and(|rules| rules.dedup.is_some()) {
            let seq = self.next_seq - 1;
            let life = self.life.get_or_insert_default();
            life.keys.insert(key, seq);
            life.keys_in_order.push_back((seq, key));
        }
    }

    /// A message with a body of so many bytes comes in.
    pub(crate) fn note_published(&mut self, is_timed: bool, body_bytes: usize) {
        if is_timed {
            let next_seq = self.next_seq;
            self.life.get_or_insert_default().timed_below = next_seq;
        }
        if let Some(life) = &mut self.life {
            life.bytes += body_bytes as u64;
        }
    }

    fn rules_limit_bytes(&self) -> bool {
        self.rules.as_ref().is_some_and(|r| r.length_bytes_max.is_some())
    }

    /// A message leaves those that are ready.
    pub(crate) fn note_taken(&mut self, seq: u64, message: &Bytes, is_held: bool) {
        if !self.rules_limit_bytes() {
            return;
        }
        let bytes = MessageView::parse(message).expect("partitions hold whole messages").body_bytes();
        if let Some(life) = &mut self.life {
            life.bytes = life.bytes.saturating_sub(u64::from(bytes));
            if is_held {
                life.held_bytes.insert(seq, bytes);
            }
        }
    }

    /// Messages leave the hands of consumers; with `is_back` they are ready again.
    pub(crate) fn note_released(&mut self, first: u64, count: u64, is_back: bool) {
        let Some(life) = self.life.as_deref_mut().filter(|l| !l.held_bytes.is_empty()) else { return };
        for seq in first..first + count {
            let bytes = life.held_bytes.remove(&seq).unwrap_or(0);
            life.bytes += if is_back { u64::from(bytes) } else { 0 };
        }
    }

    /// Gives a message up for this reason: it is out of the dispatcher's hands already.
    pub(crate) fn give_up(
        &mut self,
        builder: &mut crate::entry::EntryBuilder,
        id: QueueId,
        seq: u64,
        reason: Reason,
        message: Option<Bytes>,
    ) {
        let dead_letter = self.rules.as_ref().and_then(|r| r.dead_letter.as_ref());
        let waits = dead_letter.map(|d| d.at_least_once);
        let life = self.life.get_or_insert_default();
        match waits {
            None => life.end(seq, reason),
            Some(waits) => {
                if waits {
                    builder.dead(id, reason, &[(seq, 1)]);
                }
                life.queue_up(seq, reason, message);
            }
        }
    }

    /// A message came back `returns` times in all: until when it waits, if it does.
    pub(crate) fn retry_until(&self, counts_against: bool, returns: u32, now_ms: u64) -> Option<u64> {
        use broker::queue::Retried;
        let rule = self.rules.as_ref()?.retry?;
        let waits = match rule.which {
            Retried::All => true,
            Retried::Failed => counts_against,
            Retried::Returned => !counts_against,
        };
        let wait_ms = rule.min_ms.saturating_mul(u64::from(returns)).min(rule.max_ms);
        (waits && wait_ms > 0).then_some(now_ms.saturating_add(wait_ms))
    }

    /// A returned message waits until its time.
    pub(crate) fn wait_until(&mut self, until_ms: u64, seq: u64) {
        self.life.get_or_insert_default().retrying.insert((until_ms, seq));
    }
}

impl Turn<'_> {
    /// When a message expires; `None` is never. `ttl_ms` is the queue's own limit.
    fn expires_at(message: &Bytes, ttl_ms: Option<u64>) -> Option<u64> {
        let view = MessageView::parse(message).expect("partitions hold whole messages");
        let Stamp::Since(since) = view.stamp() else { return None };
        let own = broker::properties::expiration_ms(view.properties());
        let ttl = own.into_iter().chain(ttl_ms).min()?;
        Some(since.saturating_add(ttl))
    }

    /// Whether the head may be over its time, so that its bytes must be looked at before it goes out.
    pub(crate) fn is_timed(&self, seq: u64) -> bool {
        self.lq.life.as_ref().is_some_and(|l| seq < l.timed_below)
    }

    /// Whether `head` is too old to go out. What no turn saw before goes out however old it is: it came this moment.
    pub(crate) fn is_over(&mut self, head: Head, message: &Bytes, now_ms: u64) -> bool {
        let ttl_ms = self.lq.rules.as_ref().and_then(|r| r.message_ttl_ms);
        let expires_at = Self::expires_at(message, ttl_ms);
        let Some(life) = &mut self.lq.life else { return false };
        life.looked = Some((head.seq, expires_at));
        let is_fresh = !head.returned && head.seq >= life.fresh_from;
        expires_at.is_some_and(|at| at <= now_ms) && !is_fresh
    }

    /// The head goes, for this reason.
    pub(crate) fn drop_head(&mut self, head: Head, reason: Reason, message: Option<Bytes>) {
        self.lq.dispatch.drop_head(head, self.state.and_then(QueueState::levels));
        if let Some(message) = &message {
            self.lq.note_taken(head.seq, message, false);
        }
        self.lq.counts.remove(&head.seq);
        self.lq.give_up(self.builder, self.id, head.seq, reason, message);
    }

    /// Counts the bytes of what was there before anybody counted. False while they are being read.
    fn count_bytes(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some(range) = self.lq.life.as_ref().map(|l| l.uncounted.clone()).filter(|r| !r.is_empty()) {
            let state = self.state;
            let applied = state.map_or(1, QueueState::next_seq);
            let next = match state.and_then(|s| next_sound(s, self.lq.spoilt.as_deref(), range.start)) {
                Some(seq) => seq,
                None => range.start.max(applied),
            };
            if next >= range.end {
                self.lq.life.as_mut().expect("it was there above").uncounted = 0..0;
                break;
            }
            let Next::Message(message) = self.peek(next, cx.tail, cx.out) else { return false };
            let bytes = MessageView::parse(&message).expect("partitions hold whole messages").body_bytes();
            let is_ready = !self.lq.dispatch.is_held(next);
            let life = self.lq.life.as_mut().expect("it was there above");
            life.uncounted.start = next + 1;
            if is_ready {
                life.bytes += u64::from(bytes);
            } else {
                life.held_bytes.insert(next, bytes);
            }
        }
        true
    }

    /// After messages went out: what is too much goes, what is too old goes, what was given up is dead-lettered, and the
    /// next look is set.
    pub(crate) fn live_on(&mut self, cx: &mut Context<'_>) {
        if self.lq.life.is_none() {
            return;
        }
        if schedule_of(self.id).is_some() {
            return self.release_due(cx);
        }
        let is_trimmed = self.trim(cx, u64::MAX);
        let end = self.lq.dispatch.end();
        if let Some(life) = self.lq.life.as_deref_mut().filter(|_| self.blocked_at.is_none()) {
            (life.fresh_from, life.trims_first) = (end, !is_trimmed);
        }
        let expires_at = self.expire(cx);
        self.bury(cx);
        let lapses_at = self.lapse(cx);
        let Some(life) = &mut self.lq.life else { return };
        let retries_at = life.retrying.first().map(|(until, _)| *until);
        let again_at = (!life.dying.is_empty() && life.again_ms > cx.now_ms).then_some(life.again_ms);
        let next = [expires_at, lapses_at, retries_at, again_at].into_iter().flatten().min();
        set_timer(self.timers, self.id, life, next);
    }

    /// Before messages go out: what was there is counted, what was too much already goes, whose wait is over is ready, and what was
    /// given up is sent on, so that it never waits behind what goes out. False while bytes that this needs are being read.
    pub(crate) fn wake_up(&mut self, cx: &mut Context<'_>) -> bool {
        if self.lq.life.is_none() || schedule_of(self.id).is_some() {
            return true;
        }
        if !self.count_bytes(cx) {
            return false;
        }
        if let Some(life) = self.lq.life.as_deref().filter(|life| life.trims_first) {
            if !self.trim(cx, life.fresh_from) {
                return false;
            }
            self.lq.life.as_mut().expect("it was there above").trims_first = false;
        }
        self.end_waits(cx.now_ms);
        self.bury(cx);
        true
    }

    /// Returned messages whose wait is over are ready again.
    fn end_waits(&mut self, now_ms: u64) {
        let Some(life) = &mut self.lq.life else { return };
        while let Some((until, seq)) = life.retrying.first().copied().filter(|(until, _)| *until <= now_ms) {
            life.retrying.remove(&(until, seq));
            self.lq.dispatch.put_back(seq, 1, self.state.and_then(QueueState::levels));
        }
    }

    /// Drops from the head what is beyond the queue's length, of messages below `below`. False while bytes of them are being read.
    fn trim(&mut self, cx: &mut Context<'_>, below: u64) -> bool {
        let Some(rules) = self.lq.rules.clone() else { return true };
        if rules.overflow.is_reject() {
            return true;
        }
        loop {
            let too_long = rules.length_max.is_some_and(|max| self.lq.dispatch.ready() > max);
            let bytes = self.lq.life.as_ref().map_or(0, |l| l.bytes);
            let too_big = rules.length_bytes_max.is_some_and(|max| bytes > max);
            if !too_long && !too_big {
                return true;
            }
            let Some(head) = self.head().filter(|head| head.seq < below) else { return true };
            let message = if rules.length_bytes_max.is_some() {
                let Next::Message(message) = self.peek(head.seq, cx.tail, cx.out) else { return false };
                Some(message)
            } else {
                None
            };
            self.drop_head(head, Reason::MaxLength, message);
        }
    }

    /// Ends what is too old, from the head on. Returns when the next one will be.
    pub(crate) fn expire(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        loop {
            let head = self.head()?;
            if !self.is_timed(head.seq) {
                return None;
            }
            let life = self.lq.life.as_ref().expect("what is timed has a life");
            // A fresh one whose consumer only waits for the log may still go out.
            let is_awaited = self.blocked_at.is_some() && !head.returned && head.seq >= life.fresh_from;
            if life.dying.len() >= DYING_MAX || is_awaited {
                return None;
            }
            if let Some((_, expires_at)) = life.looked.filter(|(seq, _)| *seq == head.seq)
                && expires_at.is_none_or(|at| at > cx.now_ms)
            {
                return expires_at;
            }
            let Next::Message(message) = self.peek(head.seq, cx.tail, cx.out) else { return None };
            if !self.is_over(Head { returned: true, ..head }, &message, cx.now_ms) {
                // It was only looked at: whoever takes it fetches it again, and nothing is held for an idle queue.
                if self.lq.dispatch.consumers() == 0 {
                    self.put_reader(None, cx.tail);
                }
                return self.lq.life.as_ref().and_then(|l| l.looked).and_then(|(_, at)| at);
            }
            self.drop_head(head, Reason::Expired, Some(message));
        }
    }

    /// Sends on what was given up, as far as its bytes are at hand.
    fn bury(&mut self, cx: &mut Context<'_>) {
        let Some(rules) = self.lq.rules.clone() else { return };
        let at_least_once = rules.dead_letter.as_ref().is_some_and(|d| d.at_least_once);
        loop {
            let Some(life) = self.lq.life.as_deref_mut() else { return };
            let Some(dying) = life.dying.front_mut() else { return };
            if at_least_once && (life.awaiting.len() >= AWAITING_MAX || life.again_ms > cx.now_ms) {
                return;
            }
            let (turn, seq, reason) = (dying.turn, dying.seq, dying.reason);
            if rules.dead_letter.is_none() {
                // The exchange was taken away meanwhile.
                life.dying.pop_front();
                life.end(seq, reason);
                continue;
            }
            let message = match dying.message.take() {
                Some(message) => message,
                None => {
                    if self.state.is_some_and(|s| seq < s.next_seq() && !s.runs().is_live(seq)) {
                        // Purged, or settled by an entry of a leader before this one.
                        self.lq.life.as_mut().and_then(|l| l.dying.pop_front());
                        continue;
                    }
                    let Next::Message(message) = self.fetch(seq, cx.tail, cx.out) else { return };
                    message
                }
            };
            let life = self.lq.life.as_deref_mut().expect("it was there above");
            life.dying.pop_front();
            let letter = DeadLetter { queue: self.id, seq, reason, message, wants_answer: at_least_once };
            if at_least_once {
                life.awaiting.insert(seq, (turn, reason));
                cx.out.effects.push(Effect::DeadLetter(Box::new(letter)));
            } else {
                life.end(seq, reason);
                self.letters.push(letter);
                self.builder.want_sync();
            }
        }
    }

    /// Tells that nobody uses the queue, when its time has come. Returns when that will be.
    fn lapse(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        let expires_ms = self.lq.rules.as_ref()?.expires_ms?;
        let in_use = self.lq.dispatch.consumers() > 0;
        let life = self.lq.life.as_mut()?;
        if std::mem::replace(&mut life.was_in_use, in_use) || in_use || life.used_ms == 0 {
            life.used_ms = cx.now_ms;
        }
        if in_use {
            return None;
        }
        if life.used_ms + expires_ms <= cx.now_ms {
            // If the queue does not go after all, it is used.
            life.used_ms = cx.now_ms;
            cx.out.effects.push(Effect::Lapsed { queue: self.id });
        }
        Some(life.used_ms + expires_ms)
    }

    /// Of a queue of scheduled messages: hands on those that are due, in the order of their times.
    fn release_due(&mut self, cx: &mut Context<'_>) {
        let Some(target) = schedule_of(self.id) else { return };
        let Some(state) = self.state else { return };
        let mut released = std::mem::take(&mut self.lq.life.as_mut().expect("asked before").released);
        released.retain(|(_, seq)| state.runs().is_live(*seq));
        let mut next = None;
        let mut count = 0;
        for &(due_ms, seq) in state.extras().iter().flat_map(|e| &e.due) {
            if released.contains(&(due_ms, seq)) || !state.runs().is_live(seq) || self.lq.is_spoilt(seq) {
                continue;
            }
            let again_ms = self.lq.life.as_ref().map_or(0, |l| l.again_ms);
            if due_ms > cx.now_ms || again_ms > cx.now_ms || count == DUE_MAX {
                next = Some(due_ms.max(again_ms).max(cx.now_ms + 1));
                break;
            }
            let Next::Message(message) = self.fetch(seq, cx.tail, cx.out) else { break };
            released.insert((due_ms, seq));
            self.due.push((target, (due_ms, seq), message));
            count += 1;
        }
        let life = self.lq.life.as_mut().expect("asked before");
        life.released = released;
        set_timer(self.timers, self.id, life, next);
    }
}

impl LeaderQueue {
    /// A due message found its queue full: it stays scheduled and is tried again.
    pub(crate) fn not_released(&mut self, timers: &mut Timers, id: QueueId, due: (u64, u64), now_ms: u64) {
        let Some(life) = &mut self.life else { return };
        life.released.remove(&due);
        life.again_ms = now_ms + AGAIN_MS;
        let at = life.again_ms;
        set_timer(timers, id, life, Some(at));
    }
}

fn set_timer(timers: &mut Timers, id: QueueId, life: &mut Life, at: Option<u64>) {
    if life.timer_ms == at {
        return;
    }
    if let Some(before) = life.timer_ms {
        timers.remove(&(before, id));
    }
    timers.extend(at.map(|at| (at, id)));
    life.timer_ms = at;
}

impl Leader {
    /// Puts the queues whose time has come on the list of those to look at.
    pub(crate) fn wake_due(&mut self, now_ms: u64) {
        while let Some(&(at, id)) = self.timers.first().filter(|(at, _)| *at <= now_ms) {
            self.timers.remove(&(at, id));
            let Some(lq) = self.queues.get_mut(&id) else { continue };
            if let Some(life) = &mut lq.life {
                // It is set no more: the same time again, which a leader's clock that never goes back hardly gives, is a new one.
                life.timer_ms = life.timer_ms.filter(|set| *set != at);
            }
            Leader::touch(&mut self.dirty, id, lq);
        }
    }
}

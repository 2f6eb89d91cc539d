//! What the rules of a queue in the log ask of its leader besides: what is given up and where it
//! goes, what waits for its time, keys that the log does not know yet.
//!
//! Invariants: a message that is given up is settled with its reason in the log, and at most once
//! its dead letter leaves with that entry; with *at least once* it is set aside in the log first,
//! and settled when its dead letter is safe.

use crate::command::{DeadLetter, Effect};
use crate::damage::next_sound;
use crate::deliver::LogAccess;
use crate::entry::Reason;
use crate::leader::{Leader, LeaderQueue};
use crate::letters::{Letters, NextLetter};
use crate::life::{Life, Timers, body_bytes};
use crate::machine::{FixedMap, Queues, schedule_of};
use crate::place::Place;
use crate::queue::Admission;
use crate::turn::{Next, Store, Turn};
use broker::QueueId;
use broker::queue::{Aside, DedupKey, QueueState, Rules, SeqRanges};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

/// Messages given up whose bytes are still to be fetched; while there are as many, no more expire.
const DYING_MAX: usize = 1024;
/// A due message that found its queue full is tried again after this long.
const AGAIN_MS: u64 = 1_000;
/// Scheduled messages that one turn makes ready at most.
const DUE_MAX: usize = 1024;

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

/// What a leader keeps of a queue that is not plain, beside what every such queue has.
#[derive(Default)]
pub(crate) struct LogLife {
    /// Messages in this range are not in the count of bytes yet: they were there before anybody
    /// counted.
    uncounted: std::ops::Range<u64>,
    /// By their turns: those that were not sent on yet.
    dying: VecDeque<Dying>,
    /// With *at least once*: those that were.
    letters: Letters,
    /// What those take whose bytes are in hand.
    dying_bytes: usize,
    /// The turn of the next one.
    next_turn: u64,
    /// Returned messages that wait: until when, and which.
    retrying: BTreeSet<(u64, u64)>,
    /// Outcomes for the entry that is being built.
    pub(crate) ended: Vec<(Reason, SeqRanges)>,
    /// Of a queue of scheduled messages: not before this time is one tried whose queue was full.
    again_ms: u64,
    /// Of a queue of scheduled messages: those that were made ready in entries not applied yet.
    released: BTreeSet<(u64, u64)>,
    /// Keys of messages that were taken in and are not applied yet: whose they are, and all of
    /// them, oldest first.
    keys: FixedMap<DedupKey, u64>,
    keys_in_order: VecDeque<(u64, DedupKey)>,
}

impl Life<LogLife> {
    /// The life of a queue as its rules and its replicated state want it; `None` if they want
    /// nothing.
    pub(crate) fn of(state: Option<&QueueState<Place>>, rules: Option<&Rules>, next_seq: u64) -> Option<Box<Self>> {
        let extras = state.and_then(QueueState::extras);
        if extras.is_none() && !rules.is_some_and(Self::is_wanted_by) {
            return None;
        }
        let timed_below = extras.map_or(0, |e| e.timed_below);
        // What was too much before a restart may be there again.
        let trims_first = next_seq > 1;
        let mut life: Box<Self> = Box::new(Life { timed_below, fresh_from: next_seq, trims_first, ..Life::default() });
        if rules.is_some_and(|r| r.length_bytes_max.is_some()) {
            life.sink.uncounted = 0..next_seq;
        }
        for (seq, aside) in extras.iter().flat_map(|e| &e.aside) {
            match aside {
                Aside::Dead(reason) => {
                    let reason = Reason::from_byte(*reason).expect("the log names known reasons");
                    life.sink.queue_up(*seq, reason, None);
                }
                Aside::Until(until_ms) => {
                    life.sink.retrying.insert((*until_ms, *seq));
                }
            }
        }
        Some(life)
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
            for (seq, reason) in std::mem::take(&mut self.sink.letters).into_all() {
                self.sink.end(seq, reason);
            }
            self.sink.dying_bytes = 0;
            for dying in std::mem::take(&mut self.sink.dying) {
                self.sink.end(dying.seq, dying.reason);
            }
        }
        self.reconfigured(before, after);
    }

    /// What is ready is counted anew, if bytes are limited.
    pub(crate) fn recount(&mut self, rules: Option<&Rules>, next_seq: u64) {
        if rules.is_some_and(|r| r.length_bytes_max.is_some()) {
            (self.bytes, self.sink.uncounted) = (0, 0..next_seq);
            self.held_bytes.clear();
        }
    }
}

impl LogLife {
    /// Whether forgetting it loses nothing.
    pub(crate) fn is_idle(&self, rules: Option<&Rules>) -> bool {
        self.dying.is_empty()
            && self.letters.is_empty()
            && self.retrying.is_empty()
            && self.ended.is_empty()
            && rules.is_none_or(|r| r.expires_ms.is_none())
    }

    /// Messages that are given up and still in the queue.
    pub(crate) fn kept(&self) -> u64 {
        (self.dying.len() + self.letters.len()) as u64
    }

    /// Whether so much waits to be sent on that no more is given up.
    pub(crate) fn is_crowded(&self) -> bool {
        self.dying.len() >= DYING_MAX || self.letters.is_crowded()
    }

    /// When a wait ends.
    pub(crate) fn due_ms(&self, now_ms: u64) -> Option<u64> {
        let retries_at = self.retrying.first().map(|(until, _)| *until);
        let again_at = self.letters.due_ms(now_ms);
        retries_at.into_iter().chain(again_at).min()
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
            || self.letters.has(seq)
            || self.retrying.iter().any(|(_, waiting)| *waiting == seq)
    }

    /// Whether a scheduled message is on its way to its queue.
    pub(crate) fn is_released(&self, seq: u64) -> bool {
        self.released.iter().any(|(_, released)| *released == seq)
    }

    /// Takes out a message that waits here and whose bytes are not in hand: given up, or until its
    /// retry. False if it does not.
    pub(crate) fn drop_waiting(&mut self, seq: u64) -> bool {
        let before = self.dying.len() + self.retrying.len() + self.letters.len();
        self.letters.forget_stuck(seq);
        self.dying.retain(|dying| dying.seq != seq || dying.message.is_some());
        self.retrying.retain(|(_, waiting)| *waiting != seq);
        self.dying.len() + self.retrying.len() + self.letters.len() < before
    }

    /// The dead letter of `seq` is safe, or is to be tried again. True if that ends the message.
    pub(crate) fn dead_letter_answered(&mut self, seq: u64, is_safe: bool, now_ms: u64) -> bool {
        match self.letters.answered(seq, is_safe, now_ms) {
            Some(reason) => {
                self.end(seq, reason);
                true
            }
            None => false,
        }
    }

    /// A message that is given up stands behind those that were before.
    fn queue_up(&mut self, seq: u64, reason: Reason, message: Option<Bytes>) {
        self.dying_bytes += message.as_ref().map_or(0, Bytes::len);
        self.dying.push_back(Dying { turn: self.next_turn, seq, reason, message });
        self.next_turn += 1;
    }

    /// What messages take that are given up and whose bytes are in hand.
    pub(crate) fn dying_bytes(&self) -> usize {
        self.dying_bytes
    }
}

impl LeaderQueue {
    /// Everything that was ready is gone. What was taken in and is not ready yet is counted anew.
    pub(crate) fn note_purged(&mut self) {
        let coming = self.dispatch.end()..self.next_seq;
        if let Some(life) =
            self.life.as_mut().filter(|_| self.rules.as_ref().is_some_and(|r| r.length_bytes_max.is_some()))
        {
            (life.bytes, life.sink.uncounted) = (0, coming);
        }
    }

    /// Whether something that was there before anybody counted is not in the count of bytes yet. A
    /// queue whose delete is being decided counts nothing meanwhile.
    pub(crate) fn has_uncounted(&self, state: Option<&QueueState<Place>>) -> bool {
        let Some(range) = self.life.as_ref().map(|life| &life.sink.uncounted).filter(|range| !range.is_empty()) else {
            return false;
        };
        let next = state.and_then(|state| next_sound(state, self.sink.spoilt.as_deref(), range.start));
        self.closing.is_none() && next.is_some_and(|seq| seq < range.end)
    }

    /// What becomes of a message with this key, as far as that goes by its key.
    pub(crate) fn admit_key(&self, key: DedupKey, queues: &Queues, id: QueueId, now_ms: u64) -> Admission {
        let state = queues.queue(id);
        if self.knows_key(key, state, now_ms) {
            return Admission::Repeat;
        }
        let meter = &queues.key_meter;
        let has_room = state.map_or(!meter.is_full(), |state| state.has_room_for_key(key, now_ms, meter));
        if has_room { Admission::Taken } else { Admission::Refused }
    }

    /// Whether a message with this key is here, or was so lately that another one is a repeat.
    fn knows_key(&self, key: DedupKey, state: Option<&QueueState<Place>>, now_ms: u64) -> bool {
        let Some(life) = &self.life else { return false };
        let has_window = self.rules.as_ref().and_then(|r| r.dedup).is_some_and(|rule| rule.window_ms > 0);
        if let Some(seq) = life.sink.keys.get(&key) {
            return has_window || self.has(*seq, state);
        }
        let seen = state.and_then(|state| state.seen(key));
        seen.is_some_and(|seen| seen.until_ms > now_ms || self.has(seen.seq, state))
    }

    /// Whether a message is here, as this leader knows it, which is ahead of the log.
    fn has(&self, seq: u64, state: Option<&QueueState<Place>>) -> bool {
        let is_over = state.is_some_and(|state| seq < state.next_seq() && !state.runs().is_live(seq));
        let levels = state.and_then(QueueState::levels);
        !is_over && (self.dispatch.is_there(seq, levels) || self.life.as_ref().is_some_and(|life| life.sink.keeps(seq)))
    }

    /// The message that was numbered last has this key.
    pub(crate) fn note_key(&mut self, key: DedupKey) {
        if self.rules.as_ref().is_some_and(|rules| rules.dedup.is_some()) {
            let seq = self.next_seq - 1;
            let life = self.life.get_or_insert_default();
            life.sink.keys.insert(key, seq);
            life.sink.keys_in_order.push_back((seq, key));
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
            None => life.sink.end(seq, reason),
            Some(waits) => {
                if waits {
                    builder.dead(id, reason, &[(seq, 1)]);
                }
                life.sink.queue_up(seq, reason, message);
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

    /// Whether its messages that are given up stay until their dead letters are safe.
    pub(crate) fn waits_for_letters(&self) -> bool {
        let dead_letter = self.rules.as_ref().and_then(|rules| rules.dead_letter.as_ref());
        dead_letter.is_some_and(|rule| rule.at_least_once)
    }

    /// A returned message waits until its time.
    pub(crate) fn wait_until(&mut self, until_ms: u64, seq: u64) {
        self.life.get_or_insert_default().sink.retrying.insert((until_ms, seq));
    }
}

impl Turn<'_, LogAccess<'_, '_>> {
    /// Counts the bytes of what was there before anybody counted. False while they are being read.
    fn count_bytes(&mut self) -> bool {
        while let Some(range) = self.lq.life.as_ref().map(|l| l.sink.uncounted.clone()).filter(|r| !r.is_empty()) {
            let state = self.at.state;
            let applied = state.map_or(1, QueueState::next_seq);
            let next = match state.and_then(|s| next_sound(s, self.lq.sink.spoilt.as_deref(), range.start)) {
                Some(seq) => seq,
                None => range.start.max(applied),
            };
            if next >= range.end {
                self.lq.life.as_mut().expect("it was there above").sink.uncounted = 0..0;
                break;
            }
            if next >= applied.max(self.lq.sink.proposed_seq) {
                // It has its number, and its entry waits for its turn in the log: a later look
                // counts it.
                self.lq.life.as_mut().expect("it was there above").sink.uncounted.start = next;
                break;
            }
            let Next::Message(message) = self.peek(next) else { return false };
            let is_held = self.lq.dispatch.is_held(next);
            let life = self.lq.life.as_mut().expect("it was there above");
            life.sink.uncounted.start = next + 1;
            life.count(next, body_bytes(&message), is_held);
        }
        true
    }

    /// Before messages go out: what was there is counted, what was too much already goes, whose
    /// wait is over is ready, and what was given up is sent on, so that it never waits behind what
    /// goes out. False while bytes that this needs are being read.
    pub(crate) fn wake(&mut self) -> bool {
        if schedule_of(self.id).is_some() {
            self.release_due();
            return false;
        }
        if !self.count_bytes() {
            return false;
        }
        if let Some(fresh_from) = self.lq.life.as_deref().filter(|life| life.trims_first).map(|life| life.fresh_from) {
            if !self.trim(fresh_from) {
                return false;
            }
            self.lq.life.as_mut().expect("it was there above").trims_first = false;
        }
        self.end_waits();
        self.bury();
        true
    }

    /// Returned messages whose wait is over are ready again.
    fn end_waits(&mut self) {
        let Some(life) = &mut self.lq.life else { return };
        while let Some((until, seq)) = life.sink.retrying.first().copied().filter(|(until, _)| *until <= self.now_ms) {
            life.sink.retrying.remove(&(until, seq));
            self.lq.dispatch.put_back(seq, 1, self.at.state.and_then(QueueState::levels));
        }
    }

    /// Sends on what was given up, as far as its bytes are at hand.
    pub(crate) fn bury(&mut self) {
        let Some(rules) = self.lq.rules.clone() else { return };
        let at_least_once = self.lq.waits_for_letters();
        loop {
            let Some(life) = self.lq.life.as_deref_mut() else { return };
            let LogLife { dying, letters, .. } = &mut life.sink;
            let next = match at_least_once {
                true => letters.next(!dying.is_empty(), self.now_ms),
                false => (!dying.is_empty()).then_some(NextLetter::Fresh),
            };
            let (turn, seq, reason, in_hand) = match next {
                None => return,
                Some(NextLetter::Stuck { turn, seq, reason }) => (turn, seq, reason, None),
                Some(NextLetter::Fresh) => {
                    let dying = dying.front_mut().expect("there is one");
                    (dying.turn, dying.seq, dying.reason, dying.message.take())
                }
            };
            let is_fresh = matches!(next, Some(NextLetter::Fresh));
            if rules.dead_letter.is_none() {
                // The exchange was taken away meanwhile.
                life.sink.dying_bytes -= in_hand.map_or(0, |message| message.len());
                life.sink.dying.pop_front();
                life.sink.end(seq, reason);
                continue;
            }
            let message = match in_hand {
                Some(message) => {
                    life.sink.dying_bytes -= message.len();
                    message
                }
                None => {
                    if self.at.state.is_some_and(|s| seq < s.next_seq() && !s.runs().is_live(seq)) {
                        // Purged, or settled by an entry of a leader before this one.
                        let life = &mut self.lq.life.as_mut().expect("it was there above").sink;
                        match is_fresh {
                            true => _ = life.dying.pop_front(),
                            false => life.letters.forget_stuck(seq),
                        }
                        continue;
                    }
                    let Next::Message(message) = self.fetch(seq) else { return };
                    message
                }
            };
            let life = self.lq.life.as_deref_mut().expect("it was there above");
            if is_fresh {
                life.sink.dying.pop_front();
            }
            let letter = DeadLetter { queue: self.id, seq, reason, message, wants_answer: at_least_once };
            if at_least_once {
                life.sink.letters.sent(seq, turn, reason, is_fresh);
                self.at.cx.out.effects.push(Effect::DeadLetter(Box::new(letter)));
            } else {
                life.sink.end(seq, reason);
                *self.at.letters_bytes += letter.bytes();
                self.at.letters.push(letter);
                self.at.builder.want_sync();
            }
        }
    }

    /// Of a queue of scheduled messages: hands on those that are due, in the order of their times.
    fn release_due(&mut self) {
        let Some(target) = schedule_of(self.id) else { return };
        let Some(state) = self.at.state else { return };
        let mut released = std::mem::take(&mut self.lq.life.as_mut().expect("asked before").sink.released);
        released.retain(|(_, seq)| state.runs().is_live(*seq));
        let mut next = None;
        let mut count = 0;
        for &(due_ms, seq) in state.extras().iter().flat_map(|e| &e.due) {
            if released.contains(&(due_ms, seq)) || !state.runs().is_live(seq) || self.lq.is_spoilt(seq) {
                continue;
            }
            let again_ms = self.lq.life.as_ref().map_or(0, |l| l.sink.again_ms);
            if due_ms > self.now_ms || again_ms > self.now_ms || count == DUE_MAX {
                next = Some(due_ms.max(again_ms).max(self.now_ms + 1));
                break;
            }
            let Next::Message(message) = self.fetch(seq) else { break };
            released.insert((due_ms, seq));
            self.at.due.push((target, (due_ms, seq), message));
            count += 1;
        }
        let life = self.lq.life.as_mut().expect("asked before");
        life.sink.released = released;
        life.set_timer(self.timers, self.id, next);
    }
}

impl LeaderQueue {
    /// A due message found its queue full: it stays scheduled and is tried again.
    pub(crate) fn not_released(&mut self, timers: &mut Timers, id: QueueId, due: (u64, u64), now_ms: u64) {
        let Some(life) = &mut self.life else { return };
        life.sink.released.remove(&due);
        life.sink.again_ms = now_ms + AGAIN_MS;
        let at = life.sink.again_ms;
        life.set_timer(timers, id, Some(at));
    }
}

impl Leader {
    /// Puts the queues whose time has come on the list of those to look at.
    pub(crate) fn wake_due(&mut self, now_ms: u64) {
        while let Some(&(at, id)) = self.timers.first().filter(|(at, _)| *at <= now_ms) {
            self.timers.remove(&(at, id));
            let Some(lq) = self.queues.get_mut(&id) else { continue };
            if let Some(life) = &mut lq.life {
                // It is set no more: the same time again, which a leader's clock that never goes
                // back hardly gives, is a new one.
                life.timer_ms = life.timer_ms.filter(|set| *set != at);
            }
            lq.touch(id, &mut self.dirty);
        }
    }
}

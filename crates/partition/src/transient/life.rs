//! The life of a message in a transient queue with rules: time limits, length limits, dead letters, scheduled messages.
//!
//! The same rules as `crate::life`, without a log: what is given up is gone at once, and its dead letter leaves with it.
//! Invariant: nothing here is asked of a plain queue. Times are on the clock that [`super::TransientQueues::step`] is
//! given.

use super::{Queue, TransientQueues, mark_dirty};
use crate::command::{DeadLetter, Effect, Message, Publish};
use crate::entry::Reason;
use crate::message::{self, MessageView, Stamp};
use broker::QueueId;
use broker::queue::dispatch::Head;
use broker::queue::{DedupKey, Overflow, Rules};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// What a queue has that is not plain.
#[derive(Default)]
pub(super) struct Life {
    /// Messages below may have a time in them.
    timed_below: u64,
    /// Messages from here on were not seen by an earlier turn: even with no time at all they may go out now.
    fresh_from: u64,
    /// Bodies of ready messages, those of the open batch included; kept under a limit of bytes.
    bytes: u64,
    /// The same, of what consumers hold.
    held_bytes: BTreeMap<u64, u32>,
    used_ms: u64,
    /// It had consumers when it was looked at last: the day they are gone, its time begins.
    was_in_use: bool,
    timer_ms: Option<u64>,
    /// Messages whose time came while there was no room for them, in their order.
    late: VecDeque<Message>,
}

impl Life {
    /// What its messages that are late count as in memory.
    pub(super) fn late_bytes(&self) -> u64 {
        self.late.iter().map(scheduled_bytes).sum()
    }

    /// The timer that is set.
    pub(super) fn timer_ms(&self) -> Option<u64> {
        self.timer_ms
    }
}

impl Queue {
    /// Other rules hold from now on.
    pub(super) fn configure(&mut self, rules: &std::sync::Arc<Rules>, now_ms: u64) {
        self.rules = (!rules.is_plain()).then(|| rules.clone());
        if self.rules.is_none() {
            return;
        }
        let life = self.life.get_or_insert_default();
        life.used_ms = now_ms;
        if rules.length_bytes_max.is_some() {
            life.bytes = self.incoming_bytes;
            let mut next = self.state.runs().next_live(0);
            while let Some((seq, run)) = next {
                let bytes = body_bytes(&run.place.message((seq - run.first) as usize));
                match !self.dispatch.is_held(seq) {
                    true => life.bytes += u64::from(bytes),
                    false => _ = life.held_bytes.insert(seq, bytes),
                }
                next = self.state.runs().next_live(seq + 1);
            }
        }
    }

    /// Whether one more message with a body of so many bytes is too much for a queue that refuses then.
    pub(super) fn is_full(&self, rules: &Rules, body_bytes: usize) -> bool {
        if !rules.overflow.is_reject() {
            return false;
        }
        let pending = self.incoming.len() as u64;
        let count = self.dispatch.ready() + pending;
        let too_long =
            rules.length_max.is_some_and(|max| count >= max && count - pending.min(self.dispatch.free_credit()) >= max);
        // What consumers will take the moment it is looked at does not count. A body that is too large for an empty queue is
        // refused all the same, as in RabbitMQ, whoever waits for it.
        let is_ready = self.dispatch.free_credit() < count;
        let bytes = if is_ready { self.life.as_ref().map_or(0, |l| l.bytes) } else { 0 };
        too_long || rules.length_bytes_max.is_some_and(|max| bytes + body_bytes as u64 > max)
    }

    /// Whether a message that is due waits for room: its publisher was told that it is safe. A repeat does not wait, and what is
    /// dead-lettered where it is refused does not either.
    fn has_no_room_for(&self, message: &Message, now_ms: u64) -> bool {
        let Some(rules) = self.rules.as_ref().filter(|rules| !buries_refused(rules)) else { return false };
        let key = rules.dedup.and_then(|_| broker::properties::dedup_key(&message.properties));
        self.is_full(rules, message.body.len()) && !key.is_some_and(|key| self.knows_key(key, now_ms))
    }

    /// Whether a message with this key is here, or was so lately that another one is a repeat.
    pub(super) fn knows_key(&self, key: DedupKey, now_ms: u64) -> bool {
        let is_here = |seq: u64| seq >= self.state.next_seq() || self.state.runs().is_live(seq);
        self.state.seen(key).is_some_and(|seen| seen.until_ms > now_ms || is_here(seen.seq))
    }

    /// A message comes in.
    pub(super) fn note_published(&mut self, is_timed: bool, body_bytes: usize) {
        let past = self.state.next_seq() + self.incoming.len() as u64;
        if is_timed {
            self.life.get_or_insert_default().timed_below = past;
        }
        if let Some(life) = &mut self.life {
            life.bytes += body_bytes as u64;
        }
    }

    /// A ready message leaves.
    pub(super) fn note_taken(&mut self, seq: u64, message: &Bytes, is_held: bool) {
        if self.rules.as_ref().is_none_or(|r| r.length_bytes_max.is_none()) {
            return;
        }
        if let Some(life) = &mut self.life {
            let bytes = body_bytes(message);
            life.bytes = life.bytes.saturating_sub(bytes.into());
            if is_held {
                life.held_bytes.insert(seq, bytes);
            }
        }
    }

    /// Messages leave the hands of consumers; with `is_back` they are ready again.
    pub(super) fn note_released(&mut self, first: u64, count: u64, is_back: bool) {
        let Some(life) = self.life.as_deref_mut().filter(|l| !l.held_bytes.is_empty()) else { return };
        for seq in first..first + count {
            let bytes = life.held_bytes.remove(&seq).unwrap_or(0);
            life.bytes += if is_back { u64::from(bytes) } else { 0 };
        }
    }

    /// Everything ready is gone.
    pub(super) fn note_purged(&mut self) {
        if let Some(life) = &mut self.life {
            life.bytes = self.incoming_bytes;
        }
    }

    /// Somebody used the queue.
    pub(super) fn note_used(&mut self, now_ms: u64) {
        if let Some(life) = &mut self.life {
            life.used_ms = now_ms;
        }
    }

    fn message(&self, seq: u64) -> Bytes {
        let run = self.state.runs().covering(seq).expect("what is live is in a run");
        run.place.message((seq - run.first) as usize)
    }

    fn expires_at(&self, seq: u64) -> Option<u64> {
        self.life.as_ref().filter(|l| seq < l.timed_below)?;
        let message = self.message(seq);
        let view = MessageView::parse(&message).expect("queues hold whole messages");
        let Stamp::Since(since) = view.stamp() else { return None };
        let own = broker::properties::expiration_ms(view.properties());
        let ttl = own.into_iter().chain(self.rules.as_ref().and_then(|r| r.message_ttl_ms)).min()?;
        Some(since.saturating_add(ttl))
    }

    /// Whether `head` is too old to go out. What no turn saw before goes out however old it is: it came this moment.
    pub(super) fn is_over(&self, head: Head, now_ms: u64) -> bool {
        let is_fresh = !head.returned && self.life.as_ref().is_some_and(|l| head.seq >= l.fresh_from);
        !is_fresh && self.expires_at(head.seq).is_some_and(|at| at <= now_ms)
    }

    /// The head goes, for this reason.
    pub(super) fn drop_head(&mut self, id: QueueId, head: Head, reason: Reason, effects: &mut Vec<Effect>) {
        self.dispatch.drop_head(head, self.state.levels());
        let message = self.message(head.seq);
        self.note_taken(head.seq, &message, false);
        self.give_up(id, head.seq, reason, effects);
    }

    /// Ends a message that the dispatcher does not have any more, and dead-letters it if the queue does that.
    pub(super) fn give_up(&mut self, id: QueueId, seq: u64, reason: Reason, effects: &mut Vec<Effect>) {
        if self.rules.as_ref().is_some_and(|r| r.dead_letter.is_some()) && self.state.runs().is_live(seq) {
            let message = self.message(seq);
            let letter = DeadLetter { queue: id, seq, reason, message, wants_answer: false };
            effects.push(Effect::DeadLetter(Box::new(letter)));
        }
        self.settle(seq, 1);
    }

    /// After messages went out: what is too much or too old goes. Returns when the queue wants to be looked at again.
    fn live_on(&mut self, id: QueueId, now_ms: u64, effects: &mut Vec<Effect>) -> Option<u64> {
        let rules = self.rules.clone().unwrap_or_default();
        while !rules.overflow.is_reject() {
            let bytes = self.life.as_ref().map_or(0, |l| l.bytes);
            let too_long = rules.length_max.is_some_and(|max| self.dispatch.ready() > max);
            if !too_long && rules.length_bytes_max.is_none_or(|max| bytes <= max) {
                break;
            }
            let Some(head) = self.head() else { break };
            self.drop_head(id, head, Reason::MaxLength, effects);
        }
        let end = self.dispatch.end();
        if let Some(life) = &mut self.life {
            life.fresh_from = end;
        }
        let expires_at = loop {
            let Some(head) = self.head() else { break None };
            match self.expires_at(head.seq) {
                Some(at) if at <= now_ms => self.drop_head(id, head, Reason::Expired, effects),
                later => break later,
            }
        };
        let lapses_at = rules.expires_ms.and_then(|ms| self.lapse(id, ms, now_ms, effects));
        expires_at.into_iter().chain(lapses_at).min()
    }

    fn lapse(&mut self, id: QueueId, expires_ms: u64, now_ms: u64, effects: &mut Vec<Effect>) -> Option<u64> {
        let in_use = self.dispatch.consumers() > 0;
        let life = self.life.as_mut()?;
        if std::mem::replace(&mut life.was_in_use, in_use) || in_use {
            life.used_ms = now_ms;
        }
        if in_use {
            return None;
        }
        if life.used_ms + expires_ms <= now_ms {
            life.used_ms = now_ms;
            effects.push(Effect::Lapsed { queue: id });
        }
        Some(life.used_ms + expires_ms)
    }
}

fn body_bytes(message: &Bytes) -> u32 {
    MessageView::parse(message).expect("queues hold whole messages").body_bytes()
}

/// The dead letter of a message that its queue never took in.
pub(super) fn refused_letter(queue: QueueId, message: &Message) -> Effect {
    let mut stored = Vec::with_capacity(message::stored_bytes(message));
    message::store(message, 0, Stamp::None, &mut stored);
    let letter = DeadLetter { queue, seq: 0, reason: Reason::MaxLength, message: stored.into(), wants_answer: false };
    Effect::DeadLetter(Box::new(letter))
}

/// Whether a refused message is dead-lettered.
pub(super) fn buries_refused(rules: &Rules) -> bool {
    rules.overflow == Overflow::RejectPublishDlx && rules.dead_letter.is_some()
}

/// A message that waits for its time, and its queue.
pub(super) type Scheduled = (QueueId, Message);

impl TransientQueues {
    /// When it wants a step though nothing came, on the clock of [`TransientQueues::step`].
    pub fn due_ms(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.scheduled.keys().next().map(|(at, _)| *at)).min()
    }

    /// Puts a message aside until it is due, for each of its queues.
    pub(super) fn schedule(&mut self, publish: &Publish) {
        let due_ms = self.now_ms.saturating_add(publish.delay_ms);
        for target in &publish.targets {
            let Some(queue) = self.queues.get_mut(&target.queue) else { continue };
            queue.delayed += 1;
            self.last_scheduled += 1;
            // The socket's buffer is not kept for as long as the message waits.
            let own = |slice: &Bytes| Bytes::copy_from_slice(slice);
            let message = Message {
                exchange: own(&publish.message.exchange),
                routing_key: own(&publish.message.routing_key),
                properties: broker::properties::delay_over(&publish.message.properties).into(),
                body: own(&publish.message.body),
            };
            self.meter.fetch_add(scheduled_bytes(&message), std::sync::atomic::Ordering::Relaxed);
            self.scheduled.insert((due_ms, self.last_scheduled), (target.queue, message));
        }
    }

    /// Publishes what is due, and marks the queues whose time has come.
    pub(super) fn wake_due(&mut self, effects: &mut Vec<Effect>) {
        while let Some((&(at, _), _)) = self.scheduled.first_key_value()
            && at <= self.now_ms
        {
            let (_, (id, message)) = self.scheduled.pop_first().expect("there is a first");
            match self.queues.get_mut(&id) {
                Some(queue) if self.late.contains(&id) || queue.has_no_room_for(&message, self.now_ms) => {
                    queue.life.get_or_insert_default().late.push_back(message);
                    self.late.insert(id);
                }
                _ => self.publish_due(id, message, effects),
            }
        }
        while let Some(&(at, id)) = self.timers.first()
            && at <= self.now_ms
        {
            self.timers.remove(&(at, id));
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.life.as_mut().expect("who has a timer has a life").timer_ms = None;
                mark_dirty(&mut self.dirty, queue, id);
            }
        }
    }

    fn publish_due(&mut self, queue: QueueId, message: Message, effects: &mut Vec<Effect>) {
        self.meter.fetch_sub(scheduled_bytes(&message), std::sync::atomic::Ordering::Relaxed);
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.delayed -= 1;
        }
        let durability = crate::command::Durability::Level(crate::command::Level::Written);
        let target = crate::command::Target { queue, durability, selective: None };
        let publish = Publish {
            channel: broker::ChannelKey::NOBODY,
            publish_seq: 0,
            targets: std::iter::once(target).collect(),
            delay_ms: 0,
            message,
        };
        self.publish(&publish, effects);
    }

    /// Publishes what is late and finds room now. False if there is none for any.
    pub(super) fn publish_late(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut did = false;
        for id in std::mem::take(&mut self.late) {
            while let Some(queue) = self.queues.get_mut(&id) {
                let Some(message) = queue.life.as_mut().and_then(|life| life.late.pop_front()) else { break };
                if queue.has_no_room_for(&message, self.now_ms) {
                    queue.life.get_or_insert_default().late.push_front(message);
                    self.late.insert(id);
                    break;
                }
                self.publish_due(id, message, effects);
                did = true;
            }
        }
        did
    }

    /// After a queue's messages went out: its rules are kept.
    pub(super) fn live_on(&mut self, id: QueueId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.queues.get_mut(&id).filter(|q| q.life.is_some()) else { return };
        let next = queue.live_on(id, self.now_ms, effects);
        let life = queue.life.as_mut().expect("asked above");
        if life.timer_ms != next {
            if let Some(before) = std::mem::replace(&mut life.timer_ms, next) {
                self.timers.remove(&(before, id));
            }
            self.timers.extend(next.map(|at| (at, id)));
        }
    }
}

/// What a scheduled message counts as in memory.
fn scheduled_bytes(message: &Message) -> u64 {
    message::stored_bytes(message) as u64 + 256
}

//! What a queue with rules keeps in mind: time limits, length limits, when somebody used it.
//!
//! Invariant: nothing here is asked of a plain queue, which has no [`Life`]. `bytes` is the sum
//! over the bodies that are ready or on their way to be, and is kept only under a limit of bytes.

use crate::command::Effect;
use crate::message::{MessageView, Stamp};
use crate::queue::{Queue, Sink};
use broker::QueueId;
use broker::queue::Rules;
use broker::queue::dispatch::Head;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// When queues want to be looked at, earliest first.
pub(crate) type Timers = BTreeSet<(u64, QueueId)>;

/// See the module. `L` is what the queue's sink keeps besides.
#[derive(Default)]
pub(crate) struct Life<L> {
    /// Messages below may have a time in them.
    pub(crate) timed_below: u64,
    /// The head as it was looked at last: its number and when it expires.
    pub(crate) looked: Option<(u64, Option<u64>)>,
    /// Messages from here on were not seen by an earlier turn: even with no time at all they may go
    /// out now.
    pub(crate) fresh_from: u64,
    pub(crate) bytes: u64,
    /// The limit of its length was passed when a turn ended that had nobody to give anything to:
    /// what was too much then goes before anything goes out.
    pub(crate) trims_first: bool,
    /// Bytes of the bodies that consumers hold.
    pub(crate) held_bytes: BTreeMap<u64, u32>,
    /// When somebody used the queue last; 0: the first turn will tell.
    pub(crate) used_ms: u64,
    /// It had consumers when it was looked at last: the day they are gone, its time begins.
    pub(crate) was_in_use: bool,
    /// The timer that is set.
    pub(crate) timer_ms: Option<u64>,
    pub(crate) sink: L,
}

impl<L> Life<L> {
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

    /// Other rules hold, or the same again. If they are others, the time of an unused queue begins
    /// anew, as in RabbitMQ.
    pub(crate) fn reconfigured(&mut self, before: Option<&Rules>, after: Option<&Rules>) {
        self.looked = None;
        if before != after {
            self.used_ms = 0;
        }
    }

    /// Counts a message that was there before anybody counted.
    pub(crate) fn count(&mut self, seq: u64, bytes: u32, is_held: bool) {
        match is_held {
            false => self.bytes += u64::from(bytes),
            true => _ = self.held_bytes.insert(seq, bytes),
        }
    }

    /// Sets the timer, or takes it back.
    pub(crate) fn set_timer(&mut self, timers: &mut Timers, id: QueueId, at: Option<u64>) {
        if self.timer_ms == at {
            return;
        }
        if let Some(before) = self.timer_ms {
            timers.remove(&(before, id));
        }
        timers.extend(at.map(|at| (at, id)));
        self.timer_ms = at;
    }
}

impl<S: Sink> Queue<S> {
    /// A message with a body of so many bytes was taken in.
    pub(crate) fn note_published(&mut self, is_timed: bool, body_bytes: usize) {
        if is_timed {
            let next_seq = self.next_seq;
            self.life.get_or_insert_default().timed_below = next_seq;
        }
        if let Some(life) = &mut self.life {
            life.bytes += body_bytes as u64;
        }
    }

    /// Whether its length is limited in bytes.
    pub(crate) fn limits_bytes(&self) -> bool {
        self.rules.as_ref().is_some_and(|r| r.length_bytes_max.is_some())
    }

    /// A message leaves those that are ready.
    pub(crate) fn note_taken(&mut self, seq: u64, message: &Bytes, is_held: bool) {
        if !self.limits_bytes() {
            return;
        }
        if let Some(life) = &mut self.life {
            let bytes = body_bytes(message);
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

    /// Somebody used the queue.
    pub(crate) fn note_used(&mut self, now_ms: u64) {
        if let Some(life) = &mut self.life {
            life.used_ms = now_ms;
        }
    }

    /// Somebody asked how it stands, as a declare does.
    pub(crate) fn note_declared(&mut self, now_ms: u64) {
        if self.rules.as_ref().is_some_and(|rules| rules.declare_renews) {
            self.note_used(now_ms);
        }
    }

    /// Whether the message may be over its time, so that its bytes must be looked at before it goes
    /// out.
    pub(crate) fn is_timed(&self, seq: u64) -> bool {
        self.life.as_ref().is_some_and(|l| seq < l.timed_below)
    }

    /// When a message expires, as of now; `None` is never.
    ///
    /// One that came in the future, by the clock of a leader that was ahead, counts from now on: it
    /// is at least so old, and nothing behind it waits until the clocks have caught up.
    fn expires_at(&self, message: &Bytes, now_ms: u64) -> Option<u64> {
        let view = view(message);
        let Stamp::Since(since) = view.stamp() else { return None };
        let own = broker::properties::expiration_ms(view.properties());
        let ttl = own.into_iter().chain(self.rules.as_ref().and_then(|r| r.message_ttl_ms)).min()?;
        Some(since.min(now_ms).saturating_add(ttl))
    }

    /// Whether `head` is too old to go out. What no turn saw before goes out however old it is: it
    /// came this moment.
    pub(crate) fn is_over(&mut self, head: Head, message: &Bytes, now_ms: u64) -> bool {
        let mut expires_at = self.expires_at(message, now_ms);
        let Some(life) = &mut self.life else { return false };
        if let Some((_, looked)) = life.looked.filter(|(seq, _)| *seq == head.seq) {
            // The first look set it; later ones do not put it off.
            expires_at = expires_at.map(|at| looked.map_or(at, |looked| looked.min(at)));
        }
        life.looked = Some((head.seq, expires_at));
        let is_fresh = !head.returned && head.seq >= life.fresh_from;
        expires_at.is_some_and(|at| at <= now_ms) && !is_fresh
    }

    /// Whether what is ready is beyond the queue's length, and the oldest of it gives way.
    pub(crate) fn is_too_long(&self) -> bool {
        let Some(rules) = self.rules.as_deref().filter(|rules| !rules.overflow.is_reject()) else { return false };
        let bytes = self.life.as_ref().map_or(0, |l| l.bytes);
        rules.length_max.is_some_and(|max| self.dispatch.ready() > max)
            || rules.length_bytes_max.is_some_and(|max| bytes > max)
    }

    /// Whether what it gives up becomes dead letters.
    pub(crate) fn dead_letters(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.dead_letter.is_some())
    }

    /// The time of an unused queue begins when it is looked at next.
    pub(crate) fn begin_anew(&mut self) -> Option<u64> {
        self.life.as_mut()?.used_ms = 0;
        None
    }

    /// Tells that nobody uses the queue, when its time has come. Returns when that will be.
    pub(crate) fn lapse(&mut self, id: QueueId, now_ms: u64, effects: &mut Vec<Effect>) -> Option<u64> {
        let expires_ms = self.rules.as_ref()?.expires_ms?;
        let in_use = self.dispatch.consumers() > 0;
        let life = self.life.as_mut()?;
        if std::mem::replace(&mut life.was_in_use, in_use) || in_use || life.used_ms == 0 {
            life.used_ms = now_ms;
        }
        if in_use {
            return None;
        }
        // The clock may have been set back meanwhile.
        life.used_ms = life.used_ms.min(now_ms);
        if life.used_ms + expires_ms <= now_ms {
            // If the queue does not go after all, it is used.
            life.used_ms = now_ms;
            effects.push(Effect::Lapsed { queue: id });
        }
        Some(life.used_ms + expires_ms)
    }
}

fn view(message: &Bytes) -> MessageView<'_> {
    MessageView::parse(message).expect("queues hold whole messages")
}

/// Bytes of a message's body.
pub(crate) fn body_bytes(message: &Bytes) -> u32 {
    view(message).body_bytes()
}

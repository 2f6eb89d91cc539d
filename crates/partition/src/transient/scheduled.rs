//! Messages in memory that wait for their time.
//!
//! Invariant: a message that is due and finds its queue full waits for room, as its publisher was
//! told that it is safe; one that is dead-lettered where it is refused does not wait. What waits for a queue goes with
//! it. Times are on the clock that [`TransientQueues::step`] is given.

use super::{MemoryQueue, TransientQueues};
use crate::command::{Durability, Effect, Level, Message, Publish, Target};
use crate::message;
use crate::queue::{Admission, dead_letters_refused};
use broker::queue::KeyMeter;
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

/// When a message is due, and its number among all that were put aside.
type Turn = (u64, u64);

/// All messages that wait for their time.
#[derive(Default)]
pub(super) struct Schedule {
    /// Those that are not due yet, by queue; no queue without one.
    early: HashMap<QueueId, BTreeMap<Turn, Message>, FixedState>,
    /// When the first one of each of these queues is due.
    next: BTreeSet<(u64, QueueId)>,
    last: u64,
    /// Those whose time came while there was no room for them, in their order.
    late: BTreeMap<QueueId, VecDeque<Message>>,
}

impl Schedule {
    /// When the next one is due.
    fn due_ms(&self) -> Option<u64> {
        self.next.first().map(|(at, _)| *at)
    }

    fn insert(&mut self, queue: QueueId, due_ms: u64, message: Message) {
        self.last += 1;
        let early = self.early.entry(queue).or_default();
        let first = early.keys().next().map(|(at, _)| *at);
        if first.is_none_or(|at| due_ms < at) {
            if let Some(at) = first {
                self.next.remove(&(at, queue));
            }
            self.next.insert((due_ms, queue));
        }
        early.insert((due_ms, self.last), message);
    }

    /// The first one that is due.
    fn pop(&mut self, now_ms: u64) -> Option<(QueueId, Message)> {
        let &(at, queue) = self.next.first().filter(|(at, _)| *at <= now_ms)?;
        let early = self.early.get_mut(&queue).expect("a queue with a time has messages");
        let (_, message) = early.pop_first().expect("a queue with a time has messages");
        self.next.remove(&(at, queue));
        match early.keys().next() {
            Some((at, _)) => _ = self.next.insert((*at, queue)),
            None => _ = self.early.remove(&queue),
        }
        Some((queue, message))
    }

    /// Whether some wait for room.
    pub(super) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// A queue is gone, and with it what waits for it: so many bytes.
    fn forget(&mut self, queue: QueueId) -> u64 {
        let early = self.early.remove(&queue);
        if let Some((at, _)) = early.iter().flat_map(BTreeMap::keys).next() {
            self.next.remove(&(*at, queue));
        }
        let late = self.late.remove(&queue);
        early.iter().flat_map(BTreeMap::values).chain(late.iter().flatten()).map(scheduled_bytes).sum()
    }
}

impl MemoryQueue {
    /// Whether a message that is due waits for room. A repeat does not.
    fn has_no_room_for(&self, message: &Message, now_ms: u64, meter: &KeyMeter) -> bool {
        let Some(rules) = self.rules.as_ref().filter(|rules| !dead_letters_refused(rules)) else { return false };
        let key = rules.dedup.and_then(|_| broker::properties::dedup_key(&message.properties));
        match key.map_or(Admission::Taken, |key| self.admit_key(key, now_ms, meter)) {
            Admission::Taken => self.is_full(rules, message.body.len()),
            by_key => by_key == Admission::Refused,
        }
    }
}

impl TransientQueues {
    /// When it wants a step though nothing came, on the clock of [`TransientQueues::step`].
    pub fn due_ms(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.schedule.due_ms()).min()
    }

    /// Puts a message for a queue aside until it is due.
    pub(super) fn schedule(&mut self, id: QueueId, publish: &Publish) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.sink.delayed += 1;
        // The socket's buffer is not kept for as long as the message waits.
        let own = |slice: &Bytes| Bytes::copy_from_slice(slice);
        let message = Message {
            exchange: own(&publish.message.exchange),
            routing_key: own(&publish.message.routing_key),
            properties: broker::properties::delay_over(&publish.message.properties).into(),
            body: own(&publish.message.body),
        };
        self.meter.fetch_add(scheduled_bytes(&message), Ordering::Relaxed);
        let due_ms = self.now_ms.saturating_add(publish.delay_ms);
        self.schedule.insert(id, due_ms, message);
    }

    /// Publishes what is due, and marks the queues whose time has come.
    pub(super) fn wake_due(&mut self, effects: &mut Vec<Effect>) {
        while let Some((id, message)) = self.schedule.pop(self.now_ms) {
            match self.queues.get_mut(&id) {
                Some(queue)
                    if self.schedule.late.contains_key(&id)
                        || queue.has_no_room_for(&message, self.now_ms, &self.key_meter) =>
                {
                    self.schedule.late.entry(id).or_default().push_back(message);
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
                queue.touch(id, &mut self.dirty);
            }
        }
    }

    fn publish_due(&mut self, queue: QueueId, message: Message, effects: &mut Vec<Effect>) {
        self.meter.fetch_sub(scheduled_bytes(&message), Ordering::Relaxed);
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.sink.delayed -= 1;
        }
        let durability = Durability::Level(Level::Written);
        let target = Target { queue, durability, selective: None };
        let publish = Publish {
            channel: ChannelKey::NOBODY,
            publish_seq: 0,
            term: 0,
            targets: std::iter::once(target).collect(),
            delay_ms: 0,
            message,
            more: None,
        };
        self.publish(&publish, effects);
    }

    /// Publishes what is late and finds room now. False if there is none for any.
    pub(super) fn publish_late(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut did = false;
        for (id, mut late) in std::mem::take(&mut self.schedule.late) {
            while let Some(message) = late.pop_front() {
                let Some(queue) = self.queues.get(&id) else { break };
                if queue.has_no_room_for(&message, self.now_ms, &self.key_meter) {
                    late.push_front(message);
                    self.schedule.late.insert(id, late);
                    break;
                }
                self.publish_due(id, message, effects);
                did = true;
            }
        }
        did
    }

    /// A queue is gone, and with it what waits for its time or for room there.
    pub(super) fn forget_scheduled(&mut self, id: QueueId) {
        let bytes = self.schedule.forget(id);
        self.meter.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a scheduled message counts as in memory.
fn scheduled_bytes(message: &Message) -> u64 {
    message::stored_bytes(message) as u64 + 256
}

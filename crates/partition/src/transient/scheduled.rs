//! Messages in memory that wait for their time.
//!
//! Invariant: a message that is due and finds its queue full waits for room, as its publisher was
//! told that it is safe; one that is dead-lettered where it is refused does not wait. Times are on
//! the clock that [`TransientQueues::step`] is given.

use super::{MemoryQueue, TransientQueues};
use crate::command::{Durability, Effect, Level, Message, Publish, Target};
use crate::message;
use crate::queue::{Admission, dead_letters_refused};
use broker::queue::KeyMeter;
use broker::{ChannelKey, QueueId};
use bytes::Bytes;
use std::sync::atomic::Ordering;

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

/// A message that waits for its time, and its queue.
pub(super) type Scheduled = (QueueId, Message);

impl TransientQueues {
    /// When it wants a step though nothing came, on the clock of [`TransientQueues::step`].
    pub fn due_ms(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.scheduled.keys().next().map(|(at, _)| *at)).min()
    }

    /// Puts a message for a queue aside until it is due.
    pub(super) fn schedule(&mut self, id: QueueId, publish: &Publish) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.sink.delayed += 1;
        self.last_scheduled += 1;
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
        self.scheduled.insert((due_ms, self.last_scheduled), (id, message));
    }

    /// Publishes what is due, and marks the queues whose time has come.
    pub(super) fn wake_due(&mut self, effects: &mut Vec<Effect>) {
        while let Some((&(at, _), _)) = self.scheduled.first_key_value()
            && at <= self.now_ms
        {
            let (_, (id, message)) = self.scheduled.pop_first().expect("there is a first");
            match self.queues.get_mut(&id) {
                Some(queue)
                    if self.late.contains_key(&id) || queue.has_no_room_for(&message, self.now_ms, &self.key_meter) =>
                {
                    self.late.entry(id).or_default().push_back(message);
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
        for (id, mut late) in std::mem::take(&mut self.late) {
            while let Some(message) = late.pop_front() {
                let Some(queue) = self.queues.get(&id) else { break };
                if queue.has_no_room_for(&message, self.now_ms, &self.key_meter) {
                    late.push_front(message);
                    self.late.insert(id, late);
                    break;
                }
                self.publish_due(id, message, effects);
                did = true;
            }
        }
        did
    }

    /// A queue is gone, and with it what waits for room there.
    pub(super) fn forget_late(&mut self, id: QueueId) {
        let bytes: u64 = self.late.remove(&id).iter().flatten().map(scheduled_bytes).sum();
        self.meter.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a scheduled message counts as in memory.
fn scheduled_bytes(message: &Message) -> u64 {
    message::stored_bytes(message) as u64 + 256
}

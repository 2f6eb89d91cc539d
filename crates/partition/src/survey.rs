//! What is in the queues of a partition, told to whoever looks after the broker.
//!
//! Invariant: looking changes nothing. It renews no expiry, makes no leader's state for a queue
//! that rests, and waits for no disk; so what it tells may be behind what a `Stat` answers, by the
//! entry that is being built.

use crate::machine::{schedule_of, scheduled_for};
use crate::partition::QueuePartition;
use broker::QueueId;

/// One queue, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFigures {
    /// The queue.
    pub queue: QueueId,
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that somebody holds and has not settled.
    pub unacked: u64,
    /// Messages that wait for their time, to be tried again, or for a place as dead letters.
    pub delayed: u64,
    /// Consumers.
    pub consumers: u64,
    /// What is confirmed, or about to be, and not synced, in the queue's own unit; at most
    /// `value_cap`.
    pub value_at_risk: u64,
    /// The sum that the value at risk never passes; `None` if the queue is not selective by value,
    /// or nothing was published to it since it was last idle.
    pub value_cap: Option<u64>,
    /// Messages that were confirmed and dropped, because the queue had taken in one of the same
    /// key; since this node leads the queue.
    pub repeats_dropped: u64,
}

impl QueueFigures {
    /// A queue that nobody uses.
    pub fn empty(queue: QueueId) -> QueueFigures {
        QueueFigures {
            queue,
            ready: 0,
            unacked: 0,
            delayed: 0,
            consumers: 0,
            value_at_risk: 0,
            value_cap: None,
            repeats_dropped: 0,
        }
    }
}

impl QueuePartition {
    /// Appends every queue that something is known of here; one that is missing is empty and
    /// unused.
    pub fn survey(&self, figures: &mut Vec<QueueFigures>) {
        let led = self.leader.as_ref().map(|leader| &leader.queues);
        for (id, queue) in led.into_iter().flatten().filter(|(id, _)| schedule_of(**id).is_none()) {
            figures.push(QueueFigures {
                queue: *id,
                ready: queue.dispatch.ready(),
                unacked: queue.dispatch.held(),
                delayed: queue.life.as_ref().map_or(0, |life| life.sink.retrying() + life.sink.kept())
                    + self.scheduled(*id),
                consumers: queue.dispatch.consumers() as u64,
                value_at_risk: queue.sink.at_risk,
                value_cap: queue.sink.selective.map(|selective| selective.cap).filter(|cap| *cap < u64::MAX),
                repeats_dropped: self.repeats_dropped(*id),
            });
        }
        for (id, state) in self.queues().states() {
            let is_known = led.is_some_and(|led| led.contains_key(&id));
            if let Some(queue) = schedule_of(id) {
                // Of a queue that nothing else is known of.
                let is_alone = self.queues().queue(queue).is_none() && !led.is_some_and(|led| led.contains_key(&queue));
                if is_alone && state.in_turn() > 0 {
                    figures.push(QueueFigures { delayed: state.in_turn(), ..QueueFigures::empty(queue) });
                }
                continue;
            }
            let (repeats_dropped, delayed) = (self.repeats_dropped(id), self.scheduled(id));
            if !is_known && state.in_turn() + repeats_dropped + delayed > 0 {
                let ready = state.in_turn();
                figures.push(QueueFigures { ready, delayed, repeats_dropped, ..QueueFigures::empty(id) });
            }
        }
    }

    /// Messages of a queue that wait to be due, by the log.
    fn scheduled(&self, queue: QueueId) -> u64 {
        self.queues().queue(scheduled_for(queue)).map_or(0, |state| state.runs().live())
    }

    fn repeats_dropped(&self, queue: QueueId) -> u64 {
        self.leader.as_ref().and_then(|leader| leader.repeats.get(&queue)).copied().unwrap_or(0)
    }
}

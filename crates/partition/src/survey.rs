//! What is in the queues of a partition, told to whoever looks after the broker.
//!
//! Invariant: looking changes nothing. It renews no expiry, makes no leader's state for a queue
//! that rests, and waits for no disk; so what it tells may be behind what a `Stat` answers, by the
//! entry that is being built.

use crate::machine::{schedule_of, scheduled_for};
use crate::partition::QueuePartition;
use broker::{NodeNumber, PartitionId, QueueId};
use consensus::NodeId;

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

/// One group of queues, as its member on this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFigures {
    /// The group.
    pub partition: PartitionId,
    /// Whether this node leads it.
    pub leads: bool,
    /// Who does, as far as is known.
    pub leader: Option<NodeNumber>,
    /// The term.
    pub term: u64,
    /// The end of the log on this node, and up to where it is synced here, committed and applied.
    pub last: u64,
    /// See `last`.
    pub synced: u64,
    /// See `last`.
    pub committed: u64,
    /// See `last`.
    pub applied: u64,
    /// All copies, in the order of their nodes; of those on other nodes only the leader knows how
    /// far they are.
    pub copies: Vec<CopyFigures>,
    /// This node leads it without a copy to spare: *written* waits for the disks of a majority.
    pub is_unspared: bool,
    /// Bytes of entries that this node appended since its start.
    pub appended_bytes: u64,
    /// Bytes of its extents: what was copied out of the log.
    pub extent_bytes: u64,
    /// Messages in its extents, and those of them that are live.
    pub extent_messages: (u64, u64),
}

/// One copy of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFigures {
    /// Its node.
    pub node: NodeNumber,
    /// Up to where its log is synced and equal to the leader's; `None` if this node does not know.
    pub synced: Option<u64>,
    /// Whether it was heard of within an election's time; itself always.
    pub is_heard: bool,
    /// It has no vote.
    pub is_learner: bool,
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
    /// The group as a whole. Looking changes nothing.
    pub fn group_figures(&self) -> PartitionFigures {
        let replica = self.replica();
        let group = replica.group();
        let (status, progress, members) = (group.status(), group.progress(), group.membership());
        let own = replica.node();
        let number = |node: NodeId| NodeNumber(node.number());
        let copy = |node: NodeId, is_learner: bool| {
            let known = progress.iter().find(|progress| progress.node == node);
            let (synced, is_heard) = match node == own {
                true => (Some(status.persisted.0), true),
                false => (known.map(|known| known.matched.0), known.is_some_and(|known| known.is_recently_active)),
            };
            CopyFigures { node: number(node), synced, is_heard, is_learner }
        };
        let voters = members.voters.iter().map(|node| copy(*node, false));
        let mut copies: Vec<CopyFigures> =
            voters.chain(members.learners.iter().map(|node| copy(*node, true))).collect();
        copies.sort_unstable_by_key(|copy| copy.node);
        let extents = self.queues().extents().values();
        let sum = |pick: fn(&crate::machine::ExtentUse) -> u64| extents.clone().map(pick).sum::<u64>();
        PartitionFigures {
            partition: self.id(),
            leads: replica.is_leader(),
            leader: status.leader.map(number),
            term: status.term.0,
            last: status.last.index.0,
            synced: status.persisted.0,
            committed: status.commit.0,
            applied: status.applied.0,
            copies,
            is_unspared: replica.is_leader() && replica.is_unspared(),
            appended_bytes: replica.appended_in_all(),
            extent_bytes: sum(|extent| extent.bytes),
            extent_messages: (sum(|extent| extent.messages), sum(|extent| extent.live)),
        }
    }

    /// Appends every queue that something is known of here, if this member leads: others know less;
    /// one that is missing is empty and unused.
    pub fn survey(&self, figures: &mut Vec<QueueFigures>) {
        let Some(led) = self.leader.as_ref().map(|leader| &leader.queues) else { return };
        for (id, queue) in led.iter().filter(|(id, _)| schedule_of(**id).is_none()) {
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
            let is_known = led.contains_key(&id);
            if let Some(queue) = schedule_of(id) {
                // Of a queue that nothing else is known of.
                let is_alone = self.queues().queue(queue).is_none() && !led.contains_key(&queue);
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

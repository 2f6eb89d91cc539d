//! What is in the queues of a partition, told to whoever looks after the broker.
//!
//! Invariant: looking changes nothing. It renews no expiry, makes no leader's state for a queue
//! that rests, and waits for no disk; so what it tells may be behind what a `Stat` answers, by the
//! entry that is being built.

use crate::machine::{schedule_of, scheduled_for};
use crate::partition::QueuePartition;
use broker::{ConsumerKey, NodeNumber, PartitionId, QueueId};
use consensus::NodeId;
use std::collections::BTreeSet;

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
    /// Of these, dead letters (*at least once*) that wait for a place, or for the answer of the queues that they go to.
    pub letters: u64,
    /// Consumers.
    pub consumers: u64,
    /// The consumer that alone gets messages, on a queue with a single active consumer. One that was cancelled stays it
    /// as long as it holds something.
    pub active: Option<ConsumerKey>,
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

/// What a queue has on the disk of the node that leads it, in bytes. What was published and written is since that
/// node started; a queue in memory writes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFigures {
    /// The queue.
    pub queue: QueueId,
    /// What its live messages take: they, their batches' headers, their part of an extent's index. One that several
    /// queues have is there once, and counts in each.
    pub live: u64,
    /// Messages that came in: bodies and properties, names of exchanges and routing keys.
    pub published: u64,
    /// Entries of the log: of its messages, by equal parts where queues share them, and of what became of them.
    pub log: u64,
    /// Extents that its messages were copied to, out of the log and out of extents of which little was left.
    pub extents: u64,
    /// Its part of checkpoints.
    pub checkpoints: u64,
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

impl DiskFigures {
    /// A queue that has nothing there.
    pub fn empty(queue: QueueId) -> DiskFigures {
        DiskFigures { queue, live: 0, published: 0, log: 0, extents: 0, checkpoints: 0 }
    }
}

impl QueueFigures {
    /// A queue that nobody uses.
    pub fn empty(queue: QueueId) -> QueueFigures {
        QueueFigures {
            queue,
            ready: 0,
            unacked: 0,
            delayed: 0,
            letters: 0,
            consumers: 0,
            active: None,
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
                letters: queue.life.as_ref().filter(|_| queue.waits_for_letters()).map_or(0, |life| life.sink.kept()),
                consumers: queue.dispatch.consumers() as u64,
                active: queue.dispatch.active(),
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

    /// Appends what each queue has on this disk, or this one alone, if this member leads: others are not asked. A queue
    /// that is missing has nothing. Cost: a look at each run of the queues that are told of, which is what upkeep does
    /// whenever it copies.
    pub fn disk_figures(&self, only: Option<QueueId>, figures: &mut Vec<DiskFigures>) {
        if !self.is_leading() {
            return;
        }
        // One of which nothing is known but scheduled messages is here by their queue.
        let known =
            |queue: &QueueId| [*queue, scheduled_for(*queue)].iter().any(|id| self.queues().queue(*id).is_some());
        let ids: BTreeSet<QueueId> = match only {
            Some(queue) => std::iter::once(queue).filter(known).collect(),
            None => self.queues().states().map(|(id, _)| schedule_of(id).unwrap_or(id)).collect(),
        };
        figures.extend(ids.into_iter().map(|queue| {
            let written = self.traffic.of(queue);
            DiskFigures {
                queue,
                live: self.queues().live_bytes_of(queue),
                published: written.published,
                log: written.log,
                extents: written.extents,
                checkpoints: written.checkpoints,
            }
        }));
    }

    /// Messages of a queue that wait to be due, by the log.
    fn scheduled(&self, queue: QueueId) -> u64 {
        self.queues().queue(scheduled_for(queue)).map_or(0, |state| state.runs().live())
    }

    fn repeats_dropped(&self, queue: QueueId) -> u64 {
        self.leader.as_ref().and_then(|leader| leader.repeats.get(&queue)).copied().unwrap_or(0)
    }
}

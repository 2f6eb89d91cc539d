//! What a shard has in each of its places: a partition of one kind or another.
//!
//! Invariant: a member that is over makes room for what comes next in the same place, so that places
//! stay as they are for as long as the node runs.

use super::{Edge, Now};
use crate::Millis;
use crate::ending_member::EndingMember;
use crate::quarantined_member::QuarantinedMember;
use crate::queue_member::QueueMember;
use crate::share::Share;
use crate::standing::{self, Voter};
use crate::topology_member::{Proposer, TopologyMember};
use crate::vacant_member::VacantMember;
use crate::waits::Waiting;
use broker::QueueId;
use broker::queue::KeyMeter;
use partition::{Command, Effect, Outlets, QueueFigures, QueuePartition, TransientQueues};

/// A partition of the caller's own making, as its shard sees it. It lives on one thread and is
/// never called from another.
pub trait Partition {
    /// The topology says that this queue is here now. Comes before the first command for it,
    /// possibly twice.
    fn declare(&mut self, queue: QueueId);

    /// Carries out all of `commands` in order and appends what follows to `effects`. Called without
    /// commands when its time has come or something woke it.
    ///
    /// `outlets.room(consumer)` hands out bytes for this step only, in portions: ask again when a
    /// portion is used up, and pass the consumer over (stalled) when it gives 0. What is left over
    /// at the end of the step is taken back.
    fn step(&mut self, now: Millis, commands: &mut Vec<Command>, effects: &mut Vec<Effect>, outlets: &mut dyn Outlets);

    /// When it wants to be stepped, if nothing comes before.
    fn poll_timeout(&self) -> Option<Millis> {
        None
    }

    /// Bytes that were proposed and are not yet written: the gauge that holds publishers back.
    fn unwritten_bytes(&self) -> u64 {
        0
    }

    /// Appends what is in each queue that something is known of; one that is missing is empty and
    /// unused.
    fn survey(&self, _figures: &mut Vec<QueueFigures>) {}
}

/// A partition of a shard.
pub enum Member<M> {
    /// The queues in the shard's memory.
    Transient(Box<TransientQueues>),
    /// A member of a group of queues.
    Queues(Box<QueueMember>),
    /// A member of the group that decides about the topology.
    Topology(Box<TopologyMember<M>>),
    /// A group that is damaged on this node.
    Quarantined(Box<QuarantinedMember>),
    /// A group that ends on this node, or has.
    Ending(Box<EndingMember>),
    /// The place of a group that this node has nothing of.
    Vacant(Box<VacantMember>),
    /// Something else.
    Other(Box<dyn Partition>),
}

impl<M: Proposer> Member<M> {
    pub(super) fn queues(&self) -> Option<&QueuePartition> {
        match self {
            Member::Queues(member) => Some(member.partition()),
            _ => None,
        }
    }

    pub(super) fn step<E: Edge>(&mut self, now: Now, waiting: &mut Waiting, share: &mut Share, edge: &mut E) {
        if let Some(meter) = self.key_meter() {
            meter.set_full(share.are_keys_full);
        }
        match self {
            Member::Transient(queues) => {
                waiting.forwards.clear();
                waiting.declared.drain(..).for_each(|queue| queues.declare(queue));
                queues.step(now.ms, &mut waiting.commands, &mut share.out.effects, edge);
            }
            // A durable queue costs nothing here until a message or a consumer comes, unless the
            // member asks which there are.
            Member::Queues(member) => {
                waiting.forwards.clear();
                let partition = member.partition_mut();
                waiting.declared.drain(..).for_each(|queue| partition.queue_is_known(queue));
                member.step(now, waiting, share, edge);
            }
            Member::Topology(member) => {
                waiting.declared.clear();
                member.step(now, waiting, share);
            }
            Member::Quarantined(member) => {
                waiting.forwards.clear();
                member.step(now.ms, waiting, share);
            }
            Member::Ending(member) => {
                waiting.forwards.clear();
                member.step(waiting, share);
            }
            Member::Vacant(member) => {
                waiting.forwards.clear();
                member.step(now, waiting, share, edge);
            }
            Member::Other(partition) => {
                waiting.declared.drain(..).for_each(|queue| partition.declare(queue));
                waiting.frames.clear();
                waiting.forwards.clear();
                partition.step(now.ms, &mut waiting.commands, &mut share.out.effects, edge);
            }
        }
    }

    /// Something else takes the place of a member that has left its group, and of one that has ended there: true if
    /// so, and it wants to be stepped.
    pub(super) fn changes_seats(&mut self, share: &mut Share) -> bool {
        let is_over = match self {
            Member::Queues(member) => member.has_left(),
            Member::Ending(member) => member.makes_room(),
            _ => false,
        };
        if is_over {
            let vacant = Member::Transient(Box::new(TransientQueues::new()));
            *self = match std::mem::replace(self, vacant) {
                Member::Queues(member) => {
                    share.has_grown(member.partition().id());
                    tracing::debug!(partition = member.partition().id().0, "has left the group and ends here");
                    Member::Ending(Box::new(EndingMember::of_one_that_left(*member)))
                }
                Member::Ending(member) => Member::Vacant(Box::new(member.into_vacant())),
                other => other,
            };
        }
        is_over
    }

    pub(super) fn poll_timeout(&self) -> Option<Millis> {
        match self {
            Member::Transient(queues) => queues.due_ms(),
            Member::Queues(member) => member.poll_timeout(),
            Member::Topology(member) => member.poll_timeout(),
            Member::Quarantined(member) => member.poll_timeout(),
            Member::Ending(member) => member.poll_timeout(),
            Member::Vacant(member) => member.poll_timeout(),
            Member::Other(partition) => partition.poll_timeout(),
        }
    }

    pub(super) fn unwritten_bytes(&self, share: &Share) -> u64 {
        match self {
            Member::Queues(member) => member.unwritten_bytes(share),
            Member::Other(partition) => partition.unwritten_bytes(),
            Member::Transient(_)
            | Member::Topology(_)
            | Member::Quarantined(_)
            | Member::Ending(_)
            | Member::Vacant(_) => 0,
        }
    }

    /// Whether other nodes are members of its group.
    pub(super) fn has_others(&self) -> bool {
        matches!(self, Member::Queues(member) if !member.partition().replica().is_alone())
    }

    /// Memory that messages pin here, which counts against the node's budget of messages in memory.
    /// Durable bodies leave memory as the tail's budget says; nothing there grows with a backlog.
    pub(super) fn memory_bytes(&self) -> u64 {
        if let Member::Transient(queues) = self { queues.bytes() } else { 0 }
    }

    /// Counts the keys that queues with deduplication remember.
    pub(super) fn key_meter(&self) -> Option<&KeyMeter> {
        match self {
            Member::Transient(queues) => Some(queues.key_meter()),
            Member::Queues(member) => Some(member.partition().queues().key_meter()),
            Member::Topology(_) | Member::Quarantined(_) | Member::Ending(_) | Member::Vacant(_) | Member::Other(_) => {
                None
            }
        }
    }

    pub(super) fn survey(&self, figures: &mut Vec<QueueFigures>) {
        match self {
            Member::Transient(queues) => queues.survey(figures),
            Member::Queues(member) => member.survey(figures),
            Member::Topology(_) | Member::Quarantined(_) | Member::Ending(_) | Member::Vacant(_) => {}
            Member::Other(partition) => partition.survey(figures),
        }
    }

    /// Whether a survey has what is in its queues.
    pub(super) fn tells_of_queues(&self) -> bool {
        match self {
            Member::Transient(_) => true,
            Member::Queues(member) => member.partition().is_leading(),
            Member::Topology(_) | Member::Quarantined(_) | Member::Ending(_) | Member::Vacant(_) | Member::Other(_) => {
                false
            }
        }
    }

    /// Who has a vote in a partition of queues.
    pub(super) fn queue_voters(&self) -> Vec<Voter> {
        match self {
            Member::Queues(member) => standing::voters(&member.partition().replica().group().membership()),
            Member::Transient(_)
            | Member::Topology(_)
            | Member::Quarantined(_)
            | Member::Ending(_)
            | Member::Vacant(_)
            | Member::Other(_) => Vec::new(),
        }
    }

    pub(super) fn trim(&mut self) {
        match self {
            Member::Queues(member) => member.trim(),
            Member::Topology(member) => member.trim(),
            Member::Transient(_)
            | Member::Quarantined(_)
            | Member::Ending(_)
            | Member::Vacant(_)
            | Member::Other(_) => {}
        }
    }
}

//! Which queues the node knows of, as far as a member has to ask.
//!
//! A queue's rules stand in the topology, not in its own log. A member of a group with others may
//! lead while its node's topology still lags, and its log may hold messages of a queue whose rules
//! nobody here has heard of: a message whose own time is over would end without its dead letter.
//! Invariant: a leader does nothing with a queue that its node does not know, and takes nothing for
//! it; its state is replicated all the same.

use crate::command::Command;
use crate::machine::schedule_of;
use broker::QueueId;
use broker::queue::SeqRanges;

/// See the module. By default all are known, as on a node that leads only when it knows them.
#[derive(Debug, Default)]
pub(crate) struct KnownQueues {
    told: Option<SeqRanges>,
}

impl KnownQueues {
    /// From now on only those that are told are known.
    pub(crate) fn ask(&mut self) {
        self.told.get_or_insert_with(SeqRanges::new);
    }

    /// A queue is known; true if it was not before.
    pub(crate) fn tell(&mut self, queue: QueueId) -> bool {
        let Some(told) = self.told.as_mut().filter(|told| !told.contains(queue.0)) else { return false };
        told.insert(queue.0);
        true
    }

    /// Whether a queue is known, or the one for which this one keeps scheduled messages.
    #[inline]
    pub(crate) fn has(&self, queue: QueueId) -> bool {
        self.told.as_ref().is_none_or(|told| told.contains(schedule_of(queue).unwrap_or(queue).0))
    }

    /// Whether all queues are known that a command is for.
    #[inline]
    pub(crate) fn has_all_of(&self, command: &Command) -> bool {
        if self.told.is_none() {
            return true;
        }
        match command {
            Command::Publish(publish) => publish.targets.iter().all(|target| self.has(target.queue)),
            Command::Consume { queue, .. }
            | Command::Cancel { queue, .. }
            | Command::Hold { queue, .. }
            | Command::Get { queue, .. }
            | Command::Purge { queue, .. }
            | Command::Stat { queue, .. }
            | Command::Close { queue, .. }
            | Command::Settle { queue, .. }
            | Command::Stall { queue, .. }
            | Command::Grant { queue, .. }
            | Command::DeadLetterAnswered { queue, .. } => self.has(*queue),
            // Those that the topology itself gives, and those for no queue.
            Command::Configure { .. }
            | Command::Reopen { .. }
            | Command::Delete { .. }
            | Command::Detach { .. }
            | Command::Part { .. }
            | Command::Mark { .. }
            | Command::LimitReplies { .. }
            | Command::Sync { .. } => true,
        }
    }
}

//! A transient queue whose delete on a condition is being decided.
//!
//! The same as `crate::closing`: until the decision what comes is taken in and not confirmed, and every question waits.
//! Invariant: questions of one channel keep their order; a question of a channel that is gone is forgotten.

use super::{TransientQueues, mark_dirty, not_here, note_use, push_confirm};
use crate::command::{Command, Effect, RequestId};
use broker::{ChannelKey, QueueId};
use smallvec::SmallVec;

/// Publishes that one queue keeps waiting at most; more are refused.
const CONFIRMS_MAX: usize = 1 << 16;

/// A publish that was taken in and is not confirmed before these queues have been decided about.
pub(super) struct HeldConfirm {
    pub(super) channel: ChannelKey,
    pub(super) seq: u64,
    pub(super) closing: SmallVec<[QueueId; 1]>,
}

/// What waits for the decision about one queue.
#[derive(Default)]
pub(super) struct Closing {
    confirms: Vec<HeldConfirm>,
    questions: Vec<Command>,
}

impl Closing {
    /// Whether no more publishes may wait.
    pub(super) fn is_full(&self) -> bool {
        self.confirms.len() >= CONFIRMS_MAX
    }

    /// A channel is gone, and with it what it asked.
    pub(super) fn forget(&mut self, channel: ChannelKey) {
        self.questions.retain(|command| question(command).is_none_or(|(_, of, _)| of != channel));
    }
}

/// The queue, the asker and the number of a command that a queue answers.
fn question(command: &Command) -> Option<(QueueId, ChannelKey, RequestId)> {
    Some(match command {
        Command::Consume { queue, consumer, request } => (*queue, consumer.key.channel, *request),
        Command::Cancel { queue, consumer, request } => (*queue, consumer.channel, *request),
        Command::Get { queue, channel, request, .. }
        | Command::Purge { queue, channel, request }
        | Command::Stat { queue, channel, request }
        | Command::Close { queue, channel, request, .. } => (*queue, *channel, *request),
        _ => return None,
    })
}

impl TransientQueues {
    /// Whether a command is kept until it is decided whether its queue goes.
    pub(super) fn waits_for_decision(&mut self, command: &Command) -> bool {
        let Some((id, channel, _)) = question(command) else { return false };
        let Some(closing) = self.queues.get_mut(&id).and_then(|queue| queue.closing.as_mut()) else { return false };
        closing.questions.push(command.clone());
        note_use(&mut self.used, &self.queues, channel, id);
        true
    }

    /// Keeps a confirm until the queues that it waits for are decided about; confirms it where none of them waits any more.
    pub(super) fn hold(&mut self, mut held: HeldConfirm, effects: &mut Vec<Effect>) {
        while let Some(queue) = held.closing.pop() {
            if let Some(closing) = self.queues.get_mut(&queue).and_then(|queue| queue.closing.as_mut()) {
                return closing.confirms.push(held);
            }
        }
        push_confirm(effects, held.channel, held.seq);
    }

    /// The delete of a queue came to nothing: everything goes on from where it waited.
    pub(super) fn reopen(&mut self, id: QueueId, effects: &mut Vec<Effect>) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let Some(closing) = queue.closing.take() else { return };
        mark_dirty(&mut self.dirty, queue, id);
        closing.confirms.into_iter().for_each(|held| self.hold(held, effects));
        // The first of them that deletes the queue has the others wait again.
        closing.questions.iter().for_each(|command| self.handle(command, effects));
    }

    /// A queue is gone.
    pub(super) fn closed(&mut self, closing: Closing, effects: &mut Vec<Effect>) {
        closing.confirms.into_iter().for_each(|held| self.hold(held, effects));
        for (_, channel, request) in closing.questions.iter().filter_map(question) {
            not_here(effects, channel, request);
        }
    }
}

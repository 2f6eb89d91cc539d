//! Commands for a member that was elected and has not taken its office: the first entry of its term is on
//! its way to a majority. Nodes turn to it as soon as they hear of its election, which is before that.
//!
//! Invariants: what waits is carried out in its order and ahead of whatever comes later; it waits until
//! the member takes its office or is voted out, which takes an election's time at most, as who hears
//! from no majority gives up. Beyond [`BYTES_MAX`] nothing more waits until then.

use crate::command::{Command, Reply};
use crate::commands::refuse;
use crate::partition::{Context, QueuePartition};
use std::collections::VecDeque;

/// What may wait, in bytes.
const BYTES_MAX: usize = 16 << 20;

/// What a command that waits costs beside its body.
const OVERHEAD: usize = 256;

/// What a command that waits holds of memory.
pub(crate) fn held_bytes(command: &Command) -> usize {
    match command {
        Command::Publish(publish) => OVERHEAD + publish.body_bytes(),
        _ => OVERHEAD,
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Early {
    held: VecDeque<Command>,
    bytes: usize,
}

impl Early {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Has a command wait. Gives it back where too much does.
    pub(crate) fn hold(&mut self, command: Command) -> Option<Command> {
        if self.bytes >= BYTES_MAX {
            return Some(command);
        }
        self.bytes += held_bytes(&command);
        self.held.push_back(command);
        None
    }

    /// All that waits, in its order.
    pub(crate) fn take(&mut self) -> VecDeque<Command> {
        self.bytes = 0;
        std::mem::take(&mut self.held)
    }
}

impl QueuePartition {
    /// Has a command wait for the office to which this member was elected. Without one it is refused.
    pub(crate) fn wait_for_office(&mut self, command: Command, cx: &mut Context<'_>) {
        let is_elected = self.replica.is_leader();
        // Whoever takes office looks itself which queues are gone.
        let is_decision = matches!(command, Command::Delete { .. } | Command::Reopen { .. });
        let left = if is_elected && !is_decision { self.early.hold(command) } else { Some(command) };
        left.into_iter().for_each(|command| refuse(command, Reply::NotLeader, &mut cx.out.effects));
    }

    /// Carries out what waited for this member's office, once it has that. False if there was nothing to do.
    pub(crate) fn carry_out_early(&mut self, cx: &mut Context<'_>) -> bool {
        if self.early.is_empty() || self.leader.is_none() {
            return false;
        }
        self.early.take().into_iter().for_each(|command| self.command(command, cx));
        true
    }
}

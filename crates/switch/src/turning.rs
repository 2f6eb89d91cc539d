//! Partitions whose leader changed while something of this shard was on its way to the one before.
//!
//! What was sent to one leader must not come into the log behind what is sent to the next, and is
//! confirmed before it. So a shard waits before it turns to another leader: until the one before has
//! handled all that came to it, and has answered every publish, or its link is gone. Nothing waits
//! where nothing was on its way.

use broker::{NodeNumber, PartitionId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use partition::Command;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turning {
    /// Whom this shard sent something last, by partition.
    last: HashMap<PartitionId, NodeNumber, FixedState>,
    waiting: HashMap<PartitionId, Waiting, FixedState>,
    held_bytes: u64,
}

#[derive(Debug)]
struct Waiting {
    /// The leader before.
    from: NodeNumber,
    /// What it has to have handled; nothing where its link is gone.
    mark: Option<u64>,
    held: Vec<Command>,
}

/// What a command weighs while it waits.
fn bytes_of(command: &Command) -> u64 {
    match command {
        Command::Publish(publish) => (publish.message.body.len() + size_of::<Command>()) as u64,
        _ => size_of::<Command>() as u64,
    }
}

impl Turning {
    /// Whom this shard sent something for the partition last, if that is not `leader`.
    #[inline]
    pub(crate) fn before(&self, partition: PartitionId, leader: Option<NodeNumber>) -> Option<NodeNumber> {
        self.last.get(&partition).copied().filter(|last| Some(*last) != leader)
    }

    /// Something goes to this node now.
    #[inline]
    pub(crate) fn sent(&mut self, partition: PartitionId, to: NodeNumber) {
        self.last.insert(partition, to);
    }

    /// Has what comes for a partition wait until `from` has handled so much.
    pub(crate) fn begin(&mut self, partition: PartitionId, from: NodeNumber, mark: u64) {
        self.waiting.insert(partition, Waiting { from, mark: Some(mark), held: Vec::new() });
    }

    /// Holds a command of a partition that waits; gives it back if it does not.
    #[inline]
    pub(crate) fn hold(&mut self, partition: PartitionId, command: Command) -> Option<Command> {
        if self.waiting.is_empty() {
            return Some(command);
        }
        let Some(waiting) = self.waiting.get_mut(&partition) else { return Some(command) };
        self.held_bytes += bytes_of(&command);
        waiting.held.push(command);
        None
    }

    /// The link to a node is gone, and what was on its way there.
    pub(crate) fn lost(&mut self, node: NodeNumber) {
        self.last.retain(|_, last| *last != node);
        self.waiting.values_mut().filter(|waiting| waiting.from == node).for_each(|waiting| waiting.mark = None);
    }

    /// Bytes that wait.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives out what waits for a leader before that is done: `is_done` of a partition, that leader
    /// and its mark.
    pub(crate) fn take_done(
        &mut self,
        mut is_done: impl FnMut(PartitionId, NodeNumber, u64) -> bool,
    ) -> Vec<(PartitionId, Command)> {
        let mut done = Vec::new();
        let mut gone: Vec<(PartitionId, Waiting)> = self
            .waiting
            .extract_if(|partition, waiting| waiting.mark.is_none_or(|mark| is_done(*partition, waiting.from, mark)))
            .collect();
        gone.sort_unstable_by_key(|(partition, _)| *partition);
        for (partition, waiting) in gone {
            self.last.remove(&partition);
            self.held_bytes -= waiting.held.iter().map(bytes_of).sum::<u64>();
            done.extend(waiting.held.into_iter().map(|command| (partition, command)));
        }
        done
    }
}

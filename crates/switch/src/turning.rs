//! Partitions whose leader changed while something of this shard was on its way to the one before, or
//! of which nobody is known to lead them: what comes for them waits here, in its order.
//!
//! ```text
//!   before ──all answered, or its link is gone──▶ leader ──one can be reached──▶ resume ──it answered──▶ sent again,
//!                                                    ▲        (something is to be sent again)   │         then what waits
//!                                                    └───────────── its link is gone ───────────┘
//! ```
//!
//! What was sent to one leader must not come into the log behind what is sent to the next, and is
//! confirmed before it. So a shard waits before it turns to another leader: until the one before has
//! handled all that came to it, and has answered every publish, or its link is gone. Nothing waits
//! where nothing was on its way. What finds no leader that can be reached waits for one, for
//! [`LEADERLESS_US`] at most: it would be refused by whoever is asked, though an election takes tenths
//! of a second. The steps themselves are `resend.rs`.

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
    /// Numbers the attempts to send something again.
    attempt: u64,
}

/// After so long without a leader that takes it, what waits is refused.
pub(crate) const LEADERLESS_US: u64 = 10_000_000;
/// A leader that sent something back is not asked again before so long: it may not know yet that it
/// leads no more, or does.
const BOUNCED_US: u64 = 10_000;

/// What waits for one partition.
#[derive(Debug)]
struct Waiting {
    on: On,
    since_us: u64,
    /// Who sent something back, and until when it is left alone.
    bounced: Option<(NodeNumber, u64)>,
    held: Vec<Command>,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// The leader before, and what it has to have handled; nothing where its link is gone.
    Before { from: NodeNumber, mark: Option<u64> },
    /// A leader that can be reached.
    Leader,
    /// The answers of so many channels to [`Command::Resume`].
    Resume { to: NodeNumber, number: u64, left: usize },
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
    pub(crate) fn before(&self, partition: PartitionId, leader: NodeNumber) -> Option<NodeNumber> {
        self.last.get(&partition).copied().filter(|last| *last != leader)
    }

    /// Something goes to this node now.
    #[inline]
    pub(crate) fn sent(&mut self, partition: PartitionId, to: NodeNumber) {
        self.last.insert(partition, to);
    }

    /// Has what comes for a partition wait, if it does not yet.
    pub(crate) fn begin(&mut self, partition: PartitionId, on: On, now_us: u64) {
        let new = || Waiting { on, since_us: now_us, bounced: None, held: Vec::new() };
        self.waiting.entry(partition).or_insert_with(new);
    }

    /// A node sent something back that it did not take.
    pub(crate) fn bounced(&mut self, partition: PartitionId, from: NodeNumber, now_us: u64) {
        self.begin(partition, On::Before { from, mark: None }, now_us);
        if let Some(waiting) = self.waiting.get_mut(&partition) {
            waiting.bounced = Some((from, now_us + BOUNCED_US));
        }
    }

    /// A channel's answer to an attempt to send again.
    pub(crate) fn resumed(&mut self, partition: PartitionId, from: NodeNumber, answer: u64) {
        if let Some(Waiting { on: On::Resume { to, number, left }, .. }) = self.waiting.get_mut(&partition)
            && (*to, *number) == (from, answer)
        {
            *left -= 1;
        }
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
        for waiting in self.waiting.values_mut() {
            match &mut waiting.on {
                On::Before { from, mark } if *from == node => *mark = None,
                On::Resume { to, .. } if *to == node => waiting.on = On::Leader,
                _ => {}
            }
        }
    }

    /// Bytes that wait.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Partitions that wait, in order.
    pub(crate) fn partitions(&self) -> Vec<PartitionId> {
        let mut all: Vec<_> = self.waiting.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// What a partition waits for, and whether for too long.
    pub(crate) fn on(&self, partition: PartitionId, now_us: u64) -> Option<(On, bool)> {
        let waiting = self.waiting.get(&partition)?;
        Some((waiting.on, now_us >= waiting.since_us + LEADERLESS_US))
    }

    /// Whether this leader is left alone for a moment.
    pub(crate) fn is_left_alone(&self, partition: PartitionId, leader: NodeNumber, now_us: u64) -> bool {
        let bounced = self.waiting.get(&partition).and_then(|waiting| waiting.bounced);
        bounced.is_some_and(|(from, until)| from == leader && now_us < until)
    }

    /// It waits for something else now.
    pub(crate) fn turn_to(&mut self, partition: PartitionId, on: On) {
        if let Some(waiting) = self.waiting.get_mut(&partition) {
            waiting.on = on;
        }
    }

    /// A number for an attempt.
    pub(crate) fn next_attempt(&mut self) -> u64 {
        self.attempt += 1;
        self.attempt
    }

    /// Nothing waits for the partition any more: what did, in its order.
    pub(crate) fn release(&mut self, partition: PartitionId) -> Vec<Command> {
        self.last.remove(&partition);
        let Some(Waiting { held, .. }) = self.waiting.remove(&partition) else { return Vec::new() };
        self.held_bytes -= held.iter().map(bytes_of).sum::<u64>();
        held
    }
}

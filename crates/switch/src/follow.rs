//! What the rest of a node does after a change of the topology.
//!
//! Invariant: this is the one place that says it, whoever made the change: a shard for itself, the
//! log for all, or a snapshot. Partitions are told while nobody else sees the change yet, so that
//! whatever is routed to a new queue comes to a partition that knows its rules.

use broker::topology::{Checked, Command as Change, Effect, Name, Topology};
use broker::{PartitionId, QueueId, VhostId};
use partition::Command;
use std::ops::Deref;

/// The way to partitions.
pub trait Tell {
    /// Tells a partition that a queue exists; nothing where it runs elsewhere.
    fn declare(&self, partition: PartitionId, queue: QueueId);

    /// Hands a partition a command; nothing where it runs elsewhere.
    fn command(&self, partition: PartitionId, command: Command);

    /// A partition has other members, perhaps this node: its place on the node looks.
    fn look(&self, partition: PartitionId);
}

/// Has partitions do what follows from a change. `topology` has the change in it, and nobody else
/// sees it yet.
pub fn tell_partitions(effects: &[Effect], topology: &Topology, tell: &impl Tell) {
    let tell_rules = |partition: PartitionId, queue, is_new| {
        rules_of(queue, is_new, topology).into_iter().for_each(|command| tell.command(partition, command));
    };
    for effect in effects {
        match effect {
            Effect::QueueCreated { id, partition } => {
                tell.declare(*partition, *id);
                tell_rules(*partition, *id, true);
            }
            Effect::QueueRulesChanged { id, partition } => tell_rules(*partition, *id, false),
            Effect::QueueDeleted { id, partition } => tell.command(*partition, Command::Delete { queue: *id }),
            Effect::MembersChanged { partition } => tell.look(*partition),
            Effect::ExchangeUnused { .. } | Effect::VhostDeleted { .. } | Effect::UserDeleted { .. } => {}
        }
    }
}

/// Who does what follows for others than partitions.
pub trait Follower {
    /// The topology, with the change in it.
    fn topology(&self) -> impl Deref<Target = Topology>;

    /// Proposes a replicated change, which nobody waits for.
    fn propose(&self, change: Change);

    /// Makes a change that concerns this node only, with what follows from it.
    fn change_locally(&self, change: &Change);

    /// Closes the connections in a virtual host.
    fn vhost_deleted(&self, vhost: VhostId, name: &Name);

    /// Closes the connections of a user.
    fn user_deleted(&self, name: &Name);
}

/// Has `follower` do what follows from a change of which partitions were told.
pub fn follow(effects: &[Effect], follower: &impl Follower) {
    for effect in effects {
        match effect {
            Effect::QueueCreated { .. }
            | Effect::QueueRulesChanged { .. }
            | Effect::QueueDeleted { .. }
            | Effect::MembersChanged { .. } => {}
            Effect::ExchangeUnused { vhost, name } => {
                // An auto-delete exchange lost the last binding that this node saw.
                let deletion = follower.topology().deletion_of_unused(*vhost, name);
                match deletion {
                    // Somebody bound it again, or deleted it.
                    Checked::Done => {}
                    Checked::Propose(change) => follower.propose(change),
                    // A transient one of that name took its place meanwhile, and is as unused.
                    Checked::Local(change) => follower.change_locally(&change),
                }
            }
            Effect::VhostDeleted { vhost, name } => follower.vhost_deleted(*vhost, name),
            Effect::UserDeleted { name } => follower.user_deleted(name),
        }
    }
}

/// What tells a queue's machine its rules; `None` if there is nothing to tell.
pub fn rules_of(queue: QueueId, is_new: bool, topology: &Topology) -> Option<Command> {
    let rules = topology.queue(queue)?.rules.clone();
    (!is_new || !rules.is_plain()).then_some(Command::Configure { queue, rules })
}

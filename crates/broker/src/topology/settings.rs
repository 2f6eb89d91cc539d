//! What a queue's arguments mean for the engine, parsed once at declare.
//!
//! Invariant: settings are a function of the queue's flags and arguments alone; a replay computes the same ones.

use super::name::Name;

/// Classic or quorum: which arguments are known, and how many members the queue asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueType {
    /// One copy; may be transient, exclusive, auto-delete.
    Classic,
    /// Replicated; always durable.
    Quorum,
}

impl QueueType {
    /// The value of `x-queue-type`.
    pub fn word(self) -> &'static str {
        match self {
            QueueType::Classic => "classic",
            QueueType::Quorum => "quorum",
        }
    }

    /// RabbitMQ's name of the type in its texts.
    pub(super) fn module(self) -> &'static str {
        match self {
            QueueType::Classic => "rabbit_classic_queue",
            QueueType::Quorum => "rabbit_quorum_queue",
        }
    }
}

/// When a message counts as safe, which is when its confirm goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In memory only: every queue that is not durable.
    Memory,
    /// Written to the operating system on enough members; a power cut may take it.
    Written,
    /// Synced to disk on enough members. The default of every durable queue.
    Synced,
    /// Written, and synced where the message asks for it or a bound would be passed.
    Selective(Selective),
}

/// The bounds of `x-durability: selective`; at least one of the two is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selective {
    /// The sum that values not yet synced never pass.
    pub value: Option<ValueCap>,
    /// The longest time between syncs, in milliseconds; at least 1.
    pub interval_ms: Option<u32>,
}

/// A numeric header summed over what is not yet synced, and the sum that is never passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueCap {
    /// The name of the header.
    pub header: Name,
    /// At least 1.
    pub cap: u64,
}

/// `Durability` without its bounds: small enough to travel with every routed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DurabilityLevel {
    /// See `Durability::Memory`.
    Memory,
    /// See `Durability::Written`.
    Written,
    /// See `Durability::Synced`.
    Synced,
    /// See `Durability::Selective`; the bounds are in the queue's settings.
    Selective,
}

impl Durability {
    /// The level without its bounds.
    pub fn level(&self) -> DurabilityLevel {
        match self {
            Durability::Memory => DurabilityLevel::Memory,
            Durability::Written => DurabilityLevel::Written,
            Durability::Synced => DurabilityLevel::Synced,
            Durability::Selective(_) => DurabilityLevel::Selective,
        }
    }
}

/// Where the leader of a new queue should be. RabbitMQ's older names mean `Balanced`, as they do there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaderLocator {
    /// The node that the declaring client is connected to. The default.
    #[default]
    ClientLocal,
    /// The node with the fewest leaders.
    Balanced,
}

/// What the engine needs to know of a queue's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// When a confirm may go out.
    pub durability: Durability,
    /// `x-quorum-initial-group-size`: the members asked for; at least 1. `None`: the placement's default.
    pub initial_group_size: Option<u32>,
    /// `x-queue-leader-locator`, or `x-queue-master-locator` on a classic queue.
    pub leader_locator: LeaderLocator,
}

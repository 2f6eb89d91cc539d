//! What a queue's arguments and policies together ask of it, as its machine needs it.
//!
//! Invariant: only a leader looks here. What a rule leads to is logged as an outcome with its
//! reason, so that a replay needs no rules, and they may change at any time. A plain queue has the
//! default rules, which nobody stores.

use super::active::SingleActive;
use super::dedup::DedupRule;
use super::levels::LevelRule;
use crate::topology::{Durability, Name};

/// RabbitMQ's delivery limit of a quorum queue that says nothing.
pub const DELIVERY_LIMIT_DEFAULT: u32 = 20;

/// What happens to a publish that finds the queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// It comes in, and the oldest ready messages go.
    #[default]
    DropHead,
    /// It is refused: its publisher hears `basic.nack`.
    RejectPublish,
    /// It is refused, and dead-lettered.
    RejectPublishDlx,
}

impl Overflow {
    /// Whether the newest message goes instead of the oldest.
    pub fn is_reject(self) -> bool {
        self != Overflow::DropHead
    }
}

/// Where messages go that a queue gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterRule {
    /// The exchange they are published to; it need not exist.
    pub exchange: Name,
    /// The routing key they get; without one they keep theirs.
    pub routing_key: Option<Name>,
    /// The queue keeps a message until every queue that it goes to has confirmed it.
    pub at_least_once: bool,
}

/// Which returned messages wait before they are ready again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// All that come back.
    All,
    /// Those whose delivery failed: what counts against a message.
    Failed,
    /// Those that were given back without blame.
    Returned,
}

/// How long a returned message waits: `min_ms` times how often it came back, at most `max_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRule {
    /// Which messages wait.
    pub which: Retried,
    /// The first wait, in milliseconds.
    pub min_ms: u64,
    /// The longest wait, in milliseconds.
    pub max_ms: u64,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Milliseconds that a message may be in the queue; a message may ask for less itself.
    pub message_ttl_ms: Option<u64>,
    /// Milliseconds after which an unused queue goes.
    pub expires_ms: Option<u64>,
    /// A declare of an existing queue counts as use; not so on quorum queues.
    pub declare_renews: bool,
    /// Most ready messages.
    pub length_max: Option<u64>,
    /// Most bytes of bodies of ready messages.
    pub length_bytes_max: Option<u64>,
    /// What gives way when one of the two is reached.
    pub overflow: Overflow,
    /// How often a message may come back in a way that counts against it; the next time it goes.
    pub delivery_limit: Option<u32>,
    /// Where messages go that are given up; without it they are dropped.
    pub dead_letter: Option<DeadLetterRule>,
    /// Whether returned messages wait.
    pub retry: Option<RetryRule>,
    /// How long its consumers may hold a message, in milliseconds; 0 is for ever. `None`: the
    /// broker's default.
    pub consumer_timeout_ms: Option<u64>,
    /// How long a consumer whose node cannot be reached keeps its messages, in milliseconds.
    /// `None`: the broker's default. On one node there is no such consumer, and no machine looks
    /// here.
    pub consumer_disconnected_timeout_ms: Option<u64>,
    /// How many members the queue is to have, as far as there are nodes. No machine looks here.
    pub target_group_size: Option<u64>,
    /// What it makes of a message's priority.
    pub levels: LevelRule,
    /// Whether one consumer at a time gets messages.
    pub single_active: Option<SingleActive>,
    /// Whether it takes messages of the same key in once.
    pub dedup: Option<DedupRule>,
    /// When its confirms may go out, if anybody said so and it is durable: see
    /// [`crate::topology::Queue::durability`]. No machine looks here.
    pub durability: Option<Durability>,
}

impl Rules {
    /// Whether they ask for nothing: the queue's machine need not know them.
    pub fn is_plain(&self) -> bool {
        *self
            == Rules {
                declare_renews: self.declare_renews,
                consumer_disconnected_timeout_ms: self.consumer_disconnected_timeout_ms,
                target_group_size: self.target_group_size,
                durability: self.durability.clone(),
                ..Rules::default()
            }
    }

    /// Whether each message without a time and a priority of its own is taken in as it comes: nothing in it decides
    /// whether it is, or how.
    #[inline]
    pub fn take_all(&self) -> bool {
        let refuses = self.overflow.is_reject() && (self.length_max.is_some() || self.length_bytes_max.is_some());
        self.message_ttl_ms.is_none() && self.dedup.is_none() && !refuses
    }
}

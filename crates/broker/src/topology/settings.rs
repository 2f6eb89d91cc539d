//! What a queue's arguments mean for the engine, parsed once at declare, and what they and policies
//! come to together.
//!
//! Invariant: settings are a function of the queue's flags and arguments alone; a replay computes
//! the same ones. The rules that a queue works by are a function of its type, its arguments and the
//! policies that match it: [`effective`].

use std::convert::Infallible;

use amqp::{Table, Value};

use super::name::Name;
use super::wording::integer;
use crate::queue::active::SingleActive;
use crate::queue::dedup::DedupRule;
use crate::queue::levels::LevelRule;
use crate::queue::rules::{DELIVERY_LIMIT_DEFAULT, DeadLetterRule, Overflow, Retried, RetryRule, Rules};

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
    /// Written to the operating system of the leader: gone if the next leader lacks it.
    LeaderWritten,
    /// Synced to the leader's disk: gone if the next leader lacks it.
    LeaderSynced,
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
    /// See `Durability::LeaderWritten`.
    LeaderWritten,
    /// See `Durability::LeaderSynced`.
    LeaderSynced,
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
            Durability::LeaderWritten => DurabilityLevel::LeaderWritten,
            Durability::LeaderSynced => DurabilityLevel::LeaderSynced,
            Durability::Written => DurabilityLevel::Written,
            Durability::Synced => DurabilityLevel::Synced,
            Durability::Selective(_) => DurabilityLevel::Selective,
        }
    }

    /// What `word` asks for; `selective` gives the bounds of that level, if they are lawful.
    pub(super) fn of_word<E>(word: &[u8], selective: impl FnOnce() -> Result<Selective, E>) -> Result<Option<Self>, E> {
        Ok(Some(match word {
            b"leader-written" => Durability::LeaderWritten,
            b"leader-synced" => Durability::LeaderSynced,
            b"written" => Durability::Written,
            b"synced" => Durability::Synced,
            b"selective" => Durability::Selective(selective()?),
            _ => return Ok(None),
        }))
    }
}

impl DurabilityLevel {
    /// Whether the leader alone decides.
    pub fn is_of_leader(self) -> bool {
        matches!(self, DurabilityLevel::LeaderWritten | DurabilityLevel::LeaderSynced)
    }

    /// The word by which a queue asks for it; a transient queue cannot.
    pub fn word(self) -> &'static str {
        match self {
            DurabilityLevel::Memory => "memory",
            DurabilityLevel::LeaderWritten => "leader-written",
            DurabilityLevel::LeaderSynced => "leader-synced",
            DurabilityLevel::Written => "written",
            DurabilityLevel::Synced => "synced",
            DurabilityLevel::Selective => "selective",
        }
    }
}

/// Where the leader of a new queue should be. RabbitMQ's older names mean `Balanced`, as they do
/// there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaderLocator {
    /// The node that the declaring client is connected to. The default.
    #[default]
    ClientLocal,
    /// The node with the fewest leaders.
    Balanced,
}

impl LeaderLocator {
    /// What a word of RabbitMQ's means; `None` for what is no text.
    pub(super) fn of(value: &Value) -> Option<LeaderLocator> {
        match value {
            Value::LongString(word) if &word[..] == b"client-local" => Some(LeaderLocator::ClientLocal),
            Value::LongString(_) => Some(LeaderLocator::Balanced),
            _ => None,
        }
    }
}

/// What the engine needs to know of a queue's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// When a confirm may go out.
    pub durability: Durability,
    /// `x-quorum-initial-group-size`: the members asked for; at least 1. `None`: the target of the
    /// rules, or the default.
    pub initial_group_size: Option<u32>,
    /// `x-dedicated-partition`: it lives in a partition of its own.
    pub is_dedicated: bool,
    /// `x-queue-leader-locator`, or `x-queue-master-locator` on a classic queue, if one is given.
    pub leader_locator: Option<LeaderLocator>,
    /// What the arguments say about the life of messages; policies may say more.
    pub wishes: Wishes,
}

/// RabbitMQ's wait before the first retry when only a type of retry was asked for.
const RETRY_MIN_MS_DEFAULT: u64 = 1_000;

/// What one source (a table of arguments, a policy, an operator policy) says about the rules of a
/// queue. `None`: nothing.
///
/// Made by [`Wishes::read`] from values that were checked; nothing here is checked again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// `message-ttl`.
    pub message_ttl_ms: Option<u64>,
    /// `expires`.
    pub expires_ms: Option<u64>,
    /// `max-length`.
    pub length_max: Option<u64>,
    /// `max-length-bytes`.
    pub length_bytes_max: Option<u64>,
    /// `overflow`.
    pub overflow: Option<Overflow>,
    /// `delivery-limit`; below zero is without limit.
    pub delivery_limit: Option<i64>,
    /// `dead-letter-exchange`.
    pub dead_letter_exchange: Option<Name>,
    /// `dead-letter-routing-key`.
    pub dead_letter_routing_key: Option<Name>,
    /// `dead-letter-strategy`: whether it is `at-least-once`.
    pub dead_letter_at_least_once: Option<bool>,
    /// `delayed-retry-type`: which messages; `Some(None)` is `disabled`.
    pub retry: Option<Option<Retried>>,
    /// `delayed-retry-min`.
    pub retry_min_ms: Option<u64>,
    /// `delayed-retry-max`.
    pub retry_max_ms: Option<u64>,
    /// `consumer-timeout`.
    pub consumer_timeout_ms: Option<u64>,
    /// `consumer-disconnected-timeout`.
    pub consumer_disconnected_timeout_ms: Option<u64>,
    /// `target-group-size`; the argument is `x-quorum-target-group-size`.
    pub target_group_size: Option<u64>,
    /// `max-priority`, which only a declare can ask for.
    pub priority_max: Option<u8>,
    /// `single-active-consumer`, which only a declare can ask for.
    pub single_active: bool,
    /// `message-deduplication`.
    pub deduplicates: Option<bool>,
    /// `deduplication-window-ms`; says something where messages are deduplicated.
    pub deduplication_window_ms: Option<u64>,
    /// `durability`, with the keys of its bounds.
    pub durability: Option<Durability>,
}

impl Wishes {
    /// What `table` says under RabbitMQ's names behind `prefix`: `x-` for arguments, nothing for a
    /// policy's definition. A value of a wrong type counts as absent: whoever took it in has
    /// checked it.
    pub fn read(table: &Table, prefix: &str) -> Wishes {
        let value = |key: &str| table.get(&format!("{prefix}{key}"));
        let number = |key: &str| value(key).and_then(integer).and_then(|n| u64::try_from(n).ok());
        let word = |key: &str| match value(key) {
            Some(Value::LongString(word)) => Some(word.clone()),
            _ => None,
        };
        Wishes {
            message_ttl_ms: number("message-ttl"),
            expires_ms: number("expires"),
            length_max: number("max-length"),
            length_bytes_max: number("max-length-bytes"),
            overflow: word("overflow").and_then(|word| match &word[..] {
                b"drop-head" => Some(Overflow::DropHead),
                b"reject-publish" => Some(Overflow::RejectPublish),
                b"reject-publish-dlx" => Some(Overflow::RejectPublishDlx),
                _ => None,
            }),
            delivery_limit: value("delivery-limit").and_then(integer),
            dead_letter_exchange: word("dead-letter-exchange").map(|w| Name::new(&w)),
            dead_letter_routing_key: word("dead-letter-routing-key").map(|w| Name::new(&w)),
            dead_letter_at_least_once: word("dead-letter-strategy").map(|w| &w[..] == b"at-least-once"),
            retry: word("delayed-retry-type").and_then(|word| match &word[..] {
                b"disabled" => Some(None),
                b"all" => Some(Some(Retried::All)),
                b"failed" => Some(Some(Retried::Failed)),
                b"returned" => Some(Some(Retried::Returned)),
                _ => None,
            }),
            retry_min_ms: number("delayed-retry-min"),
            retry_max_ms: number("delayed-retry-max"),
            consumer_timeout_ms: number("consumer-timeout"),
            consumer_disconnected_timeout_ms: number("consumer-disconnected-timeout"),
            target_group_size: number("quorum-target-group-size").or_else(|| number("target-group-size")),
            priority_max: number("max-priority").and_then(|n| u8::try_from(n).ok()),
            single_active: matches!(value("single-active-consumer"), Some(Value::Bool(true))),
            deduplicates: match value("message-deduplication") {
                Some(Value::Bool(flag)) => Some(*flag),
                _ => None,
            },
            deduplication_window_ms: number("deduplication-window-ms"),
            durability: word("durability").and_then(|level| {
                let bounds = || {
                    let header = word("durability-value-header").map(|header| Name::new(&header));
                    let value = header.zip(number("durability-value-cap"));
                    let interval_ms = number("durability-interval-ms").and_then(|ms| u32::try_from(ms).ok());
                    Selective { value: value.map(|(header, cap)| ValueCap { header, cap }), interval_ms }
                };
                Durability::of_word(&level, || Ok::<_, Infallible>(bounds())).ok().flatten()
            }),
        }
    }
}

/// The rules of a queue: its own arguments merged with the policy and the operator policy that
/// match it.
///
/// - Of two numbers the smaller holds, wherever it comes from; of two delivery limits the one that
///   is a limit; of two target group sizes the larger.
/// - Of two words the argument's holds; but an operator's `overflow` holds over a policy's, and so does its
///   level of durability, which comes with the bounds that are named beside it.
/// - A key that the queue's type does not know says nothing: a policy matches queues of all types.
/// - Source: RabbitMQ's guides on policies, on quorum queues and on operator policies.
pub fn effective(
    queue_type: QueueType,
    arguments: &Wishes,
    policy: Option<&Wishes>,
    operator: Option<&Wishes>,
) -> Rules {
    let none = Wishes::default();
    let (policy, operator) = (policy.unwrap_or(&none), operator.unwrap_or(&none));
    let least = |of: fn(&Wishes) -> Option<u64>| [arguments, policy, operator].into_iter().filter_map(of).min();
    let most = |of: fn(&Wishes) -> Option<u64>| [arguments, policy, operator].into_iter().filter_map(of).max();
    let is_quorum = queue_type == QueueType::Quorum;
    let first = |a: &Option<Name>, b: &Option<Name>| a.clone().or_else(|| b.clone());
    let exchange = first(&arguments.dead_letter_exchange, &policy.dead_letter_exchange);
    let overflow = arguments.overflow.or(operator.overflow).or(policy.overflow).unwrap_or_default();
    let limits = [arguments, policy, operator].into_iter().filter_map(|w| w.delivery_limit);
    let delivery_limit = match limits.clone().filter(|limit| *limit >= 0).min() {
        Some(limit) => Some(u32::try_from(limit).unwrap_or(u32::MAX)),
        None if limits.count() > 0 => None,
        None => Some(DELIVERY_LIMIT_DEFAULT),
    };
    // RabbitMQ falls back to at-most-once where publishes are not refused: dead letters kept in the
    // queue count towards its length, and dropping them from its head would lose what at-least-once
    // promises to keep.
    let at_least_once = is_quorum
        && arguments.dead_letter_at_least_once.or(policy.dead_letter_at_least_once).unwrap_or(false)
        && overflow == Overflow::RejectPublish;
    let retry = arguments.retry.or(operator.retry).or(policy.retry).flatten().filter(|_| is_quorum);
    let retry_min = || least(|w| w.retry_min_ms).unwrap_or(RETRY_MIN_MS_DEFAULT);
    Rules {
        message_ttl_ms: least(|w| w.message_ttl_ms),
        expires_ms: least(|w| w.expires_ms),
        declare_renews: !is_quorum,
        length_max: least(|w| w.length_max),
        length_bytes_max: least(|w| w.length_bytes_max),
        overflow,
        delivery_limit: delivery_limit.filter(|_| is_quorum),
        dead_letter: exchange.map(|exchange| DeadLetterRule {
            exchange,
            routing_key: first(&arguments.dead_letter_routing_key, &policy.dead_letter_routing_key),
            at_least_once,
        }),
        retry: retry.map(|which| RetryRule {
            which,
            min_ms: retry_min(),
            max_ms: least(|w| w.retry_max_ms).unwrap_or(u64::MAX).max(retry_min()),
        }),
        consumer_timeout_ms: least(|w| w.consumer_timeout_ms),
        consumer_disconnected_timeout_ms: least(|w| w.consumer_disconnected_timeout_ms).filter(|_| is_quorum),
        target_group_size: most(|w| w.target_group_size).filter(|_| is_quorum),
        levels: match (is_quorum, arguments.priority_max) {
            (true, _) => LevelRule::Strict,
            (false, None | Some(0)) => LevelRule::None,
            (false, Some(priority_max)) => LevelRule::UpTo(priority_max),
        },
        single_active: arguments.single_active.then_some(SingleActive { preempts: is_quorum }),
        dedup: arguments
            .deduplicates
            .or(policy.deduplicates)
            .unwrap_or(false)
            .then(|| DedupRule { window_ms: least(|w| w.deduplication_window_ms).unwrap_or(0) }),
        durability: [arguments, operator, policy].into_iter().find_map(|wishes| wishes.durability.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: &'static str) -> Value {
        Value::LongString(bytes::Bytes::from_static(word.as_bytes()))
    }

    fn wishes(fields: &[(&'static str, Value)]) -> Wishes {
        let mut table = Table::new();
        fields.iter().for_each(|(name, value)| table.push(*name, value.clone()));
        Wishes::read(&table, "")
    }

    #[test]
    fn the_smaller_number_holds_wherever_it_comes_from() {
        let arguments = wishes(&[("max-length", Value::I32(10)), ("message-ttl", Value::I64(500))]);
        let policy = wishes(&[("max-length", Value::I32(5)), ("expires", Value::I32(9))]);
        let operator = wishes(&[("message-ttl", Value::I32(100)), ("max-length", Value::I32(7))]);
        let rules = effective(QueueType::Classic, &arguments, Some(&policy), Some(&operator));
        assert_eq!((rules.length_max, rules.message_ttl_ms, rules.expires_ms), (Some(5), Some(100), Some(9)));
        assert!(effective(QueueType::Classic, &Wishes::default(), None, None).is_plain());
    }

    #[test]
    fn a_policy_deduplicates_where_the_declare_says_nothing_else() {
        let policy =
            wishes(&[("message-deduplication", Value::Bool(true)), ("deduplication-window-ms", Value::I32(70))]);
        let of = |fields: &[(&'static str, Value)]| {
            effective(QueueType::Classic, &wishes(fields), Some(&policy), None).dedup.map(|rule| rule.window_ms)
        };
        assert_eq!(of(&[]), Some(70));
        assert_eq!(of(&[("deduplication-window-ms", Value::I32(50))]), Some(50), "the shorter window holds");
        assert_eq!(of(&[("message-deduplication", Value::Bool(false))]), None, "its declarer does not want it");
    }

    #[test]
    fn a_level_of_durability_comes_with_its_bounds_from_the_declare_before_the_operator_before_a_policy() {
        let policy = wishes(&[
            ("durability", text("selective")),
            ("durability-value-header", text("amount")),
            ("durability-value-cap", Value::I64(70)),
        ]);
        let operator = wishes(&[("durability", text("leader-synced"))]);
        let of = |fields: &[(&'static str, Value)], operator| {
            effective(QueueType::Quorum, &wishes(fields), Some(&policy), operator).durability
        };
        let bounds = ValueCap { header: Name::from("amount"), cap: 70 };
        let selective = Durability::Selective(Selective { value: Some(bounds), interval_ms: None });
        assert_eq!(of(&[], None), Some(selective));
        assert_eq!(of(&[], Some(&operator)), Some(Durability::LeaderSynced));
        assert_eq!(of(&[("durability", text("written"))], Some(&operator)), Some(Durability::Written));
        assert!(effective(QueueType::Classic, &Wishes::default(), Some(&policy), None).is_plain(), "no machine looks");
    }

    #[test]
    fn of_group_sizes_the_larger_holds_and_of_times_without_a_node_the_shorter() {
        let mut table = Table::new();
        table.push("x-quorum-target-group-size", Value::I32(3));
        table.push("x-consumer-disconnected-timeout", Value::I32(900));
        let arguments = Wishes::read(&table, "x-");
        let policy = wishes(&[("target-group-size", Value::I32(5)), ("consumer-disconnected-timeout", Value::I32(70))]);
        let rules = effective(QueueType::Quorum, &arguments, Some(&policy), None);
        assert_eq!((rules.target_group_size, rules.consumer_disconnected_timeout_ms), (Some(5), Some(70)));
        let rules = effective(QueueType::Classic, &Wishes::default(), Some(&policy), None);
        assert_eq!((rules.target_group_size, rules.consumer_disconnected_timeout_ms), (None, None));
        assert!(rules.is_plain(), "a policy for all types costs a classic queue nothing");
    }

    #[test]
    fn a_word_of_the_arguments_holds_over_that_of_a_policy() {
        let arguments = wishes(&[("dead-letter-exchange", text("a"))]);
        let policy = wishes(&[("dead-letter-exchange", text("b")), ("dead-letter-routing-key", text("k"))]);
        let rule = effective(QueueType::Classic, &arguments, Some(&policy), None).dead_letter.expect("both name one");
        assert_eq!((&rule.exchange[..], rule.routing_key.as_deref()), (&b"a"[..], Some(&b"k"[..])));
        let operator = wishes(&[("overflow", text("reject-publish"))]);
        let policy = wishes(&[("overflow", text("drop-head"))]);
        let of = |arguments: Wishes| effective(QueueType::Quorum, &arguments, Some(&policy), Some(&operator)).overflow;
        assert_eq!(of(Wishes::default()), Overflow::RejectPublish);
        assert_eq!(of(wishes(&[("overflow", text("drop-head"))])), Overflow::DropHead);
    }

    #[test]
    fn a_quorum_queue_has_a_delivery_limit_unless_somebody_says_that_it_has_none() {
        let of = |queue_type, arguments: &Wishes, policy: Option<&Wishes>| {
            effective(queue_type, arguments, policy, None).delivery_limit
        };
        let (none, unlimited) = (Wishes::default(), wishes(&[("delivery-limit", Value::I32(-1))]));
        let three = wishes(&[("delivery-limit", Value::I32(3))]);
        assert_eq!(of(QueueType::Quorum, &none, None), Some(DELIVERY_LIMIT_DEFAULT));
        assert_eq!(of(QueueType::Quorum, &unlimited, None), None);
        assert_eq!(of(QueueType::Quorum, &unlimited, Some(&three)), Some(3));
        assert_eq!(of(QueueType::Classic, &none, Some(&three)), None);
    }

    #[test]
    fn at_least_once_needs_a_quorum_queue_that_refuses_what_is_too_much() {
        let of = |queue_type, overflow| {
            let words = [
                ("dead-letter-exchange", text("x")),
                ("dead-letter-strategy", text("at-least-once")),
                ("overflow", text(overflow)),
            ];
            effective(queue_type, &wishes(&words), None, None).dead_letter.expect("it has one").at_least_once
        };
        assert!(of(QueueType::Quorum, "reject-publish"));
        assert!(!of(QueueType::Quorum, "drop-head"));
        assert!(!of(QueueType::Classic, "reject-publish"));
    }
}

/// What a consumer's arguments ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerSettings {
    /// `x-priority`: higher goes first while it has credit. Beyond 32 bits it counts as the nearest
    /// number that has them.
    pub priority: i32,
    /// `x-consumer-timeout`: how long it may hold a message, in milliseconds; 0 is for ever.
    pub timeout_ms: Option<u64>,
}

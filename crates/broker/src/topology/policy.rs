//! Policies: settings for every queue and exchange of a virtual host whose name matches a pattern.
//!
//! Invariant: a policy that exists holds only keys of RabbitMQ with values that RabbitMQ takes, and
//! only such as this version honours; of those that match a thing the one of the highest priority
//! holds, alone. A key that the thing's type does not know says nothing, because a policy matches
//! things of all types.

use std::collections::BTreeMap;

use amqp::{Table, Value};

use super::arguments::{
    self, DEDUPLICATION_WINDOW_MS_MAX, DURABILITY_INTERVAL_MS_MAX, EXPIRY_MS_MAX, GROUP_SIZE_MAX, LEVELS,
};
use super::name::{NAME_BYTES_MAX, Name};
use super::pattern::Pattern;
use super::settings::QueueType;
use super::wording::{self, integer};

/// Policies of one virtual host, and as many operator policies.
pub const POLICIES_MAX: usize = 1 << 12;

/// What a policy may match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyTo {
    /// Queues and exchanges.
    All,
    /// Exchanges.
    Exchanges,
    /// Queues of every type.
    Queues,
    /// Queues of one type.
    ClassicQueues,
    /// Queues of one type.
    QuorumQueues,
    /// Streams, which this version has not: it matches nothing.
    Streams,
}

impl ApplyTo {
    /// All of them; their places are their numbers in the log.
    pub const ALL: [ApplyTo; 6] = [
        ApplyTo::All,
        ApplyTo::Exchanges,
        ApplyTo::Queues,
        ApplyTo::ClassicQueues,
        ApplyTo::QuorumQueues,
        ApplyTo::Streams,
    ];

    /// The word in definitions.
    pub fn word(self) -> &'static str {
        match self {
            ApplyTo::All => "all",
            ApplyTo::Exchanges => "exchanges",
            ApplyTo::Queues => "queues",
            ApplyTo::ClassicQueues => "classic_queues",
            ApplyTo::QuorumQueues => "quorum_queues",
            ApplyTo::Streams => "streams",
        }
    }

    /// Whether a queue of this type may be matched.
    pub fn takes_queue(self, queue_type: QueueType) -> bool {
        match self {
            ApplyTo::All | ApplyTo::Queues => true,
            ApplyTo::ClassicQueues => queue_type == QueueType::Classic,
            ApplyTo::QuorumQueues => queue_type == QueueType::Quorum,
            ApplyTo::Exchanges | ApplyTo::Streams => false,
        }
    }

    /// Whether an exchange may be matched.
    pub fn takes_exchange(self) -> bool {
        matches!(self, ApplyTo::All | ApplyTo::Exchanges)
    }
}

/// One policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Searched for in the names.
    pub pattern: Pattern,
    /// Which things it may match.
    pub apply_to: ApplyTo,
    /// Of several that match, the highest holds.
    pub priority: i64,
    /// What it says, under RabbitMQ's keys; checked by [`check_definition`].
    pub definition: Table,
}

impl Policy {
    /// What an exchange of this policy falls back to.
    pub fn alternate_exchange(&self) -> Option<&[u8]> {
        match self.definition.get("alternate-exchange") {
            Some(Value::LongString(name)) => Some(name),
            _ => None,
        }
    }
}

/// The policy that holds for a thing, and its name: of those that take and match it the one of the
/// highest priority; among equals the first by name, so that every member chooses alike.
pub(super) fn named<'a>(
    policies: &'a BTreeMap<Name, Policy>,
    name: &[u8],
    takes: impl Fn(ApplyTo) -> bool,
) -> Option<(&'a Name, &'a Policy)> {
    let mut best: Option<(&Name, &Policy)> = None;
    for (called, policy) in policies.iter().filter(|(_, policy)| takes(policy.apply_to)) {
        if best.is_none_or(|(_, best)| policy.priority > best.priority) && policy.pattern.matches(name) {
            best = Some((called, policy));
        }
    }
    best
}

/// The policies that hold for a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldPolicies<'a> {
    /// The name of the policy.
    pub policy: Option<&'a Name>,
    /// The name of the operator policy.
    pub operator_policy: Option<&'a Name>,
    /// What both say together: of two numbers the smaller, else the operator's word; `None` without
    /// any.
    pub definition: Option<Table>,
}

/// Why a definition is not lawful.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct WrongDefinition {
    /// The key that it is about.
    pub key: String,
    /// The rest of a sentence that begins with the key.
    pub reason: String,
}

/// What values a key takes.
#[derive(Clone, Copy)]
enum Rule {
    Name,
    /// A name that is not empty.
    NonEmpty,
    /// A whole number from the first to the second.
    Within(i64, i64),
    Bool,
    OneOf(&'static [&'static str]),
}

/// Whether this version does what a key says.
#[derive(Clone, Copy)]
enum Support {
    Honoured,
    /// As far as the queue argument of this name, which `arguments.rs` says.
    AsArgument,
    NotYet,
}
use Support::{AsArgument, Honoured, NotYet};

/// One key: whether an operator policy may have it, and what this version makes of it.
struct Key {
    name: &'static str,
    operator: bool,
    rule: Rule,
    support: Support,
}

const fn key(name: &'static str, operator: bool, rule: Rule, support: Support) -> Key {
    Key { name, operator, rule, support }
}

impl Key {
    fn is_honoured(&self) -> bool {
        match self.support {
            AsArgument => arguments::is_honoured(&format!("x-{}", self.name)),
            Honoured => true,
            NotYet => false,
        }
    }
}

const ANY: Rule = Rule::Within(0, i64::MAX);
const OVERFLOWS: &[&str] = &["drop-head", "reject-publish", "reject-publish-dlx"];
const LOCATORS: &[&str] = &["client-local", "balanced", "random", "least-leaders", "min-masters"];
const RETRIES: &[&str] = &["disabled", "all", "failed", "returned"];
const DURABILITY: &str = "durability";
const VALUE_HEADER: &str = "durability-value-header";
const VALUE_CAP: &str = "durability-value-cap";
const INTERVAL_MS: &str = "durability-interval-ms";

/// Ours, and the keys of RabbitMQ 4.3's policies, streams, federation and the mirrored queues of
/// RabbitMQ 3 included, so that a name that is merely not there yet is told from one that is
/// misspelled.
#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("alternate-exchange",             false, Rule::Name, Honoured),
    key("dead-letter-exchange",           false, Rule::Name, AsArgument),
    key("dead-letter-routing-key",        false, Rule::Name, AsArgument),
    key("dead-letter-strategy",           false, Rule::OneOf(&["at-most-once", "at-least-once"]), AsArgument),
    key("message-ttl",                    true,  Rule::Within(0, EXPIRY_MS_MAX), AsArgument),
    key("expires",                        true,  Rule::Within(1, EXPIRY_MS_MAX), AsArgument),
    key("max-length",                     true,  ANY, AsArgument),
    key("max-length-bytes",               true,  ANY, AsArgument),
    key("overflow",                       true,  Rule::OneOf(OVERFLOWS), AsArgument),
    key("delivery-limit",                 true,  Rule::Within(i64::MIN, i64::MAX), AsArgument),
    key("delayed-retry-type",             true,  Rule::OneOf(RETRIES), AsArgument),
    key("delayed-retry-min",              true,  ANY, AsArgument),
    key("delayed-retry-max",              true,  ANY, AsArgument),
    key("max-in-memory-length",           true,  ANY, AsArgument),
    key("max-in-memory-bytes",            true,  ANY, AsArgument),
    key("queue-mode",                     false, Rule::OneOf(&["default", "lazy"]), AsArgument),
    key("queue-version",                  true,  Rule::Within(1, 2), AsArgument),
    key("queue-leader-locator",           false, Rule::OneOf(LOCATORS), AsArgument),
    key("target-group-size",              true,  Rule::Within(1, GROUP_SIZE_MAX), Honoured),
    key("consumer-timeout",               false, ANY, AsArgument),
    key("consumer-disconnected-timeout",  false, ANY, AsArgument),
    // Leveret's own.
    key("message-deduplication",          false, Rule::Bool, AsArgument),
    key("deduplication-window-ms",        false, Rule::Within(1, DEDUPLICATION_WINDOW_MS_MAX), AsArgument),
    key(DURABILITY,                       true,  Rule::OneOf(LEVELS), AsArgument),
    key(VALUE_HEADER,                     true,  Rule::NonEmpty, AsArgument),
    key(VALUE_CAP,                        true,  Rule::Within(1, i64::MAX), AsArgument),
    key(INTERVAL_MS,                      true,  Rule::Within(1, DURABILITY_INTERVAL_MS_MAX), AsArgument),
    key("initial-cluster-size",           false, ANY, NotYet),
    key("max-age",                        false, Rule::Name, NotYet),
    key("stream-max-segment-size-bytes",  false, ANY, NotYet),
    key("stream-filter-size-bytes",       false, ANY, NotYet),
    key("federation-upstream",            false, Rule::Name, NotYet),
    key("federation-upstream-set",        false, Rule::Name, NotYet),
    key("federation-upstream-pattern",    false, Rule::Name, NotYet),
    key("ha-mode",                        false, Rule::Name, NotYet),
    key("ha-params",                      false, ANY, NotYet),
    key("ha-sync-mode",                   false, Rule::Name, NotYet),
    key("ha-sync-batch-size",             false, ANY, NotYet),
    key("ha-promote-on-shutdown",         false, Rule::Name, NotYet),
    key("ha-promote-on-failure",          false, Rule::Name, NotYet),
];

/// Whether a key asks for what another broker has and this version has not: streams, federation,
/// mirrored queues.
pub fn is_unsupported_key(name: &[u8]) -> bool {
    KEYS.iter().any(|key| key.name.as_bytes() == name && !key.is_honoured())
}

/// The keys that a policy, or an operator policy, may have: those that this version honours.
pub fn policy_keys(operator: bool) -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter(move |key| key.is_honoured() && (key.operator || !operator)).map(|key| key.name)
}

/// Keys of a definition that RabbitMQ does not recognise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrecognised {
    /// In the order of the definition, each with whether policies that are no operator's have it.
    pub keys: Vec<(String, bool)>,
    /// What RabbitMQ says of them: `[{<<"max-lenght">>,5}] are not recognised policy settings`.
    pub text: String,
}

/// The keys of a definition that are none of a policy, or of an operator policy, in any broker; `None` where there are
/// only others.
pub fn unrecognised(definition: &Table, operator: bool) -> Option<Unrecognised> {
    let known = |name: &[u8]| KEYS.iter().find(|key| key.name.as_bytes() == name);
    let unknown = definition.iter().filter(|(name, _)| known(name).is_none_or(|key| operator && !key.operator));
    let unknown: Vec<(&[u8], &Value)> = unknown.map(|(name, value)| (&name[..], value)).collect();
    let terms: Vec<String> =
        unknown.iter().map(|(name, value)| format!("{{{},{}}}", wording::binary(name), wording::term(value))).collect();
    let keys = unknown.iter().map(|(name, _)| (String::from_utf8_lossy(name).into_owned(), known(name).is_some()));
    let text = format!("[{}] are not recognised policy settings", terms.join(","));
    Some(Unrecognised { keys: keys.collect(), text }).filter(|unknown| !unknown.keys.is_empty())
}

/// Checks the definition of a policy, or of an operator policy. One without a key holds like any
/// other, and says nothing.
///
/// Errors: the first key that is not known, has a value that it does not take, or asks for what
/// this version does not do; or one that makes no sense beside the others.
pub fn check_definition(definition: &Table, operator: bool) -> Result<(), WrongDefinition> {
    check_keys(definition, operator)?;
    check_bounds(definition)
}

/// Whether a definition says something about durability.
pub(super) fn names_durability(definition: &Table) -> bool {
    [DURABILITY, VALUE_HEADER, VALUE_CAP, INTERVAL_MS].iter().any(|key| definition.get(key).is_some())
}

/// *Selective* and its bounds come together, as in a declare: a level with the bounds of another policy would
/// promise what nobody wrote.
fn check_bounds(definition: &Table) -> Result<(), WrongDefinition> {
    let wrong = |key: &str, reason: &str| Err(WrongDefinition { key: key.to_owned(), reason: reason.to_owned() });
    let is_given = |key: &str| definition.get(key).is_some();
    let is_selective = matches!(definition.get(DURABILITY), Some(Value::LongString(word)) if &word[..] == b"selective");
    match [VALUE_HEADER, VALUE_CAP, INTERVAL_MS].into_iter().find(|key| is_given(key)) {
        Some(key) if !is_selective => wrong(key, "makes sense only beside durability = selective"),
        None if is_selective => wrong(
            DURABILITY,
            "selective needs a bound: durability-value-header with durability-value-cap, or durability-interval-ms",
        ),
        _ if is_given(VALUE_HEADER) && !is_given(VALUE_CAP) => {
            wrong(VALUE_HEADER, "needs durability-value-cap beside it")
        }
        _ if is_given(VALUE_CAP) && !is_given(VALUE_HEADER) => {
            wrong(VALUE_CAP, "needs durability-value-header beside it")
        }
        _ => Ok(()),
    }
}

/// Checks each key of a definition for itself. Errors: as [`check_definition`].
pub fn check_keys(definition: &Table, operator: bool) -> Result<(), WrongDefinition> {
    let wrong =
        |key: &[u8], reason: String| Err(WrongDefinition { key: String::from_utf8_lossy(key).into_owned(), reason });
    for (name, value) in definition.iter() {
        let Some(key) = KEYS.iter().find(|key| key.name.as_bytes() == &name[..]) else {
            return wrong(name, "is not a policy setting that RabbitMQ recognises".to_owned());
        };
        if operator && !key.operator {
            return wrong(name, "is not a setting of operator policies".to_owned());
        }
        if let Err(expected) = key.rule.check(value) {
            return wrong(name, format!("{expected} is expected"));
        }
        if !key.is_honoured() && name.starts_with(b"ha-") {
            return wrong(
                name,
                "has no meaning here: no queue is mirrored, and a quorum queue is replicated".to_owned(),
            );
        }
        if !key.is_honoured() {
            return wrong(name, "is not supported by this version yet".to_owned());
        }
    }
    Ok(())
}

impl Rule {
    fn check(self, value: &Value) -> Result<(), String> {
        match (self, value) {
            (Rule::Name, Value::LongString(text)) if text.len() <= NAME_BYTES_MAX => Ok(()),
            (Rule::Name, _) => Err(format!("a text of at most {NAME_BYTES_MAX} bytes")),
            (Rule::NonEmpty, Value::LongString(text)) if (1..=NAME_BYTES_MAX).contains(&text.len()) => Ok(()),
            (Rule::NonEmpty, _) => Err(format!("a text of 1 to {NAME_BYTES_MAX} bytes")),
            (Rule::OneOf(words), Value::LongString(text)) if words.iter().any(|w| w.as_bytes() == &text[..]) => Ok(()),
            (Rule::OneOf(words), _) => Err(format!("one of {}", words.join(", "))),
            (Rule::Bool, Value::Bool(_)) => Ok(()),
            (Rule::Bool, _) => Err("true or false".to_owned()),
            (Rule::Within(low, high), value) => match integer(value) {
                Some(number) if (low..=high).contains(&number) => Ok(()),
                _ if low == i64::MIN => Err("a whole number".to_owned()),
                _ if high == i64::MAX => Err(format!("a whole number from {low} on")),
                _ => Err(format!("a whole number from {low} to {high}")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn definition(fields: &[(&'static str, Value)]) -> Table {
        let mut table = Table::new();
        fields.iter().for_each(|(name, value)| table.push(*name, value.clone()));
        table
    }

    fn text(word: &'static str) -> Value {
        Value::LongString(bytes::Bytes::from_static(word.as_bytes()))
    }

    fn policy(pattern: &str, apply_to: ApplyTo, priority: i64) -> Policy {
        let definition = definition(&[("max-length", Value::I64(priority))]);
        Policy { pattern: Pattern::new(pattern).unwrap(), apply_to, priority, definition }
    }

    #[test]
    fn the_highest_priority_that_matches_holds_and_equals_go_by_name() {
        let policies = BTreeMap::from([
            (Name::from("a"), policy("^q", ApplyTo::Queues, 1)),
            (Name::from("b"), policy("^q", ApplyTo::All, 5)),
            (Name::from("c"), policy("^q", ApplyTo::QuorumQueues, 5)),
            (Name::from("d"), policy("^x", ApplyTo::All, 9)),
        ]);
        let matching =
            |name: &[u8], takes: &dyn Fn(ApplyTo) -> bool| named(&policies, name, takes).map(|(_, policy)| policy);
        let of = |name: &[u8], queue_type| matching(name, &|a| a.takes_queue(queue_type));
        assert_eq!(of(b"q1", QueueType::Quorum), Some(&policies[&Name::from("b")]));
        assert_eq!(of(b"r", QueueType::Classic), None);
        assert_eq!(matching(b"x", &ApplyTo::takes_exchange).unwrap().priority, 9);
        assert_eq!(matching(b"q", &|a| a == ApplyTo::Queues).unwrap().priority, 1);
    }

    #[test]
    fn keys_are_rabbitmqs_with_values_that_it_takes() {
        let check = |fields: &[(&'static str, Value)], operator| {
            check_definition(&definition(fields), operator).map_err(|error| error.to_string())
        };
        check(&[("max-in-memory-length", Value::I64(0)), ("queue-version", Value::I64(2))], true).unwrap();
        check(&[("queue-mode", text("lazy"))], false).unwrap();
        let refused = |fields: &[(&'static str, Value)], operator| check(fields, operator).unwrap_err();
        assert_eq!(
            refused(&[("max-lenght", Value::I64(1))], false),
            "max-lenght: is not a policy setting that RabbitMQ recognises"
        );
        assert_eq!(
            refused(&[("expires", Value::I64(0))], false),
            "expires: a whole number from 1 to 315360000000 is expected"
        );
        assert_eq!(refused(&[("max-length", text("1"))], false), "max-length: a whole number from 0 on is expected");
        assert_eq!(
            refused(&[("alternate-exchange", text("ae"))], true),
            "alternate-exchange: is not a setting of operator policies"
        );
        assert_eq!(
            refused(&[("ha-mode", text("all"))], false),
            "ha-mode: has no meaning here: no queue is mirrored, and a quorum queue is replicated"
        );
        assert_eq!(
            refused(&[("message-deduplication", text("yes"))], false),
            "message-deduplication: true or false is expected"
        );
        check(&[("message-deduplication", Value::Bool(true)), ("deduplication-window-ms", Value::I64(5))], false)
            .unwrap();
        let selective = ("durability", text("selective"));
        let (header, cap) = (("durability-value-header", text("amount")), ("durability-value-cap", Value::I64(1)));
        check(&[("durability", text("leader-synced"))], true).unwrap();
        check(&[cap.clone(), selective.clone(), header.clone()], false).unwrap();
        check(&[("durability-interval-ms", Value::I64(5)), selective.clone()], false).unwrap();
        assert_eq!(
            refused(&[("durability", text("soon"))], false),
            "durability: one of synced, written, leader-synced, leader-written, selective is expected"
        );
        assert_eq!(
            refused(&[selective.clone(), cap.clone()], false),
            "durability-value-cap: needs durability-value-header beside it"
        );
        assert_eq!(
            refused(&[header.clone(), cap, ("durability", text("synced"))], false),
            "durability-value-header: makes sense only beside durability = selective"
        );
        assert_eq!(
            refused(&[selective], false),
            "durability: selective needs a bound: durability-value-header with durability-value-cap, or durability-interval-ms"
        );
        assert!(
            is_unsupported_key(b"ha-mode") && !is_unsupported_key(b"max-length") && !is_unsupported_key(b"ha-mood")
        );
    }
    #[test]
    fn keys_that_no_broker_knows_are_told_in_rabbitmqs_words() {
        let told = |fields: &[(&'static str, Value)], operator| unrecognised(&definition(fields), operator);
        let found =
            told(&[("max-lenght", Value::I64(5)), ("max-length", Value::I64(5)), ("x", text("y"))], false).unwrap();
        assert_eq!(found.text, "[{<<\"max-lenght\">>,5},{<<\"x\">>,<<\"y\">>}] are not recognised policy settings");
        assert_eq!(found.keys, [("max-lenght".to_owned(), false), ("x".to_owned(), false)]);
        // Other brokers know it, or it is a policy's and not an operator's.
        assert_eq!(told(&[("ha-mode", text("all")), ("queue-mode", text("lazy"))], false), None);
        let found = told(&[("queue-mode", text("lazy"))], true).unwrap();
        assert_eq!(found.keys, [("queue-mode".to_owned(), true)]);
    }

    #[test]
    fn the_keys_that_are_named_are_those_that_are_taken() {
        let named = |operator| policy_keys(operator).collect::<Vec<_>>();
        assert!(named(false).contains(&"queue-mode") && !named(true).contains(&"queue-mode"));
        assert!(named(true).contains(&"max-length") && !named(false).contains(&"ha-mode"));
        assert!(named(false).iter().all(|name| !is_unsupported_key(name.as_bytes())));
    }
}

//! The types of exchange: how each chooses among its bindings, and what it asks of its arguments
//! and bindings.
//!
//! Invariant: an argument that means something to a type is checked when the exchange is declared,
//! so a route never meets a wrong one. Whatever a choice depends on besides the message (a weight,
//! an order) follows from names and keys alone, never from the order of declares, so it is the same
//! after a restart and on every node.

use amqp::{Table, Value};

use super::name::Name;
use super::refusal::{Refusal, Resource};
use super::settings::QueueType;
use super::wording::{integer, term, type_name};
use super::{headers, selector, topic};

/// The largest weight of a binding to an `x-consistent-hash` exchange: RabbitMQ 4's.
pub const BINDING_WEIGHT_MAX: u32 = 10_000;
/// How many messages an `x-recent-history` exchange keeps if its declare does not say: RabbitMQ's
/// number.
pub const HISTORY_LENGTH_DEFAULT: u32 = 20;
/// The most that it may be asked to keep. RabbitMQ has no bound; a history lives in memory, so here
/// it needs one.
pub const HISTORY_LENGTH_MAX: u32 = 10_000;

const HASH_HEADER: &str = "hash-header";
const HASH_PROPERTY: &str = "hash-property";
const DELAYED_TYPE: &str = "x-delayed-type";
const HISTORY_LENGTH: &str = "x-recent-history-length";

/// How an exchange chooses among its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExchangeType {
    /// By equal routing key.
    Direct,
    /// All.
    Fanout,
    /// By pattern over the words of the routing key.
    Topic,
    /// By the message's headers.
    Headers,
    /// One, by a hash of the message, in proportion to the weights that are the binding keys.
    ConsistentHash,
    /// One, by a hash of the routing key; all count alike.
    ModulusHash,
    /// Any one.
    Random,
    /// Any one classic queue of this node.
    LocalRandom,
    /// All; and a queue that is bound later gets the last messages first.
    RecentHistory,
    /// As the type in its argument `x-delayed-type`. Messages wait in the queues that they go to,
    /// as the header `x-delay` says, which it does on any exchange: this type is there for those
    /// who declare it.
    DelayedMessage,
    /// By an expression over the message's headers, in the argument of the binding.
    JmsTopic,
}

impl ExchangeType {
    /// All of them, in the order of their numbers in commands and snapshots.
    pub const ALL: [ExchangeType; 11] = [
        ExchangeType::Direct,
        ExchangeType::Fanout,
        ExchangeType::Topic,
        ExchangeType::Headers,
        ExchangeType::ConsistentHash,
        ExchangeType::ModulusHash,
        ExchangeType::Random,
        ExchangeType::LocalRandom,
        ExchangeType::RecentHistory,
        ExchangeType::DelayedMessage,
        ExchangeType::JmsTopic,
    ];

    /// The type's word in declares and texts.
    pub fn word(self) -> &'static str {
        match self {
            ExchangeType::Direct => "direct",
            ExchangeType::Fanout => "fanout",
            ExchangeType::Topic => "topic",
            ExchangeType::Headers => "headers",
            ExchangeType::ConsistentHash => "x-consistent-hash",
            ExchangeType::ModulusHash => "x-modulus-hash",
            ExchangeType::Random => "x-random",
            ExchangeType::LocalRandom => "x-local-random",
            ExchangeType::RecentHistory => "x-recent-history",
            ExchangeType::DelayedMessage => "x-delayed-message",
            ExchangeType::JmsTopic => "x-jms-topic",
        }
    }

    /// The type that a declare names. Errors: 406 on the channel, as RabbitMQ 4 has it (3.x closed
    /// the connection, 503).
    pub fn parse(word: &[u8]) -> Result<Self, Refusal> {
        Self::ALL.into_iter().find(|t| t.word().as_bytes() == word).ok_or_else(|| {
            Refusal::precondition_failed(&format!("unknown exchange type '{}'", String::from_utf8_lossy(word)))
        })
    }

    /// Its number in commands and snapshots.
    pub(super) fn number(self) -> u8 {
        let at = Self::ALL.iter().position(|t| *t == self).expect("the list has all of them");
        u8::try_from(at).expect("there are few types")
    }

    /// The type of this number.
    pub(super) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// What an `x-consistent-hash` exchange hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashOn {
    /// The routing key, the message's own: CC and BCC do not count.
    #[default]
    RoutingKey,
    /// A header of this name.
    Header(Name),
    /// The property `correlation_id`.
    CorrelationId,
    /// The property `message_id`.
    MessageId,
    /// The property `timestamp`.
    Timestamp,
}

/// What the arguments of an exchange mean to its type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TypeSettings {
    pub(super) hash_on: HashOn,
    /// How many messages it keeps; 0 unless it is an `x-recent-history` exchange.
    pub(super) history_length: u32,
    /// The type that an `x-delayed-message` exchange routes as.
    pub(super) routes_as: Option<ExchangeType>,
}

/// Reads the arguments that mean something to this type. Errors: 406 with RabbitMQ's texts.
pub(super) fn settings(kind: ExchangeType, resource: Resource<'_>, table: &Table) -> Result<TypeSettings, Refusal> {
    match kind {
        ExchangeType::ConsistentHash => {
            hash_on(resource, table).map(|hash_on| TypeSettings { hash_on, ..TypeSettings::default() })
        }
        ExchangeType::RecentHistory => {
            history_length(table).map(|history_length| TypeSettings { history_length, ..TypeSettings::default() })
        }
        ExchangeType::DelayedMessage => {
            delayed_type(table).map(|kind| TypeSettings { routes_as: Some(kind), ..TypeSettings::default() })
        }
        _ => Ok(TypeSettings::default()),
    }
}

/// The type in `x-delayed-type`: any that chooses by message and bindings alone. Errors: 406 with
/// the plugin's text.
fn delayed_type(table: &Table) -> Result<ExchangeType, Refusal> {
    let found = match table.get(DELAYED_TYPE) {
        Some(Value::LongString(word)) => ExchangeType::parse(word).ok(),
        _ => None,
    };
    let is_lawful = |kind: &ExchangeType| !matches!(kind, ExchangeType::DelayedMessage | ExchangeType::RecentHistory);
    found.filter(is_lawful).ok_or_else(|| {
        Refusal::precondition_failed(&format!("Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"))
    })
}

fn hash_on(resource: Resource<'_>, table: &Table) -> Result<HashOn, Refusal> {
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(Value::LongString(text)) => Ok(Some(text)),
        // RabbitMQ's exchange process dies of it and takes the connection along (541).
        Some(other) => Err(Refusal::precondition_failed(&format!(
            "invalid type '{}' for arg '{key}' in {resource}",
            type_name(other)
        ))),
    };
    match (text(HASH_HEADER)?, text(HASH_PROPERTY)?) {
        (Some(_), Some(_)) => Err(Refusal::precondition_failed("hash-header and hash-property are mutually exclusive")),
        (None, None) => Ok(HashOn::RoutingKey),
        // No header has a longer name, so none is ever found: all messages hash alike, as without
        // the header.
        (Some(header), None) => Ok(HashOn::Header(Name::new(&header[..header.len().min(super::NAME_BYTES_MAX)]))),
        (None, Some(property)) => match &property[..] {
            b"correlation_id" => Ok(HashOn::CorrelationId),
            b"message_id" => Ok(HashOn::MessageId),
            b"timestamp" => Ok(HashOn::Timestamp),
            other => {
                Err(Refusal::precondition_failed(&format!("Unsupported property: {}", String::from_utf8_lossy(other))))
            }
        },
    }
}

fn history_length(table: &Table) -> Result<u32, Refusal> {
    let Some(value) = table.get(HISTORY_LENGTH) else { return Ok(HISTORY_LENGTH_DEFAULT) };
    // RabbitMQ takes the four signed types and no other.
    let signed = matches!(value, Value::I8(_) | Value::I16(_) | Value::I32(_) | Value::I64(_));
    let length = integer(value).filter(|length| signed && *length > 0).ok_or_else(|| {
        let text = format!("Invalid argument {}, '{HISTORY_LENGTH}' must be a positive integer", term(value));
        Refusal::precondition_failed(&text)
    })?;
    u32::try_from(length).ok().filter(|length| *length <= HISTORY_LENGTH_MAX).ok_or_else(|| {
        let text = format!("Invalid argument {length}, '{HISTORY_LENGTH}' is at most {HISTORY_LENGTH_MAX} here");
        Refusal::precondition_failed(&text)
    })
}

/// Whether a binding is lawful for this type of source; `queue` is the type of the queue it leads
/// to, if it leads to one. Errors: 406 with RabbitMQ's texts.
pub(super) fn check_binding(
    kind: ExchangeType,
    key: &[u8],
    table: &Table,
    queue: Option<QueueType>,
) -> Result<(), Refusal> {
    match kind {
        ExchangeType::Headers => headers::check(table),
        ExchangeType::JmsTopic => selector::check(table),
        ExchangeType::Topic => match topic::hash_wildcards(key) {
            n if n > topic::TOPIC_HASH_WILDCARDS_MAX => Err(Refusal::precondition_failed(&format!(
                "Topic binding key '{}' uses {n} '#' wildcards, at most {} are allowed",
                String::from_utf8_lossy(key),
                topic::TOPIC_HASH_WILDCARDS_MAX
            ))),
            _ => Ok(()),
        },
        ExchangeType::ConsistentHash => weight(key).map(|_| ()),
        ExchangeType::LocalRandom if !key.is_empty() => Err(Refusal::precondition_failed(&format!(
            "Non empty binding '{}' key not permitted",
            String::from_utf8_lossy(key)
        ))),
        ExchangeType::LocalRandom => match queue {
            Some(QueueType::Classic) => Ok(()),
            Some(other) => Err(Refusal::precondition_failed(&format!(
                "Queue type {} not valid for this exchange type",
                other.module()
            ))),
            None => Err(Refusal::precondition_failed("Destination not found")),
        },
        _ => Ok(()),
    }
}

/// The weight that a binding key of an `x-consistent-hash` exchange says. Errors: 406 with
/// RabbitMQ's texts.
pub(super) fn weight(key: &[u8]) -> Result<u32, Refusal> {
    // Erlang's integers: a sign, then digits; more digits than fit are a number all the same,
    // though not a lawful one.
    let digits = key.strip_prefix(b"+").or_else(|| key.strip_prefix(b"-")).unwrap_or(key);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        let key = term(&Value::LongString(bytes::Bytes::copy_from_slice(key)));
        return Err(Refusal::precondition_failed(&format!("The binding key must be an integer: {key}")));
    }
    let number = digits.iter().fold(0u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    if key[0] == b'-' || number == 0 {
        return Err(Refusal::precondition_failed("The binding key must be greater than 0"));
    }
    u32::try_from(number)
        .ok()
        .filter(|weight| *weight <= BINDING_WEIGHT_MAX)
        .ok_or_else(|| Refusal::precondition_failed(&format!("The binding key must not exceed {BINDING_WEIGHT_MAX}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_type_has_a_word_and_a_number_of_its_own() {
        for (at, kind) in ExchangeType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(kind.number()), at);
            assert_eq!(ExchangeType::of_number(kind.number()), Some(kind));
            assert_eq!(ExchangeType::parse(kind.word().as_bytes()).unwrap(), kind);
        }
        assert_eq!(ExchangeType::of_number(11), None);
        let refusal = ExchangeType::parse(b"x-nothing").unwrap_err();
        assert_eq!(refusal.text, "PRECONDITION_FAILED - unknown exchange type 'x-nothing'");
    }

    #[test]
    fn a_delayed_exchange_routes_as_the_type_that_it_names() {
        let mut table = Table::new();
        table.push("x-delayed-type", Value::LongString(bytes::Bytes::from_static(b"topic")));
        assert_eq!(delayed_type(&table).unwrap(), ExchangeType::Topic);
        for word in [&b"x-delayed-message"[..], b"x-recent-history", b"carrot", b""] {
            let mut table = Table::new();
            table.push("x-delayed-type", Value::LongString(bytes::Bytes::copy_from_slice(word)));
            let text = delayed_type(&table).unwrap_err().text;
            assert_eq!(
                text,
                "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"
            );
        }
        assert!(delayed_type(&Table::new()).is_err());
    }

    #[test]
    fn a_weight_is_a_number_from_1_to_10000() {
        for (key, wanted) in [("1", 1), ("+7", 7), ("0010", 10), ("10000", 10_000)] {
            assert_eq!(weight(key.as_bytes()).unwrap(), wanted);
        }
        let text = |key: &[u8]| weight(key).unwrap_err().text;
        assert_eq!(text(b""), "PRECONDITION_FAILED - The binding key must be an integer: <<>>");
        assert_eq!(text(b"1.5"), "PRECONDITION_FAILED - The binding key must be an integer: <<\"1.5\">>");
        assert_eq!(text(b"-3"), "PRECONDITION_FAILED - The binding key must be greater than 0");
        assert_eq!(text(b"0"), "PRECONDITION_FAILED - The binding key must be greater than 0");
        for key in ["10001", "99999999999999999999999"] {
            assert_eq!(text(key.as_bytes()), "PRECONDITION_FAILED - The binding key must not exceed 10000");
        }
    }
}

//! What a route may ask about its message, besides exchange and routing keys.
//!
//! Invariant: nothing is asked that the exchanges on the way do not need, so whoever asks for a
//! route learns from the calls whether it holds for other messages with the same keys.

use amqp::{Table, Value};

use super::exchange::Exchange;
use super::exchange_type::HashOn;
use super::message_headers::MessageHeaders;
use super::wording::{integer, term};
use crate::ids::VhostId;

/// A message on its way to an exchange.
#[derive(Clone, Copy)]
pub struct RouteRequest<'a> {
    /// The virtual host of exchange and queues.
    pub vhost: VhostId,
    /// The exchange that it was published to.
    pub exchange: &'a [u8],
    /// Its routing key, then those of its headers CC and BCC; at least one.
    pub keys: &'a [&'a [u8]],
    /// The message itself.
    pub facts: &'a dyn MessageFacts,
}

/// A message, for the exchanges whose choice depends on it.
pub trait MessageFacts {
    /// Its headers; asked at most once a route.
    fn headers(&self) -> Option<Table>;

    /// Its property `correlation_id`, `message_id` or `timestamp`.
    fn property(&self, property: HashOn) -> Option<Value>;

    /// A random number, another one with each call.
    fn random(&self) -> u64;

    /// An exchange on the way keeps the message for queues that are bound later.
    fn remembered_by(&self, exchange: HistoryId, length: u32);
}

/// An `x-recent-history` exchange, told from one of the same name before or after it. A number of
/// this node's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HistoryId(pub(super) u64);

/// A message that has nothing but its routing key: for tests, and for questions about bindings.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFacts;

impl MessageFacts for NoFacts {
    fn headers(&self) -> Option<Table> {
        None
    }

    fn property(&self, _: HashOn) -> Option<Value> {
        None
    }

    fn random(&self) -> u64 {
        0
    }

    fn remembered_by(&self, _: HistoryId, _: u32) {}
}

/// The headers of a message, fetched when the first exchange asks for them.
pub(super) struct Headers<'a> {
    facts: &'a dyn MessageFacts,
    loaded: Option<MessageHeaders>,
}

impl<'a> Headers<'a> {
    pub(super) fn new(facts: &'a dyn MessageFacts) -> Self {
        Self { facts, loaded: None }
    }

    pub(super) fn get(&mut self) -> &MessageHeaders {
        self.loaded.get_or_insert_with(|| MessageHeaders::new(self.facts.headers()))
    }

    /// How many headers were fetched.
    pub(super) fn count(&self) -> usize {
        self.loaded.as_ref().map_or(0, MessageHeaders::count)
    }

    /// Whether the selectors and headers bindings on the way gave up; see [`super::message_headers::Steps`].
    pub(super) fn are_steps_used_up(&self) -> bool {
        self.loaded.as_ref().is_some_and(|headers| headers.steps.are_used_up())
    }

    /// The hash of what an exchange hashes. A message that has not got it hashes like all others
    /// that have not.
    pub(super) fn hash(&mut self, on: &HashOn, key: &[u8]) -> u64 {
        match on {
            HashOn::RoutingKey => stable_hash(key),
            HashOn::Header(name) => of_value(self.get().first(name)),
            property => of_value(self.facts.property(property.clone()).as_ref()),
        }
    }
}

fn of_value(value: Option<&Value>) -> u64 {
    match value {
        // A list counts as its first item, and a number as itself whatever its width: both as in
        // RabbitMQ.
        Some(Value::Array(items)) => of_value(items.first()),
        Some(Value::LongString(text) | Value::ByteArray(text)) => stable_hash(text),
        Some(value) => match integer(value) {
            Some(number) => stable_hash(&number.to_le_bytes()),
            None => stable_hash(term(value).as_bytes()),
        },
        None => stable_hash(b""),
    }
}

/// FNV-1a with a final mix. It decides which queue a message goes to, so it may not change with a
/// version of a library as the hash of the tables may: the order of a key's messages would break at
/// an upgrade.
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let folded = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(folded)
}

/// Spreads a number over all bits (the finalizer of SplitMix64).
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Exchange {
    /// What tells this exchange's history from others; `None` if it keeps none.
    pub fn history(&self) -> Option<HistoryId> {
        (self.settings.history_length > 0).then_some(HistoryId(self.created))
    }
}

//! A published message as the topology's routing asks about it.
//!
//! Invariant: what was asked is remembered, so a route that followed from this one message is not
//! kept for others.

use amqp::{Properties, Table, Value};
use broker::topology::{HashOn, HistoryId, MessageFacts};
use bytes::Bytes;
use std::cell::{Cell, RefCell};

/// See the module.
pub struct PublishedFacts<'a, R> {
    properties: &'a [u8],
    random: R,
    asked: Cell<bool>,
    histories: RefCell<Vec<(HistoryId, u32)>>,
}

impl<'a, R: Fn() -> u64> PublishedFacts<'a, R> {
    /// The facts of a message with these properties, which were checked when it came; `random`
    /// throws dice for it.
    pub fn new(properties: &'a [u8], random: R) -> Self {
        PublishedFacts { properties, random, asked: Cell::new(false), histories: RefCell::default() }
    }

    /// Whether the route depends on more than exchange and routing keys.
    pub(crate) fn were_asked(&self) -> bool {
        self.asked.get()
    }

    /// The exchanges that remember it.
    pub(crate) fn take_histories(self) -> Vec<(HistoryId, u32)> {
        self.histories.into_inner()
    }

    fn parsed(&self) -> Option<Properties<'a>> {
        self.asked.set(true);
        Properties::parse(self.properties).ok()
    }
}

impl<R: Fn() -> u64> MessageFacts for PublishedFacts<'_, R> {
    fn headers(&self) -> Option<Table> {
        self.parsed().and_then(|parsed| parsed.headers_table())
    }

    fn property(&self, property: HashOn) -> Option<Value> {
        let parsed = self.parsed()?;
        let text = |bytes: Option<&[u8]>| bytes.map(|bytes| Value::LongString(Bytes::copy_from_slice(bytes)));
        match property {
            HashOn::CorrelationId => text(parsed.correlation_id),
            HashOn::MessageId => text(parsed.message_id),
            HashOn::Timestamp => parsed.timestamp.map(Value::Timestamp),
            HashOn::RoutingKey | HashOn::Header(_) => None,
        }
    }

    fn random(&self) -> u64 {
        self.asked.set(true);
        (self.random)()
    }

    fn remembered_by(&self, exchange: HistoryId, length: u32) {
        self.histories.borrow_mut().push((exchange, length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_asked_for_anything_is_known_and_one_that_did_not_is_too() {
        let mut bytes = Vec::new();
        Properties { message_id: Some(b"m"), timestamp: Some(5), ..Properties::default() }.encode_to(&mut bytes);
        let facts = PublishedFacts::new(&bytes, || 7);
        assert!(!facts.were_asked());
        assert_eq!(facts.property(HashOn::MessageId), Some(Value::LongString(Bytes::from_static(b"m"))));
        assert_eq!(facts.property(HashOn::Timestamp), Some(Value::Timestamp(5)));
        assert_eq!(facts.property(HashOn::CorrelationId), None);
        assert!(facts.were_asked());
        let facts = PublishedFacts::new(&bytes, || 7);
        assert_eq!(facts.random(), 7);
        assert!(facts.were_asked());
    }
}

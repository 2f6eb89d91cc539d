//! What messages do, in RabbitMQ's words: `message_stats`, and how many there are.
//!
//! Invariant: a thing through which no message ever went has no `message_stats`, as in RabbitMQ.

use super::column::{
    ACK, CONFIRM, DELIVER, DELIVER_NO_ACK, DROP, GET, GET_EMPTY, GET_NO_ACK, PUBLISH, READY, REDELIVER, RETURN, UNACKED,
};
use super::details::{Details, Figure, Kind, Range, Ranges};
use super::store::{History, Store};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};
use std::borrow::Borrow;

/// Of what something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Of everything through which messages go out.
    Out,
    /// Of that and of what they come into.
    In,
    /// Of what publishers use.
    Publisher,
}

/// What there is to tell, with the name of its details, in the order of the names.
const TOLD: [(&str, &str, &[usize], Of); 12] = [
    ("ack", "ack_details", &[ACK], Of::Out),
    ("confirm", "confirm_details", &[CONFIRM], Of::Publisher),
    ("deliver", "deliver_details", &[DELIVER], Of::Out),
    ("deliver_get", "deliver_get_details", &[DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK], Of::Out),
    ("deliver_no_ack", "deliver_no_ack_details", &[DELIVER_NO_ACK], Of::Out),
    ("drop_unroutable", "drop_unroutable_details", &[DROP], Of::Publisher),
    ("get", "get_details", &[GET], Of::Out),
    ("get_empty", "get_empty_details", &[GET_EMPTY], Of::Out),
    ("get_no_ack", "get_no_ack_details", &[GET_NO_ACK], Of::Out),
    ("publish", "publish_details", &[PUBLISH], Of::In),
    ("redeliver", "redeliver_details", &[REDELIVER], Of::Out),
    ("return_unroutable", "return_unroutable_details", &[RETURN], Of::Publisher),
];

/// `message_stats`, written from the counts themselves: a list of thousands makes nothing in between.
pub(crate) struct MessageStats<'a, H> {
    of: &'a [H],
    store: &'a Store,
    range: Option<Range>,
    /// Whether it is also about what comes in, and about what comes from publishers.
    is_told: fn(Of) -> bool,
}

/// `message_stats` of all of `of` together; `None` where nothing ever went. Whether it is also about
/// what comes from publishers, the width of the histories says.
pub(crate) fn message_stats<'a, H: Borrow<History>>(
    of: &'a [H],
    store: &'a Store,
    ranges: &Ranges,
) -> Option<MessageStats<'a, H>> {
    let counts = |history: &H| {
        let messages = history.borrow().now().iter().enumerate().filter(|(at, _)| ![READY, UNACKED].contains(at));
        messages.take(DROP + 1).any(|(_, count)| *count > 0)
    };
    if !of.iter().any(counts) {
        return None;
    }
    let is_publisher = of.iter().all(|history| history.borrow().now().len() > DROP);
    let is_told: fn(Of) -> bool = if is_publisher { |_| true } else { |of| of != Of::Publisher };
    Some(MessageStats { of, store, range: ranges.messages, is_told })
}

/// What went out of a queue by one way: as `message_stats`, but for what came in.
pub(crate) fn out_of_queue<'a, H>(of: &'a [H], store: &'a Store, ranges: &Ranges) -> MessageStats<'a, H> {
    MessageStats { of, store, range: ranges.messages, is_told: |of| of == Of::Out }
}

impl<H: Borrow<History>> Serialize for MessageStats<'_, H> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut stats = serializer.serialize_map(None)?;
        for (name, details, columns, _) in TOLD.iter().filter(|(.., of)| (self.is_told)(*of)) {
            let figure = Figure { of: self.of, columns, kind: Kind::Counter };
            stats.serialize_entry(name, &figure.value())?;
            stats.serialize_entry(details, &figure.details(self.store, self.range))?;
        }
        stats.end()
    }
}

/// How fast the numbers of messages change: of all, of those that wait, and of those that somebody
/// holds.
pub(crate) fn lengths<H: Borrow<History>>(of: &[H], store: &Store, ranges: &Ranges) -> [(&'static str, Details); 3] {
    let named: [(&str, &[usize]); 3] = [
        ("messages_details", &[READY, UNACKED]),
        ("messages_ready_details", &[READY]),
        ("messages_unacknowledged_details", &[UNACKED]),
    ];
    named.map(|(name, columns)| (name, Figure { of, columns, kind: Kind::Gauge }.details(store, ranges.lengths)))
}

/// Counts of these names, each with its details.
pub(crate) fn rates_of<H: Borrow<History>>(
    of: &[H],
    named: &[(&str, usize)],
    kind: Kind,
    (store, range): (&Store, Option<Range>),
    into: &mut Map<String, Value>,
) {
    for (name, column) in named {
        Figure { of, columns: &[*column], kind }.put(into, name, store, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_stands_in_the_order_of_its_names_each_with_its_details() {
        let names: Vec<&str> = TOLD.iter().flat_map(|(name, details, ..)| [*name, *details]).collect();
        assert!(names.is_sorted(), "{names:?}");
        assert!(TOLD.iter().all(|(name, details, ..)| format!("{name}_details") == **details));
    }
}

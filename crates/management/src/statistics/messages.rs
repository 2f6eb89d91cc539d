//! What messages do, in RabbitMQ's words: `message_stats`, and how many there are.
//!
//! Invariant: a thing through which no message ever went has no `message_stats`, as in RabbitMQ.

use super::column::{
    ACK, CONFIRM, DELIVER, DELIVER_NO_ACK, DROP, GET, GET_EMPTY, GET_NO_ACK, PUBLISH, READY, REDELIVER, RETURN, UNACKED,
};
use super::details::{Figure, Kind, Ranges};
use super::store::{History, Store};
use serde_json::{Map, Value};

/// What is told of everything through which messages go out.
const OUT: [(&str, &[usize]); 8] = [
    ("ack", &[ACK]),
    ("deliver", &[DELIVER]),
    ("deliver_get", &[DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK]),
    ("deliver_no_ack", &[DELIVER_NO_ACK]),
    ("get", &[GET]),
    ("get_empty", &[GET_EMPTY]),
    ("get_no_ack", &[GET_NO_ACK]),
    ("redeliver", &[REDELIVER]),
];
/// What is told beside it of queues,
const IN: [(&str, &[usize]); 1] = [("publish", &[PUBLISH])];
/// and of what publishers use.
const PUBLISHER: [(&str, &[usize]); 3] =
    [("confirm", &[CONFIRM]), ("drop_unroutable", &[DROP]), ("return_unroutable", &[RETURN])];

/// `message_stats` of all of `of` together; `None` where nothing ever went. Whether it is also about
/// what comes from publishers, the width of the histories says.
pub(crate) fn message_stats(of: &[&History], store: &Store, ranges: &Ranges) -> Option<Value> {
    let counts = |history: &&History| {
        let messages = history.now().iter().enumerate().filter(|(at, _)| ![READY, UNACKED].contains(at));
        messages.take(DROP + 1).any(|(_, count)| *count > 0)
    };
    if !of.iter().any(counts) {
        return None;
    }
    let is_publisher = of.iter().all(|history| history.now().len() > DROP);
    let publisher = PUBLISHER.iter().filter(|_| is_publisher);
    let mut stats = Map::new();
    for (name, columns) in OUT.iter().chain(&IN).chain(publisher) {
        let figure = Figure { of, columns, kind: Kind::Counter };
        figure.put(&mut stats, name, store, ranges.messages);
    }
    Some(Value::Object(stats))
}

/// What went out of a queue by one way: as `message_stats`, but for what came in.
pub(crate) fn out_of_queue(of: &[&History], store: &Store, ranges: &Ranges) -> Value {
    let mut stats = Map::new();
    for (name, columns) in &OUT {
        Figure { of, columns, kind: Kind::Counter }.put(&mut stats, name, store, ranges.messages);
    }
    Value::Object(stats)
}

/// How fast the numbers of messages change: `messages_details` and its like.
pub(crate) fn lengths(of: &[&History], store: &Store, ranges: &Ranges, into: &mut Map<String, Value>) {
    let named: [(&str, &[usize]); 3] = [
        ("messages_details", &[READY, UNACKED]),
        ("messages_ready_details", &[READY]),
        ("messages_unacknowledged_details", &[UNACKED]),
    ];
    for (name, columns) in named {
        let figure = Figure { of, columns, kind: Kind::Gauge };
        into.insert(name.to_owned(), figure.details(store, ranges.lengths));
    }
}

/// Counts of these names, each with its details.
pub(crate) fn rates_of(
    of: &[&History],
    named: &[(&str, usize)],
    kind: Kind,
    (store, range): (&Store, Option<super::details::Range>),
    into: &mut Map<String, Value>,
) {
    for (name, column) in named {
        Figure { of, columns: &[*column], kind }.put(into, name, store, range);
    }
}

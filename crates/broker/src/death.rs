//! What a dead letter says about its deaths: the headers `x-death`, `x-first-death-*` and
//! `x-last-death-*`.
//!
//! Invariants: `x-death` has one entry for each pair of queue and reason, the newest death first;
//! an entry keeps what it said at its first death, and counts. What a client put there is brought
//! into that form at the next death. The first death is never overwritten, the last one always. A
//! dead letter has no time limit of its own any more: the one it had stands in its entry.

use amqp::wire::headers::{self, Headers};
use amqp::{Properties, Table, Value};
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const X_DEATH: &str = "x-death";
const CC: &str = "CC";
const REJECTED: &[u8] = b"rejected";

/// One death of a message.
#[derive(Clone, Copy, Debug)]
pub struct Death<'a> {
    /// The queue that gave it up.
    pub queue: &'a [u8],
    /// RabbitMQ's word for why.
    pub reason: &'static str,
    /// The exchange that it was published to.
    pub exchange: &'a [u8],
    /// The routing key that it was published with.
    pub routing_key: &'a [u8],
    /// When, in seconds since the epoch.
    pub time_s: u64,
}

fn text(bytes: &[u8]) -> Value {
    Value::LongString(Bytes::copy_from_slice(bytes))
}

/// Further routing keys of a message: its header `CC`.
pub fn carbon_copies(properties: &[u8]) -> Vec<Bytes> {
    let parsed = Properties::parse(properties).expect("the machine checks the properties of every message");
    let header = Headers::new(parsed.headers.unwrap_or_default()).get(CC.as_bytes());
    match header.and_then(|h| h.decode().ok()) {
        Some(Value::Array(keys)) => keys.into_iter().filter_map(as_text).collect(),
        _ => Vec::new(),
    }
}

fn as_text(value: Value) -> Option<Bytes> {
    match value {
        Value::LongString(text) => Some(text),
        _ => None,
    }
}

/// The properties of a message that died, for its dead letter. With `keeps_keys` it is published
/// with the keys that it had, `CC` among them; otherwise that header goes, as the new key replaces
/// them all.
///
/// - Source: RabbitMQ's guide on dead letter exchanges, "Effects on the Message".
pub fn annotate(properties: &[u8], death: &Death<'_>, keeps_keys: bool) -> Vec<u8> {
    let parsed = Properties::parse(properties).expect("the machine checks the properties of every message");
    let fields = Headers::new(parsed.headers.unwrap_or_default());
    let mut deaths = grouped(deaths_of(fields));
    let is_same =
        |entry: &Table| is_text(entry, "queue", death.queue) && is_text(entry, "reason", death.reason.as_bytes());
    let entry = match deaths.iter().position(is_same) {
        Some(at) => counted(deaths.remove(at)),
        None => first_entry(properties, death, parsed.expiration),
    };
    deaths.insert(0, entry);
    let words = [("reason", death.reason.as_bytes()), ("queue", death.queue), ("exchange", death.exchange)];
    let [first, last] = [
        ["x-first-death-reason", "x-first-death-queue", "x-first-death-exchange"],
        ["x-last-death-reason", "x-last-death-queue", "x-last-death-exchange"],
    ];
    let mut set: SmallVec<[(&str, Value); 8]> = SmallVec::new();
    set.push((X_DEATH, Value::Array(deaths.into_iter().map(Value::Table).collect())));
    if fields.get(first[0].as_bytes()).is_none() {
        set.extend(first.into_iter().zip(&words).map(|(name, (_, word))| (name, text(word))));
    }
    set.extend(last.into_iter().zip(&words).map(|(name, (_, word))| (name, text(word))));
    let remove: &[&str] = if keeps_keys { &[] } else { &[CC] };
    let rewritten = headers::rewrite(properties, &set, remove).expect("they were checked when they came");
    if parsed.expiration.is_none() {
        return rewritten;
    }
    let parsed = Properties::parse(&rewritten).expect("they were written a line above");
    let mut out = Vec::with_capacity(rewritten.len());
    Properties { expiration: None, ..parsed }.encode_to(&mut out);
    out
}

/// The queues in which a dead letter would run in a circle by itself: it died there before, and nobody rejected it
/// since. There it is dropped. Read once for a letter, whose history may be long, and asked for each queue it goes to.
#[derive(Debug, Default)]
pub struct Circle(Vec<Bytes>);

impl Circle {
    /// Of a dead letter with these properties.
    pub fn of(properties: &[u8]) -> Circle {
        let parsed = Properties::parse(properties).expect("they were written here");
        let deaths = deaths_of(Headers::new(parsed.headers.unwrap_or_default()));
        let since_rejected = deaths.iter().take_while(|entry| !is_text(entry, "reason", REJECTED));
        let queue_of = |entry: &Table| entry.get("queue").cloned().and_then(as_text);
        let mut queues: Vec<Bytes> = since_rejected.filter_map(queue_of).collect();
        queues.sort_unstable();
        Circle(queues)
    }

    /// Whether this queue is one of them.
    pub fn has(&self, queue: &[u8]) -> bool {
        self.0.binary_search_by(|known| known[..].cmp(queue)).is_ok()
    }
}

fn deaths_of(fields: Headers<'_>) -> Vec<Table> {
    match fields.get(X_DEATH.as_bytes()).and_then(|header| header.decode().ok()) {
        Some(Value::Array(entries)) => entries
            .into_iter()
            .filter_map(|entry| match entry {
                Value::Table(table) => Some(table),
                _ => None,
            })
            .collect(),
        // A client wrote something else there; RabbitMQ begins anew too.
        _ => Vec::new(),
    }
}

/// One entry for each pair of queue and reason, the first of them. RabbitMQ once wrote an entry for
/// each death, without a count, and clients still send such: then the entries of a pair are its
/// count. An entry that stands alone in the header needs no count before it has died again.
///
/// - Source: RabbitMQ 3.10.8, which does so whenever a message dies that has an `x-death` of its
///   own. An entry whose queue or reason is no text stays as it is.
fn grouped(deaths: Vec<Table>) -> Vec<Table> {
    if deaths.len() < 2 {
        return deaths;
    }
    let mut places: BTreeMap<(Option<Bytes>, Option<Bytes>), usize> = BTreeMap::new();
    let mut groups: Vec<(Table, i64)> = Vec::with_capacity(deaths.len());
    for death in deaths {
        let word = |key| match death.get(key) {
            None => Some(None),
            Some(Value::LongString(word)) => Some(Some(word.clone())),
            Some(_) => None,
        };
        match word("queue").zip(word("reason")) {
            None => groups.push((death, 0)),
            Some(key) => match places.entry(key) {
                Entry::Occupied(known) => groups[*known.get()].1 += 1,
                Entry::Vacant(new) => {
                    new.insert(groups.len());
                    groups.push((death, 1));
                }
            },
        }
    }
    let with_count = |(death, count): (Table, i64)| match death.get("count") {
        None if count > 0 => counting(&death, count),
        _ => death,
    };
    groups.into_iter().map(with_count).collect()
}

fn is_text(entry: &Table, key: &str, expected: &[u8]) -> bool {
    matches!(entry.get(key), Some(Value::LongString(word)) if &word[..] == expected)
}

fn counted(entry: Table) -> Table {
    let before = match entry.get("count") {
        Some(Value::I64(count)) => *count,
        Some(Value::I32(count)) => i64::from(*count),
        Some(Value::I16(count)) => i64::from(*count),
        Some(Value::I8(count)) => i64::from(*count),
        Some(Value::U32(count)) => i64::from(*count),
        Some(Value::U16(count)) => i64::from(*count),
        Some(Value::U8(count)) => i64::from(*count),
        _ => 0,
    };
    counting(&entry, before.saturating_add(1))
}

fn counting(entry: &Table, count: i64) -> Table {
    let mut counted = Table::new();
    counted.push("count", Value::I64(count));
    entry.iter().filter(|(name, _)| &name[..] != b"count").for_each(|(n, v)| counted.push(n.clone(), v.clone()));
    counted
}

fn first_entry(properties: &[u8], death: &Death<'_>, expiration: Option<&[u8]>) -> Table {
    let mut entry = Table::new();
    entry.push("count", Value::I64(1));
    entry.push("reason", text(death.reason.as_bytes()));
    entry.push("queue", text(death.queue));
    entry.push("time", Value::Timestamp(death.time_s));
    entry.push("exchange", text(death.exchange));
    let mut keys = vec![text(death.routing_key)];
    keys.extend(carbon_copies(properties).into_iter().map(Value::LongString));
    entry.push("routing-keys", Value::Array(keys));
    if let Some(expiration) = expiration {
        entry.push("original-expiration", text(expiration));
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(expiration: Option<&'static [u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        Properties { expiration, content_type: Some(b"text/plain"), ..Properties::default() }.encode_to(&mut out);
        out
    }

    fn death(queue: &'static str, reason: &'static str) -> Death<'static> {
        Death { queue: queue.as_bytes(), reason, exchange: b"x", routing_key: b"k", time_s: 7 }
    }

    fn headers(properties: &[u8]) -> Table {
        Properties::parse(properties).expect("well made").headers_table().expect("it has headers")
    }

    /// Queue, reason and count of each entry.
    fn told(properties: &[u8]) -> Vec<(String, String, i64)> {
        let word = |t: &Table, key: &str| match t.get(key) {
            Some(Value::LongString(w)) => String::from_utf8_lossy(w).into_owned(),
            other => panic!("{key} is {other:?}"),
        };
        let Some(Value::Array(entries)) = headers(properties).get(X_DEATH).cloned() else { panic!("no x-death") };
        let told = |entry: Value| match entry {
            Value::Table(t) => match t.get("count") {
                Some(Value::I64(count)) => (word(&t, "queue"), word(&t, "reason"), *count),
                other => panic!("count is {other:?}"),
            },
            other => panic!("{other:?}"),
        };
        entries.into_iter().map(told).collect()
    }

    #[test]
    fn the_newest_death_stands_first_and_the_same_one_again_is_counted() {
        let once = annotate(&plain(None), &death("a", "rejected"), true);
        let twice = annotate(&once, &death("b", "expired"), true);
        let again = annotate(&twice, &death("a", "rejected"), true);
        let of = |q: &str, r: &str, n| (q.to_owned(), r.to_owned(), n);
        assert_eq!(told(&twice), [of("b", "expired", 1), of("a", "rejected", 1)]);
        assert_eq!(told(&again), [of("a", "rejected", 2), of("b", "expired", 1)]);
        let table = headers(&again);
        let is = |key: &str, word: &'static str| assert_eq!(table.get(key), Some(&text(word.as_bytes())), "{key}");
        is("x-first-death-queue", "a");
        is("x-last-death-queue", "a");
        let table = headers(&twice);
        assert_eq!(table.get("x-last-death-reason"), Some(&text(b"expired")));
        assert_eq!(table.get("x-first-death-reason"), Some(&text(b"rejected")));
    }

    /// Properties with these entries as their `x-death`, as a client might send them.
    fn sent(entries: &[(&'static str, &'static str, Option<Value>)]) -> Vec<u8> {
        let entry = |(queue, reason, count): &(&'static str, &'static str, Option<Value>)| {
            let mut entry = Table::new();
            entry.push("queue", text(queue.as_bytes()));
            entry.push("reason", text(reason.as_bytes()));
            count.iter().for_each(|count| entry.push("count", count.clone()));
            Value::Table(entry)
        };
        let mut table = Table::new();
        table.push(X_DEATH, Value::Array(entries.iter().map(entry).collect()));
        let fields = table.encode();
        let mut out = Vec::new();
        Properties { headers: Some(&fields[4..]), ..Properties::default() }.encode_to(&mut out);
        out
    }

    #[test]
    fn deaths_that_a_client_sent_one_by_one_are_counted_as_one() {
        let of = |q: &str, r: &str, n| (q.to_owned(), r.to_owned(), n);
        let (a, b) = (("a", "rejected", None), ("b", "expired", None));
        let same = sent(&[a.clone(), a.clone(), b.clone(), a.clone()]);
        assert_eq!(
            told(&annotate(&same, &death("a", "rejected"), true)),
            [of("a", "rejected", 4), of("b", "expired", 1)]
        );
        let other = told(&annotate(&same, &death("c", "maxlen"), true));
        assert_eq!(other, [of("c", "maxlen", 1), of("a", "rejected", 3), of("b", "expired", 1)]);
        // The same queue for another reason is another entry, and one alone is not counted until it
        // dies again.
        let reasons = sent(&[a.clone(), ("a", "expired", None)]);
        let told_of = told(&annotate(&reasons, &death("a", "rejected"), true));
        assert_eq!(told_of, [of("a", "rejected", 2), of("a", "expired", 1)]);
        assert_eq!(
            told(&annotate(&sent(std::slice::from_ref(&a)), &death("a", "rejected"), true)),
            [of("a", "rejected", 1)]
        );
        // A count that is there counts, that of the first entry, and as any whole number.
        let counts = sent(&[("a", "rejected", Some(Value::I32(7))), ("a", "rejected", Some(Value::I64(30))), b]);
        let told_of = told(&annotate(&counts, &death("a", "rejected"), true));
        assert_eq!(told_of, [of("a", "rejected", 8), of("b", "expired", 1)]);
    }

    #[test]
    fn the_time_limit_goes_from_the_properties_into_the_entry() {
        let dead = annotate(&plain(Some(b"500")), &death("a", "expired"), true);
        let parsed = Properties::parse(&dead).expect("well made");
        assert_eq!((parsed.expiration, parsed.content_type), (None, Some(&b"text/plain"[..])));
        let Some(Value::Array(entries)) = headers(&dead).get(X_DEATH).cloned() else { panic!("no x-death") };
        let Value::Table(entry) = &entries[0] else { panic!("no table") };
        assert_eq!(entry.get("original-expiration"), Some(&text(b"500")));
        assert_eq!(entry.get("time"), Some(&Value::Timestamp(7)));
        assert_eq!(entry.get("routing-keys"), Some(&Value::Array(vec![text(b"k")])));
    }

    #[test]
    fn a_new_key_replaces_the_copies_and_the_entry_remembers_them() {
        let mut out = Vec::new();
        let mut table = Table::new();
        table.push("CC", Value::Array(vec![text(b"c")]));
        let fields = table.encode();
        Properties { headers: Some(&fields[4..]), ..Properties::default() }.encode_to(&mut out);
        let (kept, replaced) =
            (annotate(&out, &death("a", "maxlen"), true), annotate(&out, &death("a", "maxlen"), false));
        assert!(headers(&kept).get("CC").is_some());
        assert!(headers(&replaced).get("CC").is_none());
        assert_eq!(carbon_copies(&kept), [&b"c"[..]]);
        let Some(Value::Array(entries)) = headers(&replaced).get(X_DEATH).cloned() else { panic!("no x-death") };
        let Value::Table(entry) = &entries[0] else { panic!("no table") };
        assert_eq!(entry.get("routing-keys"), Some(&Value::Array(vec![text(b"k"), text(b"c")])));
    }

    #[test]
    fn a_circle_is_one_only_if_nobody_rejected_on_the_way() {
        let expired = annotate(&plain(None), &death("a", "expired"), true);
        assert!(Circle::of(&expired).has(b"a") && !Circle::of(&expired).has(b"b"));
        let on = annotate(&expired, &death("b", "maxlen"), true);
        assert!(Circle::of(&on).has(b"a"));
        let rejected = annotate(&expired, &death("b", "rejected"), true);
        assert!(!Circle::of(&rejected).has(b"a"), "a consumer did that");
        assert!(!Circle::of(&rejected).has(b"b"));
    }
}

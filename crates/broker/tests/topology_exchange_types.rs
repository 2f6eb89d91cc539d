//! The exchange types beyond AMQP's four, alternate exchanges and several routing keys: who gets
//! which message.
//!
//! Invariant: a choice by hash survives a snapshot; what is random is drawn from the message's
//! facts, so a test decides it.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};

use amqp::{Table, Value};
use broker::ids::{PartitionId, VhostId};
use broker::topology::{
    Actor, Binding, Checked, Command, ExchangeDeclare, HISTORY_LENGTH_DEFAULT, HashOn, HistoryId, Kind, MessageFacts,
    Name, NoFacts, NoRoute, QueueDeclare, QueueDeclared, Refusal, RouteRequest, Topology,
};
use bytes::Bytes;

const SLASH: VhostId = VhostId(0);
const GUEST: Actor<'static> = Actor { user: b"guest", connection: 1, scopes: None };

#[derive(Default)]
struct Message {
    headers: Table,
    properties: Vec<(HashOn, Value)>,
    drawn: Cell<u64>,
    remembered: RefCell<Vec<(HistoryId, u32)>>,
}

impl MessageFacts for Message {
    fn headers(&self) -> Option<Table> {
        Some(self.headers.clone())
    }

    fn property(&self, property: HashOn) -> Option<Value> {
        self.properties.iter().find(|(p, _)| *p == property).map(|(_, value)| value.clone())
    }

    fn random(&self) -> u64 {
        self.drawn.set(self.drawn.get() + 1);
        self.drawn.get()
    }

    fn remembered_by(&self, exchange: HistoryId, length: u32) {
        self.remembered.borrow_mut().push((exchange, length));
    }
}

fn text(word: &str) -> Value {
    Value::LongString(Bytes::copy_from_slice(word.as_bytes()))
}

fn table(fields: &[(&'static str, Value)]) -> Table {
    let mut table = Table::new();
    fields.iter().for_each(|(name, value)| table.push(*name, value.clone()));
    table
}

fn exchange(
    topology: &mut Topology,
    name: &str,
    kind: &str,
    arguments: &[(&'static str, Value)],
) -> Result<(), Refusal> {
    let declare = ExchangeDeclare {
        vhost: SLASH,
        name: name.as_bytes(),
        kind: kind.as_bytes(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: &table(arguments),
    };
    let checked = topology.check_exchange_declare(GUEST, &declare)?;
    carry_out(topology, checked);
    Ok(())
}

fn queue(topology: &mut Topology, name: &str, queue_type: &str) {
    let arguments = table(&[("x-queue-type", text(queue_type))]);
    let declare = QueueDeclare {
        vhost: SLASH,
        name: name.as_bytes(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: &arguments,
    };
    match topology.check_queue_declare(GUEST, &declare, |_| PartitionId(1)).unwrap() {
        QueueDeclared::Propose(command) => carry_out(topology, Checked::Propose(command)),
        other => panic!("a new durable queue goes through the log, not {other:?}"),
    }
}

/// `to` is a queue, or an exchange with `>` before it.
fn bind(topology: &mut Topology, source: &str, to: &str, key: &str) -> Result<(), Refusal> {
    bind_with(topology, source, to, key, Table::new())
}

fn bind_with(topology: &mut Topology, source: &str, to: &str, key: &str, arguments: Table) -> Result<(), Refusal> {
    let (destination_kind, destination) = match to.strip_prefix('>') {
        Some(exchange) => (Kind::Exchange, exchange),
        None => (Kind::Queue, to),
    };
    let binding = Binding {
        vhost: SLASH,
        source: Name::from(source),
        destination_kind,
        destination: Name::from(destination),
        key: Name::from(key),
        arguments,
    };
    let checked = topology.check_bind(GUEST, binding)?;
    carry_out(topology, checked);
    Ok(())
}

fn carry_out(topology: &mut Topology, checked: Checked) {
    if let Checked::Propose(command) = checked {
        let command = Command::decode(&command.encode()).unwrap();
        topology.apply(&command).outcome.unwrap();
    }
}

fn route(topology: &Topology, exchange: &str, keys: &[&str], facts: &Message) -> Vec<String> {
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let mut out = Vec::new();
    let request = RouteRequest { vhost: SLASH, exchange: exchange.as_bytes(), keys: &keys, facts };
    topology.route(&request, &mut out).unwrap();
    out.iter().map(|target| topology.queue(target.queue).unwrap().name.to_string()).collect()
}

fn with_queues(names: &[&str]) -> Topology {
    let mut topology = Topology::new();
    names.iter().for_each(|name| queue(&mut topology, name, "classic"));
    topology
}

#[track_caller]
fn refused(result: Result<(), Refusal>, text: &str) {
    let refusal = result.unwrap_err();
    assert_eq!((refusal.code, refusal.text), (406, format!("PRECONDITION_FAILED - {text}")));
}

#[test]
fn a_message_that_matches_nothing_goes_to_the_alternate_exchange_and_on() {
    let mut topology = with_queues(&["matched", "rest", "named"]);
    exchange(&mut topology, "first", "direct", &[("alternate-exchange", text("second"))]).unwrap();
    exchange(&mut topology, "second", "topic", &[("alternate-exchange", text("third"))]).unwrap();
    exchange(&mut topology, "third", "fanout", &[("alternate-exchange", text("first"))]).unwrap();
    let message = Message::default();
    assert_eq!(route(&topology, "first", &["k"], &message), [""; 0], "a circle of empty exchanges ends");
    bind(&mut topology, "first", "matched", "k").unwrap();
    bind(&mut topology, "third", "rest", "").unwrap();
    assert_eq!(route(&topology, "first", &["k"], &message), ["matched"]);
    assert_eq!(route(&topology, "first", &["other"], &message), ["rest"]);
    assert_eq!(route(&topology, "first", &["other", "k"], &message), ["matched"], "one key of several is enough");
    exchange(&mut topology, "to missing", "direct", &[("alternate-exchange", text("not there"))]).unwrap();
    assert_eq!(route(&topology, "to missing", &["k"], &message), [""; 0]);
    exchange(&mut topology, "to default", "direct", &[("alternate-exchange", text(""))]).unwrap();
    assert_eq!(route(&topology, "to default", &["named"], &message), ["named"]);
}

#[test]
fn a_bound_exchange_that_finds_nothing_has_its_own_alternate() {
    let mut topology = with_queues(&["of x", "of y"]);
    exchange(&mut topology, "ax", "fanout", &[]).unwrap();
    exchange(&mut topology, "ay", "fanout", &[]).unwrap();
    exchange(&mut topology, "x", "fanout", &[("alternate-exchange", text("ax"))]).unwrap();
    exchange(&mut topology, "y", "direct", &[("alternate-exchange", text("ay"))]).unwrap();
    bind(&mut topology, "ax", "of x", "").unwrap();
    bind(&mut topology, "ay", "of y", "").unwrap();
    bind(&mut topology, "x", ">y", "").unwrap();
    assert_eq!(route(&topology, "x", &["k"], &Message::default()), ["of y"], "x has a binding that matched");
}

#[test]
fn every_key_of_a_message_is_followed_and_a_queue_gets_one_copy() {
    let mut topology = with_queues(&["a", "b", "c"]);
    bind(&mut topology, "amq.direct", "a", "one").unwrap();
    bind(&mut topology, "amq.direct", "b", "two").unwrap();
    bind(&mut topology, "amq.topic", "a", "one.#").unwrap();
    bind(&mut topology, "amq.topic", "c", "*.x").unwrap();
    let message = Message::default();
    assert_eq!(route(&topology, "amq.direct", &["one", "two", "one", "three"], &message), ["a", "b"]);
    assert_eq!(route(&topology, "amq.topic", &["one.x", "two.x"], &message), ["a", "c"]);
    assert_eq!(route(&topology, "", &["c", "a", "c"], &message), ["a", "c"]);
}

#[test]
fn a_message_whose_keys_take_too_many_steps_goes_nowhere() {
    let mut topology = with_queues(&["q"]);
    exchange(&mut topology, "first", "topic", &[]).unwrap();
    exchange(&mut topology, "second", "topic", &[]).unwrap();
    bind(&mut topology, "first", ">second", "#").unwrap();
    bind(&mut topology, "first", "q", "#").unwrap();
    for number in 0..1 << 10 {
        let words: Vec<&str> = (0..10).map(|bit| if number >> bit & 1 == 1 { "a" } else { "*" }).collect();
        bind(&mut topology, "first", "q", &format!("{}.#.a.#.z{number}", words.join("."))).unwrap();
        bind(&mut topology, "second", "q", &format!("{}.#.a.#.z{number}", words.join("."))).unwrap();
    }
    let key = ["a"; 100].join(".");
    let with_keys = |count: usize| {
        let keys = vec![key.as_bytes(); count];
        let mut out = Vec::new();
        let request = RouteRequest { vhost: SLASH, exchange: b"first", keys: &keys, facts: &NoFacts };
        topology.route(&request, &mut out).map(|_| out.len())
    };
    assert_eq!(with_keys(10), Ok(1));
    // Either exchange alone takes these.
    assert_eq!(with_keys(30), Err(NoRoute::TooMuch));
    assert_eq!(with_keys(600), Err(NoRoute::TooMuch));
    assert!(NoRoute::TooMuch.to_string().len() < 200, "it fits into a reply");
}

#[test]
fn a_message_that_headers_bindings_take_too_many_steps_for_goes_nowhere() {
    let fields = |value: i64| {
        let mut table = Table::new();
        (0..4000).for_each(|n| table.push(format!("{n:x}"), Value::I64(value)));
        table
    };
    let list = |last: i64| {
        let mut table = Table::new();
        table.push("list", Value::Array((0..4000).map(|n| Value::I64(if n == 3999 { last } else { n })).collect()));
        table
    };
    // All arguments of a binding have to be looked at: none is met, or all are, or the last value of a list differs.
    let cases = [
        ("any", fields(1), fields(2), 12),
        ("any-with-x", fields(1), fields(2), 12),
        ("all", fields(1), fields(1), 12),
        ("all-with-x", fields(1), fields(1), 12),
        ("any", list(1), list(2), 140),
        ("all", list(1), list(1), 140),
    ];
    for (mode, mut arguments, headers, bindings) in cases {
        let mut topology = with_queues(&["q"]);
        exchange(&mut topology, "first", "headers", &[]).unwrap();
        exchange(&mut topology, "second", "headers", &[]).unwrap();
        bind(&mut topology, "first", ">second", "").unwrap();
        arguments.push("x-match", text(mode));
        for source in ["first", "second"] {
            bind(&mut topology, source, "q", "").unwrap();
            for number in 0..bindings {
                let mut arguments = arguments.clone();
                arguments.push("zz", Value::I64(number));
                if mode.starts_with("all") {
                    arguments.push("zz", Value::Void);
                }
                bind_with(&mut topology, source, "q", "", arguments).unwrap();
            }
        }
        let follow = |exchange: &[u8], headers: &Table| {
            let facts = Message { headers: headers.clone(), ..Message::default() };
            let request = RouteRequest { vhost: SLASH, exchange, keys: &[b""], facts: &facts };
            let mut out = Vec::new();
            topology.route(&request, &mut out).map(|work| (work, out.len()))
        };
        // Either exchange alone takes it, and says that it is more than a turn.
        let (work, found) = follow(b"second", &headers).unwrap();
        assert!(work > 50_000 && found == 1, "{mode}: {work}");
        assert_eq!(follow(b"first", &headers), Err(NoRoute::TooMuch), "{mode}");
        let (work, found) = follow(b"first", &Table::new()).unwrap();
        assert!(work < 20_000 && found == 1, "{mode}: {work}");
    }
}

#[test]
fn tens_of_thousands_of_usual_headers_bindings_are_followed() {
    let mut topology = with_queues(&["q", "r"]);
    for number in 0..30_000 {
        let mut arguments = table(&[("x-match", text("any")), ("a", text("other"))]);
        arguments.push("b", Value::I64(number));
        arguments.push("c", text("another"));
        bind_with(&mut topology, "amq.headers", if number == 7 { "r" } else { "q" }, "", arguments).unwrap();
    }
    for more in [1, 20] {
        let mut headers = table(&[("a", text("x")), ("b", Value::I64(7)), ("c", text("y"))]);
        (0..more).for_each(|n| headers.push(format!("more{n}"), Value::Void));
        assert_eq!(route(&topology, "amq.headers", &[""], &Message { headers, ..Message::default() }), ["r"]);
    }
}

#[test]
fn keys_that_lead_to_the_same_queues_again_and_again_fill_no_memory() {
    let names: Vec<String> = (0..4000).map(|n| format!("q{n}")).collect();
    let mut topology = with_queues(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for name in &names {
        bind(&mut topology, "amq.topic", name, "#").unwrap();
        bind(&mut topology, "amq.direct", name, "k").unwrap();
    }
    for exchange in ["amq.topic", "amq.direct"] {
        let mut out = Vec::new();
        let mut with_keys = |count: usize| {
            let keys = vec![&b"k"[..]; count];
            out.clear();
            out.shrink_to_fit();
            let request = RouteRequest { vhost: SLASH, exchange: exchange.as_bytes(), keys: &keys, facts: &NoFacts };
            let route = topology.route(&request, &mut out);
            (route.map(|_| out.len()), out.capacity())
        };
        for few in [1, 3, 200] {
            let (route, capacity) = with_keys(few);
            assert_eq!(route, Ok(names.len()), "{few} keys");
            assert!(capacity <= 1 << 18, "room for {capacity} queues");
        }
        let (route, capacity) = with_keys(2000);
        assert_eq!(route, Err(NoRoute::TooMuch));
        assert!(capacity <= 1 << 18, "room for {capacity} queues");
    }
}

#[test]
fn a_consistent_hash_sends_a_key_to_one_queue_and_a_restart_changes_nothing() {
    let names: Vec<String> = (0..7).map(|n| format!("q{n}")).collect();
    let mut topology = with_queues(&names.iter().map(String::as_str).collect::<Vec<_>>());
    exchange(&mut topology, "x", "x-consistent-hash", &[]).unwrap();
    for (at, name) in names.iter().enumerate().rev() {
        bind(&mut topology, "x", name, &(at % 3 + 1).to_string()).unwrap();
    }
    exchange(&mut topology, "y", "x-modulus-hash", &[]).unwrap();
    names.iter().for_each(|name| bind(&mut topology, "y", name, "whatever").unwrap());
    let restored = Topology::decode_snapshot(&topology.encode_snapshot()).unwrap();
    let (message, mut used) = (Message::default(), [[0; 7]; 2]);
    for key in (0..700).map(|n| format!("key {n}")) {
        for (exchange, used) in ["x", "y"].into_iter().zip(&mut used) {
            let found = route(&topology, exchange, &[&key, "a CC key counts for nothing"], &message);
            assert_eq!(found.len(), 1);
            assert_eq!(found, route(&restored, exchange, &[&key], &message));
            used[found[0][1..].parse::<usize>().unwrap()] += 1;
        }
    }
    assert!(used.iter().flatten().all(|count| *count > 20), "{used:?}");
}

#[test]
fn a_consistent_hash_may_go_by_a_header_or_a_property() {
    let mut topology = with_queues(&["a", "b", "c", "d"]);
    exchange(&mut topology, "by header", "x-consistent-hash", &[("hash-header", text("h"))]).unwrap();
    exchange(&mut topology, "by id", "x-consistent-hash", &[("hash-property", text("message_id"))]).unwrap();
    for exchange in ["by header", "by id"] {
        ["a", "b", "c", "d"].iter().for_each(|queue| bind(&mut topology, exchange, queue, "5").unwrap());
    }
    let of = |exchange: &str, key: &str, value: Option<Value>| {
        let headers = value.clone().map_or_else(Table::new, |value| table(&[("h", value)]));
        let properties = value.into_iter().map(|value| (HashOn::MessageId, value)).collect();
        route(&topology, exchange, &[key], &Message { headers, properties, ..Message::default() })
    };
    for exchange in ["by header", "by id"] {
        let found: std::collections::BTreeSet<_> =
            (0..50).map(|n| of(exchange, "k", Some(text(&n.to_string())))).collect();
        assert_eq!(found.len(), 4, "all queues are used");
        for n in 0..50 {
            let value = Some(text(&n.to_string()));
            assert_eq!(of(exchange, "k", value.clone()), of(exchange, "another", value), "the key counts for nothing");
            assert_eq!(of(exchange, &n.to_string(), None), of(exchange, "", None), "without the value all go one way");
        }
    }
    assert_eq!(of("by header", "", Some(Value::I8(9))), of("by header", "", Some(Value::I64(9))));
    assert_eq!(
        of("by header", "", Some(Value::Array(vec![text("z"), text("y")]))),
        of("by header", "", Some(text("z")))
    );
}

#[test]
fn a_random_exchange_takes_what_is_drawn_and_counts_a_queue_once() {
    let mut topology = with_queues(&["a", "b", "c"]);
    exchange(&mut topology, "x", "x-random", &[]).unwrap();
    exchange(&mut topology, "l", "x-local-random", &[]).unwrap();
    assert_eq!(route(&topology, "x", &[""], &Message::default()), [""; 0]);
    for key in ["1", "2"] {
        ["a", "b", "c"].iter().for_each(|queue| bind(&mut topology, "x", queue, key).unwrap());
    }
    ["a", "b", "c"].iter().for_each(|queue| bind(&mut topology, "l", queue, "").unwrap());
    for exchange in ["x", "l"] {
        let message = Message::default();
        let found: Vec<String> = (0..6).flat_map(|_| route(&topology, exchange, &["k"], &message)).collect();
        assert_eq!(found[..3], found[3..]);
        let once: std::collections::BTreeSet<_> = found.iter().collect();
        assert_eq!(once.len(), 3);
    }
}

#[test]
fn a_recent_history_sends_to_all_and_says_that_it_remembers() {
    let mut topology = with_queues(&["a", "b"]);
    exchange(&mut topology, "h", "x-recent-history", &[]).unwrap();
    exchange(&mut topology, "short", "x-recent-history", &[("x-recent-history-length", Value::I32(3))]).unwrap();
    bind(&mut topology, "h", "a", "k").unwrap();
    bind(&mut topology, "h", ">short", "").unwrap();
    bind(&mut topology, "short", "b", "").unwrap();
    let message = Message::default();
    assert_eq!(route(&topology, "h", &["other"], &message), ["a", "b"]);
    let history = |name: &[u8]| topology.find_exchange(SLASH, name).unwrap().history().unwrap();
    let (long, short) = (history(b"h"), history(b"short"));
    assert_eq!(*message.remembered.borrow(), [(long, HISTORY_LENGTH_DEFAULT), (short, 3)]);
    assert_eq!(topology.find_exchange(SLASH, b"amq.fanout").unwrap().history(), None);
    let delete = topology.check_exchange_delete(GUEST, SLASH, b"h", false).unwrap();
    carry_out(&mut topology, delete);
    exchange(&mut topology, "h", "x-recent-history", &[]).unwrap();
    assert_ne!(topology.find_exchange(SLASH, b"h").unwrap().history().unwrap(), long, "a new one starts empty");
}

#[test]
fn arguments_of_the_types_are_refused_in_rabbitmqs_words() {
    let topology = &mut with_queues(&["q"]);
    let both = [("hash-header", text("h")), ("hash-property", text("message_id"))];
    refused(
        exchange(topology, "x", "x-consistent-hash", &both),
        "hash-header and hash-property are mutually exclusive",
    );
    let other = [("hash-property", text("app_id"))];
    refused(exchange(topology, "x", "x-consistent-hash", &other), "Unsupported property: app_id");
    refused(
        exchange(topology, "x", "x-consistent-hash", &[("hash-header", Value::I32(1))]),
        "invalid type 'signedint' for arg 'hash-header' in exchange 'x' in vhost '/'",
    );
    for wrong in [Value::I32(0), Value::I64(-1), Value::U8(5)] {
        let shown = if let Value::U8(n) = wrong { n.to_string() } else { format!("{}", number(&wrong)) };
        refused(
            exchange(topology, "x", "x-recent-history", &[("x-recent-history-length", wrong)]),
            &format!("Invalid argument {shown}, 'x-recent-history-length' must be a positive integer"),
        );
    }
    refused(
        exchange(topology, "x", "x-recent-history", &[("x-recent-history-length", text("5"))]),
        "Invalid argument <<\"5\">>, 'x-recent-history-length' must be a positive integer",
    );
    refused(
        exchange(topology, "x", "x-recent-history", &[("x-recent-history-length", Value::I32(10_001))]),
        "Invalid argument 10001, 'x-recent-history-length' is at most 10000 here",
    );
    exchange(topology, "h", "x-consistent-hash", &[]).unwrap();
    refused(bind(topology, "h", "q", "many"), "The binding key must be an integer: <<\"many\">>");
    refused(bind(topology, "h", "q", "0"), "The binding key must be greater than 0");
    exchange(topology, "l", "x-local-random", &[]).unwrap();
    queue(topology, "replicated", "quorum");
    refused(bind(topology, "l", "q", "k"), "Non empty binding 'k' key not permitted");
    refused(bind(topology, "l", "replicated", ""), "Queue type rabbit_quorum_queue not valid for this exchange type");
    refused(bind(topology, "l", ">h", ""), "Destination not found");
}

fn number(value: &Value) -> i64 {
    match value {
        Value::I32(n) => i64::from(*n),
        Value::I64(n) => *n,
        other => panic!("not a signed number: {other:?}"),
    }
}

//! Every refusal of the topology with its code, scope and text, as a client of RabbitMQ knows them.
//!
//! Invariant: the texts were taken from RabbitMQ 4.3's source and, where the two agree, from a
//! running 3.10.8; those that are Leveret's own say that something is not supported by this
//! version, or name an argument of its own.
#![allow(clippy::unwrap_used)]

use amqp::{Table, Value};
use broker::ids::{PartitionId, VhostId};
use broker::queue::DedupRule;
use broker::topology::{
    Actor, Binding, Checked, Command, Effect, ExchangeDeclare, Kind, Name, OpenConnections, PasswordHash, Pattern,
    Permission, QueueDeclare, QueueDeclared, QueueType, Redeclaration, Refusal, Scopes, Topology, UserLimits,
    VhostLimits,
};
use bytes::Bytes;

const SLASH: VhostId = VhostId(0);
const GUEST: Actor<'static> = Actor { user: b"guest", connection: 1, scopes: None };

fn table(fields: &[(&str, Value)]) -> Table {
    let mut table = Table::new();
    for (name, value) in fields {
        table.push(Bytes::copy_from_slice(name.as_bytes()), value.clone());
    }
    table
}

fn text(word: &str) -> Value {
    Value::LongString(Bytes::copy_from_slice(word.as_bytes()))
}

/// A queue declare in few words: its name, flags out of "dxas" (durable, exclusive, auto-delete,
/// server-named) and arguments.
fn declare_as(
    topology: &mut Topology,
    actor: Actor<'_>,
    name: &str,
    flags: &str,
    fields: &[(&str, Value)],
) -> Result<(), Refusal> {
    let arguments = table(fields);
    let declare = QueueDeclare {
        vhost: SLASH,
        name: name.as_bytes(),
        server_named: flags.contains('s'),
        durable: flags.contains('d'),
        exclusive: flags.contains('x'),
        auto_delete: flags.contains('a'),
        arguments: &arguments,
    };
    let applied = match topology.check_queue_declare(actor, &declare, |_| PartitionId(0))? {
        QueueDeclared::Existing(_) => return Ok(()),
        QueueDeclared::Propose(command) => topology.apply(&command),
        QueueDeclared::Local(command) => topology.apply_local(&command),
    };
    applied.outcome.map(|_| ())
}

fn declare(topology: &mut Topology, name: &str, flags: &str, fields: &[(&str, Value)]) -> Result<(), Refusal> {
    declare_as(topology, GUEST, name, flags, fields)
}

fn carry_out(topology: &mut Topology, checked: Checked) -> Result<(), Refusal> {
    match checked {
        Checked::Done => Ok(()),
        Checked::Propose(command) => topology.apply(&command).outcome.map(|_| ()),
        Checked::Local(command) => topology.apply_local(&command).outcome.map(|_| ()),
    }
}

/// Flags out of "dai": durable, auto-delete, internal.
fn exchange(
    topology: &mut Topology,
    name: &str,
    kind: &str,
    flags: &str,
    fields: &[(&str, Value)],
) -> Result<(), Refusal> {
    let arguments = table(fields);
    let declare = ExchangeDeclare {
        vhost: SLASH,
        name: name.as_bytes(),
        kind: kind.as_bytes(),
        durable: flags.contains('d'),
        auto_delete: flags.contains('a'),
        internal: flags.contains('i'),
        arguments: &arguments,
    };
    let checked = topology.check_exchange_declare(GUEST, &declare)?;
    carry_out(topology, checked)
}

fn delete_exchange(topology: &mut Topology, name: &str, if_unused: bool) -> Result<(), Refusal> {
    let checked = topology.check_exchange_delete(GUEST, SLASH, name.as_bytes(), if_unused)?;
    carry_out(topology, checked)
}

fn binding(source: &str, kind: Kind, destination: &str, key: &str, fields: &[(&str, Value)]) -> Binding {
    Binding {
        vhost: SLASH,
        source: Name::from(source),
        destination_kind: kind,
        destination: Name::from(destination),
        key: Name::from(key),
        arguments: table(fields),
    }
}

fn bind_as(topology: &mut Topology, actor: Actor<'_>, binding: Binding) -> Result<(), Refusal> {
    let checked = topology.check_bind(actor, binding)?;
    carry_out(topology, checked)
}

fn bind(
    topology: &mut Topology,
    source: &str,
    queue: &str,
    key: &str,
    fields: &[(&str, Value)],
) -> Result<(), Refusal> {
    bind_as(topology, GUEST, binding(source, Kind::Queue, queue, key, fields))
}

fn unbind(topology: &mut Topology, source: &str, queue: &str, key: &str) -> Result<(), Refusal> {
    let checked = topology.check_unbind(GUEST, binding(source, Kind::Queue, queue, key, &[]))?;
    carry_out(topology, checked)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>, code: u16, text: &str) {
    let refusal = result.expect_err("this should be refused");
    assert_eq!((refusal.code, refusal.text.as_str()), (code, text));
    assert_eq!(refusal.hard, code == 530, "only 530 closes the connection here");
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(result: Result<T, Refusal>, key: &str, reason: &str) {
    refused(result, 406, &format!("PRECONDITION_FAILED - invalid arg '{key}' for queue 'q' in vhost '/': {reason}"));
}

const LOCKED: &str = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be \
                      originally declared on another connection or the exclusive property value does not match that \
                      of the original declaration.";

/// Rights by a token are those of its scopes, whatever the user of that name may do.
#[test]
fn scopes_say_which_keys_of_a_topic_exchange_may_be_used() {
    let topology = Topology::new();
    let publish = |texts: &[&str], key: &[u8]| {
        let scopes = Scopes::parse(texts.iter().copied(), &|_| None);
        let actor = Actor { user: b"guest", connection: 1, scopes: Some(&scopes) };
        topology.check_publish(actor, VhostId(0), b"amq.topic", key).is_ok()
    };
    let some_keys = ["write:*/amq.topic/a.*"];
    assert!(publish(&some_keys, b"a.b") && !publish(&some_keys, b"b.a"));
    assert!(!publish(&["write:*/amq.topic"], b"a.b"), "a scope without keys grants none");
    assert!(!publish(&["read:*/amq.topic/*"], b"a.b") && !publish(&["write:other/amq.topic/*"], b"a.b"));
    assert!(publish(&["write:*/*/*"], b"a.b"));
}

#[test]
fn argument_values_are_refused_with_rabbitmqs_reasons() {
    let cases: &[(&str, &str, Value, &str)] = &[
        ("", "x-queue-type", text("bad"), "\"unsupported queue type 'bad'\""),
        ("", "x-queue-type", Value::I32(5), "{unacceptable_type,signedint}"),
        ("", "x-message-ttl", Value::I32(-1), "{value_negative,-1}"),
        ("", "x-message-ttl", text("abc"), "\"expected integer, got longstr\""),
        ("", "x-message-ttl", Value::I64(10_000_000_000_000), "{value_too_large,10000000000000}"),
        ("", "x-expires", Value::I32(0), "{value_zero,0}"),
        ("", "x-overflow", text("bad"), "invalid_overflow"),
        ("", "x-overflow", Value::I32(5), "{unacceptable_type,signedint}"),
        ("", "x-max-priority", Value::I32(300), "{max_value_exceeded,300}"),
        ("", "x-single-active-consumer", text("yes"), "{unacceptable_type,longstr}"),
        ("", "x-dead-letter-routing-key", text("yes"), "routing_key_but_no_dlx_defined"),
        ("", "x-max-length", Value::Bool(true), "\"expected integer, got bool\""),
        ("", "x-max-length", Value::Table(Table::new()), "\"expected integer, got table\""),
        ("", "x-max-length", Value::Timestamp(5), "\"expected integer, got timestamp\""),
        ("", "x-max-length-bytes", Value::I64(-5), "{value_negative,-5}"),
        ("", "x-queue-version", Value::I32(3), "\"unsupported queue version '3'\""),
        ("", "x-queue-mode", text("bad"), "\"unsupported queue mode 'bad'\""),
        ("", "x-queue-leader-locator", text("bad"), "invalid_queue_locator_arg"),
        ("", "x-queue-master-locator", text("balanced"), "invalid_queue_locator_arg"),
        ("q", "x-queue-leader-locator", text("bad"), "invalid_queue_locator_arg"),
        ("q", "x-quorum-initial-group-size", Value::I32(0), "{value_zero,0}"),
        ("q", "x-quorum-initial-group-size", Value::I32(-2), "{value_negative,-2}"),
        ("q", "x-max-in-memory-length", Value::I32(-2), "{value_negative,-2}"),
        ("q", "x-max-in-memory-bytes", text("2"), "\"expected integer, got longstr\""),
        ("q", "x-dead-letter-strategy", text("bad"), "invalid_dlx_strategy"),
    ];
    for (kind, key, value, reason) in cases {
        let mut fields = vec![(*key, value.clone())];
        if *kind == "q" {
            fields.push(("x-queue-type", text("quorum")));
        }
        invalid(declare(&mut Topology::new(), "q", "d", &fields), key, reason);
    }
    refused(
        declare(&mut Topology::new(), "q", "", &[("x-dead-letter-exchange", Value::I32(5))]),
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'",
    );
}

#[test]
fn an_argument_of_another_queue_type_is_refused() {
    let of_type = |key: &str, kind: &str| {
        format!(
            "PRECONDITION_FAILED - invalid arg '{key}' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue"
        )
    };
    let mut topology = Topology::new();
    for key in ["x-max-age", "x-delivery-limit", "x-max-in-memory-length", "x-quorum-initial-group-size"] {
        refused(declare(&mut topology, "q", "", &[(key, Value::I32(1))]), 406, &of_type(key, "classic"));
    }
    for key in ["x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-initial-cluster-size"]
    {
        let fields = [("x-queue-type", text("quorum")), (key, Value::I32(1))];
        refused(declare(&mut topology, "q", "d", &fields), 406, &of_type(key, "quorum"));
    }
}

#[test]
fn what_this_version_has_not_is_refused_by_name_and_never_ignored() {
    invalid(
        declare(&mut Topology::new(), "q", "d", &[("x-queue-type", text("stream"))]),
        "x-queue-type",
        "queue type 'stream' is not supported by this version yet",
    );
    exchange(&mut Topology::new(), "x", "direct", "d", &[("alternate-exchange", text("y"))]).unwrap();
}

#[test]
fn what_this_version_honours_is_accepted_and_so_is_what_nobody_knows() {
    let mut topology = Topology::new();
    let classic = [
        ("x-queue-mode", text("lazy")),
        ("x-queue-version", Value::I8(1)),
        ("x-queue-leader-locator", text("client-local")),
        ("x-queue-master-locator", text("min-masters")),
        ("durable", text("false")),
        ("auto-delete", text("false")),
    ];
    declare(&mut topology, "c", "d", &classic).unwrap();
    let quorum = [
        ("x-queue-type", text("quorum")),
        ("x-quorum-initial-group-size", Value::I32(3)),
        ("x-max-in-memory-length", Value::I32(0)),
        ("x-max-in-memory-bytes", Value::I32(0)),
        ("x-queue-leader-locator", text("balanced")),
        ("x-quorum-target-group-size", Value::I32(5)),
        ("x-consumer-disconnected-timeout", Value::I32(0)),
        ("x-message-deduplication", Value::Bool(true)),
        ("x-deduplication-window-ms", Value::I32(10)),
    ];
    declare(&mut topology, "q", "d", &quorum).unwrap();
    let queue = topology.find_queue(SLASH, b"q").unwrap();
    assert_eq!(queue.shape.settings.initial_group_size, Some(3));
    assert_eq!((queue.rules.target_group_size, queue.rules.consumer_disconnected_timeout_ms), (Some(5), Some(0)));
    assert_eq!(queue.rules.dedup, Some(DedupRule { window_ms: 10 }));
    let stored = &topology.find_queue(SLASH, b"c").unwrap().shape.arguments;
    assert_eq!(stored.get("auto-delete"), Some(&text("false")), "an unknown key is stored");
    declare(&mut topology, "c", "d", &classic[..4]).expect("an unknown key is outside equivalence");
}

#[test]
fn deduplication_takes_a_bool_and_its_window_needs_it() {
    for queue_type in ["classic", "quorum"] {
        let declare = |fields: &[(&'static str, Value)]| {
            let fields: Vec<_> = [("x-queue-type", text(queue_type))].iter().chain(fields).cloned().collect();
            declare(&mut Topology::new(), "q", "d", &fields)
        };
        let (key, window) = ("x-message-deduplication", "x-deduplication-window-ms");
        invalid(declare(&[(key, Value::I32(1))]), key, "{unacceptable_type,signedint}");
        invalid(declare(&[(key, Value::Bool(true)), (window, Value::I32(0))]), window, "{value_zero,0}");
        let week = 604_800_000;
        declare(&[(key, Value::Bool(true)), (window, Value::I32(week))]).unwrap();
        let reason = format!("{{value_too_large,{}}}", week + 1);
        invalid(declare(&[(key, Value::Bool(true)), (window, Value::I32(week + 1))]), window, &reason);
        let needs = "makes sense only with 'x-message-deduplication' = true";
        invalid(declare(&[(window, Value::I32(5))]), window, needs);
        invalid(declare(&[(window, Value::I32(5)), (key, Value::Bool(false))]), window, needs);
    }
}

#[test]
fn quorum_queues_are_durable_and_nothing_else() {
    let quorum = [("x-queue-type", text("quorum"))];
    let property = |property| format!("PRECONDITION_FAILED - invalid property '{property}' for queue 'q' in vhost '/'");
    let mut topology = Topology::new();
    refused(declare(&mut topology, "q", "", &quorum), 406, &property("non-durable"));
    refused(declare(&mut topology, "q", "dx", &quorum), 406, &property("exclusive-owner"));
    refused(declare(&mut topology, "q", "dxa", &quorum), 406, &property("auto-delete"));
    refused(
        declare(&mut topology, "amq.gen-1", "ds", &quorum),
        406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
    );
}

#[test]
fn a_redeclare_that_differs_names_the_first_difference() {
    let mut topology = Topology::new();
    let inequivalent = |key: &str, rest: &str| {
        format!("PRECONDITION_FAILED - inequivalent arg '{key}' for queue 'q' in vhost '/': {rest}")
    };
    declare(&mut topology, "q", "d", &[("x-queue-version", Value::I32(1))]).unwrap();
    declare(&mut topology, "q", "d", &[("x-queue-version", Value::I64(1)), ("x-queue-type", text("classic"))]).unwrap();
    let durable = inequivalent("durable", "received 'false' but current is 'true'");
    refused(declare(&mut topology, "q", "", &[]), 406, &durable);
    let auto_delete = inequivalent("auto_delete", "received 'true' but current is 'false'");
    refused(declare(&mut topology, "q", "da", &[]), 406, &auto_delete);
    let none = inequivalent("x-queue-version", "received none but current is the value '1' of type 'signedint'");
    refused(declare(&mut topology, "q", "d", &[]), 406, &none);
    let number = inequivalent("x-queue-version", "received '2' but current is '1'");
    refused(declare(&mut topology, "q", "d", &[("x-queue-version", Value::U8(2))]), 406, &number);
    let number = inequivalent("x-queue-version", "received '1' but current is '1'");
    refused(declare(&mut topology, "q", "d", &[("x-queue-version", text("1"))]), 406, &number);
    let more = [("x-queue-version", Value::I32(1)), ("x-max-length", Value::I32(5))];
    let unexpected = inequivalent("x-max-length", "received the value '5' of type 'signedint' but current is none");
    refused(declare(&mut topology, "q", "d", &more), 406, &unexpected);
    let kind = inequivalent("x-queue-type", "received 'quorum' but current is 'classic'");
    let quorum = [("x-queue-version", Value::I32(1)), ("x-queue-type", text("quorum"))];
    refused(declare(&mut topology, "q", "d", &quorum), 406, &kind);
    refused(declare(&mut topology, "q", "dx", &[]), 405, LOCKED);
}

#[test]
fn an_exclusive_queue_is_locked_for_other_connections() {
    let mut topology = Topology::new();
    let other = Actor { connection: 2, ..GUEST };
    declare(&mut topology, "q", "dx", &[]).unwrap();
    declare(&mut topology, "q", "x", &[]).expect("the durable flag of an exclusive queue is ignored");
    refused(declare(&mut topology, "q", "", &[]), 405, LOCKED);
    refused(declare_as(&mut topology, other, "q", "x", &[]), 405, LOCKED);
    refused(topology.check_queue_passive(other, SLASH, b"q").map(|_| ()), 405, LOCKED);
    refused(topology.check_read(other, SLASH, b"q").map(|_| ()), 405, LOCKED);
    refused(topology.check_queue_delete(other, SLASH, b"q"), 405, LOCKED);
    let locked = binding("amq.direct", Kind::Queue, "q", "k", &[]);
    refused(bind_as(&mut topology, other, locked.clone()), 405, LOCKED);
    bind_as(&mut topology, GUEST, locked.clone()).unwrap();
    refused(topology.check_unbind(other, locked), 405, LOCKED);
    assert_eq!(topology.exclusive_queues(1).count(), 1);
    assert!(topology.exclusive_queues(2).next().is_none());
}

#[test]
fn names_of_the_broker_are_reserved_on_creation_only() {
    let mut topology = Topology::new();
    let queue = "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'";
    refused(declare(&mut topology, "amq.foo", "", &[]), 403, queue);
    refused(declare(&mut topology, "\r\namq.\nfoo", "", &[]), 403, queue);
    declare(&mut topology, "amq.gen-1", "s", &[]).unwrap();
    let again = "ACCESS_REFUSED - queue name 'amq.gen-1' contains reserved prefix 'amq.*'";
    refused(declare(&mut topology, "amq.gen-1", "", &[]), 403, again);
    topology.check_queue_passive(GUEST, SLASH, b"amq.gen-1").unwrap();
    refused(
        exchange(&mut topology, "amq.foo", "direct", "d", &[]),
        403,
        "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'",
    );
    exchange(&mut topology, "amq.direct", "direct", "d", &[]).unwrap();
    topology.check_exchange_passive(SLASH, b"amq.topic").unwrap();
}

#[test]
fn names_lose_their_line_ends_and_may_have_255_bytes() {
    let mut topology = Topology::new();
    declare(&mut topology, "a\r\nb", "", &[]).unwrap();
    assert!(topology.find_queue(SLASH, b"ab").is_some());
    topology.check_queue_passive(GUEST, SLASH, b"a\nb").unwrap();
    let long = "q".repeat(255);
    declare(&mut topology, &long, "d", &[]).unwrap();
    refused(
        topology.check_queue_passive(GUEST, SLASH, "p".repeat(255).as_bytes()).map(|_| ()),
        404,
        &format!("NOT_FOUND - no queue '{}...", "p".repeat(230)),
    );
}

#[test]
fn missing_things_are_404_where_they_are_needed_and_fine_where_they_are_removed() {
    let mut topology = Topology::new();
    declare(&mut topology, "q", "", &[]).unwrap();
    let no_queue = "NOT_FOUND - no queue 'missing' in vhost '/'";
    let no_exchange = "NOT_FOUND - no exchange 'missing' in vhost '/'";
    refused(topology.check_queue_passive(GUEST, SLASH, b"missing").map(|_| ()), 404, no_queue);
    refused(topology.check_read(GUEST, SLASH, b"missing").map(|_| ()), 404, no_queue);
    refused(topology.check_exchange_passive(SLASH, b"missing"), 404, no_exchange);
    refused(topology.check_publish(GUEST, SLASH, b"missing", b"k"), 404, no_exchange);
    refused(bind(&mut topology, "missing", "q", "k", &[]), 404, no_exchange);
    refused(bind(&mut topology, "amq.direct", "missing", "k", &[]), 404, no_queue);
    refused(bind(&mut topology, "missing", "missing too", "k", &[]), 404, no_exchange);
    let between = binding("amq.direct", Kind::Exchange, "missing", "k", &[]);
    refused(bind_as(&mut topology, GUEST, between), 404, no_exchange);
    assert_eq!(topology.check_queue_delete(GUEST, SLASH, b"missing"), Ok(Checked::Done));
    assert_eq!(topology.check_exchange_delete(GUEST, SLASH, b"missing", true), Ok(Checked::Done));
    unbind(&mut topology, "missing", "missing", "k").unwrap();
    unbind(&mut topology, "amq.direct", "q", "k").unwrap();
}

#[test]
fn the_default_exchange_and_the_brokers_own_are_left_alone() {
    let mut topology = Topology::new();
    declare(&mut topology, "q", "", &[]).unwrap();
    let default = "ACCESS_REFUSED - operation not permitted on the default exchange";
    refused(exchange(&mut topology, "", "direct", "d", &[]), 403, default);
    refused(topology.check_exchange_passive(SLASH, b""), 403, default);
    refused(delete_exchange(&mut topology, "", false), 403, default);
    refused(bind(&mut topology, "", "q", "k", &[]), 403, default);
    refused(bind_as(&mut topology, GUEST, binding("amq.direct", Kind::Exchange, "", "k", &[])), 403, default);
    refused(unbind(&mut topology, "", "q", "q"), 403, default);
    refused(
        delete_exchange(&mut topology, "amq.direct", false),
        403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    );
    topology.check_publish(GUEST, SLASH, b"", b"k").unwrap();
}

#[test]
fn exchanges_are_refused_for_type_difference_use_and_being_internal() {
    let mut topology = Topology::new();
    for kind in ["nope", "x-consistent", "Direct", ""] {
        let unknown = format!("PRECONDITION_FAILED - unknown exchange type '{kind}'");
        refused(exchange(&mut topology, "x", kind, "d", &[]), 406, &unknown);
    }
    refused(
        exchange(&mut topology, "x", "direct", "d", &[("alternate-exchange", Value::I32(5))]),
        406,
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
    );
    exchange(&mut topology, "x", "direct", "d", &[("anything", Value::Void)]).unwrap();
    exchange(&mut topology, "x", "direct", "d", &[]).unwrap();
    let inequivalent = |key: &str, rest: &str| {
        format!("PRECONDITION_FAILED - inequivalent arg '{key}' for exchange 'x' in vhost '/': {rest}")
    };
    let kind = inequivalent("type", "received 'fanout' but current is 'direct'");
    refused(exchange(&mut topology, "x", "fanout", "", &[]), 406, &kind);
    let durable = inequivalent("durable", "received 'false' but current is 'true'");
    refused(exchange(&mut topology, "x", "direct", "ai", &[]), 406, &durable);
    let auto_delete = inequivalent("auto_delete", "received 'true' but current is 'false'");
    refused(exchange(&mut topology, "x", "direct", "dai", &[]), 406, &auto_delete);
    let internal = inequivalent("internal", "received 'true' but current is 'false'");
    refused(exchange(&mut topology, "x", "direct", "di", &[]), 406, &internal);
    let alternate = inequivalent("alternate-exchange", "received the value 'y' of type 'longstr' but current is none");
    refused(exchange(&mut topology, "x", "direct", "d", &[("alternate-exchange", text("y"))]), 406, &alternate);
    declare(&mut topology, "q", "", &[]).unwrap();
    bind(&mut topology, "x", "q", "k", &[]).unwrap();
    refused(delete_exchange(&mut topology, "x", true), 406, "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use");
    unbind(&mut topology, "x", "q", "k").unwrap();
    delete_exchange(&mut topology, "x", true).unwrap();
    exchange(&mut topology, "i", "fanout", "i", &[]).unwrap();
    refused(
        topology.check_publish(GUEST, SLASH, b"i", b"k"),
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'i' in vhost '/'",
    );
}

#[test]
fn bindings_are_refused_for_x_match_and_too_many_hashes() {
    let mut topology = Topology::new();
    declare(&mut topology, "q", "", &[]).unwrap();
    refused(
        bind(&mut topology, "amq.match", "q", "", &[("x-match", text("some"))]),
        406,
        "PRECONDITION_FAILED - Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x",
    );
    refused(
        bind(&mut topology, "amq.headers", "q", "", &[("x-match", Value::I32(5))]),
        406,
        "PRECONDITION_FAILED - Invalid x-match field type signedint (value 5); expected longstr",
    );
    bind(&mut topology, "amq.direct", "q", "", &[("x-match", text("some"))]).expect("only headers exchanges care");
    bind(&mut topology, "amq.topic", "q", "#.a.#", &[]).unwrap();
    refused(
        bind(&mut topology, "amq.topic", "q", "#.a.#.b.#", &[]),
        406,
        "PRECONDITION_FAILED - Topic binding key '#.a.#.b.#' uses 3 '#' wildcards, at most 2 are allowed",
    );
}

#[test]
fn durability_arguments_are_held_against_each_other() {
    let level = |word: &str| ("x-durability", text(word));
    let header = ("x-durability-value-header", text("amount"));
    let cap = ("x-durability-value-cap", Value::I64(1000));
    let interval = ("x-durability-interval-ms", Value::I32(100));
    let mut topology = Topology::new();
    let mut bad = |flags: &str, fields: &[(&str, Value)], key: &str, reason: &str| {
        invalid(declare(&mut topology, "q", flags, fields), key, reason);
    };
    bad("d", &[level("fast")], "x-durability", "\"unsupported durability 'fast'\"");
    bad("d", &[("x-durability", Value::Bool(true))], "x-durability", "{unacceptable_type,bool}");
    let memory = "only a durable queue has a durability level";
    bad("", &[level("synced")], "x-durability", memory);
    bad("dx", std::slice::from_ref(&interval), "x-durability-interval-ms", memory);
    let stray = "makes sense only with 'x-durability' = 'selective'";
    bad("d", std::slice::from_ref(&header), "x-durability-value-header", stray);
    bad("d", &[level("synced"), cap.clone()], "x-durability-value-cap", stray);
    bad("d", &[level("written"), interval.clone()], "x-durability-interval-ms", stray);
    let needs = "'selective' needs a bound: 'x-durability-value-header' with 'x-durability-value-cap', or \
                 'x-durability-interval-ms'";
    bad("d", &[level("selective")], "x-durability", needs);
    let beside = "needs 'x-durability-value-cap' beside it";
    bad("d", &[level("selective"), header.clone()], "x-durability-value-header", beside);
    let beside = "needs 'x-durability-value-header' beside it";
    bad("d", &[level("selective"), cap.clone(), interval.clone()], "x-durability-value-cap", beside);
    let cap_of = |value| [level("selective"), header.clone(), ("x-durability-value-cap", value)];
    bad("d", &cap_of(Value::I32(0)), "x-durability-value-cap", "{value_zero,0}");
    bad("d", &cap_of(Value::I32(-7)), "x-durability-value-cap", "{value_negative,-7}");
    bad("d", &cap_of(Value::F64(0.5)), "x-durability-value-cap", "\"expected integer, got double\"");
    let empty = [level("selective"), ("x-durability-value-header", text("")), cap.clone()];
    bad("d", &empty, "x-durability-value-header", "invalid_header_name");
    let every = |ms| [level("selective"), ("x-durability-interval-ms", Value::I64(ms))];
    bad("d", &every(0), "x-durability-interval-ms", "{value_zero,0}");
    bad("d", &every(3_600_001), "x-durability-interval-ms", "{value_too_large,3600001}");

    let all = [("x-queue-type", text("quorum")), level("selective"), header, cap, interval];
    declare(&mut topology, "q", "d", &all).unwrap();
    let settings = &topology.find_queue(SLASH, b"q").unwrap().shape.settings;
    assert_eq!(settings.durability, selective_1000_by_amount_or_100_ms());
    let changed = declare(&mut topology, "q", "d", &all[..4]);
    refused(
        changed,
        406,
        "PRECONDITION_FAILED - inequivalent arg 'x-durability-interval-ms' for queue 'q' in vhost '/': received none \
         but current is the value '100' of type 'signedint'",
    );
}

fn selective_1000_by_amount_or_100_ms() -> broker::topology::Durability {
    use broker::topology::{Durability, Selective, ValueCap};
    Durability::Selective(Selective {
        value: Some(ValueCap { header: Name::from("amount"), cap: 1000 }),
        interval_ms: Some(100),
    })
}

#[test]
fn consumer_arguments_are_checked_as_rabbitmq_does_and_refused_where_we_have_none() {
    let mut topology = Topology::new();
    declare(&mut topology, "q", "", &[]).unwrap();
    let queue = topology.find_queue(SLASH, b"q").unwrap();
    let check = |key, value| topology.check_consume_arguments(queue, &table(&[(key, value)]));
    invalid(check("x-priority", text("high")), "x-priority", "\"expected integer, got longstr\"");
    assert_eq!(check("x-priority", Value::I32(-3)).unwrap().priority, -3);
    assert_eq!(check("x-priority", Value::I64(1 << 40)).unwrap().priority, i32::MAX);
    for key in ["x-stream-offset", "x-consumer-timeout"] {
        let text = format!(
            "PRECONDITION_FAILED - invalid arg '{key}' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
        );
        refused(check(key, Value::I32(1)), 406, &text);
    }
    assert_eq!(check("anything", Value::Void).unwrap().priority, 0);
}

#[test]
fn rights_are_asked_for_by_name_of_the_right_and_the_thing() {
    let mut topology = Topology::new();
    let put = |topology: &mut Topology, permission| {
        let command = Command::PutPermission { user: Name::from("ann"), vhost: SLASH, permission };
        topology.apply(&command).outcome.unwrap();
    };
    let password = PasswordHash::new(b"secret", [1, 2, 3, 4]);
    topology.apply(&Command::PutUser { name: Name::from("ann"), password, tags: vec![] }).outcome.unwrap();
    let ann = Actor { user: b"ann", connection: 7, scopes: None };
    declare(&mut topology, "q", "d", &[]).unwrap();
    refused(
        topology.open_vhost(ann, b"/", OpenConnections::default()),
        530,
        "NOT_ALLOWED - access to vhost '/' refused for user 'ann'",
    );
    refused(topology.open_vhost(ann, b"none", OpenConnections::default()), 530, "NOT_ALLOWED - vhost none not found");
    put(&mut topology, Permission::nothing());
    assert_eq!(topology.open_vhost(ann, b"/", OpenConnections::default()), Ok(SLASH));
    let no = |right: &str, thing: &str| {
        format!("ACCESS_REFUSED - {right} access to {thing} in vhost '/' refused for user 'ann'")
    };
    refused(declare_as(&mut topology, ann, "q", "d", &[]), 403, &no("configure", "queue 'q'"));
    refused(topology.check_read(ann, SLASH, b"q").map(|_| ()), 403, &no("read", "queue 'q'"));
    refused(topology.check_publish(ann, SLASH, b"", b"k"), 403, &no("write", "exchange 'amq.default'"));
    topology.check_queue_passive(ann, SLASH, b"q").expect("to look needs no right");
    topology.check_exchange_passive(SLASH, b"amq.topic").expect("to look needs no right");
    put(&mut topology, Permission { write: Pattern::everything(), ..Permission::nothing() });
    topology.check_publish(ann, SLASH, b"amq.topic", b"k").unwrap();
    let bound = binding("amq.direct", Kind::Queue, "q", "k", &[]);
    refused(bind_as(&mut topology, ann, bound.clone()), 403, &no("read", "exchange 'amq.direct'"));
    put(&mut topology, Permission { read: Pattern::everything(), ..Permission::nothing() });
    refused(bind_as(&mut topology, ann, bound), 403, &no("write", "queue 'q'"));
    topology.check_read(ann, SLASH, b"q").unwrap();
    assert!(topology.user(b"ann").unwrap().password.matches(b"secret"));
    assert!(topology.user(b"guest").unwrap().password.matches(b"guest"));
}

/// A user "ann" with these patterns for configure, write and read in `/`.
fn with_ann(rights: [&str; 3]) -> Topology {
    let mut topology = Topology::new();
    let [configure, write, read] = rights.map(|text| Pattern::new(text).unwrap());
    let password = PasswordHash::new(b"secret", [1, 2, 3, 4]);
    let user = Name::from("ann");
    topology.apply(&Command::PutUser { name: user.clone(), password, tags: vec![] }).outcome.unwrap();
    let permission = Permission { configure, write, read };
    topology.apply(&Command::PutPermission { user, vhost: SLASH, permission }).outcome.unwrap();
    topology
}

const ANN: Actor<'static> = Actor { user: b"ann", connection: 7, scopes: None };

#[test]
fn rights_are_patterns_over_names_and_the_default_exchange_has_one() {
    let mut topology = with_ann(["^mine", r"^(mine|amq\.default)", "^(mine|open)"]);
    declare(&mut topology, "open", "d", &[]).unwrap();
    declare_as(&mut topology, ANN, "mine-1", "d", &[]).unwrap();
    topology.check_publish(ANN, SLASH, b"", b"anything").unwrap();
    topology.check_read(ANN, SLASH, b"open").unwrap();
    let text = "ACCESS_REFUSED - configure access to queue 'open' in vhost '/' refused for user 'ann'";
    refused(declare_as(&mut topology, ANN, "open", "d", &[]), 403, text);
    let text = "ACCESS_REFUSED - write access to exchange 'amq.topic' in vhost '/' refused for user 'ann'";
    refused(topology.check_publish(ANN, SLASH, b"amq.topic", b"k"), 403, text);
    let other = [("x-dead-letter-exchange", self::text("amq.topic"))];
    refused(declare_as(&mut topology, ANN, "mine-2", "d", &other), 403, text);
    topology.apply(&Command::ClearPermission { user: Name::from("ann"), vhost: SLASH }).outcome.unwrap();
    let text = "ACCESS_REFUSED - read access to queue 'open' in vhost '/' refused for user 'ann'";
    refused(topology.check_read(ANN, SLASH, b"open").map(|_| ()), 403, text);
    let deleted = topology.apply(&Command::DeleteUser { name: Name::from("ann") });
    assert_eq!(deleted.effects, [Effect::UserDeleted { name: Name::from("ann") }]);
    assert!(topology.user(b"ann").is_none());
}

#[test]
fn topic_rights_are_patterns_over_routing_keys_of_one_exchange() {
    let mut topology = with_ann([".*"; 3]);
    declare(&mut topology, "q", "d", &[]).unwrap();
    let (user, exchange) = (Name::from("ann"), Name::from("amq.topic"));
    let (write, read) = ("^{username}\\.".to_owned(), "^public".to_owned());
    let put = Command::PutTopicPermission { user: user.clone(), vhost: SLASH, exchange: exchange.clone(), write, read };
    topology.apply(&put).outcome.unwrap();
    topology.check_publish(ANN, SLASH, b"amq.topic", b"ann.x").unwrap();
    topology.check_publish(ANN, SLASH, b"amq.direct", b"bob.x").unwrap();
    let text = |access: &str, key: &str| {
        format!(
            "ACCESS_REFUSED - {access} access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
        )
    };
    refused(topology.check_publish(ANN, SLASH, b"amq.topic", b"bob.x"), 403, &text("write", "bob.x"));
    bind_as(&mut topology, ANN, binding("amq.topic", Kind::Queue, "q", "public.#", &[])).unwrap();
    let other = binding("amq.topic", Kind::Queue, "q", "#", &[]);
    refused(bind_as(&mut topology, ANN, other.clone()), 403, &text("read", "#"));
    topology.apply(&Command::ClearTopicPermission { user, vhost: SLASH, exchange }).outcome.unwrap();
    bind_as(&mut topology, ANN, other).unwrap();
}

#[test]
fn limits_are_kept_and_named() {
    let mut topology = with_ann([".*"; 3]);
    let limits = VhostLimits { connections_max: Some(2), queues_max: Some(1) };
    topology.apply(&Command::SetVhostLimits { vhost: SLASH, limits }).outcome.unwrap();
    declare(&mut topology, "first", "d", &[]).unwrap();
    declare(&mut topology, "first", "d", &[]).unwrap();
    let text = |name: &str| {
        format!("PRECONDITION_FAILED - cannot declare queue '{name}': queue limit in vhost '/' (1) is reached")
    };
    refused(declare(&mut topology, "second", "d", &[]), 406, &text("second"));
    refused(declare(&mut topology, "transient", "x", &[]), 406, &text("transient"));
    let open = |of_vhost, of_user| OpenConnections { of_vhost, of_user };
    let ann = Actor { user: b"ann", connection: 7, scopes: None };
    let text = "NOT_ALLOWED - access to vhost '/' refused for user 'ann': connection limit (2) is reached";
    refused(topology.open_vhost(ann, b"/", open(2, 0)).map(|_| ()), 530, text);
    let limits = UserLimits { connections_max: Some(0), channels_max: Some(3) };
    topology.apply(&Command::SetUserLimits { user: Name::from("ann"), limits }).outcome.unwrap();
    let text = "NOT_ALLOWED - connection refused for user 'ann': user connection limit (0) is reached";
    refused(topology.open_vhost(ann, b"/", open(1, 0)).map(|_| ()), 530, text);
    topology.check_channel_open(b"ann", 2).unwrap();
    let text =
        "NOT_ALLOWED - number of channels opened for user 'ann' has reached the maximum allowed user limit of (3)";
    refused(topology.check_channel_open(b"ann", 3), 530, text);
    let bytes = topology.encode_snapshot();
    let copy = Topology::decode_snapshot(&bytes).unwrap();
    assert_eq!(copy.encode_snapshot(), bytes);
    assert_eq!(copy.vhost_of(SLASH).unwrap().limits.queues_max, Some(1));
}

#[test]
fn arguments_too_deep_or_too_large_to_store_are_refused() {
    let mut deep = Table::new();
    for _ in 0..64 {
        let mut outer = Table::new();
        outer.push("t", Value::Table(deep));
        deep = outer;
    }
    let mut topology = Topology::new();
    refused(
        declare(&mut topology, "q", "d", &[("deep", deep.get("t").unwrap().clone()), ("x", Value::Table(deep))]),
        406,
        "PRECONDITION_FAILED - arguments for queue 'q' in vhost '/' nest deeper than 64 levels",
    );
    refused(
        declare(&mut topology, "q", "d", &[("big", text(&"x".repeat(128 * 1024)))]),
        406,
        "PRECONDITION_FAILED - arguments for queue 'q' in vhost '/' take more than 131072 bytes",
    );
}

#[test]
fn a_quorum_queue_may_be_declared_again_as_a_classic_one_where_that_is_set() {
    let mut topology = Topology::new();
    let of = |word: &str| ("x-queue-type", text(word));
    declare(&mut topology, "q", "d", &[of("quorum")]).unwrap();
    declare(&mut topology, "c", "d", &[of("classic")]).unwrap();
    let differs = |refusal: Result<(), Refusal>| assert_eq!(refusal.unwrap_err().code, 406);
    differs(declare(&mut topology, "q", "d", &[of("classic")]));
    differs(declare(&mut topology, "q", "d", &[]));
    topology.set_redeclaration(Redeclaration::Relaxed);
    for fields in [vec![of("classic")], vec![], vec![of("quorum")]] {
        declare(&mut topology, "q", "d", &fields).unwrap();
    }
    let queue = topology.find_queue(SLASH, b"q").unwrap();
    assert_eq!(queue.shape.queue_type, QueueType::Quorum, "it stays what it is");
    // All else has to be the same, and a classic queue becomes no quorum queue.
    differs(declare(&mut topology, "q", "", &[of("classic")]));
    differs(declare(&mut topology, "q", "d", &[of("classic"), ("x-max-length", Value::I32(5))]));
    differs(declare(&mut topology, "c", "d", &[of("quorum")]));
}

#[test]
fn a_token_may_do_what_its_scopes_say_and_not_what_a_user_of_its_name_may() {
    let mut topology = with_ann([".*"; 3]);
    declare(&mut topology, "q", "d", &[]).unwrap();
    let scopes = |texts: &[&str]| Scopes::parse(texts.iter().copied(), &|_| None);
    let (reads, writes) = (scopes(&["read:%2F/q"]), scopes(&["write:%2F/amq.topic/a.*", "write:%2F/amq.default"]));
    let by = |scopes| Actor { user: b"ann", connection: 7, scopes: Some(scopes) };
    assert_eq!(topology.open_vhost(by(&reads), b"/", OpenConnections::default()), Ok(SLASH));
    let none = scopes(&["read:other/*"]);
    let text = "NOT_ALLOWED - access to vhost '/' refused for user 'ann'";
    refused(topology.open_vhost(by(&none), b"/", OpenConnections::default()).map(|_| ()), 530, text);
    topology.check_read(by(&reads), SLASH, b"q").unwrap();
    let text = "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'ann'";
    refused(topology.check_publish(by(&reads), SLASH, b"", b"q"), 403, text);
    topology.check_publish(by(&writes), SLASH, b"", b"q").unwrap();
    topology.check_publish(by(&writes), SLASH, b"amq.topic", b"a.b").unwrap();
    let text = "ACCESS_REFUSED - write access to topic 'b' in exchange 'amq.topic' in vhost '/' refused for user 'ann'";
    refused(topology.check_publish(by(&writes), SLASH, b"amq.topic", b"b"), 403, text);
}

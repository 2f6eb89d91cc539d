//! Declaring: equivalence, passive declares, exclusivity, names.
//!
//! Invariant: a declare that succeeds gave exactly what it asked for; everything else is refused
//! with the argument's name.

use clients::broker::{is_foreign, unique};
use clients::methods::*;
use clients::{Broker, ExchangeDeclare, QueueDeclare, Scope, Value};

use crate::setup::{Kind, assert_closed, fill, new_queue, with_queue};

#[test]
fn equal_declare_is_answered_with_the_counts() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 3);
        client.consume(channel, &queue, "c").unwrap();
        client.delivery(channel);
        let other = client.channel();
        let (name, _, consumers) = client.declare(other, &kind.declare(&queue)).unwrap();
        assert_eq!((name, consumers), (queue, 1), "{kind:?}");
    }
}

#[test]
fn declare_with_another_flag_closes_the_channel_with_406_that_names_it() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let base = Kind::Classic.declare(&queue);
    let wrong = |what: &str| match what {
        "durable" => QueueDeclare { durable: false, exclusive: false, ..base.clone() },
        "auto_delete" => QueueDeclare { auto_delete: true, ..base.clone() },
        _ => unreachable!(),
    };
    for (what, received, current) in [("durable", "false", "true"), ("auto_delete", "true", "false")] {
        let other = client.channel();
        let closed = client.declare(other, &wrong(what)).unwrap_err();
        let text = format!(
            "PRECONDITION_FAILED - inequivalent arg '{what}' for queue '{queue}' in vhost '/': received '{received}' but current is '{current}'"
        );
        assert_closed(&closed, Scope::Channel, 406, &text, QUEUE_DECLARE);
    }
    client.round_trip(channel).unwrap();
}

#[test]
fn declare_with_another_type_closes_the_channel_with_406() {
    let (mut client, _, queue) = with_queue(Kind::Classic);
    let other = client.channel();
    let closed = client.declare(other, &Kind::Quorum.declare(&queue)).unwrap_err();
    let text = format!(
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{queue}' in vhost '/': received 'quorum' but current is 'classic'"
    );
    assert_closed(&closed, Scope::Channel, 406, &text, QUEUE_DECLARE);
}

#[test]
fn passive_declare_looks_and_asks_for_nothing_else() {
    for kind in Kind::DURABLE {
        let (mut client, channel, queue) = with_queue(kind);
        fill(&mut client, &queue, 2);
        let look = QueueDeclare { name: &queue, passive: true, ..Default::default() };
        assert_eq!(client.declare(channel, &look).unwrap(), (queue.clone(), 2, 0), "{kind:?}: flags are not compared");
    }
}

#[test]
fn passive_declare_of_a_missing_queue_closes_the_channel_with_404() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let closed = client.counts(channel, "no-such-queue").unwrap_err();
    assert_closed(&closed, Scope::Channel, 404, "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", QUEUE_DECLARE);
}

#[test]
fn passive_declare_of_exchanges() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    for name in ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"] {
        // The type is not compared.
        let look = ExchangeDeclare { name, kind: "direct", passive: true, ..Default::default() };
        client.declare_exchange(channel, &look).unwrap();
    }
    let look = ExchangeDeclare { name: "no-such-exchange", kind: "direct", passive: true, ..Default::default() };
    let closed = client.declare_exchange(channel, &look).unwrap_err();
    let text = "NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'";
    assert_closed(&closed, Scope::Channel, 404, text, EXCHANGE_DECLARE);
}

#[test]
fn exclusive_queue_is_locked_for_other_connections() {
    let (mut owner, channel, queue) = with_queue(Kind::Exclusive);
    let mut stranger = Broker::shared().connect();
    let text = format!("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'");
    let theirs = stranger.channel();
    let closed = stranger.declare(theirs, &Kind::Exclusive.declare(&queue)).unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, QUEUE_DECLARE);
    let theirs = stranger.channel();
    let closed = stranger.counts(theirs, &queue).unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, QUEUE_DECLARE);
    let theirs = stranger.channel();
    let closed = stranger.consume(theirs, &queue, "").unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, BASIC_CONSUME);
    let theirs = stranger.channel();
    let closed = stranger.get(theirs, &queue, true).unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, BASIC_GET);
    let theirs = stranger.channel();
    let closed = stranger.purge(theirs, &queue).unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, QUEUE_PURGE);
    let theirs = stranger.channel();
    let closed = stranger.delete(theirs, &queue, false, false).unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, QUEUE_DELETE);
    let theirs = stranger.channel();
    let closed = stranger.bind(theirs, &queue, "amq.direct", "k", &[]).unwrap_err();
    assert_closed(&closed, Scope::Channel, 405, &text, QUEUE_BIND);
    // Publishing to it is what a reply queue is for.
    fill(&mut stranger, &queue, 1);
    assert!(owner.get(channel, &queue, true).unwrap().is_some());
}

#[test]
fn exclusive_queue_may_be_used_by_all_channels_of_its_connection() {
    let (mut client, _, queue) = with_queue(Kind::Exclusive);
    let other = client.channel();
    client.declare(other, &Kind::Exclusive.declare(&queue)).unwrap();
    client.consume(other, &queue, "").unwrap();
}

#[test]
fn server_named_queues_have_names_of_their_own() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let queue = QueueDeclare { exclusive: true, ..Default::default() };
    let (first, ..) = client.declare(channel, &queue).unwrap();
    let (second, ..) = client.declare(channel, &queue).unwrap();
    assert!(first.starts_with("amq.gen-") && second.starts_with("amq.gen-"), "{first} {second}");
    assert_ne!(first, second);
    assert_eq!(client.counts(channel, &first).unwrap(), (0, 0));
    let (third, ..) = client.declare(channel, &QueueDeclare { auto_delete: true, ..queue }).unwrap();
    assert_ne!(first, third);
}

#[test]
fn names_that_begin_with_amq_are_reserved() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let queue = QueueDeclare { name: "amq.mine", durable: true, ..Default::default() };
    let closed = client.declare(channel, &queue).unwrap_err();
    let text = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'";
    assert_closed(&closed, Scope::Channel, 403, text, QUEUE_DECLARE);
    let channel = client.channel();
    let exchange = ExchangeDeclare { name: "amq.mine", kind: "direct", ..Default::default() };
    let closed = client.declare_exchange(channel, &exchange).unwrap_err();
    let text = "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'";
    assert_closed(&closed, Scope::Channel, 403, text, EXCHANGE_DECLARE);
    // Exchanges that exist may be declared again.
    let channel = client.channel();
    let exchange = ExchangeDeclare { name: "amq.topic", kind: "topic", durable: true, ..Default::default() };
    client.declare_exchange(channel, &exchange).unwrap();
}

#[test]
fn names_of_255_bytes_work() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = format!("{:ü>100}", unique("long"));
    let name = &name[..(0..=255).rev().find(|at| name.is_char_boundary(*at)).unwrap().min(name.len())];
    let queue = QueueDeclare { name, durable: true, ..Default::default() };
    assert_eq!(client.declare(channel, &queue).unwrap().0, name);
    fill(&mut client, name, 1);
    client.bind(channel, name, "amq.direct", name, &[]).unwrap();
    assert_eq!(client.delete(channel, name, false, false).unwrap(), 1);
}

#[test]
fn line_breaks_are_stripped_from_queue_names() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("broken");
    let with_breaks = format!("\r{name}\n\r\n");
    let queue = QueueDeclare { name: &with_breaks, exclusive: true, ..Default::default() };
    assert_eq!(client.declare(channel, &queue).unwrap().0, name);
}

#[test]
fn quorum_queues_refuse_what_they_can_not_be() {
    let mut client = Broker::shared().connect();
    for what in ["exclusive", "durable", "auto-delete"] {
        let name = unique("quorum");
        let mut queue = Kind::Quorum.declare(&name);
        match what {
            "exclusive" => queue.exclusive = true,
            "durable" => queue.durable = false,
            _ => queue.auto_delete = true,
        }
        let channel = client.channel();
        let closed = client.declare(channel, &queue).unwrap_err();
        assert_closed(&closed, Scope::Channel, 406, "PRECONDITION_FAILED - invalid property", QUEUE_DECLARE);
        assert!(closed.text.contains(what), "{} should name {what}", closed.text);
    }
}

#[test]
fn unknown_queue_type_is_refused() {
    let mut client = Broker::shared().connect();
    for (value, text) in
        [(Value::from("gold"), "invalid arg 'x-queue-type'"), (Value::from(7), "invalid arg 'x-queue-type'")]
    {
        let name = unique("typed");
        let queue =
            QueueDeclare { name: &name, durable: true, arguments: vec![("x-queue-type", value)], ..Default::default() };
        let channel = client.channel();
        let closed = client.declare(channel, &queue).unwrap_err();
        assert_closed(&closed, Scope::Channel, 406, text, QUEUE_DECLARE);
    }
}

#[test]
fn unknown_arguments_are_stored_and_not_compared() {
    for kind in Kind::DURABLE {
        let mut client = Broker::shared().connect();
        let channel = client.channel();
        let name = unique("odd");
        let mut queue = kind.declare(&name);
        queue.arguments.push(("x-nobody-knows-me", Value::from("a")));
        client.declare(channel, &queue).unwrap();
        queue.arguments.last_mut().unwrap().1 = Value::from(7);
        client.declare(channel, &queue).unwrap();
        queue.arguments.pop();
        client.declare(channel, &queue).unwrap();
    }
}

#[test]
fn arguments_of_the_articles_commands_are_accepted() {
    // `-qa auto-delete=false,durable=false,x-queue-type=quorum` and
    // `--queue-args x-max-in-memory-length=0 --quorum-queue`.
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("article");
    let mut queue = Kind::Quorum.declare(&name);
    queue.arguments.extend([
        ("auto-delete", Value::Bool(false)),
        ("durable", Value::Bool(false)),
        ("x-max-in-memory-length", Value::I64(0)),
    ]);
    client.declare(channel, &queue).unwrap();
    client.declare(channel, &queue).unwrap();
}

#[test]
fn equal_exchange_declare_succeeds_and_another_type_is_406() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("x");
    let exchange = ExchangeDeclare { name: &name, kind: "direct", durable: true, ..Default::default() };
    client.declare_exchange(channel, &exchange).unwrap();
    client.declare_exchange(channel, &exchange).unwrap();
    let other = client.channel();
    let closed = client.declare_exchange(other, &ExchangeDeclare { kind: "topic", ..exchange.clone() }).unwrap_err();
    let text = format!(
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'topic' but current is 'direct'"
    );
    assert_closed(&closed, Scope::Channel, 406, &text, EXCHANGE_DECLARE);
    let other = client.channel();
    let closed = client.declare_exchange(other, &ExchangeDeclare { durable: false, ..exchange.clone() }).unwrap_err();
    assert_closed(&closed, Scope::Channel, 406, "inequivalent arg 'durable' for exchange", EXCHANGE_DECLARE);
    client.delete_exchange(channel, &name, false).unwrap();
    client.delete_exchange(channel, &name, false).unwrap();
}

#[test]
fn unknown_exchange_type_is_refused() {
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("x");
    let exchange = ExchangeDeclare { name: &name, kind: "x-no-such-type", ..Default::default() };
    let closed = client.declare_exchange(channel, &exchange).unwrap_err();
    // 3.10 closes the connection with 503; since 3.12.14 it costs the channel only.
    let (scope, code) = if is_foreign() { (Scope::Connection, 503) } else { (Scope::Channel, 406) };
    assert_closed(&closed, scope, code, "unknown exchange type 'x-no-such-type'", EXCHANGE_DECLARE);
}

#[test]
fn default_and_predeclared_exchanges_can_not_be_deleted_or_bound_by_name() {
    let (mut client, _, queue) = with_queue(Kind::Classic);
    let default = "ACCESS_REFUSED - operation not permitted on the default exchange";
    let channel = client.channel();
    let closed = client.delete_exchange(channel, "", false).unwrap_err();
    assert_closed(&closed, Scope::Channel, 403, default, EXCHANGE_DELETE);
    let channel = client.channel();
    let closed = client.delete_exchange(channel, "amq.direct", false).unwrap_err();
    assert_eq!((closed.scope, closed.code), (Scope::Channel, 403), "{closed:?}");
    let channel = client.channel();
    let closed = client.bind(channel, &queue, "", "k", &[]).unwrap_err();
    assert_closed(&closed, Scope::Channel, 403, default, QUEUE_BIND);
    let channel = client.channel();
    let closed = client.unbind(channel, &queue, "", "k", &[]).unwrap_err();
    assert_closed(&closed, Scope::Channel, 403, default, QUEUE_UNBIND);
}

#[test]
fn exchange_in_use_is_not_deleted_if_unused() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let name = unique("x");
    client.declare_exchange(channel, &ExchangeDeclare { name: &name, kind: "fanout", ..Default::default() }).unwrap();
    client.bind(channel, &queue, &name, "", &[]).unwrap();
    let other = client.channel();
    let closed = client.delete_exchange(other, &name, true).unwrap_err();
    let text = format!("PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use");
    assert_closed(&closed, Scope::Channel, 406, &text, EXCHANGE_DELETE);
    client.unbind(channel, &queue, &name, "", &[]).unwrap();
    client.delete_exchange(channel, &name, true).unwrap();
}

#[test]
fn auto_delete_exchange_goes_with_its_last_binding() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let name = unique("x");
    let exchange = ExchangeDeclare { name: &name, kind: "direct", auto_delete: true, ..Default::default() };
    client.declare_exchange(channel, &exchange).unwrap();
    client.bind(channel, &queue, &name, "a", &[]).unwrap();
    client.bind(channel, &queue, &name, "b", &[]).unwrap();
    client.unbind(channel, &queue, &name, "a", &[]).unwrap();
    let look = ExchangeDeclare { name: &name, kind: "direct", passive: true, ..Default::default() };
    client.declare_exchange(channel, &look).unwrap();
    client.unbind(channel, &queue, &name, "b", &[]).unwrap();
    assert_eq!(client.declare_exchange(channel, &look).unwrap_err().code, 404);
}

#[test]
fn binding_what_is_missing_closes_the_channel_with_404() {
    let (mut client, _, queue) = with_queue(Kind::Classic);
    let channel = client.channel();
    let closed = client.bind(channel, &queue, "no-such-exchange", "k", &[]).unwrap_err();
    let text = "NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'";
    assert_closed(&closed, Scope::Channel, 404, text, QUEUE_BIND);
    let channel = client.channel();
    let closed = client.bind(channel, "no-such-queue", "amq.direct", "k", &[]).unwrap_err();
    assert_closed(&closed, Scope::Channel, 404, "NOT_FOUND - no queue 'no-such-queue' in vhost '/'", QUEUE_BIND);
    let channel = client.channel();
    client.unbind(channel, &queue, "amq.direct", "never bound", &[]).unwrap();
    let _ = new_queue(&mut client, channel, Kind::Exclusive);
}

#[test]
fn no_wait_declares_get_no_answer() {
    use clients::wire::Args;
    let mut client = Broker::shared().connect();
    let channel = client.channel();
    let name = unique("silent");
    let args = Args::new().short(0).shortstr(&name).bits(&[false, false, true, false, true]).table(&[]);
    client.send(channel, QUEUE_DECLARE, &args);
    let args = Args::new().short(0).shortstr(&name).shortstr("amq.direct").shortstr(&name).bits(&[true]).table(&[]);
    client.send(channel, QUEUE_BIND, &args);
    let args = Args::new().short(0).shortstr(&name).shortstr("c").bits(&[false, true, false, true]).table(&[]);
    client.send(channel, BASIC_CONSUME, &args);
    client.send(channel, CONFIRM_SELECT, &Args::new().bits(&[true]));
    client.publish(channel, &clients::Publish { exchange: "amq.direct", key: &name, body: b"x", ..Default::default() });
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(match client.event(channel) {
            clients::Event::Delivery(delivery) => delivery.consumer_tag,
            clients::Event::Confirm { tag: 1, nack: false, .. } => "confirm".into(),
            other => panic!("{other:?}"),
        });
    }
    seen.sort();
    assert_eq!(seen, ["c", "confirm"]);
    client.silent(channel);
}

//! Exchanges and bindings: which queues a message reaches.
//!
//! Invariant: a queue gets one copy of a message, however many of its bindings match.

use clients::broker::unique;
use clients::{Client, ExchangeDeclare, Properties, Publish, Value};

use crate::setup::{Kind, with_queue};

fn exchange(client: &mut Client, channel: u16, kind: &str) -> String {
    let name = unique(kind);
    let exchange = ExchangeDeclare { name: &name, kind, auto_delete: true, ..Default::default() };
    client.declare_exchange(channel, &exchange).unwrap();
    name
}

/// Publishes with `key` and headers, and says how many copies the queue has of it.
fn copies(client: &mut Client, channel: u16, to: (&str, &str), headers: &[(&str, Value)], queue: &str) -> u32 {
    let publisher = client.channel();
    client.confirm_select(publisher).unwrap();
    let properties = Properties::with_headers(headers);
    client.publish(publisher, &Publish { exchange: to.0, key: to.1, properties, body: b"m", ..Default::default() });
    client.confirmed(publisher, 1, 1);
    client.close_channel(publisher);
    client.purge(channel, queue).unwrap()
}

#[test]
fn direct_exchange_compares_the_whole_key() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let x = exchange(&mut client, channel, "direct");
    client.bind(channel, &queue, &x, "a.b", &[]).unwrap();
    client.bind(channel, &queue, &x, "", &[]).unwrap();
    for (key, count) in [("a.b", 1), ("a", 0), ("a.b.c", 0), ("A.B", 0), ("", 1)] {
        assert_eq!(copies(&mut client, channel, (&x, key), &[], &queue), count, "key {key:?}");
    }
}

#[test]
fn fanout_exchange_ignores_the_key() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    let x = exchange(&mut client, channel, "fanout");
    client.bind(channel, &queue, &x, "whatever", &[]).unwrap();
    client.bind(channel, &queue, &x, "else", &[]).unwrap();
    assert_eq!(copies(&mut client, channel, (&x, "none of them"), &[], &queue), 1, "one copy for two bindings");
    client.unbind(channel, &queue, &x, "whatever", &[]).unwrap();
    assert_eq!(copies(&mut client, channel, (&x, ""), &[], &queue), 1);
}

#[test]
fn topic_exchange_matches_word_by_word() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let keeper = exchange(&mut client, channel, "topic");
    client.bind(channel, &queue, &keeper, "this binding keeps the auto-delete exchange", &[]).unwrap();
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("#", &["", "a", "a.b.c", ".", ".."], &[]),
        ("*", &["a", ""], &["a.b", "."]),
        ("a.*", &["a.b", "a."], &["a", "a.b.c", "b.a"]),
        ("a.#", &["a", "a.b", "a.b.c", "a."], &["", "b", "ab"]),
        ("#.z", &["z", "a.z", "a.b.z", "z.z"], &["z.a", "az", ""]),
        ("a.#.z", &["a.z", "a.b.z", "a.b.c.z"], &["a", "z", "a.b"]),
        ("*.b.*", &["a.b.c", ".b."], &["b", "a.b", "b.c", "a.b.c.d"]),
        ("a.*.#", &["a.b", "a.b.c"], &["a"]),
        ("#.a.#", &["a", "x.a", "a.x", "x.y.a.z"], &["", "b", "aa"]),
        ("a..b", &["a..b"], &["a.b", "a.x.b"]),
        ("plain", &["plain"], &["plain.x", "Plain", ""]),
    ];
    for (pattern, matching, others) in cases {
        client.bind(channel, &queue, &keeper, pattern, &[]).unwrap();
        for key in *matching {
            // An empty key has no word at all, so `*` does not match it in every version of
            // RabbitMQ: asked below.
            if (*pattern, *key) == ("*", "") {
                continue;
            }
            assert_eq!(
                copies(&mut client, channel, (&keeper, key), &[], &queue),
                1,
                "{key:?} should match {pattern:?}"
            );
        }
        for key in *others {
            assert_eq!(copies(&mut client, channel, (&keeper, key), &[], &queue), 0, "{key:?} against {pattern:?}");
        }
        client.unbind(channel, &queue, &keeper, pattern, &[]).unwrap();
    }
}

#[test]
fn queue_gets_one_copy_however_many_bindings_match() {
    let (mut client, channel, queue) = with_queue(Kind::Quorum);
    let x = exchange(&mut client, channel, "topic");
    for pattern in ["#", "a.#", "*.b", "a.b"] {
        client.bind(channel, &queue, &x, pattern, &[]).unwrap();
    }
    client.bind(channel, &queue, &x, "a.b", &[]).unwrap();
    assert_eq!(copies(&mut client, channel, (&x, "a.b"), &[], &queue), 1);
}

#[test]
fn headers_exchange_matches_all_or_any() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let x = exchange(&mut client, channel, "headers");
    client.bind(channel, &queue, &x, "keeps the exchange", &[("never", Value::from("sent"))]).unwrap();
    let (one, two) = (("a", Value::from(1)), ("b", Value::from("two")));
    let both = [one.clone(), two.clone()];
    let wrong = [("a", Value::from(2)), ("b", Value::from("no"))];
    let with = |mode: &'static str| [one.clone(), two.clone(), ("x-match", Value::from(mode))];
    for (mode, cases) in [
        ("all", [(&both[..], 1), (&both[..1], 0), (&wrong[..], 0), (&[][..], 0)]),
        ("any", [(&both[..], 1), (&both[..1], 1), (&wrong[..], 0), (&[][..], 0)]),
    ] {
        client.bind(channel, &queue, &x, mode, &with(mode)).unwrap();
        for (headers, count) in cases {
            assert_eq!(copies(&mut client, channel, (&x, ""), headers, &queue), count, "{mode}: {headers:?}");
        }
        client.unbind(channel, &queue, &x, mode, &with(mode)).unwrap();
    }
    // Without x-match all must match; more headers than the binding has do no harm.
    client.bind(channel, &queue, &x, "", std::slice::from_ref(&one)).unwrap();
    assert_eq!(copies(&mut client, channel, (&x, "any key"), &both, &queue), 1);
}

#[test]
fn default_exchange_reaches_each_queue_by_its_name() {
    for kind in Kind::ALL {
        let (mut client, channel, queue) = with_queue(kind);
        assert_eq!(copies(&mut client, channel, ("", &queue), &[], &queue), 1, "{kind:?}");
        assert_eq!(copies(&mut client, channel, ("", "another"), &[], &queue), 0, "{kind:?}");
    }
}

#[test]
fn predeclared_exchanges_work() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let key = unique("key");
    for name in ["amq.direct", "amq.topic", "amq.fanout"] {
        client.bind(channel, &queue, name, &key, &[]).unwrap();
        assert_eq!(copies(&mut client, channel, (name, &key), &[], &queue), 1, "{name}");
        client.unbind(channel, &queue, name, &key, &[]).unwrap();
        assert_eq!(copies(&mut client, channel, (name, &key), &[], &queue), 0, "{name} after unbind");
    }
}

#[test]
fn binding_twice_is_one_binding() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let x = exchange(&mut client, channel, "direct");
    client.bind(channel, &queue, &x, "keep", &[]).unwrap();
    client.bind(channel, &queue, &x, "k", &[]).unwrap();
    client.bind(channel, &queue, &x, "k", &[]).unwrap();
    client.unbind(channel, &queue, &x, "k", &[]).unwrap();
    assert_eq!(copies(&mut client, channel, (&x, "k"), &[], &queue), 0);
}

#[test]
fn bindings_differ_by_their_arguments_too() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let x = exchange(&mut client, channel, "direct");
    client.bind(channel, &queue, &x, "k", &[("a", Value::from(1))]).unwrap();
    client.bind(channel, &queue, &x, "k", &[("a", Value::from(2))]).unwrap();
    client.unbind(channel, &queue, &x, "k", &[("a", Value::from(1))]).unwrap();
    assert_eq!(copies(&mut client, channel, (&x, "k"), &[], &queue), 1, "the other binding is still there");
}

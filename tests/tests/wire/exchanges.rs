//! RabbitMQ's further ways to route: its own exchange types, exchanges bound to exchanges,
//! alternates, CC and BCC.
//!
//! Invariant: RabbitMQ with its plugins for the exchange types gives the same answers, except where
//! a test says why not.

use clients::broker::{is_foreign, unique};
use clients::methods::*;
use clients::wire::Args;
use clients::{Client, Closed, Event, ExchangeDeclare, Properties, Publish, QueueDeclare, Scope, Value};

use crate::setup::{Kind, assert_closed, new_queue, with_queue};

fn declare(client: &mut Client, channel: u16, kind: &str, arguments: &[(&str, Value)]) -> Result<String, Closed> {
    let name = unique(kind);
    let exchange = ExchangeDeclare { name: &name, kind, arguments: arguments.to_vec(), ..Default::default() };
    client.declare_exchange(channel, &exchange).map(|()| name)
}

fn exchange(client: &mut Client, channel: u16, kind: &str) -> String {
    declare(client, channel, kind, &[]).unwrap()
}

fn bind_exchange(client: &mut Client, channel: u16, [source, to, key]: [&str; 3]) {
    let args = Args::new().short(0).shortstr(to).shortstr(source).shortstr(key).octet(0).table(&[]);
    client.call(channel, EXCHANGE_BIND, &args, EXCHANGE_BIND_OK).unwrap();
}

/// Publishes and waits for the confirm; says whether the message came back.
fn put(client: &mut Client, to: (&str, &str), headers: &[(&str, Value)], body: &[u8]) -> bool {
    let publisher = client.channel();
    client.confirm_select(publisher).unwrap();
    let properties = if headers.is_empty() { Properties::default() } else { Properties::with_headers(headers) };
    let publish = Publish { exchange: to.0, key: to.1, mandatory: true, properties, body, ..Default::default() };
    client.publish(publisher, &publish);
    let mut returned = false;
    loop {
        match client.event(publisher) {
            Event::Returned(_) => returned = true,
            Event::Confirm { tag: 1, nack: false, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    client.close_channel(publisher);
    returned
}

fn bodies(client: &mut Client, channel: u16, queue: &str) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| client.get(channel, queue, true).unwrap().map(|got| got.body)).collect()
}

#[test]
fn exchanges_bound_in_a_circle_deliver_one_copy() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let names: Vec<String> = (0..3).map(|_| exchange(&mut client, channel, "topic")).collect();
    for at in 0..3 {
        bind_exchange(&mut client, channel, [&names[at], &names[(at + 1) % 3], "#"]);
        bind_exchange(&mut client, channel, [&names[at], &names[at], "#"]);
        client.bind(channel, &queue, &names[at], "k.#", &[]).unwrap();
    }
    assert!(!put(&mut client, (&names[0], "k"), &[], b"m"));
    assert_eq!(bodies(&mut client, channel, &queue), [b"m"]);
    assert!(put(&mut client, (&names[0], "other"), &[], b"m"), "a circle without a queue is nowhere");
}

#[test]
fn auto_delete_exchange_goes_with_its_last_binding_to_an_exchange() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    let target = exchange(&mut client, channel, "fanout");
    let source = unique("auto");
    let declare = ExchangeDeclare { name: &source, kind: "fanout", auto_delete: true, ..Default::default() };
    client.declare_exchange(channel, &declare).unwrap();
    bind_exchange(&mut client, channel, [&source, &target, ""]);
    client.delete_exchange(channel, &target, false).unwrap();
    let passive = ExchangeDeclare { name: &source, kind: "fanout", passive: true, ..Default::default() };
    let closed = client.declare_exchange(channel, &passive).unwrap_err();
    assert_closed(
        &closed,
        Scope::Channel,
        404,
        &format!("NOT_FOUND - no exchange '{source}' in vhost '/'"),
        EXCHANGE_DECLARE,
    );
}

/// What deletes an unused exchange must not take along the exchange before it, which still leads
/// elsewhere.
#[test]
fn auto_delete_exchange_leaves_the_one_before_it_that_leads_elsewhere_too() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    let (feeder, unused) = (unique("feeder"), unique("unused"));
    for name in [&feeder, &unused] {
        let declare = ExchangeDeclare { name, kind: "direct", durable: true, auto_delete: true, ..Default::default() };
        client.declare_exchange(channel, &declare).unwrap();
    }
    // Neither is durable, nor what leads there.
    let elsewhere = exchange(&mut client, channel, "direct");
    let declare = QueueDeclare { exclusive: true, ..Default::default() };
    let (kept, ..) = client.declare(channel, &declare).unwrap();
    let (lost, ..) = client.declare(channel, &declare).unwrap();
    client.bind(channel, &kept, &elsewhere, "k", &[]).unwrap();
    bind_exchange(&mut client, channel, [&feeder, &unused, "k"]);
    bind_exchange(&mut client, channel, [&feeder, &elsewhere, "k"]);
    client.bind(channel, &lost, &unused, "k", &[]).unwrap();
    client.delete(channel, &lost, false, false).unwrap();
    // It goes a moment later.
    let passive = ExchangeDeclare { name: &unused, kind: "direct", passive: true, ..Default::default() };
    let mut looker = client.channel();
    let gone = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let is_gone = client.declare_exchange(looker, &passive).is_err();
        if is_gone {
            looker = client.channel();
        }
        is_gone
    });
    assert!(gone, "nothing leads to it and from it");
    assert!(!put(&mut client, (&feeder, "k"), &[], b"m"), "this one is used");
    assert_eq!(bodies(&mut client, channel, &kept), [b"m"]);
}

#[test]
fn internal_exchange_takes_only_what_other_exchanges_send() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let outer = exchange(&mut client, channel, "fanout");
    let inner = unique("internal");
    let internal = ExchangeDeclare { name: &inner, kind: "fanout", internal: true, ..Default::default() };
    client.declare_exchange(channel, &internal).unwrap();
    bind_exchange(&mut client, channel, [&outer, &inner, ""]);
    client.bind(channel, &queue, &inner, "", &[]).unwrap();
    put(&mut client, (&outer, ""), &[], b"m");
    assert_eq!(bodies(&mut client, channel, &queue), [b"m"]);
    client.publish(channel, &Publish { exchange: &inner, body: b"m", ..Default::default() });
    let text = format!("ACCESS_REFUSED - cannot publish to internal exchange '{inner}' in vhost '/'");
    assert_closed(&client.closed(channel), Scope::Channel, 403, &text, BASIC_PUBLISH);
}

#[test]
fn alternate_exchange_gets_what_matches_nothing() {
    let (mut client, channel, matched) = with_queue(Kind::Classic);
    let rest = new_queue(&mut client, channel, Kind::Quorum);
    let alternate = exchange(&mut client, channel, "fanout");
    let main = declare(&mut client, channel, "direct", &[("alternate-exchange", Value::from(&*alternate))]).unwrap();
    client.bind(channel, &matched, &main, "k", &[]).unwrap();
    assert!(put(&mut client, (&main, "other"), &[], b"lost"), "an alternate without a queue is nowhere too");
    client.bind(channel, &rest, &alternate, "", &[]).unwrap();
    assert!(!put(&mut client, (&main, "k"), &[], b"one"));
    assert!(!put(&mut client, (&main, "other"), &[], b"two"), "what an alternate takes does not come back");
    assert_eq!(bodies(&mut client, channel, &matched), [b"one"]);
    assert_eq!(bodies(&mut client, channel, &rest), [b"two"]);
    client.delete_exchange(channel, &alternate, false).unwrap();
    assert!(put(&mut client, (&main, "other"), &[], b"lost"), "an alternate that is gone is like none");
}

#[test]
fn copies_go_to_further_keys_and_blind_ones_are_not_shown() {
    for kind in Kind::ALL {
        let (mut client, channel, to) = with_queue(kind);
        let (copy, blind) = (new_queue(&mut client, channel, kind), new_queue(&mut client, channel, kind));
        let list = |names: &[&str]| Value::Array(names.iter().map(|name| Value::from(*name)).collect());
        let headers = [("BCC", list(&[&blind, &to])), ("a", Value::from(1)), ("CC", list(&[&copy, "nowhere"]))];
        assert!(!put(&mut client, ("", &to), &headers, b"m"));
        for queue in [&to, &copy, &blind] {
            let got = client.get(channel, queue, true).unwrap().expect("each of the three queues has it");
            assert_eq!((got.body.as_slice(), got.routing_key.as_str()), (&b"m"[..], &*to), "{kind:?}");
            assert_eq!(got.properties.header("BCC"), None);
            assert_eq!(got.properties.header("CC"), Some(headers[2].1.clone()));
            assert_eq!(got.properties.header("a"), Some(Value::from(1)));
            assert_eq!(got.message_count, Some(0), "one copy, however many keys lead there");
        }
        // The next one without copies takes the common road again.
        put(&mut client, ("", &to), &[], b"n");
        assert_eq!(bodies(&mut client, channel, &to), [b"n"]);
        assert_eq!(bodies(&mut client, channel, &copy), [b""; 0]);
    }
}

#[test]
fn blind_copies_are_not_shown_to_the_publisher_either() {
    let (mut client, channel, _) = with_queue(Kind::Classic);
    let headers = [("BCC", Value::Array(vec![Value::from("nowhere")])), ("a", Value::from(1))];
    let properties = Properties::with_headers(&headers);
    client.publish(channel, &Publish { key: "nowhere", mandatory: true, properties, ..Default::default() });
    let Event::Returned(back) = client.event(channel) else { panic!("it reached no queue") };
    assert_eq!(back.properties, Properties::with_headers(&headers[1..]));
}

#[test]
fn copies_that_are_no_list_are_refused() {
    for name in ["CC", "BCC"] {
        let (mut client, channel, queue) = with_queue(Kind::Classic);
        let properties = Properties::with_headers(&[(name, Value::from("q"))]);
        client.publish(channel, &Publish { key: &queue, properties, body: b"m", ..Default::default() });
        let text = format!("PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,\"{name}\",longstr}}");
        let closed = client.closed(channel);
        assert_closed(&closed, Scope::Channel, 406, &text, BASIC_PUBLISH);
        assert_eq!(closed.text, text);
    }
}

#[test]
fn user_id_has_to_be_the_users_own() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    let user = |name: &str| Properties::only(4, Args::new().shortstr(name).0);
    client.confirm_select(channel).unwrap();
    client.publish(channel, &Publish { key: &queue, properties: user("guest"), body: b"m", ..Default::default() });
    client.confirmed(channel, 1, 1);
    client.publish(channel, &Publish { key: &queue, properties: user("eve"), body: b"m", ..Default::default() });
    let text = "PRECONDITION_FAILED - user_id property set to 'eve' but authenticated user was 'guest'";
    assert_closed(&client.closed(channel), Scope::Channel, 406, text, BASIC_PUBLISH);
}

#[test]
fn consistent_hash_sends_each_key_to_one_queue() {
    let (mut client, channel, first) = with_queue(Kind::Classic);
    let second = new_queue(&mut client, channel, Kind::Quorum);
    let x = exchange(&mut client, channel, "x-consistent-hash");
    assert!(put(&mut client, (&x, "k"), &[], b"m"), "without a queue it is nowhere");
    for (queue, weight) in [(&first, "1"), (&second, "3")] {
        client.bind(channel, queue, &x, weight, &[]).unwrap();
    }
    for round in 0..2 {
        for key in 0..40u8 {
            assert!(!put(&mut client, (&x, &format!("key {key}")), &[], &[key]), "round {round}");
        }
    }
    let (mut of_first, mut of_second) = (bodies(&mut client, channel, &first), bodies(&mut client, channel, &second));
    assert_eq!(of_first.len() + of_second.len(), 80);
    assert!(!of_first.is_empty() && of_second.len() > of_first.len(), "three quarters go to the second");
    for bodies in [&mut of_first, &mut of_second] {
        bodies.sort();
        assert!(bodies.chunks(2).all(|pair| pair[0] == pair[1]), "both messages of a key went the same way");
    }
}

#[test]
fn consistent_hash_may_go_by_a_header() {
    let (mut client, channel, first) = with_queue(Kind::Classic);
    let second = new_queue(&mut client, channel, Kind::Classic);
    let x = declare(&mut client, channel, "x-consistent-hash", &[("hash-header", Value::from("h"))]).unwrap();
    client.bind(channel, &first, &x, "10", &[]).unwrap();
    client.bind(channel, &second, &x, "10", &[]).unwrap();
    for n in 0..20 {
        let headers = [("h", Value::from(&*format!("value {n}")))];
        put(&mut client, (&x, "one key"), &headers, &[n]);
        put(&mut client, (&x, &format!("another key {n}")), &headers, &[n]);
    }
    for queue in [&first, &second] {
        let bodies = bodies(&mut client, channel, queue);
        assert!(!bodies.is_empty() && bodies.chunks(2).all(|pair| pair.len() == 2 && pair[0] == pair[1]));
    }
}

#[test]
fn one_of_many_exchanges_send_to_exactly_one_queue() {
    for kind in ["x-random", "x-modulus-hash", "x-local-random"] {
        if kind == "x-local-random" && is_foreign() {
            continue; // New in RabbitMQ 4.
        }
        let (mut client, channel, first) = with_queue(Kind::Classic);
        let second = new_queue(&mut client, channel, Kind::Classic);
        let x = exchange(&mut client, channel, kind);
        assert!(put(&mut client, (&x, "k"), &[], b"m"));
        let key = if kind == "x-local-random" { "" } else { "any" };
        for queue in [&first, &second] {
            client.bind(channel, queue, &x, key, &[]).unwrap();
        }
        for n in 0..40u8 {
            assert!(!put(&mut client, (&x, &format!("key {n}")), &[], &[n]));
        }
        let counts = [&first, &second].map(|queue| client.purge(channel, queue).unwrap());
        assert_eq!(counts.iter().sum::<u32>(), 40, "{kind}");
        assert!(counts.iter().all(|count| *count > 2), "{kind}: {counts:?}");
    }
}

#[test]
fn recent_history_is_sent_to_who_binds_later() {
    for kind in Kind::ALL {
        let (mut client, channel, early) = with_queue(kind);
        let late = new_queue(&mut client, channel, kind);
        let length = [("x-recent-history-length", Value::from(3))];
        let x = declare(&mut client, channel, "x-recent-history", &length).unwrap();
        put(&mut client, (&x, "k"), &[], b"0");
        client.bind(channel, &early, &x, "any", &[]).unwrap();
        for body in [b"1", b"2", b"3"] {
            put(&mut client, (&x, "k"), &[], body);
        }
        put(&mut client, (&x, "k"), &[("x-recent-history-no-store", Value::from(true))], b"-");
        client.bind(channel, &late, &x, "", &[]).unwrap();
        put(&mut client, (&x, "k"), &[], b"4");
        client.bind(channel, &late, &x, "", &[]).unwrap();
        assert_eq!(bodies(&mut client, channel, &early), [b"0", b"1", b"2", b"3", b"-", b"4"], "{kind:?}");
        assert_eq!(bodies(&mut client, channel, &late), [b"1", b"2", b"3", b"4"], "{kind:?}");
        let target = exchange(&mut client, channel, "fanout");
        client.bind(channel, &late, &target, "", &[]).unwrap();
        bind_exchange(&mut client, channel, [&x, &target, ""]);
        let mut through = bodies(&mut client, channel, &late);
        if is_foreign() {
            through.sort(); // RabbitMQ sends the youngest first on this road, and only on this one.
        }
        assert_eq!(through, [b"2", b"3", b"4"], "{kind:?}: through an exchange");
    }
}

/// RabbitMQ has it in a plugin that is off by default, rabbitmq_jms_topic_exchange.
#[test]
fn jms_topic_selects_by_an_expression_over_the_headers() {
    for kind in Kind::ALL {
        let (mut client, channel, blue) = with_queue(kind);
        let [heavy, odd, never] = [(); 3].map(|()| new_queue(&mut client, channel, kind));
        let Ok(x) = declare(&mut client, channel, "x-jms-topic", &[]) else {
            assert!(is_foreign(), "it is there");
            return;
        };
        for (queue, selector) in [
            (&blue, r#"{'like',{'ident',<<"colour">>},<<"bl%">>,no_escape}."#),
            (&heavy, r#"{'or',{'>=',{'ident',<<"weight">>},10.5},{'in',{'ident',<<"colour">>},[<<"lead">>]}}."#),
            (&odd, r#"{'not_between',{'+',{'ident',<<"weight">>},1},{'range',2,12}}."#),
        ] {
            client.bind(channel, queue, &x, "key", &[("rjms_erlang_selector", Value::from(selector))]).unwrap();
        }
        client.bind(channel, &never, &x, "#", &[]).unwrap();
        let headers =
            |colour: &'static str, weight: i32| [("colour", Value::from(colour)), ("weight", Value::from(weight))];
        assert!(!put(&mut client, (&x, "other"), &headers("blue", 11), b"1"), "the key plays no part");
        assert!(!put(&mut client, (&x, ""), &headers("black", 12), b"2"));
        assert!(!put(&mut client, (&x, "key"), &[("colour", Value::from("lead"))], b"3"));
        assert!(put(&mut client, (&x, "key"), &headers("red", 1), b"4"), "nobody selects it");
        assert!(put(&mut client, (&x, "key"), &[], b"5"), "what is not there is unknown");
        assert_eq!(bodies(&mut client, channel, &blue), [b"1", b"2"], "{kind:?}");
        assert_eq!(bodies(&mut client, channel, &heavy), [b"1", b"2", b"3"], "{kind:?}");
        assert_eq!(bodies(&mut client, channel, &odd), [b"2"], "{kind:?}");
        assert!(bodies(&mut client, channel, &never).is_empty(), "{kind:?}: without a selector");
        if !is_foreign() {
            // RabbitMQ takes what it cannot read, and selects nothing by it.
            let wrong = [("rjms_erlang_selector", Value::from("{'similar',1}."))];
            let closed = client.bind(channel, &never, &x, "key", &wrong).unwrap_err();
            assert_closed(&closed, Scope::Channel, 406, "cannot parse selector '{'similar',1}.'", QUEUE_BIND);
        }
    }
}

#[test]
fn arguments_and_bindings_of_the_types_are_checked() {
    let declared = [
        (
            "x-consistent-hash",
            vec![("hash-header", Value::from("h")), ("hash-property", Value::from("message_id"))],
            "hash-header and hash-property are mutually exclusive",
        ),
        ("x-consistent-hash", vec![("hash-property", Value::from("app_id"))], "Unsupported property: app_id"),
        (
            "x-recent-history",
            vec![("x-recent-history-length", Value::from(-5))],
            "Invalid argument -5, 'x-recent-history-length' must be a positive integer",
        ),
        (
            "x-recent-history",
            vec![("x-recent-history-length", Value::from("5"))],
            "Invalid argument <<\"5\">>, 'x-recent-history-length' must be a positive integer",
        ),
    ];
    for (kind, arguments, text) in declared {
        let (mut client, channel, _) = with_queue(Kind::Exclusive);
        let closed = declare(&mut client, channel, kind, &arguments).unwrap_err();
        assert_closed(&closed, Scope::Channel, 406, text, EXCHANGE_DECLARE);
    }
    for (key, text) in [
        ("many", "The binding key must be an integer: <<\"many\">>"),
        ("", "The binding key must be an integer: <<>>"),
        ("0", "The binding key must be greater than 0"),
    ] {
        let (mut client, channel, queue) = with_queue(Kind::Exclusive);
        let x = exchange(&mut client, channel, "x-consistent-hash");
        let closed = client.bind(channel, &queue, &x, key, &[]).unwrap_err();
        assert_closed(&closed, Scope::Channel, 406, text, QUEUE_BIND);
    }
}

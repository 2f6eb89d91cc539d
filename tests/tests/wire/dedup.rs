//! Deduplication by the header `x-deduplication-header`, on queues that ask for it.
//!
//! Invariant: a repeat is confirmed like any other message and takes no place. RabbitMQ needs a
//! plugin for it, which knows classic queues alone.

use clients::broker::{is_foreign, unique};
use clients::wire::Properties;
use clients::{Client, Publish, Value};

use crate::setup::{Kind, with_queue};

fn deduplicating(client: &mut Client, channel: u16, kind: Kind, window_ms: Option<i32>) -> String {
    let name = unique("dedup");
    let mut declare = kind.declare(&name);
    declare.arguments.push(("x-message-deduplication", Value::Bool(true)));
    declare.arguments.extend(window_ms.map(|ms| ("x-deduplication-window-ms", Value::from(ms))));
    client.declare(channel, &declare).unwrap();
    name
}

/// Publishes messages "0", "1", ... with these keys and waits until each is confirmed.
fn put(client: &mut Client, queue: &str, keys: &[Option<Value>]) {
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for (n, key) in keys.iter().enumerate() {
        let properties = match key {
            Some(key) => Properties::with_headers(&[("x-deduplication-header", key.clone())]),
            None => Properties::persistent(),
        };
        let body = n.to_string();
        client.publish(channel, &Publish { key: queue, properties, body: body.as_bytes(), ..Default::default() });
    }
    client.confirmed(channel, 1, keys.len() as u64);
    client.close_channel(channel);
}

fn get_all(client: &mut Client, channel: u16, queue: &str) -> Vec<String> {
    let next = || client.get(channel, queue, true).unwrap().map(|got| String::from_utf8(got.body).unwrap());
    std::iter::from_fn(next).collect()
}

#[test]
fn a_repeat_is_confirmed_and_takes_no_place_while_the_first_is_there() {
    if is_foreign() {
        return;
    }
    for kind in Kind::ALL {
        let (mut client, channel, _) = with_queue(kind);
        let queue = deduplicating(&mut client, channel, kind, None);
        let text = |word: &str| Some(Value::from(word));
        let keys = [text("a"), text("b"), text("a"), None, None, Some(Value::from(1)), text("1"), Some(Value::from(1))];
        put(&mut client, &queue, &keys);
        assert_eq!(get_all(&mut client, channel, &queue), ["0", "1", "3", "4", "5", "6"], "{kind:?}");
        put(&mut client, &queue, &[text("a"), text("a")]);
        assert_eq!(get_all(&mut client, channel, &queue), ["0"], "{kind:?}: it is gone, so another one comes in");
    }
}

#[test]
fn in_its_window_a_repeat_comes_too_late() {
    if is_foreign() {
        return;
    }
    for kind in Kind::ALL {
        let (mut client, channel, _) = with_queue(kind);
        let queue = deduplicating(&mut client, channel, kind, Some(3_600_000));
        put(&mut client, &queue, &[Some(Value::from("a"))]);
        assert_eq!(get_all(&mut client, channel, &queue), ["0"], "{kind:?}");
        put(&mut client, &queue, &[Some(Value::from("a")), Some(Value::from("b"))]);
        assert_eq!(get_all(&mut client, channel, &queue), ["1"], "{kind:?}");
    }
}

#[test]
fn without_the_argument_the_header_means_nothing() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    put(&mut client, &queue, &[Some(Value::from("a")), Some(Value::from("a"))]);
    assert_eq!(get_all(&mut client, channel, &queue), ["0", "1"]);
}

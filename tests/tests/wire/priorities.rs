//! Message priorities: `x-max-priority` on classic queues, 32 levels on quorum queues.
//!
//! Invariant: of what is ready, the highest priority goes out first, and equals in the order in
//! which they came.

use clients::broker::{is_foreign, unique};
use clients::client::SILENCE;
use clients::wire::Properties;
use clients::{Broker, Client, Event, Publish, Value};

use crate::setup::{Kind, number, with_queue};

const PRIORITY_BIT: u32 = 11;

fn prioritised(client: &mut Client, channel: u16, kind: Kind, priority_max: i32) -> String {
    let name = unique("prio");
    let mut declare = kind.declare(&name);
    if kind != Kind::Quorum {
        declare.arguments.push(("x-max-priority", Value::from(priority_max)));
    }
    client.declare(channel, &declare).unwrap();
    name
}

/// Publishes messages "0", "1", ... with these priorities and waits for their confirms.
fn put(client: &mut Client, queue: &str, priorities: &[Option<u8>]) {
    let channel = client.channel();
    client.confirm_select(channel).unwrap();
    for (n, priority) in priorities.iter().enumerate() {
        let properties = match priority {
            Some(priority) => Properties::only(PRIORITY_BIT, vec![*priority]),
            None => Properties::persistent(),
        };
        let body = n.to_string();
        client.publish(channel, &Publish { key: queue, properties, body: body.as_bytes(), ..Default::default() });
    }
    client.confirmed(channel, 1, priorities.len() as u64);
    client.close_channel(channel);
}

fn get_all(client: &mut Client, channel: u16, queue: &str) -> Vec<u64> {
    std::iter::from_fn(|| client.get(channel, queue, true).unwrap().map(|got| number(&got.body))).collect()
}

fn kinds() -> Vec<Kind> {
    // A quorum queue has priorities since 4.0, and more than two since 4.3.
    Kind::ALL.into_iter().filter(|kind| !(is_foreign() && *kind == Kind::Quorum)).collect()
}

#[test]
fn the_highest_goes_first_and_equals_keep_their_order() {
    for kind in kinds() {
        let (mut client, channel, _) = with_queue(kind);
        let queue = prioritised(&mut client, channel, kind, 10);
        put(&mut client, &queue, &[Some(5), None, Some(9), Some(5), Some(0), Some(9), Some(255), Some(11)]);
        // Above the highest counts as the highest, and no priority as 0; on a quorum queue as 4.
        assert_eq!(get_all(&mut client, channel, &queue), [6, 7, 2, 5, 0, 3, 1, 4], "{kind:?}");
    }
}

#[test]
fn no_priority_is_0_on_a_classic_queue_and_4_on_a_quorum_queue() {
    for kind in kinds() {
        let (mut client, channel, _) = with_queue(kind);
        let queue = prioritised(&mut client, channel, kind, 10);
        put(&mut client, &queue, &[None, Some(1), Some(4), Some(5), None]);
        let expected = if kind == Kind::Quorum { [3, 0, 2, 4, 1] } else { [3, 2, 1, 0, 4] };
        assert_eq!(get_all(&mut client, channel, &queue), expected, "{kind:?}");
    }
}

#[test]
fn without_the_argument_a_classic_queue_has_no_priorities() {
    let (mut client, channel, queue) = with_queue(Kind::Classic);
    put(&mut client, &queue, &[Some(1), Some(9), None, Some(5)]);
    assert_eq!(get_all(&mut client, channel, &queue), [0, 1, 2, 3]);
}

#[test]
fn what_comes_back_has_its_old_place() {
    for kind in kinds() {
        let (mut client, channel, _) = with_queue(kind);
        let queue = prioritised(&mut client, channel, kind, 10);
        put(&mut client, &queue, &[Some(5), Some(6), Some(7), Some(5), Some(6), Some(7)]);
        let taken: Vec<u64> =
            (0..4).map(|_| number(&client.get(channel, &queue, false).unwrap().unwrap().body)).collect();
        assert_eq!(taken, [2, 5, 1, 4], "{kind:?}");
        client.nack(channel, 3, false, true);
        client.nack(channel, 1, false, true);
        client.ack(channel, 2, false);
        let left = get_all(&mut client, channel, &queue);
        // A quorum queue gives out what came back before everything else, in the order in which it
        // came back.
        let expected = if kind == Kind::Quorum { [1, 2, 0, 3] } else { [2, 1, 0, 3] };
        assert_eq!(left, expected, "{kind:?}");
        client.close_channel(channel);
        let channel = client.channel();
        assert_eq!(get_all(&mut client, channel, &queue), [4], "{kind:?}");
    }
}

#[test]
fn a_consumer_gets_what_is_urgent_as_soon_as_it_has_credit() {
    for kind in kinds() {
        let (mut client, channel, _) = with_queue(kind);
        let queue = prioritised(&mut client, channel, kind, 10);
        put(&mut client, &queue, &[Some(1); 10]);
        client.qos(channel, 2, false).unwrap();
        client.consume(channel, &queue, "c").unwrap();
        assert_eq!([(); 2].map(|()| number(&client.delivery(channel).body)), [0, 1], "{kind:?}");
        put(&mut client, &queue, &[Some(1), Some(8)]);
        client.silent(channel);
        client.ack(channel, 2, true);
        // The urgent one is the second of the second batch.
        assert_eq!([(); 2].map(|()| number(&client.delivery(channel).body)), [1, 2], "{kind:?}");
        for tag in 3..12 {
            client.ack(channel, tag, false);
            let Some(Event::Delivery(next)) = client.event_within(channel, SILENCE) else { break };
            assert_eq!(number(&next.body), if tag == 10 { 0 } else { tag % 10 }, "{kind:?}");
        }
    }
}

#[test]
fn purge_takes_every_priority_and_leaves_what_is_held() {
    for kind in kinds() {
        let (mut client, channel, _) = with_queue(kind);
        let queue = prioritised(&mut client, channel, kind, 10);
        put(&mut client, &queue, &[Some(1), Some(9), None, Some(5), Some(9)]);
        client.get(channel, &queue, false).unwrap().unwrap();
        assert_eq!(client.purge(channel, &queue).unwrap(), 4, "{kind:?}");
        put(&mut client, &queue, &[Some(1), Some(2)]);
        client.nack(channel, 1, false, true);
        assert_eq!(get_all(&mut client, channel, &queue), [1, 1, 0], "{kind:?}");
    }
}

#[test]
fn priorities_survive_a_kill() {
    let Some(mut broker) = Broker::own_or_skip(&[]) else { return };
    let mut client = broker.connect();
    let channel = client.channel();
    let queues = Kind::DURABLE.map(|kind| prioritised(&mut client, channel, kind, 31));
    let priorities: Vec<Option<u8>> = (0..300u32).map(|n| Some((n * 7 % 30) as u8)).collect();
    for queue in &queues {
        put(&mut client, queue, &priorities);
    }
    broker.kill();
    broker.start();
    let mut client = broker.connect();
    let channel = client.channel();
    let mut expected: Vec<u64> = (0..300).collect();
    expected.sort_by_key(|n| std::cmp::Reverse(priorities[*n as usize]));
    for queue in &queues {
        assert_eq!(get_all(&mut client, channel, queue), expected);
    }
}

/// As in RabbitMQ, on both types: what goes first goes first here too.
#[test]
fn a_queue_that_is_too_long_drops_what_would_go_out_next() {
    for kind in kinds() {
        let (mut client, channel, _) = with_queue(kind);
        let name = unique("prio");
        let mut declare = kind.declare(&name);
        if kind != Kind::Quorum {
            declare.arguments.push(("x-max-priority", Value::from(10)));
        }
        declare.arguments.push(("x-max-length", Value::from(3)));
        client.declare(channel, &declare).unwrap();
        put(&mut client, &name, &[Some(1), Some(9), Some(5), Some(2), Some(7)]);
        assert_eq!(get_all(&mut client, channel, &name), [2, 3, 0], "{kind:?}");
    }
}

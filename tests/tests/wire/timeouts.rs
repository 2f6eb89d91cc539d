//! Consumer timeouts: who holds a message for too long loses it, and loses only that.
//!
//! Invariant: the message comes back flagged, to its old place, and does not count as a failed
//! delivery. Of RabbitMQ 3.10 only the timeout of the whole broker is known, which is half an hour.

use clients::client::{Login, PATIENCE, SILENCE};
use clients::{Broker, Client, Event, Scope, Value};

use crate::setup::{Kind, assert_closed, fill, number};
use clients::methods::Method;

/// A broker whose consumers may hold a message for 400 ms, and a queue on it.
fn impatient(kind: Kind) -> Option<(Broker, Client, u16, String)> {
    let broker = Broker::own_or_skip(&["--consumer-timeout-ms", "400"])?;
    let mut client = broker.connect();
    let channel = client.channel();
    client.declare(channel, &kind.declare("q")).unwrap();
    Some((broker, client, channel, "q".to_owned()))
}

#[test]
fn a_consumer_that_holds_a_message_for_too_long_is_cancelled_alone() {
    for kind in Kind::ALL {
        let Some((_broker, mut client, channel, queue)) = impatient(kind) else { return };
        fill(&mut client, &queue, 3);
        client.qos(channel, 2, false).unwrap();
        client.consume(channel, &queue, "slow").unwrap();
        let held: Vec<u64> = (0..2).map(|_| number(&client.delivery(channel).body)).collect();
        assert_eq!(held, [0, 1]);
        let cancelled = client.event_within(channel, PATIENCE);
        assert!(matches!(&cancelled, Some(Event::Cancelled(tag)) if tag == "slow"), "{kind:?}: {cancelled:?}");
        // A late ack is harmless, and the channel goes on with other consumers.
        client.ack(channel, 1, false);
        let args = [false, true, false];
        client.consume_with(channel, &queue, "quick", args, &[]).unwrap();
        let got: Vec<_> = (0..3).map(|_| client.delivery(channel)).collect();
        let seen: Vec<_> = got.iter().map(|d| (number(&d.body), d.redelivered)).collect();
        assert_eq!(seen, [(0, true), (1, true), (2, false)], "{kind:?}: back in order");
        if kind == Kind::Quorum {
            assert_eq!(got[0].properties.header("x-acquired-count").and_then(|v| v.as_i64()), Some(1));
            assert_eq!(got[0].properties.header("x-delivery-count"), None, "a timeout does not count against it");
        }
    }
}

#[test]
fn who_acks_in_time_or_not_at_all_is_left_alone() {
    let Some((_broker, mut client, channel, queue)) = impatient(Kind::Classic) else { return };
    fill(&mut client, &queue, 12);
    client.qos(channel, 1, false).unwrap();
    client.consume(channel, &queue, "steady").unwrap();
    for n in 0..12 {
        let delivery = client.delivery(channel);
        assert_eq!(number(&delivery.body), n);
        std::thread::sleep(std::time::Duration::from_millis(100));
        client.ack(channel, delivery.tag, false);
    }
    client.cancel(channel, "steady").unwrap();
    client.consume_with(channel, &queue, "no-ack", [false, true, false], &[]).unwrap();
    fill(&mut client, &queue, 1);
    client.delivery(channel);
    assert!(client.event_within(channel, 4 * SILENCE).is_none(), "what was taken without ack is not held");
}

#[test]
fn a_queue_or_a_consumer_may_say_otherwise() {
    let Some((_broker, mut client, channel, _)) = impatient(Kind::Quorum) else { return };
    let mut patient = Kind::Quorum.declare("patient");
    patient.arguments.push(("x-consumer-timeout", Value::from(3_600_000)));
    client.declare(channel, &patient).unwrap();
    fill(&mut client, "patient", 2);
    client.qos(channel, 1, false).unwrap();
    client.consume(channel, "patient", "as the queue").unwrap();
    let short = [("x-consumer-timeout", Value::from(300))];
    client.consume_with(channel, "patient", "in a hurry", [false; 3], &short).unwrap();
    client.delivery(channel);
    client.delivery(channel);
    let cancelled = client.event_within(channel, PATIENCE);
    assert!(matches!(&cancelled, Some(Event::Cancelled(tag)) if tag == "in a hurry"), "{cancelled:?}");
    client.silent(channel);
}

#[test]
fn a_client_that_knows_no_cancel_loses_its_channel() {
    let Some((broker, mut client, channel, queue)) = impatient(Kind::Classic) else { return };
    fill(&mut client, &queue, 1);
    let login = Login { capabilities: Vec::new(), ..Default::default() };
    let mut old = Client::login(broker.addr(), &login).unwrap();
    let own = old.channel();
    old.consume(own, &queue, "").unwrap();
    old.delivery(own);
    let Some(Event::Closed(closed)) = old.event_within(own, PATIENCE) else { panic!("a close") };
    let text = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 400 ms.";
    assert_closed(&closed, Scope::Channel, 406, text, Method(0, 0));
    assert!(client.get(channel, &queue, true).unwrap().unwrap().redelivered);
}

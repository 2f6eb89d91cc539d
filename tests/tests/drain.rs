//! SIGTERM is a good end: what clients set in motion comes to where it was going, though the
//! clients are gone.
#![allow(clippy::unwrap_used)]

use clients::broker::Broker;
use clients::{QueueDeclare, Value};

/// Messages of a round, of which the queue keeps a few.
const MESSAGES: u64 = 2_000;
const KEPT: u64 = 5;

/// The end of a message is logged before its dead letter leaves: a broker that ends between the two
/// has lost it.
#[test]
fn dead_letters_on_their_way_arrive_before_the_broker_ends() {
    let Some(mut broker) = Broker::own_or_skip(&["--shard-threads=2"]) else { return };
    for round in 0..10 {
        let kind = if round % 2 == 0 { "classic" } else { "quorum" };
        let (source, target) = (format!("source.{round}"), format!("target.{round}"));
        let mut client = broker.connect();
        let channel = client.channel();
        let typed = ("x-queue-type", Value::from(kind));
        let arguments = vec![
            typed.clone(),
            ("x-dead-letter-exchange", Value::from("")),
            ("x-dead-letter-routing-key", Value::from(target.as_str())),
            ("x-max-length", Value::from(KEPT as i32)),
        ];
        for (name, arguments) in [(&target, vec![typed]), (&source, arguments)] {
            let queue = QueueDeclare { name, durable: true, arguments, ..Default::default() };
            client.declare(channel, &queue).unwrap();
        }
        client.confirm_select(channel).unwrap();
        for number in 0..MESSAGES {
            client.put(channel, &source, number.to_string().as_bytes());
        }
        client.confirmed(channel, 1, MESSAGES);
        client.close();
        let status = broker.terminate();
        assert_eq!(status.code(), Some(0), "SIGTERM is a good end\n{}", broker.log());
        broker.start();
        let mut client = broker.connect();
        let channel = client.channel();
        let ready = |client: &mut clients::Client, queue: &str| u64::from(client.counts(channel, queue).unwrap().0);
        let there = (ready(&mut client, &source), ready(&mut client, &target));
        assert_eq!(there, (KEPT, MESSAGES - KEPT), "round {round}, {kind}: in the source, in the target");
        client.close();
    }
}

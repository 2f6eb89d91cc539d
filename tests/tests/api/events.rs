//! What the broker publishes of itself: the event exchange, and the firehose of a virtual host.

use std::time::{Duration, Instant};

use clients::api::{connect, vhost};
use clients::client::PATIENCE;
use clients::{Broker, Client, Properties, Publish, QueueDeclare, Value as Field};

fn until_some<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let due = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < due, "it did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_event_exchange_tells_what_happens_on_the_broker() {
    let Some((broker, http)) = Broker::managed(&["--event-exchange-vhost=/"]) else { return };
    let mut client = connect(&broker, "/");
    let channel = client.channel();
    client.declare(channel, &QueueDeclare { name: "told", durable: true, ..QueueDeclare::default() }).unwrap();
    client.bind(channel, "told", "amq.rabbitmq.event", "#", &[]).unwrap();
    let next = |client: &mut Client| {
        let told = until_some(|| client.get(channel, "told", true).unwrap());
        let text = |name: &str| match told.properties.header(name) {
            Some(Field::Str(text)) => text,
            _ => String::new(),
        };
        assert_eq!((told.exchange.as_str(), told.body.len()), ("amq.rabbitmq.event", 0));
        assert!(matches!(told.properties.header("timestamp_in_ms"), Some(Field::I64(ms)) if ms > 1_600_000_000_000));
        if ["consumer.", "connection.", "channel."].iter().any(|of| told.routing_key.starts_with(of)) {
            assert_eq!(text("user_who_performed_action"), "guest", "{}", told.routing_key);
        }
        match &told.routing_key[..] {
            "binding.created" | "binding.deleted" => {
                format!("{} {} {}", told.routing_key, text("source_name"), text("destination_name"))
            }
            key if key.starts_with("consumer.") => format!("{key} {} {}", text("queue"), text("consumer_tag")),
            key if key.starts_with("connection.") || key.starts_with("channel.") => format!("{key} {}", text("user")),
            key => format!("{key} {}", text("name")),
        }
    };
    assert_eq!(next(&mut client), "binding.created amq.rabbitmq.event told");

    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.declare(channel, &QueueDeclare { name: "q", durable: true, ..QueueDeclare::default() }).unwrap();
    client.bind(channel, "q", "amq.fanout", "", &[]).unwrap();
    client.consume(channel, "q", "c").unwrap();
    client.cancel(channel, "c").unwrap();
    client.consume(channel, "q", "d").unwrap();
    client.delete(channel, "q", false, false).unwrap();
    assert!(matches!(client.event(channel), clients::Event::Cancelled(tag) if tag == "d"));
    http.put("/api/users/somebody", r#"{"password":"secret","tags":""}"#).with(201);
    for told in [
        "queue.created q",
        "binding.created amq.fanout q",
        "consumer.created q c",
        "consumer.deleted q c",
        "consumer.created q d",
        "binding.deleted amq.fanout q",
        "queue.deleted q",
        "consumer.deleted q d",
        "user.created somebody",
    ] {
        assert_eq!(next(&mut client), told);
    }

    let mut other = connect(&broker, "/");
    let _ = other.channel();
    drop(other);
    for told in [
        "user.authentication.success guest",
        "connection.created guest",
        "channel.created guest",
        "channel.closed guest",
        "connection.closed guest",
    ] {
        assert_eq!(next(&mut client), told);
    }
    assert!(client.get(channel, "told", true).unwrap().is_none(), "nothing else happened");
}

#[test]
fn the_firehose_tells_of_every_message_that_comes_in_and_goes_out() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let mut client = connect(&broker, &vhost);
    let channel = client.channel();
    for queue in ["told", "q", "r"] {
        client.declare(channel, &QueueDeclare { name: queue, durable: true, ..QueueDeclare::default() }).unwrap();
    }
    client.bind(channel, "told", "amq.rabbitmq.trace", "#", &[]).unwrap();
    client.bind(channel, "q", "amq.fanout", "", &[]).unwrap();
    client.bind(channel, "r", "amq.fanout", "", &[]).unwrap();
    client.confirm_select(channel).unwrap();
    let mut properties =
        Properties::with_headers(&[("kind", "order".into()), ("CC", Field::Array(vec!["copy".into()]))]);
    properties = properties.with_expiration("60000");
    let publish = Publish { exchange: "amq.fanout", key: "k", properties, body: b"body", ..Default::default() };
    client.publish(channel, &publish);
    client.confirmed(channel, 1, 1);
    let untold = |client: &mut Client| client.get(channel, "told", true).unwrap();
    assert!(untold(&mut client).is_none(), "it is off until somebody wants it");

    http.put(&format!("/api/vhosts/{vhost}"), r#"{"tracing":true}"#).with(204);
    assert_eq!(http.get(&format!("/api/vhosts/{vhost}")).with(200)["tracing"], true);
    client.publish(channel, &publish);
    client.confirmed(channel, 2, 2);
    let header = |got: &clients::Delivery, name: &str| {
        got.properties.header(name).unwrap_or_else(|| panic!("{name} in {got:?}"))
    };
    let told = until_some(|| untold(&mut client));
    assert_eq!(
        (told.exchange.as_str(), told.routing_key.as_str(), &told.body[..]),
        ("amq.rabbitmq.trace", "publish.amq.fanout", &b"body"[..])
    );
    assert_eq!(header(&told, "exchange_name"), "amq.fanout".into());
    assert_eq!(header(&told, "routing_keys"), Field::Array(vec!["k".into(), "copy".into()]));
    assert_eq!(header(&told, "vhost"), vhost.as_str().into());
    assert_eq!(header(&told, "user"), "guest".into());
    assert_eq!(header(&told, "channel"), Field::I32(i32::from(channel)));
    let Field::Array(mut queues) = header(&told, "routed_queues") else { panic!("a list of queues") };
    queues.sort_by_key(|queue| format!("{queue:?}"));
    assert_eq!(queues, ["q".into(), "r".into()]);
    let Field::Table(of_message) = header(&told, "properties") else { panic!("a table") };
    let of = |name: &str| of_message.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
    assert_eq!(of("expiration"), Some("60000".into()));
    assert!(
        matches!(of("headers"), Some(Field::Table(fields)) if fields.iter().any(|(name, value)| name == "kind" && *value == "order".into()))
    );
    assert!(untold(&mut client).is_none(), "a message is told once as it comes in, and what is told is not told again");

    // As it goes out: to a get and to a consumer.
    let first = client.get(channel, "q", false).unwrap().unwrap();
    client.nack(channel, first.tag, false, true);
    client.consume(channel, "q", "c").unwrap();
    let again = [client.delivery(channel), client.delivery(channel)];
    assert_eq!(again.map(|delivery| delivery.redelivered), [true, false]);
    client.cancel(channel, "c").unwrap();
    for redelivered in [0, 1, 0] {
        let told = until_some(|| untold(&mut client));
        assert_eq!((told.routing_key.as_str(), &told.body[..]), ("deliver.q", &b"body"[..]));
        assert_eq!(header(&told, "redelivered"), Field::I32(redelivered));
        assert_eq!(header(&told, "exchange_name"), "amq.fanout".into());
    }
    http.put(&format!("/api/vhosts/{vhost}"), r#"{"tracing":false}"#).with(204);
    client.publish(channel, &publish);
    client.confirmed(channel, 3, 3);
    assert!(untold(&mut client).is_none());
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

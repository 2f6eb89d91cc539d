//! Rates and histories over HTTP: what is counted where, by RabbitMQ's names.

use clients::api::{until, vhost};
use clients::broker::is_foreign;
use clients::{Broker, Client, ExchangeDeclare, Http, Login, Publish, QueueDeclare};
use serde_json::Value;

/// Asks until each of these has this count.
fn counts(http: &Http, path: &str, wanted: &[(&str, u64)]) -> Value {
    until(&format!("{wanted:?} of {path}"), || {
        let found = http.get(path).with(200);
        let stats = &found["message_stats"];
        wanted.iter().all(|(name, count)| stats[*name] == *count).then(|| found.clone())
    })
}

/// A client in a virtual host, with an exchange `x` of the kind fanout, and `q` and `r` bound to it.
fn with_fanout(broker: &Broker, vhost: &str) -> (Client, u16) {
    let mut client = Client::login(broker.addr(), &Login { vhost: vhost.to_owned(), ..Login::default() }).unwrap();
    let channel = client.channel();
    client
        .declare_exchange(channel, &ExchangeDeclare { name: "x", kind: "fanout", ..ExchangeDeclare::default() })
        .unwrap();
    for queue in ["q", "r"] {
        client.declare(channel, &QueueDeclare { name: queue, durable: true, ..QueueDeclare::default() }).unwrap();
        client.bind(channel, queue, "x", "", &[]).unwrap();
    }
    client.confirm_select(channel).unwrap();
    (client, channel)
}

fn publish(client: &mut Client, channel: u16, exchange: &str, key: &str, mandatory: bool) {
    client.publish(channel, &Publish { exchange, key, mandatory, body: b"m", ..Publish::default() });
}

#[test]
fn what_goes_through_is_counted_by_exchange_queue_channel_and_virtual_host() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let (mut client, channel) = with_fanout(&broker, &vhost);
    for _ in 0..3 {
        publish(&mut client, channel, "x", "", false);
    }
    client.confirmed(channel, 1, 3);
    // Two by default exchange, one of them to nobody.
    publish(&mut client, channel, "", "q", false);
    publish(&mut client, channel, "", "nobody", false);
    client.confirmed(channel, 4, 5);
    let first = client.get(channel, "q", false).unwrap().unwrap();
    client.reject(channel, first.tag, true);
    let again = client.get(channel, "q", false).unwrap().unwrap();
    assert!(again.redelivered);
    client.ack(channel, again.tag, false);
    assert!(client.get(channel, "q", true).unwrap().is_some());
    client.purge(channel, "r").unwrap();
    assert!(client.get(channel, "r", true).unwrap().is_none());
    let consumer = client.channel();
    client.consume(consumer, "q", "c").unwrap();
    for _ in 0..2 {
        let delivery = client.delivery(consumer);
        client.ack(consumer, delivery.tag, false);
    }
    client.round_trip(consumer).unwrap();

    let of_q = [("publish", 4), ("get", 2), ("get_no_ack", 1), ("redeliver", 1), ("deliver", 2), ("deliver_no_ack", 0)];
    let queue = counts(&http, &format!("/api/queues/{vhost}/q"), &of_q);
    let stats = &queue["message_stats"];
    assert_eq!((&stats["ack"], &stats["deliver_get"], &stats["get_empty"]), (&3.into(), &5.into(), &0.into()));
    for name in ["publish", "get", "get_no_ack", "redeliver", "deliver", "deliver_no_ack", "ack", "deliver_get"] {
        assert!(stats[format!("{name}_details")]["rate"].is_f64(), "{name}: {stats}");
    }
    for name in ["messages_details", "messages_ready_details", "messages_unacknowledged_details"] {
        assert!(queue[name]["rate"].is_f64(), "{name}: {queue}");
    }
    counts(&http, &format!("/api/queues/{vhost}/r"), &[("publish", 3), ("get_empty", 1), ("deliver_get", 0)]);
    counts(&http, &format!("/api/exchanges/{vhost}/x"), &[("publish_in", 3), ("publish_out", 6)]);
    counts(&http, &format!("/api/exchanges/{vhost}/amq.default"), &[("publish_in", 2), ("publish_out", 1)]);
    let of_vhost = [("publish", 5), ("confirm", 5), ("drop_unroutable", 1), ("deliver_get", 5), ("ack", 3)];
    counts(&http, &format!("/api/vhosts/{vhost}"), &of_vhost);
    let channels = http.get(&format!("/api/vhosts/{vhost}/channels")).with(200);
    let numbered =
        |number: u16| channels.as_array().unwrap().iter().find(|one| one["number"] == number).unwrap().clone();
    let publisher = &numbered(channel)["message_stats"];
    assert_eq!((&publisher["publish"], &publisher["confirm"], &publisher["get"]), (&5.into(), &5.into(), &2.into()));
    let consumer = &numbered(consumer)["message_stats"];
    assert_eq!((&consumer["publish"], &consumer["deliver"], &consumer["ack"]), (&0.into(), &2.into(), &2.into()));
    if is_foreign() {
        return;
    }
    // Who sent it there and who took it, as RabbitMQ tells it where its rates are detailed.
    let from = |incoming: &Value| {
        let named =
            |one: &Value| (one["exchange"]["name"].as_str().unwrap().to_owned(), one["stats"]["publish"].as_u64());
        incoming.as_array().unwrap().iter().map(named).collect::<Vec<_>>()
    };
    assert_eq!(from(&queue["incoming"]), [("".to_owned(), Some(1)), ("x".to_owned(), Some(3))]);
    let taken = queue["deliveries"].as_array().unwrap();
    assert_eq!(taken.iter().map(|one| one["stats"]["deliver_get"].as_u64().unwrap()).sum::<u64>(), 5);
    let exchange = http.get(&format!("/api/exchanges/{vhost}/x")).with(200);
    assert_eq!(exchange["outgoing"].as_array().unwrap().len(), 2);
    assert_eq!(exchange["incoming"][0]["channel_details"]["number"], channel);
    // What is gone is counted on where it was, and forgotten where it went.
    client.close();
    counts(&http, &format!("/api/vhosts/{vhost}"), &of_vhost);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn samples_are_told_for_the_time_that_is_asked_for() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let (mut client, channel) = with_fanout(&broker, &vhost);
    publish(&mut client, channel, "x", "", false);
    client.confirmed(channel, 1, 1);
    let path = format!("/api/queues/{vhost}/q");
    counts(&http, &path, &[("publish", 1)]);
    let range = "lengths_age=60&lengths_incr=5&msg_rates_age=600&msg_rates_incr=60&data_rates_age=60&data_rates_incr=5";
    let queue = http.get(&format!("{path}?{range}")).with(200);
    let of = |details: &Value, count: usize, step: u64| {
        let samples = details["samples"].as_array().unwrap();
        let times: Vec<u64> = samples.iter().map(|sample| sample["timestamp"].as_u64().unwrap()).collect();
        assert_eq!(samples.len(), count, "{details}");
        assert!(times.windows(2).all(|two| two[0] == two[1] + step) && times[0].is_multiple_of(step), "{times:?}");
        assert!(samples.iter().all(|sample| sample["sample"].is_i64() || sample["sample"].is_u64()), "{details}");
        assert!(["avg", "avg_rate", "rate"].iter().all(|name| details[name].is_number()), "{details}");
    };
    of(&queue["messages_details"], 13, 5_000);
    of(&queue["message_stats"]["publish_details"], 11, 60_000);
    let overview = http.get(&format!("/api/overview?{range}")).with(200);
    of(&overview["queue_totals"]["messages_details"], 13, 5_000);
    of(&overview["message_stats"]["publish_details"], 11, 60_000);
    let connections = http.get(&format!("/api/vhosts/{vhost}/connections?{range}")).with(200);
    of(&connections[0]["recv_oct_details"], 13, 5_000);
    if !is_foreign() {
        assert_eq!(http.get(&format!("{path}?lengths_age=x&lengths_incr=5")).status, 400);
        assert_eq!(http.get(&format!("{path}?lengths_age=86400&lengths_incr=1")).status, 400);
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_rate_is_seen_while_messages_flow() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let (mut client, channel) = with_fanout(&broker, &vhost);
    let mut published = 0;
    let sorted =
        format!("/api/queues/{vhost}?sort=message_stats.publish_details.rate&sort_reverse=true&page=1&page_size=1");
    let queue = until("a rate", || {
        publish(&mut client, channel, "", "r", false);
        published += 1;
        client.confirmed(channel, published, published);
        let first = http.get(&sorted).with(200)["items"][0].clone();
        (first["message_stats"]["publish_details"]["rate"].as_f64()? > 0.0).then_some(first)
    });
    assert_eq!(queue["name"], "r");
    if !is_foreign() {
        // Rows of a pair have no samples, and their rate all the same where somebody asks for samples.
        let path = format!("/api/queues/{vhost}/r?msg_rates_age=60&msg_rates_incr=5");
        let row = until("a rate of what came from one exchange", || {
            publish(&mut client, channel, "", "r", false);
            published += 1;
            client.confirmed(channel, published, published);
            let row = http.get(&path).with(200)["incoming"][0]["stats"]["publish_details"].clone();
            (row["rate"].as_f64()? > 0.0).then_some(row)
        });
        assert!(row["samples"].is_null(), "{row}");
    }
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn statistics_are_left_out_where_nobody_wants_them() {
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let (mut client, channel) = with_fanout(&broker, &vhost);
    publish(&mut client, channel, "x", "", false);
    client.confirmed(channel, 1, 1);
    let path = format!("/api/queues/{vhost}/q");
    counts(&http, &path, &[("publish", 1)]);
    let fields = |path: &str| {
        let found = http.get(path).with(200);
        found.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let without = ["arguments", "auto_delete", "durable", "exclusive", "name", "node", "state", "type", "vhost"];
    assert_eq!(fields(&format!("{path}?disable_stats=true")), without);
    let listed = http.get(&format!("/api/queues/{vhost}?disable_stats=true&enable_queue_totals=true")).with(200);
    assert_eq!((&listed[0]["messages"], &listed[0]["messages_ready"]), (&1.into(), &1.into()));
    assert!(listed[0].get("message_stats").is_none());
    let node = http.get("/api/nodes?disable_stats=true").with(200);
    assert_eq!(node[0].as_object().unwrap().len(), 3);
    http.delete(&format!("/api/vhosts/{vhost}")).with(204);
}

#[test]
fn a_list_that_is_written_at_once_is_the_text_of_one_that_is_put_in_order() {
    if is_foreign() {
        return;
    }
    let Some((broker, http)) = Broker::managed(&[]) else { return };
    let vhost = vhost(&http);
    let (mut client, channel) = with_fanout(&broker, &vhost);
    let two = r#"{"durable":true,"arguments":{"x-queue-type":"classic","x-max-length":7}}"#;
    http.put(&format!("/api/queues/{vhost}/two"), two).with(201);
    http.put(&format!("/api/queues/{vhost}/none"), r#"{"durable":false}"#).with(201);
    http.put(&format!("/api/policies/{vhost}/p"), r#"{"pattern":"^q","definition":{"expires":600000}}"#).with(201);
    publish(&mut client, channel, "x", "", false);
    client.confirmed(channel, 1, 1);
    assert!(client.get(channel, "q", true).unwrap().is_some());
    counts(&http, &format!("/api/queues/{vhost}/q"), &[("publish", 1), ("get_no_ack", 1)]);
    for more in ["", "&msg_rates_age=60&msg_rates_incr=5&lengths_age=60&lengths_incr=5", "&disable_stats=true"] {
        // Both are of one moment unless a sample was taken in between.
        let both = until(&format!("the same text, {more:?}"), || {
            let whole = http.get(&format!("/api/queues?{more}")).text;
            let sorted = http.get(&format!("/api/queues?sort=name{more}")).text;
            (whole == sorted).then(|| Value::from(whole))
        });
        let text = both.as_str().unwrap();
        assert_eq!(text.contains("message_stats"), !more.contains("disable_stats"), "{text}");
    }
}

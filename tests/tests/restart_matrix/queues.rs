//! Rows of queues: what their arguments do, what was settled, who holds what, and queues that do
//! not survive.

use std::time::Duration;

use clients::client::Scope;
use clients::matrix::Outcome;
use clients::wire::Properties;
use clients::{Delivery, Event, ExchangeDeclare, QueueDeclare, Value};

use crate::Row;
use crate::cell::{Cell, Kind, PATIENCE, bodies, same};

type Arguments = Vec<(&'static str, Value)>;

/// Each queue has an argument, messages go in, and after the restarts these are there.
fn keeps(
    name: &'static str,
    arguments: Arguments,
    put: &'static [(&'static str, Option<&'static str>)],
    left: &'static [&'static str],
) -> Row {
    let prepare = move |cell: &mut Cell<'_>| {
        let queue = cell.declare("q", &arguments)?;
        let timed = |(body, ttl): &(&'static str, Option<&str>)| {
            let properties = Properties::persistent();
            (*body, ttl.map_or_else(|| properties.clone(), |ttl| properties.clone().with_expiration(ttl)))
        };
        cell.put_as(&queue, &put.iter().map(timed).collect::<Vec<_>>())
    };
    Row::new(name, prepare, move |cell| cell.comes_to_hold(&cell.name("q"), left))
}

fn is_gone(cell: &mut Cell<'_>, queue: &str) -> Outcome {
    let client = cell.client();
    let channel = client.channel();
    match client.counts(channel, queue) {
        Err(closed) if closed.scope == Scope::Channel => same("a look at it", closed.code, 404),
        found => Err(format!("{queue} is there: {found:?}")),
    }
}

fn death(delivery: &Delivery, name: &str) -> Option<Value> {
    let Some(Value::Array(deaths)) = delivery.properties.header("x-death") else { return None };
    let Some(Value::Table(death)) = deaths.first() else { return None };
    death.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

/// A queue whose dead letters go to the cell's queue `dead`.
fn with_dead_letters(cell: &mut Cell<'_>, more: &[(&str, Value)]) -> Result<String, String> {
    let dead = cell.declare("dead", &[])?;
    let mut arguments =
        vec![("x-dead-letter-exchange", "".into()), ("x-dead-letter-routing-key", dead.as_str().into())];
    arguments.extend(more.iter().cloned());
    cell.declare("q", &arguments)
}

fn dead_with_reason(cell: &mut Cell<'_>, wanted: &[&str], reason: &str) -> Outcome {
    let dead = cell.name("dead");
    cell.comes_to_hold(&dead, wanted)?;
    let found = cell.look(&dead, wanted.len())?;
    for letter in &found {
        same("the reason in x-death", death(letter, "reason"), Some(reason.into()))?;
        same("the queue in x-death", death(letter, "queue"), Some(cell.name("q").as_str().into()))?;
    }
    Ok(())
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = lives();
    rows.extend(limits());
    rows.extend(dead_letters());
    rows.extend(settled());
    rows.extend(consumers());
    rows.extend(timeouts());
    rows.extend(gone());
    rows
}

fn lives() -> Vec<Row> {
    let hour = "3600000";
    vec![
        keeps(
            "x-message-ttl with an hour left",
            vec![("x-message-ttl", 3_600_000.into())],
            &[("a", None), ("b", None)],
            &["a", "b"],
        ),
        keeps("x-message-ttl that is over", vec![("x-message-ttl", 700.into())], &[("a", None), ("b", None)], &[]),
        keeps(
            "one message with an hour left among others",
            vec![],
            &[("a", None), ("b", Some("3600000")), ("c", None)],
            &["a", "b", "c"],
        ),
        keeps(
            "messages that expire, with others behind them",
            vec![],
            &[("a", Some("700")), ("b", None), ("c", Some("3600000")), ("d", Some("0"))],
            // The last one, which nobody took at once, is behind one that stays: on the head alone
            // time counts.
            &["b", "c"],
        )
        .ours(),
        Row::new(
            "a message whose hour began before the restart",
            move |cell| {
                let queue = cell.declare("q", &[])?;
                cell.put_as(&queue, &[("a", Properties::persistent().with_expiration(hour))])
            },
            |cell| {
                let queue = cell.name("q");
                cell.holds(&queue, &["a"])?;
                // What comes in afterwards goes out too.
                let round = cell.round.to_string();
                let other = cell.declare("other", &[])?;
                cell.put(&other, &[&round])
            },
        ),
        Row::new(
            "x-expires that is over",
            |cell| cell.declare("q", &[("x-expires", 2_000.into())]).map(|_| ()),
            |cell| {
                let (queue, http) = (cell.name("q"), cell.http);
                cell.until("the end of the queue", |_| http.get(&format!("/api/queues/%2f/{queue}")).status == 404)?;
                is_gone(cell, &queue)
            },
        ),
        Row::new(
            "x-expires with an hour left",
            |cell| {
                let queue = cell.declare("q", &[("x-expires", 3_600_000.into())])?;
                cell.put(&queue, &["a"])
            },
            |cell| cell.holds(&cell.name("q"), &["a"]),
        ),
        Row::new(
            "keys of a deduplicating queue",
            |cell| {
                let window = ("x-deduplication-window-ms", Value::from(3_600_000));
                let queue = cell.declare("q", &[("x-message-deduplication", true.into()), window])?;
                let key = |key: &str| Properties::with_headers(&[("x-deduplication-header", key.into())]);
                cell.put_as(&queue, &[("a", key("1")), ("b", key("2")), ("again", key("1"))])
            },
            |cell| {
                let queue = cell.name("q");
                let key = Properties::with_headers(&[("x-deduplication-header", "2".into())]);
                cell.put_as(&queue, &[("again", key)])?;
                cell.holds(&queue, &["a", "b"])
            },
        )
        .ours(),
    ]
}

fn limits() -> Vec<Row> {
    let full = |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        let persistent = Properties::persistent();
        let refused = cell.publish("", &queue, &[("more", persistent.clone()), ("and more", persistent)])?;
        same("those that are refused", refused, vec![1, 2])?;
        cell.holds(&queue, &["a", "b", "c"])
    };
    let limit = |rest: Value| vec![("x-max-length", Value::from(3)), ("x-overflow", rest)];
    let (refuses, sends_on) = (limit("reject-publish".into()), limit("reject-publish-dlx".into()));
    let dropping = |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        // The same again, so that the next look finds the same.
        cell.holds(&queue, &["c", "d", "e"])?;
        cell.put(&queue, &["c", "d", "e"])?;
        cell.holds(&queue, &["c", "d", "e"])
    };
    vec![
        Row::new(
            "x-max-length that drops from the head",
            |cell| {
                let queue = cell.declare("q", &[("x-max-length", 3.into())])?;
                cell.put(&queue, &["a", "b", "c", "d", "e"])
            },
            dropping,
        ),
        Row::new(
            "x-max-length-bytes that drops from the head",
            |cell| {
                let queue = cell.declare("q", &[("x-max-length-bytes", 3.into())])?;
                cell.put(&queue, &["a", "b", "c", "d", "e"])
            },
            dropping,
        ),
        Row::new(
            "full queue that refuses",
            move |cell| {
                let queue = cell.declare("q", &refuses)?;
                // RabbitMQ's quorum queues refuse only once their publishers know that they are
                // full.
                cell.put(&queue, &["a", "b", "c"])
            },
            full,
        )
        .ours(),
        Row::new(
            "queue of so many bytes that refuses",
            |cell| {
                let limits: Arguments =
                    vec![("x-max-length-bytes", Value::from(300)), ("x-overflow", "reject-publish".into())];
                let queue = cell.declare("q", &limits)?;
                let body = "x".repeat(3);
                cell.put(&queue, &vec![body.as_str(); 100])
            },
            |cell| {
                let queue = cell.name("q");
                let refused =
                    cell.publish("", &queue, &[("a", Properties::persistent()), ("b", Properties::persistent())])?;
                same("those that are refused", refused, vec![1, 2])?;
                cell.holds(&queue, &["xxx"; 100])
            },
        )
        .ours(),
        Row::new(
            "full queue that dead-letters what it refuses",
            move |cell| {
                let queue = with_dead_letters(cell, &sends_on)?;
                cell.put(&queue, &["a", "b", "c"])
            },
            |cell| {
                let (queue, dead) = (cell.name("q"), cell.name("dead"));
                let refused = cell.publish("", &queue, &[("d", Properties::persistent())])?;
                same("those that are refused", refused, vec![1])?;
                cell.holds(&queue, &["a", "b", "c"])?;
                let wanted = vec!["d"; cell.round as usize];
                cell.comes_to_hold(&dead, &wanted)
            },
        ),
    ]
}

fn dead_letters() -> Vec<Row> {
    let forty = || (0..40).map(|n| n.to_string()).collect::<Vec<_>>();
    vec![
        Row::new(
            "dead letters of what expires",
            |cell| {
                let queue = with_dead_letters(cell, &[("x-message-ttl", 700.into())])?;
                cell.put(&queue, &["a", "b"])
            },
            |cell| dead_with_reason(cell, &["a", "b"], "expired"),
        ),
        Row::new(
            "dead letters of what is rejected afterwards",
            |cell| {
                let queue = with_dead_letters(cell, &[])?;
                cell.put(&queue, &["a", "b", "c"])
            },
            |cell| {
                let queue = cell.name("q");
                cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, false))?;
                let (dead, left): (&[&str], &[&str]) =
                    if cell.round == 1 { (&["a"], &["b", "c"]) } else { (&["a", "b"], &["c"]) };
                dead_with_reason(cell, dead, "rejected")?;
                cell.holds(&queue, left)
            },
        ),
        Row::new(
            "at-least-once dead letters whose exchange comes afterwards",
            move |cell| {
                let exchange = cell.name("late");
                let arguments: Arguments =
                    vec![("x-dead-letter-strategy", "at-least-once".into()), ("x-overflow", "reject-publish".into())];
                let mut all = vec![("x-dead-letter-exchange", Value::from(exchange.as_str()))];
                all.extend(arguments);
                let queue = cell.declare("q", &all)?;
                cell.declare("dead", &[])?;
                let forty = forty();
                cell.put(&queue, &forty.iter().map(String::as_str).collect::<Vec<_>>())?;
                cell.settle(&queue, 40, |client, channel, d| client.reject(channel, d.tag, false))
            },
            move |cell| {
                let (exchange, dead) = (cell.declare_exchange("late", "fanout", &[])?, cell.name("dead"));
                cell.bind(&dead, &exchange, "", &[])?;
                let forty = forty();
                let wanted: Vec<&str> = forty.iter().map(String::as_str).collect();
                cell.comes_to_hold(&dead, &wanted)?;
                cell.comes_to_hold(&cell.name("q"), &[])
            },
        )
        .only(Kind::Quorum),
        Row::new(
            "how often a message was rejected",
            |cell| {
                let queue = with_dead_letters(cell, &[("x-delivery-limit", 6.into())])?;
                cell.put(&queue, &["a"])?;
                (0..3)
                    .try_for_each(|_| cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, true)))
            },
            |cell| {
                // Three rejects, and one more for each look: the limit is passed in the second
                // round at the latest.
                let queue = cell.name("q");
                if cell.round == 1 {
                    let found = cell.look(&queue, 1)?;
                    let count = found[0].properties.header("x-delivery-count").and_then(|count| count.as_i64());
                    return same("x-delivery-count", count.is_some_and(|count| count >= 3), true);
                }
                cell.until("the dead letter", |cell| {
                    let _ = cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, true));
                    let dead = cell.name("dead");
                    let client = cell.client();
                    let channel = client.channel();
                    let there = client.counts(channel, &dead).is_ok_and(|(ready, _)| ready == 1);
                    client.close_channel(channel);
                    there
                })
            },
        )
        .only(Kind::Quorum),
        Row::new(
            "returned messages that wait for their retry",
            |cell| {
                let retry = |ms: i32| -> Arguments {
                    let (min, max) = ("x-delayed-retry-min", "x-delayed-retry-max");
                    vec![("x-delayed-retry-type", "all".into()), (min, ms.into()), (max, ms.into())]
                };
                for (stem, ms) in [("hour", 3_600_000), ("soon", 500)] {
                    let queue = cell.declare(stem, &retry(ms))?;
                    cell.put(&queue, &["a", "b"])?;
                    cell.settle(&queue, 1, |client, channel, d| client.reject(channel, d.tag, true))?;
                }
                Ok(())
            },
            |cell| {
                let (hour, soon) = (cell.name("hour"), cell.name("soon"));
                let client = cell.client();
                let channel = client.channel();
                let waiting = client.counts(channel, &hour).map_err(|closed| format!("{closed:?}"))?;
                client.close_channel(channel);
                same("those that are ready", waiting.0, 1)?;
                // A look returns what it saw, which then waits again.
                cell.comes_to_hold(&soon, &["a", "b"])
            },
        )
        .only(Kind::Quorum)
        .ours(),
    ]
}

fn settled() -> Vec<Row> {
    vec![
        Row::new(
            "acked messages",
            |cell| {
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a", "b", "c", "d"])?;
                cell.settle(&queue, 2, |client, channel, d| client.ack(channel, d.tag, false))?;
                cell.put(&queue, &["e"])
            },
            |cell| cell.holds(&cell.name("q"), &["c", "d", "e"]),
        ),
        Row::new(
            "acked messages in the middle",
            |cell| {
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a", "b", "c", "d"])?;
                let (channel, found) = cell.held(&queue, 4)?;
                cell.client().ack(channel, found[1].tag, false);
                cell.client().reject(channel, found[2].tag, false);
                cell.client().round_trip(channel).map_err(|closed| format!("{closed:?}"))?;
                cell.client().close_channel(channel);
                cell.put(&queue, &["e"])
            },
            |cell| {
                let found = cell.look(&cell.name("q"), 3)?;
                let mut found = bodies(&found);
                // RabbitMQ's quorum queues put what came back at the end.
                found.sort_unstable();
                same("what is left", found, ["a", "d", "e"].map(str::to_owned).to_vec())
            },
        ),
        Row::new(
            "purged messages",
            |cell| {
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a", "b"])?;
                let client = cell.client();
                let channel = client.channel();
                same("purged", client.purge(channel, &queue).map_err(|closed| format!("{closed:?}"))?, 2)?;
                cell.put(&queue, &["c"])
            },
            |cell| cell.holds(&cell.name("q"), &["c"]),
        ),
        Row::new(
            "what goes in and out afterwards",
            |cell| cell.declare("q", &[]).map(|_| ()),
            |cell| {
                let queue = cell.name("q");
                cell.put(&queue, &["a", "b"])?;
                cell.holds(&queue, &["a", "b"])?;
                cell.settle(&queue, 2, |client, channel, d| client.ack(channel, d.tag, false))?;
                cell.holds(&queue, &[])
            },
        ),
        Row::new(
            "priorities",
            |cell| {
                let argument: Arguments = vec![("x-max-priority", 9.into())];
                let queue = cell.declare("q", if cell.kind == Kind::Classic { &argument } else { &[] })?;
                let priority = |level: u8| Properties { flags: 1 << 12 | 1 << 11, bytes: vec![2, level] };
                cell.put_as(&queue, &[("a", priority(5)), ("b", priority(9)), ("c", priority(7)), ("d", priority(9))])
            },
            |cell| {
                // On quorum queues what came back goes first, in the order in which it came back.
                cell.holds(&cell.name("q"), &["b", "d", "c", "a"])
            },
        )
        .ours(),
    ]
}

fn consumers() -> Vec<Row> {
    let names = || (0..115).map(|n| format!("{n:03}")).collect::<Vec<_>>();
    vec![
        Row::new(
            "single active consumer",
            |cell| {
                let queue = cell.declare("q", &[("x-single-active-consumer", true.into())])?;
                cell.put(&queue, &["a", "b"])
            },
            |cell| {
                let queue = cell.name("q");
                let client = cell.client();
                let (first, second) = (client.channel(), client.channel());
                for (channel, tag) in [(first, "first"), (second, "second")] {
                    client.consume(channel, &queue, tag).map_err(|closed| format!("{closed:?}"))?;
                }
                for _ in 0..2 {
                    client.delivery(first);
                }
                client.round_trip(second).map_err(|closed| format!("{closed:?}"))?;
                let other = client.event_within(second, std::time::Duration::ZERO);
                client.close_channel(second);
                client.close_channel(first);
                same("what the second one got", other.map(|event| format!("{event:?}")), None)
            },
        ),
        Row::new(
            "redelivered is said of what was sent, and of that alone",
            move |cell| {
                let queue = cell.declare("q", &[])?;
                let client = cell.client();
                let channel = client.channel();
                client.qos(channel, 16, false).map_err(|closed| format!("{closed:?}"))?;
                client.consume(channel, &queue, "holds").map_err(|closed| format!("{closed:?}"))?;
                let names = names();
                cell.put(&queue, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
                (0..16).for_each(|_| _ = cell.client().delivery(channel));
                // The channel stays open until the broker ends.
                Ok(())
            },
            move |cell| {
                let queue = cell.name("q");
                if cell.round == 2 {
                    // The first look took all of them in hand.
                    return same("flagged", cell.look(&queue, 115)?.iter().all(|d| d.redelivered), true);
                }
                let mut found: Vec<(String, bool)> = cell
                    .look(&queue, 115)?
                    .iter()
                    .map(|d| (String::from_utf8_lossy(&d.body).into_owned(), d.redelivered))
                    .collect();
                found.sort_unstable();
                let flagged: Vec<&str> = found.iter().filter(|d| d.1).map(|d| d.0.as_str()).collect();
                let names = names();
                same("flagged", flagged, names.iter().take(16).map(String::as_str).collect())
            },
        )
        .stays(),
    ]
}

/// A consumer may hold a message of the cell's queue for half a second only, by whatever says so.
pub(crate) fn times_out(
    name: &'static str,
    limit: impl Fn(&mut Cell<'_>) -> Result<String, String> + Sync + 'static,
    its_own: bool,
) -> Row {
    let arguments =
        move || -> Arguments { if its_own { vec![("x-consumer-timeout", HELD_MS.into())] } else { Vec::new() } };
    let slow = move |cell: &mut Cell<'_>, queue: &str| {
        let client = cell.client();
        let channel = client.channel();
        client.qos(channel, 1, false).map_err(|closed| format!("{closed:?}"))?;
        client
            .consume_with(channel, queue, "slow", [false; 3], &arguments())
            .map_err(|closed| format!("{closed:?}"))?;
        match client.event_within(channel, PATIENCE) {
            Some(Event::Delivery(delivery)) => same("the first one", delivery.body, b"a".to_vec())?,
            other => return Err(format!("a delivery was due, got {other:?}")),
        }
        Ok(channel)
    };
    let prepare = move |cell: &mut Cell<'_>| {
        let queue = limit(cell)?;
        cell.put(&queue, &["a", "b"])?;
        // It holds the message when the broker ends, whatever its time says.
        slow(cell, &queue).map(|_| ())
    };
    let look = move |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        let channel = slow(cell, &queue)?;
        match cell.client().event_within(channel, PATIENCE) {
            Some(Event::Cancelled(tag)) => same("who is cancelled", tag.as_str(), "slow")?,
            other => return Err(format!("its time is over, got {other:?}")),
        }
        cell.client().close_channel(channel);
        cell.holds(&queue, &["a", "b"])
    };
    Row::new(name, prepare, look).stays().ours()
}

pub(crate) const HELD_MS: i32 = 500;

fn timeouts() -> Vec<Row> {
    let with_argument = |cell: &mut Cell<'_>| cell.declare("q", &[("x-consumer-timeout", HELD_MS.into())]);
    vec![
        times_out("consumer that x-consumer-timeout of its queue cancels", with_argument, false).only(Kind::Quorum),
        times_out("consumer that its own x-consumer-timeout cancels", |cell| cell.declare("q", &[]), true)
            .only(Kind::Quorum),
        Row::new(
            "consumer whose x-consumer-timeout leaves it an hour",
            |cell| {
                let queue = cell.declare("q", &[("x-consumer-timeout", 3_600_000.into())])?;
                cell.put(&queue, &["a"])
            },
            |cell| {
                let queue = cell.name("q");
                let (channel, _) = cell.held(&queue, 1)?;
                let cancelled = cell.client().event_within(channel, Duration::from_millis(2 * HELD_MS as u64));
                same("what comes meanwhile", cancelled.map(|event| format!("{event:?}")), None)
            },
        )
        .only(Kind::Quorum)
        .ours(),
    ]
}

fn gone() -> Vec<Row> {
    let declare_as = |durable: bool, exclusive: bool, auto_delete: bool| {
        move |cell: &mut Cell<'_>| {
            let name = cell.name("q");
            let declare = QueueDeclare { name: &name, durable, exclusive, auto_delete, ..Default::default() };
            let client = cell.client();
            let channel = client.channel();
            client.declare(channel, &declare).map_err(|closed| format!("{closed:?}"))?;
            cell.put(&name, &["a"])
        }
    };
    vec![
        Row::new("queue that is not durable", declare_as(false, false, false), |cell| is_gone(cell, &cell.name("q"))),
        Row::new("exclusive queue", declare_as(false, true, false), |cell| is_gone(cell, &cell.name("q"))),
        Row::new("durable exclusive queue", declare_as(true, true, false), |cell| is_gone(cell, &cell.name("q"))),
        Row::new("durable auto-delete queue that nobody consumed from", declare_as(true, false, true), |cell| {
            let name = cell.name("q");
            let declare = QueueDeclare { name: &name, durable: true, auto_delete: true, ..Default::default() };
            let client = cell.client();
            let channel = client.channel();
            let (_, ready, _) = client.declare(channel, &declare).map_err(|closed| format!("{closed:?}"))?;
            same("messages", ready, 1)
        }),
        Row::new(
            "deleted queue",
            |cell| {
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["a"])?;
                let client = cell.client();
                let channel = client.channel();
                client.delete(channel, &queue, false, false).map(|_| ()).map_err(|closed| format!("{closed:?}"))
            },
            |cell| {
                let queue = cell.name("q");
                is_gone(cell, &queue)?;
                // Under the same name there is nothing of the old one.
                cell.declare("q", &[])?;
                cell.holds(&queue, &[])?;
                let client = cell.client();
                let channel = client.channel();
                client.delete(channel, &queue, false, false).map(|_| ()).map_err(|closed| format!("{closed:?}"))
            },
        ),
        Row::new(
            "queue that was declared again after its deletion",
            |cell| {
                let queue = cell.declare("q", &[])?;
                cell.put(&queue, &["old"])?;
                let client = cell.client();
                let channel = client.channel();
                client.delete(channel, &queue, false, false).map_err(|closed| format!("{closed:?}"))?;
                cell.declare("q", &[])?;
                cell.put(&queue, &["new"])
            },
            |cell| cell.holds(&cell.name("q"), &["new"]),
        ),
        Row::new(
            "exchange that is not durable",
            |cell| {
                let name = cell.name("e");
                let client = cell.client();
                let channel = client.channel();
                let declare = ExchangeDeclare { name: &name, kind: "direct", ..Default::default() };
                client.declare_exchange(channel, &declare).map_err(|closed| format!("{closed:?}"))
            },
            |cell| {
                let name = cell.name("e");
                let declare = ExchangeDeclare { name: &name, kind: "direct", passive: true, ..Default::default() };
                let client = cell.client();
                let channel = client.channel();
                match client.declare_exchange(channel, &declare) {
                    Err(closed) => same("a look at it", closed.code, 404),
                    Ok(()) => Err("it is there".to_owned()),
                }
            },
        ),
    ]
}

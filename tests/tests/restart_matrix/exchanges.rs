//! Rows of exchanges: each type chooses after a restart as before, with its arguments and those of
//! its bindings.

use clients::matrix::Outcome;
use clients::wire::Properties;
use clients::{ExchangeDeclare, Value};

use crate::Row;
use crate::cell::{Cell, Kind, same};

type Arguments = &'static [(&'static str, &'static str)];

/// An exchange with two queues bound to it. A message that is for the first, and one that is for
/// the second.
fn chooses(
    kind: &'static str,
    arguments: Arguments,
    binds: [(&'static str, Arguments); 2],
    keys: [&'static str; 2],
    headers: [Arguments; 2],
) -> Row {
    fn table(fields: Arguments) -> Vec<(&'static str, Value)> {
        fields.iter().map(|(name, value)| (*name, Value::from(*value))).collect()
    }
    let prepare = move |cell: &mut Cell<'_>| {
        let exchange = cell.declare_exchange("e", kind, &table(arguments))?;
        for (stem, (key, fields)) in ["one", "two"].into_iter().zip(binds) {
            let queue = cell.declare(stem, &[])?;
            cell.bind(&queue, &exchange, key, &table(fields))?;
        }
        publish(cell, keys, headers)
    };
    fn publish(cell: &mut Cell<'_>, keys: [&str; 2], headers: [Arguments; 2]) -> Outcome {
        let exchange = cell.name("e");
        for (key, headers) in keys.into_iter().zip(headers) {
            let body = if key == keys[0] && headers.len() < 2 { "first" } else { "second" };
            cell.publish(&exchange, key, &[(body, Properties::with_headers(&table(headers)))])?;
        }
        Ok(())
    }
    let look = move |cell: &mut Cell<'_>| {
        publish(cell, keys, headers)?;
        let times = cell.round as usize + 1;
        let (one, two) = (cell.name("one"), cell.name("two"));
        let (ones, twos) = match kind {
            "fanout" | "x-recent-history" => {
                let both = ["first", "second"].repeat(times);
                (both.clone(), both)
            }
            _ => (vec!["first"; times], vec!["second"; times]),
        };
        cell.holds(&one, &ones)?;
        cell.holds(&two, &twos)
    };
    Row::new(format!("exchange type {kind}"), prepare, look)
}

/// What of a message an exchange looks at that sends it to one of its queues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    AtKey,
    AtHeader,
    AtMessageId,
    /// At nothing: chance or turns decide.
    Nowhere,
}

/// Sends to one of its queues; which, a restart does not change where the message alone decides.
fn spreads(name: &'static str, kind: &'static str, arguments: Arguments, looks: Looks) -> Row {
    let is_steady = looks != Looks::Nowhere;
    let publish = move |cell: &mut Cell<'_>| -> Outcome {
        let exchange = cell.name("e");
        for n in 0..20 {
            let text = format!("key {n}");
            let key = if matches!(looks, Looks::AtKey | Looks::Nowhere) { &*text } else { "the same" };
            let properties = match looks {
                Looks::AtHeader => Properties::with_headers(&[("h", text.as_str().into())]),
                // Delivery mode 2, and the message id.
                Looks::AtMessageId => {
                    let id = clients::wire::Args::new().shortstr(&text).0;
                    Properties { flags: 1 << 12 | 1 << 7, bytes: [vec![2], id].concat() }
                }
                _ => Properties::persistent(),
            };
            cell.publish(&exchange, key, &[("m", properties)])?;
        }
        Ok(())
    };
    fn counts(cell: &mut Cell<'_>) -> Result<[u32; 3], String> {
        let names = ["one", "two", "three"].map(|stem| cell.name(stem));
        let client = cell.client();
        let channel = client.channel();
        let mut found = [0; 3];
        for (name, count) in names.iter().zip(&mut found) {
            *count = client.counts(channel, name).map_err(|closed| format!("{closed:?}"))?.0;
        }
        client.close_channel(channel);
        Ok(found)
    }
    let prepare = move |cell: &mut Cell<'_>| {
        let table: Vec<(&str, Value)> = arguments.iter().map(|(name, value)| (*name, Value::from(*value))).collect();
        let exchange = cell.declare_exchange("e", kind, &table)?;
        for stem in ["one", "two", "three"] {
            let queue = cell.declare(stem, &[])?;
            // Weights where there are such things, and x-local-random takes no key at all.
            cell.bind(&queue, &exchange, if kind == "x-local-random" { "" } else { "1" }, &[])?;
        }
        publish(cell)?;
        let shares = counts(cell)?;
        same("whether two queues have a share at least", shares.iter().filter(|share| **share > 0).count() > 1, true)
    };
    let look = move |cell: &mut Cell<'_>| {
        let before = counts(cell)?;
        publish(cell)?;
        let (after, round) = (counts(cell)?, cell.round);
        same("all that was published", after.iter().sum::<u32>(), 20 * (round + 1))?;
        if is_steady {
            same("the shares", before.map(|share| share / round * (round + 1)), after)?;
        }
        Ok(())
    };
    let row = Row::new(name, prepare, look);
    match kind {
        "x-consistent-hash" => row.of_plugin("rabbitmq_consistent_hash_exchange"),
        "x-modulus-hash" => row.of_plugin("rabbitmq_sharding"),
        "x-random" => row.of_plugin("rabbitmq_random_exchange"),
        _ => row.ours(),
    }
}

fn declare_auto_delete(cell: &mut Cell<'_>, passive: bool) -> Outcome {
    let name = cell.name("e");
    let declare = ExchangeDeclare {
        name: &name,
        kind: "direct",
        passive,
        durable: true,
        auto_delete: true,
        ..Default::default()
    };
    let client = cell.client();
    let channel = client.channel();
    client.declare_exchange(channel, &declare).map_err(|closed| format!("{closed:?}"))
}

pub(crate) fn rows() -> Vec<Row> {
    let none: Arguments = &[];
    let mut rows = vec![
        chooses("direct", none, [("a", none), ("b", none)], ["a", "b"], [none; 2]),
        chooses("fanout", none, [("", none), ("", none)], ["a", "b"], [none; 2]),
        chooses("topic", none, [("a.*.c", none), ("b.#", none)], ["a.b.c", "b.x.y.z"], [none; 2]),
        chooses(
            "headers",
            none,
            [
                ("", &[("x-match", "all"), ("size", "small")]),
                ("", &[("x-match", "any"), ("size", "large"), ("more", "x")]),
            ],
            ["k", "k"],
            [&[("size", "small")], &[("size", "large"), ("else", "y")]],
        ),
        chooses(
            "x-jms-topic",
            none,
            // "size = 'small'", as RabbitMQ's JMS client writes it down.
            [
                ("a", &[("rjms_erlang_selector", "{'=',{'ident',<<\"size\">>},<<\"small\">>}.")]),
                ("b", &[("rjms_erlang_selector", "{'<>',{'ident',<<\"size\">>},<<\"small\">>}.")]),
            ],
            ["a", "b"],
            [&[("size", "small")], &[("size", "large"), ("else", "y")]],
        )
        .of_plugin("rabbitmq_jms_topic_exchange"),
        chooses(
            "x-delayed-message",
            &[("x-delayed-type", "direct")],
            [("a", none), ("b", none)],
            ["a", "b"],
            [none; 2],
        )
        .ours(),
        chooses("x-recent-history", none, [("", none), ("", none)], ["a", "b"], [none; 2])
            .of_plugin("rabbitmq_recent_history_exchange"),
        spreads("exchange type x-consistent-hash", "x-consistent-hash", none, Looks::AtKey),
        spreads("exchange argument hash-header", "x-consistent-hash", &[("hash-header", "h")], Looks::AtHeader),
        spreads(
            "exchange argument hash-property",
            "x-consistent-hash",
            &[("hash-property", "message_id")],
            Looks::AtMessageId,
        ),
        spreads("exchange type x-modulus-hash", "x-modulus-hash", none, Looks::AtKey),
        spreads("exchange type x-random", "x-random", none, Looks::Nowhere),
        // Classic queues only, as in RabbitMQ 4.
        spreads("exchange type x-local-random", "x-local-random", none, Looks::Nowhere).only(Kind::Classic),
        Row::new(
            "exchange argument x-recent-history-length",
            |cell| {
                let length = [("x-recent-history-length", Value::from(2))];
                cell.declare_exchange("e", "x-recent-history", &length).map(|_| ())
            },
            |cell| {
                let (exchange, queue) = (cell.name("e"), cell.declare(&format!("q{}", cell.round), &[])?);
                let all = ["a", "b", "c"].map(|body| (body, Properties::persistent()));
                cell.publish(&exchange, "", &all)?;
                cell.bind(&queue, &exchange, "", &[])?;
                cell.comes_to_hold(&queue, &["b", "c"])
            },
        )
        .of_plugin("rabbitmq_recent_history_exchange"),
        Row::new(
            "durable auto-delete exchange, until its last binding goes",
            |cell| {
                let (name, queue) = (cell.name("e"), cell.declare("q", &[])?);
                declare_auto_delete(cell, false)?;
                cell.bind(&queue, &name, "k", &[])
            },
            |cell| {
                let (name, queue) = (cell.name("e"), cell.name("q"));
                if cell.round == 1 {
                    declare_auto_delete(cell, true)?;
                    let client = cell.client();
                    let channel = client.channel();
                    return client.unbind(channel, &queue, &name, "k", &[]).map_err(|closed| format!("{closed:?}"));
                }
                match declare_auto_delete(cell, true) {
                    Err(why) if why.contains("404") => Ok(()),
                    other => Err(format!("it has gone with its last binding, but {other:?}")),
                }
            },
        ),
        Row::new(
            "deleted exchange, and one that was declared again as another",
            |cell| {
                for stem in ["gone", "again"] {
                    let name = cell.declare_exchange(stem, "direct", &[])?;
                    let client = cell.client();
                    let channel = client.channel();
                    client.delete_exchange(channel, &name, false).map_err(|closed| format!("{closed:?}"))?;
                }
                cell.declare_exchange("again", "fanout", &[]).map(|_| ())
            },
            |cell| {
                let path = |stem: &str| format!("/api/exchanges/%2f/{}", cell.name(stem));
                same("the deleted one", cell.http.get(&path("gone")).status, 404)?;
                same("the other", cell.http.get(&path("again")).with(200)["type"].clone(), "fanout".into())
            },
        ),
    ];
    rows.push(Row::new(
        "alternate exchange",
        |cell| {
            let other = cell.declare_exchange("other", "fanout", &[])?;
            cell.declare_exchange("e", "direct", &[("alternate-exchange", other.as_str().into())])?;
            let queue = cell.declare("q", &[])?;
            cell.bind(&queue, &other, "", &[])
        },
        |cell| {
            let exchange = cell.name("e");
            cell.publish(&exchange, "nowhere", &[("m", Properties::persistent())])?;
            cell.holds(&cell.name("q"), &vec!["m"; cell.round as usize])
        },
    ));
    rows.push(Row::new(
        "bindings from exchange to exchange, and one that was taken away",
        |cell| {
            let (first, second) =
                (cell.declare_exchange("first", "direct", &[])?, cell.declare_exchange("second", "fanout", &[])?);
            let (queue, unbound) = (cell.declare("q", &[])?, cell.declare("unbound", &[])?);
            cell.bind(&queue, &second, "", &[])?;
            cell.bind(&unbound, &second, "", &[])?;
            let client = cell.client();
            let channel = client.channel();
            let args = clients::wire::Args::new().short(0).shortstr(&second).shortstr(&first).shortstr("k").octet(0);
            use clients::methods::{EXCHANGE_BIND, EXCHANGE_BIND_OK};
            client
                .call(channel, EXCHANGE_BIND, &args.table(&[]), EXCHANGE_BIND_OK)
                .map_err(|closed| format!("{closed:?}"))?;
            client.unbind(channel, &unbound, &second, "", &[]).map_err(|closed| format!("{closed:?}"))
        },
        |cell| {
            let exchange = cell.name("first");
            cell.publish(&exchange, "k", &[("m", Properties::persistent())])?;
            cell.holds(&cell.name("q"), &vec!["m"; cell.round as usize])?;
            cell.holds(&cell.name("unbound"), &[])
        },
    ));
    rows.push(Row::new(
        "internal exchange",
        |cell| {
            let name = cell.name("e");
            let declare =
                ExchangeDeclare { name: &name, kind: "fanout", durable: true, internal: true, ..Default::default() };
            let client = cell.client();
            let channel = client.channel();
            client.declare_exchange(channel, &declare).map_err(|closed| format!("{closed:?}"))
        },
        |cell| match cell.publish(&cell.name("e"), "", &[("m", Properties::persistent())]) {
            Err(why) if why.contains("403") => Ok(()),
            other => Err(format!("403 was due, got {other:?}")),
        },
    ));
    rows
}

//! Rows of exchanges: each type chooses after a restart as before, with its arguments and those of its bindings.

use clients::matrix::Outcome;
use clients::wire::Properties;
use clients::{ExchangeDeclare, Value};

use crate::Row;
use crate::cell::{Cell, same};

type Arguments = &'static [(&'static str, &'static str)];

/// An exchange with two queues bound to it. A message that is for the first, and one that is for the second.
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

/// Sends to one of its queues; which, a restart does not change where the message alone decides.
fn spreads(kind: &'static str, is_steady: bool) -> Row {
    let publish = |cell: &mut Cell<'_>| {
        let exchange = cell.name("e");
        for n in 0..20 {
            cell.publish(&exchange, &format!("key {n}"), &[("m", Properties::persistent())])?;
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
        let exchange = cell.declare_exchange("e", kind, &[])?;
        for stem in ["one", "two", "three"] {
            let queue = cell.declare(stem, &[])?;
            cell.bind(&queue, &exchange, "1", &[])?;
        }
        publish(cell)
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
    Row::new(format!("exchange type {kind}"), prepare, look).ours()
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
        .ours(),
        chooses(
            "x-delayed-message",
            &[("x-delayed-type", "direct")],
            [("a", none), ("b", none)],
            ["a", "b"],
            [none; 2],
        )
        .ours(),
        chooses("x-recent-history", none, [("", none), ("", none)], ["a", "b"], [none; 2]).ours(),
        spreads("x-consistent-hash", true),
        spreads("x-modulus-hash", true),
        spreads("x-random", false),
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

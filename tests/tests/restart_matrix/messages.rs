//! Rows of messages: each property, and bodies of all sizes.

use clients::Value;
use clients::broker::is_foreign;
use clients::wire::{Args, Properties};

use crate::Row;
use crate::cell::{Cell, Kind, same};

fn property(name: &'static str, properties: Properties) -> Row {
    let sent = properties.clone();
    let prepare = move |cell: &mut Cell<'_>| {
        let queue = cell.declare("q", &[])?;
        cell.put_as(&queue, &[("a", sent.clone())])
    };
    let look = move |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        let found = cell.look(&queue, 1)?;
        // A broker may add headers of its own; everything else is as it was sent.
        let without = |p: &Properties| {
            let own = |(key, _): &(String, Value)| !key.starts_with("x-delivery") && key != "x-acquired-count";
            let mut headers: Vec<(String, Value)> = p.headers().into_iter().filter(own).collect();
            // RabbitMQ's quorum queues sort them when they add one.
            headers.sort_by(|a, b| a.0.cmp(&b.0));
            headers
        };
        same("headers", without(&found[0].properties), without(&properties))?;
        if properties.flags & (1 << 13) == 0 && found[0].properties.flags & (1 << 13) == 0 {
            same("properties", found[0].properties.clone(), properties.clone())?;
        }
        same("body", found[0].body.as_slice(), b"a".as_slice())
    };
    Row::new(name, prepare, look)
}

fn sized(name: &'static str, body_bytes: usize, count: usize) -> Row {
    let body = move |n: usize| -> String {
        let mut body = format!("{n} ");
        body.extend((body.len()..body_bytes).map(|at| char::from(b'a' + ((at * 7 + n) % 26) as u8)));
        body.truncate(body_bytes);
        body
    };
    let all = move || -> Vec<String> { (0..count).map(body).collect() };
    let prepare = move |cell: &mut Cell<'_>| {
        let queue = cell.declare("q", &[])?;
        let all = all();
        cell.put(&queue, &all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let look = move |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        let (mut found, all) = (cell.look(&queue, count)?, all());
        if is_foreign() && cell.kind == Kind::Quorum {
            // What a channel gives back comes in no order there.
            found.sort_by_key(|d| all.iter().position(|body| body.as_bytes() == d.body));
        }
        let is_same = found.iter().zip(&all).position(|(found, wanted)| found.body != wanted.as_bytes());
        same("the first body that is another", is_same, None)
    };
    Row::new(name, prepare, look)
}

pub(crate) fn rows() -> Vec<Row> {
    let text = |text: &str| Args::new().shortstr(text).0;
    let values: &[(&str, Value)] = &[
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-3)),
        ("i16", Value::I16(-300)),
        ("i32", Value::I32(-70_000)),
        ("i64", Value::I64(1 << 40)),
        ("f64", Value::F64(0.25)),
        ("text", Value::from("é")),
        ("bytes", Value::Bytes(vec![0, 255])),
        ("array", Value::Array(vec![Value::from(1), Value::from("b")])),
        ("table", Value::Table(vec![("in".to_owned(), Value::Void)])),
        ("time", Value::Timestamp(1_700_000_000)),
        ("void", Value::Void),
    ];
    let mut rows = vec![
        property(
            "content_type",
            Properties { flags: 1 << 15 | 1 << 12, bytes: [text("text/plain"), vec![2]].concat() },
        ),
        property("content_encoding", Properties { flags: 1 << 14 | 1 << 12, bytes: [text("gzip"), vec![2]].concat() }),
        property("headers of every type", Properties::with_headers(values)),
        property("delivery mode 1", Properties::only(12, vec![1])),
        property("delivery mode 2", Properties::persistent()),
        property("priority", Properties { flags: 1 << 12 | 1 << 11, bytes: vec![2, 7] }),
        property("correlation_id", persistent_with(10, text("c-1"))),
        property("reply_to", persistent_with(9, text("answers"))),
        property("expiration of an hour", persistent_with(8, text("3600000"))),
        property("message_id", persistent_with(7, text("m-1"))),
        property("timestamp", persistent_with(6, 1_700_000_000u64.to_be_bytes().to_vec())),
        property("type", persistent_with(5, text("order"))),
        property("user_id", persistent_with(4, text("guest"))),
        property("app_id", persistent_with(3, text("shop"))),
        property("cluster_id", persistent_with(2, text("here"))),
        sized("empty body", 0, 3),
        sized("bodies of 100 kB", 100_000, 4),
        sized("hundreds of messages", 40, 400),
        sized("ten thousand messages", 60, 10_000).long(),
        sized("bodies of 4 MB", 4_000_000, 3).long(),
    ];
    rows.push(Row::new(
        "CC and BCC",
        |cell| {
            let (queue, copy) = (cell.declare("q", &[])?, cell.declare("cc", &[])?);
            let blind = cell.declare("bcc", &[])?;
            let headers =
                [("CC", Value::Array(vec![copy.as_str().into()])), ("BCC", Value::Array(vec![blind.as_str().into()]))];
            cell.put_as(&queue, &[("a", Properties::with_headers(&headers))])
        },
        |cell| ["q", "cc", "bcc"].into_iter().try_for_each(|stem| cell.holds(&cell.name(stem), &["a"])),
    ));
    rows.push(
        Row::new(
            "x-delay of an hour, and one that falls due",
            |cell| {
                let queue = cell.declare("q", &[])?;
                let delay = |ms: i32| Properties::with_headers(&[("x-delay", ms.into())]);
                cell.put_as(
                    &queue,
                    &[("hour", delay(3_600_000)), ("soon", delay(300)), ("now", Properties::persistent())],
                )
            },
            |cell| cell.comes_to_hold(&cell.name("q"), &["now", "soon"]),
        )
        .ours(),
    );
    rows
}

fn persistent_with(bit: u32, bytes: Vec<u8>) -> Properties {
    Properties { flags: 1 << 12 | 1 << bit, bytes: [vec![2], bytes].concat() }
}

//! Rows of the arguments of queues: each is remembered, shown, and part of what a redeclare is held
//! against.
//!
//! What they do is in the rows of queues.

use clients::{QueueDeclare, Value};

use crate::Row;
use crate::cell::{By, Cell, Kind, same};

type Arguments = Vec<(&'static str, Value)>;

/// A queue is declared with an argument; later the same declare is equal, one with another value is
/// not, and its message is there.
fn argument(text: &'static str, arguments: Arguments, other: Option<Value>) -> Row {
    let name = arguments[0].0;
    let again = arguments.clone();
    let prepare = move |cell: &mut Cell<'_>| {
        let queue = cell.declare("q", &arguments)?;
        cell.put(&queue, &["a", "b"])
    };
    let look = move |cell: &mut Cell<'_>| {
        let queue = cell.name("q");
        let client = cell.client();
        let channel = client.channel();
        client.counts(channel, &queue).map_err(|closed| format!("a look at it: {closed:?}"))?;
        client.close_channel(channel);
        cell.declare("q", &again)?;
        let shown = cell.http.get(&format!("/api/queues/%2f/{queue}")).with(200)["arguments"][name].clone();
        same("the argument that the API shows", shown, json_of(&again[0].1))?;
        // A quorum queue with a single active consumer is locked to `basic.get`, on both brokers.
        let is_locked = name == "x-single-active-consumer" && cell.kind == Kind::Quorum;
        if !is_locked || cell.by == By::Consumer {
            cell.holds(&queue, &["a", "b"])?;
        }
        let Some(other) = other.clone() else { return Ok(()) };
        let mut changed: Vec<(&str, Value)> = vec![("x-queue-type", cell.kind.word().into())];
        changed.extend(again.iter().cloned().map(|(k, v)| if k == name { (k, other.clone()) } else { (k, v) }));
        let declare = QueueDeclare { name: &queue, durable: true, arguments: changed, ..Default::default() };
        let client = cell.client();
        let channel = client.channel();
        match client.declare(channel, &declare) {
            Err(closed) => same("the declare with another value", closed.code, 406),
            Ok(_) => Err(format!("{name} is another one, and the declare is taken")),
        }
    };
    Row::new(format!("argument {text}"), prepare, look)
}

fn json_of(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::I32(number) => (*number).into(),
        Value::Str(text) => text.as_str().into(),
        other => panic!("no argument here is {other:?}"),
    }
}

/// The type itself is an argument as well.
fn queue_type() -> Row {
    let look = |cell: &mut Cell<'_>| {
        let queue = cell.declare("q", &[])?;
        cell.holds(&queue, &["a"])?;
        let other = if cell.kind == Kind::Classic { Kind::Quorum } else { Kind::Classic };
        let arguments = vec![("x-queue-type", other.word().into())];
        let declare = QueueDeclare { name: &queue, durable: true, arguments, ..Default::default() };
        let client = cell.client();
        let channel = client.channel();
        let answer = client.declare(channel, &declare).map(|_| ()).map_err(|closed| closed.code);
        same("the declare with the other type", answer, Err(406))
    };
    let prepare = |cell: &mut Cell<'_>| {
        let queue = cell.declare("q", &[])?;
        cell.put(&queue, &["a"])
    };
    Row::new("argument x-queue-type", prepare, look)
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        queue_type(),
        argument("that no queue type knows", vec![("x-of-somebody", 1.into())], None),
        argument("x-message-ttl", vec![("x-message-ttl", 3_600_000.into())], Some(3_600_001.into())),
        argument("x-expires", vec![("x-expires", 3_600_000.into())], Some(3_600_001.into())),
        argument("x-max-length", vec![("x-max-length", 1000.into())], Some(999.into())),
        argument("x-max-length-bytes", vec![("x-max-length-bytes", 1000.into())], Some(999.into())),
        argument("x-overflow=drop-head", vec![("x-overflow", "drop-head".into())], Some("reject-publish".into())),
        argument("x-overflow=reject-publish", vec![("x-overflow", "reject-publish".into())], Some("drop-head".into())),
        argument(
            "x-overflow=reject-publish-dlx",
            vec![("x-overflow", "reject-publish-dlx".into())],
            Some("drop-head".into()),
        ),
        argument("x-dead-letter-exchange", vec![("x-dead-letter-exchange", "amq.fanout".into())], Some("e".into())),
        argument(
            "x-dead-letter-routing-key",
            vec![("x-dead-letter-routing-key", "k".into()), ("x-dead-letter-exchange", "amq.fanout".into())],
            Some("l".into()),
        ),
        argument("x-single-active-consumer", vec![("x-single-active-consumer", true.into())], Some(false.into())),
        argument("x-queue-leader-locator", vec![("x-queue-leader-locator", "balanced".into())], None)
            .only(Kind::Quorum),
        argument("x-max-priority", vec![("x-max-priority", 5.into())], Some(6.into())).only(Kind::Classic),
        argument("x-queue-mode", vec![("x-queue-mode", "lazy".into())], Some("default".into())).only(Kind::Classic),
        argument("x-queue-version", vec![("x-queue-version", 2.into())], None).only(Kind::Classic),
        argument("x-queue-master-locator", vec![("x-queue-master-locator", "client-local".into())], None)
            .only(Kind::Classic),
        argument("x-delivery-limit", vec![("x-delivery-limit", 5.into())], Some(6.into())).only(Kind::Quorum),
        argument("x-dead-letter-strategy", vec![("x-dead-letter-strategy", "at-most-once".into())], None)
            .only(Kind::Quorum),
        argument("x-quorum-initial-group-size", vec![("x-quorum-initial-group-size", 1.into())], None)
            .only(Kind::Quorum),
        // A node alone refuses one that is true.
        argument("x-dedicated-partition", vec![("x-dedicated-partition", false.into())], Some(true.into()))
            .only(Kind::Quorum)
            .ours(),
        argument("x-quorum-target-group-size", vec![("x-quorum-target-group-size", 1.into())], None)
            .only(Kind::Quorum)
            .ours(),
        argument("x-max-in-memory-length", vec![("x-max-in-memory-length", 10.into())], None).only(Kind::Quorum),
        argument("x-max-in-memory-bytes", vec![("x-max-in-memory-bytes", 10.into())], None).only(Kind::Quorum),
        argument("x-consumer-timeout", vec![("x-consumer-timeout", 3_600_000.into())], None).only(Kind::Quorum).ours(),
        argument("x-consumer-disconnected-timeout", vec![("x-consumer-disconnected-timeout", 60_000.into())], None)
            .only(Kind::Quorum)
            .ours(),
        argument(
            "x-delayed-retry-type",
            vec![
                ("x-delayed-retry-type", "all".into()),
                ("x-delayed-retry-min", 1.into()),
                ("x-delayed-retry-max", 2.into()),
            ],
            None,
        )
        .only(Kind::Quorum)
        .ours(),
        argument("x-durability=synced", vec![("x-durability", "synced".into())], Some("written".into())).ours(),
        argument("x-durability=written", vec![("x-durability", "written".into())], Some("synced".into())).ours(),
        argument(
            "x-durability=leader-synced",
            vec![("x-durability", "leader-synced".into())],
            Some("leader-written".into()),
        )
        .ours(),
        argument(
            "x-durability=selective",
            vec![
                ("x-durability", "selective".into()),
                ("x-durability-interval-ms", 100.into()),
                ("x-durability-value-header", "value".into()),
                ("x-durability-value-cap", 10.into()),
            ],
            Some("synced".into()),
        )
        .ours(),
        argument(
            "x-durability-interval-ms",
            vec![("x-durability-interval-ms", 100.into()), ("x-durability", "selective".into())],
            Some(200.into()),
        )
        .ours(),
        argument(
            "x-durability-value-header",
            vec![
                ("x-durability-value-header", "value".into()),
                ("x-durability", "selective".into()),
                ("x-durability-value-cap", 10.into()),
            ],
            Some("worth".into()),
        )
        .ours(),
        argument(
            "x-durability-value-cap",
            vec![
                ("x-durability-value-cap", 10.into()),
                ("x-durability", "selective".into()),
                ("x-durability-value-header", "value".into()),
            ],
            Some(11.into()),
        )
        .ours(),
        argument("x-message-deduplication", vec![("x-message-deduplication", true.into())], None).ours(),
        argument(
            "x-deduplication-window-ms",
            vec![("x-deduplication-window-ms", 1000.into()), ("x-message-deduplication", true.into())],
            None,
        )
        .ours(),
        argument(
            "x-delayed-retry-min",
            vec![
                ("x-delayed-retry-min", 1.into()),
                ("x-delayed-retry-max", 2.into()),
                ("x-delayed-retry-type", "all".into()),
            ],
            None,
        )
        .only(Kind::Quorum)
        .ours(),
        argument(
            "x-delayed-retry-max",
            vec![
                ("x-delayed-retry-max", 2.into()),
                ("x-delayed-retry-min", 1.into()),
                ("x-delayed-retry-type", "all".into()),
            ],
            None,
        )
        .only(Kind::Quorum)
        .ours(),
    ]
}

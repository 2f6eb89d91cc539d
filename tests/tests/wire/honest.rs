//! Honest refusal: every argument with every type of value on every kind of queue, exchange and
//! consumer is honoured, or answered with RabbitMQ's code and text.
//!
//! Invariant: the cases are a product of lists, so that none is left out because nobody thought of
//! it.

use clients::broker::unique;
use clients::{ExchangeDeclare, QueueDeclare, Value};

use crate::golden::{Asker, Difference, compare};

const QUEUE_ARGUMENTS: &[&str] = &[
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
    "x-queue-master-locator",
    "x-known-to-nobody",
];

/// A value of each type, and of the numbers the ones at the edges of what arguments take.
fn values() -> Vec<(&'static str, Value)> {
    vec![
        ("true", Value::Bool(true)),
        ("i8 5", Value::I8(5)),
        ("u8 5", Value::U8(5)),
        ("i16 5", Value::I16(5)),
        ("u16 5", Value::U16(5)),
        ("i32 5", Value::I32(5)),
        ("u32 5", Value::U32(5)),
        ("i64 5", Value::I64(5)),
        ("i32 -1", Value::I32(-1)),
        ("i32 0", Value::I32(0)),
        ("i32 256", Value::I32(256)),
        ("i64 2^62", Value::I64(1 << 62)),
        ("f64 5.5", Value::F64(5.5)),
        ("decimal", Value::Decimal(1, 55)),
        ("text", Value::from("text")),
        ("empty text", Value::from("")),
        ("bytes", Value::Bytes(b"text".to_vec())),
        ("array", Value::Array(vec![Value::from("text")])),
        ("timestamp", Value::Timestamp(5)),
        ("table", Value::Table(vec![("k".to_owned(), Value::from(1))])),
        ("void", Value::Void),
    ]
}

/// Words that some argument takes.
const WORDS: &[(&str, &[&str])] = &[
    ("x-overflow", &["drop-head", "reject-publish", "reject-publish-dlx"]),
    ("x-queue-mode", &["default", "lazy"]),
    ("x-queue-type", &["classic", "quorum", "undefined"]),
    ("x-dead-letter-strategy", &["at-most-once", "at-least-once"]),
    ("x-queue-leader-locator", &["client-local", "balanced", "random", "least-leaders"]),
    ("x-queue-master-locator", &["client-local", "random", "min-masters"]),
];

fn cases(argument: &str) -> Vec<(String, Value)> {
    let mut cases: Vec<(String, Value)> = values().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for (_, words) in WORDS.iter().filter(|(name, _)| *name == argument) {
        cases.extend(words.iter().map(|word| (format!("'{word}'"), Value::from(*word))));
    }
    cases
}

#[test]
fn queue_arguments_are_honoured_or_refused_as_by_rabbitmq() {
    let mut asker = Asker::new();
    let mut answers = Vec::new();
    for (kind, durable, exclusive) in [("classic", true, false), ("quorum", true, false), ("exclusive", false, true)] {
        for argument in QUEUE_ARGUMENTS {
            for (shown, value) in cases(argument) {
                let name = unique("honest");
                let mut arguments = vec![(*argument, value)];
                if *argument != "x-queue-type" && !exclusive {
                    arguments.push(("x-queue-type", Value::from(kind)));
                }
                let queue = QueueDeclare { name: &name, durable, exclusive, arguments, ..Default::default() };
                let answer = asker.ask(&[(&name, "NAME")], |client, channel| {
                    client.declare(channel, &queue)?;
                    client.delete(channel, &name, false, false).map(|_| ())
                });
                answers.push((format!("{kind} {argument} {shown}"), answer));
            }
        }
    }
    let golden = include_str!("goldens/queue-arguments-3.10.8.txt");
    compare("queue-arguments-3.10.8.txt", golden, &answers, QUEUE_DIFFERENCES);
}

const NOT_YET: &str = "not supported by this version yet";

const QUEUE_DIFFERENCES: &[Difference] = &[
    Difference { is_it: |_, _, ours| ours.contains(NOT_YET), why: "refused by name until it is there", lasting: false },
    Difference {
        is_it: |case, theirs, ours| {
            (case.ends_with("x-queue-type empty text") || case.ends_with("x-queue-type 'undefined'"))
                && theirs.contains("unsupported queue type")
                && ours == "ok"
        },
        why: "RabbitMQ 4 takes the default type for no type",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, _| {
            case.contains(" x-queue-leader-locator ") && theirs.ends_with("of queue type rabbit_classic_queue")
        },
        why: "RabbitMQ 4 knows it for classic queues too, and refuses what is no locator",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| {
            case.contains(" x-queue-master-locator ")
                && (theirs.contains("541") || theirs == "nothing" || (case.starts_with("exclusive") && theirs == "ok"))
                && ours.starts_with("channel 406")
        },
        why: "3.10.8 dies of a value that is no locator, does not answer, or does not look at it if the queue is exclusive",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| {
            case.contains(" x-delivery-limit ") && theirs == "ok" && ours.contains("expected integer")
        },
        why: "3.10.8 does not look at the value; RabbitMQ 4 does",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| {
            case == "quorum x-quorum-initial-group-size i64 2^62" && theirs == "ok" && ours.contains("value_too_large")
        },
        why: "no cluster has as many members",
        lasting: true,
    },
];

#[test]
fn exchange_arguments_are_honoured_or_refused_as_by_rabbitmq() {
    let mut asker = Asker::new();
    let mut answers = Vec::new();
    for (kind, argument) in [
        ("direct", "alternate-exchange"),
        ("topic", "x-known-to-nobody"),
        ("x-consistent-hash", "hash-header"),
        ("x-consistent-hash", "hash-property"),
        ("x-recent-history", "x-recent-history-length"),
    ] {
        let mut cases = cases(argument);
        cases
            .extend(["message_id", "correlation_id", "timestamp"].map(|word| (format!("'{word}'"), Value::from(word))));
        for (shown, value) in cases {
            let name = unique("honest");
            let exchange =
                ExchangeDeclare { name: &name, kind, arguments: vec![(argument, value)], ..Default::default() };
            let answer = asker.ask(&[(&name, "NAME")], |client, channel| {
                client.declare_exchange(channel, &exchange)?;
                client.delete_exchange(channel, &name, false)
            });
            answers.push((format!("{kind} {argument} {shown}"), answer));
        }
    }
    let golden = include_str!("goldens/exchange-arguments-3.10.8.txt");
    compare("exchange-arguments-3.10.8.txt", golden, &answers, EXCHANGE_DIFFERENCES);
}

const EXCHANGE_DIFFERENCES: &[Difference] = &[
    Difference {
        is_it: |case, theirs, ours| {
            case.contains(" hash-") && theirs == "connection 541 0.0 INTERNAL_ERROR" && ours.contains("invalid type")
        },
        why: "the client's mistake, for which RabbitMQ's exchange dies",
        lasting: true,
    },
    Difference {
        is_it: |case, theirs, ours| {
            case.ends_with("-length i64 2^62") && theirs == "ok" && ours.contains("at most 10000")
        },
        why: "a history lives in memory, which has a bound",
        lasting: true,
    },
];

#[test]
fn consumer_arguments_are_honoured_or_refused_as_by_rabbitmq() {
    let mut asker = Asker::new();
    let mut answers = Vec::new();
    for kind in ["classic", "quorum"] {
        let name = unique("honest");
        let arguments = vec![("x-queue-type", Value::from(kind))];
        let queue = QueueDeclare { name: &name, durable: true, arguments, ..Default::default() };
        assert_eq!(asker.ask(&[], |client, channel| client.declare(channel, &queue).map(|_| ())), "ok");
        for argument in ["x-priority", "x-stream-offset", "x-cancel-on-ha-failover", "x-known-to-nobody"] {
            for (shown, value) in cases(argument) {
                let answer = asker.ask(&[(&name, "NAME")], |client, channel| {
                    let tag = client.consume_with(channel, &name, "", [false; 3], &[(argument, value)])?;
                    client.cancel(channel, &tag)
                });
                answers.push((format!("{kind} {argument} {shown}"), answer));
            }
        }
    }
    let golden = include_str!("goldens/consumer-arguments-3.10.8.txt");
    compare("consumer-arguments-3.10.8.txt", golden, &answers, CONSUMER_DIFFERENCES);
}

const CONSUMER_DIFFERENCES: &[Difference] = &[Difference {
    is_it: |case, theirs, ours| {
        case.contains("x-cancel-on-ha-failover") && theirs.contains("invalid arg") && ours == "ok"
    },
    why: "mirrored queues went with RabbitMQ 4, and the argument with them",
    lasting: true,
}];

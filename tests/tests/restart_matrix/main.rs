//! The restart matrix: everything that a broker promises to remember, before and after SIGTERM and
//! `kill -9`, on both queue types, looked at by `basic.get` and by a consumer, with a second
//! restart behind the first.
//!
//! Invariant: a row prepares its queues once; then the whole broker is restarted, every row looks,
//! the broker is restarted again, and every row looks once more. A look leaves what it found as it
//! was, so the second one has to find the same.
//!
//! The quick part tries each row on both queue types, both ways of ending and both ways of looking,
//! but not all combinations.
#![allow(clippy::unwrap_used)]

mod arguments;
mod cell;
mod exchanges;
mod messages;
mod queues;
mod rights;

use std::time::Duration;

use cell::{By, Cell, Kind};
use clients::broker::is_foreign;
use clients::client::PATIENCE;
use clients::matrix::{Outcome, is_wanted, is_whole, side_by_side};
use clients::{Broker, Difference, End, Event, Matrix, QueueDeclare, Value};

/// One thing to be remembered.
pub(crate) struct Row {
    name: String,
    prepare: Box<dyn Fn(&mut Cell<'_>) -> Outcome + Sync>,
    look: Box<dyn Fn(&mut Cell<'_>) -> Outcome + Sync>,
    /// RabbitMQ 3.10.8 has nothing like it.
    is_ours: bool,
    /// RabbitMQ has it in a plugin.
    plugin: Option<&'static str>,
    /// The queue type that it is for, if one only.
    kind: Option<Kind>,
    /// Left out of the quick part.
    takes_long: bool,
    /// Its client is connected when the broker ends.
    stays: bool,
}

impl Row {
    /// A row that holds for both queue types and both brokers.
    pub(crate) fn new(
        name: impl Into<String>,
        prepare: impl Fn(&mut Cell<'_>) -> Outcome + Sync + 'static,
        look: impl Fn(&mut Cell<'_>) -> Outcome + Sync + 'static,
    ) -> Row {
        let (prepare, look) = (Box::new(prepare), Box::new(look));
        Row {
            name: name.into(),
            prepare,
            look,
            is_ours: false,
            plugin: None,
            kind: None,
            takes_long: false,
            stays: false,
        }
    }

    /// Leveret's own.
    pub(crate) fn ours(self) -> Row {
        Row { is_ours: true, ..self }
    }

    /// RabbitMQ has it if this plugin is among those of `RABBITMQ_TEST_PLUGINS`.
    pub(crate) fn of_plugin(self, plugin: &'static str) -> Row {
        Row { plugin: Some(plugin), ..self }
    }

    /// For one queue type only.
    pub(crate) fn only(self, kind: Kind) -> Row {
        Row { kind: Some(kind), ..self }
    }

    /// Not in the quick part.
    pub(crate) fn long(self) -> Row {
        Row { takes_long: true, ..self }
    }

    /// With its client connected when the broker ends.
    pub(crate) fn stays(self) -> Row {
        Row { stays: true, ..self }
    }

    fn applies(&self, kind: Kind) -> bool {
        let has = |plugin| std::env::var("RABBITMQ_TEST_PLUGINS").is_ok_and(|plugins| plugins.contains(plugin));
        let is_there = !is_foreign() || (!self.is_ours && self.plugin.is_none_or(has));
        self.kind.is_none_or(|only| only == kind) && is_there
    }
}

const fn other_types_key(row: &'static str, column: &'static str) -> Difference {
    let told = "policy with a key that the queue's type does not know | leaves that queue out";
    Difference { row, column, told, varies: false }
}

const fn moved_keys(row: &'static str) -> Difference {
    let told =
        "a restart of a node with `x-consistent-hash` exchanges | keys may move between the queues | each key stays";
    Difference { row, column: "", told, varies: true }
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        row: "delivery mode 1",
        column: "classic",
        told: "non-persistent message on a durable classic queue | gone after a restart | kept like a persistent one",
        varies: false,
    },
    Difference {
        row: "at-least-once dead letters whose exchange comes afterwards",
        column: "",
        told: "at-least-once dead letter that found no place | tried again after three minutes | tried again each second",
        varies: false,
    },
    Difference {
        row: "redelivered is said of what was sent, and of that alone",
        column: "kill -9, classic",
        told: "classic queues flag what was sent, and after `kill -9` everything",
        varies: false,
    },
    Difference {
        row: "full queue that dead-letters what it refuses",
        column: "quorum",
        told: "`reject-publish-dlx` on a quorum queue | taken for `drop-head` | works",
        varies: false,
    },
    Difference {
        row: "ten thousand messages",
        column: "quorum, by consumer",
        told: "consumer of a quorum queue without a prefetch | at most 2,000 messages at a time | as many as there are",
        varies: false,
    },
    other_types_key("policy key dead-letter-strategy", "classic"),
    other_types_key("policy key delivery-limit", "classic"),
    other_types_key("policy key queue-leader-locator", "classic"),
    other_types_key("policy key queue-mode", "quorum"),
    moved_keys("exchange type x-consistent-hash"),
    moved_keys("exchange argument hash-header"),
    moved_keys("exchange argument hash-property"),
];

/// What nobody confirms is written after so long. Ten milliseconds are Leveret's setting; the
/// machine may be busy.
const UNCONFIRMED: Duration = Duration::from_millis(700);
/// Cells of one broker that are tried at a time.
const AT_A_TIME: usize = 4;
const ENDS: [End; 2] = [End::Terminated, End::Killed];

/// A column: the queue type, how the broker ends, and how messages are looked at.
fn column(end: End, kind: Kind, by: By) -> String {
    let end = if end == End::Killed { "kill -9" } else { "SIGTERM" };
    format!("{end}, {}, by {}", kind.word(), by.word())
}

fn columns() -> Vec<(End, Kind, By)> {
    let by = |end, kind| By::ALL.map(|by| (end, kind, by));
    let kinds = |end| Kind::ALL.into_iter().flat_map(move |kind| by(end, kind));
    ENDS.into_iter().flat_map(kinds).collect()
}

fn all_rows() -> Vec<Row> {
    let mut rows = arguments::rows();
    rows.extend(queues::rows());
    rows.extend(messages::rows());
    rows.extend(exchanges::rows());
    rows.extend(rights::rows());
    rows
}

/// Those that are wanted.
fn rows() -> Vec<Row> {
    let mut rows = all_rows();
    rows.retain(|row| is_whole() || !row.takes_long);
    rows.retain(|row| is_wanted(&row.name));
    rows
}

#[test]
fn what_a_broker_remembers_it_remembers_over_two_restarts() {
    let rows = rows();
    let names = columns().into_iter().map(|(end, kind, by)| column(end, kind, by));
    let matrix = Matrix::new("restarts", rows.iter().map(|row| row.name.clone()), names, DIFFERENCES);
    // A broker that is not ours is one for all, and cannot end in two ways at a time.
    let workers = if is_foreign() { 1 } else { ENDS.len() };
    let is_there = std::sync::atomic::AtomicBool::new(true);
    side_by_side(
        workers,
        ENDS,
        |_| (),
        |(), end| match Broker::restartable(&[]) {
            Some((mut broker, http)) => try_rows(&matrix, &rows, end, &mut broker, &http),
            None => is_there.store(false, std::sync::atomic::Ordering::Relaxed),
        },
    );
    if is_there.into_inner() {
        matrix.finish();
    }
}

fn try_rows(matrix: &Matrix, rows: &[Row], end: End, broker: &mut Broker, http: &clients::Http) {
    let mut cells = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        for (kind, by) in Kind::ALL.into_iter().flat_map(|kind| By::ALL.map(|by| (kind, by))) {
            // In the quick part every second one, as on a chessboard.
            let turn =
                usize::from(kind == Kind::Quorum) + usize::from(by == By::Consumer) + usize::from(end == End::Killed);
            let is_in_part = is_whole() || (turn + number).is_multiple_of(2);
            match row.applies(kind) && is_in_part {
                true => cells.push((row, column(end, kind, by), Cell::new(http, end, kind, by, number))),
                false => matrix.leave_out(&row.name, &column(end, kind, by)),
            }
        }
    }
    let at = broker.addr();
    side_by_side(
        AT_A_TIME,
        &mut cells,
        |_| (),
        |(), (row, column, cell)| {
            matrix.cell(&row.name, column, || {
                cell.connect(at);
                (row.prepare)(cell).map_err(|why| format!("before the restart: {why}"))
            });
        },
    );
    for round in 1..=2 {
        // A client that is still there when the broker ends answers its close.
        let clients = cells.iter_mut().filter_map(|(row, _, cell)| cell.disconnect().filter(|_| row.stays));
        let clients: Vec<_> =
            clients.map(|mut client| std::thread::spawn(move || client.ends_within(PATIENCE))).collect();
        // Nobody confirms an ack or a reject; the log has them within this time.
        std::thread::sleep(UNCONFIRMED);
        broker.restart(end);
        clients.into_iter().for_each(|client| _ = client.join());
        let at = broker.addr();
        let left = cells.iter_mut().filter(|(row, column, _)| !matrix.has_failed(&row.name, column));
        side_by_side(
            AT_A_TIME,
            left,
            |_| (),
            |(), (row, column, cell)| {
                matrix.cell(&row.name, column, || {
                    cell.connect(at);
                    cell.round = round;
                    (row.look)(cell).map_err(|why| format!("after restart {round}: {why}"))
                });
            },
        );
    }
}

#[test]
fn differences_are_told() {
    let behaviour = std::fs::read_to_string("../docs/behaviour.md").unwrap();
    assert_eq!(Matrix::untold(DIFFERENCES, &behaviour), [""; 0]);
    let rows = all_rows();
    let is_there = |difference: &&Difference| rows.iter().any(|row| row.name == difference.row);
    assert_eq!(DIFFERENCES.iter().filter(|d| !is_there(d)).count(), 0, "each names a row: {DIFFERENCES:?}");
}

/// The only timeout of classic queues is a setting, so the broker has to be one of its own; and
/// RabbitMQ looks at its consumers once a minute.
#[test]
fn the_setting_for_slow_consumers_holds_over_a_restart() {
    for end in ENDS {
        let Some(mut broker) = Broker::own_or_skip(&["--consumer-timeout-ms", "500"]) else { return };
        let mut client = broker.connect();
        for kind in Kind::ALL {
            let channel = client.channel();
            let arguments = vec![("x-queue-type", Value::from(kind.word()))];
            let declare = QueueDeclare { name: kind.word(), durable: true, arguments, ..Default::default() };
            client.declare(channel, &declare).unwrap();
            client.confirm_select(channel).unwrap();
            ["a", "b"].iter().for_each(|body| client.put(channel, kind.word(), body.as_bytes()));
            client.confirmed(channel, 1, 2);
            client.qos(channel, 1, false).unwrap();
            client.consume(channel, kind.word(), "slow").unwrap();
            assert_eq!(client.delivery(channel).body, b"a");
        }
        let gone = std::thread::spawn(move || client.ends_within(PATIENCE));
        broker.restart(end);
        gone.join().unwrap();
        let mut client = broker.connect();
        for kind in Kind::ALL {
            let channel = client.channel();
            client.qos(channel, 1, false).unwrap();
            client.consume(channel, kind.word(), "slow").unwrap();
            assert_eq!(client.delivery(channel).body, b"a");
            let cancelled = client.event_within(channel, PATIENCE);
            assert!(
                matches!(&cancelled, Some(Event::Cancelled(tag)) if tag == "slow"),
                "{end:?} {kind:?}: {cancelled:?}"
            );
            let found = (0..2).map(|_| client.get(channel, kind.word(), true).unwrap().unwrap().body);
            assert_eq!(found.collect::<Vec<_>>(), [b"a", b"b"], "{end:?} {kind:?}");
        }
    }
}

#[test]
fn each_queue_argument_that_is_documented_has_a_row() {
    let documentation = std::fs::read_to_string("../docs/queue-arguments.md").unwrap();
    let table = documentation.split("| queue argument |").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<String> = all_rows().into_iter().map(|row| row.name).collect();
    let is_there =
        |name: &str| rows.iter().any(|row| row.strip_prefix("argument ").is_some_and(|row| row.starts_with(name)));
    let (mut missing, mut seen, mut whole) = (Vec::new(), 0, "");
    // A name, or in short what it ends with where it begins as the one before it.
    for name in
        table.lines().filter_map(|line| line.split(" | ").next()).flat_map(|cell| cell.split('`').skip(1).step_by(2))
    {
        let short = name.strip_prefix('-');
        let replaced = whole.rsplit_once('-').map_or("", |(begin, _)| begin);
        let names = match short {
            Some(short) => vec![format!("{whole}-{short}"), format!("{replaced}-{short}")],
            None => vec![name.trim_end_matches(['*', '-']).to_owned()],
        };
        whole = if short.is_some() { whole } else { name };
        seen += 1;
        if !names.iter().any(|name| is_there(name)) {
            missing.push(name);
        }
    }
    // `x-dead-letter-routing-key` is told as what ends otherwise than `x-dead-letter-exchange`.
    missing.retain(|name| *name != "-routing-key" || !is_there("x-dead-letter-routing-key"));
    assert_eq!(missing, [""; 0], "of {seen} arguments");
    assert!(seen > 25, "{seen}: the table is not the one that this test knows");
}

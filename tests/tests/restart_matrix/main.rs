//! The restart matrix: everything that a broker promises to remember, before and after SIGTERM and `kill -9`, on both
//! queue types, looked at by `basic.get` and by a consumer, with a second restart behind the first.
//!
//! Invariant: a row prepares its queues once; then the whole broker is restarted, every row looks, the broker is
//! restarted again, and every row looks once more. A look leaves what it found as it was, so the second one has to
//! find the same.
//!
//! The quick part tries each row on both queue types, both ways of ending and both ways of looking, but not all
//! combinations.
//!
//! Environment: `ROWS` names a part of the names of those rows that are wanted.
#![allow(clippy::unwrap_used)]

mod cell;
mod exchanges;
mod messages;
mod queues;
mod rights;

use std::time::Duration;

use cell::{By, Cell, Kind};
use clients::broker::is_foreign;
use clients::client::PATIENCE;
use clients::matrix::{Outcome, is_whole, side_by_side};
use clients::{Broker, Difference, End, Matrix};

/// One thing to be remembered.
pub(crate) struct Row {
    name: String,
    prepare: Box<dyn Fn(&mut Cell<'_>) -> Outcome + Sync>,
    look: Box<dyn Fn(&mut Cell<'_>) -> Outcome + Sync>,
    /// RabbitMQ 3.10.8 has nothing like it.
    is_ours: bool,
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
        Row { name: name.into(), prepare, look, is_ours: false, kind: None, takes_long: false, stays: false }
    }

    /// Leveret's own.
    pub(crate) fn ours(self) -> Row {
        Row { is_ours: true, ..self }
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
        self.kind.is_none_or(|only| only == kind) && !(self.is_ours && is_foreign())
    }
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        row: "delivery mode 1",
        column: "classic",
        told: "non-persistent message on a durable classic queue | gone after a restart | kept like a persistent one",
    },
    Difference {
        row: "at-least-once dead letters whose exchange comes afterwards",
        column: "",
        told: "at-least-once dead letter that found no place | tried again after three minutes | tried again each second",
    },
    Difference {
        row: "redelivered is said of what was sent, and of that alone",
        column: "kill -9, classic",
        told: "classic queues flag what was sent, and after `kill -9` everything",
    },
    Difference {
        row: "full queue that dead-letters what it refuses",
        column: "quorum",
        told: "`reject-publish-dlx` on a quorum queue | taken for `drop-head` | works",
    },
];

/// What nobody confirms is written after so long. Ten milliseconds are Leveret's setting; the machine may be busy.
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

fn rows() -> Vec<Row> {
    let mut rows = queues::rows();
    rows.extend(messages::rows());
    rows.extend(exchanges::rows());
    rows.extend(rights::rows());
    rows.retain(|row| is_whole() || !row.takes_long);
    let wanted = std::env::var("ROWS").unwrap_or_default();
    rows.retain(|row| row.name.contains(&wanted));
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
                true => cells.push((row, column(end, kind, by), Cell::new(http, kind, by, number))),
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
    let rows = rows();
    let is_there = |difference: &&Difference| rows.iter().any(|row| row.name == difference.row);
    let wanted = std::env::var("ROWS").is_err();
    assert_eq!(DIFFERENCES.iter().filter(|d| wanted && !is_there(d)).count(), 0, "each names a row: {DIFFERENCES:?}");
}

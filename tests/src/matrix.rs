//! A matrix: rows by columns of cells, each a small test of its own; a table at the end that shows
//! all of them at once.
//!
//! Invariant: a matrix passes only if every cell was tried or left out by name, and each came out
//! as expected. A cell that differs from RabbitMQ on purpose is listed as a [`Difference`] with its
//! reason: there it has to fail, so that the list never outlives what it lists, unless it is a
//! matter of a moment.
//!
//! Environment: `MATRIX=whole` asks for everything, otherwise a quick part runs. `ROWS` is a part
//! of the names of those rows that are wanted. `AMQP_URI` names a broker that is not ours, as
//! everywhere in these tests.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::broker::is_foreign;

/// How a cell came out: a sentence that says what went wrong, or nothing.
pub type Outcome = Result<(), String>;

/// Cells that come out otherwise on RabbitMQ 3.10.8.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// The row.
    pub row: &'static str,
    /// What the column's name contains; empty for the whole row.
    pub column: &'static str,
    /// Words of `docs/behaviour.md` that tell it and its reason.
    pub told: &'static str,
    /// Whether it is a matter of a moment there, so that such a cell may come out well too.
    pub varies: bool,
}

/// The cells of one matrix and how they came out. Threads fill it side by side.
#[derive(Debug)]
pub struct Matrix {
    name: &'static str,
    rows: Vec<String>,
    columns: Vec<String>,
    differences: &'static [Difference],
    cells: Mutex<BTreeMap<(String, String), Cell>>,
    is_foreign: bool,
}

#[derive(Clone, Debug)]
enum Cell {
    /// Does not apply.
    Absent,
    /// As it came out; of several tries the first that failed.
    Tried(Outcome),
}

/// Whether everything is asked for, and not the quick part.
pub fn is_whole() -> bool {
    std::env::var("MATRIX").is_ok_and(|part| part == "whole")
}

/// Whether a row of this name is wanted.
pub fn is_wanted(row: &str) -> bool {
    std::env::var("ROWS").map_or(true, |part| row.contains(&part))
}

/// Runs `jobs` over several brokers side by side, or whatever `make` makes. Each worker makes one
/// and takes jobs, in their order, until none is left.
pub fn side_by_side<T, J: Send>(
    workers: usize,
    jobs: impl IntoIterator<Item = J>,
    make: impl Fn(usize) -> T + Sync,
    run: impl Fn(&mut T, J) + Sync,
) {
    let jobs: Vec<J> = jobs.into_iter().collect();
    let workers = workers.clamp(1, jobs.len().max(1));
    let jobs = Mutex::new(jobs.into_iter());
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (jobs, make, run) = (&jobs, &make, &run);
            scope.spawn(move || {
                let mut made = make(worker);
                loop {
                    let job = jobs.lock().expect("taking a job does not panic").next();
                    let Some(job) = job else { return };
                    run(&mut made, job);
                }
            });
        }
    });
}

/// Runs a closure; a panic in it is what went wrong.
pub fn attempt(f: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(text_of(&*panic)))
}

/// Some name the bodies of thousands of messages.
fn shortened(why: &str) -> String {
    const MOST: usize = 600;
    match why.char_indices().nth(MOST) {
        Some((at, _)) => format!("{} ...", &why[..at]),
        None => why.to_owned(),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

impl Matrix {
    /// A matrix of which no cell was tried yet. Rows and columns are shown in this order.
    pub fn new(
        name: &'static str,
        rows: impl IntoIterator<Item = impl Into<String>>,
        columns: impl IntoIterator<Item = impl Into<String>>,
        differences: &'static [Difference],
    ) -> Matrix {
        let (rows, columns): (Vec<String>, Vec<String>) =
            (rows.into_iter().map(Into::into).collect(), columns.into_iter().map(Into::into).collect());
        let distinct: BTreeSet<&String> = rows.iter().collect();
        assert_eq!(distinct.len(), rows.len(), "two rows of one name");
        Matrix { name, rows, columns, differences, cells: Mutex::default(), is_foreign: is_foreign() }
    }

    /// The names of its rows.
    pub fn rows(&self) -> &[String] {
        &self.rows
    }

    /// The names of its columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Tries a cell, and again with each further call: it is good if all of them were. A panic
    /// counts as a failure.
    pub fn cell(&self, row: &str, column: &str, f: impl FnOnce() -> Outcome) {
        let came_out = attempt(f);
        self.record(row, column, came_out);
    }

    /// Notes how a cell came out; of several times the first failure stays.
    pub fn record(&self, row: &str, column: &str, outcome: Outcome) {
        self.check_name(row, column);
        let mut cells = self.cells.lock().expect("no cell is tried while it is locked");
        let cell = cells.entry((row.to_owned(), column.to_owned())).or_insert(Cell::Absent);
        if !matches!(cell, Cell::Tried(Err(_))) {
            *cell = Cell::Tried(outcome);
        }
    }

    /// Whether a cell has failed already: the rest of it tells nothing.
    pub fn has_failed(&self, row: &str, column: &str) -> bool {
        let cells = self.cells.lock().expect("no cell is tried while it is locked");
        matches!(cells.get(&(row.to_owned(), column.to_owned())), Some(Cell::Tried(Err(_))))
    }

    /// A cell that makes no sense: there is nothing to try.
    pub fn leave_out(&self, row: &str, column: &str) {
        self.check_name(row, column);
        self.cells
            .lock()
            .expect("no cell is tried while it is locked")
            .entry((row.to_owned(), column.to_owned()))
            .or_insert(Cell::Absent);
    }

    fn check_name(&self, row: &str, column: &str) {
        assert!(self.rows.iter().any(|r| r == row), "there is no row {row:?}");
        assert!(self.columns.iter().any(|c| c == column), "there is no column {column:?}");
    }

    fn difference(&self, row: &str, column: &str) -> Option<&Difference> {
        self.differences.iter().find(|d| self.is_foreign && d.row == row && column.contains(d.column))
    }

    /// Prints the table. Panics with every cell that did not come out as expected.
    #[allow(clippy::print_stdout, reason = "the table is for whoever runs the matrix")]
    pub fn finish(self) {
        let (table, wrong) = self.report();
        println!("{table}");
        assert!(wrong.is_empty(), "{} cells of {} are not as expected:\n{}", wrong.len(), self.name, wrong.join("\n"));
    }

    /// The table as text, and a sentence for each cell that is not as expected.
    fn report(&self) -> (String, Vec<String>) {
        let cells = self.cells.lock().expect("no cell is tried while it is locked");
        let (mut wrong, mut good, mut differing) = (Vec::new(), 0, 0);
        let width = self.rows.iter().map(|row| row.chars().count()).max().unwrap_or(0);
        let part = if is_whole() { "whole" } else { "quick part" };
        let whose = if self.is_foreign { "the broker that AMQP_URI names" } else { "Leveret" };
        let mut table = format!("{}, {part}, {whose}\n", self.name);
        for (at, column) in self.columns.iter().enumerate() {
            table += &format!("{:width$}  {}┌ {column}\n", "", "│ ".repeat(at));
        }
        for row in &self.rows {
            table += &format!("{row:width$}  ");
            for column in &self.columns {
                let sign = match (cells.get(&(row.clone(), column.clone())), self.difference(row, column)) {
                    (None, _) => {
                        wrong.push(format!("{row} / {column}: was not tried"));
                        '?'
                    }
                    (Some(Cell::Absent), _) => ' ',
                    (Some(Cell::Tried(Ok(()))), difference) if difference.is_none_or(|d| d.varies) => {
                        good += 1;
                        '·'
                    }
                    (Some(Cell::Tried(Err(_))), Some(_)) => {
                        differing += 1;
                        '~'
                    }
                    (Some(Cell::Tried(Ok(()))), difference) => {
                        let told = difference.map_or("", |d| d.told);
                        wrong.push(format!("{row} / {column}: is listed as different ({told}), and is not"));
                        '!'
                    }
                    (Some(Cell::Tried(Err(why))), None) => {
                        wrong.push(format!("{row} / {column}: {}", shortened(why)));
                        'X'
                    }
                };
                table += &format!("{sign} ");
            }
            table.truncate(table.trim_end().len());
            table.push('\n');
        }
        table += &format!(
            "{good} cells good, {differing} differ from RabbitMQ on purpose (~), {} are not as expected (X ! ?)",
            wrong.len()
        );
        (table, wrong)
    }

    /// Whether `behaviour`, the text of `docs/behaviour.md`, tells each listed difference; those
    /// that it does not.
    pub fn untold<'a>(differences: &'a [Difference], behaviour: &str) -> Vec<&'a str> {
        // Where a line of the text is broken makes no difference.
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let behaviour = flat(behaviour);
        differences.iter().map(|d| d.told).filter(|told| !behaviour.contains(&flat(told))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const DIFFERENT: &[Difference] = &[Difference { row: "b", column: "kill", told: "lost in a crash", varies: false }];
    const VARYING: &[Difference] = &[Difference { varies: true, ..DIFFERENT[0] }];

    fn matrix(is_foreign: bool) -> Matrix {
        Matrix { is_foreign, ..Matrix::new("test", ["a", "b"], ["term", "kill"], DIFFERENT) }
    }

    #[test]
    fn a_difference_that_is_a_matter_of_a_moment_may_come_out_well_in_its_own_cell() {
        for (is_foreign, differs, wrong) in [(true, true, 0), (true, false, 0), (false, true, 1), (false, false, 0)] {
            let matrix = Matrix { differences: VARYING, ..matrix(is_foreign) };
            for (row, column) in [("a", "term"), ("a", "kill"), ("b", "term")] {
                matrix.cell(row, column, || Ok(()));
            }
            matrix.cell("b", "kill", || if differs { Err("gone".to_owned()) } else { Ok(()) });
            assert_eq!(matrix.report().1.len(), wrong, "{is_foreign} {differs}");
        }
        let matrix = Matrix { differences: VARYING, ..matrix(true) };
        matrix.leave_out("a", "term");
        matrix.leave_out("b", "term");
        matrix.leave_out("b", "kill");
        matrix.cell("a", "kill", || Err("x".repeat(5_000)));
        let wrong = matrix.report().1;
        assert!(wrong.len() == 1 && wrong[0].len() < 700, "another cell fails, and says so in few words: {wrong:?}");
    }

    #[test]
    fn a_cell_that_was_not_tried_is_not_as_expected() {
        let matrix = matrix(false);
        matrix.cell("a", "term", || Ok(()));
        matrix.leave_out("a", "kill");
        matrix.cell("b", "term", || Ok(()));
        assert_eq!(matrix.report().1, ["b / kill: was not tried"]);
    }

    #[test]
    fn a_failure_stays_whatever_comes_after_it() {
        let matrix = matrix(false);
        for (row, column) in [("a", "term"), ("a", "kill"), ("b", "term"), ("b", "kill")] {
            matrix.cell(row, column, || Ok(()));
        }
        matrix.cell("a", "term", || panic!("nothing came for {}", 7));
        matrix.cell("a", "term", || Ok(()));
        assert!(matrix.has_failed("a", "term") && !matrix.has_failed("a", "kill"));
        assert_eq!(matrix.report().1, ["a / term: nothing came for 7"]);
    }

    #[test]
    fn a_difference_has_to_differ_there_and_counts_nowhere_else() {
        let outcomes = |is_foreign: bool, differs: bool| {
            let matrix = matrix(is_foreign);
            for (row, column) in [("a", "term"), ("a", "kill"), ("b", "term")] {
                matrix.cell(row, column, || Ok(()));
            }
            matrix.cell("b", "kill", || if differs { Err("gone".to_owned()) } else { Ok(()) });
            matrix.report().1.len()
        };
        assert_eq!((outcomes(true, true), outcomes(false, false)), (0, 0));
        assert_eq!((outcomes(true, false), outcomes(false, true)), (1, 1));
        assert_eq!(Matrix::untold(DIFFERENT, "| lost in\n  a crash | why |"), [""; 0]);
        assert_eq!(Matrix::untold(DIFFERENT, "| something else |"), ["lost in a crash"]);
    }

    #[test]
    fn each_job_is_done_once() {
        let (made, done) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        side_by_side(
            3,
            0..20,
            |_| made.fetch_add(1, Ordering::Relaxed),
            |_, job| assert!(done.lock().expect("only inserts").insert(job)),
        );
        assert_eq!((made.into_inner(), done.into_inner().expect("only inserts").len()), (3, 20));
    }
}

//! S3's grid: a broker in a small box, and writers that each wait for their confirm.
//!
//! Invariant: each cell has a broker of its own on a fresh folder; a cell that the machine cannot give (more cores than it has) is
//! left out and told.

use super::line;
use crate::Error;
use crate::broker::Broker;
use crate::options::{Asked, BrokerStart, parse};
use crate::screen::say;
use crate::series::Series;
use crate::words::{ABOUT_BROKER, Words};

/// RocketMQ's benchmark sends bodies of this size.
const BODY_BYTES: u32 = 128;

/// Messages of the standing backlog.
const BACKLOG: u64 = 500_000;

/// What its consumer takes a second when the cell without one was not measured.
const CONSUMED_PER_S: f64 = 10_000.0;

/// One cell: cores, megabytes, writers, whether a consumer takes the messages as they come, whether a backlog stands, and what
/// RocketMQ 4.5.2 with asynchronous flush held in it on the reference machine, messages a second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    cpu: f64,
    memory_mb: u64,
    writers: u32,
    consumes: bool,
    backlog: bool,
    rocketmq: Option<f64>,
}

/// Leveret is to hold so many times what RocketMQ held, with every message synced.
const TIMES_ROCKETMQ: f64 = 3.0;

fn cells() -> Vec<Cell> {
    let cell =
        |cpu, memory_mb, writers| Cell { cpu, memory_mb, writers, consumes: true, backlog: false, rocketmq: None };
    let mut cells = Vec::new();
    // Memory rises at 0.9 cores and 8 writers; then cores at 1 GB and 16 writers; then writers at 0.9 cores and 1 GB.
    cells.extend([512, 1024, 2048].map(|memory| cell(0.9, memory, 8)));
    cells.extend([1.8, 2.7, 3.6].map(|cpu| cell(cpu, 1024, 16)));
    cells.extend([16, 32, 64].map(|writers| cell(0.9, 1024, writers)));
    cells.push(Cell { backlog: true, ..cell(0.9, 512, 8) });
    // RocketMQ's figures are of its producer alone, so these two have no consumer either.
    for (memory, writers, held) in [(512, 8, 14_000.0), (1024, 64, 25_600.0)] {
        cells.push(Cell { consumes: false, rocketmq: Some(held), ..cell(0.9, memory, writers) });
    }
    cells
}

pub(super) fn run(words: &Words, series: &mut Series<'_>) -> Result<(), Error> {
    if words.is_set("uri") || words.is_set("uris") {
        return Err(Error::usage("box starts its brokers itself, each in its own box: give --broker and not --uri"));
    }
    // All that is about other brokers or other boxes; the broker's processes are found by their port.
    let about = ABOUT_BROKER.iter().map(|(name, ..)| *name).filter(|name| *name != "broker");
    if let Some(name) = about.into_iter().find(|name| words.is_set(name)) {
        return Err(Error::usage(format!(
            "--{name} means nothing to box, which makes its boxes and starts a broker in each"
        )));
    }
    let seconds = super::seconds(words, 300, 1)?;
    let mut free = None;
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    for cell in cells() {
        if cell.cpu > cores {
            say(&format!("\n{} cores, {} MB: left out, this machine has {cores} cores", cell.cpu, cell.memory_mb));
            continue;
        }
        let held = one(words, series, cell, seconds, free)?;
        // The box of the backlog is the first one: what it held without one is what its consumer takes.
        free = free.or(Some(held));
    }
    Ok(())
}

/// Measures a cell and returns what it held. `free` is what the first one did.
fn one(words: &Words, series: &mut Series<'_>, cell: Cell, seconds: u64, free: Option<f64>) -> Result<f64, Error> {
    let wanted = BrokerStart {
        command: words.text("broker").map(str::to_owned),
        cpu: Some(cell.cpu),
        memory_bytes: Some(cell.memory_mb << 20),
    };
    let is_own = wanted.command.is_none();
    let broker = Broker::start(&wanted)?;
    let queue = "-qq -u box";
    let within = within(words, cell);
    let mut prepared = None;
    if cell.backlog {
        let fill = format!("-x 2 -y 0 -c 1000 -s {BODY_BYTES} -C {} {queue}", BACKLOG / 2);
        let filled = series.run("filling the backlog", &plain(&fill)?, Some(&broker))?;
        // Beside the cells it would be one of them.
        filled.run.is_preparation = filled.run.missed.is_empty();
        prepared = Some(format!("the backlog was made before, in the same box, by {}", filled.run.command));
    }
    // A consumer without a limit takes half a million messages in a second, and nothing would stand any more.
    let pace = if cell.backlog { format!(" -R {:.0}", free.unwrap_or(CONSUMED_PER_S)) } else { String::new() };
    let load = format!(
        "-x {} {} -c 1 -s {BODY_BYTES} -z {seconds} --warmup {} --drain-timeout {} {queue}",
        cell.writers,
        if cell.consumes { format!("-y 1 -q 500 -A 50{pace}") } else { "-y 0".to_owned() },
        (seconds / 5).min(10),
        if cell.backlog { 0 } else { 60 }
    );
    let backlog = if cell.backlog { format!(", {BACKLOG} messages standing") } else { String::new() };
    let alone = if cell.consumes { "" } else { " alone" };
    let label = format!("{} cores, {} MB, {} writers{alone}{backlog}", cell.cpu, cell.memory_mb, cell.writers);
    let recorded = series.run(&label, &[within, plain(&load)?].concat(), Some(&broker))?;
    recorded.run.notes.push(format!("the broker ran in a box of {} cores and {} MB", cell.cpu, cell.memory_mb));
    recorded.run.notes.extend(prepared);
    let held = recorded.run.confirmed_per_s.unwrap_or(0.0);
    if cell.backlog {
        let stands = recorded.run.correctness.left_in_queues.unwrap_or(0);
        recorded.run.notes.push(format!("{BACKLOG} messages stood in the queue at the start, {stands} at the end"));
        if stands < BACKLOG / 2 {
            recorded.run.miss(format!("the backlog did not stand: {stands} of {BACKLOG} messages were left"));
        }
    }
    if let Some(rocketmq) = cell.rocketmq {
        let note = format!(
            "RocketMQ 4.5.2, asynchronous flush, same box: {rocketmq:.0} msg/s; here {held:.0}, {:.1} times that",
            held / rocketmq
        );
        recorded.run.notes.push(note.clone());
        say(&format!("  note              {note}"));
        if is_own && held < rocketmq * TIMES_ROCKETMQ {
            recorded.run.miss(format!("{held:.0} messages a second, {:.0} are required", rocketmq * TIMES_ROCKETMQ));
        }
    }
    Ok(held)
}

/// The words that would start the cell's broker, for whoever repeats its line; here it is started already.
fn within(words: &Words, cell: Cell) -> Vec<String> {
    let own = words.text("broker").map(|command| ["--broker".to_owned(), command.to_owned()]);
    let limits =
        ["--limit-cpu".to_owned(), cell.cpu.to_string(), "--limit-memory".to_owned(), format!("{}M", cell.memory_mb)];
    own.into_iter().flatten().chain(limits).collect()
}

/// The words of a cell, without those about a broker: it is started here.
fn plain(text: &str) -> Result<Vec<String>, Error> {
    let words = line(&Words::default(), text);
    match parse(&words)? {
        Asked::Run(_) => Ok(words),
        _ => Err(Error::usage("a run was expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cells_line_starts_the_box_that_it_ran_in() {
        let words = Words::read("scenario", &["--broker".to_owned(), "b {port}".to_owned()], &[ABOUT_BROKER]);
        let line = [within(&words.expect("it is known"), cells()[0]), plain("-x 8").expect("it is a run")].concat();
        let Ok(Asked::Run(options)) = parse(&line) else { panic!("{line:?} is a run") };
        let start = (options.broker.command.as_deref(), options.broker.cpu, options.broker.memory_bytes);
        assert_eq!(start, (Some("b {port}"), Some(0.9), Some(512 << 20)));
    }

    #[test]
    fn the_grid_is_the_articles_and_adds_a_backlog() {
        let cells = cells();
        let beside: Vec<&Cell> = cells.iter().filter(|cell| cell.rocketmq.is_some()).collect();
        assert!(beside.len() == 2 && beside.iter().all(|cell| !cell.consumes), "RocketMQ's producers ran alone");
        assert_eq!(cells.iter().filter(|cell| cell.backlog).count(), 1);
        assert!(cells.iter().any(|cell| cell.cpu == 3.6 && cell.writers == 16));
        assert!(cells.iter().all(|cell| plain(&format!("-x {}", cell.writers)).is_ok()));
    }
}

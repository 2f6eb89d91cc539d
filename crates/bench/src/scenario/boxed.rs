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
use crate::words::Words;

/// RocketMQ's benchmark sends bodies of this size.
const BODY_BYTES: u32 = 128;

/// Messages of the standing backlog.
const BACKLOG: u64 = 500_000;

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
    if words.text("uri").is_some() || words.text("uris").is_some() {
        return Err(Error::usage("box starts its brokers itself, each in its own box: give --broker and not --uri"));
    }
    let seconds = if words.is_set("full") { 300.0 } else { words.number("seconds", 15.0, 1.0, 86_400.0)? } as u64;
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    for cell in cells() {
        if cell.cpu > cores {
            say(&format!("\n{} cores, {} MB: left out, this machine has {cores} cores", cell.cpu, cell.memory_mb));
            continue;
        }
        one(words, series, cell, seconds)?;
        if series.is_interrupted() {
            break;
        }
    }
    Ok(())
}

fn one(words: &Words, series: &mut Series<'_>, cell: Cell, seconds: u64) -> Result<(), Error> {
    let wanted = BrokerStart {
        command: words.text("broker").map(str::to_owned),
        cpu: Some(cell.cpu),
        memory_bytes: Some(cell.memory_mb << 20),
    };
    let is_own = wanted.command.is_none();
    let broker = Broker::start(&wanted)?;
    let queue = "-qq -u box";
    if cell.backlog {
        let fill = format!("-x 2 -y 0 -c 1000 -s {BODY_BYTES} -C {} {queue}", BACKLOG / 2);
        series.run("filling the backlog", &plain(words, &fill)?, Some(&broker))?;
    }
    let load = format!(
        "-x {} {} -c 1 -s {BODY_BYTES} -z {seconds} --warmup {} --drain-timeout {} {queue}",
        cell.writers,
        if cell.consumes { "-y 1 -q 500 -A 50" } else { "-y 0" },
        (seconds / 5).min(10),
        if cell.backlog { 0 } else { 60 }
    );
    let backlog = if cell.backlog { format!(", {BACKLOG} messages standing") } else { String::new() };
    let alone = if cell.consumes { "" } else { " alone" };
    let label = format!("{} cores, {} MB, {} writers{alone}{backlog}", cell.cpu, cell.memory_mb, cell.writers);
    let recorded = series.run(&label, &plain(words, &load)?, Some(&broker))?;
    recorded.run.notes.push(format!("the broker ran in a box of {} cores and {} MB", cell.cpu, cell.memory_mb));
    if let Some(rocketmq) = cell.rocketmq {
        let held = recorded.run.confirmed_per_s.unwrap_or(0.0);
        let note = format!(
            "RocketMQ 4.5.2, asynchronous flush, same box: {rocketmq:.0} msg/s; here {held:.0}, {:.1} times that",
            held / rocketmq
        );
        recorded.run.notes.push(note.clone());
        say(&format!("  note              {note}"));
        if is_own && held < rocketmq * TIMES_ROCKETMQ {
            recorded
                .run
                .missed
                .push(format!("{held:.0} messages a second, {:.0} are required", rocketmq * TIMES_ROCKETMQ));
        }
    }
    Ok(())
}

/// The words of a cell, without those about a broker: it is started here.
fn plain(words: &Words, text: &str) -> Result<Vec<String>, Error> {
    let pids = words.text("broker-pid").map_or(String::new(), |pids| format!("--broker-pid {pids} "));
    let words = line(&Words::default(), &format!("{pids}{text}"));
    match parse(&words)? {
        Asked::Run(_) => Ok(words),
        _ => Err(Error::usage("a run was expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_the_articles_and_adds_a_backlog() {
        let cells = cells();
        let beside: Vec<&Cell> = cells.iter().filter(|cell| cell.rocketmq.is_some()).collect();
        assert!(beside.len() == 2 && beside.iter().all(|cell| !cell.consumes), "RocketMQ's producers ran alone");
        assert_eq!(cells.iter().filter(|cell| cell.backlog).count(), 1);
        assert!(cells.iter().any(|cell| cell.cpu == 3.6 && cell.writers == 16));
        assert!(cells.iter().all(|cell| plain(&Words::default(), &format!("-x {}", cell.writers)).is_ok()));
    }
}

//! What one write plus one `fdatasync` costs on this machine, by the state of the file it goes to.
//!
//! `cargo run --release -p storage --example fsync_cost [FOLDER]` prints a table;
//! docs/formats/wal.md holds one and chooses by it. CPU is this thread's (user and system) plus the
//! file system's journal thread, bytes are what the block device reports for the whole machine, so
//! run it on a quiet one. It measures system calls and not this crate, on purpose: the choice comes
//! before the code.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fdatasync, open};

const FILE_BYTES: u64 = 64 << 20;
const PAGE_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Growing,
    Unwritten,
    Overwritten,
    OverwrittenDirect,
    WriteZeroes,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Growing => "a growing file",
            State::Unwritten => "b fallocated, unwritten",
            State::Overwritten => "c zero-filled, overwritten",
            State::OverwrittenDirect => "d as c, O_DIRECT|O_DSYNC",
            State::WriteZeroes => "e fallocate WRITE_ZEROES",
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("fsync_cost.{}", std::process::id()));
    println!(
        "| file | bytes | writes | p50 us | p99 us | cpu us | journal cpu us | device bytes per byte | device writes per sync |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for bytes in [4096, 16384, 1 << 20] {
        for state in
            [State::Growing, State::Unwritten, State::Overwritten, State::OverwrittenDirect, State::WriteZeroes]
        {
            match measure(&path, state, bytes) {
                Ok(row) => println!("| {} | {bytes} | {row} |", state.name()),
                Err(error) => println!("| {} | {bytes} | not here: {error} | | | | | | |", state.name()),
            }
        }
    }
    fs::remove_file(&path)?;
    fill_cost(&path)?;
    fs::remove_file(&path)?;
    Ok(())
}

fn measure(path: &Path, state: State, bytes: usize) -> io::Result<String> {
    let _ = fs::remove_file(path);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file: File = open(path, flags, Mode::RUSR | Mode::WUSR)?.into();
    match state {
        State::Growing => {}
        State::Unwritten => fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES)?,
        State::WriteZeroes => fallocate(&file, FallocateFlags::from_bits_retain(0x80), 0, FILE_BYTES)?,
        State::Overwritten | State::OverwrittenDirect => fill(&file)?,
    }
    file.sync_all()?;
    let file: File = if state == State::OverwrittenDirect {
        open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::DSYNC, Mode::empty())?.into()
    } else {
        file
    };

    // An aligned window of an ordinary vector, for O_DIRECT.
    let mut storage = vec![0u8; bytes + PAGE_BYTES];
    let start = storage.as_ptr().align_offset(PAGE_BYTES);
    let buffer = &mut storage[start..start + bytes];
    buffer.fill(0xa5);

    let writes = (FILE_BYTES / bytes as u64).min(2000);
    let mut latencies_us = Vec::with_capacity(writes as usize);
    let (cpu_before, journal_before, device_before) = (own_cpu_ns()?, journal_cpu_ns(), device()?);
    for write in 0..writes {
        let begin = Instant::now();
        let mut done = 0;
        while done < bytes {
            done += rustix::io::pwrite(&file, &buffer[done..], write * bytes as u64 + done as u64)?;
        }
        if state != State::OverwrittenDirect {
            fdatasync(&file)?;
        }
        latencies_us.push(begin.elapsed().as_nanos() as f64 / 1000.0);
    }
    let (cpu_after, journal_after, device_after) = (own_cpu_ns()?, journal_cpu_ns(), device()?);
    latencies_us.sort_by(f64::total_cmp);
    let at = |quantile: f64| latencies_us[((writes - 1) as f64 * quantile) as usize];
    let each = |before: u64, after: u64| (after - before) as f64 / 1000.0 / writes as f64;
    Ok(format!(
        "{writes} | {:.0} | {:.0} | {:.1} | {} | {:.2} | {:.2}",
        at(0.5),
        at(0.99),
        each(cpu_before, cpu_after),
        journal_before
            .zip(journal_after)
            .map_or("?".to_owned(), |(before, after)| format!("{:.1}", each(before, after))),
        (device_after.1 - device_before.1) as f64 / (writes * bytes as u64) as f64,
        (device_after.0 - device_before.0) as f64 / writes as f64,
    ))
}

fn fill(file: &File) -> io::Result<()> {
    let zeroes = vec![0u8; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(zeroes.len()) {
        rustix::io::pwrite(file, &zeroes, offset)?;
    }
    Ok(())
}

/// What the preparation of one file costs, by hand and by the kernel.
fn fill_cost(path: &Path) -> io::Result<()> {
    for (name, flags) in [
        ("fallocate", Some(FallocateFlags::empty())),
        ("zeroes written", None),
        ("fallocate WRITE_ZEROES", Some(FallocateFlags::from_bits_retain(0x80))),
    ] {
        let _ = fs::remove_file(path);
        let file = File::create_new(path)?;
        let (begin, cpu, before) = (Instant::now(), own_cpu_ns()?, device()?);
        let done = match flags {
            Some(flags) => fallocate(&file, flags, 0, FILE_BYTES).map_err(io::Error::from),
            None => fill(&file),
        };
        if let Err(error) = done {
            println!("{name}: {error}");
            continue;
        }
        file.sync_all()?;
        let after = device()?;
        println!(
            "{name}: {:.1} ms, cpu {:.1} ms, device {} KiB",
            begin.elapsed().as_secs_f64() * 1000.0,
            (own_cpu_ns()? - cpu) as f64 / 1e6,
            (after.1 - before.1) / 1024
        );
    }
    Ok(())
}

fn own_cpu_ns() -> io::Result<u64> {
    first_number("/proc/thread-self/schedstat")
}

/// CPU time of the journal threads (jbd2); `None` where they cannot be seen, as in most containers.
fn journal_cpu_ns() -> Option<u64> {
    fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter(|process| fs::read_to_string(process.path().join("comm")).is_ok_and(|name| name.starts_with("jbd2")))
        .filter_map(|process| first_number(process.path().join("schedstat")).ok())
        .reduce(|sum, thread| sum + thread)
}

fn first_number(path: impl AsRef<Path>) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.split_whitespace().next().and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData.into())
}

/// Writes finished and bytes written, over all block devices that are disks of their own.
fn device() -> io::Result<(u64, u64)> {
    let mut total = (0, 0);
    for device in fs::read_dir("/sys/block")?.flatten() {
        let name = device.file_name();
        if name.to_string_lossy().starts_with("loop") || name.to_string_lossy().starts_with("dm-") {
            continue;
        }
        let text = fs::read_to_string(device.path().join("stat"))?;
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [_, _, _, _, writes, _, sectors, ..] = numbers[..] {
            total = (total.0 + writes, total.1 + sectors * 512);
        }
    }
    Ok(total)
}

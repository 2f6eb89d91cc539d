//! What the log itself costs on this machine: appends without and with syncs, reading back, and
//! recovery.
//!
//! `cargo run --release -p storage --example log_speed [FOLDER]`. CPU is this thread's, user and
//! system.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use storage::wal::Preparation;
use storage::{GroupId, Location, RealDisk, Record, RecordKind, WalOptions, WalPosition, recover};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("log_speed.{}", std::process::id()));
    let disk = Arc::new(RealDisk::create(&folder)?);
    let begin = Instant::now();
    let (mut wal, _) = recover(&disk, 1, WalOptions::new(1), storage::FileNo(0), WalPosition::START, &mut |_, _| {})?;
    println!("start of an empty folder: {:.2} ms", begin.elapsed().as_secs_f64() * 1e3);
    let mut preparer = wal.spare_preparer();
    let mut locations: Vec<Location> = Vec::new();
    println!("| records x body bytes | sync | appends | us | cpu us | MB/s |");
    println!("|---|---|---|---|---|---|");
    for round in 0..2 {
        for (records, bytes, sync, appends) in [
            (1, 100, false, 100_000),
            (1, 1000, false, 100_000),
            (64, 100, false, 20_000),
            (4, 16_384, false, 5000),
            (1, 1 << 20, false, 400),
            (1, 1000, true, 2000),
            (4, 16_384, true, 2000),
            (1, 1 << 20, true, 200),
        ] {
            let body = Bytes::from(vec![0x5a; bytes]);
            let record = |record| Record {
                group: GroupId(record),
                kind: RecordKind::Entry,
                term: 1,
                index: 1,
                body: body.clone(),
                body_crc: None,
            };
            let batch: Vec<Record> = (0..records).map(record).collect();
            let (begin, cpu) = (Instant::now(), own_cpu_ns()?);
            for _ in 0..appends {
                locations.clear();
                wal.append(&batch, &mut locations)?;
                if sync {
                    wal.sync()?;
                }
                wal.release_before(storage::FileNo(wal.position().file.0.saturating_sub(3)));
            }
            let (cpu, busy) = (own_cpu_ns()? - cpu, begin.elapsed().as_secs_f64());
            wal.sync()?;
            while preparer.step()? == Preparation::Worked {}
            // The first round makes the files, the second reuses them.
            if round == 1 {
                println!(
                    "| {records} x {bytes} | {sync} | {appends} | {:.1} | {:.1} | {:.0} |",
                    busy * 1e6 / f64::from(appends),
                    cpu as f64 / 1e3 / f64::from(appends),
                    f64::from(appends) * f64::from(records) * bytes as f64 / busy / 1e6
                );
            }
        }
    }
    let reader = wal.reader();
    let begin = Instant::now();
    for _ in 0..1000 {
        reader.read(locations[0])?;
    }
    println!("read of {} bytes from memory: {:.1} us", locations[0].bytes, begin.elapsed().as_secs_f64() * 1e3);

    // 1.25 GiB of kept files, as much as a start reads at most by design.
    let body = Bytes::from(vec![0x5a; 64 << 10]);
    let mut first = wal.position();
    first.offset = 0;
    for _ in 0..20 * 1024 {
        locations.clear();
        let record = Record {
            group: GroupId(1),
            kind: RecordKind::Entry,
            term: 1,
            index: 1,
            body: body.clone(),
            body_crc: None,
        };
        wal.append(&[record], &mut locations)?;
    }
    wal.sync()?;
    wal.note_durable()?;
    drop((wal, preparer));
    let (begin, cpu) = (Instant::now(), own_cpu_ns()?);
    let (_, recovery) = recover(&disk, 1, WalOptions::new(2), first.file, first, &mut |_, _| {})?;
    println!(
        "recovery of {} records, {} MB: {:.0} ms, cpu {:.0} ms, damage {}",
        recovery.records,
        recovery.body_bytes / 1_000_000,
        begin.elapsed().as_secs_f64() * 1e3,
        (own_cpu_ns()? - cpu) as f64 / 1e6,
        recovery.damage.len()
    );
    let begin = Instant::now();
    recover(&disk, 1, WalOptions::new(3), recovery.end.file, recovery.end, &mut |_, _| {})?;
    println!("start with nothing to replay: {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn own_cpu_ns() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    text.split_whitespace().next().and_then(|word| word.parse().ok()).ok_or(std::io::ErrorKind::InvalidData.into())
}

//! Cuts or fails every write and every sync of a scripted life in turn, comes up again and looks
//! what is left.
//!
//! The script appends, syncs, rolls, releases, recycles, prepares spares, writes extents and saves
//! checkpoints. Invariant checked after every recovery: what was synced is all there, what is there
//! is a prefix of what was appended, nothing comes back that was cut off, finished extents and
//! saved checkpoints are whole, and there is no damage to report.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use storage::disk::{Crash, Fault, SurvivalUnit};
use storage::extent::list_extents;
use storage::wal::SparePreparer;
use storage::{
    CheckpointStore, Extent, ExtentId, ExtentWriter, FaultyDisk, FileNo, GroupId, Location, Record, RecordKind,
    StorageError, Wal, WalOptions, WalPosition, WriteWay, recover,
};

const FOLDER_ID: u128 = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321;
const GROUPS: u64 = 3;

/// Payload and start of replay.
type Saved = (Vec<u8>, WalPosition);

/// What the world outside may rely on.
#[derive(Default)]
struct Promises {
    /// All records of the log, appended and not cut off, from the first of the life.
    appended: Vec<Record>,
    locations: Vec<Location>,
    /// So many of them were synced.
    synced: usize,
    /// The log is promised from this record on.
    first_kept: usize,
    replay_from: WalPosition,
    extents: BTreeMap<u64, Vec<(u64, Bytes)>>,
    /// Per group and generation: what was tried to be saved as it.
    checkpoints: BTreeMap<(u32, u64), Vec<Saved>>,
    /// Newest generation whose save came back.
    checkpoints_done: BTreeMap<u32, u64>,
    next_extent: u64,
}

struct Life {
    disk: FaultyDisk,
    wal: Wal<FaultyDisk>,
    preparer: SparePreparer<FaultyDisk>,
    checkpoints: CheckpointStore<FaultyDisk>,
    shared: Arc<FaultyDisk>,
    random: u64,
}

fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Record number `at` of the log. Without a `life` in it, the next life repeats what the last one
/// lost, byte for byte.
fn record(at: usize, life: u64) -> Record {
    let mut random = at as u64 * 77 + life * 1_000_003;
    let bytes = match next(&mut random) % 5 {
        0 => 0,
        1 => 5000 + next(&mut random) % 9000,
        _ => next(&mut random) % 700,
    };
    let body: Vec<u8> = (0..bytes).map(|_| next(&mut random) as u8).collect();
    Record {
        group: GroupId((at as u64 % GROUPS) as u32),
        kind: RecordKind::Entry,
        term: life,
        index: at as u64,
        body: Bytes::from(body),
        body_crc: None,
    }
}

fn options(nonce: u64) -> WalOptions {
    WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce }
}

/// Comes up, checks everything that was promised, and forgets what was cut off.
fn open(disk: &FaultyDisk, promises: &mut Promises, nonce: u64) -> Result<Life, StorageError> {
    let shared = Arc::new(disk.clone());
    let mut checkpoints = CheckpointStore::open(&shared, FOLDER_ID)?;
    for group in 0..GROUPS as u32 {
        let newest = checkpoints.load_newest(GroupId(group))?;
        let done = promises.checkpoints_done.entry(group).or_default();
        let generation = newest.as_ref().map_or(0, |newest| newest.generation);
        assert!(generation >= *done, "generation {done} of group {group} was saved, {generation} is there");
        if let Some(newest) = newest {
            let tried = &promises.checkpoints[&(group, generation)];
            assert!(
                tried.contains(&(newest.payload.to_vec(), newest.replay_from)),
                "generation {generation} was never that"
            );
        }
        promises.checkpoints.retain(|name, _| name.0 != group || name.1 <= generation);
        *done = generation;
    }
    let mut seen = Vec::new();
    let (wal, recovery) = recover(
        &shared,
        FOLDER_ID,
        options(nonce),
        promises.replay_from.file,
        promises.replay_from,
        &mut |record, location| {
            seen.push((Record::from(record), location));
        },
    )?;
    assert_eq!(recovery.damage, [], "a crash is no damage");
    let reader = wal.reader();
    if let Some((first, _)) = seen.first() {
        let first = first.index as usize;
        assert!(first <= promises.first_kept, "record {} is gone, {first} is the first", promises.first_kept);
        assert!(first + seen.len() <= promises.appended.len(), "records that were never appended");
        for (at, (record, location)) in seen.iter().enumerate() {
            assert_eq!(record, &promises.appended[first + at], "record {} of the log", first + at);
            let promised = &mut promises.locations[first + at];
            if promised.file == FileNo(0) {
                *promised = *location;
            }
            assert_eq!(location, promised);
            assert_eq!(&reader.read_record(*location)?, record);
            assert_eq!(reader.read(*location)?, record.body);
        }
        assert!(first + seen.len() >= promises.synced, "{} records were synced", promises.synced);
        promises.appended.truncate(first + seen.len());
    } else {
        assert!(promises.synced <= promises.first_kept, "{} records were synced, none is there", promises.synced);
        promises.appended.truncate(promises.first_kept);
    }
    promises.locations.truncate(promises.appended.len());
    promises.synced = promises.appended.len();
    for (id, messages) in &promises.extents {
        let extent = Extent::open(disk, ExtentId(*id))?;
        extent.verify()?;
        let mut read = Vec::new();
        for run in 0..extent.runs().len() {
            let got = extent.read(run, 0, u32::MAX, u32::MAX)?;
            read.extend(got.into_iter().map(|message| (message.seq, message.body)));
        }
        assert_eq!(&read, messages);
    }
    for left_over in list_extents(disk)?.into_iter().filter(|id| !promises.extents.contains_key(&id.0)) {
        storage::extent::remove_extent(disk, left_over)?;
    }
    let preparer = wal.spare_preparer();
    Ok(Life { disk: disk.clone(), wal, preparer, checkpoints, shared, random: nonce })
}

impl Life {
    fn append(&mut self, promises: &mut Promises, life: u64) -> Result<(), StorageError> {
        let first = promises.appended.len();
        let count = 1 + first * 7 % 5;
        let batch: Vec<Record> = (first..first + count).map(|at| record(at, life)).collect();
        promises.appended.extend_from_slice(&batch);
        let before = promises.locations.len();
        // Both ways in turn, and each twice in a row.
        let way = if first % 4 < 2 { WriteWay::Direct } else { WriteWay::Cached };
        let appended = self.wal.append_by(way, &batch, &mut promises.locations);
        if appended.as_ref().is_err_and(StorageError::is_full) {
            promises.appended.truncate(first);
            assert_eq!(promises.locations.len(), before, "all or nothing");
        } else if appended.is_err() {
            // Where the records would be, if they are there after all.
            promises.locations.truncate(before);
            promises.locations.extend(std::iter::repeat_n(Location { file: FileNo(0), offset: 0, bytes: 0 }, count));
        }
        appended.map(|_| ())
    }

    fn sync(&mut self, promises: &mut Promises) -> Result<(), StorageError> {
        self.wal.sync()?;
        promises.synced = promises.appended.len();
        Ok(())
    }

    fn extent(&mut self, promises: &mut Promises) -> Result<(), StorageError> {
        promises.next_extent += 1;
        let id = promises.next_extent;
        let mut messages = Vec::new();
        let mut writer = ExtentWriter::create(&self.shared, FOLDER_ID, ExtentId(id))?;
        for queue in 0..2 {
            for seq in [3, 4, 9] {
                let body = record(id as usize * 10 + seq, queue).body;
                writer.push(queue, seq as u64, &body)?;
                messages.push((seq as u64, body));
            }
        }
        writer.finish()?;
        promises.extents.insert(id, messages);
        Ok(())
    }

    /// Moves the start of the log forward: checkpoints of all groups first, then the files go.
    fn release(&mut self, promises: &mut Promises) -> Result<(), StorageError> {
        self.sync(promises)?;
        let keep = promises.appended.len().saturating_sub(10).max(promises.first_kept);
        let Some(location) = promises.locations.get(keep) else { return Ok(()) };
        let replay_from = WalPosition { file: location.file, offset: location.offset };
        for group in 0..GROUPS as u32 {
            let payload = record(keep + group as usize, 9).body.to_vec();
            let expected = promises.checkpoints_done[&group] + 1;
            promises.checkpoints.entry((group, expected)).or_default().push((payload.clone(), replay_from));
            let generation = self.checkpoints.save(GroupId(group), replay_from, &payload)?;
            promises.checkpoints_done.insert(group, generation);
            assert_eq!(generation, expected);
        }
        promises.replay_from = replay_from;
        promises.first_kept = keep;
        self.wal.release_before(location.file);
        Ok(())
    }

    fn live(&mut self, promises: &mut Promises, life: u64, steps: usize) -> Result<(), StorageError> {
        for _ in 0..steps {
            let done = match next(&mut self.random) % 16 {
                0..6 => self.append(promises, life),
                6..9 => self.sync(promises),
                9 => self.extent(promises),
                10 => self.release(promises),
                11 => self.wal.note_durable().map(|_| ()),
                _ => self.preparer.step().map(|_| ()),
            };
            match done {
                // A full disk is no reason to stop: space may come back.
                Err(error) if error.is_full() => {}
                done => done?,
            }
            assert!(self.disk.down().is_none());
        }
        Ok(())
    }
}

const STEPS: usize = 60;

/// One whole story: a life that is cut at `operation`, a second that is cut by a power loss, a
/// third that only looks.
fn story(seed: u64, operation: u64, fault: Fault, survival: SurvivalUnit, lives_differ: bool) -> Option<()> {
    let disk = FaultyDisk::new(seed);
    disk.set_survival(survival);
    let mut promises = Promises::default();
    let life_no = |life: u64| if lives_differ { life } else { 0 };
    let mut reached = true;
    for life in 0..4 {
        if life == 0 {
            disk.schedule(operation, fault);
        }
        // Every other story meets a second cut while it recovers from the first, or soon after.
        if life == 1 && operation.is_multiple_of(2) {
            disk.schedule(disk.operations() + operation % 17, Fault::Crash(Crash::Power));
        }
        let lived = open(&disk, &mut promises, seed * 100 + life).and_then(|mut alive| {
            let steps = if life == 0 { STEPS } else { 12 };
            alive.random = seed;
            alive.live(&mut promises, life_no(life), steps)
        });
        match lived {
            Ok(()) if life == 0 => reached = disk.operations() > operation,
            Ok(()) => {}
            Err(_) if life == 0 || disk.down().is_some() => {}
            Err(error) => panic!("life {life}: {error}"),
        }
        disk.clear_faults();
        // A failed write or sync ends the process; the power goes in the second and third life,
        // after the page cache misled us once.
        if disk.down().is_none() {
            disk.crash(if life == 0 { Crash::Process } else { Crash::Power });
        }
        disk.restart();
        // A crash in the middle of a release leaves it open which start the next one will use: the
        // old one is always right.
    }
    reached.then_some(())
}

fn every_operation(fault: Fault, survival: SurvivalUnit, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut operation = 0;
        loop {
            let told = format!("seed {seed}, {fault:?} at operation {operation}, {survival:?}");
            let outcome = std::panic::catch_unwind(|| story(seed, operation, fault, survival, seed % 2 == 0))
                .unwrap_or_else(|panic| {
                    eprintln!("failed with {told}");
                    std::panic::resume_unwind(panic)
                });
            if outcome.is_none() {
                break;
            }
            operation += 1;
        }
        assert!(operation > 50, "the script is long enough to be cut in many places");
    }
}

/// More seeds by hand: `CRASH_SEEDS=1000 cargo test --release -p storage --test crash_matrix`.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let count = std::env::var("CRASH_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(count);
    first..first + count
}

#[test]
fn power_cut_at_every_operation_loses_nothing_synced() {
    every_operation(Fault::Crash(Crash::Power), SurvivalUnit::Sector, seeds(0, 10));
}

#[test]
fn full_disk_at_every_operation_loses_nothing_synced() {
    every_operation(Fault::Full, SurvivalUnit::Sector, seeds(600_000, 3));
}

#[test]
fn power_cut_that_keeps_or_loses_whole_pages_loses_nothing_synced() {
    every_operation(Fault::Crash(Crash::Power), SurvivalUnit::Page, seeds(200_000, 3));
    every_operation(Fault::Crash(Crash::Power), SurvivalUnit::Nothing, seeds(240_000, 1));
    every_operation(Fault::Crash(Crash::Power), SurvivalUnit::Everything, seeds(260_000, 1));
}

#[test]
fn process_crash_at_every_operation_loses_nothing_synced() {
    every_operation(Fault::Crash(Crash::Process), SurvivalUnit::Sector, seeds(300_000, 3));
}

#[test]
fn failed_sync_at_every_operation_loses_nothing_synced() {
    every_operation(Fault::SyncError, SurvivalUnit::Sector, seeds(400_000, 3));
}

#[test]
fn failed_write_at_every_operation_loses_nothing_synced() {
    every_operation(Fault::WriteError, SurvivalUnit::Sector, seeds(500_000, 3));
}

#[test]
fn file_that_a_crash_left_without_a_header_keeps_its_name_when_it_is_used() {
    // Found by the matrix: the file's name was never made durable, and its next user took it for an
    // old one.
    story(300_008, 4, Fault::Crash(Crash::Process), SurvivalUnit::Sector, true);
}

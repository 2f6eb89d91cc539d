//! The log gives back what was synced, in order, and a prefix of the rest, for any records and any
//! cuts.
#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::{Arc, Mutex};
use storage::crc32c;

use bytes::Bytes;
use proptest::prelude::*;
use storage::disk::{Advice, Crash, Fault, SurvivalUnit};
use storage::wal::{Preparation, Recovery};
use storage::{
    Disk, DiskFile, FaultyDisk, FileNo, GroupId, Location, OpenMode, RealDisk, Record, RecordKind, RecordRef,
    StorageError, Wal, WalOptions, WalPosition, WriteWay, fuzz, recover,
};

const FOLDER_ID: u128 = 99;

fn options(nonce: u64) -> WalOptions {
    WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce }
}

type Opened<D> = (Wal<D>, Recovery, Vec<(Record, Location)>);

fn open<D: Disk>(disk: &Arc<D>, nonce: u64, from: WalPosition) -> Result<Opened<D>, StorageError> {
    let mut seen = Vec::new();
    let (wal, recovery) = recover(disk, FOLDER_ID, options(nonce), from.file, from, &mut |record, location| {
        seen.push((Record::from(record), location));
    })?;
    Ok((wal, recovery, seen))
}

fn records_of(seen: &[(Record, Location)]) -> Vec<Record> {
    seen.iter().map(|(record, _)| record.clone()).collect()
}

fn entry(index: u64, bytes: usize) -> Record {
    let body = Bytes::from(vec![index as u8; bytes]);
    Record { group: GroupId(1), kind: RecordKind::Entry, term: 1, index, body, body_crc: None }
}

fn kind() -> impl Strategy<Value = RecordKind> {
    use RecordKind::{Entry, HardState, Membership, SnapshotMark, Tombstone};
    prop::sample::select(vec![Entry, HardState, Membership, SnapshotMark, Tombstone])
}

fn any_record() -> impl Strategy<Value = Record> {
    let bytes = prop_oneof![4 => 0..200usize, 2 => 1000..5000usize, 1 => 20_000..60_000usize];
    (any::<u32>(), kind(), any::<u64>(), any::<u64>(), bytes, any::<u8>()).prop_map(
        |(group, kind, term, index, bytes, filling)| {
            let body = Bytes::from(vec![filling; bytes]);
            Record { group: GroupId(group), kind, term, index, body, body_crc: None }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Append(WriteWay, Vec<Record>),
    Sync,
    Note,
    Prepare,
    Crash(Crash),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => prop::collection::vec(any_record(), 1..5).prop_map(|records| Step::Append(WriteWay::Cached, records)),
        5 => prop::collection::vec(any_record(), 1..5).prop_map(|records| Step::Append(WriteWay::Direct, records)),
        4 => Just(Step::Sync),
        1 => Just(Step::Note),
        2 => Just(Step::Prepare),
        1 => Just(Step::Crash(Crash::Process)),
        2 => Just(Step::Crash(Crash::Power)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn synced_records_survive_and_the_rest_is_a_prefix(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let faulty = FaultyDisk::new(seed);
        let disk = Arc::new(faulty.clone());
        let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
        let mut preparer = wal.spare_preparer();
        let (mut appended, mut synced, mut nonce) = (Vec::new(), 0, 0);
        let mut locations = Vec::new();
        for step in steps.into_iter().chain([Step::Crash(Crash::Power)]) {
            match step {
                Step::Append(way, records) => {
                    wal.append_by(way, &records, &mut locations).unwrap();
                    appended.extend(records);
                }
                Step::Sync => {
                    wal.sync().unwrap();
                    synced = appended.len();
                }
                Step::Note => {
                    wal.note_durable().unwrap();
                }
                Step::Prepare => {
                    preparer.step().unwrap();
                }
                Step::Crash(crash) => {
                    faulty.crash(crash);
                    faulty.restart();
                    nonce += 1;
                    let (opened, recovery, seen) = open(&disk, nonce, WalPosition::START).unwrap();
                    prop_assert_eq!(recovery.damage, vec![]);
                    let least = if crash == Crash::Process { appended.len() } else { synced };
                    prop_assert!((least..=appended.len()).contains(&seen.len()));
                    appended.truncate(seen.len());
                    prop_assert_eq!(records_of(&seen), &appended[..]);
                    synced = appended.len();
                    locations.truncate(appended.len());
                    prop_assert_eq!(seen.iter().map(|(_, location)| *location).collect::<Vec<_>>(), &locations[..]);
                    wal = opened;
                    preparer = wal.spare_preparer();
                }
            }
        }
    }

    #[test]
    fn replay_starts_at_any_record(batches in prop::collection::vec(prop::collection::vec(any_record(), 1..4), 1..20), place in any::<prop::sample::Index>()) {
        let disk = Arc::new(FaultyDisk::new(1));
        let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
        let mut locations = Vec::new();
        for (number, batch) in batches.iter().enumerate() {
            wal.append(batch, &mut locations).unwrap();
            if number % 2 == 0 {
                wal.sync().unwrap();
            }
        }
        wal.sync().unwrap();
        let all = batches.concat();
        let at = place.index(all.len());
        let from = WalPosition { file: locations[at].file, offset: locations[at].offset };
        drop(wal);
        let (mut wal, recovery, seen) = open(&disk, 1, from).unwrap();
        prop_assert_eq!(recovery.damage, vec![]);
        prop_assert!(seen.len() >= all.len() - at, "everything from the place on");
        prop_assert_eq!(records_of(&seen), &all[all.len() - seen.len()..]);
        // And the log goes on from there.
        wal.append(&[entry(1, 10)], &mut locations).unwrap();
        wal.sync().unwrap();
        let (_, _, again) = open(&disk, 2, from).unwrap();
        prop_assert_eq!(again.len(), seen.len() + 1);
    }

    #[test]
    fn any_bytes_are_recovered_from_without_panic(frames in prop::collection::vec((0..40u16, any::<[u8; 48]>(), 0..200usize), 0..30), repair in any::<bool>()) {
        let mut contents = Vec::new();
        for (skip, header, body) in frames {
            contents.resize(contents.len() + usize::from(skip) * 16, 0);
            contents.extend_from_slice(b"LFRM");
            contents.extend_from_slice(&header[4..]);
            contents.resize(contents.len() + body / 16 * 16, 1);
        }
        fuzz::wal_file(&contents, repair);
    }

    #[test]
    fn real_frames_with_changed_bytes_are_recovered_from_without_panic(
        batches in prop::collection::vec(prop::collection::vec(any_record(), 1..4), 1..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
    ) {
        let disk = Arc::new(FaultyDisk::new(1));
        let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
        for batch in &batches {
            wal.append(batch, &mut Vec::new()).unwrap();
            wal.sync().unwrap();
        }
        let mut contents = disk.contents("wal/00000001.wal").unwrap().split_off(4096);
        for (place, byte) in changes {
            let at = place.index(contents.len());
            contents[at] = byte;
        }
        fuzz::wal_file(&contents, true);
    }
}

#[test]
fn brand_new_folder_gets_no_file_until_the_first_append() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, recovery, _) = open(&disk, 0, WalPosition::START).unwrap();
    let end = WalPosition { file: FileNo(1), offset: 0 };
    assert_eq!(recovery, Recovery { end, first_file: FileNo(1), ..Recovery::default() });
    let before = disk.operations();
    wal.sync().unwrap();
    assert!(!wal.note_durable().unwrap());
    assert_eq!(wal.append(&[], &mut Vec::new()).unwrap(), 0);
    assert_eq!(wal.spare_preparer().step().unwrap(), Preparation::Idle);
    assert_eq!(disk.operations(), before, "an idle log writes nothing");
    assert_eq!(disk.list("wal").unwrap(), Vec::<String>::new());
}

#[test]
fn idle_log_writes_nothing_after_its_note() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    wal.sync().unwrap();
    assert!(wal.note_durable().unwrap());
    let before = disk.operations();
    wal.sync().unwrap();
    assert!(!wal.note_durable().unwrap());
    assert_eq!(disk.operations(), before);
    // With the note, a restart knows that all is durable and rewrites nothing: two syncs of what is
    // clean.
    drop(wal);
    let written = disk.contents("wal/00000001.wal");
    let (_, _, seen) = open(&disk, 1, WalPosition::START).unwrap();
    assert_eq!((seen.len(), disk.operations()), (1, before + 2));
    assert_eq!(disk.contents("wal/00000001.wal"), written);
}

#[test]
fn append_is_one_write_and_sync_one_sync() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    wal.sync().unwrap();
    let before = disk.operations();
    let batch: Vec<Record> = (2..10).map(|index| entry(index, 2000)).collect();
    let mut locations = Vec::new();
    let written = wal.append(&batch, &mut locations).unwrap();
    assert_eq!(disk.operations(), before + 1);
    assert_eq!((written, locations.len()), (4 * 4096, 8), "48 + 8 * 2040 bytes, in whole pages");
    wal.sync().unwrap();
    assert_eq!(disk.operations(), before + 2);
    assert_eq!(wal.position(), wal.synced_position());
}

#[test]
fn a_file_is_there_for_a_checkpoint_once_something_of_it_is_durable() {
    for synced in [false, true] {
        let disk = Arc::new(FaultyDisk::new(1));
        disk.set_survival(SurvivalUnit::Nothing);
        let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
        assert_eq!(wal.durable_file(), FileNo(1), "there is none before");
        wal.append(&[entry(1, 40_000)], &mut Vec::new()).unwrap();
        wal.sync().unwrap();
        wal.append(&[entry(2, 40_000)], &mut Vec::new()).unwrap();
        assert_eq!((wal.position().file, wal.durable_file()), (FileNo(2), FileNo(1)));
        if synced {
            wal.sync().unwrap();
            assert_eq!(wal.durable_file(), FileNo(2));
        }
        let durable = wal.durable_file();
        disk.crash(Crash::Power);
        disk.restart();
        drop(wal);
        let (wal, _, _) = open(&disk, 1, WalPosition::START).unwrap();
        assert_eq!((wal.position().file, wal.durable_file()), (durable, durable), "the log goes on there");
    }
}

#[test]
fn released_files_are_written_again_and_their_old_records_stay_gone() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let reader = wal.reader();
    let mut locations = Vec::new();
    for index in 0..60 {
        wal.append(&[entry(index, 10_000)], &mut locations).unwrap();
        wal.sync().unwrap();
        let keep = locations[locations.len().saturating_sub(6)].file;
        wal.release_before(keep);
        assert!(wal.closed_files().all(|(file, bytes)| file >= keep && bytes == 64 << 10));
    }
    let slots = disk.list("wal").unwrap();
    assert!(slots.len() <= 6, "files are recycled: {slots:?}");
    assert!(matches!(reader.read(locations[0]), Err(StorageError::Missing { .. })));
    assert_eq!(reader.read(locations[59]).unwrap().len(), 10_000);
    let from = WalPosition { file: locations[57].file, offset: 0 };
    drop(wal);
    let (_, recovery, seen) = open(&disk, 1, from).unwrap();
    assert_eq!(recovery.damage, []);
    let first = seen[0].0.index;
    assert_eq!(seen.iter().map(|(record, _)| record.index).collect::<Vec<_>>(), (first..60).collect::<Vec<_>>());
}

#[test]
fn surplus_files_are_deleted_and_missing_spares_made() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let mut preparer = wal.spare_preparer();
    for index in 0..30 {
        wal.append(&[entry(index, 30_000)], &mut Vec::new()).unwrap();
    }
    let files = disk.list("wal").unwrap().len();
    assert!(files > 10);
    wal.release_before(FileNo(u64::MAX));
    while preparer.step().unwrap() == Preparation::Worked {}
    let names = disk.list("wal").unwrap();
    assert_eq!(names.len(), 3, "one that is written and two spares: {names:?}");
    assert_eq!(wal.closed_files().count(), 0);

    // A new log prepares its spare once its first file is a quarter full, not before.
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let mut preparer = wal.spare_preparer();
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    assert_eq!(preparer.step().unwrap(), Preparation::Idle);
    wal.append(&[entry(2, 20_000)], &mut Vec::new()).unwrap();
    while preparer.step().unwrap() == Preparation::Worked {}
    assert_eq!(disk.list("wal").unwrap().len(), 2);
    // It is still a spare after a restart, and is used when needed.
    wal.sync().unwrap();
    drop((wal, preparer));
    let (mut wal, _, _) = open(&disk, 1, WalPosition::START).unwrap();
    wal.append(&[entry(3, 50_000), entry(4, 10)], &mut Vec::new()).unwrap();
    assert_eq!(disk.list("wal").unwrap().len(), 2);
}

#[test]
fn full_disk_refuses_the_whole_batch_and_takes_it_later() {
    let faulty = FaultyDisk::new(1);
    let disk = Arc::new(faulty.clone());
    faulty.set_capacity(140_000);
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let batch: Vec<Record> = (0..6).map(|index| entry(index, 30_000)).collect();
    let mut locations = Vec::new();
    let error = wal.append(&batch, &mut locations).unwrap_err();
    assert!(matches!(error, StorageError::Full { free_bytes: 1.., .. }), "{error}");
    assert_eq!(locations, []);
    wal.append(&batch[..3], &mut locations).unwrap();
    wal.sync().unwrap();
    faulty.set_capacity(1_000_000);
    wal.append(&batch[3..], &mut locations).unwrap();
    wal.sync().unwrap();
    drop(wal);
    let (_, _, seen) = open(&disk, 1, WalPosition::START).unwrap();
    assert_eq!(records_of(&seen), batch);
}

#[test]
fn failed_sync_or_write_stops_the_log_for_good() {
    for fault in [Fault::SyncError, Fault::WriteError] {
        let faulty = FaultyDisk::new(1);
        let disk = Arc::new(faulty.clone());
        let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
        faulty.schedule(0, fault);
        let failed = wal.append(&[entry(1, 10)], &mut Vec::new()).and_then(|_| wal.sync());
        assert_eq!(matches!(failed, Err(StorageError::SyncFailed { .. })), fault == Fault::SyncError);
        assert!(failed.is_err());
        assert!(matches!(wal.sync(), Err(StorageError::Stopped)));
        assert!(matches!(wal.append(&[entry(2, 10)], &mut Vec::new()), Err(StorageError::Stopped)));
    }
}

#[test]
fn file_of_another_folder_or_version_is_refused() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    let other = recover(&disk, FOLDER_ID + 1, options(1), FileNo(0), WalPosition::START, &mut |_, _| {});
    assert!(matches!(other.err(), Some(StorageError::Corrupt { offset: 24, .. })));

    let mut contents = disk.contents("wal/00000001.wal").unwrap();
    for at in [0, 2048] {
        contents[at + 12] = 2;
        let crc = crc32c::crc32c(&contents[at + 12..at + 512]);
        contents[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
    }
    disk.plant("wal/00000001.wal", &contents);
    let error = open(&disk, 1, WalPosition::START).err().unwrap();
    assert!(matches!(error, StorageError::OtherVersion { found: 2, supported: 1, .. }), "{error}");
}

#[test]
fn log_lives_on_a_real_disk_and_readers_on_other_threads() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::create(folder.path()).unwrap());
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let mut locations = Vec::new();
    for index in 0..20 {
        wal.append(&[entry(index, 9000), entry(100 + index, 10)], &mut locations).unwrap();
        wal.sync().unwrap();
    }
    let reader = wal.reader();
    let places = locations.clone();
    std::thread::spawn(move || {
        for (number, location) in places.iter().enumerate() {
            let record = reader.read_record(*location).unwrap();
            assert_eq!(record.index, number as u64 / 2 + 100 * (number as u64 % 2));
        }
    })
    .join()
    .unwrap();
    let mut preparer = wal.spare_preparer();
    while preparer.step().unwrap() == Preparation::Worked {}
    drop(wal);
    let (_, recovery, seen) = open(&disk, 1, WalPosition::START).unwrap();
    assert_eq!((seen.len(), recovery.damage.len(), recovery.cut), (40, 0, None));
    assert_eq!(seen.iter().map(|(_, location)| *location).collect::<Vec<_>>(), locations);
}

#[test]
fn tail_that_was_cut_off_stays_off_when_its_beginning_is_written_again() {
    // A frame that fills its page to the byte, so that what follows it lies in a page of its own
    // and can survive without it.
    let lost = entry(2, 4096 - 48 - 40);
    let mut survived_alone = 0;
    for seed in 0..64 {
        let faulty = FaultyDisk::new(seed);
        faulty.set_survival(storage::disk::SurvivalUnit::Page);
        let disk = Arc::new(faulty.clone());
        let (mut wal, _, _) = open(&disk, 1, WalPosition::START).unwrap();
        wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
        wal.sync().unwrap();
        wal.append(std::slice::from_ref(&lost), &mut Vec::new()).unwrap();
        wal.append(&[entry(3, 10)], &mut Vec::new()).unwrap();
        faulty.crash(Crash::Power);
        faulty.restart();
        let contents = faulty.contents("wal/00000001.wal").unwrap();
        survived_alone += usize::from(contents[8192..8196] != *b"LFRM" && contents[12_288..12_292] == *b"LFRM");
        let (mut wal, recovery, seen) = open(&disk, 2, WalPosition::START).unwrap();
        assert_eq!(recovery.damage, []);
        if seen.len() == 1 {
            wal.append(std::slice::from_ref(&lost), &mut Vec::new()).unwrap();
            wal.sync().unwrap();
            wal.note_durable().unwrap();
            faulty.crash(Crash::Process);
            faulty.restart();
            let (_, recovery, seen) = open(&disk, 3, WalPosition::START).unwrap();
            assert_eq!(recovery.damage, []);
            assert_eq!(records_of(&seen), [entry(1, 10), lost.clone()], "seed {seed}");
            // Not even when what was written again rots: then it is damage, and the old tail behind
            // it is still no part of the log.
            faulty.flip_bit("wal/00000001.wal", 8200, 0);
            let (_, recovery, seen) = open(&disk, 4, WalPosition::START).unwrap();
            assert_eq!((recovery.damage.len(), records_of(&seen)), (1, vec![entry(1, 10)]), "seed {seed}");
        }
    }
    assert!(survived_alone > 5, "the case arises: {survived_alone}");
}

#[test]
fn frame_torn_in_the_middle_of_a_page_does_not_hide_what_is_written_after_it() {
    // Found by `synced_records_survive_and_the_rest_is_a_prefix`: the torn frame's header was whole
    // and stood where the walk looked first.
    let mut torn = 0;
    for seed in 0..64 {
        let faulty = FaultyDisk::new(seed);
        let disk = Arc::new(faulty.clone());
        let (mut wal, _, _) = open(&disk, 1, WalPosition::START).unwrap();
        wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
        wal.append(&[entry(2, 9000)], &mut Vec::new()).unwrap();
        faulty.crash(Crash::Power);
        faulty.restart();
        let (mut wal, recovery, seen) = open(&disk, 2, WalPosition::START).unwrap();
        if seen.len() != 1 || recovery.cut.is_none() {
            continue;
        }
        torn += 1;
        wal.append(&[entry(3, 10)], &mut Vec::new()).unwrap();
        wal.sync().unwrap();
        let (_, _, seen) = open(&disk, 3, WalPosition::START).unwrap();
        assert_eq!(records_of(&seen), [entry(1, 10), entry(3, 10)], "seed {seed}");
    }
    assert!(torn > 2, "the case arises: {torn}");
}

/// A disk that does something in the middle of a read.
#[derive(Clone)]
struct MeddlingDisk {
    disk: FaultyDisk,
    meddle: Meddle,
}

type Meddle = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct MeddlingFile {
    file: storage::disk::FaultyFile,
    meddle: Meddle,
}

impl Disk for MeddlingDisk {
    type File = MeddlingFile;

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<MeddlingFile> {
        Ok(MeddlingFile { file: self.disk.open(name, mode)?, meddle: self.meddle.clone() })
    }
    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }
    fn create_folder(&self, folder: &str) -> io::Result<()> {
        self.disk.create_folder(folder)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn rename(&self, source: &str, target: &str) -> io::Result<()> {
        self.disk.rename(source, target)
    }
    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_folder(folder)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl DiskFile for MeddlingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let meddle = self.meddle.lock().unwrap().take();
        if let Some(meddle) = meddle {
            meddle();
        }
        self.file.read_at(buffer, offset)
    }
    fn write_vectored_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_vectored_at(slices, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
    fn advise(&self, offset: u64, bytes: u64, advice: Advice) {
        self.file.advise(offset, bytes, advice);
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

#[test]
fn reader_of_a_file_that_is_reused_under_its_hands_gets_an_error() {
    let meddle = Meddle::default();
    let disk = Arc::new(MeddlingDisk { disk: FaultyDisk::new(1), meddle: meddle.clone() });
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let mut locations = Vec::new();
    for index in 0..2 {
        wal.append(&[entry(index, 50_000)], &mut locations).unwrap();
    }
    let reader = wal.reader();
    assert_eq!(reader.read(locations[0]).unwrap()[0], 0);
    let wal = Mutex::new(wal);
    *meddle.lock().unwrap() = Some(Box::new(move || {
        let mut wal = wal.lock().unwrap();
        wal.release_before(FileNo(2));
        for index in 2..4 {
            wal.append(&[entry(index, 50_000)], &mut Vec::new()).unwrap();
        }
    }));
    assert!(matches!(reader.read(locations[0]), Err(StorageError::Missing { .. })));
    assert_eq!(reader.read(locations[1]).unwrap()[0], 1);
}

#[test]
fn kept_files_are_read_from_though_nothing_of_them_is_replayed() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 0, WalPosition::START).unwrap();
    let mut locations = Vec::new();
    for index in 0..6 {
        wal.append(&[entry(index, 40_000)], &mut locations).unwrap();
    }
    wal.sync().unwrap();
    drop(wal);
    let from = WalPosition { file: FileNo(5), offset: 0 };
    let start = |nonce, keep_from| {
        let mut seen = Vec::new();
        let mut sink = |record: RecordRef<'_>, _| seen.push(record.index);
        let (wal, recovery) = recover(&disk, FOLDER_ID, options(nonce), keep_from, from, &mut sink).unwrap();
        (wal, recovery, seen)
    };
    let (mut wal, recovery, seen) = start(1, FileNo(2));
    assert_eq!((seen, recovery.damage, recovery.files), (vec![4, 5], vec![], 5));
    assert_eq!(wal.closed_files().map(|(file, _)| file).collect::<Vec<_>>(), [2, 3, 4, 5].map(FileNo));
    let reader = wal.reader();
    assert!(matches!(reader.read(locations[0]), Err(StorageError::Missing { .. })));
    for (index, location) in (0..).zip(&locations).skip(1) {
        assert_eq!(reader.read_record(*location).unwrap(), entry(index, 40_000));
    }
    wal.release_before(FileNo(3));
    assert!(reader.read(locations[1]).is_err() && reader.read(locations[2]).is_ok());
    drop((wal, reader));
    // One of the kept ones is gone.
    disk.remove("wal/00000004.wal").unwrap();
    let (wal, recovery, _) = start(2, FileNo(3));
    assert_eq!(recovery.damage.iter().map(|damage| damage.file).collect::<Vec<_>>(), [FileNo(4)]);
    assert!(wal.reader().read(locations[3]).is_err() && wal.reader().read(locations[2]).is_ok());
}

#[test]
fn a_record_that_fits_exactly_begins_no_new_file() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, _, _) = open(&disk, 1, WalPosition::START).unwrap();
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    wal.sync().unwrap();
    let taken = wal.position().offset.next_multiple_of(4_096);
    // Its frame's header and its own.
    let room = (64 << 10) - taken as usize - 48 - 40;
    wal.append(&[entry(2, room)], &mut Vec::new()).unwrap();
    assert_eq!(wal.position(), WalPosition { file: FileNo(1), offset: 64 << 10 });
    wal.append(&[entry(3, 0)], &mut Vec::new()).unwrap();
    assert_eq!(wal.position().file, FileNo(2));
    wal.sync().unwrap();
    drop(wal);
    let (_, recovery, seen) = open(&disk, 2, WalPosition::START).unwrap();
    assert_eq!((recovery.damage.len(), seen.len()), (0, 3));
}

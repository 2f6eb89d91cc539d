//! Rot in what was synced is reported where it is; what lies around it is still read, and nothing
//! is cut off in silence.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use storage::disk::{Crash, DiskFile as _, Fault, OpenMode};
use storage::inspect::{Depth, Fact, Needs, inspect};
use storage::wal::{RecordName, Recovery, found_log, has_log};
use storage::{
    CheckpointStore, DataFolder, Disk, ExtentId, ExtentWriter, FaultyDisk, FileNo, FolderIdentity, GroupId, Location,
    RealDisk, Record, RecordKind, StorageError, Wal, WalOptions, WalPosition, recover,
};

const FOLDER_ID: u128 = 99;

fn entry(index: u64, bytes: usize) -> Record {
    let body = Bytes::from(vec![index as u8; bytes]);
    Record { group: GroupId(1), kind: RecordKind::Entry, term: 1, index, body, body_crc: None }
}

type Opened = (Wal<FaultyDisk>, Recovery, Vec<(u64, Location)>);

fn open(disk: &Arc<FaultyDisk>, nonce: u64) -> Opened {
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce };
    let mut seen = Vec::new();
    let (wal, recovery) = recover(disk, FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |record, location| {
        assert!(record.body.iter().all(|byte| *byte == record.index as u8), "a body is never wrong");
        seen.push((record.index, location));
    })
    .unwrap();
    (wal, recovery, seen)
}

/// Two files: batches of two records, synced after every other batch.
fn written(note: bool) -> (Arc<FaultyDisk>, Vec<Location>) {
    let disk = Arc::new(FaultyDisk::new(1));
    drop(DataFolder::open(disk.clone(), identity("a@host"), 1).unwrap());
    let (mut wal, _, _) = open(&disk, 0);
    let mut locations = Vec::new();
    for batch in 0..40 {
        let bytes = if batch % 3 == 0 { 50 } else { 1100 };
        wal.append(&[entry(batch * 2, bytes), entry(batch * 2 + 1, bytes)], &mut locations).unwrap();
        if batch % 2 == 1 {
            wal.sync().unwrap();
        }
    }
    if note {
        wal.note_durable().unwrap();
    }
    assert_eq!(wal.position().file, FileNo(2), "two files are wanted here");
    (disk, locations)
}

/// Flips one bit at each of many places and gives the outcome to `check`, with the file, the offset
/// and whether bytes in use were hit.
fn flip_everywhere(note: bool, mut check: impl FnMut(&str, u64, &Arc<FaultyDisk>, Opened)) {
    let (pristine, _) = written(note);
    for name in ["wal/00000001.wal", "wal/00000002.wal"] {
        let contents = pristine.contents(name).unwrap();
        let used = contents.iter().rposition(|byte| *byte != 0).unwrap();
        for offset in (0..=used).step_by(53) {
            let disk = written(note).0;
            disk.flip_bit(name, offset as u64, (offset % 8) as u8);
            let opened = open(&disk, 1);
            check(name, offset as u64, &disk, opened);
        }
    }
}

#[test]
fn rotten_bit_in_synced_frames_is_reported_and_costs_only_its_surroundings() {
    let (mut reported, mut harmless) = (0, 0);
    flip_everywhere(true, |name, offset, disk, (wal, recovery, seen)| {
        let told = format!("{name} at {offset}: {recovery:?}");
        let indexes: Vec<u64> = seen.iter().map(|(index, _)| *index).collect();
        assert!(indexes.is_sorted(), "{told}");
        assert_eq!(recovery.cut, None, "with the note beside it the log knows that all of it was durable: {told}");
        if indexes.len() == 80 {
            harmless += 1;
            assert_eq!(recovery.damage, [], "{told}");
        } else {
            reported += 1;
            // A frame header takes its frame of two records with it, a record header its frame's
            // rest, a body itself.
            assert!(indexes.len() >= 78, "{told}");
            assert_eq!(recovery.damage.len(), 1, "{told}");
            let damage = &recovery.damage[0];
            assert_eq!(damage.name, name);
            let end = u64::from(damage.offset + damage.bytes);
            assert!((u64::from(damage.offset)..end).contains(&offset), "{told}");
            if let Some(record) = damage.record {
                let missing = (0..80).find(|index| !indexes.contains(index)).unwrap();
                assert_eq!(record, RecordName { group: GroupId(1), kind: RecordKind::Entry, term: 1, index: missing });
            }
        }
        // The log goes on behind the damage, and the damage is still told at the next start.
        let mut wal = wal;
        wal.append(&[entry(100, 10)], &mut Vec::new()).unwrap();
        wal.sync().unwrap();
        drop(wal);
        let (_, again, seen_again) = open(disk, 2);
        assert_eq!((again.damage, again.cut), (recovery.damage, None));
        assert_eq!(seen_again.len(), seen.len() + 1);
        assert_eq!(seen_again.last().unwrap().0, 100);
    });
    assert!(reported > 100 && harmless > 10, "{reported} {harmless}");
}

#[test]
fn frame_that_calls_its_own_page_durable_is_no_witness() {
    // A made-up frame behind rubbish says that 4097 bytes were synced. Recovery once believed it,
    // cleaned the page that it lies in, and the next recovery found another end.
    let file = [
        0x6e, 0xc4, 0x00, 0x04, 0x3d, 0x9f, 0x00, 0x45, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0b, 0x4c, 0x46,
        0x52, 0x4d, 0xca, 0x49, 0x15, 0x7d, 0x4b, 0x9a, 0x1c, 0x38, 0xc4, 0x00, 0x04, 0x3d, 0x08, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0xe5, 0x38, 0x8e, 0xe3, 0x38, 0x8e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x01, 0x10,
        0x00, 0x00, 0x45, 0x7c, 0x45, 0x00, 0x45, 0x00, 0x9f, 0x45,
    ];
    let outcome = storage::fuzz::wal_file(&file, true).unwrap();
    assert_eq!((outcome.records, outcome.damage), (0, 0));
}

#[test]
fn without_the_note_only_the_last_sync_can_be_taken_for_a_tear() {
    let mut cuts = 0;
    flip_everywhere(false, |name, offset, _, (_, recovery, seen)| {
        let told = format!("{name} at {offset}: {recovery:?}");
        if seen.len() < 80 && recovery.damage.is_empty() {
            cuts += 1;
            assert_eq!(name, "wal/00000002.wal", "{told}");
            // The last sync carried two batches of two records.
            assert!(seen.len() >= 76, "{told}");
            assert!(recovery.cut.is_some(), "{told}");
        }
        assert!(seen.iter().map(|(index, _)| *index).is_sorted());
    });
    assert!(cuts > 10, "the window exists: {cuts}");
}

#[test]
fn rotten_record_is_not_handed_to_readers() {
    let (disk, locations) = written(true);
    let (wal, ..) = open(&disk, 1);
    let reader = wal.reader();
    let location = locations[5];
    assert_eq!(reader.read_record(location).unwrap(), entry(5, location.bytes as usize));
    for place in [0, 20] {
        let offset = u64::from(location.offset) + place * 50 - if place == 0 { 40 } else { 0 };
        disk.flip_bit("wal/00000001.wal", offset, 2);
        assert!(matches!(reader.read_record(location), Err(StorageError::Corrupt { .. })));
        disk.flip_bit("wal/00000001.wal", offset, 2);
    }
}

#[test]
fn missing_file_is_reported_and_a_lost_header_rebuilt() {
    let (disk, _) = written(true);
    let first = disk.contents("wal/00000001.wal").unwrap();
    // Both copies of the second file's header are gone.
    for at in [9, 2048 + 9] {
        disk.flip_bit("wal/00000002.wal", at, 0);
    }
    let (_, recovery, seen) = open(&disk, 1);
    assert_eq!((recovery.headers_rebuilt, recovery.damage.len(), seen.len()), (1, 0, 80));
    let (_, recovery, seen) = open(&disk, 2);
    assert_eq!((recovery.headers_rebuilt, recovery.damage.len(), seen.len()), (0, 0, 80));

    // The note names a file that is not there.
    disk.remove("wal/00000002.wal").unwrap();
    let (_, recovery, seen) = open(&disk, 3);
    assert_eq!(recovery.damage.len(), 1);
    assert_eq!((recovery.damage[0].file, recovery.damage[0].what), (FileNo(2), "the whole file"));
    assert!(seen.len() < 80);

    // A file in the middle is not there.
    let (disk, _) = written(true);
    disk.remove("wal/00000001.wal").unwrap();
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce: 1 };
    let from = WalPosition { file: FileNo(1), offset: 5000 };
    let (_, recovery) = recover(&disk, FOLDER_ID, options, from.file, from, &mut |_, _| {}).unwrap();
    assert_eq!((recovery.damage.len(), recovery.damage[0].file), (1, FileNo(1)));
    assert!(recovery.records > 0, "what is there is shown");
    drop(first);
}

#[test]
fn misdirected_sector_is_reported() {
    let (disk, _) = written(true);
    disk.misdirect_sector("wal/00000001.wal", 20, 40);
    let (_, recovery, seen) = open(&disk, 1);
    assert!(!recovery.damage.is_empty());
    assert!((70..80).contains(&seen.len()));
}

#[test]
fn newest_damaged_checkpoint_is_passed_over_for_the_one_before() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    let position = |offset| WalPosition { file: FileNo(1), offset };
    assert_eq!(store.load_newest(GroupId(7)).unwrap(), None);
    assert_eq!(store.oldest_replay(), None);
    for generation in 1..=4 {
        assert_eq!(
            store.save(GroupId(7), position(generation * 10), &[generation as u8; 5000]).unwrap(),
            u64::from(generation)
        );
    }
    store.save(GroupId(8), position(35), b"").unwrap();
    assert_eq!((store.oldest_replay(), store.oldest_replay_of_all()), (Some(position(35)), Some(position(30))));
    disk.flip_bit("checkpoints/00000007.1", 10_000, 1);
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    assert_eq!(store.groups().collect::<Vec<_>>(), [GroupId(7), GroupId(8)]);
    let loaded = store.load_newest(GroupId(7)).unwrap().unwrap();
    assert_eq!((loaded.generation, loaded.replay_from, &loaded.payload[..2]), (3, position(30), &[3, 3][..]));
    assert_eq!(store.oldest_replay(), Some(position(30)));
    // The next save takes the damaged one's place and number.
    assert_eq!(store.save(GroupId(7), position(50), b"short").unwrap(), 4);
    assert_eq!(store.load_newest(GroupId(7)).unwrap().unwrap().payload, &b"short"[..]);
    for (name, at) in [("checkpoints/00000007.0", 20), ("checkpoints/00000007.1", 8192)] {
        disk.flip_bit(name, at, 1);
    }
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    assert!(matches!(store.load_newest(GroupId(7)), Err(StorageError::Corrupt { .. })));
    store.remove(GroupId(7)).unwrap();
    assert_eq!(store.load_newest(GroupId(7)).unwrap(), None);
}

#[test]
fn a_checkpoint_that_was_passed_over_is_none_after_a_power_cut_either() {
    for seed in 0..20 {
        let disk = Arc::new(FaultyDisk::new(seed));
        let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
        for file in 1..=2 {
            store.save(GroupId(7), WalPosition { file: FileNo(file), offset: 0 }, &[1; 5000]).unwrap();
        }
        // The third was begun over the first.
        let file = disk.open("checkpoints/00000007.0", OpenMode::ReadWrite).unwrap();
        file.write_at(&[3; 3000], 8192).unwrap();
        disk.crash(Crash::Process);
        for _ in 0..2 {
            disk.restart();
            let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
            let pair = store.load_pair(GroupId(7)).unwrap().unwrap();
            let generations = (pair.newest.generation, pair.older.map(|older| older.generation));
            assert_eq!(generations, (2, None), "seed {seed}");
            // The log that the older one needs may be given up from now on.
            disk.crash(Crash::Power);
        }
    }
}

#[test]
fn both_checkpoints_of_a_group_are_told_and_one_that_is_damaged_is_none() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    let generations = |store: &mut CheckpointStore<FaultyDisk>| {
        let pair = store.load_pair(GroupId(7)).unwrap().unwrap();
        (pair.newest.generation, pair.older.map(|older| older.generation), pair.is_fallback)
    };
    assert_eq!(store.load_pair(GroupId(7)).unwrap(), None);
    for (generation, expected) in [(1, (1, None, false)), (2, (2, Some(1), false)), (3, (3, Some(2), false))] {
        let position = WalPosition { file: FileNo(generation), offset: 0 };
        assert_eq!(store.save(GroupId(7), position, &[7; 5000]).unwrap(), generation);
        assert_eq!(generations(&mut store), expected);
    }
    disk.flip_bit("checkpoints/00000007.1", 8192, 1);
    assert_eq!(generations(&mut CheckpointStore::open(&disk, FOLDER_ID).unwrap()), (3, None, false));
    disk.flip_bit("checkpoints/00000007.1", 8192, 1);
    disk.flip_bit("checkpoints/00000007.0", 8192, 1);
    assert_eq!(generations(&mut CheckpointStore::open(&disk, FOLDER_ID).unwrap()), (2, None, true));
}

#[test]
fn which_groups_a_folder_has_is_known_as_long_as_one_checkpoint_says_so() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    store.save(GroupId(3), WalPosition::START, b"").unwrap();
    let last = || CheckpointStore::open(&disk, FOLDER_ID).unwrap().last_group();
    assert_eq!(last(), None, "nobody said so");
    store.note_last_group(GroupId(16));
    store.save(GroupId(3), WalPosition::START, b"").unwrap();
    assert_eq!(last(), Some(GroupId(16)));
    assert_eq!(disk.contents("checkpoints/00000003.1").unwrap()[36..40], 16u32.to_le_bytes());
    // Whoever opens it next says so too, and it never becomes fewer.
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    store.note_last_group(GroupId(4));
    store.save(GroupId(5), WalPosition::START, b"").unwrap();
    store.remove(GroupId(3)).unwrap();
    assert_eq!(last(), Some(GroupId(16)));
}

#[test]
fn a_log_is_followed_back_as_far_as_no_file_is_missing() {
    let disk = Arc::new(FaultyDisk::new(1));
    let (mut wal, ..) = open(&disk, 1);
    (1..=8).for_each(|index| _ = wal.append(&[entry(index, 40_000)], &mut Vec::new()).unwrap());
    wal.sync().unwrap();
    let reaches = |from| storage::wal::reaches_back_from(&*disk, FOLDER_ID, FileNo(from)).unwrap().0;
    assert_eq!((reaches(8), reaches(3), reaches(9), reaches(11)), (1, 1, 1, 11));
    disk.remove("wal/00000005.wal").unwrap();
    assert_eq!((reaches(8), reaches(6), reaches(5), reaches(4)), (6, 6, 1, 1));
}

fn identity(node: &str) -> FolderIdentity {
    FolderIdentity { node_name: node.to_owned(), cluster_id: 1, folder_id: FOLDER_ID }
}

#[test]
fn data_folder_tells_what_to_do_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::create(folder.path().join("data")).unwrap());
    let first = DataFolder::open(disk(), identity("a@host"), 11).unwrap();
    assert!(first.was_founded());
    let locked = DataFolder::open(disk(), identity("a@host"), 12).err().unwrap().to_string();
    assert!(locked.contains("in use by process 11; stop it or use another --data-dir"), "{locked}");
    drop(first);
    let again = FolderIdentity { cluster_id: 77, folder_id: 78, ..identity("a@host") };
    let second = DataFolder::open(disk(), again, 12).unwrap();
    assert!(!second.was_founded());
    assert_eq!(second.identity(), &identity("a@host"), "what was founded stays");
    drop(second);
    let other = DataFolder::open(disk(), identity("b@host"), 13).err().unwrap().to_string();
    assert!(other.contains("belongs to node a@host, not b@host; use --node-name a@host"), "{other}");

    let path = folder.path().join("data/identity");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("a@host", "b@host")).unwrap();
    let damaged = DataFolder::open(disk(), identity("b@host"), 13).err().unwrap().to_string();
    assert!(damaged.contains("identity is damaged"), "{damaged}");
    std::fs::write(&path, text.replace("format 2", "format 9")).unwrap();
    let version = DataFolder::open(disk(), identity("a@host"), 13).err().unwrap().to_string();
    assert!(version.contains("has format 9, this version of leveret reads format 2"), "{version}");

    std::fs::create_dir(folder.path().join("home")).unwrap();
    std::fs::write(folder.path().join("home/letter.txt"), "dear").unwrap();
    let home = Arc::new(RealDisk::create(folder.path().join("home")).unwrap());
    let foreign = DataFolder::open(home, identity("a@host"), 13).err().unwrap().to_string();
    assert!(foreign.contains("is not a leveret data folder (it holds letter.txt)"), "{foreign}");
    assert_eq!(std::fs::read_dir(folder.path().join("home")).unwrap().count(), 1, "and is left as it was");
    // A log without an identity is a folder of ours; empty files are what a founder that died may
    // leave.
    std::fs::create_dir_all(folder.path().join("half/wal")).unwrap();
    std::fs::write(folder.path().join("half/wal/00000001.wal"), [7; 5_000]).unwrap();
    let half = || Arc::new(RealDisk::create(folder.path().join("half")).unwrap());
    let gone = DataFolder::open(half(), identity("a@host"), 13).err().unwrap().to_string();
    assert!(gone.contains("has a log but no file `identity`") && gone.contains("leveret repair"), "{gone}");
    std::fs::write(folder.path().join("half/wal/00000001.wal"), []).unwrap();
    std::fs::write(folder.path().join("half/wal/letter.txt"), "dear").unwrap();
    let foreign_too = DataFolder::open(half(), identity("a@host"), 13).err().unwrap().to_string();
    assert!(foreign_too.contains("(it holds wal/)"), "{foreign_too}");
    std::fs::remove_file(folder.path().join("half/wal/letter.txt")).unwrap();
    drop(DataFolder::open(half(), identity("a@host"), 13).unwrap());
    let file = DataFolder::open_path(&folder.path().join("home/letter.txt"), identity("a@host"), 13)
        .err()
        .unwrap()
        .to_string();
    assert!(file.contains("cannot use") && file.contains("letter.txt"), "{file}");
    drop(DataFolder::open_path(&folder.path().join("new/deep"), identity("a@host"), 13).unwrap());
    for text in [locked, other, damaged, version, foreign, gone, foreign_too, file] {
        assert!(!text.contains('\n'));
    }
}

#[test]
fn founding_is_whole_or_not_at_all() {
    for operation in 0..16 {
        for seed in 0..16 {
            let faulty = FaultyDisk::new(seed);
            let crash = if seed % 2 == 0 { Crash::Power } else { Crash::Process };
            faulty.schedule(operation, Fault::Crash(crash));
            let _ = DataFolder::open(Arc::new(faulty.clone()), identity("a@host"), 1);
            if faulty.down().is_none() {
                faulty.crash(Crash::Process);
            }
            faulty.restart();
            faulty.clear_faults();
            let opened = DataFolder::open(Arc::new(faulty.clone()), identity("a@host"), 1).unwrap();
            let found = opened.identity().clone();
            drop(opened);
            faulty.crash(Crash::Power);
            faulty.restart();
            let opened = DataFolder::open(Arc::new(faulty), identity("a@host"), 1).unwrap();
            assert!(!opened.was_founded(), "operation {operation} seed {seed}");
            assert_eq!(opened.identity(), &found);
            assert!(has_log(&**opened.disk()).unwrap(), "operation {operation} seed {seed}");
        }
    }
}

/// A folder with something of everything.
fn full_folder() -> Arc<FaultyDisk> {
    let (disk, _) = written(true);
    let mut writer = ExtentWriter::create(&disk, FOLDER_ID, ExtentId(1)).unwrap();
    for seq in [1, 2, 3, 7] {
        writer.push(5, seq, &[9; 300]).unwrap();
    }
    writer.push(6, 1, &[9; 300]).unwrap();
    writer.finish().unwrap();
    CheckpointStore::open(&disk, FOLDER_ID).unwrap().save(GroupId(1), WalPosition::START, b"state").unwrap();
    disk
}

/// Every checkpoint here needs the extent with number 1.
fn needs_one(_: GroupId, _: &Bytes) -> Option<Needs> {
    Some(Needs { extents: vec![ExtentId(1)], log_from: None })
}

#[test]
fn inspection_tells_what_a_kill_left_half_written_from_damage() {
    let disk = full_folder();
    let broken = |disk: &FaultyDisk| {
        let facts = facts(disk, Depth { records: false, contents: true, messages: true });
        let told = |fact: Fact| match fact {
            Fact::Damaged { name, .. } => Some(("damaged", name)),
            Fact::Unfinished { name, .. } => Some(("unfinished", name)),
            _ => None,
        };
        facts.into_iter().filter_map(told).collect::<Vec<_>>()
    };
    let extent = |id: u64| format!("extents/{id:016x}.extent");
    let unfinished = |name: &str| ("unfinished", name.to_owned());
    // An extent without its end that no checkpoint needs, and the second checkpoint, cut short.
    disk.plant(&extent(2), &[7; 5000]);
    disk.plant("checkpoints/00000001.1", &[0; 100]);
    assert_eq!(broken(&disk), [unfinished(&extent(2)), unfinished("checkpoints/00000001.1")]);
    // The same of what is needed is damage.
    disk.plant(&extent(1), &[7; 5000]);
    assert_eq!(broken(&disk)[0], ("damaged", extent(1)));
    disk.flip_bit("checkpoints/00000001.0", 8192, 0);
    let all = broken(&disk);
    assert!(all.iter().all(|(what, _)| *what == "damaged"), "without a whole checkpoint nothing is known: {all:?}");
}

/// What an inspection calls damaged, and not unfinished.
fn damaged_names(disk: &FaultyDisk, contents: bool) -> Vec<String> {
    let facts = facts(disk, Depth { records: false, contents, messages: false });
    let told = |fact: Fact| match fact {
        Fact::Damaged { name, .. } => Some(name),
        _ => None,
    };
    facts.into_iter().filter_map(told).collect()
}

#[test]
fn inspection_reads_the_contents_of_extents_and_says_where_it_did_not() {
    let disk = full_folder();
    let unread = |contents| {
        let facts = facts(&disk, Depth { records: false, contents, messages: false });
        facts.iter().filter(|fact| matches!(fact, Fact::Extent { is_unread: true, .. })).count()
    };
    assert_eq!((unread(true), unread(false)), (0, 1));
    disk.flip_bit("extents/0000000000000001.extent", 64 + 310, 0);
    assert_eq!(damaged_names(&disk, true), ["extents/0000000000000001.extent"]);
    assert!(damaged_names(&disk, false).is_empty(), "its tables are whole");
}

#[test]
fn inspection_misses_an_extent_that_the_newest_checkpoint_needs() {
    let disk = full_folder();
    disk.remove("extents/0000000000000001.extent").unwrap();
    assert_eq!(damaged_names(&disk, false), ["extents/0000000000000001.extent"]);
}

#[test]
fn a_folder_in_use_stays_locked_when_its_lock_file_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::create(folder.path()).unwrap());
    let first = DataFolder::open(disk(), identity("a@host"), 11).unwrap();
    std::fs::remove_file(folder.path().join("lock")).unwrap();
    let second = DataFolder::open(disk(), identity("a@host"), 12);
    assert!(matches!(second, Err(StorageError::Locked { .. })), "two processes would write one log");
    drop(first);
    DataFolder::open(disk(), identity("a@host"), 12).expect("a lock ends with its holder");
}

#[test]
fn inspection_misses_a_log_file_between_two_and_one_before_a_group_that_has_nothing_else() {
    let whole = || {
        let (disk, _) = written(false);
        let (mut wal, ..) = open(&disk, 1);
        while wal.position().file < FileNo(4) {
            wal.append(&[entry(1, 10_000)], &mut Vec::new()).unwrap();
        }
        wal.sync().unwrap();
        disk
    };
    assert!(damaged_names(&whole(), false).is_empty());
    let numbered = |disk: &FaultyDisk, wanted: u64| {
        let facts = facts(disk, Depth { records: false, contents: false, messages: false });
        let name = |fact: Fact| match fact {
            Fact::WalFile { name, header, .. } if header.file == FileNo(wanted) => Some(name),
            _ => None,
        };
        facts.into_iter().find_map(name).unwrap()
    };
    for number in [1, 2, 3] {
        let disk = whole();
        disk.remove(&numbered(&disk, number)).unwrap();
        assert_eq!(damaged_names(&disk, false), ["wal"], "file {number}");
    }
}

fn told(disk: &FaultyDisk) -> Vec<(String, String)> {
    let facts = facts(disk, Depth { records: false, contents: false, messages: false });
    let damaged = facts.into_iter().filter_map(|fact| match fact {
        Fact::Damaged { name, text, .. } => Some((name, text)),
        _ => None,
    });
    damaged.collect()
}

#[test]
fn inspection_misses_the_newest_file_of_the_log_where_a_state_names_it() {
    let disk = full_folder();
    let (mut wal, ..) = open(&disk, 1);
    while wal.position().file < FileNo(3) {
        wal.append(&[entry(1, 10_000)], &mut Vec::new()).unwrap();
    }
    wal.sync().unwrap();
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    for group in [1, 7] {
        store.save(GroupId(group), wal.position(), b"state").unwrap();
    }
    drop(wal);
    assert_eq!(told(&disk), []);
    disk.remove("wal/durable").unwrap_or_default();
    let header_says = |name: &str| disk.contents(name).is_some_and(|bytes| bytes[16..24] == 3u64.to_le_bytes());
    let newest = disk.list("wal").unwrap().into_iter().map(|name| format!("wal/{name}")).find(|name| header_says(name));
    disk.remove(&newest.unwrap()).unwrap();
    let told = told(&disk);
    let expected = "log file number 3 is not there, nor any behind it: the log ends with number 2, and the state of group 7 was saved when number 3 \
                    was there";
    assert_eq!(told, [("wal".to_owned(), expected.to_owned())]);
}

#[test]
fn two_files_of_the_log_with_one_number_are_named() {
    let (disk, _) = written(true);
    assert_eq!(told(&disk), []);
    let copied = disk.contents("wal/00000002.wal").unwrap();
    disk.plant("wal/00000009.wal", &copied);
    let expected = "wal/00000009.wal and wal/00000002.wal both say that they are file 2 of the log, as if one of them had been copied here: move \
                    the one that does not belong there away; of two that are alike either";
    assert_eq!(told(&disk), [("wal/00000009.wal".to_owned(), expected.to_owned())]);
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce: 1 };
    let refused = recover(&disk, FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).err().unwrap();
    assert_eq!(refused.to_string(), expected);
    assert!(refused.is_damage());
}

fn facts(disk: &FaultyDisk, depth: Depth) -> Vec<Fact> {
    let mut facts = Vec::new();
    let before = disk.operations();
    inspect(disk, depth, &needs_one, &mut |fact| facts.push(fact));
    assert_eq!(disk.operations(), before, "an inspection changes nothing");
    facts
}

#[test]
fn inspection_tells_everything_and_names_damage() {
    let disk = full_folder();
    let deep = Depth { records: true, contents: true, messages: true };
    let all = facts(&disk, deep);
    let count = |facts: &[Fact], wanted: fn(&Fact) -> bool| facts.iter().filter(|fact| wanted(fact)).count();
    assert_eq!(
        all.iter().filter(|fact| matches!(fact, Fact::Damaged { .. } | Fact::Unknown { .. })).collect::<Vec<_>>(),
        Vec::<&Fact>::new()
    );
    assert_eq!(count(&all, |fact| matches!(fact, Fact::Record { .. })), 80);
    assert_eq!(count(&all, |fact| matches!(fact, Fact::WalFile { .. })), 2);
    assert_eq!(count(&all, |fact| matches!(fact, Fact::Run(_))), 2);
    assert_eq!(count(&all, |fact| matches!(fact, Fact::Checkpoint { generation: 1, payload_bytes: 5, .. })), 1);
    assert!(all.contains(&Fact::Identity(identity("a@host"))));
    let shallow = facts(&disk, Depth { records: false, contents: false, messages: false });
    assert_eq!(count(&shallow, |fact| matches!(fact, Fact::Record { .. } | Fact::Frame { .. })), 0);
    assert_eq!(count(&shallow, |fact| matches!(fact, Fact::WalFileEnd { records: 1.., .. })), 2);

    disk.flip_bit("wal/00000001.wal", 4096 + 100, 0);
    disk.flip_bit("extents/0000000000000001.extent", 64 + 310, 0);
    disk.flip_bit("checkpoints/00000001.0", 8192, 0);
    disk.flip_bit("identity", 3, 0);
    disk.plant("wal/strange", b"");
    let all = facts(&disk, deep);
    let named: Vec<&str> = all
        .iter()
        .filter_map(|fact| match fact {
            Fact::Damaged { name, .. } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let extent = "extents/0000000000000001.extent";
    assert_eq!(named, ["identity", "wal/00000001.wal", extent, extent, "checkpoints/00000001.0"]);
    assert!(all.contains(&Fact::Unknown { name: "wal/strange".to_owned() }));
}

#[test]
fn inspection_survives_any_rot() {
    let pristine = full_folder();
    let names =
        ["identity", "wal/00000001.wal", "wal/durable", "extents/0000000000000001.extent", "checkpoints/00000001.0"];
    for name in names {
        let length = pristine.contents(name).unwrap().len();
        for offset in (0..length.min(13_000)).step_by(7) {
            pristine.flip_bit(name, offset as u64, (offset % 8) as u8);
            let facts = facts(&pristine, Depth { records: true, contents: true, messages: true });
            assert!(facts.len() > 10);
            pristine.flip_bit(name, offset as u64, (offset % 8) as u8);
        }
    }
}

/// Found by fuzzing: the frame behind it would have had a number that there is not.
#[test]
fn a_frame_with_the_last_number_there_is_is_none() {
    let mut contents = vec![0; 3 * 4096];
    // The second says that the first is in what was synced.
    for (at, number, synced) in [(4096, u64::MAX, 0u32), (8192, 5, 12_288)] {
        contents[at..at + 4].copy_from_slice(b"LFRM");
        contents[at + 16..at + 24].copy_from_slice(&number.to_le_bytes());
        // Its length with one record, which is none, what was before it, and what was synced then.
        for (field, value) in [88u32, 1, 0, synced].into_iter().enumerate() {
            contents[at + 24 + field * 4..][..4].copy_from_slice(&value.to_le_bytes());
        }
    }
    let outcome = storage::fuzz::wal_file(&contents, true).unwrap();
    assert_eq!((outcome.records, outcome.damage), (0, 1));
}

/// Found by fuzzing: half of the first frame was taken for synced because of the one behind. That
/// one lies in a page whose tail was cleaned, and the next recovery, without this witness, found
/// the log to be empty.
#[test]
fn no_frame_is_durable_by_half() {
    // The first frame names the checksum of the file's header, or follows nothing, at the beginning
    // or not.
    for (first, header_crc, damage) in [(0, 0x41c5_1b22, 0), (0, 0, 1), (1_600, 0, 1)] {
        let mut contents = vec![0; 5 * 4096];
        for (at, number, words) in [(first, 1u64, [12_988u32, 2, header_crc, 0]), (15_424, 3, [178, 1, 0, 8_740])] {
            contents[at..at + 4].copy_from_slice(b"LFRM");
            contents[at + 16..at + 24].copy_from_slice(&number.to_le_bytes());
            for (field, value) in words.into_iter().enumerate() {
                contents[at + 24 + field * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
        // Of its two records one is whole: thirty bytes of group 1, term 1, index 1.
        let record = &mut contents[first + 48..first + 118];
        record[..8].copy_from_slice(&[0x44, 0x54, 0xa5, 0xa7, 0x45, 0xbb, 0x10, 0x6a]);
        for (at, byte) in [(8, 2), (12, 1), (16, 30), (24, 1), (32, 1)] {
            record[at] = byte;
        }
        record[40..].fill(7);
        let outcome = storage::fuzz::wal_file(&contents, true).unwrap();
        assert_eq!((outcome.records, outcome.damage), (0, damage));
    }
}

#[test]
fn the_very_first_file_gets_its_header_back_from_its_first_frame() {
    let (disk, locations) = written(true);
    for copy in [0, 2_048] {
        disk.flip_bit("wal/00000001.wal", copy + 20, 3);
    }
    let (_, recovery, seen) = open(&disk, 1);
    assert_eq!((recovery.headers_rebuilt, recovery.damage.len()), (1, 0), "{recovery:?}");
    assert_eq!(seen.len(), locations.len());
    let (_, again, _) = open(&disk, 2);
    assert_eq!(again.headers_rebuilt, 0, "it was written");
}

#[test]
fn a_log_file_that_was_cut_off_is_damaged_to_where_it_went() {
    // The second file's length is told by the note, the first one's by the second.
    for name in ["wal/00000001.wal", "wal/00000002.wal"] {
        let whole = written(true).0.contents(name).unwrap();
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
        for bytes in (4_096..used).step_by(4_096).chain([4_097, used - 20]) {
            let disk = written(true).0;
            disk.remove(name).unwrap();
            disk.plant(name, &whole[..bytes]);
            let told = facts(&disk, Depth { records: false, contents: false, messages: false });
            assert!(told.iter().any(|fact| matches!(fact, Fact::Damaged { name: of, .. } if of == name)), "{told:?}");
            let (mut wal, recovery, seen) = open(&disk, 1);
            assert_eq!(recovery.cut, None, "all of it was durable");
            assert_eq!(recovery.damage.len(), 1, "{name} of {bytes} bytes: {recovery:?}");
            let damage = &recovery.damage[0];
            assert_eq!((damage.name.as_str(), damage.record), (name, None));
            assert!(
                damage.offset as usize <= bytes && (damage.offset + damage.bytes) as usize + 32 > used,
                "{damage:?}"
            );
            assert!(seen.len() < 80);
            // It is still told when the log has gone on.
            wal.append(&[entry(100, 10)], &mut Vec::new()).unwrap();
            wal.sync().unwrap();
            drop(wal);
            let (_, again, seen_again) = open(&disk, 2);
            assert_eq!((again.damage, again.cut), (recovery.damage, None));
            assert_eq!((seen_again.len(), seen_again.last().unwrap().0), (seen.len() + 1, 100));
        }
    }
}

#[test]
fn a_log_that_somebody_took_away_is_not_taken_for_a_new_one() {
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce: 1 };
    // A checkpoint that names a later file than the first says that there was a log; else the
    // folder may be a new one.
    for (file, missing) in [(0, 0), (1, 0), (2, 1), (7, 1)] {
        let disk = Arc::new(FaultyDisk::new(1));
        let from = WalPosition { file: FileNo(file), offset: 0 };
        let (_, recovery) = recover(&disk, FOLDER_ID, options, from.file, from, &mut |_, _| {}).unwrap();
        assert_eq!(recovery.damage.len(), missing, "{recovery:?}");
        assert!(recovery.damage.iter().all(|damage| damage.file == from.file));
    }
    // And so does the note beside it, to who only looks.
    let disk = full_folder();
    disk.remove("wal/00000002.wal").unwrap();
    let told = facts(&disk, Depth { records: false, contents: false, messages: false });
    assert!(told.iter().any(|fact| matches!(fact, Fact::Damaged { name, .. } if name == "wal/durable")), "{told:?}");
}

#[test]
fn a_founded_folder_has_a_log_from_its_first_moment_on() {
    let disk = Arc::new(FaultyDisk::new(1));
    let found = || drop(DataFolder::open(disk.clone(), identity("a@host"), 1).unwrap());
    found();
    assert!(has_log(&*disk).unwrap());
    // Also when a start died before it wrote anything, once and twice; the first record goes to the
    // file that was there.
    for nonce in 1..3 {
        let (wal, recovery, _) = open(&disk, nonce);
        assert_eq!((recovery.damage.len(), recovery.files), (0, 0));
        drop(wal);
        disk.crash(Crash::Power);
        disk.restart();
        assert!(has_log(&*disk).unwrap());
        found();
    }
    let (mut wal, ..) = open(&disk, 3);
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    wal.sync().unwrap();
    drop(wal);
    assert_eq!(disk.list("wal").unwrap(), ["00000001.wal"]);
    let damaged = || {
        let told = facts(&disk, Depth { records: false, contents: false, messages: false });
        told.into_iter().any(|fact| matches!(fact, Fact::Damaged { name, .. } if name == "wal"))
    };
    assert!(!damaged());
    disk.remove("wal/00000001.wal").unwrap();
    assert!(!has_log(&*disk).unwrap() && damaged());
    found_log(&*disk).unwrap();
    assert!(has_log(&*disk).unwrap() && !damaged());
}

#[test]
fn a_full_disk_leaves_the_file_in_which_nothing_is_yet() {
    let disk = Arc::new(FaultyDisk::new(1));
    drop(DataFolder::open(disk.clone(), identity("a@host"), 1).unwrap());
    disk.set_capacity(10 << 10);
    let (mut wal, ..) = open(&disk, 1);
    for _ in 0..2 {
        assert!(wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap_err().is_full());
        assert!(has_log(&*disk).unwrap());
    }
    disk.set_capacity(u64::MAX);
    wal.append(&[entry(1, 10)], &mut Vec::new()).unwrap();
    wal.sync().unwrap();
    drop(wal);
    assert_eq!(open(&disk, 2).2.len(), 1);
}

#[test]
fn a_header_page_of_zeroes_comes_back_from_the_frames_behind_it() {
    for (name, noted) in [("wal/00000001.wal", true), ("wal/00000002.wal", true), ("wal/00000002.wal", false)] {
        let disk = written(noted).0;
        let mut contents = disk.contents(name).unwrap();
        contents[..4_096].fill(0);
        disk.remove(name).unwrap();
        disk.plant(name, &contents);
        let (mut wal, recovery, seen) = open(&disk, 1);
        assert_eq!((recovery.headers_rebuilt, recovery.damage.len(), seen.len()), (1, 0, 80), "{name}");
        // The next file gets a number of its own.
        let file = wal.position().file;
        while wal.position().file == file {
            wal.append(&[entry(1, 1_000)], &mut Vec::new()).unwrap();
        }
        wal.sync().unwrap();
        drop(wal);
        let (_, again, seen_again) = open(&disk, 2);
        assert!(again.damage.is_empty() && seen_again.len() > 80, "{name}");
    }
}

//! One suite for both implementations of the `Disk` trait, then what only the faulty one does.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, IoSlice};

use storage::disk::{Crash, DIRECT_ALIGN_BYTES, Fault, SurvivalUnit};
use storage::{Disk, DiskFile, FaultyDisk, OpenMode, RealDisk};

fn suite<D: Disk>(disk: &D) {
    assert_eq!(disk.list("").unwrap(), Vec::<String>::new());
    assert_eq!(disk.list("wal").unwrap(), Vec::<String>::new(), "a missing folder has no files");
    disk.create_folder("wal").unwrap();
    disk.create_folder("wal").unwrap();
    assert_eq!(disk.open("wal/a", OpenMode::Read).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(disk.open("wal/a", OpenMode::ReadWrite).err().unwrap().kind(), ErrorKind::NotFound);

    let file = disk.open("wal/a", OpenMode::CreateNew).unwrap();
    assert_eq!(disk.open("wal/a", OpenMode::CreateNew).err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert!(file.is_empty().unwrap());
    file.write_vectored_at(&[IoSlice::new(b"hello"), IoSlice::new(b""), IoSlice::new(b" world")], 4094).unwrap();
    assert_eq!(file.len().unwrap(), 4105);
    let mut buffer = [7; 20];
    assert_eq!(file.read_at(&mut buffer, 4092).unwrap(), 13, "reads end at the end of the file");
    assert_eq!(&buffer[..13], b"\0\0hello world");
    assert_eq!(file.read_at(&mut buffer, 5000).unwrap(), 0);

    // More slices than one system call takes.
    let many: Vec<Vec<u8>> = (0..2500u32).map(|number| number.to_le_bytes().to_vec()).collect();
    let slices: Vec<IoSlice> = many.iter().map(|bytes| IoSlice::new(bytes)).collect();
    file.write_vectored_at(&slices, 10_000).unwrap();
    let mut back = vec![0; 10_000];
    assert_eq!(file.read_at(&mut back, 10_000).unwrap(), 10_000);
    assert_eq!(back, many.concat());

    file.allocate(65_536).unwrap();
    assert_eq!(file.len().unwrap(), 65_536);
    file.allocate(100).unwrap();
    assert_eq!(file.len().unwrap(), 65_536, "an allocation never shrinks");
    file.set_len(4096).unwrap();
    file.set_len(8192).unwrap();
    let mut byte = [9];
    assert_eq!(file.read_at(&mut byte, 4100).unwrap(), 1);
    assert_eq!(byte, [0], "what was cut off does not come back");
    file.sync_data().unwrap();
    disk.sync_folder("wal").unwrap();

    // Past the page cache and through it, in turn, on the same pages and beside each other.
    let memory = vec![5; 3 * DIRECT_ALIGN_BYTES];
    let start = memory.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
    let pages = &memory[start..start + 2 * DIRECT_ALIGN_BYTES];
    file.write_at(&[4; 100], 4096).unwrap();
    file.write_pages_at(pages, 0).unwrap();
    let mut back = vec![0; 8192];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 8192);
    assert_eq!(back, pages, "a write past the cache is what is read");
    file.write_at(&[6; 8], 4092).unwrap();
    file.write_pages_at(&pages[4096..], 8192).unwrap();
    file.sync_data().unwrap();
    let mut seam = [0; 12];
    assert_eq!(file.read_at(&mut seam, 4090).unwrap(), 12);
    assert_eq!(seam, [5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 5, 5]);
    file.set_len(8192).unwrap();

    let reader = disk.open("wal/a", OpenMode::Read).unwrap();
    assert!(reader.write_at(b"x", 0).is_err(), "opened for reading");
    assert!(reader.write_pages_at(pages, 0).is_err(), "opened for reading");
    disk.rename("wal/a", "wal/b").unwrap();
    disk.open("wal/c", OpenMode::CreateOrOpen).unwrap();
    assert_eq!(disk.list("wal").unwrap(), ["b", "c"]);
    assert_eq!(disk.list("").unwrap(), ["wal/"]);
    disk.rename("wal/c", "wal/b").unwrap();
    assert!(disk.open("wal/b", OpenMode::CreateOrOpen).unwrap().is_empty().unwrap(), "a rename replaces");
    assert_eq!(reader.len().unwrap(), 8192, "a replaced file stays readable for who has it open");
    disk.remove("wal/b").unwrap();
    assert_eq!(disk.remove("wal/b").err().unwrap().kind(), ErrorKind::NotFound);

    let first = disk.open("lock", OpenMode::CreateOrOpen).unwrap();
    let second = disk.open("lock", OpenMode::CreateOrOpen).unwrap();
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap(), "a lock ends with its holder");
    assert!(disk.free_bytes().unwrap() > 0);
}

#[test]
fn real_disk_passes_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    suite(&RealDisk::create(folder.path().join("deep/data")).unwrap());
}

#[test]
fn faulty_disk_passes_the_suite() {
    suite(&FaultyDisk::new(1));
}

fn faulty_with(name: &str, contents: &[u8]) -> (FaultyDisk, storage::disk::FaultyFile) {
    let disk = FaultyDisk::new(3);
    let file = disk.open(name, OpenMode::CreateNew).unwrap();
    file.write_at(contents, 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_folder("").unwrap();
    (disk, file)
}

#[test]
fn power_cut_keeps_what_was_synced_and_process_crash_keeps_all() {
    let (disk, file) = faulty_with("f", &[1; 5000]);
    file.write_at(&[2; 5000], 0).unwrap();
    disk.crash(Crash::Process);
    assert!(file.len().is_err(), "a machine that is down answers nothing");
    disk.restart();
    assert!(file.len().is_err(), "files do not survive the process");
    assert_eq!(disk.contents("f").unwrap(), [2; 5000]);
    disk.set_survival(SurvivalUnit::Nothing);
    disk.crash(Crash::Power);
    disk.restart();
    assert_eq!(disk.contents("f").unwrap(), [1; 5000]);
}

#[test]
fn power_cut_mixes_old_and_new_sectors_the_same_way_for_the_same_seed() {
    let run = |seed| {
        let disk = FaultyDisk::new(seed);
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        file.write_at(&vec![1; 1 << 16], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_folder("").unwrap();
        file.write_at(&vec![2; 1 << 16], 0).unwrap();
        disk.crash(Crash::Power);
        disk.restart();
        disk.contents("f").unwrap()
    };
    let left = run(5);
    assert_eq!(left, run(5));
    assert_ne!(left, run(6));
    assert!(left.contains(&1) && left.contains(&2));
    let torn = left.chunks(512).filter(|sector| sector.contains(&1) && sector.contains(&2)).count();
    assert!((1..32).contains(&torn), "some sectors are torn, most are not: {torn}");
}

#[test]
fn name_that_no_folder_sync_covered_disappears() {
    let (disk, _) = faulty_with("old", b"x");
    disk.set_survival(SurvivalUnit::Nothing);
    disk.open("new", OpenMode::CreateNew).unwrap().sync_data().unwrap();
    disk.remove("old").unwrap();
    disk.crash(Crash::Power);
    disk.restart();
    assert_eq!(disk.list("").unwrap(), ["old"]);
}

#[test]
fn sync_after_a_failed_sync_succeeds_and_saves_nothing() {
    let (disk, file) = faulty_with("f", &[1; 100]);
    disk.set_survival(SurvivalUnit::Nothing);
    file.write_at(&[2; 100], 0).unwrap();
    disk.schedule(0, Fault::SyncError);
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    assert_eq!(disk.contents("f").unwrap(), [2; 100], "the page cache shows it");
    disk.crash(Crash::Power);
    disk.restart();
    assert_eq!(disk.contents("f").unwrap(), [1; 100], "the disk never had it");
}

#[test]
fn full_disk_refuses_new_space_and_takes_overwrites() {
    let disk = FaultyDisk::new(1);
    disk.set_capacity(16_384);
    let file = disk.open("f", OpenMode::CreateNew).unwrap();
    file.allocate(8192).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 8192);
    assert_eq!(file.allocate(20_000).err().unwrap().kind(), ErrorKind::StorageFull);
    file.write_at(&[1; 8192], 0).unwrap();
    file.write_at(&[1; 8192], 8192).unwrap();
    assert_eq!(file.write_at(&[1; 1], 16_384).err().unwrap().kind(), ErrorKind::StorageFull);
    file.write_at(&[2; 16_384], 0).unwrap();
    disk.remove("f").unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 0, "somebody has it open");
    drop(file);
    assert_eq!(disk.free_bytes().unwrap(), 16_384);
}

#[test]
fn injected_write_error_leaves_a_part_of_the_write() {
    let mut partial = false;
    for seed in 0..20 {
        let disk = FaultyDisk::new(seed);
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        disk.schedule(disk.operations(), Fault::WriteError);
        assert!(file.write_at(&[1; 1000], 0).is_err());
        partial |= (1..1000).contains(&file.len().unwrap());
        file.write_at(&[1; 1000], 0).unwrap();
    }
    assert!(partial);
}

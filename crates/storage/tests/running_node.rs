//! A folder that is looked at while its node runs: files that are given back, used again, written
//! over or not finished yet are no damage, and no message is missed that moved meanwhile.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use storage::checkpoint::checkpoint_name;
use storage::disk::FaultyFile;
use storage::export::{Found, export};
use storage::extent::extent_name;
use storage::inspect::{Depth, Fact, Needs, inspect};
use storage::{
    CheckpointStore, DataFolder, Disk, ExtentId, ExtentWriter, FaultyDisk, FileNo, FolderIdentity, GroupId, OpenMode,
    Record, RecordKind, Wal, WalOptions, WalPosition, recover,
};

const FOLDER_ID: u128 = 99;
const DEEP: Depth = Depth { records: false, contents: true, messages: true };

type Meanwhile = Box<dyn FnMut(&str, &FaultyDisk) + Send>;

/// A folder in which a node does something whenever somebody opens a file.
struct Running {
    disk: Arc<FaultyDisk>,
    meanwhile: Mutex<Meanwhile>,
}

fn running(disk: Arc<FaultyDisk>, meanwhile: impl FnMut(&str, &FaultyDisk) + Send + 'static) -> Running {
    Running { disk, meanwhile: Mutex::new(Box::new(meanwhile)) }
}

impl Disk for Running {
    type File = FaultyFile;

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<FaultyFile> {
        assert_eq!(mode, OpenMode::Read, "whoever looks writes nothing");
        self.meanwhile.lock().unwrap()(name, &self.disk);
        self.disk.open(name, mode)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }

    fn create_folder(&self, _: &str) -> io::Result<()> {
        panic!("whoever looks writes nothing")
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        panic!("whoever looks writes nothing")
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        panic!("whoever looks writes nothing")
    }

    fn sync_folder(&self, _: &str) -> io::Result<()> {
        panic!("whoever looks writes nothing")
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

fn write_extent(disk: &Arc<FaultyDisk>, id: u64, numbers: &[u64]) {
    let mut writer = ExtentWriter::create(disk, FOLDER_ID, ExtentId(id)).unwrap();
    numbers.iter().for_each(|seq| writer.push(5, *seq, &[9; 300]).unwrap());
    writer.finish().unwrap();
}

/// A folder with a log of several files, of which the first has nothing any more that is needed.
fn folder() -> (Arc<FaultyDisk>, Wal<FaultyDisk>) {
    let disk = Arc::new(FaultyDisk::new(1));
    let identity = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: FOLDER_ID };
    drop(DataFolder::open(disk.clone(), identity, 1).unwrap());
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 0, spares_max: 2, nonce: 1 };
    let (mut wal, _) = recover(&disk, FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).unwrap();
    go_on(&mut wal, 4);
    (disk, wal)
}

/// Writes until the log is at this file.
fn go_on(wal: &mut Wal<FaultyDisk>, file: u64) {
    while wal.position().file < FileNo(file) {
        let (kind, body) = (RecordKind::Entry, Bytes::from(vec![1; 10_000]));
        wal.append(&[Record { group: GroupId(1), kind, term: 1, index: 1, body, body_crc: None }], &mut Vec::new())
            .unwrap();
        wal.sync().unwrap();
    }
    wal.note_durable().unwrap();
}

fn from_file(number: u64) -> WalPosition {
    WalPosition { file: FileNo(number), offset: 0 }
}

/// A checkpoint here names the extents that it needs.
fn named(_: GroupId, payload: &Bytes) -> Option<Needs> {
    let extents = payload.iter().map(|id| ExtentId(u64::from(*id))).collect();
    Some(Needs { extents, log_from: None })
}

fn damage(disk: &impl Disk) -> Vec<Fact> {
    let mut damage = Vec::new();
    inspect(disk, DEEP, &named, &mut |fact| damage.extend(Some(fact).filter(|f| matches!(f, Fact::Damaged { .. }))));
    damage
}

#[derive(Debug, Default)]
struct Exported {
    messages: BTreeSet<u64>,
    unfinished: Vec<String>,
    damage: Vec<String>,
}

fn exported(disk: &impl Disk) -> Exported {
    let mut all = Exported::default();
    export(disk, "damaged", &mut |name, found| match found {
        Found::Message { message, .. } => _ = all.messages.insert(message.seq),
        Found::Unfinished => all.unfinished.push(name.to_owned()),
        Found::Damaged(error) => all.damage.push(error.to_string()),
    });
    all
}

#[test]
fn an_export_finds_what_moved_to_another_extent_while_it_read() {
    let disk = Arc::new(FaultyDisk::new(1));
    write_extent(&disk, 1, &[1, 2]);
    write_extent(&disk, 2, &[3, 4]);
    // As the first is opened the second has become the third, and as that one is opened the fourth.
    let shared = disk.clone();
    let running = running(disk, move |name, disk| {
        for (opened, gone, next) in [(1, 2, 3), (3, 3, 4)] {
            if name == extent_name(ExtentId(opened)) && disk.contents(&extent_name(ExtentId(gone))).is_some() {
                write_extent(&shared, next, &[3, 4]);
                disk.remove(&extent_name(ExtentId(gone))).unwrap();
            }
        }
    });
    let all = exported(&running);
    assert_eq!(all.messages, BTreeSet::from([1, 2, 3, 4]), "{all:?}");
    assert!(all.damage.is_empty() && all.unfinished.is_empty(), "{all:?}");
}

#[test]
fn an_extent_that_is_being_written_is_unfinished_and_one_that_was_cut_is_damaged() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut writer = ExtentWriter::create(&disk, FOLDER_ID, ExtentId(1)).unwrap();
    let name = extent_name(ExtentId(1));
    for seq in 1..=300 {
        let all = exported(&*disk);
        assert_eq!(all.unfinished, [name.as_str()], "before message {seq}: {all:?}");
        assert!(all.damage.is_empty() && all.messages.is_empty(), "before message {seq}: {all:?}");
        writer.push(5, seq, &[9; 4000]).unwrap();
    }
    assert!(disk.contents(&name).unwrap().len() >= 1 << 20, "some of it is on the disk");
    // Its last piece comes between two looks at it.
    let writer = Mutex::new(Some(writer));
    let mut opened = 0;
    let running = running(disk.clone(), move |_, _| {
        opened += 1;
        if opened == 2 {
            writer.lock().unwrap().take().unwrap().finish().unwrap();
        }
    });
    let all = exported(&running);
    assert_eq!(all.messages.len(), 300, "{all:?}");
    assert!(all.damage.is_empty() && all.unfinished.is_empty(), "{all:?}");
    let whole = disk.contents(&name).unwrap();
    disk.plant(&name, &whole[..whole.len() / 2 + 1]);
    let all = exported(&*disk);
    assert!(all.damage.len() == 1 && all.unfinished.is_empty(), "{all:?}");
}

#[test]
fn an_extent_that_is_given_back_while_the_folder_is_looked_at_is_not_missed() {
    let (disk, _wal) = folder();
    write_extent(&disk, 1, &[1]);
    write_extent(&disk, 2, &[2]);
    let mut checkpoints = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    checkpoints.save(GroupId(1), from_file(1), &[1, 2]).unwrap();
    assert_eq!(damage(&*disk), []);
    let running = running(disk.clone(), move |name, disk| {
        let second = extent_name(ExtentId(2));
        if name == extent_name(ExtentId(1)) && disk.contents(&second).is_some() {
            checkpoints.save(GroupId(1), from_file(1), &[1]).unwrap();
            disk.remove(&second).unwrap();
        }
    });
    assert_eq!(damage(&running), []);
    // Who gives one back that is needed is told of.
    disk.remove(&extent_name(ExtentId(1))).unwrap();
    assert_eq!(damage(&*disk).len(), 1);
}

#[test]
fn states_that_are_written_over_one_after_the_other_while_they_are_read_are_whole() {
    let (disk, _wal) = folder();
    let mut checkpoints = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    checkpoints.save(GroupId(1), from_file(1), &[]).unwrap();
    checkpoints.save(GroupId(1), from_file(1), &[]).unwrap();
    let names = [0, 1].map(|place| checkpoint_name(GroupId(1), place));
    let whole = [0, 1].map(|place: usize| disk.contents(&names[place]).unwrap());
    // An extent without its end is damage to who does not know what is needed.
    disk.plant(&extent_name(ExtentId(7)), &[7; 5000]);
    let mut opened = 0;
    let running = running(disk.clone(), move |name, disk| {
        let Some(place) = names.iter().position(|known| known == name) else { return };
        opened += 1;
        // The first two reads meet the one that is written at that moment.
        let half = &whole[place][..8200.min(whole[place].len() / 2)];
        if opened <= 2 {
            disk.plant(&names[place], half);
            disk.plant(&names[1 - place], &whole[1 - place]);
        } else {
            disk.plant(&names[place], &whole[place]);
        }
    });
    assert_eq!(damage(&running), []);
    for place in 0..2 {
        disk.flip_bit(&checkpoint_name(GroupId(1), place), 40, 0);
    }
    assert!(damage(&*disk).len() >= 3, "with both damaged it is told");
}

#[test]
fn a_group_that_leaves_its_node_while_the_folder_is_looked_at_is_not_missed() {
    // When what is needed is looked at, and when the checkpoints are told.
    for moment in 1..=2 {
        let (disk, _wal) = folder();
        let mut checkpoints = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
        checkpoints.save(GroupId(1), from_file(1), &[]).unwrap();
        checkpoints.save(GroupId(2), from_file(1), &[]).unwrap();
        disk.plant(&extent_name(ExtentId(7)), &[7; 5000]);
        let mut opened = 0;
        let running = running(disk.clone(), move |name, _| {
            opened += u32::from(name == checkpoint_name(GroupId(2), 0));
            if opened == moment {
                checkpoints.remove(GroupId(2)).unwrap();
            }
        });
        assert_eq!(damage(&running), [], "at the opening number {moment}");
        assert!(disk.contents(&checkpoint_name(GroupId(2), 0)).is_none(), "it left");
    }
}

#[test]
fn log_files_that_are_given_back_and_used_again_while_they_are_read_are_not_missed() {
    // When it happens: at the first file that is opened, at the second, and so on.
    for moment in 1..=12 {
        let (disk, mut wal) = folder();
        let mut checkpoints = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
        checkpoints.save(GroupId(1), from_file(1), &[]).unwrap();
        checkpoints.save(GroupId(1), from_file(1), &[]).unwrap();
        assert_eq!(damage(&*disk), []);
        let mut opened = 0;
        let running = running(disk.clone(), move |name, _| {
            opened += u32::from(name.starts_with("wal/") && name.ends_with(".wal"));
            if opened == moment {
                opened += 1;
                checkpoints.save(GroupId(1), from_file(3), &[]).unwrap();
                wal.release_before(FileNo(3));
                go_on(&mut wal, 6);
            }
        });
        assert_eq!(damage(&running), [], "at the opening number {moment}");
        assert_eq!(damage(&*disk), []);
    }
}

#[test]
fn a_damaged_log_file_of_a_running_node_is_told() {
    let (disk, mut wal) = folder();
    let mut checkpoints = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    checkpoints.save(GroupId(1), from_file(1), &[]).unwrap();
    disk.flip_bit("wal/00000002.wal", 4096 + 100, 0);
    let running = running(disk, move |_, _| {
        let next = wal.position().file.0 + 1;
        go_on(&mut wal, next);
    });
    assert_eq!(damage(&running).len(), 1);
}

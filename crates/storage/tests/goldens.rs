//! The bytes of every format, written out. A change here is a change of what is on users' disks: it
//! needs a new format version.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use storage::{
    CheckpointStore, DataFolder, ExtentId, ExtentWriter, FaultyDisk, FileNo, FolderIdentity, GroupId, Record,
    RecordKind, WalOptions, WalPosition, recover,
};

const FOLDER_ID: u128 = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;

/// Hexadecimal, 16 bytes a line, lines of zeroes left out; each line begins with its offset.
fn dump(bytes: &[u8]) -> String {
    bytes
        .chunks(16)
        .enumerate()
        .filter(|(_, line)| line.iter().any(|byte| *byte != 0))
        .map(|(number, line)| {
            let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:05x}  {}\n", number * 16, hex.join(" "))
        })
        .collect()
}

fn check(bytes: &[u8], expected: &str) {
    let dump = dump(bytes);
    let expected: String = expected.trim().lines().map(|line| format!("{}\n", line.trim())).collect();
    assert_eq!(dump, expected, "\n{dump}");
}

#[test]
fn log_file() {
    let disk = Arc::new(FaultyDisk::new(1));
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 0, spares_max: 0, nonce: 42 };
    let (mut wal, _) = recover(&disk, FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).unwrap();
    let record = |kind, index, body: &'static [u8]| Record {
        group: GroupId(0x0a0b_0c0d),
        kind,
        term: 0x1122_3344_5566_7788,
        index,
        body: Bytes::from_static(body),
        body_crc: None,
    };
    let mut locations = Vec::new();
    wal.append(&[record(RecordKind::HardState, 0, b""), record(RecordKind::Entry, 1, b"hello")], &mut locations)
        .unwrap();
    wal.append(&[record(RecordKind::Membership, 2, b"abc")], &mut locations).unwrap();
    wal.sync().unwrap();
    wal.append(&[record(RecordKind::SnapshotMark, 3, b""), record(RecordKind::Tombstone, 4, b"")], &mut locations)
        .unwrap();
    assert!(wal.note_durable().unwrap());
    check(&disk.contents("wal/00000001.wal").unwrap(), include_str!("goldens/wal.txt"));
    check(&disk.contents("wal/durable").unwrap(), include_str!("goldens/durable.txt"));
}

#[test]
fn extent() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut writer = ExtentWriter::create(&disk, FOLDER_ID, ExtentId(0x2a)).unwrap();
    writer.push(7, 100, b"first").unwrap();
    writer.push(7, 101, b"").unwrap();
    writer.push(7, 105, b"with a hole before").unwrap();
    writer.push(8, 1, b"other queue").unwrap();
    writer.finish().unwrap();
    check(&disk.contents("extents/000000000000002a.extent").unwrap(), include_str!("goldens/extent.txt"));
}

#[test]
fn checkpoint() {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut store = CheckpointStore::open(&disk, FOLDER_ID).unwrap();
    let replay_from = WalPosition { file: FileNo(9), offset: 0x1234 };
    store.save(GroupId(3), replay_from, b"state").unwrap();
    check(&disk.contents("checkpoints/00000003.0").unwrap(), include_str!("goldens/checkpoint.txt"));
}

#[test]
fn identity() {
    let disk = Arc::new(FaultyDisk::new(1));
    let identity = FolderIdentity { node_name: "rabbit@host".to_owned(), cluster_id: 0xabc, folder_id: FOLDER_ID };
    let _folder = DataFolder::open(disk.clone(), identity, 4711).unwrap();
    let text = String::from_utf8(disk.contents("identity").unwrap()).unwrap();
    assert_eq!(text, include_str!("goldens/identity.txt"));
    assert_eq!(disk.contents("lock").unwrap(), b"4711\n");
    let text = String::from_utf8(disk.contents("node").unwrap()).unwrap();
    assert_eq!(text, include_str!("goldens/node.txt"));
}

#[test]
fn boot() {
    let disk = Arc::new(FaultyDisk::new(1));
    let text = || String::from_utf8(disk.contents("boot").unwrap()).unwrap();
    let identity = FolderIdentity { node_name: "rabbit@host".to_owned(), cluster_id: 0xabc, folder_id: FOLDER_ID };
    let folder = DataFolder::open(disk.clone(), identity, 4711).unwrap();
    let mut life = folder.begin_life(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef).unwrap();
    assert_eq!(text(), include_str!("goldens/boot.txt"));
    life.note_forgot(&*disk, &[1, 20].into()).unwrap();
    life.close(&*disk).unwrap();
    assert_eq!(text(), include_str!("goldens/boot-closed.txt"));
}

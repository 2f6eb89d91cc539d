//! The file that says whose folder it is rots: made anew from what is left, never another folder's.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use storage::data_folder::{IDENTITY_NAME, NODE_FILE, RESERVE_BYTES, RepairedIdentity, keep_reserve, repair_identity};
use storage::wal::has_log;
use storage::{
    ClusterRecord, DataFolder, Disk, DryDisk, FaultyDisk, FileNo, FolderIdentity, Founder, GroupId, Record, RecordKind,
    StorageError, WalOptions, WalPosition, recover,
};
use storage::{NodeRecord, NodeState};

const FOLDER_ID: u128 = 0x99_0000_0000_0000_0000_0000_0000_0042;

fn identity() -> FolderIdentity {
    FolderIdentity { node_name: "rabbit@hare".to_owned(), cluster_id: 0xc1, folder_id: FOLDER_ID }
}

/// A folder with one file of the log.
fn folder() -> Arc<FaultyDisk> {
    let disk = Arc::new(FaultyDisk::new(1));
    drop(DataFolder::open(disk.clone(), identity(), 1).unwrap());
    let options = WalOptions { file_bytes: 64 << 10, spares_target: 1, spares_max: 2, nonce: 3 };
    let (mut wal, _) = recover(&disk, FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).unwrap();
    let body = Bytes::from_static(b"entry");
    wal.append(
        &[Record { group: GroupId(1), kind: RecordKind::Entry, term: 1, index: 1, body, body_crc: None }],
        &mut Vec::new(),
    )
    .unwrap();
    wal.sync().unwrap();
    disk
}

fn repair<D: Disk>(disk: &Arc<D>, name: Option<&str>) -> Result<Option<RepairedIdentity<D>>, StorageError> {
    repair_identity(disk, name, 1_000_000, |file| {
        disk.create_folder("damaged").unwrap();
        Ok(format!("damaged/0001-{file}"))
    })
}

fn reopened(disk: &Arc<FaultyDisk>, name: &str) -> FolderIdentity {
    let founding = FolderIdentity { node_name: name.to_owned(), cluster_id: 7, folder_id: 8 };
    DataFolder::open(disk.clone(), founding, 2).unwrap().identity().clone()
}

#[test]
fn a_new_identity_does_not_hide_that_the_log_is_gone() {
    let disk = folder();
    disk.flip_bit(IDENTITY_NAME, 70, 0);
    for name in disk.list("wal").unwrap() {
        disk.remove(&format!("wal/{name}")).unwrap();
    }
    assert!(repair(&disk, None).unwrap().is_some());
    assert!(!has_log(&*disk).unwrap());
}

#[test]
fn any_turned_bit_is_turned_back() {
    let whole = folder().contents(IDENTITY_NAME).unwrap();
    for bit in 0..whole.len() as u64 * 8 {
        let disk = folder();
        disk.flip_bit(IDENTITY_NAME, bit / 8, (bit % 8) as u8);
        let Some(repaired) = repair(&disk, None).unwrap() else {
            // An upper-case digit is the same number.
            assert_eq!(reopened(&disk, "rabbit@hare"), identity(), "bit {bit}");
            continue;
        };
        assert_eq!((repaired.identity.clone(), &repaired.changed[..]), (identity(), &[][..]), "bit {bit}");
        assert_eq!(repaired.aside, [("identity".to_owned(), "damaged/0001-identity".to_owned())]);
        drop(repaired);
        assert_eq!(reopened(&disk, "rabbit@hare"), identity());
        assert_eq!(disk.contents(IDENTITY_NAME).unwrap(), whole);
        assert_ne!(disk.contents("damaged/0001-identity").unwrap(), whole, "what was damaged is kept");
    }
}

#[test]
fn what_stands_behind_a_text_is_damage_and_is_cut_off() {
    for (file, bytes) in [(IDENTITY_NAME, 1), (IDENTITY_NAME, 5000), (NODE_FILE, 1), (NODE_FILE, 5000)] {
        let disk = folder();
        let whole = disk.contents(file).unwrap();
        disk.plant(file, &[&whole[..], &vec![0; bytes]].concat());
        let error = DataFolder::open(disk.clone(), identity(), 2).err().unwrap();
        assert!(error.is_damage(), "{bytes} more in {file}: {error}");
        let repaired = repair(&disk, None).unwrap().unwrap();
        assert_eq!((repaired.identity.clone(), &repaired.changed[..]), (identity(), &[][..]), "{bytes} more in {file}");
        drop(repaired);
        assert_eq!(disk.contents(file).unwrap(), whole);
        assert_eq!(reopened(&disk, "rabbit@hare"), identity());
    }
    let disk = folder();
    disk.plant(IDENTITY_NAME, &vec![b'x'; 2 << 20]);
    assert!(repair(&disk, None).unwrap_err().is_damage(), "too much to look through");
}

fn overwrite(disk: &FaultyDisk, from: &str, to: &str) {
    let text = String::from_utf8(disk.contents(IDENTITY_NAME).unwrap()).unwrap();
    assert!(text.contains(from));
    disk.plant(IDENTITY_NAME, text.replace(from, to).as_bytes());
}

#[test]
fn the_log_says_which_folder_it_is_and_the_rest_is_read_or_asked() {
    let disk = folder();
    overwrite(&disk, "folder 0099", "folder ??99");
    let error = DataFolder::open(disk.clone(), identity(), 2).err().unwrap();
    assert!(error.to_string().contains("leveret repair DIR --dry-run"), "{error}");
    let repaired = repair(&disk, None).unwrap().unwrap();
    assert_eq!(repaired.identity, identity());
    assert!(repaired.changed[0].contains("rabbit@hare"), "a name that is not proven is told: {:?}", repaired.changed);
    drop(repaired);
    assert_eq!(reopened(&disk, "rabbit@hare"), identity());
}

#[test]
fn a_folder_without_an_identity_wants_a_name() {
    let disk = folder();
    disk.remove(IDENTITY_NAME).unwrap();
    assert!(matches!(repair(&disk, None), Err(StorageError::NodeNameLost { .. })));
    let repaired = repair(&disk, Some("rabbit@moor")).unwrap().unwrap();
    assert_eq!((repaired.identity.node_name.as_str(), repaired.identity.folder_id), ("rabbit@moor", FOLDER_ID));
    assert_eq!(repaired.aside, []);
    drop(repaired);
    assert_eq!(reopened(&disk, "rabbit@moor").folder_id, FOLDER_ID);
}

/// The folder of the first of three nodes that founded a cluster.
fn folder_of_a_member() -> Arc<FaultyDisk> {
    let disk = folder();
    let mut folder = DataFolder::open(disk.clone(), identity(), 1).unwrap();
    folder.become_member(NodeRecord::FOUNDER).unwrap();
    let founder = |number: u32| {
        let folder_id = if number == NodeRecord::FOUNDER { FOLDER_ID } else { u128::from(number) };
        Founder { number, folder_id, address: format!("host{number}:1") }
    };
    let (joined, partitions, before) = (None, 4, Vec::new());
    folder
        .store_cluster_record(&ClusterRecord { joined, partitions, founders: (1..=3).map(founder).collect(), before })
        .unwrap();
    disk.plant("checkpoints/00000000.0", b"a state");
    disk
}

#[test]
fn in_a_folder_of_a_cluster_only_what_is_proven_is_made_anew() {
    // One bit is turned back.
    for name in [IDENTITY_NAME, NODE_FILE] {
        let disk = folder_of_a_member();
        let whole = disk.contents(name);
        disk.flip_bit(name, 40, 1);
        assert!(repair(&disk, None).unwrap().unwrap().is_of_cluster, "{name}");
        assert_eq!(disk.contents(name), whole);
    }
    // Which node it is the list of them says.
    for is_gone in [false, true] {
        let disk = folder_of_a_member();
        if is_gone {
            disk.remove(NODE_FILE).unwrap()
        } else {
            disk.plant(NODE_FILE, b"rubbish")
        }
        let repaired = repair(&disk, None).unwrap().unwrap();
        let expected = NodeRecord { id: 1, state: NodeState::Member, start: 1_000_000 };
        assert_eq!((repaired.node, repaired.is_of_cluster), (expected, true));
        assert!(repaired.changed[0].starts_with("the node is number 1 of its cluster, as"), "{:?}", repaired.changed);
    }
    // Nothing says it.
    let not_made = |disk: &Arc<FaultyDisk>, name: &str| {
        let before = disk.contents(name);
        let error = repair(disk, Some("rabbit@hare")).unwrap_err();
        assert!(matches!(error, StorageError::NotMadeAnew { .. }), "{error}");
        assert_eq!(disk.contents(name), before);
    };
    let disk = folder_of_a_member();
    disk.plant(NODE_FILE, b"rubbish");
    disk.flip_bit("cluster", 40, 1);
    not_made(&disk, NODE_FILE);
    let disk = folder_of_a_member();
    disk.remove("checkpoints/00000000.0").unwrap();
    disk.plant(NODE_FILE, b"rubbish");
    not_made(&disk, NODE_FILE);
    let disk = folder_of_a_member();
    overwrite(&disk, "folder 0099", "folder ??99");
    not_made(&disk, IDENTITY_NAME);
    disk.remove(IDENTITY_NAME).unwrap();
    not_made(&disk, IDENTITY_NAME);
}

#[test]
fn whose_folder_it_is_is_not_guessed() {
    let disk = folder();
    overwrite(&disk, "folder 0099", "folder ??99");
    for name in disk.list("wal").unwrap() {
        disk.plant(&format!("wal/{name}"), &[7; 8192]);
    }
    assert!(matches!(repair(&disk, Some("rabbit@hare")), Err(StorageError::Corrupt { .. })));
    let other_version = folder();
    overwrite(&other_version, "format 2", "format 12");
    assert!(matches!(repair(&other_version, None), Err(StorageError::OtherVersion { found: 12, .. })));
}

#[test]
fn a_whole_identity_stays_and_a_trial_or_another_process_changes_nothing() {
    let disk = folder();
    assert!(repair(&disk, Some("other@name")).unwrap().is_none());
    let before = disk.contents(IDENTITY_NAME);
    disk.flip_bit(IDENTITY_NAME, 40, 0);
    let damaged = disk.contents(IDENTITY_NAME);
    let trial = repair(&Arc::new(DryDisk::new(disk.clone())), None).unwrap().unwrap();
    assert_eq!((trial.identity.clone(), disk.contents(IDENTITY_NAME)), (identity(), damaged));
    drop(trial);
    let first = repair(&disk, None).unwrap().unwrap();
    disk.flip_bit(IDENTITY_NAME, 40, 0);
    assert!(matches!(repair(&disk, None), Err(StorageError::Locked { .. })));
    drop(first);
    disk.flip_bit(IDENTITY_NAME, 40, 0);
    assert_eq!(disk.contents(IDENTITY_NAME), before);
}

#[test]
fn which_node_it_is_is_read_back_told_or_taken_for_a_founder_and_no_start_is_counted_twice() {
    let node = |disk: &Arc<FaultyDisk>| DataFolder::open(disk.clone(), identity(), 2).unwrap().node();
    let whole = folder().contents(NODE_FILE).unwrap();
    for bit in 0..whole.len() as u64 * 8 {
        let disk = folder();
        disk.flip_bit(NODE_FILE, bit / 8, (bit % 8) as u8);
        let repaired = repair(&disk, None).unwrap().unwrap_or_else(|| panic!("bit {bit} is damage"));
        assert_eq!((repaired.node, &repaired.changed[..]), (NodeRecord { start: 1, ..repaired.node }, &[][..]));
        assert_eq!(repaired.aside, [("node".to_owned(), "damaged/0001-node".to_owned())]);
        drop(repaired);
        assert_eq!(disk.contents(NODE_FILE).unwrap(), whole, "bit {bit}");
    }
    let disk = folder();
    disk.plant(NODE_FILE, b"leveret node\nformat 1\nid 7\nstate member\nstart 5\ncheck 00000000\n");
    assert!(DataFolder::open(disk.clone(), identity(), 2).err().unwrap().to_string().contains("leveret repair"));
    let repaired = repair(&disk, None).unwrap().unwrap();
    assert!(repaired.changed[0].contains("number 7 of its cluster (member)"), "{:?}", repaired.changed);
    drop(repaired);
    assert_eq!(node(&disk), NodeRecord { id: 7, state: NodeState::Member, start: 1_000_001 });
    for left in [None, Some(&b"rot"[..])] {
        let disk = folder();
        disk.remove(NODE_FILE).unwrap();
        left.inspect(|left| disk.plant(NODE_FILE, left));
        drop(repair(&disk, None).unwrap().unwrap());
        assert_eq!(node(&disk), NodeRecord { id: 1, state: NodeState::Founding, start: 1_000_001 });
    }
}

/// What is in a node's queues can only be consumed, and make room, if the node starts.
#[test]
fn a_full_disk_has_room_for_a_start_if_a_process_before_it_kept_some() {
    let disk = folder();
    keep_reserve(&*disk).unwrap();
    let used = u64::MAX - disk.free_bytes().unwrap();
    disk.set_capacity(used);
    assert_eq!(disk.free_bytes().unwrap(), 0);
    let opened = DataFolder::open(disk.clone(), identity(), 2).unwrap();
    assert!(opened.was_short());
    opened.begin_life(7).unwrap();
    assert!(disk.free_bytes().unwrap() > RESERVE_BYTES / 2, "most of it is left for what else a start does");
    drop(opened);
    // There was no room to keep any for the next one.
    keep_reserve(&*disk).unwrap_err();
    disk.set_capacity(used - disk.free_bytes().unwrap());
    assert!(DataFolder::open(disk.clone(), identity(), 2).unwrap_err().is_full());
    disk.set_capacity(u64::MAX);
    assert!(!DataFolder::open(disk.clone(), identity(), 2).unwrap().was_short());
}

//! What becomes of a start over a log in which a newer build decided what this one cannot carry out.
//!
//! Invariant: it ends with exit code 2 and says which version to start; it is no bug, and service managers do not try again.
#![allow(clippy::unwrap_used, missing_docs)]

use server::engine::{EngineConfig, open};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use storage::wal::FILE_BYTES_MIN;
use storage::{
    DataFolder, FileNo, FolderIdentity, GroupId, RealDisk, Record, RecordKind, WalOptions, WalPosition, recover,
};

const FOLDER: u128 = 7;

/// The folder of a node that runs alone, with one partition.
fn folder(path: &Path) -> Arc<RealDisk> {
    let identity = FolderIdentity { node_name: "a@host".to_owned(), cluster_id: 1, folder_id: FOLDER };
    let folder = DataFolder::open_path(path, identity, 1).unwrap();
    let disk = folder.disk().clone();
    let config = EngineConfig {
        partitions: 1,
        has_peers: false,
        shards: 1,
        wal_file_bytes: FILE_BYTES_MIN,
        wal_retained_bytes: 1 << 30,
        cache_bytes: 1 << 20,
        read_ahead_bytes: 1 << 20,
        wal_index_bytes: 1 << 20,
        wal_sync_delay_ms: 0,
        checkpoint_interval_bytes: 1 << 30,
        disk_free_min_bytes: 0,
        on_quiet: || {},
    };
    drop(open(folder, config).unwrap());
    disk
}

/// One more entry of a group, synced.
fn append(disk: &Arc<RealDisk>, group: u32, body: &[u8]) {
    let mut last = (0, 0);
    let start = WalPosition { file: FileNo(0), offset: 0 };
    let (mut wal, _) = recover(disk, FOLDER, WalOptions::new(3), FileNo(0), start, &mut |record, _| {
        if record.group.0 == group && record.kind == RecordKind::Entry {
            last = (record.term, record.index);
        }
    })
    .unwrap();
    assert!(last.1 > 0, "the group has begun");
    let (term, index, body) = (last.0, last.1 + 1, body.to_vec().into());
    wal.append(
        &[Record { group: GroupId(group), kind: RecordKind::Entry, term, index, body, body_crc: None }],
        &mut Vec::new(),
    )
    .unwrap();
    wal.sync().unwrap();
}

#[test]
fn a_machine_version_that_a_newer_build_raised_ends_a_start_with_what_to_do() {
    // An entry with one command: the machine of the queues is raised to version 1000.
    let mut raise = vec![2, 0, 0, 0, 1, 0, 0, 0];
    raise.extend(5_u64.to_le_bytes());
    raise.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    raise.extend(1000_u64.to_le_bytes());
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("data");
    let disk = folder(&path);
    append(&disk, 1, &raise);
    let words = ["server", "--data-dir", path.to_str().unwrap(), "--node-name", "a@host", "--amqp", "127.0.0.1:0"];
    let output = Command::new(env!("CARGO_BIN_EXE_leveret")).args(words).env_clear().output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("partition 1 cannot be read (entry "), "{told}");
    assert!(told.contains("start the version that wrote it, or restore a copy"), "{told}");
    assert!(!told.contains("bug"), "{told}");
}

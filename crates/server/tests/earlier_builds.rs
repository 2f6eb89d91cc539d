//! Data folders that earlier builds wrote, kept as they were left: they open, and everything that
//! was confirmed is there.
//!
//! Each fixture is text: `file NAME BYTES`, then those of its lines of 32 bytes that are not zero,
//! each behind its offset. Of a log, the broker was killed twice; one queue has priorities, one
//! takes keys in once, and one of six messages in `payments` was acked.
#![allow(clippy::unwrap_used)]

use server::config::{Key, Machine, Sources, load, open_data_folder};
use server::engine::{EngineConfig, Opened, open};
use std::fs;
use std::path::Path;
use storage::NodeState;

const FORMAT_1: &str = include_str!("fixtures/folder-format-1.txt");

fn unpack(fixture: &str, folder: &Path) {
    for file in fixture.split("file ").skip(1) {
        let (name, lines) = file.split_once('\n').unwrap();
        let (name, bytes) = name.split_once(' ').unwrap();
        let mut contents = vec![0; bytes.parse().unwrap()];
        for line in lines.lines() {
            let (at, digits) = line.split_once(' ').unwrap();
            let at = usize::from_str_radix(at, 16).unwrap();
            for i in 0..digits.len() / 2 {
                contents[at + i] = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap();
            }
        }
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
}

fn opened(folder: &Path) -> Opened {
    let mut sources = Sources::default();
    sources.flags.push((Key::data_dir, folder.display().to_string()));
    let hostname = "hare".to_owned();
    let machine = Machine { processors: 2, memory_bytes: 1 << 30, descriptors: 1024, ipv4: true, ipv6: true, hostname };
    let config = load(&sources, &machine).unwrap();
    let engine = EngineConfig {
        partitions: 2,
        shards: 1,
        wal_file_bytes: 4 << 20,
        disk_free_min_bytes: 16 << 20,
        wal_retained_bytes: 8 << 20,
        cache_bytes: 1 << 20,
        read_ahead_bytes: 1 << 20,
        wal_index_bytes: 1 << 20,
        wal_sync_delay_ms: 10,
        checkpoint_interval_bytes: 1 << 20,
        has_peers: false,
        on_quiet: || {},
    };
    open(open_data_folder(&config, None).unwrap(), engine).unwrap()
}

#[test]
fn a_folder_of_format_1_keeps_its_queues_and_messages_and_gets_a_node_with_starts_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    unpack(FORMAT_1, folder.path());
    for start in 1..4 {
        let opened = opened(folder.path());
        let mut names: Vec<String> = opened.brought.topology.queues().map(|queue| queue.name.to_string()).collect();
        names.sort_unstable();
        assert_eq!(names, ["once", "payments", "urgent"]);
        assert_eq!(opened.backlog(), (11, 3), "start {start}");
        assert_eq!((opened.brought.life.node, opened.brought.life.start), (1, start));
    }
    let identity = fs::read_to_string(folder.path().join("identity")).unwrap();
    assert!(
        identity.starts_with("leveret data folder\nformat 2\nnode leveret@hare\ncluster 6d89208131ec0775"),
        "{identity}"
    );
    let node = fs::read_to_string(folder.path().join("node")).unwrap();
    assert!(node.contains(&format!("state {}", NodeState::Member.name())), "{node}");
}

//! `files FOLDER`: well-formed storage files and a packet between nodes for the fuzzer to start from,
//! written by the code that writes them in a node.
//!
//! Invariant: made and not stored, so a change of a format leaves no stale seed behind.

use std::path::Path;
use std::sync::Arc;

use broker::queue::Counts;
use broker::topology::{MACHINE_VERSION, MachineVersions, SoleNode, Topology};
use broker::{ChannelKey, ConsumerKey, NodeLife, NodeNumber, PartitionId, QueueId, VhostId};
use bytes::Bytes;
use partition::command::{Durability, Selective};
use partition::peer::news_form::News;
use partition::peer::packet;
use partition::{Command, Delivery, Disposition, Effect, Forward, Message, Publish, Reply, RequestId, Target};
use storage::checkpoint::CheckpointStore;
use storage::data_folder::{DataFolder, FolderIdentity, NODE_FILE};
use storage::disk::{Disk, FaultyDisk};
use storage::extent::{ExtentId, ExtentWriter};
use storage::fuzz::FUZZ_FOLDER_ID;
use storage::wal::format::PAGE_BYTES;
use storage::wal::{FILE_BYTES_MIN, FileNo, GroupId, Record, RecordKind, WalOptions, WalPosition, recover};

fn main() {
    let root = std::env::args().nth(1).expect("a folder for the seeds");
    for (target, name, bytes) in [wal(false), wal(true), extent(1), extent(50), checkpoint(0), checkpoint(500), node(), topology(false), topology(true), peer()] {
        let folder = Path::new(&root).join(target);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        std::fs::write(folder.join(name), bytes).expect("the seed can be written");
    }
}

/// A log with records of every kind in frames of several sizes. The target puts a file header of
/// its own before it.
fn wal(repair: bool) -> (&'static str, String, Vec<u8>) {
    let disk = Arc::new(FaultyDisk::new(1));
    let options = WalOptions { file_bytes: FILE_BYTES_MIN, spares_target: 0, spares_max: 0, nonce: 1 };
    let (mut wal, _) = recover(&disk, FUZZ_FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).expect("an empty folder");
    let mut locations = Vec::new();
    use RecordKind::{Entry, HardState, Membership, SnapshotMark, Tombstone};
    for (index, kinds) in (1..).zip([&[HardState, Membership][..], &[Entry; 5], &[SnapshotMark], &[Entry], &[Tombstone]]) {
        let record = |kind| Record { group: GroupId(1), kind, term: 1, index, body: vec![7; 30 * index as usize].into(), body_crc: None };
        let records: Vec<Record> = kinds.iter().copied().map(record).collect();
        wal.append(&records, &mut locations).expect("there is room");
        wal.sync().expect("no fault is scheduled");
    }
    let end = wal.position().offset as usize;
    let file = disk.contents("wal/00000001.wal").expect("the log was written");
    let mut seed = vec![u8::from(repair)];
    seed.extend(&file[PAGE_BYTES as usize..end]);
    ("wal", format!("seed-{repair}"), seed)
}

fn extent(messages: u64) -> (&'static str, String, Vec<u8>) {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut writer = ExtentWriter::create(&disk, FUZZ_FOLDER_ID, ExtentId(1)).expect("an empty folder");
    for seq in 1..=messages {
        writer.push(seq % 3, seq, &vec![1; seq as usize]).expect("there is room");
    }
    writer.finish().expect("no fault is scheduled");
    ("extent", format!("seed-{messages}"), only_file(&disk, "extents"))
}

fn checkpoint(payload_bytes: usize) -> (&'static str, String, Vec<u8>) {
    let disk = Arc::new(FaultyDisk::new(1));
    let mut store = CheckpointStore::open(&disk, FUZZ_FOLDER_ID).expect("an empty folder");
    store.save(GroupId(1), WalPosition::START, &vec![3; payload_bytes]).expect("no fault is scheduled");
    ("checkpoint", format!("seed-{payload_bytes}"), only_file(&disk, "checkpoints"))
}

fn node() -> (&'static str, String, Vec<u8>) {
    let disk = Arc::new(FaultyDisk::new(1));
    let founding = FolderIdentity { node_name: "leveret@hare".to_owned(), cluster_id: 1, folder_id: FUZZ_FOLDER_ID };
    DataFolder::open(disk.clone(), founding, 1).expect("no fault is scheduled");
    ("node", "seed".to_owned(), disk.contents(NODE_FILE).expect("it was written"))
}

/// A state with a map, or a command of it; the first byte says which.
fn topology(is_state: bool) -> (&'static str, String, Vec<u8>) {
    let (number, partitions) = (NodeNumber(1), [PartitionId(1), PartitionId(2)]);
    let can = MachineVersions { topology: MACHINE_VERSION, queues: 1 };
    let sole = SoleNode { number, name: "leveret@hare", can, partitions: &partitions, ended: &[], wanted: 2 };
    let mut topology = Topology::new();
    let commands = topology.commands_of(&sole);
    commands.iter().for_each(|command| drop(topology.apply(command)));
    let bytes = if is_state { topology.encode_snapshot() } else { commands[0].encode() };
    ("topology", format!("seed-{is_state}"), [&[u8::from(is_state)][..], &bytes].concat())
}

/// What follows the head of a packet: some of what a channel and a partition elsewhere say.
fn peer() -> (&'static str, String, Vec<u8>) {
    let (queue, request) = (QueueId(300), RequestId(9));
    let channel = ChannelKey::of(NodeLife { node: 2, start: 200 }, 300);
    let consumer = ConsumerKey { channel, number: 3 };
    let selective = Some(Selective { cap: 1000, interval_ms: 50 });
    let targets = [Target { queue, durability: Durability::Selective { value: 7 }, selective }];
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let message = Message { exchange: text("x"), routing_key: text("key"), properties: text("pp"), body: text("body") };
    let targets = targets.into_iter().collect();
    let publish = Publish { channel, publish_seq: 1, term: 0, targets, delay_ms: 0, message, more: None };
    let counts = Counts { acquired: 1, delivery: 0 };
    let delivery =
        Delivery { consumer, queue, seq: 7, needs_ack: true, redelivered: true, counts, message: text("stored") };
    let frames = [
        Forward::Command(Command::Publish(publish)),
        Forward::Command(Command::Settle { queue, holder: consumer, first: 7, count: 1, outcome: Disposition::Ack }),
        Forward::Effect(Effect::Reply { channel, request, reply: Reply::Got { delivery, ready: 1 } }),
        Forward::Effect(Effect::GrantWanted { consumer, queue, ready: 4 }),
        Forward::Propose { token: 1, term: Term(1), change: text("change") },
        Forward::Ask { number: 1, question: text("question") },
        Forward::Answer { number: 1, part: text("part"), is_last: false, is_refused: false },
        Forward::News(News::Alarms { disk: true, memory: false }),
        Forward::News(News::User { name: text("ann"), connections: 1, channels: 2 }),
        Forward::News(News::Vhost { vhost: VhostId(1), connections: 3 }),
        Forward::News(News::Traced { vhost: VhostId(1), on: true, stamp: 300 }),
        Forward::Applied { index: LogIndex(7) },
        Forward::Ping { number: 1 },
        Forward::AskLease { number: 300 },
        Forward::Lease { number: 300, end: LogIndex(7) },
    ];
    let pieces = packet::encode(frames.iter().map(|frame| (PartitionId(1), frame)));
    ("peer", "seed".to_owned(), pieces[1..].concat())
}

fn only_file(disk: &FaultyDisk, folder: &str) -> Vec<u8> {
    let names = disk.list(folder).expect("the folder is there");
    assert_eq!(names.len(), 1, "one file in {folder}: {names:?}");
    let name = names[0].rsplit('/').next().expect("a name");
    disk.contents(&format!("{folder}/{name}")).expect("it was written")
}

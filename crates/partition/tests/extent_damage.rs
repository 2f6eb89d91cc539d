//! What is left of an extent after a bit of it rots: everything but what the bit was part of.
#![allow(clippy::unwrap_used)]

use broker::{PartitionId, QueueId};
use partition::cold_read::carry_out;
use partition::extent_copy::{NewExtent, copy_runs};
use partition::outputs::{CopyRun, Read, ReadAt, ReadBytes, ReadFailed, ReadPurpose};
use partition::place::Place;
use std::sync::Arc;
use storage::extent::{list_extents, remove_extent};
use storage::{
    Disk, DiskFile, Extent, ExtentId, FaultyDisk, FileNo, OpenMode, WalOptions, WalPosition, WalReader, recover,
};

const FOLDER_ID: u128 = 5;
const EXTENT: &str = "extents/0000000000000001.extent";
/// Queue 1 without holes, queue 2 with some.
const QUEUES: [(u64, &[u64]); 2] = [(1, &[10, 11, 12, 13, 14]), (2, &[3, 4, 9, 20, 21, 40])];

fn body(queue: u64, seq: u64) -> Vec<u8> {
    format!("{queue}/{seq} ").repeat(10).into_bytes()
}

fn written() -> (Arc<FaultyDisk>, WalReader<FaultyDisk>) {
    let disk = Arc::new(FaultyDisk::new(1));
    let start = WalPosition::START;
    let (wal, _) = recover(&disk, FOLDER_ID, WalOptions::new(1), FileNo(0), start, &mut |_, _| {}).unwrap();
    let mut extent = NewExtent::create(&disk, FOLDER_ID, ExtentId(1)).unwrap();
    for (queue, seqs) in QUEUES {
        seqs.iter().for_each(|seq| extent.push(QueueId(queue), *seq, &body(queue, *seq)).unwrap());
    }
    extent.finish(Vec::new()).unwrap();
    let reader = wal.reader();
    (disk, reader)
}

/// Everything that deliveries of a run would get, read after read; what is passed over is asked for
/// no more.
fn delivered(disk: &FaultyDisk, wal: &WalReader<FaultyDisk>, run: usize) -> Vec<u64> {
    let (queue, seqs) = QUEUES[run];
    let past = seqs.last().unwrap() + 1;
    let (mut got, mut from) = (Vec::new(), seqs[0]);
    while from < past {
        let at = ReadAt::Extent { id: 1, run: run as u32, from, past, bytes_max: 150 };
        let place = Place::Extent { id: 1, run: run as u32 };
        let purpose = ReadPurpose::Messages { queue: QueueId(queue), seq: from, place, is_second: false };
        let read = Read { partition: PartitionId(1), at, purpose };
        let mut opened = None;
        let found = carry_out(&read, disk, wal, |id| Extent::open(disk, id).map(|extent| &*opened.insert(extent)));
        let Ok(ReadBytes::Extent { messages, .. }) = found else { panic!("it is there") };
        let Some((last, _)) = messages.last() else { break };
        from = last + 1;
        for (seq, bytes) in messages {
            assert_eq!(bytes, body(queue, seq), "a wrong body is never given out");
            got.push(seq);
        }
    }
    got
}

fn runs() -> Vec<CopyRun> {
    let run = |(number, (queue, seqs)): (usize, &(u64, &[u64]))| CopyRun {
        queue: QueueId(*queue),
        place: Place::Extent { id: 1, run: number as u32 },
        first: seqs[0],
        count: (seqs.last().unwrap() + 1 - seqs[0]) as u32,
        live: seqs.iter().map(|seq| (*seq, 1)).collect(),
        joins: false,
    };
    QUEUES.iter().enumerate().map(run).collect()
}

#[test]
fn a_rotten_bit_costs_what_it_is_part_of_and_nothing_else() {
    let (disk, wal) = written();
    let contents = disk.contents(EXTENT).unwrap();
    let all = [QUEUES[0].1.len(), QUEUES[1].1.len()];
    let (mut none, mut one, mut a_run) = (0, 0, 0);
    for offset in 0..contents.len() {
        disk.flip_bit(EXTENT, offset as u64, (offset % 8) as u8);
        let got = [0, 1].map(|run| delivered(&disk, &wal, run));
        let missing = [all[0] - got[0].len(), all[1] - got[1].len()];
        match missing {
            [0, 0] => none += 1,
            [1, 0] | [0, 1] => one += 1,
            [_, 0] | [0, _] => a_run += 1,
            both => panic!("byte {offset} cost both runs something: {both:?}"),
        }
        // A copy takes the runs that are whole and names what is missing of the others.
        let copied = copy_runs(&disk, FOLDER_ID, &wal, ExtentId(2), &runs()).unwrap();
        let damaged: usize = copied.damaged.iter().flat_map(|d| &d.messages).map(|m| m.1 as usize).sum();
        assert_eq!(damaged, missing[0] + missing[1], "byte {offset}");
        assert_eq!(copied.ready.map_or(0, |r| r.copied.len()) + copied.damaged.len(), 2, "byte {offset}");
        let _ = remove_extent(&*disk, ExtentId(2));
        disk.flip_bit(EXTENT, offset as u64, (offset % 8) as u8);
    }
    // A byte of a body costs its message; header, padding, footer and queue numbers cost nothing;
    // the rest of a row its run.
    let bodies: usize = QUEUES.iter().flat_map(|(queue, seqs)| seqs.iter().map(|seq| body(*queue, *seq).len())).sum();
    assert!(one >= bodies && none >= 64 + 64, "{none} {one} {a_run}");
    assert!((1..=2 * 40).contains(&a_run), "{none} {one} {a_run}");
    assert_eq!([0, 1].map(|run| delivered(&disk, &wal, run)), QUEUES.map(|q| q.1.to_vec()));
}

#[test]
fn a_wrong_length_costs_what_is_cut_off_and_nothing_else() {
    let (disk, wal) = written();
    let extent = Extent::open(&*disk, ExtentId(1)).unwrap();
    let (first, second, length) = (extent.runs()[0], extent.runs()[1], extent.bytes());
    let file = disk.open(EXTENT, OpenMode::ReadWrite).unwrap();
    // Growing first: what is cut off does not come back.
    let lengths = [
        (length + 1, [5, 6]),
        (length + 70_000, [5, 6]),
        (length - 1, [5, 6]),
        (length - 190, [5, 6]),
        (second.index_offset + 2 * 16 + 8, [5, 2]),
        (second.bodies_offset + 10, [5, 0]),
        (first.index_offset + 3 * 16, [3, 0]),
        (first.index_offset, [0, 0]),
    ];
    for (length, left) in lengths {
        file.set_len(u64::from(length)).unwrap();
        let got = [0, 1].map(|run| delivered(&disk, &wal, run));
        let expected = [0, 1].map(|run| QUEUES[run].1[..left[run]].to_vec());
        assert_eq!(got, expected, "{length} bytes");
        let copied = copy_runs(&disk, FOLDER_ID, &wal, ExtentId(2), &runs()).unwrap();
        let damaged: usize = copied.damaged.iter().flat_map(|d| &d.messages).map(|m| m.1 as usize).sum();
        assert_eq!(damaged, 11 - left[0] - left[1], "{length} bytes");
        for damaged in &copied.damaged {
            let told = damaged.why.contains(&format!("{EXTENT} has {length} bytes and does not end with a footer"));
            assert!(told, "{}", damaged.why);
        }
        let _ = remove_extent(&*disk, ExtentId(2));
    }
}

#[test]
fn an_extent_with_nothing_in_it_leaves_no_file() {
    let (disk, wal) = written();
    disk.remove(EXTENT).unwrap();
    let copied = copy_runs(&disk, FOLDER_ID, &wal, ExtentId(2), &runs()).unwrap();
    assert!(copied.ready.is_none() && copied.damaged.len() == 2, "both runs are gone");
    assert_eq!(list_extents(&*disk).unwrap(), []);
}

#[test]
fn a_file_that_is_gone_is_told_apart_from_damage_and_from_one_that_cannot_be_opened() {
    let (disk, wal) = written();
    let at = ReadAt::Extent { id: 1, run: 0, from: 10, past: 15, bytes_max: 1 };
    let place = Place::Extent { id: 1, run: 0 };
    let purpose = ReadPurpose::Messages { queue: QueueId(1), seq: 10, place, is_second: false };
    let read = Read { partition: PartitionId(1), at, purpose };
    let refused = |_| -> Result<&Extent<FaultyDisk>, _> {
        let source = std::io::Error::from_raw_os_error(24);
        Err(storage::StorageError::Io { action: "open", file: EXTENT.to_owned(), source })
    };
    assert!(matches!(carry_out(&read, &*disk, &wal, refused), Err(ReadFailed::Refused(_))), "too many open files");
    disk.remove(EXTENT).unwrap();
    let mut opened = None;
    let found = carry_out(&read, &*disk, &wal, |id| Extent::open(&*disk, id).map(|extent| &*opened.insert(extent)));
    assert!(matches!(found, Err(ReadFailed::Gone(_))), "{found:?}");
    let copied = copy_runs(&disk, FOLDER_ID, &wal, ExtentId(2), &runs()).unwrap();
    assert!(copied.ready.is_none() && copied.damaged.len() == 2 && copied.damaged.iter().all(|d| d.is_gone));
}

//! Entry points that take any bytes for a file and must come back: no panic, no memory beyond a
//! small multiple of the input.
//!
//! The targets under `fuzz/` call these with what the fuzzer makes up, the tests with seeded damage
//! to real files. Checksums stop a fuzzer at the door, so [`wal_file`] can repair them first: then
//! the fuzzer gets at what lies behind.

use crate::crc32c;
use std::sync::Arc;

use crate::checkpoint::CheckpointStore;
use crate::data_folder::{NODE_FILE, decode_node};
use crate::disk::FaultyDisk;
use crate::extent::{Extent, ExtentId, extent_name};
use crate::inspect::{Depth, inspect};
use crate::wal::format::{FRAME_HEADER_BYTES, FileHeader, FrameHeader, PAGE_BYTES};
use crate::wal::{FILE_BYTES_MIN, FileNo, GroupId, WalOptions, WalPosition, recover};

/// The folder that all files of a fuzzing run belong to.
pub const FUZZ_FOLDER_ID: u128 = 7;
/// The salt of the log file that [`wal_file`] repairs.
const SALT: u64 = 0x5a17_5a17_5a17_5a17;

/// What came of a log made of arbitrary bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalOutcome {
    /// Records that recovery took for good.
    pub records: u64,
    /// Ranges that it reported.
    pub damage: usize,
}

/// Recovers a log of one file with these contents behind a good file header. With `repair`, frame
/// headers get a right salt and checksum wherever their magic is found. Recovery, a second recovery
/// of what the first left, and `inspect` must all come back.
pub fn wal_file(contents: &[u8], repair: bool) -> Option<WalOutcome> {
    let header = FileHeader {
        file: FileNo(1),
        folder_id: FUZZ_FOLDER_ID,
        previous_file: FileNo(0),
        previous_end: 0,
        previous_end_crc: 0,
        first_frame_no: 1,
        salt: SALT,
    };
    let mut file = header.encode().to_vec();
    file.extend_from_slice(contents);
    if repair {
        repair_frames(&mut file[PAGE_BYTES as usize..]);
    }
    file.resize(file.len().next_multiple_of(PAGE_BYTES as usize), 0);
    let disk = Arc::new(FaultyDisk::new(1));
    disk.plant("wal/00000001.wal", &file);
    let everything = Depth { records: true, contents: true, messages: true };
    inspect(&*disk, everything, &|_, _| None, &mut |_| {});
    let options = WalOptions { file_bytes: FILE_BYTES_MIN, spares_target: 0, spares_max: 0, nonce: 1 };
    let mut body_bytes = 0;
    let (wal, first) = recover(&disk, FUZZ_FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |record, _| {
        body_bytes += record.body.len();
    })
    .ok()?;
    assert!(body_bytes <= contents.len(), "bodies are parts of the file");
    drop(wal);
    let (_, second) = recover(&disk, FUZZ_FOLDER_ID, options, FileNo(0), WalPosition::START, &mut |_, _| {}).ok()?;
    assert_eq!((first.records, first.end), (second.records, second.end), "a recovery changes nothing for the next one");
    Some(WalOutcome { records: first.records, damage: first.damage.len() })
}

fn repair_frames(bytes: &mut [u8]) {
    let magic = FrameHeader::magic();
    let mut at = 0;
    while at + FRAME_HEADER_BYTES as usize <= bytes.len() {
        if bytes[at..at + 4] == magic {
            let frame = &mut bytes[at..at + FRAME_HEADER_BYTES as usize];
            frame[8..16].copy_from_slice(&SALT.to_le_bytes());
            let crc = crc32c::crc32c(&frame[8..]);
            frame[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        at += 16;
    }
}

/// Opens an extent of these bytes and reads all it claims to hold. Returns the messages read,
/// `None` if it was refused.
pub fn extent_file(contents: &[u8]) -> Option<usize> {
    let disk = FaultyDisk::new(1);
    let id = ExtentId(1);
    disk.plant(&extent_name(id), contents);
    inspect(&disk, Depth { records: false, contents: true, messages: true }, &|_, _| None, &mut |_| {});
    let extent = Extent::open(&disk, id).ok()?;
    let mut count = 0;
    for run in 0..extent.runs().len() {
        for from_seq in [0, extent.runs()[run].first_seq + 1, extent.runs()[run].last_seq] {
            let messages = extent.read(run, from_seq, 1000, 1 << 20).unwrap_or_default();
            assert!(
                messages.iter().map(|message| message.body.len()).sum::<usize>() <= contents.len(),
                "bodies are parts of the file"
            );
            count += messages.len();
        }
    }
    Some(count)
}

/// Loads a checkpoint of these bytes. Returns the length of its payload, `None` if it was refused.
pub fn checkpoint_file(contents: &[u8]) -> Option<usize> {
    let disk = Arc::new(FaultyDisk::new(1));
    disk.plant("checkpoints/00000001.0", contents);
    let mut store = CheckpointStore::open(&disk, FUZZ_FOLDER_ID).ok()?;
    let checkpoint = store.load_newest(GroupId(1)).ok()??;
    Some(checkpoint.payload.len())
}

/// Reads these bytes as a file `node`. What is taken for one is, to the byte, what would be written
/// for it.
pub fn node_file(contents: &[u8]) -> Option<u32> {
    let disk = FaultyDisk::new(1);
    disk.plant(NODE_FILE, contents);
    inspect(&disk, Depth { records: false, contents: false, messages: false }, &|_, _| None, &mut |_| {});
    decode_node(contents).ok().map(|node| node.id)
}

//! What is written, where it is found, and how the log is set.

use super::format::{FIRST_FRAME_OFFSET, FRAME_HEADER_BYTES, PAGE_BYTES, RECORD_HEADER_BYTES};
use super::{FILE_BYTES_MAX, FILE_BYTES_MIN, RECORD_BODY_BYTES_MAX};
use bytes::Bytes;

/// A Raft group of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Number of a log file: 1, 2, 3 and never one twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNo(pub u64);

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// A log entry; a later one with the same or a lower index replaces what was there and all
    /// above.
    Entry = 1,
    /// Term and vote.
    HardState = 2,
    /// Members of the group.
    Membership = 3,
    /// The log is cut: entries up to `index` are gone, a snapshot or checkpoint stands for them.
    SnapshotMark = 4,
    /// The group is gone from this node.
    Tombstone = 5,
}

impl RecordKind {
    pub(super) fn from_byte(byte: u8) -> Option<RecordKind> {
        use RecordKind::{Entry, HardState, Membership, SnapshotMark, Tombstone};
        [Entry, HardState, Membership, SnapshotMark, Tombstone].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A record to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose it is.
    pub group: GroupId,
    /// What it is.
    pub kind: RecordKind,
    /// Raft term.
    pub term: u64,
    /// Raft log index.
    pub index: u64,
    /// Opaque here; at most [`Wal::body_bytes_max`](super::Wal::body_bytes_max).
    pub body: Bytes,
    /// The checksum of `body` where somebody has taken it, CRC32C: it goes to the disk as it is.
    pub body_crc: Option<u32>,
}

/// A record as recovery shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Whose it is.
    pub group: GroupId,
    /// What it is.
    pub kind: RecordKind,
    /// Raft term.
    pub term: u64,
    /// Raft log index.
    pub index: u64,
    /// The bytes that were appended.
    pub body: &'a [u8],
}

/// With a copy of the body.
impl From<RecordRef<'_>> for Record {
    fn from(RecordRef { group, kind, term, index, body }: RecordRef<'_>) -> Record {
        Record { group, kind, term, index, body: Bytes::copy_from_slice(body), body_crc: None }
    }
}

/// Where the body of a record lies. Parts of a body are locations too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file.
    pub file: FileNo,
    /// First byte of the body.
    pub offset: u32,
    /// Length of the body.
    pub bytes: u32,
}

/// A place in the log; later places are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalPosition {
    /// The file.
    pub file: FileNo,
    /// Byte in it; 0 stands for a file that may not exist yet.
    pub offset: u32,
}

impl WalPosition {
    /// Before everything.
    pub const START: WalPosition = WalPosition { file: FileNo(0), offset: 0 };
}

/// Choices of a log. Sizes may differ from one start to the next: files keep the size they have.
#[derive(Clone, Copy, Debug)]
pub struct WalOptions {
    /// Size of new files, a multiple of 4096 between [`FILE_BYTES_MIN`] and [`FILE_BYTES_MAX`].
    /// Small files recycle sooner.
    pub file_bytes: u32,
    /// Spare files that [`SparePreparer`](super::SparePreparer) keeps ready.
    pub spares_target: usize,
    /// Released files kept for reuse; the rest is deleted.
    pub spares_max: usize,
    /// A number never used before with this folder: random in the server, from the seed in the
    /// simulator. Salts come from it.
    pub nonce: u64,
}

impl WalOptions {
    /// 64 MiB a file, one spare made ahead, four kept.
    pub fn new(nonce: u64) -> WalOptions {
        WalOptions { file_bytes: 64 << 20, spares_target: 1, spares_max: 4, nonce }
    }

    pub(super) fn check(&self) {
        assert!(
            (FILE_BYTES_MIN..=FILE_BYTES_MAX).contains(&self.file_bytes) && self.file_bytes.is_multiple_of(PAGE_BYTES),
            "file_bytes is a multiple of {PAGE_BYTES} between {FILE_BYTES_MIN} and {FILE_BYTES_MAX}"
        );
        assert!(self.spares_target <= self.spares_max, "spares_target is at most spares_max");
    }

    pub(super) fn body_bytes_max(&self) -> u32 {
        (self.file_bytes - FIRST_FRAME_OFFSET - FRAME_HEADER_BYTES - RECORD_HEADER_BYTES).min(RECORD_BODY_BYTES_MAX)
    }
}

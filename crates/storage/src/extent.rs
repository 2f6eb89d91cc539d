//! Extents: immutable files that take the messages which outlive the log, by queue and sequence.
//!
//! Invariant: an extent is complete and durable, its name included, before [`ExtentWriter::finish`]
//! returns, and is never changed after. Whoever refers to an extent does so after that. A file
//! without a good footer was never referred to.
//!
//! ```text
//!    0 ┌──────────────────────┐ header   0 magic [8] "LVRTEXT\0"   16 extent id u64   40 zeroes to 64
//!   64 ├──────────────────────┤          8 crc   u32 over 12..64   24 folder id u128
//!      │ bodies of run 0      │         12 version u32
//!      │ index of run 0       │ index    16 bytes a message: offset u32, size u32, seq - first seq u32, crc u32
//!      │ bodies of run 1      │ run     64 bytes: queue u64, first seq u64, last seq u64, count u32, bodies offset u32,
//!      │ index of run 1       │         bodies bytes u32, index offset u32, index crc u32, zeroes to 64
//!      │ ...                  │ footer   0 magic [8] "LVRTEND\0"  16 extent id u64       32 table crc    u32
//!      ├──────────────────────┤          8 crc   u32 over 12..64  24 table offset u32    36 contents crc u32, all before the footer
//!      │ run table            │         12 version u32            28 run count u32       40 zeroes to 64
//!      │ footer, 64 B         │
//!      └──────────────────────┘
//! ```
//!
//! A message's crc covers its queue, its sequence, its size and its body, so an index entry that
//! points to the wrong bytes, or bytes under the wrong number, do not pass.

mod reader;
mod salvage;
mod writer;

use crate::crc32c;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at, syncing};
use crate::fields::{Fields, FieldsMut};
use std::io;

pub use reader::{Extent, ExtentMessage, READ_COUNT_MAX};
pub use salvage::{Salvaged, SalvagedExtent};
pub use writer::{ExtentSummary, ExtentWriter};

/// Folder of the extents.
pub const EXTENT_FOLDER: &str = "extents";
/// Largest extent: offsets fit into 32 bits, and merging or sending one stays a matter of a second.
pub const EXTENT_BYTES_MAX: u32 = 256 << 20;
/// Size at which a writer should be finished, by choice of the caller; between 4 and 64 MiB.
pub const EXTENT_BYTES_TARGET: u32 = 64 << 20;
/// Runs of one extent. The run table is read as a whole when an extent is opened: 4 MiB at most.
pub const RUN_COUNT_MAX: usize = 65_536;
/// Version of everything in this file. Readers refuse others.
pub const EXTENT_FORMAT_VERSION: u32 = 1;

pub(crate) const HEADER_BYTES: u32 = 64;
pub(crate) const FOOTER_BYTES: u32 = 64;
pub(crate) const RUN_BYTES: u32 = 64;
pub(crate) const INDEX_ENTRY_BYTES: u32 = 16;

const HEADER_MAGIC: [u8; 8] = *b"LVRTEXT\0";
const FOOTER_MAGIC: [u8; 8] = *b"LVRTEND\0";

/// Number of an extent of this folder, never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u64);

/// Messages of one queue in one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whose they are.
    pub queue: u64,
    /// Sequence of the first.
    pub first_seq: u64,
    /// Sequence of the last. There are holes if this is more than `first_seq + count - 1`.
    pub last_seq: u64,
    /// How many.
    pub count: u32,
    /// Where the bodies start; they lie one after the other.
    pub bodies_offset: u32,
    /// Length of all bodies.
    pub bodies_bytes: u32,
    /// Where the index starts.
    pub index_offset: u32,
    /// Checksum of the index.
    pub index_crc: u32,
}

impl Run {
    /// What it takes in the file: bodies, index, its line of the table. An extent has at most 256 MiB.
    pub fn bytes(&self) -> u32 {
        self.bodies_bytes + self.count * INDEX_ENTRY_BYTES + RUN_BYTES
    }
}

/// The file name of an extent inside the data folder.
pub fn extent_name(id: ExtentId) -> String {
    format!("{EXTENT_FOLDER}/{:016x}.extent", id.0)
}

/// The extent in a file name without the folder.
pub(crate) fn extent_of(name: &str) -> Option<ExtentId> {
    let digits = name.strip_suffix(".extent").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(ExtentId)
}

/// All extents of the folder, finished or not, in order. Those that no checkpoint knows are left
/// over from a crash and may be removed.
pub fn list_extents<D: Disk>(disk: &D) -> Result<Vec<ExtentId>, StorageError> {
    let names = disk.list(EXTENT_FOLDER).map_err(at("list", EXTENT_FOLDER))?;
    let mut ids: Vec<ExtentId> = names.iter().filter_map(|name| extent_of(name)).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Removes an extent that nobody refers to. Handles that are open stay readable; after a power cut
/// it may be there again.
pub fn remove_extent<D: Disk>(disk: &D, id: ExtentId) -> Result<(), StorageError> {
    let name = extent_name(id);
    disk.remove(&name).map_err(at("remove", &name))
}

/// Makes removals durable. Without it a removed extent may be back after a power cut, unreferred
/// to.
pub fn sync_extent_removals<D: Disk>(disk: &D) -> Result<(), StorageError> {
    disk.sync_folder(EXTENT_FOLDER).map_err(syncing(EXTENT_FOLDER))
}

/// One line of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) seq_delta: u32,
    pub(crate) crc: u32,
}

impl IndexEntry {
    fn encode(&self) -> [u8; INDEX_ENTRY_BYTES as usize] {
        let mut bytes = [0; INDEX_ENTRY_BYTES as usize];
        for (field, value) in bytes.chunks_exact_mut(4).zip([self.offset, self.bytes, self.seq_delta, self.crc]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> IndexEntry {
        let mut fields = Fields::new(bytes);
        IndexEntry { offset: fields.u32(), bytes: fields.u32(), seq_delta: fields.u32(), crc: fields.u32() }
    }
}

/// Checksum of one message.
pub(crate) fn message_crc(queue: u64, seq: u64, body: &[u8]) -> u32 {
    let mut name = [0; 20];
    name[..8].copy_from_slice(&queue.to_le_bytes());
    name[8..16].copy_from_slice(&seq.to_le_bytes());
    name[16..].copy_from_slice(&(body.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&name), body)
}

pub(crate) fn encode_header(id: ExtentId, folder_id: u128) -> [u8; HEADER_BYTES as usize] {
    FieldsMut::<{ HEADER_BYTES as usize }>::new()
        .put(&HEADER_MAGIC)
        .u32(0)
        .u32(EXTENT_FORMAT_VERSION)
        .u64(id.0)
        .u128(folder_id)
        .put(&[0; 24])
        .seal(8)
}

/// Tells an extent of another data folder, whose messages have the same queues and numbers as this one's may have. A file
/// that is not there, or whose header is damaged, is not told: what is in it is looked at by its checksums.
///
/// - Cost: one read of 64 bytes.
/// - Errors: it is another folder's, or another extent of this one, which is damage; the system's.
pub fn check_folder<D: Disk>(disk: &D, id: ExtentId, folder_id: u128) -> Result<(), StorageError> {
    let name = extent_name(id);
    let file = match disk.open(&name, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("open", &name)(error)),
    };
    let mut header = [0; HEADER_BYTES as usize];
    let read = file.read_at(&mut header, 0).map_err(at("read", &name))?;
    let mut fields = Fields::new(&header);
    let is_whole =
        read == header.len() && fields.bytes() == HEADER_MAGIC && fields.u32() == crc32c::crc32c(&header[12..]);
    if !is_whole || fields.u32() != EXTENT_FORMAT_VERSION {
        return Ok(());
    }
    let other = |offset, what, expected, found| {
        Err(StorageError::Corrupt { file: name.clone(), offset, what, expected, found })
    };
    match (fields.u64(), fields.u128()) {
        (found, _) if found != id.0 => other(16, "number of the extent", id.0, found),
        (_, found) if found != folder_id => other(24, "id of the data folder", folder_id as u64, found as u64),
        _ => Ok(()),
    }
}

impl Run {
    fn encode(&self) -> [u8; RUN_BYTES as usize] {
        let mut bytes = [0; RUN_BYTES as usize];
        for (field, value) in bytes.chunks_exact_mut(8).zip([self.queue, self.first_seq, self.last_seq]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let rest = [self.count, self.bodies_offset, self.bodies_bytes, self.index_offset, self.index_crc];
        for (field, value) in bytes[24..].chunks_exact_mut(4).zip(rest) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Run {
        let mut fields = Fields::new(bytes);
        Run {
            queue: fields.u64(),
            first_seq: fields.u64(),
            last_seq: fields.u64(),
            count: fields.u32(),
            bodies_offset: fields.u32(),
            bodies_bytes: fields.u32(),
            index_offset: fields.u32(),
            index_crc: fields.u32(),
        }
    }

    /// Whether the numbers can be true in a file whose run table starts at `table_offset`. The
    /// checksum makes it so; a reader must not run on it.
    fn is_sound(&self, table_offset: u32) -> bool {
        let bodies_end = u64::from(self.bodies_offset) + u64::from(self.bodies_bytes);
        let index_end = u64::from(self.index_offset) + u64::from(self.count) * u64::from(INDEX_ENTRY_BYTES);
        self.count > 0
            && self.bodies_offset >= HEADER_BYTES
            && bodies_end <= u64::from(self.index_offset)
            && index_end <= u64::from(table_offset)
            && self.last_seq >= self.first_seq
            && self.last_seq - self.first_seq >= u64::from(self.count) - 1
            && u32::try_from(self.last_seq - self.first_seq).is_ok()
    }
}

/// Last bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) id: ExtentId,
    pub(crate) table_offset: u32,
    pub(crate) run_count: u32,
    pub(crate) table_crc: u32,
    pub(crate) contents_crc: u32,
}

impl Footer {
    fn encode(&self) -> [u8; FOOTER_BYTES as usize] {
        FieldsMut::<{ FOOTER_BYTES as usize }>::new()
            .put(&FOOTER_MAGIC)
            .u32(0)
            .u32(EXTENT_FORMAT_VERSION)
            .u64(self.id.0)
            .u32(self.table_offset)
            .u32(self.run_count)
            .u32(self.table_crc)
            .u32(self.contents_crc)
            .put(&[0; 24])
            .seal(8)
    }

    /// The footer, or the stored and computed checksums.
    fn decode(bytes: &[u8; FOOTER_BYTES as usize], file: &str, offset: u64) -> Result<Footer, StorageError> {
        let mut fields = Fields::new(bytes);
        let (magic, stored, computed) = (fields.bytes::<8>(), fields.u32(), crc32c::crc32c(&bytes[12..]));
        if magic != FOOTER_MAGIC || stored != computed {
            let (expected, found) = (u64::from(stored), u64::from(computed));
            let what = "checksum of the footer";
            return Err(StorageError::Corrupt { file: file.to_owned(), offset, what, expected, found });
        }
        let version = fields.u32();
        if version != EXTENT_FORMAT_VERSION {
            return Err(StorageError::OtherVersion {
                file: file.to_owned(),
                found: version,
                supported: EXTENT_FORMAT_VERSION,
            });
        }
        Ok(Footer {
            id: ExtentId(fields.u64()),
            table_offset: fields.u32(),
            run_count: fields.u32(),
            table_crc: fields.u32(),
            contents_crc: fields.u32(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two messages of 10 bytes behind the header, their index, and behind it the table.
    const TRUE: Run = Run {
        queue: 1,
        first_seq: 5,
        last_seq: 6,
        count: 2,
        bodies_offset: HEADER_BYTES,
        bodies_bytes: 10,
        index_offset: HEADER_BYTES + 10,
        index_crc: 0,
    };
    const TABLE: u32 = HEADER_BYTES + 10 + 2 * INDEX_ENTRY_BYTES;

    #[test]
    fn a_row_is_believed_only_where_all_its_numbers_can_be_true() {
        assert!(TRUE.is_sound(TABLE) && TRUE.is_sound(TABLE + 1));
        assert!(Run { last_seq: 5 + u64::from(u32::MAX), ..TRUE }.is_sound(TABLE), "with holes");
        let untrue = [
            ("no messages", Run { count: 0, ..TRUE }),
            ("more messages than numbers", Run { last_seq: 5, ..TRUE }),
            ("numbers that fall", Run { last_seq: 4, ..TRUE }),
            ("numbers that no index can hold", Run { last_seq: 5 + (1 << 32), ..TRUE }),
            ("bodies in the header", Run { bodies_offset: HEADER_BYTES - 1, bodies_bytes: 11, ..TRUE }),
            ("bodies in the index", Run { bodies_bytes: 11, ..TRUE }),
            ("an index in the table", Run { index_offset: TRUE.index_offset + 1, ..TRUE }),
        ];
        for (what, run) in untrue {
            assert!(!run.is_sound(TABLE), "{what}");
        }
    }
}

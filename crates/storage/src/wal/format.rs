//! The bytes of a log file. All numbers are little-endian, all checksums CRC-32C.
//!
//! ```text
//! file    0 ┌────────────────────┐      frame  0 magic        u32   "LFRM"     record  0 header crc  u32  over 4..40
//!           │ header, 512 B      │             4 header crc   u32   over 8..48         4 body crc    u32  over the body
//!       512 │ zeroes             │             8 salt         u64   this file's        8 kind        u8   1..5
//!      2048 │ header again       │            16 frame no     u64   1, 2, 3 ...         9 flags       u8   0
//!      2560 │ zeroes             │            24 bytes        u32   header + records  10 reserved    u16  0
//!      4096 ├────────────────────┤            28 records      u32                     12 group       u32
//!           │ frame  frame       │            32 previous crc u32   chain, see below  16 body bytes  u32
//!           │ frame              │            36 synced bytes u32   of this file      20 reserved    u32  0
//!           │ ...                │            40 session      u32                     24 term        u64
//!           └────────────────────┘            44 reserved     u32   0                  32 index       u64
//!                                             48 records                               40 body
//! ```
//!
//! Invariant: a frame starts at a multiple of [`FRAME_ALIGN_BYTES`], directly after its predecessor
//! or, if a sync came between, at the next multiple of [`PAGE_BYTES`]. So no page that a sync
//! covered is ever written with other bytes.
//!
//! - **salt** is drawn when a file begins and stored in its header. Frames of the file's former
//!   life have another one.
//! - **previous crc** is the header crc of the frame before, the file header's for the first: a
//!   frame that was never part of this history cannot slip in.
//! - **synced bytes**: when this frame was written, the file was durable up to there. It tells rot
//!   from a torn tail.
//! - **session** is drawn at each recovery, so a frame that a recovery cut off can never be taken
//!   for the successor of a later one, even when the later one repeats what was cut off byte for
//!   byte.

use crate::crc32c;
use crate::fields::{Fields, FieldsMut};

use super::{FileNo, GroupId, RecordKind, RecordRef};

/// Version of everything in this file. Readers refuse others.
pub const FORMAT_VERSION: u32 = 1;
/// The unit of the page cache and of every disk worth using.
pub const PAGE_BYTES: u32 = 4096;
/// Where the first frame of a file starts.
pub const FIRST_FRAME_OFFSET: u32 = PAGE_BYTES;
/// Frames start at multiples of this, so that a search for them after damage needs fewer looks.
pub const FRAME_ALIGN_BYTES: u32 = 16;
/// Length of a frame header.
pub const FRAME_HEADER_BYTES: u32 = 48;
/// Length of a record header.
pub const RECORD_HEADER_BYTES: u32 = 40;

/// Length of one copy of the file header; one sector, so that no power cut splits it on any disk in
/// use.
pub(super) const FILE_HEADER_BYTES: usize = 512;
/// Place of the second copy: far enough that one bad sector or one torn page run does not take
/// both.
pub(super) const FILE_HEADER_COPY_OFFSET: usize = 2048;

const FILE_MAGIC: [u8; 8] = *b"LVRTWAL\0";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"LFRM");

const _: () = assert!(PAGE_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));
const _: () = assert!(FILE_HEADER_COPY_OFFSET + FILE_HEADER_BYTES <= FIRST_FRAME_OFFSET as usize);

/// First block of a file, twice.
///
/// ```text
///   0 magic       [8]  "LVRTWAL\0"        40 previous file no     u64  0: none before
///   8 header crc  u32  over 12..512       48 previous end offset  u32  end of its last frame, all of it synced
///  12 version     u32                     52 previous end crc     u32  header crc of that frame
///  16 file no     u64  1, 2, 3 ...        56 first frame no       u64  number of the first frame
///  24 folder id   u128                    64 salt                 u64  all frames of this life of the file carry it
///                                         72 zeroes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Number of the file, never used twice in a folder. 0 marks a prepared spare.
    pub file: FileNo,
    /// Folder that the file belongs to; a file copied in from another is refused.
    pub folder_id: u128,
    /// The file before, which was synced as a whole before this one was begun; 0 for the first.
    pub previous_file: FileNo,
    /// End of the last frame of the file before.
    pub previous_end: u32,
    /// Header crc of the last frame of the file before.
    pub previous_end_crc: u32,
    /// Number that the first frame of this file has.
    pub first_frame_no: u64,
    /// What all frames of this file carry.
    pub salt: u64,
}

impl FileHeader {
    /// The two copies in their page.
    pub(crate) fn encode(&self) -> [u8; PAGE_BYTES as usize] {
        let copy: [u8; FILE_HEADER_BYTES] = FieldsMut::<FILE_HEADER_BYTES>::new()
            .put(&FILE_MAGIC)
            .u32(0)
            .u32(FORMAT_VERSION)
            .u64(self.file.0)
            .u128(self.folder_id)
            .u64(self.previous_file.0)
            .u32(self.previous_end)
            .u32(self.previous_end_crc)
            .u64(self.first_frame_no)
            .u64(self.salt)
            .put(&[0; FILE_HEADER_BYTES - 72])
            .seal(8);
        let mut page = [0; PAGE_BYTES as usize];
        page[..FILE_HEADER_BYTES].copy_from_slice(&copy);
        page[FILE_HEADER_COPY_OFFSET..FILE_HEADER_COPY_OFFSET + FILE_HEADER_BYTES].copy_from_slice(&copy);
        page
    }

    /// The checksum that the first frame's chain starts from.
    pub(crate) fn crc(&self) -> u32 {
        let page = self.encode();
        Fields::new(&page[8..]).u32()
    }

    /// Takes the newer of the valid copies: after a torn reuse of a file one may still be the old
    /// one. `Err` with the version when a copy is valid but of another version, `Ok(None)` when no
    /// copy is valid.
    pub(crate) fn decode(page: &[u8]) -> Result<Option<FileHeader>, u32> {
        let copies = [0, FILE_HEADER_COPY_OFFSET].map(|at| match page.get(at..at + FILE_HEADER_BYTES) {
            Some(copy) => FileHeader::decode_copy(copy),
            None => Ok(None),
        });
        let [first, second] = copies;
        Ok(first?.into_iter().chain(second?).max_by_key(|header| header.file))
    }

    fn decode_copy(copy: &[u8]) -> Result<Option<FileHeader>, u32> {
        let mut fields = Fields::new(copy);
        if fields.bytes() != FILE_MAGIC || fields.u32() != crc32c::crc32c(&copy[12..]) {
            return Ok(None);
        }
        let version = fields.u32();
        if version != FORMAT_VERSION {
            return Err(version);
        }
        Ok(Some(FileHeader {
            file: FileNo(fields.u64()),
            folder_id: fields.u128(),
            previous_file: FileNo(fields.u64()),
            previous_end: fields.u32(),
            previous_end_crc: fields.u32(),
            first_frame_no: fields.u64(),
            salt: fields.u64(),
        }))
    }
}

/// The salt of a file's frames, from what the caller drew for this recovery. A client cannot guess
/// it, so no message body can pass for a frame; and it differs from the salt of a file of the same
/// number that a power cut made unhappen.
pub(super) fn salt(nonce: u64, folder_id: u128, file: FileNo) -> u64 {
    let mut mixed = nonce ^ (folder_id as u64) ^ ((folder_id >> 64) as u64).rotate_left(32) ^ file.0.rotate_left(17);
    for multiplier in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        mixed ^= mixed >> 33;
        mixed = mixed.wrapping_mul(multiplier);
    }
    mixed ^ (mixed >> 33)
}

/// Start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The file's salt.
    pub salt: u64,
    /// Contiguous over all files.
    pub frame_no: u64,
    /// Header and records, without what follows up to the next frame.
    pub bytes: u32,
    /// Records in it, at least one.
    pub record_count: u32,
    /// Header crc of the frame (or file header) before.
    pub previous_crc: u32,
    /// How much of the file was durable when this was written.
    pub synced_bytes: u32,
    /// Drawn by the recovery that opened the log for this writer.
    pub session: u32,
    /// This header's own checksum, as stored.
    pub crc: u32,
}

impl FrameHeader {
    /// First four bytes of every frame.
    pub(crate) fn magic() -> [u8; 4] {
        FRAME_MAGIC.to_le_bytes()
    }

    /// Encodes the header; `crc` is computed and ignored on the way in.
    pub(super) fn encode(&self) -> [u8; FRAME_HEADER_BYTES as usize] {
        FieldsMut::new()
            .u32(FRAME_MAGIC)
            .u32(0)
            .u64(self.salt)
            .u64(self.frame_no)
            .u32(self.bytes)
            .u32(self.record_count)
            .u32(self.previous_crc)
            .u32(self.synced_bytes)
            .u32(self.session)
            .u32(0)
            .seal(4)
    }

    /// Whether a frame at `offset` can say that so much was synced before it. A frame behind a sync
    /// begins on a page of its own, so nobody wrote one in a page that it calls durable; whoever
    /// believed it would lose it when that page's tail is cleaned.
    pub(super) fn is_credible_at(&self, offset: u32) -> bool {
        u64::from(self.synced_bytes).next_multiple_of(u64::from(PAGE_BYTES)) <= u64::from(offset)
    }

    /// The header at the start of `bytes`, if it is one with this salt and its checksum holds.
    pub(super) fn decode(bytes: &[u8], salt: u64) -> Option<FrameHeader> {
        FrameHeader::decode_any(bytes).filter(|header| header.salt == salt)
    }

    /// The same whatever the salt, for files whose own header is lost.
    pub(super) fn decode_any(bytes: &[u8]) -> Option<FrameHeader> {
        let bytes = bytes.first_chunk::<{ FRAME_HEADER_BYTES as usize }>()?;
        let mut fields = Fields::new(bytes);
        if fields.u32() != FRAME_MAGIC {
            return None;
        }
        let crc = fields.u32();
        if crc32c::crc32c(&bytes[8..]) != crc {
            return None;
        }
        let header = FrameHeader {
            salt: fields.u64(),
            frame_no: fields.u64(),
            bytes: fields.u32(),
            record_count: fields.u32(),
            previous_crc: fields.u32(),
            synced_bytes: fields.u32(),
            session: fields.u32(),
            crc,
        };
        // The checksum held, so these are true unless our own writer broke them; a reader still
        // must not run on what they say.
        let records_bytes_min = u64::from(header.record_count) * u64::from(RECORD_HEADER_BYTES);
        let sound =
            header.record_count > 0 && u64::from(header.bytes) >= u64::from(FRAME_HEADER_BYTES) + records_bytes_min;
        sound.then_some(header)
    }
}

/// Start of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Checksum of the body.
    pub body_crc: u32,
    /// What it is.
    pub kind: RecordKind,
    /// Whose it is.
    pub group: GroupId,
    /// Length of the body.
    pub body_bytes: u32,
    /// Raft term.
    pub term: u64,
    /// Raft log index.
    pub index: u64,
}

impl RecordHeader {
    pub(super) fn encode(&self) -> [u8; RECORD_HEADER_BYTES as usize] {
        FieldsMut::new()
            .u32(0)
            .u32(self.body_crc)
            .u8(self.kind as u8)
            .u8(0)
            .u16(0)
            .u32(self.group.0)
            .u32(self.body_bytes)
            .u32(0)
            .u64(self.term)
            .u64(self.index)
            .seal(0)
    }

    /// The header at the start of `bytes`, or the stored and the computed checksum of what is
    /// there.
    pub(super) fn decode(bytes: &[u8; RECORD_HEADER_BYTES as usize]) -> Result<RecordHeader, (u32, u32)> {
        let mut fields = Fields::new(bytes);
        let (stored, computed) = (fields.u32(), crc32c::crc32c(&bytes[4..]));
        if stored != computed {
            return Err((stored, computed));
        }
        let body_crc = fields.u32();
        // A kind, flag or filling that this version does not know cannot be obeyed, so it must not
        // be passed over either.
        let kind = RecordKind::from_byte(fields.u8()).ok_or((stored, computed))?;
        let unknown = u32::from(fields.u8()) | u32::from(fields.u16());
        let (group, body_bytes) = (GroupId(fields.u32()), fields.u32());
        if unknown | fields.u32() != 0 {
            return Err((stored, computed));
        }
        Ok(RecordHeader { body_crc, kind, group, body_bytes, term: fields.u64(), index: fields.u64() })
    }

    pub(super) fn of<'a>(&self, body: &'a [u8]) -> RecordRef<'a> {
        RecordRef { group: self.group, kind: self.kind, term: self.term, index: self.index, body }
    }
}

/// Bytes that a record takes in its frame.
pub(super) fn record_bytes(body_bytes: usize) -> u64 {
    body_bytes as u64 + u64::from(RECORD_HEADER_BYTES)
}

/// The two places where the frame after one that ends at `end` may start: directly, or on the next
/// page after a sync.
pub(super) fn next_frame_offsets(end: u32) -> [u32; 2] {
    [end.next_multiple_of(FRAME_ALIGN_BYTES), end.next_multiple_of(PAGE_BYTES)]
}

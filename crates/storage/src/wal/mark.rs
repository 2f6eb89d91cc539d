//! A note beside the log of how far it is durable, written seldom and never synced.
//!
//! ```text
//! wal/durable, two sectors of 512 bytes written in turn
//!   0 magic  [8]  "LVRTMRK\0"     16 folder id  u128     40 file no  u64
//!   8 crc    u32  over 12..512    32 turn       u64      48 offset   u32
//!  12 version u32                                        52 zeroes
//! ```
//!
//! Invariant: it never says more than was synced, because it is written after the sync. It may say
//! less, or nothing.

use crate::crc32c;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, OpenMode, is_no_file, set_aside};
use crate::error::{StorageError, at};
use crate::fields::{Fields, FieldsMut};

use super::format::FORMAT_VERSION;
use super::{FileNo, WalPosition};

/// Name of the file.
pub(crate) const MARK_NAME: &str = "wal/durable";
const MAGIC: [u8; 8] = *b"LVRTMRK\0";
const SECTOR_BYTES: usize = 512;

/// The writer's side.
#[derive(Debug)]
pub(super) struct Mark<D: Disk> {
    disk: Arc<D>,
    folder_id: u128,
    file: Option<D::File>,
    turn: u64,
    noted: WalPosition,
}

impl<D: Disk> Mark<D> {
    /// Reads the newer sector that is whole. `noted` is `WalPosition::START` without one.
    pub(super) fn load(disk: &Arc<D>, folder_id: u128) -> Result<Mark<D>, StorageError> {
        let mut mark = Mark { disk: disk.clone(), folder_id, file: None, turn: 0, noted: WalPosition::START };
        for (found_id, turn, position) in read(&**disk)? {
            if found_id == folder_id && turn >= mark.turn {
                (mark.turn, mark.noted) = (turn, position);
            }
        }
        Ok(mark)
    }

    pub(super) fn noted(&self) -> WalPosition {
        self.noted
    }

    pub(super) fn note(&mut self, position: WalPosition) -> Result<bool, StorageError> {
        if position == self.noted {
            return Ok(false);
        }
        let file = match &mut self.file {
            Some(file) => file,
            missing => missing.insert(open(&*self.disk).map_err(at("open", MARK_NAME))?),
        };
        self.turn += 1;
        let sector = encode(self.folder_id, self.turn, position);
        let offset = self.turn % 2 * SECTOR_BYTES as u64;
        file.write_at(&sector, offset).map_err(at("write", MARK_NAME))?;
        self.noted = position;
        Ok(true)
    }
}

/// Opens the file, in place of whatever else is there.
fn open<D: Disk>(disk: &D) -> std::io::Result<D::File> {
    match disk.open(MARK_NAME, OpenMode::CreateOrOpen) {
        Err(error) if is_no_file(&error) => {
            set_aside(disk, MARK_NAME)?;
            disk.open(MARK_NAME, OpenMode::CreateOrOpen)
        }
        opened => opened,
    }
}

/// Folder id, turn and position of each sector that is whole.
pub(super) fn read<D: Disk>(disk: &D) -> Result<Vec<(u128, u64, WalPosition)>, StorageError> {
    let file = match disk.open(MARK_NAME, OpenMode::Read) {
        Ok(file) => file,
        // It need not be there: a log without a note is looked through.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound || is_no_file(&error) => return Ok(Vec::new()),
        Err(error) => return Err(at("open", MARK_NAME)(error)),
    };
    let mut sectors = [0; 2 * SECTOR_BYTES];
    let read = file.read_at(&mut sectors, 0).map_err(at("read", MARK_NAME))?;
    Ok(sectors[..read].chunks_exact(SECTOR_BYTES).filter_map(decode).collect())
}

fn encode(folder_id: u128, turn: u64, position: WalPosition) -> [u8; SECTOR_BYTES] {
    FieldsMut::<SECTOR_BYTES>::new()
        .put(&MAGIC)
        .u32(0)
        .u32(FORMAT_VERSION)
        .u128(folder_id)
        .u64(turn)
        .u64(position.file.0)
        .u32(position.offset)
        .put(&[0; SECTOR_BYTES - 52])
        .seal(8)
}

/// Folder id, turn and position of a whole sector of this version.
fn decode(sector: &[u8]) -> Option<(u128, u64, WalPosition)> {
    if sector.len() != SECTOR_BYTES {
        return None;
    }
    let mut fields = Fields::new(sector);
    if fields.bytes() != MAGIC || fields.u32() != crc32c::crc32c(&sector[12..]) || fields.u32() != FORMAT_VERSION {
        return None;
    }
    let (folder_id, turn, file) = (fields.u128(), fields.u64(), FileNo(fields.u64()));
    Some((folder_id, turn, WalPosition { file, offset: fields.u32() }))
}

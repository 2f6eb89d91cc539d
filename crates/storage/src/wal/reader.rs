//! Reading bodies back from the log, from any thread, while the writer goes on.
//!
//! Invariant: bytes are handed out only if their file still had its number after the read. A
//! released file loses its number before it is written again, so a reader that comes too late gets
//! an error and never another record's bytes.

use crate::crc32c;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use crate::disk::{Advice, Disk, DiskFile};
use crate::error::{StorageError, at};

use super::format::{RECORD_HEADER_BYTES, RecordHeader};
use super::{FileNo, LiveFiles, Location, Record, Slot};

/// Reads from the files of a log that are not released. Cheap to clone.
#[derive(Debug)]
pub struct WalReader<D: Disk> {
    live: LiveFiles<D::File>,
}

impl<D: Disk> Clone for WalReader<D> {
    fn clone(&self) -> Self {
        WalReader { live: self.live.clone() }
    }
}

impl<D: Disk> WalReader<D> {
    pub(super) fn new(live: LiveFiles<D::File>) -> WalReader<D> {
        WalReader { live }
    }

    /// The bytes at a location, or at a part of one, with one read and one allocation.
    ///
    /// They are not checked here: a part has no checksum of its own in the log, the caller's own is
    /// inside the bytes. [`StorageError::Missing`] when the file was released.
    pub fn read(&self, location: Location) -> Result<Bytes, StorageError> {
        self.read_exactly(location.file, location.offset, location.bytes).map(Bytes::from)
    }

    /// As [`WalReader::read`], from the disk itself: what memory holds of the file counts for
    /// nothing.
    pub fn read_past_cache(&self, location: Location) -> Result<Bytes, StorageError> {
        let (from, bytes) = (u64::from(location.offset), u64::from(location.bytes));
        self.live(location.file)?.file.advise(from, bytes, Advice::DontNeed);
        self.read(location)
    }

    /// The whole record whose body is at `location`, checked against its checksums.
    pub fn read_record(&self, location: Location) -> Result<Record, StorageError> {
        let header_offset = location.offset.checked_sub(RECORD_HEADER_BYTES);
        let header_offset = header_offset.expect("a body lies behind its header");
        let bytes = self.read_exactly(location.file, header_offset, RECORD_HEADER_BYTES + location.bytes)?;
        let (head, _) = bytes.split_first_chunk().expect("the header was read");
        let damaged = |what, expected, found| StorageError::Corrupt {
            file: self.name(location.file),
            offset: u64::from(header_offset),
            what,
            expected,
            found,
        };
        let header = RecordHeader::decode(head).map_err(|(stored, computed)| {
            damaged("checksum of a record header", u64::from(stored), u64::from(computed))
        })?;
        if header.body_bytes != location.bytes {
            return Err(damaged("length of a record", u64::from(location.bytes), u64::from(header.body_bytes)));
        }
        let body = Bytes::from(bytes).slice(RECORD_HEADER_BYTES as usize..);
        let computed = crc32c::crc32c(&body);
        if computed != header.body_crc {
            return Err(damaged("checksum of a record body", u64::from(header.body_crc), u64::from(computed)));
        }
        let RecordHeader { group, kind, term, index, .. } = header;
        Ok(Record { group, kind, term, index, body, body_crc: None })
    }

    /// As [`WalReader::read_record`], from the disk itself: what memory holds of the file counts
    /// for nothing.
    pub fn read_record_past_cache(&self, location: Location) -> Result<Record, StorageError> {
        let from = location.offset.saturating_sub(RECORD_HEADER_BYTES);
        let bytes = location.offset - from + location.bytes;
        self.live(location.file)?.file.advise(u64::from(from), u64::from(bytes), Advice::DontNeed);
        self.read_record(location)
    }

    /// The body at `location` whatever became of it, and the checksum that its record's header
    /// holds: for a repair that looks for what is still right in it.
    pub fn read_damaged(&self, location: Location) -> Result<(Bytes, u32), StorageError> {
        let header_offset = location.offset.checked_sub(RECORD_HEADER_BYTES).expect("a body lies behind its header");
        let bytes = self.read_exactly(location.file, header_offset, RECORD_HEADER_BYTES + location.bytes)?;
        let (head, _) = bytes.split_first_chunk().expect("the header was read");
        let header = RecordHeader::decode(head).map_err(|(stored, computed)| StorageError::Corrupt {
            file: self.name(location.file),
            offset: u64::from(header_offset),
            what: "checksum of a record header",
            expected: u64::from(stored),
            found: u64::from(computed),
        })?;
        Ok((Bytes::from(bytes).slice(RECORD_HEADER_BYTES as usize..), header.body_crc))
    }

    fn read_exactly(&self, file: FileNo, offset: u32, bytes: u32) -> Result<Vec<u8>, StorageError> {
        let slot = self.live(file)?;
        let mut buffer = vec![0; bytes as usize];
        let read = slot.file.read_at(&mut buffer, u64::from(offset)).map_err(at("read", &slot.name))?;
        // The file may have been released and begun anew while we read.
        self.live(file)?;
        if read < buffer.len() {
            return Err(StorageError::Corrupt {
                file: slot.name.clone(),
                offset: u64::from(offset),
                what: "bytes that can be read",
                expected: u64::from(bytes),
                found: read as u64,
            });
        }
        Ok(buffer)
    }

    fn live(&self, file: FileNo) -> Result<Arc<Slot<D::File>>, StorageError> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.get(&file).cloned().ok_or_else(|| StorageError::Missing {
            file: format!("log file number {}", file.0),
            why: "the log has no such file",
        })
    }

    fn name(&self, file: FileNo) -> String {
        self.live(file).map_or_else(|_| format!("log file number {}", file.0), |slot| slot.name.clone())
    }
}

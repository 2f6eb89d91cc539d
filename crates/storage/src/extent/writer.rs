//! Writing an extent, front to back.
//!
//! Invariant: bytes go out in large writes past the page cache whatever the size of the messages,
//! as nobody reads them before all that is older is consumed; only the rest of the last page goes
//! through it. The index of the run at hand and the run table are kept in memory. An extent that is
//! not finished is removed when its writer is dropped, as far as the disk allows.

use crate::crc32c;
use std::sync::Arc;

use crate::disk::{DIRECT_ALIGN_BYTES, Disk, DiskFile, OpenMode, Pages};
use crate::error::{StorageError, at, syncing};

use super::{
    EXTENT_BYTES_MAX, EXTENT_FOLDER, ExtentId, FOOTER_BYTES, Footer, HEADER_BYTES, INDEX_ENTRY_BYTES, IndexEntry,
    RUN_BYTES, RUN_COUNT_MAX, Run, encode_header, extent_name, message_crc,
};

/// Bytes gathered before a write.
const BUFFER_BYTES: usize = 512 << 10;
/// Bytes written before a sync: the last sync must not have a whole extent to carry while the log
/// waits for the same disk.
const SYNC_EVERY_BYTES: u32 = 8 << 20;

/// A run ends at this many messages: its index is kept in memory until then, half a mebibyte at
/// most.
const RUN_MESSAGES_MAX: u32 = 32_768;

/// A finished extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentSummary {
    /// Which one.
    pub id: ExtentId,
    /// Length of the file.
    pub bytes: u32,
    /// Checksum of everything before the footer; what a copy sent elsewhere is compared by.
    pub contents_crc: u32,
    /// Its runs, in the order of writing.
    pub runs: Vec<Run>,
}

/// An extent being written.
#[derive(Debug)]
pub struct ExtentWriter<D: Disk> {
    disk: Arc<D>,
    id: ExtentId,
    name: String,
    file: D::File,
    buffer: Pages,
    /// Bytes in the buffer.
    held: usize,
    /// How many of them are in the checksum.
    summed: usize,
    /// Where the buffer goes.
    buffer_offset: u32,
    synced: u32,
    contents_crc: u32,
    index: Vec<u8>,
    open_run: Option<Run>,
    runs: Vec<Run>,
    finished: bool,
}

impl<D: Disk> ExtentWriter<D> {
    /// Begins an extent. `id` must be new: greater than all of [`super::list_extents`] and all that
    /// was ever referred to.
    pub fn create(disk: &Arc<D>, folder_id: u128, id: ExtentId) -> Result<ExtentWriter<D>, StorageError> {
        disk.create_folder(EXTENT_FOLDER).map_err(at("create", EXTENT_FOLDER))?;
        let name = extent_name(id);
        let file = disk.open(&name, OpenMode::CreateNew).map_err(at("create", &name))?;
        let mut writer = ExtentWriter {
            disk: disk.clone(),
            id,
            name,
            file,
            buffer: Pages::new(BUFFER_BYTES),
            held: 0,
            summed: 0,
            buffer_offset: 0,
            synced: 0,
            contents_crc: 0,
            index: Vec::new(),
            open_run: None,
            runs: Vec::new(),
            finished: false,
        };
        writer.write(&encode_header(id, folder_id))?;
        Ok(writer)
    }

    /// Length of the file if it were finished now.
    pub fn bytes(&self) -> u32 {
        let runs = self.runs.len() as u32 + u32::from(self.open_run.is_some());
        self.offset() + self.index.len() as u32 + runs * RUN_BYTES + FOOTER_BYTES
    }

    /// Whether a message of this size still fits, in the open run or in a new one.
    pub fn has_room(&self, body_bytes: usize) -> bool {
        let more = body_bytes as u64 + u64::from(INDEX_ENTRY_BYTES + RUN_BYTES);
        u64::from(self.bytes()) + more <= u64::from(EXTENT_BYTES_MAX) && self.runs.len() + 1 < RUN_COUNT_MAX
    }

    /// Adds a message. A queue other than the last one's begins a new run, and so does the end of
    /// what one run may hold.
    ///
    /// - Order: within a run sequences grow; they may leave holes of less than 2^32 in all.
    ///   Anything else is a caller's bug and panics, as is a message for which
    ///   [`ExtentWriter::has_room`] is false.
    /// - Errors: [`StorageError::Full`] and the system's; then drop the writer.
    pub fn push(&mut self, queue: u64, seq: u64, body: &[u8]) -> Result<(), StorageError> {
        assert!(self.has_room(body.len()), "an extent has at most {EXTENT_BYTES_MAX} bytes and {RUN_COUNT_MAX} runs");
        if self.open_run.as_ref().is_some_and(|run| run.queue != queue || run.count >= RUN_MESSAGES_MAX) {
            self.end_run()?;
        }
        let offset = self.offset();
        let run = self.open_run.get_or_insert(Run {
            queue,
            first_seq: seq,
            last_seq: seq,
            count: 0,
            bodies_offset: offset,
            bodies_bytes: 0,
            index_offset: 0,
            index_crc: 0,
        });
        assert!(run.count == 0 || seq > run.last_seq, "sequences of a run grow");
        let seq_delta = u32::try_from(seq - run.first_seq).expect("a run spans less than 2^32 sequences");
        run.last_seq = seq;
        run.count += 1;
        run.bodies_bytes += body.len() as u32;
        let crc = message_crc(queue, seq, body);
        self.index.extend_from_slice(&IndexEntry { offset, bytes: body.len() as u32, seq_delta, crc }.encode());
        self.write(body)
    }

    /// Ends the run at hand, so that the next message begins a new one even of the same queue.
    /// Without an open run nothing happens.
    pub fn end_run(&mut self) -> Result<(), StorageError> {
        let Some(mut run) = self.open_run.take() else { return Ok(()) };
        run.index_offset = self.offset();
        run.index_crc = crc32c::crc32c(&self.index);
        self.runs.push(run);
        let index = std::mem::take(&mut self.index);
        self.write(&index)?;
        self.index = index;
        self.index.clear();
        Ok(())
    }

    /// Writes run table and footer and makes file and name durable. Only then may anything refer to
    /// the extent.
    ///
    /// An extent without messages is a caller's bug and panics.
    pub fn finish(mut self) -> Result<ExtentSummary, StorageError> {
        self.end_run()?;
        assert!(!self.runs.is_empty(), "an extent holds at least one message");
        let table: Vec<u8> = self.runs.iter().flat_map(Run::encode).collect();
        let table_offset = self.offset();
        self.write(&table)?;
        self.sum();
        let contents_crc = self.contents_crc;
        let footer = Footer {
            id: self.id,
            table_offset,
            run_count: self.runs.len() as u32,
            table_crc: crc32c::crc32c(&table),
            contents_crc,
        };
        self.write(&footer.encode())?;
        self.write_rest()?;
        self.file.sync_data().map_err(syncing(&self.name))?;
        self.disk.sync_folder(EXTENT_FOLDER).map_err(syncing(EXTENT_FOLDER))?;
        self.finished = true;
        let runs = std::mem::take(&mut self.runs);
        Ok(ExtentSummary { id: self.id, bytes: self.buffer_offset, contents_crc, runs })
    }

    fn offset(&self) -> u32 {
        self.buffer_offset + self.held as u32
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        while !bytes.is_empty() {
            if self.held == BUFFER_BYTES {
                self.write_out()?;
            }
            let room = &mut self.buffer.memory()[self.held..];
            let now = room.len().min(bytes.len());
            room[..now].copy_from_slice(&bytes[..now]);
            self.held += now;
            bytes = &bytes[now..];
        }
        Ok(())
    }

    /// Brings the checksum up to what is held.
    fn sum(&mut self) {
        let more = &self.buffer.memory()[self.summed..self.held];
        self.contents_crc = crc32c::crc32c_append(self.contents_crc, more);
        self.summed = self.held;
    }

    /// Writes the full buffer.
    fn write_out(&mut self) -> Result<(), StorageError> {
        self.sum();
        let pages = &self.buffer.memory()[..self.held];
        self.file.write_pages_at(pages, u64::from(self.buffer_offset)).map_err(at("write", &self.name))?;
        self.passed(self.held);
        if self.buffer_offset - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync_data().map_err(syncing(&self.name))?;
            self.synced = self.buffer_offset;
        }
        Ok(())
    }

    /// Writes what is held at the end, whose last page is not whole.
    fn write_rest(&mut self) -> Result<(), StorageError> {
        let (pages, rest) = self.buffer.memory()[..self.held].split_at(self.held - self.held % DIRECT_ALIGN_BYTES);
        let offset = u64::from(self.buffer_offset);
        if !pages.is_empty() {
            self.file.write_pages_at(pages, offset).map_err(at("write", &self.name))?;
        }
        if !rest.is_empty() {
            self.file.write_at(rest, offset + pages.len() as u64).map_err(at("write", &self.name))?;
        }
        self.passed(self.held);
        Ok(())
    }

    fn passed(&mut self, bytes: usize) {
        self.buffer_offset += bytes as u32;
        (self.held, self.summed) = (0, 0);
        assert!(
            self.buffer_offset <= EXTENT_BYTES_MAX && self.buffer_offset >= HEADER_BYTES,
            "an extent keeps its limits"
        );
    }
}

impl<D: Disk> Drop for ExtentWriter<D> {
    fn drop(&mut self) {
        if !self.finished {
            // Best effort: what stays is found by `list_extents` and referred to by nobody.
            let _ = self.disk.remove(&self.name);
        }
    }
}

//! What can still be read of a damaged extent, message by message.
//!
//! Invariant: nothing is handed out that did not pass its own checksum, which covers its queue, its
//! number, its size and its body. So footer, run table and index are hints here, which say where to
//! look and may be wrong without harm: what they hide is missing, and what they invent does not
//! pass.

use bytes::Bytes;

use crate::disk::{Advice, DIRECT_ALIGN_BYTES, Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at};

use super::reader::ExtentMessage;
use super::{
    EXTENT_BYTES_MAX, ExtentId, FOOTER_BYTES, Footer, HEADER_BYTES, INDEX_ENTRY_BYTES, IndexEntry, RUN_BYTES,
    RUN_COUNT_MAX, Run, extent_name, message_crc,
};

/// Index entries read at once: a page, so that a page that cannot be read costs the messages that
/// it names and no others.
const ENTRIES_AT_ONCE: u32 = 256;

/// An extent of which some bytes are not what was written.
#[derive(Debug)]
pub struct SalvagedExtent<D: Disk> {
    name: String,
    file: D::File,
    bytes: u32,
    /// Where the run table starts and how many rows it has, as far as anybody can tell.
    table: Option<(u32, u32)>,
}

/// What a look at a damaged extent brought.
#[derive(Debug, Default)]
pub struct Salvaged {
    /// Messages that are intact, ascending.
    pub messages: Vec<ExtentMessage>,
    /// The first thing that was wrong.
    pub damage: Option<StorageError>,
}

impl Salvaged {
    fn note(&mut self, error: StorageError) {
        self.damage.get_or_insert(error);
    }
}

impl<D: Disk> SalvagedExtent<D> {
    /// Opens an extent however damaged it is, and lets go of what memory holds of it, so that reads
    /// come from the disk.
    ///
    /// Errors: the system's, [`StorageError::Missing`] if there is no such file.
    pub fn open(disk: &D, id: ExtentId) -> Result<SalvagedExtent<D>, StorageError> {
        SalvagedExtent::open_named(disk, extent_name(id), id)
    }

    /// The same of an extent that is kept under another name.
    pub fn open_named(disk: &D, name: String, id: ExtentId) -> Result<SalvagedExtent<D>, StorageError> {
        let file = disk.open(&name, OpenMode::Read).map_err(at("open", &name))?;
        let bytes = file.len().map_err(at("measure", &name))?.min(u64::from(EXTENT_BYTES_MAX)) as u32;
        file.advise(0, u64::from(bytes), Advice::DontNeed);
        let mut extent = SalvagedExtent { name, file, bytes, table: None };
        extent.table = extent.find_table(id);
        Ok(extent)
    }

    /// Whether it is as a writer leaves it before its end: without any row of a run table, and as long
    /// as whole pages are. A finished one that lost its end is as long by chance alone.
    pub fn looks_unfinished(&self) -> bool {
        self.table.is_none() && self.bytes < EXTENT_BYTES_MAX && self.bytes.is_multiple_of(DIRECT_ALIGN_BYTES as u32)
    }

    /// Where the footer says that the table is; without a footer, where a row says that its run is
    /// the file's first.
    fn find_table(&self, id: ExtentId) -> Option<(u32, u32)> {
        let footer_offset = self.bytes.checked_sub(FOOTER_BYTES)?;
        let mut footer = [0; FOOTER_BYTES as usize];
        if self.file.read_at(&mut footer, u64::from(footer_offset)).is_ok()
            && let Ok(footer) = Footer::decode(&footer, &self.name, u64::from(footer_offset))
            && footer.id == id
            && footer.table_offset < footer_offset
        {
            return Some((footer.table_offset, footer.run_count));
        }
        let mut offset = footer_offset;
        for _ in 0..RUN_COUNT_MAX {
            offset = offset.checked_sub(RUN_BYTES).filter(|offset| *offset >= HEADER_BYTES)?;
            let run = self.row(offset)?;
            if run.bodies_offset == HEADER_BYTES && run.is_sound(offset) {
                return Some((offset, (footer_offset - offset) / RUN_BYTES));
            }
        }
        None
    }

    fn row(&self, offset: u32) -> Option<Run> {
        let mut row = [0; RUN_BYTES as usize];
        let read = self.file.read_at(&mut row, u64::from(offset)).ok()?;
        (read == row.len()).then(|| Run::decode(&row))
    }

    /// How many runs it says that it has; none if nobody can tell.
    pub fn run_count(&self) -> usize {
        self.table.map_or(0, |(_, count)| (count as usize).min(RUN_COUNT_MAX))
    }

    /// All intact messages of run `run` with numbers in `wanted`, of whichever queue its row says
    /// that it is, as [`SalvagedExtent::read`] has them. The queue is true if there is one message.
    pub fn read_of_any(&self, run: usize, wanted: std::ops::Range<u64>, bytes_max: u32) -> (u64, Salvaged) {
        let queue = self.run(run).map_or(0, |row| row.queue);
        (queue, self.read(queue, run, wanted, bytes_max))
    }

    /// Intact messages of run `run`, which is one of `queue`, with numbers in `wanted`: the first
    /// of them and those that follow, until about `bytes_max` are together. None at all means that
    /// none of the range can be read any more.
    ///
    /// Cost: reads the whole index of the run, at most 1 MiB, and each message on its own.
    pub fn read(&self, queue: u64, run: usize, wanted: std::ops::Range<u64>, bytes_max: u32) -> Salvaged {
        let mut salvaged = Salvaged::default();
        let Some(run) = self.run(run) else {
            salvaged.note(self.corrupt(0, "row of the run table", 1, 0));
            return salvaged;
        };
        let mut entries: Vec<(u64, IndexEntry)> = Vec::new();
        let mut first = 0;
        while first < run.count {
            let count = ENTRIES_AT_ONCE.min(run.count - first);
            let offset = run.index_offset + first * INDEX_ENTRY_BYTES;
            first += count;
            match self.read_exactly(offset, count * INDEX_ENTRY_BYTES) {
                Ok(bytes) => {
                    let all = bytes.chunks_exact(INDEX_ENTRY_BYTES as usize).map(IndexEntry::decode);
                    let numbered = all.map(|entry| (run.first_seq + u64::from(entry.seq_delta), entry));
                    entries.extend(numbered.filter(|(seq, _)| wanted.contains(seq)));
                }
                Err(error) => salvaged.note(error),
            }
        }
        // Of several that claim one number only a true one passes.
        entries.sort_by_key(|(seq, _)| *seq);
        let mut bytes = 0u64;
        for (seq, entry) in entries {
            if salvaged.messages.last().is_some_and(|last| last.seq == seq) {
                continue;
            }
            bytes += u64::from(entry.bytes);
            if bytes > u64::from(bytes_max) && !salvaged.messages.is_empty() {
                break;
            }
            match self.message(queue, seq, &entry) {
                Ok(body) => salvaged.messages.push(ExtentMessage { seq, body }),
                Err(error) => {
                    bytes -= u64::from(entry.bytes);
                    salvaged.note(error);
                }
            }
        }
        salvaged
    }

    fn run(&self, number: usize) -> Option<Run> {
        let (table, _) = self.table?;
        let offset = u64::from(table) + number as u64 * u64::from(RUN_BYTES);
        let offset = u32::try_from(offset).ok().filter(|offset| offset + RUN_BYTES + FOOTER_BYTES <= self.bytes)?;
        let run = self.row(offset)?;
        // Whether its numbers are true is seen message by message; that they keep inside of the
        // file is asked here.
        let index_end = u64::from(run.index_offset) + u64::from(run.count) * u64::from(INDEX_ENTRY_BYTES);
        (index_end <= u64::from(self.bytes) && run.first_seq.checked_add(u64::from(u32::MAX)).is_some()).then_some(run)
    }

    fn message(&self, queue: u64, seq: u64, entry: &IndexEntry) -> Result<Bytes, StorageError> {
        if u64::from(entry.offset) + u64::from(entry.bytes) > u64::from(self.bytes) {
            return Err(self.corrupt(entry.offset, "offset in the index", self.bytes, entry.offset));
        }
        let body = self.read_exactly(entry.offset, entry.bytes)?;
        let computed = message_crc(queue, seq, &body);
        if computed != entry.crc {
            return Err(self.corrupt(entry.offset, "checksum of a message", entry.crc, computed));
        }
        Ok(Bytes::from(body))
    }

    fn read_exactly(&self, offset: u32, bytes: u32) -> Result<Vec<u8>, StorageError> {
        let mut buffer = vec![0; bytes as usize];
        let read = self.file.read_at(&mut buffer, u64::from(offset)).map_err(at("read", &self.name))?;
        if read < buffer.len() {
            return Err(self.corrupt(offset, "bytes that can be read", bytes, read as u32));
        }
        Ok(buffer)
    }

    fn corrupt(&self, offset: u32, what: &'static str, expected: u32, found: u32) -> StorageError {
        let (expected, found) = (u64::from(expected), u64::from(found));
        StorageError::Corrupt { file: self.name.clone(), offset: u64::from(offset), what, expected, found }
    }
}

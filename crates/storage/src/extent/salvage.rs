//! What can still be read of a damaged extent, message by message.
//!
//! Invariant: nothing is handed out that did not pass its own checksum, which covers its queue, its
//! number, its size and its body. So footer, run table and index are hints here, which say where to
//! look and may be wrong without harm: what they hide is missing, and what they invent does not
//! pass.
//!
//! A file that is longer or shorter than it was is no other in this. Its footer is looked for where it
//! was, and where it is gone with the run table, the indexes are found by walking: bodies lie one
//! after the other, so the index of a run is where its lines lead from the first of its bodies to
//! itself. What is behind a cut is gone, and of a run whose index is, nothing can be proven.

use crate::crc32c;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::disk::{Advice, DIRECT_ALIGN_BYTES, Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at};

use super::reader::ExtentMessage;
use super::{
    EXTENT_BYTES_MAX, ExtentId, FOOTER_BYTES, FOOTER_MAGIC, Footer, HEADER_BYTES, INDEX_ENTRY_BYTES, IndexEntry,
    RUN_BYTES, RUN_COUNT_MAX, Run, extent_name, message_crc,
};

/// Index entries read at once: a page, so that a page that cannot be read costs the messages that
/// it names and no others.
const ENTRIES_AT_ONCE: u32 = 256;
/// Bytes read at once while something is looked for.
const SEARCH_BYTES: u32 = 1 << 20;
/// The end of a file in which a footer is looked for first.
const TAIL_BYTES: u32 = 64 << 10;
/// Zeroes at the end of a footer: it is as good without them.
const FOOTER_ZEROES: u32 = 24;
/// Numbers among which that of a message is believed without another one beside it: no reader asks for more of
/// one run.
const NUMBERS_MAX: u64 = 1 << 20;
/// Shifting a CRC-32C over so many bytes changes nothing: the order of its polynomial.
const CRC_PERIOD_BYTES: usize = (1 << 31) - 1;

/// An extent of which some bytes are not what was written.
#[derive(Debug)]
pub struct SalvagedExtent<D: Disk> {
    name: String,
    file: D::File,
    bytes: u32,
    /// Where the run table starts and how many rows it has, as far as anybody can tell.
    table: Option<(u32, u32)>,
    /// How long the file was when it was finished, if that is known.
    whole_bytes: Option<u64>,
    /// How long it is.
    found_bytes: u64,
    /// Runs as a walk from the file's start finds them, once somebody needs them.
    walked: OnceLock<Vec<Walked>>,
}

/// Where the bodies and the index of a run are, whose row of the table may be gone.
#[derive(Clone, Copy, Debug)]
struct Walked {
    index_offset: u32,
    /// Lines of the index that are there.
    count: u32,
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
        let found_bytes = file.len().map_err(at("measure", &name))?;
        let bytes = found_bytes.min(u64::from(EXTENT_BYTES_MAX)) as u32;
        file.advise(0, u64::from(bytes), Advice::DontNeed);
        let (table, whole_bytes, walked) = (None, None, OnceLock::new());
        let mut extent = SalvagedExtent { name, file, bytes, table, whole_bytes, found_bytes, walked };
        extent.find_table(id);
        Ok(extent)
    }

    /// Whether it is as a writer leaves it before its end: without any row of a run table, and as long
    /// as whole pages are. A finished one that lost its end is as long by chance alone.
    pub fn looks_unfinished(&self) -> bool {
        self.table.is_none() && self.bytes < EXTENT_BYTES_MAX && self.bytes.is_multiple_of(DIRECT_ALIGN_BYTES as u32)
    }

    /// What is wrong with the length of the file, if that is: it has its footer elsewhere than at its
    /// end, or none and no run table where a footer was.
    pub fn wrong_length(&self) -> Option<StorageError> {
        (self.whole_bytes != Some(self.found_bytes)).then(|| StorageError::WrongLength {
            file: self.name.clone(),
            found: self.found_bytes,
            expected: self.whole_bytes,
        })
    }

    /// Where the footer says that the table is. Without a footer, where a row says that its run is
    /// the file's first, as many rows before the place of a footer at the file's end; and without
    /// one of those, where a walk ends.
    fn find_table(&mut self, id: ExtentId) {
        // One that lost zeroes of its end has its checksum still.
        let at_the_end = (0..=FOOTER_ZEROES).find_map(|lost| {
            let offset = (self.bytes + lost).checked_sub(FOOTER_BYTES)?;
            let mut footer = self.read_exactly(offset, FOOTER_BYTES - lost).ok()?;
            footer.resize(FOOTER_BYTES as usize, 0);
            self.footer(&footer, offset, id)
        });
        let found = at_the_end.or_else(|| self.find_footer(id, self.bytes.saturating_sub(TAIL_BYTES)));
        if let Some(footer) = found {
            return self.believe(&footer);
        }
        let rows = self.find_rows();
        let ends_well = |(offset, count): &(u32, u32)| {
            let last = offset + (count - 1) * RUN_BYTES;
            last + RUN_BYTES + FOOTER_BYTES == self.bytes && self.row(last).is_some_and(|row| row.is_sound(last))
        };
        if !rows.as_ref().is_some_and(ends_well)
            && let Some(footer) = self.find_footer(id, 0)
        {
            return self.believe(&footer);
        }
        if let Some((offset, count)) = rows {
            self.table = Some((offset, count));
            let whole_bytes = Some(u64::from(offset + count * RUN_BYTES + FOOTER_BYTES));
            // Rows that are cut off are not counted, so only a table that ends where a footer begins says more.
            self.whole_bytes = whole_bytes.filter(|bytes| *bytes == self.found_bytes);
            return;
        }
        let walked = self.walked();
        let table = walked.last().map(|last| last.index_offset + last.count * INDEX_ENTRY_BYTES);
        let count = walked.len() as u32;
        let Some(table) = table else { return };
        let whole_bytes = u64::from(table) + u64::from(count) * u64::from(RUN_BYTES) + u64::from(FOOTER_BYTES);
        let is_row = |row: Run| row.bodies_offset == HEADER_BYTES && row.is_sound(table);
        if whole_bytes == self.found_bytes || self.row(table).is_some_and(is_row) {
            (self.table, self.whole_bytes) = (Some((table, count)), Some(whole_bytes));
        }
    }

    fn believe(&mut self, footer: &Footer) {
        self.table = Some((footer.table_offset, footer.run_count));
        let rows = u64::from(footer.run_count) * u64::from(RUN_BYTES);
        self.whole_bytes = Some(u64::from(footer.table_offset) + rows + u64::from(FOOTER_BYTES));
    }

    /// The footer in these bytes, if it is this extent's and stands where it says.
    fn footer(&self, bytes: &[u8], offset: u32, id: ExtentId) -> Option<Footer> {
        let footer = Footer::decode(bytes.try_into().ok()?, &self.name, u64::from(offset)).ok()?;
        let table_end = u64::from(footer.table_offset) + u64::from(footer.run_count) * u64::from(RUN_BYTES);
        (footer.id == id && table_end == u64::from(offset)).then_some(footer)
    }

    /// The last footer that begins at `from` or behind it, at any byte.
    fn find_footer(&self, id: ExtentId, from: u32) -> Option<Footer> {
        let mut end = self.bytes;
        while end >= from + FOOTER_BYTES {
            let start = end.saturating_sub(SEARCH_BYTES).max(from);
            if let Ok(bytes) = self.read_exactly(start, end - start) {
                let places = (0..=bytes.len() - FOOTER_BYTES as usize).rev();
                let mut begun = places.filter(|at| bytes[*at..].starts_with(&FOOTER_MAGIC));
                let footer =
                    begun.find_map(|at| self.footer(&bytes[at..at + FOOTER_BYTES as usize], start + at as u32, id));
                if footer.is_some() {
                    return footer;
                }
            }
            if start == from {
                break;
            }
            // One that begins before `start` may end behind it.
            end = start + FOOTER_BYTES - 1;
        }
        None
    }

    /// The table of a file whose footer is not what it was, or is cut off as a whole.
    fn find_rows(&self) -> Option<(u32, u32)> {
        let end = self.bytes - self.bytes.min(HEADER_BYTES);
        let mut offset = self.bytes;
        // The newest rows first; what follows the last sound one is the footer, or was.
        let mut last_sound = None;
        for _ in 0..RUN_COUNT_MAX.min((end / RUN_BYTES) as usize) {
            offset = offset.checked_sub(RUN_BYTES).filter(|offset| *offset >= HEADER_BYTES)?;
            let run = self.row(offset)?;
            if !run.is_sound(offset) {
                continue;
            }
            let last = *last_sound.get_or_insert(offset);
            if run.bodies_offset == HEADER_BYTES {
                let before_footer = self.bytes - offset - FOOTER_BYTES.min(self.bytes - offset);
                let count = ((last - offset) / RUN_BYTES + 1).max(before_footer / RUN_BYTES);
                return Some((offset, count));
            }
        }
        None
    }

    fn walked(&self) -> &[Walked] {
        self.walked.get_or_init(|| {
            let (mut walked, mut bodies_offset) = (Vec::new(), HEADER_BYTES);
            while let Some(run) = self.find_index(bodies_offset).filter(|_| walked.len() < RUN_COUNT_MAX) {
                walked.push(run);
                bodies_offset = run.index_offset + run.count * INDEX_ENTRY_BYTES;
            }
            walked
        })
    }

    /// The index of the run whose bodies start here.
    fn find_index(&self, bodies_offset: u32) -> Option<Walked> {
        let mut start = bodies_offset;
        while start + INDEX_ENTRY_BYTES <= self.bytes {
            let end = self.bytes.min(start + SEARCH_BYTES);
            if let Ok(bytes) = self.read_exactly(start, end - start) {
                let first = bodies_offset.to_le_bytes();
                for (at, line) in bytes.windows(INDEX_ENTRY_BYTES as usize).enumerate() {
                    if line.starts_with(&first) && line[8..12] == [0; 4] {
                        let index_offset = start + at as u32;
                        if let Some(count) = self.lines(bodies_offset, index_offset) {
                            return Some(Walked { index_offset, count });
                        }
                    }
                }
            }
            start = end - (INDEX_ENTRY_BYTES - 1);
            if end == self.bytes {
                break;
            }
        }
        None
    }

    /// How many lines an index at `index_offset` has, if they lead from the first body to it, or to the
    /// end of the file.
    fn lines(&self, bodies_offset: u32, index_offset: u32) -> Option<u32> {
        let (mut next, mut delta, mut count) = (u64::from(bodies_offset), None, 0);
        let index_end = u64::from(index_offset);
        loop {
            let at = index_offset + count * INDEX_ENTRY_BYTES;
            let there = (self.bytes.saturating_sub(at) / INDEX_ENTRY_BYTES).min(ENTRIES_AT_ONCE);
            let lines = self.read_exactly(at, there * INDEX_ENTRY_BYTES).unwrap_or_default();
            for line in lines.chunks_exact(INDEX_ENTRY_BYTES as usize).map(IndexEntry::decode) {
                let end = next + u64::from(line.bytes);
                let follows = u64::from(line.offset) == next && end <= index_end && Some(line.seq_delta) > delta;
                if !follows {
                    return (next == index_end && count > 0).then_some(count);
                }
                (next, delta, count) = (end, Some(line.seq_delta), count + 1);
            }
            if lines.len() < (ENTRIES_AT_ONCE * INDEX_ENTRY_BYTES) as usize {
                // The file ends here.
                return (count > 0).then_some(count);
            }
        }
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
    pub fn read_of_any(&self, run: usize, wanted: Range<u64>, bytes_max: u32) -> (u64, Salvaged) {
        let queue = self.run(run).map_or(0, |row| row.queue);
        (queue, self.read(queue, run, wanted, bytes_max))
    }

    /// Intact messages of run `number`, which is one of `queue`, with numbers in `wanted`: the first
    /// of them and those that follow, until about `bytes_max` are together. None at all means that
    /// none of the range can be read any more.
    ///
    /// Cost: reads the whole index of the run, at most 1 MiB, and each message on its own.
    pub fn read(&self, queue: u64, number: usize, wanted: Range<u64>, bytes_max: u32) -> Salvaged {
        let mut salvaged = Salvaged::default();
        let Some(run) = self.run(number) else {
            return self.read_without_row(queue, number, wanted, bytes_max);
        };
        let mut entries: Vec<(u64, IndexEntry)> = Vec::new();
        let (mut first, mut index_crc) = (0, 0);
        while first < run.count {
            let count = ENTRIES_AT_ONCE.min(run.count - first);
            let offset = run.index_offset + first * INDEX_ENTRY_BYTES;
            first += count;
            match self.read_exactly(offset, count * INDEX_ENTRY_BYTES) {
                Ok(bytes) => {
                    index_crc = crc32c::crc32c_append(index_crc, &bytes);
                    let all = bytes.chunks_exact(INDEX_ENTRY_BYTES as usize).map(IndexEntry::decode);
                    let numbered = all.map(|entry| (run.first_seq + u64::from(entry.seq_delta), entry));
                    entries.extend(numbered.filter(|(seq, _)| wanted.contains(seq)));
                }
                Err(error) => salvaged.note(self.cut_at(offset + count * INDEX_ENTRY_BYTES).unwrap_or(error)),
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
        // A row that leads elsewhere may have true numbers.
        if salvaged.messages.is_empty() && index_crc != run.index_crc {
            let of_row = run.first_seq..run.last_seq.saturating_add(1);
            let wanted = wanted.start.max(of_row.start)..wanted.end.min(of_row.end);
            let found = self.read_without_row(queue, number, wanted, bytes_max);
            salvaged.messages = found.messages;
        }
        salvaged
    }

    /// The same of a run of which only the index is left. Which numbers it has is known from the messages: the
    /// checksum of each covers its number, so the number that a message must have can be computed. It is
    /// believed if another message of the run agrees, or there is no other.
    fn read_without_row(&self, queue: u64, run: usize, wanted: Range<u64>, bytes_max: u32) -> Salvaged {
        let mut salvaged = Salvaged::default();
        let table = self.table.map_or(self.bytes, |(table, _)| table);
        let lost = || self.wrong_length().unwrap_or_else(|| self.corrupt(table, "row of the run table", 1, 0));
        let Some(walked) = self.walked().get(run) else {
            salvaged.note(lost());
            return salvaged;
        };
        let index = self.read_exactly(walked.index_offset, walked.count * INDEX_ENTRY_BYTES).unwrap_or_default();
        let entries: Vec<IndexEntry> = index.chunks_exact(INDEX_ENTRY_BYTES as usize).map(IndexEntry::decode).collect();
        let Some(first_seq) = self.first_seq(queue, &entries, &wanted) else {
            salvaged.note(lost());
            return salvaged;
        };
        let mut bytes = 0u64;
        for entry in entries {
            let seq = first_seq.saturating_add(u64::from(entry.seq_delta));
            if !wanted.contains(&seq) {
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
        // Lines behind a cut are told by nothing else.
        if self.cut_at(walked.index_offset + (walked.count + 1) * INDEX_ENTRY_BYTES).is_some() {
            salvaged.note(lost());
        }
        salvaged
    }

    /// The number of the first message of a run of which only the index is left, if numbers of it are
    /// wanted.
    fn first_seq(&self, queue: u64, entries: &[IndexEntry], wanted: &Range<u64>) -> Option<u64> {
        let span = entries.last().map_or(0, |last| u64::from(last.seq_delta));
        let is_wanted = |first: &u64| *first < wanted.end && first.saturating_add(span) >= wanted.start;
        // A number's upper half is that of what is wanted.
        let halves = BTreeSet::from([(wanted.start >> 32) as u32, (wanted.end.saturating_sub(1) >> 32) as u32]);
        let is_alone = entries.len() == 1 && wanted.end.saturating_sub(wanted.start) <= NUMBERS_MAX;
        let mut claimed = BTreeSet::new();
        for entry in entries {
            let Ok(body) = self.read_exactly(entry.offset, entry.bytes) else { continue };
            for upper in &halves {
                let seq = number_of(queue, *upper, entry, &body);
                let first = seq.checked_sub(u64::from(entry.seq_delta)).filter(is_wanted);
                if let Some(first) = first.filter(|first| is_alone || !claimed.insert(*first)) {
                    return Some(first);
                }
            }
        }
        None
    }

    /// The length of the file, where something up to `end` is not in it.
    fn cut_at(&self, end: u32) -> Option<StorageError> {
        if end > self.bytes { self.wrong_length() } else { None }
    }

    fn run(&self, number: usize) -> Option<Run> {
        let (table, _) = self.table?;
        let offset = u64::from(table) + number as u64 * u64::from(RUN_BYTES);
        let offset = u32::try_from(offset).ok().filter(|offset| *offset <= self.bytes.saturating_sub(RUN_BYTES))?;
        let run = self.row(offset)?;
        // Whether its numbers are true is seen message by message; that they keep inside of the
        // file is asked here.
        let index_end = u64::from(run.index_offset) + u64::from(run.count) * u64::from(INDEX_ENTRY_BYTES);
        (index_end <= u64::from(self.bytes) && run.first_seq.checked_add(u64::from(u32::MAX)).is_some()).then_some(run)
    }

    fn message(&self, queue: u64, seq: u64, entry: &IndexEntry) -> Result<Bytes, StorageError> {
        if u64::from(entry.offset) + u64::from(entry.bytes) > u64::from(self.bytes) {
            let error = self.corrupt(entry.offset, "offset in the index", self.bytes, entry.offset);
            return Err(self.wrong_length().unwrap_or(error));
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

/// The number in a queue that a message must have for its checksum to hold, given the upper half of it: the
/// checksum covers queue, number, size and body in this order, and each of 32 bits of it can be undone.
fn number_of(queue: u64, upper: u32, entry: &IndexEntry, body: &[u8]) -> u64 {
    let behind = [upper.to_le_bytes(), (body.len() as u32).to_le_bytes()].concat();
    let behind_crc = crc32c::crc32c_append(crc32c::crc32c(&behind), body);
    // Checksums of two parts are joined by shifting the first one over the length of the second.
    let shifted = |crc, bytes| crc32c::crc32c_combine(crc, 0, bytes);
    let unshifted = |crc, bytes| shifted(crc, CRC_PERIOD_BYTES - bytes);
    let named = unshifted(entry.crc ^ behind_crc, behind.len() + body.len());
    let lower = named ^ shifted(crc32c::crc32c(&queue.to_le_bytes()), size_of::<u32>());
    u64::from(!unshifted(!lower, size_of::<u32>())) | u64::from(upper) << 32
}

//! Reading messages back from an extent.
//!
//! Invariant: nothing is handed out that did not pass its checksum, and a position in a run with
//! holes is believed only after the message before it passed too. Open extents keep their run table
//! in memory and nothing else.

use crate::crc32c;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Advice, Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at};
use crate::fields::Fields;

use super::salvage::SalvagedExtent;
use super::{
    EXTENT_BYTES_MAX, EXTENT_FORMAT_VERSION, ExtentId, FOOTER_BYTES, Footer, HEADER_BYTES, INDEX_ENTRY_BYTES,
    IndexEntry, RUN_BYTES, RUN_COUNT_MAX, Run, extent_name, message_crc,
};

/// Index entries read in one go while looking for a sequence in a run with holes; beyond, the place
/// is found by halving.
const INDEX_WINDOW_MAX: u32 = 4096;
/// Bytes checked at once by [`Extent::verify`].
const VERIFY_BYTES: usize = 1 << 20;
/// Messages of one read whatever the caller wants, so that the index part of a read is at most 1
/// MiB.
pub const READ_COUNT_MAX: u32 = 65_536;

/// A message and its place in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentMessage {
    /// Sequence in the queue.
    pub seq: u64,
    /// As it was pushed. All bodies of one read share one allocation.
    pub body: Bytes,
}

/// An open extent. Readable by many threads.
#[derive(Debug)]
pub struct Extent<D: Disk> {
    id: ExtentId,
    name: String,
    file: Arc<D::File>,
    bytes: u32,
    footer: Footer,
    runs: Vec<Run>,
}

impl<D: Disk> Extent<D> {
    /// Opens a finished extent. Reads its last 64 bytes and its run table, however many messages it
    /// holds.
    pub fn open(disk: &D, id: ExtentId) -> Result<Extent<D>, StorageError> {
        let name = extent_name(id);
        let file = disk.open(&name, OpenMode::Read).map_err(at("open", &name))?;
        let bytes = file.len().map_err(at("measure", &name))?;
        let corrupt =
            |offset, what, expected, found| StorageError::Corrupt { file: name.clone(), offset, what, expected, found };
        // What is wrong with a file that does not end with its footer is seen by who looks for it.
        let no_end = |error| match SalvagedExtent::open(disk, id) {
            Ok(extent) => extent.wrong_length().unwrap_or(error),
            Err(_) => error,
        };
        if bytes < u64::from(HEADER_BYTES + RUN_BYTES + FOOTER_BYTES) || bytes > u64::from(EXTENT_BYTES_MAX) {
            return Err(no_end(corrupt(0, "length of the file, at most,", u64::from(EXTENT_BYTES_MAX), bytes)));
        }
        let bytes = bytes as u32;
        let footer_offset = bytes - FOOTER_BYTES;
        let mut footer = [0; FOOTER_BYTES as usize];
        file.read_at(&mut footer, u64::from(footer_offset)).map_err(at("read", &name))?;
        let footer = Footer::decode(&footer, &name, u64::from(footer_offset)).map_err(|error| match error {
            StorageError::Corrupt { .. } => no_end(error),
            error => error,
        })?;
        if footer.id != id {
            return Err(corrupt(u64::from(footer_offset) + 16, "id in the footer", id.0, footer.id.0));
        }
        let table_bytes = u64::from(footer.run_count) * u64::from(RUN_BYTES);
        if footer.run_count as usize > RUN_COUNT_MAX
            || u64::from(footer.table_offset) + table_bytes != u64::from(footer_offset)
        {
            let found = u64::from(footer.table_offset) + table_bytes;
            return Err(corrupt(
                u64::from(footer_offset) + 24,
                "end of the run table",
                u64::from(footer_offset),
                found,
            ));
        }
        let mut table = vec![0; table_bytes as usize];
        file.read_at(&mut table, u64::from(footer.table_offset)).map_err(at("read", &name))?;
        let computed = crc32c::crc32c(&table);
        let runs: Vec<Run> = table.chunks_exact(RUN_BYTES as usize).map(Run::decode).collect();
        if computed != footer.table_crc || !runs.iter().all(|run| run.is_sound(footer.table_offset)) {
            let (expected, found) = (u64::from(footer.table_crc), u64::from(computed));
            return Err(corrupt(u64::from(footer.table_offset), "checksum of the run table", expected, found));
        }
        Ok(Extent { id, name, file: Arc::new(file), bytes, footer, runs })
    }

    /// Which one it is.
    pub fn id(&self) -> ExtentId {
        self.id
    }

    /// Length of the file.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Its runs.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Messages of a run from `from_seq` on, in order: at most `count_max` and [`READ_COUNT_MAX`],
    /// and no more bytes than `bytes_max` except that one message is always returned if there is
    /// one.
    ///
    /// - Cost: two reads and one allocation for the bodies, in a run without holes or with fewer
    ///   than 4096; else a few small reads more.
    /// - Errors: [`StorageError::Corrupt`] at the first message that does not pass; what came
    ///   before it can be had with a smaller count.
    pub fn read(
        &self,
        run: usize,
        from_seq: u64,
        count_max: u32,
        bytes_max: u32,
    ) -> Result<Vec<ExtentMessage>, StorageError> {
        let run = &self.runs[run];
        let from_seq = from_seq.max(run.first_seq);
        if from_seq > run.last_seq || count_max == 0 {
            return Ok(Vec::new());
        }
        let wanted = u32::try_from(from_seq - run.first_seq).expect("a run spans less than 2^32");
        let holes = (run.last_seq - run.first_seq) - u64::from(run.count - 1);
        // The entry lies at most `wanted` from the front, and for each hole that may be before it
        // one place less.
        let mut first = u64::from(wanted).saturating_sub(holes).min(u64::from(run.count - 1)) as u32;
        let mut limit = wanted.min(run.count - 1);
        if limit - first > INDEX_WINDOW_MAX {
            (first, limit) = self.narrow(run, wanted, first, limit)?;
        }
        let count = count_max.min(READ_COUNT_MAX);
        // One entry more before the place: with holes, only the predecessor proves that no message
        // was passed over.
        let first = first.saturating_sub(u32::from(holes > 0));
        let last = limit.saturating_add(count).min(run.count);
        let entries = self.entries(run, first, last)?;
        // Without holes the place is known. With holes it is between two neighbours, one before and
        // one at or behind `from_seq`; both are checked below, and both must exist: the first entry
        // of the window is before it unless it is the run's first, and the run's last one is not.
        let place = if holes > 0 { entries.partition_point(|entry| entry.seq_delta < wanted) } else { 0 };
        if place == entries.len() || (place == 0 && holes > 0 && first > 0) {
            let offset = run.index_offset + first * INDEX_ENTRY_BYTES;
            return Err(self.corrupt(offset, "order of the index", wanted, entries[place.saturating_sub(1)].seq_delta));
        }
        let proof = if holes > 0 { place.saturating_sub(1) } else { place };
        let mut taken = proof..place;
        let mut bytes = 0u64;
        while let Some(entry) = entries.get(taken.end).filter(|_| taken.end - place < count as usize) {
            bytes += u64::from(entry.bytes);
            if bytes > u64::from(bytes_max) && taken.end > place {
                break;
            }
            taken.end += 1;
        }
        let mut messages = self.bodies(run, &entries[taken], first + proof as u32)?;
        messages.drain(..place - proof);
        Ok(messages)
    }

    /// Reads everything and checks it against the footer: for a scrub, and before a copy from
    /// elsewhere is believed.
    pub fn verify(&self) -> Result<(), StorageError> {
        self.file.advise(0, u64::from(self.bytes), Advice::Sequential);
        let mut crc = 0;
        let mut buffer = vec![0; VERIFY_BYTES];
        let (mut offset, end) = (0, self.bytes - FOOTER_BYTES);
        while offset < end {
            let bytes = VERIFY_BYTES.min((end - offset) as usize);
            self.read_exactly(&mut buffer[..bytes], offset)?;
            if offset == 0 {
                self.check_header(&buffer[..HEADER_BYTES as usize])?;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..bytes]);
            offset += bytes as u32;
        }
        if crc != self.footer.contents_crc {
            return Err(self.corrupt(0, "checksum of the contents", self.footer.contents_crc, crc));
        }
        Ok(())
    }

    /// Raw bytes of the file, for sending it to another node. Fewer only at the end.
    pub fn read_raw(&self, offset: u32, bytes: u32) -> Result<Bytes, StorageError> {
        let end = offset.saturating_add(bytes).min(self.bytes);
        let mut buffer = vec![0; end.saturating_sub(offset) as usize];
        self.read_exactly(&mut buffer, offset)?;
        Ok(Bytes::from(buffer))
    }

    /// Halves the range of the index in which `wanted` must be until it is worth reading whole.
    fn narrow(&self, run: &Run, wanted: u32, mut first: u32, mut limit: u32) -> Result<(u32, u32), StorageError> {
        while limit - first > INDEX_WINDOW_MAX {
            let middle = first + (limit - first) / 2;
            let entry = self.entries(run, middle, middle + 1)?[0];
            if entry.seq_delta < wanted { first = middle } else { limit = middle }
        }
        Ok((first, limit))
    }

    fn entries(&self, run: &Run, first: u32, limit: u32) -> Result<Vec<IndexEntry>, StorageError> {
        let mut buffer = vec![0; ((limit - first) * INDEX_ENTRY_BYTES) as usize];
        self.read_exactly(&mut buffer, run.index_offset + first * INDEX_ENTRY_BYTES)?;
        Ok(buffer.chunks_exact(INDEX_ENTRY_BYTES as usize).map(IndexEntry::decode).collect())
    }

    /// Reads the bodies of neighbouring entries at once and checks each. `number` is the place of
    /// the first entry in its run.
    fn bodies(&self, run: &Run, entries: &[IndexEntry], number: u32) -> Result<Vec<ExtentMessage>, StorageError> {
        let Some(first) = entries.first() else { return Ok(Vec::new()) };
        // Entries must follow one another inside the run's bodies: a rotten one must not make us
        // read or allocate anything else.
        let mut end = u64::from(first.offset);
        let bodies = u64::from(run.bodies_offset)..=u64::from(run.bodies_offset) + u64::from(run.bodies_bytes);
        for (entry, number) in entries.iter().zip(number..) {
            let entry_offset = run.index_offset + number * INDEX_ENTRY_BYTES;
            if u64::from(entry.offset) != end
                || !bodies.contains(&end)
                || !bodies.contains(&(end + u64::from(entry.bytes)))
            {
                return Err(self.corrupt(entry_offset, "offset in the index", end as u32, entry.offset));
            }
            end += u64::from(entry.bytes);
        }
        let mut buffer = vec![0; (end - u64::from(first.offset)) as usize];
        self.read_exactly(&mut buffer, first.offset)?;
        let buffer = Bytes::from(buffer);
        entries
            .iter()
            .map(|entry| {
                let from = (entry.offset - first.offset) as usize;
                let body = buffer.slice(from..from + entry.bytes as usize);
                let seq = run.first_seq + u64::from(entry.seq_delta);
                let computed = message_crc(run.queue, seq, &body);
                if computed == entry.crc {
                    Ok(ExtentMessage { seq, body })
                } else {
                    Err(self.corrupt(entry.offset, "checksum of a message", entry.crc, computed))
                }
            })
            .collect()
    }

    fn check_header(&self, header: &[u8]) -> Result<(), StorageError> {
        let mut fields = Fields::new(&header[8..]);
        let (stored, computed) = (fields.u32(), crc32c::crc32c(&header[12..]));
        if stored != computed {
            return Err(self.corrupt(0, "checksum of the header", stored, computed));
        }
        let version = fields.u32();
        if version != EXTENT_FORMAT_VERSION {
            let supported = EXTENT_FORMAT_VERSION;
            return Err(StorageError::OtherVersion { file: self.name.clone(), found: version, supported });
        }
        Ok(())
    }

    fn read_exactly(&self, buffer: &mut [u8], offset: u32) -> Result<(), StorageError> {
        let read = self.file.read_at(buffer, u64::from(offset)).map_err(at("read", &self.name))?;
        if read < buffer.len() {
            return Err(self.corrupt(offset, "bytes that can be read", buffer.len() as u32, read as u32));
        }
        Ok(())
    }

    fn corrupt(&self, offset: u32, what: &'static str, expected: u32, found: u32) -> StorageError {
        let (expected, found) = (u64::from(expected), u64::from(found));
        StorageError::Corrupt { file: self.name.clone(), offset: u64::from(offset), what, expected, found }
    }
}

//! The write-ahead log that all groups of a node share: one write and at most one sync for
//! everything that waits.
//!
//! Invariant: records are read back in the order they were appended, without gaps up to the last
//! sync. A page that a sync covered is not written again with other bytes until the whole file is
//! released. A file is begun only after the one before was synced to its end.
//!
//! The writer is one thread's; readers and the preparation of spare files are handles of their own
//! for other threads. Absent on purpose: any idea of what a record means, which entry of a group is
//! the last, and when a file may go. The partitions know.

pub mod format;
mod layout;
mod mark;
mod reader;
mod record;
mod recovery;
mod scan;
mod spares;
mod stage;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use crate::data_folder::doubt_log;
use crate::disk::{Advice, Disk, DiskFile};
use crate::error::{StorageError, syncing};

use format::{FIRST_FRAME_OFFSET, FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, FileHeader, PAGE_BYTES, record_bytes};
use layout::Layout;
pub(crate) use mark::MARK_NAME;
use mark::Mark;
pub use reader::WalReader;
pub use record::{FileNo, GroupId, Location, Record, RecordKind, RecordRef, WalOptions, WalPosition};
pub use recovery::{DAMAGE_COUNT_MAX, Damage, Recovery, newest_file, reaches_back_from, recover};
pub(crate) use recovery::{folder_ids, same_number};
pub use scan::RecordName;
pub(crate) use scan::{FileWalk, Known, Seen, Window, walk_file};
pub use spares::{Preparation, SparePreparer, found_log, has_log};
use spares::{Spares, TakenSlot};
use stage::Memory;
pub use stage::WriteWay;

/// Whether a file of the folder is a log file or a spare, by its name without the folder.
pub(crate) fn is_slot(name: &str) -> bool {
    spares::slot_number(name).is_some()
}

/// What the note beside the log says, whichever folder it belongs to. Changes nothing.
pub(crate) fn read_mark<D: Disk>(disk: &D) -> Result<Option<WalPosition>, StorageError> {
    Ok(mark::read(disk)?.into_iter().max_by_key(|(_, turn, _)| *turn).map(|(_, _, position)| position))
}

/// Folder of the log files.
pub const WAL_FOLDER: &str = "wal";

/// Frames are closed at this size, so that damage to one header costs at most this much. A larger
/// record has a frame of its own.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Largest body of a record whatever the file size: the largest message we take, with room for its
/// envelope.
pub const RECORD_BODY_BYTES_MAX: u32 = 32 << 20;
/// Smallest file, for simulations.
pub const FILE_BYTES_MIN: u32 = 64 << 10;
/// Largest file; offsets are 32 bits and a start reads at most one file's tail.
pub const FILE_BYTES_MAX: u32 = 1 << 30;

/// A file whose blocks were never written is filled with zeroes this far ahead of the log: writing
/// such blocks changes the file's map, which every sync would have to write down too.
const FILL_AHEAD_BYTES: u32 = 1 << 20;

const _: () = assert!(FILE_BYTES_MIN.is_multiple_of(PAGE_BYTES) && FILE_BYTES_MIN > 2 * PAGE_BYTES);
const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));

/// One slot of the folder: a file with a fixed name and a changing number.
#[derive(Debug)]
pub(crate) struct Slot<F> {
    pub(crate) name: String,
    pub(crate) file: F,
    pub(crate) bytes: u32,
}

/// Files that can be read, by number. Writers insert before the first record of a file has a
/// location, and remove before reuse.
type LiveFiles<F> = Arc<RwLock<BTreeMap<FileNo, Arc<Slot<F>>>>>;

/// The writer.
#[derive(Debug)]
pub struct Wal<D: Disk> {
    disk: Arc<D>,
    options: WalOptions,
    folder_id: u128,
    session: u32,
    live: LiveFiles<D::File>,
    spares: Arc<Spares<D>>,
    /// `None` in a folder that was never written: an idle server makes no files.
    current: Option<Current<D::File>>,
    closed: VecDeque<(FileNo, u32)>,
    next_file: FileNo,
    next_frame_no: u64,
    mark: Mark<D>,
    stopped: bool,
    frames: Vec<FramePlan>,
    memory: Memory,
}

/// The file that is written.
#[derive(Debug)]
struct Current<F> {
    header: FileHeader,
    slot: Arc<Slot<F>>,
    /// End of the last frame.
    end: u32,
    /// Where the next one starts.
    next: u32,
    /// How much of the file is durable; `end` at the time of the last sync.
    synced: u32,
    /// Header crc of the last frame, or of the file header.
    previous_crc: u32,
    header_written: bool,
    name_synced: bool,
    /// Blocks before were written once.
    filled: u32,
}

/// One frame to be: where and which records.
#[derive(Debug)]
struct FramePlan {
    /// 0 is the current file, 1 the next new one and so on.
    file: usize,
    offset: u32,
    bytes: u32,
    first: usize,
    limit: usize,
}

impl<D: Disk> Wal<D> {
    /// Appends `records` in order, as one frame or as few as fit, with one write per file touched,
    /// by way of the page cache.
    ///
    /// - Order: as given; `locations` gets one place per record, added at its end.
    /// - Durability: none until [`Wal::sync`]. Other processes' crash: what was written stays.
    /// - Returns bytes written to files, headers and padding included.
    /// - Errors: [`StorageError::Full`] when no new file could be had; then nothing was written and
    ///   the call may be repeated. After any other error the log has stopped for good.
    /// - A body above [`Wal::body_bytes_max`] is a caller's bug and panics.
    pub fn append(&mut self, records: &[Record], locations: &mut Vec<Location>) -> Result<u64, StorageError> {
        self.append_by(WriteWay::Cached, records, locations)
    }

    /// [`Wal::append`] by a given way; the ways may alternate.
    pub fn append_by(
        &mut self,
        way: WriteWay,
        records: &[Record],
        locations: &mut Vec<Location>,
    ) -> Result<u64, StorageError> {
        if self.stopped {
            return Err(StorageError::Stopped);
        }
        if records.is_empty() {
            return Ok(0);
        }
        if let Some(current) = self.current.as_mut().filter(|_| way == WriteWay::Direct) {
            // Whole pages only: what the page before has is written already.
            current.next = current.next.next_multiple_of(PAGE_BYTES);
        }
        let new_files = self.plan(records);
        // All files first: running out of room half way would leave half of the batch in the log.
        let mut slots = self.take_slots(new_files)?.into_iter();
        let mut written = 0;
        let mut first = 0;
        for file in 0..=new_files {
            let limit = first + self.frames[first..].iter().take_while(|frame| frame.file == file).count();
            if file > 0 {
                let slot = slots.next().expect("a slot was taken for each new file");
                self.sync().inspect_err(|_| self.stopped = true)?;
                self.begin_file(slot);
            }
            if first < limit {
                written += self.write_frames(first..limit, records, way, locations)?;
            }
            first = limit;
        }
        self.want_spares();
        Ok(written)
    }

    /// Makes everything appended so far durable, with one `fdatasync`; none when nothing is new.
    ///
    /// After an error the log has stopped: the system may have thrown away what it could not write. The
    /// next process over this folder is told that the log may have forgotten something.
    pub fn sync(&mut self) -> Result<(), StorageError> {
        if self.stopped {
            return Err(StorageError::Stopped);
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if current.synced == current.end && current.name_synced {
            return Ok(());
        }
        let name = &current.slot.name;
        let done = current.slot.file.sync_data().map_err(syncing(name)).and_then(|()| {
            if current.name_synced { Ok(()) } else { self.disk.sync_folder(WAL_FOLDER).map_err(syncing(WAL_FOLDER)) }
        });
        if done.is_err() {
            self.stopped = true;
            doubt_log(&*self.disk);
            return done;
        }
        current.name_synced = true;
        current.synced = current.end;
        current.next = current.end.next_multiple_of(PAGE_BYTES);
        Ok(())
    }

    /// End of what is written. Everything appended from now on lies at or behind it.
    pub fn position(&self) -> WalPosition {
        match &self.current {
            Some(current) => WalPosition { file: current.header.file, offset: current.end },
            None => WalPosition { file: self.next_file, offset: 0 },
        }
    }

    /// The number of the next file to be begun: above that of every file that is known to have been
    /// part of this log, there or not.
    pub fn next_file(&self) -> FileNo {
        self.next_file
    }

    /// The newest file that is there; `None` while there is none that belongs to the log.
    pub fn last_file(&self) -> Option<FileNo> {
        self.current.as_ref().map(|current| current.header.file)
    }

    /// Has what is appended from now on go to a file of its own. Its header goes out with its first
    /// frame.
    ///
    /// - Errors: as [`Wal::append`] has them; on [`StorageError::Full`] the log goes on where it
    ///   was.
    pub fn begin_next_file(&mut self) -> Result<(), StorageError> {
        let slot = self.take_slots(1)?.pop().expect("one was asked for");
        self.sync()?;
        self.begin_file(slot);
        Ok(())
    }

    /// How much room [`Wal::begin_next_file`] takes of the disk: none where a spare file is ready.
    pub fn room_of_next_file(&self) -> u64 {
        self.spares.room_of_next()
    }

    /// End of what is durable.
    pub fn synced_position(&self) -> WalPosition {
        match &self.current {
            Some(current) => WalPosition { file: current.header.file, offset: current.synced },
            None => WalPosition { file: self.next_file, offset: 0 },
        }
    }

    /// The newest file of which something is durable: the one before, until the first sync of one
    /// that was begun. After a cut of the power the log may go on in this file, so a checkpoint
    /// that replays from a later one would miss what comes then.
    pub fn durable_file(&self) -> FileNo {
        match &self.current {
            Some(current) if current.synced == 0 && current.header.previous_file != FileNo(0) => {
                current.header.previous_file
            }
            Some(current) => current.header.file,
            None => self.next_file,
        }
    }

    /// Bytes written since the last sync.
    pub fn unsynced_bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| u64::from(current.end - current.synced))
    }

    /// Largest body that a record may have.
    pub fn body_bytes_max(&self) -> u32 {
        self.options.body_bytes_max()
    }

    /// Full files, oldest first, with the room they take on the disk.
    pub fn closed_files(&self) -> impl Iterator<Item = (FileNo, u64)> + '_ {
        self.closed.iter().map(|&(file, bytes)| (file, u64::from(bytes)))
    }

    /// Gives back all closed files before `first_needed`: some are kept to be written again, the
    /// rest will be deleted by the [`SparePreparer`]. From now on their locations are not readable.
    ///
    /// - The caller's durable checkpoints must all replay from `first_needed` or later: a recovery
    ///   from before it would find files missing.
    /// - The file being written stays, whatever `first_needed` is. Writes nothing.
    pub fn release_before(&mut self, first_needed: FileNo) {
        while let Some(&(file, _)) = self.closed.front().filter(|(file, _)| *file < first_needed) {
            self.closed.pop_front();
            let slot = self.live.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
            self.spares.give_back(slot.expect("closed files are live"));
        }
    }

    /// A handle for reading, for any thread.
    pub fn reader(&self) -> WalReader<D> {
        WalReader::new(self.live.clone())
    }

    /// A handle that makes and deletes spare files, for a thread with time.
    pub fn spare_preparer(&self) -> SparePreparer<D> {
        SparePreparer::new(self.disk.clone(), self.spares.clone())
    }

    /// Writes down, unsynced and beside the log, how far it is durable, if that changed since the
    /// last call.
    ///
    /// It lets a recovery tell rot in the very last frame from a torn write. Call it seldom (once a
    /// second) and when traffic ends; it costs one small write. Returns whether it wrote. An error
    /// here harms nothing but that knowledge.
    pub fn note_durable(&mut self) -> Result<bool, StorageError> {
        let position = self.synced_position();
        if position.offset <= FIRST_FRAME_OFFSET || self.stopped {
            return Ok(false);
        }
        self.mark.note(position)
    }

    /// Cuts `records` into frames and frames into files; returns how many new files that takes.
    fn plan(&mut self, records: &[Record]) -> usize {
        let body_bytes_max = self.body_bytes_max() as usize;
        let (mut file, mut offset, mut file_bytes) = match &self.current {
            Some(current) => (0, current.next, current.slot.bytes),
            None => (0, 0, 0),
        };
        self.frames.clear();
        let mut first = 0;
        while let Some(record) = records.get(first) {
            let bytes_min = u64::from(FRAME_HEADER_BYTES) + record_bytes(record.body.len());
            if u64::from(offset) + bytes_min > u64::from(file_bytes) {
                (file, offset, file_bytes) = (file + 1, FIRST_FRAME_OFFSET, self.options.file_bytes);
            }
            let room = u64::from(file_bytes - offset);
            let (mut bytes, mut limit) = (u64::from(FRAME_HEADER_BYTES), first);
            while let Some(record) = records.get(limit) {
                assert!(record.body.len() <= body_bytes_max, "a record body is at most {body_bytes_max} bytes");
                let more = bytes + record_bytes(record.body.len());
                if more > room || (limit > first && more > u64::from(FRAME_BYTES_MAX)) {
                    break;
                }
                (bytes, limit) = (more, limit + 1);
            }
            assert!(limit > first, "a record fits into an empty file");
            let bytes = u32::try_from(bytes).expect("a frame fits into a file");
            self.frames.push(FramePlan { file, offset, bytes, first, limit });
            offset = (offset + bytes).next_multiple_of(FRAME_ALIGN_BYTES);
            first = limit;
        }
        file
    }

    fn take_slots(&mut self, count: usize) -> Result<Vec<TakenSlot<D::File>>, StorageError> {
        let mut slots: Vec<TakenSlot<D::File>> = Vec::with_capacity(count);
        for _ in 0..count {
            match self.spares.take(&self.disk) {
                Ok(slot) => slots.push(slot),
                Err(error) => {
                    for taken in slots {
                        self.spares.give_back(taken.slot);
                    }
                    self.stopped |= !error.is_full();
                    return Err(error);
                }
            }
        }
        Ok(slots)
    }

    /// Makes a new file the current one. Its header goes out with its first frame.
    fn begin_file(&mut self, TakenSlot { slot, name_synced, is_filled }: TakenSlot<D::File>) {
        let file = self.next_file;
        self.next_file = FileNo(file.0 + 1);
        let mut header = FileHeader {
            file,
            folder_id: self.folder_id,
            previous_file: FileNo(0),
            previous_end: 0,
            previous_end_crc: 0,
            first_frame_no: self.next_frame_no,
            salt: format::salt(self.options.nonce, self.folder_id, file),
        };
        if let Some(last) = self.current.take() {
            assert_eq!(last.synced, last.end, "a file is begun after the one before was synced");
            header.previous_file = last.header.file;
            header.previous_end = last.end;
            header.previous_end_crc = last.previous_crc;
            self.closed.push_back((last.header.file, last.slot.bytes));
        }
        // Pages of the file's former life, or of its filling, may be cached in large folios, and a
        // small append into one is accounted as the whole folio. Nothing there is wanted, and pages
        // are written whole, so none is read again.
        slot.file.advise(0, u64::from(slot.bytes), Advice::DontNeed);
        self.live.write().unwrap_or_else(PoisonError::into_inner).insert(file, slot.clone());
        self.current = Some(Current {
            header,
            end: FIRST_FRAME_OFFSET,
            next: FIRST_FRAME_OFFSET,
            synced: 0,
            previous_crc: header.crc(),
            header_written: false,
            name_synced,
            filled: if is_filled { slot.bytes } else { 0 },
            slot,
        });
    }

    /// Writes planned frames of one file and moves the end.
    fn write_frames(
        &mut self,
        frames: std::ops::Range<usize>,
        records: &[Record],
        way: WriteWay,
        locations: &mut Vec<Location>,
    ) -> Result<u64, StorageError> {
        let current = self.current.as_mut().expect("frames are written to a file");
        let frames = &self.frames[frames];
        let start = if current.header_written { frames[0].offset } else { 0 };
        let last = frames.last().expect("there is a frame to write");
        // The rest of the last page is zeroed: a page written whole needs no read before, and no
        // old bytes stay behind the end.
        let padded = (last.offset + last.bytes).next_multiple_of(PAGE_BYTES);
        assert!(padded <= current.slot.bytes, "frames stay inside their file");
        let mut layout =
            Layout { current, session: self.session, frame_no: self.next_frame_no, previous_crc: 0, start, padded };
        let written = layout.fill_ahead().and_then(|()| match way {
            WriteWay::Cached => {
                let mut stage = self.memory.cached();
                layout.lay(frames, records, locations, &mut stage)?;
                stage.finish(&layout.current.slot.file, start, |number| &records[number].body)
            }
            WriteWay::Direct => {
                let slot = layout.current.slot.clone();
                let mut stage = self.memory.direct(&slot.file, start);
                layout.lay(frames, records, locations, &mut stage)?;
                stage.finish()
            }
        });
        if let Err(source) = written {
            // Not `Full`, even if that is what the disk said: some of it may be written, so the
            // call must not be repeated. Room for the file was reserved; only a file system that
            // copies on write or a thin volume can get here.
            self.stopped = true;
            return Err(StorageError::Io { action: "write", file: layout.current.slot.name.clone(), source });
        }
        self.next_frame_no = layout.frame_no;
        let (previous_crc, end) = (layout.previous_crc, last.offset + last.bytes);
        current.header_written = true;
        current.end = end;
        current.next = match way {
            WriteWay::Cached => end.next_multiple_of(FRAME_ALIGN_BYTES),
            WriteWay::Direct => padded,
        };
        current.previous_crc = previous_crc;
        Ok(u64::from(padded - start))
    }

    /// Asks for spare files once this one is a quarter full: a broker that hardly writes never pays
    /// for them.
    fn want_spares(&self) {
        if self.current.as_ref().is_some_and(|current| current.end > current.slot.bytes / 4) {
            self.spares.want();
        }
    }
}

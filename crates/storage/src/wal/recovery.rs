//! Opening a log: which files are alive, what they hold, where to go on.
//!
//! Invariant: what was synced is shown to the sink, in order, or reported as damage; what was not
//! is shown as a prefix or not at all. Nothing is written but (1) pages since the last provable
//! sync that can be read and are not on the disk, as after a failed sync, (2) zeroes over the
//! beginning of a cut-off tail, and (3) a file header rebuilt from its neighbours.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use crate::disk::{Disk, DiskFile, OpenMode, settle};
use crate::error::{StorageError, at, syncing};

use super::format::{
    self, FIRST_FRAME_OFFSET, FORMAT_VERSION, FRAME_HEADER_BYTES, FileHeader, FrameHeader, PAGE_BYTES,
    RECORD_HEADER_BYTES,
};
use super::mark::Mark;
use super::spares::{Spares, slot_number};
use super::{
    Current, FILE_BYTES_MAX, FileNo, FileWalk, Known, Location, Memory, RecordName, RecordRef, Seen, Slot, WAL_FOLDER,
    Wal, WalOptions, WalPosition, Window, walk_file,
};

/// Damaged ranges reported one by one; more are only counted. A disk this bad needs no longer list.
pub const DAMAGE_COUNT_MAX: usize = 4096;

/// No file holds more frames.
const FRAMES_MAX: u64 = (FILE_BYTES_MAX / FRAME_HEADER_BYTES) as u64;

/// What is damaged when there is no file.
const MISSING: &str = "the whole file";

/// A range of the log that was durable and is not readable any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Number of the file.
    pub file: FileNo,
    /// Its name inside the data folder; empty when the file is missing.
    pub name: String,
    /// First damaged byte.
    pub offset: u32,
    /// How many bytes; 0 when unknown, as for a missing file that the note beside the log does not
    /// name.
    pub bytes: u32,
    /// What should be there.
    pub what: &'static str,
    /// Which record it was, if its header could be read. `None`: any group may have lost records
    /// here.
    pub record: Option<RecordName>,
}

/// What [`recover`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Files that are part of the log.
    pub files: u64,
    /// The oldest file that was read; 1 for a log in which nothing is yet, and for one that still
    /// has its beginning.
    pub first_file: FileNo,
    /// Frames shown.
    pub frames: u64,
    /// Records shown.
    pub records: u64,
    /// Bytes of their bodies.
    pub body_bytes: u64,
    /// What was lost. Not empty: the groups concerned must not vote, acknowledge or campaign until
    /// they have it from elsewhere.
    pub damage: Vec<Damage>,
    /// Damaged ranges beyond [`DAMAGE_COUNT_MAX`].
    pub damage_unlisted: u64,
    /// File headers that were unreadable, by a torn write or by damage, and were rebuilt from their
    /// neighbours. Nothing is lost by it.
    pub headers_rebuilt: u64,
    /// A write that a crash tore began here. It was never acknowledged as synced and is gone, with
    /// all behind it.
    pub cut: Option<WalPosition>,
    /// End of the log.
    pub end: WalPosition,
}

impl Damage {
    /// Where the body of the record lies, if it is one whose header could be read.
    pub fn body(&self) -> Option<Location> {
        self.record?;
        let bytes = self.bytes.checked_sub(RECORD_HEADER_BYTES)?;
        Some(Location { file: self.file, offset: self.offset + RECORD_HEADER_BYTES, bytes })
    }
}

impl Recovery {
    fn add_damage(&mut self, damage: Damage) {
        if self.damage.len() < DAMAGE_COUNT_MAX { self.damage.push(damage) } else { self.damage_unlisted += 1 }
    }

    fn add_missing(&mut self, file: FileNo, bytes: u32) {
        self.add_damage(Damage { file, name: String::new(), offset: 0, bytes, what: MISSING, record: None });
    }
}

/// Opens the log of a folder and shows every record from `from` on to `sink`, oldest first, with
/// the place of its body.
///
/// - `from` is where the oldest replay starts; [`WalPosition::START`] without checkpoints. A few
///   records before it may be shown (those of its frame), and any number that their groups'
///   checkpoints cover.
/// - Files from `keep_from` on stay readable though nothing of those before `from` is shown or
///   looked at: messages of a backlog lie there. Files before both become spares.
/// - Afterwards all that was shown is durable.
/// - Errors: the system's, another version, another folder's file. Damage is not an error but part
///   of the report, which must be read.
/// - Memory: one frame, so at most the largest record.
pub fn recover<D: Disk>(
    disk: &Arc<D>,
    folder_id: u128,
    options: WalOptions,
    keep_from: FileNo,
    from: WalPosition,
    sink: &mut dyn FnMut(RecordRef<'_>, Location),
) -> Result<(Wal<D>, Recovery), StorageError> {
    options.check();
    disk.create_folder(WAL_FOLDER).map_err(at("create", WAL_FOLDER))?;
    let mark = Mark::load(disk, folder_id)?;
    let mut found = find_slots(disk, folder_id)?;
    let mut recovery = Recovery { first_file: FileNo(1), ..Recovery::default() };
    // Of a later file than the first something was durable before a checkpoint named it, and the
    // file that is written stays: without any, somebody took the log away.
    if from.file > FileNo(1) && found.is_empty() {
        recovery.add_missing(from.file, 0);
    }

    // No frame of any file that is there has this number or a later one, though the file may not be
    // read.
    let frames = found.numbered.values().map(|(_, header)| header.first_frame_no + FRAMES_MAX).max().unwrap_or(1);
    let highest = found.numbered.last_key_value().map_or(FileNo(0), |(file, _)| *file);
    let before: Vec<FileNo> = found.numbered.range(..from.file).map(|(file, _)| *file).collect();
    let mut kept: BTreeMap<FileNo, SharedSlot<D>> = BTreeMap::new();
    for file in before {
        let (slot, _) = found.numbered.remove(&file).expect("it was listed");
        if file >= keep_from {
            kept.insert(file, slot);
        } else {
            found.spare.push(slot);
        }
    }
    // Files are released oldest first, so between the kept ones none may be missing. Whether older
    // ones ever were to be kept is not known here; whoever reads from them will hear of it.
    for (file, next) in kept.keys().zip(kept.keys().skip(1).chain([&from.file])) {
        if next.0 > file.0 + 1 {
            recovery.add_missing(FileNo(file.0 + 1), 0);
        }
    }
    let mut opening =
        Opening { folder_id, from, mark: mark.noted(), recovery: &mut recovery, sink, last: None, live: kept };
    opening.walk_files(&mut found)?;
    let Opening { last, live, .. } = opening;

    // A file whose header was rebuilt had no number before.
    let highest = last.as_ref().map_or(highest, |last| highest.max(last.header.file));
    let next_file = FileNo(highest.max(mark.noted().file).max(FileNo(from.file.0.saturating_sub(1))).0 + 1);
    let next_frame_no = last.as_ref().map_or(frames, |last| last.walk.next_frame_no);
    let mut closed: VecDeque<(FileNo, u32)> = live.iter().map(|(file, slot)| (*file, slot.bytes)).collect();
    let mut current = None;
    if let Some(last) = last {
        closed.pop_back();
        make_durable(&last.slot, &last.walk)?;
        let last_bytes = last.slot.bytes;
        let end = last.walk.end;
        current = Some(Current {
            header: last.header,
            slot: last.slot,
            end,
            next: end.next_multiple_of(PAGE_BYTES),
            synced: end,
            previous_crc: last.walk.end_crc,
            header_written: true,
            name_synced: true,
            // How much of it was, nobody knows; most were.
            filled: last_bytes,
        });
    }
    // One file always stays: it tells the next start that nobody took the log away.
    let begun = if live.is_empty() && found.has_only_unfinished() { found.unfinished.pop() } else { None };
    let spares = Spares::new(options, folder_id, found.next_slot, begun);
    // Whoever made a file may have died before its name was durable, and from here on every name
    // counts as such.
    if !live.is_empty() || !found.spare.is_empty() || !found.unreadable.is_empty() {
        disk.sync_folder(WAL_FOLDER).map_err(syncing(WAL_FOLDER))?;
    }
    let mut reusable = found.spare;
    // While a file is missing, one without a header may be what is left of it: then it stays for
    // whoever wants to look.
    if !recovery.damage.iter().any(|damage| damage.what == MISSING) {
        reusable.append(&mut found.unreadable);
    }
    for slot in reusable {
        spares.give_back(slot);
    }
    for slot in found.unfinished {
        disk.remove(&slot.name).map_err(at("remove", &slot.name))?;
    }
    let wal = Wal {
        disk: disk.clone(),
        session: format::salt(options.nonce, folder_id, FileNo(0)) as u32,
        options,
        folder_id,
        live: Arc::new(RwLock::new(live)),
        spares: Arc::new(spares),
        current,
        closed,
        next_file,
        next_frame_no,
        mark,
        stopped: false,
        frames: Vec::new(),
        memory: Memory::default(),
    };
    recovery.files = wal.live.read().unwrap_or_else(PoisonError::into_inner).len() as u64;
    recovery.end = wal.position();
    Ok((wal, recovery))
}

type SharedSlot<D> = Arc<Slot<<D as Disk>::File>>;

/// The slots of the folder by what their headers say.
struct Found<D: Disk> {
    numbered: BTreeMap<FileNo, (SharedSlot<D>, FileHeader)>,
    spare: Vec<SharedSlot<D>>,
    /// No valid header, but bytes in its place or a frame behind it: a torn reuse, or damage.
    unreadable: Vec<SharedSlot<D>>,
    /// Never given a header, nor anything else.
    unfinished: Vec<Slot<D::File>>,
    next_slot: u32,
}

impl<D: Disk> Found<D> {
    fn is_empty(&self) -> bool {
        self.has_only_unfinished() && self.unfinished.is_empty()
    }

    fn has_only_unfinished(&self) -> bool {
        self.numbered.is_empty() && self.spare.is_empty() && self.unreadable.is_empty()
    }
}

fn find_slots<D: Disk>(disk: &Arc<D>, folder_id: u128) -> Result<Found<D>, StorageError> {
    let mut found = Found {
        numbered: BTreeMap::new(),
        spare: Vec::new(),
        unreadable: Vec::new(),
        unfinished: Vec::new(),
        next_slot: 1,
    };
    for file_name in disk.list(WAL_FOLDER).map_err(at("list", WAL_FOLDER))? {
        let Some(number) = slot_number(&file_name) else { continue };
        found.next_slot = found.next_slot.max(number.saturating_add(1));
        let name = format!("{WAL_FOLDER}/{file_name}");
        let file = disk.open(&name, OpenMode::ReadWrite).map_err(at("open", &name))?;
        let bytes = file.len().map_err(at("measure", &name))?.min(u64::from(FILE_BYTES_MAX)) as u32;
        let mut page = [0; PAGE_BYTES as usize];
        let read = file.read_at(&mut page, 0).map_err(at("read", &name))?;
        let header = FileHeader::decode(&page[..read]).map_err(|found| StorageError::OtherVersion {
            file: name.clone(),
            found,
            supported: FORMAT_VERSION,
        })?;
        let slot = Slot { name, file, bytes: bytes - bytes % PAGE_BYTES };
        match header {
            Some(header) if header.folder_id != folder_id => {
                return Err(StorageError::Corrupt {
                    file: slot.name.clone(),
                    offset: 24,
                    what: "id of the data folder in a log file",
                    expected: folder_id as u64,
                    found: header.folder_id as u64,
                });
            }
            Some(FileHeader { file: FileNo(0), .. }) => found.spare.push(Arc::new(slot)),
            Some(header) => {
                let name = slot.name.clone();
                if let Some((other, _)) = found.numbered.insert(header.file, (Arc::new(slot), header)) {
                    return Err(same_number(&other.name, &name, header.file));
                }
            }
            None if page.iter().all(|byte| *byte == 0) && !begins_with_frame(&slot)? => found.unfinished.push(slot),
            None => found.unreadable.push(Arc::new(slot)),
        }
    }
    Ok(found)
}

/// Two files say that they are the same one, which no broker makes.
pub(crate) fn same_number(first: &str, second: &str, number: FileNo) -> StorageError {
    StorageError::SameNumber { first: first.to_owned(), second: second.to_owned(), number: number.0 }
}

/// A page of zeroes where the header should be may be a sector that was lost: what is behind it can
/// give it back.
fn begins_with_frame<F: DiskFile>(slot: &Slot<F>) -> Result<bool, StorageError> {
    let mut bytes = [0; FRAME_HEADER_BYTES as usize];
    let read = slot.file.read_at(&mut bytes, u64::from(FIRST_FRAME_OFFSET)).map_err(at("read", &slot.name))?;
    Ok(FrameHeader::decode_any(&bytes[..read]).is_some())
}

/// The oldest file from which on the log is there without a gap up to file `from`, given back or
/// not: `from` itself if the one before it is not there. Changes nothing.
pub fn reaches_back_from<D: Disk>(disk: &D, folder_id: u128, from: FileNo) -> Result<FileNo, StorageError> {
    let there = files_there(disk, folder_id)?;
    let mut oldest = from;
    while oldest > FileNo(1) && there.contains(&FileNo(oldest.0 - 1)) {
        oldest = FileNo(oldest.0 - 1);
    }
    Ok(oldest)
}

/// The newest file that is there, if any has begun. Changes nothing.
pub fn newest_file<D: Disk>(disk: &D, folder_id: u128) -> Result<Option<FileNo>, StorageError> {
    Ok(files_there(disk, folder_id)?.last().copied())
}

/// The files of this folder's log whose headers are whole, given back or not.
fn files_there<D: Disk>(disk: &D, folder_id: u128) -> Result<BTreeSet<FileNo>, StorageError> {
    let mut there = BTreeSet::new();
    for file_name in disk.list(WAL_FOLDER).map_err(at("list", WAL_FOLDER))? {
        if slot_number(&file_name).is_none() {
            continue;
        }
        let name = format!("{WAL_FOLDER}/{file_name}");
        if let Ok(Some(header)) = read_header(disk, &name)? {
            there.extend(Some(header.file).filter(|_| header.folder_id == folder_id));
        }
    }
    Ok(there)
}

/// The header of a log file, if it is whole; the other version, if it is one of that.
fn read_header<D: Disk>(disk: &D, name: &str) -> Result<Result<Option<FileHeader>, u32>, StorageError> {
    let file = disk.open(name, OpenMode::Read).map_err(at("open", name))?;
    let mut page = [0; PAGE_BYTES as usize];
    let read = file.read_at(&mut page, 0).map_err(at("read", name))?;
    Ok(FileHeader::decode(&page[..read]))
}

/// The folder that each file of the log says it belongs to, as far as their headers are whole.
/// Changes nothing.
pub(crate) fn folder_ids<D: Disk>(disk: &D) -> Result<Vec<u128>, StorageError> {
    let mut ids = Vec::new();
    for file_name in disk.list(WAL_FOLDER).map_err(at("list", WAL_FOLDER))? {
        if slot_number(&file_name).is_none() {
            continue;
        }
        let name = format!("{WAL_FOLDER}/{file_name}");
        ids.extend(read_header(disk, &name)?.ok().flatten().map(|header| header.folder_id));
    }
    Ok(ids)
}

/// The file walked last, to be continued.
struct Last<D: Disk> {
    slot: SharedSlot<D>,
    header: FileHeader,
    walk: FileWalk,
}

/// State of the walk over all files.
struct Opening<'a, D: Disk> {
    folder_id: u128,
    from: WalPosition,
    mark: WalPosition,
    recovery: &'a mut Recovery,
    sink: &'a mut dyn FnMut(RecordRef<'_>, Location),
    last: Option<Last<D>>,
    live: BTreeMap<FileNo, SharedSlot<D>>,
}

impl<D: Disk> Opening<'_, D> {
    /// Walks the files from the first needed one on. Numbers are contiguous; a gap is damage unless
    /// a headless file fills it.
    fn walk_files(&mut self, found: &mut Found<D>) -> Result<(), StorageError> {
        let from_the_first = self.from.file == FileNo(0) && !found.numbered.contains_key(&FileNo(1));
        if from_the_first && let Some((slot, header)) = self.rebuild_header(FileNo(1), found)? {
            // Nobody tells of the very first file but itself.
            found.numbered.insert(FileNo(1), (slot, header));
        }
        let lowest = found.numbered.first_key_value().map(|(file, _)| *file);
        let first = if self.from.file == FileNo(0) { lowest.unwrap_or(FileNo(1)) } else { self.from.file };
        self.recovery.first_file = first;
        let highest = found.numbered.last_key_value().map(|(file, _)| *file);
        // Files that must be there: all up to the highest found, the one to start from, and the one
        // that the note names.
        let start_must_exist = self.from.offset > 0;
        let needed = highest
            .max(start_must_exist.then_some(first))
            .max((self.mark.file >= first && self.mark != WalPosition::START).then_some(self.mark.file));
        let mut file = first;
        while needed.is_some_and(|needed| file <= needed) {
            let here = match found.numbered.remove(&file) {
                Some(here) => Some(here),
                None => self.rebuild_header(file, found)?,
            };
            match here {
                Some((slot, header)) => {
                    let next = found.numbered.get(&FileNo(file.0 + 1)).map(|(_, next)| *next);
                    self.walk_one(slot, header, next)?;
                }
                None => {
                    self.recovery.add_missing(file, self.noted_bytes(file));
                    // A gap of any length is reported by its ends: the numbers come from the disk
                    // and may be absurd.
                    if let Some((&next, _)) = found.numbered.first_key_value() {
                        file = FileNo(next.0 - 1);
                    } else if let Some(needed) = needed.filter(|needed| *needed > file) {
                        self.recovery.add_missing(needed, self.noted_bytes(needed));
                        file = needed;
                    }
                }
            }
            file = FileNo(file.0 + 1);
        }
        // The header of the very last file may be torn or damaged, while its first frame proves
        // that it belongs here.
        if let Some((slot, header)) = self.rebuild_header(file, found)? {
            self.walk_one(slot, header, None)?;
        }
        Ok(())
    }

    /// How much of a file was durable by the note beside the log, if that names it; 0 else.
    fn noted_bytes(&self, file: FileNo) -> u32 {
        if self.mark.file == file { self.mark.offset.min(FILE_BYTES_MAX) } else { 0 }
    }

    fn walk_one(
        &mut self,
        slot: SharedSlot<D>,
        header: FileHeader,
        next: Option<FileHeader>,
    ) -> Result<(), StorageError> {
        let file = header.file;
        if self.last.as_ref().is_some_and(|last| header.first_frame_no < last.walk.next_frame_no) {
            return Err(StorageError::Corrupt {
                file: slot.name.clone(),
                offset: 56,
                what: "number of the first frame",
                expected: self.last.as_ref().map_or(0, |last| last.walk.next_frame_no),
                found: header.first_frame_no,
            });
        }
        let closed = next.filter(|next| next.previous_file == file);
        let known = Known {
            salt: header.salt,
            header_crc: header.crc(),
            first_frame_no: header.first_frame_no,
            synced: if self.mark.file == file { self.mark.offset.min(FILE_BYTES_MAX) } else { 0 },
            closed_end: closed.map(|next| next.previous_end.clamp(FIRST_FRAME_OFFSET, FILE_BYTES_MAX)),
            wanted_from: if self.from.file == file { self.from.offset } else { 0 },
        };
        let (recovery, sink, name) = (&mut *self.recovery, &mut *self.sink, &slot.name);
        let mut visit = |seen: Seen<'_>| match seen {
            Seen::Frame { .. } => recovery.frames += 1,
            Seen::Record { record, body_offset } => {
                recovery.records += 1;
                recovery.body_bytes += record.body.len() as u64;
                sink(record, Location { file, offset: body_offset, bytes: record.body.len() as u32 });
            }
            Seen::Damage { offset, bytes, what, record } => {
                recovery.add_damage(Damage { file, name: name.clone(), offset, bytes, what, record });
            }
        };
        let walk = walk_file(&mut Window::new(&slot.file, name, slot.bytes), &known, &mut visit)?;
        self.recovery.cut = walk.torn.then_some(WalPosition { file, offset: walk.end });
        self.live.insert(file, slot.clone());
        self.last = Some(Last { slot, header, walk });
        Ok(())
    }

    /// Finds, among the files without a readable header, the one that continues the last file, and
    /// writes its header anew.
    ///
    /// The first frame's chain holds the checksum of the whole header, so a header that was guessed
    /// right proves itself.
    fn rebuild_header(
        &mut self,
        file: FileNo,
        found: &mut Found<D>,
    ) -> Result<Option<(SharedSlot<D>, FileHeader)>, StorageError> {
        // The first file of all has no predecessor.
        let before = match &self.last {
            Some(last) => (last.header.file, last.walk.end, last.walk.end_crc),
            None if file == FileNo(1) => (FileNo(0), 0, 0),
            None => return Ok(None),
        };
        for (place, slot) in found.unreadable.iter().enumerate() {
            let mut bytes = [0; FRAME_HEADER_BYTES as usize];
            let offset = u64::from(FIRST_FRAME_OFFSET);
            let read = slot.file.read_at(&mut bytes, offset).map_err(at("read", &slot.name))?;
            let Some(frame) = FrameHeader::decode_any(&bytes[..read]) else { continue };
            let header = FileHeader {
                file,
                folder_id: self.folder_id,
                previous_file: before.0,
                previous_end: before.1,
                previous_end_crc: before.2,
                first_frame_no: frame.frame_no,
                salt: frame.salt,
            };
            if frame.previous_crc != header.crc() {
                continue;
            }
            let slot = found.unreadable.remove(place);
            slot.file.write_at(&header.encode(), 0).map_err(at("write", &slot.name))?;
            slot.file.sync_data().map_err(syncing(&slot.name))?;
            self.recovery.headers_rebuilt += 1;
            return Ok(Some((slot, header)));
        }
        Ok(None)
    }
}

/// Makes what was read of the last file durable, from where it is not proven to be.
fn make_durable<F: DiskFile>(slot: &Slot<F>, walk: &FileWalk) -> Result<(), StorageError> {
    let from = if walk.synced <= FIRST_FRAME_OFFSET { 0 } else { walk.synced.next_multiple_of(PAGE_BYTES) };
    let to = walk.end.next_multiple_of(PAGE_BYTES);
    // What was cut off began right behind the end, in the same page, if no sync came between. It
    // must go, or it would be found there again and hide what is written from the next page on. The
    // page was not durable then, so nothing is put at risk by writing it.
    let mut behind = vec![0; (to - walk.end) as usize];
    let read = slot.file.read_at(&mut behind, u64::from(walk.end)).map_err(at("read", &slot.name))?;
    if behind[..read].iter().any(|byte| *byte != 0) {
        behind.fill(0);
        slot.file.write_at(&behind, u64::from(walk.end)).map_err(at("write", &slot.name))?;
    }
    settle(&slot.file, u64::from(from), u64::from(to)).map_err(syncing(&slot.name))?;
    Ok(())
}

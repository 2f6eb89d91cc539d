//! The log of a folder: which files there are, which are missed, and how each of them goes.
//!
//! Invariant: what looks like damage is told only if a second look, at the folder or at the file as
//! it is then, finds the same: a node that runs gives its oldest files back and uses them again.

use std::collections::BTreeSet;

use super::{Depth, Fact, Needed, damaged};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at};
use crate::wal::format::{FileHeader, PAGE_BYTES};
use crate::wal::{
    self, FILE_BYTES_MAX, FileNo, GroupId, Known, RecordKind, Seen, WAL_FOLDER, WalPosition, Window, walk_file,
};

/// Looks at a folder that changes, until two find the same files.
const LOOKS_MAX: usize = 10;

/// Tells of the log. `again` says what is needed by then.
pub(super) fn inspect<D: Disk>(
    disk: &D,
    depth: Depth,
    needed: &Needed,
    again: &dyn Fn() -> Needed,
    visit: &mut dyn FnMut(Fact),
) {
    let mut look = Look::take(disk);
    let mut missed = look.missed(needed);
    for _ in 1..LOOKS_MAX {
        if missed.is_empty() && !look.is_one_gone {
            break;
        }
        let fresh = again();
        let before = std::mem::replace(&mut look, Look::take(disk));
        missed = look.missed(&fresh);
        if look.numbers() == before.numbers() {
            break;
        }
    }
    std::mem::take(&mut look.facts).into_iter().chain(missed).for_each(&mut *visit);
    let Look { mark, files, .. } = &look;
    let mut groups = BTreeSet::new();
    for (place, file) in files.iter().enumerate() {
        visit(Fact::WalFile { name: file.name.clone(), bytes: file.bytes, header: file.header });
        if file.header.file == FileNo(0) {
            continue;
        }
        let next = files.get(place + 1).map(|next| next.header);
        let known = file.known(*mark, next.filter(|next| next.previous_file == file.header.file));
        groups.extend(inspect_frames(disk, file, &known, depth, needed, visit));
    }
    let first = files.iter().map(|file| file.header.file).find(|file| *file > FileNo(0));
    // A group that comes when the log has let go of its first file is founded with a checkpoint.
    let lacks_state = |needed: &Needed| groups.iter().copied().find(|group| !needed.groups.contains(group));
    if let Some(first) = first.filter(|first| *first > FileNo(1))
        && lacks_state(needed).is_some()
        && let Some(group) = lacks_state(&again())
    {
        let text =
            format!("it begins with file number {}, and group {} has no saved state but the log", first.0, group.0);
        visit(lack(WAL_FOLDER, text));
    }
}

fn lack(name: &str, text: String) -> Fact {
    Fact::Damaged { name: name.to_owned(), offset: 0, bytes: 0, text, record: None }
}

/// The log's files at one moment, as far as files that are opened one after the other can show it.
struct Look<F> {
    mark: Option<WalPosition>,
    /// By number; spares have none.
    files: Vec<LogFile<F>>,
    /// What is told of the note and of other files.
    facts: Vec<Fact>,
    /// A file that was listed was gone when it was opened.
    is_one_gone: bool,
}

struct LogFile<F> {
    header: FileHeader,
    name: String,
    file: F,
    bytes: u64,
}

impl<F: DiskFile> Look<F> {
    fn take<D: Disk<File = F>>(disk: &D) -> Look<F> {
        let mut look = Look { mark: None, files: Vec::new(), facts: Vec::new(), is_one_gone: false };
        match wal::read_mark(disk) {
            Ok(mark) => look.mark = mark,
            Err(error) => look.facts.push(damaged(wal::MARK_NAME, &error)),
        }
        look.facts.extend(look.mark.map(Fact::DurableNote));
        let names = super::list(disk, WAL_FOLDER, &mut |fact| look.facts.push(fact));
        for file_name in names {
            let name = format!("{WAL_FOLDER}/{file_name}");
            if name == wal::MARK_NAME {
                continue;
            }
            if !wal::is_slot(&file_name) {
                look.facts.push(Fact::Unknown { name });
                continue;
            }
            match open(disk, &name) {
                Ok((file, bytes, Ok(Some(header)))) => look.files.push(LogFile { header, name, file, bytes }),
                Ok((_, bytes, Ok(None))) => look.facts.push(Fact::WalFileUnreadable { name, bytes }),
                Ok((_, _, Err(found))) => {
                    let supported = wal::format::FORMAT_VERSION;
                    let error = StorageError::OtherVersion { file: name.clone(), found, supported };
                    look.facts.push(damaged(&name, &error));
                }
                Err(StorageError::Missing { .. }) => look.is_one_gone = true,
                Err(error) => look.facts.push(damaged(&name, &error)),
            }
        }
        look.files.sort_by_key(|file| file.header.file);
        look
    }

    fn numbers(&self) -> Vec<(FileNo, u64)> {
        self.files.iter().map(|file| (file.header.file, file.header.salt)).collect()
    }

    /// What is told of files that are not there and should be.
    fn missed(&self, needed: &Needed) -> Vec<Fact> {
        let mut missed = Vec::new();
        let is_there = |file| self.files.iter().any(|known| known.header.file == file);
        // A repair moves files aside that nothing is read from any more, and the note may still
        // name one of them.
        let is_needed = |file| needed.log_from.is_none_or(|from| file >= from);
        let is_missed =
            |mark: &WalPosition| *mark != WalPosition::START && !is_there(mark.file) && is_needed(mark.file);
        if let Some(mark) = self.mark.filter(is_missed) {
            let text = format!("log file number {} was durable to byte {} and is not there", mark.file.0, mark.offset);
            missed.push(lack(wal::MARK_NAME, text));
        }
        for pair in self.files.windows(2) {
            let (before, behind) = (pair[0].header.file, pair[1].header.file);
            if before > FileNo(0) && before == behind {
                let error = wal::same_number(&pair[0].name, &pair[1].name, before);
                missed.push(lack(&pair[1].name, error.to_string()));
            }
            // Files are given back oldest first, so between two that are there none may be missing.
            // A spare has number 0.
            if before > FileNo(0) && behind.0 > before.0 + 1 && is_needed(FileNo(behind.0 - 1)) {
                let first = before.0 + 1;
                let text = format!("log file number {first} is not there, and the one with number {} is", behind.0);
                missed.push(lack(WAL_FOLDER, text));
            }
        }
        let first = self.files.iter().map(|file| file.header.file).find(|file| *file > FileNo(0));
        let is_late = |(first, from): &(FileNo, FileNo)| first > from && *from > FileNo(0);
        if let Some((first, from)) = first.zip(needed.log_from).filter(is_late) {
            let text = format!("it begins with file number {}, and is needed from number {} on", first.0, from.0);
            missed.push(lack(WAL_FOLDER, text));
        }
        // What the note says of the newest file says more. A state is saved when the file that it names is durable.
        let last = self.files.last().map_or(FileNo(0), |file| file.header.file);
        let is_told = self.mark.is_some_and(|mark| mark.file > last && is_missed(&mark));
        let is_short = |(file, _): &(FileNo, GroupId)| *file > FileNo(1) && *file > last && last > FileNo(0);
        if let Some((file, group)) = needed.log_to.filter(|_| !is_told).filter(is_short) {
            let (last, file, group) = (last.0, file.0, group.0);
            let text = format!(
                "log file number {file} is not there, nor any behind it: the log ends with number {last}, and the state of group {group} was saved \
                 when number {file} was there"
            );
            missed.push(lack(WAL_FOLDER, text));
        }
        missed
    }
}

impl<F: DiskFile> LogFile<F> {
    fn known(&self, mark: Option<WalPosition>, next: Option<FileHeader>) -> Known {
        let mark = mark.filter(|mark| mark.file == self.header.file);
        Known {
            salt: self.header.salt,
            header_crc: self.header.crc(),
            first_frame_no: self.header.first_frame_no,
            synced: mark.map_or(0, |mark| mark.offset.min(FILE_BYTES_MAX)),
            closed_end: next.map(|next| next.previous_end.clamp(PAGE_BYTES, FILE_BYTES_MAX)),
            wanted_from: 0,
        }
    }

    fn window(&self) -> Window<'_, F> {
        Window::new(&self.file, &self.name, self.bytes.min(u64::from(FILE_BYTES_MAX)) as u32)
    }

    /// Where its damage begins, as a walk of its own finds it; none if the node has given it back,
    /// or has used it again, meanwhile.
    fn damage_now<D: Disk<File = F>>(&self, disk: &D, known: &Known) -> BTreeSet<u32> {
        let mut damage = BTreeSet::new();
        // An error of the disk is told by the walk that asks.
        let _ = walk_file(&mut self.window(), known, &mut |seen| {
            if let Seen::Damage { offset, .. } = seen {
                damage.insert(offset);
            }
        });
        let is_given_back = match open(disk, &self.name) {
            Ok((_, _, Ok(Some(header)))) => header != self.header,
            Err(StorageError::Missing { .. }) => true,
            Ok(_) | Err(_) => false,
        };
        if is_given_back { BTreeSet::new() } else { damage }
    }
}

type Opened<F> = (F, u64, Result<Option<FileHeader>, u32>);

fn open<D: Disk>(disk: &D, name: &str) -> Result<Opened<D::File>, StorageError> {
    let file = disk.open(name, OpenMode::Read).map_err(at("open", name))?;
    let bytes = file.len().map_err(at("measure", name))?;
    let mut page = [0; PAGE_BYTES as usize];
    let read = file.read_at(&mut page, 0).map_err(at("read", name))?;
    Ok((file, bytes, FileHeader::decode(&page[..read])))
}

/// The groups of which there are entries.
fn inspect_frames<D: Disk>(
    disk: &D,
    file: &LogFile<D::File>,
    known: &Known,
    depth: Depth,
    needed: &Needed,
    visit: &mut dyn FnMut(Fact),
) -> BTreeSet<GroupId> {
    let name = &file.name;
    // The group needs nothing of this file.
    let is_void = |group| needed.log_from_of.get(&group).is_some_and(|from| file.header.file < *from);
    let mut damage_now = None;
    let mut is_still_there = |offset| damage_now.get_or_insert_with(|| file.damage_now(disk, known)).contains(&offset);
    let (mut frames, mut records, mut groups) = (0, 0, BTreeSet::new());
    let walk = walk_file(&mut file.window(), known, &mut |seen| match seen {
        Seen::Frame { offset, header } => {
            frames += 1;
            if depth.records {
                visit(Fact::Frame { offset, header });
            }
        }
        Seen::Record { record, body_offset } => {
            records += 1;
            if record.kind == RecordKind::Entry {
                groups.insert(record.group);
            }
            if depth.records {
                let body_bytes = record.body.len() as u32;
                visit(Fact::Record { record: record.name(), body_offset, body_bytes });
            }
        }
        Seen::Damage { offset, .. } if !is_still_there(offset) => {}
        Seen::Damage { offset, what, record: Some(record), .. } if is_void(record.group) => {
            let group = record.group.0;
            let text = format!("the {what} at byte {offset} cannot be read, and its group, {group}, needs it no more");
            visit(Fact::Unfinished { name: name.clone(), text });
        }
        Seen::Damage { offset, bytes, what, record } => {
            let text = format!("the {what} at byte {offset} was durable and is not readable");
            let (name, offset, bytes) = (name.clone(), u64::from(offset), u64::from(bytes));
            visit(Fact::Damaged { name, offset, bytes, text, record });
        }
    });
    match walk {
        Ok(walk) => visit(Fact::WalFileEnd { end: walk.end, frames, records, synced: walk.synced, torn: walk.torn }),
        Err(error) => visit(damaged(name, &error)),
    }
    groups
}

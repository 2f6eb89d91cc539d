//! Files that wait to be written: released ones to be used again and new ones made ahead of need.
//!
//! Invariant: a ready spare is as long as the option says, its blocks are allocated and were
//! written once, its name is durable. A new file whose blocks were never written costs every sync a
//! journal commit (docs/formats/wal.md has the numbers), so spares are filled with zeroes by a
//! thread that has time, in slices, and only once the log is really written to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{StorageError, at, syncing};

use super::format::{FileHeader, PAGE_BYTES};
use super::stage::write_zeroes;
use super::{FileNo, Slot, WAL_FOLDER, WalOptions};

/// Written in one call; small enough that a sync of the log waits behind at most this.
const SLICE_BYTES: u32 = 1 << 20;
/// Zeroes are synced every so often, so that they do not pile up in the page cache and all go to
/// the disk at the wrong moment.
const SYNC_EVERY_BYTES: u32 = 8 << 20;

/// Spares of one log, shared by the writer and the preparer.
#[derive(Debug)]
pub(super) struct Spares<D: Disk> {
    options: WalOptions,
    folder_id: u128,
    state: Mutex<State<D::File>>,
}

/// A slot about to become a log file.
#[derive(Debug)]
pub(super) struct TakenSlot<F> {
    pub(super) slot: Arc<Slot<F>>,
    /// Whether its name survives a power cut already.
    pub(super) name_synced: bool,
    /// Whether its blocks were written once.
    pub(super) is_filled: bool,
}

#[derive(Debug)]
struct State<F> {
    /// A file in which nothing is yet, by which a folder shows that it has a log; the first one
    /// written to.
    begun: Option<Slot<F>>,
    ready: Vec<Arc<Slot<F>>>,
    surplus: Vec<Arc<Slot<F>>>,
    next_slot: u32,
    wanted: bool,
}

/// Name of a slot. Slots keep their name for life; the number of the log file is in the header.
fn slot_name(slot: u32) -> String {
    format!("{WAL_FOLDER}/{slot:08}.wal")
}

/// Makes the folder of the log and a file in which nothing is yet, if there is none; durable
/// afterwards.
pub fn found_log<D: Disk>(disk: &D) -> Result<(), StorageError> {
    disk.create_folder(WAL_FOLDER).map_err(at("create", WAL_FOLDER))?;
    if !has_log(disk)? {
        let name = slot_name(1);
        disk.open(&name, OpenMode::CreateNew).map_err(at("create", &name))?;
    }
    disk.sync_folder(WAL_FOLDER).map_err(syncing(WAL_FOLDER))
}

/// Whether there is any file of the log, if only a spare or one in which nothing is yet. A data
/// folder that was founded always has one; without any, somebody took the log away. Changes
/// nothing.
pub fn has_log<D: Disk>(disk: &D) -> Result<bool, StorageError> {
    let names = disk.list(WAL_FOLDER).map_err(at("list", WAL_FOLDER))?;
    Ok(names.iter().any(|name| slot_number(name).is_some()))
}

/// The slot number in a file name, without the folder.
pub(super) fn slot_number(name: &str) -> Option<u32> {
    name.strip_suffix(".wal").filter(|digits| digits.len() == 8)?.parse().ok()
}

impl<D: Disk> Spares<D> {
    pub(super) fn new(options: WalOptions, folder_id: u128, next_slot: u32, begun: Option<Slot<D::File>>) -> Spares<D> {
        let state = State { begun, ready: Vec::new(), surplus: Vec::new(), next_slot, wanted: false };
        Spares { options, folder_id, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<D::File>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file to write to: a ready one, else a new one with its room reserved.
    pub(super) fn take(&self, disk: &D) -> Result<TakenSlot<D::File>, StorageError> {
        if let Some(slot) = self.state().ready.pop() {
            return Ok(TakenSlot { slot, name_synced: true, is_filled: true });
        }
        Ok(TakenSlot { slot: Arc::new(self.create(disk)?), name_synced: false, is_filled: false })
    }

    /// How much room of the disk [`Spares::take`] needs.
    pub(super) fn room_of_next(&self) -> u64 {
        if self.state().ready.is_empty() { u64::from(self.options.file_bytes) } else { 0 }
    }

    /// Takes back a file that nobody needs.
    pub(super) fn give_back(&self, slot: Arc<Slot<D::File>>) {
        let mut state = self.state();
        if state.ready.len() < self.options.spares_max && slot.bytes == self.options.file_bytes {
            state.ready.push(slot);
        } else {
            state.surplus.push(slot);
        }
    }

    pub(super) fn want(&self) {
        self.state().wanted = true;
    }

    /// A file that waits to be written again is to be deleted, unless it is the last one.
    fn shed(&self) {
        let mut state = self.state();
        let shed = if state.ready.len() > 1 { state.ready.pop() } else { None };
        state.surplus.extend(shed);
    }

    fn create(&self, disk: &D) -> Result<Slot<D::File>, StorageError> {
        let bytes = self.options.file_bytes;
        let begun = self.state().begun.take();
        if let Some(slot) = begun {
            let allocated = slot.file.allocate(u64::from(bytes)).map_err(at("allocate", &slot.name));
            return match allocated {
                Ok(()) => Ok(Slot { bytes, ..slot }),
                Err(error) => {
                    self.state().begun = Some(slot);
                    Err(full(disk, error))
                }
            };
        }
        let number = {
            let mut state = self.state();
            state.next_slot += 1;
            state.next_slot - 1
        };
        let name = slot_name(number);
        let file = disk.open(&name, OpenMode::CreateNew).map_err(|source| full(disk, at("create", &name)(source)))?;
        if let Err(source) = file.allocate(u64::from(bytes)) {
            // Best effort: an empty file left behind is removed by the next recovery.
            let _ = disk.remove(&name);
            return Err(full(disk, at("allocate", &name)(source)));
        }
        Ok(Slot { name, file, bytes })
    }
}

/// Adds what is free to the message of a full disk.
fn full<D: Disk>(disk: &D, error: StorageError) -> StorageError {
    match error {
        StorageError::Full { file, .. } => StorageError::Full { file, free_bytes: disk.free_bytes().unwrap_or(0) },
        other => other,
    }
}

/// What a step of [`SparePreparer`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// Nothing is to be done now.
    Idle,
    /// A slice of work was done, more may be left.
    Worked,
}

/// Makes spare files ahead of need and deletes those that are too many. One per log, for a thread
/// with time.
#[derive(Debug)]
pub struct SparePreparer<D: Disk> {
    disk: Arc<D>,
    spares: Arc<Spares<D>>,
    filling: Option<(Slot<D::File>, u32)>,
}

impl<D: Disk> SparePreparer<D> {
    pub(super) fn new(disk: Arc<D>, spares: Arc<Spares<D>>) -> SparePreparer<D> {
        SparePreparer { disk, spares, filling: None }
    }

    /// The disk has little room: the next [`SparePreparer::step`] deletes a file that waits to be
    /// written again, unless it is the last one.
    pub fn shed(&mut self) {
        self.spares.shed();
    }

    /// Does one slice: deletes one file, or writes up to 1 MiB of zeroes, or finishes a spare with
    /// its sync.
    ///
    /// Idle until the log was written to. [`StorageError::Full`] may be met: the log goes on with
    /// the files it has; call again later.
    pub fn step(&mut self) -> Result<Preparation, StorageError> {
        let surplus = self.spares.state().surplus.pop();
        if let Some(slot) = surplus {
            self.disk.remove(&slot.name).map_err(at("remove", &slot.name))?;
            return Ok(Preparation::Worked);
        }
        let Some((slot, filled)) = &mut self.filling else {
            let enough = {
                let state = self.spares.state();
                !state.wanted || state.ready.len() >= self.spares.options.spares_target
            };
            if enough {
                return Ok(Preparation::Idle);
            }
            self.filling = Some((self.spares.create(&self.disk)?, 0));
            return Ok(Preparation::Worked);
        };
        if *filled < slot.bytes {
            let end = slot.bytes.min(*filled + SLICE_BYTES);
            write_zeroes(&slot.file, *filled, end).map_err(at("write", &slot.name))?;
            *filled = end;
            if filled.is_multiple_of(SYNC_EVERY_BYTES) {
                slot.file.sync_data().map_err(syncing(&slot.name))?;
            }
            return Ok(Preparation::Worked);
        }
        // The header of a spare has number 0. Without it a file counts as unfinished and the next
        // recovery removes it.
        slot.file.write_at(&spare_header(self.spares.folder_id), 0).map_err(at("write", &slot.name))?;
        slot.file.sync_data().map_err(syncing(&slot.name))?;
        self.disk.sync_folder(WAL_FOLDER).map_err(syncing(WAL_FOLDER))?;
        let (slot, _) = self.filling.take().expect("it is being filled");
        self.spares.state().ready.push(Arc::new(slot));
        Ok(Preparation::Worked)
    }
}

fn spare_header(folder_id: u128) -> [u8; PAGE_BYTES as usize] {
    FileHeader {
        file: FileNo(0),
        folder_id,
        previous_file: FileNo(0),
        previous_end: 0,
        previous_end_crc: 0,
        first_frame_no: 0,
        salt: 0,
    }
    .encode()
}

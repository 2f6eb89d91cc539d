//! Every message that extents still hold, in the order of files, runs and numbers, whether anything
//! refers to them or not.
//!
//! Which of them were settled is the state's affair, and it may be lost: an extent does not know
//! it. Invariant: opens everything for reading only; what is told as a message passed its own
//! checksum, which covers its queue and its number. The folder may be that of a running node, which
//! writes extents and gives them back meanwhile: neither is damage, and a message that moved from
//! one to another is told.

use std::collections::BTreeSet;

use crate::data_folder::read_identity;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::extent::{EXTENT_FOLDER, ExtentId, ExtentMessage, SalvagedExtent, check_folder, extent_name, extent_of};

/// Bodies that are in memory at once, but for a single larger one.
const BATCH_BYTES: u32 = 1 << 20;

/// What is found.
#[derive(Debug)]
pub enum Found {
    /// A message.
    Message {
        /// The queue's number.
        queue: u64,
        /// Its number in the queue, and its bytes as they were stored.
        message: ExtentMessage,
    },
    /// A file that is being written, or that a kill left half written: nothing ever referred to it,
    /// and what was to be in it is where it came from.
    Unfinished,
    /// Something cannot be read; what comes after it is still told.
    Damaged(StorageError),
}

/// Shows all messages of the extents in their folder, and of those that lie in the folder `aside`
/// under other names, to `visit`, each with the name of its file; what is unfinished at the end.
///
/// - Cost: reads each extent once, and the index of each run once for each MiB of its messages.
/// - A message that a running node copies meanwhile may be told twice.
pub fn export<D: Disk>(disk: &D, aside: &str, visit: &mut dyn FnMut(&str, Found)) {
    let folder_id = read_identity(disk).ok().flatten().map(|(identity, _)| identity.folder_id);
    let mut told = BTreeSet::new();
    loop {
        let (mut is_one_gone, mut unfinished) = (false, Vec::new());
        for (name, id) in listed(disk, aside, &mut told, visit) {
            let own = match folder_id {
                Some(folder_id) if name == extent_name(id) => check_folder(disk, id, folder_id),
                _ => Ok(()),
            };
            match own.and_then(|()| look(disk, &name, id)) {
                Ok(Some(extent)) => export_extent(&extent, &name, visit),
                Ok(None) => {
                    unfinished.push(name);
                    continue;
                }
                // Given back since it was listed. What was live in it is in others, which may have
                // come after the list was made.
                Err(StorageError::Missing { .. }) => is_one_gone = true,
                Err(error) => visit(&name, Found::Damaged(error)),
            }
            told.insert(name);
        }
        if !is_one_gone {
            return unfinished.iter().for_each(|name| visit(name, Found::Unfinished));
        }
    }
}

/// The extents that were not told yet.
fn listed<D: Disk>(
    disk: &D,
    aside: &str,
    told: &mut BTreeSet<String>,
    visit: &mut dyn FnMut(&str, Found),
) -> Vec<(String, ExtentId)> {
    let mut all = Vec::new();
    for folder in [EXTENT_FOLDER, aside] {
        match disk.list(folder).map_err(crate::error::at("list", folder)) {
            Ok(names) => {
                for file_name in names {
                    // What is kept aside has its former path behind a number.
                    let id = extent_of(file_name.rsplit('-').next().unwrap_or(&file_name));
                    let name = format!("{folder}/{file_name}");
                    all.extend(id.filter(|_| !told.contains(&name)).map(|id| (name, id)));
                }
            }
            Err(error) if told.insert(folder.to_owned()) => visit(folder, Found::Damaged(error)),
            Err(_) => {}
        }
    }
    all
}

/// Opens an extent; `None` if it is not finished.
fn look<D: Disk>(disk: &D, name: &str, id: ExtentId) -> Result<Option<SalvagedExtent<D>>, StorageError> {
    let first = SalvagedExtent::open_named(disk, name.to_owned(), id)?;
    if !first.looks_unfinished() {
        return Ok(Some(first));
    }
    // It may have got its end between two of the reads.
    let second = SalvagedExtent::open_named(disk, name.to_owned(), id)?;
    Ok(Some(second).filter(|extent| !extent.looks_unfinished()))
}

fn export_extent<D: Disk>(extent: &SalvagedExtent<D>, name: &str, visit: &mut dyn FnMut(&str, Found)) {
    match extent.wrong_length() {
        Some(error) => visit(name, Found::Damaged(error)),
        None if extent.run_count() == 0 => {
            let (file, what) = (name.to_owned(), "run table, of which nothing can be read,");
            visit(name, Found::Damaged(StorageError::Corrupt { file, offset: 0, what, expected: 1, found: 0 }));
        }
        None => {}
    }
    for run in 0..extent.run_count() {
        let (mut from, mut is_told) = (0, false);
        loop {
            let (queue, found) = extent.read_of_any(run, from..u64::MAX, BATCH_BYTES);
            if let Some(error) = found.damage.filter(|_| !std::mem::replace(&mut is_told, true)) {
                visit(name, Found::Damaged(error));
            }
            let Some(last) = found.messages.last() else { break };
            // A number that no message has is above all of them.
            from = last.seq + 1;
            found.messages.into_iter().for_each(|message| visit(name, Found::Message { queue, message }));
        }
    }
}

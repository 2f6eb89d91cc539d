//! Every message that extents still hold, in the order of files, runs and numbers, whether anything
//! refers to them or not.
//!
//! Which of them were settled is the state's affair, and it may be lost: an extent does not know
//! it. Invariant: opens everything for reading only; what is told as a message passed its own
//! checksum, which covers its queue and its number.

use crate::disk::Disk;
use crate::error::StorageError;
use crate::extent::{EXTENT_FOLDER, ExtentMessage, SalvagedExtent, extent_of};

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
    /// Something cannot be read; what comes after it is still told.
    Damaged(StorageError),
}

/// Shows all messages of the extents in their folder, and of those that lie in the folder `aside`
/// under other names, to `visit`, each with the name of its file.
///
/// - Cost: reads each extent once, and the index of each run once for each MiB of its messages.
pub fn export<D: Disk>(disk: &D, aside: &str, visit: &mut dyn FnMut(&str, Found)) {
    for folder in [EXTENT_FOLDER, aside] {
        let names = disk.list(folder).map_err(crate::error::at("list", folder)).unwrap_or_else(|error| {
            visit(folder, Found::Damaged(error));
            Vec::new()
        });
        for file_name in names {
            // What is kept aside has its former path behind a number.
            let former = file_name.rsplit('-').next().unwrap_or(&file_name);
            let Some(id) = extent_of(former) else { continue };
            let name = format!("{folder}/{file_name}");
            match SalvagedExtent::open_named(disk, name.clone(), id) {
                Ok(extent) => export_extent(&extent, &name, visit),
                Err(error) => visit(&name, Found::Damaged(error)),
            }
        }
    }
}

fn export_extent<D: Disk>(extent: &SalvagedExtent<D>, name: &str, visit: &mut dyn FnMut(&str, Found)) {
    if extent.run_count() == 0 {
        let (file, what) = (name.to_owned(), "run table, of which nothing can be read,");
        visit(name, Found::Damaged(StorageError::Corrupt { file, offset: 0, what, expected: 1, found: 0 }));
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

//! The extents that are kept open to be read, shared by who reads them and who deletes them.
//!
//! Invariant: a file that was deleted is not kept open, because the disk has its room back only when
//! the last handle is gone. So who deletes says so after the deletion, and what was opened meanwhile
//! is used once and not kept. They are bounded: each holds a descriptor.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::{Disk, Extent, ExtentId, StorageError};

/// Extents kept open; the longest unused goes first.
const OPEN_EXTENTS_MAX: usize = 64;

/// See the module. Clones are the same extents. The lock is never held while a file is touched.
pub struct OpenExtents<D: Disk> {
    kept: Arc<Mutex<Kept<D>>>,
}

struct Kept<D: Disk> {
    open: VecDeque<Arc<Extent<D>>>,
    /// How many were deleted.
    deleted: u64,
}

impl<D: Disk> Clone for OpenExtents<D> {
    fn clone(&self) -> Self {
        OpenExtents { kept: self.kept.clone() }
    }
}

impl<D: Disk> Default for OpenExtents<D> {
    fn default() -> Self {
        OpenExtents { kept: Arc::new(Mutex::new(Kept { open: VecDeque::new(), deleted: 0 })) }
    }
}

impl<D: Disk> OpenExtents<D> {
    fn kept(&self) -> MutexGuard<'_, Kept<D>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The extent, opened if it was not.
    pub(crate) fn get(&self, disk: &D, id: ExtentId) -> Result<Arc<Extent<D>>, StorageError> {
        let deleted = {
            let mut kept = self.kept();
            if let Some(extent) = kept.take(id) {
                kept.open.push_front(extent.clone());
                return Ok(extent);
            }
            kept.deleted
        };
        let extent = Arc::new(Extent::open(disk, id)?);
        self.keep(&extent, deleted);
        Ok(extent)
    }

    /// Keeps an extent open, unless something was deleted since so many were: it may be this one.
    fn keep(&self, extent: &Arc<Extent<D>>, deleted: u64) {
        let mut kept = self.kept();
        if kept.deleted != deleted {
            return;
        }
        let longest_unused = if kept.open.len() < OPEN_EXTENTS_MAX { None } else { kept.open.pop_back() };
        kept.open.push_front(extent.clone());
        // Closing a file touches it.
        drop(kept);
        drop(longest_unused);
    }

    /// The file of this extent has been deleted.
    pub(crate) fn is_deleted(&self, id: ExtentId) {
        let mut kept = self.kept();
        kept.deleted += 1;
        let extent = kept.take(id);
        drop(kept);
        // With the last handle of a large file the disk has work to do.
        drop(extent);
    }
}

impl<D: Disk> Kept<D> {
    fn take(&mut self, id: ExtentId) -> Option<Arc<Extent<D>>> {
        let at = self.open.iter().position(|extent| extent.id() == id)?;
        self.open.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::{ExtentWriter, FaultyDisk};

    #[test]
    fn what_is_deleted_while_it_is_being_opened_is_not_kept_open() {
        let disk = Arc::new(FaultyDisk::new(1));
        let empty = disk.used_bytes();
        let mut extent = ExtentWriter::create(&disk, 7, ExtentId(1)).expect("there is room");
        extent.push(5, 1, &[1; 100_000]).expect("there is room");
        extent.finish().expect("there is room");

        let open = OpenExtents::default();
        let opened = Arc::new(Extent::open(&*disk, ExtentId(1)).expect("it is whole"));
        storage::extent::remove_extent(&*disk, ExtentId(1)).expect("it is there");
        open.is_deleted(ExtentId(1));
        open.keep(&opened, 0);
        assert!(opened.read(0, 1, 1, 1 << 20).is_ok_and(|read| read.len() == 1), "once, for who asked");
        drop(opened);
        assert_eq!(disk.used_bytes(), empty);
    }

    #[test]
    fn so_many_are_kept_open_and_the_longest_unused_goes_first() {
        let disk = Arc::new(FaultyDisk::new(1));
        let open = OpenExtents::default();
        for id in 1..=OPEN_EXTENTS_MAX as u64 + 1 {
            let mut extent = ExtentWriter::create(&disk, 7, ExtentId(id)).expect("there is room");
            extent.push(5, 1, &[1; 100]).expect("there is room");
            extent.finish().expect("there is room");
            open.get(&*disk, ExtentId(id)).expect("it is whole");
            open.get(&*disk, ExtentId(1)).expect("it is whole");
        }
        let mut ids: Vec<u64> = open.kept().open.iter().map(|extent| extent.id().0).collect();
        ids.sort_unstable();
        let all_but_the_second: Vec<u64> = (1..=OPEN_EXTENTS_MAX as u64 + 1).filter(|id| *id != 2).collect();
        assert_eq!(ids, all_but_the_second);
    }
}

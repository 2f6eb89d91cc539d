//! What the disk's threads report back to partitions.
//!
//! Invariant: a partition's completions are taken in the order in which they were put; whoever puts some wakes the
//! partition afterwards, once for however many.

use partition::extent_copy::Copied;
use partition::outputs::{ExtentReady, ReadBytes, ReadFailed, ReadPurpose, Ticket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::Location;

/// Something that a partition asked for is done.
#[derive(Debug)]
pub(crate) enum Completion {
    /// A write is with the operating system; the places of its entries.
    Written(Ticket, Vec<Location>),
    /// All writes up to this one are on the disk.
    Synced(Ticket),
    /// A read came back.
    Read(ReadPurpose, Result<ReadBytes, ReadFailed>),
    /// An extent was written as far as its runs could be read.
    Extent(Copied),
    /// Messages of a snapshot were written.
    Received(Option<ExtentReady>),
    /// The checkpoint under way is saved.
    Checkpoint,
    /// The WAL went on to another file.
    Rolled,
}

/// The list of one partition.
#[derive(Clone, Default)]
pub(crate) struct Completions {
    list: Arc<Mutex<Vec<Completion>>>,
}

impl Completions {
    fn lock(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one; true if the list was empty, so that its partition has to be woken.
    pub(crate) fn put(&self, completion: Completion) -> bool {
        let mut list = self.lock();
        list.push(completion);
        list.len() == 1
    }

    /// Takes all into `taken`, which is empty.
    pub(crate) fn take(&self, taken: &mut Vec<Completion>) {
        assert!(taken.is_empty(), "what was taken before is handled before more is taken");
        std::mem::swap(&mut *self.lock(), taken);
    }
}

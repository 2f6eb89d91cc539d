//! What the disk reports back to partitions.
//!
//! Invariant: a partition's completions are taken in the order in which they were put. Whoever puts
//! one that somebody waits for wakes the partition afterwards, once for however many since it took
//! some last. That others lie there already says nothing: nobody may wait for those, and then
//! nobody was woken for them.

use partition::extent_copy::Copied;
use partition::outputs::{ExtentReady, ReadBytes, ReadFailed, ReadPurpose, Ticket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::Location;

/// Something that a partition asked for is done.
#[derive(Debug)]
pub enum Completion {
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

/// The list of one partition, shared by all who report to it.
#[derive(Clone, Debug, Default)]
pub struct Completions {
    list: Arc<Mutex<List>>,
}

#[derive(Debug, Default)]
struct List {
    completions: Vec<Completion>,
    /// Somebody wakes the partition, which has not taken anything since.
    is_woken: bool,
}

impl Completions {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one and wakes nobody: nobody waits for it, or the caller wakes the partition in any
    /// case.
    pub fn put(&self, completion: Completion) {
        self.lock().completions.push(completion);
    }

    /// Adds one that somebody waits for; true if the caller has to wake the partition.
    #[must_use]
    pub fn put_awaited(&self, completion: Completion) -> bool {
        let mut list = self.lock();
        list.completions.push(completion);
        !std::mem::replace(&mut list.is_woken, true)
    }

    /// Takes all into `taken`, which is empty.
    pub fn take(&self, taken: &mut Vec<Completion>) {
        assert!(taken.is_empty(), "what was taken before is handled before more is taken");
        let mut list = self.lock();
        list.is_woken = false;
        std::mem::swap(&mut list.completions, taken);
    }
}
